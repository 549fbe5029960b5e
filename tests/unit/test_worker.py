"""The worker thread: a call that hangs is given up within its deadline, and nothing else waits for it."""

import asyncio
import gc
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from devward.worker import Worker, WorkerHung
from sim.held_time import HeldTimeLoop, run_held, until
from sim.private_mounts import SOURCE

PATIENCE = 30.0


class Gate:
    """A call that hangs until it is let through, as one that waits for a file system does."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.ended = threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        assert self.opened.wait(PATIENCE)
        self.ended.set()
        return "late"


@pytest.fixture(name="gate")
def _gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture(name="recoveries")
def _recoveries() -> list[int]:
    return []


@pytest.fixture(name="worker")
def _worker(recoveries: list[int]) -> Iterator[Worker]:
    worker = Worker("test", lambda: recoveries.append(threading.get_ident()))
    yield worker
    worker.close()


async def give_up_on(worker: Worker, loop: HeldTimeLoop, gate: Gate) -> None:
    """Let a call hang and its deadline pass."""
    task = asyncio.ensure_future(worker.run(gate, 5.0))
    await until(gate.entered.is_set)
    loop.advance(5.1)
    with pytest.raises(WorkerHung, match="within 5 s"):
        await task


# --- plain calls -----------------------------------------------------------------------------------------------------------
def test_a_call_runs_in_a_thread_of_its_own_always_the_same(worker: Worker) -> None:
    async def main(_loop: HeldTimeLoop) -> None:
        first = await worker.run(threading.get_ident, 5.0)
        assert first != threading.get_ident()
        assert await worker.run(threading.get_ident, 5.0) == first
        assert await worker.run(lambda: None, 5.0) is None
        assert await worker.run(lambda: threading.current_thread().daemon, 5.0)

    run_held(main)


def test_calls_run_one_at_a_time_in_order(worker: Worker) -> None:
    async def main(_loop: HeldTimeLoop) -> None:
        seen: list[tuple[str, int]] = []

        def call(number: int) -> None:
            seen.append(("in", number))
            time.sleep(0.001)
            seen.append(("out", number))

        await asyncio.gather(*(worker.run(lambda number=number: call(number), 5.0) for number in range(5)))  # type: ignore[misc] # a default argument
        assert seen == [(word, number) for number in range(5) for word in ("in", "out")]

    run_held(main)


@pytest.mark.parametrize("error", [ValueError("x"), OSError(5, "x"), TimeoutError(110, "ETIMEDOUT"), SystemError(), WorkerHung("inner")])
def test_the_error_of_a_call_travels_and_the_thread_lives(worker: Worker, recoveries: list[int], error: Exception) -> None:
    """TimeoutError is what a file system's ETIMEDOUT becomes: the call has ended then, and the worker is not hung."""

    async def main(_loop: HeldTimeLoop) -> None:
        def fail() -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            await worker.run(fail, 5.0)
        assert caught.value is error
        assert not worker.hung
        assert await worker.run(lambda: 1, 5.0) == 1

    run_held(main)
    assert recoveries == []


# --- a hang ----------------------------------------------------------------------------------------------------------------
def test_a_hang_is_given_up_within_the_deadline_and_not_before(worker: Worker, gate: Gate) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        task = asyncio.ensure_future(worker.run(gate, 5.0))
        await until(gate.entered.is_set)
        loop.advance(4.9)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        loop.advance(0.2)
        with pytest.raises(WorkerHung):
            await task
        assert worker.hung

    run_held(main)


def test_while_one_hangs_others_are_refused_at_once_and_never_run(worker: Worker, gate: Gate) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        await give_up_on(worker, loop, gate)
        ran: list[int] = []
        before = loop.time()
        for _ in range(3):
            with pytest.raises(WorkerHung, match="still waits"):
                await worker.run(lambda: ran.append(1), 5.0)
        assert loop.time() == before
        gate.opened.set()
        await until(lambda: not worker.hung)
        assert ran == []

    run_held(main)


def test_a_call_that_computes_is_not_taken_for_a_file_system_that_hangs(worker: Worker) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        end = threading.Event()
        used: list[float] = [0.0]

        def compute() -> None:
            while not end.is_set():
                used[0] = time.thread_time()

        try:
            task = asyncio.ensure_future(worker.run(compute, 0.02))
            await until(lambda: used[0] > 0.05)
            loop.advance(0.1)
            with pytest.raises(WorkerHung, match="has more to do than fits"):
                await task
            with pytest.raises(WorkerHung, match="the test thread still works"):
                await worker.run(lambda: None, 5.0)
        finally:
            end.set()
        await until(lambda: not worker.hung)

    run_held(main)


def test_when_the_hung_call_ends_the_owner_hears_it_once_and_calls_go_through(worker: Worker, gate: Gate, recoveries: list[int]) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        await give_up_on(worker, loop, gate)
        gate.opened.set()
        await until(lambda: recoveries)
        assert recoveries == [threading.get_ident()]
        assert not worker.hung
        assert await worker.run(lambda: "next", 5.0) == "next"
        await asyncio.sleep(0)
        assert len(recoveries) == 1

    run_held(main)


def test_the_result_of_a_call_that_was_given_up_reaches_nobody(worker: Worker, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        def fail_late() -> None:
            gate()
            raise ValueError("late")

        task = asyncio.ensure_future(worker.run(fail_late, 5.0))
        await until(gate.entered.is_set)
        loop.advance(6)
        with pytest.raises(WorkerHung):
            await task
        gate.opened.set()
        await until(lambda: not worker.hung)
        assert await worker.run(lambda: "mine", 5.0) == "mine"

    with caplog.at_level(logging.DEBUG, "asyncio"):
        run_held(main)
        gc.collect()
    assert "never retrieved" not in caplog.text


def test_those_who_queue_behind_a_hang_wait_no_longer_than_it(worker: Worker, gate: Gate) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        first = asyncio.ensure_future(worker.run(gate, 5.0))
        await until(gate.entered.is_set)
        queued = [asyncio.ensure_future(worker.run(lambda: 1, 5.0)) for _ in range(3)]
        loop.advance(5.1)
        answers = await asyncio.gather(first, *queued, return_exceptions=True)
        assert [type(answer) for answer in answers] == [WorkerHung] * 4

    run_held(main)


def test_an_answer_that_comes_with_the_deadline_counts(worker: Worker, gate: Gate) -> None:
    """Whatever the order of the two on the loop: the worker must not believe that a call hangs which has ended."""

    async def main(loop: HeldTimeLoop) -> None:
        task = asyncio.ensure_future(worker.run(gate, 5.0))
        await until(gate.entered.is_set)
        gate.opened.set()
        gate.ended.wait(PATIENCE)
        time.sleep(0.01)  # noqa: ASYNC251 # the thread hands its answer to the loop, which must not turn meanwhile
        loop.advance(6)
        try:
            assert await task == "late"
        except WorkerHung:
            await until(lambda: not worker.hung)
        assert await worker.run(lambda: 1, 5.0) == 1

    for _ in range(5):
        gate.__init__()  # type: ignore[misc] # a fresh one for each round
        worker._lock = asyncio.Lock()  # of this round's loop
        run_held(main)


# --- cancellation ------------------------------------------------------------------------------------------------------------
def test_a_caller_that_goes_away_makes_nobody_believe_in_a_hang(worker: Worker, gate: Gate, recoveries: list[int]) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        task = asyncio.ensure_future(worker.run(gate, 5.0))
        await until(gate.entered.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not worker.hung
        following = asyncio.ensure_future(worker.run(lambda: "mine", 5.0))
        await asyncio.sleep(0)
        assert not following.done(), "two calls at a time"
        gate.opened.set()
        assert await following == "mine"

    run_held(main)
    assert recoveries == []


def test_a_call_whose_caller_went_away_and_that_hangs_is_a_hang_for_the_next(worker: Worker, gate: Gate, recoveries: list[int]) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        task = asyncio.ensure_future(worker.run(gate, 5.0))
        await until(gate.entered.is_set)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        ran: list[int] = []
        following = asyncio.ensure_future(worker.run(lambda: ran.append(1), 5.0))
        await asyncio.sleep(0)
        loop.advance(5.1)
        with pytest.raises(WorkerHung):
            await following
        assert worker.hung
        gate.opened.set()
        await until(lambda: recoveries)
        assert ran == []

    run_held(main)


def test_the_error_of_a_call_whose_caller_went_away_is_no_noise(worker: Worker, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    async def main(_loop: HeldTimeLoop) -> None:
        def fail_late() -> None:
            gate()
            raise ValueError("late")

        task = asyncio.ensure_future(worker.run(fail_late, 5.0))
        await until(gate.entered.is_set)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gate.opened.set()
        assert await worker.run(lambda: 1, 5.0) == 1

    with caplog.at_level(logging.DEBUG, "asyncio"):
        run_held(main)
        gc.collect()
    assert "never retrieved" not in caplog.text


def test_the_error_of_a_call_whose_caller_goes_away_as_it_comes_is_no_noise(
    worker: Worker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        def fail() -> None:
            raise ValueError("just now")

        def answer(done: Callable[..., object], *result: object) -> None:
            done(*result)
            task.cancel()

        call_soon = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *called: call_soon(answer, *called))
        task = asyncio.ensure_future(worker.run(fail, 5.0))
        with pytest.raises(asyncio.CancelledError):
            await task

    with caplog.at_level(logging.DEBUG, "asyncio"):
        run_held(main)
        gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_caller_that_goes_away_while_it_queues_leaves_the_queue(worker: Worker, gate: Gate) -> None:
    async def main(_loop: HeldTimeLoop) -> None:
        first = asyncio.ensure_future(worker.run(gate, 5.0))
        await until(gate.entered.is_set)
        ran: list[int] = []
        queued = asyncio.ensure_future(worker.run(lambda: ran.append(1), 5.0))
        await asyncio.sleep(0)
        queued.cancel()
        gate.opened.set()
        assert await first == "late"
        assert await worker.run(lambda: 1, 5.0) == 1
        assert ran == []

    run_held(main)


# --- the end -----------------------------------------------------------------------------------------------------------------
def threads_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_close_ends_the_thread_once_it_is_idle() -> None:
    async def main(_loop: HeldTimeLoop) -> None:
        unused, used = Worker("unused"), Worker("used")
        unused.close()
        assert threads_named("unused") == []
        await used.run(lambda: 1, 5.0)
        (thread,) = threads_named("used")
        used.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()

    run_held(main)


def test_a_call_that_ends_after_its_loop_is_closed_harms_nobody(worker: Worker, gate: Gate) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        await give_up_on(worker, loop, gate)

    run_held(main)
    gate.opened.set()
    worker.close()
    for thread in threads_named("test"):
        thread.join(PATIENCE)
        assert not thread.is_alive()


_EXITING = """
import asyncio, os, sys
from devward.worker import Worker, WorkerHung

async def main():
    read, write = os.pipe()
    worker = Worker("files")
    try:
        await worker.run(lambda: os.read(read, 1), 0.05)
    except WorkerHung:
        print("given up", flush=True)

asyncio.run(main())
"""


def test_a_hung_call_does_not_keep_the_process_from_exiting() -> None:
    done = subprocess.run(
        [sys.executable, "-B", "-W", "error", "-c", _EXITING],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(SOURCE)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "given up\n", "")


def test_recovery_is_optional(gate: Gate) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        worker = Worker("plain")
        await give_up_on(worker, loop, gate)
        gate.opened.set()
        await until(lambda: not worker.hung)
        worker.close()

    run_held(main)


def test_the_owner_may_use_the_worker_when_it_hears_of_the_recovery(gate: Gate) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        answers: list[asyncio.Task[int]] = []
        heard: Callable[[], None] = lambda: answers.append(asyncio.ensure_future(worker.run(lambda: 7, 5.0)))  # noqa: E731 # it refers to the worker
        worker = Worker("again", heard)
        await give_up_on(worker, loop, gate)
        gate.opened.set()
        await until(lambda: answers)
        assert await answers[0] == 7
        worker.close()

    run_held(main)
