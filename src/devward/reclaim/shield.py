"""What keeps a vNPU from being reclaimed at all, by one look. Pure.

The rules stand in the order of their weight; the first that holds is the verdict, and while any holds nothing counts:

    in-use      the driver's flag is set. 0 proves nothing, so it is never more than one condition of many. What else there is may show
                nobody who uses it: then the flag may have stayed behind.
    pinned      a pin names it or its NPU, or may mean it.
    owned       a process or a container of this host has this very vNPU.
    protected   a Pod has the card, or may have it, or a container of whomever names it. Claims of Pods that may open any device fall where
                a scan of descriptors is clean.
    unknown     anything of the node, of the card or of the vNPU itself cannot be told.
    unmanaged   the card is not one of `[reclaim] cards`, or it or the vNPU is not HAMi's, or the vNPU is one for virtual machines.
    unknown     the host was not searched for who holds it.

While something of the node is unknown a snapshot has every card as unknown, whatever its claims are.
"""

from dataclasses import dataclass, replace

from devward.cluster.claims import Standing
from devward.cluster.evidence import Finding
from devward.cluster.hami import REFUSAL_TEXT, CardRefusal
from devward.cluster.observations import Scope
from devward.cluster.views import CardState, Reset, Snapshot
from devward.model import Manage
from devward.npu.views import Use
from devward.reclaim.look import Look, PinHold, VnpuFacts
from devward.reclaim.reasons import WHY_TEXT, Verdict, Why
from devward.text import printable


@dataclass(frozen=True, slots=True)
class Shield:
    """Why a vNPU stays, whatever time goes by."""

    verdict: Verdict
    #: A stable code, of `Why` or of where it was found.
    reason: str
    #: For people, fit to be shown.
    sentence: str
    #: Of one in use: whether anything but the driver's flag speaks against reclaiming it; UNKNOWN: no search says that nothing does.
    beside: Finding = Finding.HELD


def shield(vnpu: VnpuFacts, look: Look) -> Shield | None:
    """Return why a vNPU stays; None: nothing at this look speaks against it."""
    if vnpu.use is Use.IN_USE:
        return _used(vnpu, look)
    if vnpu.pin in (PinHold.PINNED, PinHold.MAYBE):
        return _because(Verdict.PINNED, Why.PINNED if vnpu.pin is PinHold.PINNED else Why.MAYBE_PINNED)
    if vnpu.host is Finding.HELD or vnpu.descriptors is Finding.HELD:
        return _because(Verdict.OWNED, Why.HELD_ON_HOST, "; ".join(vnpu.host_reasons))
    snapshot = look.snapshot
    if snapshot is None:
        return _because(Verdict.UNKNOWN, Why.NOT_EVALUATED)
    card = look.card(vnpu.card)
    if card is not None and standing(vnpu, card) is Standing.PROTECTED:
        return _claimed(vnpu, card)
    if snapshot.is_node_known and vnpu.card_named_by:
        return _because(Verdict.PROTECTED, Why.NAMED_BY_CONTAINER, printable(vnpu.card_named_by))
    return _unknown(vnpu, snapshot, card) or _unmanaged(vnpu, look, card) or _unasked(vnpu)


def standing(vnpu: VnpuFacts, card: CardState) -> Standing:
    """Return what the claims on a card mean for one of its vNPUs."""
    return card.protection_if_clean if vnpu.descriptors is Finding.CLEAN else card.protection


def reaches(reset: Reset, card: str) -> bool:
    """Whether a reset of a snapshot is of a card: of this one by its name, of all of them, or of the node."""
    return reset.scope is Scope.NODE or reset.card in ("", card)


def concerns(reset: Reset, vnpu: VnpuFacts, look: Look) -> bool:
    """Whether a reset of a snapshot sets this vNPU back."""
    if not reaches(reset, vnpu.card):
        return False
    if reset.scope is Scope.NODE or not reset.card:
        return True
    if reset.unless_clean and vnpu.descriptors is Finding.CLEAN:
        return False
    # Where every card is reclaimed on, that HAMi does not hand it out sets nothing back.
    card = look.card(vnpu.card)
    is_of_hami = card is not None and card.unmanaged is not None and reset.reason == card.unmanaged.value
    return not (is_of_hami and look.reach.manage is Manage.ALL)


def _used(vnpu: VnpuFacts, look: Look) -> Shield:
    beside = _beside_flag(vnpu, look)
    found = _because(Verdict.IN_USE, Why.DRIVER_SAYS_USED, "nobody is seen who does" if beside is Finding.CLEAN else "")
    return replace(found, beside=beside)


def _beside_flag(vnpu: VnpuFacts, look: Look) -> Finding:
    # What names the vNPU or its card is there whether or not Pods were listed, which they are not while no vNPU is idle.
    if vnpu.holders or vnpu.card_named_by:
        return Finding.HELD
    clean = Finding.CLEAN
    other = shield(replace(vnpu, use=Use.IDLE, host=clean, descriptors=clean), look)
    if other is not None and not (look.snapshot is None and other.verdict is Verdict.UNKNOWN):
        return Finding.HELD
    # Not the whole of the host: /proc/uda has the driver's own word once more.
    return clean if vnpu.descriptors is vnpu.bundles is clean else Finding.UNKNOWN


def _unknown(vnpu: VnpuFacts, snapshot: Snapshot, card: CardState | None) -> Shield | None:
    if not snapshot.is_node_known:
        first = next(unknown for unknown in snapshot.unknowns if unknown.scope is Scope.NODE)
        return Shield(Verdict.UNKNOWN, first.reason, first.sentence)
    if vnpu.fault:
        return Shield(Verdict.UNKNOWN, vnpu.fault, vnpu.fault_text)
    if card is None:
        return _because(Verdict.UNKNOWN, Why.CARD_NOT_SEEN)
    if doubt := next((unknown for unknown in snapshot.unknowns if unknown.card == card.name), None):
        return Shield(Verdict.UNKNOWN, doubt.reason, doubt.sentence)
    if standing(vnpu, card) is Standing.UNKNOWN:
        return _because(Verdict.UNKNOWN, Why.CARD_UNKNOWN)
    if vnpu.use is not Use.IDLE:
        return _because(Verdict.UNKNOWN, Why.USE_NOT_TOLD)
    if not vnpu.identity:
        return _because(Verdict.UNKNOWN, Why.IDENTITY_UNKNOWN)
    if vnpu.pin is not PinHold.NONE:
        return _because(Verdict.UNKNOWN, Why.PINS_UNREADABLE)
    if vnpu.is_asked and not _is_clean(vnpu):
        return _because(Verdict.UNKNOWN, Why.HOST_UNKNOWN, "; ".join(vnpu.host_reasons))
    return None


def _unmanaged(vnpu: VnpuFacts, look: Look, card: CardState | None) -> Shield | None:
    if card is None or not look.reach.selects(card):
        return _because(Verdict.UNMANAGED, Why.NOT_SELECTED)
    if not vnpu.has_node:
        return _because(Verdict.UNMANAGED, Why.NO_NODE)
    if look.reach.manage is Manage.ALL:
        return None
    if not card.is_managed:
        return _refused(card.unmanaged) if card.unmanaged is not None else _because(Verdict.UNMANAGED, Why.NOT_HAMIS)
    return _refused(vnpu.refusal) if vnpu.refusal is not None else None


def _unasked(vnpu: VnpuFacts) -> Shield | None:
    # After everything else: for what stays anyway the host is not searched again (asking.py), and its verdict must not change with that.
    return None if _is_clean(vnpu) else _because(Verdict.UNKNOWN, Why.HOST_NOT_ASKED)


def _is_clean(vnpu: VnpuFacts) -> bool:
    return vnpu.host is vnpu.descriptors is Finding.CLEAN


def _claimed(vnpu: VnpuFacts, card: CardState) -> Shield:
    is_clean = vnpu.descriptors is Finding.CLEAN
    for claim in card.claims:
        if claim.standing is Standing.PROTECTED and not (claim.unless_clean and is_clean):
            return Shield(Verdict.PROTECTED, claim.reason.value, claim.sentence)
    return _because(Verdict.PROTECTED, Why.CARD_PROTECTED)


def _refused(refusal: CardRefusal) -> Shield:
    return Shield(Verdict.UNMANAGED, refusal.value, REFUSAL_TEXT[refusal])


def _because(verdict: Verdict, why: Why, detail: str = "") -> Shield:
    text = WHY_TEXT[why]
    return Shield(verdict, why.value, f"{text[:-1]} ({detail})." if detail else text)
