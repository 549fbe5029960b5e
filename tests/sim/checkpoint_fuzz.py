#!/usr/bin/python3
"""Throws damaged checkpoints at the reader: `/usr/bin/python3 tests/sim/checkpoint_fuzz.py --help`.

Each input is a recorded or a made checkpoint with some damage: to its bytes, to its values, or to the answer of a plugin, with or without
the checksum that belongs to it then. The reader must refuse it by a name, or what it read must be what other code reads in it.
"""

import base64
import copy
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

TESTS: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "src")]

from devward.cluster.allocation import Allocation  # noqa: E402
from devward.cluster.checkpoint import Checkpoint, CheckpointError, Defect, is_npu_resource, parse_checkpoint  # noqa: E402
from sim import kubelet_checkpoint as made  # noqa: E402
from sim.fuzzing import fuzz_main  # noqa: E402

ACCEPTED: Final = "accepted"
_RECORDED: Final = TESTS / "data/kubernetes-1.36.2"
_ODD_TEXTS: Final = (
    "",
    "0",
    "void",
    "all",
    "-1",
    "ä",
    "\x00",
    "\ud800",
    "0,1",
    "99",
    "100",
    "x" * 300,
    "huawei.com/Ascend310P",
    "{}",
    "[",
    "]",
)
_ODD_VALUES: Final = (None, True, False, 0, -1, 1.5, 1 << 64, [], {}, [[]], {"": None}, *_ODD_TEXTS)
_ODD_KEYS: Final = ("-1", "0", "01", "10", "9" * 30, "data", "PODUID", "PodUID", "AllocResp", "Health", "huawei.com/x", "ä", "")
_ODD_BYTES: Final = (
    b"\0",
    b"\xff",
    b"\x80",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"\n",
    b"e",
    b"\\ud800",
    b"\xc3\x28",
    b"null",
    b"9" * 25,
    b"ASCEND_VISIBLE_DEVICES",
)


class Found(AssertionError):
    """An input that the reader is wrong about."""


def seeds(dice: random.Random) -> list[bytes]:
    """Return good checkpoints: those that were recorded, and some that say more."""
    result = [file.read_bytes() for file in sorted(_RECORDED.glob("*.checkpoint.json"))]
    mixed = [
        made.Allocated("p", ("a-0",), made.hami_response([0, 3], "vir05_1c_8g", dice)),
        made.Allocated("377a6b4dd9926d27b5831016d3cc562e", ("a-1", "b-0"), None, "init", numa_nodes=(0, 1, 10)),
        made.Allocated("q", ("tegra",), made.response({"NVIDIA_VISIBLE_DEVICES": "tegra"}), resource="nvidia.com/gpu"),
        made.Allocated(
            "r",
            (),
            made.response(
                {"ASCEND_VISIBLE_DEVICES": "1"}, mounts=[("/a", "/b")], devices=["/dev/davinci1"], cdi_devices=["a/b=c"], dice=dice
            ),
        ),
    ]
    for form in (made.BY_NUMA_NODE, made.LIST):
        for count in range(len(mixed) + 1):
            entries = mixed[:count] if form == made.LIST or count < 4 else [*mixed[:3], made.Allocated("r", ("x",), mixed[3].response)]
            result.append(made.encoded(made.document(entries, {made.RESOURCE: ["a-0", "b-0"], "nvidia.com/gpu": []}, form=form, dice=dice)))
    return result


# --- damage ---


def _spoil_bytes(data: bytes, dice: random.Random, others: Sequence[bytes]) -> bytes:
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        start = dice.randrange(len(data) + 1)
        end = min(len(data), start + dice.choice((0, 1, 1, 2, 8, 60)))
        other = dice.choice(others)
        cut = dice.randrange(len(other) + 1)
        piece = dice.choice(
            (
                b"",
                bytes([dice.randrange(256)]),
                dice.choice(_ODD_BYTES),
                data[start:end] * 2,
                other[cut : cut + dice.choice((1, 4, 30, 400))],
            )
        )
        data = data[:start] + piece + data[end:]
    return data


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every container in a value with each of its keys."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        one = left.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        for key in keys:
            found.append((one, key))
            if isinstance(one[key], dict | list):
                left.append(one[key])
    return found


def _spoil_values(document: Any, dice: random.Random) -> None:
    for _ in range(dice.choice((1, 1, 2, 4))):
        places = _places(document)
        if not places:
            return
        holder, key = dice.choice(places)
        _, other = dice.choice(places)
        match dice.randrange(6):
            case 0:
                # Copies: what two inputs share, one would spoil for the other.
                holder[key] = copy.deepcopy(dice.choice(_ODD_VALUES))
            case 1:
                del holder[key]
            case 2 if isinstance(holder, dict):
                holder[dice.choice((*_ODD_KEYS, str(other)))] = holder[key]
            case 2:
                holder.append(holder[key])
            case 3:
                # A shared part would make a value that contains itself.
                source, name = dice.choice(places)
                holder[key] = copy.deepcopy(source[name])
            case 4 if isinstance(holder, list):
                dice.shuffle(holder)
            case 4:
                holder[key] = [holder[key]]
            case _:
                holder[key] = dice.choice(_ODD_TEXTS)


def _spoil_answer(document: Any, dice: random.Random, others: Sequence[bytes]) -> None:
    entries = document["Data"]["PodDeviceEntries"]
    if not entries:
        return
    entry = dice.choice(entries)
    answer = base64.b64decode(entry["AllocResp"] or "")
    entry["AllocResp"] = base64.b64encode(_spoil_bytes(answer, dice, others)).decode()


def damaged(good: bytes, dice: random.Random, others: Sequence[bytes], answers: Sequence[bytes]) -> bytes:
    """Return a checkpoint with some damage."""
    way = dice.randrange(5)
    if way == 0:
        return _spoil_bytes(good, dice, others)
    document = json.loads(good)
    if way in (1, 2):
        _spoil_values(document, dice)
    else:
        _spoil_answer(document, dice, answers)
    if way in (2, 3, 4) and isinstance(document, dict):
        try:
            document["Checksum"] = made.checksum(document["Data"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            # There is no checksum of what is no checkpoint.
            document.setdefault("Checksum", 0)
    return json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode()


# --- judgement ---


def judge(data: bytes) -> str:
    """Return the name by which the reader refuses an input, or ACCEPTED. Found: it is wrong about it."""
    try:
        found = parse_checkpoint(data)
    except CheckpointError as error:
        if not isinstance(error.defect, Defect):
            raise Found(f"refused without a name: {data!r}") from error
        return error.defect
    except Exception as error:
        raise Found(f"{error!r} instead of a name: {data!r}") from error
    document = json.loads(data)
    if document["Checksum"] != made.checksum(document["Data"]) or document["Checksum"] != found.checksum:
        raise Found(f"another checksum: {data!r}")
    _compare(found, document["Data"], data)
    again = made.encoded(made.sealed(document["Data"]))
    if parse_checkpoint(again) != found:
        raise Found(f"another content when written again: {data!r}")
    return ACCEPTED


def _compare(found: Checkpoint, data: dict[str, Any], source: bytes) -> None:
    """Hold what was read against the document, read by other code."""
    rows = data["PodDeviceEntries"] or []
    keys = [(row["PodUID"], row["ContainerName"], row["ResourceName"]) for row in rows]
    if len(set(keys)) != len(rows) or any(not uid or not resource for uid, _, resource in keys):
        raise Found(f"an impossible list of entries: {source!r}")
    by_key = dict(zip(keys, rows, strict=True))
    for entry in found.entries:
        row = by_key.pop((entry.pod_uid, entry.container, entry.resource))
        by_node = row["DeviceIDs"] or []
        ids = by_node if isinstance(by_node, list) else [one for some in by_node.values() for one in some or []]
        if set(entry.device_ids) != set(ids) or len(entry.device_ids) != len(set(ids)):
            raise Found(f"other device ids: {source!r}")
        if entry.allocation.cards is not None:
            _compare_cards(entry.allocation, base64.b64decode(row["AllocResp"]), source)
        elif entry.allocation.oddity is None:
            raise Found(f"all cards for no reason: {source!r}")
    if len(by_key) != found.others or any(is_npu_resource(resource) for _, _, resource in by_key):
        raise Found(f"an entry of an NPU was left out: {source!r}")
    if dict(found.registered) != {resource: tuple(ids or ()) for resource, ids in (data["RegisteredDevices"] or {}).items()}:
        raise Found(f"other registered devices: {source!r}")


def _compare_cards(allocation: Allocation, answer: bytes, source: bytes) -> None:
    """What is told exactly must stand in the answer exactly once, by the encoding that a plugin uses."""
    cards = allocation.cards or frozenset()
    if not cards or min(cards) < 0 or max(cards) > 99:
        raise Found(f"impossible cards: {source!r}")
    marks = [position for position in range(len(answer)) if answer.startswith(made.field(1, "ASCEND_VISIBLE_DEVICES"), position)]
    values = set()
    for position in marks:
        rest = answer[position + 24 :]
        if rest[:1] == b"\x12":
            values.add(rest[2 : 2 + rest[1]])
        else:
            # The value stands before the key.
            values.update(answer[start + 2 : position] for start in range(max(0, position - 130), position) if answer[start] == 0x12)
    if not any(_numbers(value) == cards for value in values):
        raise Found(f"cards {sorted(cards)} that its answer does not name: {source!r}")


def _numbers(value: bytes) -> set[int] | None:
    numbers: set[int] = set()
    for part in value.decode(errors="replace").split(","):
        words = part.strip().rsplit("-", 1)
        try:
            last = int(words[-1])
            first = int(words[0]) if len(words) == 2 and words[0].isdecimal() else last
        except ValueError:
            return None
        numbers |= set(range(first, last + 1))
    return numbers


def fuzz(count: int, seed: int, *, seconds: float = float("inf")) -> Counter[str]:
    """Judge so many inputs, or as many as fit; return how often each name came. Found: the reader is wrong about one."""
    dice = random.Random(seed)
    good = seeds(dice)
    answers = [made.hami_response([0, 3], "vir05_1c_8g"), made.response({"ASCEND_VISIBLE_DEVICES": "1"}, devices=["/dev/davinci1"])]
    tally: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    for number in range(count):
        if number % 1024 == 0 and time.monotonic() > deadline:
            break
        tally[judge(damaged(dice.choice(good), dice, good, answers))] += 1
    return tally


if __name__ == "__main__":
    sys.exit(fuzz_main("tests/sim/checkpoint_fuzz.py", str(__doc__), fuzz))
