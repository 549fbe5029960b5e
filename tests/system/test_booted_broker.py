"""The broker of the vendor's library under a real systemd: started by its socket, never killed while it destroys, replaced at upgrade.

The installed service refuses here, in a container, as it must. What systemd does with it is tried with the same unit and the same code
before a simulated library, where only the look at the environment and the scan are the test's.
"""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from nspawn_machine import NEXT, Machine, until

from devward import names
from devward.npu.destruction import read_node
from devward.npu.facts import Expected, Outcome, Refusal
from devward.npu.protocol import DestroyAnswer, DestroyRequest, ListAnswer, ListRequest, RefusedAnswer, encode_request, parse_answer
from sim.dcmi_simulator import Chip, DcmiSimulator, Vnpu, build_library

pytest_plugins = ["nspawn_fixtures"]

UNIT = "devward-dcmi.service"
SOCKET = "devward-dcmi.socket"
PLACE = "/opt/devward-test"
TESTS = Path(__file__).resolve().parents[1]
DESTROY_CALL = "dcmi_set_destroy_vdevice"
#: Speaks with the broker in the container: a line from standard input, and its answer.
CALLER = f"""
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({names.BROKER_SOCKET!r})
lines = connection.makefile("rwb")
for line in sys.stdin:
    lines.write(line.encode())
    lines.flush()
    print(lines.readline().decode(), end="", flush=True)
"""
#: The same unit, with the simulated node and times that a test can wait for.
DROP_IN = f"""
[Service]
Environment=PYTHONPATH={PLACE} DEVWARD_SIM_DCMI_STATE={PLACE}/node/dcmi.state
ExecStart=
ExecStart=/usr/bin/python3 {PLACE}/sim/dcmi_broker.py --root {PLACE} --journal {names.JOURNAL_SOCKET}
TimeoutStopSec=6
WatchdogSec=6
"""


@pytest.fixture(name="place", scope="module")
def _place(release: str, debs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(release, tmp_path_factory.mktemp("machine"), debs) as machine:
        machine.install()
        yield machine


class Bench:
    """The container with a simulated node in it, that has one vNPU."""

    def __init__(self, machine: Machine, cache: Path) -> None:
        self.machine = machine
        here = machine.path(PLACE)
        machine.run("mkdir", "-p", f"{PLACE}/dev")
        shutil.copytree(TESTS / "sim", here / "sim", ignore=shutil.ignore_patterns("__pycache__", "*.c", "dcmi"), dirs_exist_ok=True)
        self.simulator = DcmiSimulator(here / "node", build_library(cache), seen_as=Path(PLACE, "node"))
        self.simulator.reset()
        self.simulator.install(here / "libdcmi.so")
        self.chip: Chip = self.simulator.add_chip("910B3")
        self.vnpu: Vnpu = self.simulator.create(self.chip, "vir05_1c_16g")
        (here / "scan").write_text("clean")
        machine.shell(f"rm -f {PLACE}/dev/*; mknod {PLACE}/dev/vdavinci{self.vnpu.id} c 4000 {self.vnpu.id}")

    @property
    def pid(self) -> int:
        return int(self.machine.unit("MainPID", UNIT))

    def ask(self, line: bytes) -> object:
        return parse_answer(self.machine.run("/usr/bin/python3", "-c", CALLER, given=line.decode()).encode())

    def request(self) -> DestroyRequest:
        boot = self.machine.run("cat", "/proc/sys/kernel/random/boot_id").strip()
        # CLOCK_BOOTTIME is the host's.
        now = float(self.machine.run("cut", "-d ", "-f1", "/proc/uptime"))
        node = read_node(self.vnpu.id, str(self.machine.path(f"{PLACE}/dev")))
        expected = Expected(boot, self.chip.card, self.chip.dev, self.chip.phy, self.chip.vdie, self.vnpu.id, 1, self.vnpu.name, node)
        return DestroyRequest(5, "r5", int((now + 60) * 1e9), "containerd://1.7.2", expected)

    @contextlib.contextmanager
    def begin_to_destroy(self) -> "Iterator[subprocess.Popen[str]]":
        """Ask for it, with a library that does not return from it before the end."""
        self.simulator.fault(DESTROY_CALL, "hang", effect=True)
        command = self.machine.enter("/usr/bin/python3", "-c", CALLER)
        caller = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert caller.stdin is not None
        caller.stdin.write(encode_request(self.request()).decode())
        caller.stdin.flush()
        try:
            until(lambda: self.simulator.calls(DESTROY_CALL), "the call begins")
            yield caller
        finally:
            self.simulator.clear_faults()
            caller.kill()
            caller.communicate()

    def let_it_return(self, caller: "subprocess.Popen[str]") -> object:
        self.simulator.clear_faults()
        out, _ = caller.communicate(timeout=60)
        return parse_answer(out.encode())

    def is_alive(self, pid: int) -> bool:
        return self.machine.call("test", "-e", f"/proc/{pid}").status == 0

    def stand_still(self) -> int:
        """Let the broker stand still; return its pid. One that the watchdog just ended is another one by then."""

        def stopped() -> int:
            self.ask(encode_request(ListRequest(1)))
            pid = self.pid
            return pid if pid and self.machine.call("sh", "-c", f"kill -STOP {pid}").status == 0 else 0

        return until(stopped, "it stands still")

    def signal(self, name: str, pid: int) -> None:
        self.machine.shell(f"kill -{name} {pid}")


@pytest.fixture(name="bench")
def _bench(place: Machine, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(place, tmp_path)
    place.shell(f"mkdir -p /etc/systemd/system/{UNIT}.d")
    place.path(f"/etc/systemd/system/{UNIT}.d/test.conf").write_text(DROP_IN)
    place.run("systemctl", "daemon-reload")
    yield bench
    bench.simulator.clear_faults()
    place.shell(f"rm -r /etc/systemd/system/{UNIT}.d; systemctl daemon-reload; systemctl stop {SOCKET}; systemctl start {SOCKET}")
    until(lambda: place.unit("ActiveState", UNIT) in {"inactive", "failed"}, "the broker is gone")


def test_the_installed_service_is_started_by_a_request_and_refuses_in_a_container(place: Machine) -> None:
    assert place.unit("ActiveState", SOCKET) == "active"
    assert place.unit("MainPID", UNIT) == "0"
    assert place.run("stat", "-c", "%a %U", names.BROKER_SOCKET, "/run/devward-dcmi").split() == ["600", "root", "700", "root"]
    answer = parse_answer(place.run("/usr/bin/python3", "-c", CALLER, given=encode_request(ListRequest(1)).decode()).encode())
    assert isinstance(answer, RefusedAnswer)
    assert answer.reason is Refusal.CONTAINER
    assert place.unit("ActiveState", UNIT) == "active"
    pid = place.unit("MainPID", UNIT)
    # The unit itself gives it no namespace and takes no capability from it.
    same = f"test $(readlink /proc/{pid}/ns/mnt) = $(readlink /proc/1/ns/mnt); grep CapEff /proc/1/status /proc/{pid}/status"
    one, other = (line.split()[-1] for line in place.shell(same).splitlines())
    assert one == other
    place.run("systemctl", "stop", UNIT)


def test_the_socket_goes_and_comes_with_the_daemon(place: Machine) -> None:
    place.run("systemctl", "stop", "devward.service")
    assert place.unit("ActiveState", SOCKET) == "inactive"
    place.run("systemctl", "start", "devward.service")
    assert place.unit("ActiveState", SOCKET) == "active"


def test_a_broker_that_stands_still_is_killed(bench: Bench) -> None:
    assert isinstance(bench.ask(encode_request(ListRequest(1))), ListAnswer)
    pid = bench.stand_still()
    until(lambda: not bench.is_alive(pid), "the watchdog ends it")
    assert bench.machine.unit("Result", UNIT) == "watchdog"
    assert isinstance(bench.ask(encode_request(ListRequest(1))), ListAnswer)


def test_one_that_stands_still_while_it_destroys_is_left_alone(bench: Bench) -> None:
    with bench.begin_to_destroy() as caller:
        pid = bench.pid
        bench.signal("STOP", pid)
        # Twice as long as the watchdog waits.
        bench.machine.run("sleep", "12")
        assert bench.pid == pid
        assert bench.machine.unit("ActiveState", UNIT) == "active"
        bench.signal("CONT", pid)
        answer = bench.let_it_return(caller)
    assert isinstance(answer, DestroyAnswer)
    assert answer.outcome is Outcome.DESTROYED
    # And the watchdog is at work again.
    assert bench.pid == pid
    bench.signal("STOP", pid)
    until(lambda: not bench.is_alive(pid), "the watchdog ends it")


def test_stopping_leaves_one_that_destroys_alone_and_the_next_one_refuses(bench: Bench) -> None:
    with bench.begin_to_destroy() as caller:
        pid = bench.pid
        bench.machine.run("systemctl", "stop", UNIT)
        assert bench.machine.unit("ActiveState", UNIT) in {"failed", "inactive"}
        assert bench.is_alive(pid)
        answer = bench.ask(encode_request(ListRequest(1)))
        assert isinstance(answer, ListAnswer)
        assert bench.pid not in {0, pid}
        refused = bench.ask(encode_request(bench.request()))
        assert isinstance(refused, RefusedAnswer)
        assert refused.reason is Refusal.DESTROY_RUNNING
        answer = bench.let_it_return(caller)
    assert isinstance(answer, DestroyAnswer)
    assert answer.outcome is Outcome.DESTROYED
    until(lambda: not bench.is_alive(pid), "the old one ends when it is done")
    assert len(bench.simulator.calls(DESTROY_CALL)) == 1


def test_a_library_that_crashes_at_every_call_does_not_bring_the_socket_down(bench: Bench) -> None:
    bench.simulator.fault("dcmi_init", "segv")
    for _ in range(8):
        bench.machine.call("/usr/bin/python3", "-c", CALLER, given=encode_request(ListRequest(1)).decode())
    bench.simulator.clear_faults()
    assert bench.machine.unit("ActiveState", SOCKET) == "active"
    assert isinstance(bench.ask(encode_request(ListRequest(1))), ListAnswer)


def test_an_upgrade_replaces_the_broker_and_a_removal_takes_it_away(bench: Bench) -> None:
    machine = bench.machine
    assert isinstance(bench.ask(encode_request(ListRequest(1))), ListAnswer)
    pid = bench.pid
    machine.install(NEXT)
    until(lambda: not bench.is_alive(pid), "the old broker is gone")
    assert isinstance(bench.ask(encode_request(ListRequest(1))), ListAnswer)
    assert bench.pid not in {0, pid}
    pid = bench.pid
    done = machine.apt("remove", "devward")
    assert done.status == 0, done.text
    until(lambda: not bench.is_alive(pid), "the broker is gone")
    assert machine.call("test", "-e", "/run/devward-dcmi").status != 0
    machine.install()
