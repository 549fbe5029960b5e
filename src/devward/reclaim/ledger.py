"""The ledger of reclaiming: what was tried in the last hour and how the breaker is, which must outlast this run of the daemon."""

from devward.reclaim import limits
from devward.reclaim.limits import Breaker, Spent
from devward.reclaim.warden import Warden


class Ledger:
    """Knows nothing before it was recalled, and writes nothing over what it did not read."""

    def __init__(self, warden: Warden) -> None:
        """Keep with the warden's help."""
        self._warden = warden
        self.breaker = Breaker()
        self.spent = Spent()
        #: As it is kept.
        self._kept_breaker = Breaker()
        self._is_loaded = False

    @property
    def is_breaker_kept(self) -> bool:
        """Whether the breaker is kept as it is."""
        return self.breaker == self._kept_breaker

    async def recall(self) -> bool:
        """Learn what an earlier run of the daemon left, if that is not known yet; False: it cannot be told for now."""
        if not self._is_loaded and (kept := await self._warden.load()) is not None and not self._is_loaded:
            self._kept_breaker, self.spent = kept
            self.breaker = limits.recalled(self.breaker, self._kept_breaker)
            self._is_loaded = True
        return self._is_loaded

    async def keep(self) -> bool:
        """Keep what must outlast this run of the daemon; False: it could not be kept."""
        breaker = self.breaker
        # What an earlier run left is not written over unread.
        if not self._is_loaded or not await self._warden.keep(breaker, self.spent):
            return False
        self._kept_breaker = breaker
        return True

    async def release_breaker(self) -> bool:
        """Agree to what was eligible while the breaker was latched; False: that could not be kept."""
        self.breaker = limits.release(self.breaker)
        return await self.keep()

    async def count_try(self, card: str, now: float) -> bool:
        """Count a destruction that is about to be tried; False: that could not be kept, and it does not count.

        It is counted before the broker is asked, so that no restart makes anybody forget it; one that comes to nothing counts, too.
        """
        before = self.spent
        self.spent = limits.spend(before, card, now)
        if await self.keep():
            return True
        # Nothing is tried: the state directory may take nothing for longer than an hour.
        self.spent = before
        return False
