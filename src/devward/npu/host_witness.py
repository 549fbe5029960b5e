"""The broker's look at the host for the daemon: who holds the vNPUs asked about, which Pods live, which process is the kubelet.

It needs the host's processes and files, and nothing of the vendor's library: it is answered before that is loaded, and so also where it
cannot be loaded, or hung in the broker before this one. Only one question is at work at a time. While the library hangs this one waits for
its turn like any other: there is no list of vNPUs then, and so nothing that it could decide.

Where the kubelet's kubeconfig is belongs to it, too: that the kubelet sees the same file there as we do is learned through its root
directory in /proc, which the daemon may not enter.
"""

import itertools
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from devward.cluster.evidence import DeviceNumber, Doubt, Finding, SourceState
from devward.cluster.statement import (
    AskedVnpu,
    ContainerSight,
    KubeletSight,
    KubeletSource,
    PodSight,
    SourceSight,
    Statement,
    VnpuSight,
    WitnessDoubt,
)
from devward.npu.witness_objects import (
    CONTAINER_LIMIT,
    DOUBT_LIMIT,
    NAME_LENGTH,
    PATH,
    POD_LIMIT,
    PROBLEM_LENGTH,
    REASON_LENGTH,
    REASON_LIMIT,
    SUBJECT_LENGTH,
    UID,
    UID_LIMIT,
)
from devward.text import printable

if TYPE_CHECKING:
    from devward.cluster.bundle import BundleFacts
    from devward.cluster.bundles import Bundle
    from devward.cluster.kubelet_facts import Kubelet, KubeletScan
    from devward.cluster.local import LocalEvidence, LocalScanner

#: No Pod can have it: it stands for every one that was not seen.
_NOBODY: Final = "\0"


class Observer(Protocol):
    """Looks at the host."""

    def look(self, vnpus: tuple[AskedVnpu, ...], runtime: str | None, seconds: float, step: Callable[[str], None]) -> Statement:
        """Look now, for at most about so many seconds: what is not seen by then is in doubt. `step` is told what may hang next."""


class Kubeconfig(NamedTuple):
    """Where the kubelet's kubeconfig is, else why that is not known."""

    path: str = ""
    problem: str = ""


class HostObserver:
    """Looks at this host, and remembers the bundles that did not change. For one thread at a time."""

    def __init__(
        self,
        scanner: "LocalScanner | None" = None,
        find: "Callable[[float], KubeletScan] | None" = None,
        place: "Callable[[Kubelet], str] | None" = None,
    ) -> None:
        """Use the host's own places, unless others are given.

        `find` is given by when it has to be done, by the monotonic clock. `place` returns where a kubelet's kubeconfig is; ApiError.
        """
        # Loaded when it is needed: the broker is resident, and on many nodes nobody asks.
        from devward.cluster.kubeconfig_place import find_kubeconfig
        from devward.cluster.kubelet import find_kubelet
        from devward.cluster.local import LocalScanner

        self._scanner = scanner or LocalScanner()
        self._find = find or (lambda deadline: find_kubelet(deadline=deadline))
        self._place = place or find_kubeconfig

    def look(self, vnpus: tuple[AskedVnpu, ...], runtime: str | None, seconds: float, step: Callable[[str], None]) -> Statement:
        """Look now. What `step` raises is passed on."""
        deadline = time.monotonic() + seconds
        step("the search for the kubelet")
        kubelet = self._find(deadline)
        kubeconfig = self._placed(kubelet)
        step("the look at the host's processes and containers")
        evidence = self._scanner.look({vnpu.number for vnpu in vnpus}, runtime, deadline=deadline)
        return testify(vnpus, evidence, kubelet, kubeconfig)

    def _placed(self, scan: "KubeletScan") -> Kubeconfig:
        from devward.cluster.api_result import ApiError

        if scan.kubelet is None:
            return Kubeconfig()
        try:
            return Kubeconfig(self._place(scan.kubelet))
        except ApiError as error:
            return Kubeconfig(problem=str(error))


def testify(vnpus: tuple[AskedVnpu, ...], evidence: "LocalEvidence", kubelet: "KubeletScan", kubeconfig: Kubeconfig) -> Statement:
    """Return what was seen in the form that can be told. Pure."""
    uids = {uid for _, facts in evidence.bundles.living for uid in facts.pod_uids} | evidence.cgroups.pod_uids
    untold = _untold(evidence, uids)
    others = tuple(_doubted(evidence.pod(_NOBODY, containers_only=only), untold) for only in (False, True))
    # What is cut off is unknown by `untold`, as all that was not seen is.
    pods = tuple(_pod(uid, evidence, untold) for uid in itertools.islice(filter(UID.fullmatch, sorted(uids)), POD_LIMIT))
    asked: dict[DeviceNumber, list[int]] = {}
    for vnpu in vnpus:
        # Two ids with one number cannot be; if they are, a container that has the number has both.
        asked.setdefault(vnpu.number, []).append(vnpu.vdev)
    majors = frozenset(number.major for number in asked)
    living = itertools.islice(evidence.bundles.living, CONTAINER_LIMIT)
    return Statement(
        vnpus=tuple(_vnpu(vnpu, evidence, untold) for vnpu in vnpus),
        pods=pods,
        others=others[0],
        others_containers=others[1],
        containers=tuple(_container(bundle, facts, asked, majors) for bundle, facts in living),
        descriptors=_source(_read(evidence.descriptors.doubts), evidence.descriptors.doubts) if vnpus else None,
        bundles=_source(_bundles_state(evidence), (*evidence.doubts, *evidence.bundles.doubts, *untold)),
        cgroups=_source(evidence.cgroups.state, evidence.cgroups.doubts),
        uda=_source(evidence.uda.state, evidence.uda.doubts),
        kubelet=_kubelet(kubelet, kubeconfig),
    )


def _untold(evidence: "LocalEvidence", uids: Collection[str]) -> tuple[Doubt, ...]:
    """Return what cannot be told: it might be of any Pod."""
    found = [Doubt(WitnessDoubt.NOT_TELLABLE, f"Pod {uid}") for uid in uids if not UID.fullmatch(uid)]
    found += [Doubt(WitnessDoubt.NOT_TELLABLE, bundle.path) for bundle, facts in evidence.bundles.living if len(facts.pod_uids) > UID_LIMIT]
    if len(uids) > POD_LIMIT or len(evidence.bundles.bundles) > CONTAINER_LIMIT:
        found.append(Doubt(WitnessDoubt.TOO_MANY, ""))
    return tuple(sorted(found, key=lambda doubt: doubt.subject))


def _doubted(finding: Finding, untold: tuple[Doubt, ...]) -> Finding:
    return Finding.UNKNOWN if untold and finding is Finding.CLEAN else finding


def _vnpu(vnpu: AskedVnpu, evidence: "LocalEvidence", untold: tuple[Doubt, ...]) -> VnpuSight:
    said = evidence.vnpu(vnpu.vdev, vnpu.number)
    descriptors, bundles, uda = (finding for _, finding in said.sources)
    reasons = said.reasons
    if said.finding is Finding.CLEAN and untold:
        reasons = tuple(f"bundles: {doubt.code} {printable(doubt.subject)}" for doubt in untold)
    return VnpuSight(
        vnpu, descriptors, _doubted(bundles, untold), uda, tuple(printable(reason, REASON_LENGTH) for reason in reasons[:REASON_LIMIT])
    )


def _pod(uid: str, evidence: "LocalEvidence", untold: tuple[Doubt, ...]) -> PodSight:
    lives, has_container = (_doubted(evidence.pod(uid, containers_only=only), untold) for only in (False, True))
    return PodSight(uid, lives, has_container, uid in evidence.cgroups.pod_uids)


def _container(bundle: "Bundle", facts: "BundleFacts", asked: Mapping[DeviceNumber, list[int]], majors: frozenset[int]) -> ContainerSight:
    """Return what is told of a container; `asked` are the vNPUs that are asked about by their numbers, `majors` those numbers' majors."""
    vdevs = facts.vdevs
    if not facts.devices.isdisjoint(asked):
        vdevs = vdevs.union(*(asked[number] for number in facts.devices & asked.keys()))
    return ContainerSight(
        id=printable(bundle.id, NAME_LENGTH),
        namespace=printable(bundle.namespace, NAME_LENGTH),
        life=bundle.life,
        type=facts.type,
        pod_uids=tuple(sorted(uid for uid in facts.pod_uids if UID.fullmatch(uid))[:UID_LIMIT]),
        cards=None if facts.cards is None else tuple(sorted(facts.cards)),
        template=printable(facts.template, NAME_LENGTH),
        vdevs=tuple(sorted(vdevs)),
        has_all_devices=facts.has_all_devices,
        has_a_major=not facts.majors.isdisjoint(majors),
    )


def _bundles_state(evidence: "LocalEvidence") -> SourceState:
    states = {seen.state for seen in evidence.bundles.roots}
    if evidence.bundles.doubts or SourceState.UNREADABLE in states:
        return SourceState.UNREADABLE
    return SourceState.READ if SourceState.READ in states else SourceState.NOT_PRESENT


def _read(doubts: tuple[Doubt, ...]) -> SourceState:
    return SourceState.UNREADABLE if doubts else SourceState.READ


def _told(doubt: Doubt) -> Doubt:
    return Doubt(str(doubt.code), printable(doubt.subject, SUBJECT_LENGTH), doubt.error)


def _source(state: SourceState, doubts: tuple[Doubt, ...]) -> SourceSight:
    return SourceSight(state, tuple(map(_told, doubts[:DOUBT_LIMIT])), max(0, len(doubts) - DOUBT_LIMIT))


def _kubelet(scan: "KubeletScan", kubeconfig: Kubeconfig) -> KubeletSource:
    from devward.cluster.kubelet_facts import KubeletDoubt

    found = scan.kubelet
    if found is None:
        if [doubt.code for doubt in scan.doubts] == [KubeletDoubt.NOT_FOUND]:
            return KubeletSource(SourceState.NOT_PRESENT)
        return KubeletSource(SourceState.UNREADABLE, doubts=tuple(map(_told, scan.doubts[:DOUBT_LIMIT])))
    for path in (found.root_name, found.plugins_name, found.root_directory, found.plugins_directory):
        if not PATH.fullmatch(path):
            return KubeletSource(SourceState.UNREADABLE, doubts=(_told(Doubt(WitnessDoubt.NOT_TELLABLE, path)),))
    path, problem = kubeconfig
    if path and not PATH.fullmatch(path):
        path, problem = "", f"The path of the kubelet's kubeconfig is longer, or otherwise, than can be told: {path}"
    sight = KubeletSight(
        found.pid,
        found.started,
        printable(found.command, NAME_LENGTH),
        found.root_name,
        found.plugins_name,
        found.root_directory,
        found.plugins_directory,
        path,
        printable(problem, PROBLEM_LENGTH),
    )
    return KubeletSource(SourceState.READ, sight)
