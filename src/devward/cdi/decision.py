"""What to do about an owned CDI file: which devices belong in it, and the step from what was found to what should be. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from devward.cdi import spec
from devward.model import Health, Identity, RepairCause, SpecState, WithdrawPolicy
from devward.reasons import Reason
from devward.text import quoted

#: Bytes of a file that are judged however small the document is that it should hold: it bounds the time that this takes.
JUDGED_SIZE: Final = 64 << 10


class Step(StrEnum):
    """The act that a plan asks for."""

    NONE = "none"
    WRITE = "write"
    REMOVE = "remove"


class Entry(StrEnum):
    """What stands at the owned path, as far as the decision cares."""

    MISSING = "missing"
    REGULAR = "regular"
    OTHER = "other"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What was found at an owned path; `data` is None where a regular file could not be read."""

    entry: Entry
    data: bytes | None = None
    #: Names of what is wrong besides the content, each a cause of its own: mode, owner, label, hard-link.
    metadata: tuple[tuple[RepairCause, str], ...] = ()
    reason: Reason = Reason.OK
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The step to take and, for when none is taken or none succeeds, the state to publish."""

    step: Step
    state: SpecState
    reason: Reason = Reason.OK
    detail: str = ""
    cause: RepairCause | None = None
    #: What differed, for the audit trail.
    differences: tuple[str, ...] = ()
    #: The file is not known to be ours: keep a copy of it before it goes.
    backup: bool = False


def decide(
    found: FileFacts,
    desired: bytes | None,
    file_name: str,
    own_kind: str,
    *,
    known: bool,
    adopt: bool,
    withdrawing: bool,
    undecided: bool = False,
) -> Plan:
    """Plan the step from `found` to `desired` (None: no file).

    `known`: devward has written this path before, so every regular file there is its own. `adopt`: an administrator said to take it over.
    `withdrawing`: devices are watched and none may be published, so an unknown file of our kind must go too.
    `undecided`: of some device it is not known yet whether it may be published, so the file must not go for want of it.
    """
    if found.entry is Entry.UNREACHABLE:
        return Plan(Step.NONE, SpecState.BLOCKED, found.reason, found.detail)
    if found.entry is Entry.OTHER:
        return Plan(Step.NONE, SpecState.BLOCKED, Reason.CDI_NOT_REGULAR, found.detail)
    if found.entry is Entry.MISSING:
        if desired is None:
            return Plan(Step.NONE, SpecState.EMPTY)
        return Plan(Step.WRITE, SpecState.DRIFTED, Reason.CDI_MISSING, cause=RepairCause.MISSING)
    if not known and not adopt:
        if found.data is None:
            return Plan(Step.NONE, SpecState.BLOCKED, found.reason, found.detail)
        kind = spec.kind_of(found.data, file_name)
        if kind is not None and kind != own_kind:
            return Plan(Step.NONE, SpecState.FOREIGN, Reason.CDI_FOREIGN, f"its kind is {quoted(kind)}")
    if desired is None and undecided:
        return Plan(Step.NONE, SpecState.UNKNOWN, Reason.NOT_CHECKED)
    if desired is None:
        if not known and not adopt and not withdrawing:
            return Plan(Step.NONE, SpecState.EMPTY, Reason.OK, "a file of this kind that devward did not write is left alone")
        return Plan(Step.REMOVE, SpecState.DRIFTED, Reason.CDI_STALE, cause=RepairCause.WITHDRAWN, backup=not known)
    plan = _content(found, desired)
    if plan.step is Step.NONE or known:
        return plan
    return replace(plan, cause=RepairCause.ADOPTED if adopt else RepairCause.TAKE_OVER, backup=True)


def _content(found: FileFacts, desired: bytes) -> Plan:
    if found.data == desired and not found.metadata:
        return Plan(Step.NONE, SpecState.TRUE)
    limit = max(JUDGED_SIZE, 2 * len(desired))
    if found.data is None or len(found.data) > limit:
        detail = found.detail if found.data is None else f"it has more than {limit} bytes"
        return Plan(Step.WRITE, SpecState.DRIFTED, Reason.CDI_MALFORMED, detail, RepairCause.MALFORMED)
    try:
        differences = spec.differences(found.data, desired)
    except spec.SpecError as error:
        return Plan(Step.WRITE, SpecState.DRIFTED, Reason.CDI_MALFORMED, str(error), RepairCause.MALFORMED, (str(error),))
    if differences:
        return Plan(Step.WRITE, SpecState.DRIFTED, Reason.CDI_STALE, differences[0], RepairCause.STALE, differences)
    if found.metadata:
        cause, text = found.metadata[0]
        return Plan(Step.WRITE, SpecState.DRIFTED, Reason.CDI_METADATA, text, cause, tuple(text for _, text in found.metadata))
    return Plan(Step.NONE, SpecState.TRUE)


def attributed(plan: Plan, *, as_left: bool) -> Plan:
    """Name devward's own wish as the cause of a plan for a file that is as devward left it: nobody else has changed it."""
    if as_left and plan.cause in (RepairCause.MISSING, RepairCause.STALE):
        return replace(plan, cause=RepairCause.PUBLISHED)
    return plan


# --- which devices belong in the file ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Candidate:
    """One device, as far as its place in a CDI file depends on it."""

    #: The qualified name, such as `hyperlight.dev/hypervisor=kvm`.
    device: str
    node: str
    identity: Identity
    health: Health
    #: Why identity and health are as they are.
    reason: Reason = Reason.OK


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A device that does not belong in the CDI file now, and why."""

    #: The qualified name.
    device: str
    node: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Membership:
    """The devices in the document, by qualified name, and since when (monotonic seconds) each of them has had a reason to leave it."""

    published: frozenset[str] = frozenset()
    leaving: tuple[tuple[str, float], ...] = ()


def membership(
    before: Membership,
    devices: Sequence[Candidate],
    policy: WithdrawPolicy,
    settle_time: float,
    now: float,
    *,
    complete: bool = True,
    strict: bool = False,
) -> Membership:
    """Add each device that is fit at once; drop one whose reason to leave has lasted `settle_time` seconds.

    Where the devices are not `complete`, a member that is not among them may still be there, and stays. `strict`: whatever the policy,
    a member leaves at once when it is established that it must, and what is not known settles and then leaves, too.
    """
    since: Mapping[str, float] = dict(before.leaving)
    published: set[str] = set()
    leaving: list[tuple[str, float]] = []
    by_name = {device.device: device for device in devices}
    for name in sorted(before.published | by_name.keys()):
        device = by_name.get(name)
        if device is not None and _fit(device, policy):
            published.add(name)
        elif name not in before.published or (strict and (device is None or _unfit(device, policy))):
            continue
        elif not strict and (policy is WithdrawPolicy.NEVER or not (_unfit(device, policy) if device is not None else complete)):
            published.add(name)
        else:
            began = since.get(name, now)
            if now < began + settle_time:
                published.add(name)
                leaving.append((name, began))
    return Membership(frozenset(published), tuple(leaving))


def undecided(state: Membership, devices: Sequence[Candidate], policy: WithdrawPolicy) -> bool:
    """Tell whether some device outside the document may yet turn out to be fit for it."""
    return any(device.device not in state.published and not _unfit(device, policy) for device in devices)


def next_withdrawal(state: Membership, settle_time: float) -> float | None:
    """Return when, in monotonic seconds, the next device will have settled out of the document, None if none is leaving."""
    return min((began + settle_time for _, began in state.leaving), default=None)


def _fit(device: Candidate, policy: WithdrawPolicy) -> bool:
    if policy is WithdrawPolicy.USABILITY:
        return device.identity is Identity.VALID and device.health is Health.HEALTHY
    return device.identity is Identity.VALID


def _unfit(device: Candidate, policy: WithdrawPolicy) -> bool:
    """Tell whether it is established that a device must leave; what is not known yet is no reason."""
    if device.identity in (Identity.INVALID, Identity.MISSING):
        return True
    return policy is WithdrawPolicy.USABILITY and device.health in (Health.UNHEALTHY, Health.MISSING)
