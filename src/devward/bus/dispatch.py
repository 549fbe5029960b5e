"""One handler for every call that arrives. It never raises, and no caller ever sees a traceback.

Calls are resolved against the contract: object, interface, member, signature, each with its own standard error. What is answered from
memory is answered at once; the rest runs as tasks: so many for one caller, for one user and for all, and as many for root alone.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol, cast

from devward import names
from devward.bus.auth import RULES, CallerGone, Gate, Open, Rule
from devward.bus.connection import MessageTooLong, MethodCall, Variant
from devward.bus.contract import Contract, Method
from devward.bus.explain import ExplainInterface
from devward.bus.log_control import LogControlInterface
from devward.bus.manager import ManagerInterface
from devward.bus.messages import Body, Prepare, Run
from devward.bus.objects import Objects
from devward.bus.refusal import INVALID_ARGS, UNKNOWN_METHOD, Refusal
from devward.bus.wire import Encoded
from devward.errors import INTERNAL_ERROR_NAME, AccessDenied, DevwardError, InvalidArguments, LimitsExceeded, Stopping, dbus_error_name
from devward.model import Caller
from devward.text import printable

#: Calls that may be under way for one bus name, for one user who is not root, for all of these together, and as many for root, who may have
#: to stop what is going on.
MAX_CALLS_PER_SENDER: Final = 64
MAX_CALLS_PER_UID: Final = 128
MAX_CALLS: Final = 512
#: Calls of whom the bus was not asked yet who they are, which takes it a moment for each bus name.
MAX_UNNAMED: Final = 2048
#: Stands for a user whom the bus does not name.
_NOBODY_KNOWN: Final = -1
#: Characters of an error's text, and of an argument in what polkit is told.
MAX_ERROR_TEXT: Final = 1000
MAX_DETAIL: Final = 200

_log = logging.getLogger(__name__)

Answer = Callable[[MethodCall], Body]


class Replies(Protocol):
    """What the dispatcher needs of the connection."""

    def reply(self, call: MethodCall, signature: str, body: Sequence[object] | Encoded) -> None: ...

    def reply_error(self, call: MethodCall, name: str, text: str) -> None: ...


class Dispatcher:
    """Answers method calls. `rules` is the gate's table; tests change it to see that it decides."""

    def __init__(
        self,
        replies: Replies,
        contract: Contract,
        objects: Objects,
        gate: Gate,
        manager: ManagerInterface,
        card: ExplainInterface,
        vnpu: ExplainInterface,
        log_control: LogControlInterface,
        *,
        new_id: Callable[[], str],
        machine_id: str = "",
        rules: Mapping[tuple[str, str], Rule] = RULES,
    ) -> None:
        self._replies = replies
        self._contract = contract
        self._objects = objects
        self._gate = gate
        self._log_control = log_control
        self._new_id = new_id
        self._machine_id = machine_id
        self._rules = rules
        self._answers: Mapping[tuple[str, str], Answer] = {
            (names.PEER_INTERFACE, "Ping"): lambda _: (),
            (names.PEER_INTERFACE, "GetMachineId"): self._get_machine_id,
            (names.INTROSPECTABLE_INTERFACE, "Introspect"): objects.introspect,
            (names.PROPERTIES_INTERFACE, "Get"): objects.get,
            (names.PROPERTIES_INTERFACE, "GetAll"): objects.get_all,
            (names.OBJECT_MANAGER_INTERFACE, "GetManagedObjects"): objects.get_managed_objects,
        } | {(names.MANAGER_INTERFACE, member): _without_arguments(answer) for member, answer in manager.lists().items()}
        self._preparations: Mapping[tuple[str, str], Prepare] = (
            {(names.PROPERTIES_INTERFACE, "Set"): self._set}
            | {(names.MANAGER_INTERFACE, member): prepare for member, prepare in manager.methods().items()}
            | {(names.CARD_INTERFACE, member): prepare for member, prepare in card.methods().items()}
            | {(names.VNPU_INTERFACE, member): prepare for member, prepare in vnpu.methods().items()}
        )
        self._calls: dict[asyncio.Task[None], MethodCall] = {}
        self._by_sender: Counter[str] = Counter()
        self._by_uid: Counter[int] = Counter()
        self._unnamed = 0
        self._closing = False

    @property
    def members(self) -> frozenset[tuple[str, str]]:
        """Every (interface, member) that has code behind it."""
        return frozenset(self._answers) | frozenset(self._preparations)

    def handle(self, call: MethodCall) -> None:
        """Answer a call, now or later. Never raises."""
        try:
            self._begin(call)
        except Exception as error:  # noqa: BLE001  # the edge: _fail reports it
            self._fail(call, error)

    async def close(self) -> None:
        """Refuse what still comes, end what is under way with the error Stopping, and wait for its end."""
        self._closing = True
        tasks = list(self._calls)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, call: MethodCall) -> None:
        interface, method = self._resolve(call)
        if call.signature != method.in_signature:
            given = f"({call.signature})" if call.signature else "nothing"
            raise Refusal(INVALID_ARGS, f"{method.name} takes ({method.in_signature}), not {given}.")
        key = (interface, method.name)
        rule = self._rules.get(key)
        answer = self._answers.get(key)
        if answer is not None and rule is Open.PUBLIC:
            self._replies.reply(call, method.out_signature, answer(call))
            return
        run = self._preparations[key](call) if answer is None else _later(answer, call)
        self._start(call, method, rule, run)

    def _resolve(self, call: MethodCall) -> tuple[str, Method]:
        """Return the interface and method that a call means; Refusal with the standard error where there is none."""
        available = self._objects.interfaces(call.path, call.interface, call.member)
        for name in available:
            method = self._contract.interfaces[name].methods.get(call.member)
            if method is not None:
                return name, method
        where = f"the interface {call.interface}" if call.interface else f"the object {call.path}"
        raise Refusal(UNKNOWN_METHOD, f"There is no method {call.member} in {printable(where, MAX_DETAIL)}.")

    def _start(self, call: MethodCall, method: Method, rule: Rule | None, run: Run) -> None:
        if self._closing:
            raise Stopping("The daemon is stopping.")
        is_crowded = self._unnamed >= MAX_UNNAMED and not self._gate.knows(call.sender)
        if is_crowded or self._by_sender[call.sender] >= MAX_CALLS_PER_SENDER:
            raise _too_many()
        self._unnamed += 1
        self._by_sender[call.sender] += 1
        task = asyncio.get_running_loop().create_task(self._serve(call, method, rule, run))
        self._calls[task] = call
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        call = self._calls.pop(task)
        self._by_sender[call.sender] -= 1
        if not self._by_sender[call.sender]:
            del self._by_sender[call.sender]
        if task.cancelled():
            self._fail(call, Stopping("The daemon is stopping."))

    async def _serve(self, call: MethodCall, method: Method, rule: Rule | None, run: Run) -> None:
        try:
            with self._share(await self._name(call.sender)):
                caller = await self._gate.authorize(call, rule, _details(call, method))
                self._replies.reply(call, method.out_signature, await run(caller))
        except CallerGone:
            return
        except Exception as error:  # noqa: BLE001  # the edge: _fail reports it
            self._fail(call, error)

    async def _name(self, sender: str) -> int:
        """Return the uid of who calls."""
        try:
            return (await self._gate.caller(sender)).uid
        except AccessDenied:
            # What may be done for somebody who cannot be named is the gate's to say.
            return _NOBODY_KNOWN
        finally:
            self._unnamed -= 1

    @contextlib.contextmanager
    def _share(self, uid: int) -> Iterator[None]:
        """Count a call as a user's while it is under way. LimitsExceeded where there are too many."""
        of_root = self._by_uid[0]
        is_full = of_root >= MAX_CALLS if uid == 0 else self._by_uid.total() - of_root >= MAX_CALLS
        if is_full or (uid != 0 and self._by_uid[uid] >= MAX_CALLS_PER_UID):
            raise _too_many()
        self._by_uid[uid] += 1
        try:
            yield
        finally:
            self._by_uid[uid] -= 1
            if not self._by_uid[uid]:
                del self._by_uid[uid]

    def _fail(self, call: MethodCall, error: Exception) -> None:
        name, text = self._explain(call, error)
        self._replies.reply_error(call, name, printable(text, MAX_ERROR_TEXT))

    def _explain(self, call: MethodCall, error: Exception) -> tuple[str, str]:
        """Return the D-Bus name and the sentence of an error; one that nobody meant is logged, and only its id told."""
        if isinstance(error, Refusal):
            return error.name, error.text
        if isinstance(error, MessageTooLong):
            return dbus_error_name(LimitsExceeded()), str(error)
        if isinstance(error, DevwardError) and dbus_error_name(error) != INTERNAL_ERROR_NAME:
            return dbus_error_name(error), str(error) or error.code
        identifier = self._new_id()
        event = {"MESSAGE_ID": names.MESSAGE_IDS["internal-error"], names.FIELD_EVENT: "internal-error"}
        _log.error("Internal error %s in %s", identifier, call.member, exc_info=error, extra={"journal": event})
        return INTERNAL_ERROR_NAME, f"An internal error has happened; the journal has it as {identifier}."

    def _get_machine_id(self, _: MethodCall) -> Body:
        if not self._machine_id:
            raise Refusal("org.freedesktop.DBus.Error.FileNotFound", "This host has no machine id.")
        return (self._machine_id,)

    def _set(self, call: MethodCall) -> Run:
        interface, name, value = call.body
        prop = self._objects.writable_property(call.path, cast(str, interface), cast(str, name))
        given = cast(Variant, value)
        if given.signature != prop.signature:
            raise InvalidArguments(f"{prop.name} is of type {prop.signature}.")
        set_value = self._log_control.setter(prop.name, given.value)

        async def run(_: Caller | None) -> Body:
            set_value()
            return ()

        return run


def _too_many() -> LimitsExceeded:
    return LimitsExceeded("Too many calls are under way.")


def _without_arguments(answer: Callable[[], Body]) -> Answer:
    return lambda _: answer()


def _later(answer: Answer, call: MethodCall) -> Run:
    async def run(_: Caller | None) -> Body:
        return answer(call)

    return run


def _details(call: MethodCall, method: Method) -> Mapping[str, str]:
    """Return what polkit's rules and prompts may know of a call: its plain arguments, escaped."""
    return {
        argument.name: printable(str(value), MAX_DETAIL)
        for argument, value in zip(method.inputs, call.body, strict=True)
        if argument.signature in ("s", "t", "u")
    }
