"""Whether anything may be destroyed at all, whatever the evidence: mode, pause, switches, and what stopped it by itself. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from devward import names
from devward.cluster.observations import Scope
from devward.cluster.views import Unknown
from devward.model import ReclaimMode, ReclaimState


class Blocked(StrEnum):
    """Why nothing may be destroyed. What is unknown of the node adds its own reasons."""

    MODE_OFF = "mode-off"
    PAUSED = "paused"
    MODE_OBSERVE = "mode-observe"
    MASS_RECLAIM = "mass-reclaim"
    KILL_SWITCH = "kill-switch"
    KILL_SWITCH_UNREADABLE = "kill-switch-unreadable"
    NO_RECLAIM = "no-reclaim"
    NO_KUBELET = "no-kubelet"
    NOT_PERMITTED = "destroying-not-permitted"
    JOURNAL = "journal-refuses"
    NOT_SAVED = "state-not-saved"
    STATE_DAMAGED = "state-damaged"
    STOPPING = "stopping"


BLOCKED_TEXT: Final[Mapping[Blocked, str]] = MappingProxyType(
    {
        Blocked.MODE_OFF: "Reclaiming is off; devwardctl mode reclaim enforce turns it on.",
        Blocked.PAUSED: "Reclaiming is paused; devwardctl resume reclaim ends that.",
        Blocked.MODE_OBSERVE: "Reclaiming only observes; devwardctl mode reclaim enforce lets it destroy what it shows as eligible.",
        Blocked.MASS_RECLAIM: "vNPUs on too many cards became eligible at a time; look at why, and release the breaker.",
        Blocked.KILL_SWITCH: f"The kill switch is set; remove the file that reclaim.kill_switch names, by default {names.KILL_SWITCH}.",
        Blocked.KILL_SWITCH_UNREADABLE: (
            f"Whether the kill switch is set cannot be told; look at the file of reclaim.kill_switch, by default {names.KILL_SWITCH}."
        ),
        Blocked.NO_RECLAIM: "devwardd was started with --no-reclaim; see systemctl cat devward.service.",
        Blocked.NO_KUBELET: (
            "No kubelet was found on this host, or which process it is cannot be told, and without it nobody can tell who owns a vNPU;"
            " a further reason says which of these, and why."
        ),
        Blocked.NOT_PERMITTED: (
            "The vendor's library forbids devward to destroy vNPUs (-8002). Mend devward-dcmi.service; then systemctl daemon-reload,"
            " systemctl restart devward-dcmi.service, devwardctl reload."
        ),
        Blocked.JOURNAL: (
            "The journal did not take the record of what was about to be done; see systemctl status systemd-journald.service."
        ),
        Blocked.NOT_SAVED: f"That a destruction is tried could not be saved; look at the state directory ({names.STATE_DIRECTORY}).",
        Blocked.STATE_DAMAGED: (
            "What devward had saved could not be read, so that a pin, a pause or what the breaker holds may be missing. Look at devwardctl"
            " pins and set what is missing; then devwardctl mode reclaim enforce goes on with what is there."
        ),
        Blocked.STOPPING: "devward is being stopped.",
    }
)


class Switch(StrEnum):
    """What was found at the path of the kill switch."""

    ABSENT = "absent"
    #: Something is there, whatever it is.
    PRESENT = "present"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Controls:
    """Everything that can stop reclaiming, as it is now. Without anything said, it is stopped."""

    mode: ReclaimMode = ReclaimMode.OFF
    is_paused: bool = False
    kill_switch: Switch = Switch.UNREADABLE
    #: devwardd --no-reclaim.
    no_reclaim: bool = False
    #: One kubelet, and no other, is known to run on this host. Where anything of that is in doubt, the snapshot says what.
    has_kubelet: bool = False
    is_breaker_latched: bool = False
    #: What latched it, fit to be shown; empty: nothing more is known of that.
    breaker_text: str = ""
    #: The library said that this process may not destroy (-8002). The broker's surroundings are at fault, which nothing but an
    #: administrator mends, and no broker that runs already gets others; so only a reload, or a start, of devwardd has it tried again.
    is_forbidden: bool = False
    #: The last record of an intent was not taken.
    is_journal_refusing: bool = False
    #: The last try could not be saved.
    is_unsaved: bool = False
    #: What an earlier run left cannot be read, or the pins may not be all that there are.
    is_state_damaged: bool = False
    is_stopping: bool = False


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether anything may be destroyed, and else every reason why not."""

    state: ReclaimState
    #: Codes, the weightiest first.
    reasons: tuple[str, ...] = ()
    #: A sentence for each, fit to be shown.
    sentences: tuple[str, ...] = ()

    @property
    def may_destroy(self) -> bool:
        """Whether nothing stands in the way."""
        return not self.reasons


def permission(controls: Controls, unknowns: Iterable[Unknown] = ()) -> Permission:
    """Return whether anything may be destroyed; `unknowns` are those of the latest snapshot."""
    blocks = [blocked for blocked in Blocked if _holds(blocked, controls)]
    told = {blocked.value: BLOCKED_TEXT[blocked] for blocked in blocks}
    if controls.breaker_text and Blocked.MASS_RECLAIM in blocks:
        told[Blocked.MASS_RECLAIM.value] = controls.breaker_text
    for unknown in unknowns:
        if unknown.scope is Scope.NODE:
            told.setdefault(unknown.reason, unknown.sentence)
    return Permission(_state(controls, is_blocked=bool(told)), tuple(told), tuple(told.values()))


def _holds(blocked: Blocked, controls: Controls) -> bool:
    return {
        Blocked.MODE_OFF: controls.mode is ReclaimMode.OFF,
        Blocked.PAUSED: controls.is_paused,
        Blocked.MODE_OBSERVE: controls.mode is ReclaimMode.OBSERVE,
        Blocked.MASS_RECLAIM: controls.is_breaker_latched,
        Blocked.KILL_SWITCH: controls.kill_switch is Switch.PRESENT,
        Blocked.KILL_SWITCH_UNREADABLE: controls.kill_switch is Switch.UNREADABLE,
        Blocked.NO_RECLAIM: controls.no_reclaim,
        Blocked.NO_KUBELET: not controls.has_kubelet,
        Blocked.NOT_PERMITTED: controls.is_forbidden,
        Blocked.JOURNAL: controls.is_journal_refusing,
        Blocked.NOT_SAVED: controls.is_unsaved,
        Blocked.STATE_DAMAGED: controls.is_state_damaged,
        Blocked.STOPPING: controls.is_stopping,
    }[blocked]


def _state(controls: Controls, *, is_blocked: bool) -> ReclaimState:
    if controls.mode is ReclaimMode.OFF:
        return ReclaimState.OFF
    if controls.is_paused:
        return ReclaimState.PAUSED
    if controls.mode is ReclaimMode.OBSERVE:
        return ReclaimState.OBSERVING
    if controls.is_breaker_latched:
        return ReclaimState.MASS_RECLAIM
    return ReclaimState.BLOCKED if is_blocked else ReclaimState.ENFORCING


def retried(controls: Controls) -> Controls:
    """Return what stops reclaiming but for what only another record can tell to be over."""
    return replace(controls, is_journal_refusing=False)
