"""What a snapshot says: who claims which card, whose the cards are, and what is unknown, of a card or of the whole node. Pure."""

from dataclasses import dataclass

from devward.cluster.claimants import Claimant
from devward.cluster.claims import Claim, Standing
from devward.cluster.hami import CardRefusal
from devward.cluster.managers import Sign
from devward.cluster.node import NodeIdentity
from devward.cluster.observations import Scope
from devward.cluster.parts import Source


@dataclass(frozen=True, slots=True)
class Unknown:
    """One thing that cannot be told, which counts as use."""

    scope: Scope
    reason: str
    #: The UID of the Pod, or the source, that it comes from.
    who: str
    #: Since when without a break, in microseconds since 1970.
    since_usec: int
    #: For people, fit to be shown.
    sentence: str
    #: Name of the card; empty for the node.
    card: str = ""


@dataclass(frozen=True, slots=True)
class Reset:
    """What this look sets back: vNPUs begin to wait anew."""

    scope: Scope
    reason: str
    #: Name of the card; empty for the node, and so for every card.
    card: str = ""
    #: It spares a vNPU for which a scan of descriptors is clean.
    unless_clean: bool = False


@dataclass(frozen=True, slots=True)
class CardState:
    """What is known of one card."""

    #: As in the picture of NPUs, such as `p007`.
    name: str
    #: -1 where it is not known.
    phy: int
    #: In capitals; empty where it is not known.
    die: str
    #: What decides for its vNPUs. Where the node is unknown, so is every card, whatever its claims are.
    protection: Standing
    #: What decides for a vNPU for which a scan of descriptors is clean.
    protection_if_clean: Standing
    claims: tuple[Claim, ...] = ()
    #: When the latest attempt of its candidates failed, in seconds of the monotonic clock; None if that is not known of any.
    candidate_since: float | None = None
    #: When the last Pod that had it and ended was over, by the same clock; None if there is none.
    released_at: float | None = None
    #: AI cores that the claims ask for; None where that is not known of each.
    claimed_cores: float | None = None
    #: It is HAMi's, by the Node of this host.
    is_managed: bool = False
    #: Why it is not; None also where the Node cannot be asked.
    unmanaged: CardRefusal | None = None

    @property
    def claimants(self) -> tuple[str, ...]:
        """The Pods that claim it, by UID, in order."""
        return tuple(sorted({claim.uid for claim in self.claims}))


@dataclass(frozen=True, slots=True)
class SourceUse:
    """One source, and how old it was."""

    source: Source
    #: Seconds.
    age: float
    #: It could be read. What it says may still be refused.
    is_read: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one look says. While anything is unknown nothing in its scope may be judged."""

    #: Seconds of the monotonic clock, and microseconds since 1970.
    at: float
    at_usec: int
    cards: tuple[CardState, ...]
    unknowns: tuple[Unknown, ...]
    resets: tuple[Reset, ...]
    sources: tuple[SourceUse, ...]
    #: HAMi is giving out a device: whatever is due waits, and loses nothing.
    is_deferred: bool = False
    #: Signs of somebody besides HAMi who hands out the cards.
    foreign: tuple[Sign, ...] = ()
    #: The Pods that claim a card, or make the node unknown.
    claimants: tuple[Claimant, ...] = ()
    #: How the Node's UID agrees with the one that is known; None where the Node was not read.
    identity: NodeIdentity | None = None
    #: The UID of the Node that was read; empty where none was.
    node_uid: str = ""

    @property
    def is_node_known(self) -> bool:
        """Whether nothing of the whole node is unknown."""
        return all(unknown.scope is not Scope.NODE for unknown in self.unknowns)

    @property
    def age(self) -> float:
        """Seconds since its oldest part was taken."""
        return max((use.age for use in self.sources), default=0.0)
