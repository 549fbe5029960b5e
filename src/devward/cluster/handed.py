"""Which vNPUs something names that are there already: by the path of a node, or by a name of CDI. Pure.

The runtime makes a new vNPU for each attempt to start a container of HAMi's. What is named so is another matter: each attempt takes up the
same vNPU again, and it is somebody's though no container lives.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

from devward import names
from devward.cluster.evidence import vnpu_of_node

#: The prefix of annotations by which engines take names of CDI (container-device-interface, pkg/cdi/annotations.go).
CDI_ANNOTATION: Final = "cdi.k8s.io/"

_VENDOR: Final = names.VNPU_CDI_KIND.partition("/")[0] + "/"
_ID: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Handed:
    """vNPUs that are named."""

    vnpus: frozenset[int] = frozenset()
    #: It may be any vNPU.
    is_any: bool = False

    def __or__(self, other: Self) -> "Handed":
        """Return both."""
        return Handed(self.vnpus | other.vnpus, self.is_any or other.is_any)


NOTHING: Final = Handed()
ANY: Final = Handed(is_any=True)


def by_path(path: str) -> Handed:
    """Return the vNPU whose node a path of the host is."""
    vdev = vnpu_of_node(path)
    return NOTHING if vdev is None else Handed(frozenset({vdev}))


def by_cdi(text: str, *, others: Handed = NOTHING) -> Handed:
    """Return the vNPUs of qualified names of CDI with commas between them; `others` is what those of other vendors stand for."""
    found = NOTHING
    for name in filter(None, (name.strip() for name in text.split(","))):
        kind, _, device = name.partition("=")
        if kind == names.VNPU_CDI_KIND and _ID.fullmatch(device):
            found |= Handed(frozenset({int(device)}))
        else:
            # Whose files define the vendor's names is not known: the name may stand for a vNPU.
            found |= ANY if kind.startswith(_VENDOR) else others
    return found
