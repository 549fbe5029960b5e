"""What is remembered of Pods between looks: light ones add to it, it does not grow without end, and nothing is forgotten unsaid."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.cluster.claims import Allocation, Remembered
from devward.cluster.node import KnownNode
from devward.cluster.observations import Look
from devward.cluster.recollection import (
    MAX_PODS,
    Loss,
    Recollection,
    from_values,
    lasting,
    see_allocations,
    seen_of,
    still_there,
    to_values,
    with_seen,
    within_bounds,
)
from sim.recorded_cluster import BOOT_ID, RESOURCE, allocations_of
from sim.snapshot_desk import SnapshotDesk, codes

NODE = KnownNode("uid", BOOT_ID, "812 started at 4711")
many = {f"uid-{number}": Remembered(frozenset({0})) for number in range(MAX_PODS)}
remembered = st.builds(
    Remembered,
    st.frozensets(st.integers(0, 7), max_size=3),
    st.frozensets(st.sampled_from(["a", "b"])),
    st.none() | st.floats(0, 100),
    st.integers(0, 5),
)
pods = st.dictionaries(st.sampled_from("abcd"), remembered)


def given_to(uid: str, *cards: int) -> Allocation:
    return Allocation(uid, "main", RESOURCE, frozenset(cards) or None)


def test_what_the_checkpoint_has_is_remembered_by_its_cards_or_else_by_its_resource() -> None:
    known = see_allocations(Recollection(BOOT_ID), [given_to("a", 0), given_to("a", 3), given_to("b"), given_to("c", 1), given_to("c")])
    assert known.pods == {
        "a": Remembered(frozenset({0, 3})),
        "b": Remembered(frozenset(), frozenset({RESOURCE})),
        "c": Remembered(frozenset({1}), frozenset({RESOURCE})),
    }


def test_answers_of_no_card_are_like_none() -> None:
    assert dict(seen_of([Allocation("a", "main", RESOURCE, frozenset())])) == {"a": Remembered(frozenset(), frozenset({RESOURCE}))}


def test_all_else_stays_as_it_was() -> None:
    known = Recollection(BOOT_ID, NODE, {"old": Remembered(frozenset({1}))}, lease_at=5.0, seen_at=7.0, loss=Loss("lost", 5.0, 2))
    assert see_allocations(known, ()) == known
    more = see_allocations(known, [given_to("a", 0)])
    assert replace(more, pods=known.pods) == known
    assert more.pods["old"] == known.pods["old"], "that it is missing in the checkpoint says nothing"


@given(pods, st.lists(st.tuples(st.sampled_from("abcdef"), remembered), max_size=6))
def test_nothing_that_was_known_is_lost_by_seeing_more(before: dict[str, Remembered], seen: list[tuple[str, Remembered]]) -> None:
    after = with_seen(before, seen)
    assert after.keys() == before.keys() | {uid for uid, _ in seen}
    for uid, pod in [*before.items(), *seen]:
        assert pod.cards <= after[uid].cards
        assert pod.resources <= after[uid].resources
    for uid, _ in seen:
        assert (after[uid].gone_since, after[uid].gone_looks) == (None, 0), "what is seen is not gone"
    for uid in before.keys() - {uid for uid, _ in seen}:
        assert after[uid] == before[uid]


@given(pods)
def test_how_long_a_pod_is_gone_does_not_outlast_a_break(before: dict[str, Remembered]) -> None:
    assert still_there(before) == {uid: Remembered(pod.cards, pod.resources) for uid, pod in before.items()}


@given(pods)
def test_what_lasts_is_what_comes_back(before: dict[str, Remembered]) -> None:
    known = Recollection(BOOT_ID, NODE, still_there(before), seen_at=7.0, lease_at=7.0, loss=Loss("lost", 5.0, 2))
    kept = lasting(known)
    assert kept == from_values(to_values(known))
    assert lasting(kept) == kept
    assert kept == Recollection(BOOT_ID, NODE, known.pods, loss=Loss("lost"))


# --- bounds -----------------------------------------------------------------------------------------------------------------


def test_as_many_pods_as_there_may_be_are_remembered() -> None:
    known = Recollection(BOOT_ID, NODE, many)
    assert within_bounds(known) is known
    assert see_allocations(known, [given_to("uid-1", 3)]).pods["uid-1"].cards == {0, 3}
    assert from_values(to_values(known)) == known


def test_one_more_is_a_loss_of_all_which_says_so() -> None:
    known = see_allocations(Recollection(BOOT_ID, NODE, many, seen_at=7.0), [given_to("another", 0)])
    assert known.loss is not None
    assert str(MAX_PODS) in known.loss.detail
    assert known == Recollection(BOOT_ID, NODE, seen_at=7.0, loss=known.loss)
    assert from_values(to_values(known)).loss == known.loss, "the next run knows of it, too"


def test_a_whole_look_is_bounded_too_and_the_node_is_unknown_until_what_was_forgotten_would_protect_no_more() -> None:
    desk = SnapshotDesk()
    desk.settle()
    desk.known = replace(desk.known, pods=many)
    desk.look("01")
    assert desk.known.loss is not None
    assert desk.known.pods == {}
    assert codes(desk.look("01")) == [Look.MEMORY_LOST]
    assert {given.uid for given in allocations_of("01")} <= desk.known.pods.keys(), "what is seen from then on is remembered"
    for _ in range(9):
        assert Look.MEMORY_LOST in codes(desk.look("01"))


@pytest.mark.parametrize("looks", [1, 30])
def test_in_looks_without_pods_nothing_is_forgotten(looks: int) -> None:
    desk = SnapshotDesk()
    desk.settle()
    desk.look("01")
    before = desk.known.pods
    assert before
    for _ in range(looks):
        desk.look("00", lambda parts: replace(parts, pods=replace(parts.pods, status=0, body=b"")))
    assert desk.known.pods == before
