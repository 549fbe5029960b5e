"""Every odd message: each gets its standard error or none, and the daemon goes on."""

import asyncio
import os
import socket

import pytest
from bus_harness import DEADLINE, Bus, Client, pretend_uid, run, until, world
from dbus_next import Message, MessageFlag, MessageType, Variant

from devward import names
from devward.bus import dispatch
from devward.bus.connection import BusConnection, CallFailed

P, I, M, R = names.PROPERTIES_INTERFACE, names.INTROSPECTABLE_INTERFACE, names.MANAGER_INTERFACE, names.ROOT_PATH  # noqa: E741  # short for a table
KVM = names.device_path("kvm")
MIB = "x" * (1 << 20)

#: path, interface, member, signature, body, and the error's name.
ODD = [
    # wrong signatures
    (R, M, "Rescan", "", [], "InvalidArgs"),
    (R, M, "Rescan", "s", ["0"], "InvalidArgs"),
    (R, M, "Rescan", "u", [0], "InvalidArgs"),
    (R, M, "Rescan", "tt", [0, 0], "InvalidArgs"),
    (R, M, "Rescan", "v", [Variant("t", 0)], "InvalidArgs"),
    (R, M, "Describe", "s", [""], "InvalidArgs"),
    (R, M, "ListDevices", "t", [0], "InvalidArgs"),
    (R, M, "CheckAllocation", "o", ["/dev/kvm"], "InvalidArgs"),
    (R, M, "PauseCdi", "xst", [1, "why", 0], "InvalidArgs"),
    (R, M, "Pin", "st", ["x", 0], "InvalidArgs"),
    (R, M, "Pin", "ost", ["/vnpu/v0100", "why", 0], "InvalidArgs"),
    (R, M, "Unpin", "s", ["x"], "InvalidArgs"),
    (R, P, "Get", "s", [M], "InvalidArgs"),
    (R, P, "GetAll", "", [], "InvalidArgs"),
    (R, P, "Set", "sss", [M, "Ready", "x"], "InvalidArgs"),
    (R, I, "Introspect", "s", ["x"], "InvalidArgs"),
    (R, names.PEER_INTERFACE, "Ping", "s", ["x"], "InvalidArgs"),
    (R, names.OBJECT_MANAGER_INTERFACE, "GetManagedObjects", "s", ["x"], "InvalidArgs"),
    # unknown everything
    (R, M, "Nothing", "", [], "UnknownMethod"),
    (R, M, "rescan", "t", [0], "UnknownMethod"),
    (R, M, "Ping", "", [], "UnknownMethod"),
    (R, M, "SpecRepaired", "ss", ["a", "b"], "UnknownMethod"),
    (KVM, M, "Rescan", "t", [0], "UnknownInterface"),
    (KVM, names.DEVICE_INTERFACE, "Health", "", [], "UnknownMethod"),
    (R, names.DEVICE_INTERFACE, "X", "", [], "UnknownInterface"),
    ("/", M, "Rescan", "t", [0], "UnknownInterface"),
    ("/org/devward", P, "GetAll", "s", [""], "UnknownInterface"),
    ("/nothing", M, "Rescan", "t", [0], "UnknownObject"),
    ("/nothing", I, "Introspect", "", [], "UnknownObject"),
    (R + "/device/kv", P, "GetAll", "s", [""], "UnknownObject"),
    (R + "/device/kvmm", P, "GetAll", "s", [""], "UnknownObject"),
    (R + "/spec/" + "a" * 5000, P, "GetAll", "s", [""], "UnknownObject"),
    (R, P, "Nothing", "", [], "UnknownMethod"),
    (R, P, "Get", "ss", [M, "Nothing"], "UnknownProperty"),
    (R, P, "Get", "ss", ["", "Nothing"], "UnknownProperty"),
    (R, P, "Get", "ss", [P, "Ready"], "UnknownProperty"),
    (R, P, "Get", "ss", ["no interface", "Ready"], "UnknownInterface"),
    (R, P, "Get", "ss", [names.DEVICE_INTERFACE, "Health"], "UnknownInterface"),
    (R, P, "GetAll", "s", ["org.example.Nothing"], "UnknownInterface"),
    (R, P, "Get", "ss", [MIB, MIB], "UnknownInterface"),
    (R, P, "Get", "ss", ["", MIB], "UnknownProperty"),
    (R, P, "Set", "ssv", [M, "Ready", Variant("b", True)], "PropertyReadOnly"),
    (R, P, "Set", "ssv", [M, "Nothing", Variant("b", True)], "UnknownProperty"),
    (R, P, "Set", "ssv", ["org.example.Nothing", "Ready", Variant("b", True)], "UnknownInterface"),
    ("/nothing", P, "Set", "ssv", [M, "Ready", Variant("b", True)], "UnknownObject"),
    # strings
    (R, M, "CheckAllocation", "s", [MIB], "InvalidArgs"),
    (R, M, "CheckAllocation", "s", ["\x1b]0;x\x07"], "InvalidArgs"),
    (R, M, "AdoptSpec", "st", ["../../../" + MIB, 0], "InvalidArgs"),
    (R, M, "SetCdiMode", "st", [MIB, 0], "InvalidArgs"),
    (R, M, "SetCdiMode", "st", ["repair\n", 0], "InvalidArgs"),
    (R, M, "PauseCdi", "tst", [60, MIB, 0], "InvalidArgs"),
    (R, M, "Pin", "sst", [MIB, "why", 0], "InvalidArgs"),
    (R, M, "Pin", "sst", ["-".join(["0" * 8] * 5), MIB, 0], "InvalidArgs"),
    (R, M, "Unpin", "st", [MIB, 0], "InvalidArgs"),
    (R, M, "Rescan", "t", [2**64 - 1], "InvalidArgs"),
    # without an interface: the member decides
    (R, None, "Nothing", "", [], "UnknownMethod"),
    (R, None, "Rescan", "s", [""], "InvalidArgs"),
    (KVM, None, "Rescan", "t", [0], "UnknownMethod"),
    ("/nothing", None, "Introspect", "", [], "UnknownObject"),
]


@pytest.mark.parametrize("case", ODD)
def test_an_odd_call_gets_its_standard_error(bus: Bus, case: tuple[str, str | None, str, str, list[object], str]) -> None:
    path, interface, member, signature, body, expected = case
    if interface is None and os.geteuid() != 0:
        pytest.skip("needs root: the bus policy lets only root leave the interface out")

    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            reply = await client.call(member, signature, body, path=path, interface=interface)
            assert reply.message_type is MessageType.ERROR, reply.body
            assert reply.error_name == f"org.freedesktop.DBus.Error.{expected}"
            (text,) = reply.body
            assert text.endswith((".", "…"))
            assert len(text) <= dispatch.MAX_ERROR_TEXT
            assert text.isprintable()
            assert not made.backend.calls
            await made.alive()

    run(main)


def test_without_an_interface_the_member_decides(bus: Bus) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: the bus policy lets only root leave the interface out")

    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            assert (await client.ok("Rescan", "t", [0], interface=None))[1] == "done"
            assert (await client.ok("Get", "ss", [M, "Ready"], interface=None))[0].value is True  # type: ignore[attr-defined]
            assert await client.ok("Introspect", interface=None, path="/")
            assert await client.ok("Ping", interface=None, path="/any/where") == []
            assert await client.ok("GetManagedObjects", interface=None)

    run(main)


def test_peer_answers_at_any_path(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            for path in ("/", R, KVM, "/nothing/at/all"):
                assert await client.ok("Ping", interface=names.PEER_INTERFACE, path=path) == []
            made.service.dispatcher._machine_id = "0123456789abcdef0123456789abcdef"
            assert await client.ok("GetMachineId", interface=names.PEER_INTERFACE) == ["0123456789abcdef0123456789abcdef"]
            made.service.dispatcher._machine_id = ""
            assert await client.error("GetMachineId", interface=names.PEER_INTERFACE) == "FileNotFound"

    run(main)


def test_whoever_wants_no_answer_gets_none(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bus would hold such an answer back: what counts is what is sent."""

    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            answered: list[int] = []
            inner = made.service.connection._bus
            assert inner is not None
            send = inner.send

            def spy(message: Message) -> object:
                if message.message_type in (MessageType.METHOD_RETURN, MessageType.ERROR):
                    answered.append(message.reply_serial)
                return send(message)

            monkeypatch.setattr(inner, "send", spy)
            for member, signature, body in (("Rescan", "t", [0]), ("Rescan", "t", [9]), ("Nothing", "", []), ("ListDevices", "", [])):
                flags = MessageFlag.NO_REPLY_EXPECTED
                message = Message(
                    destination=names.BUS_NAME, path=R, interface=M, member=member, signature=signature, body=body, flags=flags
                )
                await client.bus.send(message)
            await until(lambda: made.backend.calls)
            await until(lambda: client.seen("RequestFinished"))
            await client.settle()
            assert len(answered) == 1, "the answer to settle() alone"

    run(main)


def test_answers_and_signals_that_nobody_asked_for_change_nothing(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            ours = made.service.connection.unique_name
            for serial in range(1, 40):
                for kind in (MessageType.METHOD_RETURN, MessageType.ERROR):
                    name = "a.b" if kind is MessageType.ERROR else None
                    await client.bus.send(
                        Message(message_type=kind, destination=ours, reply_serial=serial, error_name=name, signature="s", body=["x"])
                    )
            for path, interface, member, signature, body in (
                (R, M, "RequestFinished", "ss", ["a", "b"]),
                (R, P, "PropertiesChanged", "s", ["x"]),
                ("/org/freedesktop/DBus", "org.freedesktop.DBus", "NameOwnerChanged", "sss", ["a", "b", ""]),
                ("/org/freedesktop/DBus", "org.freedesktop.DBus", "NameOwnerChanged", "u", [1]),
                ("/org/freedesktop/DBus", "org.freedesktop.DBus", "NameLost", "s", [names.BUS_NAME]),
            ):
                signal = MessageType.SIGNAL
                await client.bus.send(
                    Message(
                        message_type=signal, destination=ours, path=path, interface=interface, member=member, signature=signature, body=body
                    )
                )
            await client.ok("GetId", to="org.freedesktop.DBus", path="/")
            await made.alive()

    run(main)


class Raw:
    """A client that writes bytes."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(address.removeprefix("unix:path="))
        self.socket.sendall(b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n")
        self.socket.recv(200)
        self.socket.sendall(b"BEGIN\r\n")
        self.send(self.call(1, to="org.freedesktop.DBus", path="/org/freedesktop/DBus", interface="org.freedesktop.DBus", member="Hello"))
        self.socket.recv(4096)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @staticmethod
    def call(serial: int, *, to: str = names.BUS_NAME, **fields: object) -> bytearray:
        given = {"path": R, "interface": M, "member": "ListDevices"} | fields
        return Message(destination=to, serial=serial, **given)._marshall()  # type: ignore[no-any-return]

    def send(self, data: bytes | bytearray) -> None:
        self.socket.sendall(data)


def _mutations() -> list[tuple[str, bytes]]:
    plain = bytes(Raw.call(2))
    found = [(f"type {kind}", plain[:1] + bytes([kind]) + plain[2:]) for kind in (0, 2, 3, 5, 77, 255)]
    found += [(f"flags {flags}", plain[:2] + bytes([flags]) + plain[3:]) for flags in (2, 6, 8, 0xF8, 0xFF)]
    found += [("protocol version", plain[:3] + b"\x02" + plain[4:]), ("serial 0", plain[:8] + bytes(4) + plain[12:])]
    found += [("cut", plain[:-3]), ("noise", os.urandom(4096)), ("zeros", bytes(4096))]
    path = R.encode()
    wrong = {"double slash": path.replace(b"/devward/", b"//evward/"), "no slash": b"x" + path[1:], "dash": path[:-1] + b"-"}
    found += [(f"path {name}", plain.replace(path + b"\0", bad + b"\0")) for name, bad in wrong.items()]
    nested = Variant("s", "deep")
    for _ in range(60):
        nested = Variant("v", nested)
    found += [
        ("60 variants", bytes(Raw.call(2, interface=P, member="Set", signature="ssv", body=[M, "Ready", nested]))),
        ("31 arrays", bytes(Raw.call(2, member="Rescan", signature="a" * 31 + "s", body=[[]]))),
        ("31 structures", bytes(Raw.call(2, member="Rescan", signature="(" * 31 + "y" + ")" * 31, body=[_nest(31)]))),
        ("255 arguments", bytes(Raw.call(2, member="Rescan", signature="y" * 255, body=[0] * 255))),
        ("a file descriptor that is not there", bytes(Raw.call(2, member="Rescan", signature="h", body=[7]))),
        ("a million bytes", bytes(Raw.call(2, member="Rescan", signature="ay", body=[bytes(1_000_000)]))),
        ("ten thousand dictionary entries", bytes(Raw.call(2, member="Rescan", signature="a{tt}", body=[dict.fromkeys(range(10_000), 0)]))),
        ("a float that is no number", bytes(Raw.call(2, member="Rescan", signature="d", body=[float("nan")]))),
        ("unknown type to an unknown member", bytes(Raw.call(2, member="X" * 255))),
    ]
    return found


def _nest(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


MUTATIONS = _mutations()


@pytest.mark.parametrize("data", [data for _, data in MUTATIONS], ids=[name for name, _ in MUTATIONS])
def test_odd_bytes_do_no_harm(bus: Bus, data: bytes) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            with Raw(bus.address) as raw:
                raw.send(data)
                await made.alive()
                # Whatever the bus let through has arrived before the answer above; the connection is still the same.
                assert made.service.connection.connected
            assert not made.backend.calls
            await made.alive()

    run(main)


def test_a_thousand_calls_at_once(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            caller = BusConnection()  # the library's own would not survive sending that much at once
            await caller.connect(bus.address)

            async def call(member: str, signature: str, body: list[object], expect: str, interface: str = M) -> str:
                try:
                    await caller.call(names.BUS_NAME, R, interface, member, signature, body, expect=expect, within=DEADLINE)
                except CallFailed as error:
                    return error.name
                return "answered"

            made.backend.gate.clear()
            calls = [asyncio.ensure_future(call("CheckAllocation", "s", ["kvm"], "bsss")) for _ in range(1000)]
            await until(lambda: sum(call.done() for call in calls) == 1000 - dispatch.MAX_CALLS_PER_SENDER)
            assert {call.result() for call in calls if call.done()} == {"org.freedesktop.DBus.Error.LimitsExceeded"}
            await made.alive()  # reading is not held up, nor are others
            made.backend.gate.set()
            answers = await asyncio.gather(*calls)
            assert answers.count("answered") == dispatch.MAX_CALLS_PER_SENDER
            assert await call("CheckAllocation", "s", ["kvm"], "bsss") == "answered"
            reads = await asyncio.gather(*(call("Get", "ss", [M, "Ready"], "v", P) for _ in range(1000)))
            assert set(reads) == {"answered"}
            await until(lambda: not made.service.dispatcher._calls)
            assert not made.service.dispatcher._by_sender
            await caller.close()

    run(main, debug=False)


def test_many_callers_together_have_a_limit_too(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_CALLS", 10)
    monkeypatch.setattr(dispatch, "MAX_CALLS_PER_SENDER", 4)

    async def main() -> None:
        async with world(bus.address) as made:
            made.backend.gate.clear()
            clients = [await made.client() for _ in range(4)]
            calls = [asyncio.ensure_future(client.call("CheckAllocation", "s", ["kvm"])) for client in clients for _ in range(4)]
            await until(lambda: sum(call.done() for call in calls) == 6)
            await made.alive()
            made.backend.gate.set()
            await asyncio.gather(*calls)
            await clients[0].ok("CheckAllocation", "s", ["kvm"])

    run(main)


@pytest.mark.parametrize(("per_uid", "in_all", "answered"), [(5, 20, 5), (50, 7, 7)])
def test_a_user_with_many_connections_leaves_room_for_root(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, per_uid: int, in_all: int, answered: int
) -> None:
    monkeypatch.setattr(dispatch, "MAX_CALLS", in_all)
    monkeypatch.setattr(dispatch, "MAX_CALLS_PER_UID", per_uid)

    async def main() -> None:
        async with world(bus.address) as made:
            pretend_uid(made, 0, monkeypatch)
            root = await made.client()
            await root.ok("CheckAllocation", "s", ["kvm"])
            pretend_uid(made, 1000, monkeypatch)
            made.backend.gate.clear()
            clients = [await made.client() for _ in range(6)]
            calls = [asyncio.ensure_future(client.call("CheckAllocation", "s", ["kvm"])) for client in clients for _ in range(5)]
            await until(lambda: sum(call.done() for call in calls) == 30 - answered)
            assert {call.result().error_name for call in calls if call.done()} == {"org.freedesktop.DBus.Error.LimitsExceeded"}
            stops = [asyncio.ensure_future(root.call("CheckAllocation", "s", ["kvm"])) for _ in range(4)]
            await until(lambda: made.service.dispatcher._by_uid == {0: 4, 1000: answered})
            made.backend.gate.set()
            assert {one.message_type for one in await asyncio.gather(*stops)} == {MessageType.METHOD_RETURN}
            await asyncio.gather(*calls)
            await clients[0].ok("CheckAllocation", "s", ["kvm"])
            await until(lambda: not made.service.dispatcher._calls)
            assert not made.service.dispatcher._by_uid
            assert made.service.dispatcher._unnamed == 0

    run(main)


def test_calls_of_whom_nobody_knows_yet_have_a_limit_of_their_own(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_UNNAMED", 6)

    async def main() -> None:
        async with world(bus.address) as made:
            known = await made.client()
            await known.ok("CheckAllocation", "s", ["kvm"])
            answers, real = asyncio.Event(), made.service.connection.call_bus

            async def call_bus(member: str, *body: object, **more: object) -> object:
                if member == "GetConnectionCredentials":
                    await answers.wait()
                return await real(member, *body, **more)  # type: ignore[arg-type]

            monkeypatch.setattr(made.service.connection, "call_bus", call_bus)
            clients = [await made.client() for _ in range(4)]
            calls = [asyncio.ensure_future(client.call("CheckAllocation", "s", ["kvm"])) for client in clients for _ in range(2)]
            await until(lambda: sum(call.done() for call in calls) == 2)
            await known.ok("CheckAllocation", "s", ["kvm"])
            answers.set()
            done = await asyncio.gather(*calls)
            assert [one.error_name for one in done if one.error_name] == ["org.freedesktop.DBus.Error.LimitsExceeded"] * 2
            await known.ok("CheckAllocation", "s", ["kvm"])
            await until(lambda: made.service.dispatcher._unnamed == 0)

    run(main)


def test_limits_are_those_of_the_contract() -> None:
    assert (dispatch.MAX_CALLS_PER_SENDER, dispatch.MAX_CALLS_PER_UID, dispatch.MAX_CALLS, dispatch.MAX_UNNAMED) == (64, 128, 512, 2048)


def test_callers_that_leave_in_the_middle_leave_nothing_behind(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            made.backend.gate.clear()
            for _ in range(5):
                client = await Client.connect(bus.address)
                calls = [asyncio.ensure_future(client.call("CheckAllocation", "s", ["kvm"])) for _ in range(5)]
                started = made.backend.started
                await until(lambda started=started: made.backend.started >= started + 5)
                await client.close()
                await asyncio.gather(*calls, return_exceptions=True)
            await made.alive()
            made.backend.gate.set()
            await until(lambda: not made.service.dispatcher._calls)
            await made.alive()

    run(main)


def test_the_handler_never_raises_whatever_breaks(bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            for name, member, signature, body, interface in (
                ("introspect", "Introspect", "", [], I),
                ("get_all", "GetAll", "s", [M], P),
                ("interfaces", "Ping", "", [], names.PEER_INTERFACE),
            ):
                with monkeypatch.context() as patch:
                    objects = made.service.dispatcher._objects

                    def broken(*_: object) -> object:
                        raise ZeroDivisionError("/secret")

                    patch.setattr(objects, name, broken)
                    patch.setattr(made.service.dispatcher, "_answers", dict.fromkeys(made.service.dispatcher._answers, broken))
                    reply = await client.call(member, signature, body, interface=interface)
                    assert reply.error_name == names.ERROR_PREFIX + "Internal"
                    assert "secret" not in reply.body[0]
            await made.alive()

    run(main)
    assert "ZeroDivisionError" in caplog.text
