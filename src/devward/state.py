"""What devward remembers across restarts, in its state directory: what it wrote, what an admin set over the bus, what it replaced.

`state.json` carries a version. A minor version only adds keys at the top level, and an older daemon keeps those that it does not
know when it writes; a major version changes the meaning, and an older daemon sets such a file aside. Nothing here is ever destroyed
unread: a file that cannot be used is moved aside and reported, and the daemon starts with an empty state.
Everything is synchronous, fsyncs included: call it from a worker thread where the loop must not wait.
"""

import contextlib
import dataclasses
import datetime as dt
import fcntl
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Final, Self, TypeVar

from devward import names
from devward.directory import own_directory, read_regular, replace_file
from devward.errors import AlreadyRunning, StateError
from devward.model import MAXIMUM_PIN_REASON, CdiMode, Pin, ReclaimMode

MAJOR: Final = 1
#: 1: pins. 2: reclaiming.
MINOR: Final = 2
#: Digests that are remembered of each owned path.
DIGESTS: Final = 8
DAMAGED_KEPT: Final = 3
BACKUPS_PER_NAME: Final = 20
BACKUP_BYTES: Final = 8 << 20

#: As many pins as there can be, with the longest reasons, of characters that take twelve bytes each in JSON, take less.
_STATE_LIMIT: Final = 8 << 20
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_IDENTITY: Final = re.compile(r"[0-9a-f]{1,64}|")
_BACKUP_NAME: Final = re.compile(r"(?P<name>.+)\.(?P<stamp>\d{8}T\d{6}\.\d{6}Z)\.(?P<digest>[0-9a-f]{8})")
#: Longest name to keep a backup of: with stamp and digest it must stay a file name.
_BACKUP_NAME_LIMIT: Final = 200
_KNOWN_KEYS: Final = frozenset(
    {
        *("major", "minor", "digests", "cdi_mode", "cdi_pause", "pins"),
        *("reclaim_mode", "reclaim_pause", "pins_in_doubt"),
    }
)


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of the repairs, or of reclaiming, that somebody asked for over the bus."""

    until_usec: int
    reason: str
    caller_uid: int


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered."""

    #: SHA-256, in hexadecimal, of the contents that we wrote at each owned path, newest last.
    digests: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    #: The mode that was set over the bus; None: the configuration's.
    cdi_mode: CdiMode | None = None
    cdi_pause: Pause | None = None
    #: At most one of each target, in the order in which they were set.
    pins: tuple[Pin, ...] = ()
    #: As for CDI files.
    reclaim_mode: ReclaimMode | None = None
    reclaim_pause: Pause | None = None
    #: Whether a pin, a pause or a mode that kept vNPUs may have been lost with a damaged file; until an administrator says to go on.
    pins_in_doubt: bool = False

    def with_reclaim_mode(self, mode: ReclaimMode) -> "State":
        """Return the state with the mode that an administrator sets. Who says to enforce knows of the doubt about pins, and ends it."""
        return dataclasses.replace(self, reclaim_mode=mode, pins_in_doubt=self.pins_in_doubt and mode is not ReclaimMode.ENFORCE)

    def with_digest(self, path: str, digest: str) -> "State":
        """Return the state once content with this digest was written at `path`."""
        older = [one for one in self.digests.get(path, ()) if one != digest]
        return dataclasses.replace(self, digests=MappingProxyType({**self.digests, path: (*older, digest)[-DIGESTS:]}))

    def pin_of(self, target: str) -> Pin | None:
        """Return the pin of a target."""
        return next((pin for pin in self.pins if pin.target == target), None)

    def with_pin(self, pin: Pin) -> "State":
        """Return the state with this pin, in place of any other of its target."""
        return dataclasses.replace(self, pins=(*(one for one in self.pins if one.target != pin.target), pin))

    def without_pin(self, target: str) -> "State":
        """Return the state without the pin of a target."""
        return dataclasses.replace(self, pins=tuple(one for one in self.pins if one.target != target))


@dataclass(frozen=True, slots=True)
class Loaded:
    """What `load` found; `problem` is a sentence for the audit, None when all is well."""

    state: State
    problem: str | None = None


class StateStore:
    """The state directory. One process at a time uses it: take the Lock first."""

    def __init__(self, directory: str, *, realtime_usec: Callable[[], int]) -> None:
        """Use `directory`; nothing is touched yet. `realtime_usec` gives microseconds since 1970, for the names of copies."""
        self._directory = directory
        self._realtime_usec = realtime_usec
        #: Top-level keys of a newer minor version, and that version.
        self._foreign: dict[str, object] = {}
        self._minor = MINOR
        #: Where the file on disk must go before it may be replaced, if `load` could not move it there.
        self._set_aside_as: str | None = None

    def load(self) -> Loaded:
        """Read the state. A file that cannot be used is kept as a copy and reported. StateError: the directory is not ours."""
        with own_directory(self._directory) as directory:
            try:
                data = read_regular(directory, names.STATE_FILE, _STATE_LIMIT)
            except (OSError, ValueError) as error:
                return Loaded(_IN_DOUBT, self._put_aside(directory, "damaged", str(error)))
            if data is None:
                # Without a file, one that was set aside is all that there was: nobody has looked at that since.
                return Loaded(_IN_DOUBT if _was_set_aside(directory) else State())
            document = _document(data)
            major = document.get("major")
            if not _is_count(major):
                return Loaded(_IN_DOUBT, self._put_aside(directory, "damaged", "not a JSON object with a version"))
            if major != MAJOR:
                why = f"written by a devward with state version {major}, this one has {MAJOR}"
                return Loaded(_IN_DOUBT, self._put_aside(directory, f"newer-{major}", why))
            state, problems = _parse(document)
            self._foreign = {key: value for key, value in document.items() if key not in _KNOWN_KEYS}
            self._minor = max(MINOR, _count(document.get("minor")))
            if not problems:
                return Loaded(state)
            problem = self._put_aside(directory, "damaged", "; ".join(problems))
        # What could be read, and protects, must not be lost because nothing is saved before the daemon ends.
        with contextlib.suppress(OSError, StateError):
            self.save(state)
        return Loaded(state, problem)

    def save(self, state: State) -> bool:
        """Put the state on disk, durable when this returns; False: it is there already. StateError: it cannot be written."""
        data = self._render(state)
        with own_directory(self._directory) as directory:
            if self._set_aside_as is not None:
                self._move(directory, self._set_aside_as)
            with contextlib.suppress(ValueError):
                if read_regular(directory, names.STATE_FILE, _STATE_LIMIT) == data:
                    return False
            replace_file(directory, names.STATE_FILE, data)
        return True

    def backup(self, name: str, data: bytes) -> str:
        """Keep a copy of a foreign file that is about to be replaced; return its path, durable when this returns.

        The newest copy of that name is not made twice. ValueError: `name` is no plain file name. StateError: it cannot be kept, and
        then the file must not be replaced.
        """
        if "/" in name or "\0" in name or name in ("", ".", "..") or len(os.fsencode(name)) > _BACKUP_NAME_LIMIT:
            raise ValueError(f"not a plain file name: {name!r}")
        if len(data) > BACKUP_BYTES:
            raise StateError(f"{name}: {len(data)} bytes are more than all backups may have together ({BACKUP_BYTES})")
        digest = hashlib.sha256(data).hexdigest()[:8]
        stamp = dt.datetime.fromtimestamp(self._realtime_usec() / 1_000_000, dt.UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        with own_directory(self._directory) as directory, own_directory(names.BACKUP_DIRECTORY, parent=directory) as folder:
            same = [one for one in _backups(folder) if one.name == name]
            if same and same[-1].digest == digest and read_regular(folder, same[-1].file, BACKUP_BYTES) == data:
                file = same[-1].file
            else:
                file = f"{name}.{stamp}.{digest}"
                replace_file(folder, file, data)
                os.fsync(directory)
            _prune_backups(folder, keep=file, name=name)
        return os.path.join(self._directory, names.BACKUP_DIRECTORY, file)

    def _render(self, state: State) -> bytes:
        document: dict[str, object] = {
            **self._foreign,
            "major": MAJOR,
            "minor": self._minor,
            "digests": {path: list(digests[-DIGESTS:]) for path, digests in state.digests.items()},
            "cdi_mode": state.cdi_mode,
            "cdi_pause": dataclasses.asdict(state.cdi_pause) if state.cdi_pause else None,
            "pins": [dataclasses.asdict(pin) for pin in state.pins],
            "reclaim_mode": state.reclaim_mode,
            "reclaim_pause": dataclasses.asdict(state.reclaim_pause) if state.reclaim_pause else None,
            "pins_in_doubt": state.pins_in_doubt,
        }
        return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode("ascii")

    def _put_aside(self, directory: int, kind: str, why: str) -> str:
        """Move the file away, now or, if that fails, before the next save; return the sentence that reports it."""
        target = f"{names.STATE_FILE}.{kind}-{self._realtime_usec()}"
        path = os.path.join(self._directory, names.STATE_FILE)
        try:
            self._move(directory, target)
        except OSError as error:
            self._set_aside_as = target
            return f"{path}: {why}; it could not be set aside ({error.strerror}), and nothing will be saved until it can"
        return f"{path}: {why}; it was set aside as {target}"

    def _move(self, directory: int, target: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.rename(names.STATE_FILE, target, src_dir_fd=directory, dst_dir_fd=directory)
            os.fsync(directory)
        self._set_aside_as = None
        prefix = f"{names.STATE_FILE}.damaged-"
        damaged = sorted((name for name in os.listdir(directory) if name.startswith(prefix)), key=lambda name: (len(name), name))
        for name in damaged[:-DAMAGED_KEPT]:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=directory)


#: What is left where nothing could be read.
_IN_DOUBT: Final = State(pins_in_doubt=True)


def _was_set_aside(directory: int) -> bool:
    prefixes = (f"{names.STATE_FILE}.damaged-", f"{names.STATE_FILE}.newer-")
    return any(name.startswith(prefixes) for name in os.listdir(directory))


def _document(data: bytes) -> dict[str, object]:
    """Return the JSON object in `data`, empty if it is none."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _parse(document: Mapping[str, object]) -> tuple[State, list[str]]:
    """Return the state in a document of our major version, each key on its own, and what is wrong with the others."""
    problems: list[str] = []
    digests: dict[str, tuple[str, ...]] = {}
    stored = document.get("digests", {})
    for path, values in stored.items() if isinstance(stored, dict) else [("digests", None)]:
        if isinstance(values, list) and all(isinstance(one, str) and _DIGEST.fullmatch(one) for one in values):
            digests[path] = tuple(values[-DIGESTS:])
        else:
            problems.append("digests are not as devward writes them")
    mode = _mode("cdi_mode", CdiMode, document, problems)
    pause = _pause("cdi_pause", document, problems)
    pins, pin_problems, is_pin_lost = _pins(document.get("pins", []))
    # Of here on, what cannot be read may have kept a vNPU.
    doubts: list[str] = []
    reclaim_mode = _mode("reclaim_mode", ReclaimMode, document, doubts)
    reclaim_pause = _pause("reclaim_pause", document, doubts)
    in_doubt = _flag("pins_in_doubt", document, doubts) or is_pin_lost or bool(doubts)
    state = State(MappingProxyType(digests), mode, pause, pins, reclaim_mode, reclaim_pause, in_doubt)
    return state, problems + pin_problems + doubts


_Mode = TypeVar("_Mode", CdiMode, ReclaimMode)


def _mode(key: str, modes: type[_Mode], document: Mapping[str, object], problems: list[str]) -> _Mode | None:
    stored = document.get(key)
    if stored in list(modes):
        return modes(str(stored))
    if stored is not None:
        problems.append(f"{key} is none that this version knows")
    return None


def _pause(key: str, document: Mapping[str, object], problems: list[str]) -> Pause | None:
    match document.get(key):
        case None:
            return None
        case {"until_usec": int(until), "reason": str(reason), "caller_uid": int(uid)} if 0 <= until < 1 << 63 and 0 <= uid < 1 << 32:
            return Pause(until, reason, uid)
        case _:
            problems.append(f"{key} is not as devward writes it")
            return None


def _flag(key: str, document: Mapping[str, object], problems: list[str]) -> bool:
    """Return a flag that stops something: one that cannot be read does."""
    stored = document.get(key, False)
    if not isinstance(stored, bool):
        problems.append(f"{key} is not as devward writes it")
        return True
    return stored


def _pins(stored: object) -> tuple[tuple[Pin, ...], list[str], bool]:
    """Return the pins, each on its own, what is wrong with them, and whether one is lost.

    One whose target can be read protects it, whatever else is wrong with it.
    """
    if not stored:
        return ((), [], False) if isinstance(stored, list) else ((), ["pins are not as devward writes them"], True)
    # Of NPUs nothing is loaded before it is needed.
    from devward.npu.pins import Target

    pins: dict[str, Pin] = {}
    problems: list[str] = []
    is_lost = False
    for number, entry in enumerate(stored if isinstance(stored, list) else [stored], 1):
        match entry:
            case {"target": str(target), **rest}:
                pass
            case _:
                target, rest = "", {}
        try:
            Target.parse(target)
        except ValueError:
            problems.append(f"the target of pin {number} cannot be read, and it protects nothing")
            is_lost = True
            continue
        pin = _pin(target, rest)
        if pin is None or target in pins:
            problems.append(f"the pin of {target} is not as devward writes it, and protects only")
            pin = Pin(target, "", 0, 0)
        pins[target] = pin
    return tuple(pins.values()), problems, is_lost


def _pin(target: str, rest: Mapping[object, object]) -> Pin | None:
    match rest:
        case {"reason": str(reason), "caller_uid": int(uid), "since_usec": int(since), "identity": str(identity)} if (
            len(reason) <= MAXIMUM_PIN_REASON and 0 <= uid < 1 << 32 and 0 <= since < 1 << 63 and _IDENTITY.fullmatch(identity)
        ):
            return Pin(target, reason, uid, since, identity)
        case _:
            return None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


@dataclass(frozen=True, slots=True)
class _Backup:
    stamp: str
    file: str
    name: str
    digest: str


def _backups(folder: int) -> list[_Backup]:
    """Return the backups in a folder, oldest first; what is not named as one is none of ours."""
    matches = (_BACKUP_NAME.fullmatch(file) for file in os.listdir(folder))
    found = [_Backup(match["stamp"], match[0], match["name"], match["digest"]) for match in matches if match]
    return sorted(found, key=lambda one: (one.stamp, one.file))


def _prune_backups(folder: int, *, keep: str, name: str) -> None:
    """Remove the oldest backups beyond the limits, never the one just made, though a clock set back makes it look the oldest."""
    others = [one for one in _backups(folder) if one.file != keep]
    sizes = {one.file: os.stat(one.file, dir_fd=folder, follow_symlinks=False).st_size for one in others}
    of_name = [one for one in others if one.name == name]
    doomed = {one.file for one in of_name[: max(0, len(of_name) + 1 - BACKUPS_PER_NAME)]}
    total = os.stat(keep, dir_fd=folder, follow_symlinks=False).st_size + sum(sizes.values()) - sum(sizes[file] for file in doomed)
    for one in others:
        if total <= BACKUP_BYTES:
            break
        if one.file not in doomed:
            doomed.add(one.file)
            total -= sizes[one.file]
    for file in doomed:
        with contextlib.suppress(OSError):
            os.unlink(file, dir_fd=folder)


class Lock:
    """The lock that keeps a second devwardd away: flock(2) on a file in the runtime directory, which holds the owner's pid."""

    def __init__(self, directory: str) -> None:
        """Use the lock file in `directory`; nothing is touched yet."""
        self._directory = directory
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, until `release` or the end of the process. AlreadyRunning: names the owner's pid. StateError."""
        if self._descriptor is not None:
            raise RuntimeError("the lock is held already")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with own_directory(self._directory, mode=0o755) as directory:
            descriptor = os.open(names.LOCK_FILE, flags, 0o600, dir_fd=directory)
            try:
                self._take(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock up. The file stays: to remove it would let two daemons lock two files of one name."""
        if self._descriptor is not None:
            # Not by closing alone: a child between fork and exec has the descriptor too.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        """Take the lock."""
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Give it up."""
        self.release()

    def _take(self, descriptor: int) -> None:
        path = os.path.join(self._directory, names.LOCK_FILE)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StateError(f"{path}: not a regular file")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            who = f"pid {owner}" if owner.isdigit() else "a process that has not written its pid yet"
            raise AlreadyRunning(f"another devwardd runs: {who} holds {path}") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
