"""`devwardctl explain`: the whole chain from what was found to what to do next, in plain sentences."""

from typing import TYPE_CHECKING

from devward import names
from devward.ctl import explain_npu, explain_ownership, explain_reclaim, plugin
from devward.ctl.advice import ADVICE, Advice, Step, advice, cause, quoted_path
from devward.ctl.advice_ownership import OWNERSHIP_ADVICE
from devward.ctl.context import Context
from devward.ctl.explanation import Explanation, after, findings_about, say_finding
from devward.ctl.facts import IN_ORDER, Blocked, Device, Finding, Snapshot, Spec
from devward.ctl.failure import ExitStatus, Failure
from devward.ctl.layout import prose, show_steps
from devward.ctl.reading import Raw, number_of, text_of
from devward.ctl.terminal import Tone, unbroken
from devward.ctl.when import Times, duration
from devward.ctl.wording import spec_state, usable
from devward.model import CdiMode, Health, Identity, SpecState
from devward.reasons import REASON_TEXT, Reason
from devward.text import printable

if TYPE_CHECKING:
    from devward.ctl.client import Client


def run(context: Context) -> int:
    """Explain one thing. A reason code needs no daemon."""
    what = context.given.what
    told = of_code(what)
    if told is not None:
        _show(context, told)
        return ExitStatus.OK

    async def work(client: "Client") -> int:
        snapshot = await client.snapshot()
        _show(context, await _explained(client, what, snapshot, context.times()))
        return ExitStatus.OK

    return context.on_bus(work)


async def _explained(client: "Client", what: str, snapshot: Snapshot, times: Times) -> Explanation:
    vnpu = explain_npu.vnpu_meant(what, snapshot)
    if vnpu is not None:
        return explain_npu.of_vnpu(vnpu, await client.explain_vnpu(vnpu.name), snapshot, times)
    card = explain_npu.card_meant(what, snapshot)
    if card is not None:
        return explain_npu.of_card(card, await client.explain_card(card.name), snapshot, times)
    return explain(what, snapshot, _described(await client.describe()), times)


def explain(what: str, snapshot: Snapshot, described: dict[str, Raw], times: Times) -> Explanation:
    """Find what is meant and explain it. Failure, with what can be explained, where there is no such thing."""
    for device in snapshot.devices:
        if what in (device.kind, device.node, device.qualified):
            return of_device(device, snapshot, described.get(device.node, {}), times)
    for spec in snapshot.specs:
        if what in (spec.file, spec.file.rpartition("/")[2], spec.cdi_kind):
            return of_spec(spec, snapshot, times)
    card = explain_npu.card_meant(what, snapshot)
    if card is not None:
        return explain_npu.of_card(card, None, snapshot, times)
    found = [finding for finding in snapshot.findings if what in (finding.subject, finding.subject.rpartition("/")[2])]
    if found:
        return of_findings(what, found, times)
    gone = explain_npu.vnpu_id(what)
    if gone is not None:
        name = f"v{gone:04d}"
        raise Failure(
            ExitStatus.UNHEALTHY,
            f"devward sees no vNPU {name} now.",
            f"What became of it, if there was one: {unbroken(f'devwardctl history --vnpu {name}')}",
        )
    known = [device.kind for device in snapshot.devices] + [spec.file for spec in snapshot.specs] + [card.name for card in snapshot.cards]
    listed = ", ".join(map(printable, known)) or "no device and no file on this host"
    raise Failure(
        ExitStatus.UNHEALTHY,
        f"devward knows nothing named {printable(what, 80)}.",
        f"It can explain {listed}, {'each vNPU, ' if snapshot.vnpus else ''}the subject of a finding, and every reason code.",
    )


def of_code(code: str) -> Explanation | None:
    """Explain a reason code in general, also of what keeps vNPUs from being judged, and of reclaiming; None where it is no code."""
    if not code:
        return None
    told_of_plugin = plugin.of_code(code)
    if told_of_plugin is not None:
        return told_of_plugin
    reclaim = explain_reclaim.of_code(code)
    if code not in list(Reason):
        # The table of what keeps vNPUs from being judged takes long to load.
        owned = explain_ownership.of_code(code) if reclaim is None or code in OWNERSHIP_ADVICE else None
        return _joined(owned, reclaim)
    known = ADVICE[Reason(code)]
    told = Explanation(code, "reason", [REASON_TEXT[Reason(code)]], [known.means], list(known.steps))
    # One word can be a code of both.
    other = explain_ownership.of_code(code) if code in OWNERSHIP_ADVICE else None
    if other is not None:
        told.found += [f"Of the claim of a Pod: {other.found[0]}", *other.found[1:]]
        told.means += other.means
    return _joined(told, reclaim)


def _joined(told: Explanation | None, more: Explanation | None) -> Explanation | None:
    """Return one explanation of a word that may be a code in two places."""
    if told is None or more is None:
        return told or more
    told.found += more.found
    told.means += [text for text in more.means if text not in told.means]
    told.steps += [step for step in more.steps if step not in told.steps]
    return told


def of_device(device: Device, snapshot: Snapshot, described: Raw, times: Times) -> Explanation:
    """Explain a device: node, identity, health, check, CDI file."""
    told = Explanation(device.node, "device")
    told.found += [_identity(device, times), *_owner(described), _health(device, times), _check(device, times)]
    spec = snapshot.spec_of(device)
    if spec is None:
        told.found.append(f"No CDI file defines {printable(device.qualified)}.")
    else:
        told.found.append(_spec_state(spec, times))
        if device.qualified not in spec.devices:
            told.found.append(f"The file does not hold {printable(device.qualified)} now.")
    blocked = next((one for one in snapshot.blocked() if one.device == device.qualified), None)
    file = spec.file if spec is not None else "FILE"
    told.means, told.steps = _outcome(device.qualified, blocked, _known(blocked, device.node, file))
    told.found += findings_about((device.node,), snapshot, times)
    told.found += _standing(snapshot, times)
    return told


def of_spec(spec: Spec, snapshot: Snapshot, times: Times) -> Explanation:
    """Explain a CDI file: its state, what it holds, its repairs, and the devices that it is about."""
    told = Explanation(spec.file, "spec", [_spec_state(spec, times)])
    held = ", ".join(map(printable, spec.devices))
    told.found.append(f"It holds {held}." if held else "It holds no device.")
    if spec.repair_count:
        why = cause(spec.last_repair_cause)
        times_said = "once" if spec.repair_count == 1 else f"{spec.repair_count} times"
        last = f"last {times.ago(spec.last_repair_usec)}{', as ' + why if why else ''}"
        told.found.append(f"Since devwardd started it was repaired {times_said}, {last}.")
    else:
        told.found.append("It needed no repair since devwardd started.")
    if spec.cdi_kind == names.HYPERVISOR_CDI_KIND:
        told.found += [f"{printable(device.node)}: {_health(device, times)}" for device in snapshot.devices]
    told.found += findings_about((spec.file,), snapshot, times) + _standing(snapshot, times)
    known = advice(spec.reason, file=spec.file)
    if spec.state in (SpecState.TRUE, SpecState.EMPTY) and not spec.reason:
        why = _why_empty(spec, snapshot)
        empty = f"No container can ask for a device of this file, as {why}."
        told.means = [empty if spec.state == SpecState.EMPTY else "Container engines find these devices by this file."]
        told.steps = [Step("Nothing needs to be done about the file.")]
        blocked = [one for one in snapshot.blocked() if one.device.startswith(f"{spec.cdi_kind}=")]
        told.means += [f"But new containers cannot use {printable(one.device)}: {one.text}" for one in blocked]
        told.steps += [Step("See why.", (f"devwardctl explain {quoted_path(one.device.rpartition('=')[2])}",)) for one in blocked]
    else:
        told.means, told.steps = [known.means], list(known.steps)
    told.steps.append(Step("See what happened to it before.", (f"devwardctl history --file {quoted_path(spec.file)}",)))
    return told


def _why_empty(spec: Spec, snapshot: Snapshot) -> str:
    if spec.cdi_kind == names.VNPU_CDI_KIND:
        return "no vNPU that is pinned may be offered now; devwardctl pins, and devwardctl explain of the vNPU, tell why"
    if spec.cdi_kind == names.NPU_CDI_KIND:
        absent = not snapshot.cards
    else:
        absent = all(device.identity == Identity.MISSING for device in snapshot.devices)
    return "there is none on this host" if absent else "devward vouches for none on this host now"


def of_findings(what: str, found: list[Finding], times: Times) -> Explanation:
    """Explain what was found about something that devward does not own."""
    told = Explanation(what, "finding")
    for finding in found:
        known = advice(finding.code, file=finding.subject, device=finding.subject)
        told.found.append(say_finding(finding, times))
        told.means += [text for text in [known.means] if text not in told.means]
        told.steps += [text for text in known.steps if text not in told.steps]
    return told


def _known(blocked: Blocked | None, node: str, file: str) -> Advice:
    return advice(blocked.reason if blocked is not None else Reason.OK, device=node, file=file)


def _outcome(qualified: str, blocked: Blocked | None, known: Advice) -> tuple[list[str], list[Step]]:
    if blocked is None:
        return [f"New containers that ask for {printable(qualified)} get it, and can start a virtual machine."], list(known.steps)
    if not blocked.reason:
        return [f"New containers that ask for {printable(qualified)} cannot use it: {blocked.text}"], [
            Step("See how everything stands.", ("devwardctl status",))
        ]
    return [known.means], list(known.steps)


def _identity(device: Device, times: Times) -> str:
    number = f"character device {printable(device.number)}" if device.number else "no character device"
    lasting = after(times.lasting(device.identity_since_usec))
    match device.identity:
        case Identity.VALID:
            return f"{printable(device.node)} is {number}, and it is the device that it claims to be{lasting}."
        case Identity.INVALID:
            return f"{printable(device.node)} is {number}, and it is not the device that it claims to be{lasting}."
        case Identity.MISSING:
            return f"{printable(device.node)} does not exist{lasting}."
    return f"It is not known whether {printable(device.node)} is the device that it claims to be{lasting}."


def _owner(described: Raw) -> list[str]:
    mode = text_of(described, "mode")
    if not mode:
        return []
    acl = described.get("acl")
    more = "; it has an access control list" if isinstance(acl, list) and acl else ""
    return [f"Its mode is {printable(mode)}, its owner {number_of(described, 'uid')}:{number_of(described, 'gid')}{more}."]


def _health(device: Device, times: Times) -> str:
    lasting = after(times.lasting(device.health_since_usec))
    because = f" {device.sentence} ({printable(device.reason)})" if device.reason else ""
    match device.health:
        case Health.HEALTHY:
            shown = usable(device.kind)
            return f"It is usable{lasting}: {shown}."
        case Health.UNHEALTHY:
            return f"It cannot be used{lasting}.{because}"
        case Health.MISSING:
            return f"There is nothing to use{lasting}.{because}"
    return f"It is not known whether it can be used{lasting}.{because}"


def _check(device: Device, times: Times) -> str:
    if not device.last_check_usec:
        return "No check of it has completed yet."
    when = f"at {times.ago(device.last_check_usec)}" if times.utc else times.ago(device.last_check_usec)
    return f"The last complete check was {when} and took {duration(device.check_duration_usec)}."


def _spec_state(spec: Spec, times: Times) -> str:
    lasting = after(times.lasting(spec.state_since_usec))
    because = f" {spec.sentence} ({printable(spec.reason)})" if spec.reason else ""
    return f"The CDI file {printable(spec.file)} {spec_state(spec.state)}{lasting}.{because}"


def _standing(snapshot: Snapshot, times: Times) -> list[str]:
    """Say where devward may not repair now, if some file would need it."""
    manager = snapshot.manager
    if all(spec.state in (*IN_ORDER, SpecState.EMPTY) for spec in snapshot.specs):
        return []
    if manager.cdi_paused_until_usec:
        return [f"Repairs are paused {times.until(manager.cdi_paused_until_usec)}."]
    if manager.cdi_mode in (CdiMode.OBSERVE, CdiMode.OFF):
        return [f"The mode for CDI files is {manager.cdi_mode}: nothing is repaired."]
    return []


def _described(document: dict[str, object]) -> dict[str, Raw]:
    """Return what Describe adds about devices, by node."""
    devices = document.get("devices")
    shown = [one for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    return {text_of(one, "node"): one for one in shown}


def _show(context: Context, told: Explanation) -> None:
    if context.json:
        steps = [{"text": step.text, "commands": list(step.commands)} for step in told.steps]
        document = {"what": told.what, "kind": told.kind, "found": told.found, "means": told.means, "next": steps}
        context.print_json(document if told.evidence is None else {**document, "evidence": told.evidence})
        return
    out = context.out
    out.line(printable(told.what), Tone.STRONG)
    for title, texts in (("What was found", told.found), ("What it means for containers", told.means)):
        out.line()
        out.line(title, Tone.STRONG)
        for text in texts:
            prose(out, text, "  - ", "    ")
    out.line()
    out.line("What to do next", Tone.STRONG)
    show_steps(out, told.steps)
