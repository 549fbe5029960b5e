"""Things happen to the NPUs of a machine, at random, and what devward shows is held against what there is.

    npu_changes.py STATE DONE SEED CHANGES BATCH

The state of the simulator is changed CHANGES times, each change as an ioctl of the real driver would be done: it is over when the nodes are
there or gone. After every BATCH changes the bus and the command-line client are compared with the state. Prints as JSON how often what
happened, how many comparisons there were, and how long a comparison and its wait took. A difference is an AssertionError.
"""

import fcntl
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace

from npu_driver import MAJOR

from devward import names
from devward.model import Finding
from devward.npu.inventory import Picture
from devward.npu.numbering import TEMPLATE
from devward.npu.views import CardHealth, CardView, Use, VnpuView
from sim import dcmi_state
from sim.npu_world import Identities, World
from sim.patient_ctl import PATIENT_CTL

CHIPS = 6
#: Longest wait in seconds for what has to come; an emulated machine is slow.
LIMIT = 300.0


def wait(what: str, condition) -> None:
    """Wait for a condition."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"never {what}"
        time.sleep(0.01)


@dataclass
class Machine(World):
    """The world as this machine has it. Nothing happens to its first chip but what `signal` does."""

    state_file: str = ""
    done_file: str = ""
    happened: Counter = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Begin with chips alone."""
        super().__post_init__()
        with open(self.state_file, encoding="ascii") as file:
            self.state.generation = dcmi_state.load(file.read()).generation
        self.state.node = replace(self.state.node, permission="host")
        self.put()

    def change(self) -> str:
        """Let one thing happen, in the machine as well."""
        what = super().change()
        self.put()
        self.happened[what.strip("_")] += 1
        return what

    def signal(self) -> None:
        """Turn the health of the first chip, which the library is asked for first: who sees this sees all that happened before."""
        first = self.state.chips[0]
        assert first.phy == 0
        self._set_chip(first, health=1 - first.health)
        self.put()

    def be_shown(self) -> None:
        """Wait until devward shows what there is."""
        # Only then does the first chip change: what it tells is younger than every event.
        subprocess.run(["udevadm", "settle", "--timeout=280"], check=True)
        self.signal()
        with open("/sys/class/cuse/davinci0/uevent", "w", encoding="ascii") as file:
            file.write("change")
        expected = 's "healthy"' if self.state.chips[0].health == 0 else 's "unhealthy"'
        wait("shown", lambda: health_of_first() == expected)

    def put(self) -> None:
        """Let the library and the nodes be as the world is."""
        self.state.generation += 1
        with open(f"{self.state_file}.lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with open(f"{self.state_file}.new", "w", encoding="ascii") as file:
                file.write(dcmi_state.dump(self.state))
            os.rename(f"{self.state_file}.new", self.state_file)
        wait("the nodes are there", self._driver_is_done)
        # An administrator's hand: nodes that are deleted, and made again.
        found = {name for name in os.listdir("/dev") if re.fullmatch(r"v?davinci\d+", name)}
        for name in found - self.nodes.keys():
            os.unlink(f"/dev/{name}")
        for name in self.nodes.keys() - found - {"davinci_manager"}:
            os.mknod(f"/dev/{name}", 0o20600, os.makedev(MAJOR, int(name.rpartition("davinci")[2])))

    def _driver_is_done(self) -> bool:
        with open(self.done_file, encoding="ascii") as file:
            return int(file.read()) == self.state.generation

    def _some_chip(self) -> dcmi_state.Chip | None:
        others = self.state.chips[1:]
        return self.random.choice(others) if others else None

    def _disappear(self, vnpu: dcmi_state.Vnpu) -> None:
        super()._disappear(vnpu)
        # What takes its id now is another one.
        self.put()


class Shown:
    """What devward shows, asked in the three ways at the same time."""

    def __init__(self) -> None:
        """Ask."""
        call = ("busctl", "--timeout=120", "--json=short", "call", names.BUS_NAME, names.ROOT_PATH, names.MANAGER_INTERFACE, "Describe")
        commands = (call, ("busctl", "--timeout=120", "--list", "tree", names.BUS_NAME), ("python3", *PATIENT_CTL, "vnpus", "--json"))
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
        described, self.tree, listed = (process.communicate()[0] for process in running)
        self.described = json.loads(json.loads(described)["data"][0])
        self.listed = json.loads(listed)

    def picture(self) -> Picture:
        """Return the description as the daemon has it inside."""
        npus = self.described["npus"]
        return Picture(
            cards=tuple(CardView(**{**card, "health": CardHealth(card["health"])}) for card in npus["cards"]),
            vnpus=tuple(VnpuView(**{**vnpu, "use": Use(vnpu["use"])}) for vnpu in npus["vnpus"]),
            findings=tuple(Finding(**finding) for finding in self.described["findings"]),
        )

    def compare(self, world: Machine) -> None:
        """AssertionError where it is not the state of the simulator."""
        picture = self.picture()
        world.check(picture)
        paths = {line.removeprefix(f"{names.ROOT_PATH}/") for line in self.tree.splitlines()}
        shown = {path for path in paths if path.startswith(("card/", "vnpu/"))}
        card_of = {(chip.card, chip.dev): f"p{chip.phy:03d}" for chip in world.state.chips}
        vnpus = {name_of(vnpu): vnpu for vnpu in world.state.vnpus}
        assert shown == {f"card/{name}" for name in card_of.values()} | {f"vnpu/{name}" for name in vnpus}, (shown, world.state)
        listed = {row["name"]: row for row in self.listed}
        assert listed.keys() == vnpus.keys()
        for name, vnpu in vnpus.items():
            row = listed[name]
            assert row["id"] == vnpu.id
            assert row["card"] == f"{names.ROOT_PATH}/card/{card_of[vnpu.card, vnpu.dev]}"
            assert row["template"] == (vnpu.name if TEMPLATE.fullmatch(vnpu.name) else "")
            assert row["in_use"] == {0: "idle", 1: "in-use"}.get(-1 if vnpu.used is None else vnpu.used, "unknown")


def name_of(vnpu: dcmi_state.Vnpu) -> str:
    """Return the name of a vNPU's object."""
    return f"v{vnpu.id:04d}" if vnpu.id < 1000 else f"x{vnpu.id}c{vnpu.card:03d}d{vnpu.dev}"


def health_of_first() -> str:
    """Return the health that devward shows of the first chip."""
    path = names.card_path("p000")
    said = subprocess.run(
        ["busctl", "get-property", names.BUS_NAME, path, names.CARD_INTERFACE, "Health"], capture_output=True, text=True, check=False
    )
    return said.stdout.strip()


def main(state_file: str, done_file: str, seed: str, changes: str, batch: str) -> None:
    """Let things happen, and compare."""
    world = Machine(random.Random(int(seed)), chip_count=CHIPS, state_file=state_file, done_file=done_file)
    identities = Identities()
    # What is seen first of a chip is what it is from then on.
    world.be_shown()
    took: dict[str, list[float]] = {"changes": [], "shown": [], "comparison": []}
    for _ in range(0, int(changes), int(batch)):
        began = time.monotonic()
        for _ in range(int(batch)):
            world.change()
        took["changes"].append(time.monotonic() - began)
        began = time.monotonic()
        world.be_shown()
        took["shown"].append(time.monotonic() - began)
        began = time.monotonic()
        shown = Shown()
        try:
            shown.compare(world)
            identities.check(world, shown.picture())
        except AssertionError:
            print(json.dumps(shown.described["npus"]), dcmi_state.dump(world.state), world.happened, sep="\n")
            raise
        took["comparison"].append(time.monotonic() - began)
    print(json.dumps({"happened": world.happened, "took": took}))


if __name__ == "__main__":
    main(*sys.argv[1:])
