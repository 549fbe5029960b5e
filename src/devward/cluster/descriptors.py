"""Which processes hold a device, by its number: an open descriptor or a mapping, in whatever namespace and under whatever name.

A device number is clean when every process alive at the end of the scan had a readable table without it. So processes and threads that were
born meanwhile are looked at too, until a listing brings none that was not read; a table that could not be read counts while its process
lives. Threads may have tables of their own (CLONE_FILES unshared). Kernel threads and zombies have none.

Not visible from /proc, and so not seen here: a descriptor in flight in a UNIX socket (SCM_RIGHTS), one registered with io_uring after it
was closed, and one that moves from a process not yet read to one already read. The driver's own in-use flag stands beside this scan.

Mappings outlive the descriptor. /proc/PID/maps does not give a device number, only the file system's; /proc/PID/map_files does, to one with
CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE. Each mapped file is asked for once a scan, by file system, inode and path: libraries are mapped
everywhere.
"""

import contextlib
import errno
import itertools
import math
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from devward.cluster.evidence import DeviceNumber, Doubt, Finding
from devward.cluster.kernel import Kernel
from devward.cluster.vantage import reads_everybody
from devward.text import quoted

#: A process or a thread that is no more: get_proc_task() found nobody.
_GONE: Final = frozenset({errno.ENOENT, errno.ESRCH})
_ATTEMPTS: Final = 2

#: Lines of /proc/PID/maps that have a file behind them: the address range, and in one piece the file system's number, the inode and the
#: path. A path begins with a slash; what does not is memory, or an object without a path (anon_inode:, socket:), which is no device.
#: Newlines are escaped.
_MAPPED_FILE: Final = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ (\S+ [0-9]+ +/.*)$", re.MULTILINE)
_CHUNK: Final = 256 * 1024
#: Descriptors of one process between two looks at the clock.
_CLOCKED: Final = 1024
#: As many unread processes are named; the others are counted.
_NAMED: Final = 20


class Trace(StrEnum):
    """How a process holds a device."""

    DESCRIPTOR = "descriptor"
    MAPPING = "mapping"


class ScanDoubt(StrEnum):
    """Why a scan of descriptors does not show everything, besides the reasons of vantage.py."""

    PROC_UNREADABLE = "proc-unreadable"
    #: A living process whose descriptors or mappings could not be read.
    PROCESS_UNREADABLE = "process-unreadable"
    TOO_MANY_PROCESSES = "too-many-processes"
    TOO_MANY_DESCRIPTORS = "too-many-descriptors"
    TOO_MANY_MAPPINGS = "too-many-mappings"
    #: The time that it was given was over.
    OUT_OF_TIME = "out-of-time"
    #: New processes kept appearing.
    UNSETTLED = "unsettled"


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """How much a scan looks at before it gives up, in doubt."""

    #: Threads, of all processes.
    tasks: int = 200_000
    descriptors: int = 2_000_000
    #: Bytes of one process's /proc/PID/maps; 65,530 mappings, the kernel's default limit, are about 8 MB.
    maps_size: int = 256 * 1024 * 1024
    #: Bytes of the paths of all mapped files together, each counted once; a full host has about 1 MB.
    mapped_paths: int = 32 * 1024 * 1024
    #: Looks for new processes, and the seconds for which it goes on with them after those: where processes come and go all the time, it
    #: takes a while until a look finds nobody new.
    rounds: int = 16
    settling: float = 3.0
    #: Seconds of the monotonic clock, looked at between processes, every so many descriptors, and for each piece of a list of mappings.
    deadline: float = math.inf


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds one of the devices."""

    number: DeviceNumber
    trace: Trace
    pid: int
    #: The thread in whose table it was found.
    tid: int
    #: The kernel's name of the thread, foreign text.
    command: str


@dataclass(frozen=True, slots=True)
class DescriptorScan:
    """What a scan saw."""

    numbers: frozenset[DeviceNumber]
    holders: tuple[Holder, ...] = ()
    #: The first twenty processes that could not be read, and everything else that leaves doubt.
    doubts: tuple[Doubt, ...] = ()
    unread: int = 0
    processes: int = 0
    descriptors: int = 0
    mappings: int = 0

    def finding(self, number: DeviceNumber) -> Finding:
        """Return whether a device is held; one that was not asked for is unknown."""
        if any(holder.number == number for holder in self.holders):
            return Finding.HELD
        if self.doubts or number not in self.numbers:
            return Finding.UNKNOWN
        return Finding.CLEAN


class _Task(NamedTuple):
    """A thread; the start time, in clock ticks since boot, tells a process from a later one with its id."""

    pid: int
    started: int
    tid: int


class _LimitError(Exception):
    """A bound was hit; `task` alone is at fault, None: whoever took most."""

    def __init__(self, doubt: ScanDoubt, task: _Task | None = None) -> None:
        super().__init__(doubt)
        self.doubt = doubt
        self.task = task


def scan_descriptors(
    numbers: Collection[DeviceNumber],
    proc: str = "/proc",
    *,
    limits: ScanLimits = ScanLimits(),
    vantage: Callable[[str], Doubt | None] = reads_everybody,
    kernel: Kernel | None = None,
) -> DescriptorScan:
    """Look for the devices in every process. Raises nothing for what it finds. Takes about 10 µs a descriptor, so not on the event loop."""
    return _Scan(frozenset(numbers), limits, kernel or Kernel()).run(proc, vantage)


class _Scan:
    """One scan; its state is what was seen so far."""

    def __init__(self, numbers: frozenset[DeviceNumber], limits: ScanLimits, kernel: Kernel) -> None:
        self._numbers = numbers
        self._limits = limits
        self._kernel = kernel
        self._proc = -1
        self._holders: dict[tuple[int, DeviceNumber, Trace], Holder] = {}
        self._read: set[_Task] = set()
        #: Threads whose tables could not be read, with the number of attempts and the last error.
        self._failed: dict[_Task, tuple[int, int]] = {}
        #: Leaders whose memory was seen: those that are on their way out have none, while other threads may.
        self._with_memory: set[_Task] = set()
        self._mapped: dict[bytes, DeviceNumber | None] = {}
        self._mapped_paths = 0
        #: Who took most of each bound, and how much: it is at fault where that is hit.
        self._most: dict[ScanDoubt, tuple[float, _Task]] = {}
        self._unread = 0
        self._descriptors = 0
        self._mappings = 0

    def run(self, proc: str, vantage: Callable[[str], Doubt | None]) -> DescriptorScan:
        blind = vantage(proc)
        doubts = [blind] if blind is not None else []
        try:
            self._proc = os.open(proc, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                doubts += self._until_nothing_is_new()
            except _LimitError as error:
                doubts.append(Doubt(error.doubt, self._at_fault(error) or proc))
            finally:
                os.close(self._proc)
        except OSError as error:
            doubts.append(Doubt(ScanDoubt.PROC_UNREADABLE, proc, error.errno or 0))
        return DescriptorScan(
            self._numbers,
            tuple(self._holders.values()),
            tuple(doubts),
            self._unread,
            len({task.pid for task in self._read}),
            self._descriptors,
            self._mappings,
        )

    def _until_nothing_is_new(self) -> list[Doubt]:
        latest, ends = "", math.inf
        for turn in itertools.count():
            alive = self._tasks()
            new = [task for task in alive if task not in self._read and self._failed.get(task, (0, 0))[0] < _ATTEMPTS]
            if not new:
                unread = {task.pid: self._failed[task][1] for task in reversed(alive) if task not in self._read}
                self._unread = len(unread)
                return [Doubt(ScanDoubt.PROCESS_UNREADABLE, str(pid), unread[pid]) for pid in sorted(unread)[:_NAMED]]
            if turn == self._limits.rounds:
                ends = time.monotonic() + self._limits.settling
            if turn >= self._limits.rounds and time.monotonic() >= ends:
                break
            latest = self._whose(new[-1]) or latest
            for task in new:
                self._require_time()
                self._examine(task)
        return [Doubt(ScanDoubt.UNSETTLED, f"new processes keep appearing{latest and ', such as '}{latest}")]

    # --- who is there ---

    def _tasks(self) -> list[_Task]:
        """Return every thread that lives now, the leaders of their processes first. OSError if /proc cannot be listed."""
        tasks: list[_Task] = []
        for name in os.listdir(self._proc):
            if not name.isdecimal():
                continue
            pid = int(name)
            try:
                started, threads = self._started_and_threads(name)
                tasks.append(_Task(pid, started, pid))
                if threads > 1:
                    tids = self._list(f"{name}/task")
                    tasks += [_Task(pid, started, int(tid)) for tid in tids if tid != name]
            except OSError as error:
                if error.errno not in _GONE:
                    # It cannot even be told from others: nothing that is read of it would count.
                    tasks.append(_Task(pid, 0, pid))
                    self._failed[tasks[-1]] = (_ATTEMPTS, error.errno or 0)
            if len(tasks) > self._limits.tasks:
                raise _LimitError(ScanDoubt.TOO_MANY_PROCESSES)
        return tasks

    def _started_and_threads(self, name: str) -> tuple[int, int]:
        """Return starttime and num_threads of proc_pid_stat(5). The name in parentheses may hold anything, also parentheses."""
        descriptor = os.open(f"{name}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        try:
            data = os.read(descriptor, 4096)
        finally:
            os.close(descriptor)
        fields = data[data.rfind(b")") + 2 :].split()
        try:
            return int(fields[19]), int(fields[17])
        except (IndexError, ValueError):
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG)) from None

    def _list(self, path: str) -> list[str]:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._proc)
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    # --- what they hold ---

    def _require_time(self) -> None:
        if time.monotonic() > self._limits.deadline:
            raise _LimitError(ScanDoubt.OUT_OF_TIME)

    def _examine(self, task: _Task) -> None:
        leader = task._replace(tid=task.pid)
        before, began = (self._descriptors, self._mapped_paths), time.monotonic()
        try:
            # The threads of a process share its memory always, its descriptors nearly always.
            is_read = task != leader and leader in self._with_memory and self._kernel.share_descriptors(task.pid, task.tid) is True
            if not is_read:
                self._read_descriptors(task)
                self._read_mappings(task)
        except OSError as error:
            self._fail(task, error.errno or 0)
        else:
            self._read.add(task)
            self._failed.pop(task, None)
        finally:
            self._note(ScanDoubt.TOO_MANY_DESCRIPTORS, self._descriptors - before[0], task)
            self._note(ScanDoubt.TOO_MANY_MAPPINGS, self._mapped_paths - before[1], task)
            self._note(ScanDoubt.OUT_OF_TIME, time.monotonic() - began, task)

    def _note(self, bound: ScanDoubt, taken: float, task: _Task) -> None:
        if bound not in self._most or taken > self._most[bound][0]:
            self._most[bound] = (taken, task)

    def _at_fault(self, error: _LimitError) -> str:
        """Return the process that took most of a bound, with its user, fit to be shown; empty where it has gone, or there is none."""
        task = error.task or self._most.get(error.doubt, (0, None))[1]
        found = self._whose(task) if task is not None else ""
        return f"{found} takes most of it" if found else ""

    def _whose(self, task: _Task) -> str:
        """Return which process it is and whose, fit to be shown; empty where it has gone."""
        try:
            uid = os.stat(f"{task.pid}", dir_fd=self._proc).st_uid
        except OSError:
            return ""
        return f"process {task.pid} {quoted(self._command(task))} of uid {uid}"

    def _fail(self, task: _Task, error: int) -> None:
        self._failed[task] = (self._failed.get(task, (0, 0))[0] + 1, error)

    def _read_descriptors(self, task: _Task) -> None:
        """Look through one table. OSError: it cannot be read whole."""
        table = os.open(f"{task.pid}/task/{task.tid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._proc)
        try:
            with os.scandir(table) as entries:
                for entry in entries:
                    self._descriptors += 1
                    if self._descriptors > self._limits.descriptors:
                        raise _LimitError(ScanDoubt.TOO_MANY_DESCRIPTORS)
                    if self._descriptors % _CLOCKED == 0:
                        self._require_time()
                    number = self._device(table, entry.name.encode())
                    if number in self._numbers:
                        self._hold(task, number, Trace.DESCRIPTOR)
        finally:
            os.close(table)

    def _device(self, directory: int, name: bytes) -> DeviceNumber | None:
        """Return the number of the character device that a link of /proc leads to; None for anything else. OSError."""
        try:
            mode, major, minor = self._kernel.mode_and_number(directory, name)
        except OSError as error:
            if error.errno in _GONE:
                return None
            if error.errno == errno.EACCES and self._is_on_nodev_mount(directory, name):
                return None
            raise
        return DeviceNumber(major, minor) if stat.S_ISCHR(mode) else None

    @staticmethod
    def _is_on_nodev_mount(directory: int, name: bytes) -> bool:
        """Whether a file is on a mount where no device can be opened.

        A user's own FUSE mount answers even root with EACCES, by the kernel and without asking its server. Such mounts are nodev.
        """
        try:
            # O_PATH opens nothing: neither a driver nor a server learns of it.
            descriptor = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=directory)
        except OSError:
            return False
        try:
            return bool(os.fstatvfs(descriptor).f_flag & os.ST_NODEV)
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def _read_mappings(self, task: _Task) -> None:
        """Look through the mappings of a process. OSError: they cannot be read whole."""
        for _ in range(_ATTEMPTS + 1):
            if self._mappings_settled(task):
                return
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def _mappings_settled(self, task: _Task) -> bool:
        """Look once; False if the mappings changed meanwhile."""
        settled = True
        for file, (start, end) in self._mapped_files(task):
            if file not in self._mapped:
                # Any thread has a directory of its own below /proc, listed or not; names in map_files have no leading zeros.
                name = b"%d/map_files/%x-%x" % (task.tid, int(start, 16), int(end, 16))
                try:
                    mode, major, minor = self._kernel.mode_and_number(self._proc, name)
                except OSError as error:
                    if error.errno in _GONE:
                        settled = False
                        continue
                    if error.errno == errno.EACCES and self._is_on_nodev_mount(self._proc, name):
                        continue
                    raise
                self._mapped_paths += len(file)
                if self._mapped_paths > self._limits.mapped_paths:
                    raise _LimitError(ScanDoubt.TOO_MANY_MAPPINGS)
                self._mapped[file] = DeviceNumber(major, minor) if stat.S_ISCHR(mode) else None
            number = self._mapped[file]
            if number is not None and number in self._numbers:
                self._hold(task, number, Trace.MAPPING)
        return settled

    def _mapped_files(self, task: _Task) -> Iterator[tuple[bytes, tuple[bytes, bytes]]]:
        """Yield each mapped file, once in a piece of the list, with start and end of one of its mappings. OSError."""
        try:
            descriptor = os.open(f"{task.pid}/task/{task.tid}/maps", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError as error:
            # A thread without memory: of the kernel, or ended.
            if error.errno in _GONE:
                return
            raise
        try:
            size = 0
            rest = b""
            while piece := os.read(descriptor, _CHUNK):
                self._with_memory.add(task)
                size += len(piece)
                if size > self._limits.maps_size:
                    raise _LimitError(ScanDoubt.TOO_MANY_MAPPINGS, task)
                self._require_time()
                lines, newline, rest = (rest + piece).rpartition(b"\n")
                found = _MAPPED_FILE.findall(lines + newline)
                self._mappings += len(found)
                # A library has several mappings, and there are many libraries.
                yield from {file: (start, end) for start, end, file in found}.items()
        finally:
            os.close(descriptor)

    def _hold(self, task: _Task, number: DeviceNumber, trace: Trace) -> None:
        if (task.pid, number, trace) not in self._holders:
            self._holders[task.pid, number, trace] = Holder(number, trace, task.pid, task.tid, self._command(task))

    def _command(self, task: _Task) -> str:
        with contextlib.suppress(OSError):
            descriptor = os.open(f"{task.pid}/task/{task.tid}/comm", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
            try:
                return os.read(descriptor, 64).rstrip(b"\n").decode(errors="surrogateescape")
            finally:
                os.close(descriptor)
        return ""
