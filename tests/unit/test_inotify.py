"""The inotify binding against the kernel."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from devward.inotify import Event, Inotify, Mask
from sim.descriptors import descriptors_left, open_descriptors, opened_since
from sim.held_time import until

EVERYTHING = (
    Mask.MODIFY
    | Mask.ATTRIB
    | Mask.CLOSE_WRITE
    | Mask.MOVED_FROM
    | Mask.MOVED_TO
    | Mask.CREATE
    | Mask.DELETE
    | Mask.DELETE_SELF
    | Mask.MOVE_SELF
)


class Recorder:
    """Keeps what was reported, batch by batch."""

    def __init__(self) -> None:
        self.batches: list[list[Event]] = []
        self.inotify = Inotify(self.batches.append)

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in batch]

    async def until_named(self, name: str) -> list[Event]:
        """Wait for an event about this name."""
        await until(lambda: any(event.name == name for event in self.events))
        return self.events

    async def settled(self, directory: Path) -> list[Event]:
        """Wait for everything so far: a file made now is reported last."""
        (directory / "the end").write_text("")
        await self.until_named("the end")
        return [event for event in self.events if event.name != "the end"]


@contextlib.asynccontextmanager
async def recorder() -> AsyncIterator[Recorder]:
    made = Recorder()
    try:
        yield made
    finally:
        made.inotify.close()


def test_each_kind_of_event_with_its_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with recorder() as record:
            watch = record.inotify.add_watch(str(tmp_path), EVERYTHING)
            (tmp_path / "one").write_text("x")
            (tmp_path / "one").chmod(0o600)
            (tmp_path / "one").rename(tmp_path / "two")
            (tmp_path / "two").unlink()
            (tmp_path / "deep").mkdir()
            events = await record.settled(tmp_path)
            assert {event.watch for event in events} == {watch}
            seen = [(event.name, Mask(event.mask & EVERYTHING)) for event in events]
            assert seen == [
                ("one", Mask.CREATE),
                ("one", Mask.MODIFY),
                ("one", Mask.CLOSE_WRITE),
                ("one", Mask.ATTRIB),
                ("one", Mask.MOVED_FROM),
                ("two", Mask.MOVED_TO),
                ("two", Mask.DELETE),
                ("deep", Mask.CREATE),
            ]

    asyncio.run(main())


@pytest.mark.parametrize("name", [b"n", b"x" * 15, b"x" * 16, b"x" * 255, b"with space", b"with\nnewline", "ü→".encode(), b"\xff\xfe"])
def test_a_name_of_any_bytes_and_length(tmp_path: Path, name: bytes) -> None:
    """The kernel pads names with NUL to a multiple of the header's size."""

    async def main() -> None:
        async with recorder() as record:
            record.inotify.add_watch(str(tmp_path), Mask.CREATE)
            os.close(os.open(os.fsencode(tmp_path) + b"/" + name, os.O_CREAT | os.O_WRONLY))
            events = await record.settled(tmp_path)
            assert [os.fsencode(event.name) for event in events] == [name]

    asyncio.run(main())


def test_events_of_the_watched_object_itself_have_no_name(tmp_path: Path) -> None:
    async def main() -> None:
        watched = tmp_path / "watched"
        watched.mkdir()
        async with recorder() as record:
            marker = record.inotify.add_watch(str(tmp_path), Mask.CREATE)
            watch = record.inotify.add_watch(str(watched), EVERYTHING)
            watched.rename(tmp_path / "moved")
            (tmp_path / "moved").rmdir()
            events = await record.settled(tmp_path)
            own = [event for event in events if event.watch == watch]
            assert marker != watch
            assert {event.name for event in own} == {""}
            assert own[0].mask & Mask.MOVE_SELF
            assert own[-2].mask & Mask.DELETE_SELF
            assert own[-1].mask & Mask.IGNORED

    asyncio.run(main())


def test_the_same_object_gives_the_same_watch_and_another_another(tmp_path: Path) -> None:
    async def main() -> None:
        directory = tmp_path / "watched"
        directory.mkdir()
        (tmp_path / "link").symlink_to("watched")
        async with recorder() as record:
            watch = record.inotify.add_watch(str(directory), Mask.CREATE)
            assert record.inotify.add_watch(str(directory), Mask.CREATE) == watch
            assert record.inotify.add_watch(str(tmp_path / "link"), Mask.CREATE) == watch
            directory.rename(tmp_path / "old")
            directory.mkdir()
            assert record.inotify.add_watch(str(directory), Mask.CREATE) != watch

    asyncio.run(main())


def test_a_watch_that_was_removed_is_silent_but_for_its_last_word(tmp_path: Path) -> None:
    async def main() -> None:
        directory = tmp_path / "watched"
        directory.mkdir()
        async with recorder() as record:
            record.inotify.add_watch(str(tmp_path), Mask.CREATE)
            watch = record.inotify.add_watch(str(directory), Mask.CREATE)
            record.inotify.remove_watch(watch)
            record.inotify.remove_watch(watch)
            record.inotify.remove_watch(12345)
            (directory / "unseen").write_text("")
            events = await record.settled(tmp_path)
            assert [(event.watch, event.mask & Mask.IGNORED) for event in events] == [(watch, Mask.IGNORED)]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "mask", "number"),
    [
        ("missing", Mask.CREATE, errno.ENOENT),
        ("file", Mask.CREATE | Mask.ONLYDIR, errno.ENOTDIR),
        ("link", Mask.CREATE | Mask.ONLYDIR | Mask.DONT_FOLLOW, errno.ENOTDIR),
        ("link", Mask(0), errno.EINVAL),
    ],
)
def test_what_cannot_be_watched_raises_with_its_path(tmp_path: Path, name: str, mask: Mask, number: int) -> None:
    async def main() -> None:
        (tmp_path / "file").write_text("")
        (tmp_path / "link").symlink_to(".")
        async with recorder() as record:
            with pytest.raises(OSError, match=name) as caught:
                record.inotify.add_watch(str(tmp_path / name), mask)
            assert caught.value.errno == number

    asyncio.run(main())


def test_a_storm_is_read_to_its_end_while_others_have_their_turn(tmp_path: Path) -> None:
    async def main() -> None:
        async with recorder() as record:
            record.inotify.add_watch(str(tmp_path), Mask.CREATE | Mask.DELETE)
            count = 7000
            for number in range(count // 2):
                os.close(os.open(tmp_path / f"{number:050}", os.O_CREAT | os.O_WRONLY))
                os.unlink(tmp_path / f"{number:050}")
            events = await record.settled(tmp_path)
            assert len(events) == count
            assert max(len(batch) for batch in record.batches) < count, "one turn reads a bounded part"

    asyncio.run(main())


def test_a_queue_that_overflows_says_so_and_works_on(tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    names = [os.fsencode(tmp_path / name) for name in ("a", "b")]  # two names in turn: equal events in a row are merged

    async def main() -> None:
        async with recorder() as record:
            record.inotify.add_watch(str(tmp_path), Mask.ATTRIB | Mask.CREATE)
            for name in names:
                os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
            for number in range(limit + 10):
                os.chmod(names[number % 2], 0o600)
            await until(lambda: any(event.mask & Mask.OVERFLOW for event in record.events))
            assert [event for event in record.events if event.mask & Mask.OVERFLOW] == [Event(-1, Mask.OVERFLOW, "")]
            await record.settled(tmp_path)

    asyncio.run(main())


def test_close_ends_everything_and_may_come_twice(tmp_path: Path) -> None:
    async def main() -> None:
        before = open_descriptors()
        async with recorder() as record:
            record.inotify.add_watch(str(tmp_path), Mask.CREATE)
            (tmp_path / "unread").write_text("")
            record.inotify.close()
            record.inotify.close()
            assert not opened_since(before)
            await asyncio.sleep(0)
            assert record.batches == []
            with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
                record.inotify.add_watch(str(tmp_path), Mask.CREATE)

    asyncio.run(main())


def test_a_listener_may_close_it(tmp_path: Path) -> None:
    async def main() -> None:
        seen: list[list[Event]] = []

        def listen(events: list[Event]) -> None:
            seen.append(events)
            inotify.close()

        inotify = Inotify(listen)
        inotify.add_watch(str(tmp_path), Mask.CREATE)
        (tmp_path / "one").write_text("")
        await until(lambda: seen)
        (tmp_path / "two").write_text("")
        await asyncio.sleep(0)
        assert len(seen) == 1

    asyncio.run(main())


def test_an_instance_that_cannot_be_had_raises() -> None:
    async def main() -> None:
        Inotify(lambda events: None).close()  # so that what is loaded once is loaded
        with descriptors_left(0), pytest.raises(OSError, match="inotify_init1") as caught:
            Inotify(lambda events: None)
        assert caught.value.errno == errno.EMFILE

    asyncio.run(main())
