"""Keeps what snapshots leave in the state directory, for the next run of the daemon in the same boot.

Synchronous, fsyncs included: call it from a worker thread. What cannot be read is a loss, never an empty memory: only a file that is not
there says that nothing was seen.
"""

import json
import os
from typing import Final

from devward import names
from devward.cluster.recollection import Loss, Recollection, from_values, lasting, to_values
from devward.directory import own_directory, read_regular, replace_file
from devward.errors import StateError
from devward.text import printable

#: As many Pods as are remembered fit.
_LIMIT: Final = 16 << 20


class Keeping:
    """One file in the state directory."""

    def __init__(self, directory: str) -> None:
        """Touch nothing yet."""
        self._directory = directory
        self._kept: Recollection | None = None

    def load(self) -> Recollection:
        """Return what was kept. Raises nothing: what cannot be read is a loss."""
        try:
            with own_directory(self._directory) as directory:
                data = read_regular(directory, names.OWNERS_FILE, _LIMIT)
            if data is None:
                return Recollection()
            known = from_values(json.loads(data))
        except (StateError, OSError) as error:
            return Recollection(loss=Loss(printable(str(error))))
        except (ValueError, RecursionError) as error:
            path = os.path.join(self._directory, names.OWNERS_FILE)
            return Recollection(loss=Loss(printable(f"{path}: {error}")))
        if known.loss is None:
            self._kept = known
        return known

    def save(self, known: Recollection) -> None:
        """Keep it, if it is not what is kept already. StateError, OSError."""
        wanted = lasting(known)
        if wanted == self._kept:
            return
        data = (json.dumps(to_values(wanted), sort_keys=True) + "\n").encode("ascii")
        # Until it is done nobody knows what is kept: the new file may have its name and not be sure to stay.
        self._kept = None
        with own_directory(self._directory) as directory:
            replace_file(directory, names.OWNERS_FILE, data)
        self._kept = wanted
