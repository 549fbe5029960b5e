"""The device plugin in the sandbox of devward.service, against a kubelet's stand-in: a fault matrix, row by row.

It is the one by which the Hyperlight device plugin was tried on AKS; the time of each recovery is printed beside the reference's. The
stand-in runs outside of the container and meets devward at the sockets in the container's /var/lib/kubelet, as a host's kubelet does.
A guest is a process as user 65534 with nothing but the device that the CDI file describes, by which it creates a virtual machine.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from nspawn_machine import MISC_DEVICES, SITE, SPEC, Machine, Talk, until
from package_root import SYSTEM

from devward import names
from sim.daemon_process import SLOW, again_while
from sim.held_time import PATIENCE
from sim.kubelet_plugins import Kubelet

if os.geteuid() != 0:
    pytest.skip("needs root: a container is booted", allow_module_level=True)
pytest_plugins = ["nspawn_fixtures"]

RESOURCE = names.HYPERVISOR_CDI_KIND
KUBELET = "/var/lib/kubelet"
PLUGINS = f"{KUBELET}/device-plugins"
SLOTS = 2
#: The guard against repair wars is no subject here, and takes a minute to calm down.
SETTINGS = f"[device_plugin]\nenabled = true\nslots = {SLOTS}\n[cdi]\ncontested_after = 1000\n"
NOBODY = "65534"
#: Where a guest sees the device, in a mount namespace of its own.
GUEST = "/mnt/kvm"


class Node:
    """A booted machine whose devward offers the device to a kubelet."""

    def __init__(self, machine: Machine, kubelet: Kubelet) -> None:
        self.machine, self.kubelet = machine, kubelet
        self.spec = machine.path(SPEC)
        self.good = self.spec.read_bytes()

    def admits(self) -> bool:
        """Whether a Pod that asks for the device is admitted; one that is gets exactly the device of the file on disk.

        Asked again where the refusal is only that this machine was too slow.
        """
        return again_while(lambda admitted: not admitted and any(f"[{reason}]" in self.why for reason in SLOW), self._asks, PATIENCE)

    def _asks(self) -> bool:
        answer = self.kubelet.plugin(RESOURCE).allocation(["kvm-0"])
        try:
            (container,) = answer.result(timeout=PATIENCE).container_responses
        except grpc.RpcError as refusal:
            code, self.why = refusal.code(), refusal.details()
            container = None
        if container is None:
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            return False
        assert [device.name for device in container.cdi_devices] == [f"{RESOURCE}=kvm"]
        assert self.spec.read_bytes() == self.good
        return True

    def capacity(self) -> int:
        return self.kubelet.capacity(RESOURCE)

    def wait_capacity(self, expected: int) -> None:
        self.kubelet.wait(lambda: self.capacity() == expected, f"a capacity of {expected}")

    def ready(self) -> bool:
        return bool(self.machine.get("Ready"))

    def reasons(self) -> list[str]:
        reasons: list[str] = self.machine.get("NotReadyReasons")
        return reasons

    @contextlib.contextmanager
    def guest(self) -> Iterator[Talk]:
        """A container's process: as nobody, with a node as the CDI file describes it."""
        (device,) = json.loads(self.good)["devices"]
        (node,) = device["containerEdits"]["deviceNodes"]
        number = os.stat(node["path"]).st_rdev
        made = f"mknod -m 600 {GUEST} c {os.major(number)} {os.minor(number)}; chown {node['uid']}:{node['gid']} {GUEST}"
        script = f'mount -t tmpfs -o mode=0755 tmpfs {os.path.dirname(GUEST)}; {made}; exec "$@"'
        become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
        program = (SYSTEM / "nspawn_vm.py").read_text().replace("/dev/kvm", GUEST)
        command = ["unshare", "--mount", "sh", "-ec", script, "sh", *become, "/usr/bin/python3", "-c", program]
        with Talk(command) as guest:
            assert guest.hear() == "running"
            yield guest

    def recovers(self, row: str, reference: str, recovered: Callable[[], object]) -> None:
        """Wait for a recovery, and print how long it took."""
        begin = time.monotonic()
        until(recovered, row)
        print(f"Debian {self.machine.release}: {row}: {time.monotonic() - begin:.2f} s (reference: {reference})")


@pytest.fixture(name="node")
def _node(host: Machine) -> Iterator[Node]:
    host.run("mkdir", "-p", "-m", "0750", PLUGINS)
    host.path(SITE).write_text(SETTINGS)
    # The directory is newer than the daemon's start, whose mounts do not have it.
    host.run("systemctl", "restart", "devward")
    try:
        with Kubelet(host.path(PLUGINS)) as kubelet:
            node = Node(host, kubelet)
            node.wait_capacity(SLOTS)
            until(node.ready, "devward is ready")
            yield node
    finally:
        host.run("rm", "-f", SITE)
        host.run("systemctl", "restart", "devward")
        host.run("rm", "-rf", KUBELET)
        host.run("systemctl", "restart", "devward")


def test_real_guests_and_the_rest_of_the_host_stay_as_they_are(node: Node) -> None:
    machine = node.machine
    sentinel = machine.path(f"{names.CDI_DIRECTORY}/sentinel.json")
    sentinel.write_text('{"cdiVersion": "0.6.0", "kind": "example.com/x", "devices": []}')
    try:
        before = sentinel.read_bytes(), sentinel.stat().st_mtime_ns, stat_of_device()
        for _ in range(12):
            assert node.admits()
            with node.guest():
                pass
        assert (sentinel.read_bytes(), sentinel.stat().st_mtime_ns, stat_of_device()) == before
    finally:
        sentinel.unlink()
    effective = machine.shell(f"sed -n 's/^CapEff:\\s*//p' /proc/{machine.main_pid()}/status").strip()
    print(f"Debian {machine.release}: effective capabilities of devwardd: {effective} (reference: none)")


@pytest.mark.parametrize("fault", ["missing", "stale", "malformed"])
def test_a_cdi_file_that_is_not_true(node: Node, fault: str) -> None:
    content = {"missing": None, "stale": node.good.replace(b"65534", b"1"), "malformed": b"{"}[fault]
    node.spec.unlink() if content is None else node.spec.write_bytes(content)
    node.recovers(f"CDI {fault}", "22.3 to 32.2 s", lambda: node.spec.exists() and node.spec.read_bytes() == node.good)
    assert node.admits()
    with node.guest():
        pass


def test_a_cdi_path_that_is_no_file(node: Node) -> None:
    pid = node.machine.main_pid()
    # The file is back at once, so that it takes more than one try.
    node.machine.shell(f"until mkdir {SPEC} 2>/dev/null; do rm -f {SPEC}; done")
    node.wait_capacity(0)
    until(lambda: not node.ready(), "the host is not vouched for")
    assert not node.admits()
    assert "[cdi-not-regular]" in node.why
    node.spec.rmdir()
    node.recovers("CDI path non-regular", "recovers without restart", lambda: node.capacity() == SLOTS and node.ready())
    assert node.admits()
    assert node.machine.main_pid() == pid


def test_cdi_storage_that_is_read_only_and_the_file_missing(node: Node) -> None:
    machine, pid = node.machine, node.machine.main_pid()
    machine.run("mount", "-t", "tmpfs", "-o", "ro,mode=0755", "tmpfs", names.CDI_DIRECTORY)
    try:
        node.wait_capacity(0)
        until(lambda: not node.ready(), "the host is not vouched for")
        assert not node.admits()
        assert "[cdi-" in node.why
        assert machine.unit("ActiveState") == "active"
    finally:
        machine.run("umount", "--lazy", names.CDI_DIRECTORY)
    node.recovers("CDI storage read-only", "recovers without restart", lambda: node.capacity() == SLOTS and node.ready())
    assert node.admits()
    assert machine.main_pid() == pid


def test_a_host_identity_that_is_missing(node: Node) -> None:
    before = stat_of_device()
    with node.machine.covered(MISC_DEVICES):
        node.machine.call("devwardctl", "rescan")
        node.wait_capacity(0)
        assert not node.admits()
        assert "/dev/kvm" in node.why
    node.machine.call("devwardctl", "rescan")
    node.recovers("host identity missing", "restoration recovers", lambda: node.capacity() == SLOTS and node.ready())
    assert node.admits()
    assert stat_of_device() == before


def test_a_device_that_is_present_and_is_none(node: Node) -> None:
    machine = node.machine
    machine.run("mount", "--bind", "/dev/null", "/dev/kvm")
    try:
        assert not node.admits(), "refused before any event"
        node.wait_capacity(0)
    finally:
        machine.run("umount", "--lazy", "/dev/kvm")
    machine.call("devwardctl", "rescan")
    node.recovers("present but unusable", "normal manifest recovers", lambda: node.capacity() == SLOTS and node.ready())
    assert node.admits()


def test_a_registration_that_fails(node: Node) -> None:
    machine = node.machine
    with machine.covered(PLUGINS):
        until(lambda: node.reasons() == ["device plugin: plugin-kubelet-absent"], "the kubelet is missed")
        assert machine.unit("ActiveState") == "active"
        assert machine.allocation() == (True, "")
    node.recovers("registration failure", "restoring the mount recovers", lambda: node.ready() and node.capacity() == SLOTS)
    assert node.admits()


def test_devward_replaced_while_a_guest_runs(node: Node) -> None:
    machine, before = node.machine, node.kubelet.plugin(RESOURCE)
    assert node.admits()
    with node.guest() as guest:
        machine.run("systemctl", "restart", "devward")
        until(lambda: before.ended, "the kubelet hears of the end")
        assert before.ended == "OK", "a clean end"
        node.recovers("plugin replaced", "existing guest preserved", lambda: node.capacity() == SLOTS and node.ready())
        assert still_runs(guest)
        # And killed.
        with machine.drop_in("[Service]\nRestartSec=50ms\n"):
            node.wait_capacity(SLOTS)
            pid = machine.main_pid()
            machine.run("systemctl", "kill", "--signal=KILL", "devward")
            machine.active_again(pid)
            node.recovers("plugin killed", "not tried", lambda: node.capacity() == SLOTS and node.ready())
            assert still_runs(guest)
            sockets = [name for name in os.listdir(machine.path(PLUGINS)) if name.startswith("devward-")]
            assert sockets == [node.kubelet.plugin(RESOURCE).endpoint], "what the killed one left is gone"
        assert still_runs(guest)
    node.wait_capacity(SLOTS)
    machine.run("systemctl", "reset-failed", "devward")


def test_a_kubelet_that_is_started_again_while_a_guest_runs(node: Node) -> None:
    assert node.admits()
    with node.guest() as guest:
        worst = 0.0
        for _ in range(10):
            node.kubelet.stop()
            begin = time.monotonic()
            node.kubelet.start()
            node.kubelet.plugin(RESOURCE)
            worst = max(worst, time.monotonic() - begin)
        print(f"Debian {node.machine.release}: kubelet restart: {worst:.2f} s, the worst of 10 (reference: 5.01 s)")
        assert still_runs(guest)
    assert node.admits()


def test_readers_while_allocations_repair_the_file(node: Node) -> None:
    stale = node.good.replace(b"65534", b"1")
    other = node.spec.with_name(".stale")
    odd: list[bytes] = []
    reads = 0
    stop = threading.Event()

    def read() -> None:
        nonlocal reads
        while not stop.is_set():
            content = node.spec.read_bytes()
            reads += 1
            if content not in (node.good, stale):
                odd.append(content)

    reader = threading.Thread(target=read)
    reader.start()
    slowest = 0.0
    try:
        for _ in range(10):
            other.write_bytes(stale)
            other.rename(node.spec)
            begin = time.monotonic()
            assert node.admits()
            slowest = max(slowest, time.monotonic() - begin)
    finally:
        stop.set()
        reader.join()
    assert not odd
    assert reads
    print(f"Debian {node.machine.release}: {reads} reads during 10 repairs, each whole; slowest repair {slowest:.2f} s (6,813 and 2.93 s)")


def test_turned_off_it_leaves_nothing_behind(node: Node) -> None:
    machine, plugin = node.machine, node.kubelet.plugin(RESOURCE)
    machine.path(SITE).write_text(SETTINGS.replace("enabled = true", "enabled = false"))
    machine.run("systemctl", "reload", "devward")
    node.kubelet.wait(lambda: plugin.ended == "OK", "the end of the stream")
    assert os.listdir(machine.path(PLUGINS)) == ["kubelet.sock"]
    group = machine.unit("ControlGroup")
    until(lambda: machine.run("cat", f"/sys/fs/cgroup{group}/cgroup.procs").split() == [str(machine.main_pid())], "no process is left")


def test_a_kubelet_that_was_installed_later_is_told_of(host: Machine) -> None:
    assert not host.path(KUBELET).exists()
    host.path(SITE).write_text(SETTINGS)
    try:
        host.run("systemctl", "restart", "devward")
        until(lambda: host.get("NotReadyReasons") == ["device plugin: plugin-directory-missing"], "there is no kubelet")
        host.run("mkdir", "-p", "-m", "0750", PLUGINS)
        with Kubelet(host.path(PLUGINS)) as kubelet:
            until(lambda: host.get("NotReadyReasons") == ["device plugin: plugin-directory-read-only"], "it is told of")
            assert "systemctl restart devward" in host.run("devwardctl", "explain", "plugin-directory-read-only")
            host.run("systemctl", "restart", "devward")
            kubelet.wait(lambda: kubelet.capacity(RESOURCE) == SLOTS, "the devices")
    finally:
        host.run("rm", "-f", SITE)
        host.run("rm", "-rf", KUBELET)
        host.run("systemctl", "restart", "devward")


def still_runs(guest: Talk) -> bool:
    """Whether a guest does what it is told."""
    guest.say("")
    return guest.hear() == "running"


def stat_of_device() -> tuple[Any, ...]:
    facts = os.stat("/dev/kvm")
    return facts.st_mode, facts.st_uid, facts.st_gid, facts.st_rdev
