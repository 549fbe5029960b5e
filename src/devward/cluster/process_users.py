"""Whose a process is: root's, or another user's, who may call it what they like.

A container may have a user namespace of its own, made by root for it: its root is another user here, and can run a kubelet all the same.
Any user can make one, too, and be root in it; such a one says nothing of the host.
"""

import errno
import fcntl
import os
import re
import struct
from typing import Final

from devward.cluster.files import read_all

Users = frozenset[int]

#: Real and effective user of /proc/PID/status; the name before it is escaped.
_USERS: Final = re.compile(rb"^Uid:\t([0-9]+)\t([0-9]+)\t", re.MULTILINE)
#: The list of groups, which may have 65,536, and of processors are in it.
_STATUS_SIZE: Final = 2 * 1024 * 1024
#: 340 lines at most (user_namespaces(7)).
_MAP_SIZE: Final = 64 * 1024
#: <linux/nsfs.h>: the namespace around another one, and who made a user namespace, as a uid of ours.
_NS_GET_PARENT: Final = 0xB702
_NS_GET_OWNER_UID: Final = 0xB704
_UID: Final = struct.Struct("=I")
#: User namespaces in each other: 32 below the first (user_namespaces(7)).
_MAX_DEPTH: Final = 40


def roots_users(process: str) -> Users | None:
    """Return the users of a process, by its directory in /proc, if it is root's, our own user's, or in a user namespace that root made.

    A kubelet is one of these. None: it is another one's. OSError: that cannot be read.
    """
    users = users_of(process)
    return users if users <= {0, os.geteuid()} or _is_in_roots_namespace(process) else None


def is_roots(process: str) -> bool:
    """Tell whether a process has `roots_users`."""
    return roots_users(process) is not None


def users_of(process: str) -> Users:
    """Return the real and the effective user of a process, by its directory in /proc. OSError: they cannot be read.

    A set-user-ID program changes only the effective one. The directory's owner tells neither: it is root wherever a process may not be
    dumped (proc(5)), and anybody can see to that.
    """
    found = _USERS.search(read_all(f"{process}/status", _STATUS_SIZE))
    if found is None:
        raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG), f"{process}/status")
    return frozenset(int(user) for user in found.groups())


def _is_in_roots_namespace(process: str) -> bool:
    own = f"{os.path.dirname(process)}/self"
    try:
        ours = os.stat(f"{own}/ns/user")
        namespace = os.open(f"{process}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        # The daemon may not follow another user's links (proc(5)), but anybody may read who is whom in it. In doubt it is root's.
        return read_all(f"{process}/uid_map", _MAP_SIZE) != read_all(f"{own}/uid_map", _MAP_SIZE)
    try:
        return _is_roots_namespace(namespace, ours)
    finally:
        os.close(namespace)


def _is_roots_namespace(namespace: int, ours: os.stat_result) -> bool:
    """Tell whether root, or our own user, made the user namespace right below ours that this one is, or is in."""
    if os.path.samestat(os.fstat(namespace), ours):
        return False
    child = os.dup(namespace)
    try:
        for _ in range(_MAX_DEPTH):
            parent = fcntl.ioctl(child, _NS_GET_PARENT)
            if os.path.samestat(os.fstat(parent), ours):
                os.close(parent)
                owner = fcntl.ioctl(child, _NS_GET_OWNER_UID, bytes(_UID.size))
                return bool(_UID.unpack(owner)[0] in (0, os.geteuid()))
            os.close(child)
            child = parent
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    finally:
        os.close(child)
