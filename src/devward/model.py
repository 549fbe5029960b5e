"""Facts and states that several rooms share: frozen dataclasses and string enums. Pure: no I/O and no clock.

The string values are part of the D-Bus contract (dbus/*.xml lists each set) and never change their meaning.
Fields that end in `_usec` are microseconds of CLOCK_REALTIME since 1970, 0 for none; `_monotonic` are seconds of CLOCK_MONOTONIC.
"""

from dataclasses import dataclass
from enum import StrEnum

from devward.reasons import Reason

#: The longest pause of repairs, or of reclaiming, that can be asked for, in seconds.
MAXIMUM_PAUSE_SECONDS = 604_800
#: The most pins that are kept, and the longest reason of one, in characters. A host has 64 NPUs and 1024 vNPUs at the most.
MAXIMUM_PINS = 2048
MAXIMUM_PIN_REASON = 200


class DeviceKind(StrEnum):
    """The hypervisor device nodes that devward knows; the value is the misc device's name."""

    KVM = "kvm"
    MSHV = "mshv"


class Identity(StrEnum):
    """Whether a node is the device that it claims to be."""

    UNKNOWN = "unknown"
    VALID = "valid"
    INVALID = "invalid"
    MISSING = "missing"


class Health(StrEnum):
    """Whether a device can be used now, by its last completed check."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    MISSING = "missing"


class SpecState(StrEnum):
    """The state of an owned CDI file."""

    UNKNOWN = "unknown"
    TRUE = "true"
    EMPTY = "empty"
    DRIFTED = "drifted"
    BLOCKED = "blocked"
    FOREIGN = "foreign"
    CONFLICT = "conflict"
    SHADOWED = "shadowed"
    CONTESTED = "contested"


class RepairCause(StrEnum):
    """Why an owned CDI file was written or removed."""

    MISSING = "missing"
    MALFORMED = "malformed"
    STALE = "stale"
    MODE = "mode"
    OWNER = "owner"
    LABEL = "label"
    HARD_LINK = "hard-link"
    TAKE_OVER = "take-over"
    ADOPTED = "adopted"
    WITHDRAWN = "withdrawn"
    PUBLISHED = "published"


#: Causes that are devward's own wish and no sign that anything was wrong: such a write or removal is no repair.
OWN_WISHES = frozenset({RepairCause.WITHDRAWN, RepairCause.PUBLISHED})


class CdiMode(StrEnum):
    """What devward may do to its CDI files."""

    REPAIR = "repair"
    OBSERVE = "observe"
    OFF = "off"


class ReclaimMode(StrEnum):
    """What devward may do with orphans: vNPUs that nobody owns."""

    ENFORCE = "enforce"
    #: Everything but the destruction.
    OBSERVE = "observe"
    OFF = "off"


class Manage(StrEnum):
    """Whose cards are reclaimed on."""

    #: Those that HAMi hands out, and of their vNPUs those with a template of HAMi's.
    HAMI = "hami"
    #: All. Every other evidence is wanted all the same.
    ALL = "all"


class ReclaimState(StrEnum):
    """What reclaiming is doing. The first of these that holds is shown."""

    OFF = "off"
    PAUSED = "paused"
    OBSERVING = "observing"
    MASS_RECLAIM = "mass-reclaim"
    BLOCKED = "blocked"
    ENFORCING = "enforcing"


class NpuDevices(StrEnum):
    """Which NPUs are watched."""

    AUTO = "auto"
    OFF = "off"


class ClusterRead(StrEnum):
    """Whether the kubelet and the API server are asked who owns the NPUs."""

    AUTO = "auto"
    OFF = "off"


class WithdrawPolicy(StrEnum):
    """When a device leaves its CDI file."""

    IDENTITY = "identity"
    USABILITY = "usability"
    NEVER = "never"


class ConfigState(StrEnum):
    """Whether the configuration on disk is the one in force."""

    GOOD = "good"
    REFUSED = "refused"


class Trigger(StrEnum):
    """What made devward look."""

    STARTUP = "startup"
    UDEV = "udev"
    INOTIFY = "inotify"
    MOUNTS = "mounts"
    TIMER = "timer"
    DBUS = "dbus"
    SIGNAL = "signal"
    #: The kubelet, which asks the device plugin for a container's devices.
    KUBELET = "kubelet"


class Outcome(StrEnum):
    """How an audited event stands or ended (DEVWARD_OUTCOME)."""

    INTENT = "intent"
    SUCCESS = "success"
    FAILURE = "failure"
    DENIED = "denied"
    NOOP = "noop"
    DRY_RUN = "dry-run"


@dataclass(frozen=True, slots=True)
class DeviceView:
    """What is published of one hypervisor device."""

    kind: DeviceKind
    node: str
    #: `major:minor`, or empty where there is no character device.
    number: str
    identity: Identity
    identity_since_usec: int
    health: Health
    health_since_usec: int
    reason: Reason
    text: str
    last_check_usec: int
    check_duration_usec: int


@dataclass(frozen=True, slots=True)
class SpecView:
    """What is published of one owned CDI file."""

    file: str
    cdi_kind: str
    #: Qualified names, such as `hyperlight.dev/hypervisor=kvm`, that the file holds now.
    devices: tuple[str, ...]
    state: SpecState
    state_since_usec: int
    reason: Reason
    text: str
    repair_count: int
    last_repair_usec: int
    last_repair_cause: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that an administrator should know and devward does not mend by itself."""

    code: Reason
    #: The file, directory, device or key that it is about.
    subject: str
    text: str
    since_usec: int = 0


@dataclass(frozen=True, slots=True)
class Pin:
    """What somebody wants kept, for ever: a vNPU, or all vNPUs of an NPU."""

    #: DIE or DIE/VDEV/TEMPLATE, as devward.npu.pins prints it.
    target: str
    reason: str
    caller_uid: int
    since_usec: int
    #: What told the pinned vNPU from others when it was pinned; empty for an NPU, and where that could not be learned then.
    identity: str = ""


@dataclass(frozen=True, slots=True)
class ActionResult:
    """One line of an action's answer: what happened to one target."""

    target: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asked for an action, as the message bus vouches for it, frozen when the message arrived."""

    #: The unique bus name, such as `:1.42`.
    sender: str
    uid: int
    pid: int


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """One manual action: its id stands in the answer, in RequestFinished and in every journal record about it."""

    request_id: str
    #: None for an action that the daemon starts itself.
    caller: Caller | None
    trigger: Trigger


@dataclass(frozen=True, slots=True)
class Allocation:
    """The answer to CheckAllocation."""

    allowed: bool
    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class ManagerView:
    """What is published of the daemon itself."""

    version: str
    node_name: str
    ready: bool
    not_ready_reasons: tuple[str, ...]
    #: A check or a settling time is in progress: clients that want quiet wait for False.
    checking: bool
    cdi_mode: CdiMode
    cdi_paused_until_usec: int
    audit_dropped: int
    config_state: ConfigState
    #: Why nothing is destroyed: what is unknown of the whole node, or stops it; a code, and the UID of the Pod where it is one's.
    blocked_reasons: tuple[str, ...] = ()
    blocked_since_usec: int = 0
    #: When who owns what was looked at last, and when it is to be looked at again, events aside.
    last_cycle_usec: int = 0
    next_cycle_usec: int = 0
    #: Of the certificate with which the API server is asked.
    certificate_expires_usec: int = 0
    #: Nothing is said to be at work before it is.
    reclaim_mode: ReclaimMode = ReclaimMode.OFF
    reclaim_state: ReclaimState = ReclaimState.OFF
    reclaim_paused_until_usec: int = 0
