"""`devwardctl devices`, `specs`, `cards`, `vnpus` and `findings`: tables, some of which `status` shows too."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from devward import names
from devward.ctl.client import Client
from devward.ctl.context import Context
from devward.ctl.facts import Device, Finding, Snapshot, Spec
from devward.ctl.failure import ExitStatus
from devward.ctl.layout import Cell, Column, prose, table
from devward.ctl.npu_facts import Card, Vnpu
from devward.ctl.reading import Raw
from devward.ctl.terminal import Screen, Tone
from devward.ctl.when import Times, duration
from devward.ctl.wording import cores, tone_of
from devward.model import Identity
from devward.npu.views import Management, Protection
from devward.text import printable

_NONE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "devices": "No devices.",
        "specs": "No CDI files.",
        "cards": "No Ascend NPUs.",
        "vnpus": "No vNPUs.",
        "findings": "No findings.",
    }
)
#: How the reason codes begin that are about NPUs and vNPUs.
_NPU_CODES: Final = ("npu-", "vnpu-")
#: The methods, and the signatures of their answers, that a daemon has which knows of these.
_KNOWS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {"cards": ("ListCards", "a(issddso)"), "vnpus": ("ListVnpus", "a(ussssoo)")}
)


def run(context: Context) -> int:
    """Show one of the lists."""
    kind = context.given.command

    async def work(client: Client) -> int:
        snapshot = await client.snapshot()
        listed: dict[str, Sequence[Device] | Sequence[Spec] | Sequence[Card] | Sequence[Vnpu] | Sequence[Finding]] = {
            "devices": snapshot.devices,
            "specs": snapshot.specs,
            "cards": snapshot.cards,
            "vnpus": snapshot.vnpus,
            "findings": snapshot.findings,
        }
        rows = listed[kind]
        if not rows and kind in _KNOWS:
            # A daemon that does not know of them is not one that knows of none.
            member, signature = _KNOWS[kind]
            await client.call(names.ROOT_PATH, names.MANAGER_INTERFACE, member, expect=signature)
        if context.json:
            raw: list[Raw] = [row.raw for row in rows]
            context.print_json(raw)
        elif not rows:
            context.out.line(_NONE[kind])
            if kind in _KNOWS:
                _show_doubts(context, snapshot)
        elif kind == "devices":
            show_devices(context.out, snapshot.devices, context.times())
        elif kind == "specs":
            show_specs(context.out, snapshot.specs, context.times())
        elif kind == "cards":
            show_cards(context.out, snapshot)
        elif kind == "vnpus":
            show_vnpus(context.out, snapshot, context.times())
        else:
            show_findings(context.out, snapshot.findings, context.times())
        return ExitStatus.OK

    return context.on_bus(work)


def _show_doubts(context: Context, snapshot: Snapshot) -> None:
    """Say why there may be NPUs that are not shown."""
    doubts = [finding for finding in snapshot.findings if finding.code.startswith(_NPU_CODES)]
    if doubts:
        prose(context.out, "But devward may not see all that there is:", tone=Tone.WARNING)
        show_findings(context.out, doubts, context.times())


def state(text: str) -> Cell:
    """Return a state with its colour; one that is not known is a warning."""
    return Cell(printable(text), tone_of(text))


def show_devices(screen: Screen, devices: Sequence[Device], times: Times) -> None:
    """Print a line for each device."""
    columns = [
        Column("DEVICE"),
        Column("IDENTITY"),
        Column("HEALTH"),
        Column(times.since_title),
        Column("REASON"),
        Column("NUMBER", optional=True),
        Column("LAST CHECK", optional=True),
    ]
    rows = [
        [
            Cell(printable(device.node)),
            Cell(printable(device.identity), Tone.PLAIN if device.identity == Identity.VALID else Tone.WARNING),
            state(device.health),
            Cell(times.since(device.health_since_usec)),
            Cell(printable(device.reason), Tone.WARNING),
            Cell(printable(device.number)),
            Cell(_last_check(device, times)),
        ]
        for device in devices
    ]
    table(screen, columns, rows)


def show_specs(screen: Screen, specs: Sequence[Spec], times: Times) -> None:
    """Print a line for each CDI file."""
    columns = [
        Column("CDI FILE"),
        Column("STATE"),
        Column(times.since_title),
        Column("REASON"),
        Column("DEVICES", optional=True),
        Column("REPAIRS", optional=True),
    ]
    rows = [
        [
            Cell(printable(spec.file)),
            state(spec.state),
            Cell(times.since(spec.state_since_usec)),
            Cell(printable(spec.reason), Tone.WARNING),
            Cell(printable(", ".join(name.rpartition("=")[2] for name in spec.devices))),
            Cell(repairs(spec, times)),
        ]
        for spec in specs
    ]
    table(screen, columns, rows)


def show_cards(screen: Screen, snapshot: Snapshot) -> None:
    """Print a line for each NPU."""
    columns = [
        Column("NPU"),
        Column("CHIP"),
        Column("HEALTH"),
        Column("CORES USED"),
        Column("VNPUS"),
        Column("REASON"),
        Column("PROTECTION", optional=True),
        Column("CLAIMS", optional=True),
        Column("MANAGED", optional=True),
        Column("NODE", optional=True),
        Column("DIE ID", optional=True),
        Column("CARD,CHIP", optional=True),
    ]
    is_asked = any(map(_is_asked, snapshot.cards))
    parts = Counter(vnpu.card_name for vnpu in snapshot.vnpus)
    rows = [
        [
            Cell(printable(card.name)),
            Cell(printable(card.chip)),
            state(card.health),
            Cell(_of(cores(card.used_cores), cores(card.total_cores))),
            Cell(str(parts[card.name])),
            Cell(printable(card.reason), Tone.WARNING),
            *(_ownership(card) if is_asked else (Cell(""), Cell(""), Cell(""))),
            Cell(printable(card.node)),
            Cell(printable(card.die_id)),
            Cell(f"{card.card_id},{card.device_id}" if card.card_id >= 0 else ""),
        ]
        for card in snapshot.cards
    ]
    table(screen, columns, rows)


def _is_asked(card: Card) -> bool:
    """Whether somebody was asked who owns it: on a host without Kubernetes the columns would say nothing."""
    unasked = card.managed in ("", Management.UNKNOWN) and card.protection in ("", Protection.NOT_EVALUATED)
    return bool(card.claims) or not unasked


def _ownership(card: Card) -> tuple[Cell, Cell, Cell]:
    is_counted = bool(card.claims) or card.protection not in ("", Protection.NOT_EVALUATED)
    return (
        Cell(printable(card.protection), Tone.WARNING if card.protection == Protection.UNKNOWN else Tone.PLAIN),
        Cell(str(len(card.claims)) if is_counted else ""),
        Cell(printable(card.managed)),
    )


def show_vnpus(screen: Screen, snapshot: Snapshot, times: Times) -> None:
    """Print a line for each vNPU."""
    is_stopped = snapshot.manager.is_reclaiming_stopped
    columns = [
        Column("VNPU"),
        Column("NPU"),
        Column("TEMPLATE"),
        Column("USE"),
        Column("VERDICT"),
        Column("REASON"),
        # Since when its wait runs, and when that may end.
        Column(f"WAITS {times.since_title}", optional=True),
        Column("RECLAIMED AT" if times.utc else "RECLAIMED", optional=True),
        Column("CORES", optional=True),
        Column("FIRST SEEN", optional=True),
        Column("NODE", optional=True),
        Column("IDENTITY", optional=True),
    ]
    rows = [
        [
            Cell(printable(vnpu.name)),
            Cell(printable(vnpu.card_name)),
            Cell(printable(vnpu.template)),
            Cell(printable(vnpu.in_use)),
            Cell(printable(vnpu.verdict)),
            Cell(printable(vnpu.reason), Tone.WARNING) if vnpu.reason else Cell(printable(vnpu.verdict_reason)),
            Cell(times.since(vnpu.grace_start_usec)),
            Cell(_due(vnpu, times, is_stopped=is_stopped)),
            Cell(cores(vnpu.cores)),
            Cell(times.ago(vnpu.first_seen_usec) if vnpu.first_seen_usec else ""),
            Cell(printable(vnpu.node)),
            Cell(printable(vnpu.identity)),
        ]
        for vnpu in snapshot.vnpus
    ]
    table(screen, columns, rows)


def show_findings(screen: Screen, findings: Sequence[Finding], times: Times) -> None:
    """Print a line for each finding."""
    columns = [Column("FINDING"), Column("SUBJECT"), Column(times.since_title, optional=True), Column("TEXT", flows=True)]
    rows = [
        [
            Cell(printable(finding.code), Tone.WARNING),
            Cell(printable(finding.subject)),
            Cell(times.since(finding.since_usec)),
            Cell(printable(finding.text, 400).removeprefix(f"{printable(finding.subject)}: ")),
        ]
        for finding in findings
    ]
    table(screen, columns, rows)


def repairs(spec: Spec, times: Times) -> str:
    """Say how often a file was repaired since the daemon started, when last, and why."""
    if not spec.repair_count:
        return "none"
    cause = f" ({printable(spec.last_repair_cause)})" if spec.last_repair_cause else ""
    return f"{spec.repair_count}, last {times.ago(spec.last_repair_usec)}{cause}"


def _last_check(device: Device, times: Times) -> str:
    if not device.last_check_usec:
        return "never"
    return f"{times.ago(device.last_check_usec)}, {duration(device.check_duration_usec)}"


def _due(vnpu: Vnpu, times: Times, *, is_stopped: bool) -> str:
    """Say when a vNPU may be reclaimed."""
    if not vnpu.eligible_at_usec:
        return ""
    if is_stopped:
        return "stopped"
    return times.ago(vnpu.eligible_at_usec) if times.utc or vnpu.eligible_at_usec > times.now_usec else "may be now"


def _of(part: str, whole: str) -> str:
    return f"{part or '?'} of {whole}" if whole else part
