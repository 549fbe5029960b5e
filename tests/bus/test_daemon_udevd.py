"""devwardd beside a real systemd-udevd, in a mount namespace with a /dev and a /run of its own: its rules touch no node of the host."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.daemon_process import DaemonProcess, wait_for
from sim.kvm_events import undisturbed

UDEVD = "/lib/systemd/systemd-udevd"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace and udevd"),
    pytest.mark.skipif(not os.path.exists("/dev/kvm"), reason="needs /dev/kvm: a device with events"),
]

SETUP = """
mount -t tmpfs -o mode=0755 devward-test /run
mkdir -p /run/udev
( env -u NOTIFY_SOCKET {udevd} >/dev/null 2>&1 & echo $! >{pid_file} )
while [ ! -e /run/udev/control ]; do sleep 0.01; done
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    pid_file = tmp_path / "udevd.pid"
    setup = SETUP.format(udevd=UDEVD, pid_file=pid_file)
    with DaemonProcess(tmp_path, private_devices=True, setup=setup) as process:
        try:
            yield process.start()
        finally:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int(pid_file.read_text()), signal.SIGKILL)


def probes(daemon: DaemonProcess) -> int:
    devices = daemon.describe()["devices"]
    assert isinstance(devices, list)
    return int(devices[0]["probes"])


def test_events_come_after_udevds_rules_and_lead_to_one_probe(daemon: DaemonProcess) -> None:
    assert daemon.describe()["event_source"] == "udev"

    def probes_of_a_burst() -> int:
        wait_for(lambda: daemon.get("", "Manager", "Checking") is False, what="quiet")
        before = probes(daemon)
        for _ in range(20):
            Path("/sys/class/misc/kvm/uevent").write_text("add")
        wait_for(lambda: probes(daemon) > before, what="the probe after the burst")
        wait_for(lambda: daemon.get("", "Manager", "Checking") is False, what="quiet")
        return probes(daemon) - before

    # More than one where a burst was cut in two, by a machine that stood still, or another test made events of this machine's kvm.
    wait_for(lambda: probes_of_a_burst() == 1, what="one probe for a burst")
    assert daemon.get("/device/kvm", "Device", "Health") == "healthy"


def test_virtual_machines_that_start_make_udevd_run_its_rules_and_devward_no_probe(daemon: DaemonProcess) -> None:
    script = "import fcntl,os\nfor _ in range(50):\n f=os.open('/dev/kvm',os.O_RDWR); os.close(fcntl.ioctl(f,0xAE01,0)); os.close(f)\n"

    def probes_of_machines() -> int:
        wait_for(lambda: daemon.get("", "Manager", "Checking") is False, what="quiet")
        before = probes(daemon)
        subprocess.run(["/usr/bin/python3", "-c", script], check=True)
        daemon.inside("udevadm settle --timeout=30")
        return probes(daemon) - before

    assert undisturbed(probes_of_machines) == 0


def test_the_monitor_falls_back_to_the_kernel_when_udevd_goes(daemon: DaemonProcess) -> None:
    os.kill(int((daemon.directory / "udevd.pid").read_text()), signal.SIGKILL)
    daemon.inside("rm -f /run/udev/control")
    daemon.call("Rescan", "t", "0")
    wait_for(lambda: daemon.describe()["event_source"] == "kernel", what="the kernel's own events")
    before = probes(daemon)
    Path("/sys/class/misc/kvm/uevent").write_text("add")
    wait_for(lambda: probes(daemon) > before, what="a probe")
