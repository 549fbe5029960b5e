"""What container engines make of their CDI directories: which file defines a device, and what keeps them from it. Pure.

Emulates the reference cache (container-device-interface, `pkg/cdi/cache.go` and `spec-dirs.go`): directories in the order of their
priority, low to high; entries in byte order; a file that does not load is skipped; of two definitions at one priority neither counts, and
no other either; otherwise the directory that is scanned later wins.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from devward import names
from devward.cdi.spec import LoadedSpec
from devward.model import Finding
from devward.reasons import Reason
from devward.text import printable

#: One file can define thousands of devices; so many findings are told.
MAX_FINDINGS: Final = 200
#: Longest path that Linux knows; a path is published whole.
_MAX_PATH: Final = 4096
#: Characters of a device's name that are shown; the reference bounds neither its kind nor its name.
_MAX_DEVICE: Final = 600
#: Paths in one sentence.
_MAX_LISTED: Final = 5
_CLAIM_FILE: Final = re.compile(rf"{re.escape(names.NPU_CDI_KIND.replace('/', '-'))}_[A-Za-z0-9_.:-]+\.(?:json|yaml)", re.ASCII)


class ScannedType(StrEnum):
    """What a directory entry with the name of a CDI file is, links followed."""

    REGULAR = "regular"
    #: A directory, or a link to one.
    DIRECTORY = "directory"
    FIFO = "fifo"
    SOCKET = "socket"
    #: A character or block device.
    DEVICE = "device"
    #: It exists and cannot be opened or read; an engine may have more luck.
    UNREADABLE = "unreadable"
    #: Longer than the scan reads; an engine reads it.
    TOO_LARGE = "too-large"
    #: A link to nothing.
    DANGLING = "dangling"
    #: It went between listing and opening.
    VANISHED = "vanished"


class DirectoryState(StrEnum):
    """How a directory answered."""

    READ = "read"
    MISSING = "missing"
    NOT_A_DIRECTORY = "not-a-directory"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """One entry whose name ends in .json or .yaml."""

    #: As the file system has it; bytes that are not UTF-8 as surrogates.
    name: str
    type: ScannedType
    #: The entry itself is a symbolic link; `type` and the rest are of its target.
    is_link: bool = False
    #: Of a regular file that engines load.
    spec: LoadedSpec | None = None
    #: Why there is no `spec`, a sentence without the name.
    defect: str = ""
    #: False where `defect` says why it could not be judged: engines may well load it.
    examined: bool = True
    #: Where it was not examined: the devices that it defined when it last was.
    suspected: tuple[str, ...] = ()
    #: (st_dev, st_ino), where known.
    identity: tuple[int, int] | None = None
    uid: int = 0
    mtime_ns: int = 0


@dataclass(frozen=True, slots=True)
class ScannedDirectory:
    """One directory that engines read, as it was found."""

    path: str
    state: DirectoryState
    #: In byte order of their names, as engines read them.
    files: tuple[ScannedFile, ...] = ()
    #: Why it could not be read.
    error: str = ""
    #: (st_dev, st_ino) where it could be opened: two paths may lead to one directory.
    identity: tuple[int, int] | None = None
    is_link: bool = False
    uid: int = 0
    gid: int = 0
    mode: int = 0o755
    #: Entries with the name of a CDI file beyond what the scan examines.
    unexamined: int = 0

    def file_path(self, name: str) -> str:
        """Return the path of an entry, fit to be shown."""
        return printable(f"{self.path.rstrip('/')}/{name}", _MAX_PATH)


class EffectiveState(StrEnum):
    """What an engine finds when it looks for a device."""

    DEFINED = "defined"
    UNDEFINED = "undefined"
    #: Two files at one priority define it, so none does.
    DUPLICATE = "duplicate"
    #: Engines cannot finish their scan.
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class Effective:
    """What engines make of one device."""

    #: The path of the file whose definition they use; of several links to that one file, the path in the lowest directory.
    file: str | None
    state: EffectiveState
    #: The paths of all files, in the directories that engines get to read, that define it; low priority first.
    contenders: tuple[str, ...]
    #: False where a file or an entry that could not be examined might change the answer.
    certain: bool = True


@dataclass(frozen=True, slots=True)
class _Definition:
    priority: int
    path: str
    file: ScannedFile


@dataclass(frozen=True, slots=True)
class Resolution:
    """The directories as engines resolve them; made by `resolve`."""

    #: The directories that engines get to read, in order of priority.
    reached: tuple[ScannedDirectory, ...]
    #: The directory that ends their scan because they cannot read it, and those behind it; empty where all are read.
    not_reached: tuple[ScannedDirectory, ...]
    #: Directories that engines are not configured to read.
    unread: tuple[ScannedDirectory, ...]
    #: Says which entry keeps every engine from finishing its scan, and how.
    engines_blocked: str | None
    trusted_uid: int
    _definitions: Mapping[str, tuple[_Definition, ...]] = field(repr=False)
    _duplicates: frozenset[str] = field(repr=False)
    #: By the path of a directory, and a device: the names of the files that define it there.
    _definers: Mapping[str, Mapping[str, tuple[str, ...]]] = field(repr=False)
    #: Whether it is known what engines get from every file that they read.
    _certain: bool
    #: The path of a directory as it was given, to the one that is used for it.
    _spellings: Mapping[str, str] = field(repr=False)

    def effective(self, qualified: str) -> Effective:
        """Return what engines make of a device by its qualified name."""
        definitions = self._definitions.get(qualified, ())
        contenders = tuple(dict.fromkeys(definition.path for definition in definitions))
        if self.engines_blocked is not None:
            return Effective(None, EffectiveState.BLOCKED, contenders)
        certain = self._certain
        if qualified in self._duplicates:
            return Effective(None, EffectiveState.DUPLICATE, contenders)
        if not definitions:
            return Effective(None, EffectiveState.UNDEFINED, contenders, certain)
        winner = next(definition for definition in definitions if _is_same(definition, definitions[-1]))
        return Effective(winner.path, EffectiveState.DEFINED, contenders, certain)

    def rivals(self, directory: str, own_file: str, qualified: str) -> tuple[str, ...]:
        """Return the paths of the other files in `directory` that define this device too, which makes it unusable.

        `own_file` is a name or a path; the directory counts whether engines read it or not.
        """
        own_name = own_file.rpartition("/")[2]
        spelling = self._spellings.get(directory, directory)
        for scanned in (*self.reached, *self.not_reached, *self.unread):
            if scanned.path == spelling:
                found = self._definers[spelling].get(qualified, ())
                return tuple(scanned.file_path(name) for name in found if name != own_name)
        return ()

    def findings(self) -> tuple[Finding, ...]:
        """Return what an administrator should know about these directories; a directory that is listed twice is told once."""
        found: list[Finding] = []
        for directory in self.reached:
            found.extend(self._directory_findings(directory))
            found.extend(_file_findings(directory))
        if self.not_reached:
            found.append(self._stop_finding())
        found.extend(self._device_findings())
        told = tuple(dict.fromkeys(found))
        if len(told) <= MAX_FINDINGS:
            return told
        rest = f"{len(told) - MAX_FINDINGS} more findings about the CDI directories are not listed."
        return (*told[:MAX_FINDINGS], Finding(told[MAX_FINDINGS].code, told[MAX_FINDINGS].subject, rest))

    def _stop_finding(self) -> Finding:
        stop, *later = (printable(directory.path, _MAX_PATH) for directory in self.not_reached)
        skipped = f"read neither it nor {' nor '.join(later)}" if later else "do not read it"
        error = self.not_reached[0].error
        return Finding(
            Reason.CDI_DIRECTORY_UNREADABLE, stop, f"{stop} cannot be read ({error}): container engines stop there and {skipped}."
        )

    def _directory_findings(self, directory: ScannedDirectory) -> Iterator[Finding]:
        subject = printable(directory.path, _MAX_PATH)
        if directory.state is not DirectoryState.READ:
            return
        if directory.is_link:
            yield Finding(
                Reason.CDI_DIRECTORY_LINK,
                subject,
                f"{subject} is a symbolic link: container engines with a CDI library up to 1.1.0 find nothing in it.",
            )
        if directory.mode & 0o022 or directory.uid != self.trusted_uid:
            yield Finding(
                Reason.CDI_DIRECTORY_WRITABLE,
                subject,
                f"{subject} has mode {directory.mode & 0o7777:04o} and owner {directory.uid}:{directory.gid}:"
                " users other than root may define devices there for every container.",
            )
        if directory.unexamined:
            yield Finding(
                Reason.CDI_FILE_UNREADABLE,
                subject,
                f"{subject} holds {directory.unexamined} CDI files more than are examined; container engines read them all.",
            )

    def _device_findings(self) -> Iterator[Finding]:
        for qualified, definitions in sorted(self._definitions.items()):
            device = printable(qualified, _MAX_DEVICE)
            if qualified in self._duplicates:
                paths = dict.fromkeys(definition.path for definition in _clashing(definitions))
                yield Finding(
                    Reason.CDI_DEVICE_DUPLICATE,
                    device,
                    f"{_listed(paths)} define {device} in one directory: container engines can use none of its definitions.",
                )
                continue
            winner = definitions[-1]
            shadowed = dict.fromkeys(definition.path for definition in definitions if not _is_same(definition, winner))
            if shadowed:
                yield Finding(
                    Reason.CDI_SHADOWED,
                    device,
                    f"Container engines take {device} from {winner.path}{_made_for_a_claim(winner.path)};"
                    f" the definition in {_listed(shadowed)} is not used.",
                )


def _made_for_a_claim(path: str) -> str:
    """Return the words about a file that the vendor's DRA driver of Ascend NPUs makes for one claim, empty for any other.

    mind-cluster, `ascend-dynamic-resource-allocation/internal/plugin/cdi_spec_manager.go`; the name is that of the reference library's
    transient documents (container-device-interface, `pkg/cdi/version.go`): kind with a hyphen, an underscore, and what it is for.
    """
    return ", which the Ascend DRA driver made for a claim and takes away with it" if _CLAIM_FILE.fullmatch(path.rpartition("/")[2]) else ""


def shadowed_by(path: str) -> str:
    """Return what to say of a definition that a file of higher priority replaces."""
    return f"{path} wins{_made_for_a_claim(path)}"


def _definers(directory: ScannedDirectory) -> dict[str, tuple[str, ...]]:
    """Return the names of the files of a directory that define each device.

    What defined it last counts until it is known not to: to write the device into our own file meanwhile would kill it in both.
    """
    found: dict[str, list[str]] = {}
    for file in directory.files:
        for qualified in dict.fromkeys(file.spec.devices if file.spec is not None else file.suspected):
            found.setdefault(qualified, []).append(file.name)
    return {qualified: tuple(names) for qualified, names in found.items()}


def _is_same(one: _Definition, other: _Definition) -> bool:
    """Tell whether two definitions come from one file, by its path or by links to it."""
    return one.path == other.path or (one.file.identity is not None and one.file.identity == other.file.identity)


def _is_known(file: ScannedFile) -> bool:
    """Tell whether it is known what engines get from this entry."""
    return file.examined and file.type not in (ScannedType.UNREADABLE, ScannedType.TOO_LARGE)


def _clashing(definitions: Sequence[_Definition]) -> list[_Definition]:
    priorities = Counter(definition.priority for definition in definitions)
    return [definition for definition in definitions if priorities[definition.priority] > 1]


def _listed(paths: Collection[str]) -> str:
    shown = list(paths)[:_MAX_LISTED]
    more = len(paths) - len(shown)
    return " and ".join(shown) + (f" and {more} more" if more else "")


def _file_findings(directory: ScannedDirectory) -> Iterator[Finding]:
    for file in directory.files:
        path = directory.file_path(file.name)
        kind = f"a symbolic link to a {file.type}" if file.is_link else f"a {file.type}"
        match file.type:
            case ScannedType.REGULAR if file.spec is None and file.examined:
                yield Finding(Reason.CDI_FILE_MALFORMED, path, f"{path}: {file.defect}; container engines skip the file.")
            case ScannedType.REGULAR if file.spec is None:
                yield Finding(
                    Reason.CDI_FILE_UNREADABLE, path, f"{path}: {file.defect}; what container engines make of it is not known here."
                )
            case ScannedType.REGULAR if file.spec is not None and file.spec.remarks:
                remarks = "; ".join(file.spec.remarks[:5])
                yield Finding(Reason.CDI_FILE_REMARK, path, f"{path}: container engines load it, but {remarks}.")
            case ScannedType.FIFO:
                yield Finding(Reason.CDI_ENGINE_BLOCKED, path, _blocked_text(directory, file))
            case ScannedType.DEVICE:
                text = f"{path} is {kind}: container engines open it and read it to its end, which may never come."
                yield Finding(Reason.CDI_FILE_SPECIAL, path, text)
            case ScannedType.SOCKET | ScannedType.DIRECTORY:
                yield Finding(Reason.CDI_FILE_SPECIAL, path, f"{path} is {kind}: container engines skip it.")
            case ScannedType.UNREADABLE | ScannedType.TOO_LARGE:
                text = f"{path} was not examined ({file.defect}); what container engines make of it is not known here."
                yield Finding(Reason.CDI_FILE_UNREADABLE, path, text)
            case ScannedType.DANGLING:
                yield Finding(Reason.CDI_FILE_UNREADABLE, path, f"{path} is a symbolic link to nothing; container engines skip it.")
            case _:
                pass


def _blocked_text(directory: ScannedDirectory, file: ScannedFile) -> str:
    kind = "a symbolic link to a FIFO" if file.is_link else "a FIFO"
    return (
        f"{directory.file_path(file.name)} is {kind}: a container engine that opens it waits for a writer, for ever if none comes,"
        " and starts no container with a CDI device meanwhile. Remove it."
    )


def _spellings(directories: Sequence[ScannedDirectory], own_directory: str) -> dict[str, str]:
    """Give every path to one directory one spelling, `own_directory` where that is among them, else the first.

    A directory that is listed twice is read twice by engines, at two priorities: its later definitions replace its earlier ones, which
    are the same. Nothing conflicts, and with one spelling a file does not seem to shadow itself.
    """
    chosen: dict[tuple[int, int], str] = {}
    for directory in directories:
        if directory.identity is not None and (directory.identity not in chosen or directory.path == own_directory):
            chosen[directory.identity] = directory.path
    return {directory.path: directory.path if directory.identity is None else chosen[directory.identity] for directory in directories}


def resolve(
    directories: Sequence[ScannedDirectory], *, own_directory: str = "", unread: Collection[str] = (), trusted_uid: int = 0
) -> Resolution:
    """Return what engines make of these directories, which are in order of priority, low to high.

    `own_directory` is the spelling in which its files are named where engines know it by another path. `unread` are paths of
    `directories` that engines are not configured to read: they count for `rivals` only, unless an engine reads the same directory by
    another path. `trusted_uid` may own directories without a finding.
    """
    spellings = _spellings(directories, own_directory)
    for_engines = tuple(replace(entry, path=spellings[entry.path]) for entry in directories if entry.path not in unread)
    known = {entry.identity for entry in for_engines if entry.identity is not None}
    others = tuple(entry for entry in directories if entry.path in unread and entry.identity not in known)
    definitions: dict[str, list[_Definition]] = {}
    blocked: str | None = None
    reached = 0
    for priority, directory in enumerate(for_engines):
        if directory.state not in (DirectoryState.READ, DirectoryState.MISSING):
            break
        reached = priority + 1
        for file in directory.files:
            if file.type is ScannedType.FIFO and blocked is None:
                blocked = _blocked_text(directory, file)
            for qualified in file.spec.devices if file.spec is not None else ():
                definitions.setdefault(qualified, []).append(_Definition(priority, directory.file_path(file.name), file))
    return Resolution(
        reached=for_engines[:reached],
        not_reached=for_engines[reached:],
        unread=others,
        engines_blocked=blocked,
        trusted_uid=trusted_uid,
        _definitions={qualified: tuple(found) for qualified, found in definitions.items()},
        _definers={entry.path: _definers(entry) for entry in (*others, *reversed(for_engines))},
        _certain=not any(entry.unexamined or not all(map(_is_known, entry.files)) for entry in for_engines[:reached]),
        _duplicates=frozenset(qualified for qualified, found in definitions.items() if _clashing(found)),
        _spellings=spellings,
    )
