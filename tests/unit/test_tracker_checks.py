"""Checks and their callers, and what an unfinished check or look may change: rules R14, R15 and R25."""

import asyncio
import logging

import pytest

from devward.devices.tracker import LOOK_QUIET, CheckResult, Intervals
from devward.model import Health, Identity, Trigger
from devward.reasons import Reason
from sim.tracked_device import BUSY, FACTS, GOOD, NO_DESCRIPTOR, UNFINISHED, World, gaps, play, valid

# --- checks and their callers (R14, R15, R25) --------------------------------------------------------------------------


def test_callers_that_overlap_share_one_probe_that_completes_after_they_came() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.duration = 1.0
        early = asyncio.ensure_future(world.tracker.check(Trigger.DBUS))
        await asyncio.sleep(0.9)
        came = world.loop.now
        results = await asyncio.gather(early, *(world.tracker.check(Trigger.DBUS) for _ in range(20)))
        assert world.loop.now > came
        assert len(world.starts) == 1
        assert [result.verdict for result in results] == [GOOD] * 21
        assert not world.tracker.busy
        await world.tracker.check(Trigger.DBUS)
        assert len(world.starts) == 2

    play(scene)


def test_r14_cancelling_one_caller_leaves_the_check_and_the_others_alone() -> None:
    async def scene(world: World) -> None:
        world.duration = 1.0
        one, other = (asyncio.ensure_future(world.tracker.check(Trigger.DBUS)) for _ in range(2))
        await asyncio.sleep(0.5)
        one.cancel()
        result = await other
        assert one.cancelled()
        assert (result.verdict, result.state.health) == (GOOD, Health.HEALTHY)
        assert (len(world.starts), world.cancelled) == (1, 0)

    play(scene)


def test_r14_a_check_that_every_caller_left_still_completes_and_counts() -> None:
    async def scene(world: World) -> None:
        world.duration = 1.0
        callers = [asyncio.ensure_future(world.tracker.check(Trigger.DBUS)) for _ in range(5)]
        await asyncio.sleep(0.5)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        assert world.state.health is Health.UNKNOWN
        await asyncio.sleep(1)
        assert (world.state.health, world.cancelled) == (Health.HEALTHY, 0)

    play(scene)


@pytest.mark.parametrize("moment", [0.0, 0.0005, 0.5, 1.0])
def test_r25_cancelling_a_caller_does_not_poison_the_next_check(moment: float) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.duration = 1.0
        caller = asyncio.ensure_future(world.tracker.check(Trigger.DBUS))
        await asyncio.sleep(moment)
        caller.cancel()
        result = await world.tracker.check(Trigger.DBUS)
        assert (result.verdict, result.state.health) == (GOOD, Health.HEALTHY)
        assert world.healths in ([], [Health.HEALTHY])

    play(scene)


def test_r15_only_a_completed_check_changes_health() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        before = world.state
        world.answer = UNFINISHED
        result = await world.tracker.check(Trigger.DBUS)
        assert result.verdict == UNFINISHED
        after = world.state
        assert (after.health, after.reason) == (Health.HEALTHY, Reason.OK)
        assert (after.last_check_usec, after.health_since_usec) == (before.last_check_usec, before.health_since_usec)
        assert (after.inconclusive, after.inconclusive_detail) == (Reason.PROBE_INCONCLUSIVE, "open: EMFILE")
        view = world.tracker.view()
        assert view.text == "The check could not be completed for want of a local resource; the last result stands (open: EMFILE)."
        world.answer = BUSY
        await world.tracker.check(Trigger.DBUS)
        assert (world.state.health, world.state.reason, world.state.inconclusive) == (Health.UNHEALTHY, Reason.HYPERVISOR_BUSY, Reason.OK)
        world.answer = UNFINISHED
        await world.tracker.check(Trigger.DBUS)
        assert (world.state.health, world.state.reason) == (Health.UNHEALTHY, Reason.HYPERVISOR_BUSY)

    play(scene)


def test_completed_checks_are_counted_with_their_time_and_others_are_not() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        assert (world.tracker.checks, world.tracker.check_seconds) == (1, 0.001)
        world.answer = UNFINISHED
        await world.tracker.check(Trigger.DBUS)
        assert world.tracker.checks == 1
        world.answer = BUSY
        await world.tracker.check(Trigger.DBUS)
        assert (world.tracker.checks, world.tracker.check_seconds) == (2, 0.002)
        assert world.tracker.probes == 3

    play(scene)


def test_what_asked_for_a_probe_has_it_once_one_begins() -> None:
    """The first look asks for a probe; a check that makes one is the answer, and nothing is under way after it."""

    async def scene(world: World) -> None:
        world.tracker.look(Trigger.STARTUP)
        world.tracker.event("add", "")
        assert world.tracker.busy
        await world.tracker.check(Trigger.STARTUP)
        await asyncio.sleep(LOOK_QUIET + 0.001)
        assert not world.tracker.busy
        await asyncio.sleep(60)
        assert len(world.starts) == 1

    play(scene)


def test_r15_a_completed_check_is_published_at_once() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.answer = BUSY
        await world.tracker.check(Trigger.DBUS)
        (_, after, trigger) = world.changes[-1]
        assert (after, trigger) == (world.state, Trigger.DBUS)
        assert after.health is Health.UNHEALTHY

    play(scene)


def test_r15_a_check_that_raises_changes_nothing_and_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.failure = OSError("no such interpreter")
        with pytest.raises(OSError, match="no such interpreter"):
            await world.tracker.check(Trigger.DBUS)
        assert world.state.health is Health.HEALTHY
        await asyncio.sleep(8)
        assert gaps(world.starts) == [1, 2, 4]
        world.failure = None
        await asyncio.sleep(10)
        await asyncio.sleep(250)
        assert len(world.starts) == 5

    with caplog.at_level(logging.ERROR):
        play(scene)
    assert "the check of /dev/kvm failed" in caplog.text


def test_a_check_is_repeated_after_the_interval_and_more_often_while_it_is_bad() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        await asyncio.sleep(900)
        assert gaps(world.starts) == [300, 300]
        world.answer = BUSY
        await asyncio.sleep(400)
        assert gaps(world.starts)[3:8] == [1, 2, 4, 8, 16]
        assert set(gaps(world.starts)[8:]) == {30}
        world.answer = GOOD
        await asyncio.sleep(31)
        assert world.state.health is Health.HEALTHY
        world.starts.clear()
        await asyncio.sleep(900)
        assert gaps(world.starts) == [300, 300]

    play(scene)


def test_an_unfinished_check_is_retried_after_growing_waits_that_retry_bounds() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.answer = UNFINISHED
        await world.tracker.check(Trigger.DBUS)
        await asyncio.sleep(1000)
        assert gaps(world.starts)[:3] == [1, 2, 4]
        assert set(gaps(world.starts)[3:]) == {7}
        assert world.state.health is Health.HEALTHY
        assert world.loop.timers <= 2

    play(scene, Intervals(probe=300.0, retry=7.0))


def test_the_very_first_check_may_stay_unfinished() -> None:
    """EMFILE at start: nothing is claimed, and the device is vouched for as soon as a check gets through."""

    async def scene(world: World) -> None:
        world.answer = UNFINISHED
        result = await world.tracker.check(Trigger.STARTUP)
        assert result.verdict == UNFINISHED
        assert (world.state.identity, world.state.health, world.state.reason) == (Identity.VALID, Health.UNKNOWN, Reason.NOT_CHECKED)
        assert world.tracker.view().text.startswith("No check has completed yet. The check could not be completed")
        world.answer = GOOD
        await asyncio.sleep(1.1)
        assert (world.state.health, world.healths) == (Health.HEALTHY, [Health.UNKNOWN, Health.HEALTHY])

    play(scene)


# --- looks that cannot be completed ------------------------------------------------------------------------------------


def test_r15_a_look_without_a_descriptor_changes_neither_identity_nor_health() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.verdict = NO_DESCRIPTOR
        world.tracker.look(Trigger.INOTIFY)
        assert (world.state.identity, world.state.health) == (Identity.VALID, Health.HEALTHY)
        assert (world.state.facts, world.state.inconclusive) == (FACTS, Reason.PROBE_INCONCLUSIVE)
        result = await world.tracker.check(Trigger.DBUS)
        assert result.verdict is not None
        assert (result.verdict.completed, result.verdict.reason) == (False, Reason.PROBE_INCONCLUSIVE)
        assert (world.state.health, world.starts) == (Health.HEALTHY, [])
        world.verdict = valid(FACTS)
        await asyncio.sleep(35)
        assert (len(world.starts), world.state.inconclusive) == (1, Reason.OK)

    play(scene)


def test_a_look_without_a_descriptor_is_retried_after_growing_waits_whatever_else_happens() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.verdict = NO_DESCRIPTOR
        moments: list[float] = []
        world.tracker.look(Trigger.INOTIFY)
        looks = world.looks
        for _ in range(1000):
            await asyncio.sleep(0.1)
            if world.looks > looks:
                moments.append(world.loop.now)
            looks = world.looks
        assert [round(gap) for gap in gaps(moments)] == [2, 4, 8, 16, 30, 30]
        for _ in range(1000):
            world.tracker.look(Trigger.INOTIFY)
            await asyncio.sleep(0.1)
        assert world.starts == []
        assert world.loop.timers <= 4
        world.verdict = valid(FACTS)
        await asyncio.sleep(31)
        assert len(world.starts) == 1

    play(scene)


def test_the_very_first_look_may_fail_for_want_of_a_descriptor() -> None:
    async def scene(world: World) -> None:
        world.verdict = NO_DESCRIPTOR
        world.tracker.look(Trigger.STARTUP)
        assert await world.tracker.check(Trigger.STARTUP) == CheckResult(world.state, None)
        assert (world.state.identity, world.state.health) == (Identity.UNKNOWN, Health.UNKNOWN)
        world.verdict = valid(FACTS)
        await asyncio.sleep(3)
        assert (world.state.health, len(world.starts)) == (Health.HEALTHY, 1)

    play(scene)


def test_a_node_that_cannot_be_looked_at_after_the_probe_makes_it_unfinished() -> None:
    async def scene(world: World) -> None:
        await world.begin()

        def find() -> None:
            world.verdict = valid(FACTS)

        def lose_for_a_moment(_: int) -> None:
            world.verdict = NO_DESCRIPTOR
            world.loop.call_later(0.05, find)

        world.answer, world.during = BUSY, lose_for_a_moment
        result = await world.tracker.check(Trigger.DBUS)
        assert result.verdict is not None
        assert (result.verdict.completed, result.verdict.reason) == (False, Reason.PROBE_INCONCLUSIVE)
        await asyncio.sleep(100)
        assert gaps(world.starts)[:5] == [1, 2, 4, 8, 16], "each probe ends like the first, and they follow one another as retries do"
        assert world.state.health is Health.HEALTHY

    play(scene)
