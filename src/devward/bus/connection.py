"""The connection to the message bus: the only module that imports dbus-next.

The rest of the daemon sees frozen calls (`MethodCall`), plain bodies and `Variant`. Facts about the wire are from the D-Bus specification.

dbus-next 0.2.3, the newest there is, has defects in its connection that an unprivileged client of the bus, or a slow bus, can reach.
`_Bus` and stream.BusSocket mend them; `_Bus` is the only user of its private API, and says for each use which defect it is there for.
"""

import asyncio
import contextlib
import io
import logging
import os
import struct
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from devward.bus.messages import CallFailed, MessageTooLong, MethodCall, SignalMessage
from devward.bus.stream import BusSocket, Frames, open_socket
from devward.bus.watches import Watches
from devward.bus.wire import Encoded, fit_text
from devward.errors import BusError


@contextlib.contextmanager
def _without_pygobject() -> Iterator[None]:
    """Hide PyGObject: where it is installed dbus-next imports it, 4 MB for a part of it that is not used here."""
    if "gi" in sys.modules:
        yield
        return
    modules: dict[str, Any] = sys.modules
    modules["gi"] = None
    try:
        yield
    finally:
        del modules["gi"]


with _without_pygobject():
    from dbus_next._private.unmarshaller import Unmarshaller
    from dbus_next.aio.message_bus import MessageBus
    from dbus_next.constants import MessageFlag, MessageType, NameFlag, RequestNameReply
    from dbus_next.errors import AuthError
    from dbus_next.message import Message
    from dbus_next.signature import SignatureTree, Variant

__all__ = ["BusConnection", "CallFailed", "MessageTooLong", "MethodCall", "SignalMessage", "Variant", "check_type", "variant"]

SYSTEM_BUS_ADDRESS = "unix:path=/run/dbus/system_bus_socket"
DBUS_NAME = "org.freedesktop.DBus"
DBUS_PATH = "/org/freedesktop/DBus"
#: Seconds that connecting, Hello and RequestName may take together.
SETUP_SECONDS = 5.0
#: Characters of text, of up to four bytes, in one message of ours; the system bus disconnects whoever sends more than 32 MiB.
MAX_TEXT = 4 * 1024 * 1024
#: Bytes of a body that is in the wire format already.
MAX_ENCODED = 4 * MAX_TEXT
_TOO_LONG = "The answer would be longer than the message bus takes."
#: Messages handled before the event loop may do something else.
MESSAGES_PER_TURN = 32
#: Signatures that dbus-next may remember.
MAX_SIGNATURES = 1024
#: Bytes that may wait for the bus before calls have to wait, too: a client may ask for everything a thousand times at once.
MAX_UNSENT_BYTES = 8 * 1024 * 1024
#: The integers of each signature.
_RANGES = {"i": range(-(2**31), 2**31), "u": range(2**32), "t": range(2**64)}
#: Messages that may wait for a bus that does not read before the connection counts as lost.
MAX_UNSENT = 8192

_log = logging.getLogger(__name__)


Handler = Callable[[MethodCall], None]
SignalHandler = Callable[[SignalMessage], None]


def check_type(signature: str, value: object) -> None:
    """Raise TypeError or ValueError unless the value can travel with this signature (one complete type)."""
    if isinstance(value, bool) and signature != "b":
        raise TypeError(f"a boolean is not of D-Bus type {signature!r}")
    # The library takes its time, and most values are plain.
    if signature == "s" and isinstance(value, str):
        return
    if signature in _RANGES and isinstance(value, int) and value in _RANGES[signature]:
        return
    variant(signature, value)


def variant(signature: str, value: object) -> Variant:
    """Return the value as a D-Bus variant of this signature (one complete type). TypeError or ValueError where it does not fit."""
    return Variant(signature, _wire(value))


class _Message(Message):
    """A message that knows its size once it is marshalled."""

    size = 0

    def _marshall(self, negotiate_unix_fd: bool = False) -> bytearray:  # noqa: FBT001, FBT002  # the library's signature
        frame: bytearray = super()._marshall(negotiate_unix_fd)  # type: ignore[no-untyped-call]  # the library's
        self.size = len(frame)
        return frame


class _EncodedMessage(_Message):
    """A message whose body is in the wire format already."""

    def __init__(self, body: Encoded, **fields: Any) -> None:
        # Some body lets the library write the header.
        super().__init__(body=list(body.like), **fields)
        self._encoded = body.data

    def _marshall(self, negotiate_unix_fd: bool = False) -> bytearray:  # noqa: FBT001, FBT002  # the library's signature
        frame = super()._marshall(negotiate_unix_fd)
        del frame[-struct.unpack_from("<I", frame, 4)[0] :]
        struct.pack_into("<I", frame, 4, len(self._encoded))
        frame += self._encoded
        self.size = len(frame)
        return frame


class _Bus(MessageBus):
    """dbus-next's connection with its defects mended."""

    def __init__(self, address: str, connected: BusSocket) -> None:
        self._ready_socket = connected
        self._frames = Frames()
        self._unsent = 0
        self._unsent_bytes = 0
        self._paused = False
        self._held = False
        super().__init__(bus_address=address)
        self._disconnect_future.add_done_callback(_retrieve)

    def _setup_socket(self) -> None:
        # The library's own connects blocking, for as long as a bus that accepts nobody likes, and never closes the socket.
        self._sock = self._ready_socket
        self._stream = self._sock.makefile("rwb")
        self._fd = self._sock.fileno()

    async def _auth_readline(self) -> str:
        # The library's own spins without ever yielding once the bus has closed the socket.
        line = b""
        while not line.endswith(b"\r\n"):
            data = await self._loop.sock_recv(self._sock, 1)
            if not data or len(line) > 1024:
                raise EOFError
            line += data
        return line[:-2].decode("ascii", "replace")

    def _message_reader(self) -> None:
        # The library's own reads until nothing is left, so that one busy client stops the event loop; and it gives the connection up
        # over the first message that it cannot parse, of which some pass the bus (an unknown message type).
        if self._disconnected:
            return
        try:
            data = self._sock.recv(65536)
            if not data:
                raise EOFError
            self._frames.feed(data)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, EOFError) as error:
            self._end(error)
            return
        self._drain()

    def _drain(self) -> None:
        try:
            for _ in range(MESSAGES_PER_TURN):
                if self._disconnected:
                    return
                if self._unsent_bytes > MAX_UNSENT_BYTES:
                    self._held = True
                    break
                frame = self._frames.next()
                if frame is None:
                    if self._paused:
                        self._paused = False
                        self._loop.add_reader(self._fd, self._message_reader)
                    return
                self._deliver(frame)
        except ValueError as error:
            self._end(error)
            return
        # The rest after a turn of the loop; until then nothing more is read, and the bus holds the flood back.
        if not self._paused:
            self._paused = True
            self._loop.remove_reader(self._fd)
        # Where too much waits to be sent, after that.
        if not self._held:
            self._loop.call_soon(self._drain)

    def _deliver(self, frame: bytes) -> None:
        try:
            message = Unmarshaller(io.BytesIO(frame)).unmarshall()  # type: ignore[no-untyped-call]  # the library's
        except Exception as error:  # noqa: BLE001  # one message is dropped and named, whatever the parser made of it
            _log.warning("A message that cannot be parsed was dropped: %s", type(error).__name__)
            return
        if message is not None:
            self._on_message(message)  # type: ignore[no-untyped-call]  # the library's
        # Signatures come from clients and the library keeps a parsed copy of each for ever.
        if len(SignatureTree._cache) > MAX_SIGNATURES:
            SignatureTree._cache.clear()

    def send(self, msg: Message) -> "asyncio.Future[None]":  # type: ignore[override]  # as the library's own asyncio class does
        """Queue a message; nothing waits for the future, so its exception is retrieved here."""
        future: asyncio.Future[None] = super().send(msg)
        size = msg.size if isinstance(msg, _Message) else 0
        self._unsent += 1
        self._unsent_bytes += size
        future.add_done_callback(lambda done: self._sent(done, size))
        if self._unsent > MAX_UNSENT:
            self._end(BusError(f"The bus left {MAX_UNSENT} messages unread."))
        return future

    def _sent(self, future: "asyncio.Future[None]", size: int) -> None:
        self._unsent -= 1
        self._unsent_bytes -= size
        if self._held and self._unsent_bytes <= MAX_UNSENT_BYTES:
            self._held = False
            self._loop.call_soon(self._drain)
        _retrieve(future)

    def forget(self, serial: int) -> None:
        """Drop the handler of a reply that nobody waits for any more; the library keeps it for ever."""
        self._method_return_handlers.pop(serial, None)

    def _end(self, error: Exception | None) -> None:
        self._finalize(error)  # type: ignore[no-untyped-call]  # the library's

    def shut(self) -> None:
        """End the connection at once, and close the socket."""
        self._user_disconnect = True
        self._end(None)
        with contextlib.suppress(OSError, ValueError):
            self._stream.close()
        self._sock.close()


class BusConnection:
    """One connection for the life of the process; there is no reconnecting, as the service manager restarts the daemon."""

    def __init__(self) -> None:
        self._bus: _Bus | None = None
        self._handler: Handler | None = None
        self._signal_handler: SignalHandler | None = None
        self._lost: asyncio.Future[str] | None = None
        self._watches = Watches(self._begin_watch, self._end_watch)
        self._tasks: set[asyncio.Task[None]] = set()
        self._setup_left = SETUP_SECONDS

    @property
    def connected(self) -> bool:
        """Whether messages can be sent."""
        return self._bus is not None and bool(self._bus.connected)

    @property
    def unique_name(self) -> str:
        """The name that the bus gave this connection, such as `:1.42`; empty before connect()."""
        return str(self._bus.unique_name) if self._bus is not None else ""

    def set_handler(self, handler: Handler) -> None:
        """Set what is called with every method call that arrives. It must not raise, and answers with reply() or reply_error()."""
        self._handler = handler

    def set_signal_handler(self, handler: SignalHandler) -> None:
        """Set what is called with every signal that arrives, also one that no match rule asked for. It must not raise."""
        self._signal_handler = handler

    async def connect(self, address: str | None = None) -> None:
        """Connect and say Hello. BusError, with a sentence, where the bus cannot be reached or does not answer in time.

        The address is DBUS_SYSTEM_BUS_ADDRESS or the system bus's where none is given.
        """
        address = address or os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") or SYSTEM_BUS_ADDRESS
        opened = BusSocket()
        bus: _Bus | None = None
        try:
            async with self._setup_time():
                await open_socket(opened, address)
                bus = _Bus(address, opened)
                await bus.connect()
                if not str(bus.unique_name).startswith(":"):  # the library takes the text of an error reply for the name
                    raise BusError(f"The message bus refused this connection: {bus.unique_name}")
        except BaseException as error:
            bus.shut() if bus is not None else opened.close()
            if isinstance(error, TimeoutError):
                raise BusError(f"The message bus at {address} does not answer.") from error
            if isinstance(error, EOFError):
                raise BusError(f"The message bus at {address} closed the connection.") from error
            if isinstance(error, OSError | ValueError | AuthError):
                raise BusError(f"The message bus at {address} cannot be used: {error}") from error
            raise
        self._bus = bus
        self._lost = lost = asyncio.get_running_loop().create_future()
        bus._disconnect_future.add_done_callback(lambda future: lost.set_result(_why(future)))
        bus.add_message_handler(self._on_message)

    async def request_name(self, name: str) -> None:
        """Take the name. BusError where it is held by another, and by whom if that can be told, or where policy forbids it."""
        try:
            async with self._setup_time():
                (reply,) = await self.call_bus("RequestName", "su", [name, NameFlag.DO_NOT_QUEUE.value], expect="u", within=SETUP_SECONDS)
                if reply == RequestNameReply.PRIMARY_OWNER.value:
                    return
                holder = await self._holder(name)
        except TimeoutError as error:
            raise BusError(f"The message bus did not answer the request for the name {name}.") from error
        except BusError as error:
            raise BusError(f"The message bus did not give the name {name}: {error}") from error
        raise BusError(f"The name {name} is already held by {holder}.")

    async def _holder(self, name: str) -> str:
        try:
            (owner,) = await self.call_bus("GetNameOwner", "s", [name], expect="s", within=1.0)
            (credentials,) = await self.call_bus("GetConnectionCredentials", "s", [owner], expect="a{sv}", within=1.0)
        except BusError:
            return "another process"
        pid = credentials.get("ProcessID") if isinstance(credentials, dict) else None
        return f"process {pid.value}" if pid is not None else f"connection {owner}"

    @contextlib.asynccontextmanager
    async def _setup_time(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._setup_left):
                yield
        finally:
            self._setup_left = max(0.0, self._setup_left - (loop.time() - began))

    async def call(
        self,
        destination: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        body: Sequence[object] = (),
        *,
        expect: str,
        within: float,
        interactive: bool = False,
    ) -> Sequence[object]:
        """Call a method and return the reply's body, whose signature must be `expect`, within so many seconds.

        `interactive`: the callee may ask an administrator to authenticate first (ALLOW_INTERACTIVE_AUTHORIZATION).
        CallFailed where the answer is an error, another signature or late; BusError where there is no connection, or it is lost.
        """
        bus = self._require()
        flags = MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION if interactive else MessageFlag.NONE
        message = _message(signature, body, flags=flags, destination=destination, path=path, interface=interface, member=member)
        message.serial = bus.next_serial()
        try:
            async with asyncio.timeout(within):
                reply = await bus.call(message)
        except TimeoutError as error:
            raise CallFailed("org.freedesktop.DBus.Error.NoReply", f"{member} was not answered within {within:g} s.") from error
        except (EOFError, OSError) as error:
            raise BusError(f"The connection was lost during {member}.") from error
        finally:
            bus.forget(message.serial)
        if reply is None:
            raise BusError(f"The connection was closed during {member}.")
        if reply.message_type is MessageType.ERROR:
            text = reply.body[0] if reply.body and isinstance(reply.body[0], str) else "no text"
            raise CallFailed(str(reply.error_name), text)
        if reply.signature != expect:
            raise CallFailed("org.freedesktop.DBus.Error.InvalidSignature", f"{member} was answered with {reply.signature!r}.")
        return tuple(reply.body)

    async def call_bus(self, member: str, signature: str, body: Sequence[object], *, expect: str, within: float) -> Sequence[object]:
        """Call a method of the bus itself; as call()."""
        return await self.call(DBUS_NAME, DBUS_PATH, DBUS_NAME, member, signature, body, expect=expect, within=within)

    def notify(self, destination: str, path: str, interface: str, member: str, signature: str, body: Sequence[object]) -> None:
        """Call a method and want no answer. Does nothing without a connection."""
        flags = MessageFlag.NO_REPLY_EXPECTED | MessageFlag.NO_AUTOSTART
        self._send(signature, body, flags=flags, destination=destination, path=path, interface=interface, member=member)

    def emit_signal(self, path: str, interface: str, member: str, signature: str, body: Sequence[object] | Encoded) -> None:
        """Send a signal to everybody. Does nothing without a connection: there is nobody to hear it."""
        self._send(signature, body, message_type=MessageType.SIGNAL, path=path, interface=interface, member=member)

    def reply(self, call: MethodCall, signature: str, body: Sequence[object] | Encoded) -> None:
        """Answer a call, unless its caller wants no answer or cannot be named.

        TypeError or ValueError where the body does not fit the signature, MessageTooLong where it is too long: nothing was sent then.
        """
        if call.sender and not call.no_reply:
            self._send(signature, body, message_type=MessageType.METHOD_RETURN, reply_serial=call.serial, destination=call.sender)

    def reply_error(self, call: MethodCall, name: str, text: str) -> None:
        """Answer a call with an error, unless its caller wants no answer or cannot be named."""
        if call.sender and not call.no_reply:
            kind = MessageType.ERROR
            self._send("s", [text], message_type=kind, error_name=name, reply_serial=call.serial, destination=call.sender)

    def on_name_vanished(self, name: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once when a unique name leaves the bus, or has left already. Returns what ends the watch."""
        return self._watches.add(name, callback)

    def _begin_watch(self, name: str) -> None:
        self.notify(DBUS_NAME, DBUS_PATH, DBUS_NAME, "AddMatch", "s", [_vanish_rule(name)])
        self._spawn(self._check_owner(name))

    def _end_watch(self, name: str) -> None:
        self.notify(DBUS_NAME, DBUS_PATH, DBUS_NAME, "RemoveMatch", "s", [_vanish_rule(name)])

    async def _check_owner(self, name: str) -> None:
        # The bus handles messages of one connection in order: it has the match when it answers this.
        try:
            (present,) = await self.call_bus("NameHasOwner", "s", [name], expect="b", within=5.0)
        except BusError:
            present = False
        if not present:
            self._watches.vanished(name)

    async def wait_lost(self) -> str:
        """Wait until the connection is gone and return a sentence that says why; BusError if there never was one."""
        if self._lost is None:
            raise BusError("There is no connection to the message bus.")
        return await asyncio.shield(self._lost)

    async def close(self) -> None:
        """Send what is queued, then end the connection. May be called at any time, and again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._bus is None:
            return
        if self.connected:
            # The answer comes after everything before it was taken by the bus.
            with contextlib.suppress(BusError):
                await self.call_bus("GetId", "", [], expect="s", within=1.0)
        self._bus.shut()

    def _require(self) -> _Bus:
        if self._bus is None or not self._bus.connected:
            raise BusError("There is no connection to the message bus.")
        return self._bus

    def _send(self, signature: str, body: Sequence[object] | Encoded, **fields: Any) -> None:
        if self._bus is not None and self._bus.connected:
            self._bus.send(_message(signature, body, **fields))

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_message(self, message: Message) -> bool:
        if message.message_type is MessageType.METHOD_CALL:
            call = MethodCall(
                sender=message.sender or "",
                path=message.path,
                interface=message.interface or "",
                member=message.member,
                signature=message.signature,
                body=tuple(message.body),
                serial=message.serial,
                no_reply=bool(message.flags & MessageFlag.NO_REPLY_EXPECTED),
                interactive=bool(message.flags & MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION),
            )
            if self._handler is not None:
                self._handler(call)
            else:
                self.reply_error(call, "org.freedesktop.DBus.Error.UnknownObject", "Nothing is served yet.")
            return True
        if message.message_type is MessageType.SIGNAL and (message.sender, message.member) == (DBUS_NAME, "NameOwnerChanged"):
            # The rules of _begin_watch let only those through in which the name has no new owner.
            self._watches.vanished(message.body[0])
        if message.message_type is MessageType.SIGNAL and self._signal_handler is not None:
            self._signal_handler(
                SignalMessage(
                    sender=message.sender or "",
                    path=message.path,
                    interface=message.interface,
                    member=message.member,
                    signature=message.signature,
                    body=tuple(message.body),
                )
            )
        return False


def _message(signature: str, body: Sequence[object] | Encoded, **fields: Any) -> Message:
    if isinstance(body, Encoded):
        if len(body.data) > MAX_ENCODED:
            raise MessageTooLong(_TOO_LONG)
        return _EncodedMessage(body, signature=signature, **fields)
    wired = [_wire(item) for item in body]
    if _length(wired) > MAX_TEXT:
        raise MessageTooLong(_TOO_LONG)
    return _Message(signature=signature, body=wired, **fields)


def _wire(value: object) -> object:
    """Make a value fit to travel: lists for sequences, and texts as fit_text() makes them."""
    if isinstance(value, str):
        return fit_text(value)
    if isinstance(value, Variant):
        return Variant(value.signature, _wire(value.value))
    if isinstance(value, Mapping):
        return {_wire(key): _wire(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_wire(item) for item in value]
    return value


def _length(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Variant):
        return _length(value.value)
    if isinstance(value, dict):
        return sum(_length(key) + _length(item) for key, item in value.items())
    if isinstance(value, list):
        return sum(_length(item) for item in value)
    return 8


def _vanish_rule(name: str) -> str:
    return f"type='signal',sender='{DBUS_NAME}',path='{DBUS_PATH}',interface='{DBUS_NAME}',member='NameOwnerChanged',arg0='{name}',arg2=''"


def _retrieve(future: "asyncio.Future[None]") -> None:
    if not future.cancelled():
        future.exception()


def _why(future: "asyncio.Future[None]") -> str:
    error = None if future.cancelled() else future.exception()
    if error is None:
        return "The connection to the message bus was closed."
    if isinstance(error, EOFError):
        return "The message bus ended the connection."
    return f"The connection to the message bus was lost: {error}"
