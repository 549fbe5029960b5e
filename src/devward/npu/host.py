"""What the host itself shows of NPUs, without the vendor's library: device nodes, /etc/vnpu.cfg and device events. Pure: values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from devward.npu.vnpu_cfg import Records


@dataclass(frozen=True, slots=True)
class HostNode:
    """A device node in /dev that has the name of an NPU's, by lstat(2); it is never opened, which the driver would take for use."""

    #: Without the directory, such as `vdavinci100`.
    name: str
    inode: int
    ctime_ns: int
    is_character_device: bool
    #: Something of another file system lies over it.
    covered: bool
    major: int = 0
    minor: int = 0
    #: What sysfs calls the device of that number; None: no driver has the number.
    kernel_name: str | None = None

    @property
    def number(self) -> str:
        """The device number as people write it; empty where it is no device."""
        return f"{self.major}:{self.minor}" if self.is_character_device else ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """One look at the host. `nodes` is None where /dev or sysfs could not be read, and `problem` says why."""

    nodes: Mapping[str, HostNode] | None
    records: Records
    problem: str = ""
    #: How often a node of that name came or went, as device events told; a name that is not there has not since the daemon began.
    sequences: Mapping[str, int] = field(default_factory=dict)
    #: How often device events were lost: each time any node may be another one.
    losses: int = 0
