"""Whether a container lives: the record that its OCI runtime keeps of the first process, held against that process.

runc keeps `state.json` and crun `status`, with id and start time; containerd (`init.pid`) and conmon (`pidfile`) keep the id alone. Where
there is no record the container may be in the middle of being made: ascend-docker-runtime makes the vNPU before it calls the real runtime.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from devward.cluster.files import read_start

#: Both runtimes write these fields first, before anything that the container's maker chose, so the beginning is enough.
_RUNC: Final = re.compile(rb'\{"id":"[^"\\]{1,1024}","init_process_pid":([0-9]{1,10}),"init_process_start":([0-9]{1,20}),')
_CRUN: Final = re.compile(rb'\{\s*"pid"\s*:\s*([0-9]{1,10})\s*,\s*"process-start-time"\s*:\s*([0-9]{1,20})\s*,')
_START: Final = 2048
_ENDED: Final = frozenset((b"Z", b"X"))


class Life(StrEnum):
    """Whether a container lives."""

    LIVE = "live"
    #: Its first process has ended.
    STOPPED = "stopped"
    #: There is no record, or it cannot be read. It counts as living.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FirstProcess:
    """A container's first process, as the runtime recorded it."""

    pid: int
    #: Clock ticks since boot; 0: not recorded, and a later process with the id is taken for it.
    started: int = 0


def parse_state(data: bytes) -> FirstProcess | None:
    """Return what the beginning of a `state.json` of runc or a `status` of crun says; None if it says nothing certain."""
    found = _RUNC.match(data) or _CRUN.match(data)
    return _first(found[1], found[2]) if found else None


def parse_pid(data: bytes) -> FirstProcess | None:
    """Return what an `init.pid` or a `pidfile` says; None if it says nothing certain."""
    text = data.strip()
    return _first(text, b"0") if text.isdigit() and len(text) <= 10 else None


def _first(pid: bytes, started: bytes) -> FirstProcess | None:
    # A runtime that has no process yet writes 0.
    return FirstProcess(int(pid), int(started)) if int(pid) > 0 else None


def life_of(first: FirstProcess, proc: str) -> Life:
    """Hold a record against a /proc that lists everybody (vantage.py)."""
    try:
        data = read_start(f"{proc}/{first.pid}/stat", 4096)
    except (FileNotFoundError, ProcessLookupError):
        return Life.STOPPED
    except OSError:
        return Life.UNKNOWN
    fields = data[data.rfind(b")") + 2 :].split()
    try:
        state, started = fields[0], int(fields[19])
    except (IndexError, ValueError):
        return Life.UNKNOWN
    if state in _ENDED or (first.started and first.started != started):
        return Life.STOPPED
    return Life.LIVE
