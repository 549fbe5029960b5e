"""UNIX sockets that listen in the network namespace of this process, as the kernel tells them itself (sock_diag(7)).

/proc/net/unix prints a path as it is: one with a newline in it looks like two lines, the second about whatever its owner likes. Here a path
is one attribute, whatever is in it.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

#: <linux/netlink.h>, <linux/sock_diag.h> and <linux/unix_diag.h>.
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST_AND_DUMP: Final = 0x1 | 0x300
_INTERRUPTED: Final = 0x10
_ERROR, _DONE = 2, 3
_TCP_LISTEN: Final = 10
_SHOW_NAME: Final = 0x1
_NAME_ATTRIBUTE: Final = 0
_HEADER: Final = struct.Struct("=IHHII")
#: struct unix_diag_req: family, protocol, states, inode, what to show, cookie.
_QUESTION: Final = struct.Struct("=BBHIII8x")
#: struct unix_diag_msg: family, type, state, inode, cookie.
_ANSWER: Final = struct.Struct("=BBBxI8x")
_ATTRIBUTE: Final = struct.Struct("=HH")
_STATUS: Final = struct.Struct("=i")
_SIZE: Final = 64 * 1024
_MAX_SOCKETS: Final = 200_000
_SECONDS: Final = 5.0
_ATTEMPTS: Final = 4


def listening_sockets() -> list[tuple[int, str]]:
    """Return inode and path of each socket that listens at a path. OSError: the kernel cannot tell (it may be built without).

    A long list comes in parts, and the kernel counts its way back to where it was (`unix_diag_dump` in net/unix/diag.c): a socket that is
    closed between two parts can hide another one. So a long list is asked for twice, and what either has counts.
    """
    before: list[tuple[int, str]] | None = None
    for _ in range(_ATTEMPTS):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as channel:
            channel.settimeout(_SECONDS)
            question = _QUESTION.pack(socket.AF_UNIX, 0, 0, 1 << _TCP_LISTEN, 0, _SHOW_NAME)
            channel.send(_HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST_AND_DUMP, 1, 0) + question)
            found: list[tuple[int, str]] = []
            is_whole, parts = _read_all(channel, found)
        if is_whole and (parts == 1 or before is not None):
            return list(dict.fromkeys([*(before or ()), *found]))
        before = found if is_whole else before
    raise OSError(errno.EAGAIN, "the list of sockets changes all the time")


def _read_all(channel: socket.socket, found: list[tuple[int, str]]) -> tuple[bool, int]:
    """Add what the kernel tells until it is done, and return in how many parts it did. False: the list changed, and may lack one."""
    is_whole, parts = True, 0
    while True:
        for kind, flags, body in messages(channel.recv(_SIZE)):
            is_whole = is_whole and not flags & _INTERRUPTED
            if kind == _DONE:
                return is_whole, max(parts, 1)
            if kind == _ERROR and len(body) >= _STATUS.size:
                status = -_STATUS.unpack_from(body)[0]
                raise OSError(status, os.strerror(status))
            if kind == _SOCK_DIAG_BY_FAMILY and (one := listening_socket(body)) is not None:
                found.append(one)
                if len(found) > _MAX_SOCKETS:
                    raise OSError(errno.EFBIG, f"more than {_MAX_SOCKETS} sockets")
        parts += 1


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield type, flags and body of each message of a datagram. OSError: it is none of netlink's."""
    at = 0
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise OSError(errno.EBADMSG, "a netlink message is cut short")
        size, kind, flags, _, _ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= size <= len(data) - at:
            raise OSError(errno.EBADMSG, f"a netlink message has {size} bytes")
        yield kind, flags, data[at + _HEADER.size : at + size]
        at += _aligned(size)


def listening_socket(body: bytes) -> tuple[int, str] | None:
    """Return inode and path of the socket of a message; None: it does not listen at a path. OSError: the message is none of unix_diag's."""
    if len(body) < _ANSWER.size:
        raise OSError(errno.EBADMSG, "a message about a socket is cut short")
    _, _, state, inode = _ANSWER.unpack_from(body)
    at = _ANSWER.size
    while at + _ATTRIBUTE.size <= len(body):
        size, kind = _ATTRIBUTE.unpack_from(body, at)
        if not _ATTRIBUTE.size <= size <= len(body) - at:
            raise OSError(errno.EBADMSG, f"an attribute of a socket has {size} bytes")
        name = body[at + _ATTRIBUTE.size : at + size]
        # An abstract name begins with a zero; a path ends with one.
        if kind == _NAME_ATTRIBUTE and state == _TCP_LISTEN and name.startswith(b"/"):
            return inode, os.fsdecode(name.partition(b"\0")[0])
        at += _aligned(size)
    return None


def _aligned(size: int) -> int:
    return (size + 3) & ~3
