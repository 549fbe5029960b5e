"""The devices that the kubelet counts: so many slots of each hypervisor, `kvm-0` to `kvm-1999`, and how to choose among them. Pure.

A hypervisor serves any number of containers; the slots are there because the kubelet gives a device to one container at a time. Their ids
are those of the Hyperlight device plugin, so that containers which it served keep devices that exist.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from devward.model import DeviceKind
from devward.plugin.settings import MAXIMUM_SLOTS

_ID: Final = re.compile(rf"({'|'.join(DeviceKind)})-(0|[1-9][0-9]{{0,4}})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Offer:
    """A device, and whether it can be given to a container now."""

    kind: DeviceKind
    healthy: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """What the kubelet asks about one container: which of its free devices it should take."""

    available: tuple[str, ...]
    #: Those that it takes anyway, which count towards `size`.
    included: tuple[str, ...]
    size: int


def listed(offer: Offer, slots: int) -> list[tuple[str, bool]]:
    """Return the id of every slot of a device, and whether it is healthy; always all, since each list replaces the one before."""
    return [(f"{offer.kind}-{number}", offer.healthy) for number in range(slots)]


def kind_of(slot: str) -> DeviceKind | None:
    """Return the device that a slot is of; None for what is no slot's id.

    A number beyond those that are offered now may be one of before, which the kubelet may give again to a container of the same Pod.
    """
    found = _ID.fullmatch(slot)
    if found is None or int(found[2]) >= MAXIMUM_SLOTS:
        return None
    return DeviceKind(found[1])


def preferred(choice: Choice) -> tuple[str, ...]:
    """Return the slots to take, those of one device before another's: a container has use for one hypervisor.

    The kubelet takes what it likes where fewer come back than it asked for (`callGetPreferredAllocationIfAvailable` in
    pkg/kubelet/cm/devicemanager/manager.go of kubernetes/kubernetes).
    """
    included = dict.fromkeys(choice.included)
    free = [slot for slot in dict.fromkeys(choice.available) if slot not in included]
    return (*included, *_together(free, included))[: max(choice.size, 0)]


def _together(free: Sequence[str], included: Iterable[str]) -> list[str]:
    order: dict[DeviceKind | None, int] = {}
    for slot in (*included, *free):
        order.setdefault(kind_of(slot), len(order))
    return sorted(free, key=lambda slot: order[kind_of(slot)])
