"""A desk that takes looks at a made-up node, one interval after the other: by default every card is HAMi's, and nobody has anything."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from devward.cluster.claimants import Claimant
from devward.cluster.claims import Claim, ClaimReason, Standing, strongest
from devward.cluster.evidence import Finding
from devward.cluster.hami import CardRefusal
from devward.cluster.observations import Scope
from devward.cluster.parts import Source
from devward.cluster.views import CardState, Reset, Snapshot, SourceUse, Unknown
from devward.npu.facts import Expected, Node
from devward.npu.numbering import vfid_of
from devward.npu.views import Use
from devward.reclaim.confirmation import Bounds, Progress, VnpuProgress, step
from devward.reclaim.look import Cut, Interruption, Look, Reach, VnpuFacts
from devward.reclaim.verdict import Judgement, judge

#: 2026-12-01T00:00:00Z
BEGIN_USEC = 1_796_083_200_000_000
BEGIN = 10_000.0
BOOT_ID = "0d3c1c8e-94ae-4a43-a4ff-5ad1a1d0f9b0"
#: Age of the oldest part of a look, in seconds.
AGE = 1.0


def die_of(phy: int) -> str:
    """Return the die id of a card."""
    return f"{phy:08X}-00000002-00000003-00000004-00000005"


def card_of(phy: int = 0, **more: Any) -> CardState:
    """Return a card of HAMi's that nobody claims."""
    state = CardState(f"p{phy:03d}", phy, die_of(phy), Standing.NONE, Standing.NONE, is_managed=True)
    return replace(state, **more)


def claimed(card: CardState, *claims: Claim) -> CardState:
    """Return a card with these claims, as a snapshot joins them."""
    whole = strongest(claim.standing for claim in claims)
    if_clean = strongest(claim.standing for claim in claims if not claim.unless_clean)
    return replace(card, claims=claims, protection=whole, protection_if_clean=if_clean)


def claim(standing: Standing = Standing.CANDIDATE, reason: ClaimReason | None = None, uid: str = "pod-1", **more: Any) -> Claim:
    """Return a claim; by default of a Pod that cannot start."""
    usual = {
        Standing.PROTECTED: ClaimReason.RUNNING,
        Standing.UNKNOWN: ClaimReason.REASON_UNKNOWN,
        Standing.CANDIDATE: ClaimReason.CANNOT_START,
    }
    return Claim(uid, standing, reason or usual[standing], **more)


RUNNING = claim(Standing.PROTECTED)
UNTOLD = claim(Standing.UNKNOWN)
PRIVILEGED = claim(Standing.PROTECTED, ClaimReason.PRIVILEGED, unless_clean=True)


def vnpu_of(vdev: int = 100, **more: Any) -> VnpuFacts:
    """Return a vNPU that is idle and that nobody of the host has, on the card whose window the id is of."""
    facts = VnpuFacts(
        name=f"v{vdev:04d}",
        identity=f"{die_of((vdev - 100) // 16)}/{vdev}/vir05_1c_8g/made-1",
        card=f"p{(vdev - 100) // 16:03d}",
        vdev=vdev,
        template="vir05_1c_8g",
        cores=5.0,
        use=Use.IDLE,
        descriptors=Finding.CLEAN,
        bundles=Finding.CLEAN,
        host=Finding.CLEAN,
    )
    return replace(facts, **more)


def expected_of(vdev: int = 100, **more: Any) -> Expected:
    """Return what the broker is to find of such a vNPU."""
    phy = (vdev - 100) // 16
    expected = Expected(BOOT_ID, phy, 0, phy, die_of(phy), vdev, vfid_of(vdev) or 0, "vir05_1c_8g", Node(4711, 1, 236, vdev))
    return replace(expected, **more)


def unknown(reason: str = "answer-timeout", *, card: str = "") -> Unknown:
    """Return something that cannot be told, of a card or of the node."""
    return Unknown(Scope.CARD if card else Scope.NODE, reason, "pods", BEGIN_USEC, "It cannot be told.", card)


def cut(what: Cut, *which: str) -> Interruption:
    """Return an interruption."""
    return Interruption(what, frozenset(which))


def snapshot_of(
    at: float,
    cards: Iterable[CardState],
    unknowns: Iterable[Unknown] = (),
    resets: Iterable[Reset] = (),
    *,
    age: float = AGE,
    is_deferred: bool = False,
    claimants: tuple[Claimant, ...] = (),
) -> Snapshot:
    """Return a snapshot as the join makes it: what is unknown of the node makes every card unknown, and what protects sets back."""
    unknowns = tuple(unknowns)
    cards = tuple(cards)
    found = set(resets) | {Reset(one.scope, one.reason, one.card) for one in unknowns}
    for card in cards:
        for one in card.claims:
            if one.standing is Standing.PROTECTED:
                found.add(Reset(Scope.CARD, one.reason.value, card.name, one.unless_clean))
            elif one.standing is Standing.UNKNOWN:
                unknowns = (*unknowns, Unknown(Scope.CARD, one.reason.value, one.uid, BEGIN_USEC, one.sentence, card.name))
                found.add(Reset(Scope.CARD, one.reason.value, card.name))
        if card.unmanaged is not None:
            found.add(Reset(Scope.CARD, card.unmanaged.value, card.name))
    if any(one.scope is Scope.NODE for one in unknowns):
        cards = tuple(replace(card, protection=Standing.UNKNOWN, protection_if_clean=Standing.UNKNOWN) for card in cards)
    return Snapshot(
        at=at,
        at_usec=BEGIN_USEC + round((at - BEGIN) * 1_000_000),
        cards=cards,
        unknowns=tuple(sorted(unknowns, key=lambda one: (one.scope is not Scope.NODE, one.card, one.reason))),
        resets=tuple(sorted(found, key=str)),
        sources=(SourceUse(Source.NPUS, age, is_read=True),),
        is_deferred=is_deferred,
        claimants=claimants,
    )


def unmanaged(card: CardState, refusal: CardRefusal = CardRefusal.NOT_REGISTERED) -> CardState:
    """Return a card that is not HAMi's."""
    return replace(card, is_managed=False, unmanaged=refusal)


@dataclass
class ReclaimDesk:
    """Takes one look after the other, and remembers."""

    cards: tuple[CardState, ...] = (card_of(0), card_of(1))
    vnpus: tuple[VnpuFacts, ...] = (vnpu_of(100),)
    bounds: Bounds = field(default_factory=Bounds)
    reach: Reach = field(default_factory=Reach)
    now: float = BEGIN
    progress: Progress = field(default_factory=Progress)
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    last: Look | None = None

    def see(self, at: float, **more: Any) -> Look:
        """Return a look without taking it in; `claims` are of card 0."""
        cards = more.pop("cards", self.cards)
        if "claims" in more:
            cards = (claimed(cards[0], *more.pop("claims")), *cards[1:])
        parts = {name: more.pop(name) for name in ("unknowns", "resets", "age", "is_deferred", "claimants") if name in more}
        snapshot = snapshot_of(at, cards, **parts)
        vnpus = more.pop("vnpus", self.vnpus)
        return Look(at, snapshot.at_usec, more.pop("snapshot", snapshot), vnpus, reach=self.reach, **more)

    def take(self, look: Look) -> Judgement | None:
        """Take a look in; return the verdict on the first vNPU."""
        self.last = look
        self.now = max(self.now, look.at)
        self.progress = step(self.progress, look, self.bounds)
        self.judgements = judge(self.progress, look, self.bounds)
        return self.judgements[look.vnpus[0].name] if look.vnpus else None

    def look(self, after: float = 60.0, **more: Any) -> Judgement:
        """Take the next look, some time after the last; return the verdict on the first vNPU."""
        found = self.take(self.see(self.now + after, **more))
        assert found is not None
        return found

    def wait(self, seconds: float, every: float = 60.0, **more: Any) -> Judgement:
        """Look at every interval for so long; return the last verdict on the first vNPU."""
        end, found = self.now + seconds, None
        while self.now < end:
            found = self.look(min(every, end - self.now), **more)
        assert found is not None
        return found

    def known(self, index: int = 0) -> VnpuProgress:
        """Return how far a vNPU has come."""
        return self.progress.vnpus[self.vnpus[index].identity]
