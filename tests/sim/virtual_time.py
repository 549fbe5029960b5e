"""An event loop whose clock jumps to the next timer as soon as there is nothing else to do: hours pass in milliseconds.

Descriptors work as ever, but time does not wait for them: use `sim.held_time` where a real process or socket sets the pace.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from devward.clock import Clock

T = TypeVar("T")

START = 1000.0
#: 2026-01-01T00:00:00Z, so that realtime and monotonic time cannot be mixed up.
EPOCH_USEC = 1_767_225_600_000_000


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop with a clock of its own; waiting for nothing at all, with no timer set, fails instead of hanging."""

    def __init__(self) -> None:
        self.now = START
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now

    @property
    def timers(self) -> int:
        """How many timers are set and not cancelled."""
        return sum(not handle.cancelled() for handle in self._scheduled)  # type: ignore[attr-defined]  # no public way to count them

    @property
    def timers_held(self) -> int:
        """How many timers take memory, cancelled ones included."""
        return len(self._scheduled)  # type: ignore[attr-defined]  # no public way to count them


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]  # DefaultSelector is a variable to mypy
    """Answers at once, and lets the time that it would have waited pass."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not ready:
            assert timeout is not None, "the loop waits for something that will never happen"
            # Never short of the timer by a rounding error, or the loop would turn for nothing.
            self._loop.now += max(timeout, 1e-9) if timeout > 0 else 0.0
        return ready


class VirtualClock(Clock):
    """Both clocks of devward, moved by the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: Seconds for which the host was suspended.
        self.suspended = 0.0
        #: Seconds by which the host's time was set forward.
        self.set_by = 0.0

    def monotonic(self) -> float:
        return self._loop.time()

    def boottime(self) -> float:
        return self._loop.time() + self.suspended

    def realtime_usec(self) -> int:
        return EPOCH_USEC + round((self._loop.time() + self.set_by - START) * 1e6)


def run_virtual(main: Callable[[VirtualTimeLoop], Coroutine[Any, Any, T]], *, debug: bool = True) -> T:
    """Run `main(loop)` on a loop with virtual time; what a callback raises fails the run, and so does a task that is left over."""
    problems: list[dict[str, Any]] = []

    async def enter() -> T:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.set_exception_handler(lambda _, context: problems.append(context))
        result = await main(loop)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        return result

    with asyncio.Runner(loop_factory=VirtualTimeLoop, debug=debug) as runner:
        result = runner.run(enter())
    assert not problems, problems
    return result
