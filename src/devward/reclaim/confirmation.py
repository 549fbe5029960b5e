"""How far each vNPU has come towards being reclaimed: the wait, by our own monotonic clock. Pure.

Everything is counted per vNPU. `step` takes what was known and one look, and returns what is known now:

    wait        It begins (GraceStart) at the latest of: the first sight of the vNPU; the first look at which nothing shielded it any more
                (shield.py: a Pod protects its card, something is unknown of it, …), since what was there at the look before may have been
                there until then; the last reset or interruption; and the failure of the attempt that may have made the vNPU.
    confirmed   The look that begins the wait confirms nothing. A later one does if nothing shields the vNPU, if at least one interval has
                gone by since the last confirmation, or since the wait began, and if every part of it was taken after that. So nudges
                and manual runs, however many, add no confirmation that the timer would not have added.
    eligible    The grace is over and there are enough confirmations, all of them after the wait began.

An interval counts from moment to moment (`Look.at`). A second, shorter pace is counted beside the first from the same looks, for vNPUs for
which an administrator asks to shorten the wait; it skips no evidence, and adds nothing to the first.

A failed attempt (`Claim.failed_at`) sets back the vNPUs that it may have made, and no others, or a Pod that fails every five minutes would
keep its old ones for ever. Where it is known when the attempt began (`Claim.began_at`), those are the ones first seen at or after that.
Mostly it is not known, since a container that never started has no such time. Then the host decides. The runtime makes a vNPU while the
container's bundle is there, and a bundle that may live makes its Pod's claim a protecting one. So the attempt that made a vNPU was over
when a look, all of it taken after the vNPU was first seen, finds nothing that shields it: that moment is kept (`settled_at`). A failure
up to then may be that attempt's, even if the API server tells of it later, and sets the vNPU back; a failure after it is another
attempt's, which made another vNPU. So a vNPU is set back by its own attempt's failure alone, and at most to about an interval after its
first sight. A failure time is foreign: it never counts for later than the look that brings it, and can only make the wait longer.

Times never go back: a look that is older than the one before is taken for one at that moment at which nothing is known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from devward.cluster.claims import Standing
from devward.reclaim.look import Cut, Look, VnpuFacts
from devward.reclaim.shield import concerns, reaches, shield

#: Pods that are kept for a vNPU.
MAX_SUSPECTS: Final = 8


@dataclass(frozen=True, slots=True)
class Pace:
    """How long and how often nobody must have had a vNPU. Seconds; all of it above 0."""

    grace: float = 600.0
    confirmations: int = 3
    interval: float = 60.0

    def __post_init__(self) -> None:
        if not (self.grace > 0 and self.confirmations > 0 and self.interval > 0):
            raise ValueError("grace, confirmations and interval must be above 0")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The pace, and the one that an administrator may ask for."""

    normal: Pace = field(default_factory=Pace)
    #: 60 s of quiet, and two looks 30 s apart. It is never slower than the normal one.
    short: Pace = field(default_factory=lambda: Pace(60.0, 2, 30.0))

    def pace(self, *, is_short: bool) -> Pace:
        """Return the pace that holds."""
        if not is_short:
            return self.normal
        return Pace(
            min(self.normal.grace, self.short.grace),
            min(self.normal.confirmations, self.short.confirmations),
            min(self.normal.interval, self.short.interval),
        )


@dataclass(frozen=True, slots=True)
class Count:
    """Confirmations at one pace."""

    confirmations: int = 0
    #: When the last one was.
    last_at: float | None = None


@dataclass(frozen=True, slots=True)
class VnpuProgress:
    """How far one vNPU has come. Times in seconds of the monotonic clock."""

    identity: str
    card: str
    first_seen: float
    #: Something shields it now: nothing counts, and the times below that begin a wait are void until it does not.
    is_shielded: bool = True
    #: When something shielded it last: the last protecting or unknown moment of its card is one of these.
    shielded_at: float | None = None
    #: The first look after that.
    free_since: float | None = None
    reset_at: float | None = None
    #: Why it was set back last: a code.
    reset_reason: str = ""
    #: The latest failure that it may have been made by.
    failed_at: float | None = None
    #: By when the attempt that made it was over.
    settled_at: float | None = None
    normal: Count = field(default_factory=Count)
    short: Count = field(default_factory=Count)
    #: When its destruction was tried last, without its going, and how often.
    tried_at: float | None = None
    tries: int = 0
    #: Pods that could not start and had its card when it was new, by UID: one of them may have left it.
    suspects: tuple[str, ...] = ()

    @property
    def grace_start(self) -> float | None:
        """When the wait began; None while nothing counts."""
        if self.is_shielded:
            return None
        # It is free since its first sight at the earliest.
        return max(moment for moment in (self.free_since, self.reset_at, self.failed_at) if moment is not None)

    def count(self, *, is_short: bool) -> Count:
        """Return its confirmations at one of the paces."""
        return self.short if is_short else self.normal

    def eligible_at(self, bounds: Bounds, *, is_short: bool = False) -> float | None:
        """Return when it is eligible at the earliest, if every look from now on confirms; None while nothing counts."""
        start, count, pace = self.grace_start, self.count(is_short=is_short), bounds.pace(is_short=is_short)
        if start is None:
            return None
        last = start if count.last_at is None else count.last_at
        missing = max(0, pace.confirmations - count.confirmations, int(self.awaits_round(is_short=is_short)))
        return max(start + pace.grace, last + missing * pace.interval)

    def awaits_round(self, *, is_short: bool = False) -> bool:
        """Whether its destruction was tried since the last confirmation."""
        last_at = self.count(is_short=is_short).last_at
        return self.tried_at is not None and (last_at is None or last_at <= self.tried_at)

    def is_due(self, at: float, bounds: Bounds, *, is_short: bool = False) -> bool:
        """Whether it was seen often and long enough."""
        start, count, pace = self.grace_start, self.count(is_short=is_short), bounds.pace(is_short=is_short)
        is_confirmed = count.confirmations >= pace.confirmations and not self.awaits_round(is_short=is_short)
        return start is not None and at - start >= pace.grace and is_confirmed


@dataclass(frozen=True, slots=True)
class Progress:
    """How far every vNPU has come. An empty one is right when the daemon starts: nothing is inherited."""

    vnpus: Mapping[str, VnpuProgress] = field(default_factory=dict)
    #: The latest look.
    looked_at: float | None = None


def step(before: Progress, look: Look, bounds: Bounds) -> Progress:
    """Return how far every vNPU has come with this look. What the look does not list is forgotten; seen again it is new."""
    return _Step(before, look, bounds).progress()


def set_back(progress: Progress, identity: str, at: float, reason: str) -> Progress:
    """Return the progress with one vNPU's wait begun anew, as when the driver says that it is in use after all."""
    known = progress.vnpus.get(identity)
    if known is None:
        return progress
    at = at if progress.looked_at is None else max(at, progress.looked_at)
    return _with(progress, replace(known, reset_at=at, reset_reason=reason, normal=Count(), short=Count()))


def tried(progress: Progress, identity: str, at: float) -> Progress:
    """Return the progress with note that one vNPU's destruction was tried and it did not go, as far as is known."""
    known = progress.vnpus.get(identity)
    if known is None:
        return progress
    return _with(progress, replace(known, tried_at=at, tries=known.tries + 1))


def forget(progress: Progress, identity: str) -> Progress:
    """Return the progress without a vNPU that is gone. The others keep theirs."""
    return replace(progress, vnpus={key: known for key, known in progress.vnpus.items() if key != identity})


def set_backs(before: Progress, after: Progress) -> int:
    """Return how many vNPUs lost confirmations between two steps."""
    return sum(
        known.normal.confirmations > after.vnpus[key].normal.confirmations for key, known in before.vnpus.items() if key in after.vnpus
    )


def _with(progress: Progress, known: VnpuProgress) -> Progress:
    return replace(progress, vnpus={**progress.vnpus, known.identity: known})


class _Step:
    """One look taken in."""

    def __init__(self, before: Progress, look: Look, bounds: Bounds) -> None:
        self._before = before
        self._look = look
        self._bounds = bounds
        last = before.looked_at
        self._is_back = last is not None and look.at < last
        self._now = look.at if last is None else max(look.at, last)
        cards = look.snapshot.cards if look.snapshot is not None else ()
        resets = look.snapshot.resets if look.snapshot is not None else ()
        #: By card, the resets that may concern its vNPUs.
        self._resets = {name: tuple(reset for reset in resets if reaches(reset, name)) for name in {vnpu.card for vnpu in look.vnpus}}
        #: By card, the claims of Pods that could not start.
        self._candidates = {card.name: tuple(claim for claim in card.claims if claim.standing is Standing.CANDIDATE) for card in cards}

    def progress(self) -> Progress:
        """Return what is known now."""
        return Progress({vnpu.identity: self._take(vnpu) for vnpu in self._look.vnpus if vnpu.identity}, self._now)

    def _take(self, vnpu: VnpuFacts) -> VnpuProgress:
        known = self._before.vnpus.get(vnpu.identity)
        if known is None or known.card != vnpu.card:
            known = VnpuProgress(vnpu.identity, vnpu.card, self._now)
        # Hundreds of vNPUs, most of which stay as they are: what would be the same is not made anew.
        if (suspects := self._suspects(known)) != known.suspects:
            known = replace(known, suspects=suspects)
        reason = self._break(vnpu)
        reset_at = self._now if reason else known.reset_at
        found = shield(vnpu, self._look)
        if found is not None or self._is_back:
            reason = reason or (found.reason if found is not None else "")
            return replace(
                known, is_shielded=True, shielded_at=self._now, reset_at=reset_at, reset_reason=reason, normal=Count(), short=Count()
            )
        if reason:
            known = replace(known, reset_at=reset_at, reset_reason=reason, normal=Count(), short=Count())
        if known.is_shielded:
            known = replace(known, is_shielded=False, free_since=self._now)
        if known.settled_at is None and self._look.begun > known.first_seen:
            known = replace(known, settled_at=self._now)
        started = known.grace_start
        if (failed_at := self._failed_at(known)) != known.failed_at:
            known = replace(known, failed_at=failed_at)
        if known.grace_start != started:
            # Confirmations of before the wait began are none.
            known = replace(known, normal=Count(), short=Count())
        return replace(known, normal=self._counted(known, is_short=False), short=self._counted(known, is_short=True))

    def _break(self, vnpu: VnpuFacts) -> str:
        """Return what sets a vNPU back at this look; empty: nothing."""
        if self._is_back:
            return Cut.CLOCK.value
        for interruption in self._look.interruptions:
            if interruption.breaks(vnpu.identity):
                return interruption.cut.value
        return next((reset.reason for reset in self._resets[vnpu.card] if concerns(reset, vnpu, self._look)), "")

    def _failed_at(self, known: VnpuProgress) -> float | None:
        """Return the latest failure of an attempt that may have made a vNPU."""
        moments = [] if known.failed_at is None else [known.failed_at]
        for claim in self._candidates.get(known.card, ()):
            failed_at = None if claim.failed_at is None else min(claim.failed_at, self._now)
            if failed_at is not None and _may_have_made(failed_at, claim.began_at, known):
                moments.append(failed_at)
        return max(moments, default=None)

    def _counted(self, known: VnpuProgress, *, is_short: bool) -> Count:
        count, start, look = known.count(is_short=is_short), known.grace_start, self._look
        last = start if count.last_at is None else count.last_at
        if last is None or self._now - last < self._bounds.pace(is_short=is_short).interval or look.begun <= last:
            return count
        if known.tried_at is not None and look.begun <= known.tried_at:
            return count
        return Count(count.confirmations + 1, self._now)

    def _suspects(self, known: VnpuProgress) -> tuple[str, ...]:
        """Return the Pods that may have left a vNPU: those that could not start when it was new."""
        if known.suspects or known.settled_at is not None:
            return known.suspects
        return tuple(sorted({claim.uid for claim in self._candidates.get(known.card, ())}))[:MAX_SUSPECTS]


def _may_have_made(failed_at: float, began_at: float | None, known: VnpuProgress) -> bool:
    if began_at is not None:
        return known.first_seen >= began_at
    return known.settled_at is None or failed_at <= known.settled_at
