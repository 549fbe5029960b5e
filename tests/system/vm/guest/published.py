"""How long it takes until the loss and the return of /dev/kvm are published: `published.py ROUNDS` prints a JSON list of seconds.

Each round takes the driver away and loads it again. The time runs from the start of rmmod or modprobe, and from when the node went or came
(inotify), to the PropertiesChanged signal as another process on the bus receives it.
"""

import asyncio
import ctypes
import json
import os
import struct
import sys
import time

from dbus_next import BusType, Message, MessageType
from dbus_next.aio import MessageBus

DEVICE = "/org/devward/Devward1/device/kvm"
LIMIT = 300.0
# sys/inotify.h
IN_CREATE, IN_DELETE, IN_CLOEXEC, IN_NONBLOCK = 0x100, 0x200, 0o2000000, 0o4000
EVENT = struct.Struct("iIII")


class Observer:
    """Notes when things happened last, in monotonic seconds."""

    def __init__(self) -> None:
        """Nothing has happened yet."""
        self.health: dict[str, float] = {}
        self.node: dict[int, float] = {}
        self._something = asyncio.Event()
        libc = ctypes.CDLL(None)
        self._inotify = libc.inotify_init1(IN_CLOEXEC | IN_NONBLOCK)
        assert libc.inotify_add_watch(self._inotify, b"/dev", IN_CREATE | IN_DELETE) >= 0
        asyncio.get_running_loop().add_reader(self._inotify, self._file_event)

    def message(self, message: Message) -> None:
        """Take in a signal."""
        if message.message_type is MessageType.SIGNAL and message.path == DEVICE and message.member == "PropertiesChanged":
            changed = message.body[1]
            if "Health" in changed:
                self.health[changed["Health"].value] = time.monotonic()
                self._something.set()

    def _file_event(self) -> None:
        now = time.monotonic()
        data = os.read(self._inotify, 65536)
        while data:
            _, mask, _, length = EVENT.unpack_from(data)
            if data[EVENT.size : EVENT.size + length].rstrip(b"\0") == b"kvm":
                self.node[mask] = now
            data = data[EVENT.size + length :]

    async def published(self, health: str) -> float:
        """Wait until this health was published; return when."""

        async def wait() -> float:
            while health not in self.health:
                self._something.clear()
                await self._something.wait()
            return self.health[health]

        return await asyncio.wait_for(wait(), LIMIT)


async def run(*command: str) -> float:
    """Run a command until it succeeds, as rmmod does once no check holds the driver; return when it began for the last time."""
    while True:
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(*command)
        if await process.wait() == 0:
            return began


async def main(rounds: int) -> None:
    """Measure."""
    observer = Observer()
    bus = await MessageBus(bus_type=BusType.SYSTEM).connect()
    bus.add_message_handler(observer.message)
    rule = f"type='signal',interface='org.freedesktop.DBus.Properties',path='{DEVICE}'"
    match = Message(
        destination="org.freedesktop.DBus", path="/org/freedesktop/DBus", interface="org.freedesktop.DBus", member="AddMatch",
        signature="s", body=[rule],
    )  # fmt: skip
    await bus.call(match)
    measured = []
    for _ in range(rounds):
        observer.health.clear()
        observer.node.clear()
        began = await run("rmmod", "kvm_amd")
        missing = await observer.published("missing")
        of_removal = {"rmmod to missing published": missing - began, "node gone to missing published": missing - observer.node[IN_DELETE]}
        observer.health.clear()
        began = await run("modprobe", "kvm_amd")
        healthy = await observer.published("healthy")
        valid = observer.health["unknown"]
        of_return = {
            "modprobe to valid published": valid - began,
            "node back to valid published": valid - observer.node[IN_CREATE],
            "modprobe to usable published": healthy - began,
            "node back to usable published": healthy - observer.node[IN_CREATE],
        }
        measured.append(of_removal | of_return)
    print(json.dumps(measured))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
