"""A host with NPUs to which things happen, and what devward has to make of it: an account of its own, apart from the code under test.

The state is that of a DCMI simulator, so that it can be written out for a real broker, or told to the pure functions at once.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from devward.npu.facts import Aspect, Chip, Inventory, Mode, Problem, Vnpu
from devward.npu.host import HostNode, Surroundings
from devward.npu.inventory import Picture
from devward.npu.numbering import TEMPLATE, vfid_of
from devward.npu.views import CardHealth, Use
from devward.npu.vnpu_cfg import ABSENT
from devward.reasons import Reason
from sim import dcmi_state
from sim.dcmi_families import FAMILIES
from sim.npu_host import BOOT, MAJOR, die

CHIPS: Final = 4
NO_DIE: Final = "00000000-00000000-00000000-00000000-00000000"
TEMPLATES: Final = ("vir05_1c_16g", "vir10_3c_32g")
Place = tuple[int, int]

#: What is wrong with a chip, or with a vNPU, and how that must be called.
CHIP_WRONGS: Final = {
    "unhealthy": Reason.NPU_UNHEALTHY,
    "health unknown": Reason.NPU_HEALTH_UNKNOWN,
    "no die": Reason.NPU_DIE_UNKNOWN,
    "swapped": Reason.NPU_DIE_CHANGED,
    "foreign": Reason.NPU_WINDOW,
    "node": Reason.NPU_NODE_MISSING,
}
VNPU_WRONGS: Final = {
    "template": Reason.VNPU_TEMPLATE_UNKNOWN,
    "use": Reason.VNPU_USE_UNKNOWN,
    "node": Reason.NPU_NODE_MISSING,
}


@dataclass
class World:
    """The state, the nodes, and for each vNPU which one of all that ever were it is."""

    random: random.Random
    state: dcmi_state.State = field(default_factory=dcmi_state.State)
    #: Inode and time of change by name.
    nodes: dict[str, int] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    incarnations: dict[tuple[Place, int], int] = field(default_factory=dict)
    removed: dict[Place, dcmi_state.Chip] = field(default_factory=dict)
    serial: int = 0
    chip_count: int = CHIPS

    def __post_init__(self) -> None:
        kind = FAMILIES["910B3"]
        self.state.node = dcmi_state.Node(supports_recover=0)
        for phy in range(self.chip_count):
            chip = dcmi_state.Chip(card=phy, dev=0, phy=phy, logic=phy, family="910B3", name=kind.chip_name, cores=kind.cores)
            self.state.chips.append(replace(chip, slots=kind.slots, vdie=die(phy + 1), ndie=die(phy + 1), memory=kind.memory))
            self._make_node(f"davinci{phy}")
        self._make_node("davinci_manager")

    # --- what happens --------------------------------------------------------------------------------------------------
    def change(self) -> str:
        """Let one thing happen and say what."""
        changes: list[Callable[[], None]] = [self._create, self._create, self._create, self._destroy, self._recreate, self._use, self._use]
        changes += [self._health, self._die, self._swap, self._card, self._foreign, self._chip_node, self._vnpu_node, self._rename]
        happening = self.random.choice(changes)
        happening()
        return happening.__name__

    def _some_chip(self) -> dcmi_state.Chip | None:
        return self.random.choice(self.state.chips) if self.state.chips else None

    def _some_vnpu(self) -> dcmi_state.Vnpu | None:
        return self.random.choice(self.state.vnpus) if self.state.vnpus else None

    def _set_chip(self, chip: dcmi_state.Chip, **fields: object) -> None:
        self.state.chips[self.state.chips.index(chip)] = replace(chip, **fields)  # type: ignore[arg-type]

    def _set_vnpu(self, vnpu: dcmi_state.Vnpu, **fields: object) -> None:
        self.state.vnpus[self.state.vnpus.index(vnpu)] = replace(vnpu, **fields)  # type: ignore[arg-type]

    def _make_node(self, name: str) -> None:
        self.serial += 1
        self.nodes[name] = self.serial
        self.sequences[name] = self.sequences.get(name, 0) + 1

    def _remove_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.sequences[name] = self.sequences.get(name, 0) + 1

    def _appear(self, chip: dcmi_state.Chip, vdev: int, template: str) -> None:
        self.state.vnpus.append(dcmi_state.Vnpu(chip.card, chip.dev, vdev, template, aic=5))
        self._make_node(f"vdavinci{vdev}")
        self.serial += 1
        self.incarnations[(chip.card, chip.dev), vdev] = self.serial

    def _disappear(self, vnpu: dcmi_state.Vnpu) -> None:
        self.state.vnpus.remove(vnpu)
        del self.incarnations[(vnpu.card, vnpu.dev), vnpu.id]
        if all(other.id != vnpu.id for other in self.state.vnpus):
            self._remove_node(f"vdavinci{vnpu.id}")

    def _create(self) -> None:
        chip = self._some_chip()
        if chip is None:
            return
        taken = {vnpu.id for vnpu in self.state.vnpus}
        free = [vdev for vdev in range(chip.first_vdev, chip.first_vdev + 8) if vdev not in taken]
        if free:
            self._appear(chip, free[0], self.random.choice(TEMPLATES))

    def _destroy(self) -> None:
        vnpu = self._some_vnpu()
        if vnpu is not None:
            self._disappear(vnpu)

    def _recreate(self) -> None:
        """Another one takes the id of one that goes, before anybody looks."""
        vnpu = self._some_vnpu()
        if vnpu is not None:
            self._disappear(vnpu)
            self._appear(self.state.chip(vnpu.card, vnpu.dev), vnpu.id, vnpu.name)

    def _use(self) -> None:
        vnpu = self._some_vnpu()
        if vnpu is not None:
            self._set_vnpu(vnpu, used=self.random.choice([0, 0, 1, 1, 7, None]))

    def _rename(self) -> None:
        """The library gives a template that is none, and the right one again."""
        vnpu = self._some_vnpu()
        if vnpu is not None:
            wrong = TEMPLATE.fullmatch(vnpu.name) is not None
            self._set_vnpu(vnpu, name=f"\x1b{vnpu.name}"[:15] if wrong else next(name for name in TEMPLATES if vnpu.name[1:] == name[:14]))

    def _health(self) -> None:
        chip = self._some_chip()
        if chip is not None:
            self._set_chip(chip, health=self.random.choice([0, 0, 0, 1, 3, None]))

    def _die(self) -> None:
        chip = self._some_chip()
        if chip is not None and not self._is_swapped(chip):
            self._set_chip(chip, vdie=NO_DIE if chip.vdie != NO_DIE else die(chip.phy + 1))

    def _swap(self) -> None:
        """Another card takes the place, without the vNPUs of the first; or the first one comes back."""
        chip = self._some_chip()
        if chip is not None and chip.vdie != NO_DIE:
            for vnpu in [vnpu for vnpu in self.state.vnpus if (vnpu.card, vnpu.dev) == (chip.card, chip.dev)]:
                self._disappear(vnpu)
            self._set_chip(chip, vdie=die(chip.phy + 1) if self._is_swapped(chip) else die(chip.phy + 91))

    def _card(self) -> None:
        """A card goes, or comes back."""
        if self.removed and self.random.random() < 0.7:
            place = self.random.choice(list(self.removed))
            chip = self.removed.pop(place)
            self.state.chips.append(chip)
            self._make_node(f"davinci{chip.phy}")
            return
        chosen = self._some_chip()
        if chosen is not None:
            for vnpu in [vnpu for vnpu in self.state.vnpus if (vnpu.card, vnpu.dev) == (chosen.card, chosen.dev)]:
                self._disappear(vnpu)
            self.state.chips.remove(chosen)
            self.removed[(chosen.card, chosen.dev)] = chosen
            self._remove_node(f"davinci{chosen.phy}")

    def _foreign(self) -> None:
        """A chip lists a vNPU whose id is another's, or stops that."""
        foreign = [vnpu for vnpu in self.state.vnpus if vnpu.id >= 1000]
        if foreign:
            self._disappear(self.random.choice(foreign))
            return
        chip = self._some_chip()
        if chip is not None:
            self._appear(chip, self.random.choice([1000, 1001]), TEMPLATES[0])

    def _chip_node(self) -> None:
        chip = self._some_chip()
        if chip is not None:
            name = f"davinci{chip.phy}"
            (self._remove_node if name in self.nodes else self._make_node)(name)

    def _vnpu_node(self) -> None:
        """A node goes, or comes: another vNPU may be behind it from then on."""
        vnpu = self._some_vnpu()
        if vnpu is not None:
            name = f"vdavinci{vnpu.id}"
            (self._remove_node if name in self.nodes else self._make_node)(name)
            self.serial += 1
            self.incarnations[(vnpu.card, vnpu.dev), vnpu.id] = self.serial

    # --- what devward is told ------------------------------------------------------------------------------------------
    def said(self) -> Inventory:
        """Return what the broker says of it."""
        chips = tuple(self._chip(chip) for chip in sorted(self.state.chips, key=lambda chip: (chip.card, chip.dev)))
        return Inventory(boot_id=BOOT, library="/libdcmi.so", dcmi_version="1", mode=Mode.DOCKER, recover=None, chips=chips)

    def _chip(self, chip: dcmi_state.Chip) -> Chip:
        known = chip.vdie if chip.vdie != NO_DIE else None
        vnpus = tuple(self._vnpu(vnpu) for vnpu in self.state.vnpus_of(chip))
        problems = (Problem(Aspect.DIE, None),) if known is None else ()
        return Chip(
            chip.card, chip.dev, chip.logic, chip.phy, known, chip.health, "Ascend", chip.name, "V1", None, chip.cores, vnpus, problems
        )

    @staticmethod
    def _vnpu(vnpu: dcmi_state.Vnpu) -> Vnpu:
        template = vnpu.name if TEMPLATE.fullmatch(vnpu.name) else None
        in_use = {0: False, 1: True}.get(-1 if vnpu.used is None else vnpu.used)
        return Vnpu(vnpu.id, vfid_of(vnpu.id), template, in_use, vnpu.container, vnpu.aic)

    def around(self) -> Surroundings:
        """Return what the host shows of it."""
        nodes = {}
        for name, inode in self.nodes.items():
            digits = name.lstrip("v").removeprefix("davinci").removeprefix("_manager")
            minor = int(digits) if digits else 0
            nodes[name] = HostNode(name, inode, inode, is_character_device=True, covered=False, major=MAJOR, minor=minor, kernel_name=name)
        return Surroundings(nodes, ABSENT, sequences=dict(self.sequences))

    # --- what devward must make of it ----------------------------------------------------------------------------------
    def _is_swapped(self, chip: dcmi_state.Chip) -> bool:
        return chip.vdie not in {NO_DIE, die(chip.phy + 1)}

    def chip_wrongs(self, chip: dcmi_state.Chip) -> set[str]:
        """Return what is wrong with a chip."""
        wrongs = {
            "unhealthy": chip.health not in {0, None},
            "health unknown": chip.health is None,
            "no die": chip.vdie == NO_DIE,
            "swapped": self._is_swapped(chip),
            "foreign": any(vnpu.id >= 1000 for vnpu in self.state.vnpus_of(chip)),
            "node": f"davinci{chip.phy}" not in self.nodes,
        }
        return {name for name, is_so in wrongs.items() if is_so}

    def vnpu_wrongs(self, vnpu: dcmi_state.Vnpu) -> set[str]:
        """Return what is wrong with a vNPU alone."""
        wrongs = {
            "template": TEMPLATE.fullmatch(vnpu.name) is None,
            "use": vnpu.used not in {0, 1},
            "node": f"vdavinci{vnpu.id}" not in self.nodes,
        }
        return {name for name, is_so in wrongs.items() if is_so and vnpu.id < 1000}

    def check(self, picture: Picture) -> None:
        """AssertionError unless a picture shows exactly what there is, and vouches for nothing that is in doubt."""
        cards = {(view.card, view.device): view for view in picture.cards}
        assert set(cards) == {(chip.card, chip.dev) for chip in self.state.chips}
        vnpus = {(view.card, view.vdev): view for view in picture.vnpus}
        assert len(vnpus) == len(picture.vnpus) == len(self.state.vnpus)
        for chip in self.state.chips:
            view = cards[chip.card, chip.dev]
            wrongs = self.chip_wrongs(chip)
            assert (view.name, view.phy_id, view.die_id) == (f"p{chip.phy:03d}", chip.phy, "" if chip.vdie == NO_DIE else chip.vdie)
            assert view.reason in ({CHIP_WRONGS[wrong] for wrong in wrongs} or {Reason.OK}), (view, wrongs)
            assert view.health is {None: CardHealth.UNKNOWN, 0: CardHealth.HEALTHY}.get(chip.health, CardHealth.UNHEALTHY)
            assert view.node == ("" if "node" in wrongs else f"/dev/davinci{chip.phy}")
            for vnpu in self.state.vnpus_of(chip):
                shown = vnpus[view.name, vnpu.id]
                own = {VNPU_WRONGS[wrong] for wrong in self.vnpu_wrongs(vnpu)}
                assert shown.reason in (own or {view.reason}), (shown, own, view)
                assert shown.name == (f"v{vnpu.id:04d}" if vnpu.id < 1000 else f"x{vnpu.id}c{chip.card:03d}d0")
                assert shown.use is {0: Use.IDLE, 1: Use.IN_USE}.get(-1 if vnpu.used is None else vnpu.used, Use.UNKNOWN)
                assert shown.template == (vnpu.name if TEMPLATE.fullmatch(vnpu.name) else "")
        codes = {finding.code for finding in picture.findings}
        for chip in self.state.chips:
            assert {CHIP_WRONGS[wrong] for wrong in self.chip_wrongs(chip) - {"node"}} <= codes
        for vnpu in self.state.vnpus:
            assert {VNPU_WRONGS[wrong] for wrong in self.vnpu_wrongs(vnpu) - {"node", *(["use"] if self._hides_use(vnpu) else [])}} <= codes

    def _hides_use(self, vnpu: dcmi_state.Vnpu) -> bool:
        """Tell whether something weightier is wrong with a vNPU than that its use is not known."""
        return self.vnpu_wrongs(vnpu) != {"use"}


class Identities:
    """Holds devward to it that an identity names one vNPU of all that ever were, as long as that one is there."""

    def __init__(self) -> None:
        self._by_incarnation: dict[int, tuple[str, int]] = {}
        self._owner: dict[str, int] = {}

    def check(self, world: World, picture: Picture) -> None:
        """AssertionError where an identity changed without reason, or stands for two."""
        cards = {view.name: (view.card, view.device) for view in picture.cards}
        for view in picture.vnpus:
            incarnation = world.incarnations[cards[view.card], view.vdev]
            if view.identity.startswith("-/") or "/-/" in view.identity:
                # Die or template was never known of this one: it becomes comparable when it is.
                assert incarnation not in self._by_incarnation
                continue
            known = self._by_incarnation.setdefault(incarnation, (view.identity, view.first_seen_usec))
            assert known == (view.identity, view.first_seen_usec), view
            assert self._owner.setdefault(view.identity, incarnation) == incarnation, view
