"""A pause lasts as long as it was to last, whatever becomes of the host's time."""

import pytest

from devward.model import MAXIMUM_PAUSE_SECONDS
from devward.pausing import PauseClock

NOW = 1_767_225_600_000_000
SECOND = 1_000_000
PAUSE = NOW + 600 * SECOND


def until(clock: PauseClock, *, passed: float, set_by: float = 0.0, pause: int = PAUSE) -> float:
    """Return in how many seconds it ends, when so many passed since NOW and the host's time was set forward by so many; 0: it is over."""
    realtime = NOW + round((passed + set_by) * SECOND)
    ends = clock.until_usec(pause, realtime_usec=realtime, boottime=5000.0 + passed)
    return (ends - realtime) / SECOND if ends else 0.0


def test_a_pause_ends_at_its_time() -> None:
    clock = PauseClock()
    assert [until(clock, passed=passed) for passed in (0, 1, 599, 600, 601)] == [600, 599, 1, 0, 0]
    assert until(PauseClock(), passed=0, pause=0) == 0


@pytest.mark.parametrize("set_by", [3.0, 300.0, 86400.0])
def test_setting_the_time_forward_does_not_end_it(set_by: float) -> None:
    clock = PauseClock()
    assert until(clock, passed=0) == 600
    assert until(clock, passed=100, set_by=set_by) == 500
    assert until(clock, passed=599, set_by=set_by) == 1
    assert until(clock, passed=600, set_by=set_by) == 0


def test_setting_the_time_back_makes_it_longer() -> None:
    clock = PauseClock()
    assert until(clock, passed=0) == 600
    assert until(clock, passed=100, set_by=-300) == 800
    assert until(clock, passed=899, set_by=-300) == 1
    assert until(clock, passed=900, set_by=-300) == 0


def test_what_is_told_does_not_change_with_each_reading() -> None:
    clock = PauseClock()
    told = {clock.until_usec(PAUSE, realtime_usec=NOW + passed * SECOND + passed, boottime=5000.0 + passed) for passed in range(599)}
    assert told == {PAUSE}
    moved = {
        clock.until_usec(PAUSE, realtime_usec=NOW + (passed + 3600) * SECOND + passed, boottime=5000.0 + passed) for passed in range(599)
    }
    assert len(moved) == 1


def test_another_pause_has_an_end_of_its_own() -> None:
    clock = PauseClock()
    assert until(clock, passed=0) == 600
    longer = NOW + 900 * SECOND
    assert until(clock, passed=100, pause=longer) == 800
    assert until(clock, passed=100, pause=0) == 0
    assert until(clock, passed=100, pause=PAUSE) == 500


def test_one_of_before_outlasts_a_clock_that_was_behind_at_the_start() -> None:
    clock, behind = PauseClock(), 3600.0 * 24 * 365
    assert until(clock, passed=0, set_by=-behind) == MAXIMUM_PAUSE_SECONDS
    assert until(clock, passed=10) >= 590


def test_the_next_start_with_the_right_time_ends_it_when_it_was_asked_for() -> None:
    asked, behind = NOW + 3 * 86400 * SECOND, 3600.0 * 24 * 60
    assert until(PauseClock(), passed=0, set_by=-behind, pause=asked) == MAXIMUM_PAUSE_SECONDS
    assert until(PauseClock(), passed=86400, pause=asked) == 2 * 86400


def test_none_lasts_longer_than_can_be_asked_for_whatever_the_clock_said_at_the_start() -> None:
    clock, behind = PauseClock(), 3600.0 * 24 * 365
    assert until(clock, passed=0, set_by=-behind) == MAXIMUM_PAUSE_SECONDS
    assert until(clock, passed=MAXIMUM_PAUSE_SECONDS - 1, set_by=-behind) == 1
    assert until(clock, passed=MAXIMUM_PAUSE_SECONDS, set_by=-behind) == 0


def test_one_that_is_over_for_an_hour_does_not_come_back() -> None:
    clock = PauseClock()
    assert not clock.is_over_for_good(5000.0)
    assert until(clock, passed=600) == 0
    assert [clock.is_over_for_good(5000.0 + passed) for passed in (600, 4199, 4200)] == [False, False, True]
    # Another one is not over.
    assert until(clock, passed=5000, pause=NOW + 9000 * SECOND) == 4000
    assert not clock.is_over_for_good(50000.0)
    assert until(clock, passed=9000, pause=0) == 0
    assert not clock.is_over_for_good(50000.0)


def test_one_that_a_clock_ahead_hid_is_not_over() -> None:
    clock = PauseClock()
    assert until(clock, passed=0, set_by=86400) == 0
    assert until(clock, passed=100) == 500
    assert not clock.is_over_for_good(5000.0 + 3700)
    assert until(clock, passed=3800) == 0
    assert not clock.is_over_for_good(5000.0 + 3800 + 3599)
    assert clock.is_over_for_good(5000.0 + 3800 + 3600)


def test_one_of_a_clock_years_ahead_is_over_for_good_after_a_week() -> None:
    clock, asked = PauseClock(), NOW + 3 * 365 * 86400 * SECOND
    assert until(clock, passed=0, pause=asked) == MAXIMUM_PAUSE_SECONDS
    assert until(clock, passed=MAXIMUM_PAUSE_SECONDS, pause=asked) == 0
    assert clock.is_over_for_good(5000.0 + MAXIMUM_PAUSE_SECONDS + 3600)
