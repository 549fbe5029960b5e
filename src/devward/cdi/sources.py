"""What belongs in each owned CDI file: where the devices come from, and what the document says of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from devward import names
from devward.cdi import spec
from devward.cdi.decision import Candidate
from devward.config import CdiConfig
from devward.model import DeviceKind


@dataclass(frozen=True, slots=True)
class Offer:
    """What one pass may put into one file."""

    candidates: tuple[Candidate, ...]
    #: Returns the document with these devices, by qualified name. The second argument are those for which the aggregate stands, which
    #: may be more: a device that a foreign file defines has no entry of its own.
    #: None: what the document should say is not known now.
    render: Callable[[Sequence[str], Sequence[str]], bytes] | None
    #: Whether every device is among the candidates; a device that is not may otherwise be there all the same.
    complete: bool = True
    #: Whether a device that is not wanted any more, or is another one by now, leaves at once, and one of which nothing is known in the end.
    strict: bool = False


class Source(Protocol):
    """Where the devices of one owned file come from."""

    @property
    def file_name(self) -> str:
        """The file's name, without its directory."""

    @property
    def cdi_kind(self) -> str:
        """The kind of its devices."""

    @property
    def aggregate(self) -> str:
        """The qualified name of the device that stands for all others of the file; empty if there is none."""

    @property
    def wanted(self) -> bool:
        """Whether there was anything for this file since the daemon began; if not it is looked at only where devward wrote it before."""

    def node(self, device: str) -> str:
        """Return the path of the device node that goes with a qualified name."""

    def offer(self, config: CdiConfig) -> Offer:
        """Return what may be in the file now."""


class HypervisorSource:
    """The devices that hypervisors need."""

    file_name = names.HYPERVISOR_CDI_FILE
    cdi_kind = names.HYPERVISOR_CDI_KIND
    aggregate = ""
    wanted = True

    def __init__(self, candidates: Callable[[], Sequence[Candidate]]) -> None:
        """`candidates` returns every device that is watched."""
        self._candidates = candidates

    def node(self, device: str) -> str:
        """Return the path of the device node that goes with a qualified name."""
        return f"{names.DEVICE_DIRECTORY}/{device.rpartition('=')[2]}"

    def offer(self, config: CdiConfig) -> Offer:
        """Return what may be in the file now."""

        def render(devices: Sequence[str], _members: Sequence[str]) -> bytes:
            kinds = [DeviceKind(device.rpartition("=")[2]) for device in devices]
            return spec.render_hypervisor(kinds, uid=config.device_uid, gid=config.device_gid)

        return Offer(tuple(self._candidates()), render)


def qualified(kind: DeviceKind) -> str:
    """Return the CDI name of a hypervisor device, such as `hyperlight.dev/hypervisor=kvm`."""
    return f"{names.HYPERVISOR_CDI_KIND}={kind}"


def kind_of_device(device: str) -> str:
    """Return the kind in a qualified name."""
    return device.partition("=")[0]
