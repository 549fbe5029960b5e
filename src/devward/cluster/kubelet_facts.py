"""What is found out about the kubelet of this host: which process it is and where its files are, or why that is not known. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from devward.cluster.evidence import Doubt


class KubeletDoubt(StrEnum):
    """Why the kubelet of this host, or its directories, are not known; besides the reasons of vantage.py."""

    NOT_FOUND = "kubelet-not-found"
    SEVERAL = "several-kubelets"
    NOT_LISTENING = "kubelet-not-listening"
    UNKNOWN_PROGRAM = "kubelet-unknown-program"
    HOLDER_UNKNOWN = "kubelet-holder-unknown"
    PROCESS_UNREADABLE = "kubelet-process-unreadable"
    TOO_MANY_PROCESSES = "kubelet-too-many-processes"
    OUT_OF_TIME = "kubelet-out-of-time"
    CHANGED = "kubelet-changed"
    ROOT_UNKNOWN = "kubelet-root-unknown"
    SEVERAL_ROOTS = "several-kubelet-roots"
    DIRECTORY_UNREADABLE = "kubelet-directory-unreadable"
    DIRECTORY_UNSAFE = "kubelet-directory-unsafe"
    SEVERAL_CHECKPOINTS = "several-checkpoints"


SENTENCES: Final[Mapping[KubeletDoubt, str]] = MappingProxyType(
    {
        KubeletDoubt.NOT_FOUND: "No process listens on device-plugins/kubelet.sock: no kubelet runs on this host, or it is starting.",
        KubeletDoubt.SEVERAL: "More than one kubelet runs on this host, a container's included; only one of them is asked about its Pods.",
        KubeletDoubt.NOT_LISTENING: "A kubelet runs that does not listen on device-plugins/kubelet.sock: it starts, or is a second one.",
        KubeletDoubt.UNKNOWN_PROGRAM: "The process that listens on device-plugins/kubelet.sock is none of the known kubelets.",
        KubeletDoubt.HOLDER_UNKNOWN: "Two paths are listed of a socket that a kubelet may hold: somebody's path has a newline in it.",
        KubeletDoubt.PROCESS_UNREADABLE: "Of a process it cannot be read whether it is a kubelet.",
        KubeletDoubt.TOO_MANY_PROCESSES: "There are more processes, or descriptors, than are looked through for a kubelet.",
        KubeletDoubt.OUT_OF_TIME: "The search for a kubelet took too long: there are too many processes, or the host is too busy.",
        KubeletDoubt.CHANGED: "The kubelet ended, or was restarted, while it was looked at.",
        KubeletDoubt.ROOT_UNKNOWN: "The kubelet's root directory is neither on its command line nor does it listen in pod-resources there.",
        KubeletDoubt.SEVERAL_ROOTS: "The kubelet's command line and its sockets name different root directories.",
        KubeletDoubt.DIRECTORY_UNREADABLE: "A directory of the kubelet cannot be read.",
        KubeletDoubt.DIRECTORY_UNSAFE: "A directory of the kubelet is not root's alone, so that somebody else could write its checkpoint.",
        KubeletDoubt.SEVERAL_CHECKPOINTS: "Two directories have a checkpoint of a kubelet; the one that is out of use has to go.",
    }
)


@dataclass(frozen=True, slots=True)
class Kubelet:
    """The one kubelet of this host."""

    pid: int
    #: Clock ticks since boot; with the id it tells the process from any other one of this boot.
    started: int
    #: The kernel's name of it.
    command: str
    #: As the kubelet has them.
    root_name: str
    plugins_name: str
    #: Where they can be opened from here, without links but a first one through /proc where the kubelet sees other directories than we do.
    root_directory: str
    plugins_directory: str


@dataclass(frozen=True, slots=True)
class KubeletScan:
    """What was found."""

    #: None as soon as anything is in doubt.
    kubelet: Kubelet | None
    doubts: tuple[Doubt, ...] = ()
