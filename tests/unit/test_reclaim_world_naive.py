"""The world catches reclaimers that are wrong, each by every rule that it breaks: else it would prove nothing of the right one."""

import pytest

from sim import world_naive as naive
from sim import world_reconciler_naive as without
from sim.world_checks import Rule
from sim.world_daemon import Make
from sim.world_reconciler import Reconciled
from sim.world_run import OF_RECONCILER, events_of, fails, needed, plan_of, story
from sim.world_scene import Event, Plan, failing_prefix

#: So many histories at the most.
SEEDS = range(60)


def seed_that_catches(make: Make, rule: Rule) -> int | None:
    """Return the first seed whose history breaks this rule, with all others left aside."""

    for seed in SEEDS:
        broken = fails(seed, events_of(seed, 100), plan_of(seed)._replace(only=frozenset({rule}), ends_calmly=True), make)
        if broken is not None:
            return seed
    return None


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (naive.Naive, Rule.OWNED),
        (naive.Naive, Rule.CARD_IN_USE),
        (naive.Naive, Rule.UNKNOWN),
        (naive.Naive, Rule.IMPATIENT),
        (naive.TrustsCheckpoint, Rule.OWNED),
        (naive.TrustsCheckpoint, Rule.UNKNOWN),
        (naive.IgnoresIdentity, Rule.IDENTITY),
        (naive.IgnoresIdentity, Rule.IMPATIENT),
        (naive.IgnoresRates, Rule.RATE),
        (naive.IgnoresRates, Rule.BREAKER),
        (naive.Hasty, Rule.IMPATIENT),
        (naive.IgnoresLock, Rule.DEFERRED),
        (naive.IgnoresClaims, Rule.UNKNOWN),
        (naive.IgnoresClaims, Rule.CARD_IN_USE),
        (naive.IgnoresHost, Rule.UNKNOWN),
        (naive.IgnoresHost, Rule.OWNED),
        (naive.IgnoresPins, Rule.UNKNOWN),
        (naive.IgnoresPins, Rule.OWNED),
        (naive.IgnoresLatePins, Rule.UNKNOWN),
        (naive.IgnoresSwitches, Rule.SWITCHED_OFF),
        (naive.IgnoresWindow, Rule.WINDOW),
        (naive.LatchesAlways, Rule.BREAKER),
        (naive.Raises, Rule.RAISED),
        (naive.Never, Rule.LATE),
    ],
)
def test_wrong_reclaimers_are_caught(make: Make, rule: Rule) -> None:
    assert seed_that_catches(make, rule) is not None


@pytest.mark.parametrize(
    ("make", "rule", "often"),
    [
        (without.NoFreshLook, Rule.UNKNOWN, ()),
        (without.NoInterruptions, Rule.IMPATIENT, ("reload",)),
        (without.NoKillSwitch, Rule.SWITCHED_OFF, ("kill-switch",)),
        (without.NoBreaker, Rule.BREAKER, ()),
        (without.NoRates, Rule.RATE, ()),
        (without.KeepsProgress, Rule.IMPATIENT, ("destroy-fault",)),
        (without.NoIntent, Rule.UNRECORDED, ("journal-refuses",)),
        (without.NoOutcome, Rule.UNRECORDED, ()),
        (without.Never, Rule.LATE, ()),
    ],
)
def test_a_reconciler_that_lacks_a_rule_is_caught(make: type[Reconciled], rule: Rule, often: tuple[str, ...]) -> None:
    shape = OF_RECONCILER._replace(always=(*often, "orphan-made"))
    for seed in SEEDS:
        plan = plan_of(seed, shape)._replace(only=frozenset({rule}))
        if fails(seed, events_of(seed, 40, shape), plan, make) is not None:
            return
    pytest.fail("no history catches it")


_QUIET = Event("wait-long", 2)
_SOON = [Event("wait", 4)] * 5


@pytest.mark.parametrize(
    ("make", "rule", "events"),
    [
        (without.NoLastWord, Rule.SWITCHED_OFF, [Event("pause", 0, 19)]),
        (without.ControlsBeforeSwitch, Rule.SWITCHED_OFF, [Event("pause", 0, 20)]),
        (without.NoticesAtLooksOnly, Rule.IMPATIENT, [Event("kill-switch", 2, 19)]),
        (without.NoUnpinning, Rule.IMPATIENT, [*_SOON, Event("pin"), Event("unpin")]),
        (without.ClockStandsStill, Rule.IMPATIENT, [Event("suspend", 0, 19)]),
    ],
    ids=["last word", "switch first", "kill switch between looks", "pin between looks", "suspended at the last moment"],
)
def test_what_happens_at_one_moment_is_not_for_nothing(make: type[Reconciled], rule: Rule, events: list[Event]) -> None:
    """A destruction has its turn at step 19, and the kill switch is read for its last word at step 20."""
    plan = Plan(managed=1, unmanaged=0, grace=180.0)
    history = [_QUIET, _QUIET, Event("orphan-made"), *events, *_SOON, *_SOON]
    assert fails(1, history, plan, Reconciled) is None
    broken = fails(1, history, plan, make)
    assert broken is not None
    assert broken.rule is rule


def test_a_failure_is_told_by_its_shortest_beginning_and_what_of_it_is_needed() -> None:
    seed = seed_that_catches(naive.Hasty, Rule.IMPATIENT)
    assert seed is not None
    plan = plan_of(seed)._replace(only=frozenset({Rule.IMPATIENT}))
    events = events_of(seed, 100)
    told = story(seed, events, plan, naive.Hasty)
    assert told.startswith(f"seed {seed}: {Rule.IMPATIENT}")
    assert "the broker is asked to destroy" in told
    length, broken = failing_prefix(events, lambda some: fails(seed, some, plan, naive.Hasty))
    assert broken is not None
    assert fails(seed, events[:length], plan, naive.Hasty) is not None
    assert fails(seed, events[: length - 1], plan, naive.Hasty) is None
    few = needed(events[:length], lambda some: fails(seed, some, plan, naive.Hasty) is not None)
    assert len(few) < length
    assert all(fails(seed, [one for one in few if one is not left], plan, naive.Hasty) is None for left in few)
