"""Run in a container: calls a method of the Manager, prints the body of the answer as JSON, and lives on until its standard input ends.

    nspawn_caller.py METHOD SIGNATURE ARGUMENTS-AS-JSON

journald looks at who asked after the record arrived; who stays can be seen by it.
"""

import asyncio
import json
import sys

from dbus_next import BusType, Message
from dbus_next.aio import MessageBus

NAME = "org.devward.Devward1"


async def main(member: str, signature: str, arguments: list[object]) -> None:
    """Call and print."""
    bus = await MessageBus(bus_type=BusType.SYSTEM).connect()
    answer = await bus.call(
        Message(
            destination=NAME,
            path="/org/devward/Devward1",
            interface=f"{NAME}.Manager",
            member=member,
            signature=signature,
            body=arguments,
        )
    )
    assert answer is not None
    print(json.dumps(answer.body), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
