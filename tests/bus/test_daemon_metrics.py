"""devwardd as a process on a host with NPUs in a cluster: its metrics, as the official client reads them, against what the bus says."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from devward.metrics import FAMILIES
from sim.api_faults import status
from sim.daemon_process import wait_for
from sim.dcmi_broker import BrokerHost
from sim.dcmi_simulator import DcmiSimulator
from sim.npu_node import NpuNode
from sim.owned_node import SCALED, OwnedNode

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace and device nodes"),
    pytest.mark.skipif(not os.path.exists("/dev/kvm"), reason="needs /dev/kvm: a hypervisor to measure"),
]

SPEC = "hyperlight.dev-hypervisor.json"


class MeasuredNode:
    """A host with two cards of HAMi's whose devwardd is told to write metrics, or not to."""

    def __init__(self, owned: OwnedNode, textfile: Path, kill_switch: Path) -> None:
        self.owned = owned
        self.daemon = owned.daemon
        self.textfile = textfile
        self.file = textfile / "devward.prom"
        self.kill_switch = kill_switch

    def configure(self, *, enabled: bool, more: str = "") -> None:
        """Write a configuration."""
        self.daemon.write_config(configuration(self.textfile, self.kill_switch, enabled=enabled) + more)

    def reload(self, *, enabled: bool) -> None:
        """Have another configuration applied."""
        self.configure(enabled=enabled)
        self.daemon.call("Reload", "t", "0")

    def samples(self) -> dict[tuple[str, ...], float]:
        """Return what a collector reads: the values by name and values of labels."""
        found: dict[tuple[str, ...], float] = {}
        for family in text_string_to_metric_families(self.file.read_text()):
            for sample in family.samples:
                assert sample.timestamp is None
                key = (sample.name, *sample.labels.values())
                assert key not in found
                found[key] = sample.value
        return found

    def value(self, *key: str) -> float | None:
        return self.samples().get(key)

    def wait(self, holds: Callable[[], object], what: str) -> None:
        """Wait for something, while HAMi goes on reporting."""

        def beaten() -> object:
            self.owned.beat("00")
            return holds()

        wait_for(beaten, what=what, deadline=60)

    def wait_value(self, value: float, *key: str) -> None:
        self.wait(lambda: self.value(*key) == value, f"{key}: {value}")


def configuration(textfile: Path, kill_switch: Path, *, enabled: bool) -> str:
    """Every rule is the default one; only how long things take is less."""
    metrics = f'[metrics]\nenabled = {str(enabled).lower()}\ndirectory = "{textfile}"\ninterval = 1\n'
    return f'[reclaim]\ngrace = 4\ninterval = 1\nkill_switch = "{kill_switch}"\n{metrics}'


@pytest.fixture
def measured(tmp_path: Path, library: Path) -> Iterator[MeasuredNode]:
    with BrokerHost() as host, DcmiSimulator(host.directory / "node", library) as simulator:
        simulator.install(host.library)
        textfile, kill_switch = tmp_path / "textfile", tmp_path / "reclaim.disabled"
        textfile.mkdir()
        # As if an earlier run had left it.
        (textfile / "devward.prom").write_text("old 1\n")
        kill_switch.touch()
        node = NpuNode(tmp_path, host, simulator, program=SCALED, config=configuration(textfile, kill_switch, enabled=False))
        with OwnedNode(node) as owned, node.daemon as daemon:
            daemon.start()
            owned.show_nodes()
            node.start_broker()
            yield MeasuredNode(owned, textfile, kill_switch)


def test_what_is_measured_is_what_the_daemon_does(measured: MeasuredNode) -> None:
    daemon, owned = measured.daemon, measured.owned
    # Off: what an earlier run left is gone, and nothing is written.
    wait_for(lambda: not measured.file.exists(), what="the end of the old file")
    owned.state("00")
    first, second = owned.chips()
    orphan, used = owned.node.create(first, "vir05_1c_8g"), owned.node.create(second, "vir05_1c_8g")
    owned.node.simulator.occupy(used)
    # What happens while they are off is counted all the same.
    daemon.spec.unlink()
    wait_for(daemon.spec.exists, what="the repair")
    assert daemon.allocation("mshv")[0] is False
    assert daemon.allocation("ascend.com/npu=77")[0] is False
    daemon.wait_event("spec-repair", DEVWARD_OUTCOME="success")
    assert list(measured.textfile.iterdir()) == []

    measured.reload(enabled=True)
    wait_for(measured.file.exists, what="the file")
    measured.wait_value(1, "devward_vnpus", "eligible")
    now = measured.samples()
    assert now["devward_spec_repairs_total", SPEC, "missing"] == 1
    assert now["devward_allocation_refusals_total", "/dev/mshv", "device-missing"] == 1
    assert now["devward_allocation_refusals_total", "none", "device-missing"] == 1
    assert [now[name] for name in [("devward_ready",), ("devward_config_good",)]] == [1, 1]
    assert now["devward_build_info", str(daemon.get("", "Manager", "Version"))] == 1
    assert now["devward_device_healthy", "/dev/kvm"] == now["devward_device_healthy", "/dev/davinci0"] == 1
    checks, seconds = (now[f"devward_probe_duration_seconds_{what}", "/dev/kvm"] for what in ("count", "sum"))
    assert checks >= 1
    assert 0 < seconds < 2 * checks
    assert now["devward_device_last_check_timestamp_seconds", "/dev/kvm"] > 1_700_000_000
    assert now["devward_vnpus", "in-use"] == 1
    assert now["devward_leaked_cores",] == 5, "those of the template"
    assert now["devward_reclaims_total", "destroyed"] == 0
    expires = daemon.get("", "Manager", "CertificateExpiresUSec")
    assert now["devward_cluster_certificate_expiry_timestamp_seconds",] * 1e6 == expires != 0
    # The device plugin is off; all else is there.
    names = {key[0].removesuffix("_sum").removesuffix("_count") for key in now}
    assert names == {family.name for family in FAMILIES if not family.name.startswith("devward_plugin")}

    # While the API server cannot say whose they are, it is not known what is leaked.
    owned.api.always("pods", status(503, "Service Unavailable", "etcd is away"))
    measured.wait(lambda: measured.value("devward_vnpus", "unknown") == 1 and measured.value("devward_leaked_cores") is None, "the doubt")
    owned.api.always("pods", None)
    measured.wait_value(5, "devward_leaked_cores")

    # While the kill switch is there nothing is reclaimed, and then it is.
    measured.wait(lambda: (measured.value("devward_reclaim_blocked_seconds") or 0) > 0, "it is blocked")
    measured.kill_switch.unlink()
    measured.wait_value(1, "devward_reclaims_total", "destroyed")
    measured.wait_value(0, "devward_reclaim_blocked_seconds")
    measured.wait_value(0, "devward_leaked_cores")
    assert not [one for one in owned.node.simulator.vnpus() if one.id == orphan.id]

    # A refused configuration changes nothing else, and a journal that takes nothing is seen.
    measured.configure(enabled=False, more="[nothing]\n")
    assert "unknown section" in daemon.refused("Reload", "t", "0")
    measured.wait_value(0, "devward_config_good")
    assert measured.value("devward_ready") == 0
    sink = daemon.directory / "journal"
    away = sink.rename(sink.with_suffix(".away"))
    daemon.call("CheckAllocation", "s", "mshv")
    daemon.refused("Reload", "t", "0")
    away.rename(sink)
    measured.wait(lambda: (measured.value("devward_audit_dropped_total") or 0) > 0, "what the journal did not take")

    # Off and on by a signal: no count goes back.
    before = {key: value for key, value in measured.samples().items() if key[0].endswith(("_total", "_count", "_sum"))}
    measured.configure(enabled=False)
    os.kill(daemon.pid, signal.SIGHUP)
    wait_for(lambda: not list(measured.textfile.iterdir()), what="an empty directory")
    measured.reload(enabled=True)
    wait_for(measured.file.exists, what="the file")
    after = measured.samples()
    assert [key for key, value in before.items() if after[key] < value] == []

    # In a place where it cannot be, which is told; it is never written through a link.
    elsewhere = measured.textfile.rename(measured.textfile.with_name("elsewhere"))
    (elsewhere / measured.file.name).unlink()
    measured.textfile.symlink_to(elsewhere)
    wait_for(lambda: "metrics-unwritable" in owned.node.codes(), what="the finding")
    assert list(elsewhere.iterdir()) == []
    measured.textfile.unlink()
    measured.textfile.mkdir()
    wait_for(lambda: "metrics-unwritable" not in owned.node.codes(), what="the end of the finding")
    assert daemon.stop() == 0
    assert measured.value("devward_config_good") == 1, "what was last known stays, and tells its age"
