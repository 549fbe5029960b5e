"""Every gate of a snapshot: what is missing, old, odd or of another host makes the node unknown, and sets back what the table says."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from devward.cluster.checkpoint import CheckpointReading, Defect
from devward.cluster.claims import Moment, Standing
from devward.cluster.evidence import Doubt, Finding
from devward.cluster.hami import CardRefusal
from devward.cluster.kubelet_facts import KubeletDoubt, KubeletScan
from devward.cluster.managers import Drivers
from devward.cluster.node import NodeIdentity
from devward.cluster.observations import ROWS, Look, Scope
from devward.cluster.parts import HostFacts, Parts, SnapshotBounds
from devward.cluster.recollection import Recollection
from devward.cluster.vantage import VantageDoubt
from devward.cluster.views import Reset, Snapshot
from devward.model import Finding as Told
from devward.model import Identity
from devward.npu.inventory import BROKER, Picture
from devward.npu.views import CardHealth
from devward.reasons import Reason
from sim.pod_desk import HostSays, annotated, container, listing, pod, waiting
from sim.recorded_cluster import BOOT_ID, DIES, NODE, body, error_body
from sim.snapshot_desk import BROKEN, FACTS, KUBELET, PICTURE, SnapshotDesk, card_view, codes

Change = Callable[[Parts], Parts]
PARTS = ("node", "lease", "pods", "checkpoint", "kubelet", "drivers", "host", "npus")
ANSWERS = PARTS[:3]


def settled(state: str = "00", **more: Any) -> SnapshotDesk:
    desk = SnapshotDesk(**more)
    assert desk.settle(state).unknowns == ()
    return desk


def of(name: str, **changes: Any) -> Change:
    """Return what changes one part."""
    return lambda parts: replace(parts, **{name: replace(getattr(parts, name), **changes)})


def in_node(change: Callable[[dict[str, Any]], None]) -> Change:
    def changed(parts: Parts) -> Parts:
        whole = json.loads(parts.node.body)
        change(whole)
        return of("node", body=json.dumps(whole).encode())(parts)

    return changed


def with_annotations(**texts: str | None) -> Change:
    keys = {
        "lock": "hami.io/mutex.lock",
        "handshake": "hami.io/node-handshake-Ascend910B4",
        "register": "hami.io/node-register-Ascend910B4",
    }

    def change(node: dict[str, Any]) -> None:
        for name, text in texts.items():
            node["metadata"]["annotations"].pop(keys[name], None)
            if text is not None:
                node["metadata"]["annotations"][keys[name]] = text

    return in_node(change)


def with_status(path: str, value: Any) -> Change:
    def change(node: dict[str, Any]) -> None:
        at = node
        *parents, last = path.split("/")
        for parent in parents:
            at = at[parent]
        at[last] = value

    return in_node(change)


def with_pods(*pods: dict[str, Any]) -> Change:
    return of("pods", body=listing(*pods))


def must_be_unknown(snapshot: Snapshot, *expected: str) -> None:
    """All of the node is unknown, for these reasons, and everything begins anew."""
    assert codes(snapshot) == sorted(expected)
    assert not snapshot.is_node_known
    assert all(unknown.scope is Scope.NODE and unknown.sentence.endswith(".") for unknown in snapshot.unknowns)
    for code in expected:
        assert Reset(Scope.NODE, code) in snapshot.resets
    assert {card.protection for card in snapshot.cards} <= {Standing.UNKNOWN}
    assert {card.protection_if_clean for card in snapshot.cards} <= {Standing.UNKNOWN}


# --- parts -----------------------------------------------------------------------------------------------------------------------------
def test_a_look_at_which_all_is_well_has_nothing_unknown() -> None:
    snapshot = settled().look("00")
    assert (snapshot.unknowns, snapshot.resets, snapshot.is_deferred, snapshot.foreign) == ((), (), False, ())
    assert [card.protection for card in snapshot.cards] == [Standing.NONE] * 2
    assert snapshot.age == 1
    assert [use.source.value for use in snapshot.sources] == list(PARTS)
    assert all(use.is_read for use in snapshot.sources)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_failed_says_so_in_its_own_words(name: str) -> None:
    part = {"failure": BROKEN} if name in ANSWERS else {"value": None, "failure": BROKEN}
    snapshot = settled().look("00", of(name, **part))
    must_be_unknown(snapshot, BROKEN.code)
    assert (snapshot.unknowns[0].who, snapshot.unknowns[0].sentence) == (name, BROKEN.sentence)


@pytest.mark.parametrize("name", PARTS[3:])
def test_a_part_that_is_not_known_whole_is_unknown(name: str) -> None:
    must_be_unknown(settled().look("00", of(name, failure=BROKEN)), BROKEN.code)


@pytest.mark.parametrize("name", PARTS[3:])
def test_a_part_that_is_just_not_there_is_unknown(name: str) -> None:
    must_be_unknown(settled().look("00", of(name, value=None)), Look.PART_MISSING)


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"status": 0, "body": b""}, Look.NO_ANSWER),
        *(({"status": status}, Look.STATUS_ODD) for status in (201, 204, 302, 401, 403, 404, 410, 429, 500, 503)),
        ({"body": b""}, "not-json"),
        ({"body": b"{"}, "not-json"),
        ({"body": b"{}"}, "wrong-kind"),
        ({"body": error_body("err-other-node.json")}, "wrong-kind"),
    ],
)
def test_an_answer_that_is_none_is_unknown(name: str, changes: dict[str, Any], expected: str) -> None:
    must_be_unknown(settled().look("00", of(name, **changes)), expected)


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize(("back", "expected"), [(30.5, Look.PART_OLD), (-0.5, Look.PART_AHEAD), (float("nan"), Look.PART_OLD)])
def test_a_part_of_another_time_is_unknown(name: str, back: float, expected: str) -> None:
    desk = settled()
    at = desk.now.monotonic + 60 - back
    changes = {"asked_at": at} if name in ANSWERS else {"taken_at": at}
    assert expected in codes(desk.look("00", of(name, **changes)))
    assert not desk.look("00", of(name, **changes)).is_node_known


def test_a_list_of_part_of_the_pods_or_of_another_node_is_unknown() -> None:
    desk = settled()
    must_be_unknown(desk.look("00", of("pods", body=body("paged-first.json"))), "paginated")
    other = listing(pod()).replace(f'"{NODE}"'.encode(), b'"other"')
    must_be_unknown(desk.look("00", of("pods", body=other)), "other-node")


# --- the Node --------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (with_status("status/nodeInfo/bootID", "another"), "node-boot-differs"),
        (with_status("status/nodeInfo/machineID", "another"), "node-machine-differs"),
        (with_status("status/conditions", [{"type": "Ready", "status": "Unknown"}]), "node-not-ready"),
        (with_status("spec/taints", [{"key": "node.kubernetes.io/out-of-service"}]), "node-out-of-service"),
        (with_status("metadata/deletionTimestamp", "2026-12-01T00:00:00Z"), "node-deleting"),
        (with_status("metadata/uid", "another"), "node-uid-changed"),
        (of("lease", body=body("lease-1.json").replace(b'"holderIdentity": "lab"', b'"holderIdentity": "x"')), "lease-not-ours"),
        *((of(name, verified=False), "tls-unverified") for name in ANSWERS),
    ],
)
def test_a_node_that_is_not_this_host_or_not_well_is_unknown(change: Change, expected: str) -> None:
    must_be_unknown(settled().look("00", change), expected)


@pytest.mark.parametrize("facts", [replace(FACTS, boot_id=""), replace(FACTS, machine_ids=frozenset())])
def test_a_host_that_does_not_know_itself_is_unknown(facts: HostFacts) -> None:
    desk = settled()
    desk.facts = facts
    assert "host-identity-unknown" in codes(desk.look("00"))


def test_a_node_made_anew_stays_unknown_until_it_is_accepted_or_the_kubelet_restarted() -> None:
    anew = with_status("metadata/uid", "another")
    desk = settled()
    for _ in range(3):
        must_be_unknown(desk.look("00", anew), "node-uid-changed")
    desk.accepted = "another"
    snapshot = desk.look("00", anew)
    assert (snapshot.identity, snapshot.unknowns) == (NodeIdentity.ADOPTED, ())
    assert Reset(Scope.NODE, Look.NODE_ADOPTED) in snapshot.resets
    # What HAMi said on the Node of before counts no more.
    assert {card.unmanaged for card in snapshot.cards} == {CardRefusal.HANDSHAKE_UNPROVEN}
    assert desk.look("00", anew).identity is NodeIdentity.SAME

    desk = settled()
    desk.look("00", anew)
    restarted = of("kubelet", value=KubeletScan(replace(KUBELET, pid=900)))
    snapshot = desk.look("00", lambda parts: restarted(anew(parts)))
    assert (snapshot.identity, codes(snapshot)) == (NodeIdentity.ADOPTED, ["kubelet-young"])


def test_a_node_that_is_adopted_forgets_no_pod() -> None:
    desk = settled()
    desk.look("04")
    desk.accepted = "another"
    anew = with_status("metadata/uid", "another")
    snapshot = desk.look("04", lambda parts: with_pods()(anew(parts)), checkpoint="00")
    assert snapshot.identity is NodeIdentity.ADOPTED
    assert [card.protection for card in snapshot.cards] == [Standing.PROTECTED] * 2


@pytest.mark.parametrize(
    "change",
    [
        with_status("status/nodeInfo/bootID", "another"),
        with_status("status/nodeInfo/machineID", "another"),
        of("node", verified=False),
        of("kubelet", value=KubeletScan(None, (Doubt(KubeletDoubt.NOT_FOUND, "/proc"),))),
    ],
)
def test_a_node_that_may_be_another_hosts_is_never_taken_for_ours(change: Change) -> None:
    desk = SnapshotDesk()
    desk.look("00", change)
    assert desk.known.node is None
    desk.look("00")
    assert desk.known.node is not None


def test_what_hami_says_on_a_node_that_may_be_another_hosts_is_not_heard() -> None:
    desk = settled()
    desk.look("00")
    before = (desk.known.handshakes, desk.known.lock)
    snapshot = desk.look("04", with_status("status/nodeInfo/machineID", "another"))
    assert (desk.known.handshakes, desk.known.lock) == before
    assert not any(card.is_managed for card in snapshot.cards)


# --- the Lease -------------------------------------------------------------------------------------------------------------------------
def test_a_lease_that_is_not_renewed_goes_stale() -> None:
    desk = settled()
    lease = desk.parts("00").lease.body
    same = of("lease", body=lease)
    desk.look("00", same, after=20)
    assert desk.look("00", same, after=20).unknowns == ()
    must_be_unknown(desk.look("00", same, after=60), "lease-stale")


def test_a_renewal_between_two_looks_far_apart_says_nothing() -> None:
    desk = settled()
    assert desk.look("00", after=90).unknowns == ()
    must_be_unknown(desk.look("00", after=91), "lease-not-yet-seen-renewed")
    assert desk.look("00").unknowns == ()


def test_a_lease_that_was_asked_for_before_the_last_one_says_nothing() -> None:
    desk = settled()
    earlier = desk.now.monotonic - 2
    assert codes(desk.look("00", of("lease", asked_at=earlier), after=1)) == ["lease-not-yet-seen-renewed"]


@pytest.mark.parametrize("ahead", [100_000.0, float("nan")])
def test_an_answer_of_a_later_moment_stays_fresh_no_longer(ahead: float) -> None:
    desk = settled()
    later = desk.now.monotonic + ahead
    assert not desk.look("00", lambda parts: of("node", asked_at=later)(of("lease", asked_at=later)(parts))).is_node_known
    body_of_lease, node = desk.parts("00").lease.body, desk.parts("00").node.body
    same = [of("lease", body=body_of_lease), of("node", body=node)]
    for _ in range(9):
        snapshot = desk.look("00", lambda parts: same[1](same[0](parts)), after=59)
    assert "lease-stale" in codes(snapshot)
    assert {card.unmanaged for card in snapshot.cards} == {CardRefusal.HANDSHAKE_SILENT}


# --- the kubelet -----------------------------------------------------------------------------------------------------------------------
def test_a_kubelet_counts_after_five_minutes_without_a_break() -> None:
    desk = SnapshotDesk()
    assert "kubelet-young" in codes(desk.look("00"))
    for _ in range(4):
        must_be_unknown(desk.look("00", after=74), "kubelet-young")
    assert desk.look("00", after=4).unknowns == ()


@pytest.mark.parametrize(
    "change", [of("kubelet", value=KubeletScan(replace(KUBELET, started=9))), of("kubelet", value=KubeletScan(replace(KUBELET, pid=9)))]
)
def test_another_kubelet_resets_and_begins_anew(change: Change) -> None:
    desk = settled()
    snapshot = desk.look("00", change)
    must_be_unknown(snapshot, "kubelet-young")
    assert Reset(Scope.NODE, Look.KUBELET_RESTARTED) in snapshot.resets
    assert Reset(Scope.NODE, Look.KUBELET_RESTARTED) not in desk.look("00", change).resets


def test_a_kubelet_restarted_while_we_were_away_is_noticed() -> None:
    desk = settled()
    desk.known = Recollection(boot_id=BOOT_ID, node=desk.known.node)
    other = of("kubelet", value=KubeletScan(replace(KUBELET, pid=9)))
    assert Reset(Scope.NODE, Look.KUBELET_RESTARTED) in desk.look("00", other).resets


@pytest.mark.parametrize("code", [*KubeletDoubt, *VantageDoubt])
def test_a_kubelet_in_doubt_is_unknown_and_breaks_its_time(code: str) -> None:
    desk = settled()
    must_be_unknown(desk.look("00", of("kubelet", value=KubeletScan(None, (Doubt(code, "1 x, 2 y"),)))), code)
    must_be_unknown(desk.look("00"), "kubelet-young")
    # A doubt beside a kubelet is one.
    assert code in codes(desk.look("00", of("kubelet", value=KubeletScan(KUBELET, (Doubt(code, ""),)))))


def test_a_scan_that_found_neither_a_kubelet_nor_a_doubt_is_unknown() -> None:
    must_be_unknown(settled().look("00", of("kubelet", value=KubeletScan(None))), Look.PART_MISSING)


# --- the checkpoint --------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("defect", list(Defect))
def test_a_checkpoint_with_a_defect_is_unknown(defect: Defect) -> None:
    desk = settled()
    must_be_unknown(desk.look("00", of("checkpoint", value=CheckpointReading(None, (Doubt(defect, "/x"),)))), defect)
    # Also where its entries are known.
    whole = desk.parts("00").checkpoint.value
    assert whole is not None
    must_be_unknown(desk.look("00", of("checkpoint", value=replace(whole, doubts=(Doubt(defect, "/x"),)))), defect)


def test_a_reading_without_a_checkpoint_and_without_a_doubt_is_unknown() -> None:
    must_be_unknown(settled().look("00", of("checkpoint", value=CheckpointReading(None))), Look.PART_MISSING)


# --- who hands out the cards -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "change",
    [
        of("drivers", value=Drivers(frozenset({"npu.huawei.com"}))),
        with_status("status/capacity", {"huawei.com/Ascend910": "8"}),
        with_pods(pod(phase="Running", annotations={"huawei.com/AscendReal": "Ascend910-0"})),
    ],
)
def test_a_second_manager_makes_the_node_unknown(change: Change) -> None:
    snapshot = settled().look("00", change)
    assert "foreign-manager" in codes(snapshot)
    assert snapshot.foreign
    assert {card.protection for card in snapshot.cards} == {Standing.UNKNOWN}


def test_claims_that_cannot_be_read_make_the_node_unknown() -> None:
    claiming = pod(containers=[{"name": "main"}], spec={"resourceClaims": [{"name": "x"}]})
    desk = settled()
    assert desk.look("00", with_pods(claiming)).unknowns == ()
    unreadable = of("drivers", value=Drivers(unreadable=True))
    must_be_unknown(desk.look("00", lambda parts: unreadable(with_pods(claiming)(parts))), "resource-claims-unreadable")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (with_annotations(handshake=None), CardRefusal.HANDSHAKE_MISSING),
        (with_annotations(handshake="Deleted_2026"), CardRefusal.HANDSHAKE_DELETED),
        (with_annotations(handshake="x"), CardRefusal.HANDSHAKE_ODD),
        (with_annotations(register=None), CardRefusal.NOT_REGISTERED),
        (with_annotations(register="x"), CardRefusal.REGISTER_MALFORMED),
    ],
)
def test_a_card_that_is_not_hamis_is_not_managed_and_begins_anew(change: Change, expected: CardRefusal) -> None:
    snapshot = settled().look("00", change)
    assert snapshot.unknowns == ()
    assert [(card.is_managed, card.unmanaged) for card in snapshot.cards] == [(False, expected)] * 2
    assert set(snapshot.resets) == {Reset(Scope.CARD, expected, name) for name in ("p000", "p001")}


def test_hamis_lock_puts_off_and_resets_nothing_until_it_is_old() -> None:
    desk = settled()
    held = with_annotations(lock="2026-12-01T00:00:00Z,default,pod")
    for _ in range(6):
        snapshot = desk.look("00", held, after=59)
        assert (snapshot.is_deferred, snapshot.unknowns, snapshot.resets) == (True, (), ())
    assert not desk.look("00", held).is_deferred
    # Taken anew, in any form.
    assert desk.look("00", with_annotations(lock="")).is_deferred
    assert not desk.look("00").is_deferred


def test_a_lock_of_the_node_of_before_does_not_make_that_of_another_node_old() -> None:
    desk = settled()
    held, anew = with_annotations(lock="2026-12-01T00:00:00Z,default,pod"), with_status("metadata/uid", "another")
    for _ in range(7):
        desk.look("00", held)
    assert not desk.look("00", held).is_deferred
    desk.accepted = "another"
    assert desk.look("00", lambda parts: held(anew(parts))).is_deferred


@pytest.mark.parametrize(("later", "is_silent"), [(270.0, False), (290.0, True)])
def test_a_report_is_as_old_as_the_question_that_it_answers(later: float, is_silent: bool) -> None:
    desk = settled()
    report = with_annotations(handshake="Reported_the last one")
    desk.look("00", lambda parts: of("node", asked_at=parts.node.asked_at - 20)(report(parts)))
    silent = {card.unmanaged is CardRefusal.HANDSHAKE_SILENT for card in desk.look("00", report, after=later).cards}
    assert silent == {is_silent}


# --- NPUs ------------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "more",
    [
        {"identity": Identity.UNKNOWN},
        {"identity": Identity.INVALID},
        {"health": CardHealth.UNHEALTHY},
        {"health": CardHealth.UNKNOWN},
        {"reason": Reason.NPU_VNPUS_UNKNOWN},
        {"phy_id": -1},
        {"die_id": ""},
    ],
)
def test_a_card_that_is_not_vouched_for_is_unknown_alone(more: dict[str, Any]) -> None:
    cards = (replace(card_view(0, DIES[0]), **more), card_view(1, DIES[1]))
    snapshot = settled().look("00", of("npus", value=Picture(cards=cards, in_doubt=True)))
    assert [(unknown.scope, unknown.reason, unknown.card) for unknown in snapshot.unknowns] == [(Scope.CARD, Look.NPU_IN_DOUBT, "p000")]
    assert [card.protection for card in snapshot.cards] == [Standing.UNKNOWN, Standing.NONE]
    assert Reset(Scope.CARD, Look.NPU_IN_DOUBT, "p000") in snapshot.resets


@pytest.mark.parametrize("findings", [(), (Told(Reason.NPU_LIST_INCOMPLETE, BROKER, "x"),)])
def test_cards_that_may_be_missing_make_the_node_unknown(findings: tuple[Told, ...]) -> None:
    must_be_unknown(settled().look("00", of("npus", value=replace(PICTURE, in_doubt=True, findings=findings))), Look.NPUS_IN_DOUBT)


def test_what_the_broker_says_of_its_list_weighs_more_than_a_card_in_doubt() -> None:
    cards = (card_view(0, DIES[0], health=CardHealth.UNKNOWN), card_view(1, DIES[1]))
    told = (Told(Reason.NPU_LIST_INCOMPLETE, BROKER, "x"),)
    snapshot = settled().look("00", of("npus", value=Picture(cards=cards, in_doubt=True, findings=told)))
    assert not snapshot.is_node_known


def test_a_card_that_no_picture_has_blocks_the_node_where_a_pod_names_it() -> None:
    one = of("npus", value=Picture(cards=PICTURE.cards[:1]))
    snapshot = settled().look("00", lambda parts: with_pods(pod(annotations=annotated(DIES[1])))(one(parts)))
    assert codes(snapshot) == ["card-not-known"]
    assert {card.protection for card in snapshot.cards} == {Standing.UNKNOWN}


# --- Pods ------------------------------------------------------------------------------------------------------------------------------
def test_an_unknown_pod_is_named_with_its_card_and_since_when() -> None:
    odd = pod("pod-a", states={"main": waiting("New")}, annotations=annotated(DIES[0]))
    desk = settled()
    snapshots = [desk.look("00", with_pods(odd)) for _ in range(3)]
    unknown = snapshots[-1].unknowns[0]
    assert (unknown.scope, unknown.reason, unknown.who, unknown.card) == (Scope.CARD, "reason-unknown", "pod-a", "p000")
    assert unknown.since_usec == snapshots[0].at_usec
    assert [card.protection for card in snapshots[-1].cards] == [Standing.UNKNOWN, Standing.NONE]
    assert desk.look("00", with_pods()).unknowns == ()
    assert desk.look("00", with_pods(odd)).unknowns[0].since_usec == desk.now.realtime_usec


def test_a_pod_that_can_have_any_card_blocks_the_node_by_its_uid() -> None:
    snapshot = settled().look("00", with_pods(pod("pod-a", annotations={"huawei.com/Ascend910B4": "{"})))
    assert codes(snapshot)[0] == "annotation-malformed"
    assert snapshot.unknowns[0].who == "pod-a"
    assert {card.protection for card in snapshot.cards} == {Standing.UNKNOWN}


def test_a_privileged_pod_spares_what_a_clean_scan_clears() -> None:
    privileged = pod(containers=[{"name": "main", "securityContext": {"privileged": True}}])
    snapshot = settled().look("00", with_pods(privileged))
    assert [(card.protection, card.protection_if_clean) for card in snapshot.cards] == [(Standing.PROTECTED, Standing.NONE)] * 2
    assert set(snapshot.resets) == {Reset(Scope.CARD, "privileged", name, unless_clean=True) for name in ("p000", "p001")}


def test_a_candidate_resets_nothing() -> None:
    failing = pod(states={"main": waiting("RunContainerError")}, annotations=annotated(DIES[0]))
    snapshot = settled().look("00", with_pods(failing))
    assert (snapshot.cards[0].protection, snapshot.resets, snapshot.unknowns) == (Standing.CANDIDATE, (), ())
    assert snapshot.cards[0].claimants == (failing["metadata"]["uid"],)


# --- what is remembered ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("failed", ["node", "lease", "pods", "host", "npus", "kubelet", "drivers"])
def test_a_look_that_is_not_whole_still_learns_what_the_checkpoint_says(failed: str) -> None:
    desk = settled()
    broken = {"failure": BROKEN} if failed in ANSWERS else {"value": None}
    # `noannot` is in no list that could be read, and in no checkpoint but this one.
    desk.look("05", of(failed, **broken))
    if failed == "kubelet":
        desk.settle("00")
    snapshot = desk.look("00")
    assert "only-remembered" in {claim.reason for claim in snapshot.cards[1].claims}


def test_a_look_that_is_not_whole_narrows_no_memory() -> None:
    desk = settled()
    # By its annotation `with-init` has both cards, by the plugin's answer the first one.
    desk.look("06", checkpoint="00")
    both = {uid for uid, pod in desk.known.pods.items() if pod.cards == {0, 1}}
    assert both
    desk.look("06", of("pods", failure=BROKEN))
    assert {uid for uid, pod in desk.known.pods.items() if pod.cards == {0, 1}} >= both
    # One that could have any card of its resource, until a look that may be of another time says which.
    desk.look("00", with_pods(pod("pod-a", annotations={})))
    assert desk.known.pods["pod-a"].resources
    desk.look("00", lambda parts: of("host", value=None)(with_pods(pod("pod-a", annotations=annotated(DIES[0])))(parts)))
    assert desk.known.pods["pod-a"].resources


def test_first_sights_go_from_look_to_look_and_are_void_with_another_node() -> None:
    silent = with_pods(pod("pod-a", states={"main": waiting(None)}, annotations=annotated(DIES[0])))
    desk = settled()
    assert desk.look("00", silent).cards[0].protection is Standing.PROTECTED
    desk.look("00", of("pods", failure=BROKEN))
    assert codes(desk.look("00", silent)) == ["still-unsaid"]
    desk.accepted = "another"
    assert desk.look("00", lambda parts: with_status("metadata/uid", "another")(silent(parts))).unknowns == ()


def test_a_resource_means_the_cards_that_hami_registers_for_it() -> None:
    def two_words(node: dict[str, Any]) -> None:
        texts = node["metadata"]["annotations"]
        texts["hami.io/node-register-Ascend910B4"] = json.dumps([{"id": DIES[0]}])
        texts["hami.io/node-register-Ascend310P"] = json.dumps([{"id": DIES[1]}])

    snapshot = settled().look("00", lambda parts: in_node(two_words)(with_pods(pod(annotations={}))(parts)))
    assert [card.protection for card in snapshot.cards] == [Standing.PROTECTED, Standing.NONE]
    assert [card.unmanaged for card in snapshot.cards] == [None, CardRefusal.HANDSHAKE_MISSING]


@pytest.mark.parametrize("failed", ["node", "lease", "checkpoint", "host", "npus", "drivers"])
def test_a_look_that_is_not_whole_still_learns_what_the_list_says(failed: str) -> None:
    desk = settled()
    broken = {"failure": BROKEN} if failed in ANSWERS else {"value": None}
    running = with_pods(pod("pod-a", annotations=annotated(DIES[1])))
    desk.look("00", lambda parts: of(failed, **broken)(running(parts)))
    snapshot = desk.look("00")
    assert "pod-a" in snapshot.cards[1].claimants


@pytest.mark.parametrize("failed", ["node", "lease", "pods", "checkpoint", "host", "npus", "kubelet", "drivers"])
def test_only_whole_looks_count_that_a_pod_is_gone(failed: str) -> None:
    desk = settled()
    desk.look("05")
    broken = {"failure": BROKEN} if failed in ANSWERS else {"value": None}
    for _ in range(30):
        desk.look("00", of(failed, **broken))
    # Until the kubelet is old enough again, or the Lease was seen to be renewed, looks are not whole either.
    for _ in range({"kubelet": 5, "lease": 1}.get(failed, 0)):
        assert not desk.look("00").is_node_known
    for _ in range(3):
        snapshot = desk.look("00")
        assert snapshot.is_node_known
        assert snapshot.cards[1].protection is Standing.PROTECTED
    for _ in range(10):
        snapshot = desk.look("00")
    assert snapshot.cards[1].protection is Standing.NONE


def test_a_look_that_is_not_whole_begins_the_time_of_a_gone_pod_anew() -> None:
    desk = settled()
    desk.look("05")
    for _ in range(8):
        desk.look("00")
    desk.look("00", of("pods", failure=BROKEN))
    for _ in range(10):
        assert desk.look("00").cards[1].protection is Standing.PROTECTED
    desk.look("00")
    assert desk.look("00").cards[1].protection is Standing.NONE


def test_another_boot_forgets_all_but_the_node() -> None:
    desk = settled()
    desk.look("05")
    desk.facts = replace(FACTS, boot_id="another")
    snapshot = desk.look("00", with_status("status/nodeInfo/bootID", "another"))
    assert codes(snapshot) == ["kubelet-young", "lease-not-yet-seen-renewed"]
    assert all(card.claims == () for card in snapshot.cards)
    assert snapshot.identity is NodeIdentity.SAME


def test_a_boot_that_cannot_be_read_forgets_nothing() -> None:
    desk = settled()
    desk.look("05")
    desk.facts = replace(FACTS, boot_id="")
    desk.look("00")
    desk.facts = FACTS
    assert "only-remembered" in {claim.reason for claim in desk.look("00").cards[1].claims}


def test_a_clock_that_went_back_voids_every_time_and_no_pod() -> None:
    desk = settled()
    desk.look("05")
    desk.now = Moment(100.0, desk.now.realtime_usec)
    snapshot = desk.look("00")
    assert Look.CLOCK_BACK in codes(snapshot)
    assert "kubelet-young" in codes(snapshot)
    assert {card.unmanaged for card in snapshot.cards} == {CardRefusal.HANDSHAKE_UNPROVEN}
    assert snapshot.cards[1].claimants
    assert desk.known.seen_at == desk.now.monotonic


def test_where_the_host_was_not_seen_no_pod_is_over() -> None:
    over = pod(phase="Failed", annotations=annotated(DIES[0]), states={})
    snapshot = settled().look("00", lambda parts: of("host", value=None)(with_pods(over)(parts)))
    assert {claim.reason for claim in snapshot.cards[0].claims} == {"host-unreadable"}


def test_drivers_that_were_not_read_may_be_anybodys() -> None:
    claiming = pod(containers=[container(npus=None)], spec={"resourceClaims": [{"name": "npu", "resourceClaimName": "x"}]})
    snapshot = settled().look("00", lambda parts: of("drivers", value=None)(with_pods(claiming)(parts)))
    assert "resource-claims-unreadable" in codes(snapshot)


def test_every_code_that_was_met_stands_in_the_table() -> None:
    """Of what the join itself finds; failures of the transport have codes of their own."""
    assert {code.value for code in Look} <= ROWS.keys()


def test_bounds_are_above_nothing() -> None:
    for more in ({"part": 0}, {"lease_looks": 0}):
        with pytest.raises(ValueError, match="above 0"):
            SnapshotBounds(**more)


def test_host_evidence_that_holds_a_pod_protects_it() -> None:
    failing = pod("pod-a", states={"main": waiting("RunContainerError")}, annotations=annotated(DIES[0]))
    desk = settled()
    desk.host = HostSays({"pod-a": Finding.HELD}, {"pod-a": Finding.HELD})
    assert desk.look("00", with_pods(failing)).cards[0].protection is Standing.PROTECTED
    desk.host = HostSays({"pod-a": Finding.UNKNOWN}, {"pod-a": Finding.UNKNOWN})
    assert desk.look("00", with_pods(failing)).cards[0].protection is Standing.UNKNOWN
