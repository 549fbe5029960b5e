"""Times as people say them and as they must be exact, and durations as people type them. Pure: the clock's reading is given.

Times are microseconds of CLOCK_REALTIME since 1970, 0 for none.
"""

import re
import time
from dataclasses import dataclass
from typing import Final

USEC: Final = 1_000_000
#: Bounds of a pause in seconds: those of PauseCdi in dbus/org.devward.Devward1.Manager.xml.
MIN_PAUSE_SECONDS: Final = 1

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION: Final = re.compile(r"(?:\d{1,9}[smhdw])+\Z")
_PART: Final = re.compile(r"(\d+)([smhdw])")
#: From how many seconds on the next larger unit says enough.
_STEPS: Final = ((120, "second", 1), (7200, "minute", 60), (172800, "hour", 3600))


def parse_duration(text: str) -> int:
    """Return the seconds of a duration such as 90s, 30m, 2h, 1d, 1w or 1h30m. ValueError with a sentence where it is none."""
    if not _DURATION.match(text) or not text.isascii():
        raise ValueError("a duration is a number with a unit: 45s, 30m, 2h, 1d, 1w, or several as in 1h30m")
    return sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def span(seconds: float) -> str:
    """Say a length of time in its most telling unit."""
    whole = int(max(seconds, 0))
    if whole < 1:
        return "a moment"
    for limit, unit, size in _STEPS:
        if whole < limit:
            return _counted(whole // size, unit)
    return _counted(whole // 86400, "day")


def duration(usec: int) -> str:
    """Say a measured duration, given in microseconds."""
    if usec < 1000:
        return f"{usec} us"
    return f"{usec / 1000:.0f} ms" if usec < USEC else f"{usec / USEC:.1f} s"


def iso(usec: int) -> str:
    """Return a time exactly, in ISO 8601 and UTC, with milliseconds; empty for none."""
    moment = _calendar(usec, utc=True)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{usec // 1000 % 1000:03d}Z" if moment is not None else ""


@dataclass(frozen=True, slots=True)
class Times:
    """Says times, relative to `now_usec` or, with `utc`, exactly."""

    now_usec: int
    utc: bool = False

    def ago(self, usec: int) -> str:
        """Say when something was: `3 minutes ago`, or `never`."""
        if not usec:
            return "never"
        return iso(usec) if self.utc else self._relative(usec)

    def lasting(self, usec: int) -> str:
        """Say since when something holds: `for 3 minutes`; empty where that is not known."""
        if not usec:
            return ""
        return f"since {iso(usec)}" if self.utc else f"for {self.since(usec)}"

    @property
    def since_title(self) -> str:
        """The title of a column of since()."""
        return "SINCE" if self.utc else "FOR"

    def since(self, usec: int) -> str:
        """Say in a column since when something holds: a time, or for how long; empty where that is not known."""
        if not usec:
            return ""
        return iso(usec) if self.utc else span((self.now_usec - usec) / USEC)

    def until(self, usec: int) -> str:
        """Say until when something holds: `for another 29 minutes, until 14:05`."""
        if self.utc:
            return f"until {iso(usec)}"
        left = span((usec - self.now_usec) / USEC).removeprefix("a ")
        return f"for another {left}, until {self.clock(usec)}"

    def clock(self, usec: int) -> str:
        """Say a moment for a list of events: the local time of day, with the date where that is not today's."""
        if self.utc:
            return iso(usec)
        moment = _calendar(usec, utc=False)
        today = _calendar(self.now_usec, utc=False)
        if moment is None or today is None:
            return iso(usec)
        if moment[:3] == today[:3]:
            return time.strftime("%H:%M:%S", moment)
        # Month names as numbers: a log's dates must sort, and mean the same in every locale.
        return time.strftime("%m-%d %H:%M:%S" if moment.tm_year == today.tm_year else "%Y-%m-%d %H:%M:%S", moment)

    def _relative(self, usec: int) -> str:
        seconds = (self.now_usec - usec) / USEC
        # Clocks of one host may be set: a little ahead of us is now.
        if seconds < -5:
            return f"in {span(-seconds)}"
        return "just now" if seconds < 1 else f"{span(seconds)} ago"


def _counted(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def _calendar(usec: int, *, utc: bool) -> time.struct_time | None:
    """Return the parts of a time; None for none and for what no calendar holds (a newer daemon, a broken clock)."""
    if usec <= 0:
        return None
    try:
        return time.gmtime(usec // USEC) if utc else time.localtime(usec // USEC)
    except (OverflowError, OSError, ValueError):
        return None
