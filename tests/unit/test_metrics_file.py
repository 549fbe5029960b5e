"""The metrics file is replaced as a whole, follows no link, and can be read by anybody."""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from devward import metrics_file

FILE = "devward.prom"


@pytest.fixture(name="directory")
def _directory(tmp_path: Path) -> Path:
    made = tmp_path / "textfile"
    made.mkdir(mode=0o755)
    return made


def test_the_file_is_there_alone_and_can_be_read_by_anybody_whatever_the_umask(directory: Path) -> None:
    before = os.umask(0o077)
    try:
        for text in ("a 1\n", "b 2\n"):
            metrics_file.write(str(directory), text)
            assert (directory / FILE).read_text() == text
    finally:
        os.umask(before)
    assert [entry.name for entry in directory.iterdir()] == [FILE]
    assert (directory / FILE).stat().st_mode & 0o777 == 0o644


def test_a_reader_sees_the_whole_old_or_the_whole_new_one(directory: Path) -> None:
    texts = {"a 1\n" * 20_000, "b 2\n" * 30_000}
    odd: list[int] = []
    stop = threading.Event()
    metrics_file.write(str(directory), min(texts))

    def read() -> None:
        while not stop.is_set():
            content = (directory / FILE).read_text()
            if content not in texts:
                odd.append(len(content))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(100):
            for text in texts:
                metrics_file.write(str(directory), text)
    finally:
        stop.set()
        reader.join()
    assert not odd


@pytest.mark.parametrize("name", [FILE, ".devward.devward.prom.tmp"])
@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_stands_in_the_way_is_replaced_and_never_written_through(directory: Path, name: str, kind: str) -> None:
    victim = directory / "victim"
    victim.write_text("kept")
    if kind == "link":
        (directory / name).symlink_to(victim)
    else:
        (directory / name).write_text("old")
    metrics_file.write(str(directory), "a 1\n")
    assert victim.read_text() == "kept"
    assert not (directory / FILE).is_symlink()
    assert {entry.name for entry in directory.iterdir()} == {FILE, "victim"}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics_file.write(str(directory), "a 1\n")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(metrics_file.os, "rename", full)
    with pytest.raises(OSError, match="No space"):
        metrics_file.write(str(directory), "b 2\n")
    assert [entry.name for entry in directory.iterdir()] == [FILE]
    assert (directory / FILE).read_text() == "a 1\n"


def test_in_a_directory_of_somebody_else_nothing_is_written_but_the_file(directory: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: to give a directory away")
    os.chown(directory, 65534, 65534)
    metrics_file.write(str(directory), "a 1\n")
    assert (directory / FILE).stat().st_uid == 0


@pytest.mark.parametrize("name", [FILE, ".devward.devward.prom.tmp"])
def test_a_directory_in_the_way_is_an_error(directory: Path, name: str) -> None:
    (directory / name).mkdir()
    with pytest.raises(OSError, match="directory"):
        metrics_file.write(str(directory), "a 1\n")
    assert [entry.name for entry in directory.iterdir()] == [name]


def test_a_directory_that_is_not_there_is_an_error(directory: Path) -> None:
    with pytest.raises(FileNotFoundError):
        metrics_file.write(str(directory / "none"), "a 1\n")


def test_switched_off_it_is_gone(directory: Path) -> None:
    (directory / "other.prom").write_text("x 1\n")
    metrics_file.write(str(directory), "a 1\n")
    for found in (True, False):
        assert metrics_file.remove(str(directory)) is found
        assert [entry.name for entry in directory.iterdir()] == ["other.prom"]


def test_where_there_is_no_file_nothing_is_to_be_removed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not metrics_file.remove(str(directory / "none"))

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    # Linux says that of a file that is not there, too.
    monkeypatch.setattr(metrics_file.os, "unlink", read_only)
    assert not metrics_file.remove(str(directory))


@pytest.mark.parametrize("part", ["textfile", "above"])
def test_no_link_on_the_way_is_followed(directory: Path, tmp_path: Path, part: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "textfile").mkdir(parents=True)
    (elsewhere / "textfile" / FILE).write_text("kept")
    if part == "textfile":
        directory.rmdir()
        directory.symlink_to(elsewhere / "textfile")
        path = str(directory)
    else:
        (tmp_path / "above").symlink_to(elsewhere)
        path = str(tmp_path / "above" / "textfile")
    for act in (lambda: metrics_file.write(path, "a 1\n"), lambda: metrics_file.remove(path)):
        with pytest.raises(NotADirectoryError, match="symbolic link, which is not followed"):
            act()
    assert [(entry.name, entry.read_text()) for entry in (elsewhere / "textfile").iterdir()] == [(FILE, "kept")]


@pytest.mark.parametrize("put", [os.symlink, os.link])
def test_a_link_that_is_put_there_at_the_last_moment_is_not_written_through(
    directory: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[Path, Path], None]
) -> None:
    victim = directory / "victim"
    victim.write_text("kept")
    unlink = os.unlink

    def then_put(name: str, *, dir_fd: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            unlink(name, dir_fd=dir_fd)
        put(victim, directory / name)

    monkeypatch.setattr(metrics_file.os, "unlink", then_put)
    with pytest.raises(FileExistsError):
        metrics_file.write(str(directory), "a 1\n")
    monkeypatch.undo()
    assert victim.read_text() == "kept"
    assert not (directory / FILE).exists()
