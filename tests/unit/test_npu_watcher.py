"""When NPUs are looked at: at events, once a minute, not more than once a second, and not at all where there are none."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from devward.devices.monitor import DeviceEvent
from devward.model import Trigger
from devward.npu import watcher as room
from devward.npu.facts import Inventory
from devward.npu.host import HostNode
from devward.npu.inventory import Picture, Unavailable
from devward.npu.watcher import LEAST_AWAITED, LEAST_INTERVAL, LOOK_INTERVAL, SETTLE_INTERVAL, NpuWatcher, Paths
from devward.reasons import Reason
from devward.worker import WorkerHung
from sim.npu_host import BOOT, chip, inventory, node_names, nodes
from sim.virtual_time import VirtualClock, VirtualTimeLoop, run_virtual

SAID = inventory(chip(0, 100), recover=None)
SILENT = Unavailable(Reason.NPU_BROKER_SILENT, "no answer")


class FakeMonitor:
    """In the udev monitor's place."""

    def __init__(
        self, subsystems: tuple[str, ...], *, on_event: Callable[[DeviceEvent], None], on_overflow: Callable[[], None], control_socket: str
    ) -> None:
        assert subsystems == (), "of any subsystem"
        assert control_socket
        self.on_event = on_event
        self.on_overflow = on_overflow
        self.source = ""
        self.failure: OSError | None = None
        #: Events that wait to be read, and whether all of them can be.
        self.waiting: list[DeviceEvent] = []
        self.is_drained = True

    def drain(self) -> bool:
        waiting, self.waiting = self.waiting, []
        for event in waiting:
            self.on_event(event)
        return self.is_drained and bool(self.source)

    def start(self) -> None:
        self.source = ""
        if self.failure is not None:
            raise self.failure
        self.source = "udev"

    def stop(self) -> None:
        self.source = ""

    def source_changed(self) -> bool:
        return self.source != "udev"


class FakeClient:
    """Answers what the test says, after as long as it says."""

    def __init__(self) -> None:
        self.answer: Inventory | Unavailable | Exception = SAID
        self.seconds = 0.0
        self.failed = False
        self.pause = 0.0
        self.asked: list[tuple[float, bool]] = []

    async def list(self, *, urgent: bool) -> Inventory | Unavailable:
        self.asked.append((asyncio.get_running_loop().time(), urgent))
        await asyncio.sleep(self.seconds)
        self.failed = isinstance(self.answer, Unavailable)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class FakeWorker:
    """Runs calls at once."""

    def __init__(self) -> None:
        self.hung = False

    async def run(self, call: Callable[[], Any], deadline: float) -> Any:
        assert deadline > 0
        if self.hung:
            raise WorkerHung("the file system did not answer")
        return call()


class Bench:
    """A watcher with everything around it."""

    def __init__(self, loop: VirtualTimeLoop, root: Path) -> None:
        self.client = FakeClient()
        self.worker = FakeWorker()
        self.nodes: dict[str, HostNode] = nodes(node_names(SAID))
        self.changes: list[tuple[Picture, Picture, Trigger]] = []
        self.lost = 0
        self.watcher = NpuWatcher(
            self.client,  # type: ignore[arg-type]
            self.worker,  # type: ignore[arg-type]
            clock=VirtualClock(loop),
            on_change=lambda *change: self.changes.append(change),
            on_lost_events=self._lose,
            has_pins=lambda: False,
            paths=Paths(records=str(root / "vnpu.cfg")),
        )
        monitor = self.watcher._monitor
        assert isinstance(monitor, FakeMonitor)
        self.monitor = monitor

    def _lose(self) -> None:
        self.lost += 1

    def emit(self, action: str, name: str, subsystem: str = "cuse") -> None:
        self.monitor.on_event(DeviceEvent(action, subsystem, name, ""))

    @property
    def identity(self) -> str:
        return self.watcher.picture.vnpus[0].identity

    async def settle(self) -> None:
        """Let what was asked for be done, and count from here."""
        await asyncio.sleep(10)
        self.client.asked.clear()
        self.changes.clear()


Scene = Callable[[Bench], Coroutine[Any, Any, None]]
Play = Callable[[Scene], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Return what runs a scene over a watcher that was woken, closes it, and sees that nothing of it is left."""
    monkeypatch.setattr(room, "UdevMonitor", FakeMonitor)
    monkeypatch.setattr(room, "read_boot_id", lambda: BOOT)

    def run(scene: Scene) -> None:
        async def main(loop: VirtualTimeLoop) -> None:
            bench = Bench(loop, tmp_path)
            monkeypatch.setattr(room, "read_nodes", lambda *_: dict(bench.nodes))
            bench.watcher.wake(Trigger.STARTUP)
            await bench.settle()
            await scene(bench)
            await bench.watcher.close()
            assert loop.timers == 0
            assert bench.monitor.source == ""

        run_virtual(main)

    return run


def test_a_look_is_published_once_and_again_where_it_changed(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        assert [view.name for view in bench.watcher.picture.cards] == ["p000"]
        assert bench.watcher.host["mode"] == "docker"
        await asyncio.sleep(3 * LOOK_INTERVAL)
        assert len(bench.client.asked) == 3
        assert bench.changes == []
        bench.client.answer = inventory(chip(0, 100, health=1), recover=None)
        await asyncio.sleep(LOOK_INTERVAL)
        ((before, after, trigger),) = bench.changes
        assert (before.cards[0].reason, after.cards[0].reason, trigger) == (Reason.OK, Reason.NPU_UNHEALTHY, Trigger.TIMER)

    play(scene)


def test_the_sequence_of_a_vnpu_grows_with_each_event_by_which_it_may_be_another_one(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        watcher = bench.watcher
        begun = watcher.sequence(100)
        assert begun is not None
        assert watcher.sequence(100) == begun
        for action in ("change", "bind"):
            bench.emit(action, "vdavinci100")
        bench.emit("remove", "vdavinci101")
        assert watcher.sequence(100) == begun, "of another one, and what changes nothing"
        bench.monitor.waiting = [DeviceEvent(action, "cuse", "vdavinci100", "") for action in ("remove", "add", "move")]
        assert watcher.sequence(100) == begun + 3, "those that wait are read first"
        bench.monitor.on_overflow()
        assert watcher.sequence(100) == begun + 4, "what was lost may have been its own"

    play(scene)


def test_where_events_are_not_heard_no_sequence_is_known(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        watcher = bench.watcher
        begun = watcher.sequence(100)
        assert begun is not None
        bench.monitor.is_drained = False
        assert watcher.sequence(100) is None, "there may be more"
        bench.monitor.is_drained = True
        bench.monitor.failure = OSError("made up")
        bench.monitor.source = "kernel"
        watcher.wake(Trigger.DBUS)
        await asyncio.sleep(5)
        assert watcher.sequence(100) is None
        bench.monitor.source = "udev"
        assert watcher.sequence(100) is None, "not before it listens again"
        bench.monitor.failure, bench.monitor.source = None, ""
        watcher.wake(Trigger.DBUS)
        await asyncio.sleep(5)
        after = watcher.sequence(100)
        assert after is not None
        assert after > begun, "what came meanwhile was not heard"

    play(scene)


def test_a_watcher_that_rests_knows_no_sequence(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        bench.client.answer, bench.nodes = inventory(), {}
        bench.watcher.wake(Trigger.UDEV)
        await asyncio.sleep(5)
        assert not bench.watcher.awake
        assert bench.watcher.sequence(100) is None

    play(scene)


def test_a_burst_of_events_is_one_look_and_a_storm_is_one_a_second(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        for _ in range(100):
            bench.emit("add", "vdavinci101")
        await asyncio.sleep(1)
        assert len(bench.client.asked) == 1
        await bench.settle()
        for _ in range(1000):
            bench.emit("change", "vdavinci101")
            await asyncio.sleep(0.01)
        assert len(bench.client.asked) <= 10
        times = [when for when, _ in bench.client.asked]
        assert all(later - sooner >= LEAST_INTERVAL for sooner, later in pairwise(times))

    play(scene)


def test_an_event_during_a_look_gives_another_one(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        bench.client.seconds = 5
        bench.watcher.wake(Trigger.INOTIFY)
        await asyncio.sleep(2)
        bench.emit("add", "vdavinci101")
        await asyncio.sleep(5)
        assert len(bench.client.asked) == 2

    play(scene)


@pytest.mark.parametrize("name", ["kvm", "sda", "davinciX", ""])
def test_events_of_others_cost_no_look(play: Play, name: str) -> None:
    async def scene(bench: Bench) -> None:
        bench.emit("add", name)
        await asyncio.sleep(5)
        assert bench.client.asked == []

    play(scene)


@pytest.mark.parametrize(("actions", "is_new"), [(["add"], True), (["remove", "add"], True), (["remove"], True), (["change"], False)])
def test_a_node_that_came_or_went_in_between_makes_its_vnpu_another(play: Play, actions: list[str], is_new: bool) -> None:
    async def scene(bench: Bench) -> None:
        before = bench.identity
        for action in actions:
            bench.emit(action, "vdavinci100")
        await bench.settle()
        assert (bench.identity != before) is is_new
        known = bench.identity
        bench.emit("add", "vdavinci101")
        await bench.settle()
        assert bench.identity == known

    play(scene)


def test_lost_events_make_every_vnpu_another(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        before = bench.identity
        bench.monitor.on_overflow()
        await bench.settle()
        assert bench.identity != before
        assert bench.lost == 1

    play(scene)


def test_a_listener_that_is_lost_makes_every_vnpu_another_once_when_it_goes_and_once_when_it_is_back(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        seen = [bench.identity]
        bench.monitor.failure = OSError(24, "Too many open files")
        bench.monitor.source = ""
        for _ in range(3):
            await asyncio.sleep(LOOK_INTERVAL)
            seen.append(bench.identity)
        assert seen[0] != seen[1] == seen[2] == seen[3]
        bench.monitor.failure = None
        await asyncio.sleep(LOOK_INTERVAL)
        assert bench.identity != seen[3]

    play(scene)


def test_the_broker_is_asked_again_when_its_pause_is_over(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        bench.client.answer, bench.client.pause = SILENT, 4.0
        bench.watcher.wake(Trigger.DBUS, urgent=True)
        await asyncio.sleep(2)
        assert bench.client.asked[0][1] is True
        assert bench.watcher.picture.cards[0].reason is Reason.NPU_BROKER_SILENT
        bench.client.answer, bench.client.pause = SAID, 0.0
        await asyncio.sleep(6)
        assert bench.client.asked[1][1] is False
        assert bench.watcher.picture.cards[0].reason is Reason.OK

    play(scene)


def test_a_failure_that_took_longer_than_its_pause_is_not_waited_out_for_a_minute(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        bench.client.answer, bench.client.seconds = SILENT, 10.0
        bench.watcher.wake(Trigger.INOTIFY)
        await asyncio.sleep(10.5)
        assert bench.watcher.picture.cards[0].reason is Reason.NPU_BROKER_SILENT
        bench.client.answer, bench.client.seconds = SAID, 0.0
        await asyncio.sleep(10)
        assert bench.watcher.picture.cards[0].reason is Reason.OK

    play(scene)


def test_what_may_be_on_its_way_is_looked_at_again_soon(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        del bench.nodes["vdavinci100"]
        bench.watcher.wake(Trigger.INOTIFY)
        await asyncio.sleep(1)
        assert bench.watcher.picture.vnpus[0].reason is Reason.NPU_NODE_MISSING
        assert bench.watcher.picture.findings == ()
        await asyncio.sleep(SETTLE_INTERVAL + 2)
        assert [finding.code for finding in bench.watcher.picture.findings] == [Reason.NPU_NODE_MISSING]
        await bench.settle()
        await asyncio.sleep(LOOK_INTERVAL / 2)
        assert bench.client.asked == [], "then it is settled"

    play(scene)


def test_another_boot_is_none_of_ours(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        bench.client.answer = replace(SAID, boot_id=BOOT.replace("6", "5"))
        await asyncio.sleep(LOOK_INTERVAL)
        assert bench.watcher.picture.cards[0].reason is Reason.NPU_BROKER_GARBLED

    play(scene)


def test_nodes_that_cannot_be_read_in_time_are_unknown(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        before = bench.identity
        bench.worker.hung = True
        await asyncio.sleep(LOOK_INTERVAL)
        assert bench.watcher.picture.cards[0].reason is Reason.NPU_NODES_UNREADABLE
        assert bench.identity == before
        bench.worker.hung = False
        await asyncio.sleep(LOOK_INTERVAL)
        assert bench.watcher.picture.cards[0].reason is Reason.OK

    play(scene)


def test_nodes_that_cannot_be_read_at_all_are_unknown(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(bench: Bench) -> None:
        def fail(*_: str) -> dict[str, HostNode]:
            raise PermissionError(13, "Permission denied", "/dev")

        monkeypatch.setattr(room, "read_nodes", fail)
        await asyncio.sleep(LOOK_INTERVAL)
        assert bench.watcher.picture.cards[0].reason is Reason.NPU_NODES_UNREADABLE
        assert "/dev: Permission denied" in bench.watcher.picture.cards[0].text

    play(scene)


def test_a_look_that_breaks_off_vouches_for_nothing_and_the_next_one_comes(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        bench.client.answer = RuntimeError("a defect")
        await asyncio.sleep(LOOK_INTERVAL)
        assert bench.watcher.picture.cards[0].reason is Reason.NPU_LIST_INCOMPLETE
        assert bench.watcher.picture.vnpus[0].reason is Reason.NPU_LIST_INCOMPLETE
        bench.client.answer = SAID
        await asyncio.sleep(LOOK_INTERVAL)
        assert bench.watcher.picture.cards[0].reason is Reason.OK

    play(scene)


GONE = inventory(recover=None)


@pytest.mark.parametrize("answer", [GONE, Unavailable(Reason.NPU_LIBRARY_UNUSABLE, "not installed", is_absent=True)])
def test_without_nodes_and_npus_it_rests_until_it_is_woken(play: Play, answer: Inventory | Unavailable) -> None:
    async def scene(bench: Bench) -> None:
        bench.nodes.clear()
        bench.client.answer = answer
        bench.watcher.wake(Trigger.INOTIFY)
        await bench.settle()
        assert not bench.watcher.awake
        assert bench.watcher.picture == Picture()
        assert asyncio.get_running_loop().timers == 0  # type: ignore[attr-defined]
        assert bench.monitor.source == ""
        await asyncio.sleep(10 * LOOK_INTERVAL)
        assert bench.client.asked == []
        bench.nodes.update(nodes(node_names(SAID)))
        bench.client.answer = SAID
        bench.watcher.wake(Trigger.INOTIFY)
        await bench.settle()
        assert [view.name for view in bench.watcher.picture.cards] == ["p000"]

    play(scene)


def test_a_node_that_came_and_went_where_nobody_could_be_asked_leaves_nothing_to_do(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        bench.client.answer = GONE
        await asyncio.sleep(LOOK_INTERVAL)
        bench.client.answer = SILENT
        await asyncio.sleep(LOOK_INTERVAL)
        assert bench.watcher.awake
        assert [finding.code for finding in bench.watcher.picture.findings] == [Reason.NPU_BROKER_SILENT]
        bench.nodes.clear()
        bench.watcher.wake(Trigger.INOTIFY)
        await bench.settle()
        assert not bench.watcher.awake
        assert bench.watcher.picture == Picture()

    play(scene)


@pytest.mark.parametrize("left", ["nodes", "cards", "doubt"])
def test_it_does_not_rest_while_anything_is_left(play: Play, left: str) -> None:
    async def scene(bench: Bench) -> None:
        if left != "nodes":
            bench.nodes.clear()
        bench.client.answer = {"nodes": GONE, "cards": SAID, "doubt": SILENT}[left]
        bench.watcher.wake(Trigger.INOTIFY)
        await bench.settle()
        assert bench.watcher.awake

    play(scene)


def test_closing_waits_for_nothing(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        bench.client.seconds = 1e9
        bench.watcher.wake(Trigger.DBUS)
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        await bench.watcher.close()
        assert asyncio.get_running_loop().time() == began

    play(scene)


# --- somebody waits --------------------------------------------------------------------------------------------------------
def test_whoever_waits_gets_a_look_that_began_after_they_asked(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        bench.client.seconds = 5
        bench.watcher.wake(Trigger.INOTIFY)
        await asyncio.sleep(2)
        (under_way,) = [when for when, _ in bench.client.asked]
        asked = loop.time()
        await bench.watcher.fresh()
        assert [when > asked for when, _ in bench.client.asked] == [False, True]
        assert loop.time() >= under_way + 10, "the look under way says nothing of what came later"

    play(scene)


def test_whoever_waits_is_not_held_up_by_what_spaces_looks_out(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(5):
            began = loop.time()
            await bench.watcher.fresh()
            assert loop.time() - began <= LEAST_AWAITED + 0.01
        times = [when for when, _ in bench.client.asked]
        assert all(later - sooner >= LEAST_AWAITED - 0.001 for sooner, later in pairwise(times)), "however many ask, one after the other"

    play(scene)


def test_a_look_that_somebody_waits_for_asks_the_broker_although_it_failed(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        await bench.watcher.fresh()
        assert [urgent for _, urgent in bench.client.asked] == [True]

    play(scene)


def test_those_who_wait_together_share_a_look(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        await asyncio.gather(*(bench.watcher.fresh() for _ in range(100)))
        assert len(bench.client.asked) == 1
        # A flood of events must not hide behind somebody who waits: without one the looks are a second apart again.
        for _ in range(100):
            bench.emit("change", "vdavinci101")
            await asyncio.sleep(0.05)
        times = [when for when, _ in bench.client.asked][1:]
        assert all(later - sooner >= LEAST_INTERVAL - 0.001 for sooner, later in pairwise(times))

    play(scene)


def test_nobody_waits_for_a_watcher_that_rests_or_ends(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        bench.client.seconds = 5
        waiting = asyncio.ensure_future(bench.watcher.fresh())
        await asyncio.sleep(1)
        late = asyncio.ensure_future(bench.watcher.fresh())
        await asyncio.sleep(1)
        await bench.watcher.close()
        await asyncio.gather(waiting, late)
        await bench.watcher.fresh()
        assert len(bench.client.asked) == 1

    play(scene)


def test_a_look_that_breaks_off_lets_those_go_that_wait(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        bench.client.answer = ValueError("x")  # type: ignore[assignment]
        await bench.watcher.fresh()
        assert bench.watcher.picture.in_doubt

    play(scene)
