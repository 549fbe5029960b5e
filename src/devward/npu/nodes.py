"""Looks at the device nodes of NPUs and vNPUs, and at what sysfs says of their numbers. Nothing is ever opened: that would be use."""

import errno
import os
import stat
from typing import Final

from devward.npu.host import HostNode
from devward.npu.presence import is_node

#: More than 256 chips, 1024 vNPUs and two managers: whoever can make nodes must not make the daemon grow.
NODE_LIMIT: Final = 2048


def read_nodes(device_directory: str, sysfs: str) -> dict[str, HostNode]:
    """Return every node that has an NPU's name, by name. OSError: the directory, or sysfs, cannot be read."""
    names = sorted(filter(is_node, os.listdir(device_directory)))
    if len(names) > NODE_LIMIT:
        raise OSError(errno.EOVERFLOW, f"more than {NODE_LIMIT} nodes with names of NPUs")
    parent = os.open(device_directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        file_system = os.fstat(parent).st_dev
        found = {}
        for name in names:
            try:
                status = os.lstat(name, dir_fd=parent)
            except FileNotFoundError:
                continue  # gone since it was listed
            found[name] = _node(name, status, file_system, sysfs)
        return found
    finally:
        os.close(parent)


def _node(name: str, status: os.stat_result, file_system: int, sysfs: str) -> HostNode:
    if not stat.S_ISCHR(status.st_mode):
        return HostNode(name, status.st_ino, status.st_ctime_ns, is_character_device=False, covered=False)
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    return HostNode(
        name,
        status.st_ino,
        status.st_ctime_ns,
        is_character_device=True,
        covered=status.st_dev != file_system,
        major=major,
        minor=minor,
        kernel_name=_kernel_name(sysfs, major, minor),
    )


def _kernel_name(sysfs: str, major: int, minor: int) -> str | None:
    """Return what the kernel calls the character device of a number, of whatever subsystem. OSError."""
    try:
        # A link to the device, whose name is the last part; sysfs(5), /sys/dev.
        return os.path.basename(os.readlink(f"{sysfs}/dev/char/{major}:{minor}"))
    except FileNotFoundError:
        return None
