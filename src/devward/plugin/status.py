"""How the device plugin stands: what of it is not as it should be, and why. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class RegistrationState(StrEnum):
    """Whether the kubelet knows the plugin."""

    #: For a kubelet, or for the first check of a device.
    WAITING = "waiting"
    REGISTERING = "registering"
    REGISTERED = "registered"
    #: It is tried again.
    FAILED = "failed"
    #: Another plugin serves the resource.
    TAKEN = "taken"
    STOPPED = "stopped"


class PluginProblem(StrEnum):
    """Stable codes for what keeps the plugin from being of use; PROBLEM_TEXT has the sentence for each."""

    NONE = ""
    STOPPED = "plugin-stopped"
    NOT_CHECKED = "plugin-not-checked"
    DIRECTORY_MISSING = "plugin-directory-missing"
    DIRECTORY_UNSAFE = "plugin-directory-unsafe"
    DIRECTORY_UNREADABLE = "plugin-directory-unreadable"
    DIRECTORY_SILENT = "plugin-directory-silent"
    KUBELET_ABSENT = "plugin-kubelet-absent"
    REGISTERING = "plugin-registering"
    SOCKET_UNUSABLE = "plugin-socket-unusable"
    SOCKET_GONE = "plugin-socket-gone"
    KUBELET_UNREACHABLE = "plugin-kubelet-unreachable"
    KUBELET_SILENT = "plugin-kubelet-silent"
    KUBELET_REFUSES = "plugin-kubelet-refuses"
    NO_STREAM = "plugin-no-stream"
    BROKEN_OFF = "plugin-broken-off"
    LIBRARY_MISSING = "plugin-library-missing"
    DIRECTORY_READ_ONLY = "plugin-directory-read-only"
    TAKEN = "plugin-taken"


PROBLEM_TEXT: Final[Mapping[PluginProblem, str]] = MappingProxyType(
    {
        PluginProblem.NONE: "",
        PluginProblem.STOPPED: "The device plugin is stopped.",
        PluginProblem.NOT_CHECKED: "No check of a device has completed yet, so that there is nothing to offer to the kubelet.",
        PluginProblem.DIRECTORY_MISSING: "The kubelet's directory of device plugins does not exist: no kubelet has run on this host.",
        PluginProblem.DIRECTORY_UNSAFE: "The directory of device plugins is not root's, or others may write in it.",
        PluginProblem.DIRECTORY_UNREADABLE: "The directory of device plugins cannot be read.",
        PluginProblem.DIRECTORY_SILENT: "The file system of the directory of device plugins does not answer.",
        PluginProblem.KUBELET_ABSENT: "There is no kubelet.sock among the device plugins: the kubelet does not run, or is starting.",
        PluginProblem.REGISTERING: "The kubelet was asked to take the registration, and has not answered yet.",
        PluginProblem.SOCKET_UNUSABLE: "The socket of the device plugin cannot be made.",
        PluginProblem.SOCKET_GONE: "The socket of the device plugin was removed, as a kubelet does when it starts.",
        PluginProblem.KUBELET_UNREACHABLE: "Nobody listens at kubelet.sock: the kubelet does not run, or is starting.",
        PluginProblem.KUBELET_SILENT: "The kubelet did not answer the registration in time.",
        PluginProblem.KUBELET_REFUSES: "The kubelet refused the registration.",
        PluginProblem.NO_STREAM: "The kubelet took the registration, but does not listen for devices, or no longer.",
        PluginProblem.BROKEN_OFF: "The registration broke off because of a defect of devward or of gRPC; the journal has more.",
        PluginProblem.LIBRARY_MISSING: "Python's gRPC cannot be loaded: install python3-grpcio and python3-protobuf.",
        PluginProblem.DIRECTORY_READ_ONLY: "devwardd cannot write in the directory of device plugins: if it is newer than devwardd's start,"
        " restart devwardd.",
        PluginProblem.TAKEN: "Another device plugin serves the resource: stop it, or set take_over.",
    }
)


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """What is published of the plugin. `_usec`: microseconds of CLOCK_REALTIME since 1970, 0 for none."""

    resource: str
    state: RegistrationState = RegistrationState.WAITING
    state_since_usec: int = 0
    problem: PluginProblem = PluginProblem.NONE
    #: Foreign text made printable: an error, or the name of the other plugin's socket.
    detail: str = ""
    #: The name of the socket; empty while there is none.
    endpoint: str = ""
    #: Registrations that the kubelet took since the start, and those that failed.
    registrations: int = 0
    failures: int = 0
    #: Streams on which devices are told now.
    streams: int = 0
    #: When a check was completed by which devices are told; and how many slots are healthy, of how many.
    last_check_usec: int = 0
    healthy_slots: int = 0
    slots: int = 0
    #: Containers that were given a device, and Allocate calls that were refused, since the start.
    given: int = 0
    refused: int = 0

    @property
    def text(self) -> str:
        """The problem's sentence, with what is known of it."""
        sentence = PROBLEM_TEXT[self.problem]
        return f"{sentence[:-1]} ({self.detail})." if sentence and self.detail else sentence


def line(status: PluginStatus) -> str:
    """Say in half a sentence how the plugin stands."""
    reasons = not_ready(status)
    if not reasons:
        return f"{status.resource} offered to the kubelet"
    problem = PluginProblem(reasons[0].rpartition(": ")[2]) if status.problem is PluginProblem.NONE else status.problem
    return f"{status.resource} not offered to the kubelet: {PROBLEM_TEXT[problem].rstrip('.')}"


def not_ready(status: PluginStatus) -> tuple[str, ...]:
    """Return why the plugin is not ready, as `subject: code`; empty: it is registered, a stream is open and a check was completed (R24)."""
    reasons: list[str] = []
    if status.state is not RegistrationState.REGISTERED:
        reasons.append(f"device plugin: {status.problem or PluginProblem.REGISTERING}")
    elif not status.streams:
        reasons.append(f"device plugin: {PluginProblem.NO_STREAM}")
    if status.slots and not status.last_check_usec:
        reasons.append(f"device plugin: {PluginProblem.NOT_CHECKED}")
    return tuple(reasons)
