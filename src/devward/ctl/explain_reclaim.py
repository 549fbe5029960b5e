"""Whether a vNPU may be reclaimed, when, and what stands in the way, in sentences. Pure but for the tables that say_code() loads."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from devward.ctl.advice_reclaim import BLOCKED_ADVICE, KEEP, SOONER, STOP, WHY_ADVICE, filled
from devward.ctl.explanation import Explanation
from devward.ctl.facts import Manager
from devward.ctl.npu_facts import Vnpu
from devward.ctl.observed import observed
from devward.ctl.ownership_facts import Ownership
from devward.ctl.reclaim_codes import is_code, meanings, sentence
from devward.ctl.reclaim_facts import Evidence
from devward.ctl.step import Step
from devward.ctl.when import Times
from devward.model import ReclaimState
from devward.npu.views import Verdict
from devward.reasons import REASON_TEXT, Reason
from devward.text import printable

#: Pods that are named.
MAX_SUSPECTS: Final = 8
_WAITING: Final = (Verdict.CANDIDATE, Verdict.CONFIRMING, Verdict.ELIGIBLE, Verdict.DEFERRED)
#: Codes of what an administrator is answered that mean something else where they are a vNPU's.
_OUTCOMES: Final[Mapping[str, str]] = MappingProxyType({"internal": "devwardd met an error of its own; its journal has the details."})
#: By the state of reclaiming, why nothing is destroyed now.
NOT_NOW: Final[Mapping[str, str]] = MappingProxyType(
    {
        ReclaimState.OFF: "reclaiming is off",
        ReclaimState.PAUSED: "reclaiming is paused",
        ReclaimState.OBSERVING: "reclaiming only observes",
        ReclaimState.MASS_RECLAIM: "the breaker has stopped reclaiming",
        ReclaimState.BLOCKED: "reclaiming is blocked",
    }
)


def say_code(code: str) -> str:
    """Return a sentence for any code that a verdict or an outcome can have, with the code; the code alone where there is none."""
    row = None
    text = _OUTCOMES.get(code) or sentence(code)
    if not text and code in list(Reason):
        text = REASON_TEXT[Reason(code)]
    if not text:
        row = observed(code)
        text = row.sentence if row is not None else ""
    return f"{text} ({printable(code)})" if text else printable(code)


def of_code(code: str) -> Explanation | None:
    """Explain a code of reclaiming; None for another one."""
    if not is_code(code):
        return None
    told = Explanation(code, "reason")
    for about, text, known in meanings(code):
        told.found.append(f"Of {'' if about.startswith('reclaiming') else 'a '}{about}: {text}")
        told.means += [known.means] if known.means not in told.means else []
        told.steps += [step for step in known.steps if step not in told.steps]
    return told


def verdict(vnpu: Vnpu, seen: Evidence | None) -> str:
    """Say the verdict, why it is so, and why the vNPU is not vouched for where it is not."""
    doubt = f" {vnpu.sentence} ({printable(vnpu.reason)})" if vnpu.reason else ""
    code = vnpu.verdict_reason
    if vnpu.verdict == Verdict.UNKNOWN and not code:
        return f"devward has not judged whether it may be reclaimed.{doubt}"
    if vnpu.verdict == Verdict.UNKNOWN:
        said = "It cannot be told whether it may be reclaimed, which counts as use"
    else:
        said = f"The verdict is {printable(vnpu.verdict) or 'not told'}"
    if not code:
        return f"{said}.{doubt}"
    # The daemon's own sentence is about this very vNPU.
    why = f"{printable(seen.text, 400)} ({printable(code)})" if seen is not None and seen.text else say_code(code)
    if why == printable(code):
        return f"{said} ({why}).{doubt}"
    return f"{said}: {why}{doubt if code != vnpu.reason else ''}"


def waiting(vnpu: Vnpu, seen: Evidence | None, times: Times, manager: Manager) -> list[str]:
    """Say how long and how often nobody had it, when it may be reclaimed, and what began its wait anew."""
    said = []
    if vnpu.grace_start_usec:
        lasting = times.lasting(vnpu.grace_start_usec)
        confirmed = {0: "not confirmed yet", 1: "confirmed once"}.get(vnpu.confirmations, f"confirmed {vnpu.confirmations} times")
        said.append(f"That nobody owns it holds {lasting}, and was {confirmed}{_due(vnpu, times, manager)}.")
    if seen is None:
        return said
    if seen.last_reset:
        when = f" {'at ' if times.utc else ''}{times.ago(seen.reset_usec)}" if seen.reset_usec else ""
        said.append(f"Its wait began anew last{when}, because of this: {say_code(seen.last_reset)}")
    if seen.tries:
        often = "once" if seen.tries == 1 else f"{seen.tries} times"
        when = f", last {'at ' if times.utc else ''}{times.ago(seen.tried_usec)}" if seen.tried_usec else ""
        said.append(f"To destroy it was tried {often} in vain{when}.")
    if seen.left:
        said.append(f"It is due, and was not destroyed at the latest look: {say_code(seen.left)}")
    if seen.suspects:
        named = ", ".join(map(printable, seen.suspects[:MAX_SUSPECTS]))
        more = f" and {len(seen.suspects) - MAX_SUSPECTS} more" if len(seen.suspects) > MAX_SUSPECTS else ""
        said.append(f"Pods that may have left it behind: {named}{more}.")
    return said


def _due(vnpu: Vnpu, times: Times, manager: Manager) -> str:
    """Say when it may be reclaimed; empty where that is not known."""
    if not vnpu.eligible_at_usec:
        return ""
    is_over = vnpu.eligible_at_usec <= times.now_usec
    when = f"{'at ' if times.utc else ''}{times.ago(vnpu.eligible_at_usec)} at the earliest"
    stopped = NOT_NOW.get(manager.reclaim_state)
    if stopped:
        return f"; its wait is over{'' if is_over else ' ' + when}, but {stopped}"
    return f"; it may be reclaimed {'now' if is_over else when}"


def meaning(vnpu: Vnpu, manager: Manager) -> list[str]:
    """Say what the verdict means for the vNPU and for containers; nothing where it waits for nothing."""
    if vnpu.verdict not in _WAITING:
        return []
    known = WHY_ADVICE.get(vnpu.verdict_reason)
    said = [known.means] if known is not None else ["Nobody has it as far as can be seen, and devward may destroy it."]
    why = NOT_NOW.get(manager.reclaim_state)
    return [*said, f"Now it is not destroyed, as {why}."] if why else said


def steps(vnpu: Vnpu, manager: Manager, own: Ownership | None) -> list[Step]:
    """Return what to do about the verdict: keep it, have it sooner, or mend what is not known."""
    name = printable(vnpu.name)
    if vnpu.verdict in _WAITING:
        found = [filled(KEEP, name)]
        # Where something stops it, no shorter wait helps.
        if vnpu.verdict in (Verdict.CANDIDATE, Verdict.CONFIRMING) and not manager.is_reclaiming_stopped:
            found.append(filled(SOONER, name))
        blocks = [one for one in manager.blocked_reasons if one in BLOCKED_ADVICE]
        if blocks:
            found.append(Step("See what keeps it from being reclaimed.", (f"devwardctl explain {printable(blocks[0])}",)))
        elif manager.reclaim_state == ReclaimState.ENFORCING:
            found.append(STOP)
        return found
    if vnpu.verdict == Verdict.UNKNOWN and own is None and vnpu.verdict_reason in WHY_ADVICE:
        return [filled(step, name) for step in WHY_ADVICE[vnpu.verdict_reason].steps]
    return []
