"""Writing one owned file: atomic and durable (R2), no other file is ever touched (R6, R7), and every failure has its code (R8)."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devward import names
from devward.cdi import store
from devward.cdi.store import EntryType, NotAsWritten, StoreError
from devward.reasons import Reason
from sim.descriptors import open_descriptors, opened_since
from sim.entries import DEVICE, OBSTRUCTIONS, OpenWatch, fingerprint
from sim.store_calls import NAME, NEW, OLD, entries, look, promptly, refused, remove, write

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: owners, immutable files, mounts or device nodes")
ALL_OBSTRUCTIONS = [
    *(pytest.param(*value, id=key) for key, value in OBSTRUCTIONS.items()),
    pytest.param(*DEVICE, id="device", marks=needs_root),
]


@pytest.fixture(name="directory")
def _directory(tmp_path: Path) -> Path:
    directory = tmp_path / "etc" / "cdi"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture(name="path")
def _path(directory: Path) -> Path:
    return directory / NAME


@pytest.fixture(name="umask", params=[0o000, 0o022, 0o077, 0o177], ids="umask {:03o}".format)
def _umask(request: pytest.FixtureRequest) -> Iterator[int]:
    old = os.umask(request.param)
    yield request.param
    os.umask(old)


# --- a plain write -------------------------------------------------------------------------------------------------------
class TestWrite:
    @pytest.mark.parametrize("there", [None, OLD, b""], ids=["missing", "existing", "empty"])
    def test_the_file_is_exact_and_world_readable_whatever_the_umask(self, path: Path, umask: int, there: bytes | None) -> None:
        if there is not None:
            path.write_bytes(there)
        write(path)
        assert path.read_bytes() == NEW
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert (path.stat().st_uid, path.stat().st_gid, path.stat().st_nlink) == (os.geteuid(), os.getegid(), 1)
        assert entries(path.parent) == [NAME]

    @pytest.mark.parametrize("missing", ["cdi", "etc/cdi", "one/two/three/cdi"])
    def test_a_missing_directory_is_made_with_mode_0755(self, tmp_path: Path, umask: int, missing: str) -> None:
        os.umask(0o077)
        directory = tmp_path / "host" / missing
        (tmp_path / "host").mkdir()
        os.umask(umask & 0o077)  # a umask that hides our own directory from ourselves is beyond what a user other than root can mend
        write(directory / NAME)
        made = directory
        while made != tmp_path / "host":
            assert stat.S_IMODE(made.stat().st_mode) == 0o755, made
            made = made.parent
        assert (directory / NAME).read_bytes() == NEW
        assert stat.S_IMODE((tmp_path / "host").stat().st_mode) == 0o700

    @needs_root
    def test_root_makes_the_directory_under_the_tightest_umask(self, tmp_path: Path) -> None:
        old = os.umask(0o777)
        try:
            write(tmp_path / "etc" / "cdi" / NAME)
        finally:
            os.umask(old)
        assert stat.S_IMODE((tmp_path / "etc").stat().st_mode) == stat.S_IMODE((tmp_path / "etc" / "cdi").stat().st_mode) == 0o755
        assert (tmp_path / "etc" / "cdi" / NAME).read_bytes() == NEW

    def test_the_mode_of_a_directory_that_exists_stays(self, path: Path) -> None:
        path.parent.chmod(0o700)
        write(path)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    def test_a_directory_that_somebody_else_makes_first_is_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        directory = tmp_path / "cdi"
        real = os.mkdir

        def late(path: str, mode: int) -> None:
            real(path, 0o711)
            real(path, mode)

        monkeypatch.setattr(os, "mkdir", late)
        write(directory / NAME)
        assert (directory / NAME).read_bytes() == NEW
        assert stat.S_IMODE(directory.stat().st_mode) == 0o711

    def test_the_group_of_a_set_group_id_directory_is_not_taken_over(self, path: Path) -> None:
        other = 54321 if os.geteuid() == 0 else os.getegid()
        os.chown(path.parent, -1, other)
        path.parent.chmod(0o2755)
        write(path)
        assert path.stat().st_gid == os.getegid()

    def test_the_old_inode_is_replaced_never_written_to(self, path: Path) -> None:
        path.write_bytes(OLD)
        with path.open("rb") as reader:
            write(path)
            assert reader.read() == OLD

    def test_a_short_write_is_continued(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.write
        monkeypatch.setattr(os, "write", lambda file, data: real(file, bytes(data)[:7]))
        write(path)
        assert path.read_bytes() == NEW

    def test_engines_see_no_name_of_the_unfinished_file(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Engines read names that end in .json or .yaml; until the rename there is none (R2)."""
        path.write_bytes(OLD)
        seen: list[tuple[list[str], bytes]] = []
        for call in ("write", "fchmod", "fsync", "close", "unlink"):
            real = getattr(os, call)

            def spy(*arguments: object, real: Callable[..., object] = real, **named: object) -> object:
                seen.append((entries(path.parent), path.read_bytes()))
                return real(*arguments, **named)

            monkeypatch.setattr(os, call, spy)
        write(path)
        monkeypatch.undo()
        assert len(seen) > 5
        for there, content in seen:
            temporary = set(there) - {NAME}
            assert len(temporary) <= 1
            assert all(name.startswith(".") and not name.endswith((".json", ".yaml")) for name in temporary)
            assert content in (OLD, NEW)

    def test_a_file_is_durable_before_it_has_its_name_and_the_name_after(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        order: list[str] = []
        sync, rename = os.fsync, store._rename

        def spy_sync(file: int) -> None:
            order.append("fsync directory" if stat.S_ISDIR(os.fstat(file).st_mode) else f"fsync {os.fstat(file).st_size}")
            sync(file)

        def spy_rename(*arguments: object) -> None:
            order.append("rename")
            rename(*arguments)  # type: ignore[arg-type] # passed on as they came

        monkeypatch.setattr(os, "fsync", spy_sync)
        monkeypatch.setattr(store, "_rename", spy_rename)
        write(path)
        assert order == [f"fsync {len(NEW)}", "rename", "fsync directory"]

    def test_the_directory_that_was_made_is_durable_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        synced: list[str] = []
        real = os.fsync

        def spy(file: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{file}"))
            real(file)

        monkeypatch.setattr(os, "fsync", spy)
        write(tmp_path / "etc" / "cdi" / NAME)
        assert {str(tmp_path), str(tmp_path / "etc"), str(tmp_path / "etc" / "cdi")} <= set(synced)

    @pytest.mark.parametrize("act", ["remove", "sweep"])
    def test_what_is_removed_is_gone_for_good(self, path: Path, act: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file that is back after a crash would offer a device again that was withdrawn."""
        order: list[str] = []
        sync, unlink = os.fsync, os.unlink

        def spy_sync(file: int) -> None:
            order.append(f"fsync {os.readlink(f'/proc/self/fd/{file}')}")
            sync(file)

        def spy_unlink(*words: str, **named: int) -> None:
            order.append("unlink")
            unlink(*words, **named)

        path.write_bytes(OLD)
        (path.parent / f".devward.{NAME}.0123456789abcdef.tmp").touch()
        monkeypatch.setattr(os, "fsync", spy_sync)
        monkeypatch.setattr(os, "unlink", spy_unlink)
        if act == "remove":
            assert remove(path)
        else:
            assert len(store.sweep(str(path.parent))) == 1
        assert order == ["unlink", f"fsync {path.parent}"]

    def test_no_descriptor_is_left_open(self, path: Path) -> None:
        before = open_descriptors()
        write(path)
        look(path)
        store.fresh_label(str(path.parent), NAME)
        store.sweep(str(path.parent))
        remove(path)
        path.mkdir()
        refused(lambda: write(path), Reason.CDI_NOT_REGULAR)
        refused(lambda: remove(path), Reason.CDI_NOT_REGULAR)
        assert not opened_since(before)

    def test_what_does_not_read_back_is_an_error(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.fsync

        def tamper(file: int) -> None:
            if stat.S_ISDIR(os.fstat(file).st_mode):
                path.write_bytes(b"tampered")
            real(file)

        monkeypatch.setattr(os, "fsync", tamper)
        with pytest.raises(NotAsWritten) as caught:
            write(path)
        assert caught.value.reason is Reason.CDI_IO_ERROR

    def test_a_mode_that_does_not_stick_is_an_error(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on a file system that knows no modes."""
        monkeypatch.setattr(os, "fchmod", lambda _file, _mode: None)
        with pytest.raises(NotAsWritten):
            write(path)

    def test_a_directory_that_was_replaced_meanwhile_is_noticed(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.fsync

        def replace(file: int) -> None:
            real(file)
            if stat.S_ISREG(os.fstat(file).st_mode):
                path.parent.rename(path.parent.parent / "gone")
                path.parent.mkdir()

        monkeypatch.setattr(os, "fsync", replace)
        refused(lambda: write(path), Reason.CDI_MISSING)
        assert not path.exists()

    def test_a_directory_that_was_removed_meanwhile_is_noticed(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.open

        def remove_it(name: str, flags: int, *arguments: int, **named: int) -> int:
            if flags & os.O_CREAT:
                path.parent.rmdir()
            return real(name, flags, *arguments, **named)

        monkeypatch.setattr(os, "open", remove_it)
        assert refused(lambda: write(path), Reason.CDI_MISSING).error == errno.ENOENT


_READER = """
import os, sys
path, old, new = sys.argv[1], bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3])
seen, last, changes = [0, 0], 0, 0
# On a slow disk all of them may see few documents: until enough of them have been written.
while sum(seen) < 100_000 or changes <= 10:
    file = os.open(path, os.O_RDONLY)
    data = os.read(file, 65536)
    os.close(file)
    number = [old, new].index(data)
    seen[number] += 1
    changes += number != last
    last = number
print(*seen)
"""


def test_r2_a_hundred_thousand_readers_see_the_whole_old_or_the_whole_new_document(path: Path) -> None:
    path.write_bytes(OLD)
    reader = subprocess.Popen(
        [sys.executable, "-I", "-c", _READER, str(path), OLD.hex(), NEW.hex()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    turn = 0
    while reader.poll() is None:
        write(path, (NEW, OLD)[turn % 2])
        turn += 1
    output, errors = reader.communicate()
    assert reader.returncode == 0, errors
    assert sum(map(int, output.split())) >= 100_000
    assert turn > 10
    assert entries(path.parent) == [NAME]


# --- what is not a regular file (R6) ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("entry", "make"), ALL_OBSTRUCTIONS)
class TestObstruction:
    def test_it_is_refused_untouched_and_never_opened(self, path: Path, entry: str, make: Callable[[Path], None]) -> None:
        make(path)
        before = fingerprint(path)
        watch = OpenWatch(path)
        found = look(path)
        assert (found.entry, found.data) == (entry, None)
        assert entry in str(refused(lambda: write(path), Reason.CDI_NOT_REGULAR))
        refused(lambda: remove(path), Reason.CDI_NOT_REGULAR)
        assert not watch.opened()
        assert fingerprint(path) == before
        assert entries(path.parent) == [NAME]

    @pytest.mark.parametrize("moment", ["fsync", "rename"])
    @pytest.mark.parametrize("there", [None, OLD], ids=["missing", "existing"])
    def test_one_that_appears_during_a_write_survives(
        self, path: Path, entry: str, make: Callable[[Path], None], moment: str, there: bytes | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The swap comes between the look and the rename, or right before the rename itself."""
        if there is not None:
            path.write_bytes(there)
        made: list[tuple[object, ...]] = []

        def swap() -> None:
            if not made:
                path.unlink(missing_ok=True)
                make(path)
                made.append(fingerprint(path))

        sync, rename = os.fsync, store._rename
        if moment == "fsync":
            monkeypatch.setattr(os, "fsync", lambda file: (swap(), sync(file))[1])
        else:
            monkeypatch.setattr(store, "_rename", lambda *words: (swap(), rename(*words))[1])
        refused(lambda: write(path), Reason.CDI_NOT_REGULAR)
        assert fingerprint(path) == made[0]
        assert entries(path.parent) == [NAME]

    def test_one_that_appears_during_a_removal_survives(
        self, path: Path, entry: str, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path.write_bytes(OLD)
        made: list[tuple[object, ...]] = []
        real = os.rename

        def swap(source: str, target: str, **named: int) -> None:
            path.unlink()
            make(path)
            made.append(fingerprint(path))
            real(source, target, **named)

        monkeypatch.setattr(os, "rename", swap)
        refused(lambda: remove(path), Reason.CDI_NOT_REGULAR)
        assert fingerprint(path) == made[0]
        assert entries(path.parent) == [NAME]


class TestRegularFiles:
    def test_a_second_name_keeps_the_old_content(self, path: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        other.write_bytes(OLD)
        other.chmod(0o600)
        os.link(other, path)
        assert look(path).links == 2
        write(path)
        assert (path.read_bytes(), path.stat().st_nlink) == (NEW, 1)
        assert (other.read_bytes(), other.stat().st_nlink, stat.S_IMODE(other.stat().st_mode)) == (OLD, 1, 0o600)

    def test_removing_a_name_keeps_the_other(self, path: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        other.write_bytes(OLD)
        os.link(other, path)
        assert remove(path)
        assert other.read_bytes() == OLD
        assert entries(path.parent) == []

    def test_removal_tells_whether_something_was_there(self, path: Path) -> None:
        path.write_bytes(OLD)
        assert remove(path) is True
        assert remove(path) is False
        path.parent.rmdir()
        assert remove(path) is False

    def test_a_look_tells_everything(self, path: Path) -> None:
        path.write_bytes(OLD)
        path.chmod(0o640)
        os.utime(path, ns=(1, 1_700_000_000_123_456_789))
        found = look(path)
        assert (found.directory, found.entry, found.data) == (EntryType.DIRECTORY, EntryType.REGULAR, OLD)
        assert (found.mode, found.uid, found.gid, found.links) == (0o640, os.geteuid(), path.stat().st_gid, 1)
        assert found.mtime_usec == 1_700_000_000_123_456

    def test_a_look_at_nothing(self, path: Path) -> None:
        assert (look(path).directory, look(path).entry) == (EntryType.DIRECTORY, EntryType.MISSING)
        path.parent.rmdir()
        assert (look(path).directory, look(path).entry, look(path).reason) == (EntryType.MISSING, EntryType.MISSING, Reason.OK)

    @pytest.mark.parametrize("size", [store.MAXIMUM_SIZE + 1, 1 << 40], ids=["just too large", "1 TiB, sparse"])
    def test_an_oversized_file_is_malformed_and_not_read(self, path: Path, size: int) -> None:
        path.touch()
        os.truncate(path, size)
        watch = OpenWatch(path)
        found = look(path)
        assert not watch.opened()
        assert (found.entry, found.data, found.reason) == (EntryType.REGULAR, None, Reason.CDI_MALFORMED)
        write(path)
        assert path.read_bytes() == NEW

    def test_a_file_that_grows_while_it_is_read_is_malformed(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path.write_bytes(OLD)
        real = os.read
        monkeypatch.setattr(os, "read", lambda file, size: real(file, size) or b"x" * min(size, 65536))
        found = look(path)
        assert (found.data, found.reason) == (None, Reason.CDI_MALFORMED)

    def test_the_largest_file_is_read(self, path: Path) -> None:
        path.write_bytes(b"x" * store.MAXIMUM_SIZE)
        assert look(path).data == b"x" * store.MAXIMUM_SIZE

    def test_a_lease_on_the_file_holds_nobody_up(self, path: Path) -> None:
        """An ordinary open of a file under a write lease waits for its holder, up to 45 s by default."""
        path.write_bytes(OLD)
        with path.open("r+b") as holder:
            fcntl.fcntl(holder, fcntl.F_SETSIG, 23)  # SIGURG, which is ignored, instead of SIGIO, which kills
            fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            found = look(path)
            assert (found.entry, found.data) == (EntryType.REGULAR, None)
            promptly(lambda: write(path))
        assert path.read_bytes() == NEW

    def test_a_file_that_changed_after_it_was_copied_is_not_replaced(self, path: Path) -> None:
        """A foreign file is replaced only if that very content was backed up."""
        path.write_bytes(b"changed since")
        with pytest.raises(StoreError) as caught:
            store.write(str(path.parent), NAME, NEW, copied=OLD)
        assert caught.value.reason is Reason.CDI_MISSING
        with pytest.raises(StoreError):
            store.remove(str(path.parent), NAME, copied=OLD)
        assert path.read_bytes() == b"changed since"
        assert entries(path.parent) == [NAME]

    @pytest.mark.parametrize("act", ["write", "remove"])
    def test_a_file_that_changes_at_the_last_moment_is_put_back(self, path: Path, act: str, monkeypatch: pytest.MonkeyPatch) -> None:
        path.write_bytes(OLD)
        swapped: list[int] = []

        def swap() -> None:
            if not swapped:
                swapped.append(1)
                (path.parent / "x").write_bytes(b"the admin's")
                (path.parent / "x").replace(path)

        exchange, rename = store._rename, os.rename
        monkeypatch.setattr(store, "_rename", lambda *words: (swap(), exchange(*words))[1])
        monkeypatch.setattr(os, "rename", lambda *words, **named: (swap(), rename(*words, **named))[1])
        directory = str(path.parent)
        acts = {
            "write": lambda: store.write(directory, NAME, NEW, copied=OLD),
            "remove": lambda: store.remove(directory, NAME, copied=OLD),
        }
        refused(acts[act], Reason.CDI_MISSING)
        assert path.read_bytes() == b"the admin's"
        assert entries(path.parent) == [NAME]

    def test_a_file_that_is_the_one_that_was_copied_is_replaced(self, path: Path) -> None:
        path.write_bytes(OLD)
        store.write(str(path.parent), NAME, NEW, copied=OLD)
        assert path.read_bytes() == NEW
        assert store.remove(str(path.parent), NAME, copied=NEW)
        assert entries(path.parent) == []

    def test_the_name_may_come_and_go_all_the_time(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rename, flags = store._rename, []

        def toggle(directory: int, source: str, target: str, flag: int) -> None:
            if len(flags) < 4:
                path.unlink() if path.exists() else path.write_bytes(OLD)
            flags.append(flag)
            rename(directory, source, target, flag)

        monkeypatch.setattr(store, "_rename", toggle)
        write(path)
        assert flags == [1, 2, 1, 2, 1]
        assert path.read_bytes() == NEW
        assert entries(path.parent) == [NAME]

    def test_a_name_that_never_stands_still_is_given_up(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rename = store._rename

        def toggle(*words: object) -> None:
            path.unlink() if path.exists() else path.write_bytes(OLD)
            rename(*words)  # type: ignore[arg-type] # passed on as they came

        monkeypatch.setattr(store, "_rename", toggle)
        with pytest.raises(StoreError):
            write(path)
        assert set(entries(path.parent)) <= {NAME}


# --- the directory ----------------------------------------------------------------------------------------------------------
class TestDirectory:
    @pytest.mark.parametrize("kind", ["link", "dangling link", "file", "FIFO"])
    def test_what_is_not_a_directory_is_refused(self, tmp_path: Path, kind: str) -> None:
        directory, real = tmp_path / "cdi", tmp_path / "real"
        real.mkdir()
        (real / NAME).write_bytes(OLD)
        if kind == "link":
            directory.symlink_to(real)
        elif kind == "dangling link":
            directory.symlink_to(tmp_path / "nowhere")
        elif kind == "file":
            directory.write_text("x")
        else:
            os.mkfifo(directory)
        found = look(directory / NAME)
        assert (found.directory, found.entry, found.data, found.reason) == (
            EntryType.LINK,
            EntryType.MISSING,
            None,
            Reason.CDI_DIRECTORY_LINK,
        )
        refused(lambda: write(directory / NAME), Reason.CDI_DIRECTORY_LINK)
        refused(lambda: remove(directory / NAME), Reason.CDI_DIRECTORY_LINK)
        refused(lambda: store.sweep(str(directory)), Reason.CDI_DIRECTORY_LINK)
        refused(lambda: store.fresh_label(str(directory), NAME), Reason.CDI_DIRECTORY_LINK)
        assert (real / NAME).read_bytes() == OLD
        assert not (tmp_path / "nowhere").exists()

    def test_a_parent_that_is_a_link_is_followed(self, tmp_path: Path) -> None:
        """/var/run is a link to /run."""
        (tmp_path / "run").mkdir()
        (tmp_path / "var").symlink_to("run")
        write(tmp_path / "var" / "cdi" / NAME)
        assert (tmp_path / "run" / "cdi" / NAME).read_bytes() == NEW

    @needs_root
    def test_a_directory_of_another_user_is_not_written(self, path: Path) -> None:
        path.write_bytes(OLD)
        temporary = path.parent / f".devward.{NAME}.0123456789abcdef.tmp"
        temporary.touch()
        os.chown(path.parent, 1234, 0)
        found = look(path)
        assert (found.entry, found.data, found.reason) == (EntryType.MISSING, None, Reason.CDI_UNWRITABLE)
        assert "1234" in found.detail
        refused(lambda: write(path), Reason.CDI_UNWRITABLE)
        refused(lambda: remove(path), Reason.CDI_UNWRITABLE)
        assert store.sweep(str(path.parent)) == ()
        assert path.read_bytes() == OLD
        assert temporary.exists()

    @needs_root
    def test_an_immutable_file_stays(self, path: Path) -> None:
        path.write_bytes(OLD)
        subprocess.run(["chattr", "+i", str(path)], check=True)
        try:
            refused(lambda: write(path), Reason.CDI_IMMUTABLE)
            refused(lambda: remove(path), Reason.CDI_IMMUTABLE)
            assert path.read_bytes() == OLD
            assert entries(path.parent) == [NAME]
        finally:
            subprocess.run(["chattr", "-i", str(path)], check=True)
        write(path)
        assert path.read_bytes() == NEW

    @needs_root
    def test_an_immutable_directory_stays(self, path: Path) -> None:
        path.write_bytes(OLD)
        subprocess.run(["chattr", "+i", str(path.parent)], check=True)
        try:
            refused(lambda: write(path), Reason.CDI_IMMUTABLE)
            refused(lambda: remove(path), Reason.CDI_IMMUTABLE)
            refused(lambda: write(path.parent / "deeper" / NAME), Reason.CDI_IMMUTABLE)
        finally:
            subprocess.run(["chattr", "-i", str(path.parent)], check=True)
        write(path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="needs non-root: permissions do not bind root")
    def test_r8_without_root_an_unwritable_directory_is_refused_and_recovers(self, path: Path) -> None:
        path.write_bytes(OLD)
        path.parent.chmod(0o555)
        refused(lambda: write(path), Reason.CDI_UNWRITABLE)
        refused(lambda: remove(path), Reason.CDI_UNWRITABLE)
        refused(lambda: write(path.parent / "deeper" / NAME), Reason.CDI_UNWRITABLE)
        assert path.read_bytes() == OLD
        path.parent.chmod(0o000)
        assert (look(path).directory, look(path).reason) == (EntryType.UNREADABLE, Reason.CDI_UNWRITABLE)
        path.parent.chmod(0o755)
        write(path)
        assert path.read_bytes() == NEW

    @pytest.mark.skipif(os.geteuid() == 0, reason="needs non-root: permissions do not bind root")
    def test_without_root_a_file_that_cannot_be_read_says_so(self, path: Path) -> None:
        path.write_bytes(OLD)
        path.chmod(0)
        found = look(path)
        assert (found.entry, found.data, found.reason) == (EntryType.REGULAR, None, Reason.CDI_UNWRITABLE)


# --- leftovers ---------------------------------------------------------------------------------------------------------------
class TestSweep:
    OURS = (f".devward.{NAME}.0123456789abcdef.tmp", ".devward.other.yaml.fedcba9876543210.tmp")
    OTHERS = (
        NAME,
        f"{NAME}.tmp",
        ".devward.tmp",
        ".devward.notes.tmp",
        f".devward.{NAME}.0123456789abcdef.tmp.json",
        f".devward.{NAME}.0123456789abcde.tmp",
        f".devward.{NAME}.0123456789ABCDEF.tmp",
        f"x.devward.{NAME}.0123456789abcdef.tmp",
        ".spec.12345.tmp",
        f".{NAME}.swp",
    )

    def test_only_our_own_temporary_files_go(self, directory: Path) -> None:
        for name in (*self.OURS, *self.OTHERS):
            (directory / name).write_text(name)
        assert store.sweep(str(directory)) == tuple(sorted(self.OURS))
        assert entries(directory) == sorted(self.OTHERS)
        assert store.sweep(str(directory)) == ()

    @pytest.mark.parametrize(("_entry", "make"), ALL_OBSTRUCTIONS)
    def test_what_is_not_a_regular_file_stays(self, directory: Path, _entry: str, make: Callable[[Path], None]) -> None:
        make(directory / self.OURS[0])
        before = fingerprint(directory / self.OURS[0])
        assert promptly(lambda: store.sweep(str(directory))) == ()
        assert fingerprint(directory / self.OURS[0]) == before

    @needs_root
    def test_the_file_of_another_owner_that_was_being_replaced_goes_too(self, directory: Path) -> None:
        """Killed between the exchange and the unlink, devward leaves the old file under the temporary name, with its owner."""
        (directory / self.OURS[0]).touch()
        os.chown(directory / self.OURS[0], 1234, 1234)
        assert store.sweep(str(directory)) == (self.OURS[0],)

    def test_a_missing_directory_has_no_leftovers(self, tmp_path: Path) -> None:
        assert store.sweep(str(tmp_path / "cdi")) == ()

    def test_what_a_write_makes_is_what_a_sweep_takes(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store, "_discard", lambda *_words: None)
        monkeypatch.setattr(store, "_put_in_place", lambda *_words: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write(path)
        (leftover,) = entries(path.parent)
        assert leftover.startswith(names.TEMPORARY_PREFIX)
        assert leftover.endswith(names.TEMPORARY_SUFFIX)
        assert store.sweep(str(path.parent)) == (leftover,)


# --- labels ------------------------------------------------------------------------------------------------------------------
@needs_root
class TestLabel:
    """security.selinux can be set by root on most file systems where no security module is active."""

    def test_a_look_tells_the_label(self, path: Path) -> None:
        path.write_bytes(OLD)
        assert look(path).label is None
        os.setxattr(path, store.LABEL_ATTRIBUTE, b"system_u:object_r:tmp_t:s0\0")
        assert look(path).label == "system_u:object_r:tmp_t:s0"

    def test_a_write_gives_the_label_of_a_fresh_file(self, path: Path) -> None:
        path.write_bytes(OLD)
        os.setxattr(path, store.LABEL_ATTRIBUTE, b"wrong\0")
        assert write(path) == store.fresh_label(str(path.parent), NAME)
        assert look(path).label == store.fresh_label(str(path.parent), NAME)
        assert entries(path.parent) == [NAME]

    def test_the_label_is_read_of_the_file_itself(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.getxattr
        monkeypatch.setattr(os, "getxattr", lambda file, name: b"fresh_t\0" if isinstance(file, int) else real(file, name))
        assert write(path) == "fresh_t"
        assert store.fresh_label(str(path.parent), NAME) == "fresh_t"
