"""`devwardctl reclaim status` and `reclaim now`: how reclaiming stands, and to have it done."""

import re
from typing import Final

from devward.ctl import owners, reclaiming
from devward.ctl.actions import DRY_RUN, STATUS
from devward.ctl.advice_reclaim import BLOCKED_ADVICE
from devward.ctl.client import Answer, Client, Result
from devward.ctl.context import Context
from devward.ctl.explain_npu import vnpu_meant
from devward.ctl.explain_reclaim import say_code
from devward.ctl.facts import Snapshot
from devward.ctl.failure import ExitStatus, Failure
from devward.ctl.layout import Cell, Column, prose, table
from devward.ctl.npu_facts import Vnpu
from devward.ctl.ownership_facts import Ownership, ownership
from devward.ctl.reading import UNKNOWN
from devward.ctl.reclaim_facts import Gone, Leak, Reclaim, reclaim
from devward.ctl.status import show_lines
from devward.ctl.terminal import Tone, unbroken
from devward.ctl.when import Times
from devward.ctl.wording import cores, counted
from devward.text import printable

#: What tells a vNPU from all others: DIE/VDEV/TEMPLATE and a digest. A pin has no digest.
_IDENTITY: Final = re.compile(r"[0-9A-Fa-f-]+/\d+/[^/]*/[0-9a-f]+")
#: The flag to wait for the short pace only.
SHORTEN: Final = 2
#: Seconds that the daemon follows a wish with a shorter wait, and some for the looks that end it.
PATIENCE_SECONDS: Final = 1200.0
#: Of what became of vNPUs, the last ones.
MAX_GONE: Final = 20
_OTHER_VERSION: Final = f"It is of another version than this devwardctl; after an upgrade: {unbroken('systemctl restart devward.service')}."


def run(context: Context) -> int:
    """Show how reclaiming stands, or ask for it and tell what became of each vNPU."""

    async def show(client: Client) -> int:
        snapshot, described = await client.snapshot(), await client.describe()
        told = reclaim(described)
        if told is None:
            raise Failure(ExitStatus.UNHEALTHY, "This devwardd does not offer reclaiming.", _OTHER_VERSION)
        if context.json:
            context.print_json(described["reclaim"])
        else:
            show_status(context, snapshot, told, ownership(described))
        return ExitStatus.OK

    async def act(client: Client) -> int:
        given = context.given
        snapshot = await client.snapshot()
        flags = (DRY_RUN if given.dry_run else 0) | (SHORTEN if given.shorten else 0)
        if given.vnpu is None:
            answer = await client.act("ReclaimOrphans", "t", (flags,), patience=PATIENCE_SECONDS)
        else:
            vnpu = meant(given.vnpu, snapshot)
            answer = await client.act("ReclaimVnpu", "ust", (vnpu.id, vnpu.identity, flags), patience=PATIENCE_SECONDS)
        show_answer(context, answer, snapshot)
        return STATUS.get(answer.outcome, ExitStatus.UNHEALTHY)

    return context.on_bus(show if context.given.subject == "status" else act)


def meant(what: str, snapshot: Snapshot) -> Vnpu:
    """Return the vNPU that is meant by a name, id, node or identity. Failure where there is none, or it cannot be told from another."""
    vnpu = vnpu_meant(what, snapshot)
    if vnpu is None:
        raise Failure(
            ExitStatus.UNHEALTHY,
            f"devward sees no vNPU named {printable(what, 80)}.",
            f"{unbroken('devwardctl vnpus')} lists those there are.",
        )
    if not vnpu.identity or vnpu.id == UNKNOWN:
        raise Failure(
            ExitStatus.UNHEALTHY,
            f"Nothing tells {printable(vnpu.name)} from a later vNPU of its id, so that it is never reclaimed.",
            f"See why: {unbroken(f'devwardctl explain {printable(vnpu.name)}')}",
        )
    return vnpu


def show_answer(context: Context, answer: Answer, snapshot: Snapshot) -> None:
    """Print what became of each vNPU, and the request id."""
    if context.json:
        results = [{"target": one.target, "outcome": one.outcome, "reason": one.reason} for one in answer.results]
        context.print_json({"request_id": answer.request_id, "outcome": answer.outcome, "results": results})
        return
    out = context.out
    named = {vnpu.identity: vnpu.name for vnpu in snapshot.vnpus if vnpu.identity}
    if not answer.results:
        is_good = answer.outcome in STATUS
        text = "There is no vNPU that nobody seems to have." if is_good else f"The outcome is {printable(answer.outcome)}."
        prose(out, text, tone=Tone.PLAIN if is_good else Tone.BAD)
    for result in answer.results:
        prose(out, line(result, named.get(result.target, "")), further="  ", tone=_tone(result.outcome))
    out.line(f"request {printable(answer.request_id)}", Tone.FAINT)


def is_vnpu(target: str) -> bool:
    """Whether the target of a result is a vNPU."""
    return _IDENTITY.fullmatch(target) is not None


def line(result: Result, name: str) -> str:
    """Say what became of one vNPU; `name` is that on the bus, empty where it is not known."""
    target = printable(name or result.target)
    why = say_code(result.reason) if result.reason else ""
    match result.outcome:
        case "success":
            return f"{target}: destroyed{'; ' + why if why else ''}"
        case "noop":
            return f"{target}: nothing to do{'; ' + why if why else ''}"
        case "dry-run":
            if not why:
                return f"{target}: would be destroyed now, unless a limit is reached"
            # These stop what is due, and nothing else: of a vNPU that is not due its own reason is told.
            return (
                f"{target}: is due; it would be destroyed but for this: {why}"
                if result.reason in BLOCKED_ADVICE
                else f"{target}: would stay; {why}"
            )
        case "failure":
            return f"{target}: not destroyed; {why or 'no reason was given'}"
    return f"{target}: {printable(result.outcome)}{'; ' + why if why else ''}"


def show_status(context: Context, snapshot: Snapshot, told: Reclaim, own: Ownership | None) -> None:
    """Print what reclaiming does, what stops it, what lies about unused, what became of vNPUs, the rates and the counters."""
    out, times = context.out, context.times()
    show_lines(context, reclaiming.lines(snapshot, told, times, owners.items(snapshot.manager, own, told)))
    columns = [Column(title) for title in ("NPU", "VNPUS", "CORES", "OLDEST SEEN")]
    if not told.are_leaks_known:
        out.line()
        out.line("What lies about unused is not known now.", Tone.WARNING)
    if told.by_card:
        out.line()
        out.line("What lies about unused", Tone.STRONG)
        table(out, columns, [_leak(leak, times) for leak in told.by_card])
        if told.unknown_vnpus:
            out.line(f"Of {counted(told.unknown_vnpus, 'more vNPU')} that is not known now.", Tone.FAINT)
    if told.by_owner:
        out.line()
        out.line("Whose Pods left it", Tone.STRONG)
        table(out, [Column("OWNER"), *columns], [[Cell(reclaiming.left_by(leak)), *_leak(leak, times)] for leak in told.by_owner])
        if told.more_owners:
            out.line(f"{told.more_owners} more lines are left out; these left the most.", Tone.FAINT)
    if told.gone:
        out.line()
        out.line("What became of vNPUs", Tone.STRONG)
        columns = [
            *(Column(title) for title in ("WHEN", "VNPU", "NPU", "TEMPLATE", "WHAT")),
            Column("LAST VERDICT", optional=True),
            Column("REQUEST", optional=True),
        ]
        table(out, columns, [_gone(gone, times) for gone in told.gone[-MAX_GONE:]])
        if len(told.gone) > MAX_GONE:
            out.line(f"{len(told.gone) - MAX_GONE} more went before; --json has all of them.", Tone.FAINT)
    if allowed := reclaiming.rates(told, times):
        out.line()
        prose(out, allowed)
    counters = reclaiming.counters(told)
    if counters:
        out.line()
        out.line("Since devwardd started", Tone.STRONG)
        for text in counters:
            prose(out, text, "  ", "    ")


def _leak(leak: Leak, times: Times) -> list[Cell]:
    return [
        Cell(printable(leak.card) or "not told"),
        Cell(str(leak.count)),
        Cell(cores(leak.cores)),
        Cell(times.ago(leak.since_usec) if leak.since_usec else ""),
    ]


def _gone(gone: Gone, times: Times) -> list[Cell]:
    tone = {"destroyed": Tone.GOOD, "vanished-foreign": Tone.BAD}.get(gone.fate, Tone.PLAIN)
    return [
        Cell(times.clock(gone.at_usec)),
        Cell(str(gone.vdev) if gone.vdev != UNKNOWN else "?"),
        Cell(printable(gone.card)),
        Cell(printable(gone.template)),
        Cell(printable(gone.fate), tone),
        Cell(printable(gone.verdict)),
        Cell(printable(gone.request_id), Tone.FAINT),
    ]


def _tone(outcome: str) -> Tone:
    return {"success": Tone.GOOD, "noop": Tone.PLAIN, "dry-run": Tone.PLAIN}.get(outcome, Tone.BAD)
