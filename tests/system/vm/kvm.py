"""The driver of /dev/kvm in a machine."""

from system.vm.machine import Machine


def unload(vm: Machine) -> None:
    """Take it away. A check that is under way, or a container that is about to end, holds it for a moment."""
    vm.shell("until rmmod kvm_amd; do sleep 0.1; done")
