"""A host for the broker to look at: bundles, control groups, processes with descriptors, /proc/uda and a kubelet, as a tree of files.

Two lists of processes, since each stand-in has its own: one for containers and descriptors, one for the kubelet.
"""

from pathlib import Path

from devward.cluster.evidence import Doubt
from devward.cluster.kubeconfig_place import find_kubeconfig
from devward.cluster.kubelet import find_kubelet
from devward.cluster.local import LocalScanner
from devward.cluster.vantage import VantageDoubt
from devward.npu.host_witness import HostObserver
from sim.bundle_host import BundleHost, everybody
from sim.kubelet_host import KubeletHost

RUNTIME = "containerd://2.1.9"


def nobody(proc: str) -> Doubt | None:
    """A place without the privilege to see what other processes hold."""
    return Doubt(VantageDoubt.NOT_PRIVILEGED, proc)


class WitnessHost:
    """The tree."""

    def __init__(self, base: Path) -> None:
        self.base = base
        for name in ("host", "kubelets"):
            (base / name).mkdir(parents=True)
        self.bundles = BundleHost(base / "host")
        self.kubelets = KubeletHost(base / "kubelets")
        self.cgroups = base / "cgroup"
        self.cgroups.mkdir()
        (self.cgroups / "cgroup.controllers").write_text("")

    def group(self, path: str, *, populated: bool = True) -> Path:
        """Add a control group."""
        group = self.cgroups / path
        group.mkdir(parents=True)
        (group / "cgroup.events").write_text(f"populated {int(populated)}\n")
        return group

    def process(self, pid: int, *holds: str, command: str = "python3") -> Path:
        """Add a process of one thread that has these files open."""
        self.bundles.process(pid)
        directory = self.bundles.proc / str(pid)
        task = directory / "task" / str(pid)
        (task / "fd").mkdir(parents=True)
        (task / "comm").write_text(f"{command}\n")
        (task / "maps").write_text("")
        for number, path in enumerate(holds):
            (task / "fd" / str(number)).symlink_to(path)
        return directory

    def uda(self, *vdevs: int, used: str = "") -> None:
        """Add the driver's list, with these vNPUs."""
        directory = self.bundles.proc / "uda"
        directory.mkdir()
        lines = (f"udevid {vdev} status 'ready, mia' added_udevid {vdev} chip_type x\n        {used}\n\n" for vdev in vdevs)
        (directory / "udevice").write_text("".join(lines))
        (directory / "namespace_node").write_text("")


def scanner(base: Path, *, privileged: bool = True) -> LocalScanner:
    """Return a scanner of the tree below a directory that remembers nothing."""
    host = base / "host"
    bundles = BundleHost.scanner_of(host, vantage=everybody)
    vantage = everybody if privileged else nobody
    return LocalScanner(proc=str(host / "proc"), cgroups=str(base / "cgroup"), bundles=bundles, vantage=vantage)


def observer(base: Path, *, privileged: bool = True) -> HostObserver:
    """Return one who looks at the tree below a directory."""
    vantage = everybody if privileged else nobody
    proc, root = str(base / "kubelets/proc"), str(base / "kubelets/root")
    return HostObserver(
        scanner(base, privileged=privileged),
        lambda deadline: find_kubelet(proc, root, vantage=vantage, deadline=deadline),
        lambda kubelet: find_kubeconfig(kubelet, proc=proc, root=root),
    )
