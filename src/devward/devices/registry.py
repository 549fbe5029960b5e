"""All hypervisor devices of the host, and the events that make devward look at them."""

import asyncio
import logging
import os
from collections.abc import Callable

from devward import names
from devward.clock import Clock, Coalescer
from devward.config import HypervisorConfig
from devward.devices import identity
from devward.devices.health import DeviceState, sentence
from devward.devices.monitor import DeviceEvent, UdevMonitor
from devward.devices.tracker import CheckResult, DeviceTracker, Intervals, Prober
from devward.inotify import Event, Inotify, Mask
from devward.model import DeviceKind, Finding, Trigger
from devward.mounts import MountWatch
from devward.npu import presence
from devward.reasons import Reason

_log = logging.getLogger(__name__)

#: Seconds between looks that no event asked for; they catch what events missed.
SLOW_PASS = 60.0
#: A burst of mount changes (each container start makes some) is answered once.
MOUNTS_QUIET, MOUNTS_CEILING = 0.1, 1.0

_DIRECTORY_MASK = (
    Mask.CREATE
    | Mask.DELETE
    | Mask.MOVED_FROM
    | Mask.MOVED_TO
    | Mask.ATTRIB
    | Mask.DELETE_SELF
    | Mask.MOVE_SELF
    | Mask.ONLYDIR
    | Mask.DONT_FOLLOW
)
SUBSYSTEM = "misc"
#: NPUs are only noticed here, by the names of their nodes; who watches them hears their events by itself.
SUBSYSTEMS = (SUBSYSTEM, *presence.SUBSYSTEMS)


class DeviceRegistry:
    """Owns the trackers.

    `on_change` hears every change of a device's state, `on_overflow` every loss of udev events, `on_npu` of every event of an NPU's node,
    and once a minute that there is any.
    """

    def __init__(
        self,
        config: HypervisorConfig,
        *,
        make_prober: Callable[[DeviceKind], Prober],
        clock: Clock,
        on_change: Callable[[DeviceState, DeviceState, Trigger], None],
        on_overflow: Callable[[], None],
        on_mounts: Callable[[], None],
        on_npu: Callable[[Trigger], None] = lambda _: None,
        device_directory: str = names.DEVICE_DIRECTORY,
        sysfs: str = names.SYSFS,
        control_socket: str = names.UDEV_CONTROL_SOCKET,
    ) -> None:
        """Nothing is looked at before `start`."""
        self._config = config
        self._make_prober = make_prober
        self._clock = clock
        self._on_change = on_change
        self._on_overflow = on_overflow
        self._on_mounts = on_mounts
        self._on_npu = on_npu
        self._device_directory = device_directory
        self._sysfs = sysfs
        self._trackers: dict[DeviceKind, DeviceTracker] = {}
        self._monitor = UdevMonitor(SUBSYSTEMS, on_event=self._uevent, on_overflow=self._overflow, control_socket=control_socket)
        self._inotify: Inotify | None = None
        self._directory_watch = -1
        self._watch_failed = False
        self._mounts: MountWatch | None = None
        self._mount_changes = Coalescer(self._mounts_changed, quiet=MOUNTS_QUIET, ceiling=MOUNTS_CEILING, leading=True)
        self.last_pass_monotonic = clock.monotonic()

    @property
    def trackers(self) -> tuple[DeviceTracker, ...]:
        """The devices, in the order of their names."""
        return tuple(self._trackers[kind] for kind in sorted(self._trackers))

    def findings(self) -> tuple[Finding, ...]:
        """Name what keeps changes of the nodes from being noticed at once."""
        if self._watch_failed:
            return (Finding(Reason.NOT_WATCHED, self._device_directory, sentence(Reason.NOT_WATCHED, "")),)
        return ()

    @property
    def busy(self) -> bool:
        """Whether a device is being checked or is about to be."""
        return any(tracker.busy for tracker in self._trackers.values())

    @property
    def event_source(self) -> str:
        """Where device events come from now: `udev`, or `kernel` where no udevd runs; empty while there are none."""
        return self._monitor.source

    def start(self) -> None:
        """Listen first, then look at everything once."""
        self._mounts = MountWatch(self._mount_changes.trigger)
        self._watch_directory()
        self._listen()
        self.look_at_everything(Trigger.STARTUP)

    async def first_checks(self) -> None:
        """Wait until each device present at start has had its first check, which takes the probe's budget at most."""
        await asyncio.gather(*(tracker.check(Trigger.STARTUP) for tracker in self._trackers.values()), return_exceptions=True)

    async def close(self) -> None:
        """Stop listening and end the probes."""
        self._monitor.stop()
        self._mount_changes.cancel()
        if self._mounts is not None:
            self._mounts.close()
        if self._inotify is not None:
            self._inotify.close()
        for tracker in self._trackers.values():
            await tracker.close()

    def configure(self, config: HypervisorConfig) -> None:
        """Apply a new configuration; a device that was seen stays an object until restart."""
        self._config = config
        for tracker in self._trackers.values():
            tracker.configure(self._intervals())
        self.look_at_everything(Trigger.SIGNAL)

    def tracker(self, kind: DeviceKind) -> DeviceTracker | None:
        """Return the device of this kind if it is an object by now; a node that appeared unseen becomes one."""
        self._discover()
        return self._trackers.get(kind)

    async def check_all(self, trigger: Trigger) -> dict[DeviceKind, CheckResult]:
        """Make the slow pass now, and probe every device."""
        self.look_at_everything(trigger)
        kinds = sorted(self._trackers)
        results = await asyncio.gather(*(self._trackers[kind].check(trigger) for kind in kinds))
        return dict(zip(kinds, results, strict=True))

    def look_at_everything(self, trigger: Trigger) -> None:
        """The slow pass: find new devices, look at each, and see that the listeners still stand where they should."""
        if self._monitor.source_changed():
            _log.info("udevd came or went, or the udev socket was lost; listening again")
            self._listen()
        self._watch_directory()
        self._discover()
        for tracker in self._trackers.values():
            tracker.look(trigger)
        if presence.present(self._device_directory):
            self._on_npu(trigger)
        self.last_pass_monotonic = self._clock.monotonic()

    def _listen(self) -> None:
        """Listen for uevents; where that fails, the next slow pass tries again."""
        try:
            self._monitor.start()
        except OSError as error:
            _log.warning("no uevents for now, changes show through inotify and in the slow pass: %s", error)

    def _intervals(self) -> Intervals:
        return Intervals(self._config.probe_interval, self._config.retry_interval)

    def _discover(self) -> None:
        """Make an object of each device that is named in the configuration or, with auto, present for the first time."""
        wanted = self._config.devices
        for kind in DeviceKind:
            if kind in self._trackers:
                continue
            if kind in wanted if wanted is not None else identity.present(kind, device_directory=self._device_directory, sysfs=self._sysfs):
                self._trackers[kind] = self._make_tracker(kind)

    def _make_tracker(self, kind: DeviceKind) -> DeviceTracker:
        return DeviceTracker(
            kind,
            f"{self._device_directory}/{kind}",
            identify=lambda: identity.identify(kind, device_directory=self._device_directory, sysfs=self._sysfs),
            prober=self._make_prober(kind),
            clock=self._clock,
            intervals=self._intervals(),
            on_change=self._on_change,
        )

    def _uevent(self, event: DeviceEvent) -> None:
        if presence.is_node(event.name):
            self._on_npu(Trigger.UDEV)
        if event.subsystem != SUBSYSTEM or event.name not in list(DeviceKind):
            return
        tracker = self._seen(DeviceKind(event.name))
        if tracker is not None:
            tracker.event(event.action, event.kvm_event)

    def _file_events(self, events: list[Event]) -> None:
        named: set[DeviceKind] = set()
        npus = False
        for event in events:
            if event.watch not in (self._directory_watch, -1):
                continue  # the last words of a watch that was dropped
            if event.mask & (Mask.OVERFLOW | Mask.IGNORED | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.UNMOUNT):
                self.look_at_everything(Trigger.INOTIFY)
            elif event.name in list(DeviceKind):
                named.add(DeviceKind(event.name))
            else:
                npus = npus or presence.is_node(event.name)
        if npus:
            self._on_npu(Trigger.INOTIFY)
        for kind in named:
            tracker = self._seen(kind)
            if tracker is not None:
                tracker.look(Trigger.INOTIFY)

    def _seen(self, kind: DeviceKind) -> DeviceTracker | None:
        """Return the tracker of a device that an event is about, made now if this is its first sight."""
        if kind not in self._trackers:
            self._discover()
        return self._trackers.get(kind)

    def _mounts_changed(self) -> None:
        """A mount over a node, or over its directory, gives no other sign."""
        self._watch_directory()
        self._discover()
        for tracker in self._trackers.values():
            tracker.look(Trigger.MOUNTS)
        self._on_mounts()

    def _overflow(self) -> None:
        self._on_overflow()
        self.look_at_everything(Trigger.UDEV)

    def _watch_directory(self) -> None:
        """Watch the device directory; one that was mounted over or replaced is watched anew, the old watch dropped."""
        try:
            if self._inotify is None:
                self._inotify = Inotify(self._file_events)
            watch = self._inotify.add_watch(self._device_directory, _DIRECTORY_MASK)
        except OSError as error:
            if not self._watch_failed:
                _log.warning("%s cannot be watched, changes there show later: %s", self._device_directory, os.strerror(error.errno or 0))
            self._watch_failed = True
            return
        self._watch_failed = False
        if watch != self._directory_watch and self._directory_watch >= 0:
            self._inotify.remove_watch(self._directory_watch)
        self._directory_watch = watch
