"""What the host shows of its vNPUs, its Pods and its kubelet, as the broker tells it to the daemon. Pure.

Other processes' descriptors and mappings are closed to the sandboxed daemon, and open to the broker. A statement is whole or it is in
doubt: whatever could not be read, or be told in this form, stands in the doubts of its source, and nothing that hangs on that source is
clean then. A statement that says otherwise contradicts itself, and is none.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from devward.cluster.bundle import ContainerType
from devward.cluster.evidence import DeviceNumber, Doubt, Finding, SourceState, strongest
from devward.cluster.life import Life


class WitnessDoubt(StrEnum):
    """Why a statement does not say everything that was seen."""

    #: A name that is longer, or otherwise, than any that the kubelet or a runtime gives.
    NOT_TELLABLE = "not-tellable"
    #: More Pods or containers than are told.
    TOO_MANY = "too-many-to-tell"


@dataclass(frozen=True, slots=True)
class AskedVnpu:
    """A vNPU that is asked about: its id, and the number of its device node."""

    vdev: int
    major: int
    minor: int

    @property
    def number(self) -> DeviceNumber:
        """The number as the readers of evidence have it."""
        return DeviceNumber(self.major, self.minor)


@dataclass(frozen=True, slots=True)
class SourceSight:
    """How much of one source was seen."""

    state: SourceState
    #: The first of its doubts, fit to be shown.
    doubts: tuple[Doubt, ...] = ()
    #: How many there are besides.
    more: int = 0

    @property
    def is_sure(self) -> bool:
        """Whether an absence in it means anything."""
        return self.state is not SourceState.UNREADABLE and not self.doubts and not self.more


@dataclass(frozen=True, slots=True)
class VnpuSight:
    """What each source says of one vNPU that was asked about."""

    vnpu: AskedVnpu
    descriptors: Finding
    bundles: Finding
    uda: Finding
    #: Who holds it, else what is in doubt, fit to be shown; none where it is clean.
    reasons: tuple[str, ...] = ()

    @property
    def finding(self) -> Finding:
        """Held as soon as one source holds it, clean only by all of them."""
        return strongest((self.descriptors, self.bundles, self.uda))


@dataclass(frozen=True, slots=True)
class PodSight:
    """What the host shows of one Pod. A Pod that is not in a statement was not seen, and is as `Statement.others` says."""

    uid: str
    #: Its sandbox counts, and so does an empty control group.
    lives: Finding
    #: A sandbox alone does not count.
    has_container: Finding
    #: The kubelet's control group for it is there.
    has_group: bool


@dataclass(frozen=True, slots=True)
class ContainerSight:
    """A container whose bundle is there and that was not seen to have ended."""

    #: Its id and containerd's namespace, fit to be shown.
    id: str
    namespace: str
    life: Life
    type: ContainerType
    #: Every UID by which its Pod could be known; none for a container of docker's, podman's or ctr's own.
    pod_uids: tuple[str, ...]
    #: Physical ids of ASCEND_VISIBLE_DEVICES, be it requested or baked into the image; None: it might be any.
    cards: tuple[int, ...] | None
    #: ASCEND_VNPU_SPECS, fit to be shown.
    template: str
    #: vNPUs that it names by hook, node or mount; and those asked about whose number it has.
    vdevs: tuple[int, ...]
    #: Privileged, or with the host's /dev.
    has_all_devices: bool
    #: Its rules open every device of the major number of a vNPU that was asked about.
    has_a_major: bool

    @property
    def is_of_kubernetes(self) -> bool:
        """Whether it belongs to a Pod, be its UID known or not."""
        return self.type is not ContainerType.UNKNOWN or bool(self.pod_uids)

    @property
    def names_npus(self) -> bool:
        """Whether it names cards or vNPUs, or asks for a vNPU."""
        return self.cards is None or bool(self.cards or self.template or self.vdevs)

    @property
    def may_open_any(self) -> bool:
        """Whether it may open vNPUs without naming them; only a clean scan of descriptors tells that it does not."""
        return self.has_all_devices or self.has_a_major


@dataclass(frozen=True, slots=True)
class KubeletSight:
    """The one kubelet of this host, and where it keeps its files; the paths are as the host's root directory has them."""

    pid: int
    #: Clock ticks since boot; with the id it tells the process from any other one of this boot.
    started: int
    #: The kernel's name of it, fit to be shown.
    command: str
    root_name: str
    plugins_name: str
    root_directory: str
    plugins_directory: str
    #: Of its kubeconfig; empty where that was not found.
    kubeconfig: str
    #: Why not, one sentence fit to be shown; empty where it was.
    kubeconfig_problem: str

    @property
    def name(self) -> str:
        """What tells it from another process of this boot."""
        return f"{self.pid} {self.command} ({self.started})"


@dataclass(frozen=True, slots=True)
class KubeletSource:
    """`NOT_PRESENT`: no process listens as a kubelet; `UNREADABLE`: which one, or whether one alone, cannot be told."""

    state: SourceState
    kubelet: KubeletSight | None = None
    doubts: tuple[Doubt, ...] = ()


@dataclass(frozen=True, slots=True)
class Statement:
    """What the host showed at one look."""

    vnpus: tuple[VnpuSight, ...]
    pods: tuple[PodSight, ...]
    #: What holds for a Pod that was not seen, whether or not its sandbox counts: clean or unknown.
    others: Finding
    others_containers: Finding
    containers: tuple[ContainerSight, ...]
    #: None where no vNPU was asked about, and so no process looked at.
    descriptors: SourceSight | None
    bundles: SourceSight
    cgroups: SourceSight
    uda: SourceSight
    kubelet: KubeletSource

    @property
    def sources(self) -> dict[str, SourceSight]:
        """How much of each source was seen, by its name; that of descriptors is not there where no process was looked at."""
        found = {"bundles": self.bundles, "cgroups": self.cgroups, "uda": self.uda}
        return found if self.descriptors is None else found | {"descriptors": self.descriptors}


def contradiction(said: Statement) -> str:
    """Return where a statement says something that its own sources do not bear out; empty: nowhere."""
    return next(_contradictions(said), "")


def _contradictions(said: Statement) -> Iterator[str]:
    for name, source in said.sources.items():
        if source.state is SourceState.UNREADABLE and not source.doubts:
            yield f"{name} cannot be read, for no reason"
        if source.more and not source.doubts:
            yield f"{name} has doubts that are not named"
    yield from _of_kubelet(said.kubelet)
    if len({sight.vnpu.vdev for sight in said.vnpus}) != len(said.vnpus):
        yield "a vNPU is there twice"
    if len({sight.uid for sight in said.pods}) != len(said.pods):
        yield "a Pod is there twice"
    if Finding.HELD in (said.others, said.others_containers):
        yield "what was not seen is held"
    owned = {vdev for container in said.containers for vdev in container.vdevs}
    for sight in said.vnpus:
        yield from _of_vnpu(sight, said, owned)
    for pod in said.pods:
        if Finding.CLEAN in (pod.lives, pod.has_container) and not pods_are_sure(said):
            yield "a Pod is clean by a source with doubts"
    if Finding.CLEAN in (said.others, said.others_containers) and not pods_are_sure(said):
        yield "Pods that were not seen are clean by a source with doubts"


def _of_kubelet(source: KubeletSource) -> Iterator[str]:
    if (source.state is SourceState.READ) != (source.kubelet is not None):
        yield "a kubelet that was found must be there, and no other"
    if (source.state is SourceState.UNREADABLE) != bool(source.doubts):
        yield "a kubelet is in doubt for a reason, and else for none"
    if source.kubelet is not None and bool(source.kubelet.kubeconfig) == bool(source.kubelet.kubeconfig_problem):
        yield "a kubeconfig was found, or not for a reason, and not both"


def _of_vnpu(sight: VnpuSight, said: Statement, owned: set[int]) -> Iterator[str]:
    vdev = sight.vnpu.vdev
    if sight.descriptors is Finding.CLEAN and (said.descriptors is None or not said.descriptors.is_sure):
        yield f"vNPU {vdev} is clean by descriptors that were not all read"
    if sight.bundles is Finding.CLEAN and not said.bundles.is_sure:
        yield f"vNPU {vdev} is clean by bundles that were not all read"
    if sight.uda is Finding.CLEAN and not said.uda.is_sure:
        yield f"vNPU {vdev} is clean by a /proc/uda that was not all read"
    if vdev in owned and sight.bundles is not Finding.HELD:
        yield f"vNPU {vdev} is named by a container and not held by it"
    if (sight.finding is Finding.CLEAN) == bool(sight.reasons):
        yield f"vNPU {vdev} is {sight.finding} with {len(sight.reasons)} reasons"


def pods_are_sure(said: Statement) -> bool:
    """Whether the sources that show Pods were read whole. Control groups are on every host: none is a doubt."""
    return said.bundles.is_sure and said.cgroups.is_sure and said.cgroups.state is SourceState.READ
