"""What `devwardctl status` says of whether it is known who owns the vNPUs of this host. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from devward.ctl import explain_ownership
from devward.ctl.advice_reclaim import BLOCKED_ADVICE
from devward.ctl.facts import Manager, Snapshot
from devward.ctl.ownership_facts import Ownership
from devward.ctl.reclaim_facts import Reclaim
from devward.ctl.terminal import Tone, unbroken
from devward.ctl.when import USEC, Times
from devward.npu.views import Protection
from devward.reasons import Reason
from devward.text import printable

#: Of the reasons that are said.
MAX_REASONS: Final = 4
#: The one reason on a host without Kubernetes, where nothing needs to be mended.
NO_KUBELET: Final = "kubelet-not-found"
#: Seconds after which a look that is due is late.
LATE_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the screen: running text, indented under the one before where it belongs to it."""

    text: str
    tone: Tone = Tone.PLAIN
    is_item: bool = False


@dataclass(frozen=True, slots=True)
class Why:
    """One of BlockedReasons: its code, and the UID of a Pod where it is because of one."""

    reason: str
    who: str

    @property
    def raw(self) -> dict[str, object]:
        """As --json prints it."""
        return {"reason": self.reason, "who": self.who}


def reasons(manager: Manager) -> list[Why]:
    """Return why it is not known who owns the vNPUs; what else stops reclaiming is left out."""
    parts = [one.partition(" ") for one in manager.blocked_reasons]
    return [Why(code, who) for code, _, who in parts if code not in BLOCKED_ADVICE]


def document(manager: Manager) -> dict[str, object]:
    """Return it as --json prints it. `known` is null where nobody was asked."""
    return {
        "known": None if not _is_asked(manager) else not reasons(manager),
        "reasons": [why.raw for why in reasons(manager)],
        "since_usec": manager.blocked_since_usec,
        "looked_usec": manager.last_cycle_usec,
        "next_usec": manager.next_cycle_usec,
        "certificate_expires_usec": manager.certificate_expires_usec,
    }


def lines(snapshot: Snapshot, own: Ownership | None, times: Times) -> list[Line]:
    """Say it on the screen of the status; `own` is what Explain of any NPU told, for the daemon's own sentences."""
    manager = snapshot.manager
    found = reasons(manager)
    if is_without_kubelet(manager):
        text = "No kubelet was found on this host: who owns the vNPUs is not asked, and each counts as used."
        return [Line(f"{text} {_looked(manager, times)}"), *_certificate(snapshot, times)]
    said = [*_known(snapshot, times), *items(manager, own), *_certificate(snapshot, times)]
    if found:
        more = unbroken(f"devwardctl explain {printable(found[0].reason)}")
        about = f", {unbroken(f'devwardctl explain {printable(snapshot.cards[0].name)}')}" if snapshot.cards else ""
        said.append(Line(f"What to do: {more}{about}, {unbroken('man devwardd')}", Tone.FAINT))
    return said


def items(manager: Manager, own: Ownership | None, told: Reclaim | None = None) -> list[Line]:
    """Say each reason for which it is not known who owns the vNPUs, with the daemon's own sentence where that is told."""
    found = reasons(manager)
    texts = {one.reason: one.text for one in told.blocked} if told is not None else {}
    said = [Line(_why(why, own, texts), Tone.WARNING, is_item=True) for why in found[:MAX_REASONS]]
    return [*said, Line(f"and {len(found) - MAX_REASONS} more", is_item=True)] if len(found) > MAX_REASONS else said


def is_without_kubelet(manager: Manager) -> bool:
    """Whether all that keeps owners from being known is that no kubelet runs here."""
    return [why.reason for why in reasons(manager)] == [NO_KUBELET]


def _is_asked(manager: Manager) -> bool:
    return bool(reasons(manager) or manager.last_cycle_usec)


def _known(snapshot: Snapshot, times: Times) -> list[Line]:
    manager = snapshot.manager
    if "last_cycle_usec" not in manager.raw and not _is_asked(manager):
        # A daemon that does not know of owners says nothing about them.
        return []
    if not _is_asked(manager):
        return [Line("Nobody was asked who owns the vNPUs.", Tone.FAINT)]
    looked = _looked(manager, times)
    if reasons(manager):
        lasting = times.lasting(manager.blocked_since_usec)
        since = f", {lasting}" if lasting else ""
        return [Line(f"Who owns the vNPUs is not known{since}: each counts as used. {looked}", Tone.WARNING)]
    doubtful = sum(card.protection == Protection.UNKNOWN for card in snapshot.cards)
    if doubtful:
        npus = "one NPU" if doubtful == 1 else f"{doubtful} NPUs"
        return [Line(f"Who owns the vNPUs is known but of {npus}, whose vNPUs count as used. {looked}", Tone.WARNING)]
    return [Line(f"Who owns the vNPUs is known. {looked}")]


def _looked(manager: Manager, times: Times) -> str:
    if not manager.last_cycle_usec:
        return "It was not looked at yet."
    at = "at " if times.utc else ""
    late = manager.next_cycle_usec and times.now_usec - manager.next_cycle_usec > LATE_SECONDS * USEC
    due = f", and was to be again {at}{times.ago(manager.next_cycle_usec)}" if late else ""
    return f"It was looked at {at}{times.ago(manager.last_cycle_usec)}{due}."


def _why(why: Why, own: Ownership | None, texts: Mapping[str, str]) -> str:
    code = printable(why.reason)
    # Of a Pod only the sentence about that very Pod is said.
    told = explain_ownership.blocking(own, why.reason, why.who) or ("" if why.who else printable(texts.get(why.reason, ""), 400))
    pod = f"the Pod {printable(why.who)}" if why.who else ""
    if not told:
        return f"{code}, because of {pod}" if pod else code
    return f"{told} ({code})" if not pod or printable(why.who) in told else f"{told} ({code}, {pod})"


def _certificate(snapshot: Snapshot, times: Times) -> list[Line]:
    """Say that the certificate has expired, or, by the daemon's judgement, soon will."""
    expires = snapshot.manager.certificate_expires_usec
    if not expires:
        return []
    when = f"{'at ' if times.utc else ''}{times.ago(expires)}"
    if expires <= times.now_usec:
        return [Line(f"The certificate with which the API server is asked expired {when}.", Tone.BAD)]
    if any(finding.code == Reason.CLUSTER_CERTIFICATE for finding in snapshot.findings):
        return [Line(f"The certificate with which the API server is asked expires {when}.", Tone.WARNING)]
    return []
