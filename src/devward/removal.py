"""Takes back what devward wrote, for when it is taken off the host: `devwardd --remove-own-files`.

A CDI file goes only if it is, byte for byte, one that devward remembers to have written; everything else stays and is named. Nothing here
needs the bus, udev or a valid configuration, and nothing but the state directory says which files those are. The metrics file, whose name
is devward's own, goes from where the configuration has it: it would be read for ever.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from devward import metrics_file, names
from devward.audit import Audit
from devward.cdi import store
from devward.cdi.store import EntryType, Found, StoreError
from devward.errors import StateError
from devward.reasons import Reason
from devward.state import State, StateStore

#: The names of the files that devward may own; a remembered path with another name is not believed.
OWNED_FILES: Final = frozenset(names.OWNED_CDI_FILES)
#: DEVWARD_CAUSE of the records.
CAUSE: Final = "removal"


class Fate(StrEnum):
    """What became of a path."""

    REMOVED = "removed"
    #: It is not there.
    ABSENT = "absent"
    #: It is there and is not what devward wrote.
    LEFT = "left"
    #: It is, or may be, what devward wrote, and could not be examined or removed.
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one path, and why, as a sentence without its subject."""

    path: str
    fate: Fate
    text: str = ""


def judge(path: str, found: Found, digests: Sequence[str]) -> Result | None:
    """Say why what was found at an owned path stays; None: it is exactly what devward wrote there. Pure."""
    if found.directory is EntryType.LINK:
        return Result(path, Fate.LEFT, "its directory is reached through a symbolic link")
    if found.entry is EntryType.UNREADABLE or (found.entry is EntryType.MISSING and found.reason is not Reason.OK):
        return Result(path, Fate.FAILED, found.detail)
    if found.entry is EntryType.MISSING:
        return Result(path, Fate.ABSENT)
    if found.entry is not EntryType.REGULAR:
        return Result(path, Fate.LEFT, f"a {found.entry} stands there")
    if found.data is None:
        # One that is too large is none of ours; one that cannot be read may be.
        return Result(path, Fate.LEFT if found.reason is Reason.CDI_MALFORMED else Fate.FAILED, found.detail)
    if hashlib.sha256(found.data).hexdigest() not in digests:
        return Result(path, Fate.LEFT, "its content is not what devward wrote")
    return None


def remove_own_files(state_directory: str, state: StateStore, audit: Audit) -> tuple[list[Result], str | None]:
    """Remove every CDI file that is what devward wrote, and forget those that are not there any more or are somebody else's.

    Returns what became of each remembered path, and what is wrong with the remembered state, if anything is. The caller holds the Lock.
    StateError: the state directory cannot be used, or could not be brought up to date; what was removed is removed all the same.
    """
    if not os.path.lexists(state_directory):
        return [], None
    loaded = state.load()
    results = [_remove(path, digests, audit) for path, digests in sorted(loaded.state.digests.items())]
    for directory in sorted({os.path.dirname(path) for path in loaded.state.digests if _believable(path)}):
        results += _sweep(directory, audit)
    kept = {result.path for result in results if result.fate is Fate.FAILED}
    # What stands at these paths later is not known to be ours: a devward that is installed again must keep a copy before it replaces it.
    _remember(state, loaded.state, MappingProxyType({path: value for path, value in loaded.state.digests.items() if path in kept}))
    return results, loaded.problem


def _remove(path: str, digests: Sequence[str], audit: Audit) -> Result:
    if not _believable(path):
        return Result(path, Fate.LEFT, "devward owns no file of that name")
    directory, name = os.path.split(path)
    found = store.look(directory, name)
    objection = judge(path, found, digests)
    if objection is not None:
        return objection
    digest = hashlib.sha256(found.data or b"").hexdigest()
    with audit.begin("spec-withdraw", f"About to remove {path}: {CAUSE}", cdi_file=path, cause=CAUSE, sha256_before=digest) as record:
        try:
            # `copied`: it goes only if it still is what was judged.
            store.remove(directory, name, copied=found.data)
        except StoreError as error:
            record.fail(error.reason, f"{path} could not be removed: {error}")
            return Result(path, Fate.FAILED, str(error))
        record.succeed(f"Removed {path}: {CAUSE}")
    return Result(path, Fate.REMOVED)


def remove_metrics(directory: str) -> Result:
    """Remove the metrics file."""
    path = os.path.join(directory, names.METRICS_FILE)
    try:
        return Result(path, Fate.REMOVED if metrics_file.remove(directory) else Fate.ABSENT)
    except OSError as error:
        return Result(path, Fate.FAILED, error.strerror or str(error))


def _believable(path: str) -> bool:
    return os.path.basename(path) in OWNED_FILES and os.path.isabs(path) and os.path.normpath(path) == path


def _sweep(directory: str, audit: Audit) -> list[Result]:
    """Remove what an interrupted write left in a directory; the next start would have done it."""
    try:
        swept = store.sweep(directory)
    except StoreError as error:
        return [Result(directory, Fate.FAILED, f"it may hold temporary files of devward: {error}")]
    if swept:
        audit.event("leftovers-swept", f"Removed {len(swept)} temporary files of devward from {directory}", count=len(swept))
    return [Result(os.path.join(directory, name), Fate.REMOVED) for name in swept]


def _remember(state: StateStore, before: State, digests: Mapping[str, tuple[str, ...]]) -> None:
    if digests == before.digests:
        return
    try:
        state.save(replace(before, digests=digests))
    except OSError as error:
        raise StateError(f"the state could not be saved: {error.strerror or error}") from error
