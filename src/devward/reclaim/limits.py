"""How many vNPUs may be destroyed, which first, and when so many are eligible that something else must be wrong. Pure.

A try counts from before the broker is asked, whatever comes of it. Times are seconds of the monotonic clock.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from devward.model import Manage
from devward.reclaim.confirmation import Progress
from devward.reclaim.look import Look
from devward.reclaim.reasons import Verdict
from devward.reclaim.verdict import Judgement

#: The time to which the hourly rate applies.
HOUR: Final = 3600.0
#: Eligible vNPUs on so many cards are too many, on however many cards a node has.
BREAKER_CARDS: Final = 3
#: The least number of cards of which more than half are too many.
BREAKER_LEAST: Final = 2
#: Somebody is seen to have it, or to keep it. What cannot be told is not among them: that is no news of a vNPU.
_HAD: Final = frozenset({Verdict.IN_USE, Verdict.PINNED, Verdict.OWNED, Verdict.PROTECTED})
#: vNPUs that a sentence names.
_MAX_NAMED: Final = 16


@dataclass(frozen=True, slots=True)
class Rates:
    """How many destructions may be tried. All of it above 0."""

    per_card: int = 1
    per_node: int = 4
    per_hour: int = 16

    def __post_init__(self) -> None:
        if not (self.per_card > 0 and self.per_node > 0 and self.per_hour > 0):
            raise ValueError("every rate must be above 0")


class Limit(StrEnum):
    """Why an eligible vNPU is not destroyed in this cycle."""

    PER_CARD = "limit-per-card"
    PER_NODE = "limit-per-node"
    PER_HOUR = "limit-per-hour"


LIMIT_TEXT: Final[Mapping[Limit, str]] = {
    Limit.PER_CARD: "As many vNPUs of the card as one cycle may destroy come first; the next cycle goes on.",
    Limit.PER_NODE: "As many vNPUs as one cycle may destroy come first; the next cycle goes on.",
    Limit.PER_HOUR: (
        "As many destructions were tried in the last hour as one hour allows, whatever came of them; it goes on when that is over."
        " The records with DEVWARD_EVENT=vnpu-reclaim tell what came of each."
    ),
}


@dataclass(frozen=True, slots=True)
class Due:
    """A vNPU that is eligible, or would be without HAMi's lock."""

    identity: str
    card: str
    #: When its wait began.
    grace_start: float
    #: How often its destruction was tried in vain.
    tries: int = 0
    vdev: int = 0
    #: HAMi is giving out a device.
    is_deferred: bool = False


@dataclass(frozen=True, slots=True)
class Spent:
    """The tries of the last hour, and those of this cycle."""

    moments: tuple[float, ...] = ()
    #: The cards of the tries of this cycle.
    cards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """The vNPUs of this cycle, in their order, and by identity why the others wait."""

    chosen: tuple[Due, ...] = ()
    left: Mapping[str, Limit] = field(default_factory=dict)


def due(judgements: Mapping[str, Judgement], progress: Progress) -> tuple[Due, ...]:
    """Return what is eligible, or deferred, by the verdicts of a look."""
    found = []
    for judgement in judgements.values():
        known = progress.vnpus.get(judgement.identity)
        if judgement.verdict in (Verdict.ELIGIBLE, Verdict.DEFERRED) and known is not None and known.grace_start is not None:
            is_deferred = judgement.verdict is Verdict.DEFERRED
            found.append(Due(judgement.identity, judgement.card, known.grace_start, known.tries, judgement.vdev, is_deferred))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the hour still allows."""

    left: int
    #: When the next try is allowed; None: now.
    next_at: float | None = None


def allowance(spent: Spent, rates: Rates, now: float) -> Allowance:
    """Return how many tries the hour still allows, and when the next one is."""
    recent = sorted(_recent(spent, now))
    left = rates.per_hour - len(recent)
    return Allowance(left) if left > 0 else Allowance(0, recent[-rates.per_hour] + HOUR)


def begin_cycle(spent: Spent) -> Spent:
    """Return what is spent when a cycle begins: the tries of the last hour alone."""
    return replace(spent, cards=())


def spend(spent: Spent, card: str, now: float) -> Spent:
    """Take note of one try."""
    return Spent((*_recent(spent, now), now), (*spent.cards, card))


def limit(card: str, spent: Spent, rates: Rates, now: float) -> Limit | None:
    """Return which rate keeps a vNPU of a card from being destroyed now; None: none does."""
    if len(_recent(spent, now)) >= rates.per_hour:
        return Limit.PER_HOUR
    if len(spent.cards) >= rates.per_node:
        return Limit.PER_NODE
    return Limit.PER_CARD if Counter(spent.cards)[card] >= rates.per_card else None


def choose(eligible: Iterable[Due], spent: Spent, rates: Rates, now: float) -> Choice:
    """Return which vNPUs are destroyed in this cycle: those that were tried least first, and of these the ones that wait longest.

    What was tried in vain goes to the end, so that it holds up no other. HAMi's lock takes them all out, and they are none of `left`.
    """
    chosen: list[Due] = []
    left: dict[str, Limit] = {}
    for one in sorted(eligible, key=lambda one: (one.tries, one.grace_start, one.card, one.vdev, one.identity)):
        if one.is_deferred:
            continue
        reached = limit(one.card, spent, rates, now)
        if reached is None:
            chosen.append(one)
            spent = spend(spent, one.card, now)
        else:
            left[one.identity] = reached
    return Choice(tuple(chosen), left)


def _recent(spent: Spent, now: float) -> tuple[float, ...]:
    # What seems to be still to come is of a clock that went back, and counts.
    return tuple(moment for moment in spent.moments if now - moment < HOUR)


# --- the breaker -----------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, order=True)
class Held:
    """A vNPU that the breaker holds, or that an administrator has agreed to."""

    card: str
    vdev: int
    #: What tells it from every other one in this run of the daemon; empty: it is of an earlier run, and was not found again yet.
    identity: str
    #: What the next run of the daemon in the same boot finds it again by; empty: nothing.
    lasting: str = ""


@dataclass(frozen=True, slots=True)
class Breaker:
    """Whether so much is eligible that something else must be wrong: claims that vanished, or evidence that lies.

    It latches, and only an administrator releases it. What was eligible until then is agreed to, vNPU by vNPU, and does not latch it again.
    """

    is_latched: bool = False
    #: What was eligible while it was latched.
    held: frozenset[Held] = frozenset()
    #: What an administrator has agreed to.
    agreed: frozenset[Held] = frozenset()


def watch(
    breaker: Breaker,
    eligible: Iterable[Due],
    reclaimed_cards: int,
    present: Mapping[str, str],
    *,
    is_whole: bool = True,
    had: Collection[str] = (),
) -> Breaker:
    """Return the breaker with what is eligible now, be it deferred or not.

    `reclaimed_cards` is on how many cards vNPUs are reclaimed. `present` has the identity of every vNPU, and what the next run of the
    daemon finds it again by (empty: nothing); `is_whole`: there are no others. Agreement goes with its vNPU, and ends where somebody is
    seen to have it, or to keep it, which `had` names: that evidence changed its mind is what the breaker is there for.
    """
    agreed = _found(breaker.agreed, present, is_whole=is_whole, had=had)
    known = {one.identity for one in agreed}
    fresh = [one for one in eligible if one.identity not in known]
    cards = len({one.card for one in fresh})
    is_mass = cards >= BREAKER_CARDS or (cards >= BREAKER_LEAST and 2 * cards > reclaimed_cards)
    if not (breaker.is_latched or is_mass):
        return Breaker(agreed=agreed)
    held = _found(breaker.held, present, is_whole=is_whole, had=had)
    new = {Held(one.card, one.vdev, one.identity, present.get(one.identity, "")) for one in fresh}
    return Breaker(is_latched=True, held=held | new, agreed=agreed)


def release(breaker: Breaker) -> Breaker:
    """Return the breaker as an administrator releases it."""
    return Breaker(agreed=breaker.agreed | breaker.held)


def sentence(breaker: Breaker) -> str:
    """Say what latched the breaker, and what to do; empty: it is not latched."""
    if not breaker.is_latched:
        return ""
    if not breaker.held:
        return (
            "vNPUs on too many cards became eligible at a time, and none of them is there any more; find out why, and release the breaker:"
            " devwardctl reclaim release."
        )
    named = sorted(breaker.held)[:_MAX_NAMED]
    by_card: dict[str, list[str]] = {}
    for one in named:
        by_card.setdefault(one.card, []).append(str(one.vdev))
    more = f"; {len(breaker.held) - len(named)} more" if len(breaker.held) > len(named) else ""
    cards = len({one.card for one in breaker.held})
    listed = "; ".join(f"{card}: {', '.join(vdevs)}" for card, vdevs in by_card.items())
    return (
        f"Too many vNPUs became eligible at a time, {len(breaker.held)} on {cards} {'card' if cards == 1 else 'cards'} ({listed}{more})."
        " Find out why; pin what must stay, then agree to the others: devwardctl reclaim release."
    )


def watch_look(breaker: Breaker, eligible: Iterable[Due], look: Look, judgements: Iterable[Judgement]) -> Breaker:
    """Return the breaker with what is eligible by a look, and by the judgements of it."""
    present = {one.identity: one.lasting for one in look.vnpus if one.identity}
    had = {one.identity for one in judgements if one.identity and one.verdict in _HAD}
    return watch(breaker, eligible, reclaimed_cards(look), present, is_whole=look.is_whole, had=had)


def recalled(breaker: Breaker, kept: Breaker) -> Breaker:
    """Return the breaker with what an earlier run of the daemon left, which was read late: what latched it meanwhile holds on."""
    return Breaker(breaker.is_latched or kept.is_latched, breaker.held | kept.held, breaker.agreed | kept.agreed)


def _found(of: Iterable[Held], present: Mapping[str, str], *, is_whole: bool, had: Collection[str]) -> frozenset[Held]:
    """Return those that are there, or may be, and that nobody has; what an earlier run left as this one knows it."""
    now = {lasting: identity for identity, lasting in present.items() if lasting}
    found = (one if one.identity else replace(one, identity=now.get(one.lasting, "")) for one in of)
    return frozenset(one for one in found if one.identity not in had and (one.identity in present or not is_whole))


def reclaimed_cards(look: Look) -> int:
    """Return on how many cards vNPUs are reclaimed."""
    cards = look.snapshot.cards if look.snapshot is not None else ()
    return sum(look.reach.selects(card) and (card.is_managed or look.reach.manage is Manage.ALL) for card in cards)
