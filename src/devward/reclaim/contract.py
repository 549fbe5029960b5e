"""What must be true right before a vNPU is destroyed, and what each outcome means. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from devward.npu.facts import Expected, Outcome, Refusal
from devward.reclaim.confirmation import Bounds, Progress
from devward.reclaim.controls import Controls
from devward.reclaim.limits import Due, Rates, Spent
from devward.reclaim.look import Look


class No(StrEnum):
    """Why a vNPU is not destroyed after all."""

    NOT_FRESH = "evidence-not-fresh"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A vNPU that was chosen, as it was at that moment."""

    due: Due
    #: How often its node came or went, as the device monitor saw it.
    sequence: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """It is not destroyed."""

    reason: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything but the record of the intent."""

    chosen: Chosen
    expected: Expected
    #: When the fresh evidence was taken.
    begun: float


@dataclass(frozen=True, slots=True)
class Go:
    """The broker may be asked, now."""

    expected: Expected


def prepare(
    chosen: Chosen,
    before: Progress,
    fresh: Look,
    expected: Expected | None,
    *,
    sequence: int | None,
    controls: Controls,
    spent: Spent,
    rates: Rates,
    bounds: Bounds,
) -> tuple[Prepared | Refuse, Progress]:
    """Hold a chosen vNPU against fresh evidence; also returns the progress with that look.

    `expected` is what the broker is to find, from the inventory of the fresh look. `sequence` is as in `Chosen`, read after the device
    monitor was drained; None: it could not be.
    """
    raise NotImplementedError


def decide(prepared: Prepared, *, now: float, sequence: int | None, controls: Controls, is_intent_taken: bool) -> Go | Refuse:
    """Decide once more, with the record of the intent written and the kill switch read again."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What an answer of the broker means."""

    outcome: Outcome
    reason: str
    sentence: str
    #: It counts as a try, for the rates.
    was_tried: bool
    #: The vNPU begins to wait anew.
    sets_back: bool = False
    #: Nothing more may be destroyed until an administrator has seen to it.
    forbids: bool = False
    #: It is tried again after another confirmation.
    retries: bool = False


def called(outcome: Outcome, code: int | None) -> Aftermath:
    """Return what it means that the library was called to destroy."""
    raise NotImplementedError


def refused(reason: Refusal, code: int | None) -> Aftermath:
    """Return what it means that the broker refused, so that nothing was called."""
    raise NotImplementedError


def unanswered() -> Aftermath:
    """Return what it means that no answer came: the library may have been called."""
    raise NotImplementedError


def conclude(progress: Progress, identity: str, aftermath: Aftermath, at: float) -> Progress:
    """Return the progress with what became of one vNPU. The others keep theirs."""
    raise NotImplementedError
