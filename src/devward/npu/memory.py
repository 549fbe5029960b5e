"""What one look at NPUs leaves for the next: who was first seen where, and since when each vNPU is the one that it is. Pure.

A vNPU is told from others of the same id by boot, die, id, function, template, by the inode of its node, by how often that came or went
as device events told, and by how often it was missing from a complete list. Anything else makes it a new one, first seen now. A part that
cannot be learned at the moment counts as it was: the vNPU has a fault meanwhile, and is compared when it can be.

The node's time of change is no part of it: whoever may write to the node changes that, and udevd at every event of the device, so that a
vNPU could be kept a new one for ever. The driver makes a node with each vNPU, and devtmpfs uses no inode again.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from devward.npu.complaints import Suspect
from devward.npu.facts import Chip, Vnpu
from devward.npu.host import Surroundings
from devward.npu.numbering import vfid_of
from devward.npu.views import CardView, VnpuView

#: Card and device: where the vendor's library has a chip.
Place = tuple[int, int]

#: Hexadecimal digits of an identity's digest.
DIGEST_LENGTH: Final = 16


@dataclass(frozen=True, slots=True)
class Marks:
    """All by which a vNPU is told from another one."""

    boot_id: str
    die: str
    vdev: int
    vfid: int
    template: str
    #: Of its node; 0 where it has none.
    inode: int
    #: How often its node came or went, and how often events were lost that may have told of it.
    sequence: int
    losses: int
    #: How often this id went before.
    goings: int

    @property
    def identity(self) -> str:
        """DIE/VDEV/TEMPLATE, by which people know it, and a digest of everything."""
        rest = (self.boot_id, self.vfid, self.inode, self.sequence, self.losses, self.goings)
        whole = "/".join(map(str, (self.die, self.vdev, self.template, *rest)))
        digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]
        return f"{self.die or '-'}/{self.vdev}/{self.template or '-'}/{digest}"

    @property
    def lasting(self) -> str:
        """A digest of what the next run of the daemon finds again in the same boot; empty while part of it is not known.

        The counters of this run of the daemon are not in it.
        """
        parts = (self.boot_id, self.die, self.vdev, self.vfid, self.template, self.inode)
        if not all(parts):
            return ""
        whole = "/".join(map(str, parts))
        return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]


@dataclass(frozen=True, slots=True)
class Seen:
    """A vNPU as it was seen."""

    place: Place
    marks: Marks
    view: VnpuView


@dataclass(frozen=True, slots=True)
class Memory:
    """What earlier looks of this run of the daemon leave."""

    #: The die that had a physical id, and the physical id that a die had, when first seen.
    dies: Mapping[int, str] = field(default_factory=dict)
    homes: Mapping[str, int] = field(default_factory=dict)
    cards: Mapping[Place, CardView] = field(default_factory=dict)
    vnpus: Mapping[Place, Mapping[int, Seen]] = field(default_factory=dict)
    goings: Mapping[int, int] = field(default_factory=dict)
    suspects: frozenset[Suspect] = frozenset()

    def vnpu(self, place: Place, vdev: int) -> Seen | None:
        """Return a vNPU as it was seen last."""
        return self.vnpus.get(place, {}).get(vdev)

    def vnpus_of(self, place: Place) -> Iterator[Seen]:
        """Return the vNPUs that were seen at a place."""
        return iter(self.vnpus.get(place, {}).values())


NO_MEMORY: Final = Memory()


def marks(boot_id: str, chip: Chip, vnpu: Vnpu, surroundings: Surroundings, memory: Memory) -> Marks:
    """Return by what a vNPU is told from others, as far as that can be learned now."""
    seen = memory.vnpu((chip.card, chip.device), vnpu.vdev)
    before = seen.marks if seen is not None else None
    name = f"vdavinci{vnpu.vdev}"
    node = None if surroundings.nodes is None else surroundings.nodes.get(name)
    inode = node.inode if node is not None else 0
    if surroundings.nodes is None and before is not None:
        inode = before.inode
    return Marks(
        boot_id=boot_id,
        die=chip.die or (before.die if before is not None else ""),
        vdev=vnpu.vdev,
        vfid=vnpu.vfid or 0,
        template=vnpu.template or (before.template if before is not None else ""),
        inode=inode,
        sequence=surroundings.sequences.get(name, 0),
        losses=surroundings.losses,
        goings=before.goings if before is not None else memory.goings.get(vnpu.vdev, 0),
    )


def remember(
    before: Memory,
    homes: Iterable[tuple[int, str]],
    cards: Mapping[Place, CardView],
    vnpus: Mapping[Place, Mapping[int, Seen]],
    suspects: frozenset[Suspect],
) -> Memory:
    """Return what to hand over; `homes` are physical ids and dies of which there is no doubt."""
    dies, places = dict(before.dies), dict(before.homes)
    for phy, die in homes:
        if phy not in dies and die not in places:
            dies[phy], places[die] = die, phy
    goings = dict(before.goings)
    for place, known in before.vnpus.items():
        for vdev in known.keys() - vnpus.get(place, {}).keys():
            # An id that no vNPU can have is never vouched for, and there are too many of them to count.
            if vfid_of(vdev) is not None:
                goings[vdev] = goings.get(vdev, 0) + 1
    return Memory(dies, places, cards, vnpus, goings, suspects)
