"""What is published of who owns what: the latest snapshot as the bus, Explain and Describe show it. Pure.

A snapshot is of one moment. One that is too old, or of another card than the one that has its name by now, says nothing any more, and what
is not said counts as use.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from devward.cluster.claimants import Claimant
from devward.cluster.claims import REASON_TEXT as CLAIM_TEXT
from devward.cluster.claims import Claim, Standing
from devward.cluster.hami import REFUSAL_TEXT
from devward.cluster.node import NodeRefusal
from devward.cluster.observations import ROWS, Look, Scope
from devward.cluster.parts import Source
from devward.cluster.statement import SourceSight, VnpuSight
from devward.cluster.views import CardState, Snapshot, Unknown
from devward.model import Finding
from devward.npu.views import UNKNOWN_NUMBER, CardView, Management, Protection
from devward.reasons import REASON_TEXT, Reason
from devward.text import printable

#: Seconds after which a snapshot says nothing any more: three looks that did not come about.
LASTS: Final = 180.0
#: Claims that are named in one sentence.
_TOLD_CLAIMS: Final = 3
#: What findings are about.
SUBJECT: Final = "the owners of vNPUs"

_PROTECTION: Final = {
    Standing.PROTECTED: Protection.PROTECTED,
    Standing.UNKNOWN: Protection.UNKNOWN,
    Standing.CANDIDATE: Protection.CANDIDATE,
    Standing.NONE: Protection.NONE,
}
_SOURCES: Final = frozenset(source.value for source in Source)
#: What only takes time, and is a finding where it takes more than the seconds below.
_PASSING: Final = frozenset(
    {Look.PART_OLD, Look.PART_AHEAD, Look.NODE_ADOPTED, NodeRefusal.LEASE_UNSEEN, NodeRefusal.KUBELET_YOUNG, Look.NOT_LISTED}
)
_PASSES_WITHIN: Final = 900.0
#: What is unknown in a look without Pods only because of how seldom there is one.
_OF_SELDOM_LOOKS: Final = frozenset({Look.NOT_LISTED, NodeRefusal.LEASE_UNSEEN})


@dataclass(frozen=True, slots=True)
class Ownership:
    """What one look gave, and what goes with it."""

    #: None: nobody was asked.
    snapshot: Snapshot | None = None
    #: The Pods were asked for at that look: where it does not matter whose the vNPUs are nobody is, and nothing is said of Pods.
    is_asked: bool = False
    #: When a list of them came last, in microseconds since 1970; 0: never.
    listed_usec: int = 0
    #: What the host shows of the vNPUs that were asked about, by their names.
    sights: Mapping[str, VnpuSight] = field(default_factory=dict)
    #: How much of each of its sources the host let be seen, by name.
    host: Mapping[str, SourceSight] = field(default_factory=dict)
    #: No kubelet runs on this host: no Pod can own anything here, and nothing is ever destroyed.
    is_without_kubelet: bool = False
    #: Of the certificate with which the API server is asked; 0 where there is none. The sentence is empty while all is well.
    certificate_expires_usec: int = 0
    certificate_warning: str = ""

    # --- of the node ---------------------------------------------------------------------------------------------------
    @property
    def blocked(self) -> tuple[Unknown, ...]:
        """What is unknown of the whole node. What has one cause is one, however many sources it is of."""
        return tuple({(one.reason, one.sentence, _pod_of(one)): one for one in reversed(self._of_node)}.values())[::-1]

    @property
    def _of_node(self) -> list[Unknown]:
        without = frozenset() if self.is_asked else _OF_SELDOM_LOOKS
        unknowns = self.snapshot.unknowns if self.snapshot is not None else ()
        return [one for one in unknowns if one.scope is Scope.NODE and one.reason not in without]

    @property
    def blocked_reasons(self) -> tuple[str, ...]:
        """The same for the bus: each code once, with the UID of the Pod where it is because of one."""
        return tuple(dict.fromkeys(f"{one.reason} {printable(_pod_of(one))}".rstrip() for one in self.blocked))

    @property
    def blocked_since_usec(self) -> int:
        """Since when anything is unknown of the node; 0: nothing is."""
        return min((one.since_usec for one in self._of_node), default=0)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What an administrator should know. A host without a kubelet has nothing to be mended, and what passes by itself is none."""
        found = []
        if self.certificate_warning:
            found.append(Finding(Reason.CLUSTER_CERTIFICATE, SUBJECT, self.certificate_warning))
        for one in {one.reason: one for one in reversed(self.blocked)}.values():
            if one.reason == Look.MEMORY_UNSAVED:
                found.append(Finding(Reason.OWNERS_NOT_KEPT, SUBJECT, one.sentence))
            elif not self._is_passing(one) and not self.is_without_kubelet:
                found.append(Finding(Reason.OWNERS_UNKNOWN, SUBJECT, f"{one.sentence} ({one.reason})"))
        return tuple(found)

    def _is_passing(self, one: Unknown) -> bool:
        lasted = self.snapshot.at_usec - one.since_usec if self.snapshot is not None else 0
        return one.reason in _PASSING and lasted < _PASSES_WITHIN * 1e6

    # --- of cards ------------------------------------------------------------------------------------------------------
    def state_of(self, card: CardView, now: float) -> CardState | None:
        """Return what is known of a card; None where it is not known, or was of another card. `now` by the monotonic clock."""
        if self.snapshot is None or not 0 <= now - self.snapshot.at <= LASTS:
            return None
        state = next((state for state in self.snapshot.cards if state.name == card.name), None)
        if state is None or (state.phy, state.die) != (card.phy_id, card.die_id.upper()):
            return None
        return state

    def dressed(self, card: CardView, now: float) -> CardView:
        """Return a card as it is published."""
        if self.snapshot is None:
            return card
        state = self.state_of(card, now)
        if state is None:
            return replace(card, protection=Protection.UNKNOWN if self.is_asked else Protection.NOT_EVALUATED)
        claimed = state.claimed_cores if self.is_asked else None
        return replace(
            card,
            managed=_management(state),
            protection=_PROTECTION[state.protection] if self.is_asked else Protection.NOT_EVALUATED,
            claims=tuple(map(printable, state.claimants)) if self.is_asked else (),
            claimed_cores=UNKNOWN_NUMBER if claimed is None else claimed,
        )

    def objection(self, card: CardView | None, now: float) -> tuple[Reason, str] | None:
        """Return why a vNPU of a card may be a Pod's, as code and what is to be said in particular; None: no Pod has to do with the card.

        Of a Pod that could open every device it is not said that it has any: that it may be in the way is another question, of the vNPU.
        Everybody may hear it: it names no workload but by UID.
        """
        if self.snapshot is None or not self.is_asked or not self.snapshot.is_node_known or card is None:
            first = next(iter(self.blocked), None)
            return Reason.VNPU_CLAIMS_UNKNOWN, first.reason if first is not None else ""
        state = self.state_of(card, now)
        if state is None:
            return Reason.VNPU_CLAIMS_UNKNOWN, "what was known of it is too old"
        claims = [claim for claim in state.claims if not claim.unless_clean]
        if claims:
            uids = sorted({printable(claim.uid) for claim in claims})
            more = f" and {len(uids) - _TOLD_CLAIMS} more" if len(uids) > _TOLD_CLAIMS else ""
            return Reason.VNPU_NPU_CLAIMED, ", ".join(uids[:_TOLD_CLAIMS]) + more
        if state.protection_if_clean is not Standing.NONE:
            return Reason.VNPU_CLAIMS_UNKNOWN, ""
        return None

    # --- as JSON -------------------------------------------------------------------------------------------------------
    def describe_node(self, *, full: bool) -> dict[str, Any] | None:
        """Return what is known of the node; None: nobody was asked. Without `full`, nothing that names other people's workloads."""
        snapshot = self.snapshot
        if snapshot is None:
            return None
        return {
            "asked": self.is_asked,
            "looked_usec": snapshot.at_usec,
            "listed_usec": self.listed_usec,
            "deferred": snapshot.is_deferred,
            "sources": [{"source": use.source, "age": round(use.age, 3), "read": use.is_read} for use in snapshot.sources],
            "host": {name: _source(sight, full=full) for name, sight in self.host.items()},
            "blocked": [_unknown(one, full=full) for one in self.blocked],
        }

    def describe_card(self, card: CardView, now: float, *, full: bool) -> dict[str, Any]:
        """Return what is known of a card; as describe_node()."""
        shown = self.dressed(card, now)
        told: dict[str, Any] = {"managed": shown.managed, "protection": shown.protection, "claims": []}
        state = self.state_of(card, now)
        if self.snapshot is None or state is None:
            return told
        told["unmanaged_reason"] = state.unmanaged or ""
        told["unmanaged_text"] = REFUSAL_TEXT[state.unmanaged] if state.unmanaged is not None else ""
        told["unknowns"] = [_unknown(one, full=full) for one in self.snapshot.unknowns if one.card == card.name]
        told["protection_if_clean"] = _PROTECTION[state.protection_if_clean] if self.is_asked else Protection.NOT_EVALUATED
        if self.is_asked:
            offset = self.snapshot.at_usec - self.snapshot.at * 1e6
            known = {claimant.uid: claimant for claimant in self.snapshot.claimants}
            told["claims"] = [_claim(claim, known.get(claim.uid), offset, full=full) for claim in state.claims]
        return told

    def describe_sight(self, vnpu: str, *, full: bool) -> dict[str, Any] | None:
        """Return what the host shows of a vNPU, by its name; None: it was not asked."""
        sight = self.sights.get(vnpu)
        if sight is None:
            return None
        told: dict[str, Any] = {
            "finding": sight.finding,
            "descriptors": sight.descriptors,
            "bundles": sight.bundles,
            "uda": sight.uda,
        }
        return told | ({"reasons": list(sight.reasons)} if full else {})

    def describe(self, cards: Iterable[CardView], now: float, *, full: bool) -> dict[str, Any] | None:
        """Return everything, for Describe."""
        node = self.describe_node(full=full)
        if node is None:
            return None
        return node | {"cards": [{"name": card.name, **self.describe_card(card, now, full=full)} for card in cards]}


def _management(state: CardState) -> Management:
    if state.is_managed:
        return Management.MANAGED
    return Management.UNKNOWN if state.unmanaged is None else Management.UNMANAGED


def _pod_of(one: Unknown) -> str:
    """Return the UID of the Pod that something is unknown because of; empty where it is because of a source."""
    return "" if one.who in _SOURCES else one.who


def general_sentence(code: str) -> str:
    """Return what everybody may hear of something that is unknown: it names no workload."""
    row = ROWS.get(code)
    return row.sentence if row is not None else REASON_TEXT[Reason.OWNERS_UNKNOWN]


def _unknown(one: Unknown, *, full: bool) -> dict[str, Any]:
    text = one.sentence if full else general_sentence(one.reason)
    return {"reason": one.reason, "who": printable(one.who), "since_usec": one.since_usec, "text": text}


def _source(sight: SourceSight, *, full: bool) -> dict[str, Any]:
    """Return what is said of a source of the host; what a doubt is about may be the name of a workload."""
    doubts = [{"code": doubt.code} | ({"subject": doubt.subject, "error": doubt.error} if full else {}) for doubt in sight.doubts]
    return {"state": sight.state, "doubts": doubts, "more": sight.more}


def _claim(claim: Claim, claimant: Claimant | None, offset_usec: float, *, full: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "uid": printable(claim.uid),
        "standing": claim.standing,
        "reason": claim.reason,
        "text": claim.sentence if full else CLAIM_TEXT[claim.reason],
        "since_usec": int(claim.since * 1e6 + offset_usec),
        "unless_clean": claim.unless_clean,
        "sources": list(claimant.traces) if claimant is not None else [],
    }
    if full and claimant is not None and claimant.name:
        told["pod"] = f"{printable(claimant.namespace)}/{printable(claimant.name)}"
    return told
