"""Whether a device node really is the device that it claims to be.

The node is looked up relative to a descriptor of its directory, without following links, and compared with what the kernel says in sysfs.
A node that works is not enough: a private node with the right numbers, or one with something mounted over it, is not the host's device.
Every call here is answered by devtmpfs, sysfs and proc, none by the device's driver, so none can hang on the driver.
"""

import errno
import os
import stat
import struct
from types import TracebackType
from typing import Self

from devward import names
from devward.devices.health import IdentityVerdict, NodeFacts
from devward.model import DeviceKind, Identity
from devward.reasons import Reason

#: KVM's numbers never change: MISC_MAJOR of <linux/major.h>, KVM_MINOR of <linux/miscdevice.h>. MSHV takes a dynamic minor.
FIXED_NUMBERS = {DeviceKind.KVM: "10:232"}

#: Limits of the daemon or the host, and interruptions: a look that one of them ended says nothing about the node.
_TRANSIENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})

_ACL_ATTRIBUTE = "system.posix_acl_access"
_ACL_ENTRY = struct.Struct("<HHI")  # tag, permissions, id: struct posix_acl_xattr_entry of <linux/posix_acl_xattr.h>
_ACL_USER, _ACL_GROUP = 0x02, 0x08


class IdentifiedNode:
    """An O_PATH descriptor of a node together with the verdict on it; close it, or use it as a context manager."""

    def __init__(self, verdict: IdentityVerdict, descriptor: int = -1) -> None:
        """Take over the descriptor."""
        self.verdict = verdict
        self.descriptor = descriptor

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Self:
        """Return the node itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the descriptor."""
        self.close()


def identify(kind: DeviceKind, *, device_directory: str = names.DEVICE_DIRECTORY, sysfs: str = names.SYSFS) -> IdentifiedNode:
    """Look a hypervisor's node up and judge it. Never raises for what it finds.

    The identity is UNKNOWN where the look could not be completed for want of a local resource, such as a descriptor.
    """
    try:
        expected = kernel_number(kind, sysfs)
    except OSError as error:
        return IdentifiedNode(_unreadable(error, f"{sysfs}: "))
    try:
        parent = os.open(device_directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return IdentifiedNode(_unreadable(error, f"{device_directory}: "))
    try:
        descriptor = os.open(kind.value, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError as error:
        os.close(parent)
        if error.errno == errno.ENOENT:
            detail = "" if expected is None else f"the kernel has the device as {expected}, but there is no node"
            return IdentifiedNode(IdentityVerdict(Identity.MISSING, Reason.DEVICE_MISSING, detail))
        return IdentifiedNode(_unreadable(error))
    try:
        verdict = _judge(kind, descriptor, parent, expected)
    except OSError as error:
        verdict = _unreadable(error)
    finally:
        os.close(parent)
    if verdict.identity is Identity.VALID:
        return IdentifiedNode(verdict, descriptor)
    os.close(descriptor)
    return IdentifiedNode(verdict)


def kernel_number(kind: DeviceKind, sysfs: str = names.SYSFS) -> str | None:
    """Return `major:minor` as sysfs has it for the misc device, None where the kernel has no such device. Raises OSError."""
    try:
        with open(f"{sysfs}/class/misc/{kind}/dev", encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError as error:
        # ENODEV: the device went away between open and read (kernfs).
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENODEV}:
            return None
        raise


def present(kind: DeviceKind, *, device_directory: str = names.DEVICE_DIRECTORY, sysfs: str = names.SYSFS) -> bool:
    """Tell whether there is anything to watch: a node, whatever it is, or a device in sysfs."""
    return os.path.lexists(f"{device_directory}/{kind}") or os.path.lexists(f"{sysfs}/class/misc/{kind}/dev")


def drift(facts: NodeFacts, *, mode: int | None, uid: int | None, gid: int | None) -> tuple[str, ...]:
    """Name what differs between a node and the configured expectation (None: anything goes). Pure."""
    differences = []
    if mode is not None and facts.mode != mode:
        differences.append(f"mode is {facts.mode:04o}, {mode:04o} is configured")
    if uid is not None and facts.uid != uid:
        differences.append(f"owner is {facts.uid}, {uid} is configured")
    if gid is not None and facts.gid != gid:
        differences.append(f"group is {facts.gid}, {gid} is configured")
    if mode is not None and facts.acl:
        differences.append(f"an ACL grants {', '.join(facts.acl)}")
    if facts.links > 1:
        differences.append(f"the node has {facts.links} names")
    return tuple(differences)


def _unreadable(error: OSError, prefix: str = "") -> IdentityVerdict:
    detail = f"{prefix}{os.strerror(error.errno or 0)}"
    if error.errno in _TRANSIENT:
        return IdentityVerdict(Identity.UNKNOWN, Reason.PROBE_INCONCLUSIVE, detail)
    return IdentityVerdict(Identity.INVALID, Reason.DEVICE_UNREADABLE, detail)


def _judge(kind: DeviceKind, descriptor: int, parent: int, expected: str | None) -> IdentityVerdict:
    status = os.fstat(descriptor)
    if stat.S_ISLNK(status.st_mode):
        return IdentityVerdict(Identity.INVALID, Reason.DEVICE_SYMLINK)
    if not stat.S_ISCHR(status.st_mode):
        return IdentityVerdict(Identity.INVALID, Reason.DEVICE_NOT_CHAR, f"it is {_file_type(status.st_mode)}")
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    facts = NodeFacts(
        status.st_dev, status.st_ino, number, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_nlink, _acl(descriptor)
    )
    if status.st_dev != os.fstat(parent).st_dev or _mount_id(descriptor) != _mount_id(parent):
        return IdentityVerdict(Identity.INVALID, Reason.DEVICE_COVERED, "it lies on another mount than its directory", facts)
    fixed = FIXED_NUMBERS.get(kind)
    if fixed is not None and number != fixed:
        return IdentityVerdict(Identity.INVALID, Reason.DEVICE_NUMBER_MISMATCH, f"it is {number}, {kind} is always {fixed}", facts)
    if expected is None:
        return IdentityVerdict(Identity.INVALID, Reason.DEVICE_NO_DRIVER, "", facts)
    if number != expected:
        return IdentityVerdict(Identity.INVALID, Reason.DEVICE_NUMBER_MISMATCH, f"it is {number}, the kernel has {expected}", facts)
    return IdentityVerdict(Identity.VALID, Reason.OK, "", facts)


def _mount_id(descriptor: int) -> str:
    """The id of the mount that a descriptor was opened on (proc_pid_fdinfo(5)).

    A bind mount from the same file system has the same st_dev, so that alone shows nothing.
    """
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
        for line in file:
            if line.startswith("mnt_id:"):
                return line.split()[1]
    raise OSError(errno.ENOTSUP, "no mnt_id in fdinfo")


def _acl(descriptor: int) -> tuple[str, ...]:
    try:
        value = os.getxattr(f"/proc/self/fd/{descriptor}", _ACL_ATTRIBUTE)
    except OSError as error:
        if error.errno in _TRANSIENT:
            raise
        return ()  # no ACL, or a file system without them
    entries = []
    for tag, permissions, identifier in _ACL_ENTRY.iter_unpack(value[4 : 4 + (len(value) - 4) // _ACL_ENTRY.size * _ACL_ENTRY.size]):
        if tag in (_ACL_USER, _ACL_GROUP):
            letters = "".join(letter if permissions & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("x", 1)))
            entries.append(f"{'user' if tag == _ACL_USER else 'group'}:{identifier}:{letters}")
    return tuple(entries)


def _file_type(mode: int) -> str:
    types = {
        stat.S_IFREG: "a regular file",
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFBLK: "a block device",
    }
    return types.get(stat.S_IFMT(mode), "something else")
