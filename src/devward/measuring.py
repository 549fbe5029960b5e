"""What the daemon measures: what happens is counted from the start on, the rest is taken from the rooms at the moment of writing.

It is counted whether metrics are on or off, so that no counter ever goes back while devwardd runs.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from devward.devices.registry import DeviceRegistry
from devward.metrics import DeviceMeasures, Measures, PluginMeasures, ReclaimMeasures
from devward.model import OWN_WISHES, ConfigState, Health, RepairCause
from devward.npu.room import NpuRoom
from devward.reasons import Reason
from devward.reclaim.room import ReclaimRoom
from devward.service import Service

if TYPE_CHECKING:  # a host without NPUs loads nothing of them
    from devward.npu.views import CardView

#: Stands for every device that is not there: anybody who may ask for one can think up names.
NO_SUCH_DEVICE: Final = "none"
_IS_HEALTHY: Final = {Health.HEALTHY: True, Health.UNHEALTHY: False, Health.MISSING: False}


class Measuring:
    """Counts, and takes the rest when asked."""

    def __init__(
        self,
        service: Service,
        registry: DeviceRegistry,
        npus: NpuRoom,
        reclaim: ReclaimRoom,
        *,
        plugin: Callable[[], PluginMeasures | None],
    ) -> None:
        """Begin to count; `plugin` returns what is measured of the device plugin, None while it is off."""
        self._service = service
        self._registry = registry
        self._npus = npus
        self._reclaim = reclaim
        self._plugin = plugin
        self._repairs: Counter[tuple[str, str]] = Counter()
        self._refusals: Counter[tuple[str, str]] = Counter()

    def repaired(self, file: str, cause: RepairCause) -> None:
        """Count a write or removal of a CDI file, if that mended anything."""
        if cause not in OWN_WISHES:
            self._repairs[os.path.basename(file), cause] += 1

    def refused(self, device: str, reason: Reason) -> None:
        """Count a device that was not given to a container; `device` is its node, or empty where there is no such device."""
        self._refusals[device or NO_SUCH_DEVICE, reason] += 1

    def take(self) -> Measures:
        """Return what is measured, as it is now."""
        manager = self._service.manager()
        return Measures(
            version=manager.version,
            ready=manager.ready,
            config_good=manager.config_state is ConfigState.GOOD,
            audit_dropped=manager.audit_dropped,
            devices=(*self._hypervisors(), *map(_of_card, self._service.cards())),
            repairs=self._all_repairs(),
            refusals=dict(self._refusals),
            plugin=self._plugin(),
            reclaim=self._of_vnpus(),
            certificate_expiry=_seconds(manager.certificate_expires_usec),
        )

    def _hypervisors(self) -> Sequence[DeviceMeasures]:
        found = []
        for tracker in self._registry.trackers:
            view = tracker.view()
            checked = _seconds(view.last_check_usec)
            found.append(DeviceMeasures(view.node, _IS_HEALTHY.get(view.health), checked, tracker.checks, tracker.check_seconds))
        return found

    def _all_repairs(self) -> Mapping[tuple[str, str], int]:
        """Return the repairs with those that may still come, as 0: an increase from nothing to one would not be seen."""
        files = [os.path.basename(view.file) for view in self._service.specs()]
        mending = [cause for cause in RepairCause if cause not in OWN_WISHES]
        return {**{(file, str(cause)): 0 for file in files for cause in mending}, **self._repairs}

    def _of_vnpus(self) -> ReclaimMeasures | None:
        if not self._npus.watched:
            return None
        reclaim = self._reclaim.measures()
        if not self._npus.complete:
            return reclaim
        from devward.npu.views import Verdict

        counts = Counter(view.verdict for view in self._service.vnpus())
        return replace(reclaim, vnpus={str(verdict): counts[verdict] for verdict in Verdict})


def _of_card(card: "CardView") -> DeviceMeasures:
    """Return an NPU: it is healthy if the vendor's library says so and it is what it claims to be."""
    healthy = None if card.health == "unknown" else card.health == "healthy" and card.reason is Reason.OK
    return DeviceMeasures(card.node or card.name, healthy, checks=None)


def _seconds(usec: int) -> float | None:
    return usec / 1e6 if usec else None
