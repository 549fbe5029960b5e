"""The command line that every thrower of damaged inputs has."""

import argparse
import os
from collections import Counter
from typing import Protocol


class Fuzz(Protocol):
    """Judge so many inputs, for no more than some seconds, and return how often what became of them."""

    def __call__(self, count: int, seed: int, *, seconds: float) -> Counter[str]: ...


def fuzz_main(prog: str, description: str, fuzz: Fuzz) -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no more than these (default: no limit)")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)), help="to repeat a run (default: a random one)")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    tally = fuzz(given.count, given.seed, seconds=given.seconds)
    for name, count in tally.most_common():
        print(f"{count:9} {name}")
    print(f"{tally.total():9} in all, and nothing wrong")
    return 0
