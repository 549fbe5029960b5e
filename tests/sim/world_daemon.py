"""The daemon of the world: gathers what there is to be seen, part by part, and lets a reclaimer decide; the world may step in between.

The pure code is the real one: the picture of NPUs, the snapshot of claims, pins, and what is kept over a restart. What the reclaimer is, the
real core or a naive one, is for the caller to say.
"""

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from devward.cluster.claims import Moment
from devward.cluster.managers import Drivers
from devward.cluster.parts import HostFacts, Part, Parts, SnapshotBounds
from devward.cluster.recollection import Recollection, from_values, to_values
from devward.cluster.snapshot import take_snapshot
from devward.cluster.views import Snapshot
from devward.cluster.witness import WitnessedHost
from devward.model import Pin, Reason
from devward.npu.facts import Expected, Inventory, Node
from devward.npu.inventory import Picture, Unavailable, assess
from devward.npu.memory import NO_MEMORY
from devward.npu.pins import Sight, judge
from devward.npu.views import Use
from devward.reclaim.confirmation import Bounds
from devward.reclaim.controls import Controls, ReclaimMode, Switch
from devward.reclaim.limits import Rates
from devward.reclaim.look import Cut, Interruption, Look, VnpuFacts, take_look
from sim.recorded_cluster import MACHINE_ID, NODE
from sim.world import World
from sim.world_broker import Blind, Broker, Said

#: At which the world may step in; the caller gets each.
Step = Generator[str, None, None]
_BOUNDS: Final = SnapshotBounds()


class Reclaimer(Protocol):
    """What decides. One of them lives as long as the daemon runs."""

    def choose(self, look: Look, controls: Controls, managed: int) -> Sequence[VnpuFacts]:
        """Take a look in, and return which vNPUs are to be destroyed in this cycle, in their order."""

    def prepare(self, vnpu: VnpuFacts, sequence: int, fresh: Look, expected: Expected | None, now: int | None, controls: Controls) -> bool:
        """Hold one of them against a fresh look; `sequence` is of the moment when it was chosen, `now` of this one."""

    def decide(self, at: float, sequence: int | None, controls: Controls) -> Expected | None:
        """Decide at the very last about the one that was prepared: what the broker is told, or None."""

    def conclude(self, said: Said, at: float) -> None:
        """Take in what the broker answered for it."""

    def release(self) -> None:
        """Do what an administrator means by releasing the breaker."""

    @property
    def is_latched(self) -> bool:
        """Whether the breaker holds everything up."""


class Watcher(Protocol):
    """Who is told what the daemon sees and does."""

    def begun(self, daemon: "Daemon") -> None:
        """A daemon was started: nothing is inherited but what is kept."""

    def looked(self, look: Look, picture: Picture) -> None:
        """A look was taken."""

    def asked(self, vnpu: VnpuFacts, fresh: Look, expected: Expected) -> None:
        """The broker is about to be asked to destroy."""

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
    #: What is in the state file; anything but a Recollection is a damaged one.
    kept: object = field(default_factory=Recollection)


class Daemon:
    """One run of the daemon after the other."""

    def __init__(self, world: World, broker: Broker, settings: Settings, watcher: Watcher, make: Callable[["Daemon"], Reclaimer]) -> None:
        """`make` returns the reclaimer of a run."""
        self.world = world
        self.broker = broker
        self.settings = settings
        self._watcher = watcher
        self._make = make
        #: How long each step takes, in seconds.
        self.pace = 0.05
        self.next_at = 0.0
        self.cycles = 0
        self.runs = 0
        self.start()

    def start(self) -> None:
        """Begin a run: all that is known is what was kept."""
        kept = self.settings.kept
        # What is kept goes through a file.
        self.known = from_values(json.loads(json.dumps(to_values(kept) if isinstance(kept, Recollection) else kept)))
        self._npus = NO_MEMORY
        self._interruptions: list[Interruption] = [Interruption(Cut.RESTARTED)] if self.runs else []
        self.picture = Picture(in_doubt=True)
        self.snapshot: Snapshot | None = None
        self.reclaimer = self._make(self)
        self.runs += 1
        self.next_at = self.world.time.now + 1.0
        self._watcher.begun(self)

    def interrupt(self, cut: Cut, which: frozenset[str] = frozenset()) -> None:
        """Take note of what breaks every wait."""
        self._interruptions.append(Interruption(cut, which))

    @property
    def managed(self) -> int:
        """Return how many cards are reclaimed on."""
        return sum(card.is_managed for card in self.snapshot.cards) if self.snapshot is not None else 0

    def controls(self) -> Controls:
        """Return what can stop reclaiming, as it is now."""
        settings = self.settings
        kubelet = self.world.kubelet.scan().kubelet
        return Controls(settings.mode, settings.paused, settings.kill_switch, has_kubelet=None if kubelet is None else True)

    # --- one cycle -----------------------------------------------------------------------------------------------------
    def cycle(self) -> Step:
        """Look, decide, and destroy what is due."""
        self.cycles += 1
        look = yield from self._look()
        chosen = self.reclaimer.choose(look, self.controls(), self.managed)
        for vnpu in chosen:
            yield from self._destroy(vnpu)
        self._watcher.cycled()

    def _destroy(self, vnpu: VnpuFacts) -> Step:
        sequence, losses = self._sequence(vnpu.vdev), self.world.hardware.losses
        yield "chosen"
        fresh = yield from self._look()
        expected = self._expected(vnpu.identity)
        now = self._drained(vnpu.vdev, losses)
        if not self.reclaimer.prepare(vnpu, sequence, fresh, expected, now, self.controls()):
            self.world.tell(f"vNPU {vnpu.vdev} is left alone after all")
            return
        if self.broker.blind is not Blind.BROKER:
            yield "intent"
        wanted = self.reclaimer.decide(self.world.time.now, self._drained(vnpu.vdev, losses), self.controls())
        if wanted is None:
            self.world.tell(f"vNPU {vnpu.vdev} is left alone at the last moment")
            return
        self._watcher.asked(vnpu, fresh, wanted)
        if self.broker.blind is not Blind.BROKER:
            yield "asked"
        said = self.broker.destroy(wanted)
        yield "answered"
        self.world.tell(f"vNPU {vnpu.vdev}: {said.outcome or said.refusal or 'no answer'}")
        self.reclaimer.conclude(said, self.world.time.now)

    def _sequence(self, vdev: int) -> int:
        return self.world.hardware.sequences[f"vdavinci{vdev}"]

    def _drained(self, vdev: int, losses: int) -> int | None:
        return self._sequence(vdev) if self.world.hardware.losses == losses else None

    def _expected(self, identity: str) -> Expected | None:
        view = next((view for view in self.picture.vnpus if view.identity == identity), None)
        card = next((card for card in self.picture.cards if view is not None and card.name == view.card), None)
        node = (self._surroundings.nodes or {}).get(f"vdavinci{view.vdev}") if view is not None else None
        if view is None or card is None or node is None:
            return None
        at = Node(node.inode, node.ctime_ns, node.major, node.minor)
        return Expected(
            self.world.boot_id, card.card, card.device, card.phy_id, card.die_id, view.vdev, view.vfid, view.template, at
        )

    # --- one look ------------------------------------------------------------------------------------------------------
    def _look(self) -> Generator[str, None, Look]:
        world = self.world
        said = self.broker.list()
        if isinstance(said, Inventory) and said.boot_id != world.boot_id:
            said = Unavailable(Reason.NPU_BROKER_GARBLED, "it tells of another boot than this one")
        self._surroundings = self.broker.surroundings()
        listed_at = world.time.now
        self.picture, self._npus = assess(said, self._surroundings, self._npus, world.time.realtime_usec)
        npus = Part(listed_at, self.picture)
        yield "listed"
        interruptions, self._interruptions = self._interruptions, []
        sight = Sight(self.picture.cards, self.picture.vnpus, self.picture.lasting, self.picture.in_doubt)
        if not any(view.use is Use.IDLE for view in self.picture.vnpus):
            # Nothing to decide: the Pods are not listed.
            now = self._now()
            look = take_look(
                self.picture, None, {}, judge(self.settings.pins, sight), at=now.monotonic, at_usec=now.realtime_usec, interruptions=interruptions
            )
            self._watcher.looked(look, self.picture)
            return look
        answers = []
        for part in ("node", "lease", "pods"):
            asked_at = world.time.now
            yield part
            answers.append(world.api.get(part, asked_at, world.time.now))
        if world.api.is_true:
            for pod in world.api.pods.values():
                pod.noted = True
        checkpoint = Part(world.time.now, world.kubelet.read())
        yield "checkpoint"
        drivers = Part(world.time.now, Drivers(world.drivers))
        seen_at = world.time.now
        kubelet = Part(seen_at, world.kubelet.scan())
        statement = self.broker.witness(view.vdev for view in self.picture.vnpus if view.use is Use.IDLE)
        host = WitnessedHost(statement)
        yield "witnessed"
        parts = Parts(*answers, checkpoint, kubelet, drivers, Part(seen_at, host), npus)
        facts = HostFacts(NODE, world.boot_id, frozenset({MACHINE_ID}))
        now = self._now()
        snapshot, self.known = take_snapshot(parts, facts, self.known, now, accepted=self.settings.accepted, bounds=_BOUNDS)
        self.snapshot = snapshot
        self.settings.kept = self.known
        sights = {sight.vnpu.vdev: sight for sight in statement.vnpus} if statement is not None else {}
        look = take_look(
            self.picture,
            snapshot,
            {view.name: sights[view.vdev] for view in self.picture.vnpus if view.vdev in sights},
            judge(self.settings.pins, sight),
            containers=statement.containers if statement is not None else None,
            interruptions=interruptions,
        )
        self._watcher.looked(look, self.picture)
        return look

    def _now(self) -> Moment:
        return Moment(self.world.time.now, self.world.time.realtime_usec)
