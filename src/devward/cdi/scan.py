"""Reads the directories that container engines read, without writing, blocking or opening anything but regular files.

An entry is first held by an O_PATH descriptor, which opens nothing, and read through it only when it is a regular file: a link to a FIFO
or a device has no effect here, though engines would follow it. What is on disk never raises; it is described.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from devward.cdi.resolve import DirectoryState, ScannedDirectory, ScannedFile, ScannedType
from devward.cdi.spec import LoadedSpec, NotExamined, SpecError, is_spec_name, load

#: Bytes of a file.
MAX_FILE_SIZE: Final = 1024 * 1024
#: Files of a directory, in byte order of their names.
MAX_FILES: Final = 1000
#: Names of a directory that are looked at to find those files.
MAX_ENTRIES: Final = 100_000
#: Nanoseconds that a file must have been unchanged when it was read for its times to vouch for its content later: a second write within
#: one tick of the file system's clock leaves them as they are.
SETTLED_NS: Final = 2_000_000_000

_SPECIAL: Final = {stat.S_IFDIR: ScannedType.DIRECTORY, stat.S_IFIFO: ScannedType.FIFO, stat.S_IFSOCK: ScannedType.SOCKET}

#: (st_dev, st_ino, st_mtime_ns, st_ctime_ns, st_size, whether the name ends in .json)
_Key = tuple[int, int, int, int, int, bool]


@dataclass(frozen=True, slots=True)
class _Verdict:
    spec: LoadedSpec | None
    defect: str = ""
    examined: bool = True


class Scanner:
    """Scans directories and remembers the verdict on files that did not change. For one thread at a time."""

    def __init__(self, now_ns: Callable[[], int] = time.time_ns) -> None:
        """`now_ns` returns nanoseconds of CLOCK_REALTIME, the clock of file times."""
        self._now_ns = now_ns
        self._verdicts: dict[_Key, _Verdict] = {}

    def scan(self, directories: Sequence[str]) -> tuple[ScannedDirectory, ...]:
        """Return each directory as it is now, in the given order. Raises nothing for what it finds."""
        kept: dict[_Key, _Verdict] = {}
        try:
            return tuple(self._directory(path, kept) for path in directories)
        finally:
            # Only what was met in this scan stays: files that are gone cost nothing.
            self._verdicts = kept

    def _directory(self, path: str, kept: dict[_Key, _Verdict]) -> ScannedDirectory:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return _unusable(path, error)
        except ValueError:
            return ScannedDirectory(path, DirectoryState.UNREADABLE, error="the path is invalid")
        try:
            facts = os.fstat(descriptor)
            entries, unexamined = _entries(descriptor)
            files = tuple(self._file(descriptor, name, is_link, kept) for name, is_link in entries)
            is_link = stat.S_ISLNK(os.lstat(path.rstrip("/") or "/").st_mode)
        except OSError as error:
            return _unusable(path, error)
        finally:
            os.close(descriptor)
        return ScannedDirectory(
            path=path,
            state=DirectoryState.READ,
            files=files,
            identity=(facts.st_dev, facts.st_ino),
            is_link=is_link,
            uid=facts.st_uid,
            gid=facts.st_gid,
            mode=stat.S_IMODE(facts.st_mode),
            unexamined=unexamined,
        )

    def _file(self, directory: int, name: str, is_link: bool, kept: dict[_Key, _Verdict]) -> ScannedFile:  # noqa: FBT001  (not an option)
        try:
            facts = os.stat(name, dir_fd=directory)
            key = _key(facts, name)
            verdict = self._verdicts.get(key) if stat.S_ISREG(facts.st_mode) else None
            if verdict is not None:
                kept[key] = verdict
                return _scanned(name, is_link, facts, verdict)
            return self._examine(directory, name, is_link, kept)
        except FileNotFoundError:
            return ScannedFile(name, ScannedType.DANGLING if is_link else ScannedType.VANISHED, is_link)
        except OSError as error:
            return ScannedFile(name, ScannedType.UNREADABLE, is_link, defect=_reason(error), examined=False)

    def _examine(self, directory: int, name: str, is_link: bool, kept: dict[_Key, _Verdict]) -> ScannedFile:  # noqa: FBT001  (not an option)
        handle = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=directory)
        try:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode):
                kind = _SPECIAL.get(stat.S_IFMT(facts.st_mode), ScannedType.DEVICE)
                return ScannedFile(name, kind, is_link, identity=(facts.st_dev, facts.st_ino), uid=facts.st_uid)
            # The descriptor of the entry itself, so that what is opened is what was judged to be a regular file.
            descriptor = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        finally:
            os.close(handle)
        try:
            return self._read(descriptor, name, is_link, kept)
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int, name: str, is_link: bool, kept: dict[_Key, _Verdict]) -> ScannedFile:  # noqa: FBT001  (not an option)
        before = os.fstat(descriptor)
        data = _content(descriptor) if before.st_size <= MAX_FILE_SIZE else None
        if data is None:
            defect = f"it is longer than {MAX_FILE_SIZE} bytes"
            identity = (before.st_dev, before.st_ino)
            return ScannedFile(
                name,
                ScannedType.TOO_LARGE,
                is_link,
                None,
                defect,
                examined=False,
                identity=identity,
                uid=before.st_uid,
                mtime_ns=before.st_mtime_ns,
            )
        verdict = _judge(data, name)
        key = _key(before, name)
        settled = self._now_ns() - max(before.st_mtime_ns, before.st_ctime_ns) >= SETTLED_NS
        if settled and key == _key(os.fstat(descriptor), name):
            kept[key] = verdict
        return _scanned(name, is_link, before, verdict)


def scan(directories: Sequence[str]) -> tuple[ScannedDirectory, ...]:
    """Scan once, remembering nothing."""
    return Scanner().scan(directories)


def _unusable(path: str, error: OSError) -> ScannedDirectory:
    state = {errno.ENOENT: DirectoryState.MISSING, errno.ENOTDIR: DirectoryState.NOT_A_DIRECTORY}
    return ScannedDirectory(path, state.get(error.errno or 0, DirectoryState.UNREADABLE), error=_reason(error))


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _entries(directory: int) -> tuple[list[tuple[str, bool]], int]:
    """Return (name, is a link) of the entries that engines read, in byte order, and how many more there are, as far as was looked."""
    found: list[tuple[str, bool]] = []
    more = 0
    with os.scandir(directory) as listing:
        for count, entry in enumerate(listing):
            if count >= MAX_ENTRIES:
                more = 1
                break
            if is_spec_name(entry.name) and not entry.is_dir(follow_symlinks=False):
                found.append((entry.name, entry.is_symlink()))
    found.sort(key=lambda item: os.fsencode(item[0]))
    return found[:MAX_FILES], more + max(0, len(found) - MAX_FILES)


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


def _judge(data: bytes, name: str) -> _Verdict:
    try:
        return _Verdict(load(data, name))
    except NotExamined as error:
        return _Verdict(None, str(error), examined=False)
    except SpecError as error:
        return _Verdict(None, str(error))


def _key(facts: os.stat_result, name: str) -> _Key:
    return (facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, name.endswith(".json"))


def _scanned(name: str, is_link: bool, facts: os.stat_result, verdict: _Verdict) -> ScannedFile:  # noqa: FBT001  (not an option)
    return ScannedFile(
        name=name,
        type=ScannedType.REGULAR,
        is_link=is_link,
        spec=verdict.spec,
        defect=verdict.defect,
        examined=verdict.examined,
        identity=(facts.st_dev, facts.st_ino),
        uid=facts.st_uid,
        mtime_ns=facts.st_mtime_ns,
    )
