"""The connection: a bus that is not there, hangs, goes away or is hostile, and the defects of the library that are mended here."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from bus_harness import DEADLINE, ROOT, Bus, Client, command, run, until, world
from dbus_next import Message, MessageType
from dbus_next._private.marshaller import Marshaller
from dbus_next.signature import SignatureTree
from hypothesis import given
from hypothesis import strategies as st

from devward import names
from devward.bus import connection as connections
from devward.bus import transport
from devward.bus.connection import BusConnection, CallFailed, MethodCall, check_type, variant
from devward.bus.stream import BusSocket, Frames, targets
from devward.errors import BusError
from devward.model import RepairCause

FLOOD = str(ROOT / "tests" / "sim" / "bus_flood.py")
Server = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[BusConnection]:
    made = BusConnection()
    try:
        await made.connect(address)
        yield made
    finally:
        await made.close()


@contextlib.asynccontextmanager
async def server(behaviour: Server) -> AsyncIterator[str]:
    """Something that is not a good bus, for one connection."""
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/bus"
        served = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                # Whoever connected may have given up already.
                with contextlib.suppress(ConnectionError):
                    await behaviour(reader, writer)
            finally:
                writer.close()
                served.set()

        async with await asyncio.start_unix_server(serve, path):
            yield f"unix:path={path}"
            # On a slow machine it is accepted only now; and what is being accepted must not be broken off.
            await served.wait()


# --- getting there -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("unix:path=/nonexistent/bus", "cannot be used"),
        ("unix:abstract=devward-nobody-listens", "cannot be used"),
        ("unix:path=/nonexistent/1;unix:path=/nonexistent/2", "cannot be used"),
        ("tcp:host=localhost,port=1", "only addresses"),
        ("unix:tmpdir=/tmp", "only addresses"),
        ("nonsense", "only addresses"),
        (";", "only addresses"),
    ],
)
def test_no_bus_is_a_sentence(address: str, complaint: str) -> None:
    async def main() -> None:
        made = BusConnection()
        with pytest.raises(BusError, match=complaint):
            await made.connect(address)
        assert not made.connected
        with pytest.raises(BusError):
            await made.call_bus("GetId", "", [], expect="s", within=1.0)
        with pytest.raises(BusError):
            await made.wait_lost()
        made.emit_signal("/x", "a.b", "C", "", [])
        await made.close()

    run(main)


def test_the_first_address_that_works_is_taken_and_the_environment_is_the_default(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path=/nonexistent/bus;{bus.address},guid=0123")

    async def main() -> None:
        made = BusConnection()
        await made.connect()
        assert made.unique_name.startswith(":")
        await made.close()
        await made.close()

    run(main)


def test_addresses() -> None:
    assert targets("unix:path=/run/a%20b,guid=1;unix:abstract=x") == ["/run/a b", "\0x"]
    assert connections.SYSTEM_BUS_ADDRESS.startswith("unix:path=/run/")


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def _closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()


async def _closes_within_a_line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"OK 12")


async def _rejects(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"REJECTED EXTERNAL\r\n")
    await reader.read()


async def _babbles(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def _accepts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"OK 0123\r\n")
    await reader.readline()


async def _never_greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _accepts(reader, writer)
    await reader.read()


async def _greets_with_noise(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _accepts(reader, writer)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await reader.read()


async def _refuses_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _accepts(reader, writer)
    hello = Message(path="/", member="Hello", serial=1)
    writer.write(Message.new_error(hello, "org.freedesktop.DBus.Error.LimitsExceeded", "too many")._marshall())
    await reader.read()


@pytest.mark.parametrize(
    "behaviour",
    [_silent, _closes, _closes_within_a_line, _rejects, _babbles, _never_greets, _greets_with_noise, _refuses_hello],
)
def test_a_bus_that_does_not_behave_ends_in_a_sentence_in_time(behaviour: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SETUP_SECONDS", 0.3)

    async def main() -> None:
        async with server(behaviour) as address:
            made = BusConnection()
            with pytest.raises(BusError):
                await made.connect(address)
            assert not made.connected
            await made.close()

    run(main)


def test_a_bus_that_accepts_nobody_does_not_stop_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SETUP_SECONDS", 0.3)

    async def main() -> None:
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
            listener.bind(f"{directory}/bus")
            listener.listen(0)
            first.connect(f"{directory}/bus")  # the backlog is full now
            made = BusConnection()
            with pytest.raises(BusError, match="does not answer"):
                await made.connect(f"unix:path={directory}/bus")
            await made.close()

    run(main)


def test_connecting_and_the_name_share_five_seconds(own_bus: Bus) -> None:
    async def main() -> None:
        async with connected(own_bus.address) as made:
            assert 0 < made._setup_left < connections.SETUP_SECONDS
            made._setup_left = 0.1
            own_bus.process.send_signal(signal.SIGSTOP)
            with pytest.raises(BusError, match="did not answer"):
                await made.request_name(names.BUS_NAME)
            own_bus.process.send_signal(signal.SIGCONT)

    run(main)


def test_a_name_that_is_held_is_told_with_its_holder(bus: Bus) -> None:
    async def main() -> None:
        async with connected(bus.address) as first, connected(bus.address) as second:
            await first.request_name(names.BUS_NAME)
            with pytest.raises(BusError, match=f"already held by process {os.getpid()}"):
                await second.request_name(names.BUS_NAME)
            await first.close()
            # Not queued behind the first: the name is nobody's now.
            (owned,) = await second.call_bus("NameHasOwner", "s", [names.BUS_NAME], expect="b", within=DEADLINE)
            assert owned is False
            with pytest.raises(BusError, match="did not give"):
                await second.request_name("org.example.Forbidden")

    run(main)


def test_a_second_daemon_fails_to_start(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            with pytest.raises(BusError, match="already held"):
                async with world(bus.address, polkit=False):
                    pass
            await made.alive()

    run(main)


# --- losing it -----------------------------------------------------------------------------------------------------


def test_a_killed_bus_is_noticed_and_nothing_hangs(own_bus: Bus) -> None:
    async def main() -> None:
        async with world(own_bus.address) as made:
            waiting = asyncio.ensure_future(made.service.wait_lost())
            await asyncio.sleep(0)
            own_bus.process.send_signal(signal.SIGSTOP)
            pending = asyncio.ensure_future(made.service.connection.call_bus("GetId", "", [], expect="s", within=DEADLINE))
            await asyncio.sleep(0)
            own_bus.kill()
            assert "bus" in await waiting
            with pytest.raises(BusError, match="lost"):
                await pending
            assert not made.service.connection.connected
            with pytest.raises(BusError):
                await made.service.connection.call_bus("GetId", "", [], expect="s", within=1.0)
            made.service.publish()
            made.service.spec_repaired("x", RepairCause.STALE)
            assert "bus" in await made.service.wait_lost(), "every waiter is told, at any time"

    run(main)


def test_a_waiter_that_is_cancelled_does_not_take_the_news_from_others(own_bus: Bus) -> None:
    async def main() -> None:
        async with connected(own_bus.address) as made:
            first, second = (asyncio.ensure_future(made.wait_lost()) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            own_bus.kill()
            assert await second

    run(main)


def test_a_bus_that_stops_answering_costs_a_call_its_time_and_no_more(own_bus: Bus) -> None:
    async def main() -> None:
        async with connected(own_bus.address) as made:
            own_bus.process.send_signal(signal.SIGSTOP)
            with pytest.raises(CallFailed, match="not answered"):
                await made.call_bus("GetId", "", [], expect="s", within=0.05)
            assert not made._bus._method_return_handlers, "nothing waits for the late answer"  # type: ignore[union-attr]
            own_bus.process.send_signal(signal.SIGCONT)
            assert await made.call_bus("GetId", "", [], expect="s", within=DEADLINE)

    run(main)


def test_a_bus_that_never_reads_counts_as_lost(own_bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_UNSENT", 500)

    async def main() -> None:
        async with connected(own_bus.address) as made:
            own_bus.process.send_signal(signal.SIGSTOP)
            for _ in range(5000):
                made.emit_signal("/x", "a.b", "C", "s", ["x" * 1000])
                if not made.connected:
                    break
            assert "unread" in await made.wait_lost()
            own_bus.process.send_signal(signal.SIGCONT)

    run(main)


def test_closing_sends_what_is_queued(bus: Bus) -> None:
    async def main() -> None:
        client = await Client.connect(bus.address)
        made = BusConnection()
        await made.connect(bus.address)
        await client.ok("AddMatch", "s", [f"sender='{made.unique_name}'"], to="org.freedesktop.DBus", path="/")
        for number in range(500):
            made.emit_signal("/x", "a.b", "Last", "t", [number])
        await made.close()
        await until(lambda: len(client.seen("Last")) == 500)
        await client.close()

    run(main)


# --- what is said --------------------------------------------------------------------------------------------------


def test_answers_are_checked(bus: Bus) -> None:
    async def main() -> None:
        async with connected(bus.address) as made:
            with pytest.raises(CallFailed, match="answered with 's'"):
                await made.call_bus("GetId", "", [], expect="u", within=DEADLINE)
            with pytest.raises(CallFailed) as raised:
                await made.call_bus("GetNameOwner", "s", ["org.example.Nobody"], expect="s", within=DEADLINE)
            assert raised.value.name == "org.freedesktop.DBus.Error.NameHasNoOwner"
            with pytest.raises(CallFailed):
                await made.call("org.example.Nobody", "/", "a.b", "M", expect="", within=DEADLINE)

    run(main)


def test_a_call_before_there_is_a_handler_gets_an_error(bus: Bus) -> None:
    async def main() -> None:
        async with connected(bus.address) as made, connected(bus.address) as other:
            await made.request_name(names.BUS_NAME)
            with pytest.raises(CallFailed, match="Nothing is served"):
                await other.call(names.BUS_NAME, "/", names.PEER_INTERFACE, "Ping", expect="", within=DEADLINE)

    run(main)


def test_a_call_arrives_as_it_was_sent(bus: Bus) -> None:
    async def main() -> None:
        calls: list[MethodCall] = []
        async with connected(bus.address) as made, connected(bus.address) as other:
            made.set_handler(lambda call: (calls.append(call), made.reply(call, "s", [call.member]))[0])
            await made.request_name(names.BUS_NAME)
            body = ["text", (1, True), [variant("s", "v")], {"k": variant("as", ["x"])}]
            answer = await other.call(
                names.BUS_NAME, "/a/b", names.MANAGER_INTERFACE, "M", "s(tb)ava{sv}", body, expect="s", within=DEADLINE
            )
            assert answer == ("M",)
            (call,) = calls
            assert (call.sender, call.path, call.interface, call.member) == (other.unique_name, "/a/b", names.MANAGER_INTERFACE, "M")
            assert call.body == ("text", [1, True], [variant("s", "v")], {"k": variant("as", ["x"])})
            assert (call.signature, call.no_reply, call.interactive) == ("s(tb)ava{sv}", False, False)
            other.notify(names.BUS_NAME, "/", names.MANAGER_INTERFACE, "N", "", [])
            await until(lambda: len(calls) == 2)
            assert calls[1].no_reply

    run(main)


WRONG = [("t", True), ("b", 1), ("s", None), ("t", -1), ("u", 2**32), ("as", ["x", 1]), ("o", "no path"), ("", "x"), ("ss", "x")]


@pytest.mark.parametrize(("signature", "value"), WRONG)
def test_values_of_the_wrong_type_are_refused(signature: str, value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        check_type(signature, value)


# --- names that vanish ---------------------------------------------------------------------------------------------


def test_a_vanished_name_is_told_once_to_everybody_who_still_waits(bus: Bus) -> None:
    async def main() -> None:
        told: list[str] = []
        async with connected(bus.address) as made:
            client, other = await Client.connect(bus.address), await Client.connect(bus.address)
            name = str(client.bus.unique_name)
            made.on_name_vanished(name, lambda: told.append("first"))
            end = made.on_name_vanished(name, lambda: told.append("ended"))
            made.on_name_vanished(name, lambda: told.append("second"))
            made.on_name_vanished(str(other.bus.unique_name), lambda: told.append("other"))
            end()
            end()
            await client.close()
            await until(lambda: told == ["first", "second"])
            # A name that is gone already.
            made.on_name_vanished(name, lambda: told.append("late"))
            await until(lambda: told == ["first", "second", "late"])
            await made.call_bus("GetId", "", [], expect="s", within=DEADLINE)
            assert told == ["first", "second", "late"]
            await other.close()

    run(main)


def test_a_watch_that_ended_leaves_no_rule_on_the_bus(bus: Bus) -> None:
    async def main() -> None:
        async with connected(bus.address) as made:
            client = await Client.connect(bus.address)
            name = str(client.bus.unique_name)
            for _ in range(50):
                made.on_name_vanished(name, lambda: None)()
            rule = connections._vanish_rule(name)
            with pytest.raises(CallFailed) as raised:
                await made.call_bus("RemoveMatch", "s", [rule], expect="", within=DEADLINE)
            assert raised.value.name == "org.freedesktop.DBus.Error.MatchRuleNotFound"
            await client.close()

    run(main)


def test_only_the_bus_can_say_that_a_name_vanished(bus: Bus) -> None:
    async def main() -> None:
        told: list[str] = []
        async with connected(bus.address) as made:
            victim, forger = await Client.connect(bus.address), await Client.connect(bus.address)
            name = str(victim.bus.unique_name)
            made.on_name_vanished(name, lambda: told.append(name))
            forged = Message(
                message_type=MessageType.SIGNAL,
                destination=made.unique_name,
                path="/org/freedesktop/DBus",
                interface="org.freedesktop.DBus",
                member="NameOwnerChanged",
                signature="sss",
                body=[name, name, ""],
            )
            await forger.bus.send(forged)
            await forger.ok("GetId", to="org.freedesktop.DBus", path="/")
            await made.call_bus("GetId", "", [], expect="s", within=DEADLINE)
            assert not told
            await victim.close()
            await until(lambda: told)
            await forger.close()

    run(main)


# --- defects of the library ----------------------------------------------------------------------------------------


def test_many_answers_at_once_do_not_end_the_connection(own_bus: Bus) -> None:
    """The library takes EAGAIN for the loss of the connection: a slow bus and some hundred answers are enough."""

    async def main() -> None:
        async with connected(own_bus.address) as made:
            own_bus.process.send_signal(signal.SIGSTOP)
            for _ in range(1000):
                made.emit_signal("/x", "a.b", "C", "s", ["x" * 1000])
            await asyncio.sleep(0.05)
            own_bus.process.send_signal(signal.SIGCONT)
            await made.call_bus("GetId", "", [], expect="s", within=DEADLINE)
            assert made.connected

    run(main)


def test_a_full_socket_takes_nothing_and_does_not_raise() -> None:
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/s")
        listener.listen()
        with BusSocket() as sender:
            sender.connect(f"{directory}/s")
            data = memoryview(bytes(1 << 20))
            while sender.send(data):
                pass


def frame(**fields: object) -> bytes:
    return bytes(Message(serial=1, **fields)._marshall())


def test_messages_that_cannot_be_parsed_are_dropped_alone(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """The library gives up the connection over the first one."""
    good = frame(path="/", interface="a.b", member="M")
    unknown_type = bytearray(good)
    unknown_type[1] = 77
    bad_text = bytearray(frame(path="/", interface="a.b", member="M", signature="s", body=["xyz"]))
    bad_text[bad_text.index(b"xyz")] = 0xFF
    header = Marshaller(
        "yyyyuua(yv)", [ord("l"), 1, 0, 1, 0, 1, [[1, variant("o", "/")], [3, variant("s", "M")], [99, variant("s", "new")]]]
    )
    header.marshall()
    header.align(8)

    async def main() -> None:
        async with connected(bus.address) as made:
            seen: list[MethodCall] = []
            made.set_handler(seen.append)
            inner = made._bus
            assert inner is not None
            for bad in (unknown_type, bad_text, header.buffer):
                inner._deliver(bytes(bad))
            inner._deliver(frame(message_type=MessageType.METHOD_RETURN, reply_serial=4711))
            inner._deliver(frame(message_type=MessageType.ERROR, reply_serial=4711, error_name="a.b", signature="s", body=["x"]))
            inner._deliver(good)
            assert [call.member for call in seen] == ["M"]
            assert await made.call_bus("GetId", "", [], expect="s", within=DEADLINE)

    with caplog.at_level(logging.WARNING):
        run(main)
    assert len([record for record in caplog.records if "dropped" in record.getMessage()]) == 3


def test_the_library_does_not_remember_every_signature(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers choose signatures; the library keeps each for ever."""
    monkeypatch.setattr(transport, "MAX_SIGNATURES", 100)

    async def main() -> None:
        async with connected(bus.address) as made:
            assert made._bus is not None
            for number in range(1000):
                signature = "".join("sutib"[int(digit, 16) % 5] for digit in f"{number:09x}") + "s" * (number % 50)
                body = [{"s": "", "b": False}.get(letter, 0) for letter in signature]
                made._bus._deliver(frame(path="/", interface="a.b", member="M", signature=signature, body=body))
                assert len(SignatureTree._cache) <= 110

    run(main, debug=False)


def test_one_busy_client_does_not_stop_the_event_loop(bus: Bus) -> None:
    """The library reads as long as there is something to read. Between two turns of the loop at most 32 messages are handled."""

    async def main() -> None:
        async with world(bus.address) as made:
            handled: list[int] = [0]
            dispatch = made.service.dispatcher.handle

            def handle(call: MethodCall) -> None:
                handled[0] += 1
                dispatch(call)

            made.service.connection.set_handler(handle)
            flood = asyncio.ensure_future(command(sys.executable, FLOOD, bus.address.removeprefix("unix:path="), "10000"))
            largest = before = 0
            while handled[0] < 10_000 and not (flood.done() and flood.result()[0]):
                await asyncio.sleep(0)
                largest, before = max(largest, handled[0] - before), handled[0]
            assert largest <= transport.MESSAGES_PER_TURN
            status, _, errors = await flood
            assert status == 0, errors
            await made.alive()

    run(main, debug=False)


# --- the stream ----------------------------------------------------------------------------------------------------

_messages = st.lists(
    st.builds(
        lambda text, little: frame(path="/", interface="a.b", member="M", signature="s", body=[text]) if little else _big_endian(text),
        st.text(alphabet="abc", max_size=40),
        st.booleans(),
    ),
    max_size=5,
)


def _big_endian(text: str) -> bytes:
    fields = b"\x01\x01o\x00" + (1).to_bytes(4, "big") + b"/\x00"
    body = len(text).to_bytes(4, "big") + text.encode() + b"\0"
    head = b"B\x01\x00\x01" + len(body).to_bytes(4, "big") + (1).to_bytes(4, "big") + len(fields).to_bytes(4, "big") + fields
    return head + bytes(-len(head) % 8) + body


@given(_messages, st.lists(st.integers(1, 60), max_size=50))
def test_messages_are_cut_alike_however_they_arrive(messages: list[bytes], pieces: list[int]) -> None:
    stream, frames, found = b"".join(messages), Frames(), []
    while stream:
        size = pieces.pop() if pieces else len(stream)
        frames.feed(stream[:size])
        stream = stream[size:]
        while (message := frames.next()) is not None:
            found.append(message)
    assert found == messages


@pytest.mark.parametrize(
    "data",
    [
        b"X" + bytes(15),
        b"l\x01\x00\x02" + bytes(12),
        b"l\x01\x00\x01" + b"\xff\xff\xff\x7f" + bytes(8),
        b"l\x01\x00\x01" + bytes(8) + b"\xff\xff\xff\xff",
    ],
)
def test_a_stream_that_is_not_dbus_is_refused(data: bytes) -> None:
    frames = Frames()
    frames.feed(data)
    with pytest.raises(ValueError, match="the bus sent"):
        frames.next()
