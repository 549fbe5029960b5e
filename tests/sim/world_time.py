"""Time of the world: what is due when. Nothing waits, and nothing happens but in its order."""

import heapq
from collections.abc import Callable
from typing import Any


class Agenda:
    """Virtual time by the monotonic clock, in seconds, and what is to happen."""

    def __init__(self, now: float, realtime_usec: int) -> None:
        """Begin here."""
        self.now = now
        #: What the wall clock is ahead of the monotonic one, in microseconds.
        self.offset_usec = realtime_usec - int(now * 1_000_000)
        #: What CLOCK_BOOTTIME is ahead of it, in seconds: how long the host was suspended.
        self.suspended = 0.0
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    @property
    def realtime_usec(self) -> int:
        """Microseconds since 1970 by the wall clock."""
        return int(self.now * 1_000_000) + self.offset_usec

    def after(self, seconds: float, call: Callable[..., None], *values: Any) -> None:
        """Let something happen."""
        self._count += 1
        heapq.heappush(self._due, (self.now + seconds, self._count, call, values))

    def pass_until(self, then: float) -> None:
        """Let time pass, and what is due happen."""
        while self._due and self._due[0][0] <= then:
            at, _, call, values = heapq.heappop(self._due)
            self.now = max(self.now, at)
            call(*values)
        self.now = max(self.now, then)

    def forget(self) -> None:
        """Drop everything that was to happen, as a reboot does."""
        self._due.clear()

    def begin_again(self, now: float) -> None:
        """Set the monotonic clock back, as a boot does; the wall clock goes on."""
        self.offset_usec += int((self.now - now) * 1_000_000)
        self.suspended = 0.0
        self.now = now
