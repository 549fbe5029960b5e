"""The real core of reclaiming as the daemon of the world drives it: in the order of the destruction contract, with nothing of its own."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from devward.npu.facts import Expected
from devward.npu.inventory import Picture
from devward.npu.pins import PinReport
from devward.reclaim.aftermath import Aftermath, called, conclude, refused, unanswered
from devward.reclaim.asking import ask_about
from devward.reclaim.confirmation import Progress, step
from devward.reclaim.contract import Chosen, Go, Prepared, decide, kept_since, prepare
from devward.reclaim.controls import Controls, permission
from devward.reclaim.history import Attempt, History, act, see
from devward.reclaim.kept import from_values, to_values
from devward.reclaim.limits import Breaker, Due, Spent, begin_cycle, choose, due, release, spend, watch_look
from devward.reclaim.look import Look, VnpuFacts
from devward.reclaim.verdict import Judgement, judge
from sim.world_broker import Said
from sim.world_daemon import Daemon, Since


def meant(said: Said) -> Aftermath:
    """Return what an answer of the broker means."""
    if said.outcome is not None:
        return called(said.outcome, said.code)
    return refused(said.refusal, said.code, "") if said.refusal is not None else unanswered("")


class Core:
    """The real one."""

    def __init__(self, daemon: Daemon) -> None:
        """Of an earlier run only the breaker and the tries of the hour are known."""
        self._settings = daemon.settings
        self._boot_id = daemon.world.boot_id
        self._bounds = daemon.settings.bounds
        self._rates = daemon.settings.rates
        self._progress = Progress()
        self._breaker, self._spent = Breaker(), Spent()
        if daemon.settings.kept_of_reclaiming is not None:
            kept = json.loads(json.dumps(daemon.settings.kept_of_reclaiming))
            self._breaker, self._spent = from_values(kept, self._boot_id)
        self._chosen: dict[str, Chosen] = {}
        self._prepared: Prepared | None = None
        self._judgements: Mapping[str, Judgement] = {}
        self._history = History()
        self.is_forbidden = False

    @property
    def is_latched(self) -> bool:
        """Whether the breaker holds everything up."""
        return self._breaker.is_latched

    def release(self) -> None:
        """Release the breaker."""
        self._breaker = release(self._breaker)
        self._keep()

    def asks(self, picture: Picture, pins: PinReport) -> frozenset[str]:
        """Return the names of the vNPUs to search the host for."""
        return ask_about(picture, pins, self._judgements)

    def choose(self, look: Look, controls: Controls) -> Sequence[VnpuFacts]:
        """Take a look in, and choose."""
        self._spent = begin_cycle(self._spent)
        self._progress = step(self._progress, look, self._bounds)
        eligible = self._judged(look)
        unknowns = look.snapshot.unknowns if look.snapshot is not None else ()
        if not permission(self._all(controls), unknowns).may_destroy:
            return ()
        chosen = choose(eligible, self._spent, self._rates, look.at).chosen
        self._chosen = {one.identity: Chosen(one, 0) for one in chosen}
        return [vnpu for one in chosen if (vnpu := look.vnpu(one.identity)) is not None]

    def prepare(
        self, vnpu: VnpuFacts, was: int, fresh: Look, expected: Expected | None, at: float, sequence: int | None, controls: Controls
    ) -> bool:
        """Hold one against fresh evidence."""
        chosen = replace(self._chosen[vnpu.identity], sequence=was)
        answer, self._progress = prepare(
            chosen,
            self._progress,
            fresh,
            expected,
            now=at,
            apart=0.0,
            sequence=sequence,
            controls=self._all(controls),
            spent=self._spent,
            rates=self._rates,
            bounds=self._bounds,
        )
        self._judged(fresh)
        self._prepared = answer if isinstance(answer, Prepared) else None
        return self._prepared is not None

    def decide(self, at: float, sequence: int | None, controls: Controls, since: Since, *, is_intent_taken: bool) -> Expected | None:
        """Say the last word."""
        if self._prepared is None:
            return None
        answer = decide(self._prepared, now=at, sequence=sequence, controls=self._all(controls), is_intent_taken=is_intent_taken)
        # Suspensions are among the interruptions here: the clocks of the core are never apart.
        if not isinstance(answer, Go) or kept_since(self._prepared, since.interruptions, since.pins, 0.0) is not None:
            return None
        # Before the broker is asked: whoever ends meanwhile does not forget the try; one that comes to nothing counts, too.
        self._spent = spend(self._spent, self._prepared.chosen.due.card, at)
        self._keep()
        return answer.expected

    def conclude(self, said: Said, at: float) -> None:
        """Take in an answer."""
        assert self._prepared is not None
        one = self._prepared.chosen.due
        aftermath = meant(said)
        self._history, _ = act(self._history, one.identity, Attempt("made-up", at, ""), aftermath.result, at_usec=1)
        self.is_forbidden = self.is_forbidden or aftermath.forbids
        self._progress = conclude(self._progress, one.identity, aftermath, at)

    def _judged(self, look: Look) -> tuple[Due, ...]:
        """Judge by a look that was taken in, and return what is eligible."""
        self._judgements = judge(self._progress, look, self._bounds)
        self._history, _ = see(self._history, look, self._progress, self._judgements)
        eligible = due(self._judgements, self._progress)
        self._breaker = watch_look(self._breaker, eligible, look, self._judgements.values())
        self._keep()
        return eligible

    def _keep(self) -> None:
        self._settings.kept_of_reclaiming = to_values(self._breaker, self._spent, self._boot_id)

    def _all(self, controls: Controls) -> Controls:
        return replace(controls, is_breaker_latched=self._breaker.is_latched, is_forbidden=self.is_forbidden)
