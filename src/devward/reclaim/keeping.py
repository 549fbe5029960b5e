"""Keeps what of reclaiming outlasts a run of the daemon, in the state directory.

Synchronous, fsyncs included: call it from a worker thread. What is there and cannot be read stops reclaiming, until an administrator says
that it may go on: nobody knows then what the hour has seen, nor whether the breaker was latched.
"""

import json
import os
from collections.abc import Callable

from devward import names
from devward.boot import read_boot_id
from devward.directory import own_directory, read_regular, replace_file
from devward.errors import StateError
from devward.reclaim.kept import from_values, to_values
from devward.reclaim.limits import Breaker, Spent
from devward.text import printable

_LIMIT = 1 << 20


class Keeping:
    """One file in the state directory."""

    def __init__(self, directory: str, boot_id: Callable[[], str] = read_boot_id) -> None:
        """Touch nothing yet."""
        self._directory = directory
        self._boot_id = boot_id

    def load(self) -> tuple[Breaker, Spent, str]:
        """Return what was kept, and why that is not known; empty: it is. Where nothing was ever kept nothing happened. Raises nothing."""
        path = os.path.join(self._directory, names.RECLAIM_FILE)
        try:
            with own_directory(self._directory) as directory:
                data = read_regular(directory, names.RECLAIM_FILE, _LIMIT)
            return (Breaker(), Spent(), "") if data is None else (*from_values(json.loads(data), self._boot_id()), "")
        except (StateError, OSError, ValueError, RecursionError) as error:
            return Breaker(), Spent(), printable(f"{path}: {error}")

    def save(self, breaker: Breaker, spent: Spent) -> None:
        """Keep it; durable when this returns. StateError, OSError."""
        data = (json.dumps(to_values(breaker, spent, self._boot_id()), sort_keys=True) + "\n").encode("ascii")
        with own_directory(self._directory) as directory:
            replace_file(directory, names.RECLAIM_FILE, data)
