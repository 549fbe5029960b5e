"""`apt install ./devward_*.deb` on a fresh Debian with systemd, and what the service then is, on three kinds of host."""

import os
import re

import pytest
from nspawn_machine import MISC_DEVICES, SPEC, Machine, until

from devward import __version__, names

if os.geteuid() != 0:
    pytest.skip("needs root: a container is booted", allow_module_level=True)
pytest_plugins = ["nspawn_fixtures"]

DEVICE = (names.DEVICE_INTERFACE, names.device_path("kvm"))


def test_a_node_that_is_bind_mounted_into_a_private_dev_is_refused_until_it_is_the_real_one(bare: Machine) -> None:
    if not os.path.exists("/dev/kvm"):
        pytest.skip("needs /dev/kvm: a node to bind-mount")
    assert bare.boot_state == "running"
    before = bare.cursor()
    bare.install()

    assert bare.unit("ActiveState") == "active", "that a device is refused is no failure of the daemon"
    status = bare.call("devwardctl", "status")
    assert status.status == 1
    assert "NOT READY" in status.out
    assert "device-covered" in status.out
    assert 'Status: "/dev/kvm unhealthy: ' in bare.run("systemctl", "status", "--no-pager", "devward")
    assert bare.get("Ready") is False
    assert [bare.get(name, *DEVICE) for name in ("Identity", "Health", "Reason")] == ["invalid", "unhealthy", "device-covered"]
    assert bare.allocation() == (False, "device-covered")
    (record,) = bare.records(before, DEVWARD_EVENT="device-unusable")
    assert (record["DEVWARD_DEVICE"], record["DEVWARD_REASON"]) == ("/dev/kvm", "device-covered")
    assert bare.records(before, DEVWARD_EVENT="allocation-refused")
    assert bare.run("ls", "-A", names.CDI_DIRECTORY) == "", "no CDI file for a device that devward cannot vouch for"

    pid = bare.main_pid()
    bare.show_devtmpfs()
    until(lambda: bare.get("Ready"), "the real node is vouched for, without a restart")
    assert bare.call("devwardctl", "status").status == 0
    assert bare.allocation(f"{names.HYPERVISOR_CDI_KIND}=kvm") == (True, "")
    assert bare.main_pid() == pid
    assert '"/dev/kvm"' in bare.run("cat", SPEC)


def test_a_host_without_any_hypervisor_has_nothing_to_watch_and_is_well(bare: Machine) -> None:
    bare.shell("if mountpoint -q /dev/kvm; then umount /dev/kvm && rm /dev/kvm; fi")
    with bare.covered(MISC_DEVICES):
        bare.install()
        assert bare.unit("ActiveState") == "active"
        assert bare.unit("StatusText") == "nothing to watch on this host"
        status = bare.call("devwardctl", "status")
        assert status.status == 0, status.text
        assert "There is no hypervisor device on this host" in status.out
        assert bare.get("Ready") is True
        assert bare.ask("ListDevices") == [[]]
        assert bare.allocation() == (False, "device-missing")
        assert bare.run("ls", "-A", names.CDI_DIRECTORY) == ""
        assert bare.run("systemctl", "is-system-running") == "running\n"
        assert bare.run("cat", f"/sys/fs/cgroup/{bare.unit('ControlGroup')}/cgroup.procs").split() == [str(bare.main_pid())]


def test_what_apt_installs_runs_and_vouches_for_the_host(host: Machine) -> None:
    assert host.boot_state == "running"
    assert host.run("systemctl", "is-system-running") == "running\n"
    assert host.run("systemctl", "is-enabled", "devward") == "enabled\n"
    assert [host.unit(name) for name in ("ActiveState", "SubState", "Type", "NRestarts")] == ["active", "running", "notify", "0"]
    assert host.get("Version") == __version__ == host.run("dpkg-query", "-W", "-f", "${Version}", "devward")
    assert host.unit("StatusText") == "/dev/kvm usable, its CDI file true"
    status = host.run("systemctl", "status", "--no-pager", "devward")
    assert "Active: active (running)" in status
    assert 'Status: "/dev/kvm usable, its CDI file true"' in status
    shown = host.call("devwardctl", "status")
    assert shown.status == 0
    assert f"devward {__version__} on " in shown.out
    assert " is ready." in shown.out
    assert host.run("dpkg", "--verify", "devward") == ""
    assert host.run("stat", "--format=%a %U:%G %h", SPEC) == "644 root:root 1\n"


def test_the_service_is_sandboxed_as_promised(host: Machine) -> None:
    verified = host.call("systemd-analyze", "verify", "--man=no", "devward.service")
    assert (verified.status, verified.text) == (0, "")
    rated = host.call("systemd-analyze", "security", "--no-pager", "--threshold=35", "devward.service")
    print(host.release, rated.out.splitlines()[-1])
    assert rated.status == 0, rated.text
    exposure = re.search(r"Overall exposure level for devward.service: ([\d.]+)", rated.out)
    assert exposure is not None
    assert float(exposure[1]) <= 3.5


def test_the_service_is_small(host: Machine) -> None:
    pid = host.main_pid()
    memory = dict(re.findall(r"^(\w+): +(\d+) kB", host.run("cat", f"/proc/{pid}/smaps_rollup"), re.MULTILINE))
    peak = re.search(r"VmHWM:\s+(\d+) kB", host.run("cat", f"/proc/{pid}/status"))
    assert peak is not None
    print(f"Debian {host.release}: PSS {int(memory['Pss']) / 1024:.1f} MiB, peak RSS {int(peak[1]) / 1024:.1f} MiB,", end=" ")
    print(f"CPU since its start {int(host.unit('CPUUsageNSec')) / 1e6:.0f} ms")
    assert int(memory["Pss"]) * 1024 <= 30e6
