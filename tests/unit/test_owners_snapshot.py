"""What a look does with a suspension, with a memory that could not be saved, and with what it shows people of the claimants."""

from dataclasses import replace
from typing import Any

import pytest

from devward.cluster.answers import Failure
from devward.cluster.api_result import ApiError, ApiFault
from devward.cluster.asked import answer_of
from devward.cluster.checkpoint import CheckpointReading
from devward.cluster.claimants import Trace
from devward.cluster.claims import Remembered, Standing
from devward.cluster.evidence import Finding
from devward.cluster.hami import Lock
from devward.cluster.observations import ROWS, TABLE, Look, Scope, api_code
from devward.cluster.parts import Parts, Source
from devward.cluster.recollection import Loss
from devward.cluster.snapshot import take_snapshot
from devward.cluster.views import Reset, Snapshot
from devward.npu.views import UNKNOWN_NUMBER
from sim.pod_desk import HostSays, listing, pod
from sim.recorded_cluster import DIES
from sim.snapshot_desk import PICTURE, SnapshotDesk, card_view, checkpoint_of, codes


def settled(state: str = "00") -> SnapshotDesk:
    desk = SnapshotDesk()
    assert desk.settle(state).unknowns == ()
    return desk


def take(desk: SnapshotDesk, state: str = "00", **more: Any) -> Snapshot:
    """Look a minute later, after what is said."""
    desk.looks += 1
    desk.now = type(desk.now)(desk.now.monotonic + 60, desk.now.realtime_usec + 60_000_000)
    snapshot, desk.known = take_snapshot(desk.parts(state), desk.facts, desk.known, desk.now, **more)
    return snapshot


# --- suspended --------------------------------------------------------------------------------------------------------------


def test_after_a_suspension_all_begins_to_wait_and_nothing_is_unknown_by_that_alone() -> None:
    desk = settled()
    assert Reset(Scope.NODE, Look.RESUMED) not in take(desk).resets
    snapshot = take(desk, is_resumed=True)
    assert Reset(Scope.NODE, Look.RESUMED) in snapshot.resets
    assert Look.RESUMED not in codes(snapshot)
    assert ROWS[Look.RESUMED].resets


def test_after_a_suspension_nothing_counts_that_takes_an_unbroken_view() -> None:
    desk = settled()
    desk.look("01")
    gone = Remembered(frozenset({1}), gone_since=desk.now.monotonic - 5000, gone_looks=50)
    lock = Lock("a lock", desk.now.monotonic - 1000)
    desk.known = replace(desk.known, pods={**desk.known.pods, "gone": gone}, lock=lock, loss=Loss("lost", 5.0, 50))
    before = desk.known
    snapshot = take(desk, "01", is_resumed=True)
    # The kubelet must be seen for a while again, the Lease move, HAMi report twice, and a Pod be gone anew.
    assert codes(snapshot) == ["kubelet-young", "lease-not-yet-seen-renewed", Look.MEMORY_LOST]
    assert not any(card.is_managed for card in snapshot.cards)
    assert desk.known.kubelet is not None
    assert desk.known.kubelet.since == desk.now.monotonic
    assert desk.known.pods["gone"] == Remembered(frozenset({1}))
    assert desk.known.loss == Loss("lost")
    assert desk.known.lock is None
    assert desk.known.node == before.node
    assert desk.known.pods.keys() == before.pods.keys(), "what protects is not forgotten"


def test_without_a_suspension_the_same_look_is_a_whole_one() -> None:
    desk = settled()
    assert codes(take(desk)) == []
    assert all(card.is_managed for card in take(desk).cards)


def test_since_when_something_is_unknown_outlives_a_suspension() -> None:
    def broken(parts: Parts) -> Parts:
        return replace(parts, pods=replace(parts.pods, status=500))

    desk = settled()
    since = desk.look("00", broken).unknowns[0].since_usec
    desk.looks += 1
    snapshot, _ = take_snapshot(broken(desk.parts("00")), desk.facts, desk.known, desk.now, is_resumed=True)
    assert {unknown.reason: unknown.since_usec for unknown in snapshot.unknowns}[Look.STATUS_ODD] == since


# --- not saved --------------------------------------------------------------------------------------------------------------


def test_what_could_not_be_saved_makes_the_node_unknown_for_as_long() -> None:
    desk = settled("01")
    snapshot = take(desk, "01", unsaved="/var/lib/devward: No space left on device")
    (unknown,) = snapshot.unknowns
    assert (unknown.reason, unknown.scope, unknown.who) == (Look.MEMORY_UNSAVED, Scope.NODE, Source.MEMORY)
    assert "(/var/lib/devward: No space left on device)" in unknown.sentence
    assert {card.protection for card in snapshot.cards} == {Standing.UNKNOWN}
    assert not snapshot.is_node_known
    assert take(desk, "01").unknowns == ()


def test_while_it_cannot_be_saved_nobody_is_seen_to_be_gone() -> None:
    desk = settled("01")
    desk.known = replace(desk.known, pods={**desk.known.pods, "gone": Remembered(frozenset({1}))})
    for _ in range(20):
        take(desk, "01", unsaved="full")
    assert desk.known.pods["gone"] == Remembered(frozenset({1}))
    for _ in range(12):
        take(desk, "01")
    assert "gone" not in desk.known.pods


# --- claimants --------------------------------------------------------------------------------------------------------------


def look_at(desk: SnapshotDesk, *pods: dict[str, Any], host: HostSays | None = None) -> Snapshot:
    desk.host = host or HostSays()
    return desk.look("00", lambda parts: replace(parts, pods=replace(parts.pods, body=listing(*pods))))


def test_claimants_are_those_who_claim_and_those_who_block_and_no_others() -> None:
    desk = settled()
    # The last one had a card that this host does not have now: it claims none, and blocks.
    desk.known = replace(desk.known, pods={"remembered": Remembered(frozenset({0})), "elsewhere": Remembered(frozenset({7}))})
    snapshot = look_at(
        desk,
        pod("uid-claims"),
        pod("uid-blocks", annotations={"huawei.com/Ascend910B4": "odd"}),
        pod("uid-other", containers=[{"name": "main"}]),
        host=HostSays(whole={"remembered": Finding.HELD, "elsewhere": Finding.HELD}),
    )
    found = {one.uid: one for one in snapshot.claimants}
    assert found.keys() == {"uid-claims", "uid-blocks", "remembered", "elsewhere"}
    assert not any("elsewhere" in card.claimants for card in snapshot.cards)
    assert "annotation-malformed" in codes(snapshot)
    assert (found["uid-claims"].namespace, found["uid-claims"].name) == ("default", "pod-uid-claims")
    assert found["remembered"].traces == (Trace.HOST, Trace.MEMORY)
    assert found["remembered"].name == ""


def test_without_a_list_of_pods_there_are_no_claimants_and_no_cores_are_known() -> None:
    desk = settled("01")
    snapshot = desk.look("01", lambda parts: replace(parts, pods=answer_of(None, parts.npus.taken_at)))
    assert codes(snapshot) == [Look.NOT_LISTED]
    assert snapshot.claimants == ()
    assert {card.claimed_cores for card in snapshot.cards} == {None}
    assert {card.protection for card in snapshot.cards} == {Standing.UNKNOWN}


@pytest.mark.parametrize(("total", "cores"), [(20.0, 80.0), (float(UNKNOWN_NUMBER), None)])
def test_whoever_was_given_a_card_without_a_template_has_as_many_cores_as_it_has(total: float, cores: float | None) -> None:
    desk = settled()
    cards = tuple(card_view(phy, die, total_cores=total) for phy, die in enumerate(DIES))
    checkpoint = checkpoint_of("01").checkpoint
    assert checkpoint is not None
    entries = tuple(replace(entry, allocation=replace(entry.allocation, template="")) for entry in checkpoint.entries)
    reading = CheckpointReading(replace(checkpoint, entries=entries))

    def change(parts: Parts) -> Parts:
        npus = replace(parts.npus, value=replace(PICTURE, cards=cards))
        return replace(parts, npus=npus, checkpoint=replace(parts.checkpoint, value=reading))

    # Four Pods have it.
    assert [card.claimed_cores for card in desk.look("01", change).cards] == [cores, 0.0]


# --- the table --------------------------------------------------------------------------------------------------------------


def test_each_fault_of_the_api_server_has_a_row_of_its_own() -> None:
    (group,) = [group for group in TABLE if group.title == "Asking the API server"]
    assert [row.code for row in group.rows] == [f"api-{fault.value}" for fault in ApiFault]
    assert {(row.scopes, row.resets) for row in group.rows} == {((Scope.NODE,), True)}
    assert sum(len(one.rows) for one in TABLE) == len(ROWS), "no code has two"


@pytest.mark.parametrize("fault", ApiFault)
@pytest.mark.parametrize("part", ["node", "lease", "pods"])
def test_each_fault_of_the_api_server_makes_the_node_unknown_by_its_code(fault: ApiFault, part: str) -> None:
    desk = settled()
    problem = ApiError(fault, "XYZZY").problem(desk.now.monotonic + 59.5)
    snapshot = desk.look("00", lambda parts: replace(parts, **{part: answer_of(problem, 0.0)}))
    assert codes(snapshot) == [api_code(fault)]
    assert "XYZZY" in snapshot.unknowns[0].sentence
    assert Reset(Scope.NODE, api_code(fault)) in snapshot.resets


@pytest.mark.parametrize("code", [Look.NOT_LISTED, Look.RESUMED, Look.MEMORY_UNSAVED, Look.HOST_UNSEEN])
def test_each_new_observation_is_of_the_node_and_sets_back(code: Look) -> None:
    row = ROWS[code]
    assert (row.scopes, row.resets) == ((Scope.NODE,), True)


def test_a_host_that_was_not_seen_is_unknown_once_for_all_its_parts() -> None:
    failure = Failure(Look.HOST_UNSEEN.value, "gone")
    desk = settled()

    def change(parts: Parts) -> Parts:
        gone = {name: replace(getattr(parts, name), value=None, failure=failure) for name in ("host", "kubelet", "checkpoint", "drivers")}
        return replace(parts, **gone)

    snapshot = desk.look("00", change)
    assert set(codes(snapshot)) == {Look.HOST_UNSEEN}
    assert {unknown.sentence for unknown in snapshot.unknowns} == {"gone"}
