"""Local evidence joined: held as soon as one source holds it, clean only by all of them."""

from pathlib import Path

import pytest

from devward.cluster.bundles import BundleDoubt
from devward.cluster.descriptors import DescriptorScan, Holder, ScanDoubt, Trace
from devward.cluster.evidence import DeviceNumber, Doubt, Finding, strongest
from devward.cluster.local import LocalDoubt, LocalEvidence, LocalScanner, Source
from sim.bundle_host import BundleHost, everybody, made

UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
VNPU = DeviceNumber(236, 148)
ONE, TWO = "1" * 64, "2" * 64


class Host(BundleHost):
    """A host with control groups of version 2 and no process but one."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.cgroups = root / "cgroup"
        self.cgroups.mkdir()
        (self.cgroups / "cgroup.controllers").write_text("")

    def group(self, path: str, *, populated: bool = True) -> Path:
        """Add a group."""
        group = self.cgroups / path
        group.mkdir(parents=True)
        (group / "cgroup.events").write_text(f"populated {int(populated)}\n")
        return group

    def uda(self, used: str = "") -> None:
        """Add the driver's list."""
        (self.proc / "uda").mkdir()
        lines = f"udevid 148 status 'ready, mia' added_udevid 148 chip_type x\n        {used}\n\n"
        (self.proc / "uda/udevice").write_text(lines)
        (self.proc / "uda/namespace_node").write_text("")

    def look(self, version: str | None = None, numbers: tuple[DeviceNumber, ...] = (VNPU,)) -> LocalEvidence:
        """Look at it."""
        scanner = LocalScanner(proc=str(self.proc), cgroups=str(self.cgroups), bundles=self.scanner(), vantage=everybody)
        return scanner.look(numbers, version)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_clean_takes_every_source(host: Host) -> None:
    found = host.look()
    vnpu = found.vnpu(148, VNPU)
    assert (vnpu.finding, vnpu.reasons, found.doubts) == (Finding.CLEAN, (), ())
    assert vnpu.sources == tuple((source, Finding.CLEAN) for source in Source)


def test_one_source_is_enough_to_hold(host: Host) -> None:
    host.task(ONE, made("containerd-vnpu.json"))
    vnpu = host.look().vnpu(148, VNPU)
    assert (vnpu.finding, vnpu.reasons) == (Finding.HELD, (f"container {ONE} names it",))


def test_the_drivers_word_holds(host: Host) -> None:
    host.uda("has used by container, ns id 3")
    vnpu = host.look().vnpu(148, VNPU)
    assert (vnpu.finding, dict(vnpu.sources)[Source.UDA]) == (Finding.HELD, Finding.HELD)
    assert vnpu.reasons == ("the driver says that a container uses it (first process unknown)",)


def test_doubt_of_one_source_is_doubt(host: Host) -> None:
    host.task(ONE, b"{")
    vnpu = host.look().vnpu(148, VNPU)
    assert (vnpu.finding, dict(vnpu.sources)[Source.BUNDLES]) == (Finding.UNKNOWN, Finding.UNKNOWN)
    (reason,) = vnpu.reasons
    whole = f"bundles: {BundleDoubt.BUNDLE_MALFORMED} {host.run}/containerd/io.containerd.runtime.v2.task/k8s.io/{ONE}/config.json"
    # Where the directory of the tests has a long name, it is cut.
    assert whole.startswith(reason.removesuffix("…"))
    assert ONE in reason


def test_a_driver_that_does_not_know_the_vnpu_is_doubt(host: Host) -> None:
    host.uda()
    assert host.look().vnpu(148, VNPU).finding is Finding.CLEAN
    vnpu = host.look(numbers=(DeviceNumber(236, 149),)).vnpu(149, DeviceNumber(236, 149))
    assert (vnpu.finding, vnpu.reasons) == (Finding.UNKNOWN, ("uda: it is not in what was read",))


def test_without_a_scan_of_descriptors_nothing_is_clean(host: Host) -> None:
    assert host.look(numbers=()).vnpu(148, VNPU).finding is Finding.UNKNOWN


def test_a_process_is_named_so_that_it_can_be_shown(host: Host) -> None:
    found = host.look()
    holder = Holder(VNPU, Trace.MAPPING, 40, 41, "na\x1bme\udc80")
    doubt = Doubt(ScanDoubt.PROCESS_UNREADABLE, "40", 13)
    held = LocalEvidence(DescriptorScan(frozenset({VNPU}), (holder,), (doubt,)), found.bundles, found.cgroups, found.uda)
    assert held.vnpu(148, VNPU).reasons == ("process 40 'na\\x1bme\\x80' has it mapped",)
    unknown = LocalEvidence(DescriptorScan(frozenset({VNPU}), (), (doubt,)), found.bundles, found.cgroups, found.uda)
    assert unknown.vnpu(148, VNPU).reasons == ("descriptors: process-unreadable 40: EACCES",)


@pytest.mark.parametrize(
    ("version", "code"),
    [("containerd://2.1.9", LocalDoubt.RUNTIME_NOT_FOUND), ("rkt://1", LocalDoubt.RUNTIME_UNKNOWN), ("", LocalDoubt.RUNTIME_UNKNOWN)],
)
def test_the_nodes_own_runtime_must_be_found(host: Host, version: str, code: LocalDoubt) -> None:
    found = host.look(version)
    assert [doubt.code for doubt in found.doubts] == [code]
    assert (found.vnpu(148, VNPU).finding, found.pod(UID, containers_only=True)) == (Finding.UNKNOWN, Finding.UNKNOWN)


def test_the_nodes_own_runtime_is_found(host: Host) -> None:
    host.task(ONE, {})
    assert host.look("containerd://2.1.9").vnpu(148, VNPU).finding is Finding.CLEAN


def test_the_nodes_own_runtime_must_be_readable(host: Host) -> None:
    (host.run / "containerd").symlink_to("containerd")
    assert [doubt.code for doubt in host.look("containerd://2.1.9").doubts] == [LocalDoubt.RUNTIME_UNREADABLE]


def test_a_living_container_without_a_bundle_is_doubt(host: Host) -> None:
    host.group(f"kubepods/pod{UID}/{ONE}")
    found = host.look()
    assert [doubt.code for doubt in found.doubts] == [LocalDoubt.CONTAINER_WITHOUT_BUNDLE]
    assert found.vnpu(148, VNPU).finding is Finding.UNKNOWN
    host.task(ONE, {})
    assert host.look().vnpu(148, VNPU).finding is Finding.CLEAN


def test_an_empty_group_without_a_bundle_is_no_doubt(host: Host) -> None:
    host.group(f"kubepods/pod{UID}/{ONE}", populated=False)
    assert host.look().doubts == ()


def test_a_pod_lives_by_bundle_or_by_group(host: Host) -> None:
    assert host.look().pod(UID, containers_only=False) is Finding.CLEAN
    sandbox = {"annotations": {"io.kubernetes.cri.container-type": "sandbox", "io.kubernetes.cri.sandbox-uid": UID}}
    host.task(ONE, sandbox)
    host.group(f"kubepods/pod{UID}/{ONE}")
    found = host.look()
    assert (found.pod(UID, containers_only=False), found.pod(UID, containers_only=True)) == (Finding.HELD, Finding.CLEAN)
    host.group(f"kubepods/pod{UID}/{TWO}")
    assert host.look().pod(UID, containers_only=True) is Finding.HELD


def test_a_pod_lives_by_its_group_alone(host: Host) -> None:
    host.group(f"kubepods/pod{UID}", populated=False)
    found = host.look()
    assert (found.pod(UID, containers_only=False), found.pod(UID, containers_only=True)) == (Finding.HELD, Finding.CLEAN)


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ((), Finding.CLEAN),
        ((Finding.CLEAN, Finding.CLEAN), Finding.CLEAN),
        ((Finding.CLEAN, Finding.UNKNOWN), Finding.UNKNOWN),
        ((Finding.UNKNOWN, Finding.HELD, Finding.CLEAN), Finding.HELD),
    ],
)
def test_the_strongest_finding_counts(findings: tuple[Finding, ...], expected: Finding) -> None:
    assert strongest(findings) is expected
