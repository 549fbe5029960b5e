"""What the vendor's library can be asked, apart from how it is called: raw answers, not judged yet. Pure.

None stands for a field that the driver did not fill: it fills an answer with 0xFF first.
"""

from dataclasses import dataclass
from typing import Protocol

from devward.npu.codes import sentence


class DcmiError(Exception):
    """A call that did not succeed."""

    def __init__(self, call: str, code: int) -> None:
        """Name the call and its code."""
        super().__init__(f"{call}: {sentence(code)}")
        self.code = code


@dataclass(frozen=True, slots=True)
class ChipNames:
    """Names as bytes up to the first zero."""

    chip_type: bytes | None
    chip_name: bytes | None
    chip_version: bytes | None
    npu_name: bytes | None
    cores: int | None


@dataclass(frozen=True, slots=True)
class Resources:
    """A chip's resources for vNPUs. A float that is not given reads as NaN or a negative number."""

    cores: float
    memory_mb: int | None
    aicpus: int | None


@dataclass(frozen=True, slots=True)
class TotalResources:
    """All that a chip has, and its vNPUs. `count` is what the library says, `vdevs` what it has room for."""

    resources: Resources
    count: int | None
    vdevs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VdevAnswer:
    """One vNPU."""

    name: bytes | None
    used: int | None
    vfid: int | None
    vgroup: int | None
    container: int | None
    cores: float
    memory_mb: int | None


class Vendor(Protocol):
    """The calls that the broker makes. Each may raise DcmiError."""

    def version(self) -> bytes | None:
        """Return the version of the library's interface."""

    def cards(self) -> tuple[int | None, tuple[int, ...]]:
        """Return how many cards there are, as the library says, and as many ids as there was room for."""

    def device_limit(self, card: int) -> int | None:
        """Return how many devices of a card are chips, by their ids 0 to one less."""

    def device_type(self, card: int, device: int) -> int | None:
        """Return what a device is: 0 an NPU, 1 an MCU, 2 a CPU."""

    def logic_id(self, card: int, device: int) -> int | None:
        """Return a chip's logic id."""

    def phy_id(self, logic: int) -> int | None:
        """Return the physical id of a logic id."""

    def address_of_phy(self, phy: int) -> tuple[int | None, int | None]:
        """Return card and device of a physical id."""

    def chip_names(self, card: int, device: int) -> ChipNames:
        """Return what a chip is called."""

    def die(self, card: int, device: int) -> tuple[int, ...]:
        """Return the five words of a chip's die id."""

    def health(self, card: int, device: int) -> int | None:
        """Return a chip's health, 0 for healthy."""

    def total_resources(self, card: int, device: int) -> TotalResources:
        """Return what a chip has, and the ids of its vNPUs."""

    def free_resources(self, card: int, device: int) -> Resources:
        """Return what a chip has left."""

    def vdev(self, card: int, device: int, vdev: int) -> VdevAnswer:
        """Return one vNPU of a chip."""

    def processes(self, card: int, device: int) -> tuple[int | None, tuple[tuple[int, int], ...]]:
        """Return how many processes compute on a chip, and as many with pid and bytes of memory as there was room for."""

    def mode(self) -> int | None:
        """Return for whom vNPUs are made: 0 Docker, 1 virtual machines."""

    def recover(self) -> int | None:
        """Return whether vNPUs are made again at boot."""

    def destroy(self, card: int, device: int, vdev: int) -> int:
        """Destroy one vNPU and return the code, whatever it is."""
