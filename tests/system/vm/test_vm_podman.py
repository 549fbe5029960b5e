"""A real consumer of the CDI file: Debian 12's podman, which knows no CDI version above 0.5.0."""

import json

from system.vm import containers
from system.vm.kvm import unload
from system.vm.machine import Machine
from system.vm.warden import KVM, SPEC, Warden

#: What a virtual machine in a container that was given kvm finds.
WORKS = {"api": 12, "count": 1, "uid": 65534, "env": "kvm"}
RIVAL = "/etc/cdi/rival.json"


def test_a_container_as_nobody_runs_a_virtual_machine(vm: Machine, warden: Warden, figures: dict[str, str]) -> None:
    assert json.loads(vm.run("cat", SPEC))["cdiVersion"] == "0.3.0"
    assert containers.check(vm) == WORKS
    figures["podman"] = ", ".join(vm.run("podman", "--version").split()[-1:] + vm.run("crun", "--version").splitlines()[0:1])


def test_one_of_a_later_version_would_not_be_read(vm: Machine, warden: Warden) -> None:
    """What the rule of the lowest version is for: the same file, of the version after the last that this podman knows."""
    try:
        warden.call("PauseCdi", "tst", "600", "a test", "0")
        vm.run("sed", "-i", 's/"0.3.0"/"0.6.0"/', SPEC)
        assert f"unresolvable CDI devices {KVM}" in containers.refusal(vm)
    finally:
        warden.call("ResumeCdi", "t", "0")
    warden.wait_well()
    assert containers.check(vm) == WORKS


def test_it_runs_again_after_tampering_was_repaired(vm: Machine, warden: Warden) -> None:
    before = vm.run("cat", SPEC)
    for damage in ("echo '{' >", "rm ", "sed -i s,/dev/kvm,/dev/null,g ", "chmod 0 "):
        vm.shell(f"{damage}{SPEC}")
        warden.wait_allocation((True, ""))
        assert vm.run("cat", SPEC) == before
        assert vm.run("stat", "--format=%a %u:%g", SPEC) == "644 0:0\n"
        assert containers.check(vm) == WORKS


def test_it_is_refused_while_the_device_is_gone_and_while_it_is_withdrawn(vm: Machine, warden: Warden) -> None:
    try:
        unload(vm)
        warden.wait_device(health="missing")
        # Still named, so that a reload of the driver breaks nothing; the engine finds no node, because the file has no number in it.
        assert KVM in warden.describe()["specs"][0]["devices"]
        assert "no such file or directory" in containers.refusal(vm)
        warden.wait_spec(state="empty")
        assert f"unresolvable CDI devices {KVM}" in containers.refusal(vm)
    finally:
        vm.run("modprobe", "kvm_amd")
    warden.wait_allocation((True, ""))
    assert containers.check(vm) == WORKS


def test_a_rival_definition_does_not_break_the_device_for_everybody(vm: Machine, warden: Warden) -> None:
    """Two files that define a device make it unusable. devward takes its own away, so that the other one works, and vouches for nothing."""
    rival = vm.run("cat", SPEC).replace("HYPERLIGHT_HYPERVISOR=kvm", "HYPERLIGHT_HYPERVISOR=rival")
    try:
        warden.call("PauseCdi", "tst", "600", "a test", "0")
        vm.write(RIVAL, rival)
        assert f"unresolvable CDI devices {KVM}" in containers.refusal(vm)
        assert warden.allocation()[0] is False
        warden.call("ResumeCdi", "t", "0")
        warden.wait_spec(state="conflict")
        assert containers.check(vm) == {**WORKS, "env": "rival"}
        assert warden.allocation() == (False, "cdi-conflict")
    finally:
        vm.run("rm", "-f", RIVAL)
        warden.call("ResumeCdi", "t", "0")
    warden.wait_well()
    assert containers.check(vm) == WORKS
