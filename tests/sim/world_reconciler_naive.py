"""Reconcilers that lack one rule of the real one's loop each: the world must catch every one of them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from devward.audit import Audit
from devward.clock import Clock
from devward.cluster.owners import Seen
from devward.config import ReclaimConfig
from devward.npu.facts import Expected
from devward.reclaim import contract
from devward.reclaim.aftermath import Aftermath
from devward.reclaim.controls import Controls, Switch
from devward.reclaim.limits import Due, Rates
from devward.reclaim.look import Interruption, Look
from devward.reclaim.obstacles import Obstacles
from devward.reclaim.warden import LastWord, Warden
from sim.world_reconciler import Reconciled, Watched, WorldJournal, WorldWarden


class _NoFreshLook(Watched):
    async def _reclaim(self, due: Due, again: Callable[[], Awaitable[Seen]]) -> bool:
        look, seen, sequence = self.standing.look, self._latest, self.warden.sequence(due.vdev)
        judgement = next((one for one in self.standing.judgements.values() if one.identity == due.identity), None)
        expected = self.daemon.expected(due.identity)
        if look is None or seen is None or sequence is None or judgement is None or expected is None:
            return True
        prepared = contract.Prepared(
            contract.Chosen(due, sequence), expected, judgement, look.begun + self._clock.apart(), self._clock.apart()
        )
        await asyncio.get_running_loop().create_task(self._destroy(prepared, look, seen))
        return True


class NoFreshLook(Reconciled):
    """Destroys by the evidence by which it chose."""

    reconciler_type = _NoFreshLook


class _NoLastWord(WorldWarden):
    async def destroy(self, expected: Expected, runtime: str | None, request_id: str, last_word: LastWord) -> Aftermath:
        async def nothing() -> None:
            return None

        return await super().destroy(expected, runtime, request_id, nothing)


class NoLastWord(Reconciled):
    """Does not ask again when it is its question's turn."""

    warden_type = _NoLastWord


class _NoInterruptions(Watched):
    def interrupt(self, interruption: Interruption) -> None:
        """Heed none."""


class NoInterruptions(Reconciled):
    """Goes on waiting whatever happens."""

    reconciler_type = _NoInterruptions


class _NoticedAtLooksOnly(Obstacles):
    is_first = True

    async def read(self, seen: Seen) -> Controls:
        last, is_first, self.is_first = self._last, self.is_first, False
        controls = await super().read(seen)
        if not is_first:
            self._last = last
        return controls


class _NoticesAtLooksOnly(Watched):
    obstacles_type = _NoticedAtLooksOnly

    async def _take(self, seen: Seen, again: Callable[[], Awaitable[Seen]]) -> None:
        assert isinstance(self._obstacles, _NoticedAtLooksOnly)
        self._obstacles.is_first = True
        await super()._take(seen, again)


class NoticesAtLooksOnly(Reconciled):
    """Takes no note of a kill switch that it finds between two looks."""

    reconciler_type = _NoticesAtLooksOnly


class _StandingClock(Clock):
    """Another one, whose CLOCK_BOOTTIME stands still as the monotonic one does."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def boottime(self) -> float:
        return self._clock.monotonic()

    def realtime_usec(self) -> int:
        return self._clock.realtime_usec()


class _ClockStandsStill(Watched):
    def __init__(self, config: ReclaimConfig, warden: Warden, audit: Audit, clock: Clock, new_id: Callable[[], str]) -> None:
        super().__init__(config, warden, audit, _StandingClock(clock), new_id)


class ClockStandsStill(Reconciled):
    """Has a clock that stands still while the host is suspended."""

    reconciler_type = _ClockStandsStill


class _KillSwitchAbsent(Obstacles):
    def _with_own(self, switch: Switch, *, has_kubelet: bool) -> Controls:
        return super()._with_own(Switch.ABSENT, has_kubelet=has_kubelet)


class _NoKillSwitch(Watched):
    obstacles_type = _KillSwitchAbsent


class NoKillSwitch(Reconciled):
    """Finds no kill switch."""

    reconciler_type = _NoKillSwitch


class _ReadBeforeSwitch(Obstacles):
    async def read(self, seen: Seen) -> Controls:
        before = self._warden.controls()
        return replace(await super().read(seen), mode=before.mode, is_paused=before.is_paused)


class _ControlsBeforeSwitch(Watched):
    obstacles_type = _ReadBeforeSwitch


class ControlsBeforeSwitch(Reconciled):
    """Reads mode and pause before the kill switch, which takes a moment."""

    reconciler_type = _ControlsBeforeSwitch


class _NoBreaker(Watched):
    async def _watch(self, look: Look, eligible: tuple[Due, ...]) -> None:
        """Latch nothing."""


class NoBreaker(Reconciled):
    """Has no breaker."""

    reconciler_type = _NoBreaker


class _NoRates(Watched):
    def _configure(self, config: ReclaimConfig) -> None:
        super()._configure(config)
        self._rates = Rates(99, 99, 99)


class NoRates(Reconciled):
    """Destroys as many as there are."""

    reconciler_type = _NoRates


class _KeepsProgress(Watched):
    def _conclude(self, prepared: contract.Prepared, what_came: Aftermath, request_id: str, recreate: str) -> None:
        before = self._progress
        super()._conclude(prepared, what_came, request_id, recreate)
        self._progress = before


class KeepsProgress(Reconciled):
    """Learns nothing from an answer."""

    reconciler_type = _KeepsProgress


class _AlwaysTakes(WorldJournal):
    def send(self, message: str, fields: Mapping[str, str | Sequence[str]], *, priority: int) -> bool:
        super().send(message, fields, priority=priority)
        return True


class NoIntent(Reconciled):
    """Takes every record for taken."""

    journal_type = _AlwaysTakes


class _NoUnpinning(Watched):
    def pinned(self) -> None:
        """Compare none."""


class NoUnpinning(Reconciled):
    """Goes on waiting for what was pinned meanwhile."""

    reconciler_type = _NoUnpinning


class _NoOutcome(Watched):
    async def _destroy(self, prepared: contract.Prepared, fresh: Look, seen: Seen) -> None:
        before = set(self.warden.journal.open)
        await super()._destroy(prepared, fresh, seen)
        self.warden.journal.open = before | {prepared.judgement.identity}


class NoOutcome(Reconciled):
    """Tells nobody what came of it."""

    reconciler_type = _NoOutcome


class _Never(Watched):
    async def _reclaim(self, due: Due, again: Callable[[], Awaitable[Seen]]) -> bool:
        return True


class Never(Reconciled):
    """Destroys nothing, which is safe."""

    reconciler_type = _Never
