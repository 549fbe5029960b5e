"""The real reconciler in the world: its loop, its audit and its destructions as they are, with the world stepping in wherever it waits.

What the rest of the daemon does for it is here: a Warden over the world's broker and settings, a journal that takes records or does not,
and clocks. Where it waits, it waits for the world; the loop that it runs on turns only until the next such place.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

from devward.audit import Audit
from devward.clock import Clock
from devward.cluster.gatherer import Gathered
from devward.cluster.owners import Seen
from devward.cluster.ownership import Ownership
from devward.config import ReclaimConfig
from devward.journal import Journal
from devward.model import Outcome
from devward.npu.facts import Expected
from devward.npu.inventory import Picture
from devward.npu.pins import PinReport
from devward.reclaim.aftermath import Aftermath, unasked
from devward.reclaim.controls import Controls, Switch
from devward.reclaim.history import Gone
from devward.reclaim.kept import from_values, to_values
from devward.reclaim.limits import Breaker, Spent
from devward.reclaim.look import Cut, Interruption, Look
from devward.reclaim.obstacles import Obstacles
from devward.reclaim.reconciler import Reconciler
from devward.reclaim.warden import LastWord, Warden
from sim.journal_sink import parse
from sim.virtual_time import VirtualTimeLoop
from sim.world import World
from sim.world_broker import Blind
from sim.world_checks import Checks, Rule
from sim.world_core import meant
from sim.world_daemon import Daemon, Evidence, Step, Whole, at_once

T = TypeVar("T")
_RUNTIME: Final = "containerd://1.7.2"
#: What breaks waits where decisions are by the wall clock; the reconciler's are not.
_OF_WALL_CLOCK: Final = Cut.CLOCK


class _WorldClock(Clock):
    """The clocks of the world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        """Seconds of the world's monotonic clock."""
        return self._world.time.now

    def boottime(self) -> float:
        """Seconds of the world's clock that goes on while the host is suspended."""
        return self._world.time.now + self._world.time.suspended

    def realtime_usec(self) -> int:
        """Microseconds since 1970 by the world's wall clock."""
        return self._world.time.realtime_usec


class WorldJournal(Journal):
    """A journal that takes records while the world lets it, and knows what it was told of destructions."""

    def __init__(self, daemon: Daemon) -> None:
        """Begin without records."""
        super().__init__("", stderr=None)
        self.close()
        self._settings = daemon.settings
        self._world = daemon.world
        #: Ids of the vNPUs whose intent it took, by request, and those without an outcome, be it taken or not.
        self.intents: dict[str, int] = {}
        self.open: set[str] = set()

    def _deliver(self, datagram: bytes) -> bool:
        record = {name: values[0] for name, values in parse(datagram).items()}
        request = record.get("DEVWARD_REQUEST_ID", "")
        if record.get("DEVWARD_EVENT") == "vnpu-reclaim":
            if record["DEVWARD_OUTCOME"] != Outcome.INTENT:
                self.open.discard(request)
            else:
                self.open.add(request)
                if self._settings.journal:
                    self.intents[request] = int(record["DEVWARD_VNPU"])
        self._world.count(f"recorded:{record.get('DEVWARD_EVENT', '')}")
        return self._settings.journal


class Steps:
    """Turns a loop from one place where something waits to the next."""

    def __init__(self) -> None:
        """Begin with a loop of its own."""
        self.loop = VirtualTimeLoop()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._is_still = False
        #: Until the library was called nothing may happen: what is asked of it is held against nothing by then.
        self.is_last = False

    async def at(self, where: str) -> None:
        """Wait here until the world has stepped in."""
        if not self._is_still and not self.is_last:
            future = self.loop.create_future()
            self._waiting.append((where, future))
            self.loop.stop()
            await future

    @contextmanager
    def still(self) -> Iterator[None]:
        """Let nothing wait for the world meanwhile."""
        before, self._is_still = self._is_still, True
        try:
            yield
        finally:
            self._is_still = before

    def run(self, main: Coroutine[Any, Any, None]) -> Step:
        """Let the world step in wherever `main` waits; what it raises is raised."""
        task = self._begun(main)
        self._go_on()
        while not task.done():
            yield self._waiting[-1][0]
            self._go_on()
        task.result()

    def at_once(self, main: Coroutine[Any, Any, T]) -> T:
        """Have something done without a step of the world, whatever else waits."""
        with self.still():
            task = self._begun(main)
            self.loop.run_forever()
        return task.result()

    def close(self) -> None:
        """Break off whatever waits."""
        with self.still():
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self._waiting.clear()
            while not all(task.done() for task in tasks):
                self.loop.call_soon(self.loop.stop)
                self.loop.run_forever()
        self.loop.close()

    def _begun(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self.loop.create_task(main)
        task.add_done_callback(lambda _: self.loop.stop())
        return task

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_result(None)
        self.loop.run_forever()


class WorldWarden:
    """What the rest of the daemon does for the reconciler, in the world."""

    def __init__(self, daemon: Daemon, steps: Steps, checks: Checks, journal: WorldJournal) -> None:
        """Begin a run."""
        self._daemon = daemon
        self._world = daemon.world
        self._steps = steps
        self._checks = checks
        self.journal = journal
        self.is_stopping = False
        #: The run is over: nothing of it reaches the world any more.
        self.is_over = False
        self.is_forbidden = False
        #: The kill switch was found set.
        self.saw_switch = False
        self.last: Look | None = None
        self._kept = Spent()
        #: When the broker was asked last in this run.
        self._asked_at = -1.0
        #: What breaks waits, and was in no look yet.
        self.interruptions: list[Interruption] = []

    def pins(self) -> PinReport | None:
        """Return how the pins stand."""
        return self._daemon.pins()

    def sequence(self, vdev: int) -> int | None:
        """Return how often its node came or went, or may have."""
        hardware = self._world.hardware
        return hardware.sequences[f"vdavinci{vdev}"] + hardware.losses

    def destroy_may_run(self) -> bool:
        """Whether a broker hangs in the library."""
        return self._daemon.broker.is_stuck

    async def switch(self) -> Switch:
        """Look at the kill switch."""
        await self._steps.at("switch")
        found = self._daemon.settings.kill_switch
        if found is not Switch.ABSENT:
            self.saw_switch = True
            # One that went and came again between two readings stood all the time, for whoever reads it.
            self.interruptions = [one for one in self.interruptions if one.cut is not Cut.KILL_SWITCH_REMOVED]
        return found

    def controls(self) -> Controls:
        """Return what an administrator wishes."""
        settings = self._daemon.settings
        return Controls(settings.mode, settings.paused, is_stopping=self.is_stopping)

    async def load(self) -> tuple[Breaker, Spent] | None:
        """Return what an earlier run left."""
        await self._steps.at("load")
        breaker, self._kept = self.kept()
        return breaker, self._kept

    def kept(self) -> tuple[Breaker, Spent]:
        """Return what an earlier run left."""
        kept = self._daemon.settings.kept_of_reclaiming
        return (Breaker(), Spent()) if kept is None else from_values(json.loads(json.dumps(kept)), self._world.boot_id)

    async def keep(self, breaker: Breaker, spent: Spent) -> bool:
        """Keep what must outlast this run."""
        await self._steps.at("keep")
        if not self._daemon.settings.saves:
            self._world.count("not-kept")
            return False
        if not self.is_over:
            if spent.moments[-1:] != self._kept.moments[-1:]:
                self._checks.tried()
            self._kept = spent
            self._daemon.settings.kept_of_reclaiming = to_values(breaker, spent, self._world.boot_id)
        return True

    async def destroy(self, expected: Expected, runtime: str | None, request_id: str, last_word: LastWord) -> Aftermath:
        """Have the broker destroy it, when it is this question's turn."""
        await self._steps.at("turn")
        if (no := await last_word()) is not None:
            self._world.tell(f"vNPU {expected.vdev} is left alone at the last moment: {no.reason}")
            self._world.count("kept-by-last-word")
            return replace(unasked(no.sentence), reason=no.reason)
        assert not self.is_over
        fresh = self.last
        vnpu = next((one for one in fresh.vnpus if one.vdev == expected.vdev), None) if fresh is not None else None
        if fresh is None or vnpu is None:
            self._checks.broken(Rule.UNKNOWN, f"vNPU {expected.vdev} is not in the last look")
            return unasked("")
        if broken := next((one for one in self.interruptions if one.breaks(vnpu.identity)), None):
            self._checks.broken(Rule.IMPATIENT, f"vNPU {expected.vdev}: {broken.cut} after the last look")
        if self.is_forbidden:
            self._checks.broken(Rule.SWITCHED_OFF, "the library said that this process may not destroy")
        tries = self.kept()[1].moments
        if not tries or tries[-1] <= self._asked_at:
            self._checks.broken(Rule.RATE, f"vNPU {expected.vdev}: a restart would forget this try")
        self._asked_at = self._world.time.now
        is_recorded = self.journal.intents.get(request_id) == expected.vdev and request_id in self.journal.open
        self._checks.asked(vnpu, fresh, expected, is_recorded=is_recorded)
        await self._steps.at("asked")
        said = self._daemon.broker.destroy(expected)
        self._steps.is_last = False
        await self._steps.at("answered")
        self._world.tell(f"vNPU {expected.vdev}: {said.outcome or said.refusal or 'no answer'}")
        self._checks.answered(vnpu, said)
        came = meant(said)
        self.is_forbidden = self.is_forbidden or came.forbids
        return came

    def changed(self) -> None:
        """Nobody is told."""

    def cycle_ended(self) -> None:
        """Nobody waits for it."""

    def reclaimed(self, gone: Gone, phy: int) -> None:
        """Nobody is told."""
        self._world.count("told-of-reclaimed")


class Watched(Reconciler):
    """The reconciler, with each look told to the checks at the moment at which it takes it in."""

    daemon: Daemon
    warden: WorldWarden
    #: The evidence of the look that is under way.
    looked_at: Evidence
    #: What reads what stops reclaiming; the reconciler's own is left to it, so that its wiring is played, too.
    obstacles_type: type[Obstacles] = Obstacles

    def __init__(self, config: ReclaimConfig, warden: Warden, audit: Audit, clock: Clock, new_id: Callable[[], str]) -> None:
        """Know nothing yet."""
        super().__init__(config, warden, audit, clock, new_id)
        if self.obstacles_type is not Obstacles:
            self._obstacles = self.obstacles_type(warden, self.ledger, self.interrupt)

    def _look(self, seen: Seen) -> Look:
        look = super()._look(seen)
        interruptions, self.warden.interruptions = self.warden.interruptions, []
        # Made anew, and not the reconciler's own: that is what is checked.
        self.warden.last = self.daemon.see(self.looked_at.look(interruptions))
        return look


class Reconciled(Whole):
    """A run of the daemon with the real reconciler."""

    reconciler_type: type[Watched] = Watched
    warden_type: type[WorldWarden] = WorldWarden
    journal_type: type[WorldJournal] = WorldJournal

    def __init__(self, daemon: Daemon) -> None:
        """Of an earlier run only what was kept is known."""
        self.daemon = daemon
        self.steps = Steps()
        self.journal = self.journal_type(daemon)
        checks = daemon.watcher
        assert isinstance(checks, Checks)
        self._checks = checks
        self.warden = self.warden_type(daemon, self.steps, checks, self.journal)
        clock = _WorldClock(daemon.world)
        self._ids = 0
        self._is_resumed = False
        self._is_known = False
        audit = Audit(self.journal, version="1", new_id=self._new_id, monotonic=clock.monotonic)
        pace, rates = daemon.settings.bounds.normal, daemon.settings.rates
        self._config = ReclaimConfig(
            grace=int(pace.grace),
            confirmations=pace.confirmations,
            interval=int(pace.interval),
            per_card=rates.per_card,
            per_node=rates.per_node,
            per_hour=rates.per_hour,
        )
        self.reconciler = self.reconciler_type(self._config, self.warden, audit, clock, self._new_id)
        self.reconciler.daemon, self.reconciler.warden = daemon, self.warden

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self.daemon.runs}-{self._ids}"

    # --- a cycle -------------------------------------------------------------------------------------------------------
    def cycle(self) -> Step:
        """Look, and let the reconciler take it in; after that nothing that it began is without an outcome."""
        evidence = yield from self.daemon.gather(self, is_resumed=self._resumed())
        yield from self.steps.run(self.reconciler.take(self._seen(evidence), self._again))
        self.steps.is_last = False
        if self.journal.open:
            self._checks.broken(Rule.UNRECORDED, f"no outcome of {sorted(self.journal.open)}")

    async def _again(self) -> Seen:
        self.steps.is_last = False
        await self.steps.at("chosen")
        seeing = self.daemon.gather(self, is_resumed=self._resumed())
        if self.daemon.broker.blind is Blind.BROKER:
            # Where the broker checks nothing, nothing may happen once the fresh evidence is taken.
            self.steps.is_last = True
            return self._seen(at_once(seeing))
        while True:
            try:
                where = next(seeing)
            except StopIteration as end:
                return self._seen(end.value)
            await self.steps.at(f"again-{where}")

    def _seen(self, evidence: Evidence) -> Seen:
        self.reconciler.looked_at = evidence
        parts, snapshot, statement = evidence.parts, evidence.snapshot, evidence.statement
        assert parts is not None
        assert snapshot is not None
        containers = statement.containers if statement is not None else None
        gathered = Gathered(parts, self.daemon.facts, evidence.sights, {}, containers, _RUNTIME, is_without_kubelet=False)
        return Seen(gathered, snapshot, evidence.is_asked, Ownership(snapshot, is_asked=evidence.is_asked).blocked)

    def _resumed(self) -> bool:
        is_resumed, self._is_resumed = self._is_resumed, False
        return is_resumed

    # --- what the rest of the daemon tells it --------------------------------------------------------------------------
    def asks(self, picture: Picture, pins: PinReport) -> frozenset[str]:
        """Ask about what the reconciler wants to know of."""
        return self.reconciler.ask_about(picture)

    def noticed(self) -> None:
        """Tell it, as the actions of an administrator do."""
        self.reconciler.noticed()
        self.reconciler.pinned()

    def interrupt(self, interruption: Interruption) -> None:
        """Tell it in the way in which it learns of such a thing, and expect that it heeds it."""
        cut = interruption.cut
        self._is_resumed = self._is_resumed or cut is Cut.RESUMED
        if cut is Cut.RELOADED:
            self.reconciler.configure(self._config)
            self.warden.is_forbidden = False
        self.noticed()
        # A switch that was never found set is nothing that ends, nor is a pin that meant nothing.
        is_nothing = cut is Cut.KILL_SWITCH_REMOVED and not self.warden.saw_switch
        if cut is _OF_WALL_CLOCK or is_nothing or (cut is Cut.UNPINNED and not interruption.which):
            return
        if cut is Cut.KILL_SWITCH_REMOVED:
            self.warden.saw_switch = False
        self.warden.interruptions.append(interruption)

    def release(self) -> None:
        """Release the breaker."""
        self.steps.at_once(self._release())

    async def _release(self) -> None:
        await self.reconciler.ledger.recall()
        assert await self.reconciler.ledger.release_breaker()

    @property
    def is_latched(self) -> bool:
        """Whether the breaker holds everything up, be it by what an earlier run left."""
        self._is_known = self._is_known or self.reconciler.standing.look is not None
        return self.reconciler.ledger.breaker.is_latched if self._is_known else self.warden.kept()[0].is_latched

    @property
    def is_forbidden(self) -> bool:  # type: ignore[override]  # what may be written may be read
        """Whether the library said so in this run, since the last reload."""
        return self.warden.is_forbidden

    def is_too_late(self, target: str) -> bool:
        """Whether what the broker was told of last is not over, and is what this names."""
        underway = self.reconciler.underway
        return underway is not None and underway.result is None and underway.is_named(target)

    # --- its end -------------------------------------------------------------------------------------------------------
    def stop(self) -> Step:
        """Stop: what was begun is waited for, and nothing else begins."""
        self.warden.is_stopping = True
        if self.journal.open:
            self.daemon.world.count("stopped-while-destroying")
        yield from self.steps.run(self.reconciler.finish())

    def end(self) -> None:
        """End wherever it is."""
        self.warden.is_over = True
        if self.journal.open:
            self.daemon.world.count("ended-while-destroying")
        self.steps.close()
