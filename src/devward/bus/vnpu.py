"""org.devward.Devward1.Vnpu: one vNPU."""

from typing import TYPE_CHECKING, Final

from devward import names
from devward.bus.publisher import PublishedObject

if TYPE_CHECKING:  # a host without NPUs loads nothing of them
    from devward.npu.views import VnpuView


#: Of ListVnpus, which a test holds to the contract.
SIGNATURE: Final = "a(ussssoo)"


def published(view: "VnpuView") -> PublishedObject:
    """Return the object that shows this vNPU."""
    return PublishedObject(
        path=names.vnpu_path(view.name),
        identity=(str(view.vdev), view.identity),
        interfaces={
            names.VNPU_INTERFACE: {
                "Id": view.vdev,
                "Identity": view.identity,
                "Card": names.card_path(view.card),
                "Template": view.template,
                "Vfid": view.vfid,
                "Cores": view.cores,
                "Node": view.node,
                "InUse": view.use,
                "Verdict": view.verdict,
                "VerdictReason": view.verdict_reason,
                "Reason": view.reason,
                "Text": view.text,
                "FirstSeenUSec": view.first_seen_usec,
                "GraceStartUSec": view.grace_start_usec,
                "Confirmations": view.confirmations,
                "EligibleAtUSec": view.eligible_at_usec,
            }
        },
    )


def row(view: "VnpuView") -> tuple[object, ...]:
    """Return the line of this vNPU in ListVnpus."""
    return (view.vdev, view.template, view.use, view.verdict, view.reason, names.card_path(view.card), names.vnpu_path(view.name))
