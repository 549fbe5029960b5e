"""A statement of the broker's as the evidence that decisions are made of. Pure.

No source's word for clean is taken where that source has doubts, whoever wrote the statement; and without one everything is unknown.
"""

from typing import Final

from devward.cluster.evidence import DeviceNumber, Doubt, Finding, SourceState
from devward.cluster.kubelet_facts import Kubelet, KubeletDoubt, KubeletScan
from devward.cluster.node import Kubelets
from devward.cluster.statement import ContainerSight, KubeletSight, KubeletSource, Statement, VnpuSight, pods_are_sure
from devward.text import printable

#: What a statement is where there is none: it says nothing of anybody.
_UNSAID: Final = (Finding.UNKNOWN, Finding.UNKNOWN)


class WitnessedHost:
    """What was testified of this host, if anything was; a `HostEvidence` of claims.py."""

    def __init__(self, said: Statement | None) -> None:
        """Index it: a look asks for hundreds of Pods and vNPUs."""
        self._said = said
        self._pods = {sight.uid: (sight.lives, sight.has_container) for sight in said.pods} if said is not None else {}
        self._others = (said.others, said.others_containers) if said is not None else _UNSAID
        self._is_sure = said is not None and pods_are_sure(said)
        self._vnpus = {(sight.vnpu.vdev, sight.vnpu.number): sight for sight in said.vnpus} if said is not None else {}
        self._containers: dict[str, list[ContainerSight]] = {}
        for container in said.containers if said is not None else ():
            for uid in container.pod_uids:
                self._containers.setdefault(uid, []).append(container)

    def pod(self, uid: str, *, containers_only: bool) -> Finding:
        """Return whether a Pod lives here. With `containers_only` its sandbox alone is no sign of it."""
        finding = self._pods.get(uid, self._others)[containers_only]
        return Finding.UNKNOWN if finding is Finding.CLEAN and not self._is_sure else finding

    def vnpu(self, vdev: int, number: DeviceNumber) -> VnpuSight | None:
        """Return what is said of a vNPU with this id and this number; None, which is unknown: it was not asked about."""
        return self._vnpus.get((vdev, number))

    def finding(self, vdev: int, number: DeviceNumber) -> Finding:
        """Return whether anybody holds a vNPU."""
        sight = self.vnpu(vdev, number)
        return Finding.UNKNOWN if sight is None else sight.finding

    def containers_of(self, uid: str) -> tuple[ContainerSight, ...]:
        """Return the containers of a Pod, its sandbox too: what their images bake in is seen here alone."""
        return tuple(self._containers.get(uid, ()))

    @property
    def runtime_only(self) -> tuple[ContainerSight, ...]:
        """Containers of docker's, podman's or ctr's own, of no Pod, that name NPUs or may open them."""
        containers = self._said.containers if self._said is not None else ()
        return tuple(one for one in containers if not one.is_of_kubernetes and (one.names_npus or one.may_open_any))

    @property
    def kubelet(self) -> KubeletSight | None:
        """The one kubelet; None where there is none, or not one alone."""
        return self._said.kubelet.kubelet if self._said is not None else None

    def kubelets(self, same_for: float) -> Kubelets:
        """Return the kubelet as the Node is held against it; `same_for` is for how many seconds the caller has seen that one."""
        if self._said is None:
            return Kubelets(doubt="the host was not looked at")
        source = self._said.kubelet
        if source.kubelet is not None:
            return Kubelets((source.kubelet.name,), same_for)
        return Kubelets(doubt="; ".join(f"{doubt.code} {printable(doubt.subject)}".rstrip() for doubt in source.doubts))


def kubelet_scan(source: KubeletSource) -> KubeletScan:
    """Return what was testified of the kubelet as its search found it. A kubelet in any doubt is none."""
    if source.state is SourceState.NOT_PRESENT:
        return KubeletScan(None, (Doubt(KubeletDoubt.NOT_FOUND, "/proc"), *source.doubts))
    sight = source.kubelet
    if source.state is not SourceState.READ or source.doubts or sight is None:
        return KubeletScan(None, source.doubts)
    return KubeletScan(
        Kubelet(
            sight.pid,
            sight.started,
            sight.command,
            sight.root_name,
            sight.plugins_name,
            sight.root_directory,
            sight.plugins_directory,
        )
    )
