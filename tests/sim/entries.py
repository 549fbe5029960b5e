"""Things that may stand where a file is expected, and proof that nobody touched or opened them."""

import ctypes
import os
import socket
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

VICTIM_TEXT: Final = "root:x:0:0:root:/root:/bin/bash\n"
_IN_ACCESS, _IN_MODIFY, _IN_OPEN = 0x1, 0x2, 0x20  # <sys/inotify.h>


def _victim(path: Path) -> Path:
    victim = path.parent.parent / "victim"
    if not victim.exists():
        victim.write_text(VICTIM_TEXT)
        victim.chmod(0o600)
    return victim


def _link(path: Path) -> None:
    path.symlink_to(_victim(path))


def _dangling_link(path: Path) -> None:
    path.symlink_to(path.parent.parent / "nowhere")


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("kept")


def _socket(path: Path) -> None:
    here = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)  # a socket's path may have 107 bytes only
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def _device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))


#: What is not a regular file, by the name that devward gives it in a message, and how it is made.
OBSTRUCTIONS: Final[Mapping[str, tuple[str, Callable[[Path], None]]]] = MappingProxyType(
    {
        "link": ("symbolic link", _link),
        "dangling link": ("symbolic link", _dangling_link),
        "FIFO": ("FIFO", _fifo),
        "directory": ("directory", _directory),
        "socket": ("socket", _socket),
    }
)
#: The one that needs root.
DEVICE: Final[tuple[str, Callable[[Path], None]]] = ("device node", _device)


def fingerprint(path: Path) -> tuple[object, ...]:
    """Everything about an entry that a touch would change, and what it holds; for a link, of its target too."""
    status = os.lstat(path)
    facts: tuple[object, ...] = (
        status.st_ino,
        status.st_mode,
        status.st_uid,
        status.st_gid,
        status.st_nlink,
        status.st_size,
        status.st_mtime_ns,
        status.st_rdev,
    )
    if stat.S_ISLNK(status.st_mode):
        target = path.parent / os.readlink(path)
        return (*facts, str(target), fingerprint(target) if target.exists() else None)
    if stat.S_ISDIR(status.st_mode):
        return (*facts, {entry.name: fingerprint(entry) for entry in path.iterdir()})
    if stat.S_ISREG(status.st_mode):
        return (*facts, path.read_bytes())
    return facts


def tick(directory: Path) -> None:
    """Wait until the file system's clock has ticked, so that a change has other times than the one before it.

    Before Linux 6.13 (multigrain timestamps) changes within some milliseconds have the same.
    """
    probe = directory / ".tick"
    probe.touch()
    begun = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == begun:
        os.utime(probe)
    probe.unlink()


class OpenWatch:
    """Notices whether anybody opens, reads or changes a path (O_PATH does not count), following a link."""

    def __init__(self, path: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._fd >= 0
        self._watches = libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_OPEN | _IN_ACCESS | _IN_MODIFY) >= 0

    def opened(self) -> bool:
        """Whether it happened since the watch began; the watch ends."""
        try:
            return bool(os.read(self._fd, 65536))
        except BlockingIOError:
            return False
        finally:
            os.close(self._fd)
