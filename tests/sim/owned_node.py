"""A host with NPUs, a kubelet and an API server, as its devwardd sees it: the recorded node, brought to life.

The kubelet is a tree of files for the broker (witness_host), and the API server a stand-in with real TLS that serves the recorded states;
both are made to be of this host. The chips have the die ids of the recordings, so that their claims are those of data/README.md.
"""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from devward.cluster.this_host import read_this_host
from sim.api_lists import of_host
from sim.api_pki import Pair, write_identity, write_kubeconfig
from sim.api_server import ApiServer
from sim.bundle_host import CONTAINERD
from sim.dcmi_simulator import Chip
from sim.npu_node import SHARED, NpuNode
from sim.recorded_cluster import DIES, NODE, body, node_of, pods_of, whole_name
from sim.witness_host import WitnessHost

#: The program that a devwardd needs which is not to be waited for by the minute: its looks come once a second.
SCALED = (str(Path(__file__).with_name("scaled_daemon.py")), "60")
#: One that remembers Pods which are gone for as long as devwardd does.
REMEMBERING = (SCALED[0], "60:1")
PLUGINS = "/var/lib/kubelet/device-plugins"
KUBECONFIG = "/etc/kubernetes/kubelet.conf"


class OwnedHost:
    """Brings a host into a cluster; enter it after its devwardd and broker were started, or before."""

    def __init__(self, witnessed: WitnessHost) -> None:
        self.api = ApiServer()
        self.api.renews_lease = True
        self.witnessed = witnessed
        # What the Node's runtime would have, which no container uses yet.
        (self.witnessed.bundles.run / CONTAINERD / "k8s.io").mkdir(parents=True)
        self._facts = read_this_host(NODE)
        self._beats = 0
        #: HAMi's lock, while it gives out a device.
        self.lock = ""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.api)
        self.kubelet()
        self.state("00")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def kubelet(self, pid: int = 812) -> None:
        """Let a kubelet run, with credentials for the API server."""
        kubelets = self.witnessed.kubelets
        plugins = kubelets.directory(PLUGINS)
        etc = kubelets.directory("/etc/kubernetes")
        identity = write_identity(etc, self.api.authority.client(f"system:node:{NODE}"))
        user = {"client-certificate": str(identity), "client-key": str(identity)}
        write_kubeconfig(etc / "kubelet.conf", self.api.url, self.api.authority.certificate, user)
        kubelets.process(pid, listens=(f"{PLUGINS}/kubelet.sock",), line=("/usr/bin/kubelet", f"--kubeconfig={KUBECONFIG}"))
        self.plugins = plugins

    def end_kubelet(self, pid: int = 812) -> None:
        """Let a kubelet end."""
        self.witnessed.kubelets.end(pid)

    def identify(self, pair: Pair, name: str) -> None:
        """Let the kubelet have another certificate, as it does when it rotates it; each has a file of its own."""
        write_identity(self.witnessed.kubelets.directory("/etc/kubernetes"), pair, name)

    def change(self, kind: str, change: Callable[[Any], object]) -> None:
        """Change what the API server has of the node or its Pods, until the next state or beat."""
        value = json.loads(self.api.bodies[kind])
        change(value)
        self.api.bodies[kind] = json.dumps(value).encode()

    @property
    def checkpoint(self) -> Path:
        """The kubelet's checkpoint."""
        return self.plugins / "kubelet_internal_checkpoint"

    def state(self, name: str, *, checkpoint: str = "") -> None:
        """Let the node be in a recorded state; the checkpoint may be of another one."""
        self.checkpoint.write_bytes(body(f"{whole_name(checkpoint or name)}.checkpoint.json"))
        self.beat(name)
        self.api.bodies["pods"] = pods_of(name)

    def beat(self, name: str) -> None:
        """Let HAMi report once more."""
        self._beats += 1
        node = of_host(node_of(name), self._facts.boot_id, next(iter(self._facts.machine_ids), ""))
        if self.lock:
            document = json.loads(node)
            document["metadata"]["annotations"]["hami.io/mutex.lock"] = self.lock
            node = json.dumps(document).encode()
        self.api.bodies["node"] = node.replace(b"Reported_2026.12.01 00:", b"Reported_2026.12.%02d 00:" % (self._beats % 28 + 1))


class OwnedNode(OwnedHost):
    """Such a host with its NPUs and its devwardd."""

    def __init__(self, node: NpuNode) -> None:
        super().__init__(node.host.witnessed)
        self.node = node
        self.daemon = node.daemon

    def chips(self) -> tuple[Chip, Chip]:
        """Put the two recorded cards in, and what containers need beside them."""
        self.node.make(*SHARED)
        first, second = (self.node.simulator.add_chip("910B4", vdie=die) for die in DIES)
        self.node.make("davinci0", "davinci1")
        return first, second

    def show_nodes(self) -> None:
        """Let the broker see the very nodes that devwardd sees; devwardd must run."""
        devices = self.node.host.devices
        if not devices.is_symlink():
            devices.rmdir()
        devices.unlink(missing_ok=True)
        devices.symlink_to(f"/proc/{self.daemon.pid}/root/dev")
