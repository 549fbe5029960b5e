"""From the start of the process to READY=1."""

import time
from pathlib import Path

from bench.figure import Bar, Figure, Figures
from bench.setting import Broken, need_kvm, scratch
from sim.daemon_process import DaemonProcess

BAR = Bar("p99", 0.7)
DEADLINE = 30.0


def measure(quick: bool) -> Figures:
    """Yield the start with the host's /dev/kvm, and without one."""
    need_kvm()
    count = 3 if quick else 30
    yield Figure("start: to READY", "s", _starts(count, without_device=False), BAR)
    yield Figure("start: to READY without /dev/kvm", "s", _starts(count, without_device=True), BAR, "in a mount namespace")


def _starts(count: int, *, without_device: bool) -> list[float]:
    with scratch() as directory:
        stamp = directory / "begin"
        # The namespace is made by the same process before it becomes devwardd; that time is not devwardd's.
        setup = f"rm -f /dev/kvm\ndate +%s%N >{stamp}" if without_device else ""
        with DaemonProcess(directory, private_devices=without_device, setup=setup) as process:
            _start(process, None)  # compiles the modules where nobody has yet, and writes the file
            return [_start(process, stamp if without_device else None) for _ in range(count)]


def _start(process: DaemonProcess, stamp: Path | None) -> float:
    """Start and stop it; return the seconds to READY, from the moment in the file `stamp` if there is one."""
    already = _ready(process)
    begin = time.time_ns()
    process.start(wait=False)
    if not process.notify.wait_until(lambda: _ready(process) > already, DEADLINE):
        raise Broken("no READY=1: " + process.output.read_text())
    end = time.time_ns()
    process.stop()
    return (end - (int(stamp.read_text()) if stamp is not None else begin)) / 1e9


def _ready(process: DaemonProcess) -> int:
    return sum(message.get("READY") == "1" for message in process.notify.messages())
