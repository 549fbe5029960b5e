"""Clients of the private bus: one that calls, and one that takes the time of each signal."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import devward.bus.connection  # noqa: F401  # first: it keeps dbus-next from importing PyGObject

# isort: split
from dbus_next.aio.message_bus import MessageBus
from dbus_next.constants import MessageType
from dbus_next.message import Message

from bench.setting import Broken
from sim.daemon_process import BUS_NAME, MANAGER, ROOT_PATH

__all__ = ["DEADLINE", "Changes", "MessageBus", "check_allocation", "connect", "disconnect"]

DEADLINE = 30.0


async def connect(address: str) -> MessageBus:
    """Return a connection of its own."""
    return await MessageBus(bus_address=address).connect()


def disconnect(*buses: MessageBus) -> None:
    """End connections."""
    for bus in buses:
        bus.disconnect()  # type: ignore[no-untyped-call] # dbus-next has no types there


async def call(bus: MessageBus, message: Message) -> Message:
    """Call a method. Raises Broken when an error comes back."""
    answer = await asyncio.wait_for(bus.call(message), DEADLINE)
    if answer is None or answer.message_type is MessageType.ERROR:
        raise Broken(f"{message.member}: {answer.error_name if answer else 'no answer'}: {answer.body if answer else ''}")
    return answer


async def check_allocation(bus: MessageBus) -> tuple[float, tuple[bool, str]]:
    """Call CheckAllocation; return the seconds until the answer, and whether the device was allowed, with the reason."""
    message = Message(destination=BUS_NAME, path=ROOT_PATH, interface=MANAGER, member="CheckAllocation", signature="s", body=["kvm"])
    begin = time.monotonic()
    answer = await call(bus, message)
    return time.monotonic() - begin, (answer.body[0], answer.body[1])


class Changes:
    """Listens for PropertiesChanged of one object."""

    def __init__(self, bus: MessageBus, path: str) -> None:
        self._path = ROOT_PATH + path
        self._bus = bus
        self._waiting: tuple[Callable[[Mapping[str, Any]], bool], asyncio.Future[int]] | None = None
        bus.add_message_handler(self._message)

    async def start(self) -> None:
        """Subscribe."""
        rule = f"type='signal',interface='org.freedesktop.DBus.Properties',path='{self._path}'"
        bus = "org.freedesktop.DBus"
        await call(
            self._bus, Message(destination=bus, path="/org/freedesktop/DBus", interface=bus, member="AddMatch", signature="s", body=[rule])
        )

    def expect(self, condition: Callable[[Mapping[str, Any]], bool]) -> "asyncio.Future[int]":
        """Return a future of the monotonic nanosecond when a signal came whose changed properties the condition accepts."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting = (condition, future)
        return future

    def _message(self, message: Message) -> None:
        now = time.monotonic_ns()
        if message.message_type is not MessageType.SIGNAL or message.path != self._path or self._waiting is None:
            return
        condition, future = self._waiting
        if not future.done() and condition({name: variant.value for name, variant in message.body[1].items()}):
            future.set_result(now)
