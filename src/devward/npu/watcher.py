"""Looks at the NPUs of a host while it has any: at once where a node or a device event changed, and once a minute.

Events only say "look again"; what is published comes from a look. A look asks the broker, and nothing waits for it.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from devward import names
from devward.boot import read_boot_id
from devward.clock import Clock
from devward.devices.monitor import DeviceEvent, UdevMonitor
from devward.model import Trigger
from devward.npu import vnpu_cfg
from devward.npu.client import BrokerClient
from devward.npu.document import Outfit
from devward.npu.facts import Inventory
from devward.npu.host import HostNode, Surroundings
from devward.npu.inventory import Picture, Unavailable, assess
from devward.npu.memory import NO_MEMORY
from devward.npu.nodes import read_nodes
from devward.npu.outfit import read_outfit
from devward.npu.presence import is_node
from devward.reasons import Reason
from devward.worker import Worker, WorkerHung

#: Seconds between looks that nothing asked for, and until what may only be on its way is looked at again.
LOOK_INTERVAL: Final = 60.0
SETTLE_INTERVAL: Final = 2.0
#: Seconds in which a burst of events becomes one look, and between two looks at the least.
QUIET: Final = 0.25
LEAST_INTERVAL: Final = 1.0
#: The same where somebody waits for the look; and looks take no larger a share of the time than this, however many wait.
LEAST_AWAITED: Final = 0.25
AWAITED_SHARE: Final = 0.2
#: Seconds that reading nodes and records may take.
READ_SECONDS: Final = 5.0
_NOTHING: Final = Surroundings(None, vnpu_cfg.ABSENT)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Paths:
    """Where a look looks."""

    devices: str = names.DEVICE_DIRECTORY
    sysfs: str = names.SYSFS
    records: str = vnpu_cfg.PATH
    udev_control: str = names.UDEV_CONTROL_SOCKET
    #: What the paths of the vendor's files are below.
    root: str = ""
    proc: str = "/proc"


_PATHS: Final = Paths()


class NpuWatcher:
    """Keeps a picture of the NPUs; without any it rests: no timer, no listener, no task."""

    def __init__(
        self,
        client: BrokerClient,
        worker: Worker,
        *,
        clock: Clock,
        on_change: Callable[[Picture, Picture, Trigger], None],
        on_lost_events: Callable[[], None],
        has_pins: Callable[[], bool],
        paths: Paths = _PATHS,
    ) -> None:
        """Look at nothing before `wake`; for a kubelet only where something is pinned."""
        self._client = client
        self._worker = worker
        self._clock = clock
        self._on_change = on_change
        self._on_lost_events = on_lost_events
        self._has_pins = has_pins
        self._paths = paths
        self._monitor = UdevMonitor((), on_event=self._event, on_overflow=self._overflow, control_socket=paths.udev_control)
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._trigger = Trigger.STARTUP
        self._urgent = False
        #: Those that wait for a look that has not begun yet, and whether there are any.
        self._waiting: list[asyncio.Future[None]] = []
        self._awaited = asyncio.Event()
        self._sequences: dict[str, int] = {}
        self._losses = 0
        #: Events should be listened to, and are not: what happens is not heard.
        self._deaf = False
        self._memory = NO_MEMORY
        self._boot_id = ""
        self.picture = Picture(in_doubt=True)
        #: What containers need beside the NPUs; None before it could be looked at.
        self.outfit: Outfit | None = None
        #: What the broker said last of the host as a whole, for Describe.
        self.host: dict[str, object] = {}
        self.looks = 0

    @property
    def awake(self) -> bool:
        """Whether the NPUs are being watched."""
        return self._task is not None and not self._task.done()

    def wake(self, trigger: Trigger, *, urgent: bool = False) -> None:
        """Have the NPUs looked at, soon; `urgent`: although the broker failed a moment ago."""
        self._trigger = trigger
        self._urgent = self._urgent or urgent
        self._wanted.set()
        if not self.awake:
            # Until the first look it is not known what came since the last one.
            self.picture = replace(self.picture, in_doubt=True)
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="NPUs")

    async def fresh(self) -> None:
        """Wait until a look that began after this call has ended, if there is anything to look at."""
        if not self.awake:
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._awaited.set()
        self.wake(Trigger.DBUS, urgent=True)
        await waiting

    async def close(self) -> None:
        """Stop looking, at once, whatever is under way."""
        self._monitor.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._release(self._waiting)

    def sequence(self, vdev: int) -> int | None:
        """Return a number that grows with each event by which a vNPU's node may have become another one, those that wait included.

        None: it cannot be told, since events are not heard, or not all of them.
        """
        if self._deaf or not self._monitor.drain():
            return None
        return self._sequences.get(f"vdavinci{vdev}", 0) + self._losses

    def forget(self) -> None:
        """Publish nothing any more."""
        self._publish(Picture(), Trigger.SIGNAL)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._listen()
        while True:
            began = loop.time()
            # Cleared before the look: what happens meanwhile asks for another one.
            self._wanted.clear()
            self._awaited.clear()
            waiting, self._waiting = self._waiting, []
            trigger, urgent, self._urgent = self._trigger, self._urgent, False
            try:
                rests = await self._look_safely(trigger, urgent=urgent)
            finally:
                self._release(waiting)
            if rests and not self._wanted.is_set():
                self._monitor.stop()
                return
            took = loop.time() - began
            await asyncio.sleep(max(0.0, LEAST_AWAITED - took, min(took / AWAITED_SHARE - took, LEAST_INTERVAL - took)))
            await self._rest(began + LEAST_INTERVAL - loop.time())
            try:
                async with asyncio.timeout(self._interval()):
                    await self._wanted.wait()
                await self._rest(QUIET)
            except TimeoutError:
                self._trigger = Trigger.TIMER

    async def _rest(self, seconds: float) -> None:
        """Let time pass, unless somebody waits."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._awaited.wait()
        except TimeoutError:
            pass

    @staticmethod
    def _release(waiting: "list[asyncio.Future[None]]") -> None:
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _interval(self) -> float:
        """Return the seconds until the next look that nothing asks for."""
        waits = [LOOK_INTERVAL]
        if self.picture.unsettled or (self.outfit is not None and self.outfit.unread):
            waits.append(SETTLE_INTERVAL)
        if self._client.failed:
            # May be over already: a broker that is silent takes longer to fail than the first pauses are.
            waits.append(self._client.pause)
        return min(waits)

    # --- a look --------------------------------------------------------------------------------------------------------
    async def _look_safely(self, trigger: Trigger, *, urgent: bool) -> bool:
        try:
            return await self._look(trigger, urgent=urgent)
        except Exception as error:  # noqa: BLE001
            # The edge of a task: whatever it was, nothing that was published is known to hold, and the next look must come.
            _log.exception("A look at the NPUs broke off")
            broken = Unavailable(Reason.NPU_LIST_INCOMPLETE, f"a look broke off: {type(error).__name__}")
            self._publish(assess(broken, _NOTHING, self._memory, self._clock.realtime_usec())[0], trigger)
            return False

    async def _look(self, trigger: Trigger, *, urgent: bool) -> bool:
        """Look once and publish; True: the host has no NPUs any more."""
        if self._monitor.source_changed():
            self._listen()
        said = await self._ask(urgent=urgent)
        surroundings, outfit = await self._read()
        picture, self._memory = assess(said, surroundings, self._memory, self._clock.realtime_usec())
        self.looks += 1
        if isinstance(said, Inventory):
            self.host = {"library": said.library, "version": said.dcmi_version, "mode": said.mode, "recover": said.recover}
        # Of a host that never showed a card, and shows no node, a broker that cannot be asked leaves nothing unknown.
        nothing = picture.empty or (isinstance(said, Unavailable) and (said.is_absent or not self._memory.cards))
        if nothing and surroundings.nodes is not None and not surroundings.nodes:
            self._memory, self.host = NO_MEMORY, {}
            self._publish(Picture(), trigger)
            return True
        self._publish(picture, trigger, outfit)
        return False

    async def _ask(self, *, urgent: bool) -> Inventory | Unavailable:
        said = await self._client.list(urgent=urgent)
        if isinstance(said, Inventory):
            self._boot_id = self._boot_id or read_boot_id()
            if said.boot_id != self._boot_id:
                return Unavailable(Reason.NPU_BROKER_GARBLED, "it tells of another boot than this one")
        return said

    async def _read(self) -> tuple[Surroundings, Outfit | None]:
        """Look at the host; the outfit is None where that takes too long."""
        outfit: Outfit | None
        try:
            nodes, problem, records, outfit = await self._worker.run(self._read_host, READ_SECONDS)
        except WorkerHung as hung:
            nodes, problem, records, outfit = None, str(hung), vnpu_cfg.Records(present=True, problem=str(hung)), None
        return Surroundings(nodes, records, problem, dict(self._sequences), self._losses), outfit

    def _read_host(self) -> tuple[dict[str, HostNode] | None, str, vnpu_cfg.Records, Outfit]:
        paths = self._paths
        records, outfit = (
            vnpu_cfg.read(paths.records),
            read_outfit(paths.root, paths.devices, paths.sysfs, paths.proc if self._has_pins() else ""),
        )
        try:
            return read_nodes(paths.devices, paths.sysfs), "", records, outfit
        except OSError as error:
            where = error.filename or paths.devices
            return None, f"{where}: {error.strerror}", records, outfit

    def _publish(self, picture: Picture, trigger: Trigger, outfit: Outfit | None = None) -> None:
        before, self.picture = self.picture, picture
        if outfit is not None and outfit.unread and self.outfit is not None:
            outfit = replace(outfit, mounts=self.outfit.mounts, mounts_known=self.outfit.mounts_known)
        other_outfit = outfit is not None and outfit != self.outfit
        if outfit is not None:
            self.outfit = outfit
        if before != picture or other_outfit:
            self._on_change(before, picture, trigger)

    # --- events --------------------------------------------------------------------------------------------------------
    def _listen(self) -> None:
        """Listen for the events of every subsystem: which one the nodes have is the driver's choice."""
        if self.looks and not self._deaf:
            self._losses += 1  # a gap begins, if only a short one
        try:
            self._monitor.start()
        except OSError as error:
            if not self._deaf:
                _log.warning("no events of NPU nodes for now, changes show through inotify and once a minute: %s", error)
            self._deaf = True
            return
        if self._deaf:
            self._losses += 1  # a gap ends
        self._deaf = False

    def _event(self, event: DeviceEvent) -> None:
        if not is_node(event.name):
            return
        if event.action in {"add", "remove", "move"}:
            self._sequences[event.name] = self._sequences.get(event.name, 0) + 1
        self.wake(Trigger.UDEV)

    def _overflow(self) -> None:
        self._losses += 1
        self._on_lost_events()
        self.wake(Trigger.UDEV)
