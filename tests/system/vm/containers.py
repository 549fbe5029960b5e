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


#: Tells what it finds around itself, without opening any device.
_LOOK = """
import json, os, stat
nodes = {}
for directory, _, names in os.walk("/dev"):
    for name in names:
        path = os.path.join(directory, name)
        facts = os.lstat(path)
        if stat.S_ISCHR(facts.st_mode) and not path.startswith("/dev/pts/"):
            number = f"{os.major(facts.st_rdev)}:{os.minor(facts.st_rdev)}"
            nodes[path] = [number, f"{facts.st_mode & 0o7777:04o}", facts.st_uid, facts.st_gid]
mounts = {}
with open("/proc/self/mountinfo") as file:
    for line in file:
        words = line.split()
        mounts[words[4]] = sorted(words[5].split(","))
print(json.dumps({"nodes": nodes, "mounts": mounts, "env": dict(os.environ)}))
"""


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

    def seen(self, *devices: str, user: int = 0) -> dict[str, Any]:
        """Return what a container has that runs as this user and is given these devices: `nodes`, `mounts` and `env`."""
        given = [f"--user={user}:{user}", *(f"--device={device}" for device in devices)]
        run = ("podman", "--cgroup-manager=cgroupfs", "run", "--rm", "--network=host", "--volume=/usr:/usr:ro", *given)
        found: dict[str, Any] = json.loads(
            self.vm.run(*self._enter(), *run, "--rootfs", "/opt/vm/rootfs", "/usr/bin/python3", "-Ic", _LOOK)
        )
        return found

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
