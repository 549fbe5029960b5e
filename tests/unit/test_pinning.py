"""Pins as the daemon sets, remembers and shows them."""

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from devward import remembered
from devward.audit import Audit
from devward.clock import Clock
from devward.config import NpuConfig
from devward.errors import LimitsExceeded, NoSuchPin, StateError
from devward.journal import Journal
from devward.model import MAXIMUM_PINS, ActionRequest, ActionResult, Caller, NpuDevices, Outcome, Pin, Trigger
from devward.npu.document import Outfit
from devward.npu.facts import Inventory
from devward.npu.host import Surroundings
from devward.npu.inventory import Unavailable, assess
from devward.npu.memory import NO_MEMORY
from devward.npu.offers import Claims, not_asked
from devward.npu.pins import Sight, Standing
from devward.npu.room import NpuRoom
from devward.pinning import Pinning
from devward.reasons import REASON_TEXT, Reason
from devward.remembered import Remembered
from devward.state import State
from devward.worker import Worker
from sim.held_time import PATIENCE
from sim.journal_sink import JournalSink, Record
from sim.npu_host import around, chip, die, inventory, node

NOW = 1_767_225_600_000_000
TARGET = f"{die(0)}/100/vir05_1c_16g"
WHY = "a training that must not die"
REQUEST = ActionRequest("request-1", Caller(":1.7", 1000, 77), Trigger.DBUS)
SILENT = Unavailable(Reason.NPU_BROKER_SILENT, "no answer")


class FixedClock(Clock):
    def realtime_usec(self) -> int:
        return NOW


class Store:
    """Keeps the last state that it was given, or fails."""

    def __init__(self) -> None:
        self.saved: State | None = None
        self.fails = False

    def save(self, state: State) -> bool:
        if self.fails:
            raise StateError("the disk is full")
        self.saved = state
        return True

    def backup(self, name: str, data: bytes) -> str:
        raise AssertionError(name)


class Room:
    """Shows what the test wants."""

    def __init__(self) -> None:
        self.shown = Sight()
        self.outfit: Outfit | None = Outfit(frozenset({"davinci_manager", "devmm_svm", "hisi_hdc"}))
        self.claims: Claims = not_asked

    def cards(self) -> object:
        return self.shown.cards

    def sight(self) -> Sight:
        return self.shown

    def sees(self, said: Inventory | Unavailable, surroundings: Surroundings | None = None) -> None:
        picture, _ = assess(said, surroundings or around(said if isinstance(said, Inventory) else inventory()), NO_MEMORY, NOW)
        self.shown = Sight(picture.cards, picture.vnpus, picture.lasting, picture.in_doubt)


class Desk:
    """Pins in front of a host with NPUs that is made of values."""

    def __init__(self, path: Path) -> None:
        self.sink = JournalSink(str(path))
        self.journal = Journal(str(path), stderr=io.StringIO())
        self.audit = Audit(self.journal, version="1", new_id=lambda: "own", monotonic=lambda: 1000.0)
        self.store, self.worker, self.room = Store(), Worker("state"), Room()
        self.changes = 0
        #: Each target with the pins that were in force when it was asked for what it comes too late for, and what that is.
        self.late_for: list[tuple[str, tuple[Pin, ...]]] = []
        self.late = Reason.OK
        self.start(State())

    def start(self, state: State) -> None:
        """Begin a run of the daemon with what an earlier one saved."""
        self.remembered = Remembered(state, self.store, self.worker)
        self.pinning = Pinning(
            self.remembered,
            cast(NpuRoom, self.room),
            self.audit,
            FixedClock(),
            self._changed,
            lateness=self._lateness,
            spec_path=lambda: "/etc/cdi/v.json",
        )

    def _changed(self) -> None:
        self.changes += 1

    def _lateness(self, target: str) -> Callable[[], Awaitable[Reason]]:
        self.late_for.append((target, self.pins))

        async def told() -> Reason:
            return self.late

        return told

    def do(self, *acts: Callable[[], Awaitable[tuple[ActionResult, ...]]]) -> list[ActionResult]:
        async def main() -> list[ActionResult]:
            return [result for act in acts for result in await act()]

        return asyncio.run(main())

    def pin(self, target: str = TARGET, why: str = WHY, request: ActionRequest = REQUEST) -> ActionResult:
        (result,) = self.do(lambda: self.pinning.pin(request, target, why))
        return result

    def unpin(self, target: str = TARGET) -> ActionResult:
        (result,) = self.do(lambda: self.pinning.unpin(REQUEST, target))
        return result

    @property
    def pins(self) -> tuple[Pin, ...]:
        return self.remembered.state.pins

    def offered(self) -> list[str]:
        report = self.pinning.report()
        return [view.name for view in report.offerable] if report is not None else []

    def records(self, member: str) -> list[Record]:
        return self.sink.records(DEVWARD_EVENT="action", DEVWARD_MEMBER=member)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    # What is not saved in time is another answer, and the time is real.
    monkeypatch.setattr(remembered, "SAVE_DEADLINE", PATIENCE)
    made = Desk(tmp_path / "journal")
    made.room.sees(inventory(chip(0, 100, 101)))
    yield made
    made.worker.close()
    made.journal.close()
    made.sink.close()


def test_a_pin_is_saved_recorded_and_offered(desk: Desk) -> None:
    assert desk.pin() == ActionResult(TARGET, Outcome.SUCCESS, Reason.OK)
    (pin,) = desk.pins
    assert (pin.target, pin.reason, pin.caller_uid, pin.since_usec) == (TARGET, WHY, 1000, NOW)
    assert pin.identity
    assert desk.store.saved == desk.remembered.state
    assert desk.offered() == ["v0100"]
    assert desk.changes == 1
    intent, outcome = desk.records("Pin")
    assert [one["DEVWARD_OUTCOME"] for one in (intent, outcome)] == [["intent"], ["success"]]
    for record in (intent, outcome):
        assert record["DEVWARD_REQUEST_ID"] == ["request-1"]
        assert record["DEVWARD_CALLER_UID"] == ["1000"]
        assert record["DEVWARD_SUBJECT"] == [TARGET]
    assert WHY in intent["MESSAGE"][0]
    assert pin.identity not in json.dumps([intent, outcome])


def test_to_pin_what_is_pinned_changes_nothing(desk: Desk) -> None:
    desk.pin()
    before = desk.pins
    assert desk.pin(why="another reason") == ActionResult(TARGET, Outcome.NOOP, Reason.OK)
    assert desk.pins == before
    assert desk.records("Pin")[-1]["DEVWARD_OUTCOME"] == ["noop"]


def test_to_pin_again_what_is_another_by_now_pins_that(desk: Desk) -> None:
    desk.pin()
    first = desk.pins[0].identity
    desk.room.sees(inventory(chip(0, 100)), around(inventory(chip(0, 100)), {"vdavinci100": node("vdavinci100", inode=9, ctime_ns=9)}))
    assert desk.offered() == []
    assert [finding.code for finding in desk.pinning.findings()] == [Reason.PIN_OTHER_IDENTITY]
    assert desk.pin(why="the new one") == ActionResult(TARGET, Outcome.SUCCESS, Reason.OK)
    (pin,) = desk.pins
    assert pin.identity not in ("", first)
    assert pin.reason == "the new one"
    assert desk.offered() == ["v0100"]
    assert desk.pinning.findings() == ()
    evidence = json.loads(desk.records("Pin")[-1]["DEVWARD_EVIDENCE"][0])
    assert evidence["before"]["reason"] == WHY


@pytest.mark.parametrize(
    ("said", "reason"),
    [(inventory(chip(0, 101)), Reason.PIN_UNMATCHED), (inventory(), Reason.PIN_UNMATCHED), (SILENT, Reason.NPU_LIST_INCOMPLETE)],
)
def test_a_pin_may_precede_its_vnpu(desk: Desk, said: Inventory | Unavailable, reason: Reason) -> None:
    desk.room.sees(said)
    assert desk.pin() == ActionResult(TARGET, Outcome.SUCCESS, reason)
    assert [pin.identity for pin in desk.pins] == [""]
    assert [finding.code for finding in desk.pinning.findings()] == [reason] * (reason is Reason.PIN_UNMATCHED)
    assert desk.pin() == ActionResult(TARGET, Outcome.NOOP, reason)
    desk.room.sees(inventory(chip(0, 100)))
    assert desk.offered() == []
    assert [finding.code for finding in desk.pinning.findings()] == [Reason.PIN_OTHER_IDENTITY]
    assert desk.pin() == ActionResult(TARGET, Outcome.SUCCESS, Reason.OK)
    assert desk.offered() == ["v0100"]


def test_what_cannot_be_looked_at_keeps_the_identity_that_it_was_pinned_with(desk: Desk) -> None:
    desk.pin()
    before = desk.pins
    desk.room.sees(SILENT)
    assert desk.pin().outcome is Outcome.NOOP
    assert desk.pins == before
    desk.room.sees(inventory(chip(0, 100)))
    assert desk.offered() == ["v0100"]


def test_an_npu_is_pinned_without_an_identity(desk: Desk) -> None:
    assert desk.pin(die(0)) == ActionResult(die(0), Outcome.SUCCESS, Reason.OK)
    assert desk.pins[0].identity == ""
    assert desk.pin(die(0)) == ActionResult(die(0), Outcome.NOOP, Reason.OK)
    assert desk.offered() == []
    report = desk.pinning.report()
    assert report is not None
    assert [one.view.name for one in report.vnpus] == ["v0100", "v0101"]


def test_what_is_pinned_and_not_offered_since_a_kubelet_runs_is_a_finding(desk: Desk) -> None:
    desk.pin()
    assert desk.pinning.findings() == ()
    desk.room.outfit = replace(desk.room.outfit or Outfit(), kubelet="process 7, kubelet")
    (finding,) = desk.pinning.findings()
    assert (finding.code, finding.subject) == (Reason.VNPU_CLAIMS_UNKNOWN, "/etc/cdi/v.json")
    assert "process 7" in finding.text
    told = desk.pinning.of_vnpu("v0100", full=True)
    assert (told["offerable"], told["not_offerable_because"]) == (False, finding.text)
    assert told["pin_standing"] == "matched"
    desk.room.claims = lambda wanted: (Reason.VNPU_NPU_CLAIMED, "a Pod") if wanted == die(0) else None
    assert [finding.code for finding in desk.pinning.findings()] == [Reason.VNPU_NPU_CLAIMED]
    desk.room.claims = lambda _: None
    assert desk.pinning.findings() == ()
    assert desk.pinning.of_vnpu("v0100", full=True)["offerable"] is True


def test_a_pin_survives_a_restart_and_offers_the_same_vnpu(desk: Desk) -> None:
    desk.pin()
    assert desk.store.saved is not None
    desk.start(desk.store.saved)
    assert desk.offered() == ["v0100"]
    assert desk.pinning.findings() == ()


def test_a_pin_that_is_taken_away(desk: Desk) -> None:
    desk.pin()
    desk.pin(die(0))
    assert desk.unpin() == ActionResult(TARGET, Outcome.SUCCESS, Reason.OK)
    assert [pin.target for pin in desk.pins] == [die(0)]
    assert desk.store.saved == desk.remembered.state
    evidence = json.loads(desk.records("Unpin")[-1]["DEVWARD_EVIDENCE"][0])
    assert evidence["before"] == {"target": TARGET, "since_usec": NOW, "reason": WHY, "caller_uid": 1000}
    with pytest.raises(NoSuchPin, match=TARGET):
        desk.unpin()
    assert desk.pinning.of_vnpu("v0100", full=True)["pins"]
    desk.unpin(die(0))
    assert desk.pinning.report() is None
    assert desk.pinning.describe(full=True) == []
    assert desk.pinning.of_vnpu("v0100", full=True) == {"pins": []}


def test_what_could_not_be_saved_is_in_force_told_and_tried_again(desk: Desk) -> None:
    desk.store.fails = True
    assert desk.pin() == ActionResult(TARGET, Outcome.FAILURE, "not-saved")
    assert desk.offered() == ["v0100"]
    assert desk.pin() == ActionResult(TARGET, Outcome.FAILURE, "not-saved")
    desk.store.fails = False
    assert desk.pin() == ActionResult(TARGET, Outcome.NOOP, Reason.OK)
    assert desk.store.saved is not None
    assert desk.store.saved.pins == desk.pins
    desk.store.fails = True
    assert desk.unpin() == ActionResult(TARGET, Outcome.FAILURE, "not-saved")
    assert desk.records("Unpin")[-1]["DEVWARD_OUTCOME"] == ["failure"]


@pytest.mark.parametrize("late", [Reason.VNPU_DESTROYED, Reason.DESTRUCTION_BEGUN])
def test_a_pin_that_comes_too_late_is_in_force_and_says_so(desk: Desk, late: Reason) -> None:
    desk.late = late
    assert desk.pin() == ActionResult(TARGET, Outcome.FAILURE, late)
    assert desk.late_for == [(TARGET, ())], "what had begun before the pin was in force"
    assert [pin.target for pin in desk.pins] == [TARGET]
    record = desk.records("Pin")[-1]
    assert (record["DEVWARD_OUTCOME"], record["DEVWARD_REASON"]) == (["failure"], [late])
    assert record["MESSAGE"] == [f"Pin of {TARGET}: {REASON_TEXT[late]}"]
    # To ask again is to ask whether it is over.
    assert desk.pin() == ActionResult(TARGET, Outcome.FAILURE, late)
    desk.late = Reason.OK
    assert desk.pin() == ActionResult(TARGET, Outcome.NOOP, Reason.OK)


def test_a_pin_is_in_force_before_anything_is_waited_for(desk: Desk) -> None:
    async def main() -> None:
        pinning = asyncio.ensure_future(desk.pinning.pin(REQUEST, TARGET, WHY))
        # To its first wait, which is for the disk.
        await asyncio.sleep(0)
        assert ([pin.target for pin in desk.pins], desk.late_for) == ([TARGET], [(TARGET, ())])
        assert not pinning.done()
        await pinning

    asyncio.run(main())


def test_a_pin_that_comes_too_late_and_is_not_saved_says_both(desk: Desk) -> None:
    desk.late, desk.store.fails = Reason.VNPU_DESTROYED, True
    told = desk.do(lambda: desk.pinning.pin(REQUEST, TARGET, WHY))
    assert told == [ActionResult(TARGET, Outcome.FAILURE, Reason.VNPU_DESTROYED), ActionResult(TARGET, Outcome.FAILURE, "not-saved")]
    assert "lost at a restart" in desk.records("Pin")[-1]["MESSAGE"][0]


def test_pins_are_bounded(desk: Desk) -> None:
    desk.start(State(pins=tuple(Pin(f"{number:08X}{die(0)[8:]}", "x", 0, 1) for number in range(MAXIMUM_PINS))))
    assert desk.pin(die(7)).outcome is Outcome.NOOP
    with pytest.raises(LimitsExceeded, match="2048"):
        desk.pin()
    assert len(desk.pins) == MAXIMUM_PINS
    assert desk.records("Pin")[-1]["DEVWARD_OUTCOME"] == ["failure"]
    desk.unpin(die(7))
    assert desk.pin().outcome is Outcome.SUCCESS


def test_what_is_told_of_pins_and_to_whom(desk: Desk) -> None:
    desk.pin()
    desk.pin(f"{die(0)}/115/vir05_1c_16g", why="\x1b[31mred")
    identities = [pin.identity for pin in desk.pins if pin.identity]
    own, other = desk.pinning.describe(full=True)
    assert own == {
        "target": TARGET,
        "since_usec": NOW,
        "reason": WHY,
        "caller_uid": 1000,
        "standing": Standing.MATCHED,
        "matches": ["v0100"],
        "code": Reason.OK,
        "text": "",
    }
    assert (other["standing"], other["matches"], other["code"]) == (Standing.UNMATCHED, [], Reason.PIN_UNMATCHED)
    for entry in desk.pinning.describe(full=False):
        assert not entry.keys() & {"reason", "caller_uid"}
        assert entry["text"] == REASON_TEXT[Reason(str(entry["code"]))]
    told = desk.pinning.of_vnpu("v0100", full=True)
    assert told["pins"] == [{"target": TARGET, "since_usec": NOW, "reason": WHY, "caller_uid": 1000}]
    assert (told["pin_standing"], told["offerable"], told["not_offerable_because"]) == (Standing.MATCHED, True, "")
    assert WHY not in json.dumps(desk.pinning.of_vnpu("v0100", full=False))
    assert desk.pinning.of_vnpu("v0101", full=True) == {"pins": []}
    everything = json.dumps([desk.pinning.describe(full=True), told])
    assert not any(identity in everything for identity in identities)


def test_pins_are_judged_again_when_and_only_when_something_changed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.pin()
    first = desk.pinning.report()
    assert desk.pinning.report() is first
    desk.room.shown = replace(desk.room.shown)
    assert desk.pinning.report() is first, "an equal sight is the same"
    desk.room.sees(SILENT)
    silent = desk.pinning.report()
    assert silent is not first
    desk.pin(die(0))
    assert desk.pinning.report() is not silent


# --- the room ----------------------------------------------------------------------------------------------------------
async def nobody(*arguments: object, **limits: object) -> object:
    raise AssertionError((arguments, limits))


def test_what_was_not_looked_at_yet_is_in_doubt(desk: Desk) -> None:
    async def main() -> None:
        room = NpuRoom(
            NpuConfig(),
            audit=desk.audit,
            clock=Clock(),
            call=nobody,
            on_change=lambda: None,
            has_pins=lambda: True,
            claims=not_asked,
        )
        assert room.sight() == Sight(in_doubt=True), "the daemon starts"
        room.open()
        assert room.sight() == Sight(), "there is no NPU"
        room.seen(Trigger.UDEV)
        assert room.sight() == Sight(in_doubt=True), "one was seen, and the first look is under way"
        await room.configure(NpuConfig(NpuDevices.OFF))
        assert room.sight() == Sight(), "they are not looked at"
        await room.configure(NpuConfig())
        assert room.sight() == Sight(in_doubt=True), "they are again, and the first look is under way"
        await room.close()

    asyncio.run(main())


def test_npus_that_are_switched_off_from_the_start_match_nothing(desk: Desk) -> None:
    async def main() -> None:
        room = NpuRoom(
            NpuConfig(NpuDevices.OFF),
            audit=desk.audit,
            clock=Clock(),
            call=nobody,
            on_change=lambda: None,
            has_pins=lambda: True,
            claims=not_asked,
        )
        room.seen(Trigger.UDEV)
        room.open()
        assert room.sight() == Sight()
        await room.close()

    asyncio.run(main())


def test_a_host_without_pins_loads_nothing_for_them(tmp_path: Path) -> None:
    program = """
import sys
from devward.state import StateStore
import devward.app
store = StateStore(sys.argv[1], realtime_usec=lambda: 1)
store.save(store.load().state)
store.load()
assert "devward.npu.pins" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "state")], check=True, env={"PYTHONPATH": ":".join(sys.path)})
