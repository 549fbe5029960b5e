"""The daemon of the world: gathers what there is to be seen, part by part, and lets a reclaimer decide; the world may step in between.

The pure code is the real one: the picture of NPUs, the snapshot of claims, pins, and what is kept over a restart. What the reclaimer is,
the real core or a naive one, is for the caller to say.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple, Protocol, TypeVar

from devward.cluster import readings
from devward.cluster.asked import answer_of
from devward.cluster.claims import HostEvidence, Moment
from devward.cluster.life import Life
from devward.cluster.managers import Drivers
from devward.cluster.node import parse_lease, parse_node
from devward.cluster.parts import HostFacts, Part, Parts, SnapshotBounds
from devward.cluster.podlist import parse_pod_list
from devward.cluster.recollection import Recollection, from_values, to_values
from devward.cluster.snapshot import take_snapshot
from devward.cluster.statement import Statement, VnpuSight
from devward.cluster.views import Snapshot
from devward.cluster.witness import WitnessedHost
from devward.model import Pin, ReclaimMode
from devward.npu.facts import Expected, Inventory, Node
from devward.npu.inventory import Picture, Unavailable, assess
from devward.npu.memory import NO_MEMORY
from devward.npu.pins import PinReport, Sight, judge
from devward.reasons import Reason
from devward.reclaim.confirmation import Bounds
from devward.reclaim.controls import Controls, Switch
from devward.reclaim.limits import Rates
from devward.reclaim.look import Cut, Interruption, Look, VnpuFacts, container_key, take_look
from sim.recorded_cluster import MACHINE_ID, NODE
from sim.world import World
from sim.world_broker import Blind, Broker, Said

# The parsers of the API server's bodies have no state, and most bodies come again.
for _parser in (parse_node, parse_lease, parse_pod_list):
    setattr(readings, _parser.__name__, lru_cache(64)(_parser))

#: At which the world may step in; the caller gets each.
Step = Generator[str, None, None]
_BOUNDS: Final = SnapshotBounds()
T = TypeVar("T")


class Evidence(NamedTuple):
    """What one look gathers, and what that comes to."""

    picture: Picture
    pins: PinReport
    at: Moment
    #: None: the API server was asked for nothing.
    parts: Parts | None = None
    snapshot: Snapshot | None = None
    #: The Pods were asked for.
    is_asked: bool = False
    statement: Statement | None = None

    @property
    def sights(self) -> dict[str, VnpuSight]:
        """What the host shows of the vNPUs that were asked about, by name."""
        found = {sight.vnpu.vdev: sight for sight in self.statement.vnpus} if self.statement is not None else {}
        return {view.name: found[view.vdev] for view in self.picture.vnpus if view.vdev in found}

    def look(self, interruptions: Iterable[Interruption]) -> Look:
        """Return it as a look."""
        statement = self.statement if self.is_asked else None
        containers = statement.containers if statement is not None else None
        return take_look(
            self.picture,
            self.snapshot if self.is_asked else None,
            self.sights if self.is_asked else {},
            self.pins,
            at=self.at.monotonic,
            at_usec=self.at.realtime_usec,
            containers=containers,
            living=None if containers is None else frozenset(container_key(one) for one in containers if one.life is Life.LIVE),
            interruptions=interruptions,
        )


class Since(NamedTuple):
    """What may speak against a vNPU and came when the last look had begun, or later."""

    interruptions: Sequence[Interruption]
    #: How the pins stand now.
    pins: PinReport


class Whole(ABC):
    """What goes through a cycle by itself, from the evidence on. One of them lives as long as the daemon runs."""

    #: The library said that this process may not destroy.
    is_forbidden: bool = False

    @abstractmethod
    def cycle(self) -> Step:
        """Take the next look in, and do what comes of it."""

    @abstractmethod
    def asks(self, picture: Picture, pins: PinReport) -> frozenset[str]:
        """Return the names of the vNPUs for which the host is searched at this look."""

    @abstractmethod
    def noticed(self) -> None:
        """An administrator changed something."""

    @abstractmethod
    def interrupt(self, interruption: Interruption) -> None:
        """Something happened that breaks waits."""

    @abstractmethod
    def is_too_late(self, target: str) -> bool:
        """Whether a pin of this that comes now is answered only when the destruction under way is over."""

    @abstractmethod
    def stop(self) -> Step:
        """End as the service manager asks for it: what was begun is waited for."""

    @abstractmethod
    def end(self) -> None:
        """End at once, wherever it is."""

    @abstractmethod
    def release(self) -> None:
        """Do what an administrator means by releasing the breaker."""

    @property
    @abstractmethod
    def is_latched(self) -> bool:
        """Whether the breaker holds everything up."""


class Reclaimer(Protocol):
    """What decides. One of them lives as long as the daemon runs."""

    def asks(self, picture: Picture, pins: PinReport) -> frozenset[str]:
        """Return the names of the vNPUs for which the host is searched at this look."""

    def choose(self, look: Look, controls: Controls) -> Sequence[VnpuFacts]:
        """Take a look in, and return which vNPUs are to be destroyed in this cycle, in their order."""

    def prepare(
        self, vnpu: VnpuFacts, was: int, fresh: Look, expected: Expected | None, at: float, sequence: int | None, controls: Controls
    ) -> bool:
        """Hold one of them against a fresh look; `was` is how often its node came or went when it was chosen, `sequence` how often now."""

    def decide(self, at: float, sequence: int | None, controls: Controls, since: Since, *, is_intent_taken: bool) -> Expected | None:
        """Decide at the very last about the one that was prepared: what the broker is told, or None."""

    def conclude(self, said: Said, at: float) -> None:
        """Take in what the broker answered for it."""

    def release(self) -> None:
        """Do what an administrator means by releasing the breaker."""

    @property
    def is_latched(self) -> bool:
        """Whether the breaker holds everything up."""

    #: The library said that this process may not destroy.
    is_forbidden: bool


class Watcher(Protocol):
    """Who is told what the daemon sees and does."""

    def begun(self, daemon: "Daemon") -> None:
        """A daemon was started: nothing is inherited but what is kept."""

    def looked(self, look: Look, picture: Picture) -> None:
        """A look was taken."""

    def asked(self, vnpu: VnpuFacts, fresh: Look, expected: Expected) -> None:
        """The broker is about to be asked to destroy."""

    def answered(self, vnpu: VnpuFacts, said: Said) -> None:
        """The broker answered."""

    def cycled(self) -> None:
        """A cycle is over."""


@dataclass(slots=True)
class Settings:
    """What an administrator has set, and what is kept of it when the daemon ends."""

    bounds: Bounds = field(default_factory=Bounds)
    rates: Rates = field(default_factory=Rates)
    mode: ReclaimMode = ReclaimMode.ENFORCE
    paused: bool = False
    kill_switch: Switch = Switch.ABSENT
    pins: tuple[Pin, ...] = ()
    accepted: str = ""
    #: The journal takes records.
    journal: bool = True
    #: The state directory takes what must outlast a run.
    saves: bool = True
    #: What the reclaimer keeps, as values of JSON; None: nothing yet.
    kept_of_reclaiming: object = None
    #: What is in the state file; anything but a Recollection is a damaged one.
    kept: object = field(default_factory=Recollection)


class Daemon:
    """One run of the daemon after the other."""

    def __init__(self, world: World, broker: Broker, settings: Settings, watcher: Watcher, make: "Make") -> None:
        """`make` returns the reclaimer of a run."""
        self.world = world
        self.broker = broker
        self.settings = settings
        self.watcher = watcher
        self._make = make
        #: How long each step takes, in seconds.
        self.pace = 0.05
        self.next_at = 0.0
        self.cycles = 0
        self.runs = 0
        #: When the last look was taken.
        self.looked_at = 0.0
        self._reclaimer: Reclaimer | Whole | None = None
        self.start()

    def start(self) -> None:
        """Begin a run: all that is known is what was kept."""
        self.close()
        kept = self.settings.kept
        # What is kept goes through a file.
        self.known = from_values(json.loads(json.dumps(to_values(kept) if isinstance(kept, Recollection) else kept)))
        self._npus = NO_MEMORY
        self._interruptions: list[Interruption] = [Interruption(Cut.RESTARTED)] if self.runs else []
        self.picture = Picture(in_doubt=True)
        self.snapshot: Snapshot | None = None
        self._reclaimer = self._make(self)
        self.runs += 1
        self.next_at = self.world.time.now + 1.0
        self.looked_at = 0.0
        self.watcher.begun(self)

    def close(self) -> None:
        """End a run at once."""
        if isinstance(self._reclaimer, Whole):
            self._reclaimer.end()

    def stop(self) -> Step:
        """End a run as the service manager asks for it."""
        if isinstance(self._reclaimer, Whole):
            yield from self._reclaimer.stop()

    def interrupt(self, cut: Cut, which: frozenset[str] = frozenset()) -> None:
        """Take note of what breaks every wait."""
        if isinstance(self._reclaimer, Whole):
            self._reclaimer.interrupt(Interruption(cut, which))
        else:
            self._interruptions.append(Interruption(cut, which))

    def noticed(self) -> None:
        """An administrator changed something."""
        if isinstance(self._reclaimer, Whole):
            self._reclaimer.noticed()

    def is_too_late(self, target: str) -> bool:
        """Whether a pin of this that comes while the broker destroys is answered only when that is over. The core knows of no actions."""
        return not isinstance(self._reclaimer, Whole) or self._reclaimer.is_too_late(target)

    def controls(self) -> Controls:
        """Return what can stop reclaiming, as it is now."""
        settings = self.settings
        kubelet = self.world.kubelet.scan().kubelet
        return Controls(settings.mode, settings.paused, settings.kill_switch, has_kubelet=kubelet is not None)

    @property
    def reclaimer(self) -> "Reclaimer | Whole":
        """What decides in this run."""
        assert self._reclaimer is not None
        return self._reclaimer

    # --- one cycle -----------------------------------------------------------------------------------------------------
    def cycle(self) -> Step:
        """Look, decide, and destroy what is due."""
        self.cycles += 1
        reclaimer = self.reclaimer
        if isinstance(reclaimer, Whole):
            yield from reclaimer.cycle()
        else:
            look = yield from self._look(reclaimer)
            for vnpu in reclaimer.choose(look, self.controls()):
                yield from self._destroy(reclaimer, vnpu)
        self.watcher.cycled()

    def _destroy(self, reclaimer: Reclaimer, vnpu: VnpuFacts) -> Step:
        # Where the broker checks nothing, nothing may happen once the fresh evidence is taken.
        is_last = self.broker.blind is Blind.BROKER
        was, losses = self._sequence(vnpu.vdev), self.world.hardware.losses
        yield "chosen"
        fresh = at_once(self._look(reclaimer)) if is_last else (yield from self._look(reclaimer))
        expected = self.expected(vnpu.identity)
        at, sequence = self.world.time.now, self._drained(vnpu.vdev, losses)
        if not reclaimer.prepare(vnpu, was, fresh, expected, at, sequence, self.controls()):
            self.world.tell(f"vNPU {vnpu.vdev} is left alone after all")
            return
        if not is_last:
            yield "recorded"
        at, sequence = self.world.time.now, self._drained(vnpu.vdev, losses)
        # What cannot be saved is as what cannot be put on record: nothing is tried, and so nothing counts.
        is_taken = self.settings.journal and self.settings.saves
        since = Since(tuple(self._interruptions), self.pins())
        wanted = reclaimer.decide(at, sequence, self.controls(), since, is_intent_taken=is_taken)
        if wanted is None:
            self.world.tell(f"vNPU {vnpu.vdev} is left alone at the last moment")
            return
        self.watcher.asked(vnpu, fresh, wanted)
        if not is_last:
            yield "asked"
        said = self.broker.destroy(wanted)
        yield "answered"
        self.world.tell(f"vNPU {vnpu.vdev}: {said.outcome or said.refusal or 'no answer'}")
        reclaimer.conclude(said, self.world.time.now)
        self.watcher.answered(vnpu, said)

    def _sequence(self, vdev: int) -> int:
        return self.world.hardware.sequences[f"vdavinci{vdev}"]

    def _drained(self, vdev: int, losses: int) -> int | None:
        return self._sequence(vdev) if self.world.hardware.losses == losses else None

    def expected(self, identity: str) -> Expected | None:
        """Return a vNPU as the broker is to find it; None: that cannot be told."""
        view = next((view for view in self.picture.vnpus if view.identity == identity), None)
        card = next((card for card in self.picture.cards if view is not None and card.name == view.card), None)
        node = (self._surroundings.nodes or {}).get(f"vdavinci{view.vdev}") if view is not None else None
        if view is None or card is None or node is None:
            return None
        at = Node(node.inode, node.ctime_ns, node.major, node.minor)
        return Expected(self.world.boot_id, card.card, card.device, card.phy_id, card.die_id, view.vdev, view.vfid, view.template, at)

    # --- one look ------------------------------------------------------------------------------------------------------
    def _look(self, reclaimer: Reclaimer) -> Generator[str, None, Look]:
        seeing = self.gather(reclaimer)
        yield next(seeing)
        # What happens from now on is for the next look.
        interruptions, self._interruptions = self._interruptions, []
        evidence = yield from seeing
        return self.see(evidence.look(interruptions))

    def gather(self, asking: Reclaimer | Whole, *, is_resumed: bool = False) -> Generator[str, None, Evidence]:
        """Gather part by part; `asking` says about which vNPUs the host is searched."""
        world = self.world
        said = self.broker.list()
        if isinstance(said, Inventory) and said.boot_id != world.boot_id:
            said = Unavailable(Reason.NPU_BROKER_GARBLED, "it tells of another boot than this one")
        self._surroundings = self.broker.surroundings()
        listed_at = world.time.now
        self.picture, self._npus = assess(said, self._surroundings, self._npus, world.time.realtime_usec)
        npus = Part(listed_at, self.picture)
        yield "listed"
        pins = self.pins()
        is_asked = self.picture.may_have_idle
        if not is_asked and not isinstance(asking, Whole):
            return Evidence(self.picture, pins, self._now())
        answers = {}
        for part in ("node", "lease", "pods") if is_asked else ("node", "lease"):
            asked_at = world.time.now
            yield part
            answers[part] = world.api.get(part, asked_at, world.time.now)
        if not is_asked:
            answers["pods"] = answer_of(None, world.time.now)
        else:
            for pod in world.api.pods.values():
                pod.listed = world.api.is_true
                pod.noted |= pod.listed
        checkpoint = Part(world.time.now, world.kubelet.read())
        yield "checkpoint"
        drivers = Part(world.time.now, Drivers(world.drivers))
        seen_at = world.time.now
        kubelet = Part(seen_at, world.kubelet.scan())
        asked = asking.asks(self.picture, pins)
        statement = self.broker.witness(view.vdev for view in self.picture.vnpus if view.name in asked)
        host: Part[HostEvidence] = Part(seen_at, WitnessedHost(statement))
        yield "witnessed"
        parts = Parts(**answers, checkpoint=checkpoint, kubelet=kubelet, drivers=drivers, host=host, npus=npus)
        now = self._now()
        snapshot, self.known = take_snapshot(
            parts, self.facts, self.known, now, accepted=self.settings.accepted, is_resumed=is_resumed, bounds=_BOUNDS
        )
        self.snapshot = snapshot
        self.settings.kept = self.known
        return Evidence(self.picture, pins, now, parts, snapshot, is_asked, statement)

    def pins(self) -> PinReport:
        """Return how the pins stand."""
        return judge(self.settings.pins, Sight(self.picture.cards, self.picture.vnpus, self.picture.lasting, self.picture.in_doubt))

    @property
    def facts(self) -> HostFacts:
        """What this host says of itself."""
        return HostFacts(NODE, self.world.boot_id, frozenset({MACHINE_ID}))

    def see(self, look: Look) -> Look:
        """Tell of a look."""
        self.looked_at = look.at
        self.watcher.looked(look, self.picture)
        return look

    def _now(self) -> Moment:
        return Moment(self.world.time.now, self.world.time.realtime_usec)


Make = Callable[[Daemon], Reclaimer | Whole]


def at_once(steps: "Generator[str, None, T]") -> "T":
    """Take all the steps, and let nothing happen meanwhile."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
