"""Who owns the vNPUs of an NPU, in sentences: what was asked, what is not known, who claims it, and what to do. Pure.

Everything is the daemon's, and foreign: it is escaped here, and what is not known here stands for itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from devward.ctl.advice_ownership import (
    CARD_UNKNOWN,
    NODE_UNKNOWN,
    OWNERSHIP_ADVICE,
    ownership_advice,
    steps_about,
)
from devward.ctl.explanation import Explanation, after
from devward.ctl.observed import observed
from devward.ctl.ownership_facts import Claim, HostSight, HostSource, Ownership, SourceSeen, Untold
from devward.ctl.step import Step
from devward.ctl.when import Times, span
from devward.npu.views import Management, Protection
from devward.text import printable

#: Of each list that are said; --json has all of them.
MAX_UNTOLD: Final = 8
MAX_CLAIMS: Final = 16
MAX_REASONS: Final = 8
MAX_STEPS: Final = 12
#: The UID of a Pod has this many characters or more; the name of a source has fewer.
_UID_LENGTH: Final = 16
_PODS_NOT_ASKED: Final = "pods-not-listed"
_CLEAN: Final = "clean"
_UNREADABLE: Final = "unreadable"

_SOURCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "node": "the Node of this host on the API server",
        "lease": "its Lease",
        "pods": "the list of its Pods",
        "checkpoint": "the kubelet's checkpoint",
        "kubelet": "the kubelet's process",
        "drivers": "the drivers for dynamic resource allocation",
        "host": "what this host shows of Pods and vNPUs",
        "npus": "the NPUs",
        "memory": "what was kept of Pods",
    }
)
_TRACES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "api": "the API server",
        "checkpoint": "the kubelet's checkpoint",
        "annotation": "HAMi's annotation",
        "host": "what this host shows",
        "memory": "an earlier look of this boot",
    }
)
_SIGHTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "descriptors": "the descriptors of the processes",
        "bundles": "the bundles of the containers",
        "cgroups": "the control groups of the Pods",
        "uda": "the driver's /proc/uda",
    }
)
_FINDINGS: Final[Mapping[str, str]] = MappingProxyType({"held": "in use", "clean": "clean", "unknown": "not known"})
_STANDINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        Protection.PROTECTED: "has the NPU, or may have it",
        Protection.UNKNOWN: "may have the NPU, which cannot be told and counts as use",
        Protection.CANDIDATE: "does not stand in the way",
    }
)
_PROTECTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        Protection.NOT_EVALUATED: "Which Pods claim it was not evaluated.",
        Protection.PROTECTED: "A Pod has it, or may have it: its vNPUs are protected.",
        Protection.UNKNOWN: "Whether a Pod has it cannot be told, which counts as use.",
        Protection.CANDIDATE: "Only Pods that cannot be started claim it.",
        Protection.NONE: "No Pod claims it.",
    }
)
_IF_CLEAN: Final[Mapping[str, str]] = MappingProxyType(
    {
        Protection.PROTECTED: "a Pod has it, or may have it",
        Protection.UNKNOWN: "it cannot be told whether a Pod has it",
        Protection.CANDIDATE: "only Pods that cannot be started claim it",
        Protection.NONE: "no Pod claims it",
    }
)
_MEANS: Final[Mapping[str, str]] = MappingProxyType(
    {
        Protection.PROTECTED: "Its vNPUs count as used as long as a Pod may have one, and are left alone.",
        Protection.CANDIDATE: "What the attempts of those Pods left behind on it belongs to nobody.",
        Protection.NONE: "What is idle on it, unpinned and in no container belongs to nobody that Kubernetes knows.",
    }
)
_SCOPES: Final[Mapping[str, str]] = MappingProxyType({"node": "the whole host", "card": "one NPU", "vnpu": "one vNPU"})


def of_code(code: str) -> Explanation | None:
    """Explain in general what keeps vNPUs from being judged, by its code; None for a code that is none of these."""
    row = observed(code)
    if row is None:
        return None
    known = ownership_advice(code, row.scopes)
    about = " or ".join(_SCOPES[scope] for scope in row.scopes)
    resets = "vNPUs there begin to wait anew because of it" if row.resets else "no vNPU begins to wait anew because of it"
    return Explanation(code, "reason", [row.sentence, f"It is about {about}; {resets}."], [known.means], list(known.steps))


# --- what was found --------------------------------------------------------------------------------------------------------


def asked(own: Ownership, times: Times) -> list[str]:
    """Say when it was looked who owns what, which sources were read, and how old they were."""
    said = [f"Who owns the vNPUs of this host was looked at {_at(own.looked_usec, times)}; {_listed(own, times)}."]
    read = [_source(one) for one in own.sources if one.is_read]
    unread = [_source(one) for one in own.sources if not one.is_read and not _is_unasked(one, own)]
    said += [f"These sources were read: {'; '.join(read)}."] if read else []
    said += [f"These could not be read: {'; '.join(unread)}."] if unread else []
    said += [_unseen(one) for one in own.host if one.state == _UNREADABLE or one.doubts or one.more > 0]
    if own.deferred:
        said.append("HAMi is handing out a device now, or left its lock behind: what is due waits.")
    return said


def unknown(own: Ownership, times: Times) -> list[str]:
    """Say what cannot be told of the node and of the NPU, and since when."""
    return [*_untold("this host", _hindering(own), times), *_untold("this NPU", own.unknowns, times)]


def management(own: Ownership) -> str:
    """Say whether HAMi hands the NPU out, and why not."""
    why = f" {_text(own.unmanaged_text, own.unmanaged_reason)}" if own.unmanaged_reason or own.unmanaged_text else ""
    match own.managed:
        case Management.MANAGED:
            return "HAMi hands it out, by its annotations on the Node."
        case Management.UNMANAGED:
            return f"HAMi does not hand it out.{why}"
        case Management.UNKNOWN:
            return f"It is not known whether HAMi hands it out.{why}"
    return f"Whether HAMi hands it out: {printable(own.managed) or 'not told'}.{why}"


def protection(own: Ownership) -> list[str]:
    """Say what the claims on the NPU mean as a whole."""
    said = [_PROTECTIONS.get(own.protection, f"The protection of its vNPUs by claims is {printable(own.protection) or 'not told'}.")]
    if own.protection_if_clean and own.protection_if_clean != own.protection:
        other = _IF_CLEAN.get(own.protection_if_clean, f"the protection is {printable(own.protection_if_clean)}")
        said.append(f"But for a vNPU that no process has open, by a clean scan of descriptors, {other}.")
    return said


def claims(own: Ownership, times: Times) -> list[str]:
    """Say each claim: whose it is, what it means, why, since when, and by which sources it is known."""
    said = [_claim(claim, times) for claim in own.claims[:MAX_CLAIMS]]
    if len(own.claims) > MAX_CLAIMS:
        said.append(f"There are {len(own.claims) - MAX_CLAIMS} more claims; --json has all of them.")
    return said


def on_host(sight: HostSight | None) -> str:
    """Say what the host shows of a vNPU."""
    if sight is None:
        return "What this host shows of it was not looked at."
    parts = ", ".join(f"{_SIGHTS[name]}: {_FINDINGS.get(found, printable(found))}" for name, found in sight.by_source)
    by = f" ({parts})" if parts else ""
    reasons = [printable(reason, 400).rstrip(".") for reason in sight.reasons[:MAX_REASONS]]
    more = [f"and {len(sight.reasons) - MAX_REASONS} more"] if len(sight.reasons) > MAX_REASONS else []
    why = f": {'; '.join([*reasons, *more])}." if reasons else "."
    match sight.finding:
        case "held":
            return f"This host shows that somebody has it{by}{why}"
        case "clean":
            return f"Nothing on this host has it{by}{why}"
        case "unknown":
            return f"It cannot be told whether something on this host has it, which counts as use{by}{why}"
    return f"What this host shows of it is {printable(sight.finding) or 'not told'}{by}{why}"


# --- what it means, what to do -----------------------------------------------------------------------------------------------


def meaning(own: Ownership, sight: HostSight | None = None) -> str:
    """Say what it means for the vNPUs of the NPU, or for the one that was looked at on the host; empty where nothing needs to be said."""
    if _hindering(own):
        return NODE_UNKNOWN
    standing = own.protection
    if sight is not None and sight.finding == _CLEAN and own.protection_if_clean:
        standing = own.protection_if_clean
    if own.unknowns or standing == Protection.UNKNOWN:
        return CARD_UNKNOWN
    if sight is not None and sight.finding != _CLEAN:
        return "Somebody on this host has the vNPU, or may have it: it counts as used, and is left alone."
    if own.managed == Management.UNMANAGED and own.unmanaged_reason in OWNERSHIP_ADVICE:
        return OWNERSHIP_ADVICE[own.unmanaged_reason].means
    return _MEANS.get(standing, "")


def steps(own: Ownership) -> list[Step]:
    """Return what to do about what cannot be told, and about who does not hand the NPU out; each step once."""
    pods = {claim.uid: claim.pod for claim in own.claims}
    found: list[Step] = []
    for scope, untold in (("node", _hindering(own)), ("card", own.unknowns)):
        for one in untold:
            found += steps_about(one.reason, _uid(one), pods.get(one.who, ""), (scope,))
    for claim in own.claims:
        if claim.standing == Protection.UNKNOWN:
            found += steps_about(claim.reason, claim.uid, claim.pod, ("card",))
    if own.managed == Management.UNMANAGED and own.unmanaged_reason:
        found += steps_about(own.unmanaged_reason, scopes=("card",))
    return list(dict.fromkeys(found))[:MAX_STEPS]


def blocking(own: Ownership | None, code: str, who: str) -> str:
    """Return the daemon's sentence about one of BlockedReasons, escaped; empty where there is none."""
    listed = own.blocked if own is not None else ()
    found = next((one.text for one in listed if one.reason == code and who in ("", one.who)), "")
    return printable(found, 400)


def _hindering(own: Ownership) -> tuple[Untold, ...]:
    return tuple(one for one in own.blocked if one.reason != _PODS_NOT_ASKED)


def _is_unasked(seen: SourceSeen, own: Ownership) -> bool:
    """Whether a source was not read because nobody asked for it."""
    return seen.source == "pods" and not own.asked


def _at(usec: int, times: Times) -> str:
    return f"at {times.ago(usec)}" if times.utc and usec else times.ago(usec)


def _listed(own: Ownership, times: Times) -> str:
    if own.asked and own.listed_usec == own.looked_usec:
        return "the API server was asked for its Pods"
    if own.asked:
        return f"its Pods were asked for, and no list came{f'; the last one came {_at(own.listed_usec, times)}' if own.listed_usec else ''}"
    before = f", and were {_at(own.listed_usec, times)}" if own.listed_usec else ", and never were"
    return f"its Pods were not asked for{before}"


def _source(seen: SourceSeen) -> str:
    name = _SOURCES.get(seen.source) or printable(seen.source) or "one that is not told"
    return f"{name} ({span(seen.age)} old)" if seen.is_read and seen.age >= 0 else name


def _unseen(one: HostSource) -> str:
    name = _SIGHTS.get(one.source) or printable(one.source)
    doubts = [printable(doubt, 400) for doubt in one.doubts[:MAX_REASONS]]
    more = max(one.more, 0) + len(one.doubts) - len(doubts)
    why = "; ".join([*doubts, *([f"and {more} more"] if more else [])])
    return f"Of this host {name} could not be seen whole{f': {why}' if why else ''}."


def _untold(where: str, listed: Sequence[Untold], times: Times) -> list[str]:
    said = [
        f"Not known of {where}{after(times.lasting(one.since_usec))}: {_text(one.text, one.reason)}{_because(one)}"
        for one in listed[:MAX_UNTOLD]
    ]
    if len(listed) > MAX_UNTOLD:
        said.append(f"{len(listed) - MAX_UNTOLD} more things are not known of {where}; --json has all of them.")
    return said


def _text(text: str, code: str) -> str:
    said = printable(text, 400)
    named = f"({printable(code)})" if code else ""
    return " ".join(part for part in (said, named) if part)


def _because(one: Untold) -> str:
    uid = _uid(one)
    return f" [Pod {printable(uid)}]" if uid and uid not in one.text else ""


def _uid(one: Untold) -> str:
    return one.who if len(one.who) >= _UID_LENGTH else ""


def _claim(claim: Claim, times: Times) -> str:
    uid = printable(claim.uid) or "without a UID"
    who = f"{printable(claim.pod)} ({uid})" if claim.pod else uid
    standing = _STANDINGS.get(claim.standing, f"has the standing {printable(claim.standing) or 'not told'}")
    known = _and(_TRACES.get(trace, printable(trace)) for trace in claim.sources)
    by = f" It is known by {known}." if known else ""
    clean = " That holds for a vNPU only until a scan of descriptors is clean for it." if claim.unless_clean else ""
    return f"The Pod {who} {standing}{after(times.lasting(claim.since_usec))}: {_text(claim.text, claim.reason)}{by}{clean}"


def _and(parts: Iterable[str]) -> str:
    *others, last = [*parts] or [""]
    return f"{', '.join(others)} and {last}" if others else last
