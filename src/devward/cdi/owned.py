"""One owned CDI file: look, decide, act, verify, and the record of it."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from devward.audit import Audit
from devward.cdi import backoff, contest, decision, spec, store
from devward.cdi.backoff import Backoff
from devward.cdi.contest import Contest
from devward.cdi.decision import Entry, FileFacts, LeftOut, Plan, Step
from devward.cdi.store import EntryType, Found, NotAsWritten, StoreError
from devward.cdi.trail import Trail
from devward.clock import Clock
from devward.devices.health import sentence
from devward.errors import DevwardError
from devward.model import OWN_WISHES, ActionRequest, ActionResult, Outcome, RepairCause, SpecState, SpecView, Trigger
from devward.reasons import Reason
from devward.remembered import Remembered
from devward.worker import Worker, WorkerHung

#: Seconds that looking at, or writing, one small file may take before the file system counts as hung.
FILE_DEADLINE = 5.0
#: How often a pass starts over because the directory changed under it.
ATTEMPTS = 4

#: The states of which the audit trail tells, and as what.
_TOLD: Mapping[SpecState, str] = MappingProxyType(
    {
        SpecState.BLOCKED: "spec-blocked",
        SpecState.FOREIGN: "spec-foreign",
        SpecState.CONFLICT: "spec-conflict",
        SpecState.SHADOWED: "spec-conflict",
    }
)


@dataclass(frozen=True, slots=True)
class Order:
    """What a pass shall bring about."""

    #: The document, None for no file.
    desired: bytes | None
    #: The qualified names in it.
    devices: tuple[str, ...]
    trigger: Trigger
    #: The devices that are not in it and might be.
    left_out: tuple[LeftOut, ...] = ()
    may_write: bool = True
    #: Somebody waits for the answer: repair even if the file is contested.
    demanded: bool = False
    adopt: bool = False
    dry_run: bool = False
    withdrawing: bool = False
    undecided: bool = False
    contested_after: int = 5
    request: ActionRequest | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """How an owned file stands, and what it holds."""

    state: SpecState
    reason: Reason = Reason.OK
    detail: str = ""
    #: Qualified names.
    devices: tuple[str, ...] = ()


class OwnedSpec:
    """The state of one owned file; one pass at a time, which the reconciler sees to. What a pass finds is published at its end, once."""

    def __init__(
        self,
        directory: str,
        file_name: str,
        cdi_kind: str,
        *,
        worker: Worker,
        remembered: Remembered,
        audit: Audit,
        clock: Clock,
        on_repair: Callable[[str, RepairCause], None],
    ) -> None:
        """Nothing is looked at before the first pass."""
        self.directory = directory
        self.file_name = file_name
        self.path = os.path.join(directory, file_name)
        self.contest = Contest()
        unknown = sentence(Reason.NOT_CHECKED, "")
        self.view = SpecView(self.path, cdi_kind, (), SpecState.UNKNOWN, clock.realtime_usec(), Reason.NOT_CHECKED, unknown, 0, 0, "")
        self._kind = cdi_kind
        self._worker = worker
        self._remembered = remembered
        self._audit = audit
        self._clock = clock
        self._on_repair = on_repair
        self._trail = Trail(audit, self.path)
        self._standing = Standing(SpecState.UNKNOWN, Reason.NOT_CHECKED)
        #: The kind of the latest record of a state that is not as it should be, empty once it is on record that it is over.
        self._told = ""
        self._backoff = Backoff()
        #: Whether the latest pass ended short of what it should have brought about.
        self._retrying = False
        self._repairs: list[RepairCause] = []
        #: The document that the file was last known to hold, None for no file, and whether it was ever known.
        self._last_true: bytes | None = None
        self._seen_true = False
        self._label: str | None = None
        self._label_known = False

    @property
    def known(self) -> bool:
        """Whether devward has written this path before, so that every regular file there is its own."""
        return bool(self._remembered.known_digests(self.path))

    @property
    def retry_at(self) -> float | None:
        """When the next attempt is due after one that failed, in monotonic seconds; None if there is nothing to try again."""
        return self._backoff.due if self._retrying else None

    def hint(self) -> None:
        """Take note that something has happened: what made an attempt fail may be gone."""
        self._backoff = backoff.hinted(self._backoff)

    async def found_devices(self) -> bytes | None:
        """Return the content at the path if it is a regular file of ours, for the first pass; None otherwise."""
        if not self.known:
            return None
        try:
            found = await self._worker.run(lambda: store.look(self.directory, self.file_name), FILE_DEADLINE)
        except WorkerHung:
            return None
        return found.data

    async def reconcile(self, order: Order) -> ActionResult:
        """Make one pass, whose result `publish` tells. A dry run changes nothing, the published state included."""
        self._retrying = self._retrying and order.dry_run
        for _ in range(ATTEMPTS):
            try:
                found = await self._look(order)
                facts = self._facts(found)
                plan = decision.decide(
                    facts,
                    order.desired,
                    self.file_name,
                    self._kind,
                    known=self.known,
                    adopt=order.adopt,
                    withdrawing=order.withdrawing,
                    undecided=order.undecided,
                )
                plan = decision.attributed(plan, as_left=self._as_left(facts))
                if order.dry_run:
                    return _foretell(plan, self.path)
                return await self._follow(plan, found, order)
            except WorkerHung as error:
                self._standing = Standing(SpecState.BLOCKED, Reason.CDI_TIMEOUT, str(error))
                return ActionResult(self.path, Outcome.FAILURE, Reason.CDI_TIMEOUT)
            except _ChangedMeanwhile:
                continue
        self._back_off(self._standing.reason, self._standing.detail)
        return ActionResult(self.path, Outcome.FAILURE, Reason.DEADLINE)

    def publish(self, engines: Standing | None) -> None:
        """Publish the result of the pass: of a file that is in order by itself, what engines make of it (None: nothing else)."""
        standing = self._standing
        if engines is not None and standing.state in (SpecState.TRUE, SpecState.EMPTY):
            standing = replace(engines, devices=standing.devices)
        before = self.view
        since = before.state_since_usec if standing.state is before.state else self._clock.realtime_usec()
        self.view = replace(
            before,
            state=standing.state,
            reason=standing.reason,
            text=standing.detail if standing.reason is Reason.OK else sentence(standing.reason, standing.detail),
            state_since_usec=since,
            devices=standing.devices,
        )
        repairs, self._repairs = self._repairs, []
        for cause in repairs:
            self._on_repair(self.path, cause)
        if (self.view.state, self.view.reason) != (before.state, before.reason):
            self._tell()

    def switched_off(self) -> None:
        """Publish that the file is not looked at."""
        self._retrying = False
        self._standing = Standing(SpecState.UNKNOWN, Reason.CDI_PAUSED, "cdi mode is off")
        self.publish(None)

    def broke_off(self, error: Exception) -> None:
        """Publish that it is not known how the file stands, since a pass ended before its time."""
        self._standing = Standing(SpecState.UNKNOWN, Reason.NOT_CHECKED, f"the latest pass was broken off by {type(error).__name__}")
        self.publish(None)

    async def _look(self, order: Order) -> Found:
        found = await self._worker.run(lambda: store.look(self.directory, self.file_name), FILE_DEADLINE)
        if found.label is not None and not self._label_known and order.may_write and not order.dry_run:
            try:
                self._label = await self._worker.run(lambda: store.fresh_label(self.directory, self.file_name), FILE_DEADLINE)
                self._label_known = True
            except StoreError:
                self._label = found.label  # what cannot be told is no reason to write
        return found

    def _facts(self, found: Found) -> FileFacts:
        if found.directory is EntryType.LINK:
            return FileFacts(Entry.UNREACHABLE, reason=Reason.CDI_DIRECTORY_LINK, detail=found.detail)
        if found.entry is EntryType.UNREADABLE or (found.entry is EntryType.MISSING and found.reason is not Reason.OK):
            return FileFacts(Entry.UNREACHABLE, reason=found.reason, detail=found.detail)
        if found.entry is EntryType.MISSING:
            return FileFacts(Entry.MISSING)
        if found.entry is not EntryType.REGULAR:
            return FileFacts(Entry.OTHER, detail=f"a {found.entry} stands there")
        metadata = []
        if found.mode != store.FILE_MODE:
            metadata.append((RepairCause.MODE, f"mode is {found.mode:04o}, should be {store.FILE_MODE:04o}"))
        if (found.uid, found.gid) != (os.geteuid(), os.getegid()):
            metadata.append((RepairCause.OWNER, f"owner is {found.uid}:{found.gid}, should be {os.geteuid()}:{os.getegid()}"))
        if found.links > 1:
            metadata.append((RepairCause.HARD_LINK, f"the file has {found.links} names"))
        if self._label_known and found.label != self._label:
            metadata.append((RepairCause.LABEL, f"label is {found.label}, the directory gives {self._label}"))
        return FileFacts(Entry.REGULAR, found.data, tuple(metadata), found.reason, found.detail)

    def _as_left(self, facts: FileFacts) -> bool:
        """Tell whether the path is as devward left it."""
        if facts.entry is Entry.MISSING:
            return self._last_true is None if self._seen_true else not self.known
        if facts.data is None or facts.metadata:
            return False
        if not self._seen_true:
            return self._remembered.known_digests(self.path)[-1:] == (_digest(facts.data),)
        try:
            return self._last_true is not None and not spec.differences(facts.data, self._last_true)
        except spec.SpecError:
            return False

    async def _follow(self, plan: Plan, found: Found, order: Order) -> ActionResult:
        now = self._clock.monotonic()
        if plan.step is Step.NONE:
            return await self._nothing_to_do(plan, found, order, now)
        held = self._devices_in(found)
        if not order.may_write:
            if self._told != "spec-drifted":
                self._trail.drifted(plan, found)
                self._told = "spec-drifted"
            self._standing = Standing(SpecState.DRIFTED, plan.reason, plan.detail, held)
            return ActionResult(self.path, Outcome.NOOP, Reason.CDI_PAUSED)
        if not order.demanded and not contest.may_repair(self.contest, now):
            self._standing = Standing(SpecState.CONTESTED, Reason.CDI_CONTESTED, plan.detail, held)
            return ActionResult(self.path, Outcome.NOOP, Reason.CDI_CONTESTED)
        if not order.demanded and order.request is None and not backoff.may_attempt(self._backoff, now):
            self._retrying = True
            self._standing = Standing(SpecState.BLOCKED, self._backoff.reason, self._backoff.detail, held)
            return ActionResult(self.path, Outcome.FAILURE, self._backoff.reason)
        return await self._act(plan, plan.cause or RepairCause.STALE, found, order)

    async def _nothing_to_do(self, plan: Plan, found: Found, order: Order, now: float) -> ActionResult:
        self._standing = Standing(plan.state, plan.reason, plan.detail)
        if plan.state in (SpecState.TRUE, SpecState.EMPTY):
            self._last_true, self._seen_true = order.desired, True
            self._backoff = Backoff()
            self._trail.in_order()
        if plan.state is SpecState.TRUE:
            self.contest = contest.calmed(self.contest, now)
            if found.data is not None:
                await self._remembered.add_digest(self.path, _digest(found.data))
            self._standing = replace(self._standing, devices=order.devices)
            if self.contest.contested:
                self._standing = Standing(SpecState.CONTESTED, Reason.CDI_CONTESTED, "it is true at this moment", order.devices)
        blocked = plan.state in (SpecState.BLOCKED, SpecState.FOREIGN)
        return ActionResult(self.path, Outcome.FAILURE if blocked else Outcome.NOOP, plan.reason)

    def _devices_in(self, found: Found) -> tuple[str, ...]:
        """Return the devices of our kind that engines find in the file as it is."""
        if found.data is None:
            return ()
        try:
            loaded = spec.load(found.data, self.file_name)
        except spec.SpecError:
            return ()
        return loaded.devices if loaded.kind == self._kind else ()

    async def _act(self, plan: Plan, cause: RepairCause, found: Found, order: Order) -> ActionResult:
        removing = plan.step is Step.REMOVE
        failure = f"{self.path} could not be {'removed' if removing else 'written'}"
        self._backoff = backoff.begun(self._backoff)
        held = self._devices_in(found)
        with self._trail.begin(plan, found, _leaving(plan, held, order), order.trigger, order.request) as record:
            try:
                await self._change(plan, found, order)
            except StoreError as error:
                self._trail.failed(record, error.reason, f"{failure}: {error}")
                self._standing = Standing(SpecState.BLOCKED, error.reason, str(error), held)
                if error.reason is Reason.CDI_MISSING:
                    raise _ChangedMeanwhile from error
                if isinstance(error, NotAsWritten):
                    self._interfered(order)
                else:
                    self._back_off(error.reason, str(error))
                return ActionResult(self.path, Outcome.FAILURE, error.reason)
            except WorkerHung as error:
                self._trail.failed(record, Reason.CDI_TIMEOUT, f"{failure}: {error}")
                raise
            after = _digest(order.desired) if order.desired is not None and not removing else ""
            self._trail.succeeded(record, "Removed" if removing else "Wrote", after)
        self._backoff = Backoff()
        self._count(cause, order)
        return ActionResult(self.path, Outcome.SUCCESS, cause)

    async def _change(self, plan: Plan, found: Found, order: Order) -> None:
        """Carry the plan out. The digest is remembered first: a crash in between leaves a file that is known to be ours."""
        copied = found.data if plan.backup else None
        if plan.backup:
            data = found.data
            if data is None:
                raise StoreError(found.reason, f"no copy can be kept of it: {found.detail}")
            try:
                await self._remembered.backup(self.file_name, data)
            except (DevwardError, OSError, WorkerHung) as error:
                raise StoreError(Reason.CDI_IO_ERROR, f"no copy of the file that stands there could be kept: {error}") from error
        if plan.step is Step.REMOVE or order.desired is None:
            await self._worker.run(lambda: store.remove(self.directory, self.file_name, copied=copied), FILE_DEADLINE)
            return
        desired, first = order.desired, not self.known
        await self._remembered.add_digest(self.path, _digest(desired))
        try:
            label = await self._worker.run(lambda: store.write(self.directory, self.file_name, desired, copied=copied), FILE_DEADLINE)
        except StoreError:
            if first:
                await self._remembered.forget(self.path)  # nothing of ours stands there: whatever comes next is not known to be ours
            raise
        self._label, self._label_known = label, True

    def _count(self, cause: RepairCause, order: Order) -> None:
        """Count a repair; what devward itself wanted otherwise than before is no sign that somebody interferes."""
        wished = cause in OWN_WISHES
        ours = wished or cause in (RepairCause.TAKE_OVER, RepairCause.ADOPTED) or order.desired != self._last_true
        self._last_true, self._seen_true = order.desired, True
        if not ours:
            self._interfered(order)
        if not wished:
            self.view = replace(
                self.view, repair_count=self.view.repair_count + 1, last_repair_usec=self._clock.realtime_usec(), last_repair_cause=cause
            )
        self._repairs.append(cause)
        if order.desired is None:
            self._standing = Standing(SpecState.EMPTY)
        elif self.contest.contested:
            self._standing = Standing(SpecState.CONTESTED, Reason.CDI_CONTESTED, "", order.devices)
        else:
            self._standing = Standing(SpecState.TRUE, devices=order.devices)

    def _interfered(self, order: Order) -> None:
        """Count what something else did to the file since it was last true."""
        step = self.contest.step
        self.contest = contest.repaired(self.contest, self._clock.monotonic(), order.contested_after)
        if self.contest.step > step:
            self._audit.event(
                "spec-contested",
                f"{self.path} keeps being changed by something else; the next repair waits {self.contest.wait:g} s",
                cdi_file=self.path,
                reason=Reason.CDI_CONTESTED,
                evidence={"step": self.contest.step, "wait_seconds": self.contest.wait},
            )

    def _back_off(self, reason: Reason, detail: str) -> None:
        """Let the next attempt wait, for what kept this one from it will keep the next one, too."""
        self._backoff = backoff.failed(self._backoff, self._clock.monotonic(), reason, detail)
        self._retrying = True

    def _tell(self) -> None:
        """Record that the published state changed, where that is of interest by itself."""
        view = self.view
        told = _TOLD.get(view.state)
        if told is not None:
            self._told = told
            self._audit.transition(self.path, told, f"{self.path}: {view.text}", cdi_file=self.path, reason=view.reason)
        elif self._told and view.state in (SpecState.TRUE, SpecState.EMPTY):
            self._told = ""
            self._audit.transition(self.path, "spec-restored", f"{self.path} is true again", cdi_file=self.path)


class _ChangedMeanwhile(Exception):
    """The directory was replaced, or the name came or went, while the file was written: look again."""


def _leaving(plan: Plan, held: Sequence[str], order: Order) -> tuple[LeftOut, ...]:
    """Return the devices that leave the file because devward wants it so; what somebody else put there is no withdrawal."""
    if plan.step is Step.REMOVE and not held:
        return order.left_out
    return tuple(one for one in order.left_out if one.device in held) if plan.cause in OWN_WISHES else ()


def _foretell(plan: Plan, path: str) -> ActionResult:
    """Return what a pass would come to that may act."""
    if plan.step is not Step.NONE:
        return ActionResult(path, Outcome.DRY_RUN, plan.cause or RepairCause.STALE)
    blocked = plan.state in (SpecState.BLOCKED, SpecState.FOREIGN)
    return ActionResult(path, Outcome.FAILURE if blocked else Outcome.NOOP, plan.reason)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
