"""Every observation that keeps vNPUs from being judged, or puts it off: what it is about, what it sets back, and what it says. Pure.

One table for the daemon and for its manual page. The reasons themselves, and their sentences, are of the rooms that find them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar

from devward.cluster import checkpoint, claims, hami, kubelet_facts, managers, node
from devward.cluster.answer import PROBLEM_TEXT
from devward.cluster.api_result import FAULT_TEXT, ApiFault
from devward.cluster.claims import ClaimReason
from devward.cluster.hami import CardRefusal
from devward.cluster.vantage import VantageDoubt

_Code = TypeVar("_Code", bound=StrEnum)


class Scope(StrEnum):
    """What an observation is about."""

    VNPU = "vnpu"
    CARD = "card"
    NODE = "node"


class Look(StrEnum):
    """What is found while the parts of a snapshot are joined."""

    NO_ANSWER = "no-answer"
    STATUS_ODD = "answer-status-odd"
    PART_MISSING = "part-missing"
    PART_OLD = "part-old"
    PART_AHEAD = "part-ahead"
    NOT_LISTED = "pods-not-listed"
    HOST_UNSEEN = "host-unseen"
    CLOCK_BACK = "clock-went-back"
    RESUMED = "resumed"
    MEMORY_LOST = "memory-lost"
    MEMORY_UNSAVED = "memory-unsaved"
    NPUS_IN_DOUBT = "npu-list-in-doubt"
    NPU_IN_DOUBT = "npu-in-doubt"
    NODE_ADOPTED = "node-adopted"
    KUBELET_RESTARTED = "kubelet-restarted"
    LOCKED = "hami-locked"


LOOK_TEXT: Final[Mapping[Look, str]] = MappingProxyType(
    {
        Look.NO_ANSWER: "The API server gave no answer; look at its address in the kubeconfig and at the way there.",
        Look.STATUS_ODD: "The API server answered with another HTTP status than 200; look at the credentials and at what answers there.",
        Look.PART_MISSING: "A part of the evidence is missing; look at devward's journal.",
        Look.PART_OLD: "A part of the evidence was taken too long before the others; the next look decides.",
        Look.PART_AHEAD: "A part of the evidence is of a later moment than the look itself; the next look decides.",
        Look.NOT_LISTED: "No vNPU is idle or pinned, so the API server was not asked for Pods; it is as soon as one is.",
        Look.HOST_UNSEEN: "The broker did not tell what this host shows of its Pods and vNPUs; look at devward-dcmi.service.",
        Look.CLOCK_BACK: "The monotonic clock is behind an earlier look of this boot, so that no time that was kept counts.",
        Look.RESUMED: "The host was suspended, and what was seen before may have changed meanwhile: all waiting begins again.",
        Look.MEMORY_UNSAVED: "Which Pods were seen with NPUs could not be saved; look at devward's state directory.",
        Look.MEMORY_LOST: "It is not known any more which Pods had NPUs; this ends when one that was forgotten would protect no more.",
        Look.NPUS_IN_DOUBT: "There may be NPUs that are not listed; look at devward-dcmi.service.",
        Look.NPU_IN_DOUBT: "The NPU is not vouched for; look at its health.",
        Look.NODE_ADOPTED: "The Node was made anew, and is taken for this host's: all waiting begins again.",
        Look.KUBELET_RESTARTED: "The kubelet was started again, or is another one: all waiting begins again.",
        Look.LOCKED: "HAMi is giving a device to a Pod, or left its lock behind; what is due waits until it is gone or old.",
    }
)

VANTAGE_TEXT: Final[Mapping[VantageDoubt, str]] = MappingProxyType(
    {
        VantageDoubt.NOT_THE_HOST: "devward does not see the host's processes; look at how its service is confined.",
        VantageDoubt.PROCESSES_HIDDEN: "/proc hides processes from devward; look at hidepid= and ProtectProc=.",
        VantageDoubt.NOT_PRIVILEGED: "devward may not read what other processes hold; look at its capabilities.",
        VantageDoubt.PROC_UNREADABLE: "/proc cannot be read; look at how devward's service is confined.",
    }
)

#: Claims by which a Pod has a card, or may have it, and those of which that cannot be told.
_PROTECTING: Final = (
    ClaimReason.RUNNING,
    ClaimReason.STARTING,
    ClaimReason.WAITING_UNSAID,
    ClaimReason.DELETING,
    ClaimReason.PENDING,
    ClaimReason.INCOMPLETE,
    ClaimReason.CONTAINER_ALIVE,
    ClaimReason.ENDED_BUT_RUNNING,
    ClaimReason.ENDED_BUT_ALIVE,
    ClaimReason.SOFT_SPLIT,
    ClaimReason.NAMED_IN_ENVIRONMENT,
    ClaimReason.NAMED_BY_NODE,
    ClaimReason.PRIVILEGED,
    ClaimReason.ONLY_IN_CHECKPOINT,
    ClaimReason.ONLY_REMEMBERED,
)
_UNTOLD: Final = (
    ClaimReason.STILL_UNSAID,
    ClaimReason.REASON_UNKNOWN,
    ClaimReason.STATE_UNKNOWN,
    ClaimReason.END_UNKNOWN,
    ClaimReason.CONTAINER_LOST,
    ClaimReason.PHASE_UNKNOWN,
    ClaimReason.NOTHING_SHOWN,
    ClaimReason.HOST_UNREADABLE,
)
#: Where the plugin's answer names the Pod's cards only those are in doubt, else every card.
_UNPLACED: Final = (ClaimReason.ANNOTATION_MALFORMED, ClaimReason.CARD_NOT_KNOWN)


@dataclass(frozen=True, slots=True)
class Observation:
    """One row of the table."""

    code: str
    scopes: tuple[Scope, ...]
    #: Whose vNPUs begin to wait anew: those of the scope, or none.
    resets: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one source."""

    title: str
    rows: tuple[Observation, ...]


def _rows(codes: Iterable[_Code], texts: Mapping[_Code, str], *scopes: Scope, resets: bool = True) -> tuple[Observation, ...]:
    return tuple(Observation(code.value, scopes, resets, texts[code]) for code in codes)


def _all(texts: Mapping[_Code, str], *scopes: Scope, resets: bool = True) -> tuple[Observation, ...]:
    return _rows(texts, texts, *scopes, resets=resets)


def api_code(fault: ApiFault) -> str:
    """Return the code of why the API server gave no answer."""
    return f"api-{fault.value}"


#: Rows that are not of the node, or set nothing back.
_APART: Final = (Look.NPU_IN_DOUBT, Look.LOCKED)

TABLE: Final[tuple[Group, ...]] = (
    Group(
        "The look as a whole",
        (
            *_rows([code for code in Look if code not in _APART], LOOK_TEXT, Scope.NODE),
            *_rows((Look.NPU_IN_DOUBT,), LOOK_TEXT, Scope.CARD),
            *_rows((Look.LOCKED,), LOOK_TEXT, Scope.NODE, resets=False),
        ),
    ),
    Group(
        "Asking the API server",
        tuple(Observation(api_code(fault), (Scope.NODE,), resets=True, sentence=text) for fault, text in FAULT_TEXT.items()),
    ),
    Group("The API server's answers", _all(PROBLEM_TEXT, Scope.NODE)),
    Group("The Node and its Lease", _all(node.REFUSAL_TEXT, Scope.NODE)),
    Group("The kubelet", (*_all(kubelet_facts.SENTENCES, Scope.NODE), *_all(VANTAGE_TEXT, Scope.NODE))),
    Group("The kubelet's checkpoint", _all(checkpoint.SENTENCES, Scope.NODE)),
    Group(
        "Who hands out the cards",
        (
            *_all(managers.REFUSAL_TEXT, Scope.NODE),
            *_rows([code for code in CardRefusal if code is not CardRefusal.TEMPLATE_UNKNOWN], hami.REFUSAL_TEXT, Scope.CARD),
            *_rows((CardRefusal.TEMPLATE_UNKNOWN,), hami.REFUSAL_TEXT, Scope.VNPU),
        ),
    ),
    Group(
        "Pods",
        (
            *_rows(_PROTECTING, claims.REASON_TEXT, Scope.CARD),
            *_rows(_UNTOLD, claims.REASON_TEXT, Scope.CARD),
            *_rows(_UNPLACED, claims.REASON_TEXT, Scope.CARD, Scope.NODE),
            *_rows((ClaimReason.CANNOT_START,), claims.REASON_TEXT, Scope.CARD, resets=False),
        ),
    ),
)

#: Every row by its code.
ROWS: Final[Mapping[str, Observation]] = MappingProxyType({row.code: row for group in TABLE for row in group.rows})


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A source that could protect and is not asked."""

    name: str
    why: str


LEFT_OUT: Final = (
    LeftOut(
        "The kubelet's PodResources",
        "They have no UIDs and not the plugin's answer, so they cannot tell which card was given, nor a Pod from a later one of its name."
        " Asking prunes the kubelet's own record of what it gave away, and takes from a rate that all clients of the node share. The"
        " checkpoint says all that they say.",
    ),
    LeftOut(
        "The runtime's CRI socket",
        "Whoever can ask there can also start and kill every container of the node. The bundles and control groups of living containers"
        " say which Pods live here without it, and those of docker and ctr too, which CRI does not show.",
    ),
    LeftOut(
        "The kubelet's Pods API",
        "It is new in Kubernetes 1.36, off by default there, and still changes its form. A Pod that the kubelet alone knows shows in its"
        " control group and its bundles.",
    ),
    LeftOut(
        "The folder of a Pod in the kubelet's root directory",
        "A Pod that has ended keeps it for as long as the API server has the Pod, so it is no sign of life.",
    ),
    LeftOut(
        "A watch of the API server",
        "It may lag behind and lose events without a word; it only says when to look.",
    ),
)


def sentence(code: StrEnum, detail: str = "") -> str:
    """Return what an observation says, with what was found in particular, which must be fit to be shown."""
    text = ROWS[code.value].sentence
    return f"{text[:-1]} ({detail})." if detail else text
