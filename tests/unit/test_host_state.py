"""R26: the comparator around a run accepts a host that stayed as it was and rejects every deliberate change; so for leftovers."""

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

#: Lines of a mount table.
PROC = "24 1 0:22 / /proc rw,nosuid shared:12 - proc proc rw\n"
ROOT = "25 1 254:0 / / rw - ext4 /dev/vda rw\n"
PROGRAM = Path(__file__).parents[2] / ".ci" / "host_state.py"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes device nodes or gives files away")


def run(*arguments: object) -> tuple[int, str]:
    done = subprocess.run([sys.executable, PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


@dataclass(frozen=True)
class Host:
    """A host of directories that a test may change."""

    dev: Path
    cdi: Path
    mounts: Path
    record: Path

    def save(self) -> None:
        assert run("save", self.record, *self._places) == (0, "")

    def compare(self) -> tuple[int, str]:
        return run("compare", self.record, *self._places)

    @property
    def _places(self) -> tuple[object, ...]:
        return ("--dev", self.dev, "--cdi", self.cdi, "--mounts", self.mounts)


@pytest.fixture(name="host")
def _host(tmp_path: Path) -> Host:
    host = Host(tmp_path / "dev", tmp_path / "cdi", tmp_path / "mountinfo", tmp_path / "record")
    (host.dev / "sub").mkdir(parents=True)
    (host.dev / "pts").mkdir()
    host.cdi.mkdir()
    (host.cdi / "vendor.json").write_text("{}")
    (host.cdi / "link.json").symlink_to("vendor.json")
    host.mounts.write_text(PROC + ROOT)
    if os.geteuid() == 0:
        os.mknod(host.dev / "kvm", 0o020660, os.makedev(10, 232))
        os.chmod(host.dev / "kvm", 0o660)
        os.mknod(host.dev / "sub" / "disk", 0o060600, os.makedev(7, 0))
    host.save()
    return host


def _replace_node(mode: int, number: tuple[int, int]) -> Callable[[Host], None]:
    def change(host: Host) -> None:
        os.unlink(host.dev / "kvm")
        os.mknod(host.dev / "kvm", mode, os.makedev(*number))
        os.chmod(host.dev / "kvm", mode & 0o7777)

    return change


def _set_acl(name: str) -> Callable[[Host], None]:
    def act(host: Host) -> None:
        subprocess.run(["setfacl", "-m", "u:1234:rw", host.record.parent / name], check=True)

    return act


def _retarget(host: Host) -> None:
    times = os.lstat(host.cdi).st_mtime_ns
    os.unlink(host.cdi / "link.json")
    os.symlink("elsewhere", host.cdi / "link.json")
    os.utime(host.cdi, ns=(times, times))


def _swap_content(host: Host) -> None:
    """Other content of the same length, with the time put back."""
    status = os.stat(host.cdi / "vendor.json")
    (host.cdi / "vendor.json").write_text("[]")
    os.utime(host.cdi / "vendor.json", ns=(status.st_mtime_ns, status.st_mtime_ns))


NODE_CHANGES: dict[str, tuple[Callable[[Host], object], str]] = {
    "mode": (lambda host: os.chmod(host.dev / "kvm", 0o666), "dev/kvm: mode was 0660, is 0666"),
    "owner": (lambda host: os.chown(host.dev / "kvm", 1234, -1), "dev/kvm: owner was 0, is 1234"),
    "group": (lambda host: os.chown(host.dev / "kvm", -1, 1234), "dev/kvm: group was 0, is 1234"),
    "number": (_replace_node(0o020660, (1, 3)), "dev/kvm: number was 10:232, is 1:3"),
    "type": (_replace_node(0o060660, (10, 232)), "dev/kvm: type was character, is block"),
    "acl": (_set_acl("dev/kvm"), "dev/kvm: acl was none, is user::rw-,user:1234:rw-,group::rw-,mask::rw-,other::---"),
    "vanished": (lambda host: os.unlink(host.dev / "sub" / "disk"), "dev/sub/disk: vanished"),
    "new": (lambda host: os.mknod(host.dev / "mshv", 0o020600, os.makedev(10, 1)), "dev/mshv: new: type character, mode 0600"),
    "a link in its place": (lambda host: os.replace(host.cdi / "link.json", host.dev / "kvm"), "dev/kvm: vanished"),
}

FILE_CHANGES: dict[str, tuple[Callable[[Host], object], str]] = {
    "content": (_swap_content, "cdi/vendor.json: sha256 was"),
    "mode": (lambda host: os.chmod(host.cdi / "vendor.json", 0o666), "cdi/vendor.json: mode was"),
    "acl": (_set_acl("cdi/vendor.json"), "cdi/vendor.json: acl was none"),
    "rewritten": (lambda host: os.utime(host.cdi / "vendor.json", ns=(1, 1)), "cdi/vendor.json: mtime was"),
    "hard link": (lambda host: os.link(host.cdi / "vendor.json", host.record.parent / "other"), "cdi/vendor.json: links was 1, is 2"),
    "link target": (_retarget, "cdi/link.json: target was vendor.json, is elsewhere"),
    "new": (lambda host: (host.cdi / "new.json").write_text("{}"), "cdi/new.json: new: type -"),
    "vanished": (lambda host: os.unlink(host.cdi / "vendor.json"), "cdi/vendor.json: vanished"),
    "directory mode": (lambda host: os.chmod(host.cdi, 0o700), "cdi: mode was"),
    "directory vanished": (lambda host: shutil.rmtree(host.cdi), "cdi: vanished"),
}


class TestComparison:
    def test_r26_no_change_is_accepted(self, host: Host) -> None:
        assert host.compare() == (0, "")
        (host.cdi / "vendor.json").read_text()
        assert host.compare() == (0, "")

    @needs_root
    @pytest.mark.parametrize("change", NODE_CHANGES)
    def test_r26_a_changed_device_node_is_rejected(self, host: Host, change: str) -> None:
        act, expected = NODE_CHANGES[change]
        act(host)
        status, text = host.compare()
        assert status == 1
        assert f"device {host.record.parent}/{expected}" in text

    @pytest.mark.parametrize("change", FILE_CHANGES)
    def test_a_changed_cdi_directory_is_rejected(self, host: Host, change: str) -> None:
        act, expected = FILE_CHANGES[change]
        act(host)
        status, text = host.compare()
        assert status == 1
        assert f"cdi {host.record.parent}/{expected}" in text

    @needs_root
    def test_a_cdi_file_that_was_given_away_is_rejected(self, host: Host) -> None:
        os.chown(host.cdi / "vendor.json", 1234, 5678)
        status, text = host.compare()
        assert status == 1
        assert "owner was 0, is 1234" in text
        assert "group was 0, is 5678" in text

    @needs_root
    def test_terminals_come_and_go(self, host: Host) -> None:
        os.mknod(host.dev / "pts" / "7", 0o020600, os.makedev(136, 7))
        assert host.compare() == (0, "")

    def test_a_cdi_directory_that_appeared_is_rejected(self, host: Host) -> None:
        shutil.rmtree(host.cdi)
        host.save()
        assert host.compare() == (0, "")
        host.cdi.mkdir()
        status, text = host.compare()
        assert (status, text.startswith(f"cdi {host.cdi}: new: type d, mode ")) == (1, True)

    @pytest.mark.parametrize(
        ("table", "expected"),
        [
            (PROC, "mount /: vanished"),
            (PROC.replace("rw,nosuid", "ro,nosuid") + ROOT, "mount /proc: mounted was proc proc root=/ rw"),
            (PROC + ROOT + "30 25 0:9 / /x rw - fuse.errfs errfs rw\n", "mount /x: new: mounted fuse.errfs errfs root=/ rw"),
            (PROC + ROOT + "30 24 0:9 / /proc rw - tmpfs over rw\n", "; tmpfs over root=/ rw"),
        ],
        ids=["vanished", "read-only", "new", "stacked"],
    )
    def test_changed_mounts_are_rejected(self, host: Host, table: str, expected: str) -> None:
        host.mounts.write_text(table)
        status, text = host.compare()
        assert status == 1
        assert expected in text

    def test_mount_ids_and_propagation_do_not_count(self, host: Host) -> None:
        host.mounts.write_text(
            "77 1 0:22 / /proc rw,nosuid master:3 - proc proc rw\n78 1 254:0 / / rw shared:1 - ext4 /dev/vda rw,discard\n"
        )
        assert host.compare() == (0, "")

    def test_what_others_share_is_not_read(self, host: Host) -> None:
        (host.dev / "shm").mkdir(mode=0)
        assert host.compare() == (0, "")

    def test_this_host_is_read_whole(self, tmp_path: Path) -> None:
        assert run("save", tmp_path / "record") == (0, "")
        assert "/dev/null" in (tmp_path / "record").read_text()

    def test_a_record_that_is_missing_is_an_error_and_no_comparison(self, tmp_path: Path) -> None:
        done = subprocess.run([sys.executable, PROGRAM, "compare", tmp_path / "absent"], capture_output=True, check=False)
        assert done.returncode != 0


@contextmanager
def sleeper(environment: dict[str, str], *, session: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"], env=os.environ | environment, start_new_session=session)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class TestLeftovers:
    @pytest.fixture(name="marker")
    def _marker(self) -> str:
        return f"DEVWARD_MARKER={uuid.uuid4().hex}"

    def test_nothing_left_is_accepted(self, marker: str) -> None:
        assert run("leftovers", marker, "--grace", 0) == (0, "")

    def test_a_process_with_the_marker_is_named_and_left_alone(self, marker: str) -> None:
        with sleeper(dict([marker.split("=")]), session=True) as process:
            assert run("leftovers", marker, "--grace", 0) == (1, f"left running: pid {process.pid}: sleep 600\n")
            assert process.poll() is None

    def test_another_value_or_a_longer_name_is_no_marker(self, marker: str) -> None:
        name, value = marker.split("=")
        with sleeper({name: value + "0"}), sleeper({"X" + name: value}):
            assert run("leftovers", marker, "--grace", 0) == (0, "")

    def test_a_process_of_the_session_is_found_without_the_marker(self, marker: str) -> None:
        with sleeper({}, session=True) as process:
            assert run("leftovers", marker, "--session", process.pid, "--grace", 0)[0] == 1
            assert run("leftovers", marker, "--grace", 0)[0] == 0

    def test_only_processes_with_the_marker_are_killed(self, marker: str) -> None:
        with sleeper(dict([marker.split("=")])) as ours, sleeper({}) as other:
            assert run("leftovers", marker, "--kill", "--grace", 0.3)[0] == 1
            assert ours.wait(60) in {-signal.SIGTERM, -signal.SIGKILL}
            assert other.poll() is None

    def test_a_process_that_ignores_sigterm_is_killed_too(self, marker: str) -> None:
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
        with subprocess.Popen([sys.executable, "-c", code], env=os.environ | dict([marker.split("=")]), stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"up\n"
                assert run("leftovers", marker, "--kill", "--grace", 0.1)[0] == 1
                assert process.wait(60) == -signal.SIGKILL
            finally:
                process.kill()

    def test_the_caller_is_spared(self, marker: str) -> None:
        shell = ["sh", "-c", f"{sys.executable} {PROGRAM} leftovers {marker} --kill --grace 0; echo status $?"]
        done = subprocess.run(shell, env=os.environ | dict([marker.split("=")]), capture_output=True, text=True, check=True)
        assert done.stdout == "status 0\n"
