"""The steps of packaging/demo, which runs this in a mount namespace of its own."""

import argparse
import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from demo_npus import HANG_LIMIT, TEMPLATE, Builder, Npus, ascend_node
from demo_stage import DEADLINE, mount, set_stage, wait

from devward.model import Reason

REPOSITORY = Path(__file__).resolve().parents[1]
#: How many times as fast as elsewhere the looks at who owns the vNPUs come.
FASTER = 60
#: The recorded state of a node that is served: one Pod runs, one is being deleted, two fail again and again.
CLUSTER_STATE = "01"
SPEC_NAME, NPU_SPEC_NAME = "hyperlight.dev-hypervisor.json", "ascend.com-npu.json"
BUS_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
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


class Demo:
    """A private bus, a stand-in for the journal and devwardd, in a scratch directory."""

    def __init__(self, scratch: Path, *, simulate: bool) -> None:
        self.scratch = scratch
        self.cdi = scratch / "etc-cdi"
        self.spec = self.cdi / SPEC_NAME
        self.simulated = simulate or not os.path.exists("/dev/kvm")
        self.kind = "mshv" if self.simulated else "kvm"
        self.address = f"unix:path={scratch / 'bus'}"
        self.environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "DBUS_SYSTEM_BUS_ADDRESS": self.address}
        self.environment.pop("NOTIFY_SOCKET", None)
        self.journal: list[dict[str, str]] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def start(self) -> float:
        """Start everything and return the seconds from the start of devwardd to its READY."""
        set_stage(simulated=self.simulated)
        self._socket.bind(str(self.scratch / "journal"))
        threading.Thread(target=self._read_journal, daemon=True).start()
        self._notify.bind(str(self.scratch / "notify"))
        config = self.scratch / "devward.toml"
        config.write_text(
            f'[cdi]\ndirectory = "{self.cdi}"\nengine_dirs = ["{self.cdi}", "{self.scratch}/run-cdi"]\n'
            "settle_time = 2\ncontested_after = 20\n"
            f'[log]\njournal_socket = "{self.scratch}/journal"\n'
        )
        bus_config = self.scratch / "bus.conf"
        bus_config.write_text(BUS_CONFIG.format(socket=self.scratch / "bus", policy=REPOSITORY / "dbus" / "org.devward.Devward1.conf"))
        self.spawn(["dbus-daemon", f"--config-file={bus_config}", "--nofork", "--nopidfile"])
        wait((self.scratch / "bus").exists, "the bus")
        began = time.monotonic()
        self.spawn(
            [
                # Its looks at who owns the vNPUs come once a second, not once a minute: in its program nothing else is changed.
                *(sys.executable, str(REPOSITORY / "tests/sim/scaled_daemon.py"), str(FASTER), "--config", str(config)),
                *("--state-directory", f"{self.scratch}/state", "--runtime-directory", f"{self.scratch}/run"),
            ],
            NOTIFY_SOCKET=str(self.scratch / "notify"),
        )
        while b"READY=1" not in self._notify.recv(4096):
            pass
        return time.monotonic() - began

    def spawn(self, command: list[str], **more: str) -> "subprocess.Popen[bytes]":
        with open(self.scratch / "output", "ab") as output:
            process = subprocess.Popen(command, env={**self.environment, **more}, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self.processes.append(process)
        return process

    def stop(self) -> None:
        """End what was started, the last first."""
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            process.wait()

    def ctl(self, *arguments: str) -> None:
        """Run devwardctl as a person would, and show it."""
        say_command("devwardctl " + " ".join(arguments))
        sys.stdout.flush()
        command = [sys.executable, "-m", "devward.ctl", *arguments]
        subprocess.run(command, env=self.environment, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, check=False)

    def records(self, event: str, outcome: str) -> list[dict[str, str]]:
        return [record for record in self.journal if (record.get("DEVWARD_EVENT"), record.get("DEVWARD_OUTCOME", "")) == (event, outcome)]

    def _read_journal(self) -> None:
        while True:
            data = self._socket.recv(1 << 20)
            fields = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines())
            self.journal.append({name: value for name, equals, value in fields if equals})


# --- words -----------------------------------------------------------------------------------------------------------
def bold(text: str) -> str:
    fancy = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM", "dumb") != "dumb"
    return f"\033[1m{text}\033[0m" if fancy else text


def chapter(text: str) -> None:
    print(f"\n{bold(text)}")


def say_command(text: str) -> None:
    print(f"\n  {bold('$ ' + text)}")


def describe(record: dict[str, str]) -> str:
    evidence = json.loads(record.get("DEVWARD_EVIDENCE", "{}"))
    differences = "; ".join(evidence.get("differences", []))
    return f"cause {record.get('DEVWARD_CAUSE', '?')}" + (f": {differences}" if differences else "")


# --- the story -------------------------------------------------------------------------------------------------------
def break_and_watch(demo: Demo) -> None:
    """Break the file in five ways, and show how long each is wrong."""
    good = demo.spec.read_bytes()

    def emptied() -> None:
        os.truncate(demo.spec, 0)

    def edited() -> None:
        temporary = demo.cdi / "editor.tmp"
        temporary.write_bytes(good.replace(b'"uid": 65534', b'"uid": 0'))
        temporary.rename(demo.spec)

    breakages: list[tuple[str, Callable[[], object]]] = [
        ("emptied", emptied),
        ("deleted", demo.spec.unlink),
        ("edited, so that the device belongs to root", edited),
        ("made unreadable for rootless engines (chmod 600)", lambda: demo.spec.chmod(0o600)),
        ("removed with its directory (rm -rf)", lambda: demo.cdi.rename(demo.scratch / "gone")),
    ]
    for what, act in breakages:
        before = len(demo.records("spec-repair", "success"))
        began = time.monotonic()
        act()
        wait(lambda: right(demo, good), "the repair")
        took = time.monotonic() - began
        wait(lambda before=before: len(demo.records("spec-repair", "success")) > before, "the record")
        record = demo.records("spec-repair", "intent")[-1]
        print(f"  {what:<52} right again after {took * 1000:5.1f} ms   ({describe(record)})")


def right(demo: Demo, good: bytes) -> bool:
    try:
        return demo.spec.read_bytes() == good and demo.spec.stat().st_mode & 0o777 == 0o644
    except OSError:
        return False


def conflict(demo: Demo) -> None:
    """Put a second file beside ours that defines the same device."""
    rival = demo.cdi / "leftover.json"
    device = {"name": demo.kind, "containerEdits": {"env": ["FROM=another tool"]}}
    rival.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": "hyperlight.dev/hypervisor", "devices": [device]}))
    wait(lambda: not demo.spec.exists(), "the withdrawal")
    demo.ctl("explain", demo.kind)
    rival.unlink()
    wait(demo.spec.exists, "the file")


@contextlib.contextmanager
def monitored(demo: Demo) -> Iterator[None]:
    """Run `devwardctl monitor` meanwhile, and show what it said."""
    command = [sys.executable, "-m", "devward.ctl", "monitor"]
    process = subprocess.Popen(
        command, env=demo.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    select.select([process.stdout], [], [], DEADLINE)  # its first words: it listens
    try:
        yield
    finally:
        process.terminate()  # heard even where SIGINT is ignored, as in a shell's background
        said = process.communicate()[0]
    say_command("devwardctl monitor     # ran meanwhile")
    print("".join(f"  {line}\n" for line in said.splitlines()), end="")


def fault(demo: Demo) -> None:
    """Cover the node, within this namespace, as a careless container set-up does."""
    node = f"/dev/{demo.kind}"
    with monitored(demo):
        mount("--bind", "/dev/zero" if demo.simulated else "/dev/null", node)
        wait(lambda: demo.records("device-unusable", ""), "the record of the fault")
        demo.ctl("status")
        demo.ctl("explain", demo.kind)
        demo.ctl("check", demo.kind)
        wait(lambda: not demo.spec.exists(), "the withdrawal after the settling time")
        subprocess.run(["umount", "--no-mtab", node], check=True)
        wait(demo.spec.exists, "the file")
        wait(lambda: len(demo.records("device-usable", "")) >= 2, "the record of the recovery")
    demo.ctl("check", demo.kind)


def show_npus(demo: Demo, npus: Npus) -> None:
    """Let NPUs appear in a daemon that had none, and vNPUs come and go."""
    chip, _ = npus.add(), npus.add()
    npus.create(chip, used=True)
    idle = npus.create(chip)
    npus.wait_listed("v0100", "v0101")
    demo.ctl("cards")
    demo.ctl("vnpus")
    # The second NPU is whole, and containers may have it; the first is divided.
    wait((demo.cdi / NPU_SPEC_NAME).exists, "the CDI file of NPUs")
    demo.ctl("specs")
    demo.ctl("check", "ascend.com/npu=1")
    demo.ctl("check", "ascend.com/npu=0")
    npus.create(chip)
    took = npus.wait_listed("v0100", "v0101", "v0102")
    print(f"\n  A third vNPU, {TEMPLATE}, was made on the first NPU: listed after {took:.1f} s.")
    npus.destroy(idle)
    took = npus.wait_listed("v0100", "v0102")
    print(f"  Another program destroyed v0101: not listed any more after {took:.1f} s.")
    demo.ctl("vnpus")


def owners(demo: Demo, npus: Npus) -> None:
    """Bring the host into a cluster, show who claims its cards, and then take the API server away."""
    with npus.cluster as cluster:
        cluster.state(CLUSTER_STATE)
        took = npus.wait_owners(CLUSTER_STATE)
        print(f"  Known after {took:.1f} s, most of which a kubelet that was just started is not trusted.")
        demo.ctl("cards")
        demo.ctl("explain", "p000")
        asked = sorted({(request.method, request.kind) for request in cluster.api.requests})
        print(f"\n  What the API server was asked: {', '.join(f'{method} {kind}' for method, kind in asked)}. It is never written to.")
    took = npus.wait_blocked("api-connection-refused")
    print(f"\n  The API server went away. That nothing is known any more was said {took:.1f} s later:")
    demo.ctl("cards")
    demo.ctl("explain", "p000")


def hang(demo: Demo, npus: Npus) -> None:
    """Let the library hang, and show what that keeps waiting: nothing."""
    npus.hang()
    began = time.monotonic()
    demo.ctl("check", demo.kind)
    print(f"  That took {time.monotonic() - began:.2f} s, most of it the start of devwardctl. What became of the NPUs meanwhile:")
    npus.wait_cards(Reason.NPU_BROKER_SILENT)
    demo.ctl("cards")
    demo.ctl("explain", "p000")
    npus.let_go()
    took = npus.wait_cards(Reason.OK)
    print(f"\n  The library answers again, to the broker that was started instead: vouched for after {took:.2f} s.")
    demo.ctl("cards")


def keep(demo: Demo) -> None:
    """Give the person a shell with devwardd still running."""
    bin_directory = demo.scratch / "bin"
    bin_directory.mkdir()
    tool = bin_directory / "devwardctl"
    tool.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(REPOSITORY / "src"))} exec {sys.executable} -m devward.ctl "$@"\n')
    tool.chmod(0o755)
    chapter("devwardd goes on running. In this shell devwardctl and busctl talk to it; leave it with exit.")
    print(f"  The CDI directory is {demo.cdi}; break something and run devwardctl status. Also: busctl tree org.devward.Devward1")
    sys.stdout.flush()
    environment = {**demo.environment, "PATH": f"{bin_directory}:{os.environ.get('PATH', '/usr/bin:/bin')}", "PS1": "devward-demo# "}
    environment.pop("PYTHONPATH")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    subprocess.run([os.environ.get("SHELL", "/bin/sh")], env=environment, check=False)


def main() -> None:
    arguments = argparse.ArgumentParser(prog="packaging/demo", description="devward at work, in a minute")
    arguments.add_argument("--keep", action="store_true", help="leave devwardd running, with a shell to play in")
    arguments.add_argument("--simulate", action="store_true", help="use a simulated device though the machine has /dev/kvm")
    given = arguments.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="devward-demo-"))
    demo = Demo(scratch, simulate=given.simulate)
    try:
        print(bold("devward: the warden of this host's accelerator devices"))
        if demo.simulated:
            why = "As asked for" if os.path.exists("/dev/kvm") else "This machine has no /dev/kvm"
            print(f"{why}: a simulated /dev/mshv stands in.")
        chapter("1. The daemon starts: it identifies the device, probes it, and writes its CDI file.")
        print(f"  ready after {demo.start():.2f} s, on a private bus, with {demo.cdi} for /etc/cdi")
        demo.ctl("status")
        chapter("2. Five ways to break the CDI file, and how long it stays broken.")
        break_and_watch(demo)
        chapter("3. Another tool leaves a file that defines the same device: engines could use neither. devward steps back and says why.")
        conflict(demo)
        builder = Builder(scratch / "library")
        chapter(f"4. Something is mounted over /dev/{demo.kind}: it still opens, but it is not the device. No container may be given it.")
        fault(demo)
        with ascend_node(builder.result(), scratch / "journal", demo.address) as npus:
            chapter("5. Ascend NPUs appear. Nodes and vendor's library are simulated; the broker that alone loads it is the real one.")
            show_npus(demo, npus)
            chapter("6. The host joins a cluster: checkpoint, API server and the host itself say who claims each NPU.")
            print(f"  Kubelet and API server are stand-ins with recorded answers; the looks come {FASTER} times as often as elsewhere.")
            owners(demo, npus)
            chapter("7. The library hangs. Nothing waits for it; of the NPUs nothing is certain any more, and devward says so.")
            print(f"  The broker ends itself when a call takes {HANG_LIMIT:g} s here, elsewhere 30 s, and another one is started.")
            hang(demo, npus)
            if given.keep:
                keep(demo)
            chapter("8. It stops. Its files stay: running guests and the next container do not depend on the daemon.")
            demo.stop()
        stands = "is there" if demo.spec.exists() else "is gone"
        print(f"  {demo.spec.name} {stands}; {len(demo.journal)} records went to the journal's socket")
    finally:
        demo.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    print("\nNothing was left behind. Next: tests/run, or install the package; see README.md.")


if __name__ == "__main__":
    main()
