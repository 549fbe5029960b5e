"""The facts of devward.npu.facts as the broker's protocol has them in JSON: each object read strictly, field by field. Pure."""

import re
from typing import Any, Final

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
    Check,
    Fields,
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


def expected(value: Any) -> Expected:
    """Read the vNPU that is to be destroyed. Malformed."""
    fields = Fields(value, "expected")
    result = Expected(
        boot_id=fields.take("boot_id", pattern(_BOOT_ID)),
        card=fields.take("card", CARD),
        device=fields.take("device", DEVICE),
        phy=fields.take("phy", integer(0, PHY_LIMIT - 1)),
        die=fields.take("die", pattern(DIE)),
        # Any id: the one that means all of them is refused by name, where everybody is heard.
        vdev=fields.take("vdev", _U32),
        vfid=fields.take("vfid", integer(1, SLOTS)),
        template=fields.take("template", pattern(TEMPLATE)),
        node=fields.take("node", _node),
    )
    fields.end()
    return result


def _node(value: Any) -> Node:
    fields = Fields(value, "node")
    result = Node(
        inode=fields.take("inode", _U64),
        ctime_ns=fields.take("ctime_ns", integer(-U64, U64)),
        major=fields.take("major", _U32),
        minor=fields.take("minor", _U32),
    )
    fields.end()
    return result


def _problem(value: Any) -> Problem:
    fields = Fields(value, "problem")
    result = Problem(
        aspect=fields.take("aspect", member(Aspect)),
        code=fields.take("code", optional(CODE)),
        vdev=fields.take("vdev", optional(_U32)),
        card=fields.take("card", optional(CARD)),
    )
    fields.end()
    return result


_PROBLEMS: Final[Check[tuple[Problem, ...]]] = several(_problem, _PROBLEM_LIMIT)


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


def _chip(value: Any) -> Chip:
    fields = Fields(value, "chip")
    result = Chip(
        card=fields.take("card", CARD),
        device=fields.take("device", DEVICE),
        logic=fields.take("logic", _U32_OR_NONE),
        phy=fields.take("phy", _U32_OR_NONE),
        die=fields.take("die", optional(pattern(DIE))),
        health=fields.take("health", _U32_OR_NONE),
        chip_type=fields.take("chip_type", _NAME_OR_NONE),
        chip_name=fields.take("chip_name", _NAME_OR_NONE),
        chip_version=fields.take("chip_version", _NAME_OR_NONE),
        npu_name=fields.take("npu_name", _NAME_OR_NONE),
        cores=fields.take("cores", _U32_OR_NONE),
        vnpus=fields.take("vnpus", optional(several(_VNPU, LISTED_VNPUS))),
        problems=fields.take("problems", _PROBLEMS),
    )
    fields.end()
    return result


def inventory(value: Any) -> Inventory:
    """Read a list of all NPUs. Malformed."""
    fields = Fields(value, "inventory")
    result = Inventory(
        boot_id=fields.take("boot_id", pattern(_BOOT_ID)),
        library=fields.take("library", text(_PATH_LIMIT)),
        dcmi_version=fields.take("dcmi_version", _NAME_OR_NONE),
        mode=fields.take("mode", member(Mode)),
        recover=fields.take("recover", optional(boolean)),
        chips=fields.take("chips", several(_chip, CARD_LIMIT * DEVICE_LIMIT)),
        problems=fields.take("problems", _PROBLEMS),
    )
    fields.end()
    return result


def _capacity(value: Any) -> Capacity:
    fields = Fields(value, "capacity")
    result = Capacity(
        cores=fields.take("cores", _CORES_OR_NONE),
        memory_mb=fields.take("memory_mb", _U64_OR_NONE),
        aicpus=fields.take("aicpus", _U32_OR_NONE),
    )
    fields.end()
    return result


def _process(value: Any) -> Process:
    fields = Fields(value, "process")
    result = Process(pid=fields.take("pid", integer(0, (1 << 31) - 1)), memory_bytes=fields.take("memory_bytes", _U64))
    fields.end()
    return result


def inspection(value: Any) -> Inspection:
    """Read a closer look at one chip. Malformed."""
    fields = Fields(value, "inspection")
    result = Inspection(
        boot_id=fields.take("boot_id", pattern(_BOOT_ID)),
        mode=fields.take("mode", member(Mode)),
        chip=fields.take("chip", _chip),
        total=fields.take("total", optional(_capacity)),
        free=fields.take("free", optional(_capacity)),
        processes=fields.take("processes", optional(several(_process, LISTED_PROCESSES))),
        problems=fields.take("problems", _PROBLEMS),
    )
    fields.end()
    return result
