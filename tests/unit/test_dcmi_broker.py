"""The broker as a real process before a simulated library: what it answers, what it survives, and when it ends."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devward.boot import read_boot_id
from devward.cluster.evidence import Finding, SourceState
from devward.cluster.statement import AskedVnpu, Statement
from devward.notify import Notifier
from devward.npu import broker
from devward.npu.caller import Caller
from devward.npu.destruction import ScanResult, read_node
from devward.npu.facts import Aspect, Expected, Mode, Node, Outcome, Problem, Refusal, Refused
from devward.npu.gate import Gate
from devward.npu.numbering import WILDCARD
from devward.npu.protocol import (
    REQUEST_LIMIT,
    Answer,
    DestroyAnswer,
    DestroyRequest,
    InspectAnswer,
    InspectRequest,
    ListAnswer,
    ListRequest,
    RefusedAnswer,
    WitnessAnswer,
    WitnessRequest,
    encode_request,
    parse_answer,
)
from devward.npu.service import LONGEST_WAIT_NS, Service, Settings, require_wanted
from sim.bundle_host import CONTAINERD, made
from sim.dcmi_broker import CRASH, DEADLINE, GO, GOOD, WAIT, BrokerHost, until
from sim.dcmi_families import FAMILIES
from sim.dcmi_simulator import Chip, DcmiSimulator, Vnpu, build_library, second_symbols
from sim.dcmi_vendor import FakeChip, FakeVendor, vnpu
from sim.journal_sink import JournalSink
from sim.notify_sink import NotifySink

#: Seconds after which calls count as hung, in tests that want that.
SOON = 0.2
#: The same in tests where other calls have to return within it, also on a machine that stands still for a moment.
LATER = 2.0
RUNTIME = "containerd://1.7.2"
DESTROY_CALL = "dcmi_set_destroy_vdevice"


@pytest.fixture(name="cache", scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dcmi")


@pytest.fixture(name="host")
def _host() -> Iterator[BrokerHost]:
    if os.geteuid() != 0:
        pytest.skip("needs root: the broker serves root alone")
    with BrokerHost() as host:
        yield host


@pytest.fixture(name="simulator")
def _simulator(host: BrokerHost, cache: Path) -> Iterator[DcmiSimulator]:
    with DcmiSimulator(host.directory / "node", build_library(cache)) as simulator:
        simulator.install(host.library)
        yield simulator


class Bench:
    """A broker with one chip that has one vNPU, made ready to be destroyed."""

    def __init__(self, host: BrokerHost, simulator: DcmiSimulator) -> None:
        self.host = host
        self.simulator = simulator
        simulator.add_chip("910B3")
        self.chip: Chip = simulator.add_chip("910B3")
        self.vnpu: Vnpu = simulator.create(self.chip, "vir05_1c_16g")
        self.other: Vnpu = simulator.create(self.chip, "vir10_3c_32g")
        host.add_node(self.vnpu.id)
        self.options: dict[str, object] = {}
        self.variables: dict[str, str] = {}

    def start(self, **options: object) -> "subprocess.Popen[bytes]":
        return self.host.start({**self.simulator.environment, **self.variables}, **self.options, **options)

    def request(self, *, expires_in: float = 100, **changes: object) -> DestroyRequest:
        """Return what destroys the vNPU, or differs from that."""
        expected: dict[str, object] = {
            "boot_id": read_boot_id(),
            "card": self.chip.card,
            "device": self.chip.dev,
            "phy": self.chip.phy,
            "die": self.chip.vdie,
            "vdev": self.vnpu.id,
            "vfid": self.vnpu.id - self.chip.first_vdev + 1,
            "template": self.vnpu.name,
            "node": read_node(self.vnpu.id, str(self.host.devices)),
        }
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        expires = now + int(expires_in * 1e9)
        return DestroyRequest(5, "request-5", expires, RUNTIME, Expected(**{**expected, **changes}))  # type: ignore[arg-type]

    def ask(self, request: DestroyRequest | InspectRequest | ListRequest) -> Answer:
        with self.host.connect() as connection:
            return connection.ask(request)

    @property
    def destroyed(self) -> list[int]:
        """The ids that the library was called with to destroy."""
        return [int(call.arguments["id"]) for call in self.simulator.calls(DESTROY_CALL)]

    @property
    def left(self) -> list[int]:
        return sorted(vnpu.id for vnpu in self.simulator.vnpus())


@pytest.fixture(name="bench")
def _bench(host: BrokerHost, simulator: DcmiSimulator) -> Bench:
    return Bench(host, simulator)


def ends(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the end of a broker and return its exit status."""
    return process.wait(timeout=DEADLINE)


def refusal(answer: Answer) -> Refusal:
    assert isinstance(answer, RefusedAnswer), answer
    return answer.reason


# --- list and inspect -------------------------------------------------------------------------------------------------
def test_every_family_is_listed(host: BrokerHost, simulator: DcmiSimulator) -> None:
    chips = [simulator.add_chip(family, card=card, dev=0) for card, family in enumerate(FAMILIES)]
    chips.append(simulator.add_chip("910C", card=chips[-1].card, dev=1))
    vnpus = {chip: [simulator.create(chip, template[0]) for template in FAMILIES[chip.family].templates[:2]] for chip in chips}
    held = simulator.occupy(vnpus[chips[0]][0])
    host.start(simulator.environment)
    with host.connect() as connection:
        answer = connection.ask(ListRequest(7))
    assert isinstance(answer, ListAnswer)
    inventory = answer.inventory
    assert (answer.id, inventory.boot_id, inventory.library) == (7, read_boot_id(), str(host.library))
    assert (inventory.dcmi_version, inventory.mode, inventory.recover, inventory.problems) == ("25.5.0", Mode.DOCKER, True, ())
    assert len(inventory.chips) == len(chips)
    for found, chip in zip(inventory.chips, sorted(chips, key=lambda one: (one.card, one.dev)), strict=True):
        assert (found.card, found.device, found.phy, found.logic, found.die) == (chip.card, chip.dev, chip.phy, chip.logic, chip.vdie)
        assert (found.health, found.chip_type, found.chip_name, found.cores) == (0, "Ascend", chip.name, chip.cores)
        assert found.has_no_vnpus is not bool(FAMILIES[chip.family].templates)
        if found.has_no_vnpus:
            assert found.vnpus is None
            continue
        assert found.problems == ()
        assert found.vnpus is not None
        assert [(one.vdev, one.vfid, one.template, one.in_use, one.cores, one.memory_mb) for one in found.vnpus] == [
            (one.id, one.id - chip.first_vdev + 1, one.name, one.id == held.id, one.aic, one.memory) for one in vnpus[chip]
        ]


def test_a_chip_is_inspected(bench: Bench) -> None:
    bench.start()
    answer = bench.ask(InspectRequest(3, bench.chip.card, bench.chip.dev))
    assert isinstance(answer, InspectAnswer)
    inspection = answer.inspection
    assert (inspection.chip.die, inspection.problems) == (bench.chip.vdie, ())
    assert inspection.total is not None
    assert inspection.free is not None
    assert (inspection.total.cores, inspection.free.cores) == (20.0, 5.0)
    assert (inspection.total.memory_mb, inspection.total.aicpus) == (65536, 7)
    assert inspection.processes == ()
    assert refusal(bench.ask(InspectRequest(3, 9, 0))) is Refusal.NO_SUCH_CHIP


def test_the_largest_node_is_listed(host: BrokerHost, simulator: DcmiSimulator) -> None:
    for card in range(64):
        chip = simulator.add_chip("910A", card=card)
        if card % 16 == 0:
            for slot in range(16):
                simulator.create(chip, "vir02", vdev=chip.first_vdev + slot, recorded=False)
    host.start(simulator.environment)
    with host.connect() as connection:
        answer = connection.ask(ListRequest(1))
    assert isinstance(answer, ListAnswer)
    assert [len(chip.vnpus or ()) for chip in answer.inventory.chips] == [16 if card % 16 == 0 else 0 for card in range(64)]


def test_the_library_lies_in_lists(bench: Bench) -> None:
    bench.start()
    for action, aspect in {"long": Aspect.VNPUS, "half": Aspect.VNPUS}.items():
        serial = bench.simulator.fault("dcmi_get_device_info", action, sub=1)
        answer = bench.ask(ListRequest(1))
        assert isinstance(answer, ListAnswer)
        assert [(chip.vnpus, chip.problems) for chip in answer.inventory.chips[1:]] == [(None, (Problem(aspect, None),))]
        bench.simulator.clear_faults(serial)
    bench.simulator.set_vnpu(bench.vnpu, name="vir\x1b[2J")
    answer = bench.ask(ListRequest(1))
    assert isinstance(answer, ListAnswer)
    assert answer.inventory.chips[1].problems == (Problem(Aspect.TEMPLATE, None, bench.vnpu.id),)


@pytest.mark.parametrize("seed", range(8))
def test_garbage_from_the_library_is_answered(bench: Bench, seed: int) -> None:
    process = bench.start()
    bench.simulator.fault("*", "garbage", value=seed, skip=1)
    assert isinstance(bench.ask(ListRequest(1)), ListAnswer | RefusedAnswer)
    assert isinstance(bench.ask(bench.request()), RefusedAnswer)
    assert bench.destroyed == []
    bench.simulator.clear_faults()
    assert isinstance(bench.ask(ListRequest(1)), ListAnswer)
    assert process.poll() is None


# --- destroy -----------------------------------------------------------------------------------------------------------
def test_the_expected_vnpu_is_destroyed_and_recorded(bench: Bench, tmp_path: Path) -> None:
    with JournalSink(str(tmp_path / "journal")) as journal:
        bench.start(journal=journal.path)
        assert bench.ask(bench.request()) == DestroyAnswer(5, Outcome.DESTROYED, 0, "it is not listed any more")
        assert bench.destroyed == [bench.vnpu.id]
        assert bench.left == [bench.other.id]
        about = {"DEVWARD_DEVICE": f"vdavinci{bench.vnpu.id}", "DEVWARD_REQUEST_ID": "request-5", "SYSLOG_IDENTIFIER": "devward-dcmi"}
        first, last = journal.records(**about)
        assert first["MESSAGE"] == [
            f"Destroying vNPU {bench.vnpu.id}, template vir05_1c_16g, on card 1 device 0, die {bench.chip.vdie}, for the request request-5"
        ]
        assert last["DEVWARD_OUTCOME"] == ["destroyed"]
        assert refusal(bench.ask(bench.request())) is Refusal.VNPU_ABSENT
        assert journal.records(**about)[-1]["DEVWARD_REASON"] == ["vnpu-absent"]


MISMATCHES = {
    "boot_id": ("11111111-1111-4222-8333-444455556666", Refusal.BOOT_DIFFERS),
    "card": (0, Refusal.PHY_DIFFERS),
    "phy": (0, Refusal.OUTSIDE_WINDOW),
    "die": ("00000000-00000000-00000000-00000000-00000001", Refusal.DIE_DIFFERS),
    "vfid": (2, Refusal.VFID_DIFFERS),
    "template": ("vir10_3c_32g", Refusal.TEMPLATE_DIFFERS),
}


def test_nothing_else_is_destroyed(bench: Bench) -> None:
    process = bench.start()
    for field, (value, reason) in MISMATCHES.items():
        assert refusal(bench.ask(bench.request(**{field: value}))) is reason
    assert refusal(bench.ask(bench.request(vdev=WILDCARD))) is Refusal.WILDCARD
    assert refusal(bench.ask(bench.request(vdev=bench.chip.first_vdev - 1))) is Refusal.OUTSIDE_WINDOW
    request = bench.request()
    node = bench.host.devices / f"vdavinci{bench.vnpu.id}"
    node.chmod(0o660)
    assert refusal(bench.ask(request)) is Refusal.NODE_DIFFERS
    node.unlink()
    assert refusal(bench.ask(request)) is Refusal.NODE_MISSING
    bench.host.add_node(bench.vnpu.id)
    for scan, reason in ((Finding.HELD, Refusal.SCAN_IN_USE), (Finding.UNKNOWN, Refusal.SCAN_UNKNOWN), ("nonsense", Refusal.INTERNAL)):
        bench.host.set_scan(scan)
        assert refusal(bench.ask(bench.request())) is reason
    bench.host.set_scan(Finding.CLEAN)
    bench.simulator.occupy(bench.vnpu)
    assert refusal(bench.ask(bench.request())) is Refusal.IN_USE
    bench.simulator.release(bench.vnpu)
    bench.simulator.set_node(mode=1)
    assert refusal(bench.ask(bench.request())) is Refusal.VM_MODE
    bench.simulator.set_node(mode=0)
    assert refusal(bench.ask(bench.request(expires_in=-1))) is Refusal.EXPIRED
    assert refusal(bench.ask(bench.request(expires_in=LONGEST_WAIT_NS / 1e9 + 60))) is Refusal.EXPIRED
    assert bench.destroyed == []
    assert bench.left == [bench.vnpu.id, bench.other.id]
    assert process.poll() is None
    # The same broker still destroys what is right.
    assert isinstance(bench.ask(bench.request()), DestroyAnswer)


LIES = [
    ("code", 0, False, Outcome.STILL_PRESENT, 0),
    ("code", -8014, True, Outcome.DESTROYED, -8014),
    ("code", -8001, False, Outcome.STILL_PRESENT, -8001),
    ("code", -8002, False, Outcome.STILL_PRESENT, -8002),
    ("code", -8006, True, Outcome.DESTROYED, -8006),
]


@pytest.mark.parametrize(("action", "value", "effect", "outcome", "code"), LIES)
def test_presence_decides_and_not_the_code(bench: Bench, action: str, value: int, effect: bool, outcome: Outcome, code: int) -> None:
    bench.start()
    bench.simulator.fault(DESTROY_CALL, action, value=value, effect=effect)
    answer = bench.ask(bench.request())
    assert isinstance(answer, DestroyAnswer)
    assert (answer.outcome, answer.code) == (outcome, code)
    assert bench.destroyed == [bench.vnpu.id]


def test_a_list_that_fails_afterwards_leaves_it_unknown(bench: Bench) -> None:
    bench.start()
    # Two looks before it, with one such call each.
    bench.simulator.fault("dcmi_get_device_info", "code", value=-8012, sub=1, card=bench.chip.card, skip=2)
    answer = bench.ask(bench.request())
    assert isinstance(answer, DestroyAnswer)
    assert (answer.outcome, answer.code) == (Outcome.UNKNOWN, 0)


def test_a_caller_that_goes_away_during_the_scan_gets_nothing_destroyed(bench: Bench, tmp_path: Path) -> None:
    with JournalSink(str(tmp_path / "journal")) as journal:
        bench.start(journal=journal.path)
        bench.host.set_scan(WAIT)
        with bench.host.connect() as connection:
            connection.send(encode_request(bench.request()))
            until((bench.host.directory / "scan.begun").exists, "the scan begins")
        bench.host.set_scan(Finding.CLEAN)
        journal.wait_for(lambda record: record.get("DEVWARD_REASON") == ["caller-gone"])
        assert bench.destroyed == []


def test_a_caller_is_wanted_while_it_waits() -> None:
    def reason(seconds: float, caller: Caller) -> Refusal | None:
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        expected = Expected("", 0, 0, 0, "", 100, 1, "", Node(1, 1, 1, 1))
        try:
            require_wanted(DestroyRequest(1, "r", now + int(seconds * 1e9), RUNTIME, expected), caller)
        except Refused as refused:
            return refused.reason
        return None

    here, there = socket.socketpair()
    caller = Caller(here)
    assert reason(60, caller) is None
    assert reason(-0.001, caller) is Refusal.EXPIRED
    assert reason(LONGEST_WAIT_NS / 1e9 + 60, caller) is Refusal.EXPIRED
    there.close()
    assert reason(60, caller) is Refusal.CALLER_GONE
    caller.close()


def test_a_list_for_one_who_has_gone_is_given_up(bench: Bench) -> None:
    bench.start()
    serial = bench.simulator.fault("dcmi_get_device_health", "hang")
    with bench.host.connect() as connection:
        connection.send(encode_request(ListRequest(1)))
        bench.simulator.wait_for("dcmi_get_device_health")
    bench.simulator.clear_faults(serial)
    until(lambda: isinstance(bench.ask(ListRequest(2)), ListAnswer), "the broker is free")
    # One chip for the first caller, two for the second.
    assert len(bench.simulator.calls("dcmi_get_device_health")) == 3


def test_an_error_of_our_own_after_the_call_leaves_it_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: to make a device node")
    vendor = FakeVendor({(0, 0): FakeChip(0, vnpus={100: vnpu(100)})})
    os.mknod(tmp_path / "vdavinci100", 0o20600, os.makedev(4000, 100))
    node = read_node(100, str(tmp_path))
    die = "00000001-00000002-00000003-00000004-00000005"
    expires = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + LONGEST_WAIT_NS // 2
    expected = Expected(read_boot_id(), 0, 0, 0, die, 100, 1, "vir05_1c_16g", node)
    request = DestroyRequest(5, "request-5", expires, RUNTIME, expected)
    clean = ScanResult(Finding.CLEAN, "by the test")
    held = Settings(None, str(tmp_path / "lock"), str(tmp_path), lambda: GOOD, lambda *_: clean, broker.HostObserver)
    service = Service(held, Gate(DEADLINE, lambda: None), Notifier({}, monotonic=time.monotonic))
    monkeypatch.setattr(service._access, "open", lambda: vendor)
    here, there = socket.socketpair()
    caller = Caller(here)

    def answer() -> Answer:
        service.serve(encode_request(request), caller)
        return parse_answer(there.recv(4096))

    def break_after(call: str) -> None:
        if call == "total_resources" and len(vendor.destroyed) == 1:
            raise RuntimeError("no library does this")

    def break_before(call: str) -> None:
        raise RuntimeError(f"nor this: {call}")

    vendor.before = break_after
    found = answer()
    assert isinstance(found, DestroyAnswer)
    assert (found.outcome, found.code) == (Outcome.UNKNOWN, 0)
    vendor.before = break_before
    assert refusal(answer()) is Refusal.INTERNAL
    there.close()
    caller.close()


# --- hanging and ending ---------------------------------------------------------------------------------------------------
def test_a_hang_in_a_list_ends_the_broker(bench: Bench) -> None:
    process = bench.start(hang_limit=LATER)
    bench.simulator.fault("dcmi_get_device_health", "hang")
    with bench.host.connect() as connection:
        answer = connection.ask(ListRequest(1))
        assert refusal(answer) is Refusal.HUNG
        assert "dcmi_get_device_health" in answer.text  # type: ignore[union-attr]
        with pytest.raises(EOFError):
            connection.receive()
    assert ends(process) == broker.EXIT_HUNG
    # A fresh one answers.
    bench.simulator.clear_faults()
    bench.start()
    assert isinstance(bench.ask(ListRequest(1)), ListAnswer)


@pytest.mark.parametrize("call", ["dcmi_init", "dcmi_get_device_info", "dcmi_get_vdevice_mode"])
def test_a_hang_before_a_destroy_ends_the_broker(bench: Bench, call: str) -> None:
    process = bench.start(hang_limit=SOON)
    bench.simulator.fault(call, "hang")
    assert refusal(bench.ask(bench.request())) is Refusal.HUNG
    assert ends(process) == broker.EXIT_HUNG
    bench.simulator.clear_faults()
    assert bench.destroyed == []


def test_a_hang_in_a_scan_ends_the_broker(bench: Bench) -> None:
    process = bench.start(hang_limit=SOON)
    bench.host.set_scan(WAIT)
    assert refusal(bench.ask(bench.request())) is Refusal.HUNG
    assert ends(process) == broker.EXIT_HUNG
    assert bench.destroyed == []


def test_a_hang_in_a_destroy_ends_nothing(bench: Bench) -> None:
    process = bench.start(hang_limit=LATER)
    serial = bench.simulator.fault(DESTROY_CALL, "hang", effect=True)
    with bench.host.connect() as connection, bench.host.connect() as other:
        connection.send(encode_request(bench.request()))
        bench.simulator.wait_for(DESTROY_CALL)
        assert refusal(other.ask(ListRequest(1))) is Refusal.BUSY
        process.send_signal(signal.SIGTERM)
        until(lambda: refusal(other.ask(ListRequest(1))) is Refusal.STOPPING, "it was told to stop")
        # Longer than anything else may hang, and others are answered meanwhile.
        end = time.monotonic() + 1.5 * LATER
        while time.monotonic() < end:
            assert refusal(other.ask(ListRequest(1))) is Refusal.STOPPING
            time.sleep(SOON / 10)
        assert process.poll() is None
        # Who connects now is the next broker's, and not this one's.
        second = bench.start()
        assert isinstance(bench.ask(ListRequest(1)), ListAnswer)
        assert refusal(bench.ask(bench.request())) is Refusal.DESTROY_RUNNING
        second.kill()
        bench.simulator.clear_faults(serial)
        answer = connection.receive()
    assert isinstance(answer, DestroyAnswer)
    assert (answer.outcome, answer.code) == (Outcome.DESTROYED, 0)
    # And then it stops, as it was told.
    assert ends(process) == broker.EXIT_OK


def test_a_hang_in_the_list_after_a_destroy_leaves_it_unknown(bench: Bench) -> None:
    process = bench.start(hang_limit=LATER)
    bench.simulator.fault("dcmi_get_device_info", "hang", sub=1, card=bench.chip.card, skip=2)
    assert bench.ask(bench.request()) == DestroyAnswer(
        5, Outcome.UNKNOWN, 0, "it is not known whether it is still there; the library says: the call succeeded (0)"
    )
    assert ends(process) == broker.EXIT_HUNG


def test_it_stops_at_once_when_nothing_is_destroyed(bench: Bench) -> None:
    process = bench.start()
    bench.simulator.fault("dcmi_get_device_health", "hang")
    with bench.host.connect() as connection:
        connection.send(encode_request(ListRequest(1)))
        bench.simulator.wait_for("dcmi_get_device_health")
        process.send_signal(signal.SIGTERM)
        assert ends(process) == broker.EXIT_OK


@pytest.mark.parametrize("action", ["segv", "abort", "exit"])
def test_a_crash_costs_one_request(bench: Bench, action: str) -> None:
    process = bench.start()
    bench.simulator.fault(DESTROY_CALL, action, times=1)
    with bench.host.connect() as connection:
        connection.send(encode_request(bench.request()))
        with pytest.raises(EOFError):
            connection.receive()
    ends(process)
    bench.start()
    assert isinstance(bench.ask(bench.request()), DestroyAnswer)
    assert bench.left == [bench.other.id]


def test_a_second_broker_lists_but_does_not_destroy_while_the_first_does(bench: Bench) -> None:
    bench.start()
    serial = bench.simulator.fault(DESTROY_CALL, "hang", effect=True)
    with bench.host.connect() as connection:
        connection.send(encode_request(bench.request()))
        bench.simulator.wait_for(DESTROY_CALL)
        second = bench.start()
        # Both accept from one socket: until a connection comes to the second.
        until(lambda: isinstance(bench.ask(ListRequest(1)), ListAnswer), "a list by the second broker")
        until(lambda: refusal(bench.ask(bench.request())) is Refusal.DESTROY_RUNNING, "a refusal by the second broker")
        assert second.poll() is None
        bench.simulator.clear_faults(serial)
        assert isinstance(connection.receive(), DestroyAnswer)
    assert bench.destroyed == [bench.vnpu.id]


def test_the_watchdog_is_held_while_destroying_and_nowhere_else(bench: Bench, tmp_path: Path) -> None:
    with NotifySink(str(tmp_path / "notify")) as sink:
        bench.variables = {"NOTIFY_SOCKET": sink.path, "WATCHDOG_USEC": "120000000"}
        bench.start()
        sink.wait_for(lambda message: message.get("READY") == "1")
        serial = bench.simulator.fault(DESTROY_CALL, "hang", effect=True)
        with bench.host.connect() as connection:
            assert isinstance(connection.ask(ListRequest(1)), ListAnswer)
            assert not any("WATCHDOG_USEC" in message for message in sink.messages())
            connection.send(encode_request(bench.request()))
            bench.simulator.wait_for(DESTROY_CALL)
            assert [message for message in sink.messages() if "WATCHDOG_USEC" in message] == [{"WATCHDOG_USEC": "0"}]
            bench.simulator.clear_faults(serial)
            connection.receive()
        assert sink.messages()[-1] == {"WATCHDOG_USEC": "120000000", "WATCHDOG": "1"}


def test_the_watchdog_hears_of_an_idle_broker(bench: Bench, tmp_path: Path) -> None:
    with NotifySink(str(tmp_path / "notify")) as sink:
        bench.variables = {"NOTIFY_SOCKET": sink.path, "WATCHDOG_USEC": "20000"}
        bench.start()
        assert sink.wait_until(lambda: sum("WATCHDOG" in message for message in sink._messages) > 2, DEADLINE)


def test_it_leaves_a_host_without_npus_and_stays_where_there_are_any(bench: Bench) -> None:
    process = bench.start(idle_limit=SOON)
    assert ends(process) == broker.EXIT_OK
    with bench.host.connect() as connection:
        # After the connection, which it finds waiting: it never is without one before it knows of NPUs.
        process = bench.start(idle_limit=SOON)
        assert isinstance(connection.ask(ListRequest(1)), ListAnswer)
    end = time.monotonic() + 5 * SOON
    while time.monotonic() < end:
        assert process.poll() is None
        time.sleep(SOON / 10)
    for card in range(2):
        bench.simulator.remove_card(card)
    assert isinstance(bench.ask(ListRequest(1)), ListAnswer)
    assert ends(process) == broker.EXIT_OK


# --- the library ------------------------------------------------------------------------------------------------------------
def test_a_driver_that_comes_up_later_is_found(bench: Bench) -> None:
    bench.simulator.set_node(init_code=-8005)
    bench.start()
    answer = bench.ask(ListRequest(1))
    assert isinstance(answer, RefusedAnswer)
    assert (answer.reason, answer.code) == (Refusal.DCMI_FAILED, -8005)
    bench.simulator.set_node(init_code=0)
    assert isinstance(bench.ask(ListRequest(1)), ListAnswer)
    assert isinstance(bench.ask(ListRequest(1)), ListAnswer)
    assert len(bench.simulator.calls("dcmi_init")) == 2


def test_a_library_that_was_replaced_is_loaded_by_a_new_broker(bench: Bench) -> None:
    process = bench.start()
    with bench.host.connect() as connection:
        assert isinstance(connection.ask(ListRequest(1)), ListAnswer)
        bench.host.library.unlink()
        bench.simulator.install(bench.host.library)
        # It may have noticed by itself before the request came.
        with contextlib.suppress(EOFError, BrokenPipeError):
            assert refusal(connection.ask(ListRequest(2))) in (Refusal.LIBRARY_CHANGED, Refusal.STOPPING)
    assert ends(process) == broker.EXIT_OK
    bench.start()
    assert isinstance(bench.ask(ListRequest(1)), ListAnswer)


def test_a_library_that_cannot_be_trusted_or_used_is_not_loaded(bench: Bench, cache: Path) -> None:
    bench.start()
    bench.host.library.chmod(0o666)
    assert refusal(bench.ask(ListRequest(1))) is Refusal.LIBRARY_UNSAFE
    bench.host.library.write_bytes(b"no library")
    bench.host.library.chmod(0o644)
    assert refusal(bench.ask(ListRequest(1))) is Refusal.LIBRARY_UNUSABLE
    bench.host.library.unlink()
    assert refusal(bench.ask(ListRequest(1))) is Refusal.LIBRARY_MISSING
    assert bench.simulator.calls() == []


def test_libraries_without_calls(bench: Bench, cache: Path) -> None:
    def install(library: Path) -> None:
        bench.host.library.unlink()
        bench.host.library.write_bytes(library.read_bytes())
        bench.host.library.chmod(0o644)

    for library, reason in (
        (build_library(cache, symbols=second_symbols()), Refusal.LIBRARY_GENERATION),
        (build_library(cache, absent=["dcmi_init"]), Refusal.LIBRARY_UNUSABLE),
    ):
        install(library)
        process = bench.start()
        assert refusal(bench.ask(ListRequest(1))) is reason
        process.terminate()
        assert ends(process) == broker.EXIT_OK
    absent = ["dcmi_get_vdevice_mode", "dcmi_get_vnpu_config_recover_mode", "dcmi_get_dcmi_version", "dcmi_get_device_chip_info_v2"]
    install(build_library(cache, absent=absent))
    bench.start()
    answer = bench.ask(ListRequest(1))
    assert isinstance(answer, ListAnswer)
    assert (answer.inventory.mode, answer.inventory.recover, answer.inventory.dcmi_version) == (Mode.DOCKER, None, None)
    assert (answer.inventory.chips[0].chip_name, answer.inventory.chips[0].npu_name) == ("910B3", None)
    assert isinstance(bench.ask(bench.request()), DestroyAnswer)


def test_in_a_sandbox_nothing_is_loaded(bench: Bench) -> None:
    bench.start(environment="sandbox")
    for request in (ListRequest(1), InspectRequest(2, 0, 0), bench.request()):
        assert refusal(bench.ask(request)) is Refusal.MOUNT_NAMESPACE
    assert bench.simulator.calls() == []


def test_the_real_environment_is_asked(bench: Bench) -> None:
    bench.start(environment="real")
    answer = bench.ask(ListRequest(1))
    environment = {Refusal.MOUNT_NAMESPACE, Refusal.CAPABILITIES, Refusal.CONTAINER, Refusal.ENVIRONMENT_UNKNOWN}
    assert isinstance(answer, ListAnswer) or refusal(answer) in environment


# --- what the host shows ----------------------------------------------------------------------------------------------
FULL = AskedVnpu(148, 1, 7)


def look(*vnpus: AskedVnpu, expires_in: float = 60) -> WitnessRequest:
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return WitnessRequest(8, now + int(expires_in * 1e9), "containerd://2.1.9", vnpus)


def shown(answer: Answer) -> Statement:
    assert isinstance(answer, WitnessAnswer), answer
    return answer.statement


def stage(host: BrokerHost) -> None:
    """Put a kubelet, a container and a process with a device on the host."""
    host.witnessed.kubelets.kubelet()
    host.witnessed.bundles.task("1" * 64, made("containerd-vnpu.json"))
    host.witnessed.process(41, "/dev/full")


def test_the_host_is_told_of_without_a_library(host: BrokerHost) -> None:
    stage(host)
    host.start({})
    with host.connect() as connection:
        assert refusal(connection.ask(ListRequest(1))) is Refusal.LIBRARY_MISSING
        said = shown(connection.ask(look(FULL)))
    assert (said.vnpus[0].descriptors, said.vnpus[0].bundles) == (Finding.HELD, Finding.HELD)
    assert said.kubelet.kubelet is not None
    assert len(said.containers) == 1


def test_each_look_is_a_new_one(host: BrokerHost) -> None:
    stage(host)
    host.start({})
    with host.connect() as connection:
        assert shown(connection.ask(look(FULL))).vnpus[0].descriptors is Finding.HELD
        shutil.rmtree(host.witnessed.bundles.proc / "41")
        shutil.rmtree(host.witnessed.bundles.run / CONTAINERD / "k8s.io" / ("1" * 64))
        assert shown(connection.ask(look(FULL))).vnpus[0].finding is Finding.CLEAN


def test_without_privilege_the_broker_says_so(host: BrokerHost) -> None:
    host.witnessed.bundles.task("0" * 64, {})
    host.start({}, unprivileged="yes")
    with host.connect() as connection:
        said = shown(connection.ask(look(FULL)))
    assert (said.vnpus[0].finding, said.kubelet.state) == (Finding.UNKNOWN, SourceState.UNREADABLE)


def test_from_a_sandbox_nothing_is_told(host: BrokerHost) -> None:
    host.start({}, environment="sandbox")
    with host.connect() as connection:
        assert refusal(connection.ask(look(FULL))) is Refusal.MOUNT_NAMESPACE


def test_a_look_that_nobody_waits_for_is_not_begun(host: BrokerHost) -> None:
    host.start({})
    with host.connect() as connection:
        assert refusal(connection.ask(look(FULL, expires_in=-1))) is Refusal.EXPIRED
        assert refusal(connection.ask(look(FULL, expires_in=LONGEST_WAIT_NS / 1e9 + 60))) is Refusal.EXPIRED
    assert not host.look_begun


def test_a_look_for_one_who_has_gone_is_given_up(bench: Bench) -> None:
    bench.start()
    bench.host.set_look(WAIT)
    with bench.host.connect() as connection:
        connection.send(encode_request(look(FULL)))
        until(lambda: bench.host.look_begun, "a look begins")
    bench.host.set_look(GO)
    until(lambda: isinstance(bench.ask(ListRequest(2)), ListAnswer), "the broker is free")


def test_a_look_has_its_turn_like_any_other_request(bench: Bench) -> None:
    bench.start()
    serial = bench.simulator.fault(DESTROY_CALL, "hang", effect=True)
    with bench.host.connect() as connection:
        connection.send(encode_request(bench.request()))
        bench.simulator.wait_for(DESTROY_CALL)
        assert refusal(bench.ask(look(FULL))) is Refusal.BUSY
        bench.simulator.clear_faults(serial)
        assert isinstance(connection.receive(), DestroyAnswer)
    assert isinstance(bench.ask(look(FULL)), WitnessAnswer)


def test_a_look_that_hangs_ends_the_broker_and_the_next_one_answers(bench: Bench) -> None:
    process = bench.start(hang_limit=SOON)
    bench.host.set_look(WAIT)
    assert refusal(bench.ask(look(FULL))) is Refusal.HUNG
    assert ends(process) == broker.EXIT_HUNG
    bench.host.set_look(GO)
    bench.start()
    assert isinstance(bench.ask(look(FULL)), WitnessAnswer)
    assert bench.destroyed == []


def test_a_crash_in_a_look_costs_that_look(bench: Bench) -> None:
    process = bench.start()
    bench.host.set_look(CRASH)
    with bench.host.connect() as connection, pytest.raises(EOFError):
        connection.ask(look(FULL))
    assert ends(process) == -signal.SIGSEGV
    bench.host.set_look(GO)
    bench.start()
    assert isinstance(bench.ask(look(FULL)), WitnessAnswer)


def test_an_answer_that_is_too_long_is_refused(host: BrokerHost) -> None:
    # Names that take 6 bytes a character.
    spec = {"annotations": {"io.kubernetes.cri.container-type": "container"}, "process": {"env": ["ASCEND_VNPU_SPECS=" + "\u00e9" * 200]}}
    for number in range(4500):
        host.witnessed.bundles.task("\u00e9" * 90 + f"{number:020x}", spec, namespace="\u00e9" * 100)
    host.start({})
    with host.connect() as connection:
        assert refusal(connection.ask(look())) is Refusal.TOO_LONG
        assert refusal(connection.ask(ListRequest(1))) is Refusal.LIBRARY_MISSING


# --- who asks, and what -------------------------------------------------------------------------------------------------------
def test_another_user_is_refused(bench: Bench) -> None:
    bench.start()
    bench.host.directory.chmod(0o755)
    bench.host.socket_path.chmod(0o666)
    program = (
        "import socket, sys; connection = socket.socket(socket.AF_UNIX); connection.settimeout(60); connection.connect(sys.argv[1])\n"
        "try:\n    connection.sendall(sys.argv[2].encode()); data = connection.recv(100)\n"
        "except (BrokenPipeError, ConnectionResetError):\n    data = b''\n"
        "print(data)"
    )
    request = encode_request(bench.request()).decode()
    words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-c", program]
    done = subprocess.run([*words, str(bench.host.socket_path), request], capture_output=True, text=True, check=True, timeout=DEADLINE)
    assert done.stdout == "b''\n"
    assert bench.simulator.calls() == []
    assert isinstance(bench.ask(ListRequest(1)), ListAnswer)


def test_two_callers_at_once(bench: Bench) -> None:
    bench.start()
    serial = bench.simulator.fault("dcmi_get_device_health", "hang")
    with bench.host.connect() as first, bench.host.connect() as second:
        first.send(encode_request(ListRequest(1)))
        bench.simulator.wait_for("dcmi_get_device_health")
        answer = second.ask(ListRequest(2))
        assert refusal(answer) is Refusal.BUSY
        assert answer.id == 2
        bench.simulator.clear_faults(serial)
        assert isinstance(first.receive(), ListAnswer)
        assert isinstance(second.ask(ListRequest(3)), ListAnswer)


def test_many_callers_get_whole_answers(bench: Bench) -> None:
    process = bench.start()
    answers: list[Answer] = []

    def call(number: int) -> None:
        with bench.host.connect() as connection:
            answers.extend(connection.ask(ListRequest(10 * number + turn)) for turn in range(10))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(broker.CONNECTION_LIMIT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.id for answer in answers if answer.id is not None) == list(range(10 * broker.CONNECTION_LIMIT))
    assert {type(answer) for answer in answers} <= {ListAnswer, RefusedAnswer}
    assert {answer.reason for answer in answers if isinstance(answer, RefusedAnswer)} <= {Refusal.BUSY}
    assert process.poll() is None


def test_connections_are_bounded(bench: Bench) -> None:
    bench.start()
    held = [bench.host.connect() for _ in range(broker.CONNECTION_LIMIT)]
    for connection in held:
        assert isinstance(connection.ask(ListRequest(1)), ListAnswer)
    with bench.host.connect() as late, pytest.raises(EOFError):
        late.receive()
    held.pop().close()

    def is_served() -> bool:
        with bench.host.connect() as connection:
            try:
                return isinstance(connection.ask(ListRequest(1)), ListAnswer)
            except (EOFError, BrokenPipeError):
                return False

    until(is_served, "a place becomes free")
    for connection in held:
        connection.close()


def test_a_line_that_is_too_long_ends_the_connection(bench: Bench) -> None:
    bench.start()
    with bench.host.connect() as connection:
        connection.send(b" " * REQUEST_LIMIT)
        assert refusal(connection.receive()) is Refusal.MALFORMED
        with pytest.raises(EOFError):
            connection.receive()
    with bench.host.connect() as connection:
        connection.send(b'{"version": 2, "id": 4}\nnonsense\n' + encode_request(ListRequest(6)))
        first, second, third = connection.receive(), connection.receive(), connection.receive()
        assert (first.id, refusal(first)) == (4, Refusal.VERSION)
        assert (second.id, refusal(second)) == (None, Refusal.MALFORMED)
        assert isinstance(third, ListAnswer)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(b"", id="cut off"),
        pytest.param(b" " * REQUEST_LIMIT + b"\n", id="too long"),
        pytest.param(b" " * REQUEST_LIMIT + b"nonsense\n", id="too long, and something else"),
    ],
)
def test_a_request_whose_line_does_not_end_destroys_nothing(bench: Bench, end: bytes) -> None:
    """What it would say if more of it had been read is not known, and who sent it may have been cut short."""
    bench.start()
    line = encode_request(bench.request()).removesuffix(b"\n")
    with bench.host.connect() as connection:
        connection.send(line + end)
        if not end:
            connection.socket.shutdown(socket.SHUT_WR)
        assert refusal(connection.receive()) is Refusal.MALFORMED
    assert bench.destroyed == []
    assert bench.left == [bench.vnpu.id, bench.other.id]
    assert isinstance(bench.ask(bench.request()), DestroyAnswer)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.data())
def test_no_bytes_end_the_broker_or_destroy_anything(bench: Bench, data: st.DataObject) -> None:
    if not bench.host.processes:
        bench.start()
    request = encode_request(bench.request())
    place = data.draw(st.integers(0, len(request) - 2))
    chunk = data.draw(
        st.binary(max_size=200)
        | st.just(request[:place])
        | st.binary(min_size=1, max_size=3)
        .map(lambda junk: request[:place] + junk + request[place + len(junk) :])
        .filter(lambda one: not same(one, request))
    )
    with bench.host.connect() as connection:
        connection.send(chunk.replace(b"\n", b"") + b"\n")
        answer = connection.receive()
    assert isinstance(answer, RefusedAnswer | ListAnswer)
    (process,) = bench.host.processes
    assert process.poll() is None
    assert bench.destroyed == []


def same(one: bytes, other: bytes) -> bool:
    """Whether two requests ask for the same, but for their names and when the caller gives up."""
    blank = re.compile(rb'"(id|expires_ns)":[0-9]+|"(request|runtime)":"[^"]*"')
    return blank.sub(b"", one) == blank.sub(b"", other)


# --- how it is started ----------------------------------------------------------------------------------------------------------
def test_without_a_socket_it_says_what_starts_it(tmp_path: Path) -> None:
    source = str(Path(broker.__file__).parents[2])
    environment = {"PYTHONPATH": source, "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "devward.npu.broker"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE, env=environment)
    assert (done.returncode, done.stderr) == (2, "devward-dcmi: no socket was passed on; devward-dcmi.socket starts this\n")
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False, timeout=DEADLINE, env=environment)
    assert (done.returncode, done.stdout.split()[0]) == (0, "devward-dcmi")


def test_it_starts_without_what_only_its_help_needs() -> None:
    script = (
        "import sys\nof_the_site = set(sys.modules)\nfrom devward.npu import broker\nassert broker.main([]) == 2\n"
        "loaded = {'asyncio', 'bz2', 'dbus_next', 'lzma', 'shutil', 'ssl'} & set(sys.modules) - of_the_site\nassert not loaded, loaded"
    )
    environment = {"PYTHONPATH": str(Path(broker.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def test_another_process_s_socket_is_not_taken() -> None:
    for variables in ({}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"}):
        with pytest.raises(ValueError, match="no socket was passed on"):
            broker.take_listener(dict(variables))


def test_an_idle_broker_is_small(bench: Bench) -> None:
    process = bench.start()
    assert isinstance(bench.ask(ListRequest(1)), ListAnswer)
    loaded = Path(f"/proc/{process.pid}/maps").read_text()
    assert str(bench.host.library) in loaded
    assert not re.search(r"pyexpat|_ssl|_asyncio", loaded)
