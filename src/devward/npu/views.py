"""What is published of NPUs and vNPUs: the values of the bus interfaces Card and Vnpu. Pure.

A value that is not known is never invented: numbers are then UNKNOWN_NUMBER, texts empty, states `unknown`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from devward.model import Identity
from devward.reasons import Reason

#: Stands for a number that is not known.
UNKNOWN_NUMBER: Final = -1


class CardHealth(StrEnum):
    """Whether the vendor's library calls a chip healthy."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class Management(StrEnum):
    """Whether HAMi hands this card out, by the API server's Node of this host."""

    UNKNOWN = "unknown"
    MANAGED = "managed"
    UNMANAGED = "unmanaged"


class Protection(StrEnum):
    """What the claims on a card mean for its vNPUs."""

    #: No vNPU of the host is idle, so that nobody's Pods were asked for; or nobody was asked yet.
    NOT_EVALUATED = "not-evaluated"
    PROTECTED = "protected"
    #: It cannot be told, which counts as use.
    UNKNOWN = "unknown"
    #: Every Pod that claims it cannot be started.
    CANDIDATE = "candidate"
    NONE = "none"


class Use(StrEnum):
    """What the driver says of a vNPU's use. `idle` is no proof that nobody owns it."""

    UNKNOWN = "unknown"
    IDLE = "idle"
    IN_USE = "in-use"


class Verdict(StrEnum):
    """What may become of a vNPU: the verdicts of devward.reclaim.reasons on one that is there."""

    IN_USE = "in-use"
    PINNED = "pinned"
    OWNED = "owned"
    PROTECTED = "protected"
    #: It cannot be told, or was not judged yet, which counts as use.
    UNKNOWN = "unknown"
    UNMANAGED = "unmanaged"
    CANDIDATE = "candidate"
    CONFIRMING = "confirming"
    ELIGIBLE = "eligible"
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class CardView:
    """What is published of one chip. On boards with two dies each is a card of its own, as it is to schedulers."""

    #: The last element of its object path, such as `p007`, or `c003d1` where the physical id is not known or not its own.
    name: str
    phy_id: int
    logic_id: int
    #: The vendor's address: card and device.
    card: int
    device: int
    #: As HAMi prints it, its name of the card; empty if it cannot be read.
    die_id: str
    #: Type and name, such as `Ascend 910B3`.
    chip: str
    #: The device node, such as /dev/davinci7; empty if there is none.
    node: str
    #: MAJOR:MINOR of the node; empty if there is none.
    number: str
    #: Whether chip and node are what they claim to be, whatever their health.
    identity: Identity
    health: CardHealth
    managed: Management
    protection: Protection
    #: Pod UIDs.
    claims: tuple[str, ...]
    used_cores: float
    claimed_cores: float
    total_cores: float
    #: Why the card is not vouched for; `ok` if it is.
    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class VnpuView:
    """What is published of one vNPU."""

    #: The last element of its object path, such as `v0100`, or `x0100c003d1` where two chips list the id or it is not the chip's own.
    name: str
    vdev: int
    #: What tells it from an earlier or later vNPU of the same id: DIE/VDEV/TEMPLATE and a digest of the rest.
    identity: str
    #: `name` of the card.
    card: str
    template: str
    #: Virtual function, 1 to 16, and AI cores.
    vfid: int
    cores: float
    node: str
    use: Use
    verdict: Verdict
    reason: Reason
    text: str
    first_seen_usec: int
    #: 0 while nothing counts.
    grace_start_usec: int
    confirmations: int
    eligible_at_usec: int
    #: Why the verdict is what it is, as a code of devward.reclaim, which puts it in. `reason` is why it is not vouched for.
    verdict_reason: str = ""
