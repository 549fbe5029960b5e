"""The steps of packaging/demo, which runs this in a mount namespace of its own."""

import argparse
import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from demo_cluster import Cluster
from demo_daemon import NPU_SPEC_NAME, REPOSITORY, Demo, bold, chapter, say, say_command
from demo_npus import HANG_LIMIT, TEMPLATE, Builder, Npus, ascend_node
from demo_reclaim import Reclaiming, say_timers
from demo_stage import DEADLINE, mount, wait

from devward.ctl.failure import ExitStatus
from devward.ctl.journal import Record
from devward.reasons import Reason

#: Why nothing is known while nobody listens at the API server's address.
API_AWAY = "api-connection-refused"


def describe(record: Record) -> str:
    """Say what was wrong with a file."""
    evidence = record.fields.get("evidence")
    differences = "; ".join(evidence.get("differences", [])) if isinstance(evidence, dict) else ""
    return f"cause {record.text('cause') or '?'}" + (f": {differences}" if differences else "")


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
        before = len(demo.journal.records("spec-repair", "success"))
        began = time.monotonic()
        act()
        wait(lambda: right(demo, good), "the repair")
        took = time.monotonic() - began
        wait(lambda before=before: len(demo.journal.records("spec-repair", "success")) > before, "the record")
        record = demo.journal.records("spec-repair", "intent")[-1]
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
        wait(lambda: demo.journal.records("device-unusable", ""), "the record of the fault")
        demo.ctl("status", status=ExitStatus.UNHEALTHY)
        demo.ctl("explain", demo.kind)
        demo.ctl("check", demo.kind, status=ExitStatus.UNHEALTHY)
        wait(lambda: not demo.spec.exists(), "the withdrawal after the settling time")
        subprocess.run(["umount", "--no-mtab", node], check=True)
        wait(demo.spec.exists, "the file")
        wait(lambda: len(demo.journal.records("device-usable", "")) >= 2, "the record of the recovery")
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
    demo.ctl("check", "ascend.com/npu=0", status=ExitStatus.UNHEALTHY)
    npus.create(chip)
    took = npus.wait_listed("v0100", "v0101", "v0102")
    print(f"\n  A third vNPU, {TEMPLATE}, was made on the first NPU: listed after {took:.1f} s.")
    npus.destroy(idle)
    took = npus.wait_listed("v0100", "v0102")
    print(f"  Another program destroyed v0101: not listed any more after {took:.1f} s.")
    demo.ctl("vnpus")


def owners(demo: Demo, cluster: Cluster) -> None:
    """Bring the host into a cluster, and show who claims its cards."""
    cluster.start()
    took = cluster.wait_owners()
    print(f"  Known after {took:.1f} s, most of it because a kubelet that was just started is not trusted.")
    demo.ctl("cards")
    demo.ctl("explain", "p000")
    asked = ", ".join(sorted(f"{method} {kind}" for method, kind in cluster.asked))
    say(f"What the API server was asked: {asked}. It is never written to.")


def away(demo: Demo, cluster: Cluster, reclaiming: Reclaiming) -> None:
    """Take the API server away while a vNPU waits to be reclaimed."""
    reclaiming.leave_another()
    cluster.stop_api()
    took = cluster.wait_blocked(API_AWAY)
    say(f"The API server went away. That nothing is known any more was said {took:.1f} s later:")
    demo.ctl("cards")
    reclaiming.show_nothing_happens(API_AWAY)


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
    print("  The API server stays away, so that nothing is reclaimed; devwardctl config names the kill switch of this demo.")
    sys.stdout.flush()
    environment = {**demo.environment, "PATH": f"{bin_directory}:{os.environ.get('PATH', '/usr/bin:/bin')}", "PS1": "devward-demo# "}
    environment.pop("PYTHONPATH")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    subprocess.run([os.environ.get("SHELL", "/bin/sh")], env=environment, check=False)


def say_output(demo: Demo) -> None:
    """Show the last of what the programs said, for who looks for why the demo ended early."""
    sys.stdout.flush()
    print("packaging/demo ends early. The last that was said, on record and otherwise:", file=sys.stderr)
    said = demo.journal.last_lines()
    with contextlib.suppress(OSError):
        said += demo.output.read_text(errors="replace").splitlines()[-10:]
    print("".join(f"  | {line}\n" for line in said), end="", file=sys.stderr)


def main() -> None:
    arguments = argparse.ArgumentParser(prog="packaging/demo", description="devward at work, in a minute")
    arguments.add_argument("--keep", action="store_true", help="leave devwardd running, with a shell to play in")
    arguments.add_argument("--simulate", action="store_true", help="use a simulated device though the machine has /dev/kvm")
    given = arguments.parse_args()
    # What was started is ended then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("packaging/demo: terminated"))
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
        with ascend_node(builder.result(), demo) as npus, Cluster(npus.witnessed, demo) as cluster:
            chapter("5. Ascend NPUs appear. Nodes and vendor's library are simulated; the broker that alone loads it is the real one.")
            show_npus(demo, npus)
            chapter("6. The host joins a cluster: checkpoint, API server and the host itself say who claims each NPU.")
            print("  Kubelet and API server are stand-ins with recorded answers.")
            demo.settle_grace()
            say_timers(demo)
            owners(demo, cluster)
            chapter("7. A Pod cannot start, and each attempt leaves a vNPU behind, until the NPU is full. devward takes them back.")
            reclaiming = Reclaiming(demo, npus, cluster)
            reclaiming.leave()
            reclaiming.reclaim()
            chapter("8. What stays, and why.")
            reclaiming.show_kept()
            chapter("9. The API server goes away while a vNPU waits. What is not known counts as use: nothing happens.")
            away(demo, cluster, reclaiming)
            chapter("10. The library hangs. Nothing waits for it; of the NPUs nothing is certain any more, and devward says so.")
            print(f"  The broker ends itself when a call takes {HANG_LIMIT:g} s here, elsewhere 30 s, and another one is started.")
            hang(demo, npus)
            if given.keep:
                keep(demo)
            chapter("11. It stops. Its files stay: running guests and the next container do not depend on the daemon.")
            demo.stop()
        stands = "is there" if demo.spec.exists() else "is gone"
        print(f"  {demo.spec.name} {stands}; {demo.journal.count} records are in the journal")
    except (Exception, SystemExit):
        say_output(demo)
        raise
    finally:
        demo.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    print("\nNothing was left behind. Next: tests/run, or install the package; see README.md.")


if __name__ == "__main__":
    main()
