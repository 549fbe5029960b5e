"""Reclaiming, for the rest of the daemon: what stops it, what was judged, what is kept. What it stands on is loaded with the first NPU."""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from devward.audit import Audit
from devward.clock import Clock
from devward.config import ReclaimConfig
from devward.metrics import ReclaimMeasures
from devward.model import Finding, ReclaimMode, ReclaimState
from devward.npu.room import NpuRoom
from devward.pausing import PauseClock
from devward.reasons import Reason
from devward.reclaim.actions import ReclaimActions
from devward.reclaim.safekeeping import Safekeeping
from devward.reclaim.statetrail import StateTrail
from devward.remembered import Remembered, without_reclaim_pause
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
    from devward.reclaim.judged import JudgedVnpus
    from devward.reclaim.limits import Breaker, Spent
    from devward.reclaim.reconciler import Reconciler
    from devward.reclaim.underway import Underway
    from devward.reclaim.warden import LastWord

#: Seconds that a look at the kill switch may take.
SWITCH_SECONDS = 2.0


class ReclaimRoom:
    """Asking it is free; only its `actions` wait."""

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
        self._audit = audit
        self._clock = clock
        self._new_id = new_id
        self._no_reclaim = no_reclaim
        self._pins = pins
        self._on_change = on_change
        self._on_reclaimed = on_reclaimed
        self._worker = Worker("switch")
        self._safekeeping = Safekeeping(state_directory, self._worker, audit)
        self._trail = StateTrail(audit, clock)
        self._pause_clock = PauseClock()
        self._judged: JudgedVnpus | None = None
        self._reconciler: Reconciler | None = None
        self._is_stopping = False
        self.actions = ReclaimActions(
            npus,
            remembered=remembered,
            audit=audit,
            clock=clock,
            reconciler=lambda: self._reconciler,
            is_damaged=lambda: self._safekeeping.is_damaged,
            go_on_without=self._go_on_without,
            lateness=self.lateness,
            look=look,
            on_change=on_change,
        )

    # --- views -------------------------------------------------------------------------------------------------------
    @property
    def mode(self) -> ReclaimMode:
        """The mode in force."""
        return self._remembered.state.reclaim_mode or self._config.mode

    @property
    def paused_until_usec(self) -> int:
        """When the pause ends; 0: there is none."""
        pause = self._remembered.state.reclaim_pause
        asked = pause.until_usec if pause is not None else 0
        return self._pause_clock.until_usec(asked, realtime_usec=self._clock.realtime_usec(), boottime=self._clock.boottime())

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

    def _told_blocked(self, *, full: bool) -> list[dict[str, str]]:
        """Return why nothing may be destroyed, also what is unknown of the node; without `full`, nothing of other people's workloads."""
        own, reasons = dict(self.blocked), self._reasons()
        if not full and (unknown := reasons.keys() - own.keys()):
            from devward.cluster.ownership import general_sentence

            reasons = {**reasons, **{code: general_sentence(code) for code in unknown}}
        return [{"reason": code, "text": text} for code, text in (reasons or own).items()]

    def judged(self, vnpus: "Sequence[VnpuView]") -> "Sequence[VnpuView]":
        """Return the vNPUs with the verdicts on them. What was judged was of one moment: what is in use by now is in use."""
        if self._judged is None:
            if not vnpus:
                return vnpus
            from devward.reclaim.judged import JudgedVnpus

            self._judged = JudgedVnpus()
        return self._judged.show(vnpus, self._reconciler.standing.judgements if self._reconciler is not None else {})

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
            "blocked": self._told_blocked(full=full),
        }
        if full and pause is not None:
            told["pause"] = {"reason": pause.reason, "caller_uid": pause.caller_uid}
        if self._reconciler is not None:
            from devward.reclaim.described import described

            told |= described(self._reconciler, self._clock, full=full)
        return told

    def measures(self) -> ReclaimMeasures:
        """Return what is measured of reclaiming; of the vNPUs themselves nothing."""
        if self._reconciler is None:
            return ReclaimMeasures()
        from devward.reclaim.leaks import leaked_cores

        done = self._reconciler.counters
        return ReclaimMeasures(
            leaked_cores=leaked_cores(self._reconciler.history, is_node_known=self._reconciler.is_node_known),
            reclaims={"destroyed": done.vnpus_destroyed, "failed": done.destroy_errors, "refused": done.destroy_refusals},
            blocked_seconds=self._trail.blocked_seconds,
        )

    def explain(self, vnpu: str, *, full: bool) -> Mapping[str, Any]:
        """Return by what a vNPU was judged and what stops reclaiming, for Explain; without `full`, nothing of other people's workloads."""
        evidence = self._reconciler.evidence(vnpu) if self._reconciler is not None else None
        blocked = {"blocked": self._told_blocked(full=full)}
        if evidence is None:
            return {"evidence": None, **blocked}
        told: dict[str, Any] = dict(evidence)
        if not full:
            told["host"] = {key: value for key, value in told["host"].items() if key != "reasons"}
            told.pop("text")
            told.pop("fault", None)
        return {"evidence": told, **blocked}

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

    def destroy_may_run(self) -> bool:
        """Tell whether some broker may be destroying a vNPU, whoever asked it."""
        return self._npus.destroy_may_run()

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

    def lateness(self, target: str = "") -> Callable[[], Awaitable[Reason]]:
        """Return what tells, once that is over, for what a change came too late that is in force from now on; `ok`: for nothing.

        `target` is what was pinned; empty: reclaiming is stopped as a whole.
        """
        if self._reconciler is None and not self._npus.destroy_may_run():
            return _in_time
        from devward.reclaim.underway import lateness

        def current() -> "Underway | None":
            return self._reconciler.underway if self._reconciler is not None else None

        return lateness(current, target, self._npus.destroy_may_run)

    def controls(self) -> "Controls":
        """Return what stops reclaiming by an administrator's wish or by the state of the daemon."""
        from devward.reclaim.controls import Controls

        state = self._remembered.state
        return Controls(
            mode=self.mode,
            is_paused=bool(self.paused_until_usec),
            no_reclaim=self._no_reclaim,
            is_state_damaged=state.pins_in_doubt or self._safekeeping.is_damaged,
            is_stopping=self._is_stopping,
        )

    def changed(self) -> None:
        """Verdicts, or what blocks, may be others now."""
        self._trail.see(self.state, self._reasons(), dict(self.blocked))
        self._on_change()

    def _reasons(self) -> Mapping[str, str]:
        """Return what stops reclaiming, with its sentences: an administrator's wish, the state of the daemon, and what is unknown."""
        if self._reconciler is None or self._reconciler.standing.look is None:
            return {}
        allowed = self._reconciler.standing.permission
        return dict(zip(allowed.reasons, allowed.sentences, strict=True))

    async def load(self) -> "tuple[Breaker, Spent] | None":
        """Return what an earlier run of the daemon left; None: the file system does not tell for now."""
        return await self._safekeeping.load()

    async def _go_on_without(self) -> None:
        """Write anew what is damaged, since an administrator wants it. Where it was not read at all, or that fails, the problem stays."""
        if self._reconciler is not None:
            await self._safekeeping.write_anew(self._reconciler.ledger.keep)

    async def keep(self, breaker: "Breaker", spent: "Spent") -> bool:
        """Keep what must outlast this run of the daemon; False: it could not be kept, or would hide that what was there is damaged."""
        return await self._safekeeping.keep(breaker, spent)

    def reclaimed(self, gone: "Gone", phy: int) -> None:
        """A vNPU was destroyed."""
        self._on_reclaimed(gone.was.vdev, phy, gone.was.template, gone.request_id)

    async def keep_house(self) -> None:
        """Take a pause off the record that is over for good: with a clock that is behind at the next start it would begin anew."""
        pause = self._remembered.state.reclaim_pause
        if pause is None or self.paused_until_usec or not self._pause_clock.is_over_for_good(self._clock.boottime()):
            return
        await self._remembered.update(without_reclaim_pause)

    def cycle_ended(self) -> None:
        """A look was taken in, and what came of it is done."""
        self.actions.cycle_ended()

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

    def _noticed(self) -> None:
        if self._reconciler is not None:
            self._reconciler.noticed()


async def _in_time() -> Reason:
    """Nothing had begun."""
    return Reason.OK
