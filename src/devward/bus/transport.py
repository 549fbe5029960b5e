"""dbus-next as devward uses it: its connection with the defects mended, and messages of plain values. The only module that imports it.

dbus-next 0.2.3, the newest there is, has defects in its connection that an unprivileged client of the bus, or a slow bus, can reach.
`Bus` and stream.BusSocket mend them; `Bus` is the only user of its private API, and says for each use which defect it is there for.
"""

import asyncio
import contextlib
import io
import logging
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from devward.bus.messages import MessageTooLong
from devward.bus.stream import BusSocket, Frames
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

__all__ = [
    "AuthError",
    "Bus",
    "Message",
    "MessageFlag",
    "MessageType",
    "NameFlag",
    "RequestNameReply",
    "Variant",
    "check_type",
    "make_message",
    "variant",
    "wired",
]

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
    return Variant(signature, wired(value))


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


class Bus(MessageBus):
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


def make_message(signature: str, body: Sequence[object] | Encoded, **fields: Any) -> Message:
    """Return a message with a body of plain values, or of a body in the wire format. MessageTooLong."""
    if isinstance(body, Encoded):
        if len(body.data) > MAX_ENCODED:
            raise MessageTooLong(_TOO_LONG)
        return _EncodedMessage(body, signature=signature, **fields)
    values = [wired(item) for item in body]
    if _length(values) > MAX_TEXT:
        raise MessageTooLong(_TOO_LONG)
    return _Message(signature=signature, body=values, **fields)


def wired(value: object) -> object:
    """Make a value fit to travel: lists for sequences, and texts as fit_text() makes them."""
    if isinstance(value, str):
        return fit_text(value)
    if isinstance(value, Variant):
        return Variant(value.signature, wired(value.value))
    if isinstance(value, Mapping):
        return {wired(key): wired(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [wired(item) for item in value]
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


def _retrieve(future: "asyncio.Future[None]") -> None:
    if not future.cancelled():
        future.exception()
