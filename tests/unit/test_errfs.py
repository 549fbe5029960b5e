"""The test file system itself: what it passes through is true, what it is told to break breaks so, and nothing of it stays behind."""

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sim.errfs import DEADLINE, INTERPRETER, SERVER, ErrFs

if not os.access("/dev/fuse", os.R_OK | os.W_OK):
    pytest.skip("needs root: /dev/fuse is not open to this user", allow_module_level=True)


@pytest.fixture(name="backing")
def _backing(tmp_path: Path) -> Path:
    path = tmp_path / "backing"
    path.mkdir()
    return path


@pytest.fixture(name="mount")
def _mount(tmp_path: Path) -> Path:
    path = tmp_path / "mount"
    path.mkdir()
    return path


@pytest.fixture(name="errfs")
def _errfs(backing: Path, mount: Path) -> Iterator[ErrFs]:
    with ErrFs(backing, mount) as errfs:
        yield errfs


def is_mounted(path: Path) -> bool:
    return f" {path} " in Path("/proc/self/mountinfo").read_text()


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def in_a_process(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Run Python code that may hang in the file system: a process can be killed there, a thread of the test could not."""
    command = [sys.executable, "-c", "import os, sys, time\n" + code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


FSYNC_IT = (
    "fd = os.open(sys.argv[1], os.O_WRONLY)\ntry:\n    os.fsync(fd)\nexcept OSError as error:\n    os._exit(error.errno)\nos._exit(0)"
)


class TestPassthrough:
    def test_content_goes_both_ways(self, errfs: ErrFs, backing: Path, mount: Path) -> None:
        (mount / "one").write_bytes(b"x" * 300_000 + b"end")
        assert (backing / "one").read_bytes() == b"x" * 300_000 + b"end"
        (backing / "one").write_text("changed below")
        assert (mount / "one").read_text() == "changed below"
        with open(mount / "one", "a", encoding="ascii") as file:
            file.write(", appended")
        assert (backing / "one").read_text() == "changed below, appended"
        assert {call.operation for call in errfs.calls()} >= {"create", "write", "read", "open", "flush", "release"}

    def test_attributes_are_those_of_the_backing_file(self, errfs: ErrFs, backing: Path, mount: Path) -> None:
        (mount / "file").touch(mode=0o640)
        os.chmod(mount / "file", 0o4604)
        os.utime(mount / "file", ns=(1_000_000_001, 2_000_000_003))
        os.link(mount / "file", mount / "hard")
        os.symlink("file", mount / "soft")
        (mount / "directory").mkdir(mode=0o710)
        os.mkfifo(mount / "fifo", 0o600)
        for name in ("file", "hard", "soft", "directory", "fifo"):
            above, below = os.lstat(mount / name), os.lstat(backing / name)
            fields = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_atime_ns", "st_mtime_ns", "st_ctime_ns")
            assert [getattr(above, field) for field in fields] == [getattr(below, field) for field in fields], name
            assert (above.st_uid, above.st_gid) == (os.geteuid(), os.getegid())
        assert stat.S_IMODE(os.stat(mount / "file").st_mode) == 0o4604
        assert os.stat(mount / "file").st_mtime_ns == 2_000_000_003
        assert os.readlink(mount / "soft") == "file"
        assert sorted(os.listdir(mount)) == ["directory", "fifo", "file", "hard", "soft"]
        assert os.statvfs(mount).f_blocks == os.statvfs(backing).f_blocks
        assert errfs.calls("chmod")[-1].path == "file"

    def test_the_creators_umask_counts_and_not_the_servers(self, errfs: ErrFs, mount: Path) -> None:
        old = os.umask(0o027)
        try:
            fd = os.open(mount / "file", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o640
            os.fchmod(fd, 0o666)
            assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o666
            os.close(fd)
        finally:
            os.umask(old)
        assert errfs.calls("create", "chmod")[0].operation == "create"

    def test_an_exclusive_creation_succeeds_once(self, errfs: ErrFs, mount: Path) -> None:
        results = []

        def create() -> None:
            try:
                os.close(os.open(mount / "file", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                results.append(0)
            except OSError as error:
                results.append(error.errno or 0)

        threads = [threading.Thread(target=create) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == [0] + [errno.EEXIST] * 7
        assert errfs.calls("create")

    def test_a_rename_over_a_file_keeps_inode_numbers_and_the_old_content_open(self, errfs: ErrFs, mount: Path) -> None:
        (mount / "target").write_text("old")
        (mount / ".new.tmp").write_text("new")
        old_inode, new_inode = os.stat(mount / "target").st_ino, os.stat(mount / ".new.tmp").st_ino
        with open(mount / "target", encoding="ascii") as reader:
            directory = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
            os.rename(".new.tmp", "target", src_dir_fd=directory, dst_dir_fd=directory)
            os.fsync(directory)
            assert os.stat("target", dir_fd=directory).st_ino == new_inode
            assert os.listdir(directory) == ["target"]
            os.close(directory)
            assert reader.read() == "old"
            assert os.fstat(reader.fileno()).st_ino == old_inode
            assert os.fstat(reader.fileno()).st_nlink == 0
            assert (mount / "target").read_text() == "new"
        names = [(call.operation, call.path) for call in errfs.calls("rename", "fsyncdir")]
        assert names == [("rename", ".new.tmp"), ("fsyncdir", "")]

    def test_directory_descriptors_hold_when_the_directory_is_renamed(self, errfs: ErrFs, backing: Path, mount: Path) -> None:
        (mount / "before").mkdir()
        directory = os.open(mount / "before", os.O_PATH | os.O_DIRECTORY)
        os.rename(mount / "before", mount / "after")
        os.close(os.open("file", os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=directory))
        os.close(directory)
        assert os.listdir(backing / "after") == ["file"]
        assert errfs.calls("create")[-1].path == "after/file"

    def test_a_directory_larger_than_one_answer_is_listed_whole(self, errfs: ErrFs, backing: Path, mount: Path) -> None:
        names = [f"{number:04}-{'n' * 60}" for number in range(500)]
        for name in names:
            (backing / name).touch()
        assert sorted(os.listdir(mount)) == names
        assert len(errfs.calls("readdir")) > 1

    def test_mode_bits_are_enforced(self, errfs: ErrFs, mount: Path) -> None:
        if os.geteuid() == 0:
            pytest.skip("needs non-root: root may read anything")
        (mount / "closed").write_text("")
        os.chmod(mount / "closed", 0)
        with pytest.raises(PermissionError):
            (mount / "closed").read_text()
        assert not errfs.calls("setxattr")

    def test_an_owner_can_be_given(self, errfs: ErrFs, backing: Path, mount: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root: only root gives files away")
        (mount / "file").touch()
        os.chown(mount / "file", 1234, 5678)
        below = os.stat(backing / "file")
        assert (below.st_uid, below.st_gid) == (1234, 5678)
        assert errfs.calls("chown")[-1].path == "file"

    def test_extended_attributes_answer_as_below(self, errfs: ErrFs, backing: Path, mount: Path) -> None:
        (mount / "file").touch()
        with pytest.raises(OSError, match=r".") as below:
            os.getxattr(backing / "file", "user.devward")
        with pytest.raises(OSError, match=r".") as above:
            os.getxattr(mount / "file", "user.devward")
        assert above.value.errno == below.value.errno
        assert errfs.calls("getxattr")


def write_to(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, b"data")
    finally:
        os.close(fd)


def sync(path: Path, flags: int = os.O_WRONLY) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


#: One call of a program for each operation; `file` exists in the directory that it gets.
CALLS: dict[str, Callable[[Path], object]] = {
    "lookup": lambda mount: os.stat(mount / "file"),
    "getattr": lambda mount: os.stat(mount / "file"),
    "open": lambda mount: os.close(os.open(mount / "file", os.O_RDONLY)),
    "create": lambda mount: (mount / "new").write_text(""),
    "read": lambda mount: (mount / "file").read_bytes(),
    "write": lambda mount: write_to(mount / "file"),
    "flush": lambda mount: os.close(os.open(mount / "file", os.O_RDONLY)),
    "fsync": lambda mount: sync(mount / "file"),
    "fsyncdir": lambda mount: sync(mount, os.O_RDONLY | os.O_DIRECTORY),
    "opendir": os.listdir,
    "readdir": os.listdir,
    "rename": lambda mount: os.rename(mount / "file", mount / "other"),
    "unlink": lambda mount: os.unlink(mount / "file"),
    "mkdir": lambda mount: os.mkdir(mount / "directory"),
    "rmdir": lambda mount: os.rmdir(mount / "old-directory"),
    "mknod": lambda mount: os.mkfifo(mount / "fifo"),
    "symlink": lambda mount: os.symlink("file", mount / "soft"),
    "readlink": lambda mount: os.readlink(mount / "old-link"),
    "link": lambda mount: os.link(mount / "file", mount / "hard"),
    "chmod": lambda mount: os.chmod(mount / "file", 0o600),
    "chown": lambda mount: os.chown(mount / "file", os.geteuid(), os.getegid()),
    "truncate": lambda mount: os.truncate(mount / "file", 1),
    "utimens": lambda mount: os.utime(mount / "file", ns=(1, 1)),
    "statfs": os.statvfs,
    "setxattr": lambda mount: os.setxattr(mount / "file", "user.devward", b"1"),
    "getxattr": lambda mount: os.getxattr(mount / "file", "user.devward"),
    "listxattr": lambda mount: os.listxattr(mount / "file"),
    "removexattr": lambda mount: os.removexattr(mount / "file", "user.devward"),
}


class TestFaults:
    def test_every_operation_ends_with_the_errno_that_was_set(self, errfs: ErrFs, backing: Path, mount: Path) -> None:
        (backing / "old-directory").mkdir()
        (backing / "old-link").symlink_to("file")
        for operation, call in CALLS.items():
            (backing / "file").write_text("content")
            for name in ("EIO", "EDQUOT", "ENOSPC", "EROFS"):
                errfs.set({operation: name})
                with pytest.raises(OSError, match=r".") as caught:
                    call(mount)
                assert caught.value.errno == getattr(errno, name), (operation, name)
                errfs.clear()
                assert errfs.calls(operation)[-1].fault == name, operation
        for operation in set(CALLS) - {"setxattr", "getxattr", "removexattr"}:  # whether these work is up to the file system below
            (backing / "file").write_text("content")
            CALLS[operation](mount)
        assert (backing / "other").read_text() == "content"

    def test_a_failed_operation_was_not_done(self, errfs: ErrFs, backing: Path, mount: Path) -> None:
        (backing / "file").write_text("old")
        errfs.set({"write": "ENOSPC", "rename": "EIO", "unlink": "EROFS"})
        for call in (CALLS["write"], CALLS["rename"], CALLS["unlink"]):
            with pytest.raises(OSError, match=r"."):
                call(mount)
        assert (backing / "file").read_text() == "old"

    def test_errors_at_close_that_nobody_sees_are_survived(self, errfs: ErrFs, mount: Path) -> None:
        errfs.set({"release": "EIO", "releasedir": "EIO"})
        (mount / "file").write_text("content")
        assert os.listdir(mount) == ["file"]
        assert errfs.wait_for("release", fault="EIO").path == "file"
        assert errfs.wait_for("releasedir", fault="EIO").path == ""
        assert (mount / "file").read_text() == "content"

    def test_match_and_times_limit_a_rule_and_the_first_that_matches_applies(self, errfs: ErrFs, backing: Path, mount: Path) -> None:
        (backing / "deep").mkdir()
        for name in ("a.tmp", "deep/b.tmp", "c.json"):
            (backing / name).write_text("content")
        errfs.set({"rename": [{"errno": "EDQUOT", "match": "*.tmp", "times": 2}, {"errno": "EACCES", "match": "deep/*"}]})
        os.rename(mount / "c.json", mount / "d.json")
        for name, expected in (("a.tmp", errno.EDQUOT), ("deep/b.tmp", errno.EDQUOT), ("deep/b.tmp", errno.EACCES)):
            with pytest.raises(OSError, match=r".") as caught:
                os.rename(mount / name, mount / "e")
            assert caught.value.errno == expected
        os.rename(mount / "a.tmp", mount / "e")
        assert [call.fault for call in errfs.calls("rename")] == ["", "EDQUOT", "EDQUOT", "EACCES", ""]

    def test_a_short_write_is_short(self, errfs: ErrFs, backing: Path, mount: Path) -> None:
        (mount / "file").touch()
        errfs.set({"write": {"short": 3, "times": 1}})
        fd = os.open(mount / "file", os.O_WRONLY)
        assert os.write(fd, b"abcdefgh") == 3
        assert (backing / "file").read_bytes() == b"abc"
        assert os.write(fd, b"defgh") == 5
        os.close(fd)
        assert (backing / "file").read_bytes() == b"abcdefgh"
        assert [call.fault for call in errfs.calls("write")] == ["short", ""]

    def test_a_delayed_operation_comes_late_and_holds_up_no_other(self, errfs: ErrFs, mount: Path) -> None:
        (mount / "slow").touch()
        errfs.set({"fsync": {"delay": 0.2, "match": "slow"}})
        start = time.monotonic()
        process = in_a_process(FSYNC_IT, mount / "slow")
        errfs.wait_for("fsync", fault="delay")
        (mount / "other").write_text("not held up")
        assert process.wait(DEADLINE) == 0
        assert time.monotonic() - start >= 0.2

    def test_rules_that_could_never_apply_are_refused(self, errfs: ErrFs) -> None:
        wrong: list[dict[str, str | dict[str, object]]] = [
            {"fsynk": "EIO"},
            {"fsync": "EI0"},
            {"fsync": {"errno": 5}},
            {"fsync": {"short": 1}},
            {"fsync": {"hangs": True}},
        ]
        for rules in wrong:
            with pytest.raises((ValueError, TypeError)):
                errfs.set(rules)


class TestHang:
    def test_it_lasts_until_the_rules_change(self, errfs: ErrFs, mount: Path) -> None:
        (mount / "file").touch()
        errfs.set({"fsync": {"hang": True}})
        process = in_a_process(FSYNC_IT, mount / "file")
        errfs.wait_for("fsync", fault="hang")
        (mount / "other").write_text("not held up")
        assert process.poll() is None
        errfs.clear()
        assert process.wait(DEADLINE) == 0

    def test_the_new_rules_judge_what_hung(self, errfs: ErrFs, mount: Path) -> None:
        (mount / "file").touch()
        errfs.set({"fsync": {"hang": True}})
        process = in_a_process(FSYNC_IT, mount / "file")
        errfs.wait_for("fsync", fault="hang")
        errfs.set({"fsync": "EIO"})
        assert process.wait(DEADLINE) == errno.EIO

    def test_a_process_that_was_killed_while_it_hung_ends_with_the_hang(self, errfs: ErrFs, mount: Path) -> None:
        (mount / "file").touch()
        errfs.set({"fsync": {"hang": True}})
        process = in_a_process(FSYNC_IT, mount / "file")
        errfs.wait_for("fsync", fault="hang")
        process.kill()
        errfs.clear()
        assert process.wait(DEADLINE) == -signal.SIGKILL

    def test_leaving_frees_everybody_and_unmounts(self, backing: Path, mount: Path) -> None:
        with ErrFs(backing, mount) as errfs:
            (mount / "file").touch()
            (mount / "other").touch()
            errfs.set({"getattr": {"hang": True, "match": "other"}, "fsync": {"hang": True}})
            sync_it = in_a_process(FSYNC_IT, mount / "file")
            stat_it = in_a_process("try:\n    os.stat(sys.argv[1])\nexcept OSError as error:\n    os._exit(error.errno)", mount / "other")
            errfs.wait_for("fsync", fault="hang")
            errfs.wait_for("getattr", fault="hang")
        for process in (sync_it, stat_it):
            assert process.wait(DEADLINE) in {errno.ECONNABORTED, errno.ENOTCONN}
        assert not is_mounted(mount)
        assert os.listdir(mount) == []


class TestNothingStays:
    def test_a_server_that_was_killed_is_unmounted(self, backing: Path, mount: Path) -> None:
        with ErrFs(backing, mount) as errfs:
            os.kill(errfs.server_pid, signal.SIGKILL)
            assert eventually(lambda: not os.path.exists(mount))  # the dead connection answers ENOTCONN
            assert is_mounted(mount)
        assert not is_mounted(mount)

    def test_a_mount_ends_with_the_process_that_made_it(self, backing: Path, mount: Path) -> None:
        code = "sys.path.insert(0, sys.argv[3])\nfrom sim.errfs import ErrFs\nErrFs(sys.argv[1], sys.argv[2]).__enter__()\n"
        process = in_a_process(code + "time.sleep(600)", backing, mount, Path(__file__).parents[1])
        assert eventually(lambda: is_mounted(mount))
        process.kill()
        process.wait()
        assert eventually(lambda: not is_mounted(mount))

    def test_a_user_that_died_while_it_was_mounted_leaves_nothing(self, tmp_path: Path, backing: Path, mount: Path) -> None:
        for name, content in (("control", "{}"), ("calls", "")):
            (tmp_path / name).write_text(content)
        reader, writer = os.pipe()
        command = [INTERPRETER, "-I", "-B", SERVER, backing, mount, tmp_path / "control", tmp_path / "calls"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.DEVNULL) as server:
            os.close(writer)
            os.close(reader)
            assert server.stdin is not None
            server.stdin.close()
            assert server.wait(DEADLINE) == 0
        assert not is_mounted(mount)

    def test_an_unmount_from_outside_is_no_error(self, backing: Path, mount: Path) -> None:
        with ErrFs(backing, mount) as errfs:
            command = ["umount", mount] if os.geteuid() == 0 else ["fusermount3", "-u", mount]
            subprocess.run(command, check=True)
            assert not is_mounted(mount)
            errfs.clear()

    def test_what_cannot_be_mounted_says_why_and_leaves_nothing(self, tmp_path: Path, mount: Path) -> None:
        with pytest.raises(RuntimeError, match="No such file or directory"), ErrFs(tmp_path / "absent", mount):
            pass
        assert not is_mounted(mount)
