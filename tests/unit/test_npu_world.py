"""Random things happen to a host with NPUs: what is published matches it after each, and no identity ever stands for two vNPUs."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from devward.npu.inventory import assess
from devward.npu.memory import NO_MEMORY
from sim.npu_world import Identities, World

STEPS = 1000


def run(seed: int, steps: int) -> World:
    world, memory, identities = World(random.Random(seed)), NO_MEMORY, Identities()
    for step in range(steps):
        # The first look is of a host in order: a first sight in doubt is none.
        if step:
            world.change()
        picture, memory = assess(world.said(), world.around(), memory, step)
        world.check(picture)
        identities.check(world, picture)
    return world


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.integers(1, 60))
def test_any_history(seed: int, steps: int) -> None:
    run(seed, steps)


def test_a_thousand_changes() -> None:
    run(5, STEPS)
