"""Which NPUs may be given to containers, and what their CDI documents say. Pure."""

from collections.abc import Callable, Sequence
from typing import Final

from devward import names
from devward.cdi.decision import Candidate
from devward.cdi.sources import Offer
from devward.config import NpuConfig
from devward.devices.health import sentence
from devward.model import REASON_TEXT, Finding, Health, Identity, Reason
from devward.npu.document import Entry, Outfit, Owner, render
from devward.npu.families import Shared, shared
from devward.npu.views import UNKNOWN_NUMBER, CardHealth, CardView, VnpuView

_HEALTH: Final = {CardHealth.HEALTHY: Health.HEALTHY, CardHealth.UNHEALTHY: Health.UNHEALTHY, CardHealth.UNKNOWN: Health.UNKNOWN}


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

    return Offer(candidates, _renderer(names.NPU_CDI_KIND, entries, common, outfit, config), complete=complete)


def findings(cards: Sequence[CardView], outfit: Outfit) -> list[Finding]:
    """Return what keeps containers from using NPUs that are in order by themselves."""
    missing = _shared(cards, outfit).missing
    subjects = (f"{names.DEVICE_DIRECTORY}/{name}" for name in missing)
    lacking = [Finding(Reason.NPU_SHARED_NODE_MISSING, path, sentence(Reason.NPU_SHARED_NODE_MISSING, path)) for path in subjects]
    return [*lacking, *outfit.problems] if cards else []


def objection(device: str, cards: Sequence[CardView], vnpus: Sequence[VnpuView], outfit: Outfit) -> tuple[Reason, str] | None:
    """Return why an NPU may not be given to a container, as code and sentence; None if nothing is against it."""
    name = _name(device)
    those = [card for card in cards if name in ("all", str(card.phy_id))]
    if not those:
        return Reason.DEVICE_MISSING, REASON_TEXT[Reason.DEVICE_MISSING]
    for card in those:
        if card.reason is not Reason.OK:
            return card.reason, f"{card.node or card.name}: {card.text}"
    missing = _shared(cards, outfit).missing
    if missing:
        return Reason.NPU_SHARED_NODE_MISSING, sentence(Reason.NPU_SHARED_NODE_MISSING, f"{names.DEVICE_DIRECTORY}/{missing[0]}")
    divided = next((vnpu for vnpu in vnpus if vnpu.card in {card.name for card in those}), None)
    if divided is not None:
        return Reason.NPU_DIVIDED, sentence(Reason.NPU_DIVIDED, f"vNPU {divided.vdev} of card {divided.card}")
    return None


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
