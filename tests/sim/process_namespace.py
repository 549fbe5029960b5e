"""Parts of tests that need a host of their own: a process in new PID and mount namespaces, with a /proc that shows only what it starts.

It is the first process there: what it started ends with it.
"""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from sim.held_time import PATIENCE

_PROGRAM: Final = "import importlib, sys; getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(*sys.argv[3:])"
#: Seconds; only a defect takes that long.
DEADLINE: Final = 120


def run_in_process_namespace(part: Callable[..., None], *arguments: object) -> None:
    """Run a function of a test module as the first process of its own PID namespace, as root; what it raises fails the test."""
    command = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command += [sys.executable, "-W", "error", "-c", _PROGRAM, part.__module__, part.__qualname__, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=DEADLINE)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a Python program and wait until it has printed a line; it runs on until its standard input is closed, if it reads that."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "ready\n", line
    return process


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that soon comes true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


def unshare_descriptors() -> None:
    """Give the calling thread a table of descriptors of its own: unshare(CLONE_FILES)."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(0x400) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
