"""Times as people say them, and durations as people type them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.ctl import when
from devward.ctl.when import USEC, Times

NOW = 1_800_000_000 * USEC


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("1w", 604800), ("1h30m", 5400), ("0s", 0)]
)
def test_durations(text: str, seconds: int) -> None:
    assert when.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "m", "1.5h", "-1h", "1h 30m", "1y", "1H", "٣m", "1h30", "30m\n", "9" * 10 + "s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="a duration is"):
        when.parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4, "a moment"),
        (1, "1 second"),
        (119, "119 seconds"),
        (120, "2 minutes"),
        (7199, "119 minutes"),
        (7200, "2 hours"),
        (172799, "47 hours"),
        (172800, "2 days"),
        (86400 * 400, "400 days"),
        (-5, "a moment"),
    ],
)
def test_spans(seconds: float, said: str) -> None:
    assert when.span(seconds) == said


def test_times_as_people_say_them() -> None:
    times = Times(NOW)
    assert times.ago(NOW - 180 * USEC) == "3 minutes ago"
    assert times.ago(NOW) == "just now"
    assert times.ago(0) == "never"
    assert times.ago(NOW + 3600 * USEC) == "in 60 minutes"
    assert times.lasting(NOW - 180 * USEC) == "for 3 minutes"
    assert times.lasting(0) == times.since(0) == ""
    assert times.since(NOW - 180 * USEC) == "3 minutes"
    assert times.until(NOW + 1800 * USEC).startswith("for another 30 minutes, until ")
    assert times.until(NOW).startswith("for another moment, until ")


def test_exact_times() -> None:
    times = Times(NOW, utc=True)
    stamp = "2027-01-15T08:00:00.123Z"
    moment = NOW + 123_456
    assert times.ago(moment) == times.since(moment) == times.clock(moment) == stamp
    assert times.lasting(moment) == f"since {stamp}"
    assert times.until(moment) == f"until {stamp}"
    assert (times.since_title, Times(NOW).since_title) == ("SINCE", "FOR")


def test_the_time_of_day_has_a_date_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        times = Times(NOW)
        assert times.clock(NOW - USEC) == "07:59:59"
        assert times.clock(NOW - 86400 * USEC) == "01-14 08:00:00"
        assert times.clock(NOW - 30 * 86400 * USEC) == "2026-12-16 08:00:00"
    finally:
        monkeypatch.undo()
        time.tzset()


@given(st.integers(min_value=-(2**63), max_value=2**64), st.booleans())
def test_no_time_of_any_daemon_breaks_it(usec: int, utc: bool) -> None:
    times = Times(NOW, utc=utc)
    for said in (times.ago(usec), times.lasting(usec), times.since(usec), times.until(usec), times.clock(usec)):
        assert said.isascii()
        assert "\n" not in said


def test_measured_durations() -> None:
    assert [when.duration(usec) for usec in (3, 4200, 2_000_000)] == ["3 us", "4 ms", "2.0 s"]
