"""The commands that ask the daemon to act: check, repair, adopt, rescan, reload, mode, pause, resume, accept-node, reclaim release."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from devward import names
from devward.ctl.advice import NOT_SAVED, Step, advice, cause, deed
from devward.ctl.client import Answer, Client, Result
from devward.ctl.context import Context
from devward.ctl.failure import ExitStatus, Failure
from devward.ctl.layout import prose, show_steps
from devward.ctl.reading import sentence
from devward.ctl.terminal import Tone, unbroken
from devward.ctl.when import USEC, Times, span
from devward.errors import NoSuchDevice, NoSuchNode, NoSuchPin, NoSuchSpec, NoSuchVnpu
from devward.text import printable

DRY_RUN: Final = 1

#: Codes of failures that are no reason of a device or a file.
_FAILURES: Final[Mapping[str, str]] = {
    "not-saved": NOT_SAVED,
    "stopping": "devwardd was stopped before it was done.",
    NoSuchDevice.code: "devward has no such device.",
    NoSuchSpec.code: "devward owns no such CDI file.",
    NoSuchPin.code: "Nothing of that name is pinned.",
    NoSuchNode.code: "The API server's Node of this host has not that UID, or nothing is known of it.",
    NoSuchVnpu.code: "There is no vNPU of that id and identity: it is not there any more, or the id is another vNPU's by now.",
    "internal": "devwardd met an error of its own; its journal has the details.",
}
#: The exit status for the outcome of an action; any other is a failure.
STATUS: Final[Mapping[str, ExitStatus]] = {
    "success": ExitStatus.OK,
    "noop": ExitStatus.OK,
    "dry-run": ExitStatus.OK,
    "partial": ExitStatus.PARTLY,
}


@dataclass(frozen=True, slots=True)
class Action:
    """A method of the Manager with its arguments, and what to say once it is in force."""

    member: str
    signature: str
    body: tuple[object, ...]
    done: Callable[[Times], str] = lambda _: ""
    #: What is said before the targets that it was done to, where each is told.
    each: str = ""


def action_of(given: argparse.Namespace) -> Action:
    """Return what a command line asks for."""
    match given.command:
        case "repair":
            return Action("RepairSpecs", "t", (DRY_RUN if given.dry_run else 0,))
        case "adopt":
            return Action("AdoptSpec", "st", (given.file, DRY_RUN if given.dry_run else 0))
        case "rescan":
            return Action("Rescan", "t", (0,))
        case "reload":
            return Action("Reload", "t", (0,), lambda _: "The configuration on disk is in force.")
        case "mode" if given.subject == "reclaim":
            return Action("SetReclaimMode", "st", (given.mode, 0), lambda _: f"The mode for reclaiming is {given.mode}.")
        case "mode":
            return Action("SetCdiMode", "st", (given.mode, 0), lambda _: f"The mode for CDI files is {given.mode}.")
        case "pause":
            member = "PauseReclaim" if given.subject == "reclaim" else "PauseCdi"
            return Action(member, "tst", (given.seconds, given.reason, 0), lambda times: _paused(times, given.seconds, given.subject))
        case "resume" if given.subject == "reclaim":
            return Action("ResumeReclaim", "t", (0,), lambda _: "Reclaiming is not paused.")
        case "resume":
            return Action("ResumeCdi", "t", (0,), lambda _: "Repairs of CDI files are not paused.")
        case "accept-node":
            return Action("AcceptNode", "st", (given.uid, 0), lambda _: f"The Node {printable(given.uid)} is taken for this host's.")
        case _:
            return Action("ReleaseBreaker", "t", (0,), lambda _: "The breaker does not stop reclaiming.", "agreed to")


def run(context: Context) -> int:
    """Ask for the action and tell how it ended."""

    async def check(client: Client) -> int:
        answer = await client.ask("CheckAllocation", "s", [context.given.device], expect="bsss")
        allowed, reason, text, request_id = cast(tuple[bool, str, str, str], answer)
        if context.json:
            told = {"device": context.given.device, "allowed": allowed, "reason": reason, "text": text, "request_id": request_id}
            context.print_json(told)
        elif allowed:
            prose(context.out, f"allowed: {printable(text)}", tone=Tone.GOOD)
        else:
            prose(context.out, f"refused: {sentence(reason, text)} ({printable(reason)})", tone=Tone.BAD)
            show_steps(context.out, await _steps(client, context.given.device, reason))
        if not context.json:
            context.out.line(f"request {printable(request_id)}", Tone.FAINT)
        return ExitStatus.OK if allowed else ExitStatus.UNHEALTHY

    async def show_mode(client: Client) -> int:
        manager = (await client.snapshot()).manager
        mode, what = (manager.reclaim_mode, "reclaiming") if context.given.subject == "reclaim" else (manager.cdi_mode, "CDI files")
        if context.json:
            context.print_json({"mode": mode})
        else:
            context.out.line(f"The mode for {what} is {printable(mode) or 'not told'}.")
        return ExitStatus.OK

    async def act(client: Client) -> int:
        action = action_of(context.given)
        answer = await client.act(action.member, action.signature, action.body)
        show(context, action, answer)
        return STATUS.get(answer.outcome, ExitStatus.UNHEALTHY)

    if context.given.command == "mode" and context.given.mode is None:
        return context.on_bus(show_mode)
    return context.on_bus(check if context.given.command == "check" else act)


async def _steps(client: Client, name: str, reason: str) -> tuple[Step, ...]:
    """Return what to do about a refusal, with the names of the device and of its file."""
    node = f"{names.DEVICE_DIRECTORY}/{name.rpartition('/')[2].rpartition('=')[2]}"
    try:
        snapshot = await client.snapshot()
    except Failure:
        return advice(reason, device=node).steps
    device = next((one for one in snapshot.devices if one.node == node), None)
    spec = snapshot.spec_of(device) if device is not None else None
    return advice(reason, device=node, file=spec.file if spec is not None else "FILE").steps


def show(context: Context, action: Action, answer: Answer) -> None:
    """Print how an action ended: what was done to each target, and its request id."""
    if context.json:
        results = [{"target": one.target, "outcome": one.outcome, "reason": one.reason} for one in answer.results]
        context.print_json({"request_id": answer.request_id, "outcome": answer.outcome, "results": results})
        return
    out = context.out
    said = action.done(context.times()) if answer.outcome in ("success", "noop") else ""
    if said:
        prose(out, said, tone=Tone.GOOD)
    for result in answer.results:
        if not said or result.reason or result.outcome not in ("success", "noop"):
            prose(out, line(result), further="  ", tone=_tone(result.outcome))
        elif action.each and result is not answer.results[0]:
            out.line(f"{action.each} {printable(result.target)}")
    if answer.outcome not in STATUS and not answer.results:
        prose(out, f"The outcome is {printable(answer.outcome)}.", tone=Tone.BAD)
    out.line(f"request {printable(answer.request_id)}", Tone.FAINT)


def line(result: Result) -> str:
    """Say what happened to one target."""
    target = printable(result.target) or "the request"
    why = cause(result.reason)
    match result.outcome:
        case "success" if why:
            return f"{target}: {deed(result.reason)}, as {why}"
        case "success":
            return f"{target}: done" if not result.reason else f"{target}: done; {_reason(result.reason)}"
        case "noop":
            return f"{target}: nothing to do" if not result.reason else f"{target}: nothing done; {_reason(result.reason)}"
        case "dry-run":
            return f"{target}: would be {deed(result.reason)}, as {why or _reason(result.reason)}"
        case "failure":
            return f"{target}: failed; {_reason(result.reason)}"
    return f"{target}: {printable(result.outcome)}; {_reason(result.reason)}"


def _reason(code: str) -> str:
    if not code:
        return "no reason was given"
    return f"{_FAILURES.get(code) or sentence(code)} ({printable(code)})"


def _tone(outcome: str) -> Tone:
    return {"success": Tone.GOOD, "noop": Tone.PLAIN, "dry-run": Tone.PLAIN}.get(outcome, Tone.BAD)


def _paused(times: Times, seconds: int, subject: str) -> str:
    until = times.now_usec + seconds * USEC
    end = times.until(until) if times.utc else f"for {span(seconds)}, until {times.clock(until)}"
    what = "Reclaiming is" if subject == "reclaim" else "Repairs of CDI files are"
    return f"{what} paused {end}. To end it sooner: {unbroken(f'devwardctl resume {subject}')}."
