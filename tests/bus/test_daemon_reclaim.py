"""devwardd as a process on a host with NPUs, a kubelet and an API server: what belongs to nobody is reclaimed, and nothing else."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sim.daemon_process import wait_for
from sim.dcmi_broker import BrokerHost
from sim.dcmi_simulator import DcmiSimulator, Vnpu
from sim.npu_node import NpuNode
from sim.owned_node import SCALED, OwnedNode

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace and device nodes")]

#: Every rule is the default one; only how long things take is less.
CONFIG = "[reclaim]\ngrace = 4\ninterval = 1\n"


@pytest.fixture
def owned(tmp_path: Path, library: Path) -> Iterator[OwnedNode]:
    """A host with two cards of HAMi's, whose looks come once a second."""
    with BrokerHost() as host, DcmiSimulator(host.directory / "node", library) as simulator:
        simulator.install(host.library)
        kill_switch = tmp_path / "reclaim.disabled"
        node = NpuNode(tmp_path, host, simulator, program=SCALED, config=f'{CONFIG}kill_switch = "{kill_switch}"\n')
        with OwnedNode(node) as made, node.daemon as daemon:
            daemon.start()
            made.show_nodes()
            node.start_broker()
            yield made
            assert not daemon.process_ended(), daemon.output.read_text()


def verdict(owned: OwnedNode, vdev: int) -> tuple[str, str]:
    path = f"/vnpu/v{vdev:04d}"
    return str(owned.daemon.get(path, "Vnpu", "Verdict")), str(owned.daemon.get(path, "Vnpu", "VerdictReason"))


def wait_while_beating(owned: OwnedNode, state: str, condition: Callable[[], object], what: str) -> None:
    """Wait for a condition while HAMi goes on reporting."""

    def holds() -> object:
        owned.beat(state)
        return condition()

    wait_for(holds, what=what)


def is_there(owned: OwnedNode, vnpu: Vnpu) -> bool:
    return any(one.id == vnpu.id for one in owned.node.simulator.vnpus())


def test_an_orphan_is_reclaimed_and_a_used_vnpu_is_not(owned: OwnedNode) -> None:
    owned.state("00")
    first, second = owned.chips()
    orphan = owned.node.create(first, "vir05_1c_8g")
    used = owned.node.create(second, "vir05_1c_8g")
    owned.node.simulator.occupy(used)
    wait_while_beating(owned, "00", lambda: not is_there(owned, orphan), "the destruction")
    assert is_there(owned, used)
    record = owned.daemon.wait_event("vnpu-reclaim", DEVWARD_OUTCOME="success")
    print(record)
    assert verdict(owned, used.id)[0] == "in-use"
    assert [call.function for call in owned.node.simulator.calls("dcmi_set_destroy_vdevice")] == ["dcmi_set_destroy_vdevice"]
