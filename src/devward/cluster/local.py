"""What this host itself says about who uses a vNPU, joined: descriptors, bundles, control groups and the driver's /proc/uda.

Local evidence only ever protects. A vNPU is held as soon as one source holds it; else it is unknown as soon as one is in doubt; clean takes
all of them. A container that lives by its control group and has no bundle means that its runtime keeps them where we do not look.
"""

import errno
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from devward.cluster.bundles import BundleScan, BundleScanner, runtime_of
from devward.cluster.cgroups import CgroupScan, is_populated, scan_cgroups
from devward.cluster.descriptors import DescriptorScan, ScanLimits, Trace, scan_descriptors
from devward.cluster.evidence import DeviceNumber, Doubt, Finding, SourceState, strongest
from devward.cluster.kernel import Kernel
from devward.cluster.uda import UdaScan, scan_uda
from devward.cluster.vantage import lists_everybody, reads_everybody
from devward.text import printable, quoted

_NAMED: Final = 20


class Source(StrEnum):
    """A source of local evidence."""

    DESCRIPTORS = "descriptors"
    BUNDLES = "bundles"
    UDA = "uda"


class LocalDoubt(StrEnum):
    """Why the sources do not agree into a whole."""

    #: The Node's own runtime has no bundles where they are looked for.
    RUNTIME_NOT_FOUND = "runtime-not-found"
    RUNTIME_UNREADABLE = "runtime-unreadable"
    #: The Node names a runtime that is not known.
    RUNTIME_UNKNOWN = "runtime-unknown"
    CONTAINER_WITHOUT_BUNDLE = "container-without-bundle"


@dataclass(frozen=True, slots=True)
class VnpuEvidence:
    """What the host says about one vNPU."""

    finding: Finding
    #: Each source, with what it says.
    sources: tuple[tuple[Source, Finding], ...]
    #: What was found, else what is in doubt, fit to be shown; empty where it is clean.
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalEvidence:
    """What the host said at one moment."""

    descriptors: DescriptorScan
    bundles: BundleScan
    cgroups: CgroupScan
    uda: UdaScan
    #: What is in doubt between the sources; each source has its own doubts besides.
    doubts: tuple[Doubt, ...] = ()

    def vnpu(self, vdev: int, number: DeviceNumber) -> VnpuEvidence:
        """Return what the sources say about a vNPU."""
        bundles = self.bundles.finding(vdev, number)
        if bundles is Finding.CLEAN and self.doubts:
            bundles = Finding.UNKNOWN
        sources = (
            (Source.DESCRIPTORS, self.descriptors.finding(number)),
            (Source.BUNDLES, bundles),
            (Source.UDA, self.uda.finding(vdev)),
        )
        reasons = (*self._holders(vdev, number),) or (*self._doubts(sources),)
        return VnpuEvidence(strongest(finding for _, finding in sources), sources, reasons[:_NAMED])

    def _holders(self, vdev: int, number: DeviceNumber) -> Iterator[str]:
        for holder in self.descriptors.holders:
            if holder.number == number:
                how = "has it open" if holder.trace is Trace.DESCRIPTOR else "has it mapped"
                yield f"process {holder.pid} {quoted(holder.command)} {how}"
        for bundle in self.bundles.owners(vdev, number):
            yield f"container {printable(bundle.id)} names it"
        if self.uda.finding(vdev) is Finding.HELD:
            yield f"the driver says that a container uses it (first process {', '.join(map(str, self.uda.users(vdev))) or 'unknown'})"

    def _doubts(self, sources: Iterable[tuple[Source, Finding]]) -> Iterator[str]:
        own = {
            Source.DESCRIPTORS: self.descriptors.doubts,
            Source.BUNDLES: (*self.doubts, *self.bundles.doubts),
            Source.UDA: self.uda.doubts,
        }
        for source, finding in sources:
            if finding is Finding.UNKNOWN:
                for doubt in own[source]:
                    failure = f": {errno.errorcode.get(doubt.error, str(doubt.error))}" if doubt.error else ""
                    yield f"{source}: {doubt.code} {printable(doubt.subject)}{failure}".rstrip()
                if not own[source]:
                    yield f"{source}: it is not in what was read"

    def pod(self, uid: str, *, containers_only: bool) -> Finding:
        """Return whether a Pod lives here. With `containers_only` a sandbox is no sign of it: that of a failing Pod lives all the time."""
        by_bundles = self.bundles.pod_finding(uid, containers_only=containers_only)
        if by_bundles is Finding.HELD:
            # Nothing says more, and so it is with nearly every Pod.
            return by_bundles
        found = (
            by_bundles,
            self.cgroups.pod_finding(uid, self.bundles.sandboxes(uid) if containers_only else None),
            Finding.UNKNOWN if self.doubts else Finding.CLEAN,
        )
        return strongest(found)


class LocalScanner:
    """Looks at the host, and remembers the bundles that did not change. For one thread at a time, and not the event loop's."""

    def __init__(
        self,
        *,
        proc: str = "/proc",
        cgroups: str = "/sys/fs/cgroup",
        bundles: BundleScanner | None = None,
        vantage: Callable[[str], Doubt | None] = reads_everybody,
    ) -> None:
        """`vantage` tells why processes could stay unseen from here."""
        self._proc = proc
        self._cgroups = cgroups
        self._bundles = bundles or BundleScanner(proc=proc, vantage=lists_everybody)
        self._vantage = vantage
        self._kernel = Kernel()

    def look(
        self, numbers: Collection[DeviceNumber], container_runtime_version: str | None, *, deadline: float = math.inf
    ) -> LocalEvidence:
        """Return what the host says now. Raises nothing for what it finds.

        Without numbers the descriptors are not scanned, and every vNPU is unknown by them. `container_runtime_version` is the Node's; None
        where there is no Node, and so no runtime that has to be found. What was not seen by `deadline`, in seconds of the monotonic clock,
        is in doubt.
        """
        # Groups before bundles: a container that comes in between has a bundle, one that goes in between is asked for again.
        cgroups = scan_cgroups(self._cgroups)
        bundles = self._bundles.scan(deadline)
        doubts = [*_runtime_doubts(bundles, container_runtime_version), *_without_bundle(cgroups, bundles)]
        uda = scan_uda(self._proc)
        descriptors = DescriptorScan(frozenset())
        if numbers:
            descriptors = scan_descriptors(
                numbers, self._proc, limits=ScanLimits(deadline=deadline), vantage=self._vantage, kernel=self._kernel
            )
        return LocalEvidence(descriptors, bundles, cgroups, uda, tuple(doubts))


def _runtime_doubts(bundles: BundleScan, version: str | None) -> list[Doubt]:
    if version is None:
        return []
    runtime = runtime_of(version)
    if runtime is None:
        return [Doubt(LocalDoubt.RUNTIME_UNKNOWN, version)]
    state = bundles.state_of(runtime)
    if state is SourceState.READ:
        return []
    return [Doubt(LocalDoubt.RUNTIME_UNREADABLE if state is SourceState.UNREADABLE else LocalDoubt.RUNTIME_NOT_FOUND, version)]


def _without_bundle(cgroups: CgroupScan, bundles: BundleScan) -> list[Doubt]:
    known = {bundle.id for bundle in bundles.bundles}
    missing = (group.path for group in cgroups.containers if group.container_id not in known)
    return [Doubt(LocalDoubt.CONTAINER_WITHOUT_BUNDLE, path) for path in missing if is_populated(path) is not False][:_NAMED]
