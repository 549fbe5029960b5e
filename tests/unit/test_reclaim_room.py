"""Reclaiming for the rest of the daemon: what is loaded, shown, kept from whom, on record, and what administrators get for an answer."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from devward import names
from devward.cluster.claimants import Claimant
from devward.config import ReclaimConfig
from devward.errors import NoSuchVnpu
from devward.metrics import ReclaimMeasures
from devward.model import ActionRequest, ActionResult, Caller, Outcome, ReclaimMode, ReclaimState, Trigger
from devward.npu.client import Unasked
from devward.npu.facts import Outcome as Came
from devward.npu.facts import Refusal
from devward.npu.inventory import Unavailable
from devward.npu.protocol import DestroyAnswer, RefusedAnswer
from devward.npu.room import NpuRoom
from devward.npu.views import Use, VnpuView
from devward.reasons import Reason
from devward.reclaim import actions
from devward.reclaim import room as module
from devward.reclaim.contract import Refuse
from devward.reclaim.controls import BLOCKED_TEXT, Blocked, Permission, Switch
from devward.reclaim.limits import Breaker, Spent
from devward.reclaim.look import VnpuFacts
from devward.reclaim.reconciler import Reconciler
from devward.reclaim.room import ReclaimRoom
from devward.remembered import Remembered
from devward.state import State
from devward.worker import Worker, WorkerHung
from sim.catalog import entries
from sim.reclaim_desk import card_of, claim, claimed, expected_of, unknown, vnpu_of
from sim.reclaim_warden import Scene, World, use, view_of
from sim.virtual_time import VirtualTimeLoop, run_virtual

ONE, TWO = vnpu_of(100), vnpu_of(101)


class InlineWorker:
    """Runs calls at once, or hangs."""

    hangs = False

    def __init__(self, *_: object) -> None:
        pass

    async def run(self, call: Callable[[], Any], _seconds: float) -> Any:
        if InlineWorker.hangs:
            raise WorkerHung("made up to hang")
        return call()

    def close(self) -> None:
        pass


class Store:
    def save(self, _: State) -> bool:
        return True

    def backup(self, name: str, _data: bytes) -> str:
        raise AssertionError(name)


class Npus:
    """In the place of the NPUs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.answer: Any = DestroyAnswer(1, Came.DESTROYED, 0, "gone")

        self.broker_may_run = False

    def destroy_may_run(self) -> bool:
        return self.broker_may_run

    def vnpus(self) -> list[VnpuView]:
        return list(map(view_of, self._world.vnpus))

    def sequence(self, _: int) -> int:
        return 0

    async def destroy(self, expected: Any, _runtime: str, _request: str, last_word: Any) -> Any:
        if against := await last_word():
            return Unasked(Reason.RECLAIM_BLOCKED, against)
        if isinstance(self.answer, DestroyAnswer) and self.answer.outcome is Came.DESTROYED:
            self._world.vnpus = tuple(one for one in self._world.vnpus if one.vdev != expected.vdev)
        return self.answer


class Desk:
    """A room, and looks for it."""

    def __init__(self, loop: VirtualTimeLoop, directory: Path, world: World, **more: Any) -> None:
        self.directory = directory
        (directory / "state").mkdir(mode=0o700, exist_ok=True)
        self.scene = Scene(loop, directory, world)
        self.world, self.npus = world, Npus(world)
        self.switch = directory / "reclaim.disabled"
        self.wanted, self.looks = asyncio.Event(), True
        self.told: list[tuple[int, int, str, str]] = []
        self.changes = 0
        self.remembered = Remembered(State(), Store(), cast(Worker, InlineWorker()))
        self._more = more
        self.room = self.started()

    def started(self) -> ReclaimRoom:
        """Return a room as after a start of the daemon."""
        self.room = ReclaimRoom(
            replace(ReclaimConfig(kill_switch=str(self.switch)), **self._more.get("config", {})),
            cast(NpuRoom, self.npus),
            remembered=self.remembered,
            state_directory=str(self.directory / "state"),
            audit=self.scene.audit,
            clock=self.scene.clock,
            new_id=lambda: "own",
            no_reclaim=self._more.get("no_reclaim", False),
            pins=lambda: None,
            look=self._look,
            on_change=self._changed,
            on_reclaimed=lambda *told: self.told.append(told),
        )
        return self.room

    def _look(self) -> bool:
        self.wanted.set()
        return self.looks

    def _changed(self) -> None:
        self.changes += 1

    @property
    def file(self) -> Path:
        return self.directory / "state" / names.RECLAIM_FILE

    @property
    def reconciler(self) -> Reconciler:
        return cast(Reconciler, self.room.judge())

    async def look(self, after: float = 60.0) -> None:
        await asyncio.sleep(after)
        await self.reconciler.take(self.scene.seen(), self.scene.again)

    async def wait(self, looks: int = 10) -> None:
        for _ in range(looks):
            await self.look()

    async def serve(self) -> None:
        """Look whenever an administrator wants it."""
        while True:
            await self.wanted.wait()
            self.wanted.clear()
            await self.look(2)

    async def acted(self, act: Coroutine[Any, Any, tuple[ActionResult, ...]]) -> list[tuple[Outcome, str]]:
        serving = asyncio.ensure_future(self.serve())
        try:
            return [(one.outcome, str(one.reason)) for one in await act]
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


Play = Callable[..., None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setattr(module, "Worker", InlineWorker)
    monkeypatch.setattr(InlineWorker, "hangs", False)

    def played(test: Callable[[Desk], Coroutine[Any, Any, None]], *vnpus: VnpuFacts, **more: Any) -> None:
        async def main(loop: VirtualTimeLoop) -> None:
            desk = Desk(loop, tmp_path, World(vnpus=vnpus or (ONE,)), **more)
            try:
                await test(desk)
            finally:
                desk.room.close()
                desk.scene.close()

        run_virtual(main)

    return played


def request(number: int = 1) -> ActionRequest:
    return ActionRequest(f"request-{number}", Caller(":1.7", 0, 77), Trigger.DBUS)


# --- what is loaded -------------------------------------------------------------------------------------------------------
def test_the_daemon_loads_nothing_of_reclaiming_before_there_are_npus() -> None:
    program = (
        "import sys, json; import devward.app; print(json.dumps([name for name in sys.modules if name.startswith('devward.reclaim')]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert set(json.loads(done.stdout)) == {f"devward.reclaim{name}" for name in ("", ".room", ".actions", ".safekeeping", ".statetrail")}


@pytest.mark.parametrize(
    ("mode", "state"),
    [
        (ReclaimMode.ENFORCE, ReclaimState.ENFORCING),
        (ReclaimMode.OBSERVE, ReclaimState.OBSERVING),
        (ReclaimMode.OFF, ReclaimState.OFF),
    ],
)
def test_before_any_look_there_is_little_to_show(play: Play, mode: ReclaimMode, state: ReclaimState) -> None:
    async def test(desk: Desk) -> None:
        room = desk.room
        assert (room.mode, room.state, room.blocked, room.findings()) == (mode, state, (), ())
        assert room.explain("v0100", full=True) == {"evidence": None, "blocked": []}
        shown = room.judged(desk.npus.vnpus())
        assert [(one.verdict.value, one.verdict_reason) for one in shown] == [("unknown", "not-evaluated")]
        not_judged = [(Outcome.FAILURE, "not-evaluated")]
        assert await desk.acted(room.actions.reclaim_orphans(request(), dry_run=False, shorten=False)) == not_judged
        assert await desk.acted(room.actions.reclaim_vnpu(request(), 100, ONE.identity, dry_run=False, shorten=False)) == [
            (Outcome.FAILURE, "not-evaluated")
        ]
        assert await desk.acted(room.actions.release_breaker(request())) == [(Outcome.FAILURE, "not-evaluated")]
        await room.finish()

    play(test, config={"mode": mode})


# --- what stops it --------------------------------------------------------------------------------------------------------
def test_whatever_bears_the_name_of_the_kill_switch_sets_it(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        assert await desk.room.switch() is Switch.ABSENT
        desk.switch.symlink_to("nothing")
        assert await desk.room.switch() is Switch.PRESENT
        desk.switch.unlink()
        desk.switch.mkdir()
        assert await desk.room.switch() is Switch.PRESENT
        monkeypatch.setattr(InlineWorker, "hangs", True)
        assert await desk.room.switch() is Switch.UNREADABLE

    play(test)


def test_a_kill_switch_that_cannot_be_looked_at_stops_all(play: Play, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def test(desk: Desk) -> None:
        assert await desk.room.switch() is Switch.UNREADABLE

    play(test, config={"kill_switch": str(tmp_path / "file" / "reclaim.disabled")})


def test_no_reclaim_of_the_command_line_and_a_mode_that_was_set_are_heeded(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.wait(13)
        assert desk.told == []
        assert [code for code, _ in desk.room.blocked] == ["no-reclaim"]
        await desk.room.actions.set_mode(request(), ReclaimMode.OFF)
        assert desk.room.state is ReclaimState.OFF, "at once"

    play(test, no_reclaim=True)


def test_once_it_stops_nothing_is_destroyed_any_more(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.wait(10)
        await desk.room.finish()
        await desk.wait(3)
        assert desk.told == []
        assert [code for code, _ in desk.room.blocked] == ["stopping"]

    play(test)


def test_stopping_waits_for_a_destruction_that_is_under_way(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        cycle = await destroying(desk, monkeypatch, GONE)
        await desk.room.finish()
        assert desk.scene.outcomes()[-1] == ("success", "")
        await cycle

    play(test)


async def destroying(desk: Desk, monkeypatch: pytest.MonkeyPatch, answer: Any) -> "asyncio.Future[None]":
    """Return a cycle in which the broker is destroying vNPU 100; it answers after 30 s."""
    await desk.wait(10)
    begun = asyncio.Event()

    async def slow(_expected: Any, _runtime: str, _request: str, last_word: Any) -> Any:
        if against := await last_word():
            return Unasked(Reason.RECLAIM_BLOCKED, against)
        begun.set()
        await asyncio.sleep(30)
        return answer

    monkeypatch.setattr(desk.npus, "destroy", slow)
    cycle = asyncio.ensure_future(desk.look())
    await begun.wait()
    return cycle


OWN = expected_of(100)
PINS = {"itself": f"{OWN.die}/100/{OWN.template}", "its card": OWN.die}
OTHER = f"{OWN.die}/101/{OWN.template}"
GONE, THERE = DestroyAnswer(1, Came.DESTROYED, 0, "gone"), DestroyAnswer(1, Came.STILL_PRESENT, -8007, "there")
NOT_TOLD = DestroyAnswer(1, Came.UNKNOWN, -8007, "not known")


@pytest.mark.parametrize("target", PINS.values(), ids=PINS)
@pytest.mark.parametrize(
    ("answer", "late"),
    [
        (GONE, Reason.VNPU_DESTROYED),
        (THERE, Reason.OK),
        (NOT_TOLD, Reason.DESTRUCTION_BEGUN),
        (RefusedAnswer(1, Refusal.SCAN_IN_USE, "held"), Reason.OK),
        (Unavailable(Reason.NPU_BROKER_SILENT, "no answer"), Reason.DESTRUCTION_BEGUN),
    ],
    ids=["gone", "there", "unknown", "refused", "silent"],
)
def test_a_pin_waits_for_the_destruction_that_it_came_too_late_for(
    play: Play, monkeypatch: pytest.MonkeyPatch, target: str, answer: Any, late: Reason
) -> None:
    async def test(desk: Desk) -> None:
        cycle = await destroying(desk, monkeypatch, answer)
        asked = asyncio.ensure_future(desk.room.lateness(target)())
        await asyncio.sleep(29)
        assert not asked.done(), "it is not known yet"
        # One that is asked for and waits for a slow disk meanwhile learns the same.
        after = desk.room.lateness(target)
        await cycle
        assert (await asked, await after()) == (late, late)
        # It is over: whoever asks now is not too late for anything.
        assert await desk.room.lateness(target)() is Reason.OK

    play(test)


@pytest.mark.parametrize("target", [OTHER, f"{OWN.die}/100/vir01", expected_of(116).die], ids=["id", "template", "die"])
def test_a_pin_of_another_waits_for_nothing(play: Play, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    async def test(desk: Desk) -> None:
        cycle = await destroying(desk, monkeypatch, GONE)
        desk.npus.broker_may_run = True
        assert await desk.room.lateness(target)() is Reason.OK
        assert not cycle.done()
        await cycle

    play(test)


def test_a_broker_that_never_answered_may_be_at_it_still(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        await (await destroying(desk, monkeypatch, Unavailable(Reason.NPU_BROKER_SILENT, "no answer")))
        desk.npus.broker_may_run = True
        for target in (*PINS.values(), ""):
            assert await desk.room.lateness(target)() is Reason.DESTRUCTION_BEGUN
        # While it may be, none is told of another, and it stays known what that one is at.
        desk.world.vnpus = (*desk.world.vnpus, vnpu_of(116))
        for _ in range(12):
            await desk.look()
        assert ("failure", "destroy-running") in desk.scene.outcomes()
        assert await desk.room.lateness(OTHER)() is Reason.OK
        assert await desk.room.lateness(PINS["itself"])() is Reason.DESTRUCTION_BEGUN
        desk.npus.broker_may_run = False
        for target in (*PINS.values(), ""):
            assert await desk.room.lateness(target)() is Reason.OK

    play(test)


def test_a_broker_that_another_one_keeps_from_it_may_be_at_any(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        await (await destroying(desk, monkeypatch, RefusedAnswer(1, Refusal.DESTROY_RUNNING, "another is at it")))
        desk.npus.broker_may_run = True
        for target in (*PINS.values(), OTHER, ""):
            assert await desk.room.lateness(target)() is Reason.DESTRUCTION_BEGUN
        desk.npus.broker_may_run = False
        assert await desk.room.lateness(OTHER)() is Reason.OK

    play(test)


def test_what_began_after_a_pin_heeded_it(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        told = desk.room.lateness(OTHER)
        cycle = await destroying(desk, monkeypatch, GONE)
        desk.npus.broker_may_run = True
        assert await told() is Reason.OK
        await cycle

    play(test)


def test_what_an_earlier_run_of_the_daemon_began_may_be_any(play: Play) -> None:
    async def test(desk: Desk) -> None:
        room = desk.started()
        assert await room.lateness(PINS["itself"])() is Reason.OK
        desk.npus.broker_may_run = True
        assert await room.lateness(PINS["itself"])() is Reason.DESTRUCTION_BEGUN
        await desk.look()
        assert await room.lateness(PINS["itself"])() is Reason.DESTRUCTION_BEGUN

    play(test)


def test_nobody_waits_for_ever_for_a_destruction(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        await desk.wait(10)
        begun = asyncio.Event()

        async def endless(_expected: Any, _runtime: str, _request: str, last_word: Any) -> Any:
            await last_word()
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(desk.npus, "destroy", endless)
        cycle = asyncio.ensure_future(desk.look())
        await begun.wait()
        assert await desk.room.lateness(PINS["itself"])() is Reason.DESTRUCTION_BEGUN
        asked = asyncio.ensure_future(desk.room.lateness(PINS["itself"])())
        await asyncio.sleep(0)
        await desk.room.finish()
        await asyncio.sleep(1)
        assert asked.done(), "the daemon ends, and nobody waits longer"
        assert await asked is Reason.DESTRUCTION_BEGUN
        await asyncio.gather(cycle, return_exceptions=True)

    play(test)


STOPS = {
    "pause": lambda desk: desk.room.actions.pause(request(), 60, "a test"),
    "observe": lambda desk: desk.room.actions.set_mode(request(), ReclaimMode.OBSERVE),
    "off": lambda desk: desk.room.actions.set_mode(request(), ReclaimMode.OFF),
}


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
@pytest.mark.parametrize(
    ("answer", "is_busy", "told"),
    [
        (GONE, False, (Outcome.SUCCESS, "")),
        (NOT_TOLD, False, (Outcome.SUCCESS, "")),
        (NOT_TOLD, True, (Outcome.FAILURE, "destruction-begun")),
    ],
    ids=["gone", "unknown", "busy"],
)
def test_who_stops_reclaiming_is_answered_when_nothing_is_destroyed_any_more(
    play: Play, monkeypatch: pytest.MonkeyPatch, stop: Any, answer: Any, is_busy: bool, told: tuple[Outcome, str]
) -> None:
    async def test(desk: Desk) -> None:
        cycle = await destroying(desk, monkeypatch, answer)
        desk.npus.broker_may_run = is_busy
        asked = asyncio.ensure_future(stop(desk))
        await asyncio.sleep(29)
        assert not asked.done()
        assert desk.room.state in (ReclaimState.PAUSED, ReclaimState.OBSERVING, ReclaimState.OFF), "it is in force at once"
        await cycle
        assert [(one.outcome, str(one.reason)) for one in await asked] == [told]
        (record,) = desk.scene.records("action", DEVWARD_OUTCOME=str(told[0]))
        assert ("It is in force, but a destruction had begun before" in record["MESSAGE"][0]) == is_busy

    play(test)


def test_who_lets_it_go_on_waits_for_nothing(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        cycle = await destroying(desk, monkeypatch, GONE)
        await desk.room.actions.set_mode(request(), ReclaimMode.ENFORCE)
        await desk.room.actions.resume(request())
        assert not cycle.done()
        await cycle

    play(test)


def test_a_mode_of_the_configuration_shows_at_once_and_breaks_waits(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.wait(10)
        usual = ReclaimConfig(kill_switch=str(desk.switch))
        await desk.room.configure(replace(usual, mode=ReclaimMode.OBSERVE))
        assert desk.room.state is ReclaimState.OBSERVING
        await desk.room.configure(usual)
        await desk.wait(10)
        assert desk.told == []
        await desk.wait(1)
        assert len(desk.told) == 1

    play(test)


def test_setting_the_hosts_time_ends_no_pause(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.room.actions.pause(request(), 1200, "a look around")
        await desk.wait(5)
        desk.scene.clock.set_by += 7200
        await desk.wait(10)
        assert (desk.room.state, desk.told) == (ReclaimState.PAUSED, [])
        assert desk.room.explain("v0100", full=False)["blocked"] == [
            {"reason": "paused", "text": "Reclaiming is paused; devwardctl resume reclaim ends that."}
        ]
        await desk.wait(20)
        assert [vdev for vdev, *_ in desk.told] == [100]

    play(test)


def test_each_change_of_what_is_done_is_on_record_once(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.wait(3)
        assert desk.room.state is ReclaimState.ENFORCING
        before = len(desk.scene.records("reclaim-unblocked"))
        await desk.room.actions.pause(request(), 600, "a look around")
        assert desk.room.state is ReclaimState.PAUSED, "at once"
        await desk.wait(3)
        assert [one["DEVWARD_REASON"] for one in desk.scene.records("reclaim-blocked")] == [["paused"]]
        await desk.room.actions.resume(request())
        await desk.wait(3)
        assert len(desk.scene.records("reclaim-blocked")) == 1
        assert len(desk.scene.records("reclaim-unblocked")) == before + 1
        desk.world.unknowns = (unknown(),)
        await desk.wait(3)
        reasons = [one["DEVWARD_REASON"][0] for one in desk.scene.records("reclaim-blocked")]
        assert reasons == ["paused", desk.world.unknowns[0].reason]
        assert desk.room.blocked == (), "what is unknown of the node BlockedReasons has from those who look at it"
        assert desk.scene.outcomes("action") == [("intent", ""), ("success", "")] * 2

    play(test)


def test_that_one_of_several_is_over_is_on_record(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.room.actions.set_mode(request(), ReclaimMode.OBSERVE)
        await desk.wait(2)
        for _ in range(2):
            desk.switch.touch()
            await desk.wait(2)
            desk.switch.unlink()
            await desk.wait(2)
        told = [one["MESSAGE"][0] for one in desk.scene.records("reclaim-blocked")]
        assert ["kill switch is set" in one for one in told] == [False, True, False, True, False]
        assert told[2].startswith("Reclaiming is observing still; over is kill-switch. Reclaiming only observes")

    play(test)


def test_what_is_measured_of_it(play: Play) -> None:
    async def test(desk: Desk) -> None:
        assert desk.room.measures() == ReclaimMeasures(), "nothing is known yet"
        await desk.wait(3)
        now = desk.room.measures()
        assert (now.leaked_cores, now.blocked_seconds) == (ONE.cores, 0)
        assert now.reclaims == {"destroyed": 0, "failed": 0, "refused": 0}
        # A pause is no block; the kill switch is one.
        await desk.room.actions.pause(request(), 600, "a look around")
        await desk.wait(2)
        assert desk.room.measures().blocked_seconds == 0
        await desk.room.actions.resume(request())
        desk.switch.touch()
        await desk.look()
        began = asyncio.get_running_loop().time()
        await desk.wait(3)
        assert desk.room.measures().blocked_seconds == asyncio.get_running_loop().time() - began == 180
        # Whatever is changed meanwhile, it is one and the same time, and no count goes back.
        await desk.room.configure(ReclaimConfig(kill_switch=str(desk.switch), grace=700))
        assert desk.room.measures().blocked_seconds == 180
        desk.switch.unlink()
        await desk.wait(14)
        now = desk.room.measures()
        assert (now.leaked_cores, now.blocked_seconds) == (0, 0)
        assert now.reclaims == {"destroyed": 1, "failed": 0, "refused": 0}
        await desk.room.configure(ReclaimConfig(kill_switch=str(desk.switch)))
        assert desk.room.measures().reclaims == now.reclaims

    play(test)


def test_what_is_leaked_is_left_out_while_it_is_not_known(play: Play) -> None:
    def told(desk: Desk) -> tuple[float | None, bool, int]:
        leaks = desk.room.describe(full=False)["leaks"]
        return desk.room.measures().leaked_cores, leaks["known"], leaks["unknown"]

    async def test(desk: Desk) -> None:
        desk.room.judge()
        assert told(desk) == (None, False, 0), "nothing is known yet"
        await desk.look()
        assert told(desk) == (TWO.cores, True, 1), "of one it cannot be told"
        desk.world.unknowns = (unknown("api-connection-refused"),)
        await desk.wait(3)
        assert told(desk) == (None, False, 2)
        desk.world.has_npus = False
        await desk.wait(3)
        assert told(desk) == (None, False, 2)
        desk.world.unknowns, desk.world.has_npus = (), True
        await desk.look()
        assert told(desk) == (TWO.cores, True, 1)
        # Where nobody is asked every vNPU is in use, which its flag tells.
        desk.world.is_asked = False
        desk.world.vnpus = tuple(replace(one, use=Use.IN_USE) for one in (ONE, TWO))
        await desk.look()
        assert told(desk) == (0, True, 0)
        desk.reconciler.forget()
        assert told(desk) == (None, False, 0), "nobody looks any more"

    play(test, replace(ONE, use=Use.UNKNOWN), TWO)


def test_each_reason_is_on_record_when_it_comes(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.wait(3)
        await desk.room.actions.pause(request(), 600, "a look around")
        desk.switch.touch()
        await desk.wait(3)
        desk.world.unknowns = (unknown("made-up"),)
        await desk.wait(3)
        told = desk.scene.records("reclaim-blocked")
        assert [one["DEVWARD_REASON"] for one in told] == [["paused"], ["kill-switch"], ["made-up"]]
        codes = [json.loads(one["DEVWARD_EVIDENCE"][0])["reasons"] for one in told]
        assert codes == [["paused"], ["kill-switch", "paused"], ["made-up", "paused", "kill-switch"]]
        assert told[-1]["MESSAGE"][0].startswith("Reclaiming is paused: It cannot be told.")
        assert "kill switch" in told[-1]["MESSAGE"][0]
        # What goes is no news, and what comes back is.
        desk.world.unknowns = ()
        await desk.wait(3)
        assert len(desk.scene.records("reclaim-blocked")) == 3
        desk.world.unknowns = (unknown("made-up"),)
        await desk.wait(3)
        assert len(desk.scene.records("reclaim-blocked")) == 4

    play(test)


def test_whatever_stops_reclaiming_is_on_record_with_its_sentence_and_an_entry_of_the_catalog(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.look()
        catalog = entries()
        for blocked in Blocked:
            allowed = Permission(ReclaimState.BLOCKED, (blocked.value,), (BLOCKED_TEXT[blocked],))
            desk.reconciler.standing = replace(desk.reconciler.standing, permission=allowed)
            desk.room.changed()
            record = desk.scene.records("reclaim-blocked", DEVWARD_REASON=blocked)[-1]
            assert record["MESSAGE"][0].endswith(f": {BLOCKED_TEXT[blocked]}")
            assert f"devwardctl explain {blocked.value}\n" in catalog[record["MESSAGE_ID"][0]].filled(record)

    play(test)


def test_a_reason_that_comes_and_goes_hides_no_other(play: Play) -> None:
    async def test(desk: Desk) -> None:
        desk.switch.touch()
        await desk.wait(3)
        for _ in range(10):
            desk.world.unknowns = (unknown("flaps"),)
            await desk.look(1)
            desk.world.unknowns = ()
            await desk.look(1)
        desk.world.unknowns = (unknown("stays"),)
        await desk.look(1)
        told = [one["DEVWARD_REASON"][0] for one in desk.scene.records("reclaim-blocked")]
        assert told == ["kill-switch", *["flaps"] * 6, "stays"]

    play(test)


def test_once_nobody_looks_any_more_no_reason_is_made_up(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.wait(3)
        desk.reconciler.forget()
        (told,) = desk.scene.records("reclaim-blocked")
        assert told["DEVWARD_REASON"] == ["not-evaluated"]

    play(test)


def test_a_mode_that_only_observes_from_the_start_is_on_record(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.wait(3)
        assert [one["DEVWARD_REASON"] for one in desk.scene.records("reclaim-blocked")] == [["mode-observe"]]

    play(test, config={"mode": ReclaimMode.OBSERVE})


def test_a_pause_that_runs_out_breaks_waits(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.wait(10)
        await desk.room.actions.pause(request(), 5, "short")
        await desk.wait(1)
        assert desk.told == []
        assert desk.room.state is ReclaimState.ENFORCING
        await desk.wait(10)
        assert desk.told == [(100, 0, ONE.template, "own")]

    play(test)


def test_a_pause_that_is_long_over_is_off_the_record(play: Play) -> None:
    async def kept(desk: Desk) -> bool:
        await desk.room.keep_house()
        return desk.remembered.state.reclaim_pause is not None

    async def test(desk: Desk) -> None:
        await desk.room.actions.pause(request(), 600, "short")
        clock = desk.scene.clock
        began = clock.boottime()
        while clock.boottime() < began + 600:
            assert await kept(desk)
            await desk.wait(1)
        # The daemon is started anew, with a clock that is behind: it is paused again.
        clock.set_by -= 86400
        assert desk.started().state is ReclaimState.PAUSED
        clock.set_by += 86400
        assert desk.started().state is not ReclaimState.PAUSED
        over = clock.boottime()
        while clock.boottime() < over + 3600:
            assert await kept(desk)
            await desk.wait(1)
        assert not await kept(desk)
        clock.set_by -= 86400
        assert desk.started().state is not ReclaimState.PAUSED

    play(test)


def test_a_pause_that_is_asked_for_once_another_is_long_over_stays_on_record(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.room.actions.pause(request(), 60, "short")
        await desk.wait(70)
        assert desk.room.paused_until_usec == 0
        await desk.room.actions.pause(request(), 600, "again")
        await desk.room.keep_house()
        pause = desk.remembered.state.reclaim_pause
        assert pause is not None
        assert (pause.reason, desk.room.state) == ("again", ReclaimState.PAUSED)

    play(test)


def test_pins_that_may_be_missing_stop_all_until_an_administrator_enforces(play: Play) -> None:
    async def test(desk: Desk) -> None:
        desk.remembered.state = replace(desk.remembered.state, pins_in_doubt=True)
        assert desk.room.pins() is None
        await desk.wait(13)
        assert desk.told == []
        assert [code for code, _ in desk.room.blocked] == ["state-damaged"]
        assert [finding.code for finding in desk.room.findings()] == [Reason.RECLAIM_BLOCKED]
        await desk.room.actions.set_mode(request(), ReclaimMode.ENFORCE)
        await desk.wait(12)
        assert len(desk.told) == 1

    play(test)


# --- what is kept ---------------------------------------------------------------------------------------------------------
def test_a_damaged_file_stops_all_until_an_administrator_enforces(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        desk.file.write_text("{")
        await desk.wait(13)
        assert desk.told == []
        assert [code for code, _ in desk.room.blocked] == ["state-damaged"]
        assert len(desk.scene.records("state-damaged")) == 1
        assert desk.file.read_text() == "{"
        shown: list[list[str]] = []
        noticed = desk.reconciler.noticed

        def showing() -> None:
            noticed()
            shown.append([code for code, _ in desk.room.blocked])

        monkeypatch.setattr(desk.reconciler, "noticed", showing)
        await desk.room.actions.set_mode(request(), ReclaimMode.ENFORCE)
        assert shown == [[]], "once, when all of it is in force"
        assert json.loads(desk.file.read_text())["latched"] is False
        await desk.wait(12)
        assert len(desk.told) == 1
        assert len(json.loads(desk.file.read_text())["tries"]) == 1

    play(test)


def test_a_damaged_file_stops_all_on_where_it_could_not_be_saved_that_an_administrator_enforces(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(desk: Desk) -> None:
        desk.file.write_text("{")
        await desk.look()

        def full(*_: object) -> bool:
            raise OSError("no space left on device")

        monkeypatch.setattr(Store, "save", full)
        (result,) = await desk.room.actions.set_mode(request(), ReclaimMode.ENFORCE)
        assert result.outcome is Outcome.FAILURE
        assert desk.file.read_text() == "{"
        assert [code for code, _ in desk.room.blocked] == ["state-damaged"]

    play(test)


def test_a_damaged_file_is_not_hidden_by_what_is_kept_later(play: Play) -> None:
    async def test(desk: Desk) -> None:
        desk.file.write_text("{")
        await desk.look()
        assert not await desk.room.keep(Breaker(is_latched=True), Spent())
        assert desk.file.read_text() == "{"
        desk.scene.journal._path = "/nonexistent/socket"
        await desk.room.actions.set_mode(request(), ReclaimMode.OBSERVE)
        assert desk.file.read_text() == "{", "and only enforcing goes on without it"
        assert [code for code, _ in desk.room.blocked][-1] == "state-damaged"

    play(test)


def test_a_file_that_cannot_be_reached_is_asked_for_again_and_never_written_over(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        latched = json.dumps({"version": 2, "boot_id": "x", "latched": True, "held": [], "agreed": [], "tries": []})
        desk.file.write_text(latched)
        monkeypatch.setattr(InlineWorker, "hangs", True)
        await desk.wait(3)
        assert "state-damaged" in [code for code, _ in desk.room.blocked]
        monkeypatch.setattr(InlineWorker, "hangs", False)
        await desk.room.actions.set_mode(request(), ReclaimMode.ENFORCE)
        assert desk.file.read_text() == latched
        await desk.look()
        assert desk.room.state is ReclaimState.MASS_RECLAIM
        assert await desk.acted(desk.room.actions.release_breaker(request())) == [(Outcome.SUCCESS, "")]
        await desk.look()
        assert desk.room.state is ReclaimState.ENFORCING

    play(test)


# --- the rates ------------------------------------------------------------------------------------------------------------
def test_what_waits_for_a_rate_says_so_and_the_hours_rest_is_shown(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.wait(10)
        rates = desk.room.describe(full=True)["rates"]
        assert rates == {"per_card": 1, "per_node": 4, "per_hour": 2, "left_of_hour": 2, "next_usec": 0}
        await desk.wait(1)
        assert [vdev for vdev, *_ in desk.told] == [100]
        assert desk.room.explain("v0101", full=True)["evidence"]["left"] == "limit-per-card"
        (told,) = await desk.room.actions.reclaim_vnpu(request(), 101, TWO.identity, dry_run=True, shorten=False)
        assert told.reason == "limit-per-card"
        await desk.wait(2)
        assert len(desk.told) == 2
        rates, now = desk.room.describe(full=True)["rates"], desk.scene.clock.realtime_usec()
        assert rates["left_of_hour"] == 0
        assert 3400e6 < rates["next_usec"] - now < 3600e6
        assert desk.room.explain("v0102", full=True)["evidence"]["left"] == "limit-per-hour"

    play(test, ONE, TWO, vnpu_of(102), config={"per_hour": 2})


# --- the breaker ----------------------------------------------------------------------------------------------------------
MANY = (vnpu_of(100), vnpu_of(116), vnpu_of(132))


def test_a_release_agrees_to_what_was_shown_before_a_restart_and_to_nothing_else(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.wait(12)
        assert desk.room.state is ReclaimState.MASS_RECLAIM
        told = desk.room.describe(full=True)["breaker"]
        assert [one["vdev"] for one in told["held"]] == [100, 116, 132]
        (record,) = desk.scene.records("mass-reclaim")
        for text in (desk.room.blocked[0][1], desk.room.findings()[0].text, record["MESSAGE"][0]):
            assert "3 on 3 cards (p000: 100; p001: 116; p002: 132)" in text
            assert "devwardctl reclaim release" in text
        assert record["DEVWARD_COUNT"] == ["3"]
        room = desk.started()
        desk.room.judge()
        # Before any look.
        results = await room.actions.release_breaker(request())
        assert [(one.target, one.outcome) for one in results] == [
            ("breaker", Outcome.SUCCESS),
            ("p000/100", Outcome.SUCCESS),
            ("p001/116", Outcome.SUCCESS),
            ("p002/132", Outcome.SUCCESS),
        ]
        assert "agrees to 3 vNPUs: 100 of p000, 116 of p001, 132 of p002" in desk.scene.records("action")[-1]["MESSAGE"][0]
        desk.started()
        desk.world.vnpus = (*MANY, vnpu_of(101), vnpu_of(117), vnpu_of(133))
        await desk.wait(12)
        assert desk.told == [], "the new ones were not shown"
        assert [one["vdev"] for one in desk.room.describe(full=True)["breaker"]["held"]] == [101, 117, 133]
        desk.world.vnpus = MANY
        assert [outcome for outcome, _ in await desk.acted(desk.room.actions.release_breaker(request()))] == [Outcome.SUCCESS] * 4
        await desk.look()
        assert sorted(vdev for vdev, *_ in desk.told) == [100, 116, 132]

    play(test, *MANY)


def test_a_release_shows_at_once_and_says_so_where_it_is_not_latched(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.wait(12)
        assert len(await desk.room.actions.release_breaker(request())) == 4
        assert desk.room.state is ReclaimState.ENFORCING
        assert [(one.outcome, one.reason) for one in await desk.room.actions.release_breaker(request())] == [(Outcome.NOOP, "")]

    play(test, *MANY)


@pytest.mark.parametrize("damage", ["{", None])
def test_a_release_is_refused_where_it_cannot_be_read_whether_it_is_latched(
    play: Play, monkeypatch: pytest.MonkeyPatch, damage: str | None
) -> None:
    async def test(desk: Desk) -> None:
        desk.room.judge()
        if damage is not None:
            desk.file.write_text(damage)
        monkeypatch.setattr(InlineWorker, "hangs", damage is None)
        (result,) = await desk.room.actions.release_breaker(request())
        assert (result.outcome, result.reason) == (Outcome.FAILURE, "state-damaged")

    play(test)


# --- what is shown, and to whom -------------------------------------------------------------------------------------------
def test_only_an_administrator_reads_what_others_wrote(play: Play) -> None:
    async def test(desk: Desk) -> None:
        desk.world.vnpus = (replace(ONE, host_reasons=("process 7 (secret-training)",)),)
        await desk.look()
        full = json.dumps(desk.room.explain("v0100", full=True))
        shown = json.dumps(desk.room.explain("v0100", full=False))
        assert "secret-training" in full
        assert "secret-training" not in shown
        evidence = cast(dict[str, Any], desk.room.explain("v0100", full=False)["evidence"])
        assert evidence["verdict"] == "candidate"
        assert not {"text", "fault"} & evidence.keys()
        desk.world.cards = (claimed(card_of(0), claim(uid="uid-t")), *desk.world.cards[1:])
        desk.world.claimants = (Claimant("uid-t", "space", "secret-training"),)
        desk.world.vnpus = (vnpu_of(101),)
        await desk.look()
        (left,) = desk.room.describe(full=True)["leaks"]["by_owner"]
        assert (left["uid"], left["owner_name"]) == ("uid-t", "space/secret-training")
        await desk.room.actions.pause(request(), 60, "the secret-training is looked at")
        assert "secret-training" in json.dumps(desk.room.describe(full=True))
        assert "secret-training" not in json.dumps(desk.room.describe(full=False))

    play(test)


def test_what_is_unknown_of_the_node_is_among_what_stops_it_once(play: Play) -> None:
    async def test(desk: Desk) -> None:
        told = replace(unknown("annotation-malformed"), sentence="Pod secret-training: it cannot be read.")
        twice = replace(told, who="another", sentence="Pod another: it cannot be read.")
        desk.world.unknowns = (unknown("api-connection-refused"), told, twice)
        desk.room.judge()
        for is_looked_at in (False, True):
            if is_looked_at:
                await desk.look()
            assert desk.room.state is ReclaimState.BLOCKED
            for shown in (desk.room.describe(full=False), desk.room.explain("v0100", full=False)):
                assert shown["blocked"], "and it says why"
        full, some = desk.room.describe(full=True)["blocked"], desk.room.describe(full=False)["blocked"]
        assert [one["reason"] for one in full] == [one["reason"] for one in some] == ["api-connection-refused", "annotation-malformed"]
        assert [one["text"] for one in full] == ["It cannot be told.", told.sentence]
        assert "secret-training" not in json.dumps(some)
        assert all(one["text"] for one in some)
        for is_full, wanted in ((True, full), (False, some)):
            assert desk.room.explain("v0100", full=is_full)["blocked"] == wanted
            assert desk.room.explain("v0999", full=is_full)["blocked"] == wanted, "also of one that was not judged"
        desk.switch.touch()
        await desk.look()
        codes = [one["reason"] for one in desk.room.describe(full=False)["blocked"]]
        assert codes == ["kill-switch", "api-connection-refused", "annotation-malformed"]
        assert [code for code, _ in desk.room.blocked] == ["kill-switch"]

    play(test)


def test_a_verdict_is_on_the_very_vnpu_and_in_use_now_is_in_use(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.look()
        (shown,) = desk.room.judged(desk.npus.vnpus())
        assert (shown.verdict.value, shown.verdict_reason) == ("candidate", "just-seen")
        assert shown.grace_start_usec > 0
        (used,) = desk.room.judged([replace(view_of(ONE), use=Use.IN_USE)])
        assert (used.verdict.value, used.eligible_at_usec) == ("in-use", 0)
        (other,) = desk.room.judged([replace(view_of(ONE), identity="another")])
        assert (other.verdict.value, other.verdict_reason) == ("unknown", "not-evaluated")

    play(test)


# --- what the broker's answers mean ---------------------------------------------------------------------------------------
async def _agreed() -> None:
    return None


@pytest.mark.parametrize(
    ("answer", "result", "reason"),
    [
        (DestroyAnswer(1, Came.DESTROYED, 0, ""), "destroyed", "destroy-0"),
        (DestroyAnswer(1, Came.STILL_PRESENT, -8001, ""), "still-present", "destroy-8001"),
        (RefusedAnswer(1, Refusal.IN_USE, "It is used."), "refused", "in-use"),
        (Unasked(Reason.NPU_BROKER_UNREACHABLE, "away"), "refused", "not-asked"),
        (module.__name__, "unknown", "no-answer"),
    ],
)
def test_each_answer_of_the_broker_has_its_meaning(play: Play, answer: Any, result: str, reason: str) -> None:
    from devward.npu.inventory import Unavailable

    async def test(desk: Desk) -> None:
        desk.npus.answer = Unavailable(Reason.NPU_BROKER_SILENT, "silent") if isinstance(answer, str) else answer
        came = await desk.room.destroy(expected_of(), "containerd://2", "r", _agreed)
        assert (came.result.value, came.reason) == (result, reason)

    play(test)


def test_without_a_runtime_and_against_a_last_word_nobody_is_asked(play: Play) -> None:
    async def test(desk: Desk) -> None:
        desk.npus.answer = None
        came = await desk.room.destroy(expected_of(), None, "r", _agreed)
        assert (came.result.value, came.reason, came.sets_back) == ("refused", "scan-unknown", True)

        async def against() -> Refuse | None:
            return Refuse("kill-switch", "It is set.")

        came = await desk.room.destroy(expected_of(), "containerd://2", "r", against)
        assert (came.result.value, came.reason, came.sentence) == ("refused", "kill-switch", "It is set.")
        assert len(desk.world.vnpus) == 1

    play(test)


# --- administrators -------------------------------------------------------------------------------------------------------
def test_a_dry_run_touches_nothing_and_says_what_is_against_it(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.look()
        done, changes = list(desk.scene.world.done), desk.changes
        answer = await desk.room.actions.reclaim_vnpu(request(), 100, ONE.identity, dry_run=True, shorten=True)
        assert [(one.outcome, one.reason) for one in answer] == [(Outcome.DRY_RUN, "just-seen")]
        assert not desk.wanted.is_set()
        assert (desk.scene.world.done, desk.changes) == (done, changes)
        await desk.wait(3)
        assert desk.told == [], "nor is the wait shorter"

    play(test)


def test_of_orphans_only_those_are_wished_for_that_nothing_shields(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.look()
        answer = await desk.room.actions.reclaim_orphans(request(), dry_run=True, shorten=False)
        assert [one.target for one in answer] == [ONE.identity]

    play(test, ONE, use(TWO))


@pytest.mark.parametrize("dry_run", [False, True])
def test_of_what_is_not_known_it_is_told_that_it_is_not(play: Play, dry_run: bool) -> None:
    """No line of it would read as if nothing lay about."""

    async def test(desk: Desk) -> None:
        desk.world.unknowns = (unknown(),)
        await desk.look()
        answer = desk.room.actions.reclaim_orphans(request(), dry_run=dry_run, shorten=True)
        assert await desk.acted(answer) == [(Outcome.DRY_RUN if dry_run else Outcome.FAILURE, unknown().reason)]
        assert desk.scene.reconciler.wishes.shortened == frozenset()

    play(test, ONE, use(TWO))


@pytest.mark.parametrize(("vdev", "identity"), [(100, "another"), (101, ONE.identity), (7, "")])
def test_one_that_is_not_there_is_refused(play: Play, vdev: int, identity: str) -> None:
    async def test(desk: Desk) -> None:
        await desk.look()
        with pytest.raises(NoSuchVnpu):
            await desk.room.actions.reclaim_vnpu(request(), vdev, identity, dry_run=False, shorten=False)

    play(test)


def test_to_ask_does_not_shorten_unless_that_is_said(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.look()
        assert await desk.acted(desk.room.actions.reclaim_vnpu(request(), 100, ONE.identity, dry_run=False, shorten=False)) == [
            (Outcome.FAILURE, "just-seen")
        ]
        await desk.wait(12)
        assert desk.told == [(100, 0, ONE.template, "own")], "and the request is over"

    play(test)


def test_with_a_shorter_wait_the_named_one_goes_in_the_name_of_who_asked(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.look()
        assert await desk.acted(desk.room.actions.reclaim_vnpu(request(), 101, TWO.identity, dry_run=False, shorten=True)) == [
            (Outcome.SUCCESS, "")
        ]
        assert desk.told == [(101, 0, TWO.template, "request-1")]
        assert desk.scene.outcomes("action") == [("intent", ""), ("success", "")]

    play(test, ONE, TWO)


def test_two_administrators_get_the_same_answer_and_one_destruction(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.look()

        async def both() -> tuple[ActionResult, ...]:
            found = await asyncio.gather(
                desk.room.actions.reclaim_vnpu(request(1), 100, ONE.identity, dry_run=False, shorten=True),
                desk.room.actions.reclaim_vnpu(request(2), 100, ONE.identity, dry_run=False, shorten=True),
            )
            return (*found[0], *found[1])

        assert await desk.acted(both()) == [(Outcome.SUCCESS, ""), (Outcome.SUCCESS, "")]
        assert [told[3] for told in desk.told] == ["request-1"]

    play(test)


def test_what_shields_it_or_stops_all_is_the_answer(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.look()
        desk.world.vnpus = (replace(ONE, use=Use.IN_USE),)
        act = desk.room.actions.reclaim_vnpu(request(), 100, ONE.identity, dry_run=False, shorten=True)
        assert await desk.acted(act) == [(Outcome.FAILURE, "driver-says-used")]
        desk.world.vnpus = (ONE,)
        desk.switch.write_text("")
        act = desk.room.actions.reclaim_vnpu(request(), 100, ONE.identity, dry_run=False, shorten=True)
        assert await desk.acted(act) == [(Outcome.FAILURE, "kill-switch")]

    play(test)


def test_the_end_of_a_cycle_that_began_before_is_no_answer(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.look()
        act = asyncio.ensure_future(desk.room.actions.reclaim_vnpu(request(), 100, ONE.identity, dry_run=False, shorten=False))
        await asyncio.sleep(0.1)
        desk.room.cycle_ended()
        await asyncio.sleep(0.1)
        assert not act.done()
        desk.world.vnpus = (replace(ONE, use=Use.IN_USE),)
        await desk.look(1)
        assert [one.reason for one in await act] == ["driver-says-used"]

    play(test)


def test_where_nobody_looks_nobody_waits(play: Play) -> None:
    async def test(desk: Desk) -> None:
        await desk.look()
        desk.looks = False
        act = desk.room.actions.reclaim_vnpu(request(), 100, ONE.identity, dry_run=False, shorten=True)
        assert await desk.acted(act) == [(Outcome.FAILURE, "not-evaluated")]

    play(test)


def test_a_wish_is_followed_for_so_long_and_then_no_more(play: Play) -> None:
    async def test(desk: Desk) -> None:
        desk.npus.answer = DestroyAnswer(1, Came.STILL_PRESENT, -8008, "")
        await desk.look()
        before = desk.scene.clock.monotonic()
        act = desk.room.actions.reclaim_vnpu(request(), 100, ONE.identity, dry_run=False, shorten=True)
        ((outcome, _),) = await desk.acted(act)
        assert outcome is Outcome.FAILURE
        assert actions.WISH_SECONDS <= desk.scene.clock.monotonic() - before < actions.WISH_SECONDS + 120

    play(test)
