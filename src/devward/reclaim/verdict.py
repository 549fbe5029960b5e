"""The verdict on every vNPU, with its reason. Pure.

What shields a vNPU is in shield.py, in the order of precedence; where nothing does, how far it has come decides:

    candidate    nobody has it as far as this look tells; nothing confirmed that yet.
    confirming   that was confirmed, and not often or not long enough; or its destruction failed, and another round is waited for.
    deferred     it is eligible, and HAMi's lock is held: it waits, and loses nothing.
    eligible     it may be destroyed, within limits.py, by the contract of contract.py, while controls.py has nothing against it.

`destroyed` and `vanished-foreign` are of vNPUs that are gone (history.py).

Where the rules of HAMi's reconciler for idle vNPUs went (V1 to V14 here, R1 to R14 there):

    V1   confirmation.py: Pace. A value that is not above 0 is refused and not replaced, so that a mistake is seen. Runs never overlap since
         there is one reconciler, and `step` takes one look at a time.
    V2   shield.py: anything unknown of the node shields every vNPU, and confirmation.py begins its wait anew.
    V3   shield.py: a card that is not one of `[reclaim] cards`, or not HAMi's, is unmanaged.
    V4   shield.py: protected and unknown cards. Their vNPUs are listed and explained all the same; none of it counts.
    V5   the picture of NPUs keeps what cannot be listed with its fault: shield.py makes it unknown, and spares the other cards.
    V6   confirmation.py: by the whole identity and not by the id; what is not listed is forgotten.
    V7   replaced: a vNPU in use shields itself (shield.py). There is no counter of a card that it could reset.
    V8   replaced: counted per vNPU. A failed attempt sets back only what it may have made (confirmation.py).
    V9   confirmation.py: each vNPU waits its own full grace.
    V10  contract.py: `prepare` judges anew by fresh evidence.
    V11  aftermath.py: `conclude` changes one vNPU alone; the others keep their progress.
    V12  confirmation.py: Cut, and an empty Progress at each start.
    V13  counters.py.
    V14  kept: claims are of cards. Who holds this very vNPU can only add to what shields it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from devward.cluster.evidence import Finding
from devward.reclaim.confirmation import Bounds, Progress, VnpuProgress
from devward.reclaim.look import Look, VnpuFacts
from devward.reclaim.reasons import WHY_TEXT, Verdict, Why
from devward.reclaim.shield import Shield, shield


@dataclass(frozen=True, slots=True)
class Judgement:
    """What may become of one vNPU, and why."""

    #: As in the picture of NPUs.
    name: str
    #: Empty where nothing tells it from another.
    identity: str
    card: str
    vdev: int
    verdict: Verdict
    #: A stable code.
    reason: str
    #: For people, fit to be shown.
    sentence: str
    #: Microseconds since 1970; 0 where it is not followed.
    first_seen_usec: int = 0
    #: Both 0 while nothing counts.
    grace_start_usec: int = 0
    eligible_at_usec: int = 0
    confirmations: int = 0
    #: What began its wait anew last; empty: nothing did.
    last_reset: str = ""
    #: It is eligible only since an administrator asked to shorten the wait.
    is_shortened: bool = False
    #: Of one in use: whether anything but the driver's flag speaks against reclaiming it (`Shield.beside`).
    beside: Finding = Finding.HELD


def judge(progress: Progress, look: Look, bounds: Bounds) -> Mapping[str, Judgement]:
    """Return the verdict on every vNPU of a look, by name. `progress` is that after this look (`step`)."""
    return {vnpu.name: _judge(vnpu, progress, look, bounds) for vnpu in look.vnpus}


def _judge(vnpu: VnpuFacts, progress: Progress, look: Look, bounds: Bounds) -> Judgement:
    known = progress.vnpus.get(vnpu.identity)
    found = shield(vnpu, look)
    if found is not None:
        return _judgement(vnpu, found, known, look)
    if known is None or known.is_shielded or progress.looked_at != look.at:
        is_late = progress.looked_at is not None and progress.looked_at > look.at
        why = Why.OUTDATED if is_late else Why.NOT_FOLLOWED
        return _judgement(vnpu, Shield(Verdict.UNKNOWN, why.value, WHY_TEXT[why]), known, look)
    may_shorten = vnpu.identity in look.shorten
    is_due = known.is_due(look.at, bounds)
    is_shortened = not is_due and may_shorten and known.is_due(look.at, bounds, is_short=True)
    if is_due or is_shortened:
        verdict, why = (Verdict.DEFERRED, Why.LOCKED) if look.is_deferred else (Verdict.ELIGIBLE, Why.CONFIRMED)
    else:
        verdict, why = _waiting(known, bounds, is_short=may_shorten)
    start = known.grace_start
    ends = [known.eligible_at(bounds, is_short=is_short) for is_short in ((False, True) if may_shorten else (False,))]
    end = min((end for end in ends if end is not None), default=None)
    return Judgement(
        vnpu.name,
        vnpu.identity,
        vnpu.card,
        vnpu.vdev,
        verdict,
        why.value,
        WHY_TEXT[why],
        first_seen_usec=look.usec(known.first_seen),
        grace_start_usec=0 if start is None else look.usec(start),
        eligible_at_usec=0 if end is None else look.usec(end),
        confirmations=known.normal.confirmations,
        last_reset=known.reset_reason,
        is_shortened=is_shortened,
    )


def _waiting(known: VnpuProgress, bounds: Bounds, *, is_short: bool) -> tuple[Verdict, Why]:
    count, pace = known.count(is_short=is_short), bounds.pace(is_short=is_short)
    if not count.confirmations:
        return Verdict.CANDIDATE, Why.JUST_SEEN
    if known.awaits_round(is_short=is_short):
        return Verdict.CONFIRMING, Why.WAITING_ROUND
    if count.confirmations < pace.confirmations:
        return Verdict.CONFIRMING, Why.WAITING_CONFIRMATIONS
    return Verdict.CONFIRMING, Why.WAITING_GRACE


def _judgement(vnpu: VnpuFacts, found: Shield, known: VnpuProgress | None, look: Look) -> Judgement:
    return Judgement(
        vnpu.name,
        vnpu.identity,
        vnpu.card,
        vnpu.vdev,
        found.verdict,
        found.reason,
        found.sentence,
        first_seen_usec=0 if known is None else look.usec(known.first_seen),
        last_reset="" if known is None else known.reset_reason,
        beside=found.beside,
    )
