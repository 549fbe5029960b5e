"""Which NPUs may be given to containers, and what their CDI documents say. Pure."""

from collections.abc import Callable, Sequence
from typing import Final

from devward import names
from devward.cdi.decision import Candidate
from devward.cdi.sources import Offer
from devward.config import NpuConfig
from devward.devices.health import sentence
from devward.model import Finding, Health, Identity
from devward.npu.document import NOT_LOOKED_FOR, Entry, Outfit, Owner, render
from devward.npu.families import Shared, shared
from devward.npu.pins import JudgedPin, PinReport, Standing, Target
from devward.npu.views import UNKNOWN_NUMBER, CardHealth, CardView, Use, VnpuView
from devward.reasons import REASON_TEXT, Reason

_HEALTH: Final = {CardHealth.HEALTHY: Health.HEALTHY, CardHealth.UNHEALTHY: Health.UNHEALTHY, CardHealth.UNKNOWN: Health.UNKNOWN}


#: Asked with the die id of an NPU: why one of its vNPUs may be a Pod's, as code and what is to be said; None: no Pod has to do with it.
Claims = Callable[[str], tuple[Reason, str] | None]


def not_asked(_die: str) -> tuple[Reason, str]:
    """Answer as `Claims` where nobody can tell."""
    return Reason.VNPU_CLAIMS_UNKNOWN, ""


def of_cards(cards: Sequence[CardView], outfit: Outfit, config: NpuConfig, *, complete: bool) -> Offer:
    """Return the whole NPUs; one whose physical id is not known or not its own has no name, and is not offered."""
    common = _shared(cards, outfit)
    candidates = tuple(
        Candidate(f"{names.NPU_CDI_KIND}={card.phy_id}", card.node or f"/dev/davinci{card.phy_id}", *_standing(card, common))
        for card in cards
        if card.phy_id != UNKNOWN_NUMBER
    )

    def entries(devices: Sequence[str], members: Sequence[str]) -> list[Entry]:
        every = tuple(_node(device) for device in members)
        return [Entry(_name(device), every if _name(device) == "all" else (_node(device),)) for device in devices]

    # Without the mounts a container would start and not work: what the file says stays until they are known.
    render = _renderer(names.NPU_CDI_KIND, entries, common, outfit, config) if outfit.mounts_known else None
    return Offer(candidates, render, complete=complete)


def of_vnpus(report: PinReport, cards: Sequence[CardView], outfit: Outfit | None, config: NpuConfig, claims: Claims = not_asked) -> Offer:
    """Return the vNPUs that are pinned themselves. Where a kubelet runs, none is offered whose NPU a Pod claims, or may claim."""
    common = _shared(cards, outfit) if outfit is not None else None
    best: dict[int, Candidate] = {}
    for judged in report.pins:
        vdev = Target.parse(judged.pin.target).vdev
        if vdev is None:
            continue
        candidate = Candidate(f"{names.VNPU_CDI_KIND}={vdev}", f"/dev/vdavinci{vdev}", *_pinned(judged, common, cards, outfit, claims))
        # Ids are unique on a host; of several dies that had the id, only one can have it now.
        known = best.get(vdev)
        if known is None or _RANK.index(candidate.identity) < _RANK.index(known.identity):
            best[vdev] = candidate

    def entries(devices: Sequence[str], _members: Sequence[str]) -> list[Entry]:
        return [Entry(_name(device), ((f"/dev/vdavinci{_name(device)}", f"/dev/davinci{_name(device)}"),)) for device in devices]

    # Before anything is known of the NPUs the document cannot be told, and what is in the file stays.
    render = None
    if cards and common is not None and outfit is not None and outfit.mounts_known:
        render = _renderer(names.VNPU_CDI_KIND, entries, common, outfit, config)
    return Offer(tuple(best.values()), render, strict=True)


#: Of several pins with one id, which counts.
_RANK: Final = (Identity.VALID, Identity.UNKNOWN, Identity.INVALID, Identity.MISSING)
#: It is established that the vNPU, or its NPU, is not what it claims to be.
_OTHERS: Final = frozenset({
    Reason.VNPU_ID_SHARED, Reason.VNPU_FUNCTION_MISMATCH, Reason.NPU_NODE_MISMATCH, Reason.NPU_DIE_CHANGED, Reason.NPU_DIE_SHARED,
    Reason.NPU_ID_SHARED, Reason.PIN_OTHER_IDENTITY,
})  # fmt: skip


def _pinned(
    judged: JudgedPin, common: Shared | None, cards: Sequence[CardView], outfit: Outfit | None, claims: Claims
) -> tuple[Identity, Health, Reason]:
    """Return identity, health and their reason of a vNPU that is pinned itself."""
    if judged.standing is Standing.UNMATCHED:
        return Identity.MISSING, Health.MISSING, Reason.PIN_UNMATCHED
    if judged.standing is not Standing.MATCHED:
        identity = Identity.INVALID if judged.reason in _OTHERS else Identity.UNKNOWN
        return identity, Health.UNKNOWN, judged.reason
    if common is None or outfit is None or outfit.kubelet == NOT_LOOKED_FOR:
        return Identity.UNKNOWN, Health.UNKNOWN, Reason.NOT_CHECKED
    die = Target.parse(judged.pin.target).die
    claimed = _claimed(die, outfit, claims)
    if claimed is not None:
        # What is only not known may be known in a moment: it settles.
        return Identity.INVALID if claimed[0] is Reason.VNPU_NPU_CLAIMED else Identity.UNKNOWN, Health.UNKNOWN, claimed[0]
    if common.missing:
        return Identity.MISSING, Health.UNKNOWN, Reason.NPU_SHARED_NODE_MISSING
    health = next((_HEALTH[card.health] for card in cards if card.die_id == die), Health.UNKNOWN)
    return Identity.VALID, health, Reason.OK


def withheld(die: str, cards: Sequence[CardView], outfit: Outfit | None, claims: Claims = not_asked) -> tuple[Reason, str] | None:
    """Return why no vNPU of an NPU is offered to containers, as code and sentence; None if each may be for its own sake."""
    if outfit is None or outfit.kubelet == NOT_LOOKED_FOR:
        return Reason.NOT_CHECKED, REASON_TEXT[Reason.NOT_CHECKED]
    return _claimed(die, outfit, claims) or _lacking(cards, outfit)


def _claimed(die: str, outfit: Outfit, claims: Claims) -> tuple[Reason, str] | None:
    """Return why an NPU may be a Pod's, as code and sentence; without a kubelet there is no Pod, and where nothing is pinned no matter."""
    found = claims(die) if outfit.kubelet not in ("", NOT_LOOKED_FOR) else None
    if found is None:
        return None
    reason, detail = found
    return reason, sentence(reason, detail or outfit.kubelet)


def findings(cards: Sequence[CardView], outfit: Outfit) -> list[Finding]:
    """Return what keeps containers from using NPUs that are in order by themselves."""
    missing = _shared(cards, outfit).missing
    subjects = (f"{names.DEVICE_DIRECTORY}/{name}" for name in missing)
    lacking = [Finding(Reason.NPU_SHARED_NODE_MISSING, path, sentence(Reason.NPU_SHARED_NODE_MISSING, path)) for path in subjects]
    return [*lacking, *outfit.problems] if cards else []


def objection(
    device: str, cards: Sequence[CardView], vnpus: Sequence[VnpuView], outfit: Outfit, claims: Claims = not_asked
) -> tuple[Reason, str] | None:
    """Return why an NPU or vNPU may not be given to a container, as code and sentence; None if nothing is against it.

    Whether a vNPU is pinned is another question.
    """
    name = _name(device)
    if device.startswith(f"{names.VNPU_CDI_KIND}="):
        return _vnpu_objection(name, cards, vnpus, outfit, claims)
    those = [card for card in cards if name in ("all", str(card.phy_id))]
    if not those:
        return Reason.DEVICE_MISSING, REASON_TEXT[Reason.DEVICE_MISSING]
    for card in those:
        if card.reason is not Reason.OK:
            return card.reason, f"{card.node or card.name}: {card.text}"
    lacking = _lacking(cards, outfit)
    if lacking is not None:
        return lacking
    divided = next((vnpu for vnpu in vnpus if vnpu.card in {card.name for card in those}), None)
    if divided is not None:
        return Reason.NPU_DIVIDED, sentence(Reason.NPU_DIVIDED, f"vNPU {divided.vdev} of card {divided.card}")
    return None


def _vnpu_objection(
    name: str, cards: Sequence[CardView], vnpus: Sequence[VnpuView], outfit: Outfit, claims: Claims
) -> tuple[Reason, str] | None:
    those = [vnpu for vnpu in vnpus if str(vnpu.vdev) == name]
    if not those:
        return Reason.DEVICE_MISSING, REASON_TEXT[Reason.DEVICE_MISSING]
    for vnpu in those:
        if vnpu.reason is not Reason.OK:
            return vnpu.reason, f"{vnpu.node or vnpu.name}: {vnpu.text}"
        if vnpu.use is not Use.IDLE:
            return Reason.VNPU_IN_USE, REASON_TEXT[Reason.VNPU_IN_USE]
        die = next((card.die_id for card in cards if card.name == vnpu.card), "")
        claimed = _claimed(die, outfit, claims)
        if claimed is not None:
            return claimed
    return _lacking(cards, outfit)


def _lacking(cards: Sequence[CardView], outfit: Outfit) -> tuple[Reason, str] | None:
    if outfit.unread:
        return Reason.NPU_MOUNTS_UNREADABLE, sentence(Reason.NPU_MOUNTS_UNREADABLE, outfit.unread)
    missing = _shared(cards, outfit).missing
    if not missing:
        return None
    return Reason.NPU_SHARED_NODE_MISSING, sentence(Reason.NPU_SHARED_NODE_MISSING, f"{names.DEVICE_DIRECTORY}/{missing[0]}")


def _standing(card: CardView, common: Shared) -> tuple[Identity, Health, Reason]:
    """Return identity, health and their reason: an NPU without the nodes that all need is not there for containers."""
    if card.identity is Identity.VALID and common.missing:
        return Identity.MISSING, _HEALTH[card.health], Reason.NPU_SHARED_NODE_MISSING
    return card.identity, _HEALTH[card.health], card.reason


def _shared(cards: Sequence[CardView], outfit: Outfit) -> Shared:
    return shared(sorted({card.chip for card in cards}), outfit.nodes)


def _renderer(
    kind: str,
    entries: Callable[[Sequence[str], Sequence[str]], list[Entry]],
    common: Shared,
    outfit: Outfit,
    config: NpuConfig,
) -> Callable[[Sequence[str], Sequence[str]], bytes]:
    owner = Owner(config.device_uid, config.device_gid)
    return lambda devices, members: render(kind, entries(devices, members), common.nodes, outfit, owner)


def _name(device: str) -> str:
    return device.rpartition("=")[2]


def _node(device: str) -> tuple[str, str]:
    path = f"{names.DEVICE_DIRECTORY}/davinci{_name(device)}"
    return path, path
