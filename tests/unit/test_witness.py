"""A statement as the daemon takes it: no clean where a source has doubts, and nothing known where there is none."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.cluster.bundle import ContainerType
from devward.cluster.evidence import DeviceNumber, Doubt, Finding, SourceState
from devward.cluster.kubelet_facts import Kubelet, KubeletDoubt, KubeletScan
from devward.cluster.node import Kubelets
from devward.cluster.statement import KubeletSource, PodSight, SourceSight, Statement, VnpuSight, contradiction
from devward.cluster.witness import WitnessedHost, kubelet_scan
from sim.statements import CONTAINER, DOUBTED, KUBELET, READ, UID, VNPU, clean, full, statements

OTHER = "11111111-d9cb-469f-a165-70867728950e"


def pod(said: Statement | None, uid: str = UID) -> tuple[Finding, Finding]:
    host = WitnessedHost(said)
    return host.pod(uid, containers_only=False), host.pod(uid, containers_only=True)


def test_without_a_statement_everything_is_unknown() -> None:
    host = WitnessedHost(None)
    assert pod(None) == (Finding.UNKNOWN, Finding.UNKNOWN)
    assert host.finding(148, VNPU.number) is Finding.UNKNOWN
    assert (host.kubelet, host.runtime_only, host.containers_of(UID)) == (None, (), ())
    assert host.kubelets(9).doubt


def test_each_pod_is_as_it_was_seen_and_others_as_they_were_not() -> None:
    said = replace(clean(), pods=(PodSight(UID, Finding.HELD, Finding.CLEAN, True),), others=Finding.UNKNOWN)
    assert pod(said) == (Finding.HELD, Finding.CLEAN)
    assert pod(said, OTHER) == (Finding.UNKNOWN, Finding.CLEAN)


@pytest.mark.parametrize("source", ["bundles", "cgroups"])
@pytest.mark.parametrize("how", [DOUBTED, replace(READ, doubts=DOUBTED.doubts), replace(READ, more=1)])
def test_no_word_for_clean_is_taken_of_a_source_with_doubts(source: str, how: SourceSight) -> None:
    said = replace(clean(), pods=(PodSight(UID, Finding.HELD, Finding.CLEAN, True),), **{source: how})
    assert pod(said) == (Finding.HELD, Finding.UNKNOWN)
    assert pod(said, OTHER) == (Finding.UNKNOWN, Finding.UNKNOWN)


def test_groups_are_on_every_host_and_bundles_need_not_be() -> None:
    absent = SourceSight(SourceState.NOT_PRESENT)
    assert pod(replace(clean(), cgroups=absent)) == (Finding.UNKNOWN, Finding.UNKNOWN)
    assert pod(replace(clean(), bundles=absent)) == (Finding.CLEAN, Finding.CLEAN)


def test_a_vnpu_is_known_by_id_and_number() -> None:
    host = WitnessedHost(clean(VNPU))
    assert host.finding(148, VNPU.number) is Finding.CLEAN
    assert host.finding(148, DeviceNumber(236, 149)) is Finding.UNKNOWN
    assert host.finding(149, VNPU.number) is Finding.UNKNOWN


@given(st.sampled_from(Finding), st.sampled_from(Finding), st.sampled_from(Finding))
def test_one_source_holds_and_clean_takes_all(one: Finding, two: Finding, three: Finding) -> None:
    finding = VnpuSight(VNPU, one, two, three).finding
    assert (finding is Finding.HELD) == (Finding.HELD in (one, two, three))
    assert (finding is Finding.CLEAN) == ({one, two, three} == {Finding.CLEAN})


@given(statements(), st.sampled_from((UID, OTHER)))
def test_what_is_clean_was_read_whole(said: Statement, uid: str) -> None:
    if Finding.CLEAN in pod(said, uid):
        assert said.bundles.is_sure
        assert said.cgroups.is_sure
    for sight in said.vnpus:
        if WitnessedHost(said).finding(sight.vnpu.vdev, sight.vnpu.number) is Finding.CLEAN:
            assert said.descriptors is not None
            assert said.descriptors.is_sure
            assert said.bundles.is_sure
            assert said.uda.is_sure


def test_containers_are_found_by_pod_and_those_of_no_pod_by_what_they_may_use() -> None:
    own = replace(CONTAINER, type=ContainerType.UNKNOWN, pod_uids=())
    nothing = replace(own, cards=(), template="", vdevs=())
    containers = {
        "names a vNPU": own,
        "names a card": replace(nothing, cards=(0,)),
        "names any card": replace(nothing, cards=None),
        "asks for a vNPU": replace(nothing, template="vir05_1c_16g"),
        "is privileged": replace(nothing, has_all_devices=True),
        "has every vNPU's number": replace(nothing, has_a_major=True),
    }
    of_a_pod = replace(containers["is privileged"], type=ContainerType.CONTAINER)
    said = replace(full(), containers=(CONTAINER, nothing, of_a_pod, *containers.values()))
    host = WitnessedHost(said)
    assert host.runtime_only == tuple(containers.values())
    assert host.containers_of(UID) == (CONTAINER,)
    assert host.containers_of(OTHER) == ()


def test_the_kubelet_is_there_or_missing_or_in_doubt() -> None:
    assert WitnessedHost(clean()).kubelet == KUBELET
    assert WitnessedHost(clean()).kubelets(301) == Kubelets(("100 kubelet (77)",), 301)
    missing = replace(clean(), kubelet=KubeletSource(SourceState.NOT_PRESENT))
    assert WitnessedHost(missing).kubelets(0) == Kubelets()
    doubts = (Doubt("several-kubelets", "40 kubelet, 41 k3s"), Doubt("kubelet-changed", ""))
    several = replace(clean(), kubelet=KubeletSource(SourceState.UNREADABLE, None, doubts))
    assert WitnessedHost(several).kubelet is None
    assert WitnessedHost(several).kubelets(9) == Kubelets(doubt="several-kubelets 40 kubelet, 41 k3s; kubelet-changed")


PLUGINS = "/var/lib/kubelet/device-plugins"
SEVERAL = (Doubt("several-kubelets", "40 kubelet, 41 k3s"),)


def test_the_kubelet_is_taken_as_its_search_found_it() -> None:
    found = kubelet_scan(clean().kubelet)
    directories = ("/data/kubelet", "/data/kubelet/device-plugins")
    assert found == KubeletScan(Kubelet(100, 77, "kubelet", "/var/lib/kubelet", PLUGINS, *directories))
    assert kubelet_scan(KubeletSource(SourceState.NOT_PRESENT)) == KubeletScan(None, (Doubt(KubeletDoubt.NOT_FOUND, "/proc"),))
    assert kubelet_scan(KubeletSource(SourceState.UNREADABLE, None, SEVERAL)) == KubeletScan(None, SEVERAL)


@pytest.mark.parametrize(
    "source",
    [
        KubeletSource(SourceState.NOT_PRESENT, KUBELET),
        KubeletSource(SourceState.UNREADABLE, KUBELET),
        KubeletSource(SourceState.UNREADABLE),
        KubeletSource(SourceState.READ),
        KubeletSource(SourceState.READ, KUBELET, SEVERAL),
    ],
)
def test_no_kubelet_is_taken_of_a_source_that_contradicts_itself(source: KubeletSource) -> None:
    assert contradiction(replace(clean(), kubelet=source))
    scan = kubelet_scan(source)
    assert scan.kubelet is None
    assert set(source.doubts) <= set(scan.doubts)


@given(statements())
def test_a_kubelet_is_one_without_a_doubt_and_no_other(said: Statement) -> None:
    scan = kubelet_scan(said.kubelet)
    assert (scan.kubelet is None) == bool(scan.doubts)
    assert (scan.kubelet is None) == (said.kubelet.kubelet is None)
