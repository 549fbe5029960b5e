"""`devwardctl devices`, `specs` and `findings`: tables, which `status` shows too."""

from collections.abc import Sequence

from devward.ctl.client import Client
from devward.ctl.context import Context
from devward.ctl.facts import Device, Finding, Raw, Spec
from devward.ctl.failure import ExitStatus
from devward.ctl.layout import Cell, Column, table
from devward.ctl.terminal import Screen, Tone
from devward.ctl.when import Times, duration
from devward.ctl.wording import tone_of
from devward.model import Identity
from devward.text import printable


def run(context: Context) -> int:
    """Show one of the lists."""

    async def work(client: Client) -> int:
        snapshot = await client.snapshot()
        listed: dict[str, Sequence[Device] | Sequence[Spec] | Sequence[Finding]] = {
            "devices": snapshot.devices,
            "specs": snapshot.specs,
            "findings": snapshot.findings,
        }
        rows = listed[context.given.command]
        if context.json:
            raw: list[Raw] = [row.raw for row in rows]
            context.print_json(raw)
        elif not rows:
            context.out.line({"devices": "No devices.", "specs": "No CDI files.", "findings": "No findings."}[context.given.command])
        elif context.given.command == "devices":
            show_devices(context.out, snapshot.devices, context.times())
        elif context.given.command == "specs":
            show_specs(context.out, snapshot.specs, context.times())
        else:
            show_findings(context.out, snapshot.findings, context.times())
        return ExitStatus.OK

    return context.on_bus(work)


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
