"""devward's broker as a process of its own, with a socket passed on as the service manager does, before a simulated library.

Run as a program it is the broker, with an environment that is good, or as an option says, a scan of the host whose result is read from a
file, or made of a tree of files, and that tree (sim.witness_host) in place of the host that it tells of, or for both what it is in, taken
for the host; all else is the broker's own.
"""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from devward.cluster.bundles import BundleScanner
from devward.cluster.evidence import DeviceNumber, Finding
from devward.cluster.kubelet import find_kubelet
from devward.cluster.local import LocalScanner
from devward.cluster.statement import AskedVnpu, Statement
from devward.npu import broker
from devward.npu.destruction import Scan, ScanResult
from devward.npu.environment import INIT_PID_NAMESPACE, INIT_USER_NAMESPACE, Environment
from devward.npu.host_scan import explained
from devward.npu.host_witness import HostObserver
from devward.npu.protocol import ANSWER_LIMIT, Answer, Request, encode_request, parse_answer
from sim.kubelet_host import everybody
from sim.witness_host import WitnessHost, observer, scanner

DEADLINE: Final = 60.0
GOOD: Final = Environment(0, (1, 1), (1, 1), INIT_PID_NAMESPACE, INIT_USER_NAMESPACE, (1 << 41) - 1)
_TESTS: Final = Path(__file__).resolve().parents[1]
#: Shell that puts the broker's directory where devward looks for it, leaves it where the broker's answers say that its files are, and puts
#: an empty list of device numbers in place of the kernel's.
_DAEMON_SETUP: Final = """
mkdir /dev/keep
mount --bind {host} /dev/keep
mount -t tmpfs devward-test /run
mkdir -p /run/devward-dcmi
mount --move /dev/keep /run/devward-dcmi
rmdir /dev/keep
mkdir -p {host}
mount --bind /run/devward-dcmi {host}
mount -t tmpfs devward-test /sys/dev/char
"""
#: What a scan, or a look at the host, is told to do: to wait, to go on, or to end its process at once.
WAIT: Final = "wait"
GO: Final = "go"
CRASH: Final = "crash"


class Connection:
    """A caller of the broker."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(DEADLINE)
        self.socket.connect(str(path))
        self._lines = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        """Send bytes, whatever they are."""
        self.socket.sendall(data)

    def receive(self) -> Answer:
        """Return the next answer. EOFError: the broker closed the connection."""
        try:
            line = self._lines.readline(ANSWER_LIMIT)
        except ConnectionResetError:
            line = b""
        if not line:
            raise EOFError("the broker closed the connection")
        return parse_answer(line)

    def ask(self, request: Request) -> Answer:
        """Send a request and return its answer."""
        self.send(encode_request(request))
        return self.receive()

    def close(self) -> None:
        self._lines.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BrokerHost:
    """A directory that only root can write, with a listening socket, device nodes and the files that steer the broker."""

    def __init__(self, program: Path = Path(__file__)) -> None:
        """`program` is the broker, which takes --root, and other options where any are given."""
        self._program = program
        self.directory = Path(tempfile.mkdtemp(prefix="devward-test-", dir="/run"))
        self.library = self.directory / "libdcmi.so"
        self.devices = self.directory / "dev"
        self.devices.mkdir()
        self.socket_path = self.directory / "socket"
        self.lock = self.directory / "destroy.lock"
        self._scan = self.directory / "scan"
        self.set_scan(Finding.CLEAN)
        self.witnessed = WitnessHost(self.directory / "witnessed")
        self._look = self.directory / "look"
        self.set_look(GO)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(self.socket_path))
        self.listener.listen(16)
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def daemon_setup(self) -> str:
        """What a devwardd with private devices runs first, to find this broker."""
        return _DAEMON_SETUP.format(host=self.directory)

    def set_scan(self, result: str) -> None:
        """Let scans answer this from now on."""
        _replace(self._scan, result)

    def set_look(self, order: str) -> None:
        """Let looks at the host do this from now on."""
        _replace(self._look, order)

    @property
    def look_begun(self) -> bool:
        """Whether a look has begun, since it was asked last."""
        try:
            self._look.with_suffix(".begun").unlink()
        except FileNotFoundError:
            return False
        return True

    def start(self, variables: Mapping[str, str], **options: object) -> "subprocess.Popen[bytes]":
        """Start a broker; options are those of the program below."""
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        program = [sys.executable, str(self._program), "--root", str(self.directory), *words]
        # The socket is the third descriptor, and LISTEN_PID the process itself: exec keeps both.
        command = ["bash", "-c", f'exec 3<&{self.listener.fileno()}; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"', "bash", *program]
        process = subprocess.Popen(
            command,
            pass_fds=(self.listener.fileno(),),
            env={**os.environ, "PYTHONPATH": f"{_TESTS.parent / 'src'}:{_TESTS}", **variables},
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    def connect(self) -> Connection:
        """Connect; whether a broker runs or not, the socket takes it."""
        return Connection(self.socket_path)

    def add_node(self, vdev: int) -> Path:
        """Make the device node of a vNPU, of a number that no driver has."""
        path = self.devices / f"vdavinci{vdev}"
        os.mknod(path, 0o20600, os.makedev(4000, vdev))
        return path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.communicate(timeout=DEADLINE)
        self.listener.close()
        shutil.rmtree(self.directory)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition; AssertionError if it does not come true in a time that no machine needs."""
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {DEADLINE:g} s: {what}")
        time.sleep(0.005)


def _replace(file: Path, content: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(content)
    new.rename(file)


class _SteeredObserver:
    """Looks at the tree, as a file says."""

    def __init__(self, root: Path, *, privileged: bool) -> None:
        self._file = root / "look"
        self._observer = observer(root / "witnessed", privileged=privileged)

    def look(self, vnpus: tuple[AskedVnpu, ...], runtime: str | None, seconds: float, step: Callable[[str], None]) -> Statement:
        self._file.with_suffix(".begun").touch()
        if self._file.read_text() == CRASH:
            # To this thread: another one might take it a moment later, when the look is over.
            signal.pthread_kill(threading.get_ident(), signal.SIGSEGV)
        until(lambda: self._file.read_text() != WAIT, "a look goes on")
        return self._observer.look(vnpus, runtime, seconds, step)


def _scanner_of_container() -> LocalScanner:
    return LocalScanner(bundles=BundleScanner(vantage=everybody), vantage=everybody)


def _scan_container(vdev: int, number: DeviceNumber, runtime: str) -> ScanResult:
    """Do what devward.npu.host_scan does, of this container as if its processes were all there are."""
    evidence = _scanner_of_container().look((number,), runtime).vnpu(vdev, number)
    return ScanResult(evidence.finding, explained(evidence))


def _observer_of_container() -> HostObserver:
    """Look at the places of the host, as they are in this container, as if its processes were all there are."""
    return HostObserver(_scanner_of_container(), lambda deadline: find_kubelet(vantage=everybody, deadline=deadline))


def _scan_by(file: Path) -> Scan:
    def scan(vdev: int, number: DeviceNumber, runtime: str) -> ScanResult:
        file.with_suffix(".begun").touch()
        until(lambda: file.read_text() != WAIT, "a scan goes on")
        return ScanResult(Finding(file.read_text()), "by the test")

    return scan


def _scan_of(tree: Path) -> Scan:
    def scan(vdev: int, number: DeviceNumber, runtime: str) -> ScanResult:
        # Each time by another scanner, as the broker's own: nothing is remembered.
        evidence = scanner(tree).look((number,), runtime).vnpu(vdev, number)
        return ScanResult(evidence.finding, explained(evidence))

    return scan


def _main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--hang-limit", type=float, default=DEADLINE)
    parser.add_argument("--idle-limit", type=float, default=DEADLINE)
    parser.add_argument("--journal", default="/nonexistent")
    parser.add_argument("--unprivileged", choices=["yes", "no"], default="no")
    parser.add_argument("--scan", choices=["file", "tree", "container"], default="file")
    parser.add_argument("--host", choices=["tree", "container"], default="tree")
    parser.add_argument("--devices", help="where device nodes are (default: dev below --root)")
    parser.add_argument("--environment", choices=["good", "sandbox", "real"], default="good")
    given = parser.parse_args()
    environments: dict[str, Callable[[], Environment]] = {
        "good": lambda: GOOD,
        "sandbox": lambda: replace(GOOD, mount_namespace=(1, 2)),
        "real": broker.environment.read,
    }
    scans: dict[str, Callable[[], Scan]] = {
        "file": lambda: _scan_by(given.root / "scan"),
        "tree": lambda: _scan_of(given.root / "witnessed"),
        "container": lambda: _scan_container,
    }
    observers: dict[str, Callable[[], broker.Observer]] = {
        "tree": lambda: _SteeredObserver(given.root, privileged=given.unprivileged == "no"),
        "container": _observer_of_container,
    }
    options = broker.Options(
        library=str(given.root / "libdcmi.so"),
        hang_limit=given.hang_limit,
        idle_limit=given.idle_limit,
        lock_file=str(given.root / "destroy.lock"),
        device_directory=given.devices or str(given.root / "dev"),
        journal_socket=given.journal,
        read_environment=environments[given.environment],
        scan=scans[given.scan](),
        observer=observers[given.host],
    )
    return broker.serve(options, os.environ)


if __name__ == "__main__":
    status = _main()
    sys.stderr.flush()
    os._exit(status)
