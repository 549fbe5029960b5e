"""A watch on the node's Pods, which only says "look again": what it misses costs time and nothing else, and nothing it shows is evidence.

A server ends a watch after the time asked for, or earlier, and may not have the version from which one wants to go on (410, also as an
event): then it is begun anew without one (Kubernetes API concepts, "Efficient detection of changes").
"""

import asyncio
import json
import random
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from devward.cluster.api import ApiSettings, pods_path
from devward.cluster.api_faults import MAX_WAIT
from devward.cluster.api_library import Library
from devward.cluster.api_result import ApiError, ApiFault, ApiProblem
from devward.cluster.credentials import CredentialReader
from devward.cluster.transport import Connection, Cut, Timeouts
from devward.worker import Worker, WorkerHung

#: Bytes of one event, which is one Pod: etcd takes objects up to 1.5 MiB.
_MAX_EVENT: Final = 4 * 1024 * 1024
_CHANGES: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})
#: Seconds that the server and the thread get beyond what was asked for.
_GRACE: Final = 10.0
_MAX_DOUBLINGS: Final = 10


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds."""

    #: After which the server ends a watch.
    window: int = 300
    #: Before it is begun anew: at first, and at most. It doubles with every failure.
    first: float = 1.0
    most: float = 300.0

    def wait(self, failures: int, asked_for: float, dice: Callable[[], float]) -> float:
        """Return how long to wait after so many failures in a row. `dice` gives 0 to 1, so that not every node comes back at once."""
        usual = min(self.most, self.first * 2.0 ** min(failures, _MAX_DOUBLINGS))
        return max(usual * (0.5 + 0.5 * dice()), min(asked_for, MAX_WAIT))


@dataclass(frozen=True, slots=True)
class Event:
    """What is wanted of a line of a watch."""

    changed: bool
    #: From where to go on; empty: not said.
    version: str


def parse_event(line: bytes) -> Event:
    """Return what a line of a watch says. ApiError: an error of the server, or no event."""
    try:
        value: Any = json.loads(line)
        kind, thing = value["type"], value["object"]
        if kind == "ERROR":
            code = thing.get("code")
            fault = ApiFault.GONE if code == 410 else ApiFault.SERVER_ERROR
            raise ApiError(fault, str(thing.get("message") or ""), status=code if type(code) is int else 0)
        version = thing["metadata"]["resourceVersion"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ApiError(ApiFault.WRONG_TYPE, "no event of a watch") from None
    if not isinstance(version, str) or not isinstance(kind, str):
        raise ApiError(ApiFault.WRONG_TYPE, "no event of a watch")
    return Event(kind in _CHANGES, version)


class PodWatch:
    """Calls `nudge` on the loop whenever a Pod of a node changed, until it is cancelled."""

    def __init__(
        self,
        settings: ApiSettings,
        node: str,
        nudge: Callable[[], None],
        *,
        monotonic: Callable[[], float],
        realtime_usec: Callable[[], int],
        library: Library,
        pace: Pace | None = None,
    ) -> None:
        """Connect to nothing yet. The settings' deadline does not count; `library` is best the one of the Api."""
        self._node = node
        self._nudge = nudge
        self._monotonic = monotonic
        self._library = library
        self._pace = pace or Pace()
        self._timeouts = Timeouts(settings.timeouts.connect, self._pace.window + _GRACE)
        self._reader = CredentialReader(settings.kubeconfig, allow_exec=settings.allow_exec, realtime_usec=realtime_usec)
        self._worker = Worker("api-watch")
        self._version = ""
        self._pending = False
        self._lived = False
        self._problem: ApiProblem | None = None

    @property
    def problem(self) -> ApiProblem | None:
        """Why the latest watch ended otherwise than in its time; for the status only."""
        return self._problem

    async def run(self) -> None:
        """Watch until cancelled."""
        failures = 0
        try:
            while True:
                self._problem = await self._once()
                failures = 0 if self._problem is None or self._lived else failures + 1
                asked_for = 0.0
                if self._problem is not None and self._problem.retry_at is not None:
                    asked_for = self._problem.retry_at - self._monotonic()
                await asyncio.sleep(self._pace.wait(failures, asked_for, random.random))
        finally:
            self._worker.close()

    async def _once(self) -> ApiProblem | None:
        cut = Cut()
        loop = asyncio.get_running_loop()
        longest = self._timeouts.connect + self._pace.window + _GRACE
        timer = loop.call_later(longest, cut.cut)
        self._lived = False
        try:
            await self._worker.run(lambda: self._stream(cut, loop), longest + _GRACE)
        except ApiError as error:
            return error.problem(self._monotonic())
        except WorkerHung:
            return ApiError(ApiFault.HUNG).problem(self._monotonic())
        except Exception as error:  # noqa: BLE001 # the edge: a watch may fail in any way, and is begun anew
            return ApiError(ApiFault.FAILED, f"{type(error).__name__}: {error}").problem(self._monotonic())
        finally:
            timer.cancel()
            cut.cut()
        return None

    # --- in the thread ---

    def _stream(self, cut: Cut, loop: asyncio.AbstractEventLoop) -> None:
        connection = Connection(self._library, self._reader.read(), cut, self._timeouts)
        try:
            with connection.lines(self._path(), _MAX_EVENT) as lines:
                for line in lines:
                    event = parse_event(line)
                    self._version = event.version
                    self._lived = True
                    if event.changed and not self._pending:
                        self._pending = True
                        loop.call_soon_threadsafe(self._deliver)
        except ApiError as error:
            if error.fault is ApiFault.GONE:
                self._version = ""
            elif error.fault is ApiFault.UNAUTHORIZED:
                self._reader.forget()
            raise
        finally:
            connection.close()

    def _deliver(self) -> None:
        # First, so that what happens during the call nudges again.
        self._pending = False
        self._nudge()

    def _path(self) -> str:
        query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(self._pace.window)}
        if self._version:
            query["resourceVersion"] = self._version
        return f"{pods_path(self._node)}&{urllib.parse.urlencode(query)}"
