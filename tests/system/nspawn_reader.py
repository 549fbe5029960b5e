"""Run in a container: reads a file again and again until standard input ends, and tells every time when it was not what it was at first.

    nspawn_reader.py FILE

Prints "reading" after the first time, and at the end {"reads": how often, "odd": [the first ten times that it was absent or different]}.
"""

import json
import select
import sys


def read(path: str) -> str:
    """Return what is in the file, or why that cannot be told."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        return str(error)


def main(path: str) -> None:
    """Read without a pause; standard input is looked at only now and then."""
    expected = read(path)
    print("reading", flush=True)
    reads, odd = 0, []
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(100):
            reads += 1
            found = read(path)
            if found != expected and len(odd) < 10:
                odd.append(found)
    print(json.dumps({"reads": reads, "odd": odd}))


if __name__ == "__main__":
    main(sys.argv[1])
