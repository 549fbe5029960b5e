"""Files of other programs: plain ones, whole, and nothing opened that is something else."""

import errno
import os
from pathlib import Path

import pytest

from devward.cluster.files import read_all, read_file, read_start
from sim.patience import must_not_block


def test_a_plain_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100_000)
    assert read_file(str(file), 100_000)[0] == read_all(str(file), 100_000) == b"x" * 100_000
    assert read_start(str(file), 5) == b"xxxxx"
    for read in (read_file, read_all):
        with pytest.raises(OSError, match="longer than") as raised:
            read(str(file), 99_999)
        assert raised.value.errno == errno.EFBIG


@pytest.mark.parametrize("kind", ["fifo", "directory", "link", "missing"])
def test_nothing_else_is_read(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "file"
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    elif kind == "link":
        (tmp_path / "target").write_text("x")
        file.symlink_to("target")
    for read in (read_file, read_all, read_start):
        with must_not_block(), pytest.raises(OSError, match=r"not a regular file|Too many levels|No such file"):
            read(str(file), 10)


def test_what_is_no_plain_file_is_not_even_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")

    def opened(*_arguments: object, **_settings: object) -> int:
        raise AssertionError("it was opened")

    monkeypatch.setattr("devward.cluster.files.os.open", opened)
    with pytest.raises(OSError, match="not a regular file"):
        read_file(str(tmp_path / "fifo"), 10)


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_what_is_put_in_the_place_of_a_plain_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    actual = os.stat

    def stat(*arguments: object, **settings: object) -> os.stat_result:
        facts = actual(*arguments, **settings)  # type: ignore[arg-type, call-overload]
        file.unlink()
        if kind == "fifo":
            os.mkfifo(file)
        else:
            (tmp_path / "other").write_text("x")
            file.symlink_to("other")
        return facts

    with monkeypatch.context() as patched:
        patched.setattr("devward.cluster.files.os.stat", stat)
        with must_not_block(), pytest.raises(OSError, match=r"not a regular file|Too many levels"):
            read_file(str(file), 10)


def test_what_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    actual = os.read

    def read(descriptor: int, size: int) -> bytes:
        data = actual(descriptor, size)
        file.write_text("after, and longer")
        return data

    with monkeypatch.context() as patched:
        patched.setattr("devward.cluster.files.os.read", read)
        with pytest.raises(OSError, match="changed") as raised:
            read_file(str(file), 100)
    assert raised.value.errno == errno.EAGAIN


def test_a_change_whose_time_is_set_back_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    facts = os.stat(file)
    actual = os.read

    def read(descriptor: int, size: int) -> bytes:
        data = actual(descriptor, size)
        while os.stat(file).st_ctime_ns == facts.st_ctime_ns:
            file.write_text("after!")
            os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        return data

    with monkeypatch.context() as patched:
        patched.setattr("devward.cluster.files.os.read", read)
        with pytest.raises(OSError, match="changed"):
            read_file(str(file), 100)


@pytest.mark.parametrize("also_written", [False, True])
def test_what_is_replaced_while_it_is_read_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, also_written: bool) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    # Times are those of a clock that ticks: the change of a moment ago would look like none.
    os.utime(file, (1_000_000_000, 1_000_000_000))
    actual = os.read

    def read(descriptor: int, size: int) -> bytes:
        data = actual(descriptor, size)
        if also_written:
            file.write_text("after!")
        (tmp_path / "temporary").write_text("after")
        (tmp_path / "temporary").rename(file)
        return data

    with monkeypatch.context() as patched:
        patched.setattr("devward.cluster.files.os.read", read)
        if also_written:
            with pytest.raises(OSError, match="changed"):
                read_file(str(file), 100)
        else:
            assert read_file(str(file), 100)[0] == b"before"
    assert read_file(str(file), 100)[0] == b"after"
