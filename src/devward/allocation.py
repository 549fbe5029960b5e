"""CheckAllocation: may a container be given this device now? Nothing is answered from memory.

The node is identified, the device probed and the file looked at, each after the caller asked, and repaired where it may be. The answer
comes within its deadline whatever hangs.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from devward import names
from devward.cdi.reconciler import CdiReconciler, PassRequest, qualified
from devward.clock import Clock
from devward.devices import health
from devward.devices.registry import DeviceRegistry
from devward.devices.tracker import CheckResult, DeviceTracker
from devward.errors import InvalidArguments, NoSuchDevice
from devward.model import (
    REASON_TEXT,
    ActionRequest,
    ActionResult,
    Allocation,
    DeviceKind,
    Health,
    Identity,
    Outcome,
    Reason,
    SpecState,
    Trigger,
)
from devward.readiness import IN_ORDER
from devward.text import printable

_log = logging.getLogger(__name__)

#: Seconds from the caller's arrival to the answer, with what the message bus needs kept in reserve.
DEADLINE = 1.9
MAXIMUM_NAME = 256


def parse_device(text: str) -> DeviceKind:
    """Return the device that a caller means by a qualified CDI name, `kvm` or `/dev/kvm`.

    Raises InvalidArguments for what cannot be a device's name, and NoSuchDevice for one that devward does not know.
    """
    if not text or len(text) > MAXIMUM_NAME or not text.isprintable():
        raise InvalidArguments("the device must be a CDI name such as hyperlight.dev/hypervisor=kvm, or kvm, or /dev/kvm")
    for kind in DeviceKind:
        if text in (kind.value, f"{names.DEVICE_DIRECTORY}/{kind}", qualified(kind)):
            return kind
    raise NoSuchDevice(f"devward does not keep a device named {printable(text, 80)}")


@dataclass(frozen=True, slots=True)
class AllocationCheck:
    """Answers CheckAllocation."""

    registry: DeviceRegistry
    reconciler: CdiReconciler
    clock: Clock
    #: Hears each refusal.
    on_refused: Callable[[DeviceKind, Allocation, ActionRequest], None]

    async def check(self, kind: DeviceKind, request: ActionRequest) -> Allocation:
        """Check one device for a request, within DEADLINE seconds."""
        tracker = self.registry.tracker(kind)
        if tracker is None:
            return self._refuse(kind, request, Reason.DEVICE_MISSING)
        device = asyncio.ensure_future(tracker.check(Trigger.DBUS))
        spec = asyncio.ensure_future(self.reconciler.run(PassRequest(Trigger.DBUS, demanded=True, scan=True)))
        try:
            await asyncio.wait({device, spec}, timeout=DEADLINE)
            refusal = self._judge_device(tracker, device) or self._judge_spec(kind, spec)
        finally:
            for future in (device, spec):
                if future.done() and not future.cancelled():
                    future.exception()  # a failure was judged above, and the shared check has logged it
                future.cancel()
        if refusal is not None:
            return self._refuse(kind, request, *refusal)
        return Allocation(allowed=True, reason=Reason.OK, text=f"{tracker.state.node} may be given to a container")

    def _judge_device(self, tracker: DeviceTracker, check: "asyncio.Future[CheckResult]") -> tuple[Reason, str] | None:
        """Return why the device may not be given, None if it may."""
        if not check.done():
            return Reason.PROBE_TIMEOUT, "no answer in time"
        if check.cancelled() or check.exception() is not None:
            return Reason.DEADLINE, "the check broke off"
        result = check.result()
        state = tracker.state
        if state.identity is not Identity.VALID or state.health is Health.MISSING:
            return state.reason, state.detail
        verdict = result.verdict
        if verdict is None:
            return Reason.DEVICE_CHANGED, ""
        if not verdict.completed:
            if health.good_recently(state, self.clock.monotonic()):
                return None
            return verdict.reason, verdict.detail
        return None if verdict.healthy else (verdict.reason, verdict.detail)

    def _judge_spec(self, kind: DeviceKind, check: "asyncio.Future[ActionResult]") -> tuple[Reason, str] | None:
        """Return why the device cannot be named to an engine, None if it can."""
        if not check.done():
            return Reason.CDI_TIMEOUT, "no answer in time"
        if check.cancelled() or check.exception() is not None:
            return Reason.DEADLINE, "the pass over the CDI files broke off"
        view = self.reconciler.view
        in_order = view.state in IN_ORDER or (view.state is SpecState.CONTESTED and _repaired_or_true(check.result()))
        if not in_order:
            return (view.reason, "") if view.reason is not Reason.OK else (Reason.CDI_NOT_PUBLISHED, "")
        usable, reason, detail = self.reconciler.effective(kind)
        if not usable:
            return reason, detail
        return None if qualified(kind) in view.devices else (Reason.CDI_NOT_PUBLISHED, "")

    def _refuse(self, kind: DeviceKind, request: ActionRequest, reason: Reason, detail: str = "") -> Allocation:
        allocation = Allocation(allowed=False, reason=reason, text=health.sentence(reason, detail) or REASON_TEXT[Reason.NO_USABLE_DEVICE])
        self.on_refused(kind, allocation, request)
        return allocation


def _repaired_or_true(result: ActionResult) -> bool:
    """A contested file is true at the moment when this pass repaired it or found nothing to repair."""
    return result.outcome is Outcome.SUCCESS or (result.outcome is Outcome.NOOP and result.reason == Reason.OK)
