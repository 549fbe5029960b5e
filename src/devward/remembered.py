"""The remembered state in memory, and its way to disk: what the loop changes here, a worker thread saves.

A change takes effect at once; a save that fails is reported and tried again with the next change, since nothing that is remembered here
is worth holding a repair back for.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from devward.errors import DevwardError
from devward.model import MAXIMUM_PAUSE_SECONDS
from devward.state import State
from devward.worker import Worker, WorkerHung

_log = logging.getLogger(__name__)

#: Seconds that a save may take before it is given up on.
SAVE_DEADLINE = 5.0


class Store(Protocol):
    """Where the state is kept; state.StateStore is the real one."""

    def save(self, state: State) -> bool:
        """Put the state on disk."""

    def backup(self, name: str, data: bytes) -> str:
        """Keep a copy of a foreign file and return its path."""


class Remembered:
    """Holds the current State and saves it, in a thread of its own: a state directory that hangs holds up no repair for long."""

    def __init__(self, state: State, store: Store, worker: Worker) -> None:
        """Start from what was loaded."""
        self.state = state
        self._store = store
        self._worker = worker
        self._unsaved = False

    def known_digests(self, path: str) -> tuple[str, ...]:
        """Return the digests of what devward has written at a path, none if it never did."""
        return self.state.digests.get(path, ())

    async def update(self, change: Callable[[State], State]) -> bool:
        """Change the state and save it; False if it could not be saved (the change stands in memory all the same)."""
        changed = change(self.state)
        if changed == self.state and not self._unsaved:
            return True
        self.state = changed
        try:
            await self._worker.run(lambda: self._store.save(changed), SAVE_DEADLINE)
        except (DevwardError, OSError, WorkerHung) as error:
            self._unsaved = True
            _log.warning("what devward remembers could not be saved: %s", error)
            return False
        self._unsaved = False
        return True

    async def add_digest(self, path: str, digest: str) -> bool:
        """Remember that devward writes this content at this path."""
        if self.known_digests(path)[-1:] == (digest,) and not self._unsaved:
            return True
        return await self.update(lambda state: state.with_digest(path, digest))

    async def forget(self, path: str) -> bool:
        """Forget that devward has written at this path, for when the first write came to nothing."""
        return await self.update(lambda state: dataclasses.replace(state, digests=_without(state.digests, path)))

    async def backup(self, name: str, data: bytes) -> str:
        """Keep a copy of a file. Raises DevwardError, OSError or WorkerHung: then the file must not be replaced."""
        return await self._worker.run(lambda: self._store.backup(name, data), SAVE_DEADLINE)


def _without(digests: Mapping[str, tuple[str, ...]], path: str) -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({key: value for key, value in digests.items() if key != path})


def with_bounded_pause(state: State, now_usec: int) -> State:
    """Return the state with a pause of repairs that ends within the longest that can be asked for, whatever the clock said when it began.

    That of reclaiming is bounded where it is looked at (pausing.py): it stays on record as it was asked for until it is long over, as the
    clock may be behind now and right at the next start.
    """
    latest = now_usec + MAXIMUM_PAUSE_SECONDS * 1_000_000
    pause = state.cdi_pause
    if pause is None or pause.until_usec <= latest:
        return state
    return dataclasses.replace(state, cdi_pause=dataclasses.replace(pause, until_usec=latest))


def without_pause(state: State) -> State:
    """Return the state with no pause of repairs."""
    return dataclasses.replace(state, cdi_pause=None)


def without_reclaim_pause(state: State) -> State:
    """Return the state with no pause of reclaiming."""
    return dataclasses.replace(state, reclaim_pause=None)
