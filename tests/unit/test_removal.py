"""`devwardd --remove-own-files`: only what devward wrote goes, and everything else is named and stays."""

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devward import __main__ as command_line
from devward import names
from devward.audit import Audit
from devward.cdi import store as cdi_store
from devward.journal import Journal
from devward.reasons import Reason
from devward.removal import Fate, Result, remove_own_files
from devward.state import Lock, State, StateStore
from sim.journal_sink import JournalSink

SOURCES = Path(__file__).resolve().parents[2] / "src"
OURS = b'{"cdiVersion": "0.3.0"}\n'
OLDER = b'{"cdiVersion": "0.2.0"}\n'


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Host:
    """A CDI directory, a state directory that remembers what was written there, and a journal."""

    def __init__(self, root: Path, sink: JournalSink) -> None:
        self.root = root
        self.sink = sink
        self.cdi = root / "cdi"
        self.cdi.mkdir()
        self.file = self.cdi / names.HYPERVISOR_CDI_FILE
        self.state = StateStore(str(root / "state"), realtime_usec=lambda: 1_700_000_000_000_000)
        self.remember({str(self.file): (digest(OLDER), digest(OURS))})

    def remember(self, digests: dict[str, tuple[str, ...]]) -> None:
        self.state.save(State(digests))

    def remembered(self) -> dict[str, tuple[str, ...]]:
        return dict(StateStore(str(self.root / "state"), realtime_usec=lambda: 0).load().state.digests)

    def remove(self) -> list[Result]:
        journal = Journal(str(self.root / "journal"), stderr=io.StringIO())
        try:
            audit = Audit(journal, version="0", new_id=lambda: "id", monotonic=lambda: 0.0)
            results, problem = remove_own_files(str(self.root / "state"), self.state, audit)
        finally:
            journal.close()
        assert problem is None
        return results

    def arguments(self) -> list[str]:
        config = self.root / "devward.toml"
        if not config.exists():
            config.write_text(f'[log]\njournal_socket = "{self.root}/journal"\n')
        return [
            "--remove-own-files",
            f"--config={config}",
            f"--state-directory={self.root}/state",
            f"--runtime-directory={self.root}/run",
        ]


@pytest.fixture(name="host")
def _host(tmp_path: Path) -> Iterator[Host]:
    sink = JournalSink(str(tmp_path / "journal"))
    try:
        yield Host(tmp_path, sink)
    finally:
        sink.close()


@pytest.mark.parametrize("content", [OURS, OLDER])
def test_what_devward_wrote_goes_and_is_on_record(host: Host, content: bytes) -> None:
    host.file.write_bytes(content)
    assert host.remove() == [Result(str(host.file), Fate.REMOVED)]
    assert os.listdir(host.cdi) == []
    records = host.sink.records(DEVWARD_EVENT="spec-withdraw")
    assert [record["DEVWARD_OUTCOME"] for record in records] == [["intent"], ["success"]]
    for record in records:
        assert record["DEVWARD_CDI_FILE"] == [str(host.file)]
        assert record["DEVWARD_SHA256_BEFORE"] == [digest(content)]


@pytest.mark.parametrize("content", [OURS + b" ", OURS[:-1], b"", b'{"kind": "hyperlight.dev/hypervisor"}'])
def test_what_differs_by_a_byte_stays(host: Host, content: bytes) -> None:
    host.file.write_bytes(content)
    (result,) = host.remove()
    assert (result.fate, result.text) == (Fate.LEFT, "its content is not what devward wrote")
    assert host.file.read_bytes() == content


def test_a_file_too_large_to_be_ours_stays_and_is_no_failure(host: Host) -> None:
    with host.file.open("wb") as file:
        file.truncate(cdi_store.MAXIMUM_SIZE + 1)
    (result,) = host.remove()
    assert result.fate is Fate.LEFT
    assert host.file.exists()


def test_a_link_to_our_own_content_is_neither_followed_nor_removed(host: Host) -> None:
    target = host.root / "elsewhere"
    target.write_bytes(OURS)
    host.file.symlink_to(target)
    (result,) = host.remove()
    assert (result.fate, result.text) == (Fate.LEFT, "a symbolic link stands there")
    assert host.file.is_symlink()
    assert target.read_bytes() == OURS


@pytest.mark.parametrize("kind", ["FIFO", "directory"])
def test_what_is_no_regular_file_stays_and_does_not_block(host: Host, kind: str) -> None:
    if kind == "FIFO":
        os.mkfifo(host.file)
    else:
        host.file.mkdir()
    (result,) = host.remove()
    assert (result.fate, result.text) == (Fate.LEFT, f"a {kind} stands there")
    assert stat.S_IFMT(os.lstat(host.file).st_mode) in (stat.S_IFIFO, stat.S_IFDIR)


def test_a_directory_that_became_a_link_is_not_followed(host: Host) -> None:
    host.file.write_bytes(OURS)
    moved = host.root / "moved"
    host.cdi.rename(moved)
    host.cdi.symlink_to(moved)
    results = host.remove()
    assert [result.fate for result in results if result.path == str(host.file)] == [Fate.LEFT]
    assert (moved / host.file.name).read_bytes() == OURS


def test_only_paths_that_devward_can_own_are_believed(host: Host) -> None:
    other = host.cdi / "vendor.json"
    other.write_bytes(OURS)
    host.file.write_bytes(OURS)
    detour = f"{host.cdi}/../cdi/{host.file.name}"
    host.remember({str(other): (digest(OURS),), detour: (digest(OURS),), host.file.name: (digest(OURS),)})
    assert {result.fate for result in host.remove()} == {Fate.LEFT}
    assert other.exists()
    assert host.file.exists()


def test_other_files_of_the_directory_are_not_touched(host: Host) -> None:
    host.file.write_bytes(OURS)
    copy = host.cdi / "copy.json"
    copy.write_bytes(OURS)
    before = copy.stat()
    host.remove()
    assert os.listdir(host.cdi) == ["copy.json"]
    assert copy.stat().st_mtime_ns == before.st_mtime_ns


def test_a_file_that_changes_after_it_was_judged_stays(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.file.write_bytes(OURS)
    look = cdi_store.look

    def look_and_lose_the_race(directory: str, name: str) -> cdi_store.Found:
        found = look(directory, name)
        host.file.write_bytes(b"the administrator's")
        return found

    monkeypatch.setattr(cdi_store, "look", look_and_lose_the_race)
    (result,) = host.remove()
    assert result.fate is Fate.FAILED
    assert host.file.read_bytes() == b"the administrator's"
    assert host.sink.records()[-1]["DEVWARD_OUTCOME"] == ["failure"]


def test_what_an_interrupted_write_left_goes_too(host: Host) -> None:
    temporary = host.cdi / f"{names.TEMPORARY_PREFIX}{host.file.name}.{'0' * 16}{names.TEMPORARY_SUFFIX}"
    temporary.write_bytes(b"half")
    host.file.write_bytes(OURS)
    assert Result(str(temporary), Fate.REMOVED) in host.remove()
    assert os.listdir(host.cdi) == []


def test_devward_forgets_what_it_left_so_that_it_takes_it_over_with_a_copy(host: Host) -> None:
    host.file.write_bytes(b"the administrator's")
    host.remove()
    assert host.remembered() == {}


def test_devward_does_not_forget_what_it_failed_to_remove(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.file.write_bytes(OURS)

    def refuse(*_: object, **__: object) -> bool:
        raise cdi_store.StoreError(Reason.CDI_READ_ONLY, "read-only file system")

    monkeypatch.setattr(cdi_store, "remove", refuse)
    (result,) = host.remove()
    assert (result.fate, result.text) == (Fate.FAILED, "read-only file system")
    assert list(host.remembered()) == [str(host.file)]


def test_a_host_without_a_state_directory_is_left_as_it_is(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal"), stderr=io.StringIO())
    audit = Audit(journal, version="0", new_id=lambda: "id", monotonic=lambda: 0.0)
    place = tmp_path / "state"
    assert remove_own_files(str(place), StateStore(str(place), realtime_usec=lambda: 0), audit) == ([], None)
    journal.close()
    assert not place.exists()


# --- the command -----------------------------------------------------------------------------------------------------
def test_the_command_tells_what_became_of_each_file(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.file.write_bytes(OURS)
    other = host.root / "second"
    other.mkdir()
    (other / host.file.name).write_bytes(b"another's")
    host.remember({str(host.file): (digest(OURS),), str(other / host.file.name): (digest(OURS),)})
    assert command_line.main(host.arguments()) == command_line.EXIT_OK
    out = capsys.readouterr().out
    assert out == f"removed {host.file}\nleft {other / host.file.name}: its content is not what devward wrote\n"


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_the_command_removes_the_metrics_from_where_the_configuration_has_them(
    host: Host, capsys: pytest.CaptureFixture[str], enabled: str
) -> None:
    host.remember({})
    arguments, textfile = host.arguments(), host.root / "textfile"
    textfile.mkdir()
    for name in ("devward.prom", "other.prom"):
        (textfile / name).write_text("a 1\n")
    with (host.root / "devward.toml").open("a") as file:
        file.write(f'[metrics]\nenabled = {enabled}\ndirectory = "{textfile}"\n')
    assert command_line.main(arguments) == command_line.EXIT_OK
    assert capsys.readouterr().out == f"removed {textfile}/devward.prom\n"
    assert [entry.name for entry in textfile.iterdir()] == ["other.prom"]
    assert command_line.main(arguments) == command_line.EXIT_OK
    assert capsys.readouterr().out == ""
    (textfile / "devward.prom").mkdir()
    assert command_line.main(arguments) == command_line.EXIT_FAILED
    assert capsys.readouterr().out.startswith(f"failed {textfile}/devward.prom: ")


def test_the_command_refuses_while_a_daemon_runs(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.file.write_bytes(OURS)
    with Lock(str(host.root / "run")):
        assert command_line.main(host.arguments()) == command_line.EXIT_ALREADY_RUNNING
    assert "another devwardd runs" in capsys.readouterr().err
    assert host.file.exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"major": 7}', json.dumps({"major": 1, "digests": {"/etc/passwd": "x"}})])
def test_a_damaged_state_removes_nothing_and_is_told(host: Host, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    host.file.write_bytes(OURS)
    (host.root / "state" / names.STATE_FILE).write_text(content)
    assert command_line.main(host.arguments()) == command_line.EXIT_FAILED
    assert "what devwardd wrote is not known" in capsys.readouterr().err
    assert host.file.read_bytes() == OURS


def test_a_refused_configuration_does_not_hinder_it(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.file.write_bytes(OURS)
    arguments = host.arguments()
    (host.root / "devward.toml").write_text("[nonsense]\n")
    assert command_line.main(arguments) == command_line.EXIT_OK
    assert "nonsense: unknown section" in capsys.readouterr().err
    assert not host.file.exists()


def test_it_needs_none_of_the_libraries_that_a_removal_may_already_have_taken(host: Host) -> None:
    host.file.write_bytes(OURS)
    block = "import sys\nfor name in ('dbus_next', 'pyudev', 'sdnotify', 'yaml'): sys.modules[name] = None\n"
    program = block + "from devward.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, *host.arguments()]
    done = subprocess.run(command, env={"PYTHONPATH": str(SOURCES)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"removed {host.file}\n"), done.stderr
