"""From the removal or the return of a device's node until it shows on the bus, on a tmpfs /dev in a mount namespace of its own."""

import asyncio
import random
import sys

from bench.figure import Bar, Figure, Figures
from bench.setting import DEVICE, Broken, daemon, need_kvm
from bench.signals import DEADLINE, Changes, connect, disconnect
from sim.daemon_process import DaemonProcess

#: Runs inside the namespace: a word comes in, the monotonic nanosecond just before the act goes out.
HANDS = """
import os, stat, sys, time
os.umask(0)
for word in sys.stdin:
    begin = time.monotonic_ns()
    if word == "remove\\n":
        os.unlink("/dev/kvm")
    else:
        os.mknod("/dev/kvm", stat.S_IFCHR | 0o660, os.makedev(10, 232))
    print(begin, flush=True)
"""
#: Seconds at random before each act, so that it may meet whatever the daemon does after the one before.
PAUSE = 0.3


def measure(quick: bool) -> Figures:
    """Yield removal, return, and return until usable."""
    need_kvm()
    with daemon(private_devices=True) as process:
        gone, back, usable = asyncio.run(_rounds(process, 10 if quick else 200))
    yield Figure("device: removed -> published", "ms", gone, Bar("p99", 50), "unlink on a private tmpfs /dev")
    yield Figure("device: back -> identity valid", "ms", back)
    yield Figure("device: back -> healthy", "ms", usable, None, "250 ms of quiet and a probe that starts a VM")


async def _rounds(process: DaemonProcess, count: int) -> tuple[list[float], list[float], list[float]]:
    dice = random.Random()
    bus = await connect(process.bus.address)
    changes = Changes(bus, DEVICE)
    await changes.start()
    hands = await asyncio.create_subprocess_exec(
        "nsenter",
        f"--mount=/proc/{process.pid}/ns/mnt",
        sys.executable,
        "-c",
        HANDS,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert hands.stdin is not None
    assert hands.stdout is not None

    async def act(word: str) -> int:
        assert hands.stdin is not None
        assert hands.stdout is not None
        hands.stdin.write(f"{word}\n".encode())
        line = await hands.stdout.readline()
        if not line:
            raise Broken("the helper in the namespace ended")
        return int(line)

    gone, back, usable = [], [], []
    try:
        for _ in range(count):
            await asyncio.sleep(dice.random() * PAUSE)
            seen = changes.expect(lambda changed: changed.get("Health") == "missing")
            begin = await act("remove")
            gone.append((await asyncio.wait_for(seen, DEADLINE) - begin) / 1e6)
            await asyncio.sleep(dice.random() * PAUSE)
            seen = changes.expect(lambda changed: changed.get("Identity") == "valid")
            begin = await act("make")
            back.append((await asyncio.wait_for(seen, DEADLINE) - begin) / 1e6)
            seen = changes.expect(lambda changed: changed.get("Health") == "healthy")
            usable.append((await asyncio.wait_for(seen, DEADLINE) - begin) / 1e6)
    finally:
        hands.stdin.close()
        await hands.wait()
        disconnect(bus)
    return gone, back, usable
