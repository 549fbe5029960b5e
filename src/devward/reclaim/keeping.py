"""Keeps what of reclaiming outlasts a run of the daemon, in the state directory.

Synchronous, fsyncs included: call it from a worker thread. What is there and cannot be read stops reclaiming, until an administrator says
that it may go on: nobody knows then what the hour has seen, nor whether the breaker was latched.
"""

from collections.abc import Callable

from devward import names
from devward.boot import read_boot_id
from devward.errors import StateError
from devward.kept import KeptFile
from devward.reclaim.kept import from_values, to_values
from devward.reclaim.limits import Breaker, Spent
from devward.text import printable

_LIMIT = 1 << 20


class Keeping:
    """One file in the state directory."""

    def __init__(self, directory: str, boot_id: Callable[[], str] = read_boot_id) -> None:
        """Touch nothing yet."""
        self._file = KeptFile(directory, names.RECLAIM_FILE, _LIMIT)
        self._boot_id = boot_id

    def load(self) -> tuple[Breaker, Spent, str]:
        """Return what was kept, and why that is not known; empty: it is. Where nothing was ever kept nothing happened. Raises nothing."""
        try:
            values = self._file.read()
            return (Breaker(), Spent(), "") if values is None else (*from_values(values, self._boot_id()), "")
        except (StateError, OSError, ValueError, RecursionError) as error:
            return Breaker(), Spent(), printable(f"{self._file.path}: {error}")

    def save(self, breaker: Breaker, spent: Spent) -> None:
        """Keep it; durable when this returns. StateError, OSError."""
        self._file.write(to_values(breaker, spent, self._boot_id()))
