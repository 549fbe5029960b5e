"""The state directory: atomic, versioned, never destroying; backups bounded; one daemon at a time."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward import directory, names
from devward.errors import AlreadyRunning, DevwardError, StateError
from devward.model import MAXIMUM_PIN_REASON, MAXIMUM_PINS, CdiMode, Pin, ReclaimMode
from devward.state import BACKUP_BYTES, BACKUPS_PER_NAME, DAMAGED_KEPT, DIGESTS, Loaded, Lock, Pause, State, StateStore

USEC = 1_700_000_000_123_456
DIE = "0A1B2C3D-00000001-00000002-00000003-FFFFFFFF"
PIN = Pin(f"{DIE}/100/vir05_1c_16g", "a training that must not die é", 1000, USEC, "0123456789abcdef")
CARD_PIN = Pin(DIE, "a card of its own", 0, USEC + 1)
FULL = State(
    {"/etc/cdi/x.json": ("a" * 64, "b" * 64)},
    CdiMode.OBSERVE,
    Pause(USEC, "maintenance é\n", 1000),
    (PIN, CARD_PIN),
    ReclaimMode.OFF,
    Pause(USEC + 5, "a new rack é\n", 7),
    pins_in_doubt=True,
)
#: What is left of a file of which nothing could be read.
LOST = State(pins_in_doubt=True)
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives files to another user")


class Clock:
    """A clock that moves a microsecond at each look."""

    def __init__(self) -> None:
        self.usec = USEC

    def __call__(self) -> int:
        self.usec += 1
        return self.usec


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture(name="store")
def _store(place: Path) -> StateStore:
    return StateStore(str(place), realtime_usec=Clock())


def put(place: Path, content: object) -> None:
    """Write the state file as somebody else would."""
    place.mkdir(mode=0o700, exist_ok=True)
    (place / names.STATE_FILE).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def entries(place: Path) -> list[str]:
    return sorted(os.listdir(place))


PAUSES = st.none() | st.builds(Pause, st.integers(0, (1 << 63) - 1), st.text(), st.integers(0, (1 << 32) - 1))


# --- load and save ---------------------------------------------------------------------------------------------------
def test_a_first_start_is_empty_and_no_problem(store: StateStore, place: Path) -> None:
    loaded = store.load()
    assert loaded.state == State()
    assert loaded.problem is None
    assert place.stat().st_mode & 0o777 == 0o700
    assert entries(place) == []


def test_what_was_saved_is_loaded_by_the_next_start(store: StateStore, place: Path) -> None:
    assert store.save(FULL)
    again = StateStore(str(place), realtime_usec=Clock()).load()
    assert again.state == FULL
    assert again.problem is None
    assert entries(place) == [names.STATE_FILE]
    assert (place / names.STATE_FILE).stat().st_mode & 0o7777 == 0o600


@given(
    digests=st.dictionaries(
        st.text(st.characters(blacklist_categories=("Cs",))).map(lambda text: "/" + text),
        st.lists(st.binary(max_size=4).map(lambda data: hashlib.sha256(data).hexdigest()), max_size=DIGESTS).map(tuple),
        max_size=4,
    ),
    mode=st.none() | st.sampled_from(CdiMode),
    pause=PAUSES,
    reclaim_mode=st.none() | st.sampled_from(ReclaimMode),
    reclaim_pause=PAUSES,
    in_doubt=st.booleans(),
)
def test_any_state_survives(
    tmp_path_factory: pytest.TempPathFactory,
    digests: dict[str, tuple[str, ...]],
    mode: CdiMode | None,
    pause: Pause | None,
    reclaim_mode: ReclaimMode | None,
    reclaim_pause: Pause | None,
    in_doubt: bool,
) -> None:
    place = str(tmp_path_factory.mktemp("state"))
    state = State(digests, mode, pause, (), reclaim_mode, reclaim_pause, in_doubt)
    StateStore(place, realtime_usec=Clock()).save(state)
    assert StateStore(place, realtime_usec=Clock()).load().state == state


def test_a_file_name_that_is_no_text_survives(store: StateStore, place: Path) -> None:
    state = State().with_digest(os.fsdecode(b"/etc/cdi/\xff.json"), "a" * 64)
    store.save(state)
    assert StateStore(str(place), realtime_usec=Clock()).load().state == state


def test_equal_content_is_not_written_again(store: StateStore, place: Path) -> None:
    assert store.save(FULL)
    before = (place / names.STATE_FILE).stat()
    assert not store.save(dataclasses.replace(FULL))
    after = (place / names.STATE_FILE).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert store.save(State())
    assert (place / names.STATE_FILE).stat().st_ino != before.st_ino, "replaced by rename, not written in place"


def test_digests_are_the_newest_eight_newest_last() -> None:
    state = State()
    digests = [hashlib.sha256(bytes([number])).hexdigest() for number in range(DIGESTS + 3)]
    for digest in digests:
        state = state.with_digest("/a", digest)
    assert state.digests["/a"] == tuple(digests[-DIGESTS:])
    state = state.with_digest("/a", digests[-3])
    assert state.digests["/a"][-2:] == (digests[-1], digests[-3])
    assert len(state.digests["/a"]) == DIGESTS
    assert State().with_digest("/a", digests[0]).with_digest("/b", digests[1]).digests == {"/a": (digests[0],), "/b": (digests[1],)}


# --- versions --------------------------------------------------------------------------------------------------------
def test_what_a_newer_minor_version_wrote_is_kept(store: StateStore, place: Path) -> None:
    put(place, {"major": 1, "minor": 7, "digests": {}, "cdi_mode": "off", "cdi_pause": None, "guests": ["a"], "future": {"x": 1}})
    loaded = store.load()
    assert loaded.problem is None
    assert loaded.state.cdi_mode is CdiMode.OFF
    assert store.save(FULL)
    document = json.loads((place / names.STATE_FILE).read_bytes())
    assert document["guests"] == ["a"]
    assert document["future"] == {"x": 1}
    assert (document["major"], document["minor"]) == (1, 7)
    assert document["cdi_mode"] == "observe"


def test_a_newer_major_version_is_set_aside_and_reported(store: StateStore, place: Path) -> None:
    content = {"major": 2, "minor": 0, "digests": {"/x": ["a" * 64]}, "cdi_mode": "off"}
    put(place, content)
    loaded = store.load()
    assert loaded.state == LOST
    assert loaded.problem is not None
    assert "state version 2" in loaded.problem
    (copy,) = entries(place)
    assert copy.startswith("state.json.newer-2-")
    assert json.loads((place / copy).read_bytes()) == content
    assert store.save(FULL)
    assert json.loads((place / copy).read_bytes()) == content


# --- damage ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b"[]",
        b"null",
        b"{}",
        b"x" * (9 << 20),
        {"major": "1"},
        {"major": True},
        {"major": 0},
        {"major": -1},
        b'{"major": ' + b"9" * 10_000 + b"}",
    ],
)
def test_a_damaged_file_is_set_aside_and_reported(store: StateStore, place: Path, content: object) -> None:
    put(place, content)
    data = (place / names.STATE_FILE).read_bytes()
    loaded = store.load()
    assert loaded.state == LOST
    assert loaded.problem is not None
    (copy,) = entries(place)
    assert copy.startswith("state.json.damaged-")
    assert copy in loaded.problem
    assert (place / copy).read_bytes() == data
    assert store.load().problem is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("digests", []),
        ("digests", {"/x": "a" * 64}),
        ("digests", {"/x": ["A" * 64]}),
        ("digests", {"/x": [1]}),
        ("cdi_mode", "sometimes"),
        ("cdi_mode", ["off"]),
        ("cdi_pause", []),
        ("cdi_pause", {"until_usec": 1}),
        ("cdi_pause", {"until_usec": "1", "reason": "", "caller_uid": 0}),
        ("cdi_pause", {"until_usec": -1, "reason": "", "caller_uid": 0}),
        ("cdi_pause", {"until_usec": 1 << 63, "reason": "", "caller_uid": 0}),
        ("cdi_pause", {"until_usec": 1, "reason": "", "caller_uid": 1 << 32}),
        ("pins", {}),
        ("pins", None),
        ("pins", "all"),
        ("pins", [None]),
        ("pins", [[]]),
        ("pins", [{"target": 7}]),
        ("pins", [{"target": "p000"}]),
        ("pins", [{"target": DIE.lower()}]),
        ("pins", [{"target": f"{DIE}/100"}]),
        ("reclaim_mode", "repair"),
        ("reclaim_mode", 0),
        ("reclaim_pause", "for ever"),
        ("reclaim_pause", {"until_usec": 1, "reason": "", "caller_uid": -1}),
        ("pins_in_doubt", None),
        ("pins_in_doubt", []),
    ],
)
def test_one_bad_key_costs_no_other(store: StateStore, place: Path, key: str, value: object) -> None:
    pause = {"until_usec": 5, "reason": "r", "caller_uid": 7}
    good = {"digests": {"/x": ["a" * 64]}, "cdi_mode": "off", "cdi_pause": pause, "reclaim_mode": "observe", "reclaim_pause": pause}
    put(place, {"major": 1, "minor": 0, **good, key: value, "future": 1})
    loaded = store.load()
    assert loaded.problem is not None
    assert key.removesuffix("s") in loaded.problem
    whole = State({"/x": ("a" * 64,)}, CdiMode.OFF, Pause(5, "r", 7), (), ReclaimMode.OBSERVE, Pause(5, "r", 7))
    # A flag that stops something is on where it cannot be read; what may have kept a vNPU, and is lost, leaves doubt.
    empty: dict[str, Any] = {"digests": {}, "pins": (), "pins_in_doubt": True}
    changes: dict[str, Any] = {key: empty.get(key)}
    expected = dataclasses.replace(whole, **changes)
    assert loaded.state == dataclasses.replace(expected, pins_in_doubt=key not in ("digests", "cdi_mode", "cdi_pause"))
    (current, copy) = entries(place)
    assert copy.startswith("state.json.damaged-")
    assert json.loads((place / current).read_bytes())["future"] == 1
    assert StateStore(str(place), realtime_usec=Clock()).load() == Loaded(loaded.state)


# --- reclaiming ------------------------------------------------------------------------------------------------------
def test_a_state_of_the_version_before_reclaiming_is_loaded_without_doubt(store: StateStore, place: Path) -> None:
    put(place, {"major": 1, "minor": 1, "digests": {}, "cdi_mode": None, "cdi_pause": None, "pins": [dataclasses.asdict(PIN)]})
    assert store.load() == Loaded(State(pins=(PIN,)))


def test_a_file_that_was_set_aside_leaves_doubt_until_an_administrator_acts(store: StateStore, place: Path) -> None:
    put(place, b"{")
    assert store.load().state == LOST
    # Though nothing was saved since.
    again = StateStore(str(place), realtime_usec=Clock())
    assert again.load() == Loaded(LOST)
    for mode in (ReclaimMode.OBSERVE, ReclaimMode.OFF):
        assert LOST.with_reclaim_mode(mode) == State(reclaim_mode=mode, pins_in_doubt=True)
    again.save(LOST.with_reclaim_mode(ReclaimMode.ENFORCE))
    assert StateStore(str(place), realtime_usec=Clock()).load() == Loaded(State(reclaim_mode=ReclaimMode.ENFORCE))


def test_a_file_of_a_newer_daemon_leaves_doubt_too(store: StateStore, place: Path) -> None:
    put(place, {"major": 2, "pins": []})
    assert store.load().state == LOST
    assert StateStore(str(place), realtime_usec=Clock()).load() == Loaded(LOST)


def test_a_pin_that_protects_all_the_same_leaves_no_doubt_and_one_that_is_lost_does(store: StateStore, place: Path) -> None:
    put(place, {"major": 1, "minor": 2, "pins": [{"target": PIN.target}]})
    assert not store.load().state.pins_in_doubt
    put(place, {"major": 1, "minor": 2, "pins": [{"target": PIN.target}, {"target": "x"}]})
    assert store.load().state.pins_in_doubt


# --- pins ------------------------------------------------------------------------------------------------------------
def test_a_pin_replaces_the_one_of_its_target_and_no_other() -> None:
    state = State().with_pin(PIN).with_pin(CARD_PIN)
    again = dataclasses.replace(PIN, identity="f" * 16)
    assert state.with_pin(again).pins == (CARD_PIN, again)
    assert state.pin_of(PIN.target) == PIN
    assert state.pin_of("nothing") is None
    assert state.without_pin(PIN.target).pins == (CARD_PIN,)
    assert state.without_pin("nothing") == state


def test_a_state_of_the_version_before_pins_is_loaded(store: StateStore, place: Path) -> None:
    put(place, {"major": 1, "minor": 0, "digests": {"/x": ["a" * 64]}, "cdi_mode": "off", "cdi_pause": None})
    loaded = store.load()
    assert (loaded.problem, loaded.state) == (None, State({"/x": ("a" * 64,)}, CdiMode.OFF))
    store.save(loaded.state.with_pin(PIN))
    document = json.loads((place / names.STATE_FILE).read_bytes())
    assert (document["major"], document["minor"]) == (1, 2)
    assert [entry["target"] for entry in document["pins"]] == [PIN.target]


GOOD_ENTRY = dataclasses.asdict(PIN)


@pytest.mark.parametrize(
    "entry",
    [
        {"target": PIN.target},
        {**GOOD_ENTRY, "reason": 5},
        {**GOOD_ENTRY, "reason": "x" * (MAXIMUM_PIN_REASON + 1)},
        {**GOOD_ENTRY, "caller_uid": -1},
        {**GOOD_ENTRY, "caller_uid": 1 << 32},
        {**GOOD_ENTRY, "since_usec": "yesterday"},
        {**GOOD_ENTRY, "since_usec": 1 << 63},
        {**GOOD_ENTRY, "identity": None},
        {**GOOD_ENTRY, "identity": "../x"},
    ],
)
def test_a_pin_whose_target_can_be_read_protects_it_and_offers_nothing(store: StateStore, place: Path, entry: dict[str, object]) -> None:
    put(place, {"major": 1, "minor": 1, "pins": [entry, dataclasses.asdict(CARD_PIN)]})
    loaded = store.load()
    assert loaded.problem is not None
    assert PIN.target in loaded.problem
    assert loaded.state.pins == (Pin(PIN.target, "", 0, 0), CARD_PIN)


def test_a_pin_that_cannot_be_read_is_reported_and_the_others_are_on_disk_at_once(store: StateStore, place: Path) -> None:
    entries_of = [dataclasses.asdict(PIN), {"target": "all of them"}, dataclasses.asdict(CARD_PIN)]
    put(place, {"major": 1, "minor": 1, "pins": entries_of, "future": 1})
    loaded = store.load()
    assert loaded.problem is not None
    assert "the target of pin 2" in loaded.problem
    assert loaded.state.pins == (PIN, CARD_PIN)
    (current, copy) = entries(place)
    assert json.loads((place / copy).read_bytes())["pins"] == entries_of
    assert json.loads((place / current).read_bytes())["future"] == 1
    again = StateStore(str(place), realtime_usec=Clock()).load()
    assert (again.problem, again.state) == (None, loaded.state)


def test_a_target_that_stands_twice_is_reported_and_protected(store: StateStore, place: Path) -> None:
    put(place, {"major": 1, "minor": 1, "pins": [dataclasses.asdict(PIN), {**GOOD_ENTRY, "identity": "f"}]})
    loaded = store.load()
    assert loaded.problem is not None
    assert loaded.state.pins == (Pin(PIN.target, "", 0, 0),)


def test_as_many_pins_as_there_can_be_are_loaded_again(store: StateStore, place: Path) -> None:
    longest = "\U0001f512" * MAXIMUM_PIN_REASON
    many = tuple(
        Pin(f"{number:08X}{DIE[8:]}/1123/vir10_3c_16g_nm", longest, (1 << 32) - 1, (1 << 63) - 1, "f" * 64)
        for number in range(MAXIMUM_PINS)
    )
    state = State(pins=many)
    assert store.save(state)
    loaded = StateStore(str(place), realtime_usec=Clock()).load()
    assert (loaded.problem, loaded.state) == (None, state)


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "directory"])
def test_what_is_no_regular_file_is_set_aside_and_not_followed(store: StateStore, place: Path, tmp_path: Path, kind: str) -> None:
    place.mkdir(mode=0o700)
    path = place / names.STATE_FILE
    target = tmp_path / "target"
    if kind == "link":
        target.write_bytes(b'{"major": 1, "cdi_mode": "off"}')
        path.symlink_to(target)
    elif kind == "dangling":
        path.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    loaded = store.load()
    assert loaded.state == LOST
    assert loaded.problem is not None
    assert store.save(FULL)
    assert path.is_file()
    assert not path.is_symlink()
    assert target.exists() == (kind == "link")


def test_three_damaged_files_are_kept_the_newest(store: StateStore, place: Path) -> None:
    for number in range(DAMAGED_KEPT + 2):
        put(place, f"damage {number}".encode())
        assert store.load().problem
    kept = [(place / name).read_bytes() for name in entries(place)]
    assert kept == [f"damage {number}".encode() for number in range(2, DAMAGED_KEPT + 2)]


def test_a_file_that_cannot_be_set_aside_is_not_overwritten(store: StateStore, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(place, b"precious")
    real = os.rename

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "rename", refuse)
    loaded = store.load()
    assert loaded.problem is not None
    assert "nothing will be saved" in loaded.problem
    with pytest.raises(StateError):
        store.save(FULL)
    assert (place / names.STATE_FILE).read_bytes() == b"precious"
    monkeypatch.setattr(os, "rename", real)
    assert store.save(FULL)
    (copy, current) = sorted(entries(place), reverse=True)
    assert (place / copy).read_bytes() == b"precious"
    assert current == names.STATE_FILE


# --- writing ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    store: StateStore, place: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store.save(State())
    before = (place / names.STATE_FILE).read_bytes()

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    if call == "write":
        monkeypatch.setattr(os, "fdopen", fail)
    else:
        monkeypatch.setattr(os, call, fail)
    with pytest.raises(StateError, match="No space left"):
        store.save(FULL)
    monkeypatch.undo()
    assert (place / names.STATE_FILE).read_bytes() == before
    assert entries(place) == [names.STATE_FILE]


def test_the_file_and_then_its_directory_are_made_durable(store: StateStore, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        steps.append("fsync " + os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(str(place)))
        real_fsync(descriptor)

    def rename(source: str, target: str, **kwargs: int) -> None:
        steps.append("rename " + target)
        real_rename(source, target, **kwargs)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    store.save(FULL)
    assert steps == ["fsync /.devward.state.json.tmp", "rename state.json", "fsync "]


def test_a_crash_s_leftover_is_gone_with_the_next_write(store: StateStore, place: Path) -> None:
    store.load()
    (place / ".devward.state.json.tmp").write_bytes(b"half")
    store.save(FULL)
    assert entries(place) == [names.STATE_FILE]


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from devward.state import State, StateStore
calls, at = 0, int(sys.argv[3])
def counted(real):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    return call
for name in ("open", "unlink", "fchmod", "fsync", "rename", "fdopen", "close"):
    setattr(os, name, counted(getattr(os, name)))
StateStore(sys.argv[2], realtime_usec=lambda: 1).save(State().with_digest("/x", "b" * 64))
"""


def test_killed_before_any_call_of_a_save_the_old_or_the_new_state_is_there(store: StateStore, place: Path) -> None:
    old, new = State().with_digest("/x", "a" * 64), State().with_digest("/x", "b" * 64)
    source = str(Path(directory.__file__).parents[1])
    ends: set[int] = set()
    for at in range(1, 100):
        store.save(old)
        ended = subprocess.run([sys.executable, "-c", KILLED, source, str(place), str(at)], check=False, timeout=120).returncode
        ends.add(ended)
        found = StateStore(str(place), realtime_usec=Clock()).load()
        assert found.problem is None
        assert found.state in (old, new)
        if ended == 0:
            assert found.state == new
            break
    assert ends == {0, -9}


# --- whose directory -------------------------------------------------------------------------------------------------
def _uses() -> list[Callable[[StateStore], object]]:
    return [lambda store: store.load(), lambda store: store.save(FULL), lambda store: store.backup("x", b"x")]


@pytest.mark.parametrize("use", _uses())
def test_a_linked_directory_is_refused(store: StateStore, place: Path, tmp_path: Path, use: Callable[[StateStore], object]) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError):
        use(store)
    assert entries(tmp_path / "elsewhere") == []


@AS_ROOT
@pytest.mark.parametrize("use", _uses())
def test_somebody_else_s_directory_is_refused(store: StateStore, place: Path, use: Callable[[StateStore], object]) -> None:
    place.mkdir(mode=0o700)
    os.chown(place, 12345, 0)
    with pytest.raises(StateError, match="uid 12345"):
        use(store)
    assert entries(place) == []


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_directory_that_others_may_write_is_refused(store: StateStore, place: Path, mode: int) -> None:
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(StateError, match="may write"):
        store.load()


def test_a_file_in_the_directory_s_place_is_refused(store: StateStore, place: Path) -> None:
    place.write_bytes(b"x")
    with pytest.raises(StateError):
        store.load()
    assert issubclass(StateError, DevwardError)


def test_a_linked_backup_directory_is_refused(store: StateStore, place: Path, tmp_path: Path) -> None:
    store.load()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (place / names.BACKUP_DIRECTORY).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError):
        store.backup("x", b"x")
    assert entries(tmp_path / "elsewhere") == []


# --- backups ---------------------------------------------------------------------------------------------------------
def test_a_backup_holds_the_very_bytes(store: StateStore, place: Path) -> None:
    data = b"\0\xff\r\nforeign"
    path = Path(store.backup("x.json", data))
    digest = hashlib.sha256(data).hexdigest()[:8]
    assert path == place / "backup" / f"x.json.20231114T221320.123457Z.{digest}"
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o7777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert entries(path.parent) == [path.name]


def test_the_newest_copy_is_not_made_twice(store: StateStore, place: Path) -> None:
    first = store.backup("x", b"one")
    assert store.backup("x", b"one") == first
    assert store.backup("y", b"one") != first
    second = store.backup("x", b"two")
    assert store.backup("x", b"one") not in (first, second)
    assert len(entries(place / "backup")) == 4


def test_a_copy_that_is_not_whole_any_more_is_made_again(store: StateStore) -> None:
    first = Path(store.backup("x", b"one"))
    first.write_bytes(b"on")
    second = Path(store.backup("x", b"one"))
    assert second != first
    assert second.read_bytes() == b"one"


def test_twenty_copies_of_a_name_are_kept_the_newest(store: StateStore, place: Path) -> None:
    other = store.backup("other", b"x")
    paths = [store.backup("x", str(number).encode()) for number in range(BACKUPS_PER_NAME + 5)]
    kept = {str(place / "backup" / name) for name in entries(place / "backup")}
    assert kept == {other, *paths[-BACKUPS_PER_NAME:]}


def test_the_oldest_go_when_all_together_are_too_big(store: StateStore, place: Path) -> None:
    size = BACKUP_BYTES // 4
    paths = [store.backup(f"n{number}", bytes([number]) * size) for number in range(6)]
    kept = {str(place / "backup" / name) for name in entries(place / "backup")}
    assert kept == set(paths[-4:])


def test_a_clock_set_back_does_not_cost_the_copy_just_made(place: Path) -> None:
    late = StateStore(str(place), realtime_usec=lambda: USEC)
    late.backup("big", b"x" * BACKUP_BYTES)
    early = StateStore(str(place), realtime_usec=lambda: USEC - 10**15)
    path = early.backup("x", b"new")
    assert Path(path).read_bytes() == b"new"
    assert entries(place / "backup") == [Path(path).name]


def test_what_is_no_backup_is_left_alone(store: StateStore, place: Path) -> None:
    store.backup("x", b"x")
    (place / "backup" / "note.txt").write_bytes(b"y" * BACKUP_BYTES)
    store.backup("x", b"z")
    assert len(entries(place / "backup")) == 3


def test_a_file_too_big_to_keep_is_refused(store: StateStore, place: Path) -> None:
    with pytest.raises(StateError, match="more than"):
        store.backup("x", b"x" * (BACKUP_BYTES + 1))
    assert not (place / "backup").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "a\0b", "x" * 201, "é" * 101])
def test_a_backup_s_name_leads_nowhere_else(store: StateStore, name: str) -> None:
    with pytest.raises(ValueError, match="plain file name"):
        store.backup(name, b"x")


def test_odd_but_plain_names_are_kept_apart(store: StateStore) -> None:
    for name in ("x" * 200, "a\nb", ".hidden", os.fsdecode(b"\xff"), "x.20231114T221320.123457Z.00000000"):
        path = store.backup(name, b"x")
        assert os.path.basename(path).startswith(name + ".")
        assert Path(path).read_bytes() == b"x"


# --- the lock --------------------------------------------------------------------------------------------------------
def test_a_second_daemon_is_told_who_is_there(tmp_path: Path) -> None:
    place = tmp_path / "run"
    with Lock(str(place)):
        assert (place / names.LOCK_FILE).read_text() == f"{os.getpid()}\n"
        assert place.stat().st_mode & 0o777 == 0o755 & ~_umask()
        with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()} holds"):
            Lock(str(place)).acquire()
    with Lock(str(place)):
        pass
    assert (place / names.LOCK_FILE).exists()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def open_below(place: Path) -> dict[int, str]:
    """Return what this process has open there. Elsewhere, descriptors of other tests go whenever their garbage is collected."""
    links = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # at least the listing's own has gone
            links[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return {descriptor: link for descriptor, link in links.items() if link.startswith(str(place))}


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    source = str(Path(directory.__file__).parents[1])
    code = "import os, signal, sys; sys.path.insert(0, sys.argv[1])\nfrom devward.state import Lock\n"
    code += "Lock(sys.argv[2]).acquire(); print(os.getpid(), flush=True); sys.stdin.read()"
    arguments = [sys.executable, "-c", code, source, str(tmp_path / "run")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        pid = holder.stdout.readline().strip()
        with pytest.raises(AlreadyRunning, match=f"pid {pid} holds"):
            Lock(str(tmp_path / "run")).acquire()
        holder.kill()
        holder.wait(60)
    with Lock(str(tmp_path / "run")):
        assert (tmp_path / "run" / names.LOCK_FILE).read_text() == f"{os.getpid()}\n"


def test_no_child_inherits_the_lock(tmp_path: Path) -> None:
    code = "import os\nfor name in os.listdir('/proc/self/fd'):\n  try: print(os.readlink('/proc/self/fd/' + name))\n  except OSError: pass"
    with Lock(str(tmp_path / "run")), (tmp_path / "witness").open("w") as witness:
        os.set_inheritable(witness.fileno(), True)
        child = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, close_fds=False, timeout=60)
    assert str(tmp_path / "witness") in child.stdout
    assert names.LOCK_FILE not in child.stdout


def test_a_lock_that_is_released_is_free_though_a_child_still_has_the_descriptor(tmp_path: Path) -> None:
    lock = Lock(str(tmp_path / "run"))
    lock.acquire()
    (held,) = [descriptor for descriptor, link in open_below(tmp_path).items() if link.endswith(names.LOCK_FILE)]
    copy = os.dup(held)
    lock.release()
    with Lock(str(tmp_path / "run")):
        pass
    os.close(copy)


def test_a_holder_that_has_not_written_its_pid_is_still_a_holder(tmp_path: Path) -> None:
    (tmp_path / names.LOCK_FILE).touch()
    tmp_path.chmod(0o700)
    with (tmp_path / names.LOCK_FILE).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(AlreadyRunning, match="not written its pid"):
            Lock(str(tmp_path)).acquire()


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_a_lock_file_that_is_none_is_refused(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "run"
    place.mkdir(mode=0o755)
    path = place / names.LOCK_FILE
    if kind == "link":
        path.symlink_to(tmp_path / "target")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(StateError):
        Lock(str(place)).acquire()
    assert open_below(tmp_path) == {}
    assert not (tmp_path / "target").exists()


def test_a_lock_is_taken_once(tmp_path: Path) -> None:
    with Lock(str(tmp_path / "run")) as lock, pytest.raises(RuntimeError):
        lock.acquire()
