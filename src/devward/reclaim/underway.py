"""A destruction that nothing calls back any more, and what an administrator is told who asks for the contrary while it runs.

From the last word on the broker destroys what it was told to, whatever is asked for meanwhile. Whoever pins that vNPU then, or stops
reclaiming, is answered when it is over, by what came of it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from devward.model import Reason
from devward.npu.client import DESTROY_SECONDS
from devward.npu.facts import Expected
from devward.reclaim.aftermath import Result

#: Seconds for which an administrator's answer waits: the broker's answer may take DESTROY_SECONDS, and is put on record then.
WAIT_SECONDS: Final = DESTROY_SECONDS + 15.0


class Underway:
    """One destruction, from the last word on."""

    def __init__(self, expected: Expected) -> None:
        """Begin: the broker is about to be told."""
        self._names = frozenset({expected.die, f"{expected.die}/{expected.vdev}/{expected.template}"})
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


def lateness(last: Underway | None, target: str, may_run: Callable[[], bool]) -> Callable[[], Awaitable[Reason]]:
    """Return what tells, once that is over, for what a change came too late that is in force from now on; `ok`: for nothing.

    `last` is what this run of the daemon began last; `target` what was pinned, empty where all of reclaiming was stopped. `may_run` tells
    whether some broker may be in the vendor's library still, as one that never answered, or was asked by an earlier run of the daemon, for
    nobody knows what.
    """
    is_meant = last is None or not target or last.is_named(target)
    was_running = last is not None and last.result is None

    async def told() -> Reason:
        if not is_meant:
            return Reason.OK
        if last is not None and was_running:
            await last.wait()
            if last.result is Result.DESTROYED:
                return Reason.VNPU_DESTROYED if target else Reason.OK
            if last.result is None or (target and last.result is Result.UNKNOWN):
                return Reason.DESTRUCTION_BEGUN
        if (last is None or last.result is Result.UNKNOWN) and may_run():
            return Reason.DESTRUCTION_BEGUN
        return Reason.OK

    return told
