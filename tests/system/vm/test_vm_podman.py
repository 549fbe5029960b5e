"""Real consumers of the CDI file: Debian 12's podman, which knows no CDI version above 0.5.0, and Debian 13's."""

import json
from collections.abc import Iterator

import pytest

from system.vm.containers import Podman, mount_later, unmount_later
from system.vm.kvm import unload
from system.vm.machine import Machine
from system.vm.warden import KVM, SPEC, Warden

#: What a virtual machine in a container that was given kvm finds.
WORKS = {"api": 12, "count": 1, "uid": 65534, "env": "kvm"}
RIVAL = "/etc/cdi/rival.json"


@pytest.fixture(name="podman")
def _podman(vm: Machine) -> Podman:
    return Podman(vm)


@pytest.fixture(scope="module", name="later")
def _later(machine: tuple[Machine, object]) -> Iterator[Podman]:
    """Debian 13's."""
    vm, _ = machine
    try:
        yield mount_later(vm)
    finally:
        unmount_later(vm)


@pytest.mark.usefixtures("warden")
def test_a_container_as_nobody_runs_a_virtual_machine(vm: Machine, podman: Podman, later: Podman, figures: dict[str, str]) -> None:
    assert json.loads(vm.run("cat", SPEC))["cdiVersion"] == "0.3.0"
    for engine in (podman, later):
        assert engine.check() == WORKS
    figures["podman"] = f"{podman.versions()}; {later.versions()}"


def test_one_of_a_later_version_would_not_be_read(vm: Machine, warden: Warden, podman: Podman, later: Podman) -> None:
    """What the rule of the lowest version is for: the same file, of the version after the last that Debian 12's podman knows."""
    try:
        warden.call("PauseCdi", "tst", "600", "a test", "0")
        vm.run("sed", "-i", 's/"0.3.0"/"0.6.0"/', SPEC)
        assert f"unresolvable CDI devices {KVM}" in podman.refusal()
        assert later.check() == WORKS
    finally:
        warden.call("ResumeCdi", "t", "0")
    warden.wait_well()
    assert podman.check() == WORKS


def test_it_runs_again_after_tampering_was_repaired(vm: Machine, warden: Warden, podman: Podman, later: Podman) -> None:
    before = vm.run("cat", SPEC)
    for damage, engine in (("echo '{' >", podman), ("rm ", later), ("sed -i s,/dev/kvm,/dev/null,g ", later), ("chmod 0 ", podman)):
        vm.shell(f"{damage}{SPEC}")
        warden.wait_allocation((True, ""))
        assert vm.run("cat", SPEC) == before
        assert vm.run("stat", "--format=%a %u:%g", SPEC) == "644 0:0\n"
        assert engine.check() == WORKS


def test_it_is_refused_while_the_device_is_gone_and_while_it_is_withdrawn(
    vm: Machine, warden: Warden, podman: Podman, later: Podman
) -> None:
    try:
        unload(vm)
        warden.wait_device(health="missing")
        # Still named while it settles, so that a reload of the driver breaks nothing; but the file has no number in it, and the engine
        # finds no node. A slow machine may have settled by then.
        refused = podman.refusal()
        assert "no such file or directory" in refused or f"unresolvable CDI devices {KVM}" in refused
        warden.wait_spec(state="empty")
        for engine in (podman, later):
            assert f"unresolvable CDI devices {KVM}" in engine.refusal()
    finally:
        vm.run("modprobe", "kvm_amd")
    warden.wait_allocation((True, ""))
    for engine in (podman, later):
        assert engine.check() == WORKS


def test_a_rival_definition_does_not_break_the_device_for_everybody(vm: Machine, warden: Warden, podman: Podman) -> None:
    """Two files that define a device make it unusable. devward takes its own away, so that the other one works, and vouches for nothing."""
    rival = vm.run("cat", SPEC).replace("HYPERLIGHT_HYPERVISOR=kvm", "HYPERLIGHT_HYPERVISOR=rival")
    try:
        warden.call("PauseCdi", "tst", "600", "a test", "0")
        vm.write(RIVAL, rival)
        assert f"unresolvable CDI devices {KVM}" in podman.refusal()
        assert warden.allocation()[0] is False
        warden.call("ResumeCdi", "t", "0")
        warden.wait_spec(state="conflict")
        assert podman.check() == {**WORKS, "env": "rival"}
        assert warden.finished_allocation() == (False, "cdi-conflict")
    finally:
        vm.run("rm", "-f", RIVAL)
        warden.call("ResumeCdi", "t", "0")
    warden.wait_well()
    assert podman.check() == WORKS
