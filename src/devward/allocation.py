"""CheckAllocation: may a container be given this device now? Nothing is answered from memory.

The node is identified, the device probed and the file looked at, each after the caller asked, and repaired where it may be. The answer
comes within its deadline whatever hangs.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from devward import names
from devward.cdi.reconciler import CdiReconciler, PassRequest, PassResults
from devward.cdi.sources import kind_of_device, qualified
from devward.clock import Clock
from devward.devices import health
from devward.devices.registry import DeviceRegistry
from devward.devices.tracker import CheckResult, DeviceTracker
from devward.errors import InvalidArguments, NoSuchDevice
from devward.model import ActionRequest, ActionResult, Allocation, DeviceKind, Health, Identity, Outcome, SpecState
from devward.npu.room import NpuRoom
from devward.readiness import IN_ORDER
from devward.reasons import REASON_TEXT, Reason
from devward.text import printable

_log = logging.getLogger(__name__)

#: Seconds from the caller's arrival to the answer, with what the message bus needs kept in reserve.
DEADLINE = 1.9
#: Seconds of these for a look at the NPUs, which a broker may keep from ending.
LOOK_DEADLINE = 1.5
MAXIMUM_NAME = 256
_NUMBER = r"(?:0|[1-9][0-9]{0,3})"
_NPU = re.compile(rf"{re.escape(names.NPU_CDI_KIND)}=(?:all|{_NUMBER})|{re.escape(names.VNPU_CDI_KIND)}={_NUMBER}", re.ASCII)
_NPU_NODE = re.compile(rf"{names.DEVICE_DIRECTORY}/(v?)davinci({_NUMBER})", re.ASCII)


def parse_device(text: str) -> str:
    """Return the CDI name of the device that a caller means: by that name, `kvm` or `/dev/kvm`, or the path of an NPU's node.

    Raises InvalidArguments for what cannot be a device's name, and NoSuchDevice for one that devward does not know.
    """
    if not text or len(text) > MAXIMUM_NAME or not text.isprintable():
        raise InvalidArguments("the device must be a CDI name such as hyperlight.dev/hypervisor=kvm, or kvm, or /dev/kvm")
    for kind in DeviceKind:
        if text in (kind.value, f"{names.DEVICE_DIRECTORY}/{kind}", qualified(kind)):
            return qualified(kind)
    if _NPU.fullmatch(text):
        return text
    node = _NPU_NODE.fullmatch(text)
    if node is not None:
        return f"{names.VNPU_CDI_KIND if node[1] else names.NPU_CDI_KIND}={node[2]}"
    raise NoSuchDevice(f"devward does not keep a device named {printable(text, 80)}")


@dataclass(frozen=True, slots=True)
class AllocationCheck:
    """Answers CheckAllocation."""

    registry: DeviceRegistry
    npus: NpuRoom
    reconciler: CdiReconciler
    clock: Clock
    #: Hears each refusal: the device by its CDI name, and its node.
    on_refused: Callable[[str, str, Allocation, ActionRequest], None]

    async def check(self, device: str, request: ActionRequest) -> Allocation:
        """Check one device, given by its CDI name, for a request, within DEADLINE seconds."""
        kind, _, name = device.partition("=")
        if kind != names.HYPERVISOR_CDI_KIND:
            return await self._check_npu(device, request)
        node = f"{names.DEVICE_DIRECTORY}/{name}"
        tracker = self.registry.tracker(DeviceKind(name))
        if tracker is None:
            return self._refuse(device, node, request, Reason.DEVICE_MISSING, _sentence(Reason.DEVICE_MISSING))
        check = asyncio.ensure_future(tracker.check(request.trigger))
        spec = self._start_pass(kind, request)
        awaited: tuple[asyncio.Future[Any], ...] = (check, spec)
        try:
            await asyncio.wait(awaited, timeout=DEADLINE)
            refusal = self._judge_device(tracker, check) or self._judge_spec(device, spec)
        finally:
            _let_go(check, spec)
        if refusal is not None:
            return self._refuse(device, node, request, refusal[0], _sentence(*refusal))
        return Allocation(allowed=True, reason=Reason.OK, text=f"{node} may be given to a container")

    async def _check_npu(self, device: str, request: ActionRequest) -> Allocation:
        """Check an NPU: by a look that begins now, and then by the file that follows from it."""
        began = self.clock.monotonic()
        node = self.reconciler.node(device)
        if not self.npus.may_have(device, node):
            # What cannot be given is refused at once: a look is not to be had for names that anybody thinks up.
            return self._refuse(device, node, request, Reason.DEVICE_MISSING, _sentence(Reason.DEVICE_MISSING))
        look = asyncio.ensure_future(self.npus.fresh())
        try:
            await asyncio.wait({look}, timeout=LOOK_DEADLINE)
            if not look.done() or look.exception() is not None:
                refusal: tuple[Reason, str] | None = (Reason.NPU_BROKER_SILENT, _sentence(Reason.NPU_BROKER_SILENT, "no answer in time"))
            else:
                refusal = self.npus.objection(device)
        finally:
            _let_go(look)
        if refusal is None:
            spec = self._start_pass(kind_of_device(device), request)
            try:
                await asyncio.wait({spec}, timeout=max(0.0, began + DEADLINE - self.clock.monotonic()))
                fault = self._judge_spec(device, spec)
            finally:
                _let_go(spec)
            if fault is not None:
                refusal = fault[0], _sentence(*fault)
        if refusal is not None:
            return self._refuse(device, node, request, *refusal)
        return Allocation(allowed=True, reason=Reason.OK, text=f"{node} may be given to a container")

    def good_monotonic(self, kind: DeviceKind) -> float | None:
        """Return when the latest good check of a hypervisor was completed, in monotonic seconds; None where it is not healthy now."""
        tracker = self.registry.tracker(kind)
        return None if tracker is None or tracker.state.health is not Health.HEALTHY else tracker.state.good_monotonic

    def _start_pass(self, kind: str, request: ActionRequest) -> "asyncio.Future[PassResults]":
        return asyncio.ensure_future(self.reconciler.run(PassRequest(request.trigger, demanded=frozenset({kind}), scan=True)))

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
        if not verdict.healthy:
            return verdict.reason, verdict.detail
        # The files are looked at after the check, and the node may be another one by then.
        return None if state.health is Health.HEALTHY else (Reason.DEVICE_CHANGED, "")

    def _judge_spec(self, device: str, check: "asyncio.Future[PassResults]") -> tuple[Reason, str] | None:
        """Return why the device cannot be named to an engine, None if it can."""
        if not check.done():
            return Reason.CDI_TIMEOUT, "no answer in time"
        if check.cancelled() or check.exception() is not None:
            return Reason.DEADLINE, "the pass over the CDI files broke off"
        kind = kind_of_device(device)
        result = check.result().get(kind)
        if result is None:
            return Reason.CDI_NOT_PUBLISHED, ""
        objection = self.reconciler.objection(device)
        if objection is not Reason.OK:
            return objection, ""
        view = self.reconciler.view(kind)
        in_order = view.state in IN_ORDER or (view.state is SpecState.CONTESTED and _repaired_or_true(result))
        if not in_order:
            return (view.reason, "") if view.reason is not Reason.OK else (Reason.CDI_NOT_PUBLISHED, "")
        usable, reason, detail = self.reconciler.effective(device)
        if not usable:
            return reason, detail
        return None if device in view.devices else (Reason.CDI_NOT_PUBLISHED, "")

    def _refuse(self, device: str, node: str, request: ActionRequest, reason: Reason, text: str) -> Allocation:
        allocation = Allocation(allowed=False, reason=reason, text=text)
        self.on_refused(device, node, allocation, request)
        return allocation


def _sentence(reason: Reason, detail: str = "") -> str:
    return health.sentence(reason, detail) or REASON_TEXT[Reason.NO_USABLE_DEVICE]


def _let_go(*futures: "asyncio.Future[Any]") -> None:
    """Leave what was waited for: a failure was judged, and whoever shares the work has logged it."""
    for future in futures:
        if future.done() and not future.cancelled():
            future.exception()
        future.cancel()


def _repaired_or_true(result: ActionResult) -> bool:
    """A contested file is true at the moment when this pass repaired it or found nothing to repair."""
    return result.outcome is Outcome.SUCCESS or (result.outcome is Outcome.NOOP and result.reason == Reason.OK)
