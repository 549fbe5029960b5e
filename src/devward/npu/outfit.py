"""What a container needs beside an NPU's own node: shared device nodes, and files of the vendor's driver. Read, never opened or changed.

Which nodes and files those are is the vendor's container runtime's knowledge (ascend-docker-runtime, and `ascend-common/cdi` of
mind-cluster): the nodes depend on the family of the chip, the files are named in list files that come with that runtime. Only what
exists on this host is of interest.
"""

import errno
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from devward import names
from devward.cluster.files import read_file
from devward.cluster.kubelet_signs import sign_of_kubelet
from devward.devices.health import sentence
from devward.model import Finding
from devward.npu.document import NOT_LOOKED_FOR, Outfit
from devward.npu.families import SHARED_DIRECTORIES, SHARED_NODES
from devward.reasons import Reason
from devward.text import printable

LIST_DIRECTORY: Final = "/etc/ascend-docker-runtime.d"
LIST_SUFFIX: Final = ".list"
#: Bytes of a list, lists, and paths of all lists together and their characters; the vendor's longest list has some twenty paths.
LIST_SIZE, LIST_COUNT, PATH_COUNT, PATH_CHARACTERS = 64 << 10, 32, 128, 16 << 10
PATH_LENGTH: Final = 1024
#: What the vendor's base.list names, for hosts that have the driver and not the runtime.
BASE_PATHS: Final = (
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/include",
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/var/queue_schedule",
)
#: What the vendor adds to the lists.
MORE_PATHS: Final = ("/etc/hccl_rootinfo.json", "/usr/local/Ascend/driver/topo")
LIBRARY_DIRECTORIES: Final = ("/usr/local/Ascend/driver/lib64/common", "/usr/local/Ascend/driver/lib64/driver")
#: Nodes of one shared directory.
DIRECTORY_LIMIT: Final = 256
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,63}", re.ASCII)


def read_outfit(root: str = "", devices: str = names.DEVICE_DIRECTORY, sysfs: str = names.SYSFS, proc: str = "/proc") -> Outfit:
    """Look at this host, or at one below `root`; for a kubelet only where `proc` is given. Never raises."""
    problems: list[Finding] = []
    nodes = frozenset(_shared_nodes(devices, sysfs, problems))
    unread: list[str] = []
    paths = _listed(root, problems, unread)
    existing = [path for path in dict.fromkeys((*paths, *MORE_PATHS)) if _exists(root + path)]
    libraries = tuple(path for path in LIBRARY_DIRECTORIES if os.path.isdir(root + path))
    kubelet = sign_of_kubelet(proc, root) if proc else NOT_LOOKED_FOR
    return Outfit(nodes, tuple(existing), libraries, tuple(problems), "; ".join(unread), not unread, kubelet)


# --- nodes -------------------------------------------------------------------------------------------------------------
def _shared_nodes(devices: str, sysfs: str, problems: list[Finding]) -> Iterator[str]:
    candidates = [*SHARED_NODES]
    for directory in SHARED_DIRECTORIES:
        try:
            found = sorted(os.listdir(f"{devices}/{directory}"))
        except OSError:
            continue
        candidates += [f"{directory}/{name}" for name in found[:DIRECTORY_LIMIT] if _NODE_NAME.fullmatch(name)]
    for name in candidates:
        defect = _node_defect(f"{devices}/{name}", os.path.basename(name), sysfs)
        if defect is None:
            yield name
        elif defect:
            problems.append(_finding(Reason.NPU_NODE_MISMATCH, f"{names.DEVICE_DIRECTORY}/{name}", defect))


def _node_defect(path: str, name: str, sysfs: str) -> str | None:
    """Return what is wrong with a node, None if nothing is, empty if it does not exist."""
    try:
        facts = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return os.strerror(error.errno or 0)
    if not stat.S_ISCHR(facts.st_mode):
        return "it is no character device"
    number = f"{os.major(facts.st_rdev)}:{os.minor(facts.st_rdev)}"
    try:
        device = os.path.basename(os.readlink(f"{sysfs}/dev/char/{number}"))
    except OSError:
        return f"no driver has its number {number}"
    # The kernel writes a slash in a device's name as an exclamation mark (lib/kobject.c).
    return None if device.rpartition("!")[2] == name else f"its number {number} is that of {printable(device, 64)}"


# --- lists -------------------------------------------------------------------------------------------------------------
def _listed(root: str, problems: list[Finding], unread: list[str]) -> tuple[str, ...]:
    """Return the paths of the vendor's lists, in their order; those of the base list where there are no lists.

    `unread` gets the lists that could not be read: what they name is not known.
    """
    directory = root + LIST_DIRECTORY
    try:
        found = sorted(name for name in os.listdir(directory) if name.endswith(LIST_SUFFIX))
        _expect_only_root(os.stat(directory))
    except FileNotFoundError:
        return BASE_PATHS
    except OSError as error:
        unread.append(LIST_DIRECTORY)
        problems.append(_finding(Reason.NPU_MOUNTS_UNREADABLE, LIST_DIRECTORY, error.strerror or str(error)))
        return ()
    if not found:
        return BASE_PATHS
    if len(found) > LIST_COUNT:
        problems.append(_finding(Reason.NPU_MOUNTS_UNREADABLE, LIST_DIRECTORY, f"of {len(found)} lists the first {LIST_COUNT} are read"))
    paths: list[str] = []
    for name in found[:LIST_COUNT]:
        shown = f"{LIST_DIRECTORY}/{printable(name, 64)}"
        try:
            paths += _read_list(f"{directory}/{name}", shown, problems)
        except FileNotFoundError:
            unread.append(shown)  # it is just being replaced: the next look finds it, or finds it gone
        except OSError as error:
            unread.append(shown)
            problems.append(_finding(Reason.NPU_MOUNTS_UNREADABLE, shown, error.strerror or str(error)))
    sizes = list(accumulate(map(len, paths)))
    used = min(PATH_COUNT, bisect_right(sizes, PATH_CHARACTERS))
    if len(paths) > used:
        problems.append(_finding(Reason.NPU_MOUNTS_UNREADABLE, LIST_DIRECTORY, f"of {len(paths)} paths the first {used} are used"))
    return tuple(paths[:used])


def _read_list(path: str, shown: str, problems: list[Finding]) -> list[str]:
    """Return the paths of one list. OSError."""
    data, facts = read_file(path, LIST_SIZE)
    _expect_only_root(facts)
    good: list[tuple[int, str]] = []
    bad: list[tuple[int, str]] = []
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").splitlines(), 1):
        text = line.strip()
        if text and not text.startswith("#"):
            (good if is_mountable(text) else bad).append((number, text))
    if bad:
        lines = ", ".join(str(number) for number, _ in bad[:5]) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
        problems.append(_finding(Reason.NPU_MOUNTS_UNREADABLE, shown, f"lines that are no plain absolute path: {lines}"))
    return [text for _, text in good]


def _expect_only_root(facts: os.stat_result) -> None:
    """Raise OSError where others may write: whoever can decides which files of the host a container sees."""
    if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(errno.EPERM, "others than root may write it")


def is_mountable(path: str) -> bool:
    """Tell whether a path may be a mount's: absolute, without a detour, and not the root of everything."""
    plain = path.isascii() and path.isprintable() and len(path) <= PATH_LENGTH
    return plain and path.startswith("/") and not path.startswith("//") and path != "/" and os.path.normpath(path) == path


def _exists(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _finding(reason: Reason, subject: str, detail: str) -> Finding:
    return Finding(reason, subject, sentence(reason, detail))
