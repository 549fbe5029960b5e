"""The contract: the XML says what the code does, and the policy files say what the XML and the code need."""

import configparser
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from bus_harness import CARD, KVM, ROOT, SPEC, VNPU, Bus, run, world

from devward import names
from devward.bus import auth, card, contract, device, manager, spec, vnpu
from devward.bus.auth import RULES, Open
from devward.bus.contract import ContractError, Emits
from devward.bus.standard import INTERFACES
from devward.model import (
    OWN_WISHES,
    CdiMode,
    ConfigState,
    DeviceKind,
    Health,
    Identity,
    Outcome,
    ReclaimMode,
    ReclaimState,
    RepairCause,
    SpecState,
)
from devward.npu.views import CardHealth, Management, Protection, Use, Verdict
from devward.reasons import Reason
from devward.reclaim import reasons

DBUS = ROOT / "dbus"
OURS = (names.MANAGER_INTERFACE, names.DEVICE_INTERFACE, names.SPEC_INTERFACE, names.CARD_INTERFACE, names.VNPU_INTERFACE)
CONTRACT = contract.load()
MANAGER = CONTRACT.interfaces[names.MANAGER_INTERFACE]
POLKIT_ACTIONS = {value for name, value in vars(names).items() if name.startswith("ACTION_")}


def test_every_interface_file_is_served_under_its_own_name() -> None:
    for path in DBUS.glob("*.xml"):
        (interface,) = ET.parse(path).getroot().findall("interface")
        assert f"{interface.get('name')}.xml" == path.name
        assert interface.get("name") in CONTRACT.interfaces
    assert set(OURS) < set(CONTRACT.interfaces)


def test_every_member_is_documented() -> None:
    for name in OURS:
        interface = CONTRACT.interfaces[name]
        for members in (interface.methods, interface.signals, interface.properties):
            for member, declared in members.items():
                assert declared.doc.endswith("."), member


@pytest.mark.parametrize("name", OURS)
def test_every_property_says_what_its_change_signal_does(name: str) -> None:
    (interface,) = ET.parse(DBUS / f"{name}.xml").getroot().findall("interface")
    for prop in interface.findall("property"):
        notes = {note.get("name") for note in prop.findall("annotation")}
        assert "org.freedesktop.DBus.Property.EmitsChangedSignal" in notes, prop.get("name")
        assert prop.get("access") == "read"


def test_counters_and_check_times_send_no_signal() -> None:
    quiet = {
        (interface.name.rpartition(".")[2], prop.name)
        for interface in CONTRACT.interfaces.values()
        for prop in interface.properties.values()
        if interface.name in OURS and prop.emits is Emits.FALSE
    }
    assert quiet == {
        ("Device", "LastCheckUSec"),
        ("Device", "CheckDurationUSec"),
        ("Spec", "RepairCount"),
        ("Vnpu", "Confirmations"),
        ("Manager", "AuditDropped"),
        ("Manager", "LastCycleUSec"),
        ("Manager", "NextCycleUSec"),
    }


@pytest.mark.parametrize(
    ("interface", "name", "expected"),
    [
        (names.DEVICE_INTERFACE, "Kind", DeviceKind),
        (names.DEVICE_INTERFACE, "Identity", Identity),
        (names.DEVICE_INTERFACE, "Health", Health),
        (names.DEVICE_INTERFACE, "Reason", Reason),
        (names.SPEC_INTERFACE, "State", SpecState),
        (names.SPEC_INTERFACE, "Reason", Reason),
        (names.SPEC_INTERFACE, "LastRepairCause", [*(set(RepairCause) - OWN_WISHES), ""]),
        (names.CARD_INTERFACE, "Health", CardHealth),
        (names.CARD_INTERFACE, "Managed", Management),
        (names.CARD_INTERFACE, "Protection", Protection),
        (names.CARD_INTERFACE, "Reason", Reason),
        (names.VNPU_INTERFACE, "InUse", Use),
        (names.VNPU_INTERFACE, "Verdict", Verdict),
        (names.VNPU_INTERFACE, "Reason", Reason),
        (names.MANAGER_INTERFACE, "CdiMode", CdiMode),
        (names.MANAGER_INTERFACE, "ConfigState", ConfigState),
        (names.MANAGER_INTERFACE, "ReclaimMode", ReclaimMode),
        (names.MANAGER_INTERFACE, "ReclaimState", ReclaimState),
    ],
)
def test_value_sets_are_the_enums(interface: str, name: str, expected: list[str]) -> None:
    assert CONTRACT.interfaces[interface].properties[name].values == set(map(str, expected))


def test_verdicts_of_the_bus_are_those_on_vnpus_that_are_there() -> None:
    assert set(map(str, Verdict)) == set(map(str, reasons.Verdict)) - {"destroyed", "vanished-foreign"}


def test_value_sets_of_arguments_are_the_enums() -> None:
    methods, signals = MANAGER.methods, MANAGER.signals
    assert methods["SetCdiMode"].inputs[0].values == set(CdiMode)
    assert methods["SetReclaimMode"].inputs[0].values == set(ReclaimMode)
    assert methods["CheckAllocation"].outputs[1].values == set(Reason)
    assert signals["SpecRepaired"].arguments[1].values == set(RepairCause)
    for method in methods.values():
        if method.out_signature == "ssa(sss)":
            _, state, results = method.outputs
            assert state.values == {"done", "pending"}
            assert results.columns == ("target", "outcome", "reason")
            assert results.column_values["outcome"] == set(Outcome) - {Outcome.INTENT, Outcome.DENIED}
    rows = {name: dict(method.outputs[0].column_values) for name, method in methods.items() if name.startswith("List")}
    assert rows["ListDevices"] == {"kind": set(DeviceKind), "identity": set(Identity), "health": set(Health), "reason": set(Reason)}
    assert rows["ListSpecs"] == {"state": set(SpecState), "reason": set(Reason)}
    assert rows["ListCards"] == {"health": set(CardHealth), "reason": set(Reason)}
    assert rows["ListVnpus"] == {"in_use": set(Use), "verdict": set(Verdict), "reason": set(Reason)}
    assert rows["ListFindings"] == {"code": set(Reason)}


def test_signatures_are_pinned() -> None:
    """A change here is a break of the contract, or an addition that belongs in the change log."""
    assert {name: (method.in_signature, method.out_signature) for name, method in MANAGER.methods.items()} == {
        "Describe": ("", "s"),
        "ListDevices": ("", "a(sssssto)"),
        "ListSpecs": ("", "a(sssstto)"),
        "ListCards": ("", card.SIGNATURE),
        "ListVnpus": ("", vnpu.SIGNATURE),
        "ListFindings": ("", "a(ssst)"),
        "CheckAllocation": ("s", "bsss"),
        "Rescan": ("t", "ssa(sss)"),
        "RepairSpecs": ("t", "ssa(sss)"),
        "AdoptSpec": ("st", "ssa(sss)"),
        "SetCdiMode": ("st", "ssa(sss)"),
        "PauseCdi": ("tst", "ssa(sss)"),
        "ResumeCdi": ("t", "ssa(sss)"),
        "ReclaimVnpu": ("ust", "ssa(sss)"),
        "ReclaimOrphans": ("t", "ssa(sss)"),
        "ReleaseBreaker": ("t", "ssa(sss)"),
        "SetReclaimMode": ("st", "ssa(sss)"),
        "PauseReclaim": ("tst", "ssa(sss)"),
        "ResumeReclaim": ("t", "ssa(sss)"),
        "Pin": ("sst", "ssa(sss)"),
        "Unpin": ("st", "ssa(sss)"),
        "AcceptNode": ("st", "ssa(sss)"),
        "Reload": ("t", "ssa(sss)"),
    }
    assert {name: signal.signature for name, signal in MANAGER.signals.items()} == {
        "SpecRepaired": "ss",
        "VnpuReclaimed": "uuss",
        "RequestFinished": "ssa(sss)",
    }
    assert (card.SIGNATURE, vnpu.SIGNATURE) == ("a(issddso)", "a(ussssoo)")
    for interface in (names.CARD_INTERFACE, names.VNPU_INTERFACE):
        assert {name: method.out_signature for name, method in CONTRACT.interfaces[interface].methods.items()} == {"Explain": "s"}
    shapes = {interface: {name: prop.signature for name, prop in CONTRACT.interfaces[interface].properties.items()} for interface in OURS}
    assert shapes == {
        names.MANAGER_INTERFACE: {
            "Version": "s",
            "NodeName": "s",
            "Ready": "b",
            "NotReadyReasons": "as",
            "Checking": "b",
            "CdiMode": "s",
            "CdiPausedUntilUSec": "t",
            "ReclaimMode": "s",
            "ReclaimState": "s",
            "ReclaimPausedUntilUSec": "t",
            "AuditDropped": "t",
            "ConfigState": "s",
            "BlockedReasons": "as",
            "BlockedSinceUSec": "t",
            "LastCycleUSec": "t",
            "NextCycleUSec": "t",
            "CertificateExpiresUSec": "t",
        },
        names.DEVICE_INTERFACE: {
            "Kind": "s",
            "Node": "s",
            "Number": "s",
            "Identity": "s",
            "IdentitySinceUSec": "t",
            "Health": "s",
            "HealthSinceUSec": "t",
            "Reason": "s",
            "Text": "s",
            "LastCheckUSec": "t",
            "CheckDurationUSec": "t",
        },
        names.SPEC_INTERFACE: {
            "File": "s",
            "CdiKind": "s",
            "Devices": "as",
            "State": "s",
            "StateSinceUSec": "t",
            "Reason": "s",
            "Text": "s",
            "RepairCount": "t",
            "LastRepairUSec": "t",
            "LastRepairCause": "s",
        },
        names.CARD_INTERFACE: {
            "PhyId": "i",
            "LogicId": "i",
            "CardId": "i",
            "DeviceId": "i",
            "DieId": "s",
            "Chip": "s",
            "Node": "s",
            "Number": "s",
            "Health": "s",
            "Managed": "s",
            "Protection": "s",
            "Claims": "as",
            "UsedCores": "d",
            "ClaimedCores": "d",
            "TotalCores": "d",
            "Reason": "s",
            "Text": "s",
        },
        names.VNPU_INTERFACE: {
            "Id": "u",
            "Identity": "s",
            "Card": "o",
            "Template": "s",
            "Vfid": "i",
            "Cores": "d",
            "Node": "s",
            "InUse": "s",
            "Verdict": "s",
            "VerdictReason": "s",
            "Reason": "s",
            "Text": "s",
            "FirstSeenUSec": "t",
            "GraceStartUSec": "t",
            "Confirmations": "u",
            "EligibleAtUSec": "t",
        },
    }


def test_lists_print_in_at_most_seven_columns_that_have_names() -> None:
    rows: dict[str, tuple[object, ...] | range] = {
        "ListDevices": device.row(KVM),
        "ListSpecs": spec.row(SPEC),
        "ListCards": card.row(CARD),
        "ListVnpus": vnpu.row(VNPU),
        "ListFindings": range(4),
    }
    assert set(rows) == {name for name in MANAGER.methods if name.startswith("List")}
    for name, row in rows.items():
        (output,) = MANAGER.methods[name].outputs
        assert len(output.columns) == len(output.signature) - 3 == len(row) <= 7


def test_every_method_has_a_rule_and_code_and_the_reverse(bus: Bus) -> None:
    described = {(interface.name, method) for interface in CONTRACT.interfaces.values() for method in interface.methods}
    assert set(RULES) == described

    async def main() -> None:
        async with world(bus.address) as made:
            assert made.service.dispatcher.members == described

    run(main)


def test_only_reading_is_public() -> None:
    public = {member for (interface, member), rule in RULES.items() if rule is Open.PUBLIC and interface == names.MANAGER_INTERFACE}
    assert public == {"Describe", "ListDevices", "ListSpecs", "ListCards", "ListVnpus", "ListFindings"}


def test_every_action_is_in_the_polkit_file_and_back() -> None:
    root = ET.parse(DBUS / "org.devward.devward1.policy").getroot()
    defaults = {}
    for action in root.findall("action"):
        texts = {child.tag: (child.text or "").strip() for child in action.iterfind("defaults/*")}
        defaults[action.get("id")] = (texts["allow_any"], texts["allow_inactive"], texts["allow_active"])
        for tag in ("description", "message"):
            text = action.findtext(tag) or ""
            assert text
            assert "$(" not in text, "a prompt says nothing that its asker chose"
    assert set(defaults) == POLKIT_ACTIONS
    admin = "auth_admin"
    assert defaults == {
        names.ACTION_CHECK: (admin, admin, "yes"),
        names.ACTION_INSPECT: (admin, admin, "yes"),
        names.ACTION_RESCAN: (admin, admin, "auth_admin_keep"),
        names.ACTION_REPAIR_CDI: (admin, admin, "auth_admin_keep"),
        names.ACTION_PROTECT: (admin, admin, "auth_admin_keep"),
        names.ACTION_RELEASE: (admin, admin, admin),
        names.ACTION_RECLAIM: (admin, admin, admin),
    }


def test_every_action_is_asked_for_by_some_rule() -> None:
    asked = {names.ACTION_INSPECT}  # by may_inspect alone
    for (_, member), rule in RULES.items():
        modes = {"SetCdiMode": CdiMode, "SetReclaimMode": ReclaimMode}.get(member)
        bodies = [(mode, 0) for mode in modes] if modes is not None else [()]
        asked |= {action for body in bodies if isinstance(action := auth.rule_action(rule, body), str)}
    assert asked == POLKIT_ACTIONS


def test_bus_policy_names_our_destination_in_every_rule() -> None:
    root = ET.parse(DBUS / "org.devward.Devward1.conf").getroot()
    opened = set()
    for policy in root.findall("policy"):
        for rule in policy:
            assert rule.tag == "allow"
            assert policy.get("user") == "root" or rule.get("send_interface"), "others reach us interface by interface"
            assert names.BUS_NAME in (rule.get("own"), rule.get("send_destination"))
            assert "own" not in rule.attrib or policy.get("user") == "root"
            if policy.get("context") == "default":
                opened.add(rule.get("send_interface"))
    assert opened == set(CONTRACT.interfaces), "an interface that is served is reachable, and no other"


def test_activation_goes_through_systemd() -> None:
    parser = configparser.ConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # as the standard library documents it
    parser.read(DBUS / "org.devward.Devward1.service")
    assert dict(parser["D-BUS Service"]) == {
        "Name": names.BUS_NAME,
        "Exec": "/bin/false",
        "User": "root",
        "SystemdService": f"dbus-{names.BUS_NAME}.service",
    }


def test_introspection_document_has_what_the_xml_has() -> None:
    text = CONTRACT.introspect((names.MANAGER_INTERFACE, names.PEER_INTERFACE), ("spec", "device"))
    root = ET.fromstring(text)
    assert [node.get("name") for node in root.findall("node")] == ["device", "spec"]
    served, _ = root.findall("interface")
    (written,) = ET.parse(DBUS / f"{names.MANAGER_INTERFACE}.xml").getroot().findall("interface")
    ET.indent(served)
    ET.indent(written)
    assert ET.tostring(served).split() == ET.tostring(written).split()


NOTED = (
    "<node><interface name='a.b'><property name='P' type='s' access='read'><annotation name='{}' value='{}'/></property></interface></node>"
)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ("<node", "malformed"),
        ("<node><interface/></node>", "no name"),
        ("<node><interface name='a.b'/><interface name='a.b'/></node>", "twice"),
        ("<node><interface name='a.b'><method name='M'/><method name='M'/></interface></node>", "twice"),
        ("<node><interface name='a.b'><property name='P' type='s' access='write'/></interface></node>", "access"),
        ("<node><interface name='a.b'><property name='P' type='s'/></interface></node>", "no access"),
        (NOTED.format("org.freedesktop.DBus.Property.EmitsChangedSignal", "maybe"), "EmitsChangedSignal"),
        (NOTED.format("org.devward.ValuesOf", "a.b.Q"), "a.b.Q"),
    ],
)
def test_a_bad_document_is_refused(document: str, complaint: str) -> None:
    with pytest.raises(ContractError, match=complaint):
        contract.parse([document])


def test_standard_interfaces_parse_alone() -> None:
    parsed = contract.parse([INTERFACES])
    assert parsed.interfaces[names.LOG_CONTROL_INTERFACE].properties["LogLevel"].writable


def test_actions_are_those_with_flags() -> None:
    actions = {name for name, method in MANAGER.methods.items() if method.out_signature == "ssa(sss)"}
    for name in actions:
        assert MANAGER.methods[name].inputs[-1].name == "flags"
    assert actions == {
        "Rescan",
        "RepairSpecs",
        "AdoptSpec",
        "SetCdiMode",
        "PauseCdi",
        "ResumeCdi",
        "Pin",
        "Unpin",
        "AcceptNode",
        "Reload",
        "ReclaimVnpu",
        "ReclaimOrphans",
        "ReleaseBreaker",
        "SetReclaimMode",
        "PauseReclaim",
        "ResumeReclaim",
    }


def test_interfaces_are_installed_with_the_package() -> None:
    directory = Path(manager.__file__).parents[1] / "interfaces"
    assert {path.name for path in directory.glob("*.xml")} == {f"{name}.xml" for name in OURS}
