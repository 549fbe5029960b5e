"""Damping: windows open, count, close, and never lose what was held back."""

from hypothesis import given
from hypothesis import strategies as st

from devward.damping import Closed, Damper
from sim.pauses import pauses


def damper(*, limit: int = 2, capacity: int = 3) -> Damper[str]:
    return Damper(limit=limit, period=60.0, capacity=capacity)


def test_the_first_few_are_admitted_and_the_rest_counted() -> None:
    one = damper()
    assert [one.admit("k", str(at), at) for at in (0.0, 1.0, 2.0, 59.0)] == [True, True, False, False]
    assert one.close(59.9) == []
    assert one.close(60.0) == [Closed("k", 2, "59.0", 59.0)]
    assert one.close(1000.0) == []
    assert one.admit("k", "next", 61.0)


def test_keys_are_apart() -> None:
    one = damper(limit=1)
    assert one.admit("a", "x", 0.0)
    assert one.admit("b", "x", 0.0)
    assert not one.admit("a", "y", 0.0)
    assert one.close(60.0) == [Closed("a", 1, "y", 0.0)]


def test_a_timer_is_wanted_only_while_something_is_held_back() -> None:
    one = damper(limit=1)
    assert one.due is None
    one.admit("a", "x", 5.0)
    assert one.due is None
    one.admit("b", "x", 6.0)
    one.admit("b", "y", 7.0)
    assert one.due == 66.0
    one.close(66.0)
    assert one.due is None


def test_room_is_bounded_and_the_oldest_makes_it() -> None:
    one = damper(limit=1, capacity=2)
    one.admit("a", "x", 0.0)
    one.admit("a", "y", 1.0)
    one.admit("b", "x", 2.0)
    assert one.has_room("a")
    assert not one.has_room("c")
    assert one.close_oldest() == [Closed("a", 1, "y", 1.0)]
    assert one.has_room("c")
    assert one.close_oldest() == []


def test_stopping_closes_everything() -> None:
    one = damper(limit=1)
    for item in "xy":
        one.admit("a", item, 0.0)
    assert one.close(0.0, everything=True) == [Closed("a", 1, "y", 0.0)]


@given(st.lists(st.tuples(st.sampled_from("abcde"), pauses(30)), max_size=200), st.integers(1, 4), st.integers(1, 5))
def test_every_event_is_admitted_or_counted_once_and_the_latest_is_told(steps: list[tuple[str, float]], limit: int, capacity: int) -> None:
    one = damper(limit=limit, capacity=capacity)
    now = 0.0
    told: dict[str, int] = {}
    latest_sent: dict[str, int] = {}
    latest_told: dict[str, int] = {}
    items: dict[str, list[str]] = {}
    closed: list[Closed[str]] = []
    for number, (key, pause) in enumerate(steps):
        now += pause
        closed = one.close(now)
        if not one.has_room(key):
            closed += one.close_oldest()
        for window in closed:
            told[window.key] = told.get(window.key, 0) + window.held_back
            latest_told[window.key] = int(window.last)
        items.setdefault(key, []).append(str(number))
        latest_sent[key] = number
        if one.admit(key, str(number), now):
            told[key] = told.get(key, 0) + 1
            latest_told[key] = number
    for window in one.close(now, everything=True):
        told[window.key] = told.get(window.key, 0) + window.held_back
        latest_told[window.key] = int(window.last)
    assert told == {key: len(numbers) for key, numbers in items.items()}
    assert latest_told == latest_sent
