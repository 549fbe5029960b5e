"""The Ascend node of packaging/demo: a simulated library of the vendor's, and devward's real broker before it.

The broker is told that it is on the host itself: where it is not, as here in a mount namespace, it refuses to load any library. The
processes and containers that it looks at are a tree of files (sim.witness_host). Nodes have numbers that no driver has.
"""

import contextlib
import os
import re
import select
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from demo_daemon import Demo
from demo_stage import make_node, mount, wait

from devward import names
from devward.npu import vnpu_cfg
from sim.dcmi_broker import BrokerHost
from sim.dcmi_simulator import CONTAINERD, Call, Chip, DcmiSimulator, Vnpu, build_client, build_library
from sim.recorded_cluster import DIES
from sim.witness_host import WitnessHost

MAJOR = 4000
MANAGER_MAJOR = 4001
TEMPLATE = "vir05_1c_8g"
#: Seconds after which the broker ends where the library hangs; elsewhere 30.
HANG_LIMIT = 3.0


class Built(NamedTuple):
    """The simulated library, and a program that makes vNPUs by it as a container runtime does."""

    library: Path
    client: Path


class Builder:
    """Builds them while the demo does other things."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._built: Built | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._build, daemon=True)
        self._thread.start()

    def _build(self) -> None:
        # Of this thread alone, and the compiler that it starts: what the demo shows meanwhile has times.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        try:
            self._built = Built(build_library(self._directory), build_client(self._directory))
        except (OSError, RuntimeError) as error:
            self._error = error

    def result(self) -> Built:
        """Wait for it. SystemExit if it could not be built."""
        self._thread.join()
        if self._built is None:
            raise SystemExit(f"packaging/demo: the simulated library cannot be built: {self._error}")
        return self._built


class Npus:
    """NPUs and vNPUs that come and go, as the kernel and the vendor's library show them."""

    def __init__(self, host: BrokerHost, simulator: DcmiSimulator, client: Path, demo: Demo) -> None:
        self.witnessed: WitnessHost = host.witnessed
        self._simulator = simulator
        self._client = client
        self._demo = demo
        #: By their physical ids.
        self.chips: list[Chip] = []
        #: Ids of vNPUs that have a node.
        self._with_node: set[int] = set()

    def add(self, *, die: str = "") -> Chip:
        """Add a chip: one of those that the recorded Pods know, unless another die id is given."""
        chip = self._simulator.add_chip("910B4", vdie=die or DIES[len(self.chips)])
        self.chips.append(chip)
        _make_node(f"davinci{chip.phy}", MAJOR, chip.phy)
        return chip

    def create(self, chip: Chip, *, used: bool = False) -> Vnpu:
        """Make a vNPU, as the start of a container does; `used`: the container has opened it."""
        container = CONTAINERD if used else 0
        vnpu = self._simulator.create(chip, TEMPLATE, recorded=False, used=int(used), container=container)
        self._show(vnpu.id)
        return vnpu

    def try_create(self, chip: Chip) -> tuple[int, int]:
        """Make an idle vNPU by the vendor's library; return what that answers, and the vNPU's id."""
        command = [str(self._client), str(self._simulator.library), "create", str(chip.card), str(chip.dev), TEMPLATE]
        environment = {**os.environ, **self._simulator.environment}
        said = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True).stdout
        answer = re.search(r"create code=(-?\d+) id=(\d+)", said)
        if answer is None:
            raise SystemExit(f"packaging/demo: the simulated library made no vNPU and did not say why: {said}")
        code, vdev = int(answer[1]), int(answer[2])
        if code == 0:
            self._show(vdev)
        return code, vdev

    def destroy(self, vnpu: Vnpu) -> None:
        """Take one away, as another program does."""
        self._simulator.destroy(vnpu)
        self.settle()

    def settle(self) -> None:
        """Take the nodes of vNPUs away that are gone, as the driver does when one is destroyed."""
        for vdev in self._with_node - {vnpu.id for vnpu in self._simulator.vnpus()}:
            _remove_node(f"vdavinci{vdev}", vdev)
            self._with_node.remove(vdev)

    def _show(self, vdev: int) -> None:
        _make_node(f"vdavinci{vdev}", MAJOR, vdev)
        self._with_node.add(vdev)

    @property
    def ids(self) -> set[int]:
        """The vNPUs that the library has."""
        return {vnpu.id for vnpu in self._simulator.vnpus()}

    def vnpus_of(self, chip: Chip) -> list[Vnpu]:
        """Return the vNPUs of one chip."""
        return self._simulator.vnpus(chip)

    @property
    def destructions(self) -> list[Call]:
        """How often the library was asked to destroy a vNPU, by anybody."""
        return self._simulator.calls("dcmi_set_destroy_vdevice")

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
        return wait(
            lambda: {row[6].rpartition("/")[2]: row[4] for row in self._demo.ask("ListVnpus")} == wanted, f"vNPUs {listed}", pause=0.05
        )

    def wait_cards(self, reason: str) -> float:
        """Wait until every NPU has this reason; return the seconds that took."""
        return wait(lambda: {row[5] for row in self._demo.ask("ListCards")} == {reason}, f"NPUs with the reason {reason!r}", pause=0.05)


@contextlib.contextmanager
def ascend_node(built: Built, demo: Demo) -> Iterator[Npus]:
    """Make this machine an Ascend node until the end of the block: everything but cards."""
    with BrokerHost() as host, DcmiSimulator(host.directory / "node", built.library) as simulator:
        simulator.install(host.library)
        # Broker and daemon see the same nodes.
        host.devices.rmdir()
        host.devices.symlink_to("/dev")
        simulator.set_node(supports_recover=0)
        if os.path.exists(vnpu_cfg.PATH):  # a real Ascend node: its records are not of these vNPUs
            simulator.write_cfg([], recover=False)
            mount("--bind", str(simulator.cfg), vnpu_cfg.PATH)
        os.symlink(host.directory, os.path.dirname(names.BROKER_SOCKET))
        with _activated(host, lambda: host.start(simulator.environment, hang_limit=HANG_LIMIT, journal=demo.journal.socket, scan="tree")):
            for major, name in enumerate(("davinci_manager", "devmm_svm", "hisi_hdc"), MANAGER_MAJOR):
                _make_node(name, major, 0)
            yield Npus(host, simulator, built.client, demo)


@contextlib.contextmanager
def _activated(host: BrokerHost, start: Callable[[], "subprocess.Popen[bytes]"]) -> Iterator[None]:
    """Start a broker whenever somebody connects and there is none, as devward-dcmi.socket does."""
    over = threading.Event()

    def serve() -> None:
        poll = select.poll()
        poll.register(host.listener, select.POLLIN)
        while not over.is_set():
            if poll.poll(100):
                start().wait()

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
