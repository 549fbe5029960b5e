"""org.devward.Devward1.Spec: one owned CDI file."""

from devward import names
from devward.bus.publisher import PublishedObject
from devward.model import SpecView


def published(view: SpecView) -> PublishedObject:
    """Return the object that shows this file."""
    return PublishedObject(
        path=_path(view),
        identity=(view.file, view.cdi_kind),
        interfaces={
            names.SPEC_INTERFACE: {
                "File": view.file,
                "CdiKind": view.cdi_kind,
                "Devices": view.devices,
                "State": view.state,
                "StateSinceUSec": view.state_since_usec,
                "Reason": view.reason,
                "Text": view.text,
                "RepairCount": view.repair_count,
                "LastRepairUSec": view.last_repair_usec,
                "LastRepairCause": view.last_repair_cause,
            }
        },
    )


def row(view: SpecView) -> tuple[object, ...]:
    """Return the line of this file in ListSpecs."""
    return (view.file, view.cdi_kind, view.state, view.reason, view.repair_count, view.last_repair_usec, _path(view))


def _path(view: SpecView) -> str:
    return names.spec_path(view.file.rpartition("/")[2])
