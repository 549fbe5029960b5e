"""What a change came too late for: by what this run of the daemon began, and by the lock of whatever broker there is."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from devward.npu.client import DESTROY_SECONDS
from devward.reasons import Reason
from devward.reclaim.aftermath import Result
from devward.reclaim.underway import WAIT_SECONDS, Underway, lateness
from sim.reclaim_desk import expected_of

OWN, OTHER = (f"{expected_of(vdev).die}/{vdev}/{expected_of(vdev).template}" for vdev in (100, 116))


class Desk:
    """What is under way, and the lock."""

    def __init__(self, result: Result | None = None) -> None:
        self.last: Underway | None = begun(result)
        self.is_held = False

    def asked(self, target: str) -> Callable[[], Awaitable[Reason]]:
        return lateness(lambda: self.last, target, lambda: self.is_held)

    def told(self, target: str) -> Reason:
        async def main() -> Reason:
            return await self.asked(target)()

        return asyncio.run(main())


def begun(result: Result | None, vdev: int = 100) -> Underway:
    underway = Underway(expected_of(vdev))
    if result is not None:
        underway.end(result)
    return underway


def test_an_answer_waits_for_longer_than_a_destruction_may_take() -> None:
    assert WAIT_SECONDS > DESTROY_SECONDS


@pytest.mark.parametrize("result", [Result.DESTROYED, Result.STILL_PRESENT, Result.REFUSED])
def test_what_is_over_holds_no_lock_so_that_whoever_does_may_be_at_any(result: Result) -> None:
    desk = Desk(result)
    assert [desk.told(target) for target in (OWN, OTHER, "")] == [Reason.OK] * 3
    desk.is_held = True
    assert [desk.told(target) for target in (OWN, OTHER, "")] == [Reason.DESTRUCTION_BEGUN] * 3


def test_what_never_answered_holds_the_lock_itself() -> None:
    desk = Desk(Result.UNKNOWN)
    assert [desk.told(target) for target in (OWN, OTHER, "")] == [Reason.OK] * 3
    desk.is_held = True
    assert [desk.told(target) for target in (OWN, OTHER, "")] == [Reason.DESTRUCTION_BEGUN, Reason.OK, Reason.DESTRUCTION_BEGUN]


@pytest.mark.parametrize("target", [OWN, ""])
def test_a_lock_that_was_held_when_the_change_came_counts_though_it_is_let_go_of(target: str) -> None:
    desk = Desk(Result.UNKNOWN)
    desk.is_held = True
    asked = desk.asked(target)
    desk.is_held = False
    assert asyncio.run(_answer(asked)) is Reason.DESTRUCTION_BEGUN


@pytest.mark.parametrize("before", [None, Result.UNKNOWN, Result.REFUSED])
def test_what_began_later_heeded_the_change(before: Result | None) -> None:
    desk = Desk(before)
    if before is None:
        desk.last = None
    asked = desk.asked(OWN)
    desk.last, desk.is_held = begun(None, 116), True
    assert asyncio.run(_answer(asked)) is Reason.OK


async def _answer(asked: Callable[[], Awaitable[Reason]]) -> Reason:
    return await asked()
