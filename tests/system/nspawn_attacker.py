"""Run in a container as an unprivileged user: what a local attacker can try on the bus, and what came of it, as JSON.

nspawn_attacker.py calls     call every method of every interface of every object, with plain and with hostile arguments, with and
                             without leave to prompt, and set every property: [[what, error name or "", text], ...]
nspawn_attacker.py listen    try to see other people's calls until standard input ends, after a line "listening"
nspawn_attacker.py own       try to get the name of the service: the answer of the bus
nspawn_attacker.py flood     send calls as fast as the bus takes them until standard input ends, after a line "flooding": how many
"""

import asyncio
import json
import os
import select
import socket
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from dbus_next import BusType, Message, MessageFlag, MessageType, Variant
from dbus_next.aio import MessageBus

NAME = "org.devward.Devward1"
ROOT = "/org/devward/Devward1"
MANAGER = f"{NAME}.Manager"
BUS = "org.freedesktop.DBus"
SOCKET = "/run/dbus/system_bus_socket"
INTERACTIVE = MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION

#: Values for an argument of each type, the plain one first.
STRINGS = ["kvm", "repair", "", "../../etc/shadow", "/etc/shadow", "x" * 20000, "a\nMESSAGE=forged", "\u202egnp", "%s%n{0}"]
VALUES: dict[str, list[object]] = {
    "s": list(STRINGS),
    "o": ["/", ROOT],
    "t": [0, 60, 1, 2, 2**64 - 1],
    "u": [0, 2**32 - 1],
    "b": [True, False],
    "as": [[], STRINGS],
    "v": [Variant("s", "debug"), Variant("s", "x" * 20000), Variant("t", 1), Variant("as", [])],
}


def bodies(types: list[str]) -> Iterator[list[object]]:
    """Yield argument lists: one of plain values, then one for each other value at each place."""
    plain = [VALUES[one][0] for one in types]
    yield plain
    for place, one in enumerate(types):
        for value in VALUES[one][1:]:
            yield [*plain[:place], value, *plain[place + 1 :]]


def paths(node: ET.Element, path: str) -> Iterator[str]:
    """Yield the children that an introspection names."""
    for child in node.findall("node"):
        yield f"{path.rstrip('/')}/{child.get('name')}"


class Attacker:
    """One connection."""

    def __init__(self, bus: MessageBus) -> None:
        self.bus = bus
        self.results: list[tuple[str, str, str]] = []

    async def call(self, path: str, interface: str, member: str, types: str, body: list[object], flags: MessageFlag) -> Message:
        """Call; the answer comes at once, since nobody can be asked for a password here."""
        message = Message(destination=NAME, path=path, interface=interface, member=member, signature=types, body=body, flags=flags)
        answer = await asyncio.wait_for(self.bus.call(message), 60)
        assert answer is not None
        return answer

    async def attack(self, path: str) -> None:
        """Try everything on an object and on those below it."""
        answer = await self.call(path, f"{BUS}.Introspectable", "Introspect", "", [], MessageFlag.NONE)
        node = ET.fromstring(answer.body[0])
        for interface in node.findall("interface"):
            await self.attack_interface(path, interface)
        for child in paths(node, path):
            await self.attack(child)

    async def attack_interface(self, path: str, interface: ET.Element) -> None:
        """Call every method, and set every property."""
        name = interface.get("name", "")
        for method in interface.findall("method"):
            types = [one.get("type", "") for one in method.findall("arg") if one.get("direction", "in") == "in"]
            for body in bodies(types):
                for flags in (MessageFlag.NONE, INTERACTIVE):
                    await self.attempt(path, name, method.get("name", ""), types, body, flags)
        for one in interface.findall("property"):
            for value in VALUES["v"]:
                await self.attempt(path, f"{BUS}.Properties", "Set", ["s", "s", "v"], [name, one.get("name", ""), value], INTERACTIVE)

    async def attempt(self, path: str, interface: str, member: str, types: list[str], body: list[object], flags: MessageFlag) -> None:
        """Call once and note what came of it."""
        answer = await self.call(path, interface, member, "".join(types), body, flags)
        error = (answer.error_name or "?") if answer.message_type is MessageType.ERROR else ""
        text = str(answer.body[0]) if error and answer.body else ""
        self.results.append((f"{path} {interface}.{member}", error, text))


async def calls() -> None:
    """Try every member."""
    attacker = Attacker(await MessageBus(bus_type=BusType.SYSTEM).connect())
    await attacker.attack("/")
    print(json.dumps(attacker.results))


async def own() -> None:
    """Ask for the name, to take it over."""
    bus = await MessageBus(bus_type=BusType.SYSTEM).connect()
    body = [NAME, 0x2 | 0x1]  # replace an existing owner, allow replacement
    answer = await bus.call(
        Message(destination=BUS, path="/org/freedesktop/DBus", interface=BUS, member="RequestName", signature="su", body=body)
    )
    assert answer is not None
    print(json.dumps([answer.error_name or "", str(answer.body[0])]))


async def listen() -> None:
    """Ask for everything that goes over the bus, in every way there is."""
    bus = await MessageBus(bus_type=BusType.SYSTEM).connect()
    seen: list[str] = []
    refused: list[str] = []
    me = bus.unique_name

    def note(message: Message) -> None:
        if message.destination != me and message.message_type is not MessageType.SIGNAL:
            seen.append(f"{message.message_type.name} {message.member} {message.body}")

    bus.add_message_handler(note)
    rules = [f"eavesdrop='true',type='{kind}'" for kind in ("method_call", "method_return", "error")]
    wishes = [(BUS, "AddMatch", "s", [rule]) for rule in rules] + [(f"{BUS}.Monitoring", "BecomeMonitor", "asu", [[], 0])]
    for interface, member, types, body in wishes:
        answer = await bus.call(
            Message(destination=BUS, path="/org/freedesktop/DBus", interface=interface, member=member, signature=types, body=body)
        )
        assert answer is not None
        if answer.error_name:
            refused.append(member)
    print("listening", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps({"seen": seen, "refused": refused}))


def flood() -> None:
    """Send whatever costs the daemon most, and never read an answer; start again when the bus has had enough of it."""

    def marshal(serial: int, flags: MessageFlag, **fields: object) -> bytes:
        return bytes(Message(serial=serial, flags=flags, **fields)._marshall())

    hello = marshal(1, MessageFlag.NONE, destination=BUS, path="/org/freedesktop/DBus", interface=BUS, member="Hello")
    many = b""
    for serial in range(2, 102):
        member, types, body = [
            ("CheckAllocation", "s", ["kvm"]),
            ("Describe", "", []),
            ("Rescan", "t", [0]),
            ("PauseCdi", "tst", [60, "x" * 200, 0]),
        ][serial % 4]
        many += marshal(serial, INTERACTIVE, destination=NAME, path=ROOT, interface=MANAGER, member=member, signature=types, body=body)
    print("flooding", flush=True)
    sent = connections = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            try:
                connection.connect(SOCKET)
                connection.sendall(b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n")
                connection.recv(200)
                connection.sendall(b"BEGIN\r\n" + hello)
                connection.recv(4096)
                connections += 1
                while not select.select([sys.stdin], [], [], 0)[0]:
                    connection.sendall(many)
                    sent += 100
            except OSError:  # full, or thrown out
                continue
    print(json.dumps({"sent": sent, "connections": connections}))


if __name__ == "__main__":
    match sys.argv[1]:
        case "flood":
            flood()
        case "calls":
            asyncio.run(calls())
        case "own":
            asyncio.run(own())
        case "listen":
            asyncio.run(listen())
