"""What a snapshot is joined from: each part with the moment at which it was taken, or with why it is missing. Pure."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, TypeVar

from devward.cluster.answers import Answer, Failure
from devward.cluster.checkpoint import CheckpointReading
from devward.cluster.claims import Bounds, HostEvidence
from devward.cluster.kubelet_facts import KubeletScan
from devward.cluster.managers import Drivers
from devward.cluster.node import NodeBounds
from devward.npu.inventory import Picture

_T = TypeVar("_T")


class Source(StrEnum):
    """Where a part comes from."""

    NODE = "node"
    LEASE = "lease"
    PODS = "pods"
    CHECKPOINT = "checkpoint"
    KUBELET = "kubelet"
    #: Drivers for dynamic resource allocation.
    DRIVERS = "drivers"
    HOST = "host"
    NPUS = "npus"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Part(Generic[_T]):
    """One part that was read on this host."""

    #: When reading it began, in seconds of the monotonic clock.
    taken_at: float
    #: None: it is missing.
    value: _T | None = None
    #: Why it is missing, or what of it is in doubt: either way nothing of the node is known.
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that is needed. None of it may be left out: what is missing is a part with a failure."""

    node: Answer
    lease: Answer
    #: The whole list of this node's Pods, by field selector.
    pods: Answer
    checkpoint: Part[CheckpointReading]
    kubelet: Part[KubeletScan]
    drivers: Part[Drivers]
    host: Part[HostEvidence]
    npus: Part[Picture]


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What this host is."""

    #: By which the API server knows it.
    node_name: str
    #: /proc/sys/kernel/random/boot_id; empty where it cannot be read.
    boot_id: str
    #: Every id by which the kubelet may call this machine: /etc/machine-id, and the firmware's.
    machine_ids: frozenset[str]


#: Seconds by which the two clocks may be further apart than before (Clock.apart) without a suspension.
SUSPENDED_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class SnapshotBounds:
    """How old evidence may be, in seconds."""

    #: Of every part, so that all of them are of one time.
    part: float = 30.0
    #: Between two looks at the Lease: a renewal that was seen may be as old as the look before.
    lease_looks: float = 90.0
    node: NodeBounds = field(default_factory=NodeBounds)
    pods: Bounds = field(default_factory=Bounds)

    def __post_init__(self) -> None:
        if not (self.part > 0 and self.lease_looks > 0):
            raise ValueError("every bound must be above 0")
