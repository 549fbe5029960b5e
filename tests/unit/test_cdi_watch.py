"""Every change of an owned file, of what leads to it and of what engines read is noticed; our own temporary files are not."""

import asyncio
import os
import resource
import shutil
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from devward.cdi import store
from devward.cdi.watch import DirectoryWatch, Touched
from devward.inotify import Event, Inotify, Mask
from sim.held_time import HeldTimeLoop, run_held

FILE = "hyperlight.dev-hypervisor.json"
OTHER = "nvidia.yaml"


class Lookout:
    """A watch on an owned directory and one that engines read too, and what it told."""

    def __init__(self, base: Path, *, cdi: str = "etc/cdi", others: tuple[str, ...] = ("run/cdi",)) -> None:
        self.base = base
        self.cdi = base / cdi
        self.path = self.cdi / FILE
        self.told: list[Touched] = []
        directories = (str(self.cdi), *(str(base / other) for other in others))
        self.watch = DirectoryWatch(frozenset({str(self.path)}), directories, self.told.append)

    async def after(self, act: Callable[[], object]) -> tuple[bool, bool]:
        """Return what an act made the watch tell: whether anything, and whether of others than the owned file."""
        await self.turn()
        self.told.clear()
        act()
        await self.turn()
        return bool(self.told), Touched.OTHERS in self.told

    async def turn(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0.0)

    def watched(self) -> int:
        """How many watches the kernel keeps for the instance."""
        lines = Path(f"/proc/self/fdinfo/{self.watch._inotify._fd}").read_text().splitlines()
        return sum(line.startswith("inotify ") for line in lines)


def watching(base: Path, main: Callable[[Lookout], Coroutine[Any, Any, None]], *, make: bool = True, **layout: Any) -> None:
    async def enter(_loop: HeldTimeLoop) -> None:
        lookout = Lookout(base, **layout)
        if make:
            lookout.cdi.mkdir(parents=True)
            (base / "run" / "cdi").mkdir(parents=True, exist_ok=True)
        lookout.watch.rearm()
        try:
            await main(lookout)
        finally:
            lookout.watch.close()

    run_held(enter)


def _replace(path: Path) -> None:
    (path.parent / ".x").write_text("new")
    (path.parent / ".x").rename(path)


def _append(path: Path) -> None:
    with path.open("a") as file:
        file.write("x")


ACTS: dict[str, Callable[[Path], object]] = {
    "write": lambda path: path.write_text("changed"),
    "append": _append,
    "truncate": lambda path: os.truncate(path, 0),
    "chmod": lambda path: path.chmod(0o600),
    "touch": os.utime,
    "link": lambda path: os.link(path, path.parent.parent / "second"),
    "delete": lambda path: path.unlink(),
    "rename away": lambda path: path.rename(path.parent.parent / "away"),
    "rename over": _replace,
}


@pytest.mark.parametrize("act", ACTS)
def test_every_change_of_an_owned_file_is_told_of(tmp_path: Path, act: str) -> None:
    async def main(lookout: Lookout) -> None:
        lookout.path.write_text("content")
        lookout.watch.rearm()
        told, _ = await lookout.after(lambda: ACTS[act](lookout.path))
        assert told

    watching(tmp_path, main)


@pytest.mark.parametrize("act", ["write", "delete", "rename over"])
@pytest.mark.parametrize("where", ["etc/cdi", "run/cdi"])
@pytest.mark.parametrize("name", [OTHER, "z.json", ".hidden.json"])
def test_every_change_of_another_spec_is_told_of_as_such(tmp_path: Path, name: str, where: str, act: str) -> None:
    async def main(lookout: Lookout) -> None:
        path = tmp_path / where / name
        assert await lookout.after(lambda: path.write_text("content")) == (True, True)
        assert await lookout.after(lambda: ACTS[act](path)) == (True, True)

    watching(tmp_path, main)


def test_a_file_of_the_owned_name_in_another_directory_is_another_spec(tmp_path: Path) -> None:
    async def main(lookout: Lookout) -> None:
        assert await lookout.after(lambda: (tmp_path / "run" / "cdi" / FILE).write_text("x")) == (True, True)

    watching(tmp_path, main)


@pytest.mark.parametrize(
    "name", ["notes.txt", "x.yml", "x.json.bak", f".devward.{FILE}.0123456789abcdef.tmp", ".devward.x.json", FILE + "~"]
)
def test_what_engines_do_not_read_is_of_no_interest(tmp_path: Path, name: str) -> None:
    async def main(lookout: Lookout) -> None:
        path = lookout.cdi / name
        for act in (path.touch, lambda: path.write_text("x"), lambda: path.chmod(0o600), path.unlink, path.mkdir):
            assert await lookout.after(act) == (False, False)

    watching(tmp_path, main)


def test_a_second_name_elsewhere_and_a_write_through_it_are_told_of(tmp_path: Path) -> None:
    async def main(lookout: Lookout) -> None:
        lookout.path.write_text("content")
        lookout.watch.rearm()
        assert (await lookout.after(lambda: os.link(lookout.path, tmp_path / "second")))[0]
        assert (await lookout.after(lambda: (tmp_path / "second").write_text("through the other name")))[0]

    watching(tmp_path, main)


def test_a_write_of_the_store_ends_in_events_of_the_owned_file_only(tmp_path: Path) -> None:
    async def main(lookout: Lookout) -> None:
        for _ in range(2):
            assert await lookout.after(lambda: store.write(str(lookout.cdi), FILE, b"content")) == (True, False)
            lookout.watch.rearm()
        assert await lookout.after(lambda: store.look(str(lookout.cdi), FILE)) == (False, False), "reading is no event"
        assert await lookout.after(lambda: store.fresh_label(str(lookout.cdi), FILE)) == (False, False)

    watching(tmp_path, main)


# --- the directories ---------------------------------------------------------------------------------------------------------
def test_what_happens_to_the_directory_concerns_everything(tmp_path: Path) -> None:
    async def main(lookout: Lookout) -> None:
        for act in (
            lambda: lookout.cdi.chmod(0o777),
            lambda: shutil.rmtree(lookout.cdi),
            lookout.cdi.mkdir,
            lambda: (lookout.watch.rearm(), lookout.cdi.rename(tmp_path / "away"))[0],
            lambda: lookout.cdi.symlink_to(tmp_path / "away"),
            lookout.cdi.unlink,
            lambda: (tmp_path / "away").rename(lookout.cdi),
        ):
            assert await lookout.after(act) == (True, True)
            lookout.watch.rearm()
        assert await lookout.after(lambda: lookout.path.write_text("x")) == (True, False)

    watching(tmp_path, main)


def test_an_engines_directory_that_comes_and_goes_is_noticed(tmp_path: Path) -> None:
    async def main(lookout: Lookout) -> None:
        directory = tmp_path / "run" / "cdi"
        for act in (lambda: shutil.rmtree(directory), directory.mkdir):
            assert await lookout.after(act) == (True, True)
            lookout.watch.rearm()
        assert await lookout.after((directory / OTHER).touch) == (True, True)

    watching(tmp_path, main)


@pytest.mark.parametrize("missing", ["etc/cdi", "one/two/three/cdi"])
def test_a_missing_directory_is_noticed_step_by_step_as_it_comes(tmp_path: Path, missing: str) -> None:
    async def main(lookout: Lookout) -> None:
        path = tmp_path
        for step in missing.split("/"):
            path = path / step
            (path.parent / "unrelated").mkdir(exist_ok=True)
            assert await lookout.after(lambda path=path: path.mkdir()) == (True, True), path  # type: ignore[misc] # a default argument
            lookout.watch.rearm()
        assert await lookout.after(lookout.path.touch) == (True, False)

    watching(tmp_path, main, make=False, cdi=missing)


def test_what_else_happens_beside_the_directory_is_of_no_interest(tmp_path: Path) -> None:
    async def main(lookout: Lookout) -> None:
        beside = lookout.cdi.parent
        for act in (
            lambda: (beside / "passwd").write_text("x"),
            lambda: (beside / "x.json").write_text("x"),
            lambda: (beside / FILE).write_text("x"),
            (beside / "other").mkdir,
        ):
            assert await lookout.after(act) == (False, False)

    watching(tmp_path, main)


def test_directories_within_one_another_are_each_watched(tmp_path: Path) -> None:
    async def main(lookout: Lookout) -> None:
        assert await lookout.after((tmp_path / "etc" / "x.json").touch) == (True, True)
        assert await lookout.after(lookout.path.touch) == (True, False)
        assert await lookout.after(lambda: shutil.rmtree(lookout.cdi)) == (True, True)
        lookout.watch.rearm()
        assert await lookout.after(lookout.cdi.mkdir) == (True, True)
        lookout.watch.rearm()
        assert await lookout.after(lookout.path.touch) == (True, False)

    watching(tmp_path, main, others=("etc", "run/cdi"))


def test_two_names_of_one_directory_are_one_watch_named_by_the_owned_one(tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to("etc")

    async def main(lookout: Lookout) -> None:
        assert await lookout.after(lookout.path.touch) == (True, False)
        assert await lookout.after(lambda: lookout.path.write_text("x")) == (True, False)
        assert await lookout.after((lookout.cdi / OTHER).touch) == (True, True)

    watching(tmp_path, main, others=("alias/cdi", "alias"))


def test_a_parent_watch_takes_nothing_from_a_content_watch_of_the_same_directory(tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to("etc")

    async def main(lookout: Lookout) -> None:
        (tmp_path / "etc" / "x.json").touch()
        assert await lookout.after(lambda: (tmp_path / "etc" / "x.json").write_text("modified, not created")) == (True, True)

    watching(tmp_path, main, others=("alias",))


# --- the watches themselves -----------------------------------------------------------------------------------------------------
def test_rearming_keeps_what_stands_and_drops_what_is_gone(tmp_path: Path) -> None:
    async def main(lookout: Lookout) -> None:
        lookout.path.touch()
        lookout.watch.rearm()
        before = lookout.watched()
        for _ in range(50):
            lookout.watch.rearm()
        assert lookout.watched() == before == 5  # the file, two directories, two parents
        for number in range(20):
            lookout.cdi.rename(tmp_path / f"away-{number}")
            lookout.cdi.mkdir()
            lookout.watch.rearm()
        assert lookout.watched() == before - 1

    watching(tmp_path, main)


def test_the_last_words_of_a_dropped_watch_are_ignored(tmp_path: Path) -> None:
    async def main(lookout: Lookout) -> None:
        lookout.cdi.rename(tmp_path / "away")
        lookout.cdi.mkdir()
        lookout.watch.rearm()
        assert await lookout.after((tmp_path / "away" / FILE).touch) == (False, False)

    watching(tmp_path, main)


def test_rearming_from_a_thread_loses_nothing(tmp_path: Path) -> None:
    async def main(lookout: Lookout) -> None:
        for number in range(50):
            thread = threading.Thread(target=lookout.watch.rearm)
            thread.start()
            assert await lookout.after(lambda number=number: lookout.path.write_text(str(number))) == (True, False)  # type: ignore[misc] # a default argument
            thread.join()

    watching(tmp_path, main)


def test_an_overflow_concerns_everything(tmp_path: Path) -> None:
    async def main(lookout: Lookout) -> None:
        lookout.watch._events([Event(-1, Mask.OVERFLOW, "")])
        assert lookout.told == [Touched.OTHERS]

    watching(tmp_path, main)


def test_a_directory_that_cannot_be_watched_is_told_of_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(lookout: Lookout) -> None:
        def full(_self: Inotify, path: str, _mask: Mask) -> int:
            raise OSError(28, "No space left on device", path)

        with monkeypatch.context() as patch:
            patch.setattr(Inotify, "add_watch", full)
            lookout.watch.rearm()
            lookout.watch.rearm()
        assert caplog.text.count("cannot be watched") == 1
        assert await lookout.after(lookout.path.touch) == (False, False)
        lookout.watch.rearm()
        assert await lookout.after(lambda: lookout.path.write_text("x")) == (True, False)

    watching(tmp_path, main)


def test_without_a_descriptor_the_constructor_says_so(tmp_path: Path) -> None:
    async def main(_loop: HeldTimeLoop) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.open("/", os.O_PATH)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                Lookout(tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    run_held(main)


def test_after_close_nothing_is_told_and_rearming_harms_nobody(tmp_path: Path) -> None:
    async def main(lookout: Lookout) -> None:
        lookout.watch.close()
        assert await lookout.after(lookout.path.touch) == (False, False)
        lookout.watch.rearm()
        lookout.watch.close()

    watching(tmp_path, main)
