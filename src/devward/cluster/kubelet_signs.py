"""Whether a kubelet runs on this host, by what every process may see: names of processes and of sockets. A doubt counts as a kubelet.

The names by which a kubelet is known stand here, for all who look for one.

This says nothing of which process it is, nor of what it manages.
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
#: Every kubelet listens there for device plugins (k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1/constants.go).
_SOCKET: Final = re.compile(rb"/device-plugins/kubelet\.sock$", re.MULTILINE)
_NAME_SIZE: Final = 64
_SOCKETS_SIZE: Final = 16 << 20
_GONE: Final = frozenset({errno.ENOENT, errno.ESRCH})


def sign_of_kubelet(proc: str = "/proc") -> str:
    """Return what shows that a kubelet runs, or why that cannot be told, for people; empty where none does."""
    try:
        for entry in os.listdir(proc):
            if entry.isdecimal() and (name := _name(f"{proc}/{entry}/comm")) in PROGRAMS:
                return f"process {entry}, {name}"
        sockets = read_all(f"{proc}/net/unix", _SOCKETS_SIZE)
    except OSError as error:
        return f"{error.filename or proc}: {os.strerror(error.errno or 0)}"
    return "a socket of a kubelet's for device plugins" if _SOCKET.search(sockets) else ""


def _name(path: str) -> str:
    try:
        return read_all(path, _NAME_SIZE).decode("ascii", "replace").rstrip("\n")
    except OSError as error:
        if error.errno in _GONE:
            return ""  # it ended since it was listed
        raise
