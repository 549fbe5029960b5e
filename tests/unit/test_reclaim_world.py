"""Whatever happens to the world, the real core of reclaiming destroys nothing that somebody owns, and leaves no orphan for ever.

More histories by hand: `python3 -m sim.world_run --seeds 0:100000 --processes 2` in tests/.
"""

import os
import random
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.world_broker import Blind
from sim.world_checks import Broken, Rule
from sim.world_core import Core
from sim.world_events import EVENTS
from sim.world_reconciler import Reconciled
from sim.world_run import OF_RECONCILER, REQUIRED_OF_RECONCILER, events_of, missing, plan_of, play, run, story
from sim.world_scene import Event, Plan, Scene
from sim.world_truth import Pod

#: Of the runs of all tests the one as root with the system's own libraries takes two thousand histories, which are minutes; what the
#: others have of their own, another user and newer libraries, is nothing to this.
IS_FULL = os.geteuid() == 0 and sys.prefix == sys.base_prefix
SEEDS = range(2000 if IS_FULL else 100)
STEPS = 120
SEEDS_OF_RECONCILER = range(600 if IS_FULL else 30)
STEPS_OF_RECONCILER = 40


def test_thousands_of_histories() -> None:
    counts, broken = run(SEEDS, STEPS, processes=2)
    assert not broken, story(broken[0][0], events_of(broken[0][0], STEPS))
    if IS_FULL:
        assert missing(counts) == []


def test_histories_of_the_real_reconciler() -> None:
    counts, broken = run(SEEDS_OF_RECONCILER, STEPS_OF_RECONCILER, make=Reconciled, shape=OF_RECONCILER, processes=2)
    assert not broken, _story_of_reconciler(broken[0][0])
    if IS_FULL:
        assert missing(counts, REQUIRED_OF_RECONCILER) == []


def _story_of_reconciler(seed: int) -> str:
    return story(seed, events_of(seed, STEPS_OF_RECONCILER, OF_RECONCILER), plan_of(seed, OF_RECONCILER), Reconciled)


def test_a_history_of_the_real_reconciler_is_the_same_again() -> None:
    first, second = (play(8, events_of(8, 60, OF_RECONCILER), make=Reconciled, tell=True) for _ in range(2))
    assert first.world.story == second.world.story
    assert first.world.counts == second.world.counts


@pytest.mark.parametrize(
    ("number", "step", "counted", "reclaimed"),
    [
        # Stopped when it would be its question's turn, and when the broker is asked; killed at the same moments.
        (0, 19, "stopped-while-destroying", 0),
        (0, 21, "stopped-while-destroying", 1),
        (1, 19, "ended-while-destroying", 0),
        (1, 21, "ended-while-destroying", 0),
    ],
)
def test_the_daemon_ends_while_it_destroys(number: int, step: int, counted: str, reclaimed: int) -> None:
    plan = Plan(managed=1, unmanaged=0, grace=180.0)
    events = [Event("wait-long", 2), Event("wait-long", 2), Event("orphan-made"), Event("daemon-restarted", number, step)]
    counts = play(1, [*events, *[Event("wait", 4)] * 10], plan, Reconciled).world.counts
    assert counts[counted] == 1
    assert counts["reclaimed"] == reclaimed
    assert play(1, [*events, *[Event("wait", 4)] * 25], plan, Reconciled).world.counts["reclaimed"] == 1, "and later by the next run"


_NAMES = sorted(EVENTS)
_EVENTS = st.builds(
    Event,
    st.sampled_from(_NAMES) | st.sampled_from(("wait", "wait-long", "orphan-made", "pod-fails")),
    st.integers(0, (1 << 30) - 1),
    st.sampled_from((0, 0, 0)) | st.integers(1, 16),
)
_PLANS = st.builds(
    Plan,
    managed=st.integers(1, 4),
    unmanaged=st.integers(0, 1),
    blind=st.sampled_from(Blind),
    grace=st.sampled_from((180.0, 600.0)),
    ends_calmly=st.booleans(),
)


@settings(max_examples=40)
@given(st.integers(0, 1 << 20), _PLANS, st.lists(_EVENTS, max_size=60))
def test_any_history(seed: int, plan: Plan, events: list[Event]) -> None:
    events = [event._replace(step=0) if event.name.startswith("wait") else event for event in events]
    play(seed, events, plan)


def test_a_history_is_the_same_again() -> None:
    first, second = (play(7, events_of(7, 80), tell=True) for _ in range(2))
    assert first.world.story == second.world.story
    assert first.world.counts == second.world.counts


@pytest.mark.parametrize(("reason", "has_end"), [("RunContainerError", False), ("StartError", True), ("CreateContainerError", True)])
def test_orphans_of_a_pod_that_fails_every_five_minutes_are_reclaimed_in_time(reason: str, has_end: bool) -> None:
    """The rule that an orphan is reclaimed in time holds at each of the looks meanwhile."""
    scene = Scene(5, Plan(managed=2, unmanaged=0), Core)
    scene.wait(400.0)
    pod = Pod(scene.world.new_uid(), "", "normal", 0, "vir05_1c_8g", fails=-1, reason=reason, has_end=has_end, back_off=300.0)
    pod.shown_uid = pod.uid
    scene.world.add_pod(pod)
    scene.wait(100 * 301.0)
    assert pod.attempts >= 100
    # Three are younger than the grace, and one is in its turn.
    assert len(scene.world.hardware.vnpus) <= 4
    assert scene.checks.destroyed >= 80, scene.checks.destroyed


class _InStep(random.Random):
    """Lets each attempt to make a container take a second and a half, with its bundle there, and all else happen as soon as it may."""

    def choice(self, seq: Any) -> Any:
        return 1.5 if 2.0 in seq else seq[0]

    def random(self) -> float:
        return 0.0


@pytest.mark.parametrize("keeps_step", [False, True])
def test_a_pod_that_keeps_step_with_the_looks_does_not_keep_what_it_left(keeps_step: bool) -> None:
    """Each attempt protects the card while it lasts; at a steady interval each fifth look would meet one, for ever."""
    scene = Scene(5, Plan(managed=2, unmanaged=0), Core)
    if keeps_step:
        scene.chance = lambda: 0.0
    scene.wait(400.0)
    # Five looks without anything to destroy take 301.5 s.
    pod = Pod(scene.world.new_uid(), "", "normal", 0, "vir05_1c_8g", fails=-1, reason="RunContainerError")
    pod.shown_uid = pod.uid
    scene.world.dice = _InStep()
    scene.wait(scene.daemon.next_at - scene.world.time.now - 1.35)
    scene.world.add_pod(pod)
    scene.wait(100 * 301.5)
    assert pod.attempts >= 100
    if keeps_step:
        assert scene.checks.destroyed == 0, "or this shows nothing"
    else:
        assert scene.checks.destroyed >= 80, scene.checks.destroyed


def test_every_rule_can_be_held_alone() -> None:
    for rule in Rule:
        scene = Scene(3, plan_of(3)._replace(only=frozenset({rule})), Core)
        for other in Rule:
            if other is rule:
                with pytest.raises(Broken):
                    scene.checks.broken(other, "made up")
            else:
                scene.checks.broken(other, "made up")
