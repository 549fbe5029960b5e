"""What an administrator has devward remember, from the intent on record to the answer."""

from collections.abc import Callable
from typing import Protocol

from devward.audit import Audit, Record
from devward.model import ActionRequest, ActionResult, Outcome
from devward.reasons import REASON_TEXT, Reason
from devward.remembered import Remembered
from devward.state import State

_IN_MEMORY_ONLY = "is in force, but could not be saved and is lost at a restart"


class Then(Protocol):
    """What follows from a change."""

    async def __call__(self, *, saved: bool) -> Reason:
        """Do it; the change is in force, and `saved` where it outlasts a restart. Return for what it came too late; `ok`: for nothing."""


def not_saved(record: Record, member: str, target: str, *, of: str = "") -> tuple[ActionResult, ...]:
    """Say that a change is in memory alone; `of` is what the sentence says that it is of."""
    record.fail("not-saved", f"{member}{of and f' of {of}'} {_IN_MEMORY_ONLY}")
    return (ActionResult(target, Outcome.FAILURE, "not-saved"),)


def too_late(record: Record, member: str, target: str, why: Reason, *, saved: bool, of: str = "") -> tuple[ActionResult, ...]:
    """Say that a change is in force, but for what had begun before."""
    unsaved = "" if saved else " Nor could it be saved: it is lost at a restart."
    record.fail(why, f"{member}{of and f' of {of}'}: {REASON_TEXT[why]}{unsaved}")
    late = ActionResult(target, Outcome.FAILURE, why)
    return (late,) if saved else (late, ActionResult(target, Outcome.FAILURE, "not-saved"))


def told(record: Record, member: str, target: str, *, saved: bool, what: str = "") -> tuple[ActionResult, ...]:
    """Say how a change ended."""
    if not saved:
        return not_saved(record, member, target)
    record.succeed(f"{member} is in force{what}")
    return (ActionResult(target, Outcome.SUCCESS, Reason.OK),)


async def change(
    audit: Audit,
    remembered: Remembered,
    request: ActionRequest,
    member: str,
    target: str,
    what: str,
    change_of: Callable[[State], State],
    then: Then,
) -> tuple[ActionResult, ...]:
    """Change what is remembered, and let `then` do what follows from it, before that is told."""
    with audit.begin("action", f"{member} was asked for{what}", member=member, request=request) as record:
        is_same = change_of(remembered.state) == remembered.state
        saved = await remembered.update(change_of)
        if (why := await then(saved=saved)) is not Reason.OK:
            return too_late(record, member, target, why, saved=saved)
        if saved and is_same:
            record.noop(f"{member}: nothing to change")
            return (ActionResult(target, Outcome.NOOP, Reason.OK),)
        return told(record, member, target, saved=saved, what=what)
