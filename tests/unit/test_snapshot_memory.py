"""What is kept of snapshots when the daemon ends: it comes back as it was, and what is not as it was written is a loss that protects."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.cluster.claims import Bounds, Remembered, Standing
from devward.cluster.kubelet_facts import KubeletScan
from devward.cluster.node import KnownNode, NodeIdentity, NodeRefusal
from devward.cluster.observations import Look
from devward.cluster.recollection import VERSION, Loss, Recollection, from_values, to_values
from sim.recorded_cluster import BOOT_ID, RESOURCE
from sim.snapshot_desk import KUBELET, SnapshotDesk, codes

NODE = KnownNode("uid", BOOT_ID, "812 started at 4711")
KNOWN = Recollection(
    boot_id=BOOT_ID,
    node=NODE,
    pods={"a": Remembered(frozenset({0, 7})), "b": Remembered(frozenset(), frozenset({RESOURCE}))},
)

texts = st.text(min_size=1, max_size=20)
remembered = st.builds(Remembered, st.frozensets(st.integers(0, 255), max_size=4), st.frozensets(texts, max_size=2))
recollections = st.builds(
    Recollection,
    boot_id=texts,
    node=st.none() | st.builds(KnownNode, texts, texts, texts),
    pods=st.dictionaries(texts, remembered, max_size=4),
)
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(recollections)
def test_what_is_kept_comes_back(known: Recollection) -> None:
    assert from_values(json.loads(json.dumps(to_values(known)))) == known


@given(junk)
def test_junk_is_a_loss_and_raises_nothing(values: Any) -> None:
    known = from_values(values)
    assert (known.pods, known.node) == ({}, None)
    assert known.loss is not None
    assert known.loss.detail


@given(recollections, st.data())
def test_a_damaged_part_is_a_loss_of_all(known: Recollection, data: st.DataObject) -> None:
    values = to_values(known)
    key = data.draw(st.sampled_from(sorted(values)))
    del values[key]
    assert from_values(values).loss is not None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", 2),
        ("version", True),
        ("version", "1"),
        ("version", None),
        ("more", 1),
        ("boot_id", None),
        ("boot_id", ""),
        ("node", []),
        ("node", "uid"),
        ("node/uid", 7),
        ("node/boot_id", ""),
        ("node/kubelet", ""),
        ("node/more", "x"),
        ("pods", []),
        ("pods", None),
        ("pods/", {"cards": [0], "resources": []}),
        ("pods/a", None),
        ("pods/a", {"cards": [0]}),
        ("pods/a/more", 1),
        ("pods/a/cards", None),
        ("pods/a/cards", [-1]),
        ("pods/a/cards", [256]),
        ("pods/a/cards", ["0"]),
        ("pods/a/cards", [True]),
        ("pods/a/cards", [0.0]),
        ("pods/a/resources", None),
        ("pods/a/resources", [""]),
        ("pods/a/resources", [7]),
        ("loss", None),
    ],
)
def test_what_is_not_as_it_was_written_is_refused_whole(path: str, value: Any) -> None:
    values = copy.deepcopy(to_values(KNOWN))
    at = values
    *parents, last = path.split("/")
    for parent in parents:
        at = at[parent]
    at[last] = value
    known = from_values(values)
    assert known.loss is not None
    assert (known.pods, known.node, known.boot_id) == ({}, None, "")


def test_the_form_is_the_one_that_is_documented() -> None:
    assert to_values(KNOWN) == {
        "version": VERSION,
        "boot_id": BOOT_ID,
        "node": {"uid": "uid", "boot_id": BOOT_ID, "kubelet": "812 started at 4711"},
        "pods": {"a": {"cards": [0, 7], "resources": []}, "b": {"cards": [], "resources": [RESOURCE]}},
    }


def restarted(desk: SnapshotDesk) -> None:
    """Start the daemon anew: what is kept goes through its form."""
    desk.known = from_values(json.loads(json.dumps(to_values(desk.known))))


def test_a_pod_that_is_in_no_source_any_more_outlives_a_restart_of_the_daemon() -> None:
    desk = SnapshotDesk()
    desk.settle()
    desk.look("05")
    restarted(desk)
    desk.settle("00")
    assert "only-remembered" in {claim.reason for claim in desk.look("00").cards[1].claims}


def test_what_takes_an_unbroken_view_begins_anew_with_each_run() -> None:
    desk = SnapshotDesk()
    desk.settle()
    for _ in range(9):
        desk.look("05" if not desk.known.pods else "00")
    assert desk.known.pods[next(iter(desk.known.pods))].gone_looks
    restarted(desk)
    assert all((pod.gone_since, pod.gone_looks) == (None, 0) for pod in desk.known.pods.values())
    snapshot = desk.look("00")
    assert codes(snapshot) == ["kubelet-young", "lease-not-yet-seen-renewed"]
    assert not any(card.is_managed for card in snapshot.cards)


def test_a_loss_makes_the_node_unknown_for_as_long_as_a_forgotten_pod_would_protect() -> None:
    desk = SnapshotDesk()
    desk.settle()
    desk.known = from_values("damaged")
    desk.accepted = desk.look("00", after=0).node_uid
    while "kubelet-young" in codes(snapshot := desk.look("00")):
        assert Look.MEMORY_LOST in codes(snapshot)
    # From the first whole look.
    for _ in range(9):
        assert codes(desk.look("00")) == [Look.MEMORY_LOST]
        assert {card.protection for card in desk.look("00", after=0).cards} == {Standing.UNKNOWN}
    assert desk.look("00").unknowns == ()
    assert desk.known.loss is None


def test_a_node_made_anew_is_not_taken_for_the_first_where_it_is_lost_which_was_known() -> None:
    desk = SnapshotDesk()
    desk.settle()
    desk.known = from_values("damaged")
    for _ in range(30):
        snapshot = desk.look("00")
    assert snapshot.identity is NodeIdentity.LOST
    assert codes(snapshot) == [Look.MEMORY_LOST, NodeRefusal.UID_LOST]
    assert not any(card.is_managed for card in snapshot.cards)
    restarted(desk)
    for _ in range(10):
        snapshot = desk.look("00")
    assert NodeRefusal.UID_LOST in codes(snapshot), "another run knows no more"
    assert desk.known.node is not None
    assert desk.known.node.uid == ""
    desk.accepted = snapshot.node_uid
    assert desk.look("00").identity is NodeIdentity.ADOPTED
    assert desk.look("00").identity is NodeIdentity.SAME

    desk.known = from_values("damaged")
    desk.accepted = ""
    desk.look("00")
    scan = KubeletScan(replace(KUBELET, pid=900))
    found = desk.look("00", lambda parts: replace(parts, kubelet=replace(parts.kubelet, value=scan)))
    assert found.identity is NodeIdentity.ADOPTED


def test_a_loss_takes_both_time_and_looks_and_outlives_a_restart() -> None:
    desk = SnapshotDesk()
    desk.settle()
    desk.known = from_values(None)
    restarted(desk)
    assert desk.known.loss == Loss("what is kept is no object")
    desk.accepted = desk.look("00", after=0).node_uid
    while "kubelet-young" in codes(desk.look("00", after=89)):
        pass
    desk.bounds = type(desk.bounds)(lease_looks=1000)
    assert Look.MEMORY_LOST in codes(desk.look("00", after=900))
    assert desk.look("00", after=1).unknowns == ()


def test_a_look_that_is_not_whole_begins_the_time_of_a_loss_anew() -> None:
    desk = SnapshotDesk()
    desk.settle()
    desk.known = from_values(None)
    for _ in range(12):
        desk.look("00")
    desk.look("00", node="00", pods="00", after=200)
    assert "lease-not-yet-seen-renewed" in codes(desk.look("00", after=200))
    for _ in range(10):
        assert Look.MEMORY_LOST in codes(desk.look("00"))


def test_bounds_of_a_loss() -> None:
    bounds = Bounds(gone_seconds=600, gone_looks=3)
    assert not Loss("x").is_over(1e9, bounds)
    assert not Loss("x", 0.0, 2).is_over(600, bounds)
    assert not Loss("x", 0.0, 3).is_over(599, bounds)
    assert Loss("x", 0.0, 3).is_over(600, bounds)
