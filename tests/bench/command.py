"""How long a person waits for the command line's own answers."""

import subprocess
import sys
import time

from bench.figure import Figure, Figures
from bench.setting import Broken
from sim.daemon_process import REPOSITORY


def measure(quick: bool) -> Figures:
    """Yield help and wrong usage."""
    count = 3 if quick else 50
    yield Figure("command: devwardd --help", "ms", [_run("--help", 0) for _ in range(count)])
    yield Figure("command: devwardd, wrong usage", "ms", [_run("--nonsense", 2) for _ in range(count)])


def _run(argument: str, status: int) -> float:
    environment = {"PYTHONPATH": str(REPOSITORY / "src"), "LANG": "C.UTF-8"}
    begin = time.monotonic()
    command = [sys.executable, "-m", "devward", argument]
    result = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    took = time.monotonic() - begin
    if result.returncode != status:
        raise Broken(f"{argument}: exit status {result.returncode}: {result.stderr.decode()}")
    return took * 1000
