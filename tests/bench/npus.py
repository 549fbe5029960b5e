"""What NPUs cost: at rest with as many as a large host has, and when something changes on a host with the most that can be told of.

The broker is the one that is installed, with a simulated library and an environment that is injected (resident.py). Ids of vNPUs have room
for 16 on a card: of 32 on each of 64 cards half are somebody else's, which is the longest list that the library can give, and the longest
text of complaints.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import devward.bus.connection  # noqa: F401  # first: it keeps dbus-next from importing PyGObject

# isort: split
from dbus_next.constants import MessageType
from dbus_next.message import Message

from bench.figure import Bar, Figure, Figures
from bench.setting import (
    BROKER_UNIT,
    Broken,
    children_cpu_seconds,
    cpu_seconds,
    daemon,
    memory,
    need_kvm,
    settle,
    unit_environment,
    wakeups,
)
from bench.signals import DEADLINE, MessageBus, call, check_allocation, connect, disconnect
from bench.uevents import counted
from devward.npu.protocol import ListAnswer, ListRequest
from sim.daemon_process import BUS_NAME, MANAGER, REPOSITORY, ROOT_PATH, DaemonProcess, wait_for
from sim.dcmi_broker import BrokerHost
from sim.dcmi_simulator import Chip, DcmiSimulator, Vnpu, build_library

#: Cards, and vNPUs on each.
LARGE = (16, 16)
EXTREME = (64, 32)
RESIDENT = Path(__file__).with_name("resident.py")
#: A number that no driver has.
MAJOR = 4000
#: Seconds until a start, or what came before, is over: more than the time between two looks at the least.
REST = 10
QUIET = 2
#: Two of the looks that come every minute.
WINDOW = 120
OBJECT_MANAGER = "org.freedesktop.DBus.ObjectManager"

#: Runs inside the namespace: names of nodes come in, a line that says when they were made, in monotonic nanoseconds, goes out.
_HANDS = """
import os, stat, sys, time
os.umask(0)
for line in sys.stdin:
    begin = time.monotonic_ns()
    for word in line.split():
        act, name, major, minor = word.split(",")
        number = f"/sys/dev/char/{major}:{minor}"
        if act == "make":
            os.symlink(f"../../devices/virtual/{name}", number)
            os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o660, os.makedev(int(major), int(minor)))
        else:
            os.unlink(f"/dev/{name}")
            os.unlink(number)
    print(begin, flush=True)
"""


def measure(quick: bool) -> Figures:
    """Yield the figures at rest of a large host, then those of changes on both."""
    need_kvm()
    with tempfile.TemporaryDirectory(prefix="devward-bench-") as cache:
        try:
            library = build_library(Path(cache))
        except (OSError, RuntimeError) as error:
            raise Broken(f"the simulated library cannot be built: {error}") from error
        with _node(library, *LARGE) as node:
            yield from _rest(node, 5 if quick else WINDOW, 1 if quick else REST)
            yield from _looks(node, 2 if quick else 10)
            yield from _changes(node, 2 if quick else 20)
            yield from _answers(node, 2 if quick else 20)
        with _node(library, *EXTREME) as node:
            time.sleep(QUIET)
            yield from _memory(node)
            yield from _looks(node, 2 if quick else 10)
            yield from _changes(node, 2 if quick else 10)
            yield from _answers(node, 2 if quick else 20)


@dataclass(slots=True)
class _Node:
    """A host with NPUs, its broker and its devwardd."""

    process: DaemonProcess
    simulator: DcmiSimulator
    broker: int
    hands: "subprocess.Popen[str]"
    size: str
    #: A vNPU that can go and come again: the last one of the last card.
    last: Vnpu

    def act(self, words: Sequence[str]) -> int:
        """Make or remove nodes; return the nanosecond just before."""
        assert self.hands.stdin is not None
        assert self.hands.stdout is not None
        self.hands.stdin.write(" ".join(words) + "\n")
        self.hands.stdin.flush()
        line = self.hands.stdout.readline()
        if not line:
            raise Broken("the helper in the namespace ended")
        return int(line)

    def objects(self) -> int:
        """Return how many cards and vNPUs are on the bus."""
        (cards,), (vnpus,) = self.process.call("ListCards"), self.process.call("ListVnpus")
        assert isinstance(cards, list)
        assert isinstance(vnpus, list)
        return len(cards) + len(vnpus)


@contextlib.contextmanager
def _node(library: Path, cards: int, per_card: int) -> Iterator[_Node]:
    """A host with so many NPUs, and as many vNPUs on each, all on the bus."""
    with BrokerHost(RESIDENT) as host, DcmiSimulator(host.directory / "node", library) as simulator:
        simulator.install(host.library)
        simulator.set_node(supports_recover=0)
        chips = [simulator.add_chip("910B3") for _ in range(cards)]
        vnpus = [_vnpu(chip, chip.first_vdev + place) for chip in chips for place in range(per_card)]
        with simulator.edit() as state:
            state.vnpus.extend(vnpus)
        broker = host.start({**simulator.environment, **unit_environment(BROKER_UNIT)})
        with host.connect() as connection:
            if not isinstance(connection.ask(ListRequest(1)), ListAnswer):
                raise Broken("the broker does not list the simulated NPUs")
        with daemon(private_devices=True, setup=host.daemon_setup) as process, _hands(process) as hands:
            node = _Node(process, simulator, broker.pid, hands, f"{cards} x {per_card}", vnpus[-1])
            names = [f"davinci{chip.phy}" for chip in chips]
            names += [f"vdavinci{vdev}" for vdev in sorted({vnpu.id for vnpu in vnpus})]
            shared = [f"make,{name},{MAJOR + 1 + place},0" for place, name in enumerate(("davinci_manager", "devmm_svm", "hisi_hdc"))]
            node.act([*shared, *map(_make, names)])
            wait_for(lambda: node.objects() == cards * (1 + per_card), what="all NPUs on the bus")
            settle(process)
            yield node


@contextlib.contextmanager
def _hands(process: DaemonProcess) -> "Iterator[subprocess.Popen[str]]":
    command = ["nsenter", f"--mount=/proc/{process.pid}/ns/mnt", sys.executable, "-c", _HANDS]
    hands = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield hands
    finally:
        hands.communicate()


def _vnpu(chip: Chip, vdev: int) -> Vnpu:
    return Vnpu(chip.card, chip.dev, vdev, "vir05_1c_16g", vfid=None, aic=5, memory=16384, aicpu=1)


def _make(name: str) -> str:
    return f"make,{name},{MAJOR},{name.lstrip('v').removeprefix('davinci')}"


def _remove(name: str) -> str:
    return _make(name).replace("make", "remove", 1)


# --- at rest -----------------------------------------------------------------------------------------------------------
def _rest(node: _Node, window: float, rest: float) -> Figures:
    time.sleep(rest)
    pids = {"daemon": node.process.pid, "broker": node.broker}
    with counted() as seen:
        before = {name: _spent(pid) for name, pid in pids.items()}
        begin = time.monotonic()
        time.sleep(window)
        took = time.monotonic() - begin
        after = {name: _spent(pid) for name, pid in pids.items()}
    disturbed = sum(seen.values())
    note = f"{window:g} s, a look at the NPUs each minute" + (f"; {disturbed} uevents from elsewhere" if disturbed else "")
    for name in pids:
        cpu, woken = (now - then for now, then in zip(after[name], before[name], strict=True))
        yield Figure(f"npus {node.size}: idle, {name}'s CPU", "% of core", [cpu / took * 100], None, note)
        yield Figure(f"npus {node.size}: idle, {name} wakes", "1/s", [woken / took], None, note)
    yield from _memory(node)


def _spent(pid: int) -> tuple[float, float]:
    return cpu_seconds(pid) + children_cpu_seconds(pid), wakeups(pid)


def _memory(node: _Node) -> Figures:
    for name, pid, limit in (("daemon", node.process.pid, 90), ("broker", node.broker, 16)):
        used = memory(pid)
        note = f"{used['private']:.1f} MB of it private; peak RSS {used['peak']:.1f} MB"
        yield Figure(f"npus {node.size}: {name}'s PSS", "MB", [used["pss"]], Bar("median", limit), note)


# --- when something happens --------------------------------------------------------------------------------------------
def _looks(node: _Node, count: int) -> Figures:
    """Looks that find nothing new, asked for one by one."""
    daemons, brokers = [], []
    for _ in range(count):
        time.sleep(QUIET)
        before = cpu_seconds(node.process.pid), cpu_seconds(node.broker)
        node.simulator.clear_calls()
        node.process.call("Rescan", "t", "0")
        node.simulator.wait_for("dcmi_get_card_list")
        time.sleep(QUIET)
        daemons.append((cpu_seconds(node.process.pid) - before[0]) * 1000)
        brokers.append((cpu_seconds(node.broker) - before[1]) * 1000)
    yield Figure(f"npus {node.size}: daemon's CPU for a look", "ms", daemons, None, "with a check of /dev/kvm, as Rescan has it")
    yield Figure(f"npus {node.size}: broker's CPU for a look", "ms", brokers)


def _changes(node: _Node, count: int) -> Figures:
    appeared, gone = asyncio.run(_come_and_go(node, count))
    yield Figure(f"npus {node.size}: vNPU made -> published", "ms", appeared, None, "250 ms of quiet before the look are part of it")
    yield Figure(f"npus {node.size}: vNPU gone -> published", "ms", gone)


async def _come_and_go(node: _Node, count: int) -> tuple[list[float], list[float]]:
    """Take a vNPU away and make another one in its place, over and over."""
    name = f"vdavinci{node.last.id}"
    bus = await connect(node.process.bus.address)
    added = _Objects(bus)
    await added.start()
    appeared, gone = [], []
    try:
        for _ in range(count):
            await asyncio.sleep(QUIET)
            node.simulator.destroy(node.last)
            seen = added.expect("InterfacesRemoved")
            begin = node.act([_remove(name)])
            gone.append((await asyncio.wait_for(seen, DEADLINE) - begin) / 1e6)
            await asyncio.sleep(QUIET)
            with node.simulator.edit() as state:
                state.vnpus.append(node.last)
            seen = added.expect("InterfacesAdded")
            begin = node.act([_make(name)])
            appeared.append((await asyncio.wait_for(seen, DEADLINE) - begin) / 1e6)
    finally:
        disconnect(bus)
    return appeared, gone


class _Objects:
    """Listens for objects that come and go."""

    def __init__(self, bus: MessageBus) -> None:
        self._bus = bus
        self._waiting: tuple[str, asyncio.Future[int]] | None = None
        bus.add_message_handler(self._message)

    async def start(self) -> None:
        """Subscribe."""
        rule = f"type='signal',interface='{OBJECT_MANAGER}',path='{ROOT_PATH}'"
        name = "org.freedesktop.DBus"
        await call(
            self._bus,
            Message(destination=name, path="/org/freedesktop/DBus", interface=name, member="AddMatch", signature="s", body=[rule]),
        )

    def expect(self, member: str) -> "asyncio.Future[int]":
        """Return a future of the monotonic nanosecond when the next such signal came."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting = member, future
        return future

    def _message(self, message: Message) -> None:
        now = time.monotonic_ns()
        if message.message_type is MessageType.SIGNAL and self._waiting is not None:
            member, future = self._waiting
            if message.member == member and not future.done():
                future.set_result(now)


# --- answers -----------------------------------------------------------------------------------------------------------
def _answers(node: _Node, count: int) -> Figures:
    objects = node.objects()
    note = f"{objects} objects; busctl, with its start"
    for interface, member in ((OBJECT_MANAGER, "GetManagedObjects"), (MANAGER, "ListVnpus")):
        arguments = ["busctl", f"--address={node.process.bus.address}", "call", BUS_NAME, ROOT_PATH, interface, member]
        yield Figure(f"npus {node.size}: {member}", "ms", [_run(arguments) for _ in range(count)], None, note)
    for words in (["vnpus"], ["complete", "explain"]):
        arguments = [sys.executable, "-m", "devward.ctl", "--bus", node.process.bus.address, *words]
        values = [_run(arguments) for _ in range(count)]
        yield Figure(f"npus {node.size}: devwardctl {words[0]}", "ms", values, Bar("median", 300), f"{objects} objects")
    values = asyncio.run(_check_meanwhile(node, count))
    yield Figure(f"npus {node.size}: CheckAllocation", "s", values, Bar("worst", 2.0), "while every vNPU changes its use")


def _run(command: list[str]) -> float:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY / "src"), "LANG": "C.UTF-8"}
    begin = time.monotonic()
    result = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    took = time.monotonic() - begin
    if result.returncode:
        raise Broken(f"{' '.join(command)}: exit status {result.returncode}: {result.stderr.decode()}")
    return took * 1000


async def _check_meanwhile(node: _Node, count: int) -> list[float]:
    """Ask for /dev/kvm over and over while looks find that every vNPU has changed."""
    bus = await connect(node.process.bus.address)
    values = []
    try:
        for number in range(count):
            node.simulator.clear_calls()
            with node.simulator.edit() as state:
                state.vnpus = [replace(vnpu, used=(number + 1) % 2) for vnpu in state.vnpus]
            await call(bus, _rescan())
            end = time.monotonic() + QUIET
            while time.monotonic() < end:
                seconds, answer = await check_allocation(bus)
                if not answer[0]:
                    raise Broken(f"refused: {answer[1]}")
                values.append(seconds)
    finally:
        disconnect(bus)
    return values


def _rescan() -> Message:
    body: list[Any] = [0]
    return Message(destination=BUS_NAME, path=ROOT_PATH, interface=MANAGER, member="Rescan", signature="t", body=body)
