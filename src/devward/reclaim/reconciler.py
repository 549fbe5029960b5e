"""The loop of reclaiming: takes every look in, judges every vNPU, and has those destroyed that may be, one at a time.

There is this one reconciler for everything: start, timer, events and manual actions all end in a look, and a look in `take`. What is
decided is decided in the pure rooms beside this one; here is the order of things, and what came of them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from devward.audit import Audit
from devward.clock import Clock
from devward.cluster.life import Life
from devward.cluster.observations import Scope
from devward.cluster.owners import Seen
from devward.cluster.views import Unknown
from devward.config import ReclaimConfig
from devward.model import ActionRequest, ReclaimMode, Trigger
from devward.npu.facts import Outcome, Refusal
from devward.npu.inventory import Picture
from devward.reclaim import aftermath, contract, counters, history, limits, record, verdict
from devward.reclaim.aftermath import Aftermath, Result
from devward.reclaim.asking import ask_about
from devward.reclaim.confirmation import Bounds, Pace, Progress, step
from devward.reclaim.contract import Chosen, Go, Prepared, Refuse
from devward.reclaim.controls import Controls, Permission, permission, retried
from devward.reclaim.counters import Counters
from devward.reclaim.history import Attempt, Fate, Gone, History
from devward.reclaim.ledger import Ledger
from devward.reclaim.limits import Allowance, Due, Rates
from devward.reclaim.look import Cut, Interruption, Look, Reach, container_key, take_look
from devward.reclaim.obstacles import Obstacles
from devward.reclaim.trail import ReclaimTrail
from devward.reclaim.underway import Underway
from devward.reclaim.verdict import Judgement
from devward.reclaim.warden import LastWord, Warden
from devward.reclaim.wishes import Wishes

#: Seconds that a destruction may take before stopping goes on without it; the broker is then left alone.
FINISH_SECONDS: Final = 60.0

#: Nothing was seen of the NPUs yet: there may be any.
_NO_PICTURE: Final = Picture(in_doubt=True)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Standing:
    """What the latest look came to."""

    judgements: Mapping[str, Judgement]
    permission: Permission
    #: None: there was no look yet.
    look: Look | None = None


class Reconciler:
    """Judges, and reclaims. One look at a time."""

    def __init__(self, config: ReclaimConfig, warden: Warden, audit: Audit, clock: Clock, new_id: Callable[[], str]) -> None:
        """Know nothing yet: what was before this run of the daemon counts for nothing."""
        self._warden = warden
        self._audit = audit
        self._clock = clock
        self._new_id = new_id
        self._progress = Progress()
        self._history = History()
        self._trail = ReclaimTrail(audit)
        self.ledger = Ledger(warden)
        #: By identity, why what is eligible was not destroyed in the latest cycle: a code.
        self._left: dict[str, str] = {}
        self._interruptions: tuple[Interruption, ...] = ()
        self._picture = _NO_PICTURE
        self._latest: Seen | None = None
        self._obstacles = Obstacles(warden, self.ledger, self.interrupt)
        self.wishes = Wishes()
        self._last_unknowns: tuple[Unknown, ...] = ()
        #: Identities of what was pinned when that was looked at last.
        self._pinned: frozenset[str] = frozenset()
        self._acting: asyncio.Task[None] | None = None
        self._underway: Underway | None = None
        self.counters = Counters()
        self.standing = Standing({}, permission(Controls()))
        self._configure(config)

    def configure(self, config: ReclaimConfig) -> None:
        """Apply other settings; every wait begins anew."""
        self._configure(config)
        self._obstacles.is_forbidden = False
        self.interrupt(Interruption(Cut.RELOADED))

    def _configure(self, config: ReclaimConfig) -> None:
        self._bounds = Bounds(Pace(config.grace, config.confirmations, config.interval))
        self._rates = Rates(config.per_card, config.per_node, config.per_hour)
        self._reach = Reach(config.manage, None if config.cards is None else frozenset(config.cards))

    def interrupt(self, interruption: Interruption) -> None:
        """Break waits at the next look."""
        self._interruptions = (*self._interruptions, interruption)

    @property
    def underway(self) -> Underway | None:
        """The destruction that the broker was told of last, be it over or not; None: none in this run of the daemon."""
        return self._underway

    @property
    def bounds(self) -> Bounds:
        """How long and how often nobody must have had a vNPU."""
        return self._bounds

    @property
    def interval(self) -> float:
        """Seconds between looks at the most, for confirmations to come as often as they may."""
        return self._bounds.normal.interval

    @property
    def history(self) -> History:
        """What became of vNPUs."""
        return self._history

    @property
    def is_node_known(self) -> bool:
        """Whether the latest look left nothing of the whole node unknown; False too where there was none."""
        return self.standing.look is not None and all(unknown.scope is not Scope.NODE for unknown in self._last_unknowns)

    @property
    def rates(self) -> Rates:
        """How many destructions may be tried."""
        return self._rates

    @property
    def allowance(self) -> Allowance:
        """What the hour still allows."""
        return limits.allowance(self.ledger.spent, self._rates, self._clock.monotonic())

    @property
    def left(self) -> Mapping[str, str]:
        """By identity, why what is eligible was not destroyed in the latest cycle: a code."""
        return self._left

    def evidence(self, name: str) -> Mapping[str, object] | None:
        """Return by what a vNPU was judged at the latest look; None: it was not."""
        look, judgement = self.standing.look, self.standing.judgements.get(name)
        if look is None or judgement is None:
            return None
        return {**record.evidence(judgement, look, self._progress), "left": self._left.get(judgement.identity, "")}

    # --- a look --------------------------------------------------------------------------------------------------------
    def ask_about(self, picture: Picture) -> frozenset[str]:
        """Return the names of the vNPUs whose users are worth a search of the host."""
        return ask_about(picture, self._warden.pins(), self.standing.judgements)

    async def take(self, seen: Seen, again: Callable[[], Awaitable[Seen]]) -> None:
        """Take a look in, and destroy what may be; `again` has everything looked at anew."""
        try:
            await self._take(seen, again)
        except BaseException:
            # What was not taken in to its end may have been against any vNPU.
            self._progress = Progress()
            raise
        finally:
            self._warden.cycle_ended()

    async def _take(self, seen: Seen, again: Callable[[], Awaitable[Seen]]) -> None:
        if self._acting is not None and not self._acting.done():
            # Of a cycle that was broken off: what comes of it counts before anything else does.
            await asyncio.wait({self._acting})
        await self.ledger.recall()
        controls = await self._obstacles.read(seen)
        look = self._look(seen)
        self._take_in(look, seen, controls)
        before, self._left = self._left, {}
        self.ledger.spent = limits.begin_cycle(self.ledger.spent)
        eligible = limits.due(self.standing.judgements, self._progress)
        if not eligible:
            self._obstacles.is_journal_refusing = False
        await self._watch(look, eligible)
        # That the state directory takes nothing, or the journal, is tried anew in each cycle: nothing else tells that it is back.
        self._obstacles.is_unsaved = self._obstacles.is_unsaved and not await self.ledger.keep()
        controls = await self._obstacles.read(seen)
        self._publish(look, seen, controls)
        if not permission(retried(controls), seen.blocked).may_destroy:
            return
        choice = limits.choose(eligible, self.ledger.spent, self._rates, self._clock.monotonic())
        self._left = {identity: reached.value for identity, reached in choice.left.items()}
        self._trail.limited(eligible, self._left, before)
        for due in choice.chosen:
            if not await self._reclaim(due, again):
                break
        # What stopped it is to be seen before the next look.
        latest = self._latest or seen
        self._allow(await self._obstacles.read(latest), latest.blocked)

    def noticed(self) -> None:
        """An administrator changed something of what stops reclaiming: it shows at once, and breaks waits even if it is taken back soon."""
        if (controls := self._obstacles.reread()) is not None:
            self._allow(controls, self._last_unknowns)

    def pinned(self) -> None:
        """Pins may be others than before: the wait of what is not pinned any more begins anew."""
        report = self._warden.pins()
        pinned = frozenset(one.view.identity for one in report.vnpus) if report is not None else frozenset[str]()
        if gone := self._pinned - pinned:
            self.interrupt(Interruption(Cut.UNPINNED, gone))
        self._pinned = pinned

    def forget(self) -> None:
        """Nobody looks any more: nothing is known."""
        self._progress, self._picture = Progress(), _NO_PICTURE
        self.standing = Standing({}, permission(Controls()))
        self._warden.changed()
        self._warden.cycle_ended()

    def _allow(self, controls: Controls, unknowns: tuple[Unknown, ...], *, is_other_look: bool = False) -> None:
        self._last_unknowns = unknowns
        allowed = permission(controls, unknowns)
        if is_other_look or allowed != self.standing.permission:
            self.standing = replace(self.standing, permission=allowed)
            self._warden.changed()

    def _look(self, seen: Seen) -> Look:
        """Return the look as reclaiming sees it.

        Where nothing was seen of the NPUs they are as they were seen last, so that none of them seems to have gone; the snapshot has no
        card then, which shields them all.
        """
        self.pinned()
        if seen.gathered.parts.npus.value is not None:
            self._picture = seen.gathered.parts.npus.value
        picture = self._picture
        containers = seen.gathered.containers
        living = None if containers is None else frozenset(container_key(one) for one in containers if one.life is Life.LIVE)
        present = frozenset(vnpu.identity for vnpu in picture.vnpus)
        self.wishes.keep_only(present)
        return take_look(
            picture,
            seen.snapshot if seen.is_asked else None,
            seen.gathered.sights,
            self._warden.pins(),
            at=seen.snapshot.at,
            at_usec=seen.snapshot.at_usec,
            containers=containers,
            living=living,
            reach=self._reach,
            interruptions=self._interruptions,
            shorten=self.wishes.shortened,
        )

    def _take_in(self, look: Look, seen: Seen, controls: Controls, progress: Progress | None = None) -> None:
        before = self._progress
        self._progress = step(before, look, self._bounds) if progress is None else progress
        # Only now: those that came meanwhile, or with a look that broke off, are for the next one.
        self._interruptions = self._interruptions[len(look.interruptions) :]
        judgements = verdict.judge(self._progress, look, self._bounds)
        self.counters += counters.of_look(before, self._progress, look, judgements)
        if seen.gathered.parts.npus.value is not None:
            # Where nothing was seen of the NPUs nothing went.
            self._history, went = history.see(self._history, look, self._progress, judgements)
            self._tell_of(went, look)
        if controls.mode is not ReclaimMode.OFF:
            self._trail.kept(look, judgements)
        self._publish(look, seen, controls, judgements)

    def _publish(self, look: Look, seen: Seen, controls: Controls, judgements: Mapping[str, Judgement] | None = None) -> None:
        shown = self.standing.judgements if judgements is None else judgements
        self._latest = seen
        is_other_look = shown is not self.standing.judgements or look is not self.standing.look
        self.standing = Standing(shown, self.standing.permission, look)
        self._allow(controls, seen.blocked, is_other_look=is_other_look)

    async def _watch(self, look: Look, eligible: tuple[Due, ...]) -> None:
        """Latch the breaker where too much is eligible at a time."""
        before = self.ledger.breaker
        self.ledger.breaker = limits.watch_look(before, eligible, look, self.standing.judgements.values())
        if self.ledger.breaker.is_latched and not before.is_latched:
            self._trail.breaker_latched(self.ledger.breaker)
        # So that a restart neither ends it, nor forgets what an administrator was shown, or agreed to.
        if not self.ledger.is_breaker_kept:
            await self.ledger.keep()

    # --- a destruction -------------------------------------------------------------------------------------------------
    async def _reclaim(self, due: Due, again: Callable[[], Awaitable[Seen]]) -> bool:
        """Destroy one vNPU if it still may be; False: nothing more may be in this cycle."""
        sequence = self._warden.sequence(due.vdev)
        if sequence is None:
            self._refused(due, contract.No.EVENTS_UNREAD.value, contract.NO_TEXT[contract.No.EVENTS_UNREAD])
            return True
        before, apart = self._progress, self._clock.apart()
        seen = await again()
        fresh = self._look(seen)
        controls = await self._obstacles.read(seen)
        answer, progress = contract.prepare(
            Chosen(due, sequence),
            before,
            fresh,
            contract.described(seen.gathered.parts.npus.value, due.identity),
            now=self._clock.monotonic(),
            apart=apart,
            sequence=self._warden.sequence(due.vdev),
            controls=retried(controls),
            spent=self.ledger.spent,
            rates=self._rates,
            bounds=self._bounds,
        )
        self._take_in(fresh, seen, controls, progress)
        await self._watch(fresh, limits.due(self.standing.judgements, self._progress))
        if isinstance(answer, Refuse):
            self._refused(due, answer.reason, answer.sentence)
            return not self.ledger.breaker.is_latched and permission(retried(controls)).may_destroy
        # As a task of its own, which whoever cancels this one leaves alone: what was begun is begun, and has to be put on record.
        self._acting = asyncio.get_running_loop().create_task(self._destroy(answer, fresh, seen), name="destruction")
        await asyncio.shield(self._acting)
        return not (self._obstacles.is_forbidden or self._obstacles.is_journal_refusing or self._obstacles.is_unsaved)

    async def _destroy(self, prepared: Prepared, fresh: Look, seen: Seen) -> None:
        """Put the intent on record, say the last word, ask the broker, and put on record what came of it."""
        expected, judgement = prepared.expected, prepared.judgement
        request = self.wishes.request(judgement.identity) or ActionRequest(self._new_id(), None, Trigger.TIMER)
        recreate = record.recreate_line(expected, self._picture.vgroups.get(judgement.name))
        told = {**record.evidence(judgement, fresh, self._progress), "recreate": recreate}
        what = f"vNPU {expected.vdev} ({expected.template}) of card {judgement.card}"
        with self._audit.begin(
            "vnpu-reclaim",
            f"{what} belongs to nobody and is destroyed",
            vnpu=str(expected.vdev),
            card=judgement.card,
            pod_uid=told.get("suspects"),
            request=request,
            evidence=told,
        ) as act:
            self._obstacles.is_journal_refusing = not act.taken
            if not act.taken:
                # Nothing is tried, and so it counts for no rate: the journal may be away for longer than an hour.
                act.fail(contract.No.NOT_RECORDED.value, f"{what} is not destroyed: {contract.NO_TEXT[contract.No.NOT_RECORDED]}")
                return
            self._obstacles.is_unsaved = not await self.ledger.count_try(judgement.card, self._clock.monotonic())
            if self._obstacles.is_unsaved:
                act.fail("try-not-saved", f"{what} is not destroyed after all: that it is tried could not be saved")
                return

            async def last_word() -> Refuse | None:
                controls = await self._obstacles.read(seen)
                last = contract.decide(
                    prepared,
                    now=self._clock.boottime(),
                    sequence=self._warden.sequence(expected.vdev),
                    controls=retried(controls),
                    is_intent_taken=act.taken,
                )
                if isinstance(last, Go):
                    return contract.kept_since(prepared, self._interruptions, self._warden.pins(), self._clock.apart())
                return last

            if (no := await last_word()) is not None:
                act.fail(no.reason, f"{what} is not destroyed after all: {no.sentence}")
                return

            async def last_word_of_all() -> Refuse | None:
                if (no := await last_word()) is not None:
                    return no
                if self._warden.destroy_may_run():
                    # The broker would refuse, and for what its lock is held later could not be told.
                    return Refuse(Refusal.DESTROY_RUNNING.value, "Another broker may still be destroying a vNPU.")
                # Whatever is asked for from now on comes too late for this one.
                self._underway = Underway(expected)
                return None

            what_came = await self._tell_broker(prepared, seen.gathered.runtime, request.request_id, last_word_of_all)
            self._conclude(prepared, what_came, request.request_id, recreate)
            if what_came.result is Result.DESTROYED:
                act.succeed(f"{what} was destroyed; to make it again: {recreate}", evidence=told)
            else:
                again = f" Should it be gone, this makes it again: {recreate}" if what_came.result is Result.UNKNOWN else ""
                act.fail(what_came.reason, f"{what}: {what_came.result}. {what_came.sentence}{again}")

    async def _tell_broker(self, prepared: Prepared, runtime: str | None, request_id: str, last_word: LastWord) -> Aftermath:
        """Have the broker destroy it, and tell those who wait for its end."""
        result = Result.UNKNOWN
        try:
            what_came = await self._warden.destroy(prepared.expected, runtime, request_id, last_word)
            result = what_came.result
            return what_came
        finally:
            if self._underway is not None and self._underway.result is None:
                self._underway.end(result)

    def _conclude(self, prepared: Prepared, what_came: Aftermath, request_id: str, recreate: str) -> None:
        identity, now = prepared.chosen.due.identity, self._clock.monotonic()
        self._progress = aftermath.conclude(self._progress, identity, what_came, now)
        if what_came.result is not Result.DESTROYED:
            self._left[identity] = what_came.reason
        self._obstacles.is_forbidden = self._obstacles.is_forbidden or what_came.forbids
        self.counters += counters.of_destruction(what_came)
        attempt = Attempt(request_id, now, recreate)
        self._history, went = history.act(self._history, identity, attempt, what_came.result, at_usec=self._clock.realtime_usec())
        for gone in went:
            self._warden.reclaimed(gone, prepared.expected.phy)
        if what_came.result is Result.DESTROYED:
            left = {name: one for name, one in self.standing.judgements.items() if one.identity != identity}
            self.standing = replace(self.standing, judgements=left)
        self._warden.changed()

    def _refused(self, due: Due, code: str, sentence: str) -> None:
        self._left[due.identity] = code
        self._trail.refused(due, code, sentence)

    def _tell_of(self, went: tuple[Gone, ...], look: Look) -> None:
        for gone in went:
            if gone.fate is Fate.DESTROYED:
                # It was not known what came of it, and now it is.
                card = look.card(gone.was.card)
                self.counters += counters.of_destruction(aftermath.called(Outcome.DESTROYED, None))
                if card is not None:
                    self._warden.reclaimed(gone, card.phy)
        self._trail.proved(went)
        self._trail.vanished(went)

    async def finish(self) -> None:
        """Wait for a destruction that is under way, for as long as stopping may take; then the broker is left alone with it."""
        task = self._acting
        if task is None or task.done():
            return
        await asyncio.wait({task}, timeout=FINISH_SECONDS)
        if not task.done():
            _log.warning("a vNPU is still being destroyed; the broker is left alone, and another one waits for it")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
