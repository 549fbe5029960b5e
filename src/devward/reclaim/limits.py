"""How many vNPUs may be destroyed, and which first. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Rates:
    """How many destructions may be tried."""

    per_card: int = 1
    per_node: int = 4
    per_hour: int = 16


@dataclass(frozen=True, slots=True)
class Due:
    """A vNPU that is eligible."""

    identity: str
    card: str
    #: When its wait began, in seconds of the monotonic clock.
    grace_start: float
    tries: int = 0
    vdev: int = 0


@dataclass(frozen=True, slots=True)
class Spent:
    """When destructions were tried in the last hour, by the monotonic clock."""

    moments: tuple[float, ...] = ()


class Limit(StrEnum):
    """Why an eligible vNPU is not destroyed in this cycle."""

    PER_CARD = "limit-per-card"
    PER_NODE = "limit-per-node"
    PER_HOUR = "limit-per-hour"


@dataclass(frozen=True, slots=True)
class Choice:
    """The vNPUs of this cycle, in their order, and why the others wait."""

    chosen: tuple[Due, ...] = ()
    left: Mapping[str, Limit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Breaker:
    """Whether so much is eligible that something else must be wrong. Only an administrator releases it."""

    is_latched: bool = False
    #: What was eligible while it was latched, by identity.
    identities: frozenset[str] = frozenset()
    #: What an administrator has agreed to, by identity.
    agreed: frozenset[str] = frozenset()


def choose(due: Iterable[Due], spent: Spent, rates: Rates, now: float) -> Choice:
    """Return which vNPUs are destroyed in this cycle."""
    raise NotImplementedError


def spend(spent: Spent, now: float) -> Spent:
    """Take note of one try."""
    raise NotImplementedError


def watch(breaker: Breaker, due: Iterable[Due], managed_cards: int) -> Breaker:
    """Return the breaker with what is eligible now, on a node with so many cards that are reclaimed on."""
    raise NotImplementedError


def release(breaker: Breaker) -> Breaker:
    """Return the breaker as an administrator releases it."""
    raise NotImplementedError
