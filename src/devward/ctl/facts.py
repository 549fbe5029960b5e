"""What the daemon publishes, as devwardctl sees it: tolerant of what a newer daemon adds and an older one lacks. Pure.

The names are those of the properties in dbus/*.xml; `raw` holds all of them in snake case, also those that are not known here, and is
what --json prints. A property that is absent, or of another type, has the value that says least. Times are microseconds of
CLOCK_REALTIME since 1970, 0 for none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from devward import names
from devward.ctl.npu_facts import Card, Vnpu
from devward.ctl.reading import Raw, last, number_of, raw, sentence, text_of, texts_of
from devward.model import Health, ReclaimState, SpecState
from devward.reasons import REASON_TEXT, Reason
from devward.text import printable

#: States in which a file says what it should; with the last two engines may use another definition of its devices.
IN_ORDER: Final = (SpecState.TRUE, SpecState.CONFLICT, SpecState.SHADOWED)


@dataclass(frozen=True, slots=True)
class Manager:
    """The daemon itself."""

    version: str = ""
    node_name: str = ""
    ready: bool = False
    not_ready_reasons: tuple[str, ...] = ()
    checking: bool = False
    cdi_mode: str = ""
    cdi_paused_until_usec: int = 0
    audit_dropped: int = 0
    config_state: str = ""
    #: Why it cannot be told who owns the vNPUs: a code each, followed by the UID of a Pod where it is because of one.
    blocked_reasons: tuple[str, ...] = ()
    blocked_since_usec: int = 0
    last_cycle_usec: int = 0
    next_cycle_usec: int = 0
    certificate_expires_usec: int = 0
    reclaim_mode: str = ""
    reclaim_state: str = ""
    reclaim_paused_until_usec: int = 0
    raw: Raw = field(default_factory=dict)

    @property
    def is_reclaiming_stopped(self) -> bool:
        """Whether no vNPU is destroyed, however long it has waited; False where the daemon does not tell."""
        return self.reclaim_state in list(ReclaimState) and self.reclaim_state != ReclaimState.ENFORCING

    @classmethod
    def of(cls, values: Raw) -> "Manager":
        """Read the properties of org.devward.Devward1.Manager."""
        return cls(
            version=text_of(values, "version"),
            node_name=text_of(values, "node_name"),
            ready=values.get("ready") is True,
            not_ready_reasons=texts_of(values, "not_ready_reasons"),
            checking=values.get("checking") is True,
            cdi_mode=text_of(values, "cdi_mode"),
            cdi_paused_until_usec=number_of(values, "cdi_paused_until_usec"),
            audit_dropped=number_of(values, "audit_dropped"),
            config_state=text_of(values, "config_state"),
            blocked_reasons=texts_of(values, "blocked_reasons"),
            blocked_since_usec=number_of(values, "blocked_since_usec"),
            last_cycle_usec=number_of(values, "last_cycle_usec"),
            next_cycle_usec=number_of(values, "next_cycle_usec"),
            certificate_expires_usec=number_of(values, "certificate_expires_usec"),
            reclaim_mode=text_of(values, "reclaim_mode"),
            reclaim_state=text_of(values, "reclaim_state"),
            reclaim_paused_until_usec=number_of(values, "reclaim_paused_until_usec"),
            raw=values,
        )


@dataclass(frozen=True, slots=True)
class Device:
    """One hypervisor device."""

    kind: str = ""
    node: str = ""
    number: str = ""
    identity: str = ""
    identity_since_usec: int = 0
    health: str = ""
    health_since_usec: int = 0
    reason: str = ""
    text: str = ""
    last_check_usec: int = 0
    check_duration_usec: int = 0
    raw: Raw = field(default_factory=dict)

    @classmethod
    def of(cls, values: Raw) -> "Device":
        """Read the properties of org.devward.Devward1.Device."""
        return cls(
            kind=text_of(values, "kind"),
            node=text_of(values, "node"),
            number=text_of(values, "number"),
            identity=text_of(values, "identity"),
            identity_since_usec=number_of(values, "identity_since_usec"),
            health=text_of(values, "health"),
            health_since_usec=number_of(values, "health_since_usec"),
            reason=text_of(values, "reason"),
            text=text_of(values, "text"),
            last_check_usec=number_of(values, "last_check_usec"),
            check_duration_usec=number_of(values, "check_duration_usec"),
            raw=values,
        )

    @property
    def qualified(self) -> str:
        """The name by which containers ask for the device."""
        return f"{names.HYPERVISOR_CDI_KIND}={self.kind}"

    @property
    def sentence(self) -> str:
        """Why the device is as it is, empty where all is well."""
        return sentence(self.reason, self.text)


@dataclass(frozen=True, slots=True)
class Spec:
    """One CDI file that devward owns."""

    file: str = ""
    cdi_kind: str = ""
    devices: tuple[str, ...] = ()
    state: str = ""
    state_since_usec: int = 0
    reason: str = ""
    text: str = ""
    repair_count: int = 0
    last_repair_usec: int = 0
    last_repair_cause: str = ""
    raw: Raw = field(default_factory=dict)

    @classmethod
    def of(cls, values: Raw) -> "Spec":
        """Read the properties of org.devward.Devward1.Spec."""
        return cls(
            file=text_of(values, "file"),
            cdi_kind=text_of(values, "cdi_kind"),
            devices=texts_of(values, "devices"),
            state=text_of(values, "state"),
            state_since_usec=number_of(values, "state_since_usec"),
            reason=text_of(values, "reason"),
            text=text_of(values, "text"),
            repair_count=number_of(values, "repair_count"),
            last_repair_usec=number_of(values, "last_repair_usec"),
            last_repair_cause=text_of(values, "last_repair_cause"),
            raw=values,
        )

    @property
    def sentence(self) -> str:
        """Why the file is as it is, empty where all is well."""
        return sentence(self.reason, self.text)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that an administrator should know."""

    code: str
    subject: str
    text: str
    since_usec: int

    @property
    def raw(self) -> Raw:
        """The finding as --json prints it."""
        return {"code": self.code, "subject": self.subject, "text": self.text, "since_usec": self.since_usec}


@dataclass(frozen=True, slots=True)
class Blocked:
    """A device that new containers cannot be given, and why."""

    device: str
    reason: str
    text: str
    since_usec: int

    @property
    def raw(self) -> Raw:
        """What is blocked as --json prints it."""
        return {"device": self.device, "reason": self.reason, "text": self.text, "since_usec": self.since_usec}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that the daemon publishes, at one moment."""

    manager: Manager
    devices: tuple[Device, ...]
    specs: tuple[Spec, ...]
    findings: tuple[Finding, ...]
    cards: tuple[Card, ...] = ()
    vnpus: tuple[Vnpu, ...] = ()

    def vnpus_of(self, card: Card) -> tuple[Vnpu, ...]:
        """Return the vNPUs of an NPU."""
        return tuple(vnpu for vnpu in self.vnpus if vnpu.card_name == card.name)

    def spec_of(self, device: Device) -> Spec | None:
        """Return the file that defines a device, or should."""
        kind = device.qualified.partition("=")[0]
        return next((spec for spec in self.specs if device.qualified in spec.devices or spec.cdi_kind == kind), None)

    def blocked(self) -> tuple[Blocked, ...]:
        """Return the devices that new containers cannot be given, with the first reason in the chain from node to engine."""
        return tuple(found for device in self.devices if (found := self._blocked(device)) is not None)

    def _blocked(self, device: Device) -> Blocked | None:
        name = device.qualified
        if device.health != Health.HEALTHY:
            text = device.sentence or f"The health of the device is {printable(device.health) or 'not told'}."
            return Blocked(name, device.reason, text, device.health_since_usec)
        spec = self.spec_of(device)
        if spec is None:
            return Blocked(name, Reason.CDI_NOT_PUBLISHED, REASON_TEXT[Reason.CDI_NOT_PUBLISHED], 0)
        if spec.state == SpecState.SHADOWED or spec.state not in IN_ORDER:
            text = spec.sentence or f"The state of {printable(spec.file)} is {printable(spec.state) or 'not told'}."
            return Blocked(name, spec.reason, text, spec.state_since_usec)
        if name not in spec.devices:
            reason = spec.reason or Reason.CDI_NOT_PUBLISHED
            return Blocked(name, reason, sentence(reason, spec.text), spec.state_since_usec)
        return None


def findings(rows: Iterable[Sequence[object]]) -> tuple[Finding, ...]:
    """Read the rows of ListFindings; a newer daemon may add columns."""
    found = []
    for row in rows:
        values = dict(zip(("code", "subject", "text", "since_usec"), row, strict=False))
        found.append(Finding(text_of(values, "code"), text_of(values, "subject"), text_of(values, "text"), number_of(values, "since_usec")))
    return tuple(found)


def snapshot(
    manager: Mapping[str, object], objects: Mapping[str, Mapping[str, Mapping[str, object]]], rows: Iterable[Sequence[object]]
) -> Snapshot:
    """Put together what GetAll of the root, GetManagedObjects and ListFindings answered, with plain values instead of variants."""
    shown = sorted(objects.items())
    return Snapshot(
        manager=Manager.of(raw(manager)),
        devices=tuple(Device.of(raw(one[names.DEVICE_INTERFACE])) for _, one in shown if names.DEVICE_INTERFACE in one),
        specs=tuple(Spec.of(raw(one[names.SPEC_INTERFACE])) for _, one in shown if names.SPEC_INTERFACE in one),
        findings=findings(rows),
        cards=tuple(Card.of(last(path), raw(one[names.CARD_INTERFACE])) for path, one in shown if names.CARD_INTERFACE in one),
        vnpus=tuple(Vnpu.of(last(path), raw(one[names.VNPU_INTERFACE])) for path, one in shown if names.VNPU_INTERFACE in one),
    )
