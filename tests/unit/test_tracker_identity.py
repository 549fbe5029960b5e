"""A device that is gone, swapped or back, and the end of the watch: rules R17, R18 and R19."""

import asyncio
from dataclasses import replace

import pytest

from devward.devices import health
from devward.devices.health import DeviceState, IdentityVerdict
from devward.devices.tracker import PROBE_QUIET, CheckResult, Intervals
from devward.model import Health, Identity, Trigger
from devward.reasons import Reason
from sim.tracked_device import BUSY, FACTS, GONE, GOOD, UNFINISHED, World, gaps, play, valid
from sim.virtual_time import VirtualTimeLoop, run_virtual

# --- R18, R19: gone, swapped, back -------------------------------------------------------------------------------------


def test_r18_a_device_that_is_gone_is_refused_without_asking_a_node_that_may_still_work() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.verdict = GONE
        result = await world.tracker.check(Trigger.DBUS)
        assert result == CheckResult(world.state, None)
        assert (world.state.identity, world.state.health, world.state.reason) == (Identity.MISSING, Health.MISSING, Reason.DEVICE_MISSING)
        await asyncio.sleep(3600)
        assert world.starts == []

    play(scene)


@pytest.mark.parametrize("reason", [Reason.DEVICE_SYMLINK, Reason.DEVICE_NOT_CHAR, Reason.DEVICE_NUMBER_MISMATCH, Reason.DEVICE_COVERED])
def test_r17_a_node_that_is_not_the_device_is_never_probed(reason: Reason) -> None:
    async def scene(world: World) -> None:
        world.verdict = IdentityVerdict(Identity.INVALID, reason)
        assert (await world.tracker.check(Trigger.STARTUP)).verdict is None
        for action in ("add", "bind", "change"):
            world.tracker.event(action, "")
        await asyncio.sleep(3600)
        assert (world.starts, world.state.health, world.state.reason) == ([], Health.UNHEALTHY, reason)

    play(scene)


@pytest.mark.parametrize(
    ("then", "shown"),
    [(GONE, Health.MISSING), (IdentityVerdict(Identity.INVALID, Reason.DEVICE_NO_DRIVER, "", FACTS), Health.UNHEALTHY)],
    ids=["gone", "no driver"],
)
def test_r18_a_device_that_vanishes_during_the_probe_is_not_usable_though_the_probe_was_good(then: IdentityVerdict, shown: Health) -> None:
    async def scene(world: World) -> None:
        await world.begin()

        def vanish(_: int) -> None:
            world.verdict = then

        world.during = vanish
        result = await world.tracker.check(Trigger.DBUS)
        assert (result.verdict, result.state.health) == (None, shown)
        assert Health.HEALTHY not in world.healths
        assert len(world.starts) == 1

    play(scene)


def test_a_node_swapped_between_check_and_use_gets_a_second_probe() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.during = lambda number: world.replace_node() if number == 1 else None
        result = await world.tracker.check(Trigger.DBUS)
        assert (result.verdict, len(world.starts)) == (GOOD, 2)
        # The good first probe spoke of a node that is no longer there.
        assert world.healths == [Health.UNKNOWN, Health.HEALTHY]

    play(scene)


def test_a_node_that_is_swapped_again_and_again_is_never_vouched_for() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.during = lambda number: world.replace_node()
        result = await world.tracker.check(Trigger.DBUS)
        assert result.verdict is not None
        assert (result.verdict.completed, result.verdict.reason) == (False, Reason.DEVICE_CHANGED)
        assert (len(world.starts), world.state.health) == (2, Health.UNKNOWN)
        assert not health.good_recently(world.state, world.loop.now)
        await asyncio.sleep(60)
        assert Health.HEALTHY not in world.healths
        assert len(world.starts) <= 2 + 60 / PROBE_QUIET
        world.during = lambda number: None
        await asyncio.sleep(1)
        assert world.state.health is Health.HEALTHY

    play(scene)


@pytest.mark.parametrize("change", [{"device": 6}, {"inode": 101}, {"number": "10:231"}])
def test_a_swap_shows_in_device_inode_or_number(change: dict[str, object]) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.during = lambda number: world.set_facts(**change) if number == 1 else None
        await world.tracker.check(Trigger.DBUS)
        assert len(world.starts) == 2

    play(scene)


def test_a_check_that_joins_a_probe_of_an_older_node_waits_for_one_of_the_new_node() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.duration = 1.0
        early = asyncio.ensure_future(world.tracker.check(Trigger.TIMER))
        await asyncio.sleep(0.6)
        world.replace_node()
        world.answer = BUSY
        late = await world.tracker.check(Trigger.DBUS)
        assert late.verdict == BUSY
        assert len(world.starts) == 2
        assert (await early).verdict == BUSY

    play(scene)


def test_a_check_that_joins_a_probe_of_a_node_that_is_gone_is_refused_at_once() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.duration = 1.0
        early = asyncio.ensure_future(world.tracker.check(Trigger.TIMER))
        await asyncio.sleep(0.6)
        world.verdict = GONE
        before = world.loop.now
        assert (await world.tracker.check(Trigger.DBUS)).verdict is None
        assert world.loop.now == before
        assert (await early).verdict is None

    play(scene)


def test_r19_a_device_that_came_back_is_unknown_until_probed_and_then_healthy() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.verdict = GONE
        world.tracker.look(Trigger.INOTIFY)
        await asyncio.sleep(60)
        world.verdict = valid(replace(FACTS, inode=200))
        world.tracker.look(Trigger.INOTIFY)
        assert (world.state.identity, world.state.health, world.state.reason) == (Identity.VALID, Health.UNKNOWN, Reason.NOT_CHECKED)
        await asyncio.sleep(PROBE_QUIET + 0.1)
        assert world.state.health is Health.HEALTHY
        assert world.healths == [Health.MISSING, Health.UNKNOWN, Health.HEALTHY]
        assert len(world.starts) == 1

    play(scene)


@pytest.mark.parametrize("lost", [GONE, IdentityVerdict(Identity.INVALID, Reason.DEVICE_COVERED, "", FACTS)])
def test_r19_the_very_same_node_is_probed_again_when_it_came_back(lost: IdentityVerdict) -> None:
    """What was mounted over it is gone, or the driver is loaded again: nothing about the node differs from before."""

    async def scene(world: World) -> None:
        await world.begin()
        world.verdict = lost
        world.tracker.look(Trigger.MOUNTS)
        await asyncio.sleep(10)
        world.verdict = valid(FACTS)
        world.tracker.look(Trigger.MOUNTS)
        assert world.state.health is Health.UNKNOWN
        assert not health.good_recently(world.state, world.loop.now)
        await asyncio.sleep(1)
        assert (world.state.health, len(world.starts)) == (Health.HEALTHY, 1)

    play(scene)


def test_r19_a_device_that_came_back_bad_is_retried_as_if_it_were_the_first_time() -> None:
    async def scene(world: World) -> None:
        world.answer = BUSY
        await world.begin()
        await asyncio.sleep(600)
        world.verdict = GONE
        world.tracker.look(Trigger.INOTIFY)
        await asyncio.sleep(60)
        world.starts.clear()
        world.verdict = valid(replace(FACTS, inode=200))
        world.tracker.look(Trigger.INOTIFY)
        await asyncio.sleep(8)
        assert gaps(world.starts) == [1, 2, 4]

    play(scene)


def test_r19_a_node_in_anothers_place_is_unknown_until_probed() -> None:
    """Removed and made again between two looks, so that it was never seen missing."""

    async def scene(world: World) -> None:
        await world.begin()
        assert health.good_recently(world.state, world.loop.now)
        world.replace_node()
        world.answer = UNFINISHED
        world.tracker.look(Trigger.INOTIFY)
        assert (world.state.identity, world.state.health) == (Identity.VALID, Health.UNKNOWN)
        await asyncio.sleep(PROBE_QUIET + 0.1)
        assert len(world.starts) == 1
        assert not health.good_recently(world.state, world.loop.now), "the good check was another node's"
        world.answer = GOOD
        await asyncio.sleep(1.1)
        assert world.state.health is Health.HEALTHY

    play(scene)


def test_r19_a_node_that_is_back_in_its_place_before_the_other_was_probed_is_probed_itself() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.replace_node()
        world.tracker.look(Trigger.INOTIFY)
        await asyncio.sleep(0.05)
        world.verdict = valid(FACTS)
        world.tracker.look(Trigger.INOTIFY)
        assert world.state.health is Health.UNKNOWN
        await asyncio.sleep(PROBE_QUIET + 0.1)
        assert (world.state.health, len(world.starts)) == (Health.HEALTHY, 1)

    play(scene)


def test_a_device_that_left_and_came_back_during_a_probe_is_probed_again() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.duration = 1.0
        check = asyncio.ensure_future(world.tracker.check(Trigger.TIMER))
        for moment, verdict in ((0.2, GONE), (0.2, valid(FACTS))):
            await asyncio.sleep(moment)
            world.verdict = verdict
            world.tracker.look(Trigger.INOTIFY)
        world.answer = BUSY
        await check
        await asyncio.sleep(2)
        assert (len(world.starts), world.state.reason) == (2, Reason.HYPERVISOR_BUSY)

    play(scene)


# --- the end, and exceptions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize("moment", [0.0, 0.4, 0.8])
def test_close_during_a_probe_leaves_nothing_running(moment: float, deaf: bool) -> None:
    async def scene(world: World) -> None:
        world.duration, world.deaf_to_cancellation = 0.8, deaf
        check = asyncio.ensure_future(world.tracker.check(Trigger.DBUS))
        await asyncio.sleep(moment)
        for _ in range(3):
            world.tracker.event("add", "")
            world.touch(mode=0o600)
        began = world.loop.now
        closing = asyncio.ensure_future(world.tracker.close())
        await asyncio.wait([check])
        await closing
        assert not world.tracker.busy
        assert world.under_way == 0
        assert world.loop.now == began, "nobody waits for the probe's own end"
        assert world.cancelled == 1 or moment != 0.4

    async def main(loop: VirtualTimeLoop) -> None:
        world = World(loop)
        await scene(world)
        assert loop.timers == 0
        starts = len(world.starts)
        await asyncio.sleep(3600)
        assert (world.nodes_open, world.closed, len(world.starts)) == (0, 1, starts)

    run_virtual(main)


def test_after_close_nothing_is_looked_at_or_probed() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        world = World(loop)
        await world.begin()
        await world.tracker.close()
        world.tracker.event("add", "")
        world.tracker.look(Trigger.INOTIFY)
        world.tracker.configure(Intervals(1.0, 1.0))
        with pytest.raises(RuntimeError, match="/dev/kvm is no longer watched"):
            await world.tracker.check(Trigger.DBUS)
        assert (loop.timers, world.looks, world.tracker.busy) == (0, 0, False)
        await asyncio.sleep(3600)
        assert world.starts == []

    run_virtual(main)


def test_the_prober_is_closed_though_close_itself_is_cancelled() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        world = World(loop)
        world.deaf_to_cancellation = True
        world.duration = 5.0
        check = asyncio.ensure_future(world.tracker.check(Trigger.DBUS))
        await asyncio.sleep(1)
        closing = asyncio.ensure_future(world.tracker.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(check, closing, return_exceptions=True)
        assert world.closed == 1

    run_virtual(main)


def test_a_listener_that_raises_loses_neither_the_state_nor_the_probe() -> None:
    async def scene(world: World) -> None:
        await world.begin()

        def raising(before: DeviceState, after: DeviceState, trigger: Trigger) -> None:
            raise LookupError("a defect elsewhere")

        world.verdict = GONE
        world.on_change = raising
        with pytest.raises(LookupError):
            world.tracker.look(Trigger.INOTIFY)
        assert world.state.health is Health.MISSING
        await asyncio.sleep(1)
        world.verdict = valid(FACTS)
        with pytest.raises(LookupError):
            world.tracker.event("add", "")
        world.on_change = lambda before, after, trigger: None
        await asyncio.sleep(1)
        assert (world.state.health, len(world.starts)) == (Health.HEALTHY, 1)

    play(scene)


def test_timers_do_not_pile_up() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        for number in range(3000):
            world.touch(mode=number % 512)
            world.tracker.event(("add", "change")[number % 2], "")
            check = asyncio.ensure_future(world.tracker.check(Trigger.DBUS))
            await asyncio.sleep(0.01)
            check.cancel()
            assert world.loop.timers <= 6
        await asyncio.sleep(60)
        assert world.loop.timers == 1
        assert world.loop.timers_held <= 200  # asyncio sweeps cancelled ones out above a hundred

    play(scene)
