"""org.devward.Devward1.Device: one hypervisor device."""

from devward import names
from devward.bus.publisher import PublishedObject
from devward.model import DeviceView


def published(view: DeviceView) -> PublishedObject:
    """Return the object that shows this device."""
    return PublishedObject(
        path=names.device_path(view.kind),
        identity=(view.kind, view.node),
        interfaces={
            names.DEVICE_INTERFACE: {
                "Kind": view.kind,
                "Node": view.node,
                "Number": view.number,
                "Identity": view.identity,
                "IdentitySinceUSec": view.identity_since_usec,
                "Health": view.health,
                "HealthSinceUSec": view.health_since_usec,
                "Reason": view.reason,
                "Text": view.text,
                "LastCheckUSec": view.last_check_usec,
                "CheckDurationUSec": view.check_duration_usec,
            }
        },
    )


def row(view: DeviceView) -> tuple[object, ...]:
    """Return the line of this device in ListDevices."""
    path = names.device_path(view.kind)
    return (view.kind, view.node, view.identity, view.health, view.reason, view.health_since_usec, path)
