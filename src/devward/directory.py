"""A directory of our own, and files in it that are replaced as a whole: the ground under state, backups and the lock.

Everything goes through a descriptor of the directory, so that a path which changes under us leads nowhere else.
"""

import contextlib
import os
import stat
from collections.abc import Iterator

from devward import names
from devward.errors import StateError


@contextlib.contextmanager
def own_directory(path: str, *, mode: int = 0o700, parent: int | None = None) -> Iterator[int]:
    """Open a directory that root or we own, made with `mode` if it is missing; yield its descriptor.

    `path` is taken from the directory `parent` if given. StateError: a symbolic link, no directory, somebody else's, one that
    others may write, or an OSError on the way, also one of the block's.
    """
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode, dir_fd=parent)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            _require_own(path, os.fstat(descriptor))
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StateError(f"{path}: {error.strerror or error}") from error


def _require_own(path: str, found: os.stat_result) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise StateError(f"{path}: belongs to uid {found.st_uid}, not to root")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StateError(f"{path}: others than its owner may write in it (mode {stat.S_IMODE(found.st_mode):04o})")


def read_regular(directory: int, name: str, limit: int) -> bytes | None:
    """Return a file's content, None if there is none. OSError; ValueError: not a regular file, or longer than `limit` bytes."""
    try:
        # O_NONBLOCK: a FIFO would hold the open for ever.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        data = b""
        while len(data) <= limit and (more := os.read(descriptor, limit + 1 - len(data))):
            data += more
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise ValueError(f"longer than {limit} bytes")
    return data


def replace_file(directory: int, name: str, data: bytes) -> None:
    """Write a file of mode 0600 so that a reader, or a crash, finds the old or the new one, whole. OSError."""
    temporary = f"{names.TEMPORARY_PREFIX}{name}{names.TEMPORARY_SUFFIX}"
    # A fixed name: what a crash leaves behind is gone with the next write. The lock sees to it that nobody else writes here.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
    os.fsync(directory)
