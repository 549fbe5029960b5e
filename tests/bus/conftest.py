"""Fixtures of the bus tests: private buses, hosts with NPUs, and patience."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bus_harness import DEADLINE, TIMES, Bus, private_bus

from sim.daemon_process import wait_for
from sim.dcmi_broker import BrokerHost
from sim.dcmi_simulator import DcmiSimulator, build_library
from sim.npu_node import SHARED, NpuNode


@pytest.fixture(scope="session")
def bus() -> Iterator[Bus]:
    """One bus for all tests that leave it as it was."""
    with private_bus() as started:
        yield started


@pytest.fixture
def own_bus() -> Iterator[Bus]:
    """A bus that the test may stop or kill."""
    with private_bus() as started:
        yield started


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing in this process be given up because the machine is slow; a test of a time sets it itself."""
    for module, name, _ in TIMES.values():
        monkeypatch.setattr(module, name, DEADLINE)


@pytest.fixture(name="library", scope="module")
def _library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("dcmi"))


@pytest.fixture
def npu_node(tmp_path: Path, library: Path) -> Iterator[NpuNode]:
    with BrokerHost() as host, DcmiSimulator(host.directory / "node", library) as simulator:
        simulator.install(host.library)
        made = NpuNode(tmp_path, host, simulator)
        with made.daemon as daemon:
            daemon.start()
            yield made
            assert not daemon.process_ended(), daemon.output.read_text()


@pytest.fixture
def watched(npu_node: NpuNode) -> NpuNode:
    """A host with one card that has one vNPU, published."""
    npu_node.start_broker()
    npu_node.create(npu_node.chip())
    npu_node.make(*SHARED)
    npu_node.wait_tree("card/p000", "vnpu/v0100")
    npu_node.wait_reason("vnpu/v0100", "")
    return npu_node


@pytest.fixture
def devices_holder(npu_node: NpuNode) -> Iterator[int]:
    """The pid of a process that keeps the host's devices while devwardd is started anew."""
    process = subprocess.Popen(["nsenter", f"--mount=/proc/{npu_node.daemon.pid}/ns/mnt", "sleep", "infinity"], stdin=subprocess.DEVNULL)
    mine = os.readlink("/proc/self/ns/mnt")
    wait_for(lambda: os.readlink(f"/proc/{process.pid}/ns/mnt") != mine, what="the namespace")
    yield process.pid
    process.kill()
    process.wait()
