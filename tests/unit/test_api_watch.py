"""The watch on Pods: it nudges, comes back after everything that may happen to it, and takes its time for that."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.cluster.api import ApiSettings
from devward.cluster.api_library import Library
from devward.cluster.api_result import ApiError, ApiFault
from devward.cluster.watch import Event, Pace, PodWatch, parse_event
from sim.api_faults import FAULTS, too_many
from sim.api_pki import Authority, write_identity, write_kubeconfig
from sim.api_server import ApiServer
from sim.recorded_cluster import NODE, body

PATIENCE = 60.0
LIBRARY = Library()
AUTHORITY = Authority()
SERVER = AUTHORITY.server()
CLIENT = AUTHORITY.client()
RECORDED = body("02-watch-stream.jsonl").splitlines()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(authority=AUTHORITY, server=SERVER) as stand_in:
        yield stand_in


class Watched:
    def __init__(self, server: ApiServer, directory: Path, pace: Pace) -> None:
        link = str(write_identity(directory, CLIENT))
        user = {"client-certificate": link, "client-key": link}
        path = write_kubeconfig(directory / "k", server.url, AUTHORITY.certificate, user)
        self.nudges = 0
        self.on_loop = True
        self._thread = threading.get_ident()
        self.watch = PodWatch(
            ApiSettings(str(path)),
            NODE,
            self._nudge,
            monotonic=time.monotonic,
            realtime_usec=lambda: time.time_ns() // 1000,
            library=LIBRARY,
            pace=pace,
        )

    def _nudge(self) -> None:
        self.nudges += 1
        self.on_loop &= threading.get_ident() == self._thread

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 # a thread makes it true
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def watching(server: ApiServer, directory: Path, pace: Pace | None = None) -> AsyncIterator[Watched]:
    watched = Watched(server, directory, pace or Pace(window=30, first=0.01, most=0.05))
    task = asyncio.create_task(watched.watch.run())
    try:
        yield watched
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(task, PATIENCE)
        assert watched.on_loop


def event(kind: str, version: str) -> bytes:
    return json.dumps({"type": kind, "object": {"kind": "Pod", "metadata": {"resourceVersion": version}}}).encode()


def test_a_change_nudges(server: ApiServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching(server, tmp_path) as watched:
            changes = 0
            for line in RECORDED:
                changes += parse_event(line).changed
                server.push(line)
                await watched.until(lambda changes=changes: watched.nudges >= changes)
            assert watched.nudges == changes > 0
            request = server.asked("watch")[0]
            assert request.query["fieldSelector"] == ["spec.nodeName=lab"]
            assert request.query["timeoutSeconds"] == ["30"]
            assert "resourceVersion" not in request.query
            assert {asked.method for asked in server.requests} == {"GET"}

    asyncio.run(scenario())


def test_a_burst_is_not_a_nudge_each(server: ApiServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching(server, tmp_path) as watched:
            server.push(event("ADDED", "1"))
            await watched.until(lambda: watched.nudges)
            server.push(*(event("MODIFIED", str(number)) for number in range(2, 2000)))
            # The loop is held up: what happens meanwhile is one nudge.
            end = time.monotonic() + PATIENCE
            while server.events and time.monotonic() < end:
                time.sleep(0.01)  # noqa: ASYNC251 # on purpose
            before = watched.nudges
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert watched.nudges <= before + 1

    asyncio.run(scenario())


def test_a_bookmark_is_where_it_goes_on_and_no_nudge(server: ApiServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching(server, tmp_path) as watched:
            server.push(event("BOOKMARK", "77"), None)
            await watched.until(lambda: len(server.asked("watch")) == 2)
            assert server.asked("watch")[1].query["resourceVersion"] == ["77"]
            assert watched.nudges == 0
            assert watched.watch.problem is None

    asyncio.run(scenario())


@pytest.mark.parametrize("as_event", [True, False])
def test_a_version_that_is_gone_is_forgotten(server: ApiServer, tmp_path: Path, as_event: bool) -> None:
    async def scenario() -> None:
        async with watching(server, tmp_path) as watched:
            if as_event:
                gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
                server.push(event("ADDED", "77"), json.dumps(gone).encode(), None)
                expected: list[list[str] | None] = [None, None]
            else:
                server.next("watch", "good", "gone")
                server.push(event("ADDED", "77"), None)
                expected = [None, ["77"], None]
            await watched.until(lambda: len(server.asked("watch")) >= len(expected))
            assert [request.query.get("resourceVersion") for request in server.asked("watch")][: len(expected)] == expected

    asyncio.run(scenario())


@pytest.mark.parametrize("name", [name for name in FAULTS if not name.startswith(("hang", "trickle", "too-many", "unavailable"))])
def test_it_comes_back_after_everything(server: ApiServer, tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        server.next("watch", name)
        async with watching(server, tmp_path) as watched:
            server.push(event("ADDED", "1"))
            await watched.until(lambda: watched.nudges)

    asyncio.run(scenario())


@pytest.mark.parametrize("line", [b"no json", b"{}", b"[]", b'{"type":"ADDED","object":{}}', b"\xff"])
def test_it_comes_back_after_a_line_that_is_no_event(server: ApiServer, tmp_path: Path, line: bytes) -> None:
    async def scenario() -> None:
        async with watching(server, tmp_path) as watched:
            # The stand-in learns that nobody reads any more with what it sends then.
            server.push(line)
            await watched.until(lambda: watched.watch.problem is not None and watched.watch.problem.fault is ApiFault.WRONG_TYPE)
            server.push(*(event("ADDED", str(number)) for number in range(1, 100)))
            await watched.until(lambda: watched.nudges)

    asyncio.run(scenario())


def test_a_watch_that_hangs_ends_when_it_is_cancelled(server: ApiServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        server.always("watch", "hang-before")
        async with watching(server, tmp_path, Pace(window=3600)) as watched:
            await watched.until(lambda: server.requests)
            thread = watched.watch._worker._thread
        assert thread is not None
        await asyncio.to_thread(thread.join, PATIENCE)
        assert not thread.is_alive()

    asyncio.run(scenario())


def test_it_is_left_alone_for_as_long_as_the_server_says(server: ApiServer, tmp_path: Path) -> None:
    asked_for: list[float] = []

    class Kept(Pace):
        def wait(self, failures: int, seconds: float, dice: Callable[[], float]) -> float:
            asked_for.append(seconds)
            return 3600.0

    async def scenario() -> None:
        server.always("watch", too_many("200"))
        async with watching(server, tmp_path, Kept()) as watched:
            await watched.until(lambda: asked_for)
        assert 190 < asked_for[0] <= 200

    asyncio.run(scenario())


@given(st.integers(0, 10**6), st.floats(0, 10**9), st.floats(0, 1, exclude_max=True))
def test_the_pace_is_bounded(failures: int, asked_for: float, dice: float) -> None:
    pace = Pace()
    waited = pace.wait(failures, asked_for, lambda: dice)
    assert pace.first / 2 <= waited <= 300
    assert waited >= min(asked_for, 300)
    assert pace.wait(failures + 1, 0, lambda: 0.0) >= pace.wait(failures, 0, lambda: 0.0)


@given(st.binary(max_size=60))
def test_no_line_is_too_odd(line: bytes) -> None:
    with pytest.raises(ApiError):
        parse_event(line)


def test_recorded_lines_are_events() -> None:
    assert all(parse_event(line).version for line in RECORDED)
    assert parse_event(event("BOOKMARK", "5")) == Event(changed=False, version="5")
