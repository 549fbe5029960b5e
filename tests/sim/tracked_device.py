"""A device with a tracker, on a clock that the tests turn: what a look sees and what a probe finds is up to the test."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from devward.devices.health import DeviceState, IdentityVerdict, NodeFacts, ProbeVerdict
from devward.devices.identity import IdentifiedNode
from devward.devices.tracker import PROBE_BUDGET, DeviceTracker, Intervals
from devward.model import DeviceKind, Health, Identity, Trigger
from devward.reasons import Reason
from sim.virtual_time import VirtualClock, VirtualTimeLoop, run_virtual

FACTS = NodeFacts(device=5, inode=100, number="10:232", mode=0o660, uid=0, gid=103, links=1, acl=())
GOOD = ProbeVerdict(completed=True, healthy=True, reason=Reason.OK, detail="", duration_usec=1000)
BUSY = ProbeVerdict(completed=True, healthy=False, reason=Reason.HYPERVISOR_BUSY, detail="KVM_CREATE_VM: EBUSY", duration_usec=1000)
UNFINISHED = ProbeVerdict(completed=False, healthy=False, reason=Reason.PROBE_INCONCLUSIVE, detail="open: EMFILE", duration_usec=1000)
INTERVALS = Intervals(probe=300.0, retry=30.0)
NO_DESCRIPTOR = IdentityVerdict(Identity.UNKNOWN, Reason.PROBE_INCONCLUSIVE, "Too many open files")
GONE = IdentityVerdict(Identity.MISSING, Reason.DEVICE_MISSING)


def valid(facts: NodeFacts) -> IdentityVerdict:
    return IdentityVerdict(Identity.VALID, Reason.OK, "", facts)


class Node(IdentifiedNode):
    """Counts how many are open."""

    def __init__(self, world: "World", verdict: IdentityVerdict) -> None:
        super().__init__(verdict)
        self._world = world
        world.nodes_open += 1

    def close(self) -> None:
        self._world.nodes_open -= 1


class World:
    """A device with a tracker: tests change `verdict` (what a look sees) and `answer` (what a probe finds)."""

    def __init__(self, loop: VirtualTimeLoop, intervals: Intervals = INTERVALS) -> None:
        self.loop = loop
        self.verdict = valid(FACTS)
        self.answer = GOOD
        #: Seconds that a probe takes.
        self.duration = 0.001
        #: Called with the number of the probe while it is under way, halfway through.
        self.during: Callable[[int], None] = lambda number: None
        #: Raised by a probe instead of an answer.
        self.failure: Exception | None = None
        self.deaf_to_cancellation = False
        self.looks = 0
        self.nodes_open = 0
        self.starts: list[float] = []
        self.under_way = 0
        self.cancelled = 0
        self.closed = 0
        self.changes: list[tuple[DeviceState, DeviceState, Trigger]] = []
        self.on_change: Callable[[DeviceState, DeviceState, Trigger], None] = lambda before, after, trigger: None
        self.tracker = DeviceTracker(
            DeviceKind.KVM,
            "/dev/kvm",
            identify=self._identify,
            prober=self,
            clock=VirtualClock(loop),
            intervals=intervals,
            on_change=self._changed,
        )

    @property
    def state(self) -> DeviceState:
        return self.tracker.state

    @property
    def healths(self) -> list[Health]:
        """Each health that was ever shown, repetitions left out."""
        shown = [after.health for _, after, _ in self.changes]
        return [health for before, health in zip([None, *shown], shown, strict=False) if health is not before]

    async def begin(self) -> None:
        """Bring the device to its first verdict and let the dust settle."""
        self.tracker.look(Trigger.STARTUP)
        await self.tracker.check(Trigger.STARTUP)
        await asyncio.sleep(10)
        self.starts.clear()
        self.changes.clear()
        self.looks = 0

    def set_facts(self, **changes: object) -> None:
        """Change the node's attributes, without a sign of it."""
        facts = self.verdict.facts
        assert facts is not None
        self.verdict = valid(replace(facts, **changes))  # type: ignore[arg-type]  # the caller's business

    def touch(self, **changes: object) -> None:
        """Change the node's attributes as chmod, chown or setfacl do: inotify tells."""
        self.set_facts(**changes)
        self.tracker.look(Trigger.INOTIFY)

    def replace_node(self) -> None:
        """Put another node into the old one's place, without a sign of it."""
        assert self.verdict.facts is not None
        self.set_facts(inode=self.verdict.facts.inode + 1)

    def _identify(self) -> IdentifiedNode:
        self.looks += 1
        return Node(self, self.verdict)

    def _changed(self, before: DeviceState, after: DeviceState, trigger: Trigger) -> None:
        self.changes.append((before, after, trigger))
        self.on_change(before, after, trigger)

    async def probe(self, fd: int, *, budget: float = PROBE_BUDGET) -> ProbeVerdict:
        if self.closed:
            raise RuntimeError("closed")
        assert not self.under_way, "two probes at once"
        assert self.nodes_open == 1, "the node that was identified is to stay open"
        assert budget == PROBE_BUDGET
        self.starts.append(self.loop.now)
        self.under_way += 1
        answer = self.answer
        try:
            await asyncio.sleep(self.duration / 2)
            self.during(len(self.starts))
            await asyncio.sleep(self.duration / 2)
        except asyncio.CancelledError:
            self.cancelled += 1
            if not self.deaf_to_cancellation:
                raise
        finally:
            self.under_way -= 1
        if self.failure is not None:
            raise self.failure
        return answer

    def close(self) -> None:
        self.closed += 1


def play(scene: Callable[[World], Coroutine[Any, Any, None]], intervals: Intervals = INTERVALS) -> None:
    """Run a scene, end the tracker, and see that nothing of it is left."""

    async def main(loop: VirtualTimeLoop) -> None:
        world = World(loop, intervals)
        await scene(world)
        await world.tracker.close()
        looks, starts = world.looks, len(world.starts)
        assert loop.timers == 0
        await asyncio.sleep(3600)
        assert (world.looks, len(world.starts)) == (looks, starts)
        assert world.nodes_open == 0
        assert world.closed == 1

    run_virtual(main)


def gaps(moments: list[float]) -> list[float]:
    return [round(later - earlier, 2) for earlier, later in itertools.pairwise(moments)]
