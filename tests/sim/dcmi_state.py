"""The state file of the DCMI simulator, from Python: its lines as dataclasses, read and written as libdcmi.c describes them."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final

from sim.dcmi_families import Template

#: The number that a field reads which the driver did not fill.
NOT_FILLED: Final = None
FIRST_VDEV: Final = 100
WINDOW: Final = 16
_PLAIN: Final = re.compile("[!-$&-~]*")


@dataclass(frozen=True, slots=True)
class Node:
    """The node as a whole."""

    init_code: int = 0
    mode: int = 0
    supports_mode: int = 1
    supports_recover: int = 1
    version: str = "25.5.0"
    #: Who may change vNPUs: any, root, or host.
    permission: str = "any"
    cfg: str = ""
    cfg_lock: str = ""
    cfg_lock_ms: int = 1000
    log: str = ""


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip. Names are of Latin-1 characters, one a byte."""

    card: int
    dev: int
    phy: int
    logic: int
    #: 0 NPU, 1 MCU, 2 CPU
    type: int = 0
    present: int = 1
    splittable: int = 1
    slots: int = WINDOW
    activity: int = 1
    vgroups: int = 0
    family: str = ""
    chip_type: str = "Ascend"
    name: str = ""
    chip_version: str = "V1"
    npu_name: str = ""
    product: str = ""
    cores: int | None = 0
    memory: int | None = 0
    aicpu: int | None = 0
    jpegd: float = 0
    jpege: float = 0
    vpc: float = 0
    vdec: float = 0
    pngd: float = -1
    venc: float = 0
    #: The id that identifies a card elsewhere too, as five groups of hex digits.
    vdie: str = "00000000-00000000-00000000-00000000-00000000"
    ndie: str = "00000000-00000000-00000000-00000000-00000000"
    health: int | None = 0
    board: int | None = 0
    pcb: int | None = 0
    bom: int | None = 0
    slot: int | None = 0

    @property
    def first_vdev(self) -> int:
        """Lowest vdev id of its window."""
        return FIRST_VDEV + WINDOW * self.phy


@dataclass(frozen=True, slots=True)
class Vnpu:
    """A vNPU."""

    card: int
    dev: int
    id: int
    name: str
    status: int | None = NOT_FILLED
    used: int | None = 0
    vfid: int | None = NOT_FILLED
    vfg: int | None = 0
    container: int | None = 0
    aic: float = 0
    memory: int | None = 0
    aicpu: int | None = 0
    occupant: int = 0


@dataclass(frozen=True, slots=True)
class Process:
    """A process that computes on a chip."""

    card: int
    dev: int
    pid: int
    memory: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A misbehaviour that waits for calls."""

    serial: int
    function: str
    card: int = -1
    dev: int = -1
    id: int = -1
    sub: int = -1
    skip: int = 0
    times: int = -1
    action: str = ""
    value: int = 0
    effect: int = -1
    delay: int = 0
    text: str = ""


@dataclass(slots=True)
class State:
    """All of it; its members are replaced, not changed."""

    generation: int = 0
    node: Node = Node()
    chips: list[Chip] = field(default_factory=list)
    vnpus: list[Vnpu] = field(default_factory=list)
    templates: list[Template] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def chip(self, card: int, dev: int = 0) -> Chip:
        """Return the chip at that place; LookupError if there is none."""
        for chip in self.chips:
            if (chip.card, chip.dev) == (card, dev):
                return chip
        raise LookupError(f"no chip {card}/{dev}")

    def vnpus_of(self, chip: Chip) -> list[Vnpu]:
        """Return the vNPUs of a chip by their id."""
        return sorted((v for v in self.vnpus if (v.card, v.dev) == (chip.card, chip.dev)), key=lambda vnpu: vnpu.id)

    def vnpu(self, chip: Chip, vdev: int) -> Vnpu:
        """Return a vNPU; LookupError if it does not exist."""
        for vnpu in self.vnpus_of(chip):
            if vnpu.id == vdev:
                return vnpu
        raise LookupError(f"no vNPU {vdev} on {chip.card}/{chip.dev}")


_KINDS: Final[dict[str, tuple[str, Callable[..., Any]]]] = {
    "chip": ("chips", Chip),
    "vnpu": ("vnpus", Vnpu),
    "template": ("templates", Template),
    "process": ("processes", Process),
    "fault": ("faults", Fault),
}


def _encode(value: int | float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else re.sub(r"[^!-$&-~]", lambda found: f"%{ord(found[0]):02X}", value)
    return f"{value:g}"


def _line(kind: str, item: Any) -> str:
    return " ".join([kind, *(f"{each.name}={_encode(getattr(item, each.name))}" for each in fields(item))]) + "\n"


def dump(state: State) -> str:
    """Return the state as the text of its file."""
    lines = [f"devward-dcmi-state 1 {state.generation}\n", _line("node", state.node)]
    for kind, (members, _) in _KINDS.items():
        lines += [_line(kind, item) for item in getattr(state, members)]
    return "".join(lines)


def decode_text(text: str) -> str:
    """Undo the %XX of a text."""
    return re.sub("%([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), text)


def _decode(text: str, annotation: str) -> object:
    if "str" in annotation:
        return decode_text(text)
    if text == "-":
        return None
    return float(text) if "float" in annotation else int(text)


def _types(make: Callable[..., Any]) -> dict[str, str]:
    return {each.name: str(each.type) for each in fields(make)}  # type: ignore[arg-type]


def _item(make: Callable[..., Any], types: dict[str, str], words: list[str]) -> Any:
    given = (word.split("=", 1) for word in words)
    return make(**{key: _decode(value, types[key]) for key, value in given})


def load(text: str) -> State:
    """Read the text of a state file; ValueError if it is malformed."""
    first, *lines = text.splitlines()
    if not (found := re.fullmatch(r"devward-dcmi-state 1 (\d+)", first)):
        raise ValueError(f"not a state file: {first!r}")
    state = State(int(found[1]))
    types = {kind: _types(make) for kind, (_, make) in _KINDS.items()}
    for line in lines:
        kind, *words = line.split()
        if kind == "node":
            state.node = _item(Node, _types(Node), words)
        else:
            members, make = _KINDS[kind]
            getattr(state, members).append(_item(make, types[kind], words))
    return state
