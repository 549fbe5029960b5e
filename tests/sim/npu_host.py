"""A host with NPUs as values, for tests of what is pure: the state of a DCMI simulator, as the broker and a look at /dev would tell it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from devward.npu.facts import Chip, Inventory, Mode, Vnpu
from devward.npu.host import HostNode, Surroundings
from devward.npu.numbering import vfid_of, window
from devward.npu.vnpu_cfg import Record, Records

BOOT: Final = "6f4f0d4e-9d1c-4c39-9a6a-0a4b5c6d7e8f"
MAJOR: Final = 4000


def die(number: int) -> str:
    """Return the die id of a chip, as HAMi prints it."""
    return f"{number:08X}-00000001-00000002-00000003-0000000A"


def vnpu(vdev: int, /, template: str | None = "vir05_1c_16g", **fields: Any) -> Vnpu:
    """Return an idle vNPU."""
    return replace(Vnpu(vdev=vdev, vfid=vfid_of(vdev), template=template, in_use=False, container=0, cores=5.0), **fields)


def chip(phy: int, /, *vdevs: int, **fields: Any) -> Chip:
    """Return a healthy chip with vNPUs of these ids: the only one of its card."""
    made = Chip(
        card=phy,
        device=0,
        logic=phy,
        phy=phy,
        die=die(phy),
        health=0,
        chip_type="Ascend",
        chip_name="910B3",
        chip_version="V1",
        npu_name="910B3",
        cores=20,
        vnpus=tuple(map(vnpu, vdevs)),
    )
    return replace(made, **fields)


def inventory(*chips: Chip, **fields: Any) -> Inventory:
    """Return what the broker says of these chips."""
    made = Inventory(boot_id=BOOT, library="/usr/local/dcmi/libdcmi.so", dcmi_version="25.5.0", mode=Mode.DOCKER, recover=True, chips=chips)
    return replace(made, **fields)


def node(name: str, **fields: Any) -> HostNode:
    """Return the node that the kernel makes for a name."""
    digits = re.sub(r"[^0-9]", "", name)
    minor = int(digits or 0)
    made = HostNode(
        name, inode=1000 + minor, ctime_ns=5, is_character_device=True, covered=False, major=MAJOR, minor=minor, kernel_name=name
    )
    return replace(made, **fields)


def nodes(names: Iterable[str]) -> dict[str, HostNode]:
    """Return the nodes of these names."""
    return {name: node(name) for name in names}


def node_names(said: Inventory) -> list[str]:
    """Return the names that the nodes of everything in an inventory have."""
    names = ["davinci_manager", *(f"davinci{chip.phy}" for chip in said.chips if chip.phy is not None)]
    return names + [f"vdavinci{vnpu.vdev}" for chip in said.chips for vnpu in chip.vnpus or ()]


def records(said: Inventory) -> Records:
    """Return the lines of /etc/vnpu.cfg for all vNPUs of an inventory."""
    found = [
        Record(chip.phy, vnpu.vdev, chip.card, chip.device, vnpu.template)
        for chip in said.chips
        for vnpu in chip.vnpus or ()
        if chip.phy is not None and vnpu.template is not None and vnpu.vdev in window(chip.phy)
    ]
    return Records(present=True, recover=True, records=tuple(found))


def around(said: Inventory, more: Mapping[str, HostNode] | None = None, without: Iterable[str] = (), **fields: Any) -> Surroundings:
    """Return what the host shows where everything matches, with other nodes and without some."""
    found = nodes(node_names(said)) | dict(more or {})
    for name in without:
        del found[name]
    return replace(Surroundings(nodes=found, records=records(said)), **fields)
