"""What a support bundle says about the host: mounts, device nodes, CDI directories, versions. Reads names and numbers, no contents."""

import importlib.metadata
import os
import platform
import shutil
import stat
import subprocess
from collections.abc import Iterable, Sequence
from typing import Final

from devward import __version__, names
from devward.ctl.when import iso
from devward.model import DeviceKind
from devward.text import printable

#: Programs whose versions matter to what containers are given, and how they tell it.
PROGRAMS: Final = (
    ("systemctl", "--version"),
    ("dbus-daemon", "--version"),
    ("containerd", "--version"),
    ("crio", "--version"),
    ("podman", "--version"),
    ("kubelet", "--version"),
)
PROGRAM_SECONDS: Final = 5.0
#: How the nodes of NPUs, vNPUs and their managers begin.
NPU_NODES: Final = ("davinci", "vdavinci")
#: Entries of one directory that are listed.
MAX_ENTRIES: Final = 1000


def mounts(mountinfo: str, paths: Iterable[str]) -> str:
    """Return the lines of a mountinfo file (proc_pid_mountinfo(5)) whose mount point is on, above or below one of the paths."""
    wanted = list(paths)
    kept = []
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        point = fields[4] if len(fields) > 4 else ""
        if point and any(_related(point, path) for path in wanted):
            kept.append(line)
    return "\n".join(kept) + "\n"


def _related(one: str, other: str) -> bool:
    first, second = one.rstrip("/") + "/", other.rstrip("/") + "/"
    return first.startswith(second) or second.startswith(first)


def listing(directory: str) -> str:
    """List a directory as `ls -l` does, with exact times; what cannot be read is said."""
    try:
        entries = sorted(os.listdir(directory))
    except OSError as error:
        return f"{directory}: {error.strerror}\n"
    lines = [f"{directory}:", describe(directory)]
    lines += [describe(os.path.join(directory, entry)) for entry in entries[:MAX_ENTRIES]]
    if len(entries) > MAX_ENTRIES:
        lines.append(f"... and {len(entries) - MAX_ENTRIES} more")
    return "\n".join(lines) + "\n"


def nodes(directory: str = names.DEVICE_DIRECTORY) -> str:
    """List the device nodes that devward may know: of hypervisors, there or not, and those of NPUs and vNPUs that are there."""
    try:
        found = sorted(entry for entry in os.listdir(directory) if entry.startswith(NPU_NODES))
    except OSError:
        found = []
    lines = [describe(os.path.join(directory, entry)) for entry in (*DeviceKind, *found[:MAX_ENTRIES])]
    if len(found) > MAX_ENTRIES:
        lines.append(f"... and {len(found) - MAX_ENTRIES} more")
    return "\n".join(lines) + "\n"


def describe(path: str) -> str:
    """Say in a line what stands at a path, without following it."""
    shown = printable(path, 4096)
    try:
        found = os.lstat(path)
    except OSError as error:
        return f"{shown}: {error.strerror}"
    device = stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)
    size = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}" if device else str(found.st_size)
    link = f" -> {printable(os.readlink(path), 4096)}" if stat.S_ISLNK(found.st_mode) else ""
    owner = f"{found.st_uid}:{found.st_gid}"
    return f"{stat.filemode(found.st_mode)} {found.st_nlink} {owner} {size} {iso(found.st_mtime_ns // 1000)} {shown}{link}"


def versions(programs: Sequence[tuple[str, str]] = PROGRAMS) -> str:
    """Return the versions of what has a part in it, one a line."""
    system = os.uname()
    lines = [f"devwardctl {__version__}", f"kernel {system.release} {system.machine}", f"python {platform.python_version()}", _os_release()]
    lines += [f"{name} {_distribution(name)}" for name in ("dbus-next", "pyudev", "sdnotify")]
    lines += [_program(name, option) for name, option in programs if shutil.which(name)]
    return "\n".join(lines) + "\n"


def _os_release() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return "operating system not told"
    return printable(release.get("PRETTY_NAME", "operating system not told"))


def _distribution(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "version not told"


def _program(name: str, option: str) -> str:
    try:
        told = subprocess.run(
            [name, option],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROGRAM_SECONDS,
            check=False,
            env={"PATH": os.environ.get("PATH", "")},
        )
    except (OSError, subprocess.TimeoutExpired):
        return f"{name}: version not told"
    return printable(told.stdout.decode(errors="replace").strip().partition("\n")[0]) or f"{name}: version not told"
