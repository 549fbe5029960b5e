"""What became of vNPUs: for people, and never evidence. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from devward.cluster.claimants import Claimant
from devward.reclaim.aftermath import Result
from devward.reclaim.confirmation import Progress
from devward.reclaim.leftby import LeftBy, left_by
from devward.reclaim.look import Look, VnpuFacts
from devward.reclaim.reasons import WHY_TEXT, Verdict, Why
from devward.reclaim.verdict import Judgement

#: vNPUs that went and are kept.
MAX_ENTRIES: Final = 256


class Fate(StrEnum):
    """How a vNPU went."""

    #: devward destroyed it.
    DESTROYED = Verdict.DESTROYED.value
    #: Somebody else destroyed it, and its container lives.
    VANISHED_FOREIGN = Verdict.VANISHED_FOREIGN.value
    #: It went without devward; its owner may have ended, which is how vNPUs go.
    VANISHED = "vanished"
    #: Another one has its id by now, or the same one with other marks.
    REPLACED = "replaced"


FATE_WHY: Final[Mapping[Fate, Why]] = {
    Fate.DESTROYED: Why.RECLAIMED,
    Fate.VANISHED_FOREIGN: Why.GONE_UNDER_ITS_OWNER,
    Fate.VANISHED: Why.WENT,
    Fate.REPLACED: Why.REPLACED,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One vNPU, as it was seen last."""

    vdev: int
    identity: str
    #: Name of its card.
    card: str
    template: str
    #: -1 where that is not known.
    cores: float
    #: By the last look that saw it.
    verdict: Verdict
    reason: str
    first_seen_usec: int = 0
    #: Pods that may have left it, by UID.
    suspects: tuple[str, ...] = ()
    #: Whose Pods these all are; None: of several, or there is none.
    left_by: LeftBy | None = None
    #: Containers that named it, by namespace and id.
    holders: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Gone:
    """One vNPU that went."""

    at_usec: int
    fate: Fate
    was: Entry
    #: Of the records that belong to it; empty where devward did nothing.
    request_id: str = ""
    #: The command that makes it again; empty where devward did nothing.
    recreate: str = ""

    @property
    def reason(self) -> Why:
        """Why it is not there any more."""
        return FATE_WHY[self.fate]

    @property
    def sentence(self) -> str:
        """The same for people."""
        return WHY_TEXT[self.reason]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A destruction that the broker was asked for."""

    request_id: str
    #: When it was over, in seconds of the monotonic clock.
    at: float
    #: The command that makes the vNPU again.
    recreate: str


@dataclass(frozen=True, slots=True)
class History:
    """What happened."""

    #: The latest last; at most MAX_ENTRIES.
    gone: tuple[Gone, ...] = ()
    #: What there was at the last look, by identity.
    present: Mapping[str, Entry] = field(default_factory=dict)
    #: By identity, those of which it is not known what came of them.
    attempts: Mapping[str, Attempt] = field(default_factory=dict)


def see(history: History, look: Look, progress: Progress, judgements: Mapping[str, Judgement]) -> tuple[History, tuple[Gone, ...]]:
    """Return the history with a look, and what went since the one before.

    Whatever could not be listed is in the picture of NPUs as it was seen last, so that what is not in it is gone.
    """
    known = {one.uid: one for one in look.snapshot.claimants} if look.snapshot is not None else {}
    present = {
        vnpu.identity: _entry(vnpu, progress, judgements, history.present.get(vnpu.identity), known) for vnpu in look.vnpus if vnpu.identity
    }
    ids = {(vnpu.card, vnpu.vdev) for vnpu in look.vnpus}
    went = tuple(
        _gone(look.at_usec, _fate(entry, history, look, is_id_there=(entry.card, entry.vdev) in ids), entry, history.attempts.get(identity))
        for identity, entry in history.present.items()
        if identity not in present
    )
    # One that is listed by a look of after the attempt was not destroyed by it.
    attempts = {identity: attempt for identity, attempt in history.attempts.items() if identity in present and look.begun <= attempt.at}
    return History(_bounded((*history.gone, *went)), present, attempts), went


def act(history: History, identity: str, attempt: Attempt, result: Result, *, at_usec: int) -> tuple[History, tuple[Gone, ...]]:
    """Return the history with what came of a destruction of devward's, and the vNPU if that is gone."""
    entry = history.present.get(identity)
    if entry is None or result not in (Result.DESTROYED, Result.UNKNOWN):
        return history, ()
    if result is Result.UNKNOWN:
        return replace(history, attempts={**history.attempts, identity: attempt}), ()
    went = (_gone(at_usec, Fate.DESTROYED, entry, attempt),)
    present = {key: one for key, one in history.present.items() if key != identity}
    return History(_bounded((*history.gone, *went)), present, history.attempts), went


def _entry(
    vnpu: VnpuFacts, progress: Progress, judgements: Mapping[str, Judgement], before: Entry | None, claimants: Mapping[str, Claimant]
) -> Entry:
    known, judgement = progress.vnpus.get(vnpu.identity), judgements.get(vnpu.name)
    suspects = known.suspects if known is not None else ()
    return Entry(
        vnpu.vdev,
        vnpu.identity,
        vnpu.card,
        vnpu.template,
        vnpu.cores,
        judgement.verdict if judgement is not None else Verdict.UNKNOWN,
        judgement.reason if judgement is not None else "",
        judgement.first_seen_usec if judgement is not None else 0,
        suspects,
        # A Pod is known to the API server when it becomes a suspect, and may be gone soon after.
        before.left_by if before is not None and before.suspects == suspects else left_by(suspects, claimants),
        vnpu.holders,
    )


def _fate(entry: Entry, history: History, look: Look, *, is_id_there: bool) -> Fate:
    if is_id_there:
        return Fate.REPLACED
    if entry.identity in history.attempts:
        return Fate.DESTROYED
    # An owner that ends takes its vNPU with it: only where it is known to live was it somebody else.
    return Fate.VANISHED_FOREIGN if look.living is not None and entry.holders & look.living else Fate.VANISHED


def _gone(at_usec: int, fate: Fate, was: Entry, attempt: Attempt | None) -> Gone:
    return Gone(at_usec, fate, was) if attempt is None else Gone(at_usec, fate, was, attempt.request_id, attempt.recreate)


def _bounded(gone: tuple[Gone, ...]) -> tuple[Gone, ...]:
    return gone[-MAX_ENTRIES:]
