"""The Ascend node of packaging/demo: a simulated library of the vendor's, devward's real broker before it, and a cluster around it.

The broker is told that it is on the host itself: where it is not, as here in a mount namespace, it refuses to load any library. Nodes
have numbers that no driver has.
"""

import contextlib
import json
import os
import select
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from demo_stage import make_node, mount, wait

from devward import names
from devward.npu import vnpu_cfg
from sim.dcmi_broker import BrokerHost
from sim.dcmi_simulator import CONTAINERD, Chip, DcmiSimulator, Vnpu, build_library
from sim.owned_node import OwnedHost
from sim.recorded_cluster import DIES

MAJOR = 4000
MANAGER_MAJOR = 4001
TEMPLATE = "vir05_1c_8g"
#: Seconds after which the broker ends where the library hangs; elsewhere 30.
HANG_LIMIT = 1.0


class Builder:
    """Builds the library while the demo does other things."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._library: Path | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._build, daemon=True)
        self._thread.start()

    def _build(self) -> None:
        # Of this thread alone, and the compiler that it starts: what the demo shows meanwhile has times.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        try:
            self._library = build_library(self._directory)
        except (OSError, RuntimeError) as error:
            self._error = error

    def result(self) -> Path:
        """Wait for it. SystemExit if it could not be built."""
        self._thread.join()
        if self._library is None:
            raise SystemExit(f"packaging/demo: the simulated library cannot be built: {self._error}")
        return self._library


class Npus:
    """NPUs and vNPUs that come and go."""

    def __init__(self, host: BrokerHost, simulator: DcmiSimulator, address: str) -> None:
        self.cluster = OwnedHost(host.witnessed)
        self._simulator = simulator
        self._address = address

    def add(self) -> Chip:
        """Add one of the chips that the recorded Pods know."""
        chip = self._simulator.add_chip("910B4", vdie=DIES[len(self._simulator.read().chips)])
        _make_node(f"davinci{chip.phy}", MAJOR, chip.phy)
        return chip

    def create(self, chip: Chip, *, used: bool = False) -> Vnpu:
        """Make a vNPU, as the start of a container does; `used`: the container has opened it."""
        container = CONTAINERD if used else 0
        vnpu = self._simulator.create(chip, TEMPLATE, recorded=False, used=int(used), container=container)
        _make_node(f"vdavinci{vnpu.id}", MAJOR, vnpu.id)
        return vnpu

    def destroy(self, vnpu: Vnpu) -> None:
        """Take one away, as another program does."""
        self._simulator.destroy(vnpu)
        _remove_node(f"vdavinci{vnpu.id}", vnpu.id)

    def hang(self) -> None:
        """Let every call of the library hang, and wait until the broker is in one: it is asked as a node comes and goes."""
        self._simulator.clear_calls()
        self._simulator.fault("*", "hang")
        _make_node("davinci99", MAJOR, 99)
        _remove_node("davinci99", 99)
        wait(self._simulator.calls, "a call of the library")

    def let_go(self) -> None:
        """Let the library answer again."""
        self._simulator.clear_faults()

    def wait_listed(self, *listed: str) -> float:
        """Wait until these vNPUs and no others are on the bus, and vouched for; return the seconds that took."""
        wanted = dict.fromkeys(listed, "")
        return wait(lambda: {row[6].rpartition("/")[2]: row[4] for row in self._rows("ListVnpus")} == wanted, f"vNPUs {listed}", pause=0.05)

    def wait_cards(self, reason: str) -> float:
        """Wait until every NPU has this reason; return the seconds that took."""
        return wait(lambda: {row[5] for row in self._rows("ListCards")} == {reason}, f"NPUs with the reason {reason!r}", pause=0.05)

    def wait_owners(self, state: str) -> float:
        """Wait until it is known who owns the NPUs of a recorded node, at which HAMi goes on reporting; return the seconds that took."""

        def known() -> bool:
            self.cluster.beat(state)
            said = self._ownership()
            return not said["blocked"] and all(card["claims"] and card["managed"] == "managed" for card in said["cards"][:1])

        return wait(known, "who owns the NPUs", pause=0.1)

    def wait_blocked(self, reason: str) -> float:
        """Wait until this is why the owners are not known; return the seconds that took."""
        return wait(lambda: reason in {one["reason"] for one in self._ownership()["blocked"]}, reason, pause=0.1)

    def _ownership(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self._ask("Describe"))["ownership"]
        return said

    def _rows(self, member: str) -> list[list[str]]:
        return list(self._ask(member))

    def _ask(self, member: str) -> Any:
        command = ["busctl", f"--address={self._address}", "--json=short", "call", names.BUS_NAME, names.ROOT_PATH, names.MANAGER_INTERFACE]
        answer = subprocess.run([*command, member], stdout=subprocess.PIPE, check=True).stdout
        (value,) = json.loads(answer)["data"]
        return value


@contextlib.contextmanager
def ascend_node(library: Path, journal: Path, address: str) -> Iterator[Npus]:
    """Make this machine an Ascend node until the end of the block: everything but cards."""
    with BrokerHost() as host, DcmiSimulator(host.directory / "node", library) as simulator:
        simulator.install(host.library)
        simulator.set_node(supports_recover=0)
        if os.path.exists(vnpu_cfg.PATH):  # a real Ascend node: its records are not of these vNPUs
            simulator.write_cfg([], recover=False)
            mount("--bind", str(simulator.cfg), vnpu_cfg.PATH)
        os.symlink(host.directory, os.path.dirname(names.BROKER_SOCKET))
        with _activated(host, simulator, journal):
            for major, name in enumerate(("davinci_manager", "devmm_svm", "hisi_hdc"), MANAGER_MAJOR):
                _make_node(name, major, 0)
            yield Npus(host, simulator, address)


@contextlib.contextmanager
def _activated(host: BrokerHost, simulator: DcmiSimulator, journal: Path) -> Iterator[None]:
    """Start a broker whenever somebody connects and there is none, as devward-dcmi.socket does."""
    over = threading.Event()

    def serve() -> None:
        poll = select.poll()
        poll.register(host.listener, select.POLLIN)
        while not over.is_set():
            if poll.poll(100):
                host.start(simulator.environment, hang_limit=HANG_LIMIT, journal=journal).wait()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        while thread.is_alive():
            for process in list(host.processes):
                process.kill()
            thread.join(0.05)


def _make_node(name: str, major: int, minor: int) -> None:
    os.symlink(f"../../devices/virtual/{name}", f"/sys/dev/char/{major}:{minor}")
    make_node(f"/dev/{name}", 0o660, os.makedev(major, minor))


def _remove_node(name: str, minor: int) -> None:
    os.unlink(f"/dev/{name}")
    os.unlink(f"/sys/dev/char/{MAJOR}:{minor}")
