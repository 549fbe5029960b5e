"""Who holds a device: real processes in namespaces of their own, and trees that look like /proc where a moment must be chosen."""

import errno
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from devward.cluster import descriptors
from devward.cluster.descriptors import (
    DescriptorScan,
    ScanDoubt,
    ScanLimits,
    Trace,
    scan_descriptors,
)
from devward.cluster.evidence import DeviceNumber, Doubt, Finding
from devward.cluster.kernel import Kernel
from devward.cluster.vantage import VantageDoubt
from sim.errfs import ErrFs
from sim.patience import must_not_block
from sim.process_namespace import run_in_process_namespace, start, unshare_descriptors, wait_until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces and device nodes")
needs_non_root = pytest.mark.skipif(os.geteuid() == 0, reason="needs non-root: permissions bind")

#: Real devices that a test's processes do not have open by themselves.
FULL = DeviceNumber(1, 7)
ZERO = DeviceNumber(1, 5)
RANDOM = DeviceNumber(1, 8)

LIMITS = ScanLimits()


def everybody(_proc: str) -> Doubt | None:
    """A place from where every process is seen: the tests' own namespace is one."""
    return None


def scan(*numbers: DeviceNumber, proc: str = "/proc", kernel: Kernel | None = None, limits: ScanLimits = LIMITS) -> DescriptorScan:
    """Scan for these numbers."""
    return scan_descriptors(numbers, proc, vantage=everybody, kernel=kernel, limits=limits)


# --- real processes ---

OPEN_NODE = """
import os, subprocess, sys
number = os.makedev(int(sys.argv[1]), int(sys.argv[2]))
subprocess.run(["mount", "-t", "tmpfs", "none", "/mnt"], check=True)
os.mknod("/mnt/some other name", 0o600 | 0o020000, number)
device = os.open("/mnt/some other name", os.O_RDWR)
if sys.argv[3] == "unlink":
    os.unlink("/mnt/some other name")
print("ready", flush=True)
sys.stdin.readline()
os.close(device)
print("closed", flush=True)
sys.stdin.readline()
"""


def a_descriptor_is_found_by_number(unlink: str) -> None:
    before = scan(FULL, RANDOM)
    assert (before.doubts, before.finding(FULL), before.finding(RANDOM)) == ((), Finding.CLEAN, Finding.CLEAN)
    program = ["unshare", "--mount", "--propagation", "private", "/usr/bin/python3", "-c", OPEN_NODE, "1", "7", unlink]
    process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    found = scan(FULL, RANDOM)
    assert [(holder.number, holder.trace, holder.pid) for holder in found.holders] == [(FULL, Trace.DESCRIPTOR, process.pid)]
    assert found.holders[0].command == "python3"
    assert (found.finding(FULL), found.finding(RANDOM), found.doubts) == (Finding.HELD, Finding.CLEAN, ())
    process.stdin.write("close\n")
    process.stdin.flush()
    assert process.stdout.readline() == "closed\n"
    assert scan(FULL).finding(FULL) is Finding.CLEAN
    process.communicate()


@needs_root
@pytest.mark.parametrize("unlink", ["", "unlink"])
def test_a_descriptor_is_found_by_number_in_another_mount_namespace_under_another_name(unlink: str) -> None:
    run_in_process_namespace(a_descriptor_is_found_by_number, unlink)


#: Not the module mmap, which keeps a descriptor.
MAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

def map_device():
    device = os.open("/dev/zero", os.O_RDWR)
    address = libc.mmap(None, 4096, 1, 2, device, 0)
    os.close(device)
    return address

"""
MAP_DEVICE = """
address = map_device()
print("ready", flush=True)
sys.stdin.readline()
libc.munmap(address, 4096)
print("closed", flush=True)
sys.stdin.readline()
"""


def a_mapping_is_found() -> None:
    assert scan(ZERO).finding(ZERO) is Finding.CLEAN
    process = start(MAP + MAP_DEVICE)
    # Two of them: the mapped file is asked for once a scan.
    other = start(MAP + MAP_DEVICE)
    found = scan(ZERO)
    assert {(holder.number, holder.trace, holder.pid) for holder in found.holders} == {
        (ZERO, Trace.MAPPING, process.pid),
        (ZERO, Trace.MAPPING, other.pid),
    }
    assert found.mappings > 0
    other.communicate("")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "closed\n"
    assert scan(ZERO).finding(ZERO) is Finding.CLEAN
    process.communicate()


@needs_root
def test_a_mapping_is_found_after_its_descriptor_was_closed() -> None:
    run_in_process_namespace(a_mapping_is_found)


def a_thread_with_its_own_table_counts() -> None:
    opened, done = threading.Event(), threading.Event()
    tids: list[int] = []

    def hold() -> None:
        unshare_descriptors()
        device = os.open("/dev/full", os.O_RDWR)
        tids.append(threading.get_native_id())
        opened.set()
        done.wait()
        os.close(device)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    opened.wait()
    found = scan(FULL)
    assert [(holder.pid, holder.tid) for holder in found.holders] == [(os.getpid(), tids[0])]
    done.set()
    thread.join()
    assert scan(FULL).finding(FULL) is Finding.CLEAN


@needs_root
def test_a_thread_with_its_own_table_counts() -> None:
    run_in_process_namespace(a_thread_with_its_own_table_counts)


def threads_that_share_a_table_are_read_once() -> None:
    done = threading.Event()
    threads = [threading.Thread(target=done.wait, daemon=True) for _ in range(20)]
    for thread in threads:
        thread.start()

    class Unable(Kernel):
        def share_descriptors(self, one: int, other: int) -> bool | None:
            return None

    shared, each = scan(FULL), scan(FULL, kernel=Unable())
    assert (shared.doubts, each.doubts) == ((), ())
    # Where it cannot be told, every thread's table is read.
    assert each.descriptors > 10 * shared.descriptors
    done.set()
    for thread in threads:
        thread.join()


@needs_root
def test_threads_that_share_a_table_are_read_once() -> None:
    run_in_process_namespace(threads_that_share_a_table_are_read_once)


EXITED_LEADER = """
import threading
number = {"x86_64": 60}.get(os.uname().machine, 93)

def hold():
    if sys.argv[1] == "map":
        map_device()
    else:
        os.open("/dev/full", os.O_RDWR)
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)

threading.Thread(target=hold).start()
libc.syscall(number, 0)
"""


def an_exited_leader_hides_nothing(how: str) -> None:
    process = start(MAP + EXITED_LEADER, how)

    def has_exited() -> bool:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    wait_until(has_exited)
    found = scan(FULL, ZERO)
    expected = (ZERO, Trace.MAPPING) if how == "map" else (FULL, Trace.DESCRIPTOR)
    assert [(holder.number, holder.trace, holder.pid) for holder in found.holders] == [(*expected, process.pid)]
    process.communicate("")


@needs_root
@pytest.mark.parametrize("how", ["open", "map"])
def test_an_exited_leader_hides_nothing_of_its_threads(how: str) -> None:
    run_in_process_namespace(an_exited_leader_hides_nothing, how)


def a_zombie_holds_nothing() -> None:
    process = subprocess.Popen(["/bin/true"], pass_fds=[os.open("/dev/null", os.O_RDONLY)])
    wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    found = scan(FULL)
    assert (found.doubts, found.finding(FULL), found.processes) == ((), Finding.CLEAN, 2)
    process.wait()


@needs_root
def test_a_zombie_holds_nothing() -> None:
    run_in_process_namespace(a_zombie_holds_nothing)


OPEN_FULL = "import os, sys; device = os.open('/dev/full', os.O_RDWR); print('ready', flush=True); sys.stdin.read()"
IDLE = "import sys; print('ready', flush=True); sys.stdin.read()"


class Meanwhile(Kernel):
    """Does something the first time, or each time, that a descriptor is looked at."""

    def __init__(self, act: Callable[[], object], *, once: bool = True) -> None:
        super().__init__()
        self._act = act
        self._once = once
        self._busy = False

    def mode_and_number(self, directory: int, name: bytes) -> tuple[int, int, int]:
        answer = super().mode_and_number(directory, name)
        if not self._busy:
            self._busy = True
            self._act()
            self._busy = self._once
        return answer


def who_is_born_meanwhile_is_looked_at() -> None:
    started: list[subprocess.Popen[str]] = []
    found = scan(FULL, kernel=Meanwhile(lambda: started.append(start(OPEN_FULL))))
    assert [holder.pid for holder in found.holders] == [started[0].pid]
    assert found.doubts == ()
    started[0].communicate("")


@needs_root
def test_who_is_born_during_the_scan_is_looked_at() -> None:
    run_in_process_namespace(who_is_born_meanwhile_is_looked_at)


def who_come_and_go_are_waited_for() -> None:
    started: list[subprocess.Popen[str]] = []

    def bear() -> None:
        if len(started) < 6:
            started.append(start(IDLE))

    found = scan(FULL, kernel=Meanwhile(bear, once=False), limits=ScanLimits(rounds=1, settling=600))
    assert found.doubts == ()
    assert found.finding(FULL) is Finding.CLEAN
    assert len(started) == 6
    for process in started:
        process.communicate("")


@needs_root
def test_a_scan_goes_on_while_processes_come_and_go() -> None:
    run_in_process_namespace(who_come_and_go_are_waited_for)


def a_scan_without_end_is_in_doubt() -> None:
    started: list[subprocess.Popen[str]] = []

    def bear() -> None:
        if len(started) < 40:
            started.append(start(IDLE))

    found = scan(FULL, kernel=Meanwhile(bear, once=False), limits=ScanLimits(rounds=1, settling=0))
    (doubt,) = found.doubts
    assert doubt.code is ScanDoubt.UNSETTLED
    command = re.escape(Path(sys.executable).name)
    assert re.fullmatch(rf"new processes keep appearing, such as process [0-9]+ '{command}' of uid 0", doubt.subject)
    assert found.finding(FULL) is Finding.UNKNOWN
    for process in started:
        process.communicate("")


@needs_root
def test_a_scan_that_never_settles_is_in_doubt() -> None:
    run_in_process_namespace(a_scan_without_end_is_in_doubt)


HOLD_FILE = "import sys; file = open(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"


def a_dead_file_server_blocks_nothing(root: str) -> None:
    backing, mountpoint = Path(root, "backing"), Path(root, "mountpoint")
    backing.mkdir()
    mountpoint.mkdir()
    Path(backing, "file").write_text("content")
    with ErrFs(backing, mountpoint) as errfs:
        process = start(HOLD_FILE, mountpoint / "file")
        errfs.set({"getattr": {"hang": True}, "lookup": {"hang": True}, "statfs": {"hang": True}})
        with must_not_block():
            found = scan(FULL)
        assert process.pid in {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        assert (found.doubts, found.finding(FULL)) == ((), Finding.CLEAN)
        errfs.set({})
        process.communicate("")


@needs_root
def test_a_descriptor_on_a_dead_file_server_blocks_nothing(tmp_path: Path) -> None:
    run_in_process_namespace(a_dead_file_server_blocks_nothing, tmp_path)


@needs_non_root
def test_processes_of_others_cannot_be_read_by_an_unprivileged_user(tmp_path: Path) -> None:
    # Of this machine's processes one that is root's and stays: others come and go, or are this user's and open what they like.
    (tmp_path / "1").symlink_to("/proc/1")
    found = scan(FULL, proc=str(tmp_path))
    assert [(doubt.code, doubt.subject) for doubt in found.doubts] == [(ScanDoubt.PROCESS_UNREADABLE, "1")]
    assert found.finding(FULL) is Finding.UNKNOWN
    assert found.unread == 1


# --- trees that look like /proc ---


class Host:
    """A tree that looks like /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def process(self, pid: int, *, started: int = 5, threads: tuple[int, ...] = (), name: str = "name", state: str = "S") -> Path:
        """Add a process, or one in the place of another."""
        directory = self.root / str(pid)
        fields = [state, *(["0"] * 16), str(1 + len(threads)), "0", str(started), *(["0"] * 20)]
        for tid in (pid, *threads):
            (directory / "task" / str(tid) / "fd").mkdir(parents=True)
            (directory / "task" / str(tid) / "maps").write_text("7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n")
            (directory / "task" / str(tid) / "comm").write_text(name + "\n")
        (directory / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
        return directory

    def descriptor(self, pid: int, target: str, tid: int | None = None, number: int = 3) -> None:
        """Add a descriptor."""
        (self.root / str(pid) / "task" / str(tid or pid) / "fd" / str(number)).symlink_to(target)

    def scan(self, *numbers: DeviceNumber, kernel: Kernel | None = None, limits: ScanLimits = LIMITS) -> DescriptorScan:
        """Scan it."""
        return scan(*numbers, proc=str(self.root), kernel=kernel or Separate(), limits=limits)


class Separate(Kernel):
    """Does not say whether threads share a table: the ids of the tree are no processes."""

    def share_descriptors(self, one: int, other: int) -> bool | None:
        return None


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_holder_is_found_and_others_are_not(host: Host) -> None:
    host.process(1)
    host.process(20, name="a) 1 (b\x1b")
    host.descriptor(20, "/dev/full")
    host.descriptor(20, "/dev/null", number=4)
    host.descriptor(20, "/etc/passwd", number=5)
    host.descriptor(20, "/nonexistent", number=6)
    found = host.scan(FULL, RANDOM)
    assert [(holder.pid, holder.tid, holder.number, holder.command) for holder in found.holders] == [(20, 20, FULL, "a) 1 (b\x1b")]
    assert (found.finding(FULL), found.finding(RANDOM)) == (Finding.HELD, Finding.CLEAN)
    assert (found.processes, found.descriptors) == (2, 4)


def test_what_was_not_asked_for_is_unknown(host: Host) -> None:
    host.process(1)
    assert host.scan(FULL).finding(RANDOM) is Finding.UNKNOWN


def test_a_block_device_of_the_same_number_is_another_device(host: Host) -> None:
    host.process(1)

    class Block(Separate):
        def mode_and_number(self, directory: int, name: bytes) -> tuple[int, int, int]:
            return stat.S_IFBLK | 0o600, *FULL

    host.descriptor(1, "/dev/full")
    assert host.scan(FULL, kernel=Block()).finding(FULL) is Finding.CLEAN


@pytest.mark.parametrize("tid", [20, 21])
def test_a_table_that_cannot_be_read_is_doubt_while_the_process_lives(host: Host, tid: int) -> None:
    host.process(20, threads=(21,))
    host.descriptor(20, "loop", tid)
    (host.root / "20/task" / str(tid) / "fd/loop").symlink_to("loop")
    found = host.scan(FULL)
    assert [(doubt.code, doubt.subject) for doubt in found.doubts] == [(ScanDoubt.PROCESS_UNREADABLE, "20")]
    assert (found.finding(FULL), found.unread) == (Finding.UNKNOWN, 1)


def test_a_table_that_cannot_be_opened_is_doubt(host: Host) -> None:
    shutil.rmtree(host.process(20) / "task/20/fd")
    (host.root / "20/task/20/fd").write_text("")
    assert host.scan(FULL).finding(FULL) is Finding.UNKNOWN


def test_a_process_that_lives_and_has_no_table_is_doubt(host: Host) -> None:
    shutil.rmtree(host.process(20) / "task/20/fd")
    assert host.scan(FULL).finding(FULL) is Finding.UNKNOWN


class Refused(Separate):
    """Is refused the type of everything, as the kernel refuses it of what lies on another user's FUSE mount."""

    def mode_and_number(self, directory: int, name: bytes) -> tuple[int, int, int]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def what_may_not_be_asked_for_is_no_device(root: str) -> None:
    host = Host(Path(root))
    directory = host.process(20)
    # /proc is mounted without devices here, /dev with.
    for target, finding in (("/proc/version", Finding.CLEAN), ("/dev/full", Finding.UNKNOWN)):
        host.descriptor(20, target)
        assert host.scan(FULL, kernel=Refused()).finding(FULL) is finding
        (directory / "task/20/fd/3").unlink()
    (directory / "task/20/maps").write_text("400000-401000 rw-p 00000000 00:06 4 /somewhere\n")
    (directory / "map_files").mkdir()
    for target, finding in (("/proc/version", Finding.CLEAN), ("/dev/full", Finding.UNKNOWN)):
        (directory / "map_files/400000-401000").symlink_to(target)
        assert host.scan(FULL, kernel=Refused()).finding(FULL) is finding
        (directory / "map_files/400000-401000").unlink()


@needs_root
def test_what_may_not_be_asked_for_is_no_device_on_a_mount_without_devices(tmp_path: Path) -> None:
    run_in_process_namespace(what_may_not_be_asked_for_is_no_device, tmp_path)


def test_mappings_that_cannot_be_read_are_doubt(host: Host) -> None:
    maps = host.process(20) / "task/20/maps"
    maps.unlink()
    maps.mkdir()
    assert host.scan(FULL).finding(FULL) is Finding.UNKNOWN


def test_a_hit_counts_beside_doubt(host: Host) -> None:
    shutil.rmtree(host.process(20) / "task/20/fd")
    host.process(30)
    host.descriptor(30, "/dev/full")
    assert host.scan(FULL).finding(FULL) is Finding.HELD


def test_a_table_that_could_not_be_read_is_no_doubt_once_its_process_is_gone(host: Host) -> None:
    shutil.rmtree(host.process(20) / "task/20/fd")
    host.process(30)
    host.descriptor(30, "/dev/null")
    found = host.scan(FULL, kernel=_Separate(lambda: shutil.rmtree(host.root / "20")))
    assert (found.doubts, found.finding(FULL)) == ((), Finding.CLEAN)


class _Separate(Meanwhile):
    def share_descriptors(self, one: int, other: int) -> bool | None:
        return None


def test_a_later_process_with_the_id_of_one_that_was_read_is_looked_at(host: Host) -> None:
    host.process(20)
    host.descriptor(20, "/dev/null")

    def replace() -> None:
        shutil.rmtree(host.root / "20")
        host.process(20, started=6)
        host.descriptor(20, "/dev/full")

    assert host.scan(FULL, kernel=_Separate(replace)).finding(FULL) is Finding.HELD


def test_a_thread_born_during_the_scan_is_looked_at(host: Host) -> None:
    host.process(20)
    host.descriptor(20, "/dev/null")

    def add() -> None:
        shutil.rmtree(host.root / "20")
        host.process(20, threads=(21,))
        host.descriptor(20, "/dev/full", 21)

    assert host.scan(FULL, kernel=_Separate(add)).finding(FULL) is Finding.HELD


def test_the_memory_of_a_leader_that_is_ending_does_not_stand_for_its_threads(host: Host) -> None:
    directory = host.process(20, threads=(21,))
    # It has given up its memory and not yet its descriptors.
    (directory / "task/20/maps").write_text("")
    (directory / "task/21/maps").write_text("400000-401000 rw-p 00000000 00:06 4 /dev/zero\n")
    (host.root / "21/map_files").mkdir(parents=True)
    (host.root / "21/map_files/400000-401000").symlink_to("/dev/zero")

    class Sharing(Kernel):
        def share_descriptors(self, one: int, other: int) -> bool | None:
            return True

    assert host.scan(ZERO, kernel=Sharing()).finding(ZERO) is Finding.HELD


@pytest.mark.parametrize("text", ["", "20", "20 (name) S", "20 (name) S " + "x " * 40])
def test_a_process_that_cannot_be_told_from_others_is_doubt(host: Host, text: str) -> None:
    (host.process(20) / "stat").write_text(text)
    found = host.scan(FULL)
    assert [doubt.code for doubt in found.doubts] == [ScanDoubt.PROCESS_UNREADABLE]


def test_a_mapping_that_is_gone_when_it_is_asked_for_is_looked_for_again(host: Host) -> None:
    maps = host.process(20) / "task/20/maps"
    maps.write_text("7f0000000000-7f0000001000 rw-p 00000000 00:06 4                          /dev/zero\n")
    found = host.scan(ZERO)
    # It never settles here: the tree has no map_files.
    assert found.finding(ZERO) is Finding.UNKNOWN


def test_a_mapping_is_asked_for_by_the_name_that_the_kernel_gives_it(host: Host) -> None:
    directory = host.process(20)
    lines = (
        "00400000-00401000 rw-p 00000000 00:06 4                          /dev/zero\n"
        "7ffd0000-7ffe0000 rw-p 00000000 00:00 0                          [stack]\n"
        "7fff0000-7fff1000 rw-p 00000000 00:0e 1039                       anon_inode:[kvm-vcpu:0]\n"
    )
    (directory / "task/20/maps").write_text(lines)
    (directory / "map_files").mkdir()
    (directory / "map_files/400000-401000").symlink_to("/dev/zero")
    found = host.scan(ZERO)
    assert [(holder.number, holder.trace) for holder in found.holders] == [(ZERO, Trace.MAPPING)]
    assert (found.mappings, found.doubts) == (1, ())


def test_lines_of_maps_are_put_together_across_reads(host: Host) -> None:
    directory = host.process(20)
    line = "400000-401000 rw-p 00000000 00:06 4                          /dev/zero\n"
    (directory / "task/20/maps").write_text(line * 20_000)
    (directory / "map_files").mkdir()
    (directory / "map_files/400000-401000").symlink_to("/dev/zero")
    found = host.scan(ZERO)
    assert (found.mappings, found.doubts) == (20_000, ())


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (ScanLimits(tasks=2), ScanDoubt.TOO_MANY_PROCESSES),
        (ScanLimits(descriptors=3), ScanDoubt.TOO_MANY_DESCRIPTORS),
        (ScanLimits(maps_size=40), ScanDoubt.TOO_MANY_MAPPINGS),
    ],
)
def test_a_bound_that_is_hit_is_doubt(host: Host, limits: ScanLimits, code: ScanDoubt) -> None:
    for pid in (1, 2, 3):
        host.process(pid)
        for number in (3, 4):
            host.descriptor(pid, "/dev/null", number=number)
    found = host.scan(FULL, limits=limits)
    assert ([doubt.code for doubt in found.doubts], found.finding(FULL)) == ([code], Finding.UNKNOWN)


class Ticking:
    """A clock that moves by a second with each look at it."""

    def __init__(self) -> None:
        self._now = -1.0

    def monotonic(self) -> float:
        self._now += 1.0
        return self._now


def test_paths_of_mapped_files_are_bounded_in_all(host: Host) -> None:
    for pid in (1, 2):
        directory = host.process(pid)
        (directory / "map_files").mkdir()
        for number in range(3):
            start = 0x400000 + 0x1000 * number
            (directory / f"map_files/{start:x}-{start + 0x1000:x}").symlink_to("/dev/null")
        lines = (f"{0x400000 + 0x1000 * n:x}-{0x401000 + 0x1000 * n:x} r--p 00000000 00:06 {pid}{n} /file{pid}{n}\n" for n in range(3))
        (directory / f"task/{pid}/maps").write_text("".join(lines))
    size = len("00:06 10 /file10")
    assert host.scan(FULL, limits=ScanLimits(mapped_paths=6 * size)).finding(FULL) is Finding.CLEAN
    found = host.scan(FULL, limits=ScanLimits(mapped_paths=6 * size - 1))
    assert ([doubt.code for doubt in found.doubts], found.finding(FULL)) == ([ScanDoubt.TOO_MANY_MAPPINGS], Finding.UNKNOWN)


@pytest.mark.parametrize(
    ("limits", "at_fault"),
    [
        (ScanLimits(descriptors=7), 2),
        (ScanLimits(mapped_paths=500), 3),
        (ScanLimits(maps_size=500), 3),
        (ScanLimits(tasks=2), None),
    ],
)
def test_who_takes_most_of_a_bound_is_named(host: Host, limits: ScanLimits, at_fault: int | None) -> None:
    for pid in (1, 2, 3):
        directory = host.process(pid, name=f"x\x1b{pid}")
        for number in range(3, 9 if pid == 2 else 4):
            host.descriptor(pid, "/dev/null", number=number)
        (directory / "map_files").mkdir()
        (directory / "map_files/400000-401000").symlink_to("/dev/null")
        path = "/" + "p" * (600 if pid == 3 else 20)
        (directory / f"task/{pid}/maps").write_text(f"400000-401000 r--p 00000000 00:06 {pid} {path}\n")
    (doubt,) = host.scan(FULL, limits=limits).doubts
    expected = f"process {at_fault} 'x\\x1b{at_fault}' of uid {os.getuid()} takes most of it"
    assert doubt.subject == (expected if at_fault else str(host.root))


def test_one_process_with_many_mappings_is_not_read_beyond_the_time(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = host.process(1)
    (directory / "task/1/maps").write_text("400000-401000 rw-p 00000000 00:06 4                          /dev/zero\n" * 20_000)
    (directory / "map_files").mkdir()
    (directory / "map_files/400000-401000").symlink_to("/dev/zero")
    monkeypatch.setattr(descriptors, "time", Ticking())
    # Before the process, at its beginning, and before the first piece of its list.
    found = host.scan(FULL, limits=ScanLimits(deadline=2.5))
    assert ([doubt.code for doubt in found.doubts], found.finding(FULL)) == ([ScanDoubt.OUT_OF_TIME], Finding.UNKNOWN)
    assert 0 < found.mappings < 20_000
    assert found.doubts[0].subject.startswith("process 1 ")


def test_one_process_with_many_descriptors_is_not_read_beyond_the_time(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.process(1)
    for number in range(3, 9):
        host.descriptor(1, "/dev/null", number=number)
    monkeypatch.setattr(descriptors, "time", Ticking())
    monkeypatch.setattr(descriptors, "_CLOCKED", 2)
    # The first looks at the clock are before the process and at its beginning, the others at every second descriptor.
    found = host.scan(FULL, limits=ScanLimits(deadline=2.5))
    assert ([doubt.code for doubt in found.doubts], found.descriptors) == ([ScanDoubt.OUT_OF_TIME], 4)
    assert found.finding(FULL) is Finding.UNKNOWN


def test_without_proc_everything_is_unknown(tmp_path: Path) -> None:
    found = scan(FULL, proc=str(tmp_path / "proc"))
    assert ([doubt.code for doubt in found.doubts], found.finding(FULL)) == ([ScanDoubt.PROC_UNREADABLE], Finding.UNKNOWN)


def test_from_where_processes_are_not_seen_nothing_is_clean(host: Host) -> None:
    host.process(1)
    host.descriptor(1, "/dev/full")
    doubt = Doubt(VantageDoubt.NOT_PRIVILEGED, "/proc")
    found = scan_descriptors([FULL, RANDOM], str(host.root), vantage=lambda _proc: doubt, kernel=Separate())
    assert (found.doubts, found.finding(RANDOM), found.finding(FULL)) == ((doubt,), Finding.UNKNOWN, Finding.HELD)


def test_no_more_than_twenty_unread_processes_are_named(host: Host) -> None:
    for pid in range(1, 31):
        shutil.rmtree(host.process(pid) / "task" / str(pid) / "fd")
    found = host.scan(FULL)
    assert (len(found.doubts), found.unread) == (20, 30)


def test_statx_tells_type_and_number() -> None:
    kernel = Kernel()
    directory = os.open("/dev", os.O_RDONLY | os.O_DIRECTORY)
    try:
        mode, *number = kernel.mode_and_number(directory, b"full")
        assert (stat.S_ISCHR(mode), DeviceNumber(*number)) == (True, FULL)
        with pytest.raises(FileNotFoundError):
            kernel.mode_and_number(directory, b"no such device")
    finally:
        os.close(directory)


def test_threads_share_descriptors_unless_they_say_otherwise() -> None:
    kernel = Kernel()
    answers: list[bool | None] = []

    def ask() -> None:
        answers.append(kernel.share_descriptors(os.getpid(), threading.get_native_id()))
        unshare_descriptors()
        answers.append(kernel.share_descriptors(os.getpid(), threading.get_native_id()))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert answers in ([True, False], [None, None])
    assert kernel.share_descriptors(os.getpid(), 2**30) is None
