"""What listens, by the kernel's own word: a real list, and messages that are cut short."""

import contextlib
import errno
import itertools
import os
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.cluster.unix_sockets import listening_socket, listening_sockets, messages

#: Family, type, state, inode and cookie of a listening stream socket.
LISTENING = struct.pack("=BBBxIQ", 1, 1, 10, 77, 5)


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def told(inode: int) -> bytes:
    """Return a message about a socket that listens at a path with its inode in it."""
    body = struct.pack("=BBBxIQ", 1, 1, 10, inode, 5) + attribute(0, b"/run/%d\0" % inode)
    return struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + body


DONE = struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)


def answers_with(monkeypatch: pytest.MonkeyPatch, answers: Iterator[bytes]) -> None:
    """Have the kernel send these datagrams."""

    class Channel:
        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> "Channel":
            return self

        def __exit__(self, *_: object) -> None: ...
        def settimeout(self, _: float) -> None: ...
        def send(self, _: bytes) -> None: ...
        def recv(self, _: int) -> bytes:
            return next(answers)

    monkeypatch.setattr(socket, "socket", Channel)


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
    answers_with(monkeypatch, itertools.repeat(answer))
    with pytest.raises(error):
        listening_sockets()


def test_what_one_of_two_long_lists_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (told(inode) for inode in (1, 2, 3))
    # A socket that is closed between two parts can hide the next one.
    lists = [first, third, DONE], [first, second, third, DONE]
    answers_with(monkeypatch, itertools.chain(*lists))
    assert sorted(listening_sockets()) == [(1, "/run/1"), (2, "/run/2"), (3, "/run/3")]


def test_a_short_list_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers_with(monkeypatch, iter([told(1) + told(2), DONE]))
    assert listening_sockets() == [(1, "/run/1"), (2, "/run/2")]


def test_a_list_of_many_sockets() -> None:
    with contextlib.ExitStack() as held, tempfile.TemporaryDirectory(prefix="u", dir="/tmp") as name:
        expected = set()
        for number in range(600):
            one = held.enter_context(socket.socket(socket.AF_UNIX))
            one.bind(f"{name}/{number}")
            one.listen()
            expected.add((os.fstat(one.fileno()).st_ino, f"{name}/{number}"))
        found = listening_sockets()
    assert expected <= set(found)
    assert len(found) == len(set(found))


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
