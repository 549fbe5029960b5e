"""Signs that somebody besides HAMi hands out this node's NPUs. Pure.

Huawei's own device plugin (MindCluster, `component/ascend-device-plugin/pkg/common`) destroys every vNPU that it cannot match to a Pod, and
its Pods are not in HAMi's books; Ascend drivers for dynamic resource allocation are not in the kubelet's checkpoint. With either on the
node nothing can be told of vNPUs. Both plugins use names such as `huawei.com/Ascend310P`: such a name is no sign, and a value in HAMi's
form is HAMi's.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from devward.cluster.annotations import FOREIGN_ID
from devward.cluster.claims import Allocation
from devward.cluster.containers import TERMINAL
from devward.cluster.node import NodeFacts
from devward.cluster.podlist import Pod
from devward.text import printable, quoted

#: Annotations that only Huawei's own plugin and its scheduler write.
_FOREIGN_KEYS: Final = frozenset({"huawei.com/AscendReal", "huawei.com/kltDev", "huawei.com/npu-core"})
#: Resources that HAMi has no word for; the second form is that of vNPUs that were made beforehand.
_FOREIGN_RESOURCES: Final = frozenset({"huawei.com/Ascend910", "huawei.com/npu-core"})
_FOREIGN_SLICE: Final = re.compile(r"huawei\.com/Ascend[0-9A-Z]+-[0-9]+c(?:\.[0-9]+cpu)?(?:\.[0-9]+g)?(?:\.[a-z]+)*", re.ASCII)
_ASCEND_DRIVER: Final = re.compile(r"ascend|huawei|(?:^|[^a-z])npu\.", re.IGNORECASE | re.ASCII)
_HUAWEI: Final = "huawei.com/"
_POD: Final = "Pod "


class ManagerRefusal(StrEnum):
    """Why nobody knows who hands out the node's cards."""

    FOREIGN_MANAGER = "foreign-manager"
    #: A Pod has claims of dynamic resource allocation, and whose they are cannot be read.
    CLAIMS_UNREADABLE = "resource-claims-unreadable"


REFUSAL_TEXT: Final[Mapping[ManagerRefusal, str]] = {
    ManagerRefusal.FOREIGN_MANAGER: "Somebody besides HAMi hands out NPUs on this node; let only one of them do so.",
    ManagerRefusal.CLAIMS_UNREADABLE: "A Pod has resource claims, and the kubelet's dra_manager_state or plugins_registry"
    " cannot be read; look at those.",
}


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign of another manager."""

    reason: ManagerRefusal
    #: Where it was seen, fit to be shown: `node`, `Pod <UID>`, `checkpoint`, `driver`.
    where: str
    #: What was seen, foreign text.
    what: str

    @property
    def uid(self) -> str:
        """Of the Pod at which it was seen; empty for another place."""
        return self.where.removeprefix(_POD) if self.where.startswith(_POD) else ""

    @property
    def sentence(self) -> str:
        """The sign for people."""
        return f"{REFUSAL_TEXT[self.reason][:-1]} ({self.where}: {quoted(self.what)})."


@dataclass(frozen=True, slots=True)
class Drivers:
    """Drivers for dynamic resource allocation, by the kubelet's dra_manager_state and plugins_registry."""

    names: frozenset[str] = frozenset()
    #: One of the two is there and cannot be read.
    unreadable: bool = False
    #: What cannot be read, and why, foreign text; only where something cannot.
    problem: str = ""


def signs(
    node: NodeFacts, pods: Iterable[Pod], allocations: Iterable[Allocation], registered: Iterable[str], drivers: Drivers
) -> tuple[Sign, ...]:
    """Return every sign, in a stable order. `registered` are the resources that plugins have registered, by the checkpoint."""
    found = {*_of_node(node), *_of_checkpoint(allocations, registered), *_of_drivers(drivers)}
    for pod in pods:
        found.update(_of_pod(pod))
        if drivers.unreadable and pod.has_resource_claims and pod.phase not in TERMINAL:
            found.add(Sign(ManagerRefusal.CLAIMS_UNREADABLE, f"{_POD}{printable(pod.uid)}", drivers.problem or "resourceClaims"))
    return tuple(sorted(found, key=lambda sign: (sign.reason, sign.where, sign.what)))


def _foreign(where: str, what: str) -> Sign:
    return Sign(ManagerRefusal.FOREIGN_MANAGER, where, what)


def _of_annotations(where: str, annotations: Mapping[str, str]) -> Iterator[Sign]:
    for key, value in annotations.items():
        if key in _FOREIGN_KEYS:
            yield _foreign(where, key)
        elif key.startswith(_HUAWEI) and any(FOREIGN_ID.fullmatch(part.strip()) for part in value.split(",")):
            yield _foreign(where, f"{key}: {value}")


def _of_resources(where: str, resources: Iterable[str]) -> Iterator[Sign]:
    return (_foreign(where, name) for name in resources if name in _FOREIGN_RESOURCES or _FOREIGN_SLICE.fullmatch(name))


def _of_node(node: NodeFacts) -> Iterator[Sign]:
    yield from _of_annotations("node", node.annotations or {})
    yield from _of_resources("node", node.resources)


def _of_pod(pod: Pod) -> Iterator[Sign]:
    where = f"{_POD}{printable(pod.uid)}"
    yield from _of_annotations(where, pod.annotations or {})
    for container in pod.containers:
        yield from _of_resources(where, container.resources)


def _of_checkpoint(allocations: Iterable[Allocation], registered: Iterable[str]) -> Iterator[Sign]:
    yield from _of_resources("checkpoint", registered)
    for allocation in allocations:
        yield from _of_resources("checkpoint", (allocation.resource,))
        yield from (_foreign("checkpoint", device) for device in allocation.device_ids if FOREIGN_ID.fullmatch(device))


def _of_drivers(drivers: Drivers) -> Iterator[Sign]:
    return (_foreign("driver", name) for name in drivers.names if _ASCEND_DRIVER.search(name))
