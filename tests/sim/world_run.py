#!/usr/bin/python3
"""Runs histories of the world, each from a seed, and says what happened in them.

    /usr/bin/python3 -m sim.world_run --seeds 0:1000 --steps 200 --processes 2

A history that breaks a rule is told: its seed, the shortest beginning that breaks it, what of that is needed, and the story.
"""

import argparse
import gc
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from devward.cluster.containers import FAILING, STARTING
from sim import world_cluster_events, world_daemon_events, world_host_events
from sim.world_api import Trouble
from sim.world_broker import Blind, DestroyFault, ListLie
from sim.world_checks import Broken
from sim.world_core import Core
from sim.world_daemon import Make
from sim.world_events import EVENTS
from sim.world_reconciler import Reconciled
from sim.world_scene import Event, Plan, Scene, failing_prefix

# Their events are in the table once they are imported.
assert world_cluster_events
assert world_daemon_events
assert world_host_events

#: How often an event happens, where not once.
_WEIGHTS: Final = {
    "pod-fails": 5,
    "pod-runs": 5,
    "pod-deleted": 5,
    "pod-force-deleted": 3,
    "orphan-made": 6,
    "admin-makes": 3,
    "docker-user": 2,
    "docker-adopts": 2,
    "id-reused": 2,
    "list-lies": 2,
    "destroy-fault": 3,
    "breaker-released": 6,
    "daemon-restarted": 2,
    "nudge": 4,
    "reboot": 1,
}
#: Of what besides time a history consists; each takes some of these alone, so that there is quiet too.
_MANY: Final = ("wait", "wait-long", "orphan-made", "pod-fails")
#: What ends a run of the daemon.
_ENDS: Final = "daemon-restarted"
#: A look has so many steps.
_LOOK: Final = 6
#: One history of so many ends calmly.
_CALM: Final = 5
#: What must have happened besides the events themselves.
_STEPS: Final = ("listed", "node", "lease", "pods", "checkpoint", "witnessed", "chosen", "recorded", "asked", "answered")
_ENDED: Final = ("Completed", "Error", "OOMKilled", "ContainerCannotRun", "StartError", "ContainerStatusUnknown", "Unknown")
REQUIRED: Final = (
    *(f"state:{reason}" for reason in sorted(STARTING | FAILING)),
    *(f"state:{reason}" for reason in ("-", "NeverHeardOf")),
    *(f"state:terminated:{reason}" for reason in _ENDED),
    *(f"api-outage:{trouble}" for trouble in list(Trouble)[1:]),
    *(f"list-lie:{lie}" for lie in ListLie),
    *(f"destroy-fault:{fault}" for fault in DestroyFault),
    *(f"in-flight:{step}" for step in _STEPS),
    *(f"daemon-ended:{step}" for step in _STEPS),
    *("failed-to-start", "retried", "left-behind", "card-full", "orphaned", "reclaimed", "vnpu-before-container", "privileged-flag-0"),
    *("pod-created", "allocate-in-flight"),
    *("force-deleted-runs-on", "made-again-at-boot", "node-accepted", "pause-ended", "within-a-cycle", "ended-calmly"),
)


class Shape(NamedTuple):
    """When events of a history happen."""

    #: So many steps come after those of a cycle's first look, for each vNPU that is destroyed.
    destruction: int = 10
    #: What part of the events happens within a cycle, and what part of these within its first look.
    within: float = 0.25
    looking: float = 0.6
    #: What no history is without, and how often time enough passes for a vNPU to be due.
    always: tuple[str, ...] = ()
    wait: float = 26
    wait_long: float = 1.4
    graces: tuple[float, ...] = (600.0, 240.0, 180.0, 90.0)

    def weight(self, name: str) -> float:
        """Return how often an event happens."""
        if name.startswith("wait"):
            return self.wait if name == "wait" else self.wait_long
        return _WEIGHTS.get(name, 1) * (3 if name in self.always else 1)


USUAL: Final = Shape()
#: The real reconciler waits at more places, and most that matters happens there.
OF_RECONCILER: Final = Shape(
    destruction=17,
    within=0.8,
    looking=0.15,
    always=("daemon-restarted", "destroy-fault", "kill-switch", "pause", "reload", "pod-runs", "orphan-made"),
    wait=6,
    wait_long=14,
    graces=(240.0, 90.0, 90.0, 60.0),
)
#: The steps of a destruction as the real reconciler has it.
DESTRUCTION: Final = ("chosen", *(f"again-{step}" for step in _STEPS[:6]), "switch", "keep", "turn", "asked", "answered")
REQUIRED_OF_RECONCILER: Final = (
    *(f"in-flight:{step}" for step in (*_STEPS[:6], *DESTRUCTION)),
    *("ended-while-destroying", "kept-by-last-word", "destroy-fault", "not-kept"),
    *("told-of-reclaimed", "recorded:mass-reclaim", "recorded:reclaim-refused", "reclaimed"),
)


class Result(NamedTuple):
    """What became of one history."""

    seed: int
    counts: Counter[str]
    broken: str = ""


def plan_of(seed: int, shape: Shape = USUAL) -> Plan:
    """Return what the history of a seed begins with."""
    dice = random.Random(seed * 2 + 1)
    return Plan(
        managed=dice.choice((1, 1, 2, 2, 3, 4)),
        unmanaged=dice.choice((0, 1)),
        blind=dice.choice((Blind.NONE, *Blind)),
        grace=dice.choice(shape.graces),
        ends_calmly=seed % _CALM == 0,
    )


def events_of(seed: int, steps: int, shape: Shape = USUAL) -> list[Event]:
    """Return the events of a seed's history."""
    dice = random.Random(seed * 2)
    others = [name for name in EVENTS if name not in _MANY]
    chosen = [*_MANY, *shape.always, *dice.sample(others, dice.choice((4, 12, 25, len(others))))]
    weights = [shape.weight(name) for name in chosen]
    # Those that only let time pass are as often as all others together, or rarer.
    names = dice.choices(chosen, weights, k=steps)
    return [Event(name, dice.getrandbits(30), _step(name, dice, shape)) for name in names]


def _step(name: str, dice: random.Random, shape: Shape) -> int:
    # Most cycles destroy nothing, and an end matters most in one that does.
    within, looking = (max(shape.within, 0.6), min(shape.looking, 0.2)) if name == _ENDS else (shape.within, shape.looking)
    if name.startswith("wait") or dice.random() < 1 - within:
        return 0
    return dice.randint(1, _LOOK) if dice.random() < looking else dice.randint(_LOOK + 1, _LOOK + shape.destruction)


def play(seed: int, events: Sequence[Event], plan: Plan | None = None, make: Make = Core, *, tell: bool = False) -> Scene:
    """Play a history to its end. Broken; the scene is in its `scene`."""
    scene = Scene(seed, plan or plan_of(seed), make, tell=tell)
    try:
        scene.play(events, EVENTS)
    except Broken as broken:
        broken.scene = scene  # type: ignore[attr-defined]
        raise
    finally:
        scene.close()
    return scene


def fails(seed: int, events: Sequence[Event], plan: Plan | None = None, make: Make = Core) -> Broken | None:
    """Return how a history fails; None: it does not."""
    try:
        play(seed, events, plan, make)
    except Broken as broken:
        return broken
    return None


def needed(events: Sequence[Event], still_fails: Callable[[Sequence[Event]], bool]) -> list[Event]:
    """Return as few events of a history that fails as fail alone: parts are left out, ever smaller ones."""
    kept = list(events)
    size = max(1, len(kept) // 2)
    while size:
        start = 0
        while start < len(kept):
            without = kept[:start] + kept[start + size :]
            if still_fails(without):
                kept = without
            else:
                start += size
        size //= 2
    return kept


def story(seed: int, events: Sequence[Event], plan: Plan | None = None, make: Make = Core) -> str:
    """Return a failing history as people can read it."""
    length, broken = failing_prefix(events, lambda beginning: fails(seed, beginning, plan, make))
    if broken is None:
        return "it does not fail"
    rule = broken.rule

    def still_fails(some: Sequence[Event]) -> bool:
        found = fails(seed, some, plan, make)
        return found is not None and found.rule is rule

    few = needed(events[:length], still_fails)
    scene = Scene(seed, plan or plan_of(seed), make, tell=True)
    try:
        scene.play(few, EVENTS)
    except Broken as again:
        broken = again
    finally:
        scene.close()
    lines = [f"seed {seed}: {broken}", f"plan: {scene.plan}", f"the first {length} events break it; of these {len(few)} are needed:"]
    lines += [f"    {tuple(event)}" for event in few]
    return "\n".join([*lines, *(scene.world.story or [])])


def run_seed(seed: int, steps: int, make: Make = Core, shape: Shape = USUAL) -> Result:
    """Play the history of a seed."""
    try:
        scene = play(seed, events_of(seed, steps, shape), plan_of(seed, shape), make)
    except Broken as broken:
        return Result(seed, broken.scene.world.counts, str(broken))  # type: ignore[attr-defined]
    scene.world.counts["looks"] += scene.daemon.cycles
    return Result(seed, scene.world.counts)


def _run_part(part: tuple[range, int, Make, Shape]) -> tuple[Counter[str], list[tuple[int, str]]]:
    seeds, steps, make, shape = part
    counts: Counter[str] = Counter()
    broken = []
    # Everything of a history goes at its end; looking for it meanwhile costs a tenth.
    gc.disable()
    for number, seed in enumerate(seeds):
        if number % 10 == 9:
            gc.collect()
        result = run_seed(seed, steps, make, shape)
        counts.update(result.counts)
        if result.broken:
            broken.append((seed, result.broken))
    gc.enable()
    return counts, broken


def run(
    seeds: range, steps: int, processes: int = 1, make: Make = Core, shape: Shape = USUAL
) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Play many; return how often each event happened, and the seeds that failed with how."""
    size = max(1, min(50, len(seeds) // max(1, processes)))
    parts = [(seeds[start : start + size], steps, make, shape) for start in range(0, len(seeds), size)]
    counts: Counter[str] = Counter()
    broken: list[tuple[int, str]] = []
    if processes == 1:
        found = list(map(_run_part, parts))
    else:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            found = list(pool.imap_unordered(_run_part, parts))
    for more, failed in found:
        counts.update(more)
        broken += failed
    return counts, sorted(broken)


def missing(counts: Counter[str], required: Sequence[str] = (*EVENTS, *REQUIRED)) -> list[str]:
    """Return the events that never happened."""
    return [name for name in required if not counts[name]]


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="sim.world_run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:100", help="first seed and the one after the last (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="events a history (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--stories", type=int, default=1, help="how many failures are told in full (default: %(default)s)")
    parser.add_argument("--reconciler", action="store_true", help="with the real loop, audit and destructions, and not their pure core")
    given = parser.parse_args()
    make: Make = Reconciled if given.reconciler else Core
    shape = OF_RECONCILER if given.reconciler else USUAL
    first, _, last = given.seeds.partition(":")
    seeds = range(int(first), int(last or int(first) + 1))
    began = time.monotonic()
    counts, broken = run(seeds, given.steps, given.processes, make, shape)
    took = time.monotonic() - began
    for name, count in sorted(counts.items(), key=lambda item: (item[0] not in EVENTS, item[0])):
        print(f"{count:10} {name}")
    print(f"{len(seeds)} histories of {given.steps} events in {took:.1f} s: {len(seeds) / took:.1f} a second")
    for seed, how in broken:
        print(f"BROKEN seed {seed}: {how}")
    for seed, _ in broken[: given.stories]:
        print(story(seed, events_of(seed, given.steps, shape), plan_of(seed, shape), make))
    for name in missing(counts, REQUIRED_OF_RECONCILER if given.reconciler else (*EVENTS, *REQUIRED)):
        print(f"never happened: {name}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
