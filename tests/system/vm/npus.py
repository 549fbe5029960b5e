"""Ascend NPUs in a machine: the simulated library in the vendor's place, its state in the machine, and device nodes that follow it."""

import base64
import contextlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from devward import names
from devward.npu import vnpu_cfg
from devward.npu.facts import Expected, Node, Refusal
from devward.npu.protocol import Answer, DestroyRequest, RefusedAnswer, Request, encode_request, parse_answer
from sim.dcmi_simulator import STATE_FILE, Chip, DcmiSimulator, Vnpu
from sim.dcmi_state import Node as HostState
from sim.dcmi_state import State, dump, load
from system.vm.machine import Machine

LIBRARY = "/usr/local/dcmi/libdcmi.so"
UNIT = "devward-dcmi.service"
SOCKET = "devward-dcmi.socket"
DRIVER = "npu-driver"
#: What the driver keeps, apart from the state: its directory is watched.
DONE, OPENED = "/run/npu-driver/done", "/run/npu-driver/opened"
RUNTIME = "containerd://1.7.2"
#: Where the kubelet's containers of that runtime have their bundles.
BUNDLES = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
_SIM = Path(__file__).resolve().parents[2] / "sim"
#: Sends what it reads to the broker, line by line, and prints each answer.
_CALLER = f"""
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({names.BROKER_SOCKET!r})
lines = connection.makefile("rwb")
for line in sys.stdin:
    lines.write(line.encode())
    lines.flush()
    print(lines.readline().decode(), end="", flush=True)
"""


class MachineSimulator(DcmiSimulator):
    """The simulator, with its files in a machine. Each change of the state lasts until the nodes are those of the new one."""

    def __init__(self, vm: Machine, library: Path) -> None:
        """Of this machine."""
        super().__init__(STATE_FILE.parent, library)
        self._vm = vm
        self._held: State | None = None
        self._held_lines: list[str] = []
        self.cfg = Path(vnpu_cfg.PATH)

    def reset(self) -> None:
        """Begin with an empty node, whose driver lets the host's administrator alone change it."""
        generation = self.read().generation if self._vm.run("find", str(self.directory), "-name", self.state_file.name) else 0
        self._vm.shell(f"rm -f {self.cfg} {self.log}")
        self._write(State(generation, HostState(permission="host", cfg=str(self.cfg), cfg_lock="/run/vnpu_cfg_lock_flag")))

    def read(self) -> State:
        """Return the state as it is now."""
        if self._held is not None:
            return self._held
        return load(self._vm.run("cat", str(self.state_file)))

    def cfg_lines(self) -> list[str]:
        """Return the command lines of vnpu.cfg."""
        if self._held is not None:
            return self._held_lines
        return [line for line in self._vm.run("cat", str(self.cfg), check=False).splitlines() if line[:1].isdecimal()]

    def write_cfg(self, lines: list[str], *, recover: bool = True) -> None:
        """Write vnpu.cfg with these command lines."""
        if self._held is not None:
            self._held_lines = lines
            return
        header = f"vnpu_config_recover:{'enable' if recover else 'disable'}"
        self._vm.write(str(self.cfg), "\n".join([header, "[vnpu-config start]", *lines, "[vnpu-config end]", ""]))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody but the test changes the state while the test does, so that only writing needs the lock."""
        yield

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """Make many changes into one."""
        self._held_lines = self.cfg_lines()
        self._held = state = self.read()
        try:
            yield
        finally:
            self._held = None
        self.write_cfg(self._held_lines)
        self._write(state)

    def _write(self, state: State) -> None:
        if self._held is not None:
            return
        state.generation += 1
        script = f"""
            flock "$1.lock" sh -ec 'cat >"$1.new"; mv "$1.new" "$1"' sh "$1"
            while systemctl --quiet is-active {DRIVER} && [ "$(cat {DONE})" != {state.generation} ]; do sleep 0.02; done
            # udevd touches each node, and its time of change is of its identity.
            udevadm settle --timeout=240
        """
        self._vm.run("sh", "-ec", script, "sh", str(self.state_file), stdin=dump(state))


class Npus:
    """What a host with Ascend NPUs has. They are not there before `install`."""

    def __init__(self, vm: Machine, library: Path) -> None:
        """In this machine."""
        self._vm = vm
        self._library = library
        self.simulator = MachineSimulator(vm, library)
        self.socket = names.BROKER_SOCKET
        #: Processes that opened a node because a test wanted it.
        self.holders: set[str] = set()

    def install(self) -> None:
        """Put the library where the vendor's package has it, and start the driver, of no NPU yet."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for file in _SIM.glob("*.py"):
                archive.add(file, f"opt/vm/sim/{file.name}")
            archive.add(self._library, LIBRARY.removeprefix("/"), filter=_as_installed)
        self._vm.run("sh", "-ec", "base64 -d | tar -C / -xz --no-same-owner", stdin=base64.b64encode(packed.getvalue()).decode())
        self._vm.shell(f"modprobe cuse; mkdir -p {STATE_FILE.parent} {Path(DONE).parent} {BUNDLES}; rm -f {DONE} {OPENED}")
        self.simulator.reset()
        self._vm.run(
            "systemd-run", "--quiet", "--collect", f"--unit={DRIVER}",
            "python3", "/opt/vm/npu_driver.py", str(STATE_FILE), DONE, OPENED,
        )  # fmt: skip
        self._vm.shell(f"until [ -e {DONE} ]; do sleep 0.1; done")

    def remove(self) -> None:
        """Take everything away."""
        self.simulator.clear_faults()
        self._vm.run("systemctl", "stop", DRIVER, check=False)
        self._vm.shell(f"systemctl stop {UNIT}; rm -rf {LIBRARY} {STATE_FILE.parent} {Path(DONE).parent} {vnpu_cfg.PATH}* /run/containerd")

    # --- the driver --------------------------------------------------------------------------------------------------
    def opened(self) -> list[list[str]]:
        """Return name, process and command of each time that a node was opened."""
        return [line.split(" ", 2) for line in self._vm.run("cat", OPENED).splitlines()]

    @contextlib.contextmanager
    def held(self, vdev: int) -> Iterator[None]:
        """Have a process hold the node of a vNPU open."""
        unit = f"holder-{vdev}"
        self._vm.run("systemd-run", "--quiet", "--collect", f"--unit={unit}", "sh", "-c", f"exec sleep infinity 3</dev/vdavinci{vdev}")
        try:
            pid = self._vm.run("systemctl", "show", "--property=MainPID", "--value", unit).strip()
            self.holders.add(pid)
            self._vm.shell(f"until [ -e /proc/{pid}/fd/3 ]; do sleep 0.1; done")
            yield
        finally:
            self._vm.run("systemctl", "stop", unit)

    # --- the broker --------------------------------------------------------------------------------------------------
    def broker(self) -> int:
        """Return the broker's pid, 0 if it does not run."""
        return int(self._vm.run("systemctl", "show", "--property=MainPID", "--value", UNIT))

    def ask(self, *requests: Request) -> list[Answer]:
        """Ask the broker, as root; once more where it is at work on a question of devwardd's. Several questions destroy nothing."""
        assert len(requests) == 1 or not any(isinstance(request, DestroyRequest) for request in requests)
        lines = b"".join(map(encode_request, requests)).decode()
        while True:
            answers = [parse_answer(line.encode()) for line in self._vm.run("python3", "-Ic", _CALLER, stdin=lines).splitlines()]
            if not any(isinstance(answer, RefusedAnswer) and answer.reason is Refusal.BUSY for answer in answers):
                return answers

    def expected(self, chip: Chip, vnpu: Vnpu) -> Expected:
        """Return the whole identity of a vNPU."""
        boot, inode, ctime, major, minor = self._vm.shell(
            f"cat /proc/sys/kernel/random/boot_id; exec stat --format='%i %.9Z %Hr %Lr' /dev/vdavinci{vnpu.id}"
        ).split()
        seconds, nanoseconds = ctime.split(".")
        node = Node(int(inode), int(seconds) * 10**9 + int(nanoseconds), int(major), int(minor))
        assert vnpu.vfid is not None
        return Expected(boot, chip.card, chip.dev, chip.phy, chip.vdie, vnpu.id, vnpu.vfid, vnpu.name, node)

    def request(self, expected: Expected, number: int = 5) -> DestroyRequest:
        """Return a request for a destruction that is wanted for a minute."""
        now = float(self._vm.run("cut", "-d ", "-f1", "/proc/uptime"))
        return DestroyRequest(number, f"r{number}", int((now + 60) * 1e9), RUNTIME, expected)


def _as_installed(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mode = 0o644
    return member
