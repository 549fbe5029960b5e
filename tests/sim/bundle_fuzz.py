#!/usr/bin/python3
"""Throws damaged bundles at the reader: `/usr/bin/python3 tests/sim/bundle_fuzz.py --help`.

Each input is a recorded or a made bundle with some damage, to its bytes or to its values. The reader must refuse it by BundleError, or what
it read must have every owner that other code sees in it: whatever names a vNPU, a card or a Pod there may not be lost.
"""

import copy
import json
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

TESTS: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "src")]

from devward.cluster.bundle import BundleError, BundleFacts, parse_bundle  # noqa: E402
from sim.fuzzing import fuzz_main  # noqa: E402

_BASES: Final = tuple(path.read_bytes() for path in sorted((TESTS / "data/bundles").glob("*/*.json")))
_NODE: Final = re.compile(r"/dev/vdavinci([0-9]{3,4})")
_ODD: Final = (
    None, True, False, 0, -1, 1.5, 1 << 70, "", "\0", "\ud800", [], {}, [None], {"": None}, "/", "/dev", "/dev/vdavinci100",
    "/dev/vdavinci0100", "/dev/vdavinci65535", "ASCEND_VISIBLE_DEVICES=3", "ASCEND_VISIBLE_DEVICES=0-2,7", "ASCEND_VISIBLE_DEVICES=",
    "ASCEND_VISIBLE_DEVICES=void", "ASCEND_VNPU_SPECS=vir05_1c_8g", "kubepods-besteffort-pod1_2.slice", "c", "rwm",
)  # fmt: skip


def damaged(dice: random.Random) -> bytes:
    """Return one input."""
    base = dice.choice(_BASES)
    if dice.random() < 0.3:
        data = bytearray(base)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(data))
            match dice.randrange(4):
                case 0:
                    data[at] = dice.randrange(256)
                case 1:
                    del data[at : at + dice.randint(1, 40)]
                case 2:
                    data[at:at] = dice.randbytes(dice.randint(1, 6))
                case _:
                    del data[at:]
            if not data:
                break
        return bytes(data)
    spec = json.loads(base)
    for _ in range(dice.randint(1, 4)):
        _change(spec, dice)
    return json.dumps(spec).encode("utf-8", "surrogatepass")


def _change(spec: Any, dice: random.Random) -> None:
    """Change one value somewhere."""
    place = spec
    while isinstance(place, dict | list) and place:
        key = dice.choice(list(place) if isinstance(place, dict) else range(len(place)))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or dice.random() < 0.15:
            if dice.random() < 0.2:
                del place[key]
            elif isinstance(place, list) and dice.random() < 0.5:
                place.append(copy.deepcopy(dice.choice(_ODD)))
            else:
                place[key] = copy.deepcopy(dice.choice(_ODD))
            return
        place = inner


def judge(data: bytes) -> str:
    """Return what became of an input. AssertionError: an owner was lost, or what was read cannot be."""
    try:
        facts = parse_bundle(data)
    except BundleError as error:
        return f"refused: {type(error).__name__}"
    _require_sane(facts)
    _require_owners(json.loads(data), facts)
    return "accepted"


def _require_sane(facts: BundleFacts) -> None:
    assert all(100 <= vdev <= 1123 for vdev in facts.vdevs), facts
    assert facts.cards is None or all(0 <= card < 100 for card in facts.cards), facts
    assert all(isinstance(uid, str) and uid for uid in facts.pod_uids), facts


def _require_owners(spec: Any, facts: BundleFacts) -> None:
    """Look for owners in another way."""
    linux = spec.get("linux") if isinstance(spec.get("linux"), dict) else {}
    paths = [entry.get("path") for entry in linux.get("devices") or () if entry]
    sources = [mount.get("source") for mount in spec.get("mounts") or () if mount]
    for path in (*paths, *sources):
        found = _NODE.fullmatch(path) if isinstance(path, str) else None
        if found and not found[1].startswith("0") and 100 <= int(found[1]) <= 1123:
            assert int(found[1]) in facts.vdevs, (path, facts)
    if "/dev" in sources or "/" in sources:
        assert facts.has_all_devices, facts
    process = spec.get("process") if isinstance(spec.get("process"), dict) else {}
    for word in process.get("env") or ():
        name, _, value = word.partition("=") if isinstance(word, str) else ("", "", "")
        if name == "ASCEND_VISIBLE_DEVICES" and value not in ("", "void"):
            assert facts.cards is None or facts.cards, (word, facts)
        if name == "ASCEND_VNPU_SPECS" and value:
            assert facts.template, (word, facts)


def fuzz(count: int, seed: int, *, seconds: float = float("inf")) -> Counter[str]:
    """Judge so many inputs, and return how often what became of them."""
    dice, tally, end = random.Random(seed), Counter[str](), time.monotonic() + seconds
    for _ in range(count):
        if time.monotonic() >= end:
            break
        data = damaged(dice)
        try:
            tally[judge(data)] += 1
        except Exception:
            print(f"seed {seed}: {data!r}", file=sys.stderr)
            raise
    return tally


if __name__ == "__main__":
    sys.exit(fuzz_main("tests/sim/bundle_fuzz.py", str(__doc__), fuzz))
