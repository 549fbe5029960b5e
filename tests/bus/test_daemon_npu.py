"""devwardd as a process on a host with NPUs: a real broker before a simulated library, nodes and sysfs of the test's own making."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devward.npu.protocol import ListAnswer, ListRequest
from sim.daemon_process import DaemonProcess, wait_for
from sim.dcmi_broker import BrokerHost
from sim.dcmi_simulator import Chip, DcmiSimulator, Vnpu, build_library

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace and device nodes"),
]

#: A number that no driver has.
MAJOR = 4000


class Node:
    """A host with NPUs, its broker and its devwardd."""

    def __init__(self, directory: Path, host: BrokerHost, simulator: DcmiSimulator) -> None:
        self.host = host
        self.simulator = simulator
        simulator.set_node(supports_recover=0)
        self.daemon = DaemonProcess(directory, private_devices=True, setup=host.daemon_setup)

    def start_broker(self) -> None:
        self.host.start(self.simulator.environment)
        with self.host.connect() as connection:
            assert isinstance(connection.ask(ListRequest(1)), ListAnswer)

    def make(self, *names: str) -> None:
        """Let the kernel make nodes, and know their numbers."""
        commands = []
        for name in names:
            minor = int(name.lstrip("v").removeprefix("davinci").removeprefix("_manager") or 0)
            major = MAJOR + ("manager" in name)
            commands += [f"ln -s ../../devices/virtual/{name} /sys/dev/char/{major}:{minor}", f"mknod -m 660 /dev/{name} c {major} {minor}"]
        self.daemon.inside("\n".join(commands))

    def remove(self, name: str) -> None:
        minor = int(name.lstrip("v").removeprefix("davinci"))
        self.daemon.inside(f"rm /dev/{name} /sys/dev/char/{MAJOR}:{minor}")

    def chip(self, family: str = "910B3") -> Chip:
        chip = self.simulator.add_chip(family)
        self.make(f"davinci{chip.phy}")
        return chip

    def create(self, chip: Chip, template: str = "vir05_1c_16g") -> Vnpu:
        vnpu = self.simulator.create(chip, template)
        self.make(f"vdavinci{vnpu.id}")
        return vnpu

    def tree(self) -> set[str]:
        """Return the NPU objects on the bus."""
        (cards,), (vnpus,) = self.daemon.call("ListCards"), self.daemon.call("ListVnpus")
        return {str(row[-1]).removeprefix("/org/devward/Devward1/") for row in [*cards, *vnpus]}  # type: ignore[has-type, attr-defined]

    def wait_tree(self, *wanted: str) -> None:
        wait_for(lambda: self.tree() == set(wanted), what=f"{wanted}")

    def reason(self, path: str) -> object:
        return self.daemon.get(f"/{path}", "Card" if path.startswith("card") else "Vnpu", "Reason")

    def wait_reason(self, path: str, reason: str) -> None:
        wait_for(lambda: self.reason(path) == reason, what=f"{path}: {reason}")

    def codes(self) -> set[str]:
        document = self.daemon.describe()
        return {finding["code"] for finding in document["findings"]}  # type: ignore[attr-defined]


@pytest.fixture(name="library", scope="module")
def _library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("dcmi"))


@pytest.fixture
def node(tmp_path: Path, library: Path) -> Iterator[Node]:
    with BrokerHost() as host, DcmiSimulator(host.directory / "node", library) as simulator:
        simulator.install(host.library)
        made = Node(tmp_path, host, simulator)
        with made.daemon as daemon:
            daemon.start()
            yield made
            assert not daemon.process_ended(), daemon.output.read_text()


@pytest.fixture
def watched(node: Node) -> Node:
    """A host with one card that has one vNPU, published."""
    node.start_broker()
    node.create(node.chip())
    node.make("davinci_manager")
    node.wait_tree("card/p000", "vnpu/v0100")
    node.wait_reason("vnpu/v0100", "")
    return node


def loaded(daemon: DaemonProcess) -> set[str]:
    """Return the modules for NPUs that a daemon with -X importtime has loaded."""
    return {line.rpartition("|")[2].strip() for line in daemon.output.read_text().splitlines() if "devward.npu" in line}


def test_a_host_without_npus_loads_nothing_of_them_until_the_first_is_seen(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, private_devices=True, python=(sys.executable, "-X", "importtime")) as daemon:
        daemon.start()
        daemon.call("Rescan", "t", "0")
        daemon.call("ListVnpus")
        daemon.describe()
        assert loaded(daemon) == {"devward.npu", "devward.npu.presence", "devward.npu.room"}
        daemon.inside("mknod /dev/davinci_manager c 4001 0")
        wait_for(lambda: "devward.npu.client" in loaded(daemon), what="the code for NPUs")
        # There is no broker on this host: that is told, and nothing else is the worse for it.
        daemon.wait_event("finding", DEVWARD_REASON="npu-broker-unreachable")
        assert daemon.get("", "Manager", "Ready") is daemon.call("CheckAllocation", "s", "kvm")[0]
        daemon.inside("rm /dev/davinci_manager")
        daemon.wait_event("finding-cleared", DEVWARD_REASON="npu-broker-unreachable")
        assert daemon.stop() == 0


def test_what_there_is_is_published_as_it_comes_and_goes(node: Node) -> None:
    assert node.tree() == set()
    node.start_broker()
    node.make("davinci_manager")
    chip = node.chip()
    node.wait_tree("card/p000")
    node.wait_reason("card/p000", "")
    assert node.daemon.get("/card/p000", "Card", "DieId") == chip.vdie
    assert node.daemon.get("/card/p000", "Card", "Number") == f"{MAJOR}:0"
    vnpu = node.create(chip)
    node.wait_tree("card/p000", "vnpu/v0100")
    node.wait_reason("vnpu/v0100", "")
    assert str(node.daemon.get("/vnpu/v0100", "Vnpu", "Identity")).startswith(f"{chip.vdie}/100/vir05_1c_16g/")
    first = node.daemon.get("/vnpu/v0100", "Vnpu", "Identity")
    (explained,) = json.loads(node.daemon.busctl("--json=short", "call", "org.devward.Devward1", "/org/devward/Devward1/vnpu/v0100",
        "org.devward.Devward1.Vnpu", "Explain").stdout)["data"]  # fmt: skip
    assert json.loads(explained)["card"]["die_id"] == chip.vdie
    # Another one of the same id.
    node.simulator.destroy(vnpu)
    node.remove("vdavinci100")
    node.wait_tree("card/p000")
    node.create(chip)
    node.wait_tree("card/p000", "vnpu/v0100")
    assert node.daemon.get("/vnpu/v0100", "Vnpu", "Identity") != first
    for kind in ("card-usable", "vnpu-appeared", "vnpu-gone"):
        node.daemon.wait_event(kind)
    # All of it goes, and with it everything of NPUs.
    node.simulator.remove_card(0)
    for name in ("vdavinci100", "davinci0"):
        node.remove(name)
    node.daemon.inside("rm /dev/davinci_manager")
    node.wait_tree()
    node.daemon.wait_event("card-gone")
    assert not {code for code in node.codes() if "npu" in code}


def test_lies_are_told_and_vouched_for_by_nobody(watched: Node) -> None:
    simulator = watched.simulator
    chip = simulator.read().chips[0]
    simulator.set_chip(chip, health=3)
    watched.daemon.call("Rescan", "t", "0")
    watched.wait_reason("card/p000", "npu-unhealthy")
    assert watched.daemon.get("/card/p000", "Card", "Health") == "unhealthy"
    assert watched.reason("vnpu/v0100") == "npu-unhealthy"
    assert "npu-unhealthy" in watched.codes()
    watched.daemon.wait_event("card-unknown", DEVWARD_REASON="npu-unhealthy")
    simulator.set_chip(simulator.read().chips[0], health=0)
    serial = simulator.fault("dcmi_get_device_info", "half", sub=1)
    watched.daemon.call("Rescan", "t", "0")
    watched.wait_reason("card/p000", "npu-vnpus-unknown")
    assert watched.tree() == {"card/p000", "vnpu/v0100"}
    simulator.clear_faults(serial)
    watched.daemon.inside("rm /dev/vdavinci100 && touch /dev/vdavinci100")
    watched.wait_reason("vnpu/v0100", "npu-node-mismatch")
    assert watched.reason("card/p000") == ""


def test_a_broker_that_hangs_delays_nothing_else(watched: Node) -> None:
    watched.simulator.fault("*", "hang")
    watched.make("davinci9")
    watched.simulator.wait_for("dcmi_get_card_list")
    for _ in range(5):
        began = time.monotonic()
        watched.daemon.call("CheckAllocation", "s", "kvm")
        watched.daemon.call("Rescan", "t", "0")
        assert time.monotonic() - began < 8, "the broker's deadline alone is longer"
    watched.wait_reason("card/p000", "npu-broker-silent")
    assert watched.reason("vnpu/v0100") == "npu-broker-silent"
    assert watched.daemon.get("/vnpu/v0100", "Vnpu", "InUse") == "unknown"
    assert "npu-broker-silent" in watched.codes()
    began = time.monotonic()
    assert watched.daemon.stop() == 0
    assert time.monotonic() - began < 8
    watched.daemon.start()


def test_without_a_broker_everything_is_unknown_until_one_comes(watched: Node) -> None:
    (process,) = watched.host.processes
    process.send_signal(signal.SIGKILL)
    process.wait()
    watched.host.listener.shutdown(2)
    watched.make("davinci9")
    watched.wait_reason("card/p000", "npu-broker-unreachable")
    assert watched.tree() == {"card/p000", "vnpu/v0100"}
    assert watched.daemon.get("", "Manager", "Ready") is (watched.daemon.call("CheckAllocation", "s", "kvm")[0] is True)


def test_npus_can_be_left_alone(watched: Node) -> None:
    watched.daemon.write_config('[npu]\ndevices = "off"\n')
    watched.daemon.call("Reload", "t", "0")
    watched.wait_tree()
    watched.daemon.write_config('[npu]\ndevices = "auto"\n')
    watched.daemon.call("Reload", "t", "0")
    watched.wait_tree("card/p000", "vnpu/v0100")
