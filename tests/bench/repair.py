"""From tampering with an owned file until it is exactly right again; and what the same disk takes for the write alone."""

import errno
import os
import random
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

from bench.figure import Bar, Figure, Figures
from bench.setting import SPEC, UNCONTESTED, Broken, daemon, need_kvm
from sim.daemon_process import DaemonProcess

BAR = Bar("p99", 20)
#: Seconds without an event before each tampering, so that none meets the end of the pass before.
QUIET = 0.06
#: Seconds between tamperings at random, at most: the first may meet any moment of the pass before.
RANDOM_PAUSE = 0.06
#: Seconds between looks at the file. To look without a pause would take one of the cores that daemon and disk need.
LOOK = 0.00005
DEADLINE_NS = 30_000_000_000


def measure(quick: bool) -> Figures:
    """Yield the figures of each kind of tampering after quiet, of all of them at random intervals, and of bare writes in between."""
    need_kvm()
    each, mixed = (20, 50) if quick else (300, 1500)
    dice = random.Random()
    with daemon(UNCONTESTED) as process:
        target = Target(process)
        for name, tamper in target.ways.items():
            values = []
            for _ in range(each):
                time.sleep(QUIET)
                values.append(target.repaired_after(tamper))
            yield Figure(f"repair: {name}", "ms", values, BAR)
        ways = list(target.ways.values())
        values, writes = [], []
        for _ in range(mixed):
            time.sleep(dice.random() * RANDOM_PAUSE)
            values.append(target.repaired_after(dice.choice(ways)))
            writes.append(target.bare_write())
        yield Figure("repair: any, 0-60 ms apart", "ms", values, BAR, f"{process.get(SPEC, 'Spec', 'RepairCount')} repairs in all")
        yield Figure("repair: the disk's part", "ms", writes, None, "temporary file, fsync, rename, fsync of the directory, by the bench")


class Target:
    """The owned file, and the ways of tampering with it."""

    def __init__(self, process: DaemonProcess) -> None:
        self._path = str(process.spec)
        self._directory = str(process.cdi)
        self._right = process.spec.read_bytes()
        self._other = str(process.directory / "other.json")
        self.ways: dict[str, Callable[[], None]] = {
            "truncated": lambda: os.truncate(self._path, 0),
            "replaced by rename": self._replace,
            "deleted": lambda: os.unlink(self._path),
            "chmod": lambda: os.chmod(self._path, 0o600),
            "directory removed": lambda: shutil.rmtree(self._directory),
        }
        if not self._is_right():
            raise Broken("the file is not in order before the start")

    def _replace(self) -> None:
        os.rename(self._other, self._path)

    def repaired_after(self, tamper: Callable[[], None]) -> float:
        """Tamper and wait; return the milliseconds from just before until the file is right."""
        Path(self._other).write_bytes(self._right.replace(b"/dev/kvm", b"/dev/vkm"))
        begin = self._begin(tamper)
        while not self._is_right():
            if time.monotonic_ns() - begin > DEADLINE_NS:
                raise Broken("the file was not repaired")
            time.sleep(LOOK)
        return (time.monotonic_ns() - begin) / 1e6

    def bare_write(self) -> float:
        """Return the milliseconds that a durable replacement takes of itself, in another directory of the same file system."""
        directory = os.open(os.path.dirname(self._other), os.O_RDONLY | os.O_DIRECTORY)
        begin = time.monotonic_ns()
        descriptor = os.open("bare.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=directory)
        os.write(descriptor, self._right)
        os.fsync(descriptor)
        os.close(descriptor)
        os.rename("bare.tmp", "bare", src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)
        took = time.monotonic_ns() - begin
        os.close(directory)
        return took / 1e6

    @staticmethod
    def _begin(tamper: Callable[[], None]) -> int:
        """Tamper; return the nanosecond just before."""
        while True:
            begin = time.monotonic_ns()
            try:
                tamper()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                    raise
                # The file was there again before its directory could be removed: once more.
            else:
                return begin

    def _is_right(self) -> bool:
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            status = os.fstat(descriptor)
            right = status.st_size == len(self._right) and stat.S_IMODE(status.st_mode) == 0o644 and status.st_nlink == 1
            return right and os.read(descriptor, 1 << 20) == self._right
        finally:
            os.close(descriptor)
