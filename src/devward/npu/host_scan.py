"""The broker's own look at the host before it destroys a vNPU: descriptors, mappings, bundles, control groups and /proc/uda."""

from devward.cluster.evidence import DeviceNumber
from devward.npu.destruction import ScanResult


def scan_host(vdev: int, number: DeviceNumber, runtime: str) -> ScanResult:
    """Return whether anything on the host holds a vNPU."""
    # Loaded when it is needed: the broker is resident, and destroys seldom.
    from devward.cluster.local import LocalScanner

    # A new scanner each time: nothing remembered stands in for what is there now.
    evidence = LocalScanner().look((number,), runtime).vnpu(vdev, number)
    return ScanResult(evidence.finding, ", ".join(f"{source} {finding}" for source, finding in evidence.sources))
