"""Random things happen to a simulated library behind a real broker: what is published matches after each, and the lies are all told."""

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from devward.clock import Clock
from devward.npu.client import BrokerClient
from devward.npu.facts import Inventory
from devward.npu.host import Surroundings
from devward.npu.inventory import Picture, Unavailable, assess
from devward.npu.memory import NO_MEMORY
from devward.npu.nodes import read_nodes
from devward.npu.vnpu_cfg import ABSENT
from devward.reasons import Reason
from sim.dcmi_broker import BrokerHost
from sim.dcmi_simulator import DcmiSimulator, build_library
from sim.npu_host import MAJOR
from sim.npu_world import Identities, World

STEPS = 1000


class Bench:
    """A host, the world that happens to it, and what devward makes of it."""

    def __init__(self, host: BrokerHost, simulator: DcmiSimulator, seed: int) -> None:
        self.host = host
        self.simulator = simulator
        self.world = World(random.Random(seed))
        self.sysfs = host.directory / "sys"
        (self.sysfs / "dev" / "char").mkdir(parents=True)
        self.client = BrokerClient(Clock(), self._kill, socket_path=str(host.socket_path), lock_file=str(host.lock))
        self.memory = NO_MEMORY
        self.now = 0
        self._made: dict[str, int] = {}

    async def _kill(self) -> str:
        raise AssertionError("an honest broker is not ended")

    def apply(self) -> None:
        """Write the world out: the library's state, the nodes and what the kernel knows of them."""
        with self.simulator.edit() as state:
            state.chips, state.vnpus = list(self.world.state.chips), list(self.world.state.vnpus)
        for name in set(self._made) - set(self.world.nodes):
            self._path(name).unlink()
            del self._made[name]
        for name, serial in self.world.nodes.items():
            if self._made.get(name) == serial:
                continue
            self._path(name).unlink(missing_ok=True)
            minor = int("".join(filter(str.isdigit, name)) or 0)
            major = MAJOR + ("manager" in name)
            os.mknod(self._path(name), 0o20600, os.makedev(major, minor))
            link = self.sysfs / "dev" / "char" / f"{major}:{minor}"
            link.unlink(missing_ok=True)
            link.symlink_to(f"../../devices/virtual/{name}")
            self._made[name] = serial

    def _path(self, name: str) -> Path:
        return self.host.devices / name

    async def look(self) -> tuple[Picture, Inventory | Unavailable]:
        said = await self.client.list()
        nodes = read_nodes(str(self.host.devices), str(self.sysfs))
        surroundings = Surroundings(nodes, ABSENT, sequences=dict(self.world.sequences))
        self.now += 1
        picture, self.memory = assess(said, surroundings, self.memory, self.now)
        return picture, said


@pytest.fixture(name="library", scope="module")
def _library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("dcmi"))


@pytest.fixture(name="bench")
def _bench(library: Path) -> Iterator[Bench]:
    if os.geteuid() != 0:
        pytest.skip("needs root: the broker serves root alone")
    with BrokerHost() as host, DcmiSimulator(host.directory / "node", library) as simulator:
        simulator.set_node(supports_recover=0)
        simulator.install(host.library)
        host.start(simulator.environment)
        yield Bench(host, simulator, seed=11)


def test_random_changes(bench: Bench) -> None:
    async def main() -> None:
        identities = Identities()
        for step in range(STEPS):
            if step:
                bench.world.change()
            bench.apply()
            picture, said = await bench.look()
            assert isinstance(said, Inventory), said
            bench.world.check(picture)
            identities.check(bench.world, picture)

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(12))
def test_a_library_that_lies_at_random_gives_a_picture_and_vouches_for_nothing_that_it_lied_about(bench: Bench, seed: int) -> None:
    async def main() -> None:
        for _ in range(12):
            bench.world._create()
        bench.apply()
        honest, _ = await bench.look()
        known = {view.name: view for view in honest.vnpus}
        chosen = random.Random(seed)
        functions = ["dcmi_get_device_info", "dcmi_get_device_die_v2", "dcmi_get_device_health", "dcmi_get_card_list", "*"]
        bench.simulator.fault(
            functions[seed % len(functions)],
            chosen.choice(["garbage", "code", "half", "long"]),
            value=-8005 if seed % 2 else seed,
            skip=chosen.randrange(3),
        )
        lied, said = await bench.look()
        for view in lied.vnpus:
            if view.reason is Reason.OK:
                # What is vouched for is what really is.
                assert view == known[view.name]
        if {view.name for view in lied.vnpus if view.reason is Reason.OK} != set(known):
            assert lied.findings, said
        bench.simulator.clear_faults()
        await asyncio.sleep(bench.client.pause)
        again, _ = await bench.look()
        assert {view.name: view.reason for view in again.vnpus} == dict.fromkeys(known, Reason.OK)

    asyncio.run(main())
