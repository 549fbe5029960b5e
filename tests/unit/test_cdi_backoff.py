"""Attempts that fail are spaced out, further and further; what happens meanwhile brings the next one forward, but never below a second."""

from hypothesis import given
from hypothesis import strategies as st

from devward.cdi import backoff
from devward.cdi.backoff import FIRST_WAIT, LONGEST_WAIT, Backoff, begun, failed, hinted, may_attempt
from devward.reasons import Reason
from sim.pauses import pauses


def after(failures: int, now: float = 100.0) -> Backoff:
    state = Backoff()
    for _ in range(failures):
        state = failed(begun(state), now, Reason.CDI_NO_SPACE, "full")
    return state


def test_without_a_failure_nothing_waits() -> None:
    assert may_attempt(Backoff(), 0.0)
    assert may_attempt(hinted(Backoff()), 0.0)


def test_each_failure_doubles_the_wait_up_to_the_longest() -> None:
    waits = [after(number).due - 100.0 for number in range(1, 9)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert after(100_000).due == 100.0 + LONGEST_WAIT


def test_the_moment_itself_is_late_enough() -> None:
    assert not may_attempt(after(3), 103.9)
    assert may_attempt(after(3), 104.0)


def test_what_happens_brings_the_next_attempt_forward_to_a_second_after_the_latest() -> None:
    state = hinted(after(6))
    assert state.due == 100.0 + FIRST_WAIT
    assert not may_attempt(state, 100.9)
    assert begun(state).due == 100.0 + LONGEST_WAIT, "the attempt has seen it"


def test_what_happens_during_an_attempt_is_not_forgotten_when_it_fails() -> None:
    state = failed(hinted(begun(after(5))), 200.0, Reason.CDI_NO_SPACE, "full")
    assert state.due == 200.0 + FIRST_WAIT


def test_the_latest_failure_is_what_is_known() -> None:
    state = failed(after(2), 150.0, Reason.CDI_READ_ONLY, "read-only")
    assert (state.failures, state.last, state.reason, state.detail) == (3, 150.0, Reason.CDI_READ_ONLY, "read-only")


@given(st.lists(st.tuples(pauses(40), st.booleans()), max_size=80))
def test_attempts_are_at_least_a_second_apart_and_at_most_the_longest_wait(steps: list[tuple[float, bool]]) -> None:
    state, now = after(1, 1000.0), 1000.0
    for pause, something in steps:
        now += pause
        state = hinted(state) if something else state
        assert state.last + FIRST_WAIT <= state.due <= state.last + LONGEST_WAIT
        if may_attempt(state, now):
            assert now - state.last >= FIRST_WAIT
            state = backoff.failed(begun(state), now, Reason.CDI_IO_ERROR, "")
