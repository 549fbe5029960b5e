"""How long CheckAllocation takes: alone, for many at once, and while the probe child hangs beyond the reach of SIGKILL."""

import asyncio
import contextlib
import os
import random
import time
from pathlib import Path

from bench.figure import Bar, Figure, Figures
from bench.setting import DEVICE, Broken, daemon, need_kvm
from bench.signals import MessageBus, check_allocation, connect, disconnect
from sim.cgroups import FreezerGroup, is_alive
from sim.daemon_process import DaemonProcess, wait_for

CALLERS = 64
#: Seconds within which they call while the helper hangs: before, at and after the moment when the probe's time is over (2 s).
ARRIVALS = 3
#: How often it is tried to freeze a probe child, which lives for some 20 ms.
ATTEMPTS = 50
#: The design's bound for every answer, in seconds.
BAR = Bar("worst", 2.0)


def measure(quick: bool) -> Figures:
    """Yield the latencies of one caller, of CALLERS at once, and with a helper that hangs."""
    need_kvm()
    alone, rounds, hangs = (10, 2, 1) if quick else (200, 20, 5)
    with daemon() as process:
        values = asyncio.run(_alone(process, alone))
        yield Figure("allocation: alone", "s", values, BAR)
        values = asyncio.run(_together(process, rounds))
        yield Figure(f"allocation: {CALLERS} callers", "s", values, BAR, "each on a connection of its own")
        values = []
        for number in range(hangs):
            with FreezerGroup(f"bench-{number}") as group:
                values += asyncio.run(_while_hung(process, group))
            wait_for(lambda: process.get(DEVICE, "Device", "Health") == "healthy", what="the device to recover")
        yield Figure("allocation: helper hangs", "s", values, BAR, f"{CALLERS} callers within {ARRIVALS} s, {hangs} times")


async def _alone(process: DaemonProcess, count: int) -> list[float]:
    bus = await connect(process.bus.address)
    values = []
    for _ in range(count):
        seconds, answer = await check_allocation(bus)
        if not answer[0]:
            raise Broken(f"refused: {answer[1]}")
        values.append(seconds)
    disconnect(bus)
    return values


async def _together(process: DaemonProcess, rounds: int) -> list[float]:
    buses = [await connect(process.bus.address) for _ in range(CALLERS)]
    values = []
    for _ in range(rounds):
        for seconds, answer in await asyncio.gather(*map(check_allocation, buses)):
            if not answer[0]:
                raise Broken(f"refused: {answer[1]}")
            values.append(seconds)
    disconnect(*buses)
    return values


async def _while_hung(process: DaemonProcess, group: FreezerGroup) -> list[float]:
    """One caller starts the check whose helper then hangs; the others come while it does."""
    dice = random.Random()
    buses = [await connect(process.bus.address) for _ in range(CALLERS)]
    for _ in range(ATTEMPTS):
        first = asyncio.create_task(check_allocation(buses[0]))
        if await asyncio.to_thread(freeze_child, process.pid, group):
            break
        await first
    else:
        raise Broken("no helper could be frozen")

    async def later(bus: MessageBus) -> tuple[float, tuple[bool, str]]:
        await asyncio.sleep(ARRIVALS * dice.random())
        return await check_allocation(bus)

    answers = await asyncio.gather(first, *map(later, buses[1:]))
    disconnect(*buses)
    if any(allowed for _, (allowed, _) in answers):
        raise Broken("allowed although the helper hangs")
    return [seconds for seconds, _ in answers]


def freeze_child(pid: int, group: FreezerGroup) -> bool:
    """Freeze the probe child that is about to run; False where none could be caught before its end. SIGKILL then waits for the thaw."""
    end = time.monotonic() + 1
    children = Path(f"/proc/{pid}/task/{pid}/children")
    while time.monotonic() < end:
        for child in map(int, children.read_text(encoding="ascii").split()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                # Not before its exec: until then the daemon waits for it, in vfork.
                if b"probe.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                    group.freeze(child)
                    return is_alive(child)
        os.sched_yield()
    return False
