"""Whether a kubelet runs on this host, by what every process may see: root's processes by name, and a file. A doubt counts as a kubelet.

The names by which a kubelet is known stand here, for all who look for one. This says nothing of which process it is, nor of what it
manages. What is not root's says nothing: anybody can call a process kubelet.
"""

import errno
import os
from typing import Final

from devward.cluster.files import read_all
from devward.cluster.process_users import is_roots

#: Programs that are or hold a kubelet, by the kernel's name of their first thread (proc(5), /proc/PID/comm).
PROGRAMS: Final = frozenset({"kubelet", "kubelite", "k3s", "k3s-server", "k3s-agent", "rke2", "rke2-server", "rke2-agent", "hyperkube"})
#: Its checkpoint of devices: `kubeletDeviceManagerCheckpoint` in pkg/kubelet/cm/devicemanager/types.go of kubernetes/kubernetes.
CHECKPOINT: Final = "kubelet_internal_checkpoint"
#: Every kubelet listens there for device plugins, whatever its root directory (k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1/constants.go).
SOCKET: Final = "/var/lib/kubelet/device-plugins/kubelet.sock"
_NAME_SIZE: Final = 64
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
        entries = os.listdir(proc)
        # Every PID namespace has a first process; with hidepid=2 (proc(5)) the daemon sees none but its own user's.
        if "1" not in entries:
            return f"{proc}: processes are hidden"
        for entry in entries:
            if entry.isdecimal() and (name := _name(f"{proc}/{entry}")):
                return f"process {entry}, {name}"
    except OSError as error:
        return f"{error.filename or proc}: {os.strerror(error.errno or 0)}"
    return ""


def _name(process: str) -> str:
    """Return the name of a process of root's that is one of the programs; empty for any other one, and for one that has ended."""
    try:
        name = read_all(f"{process}/comm", _NAME_SIZE).decode("ascii", "replace").rstrip("\n")
        return name if name in PROGRAMS and is_roots(process) else ""
    except OSError as error:
        if error.errno in _GONE:
            return ""
        raise
