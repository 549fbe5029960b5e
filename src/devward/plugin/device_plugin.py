"""The device plugin as a whole: give it the state of the devices and a way to check one, and ask it how it stands."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from devward.breakages import Breakages
from devward.clock import Clock
from devward.model import DeviceKind, SpecView
from devward.plugin import decision
from devward.plugin.allocator import Allocator
from devward.plugin.decision import Verdict, Vouched
from devward.plugin.messages import Wire
from devward.plugin.register import register
from devward.plugin.registration import Means, Registration, Standing
from devward.plugin.server import PluginServer
from devward.plugin.service import DeviceService
from devward.plugin.settings import PluginSettings, offered
from devward.plugin.slots import kind_of
from devward.plugin.status import PluginStatus
from devward.readiness import DeviceStanding


class DevicePlugin:
    """Offers hypervisor devices to the kubelet. `on_change` is called when its status changes."""

    def __init__(
        self,
        settings: PluginSettings,
        *,
        check: Callable[[DeviceKind], Awaitable[Vouched]],
        kept_ids: Callable[[], Sequence[str] | None],
        clock: Clock,
        on_change: Callable[[], None],
        on_refused: Callable[[DeviceKind | None, Verdict], None],
        breakages: Breakages,
    ) -> None:
        """Do nothing yet.

        `check` is CheckAllocation, `on_refused` hears of each container that is refused what it asks for. `kept_ids` gives the ids that
        the kubelet keeps for the resource, as in its checkpoint's RegisteredDevices, None where that cannot be told; it is called in a
        worker thread.
        """
        self._settings = settings
        self._clock = clock
        self._breakages = breakages
        self._on_change = on_change
        wire = Wire()
        self._service = DeviceService(settings, Allocator(check, clock, breakages), wire, self._changed, on_refused)
        self._registration = Registration(
            settings,
            Means(
                make_server=lambda: PluginServer(self._service, wire, self._broke_off),
                register=lambda socket, endpoint, deadline: register(
                    socket, wire.register_request(endpoint, settings.resource, self._service.options), deadline
                ),
                streams=lambda: self._service.streams.count,
                is_known=lambda: self._service.offers is not None,
                has_foreign_ids=lambda: _has_foreign(kept_ids()),
            ),
            clock,
            self._changed,
            breakages,
        )
        self._task: asyncio.Task[None] | None = None
        self._kinds: tuple[DeviceKind, ...] = ()
        self._streams = 0
        self._last_check_usec = 0
        self._stood: Standing | None = None
        self._stood_since_usec = 0

    def start(self) -> None:
        """Serve and register from now on."""
        self._task = asyncio.ensure_future(self._registration.run())

    async def ended(self) -> None:
        """Wait until it serves no more, which only a fault or `close` brings about. Raises the fault."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """End the streams as ones end that have nothing more to say, and stop; running containers keep what they have."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def offer(self, devices: Sequence[DeviceStanding], spec: SpecView) -> None:
        """Take in how the devices and their file are. What is news is told to the kubelet at once."""
        known = {standing.view.kind: standing for standing in devices}
        self._kinds = offered(self._settings.devices, frozenset(known), self._kinds)
        told = {offer.kind for offer in self._service.offers or ()}
        now = [(kind, decision.health(known[kind], spec, is_told=kind in told) if kind in known else False) for kind in self._kinds]
        checked = max((standing.view.last_check_usec for standing in devices if standing.view.kind in self._kinds), default=0)
        was_known = self._service.offers is not None
        news = self._service.offer(now)
        if not was_known and news:
            self._registration.nudge()
        if news or (checked and not self._last_check_usec):
            self._last_check_usec = checked
            self._on_change()
        self._last_check_usec = checked

    @property
    def status(self) -> PluginStatus:
        """How it stands now."""
        registration = self._registration
        offers = self._service.offers or ()
        return PluginStatus(
            resource=self._settings.resource,
            state=registration.standing.state,
            state_since_usec=self._stood_since_usec,
            problem=registration.standing.problem,
            detail=registration.standing.detail,
            endpoint=registration.endpoint,
            registrations=registration.registrations,
            failures=registration.failures,
            streams=self._service.streams.count,
            last_check_usec=self._last_check_usec,
            healthy_slots=self._settings.slots * sum(offer.healthy for offer in offers),
            slots=self._settings.slots * len(offers),
            given=self._service.given,
            refused=self._service.refused,
        )

    def _broke_off(self, error: Exception) -> None:
        self._breakages.note("a call of the kubelet broke off", error, self._clock.monotonic())

    def _changed(self) -> None:
        standing, streams = self._registration.standing, self._service.streams.count
        if self._stood is None or standing.state is not self._stood.state:
            self._stood_since_usec = self._clock.realtime_usec()
        self._stood = standing
        if streams != self._streams:
            # Whether the last one went, or the first one came, is for the registration to judge.
            self._streams = streams
            self._registration.nudge()
        self._on_change()


def _has_foreign(ids: Sequence[str] | None) -> bool | None:
    return None if ids is None else any(kind_of(slot) is None for slot in ids)
