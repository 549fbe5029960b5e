"""The broker's own look at the host before it destroys a vNPU: descriptors, mappings, bundles, control groups and /proc/uda."""

from typing import TYPE_CHECKING, Final

from devward.cluster.evidence import DeviceNumber
from devward.npu.destruction import ScanResult

if TYPE_CHECKING:
    from devward.cluster.local import VnpuEvidence

#: Of many reasons, how many are named: the answer to the caller has room for a few.
_NAMED: Final = 3


def scan_host(vdev: int, number: DeviceNumber, runtime: str) -> ScanResult:
    """Return whether anything on the host holds a vNPU, and what shows it."""
    # Loaded when it is needed: the broker is resident, and destroys seldom.
    from devward.cluster.local import LocalScanner

    # A new scanner each time: nothing remembered stands in for what is there now.
    evidence = LocalScanner().look((number,), runtime).vnpu(vdev, number)
    return ScanResult(evidence.finding, explained(evidence))


def explained(evidence: "VnpuEvidence") -> str:
    """Return what each source says, and who holds the vNPU or else what is in doubt, for who reads a refusal. Pure."""
    sources = ", ".join(f"{source} {finding}" for source, finding in evidence.sources)
    if not evidence.reasons:
        return sources
    more = "; and more" if len(evidence.reasons) > _NAMED else ""
    return f"{sources} ({'; '.join(evidence.reasons[:_NAMED])}{more})"
