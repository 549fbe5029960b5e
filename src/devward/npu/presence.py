"""Whether a host has NPUs, by the names of its device nodes alone: all that a host without them pays for."""

import os
import re
from typing import Final

#: udev subsystems of the vendor's open driver. Others may have other ones, so that names decide.
SUBSYSTEMS: Final = ("devdrv-class", "devdrv_manager")
MANAGERS: Final = ("davinci_manager", "davinci_manager_docker")
_NODE: Final = re.compile(r"v?davinci(?:0|[1-9][0-9]{0,3})|davinci_manager(?:_docker)?", re.ASCII)


def is_node(name: str) -> bool:
    """Tell whether a device node of this name is one of an NPU, a vNPU or their manager."""
    return "davinci" in name and _NODE.fullmatch(name) is not None


def present(device_directory: str) -> bool:
    """Tell whether there is any such node; a directory that cannot be read shows none."""
    try:
        return any(map(is_node, os.listdir(device_directory)))
    except OSError:
        return False
