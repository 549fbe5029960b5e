"""The recorded node, from its Pods and its checkpoint to what is destroyed: every room of reclaiming in the order of one cycle."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from devward.cluster.answers import Answer
from devward.cluster.claims import ClaimReason
from devward.cluster.evidence import Finding
from devward.cluster.hami import CardRefusal
from devward.cluster.observations import Look as Seen
from devward.cluster.parts import Part, Parts
from devward.cluster.views import Snapshot
from devward.npu.facts import Expected, Node, Outcome
from devward.npu.inventory import Picture
from devward.npu.pins import PinReport
from devward.npu.views import CardHealth, Use, VnpuView
from devward.npu.views import Verdict as ViewVerdict
from devward.reasons import Reason
from devward.reclaim.aftermath import Aftermath, Result, called, conclude
from devward.reclaim.asking import ask_about
from devward.reclaim.confirmation import Bounds, Pace, Progress, step
from devward.reclaim.contract import Chosen, Go, Refuse, decide, prepare
from devward.reclaim.controls import Controls, ReclaimMode, Switch, permission
from devward.reclaim.counters import Counters, of_destruction, of_look
from devward.reclaim.history import Attempt, Fate, History, act, see
from devward.reclaim.limits import Breaker, Held, Rates, Spent, begin_cycle, choose, due, spend, watch_look
from devward.reclaim.look import Interruption, Look, take_look
from devward.reclaim.reasons import Verdict, Why
from devward.reclaim.verdict import Judgement, judge
from sim.pod_desk import HostSays, annotated, listing, pod, waiting
from sim.recorded_cluster import BOOT_ID, DIES, allocations_of
from sim.snapshot_desk import KUBELET, PICTURE, Change, SnapshotDesk, checkpoint_of

V = Verdict
GOOD = Controls(mode=ReclaimMode.ENFORCE, kill_switch=Switch.ABSENT, has_kubelet=True)


def view(vdev: int, **more: Any) -> VnpuView:
    card = (vdev - 100) // 16
    made = VnpuView(
        name=f"v{vdev:04d}",
        vdev=vdev,
        identity=f"{DIES[card]}/{vdev}/vir05_1c_8g/first",
        card=f"p{card:03d}",
        template="vir05_1c_8g",
        vfid=(vdev - 100) % 16 + 1,
        cores=5.0,
        node=f"/dev/vdavinci{vdev}",
        use=Use.IDLE,
        verdict=ViewVerdict.UNKNOWN,
        reason=Reason.OK,
        text="",
        first_seen_usec=1,
        grace_start_usec=0,
        confirmations=0,
        eligible_at_usec=0,
    )
    return replace(made, **more)


@dataclass
class Cycles:
    """One node, cycle by cycle: gather, join, step, judge, choose, hold against fresh evidence, ask the broker, write down."""

    vnpus: list[VnpuView]
    answer: Callable[[Expected], tuple[Outcome, int | None]] = lambda expected: (Outcome.DESTROYED, 0)
    controls: Controls = GOOD
    bounds: Bounds = field(default_factory=Bounds)
    finding: Finding = Finding.CLEAN
    desk: SnapshotDesk = field(default_factory=SnapshotDesk)
    progress: Progress = field(default_factory=Progress)
    spent: Spent = field(default_factory=Spent)
    breaker: Breaker = field(default_factory=Breaker)
    history: History = field(default_factory=History)
    counters: Counters = field(default_factory=Counters)
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    meanwhile: Change = lambda parts: parts

    def __post_init__(self) -> None:
        self.desk.settle()

    def gather(self, state: str, change: Change, after: float, interruptions: tuple[Interruption, ...] = ()) -> tuple[Look, Snapshot]:
        picture = Picture(cards=PICTURE.cards, vnpus=tuple(self.vnpus))

        def with_picture(parts: Parts) -> Parts:
            return change(replace(parts, npus=Part(parts.npus.taken_at, picture)))

        snapshot = self.desk.look(state, with_picture, after=after)
        asked = ask_about(picture, PinReport(), self.judgements)
        sights = dict.fromkeys(asked, self.finding)
        return take_look(picture, snapshot, sights, PinReport(), interruptions=interruptions), snapshot

    def take(self, look: Look) -> None:
        before = self.progress
        self.progress = step(before, look, self.bounds)
        self.judgements = judge(self.progress, look, self.bounds)
        self.counters += of_look(before, self.progress, look, self.judgements)
        self.history, _ = see(self.history, look, self.progress, self.judgements)

    def cycle(self, state: str, change: Change = lambda parts: parts, *, after: float = 60.0, **more: Any) -> dict[str, Verdict]:
        look, snapshot = self.gather(state, change, after, **more)
        self.take(look)
        eligible = due(self.judgements, self.progress)
        self.breaker = watch_look(self.breaker, eligible, look, self.judgements.values())
        self.controls = replace(self.controls, is_breaker_latched=self.breaker.is_latched)
        if permission(self.controls, snapshot.unknowns).may_destroy:
            self.spent = begin_cycle(self.spent)
            for one in choose(eligible, self.spent, Rates(), look.at).chosen:
                self.destroy(Chosen(one, sequence=0), state, lambda parts: self.meanwhile(change(parts)))
        return {name: found.verdict for name, found in self.judgements.items()}

    def destroy(self, chosen: Chosen, state: str, change: Change) -> None:
        fresh, snapshot = self.gather(state, change, 2.0)
        expected = self.expected(chosen.due.vdev)
        prepared, self.progress = prepare(
            chosen,
            self.progress,
            fresh,
            expected,
            now=snapshot.at,
            apart=0.0,
            sequence=0,
            controls=self.controls,
            spent=self.spent,
            rates=Rates(),
            bounds=self.bounds,
        )
        if isinstance(prepared, Refuse):
            self.refusals.append(prepared.reason)
            return
        answer = decide(prepared, now=snapshot.at + 0.5, sequence=0, controls=self.controls, is_intent_taken=True)
        assert isinstance(answer, Go)
        self.asked.append(answer.expected.vdev)
        self.conclude(chosen, called(*self.answer(answer.expected)), snapshot)

    def conclude(self, chosen: Chosen, aftermath: Aftermath, snapshot: Snapshot) -> None:
        self.spent = spend(self.spent, chosen.due.card, snapshot.at)
        if aftermath.result is Result.DESTROYED:
            self.vnpus = [one for one in self.vnpus if one.vdev != chosen.due.vdev]
        self.controls = replace(self.controls, is_forbidden=self.controls.is_forbidden or aftermath.forbids)
        self.progress = conclude(self.progress, chosen.due.identity, aftermath, snapshot.at + 1)
        self.counters += of_destruction(aftermath)
        attempt = Attempt("r", snapshot.at + 1, "")
        self.history, _ = act(self.history, chosen.due.identity, attempt, aftermath.result, at_usec=snapshot.at_usec + 1_000_000)

    @staticmethod
    def expected(vdev: int) -> Expected:
        card = (vdev - 100) // 16
        return Expected(BOOT_ID, card, 0, card, DIES[card], vdev, (vdev - 100) % 16 + 1, "vir05_1c_8g", Node(1, 1, 236, vdev))


def pods(*items: Any) -> Change:
    """Return what puts other Pods in the place of the recorded ones."""
    return lambda parts: replace(parts, pods=replace(parts.pods, body=listing(*items)))


def with_checkpoint(state: str) -> Change:
    """Return what puts another state's checkpoint in the place of the recorded one."""
    return lambda parts: replace(parts, checkpoint=replace(parts.checkpoint, value=checkpoint_of(state)))


FAILING = pod(states={"main": waiting("RunContainerError")}, annotations=annotated(DIES[0]), phase="Pending")


def test_orphans_of_a_pod_that_cannot_start_are_destroyed_one_a_cycle() -> None:
    node = Cycles([view(100), view(101), view(116)])
    told = [node.cycle("00", pods(FAILING)) for _ in range(10)]
    assert told[0] == dict.fromkeys(("v0100", "v0101", "v0116"), V.CANDIDATE)
    assert node.asked == []
    node.breaker = replace(node.breaker, agreed=frozenset(Held(one.card, one.vdev, one.identity) for one in node.vnpus))
    node.cycle("00", pods(FAILING))
    assert node.asked == [100, 116]
    node.cycle("00", pods(FAILING))
    assert node.asked == [100, 116, 101]
    assert [gone.fate for gone in node.history.gone] == [Fate.DESTROYED] * 3
    assert node.counters.vnpus_destroyed == 3
    assert node.progress.vnpus == {}


def test_eligible_on_both_of_two_cards_stops_everything() -> None:
    node = Cycles([view(100), view(116)])
    for _ in range(20):
        node.cycle("00")
    assert node.asked == []
    assert permission(node.controls).reasons == ("mass-reclaim",)


@pytest.mark.parametrize("state", ["01", "05", "08", "11"])
def test_cards_that_somebody_claims_keep_their_vnpus(state: str) -> None:
    node = Cycles([view(100)])
    for _ in range(20):
        assert node.cycle(state)["v0100"] is V.PROTECTED
    assert node.asked == []


def test_ownership_that_appears_before_the_second_snapshot_is_seen() -> None:
    node = Cycles([view(100)])
    for _ in range(10):
        node.cycle("00")
    running = pod(annotations=annotated(DIES[0]))
    node.meanwhile = pods(running)
    node.cycle("00")
    assert (node.asked, node.refusals) == ([], [ClaimReason.RUNNING])
    node.meanwhile = lambda parts: parts
    # And all of the wait begins anew; the Pod itself is remembered until it is known to be gone.
    assert node.cycle("00")["v0100"] is V.PROTECTED


def test_what_is_unknown_of_the_node_at_the_last_moment_is_seen() -> None:
    node = Cycles([view(100)])
    for _ in range(10):
        node.cycle("00")
    node.meanwhile = lambda parts: replace(parts, pods=replace(parts.pods, status=503))
    node.cycle("00")
    assert node.asked == []
    assert len(node.refusals) == 1
    node.meanwhile = lambda parts: parts
    for _ in range(10):
        node.cycle("00")
    assert node.asked == []
    node.cycle("00")
    node.cycle("00")
    assert node.asked == [100]


def test_api_server_that_went_away_stops_everything_and_says_so() -> None:
    node = Cycles([view(100)])

    def away(parts: Parts) -> Parts:
        return replace(parts, pods=Answer(parts.pods.asked_at, parts.pods.received_at))

    for _ in range(30):
        assert node.cycle("00", away)["v0100"] is V.UNKNOWN
    assert node.asked == []
    assert node.judgements["v0100"].reason == Seen.NO_ANSWER


def test_kubelet_that_was_started_again_begins_the_wait_anew() -> None:
    node = Cycles([view(100)])
    for _ in range(9):
        node.cycle("00")
    again = replace(KUBELET, pid=900)

    def restarted(parts: Parts) -> Parts:
        scan = parts.kubelet.value
        assert scan is not None
        return replace(parts, kubelet=replace(parts.kubelet, value=replace(scan, kubelet=again)))

    told = [node.cycle("00", restarted)["v0100"] for _ in range(6)]
    # The new kubelet must run for a while before anything is known of the node.
    assert set(told[:5]) == {V.UNKNOWN}
    for _ in range(9):
        node.cycle("00", restarted)
    assert node.asked == []
    for _ in range(3):
        node.cycle("00", restarted)
    assert node.asked == [100]


def test_lock_of_hamis_puts_it_off_and_takes_nothing() -> None:
    node = Cycles([view(100)])

    def locked(parts: Parts) -> Parts:
        body = parts.node.body.replace(b'"annotations": {', b'"annotations": {"hami.io/mutex.lock":"2026-12-01T00:00:00Z,a,b",')
        assert body != parts.node.body
        return replace(parts, node=replace(parts.node, body=body))

    for _ in range(9):
        node.cycle("00")
    for _ in range(3):
        told = node.cycle("00", locked)
    assert told["v0100"] is V.DEFERRED
    assert node.asked == []
    node.cycle("00")
    assert node.asked == [100]


def test_driver_that_says_in_use_begins_the_wait_anew_for_that_one() -> None:
    node = Cycles(
        [view(100), view(101)], answer=lambda expected: (Outcome.STILL_PRESENT, -8001) if expected.vdev == 100 else (Outcome.DESTROYED, 0)
    )
    for _ in range(13):
        node.cycle("00")
    assert node.asked == [100, 101]
    assert node.judgements["v0100"].verdict is V.CONFIRMING
    for _ in range(8):
        node.cycle("00")
    assert node.asked == [100, 101, 100]


def test_library_that_does_not_permit_it_stops_everything() -> None:
    node = Cycles([view(100), view(101)], answer=lambda expected: (Outcome.STILL_PRESENT, -8002))
    for _ in range(20):
        node.cycle("00")
    assert node.asked == [100]
    assert permission(node.controls).reasons == ("destroying-not-permitted",)


def test_failed_destruction_is_tried_again_after_another_confirmation_and_after_the_others() -> None:
    node = Cycles(
        [view(100), view(101)], answer=lambda expected: (Outcome.UNKNOWN, -8009) if expected.vdev == 100 else (Outcome.DESTROYED, 0)
    )
    for _ in range(14):
        node.cycle("00")
    assert node.asked == [100, 101, 100, 100]


def test_card_that_hami_does_not_have_is_observed() -> None:
    node = Cycles([view(100)])

    def without(parts: Parts) -> Parts:
        return replace(parts, node=replace(parts.node, body=parts.node.body.replace(DIES[0].encode(), b"ANOTHER")))

    for _ in range(20):
        assert node.cycle("00", without)["v0100"] is V.UNMANAGED
    assert node.judgements["v0100"].reason == CardRefusal.NOT_REGISTERED
    assert node.asked == []


def test_pod_that_ended_protects_no_more_though_the_checkpoint_has_it() -> None:
    node = Cycles([view(100)])
    allocated = with_checkpoint("01")
    uids = {allocation.uid for allocation in allocations_of("01")}
    ended = [pod(uid, phase="Failed", states={}, annotations={"huawei.com/Ascend910B4": "malformed"}) for uid in sorted(uids)]
    for _ in range(11):
        node.cycle("00", lambda parts: allocated(pods(*ended)(parts)))
    assert node.asked == [100]


def test_pod_that_only_the_checkpoint_has_protects_for_a_bounded_time() -> None:
    node = Cycles([view(100)])
    told = [node.cycle("00", with_checkpoint("01")).get("v0100") for _ in range(30)]
    assert told[:10] == [V.PROTECTED] * 10
    assert node.asked == [100]
    # Ten minutes until the Pods count as gone, and ten more of the vNPU's own.
    assert told.count(V.CONFIRMING) >= 9


def test_npu_whose_vnpus_cannot_be_listed_spares_the_other_one() -> None:
    node = Cycles([view(100), view(116)])

    def doubtful(parts: Parts) -> Parts:
        whole = parts.npus.value
        assert whole is not None
        cards = (
            whole.cards[0],
            replace(whole.cards[1], health=CardHealth.UNKNOWN, reason=Reason.NPU_UNREADABLE, text="It cannot be read."),
        )
        return replace(parts, npus=replace(parts.npus, value=replace(whole, cards=cards, in_doubt=True)))

    for _ in range(12):
        told = node.cycle("00", doubtful)
    assert node.asked == [100]
    assert told["v0116"] is V.UNKNOWN


def test_attempt_that_shows_on_the_host_protects_the_card_while_it_lasts() -> None:
    """DESIGN: any protecting claim begins the wait of the whole card anew, also that of a Pod that goes on failing."""
    node = Cycles([view(100)])
    for _ in range(5):
        node.cycle("00", pods(FAILING))
    node.desk.host = HostSays(containers={FAILING["metadata"]["uid"]: Finding.HELD})
    assert node.cycle("00", pods(FAILING))["v0100"] is V.PROTECTED
    assert node.judgements["v0100"].reason == ClaimReason.CONTAINER_ALIVE
    node.desk.host = HostSays()
    assert node.cycle("00", pods(FAILING))["v0100"] is V.CANDIDATE


def test_unasked_host_costs_one_look() -> None:
    node = Cycles([view(100)])
    running = pods(pod(annotations=annotated(DIES[0])))
    node.cycle("00", running)
    ended = pods(pod(phase="Succeeded", states={}, annotations=annotated(DIES[0])))
    node.cycle("00", running)
    assert node.cycle("00", ended)["v0100"] is V.UNKNOWN
    assert node.judgements["v0100"].reason == Why.HOST_NOT_ASKED
    assert node.cycle("00", ended)["v0100"] is V.CANDIDATE


def test_demo_with_shortened_timers_takes_seconds() -> None:
    node = Cycles([view(100)], bounds=Bounds(Pace(12.0, 3, 3.0)))
    for _ in range(5):
        node.cycle("00", pods(FAILING), after=3.0)
    assert node.asked == [100]
