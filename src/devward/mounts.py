"""Notices changes of the mount table: something mounted over a device node, a file system that became read-only or writable.

The kernel flags /proc/self/mountinfo with POLLPRI on every change in our mount namespace (proc_pid_mountinfo(5)). asyncio can wait for
readability only, so an epoll instance that asks for POLLPRI stands between.
"""

import asyncio
import os
import select
from collections.abc import Callable


class MountWatch:
    """Calls back once for each change, or burst of changes, of the mount table."""

    def __init__(self, on_change: Callable[[], None], mountinfo: str = "/proc/self/mountinfo") -> None:
        """Start to watch, on the running loop. Raises OSError where /proc is not mounted."""
        self._on_change = on_change
        self._file = os.open(mountinfo, os.O_RDONLY | os.O_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._file, select.EPOLLPRI | select.EPOLLET)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._notified)

    def close(self) -> None:
        """Stop watching."""
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            os.close(self._file)

    def _notified(self) -> None:
        # The kernel reports a change once, and the loop's own look at the epoll instance has used it up: an empty answer is no denial.
        self._epoll.poll(0)
        self._on_change()
