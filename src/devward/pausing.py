"""When a pause of reclaiming ends: by the host's time, and not before as much time went by as it was to last. Pure.

CLOCK_REALTIME can be set: a step forward must not end a pause that somebody relies on; a step back makes it longer. How much time goes by
CLOCK_BOOTTIME tells, from the moment on at which this run of the daemon first saw the pause. Where the host's time is behind when the
daemon starts, the pause lasts too long, from that start at most the longest that can be asked for; what was asked for stays on record, and
counts again at the next start. Where it is ahead at the start, nothing tells that the pause is not over, until it is set right: so a pause
goes off the record, from where it could come back with a clock that is behind, only once it has been over for a while.
"""

from typing import Final

from devward.model import MAXIMUM_PAUSE_SECONDS

#: Seconds after which what has been over all the time does not come back: a host's time is set right sooner after its start.
_SETTLED: Final = 3600.0
#: Microseconds by which the two clocks may drift apart before another end is told.
_DRIFT: Final = 2_000_000


class PauseClock:
    """Tells when the pause ends that is in force."""

    def __init__(self) -> None:
        """There is none."""
        self._asked = self._told = 0
        self._ends = 0.0
        self._is_bounded = False
        #: Since when the one that was asked for is over, in seconds of CLOCK_BOOTTIME; None: it is not, or there is none.
        self._over_since: float | None = None

    def is_over_for_good(self, boottime: float) -> bool:
        """Tell whether the pause that was asked about last has been over for so long that the host's time does not bring it back."""
        return self._over_since is not None and boottime - self._over_since >= _SETTLED

    def until_usec(self, asked: int, *, realtime_usec: int, boottime: float) -> int:
        """Return when a pause ends, in microseconds of CLOCK_REALTIME; 0: it is over, or there is none.

        `asked` is until when it was asked for, 0 for none, and `boottime` is in seconds.
        """
        if asked != self._asked:
            self._asked = self._told = asked
            self._over_since = None
            lasts = (asked - realtime_usec) / 1_000_000
            self._is_bounded = lasts > MAXIMUM_PAUSE_SECONDS
            self._ends = boottime + min(lasts, MAXIMUM_PAUSE_SECONDS)
        if not asked or (boottime >= self._ends and (realtime_usec >= asked or self._is_bounded)):
            if asked and self._over_since is None:
                self._over_since = boottime
            return 0
        self._over_since = None
        still = self._ends - boottime
        ends = realtime_usec + round(still * 1_000_000)
        until = ends if self._is_bounded else max(asked, ends) if still > 0 else asked
        if abs(until - self._told) > _DRIFT or self._told <= realtime_usec:
            self._told = until
        return self._told
