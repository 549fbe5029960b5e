"""No repair war: repairs that something else undoes are spaced out, further and further, and calm down after a minute of quiet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.cdi.contest import FIRST_WAIT, LONGEST_WAIT, QUIET, WINDOW, Contest, calmed, may_repair, repaired
from sim.pauses import pauses

LIMIT = 5


def contested(now: float = 100.0, limit: int = LIMIT) -> Contest:
    contest = Contest()
    for _ in range(limit):
        contest = repaired(contest, now, limit)
    return contest


def test_below_the_limit_nothing_waits() -> None:
    contest = Contest()
    for number in range(LIMIT - 1):
        contest = repaired(contest, 100.0 + number, LIMIT)
        assert not contest.contested
        assert may_repair(contest, 100.0 + number)


@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
def test_at_the_limit_the_file_is_contested(limit: int) -> None:
    contest = contested(limit=limit)
    assert (contest.contested, contest.step, contest.not_before) == (True, 1, 100.0 + FIRST_WAIT)
    assert not may_repair(contest, 100.0)
    assert not may_repair(contest, 100.99)
    assert may_repair(contest, 101.0)


def test_repairs_that_are_far_apart_never_make_a_contest() -> None:
    contest, now = Contest(), 100.0
    for _ in range(100):
        contest = repaired(contest, now, LIMIT)
        assert not contest.contested
        now += WINDOW / (LIMIT - 1)


def test_only_the_window_counts() -> None:
    contest = Contest()
    for now in (100.0, 101.0, 102.0, 103.0):
        contest = repaired(contest, now, LIMIT)
    assert not repaired(contest, 110.0, LIMIT).contested
    assert repaired(contest, 109.9, LIMIT).contested


def test_each_further_repair_doubles_the_wait_up_to_the_longest() -> None:
    contest, waits, now = contested(), [], 100.0
    for _ in range(9):
        waits.append(contest.not_before - now)
        now = contest.not_before
        contest = repaired(contest, now, LIMIT)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    assert contest.wait == LONGEST_WAIT


def test_a_repair_on_demand_lengthens_the_wait_too() -> None:
    contest = repaired(contested(), 100.5, LIMIT)
    assert (contest.step, contest.not_before) == (2, 102.5)


def test_a_minute_of_quiet_ends_it() -> None:
    contest = contested()
    assert calmed(contest, 100.0 + QUIET - 0.1) == contest
    assert calmed(contest, 100.0 + QUIET) == Contest()
    later = repaired(contest, 150.0, LIMIT)
    assert calmed(later, 160.0 + QUIET - 10.1) == later
    assert calmed(later, 150.0 + QUIET) == Contest()


def test_quiet_leaves_a_file_that_is_not_contested_as_it_is() -> None:
    contest = repaired(Contest(), 100.0, LIMIT)
    assert calmed(contest, 1e9) == contest


def test_the_steps_end_somewhere_so_that_each_can_be_told_once() -> None:
    contest, steps, now = contested(), set(), 100.0
    for _ in range(1000):
        contest = repaired(contest, now, LIMIT)
        now += 30.0
        steps.add(contest.step)
    assert max(steps) == 16
    assert contest.wait == LONGEST_WAIT
    assert len(contest.repairs) <= LIMIT


@given(st.lists(pauses(90), max_size=60), st.integers(1, 6))
def test_repairs_by_the_rule_are_bounded(pauses: list[float], limit: int) -> None:
    """Whoever undoes a repair, however often, gets no more of them than the limit in a window, and then one a wait."""
    contest, now, repairs = Contest(), 1000.0, []
    for pause in pauses:
        now += pause
        contest = calmed(contest, now) if pause > QUIET else contest
        if may_repair(contest, now):
            contest = repaired(contest, now, limit)
            repairs.append(now)
        assert 0 <= contest.step <= 16
        assert contest.contested is (contest.step > 0)
        assert contest.not_before <= now + LONGEST_WAIT
    for index in range(len(repairs) - limit):
        assert repairs[index + limit] - repairs[index] >= min(FIRST_WAIT, WINDOW)
