"""Tells of a fault of the daemon's own that comes again and again: once in full, then by how often it came."""

import logging
from typing import Final

from devward.damping import Closed, Damper
from devward.text import printable

#: Seconds for which one fault is only counted once it was told in full.
PERIOD: Final = 3600.0
_FAULTS: Final = 16

_log = logging.getLogger(__name__)


class Breakages:
    """What broke off in one room of the daemon."""

    def __init__(self) -> None:
        """Nothing broke off yet."""
        self._damper: Damper[str] = Damper(limit=1, period=PERIOD, capacity=_FAULTS)

    def note(self, what: str, error: Exception, now: float) -> None:
        """Tell of a fault, with where it was the first time in an hour; `now` in seconds of the monotonic clock."""
        self.sum_up(now)
        key = f"{what}: {type(error).__name__} at {_place(error)}"
        if not self._damper.has_room(key):
            self._tell(self._damper.close_oldest())
        if self._damper.admit(key, printable(str(error)), now):
            _log.error("%s", what, exc_info=error)

    def sum_up(self, now: float) -> None:
        """Say what was only counted, once its hour is over."""
        self._tell(self._damper.close(now))

    @staticmethod
    def _tell(closed: list[Closed[str]]) -> None:
        for one in closed:
            _log.error("%s, %d more times; the last: %s", one.key, one.held_back, one.last)


def _place(error: Exception) -> str:
    """Return where in the code an error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "?" if trace is None else f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
