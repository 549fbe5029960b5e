"""What an administrator asks of reclaiming: vNPUs to be reclaimed, the breaker's release, a mode, a pause. Each goes the loop's own way."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from devward import changes
from devward.audit import Audit
from devward.clock import Clock
from devward.errors import NoSuchVnpu
from devward.model import ActionRequest, ActionResult, Outcome, ReclaimMode
from devward.npu.room import NpuRoom
from devward.reasons import Reason
from devward.remembered import Remembered, without_reclaim_pause
from devward.state import Pause, State

if TYPE_CHECKING:  # a host without NPUs loads nothing of them
    from devward.reclaim.reconciler import Reconciler, Standing
    from devward.reclaim.verdict import Judgement

#: Seconds that the end of a cycle is waited for: one with destructions may take a while.
CYCLE_SECONDS = 300.0
#: Seconds that an administrator's wish is followed for at the most.
WISH_SECONDS = 900.0


class ReclaimActions:
    """Its methods wait; what they answer is on record."""

    def __init__(
        self,
        npus: NpuRoom,
        *,
        remembered: Remembered,
        audit: Audit,
        clock: Clock,
        reconciler: "Callable[[], Reconciler | None]",
        is_damaged: Callable[[], bool],
        go_on_without: Callable[[], Awaitable[None]],
        lateness: Callable[[], Callable[[], Awaitable[Reason]]],
        look: Callable[[], bool],
        on_change: Callable[[], None],
    ) -> None:
        """Load nothing yet.

        `reconciler` returns the loop, None before there was any NPU. `is_damaged` tells whether what an earlier run of it left cannot be
        read; `go_on_without` writes it anew. `lateness` is ReclaimRoom.lateness(). `look` has everything looked at soon;
        False: nobody looks.
        """
        self._npus = npus
        self._remembered = remembered
        self._audit = audit
        self._clock = clock
        self._reconciler_now = reconciler
        self._is_damaged = is_damaged
        self._go_on_without = go_on_without
        self._lateness = lateness
        self._look = look
        self._on_change = on_change
        #: Those that wait for the end of a cycle.
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def _reconciler(self) -> "Reconciler | None":
        return self._reconciler_now()

    def cycle_ended(self) -> None:
        """A look was taken in, and what came of it is done."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def reclaim_vnpu(
        self, request: ActionRequest, vdev: int, identity: str, *, dry_run: bool, shorten: bool
    ) -> tuple[ActionResult, ...]:
        """Have one vNPU reclaimed by all the rules, or say what is against it. NoSuchVnpu: it is not there, or another one is."""
        if all((vnpu.vdev, vnpu.identity) != (vdev, identity) for vnpu in self._npus.vnpus()):
            raise NoSuchVnpu(f"There is no vNPU {vdev} of that identity.")
        return await self._act(request, "ReclaimVnpu", (identity,), dry_run=dry_run, shorten=shorten)

    async def reclaim_orphans(self, request: ActionRequest, *, dry_run: bool, shorten: bool) -> tuple[ActionResult, ...]:
        """Have every vNPU reclaimed that nobody seems to have, by all the rules and limits, or say what is against each.

        What is not known of a vNPU is against it too: an answer without it would read as if there were none.
        """
        from devward.reclaim.reasons import SHIELDED, Verdict

        standing = self._reconciler.standing if self._reconciler is not None else None
        if standing is None or standing.look is None:
            unknown = tuple(vnpu.identity for vnpu in self._npus.vnpus() if vnpu.identity)
            return await self._act(request, "ReclaimOrphans", (), unknown, dry_run=dry_run, shorten=shorten)
        judged = [one for one in standing.judgements.values() if one.identity]
        identities = tuple(one.identity for one in judged if one.verdict not in SHIELDED)
        unknown = tuple(one.identity for one in judged if one.verdict is Verdict.UNKNOWN)
        return await self._act(request, "ReclaimOrphans", identities, unknown, dry_run=dry_run, shorten=shorten)

    async def _act(
        self,
        request: ActionRequest,
        member: str,
        identities: tuple[str, ...],
        unknown: tuple[str, ...] = (),
        *,
        dry_run: bool,
        shorten: bool,
    ) -> tuple[ActionResult, ...]:
        """Have `identities` reclaimed; of `unknown` vNPUs it is only told what is not known."""
        what = f"{member} was asked for{': ' + ', '.join(identities) if identities else ''}{', with a shorter wait' if shorten else ''}"
        with self._audit.begin("action", what, member=member, request=request) as act:
            if not identities and not unknown:
                act.noop(f"{member}: there is no vNPU that nobody seems to have")
                return ()
            if dry_run:
                results = tuple(ActionResult(identity, Outcome.DRY_RUN, self._against(identity)) for identity in (*identities, *unknown))
                act.dry_run(f"{member} was a dry run", evidence={"results": [[one.target, one.reason] for one in results]})
                return results
            results = await self._follow(request, identities, shorten=shorten) if identities else ()
            results += tuple(ActionResult(identity, Outcome.FAILURE, self._against(identity) or "limits") for identity in unknown)
            told = {"results": [[one.target, str(one.outcome), one.reason] for one in results]}
            failed = [one for one in results if one.outcome is not Outcome.SUCCESS]
            if failed:
                act.fail(failed[0].reason, f"{member}: {len(results) - len(failed)} of {len(results)} were destroyed", evidence=told)
            else:
                act.succeed(f"{member}: {len(results)} were destroyed", evidence=told)
            return results

    async def _follow(self, request: ActionRequest, identities: tuple[str, ...], *, shorten: bool) -> tuple[ActionResult, ...]:
        """Have everything looked at now, and with a shorter wait as often as that takes; return what became of each."""
        if self._reconciler is None:
            return tuple(ActionResult(identity, Outcome.FAILURE, "not-evaluated") for identity in identities)
        self._reconciler.wishes.add(identities, request, shorten=shorten)
        try:
            return await self._follow_wish(self._reconciler, identities, shorten=shorten)
        finally:
            self._reconciler.wishes.drop(request)

    async def _follow_wish(self, reconciler: "Reconciler", identities: tuple[str, ...], *, shorten: bool) -> tuple[ActionResult, ...]:
        ends = self._clock.monotonic() + WISH_SECONDS
        while True:
            if not await self._cycle():
                return tuple(ActionResult(identity, Outcome.FAILURE, "not-evaluated") for identity in identities)
            results = tuple(map(self._outcome, identities))
            is_over = all(result is not None for result in results) or not shorten or self._clock.monotonic() >= ends
            if is_over:
                return tuple(
                    result or ActionResult(identity, Outcome.FAILURE, self._against(identity) or "limits")
                    for identity, result in zip(identities, results, strict=True)
                )
            await asyncio.sleep(reconciler.bounds.pace(is_short=True).interval)

    async def _cycle(self) -> bool:
        """Wait for the end of a cycle that begins after this call; False: there is none."""
        for _ in range(2):
            # The first that ends may have begun before.
            if not self._look():
                return False
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            # There may be no looks any more, as where the NPUs went.
            done, _ = await asyncio.wait({future}, timeout=CYCLE_SECONDS)
            if not done:
                return False
        return True

    def _outcome(self, identity: str) -> ActionResult | None:
        """Return what became of a vNPU; None: it still waits."""
        from devward.reclaim.history import Fate
        from devward.reclaim.reasons import SHIELDED

        reconciler = self._reconciler
        if reconciler is None:
            return ActionResult(identity, Outcome.FAILURE, "not-evaluated")
        standing = reconciler.standing
        judgement = _judgement_of(standing, identity)
        if judgement is None:
            went = next((gone for gone in reversed(reconciler.history.gone) if gone.was.identity == identity), None)
            if went is not None:
                is_ours = went.fate is Fate.DESTROYED
                return ActionResult(identity, Outcome.SUCCESS if is_ours else Outcome.FAILURE, "" if is_ours else went.fate.value)
            return ActionResult(identity, Outcome.FAILURE, "vnpu-gone")
        if judgement.verdict in SHIELDED:
            return ActionResult(identity, Outcome.FAILURE, judgement.reason)
        if not standing.permission.may_destroy:
            return ActionResult(identity, Outcome.FAILURE, standing.permission.reasons[0])
        return None

    def _against(self, identity: str) -> str:
        """Return the code of what is against destroying a vNPU now; empty: nothing, as far as the latest look tells."""
        from devward.reclaim.reasons import Verdict

        standing = self._reconciler.standing if self._reconciler is not None else None
        judgement = _judgement_of(standing, identity) if standing is not None else None
        if standing is None or judgement is None:
            return "not-evaluated"
        if judgement.verdict is not Verdict.ELIGIBLE:
            return judgement.reason
        if standing.permission.reasons:
            return standing.permission.reasons[0]
        return self._reconciler.left.get(identity, "") if self._reconciler is not None else ""

    async def release_breaker(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        """Agree to what was eligible while too much of it was: to that, vNPU by vNPU, and to nothing that becomes so later."""
        reconciler = self._reconciler
        with self._audit.begin("action", "ReleaseBreaker was asked for", member="ReleaseBreaker", request=request) as act:
            if reconciler is None:
                act.fail("not-evaluated", "ReleaseBreaker: no NPU was seen yet, and whether the breaker is latched is not known")
                return (ActionResult("breaker", Outcome.FAILURE, "not-evaluated"),)
            is_known = await reconciler.ledger.recall() and not self._is_damaged()
            if not reconciler.ledger.breaker.is_latched:
                if not is_known:
                    act.fail("state-damaged", "ReleaseBreaker: whether it was latched cannot be read")
                    return (ActionResult("breaker", Outcome.FAILURE, "state-damaged"),)
                act.noop("ReleaseBreaker: it is not latched")
                return (ActionResult("breaker", Outcome.NOOP, Reason.OK),)
            held = sorted(reconciler.ledger.breaker.held)
            saved = await reconciler.ledger.release_breaker()
            reconciler.noticed()
            self._look()
            what = f", and agrees to {len(held)} vNPUs: {', '.join(f'{one.vdev} of {one.card}' for one in held)}" if held else ""
            results = changes.told(act, "ReleaseBreaker", "breaker", saved=saved, what=what or "; no vNPU that it held is there any more")
            # What is not kept is lost at a restart, and so is each agreement.
            return (*results, *(replace(results[0], target=one.identity or f"{one.card}/{one.vdev}") for one in held))

    async def set_mode(self, request: ActionRequest, mode: ReclaimMode) -> tuple[ActionResult, ...]:
        """Set the mode over the configuration's, until it is set again. To enforce is to take the pins that there are for all of them.

        Any other is answered once nothing is being destroyed any more.
        """

        is_enforcing = mode is ReclaimMode.ENFORCE

        def change(state: State) -> State:
            return state.with_reclaim_mode(mode)

        return await self._change(request, "SetReclaimMode", f": {mode}", change, is_accepting=is_enforcing, is_stopping=not is_enforcing)

    async def pause(self, request: ActionRequest, seconds: int, reason: str) -> tuple[ActionResult, ...]:
        """Destroy nothing for some seconds; what had begun is waited for."""
        until = self._clock.realtime_usec() + seconds * 1_000_000
        pause = Pause(until, reason, request.caller.uid if request.caller is not None else 0)

        def change(state: State) -> State:
            return replace(state, reclaim_pause=pause)

        return await self._change(request, "PauseReclaim", f": {seconds} s, {reason}", change, is_stopping=True)

    async def resume(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        """End a pause."""
        return await self._change(request, "ResumeReclaim", "", without_reclaim_pause)

    async def _change(
        self,
        request: ActionRequest,
        member: str,
        what: str,
        change: Callable[[State], State],
        *,
        is_accepting: bool = False,
        is_stopping: bool = False,
    ) -> tuple[ActionResult, ...]:
        # What had begun by the moment at which the change comes into force, which is before anything is waited for.
        too_late = self._lateness() if is_stopping else None

        async def then(*, saved: bool) -> Reason:
            # Only what is on record, and saved, ends what a damaged file stopped.
            if is_accepting and saved and self._is_damaged():
                await self._go_on_without()
            if self._reconciler is not None:
                self._reconciler.noticed()
            self._look()
            self._on_change()
            return await too_late() if too_late is not None else Reason.OK

        return await changes.change(self._audit, self._remembered, request, member, "reclaim", what, change, then)


def _judgement_of(standing: "Standing", identity: str) -> "Judgement | None":
    return next((one for one in standing.judgements.values() if one.identity == identity), None)
