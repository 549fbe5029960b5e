"""devwardd as a process of its own, on a private bus, with stand-ins for journald and the service manager, and a scratch root.

With `private_devices` it runs in a mount namespace whose /dev is a tmpfs with a kvm node of the host's number: nodes there can be removed,
replaced and covered, which on the host's devtmpfs must never be done.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, TypeVar

from sim.journal_sink import JournalSink, Record
from sim.notify_sink import NotifySink

REPOSITORY = Path(__file__).resolve().parents[2]
BUS_NAME = "org.devward.Devward1"
ROOT_PATH = "/org/devward/Devward1"
MANAGER = BUS_NAME + ".Manager"
DEADLINE = 30.0
#: Reasons for which an allocation is refused where a busy machine does not finish in the daemon's two seconds, whatever else is true.
SLOW = frozenset({"probe-timeout", "cdi-timeout", "helper-stuck", "deadline"})
T = TypeVar("T")


def again_while(is_late: Callable[[T], object], ask: Callable[[], T], limit: float = DEADLINE) -> T:
    """Ask again as long as the answer is only that this machine was too slow; return the answer.

    `limit` is in seconds; the answer that came last is returned then, whatever it is.
    """
    end = time.monotonic() + limit
    while is_late(answer := ask()) and time.monotonic() < end:
        pass
    return answer


_BUS_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <deny own="*"/>
    <deny send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
    <allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus"/>
    <allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus.Introspectable"/>
    <allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus.Properties"/>
  </policy>
  <policy user="root">
    <allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus.Monitoring"/>
    <allow own="org.freedesktop.PolicyKit1"/>
    <allow send_destination="*"/>
  </policy>
  {extra}
  <include>{policy}</include>
</busconfig>
"""

#: Runs a command in a mount namespace of its own with a tmpfs for /dev that has the basic nodes and a kvm of the host's number.
_PRIVATE_DEVICES = """
set -e
mount -t tmpfs -o mode=0755,nosuid devward-test /dev
mknod -m 666 /dev/null c 1 3
mknod -m 666 /dev/zero c 1 5
mknod -m 666 /dev/urandom c 1 9
mknod -m 666 /dev/random c 1 8
ln -s /proc/self/fd /dev/fd
if [ -e /sys/class/misc/kvm/dev ]; then mknod -m 660 /dev/kvm c 10 232; fi
exec "$@"
"""


def wait_for(condition: Callable[[], object], deadline: float = DEADLINE, what: str = "") -> None:
    """Wait until a condition holds; AssertionError after `deadline` seconds."""
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"not within {deadline} s: {what or condition}"
        time.sleep(0.005)


class PrivateBus:
    """A dbus-daemon with the system bus's rules and devward's policy file."""

    def __init__(self, directory: Path, extra: str = "") -> None:
        """Start it with its socket in `directory`."""
        # Where other users may reach it; the directory of a test is closed to them.
        self._directory = tempfile.TemporaryDirectory(prefix="devward-bus-")
        os.chmod(self._directory.name, 0o755)
        self.socket = Path(self._directory.name) / "bus"
        self.address = f"unix:path={self.socket}"
        config = directory / "bus.conf"
        policy = REPOSITORY / "dbus" / "org.devward.Devward1.conf"
        config.write_text(_BUS_CONFIG.format(socket=self.socket, policy=policy, extra=extra))
        self.process = subprocess.Popen(
            ["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile"], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )
        wait_for(self.socket.exists, what="the bus's socket")

    def close(self) -> None:
        """End it; once is enough."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        self._directory.cleanup()


class DaemonProcess:
    """One devwardd with everything around it, in `directory`; a context manager that leaves nothing behind."""

    def __init__(
        self,
        directory: Path,
        *,
        config: str = "",
        private_devices: bool = False,
        watchdog_usec: int | None = None,
        setup: str = "",
        bus: PrivateBus | None = None,
        python: Sequence[str] = (sys.executable,),
        program: Sequence[str] = ("-m", "devward"),
    ) -> None:
        """Prepare; `start` starts it.

        `setup` is shell run in the private namespace before devwardd, `config` more TOML. `program` is what Python runs, such as
        scaled_daemon.py.
        """
        self.directory = directory
        self.cdi = directory / "cdi"
        self.high = directory / "run-cdi"
        self.state = directory / "state"
        self.runtime = directory / "run"
        self.spec = self.cdi / "hyperlight.dev-hypervisor.json"
        self.config_file = directory / "devward.toml"
        self._private_devices = private_devices
        self._watchdog_usec = watchdog_usec
        self._setup = setup
        self._python = tuple(python)
        self._program = tuple(program)
        self._owns_bus = bus is None
        directory.chmod(0o755)
        self.write_config(config)
        self.bus = bus or PrivateBus(directory)
        self.journal = JournalSink(str(directory / "journal"))
        self.notify = NotifySink(str(directory / "notify"))
        self.process: subprocess.Popen[bytes] | None = None
        self.output = directory / "output"

    def write_config(self, config: str) -> None:
        """Write the configuration: the scratch paths, and what is given; sections of `config` must be complete where named."""
        sections = {
            "cdi": f'directory = "{self.cdi}"\nengine_dirs = ["{self.cdi}", "{self.high}"]\n',
            "log": f'journal_socket = "{self.directory / "journal"}"\n',
        }
        for section, defaults in sections.items():
            header = f"[{section}]\n"
            config = config.replace(header, header + defaults) if header in config else f"{config}\n{header}{defaults}"
        self.config_file.write_text(config)

    def start(self, *, wait: bool = True, devices_of: int | None = None, program: Sequence[str] = ()) -> Self:
        """Start devwardd, and wait for its READY.

        With the devices of the process `devices_of`, if they are to be those of before. `program` is another one than this otherwise has.
        """
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPOSITORY / "src"),
            "NOTIFY_SOCKET": self.notify.path,
            "LANG": "C.UTF-8",
        }
        if self._watchdog_usec is not None:
            environment["WATCHDOG_USEC"] = str(self._watchdog_usec)
        command = [
            *self._python,
            *(program or self._program),
            "--config",
            str(self.config_file),
            "--bus",
            self.bus.address,
            "--state-directory",
            str(self.state),
            "--runtime-directory",
            str(self.runtime),
        ]
        if devices_of is not None:
            command = ["nsenter", f"--mount=/proc/{devices_of}/ns/mnt", *command]
        elif self._private_devices:
            script = _PRIVATE_DEVICES.replace('exec "$@"', self._setup + '\nexec "$@"')
            command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *command]
        already = len(self._ready_messages())
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        if wait:
            wait_for(lambda: len(self._ready_messages()) > already or self.process_ended(), what="READY=1")
            assert not self.process_ended(), self.output.read_text()
        return self

    def _ready_messages(self) -> list[dict[str, str]]:
        return [message for message in self.notify.messages() if message.get("READY") == "1"]

    def process_ended(self) -> bool:
        """Tell whether the process is gone."""
        return self.process is None or self.process.poll() is not None

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; return the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(DEADLINE)
        self.process = None
        return status

    def close(self) -> None:
        """End everything."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()
        self.journal.close()
        self.notify.close()
        if self._owns_bus:
            self.bus.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The pid of devwardd: unshare and sh replace themselves by it."""
        assert self.process is not None
        return self.process.pid

    def inside(self, command: str) -> str:
        """Run shell in the daemon's mount namespace and return what it prints."""
        result = subprocess.run(
            ["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", "sh", "-ec", command],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    # --- the bus, as an administrator uses it ------------------------------------------------------------------------
    def busctl(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run busctl on the private bus."""
        result = subprocess.run(
            ["busctl", f"--address={self.bus.address}", "--timeout=60", *arguments],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if check:
            assert result.returncode == 0, f"{arguments}: {result.stderr}"
        return result

    def call(self, member: str, signature: str = "", *arguments: str) -> list[object]:
        """Call a method of the Manager and return its answer's values."""
        given = [signature, *arguments] if signature else []
        answer = json.loads(self.busctl("--json=short", "call", BUS_NAME, ROOT_PATH, MANAGER, member, *given).stdout)
        return list(answer["data"]) if answer else []

    def allocation(self, device: str) -> tuple[bool, str, str, str]:
        """Ask whether a device may be given to a container; return the answer, its reason, its text and the request's id.

        Asked again, until DEADLINE, where the answer says no more than that the machine was too slow for it.
        """
        allowed, reason, text, request_id = again_while(lambda answer: answer[1] in SLOW, lambda: self.call("CheckAllocation", "s", device))
        return allowed is True, str(reason), str(text), str(request_id)

    def refused(self, member: str, signature: str = "", *arguments: str) -> str:
        """Call a method that must be refused and return busctl's words."""
        given = [signature, *arguments] if signature else []
        result = self.busctl("call", BUS_NAME, ROOT_PATH, MANAGER, member, *given, check=False)
        assert result.returncode != 0, result.stdout
        return result.stderr

    def get(self, path: str, interface: str, name: str) -> object:
        """Read a property; `interface` is the last word of its name."""
        answer = self.busctl("--json=short", "get-property", BUS_NAME, f"{ROOT_PATH}{path}", f"{BUS_NAME}.{interface}", name)
        return json.loads(answer.stdout)["data"]

    def describe(self) -> dict[str, object]:
        """Return what Describe says."""
        document = json.loads(str(self.call("Describe")[0]))
        assert isinstance(document, dict)
        return document

    def wait_property(self, path: str, interface: str, name: str, value: object) -> None:
        """Wait until a property has a value."""
        wait_for(lambda: self.get(path, interface, name) == value, what=f"{interface}.{name} = {value}")

    def events(self, kind: str, **fields: str) -> list[Record]:
        """Return the audit records of one kind so far."""
        return self.journal.records(DEVWARD_EVENT=kind, **fields)

    def wait_event(self, kind: str, **fields: str) -> Record:
        """Wait for an audit record."""
        wanted = {"DEVWARD_EVENT": kind, **fields}
        return self.journal.wait_for(lambda record: all(record.get(name) == [value] for name, value in wanted.items()), DEADLINE)
