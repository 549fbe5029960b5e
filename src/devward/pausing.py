"""When a pause of reclaiming ends: by the host's time, and not before as much time went by as it was to last. Pure.

CLOCK_REALTIME can be set: a step forward must not end a pause that somebody relies on; a step back makes it longer. How much time goes by
CLOCK_BOOTTIME tells, from the moment on at which this run of the daemon first saw the pause. Where the host's time is behind when the
daemon starts, the pause lasts too long, from that start at most the longest that can be asked for; what was asked for stays on record, and
counts again at the next start. Where it is ahead at the start, nothing tells that the pause is not over.
"""

from typing import Final

from devward.model import MAXIMUM_PAUSE_SECONDS

#: Microseconds by which the two clocks may drift apart before another end is told.
_DRIFT: Final = 2_000_000


class PauseClock:
    """Tells when the pause ends that is in force."""

    def __init__(self) -> None:
        """There is none."""
        self._asked = self._told = 0
        self._ends = 0.0
        self._is_bounded = False

    def until_usec(self, asked: int, *, realtime_usec: int, boottime: float) -> int:
        """Return when a pause ends, in microseconds of CLOCK_REALTIME; 0: it is over, or there is none.

        `asked` is until when it was asked for, 0 for none, and `boottime` is in seconds.
        """
        if asked != self._asked:
            self._asked = self._told = asked
            lasts = (asked - realtime_usec) / 1_000_000
            self._is_bounded = lasts > MAXIMUM_PAUSE_SECONDS
            self._ends = boottime + min(lasts, MAXIMUM_PAUSE_SECONDS)
        if not asked or (boottime >= self._ends and (realtime_usec >= asked or self._is_bounded)):
            return 0
        still = self._ends - boottime
        ends = realtime_usec + round(still * 1_000_000)
        until = ends if self._is_bounded else max(asked, ends) if still > 0 else asked
        if abs(until - self._told) > _DRIFT or self._told <= realtime_usec:
            self._told = until
        return self._told
