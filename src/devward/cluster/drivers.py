"""Reads which drivers for dynamic resource allocation are on this node: the kubelet's `dra_manager_state` and `plugins_registry`.

Both are below the kubelet's root directory. The first names drivers that prepared claims of Pods; in the second each plugin of the kubelet
has a socket, `<driver>-reg.sock` for a driver (pkg/kubelet/pluginmanager/pluginwatcher in kubernetes/kubernetes, also its README.md). A
socket tells no more than its name: who answers there is not asked, as the kubelet alone is to be talked to. Drivers of storage have theirs
in the same place.

Nothing is opened that could block, no link is followed, and nothing is written. For a thread: the disk may be slow.
"""

import os
import stat
from typing import Final

from devward.cluster.dra_state import SIZE_LIMIT, DraStateError, parse_dra_state
from devward.cluster.files import read_file
from devward.cluster.managers import Drivers

STATE: Final = "dra_manager_state"
REGISTRY: Final = "plugins_registry"

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: The kubelet looks into every directory below; plugins have none, or one each.
_MAX_DEPTH: Final = 8
_MAX_ENTRIES: Final = 10_000
_NAMED: Final = 3
#: Huawei's driver for storage (Huawei/eSDK_K8S_Plugin), which hands out no NPUs.
_STORAGE: Final = "csi.huawei.com"


def read_drivers(root_directory: str) -> Drivers:
    """Return what is said below the kubelet's root directory. Raises nothing for what it finds.

    Where something cannot be read, all other names are there all the same. Neither of the two being there is none; a root directory that
    cannot be opened is unreadable.
    """
    try:
        root = os.open(root_directory, _DIRECTORY)
    except OSError as error:
        return Drivers(unreadable=True, problem=_problem(root_directory, error))
    found = _Found()
    try:
        found.take_state(root)
        found.take_registry(root)
    finally:
        os.close(root)
    return Drivers(frozenset(found.names), unreadable=bool(found.problems), problem="; ".join(found.problems[:_NAMED]))


class _Found:
    """Names so far, and what could not be read."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.problems: list[str] = []
        self._left = _MAX_ENTRIES

    def take_state(self, root: int) -> None:
        try:
            data, _ = read_file(STATE, SIZE_LIMIT, directory=root)
            self.names |= parse_dra_state(data)
        except FileNotFoundError:
            return
        except OSError as error:
            self.problems.append(_problem(STATE, error))
        except DraStateError as error:
            self.problems.append(f"{STATE}: {error}")

    def take_registry(self, root: int) -> None:
        self._enter(root, REGISTRY, REGISTRY, 0)

    def _enter(self, parent: int, name: str, path: str, depth: int) -> None:
        """Take every socket in a directory and below it; one that is not there has none."""
        if depth > _MAX_DEPTH:
            self.problems.append(f"{path}: too deep")
            return
        try:
            directory = os.open(name, _DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError as error:
            self.problems.append(_problem(path, error))
            return
        try:
            for entry in self._entries(directory, path):
                if self._is_directory(entry, path):
                    self._enter(directory, entry.name, f"{path}/{entry.name}", depth + 1)
        finally:
            os.close(directory)

    def _entries(self, directory: int, path: str) -> list["os.DirEntry[str]"]:
        found: list[os.DirEntry[str]] = []
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if not self._left:
                        self.problems.append(f"{path}: too many entries")
                        break
                    self._left -= 1
                    found.append(entry)
        except OSError as error:
            self.problems.append(_problem(path, error))
        return found

    def _is_directory(self, entry: "os.DirEntry[str]", path: str) -> bool:
        """Whether to look into it; the name of a socket is taken."""
        try:
            mode = entry.stat(follow_symlinks=False).st_mode
        except FileNotFoundError:
            return False
        except OSError as error:
            self.problems.append(_problem(f"{path}/{entry.name}", error))
            return False
        if stat.S_ISDIR(mode):
            return True
        # The kubelet takes no hidden file for a plugin, and nothing but sockets; but it follows links.
        if not entry.name.startswith(".") and (stat.S_ISSOCK(mode) or stat.S_ISLNK(mode)):
            self._take_socket(entry.name)
            if stat.S_ISLNK(mode):
                self.problems.append(f"{path}/{entry.name}: a link")
        return False

    def _take_socket(self, name: str) -> None:
        # A part that tells instances of one driver from another may follow, and stays.
        driver = name.removesuffix(".sock").removesuffix("-reg")
        if driver != _STORAGE and not driver.startswith(f"{_STORAGE}-"):
            self.names.add(driver)


def _problem(path: str, error: OSError) -> str:
    return f"{path}: {os.strerror(error.errno or 0)}"
