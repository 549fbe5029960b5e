"""Where the devices of the CDI files of NPUs come from. Loads nothing of NPUs before there is one."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from devward import names
from devward.cdi.sources import Offer
from devward.config import CdiConfig, NpuConfig
from devward.reasons import Reason

if TYPE_CHECKING:
    from devward.npu.document import Outfit
    from devward.npu.pins import PinReport
    from devward.npu.views import CardView, VnpuView


class Npus(Protocol):
    """What is known of NPUs."""

    @property
    def config(self) -> NpuConfig:
        """The settings in force."""

    @property
    def watched(self) -> bool:
        """Whether there was an NPU, and it was looked at, since the daemon began."""

    @property
    def complete(self) -> bool:
        """Whether an NPU or vNPU that is not shown does not exist."""

    @property
    def outfit(self) -> "Outfit | None":
        """What containers need beside the NPUs; None if that is not known."""

    def claims(self, die: str) -> tuple[Reason, str] | None:
        """Return why a vNPU of the NPU with this die id may be a Pod's; as `Claims` of devward.npu.offers."""

    def cards(self) -> "Sequence[CardView]":
        """Return every NPU."""

    def vnpus(self) -> "Sequence[VnpuView]":
        """Return every vNPU."""


class CardSource:
    """Whole NPUs, by their physical ids, and `all` of them."""

    file_name = names.NPU_CDI_FILE
    cdi_kind = names.NPU_CDI_KIND
    aggregate = f"{names.NPU_CDI_KIND}=all"

    def __init__(self, npus: Npus) -> None:
        """Ask nothing yet."""
        self._npus = npus

    @property
    def wanted(self) -> bool:
        """Whether there was an NPU since the daemon began."""
        return self._npus.watched

    def node(self, device: str) -> str:
        """Return the path of the device node that goes with a qualified name."""
        return f"{names.DEVICE_DIRECTORY}/davinci{device.rpartition('=')[2]}"

    def offer(self, config: CdiConfig) -> Offer:
        """Return what may be in the file now; who owns the nodes in a container is a setting of NPUs' own."""
        cards, outfit = self._npus.cards(), self._npus.outfit
        if not cards or outfit is None:
            return Offer((), None, complete=self._npus.complete and not cards)
        from devward.npu import offers

        return offers.of_cards(cards, outfit, self._npus.config, complete=self._npus.complete)


class VnpuSource:
    """The vNPUs that are pinned, by their ids: devward offers nothing that it may destroy."""

    file_name = names.VNPU_CDI_FILE
    cdi_kind = names.VNPU_CDI_KIND
    aggregate = ""

    def __init__(self, npus: Npus, pins: "Callable[[], PinReport | None]") -> None:
        """`pins` returns how every pin stands, None where there is none."""
        self._npus = npus
        self._pins = pins

    @property
    def wanted(self) -> bool:
        """Whether a vNPU is pinned."""
        report = self._pins()
        return report is not None and any(judged.names_vnpu for judged in report.pins)

    def node(self, device: str) -> str:
        """Return the path of the device node that goes with a qualified name."""
        return f"{names.DEVICE_DIRECTORY}/vdavinci{device.rpartition('=')[2]}"

    def offer(self, config: CdiConfig) -> Offer:
        """Return what may be in the file now. What is not pinned is none of it, whatever may be there."""
        report, outfit = self._pins(), self._npus.outfit
        if report is None:
            return Offer((), None, strict=True)
        from devward.npu import offers

        return offers.of_vnpus(report, self._npus.cards(), outfit, self._npus.config, self._npus.claims)
