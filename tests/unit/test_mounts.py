"""Changes of the mount table, each in a mount namespace of its own."""

import asyncio
import gc
import os
import time
from pathlib import Path

import pytest

from devward.mounts import MountWatch
from sim.descriptors import open_descriptors, opened_since
from sim.held_time import PATIENCE
from sim.mount_namespace import mount, run_in_mount_namespace, umount

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts")


class Counter:
    """Counts calls, and lets a test wait for the next."""

    def __init__(self) -> None:
        self.calls = 0
        self._called = asyncio.Event()

    def __call__(self) -> None:
        self.calls += 1
        self._called.set()

    async def next(self) -> None:
        """Wait until it was called since the last wait."""
        async with asyncio.timeout(PATIENCE):
            await self._called.wait()
        self._called.clear()


def each_change_calls_back(root: str) -> None:
    directory = os.path.join(root, "directory")
    file = os.path.join(root, "file")
    os.mkdir(directory)
    Path(file).write_text("")

    async def main() -> None:
        counter = Counter()
        watch = MountWatch(counter)
        for _ in range(3):
            for change in (
                ("-t", "tmpfs", "devward-test", directory),
                ("-o", "remount,ro", directory),
                ("-o", "remount,rw", directory),
                ("-o", "remount,bind,ro", directory),
                ("--bind", "/dev/null", file),
            ):
                mount(*change)
                await counter.next()
            for path in (file, directory):
                umount(path)
                await counter.next()
        # A change that came while the last one was answered is not lost either.
        for _ in range(20):
            counter.calls = 0
            mount("-t", "tmpfs", "devward-test", directory)
            umount(directory)
            await counter.next()
        watch.close()

    asyncio.run(main())


@needs_root
def test_mount_remount_and_umount_call_back(tmp_path: Path) -> None:
    run_in_mount_namespace(each_change_calls_back, tmp_path)


def a_burst_is_answered_and_then_there_is_silence(root: str) -> None:
    async def main() -> None:
        counter = Counter()
        watch = MountWatch(counter)
        for _ in range(50):
            mount("-t", "tmpfs", "devward-test", root)
        await counter.next()
        await asyncio.sleep(0.05)
        loop_turns, calls, busy = 0, counter.calls, time.process_time()
        assert 1 <= calls <= 50
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            await asyncio.sleep(0.1)
            loop_turns += 1
        assert counter.calls == calls
        assert loop_turns <= 6
        assert time.process_time() - busy < 0.4, "the loop spins"
        watch.close()

    asyncio.run(main())


@needs_root
def test_a_burst_is_answered_and_the_loop_does_not_spin(tmp_path: Path) -> None:
    run_in_mount_namespace(a_burst_is_answered_and_then_there_is_silence, tmp_path)


def test_idle_calls_nothing_and_does_not_spin() -> None:
    async def main() -> None:
        counter = Counter()
        watch = MountWatch(counter)
        selects = 0
        loop = asyncio.get_running_loop()
        selector = loop._selector  # type: ignore[attr-defined]  # counting turns of the loop has no public way
        select = selector.select

        def counting(timeout: float | None = None) -> object:
            nonlocal selects
            selects += 1
            return select(timeout)

        selector.select = counting
        await asyncio.sleep(0.2)
        watch.close()
        # Others mount things on this host too: each such change costs a turn.
        assert selects <= 5 + 2 * counter.calls

    asyncio.run(main())


def test_close_gives_the_descriptors_back_and_may_come_twice() -> None:
    async def main() -> None:
        # Or some of other tests might go, and ours take their numbers.
        gc.collect()
        before = open_descriptors()
        watch = MountWatch(lambda: None)
        assert len(opened_since(before)) == 2
        watch.close()
        watch.close()
        assert not opened_since(before)

    asyncio.run(main())


def test_a_proc_that_is_not_mounted_raises(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(FileNotFoundError):
            MountWatch(lambda: None, str(tmp_path / "mountinfo"))

    asyncio.run(main())
