"""The state of a hypervisor device and how looks and checks move it. Pure.

Only a completed check changes health: one that was cancelled, or failed for want of a local resource, leaves the last result standing.
"""

from dataclasses import dataclass, replace

from devward.model import DeviceKind, DeviceView, Health, Identity
from devward.reasons import REASON_TEXT, Reason

#: How long, in seconds, a good check stands in for one that could not be completed.
GOOD_CHECK_LASTS = 30.0


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node was when it was looked at. Two equal values mean that nothing about the node changed."""

    device: int
    inode: int
    number: str
    mode: int
    uid: int
    gid: int
    links: int
    #: Named ACL entries such as `user:1000:rw-`.
    acl: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IdentityVerdict:
    """The answer of one look; `facts` is None where no node could be looked at, `detail` adds numbers to the reason's sentence.

    The identity is UNKNOWN where the look could not be completed.
    """

    identity: Identity
    reason: Reason
    detail: str = ""
    facts: NodeFacts | None = None


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    """The result of one usability check; an incomplete one (`completed` False) says nothing about the device."""

    completed: bool
    healthy: bool
    reason: Reason
    detail: str
    duration_usec: int


@dataclass(frozen=True, slots=True)
class DeviceState:
    """Everything that is known of one device."""

    kind: DeviceKind
    node: str
    identity: Identity = Identity.UNKNOWN
    identity_since_usec: int = 0
    health: Health = Health.UNKNOWN
    health_since_usec: int = 0
    reason: Reason = Reason.NOT_CHECKED
    detail: str = ""
    facts: NodeFacts | None = None
    last_check_usec: int = 0
    check_duration_usec: int = 0
    #: When the last good check completed, in monotonic seconds.
    good_monotonic: float | None = None
    #: Why the latest check could not be completed, OK when it was.
    inconclusive: Reason = Reason.OK
    inconclusive_detail: str = ""


def with_identity(state: DeviceState, verdict: IdentityVerdict, now_usec: int) -> DeviceState:
    """Take in a look at the node's identity; one that could not be completed leaves the last one standing."""
    if verdict.identity is Identity.UNKNOWN:
        return replace(state, inconclusive=verdict.reason, inconclusive_detail=verdict.detail)
    changed = verdict.identity is not state.identity
    replaced = another_node(state.facts, verdict.facts)
    state = replace(state, identity=verdict.identity, facts=verdict.facts)
    if changed:
        state = replace(state, identity_since_usec=now_usec)
    if verdict.identity is not Identity.VALID:
        health = Health.MISSING if verdict.identity is Identity.MISSING else Health.UNHEALTHY
        state = replace(state, good_monotonic=None, inconclusive=Reason.OK, inconclusive_detail="", last_check_usec=now_usec)
        return _with_health(state, health, verdict.reason, verdict.detail, now_usec)
    if changed or replaced:
        # A node that came back, or took another's place, is usable when a check says so, not because one was usable before.
        return _with_health(replace(state, good_monotonic=None), Health.UNKNOWN, Reason.NOT_CHECKED, "", now_usec)
    return state


def another_node(before: NodeFacts | None, after: NodeFacts | None) -> bool:
    """Tell whether two looks at a path met two different nodes; attributes may differ."""
    if before is None or after is None:
        return before is not after
    return (before.device, before.inode, before.number) != (after.device, after.inode, after.number)


def with_probe(state: DeviceState, verdict: ProbeVerdict, now_usec: int, now_monotonic: float) -> DeviceState:
    """Take in a usability check of a node whose identity is valid."""
    if state.identity is not Identity.VALID:
        return state
    if not verdict.completed:
        return replace(state, inconclusive=verdict.reason, inconclusive_detail=verdict.detail)
    state = replace(
        state,
        last_check_usec=now_usec,
        check_duration_usec=verdict.duration_usec,
        good_monotonic=now_monotonic if verdict.healthy else None,
        inconclusive=Reason.OK,
        inconclusive_detail="",
    )
    return _with_health(state, Health.HEALTHY if verdict.healthy else Health.UNHEALTHY, verdict.reason, verdict.detail, now_usec)


def good_recently(state: DeviceState, now_monotonic: float) -> bool:
    """Tell whether a good check is young enough to stand in for one that could not be completed."""
    return state.health is Health.HEALTHY and state.good_monotonic is not None and now_monotonic - state.good_monotonic < GOOD_CHECK_LASTS


def sentence(reason: Reason, detail: str) -> str:
    """Join a reason's sentence and what was measured."""
    text = REASON_TEXT[reason]
    return f"{text[:-1]} ({detail})." if detail and text else text


def view(state: DeviceState) -> DeviceView:
    """Return what is published of a device."""
    text = sentence(state.reason, state.detail)
    if state.inconclusive is not Reason.OK:
        text = " ".join(filter(None, (text, sentence(state.inconclusive, state.inconclusive_detail))))
    return DeviceView(
        kind=state.kind,
        node=state.node,
        number=state.facts.number if state.facts is not None else "",
        identity=state.identity,
        identity_since_usec=state.identity_since_usec,
        health=state.health,
        health_since_usec=state.health_since_usec,
        reason=state.reason,
        text=text,
        last_check_usec=state.last_check_usec,
        check_duration_usec=state.check_duration_usec,
    )


def _with_health(state: DeviceState, health: Health, reason: Reason, detail: str, now_usec: int) -> DeviceState:
    since = state.health_since_usec if health is state.health and state.health_since_usec else now_usec
    return replace(state, health=health, health_since_usec=since, reason=reason, detail=detail)
