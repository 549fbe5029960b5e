"""Testimonies for tests: a plain one, and a strategy for whole ones of every kind."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from devward.cluster.bundle import ContainerType
from devward.cluster.evidence import Doubt, Finding, SourceState
from devward.cluster.life import Life
from devward.cluster.statement import (
    AskedVnpu,
    ContainerSight,
    KubeletSight,
    KubeletSource,
    PodSight,
    SourceSight,
    Statement,
    VnpuSight,
    pods_are_sure,
)
from devward.npu import witness_objects as limits

VNPU = AskedVnpu(148, 236, 148)
UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
READ = SourceSight(SourceState.READ)
DOUBTED = SourceSight(SourceState.UNREADABLE, (Doubt("process-unreadable", "40", 13),))
KUBELET = KubeletSight(
    100,
    77,
    "kubelet",
    "/var/lib/kubelet",
    "/var/lib/kubelet/device-plugins",
    "/data/kubelet",
    "/data/kubelet/device-plugins",
    "/etc/kubernetes/kubelet.conf",
    "",
)
CONTAINER = ContainerSight("1" * 64, "k8s.io", Life.LIVE, ContainerType.CONTAINER, (UID,), (3,), "vir05_1c_16g", (148,), False, False)


def clean(*vnpus: AskedVnpu) -> Statement:
    """Return what a host shows on which nobody uses anything."""
    sights = tuple(VnpuSight(vnpu, Finding.CLEAN, Finding.CLEAN, Finding.CLEAN) for vnpu in vnpus)
    kubelet = KubeletSource(SourceState.READ, KUBELET)
    descriptors = READ if vnpus else None
    return Statement(sights, (), Finding.CLEAN, Finding.CLEAN, (), descriptors, READ, READ, READ, kubelet)


def full() -> Statement:
    """Return one with something in every place."""
    return replace(
        clean(VNPU),
        vnpus=(VnpuSight(VNPU, Finding.CLEAN, Finding.HELD, Finding.UNKNOWN, ("container 1 names it",)),),
        pods=(PodSight(UID, Finding.HELD, Finding.HELD, True),),
        containers=(CONTAINER,),
        uda=replace(DOUBTED, more=3),
    )


#: Of one, two, three and four bytes. Out of all of Unicode a filter would throw most away.
PRINTABLE = st.sampled_from([one for one in map(chr, (*range(0x3000), *range(0x1F300, 0x1F650))) if one.isprintable()])
_U32 = st.integers(0, (1 << 32) - 1)
_UIDS = st.from_regex(r"[0-9A-Za-z_.-]{1,20}", fullmatch=True)
_PATHS = st.from_regex(r"/[ -~]{0,12}", fullmatch=True)
_FINDINGS = st.sampled_from(Finding)
_UNSURE = st.sampled_from((Finding.HELD, Finding.UNKNOWN))
_NAMES = st.text(PRINTABLE, max_size=8)
_DOUBTS = st.builds(Doubt, st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True), st.text(PRINTABLE, max_size=9), st.integers(0, 133))
_SURE = st.builds(SourceSight, st.sampled_from((SourceState.READ, SourceState.NOT_PRESENT)))
_DOUBTED = st.builds(SourceSight, st.sampled_from(SourceState), st.lists(_DOUBTS, min_size=1, max_size=3).map(tuple), _U32)
_SOURCES = _SURE | _DOUBTED
_VNPUS = st.builds(AskedVnpu, st.integers(100, 1123), _U32, _U32)
ASKED = st.lists(_VNPUS, max_size=4, unique_by=lambda vnpu: vnpu.vdev).map(tuple)
_KUBELETS = st.builds(
    lambda place, *rest: KubeletSight(*rest, *place),
    st.tuples(_PATHS, st.just("")) | st.tuples(st.just(""), st.text(PRINTABLE, min_size=1, max_size=9)),
    st.integers(1, (1 << 31) - 1),
    st.integers(0, (1 << 64) - 1),
    _NAMES,
    _PATHS,
    _PATHS,
    _PATHS,
    _PATHS,
)
_KUBELET_SOURCES = st.one_of(
    st.builds(KubeletSource, st.just(SourceState.READ), _KUBELETS),
    st.just(KubeletSource(SourceState.NOT_PRESENT)),
    st.builds(KubeletSource, st.just(SourceState.UNREADABLE), st.none(), st.lists(_DOUBTS, min_size=1, max_size=3).map(tuple)),
)
_CONTAINERS = st.builds(
    ContainerSight,
    _NAMES,
    _NAMES,
    st.sampled_from(Life),
    st.sampled_from(ContainerType),
    st.lists(_UIDS, max_size=3).map(tuple),
    st.none() | st.lists(st.integers(0, 99), max_size=4).map(tuple),
    _NAMES,
    st.lists(st.integers(100, 1123), max_size=3).map(tuple),
    st.booleans(),
    st.booleans(),
)
_REASONS = st.lists(st.text(PRINTABLE, max_size=9), min_size=1, max_size=limits.REASON_LIMIT).map(tuple)


@st.composite
def statements(draw: st.DrawFn) -> Statement:
    """Draw one that does not contradict itself."""

    def finding(source: SourceSight | None) -> Finding:
        sure = source is not None and source.is_sure
        return draw(_FINDINGS if sure else _UNSURE)

    asked: tuple[AskedVnpu, ...] = draw(ASKED)
    containers: tuple[ContainerSight, ...] = draw(st.lists(_CONTAINERS, max_size=2).map(tuple))
    named = {vdev for container in containers for vdev in container.vdevs}
    said: dict[str, Any] = {name: draw(_SOURCES) for name in ("bundles", "cgroups", "uda")}
    said["descriptors"] = draw(_SOURCES) if asked else None
    sights = []
    for vnpu in asked:
        bundles = Finding.HELD if vnpu.vdev in named else finding(said["bundles"])
        sight = VnpuSight(vnpu, finding(said["descriptors"]), bundles, finding(said["uda"]))
        sights.append(sight if sight.finding is Finding.CLEAN else replace(sight, reasons=draw(_REASONS)))
    bare = replace(clean(), **said)
    sure = pods_are_sure(bare)
    of_pods = _FINDINGS if sure else _UNSURE
    of_others = st.sampled_from((Finding.CLEAN, Finding.UNKNOWN)) if sure else st.just(Finding.UNKNOWN)
    pods = draw(st.lists(st.builds(PodSight, _UIDS, of_pods, of_pods, st.booleans()), max_size=3, unique_by=lambda pod: pod.uid))
    return replace(
        bare,
        vnpus=tuple(sights),
        pods=tuple(pods),
        others=draw(of_others),
        others_containers=draw(of_others),
        containers=containers,
        kubelet=draw(_KUBELET_SOURCES),
    )
