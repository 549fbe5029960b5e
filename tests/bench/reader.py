"""Reads a file over and over: reader.py FILE ONE OTHER COUNT. Prints how often it was the one, the other, neither, or not there."""

import json
import os
import sys


def main() -> None:
    """Each read is one open, and reads until the end."""
    path, one, other, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    with open(one, "rb") as file:
        first = file.read()
    with open(other, "rb") as file:
        second = file.read()
    seen = {"one": 0, "other": 0, "torn": 0, "absent": 0}
    for _ in range(count):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            seen["absent"] += 1
            continue
        # In pieces smaller than the documents: a file that changes while it is read shall show.
        pieces = []
        while piece := os.read(descriptor, 512):
            pieces.append(piece)
        os.close(descriptor)
        data = b"".join(pieces)
        seen["one" if data == first else "other" if data == second else "torn"] += 1
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
