"""An event loop whose clock stands still until the test turns it, and waiting for conditions in real time.

Sockets, pipes and pidfds work as ever, so that a real child process can be brought into a state first and the deadline be let pass
afterwards: how loaded the machine is then changes nothing.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds after which a condition that does not come true fails the test; only a defect ever takes that long.
PATIENCE = 30.0
_SLICE = 0.002


class HeldTimeLoop(asyncio.SelectorEventLoop):
    """A loop whose time only `advance` moves."""

    def __init__(self) -> None:
        self._now = 1000.0
        super().__init__(_ImpatientSelector())

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass; what is due runs when the caller next awaits."""
        self._now += seconds


class _ImpatientSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]  # DefaultSelector is a variable to mypy
    """Returns soon even when no event comes, since the loop's own timeouts mean nothing in real time."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(_SLICE if timeout is None else min(timeout, _SLICE))


def run_held(main: Callable[[HeldTimeLoop], Coroutine[Any, Any, T]]) -> T:
    """Run `main(loop)` on a loop with held time, in asyncio's debug mode."""
    loops: list[HeldTimeLoop] = []

    def factory() -> HeldTimeLoop:
        loops.append(HeldTimeLoop())
        return loops[0]

    async def enter() -> T:
        return await main(loops[0])

    with asyncio.Runner(loop_factory=factory, debug=True) as runner:
        return runner.run(enter())


async def outcome(task: "asyncio.Task[T]") -> T:
    """Wait in real time for a task and return its result: a task that waits for a time that never comes fails the test."""
    await until(task.done, f"the end of {task.get_coro()}")
    return task.result()


async def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Wait in real time, whatever the loop's clock says, until a condition is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} did not come true within {PATIENCE:.0f} s"
        await asyncio.sleep(0)
        time.sleep(_SLICE)  # noqa: ASYNC251  # the loop's clock may stand still, so that asyncio.sleep would never end
