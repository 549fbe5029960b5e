"""When it is looked who owns the vNPUs, what each look leaves behind, and what becomes of it when something goes wrong; on virtual time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from devward.cluster import owners
from devward.cluster.answers import Failure
from devward.cluster.api import ApiSettings
from devward.cluster.certificate import Certificate
from devward.cluster.checkpoint import CheckpointReading
from devward.cluster.claims import Moment, Remembered
from devward.cluster.evidence import Finding, SourceState
from devward.cluster.gatherer import Gathered, nothing_gathered
from devward.cluster.kubelet_facts import KubeletScan
from devward.cluster.observations import Look
from devward.cluster.owners import PACE, SAVE_SECONDS, OwnersWatcher, Pace, Seen
from devward.cluster.ownership import Ownership
from devward.cluster.parts import HostFacts, Parts
from devward.cluster.podlist import PodList, parse_pod_list
from devward.cluster.recollection import Loss, Recollection, lasting
from devward.cluster.snapshot import take_snapshot
from devward.cluster.statement import AskedVnpu, SourceSight, VnpuSight
from devward.errors import StateError
from devward.npu.inventory import Picture
from devward.npu.views import Protection
from devward.reasons import Reason
from devward.worker import WorkerHung
from sim.recorded_cluster import BOOT_ID, DIES, allocations_of
from sim.snapshot_desk import FACTS, KUBELET, SnapshotDesk, card_view, checkpoint_of
from sim.virtual_time import VirtualClock, VirtualTimeLoop, run_virtual

CARD = card_view(0, DIES[0])
SIGHT = VnpuSight(AskedVnpu(100, 236, 100), Finding.CLEAN, Finding.CLEAN, Finding.CLEAN)
SETTINGS = ApiSettings("/etc/kubernetes/kubelet.conf")


class FakeGatherer:
    """Gathers the parts of a recorded state, as long as it takes."""

    def __init__(self, desk: "Desk") -> None:
        self._desk = desk
        self._snapshots = SnapshotDesk()
        self.state = "00"
        self.takes = 0.5
        self.does: Callable[[], None] = lambda: None
        self.change: Callable[[Parts], Parts] = lambda parts: parts
        self.facts = FACTS
        self.reading: CheckpointReading | None = checkpoint_of("00")
        #: When each whole look began, and whether it was with Pods; and when each light one did.
        self.whole: list[tuple[float, bool]] = []
        self.light: list[float] = []
        self.cancelled = 0
        self.closed = 0
        self.library = object()
        self.settings: ApiSettings | None = SETTINGS
        self.certificate: Certificate | None = None
        self.warning = ""
        self.is_without_kubelet = False

    async def gather(self, *, pods: bool) -> Gathered:
        self.whole.append((self._desk.loop.time(), pods))
        await self._take_time()
        self._snapshots.looks += 1
        self._snapshots.now = Moment(self._desk.loop.time(), self._desk.clock.realtime_usec())
        parts = self._snapshots.parts(self.state)
        if not pods:
            parts = replace(parts, pods=nothing_gathered(Failure(Look.NOT_LISTED, "not listed"), self._desk.loop.time()).parts.pods)
        host = {"bundles": SourceSight(SourceState.READ)}
        return Gathered(
            self.change(parts), self.facts, {"v0100": SIGHT}, host, (), "containerd://2.1.9", is_without_kubelet=self.is_without_kubelet
        )

    async def read_checkpoint(self) -> CheckpointReading | None:
        self.light.append(self._desk.loop.time())
        await self._take_time()
        return self.reading

    async def _take_time(self) -> None:
        try:
            await asyncio.sleep(self.takes)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.does()

    def close(self) -> None:
        self.closed += 1


class FakeKeeping:
    """What is kept, in memory."""

    def __init__(self) -> None:
        self.kept = Recollection()
        self.saves = 0
        self.fails: Exception | None = None

    def load(self) -> Recollection:
        return self.kept

    def save(self, known: Recollection) -> None:
        if self.fails is not None:
            raise self.fails
        if lasting(known) != self.kept:
            self.saves += 1
        self.kept = lasting(known)


class FakeWorker:
    """A worker whose file system may hang."""

    def __init__(self) -> None:
        self.hangs = False

    async def run(self, call: Callable[[], Any], deadline: float) -> Any:
        if self.hangs:
            await asyncio.sleep(deadline)
            raise WorkerHung("the file system did not answer")
        await asyncio.sleep(0)
        return call()


class FakeJudge:
    """Keeps what it was shown, and asks for another look if it is to."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.asks_again = False
        self.does: Callable[[], None] = lambda: None
        self.forgot = 0

    def forget(self) -> None:
        self.forgot += 1

    @property
    def interval(self) -> float:
        return 60.0

    def ask_about(self, _: Picture) -> frozenset[str]:
        return frozenset()

    async def take(self, seen: Seen, again: Callable[[], Awaitable[Seen]]) -> None:
        self.seen.append(seen)
        self.does()
        if self.asks_again:
            self.asks_again = False
            self.seen.append(await again())


class FakeWatch:
    """A watch on Pods that only shows whether it runs."""

    made: ClassVar[list[Any]] = []

    def __init__(self, settings: ApiSettings, node: str, nudge: Callable[[], None], **more: Any) -> None:
        self.target = (settings, node)
        self.nudge = nudge
        self.runs = self.overlaps = False
        FakeWatch.made.append(self)

    async def run(self) -> None:
        self.overlaps = any(watch.runs for watch in FakeWatch.made)
        self.runs = True
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.runs = False


class Desk:
    """A watcher, and all that it works with."""

    def __init__(self, loop: VirtualTimeLoop, keeping: FakeKeeping | None = None, pace: Pace = PACE) -> None:
        self.chance = 0.0
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.gatherer = FakeGatherer(self)
        self.keeping = keeping or FakeKeeping()
        self.saver = FakeWorker()
        self.judge = FakeJudge()
        self.is_wanted = True
        self.changes = 0
        self.next: float | None = None
        self.watcher = OwnersWatcher(
            self.gatherer,  # type: ignore[arg-type]
            self.keeping,  # type: ignore[arg-type]
            self.saver,  # type: ignore[arg-type]
            self.judge,
            clock=self.clock,
            is_wanted=lambda: self.is_wanted,
            on_change=self._changed,
            chance=lambda: self.chance,
            pace=pace,
        )

    def _changed(self) -> None:
        self.changes += 1
        # What is published with a look is when the one after it comes.
        self.next = self.watcher.next_look_in

    async def until(self, at: float) -> None:
        """Let it be so many seconds after the beginning."""
        await asyncio.sleep(1000.0 + at - self.loop.time())

    @property
    def whole(self) -> list[float]:
        """When whole looks began, in seconds after the beginning."""
        return [round(at - 1000.0, 3) for at, _ in self.gatherer.whole]

    @property
    def light(self) -> list[float]:
        return [round(at - 1000.0, 3) for at in self.gatherer.light]

    @property
    def blocked(self) -> tuple[str, ...]:
        return self.watcher.ownership.blocked_reasons


@pytest.fixture(autouse=True)
def _watches(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeWatch.made = []
    monkeypatch.setattr(owners, "PodWatch", FakeWatch)


def run(main: Callable[[Desk], Coroutine[Any, Any, None]], keeping: FakeKeeping | None = None, pace: Pace = PACE) -> None:
    async def with_desk(loop: VirtualTimeLoop) -> None:
        desk = Desk(loop, keeping, pace)
        try:
            await main(desk)
        finally:
            await desk.watcher.close()

    run_virtual(with_desk)


# --- when -----------------------------------------------------------------------------------------------------------------


def test_while_it_matters_there_is_a_whole_look_each_minute() -> None:
    async def main(desk: Desk) -> None:
        assert not desk.watcher.awake
        assert desk.watcher.next_look_in is None
        desk.watcher.wake()
        await desk.until(200)
        assert desk.whole == [0, 60.5, 121, 181.5], "an interval after the one before is complete"
        assert {pods for _, pods in desk.gatherer.whole} == {True}
        assert (desk.light, desk.changes, desk.watcher.looks) == ([], 4, 4)
        assert desk.next == pytest.approx(60)
        assert desk.watcher.next_look_in == pytest.approx(42)
        desk.watcher.wake()
        await desk.until(239)
        assert desk.whole == [0, 60.5, 121, 181.5], "what is awake is not woken"

    run(main)


def test_looks_come_later_by_chance_and_never_sooner() -> None:
    async def main(desk: Desk) -> None:
        desk.chance = 1.0
        desk.watcher.wake()
        await desk.until(100)
        assert desk.whole == [0, 66.5]
        desk.chance = 0.5
        desk.gatherer.takes = 4.5
        await desk.until(200)
        assert desk.whole == [0, 66.5, 133]
        await desk.until(250)
        assert desk.whole == [0, 66.5, 133, 200.5]
        desk.gatherer.takes = 30.0
        await desk.until(400)
        assert desk.whole[4:] == [268, 343], "the Lease has to be seen"

    run(main)


def test_otherwise_the_checkpoint_is_read_each_minute_and_all_but_pods_is_asked_seldom() -> None:
    async def main(desk: Desk) -> None:
        desk.is_wanted = False
        desk.watcher.wake()
        await desk.until(650)
        assert desk.whole == [0, 300.5, 601]
        assert {pods for _, pods in desk.gatherer.whole} == {False}
        assert desk.light == [60.5, 120.5, 180.5, 240.5, 361, 421, 481, 541]
        assert desk.changes == 3, "a light look publishes nothing"
        ownership = desk.watcher.ownership
        assert (ownership.is_asked, ownership.listed_usec, desk.blocked) == (False, 0, ())
        assert ownership.dressed(CARD, desk.loop.time()).protection is Protection.NOT_EVALUATED

    run(main)


def test_a_look_before_a_destruction_uses_nothing_that_was_read_before(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    class Remembering:
        def read(self, data: bytes, node: str) -> PodList:
            read.append("remembering")
            return parse_pod_list(data, node)

    def afresh(data: bytes, node: str) -> PodList:
        read.append("afresh")
        return parse_pod_list(data, node)

    monkeypatch.setattr(owners, "PodListReader", Remembering)
    monkeypatch.setattr(owners, "parse_pod_list", afresh)

    async def main(desk: Desk) -> None:
        desk.judge.asks_again = True
        desk.watcher.wake()
        await desk.until(70)
        assert read == ["remembering", "afresh", "remembering"]

    run(main)


def test_as_soon_as_it_matters_looks_are_whole_again() -> None:
    async def main(desk: Desk) -> None:
        desk.is_wanted = False
        desk.watcher.wake()
        await desk.until(90)
        desk.is_wanted = True
        await desk.until(130)
        assert (desk.whole, desk.light) == ([0, 120.5], [60.5])
        listed = desk.watcher.ownership.listed_usec
        assert listed == desk.clock.realtime_usec() - 9_000_000
        desk.is_wanted = False
        await desk.until(430)
        # The first look at which it does not matter any more is for the judge.
        assert (desk.whole, desk.light) == ([0, 120.5, 181], [60.5, 241.5, 301.5, 361.5, 421.5])
        assert [seen.is_asked for seen in desk.judge.seen] == [False, True, False]
        assert (desk.watcher.ownership.is_asked, desk.watcher.ownership.listed_usec) == (False, listed), "it is known when they were"

    run(main)


def test_a_list_that_did_not_come_is_not_called_listed_now() -> None:
    async def main(desk: Desk) -> None:
        desk.gatherer.change = lambda parts: replace(parts, pods=replace(parts.pods, status=0, body=b""))
        desk.watcher.wake()
        await desk.until(10)
        assert (desk.watcher.ownership.is_asked, desk.watcher.ownership.listed_usec) == (True, 0)
        assert Look.NO_ANSWER in desk.blocked

    run(main)


@pytest.mark.parametrize(("nudged", "looked"), [(1, 21), (10, 30), (39, 59), (41, 60.5), (60.4, 60.5)])
def test_an_event_brings_the_next_look_forward_after_some_time_and_never_puts_it_off(nudged: float, looked: float) -> None:
    async def main(desk: Desk) -> None:
        desk.watcher.wake()
        await desk.until(nudged)
        desk.watcher.nudge()
        await desk.until(100)
        assert desk.whole[:2] == [0, looked]

    run(main)


def test_many_events_are_one_look_and_the_first_of_them_counts() -> None:
    async def main(desk: Desk) -> None:
        desk.watcher.wake()
        for second in range(5, 25):
            await desk.until(second)
            desk.watcher.nudge()
        await desk.until(26)
        assert desk.whole == [0, 25]

    run(main)


def test_events_without_end_make_a_look_each_twenty_seconds_and_no_more() -> None:
    async def main(desk: Desk) -> None:
        desk.watcher.wake()
        for tenth in range(1000):
            await desk.until(tenth / 10)
            desk.watcher.nudge()
        assert all(later - earlier >= 20 for earlier, later in zip(desk.whole, desk.whole[1:], strict=False))
        assert len(desk.whole) >= 4

    run(main)


def test_however_soon_an_event_wants_a_look_the_api_server_gets_its_rest() -> None:
    async def main(desk: Desk) -> None:
        desk.watcher.wake()
        await desk.until(2)
        desk.watcher.nudge()
        await desk.until(40)
        desk.watcher.nudge()
        await desk.until(50)
        assert desk.whole == [0, 20, 41]

    run(main, pace=Pace(nudge_delay=1.0))


def test_who_asks_gets_a_look_at_once_and_so_many_and_no_more() -> None:
    async def main(desk: Desk) -> None:
        desk.watcher.wake()
        await desk.until(30)
        desk.watcher.nudge(asked=True)
        await desk.until(30.1)
        assert desk.whole == [0, 30]
        for tenth in range(302, 400):
            await desk.until(tenth / 10)
            desk.watcher.nudge(asked=True)
        assert all(later - earlier >= 2 for earlier, later in zip(desk.whole, desk.whole[1:], strict=False))
        assert desk.whole[:4] == [0, 30, 32, 34]

    run(main)


def test_an_event_does_not_put_off_what_an_administrator_asked_for() -> None:
    async def main(desk: Desk) -> None:
        desk.watcher.wake()
        await desk.until(0.7)
        desk.watcher.nudge(asked=True)
        await desk.until(1)
        desk.watcher.nudge()
        await desk.until(3)
        assert desk.whole == [0, 2]

    run(main)


def test_who_asks_gets_a_whole_look_also_where_it_does_not_matter() -> None:
    async def main(desk: Desk) -> None:
        desk.is_wanted = False
        desk.watcher.wake()
        await desk.until(10)
        desk.watcher.nudge()
        await desk.until(35)
        assert (desk.whole, desk.light) == ([0], [30]), "an event alone asks nobody"
        desk.watcher.nudge(asked=True)
        await desk.until(95.6)
        assert (desk.whole, desk.light) == ([0, 35], [30, 95.5])

    run(main)


def test_what_happens_during_a_look_asks_for_another_one() -> None:
    async def main(desk: Desk) -> None:
        desk.gatherer.takes = 10
        desk.watcher.wake()
        await desk.until(5)
        desk.watcher.nudge()
        await desk.until(28)
        assert desk.whole == [0, 25]
        desk.watcher.nudge(asked=True)
        await desk.until(36)
        assert desk.whole == [0, 25, 35], "at the end of that which is under way"
        await desk.until(94)
        assert desk.whole == [0, 25, 35], "and only once"

    run(main)


def test_a_look_that_takes_long_is_followed_by_the_next_at_once() -> None:
    async def main(desk: Desk) -> None:
        desk.gatherer.takes = 100
        desk.watcher.wake()
        await desk.until(250)
        assert desk.whole == [0, 100, 200]

    run(main)


# --- what goes wrong ------------------------------------------------------------------------------------------------------


def fail() -> None:
    raise RuntimeError("unexpected")


def test_a_look_that_breaks_off_makes_everything_unknown_and_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    async def main(desk: Desk) -> None:
        desk.watcher.wake()
        await desk.until(400)
        assert desk.blocked == ()
        assert desk.watcher.ownership.objection(CARD, desk.loop.time()) is None
        listed = desk.watcher.ownership.listed_usec
        desk.gatherer.does = fail
        await desk.until(430)
        ownership = desk.watcher.ownership
        assert Look.PART_MISSING in desk.blocked
        assert "RuntimeError" in ownership.blocked[0].sentence
        assert (ownership.is_asked, ownership.listed_usec) == (True, listed)
        assert ownership.dressed(CARD, desk.loop.time()).protection is Protection.UNKNOWN
        objection = ownership.objection(CARD, desk.loop.time())
        assert objection is not None
        assert objection[0] is Reason.VNPU_CLAIMS_UNKNOWN
        desk.gatherer.does = lambda: None
        await desk.until(490)
        assert desk.blocked == ("lease-not-yet-seen-renewed",), "and what was seen before is not forgotten: the kubelet is the same"
        await desk.until(550)
        assert desk.blocked == ()
        assert desk.watcher.awake

    with caplog.at_level(logging.ERROR):
        run(main)
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_a_fault_that_comes_again_at_each_look_is_told_once_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    def fail_elsewhere() -> None:
        raise KeyError("else\n")

    async def main(desk: Desk) -> None:
        desk.gatherer.does = fail
        desk.watcher.wake()
        await desk.until(1790)
        desk.gatherer.does = fail_elsewhere
        await desk.until(3590)
        desk.gatherer.does = lambda: None
        await desk.until(3500 + 3700)

    with caplog.at_level(logging.ERROR):
        run(main)
    assert [record.exc_info is not None for record in caplog.records] == [True, True, False, False]
    first, second = (record.getMessage() for record in caplog.records[2:])
    assert "RuntimeError at fail:" in first
    assert ", 29 more times; the last: " in first
    assert "KeyError at fail_elsewhere:" in second
    assert "\n" not in second


def test_how_the_watch_on_pods_does_can_be_asked() -> None:
    async def main(desk: Desk) -> None:
        assert desk.watcher.pod_watch is None
        desk.watcher.wake()
        await desk.until(10)
        assert desk.watcher.pod_watch is FakeWatch.made[-1]
        desk.is_wanted = False
        await desk.until(400)
        assert desk.watcher.pod_watch is None

    run(main)


def test_after_a_look_that_broke_off_the_next_is_a_whole_one_even_where_it_does_not_matter() -> None:
    async def main(desk: Desk) -> None:
        desk.is_wanted = False
        desk.gatherer.does = fail
        desk.watcher.wake()
        await desk.until(50)
        desk.gatherer.does = lambda: None
        await desk.until(130)
        assert (desk.whole, desk.light) == ([0, 60], [120.5])
        assert desk.blocked == ("kubelet-young",)
        desk.gatherer.does = fail
        await desk.until(181.5)
        assert Look.PART_MISSING in desk.blocked, "a light look may break off, too"
        desk.gatherer.does = lambda: None
        await desk.until(250)
        assert (desk.whole, desk.light) == ([0, 60, 240.5], [120.5, 180.5])

    run(main)


def test_a_host_that_was_suspended_begins_all_waiting_anew() -> None:
    async def main(desk: Desk) -> None:
        desk.watcher.wake()
        await desk.until(400)
        desk.clock.suspended = 1.0
        await desk.until(430)
        assert desk.blocked == (), "less than the clocks are worth"
        desk.clock.suspended += 3600
        await desk.until(490)
        assert desk.blocked == ("kubelet-young", "lease-not-yet-seen-renewed")
        snapshot = desk.watcher.ownership.snapshot
        assert snapshot is not None
        assert "resumed" in {reset.reason for reset in snapshot.resets}
        await desk.until(550)
        assert desk.blocked == ("kubelet-young",)
        snapshot = desk.watcher.ownership.snapshot
        assert snapshot is not None
        assert "resumed" not in {reset.reason for reset in snapshot.resets}, "once"

    run(main)


def test_a_suspension_outlives_a_look_that_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    true = take_snapshot
    broken = False

    def take(*arguments: Any, **more: Any) -> Any:
        if broken and arguments[2].node is not None:
            raise RuntimeError("unexpected")
        return true(*arguments, **more)

    monkeypatch.setattr(owners, "take_snapshot", take)

    async def main(desk: Desk) -> None:
        nonlocal broken
        desk.watcher.wake()
        await desk.until(400)
        desk.clock.suspended = 3600
        broken = True
        await desk.until(430)
        assert Look.PART_MISSING in desk.blocked
        broken = False
        await desk.until(490)
        assert "kubelet-young" in desk.blocked

    run(main)


# --- what is kept ---------------------------------------------------------------------------------------------------------


def test_each_look_is_kept_and_the_next_run_begins_with_it() -> None:
    keeping = FakeKeeping()

    async def first(desk: Desk) -> None:
        desk.gatherer.state = "05"
        desk.watcher.wake()
        await desk.until(1)
        assert keeping.kept.pods

    async def second(desk: Desk) -> None:
        desk.watcher.wake()
        await desk.until(400)
        claims = {claim.reason.value for card in desk.watcher.ownership.snapshot.cards for claim in card.claims}  # type: ignore[union-attr]
        assert claims == {"only-remembered"}

    run(first, keeping)
    run(second, keeping)


def test_a_light_look_remembers_who_was_given_what() -> None:
    async def main(desk: Desk) -> None:
        desk.is_wanted = False
        desk.watcher.wake()
        await desk.until(50)
        desk.gatherer.reading = checkpoint_of("01")
        await desk.until(62)
        given = {allocation.uid for allocation in allocations_of("01")}
        assert desk.keeping.kept.pods.keys() == given
        desk.gatherer.reading = checkpoint_of("00")
        await desk.until(121)
        desk.gatherer.reading = None
        await desk.until(181)
        desk.gatherer.reading = CheckpointReading(None)
        await desk.until(250)
        assert Look.PART_MISSING not in desk.blocked, "nor does a look break off for want of one"
        await desk.until(301.4)
        assert desk.keeping.kept.pods.keys() == given, "and none that is there no more is forgotten"
        desk.is_wanted = True
        await desk.until(362)
        assert desk.watcher.ownership.dressed(CARD, desk.loop.time()).claims, "they claim once it matters"

    run(main)


@pytest.mark.parametrize("error", [StateError("/var/lib/devward: No space left on device"), OSError(28, "full\n")])
def test_what_could_not_be_kept_makes_the_next_look_unknown_until_it_is_kept(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def main(desk: Desk) -> None:
        desk.watcher.wake()
        await desk.until(400)
        desk.keeping.fails = error
        await desk.until(430)
        assert desk.blocked == (), "this one was not known to be lost when it was published"
        for minute in (490, 550):
            await desk.until(minute)
            assert desk.blocked == (Look.MEMORY_UNSAVED,)
        assert [finding.code for finding in desk.watcher.ownership.findings] == [Reason.OWNERS_NOT_KEPT]
        assert desk.watcher.ownership.findings[0].text.isprintable()
        assert desk.watcher.ownership.objection(CARD, desk.loop.time()) is not None
        desk.keeping.fails = None
        await desk.until(610)
        assert desk.blocked == (Look.MEMORY_UNSAVED,)
        await desk.until(670)
        assert desk.blocked == ()

    with caplog.at_level(logging.WARNING):
        run(main)
    assert len(caplog.records) == 1, "it is said once"


def test_a_file_system_that_hangs_holds_up_the_next_look_for_a_while_only() -> None:
    async def main(desk: Desk) -> None:
        desk.watcher.wake()
        await desk.until(400)
        desk.saver.hangs = True
        await desk.until(550)
        assert desk.whole[-3:] == [423.5, 484, 544.5]
        assert desk.blocked == (Look.MEMORY_UNSAVED,)
        desk.saver.hangs = False
        await desk.until(670)
        assert desk.blocked == ()

    run(main)


def test_a_light_look_that_cannot_be_kept_is_told_at_the_next_whole_one() -> None:
    async def main(desk: Desk) -> None:
        desk.is_wanted = False
        desk.watcher.wake()
        await desk.until(100)
        desk.keeping.fails = StateError("full")
        await desk.until(310)
        assert desk.blocked == (Look.MEMORY_UNSAVED,)

    run(main)


def test_a_memory_that_is_lost_protects_for_as_long_as_a_pod_that_was_forgotten_would() -> None:
    keeping = FakeKeeping()
    keeping.kept = Recollection(loss=Loss("damaged"))

    async def main(desk: Desk) -> None:
        desk.watcher.wake()
        await desk.until(10)
        assert "node-uid-lost" in desk.blocked
        snapshot = desk.watcher.ownership.snapshot
        assert snapshot is not None
        desk.watcher.accept(snapshot.node_uid)
        await desk.until(370)
        assert desk.blocked == (Look.MEMORY_LOST,)
        await desk.until(890)
        assert desk.blocked == (Look.MEMORY_LOST,)
        await desk.until(1000)
        assert desk.blocked == ()
        assert keeping.kept.loss is None

    run(main, keeping)


def test_a_memory_that_hangs_is_read_later_and_not_written_over() -> None:
    async def main(desk: Desk) -> None:
        desk.keeping.kept = Recollection(BOOT_ID, None, {"old": Remembered(frozenset({0}))})
        desk.saver.hangs = True
        desk.watcher.wake()
        await desk.until(SAVE_SECONDS + 1)
        assert desk.whole == []
        assert Look.MEMORY_LOST in desk.blocked
        desk.saver.hangs = False
        await desk.until(200)
        assert desk.whole
        assert Look.MEMORY_LOST not in desk.blocked
        assert "old" in desk.keeping.kept.pods
        assert desk.keeping.kept.loss is None

    run(main)


def test_what_is_kept_of_another_boot_remembers_no_pods() -> None:
    keeping = FakeKeeping()
    keeping.kept = Recollection("another boot", None, {"old": Remembered(frozenset({0}))})

    async def main(desk: Desk) -> None:
        desk.is_wanted = False
        desk.gatherer.does = fail
        desk.gatherer.reading = checkpoint_of("01")
        desk.watcher.wake()
        await desk.until(30)
        desk.gatherer.does = lambda: None
        await desk.until(200)
        # The first look broke off: had a light one followed, its Pods would have been those of the other boot, and be forgotten with them.
        assert keeping.kept.boot_id == FACTS.boot_id
        assert keeping.kept.pods.keys() == {allocation.uid for allocation in allocations_of("01")}

    run(main, keeping)


# --- an administrator's word on the Node -----------------------------------------------------------------------------------


def test_a_node_that_was_accepted_is_this_hosts_from_the_next_look_on() -> None:
    def renamed(parts: Parts) -> Parts:
        body = parts.node.body
        uid = body.split(b'"uid":', 1)[1].split(b'"', 2)[1]
        return replace(parts, node=replace(parts.node, body=body.replace(uid, b"11111111-2222-4333-8444-555555555555")))

    async def main(desk: Desk) -> None:
        desk.watcher.wake()
        await desk.until(400)
        desk.gatherer.change = renamed
        await desk.until(430)
        assert "node-uid-changed" in desk.blocked
        desk.watcher.accept("another")
        await desk.until(440)
        assert "node-uid-changed" in desk.blocked
        desk.watcher.accept("11111111-2222-4333-8444-555555555555")
        await desk.until(441)
        snapshot = desk.watcher.ownership.snapshot
        assert snapshot is not None
        assert (desk.blocked, "node-adopted" in {reset.reason for reset in snapshot.resets}) == ((), True)
        await desk.until(530)
        assert desk.blocked == ()
        desk.gatherer.change = lambda parts: parts
        await desk.until(590)
        assert "node-uid-changed" in desk.blocked

    run(main)


def test_a_word_on_a_node_holds_for_once() -> None:
    accepted = b"11111111-2222-4333-8444-555555555555"
    kubelets = iter(range(900, 910))

    def of(uid: bytes, pid: int) -> Callable[[Parts], Parts]:
        def change(parts: Parts) -> Parts:
            known = parts.node.body.split(b'"uid":', 1)[1].split(b'"', 2)[1]
            scan = KubeletScan(replace(KUBELET, pid=pid))
            node = replace(parts.node, body=parts.node.body.replace(known, uid or known))
            return replace(parts, node=node, kubelet=replace(parts.kubelet, value=scan))

        return change

    async def main(desk: Desk) -> None:
        desk.watcher.wake()
        pid = next(kubelets)
        desk.gatherer.change = of(b"", pid)
        await desk.until(400)
        desk.watcher.accept(accepted.decode())
        desk.gatherer.change = of(accepted, pid)
        await desk.until(430)
        assert "node-uid-changed" not in desk.blocked
        # With a kubelet that was started anew the other one is this host's again, without a word.
        pid = next(kubelets)
        desk.gatherer.change = of(b"", pid)
        await desk.until(900)
        assert "node-uid-changed" not in desk.blocked
        desk.gatherer.change = of(accepted, pid)
        await desk.until(970)
        assert "node-uid-changed" in desk.blocked

    run(main)


# --- the watch ------------------------------------------------------------------------------------------------------------


def test_there_is_a_watch_exactly_while_it_matters() -> None:
    async def main(desk: Desk) -> None:
        desk.is_wanted = False
        desk.watcher.wake()
        await desk.until(10)
        assert FakeWatch.made == []
        desk.is_wanted = True
        await desk.until(130)
        (watch,) = FakeWatch.made
        assert watch.runs
        assert watch.target == (SETTINGS, FACTS.node_name)
        watch.nudge()
        await desk.until(151)
        assert desk.whole == [0, 60.5, 121, 150]
        desk.is_wanted = False
        await desk.until(500)
        assert not watch.runs
        desk.is_wanted = True
        await desk.until(600)
        assert [one.runs for one in FakeWatch.made] == [False, True]

    run(main)


@pytest.mark.parametrize("what", ["settings", "node"])
def test_a_watch_on_what_is_no_more_is_replaced(what: str) -> None:
    async def main(desk: Desk) -> None:
        desk.watcher.wake()
        await desk.until(130)
        assert [watch.runs for watch in FakeWatch.made] == [True]
        if what == "settings":
            desk.gatherer.settings = replace(SETTINGS, allow_exec=True)
        else:
            desk.gatherer.facts = replace(FACTS, node_name="other")
        await desk.until(190)
        assert [watch.runs for watch in FakeWatch.made] == [False, True]
        assert not FakeWatch.made[1].overlaps, "it begins when the other has ended"
        assert FakeWatch.made[1].target == (desk.gatherer.settings, desk.gatherer.facts.node_name)

    run(main)


@pytest.mark.parametrize(("settings", "name"), [(None, "lab"), (SETTINGS, "")])
def test_without_a_server_or_a_name_there_is_nothing_to_watch(settings: ApiSettings | None, name: str) -> None:
    async def main(desk: Desk) -> None:
        desk.watcher.wake()
        await desk.until(10)
        assert [watch.runs for watch in FakeWatch.made] == [True]
        desk.gatherer.settings, desk.gatherer.facts = settings, HostFacts(name, FACTS.boot_id, FACTS.machine_ids)
        await desk.until(70)
        assert [watch.runs for watch in FakeWatch.made] == [False]

    run(main)


# --- the end ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 0.2, 0.5, 0.6, 30, 60, 60.3])
@pytest.mark.parametrize("hangs", [False, True])
def test_it_ends_at_once_whatever_is_under_way_and_may_go_on(at: float, hangs: bool) -> None:
    async def main(desk: Desk) -> None:
        desk.saver.hangs = hangs
        desk.watcher.wake()
        await desk.until(at)
        before = desk.loop.time()
        await desk.watcher.close()
        assert desk.loop.time() == before
        assert not desk.watcher.awake
        assert desk.watcher.next_look_in is None
        assert desk.gatherer.closed == 1
        assert not any(watch.runs for watch in FakeWatch.made)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        looks = len(desk.whole)
        desk.watcher.nudge(asked=True)
        await desk.until(at + 500)
        assert len(desk.whole) == looks
        desk.saver.hangs = False
        desk.watcher.wake()
        await desk.until(at + 520)
        assert len(desk.whole) == looks + 1
        assert desk.watcher.awake
        assert any(watch.runs for watch in FakeWatch.made)

    run(main)


def test_what_is_closed_before_it_began_is_closed() -> None:
    async def main(desk: Desk) -> None:
        await desk.watcher.close()
        assert desk.gatherer.closed == 1

    run(main)


def test_what_is_forgotten_is_not_published_and_protects_all_the_same_later() -> None:
    async def main(desk: Desk) -> None:
        desk.gatherer.state = "05"
        desk.watcher.wake()
        await desk.until(10)
        assert desk.watcher.ownership.snapshot is not None
        await desk.watcher.close()
        desk.watcher.forget()
        assert desk.watcher.ownership == Ownership()
        assert desk.changes == 2
        desk.gatherer.state = "00"
        desk.watcher.wake()
        await desk.until(20)
        assert desk.watcher.ownership.dressed(CARD, desk.loop.time()).claims

    run(main)


def test_what_goes_with_a_look_is_published_with_it() -> None:
    async def main(desk: Desk) -> None:
        desk.gatherer.certificate = Certificate("system:node:lab", 1, 2)
        desk.gatherer.warning = "It expires."
        desk.watcher.wake()
        await desk.until(10)
        ownership = desk.watcher.ownership
        assert (ownership.certificate_expires_usec, ownership.certificate_warning) == (2, "It expires.")
        assert not ownership.is_without_kubelet
        desk.gatherer.is_without_kubelet = True
        desk.watcher.nudge(asked=True)
        await desk.until(11)
        assert desk.watcher.ownership.is_without_kubelet
        assert (ownership.sights, ownership.host) == ({"v0100": SIGHT}, {"bundles": SourceSight(SourceState.READ)})
        assert ownership.snapshot is not None
        assert ownership.snapshot.at == desk.loop.time() - 10.5

    run(main)
