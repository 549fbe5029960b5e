"""What a devwardd costs that has nothing to do: CPU, wake-ups, memory; and what each of its imports weighs."""

import json
import subprocess
import sys
import time
from dataclasses import dataclass

from bench.figure import Bar, Figure, Figures
from bench.setting import children_cpu_seconds, cpu_seconds, daemon, memory, need_kvm, wakeups
from bench.uevents import counted
from sim.daemon_process import REPOSITORY, DaemonProcess

#: Seconds after READY until the start is over.
REST = 10
WINDOW = 60
#: A window with uevents from elsewhere shows what they cost, not what rest costs: it is taken again, so many times in all at most.
WINDOWS = 4

#: Imports one after the other and prints the PSS after each.
_IMPORTS = """
import importlib, json, sys
def pss():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) * 1024 / 1e6
sizes = [("interpreter", pss())]
for name in sys.argv[1:]:
    importlib.import_module(name)
    sizes.append((name, pss()))
print(json.dumps(sizes))
"""
#: devward.bus.connection brings dbus-next, devward.devices.monitor pyudev, devward.notify sdnotify.
_MODULES = ("asyncio", "devward.bus.connection", "devward.devices.monitor", "devward.notify", "devward.config", "devward.app")


def measure(quick: bool) -> Figures:
    """Yield CPU and wake-ups of the quietest window, and memory after it."""
    need_kvm()
    # In a mount namespace of its own: what others mount, and do in /dev, wakes it up.
    with daemon(private_devices=True) as process:
        rest = at_rest(process, quick)
    yield from figures(rest)


@dataclass(frozen=True, slots=True)
class Rest:
    """The quietest window of a daemon that has nothing to do."""

    uevents: int
    cpu_percent: float
    wakeups: float
    window: int
    memory: dict[str, float]


def at_rest(process: DaemonProcess, quick: bool) -> Rest:
    """Watch a daemon that is left alone."""
    window = 5 if quick else WINDOW
    time.sleep(1 if quick else REST)
    taken: list[tuple[int, float, float]] = []
    while not taken or (taken[-1][0] and len(taken) < WINDOWS):
        with counted() as seen:
            cpu = cpu_seconds(process.pid) + children_cpu_seconds(process.pid)
            woken = wakeups(process.pid)
            begin = time.monotonic()
            time.sleep(window)
            took = time.monotonic() - begin
            woken = wakeups(process.pid) - woken
            cpu = cpu_seconds(process.pid) + children_cpu_seconds(process.pid) - cpu
        taken.append((sum(seen.values()), cpu / took * 100, woken / took))
    disturbed, share, rate = min(taken)
    return Rest(disturbed, share, rate, window, memory(process.pid))


def figures(rest: Rest, prefix: str = "", *, bars: bool = True) -> Figures:
    """Yield what was seen; the bars are those of a host with nothing but a hypervisor."""

    def bar(limit: float) -> Bar | None:
        return Bar("median", limit) if bars else None

    note = f"{rest.window} s" + (f", with {rest.uevents} uevents from elsewhere" if rest.uevents else "")
    yield Figure(f"{prefix}idle: CPU with children", "% of core", [rest.cpu_percent], bar(0.02), note)
    yield Figure(f"{prefix}idle: wake-ups", "1/s", [rest.wakeups], bar(0.5), note)
    yield Figure(f"{prefix}memory: PSS", "MB", [rest.memory["pss"]], bar(30), f"{rest.memory['private']:.1f} MB of it private")
    yield Figure(f"{prefix}memory: peak RSS", "MB", [rest.memory["peak"]])


def measure_imports(quick: bool) -> Figures:
    """Yield what each import adds to the PSS of a bare interpreter; for information."""
    runs = []
    for _ in range(1 if quick else 5):
        command = [sys.executable, "-c", _IMPORTS, *_MODULES]
        environment = {"PYTHONPATH": str(REPOSITORY / "src"), "LANG": "C.UTF-8"}
        answer = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        runs.append(json.loads(answer.stdout))
    for position, (name, _) in enumerate(runs[0]):
        added = [run[position][1] - (run[position - 1][1] if position else 0.0) for run in runs]
        yield Figure(f"memory: {'import ' * bool(position)}{name}", "MB", added, None, "adds to the PSS" if position else "")
