"""Whether this process is one that the Ascend driver takes for the host's administrator. Asked before the vendor's library is loaded.

The driver looks at who calls. To a process of another mount namespace than init's it is a container, which may destroy nothing, and which
occupies a device by opening it: others then get EBUSY. Whatever is not known here counts against this process.
"""

import os
from dataclasses import dataclass
from typing import Final

from devward.npu.facts import Refusal, Refused

#: CAP_CHOWN to CAP_AUDIT_READ: what the driver asks an administrator outside the host's mount namespace for. Later ones it does not know.
NEEDED_CAPABILITIES: Final = (1 << 38) - 1
#: include/linux/proc_ns.h: the namespaces that the kernel made at boot have these inode numbers, on every kernel.
INIT_USER_NAMESPACE: Final = 0xEFFFFFFD
INIT_PID_NAMESPACE: Final = 0xEFFFFFFC
#: By these the library itself finds that it is in a Docker container, whether or not it is.
_DOCKER_FILE: Final = "/.dockerenv"
_DOCKER_CGROUPS: Final = ("docker-", "docker/")


@dataclass(frozen=True, slots=True)
class Environment:
    """What this process is to the kernel."""

    uid: int
    #: Device and inode of the mount namespace, of ours and of PID 1's.
    mount_namespace: tuple[int, int]
    init_mount_namespace: tuple[int, int]
    #: Inodes.
    pid_namespace: int
    user_namespace: int
    capabilities: int
    #: What looks like Docker to the library.
    docker_marks: tuple[str, ...] = ()


def read() -> Environment:
    """Return what this process is. Refused: it cannot be known."""
    try:
        return Environment(
            uid=os.geteuid(),
            mount_namespace=_namespace("self", "mnt"),
            init_mount_namespace=_namespace("1", "mnt"),
            pid_namespace=_namespace("self", "pid")[1],
            user_namespace=_namespace("self", "user")[1],
            capabilities=_effective_capabilities(),
            docker_marks=_docker_marks(),
        )
    except (OSError, ValueError) as error:
        raise Refused(Refusal.ENVIRONMENT_UNKNOWN, f"it cannot be learned how the driver sees this process: {error}") from error


def require_host(found: Environment) -> None:
    """Refused: the driver would not take this process for the host's administrator. Pure."""
    if found.uid != 0:
        raise Refused(Refusal.NOT_ROOT, f"this process runs as user {found.uid} and not as root")
    if found.user_namespace != INIT_USER_NAMESPACE or found.pid_namespace != INIT_PID_NAMESPACE:
        raise Refused(Refusal.CONTAINER, "this process is in a container: its user or process namespace is not the host's")
    if found.mount_namespace != found.init_mount_namespace:
        raise Refused(
            Refusal.MOUNT_NAMESPACE,
            "this process has a mount namespace of its own, as a sandbox setting of its unit gives it: a container to the driver",
        )
    missing = [number for number in range(NEEDED_CAPABILITIES.bit_length()) if not found.capabilities >> number & 1]
    if missing:
        raise Refused(Refusal.CAPABILITIES, f"this process lacks the capabilities {', '.join(map(str, missing))}")
    if found.docker_marks:
        raise Refused(Refusal.CONTAINER, f"the vendor's library would take this process for Docker's: {', '.join(found.docker_marks)}")


def _namespace(process: str, kind: str) -> tuple[int, int]:
    found = os.stat(f"/proc/{process}/ns/{kind}")
    return found.st_dev, found.st_ino


def _effective_capabilities() -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name == "CapEff":
                return int(value, 16)
    raise ValueError("/proc/self/status has no CapEff")


def _docker_marks() -> tuple[str, ...]:
    with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
        cgroups = file.read()
    marks = [f"{mark} in /proc/self/cgroup" for mark in _DOCKER_CGROUPS if mark in cgroups]
    return (*marks, *([_DOCKER_FILE] if os.path.lexists(_DOCKER_FILE) else []))
