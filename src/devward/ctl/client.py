"""The daemon as devwardctl talks to it: bounded calls, plain values, and a Failure with a sentence for whatever goes wrong.

The owner of the bus name is looked up first and calls go to it: that never starts a daemon which an administrator has stopped, and a
daemon that is replaced in the middle of a call is noticed. Of signals only its own are believed, as anybody can send one to us.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast

from devward import names
from devward.bus.connection import BusConnection, Variant
from devward.bus.messages import CallFailed, SignalMessage
from devward.ctl import agent, facts
from devward.ctl.failure import BUS_ADVICE, HUNG_ADVICE, START_ADVICE, UNANSWERED, UNKNOWN, ExitStatus, Failure, failure_of
from devward.ctl.terminal import unbroken
from devward.errors import BusError

#: Seconds for an answer from memory, and for an action that nobody has to authenticate for.
READ_SECONDS: Final = 5.0
ACTION_SECONDS: Final = 30.0
#: Seconds for an action that an administrator may be asked about: the daemon's 120 for the prompt, and its own.
PROMPT_SECONDS: Final = 150.0
#: Seconds after which a daemon that still owes the answer to an action is asked whether it lives, between further such questions, and
#: for their answer. It answers them whatever it does or whoever is prompted; the first and the last add up to READ_SECONDS.
DOUBT_SECONDS: Final = 1.0
LIVENESS_SECONDS: Final = 5.0
PING_SECONDS: Final = 4.0
#: Seconds for the longest action.
PENDING_SECONDS: Final = 600.0

_DBUS: Final = "org.freedesktop.DBus"
Objects = dict[str, dict[str, dict[str, object]]]


@dataclass(frozen=True, slots=True)
class Result:
    """What an action did to one target."""

    target: str
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """How an action ended."""

    request_id: str
    outcome: str
    results: tuple[Result, ...]


def plain(value: object) -> Any:
    """Return a value of the bus with its variants opened."""
    if isinstance(value, Variant):
        return plain(value.value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def overall(outcomes: Sequence[str]) -> str:
    """Sum up results as RequestFinished does. An outcome that is not known counts as a failure."""
    good = {"success", "noop", "dry-run"}
    failed = [outcome for outcome in outcomes if outcome not in good]
    if failed:
        return "failure" if len(failed) == len(outcomes) else "partial"
    return next((word for word in ("success", "dry-run") if word in outcomes), "noop")


class Client:
    """One connection for one command. `on_pending` is called with the request id when the daemon answers that it will take longer."""

    def __init__(
        self,
        address: str | None,
        *,
        prompt: bool,
        environ: Mapping[str, str],
        on_pending: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`prompt`: somebody sits at the terminal and can be asked for a password."""
        self._address = address
        self._prompt = prompt
        self._environ = environ
        self._on_pending = on_pending
        self._connection = BusConnection()
        self._finished: dict[str, tuple[str, list[Sequence[str]]]] = {}
        self._news = asyncio.Event()
        #: Hears every signal that the bus or the daemon itself sent.
        self.listener: Callable[[SignalMessage], None] = lambda _: None
        #: The unique name of the daemon; empty where there is none.
        self.owner = ""
        #: The request that is under way, for who breaks off.
        self.under_way = ""

    async def __aenter__(self) -> Self:
        """Connect to the bus. Failure where there is none."""
        self._connection.set_signal_handler(self._on_signal)
        try:
            await self._connection.connect(self._address)
        except BusError as error:
            raise Failure(ExitStatus.ABSENT, str(error), BUS_ADVICE) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    # --- the daemon's presence -----------------------------------------------------------------------------------------
    async def find(self) -> None:
        """Look for the daemon. Failure where it does not run."""
        self.owner = await self.present()
        if not self.owner:
            raise Failure(ExitStatus.ABSENT, "devwardd is not running.", START_ADVICE)

    async def present(self) -> str:
        """Return the unique name of the daemon that runs now, empty for none."""
        try:
            (owner,) = await self._ask_bus("GetNameOwner", "s", [names.BUS_NAME], expect="s")
        except CallFailed as error:
            if error.name == f"{_DBUS}.Error.NameHasNoOwner":
                return ""
            raise Failure(ExitStatus.ABSENT, f"The message bus does not answer: {error}", BUS_ADVICE) from error
        return str(owner)

    async def process(self) -> int:
        """Return the daemon's process id, 0 where the bus does not tell."""
        try:
            (pid,) = await self._ask_bus("GetConnectionUnixProcessID", "s", [self.owner], expect="u")
        except CallFailed:
            return 0
        return cast(int, pid)

    async def wait_lost(self) -> str:
        """Wait until the connection to the bus is gone and return why."""
        return await self._connection.wait_lost()

    async def subscribe(self, *rules: str) -> None:
        """Ask the bus for signals."""
        for rule in rules:
            try:
                await self._ask_bus("AddMatch", "s", [rule], expect="")
            except CallFailed as error:
                raise Failure(ExitStatus.ABSENT, f"The message bus gives no signals: {error}") from error

    async def _ask_bus(self, member: str, signature: str, body: Sequence[object], *, expect: str) -> Sequence[object]:
        try:
            return await self._connection.call_bus(member, signature, body, expect=expect, within=READ_SECONDS)
        except CallFailed:
            raise
        except BusError as error:
            raise Failure(ExitStatus.ABSENT, f"The message bus is gone: {error}") from error

    # --- reading -------------------------------------------------------------------------------------------------------
    async def snapshot(self) -> facts.Snapshot:
        """Return everything that is published."""
        manager, objects = await self.objects()
        try:
            (rows,) = await self.call(names.ROOT_PATH, names.MANAGER_INTERFACE, "ListFindings", expect="a(ssst)")
        except Failure as failure:
            if failure.name not in UNKNOWN:
                raise
            rows = []
        return facts.snapshot(manager, objects, cast(list[Sequence[object]], rows))

    async def objects(self) -> tuple[dict[str, object], Objects]:
        """Return the properties of the root, and the interfaces and properties of every other object by path."""
        arguments = [names.MANAGER_INTERFACE]
        (manager,) = await self.call(names.ROOT_PATH, names.PROPERTIES_INTERFACE, "GetAll", "s", arguments, expect="a{sv}")
        (objects,) = await self.call(names.ROOT_PATH, names.OBJECT_MANAGER_INTERFACE, "GetManagedObjects", expect="a{oa{sa{sv}}}")
        return plain(manager), plain(objects)

    async def describe(self) -> dict[str, object]:
        """Return what Describe says; what only an administrator may see is missing for others."""
        (text,) = await self.call(names.ROOT_PATH, names.MANAGER_INTERFACE, "Describe", expect="s")
        return _document(text, "devwardd described itself in a form that cannot be read.")

    async def explain_card(self, name: str) -> dict[str, object] | None:
        """Return what the daemon says of an NPU, as explain_vnpu()."""
        return await self._explain(names.card_path(name), names.CARD_INTERFACE)

    async def explain_vnpu(self, name: str) -> dict[str, object] | None:
        """Return what the daemon says of a vNPU; what only an administrator may see is missing for others.

        None where the vNPU has gone meanwhile, and where the daemon is older than the method.
        """
        return await self._explain(names.vnpu_path(name), names.VNPU_INTERFACE)

    async def _explain(self, path: str, interface: str) -> dict[str, object] | None:
        try:
            (text,) = await self.call(path, interface, "Explain", expect="s")
        except Failure as failure:
            if failure.name not in UNKNOWN:
                raise
            return None
        return _document(text, "devwardd explained it in a form that cannot be read.")

    async def call(
        self,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        body: Sequence[object] = (),
        *,
        expect: str,
        within: float = READ_SECONDS,
        interactive: bool = False,
    ) -> Sequence[object]:
        """Call the daemon. Failure, with a sentence, where that does not come to an answer of the expected signature."""
        try:
            return await self._connection.call(
                self.owner, path, interface, member, signature, body, expect=expect, within=within, interactive=interactive
            )
        except CallFailed as error:
            if error.name in UNANSWERED:
                raise await self._unanswered(member, within) from error
            raise failure_of(error.name, str(error), member) from error
        except BusError as error:
            raise Failure(ExitStatus.ABSENT, f"The message bus went away during {member}.") from error

    async def _unanswered(self, member: str, within: float, *, during: str = "") -> Failure:
        """Find out why there was no answer to `member`, in so many seconds: the daemon is gone, was replaced, or hangs.

        `during`: the action that is under way, where that is another.
        """
        unknown = f"whether {during or member} was carried out is not known"
        now = await self.present()
        if not now:
            return Failure(ExitStatus.ABSENT, f"devwardd ended before it answered; {unknown}.", START_ADVICE)
        if now != self.owner:
            return Failure(ExitStatus.ABSENT, f"devwardd was started anew before it answered; {unknown}.", "Ask again.")
        meanwhile = f" during {during}" if during else ""
        return Failure(ExitStatus.ABSENT, f"devwardd runs, but did not answer {member} within {within:g} seconds{meanwhile}.", HUNG_ADVICE)

    # --- acting --------------------------------------------------------------------------------------------------------
    async def act(self, member: str, signature: str, body: Sequence[object], *, patience: float = PENDING_SECONDS) -> Answer:
        """Ask for an action of the Manager and wait until it is finished, for `patience` seconds once it is pending."""
        await self.subscribe(
            f"type='signal',sender='{names.BUS_NAME}',path='{names.ROOT_PATH}',interface='{names.MANAGER_INTERFACE}',member='RequestFinished'"
        )
        answer = await self.ask(member, signature, body, expect="ssa(sss)")
        request_id, state, rows = cast(tuple[str, str, list[Sequence[str]]], answer)
        if state != "pending":
            return _answer(request_id, overall([row[1] for row in rows]), rows)
        self.under_way = request_id
        self._on_pending(request_id)
        outcome, rows = await self._wait_finished(member, request_id, patience)
        self.under_way = ""
        return _answer(request_id, outcome, rows)

    async def ask(self, member: str, signature: str, body: Sequence[object], *, expect: str) -> Sequence[object]:
        """Call a method of the Manager for which an administrator may have to authenticate, and do not wait for a daemon that hangs."""
        with agent.asking(self._environ, self._address) if self._prompt else contextlib.nullcontext():
            within = PROMPT_SECONDS if self._prompt else ACTION_SECONDS
            started = asyncio.get_running_loop().time()
            call = asyncio.ensure_future(
                self.call(
                    names.ROOT_PATH,
                    names.MANAGER_INTERFACE,
                    member,
                    signature,
                    body,
                    expect=expect,
                    within=within,
                    interactive=self._prompt,
                )
            )
            try:
                await asyncio.wait({call}, timeout=DOUBT_SECONDS)
                while not call.done():
                    if not await self._lives(member) and not call.done():
                        raise await self._unanswered(member, round(asyncio.get_running_loop().time() - started))
                    await asyncio.wait({call}, timeout=LIVENESS_SECONDS)
                return call.result()
            finally:
                call.cancel()
                # It may have failed meanwhile, and what was found first is what is told.
                await asyncio.gather(call, return_exceptions=True)

    async def _wait_finished(self, member: str, request_id: str, patience: float) -> tuple[str, list[Sequence[str]]]:
        try:
            async with asyncio.timeout(patience):
                while request_id not in self._finished:
                    self._news.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._news.wait(), LIVENESS_SECONDS)
                    if request_id not in self._finished and not await self._lives(member) and request_id not in self._finished:
                        raise await self._unanswered("Ping", PING_SECONDS, during=member)
        except TimeoutError as error:
            text = f"The request {request_id} is still under way after {patience:g} seconds."
            raise Failure(
                ExitStatus.UNHEALTHY, text, f"See how it ends: {unbroken(f'devwardctl history --request {request_id}')}."
            ) from error
        return self._finished[request_id]

    async def _lives(self, member: str) -> bool:
        """Tell whether the daemon answers while the action `member` is under way. Failure where the bus is gone."""
        try:
            await self._connection.call(self.owner, names.ROOT_PATH, names.PEER_INTERFACE, "Ping", expect="", within=PING_SECONDS)
        except CallFailed:
            return False
        except BusError as error:
            raise Failure(ExitStatus.ABSENT, f"The message bus went away during {member}.") from error
        return True

    def _on_signal(self, message: SignalMessage) -> None:
        if message.sender not in (self.owner, _DBUS) or not message.sender:
            return
        changed = (message.sender, message.member, message.signature) == (_DBUS, "NameOwnerChanged", "sss")
        if changed and message.body[0] == names.BUS_NAME:
            # At once, or the first signals of a new daemon are taken for those of a stranger.
            self.owner = cast(str, message.body[2])
        finished = (message.sender, message.interface, message.member) == (self.owner, names.MANAGER_INTERFACE, "RequestFinished")
        if finished and message.signature == "ssa(sss)":
            request_id, outcome, rows = cast(tuple[str, str, list[Sequence[str]]], message.body)
            self._finished[request_id] = (outcome, rows)
            self._news.set()
        self.listener(message)


def _document(text: object, complaint: str) -> dict[str, object]:
    try:
        document = json.loads(str(text))
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise Failure(ExitStatus.UNHEALTHY, complaint)
    return document


def _answer(request_id: str, outcome: str, rows: Sequence[Sequence[str]]) -> Answer:
    return Answer(request_id, outcome, tuple(Result(*row[:3]) for row in rows))


def run(
    client: Client, work: Callable[[Client], Awaitable[int]], *, on_signal: Callable[[Client], None], within: float | None = None
) -> int:
    """Run work that talks to the bus, and return its exit status; `on_signal` is told when a signal breaks it off.

    TimeoutError where it takes more than `within` seconds.
    """
    return asyncio.run(_run(client, work, on_signal, within))


async def _run(client: Client, work: Callable[[Client], Awaitable[int]], on_signal: Callable[[Client], None], within: float | None) -> int:
    loop = asyncio.get_running_loop()
    task = cast("asyncio.Task[int]", asyncio.current_task())
    caught: list[int] = []

    def stop(number: int) -> None:
        caught.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop, number)
    try:
        async with asyncio.timeout(within), client:
            return await work(client)
    except asyncio.CancelledError:
        if not caught:
            raise
        on_signal(client)
        return 128 + caught[0]


def somebody_to_ask(stdin_is_terminal: bool) -> bool:  # noqa: FBT001  # the one question of this function
    """Tell whether polkit may ask at this terminal: uid 0 is never asked."""
    return stdin_is_terminal and os.geteuid() != 0
