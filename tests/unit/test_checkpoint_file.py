"""The checkpoint as a file: plain, whole, bounded, read again when it was bad, remembered while it does not change."""

import errno
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from devward.cluster import checkpoint_file
from devward.cluster.checkpoint import CheckpointReading, Defect, parse_checkpoint
from devward.cluster.checkpoint_file import RETRY_AFTER, CheckpointReader
from devward.cluster.evidence import Doubt
from sim.kubelet_checkpoint import DEFECTS, FILE_NAME, PLACES, RESOURCE, Allocated, document, encoded, hami_response, remove, write
from sim.patience import must_not_block

STAND_IN = Path(__file__).resolve().parents[1] / "sim/kubelet.py"
REGISTERED = {RESOURCE: ("a-0", "b-0")}
needs_non_root = pytest.mark.skipif(os.geteuid() == 0, reason="needs non-root: permissions bind")


def good(*cards: int) -> bytes:
    entries = [Allocated(f"pod-{number}", ("a-0",), hami_response([card])) for number, card in enumerate(cards or (0, 1))]
    return encoded(document(entries, REGISTERED))


def cards_of(reading: CheckpointReading) -> list[set[int] | None]:
    assert reading.doubts == ()
    assert reading.checkpoint is not None
    return [None if entry.allocation.cards is None else set(entry.allocation.cards) for entry in reading.checkpoint.entries]


class Desk:
    """A kubelet's directory, a reader of it, and what happens between two reads."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pauses = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self.now_ns = 0
        self.reader = CheckpointReader(pause=self._pause, now_ns=lambda: self.now_ns)

    def _pause(self) -> None:
        self.pauses += 1
        self.meanwhile()

    def read(self) -> CheckpointReading:
        with must_not_block():
            return self.reader.read(str(self.directory))

    def write(self, data: bytes, age: float = 60) -> None:
        """Write as the kubelet does, so many seconds ago."""
        write(self.directory, data)
        self.now_ns = os.stat(self.directory / FILE_NAME).st_ctime_ns + int(age * 1e9)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_good_checkpoint(desk: Desk) -> None:
    desk.write(good())
    reading = desk.read()
    assert cards_of(reading) == [{0}, {1}]
    assert reading.written_ns == os.stat(desk.directory / FILE_NAME).st_mtime_ns
    assert desk.pauses == 0


def test_a_temporary_file_beside_it_is_nothing(desk: Desk) -> None:
    desk.write(good())
    (desk.directory / ".288934392").write_bytes(b"{")
    assert cards_of(desk.read()) == [{0}, {1}]


# --- places ---


@pytest.mark.parametrize(("code", "case"), [(code, case) for code, cases in PLACES.items() for case in cases])
def test_what_is_no_plain_file_is_not_read(desk: Desk, code: str, case: str) -> None:
    PLACES[code][case](desk.directory, good())
    reading = desk.read()
    assert (reading.checkpoint, reading.defects, desk.pauses) == (None, {code}, 0)


def test_a_directory_that_is_missing(desk: Desk) -> None:
    desk.directory /= "nowhere"
    assert desk.read().defects == {Defect.MISSING}


def test_a_directory_that_is_a_link(desk: Desk, tmp_path: Path) -> None:
    desk.write(good())
    (tmp_path / "link").symlink_to(tmp_path)
    desk.directory = tmp_path / "link"
    # It was resolved before: a link is one that came in between.
    assert desk.read().doubts[0].error in (errno.ELOOP, errno.ENOTDIR)


def test_a_directory_that_is_a_file(desk: Desk, tmp_path: Path) -> None:
    desk.directory = tmp_path / "file"
    desk.directory.write_text("x")
    assert desk.read().doubts == (Doubt(Defect.UNREADABLE, f"{desk.directory}/{FILE_NAME}", errno.ENOTDIR),)


@needs_non_root
def test_a_file_that_may_not_be_read(desk: Desk) -> None:
    desk.write(good())
    (desk.directory / FILE_NAME).chmod(0)
    assert desk.read().doubts == (Doubt(Defect.UNREADABLE, f"{desk.directory}/{FILE_NAME}", errno.EACCES),)


def test_a_disk_that_fails(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.write(good())

    def fails(*_arguments: object, **_settings: object) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(checkpoint_file, "read_file", fails)
    assert (desk.read().doubts[0].error, desk.read().defects) == (errno.EIO, {Defect.UNREADABLE})


def test_a_large_file_is_not_read_to_its_end(desk: Desk) -> None:
    with (desk.directory / FILE_NAME).open("wb") as file:
        file.truncate(1 << 40)
    assert desk.read().defects == {Defect.TOO_LARGE}


# --- bad reads ---


@pytest.mark.parametrize("code", [code for code in DEFECTS if code not in (Defect.NOT_REGISTERED, Defect.TOO_LARGE)])
def test_a_bad_checkpoint_is_read_once_more(desk: Desk, code: str) -> None:
    desk.write(next(iter(DEFECTS[code].values()))(good()))
    reading = desk.read()
    assert (reading.checkpoint, reading.defects, desk.pauses) == (None, {code}, 1)


def test_what_was_bad_and_is_good_at_the_second_read_is_good(desk: Desk) -> None:
    (desk.directory / FILE_NAME).write_bytes(good()[:40])
    desk.meanwhile = lambda: write(desk.directory, good())
    assert (cards_of(desk.read()), desk.pauses) == ([{0}, {1}], 1)


def test_what_is_bad_at_both_reads_is_what_the_second_one_found(desk: Desk) -> None:
    desk.write(b"{")
    desk.meanwhile = lambda: remove(desk.directory)
    assert (desk.read().defects, desk.pauses) == ({Defect.MISSING}, 1)


def test_what_changes_while_it_is_read_is_torn(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.write(good())
    actual = os.read

    def read(descriptor: int, size: int) -> bytes:
        data = actual(descriptor, size)
        # Nobody writes it in place; if somebody does, no part of it counts.
        (desk.directory / FILE_NAME).write_bytes(good(*range(20)))
        return data

    with monkeypatch.context() as patched:
        patched.setattr("devward.cluster.files.os.read", read)
        reading = desk.read()
        assert (reading.checkpoint, reading.defects, desk.pauses) == (None, {Defect.TORN}, 1)
    assert len(cards_of(desk.read())) == 20


def test_nothing_registered_is_not_read_again(desk: Desk) -> None:
    # After a reboot: kubernetes/kubernetes issue 109595
    desk.write(DEFECTS[Defect.NOT_REGISTERED]["no device"](good()))
    reading = desk.read()
    assert (reading.defects, desk.pauses, reading.checkpoint is not None) == ({Defect.NOT_REGISTERED}, 0, True)


def test_a_missing_checkpoint_is_no_empty_one(desk: Desk) -> None:
    # Deleted before a reboot: kubernetes/kubernetes issue 116125
    desk.write(good())
    assert cards_of(desk.read()) == [{0}, {1}]
    remove(desk.directory)
    reading = desk.read()
    assert (reading.checkpoint, reading.defects) == (None, {Defect.MISSING})


def test_the_file_is_never_written(desk: Desk, tmp_path: Path) -> None:
    # kubernetes/kubernetes pull request 86677: what is corrupt stays for who has to find out
    desk.write(b"{")
    before = sorted((entry.name, entry.stat().st_ino, entry.stat().st_mtime_ns) for entry in os.scandir(tmp_path))
    desk.read()
    assert sorted((entry.name, entry.stat().st_ino, entry.stat().st_mtime_ns) for entry in os.scandir(tmp_path)) == before
    assert (tmp_path / FILE_NAME).read_bytes() == b"{"


def test_the_pause_is_a_second(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.write(b"{")
    slept: list[float] = []
    monkeypatch.setattr("devward.cluster.checkpoint_file.time.sleep", slept.append)
    assert CheckpointReader().read(str(desk.directory)).defects == {Defect.NOT_JSON}
    assert slept == [RETRY_AFTER]


# --- remembered ---


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was parsed."""
    seen: list[bytes] = []

    def parse(data: bytes) -> object:
        seen.append(data)
        return parse_checkpoint(data)

    monkeypatch.setattr(checkpoint_file, "parse_checkpoint", parse)
    return seen


def test_what_does_not_change_is_parsed_once(desk: Desk, parsed: list[bytes]) -> None:
    desk.write(good())
    first = desk.read()
    assert desk.read() is first
    assert len(parsed) == 1
    desk.write(good(3))
    assert (cards_of(desk.read()), len(parsed)) == ([{3}], 2)


def test_what_is_young_may_change_unseen_and_is_not_remembered(desk: Desk, parsed: list[bytes]) -> None:
    desk.write(good(), age=1.9)
    desk.read()
    desk.read()
    assert len(parsed) == 2
    desk.write(good(), age=2)
    desk.read()
    desk.read()
    assert len(parsed) == 3


def test_a_clock_that_was_set_back_remembers_nothing(desk: Desk, parsed: list[bytes]) -> None:
    desk.write(good(), age=-3600)
    desk.read()
    desk.read()
    assert len(parsed) == 2


def test_the_same_size_and_time_in_another_file_are_read(desk: Desk) -> None:
    desk.write(good(3))
    facts = os.stat(desk.directory / FILE_NAME)
    assert cards_of(desk.read()) == [{3}]
    # The checksum may have a digit more.
    other = next(card for card in range(4, 10) if len(good(card)) == len(good(3)))
    write(desk.directory, good(other))
    os.utime(desk.directory / FILE_NAME, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert cards_of(desk.read()) == [{other}]


def test_what_was_bad_and_did_not_change_costs_no_second_look(desk: Desk, parsed: list[bytes]) -> None:
    desk.write(b"{")
    assert desk.read().defects == {Defect.NOT_JSON}
    assert (desk.pauses, len(parsed)) == (1, 1)
    assert desk.read().defects == {Defect.NOT_JSON}
    assert (desk.pauses, len(parsed)) == (1, 1)
    desk.write(good())
    assert cards_of(desk.read()) == [{0}, {1}]


def test_nothing_is_remembered_of_a_file_that_is_gone(desk: Desk) -> None:
    desk.write(good())
    desk.read()
    moved = desk.directory / "moved"
    (desk.directory / FILE_NAME).rename(moved)
    assert desk.read().defects == {Defect.MISSING}
    moved.rename(desk.directory / FILE_NAME)
    assert cards_of(desk.read()) == [{0}, {1}]


def test_a_kubelet_that_writes_all_the_time_is_always_read_whole(desk: Desk) -> None:
    stop = threading.Event()
    dice = random.Random(1)
    write(desk.directory, good(*range(3)))

    def writes() -> None:
        while not stop.is_set():
            write(desk.directory, good(*range(dice.randrange(3, 40))))

    writer = threading.Thread(target=writes)
    writer.start()
    try:
        for _ in range(200):
            cards = cards_of(desk.read())
            assert cards == [{card} for card in range(len(cards))]
    finally:
        stop.set()
        writer.join()
    assert desk.pauses == 0


# --- the stand-in by hand ---


def stand_in(directory: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, str(STAND_IN), "--directory", str(directory), *arguments], check=True)


ARGUMENTS = (
    "--entry",
    f"uid-1/main/{RESOURCE}=3:vir05_1c_8g",
    "--entry",
    f"uid-2/main/{RESOURCE}=0,1",
    "--register",
    f"{RESOURCE}=a-0,b-0",
)


@pytest.mark.parametrize("form", ["by-numa-node", "list"])
def test_the_stand_in_writes_good_checkpoints(desk: Desk, form: str) -> None:
    stand_in(desk.directory, *ARGUMENTS, "--form", form)
    reading = desk.read()
    assert reading.checkpoint is not None
    assert reading.checkpoint.form == form
    found = {entry.pod_uid: (entry.allocation.cards, entry.allocation.template) for entry in reading.checkpoint.entries}
    assert found == {"uid-1": ({3}, "vir05_1c_8g"), "uid-2": ({0, 1}, "")}
    assert [entry.name for entry in os.scandir(desk.directory)] == [FILE_NAME]
    assert os.stat(desk.directory / FILE_NAME).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("defect", ["checkpoint-checksum", "checkpoint-not-json:zeros", "checkpoint-not-a-file:fifo", "checkpoint-missing"])
def test_the_stand_in_writes_bad_ones(desk: Desk, defect: str) -> None:
    stand_in(desk.directory, *ARGUMENTS)
    stand_in(desk.directory, *ARGUMENTS, "--defect", defect)
    assert desk.read().defects == {defect.partition(":")[0]}


def test_the_stand_in_explains_itself() -> None:
    done = subprocess.run([sys.executable, str(STAND_IN), "--help"], check=True, capture_output=True, text=True)
    for code in [*DEFECTS, *PLACES]:
        assert code in done.stdout
    done = subprocess.run(
        [sys.executable, str(STAND_IN), "--directory", "x", "--defect", "none"], check=False, capture_output=True, text=True
    )
    assert (done.returncode, "no such defect: none" in done.stderr) == (2, True)
