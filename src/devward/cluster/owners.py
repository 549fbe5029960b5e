"""Looks at who owns the vNPUs of this host, keeps what that leaves, and says when to look again.

While a vNPU is pinned, is idle or may be, there is a whole look once a minute, and sooner where something changed. Otherwise nobody's Pods
are asked for: the checkpoint is read once a minute, so that no Pod with a card goes by unseen, and every few minutes it is seen whether all
the rest could be asked. Events only say "look again". Nothing waits for a look.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from devward.breakages import Breakages
from devward.clock import Clock
from devward.cluster.answers import Failure
from devward.cluster.api import ApiSettings
from devward.cluster.cadence import next_look
from devward.cluster.claims import Moment
from devward.cluster.gatherer import Gathered, Gatherer, nothing_gathered
from devward.cluster.keeping import Keeping
from devward.cluster.observations import Look, sentence
from devward.cluster.ownership import Ownership
from devward.cluster.parts import SUSPENDED_SECONDS, SnapshotBounds
from devward.cluster.podlist import parse_pod_list
from devward.cluster.podmemory import PodListReader
from devward.cluster.readings import ReadPods, allocations_of
from devward.cluster.recollection import Loss, Recollection, see_allocations
from devward.cluster.snapshot import take_snapshot
from devward.cluster.views import Snapshot, Unknown
from devward.cluster.watch import PodWatch
from devward.errors import DevwardError
from devward.npu.inventory import Picture
from devward.text import printable
from devward.worker import Worker, WorkerHung

#: Seconds that keeping may take.
SAVE_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """When to look, in seconds."""

    #: Between looks, whole or light ones, at the least (cadence.py).
    interval: float = 60.0
    #: Between looks without Pods while there is no need of a whole one.
    seldom: float = 300.0
    #: From an event to the look that it asks for: a container that starts needs some, and idle vNPUs wait for minutes anyway.
    nudge_delay: float = 20.0
    #: Between two looks at the least: a list of Pods costs the API server more than it costs us.
    least: float = 20.0
    #: The same where an administrator asked.
    least_asked: float = 2.0
    bounds: SnapshotBounds = field(default_factory=SnapshotBounds)


@dataclass(frozen=True, slots=True)
class Seen:
    """One look: what was gathered, and what that comes to."""

    gathered: Gathered
    snapshot: Snapshot
    #: The Pods were asked for. Where their list did not come, that is unknown in the snapshot.
    is_asked: bool
    #: What is unknown of the whole node, but for what is only so since nobody's Pods were asked for.
    blocked: tuple[Unknown, ...] = ()


class Judge(Protocol):
    """Judges by what was seen, and acts on it."""

    @property
    def interval(self) -> float:
        """Seconds between looks at the most while it matters who owns what."""

    def ask_about(self, picture: Picture) -> frozenset[str]:
        """Return the names of the vNPUs whose users are worth a search of the host."""

    async def take(self, seen: Seen, again: Callable[[], Awaitable[Seen]]) -> None:
        """Take a look in; `again` has everything looked at anew. No other look is taken before it returns."""

    def forget(self) -> None:
        """Nobody looks any more."""


#: Tests have another one, so that they need not wait for minutes.
PACE: Final = Pace()


class OwnersWatcher:
    """Keeps an Ownership while it is awake."""

    def __init__(
        self,
        gatherer: Gatherer,
        keeping: Keeping,
        saver: Worker,
        judge: Judge,
        *,
        clock: Clock,
        is_wanted: Callable[[], bool],
        on_change: Callable[[], None],
        chance: Callable[[], float] = random.random,
        pace: Pace = PACE,
    ) -> None:
        """Ask nothing before `wake`. `is_wanted` tells whether it matters who owns the vNPUs, `chance` is between 0 and 1 (cadence.py)."""
        self._gatherer = gatherer
        self._keeping = keeping
        self._saver = saver
        self._judge = judge
        self._clock = clock
        self._is_wanted = is_wanted
        self._on_change = on_change
        self._chance = chance
        self._pace = pace
        self._task: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._pod_watch: PodWatch | None = None
        self._watched: tuple[ApiSettings, str] | None = None
        self._nudged = asyncio.Event()
        #: By the monotonic clock, when somebody wants a look; None: nobody does. `asked`: an administrator does.
        self._wanted_at: float | None = None
        self._asked = False
        self._breakages = Breakages()
        self._known: Recollection | None = None
        self._pods = PodListReader()
        self._unsaved = ""
        self._clocks: float | None = None
        #: The host was suspended, and no look has taken that into account yet.
        self._resumed = False
        self._seldom_at: float | None = None
        #: Whether it mattered at the look before.
        self._was_wanted = False
        #: When the latest look began, and when it was complete; what it was given of chance, and when the next one is due by that.
        self._began = self._looked_at = self._given = 0.0
        self._due_at: float | None = None
        self.ownership = Ownership()
        self.looks = 0
        #: The UID of a Node that an administrator accepted as this host's, until it is.
        self._accepted = ""

    @property
    def awake(self) -> bool:
        """Whether it looks."""
        return self._task is not None and not self._task.done()

    @property
    def pod_watch(self) -> PodWatch | None:
        """The watch on the node's Pods; None: there is none, since it does not matter whose the vNPUs are."""
        return self._pod_watch

    @property
    def next_look_in(self) -> float | None:
        """Seconds until the next look that nothing asks for; None: there is none."""
        return max(0.0, self._due_at - self._clock.monotonic()) if self._due_at is not None and self.awake else None

    def wake(self) -> None:
        """Begin to look."""
        if not self.awake:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="owners")

    def nudge(self, *, asked: bool = False) -> None:
        """Something may have changed; `asked`: an administrator wants to know now."""
        at = self._clock.monotonic() + (0.0 if asked else self._pace.nudge_delay)
        self._wanted_at = at if self._wanted_at is None else min(at, self._wanted_at)
        self._asked = self._asked or asked
        self._nudged.set()

    def accept(self, uid: str) -> None:
        """Take the Node with this UID for this host's, from the next look on, which comes soon."""
        self._accepted = uid
        self.nudge(asked=True)

    async def close(self) -> None:
        """Stop looking, at once, whatever is under way."""
        tasks = [task for task in (self._task, self._watch_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = self._watch_task = self._watched = self._pod_watch = None
        self._gatherer.close()

    def forget(self) -> None:
        """Publish nothing any more. What was seen of Pods is kept: it protects them when this goes on."""
        self._publish(Ownership())
        self._judge.forget()

    # --- when ----------------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            self._began, self._given = self._clock.monotonic(), self._chance()
            # Before the look: what happens meanwhile asks for another one.
            asked, self._asked, self._wanted_at = self._asked, False, None
            self._looked(self._began)
            await self._look_safely(asked=asked)
            await self._wait(self._began)

    def _looked(self, at: float) -> None:
        self._looked_at = at
        self._due_at = self._due_by_itself()

    def _due_by_itself(self) -> float:
        return next_look(self._began, self._looked_at, self._interval(), self._given)

    async def _wait(self, began: float) -> None:
        """Wait until a look is due by itself, by an event or by an administrator."""
        while (left := self._due(began) - self._clock.monotonic()) > 0:
            self._nudged.clear()
            try:
                async with asyncio.timeout(left):
                    await self._nudged.wait()
            except TimeoutError:
                return

    def _due(self, began: float) -> float:
        due = self._due_by_itself()
        if self._wanted_at is None:
            return due
        return min(due, max(self._wanted_at, began + (self._pace.least_asked if self._asked else min(self._pace.least, self._interval()))))

    def _interval(self) -> float:
        return min(self._pace.interval, self._judge.interval)

    # --- a look --------------------------------------------------------------------------------------------------------
    async def _look_safely(self, *, asked: bool) -> None:
        try:
            if self._known is None:
                self._known = await self._load()
            if self._known is None:
                # Not taken for lost: what is kept must not be written over before it was read.
                self._seldom_at = None
                await self._fail(Failure(Look.MEMORY_LOST.value, sentence(Look.MEMORY_LOST, "the file system does not answer")))
                return
            is_wanted, now = self._is_wanted(), self._clock.monotonic()
            # That it does not matter any more has to be judged, too: what was idle is in use, and what counted for it is void.
            was_wanted, self._was_wanted = self._was_wanted, is_wanted
            if is_wanted or was_wanted or asked or self._seldom_at is None or now - self._seldom_at >= self._pace.seldom:
                self._seldom_at = now
                await self._look(self._known, is_wanted=is_wanted)
            else:
                await self._look_light(self._known)
            self._breakages.sum_up(self._clock.monotonic())
        except Exception as error:  # noqa: BLE001
            # The edge of a task: whatever it was, nothing that was published is known to hold, and the next look must come.
            self._breakages.note("A look at who owns the vNPUs broke off", error, self._clock.monotonic())
            # Not a light one, which publishes nothing, and knows of no boot to remember Pods of where the first look broke off.
            self._seldom_at = None
            await self._fail(Failure(Look.PART_MISSING.value, sentence(Look.PART_MISSING, printable(type(error).__name__))))

    async def _look(self, known: Recollection, *, is_wanted: bool) -> None:
        seen = await self._see(known, is_wanted=is_wanted)
        await self._watch(seen.gathered, is_wanted=is_wanted)
        await self._judge.take(seen, self._again)

    async def _again(self) -> Seen:
        """Look before something is destroyed: every Pod is read afresh."""
        # Without a look before this one nothing is remembered, which may hide any Pod.
        known = self._known if self._known is not None else Recollection(loss=Loss("nothing was seen yet"))
        return await self._see(known, is_wanted=True, read_pods=parse_pod_list)

    async def _see(self, known: Recollection, *, is_wanted: bool, read_pods: ReadPods | None = None) -> Seen:
        """Gather, join, publish and keep. `read_pods` reads the list of Pods, if not the reader that remembers the one before does."""
        gathered = await self._gatherer.gather(pods=is_wanted)
        moment = self._now()
        self._see_suspension()
        snapshot, self._known = take_snapshot(
            gathered.parts,
            gathered.facts,
            known,
            moment,
            accepted=self._accepted,
            is_resumed=self._resumed,
            unsaved=self._unsaved,
            bounds=self._pace.bounds,
            read_pods=read_pods or self._pods.read,
        )
        self._resumed = False
        self._looked(moment.monotonic)
        self.looks += 1
        if self._known.node is not None and self._known.node.uid == self._accepted:
            self._accepted = ""
        certificate = self._gatherer.certificate
        is_listed = is_wanted and bool(gathered.parts.pods.status)
        self._publish(
            Ownership(
                snapshot,
                is_asked=is_wanted,
                listed_usec=moment.realtime_usec if is_listed else self.ownership.listed_usec,
                sights=gathered.sights,
                host=gathered.host,
                is_without_kubelet=gathered.is_without_kubelet,
                certificate_expires_usec=certificate.not_after_usec if certificate is not None else 0,
                certificate_warning=self._gatherer.warning,
            )
        )
        await self._save(self._known)
        return Seen(gathered, snapshot, is_asked=is_wanted, blocked=self.ownership.blocked)

    async def _look_light(self, known: Recollection) -> None:
        """See to it that no Pod with a card goes by unseen: what the kubelet gave away is remembered."""
        reading = await self._gatherer.read_checkpoint()
        if reading is not None and reading.checkpoint is not None:
            self._known = see_allocations(known, allocations_of(reading.checkpoint))
            await self._save(self._known)

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.realtime_usec())

    def _see_suspension(self) -> None:
        apart = self._clock.apart()
        before, self._clocks = self._clocks, apart
        self._resumed = self._resumed or (before is not None and apart - before > SUSPENDED_SECONDS)

    # --- what is kept --------------------------------------------------------------------------------------------------
    async def _load(self) -> Recollection | None:
        """Return what was kept; None: the file system does not tell for now."""
        try:
            return await self._saver.run(self._keeping.load, SAVE_SECONDS)
        except WorkerHung as hung:
            _log.warning("which Pods were seen with NPUs could not be read for now: %s", hung)
            return None

    async def _save(self, known: Recollection) -> None:
        try:
            await self._saver.run(lambda: self._keeping.save(known), SAVE_SECONDS)
        except (DevwardError, OSError, WorkerHung) as error:
            if not self._unsaved:
                _log.warning("which Pods were seen with NPUs could not be saved: %s", error)
            self._unsaved = printable(str(error))
            return
        self._unsaved = ""

    # --- the watch -----------------------------------------------------------------------------------------------------
    async def _watch(self, gathered: Gathered, *, is_wanted: bool) -> None:
        """Let a watch on the node's Pods nudge while it matters who owns what."""
        settings, name = self._gatherer.settings, gathered.facts.node_name
        target = (settings, name) if is_wanted and settings is not None and name else None
        if target == self._watched:
            return
        before, self._watched, self._watch_task, self._pod_watch = self._watch_task, target, None, None
        if before is not None:
            before.cancel()
            await asyncio.gather(before, return_exceptions=True)
        if target is None:
            return
        self._pod_watch = watch = PodWatch(
            *target,
            self.nudge,
            monotonic=self._clock.monotonic,
            realtime_usec=self._clock.realtime_usec,
            library=self._gatherer.library,
        )
        self._watch_task = asyncio.get_running_loop().create_task(watch.run(), name="watch of Pods")

    # --- publishing ----------------------------------------------------------------------------------------------------
    async def _fail(self, failure: Failure) -> None:
        """Publish that everything of the node is unknown, and let it be judged so."""
        now = self._now()
        gathered = nothing_gathered(failure, now.monotonic)
        snapshot, _ = take_snapshot(gathered.parts, gathered.facts, Recollection(), now)
        self._publish(Ownership(snapshot, is_asked=True, listed_usec=self.ownership.listed_usec))
        try:
            await self._judge.take(Seen(gathered, snapshot, is_asked=True, blocked=self.ownership.blocked), self._again)
        except Exception as error:  # noqa: BLE001
            # The edge of a task, once more: the next look must come.
            self._breakages.note("Judging broke off, too", error, self._clock.monotonic())

    def _publish(self, ownership: Ownership) -> None:
        self.ownership = ownership
        self._on_change()
