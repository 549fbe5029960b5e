"""devward on the message bus: puts the parts of this room together. The application needs nothing else of it.

```
service = BusService(backend, audit, log_control)
await service.start()        # BusError: no bus, or the name is taken
service.publish()            # whenever a view changed
reason = await service.wait_lost()
await service.close()
```
"""

import contextlib
import uuid
from collections.abc import Callable
from itertools import chain

from devward import names
from devward.bus import card, device, manager, spec, vnpu
from devward.bus import contract as contracts
from devward.bus.auth import Gate
from devward.bus.backend import Backend, DenialAudit, LogControl
from devward.bus.connection import BusConnection
from devward.bus.dispatch import Dispatcher
from devward.bus.explain import ExplainInterface
from devward.bus.log_control import LogControlInterface
from devward.bus.objects import Objects
from devward.bus.publisher import Publisher, Rendered
from devward.model import RepairCause

_MACHINE_ID_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")


def new_request_id() -> str:
    """Return a random UUID as text."""
    return str(uuid.uuid4())


class BusService:
    """The daemon's presence on the bus. `strict` raises for values that do not fit the contract, for tests; otherwise they are logged."""

    def __init__(
        self,
        backend: Backend,
        audit: DenialAudit,
        log_control: LogControl,
        *,
        new_id: Callable[[], str] = new_request_id,
        strict: bool = False,
        reply_seconds: float = manager.REPLY_SECONDS,
    ) -> None:
        self._backend = backend
        self.contract = contracts.load()
        self.connection = BusConnection()
        self._publisher = Publisher(self.contract, self.connection.emit_signal, strict=strict)
        self._cards = Rendered(card.published)
        self._vnpus = Rendered(vnpu.published)
        self._gate = Gate(self.connection, audit, new_id=new_id)
        self._manager = manager.ManagerInterface(backend, self._gate, self._emit, new_id=new_id, reply_seconds=reply_seconds)
        log_interface = LogControlInterface(log_control, self.contract)
        self.dispatcher = Dispatcher(
            self.connection,
            self.contract,
            Objects(self.contract, self._publisher, log_interface),
            self._gate,
            self._manager,
            ExplainInterface(names.CARD_PATH_PREFIX, backend.cards, backend.explain_card, self._gate),
            ExplainInterface(names.VNPU_PATH_PREFIX, backend.vnpus, backend.explain_vnpu, self._gate),
            log_interface,
            new_id=new_id,
            machine_id=_machine_id(),
        )

    async def start(self, address: str | None = None) -> None:
        """Connect, publish and take the name. BusError with a sentence where the bus or the name cannot be had; then close()."""
        self.connection.set_handler(self.dispatcher.handle)
        self.publish()
        await self.connection.connect(address)
        await self.connection.request_name(names.BUS_NAME)

    def publish(self) -> None:
        """Show the backend's views as they are now. Cheap where nothing changed; signals go out once in a turn of the event loop."""
        self._publisher.publish(
            chain(
                (manager.published(self._backend.manager()),),
                map(device.published, self._backend.devices()),
                map(spec.published, self._backend.specs()),
                self._cards.of(self._backend.cards()),
                self._vnpus.of(self._backend.vnpus()),
            )
        )

    def spec_repaired(self, file: str, cause: RepairCause) -> None:
        """Tell everybody that an owned CDI file was written or removed."""
        self._emit("SpecRepaired", file, cause)

    def vnpu_reclaimed(self, vdev: int, card: int, template: str, request_id: str) -> None:
        """Tell everybody that devward destroyed a vNPU of the NPU with this physical id."""
        self._emit("VnpuReclaimed", vdev, card, template, request_id)

    async def wait_lost(self) -> str:
        """Wait until the connection is gone, and return a sentence that says why."""
        return await self.connection.wait_lost()

    async def close(self) -> None:
        """Answer what is under way with Stopping, end the work of actions, and leave the bus."""
        await self.dispatcher.close()
        await self._manager.close()
        await self._gate.close()
        await self.connection.close()

    def _emit(self, member: str, *arguments: object) -> None:
        signature = self.contract.interfaces[names.MANAGER_INTERFACE].signals[member].signature
        self.connection.emit_signal(names.ROOT_PATH, names.MANAGER_INTERFACE, member, signature, arguments)


def _machine_id() -> str:
    """Return this host's machine id (machine-id(5)), or nothing."""
    for path in _MACHINE_ID_FILES:
        with contextlib.suppress(OSError, UnicodeDecodeError), open(path, encoding="ascii") as file:
            return file.read(64).strip()
    return ""
