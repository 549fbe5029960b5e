"""How long the answers to CheckAllocation of kvm take: `kvm_answers.py STOP` asks, one after the other, until the file STOP exists.

It goes on until kvm was allowed once: a busy machine may be too slow for that at most times.
Prints a JSON list of [seconds, allowed, reason].
"""

import asyncio
import json
import os
import sys
import time

from dbus_next import BusType, Message, MessageType
from dbus_next.aio import MessageBus

from devward import names

LIMIT = 200


async def ask(bus: MessageBus) -> tuple[float, bool, str]:
    """Ask once."""
    call = Message(
        destination=names.BUS_NAME, path=names.ROOT_PATH, interface=names.MANAGER_INTERFACE, member="CheckAllocation",
        signature="s", body=["kvm"],
    )  # fmt: skip
    began = time.monotonic()
    answer = await bus.call(call)
    took = time.monotonic() - began
    assert answer.message_type is MessageType.METHOD_RETURN, answer.body
    allowed, reason, *_ = answer.body
    return took, allowed, reason


def is_enough(found: list[tuple[float, bool, str]], stop: str) -> bool:
    """Tell whether to stop, after two answers at the least, and with LIMIT answers at the most if kvm is never allowed."""
    return len(found) >= 2 and os.path.exists(stop) and (len(found) >= LIMIT or any(allowed for _, allowed, _ in found))


async def main(stop: str) -> None:
    """Ask until it is enough."""
    bus = await MessageBus(bus_type=BusType.SYSTEM).connect()
    found: list[tuple[float, bool, str]] = []
    while not is_enough(found, stop):
        found.append(await ask(bus))
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
