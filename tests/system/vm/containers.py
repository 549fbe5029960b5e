"""Containers of the machine's podman that are given /dev/kvm by its CDI name."""

import json
import shlex
from typing import Any

from system.vm.machine import Machine
from system.vm.warden import KVM

#: No image is needed: the root is empty but for mounts of the machine's own programs.
_RUN = (
    "podman", "run", "--rm", "--network=host", "--user=65534:65534", f"--device={KVM}",
    "--volume=/usr:/usr:ro", "--volume=/opt/vm:/opt/vm:ro",
)  # fmt: skip
_ROOT = ("--rootfs", "/opt/vm/rootfs", "/usr/bin/python3", "-I", "/opt/vm/kvm.py")


def command(*arguments: str, options: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the command line of a container that runs kvm.py."""
    return (*_RUN, *options, *_ROOT, *arguments)


def check(vm: Machine) -> dict[str, Any]:
    """Run a virtual machine in a container; return what it found. CommandFailed where the container does not start or KVM does not work."""
    found: dict[str, Any] = json.loads(vm.run(*command("check")))
    return found


def refusal(vm: Machine) -> str:
    """Return what podman says where it refuses to start the container; empty where it starts it."""
    return vm.shell(f'if out=$({shlex.join(command("check"))} 2>&1); then exit; fi; echo "$out"').strip()
