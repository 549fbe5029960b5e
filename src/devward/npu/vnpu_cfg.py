"""Reads /etc/vnpu.cfg, from which the driver makes vNPUs again at boot: one line a vNPU, kept by the vendor's library.

    vnpu_config_recover:enable
    [vnpu-config start]
    3:148:npu-smi set -t create-vnpu -i 3 -c 0 -f vir05_1c_16g -v 148
    [vnpu-config end]

`parse` is pure. The file is never written, and whatever is in it gives a value.
"""

import errno
import os
import re
import stat
from dataclasses import dataclass
from typing import Final

PATH: Final = "/etc/vnpu.cfg"
#: The vendor's own limits, in bytes.
FILE_LIMIT: Final = 4 << 20
LINE_LIMIT: Final = 256
#: No host has more vNPUs.
RECORD_LIMIT: Final = 1024

_RECOVER: Final = {"vnpu_config_recover:enable": True, "vnpu_config_recover:disable": False}
_START: Final = "[vnpu-config start]"
_END: Final = "[vnpu-config end]"
_LINE: Final = re.compile(
    r"(\d{1,5}):(\d{1,10}):npu-smi set -t create-vnpu -i (\d{1,5}) -c (\d{1,5}) -f ([A-Za-z0-9_.-]{1,31}) -v (\d{1,10})(?: -g (\d{1,10}))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Record:
    """The line of one vNPU."""

    phy: int
    vdev: int
    card: int
    device: int
    template: str
    vgroup: int | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """What the file holds. `problem` says what is wrong with it, empty where nothing is; then `records` may lack some."""

    present: bool
    recover: bool | None = None
    records: tuple[Record, ...] = ()
    problem: str = ""


ABSENT: Final = Records(present=False)


def parse(content: bytes) -> Records:
    """Return what a file of this content holds. Pure; never raises."""
    if len(content) > FILE_LIMIT:
        return Records(present=True, problem=f"it is larger than {FILE_LIMIT} bytes")
    recover: bool | None = None
    records: dict[int, Record] = {}
    bad: list[int] = []
    inside = ended = False
    for number, raw in enumerate(content.split(b"\n"), 1):
        line = raw[: LINE_LIMIT + 1].decode("ascii", "replace").rstrip(" \t\r")
        if not line:
            continue
        if not inside and line in _RECOVER and recover is None:
            recover = _RECOVER[line]
        elif not inside and not ended and line == _START:
            inside = True
        elif inside and line == _END:
            inside, ended = False, True
        else:
            record = _record(line) if inside and len(raw) <= LINE_LIMIT else None
            if record is None or record.vdev in records or len(records) >= RECORD_LIMIT:
                bad.append(number)
                if len(bad) > RECORD_LIMIT:
                    break
            else:
                records[record.vdev] = record
    return Records(present=True, recover=recover, records=tuple(records.values()), problem=_problem(bad, cut_off=inside))


def read(path: str = PATH) -> Records:
    """Read the file; what keeps it from being read is its `problem`. May block as long as the file system does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return ABSENT
    except OSError as error:
        return Records(present=True, problem="it is a symbolic link" if error.errno == errno.ELOOP else _reason(error))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return Records(present=True, problem="it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return parse(file.read(FILE_LIMIT + 1))
    except OSError as error:
        return Records(present=True, problem=_reason(error))
    finally:
        os.close(descriptor)


def _record(line: str) -> Record | None:
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    phy, vdev, card, device, again = (int(found[group]) for group in (1, 2, 3, 4, 6))
    if again != vdev:
        return None
    return Record(phy, vdev, card, device, found[5], None if found[7] is None else int(found[7]))


def _problem(bad: list[int], *, cut_off: bool) -> str:
    problems = []
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        problems.append(f"lines that say nothing of use: {', '.join(map(str, bad[:5]))}{more}")
    if cut_off:
        problems.append("it has no end")
    return "; ".join(problems)


def _reason(error: OSError) -> str:
    return f"it cannot be read: {os.strerror(error.errno or 0)}"
