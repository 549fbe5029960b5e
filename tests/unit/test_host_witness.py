"""The broker's look at the host for the daemon: what is there is told, what is not seen or cannot be told is in doubt."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from devward.cluster.bundle import ContainerType
from devward.cluster.bundles import BundleDoubt
from devward.cluster.descriptors import ScanDoubt
from devward.cluster.evidence import Finding, SourceState
from devward.cluster.kernel import Kernel
from devward.cluster.kubelet_facts import KubeletDoubt
from devward.cluster.life import Life
from devward.cluster.local import LocalDoubt
from devward.cluster.statement import AskedVnpu, Statement, WitnessDoubt, contradiction
from devward.cluster.vantage import VantageDoubt
from devward.cluster.witness import WitnessedHost
from devward.npu import host_witness
from devward.npu.facts import Refusal, Refused
from devward.npu.protocol import WitnessAnswer, encode_answer, parse_answer
from sim.bundle_host import made
from sim.witness_host import RUNTIME, WitnessHost, observer

#: Real devices, of the memory driver, that nobody here takes for NPUs.
FULL, ZERO = AskedVnpu(148, 1, 7), AskedVnpu(149, 1, 5)
UID, OTHER = "0f8fad5b-d9cb-469f-a165-70867728950e", "11111111-d9cb-469f-a165-70867728950e"
ONE, TWO = "1" * 64, "2" * 64
LONG = 60.0


@pytest.fixture
def host(tmp_path: Path) -> WitnessHost:
    """A host with a kubelet, containerd with one container that has nothing to do with NPUs, and one process."""
    host = WitnessHost(tmp_path / "tree")
    host.bundles.task("0" * 64, {})
    host.kubelets.kubelet()
    host.process(40, "/dev/null")
    return host


def look(
    host: WitnessHost,
    *vnpus: AskedVnpu,
    runtime: str | None = RUNTIME,
    privileged: bool = True,
    seconds: float = LONG,
    step: Callable[[str], None] = lambda _: None,
) -> Statement:
    """Look, and return what arrives at the daemon."""
    said = observer(host.base, privileged=privileged).look(vnpus, runtime, seconds, step)
    assert contradiction(said) == ""
    assert parse_answer(encode_answer(WitnessAnswer(1, said))) == WitnessAnswer(1, said)
    return said


def codes(source: object) -> list[str]:
    return [doubt.code for doubt in source.doubts]  # type: ignore[attr-defined]


def pod_bundle(uid: str = UID, kind: str = "container", **more: object) -> dict[str, object]:
    annotations = {"io.kubernetes.cri.container-type": kind, "io.kubernetes.cri.sandbox-uid": uid}
    return {"annotations": annotations, **more}


# --- vNPUs ------------------------------------------------------------------------------------------------------------
def test_a_host_that_nobody_uses_is_clean_whole(host: WitnessHost) -> None:
    said = look(host, FULL, ZERO)
    assert [(sight.vnpu, sight.finding, sight.reasons) for sight in said.vnpus] == [(FULL, Finding.CLEAN, ()), (ZERO, Finding.CLEAN, ())]
    assert said.descriptors is not None
    assert (said.descriptors.state, said.bundles.state, said.cgroups.state) == (SourceState.READ,) * 3
    assert said.uda.state is SourceState.NOT_PRESENT
    assert (said.others, said.others_containers) == (Finding.CLEAN, Finding.CLEAN)


def test_a_process_holds_by_number(host: WitnessHost) -> None:
    host.process(41, "/dev/null", "/dev/full")
    said = look(host, FULL, ZERO)
    held, clean = said.vnpus
    assert (held.descriptors, held.reasons) == (Finding.HELD, ("process 41 'python3' has it open",))
    assert clean.finding is Finding.CLEAN


def test_without_privilege_nothing_is_clean_and_nobody_is_missing(host: WitnessHost) -> None:
    said = look(host, FULL, privileged=False)
    (sight,) = said.vnpus
    assert (sight.descriptors, sight.finding) == (Finding.UNKNOWN, Finding.UNKNOWN)
    assert said.descriptors is not None
    assert (said.descriptors.state, codes(said.descriptors)) == (SourceState.UNREADABLE, [VantageDoubt.NOT_PRIVILEGED])
    assert (said.kubelet.state, codes(said.kubelet)) == (SourceState.UNREADABLE, [VantageDoubt.NOT_PRIVILEGED])


def test_a_process_that_cannot_be_read_is_doubt(host: WitnessHost) -> None:
    task = host.process(41) / "task/41"
    (task / "maps").unlink()
    (task / "maps").symlink_to("maps")
    said = look(host, FULL)
    assert said.vnpus[0].finding is Finding.UNKNOWN
    assert said.descriptors is not None
    assert codes(said.descriptors) == [ScanDoubt.PROCESS_UNREADABLE]


def test_a_process_that_ends_while_it_is_looked_at_is_no_doubt(host: WitnessHost, monkeypatch: pytest.MonkeyPatch) -> None:
    process = host.process(41, "/dev/null", "/dev/null")
    before = Kernel.mode_and_number
    ended: list[Path] = []

    def end_first(kernel: Kernel, directory: int, name: bytes) -> tuple[int, int, int]:
        if not ended and os.readlink(f"/proc/self/fd/{directory}").startswith(str(process)):
            ended.append(process)
            shutil.rmtree(process)
        return before(kernel, directory, name)

    monkeypatch.setattr(Kernel, "mode_and_number", end_first)
    assert look(host, FULL).vnpus[0].finding is Finding.CLEAN
    assert ended


def test_nobody_is_looked_at_where_nothing_is_asked(host: WitnessHost) -> None:
    host.process(41, "/dev/full")
    said = look(host)
    assert (said.vnpus, said.descriptors) == ((), None)


def test_what_is_not_seen_in_time_is_in_doubt(host: WitnessHost) -> None:
    said = look(host, FULL, seconds=-1.0)
    assert said.descriptors is not None
    assert codes(said.descriptors) == [ScanDoubt.OUT_OF_TIME]
    assert BundleDoubt.OUT_OF_TIME in codes(said.bundles)
    assert (said.vnpus[0].finding, said.others) == (Finding.UNKNOWN, Finding.UNKNOWN)
    assert look(host, FULL).vnpus[0].finding is Finding.CLEAN


def test_the_driver_is_heard(host: WitnessHost) -> None:
    host.uda(148, used="has used by container, ns id 3")
    held, unlisted = look(host, FULL, ZERO).vnpus
    assert (held.uda, unlisted.uda) == (Finding.HELD, Finding.UNKNOWN)
    (host.bundles.proc / "uda/udevice").write_text("something else\n")
    said = look(host, FULL)
    assert (said.uda.state, said.vnpus[0].uda) == (SourceState.UNREADABLE, Finding.UNKNOWN)


# --- containers and Pods ------------------------------------------------------------------------------------------------
def test_a_container_owns_what_it_names_and_is_told(host: WitnessHost) -> None:
    host.bundles.task(ONE, made("containerd-vnpu.json"))
    said = look(host, FULL)
    (container,) = WitnessedHost(said).containers_of(next(iter(said.containers[0].pod_uids or said.containers[1].pod_uids)))
    assert (container.id, container.life, container.type) == (ONE, Life.UNKNOWN, ContainerType.CONTAINER)
    assert 148 in container.vdevs
    assert said.vnpus[0].bundles is Finding.HELD


def test_a_container_that_has_the_number_owns_it(host: WitnessHost) -> None:
    host.bundles.task(ONE, pod_bundle(linux={"devices": [{"path": "/dev/other", "type": "c", "major": 1, "minor": 7}]}))
    said = look(host, FULL, ZERO)
    (container,) = WitnessedHost(said).containers_of(UID)
    assert container.vdevs == (148,)
    assert [sight.bundles for sight in said.vnpus] == [Finding.HELD, Finding.CLEAN]


def test_a_number_that_two_ids_are_said_to_have_is_both(host: WitnessHost) -> None:
    host.bundles.task(ONE, pod_bundle(linux={"devices": [{"path": "/dev/other", "type": "c", "major": 1, "minor": 7}]}))
    (container,) = WitnessedHost(look(host, FULL, AskedVnpu(149, 1, 7))).containers_of(UID)
    assert container.vdevs == (148, 149)


def test_images_bake_and_containers_are_privileged(host: WitnessHost) -> None:
    rules = {"resources": {"devices": [{"allow": True, "type": "c", "major": 1, "access": "rwm"}]}}
    host.bundles.task(ONE, pod_bundle(process={"env": ["ASCEND_VISIBLE_DEVICES=3"]}))
    host.bundles.task(TWO, pod_bundle(OTHER, mounts=[{"source": "/dev"}], process={"env": ["ASCEND_VISIBLE_DEVICES=all"]}))
    host.bundles.task("3" * 64, {"process": {"env": ["ASCEND_VNPU_SPECS=vir05_1c_16g"]}, "linux": rules}, namespace="moby")
    seen = WitnessedHost(look(host, FULL))
    (baked,) = seen.containers_of(UID)
    assert (baked.cards, baked.may_open_any) == ((3,), False)
    (privileged,) = seen.containers_of(OTHER)
    assert (privileged.cards, privileged.has_all_devices) == (None, True)
    (own,) = seen.runtime_only
    assert (own.namespace, own.template, own.has_a_major) == ("moby", "vir05_1c_16g", True)


def test_pods_live_by_bundles_and_groups_and_sandboxes_are_told_apart(host: WitnessHost) -> None:
    host.bundles.task(ONE, pod_bundle(kind="sandbox"))
    host.group(f"kubepods/pod{UID}/{ONE}")
    host.group(f"kubepods/pod{OTHER}", populated=False)
    seen = WitnessedHost(look(host))
    assert (seen.pod(UID, containers_only=False), seen.pod(UID, containers_only=True)) == (Finding.HELD, Finding.CLEAN)
    assert (seen.pod(OTHER, containers_only=False), seen.pod(OTHER, containers_only=True)) == (Finding.HELD, Finding.CLEAN)
    host.bundles.task(TWO, pod_bundle())
    assert WitnessedHost(look(host)).pod(UID, containers_only=True) is Finding.HELD


def test_a_container_of_no_pod_is_not_that_of_others(host: WitnessHost) -> None:
    host.bundles.task(ONE, {}, namespace="moby")
    host.group(f"system.slice/docker-{ONE}.scope")
    said = look(host)
    assert (said.others, said.others_containers) == (Finding.CLEAN, Finding.CLEAN)


@pytest.mark.parametrize("uid", ["a/b", "x" * 129, "a\nb"])
def test_a_pod_that_cannot_be_told_is_doubt_about_all(host: WitnessHost, uid: str) -> None:
    host.bundles.task(ONE, pod_bundle(uid))
    said = look(host, FULL)
    assert codes(said.bundles) == [WitnessDoubt.NOT_TELLABLE]
    assert said.bundles.doubts[0].subject.isprintable()
    assert (said.others, said.others_containers, said.vnpus[0].bundles) == (Finding.UNKNOWN,) * 3
    assert said.vnpus[0].reasons


def test_more_pods_than_are_told_is_doubt_about_the_rest(host: WitnessHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_witness, "POD_LIMIT", 1)
    host.bundles.task(ONE, pod_bundle())
    host.bundles.task(TWO, pod_bundle(OTHER))
    said = look(host)
    assert [pod.uid for pod in said.pods] == [UID]
    assert codes(said.bundles) == [WitnessDoubt.TOO_MANY]
    assert WitnessedHost(said).pod(OTHER, containers_only=True) is Finding.UNKNOWN


def test_more_containers_than_are_told_is_doubt(host: WitnessHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_witness, "CONTAINER_LIMIT", 1)
    host.bundles.task(ONE, pod_bundle())
    said = look(host, FULL)
    assert len(said.containers) == 1
    assert (codes(said.bundles), said.vnpus[0].bundles) == ([WitnessDoubt.TOO_MANY], Finding.UNKNOWN)


@pytest.mark.parametrize(
    ("runtime", "code"),
    [("cri-o://1.30.1", LocalDoubt.RUNTIME_NOT_FOUND), ("rkt://1", LocalDoubt.RUNTIME_UNKNOWN), ("", LocalDoubt.RUNTIME_UNKNOWN)],
)
def test_the_nodes_own_runtime_has_to_be_there(host: WitnessHost, runtime: str, code: str) -> None:
    said = look(host, FULL, runtime=runtime)
    assert (codes(said.bundles), said.vnpus[0].bundles, said.others) == ([code], Finding.UNKNOWN, Finding.UNKNOWN)
    assert look(host, FULL, runtime=None).vnpus[0].finding is Finding.CLEAN


def test_a_host_without_bundles_has_none(host: WitnessHost) -> None:
    shutil.rmtree(host.bundles.run / "containerd")
    assert look(host, runtime=None).bundles.state is SourceState.NOT_PRESENT
    (host.bundles.run / "containerd").symlink_to("containerd")
    assert look(host, runtime=None).bundles.state is SourceState.UNREADABLE


def test_groups_that_cannot_be_read_are_doubt_about_pods(host: WitnessHost) -> None:
    (host.cgroups / "cgroup.controllers").unlink()
    said = look(host)
    assert (said.cgroups.state, said.others, said.others_containers) == (SourceState.UNREADABLE, Finding.UNKNOWN, Finding.UNKNOWN)


def test_many_doubts_are_counted(host: WitnessHost) -> None:
    for number in range(30):
        host.bundles.task(f"{number + 1:064x}", b"{")
    said = look(host)
    assert (len(said.bundles.doubts), said.bundles.more) == (20, 10)
    assert not said.bundles.is_sure


# --- the kubelet --------------------------------------------------------------------------------------------------------
def test_the_kubelet_is_told(host: WitnessHost) -> None:
    kubelet = look(host).kubelet.kubelet
    assert kubelet is not None
    assert (kubelet.pid, kubelet.started, kubelet.command) == (100, 77, "kubelet")
    assert (kubelet.root_name, kubelet.plugins_name) == ("/var/lib/kubelet", "/var/lib/kubelet/device-plugins")
    assert kubelet.plugins_directory == f"{host.kubelets.root}/var/lib/kubelet/device-plugins"


def test_no_kubelet_is_not_present_and_two_are_doubt(tmp_path: Path, host: WitnessHost) -> None:
    alone = WitnessHost(tmp_path / "alone")
    assert look(alone, runtime=None).kubelet.state is SourceState.NOT_PRESENT
    host.kubelets.process(200, "k3s", listens=("/other/device-plugins/kubelet.sock",), network="net:[2]")
    found = look(host).kubelet
    assert (found.state, found.kubelet, codes(found)) == (SourceState.UNREADABLE, None, [KubeletDoubt.SEVERAL])


def test_a_kubelet_whose_directory_cannot_be_told_is_doubt(tmp_path: Path) -> None:
    host = WitnessHost(tmp_path / "tree")
    plugins = "/var/lib/kübelet/device-plugins"
    host.kubelets.directory(plugins, checkpoint=True)
    line = ("/usr/bin/kubelet", "--root-dir=/var/lib/kübelet")
    host.kubelets.process(100, line=line, listens=(f"{plugins}/kubelet.sock",))
    found = look(host, runtime=None).kubelet
    assert (found.state, codes(found)) == (SourceState.UNREADABLE, [WitnessDoubt.NOT_TELLABLE])


def test_the_kubeconfig_is_told(host: WitnessHost) -> None:
    place = host.kubelets.directory("/etc/kubernetes") / "kubelet.conf"
    place.write_text("")
    kubelet = look(host).kubelet.kubelet
    assert kubelet is not None
    assert (kubelet.kubeconfig, kubelet.kubeconfig_problem) == (f"{host.kubelets.root}/etc/kubernetes/kubelet.conf", "")


def test_the_command_line_of_the_kubelet_that_was_found_counts(tmp_path: Path) -> None:
    host = WitnessHost(tmp_path / "tree")
    host.kubelets.kubelet(line=("/usr/bin/kubelet", "--kubeconfig=/a/b"))
    for name in ("/a/b", "/etc/kubernetes/kubelet.conf"):
        (host.kubelets.directory(os.path.dirname(name)) / os.path.basename(name)).write_text("")
    kubelet = look(host, runtime=None).kubelet.kubelet
    assert kubelet is not None
    assert kubelet.kubeconfig == f"{host.kubelets.root}/a/b"


@pytest.mark.parametrize(
    ("given", "files", "problem"),
    [
        ("", (), "none in /etc/kubernetes/kubelet.conf"),
        ("", ("/etc/kubernetes/kubelet.conf", "/var/lib/k0s/kubelet.conf"), "there are "),
        ("relative", ("/etc/kubernetes/kubelet.conf",), "which is relative"),
        ("/nowhere", ("/etc/kubernetes/kubelet.conf",), "/nowhere of the kubelet is another file than this host's"),
        ("/a/kübeconfig", ("/a/kübeconfig",), "than can be told"),
        ("/" + "x" * 200 + "/\x1b" + "y" * 200, (), "/" + "x" * 200),
    ],
)
def test_a_kubeconfig_that_is_not_found_has_a_reason(tmp_path: Path, given: str, files: tuple[str, ...], problem: str) -> None:
    host = WitnessHost(tmp_path / "tree")
    host.kubelets.kubelet(line=("/usr/bin/kubelet", *([f"--kubeconfig={given}"] if given else [])))
    for name in files:
        (host.kubelets.directory(os.path.dirname(name)) / os.path.basename(name)).write_text("")
    kubelet = look(host, runtime=None).kubelet.kubelet
    assert kubelet is not None
    assert kubelet.kubeconfig == ""
    assert problem in kubelet.kubeconfig_problem
    assert kubelet.root_name == "/var/lib/kubelet"


def test_the_kubeconfig_of_a_kubelet_with_other_mounts_is_not_told(tmp_path: Path) -> None:
    host = WitnessHost(tmp_path / "tree")
    inside = tmp_path / "inside"
    for root in (None, inside):
        (host.kubelets.directory("/etc/kubernetes", root=root) / "kubelet.conf").write_text("")
    host.kubelets.directory("/var/lib/kubelet/device-plugins", root=inside, checkpoint=True)
    host.kubelets.process(100, listens=("/var/lib/kubelet/device-plugins/kubelet.sock",), root=inside)
    kubelet = look(host, runtime=None).kubelet.kubelet
    assert kubelet is not None
    assert kubelet.root_directory == f"{host.kubelets.proc}/100/root/var/lib/kubelet"
    assert (kubelet.kubeconfig, bool(kubelet.kubeconfig_problem)) == ("", True)


# --- steps --------------------------------------------------------------------------------------------------------------
def test_a_step_that_is_refused_ends_the_look(host: WitnessHost) -> None:
    steps: list[str] = []

    def refuse(step: str) -> None:
        steps.append(step)
        if len(steps) == 2:
            raise Refused(Refusal.CALLER_GONE, "the caller has gone")

    with pytest.raises(Refused):
        look(host, FULL, step=refuse)
    assert steps == ["the search for the kubelet", "the look at the host's processes and containers"]
