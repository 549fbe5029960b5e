"""A host with NPUs and its devwardd: a real broker before a simulated library, nodes and sysfs of the test's own making. Needs root."""

from pathlib import Path
from typing import Any

from devward.npu.protocol import ListAnswer, ListRequest
from sim.daemon_process import DaemonProcess, wait_for
from sim.dcmi_broker import BrokerHost
from sim.dcmi_simulator import Chip, DcmiSimulator, Vnpu

#: A number that no driver has.
MAJOR = 4000


#: Nodes that containers need beside the NPU's own.
SHARED = ("davinci_manager", "devmm_svm", "hisi_hdc")


def _number(name: str) -> tuple[int, int]:
    """Return major and minor number of a node."""
    own = name.lstrip("v").removeprefix("davinci")
    return (MAJOR, int(own)) if own.isdecimal() else (MAJOR + 1 + SHARED.index(name), 0)


class NpuNode:
    """A host with NPUs, its broker and its devwardd."""

    def __init__(self, directory: Path, host: BrokerHost, simulator: DcmiSimulator, **daemon: Any) -> None:
        self.host = host
        self.simulator = simulator
        simulator.set_node(supports_recover=0)
        self.daemon = DaemonProcess(directory, private_devices=True, setup=host.daemon_setup, **daemon)

    def start_broker(self) -> None:
        self.host.start(self.simulator.environment)
        with self.host.connect() as connection:
            assert isinstance(connection.ask(ListRequest(1)), ListAnswer)

    def make(self, *names: str) -> None:
        """Let the kernel make nodes, and know their numbers."""
        commands = []
        for name in names:
            major, minor = _number(name)
            commands += [f"ln -s ../../devices/virtual/{name} /sys/dev/char/{major}:{minor}", f"mknod -m 660 /dev/{name} c {major} {minor}"]
        self.daemon.inside("\n".join(commands))

    def remove(self, name: str) -> None:
        major, minor = _number(name)
        self.daemon.inside(f"rm /dev/{name} /sys/dev/char/{major}:{minor}")

    def chip(self, family: str = "910B3") -> Chip:
        chip = self.simulator.add_chip(family)
        self.make(f"davinci{chip.phy}")
        return chip

    def create(self, chip: Chip, template: str = "vir05_1c_16g") -> Vnpu:
        vnpu = self.simulator.create(chip, template)
        self.make(f"vdavinci{vnpu.id}")
        return vnpu

    def tree(self) -> set[str]:
        """Return the NPU objects on the bus."""
        (cards,), (vnpus,) = self.daemon.call("ListCards"), self.daemon.call("ListVnpus")
        return {str(row[-1]).removeprefix("/org/devward/Devward1/") for row in [*cards, *vnpus]}  # type: ignore[has-type, attr-defined]

    def wait_tree(self, *wanted: str) -> None:
        wait_for(lambda: self.tree() == set(wanted), what=f"{wanted}")

    def reason(self, path: str) -> object:
        return self.daemon.get(f"/{path}", "Card" if path.startswith("card") else "Vnpu", "Reason")

    def wait_reason(self, path: str, reason: str) -> None:
        wait_for(lambda: self.reason(path) == reason, what=f"{path}: {reason}")

    def codes(self) -> set[str]:
        document = self.daemon.describe()
        return {finding["code"] for finding in document["findings"]}  # type: ignore[attr-defined]
