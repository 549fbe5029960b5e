"""Kernel device events through udev, on the event loop. The only importer of pyudev.

Listens before it enumerates, so that nothing is lost in between. With udevd present its own events are taken, which come after its rules
have run; without it (`/run/udev/control` absent) the kernel's. An overflow of the socket is cleared and reported, and the listener has
to look at everything again: pyudev itself would raise on every later read (its issue 194).
"""

import asyncio
import ctypes
import errno
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

import pyudev

from devward import names

_log = logging.getLogger(__name__)

#: Bytes; large enough for the uevents of a driver's reload with thousands of devices. Needs CAP_NET_ADMIN above the kernel's limit.
RECEIVE_BUFFER_SIZE = 16 << 20
#: Events handled in one turn of the loop, so that a storm does not starve the rest.
EVENTS_PER_TURN = 256
#: As many turns as draining takes at the most.
DRAIN_TURNS = 64


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """What devward uses of one uevent: plain text, copied while the device still exists."""

    action: str
    subsystem: str
    #: The name in sysfs, such as `kvm`.
    name: str
    #: KVM's own `EVENT` property: `create` or `destroy` when a virtual machine starts or stops, else empty.
    kvm_event: str


class UdevMonitor:
    """Delivers the events of some subsystems to a callback."""

    def __init__(
        self,
        subsystems: tuple[str, ...],
        *,
        on_event: Callable[[DeviceEvent], None],
        on_overflow: Callable[[], None],
        control_socket: str = names.UDEV_CONTROL_SOCKET,
        receive_buffer_size: int = RECEIVE_BUFFER_SIZE,
    ) -> None:
        """Remember what to do; `start` opens the socket."""
        self._subsystems = subsystems
        self._on_event = on_event
        self._on_overflow = on_overflow
        self._control_socket = control_socket
        self._receive_buffer_size = receive_buffer_size
        self._context = pyudev.Context()
        self._monitor: pyudev.Monitor | None = None
        self._error_socket: socket.socket | None = None
        self.source = ""

    @property
    def running(self) -> bool:
        """Whether events are being listened to."""
        return self._monitor is not None

    def source_changed(self) -> bool:
        """Tell whether udevd came or went since the start, or nothing is listened to: the monitor then has to be started again."""
        return self.source != self._wanted_source()

    def start(self) -> None:
        """Listen, on the running loop. Raises OSError when the socket cannot be opened."""
        self.stop()
        source = self._wanted_source()
        monitor = pyudev.Monitor.from_netlink(self._context, source=source)
        for subsystem in self._subsystems:
            monitor.filter_by(subsystem)
        try:
            # pyudev takes any result but 0 for an error if errno is set, and libudev's is 1 where it enlarged the buffer: an errno that
            # an earlier call through ctypes left behind would make a failure of it.
            ctypes.set_errno(0)
            monitor.set_receive_buffer_size(self._receive_buffer_size)
        except OSError as error:
            _log.warning("the udev receive buffer stays at its default size: %s", os.strerror(error.errno or 0))
        ctypes.set_errno(0)
        monitor.start()
        self._error_socket = socket.socket(fileno=os.dup(monitor.fileno()))
        self._monitor = monitor
        self.source = source
        asyncio.get_running_loop().add_reader(monitor.fileno(), self._readable)

    def stop(self) -> None:
        """Stop listening."""
        self.source = ""
        if self._monitor is not None:
            asyncio.get_running_loop().remove_reader(self._monitor.fileno())
            self._monitor = None
        if self._error_socket is not None:
            self._error_socket.close()
            self._error_socket = None

    def _wanted_source(self) -> str:
        return "udev" if os.path.exists(self._control_socket) else "kernel"

    def drain(self) -> bool:
        """Deliver every event that is waiting; False: nothing is listened to, or so many came that there may be more."""
        return self.running and any(self._read() for _ in range(DRAIN_TURNS)) and self.running

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        """Deliver some events; True: there are no more for now."""
        for _ in range(EVENTS_PER_TURN):
            if self._monitor is None:
                return True
            try:
                device = self._monitor.poll(timeout=0)
            except (OSError, ValueError) as error:  # pyudev makes a ValueError of EINVAL
                self._recover(error)
                return True
            if device is None:
                return True
            properties = device.properties
            self._on_event(
                DeviceEvent(
                    action=device.action or "",
                    subsystem=device.subsystem or "",
                    name=device.sys_name,
                    kvm_event=properties.get("EVENT", ""),
                )
            )
        return False

    def _recover(self, error: Exception) -> None:
        """Clear the socket's pending error on a duplicate of its descriptor, then have everything looked at again."""
        pending = 0
        if self._error_socket is not None:
            pending = self._error_socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        # Receiving may have taken the error already, and then none is pending.
        received = pending == 0 and isinstance(error, OSError) and error.errno == errno.ENOBUFS
        if pending != errno.ENOBUFS and not received:
            _log.warning("the udev socket is given up: %s", os.strerror(pending) if pending else error)
            self.stop()  # an error that is not cleared would be reported for ever
        self._on_overflow()
