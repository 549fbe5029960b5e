"""When a device is looked at and probed: what events, a probe's own effects and attributes that change may cost."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from devward.devices.health import IdentityVerdict, ProbeVerdict
from devward.devices.tracker import LOOK_CEILING, LOOK_QUIET, PROBE_BUDGET, PROBE_CEILING, PROBE_QUIET, CheckResult, Intervals
from devward.model import DeviceKind, Health, Identity, Trigger
from devward.reasons import Reason
from sim.tracked_device import BUSY, FACTS, GONE, GOOD, INTERVALS, NO_DESCRIPTOR, UNFINISHED, World, gaps, play, valid

# --- what events cost --------------------------------------------------------------------------------------------------


def test_starts_and_ends_of_virtual_machines_cost_neither_a_look_nor_a_probe() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        for _ in range(10_000):
            world.tracker.event("change", "create")
            world.tracker.event("change", "destroy")
        assert not world.tracker.busy
        await asyncio.sleep(60)
        assert (world.looks, world.starts, world.changes) == (0, [], [])

    play(scene)


def test_another_change_costs_a_look_and_no_probe() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.tracker.event("change", "")
        assert world.looks == 1
        await asyncio.sleep(60)
        assert (world.looks, world.starts) == (1, [])

    play(scene)


def test_another_change_shows_an_identity_that_was_lost() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.verdict = IdentityVerdict(Identity.INVALID, Reason.DEVICE_COVERED, "", FACTS)
        world.tracker.event("change", "")
        assert (world.state.identity, world.state.health) == (Identity.INVALID, Health.UNHEALTHY)
        assert world.state.reason is Reason.DEVICE_COVERED

    play(scene)


@pytest.mark.parametrize("action", ["add", "remove", "bind", "unbind", "move", "online", "offline", ""])
def test_an_event_that_may_change_the_device_costs_a_look_at_once_and_one_probe_after_quiet(action: str) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        began = world.loop.now
        world.tracker.event(action, "")
        assert world.looks == 1
        assert world.tracker.busy
        await asyncio.sleep(60)
        assert [round(start - began, 6) for start in world.starts] == [PROBE_QUIET]
        assert not world.tracker.busy

    play(scene)


def test_a_burst_is_answered_by_one_probe_after_its_end() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        for action in ("remove", "unbind", "bind", "add", "change"):
            world.tracker.event(action, "")
            last = world.loop.now
            await asyncio.sleep(0.1)
        last -= 0 if world.starts else 0.1  # the change at the end asks for no probe
        await asyncio.sleep(60)
        assert [round(start - last, 6) for start in world.starts] == [PROBE_QUIET]

    play(scene)


def test_a_storm_without_end_costs_a_bounded_number_of_looks_and_probes() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        began, seconds = world.loop.now, 20
        for _ in range(seconds * 500):
            world.tracker.event("add", "")
            await asyncio.sleep(0.002)
        assert world.starts[0] - began <= PROBE_CEILING + 0.01
        assert seconds / PROBE_CEILING - 1 <= len(world.starts) <= seconds / PROBE_CEILING
        assert seconds / LOOK_CEILING / 2 <= world.looks <= seconds / LOOK_CEILING + 2 * len(world.starts) + 2
        assert world.loop.timers <= 4

    play(scene)


def test_ten_thousand_events_in_one_turn_cost_two_looks_and_one_probe() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        for _ in range(10_000):
            world.tracker.event("add", "")
        assert world.loop.timers <= 4
        await asyncio.sleep(60)
        assert (world.looks, len(world.starts)) == (2 + 2, 1)  # two more look before and after the probe

    play(scene)


def test_a_look_within_a_burst_is_made_again_at_its_end() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.tracker.look(Trigger.INOTIFY)
        world.verdict = GONE
        world.tracker.look(Trigger.INOTIFY)
        assert world.state.identity is Identity.VALID
        await asyncio.sleep(LOOK_QUIET + 0.001)
        assert world.state.identity is Identity.MISSING

    play(scene)


def test_an_event_during_a_probe_is_answered_by_one_that_begins_after_it() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.duration = 1.5
        check = asyncio.ensure_future(world.tracker.check(Trigger.DBUS))
        await asyncio.sleep(0.5)
        world.answer = BUSY
        world.tracker.event("bind", "")
        assert (await check).state.health is Health.HEALTHY
        await asyncio.sleep(10)
        assert len(world.starts) >= 2
        assert world.state.health is Health.UNHEALTHY

    play(scene)


# --- a probe's own effects ---------------------------------------------------------------------------------------------


def as_a_virtual_machine_does(world: World, *, rules: Callable[[], None] = lambda: None) -> Callable[[int], None]:
    """What a probe sets off: KVM's two events, and udev's rules that answer each by setting the mode again."""

    def effects(_: int) -> None:
        for event, delay in (("create", 0.0), ("destroy", 0.01)):
            world.tracker.event("change", event)
            world.loop.call_later(delay + 0.02, rules)
            world.loop.call_later(delay + 0.02, world.tracker.look, Trigger.INOTIFY)

    return effects


def test_a_probe_never_leads_to_a_probe() -> None:
    """A day of them: each is answered by udev, which sets the mode again, so that inotify tells of it."""

    async def scene(world: World) -> None:
        world.during = as_a_virtual_machine_does(world)
        await world.begin()
        await asyncio.sleep(24 * 3600)
        assert len(world.starts) == 24 * 3600 // INTERVALS.probe
        assert set(gaps(world.starts)) == {INTERVALS.probe}

    play(scene)


@pytest.mark.parametrize("answer", [BUSY, UNFINISHED])
def test_a_bad_or_unfinished_probe_leads_to_none_but_its_retries(answer: ProbeVerdict) -> None:
    """A child that was killed after it had created its machine has had all the effects, and reports nothing."""

    async def scene(world: World) -> None:
        world.answer = answer
        world.during = as_a_virtual_machine_does(world)
        world.tracker.look(Trigger.STARTUP)
        await asyncio.sleep(600)
        assert gaps(world.starts[:7]) == [1, 2, 4, 8, 16, 30]
        assert set(gaps(world.starts[7:])) == {INTERVALS.retry}

    play(scene)


def test_virtual_machines_of_others_cost_no_probe_while_a_check_is_unfinished() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.answer = UNFINISHED
        await world.tracker.check(Trigger.DBUS)
        for _ in range(500):
            world.tracker.event("change", "create")
            world.tracker.look(Trigger.INOTIFY)
            await asyncio.sleep(0.5)
        assert len(world.starts) <= 1 + 5 + 250 / INTERVALS.retry

    play(scene)


def test_rules_that_put_the_mode_right_after_a_probe_cost_one_more() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.during = as_a_virtual_machine_does(world, rules=lambda: world.set_facts(mode=0o660))
        world.set_facts(mode=0o666)
        await world.tracker.check(Trigger.DBUS)
        await asyncio.sleep(200)
        assert len(world.starts) == 2

    play(scene)


def test_a_program_that_undoes_what_the_rules_do_keeps_no_probes_going() -> None:
    """udev clears the ACL after each virtual machine, something else puts it back half a second later."""

    async def scene(world: World) -> None:
        acl = ("user:1000:rw-",)

        def rules() -> None:
            world.set_facts(acl=())
            world.loop.call_later(0.5, lambda: world.touch(acl=acl))

        world.during = as_a_virtual_machine_does(world, rules=rules)
        world.set_facts(acl=acl)
        await world.begin()
        await asyncio.sleep(24 * 3600)
        assert len(world.starts) <= 4 * 24 * 3600 / INTERVALS.probe

    play(scene)


# --- attributes --------------------------------------------------------------------------------------------------------


def test_attributes_that_revert_cost_no_probe() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        for _ in range(100):
            world.touch(mode=0o600)
            await asyncio.sleep(0.1)
            assert world.state.facts is not None
            world.touch(mode=0o660)
            await asyncio.sleep(0.2)
        await asyncio.sleep(60)
        assert world.starts == []
        assert world.state.health is Health.HEALTHY

    play(scene)


@pytest.mark.parametrize("changes", [{"mode": 0o600}, {"uid": 1}, {"gid": 1}, {"acl": ("user:1000:rw-",)}, {"links": 2}])
def test_attributes_that_stay_cost_one_probe(changes: dict[str, object]) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        began = world.loop.now
        world.touch(**changes)
        assert world.state.health is Health.HEALTHY
        await asyncio.sleep(200)
        assert [round(start - began, 6) for start in world.starts] == [PROBE_QUIET]

    play(scene)


def test_attributes_that_a_slow_pass_finds_cost_one_probe() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.set_facts(mode=0o600)
        world.tracker.look(Trigger.TIMER)
        await asyncio.sleep(200)
        assert len(world.starts) == 1

    play(scene)


def test_attributes_that_change_during_a_probe_cost_another() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.during = lambda number: world.touch(mode=0o600) if number == 1 else None
        await world.tracker.check(Trigger.DBUS)
        await asyncio.sleep(200)
        assert len(world.starts) == 2

    play(scene)


def test_attributes_that_never_come_to_rest_are_probed_ever_more_rarely() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        for number in range(2 * 3600):
            world.touch(mode=(0o600, 0o660)[number % 2])
            await asyncio.sleep(0.5)
        assert 3600 / INTERVALS.probe <= len(world.starts) <= 6 + 3600 / INTERVALS.retry
        assert world.loop.timers <= 4
        # After quiet the next change is answered as fast as the first.
        await asyncio.sleep(2 * INTERVALS.retry + 1)
        world.starts.clear()
        began = world.loop.now
        world.touch(gid=1)
        await asyncio.sleep(1)
        assert [round(start - began, 6) for start in world.starts] == [PROBE_QUIET]

    play(scene)


def test_a_change_that_has_to_wait_is_probed_without_another_sign() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.touch(mode=0o600)
        await asyncio.sleep(0.3)
        world.touch(mode=0o640)
        await asyncio.sleep(0.5)
        assert len(world.starts) == 1
        await asyncio.sleep(1)
        assert len(world.starts) == 2
        await asyncio.sleep(100)
        assert len(world.starts) == 2

    play(scene)


# --- the rest ----------------------------------------------------------------------------------------------------------


def test_other_intervals_apply_to_the_wait_under_way() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.tracker.configure(Intervals(probe=20.0, retry=30.0))
        await asyncio.sleep(21)
        assert len(world.starts) == 1
        for _ in range(10):  # the same ones again must not put the check off
            await asyncio.sleep(15)
            world.tracker.configure(Intervals(probe=20.0, retry=30.0))
        assert len(world.starts) >= 7

    play(scene)


def test_what_is_published_names_the_number_and_every_time() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        view = world.tracker.view()
        assert (view.kind, view.node, view.number) == (DeviceKind.KVM, "/dev/kvm", "10:232")
        assert (view.identity, view.health, view.reason, view.text) == (Identity.VALID, Health.HEALTHY, Reason.OK, "")
        assert 0 < view.identity_since_usec <= view.health_since_usec == view.last_check_usec
        assert view.check_duration_usec == GOOD.duration_usec

    play(scene)


#: What happens to the node, what is told of it, who asks, and how a probe goes from now on.
HAPPENINGS = ("chmod", "chmod-unseen", "swap", "gone", "covered", "back", "emfile")
EVENTS = ("vm", "change", "add", "remove", "check", "leave")
OUTCOMES = ("good", "bad", "unfinished", "slow", "fast")
ACTIONS = st.sampled_from((*HAPPENINGS, *EVENTS, *OUTCOMES))


@example([("bad", 0.0), ("chmod", 0.3), ("check", 0.001), ("chmod", 7.0), ("slow", 0.0)])
@given(st.lists(st.tuples(ACTIONS, st.sampled_from([0.0, 0.001, 0.02, 0.2, 0.3, 1.0, 7.0, 100.0])), max_size=40))
def test_whatever_happened_the_truth_is_known_a_while_later(history: list[tuple[str, float]]) -> None:
    """The slow pass's look a minute later, and one more retry, are always enough; and nobody probes twice at once (World checks)."""

    async def scene(world: World) -> None:
        callers: list[asyncio.Future[CheckResult]] = []
        mode = 0
        for action, pause in history:
            match action:
                case "vm":
                    world.tracker.event("change", "create")
                case "change" | "add" | "remove":
                    world.tracker.event(action, "")
                case "chmod" | "chmod-unseen" if world.verdict.identity is Identity.VALID:
                    mode += 1
                    world.set_facts(mode=mode)
                    if action == "chmod":
                        world.tracker.look(Trigger.INOTIFY)
                case "swap" if world.verdict.identity is Identity.VALID:
                    world.replace_node()
                case "gone":
                    world.verdict = GONE
                    world.tracker.look(Trigger.INOTIFY)
                case "covered":
                    world.verdict = IdentityVerdict(Identity.INVALID, Reason.DEVICE_COVERED)
                case "back":
                    world.verdict = valid(FACTS)
                    world.tracker.look(Trigger.INOTIFY)
                case "emfile":
                    world.verdict = NO_DESCRIPTOR
                case "check":
                    callers.append(asyncio.ensure_future(world.tracker.check(Trigger.DBUS)))
                case "leave" if callers:
                    callers.pop().cancel()
                case "good":
                    world.answer = GOOD
                case "bad":
                    world.answer = BUSY
                case "unfinished":
                    world.answer = UNFINISHED
                case "slow":
                    world.duration = 1.9
                case "fast":
                    world.duration = 0.001
            await asyncio.sleep(pause)
        await asyncio.gather(*callers, return_exceptions=True)
        await asyncio.sleep(60)
        world.tracker.look(Trigger.TIMER)
        await asyncio.sleep(60)
        if world.verdict.identity is Identity.UNKNOWN:
            world.verdict = valid(FACTS)
            world.tracker.look(Trigger.TIMER)
            await asyncio.sleep(60)
        if world.under_way:  # the retry of a device that is not well may fall on this very moment
            await asyncio.sleep(PROBE_BUDGET)
        assert world.state.identity is world.verdict.identity
        assert world.state.facts == world.verdict.facts
        if world.answer is UNFINISHED and world.state.identity is Identity.VALID:
            world.answer = GOOD
            await asyncio.sleep(60)
            if world.under_way:
                await asyncio.sleep(PROBE_BUDGET)
        expected = {
            Identity.MISSING: Health.MISSING,
            Identity.INVALID: Health.UNHEALTHY,
            Identity.VALID: Health.HEALTHY if world.answer is GOOD else Health.UNHEALTHY,
        }
        assert world.state.health is expected[world.state.identity] or _not_yet_due(world)
        assert world.loop.timers <= 1
        assert not world.tracker.busy

    play(scene)


def _not_yet_due(world: World) -> bool:
    """A verdict that changed without any sign is found by the next check, which for a healthy device comes after the interval."""
    return world.state.health is Health.HEALTHY and world.loop.now - world.starts[-1] < INTERVALS.probe
