"""The daemon: wires the rooms together, starts them in order, keeps the pulse, and stops them."""

import asyncio
import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from devward import __version__, config, names
from devward.allocation import AllocationCheck
from devward.audit import Audit
from devward.bus.service import BusService
from devward.cdi import reconciler as cdi
from devward.cdi.decision import Candidate
from devward.cdi.reconciler import CdiReconciler, PassRequest
from devward.cdi.sources import HypervisorSource, qualified
from devward.clock import Clock
from devward.cluster.room import ClusterRoom
from devward.collector import settle
from devward.config import LoadedConfig
from devward.devices import registry as devices
from devward.devices.health import DeviceState
from devward.devices.hypervisor import HypervisorProber
from devward.devices.registry import DeviceRegistry
from devward.devices.trail import DeviceTrail
from devward.errors import BusError, ConfigError, ConfigRefused
from devward.findings import FindingTrail
from devward.journal import Journal, Priority
from devward.logs import Logs
from devward.measuring import Measuring
from devward.metrics_room import MetricsRoom
from devward.model import ActionRequest, Allocation, DeviceKind, Finding, Outcome, RepairCause, SpecState, Trigger
from devward.notify import Notifier
from devward.npu.room import NpuRoom
from devward.npu.sources import CardSource, VnpuSource
from devward.pinning import Pinning
from devward.plugin.room import PluginRoom
from devward.reasons import Reason
from devward.reclaim.room import ReclaimRoom
from devward.remembered import Remembered, with_bounded_pause
from devward.service import Identification, Service, own_request
from devward.state import Lock, StateStore
from devward.worker import Worker

if TYPE_CHECKING:  # a host without NPUs loads nothing of them
    from devward.cluster.owners import Judge

_log = logging.getLogger(__name__)

#: Seconds between housekeeping passes: the devices' slow pass, damped records that are due, findings.
HOUSEKEEPING = 60.0
#: Seconds that stopping may wait for a pass under way.
STOP_DEADLINE = 10.0
#: Seconds until it is looked at again whether a check that is published as under way has ended.
CHECKING_RECHECK = 0.25


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line and the service manager say."""

    config_file: str
    config_required: bool
    dropin_directory: str | None
    state_directory: str
    runtime_directory: str
    bus_address: str | None
    no_reclaim: bool = False


class Daemon:
    """One run of devwardd."""

    def __init__(self, options: Options, loaded: LoadedConfig, *, clock: Clock, notifier: Notifier) -> None:
        """Make the rooms that need no loop; nothing is touched before `run`."""
        self._options = options
        self._clock = clock
        self._notifier = notifier
        #: In use until the end, whatever a reload says.
        self._journal_socket = loaded.config.log.journal_socket
        self._journal = Journal(self._journal_socket, stderr=sys.stderr)
        self._logs = Logs(self._journal, loaded.config.log.level)
        self._audit = Audit(self._journal, version=__version__, new_id=_new_id, monotonic=clock.monotonic)
        self._findings = FindingTrail(self._audit)
        self._device_trail = DeviceTrail(self._audit)
        self._loaded = loaded
        self._lock = Lock(options.runtime_directory)
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: bool | None = None
        self._publishing = False
        self._recheck: asyncio.TimerHandle | None = None

    async def run(self) -> int:
        """Run until a signal or until the bus is lost, and return the exit status. Raises DevwardError where it cannot start."""
        with self._lock:
            return await self._run()

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        store = StateStore(self._options.state_directory, realtime_usec=self._clock.realtime_usec)
        remembered = store.load()
        files = Worker("files", self._file_system_answers)
        scans = Worker("scan", self._file_system_answers)
        states = Worker("state")
        self._npus = NpuRoom(
            self._loaded.config.npu,
            audit=self._audit,
            clock=self._clock,
            call=self._call,
            on_change=self._npus_changed,
            has_pins=lambda: bool(self._remembered.state.pins),
            claims=self._claims,
        )
        self._registry = DeviceRegistry(
            self._loaded.config.hypervisor,
            make_prober=self._make_prober,
            clock=self._clock,
            on_change=self._device_changed,
            on_overflow=self._overflow,
            on_mounts=self._mounts_changed,
            on_npu=self._npus.seen,
        )
        self._remembered = Remembered(with_bounded_pause(remembered.state, self._clock.realtime_usec()), store, states)
        self._pins = Pinning(
            self._remembered,
            self._npus,
            self._audit,
            self._clock,
            self._pins_changed,
            lateness=self._lateness,
            spec_path=lambda: self._reconciler.view(names.VNPU_CDI_KIND).file,
        )
        self._cluster = ClusterRoom(
            self._loaded.config.cluster,
            self._npus,
            state_directory=self._options.state_directory,
            clock=self._clock,
            has_pinned=lambda: self._pins.has_vnpus,
            judge=self._judge,
            on_change=self._owners_changed,
            on_loaded=settle,
        )
        self._reclaim = ReclaimRoom(
            self._loaded.config.reclaim,
            self._npus,
            remembered=self._remembered,
            state_directory=self._options.state_directory,
            audit=self._audit,
            clock=self._clock,
            new_id=_new_id,
            no_reclaim=self._options.no_reclaim,
            pins=self._pins.report,
            look=self._cluster.look,
            on_change=self._publish_soon,
            on_reclaimed=self._reclaimed,
        )
        self._reconciler = CdiReconciler(
            self._loaded.config.cdi,
            sources=(HypervisorSource(self._candidates), CardSource(self._npus), VnpuSource(self._npus, self._pins.report)),
            files=files,
            scans=scans,
            remembered=self._remembered,
            audit=self._audit,
            clock=self._clock,
            on_change=self._publish_soon,
            on_repair=self._repaired,
        )
        allocation = AllocationCheck(self._registry, self._npus, self._reconciler, self._clock, self._refused)
        self._plugin = PluginRoom(
            self._loaded.config.device_plugin,
            # The kubelet's question may be asked several times over before it is answered: the room records the answer.
            allocation=replace(allocation, on_refused=lambda *_: None),
            new_id=_new_id,
            audit=self._audit,
            clock=self._clock,
            on_change=self._publish_soon,
        )
        self._metrics = MetricsRoom(self._loaded.config.metrics, on_change=self._publish_soon)
        self._service = Service(
            identification=Identification(__version__, socket.gethostname()),
            registry=self._registry,
            reconciler=self._reconciler,
            npus=self._npus,
            cluster=self._cluster,
            reclaim=self._reclaim,
            pins=self._pins,
            plugin=self._plugin,
            metrics=self._metrics,
            remembered_state=self._remembered,
            audit=self._audit,
            clock=self._clock,
            allocation=allocation,
            reload_configuration=self._reload,
            dropped=lambda: self._journal.dropped,
            loaded=self._loaded,
        )
        self._measuring = Measuring(self._service, self._registry, self._npus, self._reclaim, plugin=self._plugin.measures)
        self._bus = BusService(self._service, self._audit, self._logs, new_id=_new_id)
        try:
            await self._bus.start(self._options.bus_address)
        except BusError:
            await self._bus.close()
            raise
        self._audit.event("started", f"devwardd {__version__} started, pid {os.getpid()}", trigger=Trigger.STARTUP)
        if remembered.problem is not None:
            self._audit.event("state-damaged", f"The remembered state could not be used: {remembered.problem}")
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._hangup)
        pulse = loop.create_task(self._pulse(), name="watchdog")
        lost = loop.create_task(self._bus.wait_lost(), name="bus")
        stop = loop.create_task(self._stop.wait(), name="stop")
        first = loop.create_task(self._first_pass(), name="first pass")
        try:
            await asyncio.wait({lost, stop, first}, return_when=asyncio.FIRST_COMPLETED)
            if first.done():
                first.result()
                keep = loop.create_task(self._keep_house(), name="housekeeping")
                self._tasks.add(keep)
                await asyncio.wait({lost, stop, keep}, return_when=asyncio.FIRST_COMPLETED)
                if keep.done():
                    keep.result()
            return self._leave(lost)
        finally:
            self._service.stopping_now = True
            # A vNPU that is being destroyed is waited for first, and its outcome put on record. Meanwhile the service manager hears of the
            # end, and the kubelet that nothing is offered any more.
            await asyncio.gather(self._plugin.close(), self._reclaim.finish())
            if self._recheck is not None:
                self._recheck.cancel()
            for task in (pulse, lost, stop, first, *self._tasks):
                task.cancel()
            await asyncio.gather(pulse, lost, stop, first, *self._tasks, return_exceptions=True)
            await self._close()
            for worker in (files, scans, states):
                worker.close()

    def _leave(self, lost: "asyncio.Task[str]") -> int:
        if lost.done():
            self._audit.event("bus-lost", f"The message bus is gone: {lost.result()}; devwardd ends and is to be started again")
            return 1
        self._notifier.stopping("stopping")
        return 0

    async def _close(self) -> None:
        """End in the order opposite to the start, each step within a bound."""
        try:
            async with asyncio.timeout(STOP_DEADLINE):
                await self._metrics.close()
                await self._cluster.close()
                self._reclaim.close()
                await self._npus.close()
                await self._registry.close()
                await self._reconciler.close()
                await self._bus.close()
        except TimeoutError:
            _log.warning("a pass was still under way after %s s; devwardd ends all the same", STOP_DEADLINE)
        self._audit.flush(everything=True)
        self._audit.event("stopped", "devwardd stopped")
        self._journal.close()
        self._notifier.close()

    # --- start, pulse, housekeeping ------------------------------------------------------------------------------------
    async def _first_pass(self) -> None:
        """Look at every device and file once, then say that devward is ready to answer."""
        self._registry.start()
        await asyncio.gather(self._registry.first_checks(), self._reconciler.start())
        if self._reconciler.view(names.HYPERVISOR_CDI_KIND).state is SpecState.UNKNOWN:
            await self._reconciler.run(PassRequest(Trigger.STARTUP))  # the first pass may have come before the devices were judged
        self._service.started = True
        self._publish()
        self._metrics.start(self._measuring.take, was_on=config.is_named(self._loaded, "metrics"))
        self._notifier.ready(self._service.readiness().status)
        self._npus.open()
        self._plugin.start()
        self._publish_soon()  # a pin without any NPU in sight could not be judged before

    async def _keep_house(self) -> None:
        while True:
            due = self._audit.due
            wait = HOUSEKEEPING if due is None else max(0.1, min(due - self._clock.monotonic(), HOUSEKEEPING))
            await asyncio.sleep(wait)
            self._audit.flush()
            if self._clock.monotonic() - self._registry.last_pass_monotonic >= devices.SLOW_PASS - 1:
                self._registry.look_at_everything(Trigger.TIMER)
            await self._reclaim.keep_house()
            self._publish()

    async def _pulse(self) -> None:
        """Tell the service manager that the loop turns and that the local loops do their passes, and nothing about anything remote."""
        interval = self._notifier.watchdog_interval
        if interval is None:
            return
        while True:
            if self._alive():
                self._notifier.watchdog()
            await asyncio.sleep(interval)

    def _alive(self) -> bool:
        """Tell whether no local loop is older than two of its periods; before the first pass only the loop itself counts."""
        if not self._service.started:
            return True
        now = self._clock.monotonic()
        return (
            now - self._registry.last_pass_monotonic < 2 * devices.SLOW_PASS
            and now - self._reconciler.last_pass_monotonic < 2 * cdi.SLOW_PASS
        )

    # --- what the rooms report -----------------------------------------------------------------------------------------
    def _device_changed(self, before: DeviceState, after: DeviceState, trigger: Trigger) -> None:
        self._device_trail.record(before, after, trigger)
        if (before.identity, before.health) != (after.identity, after.health):
            self._reconciler.nudge(trigger)
        self._publish_soon()

    def _pins_changed(self) -> None:
        self._reclaim.pins_changed()
        self._npus.look(Trigger.DBUS)
        self._npus_changed()

    def _npus_changed(self) -> None:
        self._cluster.npus_changed()
        self._reconciler.nudge(Trigger.UDEV)
        self._publish_soon()

    def _judge(self) -> "Judge":
        return self._reclaim.judge()

    def _lateness(self, target: str) -> Callable[[], Awaitable[Reason]]:
        return self._reclaim.lateness(target)

    def _claims(self, die: str) -> tuple[Reason, str] | None:
        return self._cluster.objection(die)

    def _owners_changed(self) -> None:
        if self._remembered.state.pins:
            # Whose a card is says whether a pinned vNPU of it may be offered, and nothing else of what is offered.
            self._reconciler.nudge(Trigger.UDEV)
        self._publish_soon()

    def _repaired(self, file: str, cause: RepairCause) -> None:
        self._measuring.repaired(file, cause)
        self._bus.spec_repaired(file, cause)
        self._publish_soon()

    def _reclaimed(self, vdev: int, phy: int, template: str, request_id: str) -> None:
        self._bus.vnpu_reclaimed(vdev, phy, template, request_id)
        self._publish_soon()

    def _refused(self, device: str, node: str, allocation: Allocation, request: ActionRequest) -> None:
        name = device.removeprefix(f"{names.HYPERVISOR_CDI_KIND}=")
        unknown = allocation.reason is Reason.DEVICE_MISSING and name == device
        self._measuring.refused("" if unknown else node or name, allocation.reason)
        self._audit.transition(
            # Anybody can think up names of NPUs that are not there: they share what is let through.
            f"allocation of {'an NPU that is not there' if unknown else name}",
            "allocation-refused",
            f"Refused to vouch for {name}: {allocation.text}",
            device=node,
            reason=allocation.reason,
            request=request,
        )

    def _overflow(self) -> None:
        self._audit.transition("udev", "udev-overflow", "Device events were lost; every device is looked at again", trigger=Trigger.UDEV)

    def _mounts_changed(self) -> None:
        self._reconciler.nudge(Trigger.MOUNTS)

    async def _call(self, *arguments: Any, **limits: Any) -> object:
        return await self._bus.connection.call(*arguments, **limits)

    def _file_system_answers(self) -> None:
        self._reconciler.nudge(Trigger.TIMER, scan=True)

    def _candidates(self) -> list[Candidate]:
        states = [tracker.state for tracker in self._registry.trackers]
        return [Candidate(qualified(state.kind), state.node, state.identity, state.health, state.reason) for state in states]

    def _make_prober(self, kind: DeviceKind) -> HypervisorProber:
        prober = HypervisorProber(kind, instance=self._options.runtime_directory, python=sys.executable, monotonic=self._clock.monotonic)
        try:
            prober.adopt_leftovers()
        except OSError as error:
            _log.warning("probe children of an earlier run cannot be looked for: %s", os.strerror(error.errno or 0))
        return prober

    # --- publishing ----------------------------------------------------------------------------------------------------
    def _publish_soon(self) -> None:
        """Publish once for everything that changes in this turn of the loop."""
        if not self._publishing:
            self._publishing = True
            asyncio.get_running_loop().call_soon(self._publish)

    def _offer(self) -> None:
        """Let the kubelet hear how devices and file are, before anything else that is published."""
        if self._service.started and not self._service.stopping_now:
            self._plugin.offer(self._service.standings(), self._reconciler.view(names.HYPERVISOR_CDI_KIND))

    def _publish(self) -> None:
        self._publishing = False
        self._offer()
        self._findings.record(self._service.findings())
        self._bus.publish()
        if self._recheck is not None:
            self._recheck.cancel()
            self._recheck = None
        if self._service.checking and not self._service.stopping_now:
            # The end of a check that changes nothing is no change of any device or file, and nobody else would publish it.
            self._recheck = asyncio.get_running_loop().call_later(CHECKING_RECHECK, self._publish_soon)
        if not self._service.started or self._service.stopping_now:
            return
        readiness = self._service.readiness()
        self._notifier.status(readiness.status)
        if readiness.ready is not self._ready:
            self._ready = readiness.ready
            kind = "ready" if readiness.ready else "degraded"
            self._audit.transition("readiness", kind, f"{kind.capitalize()}: {readiness.status}", reason=readiness.reasons)

    # --- configuration -------------------------------------------------------------------------------------------------
    def _hangup(self) -> None:
        task = asyncio.get_running_loop().create_task(self._hangup_reload(), name="reload")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hangup_reload(self) -> None:
        self._notifier.reloading()
        try:
            await self._service.reload(own_request(_new_id, Trigger.SIGNAL))
        except ConfigRefused:
            _log.debug("the refusal is on record")
        finally:
            self._notifier.ready(self._service.readiness().status)

    async def _reload(self, trigger: Trigger) -> None:
        try:
            loaded = config.load(self._options.config_file, self._options.dropin_directory, required=self._options.config_required)
        except ConfigError as error:
            self._service.config_problem = str(error)
            text = f"The configuration is refused, the old one stays: {error}"
            self._audit.event("config-refused", text, reason=Reason.CONFIG_REFUSED, trigger=trigger)
            self._publish_soon()
            raise ConfigRefused(text) from error
        self._service.config_problem = ""
        self._service.loaded = self._keep_startup_settings(loaded)
        self._logs.set_log_level(loaded.config.log.level)
        self._registry.configure(loaded.config.hypervisor)
        await self._npus.configure(loaded.config.npu)
        await self._cluster.configure(loaded.config.cluster)
        await self._reclaim.configure(loaded.config.reclaim)
        await self._reconciler.configure(loaded.config.cdi)
        await self._plugin.configure(loaded.config.device_plugin)
        self._metrics.configure(loaded.config.metrics)
        self._loaded = loaded
        self._audit.event(
            "config-loaded", "The configuration was loaded", trigger=trigger, outcome=Outcome.SUCCESS, priority=Priority.NOTICE
        )
        self._publish_soon()

    def _keep_startup_settings(self, loaded: LoadedConfig) -> LoadedConfig:
        """Tell of a setting that takes effect at a restart only."""
        if loaded.config.log.journal_socket == self._journal_socket:
            return loaded
        warning = Finding(Reason.CONFIG_FALLBACK, "log.journal_socket", "log.journal_socket takes effect at a restart of devwardd")
        return replace(loaded, warnings=(*loaded.warnings, warning))


def run(options: Options, clock: Clock, notifier: Notifier) -> int:
    """Load the configuration and run the daemon; return its exit status. Raises DevwardError where it cannot start."""
    loaded = config.load(options.config_file, options.dropin_directory, required=options.config_required)

    async def main() -> int:
        return await Daemon(options, loaded, clock=clock, notifier=notifier).run()

    return asyncio.run(main())


def _new_id() -> str:
    return str(uuid.uuid4())
