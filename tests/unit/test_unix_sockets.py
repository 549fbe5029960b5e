"""What listens, by the kernel's own word: a real list, and messages that are cut short."""

import contextlib
import errno
import os
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.cluster.unix_sockets import listening_socket, listening_sockets, messages

#: Family, type, state, inode and cookie of a listening stream socket.
LISTENING = struct.pack("=BBBxIQ", 1, 1, 10, 77, 5)


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def test_what_listens_at_a_path_is_told_with_its_inode(tmp_path: Path) -> None:
    os.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listens, socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as abstract:
        # A path may have anything in it; it need not lead anywhere from here.
        path = f"/tmp/{os.getpid()}\n0: 00000002 00000000 00010000 0001 01 17 x"
        listens.bind(path)
        silent.bind(str(tmp_path / "silent"))
        abstract.bind(f"\0{tmp_path}")
        listens.listen()
        abstract.listen()
        try:
            found = listening_sockets()
        finally:
            os.unlink(path)
        assert (os.fstat(listens.fileno()).st_ino, path) in found
        inodes = {inode for inode, _ in found}
        assert not inodes & {os.fstat(other.fileno()).st_ino for other in (silent, abstract)}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -errno.ENOENT), FileNotFoundError, id="the kernel has no such list"),
        pytest.param(struct.pack("=IHHIIi", 20, 3, 0x12, 1, 0, 0), BlockingIOError, id="the list changes all the time"),
    ],
)
def test_a_kernel_that_cannot_tell(monkeypatch: pytest.MonkeyPatch, answer: bytes, error: type[OSError]) -> None:
    class Channel:
        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> "Channel":
            return self

        def __exit__(self, *_: object) -> None: ...
        def settimeout(self, _: float) -> None: ...
        def send(self, _: bytes) -> None: ...
        def recv(self, _: int) -> bytes:
            return answer

    monkeypatch.setattr(socket, "socket", Channel)
    with pytest.raises(error):
        listening_sockets()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (LISTENING + attribute(0, b"/run/a\0"), (77, "/run/a")),
        (LISTENING + attribute(5, b"\1") + attribute(0, b"/run/a"), (77, "/run/a")),
        (LISTENING + attribute(0, b"\0abstract"), None),
        (LISTENING + attribute(0, b"relative\0"), None),
        (LISTENING, None),
        (struct.pack("=BBBxIQ", 1, 1, 1, 77, 5) + attribute(0, b"/run/a\0"), None),
    ],
)
def test_a_message(body: bytes, expected: tuple[int, str] | None) -> None:
    assert listening_socket(body) == expected


@given(st.binary(max_size=80))
def test_no_message_is_too_odd(data: bytes) -> None:
    for read in (lambda: list(messages(data)), lambda: listening_socket(data)):
        with contextlib.suppress(OSError):
            read()
