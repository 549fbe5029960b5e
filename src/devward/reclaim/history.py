"""What became of vNPUs, and what leaked. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from devward.reclaim.confirmation import Progress
from devward.reclaim.look import Look
from devward.reclaim.verdict import Judgement


class Fate(StrEnum):
    """How a vNPU went."""

    DESTROYED = "destroyed"
    #: Somebody else destroyed it, and its container lives.
    VANISHED_FOREIGN = "vanished-foreign"
    VANISHED = "vanished"


@dataclass(frozen=True, slots=True)
class Entry:
    """One vNPU that went."""

    at_usec: int
    fate: Fate
    vdev: int
    identity: str
    #: Name of its card.
    card: str
    template: str
    cores: float
    #: Of the last look that saw it.
    verdict: str
    reason: str
    #: Pods that may have left it, by UID.
    suspects: tuple[str, ...] = ()
    #: The record that it belongs to; empty where devward did nothing.
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """What happened, the latest last; bounded."""

    entries: tuple[Entry, ...] = ()
    #: What was there at the last whole look, by identity.
    present: Mapping[str, Entry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Leak:
    """What lies about unused on one card, or by one Pod."""

    #: Name of the card or UID of the Pod; empty: of which Pod is not known.
    of: str
    count: int
    since_usec: int
    cores: float


def see(history: History, look: Look, progress: Progress, judgements: Mapping[str, Judgement]) -> tuple[History, tuple[Entry, ...]]:
    """Return the history with a look, and what went since the one before."""
    raise NotImplementedError


def act(history: History, identity: str, request_id: str, *, is_destroyed: bool, at_usec: int) -> History:
    """Take note of a destruction of devward's, be it known to have happened or not."""
    raise NotImplementedError


def leaks(judgements: Iterable[Judgement], look: Look, progress: Progress) -> tuple[tuple[Leak, ...], tuple[Leak, ...]]:
    """Return what leaked, by card and by Pod."""
    raise NotImplementedError
