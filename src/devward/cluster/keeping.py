"""Keeps what snapshots leave in the state directory, for the next run of the daemon in the same boot.

Synchronous, fsyncs included: call it from a worker thread. What cannot be read is a loss, never an empty memory: only a file that is not
there says that nothing was seen.
"""

from typing import Final

from devward import names
from devward.cluster.recollection import Loss, Recollection, from_values, lasting, to_values
from devward.errors import StateError
from devward.kept import KeptFile
from devward.text import printable

#: As many Pods as are remembered fit.
_LIMIT: Final = 16 << 20


class Keeping:
    """One file in the state directory."""

    def __init__(self, directory: str) -> None:
        """Touch nothing yet."""
        self._file = KeptFile(directory, names.OWNERS_FILE, _LIMIT)
        self._kept: Recollection | None = None

    def load(self) -> Recollection:
        """Return what was kept. Raises nothing: what cannot be read is a loss."""
        try:
            values = self._file.read()
            if values is None:
                return Recollection()
            known = from_values(values)
        except (StateError, OSError) as error:
            return Recollection(loss=Loss(printable(str(error))))
        except (ValueError, RecursionError) as error:
            return Recollection(loss=Loss(printable(f"{self._file.path}: {error}")))
        if known.loss is None:
            self._kept = known
        return known

    def save(self, known: Recollection) -> None:
        """Keep it, if it is not what is kept already. StateError, OSError."""
        wanted = lasting(known)
        if wanted == self._kept:
            return
        # Until it is done nobody knows what is kept: the new file may have its name and not be sure to stay.
        self._kept = None
        self._file.write(to_values(wanted))
        self._kept = wanted
