"""Reads the directories that container engines read, without writing, blocking or opening anything but regular files.

An entry is first held by an O_PATH descriptor, which opens nothing, and read through it only when it is a regular file: a link to a FIFO
or a device has no effect here, though engines would follow it. What is on disk never raises; it is described. Whoever may make an entry
there must neither learn from the description what they may not read themselves, nor take more than a share of the time.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from devward.cdi.judged import Allowance, FileKey, Verdict, Verdicts, content_key, judge, judge_plain
from devward.cdi.resolve import DirectoryState, ScannedDirectory, ScannedFile, ScannedType
from devward.cdi.spec import is_spec_name

#: Bytes of a file.
MAX_FILE_SIZE: Final = 1024 * 1024
#: Files of a directory, in byte order of their names.
MAX_FILES: Final = 1000
#: Bytes of the files of a directory that are examined, the smallest first.
MAX_DIRECTORY_SIZE: Final = 8 * 1024 * 1024
#: Devices that the files of a directory define, taken in the same order: each costs memory, and time at every look at the whole.
MAX_DEVICES: Final = 10_000
#: Names of a directory that are looked at to find those files.
MAX_ENTRIES: Final = 100_000
#: Nanoseconds that a file must have been unchanged when it was read for its times to vouch for its content later: a second write within
#: one tick of the file system's clock leaves them as they are.
SETTLED_NS: Final = 2_000_000_000
#: Bytes of a file that counts as small: as plain JSON it takes a millisecond.
SMALL: Final = 16 * 1024
#: Processor seconds for what is new, at once and as a share of time; once for small files, and once for long ones and YAML.
BURST, SHARE = 0.3, 0.1

_BEYOND: Final = (
    f"it is not among the smallest files of its directory that have {MAX_DIRECTORY_SIZE} bytes together, which devward examines"
)
_TOO_MANY: Final = f"it is not among the smallest files of its directory that define {MAX_DEVICES} devices together, which devward examines"
_WAITING: Final = "it waits to be examined, since there is more that is new than devward reads at a time"
_SPECIAL: Final = {stat.S_IFDIR: ScannedType.DIRECTORY, stat.S_IFIFO: ScannedType.FIFO, stat.S_IFSOCK: ScannedType.SOCKET}

#: A name in a directory: (st_dev and st_ino of the directory, the name).
_Place: TypeAlias = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class _Listing:
    """A directory that is open."""

    path: str
    descriptor: int
    facts: os.stat_result
    is_link: bool
    names: list[str]
    unexamined: int
    #: The names of our own files that belong here.
    own: frozenset[str]
    files: dict[str, ScannedFile] = field(default_factory=dict)
    #: The names of those that may be examined, in order.
    examinable: list[str] = field(default_factory=list)

    def place(self, name: str) -> _Place:
        return self.facts.st_dev, self.facts.st_ino, name


@dataclass(frozen=True, slots=True)
class _Regular:
    """A regular file, or a link to one, as it was met."""

    listing: _Listing
    name: str
    is_link: bool
    facts: os.stat_result

    @property
    def is_own(self) -> bool:
        return self.name in self.listing.own

    def described(self, verdict: Verdict) -> ScannedFile:
        verdict = _fit_to_be_shown(verdict, self.is_link, self.facts, self.listing.facts)
        return replace(self._bare(ScannedType.REGULAR), spec=verdict.spec, defect=verdict.defect, examined=verdict.examined)

    def not_examined(self, why: str, kind: ScannedType = ScannedType.REGULAR) -> ScannedFile:
        return replace(self._bare(kind), defect=why, examined=False)

    def _bare(self, kind: ScannedType) -> ScannedFile:
        facts = self.facts
        identity = (facts.st_dev, facts.st_ino)
        return ScannedFile(self.name, kind, self.is_link, identity=identity, uid=facts.st_uid, mtime_ns=facts.st_mtime_ns)


class Scanner:
    """Scans directories and remembers the verdict on content that it has met. For one thread at a time."""

    def __init__(
        self,
        now_ns: Callable[[], int] = time.time_ns,
        *,
        own_paths: Collection[str] = (),
        monotonic: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        """`now_ns` returns nanoseconds of CLOCK_REALTIME, the clock of file times. The files at `own_paths` come before all others."""
        self._now_ns = now_ns
        self._own_paths = tuple(own_paths)
        self._verdicts = Verdicts()
        self._small = Allowance(BURST, SHARE, monotonic=monotonic, cpu=cpu)
        self._long = Allowance(BURST, SHARE, monotonic=monotonic, cpu=cpu)
        self._scans = 0
        #: What waits to be examined, since which scan, who has waited longest comes first; and whether it has to be read as YAML.
        self._waiting: dict[_Place, tuple[int, bool]] = {}
        self._still_waiting: dict[_Place, tuple[int, bool]] = {}
        #: The devices that were last known to be defined in a place.
        self._defined: dict[_Place, tuple[str, ...]] = {}

    @property
    def waiting(self) -> bool:
        """Whether the latest scan left files for a later one."""
        return bool(self._waiting)

    def scan(self, directories: Sequence[str]) -> tuple[ScannedDirectory, ...]:
        """Return each directory as it is now, in the given order. Raises nothing for what it finds."""
        self._scans += 1
        self._still_waiting = {}
        with ExitStack() as opened:
            listings = [self._open(path, opened) for path in directories]
            unknown = [file for listing in listings if isinstance(listing, _Listing) for file in self._meet(listing)]
            for file in sorted(unknown, key=self._turn):
                file.listing.files[file.name] = self._examine(file)
        defined = self._defined
        self._defined = {}
        self._waiting = self._still_waiting
        # Only what was met in this scan stays: files that are gone cost nothing.
        self._verdicts.end_scan()
        return tuple(self._described(listing, defined) if isinstance(listing, _Listing) else listing for listing in listings)

    def _open(self, path: str, opened: ExitStack) -> _Listing | ScannedDirectory:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return _unusable(path, error)
        except ValueError:
            return ScannedDirectory(path, DirectoryState.UNREADABLE, error="the path is invalid")
        opened.callback(os.close, descriptor)
        own = frozenset(name for directory, _, name in (own.rpartition("/") for own in self._own_paths) if directory == path.rstrip("/"))
        try:
            facts = os.fstat(descriptor)
            names, unexamined = _names(descriptor, own)
            is_link = stat.S_ISLNK(os.lstat(path.rstrip("/") or "/").st_mode)
        except OSError as error:
            return _unusable(path, error)
        return _Listing(path, descriptor, facts, is_link, names, unexamined, own)

    def _meet(self, listing: _Listing) -> list[_Regular]:
        """Describe the entries of which all is known, and return the others."""
        regular = []
        for name in listing.names:
            met = _entry(listing, name)
            if isinstance(met, ScannedFile):
                listing.files[name] = met
            elif met.facts.st_size > MAX_FILE_SIZE:
                listing.files[name] = met.not_examined(f"it is longer than {MAX_FILE_SIZE} bytes", ScannedType.TOO_LARGE)
            else:
                regular.append(met)
        unknown = []
        total = 0
        # By what is on disk alone and not by what is known already: the same files give the same answer in every scan.
        for file in sorted(regular, key=_by_size):
            total += file.facts.st_size
            if total > MAX_DIRECTORY_SIZE:
                listing.files[file.name] = file.not_examined(_BEYOND)
                continue
            listing.examinable.append(file.name)
            verdict = self._verdicts.of_file(_key(file.facts, file.name))
            if verdict is None:
                unknown.append(file)
            else:
                listing.files[file.name] = file.described(verdict)
        return unknown

    def _turn(self, file: _Regular) -> tuple[bool, int, bool, int, bytes]:
        since, _ = self._waiting.get(file.listing.place(file.name), (self._scans, False))
        return (not file.is_own, since, *_by_size(file))

    def _examine(self, file: _Regular) -> ScannedFile:
        try:
            return self._read(file)
        except OSError as error:
            return _failed(file.name, error, is_link=file.is_link)

    def _read(self, file: _Regular) -> ScannedFile:
        _, is_yaml = self._waiting.get(file.listing.place(file.name), (0, False))
        small = file.facts.st_size <= SMALL and not is_yaml
        allowance = self._small if small else self._long
        # Our own files are small, and nothing that others do may keep them from being seen.
        if not (small and file.is_own) and not allowance.left():
            return self._later(file, is_yaml=is_yaml)
        with ExitStack() as opened, allowance.charged():
            handle, is_link = _hold(file, opened)
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode):
                return _special(file.name, facts, is_link=is_link)
            # The descriptor of the entry itself, so that what is opened is what was judged to be a regular file.
            descriptor = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            opened.callback(os.close, descriptor)
            file = replace(file, is_link=is_link, facts=os.fstat(descriptor))
            data = _content(descriptor)
            if data is None:
                return file.not_examined(f"it is longer than {MAX_FILE_SIZE} bytes", ScannedType.TOO_LARGE)
            key = _key(file.facts, file.name)
            settled = self._now_ns() - max(file.facts.st_mtime_ns, file.facts.st_ctime_ns) >= SETTLED_NS
            vouched = settled and key == _key(os.fstat(descriptor), file.name)
            content = content_key(data, file.name)
            verdict = self._verdicts.of_content(content) or (judge_plain(data, file.name) if small else judge(data, file.name))
        if verdict is None:
            if not self._long.left():
                return self._later(file, is_yaml=True)
            with self._long.charged():
                verdict = judge(data, file.name)
        self._verdicts.add(content, verdict, len(data))
        if vouched:
            self._verdicts.vouch(key, content)
        return file.described(verdict)

    def _later(self, file: _Regular, *, is_yaml: bool) -> ScannedFile:
        place = file.listing.place(file.name)
        since, _ = self._waiting.get(place, (self._scans, False))
        self._still_waiting[place] = since, is_yaml
        return file.not_examined(_WAITING)

    def _described(self, listing: _Listing, defined: dict[_Place, tuple[str, ...]]) -> ScannedDirectory:
        _bound_devices(listing)
        files = []
        for name in listing.names:
            file = listing.files[name]
            place = listing.place(name)
            if file.spec is not None:
                self._defined[place] = file.spec.devices
            elif file.suspected:
                self._defined[place] = file.suspected
            elif not file.examined and place in defined:
                self._defined[place] = defined[place]
                file = replace(file, suspected=defined[place])
            files.append(file)
        return ScannedDirectory(
            path=listing.path,
            state=DirectoryState.READ,
            files=tuple(files),
            identity=(listing.facts.st_dev, listing.facts.st_ino),
            is_link=listing.is_link,
            uid=listing.facts.st_uid,
            gid=listing.facts.st_gid,
            mode=stat.S_IMODE(listing.facts.st_mode),
            unexamined=listing.unexamined,
        )


def scan(directories: Sequence[str]) -> tuple[ScannedDirectory, ...]:
    """Scan once, remembering nothing."""
    return Scanner().scan(directories)


def _unusable(path: str, error: OSError) -> ScannedDirectory:
    state = {errno.ENOENT: DirectoryState.MISSING, errno.ENOTDIR: DirectoryState.NOT_A_DIRECTORY}
    return ScannedDirectory(path, state.get(error.errno or 0, DirectoryState.UNREADABLE), error=_reason(error))


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _names(directory: int, own: Collection[str]) -> tuple[list[str], int]:
    """Return the names of the entries that engines read, in byte order, and how many more there are, as far as was looked."""
    found: list[str] = []
    more = 0
    with os.scandir(directory) as listing:
        for count, entry in enumerate(listing):
            if count >= MAX_ENTRIES:
                more = 1
                break
            if is_spec_name(entry.name) and not entry.is_dir(follow_symlinks=False):
                found.append(entry.name)
    found.sort(key=os.fsencode)
    shown = found[:MAX_FILES]
    if len(shown) < len(found) + more:
        beyond = [name for name in own if name not in shown and _stands(directory, name)]
        if beyond:
            others = [name for name in shown if name not in own]
            kept = MAX_FILES - len(beyond) - (len(shown) - len(others))
            shown = sorted([*others[:kept], *(name for name in shown if name in own), *beyond], key=os.fsencode)
    return shown, more + max(0, len(found) - MAX_FILES)


def _bound_devices(listing: _Listing) -> None:
    total = 0
    for name in listing.examinable:
        file = listing.files[name]
        if file.spec is not None:
            total += len(file.spec.devices)
            if total > MAX_DEVICES:
                listing.files[name] = replace(file, spec=None, defect=_TOO_MANY, examined=False, suspected=file.spec.devices)


def _stands(directory: int, name: str) -> bool:
    try:
        return not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _entry(listing: _Listing, name: str) -> _Regular | ScannedFile:
    """Return what a name stands for, links followed."""
    is_link = False
    try:
        # Without a second look: what is no link here has these facts, whatever takes its place meanwhile.
        facts = os.stat(name, dir_fd=listing.descriptor, follow_symlinks=False)
        if stat.S_ISLNK(facts.st_mode):
            is_link = True
            facts = os.stat(name, dir_fd=listing.descriptor)
    except OSError as error:
        return _failed(name, error, is_link=is_link)
    if stat.S_ISREG(facts.st_mode):
        return _Regular(listing, name, is_link, facts)
    return _special(name, facts, is_link=is_link)


def _special(name: str, facts: os.stat_result, *, is_link: bool) -> ScannedFile:
    kind = _SPECIAL.get(stat.S_IFMT(facts.st_mode), ScannedType.DEVICE)
    return ScannedFile(name, kind, is_link, identity=(facts.st_dev, facts.st_ino), uid=facts.st_uid)


def _failed(name: str, error: OSError, *, is_link: bool) -> ScannedFile:
    if error.errno == errno.ENOENT:
        return ScannedFile(name, ScannedType.DANGLING if is_link else ScannedType.VANISHED, is_link)
    return ScannedFile(name, ScannedType.UNREADABLE, is_link, defect=_reason(error), examined=False)


def _by_size(file: _Regular) -> tuple[bool, int, bytes]:
    return (not file.is_own, file.facts.st_size, os.fsencode(file.name))


def _hold(file: _Regular, opened: ExitStack) -> tuple[int, bool]:
    """Return an O_PATH descriptor of what a name stands for, and whether a link leads there: now, not when it was met."""
    handle = os.open(file.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=file.listing.descriptor)
    opened.callback(os.close, handle)
    if not stat.S_ISLNK(os.fstat(handle).st_mode):
        return handle, False
    handle = os.open(file.name, os.O_PATH | os.O_CLOEXEC, dir_fd=file.listing.descriptor)
    opened.callback(os.close, handle)
    return handle, True


def _content(descriptor: int) -> bytes | None:
    """Return the whole content, or None where it is longer than a file may be."""
    pieces: list[bytes] = []
    left = MAX_FILE_SIZE + 1
    while left > 0:
        piece = os.read(descriptor, min(left, 64 * 1024))
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        left -= len(piece)
    return None


def _key(facts: os.stat_result, name: str) -> FileKey:
    return (facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, name.endswith(".json"))


def _fit_to_be_shown(verdict: Verdict, is_link: bool, file: os.stat_result, directory: os.stat_result) -> Verdict:  # noqa: FBT001  (a fact)
    """Take what is quoted out of the verdict on a file that not everybody may read: findings are shown to every user of the host.

    Behind a link there may be anything, /etc/shadow for one, at a place that only root gets to; its mode does not count.
    """
    if is_link:
        why = "it is a symbolic link"
    elif not file.st_mode & stat.S_IROTH or not directory.st_mode & stat.S_IXOTH:
        why = "not everybody may read it"
    else:
        return verdict
    if verdict.spec is not None:
        # It is a CDI document, whose kind and device names are there to be asked for, and needed to say what conflicts with what.
        remarks = (f"what is odd about it is not shown, since {why}",) if verdict.spec.remarks else ()
        return replace(verdict, spec=replace(verdict.spec, remarks=remarks))
    if not verdict.examined:
        return verdict  # one of our own sentences about bounds
    return replace(verdict, defect=f"it is no CDI document (the reason is not shown, since {why}; `cdi validate`, run by root, tells it)")
