"""The metrics file is kept while it is on, gone once it is off, and never in anybody's way: on real files, with a clock that is turned."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devward import metrics_file
from devward.config import MetricsConfig
from devward.metrics import Measures
from devward.metrics_room import WRITE_SECONDS, MetricsRoom
from devward.reasons import Reason
from sim.held_time import PATIENCE, HeldTimeLoop, run_held, until

OFF_DEFAULT = MetricsConfig()


class Desk:
    """A room with two directories; what is measured is a number that grows with each measurement."""

    def __init__(self, loop: HeldTimeLoop, place: Path) -> None:
        self.loop = loop
        self.here, self.there = place / "here", place / "there"
        self.here.mkdir()
        self.there.mkdir()
        self.on = MetricsConfig(enabled=True, directory=str(self.here), interval=30)
        self.off = replace(self.on, enabled=False)
        self.taken = self.changes = 0
        self.fault: Exception | None = None
        self.room = MetricsRoom(self.off, on_change=self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def measure(self) -> Measures:
        self.taken += 1
        if self.fault is not None:
            raise self.fault
        return Measures(version="1", ready=True, config_good=True, audit_dropped=self.taken)

    def start(self, config: MetricsConfig, *, was_on: bool = False) -> None:
        self.room.configure(config)
        self.room.start(self.measure, was_on=was_on)

    def written(self, directory: Path | None = None) -> int:
        """Return the number in the file; 0 where there is none."""
        file = (directory or self.here) / metrics_file.FILE
        lines = file.read_text().splitlines() if file.exists() else []
        return next((int(line.split()[1]) for line in lines if line.startswith("devward_audit_dropped_total")), 0)

    @property
    def found(self) -> list[tuple[Reason, str, str]]:
        return [(one.code, one.subject, one.text) for one in self.room.findings()]

    async def settle(self) -> None:
        """Let everything happen that is due."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def interval(self, seconds: float = 30) -> None:
        """Let time pass once the room does nothing but wait: longer than for a file system."""
        timers = self.loop._scheduled  # type: ignore[attr-defined] # no public way to see them
        await until(lambda: any(not one.cancelled() and one.when() > self.loop.time() + WRITE_SECONDS for one in timers), "a rest")
        self.loop.advance(seconds)
        await self.settle()


Play = Callable[[Callable[[Desk], Coroutine[Any, Any, None]]], None]


@pytest.fixture(name="play")
def _play(tmp_path: Path) -> Play:
    def play(test: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
        async def main(loop: HeldTimeLoop) -> None:
            desk = Desk(loop, tmp_path)
            try:
                await test(desk)
            finally:
                await desk.room.close()

        run_held(main)

    return play


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "metrics"}


def test_off_is_the_default_and_touches_nothing(play: Play) -> None:
    assert not OFF_DEFAULT.enabled

    async def test(desk: Desk) -> None:
        (desk.here / metrics_file.FILE).write_text("somebody's\n")
        before = threads()
        desk.start(desk.off)
        await desk.settle()
        desk.loop.advance(3600)
        await desk.settle()
        # Those of other tests may have ended meanwhile.
        assert (desk.taken, desk.changes, threads() - before) == (0, 0, set())
        assert (desk.here / metrics_file.FILE).read_text() == "somebody's\n"

    play(test)


def test_on_it_is_written_at_once_and_then_again_and_again(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: str) -> bool:
        raise AssertionError("it is never away, be it for a moment")

    async def test(desk: Desk) -> None:
        monkeypatch.setattr(metrics_file, "remove", gone)
        desk.start(desk.on)
        await until(lambda: desk.written() == 1)
        await desk.interval(24)
        assert desk.taken == 1
        desk.loop.advance(6)
        await until(lambda: desk.written() == 2)
        for number in (3, 4):
            await desk.interval()
            await until(lambda number=number: desk.written() == number)
        desk.room.configure(desk.on)
        await until(lambda: desk.written() == 5, "a reload")
        assert (desk.found, desk.changes) == ([], 0)
        await desk.room.close()
        assert desk.written() == 5, "its age tells that devwardd does not run"

    play(test)


def test_switched_off_or_moved_no_file_is_left(play: Play) -> None:
    async def test(desk: Desk) -> None:
        desk.start(desk.on)
        await until(lambda: desk.written() == 1)
        desk.room.configure(replace(desk.on, directory=str(desk.there)))
        await until(lambda: desk.written(desk.there) == 2)
        assert list(desk.here.iterdir()) == []
        desk.room.configure(replace(desk.off, directory=str(desk.there)))
        await until(lambda: not list(desk.there.iterdir()))
        await desk.settle()
        desk.loop.advance(3600)
        await desk.settle()
        assert desk.taken == 2
        desk.room.configure(desk.on)
        await until(lambda: desk.written() == 3)

    play(test)


def test_a_file_that_an_earlier_run_left_goes_where_it_is_off_by_now(play: Play) -> None:
    async def test(desk: Desk) -> None:
        (desk.here / metrics_file.FILE).write_text("old\n")
        desk.start(desk.off, was_on=True)
        await until(lambda: not list(desk.here.iterdir()))
        await desk.settle()
        assert (desk.taken, desk.found) == (0, [])

    play(test)


def test_what_cannot_be_written_is_told_with_its_reason_until_it_can(play: Play) -> None:
    async def test(desk: Desk) -> None:
        desk.here.rmdir()
        desk.start(desk.on)
        await until(lambda: desk.found)
        file = str(desk.here / metrics_file.FILE)
        assert desk.found == [(Reason.METRICS_UNWRITABLE, file, "The metrics file cannot be written: No such file or directory.")]
        desk.here.symlink_to(desk.there)
        await desk.interval()
        await until(lambda: "symbolic link, which is not followed" in desk.found[0][2])
        assert list(desk.there.iterdir()) == []
        desk.here.unlink()
        desk.here.mkdir()
        await desk.interval()
        await until(desk.written)
        await until(lambda: not desk.found)
        assert desk.changes == 3

    play(test)


def test_what_cannot_be_removed_is_told_and_tried_again(play: Play) -> None:
    async def test(desk: Desk) -> None:
        obstacle = desk.here / metrics_file.FILE
        obstacle.mkdir()
        desk.start(desk.off, was_on=True)
        await until(lambda: desk.found)
        assert "no longer kept and cannot be removed" in desk.found[0][2]
        obstacle.rmdir()
        await desk.interval()
        await until(lambda: not desk.found)

    play(test)


def test_a_file_system_that_hangs_holds_up_nothing_and_no_late_file_is_left(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, opened = threading.Event(), threading.Event()
    write = metrics_file.write

    def hang(directory: str, text: str) -> None:
        entered.set()
        assert opened.wait(PATIENCE)
        write(directory, text)

    async def test(desk: Desk) -> None:
        monkeypatch.setattr(metrics_file, "write", hang)
        desk.start(desk.on)
        await until(entered.is_set)
        desk.loop.advance(WRITE_SECONDS + 0.1)
        await until(lambda: desk.found)
        told = desk.found
        assert told[0][2] == "The metrics file cannot be written: the file system does not answer."
        await desk.interval()
        await until(lambda: desk.taken == 2)
        await desk.settle()
        assert (desk.found, desk.changes) == (told, 1), "the same, in the same words"
        desk.room.configure(desk.off)
        await until(lambda: "cannot be removed" in desk.found[0][2])
        opened.set()
        await until(lambda: not desk.found)
        assert list(desk.here.iterdir()) == []

    try:
        play(test)
    finally:
        opened.set()


def test_a_defect_in_what_is_measured_is_reported_and_tried_again(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def test(desk: Desk) -> None:
        desk.fault = ZeroDivisionError("XYZZY")
        desk.start(desk.on)
        await until(lambda: desk.found)
        assert "a defect of devward" in desk.found[0][2]
        assert "XYZZY" in caplog.text
        for _ in range(5):
            before = desk.taken
            await desk.interval()
            await until(lambda before=before: desk.taken > before)  # type: ignore[misc] # bound by the default
        assert caplog.text.count("XYZZY") == 1, "a defect that comes again is counted"
        desk.fault = None
        await desk.interval()
        await until(desk.written)
        await until(lambda: not desk.found)

    play(test)
