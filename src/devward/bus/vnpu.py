"""org.devward.Devward1.Vnpu: one vNPU, and the evidence about it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from devward import names
from devward.bus.auth import Gate
from devward.bus.backend import Backend
from devward.bus.messages import Body, MethodCall, Prepare, Run
from devward.bus.publisher import PublishedObject
from devward.bus.refusal import UNKNOWN_OBJECT, Refusal
from devward.model import Caller
from devward.text import quoted

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


class VnpuInterface:
    """The method of the vNPU objects."""

    def __init__(self, backend: Backend, gate: Gate) -> None:
        self._backend = backend
        self._gate = gate

    def methods(self) -> Mapping[str, Prepare]:
        """Return the methods by name."""
        return {"Explain": self._explain}

    def _explain(self, call: MethodCall) -> Run:
        async def run(_: Caller | None) -> Body:
            full = await self._gate.may_inspect(call)
            name = call.path.removeprefix(names.VNPU_PATH_PREFIX)
            # It may have gone meanwhile.
            if all(view.name != name for view in self._backend.vnpus()):
                raise Refusal(UNKNOWN_OBJECT, f"There is no object {quoted(call.path)}.")
            return (self._backend.explain_vnpu(name, full=full),)

        return run
