"""Keeps the device plugin registered with the kubelet, through its restarts and everything else that ends a registration.

It looks at what is there, decides (sessions.py) and acts. inotify on the directory, a stream that ends and a slow pass only make it look.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from devward.breakages import Breakages
from devward.clock import Clock
from devward.inotify import Event, Inotify, Mask
from devward.plugin import place, sessions
from devward.plugin.place import KUBELET_SOCKET, PlaceError
from devward.plugin.sessions import End, Loss, Pace, Session, Sight, SocketId
from devward.plugin.settings import PluginSettings
from devward.plugin.status import PluginProblem, RegistrationState
from devward.text import printable
from devward.worker import Worker, WorkerHung

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

#: Seconds for one Register, in which a kubelet connects to us and asks for our options, within 10 seconds of its own.
REGISTER_DEADLINE: Final = 5.0
#: Seconds between two looks that nothing asked for, while registered and while not.
SLOW_PASS: Final = 30.0
SEARCH: Final = 5.0
#: The least time between two looks, whatever happens in the directory.
_LEAST: Final = 0.05
_FILE_DEADLINE: Final = 2.0
_MASK: Final = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.ATTRIB | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR

_OF_END: Final[dict[End, PluginProblem]] = {
    End.KUBELET_GONE: PluginProblem.KUBELET_ABSENT,
    End.KUBELET_RESTARTED: PluginProblem.KUBELET_ABSENT,
    End.SOCKET_GONE: PluginProblem.SOCKET_GONE,
    End.NO_STREAM: PluginProblem.NO_STREAM,
}
#: What is waited for, and no failure.
_WAITED_FOR: Final = frozenset({PluginProblem.DIRECTORY_MISSING, PluginProblem.KUBELET_ABSENT, PluginProblem.NOT_CHECKED})


class Serving(Protocol):
    """A server for one registration; PluginServer is the real one."""

    def bind(self, path: str) -> None:
        """Make the socket; called in a worker thread, since it may block. PlaceError."""

    async def start(self) -> None:
        """Answer whoever connects. PlaceError."""

    async def stop(self) -> None:
        """End streams and calls, and stop listening."""


@dataclass(frozen=True, slots=True)
class Means:
    """What a registration is made with."""

    make_server: Callable[[], Serving]
    #: Registers with the kubelet at this socket, under this name of ours, within so many seconds. PlaceError.
    register: Callable[[str, str, float], Awaitable[None]]
    #: How many streams are open now.
    streams: Callable[[], int]
    #: Whether there is something to offer; before, nobody is told of us.
    is_known: Callable[[], bool]
    #: Whether the kubelet keeps devices of the resource that are none of ours, None where that cannot be told; called in a worker thread,
    #: since it may block.
    has_foreign_ids: Callable[[], bool | None]


@dataclass(frozen=True, slots=True)
class Standing:
    """How the registration stands."""

    state: RegistrationState
    problem: PluginProblem
    detail: str = ""


class Registration:
    """Runs until it is cancelled. `on_change` is called when its standing changes."""

    def __init__(self, settings: PluginSettings, means: Means, clock: Clock, on_change: Callable[[], None], breakages: Breakages) -> None:
        """Do nothing yet."""
        self._settings = settings
        self._means = means
        self._clock = clock
        self._on_change = on_change
        self._breakages = breakages
        self._worker = Worker("plugin", on_recovered=self.nudge)
        self._nudged = asyncio.Event()
        self._inotify: Inotify | None = None
        self._watch = -1
        self._server: Serving | None = None
        self._own: SocketId | None = None
        self._session: Session | None = None
        #: The registration whose stream the kubelet ended by itself, until the next one is taken.
        self._loss: Loss | None = None
        self._pace = Pace()
        self.standing = Standing(RegistrationState.WAITING, PluginProblem.KUBELET_ABSENT)
        self.endpoint = ""
        self.registrations = 0
        self.failures = 0

    def nudge(self) -> None:
        """Look again."""
        self._nudged.set()

    async def run(self) -> None:
        """Register, and keep registered, until cancelled; then end the streams and stop the server."""
        try:
            try:
                self._inotify = Inotify(self._events)
            except OSError as error:
                _log.warning("the directory of device plugins is not watched, changes there show in the slow pass: %s", error)
            while True:
                self._nudged.clear()
                wait = await self._guarded_round()
                await asyncio.sleep(_LEAST)
                with contextlib.suppress(TimeoutError):
                    # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the nudge.
                    async with asyncio.timeout(max(0.0, wait - _LEAST)):
                        await self._nudged.wait()
        finally:
            self._session = None
            self._stand(RegistrationState.STOPPED, PluginProblem.STOPPED)
            await self._stop_server()
            if self._inotify is not None:
                self._inotify.close()
            self._worker.close()

    async def _guarded_round(self) -> float:
        try:
            wait = await self._round()
        except Exception as error:  # noqa: BLE001 # the edge: it is reported, and tried again
            # Of us or of gRPC: what is registered is given back, and begun anew.
            self._breakages.note("the registration with the kubelet broke off", error, self._clock.monotonic())
            self._session = None
            self.failures += 1
            self._pace = sessions.failed(self._pace, self._clock.monotonic())
            self._stand(RegistrationState.FAILED, PluginProblem.BROKEN_OFF, printable(f"{type(error).__name__}: {error}"))
            await self._stop_server()
            return SEARCH
        self._breakages.sum_up(self._clock.monotonic())
        return wait

    async def _round(self) -> float:
        """Look and act once; return how long to wait before the next look that nothing asks for."""
        try:
            sight = await self._call(self._look)
        except PlaceError as error:
            if error.problem in (PluginProblem.DIRECTORY_SILENT, PluginProblem.DIRECTORY_UNREADABLE) and self._session is not None:
                return SEARCH  # nothing was learned: what stands, stands
            await self._leave(End.KUBELET_GONE)
            self._stand_at(error)
            return SEARCH
        now = self._clock.monotonic()
        if self._session is not None:
            self._session = sessions.with_streams(self._session, self._means.streams(), now)
            end = sessions.end_of(self._session, sight, now)
            if end is None:
                self._session = sessions.standing(self._session, sight)
                due = sessions.silence_due(self._session)
                return SLOW_PASS if due is None else min(SLOW_PASS, due - now)
            await self._leave(end)
        return await self._register(sight)

    async def _leave(self, end: End) -> None:
        """Close a registration that has ended."""
        session, self._session = self._session, None
        if session is None:
            return
        _log.info("no longer registered with the kubelet: %s", end)
        now = self._clock.monotonic()
        self._pace = sessions.ended(self._pace, session, end, now)
        self._loss = Loss(session, now, self._clock.realtime_usec() * 1000) if end is End.NO_STREAM and session.had_stream else None
        self._stand(RegistrationState.WAITING, _OF_END[end])
        # Before the next one begins: a kubelet that notices an end late would take the new plugin's devices for lost (kubernetes#127803).
        await self._stop_server()

    async def _register(self, sight: Sight) -> float:
        """Make a registration if there is a kubelet and the time has come."""
        if sight.kubelet is None:
            self._stand(RegistrationState.WAITING, PluginProblem.KUBELET_ABSENT)
            return SEARCH
        if not self._means.is_known():
            self._stand(RegistrationState.WAITING, PluginProblem.NOT_CHECKED)
            return SEARCH
        self._pace = sessions.met(self._pace, sight.kubelet)
        wait = self._pace.due - self._clock.monotonic()
        if wait > 0:
            return min(wait, SEARCH)
        try:
            await self._require_free(sight)
            await self._attempt(sight.kubelet)
        except PlaceError as error:
            self.failures += error.problem is not PluginProblem.TAKEN
            self._pace = sessions.failed(self._pace, self._clock.monotonic())
            self._stand_at(error)
            await self._stop_server()
            return min(SEARCH, max(0.0, self._pace.due - self._clock.monotonic()))
        # At once: the kubelet may have been replaced meanwhile.
        return 0.0

    async def _attempt(self, kubelet: SocketId) -> None:
        before = self.standing
        # What failed before is what there is to know, until there is an answer.
        is_retry = before.state is RegistrationState.FAILED
        self._stand(RegistrationState.REGISTERING, before.problem if is_retry else PluginProblem.REGISTERING, before.detail)
        directory = self._settings.directory
        self.endpoint = await self._call(lambda: place.prepare(directory))
        server = self._server = self._means.make_server()
        await self._call(lambda: server.bind(f"{directory}/{self.endpoint}"))
        await server.start()
        own = self._own = await self._call(lambda: place.protect(directory, self.endpoint))
        began = self._clock.monotonic()
        await self._means.register(f"{directory}/{KUBELET_SOCKET}", self.endpoint, REGISTER_DEADLINE)
        now = self._clock.monotonic()
        self._session = sessions.with_streams(Session(kubelet, own, began, silent_since=now), self._means.streams(), now)
        self._loss = None
        self.registrations += 1
        self._stand(RegistrationState.REGISTERED, PluginProblem.NONE)
        _log.info("registered with the kubelet as %s", printable(self._settings.resource))

    async def _require_free(self, sight: Sight) -> None:
        """Raise PlaceError if another plugin serves the resource and may not be replaced."""
        if self._settings.take_over:
            return
        now = self._clock.monotonic()
        foreign_ids = await self._call(self._means.has_foreign_ids)
        for name in sessions.suspects(self._settings.resource, sight, loss=self._loss, foreign_ids=foreign_ids, now=now):
            if await self._call(functools.partial(place.is_live, self._settings.directory, name)):
                # Which of the plugins it is, if it is one, cannot be told then.
                why = ", or another one: the kubelet's checkpoint cannot be read" if foreign_ids is None else ""
                raise PlaceError(PluginProblem.TAKEN, f"{name}{why}")

    async def _stop_server(self) -> None:
        server, self._server = self._server, None
        own, self._own = self._own, None
        endpoint, self.endpoint = self.endpoint, ""
        if server is None:
            return
        try:
            # First, and in the worker: gRPC would do it on the event loop.
            with contextlib.suppress(PlaceError):
                await self._call(lambda: place.remove(self._settings.directory, endpoint, own))
        finally:
            try:
                await server.stop()
            except Exception as error:  # noqa: BLE001 # the edge: a server that cannot be stopped holds up nothing else
                self._breakages.note("the server of the device plugin did not stop as it should", error, self._clock.monotonic())

    async def _call(self, call: Callable[[], _T]) -> _T:
        try:
            return await self._worker.run(call, _FILE_DEADLINE)
        except WorkerHung as error:
            raise PlaceError(PluginProblem.DIRECTORY_SILENT, str(error)) from None

    def _stand_at(self, error: PlaceError) -> None:
        if error.problem is PluginProblem.TAKEN:
            state = RegistrationState.TAKEN
        elif error.problem in _WAITED_FOR:
            state = RegistrationState.WAITING
        else:
            state = RegistrationState.FAILED
        self._stand(state, error.problem, error.detail)

    def _stand(self, state: RegistrationState, problem: PluginProblem, detail: str = "") -> None:
        standing = Standing(state, problem, detail)
        if standing == self.standing:
            return
        if state in (RegistrationState.FAILED, RegistrationState.TAKEN) and problem is not self.standing.problem:
            _log.warning("the device plugin is not registered: %s %s", problem, detail)
        self.standing = standing
        self._on_change()

    def _look(self) -> Sight:
        """In the worker: watch the directory, then look, so that what happens after the look is noticed."""
        if self._inotify is not None:
            with contextlib.suppress(OSError):  # then the slow pass notices
                watch = self._inotify.add_watch(self._settings.directory, _MASK)
                # A directory that was replaced is another one to the kernel.
                if watch != self._watch and self._watch >= 0:
                    self._inotify.remove_watch(self._watch)
                self._watch = watch
        return place.look(self._settings.directory, self.endpoint)

    def _events(self, events: list[Event]) -> None:
        """Look again where an event is about a socket of interest; the kubelet's checkpoint is written there all the time."""
        for event in events:
            if event.mask & Mask.OVERFLOW or not event.name or event.name in (KUBELET_SOCKET, self.endpoint):
                self.nudge()
