"""Notices changes in the CDI directories, and in what leads to them, through inotify.

A directory that is missing, or is removed or replaced later, is noticed in its parent; `rearm` sets the watches anew and is called before
each pass looks, so that nothing that happens after a look goes unnoticed.
"""

import logging
import os
from collections.abc import Callable, Sequence
from enum import StrEnum

from devward import names
from devward.cdi.spec import is_spec_name
from devward.inotify import Event, Inotify, Mask

_log = logging.getLogger(__name__)

_CONTENT_MASK = (
    Mask.MODIFY
    | Mask.ATTRIB
    | Mask.CLOSE_WRITE
    | Mask.CREATE
    | Mask.DELETE
    | Mask.MOVED_FROM
    | Mask.MOVED_TO
    | Mask.DELETE_SELF
    | Mask.MOVE_SELF
    | Mask.ONLYDIR
)
_FILE_MASK = Mask.MODIFY | Mask.ATTRIB | Mask.CLOSE_WRITE | Mask.DONT_FOLLOW
#: Added to what is watched there already: the parent of one directory may be another one under another name.
_PARENT_MASK = (
    Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR | Mask.MASK_ADD
)


class Touched(StrEnum):
    """What a batch of events was about."""

    OWNED = "owned files only"
    OTHERS = "others, too"


class DirectoryWatch:
    """Watches the owned directory and those that engines read."""

    def __init__(self, owned: frozenset[str], directories: Sequence[str], on_touched: Callable[[Touched], None]) -> None:
        """Watch for the owned files, given by path, and for every other CDI file in `directories`. Raises OSError (EMFILE)."""
        self._owned = owned
        self._directories = tuple(dict.fromkeys((*(os.path.dirname(path) for path in sorted(owned)), *directories)))
        self._on_touched = on_touched
        self._inotify = Inotify(self._events)
        #: Watch descriptor to the directory, or the owned file, that it watches.
        self._watches: dict[int, str] = {}
        #: The directories, and what of the way to them does not exist: whose coming and going matters.
        self._ways = frozenset(self._directories)
        self._warned = False
        #: Whether every watch could be set the last time.
        self.complete = True

    def rearm(self) -> bool:
        """Set every watch; one that stands already stays. Blocks as long as the file systems do: call it from a worker thread.

        True if a directory is watched from now on that was not before: what happened in it up to now gave no event.
        """
        watches: dict[int, str] = {}
        ways = set(self._directories)
        self.complete = True
        for path in self._owned:
            # A second name made elsewhere, and a write through that name, show at the file itself only.
            self._add(watches, path, _FILE_MASK)
        for directory in self._directories:
            self._add(watches, directory, _CONTENT_MASK)
        for directory in self._directories:
            path = directory
            while path != "/":
                ways.add(path)
                path = os.path.dirname(path)
                if os.path.isdir(path):
                    break  # the nearest directory that exists shows the next step of the way
            self._add(watches, path, _PARENT_MASK)
        for watch in self._watches.keys() - watches.keys():
            self._inotify.remove_watch(watch)
        directories = {watch for watch, path in watches.items() if path not in self._owned}
        news = not directories <= self._watches.keys()
        self._watches, self._ways = watches, frozenset(ways)
        return news

    def close(self) -> None:
        """Stop watching."""
        self._inotify.close()

    def _add(self, watches: dict[int, str], path: str, mask: Mask) -> None:
        try:
            # Two names of one directory share a watch; the owned directory comes first and names it.
            watches.setdefault(self._inotify.add_watch(path, mask), path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self.complete = False
            if not self._warned:
                _log.warning("%s cannot be watched, changes there show in the slow pass: %s", path, os.strerror(error.errno or 0))
            self._warned = True

    def _events(self, events: list[Event]) -> None:
        owned = others = False
        for event in events:
            if event.mask & Mask.OVERFLOW:
                others = True
                continue
            directory = self._watches.get(event.watch)
            if directory is None:
                continue  # the last words of a watch that was dropped
            path = os.path.join(directory, event.name) if event.name else directory
            spec = directory in self._directories and is_spec_name(event.name) and not event.name.startswith(names.TEMPORARY_PREFIX)
            if path in self._owned:
                owned = True
            elif spec or path in self._ways or not event.name:
                others = True
        if owned or others:
            self._on_touched(Touched.OTHERS if others else Touched.OWNED)
