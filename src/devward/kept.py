"""A file of JSON in the state directory, whole or not at all.

Synchronous, fsyncs included: call it from a worker thread. What it means that a file cannot be read is for each of its users to say.
"""

import json
import os

from devward.directory import own_directory, read_regular, replace_file


class KeptFile:
    """One file."""

    def __init__(self, directory: str, name: str, limit: int) -> None:
        """Touch nothing yet. `limit` is in bytes."""
        self._directory = directory
        self._name = name
        self._limit = limit
        self.path = os.path.join(directory, name)

    def read(self) -> object | None:
        """Return the value that is kept; None: nothing ever was. StateError, OSError; ValueError, RecursionError: it is no JSON."""
        with own_directory(self._directory) as directory:
            data = read_regular(directory, self._name, self._limit)
        if data is None:
            return None
        # A file that says `null` is no file that is not there.
        value: object = json.loads(data)
        if value is None:
            raise ValueError("it says nothing")
        return value

    def write(self, value: object) -> None:
        """Keep a value; durable when this returns. StateError, OSError."""
        data = (json.dumps(value, sort_keys=True) + "\n").encode("ascii")
        with own_directory(self._directory) as directory:
            replace_file(directory, self._name, data)
