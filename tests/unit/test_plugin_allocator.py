"""The time that an allocation may take, and what becomes of checks that end too late, break off or are left."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from devward.breakages import Breakages
from devward.model import DeviceKind
from devward.plugin.allocator import Allocator
from devward.plugin.decision import Answer, Vouched
from devward.reasons import Reason
from sim.plugin_host import allowed, refused
from sim.virtual_time import START, VirtualClock, VirtualTimeLoop, run_virtual

KVM, MSHV = DeviceKind.KVM, DeviceKind.MSHV
Check = Callable[[VirtualTimeLoop], Awaitable[Vouched]]


def run(check: Check, *more: Check, seconds: float | None = None) -> tuple[list[Answer], list[float], Allocator]:
    """Judge kvm once a check, which repeats as often as it is asked for; return the answers and how long each took."""

    async def main(loop: VirtualTimeLoop) -> tuple[list[Answer], list[float], Allocator]:
        answers, took = [], []
        checks = [check]

        async def ask(_: DeviceKind) -> Vouched:
            return await checks[0](loop)

        allocator = Allocator(ask, VirtualClock(loop), Breakages())
        for checks[0] in (check, *more):
            began = loop.now
            answers.append((await allocator.judge([KVM]))[KVM].answer)
            took.append(loop.now - began)
        if seconds is not None:
            await asyncio.sleep(seconds)
        return answers, took, allocator

    return run_virtual(main)


async def good(loop: VirtualTimeLoop) -> Vouched:
    return allowed(loop.now)


async def inconclusive(_: VirtualTimeLoop) -> Vouched:
    return refused(Reason.PROBE_INCONCLUSIVE, START)


async def replaced(_: VirtualTimeLoop) -> Vouched:
    """Meet another node, of which no check was completed."""
    return refused(Reason.PROBE_INCONCLUSIVE)


async def bad(_: VirtualTimeLoop) -> Vouched:
    return refused(Reason.HYPERVISOR_BUSY)


async def hung(_: VirtualTimeLoop) -> Vouched:
    await asyncio.sleep(3600)
    raise AssertionError


async def breaking(_: VirtualTimeLoop) -> Vouched:
    raise OSError("no more descriptors")


def test_a_hung_check_is_refused_before_two_seconds_are_over() -> None:
    answers, took, _ = run(hung)
    assert answers == [Answer.REFUSE]
    assert 1.9 <= took[0] < 2.0


def test_a_check_that_cannot_be_ended_holds_up_nothing() -> None:
    async def stubborn(_: VirtualTimeLoop) -> Vouched:
        for _ in range(20):
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                continue
        return refused(Reason.HYPERVISOR_BUSY)

    answers, took, _ = run(stubborn, good, seconds=30)
    assert answers == [Answer.REFUSE, Answer.GIVE]
    assert took[0] < 2.0


def test_an_inconclusive_check_is_made_again_until_the_budget_is_spent() -> None:
    answers, took, _ = run(inconclusive)
    assert answers == [Answer.REFUSE]
    assert 1.8 <= took[0] < 2.0


def test_an_inconclusive_check_that_becomes_conclusive_decides() -> None:
    count = 0

    async def third_time(loop: VirtualTimeLoop) -> Vouched:
        nonlocal count
        count += 1
        return allowed(loop.now) if count == 3 else refused(Reason.PROBE_INCONCLUSIVE)

    answers, took, _ = run(third_time)
    assert answers == [Answer.GIVE]
    assert took[0] == pytest.approx(0.2)


def test_a_young_good_check_stands_in_for_one_that_was_not_completed() -> None:
    assert run(good, inconclusive, inconclusive)[0] == [Answer.GIVE, Answer.GIVE, Answer.GIVE]


def test_none_stands_in_for_one_that_breaks_off(caplog: pytest.LogCaptureFixture) -> None:
    assert run(good, breaking, inconclusive)[0] == [Answer.GIVE, Answer.REFUSE, Answer.REFUSE]
    assert caplog.text.count("Traceback") == 1, "it was made again and again"
    assert "no more descriptors" in caplog.text


def test_nor_for_one_of_a_node_that_took_the_place_of_the_good_one() -> None:
    assert run(good, replaced, inconclusive)[0] == [Answer.GIVE, Answer.REFUSE, Answer.REFUSE]


def test_an_old_one_does_not() -> None:
    async def old(loop: VirtualTimeLoop) -> Vouched:
        return allowed(loop.now - 31)

    assert run(old, inconclusive)[0] == [Answer.GIVE, Answer.REFUSE]


def test_nor_one_from_before_a_bad_check() -> None:
    assert run(good, bad, inconclusive)[0] == [Answer.GIVE, Answer.REFUSE, Answer.REFUSE]


def test_nor_one_from_before_the_device_was_told_to_be_bad() -> None:
    async def main(loop: VirtualTimeLoop) -> Answer:
        current: Check = good

        async def ask(_: DeviceKind) -> Vouched:
            return await current(loop)

        allocator = Allocator(ask, VirtualClock(loop), Breakages())
        await allocator.judge([KVM])
        allocator.withdrawn(KVM)
        current = inconclusive
        return (await allocator.judge([KVM]))[KVM].answer

    assert run_virtual(main) is Answer.REFUSE


def test_a_check_that_cancels_itself_is_one_that_broke_off() -> None:
    async def cancelled(_: VirtualTimeLoop) -> Vouched:
        raise asyncio.CancelledError

    assert run(cancelled)[0] == [Answer.REFUSE]


def test_a_caller_that_goes_away_ends_its_own_check_and_nothing_else() -> None:
    async def main(loop: VirtualTimeLoop) -> list[Any]:
        ended: list[str] = []

        async def ask(_: DeviceKind) -> Vouched:
            if not ended:
                try:
                    await asyncio.sleep(1)
                except asyncio.CancelledError:
                    ended.append("first")
                    raise
            return allowed(loop.now)

        allocator = Allocator(ask, VirtualClock(loop), Breakages())
        first = asyncio.ensure_future(allocator.judge([KVM]))
        await asyncio.sleep(0.1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        verdicts = await allocator.judge([KVM])
        return [first.cancelled(), ended, verdicts[KVM].answer]

    assert run_virtual(main) == [True, ["first"], Answer.GIVE]


def test_devices_are_judged_at_the_same_time_and_each_by_itself() -> None:
    async def main(loop: VirtualTimeLoop) -> tuple[dict[DeviceKind, Answer], float]:
        async def ask(kind: DeviceKind) -> Vouched:
            await asyncio.sleep(1.5)
            return allowed(loop.now) if kind is KVM else refused(Reason.DEVICE_MISSING)

        verdicts = await Allocator(ask, VirtualClock(loop), Breakages()).judge([KVM, MSHV, KVM])
        return {kind: verdict.answer for kind, verdict in verdicts.items()}, loop.now - START

    assert run_virtual(main) == ({KVM: Answer.GIVE, MSHV: Answer.REFUSE}, pytest.approx(1.5))


def test_what_breaks_off_after_its_time_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def late(_: VirtualTimeLoop) -> Vouched:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise OSError("too late") from None
        raise AssertionError

    assert run(late, seconds=1)[0] == [Answer.REFUSE]
    assert "too late" in caplog.text
