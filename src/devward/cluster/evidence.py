"""Words that the readers of local evidence share. Pure.

The readers are descriptors.py, bundles.py, cgroups.py and uda.py; local.py joins what they saw. They import nothing of the daemon's bus and
nothing of the vendor's library, so that the daemon and the broker use the same ones. Each takes its root (`/proc`, `/run`, …) as a
parameter, raises nothing for what it finds, opens nothing that could block, and is bounded; a bound that is hit is a doubt, and a doubt
never clears. Names and paths are kept as they were found: who shows them escapes them.
"""

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

#: Ids of vNPUs: 100 + 16 * phy id + slot, for 64 chips of 16 slots.
FIRST_VDEV: Final = 100
LAST_VDEV: Final = 1123

_NODE: Final = re.compile(r"/dev/(v?)davinci([0-9]{1,9})", re.ASCII)
#: A Pod's control group, by either of the kubelet's drivers: `pod<UID>`, or `…kubepods-<class>-pod<UID with underscores>.slice`.
_POD_DIRECTORY: Final = re.compile(r"pod([0-9A-Za-z_.-]{1,128})", re.ASCII)
_POD_SLICE: Final = re.compile(r"(?:.*-)?kubepods(?:-burstable|-besteffort)?-pod([0-9A-Za-z_.]{1,128})\.slice", re.ASCII)


class DeviceNumber(NamedTuple):
    """The number of a character device: what a process holds, whatever the node is called where it was opened."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}:{self.minor}"


class SourceState(StrEnum):
    """Whether a source of evidence could be read."""

    READ = "read"
    #: It does not exist on this host. That is no evidence, and no doubt where the source is optional.
    NOT_PRESENT = "not-present"
    #: It exists and could not be read, or not whole: it might say anything.
    UNREADABLE = "unreadable"


class Finding(StrEnum):
    """What one source says about one vNPU, or one Pod."""

    #: Nobody was seen to use it, and everything was seen.
    CLEAN = "clean"
    #: Somebody was seen to use or to own it.
    HELD = "held"
    #: Something that could have been somebody's was not seen.
    UNKNOWN = "unknown"


def strongest(findings: Iterable[Finding]) -> Finding:
    """Held, if anything is; else unknown, if anything is; else clean."""
    found = set(findings)
    return next((finding for finding in (Finding.HELD, Finding.UNKNOWN) if finding in found), Finding.CLEAN)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a source is not known whole: a stable code, and what it is about."""

    code: str
    #: A path, a container id or a process id, as found.
    subject: str
    #: errno, 0 where no system call failed.
    error: int = 0


def clean_path(path: str) -> str:
    """Return a path of the host with one slash at its beginning and nothing that leads back."""
    return "/" + posixpath.normpath(path).lstrip("/")


def vnpu_of_node(path: str) -> int | None:
    """Return the id of the vNPU whose node a path names, be there such an id or not; None for any other path.

    `/dev/davinciN` is a whole NPU's where N is below the ids of vNPUs, and a vNPU's else.
    """
    found = _NODE.fullmatch(clean_path(path))
    if found is None:
        return None
    number = int(found[2])
    return number if found[1] or number >= FIRST_VDEV else None


def pod_uid_of_cgroup(name: str) -> str:
    """Return the Pod UID in the name of a control group; empty for any other group."""
    if found := _POD_SLICE.fullmatch(name):
        # systemd reads a dash as a level of its own, so the kubelet writes underscores.
        return found[1].replace("_", "-")
    found = _POD_DIRECTORY.fullmatch(name)
    return found[1] if found and not name.endswith((".slice", ".scope")) else ""
