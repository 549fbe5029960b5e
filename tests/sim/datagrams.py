"""A Unix datagram socket with a reader of its own: the ground under the stand-ins for journald and the service manager.

A socket takes only net.unix.max_dgram_qlen datagrams (10, unless systemd raised it) before a sender must wait, so a thread
empties it at once; with `reading=False` nobody does, which is how a peer behaves that hangs.
"""

import array
import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Self


class DatagramSink:
    """Receives datagrams, and the descriptors that come with them, at a path."""

    def __init__(self, path: str, *, reading: bool = True) -> None:
        """Bind to `path`, an abstract address if it starts with NUL."""
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        self._socket.setblocking(False)
        self._closed = False
        self._arrived = threading.Condition(threading.RLock())
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._read_for_ever, daemon=True)
        if reading:
            self._thread.start()

    def close(self) -> None:
        """Stop reading, close the socket and remove its path, as a peer that is gone; what was received stays."""
        if self._closed:
            return
        os.write(self._wake_write, b"x")
        if self._thread.is_alive():
            self._thread.join()
        self.drain()
        self._closed = True
        self._socket.close()
        for descriptor in (self._wake_read, self._wake_write):
            os.close(descriptor)
        if not self.path.startswith("\0"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def received(self, data: bytes, descriptors: list[int]) -> None:
        """Take one datagram in; the descriptors are closed afterwards."""
        raise NotImplementedError

    def drain(self) -> None:
        """Take in everything that was sent before this call."""
        with self._arrived:
            while not self._closed:
                try:
                    size = self._socket.recv_into(bytearray(1), 1, socket.MSG_PEEK | socket.MSG_TRUNC)
                    data, ancillary, _, _ = self._socket.recvmsg(size, socket.CMSG_SPACE(16))
                except BlockingIOError:
                    break
                descriptors = array.array("i")
                for level, kind, content in ancillary:
                    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                        descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
                try:
                    self.received(data, list(descriptors))
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)
            self._arrived.notify_all()

    def wait_until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait at most `deadline` seconds for a condition on what was received; return whether it came true."""
        end = time.monotonic() + deadline
        with self._arrived:
            while not condition():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                if self._thread.is_alive():
                    self._arrived.wait(left)
                else:
                    select.select([self._socket], [], [], left)
                    self.drain()
            return True

    def _read_for_ever(self) -> None:
        while True:
            ready, _, _ = select.select([self._socket, self._wake_read], [], [])
            if self._wake_read in ready:
                return
            self.drain()
