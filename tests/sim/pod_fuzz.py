"""Odd lists of Pods, made from recorded ones, and what must hold for every one of them.

By hand: `PYTHONPATH=src:tests python3 -m sim.pod_fuzz 1000000 [seed]`.

Nothing may be raised but a named problem, and no nonsense may be taken: what a list says, read here by plain JSON and a few lines that
know nothing of the code, must be protected.
"""

import copy
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from devward.cluster.annotations import read_annotations
from devward.cluster.answer import AnswerError
from devward.cluster.claims import Allocation, Claims, Memory, Moment, Standing
from devward.cluster.podlist import PodList, parse_pod_list
from devward.cluster.pods import Evidence, join_claims
from sim.pod_desk import BEGIN_USEC, HostSays, segments, whole_pod
from sim.recorded_cluster import CARDS, DIES, NODE, REGISTERED, STATES, WORD, allocations_of, pods_of

_ODD_VALUES: Final[list[Any]] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        10**30,
        1.5,
        "",
        " ",
        "0",
        "void",
        "all",
        "\x00",
        "\ud800",
        "é",
        "Running",
        "Failed",
        "Succeeded",
        "Pending",
    ),
    *("Unknown", "CrashLoopBackOff", "RunContainerError", "ContainerCreating", "Completed", "Error", "1970-01-01T00:00:00Z", "lab", "/dev"),
    *(
        "9999-12-31T23:59:59.999999999+23:59",
        "0001-01-01T00:00:00Z",
        [],
        {},
        [None],
        [[]],
        [{}],
        {"a": {}},
        {"running": {}},
        {"waiting": {}},
    ),
    {"terminated": {"exitCode": 1, "reason": "Error"}},
    {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": None}},
]
_ODD_TEXTS: Final = [
    *(";", ":", ",", "[", "]", "{", "}", '"', "null", "-", "0", " ", "\n", "\\", "\u0000", "é", "UUID", "uuid", "temp", DIES[0], DIES[1]),
    *("Ascend910-5c.1cpu.16g-180-5", "Ascend310P-2c-100-0", "[]", "{}", '[{"UUID":"x"}]', "9" * 5000, "[" * 50),
]
_KEYS: Final = (f"huawei.com/{WORD}", f"hami.io/{WORD}-devices-to-allocate", f"hami.io/{WORD}-devices-allocated", "huawei.com/Ascend910")


def _lean(item: dict[str, Any]) -> dict[str, Any]:
    """Drop what nothing reads, and what would only make the lists long."""
    item["metadata"].pop("managedFields", None)
    item["metadata"].get("annotations", {}).pop("kubectl.kubernetes.io/last-applied-configuration", None)
    item["spec"] = {key: item["spec"][key] for key in ("containers", "initContainers", "nodeName") if key in item["spec"]}
    item["status"].pop("conditions", None)
    return item


class Fuzzer:
    """Makes odd inputs and checks them, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        """Read the recorded lists."""
        self._random = random.Random(seed)
        self._states = [(list(map(_lean, json.loads(pods_of(state))["items"])), allocations_of(state)) for state in STATES[1:]]
        #: What became of the inputs.
        self.counts: Counter[str] = Counter()

    def run(self, count: int) -> None:
        """Try that many inputs; AssertionError with the input for one that is taken for something it is not."""
        for _ in range(count):
            if self._random.random() < 0.4:
                self._try_annotation()
            else:
                self._try_list()

    # --- annotations ---------------------------------------------------------------------------------------------------
    def _try_annotation(self) -> None:
        dies = [self._random.choice(DIES) for _ in range(self._random.randrange(3))]
        value = whole_pod(*dies) if self._random.random() < 0.5 else segments(dies, [])
        for _ in range(self._random.randrange(1, 4)):
            value = self._odd_text(value)
        key = self._random.choice(_KEYS)
        named = read_annotations({key: value})
        upper = value.upper()
        nonsense = [die for die in named.dies if die not in upper and "\\U" not in upper]
        assert not nonsense, (key, value, named)
        if value.strip(" \r\n;:\t") not in ("", "[]", "null") and not named.dies and not named.malformed:
            # Only empty lists, and ids of Huawei's own plugin, name nothing and are in order.
            assert value.strip().startswith(("[", "Ascend")), (key, value)
        self.counts["annotation malformed" if named.malformed else "annotation taken"] += 1

    def _odd_text(self, text: str) -> str:
        at = self._random.randrange(len(text) + 1)
        to = min(len(text), at + self._random.randrange(1, 12))
        return {
            0: lambda: text[:at] + text[to:],
            1: lambda: text[:at] + self._random.choice(_ODD_TEXTS) + text[at:],
            2: lambda: text[:at] + self._random.choice(_ODD_TEXTS) + text[to:],
            3: lambda: text[:at] + text[at:to] * 2 + text[to:],
            4: lambda: text[:at] + chr(self._random.randrange(256)) + text[at + 1 :],
        }[self._random.randrange(5)]()

    # --- lists ---------------------------------------------------------------------------------------------------------
    def _try_list(self) -> None:
        items, allocations = self._random.choice(self._states)
        chosen = copy.deepcopy(self._random.sample(items, self._random.randrange(1, 4)))
        whole: dict[str, Any] = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": chosen}
        for _ in range(self._random.randrange(1, 4)):
            self._make_odd(whole)
        if self._random.random() < 0.3:
            self._make_annotation_odd(self._random.choice(chosen) if chosen else None)
        data = json.dumps(whole).encode()
        if self._random.random() < 0.2:
            data = self._odd_bytes(data)
        try:
            pods = parse_pod_list(data, NODE)
        except AnswerError as error:
            refused = error
        else:
            self._check_claims(data, pods, allocations)
            return
        self.counts[f"list refused: {refused.problem}"] += 1
        assert str(refused).isprintable(), data

    def _check_claims(self, data: bytes, pods: PodList, allocations: tuple[Allocation, ...]) -> None:
        evidence = Evidence(pods, allocations, HostSays(), CARDS, REGISTERED)
        claims, memory = join_claims(evidence, Memory(), Moment(0.0, BEGIN_USEC))
        again, _ = join_claims(evidence, memory, Moment(60.0, BEGIN_USEC + 60_000_000))
        for found in (claims, again):
            _check(json.loads(data), allocations, found)
        self.counts["list taken, node blocked" if claims.blockers else "list taken"] += 1

    def _make_odd(self, whole: dict[str, Any]) -> None:
        parent, key = self._random.choice(list(_places(whole)))
        choice = self._random.randrange(5)
        if choice == 0:
            del parent[key]
        elif choice == 1:
            parent[key] = copy.deepcopy(self._random.choice(_ODD_VALUES))
        elif choice == 2 and isinstance(parent[key], str):
            parent[key] = self._odd_text(parent[key])
        elif choice == 3 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        else:
            other, place = self._random.choice(list(_places(whole)))
            parent[key] = copy.deepcopy(other[place])

    def _make_annotation_odd(self, item: Any) -> None:
        annotations = (
            item.get("metadata", {}).get("annotations", {}) if isinstance(item, dict) and isinstance(item.get("metadata"), dict) else {}
        )
        if isinstance(annotations, dict):
            key = self._random.choice(_KEYS)
            annotations[key] = self._odd_text(str(annotations.get(key, segments(DIES))))

    def _odd_bytes(self, data: bytes) -> bytes:
        at = self._random.randrange(len(data))
        to = at + self._random.randrange(1, 40)
        return {
            0: lambda: data[:at] + data[to:],
            1: lambda: data[:at],
            2: lambda: data[:at] + bytes([self._random.randrange(256)]) + data[at + 1 :],
            3: lambda: data[:at] + data[at:to] + data[at:],
        }[self._random.randrange(4)]()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield everything in a value that can be changed."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in list(members):
        yield value, key
        yield from _places(member)


def _check(whole: Any, allocations: tuple[Allocation, ...], claims: Claims) -> None:
    """Hold what was found against the plainest reading of the list."""
    assert (whole["kind"], whole["apiVersion"]) == ("PodList", "v1")
    assert not whole["metadata"].get("continue")
    items = whole["items"] or []
    uids = [item["metadata"]["uid"] for item in items]
    assert len(set(uids)) == len(uids)
    assert all(item["spec"]["nodeName"] == NODE for item in items)
    known = set(uids)
    living = set()
    for item in items:
        annotations = item["metadata"].get("annotations") or {}
        names = {item["metadata"]["uid"]}
        if "kubernetes.io/config.mirror" in annotations:
            names |= {annotations["kubernetes.io/config.mirror"], annotations.get("kubernetes.io/config.hash")}
        known |= names
        said = item.get("status", {})
        statuses = [status for key in ("initContainerStatuses", "containerStatuses") for status in said.get(key) or []]
        is_over = said.get("phase") in ("Succeeded", "Failed")
        if any("running" in status.get("state", {}) for status in statuses) or (item["metadata"].get("deletionTimestamp") and not is_over):
            living |= names
    for allocation in allocations:
        if allocation.uid in living or allocation.uid not in known:
            for phy in allocation.cards or ():
                assert claims.cards[phy].standing is Standing.PROTECTED, (allocation, whole)


def main() -> None:
    """Try as many inputs as the first argument says."""
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    fuzzer = Fuzzer(seed)
    began = time.process_time()
    fuzzer.run(count)
    print(f"{count} inputs with seed {seed}, {time.process_time() - began:.0f} s of one core")
    for what, number in sorted(fuzzer.counts.items()):
        print(f"{number:9} {what}")


if __name__ == "__main__":
    main()
