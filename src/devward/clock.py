"""The clocks, injected everywhere so that tests can turn them, and the coalescing of bursts."""

import asyncio
import time
from collections.abc import Callable


class Clock:
    """The host's clocks: monotonic seconds for decisions, realtime microseconds for what people read."""

    def monotonic(self) -> float:
        """Seconds of CLOCK_MONOTONIC."""
        return time.monotonic()

    def boottime(self) -> float:
        """Seconds of CLOCK_BOOTTIME, which counts on while the host is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def apart(self) -> float:
        """Seconds by which CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC: for how long the host was suspended since it was started."""
        return self.boottime() - self.monotonic()

    def realtime_usec(self) -> int:
        """Microseconds of CLOCK_REALTIME."""
        return time.time_ns() // 1000


class Coalescer:
    """Turns a burst of triggers into few calls.

    With `leading`, the first trigger after quiet calls at once. Triggers that follow are answered by one call after `quiet` seconds
    without another, and `ceiling` seconds after the first unanswered one at the latest.
    """

    def __init__(self, call: Callable[[], None], *, quiet: float, ceiling: float, leading: bool) -> None:
        """Bind to the running loop's time; times in seconds."""
        self._call = call
        self._quiet = quiet
        self._ceiling = ceiling
        self._leading = leading
        self._timer: asyncio.TimerHandle | None = None
        self._unanswered_since: float | None = None

    @property
    def pending(self) -> bool:
        """Whether a trigger still waits for its call."""
        return self._unanswered_since is not None

    def trigger(self) -> None:
        """Ask for a call."""
        loop = asyncio.get_running_loop()
        if self._leading and self._timer is None:
            self._timer = loop.call_later(self._quiet, self._expire)
            self._call()
            return
        if self._unanswered_since is None:
            self._unanswered_since = loop.time()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(min(loop.time() + self._quiet, self._unanswered_since + self._ceiling), self._expire)

    def cancel(self) -> None:
        """Forget what waits."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._unanswered_since = None

    def _expire(self) -> None:
        self._timer = None
        if self._unanswered_since is None:
            return
        self._unanswered_since = None
        if self._leading:
            self._timer = asyncio.get_running_loop().call_later(self._quiet, self._expire)
        self._call()
