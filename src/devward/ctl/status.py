"""`devwardctl status`: one screen that says whether this host is ready, and if not, why and since when."""

from collections.abc import Sequence
from typing import Final

from devward.ctl import lists, owners, plugin, reclaiming
from devward.ctl.client import Client
from devward.ctl.context import Context
from devward.ctl.facts import Manager, Snapshot
from devward.ctl.failure import ExitStatus, Failure
from devward.ctl.layout import prose
from devward.ctl.ownership_facts import Ownership, ownership
from devward.ctl.plugin import Plugin
from devward.ctl.reading import Raw
from devward.ctl.reclaim_facts import Reclaim, reclaim
from devward.ctl.terminal import Tone, unbroken
from devward.ctl.when import Times
from devward.ctl.wording import not_ready, npu_name, npu_summary
from devward.model import CdiMode, ConfigState
from devward.text import printable

#: NPUs that are not vouched for that are named.
MAX_CARDS: Final = 4


def run(context: Context) -> int:
    """Show the status. Status 1 where the host is not ready."""

    async def work(client: Client) -> int:
        snapshot = await client.snapshot()
        described = await _described(client)
        if context.json:
            context.print_json(document(snapshot, described))
        else:
            show(context, snapshot, await _ownership(client, snapshot), _reclaim(described, snapshot), plugin.plugin(described))
        return ExitStatus.OK if snapshot.manager.ready else ExitStatus.UNHEALTHY

    return context.on_bus(work)


async def _ownership(client: Client, snapshot: Snapshot) -> Ownership | None:
    """Return what the daemon says of the owners, where something is not known: the same of every NPU. The status stands without it."""
    if not owners.reasons(snapshot.manager) or not snapshot.cards:
        return None
    try:
        return ownership(await client.explain_card(snapshot.cards[0].name))
    except Failure:
        return None


async def _described(client: Client) -> dict[str, object]:
    """Return what Describe says, which alone tells of the device plugin. The status stands without it."""
    try:
        return await client.describe()
    except Failure:
        return {}


def _reclaim(described: dict[str, object], snapshot: Snapshot) -> Reclaim | None:
    """Return what the daemon says of reclaiming, where something stops it."""
    manager = snapshot.manager
    if not snapshot.cards or not (manager.blocked_reasons or manager.reclaim_paused_until_usec):
        return None
    return reclaim(described)


def document(snapshot: Snapshot, described: Raw) -> dict[str, object]:
    """Return the status as --json prints it; `described` is what Describe answered."""
    return {
        "manager": snapshot.manager.raw,
        "devices": [device.raw for device in snapshot.devices],
        "specs": [spec.raw for spec in snapshot.specs],
        "findings": [finding.raw for finding in snapshot.findings],
        "blocked": [blocked.raw for blocked in snapshot.blocked()],
        "cards": [card.raw for card in snapshot.cards],
        "vnpus": [vnpu.raw for vnpu in snapshot.vnpus],
        "ownership": owners.document(snapshot.manager),
        "reclaim": reclaiming.document(snapshot.manager),
        "device_plugin": described.get("device_plugin"),
    }


def show(
    context: Context, snapshot: Snapshot, own: Ownership | None = None, told: Reclaim | None = None, offered: Plugin | None = None
) -> None:
    """Print the screen; `own` is what the daemon says of the owners of vNPUs, `told` of reclaiming, `offered` of the device plugin."""
    out, times, manager = context.out, context.times(), snapshot.manager
    name = f"devward {printable(manager.version)} on {printable(manager.node_name)}".rstrip()
    out.line(f"{name} is ready." if manager.ready else f"{name} is NOT READY.", Tone.GOOD if manager.ready else Tone.BAD)
    for reason in manager.not_ready_reasons:
        prose(out, f"{not_ready(reason)}", "  - ", "    ")
    for text, tone in remarks(manager, times):
        prose(out, text, "  ", "  ", tone)
    out.line()
    if snapshot.devices:
        lists.show_devices(out, snapshot.devices, times)
    else:
        prose(out, "There is no hypervisor device on this host, and none is wanted by the configuration.")
    if snapshot.specs:
        out.line()
        lists.show_specs(out, snapshot.specs, times)
    if offered is not None:
        out.line()
        show_lines(context, plugin.lines(offered, times))
    if snapshot.cards or snapshot.vnpus:
        out.line()
        _show_npus(context, snapshot)
    if snapshot.cards or snapshot.vnpus or snapshot.manager.blocked_reasons:
        show_lines(context, owners.lines(snapshot, own, times))
    if snapshot.cards or snapshot.vnpus:
        show_lines(context, reclaiming.lines(snapshot, told, times))
    _show_blocked(context, snapshot, times)
    out.line()
    if snapshot.findings:
        lists.show_findings(out, snapshot.findings, times)
    else:
        out.line("No findings.")


def remarks(manager: Manager, times: Times) -> list[tuple[str, Tone]]:
    """Say what is out of the ordinary about the daemon itself."""
    said: list[tuple[str, Tone]] = []
    if manager.cdi_paused_until_usec:
        said.append((f"Repairs of CDI files are paused {times.until(manager.cdi_paused_until_usec)}.", Tone.WARNING))
    if manager.cdi_mode == CdiMode.OBSERVE:
        said.append(("CDI files are only observed, not repaired (mode observe).", Tone.WARNING))
    elif manager.cdi_mode == CdiMode.OFF:
        said.append(("CDI files are neither looked at nor repaired (mode off).", Tone.WARNING))
    elif manager.cdi_mode not in ("", CdiMode.REPAIR):
        said.append((f"The mode for CDI files is {printable(manager.cdi_mode)}, which this devwardctl does not know.", Tone.WARNING))
    if manager.config_state == ConfigState.REFUSED:
        said.append(
            (f"The configuration on disk is refused; the one before it is in force. See {unbroken('devwardctl config --check')}.", Tone.BAD)
        )
    if manager.audit_dropped:
        said.append((f"{manager.audit_dropped} audit records were not taken by the journal.", Tone.WARNING))
    if manager.checking:
        said.append(("A check is under way.", Tone.FAINT))
    return said


def _show_npus(context: Context, snapshot: Snapshot) -> None:
    doubtful = [card for card in snapshot.cards if card.reason]
    prose(context.out, f"{npu_summary(snapshot.cards, snapshot.vnpus)}.", tone=Tone.WARNING if doubtful else Tone.PLAIN)
    for card in doubtful[:MAX_CARDS]:
        prose(context.out, f"{npu_name(card)} is not vouched for: {card.sentence} ({printable(card.reason)})", "  - ", "    ")
    more = f" ({len(doubtful) - MAX_CARDS} more are not vouched for)" if len(doubtful) > MAX_CARDS else ""
    prose(context.out, f"See them: {unbroken('devwardctl cards')}, {unbroken('devwardctl vnpus')}{more}", "  ", "  ", Tone.FAINT)


def show_lines(context: Context, lines: Sequence[owners.Line]) -> None:
    """Print a paragraph: its first line, and indented those that belong to it."""
    for number, line in enumerate(lines):
        indent = "  - " if line.is_item else "  " if number else ""
        prose(context.out, line.text, indent, "    " if line.is_item else "  ", line.tone)


def _show_blocked(context: Context, snapshot: Snapshot, times: Times) -> None:
    blocked = snapshot.blocked()
    if not blocked:
        return
    out = context.out
    out.line()
    out.line("Blocked", Tone.STRONG)
    said = {reason.rpartition(": ")[2] for reason in snapshot.manager.not_ready_reasons}
    for one in blocked:
        lasting = times.lasting(one.since_usec)
        # The sentence stands at the top already where it is why this host is not ready.
        why = "" if one.reason in said else f": {one.text}"
        code = f" ({printable(one.reason)})" if one.reason else ""
        prose(out, f"containers that ask for {printable(one.device)}{', ' + lasting if lasting else ''}{why}{code}", "  - ", "    ")
    kind = blocked[0].device.rpartition("=")[2]
    prose(out, f"What to do: {unbroken(f'devwardctl explain {printable(kind)}')}", "  ", "  ", Tone.FAINT)
