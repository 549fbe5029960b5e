"""A booted container that is a node with NPUs: the installed package, a kubelet, an API server and a name server.

The broker's look at the host is the real one, at the processes, sockets and files of the container, which it is told to take for the
host's; the vendor's library is simulated, and times are divided.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from nspawn_machine import Machine, Talk, until
from package_root import SYSTEM

from devward import names
from sim.dcmi_simulator import Chip, DcmiSimulator, Vnpu, build_library
from sim.recorded_cluster import DIES

TESTS = SYSTEM.parent
PLACE = "/opt/devward-test"
BROKER = "devward-dcmi.service"
API_NAME = "api.cluster.test"
PLUGINS = "/var/lib/kubelet/device-plugins"
CHECKPOINT = f"{PLUGINS}/kubelet_internal_checkpoint"
BUNDLES = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
KUBECONFIG = "/etc/kubernetes/kubelet.conf"
CARD = f"{names.ROOT_PATH}/card/p000"
TEMPLATE = "vir05_1c_8g"
MAJOR = 4000
SHARED = ("davinci_manager", "devmm_svm", "hisi_hdc")
#: How many times as fast as ever the looks come.
FASTER = 60
#: The same unit with a sooner next look.
DAEMON_DROP_IN = f"[Service]\nExecStart=\nExecStart=/usr/bin/python3 -I {PLACE}/sim/scaled_daemon.py {FASTER}\n"
BROKER_DROP_IN = f"""
[Service]
Environment=PYTHONPATH={PLACE} DEVWARD_SIM_DCMI_STATE={PLACE}/node/dcmi.state
ExecStart=
ExecStart=/usr/bin/python3 {PLACE}/sim/dcmi_broker.py --root {PLACE} --devices /dev --scan container --host container \\
    --journal {names.JOURNAL_SOCKET}
"""


class Owned:
    """A container that is a node with two cards of HAMi's, a kubelet and an API server; devward is installed by `install`."""

    def __init__(self, machine: Machine, directory: Path, cluster: Talk) -> None:
        self.machine = machine
        self._kubeconfig = directory / "kubelet.conf"
        self._cluster = cluster
        # systemd-nspawn covers the kernel's boot id for all but those who, as devwardd, have a /proc of their own; on a host there is one.
        machine.run("umount", "/proc/sys/kernel/random/boot_id")
        self.host = tuple(machine.run("cat", path).strip() for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id"))
        self.tell("host", *self.host)
        here = machine.path(PLACE)
        machine.run("mkdir", "-p", PLACE, PLUGINS, os.path.dirname(KUBECONFIG), BUNDLES)
        shutil.copytree(TESTS / "sim", here / "sim", ignore=shutil.ignore_patterns("__pycache__", "*.c", "dcmi"), dirs_exist_ok=True)
        shutil.copytree(TESTS / "data", here / "data", dirs_exist_ok=True)
        self.simulator = DcmiSimulator(here / "node", build_library(directory), seen_as=Path(PLACE, "node"))
        self.simulator.reset()
        self.simulator.set_node(supports_recover=0)
        self.simulator.install(here / "libdcmi.so")
        self._make(*SHARED)
        self.chips = [self.chip(vdie=die) for die in DIES]
        self.kubeconfig("127.0.0.1")

    @classmethod
    @contextlib.contextmanager
    def booted(cls, release: str, debs: Path, scratch: Path) -> Iterator[Self]:
        """Boot it, with a kubelet and an API server."""
        for name in ("machine", "cluster"):
            (scratch / name).mkdir()
        with Machine(release, scratch / "machine", debs) as machine, contextlib.ExitStack() as stack:
            enter = ["nsenter", f"--net=/proc/{machine.leader}/ns/net", sys.executable]
            program = str(SYSTEM / "nspawn_cluster.py")
            cluster = stack.enter_context(Talk([*enter, program, str(scratch / "cluster"), API_NAME]))
            assert cluster.hear() == "ready"
            machine.path("/etc/resolv.conf").write_text("nameserver 127.0.0.1\n")
            stack.enter_context(machine.covered("/sys/dev/char"))
            made = cls(machine, scratch / "cluster", cluster)
            for unit, text in (("devward.service", DAEMON_DROP_IN), (BROKER, BROKER_DROP_IN)):
                machine.run("mkdir", "-p", f"/etc/systemd/system/{unit}.d")
                machine.path(f"/etc/systemd/system/{unit}.d/owners.conf").write_text(text)
            kubelet = f"{PLACE}/sim/kubelet.py"
            stack.enter_context(made.process(kubelet, f"--directory={PLUGINS}", "--listen-only", "--root-dir=/var/lib/kubelet"))
            yield made

    @contextlib.contextmanager
    def process(self, *arguments: str) -> Iterator[None]:
        """Run a Python program in the container that says `ready`, and then lives until its standard input ends, with the block."""
        command = self.machine.enter("/usr/bin/python3", *arguments)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield

    # --- devices -----------------------------------------------------------------------------------------------------
    def chip(self, **fields: Any) -> Chip:
        """Put an NPU in, with its node."""
        chip = self.simulator.add_chip("910B4", **fields)
        self._make(f"davinci{chip.phy}")
        return chip

    def create(self, chip: Chip) -> Vnpu:
        """Make a vNPU, as a container's runtime does, with its node."""
        vnpu = self.simulator.create(chip, TEMPLATE)
        self._make(f"vdavinci{vnpu.id}")
        return vnpu

    def is_there(self, vnpu: Vnpu) -> bool:
        """Whether the library lists it."""
        return any(one.id == vnpu.id for one in self.simulator.vnpus())

    def drop_node(self, vnpu: Vnpu) -> None:
        """Let the driver take away the node of one that was destroyed."""
        self.machine.run("rm", f"/dev/vdavinci{vnpu.id}", f"/sys/dev/char/{MAJOR}:{vnpu.id}")

    def _make(self, *nodes: str) -> None:
        script = ""
        for name in nodes:
            number = name.lstrip("v").removeprefix("davinci")
            major, minor = (MAJOR, int(number)) if number.isdecimal() else (MAJOR + 1 + SHARED.index(name), 0)
            # The kernel knows of a device before its node is there.
            script += f"ln -s ../../devices/virtual/{name} /sys/dev/char/{major}:{minor}; mknod -m 660 /dev/{name} c {major} {minor}\n"
        self.machine.shell(script)

    # --- the cluster -------------------------------------------------------------------------------------------------
    def tell(self, *words: str) -> list[list[str]]:
        """Tell the API server something; return the requests since the last time."""
        self._cluster.say(" ".join(words))
        asked: list[list[str]] = json.loads(self._cluster.hear())
        return asked

    def kubeconfig(self, host: str) -> None:
        """Give the kubelet a kubeconfig with this name for the server, whose certificate is for localhost."""
        document = json.loads(self._kubeconfig.read_text())
        server = document["clusters"][0]["cluster"]
        server |= {"server": server["server"].replace("127.0.0.1", host), "tls-server-name": "localhost"}
        self.machine.path(KUBECONFIG).write_text(json.dumps(document))

    def checkpoint(self, data: bytes) -> None:
        """Let the kubelet have written this checkpoint."""
        self.machine.path(CHECKPOINT).write_bytes(data)

    # --- devward -----------------------------------------------------------------------------------------------------
    def install(self) -> None:
        """Install the package, and wait until it shows the NPUs."""
        self.machine.install()
        self.wait_shown()

    def wait_shown(self) -> None:
        """Wait until devward shows the NPUs."""
        get = ("busctl", "get-property", names.BUS_NAME, CARD, f"{names.BUS_NAME}.Card", "Claims")
        until(lambda: self.machine.call(*get).status == 0, "the card")

    def blocked(self) -> list[str]:
        """Return why nothing is reclaimed."""
        reasons: list[str] = self.machine.get("BlockedReasons")
        return reasons

    def wait_blocked(self, reason: str) -> None:
        """Wait for a reason."""
        until(lambda: reason in self.blocked(), reason)

    def explain(self, path: str, interface: str, user: str = "") -> Any:
        """Return what Explain says of an object."""
        out = self.machine.run(
            "busctl", "--json=short", "call", names.BUS_NAME, path, f"{names.BUS_NAME}.{interface}", "Explain", user=user
        )
        return json.loads(json.loads(out)["data"][0])
