"""`devwardctl history`: what was seen, done and refused, from the audit records in the journal. Needs no daemon."""

import os
from typing import Final

from devward import names
from devward.ctl import journal
from devward.ctl.arguments import HISTORY_RECORDS
from devward.ctl.context import Context
from devward.ctl.failure import ExitStatus, Failure
from devward.ctl.journal import Query, Record
from devward.ctl.layout import Cell, Column, table
from devward.ctl.terminal import Tone, unbroken
from devward.ctl.when import Times
from devward.model import DeviceKind, Outcome
from devward.text import printable

#: The width from which on the request ids are shown, too; without a limit they always are.
WIDE: Final = 132
#: PRIORITY of a warning, as in syslog(3); smaller is worse.
WARNING: Final = 4
ERROR: Final = 3


def run(context: Context) -> int:
    """Show the records; status 0 also where there are none."""
    query = query_of(context)
    records = journal.read(query, context.environ)
    if context.json:
        for record in records:
            context.print_json(
                {"time_usec": record.time_usec, "message": record.message, "priority": record.priority, **record.fields}, indent=None
            )
    elif records:
        _show(context, journal.acts(records)[-_lines(context) :], context.times())
    else:
        context.out.line("No records.")
    if os.geteuid() != 0 and not records and journal.unreadable_journal(query):
        context.complain("This user may not read the system's journal.", "Run it as root, or join the group systemd-journal.")
        return ExitStatus.DENIED
    return ExitStatus.OK


def query_of(context: Context) -> Query:
    """Return what the command line asks for."""
    given = context.given
    unknown = [event for event in given.event or () if event not in names.MESSAGE_IDS]
    if unknown:
        raise Failure(
            ExitStatus.USAGE,
            f"devward records no event {printable(unknown[0], 80)!r}.",
            f"{unbroken('devwardctl complete events')} lists those there are; the meaning of each is in devwardd(8).",
        )
    # An intent whose outcome is there is not shown on the screen, and an act has one of each.
    lines = _lines(context) * (1 if context.json else 2)
    return Query(
        since=given.since or "",
        until=given.until or "",
        device=device_node(given.device or ""),
        file=given.file or "",
        vnpu=given.vnpu,
        request=given.request or "",
        events=tuple(given.event or ()),
        lines=lines,
        directory=given.journal or "",
    )


def _lines(context: Context) -> int:
    """Return how many records are wanted; 0 for all."""
    given = context.given
    limited = given.since or given.until or given.request
    return int(given.lines) if given.lines is not None else 0 if limited else HISTORY_RECORDS


def device_node(text: str) -> str:
    """Return the node that records name for a device given as kvm, /dev/kvm or hyperlight.dev/hypervisor=kvm."""
    kind = text.removeprefix(names.HYPERVISOR_CDI_KIND + "=")
    return f"{names.DEVICE_DIRECTORY}/{kind}" if kind in list(DeviceKind) else text


def message(record: Record) -> str:
    """Return a record's message, with who asked for it."""
    uid = record.text("caller_uid")
    shown = printable(record.message, 1000)
    return f"{shown} (uid {printable(uid)})" if uid and f"uid {uid}" not in shown else shown


def _show(context: Context, records: list[Record], times: Times) -> None:
    columns = [Column("TIME"), Column("EVENT"), Column("OUTCOME"), Column("MESSAGE", flows=True)]
    available = context.out.capable.columns
    with_request = available is None or available >= WIDE
    if with_request:
        columns.append(Column("REQUEST"))
    rows = []
    for record in records:
        outcome = record.text("outcome")
        row = [
            Cell(times.clock(record.time_usec)),
            Cell(printable(record.text("event"))),
            Cell("unfinished" if outcome == Outcome.INTENT else printable(outcome), _tone(outcome)),
            Cell(message(record), Tone.BAD if record.priority <= ERROR else Tone.WARNING if record.priority <= WARNING else Tone.PLAIN),
        ]
        rows.append([*row, Cell(printable(record.text("request_id")), Tone.FAINT)] if with_request else row)
    table(context.out, columns, rows)


def _tone(outcome: str) -> Tone:
    tones: dict[str, Tone] = {Outcome.SUCCESS: Tone.GOOD, Outcome.FAILURE: Tone.BAD, Outcome.DENIED: Tone.BAD, Outcome.INTENT: Tone.WARNING}
    return tones.get(outcome, Tone.PLAIN)
