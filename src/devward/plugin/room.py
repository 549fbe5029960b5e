"""The device plugin as the daemon has it: off unless the configuration wants it, loaded when it does, and never anybody else's trouble.

gRPC and everything that needs it is imported when the plugin begins, in a thread of its own. A fault of the plugin ends its streams, by
which the kubelet learns that nothing is offered any more, and it begins anew.
"""

import asyncio
import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from devward.allocation import AllocationCheck
from devward.audit import Audit
from devward.breakages import Breakages
from devward.cdi.sources import qualified
from devward.clock import Clock
from devward.metrics import PluginMeasures
from devward.model import ActionRequest, DeviceKind, SpecView, Trigger
from devward.plugin import measured
from devward.plugin import status as standing
from devward.plugin.decision import Vouched
from devward.plugin.settings import PluginSettings
from devward.plugin.status import PluginProblem, PluginStatus, RegistrationState
from devward.plugin.trail import PluginTrail
from devward.readiness import DeviceStanding
from devward.text import printable
from devward.worker import Worker

if TYPE_CHECKING:  # gRPC is loaded where it is used
    from devward.plugin.device_plugin import DevicePlugin

_log = logging.getLogger(__name__)

#: Seconds until a plugin that could not begin, or had a fault, begins anew.
RETRY: Final = 30.0
#: Seconds that loading gRPC may take.
LOAD_DEADLINE: Final = 60.0
#: Seconds that the plugin has to end: calls under way (server.STOP_GRACE), and its socket.
CLOSE_DEADLINE: Final = 6.0


class _Unusable(Exception):
    """The plugin cannot begin."""


class PluginRoom:
    """Runs the device plugin by the settings in force. `on_change` is called when its status changes."""

    def __init__(
        self,
        settings: PluginSettings,
        *,
        allocation: AllocationCheck,
        new_id: Callable[[], str],
        audit: Audit,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        """Do nothing yet. `allocation` is CheckAllocation, whose refusals are not recorded: those of the kubelet are, here."""
        self._settings = settings
        self._allocation = allocation
        self._new_id = new_id
        self._audit = audit
        self._clock = clock
        self._on_change = on_change
        self._trail = PluginTrail(audit)
        self._breakages = Breakages()
        self._plugin: DevicePlugin | None = None
        self._task: asyncio.Task[None] | None = None
        #: One that did not end in time. While it lives, nothing begins: there is one plugin at a time.
        self._overdue: asyncio.Task[None] | None = None
        self._started = self._closed = False
        self._configuring = asyncio.Lock()
        #: Completed by what goes wrong outside of the plugin's own task.
        self._fault: asyncio.Future[None] | None = None
        self._latest: tuple[Sequence[DeviceStanding], SpecView] | None = None
        self._idle = PluginStatus(settings.resource, problem=PluginProblem.NOT_CHECKED)
        #: By resource, what was measured of those that have ended: a count never goes back while devwardd runs.
        self._ended: dict[str, PluginMeasures] = {}

    def start(self) -> None:
        """Begin, where the plugin is on. After `close` nothing begins any more."""
        if self._closed:
            return
        self._started = True
        if self._settings.enabled:
            self._idle = PluginStatus(self._settings.resource, problem=PluginProblem.NOT_CHECKED)
            self._task = asyncio.get_running_loop().create_task(self._keep(self._settings), name="device plugin")

    async def configure(self, settings: PluginSettings) -> None:
        """Apply other settings: the plugin ends and begins anew. With the same ones nothing happens."""
        async with self._configuring:
            if settings == self._settings:
                return
            await self._end()
            self._settings = settings
            self._trail = PluginTrail(self._audit)
            if self._started:
                self.start()
        self._on_change()

    async def close(self) -> None:
        """End the streams clean and stop serving, for good; containers keep what they have."""
        self._closed = True
        await self._end()

    async def _end(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_DEADLINE)
            if not task.done():
                self._overdue = task
                _log.warning("the device plugin did not end within %g s, and none begins before it has", CLOSE_DEADLINE)

    def offer(self, devices: Sequence[DeviceStanding], spec: SpecView) -> None:
        """Take in how the devices and their file are; what is news goes to the kubelet at once."""
        self._latest = devices, spec
        self._tell()

    @property
    def status(self) -> PluginStatus | None:
        """How the plugin stands; None while it is off."""
        if not self._settings.enabled:
            return None
        return self._idle if self._plugin is None else self._plugin.status

    def measures(self) -> PluginMeasures | None:
        """Return what is measured of the plugin since devwardd started, however often it began anew; None while it is off."""
        status = self.status
        return measured.measures(status, self._ended.get(status.resource)) if status is not None else None

    def not_ready(self) -> tuple[str, ...]:
        """Return why the plugin is not ready, as `subject: code`; empty where it is, and while it is off."""
        status = self.status
        return standing.not_ready(status) if status is not None else ()

    def line(self) -> str:
        """Say in half a sentence how the plugin stands; empty while it is off."""
        status = self.status
        return standing.line(status) if status is not None else ""

    def describe(self, *, full: bool) -> dict[str, object]:
        """Return what is known of the plugin; without `full`, nothing that another program has said or named."""
        status = self.status
        if status is None:
            return {"enabled": False}
        told: dict[str, object] = {"enabled": True, **asdict(status), "text": status.text}
        if not full:
            told |= {"detail": "", "text": standing.PROBLEM_TEXT[status.problem]}
        return told

    async def _keep(self, settings: PluginSettings) -> None:
        if self._overdue is not None:
            await asyncio.wait({self._overdue})
            self._overdue = None
        while True:
            try:
                await self._serve(settings, await self._load())
            except _Unusable as error:
                self._stand(PluginProblem.LIBRARY_MISSING, str(error))
            except Exception as error:  # noqa: BLE001 # the edge: nothing of the plugin ends the daemon; it is reported and begun anew
                self._breakages.note(f"the device plugin broke off, and begins anew in {RETRY:g} s", error, self._clock.monotonic())
                self._stand(PluginProblem.BROKEN_OFF, f"{type(error).__name__}: {error}")
            await asyncio.sleep(RETRY)

    async def _load(self) -> "type[DevicePlugin]":
        """Load gRPC, by a thread of its own: devices are watched meanwhile."""

        def load() -> "type[DevicePlugin]":
            # What was not installed when it was looked for last may be there now.
            importlib.invalidate_caches()
            from devward.plugin.device_plugin import DevicePlugin

            return DevicePlugin

        loader = Worker("plugin import")
        try:
            return await loader.run(load, LOAD_DEADLINE)
        except Exception as error:  # a library of another version raises what it likes
            _log.debug("gRPC cannot be loaded", exc_info=True)
            raise _Unusable(f"{type(error).__name__}: {error}") from error
        finally:
            loader.close()

    async def _serve(self, settings: PluginSettings, make: "type[DevicePlugin]") -> None:
        """Serve until a fault, which is raised, or until cancelled."""
        from devward.plugin.kept import kept_ids

        plugin = make(
            settings,
            check=self._vouch,
            kept_ids=lambda: kept_ids(settings.directory, settings.resource),
            clock=self._clock,
            on_change=self._changed,
            on_refused=self._trail.refused,
            breakages=self._breakages,
        )
        fault = self._fault = asyncio.get_running_loop().create_future()
        try:
            self._plugin = plugin
            plugin.start()
            self._tell()
            ended = asyncio.ensure_future(plugin.ended())
            done, _ = await asyncio.wait({ended, fault}, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        finally:
            self._idle = PluginStatus(settings.resource, RegistrationState.STOPPED, problem=PluginProblem.STOPPED)
            self._fault = None
            try:
                await plugin.close()
            except Exception as error:  # noqa: BLE001 # the edge: raised, it would take the place of a cancellation
                self._breakages.note("the device plugin did not end as it should", error, self._clock.monotonic())
            finally:
                self._plugin = None
                self._ended[settings.resource] = measured.measures(plugin.status, self._ended.get(settings.resource))
                self._on_change()

    def _tell(self) -> None:
        if self._plugin is None or self._latest is None:
            return
        try:
            self._plugin.offer(*self._latest)
        except Exception as error:  # noqa: BLE001 # the edge: it is raised again in the plugin's own task, which ends the streams
            if self._fault is not None and not self._fault.done():
                self._fault.set_exception(error)

    async def _vouch(self, kind: DeviceKind) -> Vouched:
        allocation = await self._allocation.check(qualified(kind), ActionRequest(self._new_id(), None, Trigger.KUBELET))
        return Vouched(allocation, self._allocation.good_monotonic(kind))

    def _changed(self) -> None:
        status = self.status
        if status is not None:
            self._trail.record(status)
        self._on_change()

    def _stand(self, problem: PluginProblem, detail: str) -> None:
        self._idle = PluginStatus(
            self._settings.resource,
            RegistrationState.FAILED,
            self._clock.realtime_usec(),
            problem,
            printable(detail),
        )
        self._changed()
