"""The API server, asked from the sandbox of devward.service: its name looked up, with TLS, and with the drop-ins that close the network."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nspawn_cluster import TOKEN
from nspawn_machine import Machine, Talk
from package_root import SYSTEM

from sim.api_pki import Authority, data

if os.geteuid() != 0:
    pytest.skip("needs root: a container is booted", allow_module_level=True)
pytest_plugins = ["nspawn_fixtures"]

TREE = SYSTEM.parents[1]
#: A name that nobody has but the name server of this test.
NAME = "api.cluster.test"
PROGRAM = "/run/look.py"
KUBECONFIG = "/etc/devward/kubeconfig"
RESOLVER = "/etc/resolv.conf"
SAID = "/run/look.json"
UNIT = "devward-look.service"
ANSWERED = {"node": ["", ""], "lease": ["", ""], "pods": ["", ""]}
#: What makes a daemon of the unit, and is of no use to a program that looks once.
OF_A_DAEMON = re.compile(
    r"^(Type|NotifyAccess|BusName|ExecStart|ExecReload|TimeoutStart\w*|WatchdogSec|Restart\w*|StateDirectory\w*|RuntimeDirectory\w*)=.*\n",
    re.MULTILINE,
)


class Cluster:
    """A machine with an API server and a name server in its network, and what asks them from the sandbox of devward.service."""

    def __init__(self, machine: Machine, directory: Path, program: Talk) -> None:
        self.machine = machine
        self._kubeconfig = directory / "kubelet.conf"
        self._program = program

    def kubeconfig(self, host: str = "127.0.0.1", user: dict[str, Any] | None = None, **entries: str) -> None:
        """Give the machine the kubeconfig, with this name for the server, other entries for it, and another user."""
        document = json.loads(self._kubeconfig.read_text())
        server = document["clusters"][0]["cluster"]
        server |= {"server": server["server"].replace("127.0.0.1", host), **entries}
        document["users"][0]["user"] = user or document["users"][0]["user"]
        self.machine.path(KUBECONFIG).write_text(json.dumps(document))

    def asked(self) -> list[list[str]]:
        """Return the requests since the last call: method, what for, and the client's name."""
        self._program.say("")
        requests: list[list[str]] = json.loads(self._program.hear())
        return requests

    def look(self, dropin: str = "", *, node: str = "") -> dict[str, list[str]]:
        """Look from the sandbox, and return what came of each request: the fault and its text, both empty where there was an answer."""
        unit = self.machine.run("systemctl", "cat", "devward.service")
        sandbox = OF_A_DAEMON.sub("", unit[unit.index("[Service]") : unit.index("[Install]")])
        own = f"Type=oneshot\nExecStart=/usr/bin/python3 -I {PROGRAM} {KUBECONFIG} {node}\nStandardOutput=truncate:{SAID}\n"
        self.machine.path(PROGRAM).write_text((SYSTEM / "nspawn_look.py").read_text())
        self.machine.path(f"/run/systemd/system/{UNIT}").write_text(sandbox + own)
        self.machine.path(f"/run/systemd/system/{UNIT}.d").mkdir()
        self.machine.path(f"/run/systemd/system/{UNIT}.d/test.conf").write_text(dropin)
        try:
            self.machine.run("systemctl", "daemon-reload")
            self.machine.run("systemctl", "start", UNIT)
            said: dict[str, list[str]] = json.loads(self.machine.run("cat", SAID))
            return said
        finally:
            self.machine.shell(f"rm -rf /run/systemd/system/{UNIT}* {SAID} {PROGRAM}; systemctl daemon-reload; systemctl reset-failed")


@pytest.fixture(name="cluster")
def _cluster(host: Machine, tmp_path: Path) -> Iterator[Cluster]:
    before = host.call("cat", RESOLVER).out
    program = str(SYSTEM / "nspawn_cluster.py")
    with Talk(["nsenter", f"--net=/proc/{host.leader}/ns/net", sys.executable, program, str(tmp_path), NAME]) as talk:
        assert talk.hear() == "ready"
        host.path(RESOLVER).write_text("nameserver 127.0.0.1\n")
        try:
            yield Cluster(host, tmp_path, talk)
        finally:
            host.path(RESOLVER).write_text(before)
            host.run("rm", "-f", KUBECONFIG)


def test_node_lease_and_pods_are_read_from_the_sandbox(cluster: Cluster) -> None:
    cluster.kubeconfig()
    assert cluster.look() == ANSWERED
    assert cluster.asked() == [["GET", kind, "system:node:lab"] for kind in ("node", "lease", "pods")]


def test_the_server_s_name_is_looked_up_from_the_sandbox(cluster: Cluster) -> None:
    # The certificate is for localhost.
    cluster.kubeconfig(NAME, **{"tls-server-name": "localhost"})
    assert cluster.look() == ANSWERED
    cluster.kubeconfig("other." + NAME)
    assert {fault for fault, _ in cluster.look().values()} == {"name-unresolved"}


def test_tls_is_verified_in_the_sandbox(cluster: Cluster) -> None:
    cluster.kubeconfig(NAME)
    assert {fault for fault, _ in cluster.look().values()} == {"server-other-name"}
    cluster.kubeconfig(**{"certificate-authority-data": data(Authority().certificate)})
    assert {fault for fault, _ in cluster.look().values()} == {"server-untrusted"}


def test_the_network_can_be_closed_but_for_the_api_server(cluster: Cluster) -> None:
    cluster.kubeconfig(NAME, **{"tls-server-name": "localhost"})
    assert cluster.look((TREE / "packaging/examples/api-server-only.conf").read_text()) == ANSWERED


def test_the_network_can_be_taken_whole(cluster: Cluster) -> None:
    cluster.kubeconfig()
    said = cluster.look((TREE / "packaging/examples/no-network.conf").read_text())
    assert {fault for fault, _ in said.values()} == {"unreachable"}


def test_what_is_below_root_is_not_seen(cluster: Cluster) -> None:
    cluster.kubeconfig()
    cluster.machine.run("mv", KUBECONFIG, "/root/kubeconfig")
    cluster.machine.run("ln", "-s", "/root/kubeconfig", KUBECONFIG)
    try:
        assert {fault for fault, _ in cluster.look().values()} == {"kubeconfig-missing"}
    finally:
        cluster.machine.run("rm", "/root/kubeconfig")


def test_a_program_for_credentials_runs_in_the_sandbox_and_only_where_it_is_allowed(cluster: Cluster) -> None:
    version = "client.authentication.k8s.io/v1"
    credential = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": {"token": TOKEN}})
    # It may write no more than devwardd may.
    program = f"touch /usr/local/escaped /root/escaped 2>/dev/null; echo '{credential}'"
    cluster.kubeconfig(user={"exec": {"apiVersion": version, "command": "/bin/sh", "args": ["-c", program]}})
    assert {fault for fault, _ in cluster.look().values()} == {"exec-not-allowed"}
    assert cluster.asked() == []
    assert cluster.look(node="lab") == ANSWERED
    assert cluster.asked() == [["GET", kind, ""] for kind in ("node", "lease", "pods")]
    assert [path for path in ("/usr/local/escaped", "/root/escaped") if cluster.machine.path(path).exists()] == []


def test_without_the_library_it_is_said_what_to_install(cluster: Cluster) -> None:
    cluster.kubeconfig()
    said = cluster.look("[Service]\nInaccessiblePaths=/usr/lib/python3/dist-packages/kubernetes\n")
    assert {fault for fault, _ in said.values()} == {"library-missing"}
    assert "python3-kubernetes" in said["node"][1]
