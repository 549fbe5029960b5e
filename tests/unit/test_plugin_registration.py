"""The order in which a registration is made and given back, with stand-ins for server and kubelet that keep a record."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from devward.breakages import Breakages
from devward.clock import Clock
from devward.plugin import place, registration, sessions
from devward.plugin.place import PlaceError
from devward.plugin.registration import Means, Registration
from devward.plugin.settings import PluginSettings
from devward.plugin.status import PluginProblem, RegistrationState
from sim.held_time import PATIENCE, until


class Desk:
    """A registration over a directory in which a socket is the kubelet's."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log: list[str] = []
        self.streams = 1
        self.failure: Exception | None = None
        self.start_failure: Exception | None = None
        self.stop_failure: Exception | None = None
        self.thread = threading.get_ident()
        self._servers = 0
        means = Means(
            make_server=self._make_server,
            register=self._register,
            streams=lambda: self.streams,
            is_known=lambda: True,
            has_foreign_ids=lambda: False,
        )
        self.registration = Registration(PluginSettings(directory=str(directory)), means, Clock(), lambda: None, Breakages())

    def restart_kubelet(self) -> None:
        """Remove every socket and make another one of the kubelet's, as it does; nobody ever connects to it here."""
        for name in self.directory.glob("*.sock"):
            name.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(self.directory / "kubelet.sock"))

    def _make_server(self) -> "Desk.Server":
        self._servers += 1
        return Desk.Server(self, self._servers)

    async def _register(self, _socket: str, _endpoint: str, _deadline: float) -> None:
        self.log.append(f"register {self._servers}")
        if self.failure is not None:
            raise self.failure

    class Server:
        def __init__(self, desk: "Desk", number: int) -> None:
            self._desk, self._number = desk, number
            self._path = ""

        def bind(self, path: str) -> None:
            assert threading.get_ident() != self._desk.thread, "it may hang in the file system"
            self._path = path
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path)

        async def start(self) -> None:
            self._desk.log.append(f"start {self._number}")
            if self._desk.start_failure is not None:
                raise self._desk.start_failure

        async def stop(self) -> None:
            self._desk.log.append(f"stop {self._number}")
            if os.path.lexists(self._path):  # noqa: ASYNC240 # what is asked is what the loop's thread would find there
                self._desk.log.append("gRPC removes the socket on the event loop")
            if self._desk.stop_failure is not None:
                raise self._desk.stop_failure


def run(tmp_path: Path, main: Callable[[Desk], Coroutine[Any, Any, None]]) -> list[str]:
    """Run a registration beside a test, and return the record of both."""

    async def enter() -> list[str]:
        directory = tmp_path / "dp"
        directory.mkdir(mode=0o750)
        desk = Desk(directory)
        desk.restart_kubelet()
        task = asyncio.ensure_future(desk.registration.run())
        try:
            await main(desk)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        assert desk.registration.standing.state is RegistrationState.STOPPED
        return desk.log

    return asyncio.run(enter())


@pytest.fixture(autouse=True)
def _pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "SEARCH", 0.05)
    monkeypatch.setattr(registration, "_LEAST", 0.001)
    # That a slow machine gives nothing up, which would be on record too.
    monkeypatch.setattr(registration, "_FILE_DEADLINE", PATIENCE)
    monkeypatch.setattr(sessions, "FIRST_WAIT", 0.01)


def test_a_server_is_there_before_the_kubelet_is_told_and_the_old_one_is_gone_before_the_new_one_comes(tmp_path: Path) -> None:
    async def main(desk: Desk) -> None:
        for number in (1, 2, 3):
            await until(lambda number=number: desk.registration.registrations == number)  # type: ignore[misc] # bound by the default
            desk.restart_kubelet()

    log = run(tmp_path, main)
    assert log[:8] == ["start 1", "register 1", "stop 1", "start 2", "register 2", "stop 2", "start 3", "register 3"]
    assert log[-1].startswith("stop")
    assert not [name for name in (tmp_path / "dp").iterdir() if name.name.startswith("devward-")]


def test_a_kubelets_socket_that_is_touched_ends_nothing_and_is_known_from_then_on(tmp_path: Path) -> None:
    async def main(desk: Desk) -> None:
        await until(lambda: desk.registration.registrations == 1)
        kubelet = desk.directory / "kubelet.sock"
        kubelet.chmod(0o600)
        touched = kubelet.stat().st_ctime_ns
        await until(lambda: (session := desk.registration._session) is not None and session.kubelet.changed_ns == touched)

    assert run(tmp_path, main) == ["start 1", "register 1", "stop 1"]


@pytest.mark.parametrize("failure", [PlaceError(PluginProblem.KUBELET_SILENT), RuntimeError("a defect")])
def test_a_server_of_a_registration_that_failed_is_stopped(tmp_path: Path, failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def main(desk: Desk) -> None:
        desk.failure = failure
        await until(lambda: desk.registration.failures >= 2)

    assert run(tmp_path, main)[:5] == ["start 1", "register 1", "stop 1", "start 2", "register 2"]
    assert caplog.text.count("Traceback") == (failure.args == ("a defect",)), "what comes again is counted"


def test_a_server_that_made_its_socket_and_does_not_start_leaves_nothing(tmp_path: Path) -> None:
    async def main(desk: Desk) -> None:
        desk.start_failure = PlaceError(PluginProblem.SOCKET_UNUSABLE)
        await until(lambda: desk.registration.failures >= 2)

    assert run(tmp_path, main)[:4] == ["start 1", "stop 1", "start 2", "stop 2"]
    assert [name.name for name in (tmp_path / "dp").iterdir()] == ["kubelet.sock"]


def test_a_server_that_cannot_be_stopped_holds_up_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(desk: Desk) -> None:
        desk.stop_failure = RuntimeError("a defect")
        await until(lambda: desk.registration.registrations == 1)
        desk.restart_kubelet()
        await until(lambda: desk.registration.registrations == 2)

    assert run(tmp_path, main) == ["start 1", "register 1", "stop 1", "start 2", "register 2", "stop 2"]
    assert "a defect" in caplog.text


@pytest.mark.parametrize("problem", [PluginProblem.DIRECTORY_SILENT, PluginProblem.DIRECTORY_UNREADABLE])
def test_a_look_that_shows_nothing_ends_no_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: PluginProblem) -> None:
    looks = 0

    def blind(*_: object) -> None:
        nonlocal looks
        looks += 1
        raise PlaceError(problem)

    async def main(desk: Desk) -> None:
        await until(lambda: desk.registration.registrations == 1)
        with monkeypatch.context() as patch:
            patch.setattr(place, "look", blind)
            desk.registration.nudge()
            await until(lambda: looks >= 3)
            assert desk.registration.standing.state is RegistrationState.REGISTERED
        desk.registration.nudge()

    assert run(tmp_path, main) == ["start 1", "register 1", "stop 1"]


def test_a_look_that_shows_nothing_is_told_while_there_is_no_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(*_: object) -> None:
        raise PlaceError(PluginProblem.DIRECTORY_SILENT)

    monkeypatch.setattr(place, "look", blind)

    async def main(desk: Desk) -> None:
        await until(lambda: desk.registration.standing.problem is PluginProblem.DIRECTORY_SILENT)
        assert desk.registration.standing.state is RegistrationState.FAILED

    assert run(tmp_path, main) == []


def test_a_neighbour_is_no_rival_because_a_kubelet_never_listened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "FIRST_STREAM", 0.05)

    async def main(desk: Desk) -> None:
        desk.streams = 0
        await until(lambda: desk.registration.registrations == 1)
        with socket.socket(socket.AF_UNIX) as neighbour:
            neighbour.bind(str(desk.directory / "other.sock"))
            neighbour.listen()
            await until(lambda: desk.registration.registrations >= 3)
            assert desk.registration.standing.problem is not PluginProblem.TAKEN

    run(tmp_path, main)


def test_a_directory_that_was_replaced_is_watched_instead_of_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "SLOW_PASS", 1e6)

    async def main(desk: Desk) -> None:
        await until(lambda: desk.registration.registrations == 1)
        desk.directory.rename(tmp_path / "old")
        desk.directory.mkdir(mode=0o750)
        desk.restart_kubelet()
        await until(lambda: desk.registration.registrations == 2)
        desk.restart_kubelet()
        await until(lambda: desk.registration.registrations == 3)

    run(tmp_path, main)
