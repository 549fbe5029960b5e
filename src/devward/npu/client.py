"""Asks the broker of the vendor's library, for the daemon: one question at a time, each with a deadline, and longer pauses after failures.

Whatever the broker does, the answer is what was asked for, or the reason why there is none. A broker that stays silent although it should
have ended itself by then is ended by the service manager, but never one that may be destroying a vNPU. Each question has a connection of
its own, so that a late answer reaches nobody. To destroy is asked once and never again: without a clear answer it may have been done.
"""

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from devward import names
from devward.clock import Clock
from devward.cluster.statement import AskedVnpu, Statement
from devward.npu.facts import Expected, Inspection, Inventory, Refusal
from devward.npu.fields import Malformed
from devward.npu.inventory import Unavailable
from devward.npu.protocol import (
    ANSWER_LIMIT,
    RUNTIME_LIMIT,
    Answer,
    DestroyAnswer,
    DestroyRequest,
    InspectAnswer,
    InspectRequest,
    ListAnswer,
    ListRequest,
    OtherVersion,
    RefusedAnswer,
    WitnessAnswer,
    WitnessRequest,
    encode_request,
    parse_answer,
)
from devward.reasons import Reason
from devward.text import printable

#: Seconds for a question and its answer.
LIST_SECONDS: Final = 10.0
INSPECT_SECONDS: Final = 5.0
#: The broker itself stops looking after 10 s.
WITNESS_SECONDS: Final = 15.0
DESTROY_SECONDS: Final = 60.0
#: Seconds in which the library must be called to destroy, from the moment that it is asked for; after that it is not called any more.
DESTROY_START_SECONDS: Final = 30.0
#: Seconds of silence after which a broker is ended: its own timer, 30 s for a call or a step of a look, has failed by then.
SILENCE_LIMIT: Final = LIST_SECONDS + 60.0
#: Seconds between attempts after a failure, doubled each time; and the least for one that was asked for.
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
URGENT_PAUSE: Final = 5.0
#: Answers that are longer are taken apart in a thread.
_LONG: Final = 1 << 16
_CHUNK: Final = 1 << 16

_REASONS: Final = {
    Refusal.BUSY: Reason.NPU_BROKER_SILENT,
    Refusal.STOPPING: Reason.NPU_BROKER_SILENT,
    Refusal.HUNG: Reason.NPU_BROKER_SILENT,
    Refusal.NOT_ROOT: Reason.NPU_BROKER_CONFINED,
    Refusal.MOUNT_NAMESPACE: Reason.NPU_BROKER_CONFINED,
    Refusal.CAPABILITIES: Reason.NPU_BROKER_CONFINED,
    Refusal.CONTAINER: Reason.NPU_BROKER_CONFINED,
    Refusal.ENVIRONMENT_UNKNOWN: Reason.NPU_BROKER_CONFINED,
    Refusal.LIBRARY_MISSING: Reason.NPU_LIBRARY_UNUSABLE,
    Refusal.LIBRARY_UNSAFE: Reason.NPU_LIBRARY_UNUSABLE,
    Refusal.LIBRARY_UNUSABLE: Reason.NPU_LIBRARY_UNUSABLE,
    Refusal.LIBRARY_GENERATION: Reason.NPU_LIBRARY_UNUSABLE,
    Refusal.LIBRARY_CHANGED: Reason.NPU_BROKER_UNREACHABLE,
    Refusal.DCMI_FAILED: Reason.NPU_DRIVER_FAILED,
    Refusal.NO_SUCH_CHIP: Reason.NPU_UNREADABLE,
    Refusal.EXPIRED: Reason.NPU_BROKER_SILENT,
}

_Question = ListRequest | InspectRequest | WitnessRequest


@dataclass(frozen=True, slots=True)
class Unasked:
    """Nothing was destroyed, for nothing reached the broker."""

    reason: Reason
    text: str


#: What asking for a destruction comes to.
Destruction = DestroyAnswer | RefusedAnswer | Unasked | Unavailable


class _Unreached(Exception):
    """There is no connection: nothing was sent."""


class _Ended(Exception):
    """The broker closed the connection without a whole answer."""


class _Line:
    """How it went with one kind of question, and how long to pause before the next of them."""

    def __init__(self) -> None:
        self.failure: Unavailable | None = None
        self.asked_at = 0.0
        self._failures = 0

    def pause(self, now: float) -> float:
        if self.failure is None:
            return 0.0
        pause = min(FIRST_PAUSE * 2.0 ** min(self._failures - 1, 16), LONGEST_PAUSE)
        return max(0.0, self.asked_at + pause - now)

    def failed(self, failure: Unavailable) -> Unavailable:
        self._failures += 1
        self.failure = failure
        return failure

    def succeeded(self) -> None:
        self._failures, self.failure = 0, None

    def begin_anew(self) -> None:
        """Pause no longer for what was."""
        self._failures = 0


class BrokerClient:
    """The daemon's way to the broker. `kill` has the service manager end it, and returns why that failed; empty if it did not."""

    def __init__(
        self,
        clock: Clock,
        kill: Callable[[], Awaitable[str]],
        *,
        socket_path: str = names.BROKER_SOCKET,
        lock_file: str = names.BROKER_LOCK_FILE,
    ) -> None:
        """Connect to nothing yet."""
        self._clock = clock
        self._kill = kill
        self._socket_path = socket_path
        self._lock_file = lock_file
        self._one_at_a_time = asyncio.Lock()
        self._last_id = 0
        self._library = _Line()
        self._host = _Line()
        #: When the first of the questions was asked to which no answer came, with nothing else heard since.
        self._silent_since: float | None = None
        #: How often it was ended since it last answered: one that even that does not end is let alone for longer each time.
        self._kills = 0

    @property
    def failed(self) -> bool:
        """Whether the broker could not be asked for the NPUs when it was asked last."""
        return self._library.failure is not None

    @property
    def pause(self) -> float:
        """Seconds until the NPUs are asked for again after a failure; 0 if there was none, or if the failure itself took that long."""
        return self._library.pause(self._clock.monotonic())

    async def list(self, *, urgent: bool = False) -> Inventory | Unavailable:
        """Return every NPU. After a failure the answer is that failure until the pause is over, for an urgent question a shorter one."""
        self._last_id += 1
        answer = await self._ask(ListRequest(self._last_id), LIST_SECONDS, self._library, urgent=urgent)
        if isinstance(answer, ListAnswer):
            return answer.inventory
        return answer if isinstance(answer, Unavailable) else self._library.failed(_garbled("it answers another question"))

    async def inspect(self, card: int, device: int) -> Inspection | Unavailable:
        """Return a closer look at one chip; as `list`."""
        self._last_id += 1
        answer = await self._ask(InspectRequest(self._last_id, card, device), INSPECT_SECONDS, self._library, urgent=False)
        if isinstance(answer, InspectAnswer):
            return answer.inspection
        return answer if isinstance(answer, Unavailable) else self._library.failed(_garbled("it answers another question"))

    async def witness(self, vnpus: tuple[AskedVnpu, ...], runtime: str | None) -> Statement | Unavailable:
        """Return what the host shows; as `list`, but with pauses of its own: it needs no library, whose failures say nothing about it.

        `vnpus` are the ones whose users are looked for, each id once; `runtime` is the Node's containerRuntimeVersion, None without a Node.
        """
        self._last_id += 1
        told = None if runtime is None else printable(runtime, RUNTIME_LIMIT)
        answer = await self._ask(WitnessRequest(self._last_id, 0, told, vnpus), WITNESS_SECONDS, self._host, urgent=False)
        if isinstance(answer, Unavailable):
            return answer
        if not isinstance(answer, WitnessAnswer):
            return self._host.failed(_garbled("it answers another question"))
        if {sight.vnpu for sight in answer.statement.vnpus} != set(vnpus) or (answer.statement.descriptors is None) == bool(vnpus):
            return self._host.failed(_garbled("it tells of other vNPUs than were asked about"))
        return answer.statement

    async def destroy(
        self, expected: Expected, runtime: str, request: str, last_word: Callable[[], Awaitable[str]] | None = None
    ) -> Destruction:
        """Have the library destroy one vNPU, if it is exactly this one and nobody uses it. Asked at once, and once only.

        `runtime` is the Node's containerRuntimeVersion, `request` the id of the records about it. `last_word` is asked when no other
        question is under way any more, which may take a while, and returns what is against it by then.

        DestroyAnswer: the library was called.
        RefusedAnswer, Unasked: it was not. Unavailable: that is not known, and it may be at work still; so it is if this is cancelled.
        """
        expires = _boottime_ns() + int(DESTROY_START_SECONDS * 1e9)
        async with self._one_at_a_time:
            if _boottime_ns() >= expires:
                return Unasked(Reason.NPU_BROKER_SILENT, "other questions took too long, and what was known is too old by now")
            if last_word is not None and (against := await last_word()):
                return Unasked(Reason.RECLAIM_BLOCKED, against)
            self._last_id += 1
            try:
                answer = await self._hear(DestroyRequest(self._last_id, request, expires, runtime, expected), DESTROY_SECONDS)
            except _Unreached as error:
                return Unasked(Reason.NPU_BROKER_UNREACHABLE, str(error))
        if isinstance(answer, DestroyAnswer | RefusedAnswer | Unavailable):
            return answer
        return _garbled("it answers another question")

    async def _ask(self, request: _Question, seconds: float, line: "_Line", *, urgent: bool) -> Answer | Unavailable:
        async with self._one_at_a_time:
            now = self._clock.monotonic()
            if line.failure is not None and line.pause(now) > 0 and not (urgent and now - line.asked_at >= URGENT_PAUSE):
                return line.failure
            line.asked_at = now
            if isinstance(request, WitnessRequest):
                # Only now, when it is this question's turn.
                expires = _boottime_ns() + int(seconds * 1e9)
                request = dataclasses.replace(request, expires_ns=expires)
            answer = await self._try(request, seconds)
            if isinstance(answer, Unavailable):
                return line.failed(answer)
            line.succeeded()
            return answer

    async def _try(self, request: _Question, seconds: float) -> Answer | Unavailable:
        """Ask once, for something that a refusal leaves unknown."""
        try:
            answer = await self._hear(request, seconds)
        except _Unreached as error:
            return Unavailable(Reason.NPU_BROKER_UNREACHABLE, str(error))
        if isinstance(answer, RefusedAnswer):
            reason = _REASONS.get(answer.reason, Reason.NPU_BROKER_GARBLED)
            return Unavailable(reason, answer.text, is_absent=answer.reason is Refusal.LIBRARY_MISSING)
        return answer

    async def _hear(self, request: _Question | DestroyRequest, seconds: float) -> Answer | Unavailable:
        """Ask once, and return the answer to that, or why none was heard. _Unreached."""
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(seconds):
                line = await self._exchange(encode_request(request))
        except TimeoutError:
            self._silent_since = began if self._silent_since is None else self._silent_since
            return Unavailable(Reason.NPU_BROKER_SILENT, f"no answer in {seconds:g} s{await self._end_if_hung()}")
        except _Ended as error:
            self._silent_since = None
            return Unavailable(Reason.NPU_BROKER_UNREACHABLE, str(error))
        except _Unreached:
            self._silent_since = None
            raise
        except OSError as error:
            self._silent_since = None
            return Unavailable(Reason.NPU_BROKER_UNREACHABLE, self._problem(error))
        except Malformed as error:
            self._silent_since = None
            return Unavailable(Reason.NPU_BROKER_GARBLED, str(error))
        self._silent_since, self._kills = None, 0
        try:
            answer = await asyncio.to_thread(parse_answer, line) if len(line) > _LONG else parse_answer(line)
        except OtherVersion as error:
            return Unavailable(Reason.NPU_BROKER_GARBLED, f"another version than this daemon's: {error}")
        except Malformed as error:
            return Unavailable(Reason.NPU_BROKER_GARBLED, str(error))
        # A request that could not be read has no id to be repeated.
        if answer.id != request.id and not (isinstance(answer, RefusedAnswer) and answer.id is None):
            return Unavailable(Reason.NPU_BROKER_GARBLED, "it answers a question that was not asked")
        return answer

    async def _exchange(self, line: bytes) -> bytes:
        """Send a line on a connection of its own and return the answer's. _Unreached, OSError, _Ended; Malformed: it is too long."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as connection:
            try:
                await loop.sock_connect(connection, self._socket_path)
            except OSError as error:
                raise _Unreached(self._problem(error)) from error
            await loop.sock_sendall(connection, line)
            received = bytearray()
            while b"\n" not in received[-_CHUNK:]:
                data = await loop.sock_recv(connection, _CHUNK)
                if not data:
                    raise _Ended("it ended, or closed the connection, before it had answered")
                received += data
                if len(received) > ANSWER_LIMIT:
                    raise Malformed(f"the answer is longer than {ANSWER_LIMIT} bytes")
            # More than one line is no JSON.
            return bytes(received)

    def _problem(self, error: OSError) -> str:
        return f"{self._socket_path}: {os.strerror(error.errno or 0)}"

    async def _end_if_hung(self) -> str:
        """Have a broker ended that was silent for too long; return what a text has to add."""
        limit = SILENCE_LIMIT * 2 ** min(self._kills, 6)
        if self._silent_since is None or self._clock.monotonic() - self._silent_since < limit:
            return ""
        if destroy_may_run(self._lock_file):
            return "; it is not ended, for it may be destroying a vNPU"
        self._silent_since = None
        self._kills += 1
        problem = await self._kill()
        if not problem:
            # Another one is started by the next question, which need not wait for what the old one did.
            for line in (self._library, self._host):
                line.begin_anew()
        return f"; it could not be ended: {problem}" if problem else "; it was ended"


def _boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _garbled(text: str) -> Unavailable:
    return Unavailable(Reason.NPU_BROKER_GARBLED, text)


def destroy_may_run(lock_file: str) -> bool:
    """Tell whether some broker may be in the call that destroys a vNPU: it holds this lock then. What cannot be learned counts as held."""
    try:
        descriptor = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        # Closing gives the lock back.
        with contextlib.suppress(OSError):
            os.close(descriptor)
