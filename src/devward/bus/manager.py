"""org.devward.Devward1.Manager: the daemon's state and its actions.

A method has two halves. The first judges the arguments alone; the second runs once the caller is authorized, and judges there what
may have changed while an administrator was asked.
"""

import asyncio
import logging
import re
import unicodedata
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Final, Protocol, cast

from devward import names
from devward.bus import card, device, spec, vnpu
from devward.bus.auth import Gate
from devward.bus.backend import Backend
from devward.bus.messages import Body, MethodCall, Prepare, Run
from devward.bus.publisher import PublishedObject
from devward.bus.wire import table
from devward.errors import DevwardError, InvalidArguments, NotReady, Stopping
from devward.model import (
    MAXIMUM_PAUSE_SECONDS,
    MAXIMUM_PIN_REASON,
    ActionRequest,
    ActionResult,
    Allocation,
    Caller,
    CdiMode,
    Finding,
    ManagerView,
    Outcome,
    ReclaimMode,
    Trigger,
)
from devward.reasons import REASON_TEXT, Reason
from devward.text import quoted

#: Bits of an action's flags.
DRY_RUN: Final = 1
SHORTEN: Final = 2
#: Seconds after which an action is answered `pending`; clients give a call up after 25.
REPLY_SECONDS: Final = 20.0
#: Seconds in which CheckAllocation answers, whatever hangs.
CHECK_SECONDS: Final = 2.0
MAX_PAUSE_REASON: Final = 200
MAX_NAME: Final = 4096

#: A UID of the API server's; it makes UUIDs, and promises no more than a text.
_NODE_UID: Final = re.compile(r"[!-~]{1,128}")

_log = logging.getLogger(__name__)

Results = tuple[ActionResult, ...]


class SignalSender(Protocol):
    """What sends a signal of the Manager interface."""

    def __call__(self, member: str, *arguments: object) -> None: ...


def published(view: ManagerView) -> PublishedObject:
    """Return the root object."""
    return PublishedObject(
        path=names.ROOT_PATH,
        identity=(),
        interfaces={
            names.MANAGER_INTERFACE: {
                "Version": view.version,
                "NodeName": view.node_name,
                "Ready": view.ready,
                "NotReadyReasons": view.not_ready_reasons,
                "Checking": view.checking,
                "CdiMode": view.cdi_mode,
                "CdiPausedUntilUSec": view.cdi_paused_until_usec,
                "ReclaimMode": view.reclaim_mode,
                "ReclaimState": view.reclaim_state,
                "ReclaimPausedUntilUSec": view.reclaim_paused_until_usec,
                "AuditDropped": view.audit_dropped,
                "ConfigState": view.config_state,
                "BlockedReasons": view.blocked_reasons,
                "BlockedSinceUSec": view.blocked_since_usec,
                "LastCycleUSec": view.last_cycle_usec,
                "NextCycleUSec": view.next_cycle_usec,
                "CertificateExpiresUSec": view.certificate_expires_usec,
            }
        },
    )


def overall(results: Sequence[ActionResult]) -> str:
    """Sum up an action's results in one word: success, partial, failure, noop or dry-run."""
    outcomes = {result.outcome for result in results}
    failed = outcomes & {Outcome.FAILURE, Outcome.DENIED}
    if failed:
        return "failure" if outcomes == failed else "partial"
    if Outcome.SUCCESS in outcomes:
        return "success"
    return "dry-run" if Outcome.DRY_RUN in outcomes else "noop"


def redacted(finding: Finding) -> Finding:
    """Return a finding as callers without org.devward.devward1.inspect see it: its text may name what is not theirs to know."""
    return Finding(finding.code, finding.subject, REASON_TEXT[finding.code], finding.since_usec)


class ManagerInterface:
    """The methods of the root object, and the work that outlasts its call."""

    def __init__(
        self, backend: Backend, gate: Gate, emit: SignalSender, *, new_id: Callable[[], str], reply_seconds: float = REPLY_SECONDS
    ) -> None:
        self._backend = backend
        self._gate = gate
        self._emit = emit
        self._new_id = new_id
        self._reply_seconds = reply_seconds
        self._work: set[asyncio.Task[Results]] = set()
        self._checks: set[asyncio.Task[Allocation]] = set()

    def lists(self) -> Mapping[str, Callable[[], Body]]:
        """Return the methods without arguments that are answered at once from memory."""
        return {
            "ListDevices": lambda: ([device.row(view) for view in self._backend.devices()],),
            "ListSpecs": lambda: ([spec.row(view) for view in self._backend.specs()],),
            # There may be thousands.
            "ListCards": lambda: table(card.SIGNATURE, map(card.row, self._backend.cards())),
            "ListVnpus": lambda: table(vnpu.SIGNATURE, map(vnpu.row, self._backend.vnpus())),
        }

    def methods(self) -> Mapping[str, Prepare]:
        """Return the other methods by name."""
        return {
            "Describe": self._describe,
            "ListFindings": self._list_findings,
            "CheckAllocation": self._check_allocation,
            "Rescan": self._rescan,
            "RepairSpecs": self._repair_specs,
            "AdoptSpec": self._adopt_spec,
            "SetCdiMode": self._set_cdi_mode,
            "PauseCdi": self._pause_cdi,
            "ResumeCdi": self._resume_cdi,
            "ReclaimVnpu": self._reclaim_vnpu,
            "ReclaimOrphans": self._reclaim_orphans,
            "ReleaseBreaker": self._release_breaker,
            "SetReclaimMode": self._set_reclaim_mode,
            "PauseReclaim": self._pause_reclaim,
            "ResumeReclaim": self._resume_reclaim,
            "Pin": self._pin,
            "Unpin": self._unpin,
            "AcceptNode": self._accept_node,
            "Reload": self._reload,
        }

    async def close(self) -> None:
        """Cancel the work that is under way, and wait for its end."""
        tasks: list[asyncio.Task[Results] | asyncio.Task[Allocation]] = [*self._work, *self._checks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _describe(self, call: MethodCall) -> Run:
        async def run(_: Caller | None) -> Body:
            return (self._backend.describe(full=await self._gate.may_inspect(call)),)

        return run

    def _list_findings(self, call: MethodCall) -> Run:
        async def run(_: Caller | None) -> Body:
            full = await self._gate.may_inspect(call)
            shown: Iterable[Finding] = self._backend.findings()
            return ([(item.code, item.subject, item.text, item.since_usec) for item in (shown if full else map(redacted, shown))],)

        return run

    def _check_allocation(self, call: MethodCall) -> Run:
        name = _name(call.body[0], "device")
        self._refuse_when_stopping()

        async def run(caller: Caller | None) -> Body:
            self._refuse_when_stopping()
            request = self._request(caller)
            answer = await self._judge(request, name)
            return (answer.allowed, answer.reason, answer.text, request.request_id)

        return run

    async def _judge(self, request: ActionRequest, name: str) -> Allocation:
        if not self._backend.ready_for_actions():
            return _refusal(Reason.STARTING)
        task = asyncio.get_running_loop().create_task(self._backend.check_allocation(request, name))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)
        try:
            # Not wait_for(): that waits for the end of what it cancels.
            await asyncio.wait({task}, timeout=CHECK_SECONDS)
            if task.done():
                return task.result()
        finally:
            if not task.done():
                task.cancel()
                task.add_done_callback(_retrieve)
        return _refusal(Reason.DEADLINE)

    def _rescan(self, call: MethodCall) -> Run:
        _flags(call.body[0], 0)
        return self._action(self._backend.rescan)

    def _repair_specs(self, call: MethodCall) -> Run:
        dry_run = _flags(call.body[0], DRY_RUN)
        return self._action(lambda request: self._backend.repair_specs(request, dry_run=dry_run))

    def _adopt_spec(self, call: MethodCall) -> Run:
        file = _name(call.body[0], "file")
        dry_run = _flags(call.body[1], DRY_RUN)
        return self._action(lambda request: self._backend.adopt_spec(request, file, dry_run=dry_run))

    def _set_cdi_mode(self, call: MethodCall) -> Run:
        try:
            mode = CdiMode(cast(str, call.body[0]))
        except ValueError:
            raise InvalidArguments(f"The mode is one of {', '.join(CdiMode)}.") from None
        _flags(call.body[1], 0)
        return self._action(lambda request: self._backend.set_cdi_mode(request, mode))

    def _pause_cdi(self, call: MethodCall) -> Run:
        seconds, reason = _pause(call)
        return self._action(lambda request: self._backend.pause_cdi(request, seconds, reason))

    def _resume_cdi(self, call: MethodCall) -> Run:
        _flags(call.body[0], 0)
        return self._action(self._backend.resume_cdi)

    def _reclaim_vnpu(self, call: MethodCall) -> Run:
        vdev = cast(int, call.body[0])
        identity = _identity(call.body[1], vdev)
        dry_run = _flags(call.body[2], DRY_RUN | SHORTEN)
        shorten = _shorten(call.body[2])
        return self._action(lambda request: self._backend.reclaim_vnpu(request, vdev, identity, dry_run=dry_run, shorten=shorten))

    def _reclaim_orphans(self, call: MethodCall) -> Run:
        dry_run = _flags(call.body[0], DRY_RUN | SHORTEN)
        shorten = _shorten(call.body[0])
        return self._action(lambda request: self._backend.reclaim_orphans(request, dry_run=dry_run, shorten=shorten))

    def _release_breaker(self, call: MethodCall) -> Run:
        _flags(call.body[0], 0)
        return self._action(self._backend.release_breaker)

    def _set_reclaim_mode(self, call: MethodCall) -> Run:
        try:
            mode = ReclaimMode(cast(str, call.body[0]))
        except ValueError:
            raise InvalidArguments(f"The mode is one of {', '.join(ReclaimMode)}.") from None
        _flags(call.body[1], 0)
        return self._action(lambda request: self._backend.set_reclaim_mode(request, mode))

    def _pause_reclaim(self, call: MethodCall) -> Run:
        seconds, reason = _pause(call)
        return self._action(lambda request: self._backend.pause_reclaim(request, seconds, reason))

    def _resume_reclaim(self, call: MethodCall) -> Run:
        _flags(call.body[0], 0)
        return self._action(self._backend.resume_reclaim)

    def _pin(self, call: MethodCall) -> Run:
        target = _target(call.body[0])
        reason = _reason(call.body[1], "A pin", MAXIMUM_PIN_REASON)
        _flags(call.body[2], 0)
        return self._action(lambda request: self._backend.pin(request, target, reason))

    def _unpin(self, call: MethodCall) -> Run:
        target = _target(call.body[0])
        _flags(call.body[1], 0)
        return self._action(lambda request: self._backend.unpin(request, target))

    def _accept_node(self, call: MethodCall) -> Run:
        uid = cast(str, call.body[0])
        if not _NODE_UID.fullmatch(uid):
            raise InvalidArguments(f"{quoted(uid)} is not the UID of a Node.")
        _flags(call.body[1], 0)
        return self._action(lambda request: self._backend.accept_node(request, uid))

    def _reload(self, call: MethodCall) -> Run:
        _flags(call.body[0], 0)
        return self._action(self._backend.reload)

    def _action(self, act: Callable[[ActionRequest], Coroutine[object, object, Results]]) -> Run:
        self._refuse_when_not_ready()

        async def run(caller: Caller | None) -> Body:
            self._refuse_when_not_ready()
            request = self._request(caller)
            task = asyncio.get_running_loop().create_task(self._finish(request, act))
            self._work.add(task)
            task.add_done_callback(self._work.discard)
            task.add_done_callback(_retrieve)
            # The caller may leave, and this call end; the work goes on.
            await asyncio.wait({task}, timeout=self._reply_seconds)
            if not task.done():
                return (request.request_id, "pending", [])
            return (request.request_id, "done", _rows(task.result()))

        return run

    async def _finish(self, request: ActionRequest, act: Callable[[ActionRequest], Coroutine[object, object, Results]]) -> Results:
        """Do the work and tell everybody how it ended."""
        try:
            results = await act(request)
        except asyncio.CancelledError:
            self._finished(request, (ActionResult("", Outcome.FAILURE, Stopping.code),))
            raise
        except Exception as error:
            known = isinstance(error, DevwardError)
            if not known:
                _log.error("The request %s ended with an unexpected error", request.request_id, exc_info=error)
            self._finished(request, (ActionResult("", Outcome.FAILURE, error.code if isinstance(error, DevwardError) else "internal"),))
            raise
        self._finished(request, results)
        return results

    def _finished(self, request: ActionRequest, results: Results) -> None:
        self._emit("RequestFinished", request.request_id, overall(results), _rows(results))

    def _request(self, caller: Caller | None) -> ActionRequest:
        return ActionRequest(self._new_id(), caller, Trigger.DBUS)

    def _refuse_when_stopping(self) -> None:
        if self._backend.stopping():
            raise Stopping("The daemon is stopping.")

    def _refuse_when_not_ready(self) -> None:
        self._refuse_when_stopping()
        if not self._backend.ready_for_actions():
            raise NotReady("The first pass over devices and files is not done yet.")


def _flags(flags: object, allowed: int) -> bool:
    """Return whether a dry run is asked for. InvalidArguments for a bit that the method does not have."""
    unknown = cast(int, flags) & ~allowed
    if unknown:
        raise InvalidArguments(f"The flags {unknown:#x} are not known to this method.")
    return bool(cast(int, flags) & DRY_RUN)


def _shorten(flags: object) -> bool:
    return bool(cast(int, flags) & SHORTEN)


def _pause(call: MethodCall) -> tuple[int, str]:
    """Return the seconds and the reason of a pause."""
    seconds = cast(int, call.body[0])
    if not 1 <= seconds <= MAXIMUM_PAUSE_SECONDS:
        raise InvalidArguments(f"A pause lasts 1 to {MAXIMUM_PAUSE_SECONDS} seconds.")
    reason = _reason(call.body[1], "A pause", MAX_PAUSE_REASON)
    _flags(call.body[2], 0)
    return seconds, reason


def _name(text: object, what: str) -> str:
    name = cast(str, text)
    if not 1 <= len(name) <= MAX_NAME or not _prints(name):
        raise InvalidArguments(f"The {what} is a name of 1 to {MAX_NAME} characters without control characters, not {quoted(name)}.")
    return name


def _reason(text: object, what: str, most: int) -> str:
    reason = cast(str, text).strip()
    if not 1 <= len(reason) <= most or not _prints(reason):
        raise InvalidArguments(f"{what} needs a reason of 1 to {most} characters without control characters.")
    return reason


def _target(text: object) -> str:
    """Return the target of a pin."""
    from devward.npu.pins import Target

    try:
        return str(Target.parse(cast(str, text)))
    except ValueError as error:
        raise InvalidArguments(f"{quoted(cast(str, text))} cannot be pinned: {error}.") from None


def _identity(text: object, vdev: int) -> str:
    """Return the identity of a vNPU with this id."""
    from devward.npu.numbering import IDENTITY, vfid_of

    identity = cast(str, text)
    match = IDENTITY.fullmatch(identity)
    if match is None:
        raise InvalidArguments(
            f"{quoted(identity)} is not the identity of a vNPU: DIE/VDEV/TEMPLATE/DIGEST, as its property Identity has it."
        )
    if vfid_of(vdev) is None or int(match["vdev"]) != vdev:
        raise InvalidArguments(f"{quoted(identity)} is not the identity of a vNPU with the id {vdev}.")
    return identity


def _prints(text: str) -> bool:
    """Whether there are no control, format or surrogate characters, and no line or paragraph separators."""
    return not any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for character in text)


def _rows(results: Results) -> list[tuple[str, str, str]]:
    return [(result.target, result.outcome, result.reason) for result in results]


def _refusal(reason: Reason) -> Allocation:
    return Allocation(allowed=False, reason=reason, text=REASON_TEXT[reason])


def _retrieve(task: asyncio.Task[Results] | asyncio.Task[Allocation]) -> None:
    if not task.cancelled():
        task.exception()
