"""A reader that never rests: `reader.py FILE STOP` reads FILE until STOP exists, and prints as JSON how often it was what."""

import collections
import hashlib
import json
import os
import sys


def main(path: str, stop: str) -> None:
    """Read, and count."""
    found: collections.Counter[str] = collections.Counter()
    while not os.path.exists(stop):
        try:
            with open(path, "rb") as file:
                found[hashlib.sha256(file.read()).hexdigest()] += 1
        except OSError as error:
            found[os.strerror(error.errno)] += 1
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
