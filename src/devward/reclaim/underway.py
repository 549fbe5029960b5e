"""A destruction that nothing calls back any more, and what an administrator is told who asks for the contrary while it runs.

From the last word on the broker destroys what it was told to, whatever is asked for meanwhile. Whoever pins that vNPU then, or stops
reclaiming, is answered when it is over, by what came of it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from devward.npu.client import DESTROY_SECONDS
from devward.npu.facts import Expected
from devward.npu.pins import Target
from devward.reasons import Reason
from devward.reclaim.aftermath import Result

#: Seconds for which an administrator's answer waits: the broker's answer may take DESTROY_SECONDS, and is put on record then.
WAIT_SECONDS: Final = DESTROY_SECONDS + 15.0


class Underway:
    """One destruction, from the last word on."""

    def __init__(self, expected: Expected) -> None:
        """Begin: the broker is about to be told."""
        self._names = frozenset({str(Target(expected.die)), str(Target(expected.die, expected.vdev, expected.template))})
        self._ended = asyncio.Event()
        self._result: Result | None = None

    @property
    def result(self) -> Result | None:
        """What came of it; None: that is awaited."""
        return self._result

    def end(self, result: Result) -> None:
        """It is over; what is not known to be so stays UNKNOWN."""
        self._result = result
        self._ended.set()

    def is_named(self, target: str) -> bool:
        """Whether a pin of this target keeps what is destroyed: its own, or that of its NPU."""
        return target in self._names

    async def wait(self) -> None:
        """Wait for its end, for WAIT_SECONDS at the most."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._ended.wait()
        except TimeoutError:
            return


def lateness(current: Callable[[], Underway | None], target: str, may_run: Callable[[], bool]) -> Callable[[], Awaitable[Reason]]:
    """Return what tells, once that is over, for what a change came too late that is in force from now on; `ok`: for nothing.

    `current` returns what this run of the daemon began last; `target` is what was pinned, empty where all of reclaiming was stopped.
    `may_run` tells whether some broker holds the lock around everything that it does to destroy, and it answers only after that: one that
    never answered may be at it still, or one that was asked by an earlier run of the daemon, for nobody knows what.
    """
    last = current()
    is_meant = last is not None and (not target or last.is_named(target))
    was_running = last is not None and last.result is None
    # It may be let go of before that is told.
    was_held = not was_running and may_run()

    def may_be_meant() -> bool:
        """Whether a broker that holds the lock may be at what the change came too late for."""
        now = current()
        if now is None or now.result not in (None, Result.UNKNOWN):
            return True
        # What began later heeded the change.
        return now is last and is_meant

    async def told() -> Reason:
        if last is not None and was_running and is_meant:
            await last.wait()
            if last.result is Result.DESTROYED and target:
                return Reason.VNPU_DESTROYED
            if last.result is None or (target and last.result is Result.UNKNOWN):
                return Reason.DESTRUCTION_BEGUN
        return Reason.DESTRUCTION_BEGUN if (was_held or may_run()) and may_be_meant() else Reason.OK

    return told
