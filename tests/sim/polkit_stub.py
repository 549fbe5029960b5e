"""A polkit authority that answers as it is told: on a private bus, for tests.

In a test's own event loop: `stub = PolkitStub(Mode.DENY); await stub.start(address); ...; await stub.stop()`.
As a program: `python3 polkit_stub.py --address ADDRESS --mode deny` serves until it is ended, and prints a line when it is ready.
"""

import argparse
import asyncio
import contextlib
from dataclasses import dataclass
from enum import StrEnum

from dbus_next import Message, MessageType
from dbus_next.aio import MessageBus
from dbus_next.constants import NameFlag, RequestNameReply

POLKIT_NAME = "org.freedesktop.PolicyKit1"
INTERFACE = "org.freedesktop.PolicyKit1.Authority"
ALLOW_USER_INTERACTION = 1


class Mode(StrEnum):
    """How CheckAuthorization is answered."""

    ALLOW = "allow"
    DENY = "deny"
    #: An administrator could authenticate; allowed where the caller lets polkit ask.
    CHALLENGE = "challenge"
    ERROR = "error"
    #: Never.
    HANG = "hang"
    #: With a body of another signature.
    ODD = "odd"


@dataclass(frozen=True)
class Check:
    """One CheckAuthorization as it arrived."""

    kind: str
    sender: str
    action: str
    details: dict[str, str]
    flags: int
    cancellation: str


class PolkitStub:
    """The authority. `checks` and `cancelled` record what was asked; `mode` may be changed at any time."""

    def __init__(self, mode: Mode = Mode.ALLOW) -> None:
        self.mode = mode
        self.allowed: set[str] | None = None  # only these actions, where it is set
        self.checks: list[Check] = []
        self.cancelled: list[str] = []
        self._waiting: list[Message] = []
        self._bus: MessageBus | None = None

    async def start(self, address: str) -> None:
        bus = await MessageBus(bus_address=address).connect()
        bus.add_message_handler(self._on_message)
        reply = await bus.request_name(POLKIT_NAME, NameFlag.DO_NOT_QUEUE)
        assert reply is RequestNameReply.PRIMARY_OWNER, reply
        self._bus = bus

    async def stop(self) -> None:
        if self._bus is not None:
            self._bus.disconnect()
            with contextlib.suppress(Exception):
                await self._bus.wait_for_disconnect()
            self._bus._stream.close()
            self._bus._sock.close()
            self._bus = None

    def release(self, mode: Mode) -> None:
        """Answer the checks that hang, and the coming ones, in this mode."""
        self.mode = mode
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            reply = self._answer(message, interactive=True)
            if reply is not None and self._bus is not None:
                self._bus.send(reply)

    def _on_message(self, message: Message) -> Message | bool:
        if message.message_type is not MessageType.METHOD_CALL or message.interface != INTERFACE:
            return False
        if message.member == "CancelCheckAuthorization":
            self.cancelled.append(message.body[0])
            return True
        (kind, subject), action, details, flags, cancellation = message.body
        self.checks.append(Check(kind, subject["name"].value, action, dict(details), flags, cancellation))
        return self._answer(message, interactive=bool(flags & ALLOW_USER_INTERACTION)) or True

    def _answer(self, message: Message, *, interactive: bool) -> Message | None:
        allowed = self.allowed is None or message.body[1] in self.allowed
        match self.mode:
            case Mode.ALLOW:
                return Message.new_method_return(message, "(bba{ss})", [[allowed, False, {}]])
            case Mode.DENY:
                return Message.new_method_return(message, "(bba{ss})", [[False, False, {}]])
            case Mode.CHALLENGE:
                return Message.new_method_return(message, "(bba{ss})", [[interactive, not interactive, {}]])
            case Mode.ERROR:
                return Message.new_error(message, "org.freedesktop.PolicyKit1.Error.Failed", "made to fail")
            case Mode.ODD:
                return Message.new_method_return(message, "b", [True])
            case Mode.HANG:
                self._waiting.append(message)
                return None


async def _serve(address: str, mode: Mode) -> None:
    stub = PolkitStub(mode)
    await stub.start(address)
    print("ready", flush=True)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A polkit authority that answers as it is told.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--mode", type=Mode, choices=list(Mode), default=Mode.ALLOW)
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(given.address, given.mode))
