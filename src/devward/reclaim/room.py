"""Reclaiming, for the rest of the daemon: what stops it, what was judged, and what an administrator asks for. Loaded with the first NPU."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from devward.audit import Audit, Record
from devward.clock import Clock
from devward.config import ReclaimConfig
from devward.errors import DevwardError, NoSuchVnpu
from devward.metrics import ReclaimMeasures
from devward.model import ActionRequest, ActionResult, Finding, Outcome, Reason, ReclaimMode, ReclaimState
from devward.npu.room import NpuRoom
from devward.remembered import Remembered, without_reclaim_pause
from devward.state import Pause, State
from devward.text import printable
from devward.worker import Worker, WorkerHung

if TYPE_CHECKING:  # a host without NPUs loads nothing of them
    from devward.cluster.owners import Judge
    from devward.npu.facts import Expected
    from devward.npu.pins import PinReport
    from devward.npu.views import VnpuView
    from devward.reclaim.aftermath import Aftermath
    from devward.reclaim.contract import Refuse
    from devward.reclaim.controls import Controls, Switch
    from devward.reclaim.history import Gone
    from devward.reclaim.keeping import Keeping
    from devward.reclaim.limits import Breaker, Spent
    from devward.reclaim.reconciler import Reconciler, Standing
    from devward.reclaim.verdict import Judgement
    from devward.reclaim.warden import LastWord

_log = logging.getLogger(__name__)

#: Seconds that a look at the kill switch, and keeping, may take, and that an administrator's wish is followed for at the most.
SWITCH_SECONDS = 2.0
SAVE_SECONDS = 5.0
#: Seconds that the end of a cycle is waited for: one with destructions may take a while.
CYCLE_SECONDS = 300.0
WISH_SECONDS = 900.0
#: States in which it would reclaim, and cannot.
_BLOCKED = frozenset({ReclaimState.BLOCKED, ReclaimState.MASS_RECLAIM})


class ReclaimRoom:
    """Asking it is free; only actions wait."""

    def __init__(
        self,
        config: ReclaimConfig,
        npus: NpuRoom,
        *,
        remembered: Remembered,
        state_directory: str,
        audit: Audit,
        clock: Clock,
        new_id: Callable[[], str],
        no_reclaim: bool,
        pins: "Callable[[], PinReport | None]",
        look: Callable[[], bool],
        on_change: Callable[[], None],
        on_reclaimed: Callable[[int, int, str, str], None],
    ) -> None:
        """Load nothing yet.

        `pins` returns how the pins stand, None where there is none. `look` has everything looked at soon, because an administrator asks;
        False: nobody looks.
        `on_reclaimed` is told of each vNPU that was destroyed: its id, its card's physical id, its template, and the request.
        """
        self._config = config
        self._npus = npus
        self._remembered = remembered
        self._state_directory = state_directory
        #: Why it is not known what an earlier run of the daemon left; empty: it is.
        self._problem = ""
        self._audit = audit
        self._clock = clock
        self._new_id = new_id
        self._no_reclaim = no_reclaim
        self._pins = pins
        self._look = look
        self._on_change = on_change
        self._on_reclaimed = on_reclaimed
        self._worker = Worker("switch")
        #: Those that wait for the end of a cycle.
        self._waiting: list[asyncio.Future[None]] = []
        #: By name, each vNPU with its verdict as it was shown last: thousands of them are shown often, and change seldom.
        self._judged: dict[str, tuple[VnpuView, Judgement | None, VnpuView]] = {}
        self._reconciler: Reconciler | None = None
        self._is_stopping = False
        #: As it was told of last; None: not yet.
        self._state: ReclaimState | None = None
        #: Since when it is blocked, in seconds of the monotonic clock; None: it is not.
        self._blocked_since: float | None = None

    # --- views -------------------------------------------------------------------------------------------------------
    @property
    def mode(self) -> ReclaimMode:
        """The mode in force."""
        return self._remembered.state.reclaim_mode or self._config.mode

    @property
    def paused_until_usec(self) -> int:
        """When the pause ends; 0: there is none."""
        pause = self._remembered.state.reclaim_pause
        return pause.until_usec if pause is not None and pause.until_usec > self._clock.realtime_usec() else 0

    @property
    def state(self) -> ReclaimState:
        """What reclaiming is doing."""
        if self._reconciler is not None and self._reconciler.standing.look is not None:
            return self._reconciler.standing.permission.state
        return self._before_any_look()

    def _before_any_look(self) -> ReclaimState:
        if self.mode is ReclaimMode.OFF:
            return ReclaimState.OFF
        if self.paused_until_usec:
            return ReclaimState.PAUSED
        if self.mode is ReclaimMode.OBSERVE:
            return ReclaimState.OBSERVING
        return ReclaimState.ENFORCING if self._reconciler is None else ReclaimState.BLOCKED

    @property
    def blocked(self) -> tuple[tuple[str, str], ...]:
        """Why nothing may be destroyed, besides what is unknown of the node: codes and sentences."""
        if self._reconciler is None:
            return ()
        if self._reconciler.standing.look is None:
            from devward.reclaim.reasons import WHY_TEXT, Why

            return ((Why.NOT_EVALUATED.value, WHY_TEXT[Why.NOT_EVALUATED]),) if self.state is ReclaimState.BLOCKED else ()
        from devward.reclaim.controls import Blocked

        allowed = self._reconciler.standing.permission
        own = set(Blocked)
        return tuple((code, text) for code, text in zip(allowed.reasons, allowed.sentences, strict=True) if code in own)

    def judged(self, vnpus: "Sequence[VnpuView]") -> "Sequence[VnpuView]":
        """Return the vNPUs with the verdicts on them. What was judged was of one moment: what is in use by now is in use."""
        if self._reconciler is None or not self._reconciler.standing.judgements:
            return vnpus
        before, self._judged = self._judged, {}
        for vnpu in vnpus:
            judgement = self._reconciler.standing.judgements.get(vnpu.name)
            known = before.get(vnpu.name)
            is_same = known is not None and known[0] is vnpu and known[1] is judgement
            self._judged[vnpu.name] = known if is_same and known is not None else (vnpu, judgement, _judged(vnpu, judgement))
        return [made for _, _, made in self._judged.values()]

    def findings(self) -> Sequence[Finding]:
        """Return what an administrator should know."""
        reasons = {"mass-reclaim": Reason.MASS_RECLAIM, "state-damaged": Reason.RECLAIM_BLOCKED, "journal-refuses": Reason.RECLAIM_BLOCKED}
        reasons |= {"destroying-not-permitted": Reason.RECLAIM_BLOCKED, "state-not-saved": Reason.RECLAIM_BLOCKED}
        return tuple(Finding(reasons[code], "reclaiming", text) for code, text in self.blocked if code in reasons)

    def describe(self, *, full: bool) -> dict[str, Any]:
        """Return everything, for Describe."""
        pause = self._remembered.state.reclaim_pause if self.paused_until_usec else None
        told: dict[str, Any] = {
            "mode": self.mode,
            "state": self.state,
            "paused_until_usec": self.paused_until_usec,
            "blocked": [{"reason": code, "text": text} for code, text in self.blocked],
        }
        if full and pause is not None:
            told["pause"] = {"reason": pause.reason, "caller_uid": pause.caller_uid}
        if self._reconciler is not None:
            from dataclasses import asdict

            from devward.reclaim.history import leaks

            breaker = self._reconciler.breaker
            told["breaker"] = {
                "latched": breaker.is_latched,
                "held": [{"card": one.card, "vdev": one.vdev, "identity": one.identity} for one in sorted(breaker.held)],
                "agreed": [{"card": one.card, "vdev": one.vdev, "identity": one.identity} for one in sorted(breaker.agreed)],
            }
            told["rates"] = self._rates(self._reconciler)
            told["counters"] = asdict(self._reconciler.counters)
            told["leaks"] = asdict(leaks(self._reconciler.history))
            told["gone"] = [
                {
                    "at_usec": gone.at_usec,
                    "fate": gone.fate,
                    "vdev": gone.was.vdev,
                    "card": gone.was.card,
                    "template": gone.was.template,
                    "verdict": gone.was.verdict,
                    "request_id": gone.request_id,
                }
                for gone in self._reconciler.history.gone
            ]
        return told

    def _rates(self, reconciler: "Reconciler") -> dict[str, Any]:
        """Return what may be tried in an hour, and of that what is left."""
        allowed = reconciler.allowance
        wait = 0.0 if allowed.next_at is None else allowed.next_at - self._clock.monotonic()
        return {
            "per_card": reconciler.rates.per_card,
            "per_node": reconciler.rates.per_node,
            "per_hour": reconciler.rates.per_hour,
            "left_of_hour": allowed.left,
            "next_usec": 0 if allowed.next_at is None else self._clock.realtime_usec() + round(wait * 1_000_000),
        }

    def measures(self) -> ReclaimMeasures:
        """Return what is measured of reclaiming; of the vNPUs themselves nothing."""
        if self._reconciler is None:
            return ReclaimMeasures()
        from devward.reclaim.history import leaks

        done = self._reconciler.counters
        is_known = self._reconciler.standing.look is not None
        return ReclaimMeasures(
            leaked_cores=sum(leak.cores for leak in leaks(self._reconciler.history).by_card) if is_known else None,
            reclaims={"destroyed": done.vnpus_destroyed, "failed": done.destroy_errors, "refused": done.destroy_refusals},
            blocked_seconds=self._clock.monotonic() - self._blocked_since if self._blocked_since is not None else 0.0,
        )

    def explain(self, vnpu: str, *, full: bool) -> Mapping[str, Any]:
        """Return by what a vNPU was judged, for Explain; without `full`, nothing that names other people's workloads."""
        evidence = self._reconciler.evidence(vnpu) if self._reconciler is not None else None
        if evidence is None:
            return {"evidence": None}
        told: dict[str, Any] = dict(evidence)
        if not full:
            told["host"] = {key: value for key, value in told["host"].items() if key != "reasons"}
            told.pop("text")
            told.pop("fault", None)
        return {"evidence": told}

    # --- for the looks at who owns what ------------------------------------------------------------------------------
    def judge(self) -> "Judge":
        """Return what judges every look."""
        if self._reconciler is None:
            from devward.reclaim.reconciler import Reconciler

            self._reconciler = Reconciler(self._config, self, self._audit, self._clock, self._new_id)
        return self._reconciler

    def pins(self) -> "PinReport | None":
        """Return how the pins stand; None: some may have been lost."""
        from devward.npu.pins import PinReport

        if self._remembered.state.pins_in_doubt:
            return None
        return self._pins() or PinReport()

    def sequence(self, vdev: int) -> int | None:
        """Return a number that grows with each event by which a vNPU's node may have become another one; None: it cannot be told."""
        return self._npus.sequence(vdev)

    async def switch(self) -> "Switch":
        """Look at the kill switch. Whatever has its name, a broken link too, sets it."""
        from devward.reclaim.controls import Switch

        path = self._config.kill_switch

        def look() -> Switch:
            try:
                os.lstat(path)
            except FileNotFoundError:
                return Switch.ABSENT
            except OSError:
                return Switch.UNREADABLE
            return Switch.PRESENT

        try:
            return await self._worker.run(look, SWITCH_SECONDS)
        except WorkerHung:
            return Switch.UNREADABLE

    async def destroy(self, expected: "Expected", runtime: str | None, request_id: str, last_word: "LastWord") -> "Aftermath":
        """Have the broker destroy a vNPU, once, unless the last word, said when it is this question's turn, is against it."""
        from devward.npu.client import Unasked
        from devward.npu.facts import Refusal
        from devward.npu.protocol import DestroyAnswer, RefusedAnswer
        from devward.reclaim import aftermath

        if runtime is None:
            return aftermath.refused(Refusal.SCAN_UNKNOWN, None, "The Node does not say which runtime it has.")
        said: list[Refuse] = []

        async def against() -> str:
            if (no := await last_word()) is not None:
                said.append(no)
                return no.sentence
            return ""

        answer = await self._npus.destroy(expected, runtime, request_id, against)
        if said:
            return replace(aftermath.unasked(said[0].sentence), reason=said[0].reason)
        if isinstance(answer, DestroyAnswer):
            return aftermath.called(answer.outcome, answer.code)
        if isinstance(answer, RefusedAnswer):
            return aftermath.refused(answer.reason, answer.code, answer.text)
        if isinstance(answer, Unasked):
            return aftermath.unasked(f"The broker was not asked: {answer.text}.")
        return aftermath.unanswered(f"The broker gave no answer: {answer.text}.")

    def controls(self) -> "Controls":
        """Return what stops reclaiming by an administrator's wish or by the state of the daemon."""
        from devward.reclaim.controls import Controls

        state = self._remembered.state
        return Controls(
            mode=self.mode,
            is_paused=bool(self.paused_until_usec),
            no_reclaim=self._no_reclaim,
            is_state_damaged=state.pins_in_doubt or bool(self._problem),
            is_stopping=self._is_stopping,
        )

    def changed(self) -> None:
        """Verdicts, or what blocks, may be others now."""
        before, self._state = self._state, self.state
        if self._state not in _BLOCKED:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = self._clock.monotonic()
        if before is not None and before is not self._state:
            self._record_state(before)
        self._on_change()

    def _record_state(self, before: ReclaimState) -> None:
        now = self.state
        is_free = now is ReclaimState.ENFORCING
        allowed = self._reconciler.standing.permission if self._reconciler is not None else None
        # The weightiest, be it an administrator's wish or what is unknown of the node. Its sentence may name a Pod, as findings do.
        code, why = (allowed.reasons[0], allowed.sentences[0]) if allowed is not None and allowed.reasons else (now.value, "")
        self._audit.transition(
            "reclaiming",
            "reclaim-unblocked" if is_free else "reclaim-blocked",
            f"Reclaiming is {now}, and was {before}{'' if is_free or not why else ': ' + why}",
            reason=code,
        )

    async def load(self) -> "tuple[Breaker, Spent] | None":
        """Return what an earlier run of the daemon left; None: the file system does not tell for now."""
        before = self._problem
        try:
            breaker, spent, self._problem = await self._worker.run(self._kept().load, SAVE_SECONDS)
        except WorkerHung as hung:
            self._problem = printable(str(hung))
            if self._problem != before:
                self._record_damage()
            return None
        if self._problem:
            self._record_damage()
        return breaker, spent

    def _record_damage(self) -> None:
        self._audit.event("state-damaged", f"What is kept of reclaiming cannot be read, and nothing is reclaimed: {self._problem}")

    async def keep(self, breaker: "Breaker", spent: "Spent") -> bool:
        """Keep what must outlast this run of the daemon; False: it could not be kept."""
        keeping = self._kept()
        try:
            await self._worker.run(lambda: keeping.save(breaker, spent), SAVE_SECONDS)
        except (DevwardError, OSError, WorkerHung) as error:
            _log.warning("what must be kept of reclaiming could not be saved: %s", error)
            return False
        return True

    def _kept(self) -> "Keeping":
        from devward.reclaim.keeping import Keeping

        return Keeping(self._state_directory)

    def reclaimed(self, gone: "Gone", phy: int) -> None:
        """A vNPU was destroyed."""
        self._on_reclaimed(gone.was.vdev, phy, gone.was.template, gone.request_id)

    def cycle_ended(self) -> None:
        """A look was taken in, and what came of it is done."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def pins_changed(self) -> None:
        """A pin came or went."""
        if self._reconciler is not None:
            self._reconciler.pinned()

    async def configure(self, config: ReclaimConfig) -> None:
        """Apply other settings; every wait begins anew, also where none of them is of reclaiming."""
        self._config = config
        if self._reconciler is not None:
            self._reconciler.configure(config)
            self._noticed()

    async def finish(self) -> None:
        """Begin nothing more, and wait for a destruction that is under way, within a bound."""
        self._is_stopping = True
        if self._reconciler is not None:
            await self._reconciler.finish()

    def close(self) -> None:
        """Let go of everything."""
        self.cycle_ended()
        self._worker.close()

    # --- actions -----------------------------------------------------------------------------------------------------
    async def reclaim_vnpu(
        self, request: ActionRequest, vdev: int, identity: str, *, dry_run: bool, shorten: bool
    ) -> tuple[ActionResult, ...]:
        """Have one vNPU reclaimed by all the rules, or say what is against it. NoSuchVnpu: it is not there, or another one is."""
        if all((vnpu.vdev, vnpu.identity) != (vdev, identity) for vnpu in self._npus.vnpus()):
            raise NoSuchVnpu(f"There is no vNPU {vdev} of that identity.")
        return await self._act(request, "ReclaimVnpu", (identity,), dry_run=dry_run, shorten=shorten)

    async def reclaim_orphans(self, request: ActionRequest, *, dry_run: bool, shorten: bool) -> tuple[ActionResult, ...]:
        """Have every vNPU reclaimed that nobody seems to have, by all the rules and limits, or say what is against each."""
        from devward.reclaim.reasons import SHIELDED

        judgements = self._reconciler.standing.judgements.values() if self._reconciler is not None else ()
        identities = tuple(one.identity for one in judgements if one.verdict not in SHIELDED and one.identity)
        return await self._act(request, "ReclaimOrphans", identities, dry_run=dry_run, shorten=shorten)

    async def _act(
        self, request: ActionRequest, member: str, identities: tuple[str, ...], *, dry_run: bool, shorten: bool
    ) -> tuple[ActionResult, ...]:
        what = f"{member} was asked for{': ' + ', '.join(identities) if identities else ''}{', with a shorter wait' if shorten else ''}"
        with self._audit.begin("action", what, member=member, request=request) as act:
            if not identities:
                act.noop(f"{member}: there is no vNPU that nobody seems to have")
                return ()
            if dry_run:
                results = tuple(ActionResult(identity, Outcome.DRY_RUN, self._against(identity)) for identity in identities)
                act.dry_run(f"{member} was a dry run", evidence={"results": [[one.target, one.reason] for one in results]})
                return results
            results = await self._follow(request, identities, shorten=shorten)
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
        self._reconciler.wish(identities, request, shorten=shorten)
        try:
            return await self._follow_wish(self._reconciler, identities, shorten=shorten)
        finally:
            self._reconciler.unwish(request)

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
            is_known = await reconciler.recall() and not self._problem
            if not reconciler.breaker.is_latched:
                if not is_known:
                    act.fail("state-damaged", "ReleaseBreaker: whether it was latched cannot be read")
                    return (ActionResult("breaker", Outcome.FAILURE, "state-damaged"),)
                act.noop("ReleaseBreaker: it is not latched")
                return (ActionResult("breaker", Outcome.NOOP, Reason.OK),)
            held = sorted(reconciler.breaker.held)
            saved = await reconciler.release_breaker()
            self._noticed()
            self._look()
            what = f", and agrees to {len(held)} vNPUs: {', '.join(f'{one.vdev} of {one.card}' for one in held)}" if held else ""
            results = self._told(act, "ReleaseBreaker", "breaker", saved=saved, what=what or "; no vNPU that it held is there any more")
            # What is not kept is lost at a restart, and so is each agreement.
            return (*results, *(replace(results[0], target=one.identity or f"{one.card}/{one.vdev}") for one in held))

    async def set_mode(self, request: ActionRequest, mode: ReclaimMode) -> tuple[ActionResult, ...]:
        """Set the mode over the configuration's, until it is set again. To enforce is to take the pins that there are for all of them."""
        # Where it was not read, and not found damaged, it is not written over, and the problem stays.
        if mode is ReclaimMode.ENFORCE and self._problem and self._reconciler is not None and await self._reconciler.keep():
            self._problem = ""
        return await self._change(request, "SetReclaimMode", f": {mode}", lambda state: state.with_reclaim_mode(mode))

    async def pause(self, request: ActionRequest, seconds: int, reason: str) -> tuple[ActionResult, ...]:
        """Destroy nothing for some seconds."""
        until = self._clock.realtime_usec() + seconds * 1_000_000
        pause = Pause(until, reason, request.caller.uid if request.caller is not None else 0)
        return await self._change(request, "PauseReclaim", f": {seconds} s, {reason}", lambda state: replace(state, reclaim_pause=pause))

    async def resume(self, request: ActionRequest) -> tuple[ActionResult, ...]:
        """End a pause."""
        return await self._change(request, "ResumeReclaim", "", without_reclaim_pause)

    async def _change(self, request: ActionRequest, member: str, what: str, change: Callable[[State], State]) -> tuple[ActionResult, ...]:
        with self._audit.begin("action", f"{member} was asked for{what}", member=member, request=request) as act:
            unchanged = change(self._remembered.state) == self._remembered.state
            saved = await self._remembered.update(change)
            self._noticed()
            self._look()
            self._on_change()
            if saved and unchanged:
                act.noop(f"{member}: nothing to change")
                return (ActionResult("reclaim", Outcome.NOOP, Reason.OK),)
            return self._told(act, member, "reclaim", saved=saved, what=what)

    def _noticed(self) -> None:
        if self._reconciler is not None:
            self._reconciler.noticed()

    @staticmethod
    def _told(act: Record, member: str, target: str, *, saved: bool, what: str = "") -> tuple[ActionResult, ...]:
        if not saved:
            act.fail("not-saved", f"{member} is in force, but could not be saved and is lost at a restart")
            return (ActionResult(target, Outcome.FAILURE, "not-saved"),)
        act.succeed(f"{member} is in force{what}")
        return (ActionResult(target, Outcome.SUCCESS, Reason.OK),)


def _judgement_of(standing: "Standing", identity: str) -> "Judgement | None":
    return next((one for one in standing.judgements.values() if one.identity == identity), None)


def _judged(vnpu: "VnpuView", judgement: "Judgement | None") -> "VnpuView":
    """Return a vNPU with the verdict on it, if that is on this very one."""
    from devward.npu.views import Use, Verdict
    from devward.reclaim.reasons import Why

    if judgement is None or judgement.identity not in ("", vnpu.identity):
        return vnpu
    if vnpu.use is Use.IN_USE and judgement.verdict.value != Verdict.IN_USE:
        return replace(vnpu, verdict=Verdict.IN_USE, verdict_reason=Why.DRIVER_SAYS_USED.value)
    return replace(
        vnpu,
        verdict=Verdict(judgement.verdict.value),
        verdict_reason=judgement.reason,
        grace_start_usec=judgement.grace_start_usec,
        confirmations=judgement.confirmations,
        eligible_at_usec=judgement.eligible_at_usec,
    )
