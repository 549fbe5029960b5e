"""A boot in which devward hangs, and in which the driver is not loaded though there is a node for it."""

import json
from collections.abc import Iterator

import pytest

from system.vm.boot import Boot
from system.vm.kvm import unload
from system.vm.machine import Machine
from system.vm.warden import SPEC, Warden

DROP_INS = "/etc/systemd/system/devward.service.d"
#: What kmod makes static nodes of at boot. KVM has an entry where the processor does not load it, as on s390x.
NODES = "/lib/modules/$(uname -r)/modules.devname"
NO_DRIVER = {"identity": "invalid", "health": "unhealthy", "reason": "device-no-driver"}


@pytest.fixture(scope="module", name="hung")
def _hung(machine: tuple[Machine, Boot]) -> Iterator[Machine]:
    """The machine, booted with a devward that never gets ready, within the limit that it is shipped with."""
    vm, _ = machine
    warden = Warden(vm)
    warden.wait_well()
    vm.shell(f"echo 'kvm kvm c10:232' >>{NODES}; mv {DROP_INS}/slow-machine.conf /opt/vm")
    vm.write(f"{DROP_INS}/hang.conf", "[Service]\nExecStart=\nExecStart=/bin/sleep infinity\n")
    vm.reboot("modprobe.blacklist=kvm_amd")
    try:
        yield vm
    finally:
        vm.shell(f"rm -f {DROP_INS}/hang.conf; mv /opt/vm/slow-machine.conf {DROP_INS} || true; systemctl daemon-reload")
        vm.shell(f"sed -i '/^kvm /d' {NODES}; rm -f /dev/kvm; modprobe kvm_amd")
        # Where it was loaded by now, it makes its node anew.
        unload(vm)
        vm.shell("modprobe kvm_amd; systemctl restart devward")
        warden.wait_well()


def test_a_devward_that_hangs_at_start_holds_nothing_up_for_ever(hung: Machine, figures: dict[str, str]) -> None:
    hung.shell("until systemctl --quiet is-active kubelet; do sleep 0.2; done")
    hung.run("systemctl", "is-system-running", "--wait", check=False)
    assert hung.run("systemctl", "show", "--value", "--property=TimeoutStartUSec", "devward") == "10s\n"
    boot = Boot.of(hung)
    hung.run("journalctl", "--sync")
    log = hung.run("journalctl", "--boot", "--unit=devward", "--output=cat")
    assert "start operation timed out" in log
    for name, started in boot.engines.items():
        assert started > 0, f"{name} was not started"
    first = int(json.loads(hung.run("journalctl", "--boot", "--unit=devward", "--output=json").splitlines()[0])["__MONOTONIC_TIMESTAMP"])
    held_up = min(boot.engines.values()) - first
    figures["a devward that hangs at start holds up the kubelet for"] = f"{held_up / 1e6:.1f} s"
    # The file of the boot before is there, and nobody vouches for it.
    assert set(boot.seen.values()) == {boot.spec}


def test_a_static_node_without_its_driver_is_told_from_a_missing_one(hung: Machine) -> None:
    vm, warden = hung, Warden(hung)
    vm.shell(f"rm {DROP_INS}/hang.conf; mv /opt/vm/slow-machine.conf {DROP_INS}; systemctl daemon-reload; systemctl restart devward")
    assert vm.run("stat", "--format=%F %t:%T", "/dev/kvm") == "character special file a:e8\n"
    assert "No such device" in vm.run("sh", "-c", ": </dev/kvm", check=False)
    inode = vm.run("stat", "--format=%i", "/dev/kvm")

    warden.wait_device(**NO_DRIVER)
    assert warden.finished_allocation() == (False, "device-no-driver")
    warden.wait_spec(state="empty")
    assert vm.run("ls", "-A", "/etc/cdi") == ""

    run = warden.run_id()
    vm.run("modprobe", "kvm_amd")
    warden.wait_well()
    warden.wait_allocation((True, ""))
    assert vm.run("stat", "--format=%i", "/dev/kvm") == inode, "it is the static node that works now"

    # The node stays when the driver goes: the kernel takes away only what it made itself.
    unload(vm)
    warden.wait_device(**NO_DRIVER)
    assert vm.run("stat", "--format=%i", "/dev/kvm") == inode
    assert warden.finished_allocation() == (False, "device-no-driver")
    vm.run("modprobe", "kvm_amd")
    warden.wait_well()
    assert vm.run("test", "-e", SPEC) == ""
    assert warden.run_id() == run
