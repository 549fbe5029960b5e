"""The bundles of a host: found below every runtime's root, remembered, and never taken for absent when they cannot be read."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from devward.cluster import bundles
from devward.cluster.bundle import BundleFacts, ContainerType
from devward.cluster.bundles import BundleDoubt, BundleScan, Runtime, runtime_of
from devward.cluster.evidence import DeviceNumber, Doubt, Finding, SourceState
from devward.cluster.life import FirstProcess, Life, life_of, parse_pid, parse_state
from devward.cluster.vantage import VantageDoubt
from sim.bundle_host import BundleHost, made
from sim.patience import must_not_block

UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
SANDBOX: dict[str, Any] = {"annotations": {"io.kubernetes.cri.container-type": "sandbox", "io.kubernetes.cri.sandbox-uid": UID}}
VNPU = DeviceNumber(236, 148)
OTHER = DeviceNumber(236, 149)
needs_non_root = pytest.mark.skipif(os.geteuid() == 0, reason="needs non-root: permissions bind")


@pytest.fixture
def host(tmp_path: Path) -> BundleHost:
    return BundleHost(tmp_path)


def codes(found: BundleScan) -> list[str]:
    return [doubt.code for doubt in found.doubts]


def test_a_host_without_containers(host: BundleHost) -> None:
    found = host.scanner().scan()
    assert (found.bundles, found.doubts, found.finding(148, VNPU)) == ((), (), Finding.CLEAN)
    assert {found.state_of(runtime) for runtime in Runtime} == {SourceState.NOT_PRESENT}


@pytest.mark.parametrize(
    ("root", "namespace", "runtime"),
    [
        ("containerd/io.containerd.runtime.v2.task", "k8s.io", Runtime.CONTAINERD),
        ("containerd/io.containerd.runtime.v1.linux", "k8s.io", Runtime.CONTAINERD),
        ("k3s/containerd/io.containerd.runtime.v2.task", "k8s.io", Runtime.CONTAINERD),
        ("k0s/containerd/io.containerd.runtime.v2.task", "k8s.io", Runtime.CONTAINERD),
        ("containerd/io.containerd.runtime.v2.task", "moby", Runtime.DOCKER),
        ("docker/containerd/daemon/io.containerd.runtime.v2.task", "moby", Runtime.DOCKER),
    ],
)
def test_every_runtimes_bundles_are_found(host: BundleHost, root: str, namespace: str, runtime: Runtime) -> None:
    host.task("c1", made("containerd-vnpu.json"), root=root, namespace=namespace)
    found = host.scanner().scan()
    assert [bundle.id for bundle in found.owners(148, VNPU)] == ["c1"]
    assert (found.finding(148, VNPU), found.finding(149, OTHER)) == (Finding.HELD, Finding.CLEAN)
    assert [other for other in Runtime if found.state_of(other) is SourceState.READ] == [runtime]


def test_bundles_of_cri_o_and_podman_are_found(host: BundleHost) -> None:
    host.storage("c1", made("cri-o-vnpu.json"))
    host.storage("c2", None, lib=made("docker-plain.json"))
    found = host.scanner().scan()
    assert found.finding(116, DeviceNumber(236, 116)) is Finding.HELD
    assert found.finding(101, DeviceNumber(236, 101)) is Finding.HELD
    assert (found.state_of(Runtime.CRIO), found.state_of(Runtime.CONTAINERD)) == (SourceState.READ, SourceState.NOT_PRESENT)


def test_a_storage_without_containers_is_not_cri_o(host: BundleHost) -> None:
    (host.run / "containers/storage/overlay-locks").mkdir(parents=True)
    assert host.scanner().scan().state_of(Runtime.CRIO) is SourceState.NOT_PRESENT


def test_a_containerd_without_the_kubelets_containers_is_not_the_nodes_runtime(host: BundleHost) -> None:
    host.task("c1", {}, namespace="default")
    assert host.scanner().scan().state_of(Runtime.CONTAINERD) is SourceState.NOT_PRESENT


@pytest.mark.parametrize(
    ("version", "runtime"),
    [
        ("containerd://2.1.9", Runtime.CONTAINERD),
        ("containerd://2.1.5-k3s1", Runtime.CONTAINERD),
        ("docker://28.0.1", Runtime.DOCKER),
        ("cri-o://1.34.0", Runtime.CRIO),
        ("rkt://1", None),
        ("containerd", None),
        ("", None),
    ],
)
def test_the_nodes_runtime(version: str, runtime: Runtime | None) -> None:
    assert runtime_of(version) is runtime


# --- what cannot be read ---


def test_a_malformed_bundle_might_name_anything(host: BundleHost) -> None:
    host.task("c1", b"{")
    found = host.scanner().scan()
    assert (codes(found), found.finding(148, VNPU)) == ([BundleDoubt.BUNDLE_MALFORMED], Finding.UNKNOWN)
    assert found.pod_finding(UID, containers_only=True) is Finding.UNKNOWN


@pytest.mark.parametrize("kind", ["fifo", "directory", "symlink", "large"])
def test_a_configuration_that_is_no_plain_file_is_not_read(host: BundleHost, kind: str) -> None:
    config = host.task("c1", None) / "config.json"
    if kind == "fifo":
        os.mkfifo(config)
    elif kind == "directory":
        config.mkdir()
    elif kind == "symlink":
        config.symlink_to("/dev/null")
    else:
        with config.open("wb") as file:
            file.truncate(5 * 1024 * 1024)
    with must_not_block():
        found = host.scanner().scan()
    assert (codes(found), found.finding(148, VNPU)) == ([BundleDoubt.BUNDLE_UNREADABLE], Finding.UNKNOWN)


def test_a_directory_without_configuration_is_doubt(host: BundleHost) -> None:
    host.task("c1", None)
    assert codes(host.scanner().scan()) == [BundleDoubt.NO_CONFIG]


def test_a_container_of_podman_that_was_never_started_is_no_doubt(host: BundleHost) -> None:
    userdata = host.storage("c1", None)
    assert codes(host.scanner().scan()) == []
    host.process(40)
    (userdata / "pidfile").write_text("40\n")
    assert codes(host.scanner().scan()) == [BundleDoubt.NO_CONFIG]


@pytest.mark.parametrize("place", ["", "/k8s.io"])
def test_a_link_where_a_bundle_would_be_is_doubt(host: BundleHost, place: str) -> None:
    host.task("c1", {})
    Path(f"{host.run}/containerd/io.containerd.runtime.v2.task{place}/link").symlink_to("c1")
    assert codes(host.scanner().scan()) == [BundleDoubt.NOT_A_BUNDLE]


def test_a_bundle_on_its_way_out_is_none(host: BundleHost) -> None:
    host.task(".c1", None)
    assert host.scanner().scan() == BundleScan(host.scanner().scan().roots)


@needs_non_root
@pytest.mark.parametrize("place", ["", "/k8s.io"])
def test_a_root_that_cannot_be_read_is_doubt(host: BundleHost, place: str) -> None:
    host.task("c1", {})
    root = Path(f"{host.run}/containerd/io.containerd.runtime.v2.task{place}")
    root.chmod(0)
    found = host.scanner().scan()
    root.chmod(0o700)
    assert (codes(found), found.state_of(Runtime.CONTAINERD)) == ([BundleDoubt.ROOT_UNREADABLE], SourceState.UNREADABLE)


def test_a_root_that_is_a_loop_is_doubt(host: BundleHost) -> None:
    (host.run / "containerd").symlink_to("containerd")
    found = host.scanner().scan()
    assert set(codes(found)) == {BundleDoubt.ROOT_UNREADABLE}
    assert found.state_of(Runtime.CONTAINERD) is SourceState.UNREADABLE


def test_too_many_bundles_are_doubt(host: BundleHost) -> None:
    for number in range(4):
        host.task(f"c{number}", {})
    found = host.scanner(max_bundles=3).scan()
    assert (codes(found), len(found.bundles)) == ([BundleDoubt.TOO_MANY_BUNDLES], 3)
    assert host.scanner(max_bundles=1).scan().finding(148, VNPU) is Finding.UNKNOWN


# --- whether it lives ---


def test_a_container_that_has_ended_owns_nothing(host: BundleHost) -> None:
    host.task("c1", made("containerd-vnpu.json"), pid=40)
    host.process(40)
    assert host.scanner().scan().finding(148, VNPU) is Finding.HELD
    shutil.rmtree(host.proc / "40")
    found = host.scanner().scan()
    assert (found.bundles[0].life, found.finding(148, VNPU)) == (Life.STOPPED, Finding.CLEAN)
    assert found.pod_finding(UID, containers_only=False) is Finding.CLEAN


def test_from_where_processes_are_not_seen_nobody_has_ended(host: BundleHost) -> None:
    host.task("c1", made("containerd-vnpu.json"), pid=40)
    found = host.scanner(vantage=lambda _proc: Doubt(VantageDoubt.NOT_THE_HOST, "/proc")).scan()
    assert (found.bundles[0].life, found.finding(148, VNPU)) == (Life.UNKNOWN, Finding.HELD)


def test_a_container_without_a_record_counts_as_living(host: BundleHost) -> None:
    host.task("c1", made("containerd-vnpu.json"))
    found = host.scanner().scan()
    assert (found.bundles[0].life, found.finding(148, VNPU)) == (Life.UNKNOWN, Finding.HELD)


def test_a_malformed_bundle_of_an_ended_container_is_no_doubt(host: BundleHost) -> None:
    host.task("c1", b"{", pid=40)
    host.task("c2", None, pid=40)
    assert codes(host.scanner().scan()) == []


def test_runcs_record_tells_a_later_process_with_the_same_id(host: BundleHost) -> None:
    host.task("c1", made("containerd-vnpu.json"), pid=40)
    host.runc("c1", 40, 77)
    host.process(40, started=77)
    assert host.scanner().scan().bundles[0].life is Life.LIVE
    shutil.rmtree(host.proc / "40")
    host.process(40, started=78)
    assert host.scanner().scan().bundles[0].life is Life.STOPPED


@pytest.mark.parametrize(("place", "name"), [("runc", "state.json"), ("crun", "status")])
def test_records_of_cri_os_runtimes(host: BundleHost, place: str, name: str) -> None:
    host.storage("c1", made("cri-o-vnpu.json"))
    if place == "runc":
        host.runc("c1", 40, 77, place="runc")
    else:
        record = host.run / "crun/c1"
        record.mkdir(parents=True)
        (record / name).write_text('{\n    "pid": 40,\n    "process-start-time": 77,\n    "cgroup-path": "x"\n}\n')
    host.process(40, started=78)
    assert host.scanner().scan().bundles[0].life is Life.STOPPED


def test_a_pid_file_of_an_earlier_run_says_nothing(host: BundleHost) -> None:
    userdata = host.storage("c1", made("cri-o-vnpu.json"))
    (userdata / "pidfile").write_text("40")
    os.utime(userdata / "pidfile", (999_999_999, 999_999_999))
    assert host.scanner().scan().bundles[0].life is Life.UNKNOWN


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_first_process_that_is_a_zombie_has_ended(host: BundleHost, state: str) -> None:
    host.process(40, state=state)
    assert life_of(FirstProcess(40), str(host.proc)) is Life.STOPPED


def test_a_process_that_cannot_be_read_is_not_known_to_have_ended(host: BundleHost) -> None:
    (host.proc / "40/stat").mkdir(parents=True)
    (host.proc / "41").mkdir()
    (host.proc / "41/stat").write_text("41 (x) S")
    for pid in (40, 41):
        assert life_of(FirstProcess(pid, 7), str(host.proc)) is Life.UNKNOWN


@pytest.mark.parametrize(
    ("data", "first"),
    [
        (b'{"id":"c","init_process_pid":40,"init_process_start":77,"created"', FirstProcess(40, 77)),
        (b'{"id":"c","init_process_pid":0,"init_process_start":0,"created"', None),
        (b'{"id":"\\"init_process_pid\\":1","init_process_pid":40,"init_process_start":77,', None),
        (b'{"other":1,"id":"c","init_process_pid":40,"init_process_start":77,', None),
        (b'{"id":"c","init_process_pid":40,"init_process_start":7', None),
        (b'{"pid":40,"process-start-time":77,"cgroup-path"', FirstProcess(40, 77)),
        (b"", None),
    ],
)
def test_the_record_of_an_oci_runtime(data: bytes, first: FirstProcess | None) -> None:
    assert parse_state(data) == first


@pytest.mark.parametrize(
    ("data", "first"),
    [(b"40", FirstProcess(40)), (b" 40\n", FirstProcess(40)), (b"0", None), (b"-1", None), (b"", None), (b"9" * 30, None), (b"1 2", None)],
)
def test_a_pid_file(data: bytes, first: FirstProcess | None) -> None:
    assert parse_pid(data) == first


@hypothesis.given(st.binary(max_size=100))
def test_any_record_is_read(data: bytes) -> None:
    assert parse_state(data) is None or data.startswith(b"{")
    first = parse_pid(data)
    assert first is None or first.pid > 0


# --- Pods ---


def test_a_sandbox_counts_only_where_it_is_asked_for(host: BundleHost) -> None:
    host.task("s1", SANDBOX)
    found = host.scanner().scan()
    assert (found.pod_finding(UID, containers_only=False), found.pod_finding(UID, containers_only=True)) == (Finding.HELD, Finding.CLEAN)
    host.task("c1", made("containerd-vnpu.json"))
    assert host.scanner().scan().pod_finding(UID, containers_only=True) is Finding.HELD
    assert host.scanner().scan().pod_finding("other", containers_only=False) is Finding.CLEAN


@pytest.mark.parametrize(("vdev", "number"), [(148, DeviceNumber(1, 1)), (300, VNPU)])
def test_id_or_number_alone_is_enough_to_own(host: BundleHost, vdev: int, number: DeviceNumber) -> None:
    host.task("c1", made("containerd-vnpu.json"))
    found = host.scanner().scan()
    assert ([bundle.id for bundle in found.owners(vdev, number)], found.finding(vdev, number)) == (["c1"], Finding.HELD)


def test_the_sandboxes_of_a_pod(host: BundleHost) -> None:
    host.task("s1", SANDBOX)
    host.task("c1", made("containerd-vnpu.json"))
    assert (host.scanner().scan().sandboxes(UID), host.scanner().scan().sandboxes("other")) == ({"s1"}, frozenset())


def test_a_container_of_a_pod_that_cannot_be_told_might_be_any(host: BundleHost) -> None:
    host.task("c1", {"annotations": {"io.kubernetes.cri.container-type": "container"}})
    assert host.scanner().scan().pod_finding(UID, containers_only=True) is Finding.UNKNOWN


def test_dockers_labels_tell_pod_and_type(host: BundleHost) -> None:
    host.task("c1", {}, namespace="moby")
    labels = {"io.kubernetes.docker.type": "podsandbox", "io.kubernetes.pod.uid": UID}
    record = host.lib / "docker/containers/c1"
    record.mkdir(parents=True)
    (record / "config.v2.json").write_text(json.dumps({"Config": {"Labels": labels}}))
    found = host.scanner().scan()
    assert found.bundles[0].facts is not None
    assert (found.bundles[0].facts.type, found.bundles[0].facts.pod_uids) == (ContainerType.SANDBOX, {UID})
    (record / "config.v2.json").write_text("{")
    assert host.scanner().scan().bundles[0].facts == BundleFacts()


# --- remembering ---


def test_what_did_not_change_is_not_read_again(host: BundleHost, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = host.task("c1", made("containerd-vnpu.json"))
    scanner = host.scanner()
    read: list[str] = []
    actual = bundles.read_file
    monkeypatch.setattr(bundles, "read_file", lambda path, limit: read.append(path) or actual(path, limit))
    first, second = scanner.scan(), scanner.scan()
    # Its times are long past, but the time of the change of its inode is now.
    assert (first, len(read)) == (second, 2)
    later = host.scanner(now_ns=lambda: 4_000_000_000_000_000_000)
    read.clear()
    assert (later.scan(), later.scan(), len(read)) == (first, first, 1)
    host.write(bundle / "config.json", {})
    assert later.scan().finding(148, VNPU) is Finding.CLEAN
    shutil.rmtree(bundle)
    assert later.scan().bundles == ()


def test_a_malformed_bundle_is_remembered_as_such(host: BundleHost) -> None:
    host.task("c1", b"{")
    scanner = host.scanner(now_ns=lambda: 4_000_000_000_000_000_000)
    assert codes(scanner.scan()) == codes(scanner.scan()) == [BundleDoubt.BUNDLE_MALFORMED]
