"""What the daemon publishes, read tolerantly: from an older daemon, a newer one, and one that makes no sense."""

import io
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devward import names
from devward.ctl import explain_npu, facts, lists, owners, reading, wording
from devward.ctl.facts import Device, Manager, Snapshot, Spec
from devward.ctl.npu_facts import Card, Vnpu
from devward.ctl.terminal import Capabilities, Screen
from devward.ctl.when import Times
from devward.model import Health, SpecState
from devward.reasons import Reason

KVM = "hyperlight.dev/hypervisor=kvm"
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5
)
PROPERTIES = [
    *("Version", "NodeName", "Ready", "NotReadyReasons", "CdiMode", "CdiPausedUntilUSec", "ConfigState", "Checking", "AuditDropped"),
    *("Kind", "Node", "Number", "Identity", "Health", "HealthSinceUSec", "Reason", "Text", "LastCheckUSec", "CheckDurationUSec"),
    *("File", "CdiKind", "Devices", "State", "StateSinceUSec", "RepairCount", "LastRepairUSec", "LastRepairCause", "NewThing"),
    *("PhyId", "CardId", "DeviceId", "DieId", "Chip", "Claims", "UsedCores", "TotalCores", "Id", "Card", "Template", "InUse", "Verdict"),
    *("FirstSeenUSec", "GraceStartUSec", "Confirmations", "EligibleAtUSec", "Managed", "Protection", "ClaimedCores"),
    *("BlockedReasons", "BlockedSinceUSec", "LastCycleUSec", "NextCycleUSec", "CertificateExpiresUSec"),
]


def standing(device: dict[str, object] | None = None, spec: dict[str, object] | None = None) -> Snapshot:
    devices = (Device.of({"kind": "kvm", "node": "/dev/kvm", "health": "healthy", "health_since_usec": 5, **(device or {})}),)
    specs = (
        Spec.of(
            {
                "file": "/x",
                "cdi_kind": "hyperlight.dev/hypervisor",
                "devices": [KVM],
                "state": "true",
                "state_since_usec": 7,
                **(spec or {}),
            }
        ),
    )
    return Snapshot(Manager(), devices, specs, ())


@pytest.mark.parametrize(
    ("name", "snake"),
    [("LastCheckUSec", "last_check_usec"), ("CdiKind", "cdi_kind"), ("Ready", "ready"), ("NotReadyReasons", "not_ready_reasons")],
)
def test_names_in_snake_case(name: str, snake: str) -> None:
    assert reading.snake(name) == snake


def test_every_property_of_the_contract_is_read() -> None:
    """The fields here and the properties of the XML have the same names, once both are in snake case."""
    from pathlib import Path
    from xml.etree import ElementTree as ET

    for interface, kind in (("Manager", Manager), ("Device", Device), ("Spec", Spec), ("Card", Card), ("Vnpu", Vnpu)):
        tree = ET.parse(Path(__file__).parents[2] / "dbus" / f"org.devward.Devward1.{interface}.xml")
        published = {reading.snake(one.attrib["name"]) for one in tree.iter("property")}
        assert {*kind.__dataclass_fields__} - {"raw", "name"} == published


INTERFACES = [names.DEVICE_INTERFACE, names.SPEC_INTERFACE, names.CARD_INTERFACE, names.VNPU_INTERFACE, "x.y"]


@given(
    st.dictionaries(st.sampled_from(PROPERTIES), anything),
    st.dictionaries(st.text(), st.dictionaries(st.sampled_from(INTERFACES), st.dictionaries(st.sampled_from(PROPERTIES), anything))),
    st.lists(st.lists(anything, max_size=6)),
)
# About half of what is made is too large and thrown away; by chance it may be most of the first.
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
def test_no_daemon_breaks_the_reading(manager: Any, objects: Any, rows: Any) -> None:
    snapshot = facts.snapshot(manager, objects, rows)
    for blocked in snapshot.blocked():
        assert blocked.text
    for spec in snapshot.specs:
        assert isinstance(spec.sentence, str)
    for card in snapshot.cards:
        assert explain_npu.of_card(card, None, snapshot, Times(1)).found
        assert wording.card_changes(Card(), card) or not card.health
    for vnpu in snapshot.vnpus:
        assert explain_npu.of_vnpu(vnpu, {}, snapshot, Times(1)).found
        assert wording.vnpu_changes(Vnpu(), vnpu)
    assert wording.manager_changes(Manager(), snapshot.manager, Times(1)) or not snapshot.manager.blocked_reasons
    for line in owners.lines(snapshot, None, Times(1)):
        assert line.text.replace("\u00a0", "").isprintable()
    json.dumps(owners.document(snapshot.manager))
    shown = io.StringIO()
    lists.show_cards(Screen(shown, Capabilities()), snapshot)
    lists.show_vnpus(Screen(shown, Capabilities()), snapshot, Times(1))


def test_unknown_properties_pass_through_to_json() -> None:
    device = Device.of(reading.raw({"Kind": "kvm", "NewUSec": 5}))
    assert device.raw == {"kind": "kvm", "new_usec": 5}


def test_an_unknown_reason_stands_for_itself() -> None:
    assert "flux-lost, which this devwardctl does not know" in reading.sentence("flux-lost")
    assert reading.sentence("flux-lost", "The flux is lost.") == "The flux is lost."
    assert reading.sentence("") == ""
    assert "\x1b" not in reading.sentence("x\x1b[2J") + reading.sentence("x", "\x1b[2J")


def test_nothing_is_blocked_where_all_is_well() -> None:
    assert standing().blocked() == ()


@pytest.mark.parametrize(
    ("device", "spec", "reason", "since"),
    [
        ({"health": Health.UNHEALTHY, "reason": "hypervisor-busy"}, {}, "hypervisor-busy", 5),
        ({"health": Health.MISSING, "reason": "device-missing"}, {"state": SpecState.EMPTY, "devices": []}, "device-missing", 5),
        ({"health": "dreaming"}, {}, "", 5),
        ({}, {"state": SpecState.BLOCKED, "reason": "cdi-read-only"}, "cdi-read-only", 7),
        ({}, {"state": SpecState.SHADOWED, "reason": "cdi-shadowed"}, "cdi-shadowed", 7),
        ({}, {"state": SpecState.CONFLICT, "reason": "cdi-conflict", "devices": []}, "cdi-conflict", 7),
        ({}, {"state": SpecState.TRUE, "devices": []}, Reason.CDI_NOT_PUBLISHED, 7),
        ({}, {"state": "half-true"}, "", 7),
        ({}, {"cdi_kind": "other/kind", "devices": []}, Reason.CDI_NOT_PUBLISHED, 0),
    ],
)
def test_what_is_blocked_and_by_what_first(device: dict[str, object], spec: dict[str, object], reason: str, since: int) -> None:
    (blocked,) = standing(device, spec).blocked()
    assert (blocked.device, blocked.reason, blocked.since_usec) == (KVM, reason, since)
    assert blocked.text
