"""What reclaiming puts on record beside its destructions: what it refuses and why, what stays, and what others destroyed."""

from collections.abc import Iterable, Mapping, Sequence

from devward.audit import Audit
from devward.model import Outcome
from devward.reclaim import limits, stays
from devward.reclaim.history import Fate, Gone
from devward.reclaim.limits import LIMIT_TEXT, Breaker, Due, Limit
from devward.reclaim.look import Look
from devward.reclaim.verdict import Judgement
from devward.text import printable


class ReclaimTrail:
    """Writes each of them once, for as long as it stays as it is."""

    def __init__(self, audit: Audit) -> None:
        """Nothing was told yet."""
        self._audit = audit
        self._stays = stays.Memory()

    def breaker_latched(self, breaker: Breaker) -> None:
        """Too much is eligible at a time."""
        held = sorted(breaker.held)
        self._audit.event(
            "mass-reclaim",
            f"None is destroyed until somebody releases the breaker. {limits.sentence(breaker)}",
            reason="mass-reclaim",
            count=len(held),
            evidence={"cards": sorted({one.card for one in held}), "vnpus": [one.vdev for one in held]},
        )

    def refused(self, due: Due, code: str, sentence: str) -> None:
        """What is eligible is not destroyed."""
        self._audit.transition(
            f"reclaiming of vNPU {due.vdev}",
            "reclaim-refused",
            f"vNPU {due.vdev} of card {due.card} is not destroyed: {sentence}",
            vnpu=str(due.vdev),
            card=due.card,
            reason=code,
        )

    def limited(self, eligible: Iterable[Due], left: Mapping[str, str], before: Mapping[str, str]) -> None:
        """Put on record that the hour allows no more, once; the other limits are over with the cycle.

        `left` and `before` say by identity why what is eligible was not destroyed, in this cycle and in the one before: a code.
        """
        code = Limit.PER_HOUR
        for due in eligible:
            if left.get(due.identity) == code != before.get(due.identity):
                self.refused(due, code.value, LIMIT_TEXT[code])

    def proved(self, went: Sequence[Gone]) -> None:
        """What was destroyed without devward knowing that then, is gone: the outcome on record says only that it is not known."""
        for gone in went:
            if gone.fate is Fate.DESTROYED:
                what = f"vNPU {gone.was.vdev} ({printable(gone.was.template)}) of card {gone.was.card}"
                self._audit.event(
                    "vnpu-reclaim",
                    f"{what} was destroyed after all: it is gone. To make it again: {gone.recreate}",
                    outcome=Outcome.SUCCESS,
                    request_id=gone.request_id,
                    vnpu=str(gone.was.vdev),
                    card=gone.was.card,
                    pod_uid=gone.was.suspects,
                    evidence={"identity": printable(gone.was.identity), "recreate": gone.recreate},
                )

    def vanished(self, went: Sequence[Gone]) -> None:
        """Somebody else destroyed vNPUs while their containers live, where that is so."""
        for gone in went:
            if gone.fate is Fate.VANISHED_FOREIGN:
                self._audit.transition(
                    f"vNPUs of card {gone.was.card}",
                    "vnpu-vanished",
                    f"vNPU {gone.was.vdev} of card {gone.was.card} was destroyed by somebody else while its container lives",
                    vnpu=str(gone.was.vdev),
                    card=gone.was.card,
                    pod_uid=gone.was.suspects,
                    reason=Fate.VANISHED_FOREIGN.value,
                    evidence={"identity": printable(gone.was.identity), "containers": sorted(map(printable, gone.was.holders))},
                )

    def kept(self, look: Look, judgements: Mapping[str, Judgement]) -> None:
        """Put on record what stays, and why, where that is news."""
        self._stays, fresh = stays.see(self._stays, look, judgements)
        for one in fresh:
            which = ", ".join(map(str, one.vdevs))
            said = f"vNPUs {which} of card {one.card} stay" if len(one.vdevs) > 1 else f"vNPU {which} of card {one.card} stays"
            self._audit.transition(
                f"what stays on card {one.card} ({one.reason})",
                "vnpu-kept",
                f"{said}: {one.sentence}",
                vnpu=tuple(map(str, one.vdevs)),
                card=one.card,
                pod_uid=one.pods,
                reason=one.reason,
            )
