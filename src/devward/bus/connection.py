"""The connection to the message bus.

The rest of the daemon sees frozen calls (`MethodCall`), plain bodies and `Variant`. Facts about the wire are from the D-Bus specification.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from devward.bus.messages import CallFailed, MessageTooLong, MethodCall, SignalMessage
from devward.bus.stream import BusSocket, open_socket
from devward.bus.transport import (
    AuthError,
    Bus,
    Message,
    MessageFlag,
    MessageType,
    NameFlag,
    RequestNameReply,
    Variant,
    check_type,
    make_message,
    variant,
)
from devward.bus.watches import Watches
from devward.bus.wire import Encoded
from devward.errors import BusError

__all__ = ["BusConnection", "CallFailed", "MessageTooLong", "MethodCall", "SignalMessage", "Variant", "check_type", "variant"]

SYSTEM_BUS_ADDRESS = "unix:path=/run/dbus/system_bus_socket"
DBUS_NAME = "org.freedesktop.DBus"
DBUS_PATH = "/org/freedesktop/DBus"
#: Seconds that connecting, Hello and RequestName may take together.
SETUP_SECONDS = 5.0

Handler = Callable[[MethodCall], None]
SignalHandler = Callable[[SignalMessage], None]


class BusConnection:
    """One connection for the life of the process; there is no reconnecting, as the service manager restarts the daemon."""

    def __init__(self) -> None:
        self._bus: Bus | None = None
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
        bus: Bus | None = None
        try:
            async with self._setup_time():
                await open_socket(opened, address)
                bus = Bus(address, opened)
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
        message = make_message(signature, body, flags=flags, destination=destination, path=path, interface=interface, member=member)
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

    def _require(self) -> Bus:
        if self._bus is None or not self._bus.connected:
            raise BusError("There is no connection to the message bus.")
        return self._bus

    def _send(self, signature: str, body: Sequence[object] | Encoded, **fields: Any) -> None:
        if self._bus is not None and self._bus.connected:
            self._bus.send(make_message(signature, body, **fields))

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


def _vanish_rule(name: str) -> str:
    return f"type='signal',sender='{DBUS_NAME}',path='{DBUS_PATH}',interface='{DBUS_NAME}',member='NameOwnerChanged',arg0='{name}',arg2=''"


def _why(future: "asyncio.Future[None]") -> str:
    error = None if future.cancelled() else future.exception()
    if error is None:
        return "The connection to the message bus was closed."
    if isinstance(error, EOFError):
        return "The message bus ended the connection."
    return f"The connection to the message bus was lost: {error}"
