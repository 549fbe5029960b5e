"""The byte stream to the message bus: addresses, a socket that never blocks, and the cut into messages.

Facts are from the D-Bus specification ("Server Addresses", "Message Format") and unix(7).
"""

import asyncio
import socket
import struct
from urllib.parse import unquote

#: Bytes of one message, header and body.
MAX_MESSAGE = 128 * 1024 * 1024
_FIXED_HEADER = 16


class BusSocket(socket.socket):
    """A Unix stream socket that takes nothing, instead of raising, when its buffer is full.

    dbus-next 0.2.3 takes BlockingIOError in its writer for the loss of the connection; a few hundred replies at once are enough.
    """

    def __init__(self) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self.setblocking(False)  # noqa: FBT003  # the standard library's signature

    def send(self, data: memoryview, flags: int = 0, /) -> int:  # type: ignore[override]  # what dbus-next and asyncio hand over
        try:
            return super().send(data, flags)
        except BlockingIOError:
            return 0


class Frames:
    """Cuts the stream into messages by their fixed header, without looking inside."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add what was read."""
        self._buffer += data

    def next(self) -> bytes | None:
        """Return the next whole message, or None. ValueError where the stream has lost its rhythm, and the connection its use."""
        if len(self._buffer) < _FIXED_HEADER:
            return None
        order = {ord("l"): "<", ord("B"): ">"}.get(self._buffer[0])
        if order is None or self._buffer[3] != 1:
            raise ValueError("the bus sent something that is not D-Bus version 1")
        body, _serial, fields = struct.unpack_from(order + "III", self._buffer, 4)
        length = _FIXED_HEADER + (fields + 7) // 8 * 8 + body
        if length > MAX_MESSAGE:
            raise ValueError("the bus sent a message longer than D-Bus allows")
        if len(self._buffer) < length:
            return None
        frame = bytes(self._buffer[:length])
        del self._buffer[:length]
        return frame


def targets(address: str) -> list[str]:
    """Return the socket names of a bus address, in order; an abstract one begins with NUL. ValueError where there is none."""
    found: list[str] = []
    for entry in address.split(";"):
        transport, _, options = entry.partition(":")
        values = dict(option.split("=", 1) for option in options.split(",") if "=" in option)
        if transport == "unix" and "path" in values:
            found.append(unquote(values["path"]))
        elif transport == "unix" and "abstract" in values:
            found.append("\0" + unquote(values["abstract"]))
    if not found:
        raise ValueError("only addresses of the form unix:path= and unix:abstract= are supported")
    return found


async def open_socket(opened: BusSocket, address: str) -> None:
    """Connect the socket to the first of the address's names that works. OSError of the last one, ValueError as targets()."""
    names = targets(address)
    for number, name in enumerate(names, 1):
        try:
            await _connect(opened, name)
        except OSError:
            if number == len(names):
                raise
        else:
            return


async def _connect(opened: BusSocket, name: str) -> None:
    while True:
        try:
            opened.connect(name)
        except BlockingIOError:
            # unix(7): EAGAIN means that the bus's backlog is full, and nothing tells when it no longer is.
            await asyncio.sleep(0.05)
        else:
            return
