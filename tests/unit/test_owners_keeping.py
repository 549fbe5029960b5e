"""What looks leave in the state directory: what cannot be read is a loss, what cannot be written an error; a crash leaves a whole file."""

import errno
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devward import names
from devward.cluster.claims import Remembered
from devward.cluster.keeping import Keeping
from devward.cluster.node import KnownNode
from devward.cluster.recollection import Loss, Recollection
from devward.errors import StateError
from sim.errfs import ErrFs
from sim.patience import must_not_block
from sim.recorded_cluster import BOOT_ID, RESOURCE

NODE = KnownNode("uid", BOOT_ID, "812 started at 4711")
KNOWN = Recollection(BOOT_ID, NODE, {"a": Remembered(frozenset({0, 7}), frozenset({RESOURCE}))})
MORE = Recollection(BOOT_ID, NODE, {**KNOWN.pods, "b": Remembered(frozenset({1}))})
AS_NOBODY = pytest.mark.skipif(os.geteuid() == 0, reason="needs non-root: root may read and write everything")
NEEDS_FUSE = pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="needs root: /dev/fuse is not open to this user")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives files to another user")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def file(directory: Path) -> Path:
    directory.mkdir(mode=0o700)
    return directory / names.OWNERS_FILE


def lost(directory: Path) -> str:
    """Return why what was kept is lost, which it must be whole."""
    with must_not_block():
        known = Keeping(str(directory)).load()
    assert known.loss is not None, known
    assert known == Recollection(loss=known.loss)
    assert known.loss.detail.isprintable()
    return known.loss.detail


def test_what_was_never_kept_is_no_loss(directory: Path, file: Path) -> None:
    assert Keeping(str(directory)).load() == Recollection()


def test_the_directory_is_made_for_us_alone(directory: Path) -> None:
    assert Keeping(str(directory)).load() == Recollection()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_what_is_kept_comes_back_in_the_next_run(directory: Path, file: Path) -> None:
    Keeping(str(directory)).save(KNOWN)
    assert Keeping(str(directory)).load() == KNOWN
    assert os.listdir(directory) == [names.OWNERS_FILE]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_takes_an_unbroken_view_is_not_kept(directory: Path) -> None:
    gone = Recollection(BOOT_ID, NODE, {"a": Remembered(frozenset({1}), gone_since=5.0, gone_looks=2)}, seen_at=7.0)
    Keeping(str(directory)).save(gone)
    assert Keeping(str(directory)).load() == Recollection(BOOT_ID, NODE, {"a": Remembered(frozenset({1}))})


def test_a_loss_is_kept(directory: Path) -> None:
    Keeping(str(directory)).save(Recollection(BOOT_ID, NODE, KNOWN.pods, loss=Loss("it was damaged", 5.0, 2)))
    again = Keeping(str(directory)).load()
    assert (again.loss, again.pods) == (Loss("it was damaged"), KNOWN.pods), "its time begins anew, and what was seen since is there"


# --- what cannot be read ----------------------------------------------------------------------------------------------------

DAMAGED = {
    "empty": b"",
    "cut off": json.dumps({"version": 1, "boot_id": "x"}).encode()[:-3],
    "no JSON": b"\xff\xfe",
    "zeros": bytes(64),
    "no object": b"[]",
    "of another version": b'{"version": 2}',
    "deep": b"[" * 100_000,
    "with a number that is too long": b"1" * 5000,
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_what_is_damaged_is_a_loss(directory: Path, file: Path, data: bytes) -> None:
    file.write_bytes(data)
    lost(directory)


def test_what_is_too_long_is_a_loss(directory: Path, file: Path) -> None:
    with file.open("wb") as sparse:
        sparse.truncate((32 << 20) + 1)
    assert "longer than" in lost(directory)


def a_fifo(file: Path) -> None:
    os.mkfifo(file)


def a_directory(file: Path) -> None:
    file.mkdir()


def a_link(file: Path) -> None:
    file.with_name("real").write_bytes(b"{}")
    file.symlink_to("real")


def a_dangling_link(file: Path) -> None:
    file.symlink_to("nowhere")


@pytest.mark.parametrize("make", [a_fifo, a_directory, a_link, a_dangling_link])
def test_what_is_no_file_is_a_loss_and_holds_nobody_up(directory: Path, file: Path, make: Callable[[Path], None]) -> None:
    make(file)
    lost(directory)


@AS_NOBODY
def test_what_may_not_be_read_is_a_loss(directory: Path, file: Path) -> None:
    Keeping(str(directory)).save(KNOWN)
    file.chmod(0)
    assert os.strerror(errno.EACCES) in lost(directory)


def test_a_directory_that_is_none_is_a_loss(directory: Path) -> None:
    directory.write_bytes(b"")
    lost(directory)
    with pytest.raises(StateError):
        Keeping(str(directory)).save(KNOWN)


def test_a_directory_that_others_may_write_is_a_loss(directory: Path, file: Path) -> None:
    Keeping(str(directory)).save(KNOWN)
    directory.chmod(0o777)
    assert "others than its owner may write" in lost(directory)
    with pytest.raises(StateError):
        Keeping(str(directory)).save(MORE)


@AS_ROOT
def test_another_ones_directory_is_a_loss(directory: Path, file: Path) -> None:
    os.chown(directory, 65534, 65534)
    assert "belongs to uid 65534" in lost(directory)


def test_a_link_in_the_place_of_the_directory_is_a_loss(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    Keeping(str(tmp_path / "elsewhere")).save(KNOWN)
    directory.symlink_to("elsewhere")
    lost(directory)


@pytest.mark.parametrize("data", [b"damaged", b'{"version": 2}'])
def test_a_loss_is_written_over(directory: Path, file: Path, data: bytes) -> None:
    file.write_bytes(data)
    keeping = Keeping(str(directory))
    known = keeping.load()
    keeping.save(known)
    assert json.loads(file.read_bytes())["loss"]
    assert Keeping(str(directory)).load() == known, "and is one in the next run, too"


# --- what cannot be written -------------------------------------------------------------------------------------------------


def inode(file: Path) -> int:
    return file.stat().st_ino


def test_what_did_not_change_is_not_written_again(directory: Path, file: Path) -> None:
    keeping = Keeping(str(directory))
    keeping.save(KNOWN)
    before = inode(file)
    keeping.save(Recollection(BOOT_ID, NODE, dict(KNOWN.pods), seen_at=9.0))
    assert inode(file) == before
    again = Keeping(str(directory))
    assert again.load() == KNOWN
    again.save(KNOWN)
    assert inode(file) == before, "nor what the run before has written"
    again.save(MORE)
    assert Keeping(str(directory)).load() == MORE


@pytest.fixture(scope="module", name="errfs")
def _errfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ErrFs]:
    base = tmp_path_factory.mktemp("errfs")
    for name in ("backing", "mount"):
        (base / name).mkdir()
    with ErrFs(base / "backing", base / "mount") as errfs:
        yield errfs


@pytest.fixture
def failing(errfs: ErrFs, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory on a file system that can be made to fail."""
    directory = Path(errfs.mountpoint) / f"{abs(hash(request.node.name)):x}"
    directory.mkdir(mode=0o700)
    yield directory
    errfs.clear()


@NEEDS_FUSE
@pytest.mark.parametrize("error", ["EROFS", "ENOSPC", "EIO", "EDQUOT"])
@pytest.mark.parametrize("operation", ["create", "write", "fsync", "rename"])
def test_a_save_that_fails_leaves_what_was_kept(errfs: ErrFs, failing: Path, operation: str, error: str) -> None:
    keeping = Keeping(str(failing))
    keeping.save(KNOWN)
    errfs.set({operation: error})
    with pytest.raises(StateError, match=re.escape(os.strerror(getattr(errno, error)))):
        keeping.save(MORE)
    errfs.clear()
    assert Keeping(str(failing)).load() == KNOWN
    assert os.listdir(failing) == [names.OWNERS_FILE]
    keeping.save(MORE)
    assert Keeping(str(failing)).load() == MORE


@NEEDS_FUSE
def test_after_a_save_that_is_not_sure_to_stay_even_the_one_before_is_written_again(errfs: ErrFs, failing: Path) -> None:
    keeping = Keeping(str(failing))
    keeping.save(KNOWN)
    errfs.set({"fsyncdir": "EIO"})
    with pytest.raises(StateError):
        keeping.save(MORE)
    errfs.clear()
    assert Keeping(str(failing)).load() == MORE
    keeping.save(KNOWN)
    assert Keeping(str(failing)).load() == KNOWN


@NEEDS_FUSE
@pytest.mark.parametrize("operation", ["open", "read"])
def test_a_disk_that_does_not_give_it_back_is_a_loss(errfs: ErrFs, failing: Path, operation: str) -> None:
    Keeping(str(failing)).save(KNOWN)
    errfs.set({operation: "EIO"})
    assert os.strerror(errno.EIO) in lost(failing)


# --- a crash ----------------------------------------------------------------------------------------------------------------

BEGIN, END = "/devward-test-begins", "/devward-test-ends"
PROGRAM = f"""
import os, sys
from devward.cluster.claims import Remembered
from devward.cluster.keeping import Keeping
from devward.cluster.recollection import Recollection
keeping, known = Keeping(sys.argv[1]), Recollection("boot", None, {{"new": Remembered(frozenset({{1}}))}})
os.path.lexists({BEGIN!r})
keeping.save(known)
os.path.lexists({END!r})
"""
OLD = Recollection("boot", None, {"old": Remembered(frozenset({0}))})
NEW = Recollection("boot", None, {"new": Remembered(frozenset({1}))})
#: They change no file, and how often they are made differs from run to run.
MEMORY_CALLS = {"mmap", "munmap", "mremap", "mprotect", "madvise", "brk"}


def traced_save(directory: Path, log: Path, *options: str) -> list[tuple[str, int]]:
    """Save under strace; return the system calls of that, each as its name and how often the process had made it by then."""
    command = [sys.executable, "-s", "-S", "-c", PROGRAM, str(directory)]
    tracer = ["strace", "-qq", "-o", str(log), "-e", "signal=none", *options]
    kept = {key: os.environ[key] for key in ("PATH", "PYTHONPYCACHEPREFIX") if key in os.environ}
    environment = kept | {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
    result = subprocess.run([*tracer, *command], env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    # strace ends itself by the signal that ended its child.
    assert result.returncode == (-signal.SIGKILL if options else 0), result.stderr.decode()
    made: Counter[str] = Counter()
    calls: list[tuple[str, int]] = []
    within = False
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        match = re.match(r"(\w+)\(", line)
        if match is None:
            continue
        made[match[1]] += 1
        if f'"{END}"' in line:
            return calls
        if within and match[1] not in MEMORY_CALLS:
            calls.append((match[1], made[match[1]]))
        within = within or f'"{BEGIN}"' in line
    assert within, "the save did not begin"
    return calls


@pytest.mark.parametrize("before", [Recollection(), OLD], ids=["no file", "a file"])
def test_a_save_that_is_killed_at_any_call_leaves_the_old_or_the_new_and_is_no_loss(tmp_path: Path, before: Recollection) -> None:
    def prepared(name: str) -> Path:
        directory = tmp_path / name
        if before.pods:
            Keeping(str(directory)).save(before)
        return directory

    traced_save(prepared("warm"), tmp_path / "log")  # compiles what is not compiled yet
    recorded = traced_save(prepared("recorded"), tmp_path / "log")
    assert {"fsync", "rename"} <= {re.sub("at2?$", "", call) for call, _ in recorded}
    found = []
    for position, (call, ordinal) in enumerate(recorded):
        directory = prepared(str(position))
        seen = traced_save(directory, tmp_path / "log", "-e", f"inject={call}:signal=SIGKILL:when={ordinal}")
        where = f"killed at {call}, call {position}"
        assert [name for name, _ in seen] == [name for name, _ in recorded[: position + 1]], where
        keeping = Keeping(str(directory))
        known = keeping.load()
        assert known in (before, NEW), where
        found.append(known)
        keeping.save(NEW)
        assert Keeping(str(directory)).load() == NEW, where
        if known == before:
            assert os.listdir(directory) == [names.OWNERS_FILE], f"{where}: what the crash left is gone with the next save"
    assert {bool(known.pods.get("new")) for known in found} == {False, True}
