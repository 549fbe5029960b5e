"""The world catches reclaimers that are wrong, each by every rule that it breaks: else it would prove nothing of the right one."""

import pytest

from sim import world_naive as naive
from sim import world_reconciler_naive as without
from sim.world_checks import Rule
from sim.world_daemon import Daemon, Reclaimer
from sim.world_reconciler import Reconciled
from sim.world_run import OF_RECONCILER, events_of, fails, needed, plan_of, story
from sim.world_scene import Event, Plan, failing_prefix

#: So many histories at the most.
SEEDS = range(60)


def seed_that_catches(make: type[Reclaimer], rule: Rule) -> int | None:
    """Return the first seed whose history breaks this rule, with all others left aside."""

    def made(daemon: Daemon) -> Reclaimer:
        return make(daemon)

    for seed in SEEDS:
        broken = fails(seed, events_of(seed, 100), plan_of(seed)._replace(only=frozenset({rule}), ends_calmly=True), made)
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
        (naive.IgnoresSwitches, Rule.SWITCHED_OFF),
        (naive.IgnoresWindow, Rule.WINDOW),
        (naive.LatchesAlways, Rule.BREAKER),
        (naive.Raises, Rule.RAISED),
        (naive.Never, Rule.LATE),
    ],
)
def test_wrong_reclaimers_are_caught(make: type[Reclaimer], rule: Rule) -> None:
    assert seed_that_catches(make, rule) is not None


@pytest.mark.parametrize(
    ("make", "rule", "often"),
    [
        (without.NoFreshLook, Rule.UNKNOWN, ()),
        (without.NoLastWord, Rule.SWITCHED_OFF, ("kill-switch", "pause", "mode")),
        (without.NoInterruptions, Rule.IMPATIENT, ("reload",)),
        (without.NoticesAtLooksOnly, Rule.IMPATIENT, ("kill-switch",)),
        (without.NoKillSwitch, Rule.SWITCHED_OFF, ("kill-switch",)),
        (without.ControlsBeforeSwitch, Rule.SWITCHED_OFF, ("pause", "mode")),
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


def test_a_pin_between_two_looks_is_not_for_nothing() -> None:
    quiet, soon = Event("wait-long", 2), [Event("wait", 4)] * 5
    events = [quiet, quiet, Event("orphan-made"), *soon, Event("pin"), Event("unpin"), *soon]
    plan = Plan(managed=1, unmanaged=0, grace=180.0)
    assert fails(1, events, plan, Reconciled) is None
    broken = fails(1, events, plan, without.NoUnpinning)
    assert broken is not None
    assert broken.rule is Rule.IMPATIENT


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
