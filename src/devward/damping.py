"""Damping: of what repeats, the first few are admitted in each window of time, the rest are counted. Pure: time is an argument.

A window opens with the first event of a key and is over `period` seconds later; nothing needs to happen at that moment. Whoever
holds a Damper closes what is over at the next event or at leisure, and sets a timer only while `due` gives a time.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Closed(Generic[Item]):
    """A window that is over and in which events were held back."""

    key: str
    held_back: int
    #: The latest of them and when it happened: what is true now, as far as this key is concerned.
    last: Item
    last_at: float


@dataclass(slots=True)
class _Window(Generic[Item]):
    opened: float
    admitted: int
    held_back: int
    last: Item
    last_at: float


class Damper(Generic[Item]):
    """A bounded number of keys, each with its window."""

    def __init__(self, *, limit: int, period: float, capacity: int) -> None:
        """Admit `limit` events of a key in `period` seconds; remember at most `capacity` keys."""
        self._limit = limit
        self._period = period
        self._capacity = capacity
        self._windows: dict[str, _Window[Item]] = {}

    def has_room(self, key: str) -> bool:
        """Whether an event of this key can be taken in without forgetting another key."""
        return key in self._windows or len(self._windows) < self._capacity

    def admit(self, key: str, item: Item, now: float) -> bool:
        """Take an event in; True if it is one of the first of its window. Close what is over, and see to room, before this."""
        window = self._windows.get(key)
        if window is None:
            self._windows[key] = _Window(opened=now, admitted=1, held_back=0, last=item, last_at=now)
            return True
        window.last, window.last_at = item, now
        if window.admitted < self._limit:
            window.admitted += 1
            return True
        window.held_back += 1
        return False

    def close(self, now: float, *, everything: bool = False) -> list[Closed[Item]]:
        """Forget the windows that are over, or all of them; return those in which events were held back."""
        over = [key for key, window in self._windows.items() if everything or now >= window.opened + self._period]
        return [closed for key in over if (closed := self._forget(key))]

    def close_oldest(self) -> list[Closed[Item]]:
        """Forget the window that opened first, over or not, to make room; return it if events were held back in it."""
        closed = self._forget(next(iter(self._windows)))
        return [closed] if closed else []

    @property
    def due(self) -> float | None:
        """When the first window is over in which events were held back; None: no event waits to be told of."""
        return min((window.opened + self._period for window in self._windows.values() if window.held_back), default=None)

    def _forget(self, key: str) -> Closed[Item] | None:
        window = self._windows.pop(key)
        return Closed(key, window.held_back, window.last, window.last_at) if window.held_back else None
