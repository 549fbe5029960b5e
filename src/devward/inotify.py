"""inotify(7) on the event loop.

A binding of our own, over ctypes, because no library that Debian 12 packages fits: pyinotify imports asyncore, which Python 3.12 removed;
inotify offers a blocking generator only; watchdog holds each event back for half a second.
"""

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag

_EVENT_HEADER = struct.Struct("iIII")  # wd, mask, cookie, len: struct inotify_event of <sys/inotify.h>
_READ_SIZE = 64 * 1024


class Mask(IntFlag):
    """Event bits of <sys/inotify.h> that devward uses."""

    MODIFY = 0x002
    ATTRIB = 0x004
    CLOSE_WRITE = 0x008
    MOVED_FROM = 0x040
    MOVED_TO = 0x080
    CREATE = 0x100
    DELETE = 0x200
    DELETE_SELF = 0x400
    MOVE_SELF = 0x800
    UNMOUNT = 0x2000
    OVERFLOW = 0x4000
    IGNORED = 0x8000
    ONLYDIR = 0x01000000
    DONT_FOLLOW = 0x02000000
    MASK_ADD = 0x20000000


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `watch` is the descriptor that `add_watch` returned (-1 for an overflow), `name` empty for the watched object itself."""

    watch: int
    mask: Mask
    name: str


class Inotify:
    """An inotify instance that hands batches of events to a callback on the loop."""

    def __init__(self, on_events: Callable[[list[Event]], None]) -> None:
        """Create the instance; must be called on the running loop. Raises OSError (EMFILE: too many instances)."""
        libc = ctypes.CDLL(None, use_errno=True)
        self._add_watch = libc.inotify_add_watch
        self._add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
        self._rm_watch = libc.inotify_rm_watch
        self._rm_watch.argtypes = (ctypes.c_int, ctypes.c_int)
        self._on_events = on_events
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            _raise("inotify_init1")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._read)

    def add_watch(self, path: str, mask: Mask) -> int:
        """Watch a path and return the watch descriptor; the same object gives the same descriptor again. Raises OSError."""
        watch: int = self._add_watch(self._fd, os.fsencode(path), int(mask))
        if watch < 0:
            _raise(path)
        return watch

    def remove_watch(self, watch: int) -> None:
        """Stop a watch; one that the kernel has dropped already is no error."""
        self._rm_watch(self._fd, watch)

    def close(self) -> None:
        """Close the instance and all its watches."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        events: list[Event] = []
        offset = 0
        while offset < len(data):
            watch, mask, _cookie, length = _EVENT_HEADER.unpack_from(data, offset)
            offset += _EVENT_HEADER.size
            name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
            offset += length
            events.append(Event(watch, Mask(mask), name))
        self._on_events(events)


def _raise(subject: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), subject)
