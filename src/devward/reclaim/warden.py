"""What the loop of reclaiming needs of the rest of the daemon. ReclaimRoom is the real one; tests have others."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from devward.npu.facts import Expected
from devward.npu.pins import PinReport
from devward.reclaim.aftermath import Aftermath
from devward.reclaim.contract import Refuse
from devward.reclaim.controls import Controls, Switch
from devward.reclaim.history import Gone
from devward.reclaim.limits import Breaker, Spent

#: Returns why a vNPU is not destroyed after all; None: it is.
LastWord = Callable[[], Awaitable[Refuse | None]]


class Warden(Protocol):
    """What the loop needs of the rest of the daemon."""

    def pins(self) -> PinReport | None:
        """Return how the pins stand; None: they cannot be read, or some were lost."""

    def sequence(self, vdev: int) -> int | None:
        """Return a number that grows with each event by which a vNPU's node may have become another one; None: it cannot be told."""

    def destroy_may_run(self) -> bool:
        """Tell whether some broker may be destroying a vNPU, whoever asked it."""

    async def switch(self) -> Switch:
        """Look at the kill switch."""

    async def destroy(self, expected: Expected, runtime: str | None, request_id: str, last_word: LastWord) -> Aftermath:
        """Have the broker destroy a vNPU, once, unless the last word, said when it is this question's turn, is against it."""

    def controls(self) -> Controls:
        """Return what stops reclaiming by an administrator's wish or by the state of the daemon; not the kill switch, nor what is seen."""

    def changed(self) -> None:
        """Verdicts, or what blocks, may be others now."""

    async def load(self) -> tuple[Breaker, Spent] | None:
        """Return what an earlier run of the daemon left; None: it cannot be told yet. `controls` say so where it is not known."""

    async def keep(self, breaker: Breaker, spent: Spent) -> bool:
        """Keep what must outlast this run of the daemon; False: it could not be kept."""

    def cycle_ended(self) -> None:
        """A look was taken in, and what came of it is done."""

    def reclaimed(self, gone: Gone, phy: int) -> None:
        """A vNPU was destroyed."""
