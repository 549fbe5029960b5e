"""devwardctl and the real devwardd on a private bus: what an administrator sees of each fault, and what a stopped daemon looks like."""

import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.daemon_process import REPOSITORY, DaemonProcess, wait_for
from sim.patient_ctl import PATIENT_CTL, PLAIN_CTL

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: uid 0 passes the authorization gate"),
    pytest.mark.skipif(not os.path.exists("/dev/kvm"), reason="needs /dev/kvm: a hypervisor to publish"),
]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path) as process:
        yield process.start()


def command(daemon: DaemonProcess, *arguments: str, program: tuple[str, ...] = PATIENT_CTL) -> list[str]:
    return [sys.executable, *program, "--bus", daemon.bus.address, *arguments]


def environment(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY / "src"), "LANG": "C.UTF-8", **more}


def ctl(daemon: DaemonProcess, *arguments: str, expect: int = 0, program: tuple[str, ...] = PATIENT_CTL) -> str:
    line = command(daemon, *arguments, program=program)
    run = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=240)
    assert "Traceback" not in run.stderr
    assert run.returncode == expect, (run.stdout, run.stderr)
    return run.stdout + run.stderr


def test_a_good_host(daemon: DaemonProcess) -> None:
    assert "is ready." in ctl(daemon, "status")
    assert ctl(daemon, "check", "kvm").startswith("allowed: ")
    document = json.loads(ctl(daemon, "--json"))
    assert document["blocked"] == []
    assert document["devices"][0]["node"] == "/dev/kvm"
    assert document["specs"][0]["file"] == str(daemon.spec)
    assert "Nothing needs to be done." in ctl(daemon, "explain", "kvm")
    assert "nothing to do" in ctl(daemon, "repair", "--dry-run")
    assert "/dev/kvm: done" in ctl(daemon, "rescan")
    assert ctl(daemon, "reload").startswith("The configuration on disk is in force.")
    assert str(daemon.config_file) in ctl(daemon, "config")


def test_a_fault_is_shown_explained_and_ended(daemon: DaemonProcess) -> None:
    link = daemon.cdi / "link.tmp"
    link.symlink_to("/etc/passwd")
    link.rename(daemon.spec)  # in one step: between two the file would be repaired
    daemon.wait_property("", "Manager", "Ready", False)
    shown = ctl(daemon, "status", expect=1)
    assert "is NOT READY." in shown
    assert "containers that ask for hyperlight.dev/hypervisor=kvm" in shown
    assert "cdi-not-regular" in ctl(daemon, "check", "kvm", expect=1)
    assert f"ls -ld {daemon.spec}" in ctl(daemon, "explain", "kvm")
    assert "failed;" in ctl(daemon, "repair", expect=1)
    daemon.spec.unlink()
    wait_for(lambda: daemon.spec.exists() and not daemon.spec.is_symlink(), what="the repair")
    daemon.wait_property("", "Manager", "Ready", True)
    assert "is ready." in ctl(daemon, "status")


def test_a_file_is_taken_away_in_peace(daemon: DaemonProcess) -> None:
    assert "paused for 60 minutes" in ctl(daemon, "pause", "cdi", "1h", "for a test")
    shown = json.loads(ctl(daemon, "--json", "status"))
    assert shown["manager"]["cdi_paused_until_usec"] > time.time_ns() // 1000
    daemon.spec.unlink()
    assert "would be repaired, as it was missing" in ctl(daemon, "repair", "--dry-run") or not daemon.spec.exists()
    ctl(daemon, "resume", "cdi")
    wait_for(daemon.spec.exists, what="the repair")
    assert "The mode for CDI files is observe." in ctl(daemon, "mode", "cdi", "observe")
    assert "only observed" in ctl(daemon, "status")
    assert '"observe"' in ctl(daemon, "config")
    assert "set at run time" in ctl(daemon, "config")


def test_a_foreign_file_is_adopted(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        daemon.cdi.mkdir()
        daemon.spec.write_text('{"cdiVersion": "0.6.0", "kind": "other.example/thing", "devices": []}')
        daemon.start()
        assert "cdi-foreign" in ctl(daemon, "status", expect=1)
        assert f"devwardctl adopt {daemon.spec}" in ctl(daemon, "explain", "kvm")
        assert "would be repaired" in ctl(daemon, "adopt", "--dry-run", str(daemon.spec))
        assert "repaired, as an administrator had it taken over" in ctl(daemon, "adopt", daemon.spec.name)
        assert "hyperlight.dev/hypervisor" in daemon.spec.read_text()


def test_a_refused_configuration(daemon: DaemonProcess) -> None:
    daemon.write_config("[cdi]\nno_such_key = 1\n")
    assert "no_such_key" in ctl(daemon, "reload", expect=1)
    assert "is refused" in ctl(daemon, "config", expect=1)
    assert "no_such_key" in ctl(daemon, "config", "--check", "--config", str(daemon.config_file), expect=1)
    assert "The configuration on disk is refused" in ctl(daemon, "status", expect=1)


def test_a_stopped_process_is_not_waited_for_for_ever(daemon: DaemonProcess) -> None:
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        assert "did not answer GetAll within 5 seconds" in ctl(daemon, "status", expect=3, program=PLAIN_CTL)
        assert "devwardd runs, but did not answer" in ctl(daemon, "check", "kvm", expect=3, program=PLAIN_CTL)
        assert ctl(daemon, "complete", "devices", program=PLAIN_CTL) == ""
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    assert "is ready." in ctl(daemon, "status")


def test_a_daemon_that_is_killed_in_the_middle_of_a_call(daemon: DaemonProcess) -> None:
    os.kill(daemon.pid, signal.SIGSTOP)
    asking = subprocess.Popen(command(daemon, "repair"), env=environment(), stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)

    def connections() -> int:
        names = daemon.busctl("--json=short", "call", "org.freedesktop.DBus", "/", "org.freedesktop.DBus", "ListNames").stdout
        return len([name for name in json.loads(names)["data"][0] if name.startswith(":")])

    # devwardd, busctl itself, and devwardctl; the call itself cannot be seen, and killing earlier ends in the same way.
    wait_for(lambda: connections() >= 3, what="devwardctl on the bus")
    daemon.stop(signal.SIGKILL)
    _, errors = asking.communicate(timeout=60)
    assert asking.returncode == 3
    assert "devwardd" in errors
    assert "Traceback" not in errors


def test_a_whole_report(daemon: DaemonProcess, tmp_path: Path) -> None:
    path = tmp_path / "report.tar.gz"
    (daemon.cdi / "other.json").write_text("secret contents")
    run = subprocess.run(
        command(daemon, "report", str(path)), env=environment(DEVWARD_SECRET="s3cr3t"), capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        held = {one.name.partition("/")[2]: archive.extractfile(one).read().decode() for one in archive.getmembers()}  # type: ignore[union-attr]
    assert json.loads(held["status.json"])["manager"]["ready"] is True
    assert json.loads(held["describe.json"])["config"]
    assert "other.json" in held["cdi.txt"]
    assert "10:232" in held["devices.txt"]
    assert " /dev " in held["daemon-mounts.txt"]
    assert "kernel " in held["versions.txt"]
    assert "secret contents" not in "".join(held.values())
    assert "s3cr3t" not in "".join(held.values())
    assert "exists already" in ctl(daemon, "report", str(path), expect=1)


def test_monitor_over_a_restart(daemon: DaemonProcess) -> None:
    # Whoever starts the tests may have SIGINT ignored.
    following = subprocess.Popen(
        ["env", "--default-signal=INT", *command(daemon, "monitor")],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    try:
        assert following.stdout is not None
        assert "runs and is ready" in following.stdout.readline()
        daemon.spec.write_text("")
        lines = [following.stdout.readline()]
        while "was repaired" not in lines[-1]:
            lines.append(following.stdout.readline())
            assert lines[-1], "it ended"
        assert "as it could not be parsed" in lines[-1]
        daemon.stop()
        daemon.start()
        while "is back" not in lines[-1]:
            lines.append(following.stdout.readline())
            assert lines[-1], "it ended"
        assert any("is gone; waiting" in line for line in lines)
        following.send_signal(signal.SIGINT)
        assert following.wait(60) == 0
    finally:
        following.kill()
        following.communicate()
