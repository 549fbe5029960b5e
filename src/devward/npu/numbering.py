"""How vNPUs are numbered: each chip has a window of sixteen ids, which follows from its physical id. Pure.

    vdev = 100 + 16 * phy + (vfid - 1), vfid 1 to 16

An id outside the window of its chip is never believed, and never handed to the library: 65535 means all vNPUs of a chip there.
"""

import re
from typing import Final

FIRST_VDEV: Final = 100
SLOTS: Final = 16
#: One above the last id that there can be.
VDEV_LIMIT: Final = 1124
PHY_LIMIT: Final = (VDEV_LIMIT - FIRST_VDEV) // SLOTS
#: The id by which the library destroys every vNPU of a chip.
WILDCARD: Final = 65535

#: The most cards, and NPUs on a card, that the vendor's own tools take.
CARD_LIMIT: Final = 64
DEVICE_LIMIT: Final = 4

#: A die id as HAMi prints it, its name of a card.
DIE: Final = re.compile(r"[0-9A-F]{8}(?:-[0-9A-F]{8}){4}")
#: The name of a card on the bus, by its physical id.
CARD_NAME: Final = re.compile(r"p[0-9]{3}", re.ASCII)
#: A template's name, as in `vir10_3c_16g_nm`; the library has room for 15 bytes.
TEMPLATE: Final = re.compile(r"[A-Za-z0-9_.-]{1,15}")

#: What tells a vNPU from earlier and later ones of its id, as devward.npu.memory prints it; a hyphen stands for a part that is not known.
IDENTITY: Final = re.compile(rf"(?:{DIE.pattern}|-)/(?P<vdev>[1-9][0-9]{{2,3}})/(?:{TEMPLATE.pattern}|-)/[0-9a-f]{{16}}")


def window(phy: int) -> range:
    """Return the ids that vNPUs of the chip with this physical id can have; none where no chip can have that id."""
    if not 0 <= phy < PHY_LIMIT:
        return range(0)
    first = FIRST_VDEV + SLOTS * phy
    return range(first, first + SLOTS)


def vfid_of(vdev: int) -> int | None:
    """Return the virtual function that an id stands for; None where it is the id of no vNPU."""
    return (vdev - FIRST_VDEV) % SLOTS + 1 if FIRST_VDEV <= vdev < VDEV_LIMIT else None


def die_name(words: tuple[int, ...]) -> str:
    """Return the five words of a die id as HAMi prints them."""
    return "-".join(f"{word:08X}" for word in words)
