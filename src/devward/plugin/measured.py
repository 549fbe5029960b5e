"""What is written down of the device plugin for Prometheus; apart from `status`, which devwardctl reads too."""

from devward.metrics import PluginMeasures
from devward.plugin.status import PluginStatus, RegistrationState


def measures(status: PluginStatus, before: PluginMeasures | None = None) -> PluginMeasures:
    """Return what of it is written down for Prometheus; `before` is that of all that served the resource earlier and have ended."""
    return PluginMeasures(
        resource=status.resource,
        registered=status.state is RegistrationState.REGISTERED,
        streams=status.streams,
        healthy_slots=status.healthy_slots,
        slots=status.slots,
        registrations=status.registrations + (before.registrations if before is not None else 0),
        failures=status.failures + (before.failures if before is not None else 0),
        given=status.given + (before.given if before is not None else 0),
        refused=status.refused + (before.refused if before is not None else 0),
    )
