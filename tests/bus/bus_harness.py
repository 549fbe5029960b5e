"""What the bus tests share: a private bus with devward's own policy file, a polkit that is told what to say, a fake daemon behind the bus.

Nothing here touches the system bus. Where the tests run as root, calls of another user are real: made through setpriv.
"""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import devward.bus.connection  # noqa: F401  # first: it keeps dbus-next from importing PyGObject, which warns where it is installed

# isort: split
from dbus_next import Message, MessageFlag, MessageType, Variant
from dbus_next.aio import MessageBus

from devward import names
from devward.bus import auth, connection, manager
from devward.bus.service import BusService
from devward.errors import AccessDenied, InteractionRequired
from devward.model import (
    ActionRequest,
    ActionResult,
    Allocation,
    Caller,
    CdiMode,
    ConfigState,
    DeviceKind,
    DeviceView,
    Finding,
    Health,
    Identity,
    ManagerView,
    Outcome,
    ReclaimMode,
    SpecState,
    SpecView,
)
from devward.npu.views import UNKNOWN_NUMBER, CardHealth, CardView, Management, Protection, Use, Verdict, VnpuView
from devward.reasons import Reason
from sim.polkit_stub import Mode, PolkitStub

ROOT = Path(__file__).parents[2]


NOBODY = 65534
DEADLINE = 120.0  # seconds that only a failure takes
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: calls as a second uid are made through setpriv")

# As the system bus's own configuration: nobody owns names or calls others unless a file in system.d says so.
_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <limit name="max_replies_per_connection">8192</limit>
  <policy context="default">
    <allow user="*"/>
    <deny own="*"/>
    <deny send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
    <allow send_destination="org.freedesktop.DBus"/>
    <allow own="org.freedesktop.PolicyKit1"/>
    <allow send_destination="org.freedesktop.PolicyKit1"/>
  </policy>
  {extra}
  <include>{policy}</include>
</busconfig>
"""


@dataclass(frozen=True)
class Bus:
    """A running dbus-daemon."""

    address: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def start_bus(directory: Path) -> Bus:
    """Start a dbus-daemon of our own; the directory must be reachable for every user."""
    socket = directory / "bus"
    # The policy file lets only root own the name; a suite that is not root is its own root here.
    extra = "" if os.geteuid() == 0 else f'<policy user="{os.geteuid()}"><allow own="{names.BUS_NAME}"/></policy>'
    config = directory / "bus.conf"
    config.write_text(_CONFIG.format(socket=socket, extra=extra, policy=ROOT / "dbus" / "org.devward.Devward1.conf"))
    process = subprocess.Popen(
        ["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile", "--print-address"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline(), "dbus-daemon ended"  # it prints its address once it listens
    return Bus(f"unix:path={socket}", process)


@contextlib.contextmanager
def private_bus() -> Iterator[Bus]:
    directory = Path(tempfile.mkdtemp(prefix="devward-bus-"))
    directory.chmod(0o755)
    bus = start_bus(directory)
    try:
        yield bus
    finally:
        bus.process.send_signal(signal.SIGCONT)
        bus.kill()
        shutil.rmtree(directory)


def run(main: Callable[[], Awaitable[None]], *, debug: bool = True) -> None:
    """Run a test in an event loop, where nothing may be left to the loop's exception handler; in debug mode, which costs much."""
    complaints: list[str] = []

    async def guarded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(repr(context)))
        async with asyncio.timeout(2 * DEADLINE):
            await main()

    asyncio.run(guarded(), debug=debug)
    assert not complaints


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, with a deadline that only a failure meets."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE
    while not condition():
        assert loop.time() < deadline, "the condition was not met"
        await asyncio.sleep(0.005)


KVM = DeviceView(
    kind=DeviceKind.KVM,
    node="/dev/kvm",
    number="10:232",
    identity=Identity.VALID,
    identity_since_usec=1_700_000_000_000_001,
    health=Health.HEALTHY,
    health_since_usec=1_700_000_000_000_002,
    reason=Reason.OK,
    text="",
    last_check_usec=1_700_000_000_000_003,
    check_duration_usec=4200,
)
MSHV = replace(KVM, kind=DeviceKind.MSHV, node="/dev/mshv", number="", identity=Identity.MISSING, health=Health.MISSING)
SPEC = SpecView(
    file="/etc/cdi/hyperlight.dev-hypervisor.json",
    cdi_kind="hyperlight.dev/hypervisor",
    devices=("hyperlight.dev/hypervisor=kvm",),
    state=SpecState.TRUE,
    state_since_usec=1_700_000_000_000_004,
    reason=Reason.OK,
    text="",
    repair_count=2,
    last_repair_usec=1_700_000_000_000_005,
    last_repair_cause="missing",
)
CARD = CardView(
    name="p007",
    phy_id=7,
    logic_id=3,
    card=3,
    device=1,
    die_id="01234567-89ABCDEF-01234567-89ABCDEF-00000007",
    chip="Ascend 910B3",
    node="/dev/davinci7",
    number="236:7",
    identity=Identity.VALID,
    health=CardHealth.HEALTHY,
    managed=Management.UNKNOWN,
    protection=Protection.NOT_EVALUATED,
    claims=(),
    used_cores=5.0,
    claimed_cores=float(UNKNOWN_NUMBER),
    total_cores=20.0,
    reason=Reason.OK,
    text="",
)
VNPU = VnpuView(
    name="v0212",
    vdev=212,
    identity=f"{CARD.die_id}/212/vir05_1c_16g/0123456789abcdef",
    card="p007",
    template="vir05_1c_16g",
    vfid=1,
    cores=5.0,
    node="/dev/vdavinci212",
    use=Use.IDLE,
    verdict=Verdict.UNKNOWN,
    reason=Reason.OK,
    text="",
    first_seen_usec=1_700_000_000_000_007,
    grace_start_usec=0,
    confirmations=0,
    eligible_at_usec=0,
)
#: The targets of pins of these two.
CARD_TARGET = CARD.die_id
VNPU_TARGET = f"{CARD.die_id}/212/vir05_1c_16g"
MANAGER = ManagerView(
    version="1.2.3",
    node_name="node-a",
    ready=True,
    not_ready_reasons=(),
    checking=False,
    cdi_mode=CdiMode.REPAIR,
    cdi_paused_until_usec=0,
    audit_dropped=0,
    config_state=ConfigState.GOOD,
)
FINDING = Finding(Reason.CDI_FILE_MALFORMED, "/etc/cdi/other.json", "The secret detail of /etc/cdi/other.json.", 1_700_000_000_000_006)
DONE = (ActionResult("/dev/kvm", Outcome.SUCCESS, ""),)


class FakeBackend:
    """A daemon that does what the test says. `calls` records every action with its arguments."""

    def __init__(self) -> None:
        self.view = MANAGER
        self.device_views = [KVM]
        self.spec_views = [SPEC]
        # As on most hosts; tests that are about NPUs bring some.
        self.card_views: Sequence[CardView] = ()
        self.vnpu_views: Sequence[VnpuView] = ()
        self.finding_list = [FINDING]
        #: More of what Describe, and Explain of anything, tell.
        self.described: dict[str, object] = {}
        self.explained: dict[str, object] = {}
        self.is_ready = True
        self.is_stopping = False
        self.results: tuple[ActionResult, ...] = DONE
        self.allocation = Allocation(allowed=True, reason=Reason.OK, text="")
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.started = 0
        self.cancelled = 0
        self.calls: list[tuple[object, ...]] = []

    def manager(self) -> ManagerView:
        return self.view

    def devices(self) -> list[DeviceView]:
        return self.device_views

    def specs(self) -> list[SpecView]:
        return self.spec_views

    def cards(self) -> Sequence[CardView]:
        return self.card_views

    def vnpus(self) -> Sequence[VnpuView]:
        return self.vnpu_views

    def explain_card(self, name: str, *, full: bool) -> str:
        return self.explain_vnpu(name, full=full)

    def explain_vnpu(self, name: str, *, full: bool) -> str:
        if self.error is not None:
            raise self.error
        return json.dumps({"name": name, "full": full, **self.explained})

    def findings(self) -> list[Finding]:
        return self.finding_list

    def describe(self, *, full: bool) -> str:
        if self.error is not None:
            raise self.error
        return json.dumps({"full": full, **self.described})

    def ready_for_actions(self) -> bool:
        return self.is_ready

    def stopping(self) -> bool:
        return self.is_stopping

    async def _act(self, *call: object) -> None:
        self.calls.append(call)
        self.started += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error

    async def rescan(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        await self._act("rescan", request)
        return self.results

    async def repair_specs(self, request: ActionRequest, *, dry_run: bool) -> tuple[ActionResult, ...]:
        await self._act("repair_specs", request, dry_run)
        return self.results

    async def adopt_spec(self, request: ActionRequest, file: str, *, dry_run: bool) -> tuple[ActionResult, ...]:
        await self._act("adopt_spec", request, file, dry_run)
        return self.results

    async def set_cdi_mode(self, request: ActionRequest, mode: CdiMode) -> tuple[ActionResult, ...]:
        await self._act("set_cdi_mode", request, mode)
        return self.results

    async def pause_cdi(self, request: ActionRequest, seconds: int, reason: str) -> tuple[ActionResult, ...]:
        await self._act("pause_cdi", request, seconds, reason)
        return self.results

    async def resume_cdi(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        await self._act("resume_cdi", request)
        return self.results

    async def reclaim_vnpu(
        self, request: ActionRequest, vdev: int, identity: str, *, dry_run: bool, shorten: bool
    ) -> tuple[ActionResult, ...]:
        await self._act("reclaim_vnpu", request, vdev, identity, dry_run, shorten)
        return self.results

    async def reclaim_orphans(self, request: ActionRequest, *, dry_run: bool, shorten: bool) -> tuple[ActionResult, ...]:
        await self._act("reclaim_orphans", request, dry_run, shorten)
        return self.results

    async def release_breaker(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        await self._act("release_breaker", request)
        return self.results

    async def set_reclaim_mode(self, request: ActionRequest, mode: ReclaimMode) -> tuple[ActionResult, ...]:
        await self._act("set_reclaim_mode", request, mode)
        return self.results

    async def pause_reclaim(self, request: ActionRequest, seconds: int, reason: str) -> tuple[ActionResult, ...]:
        await self._act("pause_reclaim", request, seconds, reason)
        return self.results

    async def resume_reclaim(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        await self._act("resume_reclaim", request)
        return self.results

    async def pin(self, request: ActionRequest, target: str, reason: str) -> tuple[ActionResult, ...]:
        await self._act("pin", request, target, reason)
        return self.results

    async def unpin(self, request: ActionRequest, target: str) -> tuple[ActionResult, ...]:
        await self._act("unpin", request, target)
        return self.results

    async def accept_node(self, request: ActionRequest, uid: str) -> tuple[ActionResult, ...]:
        await self._act("accept_node", request, uid)
        return self.results

    async def reload(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        await self._act("reload", request)
        return self.results

    async def check_allocation(self, request: ActionRequest, device: str) -> Allocation:
        await self._act("check_allocation", request, device)
        return self.allocation


class FakeAudit:
    """Records denials."""

    def __init__(self) -> None:
        self.denials: list[tuple[Caller | None, str, str, str, str]] = []

    def denied(self, *, caller: Caller | None, sender: str, action: str, member: str, reason: str, text: str) -> None:
        assert reason in {AccessDenied.code, InteractionRequired.code}, "a code, and the sentence apart"
        self.denials.append((caller, sender, action, member, text))


class FakeLogControl:
    """Keeps what is set."""

    def __init__(self) -> None:
        self.level = "info"
        self.target = "auto"

    def log_level(self) -> str:
        return self.level

    def set_log_level(self, level: str) -> None:
        self.level = level

    def log_target(self) -> str:
        return self.target

    def set_log_target(self, target: str) -> None:
        self.target = target


class Client:
    """A client of the bus: raw calls, and every signal that it sees."""

    def __init__(self, bus: MessageBus) -> None:
        self.bus = bus
        self.signals: list[Message] = []
        bus.add_message_handler(self._on_message)

    @classmethod
    async def connect(cls, address: str) -> "Client":
        client = cls(await MessageBus(bus_address=address).connect())
        await client.ok("AddMatch", "s", [f"type='signal',sender='{names.BUS_NAME}'"], to="org.freedesktop.DBus", path="/")
        return client

    def _on_message(self, message: Message) -> bool:
        if message.message_type is MessageType.SIGNAL and message.sender != "org.freedesktop.DBus":
            self.signals.append(message)
        return message.message_type is MessageType.METHOD_CALL

    async def call(
        self,
        member: str,
        signature: str = "",
        body: list[object] | None = None,
        *,
        interface: str | None = names.MANAGER_INTERFACE,
        path: str = names.ROOT_PATH,
        flags: int = 0,
        to: str = names.BUS_NAME,
    ) -> Message:
        if to == "org.freedesktop.DBus":
            interface = to
        message = Message(
            destination=to,
            path=path,
            interface=interface,
            member=member,
            signature=signature,
            body=body or [],
            flags=MessageFlag(flags),
        )
        async with asyncio.timeout(DEADLINE):
            answer = await self.bus.call(message)
        assert answer is not None
        return answer

    async def ok(self, member: str, signature: str = "", body: list[object] | None = None, **more: object) -> list[object]:
        reply = await self.call(member, signature, body, **more)  # type: ignore[arg-type]
        assert reply.message_type is MessageType.METHOD_RETURN, (reply.error_name, reply.body)
        return reply.body

    async def error(self, member: str, signature: str = "", body: list[object] | None = None, **more: object) -> str:
        """Make a call that must fail, and return the error's name without the usual prefix."""
        reply = await self.call(member, signature, body, **more)  # type: ignore[arg-type]
        assert reply.message_type is MessageType.ERROR, reply.body
        (text,) = reply.body
        assert text
        assert "Traceback" not in text
        assert "\n" not in text
        return reply.error_name.removeprefix("org.freedesktop.DBus.Error.")

    def seen(self, member: str) -> list[Message]:
        return [signal for signal in self.signals if signal.member == member]

    async def settle(self) -> None:
        """Wait until every signal that was sent before now has arrived."""
        await self.ok("Ping", interface=names.PEER_INTERFACE)

    async def close(self) -> None:
        await close_bus(self.bus)


async def close_bus(bus: MessageBus) -> None:
    """Disconnect and close what the library leaves open."""
    if bus.connected:
        bus.disconnect()
    with contextlib.suppress(Exception):
        await bus.wait_for_disconnect()
    bus._stream.close()
    bus._sock.close()


#: What the daemon waits for, in production: tests that are not about these times wait for ever, as far as a loaded machine can tell.
TIMES = {
    "polkit": (auth, "POLKIT_SECONDS", auth.POLKIT_SECONDS),
    "prompt": (auth, "PROMPT_SECONDS", auth.PROMPT_SECONDS),
    "inspect": (auth, "INSPECT_SECONDS", auth.INSPECT_SECONDS),
    "credentials": (auth, "CREDENTIALS_SECONDS", auth.CREDENTIALS_SECONDS),
    "check": (manager, "CHECK_SECONDS", manager.CHECK_SECONDS),
    "reply": (manager, "REPLY_SECONDS", manager.REPLY_SECONDS),
    "setup": (connection, "SETUP_SECONDS", connection.SETUP_SECONDS),
}


class World:
    """The service under test, with everything around it."""

    def __init__(self, address: str, reply_seconds: float) -> None:
        self.address = address
        self.backend = FakeBackend()
        self.audit = FakeAudit()
        self.log_control = FakeLogControl()
        self.polkit = PolkitStub(Mode.ALLOW)
        counter = itertools.count(1)
        self.service = BusService(
            self.backend, self.audit, self.log_control, new_id=lambda: f"id-{next(counter)}", strict=True, reply_seconds=reply_seconds
        )
        self.clients: list[Client] = []

    async def client(self) -> Client:
        client = await Client.connect(self.address)
        self.clients.append(client)
        return client

    async def alive(self) -> None:
        """Fail unless the daemon still answers a new client as it should."""
        client = await self.client()
        rows = await client.ok("ListDevices")
        assert rows[0][0][0] == "kvm"  # type: ignore[index]


@contextlib.asynccontextmanager
async def world(address: str, *, polkit: bool = True, reply_seconds: float = DEADLINE) -> AsyncIterator[World]:
    made = World(address, reply_seconds)
    try:
        if polkit:
            await made.polkit.start(address)
        await made.service.start(address)
        yield made
    finally:
        await made.service.close()
        for client in made.clients:
            await client.close()
        await made.polkit.stop()


def pretend_uid(made: World, uid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the bus say that every caller has this uid: what the gate does then is the same for whoever runs the tests."""
    real = made.service.connection.call_bus

    async def call_bus(member: str, signature: str, body: Sequence[object], *, expect: str, within: float) -> Sequence[object]:
        if member == "GetConnectionCredentials":
            return ({"UnixUserID": Variant("u", uid), "ProcessID": Variant("u", 4321)},)
        return await real(member, signature, body, expect=expect, within=within)

    monkeypatch.setattr(made.service.connection, "call_bus", call_bus)


async def as_nobody(address: str, *arguments: str) -> tuple[int, str, str]:
    """Run busctl as uid 65534, and return its exit status, output and errors."""
    return await command(
        "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "busctl", f"--address={address}", *arguments
    )


async def command(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(DEADLINE):
        output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()
