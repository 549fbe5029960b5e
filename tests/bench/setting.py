"""What the measurements share: a devwardd to measure, a quick way of looking at it, and the conditions of the machine."""

import contextlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sim.daemon_process import REPOSITORY, DaemonProcess, wait_for

#: The guard against repair wars is no subject here: with its default the bench would measure the back-off.
CONTESTED_AFTER = 1_000_000
UNCONTESTED = f"[cdi]\ncontested_after = {CONTESTED_AFTER}\n"
DEVICE = "/device/kvm"
SPEC = "/spec/hyperlight_2edev_2dhypervisor_2ejson"
BROKER_UNIT = REPOSITORY / "systemd/devward-dcmi.service"


class Broken(Exception):
    """The bench cannot measure; the text says why."""


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory below $TMPDIR, by default on the disk: a tmpfs has no fsync to measure."""
    directory = Path(tempfile.mkdtemp(prefix="devward-bench-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextlib.contextmanager
def daemon(config: str = "", *, private_devices: bool = False, setup: str = "") -> Iterator[DaemonProcess]:
    """A devwardd that is READY, and has had the time to come to rest."""
    with scratch() as directory, DaemonProcess(directory, config=config, private_devices=private_devices, setup=setup) as process:
        process.start()
        settle(process)
        yield process


def settle(process: DaemonProcess) -> None:
    """Wait until nothing is being checked any more."""
    wait_for(lambda: not is_checking(process), what="devwardd to settle")


def is_checking(process: DaemonProcess) -> bool:
    """Whether a check runs or is about to, as Describe has it at this moment."""
    manager = process.describe()["manager"]
    assert isinstance(manager, dict)
    return bool(manager["checking"])


def unit_environment(unit: Path) -> dict[str, str]:
    """Return the variables that a unit sets (Environment= of systemd.exec(5), one a line and unquoted): some decide about memory."""
    lines = unit.read_text(encoding="utf-8").splitlines()
    settings = [line.removeprefix("Environment=").partition("=") for line in lines if line.startswith("Environment=")]
    return {name: value for name, _, value in settings}


def need_kvm() -> None:
    """Refuse to measure where there is nothing to measure."""
    if not os.path.exists("/dev/kvm"):
        raise Broken("there is no /dev/kvm")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process with all threads that it has and had: its CPU clock (clock_getcpuclockid(3))."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e9


def children_cpu_seconds(pid: int) -> float:
    """CPU time of the children that it has waited for (cutime and cstime of proc_pid_stat(5)), to one tick, mostly 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def wakeups(pid: int) -> int:
    """How often the threads of a process have given up the CPU of their own accord: each time something woke them again."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                total += int(line.split()[1])
    return total


def memory(pid: int | str) -> dict[str, float]:
    """PSS and what is private to a process (smaps_rollup), and its largest RSS so far (VmHWM), in MB of 10^6 bytes."""
    values: dict[str, float] = {}
    for file in ("smaps_rollup", "status"):
        for line in Path(f"/proc/{pid}/{file}").read_text(encoding="utf-8").splitlines():
            name, _, rest = line.partition(":")
            if rest.endswith(" kB"):
                values[name] = int(rest.split()[0]) * 1024 / 1e6
    return {
        "pss": values["Pss"],
        "private": values["Private_Clean"] + values["Private_Dirty"],
        "peak": values["VmHWM"],
    }


def conditions() -> str:
    """Return the lines that say where and how the figures were taken."""
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if "model name" in line),
        platform.machine(),
    )
    directory = tempfile.gettempdir()
    system = subprocess.run(["stat", "--file-system", "--format=%T", directory], capture_output=True, text=True, check=True)
    udev = "with udevd" if os.path.exists("/run/udev/control") else "no udevd: kernel events"
    realtime = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    scheduling = "; real-time scheduling, before whatever else the machine does" if realtime else ""
    return "\n".join(
        [
            f"# {model}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}; {udev}",
            f"# CDI directory on {system.stdout.strip()} below {directory}; load average {os.getloadavg()[0]:.2f} at the start{scheduling}",
            f"# a private message bus, stand-ins for journald and systemd; contested_after = {CONTESTED_AFTER} in the tampering",
        ]
    )
