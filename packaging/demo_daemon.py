"""devwardd as packaging/demo runs it: on a private bus, with a journal of its own, in a scratch directory; and the demo's words."""

import contextlib
import json
import math
import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from demo_journal import DemoJournal
from demo_stage import set_stage, wait

from devward import names
from devward.ctl.failure import ExitStatus
from sim.daemon_process import SLOW, again_while

REPOSITORY: Final = Path(__file__).resolve().parents[1]
#: How many times as fast as elsewhere the looks at who owns the vNPUs come.
FASTER: Final = 60
#: Settings of devward.toml(5) that are shorter here, in seconds. The grace is longer on a machine on which commands take long.
GRACE: Final = 8
INTERVAL: Final = 1
SETTLE_TIME: Final = 2
SPEC_NAME: Final = "hyperlight.dev-hypervisor.json"
NPU_SPEC_NAME: Final = "ascend.com-npu.json"
BUS_CONFIG: Final = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_destination="*"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
  </policy>
  <include>{policy}</include>
</busconfig>
"""
CONFIG: Final = """\
[cdi]
directory = "{cdi}"
engine_dirs = ["{cdi}", "{scratch}/run-cdi"]
settle_time = {settle_time}
contested_after = 20
[reclaim]
grace = {grace}
interval = {interval}
kill_switch = "{scratch}/reclaim.disabled"
[log]
journal_socket = "{journal}"
"""


class Demo:
    """A private bus, journald and devwardd."""

    def __init__(self, scratch: Path, *, simulate: bool) -> None:
        self.scratch = scratch
        self.cdi = scratch / "etc-cdi"
        self.spec = self.cdi / SPEC_NAME
        self.simulated = simulate or not os.path.exists("/dev/kvm")
        self.kind = "mshv" if self.simulated else "kvm"
        self.address = f"unix:path={scratch / 'bus'}"
        self.environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "DBUS_SYSTEM_BUS_ADDRESS": self.address}
        self.environment.pop("NOTIFY_SOCKET", None)
        self.journal = DemoJournal(scratch / "journal")
        self.processes: list[subprocess.Popen[bytes]] = []
        self.config = scratch / "devward.toml"
        #: Seconds that nobody must have owned a vNPU before it is destroyed.
        self.grace = GRACE
        #: Seconds that the slowest command took so far.
        self._slowest = 0.0
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def start(self) -> float:
        """Start everything and return the seconds from the start of devwardd to its READY."""
        set_stage(simulated=self.simulated)
        self.journal.start(self.spawn)
        self._notify.bind(str(self.scratch / "notify"))
        self._write_config()
        bus_config = self.scratch / "bus.conf"
        bus_config.write_text(BUS_CONFIG.format(socket=self.scratch / "bus", policy=REPOSITORY / "dbus" / "org.devward.Devward1.conf"))
        self.spawn(["dbus-daemon", f"--config-file={bus_config}", "--nofork", "--nopidfile"])
        wait((self.scratch / "bus").exists, "the bus")
        began = time.monotonic()
        daemon = self.spawn(
            [
                # Its looks at who owns the vNPUs come once a second, not once a minute: in its program nothing else is changed.
                *(sys.executable, str(REPOSITORY / "tests/sim/scaled_daemon.py"), str(FASTER), "--config", str(self.config)),
                *("--state-directory", f"{self.scratch}/state", "--runtime-directory", f"{self.scratch}/run"),
            ],
            NOTIFY_SOCKET=str(self.scratch / "notify"),
        )
        wait(lambda: self._said_ready() or daemon.poll() is not None, "READY=1 of devwardd")
        if daemon.poll() is not None:
            raise SystemExit(f"packaging/demo: devwardd ended with status {daemon.returncode}")
        took = time.monotonic() - began
        # A check that a busy machine does not finish in time is made again.
        wait(lambda: self._busctl("get-property", names.BUS_NAME, names.ROOT_PATH, names.MANAGER_INTERFACE, "Ready")["data"], "the device")
        return took

    def settle_grace(self) -> None:
        """Let the grace be long enough for this machine: a vNPU must be there until it is explained."""
        self.grace = max(GRACE, math.ceil(4 * self._slowest))
        self._write_config()
        _, state, _ = self._busctl("call", names.BUS_NAME, names.ROOT_PATH, names.MANAGER_INTERFACE, "Reload", "t", "0")["data"]
        if state != "done":
            raise SystemExit(f"packaging/demo: devwardd did not read its configuration again: {state}")

    def _write_config(self) -> None:
        times = {"settle_time": SETTLE_TIME, "grace": self.grace, "interval": INTERVAL}
        self.config.write_text(CONFIG.format(cdi=self.cdi, scratch=self.scratch, journal=self.journal.socket, **times))

    def _said_ready(self) -> bool:
        try:
            return b"READY=1" in self._notify.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def spawn(self, command: list[str], *, stdout: int | None = None, **more: str) -> "subprocess.Popen[bytes]":
        """Start a program that is ended at the end; what it says is kept aside, unless its standard output goes elsewhere."""
        with open(self.output, "ab") as output:
            to = output if stdout is None else stdout
            process = subprocess.Popen(command, env={**self.environment, **more}, stdin=subprocess.DEVNULL, stdout=to, stderr=output)
        self.processes.append(process)
        return process

    @property
    def output(self) -> Path:
        """What the programs said."""
        return self.scratch / "output"

    def stop(self) -> None:
        """End what was started, the last first."""
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            process.wait()

    def ctl(self, *arguments: str, status: ExitStatus = ExitStatus.OK) -> None:
        """Run devwardctl as a person would, and show it. SystemExit: it ends with another status than it should."""
        said = shlex.join(["devwardctl", *arguments])
        say_command(said)
        sys.stdout.flush()
        began = time.monotonic()
        command = [sys.executable, "-m", "devward.ctl", *arguments]
        # A check that a busy machine does not finish in time is asked for again, and only what came of it in the end is shown.
        out = subprocess.PIPE if arguments[0] == "check" else None

        def once() -> "subprocess.CompletedProcess[str]":
            return subprocess.run(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, text=True, check=False
            )

        ended = again_while(lambda done: done.returncode != status and any(reason in (done.stdout or "") for reason in SLOW), once)
        print(ended.stdout or "", end="", flush=True)
        self._slowest = max(self._slowest, time.monotonic() - began)
        if ended.returncode != status:
            raise SystemExit(f"packaging/demo: {said} ended with status {ended.returncode} and not {status:d}")

    def ctl_lines(self, pattern: str, *arguments: str) -> None:
        """Run devwardctl and show only the lines that match. SystemExit: none does."""
        said = f"{shlex.join(['devwardctl', *arguments])} | grep {shlex.quote(pattern)}"
        say_command(said)
        sys.stdout.flush()
        command = [sys.executable, "-m", "devward.ctl", *arguments]
        # A sentence stays on one line.
        environment = {name: value for name, value in self.environment.items() if name != "COLUMNS"}
        output = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False).stdout
        if subprocess.run(["grep", pattern], input=output, check=False).returncode:
            raise SystemExit(f"packaging/demo: {said} shows nothing")

    def ask(self, member: str) -> Any:
        """Call a method of the Manager without arguments and return its answer."""
        (value,) = self._busctl("call", names.BUS_NAME, names.ROOT_PATH, names.MANAGER_INTERFACE, member)["data"]
        return value

    def get(self, path: str, interface: str, name: str) -> Any:
        """Read a property of an object below the root."""
        return self._busctl("get-property", names.BUS_NAME, f"{names.ROOT_PATH}/{path}", f"{names.BUS_NAME}.{interface}", name)["data"]

    def _busctl(self, *arguments: str) -> Any:
        command = ["busctl", f"--address={self.address}", "--json=short", *arguments]
        return json.loads(subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout)


# --- words -----------------------------------------------------------------------------------------------------------
def bold(text: str) -> str:
    fancy = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM", "dumb") != "dumb"
    return f"\033[1m{text}\033[0m" if fancy else text


def chapter(text: str) -> None:
    print(f"\n{bold(text)}")


def say_command(text: str) -> None:
    print(f"\n  {bold('$ ' + text)}")


def say(text: str) -> None:
    """Say a sentence between commands."""
    print(f"\n  {text}")
