"""Who owns the vNPUs, on a booted system with the installed package: service, broker, kubelet, API server and name server.

The broker's look at the host is the real one, at the processes, sockets and files of the container, which it is told to take for the
host's; the vendor's library is simulated, and times are divided.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nspawn_machine import Machine, Talk, until
from package_root import SYSTEM

from bench.setting import memory
from devward import names
from sim.dcmi_simulator import DcmiSimulator, build_library
from sim.recorded_cluster import CLAIMS, DIES, body, whole_name
from sim.snapshot_desk import NAMES

if os.geteuid() != 0:
    pytest.skip("needs root: a container is booted", allow_module_level=True)
pytest_plugins = ["nspawn_fixtures"]

TESTS = SYSTEM.parent
PLACE = "/opt/devward-test"
BROKER = "devward-dcmi.service"
API_NAME = "api.cluster.test"
STATE = "01"
CARD, VNPU = f"{names.ROOT_PATH}/card/p000", f"{names.ROOT_PATH}/vnpu/v0100"
PLUGINS = "/var/lib/kubelet/device-plugins"
KUBECONFIG = "/etc/kubernetes/kubelet.conf"
RUNNING = next(uid for uid, name in NAMES.items() if name == "running")
MAJOR = 4000
SHARED = ("davinci_manager", "devmm_svm", "hisi_hdc")
#: How many times as fast as ever the looks come, and for how many seconds their cost is taken.
FASTER = 60
WINDOW = 10
#: MB. The broker's own bar is 16; the program that injects its environment is measured with it.
DAEMON_PSS, BROKER_PSS = 90, 16 + 2
#: The same unit with a sooner next look.
DAEMON_DROP_IN = f"[Service]\nExecStart=\nExecStart=/usr/bin/python3 -I {PLACE}/sim/scaled_daemon.py {FASTER}\n"
BROKER_DROP_IN = f"""
[Service]
Environment=PYTHONPATH={PLACE} DEVWARD_SIM_DCMI_STATE={PLACE}/node/dcmi.state
ExecStart=
ExecStart=/usr/bin/python3 {PLACE}/sim/dcmi_broker.py --root {PLACE} --host container --journal {names.JOURNAL_SOCKET}
"""


class Owned:
    """A container that is a node with two cards, one idle vNPU, a kubelet and an API server."""

    def __init__(self, machine: Machine, cache: Path, directory: Path, cluster: Talk) -> None:
        self.machine = machine
        self._kubeconfig = directory / "kubelet.conf"
        self._cluster = cluster
        # systemd-nspawn covers the kernel's boot id for all but those who, as devwardd, have a /proc of their own; on a host there is one.
        machine.run("umount", "/proc/sys/kernel/random/boot_id")
        self.tell("host", *(machine.run("cat", path).strip() for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id")))
        here = machine.path(PLACE)
        machine.run(
            "mkdir", "-p", f"{PLACE}/dev", PLUGINS, os.path.dirname(KUBECONFIG), "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
        )
        shutil.copytree(TESTS / "sim", here / "sim", ignore=shutil.ignore_patterns("__pycache__", "*.c", "dcmi"), dirs_exist_ok=True)
        shutil.copytree(TESTS / "data", here / "data", dirs_exist_ok=True)
        (here / "scan").write_text("clean")
        simulator = DcmiSimulator(here / "node", build_library(cache), seen_as=Path(PLACE, "node"))
        simulator.reset()
        simulator.set_node(supports_recover=0)
        simulator.install(here / "libdcmi.so")
        first, _ = (simulator.add_chip("910B4", vdie=die) for die in DIES)
        vnpu = simulator.create(first, "vir05_1c_8g")
        numbers = {"davinci0": (MAJOR, 0), "davinci1": (MAJOR, 1), f"vdavinci{vnpu.id}": (MAJOR, vnpu.id)}
        numbers |= {name: (MAJOR + 1 + place, 0) for place, name in enumerate(SHARED)}
        for name, (major, minor) in numbers.items():
            machine.shell(f"mknod -m 660 /dev/{name} c {major} {minor}; ln -s ../../devices/virtual/{name} /sys/dev/char/{major}:{minor}")
        self.kubeconfig("127.0.0.1")
        self.checkpoint(STATE)

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

    def checkpoint(self, state: str) -> None:
        """Let the kubelet have written the checkpoint of a recorded state."""
        self.machine.path(f"{PLUGINS}/kubelet_internal_checkpoint").write_bytes(body(f"{whole_name(state)}.checkpoint.json"))

    def claims(self) -> set[str]:
        """Return the names of the Pods that claim the first card, once nothing of the node is unknown; else nothing."""
        self.tell("beat")
        uids: list[str] = self.machine.get("Claims", f"{names.BUS_NAME}.Card", CARD) if not self.blocked() else []
        return {NAMES[uid] for uid in uids}

    def blocked(self) -> list[str]:
        reasons: list[str] = self.machine.get("BlockedReasons")
        return reasons

    def wait_known(self) -> None:
        wanted = {word.rstrip("?") for word in CLAIMS[STATE][0].split()}
        until(lambda: self.claims() == wanted, f"the claims; {self.blocked()}")

    def wait_blocked(self, reason: str) -> None:
        until(lambda: reason in self.blocked(), reason)

    def explain(self, path: str, interface: str, user: str = "") -> Any:
        out = self.machine.run(
            "busctl", "--json=short", "call", names.BUS_NAME, path, f"{names.BUS_NAME}.{interface}", "Explain", user=user
        )
        return json.loads(json.loads(out)["data"][0])


@pytest.fixture(name="owned", scope="module")
def _owned(release: str, debs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owned]:
    scratch = tmp_path_factory.mktemp("cluster")
    with Machine(release, tmp_path_factory.mktemp("machine"), debs) as machine, contextlib.ExitStack() as stack:
        program = str(SYSTEM / "nspawn_cluster.py")
        enter = ["nsenter", f"--net=/proc/{machine.leader}/ns/net", sys.executable]
        cluster = stack.enter_context(Talk([*enter, program, str(scratch), API_NAME]))
        assert cluster.hear() == "ready"
        machine.path("/etc/resolv.conf").write_text("nameserver 127.0.0.1\n")
        stack.enter_context(machine.covered("/sys/dev/char"))
        made = Owned(machine, scratch, scratch, cluster)
        for unit, text in (("devward.service", DAEMON_DROP_IN), (BROKER, BROKER_DROP_IN)):
            machine.run("mkdir", "-p", f"/etc/systemd/system/{unit}.d")
            machine.path(f"/etc/systemd/system/{unit}.d/owners.conf").write_text(text)
        kubelet = machine.enter(
            "/usr/bin/python3", f"{PLACE}/sim/kubelet.py", f"--directory={PLUGINS}", "--listen-only", "--root-dir=/var/lib/kubelet"
        )
        stack.enter_context(kubelet_process(kubelet))
        machine.install()
        until(
            lambda: machine.call("busctl", "get-property", names.BUS_NAME, CARD, f"{names.BUS_NAME}.Card", "Claims").status == 0, "the card"
        )
        made.wait_known()
        yield made


@contextlib.contextmanager
def kubelet_process(command: list[str]) -> Iterator[None]:
    """A kubelet, until the end of the block."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield


def test_who_claims_a_card_is_shown_with_its_sources(owned: Owned) -> None:
    machine = owned.machine
    shown = machine.run("devwardctl", "cards")
    assert "protected" in shown
    explained = machine.run("devwardctl", "explain", "p000")
    assert "default/running" in explained
    for source in ("checkpoint", "API"):
        assert source.lower() in explained.lower()
    told = owned.explain(CARD, "Card")
    (claim,) = [claim for claim in told["ownership"]["claims"] if claim["uid"] == RUNNING]
    assert claim["pod"] == "default/running"
    assert {"checkpoint", "api"} <= set(claim["sources"])
    sources = {source["source"]: source["read"] for source in told["ownership"]["sources"]}
    assert all(sources.values()), sources
    # What the host shows, through the sandbox's broker; for whom nobody searches the processes who is protected anyway.
    of_vnpu = owned.explain(VNPU, "Vnpu")
    assert {name: source["state"] for name, source in of_vnpu["ownership"]["host"].items()}["bundles"] == "read"
    assert (of_vnpu["vnpu"]["verdict"], of_vnpu["host"]) == ("protected", None)
    # A user without a session may not inspect.
    assert "default/running" not in json.dumps(owned.explain(CARD, "Card", user="daemon"))
    asked: set[str] = set()

    def is_asked() -> bool:
        asked.update(method for method, *_ in owned.tell("beat"))
        return bool(asked)

    until(is_asked, what="a request")
    assert asked == {"GET"}


def test_the_api_server_s_name_is_looked_up_by_the_service(owned: Owned) -> None:
    owned.kubeconfig(f"other.{API_NAME}")
    owned.wait_blocked("api-name-unresolved")
    owned.kubeconfig(API_NAME)
    owned.wait_known()
    owned.kubeconfig("127.0.0.1")
    owned.wait_known()


def test_without_the_api_server_it_is_said_why_nothing_is_known(owned: Owned) -> None:
    machine = owned.machine
    cursor = machine.cursor()
    owned.tell("always", "pods", "forbidden")
    owned.wait_blocked("api-forbidden")
    assert machine.get("Protection", f"{names.BUS_NAME}.Card", CARD) == "unknown"
    assert "api-forbidden" in machine.call("devwardctl", "status").text + machine.run("devwardctl", "explain", "p000")
    until(lambda: machine.records(cursor, DEVWARD_EVENT="finding", DEVWARD_REASON="owners-unknown"), "the record")
    owned.tell("always", "pods", "good")
    owned.wait_known()
    until(lambda: machine.records(cursor, DEVWARD_EVENT="finding-cleared", DEVWARD_REASON="owners-unknown"), "the other record")


def test_the_checkpoint_is_read_through_the_sandbox(owned: Owned) -> None:
    path = f"{PLUGINS}/kubelet_internal_checkpoint"
    owned.machine.run("mv", path, f"{path}.away")
    owned.wait_blocked("checkpoint-missing")
    owned.machine.run("mv", f"{path}.away", path)
    owned.wait_known()


def test_what_it_costs(owned: Owned) -> None:
    machine = owned.machine
    pids = {"devwardd": machine.main_pid(), "broker": int(machine.unit("MainPID", BROKER))}
    # As the host sees the container's /proc.
    seen = {name: f"{machine.leader}/root/proc/{pid}" for name, pid in pids.items()}
    before = {name: cpu(path) for name, path in seen.items()}
    begin = time.monotonic()
    time.sleep(WINDOW)
    looks = (time.monotonic() - begin) * FASTER / 60
    for name, path in seen.items():
        used = memory(path)
        spent = (cpu(path) - before[name]) / looks
        print(f"{name}: PSS {used['pss']:.1f} MB, peak RSS {used['peak']:.1f} MB; {spent * 1000:.0f} ms CPU a look, one a minute elsewhere")
        assert used["pss"] <= {"devwardd": DAEMON_PSS, "broker": BROKER_PSS}[name]


def cpu(process: str) -> float:
    """CPU seconds of a process, by its directory in some /proc: utime and stime of proc_pid_stat(5)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
