"""Finds the vendor's library, and makes sure that nobody but root could have put or changed it. Nothing is loaded here."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from devward.npu.facts import Refusal, Refused

NAME: Final = "libdcmi.so"
#: Where the vendor's packages put it; what the loader's cache has comes last.
DIRECTORIES: Final = (
    "/usr/local/dcmi",
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/lib64/driver",
    "/usr/local/Ascend/driver/lib64/common",
    "/usr/lib64",
)
_LDCONFIG: Final = "/sbin/ldconfig"
_LDCONFIG_SECONDS: Final = 10
#: Many times what it is.
SIZE_LIMIT: Final = 128 << 20
#: As many as the kernel follows.
_LINK_LIMIT: Final = 40


@dataclass(frozen=True, slots=True)
class Library:
    """A library that was found good, without links in its path, and what tells it from its successor."""

    path: str
    signature: tuple[int, ...]

    def is_unchanged(self) -> bool:
        """Tell whether the same file is still there."""
        try:
            return _signature(os.lstat(self.path)) == self.signature
        except OSError:
            return False


def find(directories: Sequence[str] = DIRECTORIES, *, use_cache: bool = True) -> str:
    """Return the path of the library, unchecked. Refused: it is nowhere."""
    for directory in directories:
        path = os.path.join(directory, NAME)
        if os.path.lexists(path):
            return path
    if use_cache:
        for path in parse_cache(_loader_cache()):
            if os.path.lexists(path):
                return path
    raise Refused(Refusal.LIBRARY_MISSING, f"there is no {NAME} in {', '.join(directories)} or in the cache of ldconfig")


def parse_cache(listing: str) -> list[str]:
    """Return the paths that a listing by `ldconfig -p` has for the library. Pure."""
    paths = []
    for line in listing.splitlines():
        entry, arrow, path = line.strip().partition(" => ")
        if arrow and entry.split(" ", 1)[0] == NAME and os.path.isabs(path):
            paths.append(path)
    return paths


def check(path: str) -> Library:
    """Follow every link to the file, and make sure that all on the way belongs to root and can be changed by nobody else. Refused."""
    if not os.path.isabs(path):
        raise Refused(Refusal.LIBRARY_UNSAFE, f"the path of the library must be absolute, and is {path}")
    try:
        return _walk(path)
    except FileNotFoundError as error:
        raise Refused(Refusal.LIBRARY_MISSING, f"{error.filename} does not exist") from error
    except OSError as error:
        raise Refused(Refusal.LIBRARY_UNSAFE, f"{error.filename} cannot be examined: {error.strerror}") from error


def _walk(path: str) -> Library:
    """Go from / to the file as the kernel does, and look at every directory and link target on the way. Refused, OSError."""
    current, links = "/", 0
    left = [part for part in path.split("/") if part]
    found = os.lstat(current)
    _require_owned(current, found)
    while left:
        if not stat.S_ISDIR(found.st_mode):
            raise Refused(Refusal.LIBRARY_UNSAFE, f"{current} is not a directory")
        name = left.pop(0)
        if name in {".", ".."}:
            current = os.path.dirname(current) if name == ".." else current
            found = os.lstat(current)
            continue
        step = os.path.join(current, name)
        entry = os.lstat(step)
        if stat.S_ISLNK(entry.st_mode):
            links += 1
            if links > _LINK_LIMIT:
                raise Refused(Refusal.LIBRARY_UNSAFE, f"too many symbolic links on the way to {path}")
            target = os.readlink(step)
            left[:0] = [part for part in target.split("/") if part]
            if target.startswith("/"):
                current = "/"
            found = os.lstat(current)
            continue
        _require_owned(step, entry)
        current, found = step, entry
    if not stat.S_ISREG(found.st_mode):
        raise Refused(Refusal.LIBRARY_UNSAFE, f"{current} is not a regular file")
    if not 0 < found.st_size <= SIZE_LIMIT:
        raise Refused(Refusal.LIBRARY_UNSAFE, f"{current} has {found.st_size} bytes, and {SIZE_LIMIT} are allowed")
    return Library(current, _signature(found))


def _require_owned(path: str, found: os.stat_result) -> None:
    if found.st_uid != 0:
        raise Refused(Refusal.LIBRARY_UNSAFE, f"{path} belongs to user {found.st_uid} and not to root")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Refused(Refusal.LIBRARY_UNSAFE, f"{path} can be written by others than root")


def _signature(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _loader_cache() -> str:
    """Return the loader's cache as `ldconfig -p` lists it; nothing where that fails."""
    # Half a megabyte that the broker holds for ever, for what is hardly ever asked: the vendor's packages put the library elsewhere.
    import subprocess

    try:
        listing = subprocess.run(
            [_LDCONFIG, "-p"], check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=_LDCONFIG_SECONDS, cwd="/", env={}
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return listing.stdout.decode("utf-8", "surrogateescape")
