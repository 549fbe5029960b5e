"""Reads devward's audit records through journalctl(1), which alone knows the journal's format and permissions.

Any user may send the journal a record with any field but those that begin with an underscore: only records of uid 0 are devward's.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from devward import names
from devward.ctl.failure import ExitStatus, Failure
from devward.model import Outcome
from devward.text import printable

PROGRAM: Final = "journalctl"
SYSTEM_JOURNALS: Final = ("/var/log/journal", "/run/log/journal")
_PREFIX: Final = "DEVWARD_"
#: What the daemon writes where a field has no value.
_NOT_GIVEN: Final = "-"
_FIELDS: Final = ("MESSAGE", "PRIORITY", *(value for name, value in vars(names).items() if name.startswith("FIELD_")))


@dataclass(frozen=True, slots=True)
class Query:
    """Which records are wanted; empty for any. Times as journalctl understands them."""

    since: str = ""
    until: str = ""
    device: str = ""
    file: str = ""
    request: str = ""
    events: tuple[str, ...] = ()
    #: The last so many; 0 for all.
    lines: int = 0
    #: A journal directory instead of the host's.
    directory: str = ""
    #: The id of a vNPU.
    vnpu: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One audit record. `fields` are those of devward without their prefix, in lower case; a field that was given twice is a list."""

    #: When it happened, in microseconds of CLOCK_REALTIME since 1970.
    time_usec: int
    message: str
    priority: int
    fields: Mapping[str, object] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return a field as one text."""
        value = self.fields.get(name, "")
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def arguments(query: Query) -> list[str]:
    """Return journalctl's command line for a query."""
    line = [PROGRAM, "--quiet", "--no-pager", "--output=json", f"--output-fields={','.join(_FIELDS)}"]
    if query.directory:
        line.append(f"--directory={query.directory}")
    if query.since:
        line.append(f"--since={query.since}")
    if query.until:
        line.append(f"--until={query.until}")
    if query.lines and not _by_name(query):
        line.append(f"--lines={query.lines}")
    if query.vnpu is None:
        return line + _matches(query)
    by_id = [*_matches(query), f"{names.FIELD_VNPU}={query.vnpu}"]
    if query.device:
        return line + by_id
    # What was done to it is recorded under its id, that it came or went under its node.
    return [*line, *by_id, "+", *_matches(query), f"{names.FIELD_DEVICE}={names.DEVICE_DIRECTORY}/vdavinci{query.vnpu}"]


def _matches(query: Query) -> list[str]:
    line = ["_UID=0", *(f"{names.FIELD_EVENT}={event}" for event in query.events or names.MESSAGE_IDS)]
    if query.device:
        line.append(f"{names.FIELD_DEVICE}={query.device}")
    if query.file and not _by_name(query):
        line.append(f"{names.FIELD_CDI_FILE}={query.file}")
    if query.request:
        line.append(f"{names.FIELD_REQUEST_ID}={query.request}")
    return line


def _by_name(query: Query) -> bool:
    """Whether the file is given without its directory: journalctl matches whole values only."""
    return bool(query.file) and "/" not in query.file


def read(query: Query, environ: Mapping[str, str]) -> list[Record]:
    """Return the records, oldest first. Failure where journalctl cannot be run or refuses the query."""
    found = list(_matching(query, environ))
    if _by_name(query):
        found = [record for record in found if record.text("cdi_file").rpartition("/")[2] == query.file]
        found = found[-query.lines :] if query.lines else found
    return found


def _matching(query: Query, environ: Mapping[str, str]) -> Iterator[Record]:
    try:
        process = subprocess.run(
            arguments(query), stdin=subprocess.DEVNULL, capture_output=True, env={**environ, "SYSTEMD_COLORS": "0"}, check=False
        )
    except OSError as error:
        raise Failure(ExitStatus.UNHEALTHY, f"{PROGRAM} cannot be run: {error.strerror}.", "It belongs to the package systemd.") from error
    if process.returncode != 0:
        said = process.stderr.decode(errors="replace").strip().partition("\n")[0]
        if "insufficient permissions" in said and unreadable_journal(query):
            # Where a user has no journal of his own either, journalctl fails. To callers it is the same.
            return
        raise Failure(
            ExitStatus.USAGE if "parse" in said else ExitStatus.UNHEALTHY,
            f"{PROGRAM} failed: {printable(said) or f'status {process.returncode}'}",
            'Times are written as in journalctl(1): "2026-01-31 14:00", "1 hour ago", yesterday.' if "parse" in said else "",
        )
    for line in process.stdout.splitlines():
        record = parse(line)
        if record is not None:
            yield record


def parse(line: bytes) -> Record | None:
    """Read one line of journalctl's JSON; None where it is not an audit record.

    A value is a text, a list of byte values where it is not printable UTF-8, null where it is too long, or a list of those where the field
    was given several times (systemd's "Journal JSON Format").
    """
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or names.FIELD_EVENT not in entry:
        return None
    fields = {
        name.removeprefix(_PREFIX).lower(): value
        for name, given in entry.items()
        if name.startswith(_PREFIX) and (value := _value(given)) != _NOT_GIVEN
    }
    fields = {name: _evidence(value) if name == "evidence" else value for name, value in fields.items()}
    delay = _number(fields.get("delay_usec"))
    return Record(
        _number(entry.get("__REALTIME_TIMESTAMP")) - delay, _text(entry.get("MESSAGE")), _number(entry.get("PRIORITY"), 6), fields
    )


def acts(records: Sequence[Record]) -> list[Record]:
    """Leave out the intents whose outcome is on record, too: one line an act."""
    told = {_act(record) for record in records if record.fields.get("outcome") != Outcome.INTENT}
    return [record for record in records if record.fields.get("outcome") != Outcome.INTENT or _act(record) not in told]


def _act(record: Record) -> tuple[str, ...]:
    return tuple(record.text(name) for name in ("request_id", "event", "cdi_file", "device", "vnpu", "member"))


def unreadable_journal(query: Query) -> bool:
    """Tell whether this user may not read the system's journal, so that finding nothing means nothing."""
    directories = [query.directory] if query.directory else list(SYSTEM_JOURNALS)
    journals = [path for directory in directories for path in Path(directory).glob("**/system.journal")]
    closed = [directory for directory in directories if os.path.isdir(directory) and not os.access(directory, os.R_OK | os.X_OK)]
    return bool(closed) or (bool(journals) and not any(os.access(path, os.R_OK) for path in journals))


def _value(given: object) -> object:
    if isinstance(given, list) and not _is_bytes(given):
        return [_text(item) for item in given]
    return _text(given)


def _is_bytes(given: list[object]) -> bool:
    return bool(given) and all(isinstance(item, int) for item in given)


def _text(given: object) -> str:
    if isinstance(given, str):
        return given
    if given is None:
        return "(too long for journalctl)"
    if isinstance(given, list) and _is_bytes(given):
        return bytes(item & 0xFF for item in given).decode(errors="surrogateescape")
    return ", ".join(map(_text, given)) if isinstance(given, list) else str(given)


def _number(given: object, otherwise: int = 0) -> int:
    return int(given) if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 20 else otherwise


def _evidence(value: object) -> object:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
