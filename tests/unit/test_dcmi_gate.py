"""Who may be at work in the broker, and when its process may be ended: never while it destroys."""

import threading

import pytest

from devward.npu.facts import Refusal, Refused
from devward.npu.gate import Gate, Phase

LIMIT = 10.0


class Clock:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(name="clock")
def _clock() -> Clock:
    return Clock()


@pytest.fixture(name="changes")
def _changes() -> list[str]:
    return []


@pytest.fixture(name="gate")
def _gate(clock: Clock, changes: list[str]) -> Gate:
    gate = Gate(LIMIT, lambda: changes.append(gate.phase), monotonic=clock)
    return gate


def refusal(gate: Gate) -> Refusal:
    with pytest.raises(Refused) as refused:
        gate.enter()
    return refused.value.reason


def test_one_is_at_work_at_a_time(gate: Gate) -> None:
    gate.enter()
    gate.step("dcmi_get_device_health")
    with pytest.raises(Refused, match="dcmi_get_device_health") as refused:
        gate.enter()
    assert refused.value.reason is Refusal.BUSY
    with gate.destroying():
        assert refusal(gate) is Refusal.BUSY
    assert refusal(gate) is Refusal.BUSY
    with gate.answering():
        # The next one need not wait for one that reads slowly.
        gate.enter()


def test_the_watcher_is_told_of_each_phase(gate: Gate, changes: list[str]) -> None:
    gate.enter()
    with gate.destroying():
        pass
    with gate.answering():
        assert changes[-1] is Phase.IDLE
    assert changes == [Phase.READING, Phase.DESTROYING, Phase.VERIFYING, Phase.IDLE, Phase.IDLE]


def test_a_call_that_takes_too_long_hangs(gate: Gate, clock: Clock) -> None:
    assert (gate.patience(), gate.end_if_hung()) == (None, False)
    gate.enter()
    assert gate.patience() == LIMIT
    clock.now += LIMIT - 1
    assert (gate.patience(), gate.end_if_hung()) == (1.0, False)
    gate.step("the next call")
    assert gate.patience() == LIMIT
    clock.now += LIMIT
    assert gate.patience() == 0.0
    assert gate.end_if_hung()


def test_destroying_never_hangs(gate: Gate, clock: Clock) -> None:
    gate.enter()
    with gate.destroying():
        clock.now += 1000 * LIMIT
        assert gate.patience() is None
        assert not gate.end_if_hung()
        assert not gate.stop()
    # The list afterwards has its own time, and may hang.
    assert gate.patience() == LIMIT
    assert not gate.end_if_hung()
    clock.now += LIMIT
    assert gate.end_if_hung()


def test_an_answer_that_is_not_read_has_another_limit(gate: Gate, clock: Clock) -> None:
    gate.enter()
    with gate.answering():
        clock.now += 1000 * LIMIT
        assert gate.patience() is None
        assert not gate.end_if_hung()


def enters_destroying(gate: Gate) -> Refusal | None:
    try:
        with gate.destroying():
            return None
    except Refused as refused:
        return refused.reason


def test_nothing_is_destroyed_by_a_process_that_was_given_up(gate: Gate, clock: Clock) -> None:
    gate.enter()
    clock.now += LIMIT
    assert gate.end_if_hung()
    assert enters_destroying(gate) is Refusal.HUNG
    with gate.answering():
        pass
    assert refusal(gate) is Refusal.HUNG


def test_nothing_is_destroyed_by_a_process_that_stops(gate: Gate) -> None:
    gate.enter()
    assert gate.stop()
    assert enters_destroying(gate) is Refusal.STOPPING
    with gate.answering():
        pass
    assert refusal(gate) is Refusal.STOPPING


def test_stopping_waits_for_a_destruction_and_its_answer(gate: Gate) -> None:
    assert gate.stop() is True
    gate = Gate(LIMIT, lambda: None)
    gate.enter()
    with gate.destroying():
        assert gate.stop() is False
    assert gate.stop() is False
    with gate.answering():
        assert gate.stop() is False
    assert gate.stop() is True


def test_ending_and_destroying_exclude_each_other() -> None:
    """Whichever comes first of two threads, there is never a call to destroy in a process that decided to end."""
    outcomes = set()
    for _ in range(300):
        gate = Gate(0.0, lambda: None)
        gate.enter()
        barrier = threading.Barrier(2)
        ended: list[bool] = []
        began: list[bool] = []

        def watch(gate: Gate = gate, barrier: threading.Barrier = barrier, ended: list[bool] = ended) -> None:
            barrier.wait()
            ended.append(gate.end_if_hung())

        watcher = threading.Thread(target=watch)
        watcher.start()
        barrier.wait()
        try:
            with gate.destroying():
                watcher.join()
                began.append(True)
        except Refused:
            watcher.join()
            began.append(False)
        outcomes.add((ended[0], began[0]))
    assert outcomes <= {(True, False), (False, True)}
