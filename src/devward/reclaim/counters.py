"""What reclaiming has done since the daemon started, as numbers. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from devward.cluster.claims import Standing
from devward.reclaim.aftermath import Aftermath, Result
from devward.reclaim.confirmation import Progress, set_backs
from devward.reclaim.look import Look
from devward.reclaim.reasons import Verdict
from devward.reclaim.verdict import Judgement


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over looks and destructions."""

    looks: int = 0
    #: Looks at which something of the whole node was unknown.
    unknown_looks: int = 0
    cards_inspected: int = 0
    #: By claims on them, or since something of them is unknown.
    cards_protected: int = 0
    #: With a vNPU that nothing shielded.
    cards_reclaimable: int = 0
    vnpus_inspected: int = 0
    #: In use, held, protected or unknown.
    vnpus_skipped: int = 0
    #: Pinned, or none of devward's to reclaim.
    vnpus_ignored: int = 0
    #: Times that a vNPU lost its confirmations.
    confirmation_resets: int = 0
    vnpus_destroyed: int = 0
    #: Destructions after which the vNPU was not known to be gone.
    destroy_errors: int = 0
    #: Destructions that the broker refused.
    destroy_refusals: int = 0

    def __add__(self, other: "Counters") -> "Counters":
        """Add up."""
        return Counters(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


def of_look(before: Progress, after: Progress, look: Look, judgements: Mapping[str, Judgement]) -> Counters:
    """Return what one look adds."""
    cards = look.snapshot.cards if look.snapshot is not None else ()
    verdicts = [judgement.verdict for judgement in judgements.values()]
    ignored = {Verdict.PINNED, Verdict.UNMANAGED}
    skipped = {Verdict.IN_USE, Verdict.OWNED, Verdict.PROTECTED, Verdict.UNKNOWN}
    return Counters(
        looks=1,
        unknown_looks=int(look.snapshot is not None and not look.snapshot.is_node_known),
        cards_inspected=len(cards),
        cards_protected=sum(card.protection in (Standing.PROTECTED, Standing.UNKNOWN) for card in cards),
        cards_reclaimable=len({one.card for one in judgements.values() if one.verdict not in ignored | skipped}),
        vnpus_inspected=len(verdicts),
        vnpus_skipped=sum(verdict in skipped for verdict in verdicts),
        vnpus_ignored=sum(verdict in ignored for verdict in verdicts),
        confirmation_resets=set_backs(before, after),
    )


def of_destruction(aftermath: Aftermath) -> Counters:
    """Return what one answer of the broker adds."""
    return Counters(
        vnpus_destroyed=int(aftermath.result is Result.DESTROYED),
        destroy_errors=int(aftermath.result in (Result.STILL_PRESENT, Result.UNKNOWN)),
        destroy_refusals=int(aftermath.result is Result.REFUSED),
    )
