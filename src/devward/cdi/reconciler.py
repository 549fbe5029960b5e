"""The loop that keeps the owned CDI files true: devices and files in, documents and findings out.

Whatever happens only says "look again"; each pass observes, decides, acts and publishes. Passes never overlap, and a caller that needs
one shares the next that begins after it asked.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from devward.audit import Audit
from devward.cdi import contest, decision
from devward.cdi.engines import SCAN_DEADLINE, Engines
from devward.cdi.kept import KeptSpec
from devward.cdi.owned import OwnedSpec
from devward.cdi.pause import PauseKeeper
from devward.cdi.sources import Source, kind_of_device
from devward.cdi.store import StoreError, sweep
from devward.cdi.watch import DirectoryWatch, Touched
from devward.clock import Clock, Coalescer
from devward.config import CdiConfig
from devward.devices.health import sentence
from devward.errors import Stopping
from devward.model import ActionRequest, ActionResult, CdiMode, Finding, Outcome, RepairCause, SpecState, SpecView, Trigger
from devward.reasons import Reason
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


#: What a pass came to, by the kind of the file.
PassResults: TypeAlias = dict[str, ActionResult]


@dataclass(frozen=True, slots=True)
class PassRequest:
    """What the next pass shall do beyond looking."""

    trigger: Trigger
    #: The kinds whose file somebody waits for: it is repaired even if it is contested.
    demanded: frozenset[str] = frozenset()
    scan: bool = False
    #: The kind whose file is taken over whatever it is, empty for none.
    adopt: str = ""
    dry_run: bool = False
    request: ActionRequest | None = None


class CdiReconciler:
    """Owns one file of each source. `on_change` is called after each pass that changed what is published."""

    def __init__(
        self,
        config: CdiConfig,
        *,
        sources: Sequence[Source],
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
        self._files = files
        self._scans = scans
        self._remembered = remembered
        self._audit = audit
        self._clock = clock
        self._on_change = on_change
        self._on_repair = on_repair
        self._scan_wanted = True
        self._lock = asyncio.Lock()
        self._waiting: _Waiting | None = None
        self._tasks: set[asyncio.Task[PassResults]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._watch: DirectoryWatch | None = None
        self._watch_warned = False
        self._watch_hung = False
        self._pause = PauseKeeper(remembered, audit, clock)
        self._touches = Coalescer(self._touched_again, quiet=TOUCH_QUIET, ceiling=TOUCH_CEILING, leading=True)
        self._started = False
        self._closed = False
        self.last_pass_monotonic = clock.monotonic()
        self._kept = [KeptSpec(source, self._make_owned) for source in sources]
        self._engines = self._make_engines()

    # --- what others see ---------------------------------------------------------------------------------------------
    @property
    def views(self) -> list[SpecView]:
        """What is published of each file that concerns this host."""
        return [kept.owned.view for kept in self._active()]

    def view(self, cdi_kind: str) -> SpecView:
        """Return what is published of the file of one kind."""
        return self._of_kind(cdi_kind).owned.view

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
        return bool(self._tasks) or any(kept.membership.leaving for kept in self._active())

    def node(self, device: str) -> str:
        """Return the path of the node of a device, given by its CDI name, whether there is one or not."""
        return self._of_kind(kind_of_device(device)).source.node(device)

    def objection(self, device: str) -> Reason:
        """Return why a device does not belong in its file, as of the latest pass; `ok` where nothing is against it."""
        return self._of_kind(kind_of_device(device)).objection(device)

    def effective(self, device: str) -> tuple[bool, Reason, str]:
        """Tell whether engines would use our definition of a device, by the latest scan, and if not why."""
        return self._engines.effective(self._of_kind(kind_of_device(device)).owned.path, device)

    def findings(self) -> tuple[Finding, ...]:
        """What the latest scan of the engines' directories found, what is left out for it, and what is wrong with the set-up."""
        conflicts = [finding for kept in self._active() for finding in kept.findings(self._engines)]
        blind = self._started and (self._watch is None or not self._watch.complete)
        unwatched = [Finding(Reason.NOT_WATCHED, self._config.directory, sentence(Reason.NOT_WATCHED, ""))] if blind else []
        return (*conflicts, *unwatched, *self._engines.findings())

    # --- life ----------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Sweep what a killed run left, learn which devices the files hold, watch, and make the first pass."""
        await self._sweep()
        for kept in self._kept:
            await kept.start()
        self._started = True
        await self.run(PassRequest(Trigger.STARTUP, scan=True))

    async def configure(self, config: CdiConfig) -> None:
        """Apply a new configuration; another directory means other files, and the old ones are left as they are."""
        moved = (config.directory, config.engine_dirs) != (self._config.directory, self._config.engine_dirs)
        async with self._lock:
            new_file = config.directory != self._config.directory
            self._config = config
            if new_file:
                for kept in self._kept:
                    kept.move()
                await self._sweep()
            if moved:
                self._engines = self._make_engines()
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

    async def run(self, request: PassRequest) -> PassResults:
        """Wait for a pass that begins after this call and does at least what is requested. Raises Stopping once closed."""
        if self._closed:
            raise Stopping("devward is stopping")
        return await asyncio.shield(self._join(request))

    def _join(self, request: PassRequest) -> asyncio.Task[PassResults]:
        """Share the pass that has not begun yet if it can do this too, else ask for one more."""
        if request.trigger is not Trigger.TIMER and not request.dry_run:
            for kept in self._active():
                kept.owned.hint()
        waiting = self._waiting
        if waiting is not None and _can_share(waiting.request, request):
            waiting.request = replace(
                waiting.request, demanded=waiting.request.demanded | request.demanded, scan=waiting.request.scan or request.scan
            )
            return waiting.task
        waiting = _Waiting(request)
        waiting.task = asyncio.get_running_loop().create_task(self._begin(waiting), name="cdi pass")
        self._waiting = waiting
        self._tasks.add(waiting.task)
        waiting.task.add_done_callback(self._pass_done)
        return waiting.task

    async def _begin(self, waiting: "_Waiting") -> PassResults:
        async with self._lock:
            if self._waiting is waiting:
                self._waiting = None
            return await self._pass(waiting.request)

    def _pass_done(self, task: asyncio.Task[PassResults]) -> None:
        self._tasks.discard(task)
        failed = not task.cancelled() and task.exception() is not None
        if failed:
            _log.error("a pass over the CDI files failed", exc_info=task.exception())
        if not self._closed and not self._tasks:
            self._schedule(failed=failed)

    async def _pass(self, request: PassRequest) -> PassResults:
        self._scan_wanted = self._scan_wanted or request.scan
        active = self._active()
        broken: dict[str, Exception] = {}
        try:
            await self._rearm()
            if not request.dry_run:
                await self._pause.update()
            for kept in active:
                with self._apart(kept, broken):
                    kept.consider(self._config, self._clock.monotonic())
            sound = [kept for kept in active if kept.source.cdi_kind not in broken]
            wanted = [kept for kept in sound if self.mode is not CdiMode.OFF or kept.source.cdi_kind in request.demanded]
            results = await self._reconcile(request, wanted, broken) if wanted else {}
            for kept in sound:
                if kept not in wanted:
                    kept.owned.switched_off()
                    results[kept.source.cdi_kind] = ActionResult(kept.owned.path, Outcome.NOOP, Reason.CDI_PAUSED)
        except Exception as error:  # what was published is not known to hold any more; the error goes on to whoever waits, and to the log
            for kept in active:
                kept.owned.broke_off(error)
            self._on_change()
            raise
        self.last_pass_monotonic = self._clock.monotonic()
        self._on_change()
        # Whoever waits for a file hears of its own failure only; a pass that nobody waits for has its failures logged.
        fatal = [error for kind, error in broken.items() if kind in request.demanded or not request.demanded]
        if fatal:
            raise fatal[0]
        return results

    @contextlib.contextmanager
    def _apart(self, kept: KeptSpec, broken: dict[str, Exception]) -> Iterator[None]:
        """Keep what fails about one file from the others."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # the edge between files: it is published here, and raised to those that wait for this one
            kept.owned.broke_off(error)
            broken[kept.source.cdi_kind] = error

    async def _reconcile(self, request: PassRequest, active: Sequence[KeptSpec], broken: dict[str, Exception]) -> PassResults:
        if self._scan_wanted:
            await self._scan()
        documents = [kept.devices(self._engines) for kept in active]
        results = {}
        for kept, devices in zip(active, documents, strict=True):
            with self._apart(kept, broken):
                results[kept.source.cdi_kind] = await kept.reconcile(
                    devices,
                    self._config,
                    trigger=request.trigger,
                    may_write=self.may_write,
                    demanded=kept.source.cdi_kind in request.demanded,
                    adopt=kept.source.cdi_kind == request.adopt,
                    dry_run=request.dry_run,
                    request=request.request,
                )
        if any(result.outcome is Outcome.SUCCESS for result in results.values()):
            await self._scan()  # what engines find has changed by our own act
        if not request.dry_run:
            for kept, devices in zip(active, documents, strict=True):
                if kept.source.cdi_kind not in broken:
                    kept.publish(self._engines, devices)
        if [kept.devices(self._engines) for kept in active] != documents:
            self.nudge(request.trigger)  # a rival turned up meanwhile
        return results

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
        for kept in self._active():
            owned = kept.owned
            withdrawal = decision.next_withdrawal(kept.membership, self._config.settle_time)
            if withdrawal is not None and not failed:  # the moment may have come, and nothing was made of it
                moments.append(withdrawal)
            if owned.retry_at is not None and not failed:
                moments.append(owned.retry_at)
            if owned.view.state is SpecState.CONTESTED and not contest.may_repair(owned.contest, now):
                moments.append(owned.contest.not_before)
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

    def _active(self) -> list[KeptSpec]:
        """Return the files that concern this host."""
        return [kept for kept in self._kept if kept.active]

    def _of_kind(self, cdi_kind: str) -> KeptSpec:
        return next(kept for kept in self._kept if kept.source.cdi_kind == cdi_kind)

    def _paths(self) -> frozenset[str]:
        return frozenset(kept.owned.path for kept in self._kept)

    def _make_engines(self) -> Engines:
        return Engines(self._paths(), self._config, self._scans)

    def _make_owned(self, file_name: str, cdi_kind: str) -> OwnedSpec:
        return OwnedSpec(
            self._config.directory,
            file_name,
            cdi_kind,
            worker=self._files,
            remembered=self._remembered,
            audit=self._audit,
            clock=self._clock,
            on_repair=self._on_repair,
        )

    def _make_watch(self) -> DirectoryWatch | None:
        try:
            return DirectoryWatch(self._paths(), self._config.engine_dirs, self._touched)
        except OSError as error:
            if not self._watch_warned:
                _log.warning("the CDI directories cannot be watched, changes show in the slow pass: %s", error.strerror)
            self._watch_warned = True
            return None


class _Waiting:
    """A pass that was asked for and has not begun: what it shall do may still grow."""

    task: asyncio.Task[PassResults]

    def __init__(self, request: PassRequest) -> None:
        self.request = request


def _can_share(waiting: PassRequest, request: PassRequest) -> bool:
    """A manual action has a pass of its own, since its records carry its request id."""
    return waiting.request is None and request.request is None and waiting.dry_run == request.dry_run and waiting.adopt == request.adopt
