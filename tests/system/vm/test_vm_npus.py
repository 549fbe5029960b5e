"""Ascend NPUs on a booted system: the vendor's library and driver are simulated, all else is real.

Device nodes come and go with real events of the kernel, the broker runs in the host's namespaces and scans the machine's processes, and the
service manager is systemd.
"""

import contextlib
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from devward.npu.facts import Expected, Outcome, Refusal
from devward.npu.numbering import WILDCARD
from devward.npu.protocol import DestroyAnswer, InspectAnswer, InspectRequest, ListAnswer, ListRequest, RefusedAnswer
from sim.dcmi_simulator import STATE_FILE, Chip, Vnpu, build_library
from system.vm.boot import Boot
from system.vm.machine import CommandFailed, Machine
from system.vm.npus import BUNDLES, DONE, UNIT, Npus
from system.vm.warden import Warden

SEED = 20260501
#: The daemon answers within 2 s; the rest is what an emulated processor that is shared may need to run those who ask. A daemon that waited
#: for the broker would answer after ten seconds at the soonest.
ANSWER_LIMIT = 6.0
#: What a slow machine does not finish in time is refused for, here as without NPUs.
SLOW = {"probe-timeout", "cdi-timeout", "helper-stuck"}
STOP = "/run/stop-asking"
TEMPLATE = "vir05_1c_16g"


@pytest.fixture(scope="module", name="host")
def _host(machine: tuple[Machine, Boot], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Npus]:
    vm, _ = machine
    npus = Npus(vm, build_library(tmp_path_factory.mktemp("dcmi")))
    try:
        npus.install()
        yield npus
    finally:
        npus.remove()
        vm.run("systemctl", "restart", "devward")
        Warden(vm).wait_well()


@pytest.fixture(name="npus")
def _npus(host: Npus, warden: Warden) -> Iterator[Npus]:
    """A host whose driver is loaded, without NPUs. No test may leave a trace of a node that was opened."""
    host.simulator.reset()
    warden.wait("no NPU shown", lambda described: not described["npus"]["cards"])
    yield host
    host.simulator.clear_faults()
    assert [who for who in host.opened() if who[1] not in host.holders] == []


def shown(warden: Warden, npus: Npus, count: int) -> dict[str, Any]:
    """Wait until so many NPUs are vouched for, all there are, with their vNPUs; return the description."""
    expected = len(npus.simulator.vnpus())

    def is_shown(described: dict[str, Any]) -> bool:
        found = described["npus"]
        return [card["reason"] for card in found["cards"]] == [""] * count and len(found["vnpus"]) == expected

    return warden.wait(f"{count} NPUs with {expected} vNPUs", is_shown)


# --- what is shown -------------------------------------------------------------------------------------------------------------
@pytest.fixture(name="strangers")
def _strangers(npus: Npus, vm: Machine, warden: Warden) -> Iterator[Npus]:
    """The same for a test whose NPUs have other dies than those of the other tests: devward remembers which one it saw where first."""
    yield npus
    npus.simulator.reset()
    # Those that an administrator made go with no driver.
    vm.run("find", "/dev", "-maxdepth", "1", "-regex", "/dev/v?davinci[0-9]+", "-delete")
    vm.run("systemctl", "restart", "devward")
    warden.wait_well()


@pytest.mark.usefixtures("strangers")
def test_the_bus_shows_what_there_is_through_a_thousand_changes(vm: Machine, figures: dict[str, str]) -> None:
    changes, batch = 1000, 40
    arguments = (str(STATE_FILE), DONE, str(SEED), str(changes), str(batch))
    done = json.loads(vm.run("python3", "/opt/vm/npu_changes.py", *arguments, timeout=1200))
    assert sum(done["happened"].values()) == changes
    assert {"create", "destroy", "recreate", "card", "swap", "die", "health", "use", "chip_node", "vnpu_node"} <= done["happened"].keys()
    assert len(done["took"]["comparison"]) == changes // batch
    figures[f"{changes} changes of NPUs, {changes // batch} comparisons"] = ", ".join(
        f"{name} {statistics.median(values):.1f} s" for name, values in done["took"].items()
    )


# --- the broker ----------------------------------------------------------------------------------------------------------------
class Bench:
    """Two chips with three vNPUs each, as devward shows them."""

    def __init__(self, vm: Machine, npus: Npus, warden: Warden) -> None:
        self.vm, self.npus, self.warden, self.simulator = vm, npus, warden, npus.simulator
        with self.simulator.held_back():
            self.chip: Chip = self.simulator.add_chip("910B3")
            self.other: Chip = self.simulator.add_chip("910B3")
            self.vnpus: list[Vnpu] = [self.simulator.create(self.chip, TEMPLATE) for _ in range(3)]
            self.others: list[Vnpu] = [self.simulator.create(self.other, TEMPLATE) for _ in range(3)]
        shown(warden, npus, 2)

    def refusal(self, expected: Expected) -> Refusal:
        """Ask for a destruction that must not be; return the reason."""
        before = self.simulator.read()
        (answer,) = self.npus.ask(self.npus.request(expected))
        assert isinstance(answer, RefusedAnswer), answer
        assert self.simulator.read() == before
        return answer.reason


@pytest.fixture(name="bench")
def _bench(vm: Machine, npus: Npus, warden: Warden) -> Bench:
    return Bench(vm, npus, warden)


def test_the_broker_is_the_hosts_administrator(bench: Bench) -> None:
    vm, pid = bench.vm, bench.npus.broker()
    assert pid
    for kind in ("mnt", "pid", "user", "net"):
        assert vm.run("readlink", f"/proc/{pid}/ns/{kind}") == vm.run("readlink", f"/proc/1/ns/{kind}")
    one, other = (vm.run("grep", "-E", "^Cap(Eff|Prm|Bnd)", f"/proc/{process}/status") for process in (1, pid))
    assert one == other
    assert vm.run("readlink", f"/proc/{bench.warden.run_id()[0]}/ns/mnt") != vm.run("readlink", "/proc/1/ns/mnt")
    listed, inspected = bench.npus.ask(ListRequest(1), InspectRequest(2, bench.other.card, bench.other.dev))
    assert isinstance(listed, ListAnswer)
    assert [(chip.die, [vnpu.vdev for vnpu in chip.vnpus or ()]) for chip in listed.inventory.chips] == [
        (chip.vdie, [vnpu.id for vnpu in vnpus]) for chip, vnpus in ((bench.chip, bench.vnpus), (bench.other, bench.others))
    ]
    assert isinstance(inspected, InspectAnswer)
    assert inspected.inspection.chip == listed.inventory.chips[1]
    # The library that was found is the one in the vendor's place, and only the broker has it.
    holders = vm.shell("grep -l libdcmi /proc/[0-9]*/maps 2>/dev/null || true").split()
    assert holders == [f"/proc/{pid}/maps"]


def test_it_destroys_the_vnpu_that_is_meant_and_that_nobody_holds(bench: Bench, figures: dict[str, str]) -> None:
    vm, npus, simulator = bench.vm, bench.npus, bench.simulator
    vnpu, foreign = bench.vnpus[1], bench.others[1]
    whole, neighbour = npus.expected(bench.chip, vnpu), npus.expected(bench.other, foreign)
    begin = bench.warden.now()
    wrong = {
        Refusal.BOOT_DIFFERS: replace(whole, boot_id="11111111-1111-4222-8333-444455556666"),
        Refusal.DIE_DIFFERS: replace(whole, die=neighbour.die),
        Refusal.PHY_DIFFERS: replace(whole, card=neighbour.card),
        Refusal.VFID_DIFFERS: replace(whole, vfid=3),
        Refusal.TEMPLATE_DIFFERS: replace(whole, template="vir10_3c_32g"),
        Refusal.NODE_DIFFERS: replace(whole, node=replace(whole.node, inode=whole.node.inode + 1)),
        Refusal.WILDCARD: replace(whole, vdev=WILDCARD),
        Refusal.OUTSIDE_WINDOW: replace(whole, vdev=foreign.id),
    }
    assert {reason: bench.refusal(expected) for reason, expected in wrong.items()} == {reason: reason for reason in wrong}
    assert bench.refusal(replace(neighbour, phy=whole.phy)) is Refusal.OUTSIDE_WINDOW
    assert bench.refusal(replace(whole, node=replace(whole.node, ctime_ns=whole.node.ctime_ns - 1))) is Refusal.NODE_DIFFERS

    # The driver's flag shows only the use by a container that is not privileged.
    with npus.held(vnpu.id):
        assert bench.refusal(whole) is Refusal.SCAN_IN_USE
    with container_that_names(vm, vnpu.id):
        assert bench.refusal(whole) is Refusal.SCAN_IN_USE
    simulator.occupy(vnpu)
    assert bench.refusal(whole) is Refusal.IN_USE
    simulator.set_vnpu(vnpu, used=0, container=0)

    # Another one that is held is no reason.
    before = simulator.read()
    simulator.set_node(log=str(simulator.log))
    with npus.held(bench.vnpus[0].id), npus.held(foreign.id):
        began = time.monotonic()
        (answer,) = npus.ask(npus.request(whole, 77))
        figures["a vNPU destroyed by the broker, all processes scanned"] = f"{time.monotonic() - began:.1f} s"
    assert isinstance(answer, DestroyAnswer)
    assert (answer.outcome, answer.code) == (Outcome.DESTROYED, 0)
    assert simulator.read().vnpus == [other for other in before.vnpus if other.id != vnpu.id]
    assert vm.run("cat", str(simulator.log)).count("dcmi_set_destroy_vdevice") == 1
    vm.shell(f"while [ -e /dev/vdavinci{vnpu.id} ]; do sleep 0.1; done")
    assert [line.split(":")[1] for line in simulator.cfg_lines()] == [str(other.id) for other in before.vnpus if other.id != vnpu.id]
    names = {f"v{other.id:04d}" for other in simulator.vnpus()}
    bench.warden.wait("gone", lambda described: {one["name"] for one in described["npus"]["vnpus"]} == names)
    assert bench.refusal(whole) in (Refusal.NODE_MISSING, Refusal.VNPU_ABSENT)

    # Both journals tell of it: what the broker did, and what the daemon saw.
    records = [json.loads(line) for line in vm.run("journalctl", "--output=json", f"--after-cursor={begin}").splitlines()]
    told = [record for record in records if record.get("DEVWARD_REQUEST_ID") == "r77"]
    assert [record.get("DEVWARD_OUTCOME") for record in told] == [None, "destroyed"]
    assert {record["_SYSTEMD_UNIT"] for record in told} == {UNIT}
    (gone,) = bench.warden.wait_events(begin, "vnpu-gone")
    assert f"vNPU {vnpu.id} ({TEMPLATE})" in gone["MESSAGE"]


@contextlib.contextmanager
def container_that_names(vm: Machine, vdev: int) -> Iterator[None]:
    """A container of the kubelet's, as Ascend's runtime prepares it: its process has not opened the vNPU yet."""
    bundle = f"{BUNDLES}/{'c0' * 32}"
    device = {"path": f"/dev/davinci{vdev}", "type": "c", "major": 240, "minor": vdev}
    hook = {"path": "/usr/local/bin/ascend-docker-destroy", "args": ["ascend-docker-destroy", "0", "0", str(vdev)]}
    spec = {"ociVersion": "1.1.0", "process": {"args": ["sleep"]}, "hooks": {"poststop": [hook]}, "linux": {"devices": [device]}}
    vm.run("mkdir", "-p", bundle)
    vm.write(f"{bundle}/config.json", json.dumps(spec))
    vm.write(f"{bundle}/init.pid", "1")
    try:
        yield
    finally:
        vm.run("rm", "-r", bundle)


def test_only_root_can_connect(vm: Machine, npus: Npus) -> None:
    program = f"import socket; socket.socket(socket.AF_UNIX).connect({npus.socket!r})"
    vm.run("python3", "-Ic", program)
    with pytest.raises(CommandFailed, match="PermissionError"):
        vm.run("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "python3", "-Ic", program)
