"""Whether containers may be given devices: CheckAllocation within the time that the kubelet is kept waiting, which has no limit of its own.

The kubelet admits no Pod with devices while one Allocate is unanswered. A caller that goes away ends its own check and nothing else (R14).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from devward.breakages import Breakages
from devward.clock import Clock
from devward.model import Allocation, DeviceKind
from devward.plugin import decision
from devward.plugin.decision import Answer, Verdict, Vouched
from devward.reasons import REASON_TEXT, Reason

_log = logging.getLogger(__name__)


class Allocator:
    """Judges devices. `check` is CheckAllocation for one of them."""

    def __init__(self, check: Callable[[DeviceKind], Awaitable[Vouched]], clock: Clock, breakages: Breakages) -> None:
        """Begin with no device that was ever good."""
        self._check = check
        self._clock = clock
        self._breakages = breakages
        self._good: dict[DeviceKind, float | None] = {}
        #: Checks that were given up on and have not ended yet.
        self._left: set[asyncio.Future[Vouched]] = set()

    async def judge(self, kinds: Iterable[DeviceKind]) -> dict[DeviceKind, Verdict]:
        """Judge devices, all at the same time and within BUDGET seconds."""
        until = self._clock.monotonic() + decision.BUDGET
        wanted = list(dict.fromkeys(kinds))
        verdicts = await asyncio.gather(*(self._judge(kind, until) for kind in wanted))
        return dict(zip(wanted, verdicts, strict=True))

    def withdrawn(self, kind: DeviceKind) -> None:
        """Take in that a check found a device bad: what was good about it before counts no more."""
        self._good.pop(kind, None)

    async def _judge(self, kind: DeviceKind, until: float) -> Verdict:
        while True:
            vouched = await self._ask(kind, until)
            self._good[kind] = decision.good_after(vouched, self._good.get(kind))
            verdict = decision.decide(vouched, good=self._good[kind], now=self._clock.monotonic(), until=until)
            if verdict.answer is not Answer.AGAIN:
                return verdict
            await asyncio.sleep(decision.PAUSE)

    async def _ask(self, kind: DeviceKind, until: float) -> Vouched | None:
        """Make a check; None: it did not end in time."""
        check: asyncio.Future[Vouched] = asyncio.ensure_future(self._check(kind))
        try:
            await asyncio.wait({check}, timeout=max(0.0, until - self._clock.monotonic()))
            if not check.done():
                return None
        finally:
            if not check.done():
                self._leave(check)
        try:
            return check.result()
        except asyncio.CancelledError:
            return _broken_off()
        except Exception as error:  # noqa: BLE001 # the edge: a check that breaks off is none, and says so in the journal
            self._breakages.note("the check of a device broke off", error, self._clock.monotonic())
            return _broken_off()

    def _leave(self, check: "asyncio.Future[Vouched]") -> None:
        self._left.add(check)
        check.add_done_callback(self._ended)
        check.cancel()

    def _ended(self, check: "asyncio.Future[Vouched]") -> None:
        self._left.discard(check)
        if not check.cancelled() and (error := check.exception()) is not None:
            _log.error("a check that nobody waits for broke off", exc_info=error)


def _broken_off() -> Vouched:
    # Without a good check: what such a check saw of the device, or did not see, nobody knows.
    return Vouched(Allocation(allowed=False, reason=Reason.DEADLINE, text=REASON_TEXT[Reason.DEADLINE]), None)
