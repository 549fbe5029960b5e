"""A reconciler with everything around it made up: it takes looks of a node that a test changes, in virtual time."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from devward.audit import NOT_GIVEN, Audit
from devward.cluster.claimants import Claimant
from devward.cluster.evidence import Finding
from devward.cluster.gatherer import Gathered, nothing_gathered
from devward.cluster.kubelet_facts import KubeletScan
from devward.cluster.owners import Seen
from devward.cluster.parts import Part
from devward.cluster.statement import AskedVnpu, ContainerSight, VnpuSight
from devward.cluster.views import CardState, Snapshot, Unknown
from devward.config import ReclaimConfig
from devward.model import Pin, ReclaimMode
from devward.npu.facts import Expected, Node, Outcome
from devward.npu.inventory import Picture
from devward.npu.pins import PinnedVnpu, PinReport, Standing
from devward.npu.views import Use, Verdict, VnpuView
from devward.reasons import Reason
from devward.reclaim.aftermath import Aftermath, called, unasked
from devward.reclaim.controls import Controls, Switch
from devward.reclaim.history import Gone
from devward.reclaim.limits import Breaker, Spent
from devward.reclaim.look import VnpuFacts
from devward.reclaim.reconciler import Reconciler
from devward.reclaim.warden import LastWord
from sim.journal_sink import DrainedJournal, JournalSink, Record
from sim.reclaim_desk import BOOT_ID, card_of, snapshot_of, vnpu_of
from sim.snapshot_desk import BROKEN, KUBELET, card_view
from sim.virtual_time import VirtualClock

Act = Callable[[], Awaitable[None]]


def view_of(facts: VnpuFacts) -> VnpuView:
    """Return a vNPU as the picture of NPUs has it."""
    return VnpuView(
        name=facts.name,
        vdev=facts.vdev,
        identity=facts.identity,
        card=facts.card,
        template=facts.template,
        vfid=(facts.vdev - 100) % 16 + 1,
        cores=facts.cores,
        node=f"/dev/vdavinci{facts.vdev}",
        use=facts.use,
        verdict=Verdict.UNKNOWN,
        reason=Reason.OK,
        text="",
        first_seen_usec=1,
        grace_start_usec=0,
        confirmations=0,
        eligible_at_usec=0,
    )


@dataclass
class World:
    """A node as a test has it, and what the rest of the daemon does."""

    cards: tuple[CardState, ...] = (card_of(0), card_of(1), card_of(2), card_of(3))
    vnpus: tuple[VnpuFacts, ...] = (vnpu_of(100),)
    unknowns: tuple[Unknown, ...] = ()
    claimants: tuple[Claimant, ...] = ()
    containers: tuple[ContainerSight, ...] = ()
    #: Groups of vNPUs, by their names.
    vgroups: dict[str, int] = field(default_factory=dict)
    is_deferred: bool = False
    has_kubelet: bool = True
    is_asked: bool = True
    has_npus: bool = True
    runtime: str | None = "containerd://1.7.2"
    report: PinReport | None = field(default_factory=PinReport)
    settings: Controls = field(default_factory=lambda: Controls(mode=ReclaimMode.ENFORCE))
    switch: Switch = Switch.ABSENT
    events: dict[int, int | None] = field(default_factory=dict)
    answer: Callable[[Expected], Aftermath] = lambda _: called(Outcome.DESTROYED, 0)
    #: What an earlier run left; None: it cannot be told.
    left: tuple[Breaker, Spent] | None = (Breaker(), Spent())
    can_keep: bool = True
    #: Some broker destroys, or may.
    is_lock_held: bool = False
    #: What happens while one of these is under way.
    during: dict[str, Act] = field(default_factory=dict)

    #: What was done, in its order.
    done: list[str] = field(default_factory=list)
    kept: list[tuple[Breaker, Spent]] = field(default_factory=list)
    asked: list[tuple[Expected, str]] = field(default_factory=list)
    told: list[tuple[int, int, str]] = field(default_factory=list)
    cycles: int = 0

    # --- the Warden ----------------------------------------------------------------------------------------------------
    def pins(self) -> PinReport | None:
        return self.report

    def sequence(self, vdev: int) -> int | None:
        return self.events.get(vdev, 0)

    def destroy_may_run(self) -> bool:
        return self.is_lock_held

    async def _step(self, what: str) -> None:
        self.done.append(what)
        if act := self.during.get(what):
            await act()

    async def read_switch(self) -> Switch:
        found = self.switch
        await self._step("switch")
        return found

    async def destroy(self, expected: Expected, runtime: str | None, request_id: str, last_word: LastWord) -> Aftermath:
        await self._step("turn")
        if (no := await last_word()) is not None:
            return replace(unasked(no.sentence), reason=no.reason)
        self.asked.append((expected, request_id))
        await self._step("destroy")
        came = self.answer(expected)
        if came.result.value == "destroyed":
            self.vnpus = tuple(one for one in self.vnpus if one.vdev != expected.vdev)
        return came

    def controls(self) -> Controls:
        return self.settings

    def changed(self) -> None:
        self.done.append("changed")

    async def load(self) -> tuple[Breaker, Spent] | None:
        await self._step("load")
        return self.left

    async def keep(self, breaker: Breaker, spent: Spent) -> bool:
        await self._step("keep")
        if self.can_keep:
            self.kept.append((breaker, spent))
        return self.can_keep

    def cycle_ended(self) -> None:
        self.cycles += 1

    def reclaimed(self, gone: Gone, phy: int) -> None:
        self.told.append((gone.was.vdev, phy, gone.request_id))


class _Warden:
    """The world, as the reconciler sees it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, "read_switch" if name == "switch" else name)


class Scene:
    """A reconciler in a world."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, directory: Path, world: World | None = None, config: ReclaimConfig | None = None
    ) -> None:
        self.world = world or World()
        self.clock = VirtualClock(loop)
        self._ids = 0
        self.sink = JournalSink(str(directory / "journal"))
        self.journal = DrainedJournal(self.sink, stderr=io.StringIO())
        self.audit = Audit(self.journal, version="1", new_id=self._new_id, monotonic=self.clock.monotonic)
        self.config = config or ReclaimConfig()
        self.reconciler = self.started()

    def started(self) -> Reconciler:
        """Return a reconciler that knows nothing yet, as after a start of the daemon."""
        self.reconciler = Reconciler(self.config, _Warden(self.world), self.audit, self.clock, self._new_id)
        return self.reconciler

    def _new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids}"

    def close(self) -> None:
        self.journal.close()
        self.sink.close()

    # --- looks ---------------------------------------------------------------------------------------------------------
    def picture(self) -> Picture:
        world = self.world
        vnpus = tuple(map(view_of, world.vnpus))
        cards = tuple(card_view(card.phy, card.die, card=card.phy) for card in world.cards)
        nodes = {one.name: Node(4711, 1, 236, one.vdev) for one in world.vnpus}
        lasting = {one.name: f"lasting-{one.identity}" for one in world.vnpus}
        return Picture(cards, vnpus, nodes=nodes, boot_id=BOOT_ID, lasting=lasting, vgroups=world.vgroups)

    def seen(self) -> Seen:
        """Return what a look gives now."""
        world, now = self.world, self.clock.monotonic()
        more = {"is_deferred": world.is_deferred, "age": 0.5, "claimants": world.claimants}
        snapshot: Snapshot = snapshot_of(now, world.cards, world.unknowns, **more)
        empty = nothing_gathered(BROKEN, now)
        kubelet = Part(now, KubeletScan(KUBELET if world.has_kubelet else None))
        picture: Picture | None = self.picture() if world.has_npus else None
        sights = {one.name: _sight(one) for one in world.vnpus} if world.has_npus else {}
        gathered: Gathered = replace(
            empty,
            parts=replace(empty.parts, kubelet=kubelet, npus=Part(now, picture)),
            sights=sights,
            containers=world.containers,
            runtime=world.runtime,
        )
        return Seen(gathered, snapshot, world.is_asked, tuple(world.unknowns))

    async def again(self) -> Seen:
        """Look anew, for a second."""
        await self.world._step("again")
        await asyncio.sleep(1)
        return self.seen()

    async def look(self, after: float = 60.0) -> None:
        """Take the next look in."""
        await asyncio.sleep(after)
        await self.reconciler.take(self.seen(), self.again)

    async def wait(self, seconds: float = 600.0) -> None:
        """Look once a minute for so long: what nobody has is eligible at the look after 600 s."""
        await self.look(0)
        for _ in range(int(seconds // 60) - 1):
            await self.look()

    # --- what came of it -------------------------------------------------------------------------------------------------
    @property
    def destroyed(self) -> list[int]:
        return [expected.vdev for expected, _ in self.world.asked]

    def records(self, kind: str, **fields: str) -> list[Record]:
        return self.sink.records(DEVWARD_EVENT=kind, **fields)

    def outcomes(self, kind: str = "vnpu-reclaim") -> list[tuple[str, str]]:
        """Return outcome and reason of every record of a kind."""
        told = [(one["DEVWARD_OUTCOME"][0], one["DEVWARD_REASON"][0]) for one in self.records(kind)]
        return [(outcome, "" if reason == NOT_GIVEN else reason) for outcome, reason in told]

    def refusals(self) -> list[str]:
        return [one["DEVWARD_REASON"][0] for one in self.records("reclaim-refused")]

    def verdict(self, vdev: int = 100) -> str:
        judgement = self.reconciler.standing.judgements.get(f"v{vdev:04d}")
        return judgement.verdict.value if judgement is not None else ""

    def confirmations(self, vdev: int = 100) -> int:
        return self.reconciler.standing.judgements[f"v{vdev:04d}"].confirmations


def _sight(facts: VnpuFacts) -> VnpuSight:
    return VnpuSight(AskedVnpu(facts.vdev, 236, facts.vdev), facts.descriptors, facts.host, Finding.CLEAN, facts.host_reasons)


def pinned(*vnpus: VnpuFacts) -> PinReport:
    """Return a report by which these are pinned."""
    return PinReport(vnpus=tuple(_pinned(one) for one in vnpus))


def _pinned(facts: VnpuFacts) -> PinnedVnpu:
    return PinnedVnpu(view_of(facts), (Pin(facts.identity, "kept", 0, 1),), Standing.MATCHED, True, Reason.OK, "")


def use(facts: VnpuFacts) -> VnpuFacts:
    """Return a vNPU in use."""
    return replace(facts, use=Use.IN_USE)
