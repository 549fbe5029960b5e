"""Small files of other programs, read without following a link, without blocking and not beyond a limit."""

import errno
import os
import stat

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_file(path: str, limit: int, *, directory: int | None = None) -> tuple[bytes, os.stat_result]:
    """Return a regular file's content and facts. OSError, with EFBIG: too long; EINVAL: something else; EAGAIN: it changed meanwhile."""
    # Asked before it is opened, so that no driver and no FIFO's writer learns of it; and again of what was opened.
    if not stat.S_ISREG(os.stat(path, dir_fd=directory, follow_symlinks=False).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    descriptor = os.open(path, _FLAGS, dir_fd=directory)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        data = _read(descriptor, limit)
        if not _is_unchanged(facts, os.fstat(descriptor)):
            raise OSError(errno.EAGAIN, "it changed while it was read")
    finally:
        os.close(descriptor)
    return data, facts


def read_start(path: str, size: int, *, directory: int | None = None) -> bytes:
    """Return the first `size` bytes, or fewer, of a regular file. OSError."""
    descriptor = os.open(path, _FLAGS, dir_fd=directory)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def read_all(path: str, limit: int) -> bytes:
    """Return the content of a file of /proc, whose size and times say nothing. OSError: EFBIG, it is longer."""
    descriptor = os.open(path, _FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return _read(descriptor, limit)
    finally:
        os.close(descriptor)


def version(facts: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return what differs between two contents of one path."""
    return facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size


def _is_unchanged(before: os.stat_result, after: os.stat_result) -> bool:
    """Whether what was read in between is of one moment; a file that is replaced by rename stays as it was, but its ctime does not."""
    if after.st_nlink == 0:
        return (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
    return version(before) == version(after)


def _read(descriptor: int, limit: int) -> bytes:
    pieces: list[bytes] = []
    left = limit + 1
    while left > 0 and (piece := os.read(descriptor, min(left, 64 * 1024))):
        pieces.append(piece)
        left -= len(piece)
    if left <= 0:
        raise OSError(errno.EFBIG, f"longer than {limit} bytes")
    return b"".join(pieces)
