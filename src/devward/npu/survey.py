"""Asks the vendor's library what there is, and keeps only what can be: the one way by which the broker learns of chips and vNPUs.

A question that fails, or whose answer cannot be, becomes a `Problem` and leaves None; the others are asked all the same. A chip's vNPUs are
listed whole or not at all.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from devward.npu.codes import DcmiCode
from devward.npu.facts import Aspect, Capacity, Chip, Inspection, Inventory, Mode, Problem, Process, Vnpu
from devward.npu.numbering import CARD_LIMIT, DEVICE_LIMIT, TEMPLATE, die_name, vfid_of
from devward.npu.objects import CORE_LIMIT, LISTED_PROCESSES, LISTED_VNPUS, NAME_LIMIT
from devward.npu.vendor import ChipNames, DcmiError, Resources, Vendor

_T = TypeVar("_T")

_NPU: Final = 0
#: Logic and physical ids that the vendor's tools take.
_ID_LIMIT: Final = 256
_MODES: Final = {0: Mode.DOCKER, 1: Mode.VM}
_U32_NONE: Final = 0xFFFFFFFF
_PID_LIMIT: Final = 1 << 31
_NO_SUCH_CHIP: Final[frozenset[int | None]] = frozenset({DcmiCode.NO_SUCH_DEVICE, DcmiCode.INVALID_DEVICE_ID})
#: The library has no such call, or the driver no such thing.
_NOT_PRESENT: Final = frozenset({DcmiCode.SYMBOL_MISSING, DcmiCode.NOT_SUPPORTED})


class _Notes:
    """Problems met on the way, about one chip or about the host."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def ask(self, aspect: Aspect, call: Callable[[], _T], vdev: int | None = None, card: int | None = None) -> _T | None:
        """Return what a call answers; None, with a problem, if it fails or its answer is not given."""
        try:
            answer = call()
        except DcmiError as error:
            self.problems.append(Problem(aspect, error.code, vdev, card))
            return None
        if answer is None:
            self.cannot_be(aspect, vdev, card)
        return answer

    def cannot_be(self, aspect: Aspect, vdev: int | None = None, card: int | None = None) -> None:
        """Note an answer that cannot be; the same one is noted once."""
        problem = Problem(aspect, None, vdev, card)
        if problem not in self.problems:
            self.problems.append(problem)


def survey(vendor: Vendor, boot_id: str, library: str) -> Inventory:
    """List every NPU of the host. DcmiError: the cards themselves cannot be listed."""
    notes = _Notes()
    version = notes.ask(Aspect.VERSION, vendor.version)
    mode = _mode(vendor, notes)
    recover = _recover(vendor, notes)
    cards = _cards(vendor, notes)
    chips: list[Chip] = []
    for card in cards:
        limit = notes.ask(Aspect.CARD, partial(vendor.device_limit, card), card=card)
        if limit is not None and limit > DEVICE_LIMIT:
            notes.cannot_be(Aspect.CARD, card=card)
        for device in range(min(limit or 0, DEVICE_LIMIT)):
            chip = read_chip(vendor, card, device)
            if chip is not None:
                chips.append(chip)
    for card in set(cards).symmetric_difference(_cards(vendor, notes)):
        # It came or went meanwhile: what was read of it is of no use.
        notes.cannot_be(Aspect.CARD, card=card)
    return Inventory(
        boot_id=boot_id,
        library=library,
        dcmi_version=_word(version),
        mode=mode,
        recover=recover,
        chips=tuple(chips),
        problems=tuple(notes.problems),
    )


def inspect(vendor: Vendor, boot_id: str, card: int, device: int) -> Inspection | None:
    """Look at one chip more closely; None: there is no NPU."""
    chip = read_chip(vendor, card, device)
    if chip is None or not _NO_SUCH_CHIP.isdisjoint(problem.code for problem in chip.problems if problem.aspect is Aspect.TYPE):
        return None
    notes = _Notes()
    mode = _mode(vendor, notes)
    total = notes.ask(Aspect.TOTAL, lambda: vendor.total_resources(card, device).resources)
    free = notes.ask(Aspect.FREE, lambda: vendor.free_resources(card, device))
    return Inspection(
        boot_id=boot_id,
        mode=mode,
        chip=chip,
        total=None if total is None else _capacity(total),
        free=None if free is None else _capacity(free),
        processes=_processes(vendor, card, device, notes),
        problems=tuple(notes.problems),
    )


def read_mode(vendor: Vendor) -> Mode:
    """Return for whom vNPUs are made on this host."""
    return _mode(vendor, _Notes())


def read_chip(vendor: Vendor, card: int, device: int) -> Chip | None:
    """Read one chip with its vNPUs; None: that device is no NPU."""
    notes = _Notes()
    kind = notes.ask(Aspect.TYPE, lambda: vendor.device_type(card, device))
    if kind is not None and kind != _NPU:
        return None
    logic = notes.ask(Aspect.LOGIC, lambda: vendor.logic_id(card, device))
    if logic is not None and logic >= _ID_LIMIT:
        notes.cannot_be(Aspect.LOGIC)
        logic = None
    names = notes.ask(Aspect.CHIP_INFO, lambda: vendor.chip_names(card, device)) or ChipNames(None, None, None, None, None)
    words = []
    for name in (names.chip_type, names.chip_name, names.chip_version, names.npu_name):
        words.append(_word(name))
        if name and words[-1] is None:
            notes.cannot_be(Aspect.CHIP_INFO)
    return Chip(
        card=card,
        device=device,
        logic=logic,
        phy=_phy(vendor, card, device, logic, notes),
        die=_die(vendor, card, device, notes),
        health=notes.ask(Aspect.HEALTH, lambda: vendor.health(card, device)),
        chip_type=words[0],
        chip_name=words[1],
        chip_version=words[2],
        npu_name=words[3],
        cores=names.cores,
        vnpus=_vnpus(vendor, card, device, notes),
        problems=tuple(notes.problems),
    )


def listed_vdevs(vendor: Vendor, card: int, device: int) -> tuple[int, ...] | None:
    """Return the ids of a chip's vNPUs; None where the list cannot be. DcmiError."""
    total = vendor.total_resources(card, device)
    if total.count is None or total.count > LISTED_VNPUS:
        return None
    vdevs = total.vdevs[: total.count]
    # The driver fills an answer with all ones first: it did not write the whole list.
    return None if _U32_NONE in vdevs else vdevs


def _cards(vendor: Vendor, notes: _Notes) -> tuple[int, ...]:
    """Return the cards that can be. DcmiError."""
    count, listed = vendor.cards()
    believed = listed[: min(count or 0, CARD_LIMIT)]
    cards = tuple(sorted({card for card in believed if card < CARD_LIMIT}))
    if count is None or len(cards) != count:
        notes.cannot_be(Aspect.CARDS)
    return cards


def _phy(vendor: Vendor, card: int, device: int, logic: int | None, notes: _Notes) -> int | None:
    """Return a chip's physical id, if it leads back to the chip."""
    if logic is None:
        return None
    phy = notes.ask(Aspect.PHY, lambda: vendor.phy_id(logic))
    if phy is None:
        return None
    try:
        address = vendor.address_of_phy(phy)
    except DcmiError as error:
        if error.code == DcmiCode.SYMBOL_MISSING:
            address = (card, device)
        else:
            notes.problems.append(Problem(Aspect.PHY, error.code))
            return None
    if phy >= _ID_LIMIT or address != (card, device):
        notes.cannot_be(Aspect.PHY)
        return None
    return phy


def _die(vendor: Vendor, card: int, device: int, notes: _Notes) -> str | None:
    words = notes.ask(Aspect.DIE, lambda: vendor.die(card, device))
    if words is None:
        return None
    if set(words) <= {0} or set(words) <= {_U32_NONE}:
        notes.cannot_be(Aspect.DIE)
        return None
    return die_name(words)


def _vnpus(vendor: Vendor, card: int, device: int, notes: _Notes) -> tuple[Vnpu, ...] | None:
    try:
        vdevs = listed_vdevs(vendor, card, device)
    except DcmiError as error:
        notes.problems.append(Problem(Aspect.VNPUS, error.code))
        return None
    if vdevs is None:
        notes.cannot_be(Aspect.VNPUS)
        return None
    vnpus = []
    for vdev in vdevs:
        vnpu = _vnpu(vendor, card, device, vdev, notes)
        if vnpu is None:
            return None
        vnpus.append(vnpu)
    return tuple(vnpus)


def _vnpu(vendor: Vendor, card: int, device: int, vdev: int, notes: _Notes) -> Vnpu | None:
    answer = notes.ask(Aspect.VNPUS, lambda: vendor.vdev(card, device, vdev), vdev)
    if answer is None:
        return None
    template = _word(answer.name)
    if template is None or not TEMPLATE.fullmatch(template):
        template = None
        if answer.name:
            notes.cannot_be(Aspect.TEMPLATE, vdev)
    if answer.used not in {None, 0, 1}:
        notes.cannot_be(Aspect.USE, vdev)
    derived = vfid_of(vdev)
    if answer.vfid is not None and answer.vfid != derived:
        notes.cannot_be(Aspect.VFID, vdev)
    return Vnpu(
        vdev=vdev,
        vfid=derived if answer.vfid is None else answer.vfid,
        template=template,
        in_use={0: False, 1: True}.get(-1 if answer.used is None else answer.used),
        container=answer.container,
        cores=_cores(answer.cores),
        memory_mb=answer.memory_mb,
        vgroup=answer.vgroup,
    )


def _mode(vendor: Vendor, notes: _Notes) -> Mode:
    try:
        mode = vendor.mode()
    except DcmiError as error:
        # Where there is nothing to choose, vNPUs are for containers.
        if error.code in _NOT_PRESENT:
            return Mode.DOCKER
        notes.problems.append(Problem(Aspect.MODE, error.code))
        return Mode.UNKNOWN
    if mode not in _MODES:
        notes.cannot_be(Aspect.MODE)
    return _MODES.get(-1 if mode is None else mode, Mode.UNKNOWN)


def _recover(vendor: Vendor, notes: _Notes) -> bool | None:
    try:
        recover = vendor.recover()
    except DcmiError as error:
        if error.code not in _NOT_PRESENT:
            notes.problems.append(Problem(Aspect.RECOVER, error.code))
        return None
    if recover not in {0, 1}:
        notes.cannot_be(Aspect.RECOVER)
        return None
    return recover == 1


def _processes(vendor: Vendor, card: int, device: int, notes: _Notes) -> tuple[Process, ...] | None:
    answer = notes.ask(Aspect.PROCESSES, lambda: vendor.processes(card, device))
    if answer is None:
        return None
    count, listed = answer
    processes = tuple(Process(pid, memory) for pid, memory in listed[:count] if 0 <= pid < _PID_LIMIT)
    if count is None or count > LISTED_PROCESSES or len(processes) != count:
        notes.cannot_be(Aspect.PROCESSES)
        return None
    return processes


def _capacity(resources: Resources) -> Capacity:
    return Capacity(_cores(resources.cores), resources.memory_mb, resources.aicpus)


def _cores(cores: float) -> float | None:
    return cores if math.isfinite(cores) and 0 <= cores <= CORE_LIMIT else None


def _word(name: bytes | None) -> str | None:
    """Return a name as text; None if it is not given, empty, too long, or has bytes that do not print."""
    if not name or len(name) > NAME_LIMIT:
        return None
    try:
        word = name.decode("ascii")
    except UnicodeDecodeError:
        return None
    return word if word.isprintable() else None
