"""The loop that keeps the owned CDI files true: devices and files in, documents and findings out.

Whatever happens only says "look again"; each pass observes, decides, acts and publishes. Passes never overlap, and a caller that needs
one shares the next that begins after it asked.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from devward import names
from devward.audit import Audit
from devward.cdi import contest, decision, spec
from devward.cdi.decision import Candidate, LeftOut, Membership
from devward.cdi.engines import SCAN_DEADLINE, Engines
from devward.cdi.owned import Order, OwnedSpec
from devward.cdi.pause import PauseKeeper
from devward.cdi.store import StoreError, sweep
from devward.cdi.watch import DirectoryWatch, Touched
from devward.clock import Clock, Coalescer
from devward.config import CdiConfig
from devward.devices.health import sentence
from devward.errors import Stopping
from devward.model import (
    ActionRequest,
    ActionResult,
    CdiMode,
    DeviceKind,
    Finding,
    Outcome,
    Reason,
    RepairCause,
    SpecState,
    SpecView,
    Trigger,
)
from devward.remembered import Remembered
from devward.worker import Worker, WorkerHung

_log = logging.getLogger(__name__)

#: Seconds between passes that nothing asked for; they catch what events missed.
SLOW_PASS = 60.0
#: Seconds until the next pass after one whose scan left files to a later one.
SCAN_AGAIN = 1.0
#: Seconds until the next pass after one that was broken off.
AFTER_FAILURE = 10.0
#: The first event of a burst is answered at once, the rest after this quiet, or at this ceiling, in seconds.
TOUCH_QUIET, TOUCH_CEILING = 0.005, 0.02


@dataclass(frozen=True, slots=True)
class PassRequest:
    """What the next pass shall do beyond looking."""

    trigger: Trigger
    demanded: bool = False
    scan: bool = False
    adopt: bool = False
    dry_run: bool = False
    request: ActionRequest | None = None


class CdiReconciler:
    """Owns the hypervisor spec. `on_change` is called after each pass that changed what is published."""

    def __init__(
        self,
        config: CdiConfig,
        *,
        devices: Callable[[], Sequence[Candidate]],
        files: Worker,
        scans: Worker,
        remembered: Remembered,
        audit: Audit,
        clock: Clock,
        on_change: Callable[[], None],
        on_repair: Callable[[str, RepairCause], None],
    ) -> None:
        """Nothing is touched before `start`."""
        self._config = config
        self._devices = devices
        self._files = files
        self._scans = scans
        self._remembered = remembered
        self._audit = audit
        self._clock = clock
        self._on_change = on_change
        self._on_repair = on_repair
        self._scan_wanted = True
        self._membership = Membership()
        self._lock = asyncio.Lock()
        self._waiting: _Waiting | None = None
        self._tasks: set[asyncio.Task[ActionResult]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._watch: DirectoryWatch | None = None
        self._watch_warned = False
        self._watch_hung = False
        self._pause = PauseKeeper(remembered, audit, clock)
        self._touches = Coalescer(self._touched_again, quiet=TOUCH_QUIET, ceiling=TOUCH_CEILING, leading=True)
        self._started = False
        self._closed = False
        self.last_pass_monotonic = clock.monotonic()
        self._spec = self._make_spec()
        self._engines = Engines(self._spec.path, config, scans)

    # --- what others see ---------------------------------------------------------------------------------------------
    @property
    def view(self) -> SpecView:
        """What is published of the hypervisor spec."""
        return self._spec.view

    @property
    def mode(self) -> CdiMode:
        """The mode in force: the one set over the bus, else the configuration's."""
        return self._remembered.state.cdi_mode or self._config.mode

    @property
    def paused_until_usec(self) -> int:
        """When the pause ends, 0 if there is none."""
        return self._pause.until_usec

    @property
    def may_write(self) -> bool:
        """Whether repairs are on."""
        return self.mode is CdiMode.REPAIR and not self.paused_until_usec

    @property
    def busy(self) -> bool:
        """Whether a pass is under way or a withdrawal is settling."""
        return bool(self._tasks) or bool(self._membership.leaving)

    def published(self, kind: DeviceKind) -> bool:
        """Tell whether a device is in the document that the file should hold."""
        return kind in self._document_kinds()

    def effective(self, kind: DeviceKind) -> tuple[bool, Reason, str]:
        """Tell whether engines would use our definition of a device, by the latest scan, and if not why."""
        return self._engines.effective(qualified(kind))

    def findings(self) -> tuple[Finding, ...]:
        """What the latest scan of the engines' directories found, what is left out for it, and what is wrong with the set-up."""
        left_out = sorted(self._membership.published - set(self._document_kinds()))
        conflicts = [
            Finding(Reason.CDI_CONFLICT, path, f"it defines {qualified(kind)} too, which devward therefore leaves out of {self._spec.path}")
            for kind in left_out
            for path in self._engines.rivals(qualified(kind))
        ]
        blind = self._started and (self._watch is None or not self._watch.complete)
        unwatched = [Finding(Reason.NOT_WATCHED, self._config.directory, sentence(Reason.NOT_WATCHED, ""))] if blind else []
        return (*conflicts, *unwatched, *self._engines.findings())

    # --- life ----------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Sweep what a killed run left, learn which devices the file holds, watch, and make the first pass."""
        await self._sweep()
        content = await self._spec.found_devices()
        self._membership = Membership(_kinds_in(content))
        self._started = True
        await self.run(PassRequest(Trigger.STARTUP, scan=True))

    async def configure(self, config: CdiConfig) -> None:
        """Apply a new configuration; another directory means another file, and the old one is left as it is."""
        moved = (config.directory, config.engine_dirs) != (self._config.directory, self._config.engine_dirs)
        async with self._lock:
            new_file = config.directory != self._config.directory
            self._config = config
            if new_file:
                self._spec = self._make_spec()
                await self._sweep()
            if moved:
                self._engines = Engines(self._spec.path, config, self._scans)
                if self._watch is not None:
                    self._watch.close()
                    self._watch = None  # the next pass makes another
        self.nudge(Trigger.SIGNAL, scan=True)

    async def close(self) -> None:
        """Finish the passes that were asked for before, and stop."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._touches.cancel()
        if self._watch is not None:
            self._watch.close()

    # --- passes --------------------------------------------------------------------------------------------------------
    def nudge(self, trigger: Trigger, *, scan: bool = False) -> None:
        """Have everything looked at again, soon, without waiting for it; before `start` there is nothing to look at again."""
        if self._started and not self._closed:
            self._join(PassRequest(trigger, scan=scan))

    async def run(self, request: PassRequest) -> ActionResult:
        """Wait for a pass that begins after this call and does at least what is requested. Raises Stopping once closed."""
        if self._closed:
            raise Stopping("devward is stopping")
        return await asyncio.shield(self._join(request))

    def _join(self, request: PassRequest) -> asyncio.Task[ActionResult]:
        """Share the pass that has not begun yet if it can do this too, else ask for one more."""
        if request.trigger is not Trigger.TIMER and not request.dry_run:
            self._spec.hint()
        waiting = self._waiting
        if waiting is not None and _can_share(waiting.request, request):
            waiting.request = replace(
                waiting.request, demanded=waiting.request.demanded or request.demanded, scan=waiting.request.scan or request.scan
            )
            return waiting.task
        waiting = _Waiting(request)
        waiting.task = asyncio.get_running_loop().create_task(self._begin(waiting), name="cdi pass")
        self._waiting = waiting
        self._tasks.add(waiting.task)
        waiting.task.add_done_callback(self._pass_done)
        return waiting.task

    async def _begin(self, waiting: "_Waiting") -> ActionResult:
        async with self._lock:
            if self._waiting is waiting:
                self._waiting = None
            return await self._pass(waiting.request)

    def _pass_done(self, task: asyncio.Task[ActionResult]) -> None:
        self._tasks.discard(task)
        failed = not task.cancelled() and task.exception() is not None
        if failed:
            _log.error("a pass over the CDI files failed", exc_info=task.exception())
        if not self._closed and not self._tasks:
            self._schedule(failed=failed)

    async def _pass(self, request: PassRequest) -> ActionResult:
        self._scan_wanted = self._scan_wanted or request.scan
        try:
            await self._rearm()
            if not request.dry_run:
                await self._pause.update()
            candidates = self._devices()
            self._membership = decision.membership(
                self._membership, candidates, self._config.withdraw, self._config.settle_time, self._clock.monotonic()
            )
            if self.mode is CdiMode.OFF and not request.demanded:
                self._spec.switched_off()
                result = ActionResult(self._spec.path, Outcome.NOOP, Reason.CDI_PAUSED)
            else:
                result = await self._reconcile(request, candidates)
        except Exception as error:  # what was published is not known to hold any more; the error goes on to whoever waits, and to the log
            self._spec.broke_off(error)
            self._on_change()
            raise
        self.last_pass_monotonic = self._clock.monotonic()
        self._on_change()
        return result

    async def _reconcile(self, request: PassRequest, candidates: Sequence[Candidate]) -> ActionResult:
        if self._scan_wanted:
            await self._scan()
        kinds = self._document_kinds()
        result = await self._spec.reconcile(self._order(request, kinds, candidates))
        if result.outcome is Outcome.SUCCESS:
            await self._scan()  # what engines find has changed by our own act
        if not request.dry_run:
            left_out = [qualified(kind) for kind in self._membership.published - set(kinds)]
            self._spec.publish(self._engines.overlay([qualified(kind) for kind in kinds], left_out))
        if self._document_kinds() != kinds:
            self.nudge(request.trigger)  # a rival turned up meanwhile
        return result

    def _order(self, request: PassRequest, kinds: Sequence[DeviceKind], candidates: Sequence[Candidate]) -> Order:
        document = spec.render_hypervisor(kinds, uid=self._config.device_uid, gid=self._config.device_gid) if kinds else None
        return Order(
            desired=document,
            devices=tuple(qualified(kind) for kind in kinds),
            trigger=request.trigger,
            left_out=tuple(self._left_out(kinds, candidates)),
            may_write=self.may_write,
            demanded=request.demanded,
            adopt=request.adopt,
            dry_run=request.dry_run,
            withdrawing=bool(candidates),
            undecided=decision.undecided(self._membership, candidates, self._config.withdraw),
            contested_after=self._config.contested_after,
            request=request.request,
        )

    def _left_out(self, kinds: Sequence[DeviceKind], candidates: Sequence[Candidate]) -> Iterator[LeftOut]:
        """Yield the devices that are watched, or that the file held, and that are not in the document."""
        reasons = {candidate.kind: candidate.reason for candidate in candidates}
        for kind in DeviceKind:
            device = qualified(kind)
            if kind not in kinds and (kind in reasons or device in self._spec.view.devices):
                rivalled = kind in self._membership.published
                reason = Reason.CDI_CONFLICT if rivalled else reasons.get(kind, Reason.DEVICE_MISSING)
                yield LeftOut(device, f"{names.DEVICE_DIRECTORY}/{kind}", reason)

    def _document_kinds(self) -> list[DeviceKind]:
        """Return the devices for the document: one that another file of the directory defines would be dead in both."""
        return sorted(kind for kind in self._membership.published if not self._engines.rivals(qualified(kind)))

    async def _scan(self) -> None:
        self._scan_wanted = False  # before it begins: what changes from now on may escape it
        if not await self._engines.scan() or self._engines.waiting:
            self._scan_wanted = True

    async def _sweep(self) -> None:
        if self.mode is not CdiMode.REPAIR:
            return
        try:
            swept = await self._files.run(lambda: sweep(self._config.directory), SCAN_DEADLINE)
        except (StoreError, WorkerHung) as error:
            _log.warning("%s could not be swept: %s", self._config.directory, error)
            return
        if swept:
            self._audit.event(
                "leftovers-swept",
                f"Removed {len(swept)} temporary files that an interrupted write left in {self._config.directory}",
                count=len(swept),
                evidence={"directory": self._config.directory, "files": list(swept)},
            )

    # --- what leads to passes --------------------------------------------------------------------------------------------
    async def _rearm(self) -> None:
        """Set the watches anew. Not on the loop: to find a directory may take as long as its file system pleases."""
        if self._watch is None and self._started:
            self._watch = self._make_watch()
        if self._watch is not None:
            try:
                if await self._scans.run(self._watch.rearm, SCAN_DEADLINE):
                    self._scan_wanted = True
            except WorkerHung as error:
                if not self._watch_hung:
                    _log.warning("the watches on the CDI directories stay as they are: %s", error)
                self._watch_hung = True
            else:
                if self._watch_hung:
                    _log.warning("the watches on the CDI directories are set anew again")
                self._watch_hung = False

    def _touched(self, touched: Touched) -> None:
        if self._closed:
            return
        self._scan_wanted = self._scan_wanted or touched is Touched.OTHERS
        self._touches.trigger()

    def _touched_again(self) -> None:
        self.nudge(Trigger.INOTIFY)

    def _schedule(self, *, failed: bool) -> None:
        """Set the one timer: a withdrawal that settles, a wait after a failure or in a contest, the end of a pause, or the slow pass."""
        now = self._clock.monotonic()
        moments = [now + (AFTER_FAILURE if failed else SLOW_PASS)]
        withdrawal = decision.next_withdrawal(self._membership, self._config.settle_time)
        if withdrawal is not None and not failed:  # the moment may have come, and nothing was made of it
            moments.append(withdrawal)
        if self._spec.retry_at is not None and not failed:
            moments.append(self._spec.retry_at)
        if self._spec.view.state is SpecState.CONTESTED and not contest.may_repair(self._spec.contest, now):
            moments.append(self._spec.contest.not_before)
        if self._engines.waiting and self.mode is not CdiMode.OFF:
            moments.append(now + (AFTER_FAILURE if failed else SCAN_AGAIN))
        if self._pause.remaining:
            moments.append(now + self._pause.remaining)
        if self._timer is not None:
            self._timer.cancel()
        delay = max(min(moments) - now, 0.0) + 0.001
        self._timer = asyncio.get_running_loop().call_later(delay, self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        self.nudge(Trigger.TIMER, scan=self._clock.monotonic() - self.last_pass_monotonic >= SLOW_PASS / 2)

    def _make_spec(self) -> OwnedSpec:
        return OwnedSpec(
            self._config.directory,
            names.HYPERVISOR_CDI_FILE,
            names.HYPERVISOR_CDI_KIND,
            worker=self._files,
            remembered=self._remembered,
            audit=self._audit,
            clock=self._clock,
            on_repair=self._on_repair,
        )

    def _make_watch(self) -> DirectoryWatch | None:
        try:
            return DirectoryWatch(frozenset({self._spec.path}), self._config.engine_dirs, self._touched)
        except OSError as error:
            if not self._watch_warned:
                _log.warning("the CDI directories cannot be watched, changes show in the slow pass: %s", error.strerror)
            self._watch_warned = True
            return None


class _Waiting:
    """A pass that was asked for and has not begun: what it shall do may still grow."""

    task: asyncio.Task[ActionResult]

    def __init__(self, request: PassRequest) -> None:
        self.request = request


def qualified(kind: DeviceKind) -> str:
    """Return the CDI name of a hypervisor device, such as `hyperlight.dev/hypervisor=kvm`."""
    return f"{names.HYPERVISOR_CDI_KIND}={kind}"


def _can_share(waiting: PassRequest, request: PassRequest) -> bool:
    """A manual action has a pass of its own, since its records carry its request id."""
    return waiting.request is None and request.request is None and waiting.dry_run == request.dry_run and waiting.adopt == request.adopt


def _kinds_in(content: bytes | None) -> frozenset[DeviceKind]:
    """Return the devices that a file of ours holds from an earlier run."""
    if content is None:
        return frozenset()
    try:
        devices = spec.load(content, names.HYPERVISOR_CDI_FILE).devices
    except spec.SpecError:
        return frozenset()
    return frozenset(kind for kind in DeviceKind if qualified(kind) in devices)
