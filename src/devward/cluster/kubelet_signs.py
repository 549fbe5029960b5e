"""Whether a kubelet runs on this host, by what every process may see: root's processes by name, and a file. A doubt counts as a kubelet.

The names by which a kubelet is known stand here, for all who look for one. This says nothing of which process it is, nor of what it
manages. What is not root's says nothing: anybody can call a process kubelet.
"""

import errno
import os
import re
from typing import Final

from devward.cluster.files import read_all

#: Programs that are or hold a kubelet, by the kernel's name of their first thread (proc(5), /proc/PID/comm).
PROGRAMS: Final = frozenset({"kubelet", "kubelite", "k3s", "k3s-server", "k3s-agent", "rke2", "rke2-server", "rke2-agent", "hyperkube"})
#: Its checkpoint of devices: `kubeletDeviceManagerCheckpoint` in pkg/kubelet/cm/devicemanager/types.go of kubernetes/kubernetes.
CHECKPOINT: Final = "kubelet_internal_checkpoint"
#: Every kubelet listens there for device plugins, whatever its root directory (k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1/constants.go).
SOCKET: Final = "/var/lib/kubelet/device-plugins/kubelet.sock"
_NAME_SIZE: Final = 64
#: Real and effective user of /proc/PID/status; the name before it is escaped.
_USERS: Final = re.compile(rb"^Uid:\t([0-9]+)\t([0-9]+)\t", re.MULTILINE)
#: The list of groups, which may have 65,536, and of processors are in it.
_STATUS_SIZE: Final = 2 * 1024 * 1024
_GONE: Final = frozenset({errno.ENOENT, errno.ESRCH})
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR})


def sign_of_kubelet(proc: str = "/proc", root: str = "") -> str:
    """Return what shows that a kubelet runs, or why that cannot be told, for people; empty where none does."""
    try:
        os.lstat(root + SOCKET)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            return f"{SOCKET}: {os.strerror(error.errno or 0)}"
    else:
        return SOCKET
    try:
        for entry in os.listdir(proc):
            if entry.isdecimal() and (name := _name(f"{proc}/{entry}")) in PROGRAMS:
                return f"process {entry}, {name}"
    except OSError as error:
        return f"{error.filename or proc}: {os.strerror(error.errno or 0)}"
    return ""


def is_roots(process: str) -> bool:
    """Tell whether a process, by its directory in /proc, is root's or our own user's, or may be root's in another user namespace.

    A kubelet is one of these. OSError: that cannot be read.

    Its real user counts as well as the effective one, which a set-user-ID program changes. The directory's owner tells neither: it is root
    wherever a process may not be dumped (proc(5)), and anybody can see to that.
    """
    found = _USERS.search(read_all(f"{process}/status", _STATUS_SIZE))
    if found is None:
        raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG), f"{process}/status")
    if {int(user) for user in found.groups()} <= {0, os.geteuid()}:
        return True
    # A container's root is another user here, and its kubelet is one all the same.
    try:
        return os.readlink(f"{process}/ns/user") != os.readlink(f"{os.path.dirname(process)}/self/ns/user")
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise


def _name(process: str) -> str:
    """Return the name of a process of root's; empty for that of another user, and for one that has ended."""
    try:
        if not is_roots(process):
            return ""
        return read_all(f"{process}/comm", _NAME_SIZE).decode("ascii", "replace").rstrip("\n")
    except OSError as error:
        if error.errno in _GONE:
            return ""
        raise
