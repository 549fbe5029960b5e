"""The Ascend chips that the DCMI simulator knows, with what the driver says of each and the templates that it can be split by."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Template:
    """A shape of vNPU: a `template` line of the state file."""

    family: str
    name: str
    aic: float
    #: In MB.
    memory: int
    aicpu: int


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of chip."""

    #: As the vendor's library gives it.
    chip_name: str
    npu_name: str
    product: str
    cores: int
    #: In MB.
    memory: int
    aicpu: int
    #: (name, cores, MB, AI CPUs)
    templates: tuple[tuple[str, int, int, int], ...] = ()
    #: How many vNPUs fit on one chip.
    slots: int = 16
    vgroups: int = 0
    chips_per_card: int = 1
    #: JPEGD, JPEGE, VPC, VDEC, PNGD, VENC; -1: not filled.
    media: tuple[float, float, float, float, float, float] = (24, 4, 9, 2, -1, 0)

    def template_lines(self, family: str) -> list[Template]:
        """Return its templates as lines of a state file."""
        return [Template(family, name, cores, memory, aicpu) for name, cores, memory, aicpu in self.templates]


_FIVE: Final = ("vir05_1c_16g", 5, 16384, 1)
_TEN: Final = ("vir10_3c_32g", 10, 32768, 3)
_B4: Final = (
    ("vir05_1c_8g", 5, 8192, 1),
    ("vir10_3c_16g", 10, 16384, 3),
    ("vir10_3c_16g_nm", 10, 16384, 3),
    ("vir10_4c_16g_m", 10, 16384, 4),
)
_B2: Final = (("vir03_1c_8g", 3, 8192, 1), ("vir06_1c_16g", 6, 16384, 1), ("vir12_3c_32g", 12, 32768, 3))
_A: Final = (("vir02", 2, 2184, 1), ("vir04", 4, 4369, 1), ("vir08", 8, 8738, 3), ("vir16", 16, 17476, 7))
_310P: Final = (
    ("vir01", 1, 3072, 1),
    ("vir02", 2, 6144, 2),
    ("vir04", 4, 12288, 4),
    ("vir02_1c", 2, 6144, 1),
    ("vir04_3c", 4, 12288, 3),
    ("vir04_3c_ndvpp", 4, 12288, 3),
    ("vir04_4c_dvpp", 4, 12288, 4),
)

FAMILIES: Final[dict[str, Family]] = {
    "310P": Family("310P3", "310P3", "Atlas 300I Pro", 8, 24576, 7, _310P, slots=8, vgroups=4, media=(16, 8, 12, 12, -1, 3)),
    "910A": Family("910A", "910A", "Atlas 800-9000", 30, 32768, 14, _A, media=(24, 0, 16, 0, 24, 0)),
    "910B2": Family("910B2", "910B2", "Atlas 800T A2", 24, 65536, 6, _B2),
    "910B3": Family("910B3", "910B3", "Atlas 800T A2", 20, 65536, 7, (_FIVE, _TEN)),
    "910B4": Family("910B4", "910B4", "Atlas 800I A2", 20, 32768, 7, _B4),
    "910B4-1": Family("910B4-1", "910B4-1", "Atlas 800I A2", 20, 65536, 7, (_FIVE, _TEN)),
    "910C": Family("Ascend910", "Ascend910_9362", "Atlas 800T A3", 20, 65536, 7, (_FIVE, _TEN), chips_per_card=2),
    "950": Family("Ascend950", "Ascend950", "Atlas 950", 32, 131072, 8, slots=0),
}
