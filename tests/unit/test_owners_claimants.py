"""Who the claimants of a card are for people: by which sources a Pod is known, and how many AI cores are asked for."""

from collections.abc import Iterable

import pytest

from devward.cluster.claimants import Claimant, Trace, claimants, claimed_cores
from devward.cluster.claims import Allocation, Claim, ClaimReason, Standing
from devward.cluster.evidence import Finding
from devward.cluster.podlist import Controller, Pod, PodList
from sim.pod_desk import HostSays
from sim.recorded_cluster import RESOURCE, WORD
from sim.snapshot_desk import SnapshotDesk

UID, OTHER, STATIC = "uid-a", "uid-b", "377a6b4dd9926d27b5831016d3cc562e"


def claim(uid: str = UID, reason: ClaimReason = ClaimReason.RUNNING, *, unless_clean: bool = False) -> Claim:
    return Claim(uid, Standing.PROTECTED, reason, unless_clean=unless_clean)


def allocation(template: str, *cards: int, uid: str = UID, container: str = "main") -> Allocation:
    return Allocation(uid, container, RESOURCE, frozenset(cards) or None, template=template)


def cores(claims: Iterable[Claim], *allocations: Allocation, total: float | None = 20.0, phy: int = 0) -> float | None:
    by_uid: dict[str, tuple[Allocation, ...]] = {}
    for one in allocations:
        by_uid[one.uid] = (*by_uid.get(one.uid, ()), one)
    return claimed_cores(phy, total, claims, by_uid)


# --- by which sources a Pod is known --------------------------------------------------------------------------------------


def pods(*pods: Pod) -> PodList:
    return PodList("7", pods)


def test_what_nobody_knows_has_no_trace_and_no_name() -> None:
    assert claimants([UID], None, (), None, ()) == (Claimant(UID),)
    assert claimants([UID], pods(), (), HostSays(), ()) == (Claimant(UID),)


def test_each_source_alone_is_a_trace() -> None:
    known = pods(Pod(UID, "space", "name"))
    assert claimants([UID], known, (), None, ()) == (Claimant(UID, "space", "name", (Trace.API,)),)
    annotated = pods(Pod(UID, "space", "name", annotations={f"huawei.com/{WORD}": "", "other": ""}))
    assert claimants([UID], annotated, (), None, ())[0].traces == (Trace.API, Trace.ANNOTATION)
    plain = pods(Pod(UID, "space", "name", annotations={"huawei.com/Ascend910B4-memory": "1", "x": "y"}))
    assert claimants([UID], plain, (), None, ())[0].traces == (Trace.API,)
    assert claimants([UID], None, (allocation("", 0),), None, ())[0].traces == (Trace.CHECKPOINT,)
    assert claimants([UID], None, (), HostSays(whole={UID: Finding.HELD}), ())[0].traces == (Trace.HOST,)
    assert claimants([UID], None, (), None, (UID,))[0].traces == (Trace.MEMORY,)


def test_what_controls_it_goes_with_its_name() -> None:
    job = Controller("Job", "train", "j-1")
    known = pods(Pod(UID, "space", "name", controller=job))
    assert claimants([UID], known, (), None, ()) == (Claimant(UID, "space", "name", (Trace.API,), job),)


def test_a_trace_of_another_pod_is_none() -> None:
    host = HostSays(whole={OTHER: Finding.HELD})
    assert claimants([UID], pods(Pod(OTHER, "s", "n")), (allocation("", 0, uid=OTHER),), host, (OTHER,)) == (Claimant(UID),)


@pytest.mark.parametrize("finding", [Finding.CLEAN, Finding.UNKNOWN])
def test_only_what_the_host_holds_is_a_trace_of_it(finding: Finding) -> None:
    assert claimants([UID], None, (), HostSays(whole={UID: finding}), ())[0].traces == ()


def test_a_sandbox_alone_is_a_trace() -> None:
    host = HostSays(whole={UID: Finding.HELD}, containers={UID: Finding.CLEAN})
    assert claimants([UID], None, (), host, ())[0].traces == (Trace.HOST,)


def test_a_static_pod_is_known_by_each_of_its_uids() -> None:
    mirror = pods(Pod(UID, "space", "name", static_uids=frozenset({STATIC})))
    host = HostSays(whole={STATIC: Finding.HELD})
    every = (Trace.API, Trace.CHECKPOINT, Trace.HOST, Trace.MEMORY)
    assert claimants([UID], mirror, (allocation("", 0, uid=STATIC),), host, (STATIC,)) == (Claimant(UID, "space", "name", every),)
    assert claimants([STATIC], mirror, (), None, ())[0].name == "name", "also where it claims under its own"


def test_claimants_are_in_order_and_each_once() -> None:
    assert [one.uid for one in claimants([OTHER, UID, OTHER], None, (), None, ())] == [UID, OTHER]


# --- cores ----------------------------------------------------------------------------------------------------------------

TEMPLATES = {
    "vir01": 1, "vir02": 2, "vir04": 4, "vir08": 8, "vir16": 16, "vir02_1c": 2, "vir03_1c_8g": 3, "vir04_3c": 4,
    "vir04_3c_ndvpp": 4, "vir04_4c_dvpp": 4, "vir05_1c_8g": 5, "vir05_1c_16g": 5, "vir06_1c_16g": 6, "vir10_3c_16g": 10,
    "vir10_3c_16g_nm": 10, "vir10_3c_32g": 10, "vir10_4c_16g_m": 10, "vir12_3c_32g": 12,
}  # fmt: skip


@pytest.mark.parametrize(("template", "asked"), TEMPLATES.items())
def test_a_template_says_how_many_cores_it_has(template: str, asked: float) -> None:
    assert cores([claim()], allocation(template, 0)) == asked
    assert cores([claim()], allocation(template, 0), total=None) == asked


@pytest.mark.parametrize("template", ["vir", "vir5", "vir123", "vir5_1c", "Vir05", "xvir05", " vir05", "05", "vir\u0660\u0665", "other"])
def test_a_template_of_another_form_says_nothing(template: str) -> None:
    assert cores([claim()], allocation(template, 0)) is None


def test_without_a_template_it_is_the_whole_card() -> None:
    assert cores([claim()], allocation("", 0), total=24.0) == 24.0
    assert cores([claim()], allocation("", 0), total=None) is None


def test_a_card_that_nobody_claims_has_no_cores_claimed() -> None:
    assert cores([], total=None) == 0
    assert cores([], allocation("vir05_1c_8g", 0)) == 0


def test_several_pods_and_containers_add_up() -> None:
    first, second = allocation("vir05_1c_8g", 0), allocation("vir02_1c", 0, container="two")
    assert cores([claim(), claim(OTHER)], first, second, allocation("vir10_3c_16g", 0, uid=OTHER)) == 17


def test_a_pod_that_claims_a_card_for_several_reasons_has_its_cores_once() -> None:
    claims = [claim(), claim(reason=ClaimReason.NAMED_IN_ENVIRONMENT), claim(reason=ClaimReason.ANNOTATION_MALFORMED)]
    assert cores(claims, allocation("vir05_1c_8g", 0)) == 5


def test_each_card_of_several_counts_by_itself() -> None:
    both = allocation("vir05_1c_8g", 0, 1)
    assert (cores([claim()], both), cores([claim()], both, phy=1), cores([claim()], both, phy=2)) == (5, 5, None)
    apart = (allocation("vir05_1c_8g", 0), allocation("vir10_3c_16g", 1, container="two"))
    assert (cores([claim()], *apart), cores([claim()], *apart, phy=1)) == (5, 10)


def test_what_was_given_and_cannot_be_told_may_be_of_this_card() -> None:
    assert cores([claim()], allocation("vir05_1c_8g")) is None
    assert cores([claim()], allocation("vir05_1c_8g", 0), allocation("vir05_1c_8g", container="two")) is None


def test_of_one_that_was_given_nothing_it_is_not_known() -> None:
    assert cores([claim()]) is None
    assert cores([claim(), claim(OTHER)], allocation("vir05_1c_8g", 0)) is None


def test_who_could_open_every_card_asks_for_none() -> None:
    assert cores([claim(unless_clean=True)]) == 0
    assert cores([claim(unless_clean=True), claim()], allocation("vir05_1c_8g", 0)) == 5


def test_a_static_pod_asks_for_what_the_kubelet_gave_to_its_own_uid() -> None:
    desk = SnapshotDesk()
    desk.settle()
    snapshot = desk.look("08")
    static = next(one for one in snapshot.claimants if one.name == "static-npu-lab")
    assert Trace.CHECKPOINT in static.traces
    assert static.uid in snapshot.cards[0].claimants
    # Five Pods have five cores each, and one of them as many for its init container.
    assert (len(snapshot.cards[0].claimants), snapshot.cards[0].claimed_cores) == (5, 30.0)
