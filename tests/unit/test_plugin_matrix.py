"""The fault matrix by which the Hyperlight device plugin was tried on AKS, row by row, against a kubelet's stand-in.

The CDI file, its repair, CheckAllocation, gRPC and the sockets are real; the device's state is moved by the daemon's own rules.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from devward import allocation
from devward.plugin import decision
from devward.plugin.status import RegistrationState, not_ready
from sim.cdi_desk import GOOD, STALE
from sim.entries import fingerprint
from sim.errfs import ErrFs
from sim.held_time import PATIENCE
from sim.kubelet_plugins import Kubelet, Plugin
from sim.plugin_host import RESOURCE, be_patient
from sim.vouching_host import GOOD as PROBED
from sim.vouching_host import MISSING, NODE, UNFINISHED, UNUSABLE, VALID, VouchingHost

QUALIFIED = f"{RESOURCE}=kvm"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be refused because the machine is slow."""
    be_patient(monkeypatch)
    monkeypatch.setattr(allocation, "DEADLINE", PATIENCE)
    monkeypatch.setattr(decision, "BUDGET", 2 * PATIENCE)


class Node:
    """A kubelet and a host with a plugin."""

    def __init__(self, kubelet: Kubelet, host: VouchingHost) -> None:
        self.kubelet, self.host = kubelet, host
        self.file = host.desk.path

    @property
    def plugin(self) -> Plugin:
        return self.kubelet.plugin(RESOURCE)

    def admits(self) -> bool:
        """Whether a Pod that asks for the resource is admitted; one that is gets exactly our device."""
        response = self.plugin.allocation(["kvm-0"])
        try:
            (container,) = response.result(timeout=PATIENCE).container_responses
        except grpc.RpcError as refusal:
            code, self.why = refusal.code(), refusal.details()
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            return False
        assert [device.name for device in container.cdi_devices] == [QUALIFIED]
        assert not container.devices
        return True

    def wait_capacity(self, expected: int) -> None:
        self.kubelet.wait(lambda: self.kubelet.capacity(RESOURCE) == expected, f"a capacity of {expected}")


@pytest.fixture(name="node")
def _node(tmp_path: Path) -> Iterator[Node]:
    with Kubelet(tmp_path / "dp") as kubelet, VouchingHost(tmp_path) as host:
        node = Node(kubelet, host)
        node.wait_capacity(2)
        host.wait_ready()
        yield node


def test_all_is_well(node: Node) -> None:
    for _ in range(12):
        assert node.admits()
    assert node.file.read_bytes() == GOOD
    status = node.host.status
    assert (status.given, status.refused, status.healthy_slots, status.slots) == (12, 0, 2, 2)


@pytest.mark.parametrize("content", [None, STALE, b"{", b""], ids=["missing", "stale", "malformed", "empty"])
def test_a_file_that_is_not_true_is_repaired_before_the_answer(node: Node, content: bytes | None) -> None:
    for _ in range(5):
        node.file.unlink() if content is None else node.file.write_bytes(content)
        assert node.admits()
        assert node.file.read_bytes() == GOOD
    node.wait_capacity(2)


def put_directory(path: Path) -> None:
    """Put a directory in the place of a file that is made anew as soon as it is gone."""
    while True:
        path.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return


def test_a_path_that_is_no_file_withdraws_the_capacity_until_it_is_gone(node: Node) -> None:
    put_directory(node.file)
    node.host.recheck()
    node.wait_capacity(0)
    assert not node.admits()
    assert "[cdi-not-regular]" in node.why
    assert node.host.status.state is RegistrationState.REGISTERED
    assert node.file.is_dir()
    node.file.rmdir()
    node.wait_capacity(2)
    assert node.admits()


@pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="needs root: /dev/fuse is not open to this user")
def test_storage_that_cannot_be_written_withdraws_the_capacity_until_it_can(tmp_path: Path) -> None:
    backing, directory = tmp_path / "backing", tmp_path / "etc" / "cdi"
    backing.mkdir()
    directory.mkdir(parents=True)
    with ErrFs(backing, directory) as errfs, Kubelet(tmp_path / "dp") as kubelet, VouchingHost(tmp_path) as host:
        node = Node(kubelet, host)
        node.wait_capacity(2)
        errfs.set({"create": "EROFS"})
        node.file.unlink()
        node.wait_capacity(0)
        assert not node.admits()
        assert "[cdi-read-only]" in node.why
        errfs.clear()
        node.wait_capacity(2)
        assert node.admits()
        assert node.file.read_bytes() == GOOD


def test_a_host_identity_that_is_missing_withdraws_the_capacity_until_it_is_back(node: Node) -> None:
    node.host.device.identity = MISSING
    node.host.recheck()
    node.wait_capacity(0)
    assert not node.admits()
    assert "/dev/kvm" in node.why
    assert "[device-missing]" in node.why
    node.host.device.identity = VALID
    node.host.recheck()
    node.wait_capacity(2)
    assert node.admits()


def test_a_device_that_goes_is_refused_before_anybody_has_noticed(node: Node) -> None:
    node.host.device.identity = MISSING
    assert not node.admits()
    node.wait_capacity(0)


def test_a_device_that_is_present_and_unusable_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.host.device.verdict = UNUSABLE
    assert not node.admits()
    assert "[not-a-hypervisor]" in node.why
    node.wait_capacity(0)
    node.host.device.verdict = None
    monkeypatch.setattr(allocation, "DEADLINE", 0.5)
    assert not node.admits(), "a check that hangs cannot be had in time"
    assert "[probe-timeout]" in node.why


def test_a_check_that_cannot_be_completed_passes_on_a_young_good_one(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    # No time for another check.
    monkeypatch.setattr(decision, "PAUSE", 3 * PATIENCE)
    node.host.device.verdict = UNFINISHED
    assert node.admits()
    node.wait_capacity(2)
    node.host.desk.clock.monotonic = lambda now=node.host.desk.clock.monotonic: now() + 31  # type: ignore[method-assign]
    assert not node.admits()
    assert "[probe-inconclusive]" in node.why


def test_a_node_that_took_the_place_of_a_good_one_is_not_given_before_a_check_of_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "PAUSE", 3 * PATIENCE)
    assert node.admits()
    node.host.device.identity = replace(VALID, facts=replace(NODE, inode=2))
    node.host.device.verdict = UNFINISHED
    assert not node.admits()
    assert "[probe-inconclusive]" in node.why
    node.wait_capacity(0)
    node.host.device.verdict = PROBED
    node.host.recheck()
    node.wait_capacity(2)
    assert node.admits()


def test_a_directory_without_a_kubelet_is_never_ready_until_there_is_one(tmp_path: Path) -> None:
    plugins = tmp_path / "dp"
    plugins.mkdir(mode=0o750)
    with VouchingHost(tmp_path) as host:
        host.wait_state(RegistrationState.WAITING)
        assert not_ready(host.status) == ("device plugin: plugin-kubelet-absent",)
        with Kubelet(plugins) as kubelet:
            kubelet.plugin(RESOURCE)
            host.wait_ready()


def test_another_instance_of_the_plugin_takes_over_and_the_kubelet_keeps_its_containers_devices(tmp_path: Path) -> None:
    with Kubelet(tmp_path / "dp") as kubelet:
        with VouchingHost(tmp_path) as host:
            host.wait_ready()
            first = kubelet.plugin(RESOURCE)
            first.allocation(["kvm-1"]).result(timeout=PATIENCE)
        kubelet.wait(lambda: first.ended, "the end of the first instance")
        assert first.ended == "OK"
        with VouchingHost(tmp_path) as host:
            host.wait_ready()
            second = kubelet.plugin(RESOURCE)
            assert second.endpoint != first.endpoint
            assert second.lists[-1] == first.lists[-1]
            second.allocation(["kvm-1"]).result(timeout=PATIENCE)


def test_after_a_kubelet_restart_the_plugin_is_registered_and_pods_are_admitted(node: Node) -> None:
    node.kubelet.restart()
    assert node.admits()
    assert node.host.wait_ready().registrations >= 2


def test_readers_never_see_half_a_file_while_allocations_repair_it(node: Node) -> None:
    odd: list[bytes] = []
    reads = 0
    stop = threading.Event()

    def read() -> None:
        nonlocal reads
        while not stop.is_set():
            content = node.file.read_bytes()
            reads += 1
            if content not in (GOOD, STALE):
                odd.append(content)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(30):
            other = node.file.with_name(f".stale-{number}")
            other.write_bytes(STALE)
            other.rename(node.file)
            assert node.admits()
            assert node.file.read_bytes() == GOOD
    finally:
        stop.set()
        reader.join()
    assert not odd
    assert reads


def test_files_of_others_are_left_alone(node: Node) -> None:
    sentinel = node.file.with_name("sentinel.json")
    sentinel.write_text('{"cdiVersion": "0.6.0", "kind": "example.com/x", "devices": []}')
    before = fingerprint(sentinel), sentinel.stat().st_ctime_ns
    node.file.unlink()
    assert node.admits()
    assert (fingerprint(sentinel), sentinel.stat().st_ctime_ns) == before


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    with Kubelet(tmp_path / "dp") as kubelet:
        with VouchingHost(tmp_path) as host:
            kubelet.plugin(RESOURCE)
            host.wait_ready()
        assert [entry.name for entry in kubelet.directory.iterdir()] == ["kubelet.sock"]
    assert list(kubelet.directory.iterdir()) == []
