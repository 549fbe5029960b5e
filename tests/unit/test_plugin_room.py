"""The device plugin as the daemon has it: loaded only when it is on, begun anew after a fault, and ended with other settings."""

import asyncio
import subprocess
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from devward.clock import Clock
from devward.model import Allocation, DeviceKind
from devward.plugin import room
from devward.plugin.decision import Answer, Verdict, Vouched
from devward.plugin.kept import kept_ids
from devward.plugin.room import PluginRoom
from devward.plugin.settings import PluginSettings
from devward.plugin.status import PluginProblem, PluginStatus, RegistrationState
from devward.plugin.trail import PluginTrail
from devward.reasons import Reason
from sim import kubelet_checkpoint
from sim.daemon_process import REPOSITORY
from sim.held_time import PATIENCE, until
from sim.plugin_host import RESOURCE, SPEC, standing

ON = PluginSettings(enabled=True)
REGISTERED = PluginStatus(RESOURCE, RegistrationState.REGISTERED, 1, registrations=1, streams=1, last_check_usec=1)


@dataclass
class Records:
    """In the place of the audit trail."""

    written: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)

    def transition(self, _key: str, kind: str, message: str, **fields: Any) -> None:
        self.written.append((kind, message, fields))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.written]


class Plugin:
    """In the place of DevicePlugin, without gRPC."""

    def __init__(self, settings: PluginSettings, **means: Any) -> None:
        self.settings = settings
        self.means = means
        self.offers: list[Any] = []
        self.status = REGISTERED
        self.fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.started = self.closed = False
        self.bad_offer: Exception | None = None
        self.hangs = False
        self.released = asyncio.Event()
        self.bad_end: Exception | None = None

    def start(self) -> None:
        self.started = True

    async def ended(self) -> None:
        await asyncio.shield(self.fault)

    async def close(self) -> None:
        if self.hangs:
            await self.released.wait()
        self.closed = True
        if self.bad_end is not None:
            raise self.bad_end

    def offer(self, *news: Any) -> None:
        if self.bad_offer is not None:
            raise self.bad_offer
        self.offers.append(news)


class Checks:
    """In the place of CheckAllocation."""

    async def check(self, device: str, request: Any) -> Allocation:
        self.asked = device, request
        return Allocation(allowed=True, reason=Reason.OK, text="")

    def good_monotonic(self, _: DeviceKind) -> float | None:
        return 7.0


class World:
    def __init__(self, settings: PluginSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records = Records()
        self.made: list[Plugin] = []
        self.load_errors: list[Exception] = []
        self.changes = 0
        self.checks = Checks()
        self.room = PluginRoom(
            settings,
            allocation=cast(Any, self.checks),
            new_id=lambda: "id-1",
            audit=cast(Any, self.records),
            clock=Clock(),
            on_change=self._changed,
        )

        async def load(_: PluginRoom) -> Any:
            if self.load_errors:
                raise self.load_errors[0]
            return self._make

        monkeypatch.setattr(PluginRoom, "_load", load)

    def _make(self, settings: PluginSettings, **means: Any) -> Plugin:
        self.made.append(Plugin(settings, **means))
        return self.made[-1]

    def _changed(self) -> None:
        self.changes += 1

    async def plugin(self, number: int = 1) -> Plugin:
        await until(lambda: len(self.made) >= number and self.made[number - 1].started)
        return self.made[number - 1]


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "RETRY", 0.01)


def test_nothing_of_grpc_is_loaded_while_the_plugin_is_off() -> None:
    code = "import sys, devward.app; print([name for name in sys.modules if name in ('grpc', 'google.protobuf')])"
    environment = {"PYTHONPATH": str(REPOSITORY / "src"), "LANG": "C.UTF-8"}
    loaded = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
    assert loaded == "[]\n"


def test_off_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = World(PluginSettings(), monkeypatch)
        world.room.start()
        world.room.offer([standing()], SPEC)
        await asyncio.sleep(0)
        assert world.room.status is None
        assert (world.room.not_ready(), world.room.line()) == ((), "")
        assert world.room.describe(full=True) == {"enabled": False}
        await world.room.close()
        assert world.made == []

    run(main())


def test_what_is_known_is_offered_when_it_begins_and_what_comes_later_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = World(ON, monkeypatch)
        world.room.offer([standing()], SPEC)
        assert world.room.not_ready() == ("device plugin: plugin-not-checked",)
        world.room.start()
        plugin = await world.plugin()
        assert plugin.offers == [([standing()], SPEC)]
        world.room.offer([], SPEC)
        assert plugin.offers[1:] == [([], SPEC)]
        assert world.room.status is REGISTERED
        assert world.room.line() == f"{RESOURCE} offered to the kubelet"
        await world.room.close()
        assert plugin.closed
        assert world.room.not_ready() == ("device plugin: plugin-stopped",)

    run(main())


def test_allocate_goes_the_way_of_check_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = World(ON, monkeypatch)
        world.room.start()
        plugin = await world.plugin()
        vouched = await plugin.means["check"](DeviceKind.KVM)
        assert vouched == Vouched(Allocation(allowed=True, reason=Reason.OK, text=""), 7.0)
        device, request = world.checks.asked
        assert (device, request.request_id, request.caller, request.trigger) == (f"{RESOURCE}=kvm", "id-1", None, "kubelet")
        await world.room.close()

    run(main())


@pytest.mark.parametrize("where", ["offer", "task", "end"])
def test_a_fault_ends_the_plugin_is_told_and_it_begins_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    async def main() -> None:
        world = World(ON, monkeypatch)
        world.room.start()
        plugin = await world.plugin()
        if where == "offer":
            plugin.bad_offer = RuntimeError("a\ndefect")
            world.room.offer([standing()], SPEC)
            world.room.offer([standing()], SPEC)
        elif where == "task":
            plugin.fault.set_exception(RuntimeError("a\ndefect"))
        else:
            plugin.fault.set_result(None)
        await until(lambda: plugin.closed)
        again = await world.plugin(2)
        await until(lambda: "plugin-failed" in world.records.kinds or where == "end")
        world.room.offer([standing()], SPEC)
        assert again.offers
        await world.room.close()
        if where != "end":
            assert "a defect" in caplog.text.replace("\n", " ")
            (message,) = [message for kind, message, _ in world.records.written if kind == "plugin-failed"]
            assert "a\\x0adefect" in message

    run(main())


def test_a_fault_that_comes_again_is_told_in_full_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World(ON, monkeypatch)
        world.room.start()
        for number in (1, 2, 3):
            (await world.plugin(number)).bad_offer = RuntimeError("a defect")
            world.room.offer([standing()], SPEC)
        await world.plugin(4)
        await world.room.close()

    run(main())
    assert caplog.text.count("Traceback") == 1


def test_a_library_that_is_missing_is_said_once_and_found_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = World(ON, monkeypatch)
        world.load_errors = [room._Unusable("ModuleNotFoundError: No module named 'grpc'")]
        world.room.start()
        await until(lambda: world.changes > 3)
        assert world.room.not_ready() == ("device plugin: plugin-library-missing",)
        assert world.records.kinds == ["plugin-failed"]
        assert "python3-grpcio" in world.records.written[0][1]
        assert "No module named 'grpc'" in world.records.written[0][1]
        world.load_errors = []
        await world.plugin()
        assert world.room.not_ready() == ()
        await world.room.close()

    run(main())


def test_loading_turns_every_error_into_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        made = PluginRoom(ON, allocation=cast(Any, None), new_id=str, audit=cast(Any, Records()), clock=Clock(), on_change=lambda: None)
        monkeypatch.setitem(sys.modules, "devward.plugin.device_plugin", None)
        with pytest.raises(room._Unusable, match="halted"):
            await made._load()

    run(main())


def test_other_settings_end_the_plugin_and_begin_it_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = World(ON, monkeypatch)
        await world.room.configure(replace(ON, slots=3))  # before the start nothing is begun
        assert world.made == []
        world.room.start()
        first = await world.plugin()
        assert first.settings.slots == 3
        await world.room.configure(replace(ON, slots=3))
        assert not first.closed
        await world.room.configure(replace(ON, slots=4))
        assert first.closed
        second = await world.plugin(2)
        assert second.settings.slots == 4
        await world.room.configure(PluginSettings())
        assert second.closed
        assert world.room.status is None
        await world.room.configure(ON)
        await world.plugin(3)
        await world.room.close()

    run(main())


def test_what_is_measured_never_goes_back_however_often_the_plugin_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def counts(world: World) -> tuple[int, ...] | None:
        now = world.room.measures()
        return (now.registrations, now.failures, now.given, now.refused) if now is not None else None

    async def main() -> None:
        world = World(PluginSettings(), monkeypatch)
        assert world.room.measures() is None
        await world.room.configure(ON)
        world.room.start()
        assert counts(world) == (0, 0, 0, 0)
        first = await world.plugin()
        first.status = replace(REGISTERED, registrations=4, failures=3, given=2, refused=1)
        assert counts(world) == (4, 3, 2, 1)
        await world.room.configure(replace(ON, slots=3))
        assert counts(world) == (4, 3, 2, 1)
        second = await world.plugin(2)
        second.status = replace(REGISTERED, registrations=1, given=5)
        assert counts(world) == (5, 3, 7, 1)
        second.fault.set_exception(ValueError("made up"))
        await world.plugin(3)
        assert counts(world) == (5 + REGISTERED.registrations, 3, 7, 1)
        await world.room.configure(replace(ON, resource="a/other"))
        other = await world.plugin(4)
        other.status = replace(REGISTERED, resource="a/other")
        assert counts(world) == (REGISTERED.registrations, 0, 0, 0)
        await world.room.configure(PluginSettings())
        assert world.room.measures() is None
        await world.room.close()

    run(main())


def test_of_two_changes_at_a_time_one_plugin_is_left_and_none_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = World(ON, monkeypatch)
        world.room.start()
        await world.plugin()
        await asyncio.gather(*(world.room.configure(replace(ON, slots=slots)) for slots in (3, 4, 3)))
        await until(lambda: [plugin.settings.slots for plugin in world.made if plugin.started and not plugin.closed] == [3])
        await asyncio.gather(world.room.configure(replace(ON, slots=5)), world.room.close())
        world.room.start()
        await asyncio.sleep(0.01)
        assert all(plugin.closed for plugin in world.made)

    run(main())


def test_a_plugin_that_does_not_end_holds_up_nothing_for_long(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(room, "CLOSE_DEADLINE", 0.01)

    async def main() -> None:
        world = World(ON, monkeypatch)
        world.room.start()
        plugin = await world.plugin()
        plugin.hangs = True
        async with asyncio.timeout(PATIENCE):
            await world.room.close()

    run(main())
    assert "did not end" in caplog.text


def test_none_begins_before_one_that_is_slow_to_end_has_ended_and_takes_nothing_from_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CLOSE_DEADLINE", 0.01)

    async def main() -> None:
        world = World(ON, monkeypatch)
        world.room.start()
        first = await world.plugin()
        first.hangs = True
        for slots in (3, 4):
            await world.room.configure(replace(ON, slots=slots))
            await asyncio.sleep(0.01)
            assert world.made == [first]
            assert world.room.status is first.status
        first.released.set()
        second = await world.plugin(2)
        assert first.closed
        assert second.settings.slots == 4
        second.status = replace(REGISTERED, registrations=7)
        assert world.room.status is second.status
        world.room.offer([standing()], SPEC)
        assert second.offers
        second.bad_offer = RuntimeError("a defect")
        world.room.offer([standing()], SPEC)
        await world.plugin(3)
        assert len(world.made) == 3
        await world.room.close()

    run(main())


def test_one_that_breaks_off_while_it_ends_leaves_the_place_to_the_next(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        world = World(ON, monkeypatch)
        world.room.start()
        first = await world.plugin()
        first.status = replace(REGISTERED, given=2)
        first.bad_end = RuntimeError("a defect")
        await world.room.configure(replace(ON, slots=3))
        second = await world.plugin(2)
        assert second.settings.slots == 3
        assert world.room.status is second.status
        measures = world.room.measures()
        assert measures is not None
        assert measures.given == 2
        await world.room.close()

    run(main())
    assert "a defect" in caplog.text
    assert "did not end within" not in caplog.text


def test_what_another_program_has_named_is_for_administrators(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = World(ON, monkeypatch)
        world.room.start()
        plugin = await world.plugin()
        plugin.status = replace(REGISTERED, state=RegistrationState.TAKEN, problem=PluginProblem.TAKEN, detail="secret.sock", streams=0)
        assert "secret.sock" in str(world.room.describe(full=True))
        told = world.room.describe(full=False)
        assert "secret.sock" not in str(told)
        assert (told["enabled"], told["problem"]) == (True, "plugin-taken")
        await world.room.close()

    run(main())


# --- what is recorded ---


def test_each_registration_is_recorded_and_what_lasts_is_recorded_once() -> None:
    records = Records()
    trail = PluginTrail(cast(Any, records))
    waiting = replace(REGISTERED, state=RegistrationState.WAITING, problem=PluginProblem.KUBELET_ABSENT)
    registering = replace(REGISTERED, state=RegistrationState.REGISTERING, problem=PluginProblem.REGISTERING)
    failed = replace(REGISTERED, state=RegistrationState.FAILED, problem=PluginProblem.KUBELET_REFUSES, detail="no")
    taken = replace(REGISTERED, state=RegistrationState.TAKEN, problem=PluginProblem.TAKEN, detail="a.sock")
    story = [
        *(waiting, registering, REGISTERED, replace(REGISTERED, given=1)),
        *(replace(waiting, problem=PluginProblem.SOCKET_GONE), registering, replace(REGISTERED, registrations=2)),
        *(failed, replace(registering, problem=failed.problem), replace(failed, failures=2)),
        *(taken, taken, replace(taken, detail="b.sock"), failed),
    ]
    for status in story:
        trail.record(status)
    assert records.kinds == [*("plugin-registered", "plugin-registered", "plugin-failed", "plugin-taken", "plugin-taken", "plugin-failed")]
    assert [message.rpartition("(")[2] for kind, message, _ in records.written if kind == "plugin-taken"] == ["a.sock).", "b.sock)."]
    assert records.written[2][2]["reason"] == "plugin-kubelet-refuses"
    assert records.written[2][2]["subject"] == RESOURCE


def test_a_refusal_to_the_kubelet_is_recorded_with_its_device() -> None:
    records = Records()
    trail = PluginTrail(cast(Any, records))
    trail.refused(DeviceKind.KVM, Verdict(Answer.REFUSE, Reason.HYPERVISOR_BUSY, "Why."))
    trail.refused(None, Verdict(Answer.REFUSE, Reason.DEVICE_MISSING, "It is no device."))
    assert records.kinds == ["allocation-refused"] * 2
    assert records.written[0][1] == "Refused the kubelet /dev/kvm for a container: Why."
    assert records.written[1][1] == "Refused the kubelet what it asks for: It is no device."
    assert [(fields["device"], fields["reason"], fields["trigger"]) for _, _, fields in records.written] == [
        ("/dev/kvm", "hypervisor-busy", "kubelet"),
        ("", "device-missing", "kubelet"),
    ]


# --- what the kubelet has on record ---


def test_the_ids_that_the_kubelet_keeps_are_those_of_its_checkpoint(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(".")
    assert kept_ids(str(tmp_path), RESOURCE) == ()
    document = kubelet_checkpoint.document([], {RESOURCE: ["kvm-0", "gpu-1"], "example.com/other": ["x"]})
    kubelet_checkpoint.write(tmp_path, kubelet_checkpoint.encoded(document))
    assert kept_ids(str(tmp_path), RESOURCE) == kept_ids(str(link), RESOURCE) == ("kvm-0", "gpu-1")
    assert kept_ids(str(tmp_path), "example.com/none") == ()
    kubelet_checkpoint.write(tmp_path, b"{")
    assert kept_ids(str(tmp_path), RESOURCE) is None
