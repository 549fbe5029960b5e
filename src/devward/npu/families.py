"""Which device nodes the families of Ascend chips share between all their NPUs. Pure.

The facts are those of mind-cluster's `ascend-docker-runtime/runtime/process` and `ascend-common/cdi/devnode.go`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Family:
    """The shared nodes of one family, as names below /dev."""

    #: The first of them that exists is the manager; a container finds it as /dev/davinci_manager.
    managers: tuple[str, ...]
    #: Without these no container can use an NPU.
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    #: Of these directories below /dev every node.
    directories: tuple[str, ...] = ()


_MANAGER: Final = ("davinci_manager",)
#: 310P, 910A, 910B, 910C.
_SERVER: Final = Family(_MANAGER, ("devmm_svm", "hisi_hdc"), ("dvpp_cmdlist",))
_310B: Final = Family(
    ("davinci_manager_docker", "davinci_manager"),
    optional=(
        "svm0", "ts_aisle", "upgrade", "sys", "vdec", "vpc", "pngd", "venc", "log_drv", "acodec", "ai", "ao", "vo", "hdmi", "dvpp_cmdlist",
    ),
)  # fmt: skip
#: The chip of Atlas 200 modules and of the first PCIe cards, whose nodes differ; its name does not tell which.
_310: Final = Family(
    _MANAGER,
    optional=("devmm_svm", "hisi_hdc", "xsmem_dev", "event_sched", "svm0", "ts_aisle", "sys", "vdec", "vpc", "venc", "dvpp_cmdlist"),
)
_950: Final = Family(_MANAGER, ("hisi_hdc",), directories=("uburma", "ummu"))


#: Everything below /dev that some family shares, apart from directories.
SHARED_NODES: Final = tuple(
    dict.fromkeys(name for family in (_SERVER, _310B, _310, _950) for name in (*family.managers, *family.required, *family.optional))
)
SHARED_DIRECTORIES: Final = tuple(dict.fromkeys(name for family in (_SERVER, _310B, _310, _950) for name in family.directories))


def family_of(chip: str, existing: frozenset[str]) -> Family:
    """Return the family of a chip by its name, such as `Ascend 910B3`; an unknown name is taken for a server's chip.

    Modules with a 310P (Atlas 200I SoC) are told from cards by their node `xsmem_dev`, and by having none for the memory of cards.
    """
    name = _model(chip)
    if name.startswith("310B"):
        return _310B
    if name == "310":
        return _310
    if name.startswith("310P") and "xsmem_dev" in existing and "devmm_svm" not in existing:
        return _310
    return _950 if name.startswith("95") else _SERVER


def has_vgroups(chip: str) -> bool:
    """Whether the vNPUs of a chip of this name are in groups that its owner chooses. Others answer 0 for the group, which means none."""
    return _model(chip).startswith("310P")


def _model(chip: str) -> str:
    return chip.rpartition(" ")[2].removeprefix("Ascend")


@dataclass(frozen=True, slots=True)
class Shared:
    """What all NPUs of a host share: (path on the host, path in a container), or what is missing for that."""

    nodes: tuple[tuple[str, str], ...]
    #: Names below /dev that must be there and are not.
    missing: tuple[str, ...]


def shared(chips: Iterable[str], existing: frozenset[str]) -> Shared:
    """Join what the families of these chips need with the names below /dev that exist."""
    nodes: dict[str, str] = {}
    missing: dict[str, None] = {}
    for family in dict.fromkeys(family_of(chip, existing) for chip in chips):
        manager = next((name for name in family.managers if name in existing), None)
        if manager is None:
            missing[family.managers[-1]] = None
        else:
            nodes.setdefault("davinci_manager", manager)
        missing.update(dict.fromkeys(name for name in family.required if name not in existing))
        wanted = (*family.required, *family.optional)
        of_directories = sorted(name for name in existing if name.partition("/")[0] in family.directories and "/" in name)
        nodes.update((name, name) for name in (*wanted, *of_directories) if name in existing)
    return Shared(tuple((f"/dev/{host}", f"/dev/{name}") for name, host in nodes.items()), tuple(missing))
