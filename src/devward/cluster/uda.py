"""What the Ascend driver itself says of who uses its devices: /proc/uda, where the driver has it.

Reading opens no device. A record that is not understood leaves doubt about its device, a file that is not understood about all of them.
"""

import os
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from devward.cluster.evidence import Doubt, Finding, SourceState
from devward.cluster.files import read_all

_MAX_SIZE: Final = 1024 * 1024
_MAX_RECORDS: Final = 2048

_NUMBER: Final = r"([0-9]{1,10})"
_DEVICE: Final = re.compile(
    rf"udevid {_NUMBER}(?: type\([^)]*\))? status '(ready|suspend), (sia|mia)' added_udevid {_NUMBER} chip_type .{{0,64}}", re.ASCII
)
_USED_BY: Final = re.compile(rf"has used by container, ns id {_NUMBER}", re.ASCII)
_SHARED_BY: Final = re.compile(rf"shared dev used by ns id: *({_NUMBER[1:-1]}(?:[ ,]+{_NUMBER[1:-1]})*)[ ,]*", re.ASCII)
_VNPU: Final = re.compile(rf"mia para: phy_devid {_NUMBER} sub_devid {_NUMBER}", re.ASCII)
#: Lines that say nothing about use.
_OTHER: Final = re.compile(rf"remote udevid {_NUMBER}|add_id {_NUMBER}|has os device", re.ASCII)
_SPACE: Final = re.compile(
    rf"ns_id {_NUMBER} identify ([0-9a-fA-Fx]{{1,18}}) root_tgid {_NUMBER} dev_num {_NUMBER} namespace ([^ ,(]{{1,40}})(\(#\))?,"
    r" udev list:?",
    re.ASCII,
)
_PAIR: Final = re.compile(rf"{_NUMBER}\s+{_NUMBER}", re.ASCII)


class UdaDoubt(StrEnum):
    """Why /proc/uda is not known whole."""

    UDA_UNREADABLE = "uda-unreadable"
    UDA_MALFORMED = "uda-malformed"
    #: The driver takes the reader for a container: it may not see what the host sees.
    READER_IS_CONTAINER = "reader-is-container"


@dataclass(frozen=True, slots=True)
class UdaDevice:
    """One device of the driver: a card, or a vNPU, whose id it has too."""

    id: int
    is_ready: bool
    #: Physical id of the card and slot; None where it is a card itself.
    card: int | None = None
    slot: int | None = None
    #: Namespaces of the driver, each a container's, that use it.
    spaces: frozenset[int] = frozenset()
    #: Every line of its record was understood.
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class UdaSpace:
    """A container's namespace as the driver keeps it."""

    id: int
    #: Its first process, by the host's ids.
    root_pid: int
    is_readers: bool
    devices: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class UdaScan:
    """What was read."""

    state: SourceState
    devices: tuple[UdaDevice, ...] = ()
    spaces: tuple[UdaSpace, ...] = ()
    doubts: tuple[Doubt, ...] = ()

    def users(self, vdev: int) -> tuple[int, ...]:
        """Return the host's process ids of the containers that use a vNPU, as far as they are known."""
        return tuple(sorted({space.root_pid for space in self.spaces if vdev in space.devices} - {0}))

    def finding(self, vdev: int) -> Finding:
        """Return whether the driver says that a vNPU is used. Where there is no /proc/uda nothing is said, and nothing doubted."""
        devices = [device for device in self.devices if device.id == vdev]
        if any(device.spaces for device in devices) or any(vdev in space.devices for space in self.spaces):
            return Finding.HELD
        if self.doubts or not all(device.is_whole for device in devices) or (self.state is SourceState.READ and not devices):
            # A vNPU that the driver's own list does not have: list and library disagree.
            return Finding.UNKNOWN
        return Finding.CLEAN


class UdaError(ValueError):
    """A file of /proc/uda that is not understood."""


def scan_uda(proc: str = "/proc") -> UdaScan:
    """Read /proc/uda. Raises nothing for what it finds."""
    directory = f"{proc}/uda"
    doubts: list[Doubt] = []
    texts: list[str] = []
    for name in ("udevice", "namespace_node"):
        path = f"{directory}/{name}"
        try:
            texts.append(read_all(path, _MAX_SIZE).decode("ascii"))
        except FileNotFoundError:
            continue
        except OSError as error:
            return UdaScan(SourceState.UNREADABLE, doubts=(Doubt(UdaDoubt.UDA_UNREADABLE, path, error.errno or 0),))
        except UnicodeDecodeError:
            return UdaScan(SourceState.UNREADABLE, doubts=(Doubt(UdaDoubt.UDA_MALFORMED, path),))
    if not texts and not os.path.lexists(directory):
        return UdaScan(SourceState.NOT_PRESENT)
    if len(texts) != 2:
        # Older drivers have no such directory; one without these files is a form that is not known.
        return UdaScan(SourceState.UNREADABLE, doubts=(Doubt(UdaDoubt.UDA_MALFORMED, directory),))
    try:
        devices, spaces = parse_devices(texts[0]), parse_spaces(texts[1])
    except UdaError:
        return UdaScan(SourceState.UNREADABLE, doubts=(Doubt(UdaDoubt.UDA_MALFORMED, directory),))
    if any(space.is_readers for space in spaces):
        doubts.append(Doubt(UdaDoubt.READER_IS_CONTAINER, directory))
    return UdaScan(SourceState.READ, devices, spaces, tuple(doubts))


def parse_devices(text: str) -> tuple[UdaDevice, ...]:
    """Return the records of `udevice`. UdaError."""
    devices: list[UdaDevice] = []
    for lines in _records(text):
        found = _DEVICE.fullmatch(lines[0])
        if not found:
            raise UdaError("a record without its first line")
        device = UdaDevice(int(found[1]), found[2] == "ready")
        for line in lines[1:]:
            if used := _USED_BY.fullmatch(line):
                device = replace(device, spaces=device.spaces | {int(used[1])})
            elif shared := _SHARED_BY.fullmatch(line):
                device = replace(device, spaces=device.spaces | {int(space) for space in re.split("[ ,]+", shared[1])})
            elif vnpu := _VNPU.fullmatch(line):
                device = replace(device, card=int(vnpu[1]), slot=int(vnpu[2]))
            elif not _OTHER.fullmatch(line):
                device = replace(device, is_whole=False)
        devices.append(device)
    if len({device.id for device in devices}) != len(devices):
        raise UdaError("a device stands there twice")
    return tuple(devices)


def parse_spaces(text: str) -> tuple[UdaSpace, ...]:
    """Return the records of `namespace_node`. UdaError."""
    spaces: list[UdaSpace] = []
    for lines in _records(text):
        found = _SPACE.fullmatch(lines[0])
        pairs = [_PAIR.fullmatch(line) for line in lines[2:]]
        if not found or (len(lines) > 1 and lines[1].split() != ["logic_devid", "udevid"]) or int(found[4]) != len(pairs):
            raise UdaError("a record that is not understood")
        devices = {int(pair[2]) for pair in pairs if pair}
        if len(devices) != len(pairs):
            raise UdaError("a pair that is not understood, or stands there twice")
        spaces.append(UdaSpace(int(found[1]), int(found[3]), found[6] is not None, frozenset(devices)))
    return tuple(spaces)


def _records(text: str) -> list[list[str]]:
    """Split into records, each with its first line and those that belong to it: indented, or after it. A blank line ends a record."""
    records: list[list[str]] = []
    is_open = False
    for line in text.splitlines():
        words = line.strip()
        if not words:
            is_open = False
        elif is_open and not words.startswith(("udevid ", "ns_id ")):
            records[-1].append(words)
        else:
            records.append([words])
            is_open = True
            if len(records) > _MAX_RECORDS:
                raise UdaError("too many records")
    return records
