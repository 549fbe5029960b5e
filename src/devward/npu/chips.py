"""Whether one NPU is what it claims to be. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from devward.model import Identity
from devward.npu.codes import DcmiCode, sentence
from devward.npu.complaints import Fault
from devward.npu.facts import Aspect, Chip, Inventory, Problem
from devward.npu.host import Surroundings
from devward.npu.memory import Memory, Place
from devward.npu.numbering import window
from devward.reasons import Reason

#: Logic and physical ids that the vendor's tools take.
ID_LIMIT: Final = 256
#: What the library answers of a chip that is being reset or has just begun.
_NOT_READY: Final = frozenset({DcmiCode.NOT_READY, DcmiCode.UPGRADING, DcmiCode.RESET_FAILED, DcmiCode.RESET_ABORTED})
#: The library has no such call, or the driver no such thing: that is no lie.
_NOT_OFFERED: Final = frozenset({DcmiCode.SYMBOL_MISSING, DcmiCode.NOT_SUPPORTED})


@dataclass(frozen=True, slots=True)
class Host:
    """What all chips of an inventory say together."""

    phys: Mapping[int, int]
    dies: Mapping[str, int]
    #: The chips that list a vNPU.
    listed_by: Mapping[int, frozenset[Place]]
    #: The cards of which some chips may not be listed; None: cards may be missing as a whole.
    doubtful: frozenset[int] | None
    #: Nothing is missing: what is not listed does not exist.
    is_complete: bool

    @classmethod
    def of(cls, inventory: Inventory) -> "Host":
        """Count who claims what."""
        listed: dict[int, set[Place]] = {}
        for chip in inventory.chips:
            for vnpu in chip.vnpus or ():
                listed.setdefault(vnpu.vdev, set()).add((chip.card, chip.device))
        problems = [problem for problem in inventory.problems if problem.aspect in {Aspect.CARDS, Aspect.CARD}]
        cards = {problem.card for problem in problems if problem.card is not None}
        return cls(
            phys=Counter(chip.phy for chip in inventory.chips if chip.phy is not None),
            dies=Counter(chip.die for chip in inventory.chips if chip.die is not None),
            listed_by={vdev: frozenset(places) for vdev, places in listed.items()},
            doubtful=None if any(problem.card is None for problem in problems) else frozenset(cards),
            is_complete=not problems
            and all(chip.phy is not None and (chip.vnpus is not None or chip.has_no_vnpus) for chip in inventory.chips),
        )

    def is_doubtful(self, place: Place) -> bool:
        """Whether the list may lack a chip of that place, or have one too many."""
        return self.doubtful is None or place[0] in self.doubtful

    def own_phy(self, chip: Chip) -> int | None:
        """Return the physical id of a chip that no other one claims."""
        return chip.phy if chip.phy is not None and chip.phy < ID_LIMIT and self.phys[chip.phy] == 1 else None

    def is_own(self, chip: Chip, vdev: int) -> bool:
        """Whether a vNPU is this chip's, by its number, and no other chip lists it."""
        return len(self.listed_by[vdev]) == 1 and (phy := self.own_phy(chip)) is not None and vdev in window(phy)


#: It is established that this is not the NPU, or not the one of the node.
_OTHER: Final = frozenset({Reason.NPU_ID_SHARED, Reason.NPU_DIE_SHARED, Reason.NPU_DIE_CHANGED, Reason.NPU_NODE_MISMATCH})
#: What says nothing of which NPU this is.
_OTHERWISE_ODD: Final = frozenset({Reason.NPU_HEALTH_UNKNOWN, Reason.NPU_UNHEALTHY, Reason.NPU_VNPUS_UNKNOWN})


def identity_of(found: Iterable[Fault]) -> Identity:
    """Tell whether a chip and its node are what they claim to be, by all that was found of them."""
    reasons = {fault.reason for fault in found} - _OTHERWISE_ODD
    if reasons & _OTHER:
        return Identity.INVALID
    if Reason.NPU_NODE_MISSING in reasons:
        return Identity.MISSING
    return Identity.UNKNOWN if reasons else Identity.VALID


def faults(chip: Chip, host: Host, memory: Memory, surroundings: Surroundings) -> list[Fault]:
    """Return all that keeps a chip from being vouched for, the weightiest first."""
    return list(_faults(chip, host, memory, surroundings))


def _faults(chip: Chip, host: Host, memory: Memory, surroundings: Surroundings) -> Iterator[Fault]:
    if host.is_doubtful((chip.card, chip.device)):
        yield Fault(Reason.NPU_LIST_INCOMPLETE)
    yield from _answer_faults(chip)
    phy = host.own_phy(chip)
    if phy is None:
        known = chip.phy is not None and chip.phy < ID_LIMIT
        yield Fault(Reason.NPU_ID_SHARED, f"physical id {chip.phy}") if known else Fault(Reason.NPU_ID_UNKNOWN, _why(chip, Aspect.PHY))
    yield from _die_faults(chip, phy, host, memory)
    if chip.health is None:
        yield Fault(Reason.NPU_HEALTH_UNKNOWN, _why(chip, Aspect.HEALTH))
    elif chip.health != 0:
        yield Fault(Reason.NPU_UNHEALTHY, f"health {chip.health}")
    yield from _list_faults(chip, phy)
    if phy is not None:
        fault = node_fault(surroundings, f"davinci{phy}", phy)
        if fault is not None:
            yield fault


def _answer_faults(chip: Chip) -> Iterator[Fault]:
    resetting = next((problem for problem in chip.problems if problem.code in _NOT_READY), None)
    if resetting is not None:
        yield Fault(Reason.NPU_NOT_READY, said_of(resetting))
    if any(problem.aspect is Aspect.TYPE for problem in chip.problems):
        yield Fault(Reason.NPU_UNREADABLE, _why(chip, Aspect.TYPE))


def _die_faults(chip: Chip, phy: int | None, host: Host, memory: Memory) -> Iterator[Fault]:
    if chip.die is None:
        yield Fault(Reason.NPU_DIE_UNKNOWN, _why(chip, Aspect.DIE))
        return
    if host.dies[chip.die] > 1:
        yield Fault(Reason.NPU_DIE_SHARED, chip.die)
    if phy is None:
        return
    first, home = memory.dies.get(phy, chip.die), memory.homes.get(chip.die, phy)
    if first != chip.die:
        yield Fault(Reason.NPU_DIE_CHANGED, f"physical id {phy} had die {first}, and has {chip.die}")
    elif home != phy:
        yield Fault(Reason.NPU_DIE_CHANGED, f"die {chip.die} had physical id {home}, and has {phy}")


def _list_faults(chip: Chip, phy: int | None) -> Iterator[Fault]:
    if chip.vnpus is None:
        if not chip.has_no_vnpus:
            yield Fault(Reason.NPU_VNPUS_UNKNOWN, _why(chip, Aspect.VNPUS))
        return
    vdevs = [vnpu.vdev for vnpu in chip.vnpus]
    twice = [vdev for vdev, count in Counter(vdevs).items() if count > 1]
    if twice:
        yield Fault(Reason.NPU_VNPUS_UNKNOWN, f"vNPU {twice[0]} is listed twice")
    foreign = sorted(vdev for vdev in set(vdevs) if phy is not None and vdev not in window(phy))
    if foreign:
        yield Fault(Reason.NPU_WINDOW, f"vNPU {', '.join(map(str, foreign[:8]))}, physical id {phy}")


def node_fault(surroundings: Surroundings, name: str, minor: int) -> Fault | None:
    """Return what is wrong with a node that must be there."""
    if surroundings.nodes is None:
        return Fault(Reason.NPU_NODES_UNREADABLE, surroundings.problem)
    node = surroundings.nodes.get(name)
    if node is None:
        return Fault(Reason.NPU_NODE_MISSING, f"/dev/{name}")
    if not node.is_character_device:
        return Fault(Reason.NPU_NODE_MISMATCH, f"/dev/{name} is no character device")
    if node.covered:
        return Fault(Reason.NPU_NODE_MISMATCH, f"something is mounted over /dev/{name}")
    if node.kernel_name is None:
        return Fault(Reason.NPU_NODE_MISMATCH, f"no driver has the number {node.number} of /dev/{name}")
    if node.kernel_name != name:
        return Fault(Reason.NPU_NODE_MISMATCH, f"the number {node.number} of /dev/{name} is that of {node.kernel_name}")
    if node.minor != minor:
        return Fault(Reason.NPU_NODE_MISMATCH, f"/dev/{name} has the number {node.number}, and its minor number should be {minor}")
    return None


def oddities(chip: Chip) -> Iterator[Fault]:
    """Return answers that cannot be, about what nothing depends on."""
    for problem in chip.problems:
        if problem.aspect is Aspect.CHIP_INFO and not is_not_offered(problem):
            yield Fault(Reason.NPU_ANSWER_ODD, f"{problem.aspect}: {said_of(problem)}")


def said_of(problem: Problem) -> str:
    """Return how a question ended, for people."""
    return "the answer cannot be" if problem.code is None else sentence(problem.code)


def is_not_offered(problem: Problem) -> bool:
    """Whether the library or the driver just does not have this."""
    return problem.code in _NOT_OFFERED


def _why(chip: Chip, aspect: Aspect) -> str:
    """Return how the question failed that leaves this unknown; a physical id is asked for by the logical one."""
    aspects = {aspect, Aspect.LOGIC} if aspect is Aspect.PHY else {aspect}
    return next((said_of(problem) for problem in chip.problems if problem.aspect in aspects), "")
