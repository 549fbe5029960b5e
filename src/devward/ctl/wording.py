"""What changed, in plain sentences: from the facts before and after. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from devward.ctl.advice_reclaim import BLOCKED_ADVICE
from devward.ctl.facts import Device, Manager, Spec
from devward.ctl.npu_facts import Card, Vnpu
from devward.ctl.owners import is_without_kubelet, reasons
from devward.ctl.reading import sentence
from devward.ctl.terminal import Tone
from devward.ctl.when import Times
from devward.model import CdiMode, ConfigState, DeviceKind, Health, Identity, ReclaimState, SpecState
from devward.npu.views import CardHealth, Management, Protection, Use
from devward.text import printable

_SPEC_STATES: Final[Mapping[SpecState, str]] = MappingProxyType(
    {
        SpecState.UNKNOWN: "is not judged now",
        SpecState.TRUE: "is true: it says what the devices justify",
        SpecState.EMPTY: "does not exist, and no device justifies one",
        SpecState.DRIFTED: "is not what it should be",
        SpecState.BLOCKED: "is not what it should be and cannot be repaired",
        SpecState.FOREIGN: "is somebody else's",
        SpecState.CONFLICT: "is right, but another file of its directory defines the same device",
        SpecState.SHADOWED: "is right, but container engines use another file's definition",
        SpecState.CONTESTED: "keeps being changed by something else",
    }
)
_TONES: Final[Mapping[str, Tone]] = MappingProxyType(
    {
        Health.HEALTHY: Tone.GOOD,
        Health.UNHEALTHY: Tone.BAD,
        Health.MISSING: Tone.BAD,
        SpecState.TRUE: Tone.GOOD,
        SpecState.EMPTY: Tone.PLAIN,
        SpecState.BLOCKED: Tone.BAD,
        SpecState.FOREIGN: Tone.BAD,
    }
)
#: Reasons for which owners are not known that are named.
MAX_BLOCKED: Final = 4


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence, and what it is to the reader."""

    text: str
    tone: Tone = Tone.PLAIN


def tone_of(state: str) -> Tone:
    """Return the tone of a health or a file's state; one that is not known is a warning."""
    return _TONES.get(state, Tone.WARNING)


def spec_state(state: str) -> str:
    """Say the state of a CDI file, as the second half of a sentence."""
    try:
        return _SPEC_STATES[SpecState(state)]
    except ValueError:
        return f"is in the state {printable(state) or 'not told'}"


def not_ready(reason: str) -> str:
    """Say one of NotReadyReasons, `subject: code`, as a sentence."""
    subject, colon, code = reason.rpartition(": ")
    if not colon or not code:
        return printable(reason)
    return f"{printable(subject)}: {sentence(code)} ({printable(code)})"


def usable(kind: str) -> str:
    """Say what a good check of a device of this kind has shown."""
    if kind == DeviceKind.MSHV:
        return "it can be opened; that a partition can be created on it is not checked"
    return "a virtual machine can be started on it"


def device_changes(before: Device, after: Device) -> list[Said]:
    """Say what changed about a device; from an empty one, how it stands."""
    node, said = printable(after.node), []
    why = f": {after.sentence} ({printable(after.reason)})" if after.reason else ""
    if after.identity != before.identity and after.identity == Identity.INVALID:
        said.append(Said(f"{node} is not the device that it claims to be{why}", Tone.BAD))
    elif (after.health, after.reason) != (before.health, before.reason):
        text = {
            Health.HEALTHY: f"{node} is usable: {usable(after.kind)}",
            Health.UNHEALTHY: f"{node} cannot be used{why}",
            Health.MISSING: f"{node} is missing{why}",
            Health.UNKNOWN: f"{node} is not judged yet{why}",
        }
        other = f"the health of {node} is {printable(after.health) or 'not told'}{why}"
        said.append(Said(next((one for known, one in text.items() if known == after.health), other), tone_of(after.health)))
    if before.number and after.number and after.number != before.number:
        said.append(Said(f"{node} has the device number {printable(after.number)} now; it had {printable(before.number)}", Tone.WARNING))
    return said


def spec_changes(before: Spec, after: Spec) -> list[Said]:
    """Say what changed about a CDI file; from an empty one, how it stands."""
    file, said = printable(after.file), []
    if (after.state, after.reason) != (before.state, before.reason):
        why = f": {after.sentence} ({printable(after.reason)})" if after.reason else ""
        said.append(Said(f"{file} {spec_state(after.state)}{why}", tone_of(after.state)))
    if after.devices != before.devices:
        held = ", ".join(map(printable, after.devices))
        said.append(Said(f"{file} holds {held or 'no device'} now", Tone.PLAIN if held else Tone.WARNING))
    return said


def npu_name(card: Card) -> str:
    """Return what to call an NPU: its object's name, and its node where it has one."""
    return f"{printable(card.name)} ({printable(card.node)})" if card.node else printable(card.name)


def npu_summary(cards: Sequence[Card], vnpus: Sequence[Vnpu]) -> str:
    """Say how many NPUs and vNPUs there are, and how many of them are well or in use."""
    healthy = sum(card.health == CardHealth.HEALTHY for card in cards)
    used = sum(vnpu.in_use == Use.IN_USE for vnpu in vnpus)
    return f"{counted(len(cards), 'Ascend NPU')} ({healthy} healthy), {counted(len(vnpus), 'vNPU')} ({used} in use)"


def cores(number: float) -> str:
    """Say a number of AI cores; empty where it is not known."""
    return f"{number:g}" if number >= 0 else ""


def card_changes(before: Card, after: Card) -> list[Said]:
    """Say what changed about an NPU; from an empty one, how it stands."""
    name, said = npu_name(after), []
    if (after.health, after.reason) != (before.health, before.reason):
        why = f"; devward does not vouch for it: {after.sentence} ({printable(after.reason)})" if after.reason else ""
        text = {
            CardHealth.HEALTHY: f"the NPU {name} is healthy{why}",
            CardHealth.UNHEALTHY: f"the NPU {name} is not healthy{why}",
            CardHealth.UNKNOWN: f"it is not known whether the NPU {name} is healthy{why}",
        }
        other = f"the health of the NPU {name} is {printable(after.health) or 'not told'}{why}"
        tone = Tone.WARNING if after.reason and after.health == CardHealth.HEALTHY else tone_of(after.health)
        said.append(Said(next((one for known, one in text.items() if known == after.health), other), tone))
    said += _claim_changes(name, before, after)
    if before.name and after.node != before.node:
        was = f"; it was {printable(before.node)}" if before.node else ""
        now = f"has the device node {printable(after.node)} now" if after.node else "has no device node any more"
        said.append(Said(f"the NPU {printable(after.name)} {now}{was}", Tone.WARNING))
    return said


def _claim_changes(name: str, before: Card, after: Card) -> list[Said]:
    """Say what changed about who hands out an NPU and who claims it; nothing of one that was not there, and nothing that nobody knew."""
    said = []
    if not before.name:
        return []
    if after.managed != before.managed and after.managed:
        text = {
            Management.MANAGED: f"HAMi hands out the NPU {name} now",
            Management.UNMANAGED: f"HAMi does not hand out the NPU {name}",
            Management.UNKNOWN: f"it is not known whether HAMi hands out the NPU {name}",
        }
        other = f"the management of the NPU {name} is {printable(after.managed)}"
        said.append(Said(next((one for known, one in text.items() if known == after.managed), other)))
    if after.protection != before.protection and after.protection:
        text_of = {
            Protection.NOT_EVALUATED: f"which Pods claim the NPU {name} is not evaluated now",
            Protection.PROTECTED: f"a Pod has the NPU {name}, or may have it: its vNPUs are protected",
            Protection.UNKNOWN: f"it cannot be told whether a Pod has the NPU {name}, which counts as use",
            Protection.CANDIDATE: f"only Pods that cannot be started claim the NPU {name}",
            Protection.NONE: f"no Pod claims the NPU {name}",
        }
        other = f"the protection of the NPU {name} by claims is {printable(after.protection)}"
        tone = Tone.WARNING if after.protection == Protection.UNKNOWN else Tone.PLAIN
        said.append(Said(next((one for known, one in text_of.items() if known == after.protection), other), tone))
    for pods, verb in ((_less(after.claims, before.claims), "claim"), (_less(before.claims, after.claims), "claim no more")):
        if pods:
            said.append(Said(f"Pods that {verb} the NPU {name}: {', '.join(map(printable, pods))}"))
    return said


def _less(ones: Sequence[str], others: Sequence[str]) -> list[str]:
    known = set(others)
    return [one for one in ones if one not in known]


def vnpu_changes(before: Vnpu, after: Vnpu) -> list[Said]:
    """Say what changed about a vNPU; from an empty one, that it is there."""
    name, said = printable(after.name), []
    why = f": {after.sentence} ({printable(after.reason)})" if after.reason else ""
    use = {Use.IN_USE: "it is in use", Use.IDLE: "it is idle", Use.UNKNOWN: "its use is not known"}
    used = next((one for known, one in use.items() if known == after.in_use), f"its use is {printable(after.in_use) or 'not told'}")
    if not before.name:
        template = f", made with {printable(after.template)}" if after.template else ""
        said.append(Said(f"the vNPU {name} is on {printable(after.card_name)}{template}; {used}{why}", Tone.WARNING if why else Tone.PLAIN))
        return said
    if after.in_use != before.in_use:
        said.append(Said(f"the vNPU {name}: {used}"))
    if (after.verdict, after.verdict_reason, after.reason) != (before.verdict, before.verdict_reason, before.reason):
        code = f" ({printable(after.verdict_reason)})" if after.verdict_reason and after.verdict_reason != after.reason else ""
        said.append(Said(f"the vNPU {name} has the verdict {printable(after.verdict)}{code}{why}", Tone.WARNING if why else Tone.PLAIN))
    return said


def counted(number: int, what: str) -> str:
    """Say how many of something there are."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _reclaim_changes(before: Manager, after: Manager, times: Times) -> list[Said]:
    """Say what changed about reclaiming; nothing where it was not known before."""
    said = []
    if before.reclaim_mode and after.reclaim_mode and after.reclaim_mode != before.reclaim_mode:
        said.append(Said(f"the mode for reclaiming is {printable(after.reclaim_mode)}"))
    if after.reclaim_paused_until_usec != before.reclaim_paused_until_usec:
        if after.reclaim_paused_until_usec:
            said.append(Said(f"reclaiming is paused {times.until(after.reclaim_paused_until_usec)}", Tone.WARNING))
        else:
            said.append(Said("reclaiming is not paused any more"))
    if before.reclaim_state and after.reclaim_state and after.reclaim_state != before.reclaim_state:
        codes = (one.partition(" ")[0] for one in after.blocked_reasons)
        why = next((f": {printable(code)}" for code in codes if code in BLOCKED_ADVICE), "")
        tone = {ReclaimState.ENFORCING: Tone.GOOD, ReclaimState.MASS_RECLAIM: Tone.BAD}
        found = next((one for known, one in tone.items() if known == after.reclaim_state), Tone.WARNING)
        said.append(Said(f"reclaiming is {printable(after.reclaim_state)} now{why}", found))
    return said


def manager_changes(before: Manager, after: Manager, times: Times) -> list[Said]:
    """Say what changed about the daemon itself."""
    said = []
    if after.ready and not before.ready:
        said.append(Said("this host is ready", Tone.GOOD))
    elif not after.ready and (before.ready or after.not_ready_reasons != before.not_ready_reasons):
        why = " ".join(map(not_ready, after.not_ready_reasons))
        said.append(Said(f"this host is NOT READY{': ' + why if why else ''}", Tone.BAD))
    if after.cdi_mode != before.cdi_mode and after.cdi_mode:
        said.append(
            Said(f"the mode for CDI files is {printable(after.cdi_mode)}", Tone.PLAIN if after.cdi_mode == CdiMode.REPAIR else Tone.WARNING)
        )
    if after.cdi_paused_until_usec != before.cdi_paused_until_usec:
        if after.cdi_paused_until_usec:
            said.append(Said(f"repairs of CDI files are paused {times.until(after.cdi_paused_until_usec)}", Tone.WARNING))
        else:
            said.append(Said("repairs of CDI files are not paused any more", Tone.GOOD))
    said += _reclaim_changes(before, after, times)
    if reasons(after) != reasons(before):
        if reasons(after):
            named = [f"{one.reason} {one.who}".rstrip() for one in reasons(after)]
            why = ", ".join(map(printable, named[:MAX_BLOCKED]))
            more = f" and {len(named) - MAX_BLOCKED} more" if len(named) > MAX_BLOCKED else ""
            tone = Tone.PLAIN if is_without_kubelet(after) else Tone.WARNING
            said.append(Said(f"it is not known who owns the vNPUs: {why}{more}", tone))
        else:
            said.append(Said("it is known again who owns the vNPUs", Tone.GOOD))
    if after.config_state != before.config_state and after.config_state:
        good = after.config_state == ConfigState.GOOD
        text = "the configuration on disk is in force" if good else "the configuration on disk is refused; the one before it is in force"
        said.append(Said(text, Tone.GOOD if good else Tone.BAD))
    return said
