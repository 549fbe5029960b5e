"""Reading the engines' directories: what is opened, what is not, and what is remembered."""

import errno
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devward.cdi import scan as scan_module
from devward.cdi.resolve import DirectoryState, EffectiveState, ScannedDirectory, ScannedFile, ScannedType, resolve
from devward.cdi.scan import MAX_FILE_SIZE, MAX_FILES, SETTLED_NS, Scanner, scan
from devward.cdi.spec import render_hypervisor
from devward.model import DeviceKind
from devward.reasons import Reason
from sim.descriptors import open_descriptors, opened_since

OWN = "hyperlight.dev-hypervisor.json"
KVM = "hyperlight.dev/hypervisor=kvm"
GOOD = render_hypervisor([DeviceKind.KVM], uid=65534, gid=65534)


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    path = tmp_path / "cdi"
    path.mkdir(mode=0o755)
    return path


def one(path: Path) -> ScannedDirectory:
    (found,) = scan([str(path)])
    return found


def entries(path: Path) -> dict[str, ScannedFile]:
    return {file.name: file for file in one(path).files}


class Opened:
    """Counts the entries that were opened for reading."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = 0
        self.flags: list[int] = []
        real = os.open

        def counting(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            self.flags.append(flags)
            if isinstance(path, str) and path.startswith("/proc/self/fd/"):
                self.reads += 1
            return real(path, flags, *rest, **named)

        monkeypatch.setattr(scan_module.os, "open", counting)


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Fail the test when it leaves a descriptor open."""
    before = open_descriptors()
    yield
    assert not opened_since(before)


# --- what is read ----------------------------------------------------------------------------------------------------
def test_only_direct_children_with_the_two_endings_are_read_in_byte_order(etc: Path) -> None:
    """'Only direct children ending .json or .yaml are read (.yml and others ignored, directories skipped, no recursion).'"""
    for name in (
        "b.json",
        "a.yaml",
        "B.json",
        "c.yml",
        "d.JSON",
        "e.json.bak",
        "f",
        ".json",
        ".hidden.yaml",
        ".devward.b.json.x1.tmp",
        "é.json",
    ):
        (etc / name).write_bytes(GOOD)
    (etc / "sub.json").mkdir()
    (etc / "sub.json" / "x.json").write_bytes(GOOD)
    (etc / "sub").mkdir()
    (etc / "sub" / "y.json").write_bytes(GOOD)
    assert [file.name for file in one(etc).files] == [".hidden.yaml", ".json", "B.json", "a.yaml", "b.json", "é.json"]


def test_a_file_is_judged_and_described(etc: Path) -> None:
    (etc / OWN).write_bytes(GOOD)
    (etc / "bad.json").write_text("{")
    (etc / "foreign.yaml").write_text("# comment\ncdiVersion: 0.6.0\nkind: a/b\ndevices: [{name: c, containerEdits: {env: [A=b]}}]\n")
    found = entries(etc)
    facts = os.stat(etc / OWN)
    assert found[OWN].type is ScannedType.REGULAR
    assert found[OWN].spec is not None
    assert found[OWN].spec.devices == (KVM,)
    assert (found[OWN].identity, found[OWN].uid, found[OWN].mtime_ns) == ((facts.st_dev, facts.st_ino), facts.st_uid, facts.st_mtime_ns)
    assert (found["bad.json"].spec, found["bad.json"].examined) == (None, True)
    assert found["bad.json"].defect
    assert found["foreign.yaml"].spec is not None
    assert found["foreign.yaml"].spec.devices == ("a/b=c",)


def test_the_directory_is_described(etc: Path) -> None:
    etc.chmod(0o2775)
    facts = os.stat(etc)
    found = one(etc)
    assert (found.state, found.error, found.is_link, found.unexamined) == (DirectoryState.READ, "", False, 0)
    assert (found.identity, found.uid, found.gid, found.mode) == ((facts.st_dev, facts.st_ino), facts.st_uid, facts.st_gid, 0o2775)


def test_directories_come_back_in_order(tmp_path: Path, etc: Path) -> None:
    paths = [str(tmp_path / "none"), str(etc), str(tmp_path), str(etc)]
    assert [found.path for found in scan(paths)] == paths


def test_a_name_that_is_no_text_stays_a_name(etc: Path) -> None:
    name = b"caf\xe9\n.json"
    Path(os.fsdecode(os.fsencode(etc) + b"/" + name)).write_bytes(b"{")
    (found,) = one(etc).files
    assert os.fsencode(found.name) == name
    (finding,) = resolve([one(etc)], trusted_uid=os.getuid()).findings()
    assert (finding.code, finding.subject) == (Reason.CDI_FILE_MALFORMED, f"{etc}/caf\\xe9\\x0a.json")


# --- what is not opened ----------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("descriptors")
def test_nothing_but_a_regular_file_is_opened(etc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO would block, a device may act on being opened. Each is met directly and through a link."""
    os.mkfifo(etc / "fifo.json")
    os.mkfifo(tmp_path / "fifo")
    (etc / "to-fifo.json").symlink_to("../fifo")
    (etc / "to-device.json").symlink_to("/dev/zero")
    (etc / "to-directory.json").symlink_to("/")
    (etc / "to-nothing.json").symlink_to("nothing")
    (etc / "loop.json").symlink_to("loop.json")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(etc)  # the path of a socket is short
        listener.bind("socket.json")
        opened = Opened(monkeypatch)
        found = {file.name: (file.type, file.is_link) for file in one(etc).files}
    assert found == {
        "fifo.json": (ScannedType.FIFO, False),
        "loop.json": (ScannedType.UNREADABLE, True),
        "socket.json": (ScannedType.SOCKET, False),
        "to-device.json": (ScannedType.DEVICE, True),
        "to-directory.json": (ScannedType.DIRECTORY, True),
        "to-fifo.json": (ScannedType.FIFO, True),
        "to-nothing.json": (ScannedType.DANGLING, True),
    }
    assert opened.reads == 0


def test_a_fifo_that_takes_the_place_of_a_file_is_not_opened(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looking and opening, the entry may become something else: what is opened is what was looked at."""
    target = etc / "x.json"
    target.write_bytes(GOOD)
    real = os.stat

    def swap(path: Any, *rest: Any, **named: Any) -> os.stat_result:
        facts = real(path, *rest, **named)
        if path == "x.json":
            target.unlink()
            os.mkfifo(target)
        return facts

    monkeypatch.setattr(scan_module.os, "stat", swap)
    finished: list[ScannedDirectory] = []
    thread = threading.Thread(target=lambda: finished.append(one(etc)), daemon=True)
    thread.start()
    thread.join(30)
    assert finished, "the scan is blocked"
    assert finished[0].files[0].type is ScannedType.FIFO


def test_every_open_is_close_on_exec_and_never_blocks(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (etc / OWN).write_bytes(GOOD)
    opened = Opened(monkeypatch)
    scan([str(etc)])
    assert len(opened.flags) == 3
    assert all(flags & os.O_CLOEXEC for flags in opened.flags)
    assert all(flags & (os.O_NONBLOCK | os.O_PATH) for flags in opened.flags)
    assert not any(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) for flags in opened.flags)


def test_a_linked_file_is_followed_as_engines_do(etc: Path, tmp_path: Path) -> None:
    """'Symlinked files are followed.'"""
    (tmp_path / "elsewhere").write_bytes(GOOD)
    (etc / "link.json").symlink_to("../elsewhere")
    (found,) = one(etc).files
    assert (found.type, found.is_link) == (ScannedType.REGULAR, True)
    assert found.spec is not None


@pytest.mark.usefixtures("descriptors")
def test_a_file_that_cannot_be_read_is_described(etc: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("needs non-root: root may read every file")
    (etc / "x.json").write_bytes(GOOD)
    (etc / "x.json").chmod(0)
    (found,) = one(etc).files
    assert (found.type, found.examined, found.defect) == (ScannedType.UNREADABLE, False, os.strerror(errno.EACCES))


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE, errno.EWOULDBLOCK])
@pytest.mark.parametrize("call", ["read", "fstat"])
def test_an_error_while_reading_is_described(etc: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str) -> None:
    (etc / "x.json").write_bytes(GOOD)
    real = getattr(os, call)

    def fail(descriptor: int, *rest: Any) -> Any:
        if stat.S_ISDIR(os.stat(descriptor).st_mode):
            return real(descriptor, *rest)
        raise OSError(number, os.strerror(number))

    # Only for the scan: pytest has files to look at too.
    with monkeypatch.context() as patched:
        patched.setattr(scan_module.os, call, fail)
        found = one(etc)
    assert found.state is DirectoryState.READ
    assert [(file.type, file.defect) for file in found.files] == [(ScannedType.UNREADABLE, os.strerror(number))]


def test_an_entry_that_vanishes_is_described(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (etc / "x.json").write_bytes(GOOD)
    real = os.open

    def vanish(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if path == "x.json":
            (etc / "x.json").unlink()
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(scan_module.os, "open", vanish)
    assert [file.type for file in one(etc).files] == [ScannedType.VANISHED]


# --- directories -----------------------------------------------------------------------------------------------------
def test_directories_that_are_none_are_described(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nothing")
    states = {name: one(tmp_path / name).state for name in ("none", "file", "file/below", "fifo", "loop", "dangling", "nul\0")}
    assert states == {
        "none": DirectoryState.MISSING,
        "file": DirectoryState.NOT_A_DIRECTORY,
        "file/below": DirectoryState.NOT_A_DIRECTORY,
        "fifo": DirectoryState.NOT_A_DIRECTORY,
        "loop": DirectoryState.UNREADABLE,
        "dangling": DirectoryState.MISSING,
        "nul\0": DirectoryState.UNREADABLE,
    }
    assert one(tmp_path / "file").error == os.strerror(errno.ENOTDIR)


def test_a_directory_that_cannot_be_read_is_described(etc: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("needs non-root: root may read every directory")
    etc.chmod(0o311)
    found = one(etc)
    assert (found.state, found.error) == (DirectoryState.UNREADABLE, os.strerror(errno.EACCES))


def test_an_error_while_listing_is_described(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(scan_module.os, "scandir", fail)
    assert (one(etc).state, one(etc).error) == (DirectoryState.UNREADABLE, os.strerror(errno.EIO))


def test_a_linked_directory_is_read_and_told(etc: Path, tmp_path: Path) -> None:
    (etc / OWN).write_bytes(GOOD)
    (tmp_path / "link").symlink_to("cdi")
    for path in (tmp_path / "link", f"{tmp_path}/link/"):
        found = one(Path(path)) if isinstance(path, Path) else scan([path])[0]
        assert found.is_link
        assert [file.name for file in found.files] == [OWN]
    assert not one(etc).is_link


def test_one_directory_under_two_paths_is_one(etc: Path, tmp_path: Path) -> None:
    """As /var/run/cdi and /run/cdi are: the parent is the link."""
    (etc / OWN).write_bytes(GOOD)
    (tmp_path / "var").symlink_to(".")
    found = scan([str(etc), str(tmp_path / "var" / "cdi")])
    assert found[0].identity == found[1].identity
    resolution = resolve(found, trusted_uid=os.getuid())
    assert resolution.effective(KVM).file == f"{etc}/{OWN}"
    assert resolution.findings() == ()


# --- bounds ----------------------------------------------------------------------------------------------------------
def test_a_file_of_a_mebibyte_is_read_and_no_longer_one(etc: Path) -> None:
    (etc / "a.json").write_bytes(GOOD.ljust(MAX_FILE_SIZE))
    (etc / "b.json").write_bytes(GOOD.ljust(MAX_FILE_SIZE + 1))
    found = entries(etc)
    assert found["a.json"].spec is not None
    assert (found["b.json"].type, found["b.json"].spec, found["b.json"].examined) == (ScannedType.TOO_LARGE, None, False)


def test_a_file_that_grows_while_it_is_read_is_bounded(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (etc / "a.json").write_bytes(GOOD)
    read: list[int] = []

    def endless(_descriptor: int, size: int) -> bytes:
        read.append(size)
        return b" " * size

    monkeypatch.setattr(scan_module.os, "read", endless)
    (found,) = one(etc).files
    assert found.type is ScannedType.TOO_LARGE
    assert sum(read) == MAX_FILE_SIZE + 1


def test_a_thousand_files_are_examined_and_the_rest_counted(etc: Path) -> None:
    for index in range(MAX_FILES + 3):
        (etc / f"{index:05}.json").write_bytes(b"{")
    found = one(etc)
    assert len(found.files) == MAX_FILES
    assert found.files[-1].name == f"{MAX_FILES - 1:05}.json"
    assert found.unexamined == 3


def test_a_crowded_directory_is_not_listed_to_its_end(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "MAX_ENTRIES", 5)
    for index in range(10):
        (etc / f"{index}.json").write_bytes(b"{")
    found = one(etc)
    assert (len(found.files), found.unexamined) == (5, 1)


# --- memory ----------------------------------------------------------------------------------------------------------
def later() -> int:
    """A clock that runs ahead of the file system's, so that what was just written counts as settled."""
    return time.time_ns() + 2 * SETTLED_NS


def test_an_unchanged_file_is_not_read_again(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (etc / OWN).write_bytes(GOOD)
    (etc / "bad.json").write_text("{")
    scanner = Scanner(later)
    first = scanner.scan([str(etc)])
    opened = Opened(monkeypatch)
    assert scanner.scan([str(etc)]) == first
    assert opened.reads == 0
    assert scanner.scan([str(etc), str(etc)]) == first * 2


@pytest.mark.parametrize("change", ["rewrite", "replace", "times", "mode"])
def test_a_changed_file_is_read_again(etc: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    path = etc / OWN
    path.write_bytes(GOOD)
    scanner = Scanner(later)
    scanner.scan([str(etc)])
    before = os.stat(path)
    other = GOOD.replace(b"kvm", b"kvx")
    if change == "rewrite":
        # Until the file system's clock has ticked: without another ctime nothing would show it.
        while os.stat(path).st_ctime_ns == before.st_ctime_ns:
            path.write_bytes(other)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "replace":
        (etc / "new").write_bytes(other)
        os.utime(etc / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
        (etc / "new").rename(path)
    elif change == "times":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    else:
        # A changed ctime; wait for the file system's clock to tick.
        while os.stat(path).st_ctime_ns == before.st_ctime_ns:
            path.chmod(0o600)
    opened = Opened(monkeypatch)
    (found,) = scanner.scan([str(etc)])[0].files
    assert opened.reads == 1
    assert found.spec is not None
    assert (found.spec.devices == (KVM,)) == (change in ("times", "mode"))


def test_a_file_that_was_just_written_is_not_trusted_to_be_unchanged(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writes within one tick leave the same times, and may leave the same size."""
    path = etc / OWN
    path.write_bytes(GOOD)
    facts = os.stat(path)
    now = max(facts.st_mtime_ns, facts.st_ctime_ns)
    for age, reads in ((SETTLED_NS - 1, 2), (SETTLED_NS, 1)):
        with monkeypatch.context() as patched:
            opened = Opened(patched)
            scanner = Scanner(lambda age=age: now + age)  # type: ignore[misc] # a default argument
            scanner.scan([str(etc)])
            scanner.scan([str(etc)])
        assert opened.reads == reads


def test_a_file_that_changes_while_it_is_read_is_not_remembered(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = etc / OWN
    path.write_bytes(GOOD)
    real = os.read

    def grow(descriptor: int, size: int) -> bytes:
        data = real(descriptor, size)
        if data == GOOD:
            path.write_bytes(GOOD + b" ")
        return data

    scanner = Scanner(later)
    opened = Opened(monkeypatch)
    monkeypatch.setattr(scan_module.os, "read", grow)
    for reads in (1, 2, 2):
        scanner.scan([str(etc)])
        assert opened.reads == reads


def test_what_is_gone_is_forgotten(etc: Path) -> None:
    (etc / OWN).write_bytes(GOOD)
    scanner = Scanner(later)
    scanner.scan([str(etc)])
    assert len(scanner._verdicts._files) == 1
    (etc / OWN).unlink()
    scanner.scan([str(etc)])
    assert not scanner._verdicts._files


def test_the_ending_of_a_name_is_part_of_what_is_remembered(etc: Path) -> None:
    """One inode with two names: as .json its notation is remarked."""
    (etc / "a.yaml").write_text("{cdiVersion: 0.6.0, kind: a/b, devices: [{name: c, containerEdits: {env: [A=b]}}]}")
    os.link(etc / "a.yaml", etc / "b.json")
    found = {file.name: file.spec for file in Scanner(later).scan([str(etc)])[0].files}
    assert found["a.yaml"] is not None
    assert found["a.yaml"].remarks == ()
    assert found["b.json"] is not None
    assert found["b.json"].remarks


# --- the whole -------------------------------------------------------------------------------------------------------
def test_the_disk_is_left_as_it_was(etc: Path) -> None:
    (etc / OWN).write_bytes(GOOD)
    os.mkfifo(etc / "x.json")

    def state() -> list[tuple[str, int, int, int, int]]:
        return [
            (entry.name, facts.st_ino, facts.st_mode, facts.st_mtime_ns, facts.st_ctime_ns)
            for entry in sorted(os.scandir(etc), key=lambda entry: entry.name)
            for facts in [entry.stat(follow_symlinks=False)]
        ]

    before = state()
    scan([str(etc)])
    assert state() == before


def test_a_host_with_every_defect_is_told_whole(tmp_path: Path) -> None:
    etc, run = tmp_path / "etc", tmp_path / "run"
    etc.mkdir(mode=0o755)
    run.mkdir(mode=0o755)
    run.chmod(0o777)
    (etc / OWN).write_bytes(GOOD)
    (etc / "clash-a.json").write_text(
        json.dumps({"cdiVersion": "0.3.0", "kind": "a/b", "devices": [{"name": "c", "containerEdits": {"env": ["A=b"]}}]})
    )
    (etc / "clash-b.yaml").write_text("cdiVersion: 0.3.0\nkind: a/b\ndevices: [{name: c, containerEdits: {env: [A=b]}}]\n")
    (etc / "torn.json").write_bytes(GOOD[:100])
    (run / "shadow.json").write_bytes(b"# by hand\n" + GOOD)
    (run / "socket-link.json").symlink_to("/dev/null")
    (run / "gone.yaml").symlink_to("nothing")
    resolution = resolve(scan([str(etc), str(run)]), trusted_uid=os.getuid())
    assert {(finding.code, finding.subject.removeprefix(str(tmp_path))) for finding in resolution.findings()} == {
        (Reason.CDI_FILE_MALFORMED, "/etc/torn.json"),
        (Reason.CDI_DIRECTORY_WRITABLE, "/run"),
        (Reason.CDI_FILE_REMARK, "/run/shadow.json"),
        (Reason.CDI_FILE_SPECIAL, "/run/socket-link.json"),
        (Reason.CDI_FILE_UNREADABLE, "/run/gone.yaml"),
        (Reason.CDI_DEVICE_DUPLICATE, "a/b=c"),
        (Reason.CDI_SHADOWED, KVM),
    }
    assert resolution.effective(KVM).file == str(run / "shadow.json")
    assert resolution.effective("a/b=c").state is EffectiveState.DUPLICATE
    assert stat.S_IMODE(os.stat(run).st_mode) == 0o777
