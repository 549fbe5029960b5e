"""One owned CDI file: look, decide, act, verify, and the record of it."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from devward.audit import Audit
from devward.cdi import contest, decision, store
from devward.cdi.contest import Contest
from devward.cdi.decision import Entry, FileFacts, Plan, Step
from devward.cdi.store import EntryType, Found, StoreError
from devward.clock import Clock
from devward.devices.health import sentence
from devward.errors import DevwardError
from devward.model import ActionRequest, ActionResult, Outcome, Reason, RepairCause, SpecState, SpecView, Trigger
from devward.remembered import Remembered
from devward.worker import Worker, WorkerHung

#: Seconds that looking at, or writing, one small file may take before the file system counts as hung.
FILE_DEADLINE = 5.0
#: How often a pass starts over because the directory changed under it.
ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Order:
    """What a pass shall bring about."""

    #: The document, None for no file.
    desired: bytes | None
    #: The qualified names in it.
    devices: tuple[str, ...]
    trigger: Trigger
    may_write: bool = True
    #: Somebody waits for the answer: repair even if the file is contested.
    demanded: bool = False
    adopt: bool = False
    dry_run: bool = False
    withdrawing: bool = False
    contested_after: int = 5
    request: ActionRequest | None = None


class OwnedSpec:
    """The state of one owned file; one pass at a time, which the reconciler sees to."""

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
        self.view = SpecView(self.path, cdi_kind, (), SpecState.UNKNOWN, clock.realtime_usec(), Reason.NOT_CHECKED, "", 0, 0, "")
        self._kind = cdi_kind
        self._worker = worker
        self._remembered = remembered
        self._audit = audit
        self._clock = clock
        self._on_repair = on_repair
        self._adopted = False
        self._last_desired: bytes | None = None
        self._label: str | None = None
        self._label_known = False

    @property
    def known(self) -> bool:
        """Whether devward has written this path before, so that every regular file there is its own."""
        return self._adopted or bool(self._remembered.known_digests(self.path))

    async def found_devices(self) -> bytes | None:
        """Return the content at the path if it is a regular file of ours, for the first pass; None otherwise."""
        try:
            found = await self._worker.run(lambda: store.look(self.directory, self.file_name), FILE_DEADLINE)
        except WorkerHung:
            return None
        return found.data if self.known else None

    async def reconcile(self, order: Order) -> ActionResult:
        """Make one pass and publish its result in `view`."""
        result = ActionResult(self.path, Outcome.FAILURE, Reason.DEADLINE)
        for _ in range(ATTEMPTS):
            try:
                found = await self._look()
                if found.entry is not EntryType.REGULAR:
                    self.view = replace(self.view, devices=())
                plan = decision.decide(
                    self._facts(found),
                    order.desired,
                    self.file_name,
                    self._kind,
                    known=self.known,
                    adopt=order.adopt,
                    withdrawing=order.withdrawing,
                )
                result = await self._follow(plan, found, order)
                break
            except WorkerHung as error:
                self._publish(SpecState.BLOCKED, Reason.CDI_TIMEOUT, str(error))
                result = ActionResult(self.path, Outcome.FAILURE, Reason.CDI_TIMEOUT)
                break
            except _ChangedMeanwhile:
                continue
        self._last_desired = order.desired
        return result

    def overlay(self, state: SpecState, reason: Reason, detail: str) -> None:
        """Publish what the engines make of a file that is in order by itself: conflict or shadowed; TRUE ends that."""
        if self.view.state in (SpecState.TRUE, SpecState.CONFLICT, SpecState.SHADOWED, SpecState.EMPTY):
            self._publish(state, reason, detail)

    def switched_off(self) -> None:
        """Publish that the file is not looked at."""
        self._publish(SpecState.UNKNOWN, Reason.CDI_PAUSED, "cdi mode is off")

    async def _look(self) -> Found:
        found = await self._worker.run(lambda: store.look(self.directory, self.file_name), FILE_DEADLINE)
        if found.label is not None and not self._label_known:
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

    async def _follow(self, plan: Plan, found: Found, order: Order) -> ActionResult:
        now = self._clock.monotonic()
        if plan.step is Step.NONE:
            return await self._nothing_to_do(plan, found, order, now)
        cause = plan.cause or RepairCause.STALE
        if order.dry_run:
            return ActionResult(self.path, Outcome.DRY_RUN, cause)
        if not order.may_write:
            self._publish(SpecState.DRIFTED, plan.reason, plan.detail)
            return ActionResult(self.path, Outcome.NOOP, Reason.CDI_PAUSED)
        if not order.demanded and not contest.may_repair(self.contest, now):
            self._publish(SpecState.CONTESTED, Reason.CDI_CONTESTED, plan.detail)
            return ActionResult(self.path, Outcome.NOOP, Reason.CDI_CONTESTED)
        return await self._act(plan, cause, found, order)

    async def _nothing_to_do(self, plan: Plan, found: Found, order: Order, now: float) -> ActionResult:
        if plan.state is SpecState.TRUE:
            self.contest = contest.calmed(self.contest, now)
            if found.data is not None and not order.dry_run:
                await self._remembered.add_digest(self.path, _digest(found.data))
        devices = order.devices if plan.state is SpecState.TRUE else ()
        if self.contest.contested and plan.state is SpecState.TRUE:
            self._publish(SpecState.CONTESTED, Reason.CDI_CONTESTED, "it is true at this moment", devices)
        else:
            self._publish(plan.state, plan.reason, plan.detail, devices)
        blocked = plan.state in (SpecState.BLOCKED, SpecState.FOREIGN)
        return ActionResult(self.path, Outcome.FAILURE if blocked else Outcome.NOOP, plan.reason)

    async def _act(self, plan: Plan, cause: RepairCause, found: Found, order: Order) -> ActionResult:
        before = _digest(found.data) if found.data is not None else ""
        evidence: dict[str, object] = {"differences": list(plan.differences)}
        if found.entry is EntryType.REGULAR:
            evidence["found"] = {
                "mode": f"{found.mode:04o}",
                "uid": found.uid,
                "gid": found.gid,
                "links": found.links,
                "mtime_usec": found.mtime_usec,
            }
        removing = plan.step is Step.REMOVE
        kind, verb = ("spec-withdraw", "remove") if removing else ("spec-repair", "write")
        with self._audit.begin(
            kind,
            f"About to {verb} {self.path}: {cause}",
            cdi_file=self.path,
            cause=cause,
            sha256_before=before,
            evidence=evidence,
            trigger=order.trigger,
            request=order.request,
        ) as record:
            try:
                await self._change(plan, found, order)
            except StoreError as error:
                record.fail(error.reason, f"{self.path} could not be {'removed' if removing else 'written'}: {error}")
                self._publish(SpecState.BLOCKED, error.reason, str(error))
                if error.reason is Reason.CDI_MISSING:
                    raise _ChangedMeanwhile from error
                return ActionResult(self.path, Outcome.FAILURE, error.reason)
            except WorkerHung as error:
                record.fail(Reason.CDI_TIMEOUT, f"{self.path} could not be {'removed' if removing else 'written'}: {error}")
                raise
            after = _digest(order.desired) if order.desired is not None and not removing else ""
            record.succeed(f"{'Removed' if removing else 'Wrote'} {self.path}: {cause}", sha256_after=after)
        self._count(cause, order)
        return ActionResult(self.path, Outcome.SUCCESS, cause)

    async def _change(self, plan: Plan, found: Found, order: Order) -> None:
        """Carry the plan out. The digest is remembered first: a crash in between leaves a file that is known to be ours."""
        if plan.backup:
            data = found.data
            if data is None:
                raise StoreError(found.reason, f"no copy can be kept of it: {found.detail}")
            try:
                await self._worker.run(lambda: self._remembered.backup(self.file_name, data), FILE_DEADLINE)
            except (DevwardError, OSError) as error:
                raise StoreError(Reason.CDI_IO_ERROR, f"no copy of the file that stands there could be kept: {error}") from error
        if plan.step is Step.REMOVE or order.desired is None:
            await self._worker.run(lambda: store.remove(self.directory, self.file_name), FILE_DEADLINE)
            return
        desired = order.desired
        await self._remembered.add_digest(self.path, _digest(desired))
        self._label = await self._worker.run(lambda: store.write(self.directory, self.file_name, desired), FILE_DEADLINE)
        self._label_known = True
        self._adopted = True

    def _count(self, cause: RepairCause, order: Order) -> None:
        """Count a repair and publish; what devward itself wanted otherwise than before is no sign that somebody interferes."""
        now = self._clock.monotonic()
        interfered = (
            cause not in (RepairCause.WITHDRAWN, RepairCause.TAKE_OVER, RepairCause.ADOPTED) and order.desired == self._last_desired
        )
        step = self.contest.step
        if interfered:
            self.contest = contest.repaired(self.contest, now, order.contested_after)
        self.view = replace(
            self.view, repair_count=self.view.repair_count + 1, last_repair_usec=self._clock.realtime_usec(), last_repair_cause=cause
        )
        state = SpecState.EMPTY if order.desired is None else SpecState.CONTESTED if self.contest.contested else SpecState.TRUE
        reason = Reason.CDI_CONTESTED if state is SpecState.CONTESTED else Reason.OK
        if self.contest.step > step:
            self._audit.event(
                "spec-contested",
                f"{self.path} keeps being changed by something else; the next repair waits {self.contest.wait:g} s",
                cdi_file=self.path,
                reason=Reason.CDI_CONTESTED,
                evidence={"step": self.contest.step, "wait_seconds": self.contest.wait},
            )
        self._publish(state, reason, "", () if order.desired is None else order.devices)
        self._on_repair(self.path, cause)

    def _publish(self, state: SpecState, reason: Reason, detail: str, devices: tuple[str, ...] | None = None) -> None:
        before = self.view
        since = before.state_since_usec if state is before.state else self._clock.realtime_usec()
        self.view = replace(
            before,
            state=state,
            reason=reason,
            text=sentence(reason, detail) if reason is not Reason.OK else detail,
            state_since_usec=since,
            devices=before.devices if devices is None else devices,
        )
        if (state, reason) == (before.state, before.reason):
            return
        told = {
            SpecState.BLOCKED: "spec-blocked",
            SpecState.FOREIGN: "spec-foreign",
            SpecState.CONFLICT: "spec-conflict",
            SpecState.SHADOWED: "spec-conflict",
        }.get(state)
        if told is not None:
            self._audit.transition(self.path, told, f"{self.path}: {self.view.text}", cdi_file=self.path, reason=reason)
        elif before.state in (SpecState.BLOCKED, SpecState.FOREIGN, SpecState.CONFLICT, SpecState.SHADOWED) and state in (
            SpecState.TRUE,
            SpecState.EMPTY,
        ):
            self._audit.transition(self.path, "spec-restored", f"{self.path} is true again", cdi_file=self.path)


class _ChangedMeanwhile(Exception):
    """The directory was replaced, or the name came or went, while the file was written: look again."""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
