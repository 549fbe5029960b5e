"""What the daemon has of NPUs where there are none, what it does at their first sight, and what the journal says of them."""

import asyncio
import fcntl
import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devward import names
from devward.audit import Audit
from devward.clock import Clock
from devward.config import NpuConfig
from devward.errors import BusError
from devward.model import NpuDevices, Trigger
from devward.npu.facts import Inventory
from devward.npu.inventory import Picture, Unavailable, assess
from devward.npu.memory import NO_MEMORY, Memory
from devward.npu.offers import not_asked
from devward.npu.room import NpuRoom
from devward.npu.trail import AT_ONCE, Trail, kill_broker
from devward.reasons import Reason
from sim.journal_sink import DrainedJournal, JournalSink, Record
from sim.npu_host import around, chip, inventory

#: What a host without NPUs loads of all this.
ALLOWED = {"devward.npu", "devward.npu.presence", "devward.npu.room", "devward.npu.sources"}


class Desk:
    """An audit trail, and what it wrote."""

    def __init__(self, path: Path) -> None:
        self.sink = JournalSink(str(path))
        self._ids = 0
        self.journal = DrainedJournal(self.sink, stderr=io.StringIO())
        self.audit = Audit(self.journal, version="1", new_id=self._new_id, monotonic=lambda: 1000.0)

    def _new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids}"

    def records(self, kind: str) -> list[Record]:
        return self.sink.records(DEVWARD_EVENT=kind)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "journal")
    yield made
    made.journal.close()
    made.sink.close()


# --- without NPUs -------------------------------------------------------------------------------------------------------
def test_the_daemon_loads_nothing_of_npus_before_the_first_is_seen() -> None:
    program = "import sys, json; import devward.app; print(json.dumps([name for name in sys.modules if name.startswith('devward.npu')]))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert set(json.loads(done.stdout)) == ALLOWED


class Nobody:
    """Stands for a service manager that nobody may call."""

    async def __call__(self, *arguments: Any, **limits: Any) -> object:
        raise AssertionError((arguments, limits))


def make_room(desk: Desk, config: NpuConfig | None = None) -> NpuRoom:
    return NpuRoom(
        config or NpuConfig(),
        audit=desk.audit,
        clock=Clock(),
        call=Nobody(),
        on_change=lambda: None,
        has_pins=lambda: False,
        claims=not_asked,
    )


def test_without_npus_there_is_nothing_to_show_and_nothing_to_do(desk: Desk) -> None:
    async def main() -> None:
        room = make_room(desk)
        room.open()
        room.look(Trigger.DBUS)
        await room.configure(NpuConfig(NpuDevices.OFF))
        await room.configure(NpuConfig())
        assert (tuple(room.cards()), tuple(room.vnpus()), tuple(room.findings())) == ((), (), ())
        assert room.describe(room.cards()) == {"host": {}, "kubelet": "", "cards": [], "vnpus": []}
        assert not room.may_have_idle
        assert isinstance(await room.witness((), None), Unavailable)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await room.close()

    asyncio.run(main())


@pytest.mark.parametrize("devices", NpuDevices)
def test_a_broker_may_be_destroying_whether_it_is_this_daemons_or_not(
    desk: Desk, devices: NpuDevices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "destroy.lock"
    monkeypatch.setattr(names, "BROKER_LOCK_FILE", str(lock))
    room = make_room(desk, NpuConfig(devices))
    assert not room.destroy_may_run()
    lock.touch()
    assert not room.destroy_may_run(), "a broker that is done leaves it"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert room.destroy_may_run()
    monkeypatch.setattr(names, "BROKER_LOCK_FILE", str(lock / "below-a-file"))
    assert room.destroy_may_run(), "it cannot be learned"


def test_a_sight_before_the_daemon_is_ready_waits_until_it_is(desk: Desk) -> None:
    async def main() -> None:
        room = make_room(desk)
        room.seen(Trigger.STARTUP)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        room.open()
        assert len(asyncio.all_tasks()) == 2
        await room.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        room.seen(Trigger.UDEV)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nor is anything begun after the end"

    asyncio.run(main())


def test_what_is_switched_off_stays_so(desk: Desk) -> None:
    async def main() -> None:
        room = make_room(desk, NpuConfig(NpuDevices.OFF))
        room.open()
        room.seen(Trigger.UDEV)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await room.configure(NpuConfig())
        assert len(asyncio.all_tasks()) == 2, "what was seen meanwhile is looked at"
        await room.configure(NpuConfig(NpuDevices.OFF))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await room.close()

    asyncio.run(main())


# --- the journal --------------------------------------------------------------------------------------------------------
class History:
    """Pictures, one after another, on record."""

    def __init__(self, desk: Desk) -> None:
        self._trail = Trail(desk.audit)
        self._picture, self._memory = Picture(), NO_MEMORY

    def goes_on(self, said: Inventory | Unavailable, memory: Memory | None = None) -> None:
        surroundings = around(said if isinstance(said, Inventory) else inventory())
        after, self._memory = assess(said, surroundings, memory or self._memory, 1)
        self._trail.record(self._picture, after, Trigger.UDEV)
        self._picture = after


def test_cards_and_vnpus_are_recorded_when_they_change_and_only_then(desk: Desk) -> None:
    history = History(desk)
    history.goes_on(inventory(chip(0, 100, 101)))
    (usable,) = desk.records("card-usable")
    assert usable["DEVWARD_SUBJECT"] == ["card/p000"]
    assert usable["DEVWARD_DEVICE"] == ["/dev/davinci0"]
    assert usable["DEVWARD_TRIGGER"] == ["udev"]
    (appeared,) = desk.records("vnpu-appeared")
    assert appeared["MESSAGE"] == ["vNPU 100 (vir05_1c_16g), 101 (vir05_1c_16g) of NPU p000 appeared"]
    assert (appeared["DEVWARD_COUNT"], appeared["DEVWARD_DEVICE"]) == (["2"], ["/dev/vdavinci100", "/dev/vdavinci101"])
    count = len(desk.sink.records())
    history.goes_on(inventory(chip(0, 100, 101)))
    assert len(desk.sink.records()) == count
    history.goes_on(inventory(chip(0, 100, health=2)))
    (unknown,) = desk.records("card-unknown")
    assert unknown["DEVWARD_REASON"] == ["npu-unhealthy"]
    assert "(health 2)" in unknown["MESSAGE"][0]
    (gone,) = desk.records("vnpu-gone")
    assert gone["MESSAGE"] == ["vNPU 101 (vir05_1c_16g) of NPU p000 gone"]
    history.goes_on(inventory())
    (lost,) = desk.records("card-gone")
    assert lost["DEVWARD_SUBJECT"] == ["card/p000"]


def test_another_vnpu_of_the_same_id_is_one_that_went_and_one_that_came(desk: Desk) -> None:
    history = History(desk)
    history.goes_on(inventory(chip(0, 100)))
    history.goes_on(replace(inventory(chip(0, 100)), boot_id="0" * 8 + "-0000-0000-0000-" + "0" * 12))
    assert len(desk.records("vnpu-appeared")) == 2
    assert len(desk.records("vnpu-gone")) == 1


def test_a_broker_that_is_silent_makes_no_vnpu_go(desk: Desk) -> None:
    history = History(desk)
    history.goes_on(inventory(chip(0, 100)))
    history.goes_on(Unavailable(Reason.NPU_BROKER_SILENT, "no answer"))
    history.goes_on(inventory(chip(0, 100)))
    assert desk.records("vnpu-gone") == []
    assert len(desk.records("vnpu-appeared")) == 1
    assert [record["DEVWARD_REASON"] for record in desk.records("card-unknown")] == [["npu-broker-silent"]]


def test_of_many_only_some_are_recorded_and_the_rest_counted(desk: Desk) -> None:
    history = History(desk)
    history.goes_on(inventory(*(chip(phy, *range(100 + 16 * phy, 116 + 16 * phy)) for phy in range(64))))
    assert len(desk.records("card-usable")) == AT_ONCE + 1
    assert desk.records("card-usable")[-1]["DEVWARD_COUNT"] == [str(64 - AT_ONCE)]
    assert len(desk.records("vnpu-appeared")) == AT_ONCE + 1
    assert desk.records("vnpu-appeared")[-1]["DEVWARD_COUNT"] == [str((64 - AT_ONCE) * 16)]


# --- a broker that hangs -------------------------------------------------------------------------------------------------
def test_a_broker_is_ended_by_the_service_manager_on_record(desk: Desk) -> None:
    calls = []

    async def call(*arguments: Any, **limits: Any) -> object:
        calls.append((arguments, limits))
        return ()

    assert asyncio.run(kill_broker(desk.audit, call)) == ""
    ((arguments, limits),) = calls
    assert arguments[:4] == ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "KillUnit")
    assert arguments[4:] == ("ssi", ("devward-dcmi.service", "all", signal.SIGKILL))
    assert limits == {"expect": "", "within": 5.0}
    assert [record["DEVWARD_OUTCOME"] for record in desk.records("broker-kill")] == [["intent"], ["success"]]


def test_one_that_cannot_be_ended_is_told(desk: Desk) -> None:
    async def call(*_: Any, **__: Any) -> object:
        raise BusError("Access denied")

    assert asyncio.run(kill_broker(desk.audit, call)) == "Access denied"
    intent, failure = desk.records("broker-kill")
    assert (intent["DEVWARD_OUTCOME"], failure["DEVWARD_OUTCOME"]) == (["intent"], ["failure"])
    assert failure["DEVWARD_REASON"] == ["npu-broker-silent"]
