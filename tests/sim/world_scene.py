"""A world with a daemon in it, to which a list of events happens, one after the other.

An event is a name, a number from which everything about it is drawn, and when it happens: 0 now, else at that step of the daemon's next
cycle that has so many. A history is a list of them, so that any part of one is a history too. Nothing depends on anything else.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from devward.cluster.cadence import next_look
from devward.model import ReclaimMode
from devward.reclaim.confirmation import Bounds, Pace
from devward.reclaim.controls import Switch
from sim.world import World
from sim.world_broker import Blind, Broker
from sim.world_checks import Broken, Checks, Rule
from sim.world_daemon import Daemon, Make, Settings
from sim.world_truth import TEMPLATES

#: By when a kubelet is proven, and a Pod that is gone protects no more, in seconds.
_SEEN: Final = 960.0


class Event(NamedTuple):
    """One thing that happens."""

    name: str
    number: int = 0
    #: At which step of the next cycle that has so many; 0: now.
    step: int = 0


class Plan(NamedTuple):
    """What a history begins with."""

    managed: int = 4
    unmanaged: int = 1
    blind: Blind = Blind.NONE
    grace: float = 600.0
    wants_progress: bool = True
    #: The rules that are held; none: all.
    only: frozenset[Rule] = frozenset()
    #: At the end everything is well for long enough that no orphan may stay.
    ends_calmly: bool = False


class Scene:
    """The world, the daemon, and what is still to happen within its next cycle."""

    def __init__(self, seed: int, plan: Plan, make: Make, *, tell: bool = False) -> None:
        """Begin."""
        self.plan = plan
        self.world = World(seed, managed=plan.managed, unmanaged=plan.unmanaged, tell=tell)
        self.checks = Checks(self.world, plan.blind, plan.wants_progress, plan.only)
        self.broker = Broker(self.world, plan.blind, self.checks.library)
        self.settings = Settings(bounds=Bounds(normal=Pace(grace=plan.grace)))
        self.daemon = Daemon(self.world, self.broker, self.settings, self.checks, make)
        #: By what a look comes later than the interval asks. Apart from the world's dice, which the events turn.
        self.chance: Callable[[], float] = random.Random(seed).random
        self._within: list[Event] = []
        #: The daemon ends at the step where it is.
        self.ends = False
        #: It is stopped, and not killed.
        self.is_stopped = False

    def play(self, events: Iterable[Event], table: "dict[str, Callable[[Scene, int], None]]") -> None:
        """Let events happen. Broken."""
        self._table = table
        try:
            for event in events:
                if event.step:
                    self._within.append(event)
                else:
                    self.happen(event)
                    if self.ends:
                        self._begin_again()
            if self.plan.ends_calmly:
                self.end_calmly()
        except Broken:
            raise
        except Exception as error:
            # The edge of a history: whatever raised, the history must be told.
            raise Broken(Rule.RAISED, f"{type(error).__name__}: {error}") from error

    def happen(self, event: Event) -> None:
        """Let one event happen, now."""
        self.world.dice.seed(event.number)
        self._table[event.name](self, event.number)

    def wait(self, seconds: float) -> None:
        """Let time pass, and the daemon do its cycles."""
        time, boots = self.world.time, self.world.boots
        then = time.now + seconds
        while self.daemon.next_at <= then and self.world.boots == boots:
            time.pass_until(self.daemon.next_at)
            self.cycle()
        if self.world.boots == boots:
            time.pass_until(then)

    def cycle(self) -> None:
        """Let the daemon do one cycle, and what is to happen within it happen."""
        daemon, world = self.daemon, self.world
        interval = self.settings.bounds.normal.interval
        # Set first, or an event that lets time pass would begin another cycle.
        daemon.next_at = float("inf")
        began = world.time.now
        for step, where in enumerate(daemon.cycle(), 1):
            world.time.pass_until(world.time.now + daemon.pace)
            world.count(f"step:{where}")
            if world.in_flight:
                world.count(f"in-flight:{where}")
            for event in [event for event in self._within if event.step == step]:
                self._within.remove(event)
                world.count("within-a-cycle")
                world.tell(f"({where})")
                self.happen(event)
            if self.ends:
                world.count(f"daemon-ended:{where}")
                self._begin_again()
                return
        daemon.next_at = next_look(began, daemon.looked_at, interval, self.chance())

    def end_calmly(self) -> None:
        """Let everything be well, but for Pods that cannot start, and hold reclaiming to it that no orphan stays. Broken."""
        world, settings = self.world, self.settings
        self._within.clear()
        world.calm()
        self.broker.is_away = self.broker.is_stuck = False
        self.broker.list_lies.clear()
        self.broker.faults.clear()
        settings.mode, settings.paused, settings.kill_switch = ReclaimMode.ENFORCE, False, Switch.ABSENT
        settings.journal = settings.saves = True
        settings.accepted = world.api.node_uid
        self.daemon.pace = 0.05
        self.daemon.start()
        pace = settings.bounds.normal
        seen = world.time.now + _SEEN
        self.wait(_SEEN)
        for _ in range(int((pace.grace + 10 * pace.interval) // pace.interval)):
            if self.daemon.reclaimer.is_latched:
                self.checks.released()
                self.daemon.reclaimer.release()
            self.wait(pace.interval + 1.0)
        latest = world.time.now - pace.grace - 9 * pace.interval
        for vnpu in world.hardware.vnpus.values():
            is_ours = world.hardware.cards[vnpu.phy].managed and vnpu.template in TEMPLATES and not self.checks.is_pinned(vnpu)
            since = max(vnpu.abandoned_at or 0.0, seen, self.checks.spent_at, world.seen_making.get(vnpu.phy, 0.0))
            if vnpu.abandoned_at is not None and is_ours and since < latest:
                self.checks.broken(Rule.LATE, f"vNPU {vnpu.vdev} ({vnpu.serial}), nobody's since {vnpu.abandoned_at:.0f}")
        world.count("ended-calmly")

    def _begin_again(self) -> None:
        if self.is_stopped:
            for where in self.daemon.stop():
                self.world.time.pass_until(self.world.time.now + self.daemon.pace)
                self.world.count(f"stopping:{where}")
        self.ends = self.is_stopped = False
        self.daemon.start()

    def close(self) -> None:
        """Let go of everything."""
        self.daemon.close()


def failing_prefix(events: Sequence[Event], fails: Callable[[Sequence[Event]], Broken | None]) -> tuple[int, Broken | None]:
    """Return the length of the shortest beginning that fails, and how."""
    low, high = 0, len(events)
    found = fails(events)
    if found is None:
        return high, None
    while low < high:
        middle = (low + high) // 2
        broken = fails(events[:middle])
        if broken is not None:
            high, found = middle, broken
        else:
            low = middle + 1
    return high, found
