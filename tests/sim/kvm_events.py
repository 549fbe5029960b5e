"""Events of this machine's kvm, which every devwardd on it gets: those of other tests, too."""

import functools
import os
import socket
import time
from collections.abc import Callable

import pyudev

#: asm-generic/socket.h.
SO_RCVBUFFORCE = 33
#: Seconds after which others never leave kvm alone.
DEADLINE = 120.0


def undisturbed(attempt: Callable[[], int]) -> int:
    """Return what an attempt does during which kvm had no events but those of virtual machines; made again as often as that takes."""
    end = time.monotonic() + DEADLINE
    while True:
        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        monitor.filter_by("misc")
        monitor.start()
        with socket.socket(fileno=os.dup(monitor.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
        result = attempt()
        events = iter(functools.partial(monitor.poll, 0), None)
        if not [event for event in events if event.sys_name == "kvm" and "EVENT" not in event.properties]:
            return result
        assert time.monotonic() < end, "kvm is never left alone"
