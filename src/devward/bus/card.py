"""org.devward.Devward1.Card: one Ascend NPU."""

from typing import TYPE_CHECKING, Final

from devward import names
from devward.bus.publisher import PublishedObject

if TYPE_CHECKING:  # a host without NPUs loads nothing of them
    from devward.npu.views import CardView


#: Of ListCards, which a test holds to the contract.
SIGNATURE: Final = "a(issddso)"


def published(view: "CardView") -> PublishedObject:
    """Return the object that shows this NPU."""
    return PublishedObject(
        path=names.card_path(view.name),
        identity=(view.die_id, str(view.card), str(view.device)),
        interfaces={
            names.CARD_INTERFACE: {
                "PhyId": view.phy_id,
                "LogicId": view.logic_id,
                "CardId": view.card,
                "DeviceId": view.device,
                "DieId": view.die_id,
                "Chip": view.chip,
                "Node": view.node,
                "Number": view.number,
                "Health": view.health,
                "Managed": view.managed,
                "Protection": view.protection,
                "Claims": view.claims,
                "UsedCores": view.used_cores,
                "ClaimedCores": view.claimed_cores,
                "TotalCores": view.total_cores,
                "Reason": view.reason,
                "Text": view.text,
            }
        },
    )


def row(view: "CardView") -> tuple[object, ...]:
    """Return the line of this NPU in ListCards."""
    return (view.phy_id, view.chip, view.health, view.used_cores, view.total_cores, view.reason, names.card_path(view.name))
