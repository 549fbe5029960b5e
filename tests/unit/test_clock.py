"""The coalescing of bursts, on a clock that the test turns, and the host's clocks."""

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.clock import Clock, Coalescer
from sim.virtual_time import START, VirtualTimeLoop, run_virtual

QUIET, CEILING = 0.25, 2.0


class Calls:
    """When a coalescer called, in seconds since the start."""

    def __init__(self, loop: VirtualTimeLoop, *, leading: bool) -> None:
        self.loop = loop
        self.moments: list[float] = []
        self.coalescer = Coalescer(self._call, quiet=QUIET, ceiling=CEILING, leading=leading)

    def _call(self) -> None:
        self.moments.append(round(self.loop.now - START, 6))


def play(scene: Callable[[Calls], Coroutine[Any, Any, None]], *, leading: bool) -> list[float]:
    async def main(loop: VirtualTimeLoop) -> list[float]:
        calls = Calls(loop, leading=leading)
        await scene(calls)
        await asyncio.sleep(100)
        assert not calls.coalescer.pending
        assert loop.timers == 0
        return calls.moments

    return run_virtual(main)


def test_one_trigger_is_answered_after_quiet() -> None:
    async def scene(calls: Calls) -> None:
        calls.coalescer.trigger()
        assert calls.coalescer.pending
        assert calls.moments == []

    assert play(scene, leading=False) == [QUIET]


def test_one_trigger_is_answered_at_once_and_only_once_with_leading() -> None:
    async def scene(calls: Calls) -> None:
        calls.coalescer.trigger()
        assert calls.moments == [0.0]
        assert not calls.coalescer.pending

    assert play(scene, leading=True) == [0.0]


def test_a_burst_is_answered_once_after_its_last_trigger() -> None:
    async def scene(calls: Calls) -> None:
        for _ in range(5):
            calls.coalescer.trigger()
            await asyncio.sleep(0.1)

    assert play(scene, leading=False) == [0.4 + QUIET]
    assert play(scene, leading=True) == [0.0, 0.4 + QUIET]


def test_what_follows_the_leading_call_after_quiet_leads_again() -> None:
    async def scene(calls: Calls) -> None:
        calls.coalescer.trigger()
        await asyncio.sleep(QUIET + 0.01)
        calls.coalescer.trigger()

    assert play(scene, leading=True) == [0.0, QUIET + 0.01]


def test_quiet_counts_from_the_answer_too() -> None:
    """A trigger just after an answer waits, so that calls are never closer than `quiet`."""

    async def scene(calls: Calls) -> None:
        calls.coalescer.trigger()
        await asyncio.sleep(0.1)
        calls.coalescer.trigger()
        await asyncio.sleep(QUIET + 0.05)
        calls.coalescer.trigger()

    assert play(scene, leading=True) == [0.0, 0.35, 0.65]


def test_a_storm_is_answered_at_the_ceiling() -> None:
    async def scene(calls: Calls) -> None:
        for _ in range(1000):
            calls.coalescer.trigger()
            await asyncio.sleep(0.01)

    moments = play(scene, leading=False)
    assert moments[0] == CEILING
    assert len(moments) == 5
    assert play(scene, leading=True)[:2] == [0.0, CEILING + 0.01]


def test_cancel_forgets_what_waits() -> None:
    async def scene(calls: Calls) -> None:
        calls.coalescer.trigger()
        calls.coalescer.trigger()
        calls.coalescer.cancel()
        assert not calls.coalescer.pending
        assert calls.loop.timers == 0

    assert play(scene, leading=False) == []
    assert play(scene, leading=True) == [0.0]


@pytest.mark.parametrize("leading", [False, True])
def test_a_call_may_trigger_again(leading: bool) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        moments: list[float] = []

        def call() -> None:
            moments.append(loop.now)
            if len(moments) < 3:
                coalescer.trigger()

        coalescer = Coalescer(call, quiet=QUIET, ceiling=CEILING, leading=leading)
        coalescer.trigger()
        await asyncio.sleep(10)
        assert [round(moment - moments[0], 6) for moment in moments] == [0.0, QUIET, 2 * QUIET]

    run_virtual(main)


def test_a_call_that_raises_does_not_end_the_answers() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        problems: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: problems.append(context))
        calls = 0

        def call() -> None:
            nonlocal calls
            calls += 1
            raise LookupError

        for leading in (False, True):
            coalescer = Coalescer(call, quiet=QUIET, ceiling=CEILING, leading=leading)
            calls = 0
            for _ in range(3):
                try:
                    coalescer.trigger()
                except LookupError:
                    assert leading
                await asyncio.sleep(10)
            assert calls == 3
        assert len(problems) == 3

    run_virtual(main)


def test_timers_do_not_pile_up() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        calls = Calls(loop, leading=True)
        for _ in range(10_000):
            calls.coalescer.trigger()
        assert loop.timers == 1
        await asyncio.sleep(10)
        assert len(calls.moments) == 2
        assert loop.timers == 0
        assert loop.timers_held < 10_000

    run_virtual(main)


@given(st.lists(st.floats(0.0, 1.0), max_size=60), st.booleans())
def test_every_trigger_is_answered_in_time_and_calls_keep_their_distance(pauses: list[float], leading: bool) -> None:
    triggers: list[float] = []

    async def scene(calls: Calls) -> None:
        for pause in pauses:
            triggers.append(calls.loop.now - START)
            calls.coalescer.trigger()
            await asyncio.sleep(pause)

    moments = play(scene, leading=leading)
    for trigger in triggers:
        assert any(trigger - 1e-5 <= moment <= trigger + CEILING + 1e-5 for moment in moments)
    for earlier, later in itertools.pairwise(moments):
        assert later - earlier >= QUIET - 1e-5
    assert len(moments) <= len(triggers)


def test_the_hosts_clocks() -> None:
    clock = Clock()
    before = time.monotonic()
    assert before <= clock.monotonic() <= time.monotonic()
    earlier = time.time_ns() // 1000
    assert earlier <= clock.realtime_usec() <= time.time_ns() // 1000
