"""What holds for every snapshot: the fewer is known the less is released, and no order of anything says anything."""

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devward.cluster.answers import Answer
from devward.cluster.checkpoint import parse_checkpoint
from devward.cluster.claims import Standing
from devward.cluster.observations import Scope
from devward.cluster.parts import Part, Parts
from devward.cluster.views import Snapshot
from devward.npu.inventory import Picture
from sim.kubelet_checkpoint import encoded, sealed
from sim.recorded_cluster import CLAIMS, body, whole_name
from sim.snapshot_desk import BROKEN, SnapshotDesk

NAMES: Final = ("node", "lease", "pods", "checkpoint", "kubelet", "drivers", "host", "npus")
KEEPS: Final = frozenset({Standing.PROTECTED, Standing.UNKNOWN})
NUMBERS: Final = list(CLAIMS)


def without(parts: Parts, names: Iterable[str]) -> Parts:
    """Return the parts with some of them replaced by a problem."""
    for name in names:
        part = getattr(parts, name)
        broken = replace(part, failure=BROKEN) if isinstance(part, Answer) else Part(part.taken_at, failure=BROKEN)
        parts = replace(parts, **{name: broken})
    return parts


def kept(snapshot: Snapshot, card: int) -> bool:
    """Whether nothing of a card may be judged."""
    return not snapshot.is_node_known or snapshot.cards[card].protection in KEEPS


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", NUMBERS)
def test_taking_any_input_away_releases_nothing(number: str, name: str) -> None:
    desk = SnapshotDesk()
    desk.settle()
    for earlier in NUMBERS[: NUMBERS.index(number)]:
        desk.look(earlier, after=6)
    snapshot = desk.look(number, lambda parts: without(parts, [name]), after=6)
    assert not snapshot.is_node_known
    assert {card.protection for card in snapshot.cards} <= {Standing.UNKNOWN}
    # And what was protected by this input is so again once all of them are there: nothing was forgotten meanwhile.
    if name not in ("kubelet", "lease"):
        after = desk.look(number, after=6)
        for card, names in enumerate(CLAIMS[number]):
            if any("?" not in claimant for claimant in names.split()):
                assert after.cards[card].protection is Standing.PROTECTED


histories = st.lists(
    st.tuples(st.sampled_from(NUMBERS), st.frozensets(st.sampled_from(NAMES), max_size=2), st.sampled_from([6.0, 60.0])),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(histories, st.sampled_from(NUMBERS))
def test_a_history_with_holes_never_protects_less_than_the_moment_alone(history: list[Any], last: str) -> None:
    """Whatever was seen before, or could not be, the Pods that live now protect their cards."""
    desk = SnapshotDesk()
    desk.settle()
    for number, missing, after in history:
        desk.look(number, lambda parts, missing=missing: without(parts, missing), after=after)  # type: ignore[misc]
    snapshot = desk.look(last)
    for card, names in enumerate(CLAIMS[last]):
        if any("?" not in name and "(gone)" not in name for name in names.split()):
            assert kept(snapshot, card)


@settings(max_examples=60, deadline=None)
@given(histories)
def test_no_pod_that_was_ever_seen_is_forgotten_before_its_time(history: list[Any]) -> None:
    """A UID that any readable checkpoint gave a card is remembered until it was gone for long enough, in whole looks."""
    desk = SnapshotDesk()
    desk.settle()
    seen: dict[str, set[int]] = {}
    at: dict[str, float] = {}
    for number, missing, after in history:
        snapshot = desk.look(number, lambda parts, missing=missing: without(parts, missing), after=after)  # type: ignore[misc]
        if "checkpoint" not in missing:
            for entry in parse_checkpoint(body(f"{whole_name(number)}.checkpoint.json")).entries:
                seen.setdefault(entry.pod_uid, set()).update(entry.allocation.cards or ())
                at[entry.pod_uid] = snapshot.at
    known = {uid for pod in json.loads(desk.parts(history[-1][0]).pods.body)["items"] for uid in (pod["metadata"]["uid"],)}
    for uid, cards in seen.items():
        if uid not in known and desk.now.monotonic - at[uid] < 600 and desk.known.pods.get(uid) is None:
            # Only a Pod that was seen to have ended is forgotten at once.
            assert _ended_somewhere(uid), (uid, cards)


def _ended_somewhere(uid: str) -> bool:
    return any(
        pod["metadata"]["uid"] == uid and pod["status"].get("phase") in ("Succeeded", "Failed")
        for number in NUMBERS
        for pod in json.loads(body(f"{whole_name(number)}.pods.json"))["items"]
    )


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(NUMBERS), st.randoms(use_true_random=False))
def test_no_order_of_anything_says_anything(number: str, chance: random.Random) -> None:
    one, other = SnapshotDesk(), SnapshotDesk()
    one.settle()
    other.settle()
    assert one.look(number) == other.look(number, lambda parts: shuffled(parts, number, chance))
    assert one.known == other.known


def shuffled(parts: Parts, number: str, chance: random.Random) -> Parts:
    """Return the same parts with every list and map in another order."""
    data = json.loads(body(f"{whole_name(number)}.checkpoint.json"))["Data"]
    if data["PodDeviceEntries"]:
        chance.shuffle(data["PodDeviceEntries"])
    reading = replace(parts.checkpoint.value, checkpoint=parse_checkpoint(encoded(sealed(data))))  # type: ignore[type-var]
    pods, node = mixed(json.loads(parts.pods.body), chance), mixed(json.loads(parts.node.body), chance)
    picture = parts.npus.value
    assert picture is not None
    return replace(
        parts,
        pods=replace(parts.pods, body=json.dumps(pods).encode()),
        node=replace(parts.node, body=json.dumps(node).encode()),
        checkpoint=Part(parts.checkpoint.taken_at, reading),
        npus=Part(parts.npus.taken_at, Picture(cards=picture.cards)),
    )


def mixed(value: Any, chance: random.Random) -> Any:
    """Return a value of JSON with its objects and lists in another order."""
    if isinstance(value, dict):
        items = [(key, mixed(inner, chance)) for key, inner in value.items()]
        chance.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        inner = [mixed(entry, chance) for entry in value]
        chance.shuffle(inner)
        return inner
    return value


@settings(max_examples=40, deadline=None)
@given(histories)
def test_whatever_is_unknown_or_protects_sets_back_in_its_scope(history: list[Any]) -> None:
    desk = SnapshotDesk()
    desk.settle()
    for number, missing, after in history:
        snapshot = desk.look(number, lambda parts, missing=missing: without(parts, missing), after=after)  # type: ignore[misc]
        node_wide = {reset.reason for reset in snapshot.resets if reset.scope is Scope.NODE}
        assert {unknown.reason for unknown in snapshot.unknowns if unknown.scope is Scope.NODE} <= node_wide
        for card in snapshot.cards:
            own = {reset.card for reset in snapshot.resets if reset.scope is Scope.CARD}
            assert node_wide or card.protection not in KEEPS or card.name in own


JUNK: Final = (None, True, -1, 2**70, 0.5, "", "x", "\ud800", "0" * 300, [], [None], {}, {"x": 1}, "Reported_x", "hami-core")


def spoiled(value: Any, chance: random.Random) -> Any:
    """Return a value of JSON with something in it replaced or gone."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {other: inner for other, inner in value.items() if other != key}
        return {**value, key: spoiled(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        index = chance.randrange(len(value))
        return [*value[:index], spoiled(value[index], chance), *value[index + 1 :]]
    return chance.choice(JUNK)


def test_odd_bodies_raise_nothing_and_leave_no_running_pod_alone() -> None:
    chance = random.Random(20261201)
    desk = SnapshotDesk()
    desk.settle("11")
    counts = {True: 0, False: 0}
    for _ in range(1500):
        name = chance.choice(["node", "lease", "pods"])

        def change(parts: Parts, name: str = name) -> Parts:
            body_of = getattr(parts, name).body
            return replace(parts, **{name: replace(getattr(parts, name), body=json.dumps(spoiled(json.loads(body_of), chance)).encode())})

        # Each from the same memory: nothing that was odd before shall help.
        known = desk.known
        snapshot = desk.look("11", change, after=60)
        desk.known = replace(known, seen_at=None, lease=desk.known.lease, lease_at=desk.known.lease_at, handshakes=desk.known.handshakes)
        counts[snapshot.is_node_known] += 1
        # `whole` has both by its annotation and its entry.
        assert all(kept(snapshot, card) for card in (0, 1))
        assert all(unknown.sentence.isprintable() for unknown in snapshot.unknowns)
    assert min(counts.values()) > 100
