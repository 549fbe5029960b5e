"""What others see of messages: calls and signals that arrived, how calls are answered, and why a message failed. No library, no I/O."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from devward.bus.wire import Encoded
from devward.errors import BusError
from devward.model import Caller


class CallFailed(BusError):
    """A call of ours was answered with an error, with something else than expected, or not in time (`name` is then NoReply)."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class MessageTooLong(BusError):
    """A message of ours would be longer than the bus takes."""


@dataclass(frozen=True, slots=True)
class MethodCall:
    """A method call as it arrived. The bus itself sets the sender, so no client can forge it."""

    sender: str
    path: str
    #: Empty where the caller left it out, as the specification allows.
    interface: str
    member: str
    signature: str
    body: tuple[object, ...]
    serial: int
    no_reply: bool = False
    #: The caller can wait while an administrator is asked (ALLOW_INTERACTIVE_AUTHORIZATION).
    interactive: bool = False


@dataclass(frozen=True, slots=True)
class SignalMessage:
    """A signal as it arrived. The bus itself sets the sender; anybody may send one to anybody, so it is for the receiver to judge."""

    sender: str
    path: str
    interface: str
    member: str
    signature: str
    body: tuple[object, ...]


#: The body of an answer.
Body = tuple[object, ...] | Encoded
#: The second half of a method, for a caller that is authorized; None where the method is public.
Run = Callable[[Caller | None], Awaitable[Body]]
#: The first half, which judges the arguments alone.
Prepare = Callable[[MethodCall], Run]
