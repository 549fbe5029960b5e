"""What `devwardctl status` and `reclaim status` say of reclaiming: what it does, what stops it, what came of it. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from devward.ctl import owners
from devward.ctl.advice_reclaim import BLOCKED_ADVICE
from devward.ctl.facts import Manager, Snapshot
from devward.ctl.npu_facts import Vnpu
from devward.ctl.owners import Line
from devward.ctl.reading import UNKNOWN
from devward.ctl.reclaim_facts import Leak, Reclaim
from devward.ctl.terminal import Tone, unbroken
from devward.ctl.when import Times
from devward.ctl.wording import counted
from devward.model import ReclaimState
from devward.npu.views import Verdict
from devward.text import printable

_STATES: Final[Mapping[str, tuple[str, Tone]]] = MappingProxyType(
    {
        ReclaimState.OFF: ("Reclaiming is off: no vNPU is destroyed", Tone.WARNING),
        ReclaimState.PAUSED: ("Reclaiming is paused", Tone.WARNING),
        ReclaimState.OBSERVING: ("Reclaiming only observes: no vNPU is destroyed", Tone.WARNING),
        ReclaimState.MASS_RECLAIM: ("Reclaiming is stopped by its breaker: on too many NPUs vNPUs were due at a time", Tone.BAD),
        ReclaimState.BLOCKED: ("Reclaiming is blocked: no vNPU is destroyed", Tone.WARNING),
        ReclaimState.ENFORCING: ("vNPUs that nobody owns are reclaimed", Tone.PLAIN),
    }
)
#: In the order of their way, what each is called.
_LEAKED: Final[Mapping[str, str]] = MappingProxyType(
    {
        Verdict.CANDIDATE: "just seen",
        Verdict.CONFIRMING: "waiting",
        Verdict.DEFERRED: "waiting for HAMi",
        Verdict.ELIGIBLE: "due",
    }
)
#: The one reason on a host without Kubernetes, where nothing needs to be mended.
_NO_KUBELET: Final = "no-kubelet"


def document(manager: Manager) -> dict[str, object]:
    """Return it as --json prints it."""
    return {
        "mode": manager.reclaim_mode,
        "state": manager.reclaim_state,
        "paused_until_usec": manager.reclaim_paused_until_usec,
        "blocked": _blocks(manager),
    }


def lines(snapshot: Snapshot, told: Reclaim | None, times: Times, untold: Sequence[Line] | None = None) -> list[Line]:
    """Say it on the screen. Nothing of a daemon that does not know of it.

    `told` is what Describe says, for the daemon's own sentences; `untold` says why it is not known who owns the vNPUs, None where that
    stands elsewhere on the screen.
    """
    manager = snapshot.manager
    if not manager.reclaim_state:
        return []
    blocks = _blocks(manager)
    said = [_state(manager, told, times)]
    texts = {one.reason: one.text for one in told.blocked} if told is not None else {}
    for code in blocks:
        # The first line says these already. Which vNPUs the breaker holds only the daemon's own sentence says.
        if code not in ("mode-off", "mode-observe", "paused") and (code != "mass-reclaim" or texts.get(code)):
            text = printable(texts.get(code, ""), 400)
            said.append(Line(f"{text} ({printable(code)})" if text else printable(code), Tone.WARNING, is_item=True))
    if untold and not owners.is_without_kubelet(manager):
        said += untold
    elif manager.reclaim_state == ReclaimState.BLOCKED and not blocks:
        known = "is not known" if owners.reasons(manager) else "was not looked at yet"
        said.append(Line(f"who owns the vNPUs {known}", is_item=True))
    waiting = leaked(snapshot.vnpus)
    said += [Line(waiting)] if waiting else []
    codes = [*blocks, *(why.reason for why in owners.reasons(manager) if untold)]
    if codes and blocks != [_NO_KUBELET]:
        said.append(Line(f"What to do: {unbroken(f'devwardctl explain {printable(codes[0])}')}", Tone.FAINT))
    return said


def leaked(vnpus: Iterable[Vnpu]) -> str:
    """Say how many vNPUs belong to nobody as far as can be seen, and how far they are; empty where there are none."""
    found = Counter(vnpu.verdict for vnpu in vnpus)
    parts = [f"{found[verdict]} {said}" for verdict, said in _LEAKED.items() if found[verdict]]
    number = sum(found[verdict] for verdict in _LEAKED)
    verb = "belongs" if number == 1 else "belong"
    return f"{counted(number, 'vNPU')} {verb} to nobody, as far as can be seen: {', '.join(parts)}." if parts else ""


def rates(told: Reclaim, times: Times) -> str:
    """Say how many destructions the hour still allows; empty where that is not told."""
    if UNKNOWN in (told.per_hour, told.left_of_hour):
        return ""
    said = f"Of the {told.per_hour} destructions that an hour allows {told.left_of_hour} {'is' if told.left_of_hour == 1 else 'are'} left"
    when = f"; the next is allowed {'at ' if times.utc else ''}{times.ago(told.next_usec)}" if told.next_usec else ""
    return f"{said}{when}."


def counters(told: Reclaim) -> list[str]:
    """Say the counters, those of nothing left out."""
    return [f"{printable(name).replace('_', ' ')}: {number}" for name, number in told.counters if number]


def left_by(leak: Leak) -> str:
    """Say whose Pods left what lies about unused."""
    if not leak.uid:
        return "no one owner that is known"
    return f"{printable(leak.kind) or 'Pod'} {printable(leak.owner, 320) or printable(leak.uid)}"


def _blocks(manager: Manager) -> list[str]:
    """Return what stops reclaiming besides what is not known of owners."""
    codes = (one.partition(" ")[0] for one in manager.blocked_reasons)
    return [code for code in codes if code in BLOCKED_ADVICE]


def _state(manager: Manager, told: Reclaim | None, times: Times) -> Line:
    state = manager.reclaim_state
    text, tone = _STATES.get(state, (f"The state of reclaiming is {printable(state)}", Tone.WARNING))
    if state == ReclaimState.PAUSED and manager.reclaim_paused_until_usec:
        text += f" {times.until(manager.reclaim_paused_until_usec)}"
        if told is not None and told.pause_reason:
            by = f" (uid {told.pause_uid})" if told.pause_uid != UNKNOWN else ""
            text += f": {printable(told.pause_reason, 400)}{by}"
    if _blocks(manager) == [_NO_KUBELET]:
        tone = Tone.PLAIN
    return Line(f"{text} (mode {printable(manager.reclaim_mode) or 'not told'}).", tone)
