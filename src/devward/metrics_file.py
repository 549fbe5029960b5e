"""Puts the metrics where node_exporter's textfile collector reads them: the whole old or the whole new file, never a part.

The collector reads every `*.prom` of its directory, as a user of its own (prometheus/node_exporter, collector/textfile.go).
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final

from devward import names

FILE: Final = names.METRICS_FILE
_TEMPORARY: Final = f"{names.TEMPORARY_PREFIX}{FILE}{names.TEMPORARY_SUFFIX}"
_DIRECTORY_FLAGS: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE: Final = 0o644


def write(directory: str, text: str) -> None:
    """Replace the file. OSError.

    The directory may be somebody else's, as the collector's user's in Debian: what is written is a file that was made just now, and no
    link in its place or on the way to it is followed, so that its owner can spoil the metrics and nothing else.

    Nothing is synchronised: after a crash of the host the next file comes soon enough. Blocks as long as the file system does.
    """
    with _opened(directory) as descriptor:
        # What a crash left behind. The name is fixed: nobody else writes here.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_TEMPORARY, dir_fd=descriptor)
        file = os.open(_TEMPORARY, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE, dir_fd=descriptor)
        try:
            with os.fdopen(file, "w", encoding="utf-8") as opened:
                os.fchmod(file, _MODE)
                opened.write(text)
            os.rename(_TEMPORARY, FILE, src_dir_fd=descriptor, dst_dir_fd=descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(_TEMPORARY, dir_fd=descriptor)
            raise


def remove(directory: str) -> bool:
    """Remove the file, as when metrics are switched off: the last ones would be read for ever. False: there was none. OSError."""
    found = False
    with contextlib.suppress(FileNotFoundError), _opened(directory) as descriptor:
        for name in (_TEMPORARY, FILE):
            with contextlib.suppress(FileNotFoundError):
                # A file system that is read-only says so even of a file that is not there.
                os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                os.unlink(name, dir_fd=descriptor)
                found = True
    return found


@contextlib.contextmanager
def _opened(directory: str) -> Iterator[int]:
    """Open a directory step by step, so that no part of its path leads elsewhere: whoever owns one could put a link there."""
    descriptor = os.open("/", _DIRECTORY_FLAGS)
    try:
        for part in directory.strip("/").split("/"):
            above = descriptor
            descriptor = _below(above, part)
            os.close(above)
        yield descriptor
    finally:
        os.close(descriptor)


def _below(above: int, part: str) -> int:
    try:
        return os.open(part, _DIRECTORY_FLAGS, dir_fd=above)
    except NotADirectoryError as error:
        raise NotADirectoryError(errno.ENOTDIR, "a part of the path is no directory, or a symbolic link, which is not followed") from error
