"""Containers that are given /dev/kvm by its CDI name, of the machine's podman and of a later Debian's."""

import json
import shlex
from dataclasses import dataclass
from typing import Any

from system.vm.image import LATER_DISK
from system.vm.machine import Machine
from system.vm.warden import KVM

#: Where the root of the later Debian is.
LATER = "/opt/later"

#: No image is needed: the root is empty but for mounts of the programs beside the engine.
_RUN = (
    "podman", "--cgroup-manager=cgroupfs", "run", "--rm", "--network=host", "--user=65534:65534", f"--device={KVM}",
    "--volume=/usr:/usr:ro", "--volume=/opt/vm:/opt/vm:ro",
)  # fmt: skip
_ROOT = ("--rootfs", "/opt/vm/rootfs", "/usr/bin/python3", "-I", "/opt/vm/kvm.py")
#: The runtime changes its root, which works only where the engine's own is that of its mount namespace: not with chroot(1) alone.
_ENTER = 'mount --make-rprivate /; cd "$1"; shift; pivot_root . mnt; umount --lazy mnt; exec "$@"'


@dataclass(frozen=True, slots=True)
class Podman:
    """One installation of podman in a machine."""

    vm: Machine
    #: The root directory that it is installed in, empty for the machine's own.
    root: str = ""

    def command(self, *arguments: str, options: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the command line of a container that runs kvm.py."""
        return (*self._enter(), *_RUN, *options, *_ROOT, *arguments)

    def check(self) -> dict[str, Any]:
        """Run a virtual machine in a container; return what it found. CommandFailed if it does not start or KVM does not work."""
        found: dict[str, Any] = json.loads(self.vm.run(*self.command("check")))
        return found

    def refusal(self) -> str:
        """Return what podman says where it refuses to start the container; empty where it starts it."""
        return self.vm.shell(f'if out=$({shlex.join(self.command("check"))} 2>&1); then exit; fi; echo "$out"').strip()

    def versions(self) -> str:
        """Return which podman this is, and its runtime."""
        words = self.vm.run(*self._enter(), "podman", "--version").split()[-1:]
        return ", ".join(words + self.vm.run(*self._enter(), "crun", "--version").splitlines()[:1])

    def _enter(self) -> tuple[str, ...]:
        return ("unshare", "--mount", "sh", "-ec", _ENTER, "sh", self.root) if self.root else ()


def mount_later(vm: Machine) -> Podman:
    """Mount the later Debian, which sees the machine's devices and CDI files; return its podman."""
    vm.shell(f"""
        mkdir -p {LATER}
        mount {LATER_DISK} {LATER}
        cd {LATER}
        mkdir -p etc/cdi opt/vm
        for name in dev proc sys; do mount --rbind /$name $name; mount --make-rslave $name; done
        for name in etc/cdi opt/vm; do mount --bind /$name $name; done
        for name in run tmp var/lib/containers; do mkdir -p $name; mount -t tmpfs tmpfs $name; done
    """)
    return Podman(vm, LATER)


def unmount_later(vm: Machine) -> None:
    """Undo `mount_later`."""
    vm.shell(f"if mountpoint -q {LATER}; then umount --recursive --lazy {LATER}; fi")
