"""What the journal says of hypervisor devices: usable, not usable any more, gone, and checks that could not be completed."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from devward.audit import Audit
from devward.devices.health import DeviceState, sentence
from devward.model import Health, Trigger
from devward.reasons import Reason

_KINDS: Final[Mapping[Health, str]] = MappingProxyType(
    {Health.HEALTHY: "device-usable", Health.MISSING: "device-gone", Health.UNHEALTHY: "device-unusable"}
)


class DeviceTrail:
    """Records the difference of two states of a device."""

    def __init__(self, audit: Audit) -> None:
        """Write to this audit trail."""
        self._audit = audit

    def record(self, before: DeviceState, after: DeviceState, trigger: Trigger) -> None:
        """Record what changed, damped by device and kind."""
        kind = _KINDS.get(after.health)
        if kind is not None and (before.health, before.reason) != (after.health, after.reason):
            is_usable = after.health is Health.HEALTHY
            facts = after.facts
            self._audit.transition(
                after.node,
                "helper-stuck" if after.reason is Reason.HELPER_STUCK else kind,
                f"{after.node} is usable" if is_usable else f"{after.node}: {sentence(after.reason, after.detail)}",
                device=after.node,
                reason=after.reason,
                trigger=trigger,
                evidence={"number": facts.number if facts else "", "detail": after.detail, "check_usec": after.check_duration_usec},
            )
        if after.inconclusive is not Reason.OK and after.inconclusive is not before.inconclusive:
            self._audit.transition(
                f"{after.node} check",
                "check-inconclusive",
                f"{after.node}: {sentence(after.inconclusive, after.inconclusive_detail)}",
                device=after.node,
                reason=after.inconclusive,
                trigger=trigger,
            )
