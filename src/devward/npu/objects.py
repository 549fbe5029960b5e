"""The facts of devward.npu.facts as the broker's protocol has them in JSON: each object read strictly, field by field. Pure."""

import re
from typing import Final

from devward.npu.facts import (
    Aspect,
    Capacity,
    Chip,
    Expected,
    Inspection,
    Inventory,
    Mode,
    Node,
    Problem,
    Process,
    Vnpu,
)
from devward.npu.fields import (
    U32,
    U64,
    boolean,
    integer,
    member,
    number,
    optional,
    pattern,
    record,
    several,
    text,
)
from devward.npu.numbering import CARD_LIMIT, DEVICE_LIMIT, DIE, PHY_LIMIT, SLOTS, TEMPLATE

#: What the library has room for.
LISTED_VNPUS: Final = 32
LISTED_PROCESSES: Final = 32
NAME_LIMIT: Final = 63
_PATH_LIMIT: Final = 4096
_PROBLEM_LIMIT: Final = 256
_BOOT_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: More AI cores than any chip has.
CORE_LIMIT: Final = 1024

CODE: Final = integer(-(1 << 31), (1 << 31) - 1)
CARD: Final = integer(0, CARD_LIMIT - 1)
DEVICE: Final = integer(0, DEVICE_LIMIT - 1)
_U32: Final = integer(0, U32)
_U64: Final = integer(0, U64)
_CORES: Final = number(0, CORE_LIMIT)
_NAME: Final = text(NAME_LIMIT)
_U32_OR_NONE: Final = optional(_U32)
_U64_OR_NONE: Final = optional(_U64)
_CORES_OR_NONE: Final = optional(_CORES)
_NAME_OR_NONE: Final = optional(_NAME)

_NODE: Final = record("node", Node, inode=_U64, ctime_ns=integer(-U64, U64), major=_U32, minor=_U32)
#: Reads the vNPU that is to be destroyed. Malformed.
expected: Final = record(
    "expected",
    Expected,
    boot_id=pattern(_BOOT_ID),
    card=CARD,
    device=DEVICE,
    phy=integer(0, PHY_LIMIT - 1),
    die=pattern(DIE),
    # Any id: the one that means all of them is refused by name, where everybody is heard.
    vdev=_U32,
    vfid=integer(1, SLOTS),
    template=pattern(TEMPLATE),
    node=_NODE,
)
_PROBLEM: Final = record("problem", Problem, aspect=member(Aspect), code=optional(CODE), vdev=_U32_OR_NONE, card=optional(CARD))
_PROBLEMS: Final = several(_PROBLEM, _PROBLEM_LIMIT)
_VNPU: Final = record(
    "vnpu",
    Vnpu,
    vdev=_U32,
    vfid=_U32_OR_NONE,
    template=optional(pattern(TEMPLATE)),
    in_use=optional(boolean),
    container=_U64_OR_NONE,
    cores=_CORES_OR_NONE,
    memory_mb=_U64_OR_NONE,
    vgroup=_U32_OR_NONE,
)
_CHIP: Final = record(
    "chip",
    Chip,
    card=CARD,
    device=DEVICE,
    logic=_U32_OR_NONE,
    phy=_U32_OR_NONE,
    die=optional(pattern(DIE)),
    health=_U32_OR_NONE,
    chip_type=_NAME_OR_NONE,
    chip_name=_NAME_OR_NONE,
    chip_version=_NAME_OR_NONE,
    npu_name=_NAME_OR_NONE,
    cores=_U32_OR_NONE,
    vnpus=optional(several(_VNPU, LISTED_VNPUS)),
    problems=_PROBLEMS,
)
#: Reads a list of all NPUs. Malformed.
inventory: Final = record(
    "inventory",
    Inventory,
    boot_id=pattern(_BOOT_ID),
    library=text(_PATH_LIMIT),
    dcmi_version=_NAME_OR_NONE,
    mode=member(Mode),
    recover=optional(boolean),
    chips=several(_CHIP, CARD_LIMIT * DEVICE_LIMIT),
    problems=_PROBLEMS,
)
_CAPACITY: Final = record("capacity", Capacity, cores=_CORES_OR_NONE, memory_mb=_U64_OR_NONE, aicpus=_U32_OR_NONE)
_PROCESS: Final = record("process", Process, pid=integer(0, (1 << 31) - 1), memory_bytes=_U64)
#: Reads a closer look at one chip. Malformed.
inspection: Final = record(
    "inspection",
    Inspection,
    boot_id=pattern(_BOOT_ID),
    mode=member(Mode),
    chip=_CHIP,
    total=optional(_CAPACITY),
    free=optional(_CAPACITY),
    processes=optional(several(_PROCESS, LISTED_PROCESSES)),
    problems=_PROBLEMS,
)
