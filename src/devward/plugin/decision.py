"""What is told to the kubelet of a device, and what to answer when it wants one for a container. Pure.

A refusal is final for the Pod that is being admitted, and its controller makes another one at once: so it takes a check that was completed
and bad, or a check that cannot be had in time. A check that could not be completed is made again while there is time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from devward import names
from devward.devices.health import GOOD_CHECK_LASTS
from devward.model import Allocation, DeviceKind, Health, SpecState, SpecView
from devward.plugin.settings import Injection
from devward.plugin.slots import Offer
from devward.readiness import IN_ORDER, DeviceStanding
from devward.reasons import REASON_TEXT, Reason
from devward.text import printable

#: Seconds from the arrival of Allocate to its answer (R11), less what the answer itself needs.
BUDGET: Final = 1.95
#: Seconds between a check that could not be completed and the next.
PAUSE: Final = 0.1
#: What CheckAllocation says where no check was completed. A denial by a cgroup is believed only after a while.
INCONCLUSIVE: Final = frozenset(
    {
        Reason.PROBE_INCONCLUSIVE,
        Reason.DEVICE_CGROUP_DENIED,
        Reason.DEVICE_CHANGED,
        Reason.DEADLINE,
        Reason.NOT_CHECKED,
        Reason.STARTING,
    }
)
#: Of these, where another node may stand there now: what was good about the one before says nothing.
_ANOTHER_NODE: Final = frozenset({Reason.DEVICE_CHANGED, Reason.NOT_CHECKED})
_MAXIMUM_SENTENCE: Final = 500
#: What engines read (CDI specification, "Container annotations"); the name behind the slash is the asking plugin's.
_ANNOTATION: Final = "cdi.k8s.io/devward"


class Answer(StrEnum):
    """What to do about a container that wants a device."""

    GIVE = "give"
    REFUSE = "refuse"
    #: Make the check again: it was not completed, and there is time.
    AGAIN = "again"


@dataclass(frozen=True, slots=True)
class Vouched:
    """An answer of CheckAllocation, with the time at which the device's latest good check was completed.

    The time is that of the check and not of the answer, which may rest on a check of before: or else one good check could stand for ever.
    None: there is none, or a bad one came after it.
    """

    allocation: Allocation
    good_monotonic: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer, and why."""

    answer: Answer
    reason: Reason = Reason.OK
    text: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a container gets."""

    cdi_devices: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    #: Paths of device nodes, the same in the container, and the variables that the CDI file would have set.
    nodes: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


def decide(vouched: Vouched | None, *, good: float | None, now: float, until: float) -> Verdict:
    """Judge a check that ended, or that gave no answer (None).

    `good` is the good_monotonic of the latest check by which the device could be given, None where it could not be given since; times in
    monotonic seconds, `until` being the end of what the answer may take.
    """
    if vouched is None:
        return Verdict(Answer.REFUSE, Reason.DEADLINE, REASON_TEXT[Reason.DEADLINE])
    allocation = vouched.allocation
    if allocation.allowed and vouched.good_monotonic is not None:
        return Verdict(Answer.GIVE)
    if allocation.allowed:
        # What was checked is there no more: another node was met while the rest of the check was made.
        allocation = Allocation(allowed=False, reason=Reason.DEVICE_CHANGED, text=REASON_TEXT[Reason.DEVICE_CHANGED])
    text = printable(allocation.text or REASON_TEXT[allocation.reason], _MAXIMUM_SENTENCE)
    if allocation.reason not in INCONCLUSIVE:
        return Verdict(Answer.REFUSE, allocation.reason, text)
    if allocation.reason not in _ANOTHER_NODE and good is not None and now - good < GOOD_CHECK_LASTS:
        return Verdict(Answer.GIVE)
    if now + PAUSE < until:
        return Verdict(Answer.AGAIN, allocation.reason, text)
    return Verdict(Answer.REFUSE, allocation.reason, text)


def good_after(vouched: Vouched | None, good: float | None) -> float | None:
    """Return what `good` is after a check: one that was completed decides, one that was not leaves it, for the node that it was good of.

    The look that is part of an incomplete check may have met another node: then the device has no good check any more.
    """
    if vouched is None:
        return good
    if vouched.allocation.allowed:
        return vouched.good_monotonic
    is_left = vouched.allocation.reason in INCONCLUSIVE - _ANOTHER_NODE and vouched.good_monotonic is not None
    return good if is_left else None


def refusal(kind: DeviceKind, verdict: Verdict) -> str:
    """Return what the kubelet is told, which an administrator reads in the Pod's status."""
    return f"devward refuses {names.DEVICE_DIRECTORY}/{kind}: {verdict.text} [{verdict.reason}]"


def grant(kinds: Sequence[DeviceKind], injection: Injection) -> Grant:
    """Return what makes an engine put these devices into a container, each once."""
    wanted = tuple(dict.fromkeys(kinds))
    qualified = tuple(f"{names.HYPERVISOR_CDI_KIND}={kind}" for kind in wanted)
    match injection:
        case Injection.CDI:
            return Grant(cdi_devices=qualified)
        case Injection.ANNOTATIONS:
            return Grant(annotations=((_ANNOTATION, ",".join(qualified)),))
        case Injection.DEVICE_SPEC:
            nodes = tuple(f"{names.DEVICE_DIRECTORY}/{kind}" for kind in wanted)
            # Of several devices the first is the one that the container is to use.
            return Grant(
                nodes=nodes, variables=(("HYPERLIGHT_HYPERVISOR", wanted[0]), ("HYPERLIGHT_DEVICE_PATH", nodes[0])) if nodes else ()
            )


def health(standing: DeviceStanding, spec: SpecView, *, is_told: bool) -> bool | None:
    """Tell whether the kubelet may give a device away: healthy, and in a true CDI file that engines use. None: not known now (R15).

    `is_told`: the kubelet was told of the device already. Health that was known becomes unknown only where a completed look met another
    node, and the one that was told of is gone (R18).
    """
    if standing.view.health is Health.UNKNOWN:
        return False if is_told else None
    if standing.view.health is not Health.HEALTHY:
        return False
    if spec.state is SpecState.UNKNOWN:
        # Files that are not looked at by an administrator's wish cannot be vouched for.
        return False if spec.reason is Reason.CDI_PAUSED else None
    return spec.state in IN_ORDER and standing.effective and f"{spec.cdi_kind}={standing.view.kind}" in spec.devices


def advance(before: Sequence[Offer], now: Sequence[tuple[DeviceKind, bool | None]]) -> tuple[Offer, ...]:
    """Return what is offered now: what is not known stays as it was told, and what was never known is not offered."""
    told = {offer.kind: offer.healthy for offer in before}
    known = ((kind, told.get(kind) if healthy is None else healthy) for kind, healthy in now)
    return tuple(Offer(kind, healthy) for kind, healthy in known if healthy is not None)
