"""When a pause of reclaiming ends: by the host's time, and not before as much time went by as it was to last. Pure.

CLOCK_REALTIME can be set: a step forward must not end a pause that somebody relies on; a step back makes it longer. How much time goes by
CLOCK_BOOTTIME tells, from the moment on at which this run of the daemon first saw the pause: at its start the host's time may be wrong, and
the pause lasts too long then, never too short (remembered.py bounds it).
"""

from typing import Final

#: Microseconds by which the two clocks may drift apart before another end is told.
_DRIFT: Final = 2_000_000


class PauseClock:
    """Tells when the pause ends that is in force."""

    def __init__(self) -> None:
        """There is none."""
        self._asked = self._told = 0
        self._ends = 0.0

    def until_usec(self, asked: int, *, realtime_usec: int, boottime: float) -> int:
        """Return when a pause ends, in microseconds of CLOCK_REALTIME; 0: it is over, or there is none.

        `asked` is until when it was asked for, 0 for none, and `boottime` is in seconds.
        """
        if asked != self._asked:
            self._asked = self._told = asked
            self._ends = boottime + (asked - realtime_usec) / 1_000_000
        if not asked or (realtime_usec >= asked and boottime >= self._ends):
            return 0
        still = self._ends - boottime
        until = max(asked, realtime_usec + round(still * 1_000_000)) if still > 0 else asked
        if abs(until - self._told) > _DRIFT or self._told <= realtime_usec:
            self._told = until
        return self._told
