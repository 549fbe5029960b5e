"""devwardd as a process on a host with NPUs: a real broker before a simulated library, nodes and sysfs of the test's own making."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from devward.npu.client import LIST_SECONDS
from sim.daemon_process import DaemonProcess, wait_for
from sim.npu_node import MAJOR, NpuNode

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace and device nodes"),
]


def loaded(daemon: DaemonProcess) -> set[str]:
    """Return the modules for NPUs that a daemon with -X importtime has loaded."""
    return {line.rpartition("|")[2].strip() for line in daemon.output.read_text().splitlines() if "devward.npu" in line}


def test_a_host_without_npus_loads_nothing_of_them_until_the_first_is_seen(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, private_devices=True, python=(sys.executable, "-X", "importtime")) as daemon:
        daemon.start()
        daemon.call("Rescan", "t", "0")
        daemon.call("ListVnpus")
        daemon.describe()
        assert loaded(daemon) == {"devward.npu", "devward.npu.presence", "devward.npu.room", "devward.npu.sources"}
        daemon.inside("mknod /dev/davinci_manager c 4001 0")
        wait_for(lambda: "devward.npu.client" in loaded(daemon), what="the code for NPUs")
        # There is no broker on this host: that is told, and nothing else is the worse for it.
        daemon.wait_event("finding", DEVWARD_REASON="npu-broker-unreachable")
        daemon.wait_property("", "Manager", "Ready", daemon.allocation("kvm")[0])
        daemon.inside("rm /dev/davinci_manager")
        daemon.wait_event("finding-cleared", DEVWARD_REASON="npu-broker-unreachable")
        assert daemon.stop() == 0


def test_what_there_is_is_published_as_it_comes_and_goes(npu_node: NpuNode) -> None:
    assert npu_node.tree() == set()
    npu_node.start_broker()
    npu_node.make("davinci_manager")
    chip = npu_node.chip()
    npu_node.wait_tree("card/p000")
    npu_node.wait_reason("card/p000", "")
    assert npu_node.daemon.get("/card/p000", "Card", "DieId") == chip.vdie
    assert npu_node.daemon.get("/card/p000", "Card", "Number") == f"{MAJOR}:0"
    vnpu = npu_node.create(chip)
    npu_node.wait_tree("card/p000", "vnpu/v0100")
    npu_node.wait_reason("vnpu/v0100", "")
    assert str(npu_node.daemon.get("/vnpu/v0100", "Vnpu", "Identity")).startswith(f"{chip.vdie}/100/vir05_1c_16g/")
    first = npu_node.daemon.get("/vnpu/v0100", "Vnpu", "Identity")
    (explained,) = json.loads(npu_node.daemon.busctl("--json=short", "call", "org.devward.Devward1", "/org/devward/Devward1/vnpu/v0100",
        "org.devward.Devward1.Vnpu", "Explain").stdout)["data"]  # fmt: skip
    assert json.loads(explained)["card"]["die_id"] == chip.vdie
    # Another one of the same id.
    npu_node.simulator.destroy(vnpu)
    npu_node.remove("vdavinci100")
    npu_node.wait_tree("card/p000")
    npu_node.create(chip)
    npu_node.wait_tree("card/p000", "vnpu/v0100")
    assert npu_node.daemon.get("/vnpu/v0100", "Vnpu", "Identity") != first
    for kind in ("card-usable", "vnpu-appeared", "vnpu-gone"):
        npu_node.daemon.wait_event(kind)
    # All of it goes, and with it everything of NPUs.
    npu_node.simulator.remove_card(0)
    for name in ("vdavinci100", "davinci0"):
        npu_node.remove(name)
    npu_node.daemon.inside("rm /dev/davinci_manager")
    npu_node.wait_tree()
    npu_node.daemon.wait_event("card-gone")
    assert not {code for code in npu_node.codes() if "npu" in code}


def test_lies_are_told_and_vouched_for_by_nobody(watched: NpuNode) -> None:
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


def test_a_broker_that_hangs_delays_nothing_else(watched: NpuNode) -> None:
    watched.simulator.fault("*", "hang")
    watched.make("davinci9")
    watched.simulator.wait_for("dcmi_get_card_list")
    for _ in range(5):
        began = time.monotonic()
        watched.daemon.call("CheckAllocation", "s", "kvm")
        watched.daemon.call("Rescan", "t", "0")
        assert time.monotonic() - began < LIST_SECONDS, "the broker's deadline alone is longer"
    watched.wait_reason("card/p000", "npu-broker-silent")
    assert watched.reason("vnpu/v0100") == "npu-broker-silent"
    assert watched.daemon.get("/vnpu/v0100", "Vnpu", "InUse") == "unknown"
    assert "npu-broker-silent" in watched.codes()
    began = time.monotonic()
    assert watched.daemon.stop() == 0
    assert time.monotonic() - began < LIST_SECONDS
    watched.daemon.start()


def test_without_a_broker_everything_is_unknown_until_one_comes(watched: NpuNode) -> None:
    (process,) = watched.host.processes
    process.send_signal(signal.SIGKILL)
    process.wait()
    watched.host.listener.shutdown(2)
    watched.make("davinci9")
    watched.wait_reason("card/p000", "npu-broker-unreachable")
    assert watched.tree() == {"card/p000", "vnpu/v0100"}
    watched.daemon.wait_property("", "Manager", "Ready", watched.daemon.allocation("kvm")[0])


def test_npus_can_be_left_alone(watched: NpuNode) -> None:
    watched.daemon.write_config('[npu]\ndevices = "off"\n')
    watched.daemon.call("Reload", "t", "0")
    watched.wait_tree()
    watched.daemon.write_config('[npu]\ndevices = "auto"\n')
    watched.daemon.call("Reload", "t", "0")
    watched.wait_tree("card/p000", "vnpu/v0100")
