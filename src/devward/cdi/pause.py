"""When a pause of the repairs is over: by the time of day that was agreed on, or by the monotonic clock where the other was set back."""

from devward.audit import Audit
from devward.clock import Clock
from devward.remembered import Remembered, without_pause
from devward.state import Pause


class PauseKeeper:
    """Keeps the time of the remembered pause, and ends it."""

    def __init__(self, remembered: Remembered, audit: Audit, clock: Clock) -> None:
        """Nothing is known of a pause before the first `update`."""
        self._remembered = remembered
        self._audit = audit
        self._clock = clock
        self._known: Pause | None = None
        #: When it is over at the latest, in monotonic seconds.
        self._end = 0.0

    @property
    def remaining(self) -> float:
        """Seconds until the pause is over, 0 without one."""
        pause = self._remembered.state.cdi_pause
        if pause is None:
            return 0.0
        left = (pause.until_usec - self._clock.realtime_usec()) / 1e6
        if pause == self._known:
            left = min(left, self._end - self._clock.monotonic())
        return max(left, 0.0)

    @property
    def until_usec(self) -> int:
        """When the pause ends, 0 if there is none."""
        pause = self._remembered.state.cdi_pause
        return pause.until_usec if pause is not None and self.remaining else 0

    async def update(self) -> None:
        """Take note of a pause that is new, and end one whose time is over, on record."""
        pause = self._remembered.state.cdi_pause
        if pause != self._known:
            self._end = self._clock.monotonic() + self.remaining
            self._known = pause
        if pause is None or self.remaining:
            return
        self._audit.event(
            "pause-ended",
            f"The pause of repairs that uid {pause.caller_uid} asked for is over: {pause.reason}",
            evidence={"reason": pause.reason, "caller_uid": pause.caller_uid, "until_usec": pause.until_usec},
        )
        await self._remembered.update(without_pause)
