"""The vendor's library as devward's broker sees it, made of plain values: for what decides, apart from ctypes and processes."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from devward.npu.codes import DcmiCode
from devward.npu.numbering import FIRST_VDEV, SLOTS
from devward.npu.vendor import ChipNames, DcmiError, Resources, TotalResources, VdevAnswer

CORES = Resources(20.0, 65536, 7)
NAMES = ChipNames(b"Ascend", b"910B3", b"V1", b"910B3", 20)


def vnpu(vdev: int, **changes: object) -> VdevAnswer:
    """A vNPU that nobody uses."""
    answer = VdevAnswer(b"vir05_1c_16g", 0, (vdev - FIRST_VDEV) % SLOTS + 1, 0, 0, 5.0, 16384)
    return replace(answer, **changes)  # type: ignore[arg-type]


@dataclass
class FakeChip:
    """A chip, with whatever it answers."""

    phy: int | None
    die: tuple[int, ...] = (1, 2, 3, 4, 5)
    health: int | None = 0
    kind: int | None = 0
    logic: int | None = None
    names: ChipNames = NAMES
    vnpus: dict[int, VdevAnswer] = field(default_factory=dict)
    #: Instead of what is in `vnpus`.
    count: int | None = -1
    ids: tuple[int, ...] | None = None


@dataclass
class FakeVendor:
    """All calls answer from `chips`; a call in `failing` raises that code, and `before` may change things as a call begins."""

    chips: dict[tuple[int, int], FakeChip]
    failing: dict[str, int] = field(default_factory=dict)
    vdevice_mode: int | None = 0
    recover_mode: int | None = 1
    destroy_code: int = 0
    destroys: bool = True
    destroyed: list[tuple[int, int, int]] = field(default_factory=list)
    before: Callable[[str], None] = lambda call: None

    def _begin(self, call: str) -> None:
        self.before(call)
        if call in self.failing:
            raise DcmiError(call, self.failing[call])

    def _chip(self, call: str, card: int, device: int) -> FakeChip:
        self._begin(call)
        if (card, device) not in self.chips:
            raise DcmiError(call, DcmiCode.NO_SUCH_DEVICE)
        return self.chips[card, device]

    def version(self) -> bytes | None:
        self._begin("version")
        return b"25.5.0"

    def cards(self) -> tuple[int | None, tuple[int, ...]]:
        self._begin("cards")
        cards = sorted({card for card, _ in self.chips})
        return len(cards), (*cards, *[0xFFFFFFFF] * (64 - len(cards)))

    def device_limit(self, card: int) -> int | None:
        self._begin("device_limit")
        return max((device for at, device in self.chips if at == card), default=-1) + 1

    def device_type(self, card: int, device: int) -> int | None:
        return self._chip("device_type", card, device).kind

    def logic_id(self, card: int, device: int) -> int | None:
        chip = self._chip("logic_id", card, device)
        return chip.phy if chip.logic is None else chip.logic

    def phy_id(self, logic: int) -> int | None:
        self._begin("phy_id")
        for chip in self.chips.values():
            if logic == (chip.phy if chip.logic is None else chip.logic):
                return chip.phy
        raise DcmiError("phy_id", DcmiCode.NO_SUCH_DEVICE)

    def address_of_phy(self, phy: int) -> tuple[int | None, int | None]:
        self._begin("address_of_phy")
        return next((place for place, chip in self.chips.items() if chip.phy == phy), (None, None))

    def chip_names(self, card: int, device: int) -> ChipNames:
        return self._chip("chip_names", card, device).names

    def die(self, card: int, device: int) -> tuple[int, ...]:
        return self._chip("die", card, device).die

    def health(self, card: int, device: int) -> int | None:
        return self._chip("health", card, device).health

    def total_resources(self, card: int, device: int) -> TotalResources:
        chip = self._chip("total_resources", card, device)
        ids = tuple(chip.vnpus) if chip.ids is None else chip.ids
        count = len(ids) if chip.count == -1 else chip.count
        return TotalResources(CORES, count, (*ids, *[0xFFFFFFFF] * (32 - len(ids))))

    def free_resources(self, card: int, device: int) -> Resources:
        self._chip("free_resources", card, device)
        return CORES

    def vdev(self, card: int, device: int, vdev: int) -> VdevAnswer:
        chip = self._chip("vdev", card, device)
        if vdev not in chip.vnpus:
            raise DcmiError("vdev", DcmiCode.NO_SUCH_DEVICE)
        return chip.vnpus[vdev]

    def processes(self, card: int, device: int) -> tuple[int | None, tuple[tuple[int, int], ...]]:
        self._chip("processes", card, device)
        return 1, ((4321, 5 << 30), *[(0, 0)] * 31)

    def mode(self) -> int | None:
        self._begin("mode")
        return self.vdevice_mode

    def recover(self) -> int | None:
        self._begin("recover")
        return self.recover_mode

    def destroy(self, card: int, device: int, vdev: int) -> int:
        chip = self._chip("destroy", card, device)
        self.destroyed.append((card, device, vdev))
        if self.destroys:
            chip.vnpus.pop(vdev, None)
        return self.destroy_code
