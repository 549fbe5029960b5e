"""What the broker knows of NPUs and vNPUs, and why it refuses: the values of its protocol. Pure.

None means that the library did not say, or said what cannot be: a `Problem` tells which. Nothing here is judged yet, and a vNPU whose
use is not known counts as in use for whoever judges it.
"""

from dataclasses import dataclass
from enum import StrEnum

from devward.npu.codes import DcmiCode


class Mode(StrEnum):
    """For whom the host makes vNPUs."""

    DOCKER = "docker"
    VM = "vm"
    UNKNOWN = "unknown"


class Aspect(StrEnum):
    """What a problem is about."""

    VERSION = "version"
    #: The list of cards as a whole.
    CARDS = "cards"
    #: A card that came or went meanwhile, or whose number of chips is not known.
    CARD = "card"
    TYPE = "type"
    LOGIC = "logic"
    PHY = "phy"
    CHIP_INFO = "chip-info"
    DIE = "die"
    HEALTH = "health"
    VNPUS = "vnpus"
    VFID = "vfid"
    TEMPLATE = "template"
    USE = "use"
    MODE = "mode"
    RECOVER = "recover"
    TOTAL = "total"
    FREE = "free"
    PROCESSES = "processes"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that could not be learned. `code` is the library's; None: the call succeeded and its answer cannot be."""

    aspect: Aspect
    code: int | None
    #: The vNPU, for those aspects that are of one.
    vdev: int | None = None
    #: The card, where the problem is a whole card's.
    card: int | None = None


@dataclass(frozen=True, slots=True)
class Vnpu:
    """One vNPU as the library lists it. The id is as listed, even where it is outside the chip's window."""

    vdev: int
    #: As given; where it is not given, as the id says.
    vfid: int | None
    template: str | None
    in_use: bool | None
    #: The driver's mark of the container that uses it, 48 bits: 0 for none yet, all ones for one that it could not name.
    container: int | None = None
    cores: float | None = None
    memory_mb: int | None = None
    vgroup: int | None = None


@dataclass(frozen=True, slots=True)
class Chip:
    """One NPU, addressed by card and device. `vnpus` is None where they could not be listed, or are not supported."""

    card: int
    device: int
    logic: int | None
    phy: int | None
    die: str | None
    #: 0 is healthy.
    health: int | None
    chip_type: str | None
    chip_name: str | None
    chip_version: str | None
    npu_name: str | None
    cores: int | None
    vnpus: tuple[Vnpu, ...] | None
    problems: tuple[Problem, ...] = ()

    @property
    def has_no_vnpus(self) -> bool:
        """Whether the library says that this chip cannot be split."""
        return Problem(Aspect.VNPUS, DcmiCode.NOT_SUPPORTED) in self.problems


@dataclass(frozen=True, slots=True)
class Inventory:
    """Every NPU of the host."""

    boot_id: str
    library: str
    dcmi_version: str | None
    mode: Mode
    #: Whether the driver makes the vNPUs of /etc/vnpu.cfg again at boot.
    recover: bool | None
    chips: tuple[Chip, ...]
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a chip has, or has left, for vNPUs."""

    cores: float | None
    memory_mb: int | None
    aicpus: int | None


@dataclass(frozen=True, slots=True)
class Process:
    """A process that computes on a chip."""

    pid: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """One chip, with what a list has no need of."""

    boot_id: str
    mode: Mode
    chip: Chip
    total: Capacity | None
    free: Capacity | None
    processes: tuple[Process, ...] | None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A device node, /dev/vdavinciN, by what does not outlive it."""

    inode: int
    ctime_ns: int
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class Expected:
    """The vNPU that is to be destroyed, whole: whatever differs from it is another one."""

    boot_id: str
    card: int
    device: int
    phy: int
    die: str
    vdev: int
    vfid: int
    template: str
    node: Node


class Outcome(StrEnum):
    """What became of a vNPU, by its presence afterwards and not by the library's code."""

    DESTROYED = "destroyed"
    STILL_PRESENT = "still-present"
    UNKNOWN = "unknown"


class Refusal(StrEnum):
    """Why the broker did not do what was asked."""

    # --- the request
    MALFORMED = "malformed"
    VERSION = "version"
    BUSY = "busy"
    STOPPING = "stopping"
    # --- this process
    NOT_ROOT = "not-root"
    MOUNT_NAMESPACE = "mount-namespace"
    CAPABILITIES = "capabilities"
    CONTAINER = "container"
    ENVIRONMENT_UNKNOWN = "environment-unknown"
    # --- the library
    LIBRARY_MISSING = "library-missing"
    LIBRARY_UNSAFE = "library-unsafe"
    LIBRARY_UNUSABLE = "library-unusable"
    #: It has only the calls for the Ascend 950 and later, whose chips have no vNPUs.
    LIBRARY_GENERATION = "library-generation"
    LIBRARY_CHANGED = "library-changed"
    DCMI_FAILED = "dcmi-failed"
    NO_SUCH_CHIP = "no-such-chip"
    HUNG = "hung"
    INTERNAL = "internal"
    #: An answer that is longer than one may be.
    TOO_LONG = "too-long"
    # --- destroy
    DESTROY_RUNNING = "destroy-running"
    LOCK_UNUSABLE = "lock-unusable"
    EXPIRED = "expired"
    CALLER_GONE = "caller-gone"
    WILDCARD = "wildcard"
    OUTSIDE_WINDOW = "outside-window"
    BOOT_DIFFERS = "boot-differs"
    CHIP_UNKNOWN = "chip-unknown"
    CHIP_UNHEALTHY = "chip-unhealthy"
    PHY_DIFFERS = "phy-differs"
    DIE_DIFFERS = "die-differs"
    VM_MODE = "vm-mode"
    MODE_UNKNOWN = "mode-unknown"
    VNPU_ABSENT = "vnpu-absent"
    VFID_DIFFERS = "vfid-differs"
    TEMPLATE_DIFFERS = "template-differs"
    NODE_MISSING = "node-missing"
    NODE_UNREADABLE = "node-unreadable"
    NODE_DIFFERS = "node-differs"
    IN_USE = "in-use"
    USE_UNKNOWN = "use-unknown"
    SCAN_IN_USE = "scan-in-use"
    SCAN_UNKNOWN = "scan-unknown"


class Refused(Exception):
    """What was asked is not done; the text says why, in one sentence."""

    def __init__(self, reason: Refusal, text: str, code: int | None = None) -> None:
        """Keep the reason, and the library's code where one is behind it."""
        super().__init__(text)
        self.reason = reason
        self.code = code
