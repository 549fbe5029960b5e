"""devwardd as a process: devices that go, come back and are not what they claim, seen from the bus and the journal alone."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.daemon_process import DaemonProcess, wait_for
from sim.kvm_events import undisturbed

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace and device nodes"),
    pytest.mark.skipif(not os.path.exists("/dev/kvm"), reason="needs /dev/kvm: a hypervisor to check"),
]

SETTLE = "[cdi]\nsettle_time = 1\n"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path, config=SETTLE, private_devices=True) as process:
        yield process.start()


def health(daemon: DaemonProcess, kind: str = "kvm") -> object:
    return daemon.get(f"/device/{kind}", "Device", "Health")


def test_r17_r18_r19_device_gone_is_published_refused_withdrawn_and_recovers(daemon: DaemonProcess) -> None:
    daemon.wait_property("/device/kvm", "Device", "Health", "healthy")
    daemon.wait_property("", "Manager", "Ready", value=True)
    # R18: a private node with the same number, elsewhere, is of no use.
    daemon.inside("mkdir -p /dev/private && mknod /dev/private/kvm c 10 232 && rm /dev/kvm")
    daemon.wait_property("/device/kvm", "Device", "Health", "missing")
    assert daemon.get("/device/kvm", "Device", "Identity") == "missing"
    assert daemon.get("/device/kvm", "Device", "Reason") == "device-missing"
    allowed, reason, text, _ = daemon.allocation("kvm")
    assert (allowed, reason) == (False, "device-missing")
    assert "does not exist" in str(text)
    wait_for(lambda: not daemon.spec.exists(), what="the withdrawal of the only device")
    daemon.wait_property("/spec/hyperlight_2edev_2dhypervisor_2ejson", "Spec", "State", "empty")
    assert daemon.get("", "Manager", "Ready") is False
    assert daemon.get("", "Manager", "NotReadyReasons") == ["/dev/kvm: device-missing"]
    for kind in ("device-gone", "degraded", "allocation-refused"):
        daemon.wait_event(kind)
    record = daemon.wait_event("spec-withdraw", DEVWARD_OUTCOME="success")
    assert (record["DEVWARD_DEVICE"], record["DEVWARD_REASON"]) == (["/dev/kvm"], ["device-missing"])
    # R19: it is back, and so is everything else, without a restart.
    daemon.inside("mknod -m 660 /dev/kvm c 10 232")
    daemon.wait_property("/device/kvm", "Device", "Health", "healthy")
    wait_for(daemon.spec.exists, what="the file")
    assert daemon.allocation("/dev/kvm")[:2] == (True, "")
    daemon.wait_property("", "Manager", "Ready", value=True)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("mount --bind /dev/null /dev/kvm", "device-covered"),
        ("cover=$(mktemp); mount --bind $cover /dev/kvm; rm $cover", "device-not-char"),
        ("rm /dev/kvm; ln -s null /dev/kvm", "device-symlink"),
        ("rm /dev/kvm; touch /dev/kvm", "device-not-char"),
        ("rm /dev/kvm; mkdir /dev/kvm", "device-not-char"),
        ("rm /dev/kvm; mkfifo /dev/kvm", "device-not-char"),
        ("rm /dev/kvm; mknod /dev/kvm c 1 3", "device-number-mismatch"),
        ("rm /dev/kvm; mknod /dev/kvm b 10 232", "device-not-char"),
    ],
)
def test_r17_what_is_not_the_device_is_refused_at_once_and_recovers(daemon: DaemonProcess, command: str, reason: str) -> None:
    daemon.inside(command)
    daemon.wait_property("/device/kvm", "Device", "Reason", reason)
    assert daemon.get("/device/kvm", "Device", "Identity") == "invalid"
    assert daemon.allocation("hyperlight.dev/hypervisor=kvm")[:2] == (False, reason)
    daemon.inside("umount /dev/kvm 2>/dev/null || true; rm -rf /dev/kvm; mknod -m 660 /dev/kvm c 10 232")
    daemon.wait_property("/device/kvm", "Device", "Health", "healthy")


def test_r19_the_nodes_mode_and_owner_are_reported_never_changed(tmp_path: Path) -> None:
    config = '[hypervisor]\nexpected_mode = "0660"\nexpected_gid = 7\n'
    with DaemonProcess(tmp_path, config=config, private_devices=True) as daemon:
        daemon.start()
        daemon.inside("chmod 604 /dev/kvm; chown 5:6 /dev/kvm")
        wait_for(lambda: "mode is 0604" in str(daemon.call("ListFindings")), what="the drift")
        wait_for(lambda: "group is 6, 7 is configured" in str(daemon.call("ListFindings")), what="the other drift")
        assert daemon.inside("stat -c '%a %u %g' /dev/kvm").split() == ["604", "5", "6"]
        daemon.wait_event("device-drift")
        daemon.inside("chmod 660 /dev/kvm; chown 0:7 /dev/kvm")
        wait_for(lambda: "device-drift" not in str(daemon.call("ListFindings")), what="the end of the drift")
        daemon.wait_event("finding-cleared")


def test_a_host_without_a_hypervisor_has_nothing_to_watch(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, config="[hypervisor]\ndevices = []\n") as daemon:
        daemon.start()
        assert daemon.call("ListDevices") == [[]]
        assert daemon.get("", "Manager", "Ready") is True
        assert "nothing to watch" in daemon.notify.wait_for(lambda message: "STATUS" in message)["STATUS"]
        assert not daemon.spec.exists()
        allowed, reason, _, _ = daemon.allocation("kvm")
        assert (allowed, reason) == (False, "device-missing")


def test_a_named_device_that_never_was_is_an_object(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, config='[hypervisor]\ndevices = ["/dev/mshv", "/dev/kvm"]\n') as daemon:
        daemon.start()
        assert health(daemon, "mshv") == "missing"
        daemon.wait_property("/device/kvm", "Device", "Health", "healthy")
        daemon.wait_property("", "Manager", "Ready", value=True)
        assert daemon.allocation("mshv")[:2] == (False, "device-missing")


def test_starting_virtual_machines_causes_no_probes(daemon: DaemonProcess) -> None:
    script = "import fcntl,os\nfor _ in range(200):\n f=os.open('/dev/kvm',os.O_RDWR); os.close(fcntl.ioctl(f,0xAE01,0)); os.close(f)\n"

    def probes_of_machines() -> int:
        before = probes(daemon)
        subprocess.run(["/usr/bin/python3", "-c", script], check=True)
        daemon.inside("touch /dev/other")  # an event after the others: once it is handled, so are they
        daemon.call("ListDevices")
        return probes(daemon) - before

    assert undisturbed(probes_of_machines) == 0


def probes(daemon: DaemonProcess) -> int:
    devices = daemon.describe()["devices"]
    assert isinstance(devices, list)
    return int(devices[0]["probes"])


def test_probe_children_of_an_earlier_run_and_descriptors_are_not_left_behind(daemon: DaemonProcess) -> None:
    for _ in range(20):
        assert daemon.allocation("kvm")[0] is True
    # Whatever makes an event of the machine's kvm meanwhile is checked, too, and does not last either.
    wait_for(lambda: not Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split(), what="no child")
    wait_for(lambda: not [link for link in descriptors(daemon) if "kvm" in link], what="no descriptor of the device")


def descriptors(daemon: DaemonProcess) -> list[str]:
    """Return what the daemon has open; what it closes meanwhile is passed over."""
    links = []
    for entry in os.listdir(f"/proc/{daemon.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/{daemon.pid}/fd/{entry}"))
    return links
