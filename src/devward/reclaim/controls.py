"""Whether anything may be destroyed at all. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class ReclaimMode(StrEnum):
    """What devward may do with orphans."""

    ENFORCE = "enforce"
    OBSERVE = "observe"
    OFF = "off"


class ReclaimState(StrEnum):
    """What reclaiming is doing."""

    ENFORCING = "enforcing"
    OBSERVING = "observing"
    PAUSED = "paused"
    MASS_RECLAIM = "mass-reclaim"
    BLOCKED = "blocked"
    OFF = "off"


class Blocked(StrEnum):
    """Why nothing may be destroyed."""

    MODE_OFF = "mode-off"
    MODE_OBSERVE = "mode-observe"
    PAUSED = "paused"
    KILL_SWITCH = "kill-switch"
    KILL_SWITCH_UNREADABLE = "kill-switch-unreadable"
    NO_RECLAIM = "no-reclaim"
    NO_KUBELET = "no-kubelet"
    MASS_RECLAIM = "mass-reclaim"
    NOT_PERMITTED = "destroying-not-permitted"
    JOURNAL = "journal-refuses"
    STATE_DAMAGED = "state-damaged"
    PINS_UNREADABLE = "pins-unreadable"
    STOPPING = "stopping"


class Switch(StrEnum):
    """What was found at the path of the kill switch."""

    ABSENT = "absent"
    PRESENT = "present"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Controls:
    """Everything that can stop reclaiming, as it is now."""

    mode: ReclaimMode = ReclaimMode.ENFORCE
    is_paused: bool = False
    kill_switch: Switch = Switch.ABSENT
    #: devwardd --no-reclaim.
    no_reclaim: bool = False
    #: Exactly one kubelet runs on this host; None: that cannot be told.
    has_kubelet: bool | None = None
    is_breaker_latched: bool = False
    #: The library said that this process may not destroy (-8002).
    is_forbidden: bool = False
    #: The last record of an intent was not taken.
    is_journal_refusing: bool = False
    is_state_damaged: bool = False
    are_pins_unreadable: bool = False
    is_stopping: bool = False


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether anything may be destroyed, and else every reason why not."""

    state: ReclaimState
    reasons: tuple[Blocked, ...] = ()

    @property
    def may_destroy(self) -> bool:
        """Whether nothing stands in the way."""
        return not self.reasons


def permission(controls: Controls) -> Permission:
    """Return whether anything may be destroyed."""
    raise NotImplementedError
