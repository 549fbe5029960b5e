"""What devward measures, as text for the textfile collector of Prometheus' node_exporter. Pure.

The format is version 0.0.4 of the text format (Prometheus documentation, "Exposition formats"). There are no timestamps: the collector
refuses them, and tells the file's own age as `node_textfile_mtime_seconds`. A number that is not known is left out, never shown as 0.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from devward.text import printable

_MAXIMUM_VALUE: Final = 120


class Kind(StrEnum):
    """How a metric may change."""

    GAUGE = "gauge"
    COUNTER = "counter"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its name, what it is, and the labels that each of its samples has."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


BUILD: Final = Family("devward_build_info", Kind.GAUGE, "The version that runs; always 1.", ("version",))
READY: Final = Family("devward_ready", Kind.GAUGE, "Whether devward can vouch for something on this host.")
CONFIG_GOOD: Final = Family("devward_config_good", Kind.GAUGE, "Whether the configuration on disk is the one in force.")
AUDIT_DROPPED: Final = Family("devward_audit_dropped_total", Kind.COUNTER, "Records that the journal did not take.")
DEVICE_HEALTHY: Final = Family("devward_device_healthy", Kind.GAUGE, "Whether the last completed check found the device good.", ("device",))
DEVICE_CHECKED: Final = Family(
    "devward_device_last_check_timestamp_seconds", Kind.GAUGE, "When a check of the device was last completed.", ("device",)
)
PROBE_DURATION: Final = Family("devward_probe_duration_seconds", Kind.SUMMARY, "How long completed checks of the device took.", ("device",))
REPAIRS: Final = Family("devward_spec_repairs_total", Kind.COUNTER, "Repairs of CDI files.", ("file", "cause"))
REFUSALS: Final = Family(
    "devward_allocation_refusals_total", Kind.COUNTER, "Devices that CheckAllocation did not vouch for.", ("device", "reason")
)
PLUGIN_REGISTERED: Final = Family("devward_plugin_registered", Kind.GAUGE, "Whether the kubelet took the device plugin.", ("resource",))
PLUGIN_STREAMS: Final = Family("devward_plugin_streams", Kind.GAUGE, "Streams on which the kubelet hears of devices.", ("resource",))
PLUGIN_SLOTS: Final = Family("devward_plugin_slots", Kind.GAUGE, "Devices offered to the kubelet.", ("resource", "health"))
PLUGIN_REGISTRATIONS: Final = Family(
    "devward_plugin_registrations_total", Kind.COUNTER, "Registrations with the kubelet, by how they ended.", ("resource", "outcome")
)
PLUGIN_ALLOCATIONS: Final = Family(
    "devward_plugin_allocations_total", Kind.COUNTER, "Answers to the kubelet's Allocate.", ("resource", "outcome")
)
VNPUS: Final = Family("devward_vnpus", Kind.GAUGE, "vNPUs by what devward thinks of them.", ("verdict",))
LEAKED_CORES: Final = Family("devward_leaked_cores", Kind.GAUGE, "AI cores of vNPUs that nobody owns.")
RECLAIMS: Final = Family("devward_reclaims_total", Kind.COUNTER, "What came of destroying vNPUs that nobody owns.", ("outcome",))
BLOCKED: Final = Family(
    "devward_reclaim_blocked_seconds",
    Kind.GAUGE,
    "For how long reclaiming has been blocked; 0 while it is not, be it paused or off.",
)
CERTIFICATE: Final = Family(
    "devward_cluster_certificate_expiry_timestamp_seconds", Kind.GAUGE, "When the certificate for the API server expires."
)
FAMILIES: Final = (
    BUILD,
    READY,
    CONFIG_GOOD,
    AUDIT_DROPPED,
    DEVICE_HEALTHY,
    DEVICE_CHECKED,
    PROBE_DURATION,
    REPAIRS,
    REFUSALS,
    PLUGIN_REGISTERED,
    PLUGIN_STREAMS,
    PLUGIN_SLOTS,
    PLUGIN_REGISTRATIONS,
    PLUGIN_ALLOCATIONS,
    VNPUS,
    LEAKED_CORES,
    RECLAIMS,
    BLOCKED,
    CERTIFICATE,
)


@dataclass(frozen=True, slots=True)
class DeviceMeasures:
    """One hypervisor device; times in seconds, `last_check` since 1970."""

    node: str
    #: None: no check was completed.
    healthy: bool | None = None
    last_check: float | None = None
    #: None: they are not devward's own.
    checks: int | None = 0
    check_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PluginMeasures:
    """The device plugin of one resource; counts since the start."""

    resource: str
    registered: bool
    streams: int
    healthy_slots: int
    slots: int
    registrations: int
    failures: int
    given: int
    refused: int


@dataclass(frozen=True, slots=True)
class ReclaimMeasures:
    """What is known of vNPUs; None where it is not known."""

    #: How many there are, by verdict.
    vnpus: Mapping[str, int] | None = None
    leaked_cores: float | None = None
    #: How many attempts ended so, by outcome.
    reclaims: Mapping[str, int] = field(default_factory=dict)
    blocked_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Measures:
    """Everything that is measured. Jobs that are off are None."""

    version: str
    ready: bool
    config_good: bool
    audit_dropped: int = 0
    devices: Sequence[DeviceMeasures] = ()
    #: By the name of the file and the cause.
    repairs: Mapping[tuple[str, str], int] = field(default_factory=dict)
    #: By the device and the reason.
    refusals: Mapping[tuple[str, str], int] = field(default_factory=dict)
    plugin: PluginMeasures | None = None
    reclaim: ReclaimMeasures | None = None
    #: Seconds since 1970; None: there is none, or it is not known.
    certificate_expiry: float | None = None


def render(measures: Measures) -> str:
    """Return the text of the file, the same for the same measures."""
    page = _Page()
    page.add(BUILD, 1, measures.version)
    page.add(READY, measures.ready)
    page.add(CONFIG_GOOD, measures.config_good)
    page.add(AUDIT_DROPPED, measures.audit_dropped)
    for device in measures.devices:
        page.add(DEVICE_HEALTHY, device.healthy, device.node)
        page.add(DEVICE_CHECKED, device.last_check, device.node)
        page.add(PROBE_DURATION, device.checks, device.node, suffix="_count")
        page.add(PROBE_DURATION, device.check_seconds if device.checks is not None else None, device.node, suffix="_sum")
    for family, counts in ((REPAIRS, measures.repairs), (REFUSALS, measures.refusals)):
        for (subject, why), count in sorted(counts.items()):
            page.add(family, count, subject, why)
    if measures.plugin is not None:
        _add_plugin(page, measures.plugin)
    if measures.reclaim is not None:
        _add_reclaim(page, measures.reclaim)
    page.add(CERTIFICATE, measures.certificate_expiry)
    return page.text()


def _add_plugin(page: "_Page", plugin: PluginMeasures) -> None:
    page.add(PLUGIN_REGISTERED, plugin.registered, plugin.resource)
    page.add(PLUGIN_STREAMS, plugin.streams, plugin.resource)
    page.add(PLUGIN_SLOTS, plugin.healthy_slots, plugin.resource, "healthy")
    page.add(PLUGIN_SLOTS, plugin.slots - plugin.healthy_slots, plugin.resource, "unhealthy")
    page.add(PLUGIN_REGISTRATIONS, plugin.registrations, plugin.resource, "success")
    page.add(PLUGIN_REGISTRATIONS, plugin.failures, plugin.resource, "failure")
    page.add(PLUGIN_ALLOCATIONS, plugin.given, plugin.resource, "given")
    page.add(PLUGIN_ALLOCATIONS, plugin.refused, plugin.resource, "refused")


def _add_reclaim(page: "_Page", reclaim: ReclaimMeasures) -> None:
    for verdict, count in sorted((reclaim.vnpus or {}).items()):
        page.add(VNPUS, count, verdict)
    page.add(LEAKED_CORES, reclaim.leaked_cores)
    for outcome, count in sorted(reclaim.reclaims.items()):
        page.add(RECLAIMS, count, outcome)
    page.add(BLOCKED, reclaim.blocked_seconds)


class _Page:
    """Samples by family. Two of the same labels are one: the collector refuses the whole file for a pair; the latest counts."""

    def __init__(self) -> None:
        self._samples: dict[Family, dict[str, str]] = {}

    def add(self, family: Family, value: float | None, *labels: str, suffix: str = "") -> None:
        if value is None or not math.isfinite(value):
            return
        named = zip(family.labels, labels, strict=True)
        texts = ",".join(f'{name}="{_escaped(label)}"' for name, label in named)
        sample = f"{family.name}{suffix}{{{texts}}}" if texts else f"{family.name}{suffix}"
        self._samples.setdefault(family, {})[sample] = _number(value)

    def text(self) -> str:
        return "".join(f"{line}\n" for family in FAMILIES if family in self._samples for line in self._lines(family))

    def _lines(self, family: Family) -> Iterable[str]:
        yield f"# HELP {family.name} {family.help}"
        yield f"# TYPE {family.name} {family.kind}"
        for sample, value in self._samples[family].items():
            yield f"{sample} {value}"


def _escaped(label: str) -> str:
    # What does not print is escaped by printable, a line feed too; these two have a meaning in the format.
    return printable(label, _MAXIMUM_VALUE).replace("\\", "\\\\").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
