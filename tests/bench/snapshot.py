"""What one snapshot costs on a full node: 250 Pods, 16 cards, by the processor's time.

The Pods have the size and the fields of a recorded one. Three of four run; the others cannot be started, so that the host is asked about
them. Reading the host, the hardware and the network is not in it, and neither is the checkpoint, which is parsed when it changed.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from bench.figure import Bar, Figure, Figures
from bench.setting import Broken
from devward.cluster.checkpoint import CheckpointReading, parse_checkpoint
from devward.cluster.parts import Part, Parts
from devward.cluster.podlist import parse_pod_list
from devward.npu.inventory import Picture
from sim.kubelet_checkpoint import Allocated, document, encoded, hami_response
from sim.recorded_cluster import DIES, NODE, RESOURCE, WORD, pods_of
from sim.snapshot_desk import SnapshotDesk, card_view

PODS = 250
CARDS = 16
#: Of a whole reclaim cycle, of which this is a part.
BAR = Bar("median", 120)


def measure(quick: bool) -> Figures:
    """Yield what a snapshot costs, and its largest parts."""
    count = 3 if quick else 100
    dies = full_dies()
    body = full_list(dies)
    checkpoint = full_checkpoint()
    yield Figure("a snapshot", "ms", list(_snapshots(count, dies, body, checkpoint)), BAR, f"{PODS} Pods, {CARDS} cards, {len(body)} bytes")
    yield Figure("  its list of Pods read", "ms", [_spent(lambda: parse_pod_list(body, NODE)) for _ in range(count)])
    yield Figure("a checkpoint that changed", "ms", [_spent(lambda: parse_checkpoint(checkpoint)) for _ in range(count)])


def _spent(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return (time.process_time() - begin) * 1000


def _snapshots(count: int, dies: list[str], body: bytes, checkpoint: bytes) -> Iterator[float]:
    reading = CheckpointReading(parse_checkpoint(checkpoint))
    picture = Picture(cards=tuple(card_view(card, die) for card, die in enumerate(dies)))

    def change(parts: Parts) -> Parts:
        return replace(
            parts,
            pods=replace(parts.pods, body=body),
            node=replace(parts.node, body=registered(parts.node.body, dies)),
            checkpoint=Part(parts.checkpoint.taken_at, reading),
            npus=Part(parts.npus.taken_at, picture),
        )

    desk = SnapshotDesk()
    for _ in range(8):
        snapshot = desk.look("11", change)
    if snapshot.unknowns or sum(len(card.claims) for card in snapshot.cards) != PODS:
        raise Broken("the Pods are not claimed as they should be")
    for _ in range(count):
        desk.looks += 1
        desk.now = desk.now._replace(monotonic=desk.now.monotonic + 60, realtime_usec=desk.now.realtime_usec + 60_000_000)
        parts = change(desk.parts("11"))
        yield _spent(lambda parts=parts: desk.take(parts))  # type: ignore[misc]


def full_dies() -> list[str]:
    """Return the die ids of the cards of a full node."""
    return [f"A1B2C3D4-{card:08X}-0000000A-11111111-00000000" for card in range(CARDS)]


def full_checkpoint() -> bytes:
    """Return a checkpoint by which each Pod has its card."""
    entries = [Allocated(pod_uid(index), [f"slot-{index}"], hami_response([index % CARDS], "vir05_1c_8g")) for index in range(PODS)]
    return encoded(document(entries, {RESOURCE: [f"slot-{index}" for index in range(PODS)]}))


def registered(body: bytes, dies: list[str]) -> bytes:
    """Return a Node at which HAMi has registered these cards."""
    node = json.loads(body)
    register = json.dumps([{"id": die, "index": index} for index, die in enumerate(dies)])
    node["metadata"]["annotations"][f"hami.io/node-register-{WORD}"] = register
    return json.dumps(node).encode()


def pod_uid(index: int) -> str:
    return f"{index:08x}-6a51-4f5a-8f0e-2f1d6c0a9e11"


def is_failing(index: int) -> bool:
    """Whether a Pod cannot be started: of each card's one in four."""
    return index // CARDS % 4 == 0


def full_list(dies: list[str], changed: frozenset[int] = frozenset(), fails: Callable[[int], bool] = is_failing) -> bytes:
    """Return a list of Pods that are as the recorded one that runs, but for those that fail; `changed` ones were tried once more."""
    recorded = next(item for item in json.loads(pods_of("11"))["items"] if item["metadata"]["name"] == "running")
    text = json.dumps(recorded)
    items: list[dict[str, Any]] = []
    for index in range(PODS):
        own = text.replace(recorded["metadata"]["uid"], pod_uid(index))
        for die in DIES:
            own = own.replace(die, dies[index % CARDS])
        item = json.loads(own)
        item["metadata"]["name"] = f"pod-{index}"
        if fails(index):
            item["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "RunContainerError", "message": "OCI runtime"}}
            item["status"]["containerStatuses"][0]["restartCount"] = int(index in changed)
        items.append(item)
    return json.dumps(
        {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": items}, separators=(",", ":")
    ).encode()
