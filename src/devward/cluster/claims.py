"""Who claims a card: what goes into that decision besides the Pods, and what comes out of it. Pure.

Cards are named by their physical ids here, as containers name them. A claim never destroys anything: the weakest one, a candidate, only
says that its Pod does not stand in the way.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from devward.cluster.evidence import Finding
from devward.cluster.handed import NOTHING, Handed
from devward.text import printable, quoted


class Moment(NamedTuple):
    """One moment by both clocks of this host. Decisions are by the first; the second is only there to place foreign times by."""

    #: Seconds of the monotonic clock.
    monotonic: float
    #: Microseconds since 1970.
    realtime_usec: int


@dataclass(frozen=True, slots=True)
class KnownCard:
    """A card of this host: its physical id, and its die id, by which HAMi calls it."""

    phy: int
    die: str


@dataclass(frozen=True, slots=True)
class Allocation:
    """One entry of the kubelet's checkpoint: what a container of a Pod was given."""

    uid: str
    container: str
    resource: str
    #: Physical ids by the plugin's answer; None, or none: it cannot be told which.
    cards: frozenset[int] | None = None
    #: The kubelet's own choice, which says nothing about the card that was given. For people.
    device_ids: frozenset[str] = frozenset()
    template: str = ""
    #: vNPUs that were there already, which each attempt to start the container takes up again.
    handed: Handed = NOTHING


class HostEvidence(Protocol):
    """What the host shows of Pods; local.py's LocalEvidence is one."""

    def pod(self, uid: str, *, containers_only: bool) -> Finding:
        """Return whether a Pod lives here. With `containers_only` its sandbox alone is no sign of it."""


class Standing(StrEnum):
    """What a claim means for the vNPUs of its card, the strongest first; the strongest of a card decides."""

    #: Somebody uses the card, or is about to.
    PROTECTED = "protected"
    #: It cannot be told, which counts as use.
    UNKNOWN = "unknown"
    #: A Pod that could not be started: what its attempts made belongs to nobody.
    CANDIDATE = "candidate"
    NONE = "none"


_STRENGTH: Final = {standing: index for index, standing in enumerate(Standing)}


def strongest(standings: Iterable[Standing]) -> Standing:
    """Return the standing that decides."""
    return min(standings, key=_STRENGTH.__getitem__, default=Standing.NONE)


class ClaimReason(StrEnum):
    """Why a claim has its standing."""

    # --- protected
    RUNNING = "running"
    STARTING = "starting"
    #: A container waits and does not say for what; seen for the first time.
    WAITING_UNSAID = "waiting-unsaid"
    DELETING = "deleting"
    PENDING = "pending"
    INCOMPLETE = "incomplete"
    CONTAINER_ALIVE = "container-alive"
    ENDED_BUT_RUNNING = "ended-but-running"
    ENDED_BUT_ALIVE = "ended-but-alive"
    SOFT_SPLIT = "soft-split"
    NAMED_IN_ENVIRONMENT = "named-in-environment"
    #: Not made for its container by the runtime, but there before, and taken up again by each attempt.
    NAMED_BY_NODE = "named-by-node"
    PRIVILEGED = "privileged"
    ONLY_IN_CHECKPOINT = "only-in-checkpoint"
    ONLY_REMEMBERED = "only-remembered"
    # --- unknown
    STILL_UNSAID = "still-unsaid"
    REASON_UNKNOWN = "reason-unknown"
    STATE_UNKNOWN = "state-unknown"
    END_UNKNOWN = "end-unknown"
    CONTAINER_LOST = "container-lost"
    PHASE_UNKNOWN = "phase-unknown"
    NOTHING_SHOWN = "nothing-shown"
    HOST_UNREADABLE = "host-unreadable"
    ANNOTATION_MALFORMED = "annotation-malformed"
    CARD_NOT_KNOWN = "card-not-known"
    # --- candidate
    CANNOT_START = "cannot-start"


REASON_TEXT: Final[Mapping[ClaimReason, str]] = {
    ClaimReason.RUNNING: "A container of the Pod is running.",
    ClaimReason.STARTING: "A container of the Pod is about to start.",
    ClaimReason.WAITING_UNSAID: "A container of the Pod waits without a reason; the next look decides.",
    ClaimReason.DELETING: "The Pod is being deleted and may still run.",
    ClaimReason.PENDING: "The Pod is bound to this node and may be getting its devices now.",
    ClaimReason.INCOMPLETE: "The Pod has devices and containers of which nothing is said yet.",
    ClaimReason.CONTAINER_ALIVE: "The Pod's containers are said to fail, and one of them lives on this host.",
    ClaimReason.ENDED_BUT_RUNNING: "The Pod has ended by its phase, and a container of it is running by its status; look at the kubelet.",
    ClaimReason.ENDED_BUT_ALIVE: "The Pod has ended by its phase, and lives on this host; look for its containers.",
    ClaimReason.SOFT_SPLIT: "The Pod shares its card in hami-core mode, without a vNPU.",
    ClaimReason.NAMED_IN_ENVIRONMENT: "A container names cards in its environment that it did not request; let it request them.",
    ClaimReason.NAMED_BY_NODE: "The Pod names a vNPU that is there already, by its node or by CDI; each attempt to start takes it up.",
    ClaimReason.PRIVILEGED: "The Pod may open any device; only a clean scan of descriptors tells that it does not.",
    ClaimReason.ONLY_IN_CHECKPOINT: "The kubelet's checkpoint has devices for a Pod that the API server does not know.",
    ClaimReason.ONLY_REMEMBERED: "The Pod was seen with devices since boot, and the API server does not know it any more.",
    ClaimReason.STILL_UNSAID: "A container of the Pod goes on waiting without a reason; look at the kubelet's log.",
    ClaimReason.REASON_UNKNOWN: "A container of the Pod waits for a reason that is not known; look at the Pod.",
    ClaimReason.STATE_UNKNOWN: "A container of the Pod is in a state that is not known; look at the kubelet's version.",
    ClaimReason.END_UNKNOWN: "A container of the Pod ended in a way that is not known; look at the Pod.",
    ClaimReason.CONTAINER_LOST: "The kubelet lost track of a container of the Pod, which may still run; delete the Pod if it is stuck.",
    ClaimReason.PHASE_UNKNOWN: "The Pod's phase is not known; look at the Pod.",
    ClaimReason.NOTHING_SHOWN: "Nothing shows whether the Pod still uses its devices; look at the Pod.",
    ClaimReason.HOST_UNREADABLE: "Whether the Pod lives on this host cannot be read; see the doubts about local evidence.",
    ClaimReason.ANNOTATION_MALFORMED: "The Pod's device annotation cannot be read; mend or delete the Pod.",
    ClaimReason.CARD_NOT_KNOWN: "The Pod names a card that this host does not have; look at the card's health, or delete the Pod.",
    ClaimReason.CANNOT_START: "No container of the Pod can be started; what its attempts left behind belongs to nobody.",
}


@dataclass(frozen=True, slots=True)
class Claim:
    """What one Pod means for a card. Times are by the monotonic clock, in seconds."""

    uid: str
    standing: Standing
    reason: ClaimReason
    #: What was found in particular, foreign text.
    detail: str = ""
    #: Since when this is so, as far as it was seen.
    since: float = 0.0
    #: Of a candidate: when its last attempt failed, not later than it was first seen; None if that is not known.
    failed_at: float | None = None
    #: Of a candidate: when that attempt began; None if that is not known, as for every container that could not be created.
    began_at: float | None = None
    #: It holds for a vNPU only until a scan of descriptors is clean for it.
    unless_clean: bool = False

    @property
    def sentence(self) -> str:
        """The claim for people."""
        text = REASON_TEXT[self.reason]
        return f"{text[:-1]} ({quoted(self.detail)})." if self.detail else text


@dataclass(frozen=True, slots=True)
class Blocker:
    """A Pod that makes the whole node unknown."""

    uid: str
    reason: ClaimReason
    detail: str = ""
    #: Seconds of the monotonic clock.
    since: float = 0.0

    @property
    def sentence(self) -> str:
        """The blocker for people."""
        text = REASON_TEXT[self.reason]
        return f"Pod {printable(self.uid)}: {text[:-1]} ({quoted(self.detail)})." if self.detail else f"Pod {printable(self.uid)}: {text}"


@dataclass(frozen=True, slots=True)
class CardClaims:
    """Every claim on one card."""

    card: KnownCard
    claims: tuple[Claim, ...] = ()
    #: When the last Pod that had this card and ended was over, not later than its end was first seen; None if there is none.
    released_at: float | None = None

    @property
    def standing(self) -> Standing:
        """What decides while no descriptors were scanned, or while they are not clean."""
        return strongest(claim.standing for claim in self.claims)

    @property
    def standing_if_clean(self) -> Standing:
        """What decides for a vNPU for which a scan of descriptors is clean."""
        return strongest(claim.standing for claim in self.claims if not claim.unless_clean)

    @property
    def candidate_since(self) -> float | None:
        """When the latest attempt of its candidates failed; None if that is not known of any."""
        return max((claim.failed_at for claim in self.claims if claim.failed_at is not None), default=None)


@dataclass(frozen=True, slots=True)
class Claims:
    """What all Pods mean for all cards. With a blocker nothing is known of any card, whatever stands there."""

    cards: tuple[CardClaims, ...]
    blockers: tuple[Blocker, ...] = ()


@dataclass(frozen=True, slots=True)
class Remembered:
    """What was seen of a Pod's cards since boot. None of it is lost while the Pod may live."""

    cards: frozenset[int] = frozenset()
    #: Resources of which it was given something that could not be told: it may be any card of them.
    resources: frozenset[str] = frozenset()
    #: Since when, and in how many looks, neither the API server nor the host has it.
    gone_since: float | None = None
    gone_looks: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """What one look hands over to the next."""

    pods: Mapping[str, Remembered] = field(default_factory=dict)
    #: First sights of what has no time, or only a foreign one.
    sights: Mapping[tuple[str, ...], Moment] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a Pod protects that neither the API server nor the host has: both must be reached."""

    gone_seconds: float = 600.0
    gone_looks: int = 3

    def __post_init__(self) -> None:
        if not (self.gone_seconds > 0 and self.gone_looks > 0):
            raise ValueError("both bounds must be above 0")
