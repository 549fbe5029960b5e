"""The loop that keeps the owned CDI files true: devices and files in, documents and findings out.

Whatever happens only says "look again"; each pass observes, decides, acts and publishes. Passes never overlap, and a caller that needs
one shares the next that begins after it asked.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from devward import names
from devward.audit import Audit
from devward.cdi import contest, decision, spec
from devward.cdi.decision import Candidate, Membership
from devward.cdi.owned import Order, OwnedSpec
from devward.cdi.resolve import Resolution, resolve
from devward.cdi.scan import Scanner
from devward.cdi.store import StoreError, sweep
from devward.cdi.watch import DirectoryWatch, Touched
from devward.clock import Clock, Coalescer
from devward.config import CdiConfig
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
#: Seconds that a scan of the engines' directories may take.
SCAN_DEADLINE = 5.0
#: The first event of a burst is answered at once, the rest after this quiet, or at this ceiling, in seconds.
TOUCH_QUIET, TOUCH_CEILING = 0.02, 0.1


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
        self._scanner = Scanner()
        self._resolution: Resolution | None = None
        self._scan_wanted = True
        self._scan_problem = ""
        self._membership = Membership()
        self._rivals: dict[DeviceKind, tuple[str, ...]] = {}
        self._lock = asyncio.Lock()
        self._waiting: _Waiting | None = None
        self._tasks: set[asyncio.Task[ActionResult]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._watch: DirectoryWatch | None = None
        self._touches = Coalescer(self._touched_again, quiet=TOUCH_QUIET, ceiling=TOUCH_CEILING, leading=True)
        self._closed = False
        self.last_pass_monotonic = clock.monotonic()
        self.passes = 0
        self._spec = self._make_spec()

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
        pause = self._remembered.state.cdi_pause
        return pause.until_usec if pause is not None and pause.until_usec > self._clock.realtime_usec() else 0

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
        if self._resolution is None:
            return False, Reason.CDI_TIMEOUT, self._scan_problem
        if self._rivals.get(kind):
            return False, Reason.CDI_CONFLICT, f"also in {', '.join(self._rivals[kind])}"
        if self._resolution.engines_blocked is not None:
            return False, Reason.CDI_ENGINE_BLOCKED, self._resolution.engines_blocked
        found = self._resolution.effective(qualified(kind))
        if found.file == self._spec.path:
            return True, Reason.OK, ""
        if found.file is not None:
            return False, Reason.CDI_SHADOWED, f"{found.file} wins"
        rivals = [path for path in found.contenders if path != self._spec.path]
        if rivals:
            return False, Reason.CDI_CONFLICT, f"also in {', '.join(rivals)}"
        if self._config.directory not in self._config.engine_dirs:
            return False, Reason.CDI_DIRECTORY_NOT_READ, self._config.directory
        return False, Reason.CDI_NOT_PUBLISHED, ""

    def findings(self) -> tuple[Finding, ...]:
        """What the latest scan of the engines' directories found, and what is wrong with the set-up."""
        found = list(self._resolution.findings()) if self._resolution is not None else []
        if self._scan_problem:
            found.append(Finding(Reason.CDI_TIMEOUT, "engine_dirs", self._scan_problem))
        if self._config.directory not in self._config.engine_dirs:
            found.append(
                Finding(Reason.CDI_DIRECTORY_NOT_READ, self._config.directory, f"{self._config.directory} is not in cdi.engine_dirs")
            )
        return tuple(found)

    # --- life ----------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Sweep what a killed run left, learn which devices the file holds, watch, and make the first pass."""
        await self._sweep()
        content = await self._spec.found_devices()
        self._membership = Membership(_kinds_in(content))
        self._watch = self._make_watch()
        await self.run(PassRequest(Trigger.STARTUP, scan=True))

    async def configure(self, config: CdiConfig) -> None:
        """Apply a new configuration; another directory means another file, and the old one is left as it is."""
        moved = (config.directory, config.engine_dirs) != (self._config.directory, self._config.engine_dirs)
        async with self._lock:
            new_file = config.directory != self._config.directory
            self._config = config
            if new_file:
                self._spec = self._make_spec()
            if moved and self._watch is not None:
                self._watch.close()
                self._watch = self._make_watch()
        self.nudge(Trigger.SIGNAL, scan=True)

    async def close(self) -> None:
        """Finish the pass under way and stop."""
        self._closed = True
        self._touches.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self._watch is not None:
            self._watch.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- passes --------------------------------------------------------------------------------------------------------
    def nudge(self, trigger: Trigger, *, scan: bool = False) -> None:
        """Have everything looked at again, soon, without waiting for it."""
        self._join(PassRequest(trigger, scan=scan))

    async def run(self, request: PassRequest) -> ActionResult:
        """Wait for a pass that begins after this call and does at least what is requested."""
        return await asyncio.shield(self._join(request))

    def _join(self, request: PassRequest) -> asyncio.Task[ActionResult]:
        """Share the pass that has not begun yet if it can do this too, else ask for one more."""
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
        if not task.cancelled() and task.exception() is not None:
            _log.error("a pass over the CDI files failed", exc_info=task.exception())
        if not self._closed and not self._tasks:
            self._schedule()

    async def _pass(self, request: PassRequest) -> ActionResult:
        if self._watch is not None:
            self._watch.rearm()
        self._scan_wanted = self._scan_wanted or request.scan
        if self.mode is CdiMode.OFF and not request.demanded:
            self._spec.switched_off()
            result = ActionResult(self._spec.path, Outcome.NOOP, Reason.CDI_PAUSED)
        else:
            result = await self._reconcile(request)
        self.last_pass_monotonic = self._clock.monotonic()
        self.passes += 1
        self._on_change()
        return result

    async def _reconcile(self, request: PassRequest) -> ActionResult:
        now = self._clock.monotonic()
        candidates = self._devices()
        self._membership = decision.membership(self._membership, candidates, self._config.withdraw, self._config.settle_time, now)
        if self._scan_wanted:
            await self._scan()
        self._rivals = self._find_rivals()
        result = await self._spec.reconcile(self._order(request, withdrawing=bool(candidates)))
        if result.outcome is Outcome.SUCCESS:
            await self._scan()  # what engines make of the directories has changed by our own act
            self._rivals = self._find_rivals()
        self._overlay()
        return result

    def _order(self, request: PassRequest, *, withdrawing: bool) -> Order:
        kinds = self._document_kinds()
        document = spec.render_hypervisor(kinds, uid=self._config.device_uid, gid=self._config.device_gid) if kinds else None
        return Order(
            desired=document,
            devices=tuple(qualified(kind) for kind in kinds),
            trigger=request.trigger,
            may_write=self.may_write,
            demanded=request.demanded,
            adopt=request.adopt,
            dry_run=request.dry_run,
            withdrawing=withdrawing,
            contested_after=self._config.contested_after,
            request=request.request,
        )

    def _document_kinds(self) -> list[DeviceKind]:
        return sorted(kind for kind in self._membership.published if not self._rivals.get(kind))

    def _find_rivals(self) -> dict[DeviceKind, tuple[str, ...]]:
        if self._resolution is None:
            return {}
        return {
            kind: self._resolution.rivals(self._config.directory, self._spec.path, qualified(kind)) for kind in self._membership.published
        }

    def _overlay(self) -> None:
        """Say of a file that is in order by itself whether engines can use what it says."""
        rivals = sorted({path for paths in self._rivals.values() for path in paths})
        if rivals:
            self._spec.overlay(SpecState.CONFLICT, Reason.CDI_CONFLICT, f"left out because of {', '.join(rivals)}")
            return
        for kind in self._document_kinds():
            usable, reason, detail = self.effective(kind)
            if not usable and reason in (
                Reason.CDI_SHADOWED,
                Reason.CDI_CONFLICT,
                Reason.CDI_ENGINE_BLOCKED,
                Reason.CDI_DIRECTORY_NOT_READ,
            ):
                state = SpecState.CONFLICT if reason is Reason.CDI_CONFLICT else SpecState.SHADOWED
                self._spec.overlay(state, reason, detail)
                return
        self._spec.overlay(SpecState.TRUE if self._document_kinds() else SpecState.EMPTY, Reason.OK, "")

    async def _scan(self) -> None:
        directories = self._config.engine_dirs
        if self._config.directory not in directories:
            directories = (self._config.directory, *directories)
        try:
            self._resolution = resolve(await self._scans.run(lambda: self._scanner.scan(directories), SCAN_DEADLINE))
            self._scan_problem = ""
            self._scan_wanted = False
        except WorkerHung as error:
            self._resolution = None
            self._scan_problem = f"the directories that engines read cannot be scanned: {error}"

    async def _sweep(self) -> None:
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
    def _touched(self, touched: Touched) -> None:
        self._scan_wanted = self._scan_wanted or touched.others
        self._touches.trigger()

    def _touched_again(self) -> None:
        self.nudge(Trigger.INOTIFY)

    def _schedule(self) -> None:
        """Set the one timer: a withdrawal that settles, a contest's wait, the end of a pause, or the slow pass."""
        now = self._clock.monotonic()
        moments = [now + SLOW_PASS]
        withdrawal = decision.next_withdrawal(self._membership, self._config.settle_time)
        if withdrawal is not None:
            moments.append(withdrawal)
        if self._spec.view.state is SpecState.CONTESTED and not contest.may_repair(self._spec.contest, now):
            moments.append(self._spec.contest.not_before)
        if self.paused_until_usec:
            moments.append(now + (self.paused_until_usec - self._clock.realtime_usec()) / 1e6)
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
            _log.warning("the CDI directories cannot be watched, changes show in the slow pass: %s", error.strerror)
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
