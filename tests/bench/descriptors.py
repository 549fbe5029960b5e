"""What it costs to search the processes of a host for who has a vNPU, for each descriptor that they have open, by the processor's time.

The processes and their descriptors are real ones, of the kernel's own /proc: those of the machine, and as many more as a busy host has.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.figure import Bar, Figure, Figures
from bench.setting import Broken
from devward.cluster.descriptors import DescriptorScan, scan_descriptors
from devward.cluster.evidence import DeviceNumber, Doubt

PROCESSES = 300
DESCRIPTORS = 30
BAR = Bar("median", 15)
#: vNPUs that are searched for; numbers that no driver has.
ASKED = frozenset(DeviceNumber(4000, minor) for minor in range(256))

#: Each ends when the pipe from the bench does.
_FORKS = """
import os, sys
for _ in range(int(sys.argv[1]) - 1):
    if not os.fork():
        break
else:
    print(flush=True)
for _ in range(int(sys.argv[2]) - 3):
    os.dup(2)
os.read(0, 1)
"""


def measure(quick: bool) -> Figures:
    """Yield what a descriptor costs, the processes' mappings included."""
    values: list[float] = []
    scan = DescriptorScan(ASKED)
    with _processes():
        for _ in range(2 if quick else 20):
            begin = time.thread_time()
            scan = scan_descriptors(ASKED, vantage=_everybody)
            values.append((time.thread_time() - begin) / scan.descriptors * 1e6)
    note = f"{scan.processes} processes with {scan.descriptors} descriptors and {scan.mappings} mapped files, {len(ASKED)} vNPUs"
    yield Figure("descriptors: CPU of a search", "us each", values, BAR, note)


def _everybody(_proc: str) -> Doubt | None:
    """What the bench may not see of others is not counted either."""


@contextlib.contextmanager
def _processes() -> Iterator[None]:
    """Have so many more processes, each with a few libraries mapped and so many descriptors."""
    command = [sys.executable, "-I", "-S", "-c", _FORKS, str(PROCESSES), str(DESCRIPTORS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if not process.stdout.readline():
            raise Broken("the processes cannot be made")
        yield
        process.stdin.close()
