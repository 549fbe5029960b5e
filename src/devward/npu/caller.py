"""One connection to the broker: who is at the other end, whether it is still there, and lines to and from it."""

import select
import socket
import struct
import threading
from typing import Final

from devward.npu.protocol import REQUEST_LIMIT

#: Seconds for which one that does not read its answer is waited for.
SEND_SECONDS: Final = 10.0
_CREDENTIALS: Final = struct.Struct("3i")


class Caller:
    """A connected caller."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over an accepted connection."""
        self._connection = connection
        self._lines = connection.makefile("rb", buffering=REQUEST_LIMIT)
        self._sending = threading.Lock()

    @property
    def uid(self) -> int:
        """The user who connected, as the kernel says. OSError."""
        credentials = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _pid, uid, _gid = _CREDENTIALS.unpack(credentials)
        return int(uid)

    @property
    def is_gone(self) -> bool:
        """Whether the other end was closed, or will not be written to again."""
        poll = select.poll()
        poll.register(self._connection, select.POLLRDHUP)
        return bool(poll.poll(0))

    def read_line(self) -> bytes:
        """Return the next line; one that is longer than a request can be comes without its end, and nothing at the end. OSError."""
        return self._lines.readline(REQUEST_LIMIT)

    def send(self, line: bytes) -> None:
        """Send an answer, to one that reads it. OSError: it did not."""
        with self._sending:
            self._connection.settimeout(SEND_SECONDS)
            try:
                self._connection.sendall(line)
            finally:
                self._connection.settimeout(None)

    def send_at_once(self, line: bytes) -> None:
        """Send as much of a last answer as is taken without waiting, unless another thread sends. OSError."""
        if self._sending.acquire(blocking=False):
            self._connection.send(line, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._connection.close()
