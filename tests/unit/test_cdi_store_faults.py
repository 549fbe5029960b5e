"""The owned file's store when the file system fails, or devward is killed: the old or the new file, a code for each error, nothing left."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devward.cdi import store
from devward.cdi.store import EntryType, NotAsWritten, StoreError
from devward.reasons import Reason
from sim.errfs import ErrFs
from sim.private_mounts import SOURCE, run_in_private_mounts
from sim.store_calls import NAME, NEW, OLD, entries, look, refused, remove, write

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts")

_IN_NAMESPACE = """
from devward.cdi import store

NAME, directory, kind = sys.argv[1:]
OLD, NEW = b"old", b"new" * 3000

def outcome(call):
    try:
        return repr(call())
    except store.StoreError as error:
        return error.reason.value

def state():
    return [sorted(os.listdir(directory)), open(f"{directory}/{NAME}").read() if os.path.exists(f"{directory}/{NAME}") else None]

mount("-t", "tmpfs", "-o", "size=64k,nr_inodes=12,mode=0755", "devward-test", directory)
if kind != "read-only and missing":
    store.write(directory, NAME, OLD)
if kind.startswith("read-only"):
    mount("-o", "remount,ro", directory)
elif kind == "full":
    with open(f"{directory}/filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 4096)
        except OSError:
            pass
elif kind == "no inodes":
    try:
        for number in range(100):
            open(f"{directory}/{number}", "x").close()
    except OSError:
        pass
elif kind == "covered":
    with open("/run/devward-test-cover", "w") as cover:
        cover.write("covered")
    mount("--bind", "/run/devward-test-cover", f"{directory}/{NAME}")
before = state()
outcomes = [outcome(lambda: store.write(directory, NAME, NEW))]
if kind not in ("full", "no inodes"):
    outcomes.append(outcome(lambda: store.remove(directory, NAME)))
looked = store.look(directory, NAME).entry
after = state()
if kind.startswith("read-only"):
    mount("-o", "remount,rw", directory)
elif kind == "full":
    os.unlink(f"{directory}/filler")
elif kind == "no inodes":
    os.unlink(f"{directory}/0")
elif kind == "covered":
    subprocess.run(["umount", f"{directory}/{NAME}"], check=True)
store.write(directory, NAME, NEW)
print(json.dumps({"outcomes": outcomes, "untouched": before == after, "looked": looked,
                  "recovered": open(f"{directory}/{NAME}", "rb").read() == NEW}))
"""


@needs_root
@pytest.mark.parametrize(
    ("kind", "outcomes", "looked"),
    [
        ("read-only", ["cdi-read-only", "cdi-read-only"], "regular file"),
        ("read-only and missing", ["cdi-read-only", "False"], "missing"),
        ("full", ["cdi-no-space"], "regular file"),
        ("no inodes", ["cdi-no-space"], "regular file"),
        ("covered", ["cdi-io-error", "cdi-io-error"], "regular file"),
    ],
)
def test_r8_a_file_system_that_cannot_be_written_keeps_the_old_file_and_recovers(
    tmp_path: Path, kind: str, outcomes: list[str], looked: str
) -> None:
    program = _IN_NAMESPACE.replace("/run/devward-test-cover", str(tmp_path / "cover"))
    (tmp_path / "cdi").mkdir()
    told = run_in_private_mounts(program, NAME, tmp_path / "cdi", kind)
    assert told == {"outcomes": outcomes, "untouched": True, "looked": looked, "recovered": True}


_KILLED = """
import os, shutil, sys
from devward.cdi import store

NAME, base, kind = sys.argv[1:]
OLD, NEW = b"old" * 100, b"new" * 100
directory = base + "/etc/cdi"
left = 10**6

def counted(real):
    def call(*words, **named):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return real(*words, **named)
    return call

def prepare():
    shutil.rmtree(base + "/etc", ignore_errors=True)
    os.mkdir(base + "/etc")
    if kind != "no directory":
        os.mkdir(directory)
    if kind in ("existing", "removal"):
        with open(f"{directory}/{NAME}", "wb") as file:
            file.write(OLD)
        if os.geteuid() == 0:
            os.chown(f"{directory}/{NAME}", 1234, 1234)

calls = {name: getattr(os, name) for name in
         ("open", "write", "read", "close", "fsync", "fchmod", "fchown", "mkdir", "rename", "unlink", "stat", "fstat", "getxattr")}
exchange = store._rename
survived = number = 0
while not survived:
    prepare()
    child = os.fork()
    if child == 0:
        left = number
        for name, real in calls.items():
            setattr(os, name, counted(real))
        store._rename = counted(exchange)
        if kind == "removal":
            store.remove(directory, NAME)
        else:
            store.write(directory, NAME, NEW)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9), status
    survived = status == 0
    store.sweep(directory)
    there = sorted(os.listdir(directory)) if os.path.exists(directory) else []
    data = open(f"{directory}/{NAME}", "rb").read() if there else None
    assert there in ([], [NAME]), (number, there)
    old, new = {"existing": (OLD, NEW), "removal": (OLD, None)}.get(kind, (None, NEW))
    assert data in (old, new), (number, data)
    assert not survived or data == new
    number += 1
print(number)
"""


@pytest.mark.parametrize("kind", ["existing", "missing", "no directory", "removal"])
def test_killed_at_any_call_devward_leaves_the_old_or_the_new_file_and_after_a_sweep_nothing_else(tmp_path: Path, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-B", "-c", _KILLED, NAME, str(tmp_path), kind],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 7


# --- every error of every operation ---------------------------------------------------------------------------------------------
HAS_FUSE = os.access("/dev/fuse", os.R_OK | os.W_OK)
ERRORS = {
    "EIO": Reason.CDI_IO_ERROR,
    "EDQUOT": Reason.CDI_NO_SPACE,
    "ENOSPC": Reason.CDI_NO_SPACE,
    "EROFS": Reason.CDI_READ_ONLY,
    "EACCES": Reason.CDI_UNWRITABLE,
    "EPERM": Reason.CDI_IMMUTABLE,
    "ETIMEDOUT": Reason.CDI_TIMEOUT,
}


@pytest.fixture(scope="module", name="errfs")
def _errfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ErrFs]:
    base = tmp_path_factory.mktemp("errfs")
    (base / "backing").mkdir()
    (base / "mount").mkdir()
    with ErrFs(base / "backing", base / "mount") as errfs:
        yield errfs


@pytest.mark.skipif(not HAS_FUSE, reason="needs root: /dev/fuse is not open to this user")
class TestErrors:
    @pytest.fixture(name="failing")
    def _failing(self, errfs: ErrFs, request: pytest.FixtureRequest) -> Iterator[Path]:
        """An owned path, with the old content, in a directory of its own on the file system that fails on demand."""
        directory = Path(errfs.mountpoint) / f"{abs(hash(request.node.name)):x}"
        directory.mkdir()
        path = directory / NAME
        path.write_bytes(OLD)
        yield path
        errfs.clear()

    @pytest.mark.parametrize("error", ERRORS)
    @pytest.mark.parametrize("operation", ["opendir", "create", "write", "chmod", "fsync", "flush", "rename"])
    def test_before_the_new_file_has_its_name_the_old_one_stays(self, errfs: ErrFs, failing: Path, operation: str, error: str) -> None:
        errfs.set({operation: error})
        failure = refused(lambda: write(failing), ERRORS[error])
        assert failure.error == getattr(errno, error)
        errfs.clear()
        assert failing.read_bytes() == OLD
        assert entries(failing.parent) == [NAME]
        write(failing)
        assert failing.read_bytes() == NEW

    @pytest.mark.parametrize("error", ERRORS)
    def test_a_name_that_is_not_durable_is_an_error_though_the_new_file_is_there(self, errfs: ErrFs, failing: Path, error: str) -> None:
        errfs.set({"fsyncdir": error})
        refused(lambda: write(failing), ERRORS[error])
        errfs.clear()
        assert failing.read_bytes() == NEW
        assert entries(failing.parent) == [NAME]

    def test_the_old_file_that_cannot_be_unlinked_is_swept_later(self, errfs: ErrFs, failing: Path) -> None:
        errfs.set({"unlink": "EIO"})
        write(failing)
        assert failing.read_bytes() == NEW
        assert len(entries(failing.parent)) == 2
        with pytest.raises(StoreError):
            store.sweep(str(failing.parent))
        errfs.clear()
        assert len(store.sweep(str(failing.parent))) == 1
        assert entries(failing.parent) == [NAME]

    def test_a_temporary_file_that_cannot_be_unlinked_is_swept_later(self, errfs: ErrFs, failing: Path) -> None:
        errfs.set({"fsync": "EIO", "unlink": "EIO"})
        refused(lambda: write(failing), Reason.CDI_IO_ERROR)
        errfs.clear()
        assert failing.read_bytes() == OLD
        assert len(store.sweep(str(failing.parent))) == 1

    @pytest.mark.parametrize("operation", ["open", "read"])
    def test_what_cannot_be_read_back_is_an_error(self, errfs: ErrFs, failing: Path, operation: str) -> None:
        errfs.set({operation: "EIO"})
        with pytest.raises(NotAsWritten):
            write(failing)
        found = look(failing)
        assert (found.entry, found.data, found.reason) == (EntryType.REGULAR, None, Reason.CDI_IO_ERROR)

    @pytest.mark.parametrize("operation", ["opendir", "lookup", "getattr"])
    def test_a_look_that_fails_says_why(self, errfs: ErrFs, failing: Path, operation: str) -> None:
        errfs.set({operation: {"errno": "EIO", "match": NAME} if operation == "lookup" else "EIO"})
        found = look(failing)
        assert found.entry in (EntryType.UNREADABLE, EntryType.MISSING)
        assert (found.data, found.reason) == (None, Reason.CDI_IO_ERROR)

    @pytest.mark.parametrize("error", ERRORS)
    @pytest.mark.parametrize("operation", ["opendir", "rename"])
    def test_a_removal_that_fails_leaves_the_file(self, errfs: ErrFs, failing: Path, operation: str, error: str) -> None:
        errfs.set({operation: error})
        refused(lambda: remove(failing), ERRORS[error])
        errfs.clear()
        assert failing.read_bytes() == OLD
        assert entries(failing.parent) == [NAME]

    @pytest.mark.parametrize("error", ERRORS)
    def test_a_removal_that_is_not_durable_is_an_error_though_the_file_is_gone(self, errfs: ErrFs, failing: Path, error: str) -> None:
        errfs.set({"fsyncdir": error})
        refused(lambda: remove(failing), ERRORS[error])
        errfs.clear()
        assert entries(failing.parent) == []

    def test_a_short_write_of_the_file_system_is_continued(self, errfs: ErrFs, failing: Path) -> None:
        errfs.set({"write": {"short": 100}})
        write(failing)
        assert failing.read_bytes() == NEW
        assert len(errfs.calls("write")) >= len(NEW) // 100

    def test_a_write_that_breaks_off_half_way_leaves_the_old_file(self, errfs: ErrFs, failing: Path) -> None:
        errfs.set({"write": [{"short": 100, "times": 2}, "ENOSPC"]})
        refused(lambda: write(failing), Reason.CDI_NO_SPACE)
        assert failing.read_bytes() == OLD
        assert entries(failing.parent) == [NAME]

    @pytest.mark.parametrize("there", [True, False], ids=["existing", "missing"])
    @pytest.mark.parametrize("error", ["EINVAL", "ENOSYS"])
    def test_without_rename_flags_the_plain_rename_does(self, errfs: ErrFs, failing: Path, error: str, there: bool) -> None:
        if not there:
            failing.unlink()
        before = len(errfs.calls("rename"))
        errfs.set({"rename": {"errno": "EINVAL" if error == "ENOSYS" else error, "times": 1}})
        write(failing)
        assert len(errfs.calls("rename")) == before + 2
        assert failing.read_bytes() == NEW
        assert entries(failing.parent) == [NAME]

    @pytest.mark.parametrize("moment", ["write", "remove"])
    def test_an_obstruction_that_cannot_be_put_back_is_kept(
        self, errfs: ErrFs, failing: Path, moment: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was taken out in place of the old file, and the way back fails: never is it deleted instead."""
        errfs.set({"rename": [{"times": 1}, "EIO"]})

        def swap() -> None:
            if stat.S_ISREG(failing.lstat().st_mode):
                failing.unlink()
                os.mkfifo(failing)

        exchange, rename = store._rename, os.rename
        if moment == "write":
            monkeypatch.setattr(store, "_rename", lambda *words: (swap(), exchange(*words))[1])
        else:
            monkeypatch.setattr(os, "rename", lambda *words, **named: (swap(), rename(*words, **named))[1])
        refused(lambda: write(failing) if moment == "write" else remove(failing), Reason.CDI_IO_ERROR)
        monkeypatch.undo()
        errfs.clear()
        assert any(stat.S_ISFIFO(entry.lstat().st_mode) for entry in failing.parent.iterdir())

    def test_an_obstruction_taken_out_for_removal_is_put_back_without_rename_flags(
        self, errfs: ErrFs, failing: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        errfs.set({"rename": [{"times": 1}, {"errno": "EINVAL", "times": 1}]})
        real = os.rename

        def swap(*words: str, **named: int) -> None:
            if failing.is_file():
                failing.unlink()
                os.mkfifo(failing)
            real(*words, **named)

        monkeypatch.setattr(os, "rename", swap)
        refused(lambda: remove(failing), Reason.CDI_NOT_REGULAR)
        assert stat.S_ISFIFO(failing.lstat().st_mode)
        assert entries(failing.parent) == [NAME]
