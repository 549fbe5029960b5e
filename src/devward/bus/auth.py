"""The gate: who may call what. Denied by default.

`RULES` names every member that can be called; one that is not there is refused. uid 0 passes. Everybody else needs polkit, asked with
the bus name that the bus itself put on the message (never a pid, which can be reused). No polkit, an error, a late or an odd answer
mean no.
"""

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Protocol

from devward import names
from devward.bus.backend import DenialAudit
from devward.bus.connection import CallFailed, MethodCall, Variant
from devward.errors import AccessDenied, BusError, DevwardError, InteractionRequired, LimitsExceeded
from devward.model import Caller, CdiMode, ReclaimMode
from devward.text import printable

POLKIT_NAME = "org.freedesktop.PolicyKit1"
POLKIT_PATH = "/org/freedesktop/PolicyKit1/Authority"
POLKIT_INTERFACE = "org.freedesktop.PolicyKit1.Authority"
#: CheckAuthorizationFlags of polkit.
ALLOW_USER_INTERACTION = 1
#: Seconds to wait for polkit: alone, while an administrator is asked, and where the answer only decides how much is shown.
POLKIT_SECONDS = 5.0
PROMPT_SECONDS = 120.0
INSPECT_SECONDS = 1.0
CREDENTIALS_SECONDS = 5.0
#: Callers whose credentials are remembered; a unique name is never given out twice in the life of a bus.
MAX_CALLERS = 256
#: Prompts that may be open for one uid, and in all: each keeps a call outstanding for two minutes.
MAX_PROMPTS_PER_UID = 4
MAX_PROMPTS = 32


class Open(Enum):
    """Rules that need no polkit action."""

    #: Everybody may.
    PUBLIC = "public"
    #: uid 0 only.
    ROOT = "root"


Rule = Open | str | Callable[[Sequence[object]], str]


def _set_cdi_mode(body: Sequence[object]) -> str:
    """Observing and switching off are the safe direction; everything else lets devward write again."""
    return names.ACTION_PROTECT if body[0] in (CdiMode.OBSERVE, CdiMode.OFF) else names.ACTION_RELEASE


def _set_reclaim_mode(body: Sequence[object]) -> str:
    """As with CDI files."""
    return names.ACTION_PROTECT if body[0] in (ReclaimMode.OBSERVE, ReclaimMode.OFF) else names.ACTION_RELEASE


RULES: Mapping[tuple[str, str], Rule] = MappingProxyType(
    {
        (names.PEER_INTERFACE, "Ping"): Open.PUBLIC,
        (names.PEER_INTERFACE, "GetMachineId"): Open.PUBLIC,
        (names.INTROSPECTABLE_INTERFACE, "Introspect"): Open.PUBLIC,
        (names.PROPERTIES_INTERFACE, "Get"): Open.PUBLIC,
        (names.PROPERTIES_INTERFACE, "GetAll"): Open.PUBLIC,
        # Only the log control object has anything to set.
        (names.PROPERTIES_INTERFACE, "Set"): Open.ROOT,
        (names.OBJECT_MANAGER_INTERFACE, "GetManagedObjects"): Open.PUBLIC,
        # Describe, ListFindings and Explain show less to callers without ACTION_INSPECT.
        (names.MANAGER_INTERFACE, "Describe"): Open.PUBLIC,
        (names.MANAGER_INTERFACE, "ListDevices"): Open.PUBLIC,
        (names.MANAGER_INTERFACE, "ListSpecs"): Open.PUBLIC,
        (names.MANAGER_INTERFACE, "ListCards"): Open.PUBLIC,
        (names.MANAGER_INTERFACE, "ListVnpus"): Open.PUBLIC,
        (names.MANAGER_INTERFACE, "ListFindings"): Open.PUBLIC,
        (names.CARD_INTERFACE, "Explain"): Open.PUBLIC,
        (names.VNPU_INTERFACE, "Explain"): Open.PUBLIC,
        (names.MANAGER_INTERFACE, "CheckAllocation"): names.ACTION_CHECK,
        (names.MANAGER_INTERFACE, "Rescan"): names.ACTION_RESCAN,
        (names.MANAGER_INTERFACE, "Reload"): names.ACTION_RESCAN,
        (names.MANAGER_INTERFACE, "RepairSpecs"): names.ACTION_REPAIR_CDI,
        (names.MANAGER_INTERFACE, "AdoptSpec"): names.ACTION_RELEASE,
        (names.MANAGER_INTERFACE, "SetCdiMode"): _set_cdi_mode,
        (names.MANAGER_INTERFACE, "PauseCdi"): names.ACTION_PROTECT,
        (names.MANAGER_INTERFACE, "ResumeCdi"): names.ACTION_RELEASE,
        # What would be destroyed tells who has what: a dry run needs no less.
        (names.MANAGER_INTERFACE, "ReclaimVnpu"): names.ACTION_RECLAIM,
        (names.MANAGER_INTERFACE, "ReclaimOrphans"): names.ACTION_RECLAIM,
        (names.MANAGER_INTERFACE, "ReleaseBreaker"): names.ACTION_RELEASE,
        (names.MANAGER_INTERFACE, "SetReclaimMode"): _set_reclaim_mode,
        (names.MANAGER_INTERFACE, "PauseReclaim"): names.ACTION_PROTECT,
        (names.MANAGER_INTERFACE, "ResumeReclaim"): names.ACTION_RELEASE,
        (names.MANAGER_INTERFACE, "Pin"): names.ACTION_PROTECT,
        (names.MANAGER_INTERFACE, "Unpin"): names.ACTION_RELEASE,
        (names.MANAGER_INTERFACE, "AcceptNode"): names.ACTION_RELEASE,
    }
)


class CallerGone(Exception):
    """The caller left the bus before it was authorized."""


class Bus(Protocol):
    """What the gate needs of the connection."""

    async def call(
        self,
        destination: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        body: Sequence[object] = (),
        *,
        expect: str,
        within: float,
    ) -> Sequence[object]: ...

    async def call_bus(self, member: str, signature: str, body: Sequence[object], *, expect: str, within: float) -> Sequence[object]: ...

    def notify(self, destination: str, path: str, interface: str, member: str, signature: str, body: Sequence[object]) -> None: ...

    def on_name_vanished(self, name: str, callback: Callable[[], None]) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True)
class _Answer:
    """What polkit says; `failure` is a sentence where it said nothing of use."""

    authorized: bool = False
    challenge: bool = False
    failure: str = ""


def rule_action(rule: Rule, body: Sequence[object]) -> str | Open:
    """Return the polkit action that a rule asks for with these arguments, or the open rule itself."""
    return rule(body) if callable(rule) and not isinstance(rule, Open) else rule


class Gate:
    """Authorizes calls. One for the life of the connection."""

    def __init__(self, bus: Bus, audit: DenialAudit, *, new_id: Callable[[], str]) -> None:
        self._bus = bus
        self._audit = audit
        self._new_id = new_id
        self._callers: OrderedDict[str, Caller] = OrderedDict()
        self._asking: dict[str, asyncio.Task[Caller]] = {}
        self._prompts: Counter[int] = Counter()

    async def authorize(self, call: MethodCall, rule: Rule | None, details: Mapping[str, str]) -> Caller | None:
        """Return the caller if it may make this call; None for a public member, where nobody asks who calls.

        AccessDenied, InteractionRequired or LimitsExceeded where it may not, CallerGone where nobody waits for the answer any more.
        What the call depends on must be looked at again afterwards: a prompt takes its time.
        """
        if rule is None:
            raise self._denied(None, call, "none", AccessDenied("The member has no authorization rule."))
        action = rule_action(rule, call.body)
        if action is Open.PUBLIC:
            return None
        name = action if isinstance(action, str) else action.value
        try:
            caller = await self.caller(call.sender)
        except AccessDenied as error:
            self._denied(None, call, name, error)
            raise
        if caller.uid == 0:
            return caller
        if not isinstance(action, str):
            raise self._denied(caller, call, name, AccessDenied("Only root may do this."))
        with self._prompt_slot(caller, call):
            within = PROMPT_SECONDS if call.interactive else POLKIT_SECONDS
            answer = await self._ask(call.sender, action, details, within=within, interactive=call.interactive)
        if answer.authorized:
            return caller
        if answer.challenge:
            # polkit says the same where it was allowed to ask: the caller then has no authentication agent.
            why = "there is no authentication agent to ask" if call.interactive else "the call did not allow a prompt"
            raise self._denied(caller, call, name, InteractionRequired(f"An administrator must authenticate first, and {why}."))
        raise self._denied(caller, call, name, AccessDenied(answer.failure or f"The action {action} is not allowed to you."))

    async def may_inspect(self, call: MethodCall) -> bool:
        """Whether the caller may see everything; never prompts, and what takes longer than a second is a no."""
        try:
            async with asyncio.timeout(INSPECT_SECONDS):
                caller = await self.caller(call.sender)
                if caller.uid == 0:
                    return True
                answer = await self._ask(call.sender, names.ACTION_INSPECT, {}, within=INSPECT_SECONDS, interactive=False)
        except (AccessDenied, TimeoutError):
            return False
        return answer.authorized

    def knows(self, sender: str) -> bool:
        """Whether the bus said already who a unique name is."""
        return sender in self._callers

    async def caller(self, sender: str) -> Caller:
        """Return who a unique name is, as the bus vouches for it; asked once for each name. AccessDenied where that cannot be told."""
        known = self._callers.get(sender)
        if known is not None:
            self._callers.move_to_end(sender)
            return known
        asking = self._asking.get(sender)
        if asking is None:
            asking = self._asking[sender] = asyncio.get_running_loop().create_task(self._credentials(sender))
            asking.add_done_callback(lambda task: self._asked(sender, task))
        try:
            return await asyncio.shield(asking)
        except BusError as error:
            raise AccessDenied("The message bus cannot say who the caller is.") from error

    async def close(self) -> None:
        """End what is under way."""
        for task in list(self._asking.values()):
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def _asked(self, sender: str, task: asyncio.Task[Caller]) -> None:
        self._asking.pop(sender, None)
        if task.cancelled() or task.exception() is not None:
            return
        self._callers[sender] = task.result()
        while len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)

    async def _credentials(self, sender: str) -> Caller:
        (found,) = await self._bus.call_bus("GetConnectionCredentials", "s", [sender], expect="a{sv}", within=CREDENTIALS_SECONDS)
        values = {key: item.value for key, item in found.items()} if isinstance(found, dict) else {}
        uid, pid = values.get("UnixUserID"), values.get("ProcessID", 0)
        if not sender or not isinstance(uid, int) or not isinstance(pid, int):
            raise BusError("The credentials have no uid.")
        return Caller(sender=sender, uid=uid, pid=pid)

    @contextlib.contextmanager
    def _prompt_slot(self, caller: Caller, call: MethodCall) -> Iterator[None]:
        if not call.interactive:
            yield
            return
        if self._prompts[caller.uid] >= MAX_PROMPTS_PER_UID or self._prompts.total() >= MAX_PROMPTS:
            raise LimitsExceeded("Too many calls are waiting for an administrator to authenticate.")
        self._prompts[caller.uid] += 1
        try:
            yield
        finally:
            self._prompts[caller.uid] -= 1
            if not self._prompts[caller.uid]:
                del self._prompts[caller.uid]

    async def _ask(self, sender: str, action: str, details: Mapping[str, str], *, within: float, interactive: bool) -> _Answer:
        """Ask polkit (CheckAuthorization of org.freedesktop.PolicyKit1.Authority). CallerGone where the caller leaves meanwhile."""
        cancellation = self._new_id()
        subject = ["system-bus-name", {"name": Variant("s", sender)}]
        flags = ALLOW_USER_INTERACTION if interactive else 0
        body = [subject, action, dict(details), flags, cancellation]
        loop = asyncio.get_running_loop()
        gone = loop.create_future()
        end_watch = self._bus.on_name_vanished(sender, lambda: gone.set_result(None))
        check = loop.create_task(
            self._bus.call(
                POLKIT_NAME,
                POLKIT_PATH,
                POLKIT_INTERFACE,
                "CheckAuthorization",
                "(sa{sv})sa{ss}us",
                body,
                expect="(bba{ss})",
                within=within,
            )
        )
        check.add_done_callback(_retrieve)
        answered = False
        try:
            await asyncio.wait({check, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not check.done():
                raise CallerGone
            answered = True
            return _answer(check.result())
        except CallFailed as error:
            answered = error.name != "org.freedesktop.DBus.Error.NoReply"
            return _Answer(failure="The authorization service did not answer as it should.")
        except BusError:
            return _Answer(failure="The authorization service cannot be reached.")
        finally:
            end_watch()
            if not answered:
                check.cancel()
                # So that no prompt stays on a screen that nobody's answer matters to any more.
                self._bus.notify(POLKIT_NAME, POLKIT_PATH, POLKIT_INTERFACE, "CancelCheckAuthorization", "s", [cancellation])

    def _denied(self, caller: Caller | None, call: MethodCall, action: str, error: DevwardError) -> DevwardError:
        """Record an error that the caller is about to get."""
        text = printable(str(error))
        self._audit.denied(caller=caller, sender=call.sender, action=action, member=call.member, reason=error.code, text=text)
        return error


def _answer(body: Sequence[object]) -> _Answer:
    match body:
        case [[bool() as authorized, bool() as challenge, dict()]]:
            return _Answer(authorized=authorized, challenge=challenge)
        case _:
            return _Answer(failure="The authorization service did not answer as it should.")


def _retrieve(check: asyncio.Task[Sequence[object]]) -> None:
    if not check.cancelled():
        check.exception()
