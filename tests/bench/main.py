"""The command line of the bench."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Mapping

from bench import allocation, command, descriptors, device, events, idle, npus, owners, plugin, readers, repair, snapshot, start
from bench.figure import HEADING, Figures
from bench.setting import Broken, conditions

#: In this order: what needs a quiet machine comes first.
MEASUREMENTS: Mapping[str, Callable[[bool], Figures]] = {
    "idle": idle.measure,
    "npus": npus.measure,
    "owners": owners.measure,
    "memory": idle.measure_imports,
    "start": start.measure,
    "command": command.measure,
    "repair": repair.measure,
    "readers": readers.measure,
    "device": device.measure,
    "events": events.measure,
    "allocation": allocation.measure,
    "plugin": plugin.measure,
    "snapshot": snapshot.measure,
    "descriptors": descriptors.measure,
}


def main() -> int:
    """Measure what is asked for. A missed bar is no failure; a figure that could not be taken is."""
    parser = argparse.ArgumentParser(
        prog="tests/bench/run",
        description="Measures devward and prints one line a figure: name, median, 99th percentile, n, unit, and the bar with met or not"
        " met. Must run as root. The exit status says whether the bench worked, never how fast anything was.",
        epilog="On a machine that does other things as well, `chrt -r 1 tests/bench/run NAME` keeps these out of a figure; the heading"
        " then says so. TMPDIR chooses the file system: one on tmpfs shows what is left without the disk.",
    )
    parser.add_argument("--quick", action="store_true", help="few iterations: a check of the bench, not of devward")
    parser.add_argument("name", nargs="*", help=f"what to measure, all by default: {', '.join(MEASUREMENTS)}")
    given = parser.parse_args()
    unknown = [name for name in given.name if name not in MEASUREMENTS]
    if unknown:
        parser.error(f"no such measurement: {', '.join(unknown)}")
    if os.geteuid() != 0:
        parser.error("must run as root")
    # The stand-ins have threads in this process: none shall keep the one that measures waiting for 5 ms.
    sys.setswitchinterval(0.0005)
    print(conditions() + (" (quick)" if given.quick else ""))
    print(HEADING, flush=True)
    broken = 0
    for name in given.name or MEASUREMENTS:
        try:
            for figure in MEASUREMENTS[name](given.quick):
                print(figure.line(), flush=True)
        except Broken as reason:
            print(f"{name}: cannot be measured: {reason}", flush=True)
            broken += 1
        except Exception:  # noqa: BLE001 # reported; the others shall still be measured
            print(f"{name}: the bench is broken", flush=True)
            traceback.print_exc()
            broken += 1
    print(f"# load average {os.getloadavg()[0]:.2f} at the end")
    return 1 if broken else 0
