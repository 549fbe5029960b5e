"""What clients see of the object tree: properties, change signals, objects that come and go, introspection."""

import asyncio
import io
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from bus_harness import KVM, MANAGER, MSHV, SPEC, Bus, Client, pretend_uid, run, world
from dbus_next import MessageType, Variant
from dbus_next._private.unmarshaller import Unmarshaller
from hypothesis import given
from hypothesis import strategies as st

from devward import names
from devward.bus import contract, device, manager, spec, transport
from devward.bus.publisher import Entries, OutgoingSignal, PublishedObject, Publisher, PublishError, changes
from devward.bus.wire import Encoded
from devward.model import OWN_WISHES, CdiMode, ConfigState, DeviceKind, Health, Identity, ReclaimMode, ReclaimState, RepairCause, SpecState
from devward.reasons import Reason

CONTRACT = contract.load()
KVM_PATH = names.device_path("kvm")
SPEC_PATH = names.spec_path("hyperlight.dev-hypervisor.json")
PROPERTIES = names.PROPERTIES_INTERFACE


async def get_all(client: Client, path: str, interface: str) -> dict[str, object]:
    (values,) = await client.ok("GetAll", "s", [interface], interface=PROPERTIES, path=path)
    return {name: value.value for name, value in values.items()}  # type: ignore[attr-defined]


def test_properties_are_the_views(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            assert await get_all(client, names.ROOT_PATH, names.MANAGER_INTERFACE) == {
                "Version": "1.2.3",
                "NodeName": "node-a",
                "Ready": True,
                "NotReadyReasons": [],
                "Checking": False,
                "CdiMode": "repair",
                "CdiPausedUntilUSec": 0,
                "ReclaimMode": "off",
                "ReclaimState": "off",
                "ReclaimPausedUntilUSec": 0,
                "AuditDropped": 0,
                "ConfigState": "good",
                "BlockedReasons": [],
                "BlockedSinceUSec": 0,
                "LastCycleUSec": 0,
                "NextCycleUSec": 0,
                "CertificateExpiresUSec": 0,
            }
            assert await get_all(client, KVM_PATH, names.DEVICE_INTERFACE) == {
                "Kind": "kvm",
                "Node": "/dev/kvm",
                "Number": "10:232",
                "Identity": "valid",
                "IdentitySinceUSec": KVM.identity_since_usec,
                "Health": "healthy",
                "HealthSinceUSec": KVM.health_since_usec,
                "Reason": "",
                "Text": "",
                "LastCheckUSec": KVM.last_check_usec,
                "CheckDurationUSec": 4200,
            }
            assert await get_all(client, SPEC_PATH, names.SPEC_INTERFACE) == {
                "File": SPEC.file,
                "CdiKind": SPEC.cdi_kind,
                "Devices": list(SPEC.devices),
                "State": "true",
                "StateSinceUSec": SPEC.state_since_usec,
                "Reason": "",
                "Text": "",
                "RepairCount": 2,
                "LastRepairUSec": SPEC.last_repair_usec,
                "LastRepairCause": "missing",
            }
            for path, interface in ((names.ROOT_PATH, names.MANAGER_INTERFACE), (KVM_PATH, names.DEVICE_INTERFACE)):
                for name, prop in CONTRACT.interfaces[interface].properties.items():
                    for asked in (interface, ""):
                        (value,) = await client.ok("Get", "ss", [asked, name], interface=PROPERTIES, path=path)
                        assert value.signature == prop.signature  # type: ignore[attr-defined]
            # With no interface named: all of the object.
            assert len(await get_all(client, KVM_PATH, "")) == len(CONTRACT.interfaces[names.DEVICE_INTERFACE].properties)
            assert await get_all(client, KVM_PATH, names.PEER_INTERFACE) == {}

    run(main)


def test_every_documented_value_can_be_published_and_read(bus: Bus) -> None:
    reached: dict[str, set[object]] = {}

    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()

            async def read(path: str, interface: str) -> None:
                made.service.publish()
                for name, value in (await get_all(client, path, interface)).items():
                    reached.setdefault(f"{interface}.{name}", set()).add(value if isinstance(value, str) else None)

            for kind in DeviceKind:
                made.backend.device_views = [replace(KVM, kind=kind)]
                await read(names.device_path(kind), names.DEVICE_INTERFACE)
            made.backend.device_views = [KVM]
            for identity in Identity:
                made.backend.device_views = [replace(KVM, identity=identity)]
                await read(KVM_PATH, names.DEVICE_INTERFACE)
            for health in Health:
                made.backend.device_views = [replace(KVM, health=health)]
                await read(KVM_PATH, names.DEVICE_INTERFACE)
            for reason in Reason:
                made.backend.device_views = [replace(KVM, reason=reason)]
                made.backend.spec_views = [replace(SPEC, reason=reason)]
                await read(KVM_PATH, names.DEVICE_INTERFACE)
                await read(SPEC_PATH, names.SPEC_INTERFACE)
            for state in SpecState:
                made.backend.spec_views = [replace(SPEC, state=state)]
                await read(SPEC_PATH, names.SPEC_INTERFACE)
            for cause in ("", *(set(RepairCause) - OWN_WISHES)):
                made.backend.spec_views = [replace(SPEC, last_repair_cause=cause)]
                await read(SPEC_PATH, names.SPEC_INTERFACE)
            for mode in CdiMode:
                made.backend.view = replace(MANAGER, cdi_mode=mode)
                await read(names.ROOT_PATH, names.MANAGER_INTERFACE)
            for reclaim_mode in ReclaimMode:
                made.backend.view = replace(MANAGER, reclaim_mode=reclaim_mode)
                await read(names.ROOT_PATH, names.MANAGER_INTERFACE)
            for reclaim_state in ReclaimState:
                made.backend.view = replace(MANAGER, reclaim_state=reclaim_state)
                await read(names.ROOT_PATH, names.MANAGER_INTERFACE)
            for state in ConfigState:
                made.backend.view = replace(MANAGER, config_state=state)
                await read(names.ROOT_PATH, names.MANAGER_INTERFACE)

    run(main)
    for interface in (names.MANAGER_INTERFACE, names.DEVICE_INTERFACE, names.SPEC_INTERFACE):
        for name, prop in CONTRACT.interfaces[interface].properties.items():
            if prop.values:
                assert reached[f"{interface}.{name}"] == prop.values, name


def test_changes_of_one_turn_are_one_signal_for_each_interface(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            # Three publications in one turn of the loop, of which only the last counts.
            made.backend.device_views = [replace(KVM, health=Health.UNKNOWN, reason=Reason.NOT_CHECKED)]
            made.service.publish()
            busy = replace(KVM, health=Health.UNHEALTHY, reason=Reason.HYPERVISOR_BUSY)
            made.backend.device_views = [replace(busy, text="Busy.", last_check_usec=9)]
            made.service.publish()
            made.backend.view = replace(MANAGER, ready=False, not_ready_reasons=("no-usable-device",), audit_dropped=3)
            made.service.publish()
            # Reads see it at once, before any signal.
            assert (await get_all(client, KVM_PATH, names.DEVICE_INTERFACE))["Health"] == "unhealthy"
            await client.settle()
            told = {signal.path: signal.body for signal in client.seen("PropertiesChanged")}
            assert len(client.seen("PropertiesChanged")) == 2
            assert told[KVM_PATH] == [
                names.DEVICE_INTERFACE,
                {"Health": Variant("s", "unhealthy"), "Reason": Variant("s", "hypervisor-busy"), "Text": Variant("s", "Busy.")},
                [],
            ]
            assert told[names.ROOT_PATH] == [
                names.MANAGER_INTERFACE,
                {"Ready": Variant("b", False), "NotReadyReasons": Variant("as", ["no-usable-device"])},
                [],
            ]

    run(main)


def test_what_did_not_change_or_sends_no_signal_is_silent(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            made.service.publish()
            made.backend.device_views = [replace(KVM, last_check_usec=1, check_duration_usec=2)]
            made.backend.spec_views = [replace(SPEC, repair_count=99)]
            made.service.publish()
            await asyncio.sleep(0)
            assert (await get_all(client, SPEC_PATH, names.SPEC_INTERFACE))["RepairCount"] == 99
            # There and back in one turn.
            made.backend.view = replace(MANAGER, checking=True)
            made.service.publish()
            made.backend.view = MANAGER
            made.service.publish()
            await client.settle()
            assert not client.signals

    run(main)


def test_objects_come_and_go_from_the_root_with_all_their_interfaces(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            made.backend.device_views = [KVM, MSHV]
            made.service.publish()
            await client.settle()
            (added,) = client.signals
            assert (added.path, added.interface, added.member) == (names.ROOT_PATH, names.OBJECT_MANAGER_INTERFACE, "InterfacesAdded")
            path, interfaces = added.body
            assert path == names.device_path("mshv")
            assert set(interfaces) == {names.DEVICE_INTERFACE}
            assert {name: value.value for name, value in interfaces[names.DEVICE_INTERFACE].items()} == await get_all(
                client, path, names.DEVICE_INTERFACE
            )
            client.signals.clear()
            made.backend.device_views = [MSHV]
            made.service.publish()
            await client.settle()
            (removed,) = client.signals
            assert (removed.path, removed.member) == (names.ROOT_PATH, "InterfacesRemoved")
            assert removed.body == [KVM_PATH, [names.DEVICE_INTERFACE]]
            assert await client.error("GetAll", "s", [names.DEVICE_INTERFACE], interface=PROPERTIES, path=KVM_PATH) == "UnknownObject"

    run(main)


def test_another_thing_at_the_same_path_is_removed_and_added(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            made.backend.spec_views = [replace(SPEC, file="/srv/cdi/hyperlight.dev-hypervisor.json")]
            made.service.publish()
            await client.settle()
            assert [signal.member for signal in client.signals] == ["InterfacesRemoved", "InterfacesAdded"]
            assert {signal.body[0] for signal in client.signals} == {SPEC_PATH}
            assert client.signals[1].body[1][names.SPEC_INTERFACE]["File"].value == "/srv/cdi/hyperlight.dev-hypervisor.json"

    run(main)


def test_managed_objects_are_those_below_the_root(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            made.backend.device_views = [KVM, MSHV]
            made.service.publish()
            client = await made.client()
            (objects,) = await client.ok("GetManagedObjects", interface=names.OBJECT_MANAGER_INTERFACE)
            assert set(objects) == {KVM_PATH, names.device_path("mshv"), SPEC_PATH}  # type: ignore[call-overload]
            for path, interfaces in objects.items():  # type: ignore[attr-defined]
                for interface, values in interfaces.items():
                    assert {name: value.value for name, value in values.items()} == await get_all(client, path, interface)
            for path in (KVM_PATH, "/", "/org/devward", names.LOG_CONTROL_PATH):
                error = await client.error("GetManagedObjects", interface=names.OBJECT_MANAGER_INTERFACE, path=path)
                assert error == "UnknownInterface"

    run(main)


def test_introspection_leads_to_every_object_and_shows_the_contract(bus: Bus) -> None:
    found: dict[str, set[str | None]] = {}

    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            waiting = ["/"]
            while waiting:
                path = waiting.pop()
                (text,) = await client.ok("Introspect", interface=names.INTROSPECTABLE_INTERFACE, path=path)
                root = ET.fromstring(str(text))
                found[path] = {element.get("name") for element in root.findall("interface")}
                for name in found[path]:
                    assert CONTRACT.interfaces[str(name)].xml.strip() in str(text)
                waiting += [f"{path.rstrip('/')}/{node.get('name')}" for node in root.findall("node")]

    run(main)
    nodes = {names.PEER_INTERFACE, names.INTROSPECTABLE_INTERFACE}
    objects = nodes | {PROPERTIES}
    assert found == {
        "/": nodes,
        "/org": nodes,
        "/org/devward": nodes,
        "/org/freedesktop": nodes,
        names.LOG_CONTROL_PATH: objects | {names.LOG_CONTROL_INTERFACE},
        names.ROOT_PATH: objects | {names.OBJECT_MANAGER_INTERFACE, names.MANAGER_INTERFACE},
        names.ROOT_PATH + "/device": nodes,
        names.ROOT_PATH + "/spec": nodes,
        KVM_PATH: objects | {names.DEVICE_INTERFACE},
        SPEC_PATH: objects | {names.SPEC_INTERFACE},
    }


def test_log_control_is_read_by_all_and_set_by_root(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    where = {"interface": PROPERTIES, "path": names.LOG_CONTROL_PATH}
    of = names.LOG_CONTROL_INTERFACE

    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            assert await get_all(client, names.LOG_CONTROL_PATH, of) == {
                "LogLevel": "info",
                "LogTarget": "auto",
                "SyslogIdentifier": "devwardd",
            }
            pretend_uid(made, 0, monkeypatch)
            for level in CONTRACT.interfaces[of].properties["LogLevel"].values:
                await client.ok("Set", "ssv", [of, "LogLevel", Variant("s", level)], **where)
                assert made.log_control.level == level
                assert (await get_all(client, names.LOG_CONTROL_PATH, of))["LogLevel"] == level
            for target in CONTRACT.interfaces[of].properties["LogTarget"].values:
                await client.ok("Set", "ssv", [of, "LogTarget", Variant("s", target)], **where)
                assert made.log_control.target == target
            for value in (Variant("s", "loud"), Variant("s", ""), Variant("u", 3), Variant("v", Variant("s", "info"))):
                assert await client.error("Set", "ssv", [of, "LogLevel", value], **where) == "InvalidArgs"
            assert await client.error("Set", "ssv", [of, "SyslogIdentifier", Variant("s", "x")], **where) == "PropertyReadOnly"
            assert await client.error("Set", "ssv", [of, "Nothing", Variant("s", "x")], **where) == "UnknownProperty"
            other, before = await made.client(), "warning"
            made.log_control.level = before
            pretend_uid(made, 1000, monkeypatch)
            assert await other.error("Set", "ssv", [of, "LogLevel", Variant("s", "debug")], **where, flags=4) == "AccessDenied"
            assert made.log_control.level == before
            assert made.audit.denials[0][2:4] == ("root", "Set")
            assert not made.polkit.checks, "no action stands for it"

    run(main)


def test_nothing_else_can_be_set(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            for path, interface in (
                (names.ROOT_PATH, names.MANAGER_INTERFACE),
                (KVM_PATH, names.DEVICE_INTERFACE),
                (SPEC_PATH, names.SPEC_INTERFACE),
            ):
                for name, prop in CONTRACT.interfaces[interface].properties.items():
                    value = {"s": Variant("s", "x"), "b": Variant("b", True), "t": Variant("t", 1), "as": Variant("as", [])}[prop.signature]
                    for asked in (interface, ""):
                        error = await client.error("Set", "ssv", [asked, name, value], interface=PROPERTIES, path=path)
                        assert error == "PropertyReadOnly"

    run(main)


# --- the publisher alone -------------------------------------------------------------------------------------------


def publisher(*, strict: bool) -> Publisher:
    return Publisher(CONTRACT, lambda *_: None, strict=strict)


BAD = [
    replace(KVM, health="splendid"),  # type: ignore[arg-type]
    replace(KVM, last_check_usec=-1),
    replace(KVM, last_check_usec=2**64),
    replace(KVM, last_check_usec=True),
    replace(KVM, text=None),  # type: ignore[arg-type]
    replace(KVM, number=10),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("view", BAD)
def test_a_value_that_does_not_fit_raises_in_tests(view: object) -> None:
    async def main() -> None:
        with pytest.raises(PublishError):
            publisher(strict=True).publish([device.published(view)])  # type: ignore[arg-type]

    run(main)


@pytest.mark.parametrize("view", BAD)
def test_a_value_that_does_not_fit_keeps_the_old_one_in_production(view: object, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        made = publisher(strict=False)
        made.publish([device.published(view), spec.published(SPEC)])  # type: ignore[arg-type]
        assert set(made.tree) == {SPEC_PATH}, "what never had a good value does not exist"
        made.publish([device.published(KVM), spec.published(SPEC)])
        made.publish([device.published(replace(view, node="/dev/kvm", identity=Identity.INVALID)), spec.published(SPEC)])  # type: ignore[type-var]
        values = made.tree[KVM_PATH].interfaces[names.DEVICE_INTERFACE]
        good = device.published(KVM).interfaces[names.DEVICE_INTERFACE]
        assert values == {**good, "Identity": "invalid"}
        assert any("keeps its old value" in record.getMessage() for record in caplog.records)

    run(main)


def test_a_constant_does_not_change() -> None:
    async def main() -> None:
        made = publisher(strict=True)
        made.publish([manager.published(MANAGER)])
        with pytest.raises(PublishError, match="constant"):
            made.publish([manager.published(replace(MANAGER, version="2"))])

    run(main)


def test_a_missing_or_unknown_property_does_not_pass() -> None:
    async def main() -> None:
        good = device.published(KVM)
        values = dict(good.interfaces[names.DEVICE_INTERFACE])
        for change in ({"Colour": "red"}, None):
            broken = {**values, **change} if change else {name: value for name, value in values.items() if name != "Text"}
            with pytest.raises(PublishError):
                publisher(strict=True).publish([PublishedObject(good.path, good.identity, {names.DEVICE_INTERFACE: broken})])

    run(main)


def test_invalidated_properties_are_named_without_their_value() -> None:
    document = (
        "<node><interface name='a.b'>"
        "<property name='Big' type='s' access='read'>"
        "<annotation name='org.freedesktop.DBus.Property.EmitsChangedSignal' value='invalidates'/></property>"
        "<property name='Plain' type='s' access='read'/></interface></node>"
    )
    small = contract.parse([document])

    def tree(big: str, plain: str) -> dict[str, PublishedObject]:
        return {"/x": PublishedObject("/x", (), {"a.b": {"Big": big, "Plain": plain}})}

    def told(before: dict[str, PublishedObject], after: dict[str, PublishedObject]) -> list[OutgoingSignal]:
        return list(changes(small, before, after, Entries(small).one))

    (signal,) = told(tree("1", "1"), tree("2", "1"))
    assert signal.body == ("a.b", {}, ("Big",))
    (signal,) = told(tree("1", "1"), tree("2", "2"))
    assert signal.body == ("a.b", {"Plain": Variant("s", "2")}, ("Big",))
    assert told(tree("1", "1"), tree("1", "1")) == []


_devices = st.lists(
    st.builds(
        replace,
        st.just(KVM),
        kind=st.sampled_from(DeviceKind),
        node=st.sampled_from(["/dev/kvm", "/dev/other"]),
        health=st.sampled_from(Health),
        identity=st.sampled_from(Identity),
        text=st.text(max_size=5),
        last_check_usec=st.integers(0, 3),
    ),
    unique_by=lambda view: view.kind,
    max_size=2,
)


def read(signal: OutgoingSignal) -> tuple[object, ...]:
    """The body as a client reads it."""
    if not isinstance(signal.body, Encoded):
        return signal.body
    message = transport.make_message(signal.signature, signal.body, message_type=MessageType.SIGNAL, path="/", interface="a.b", member="C")
    return tuple(Unmarshaller(io.BytesIO(message._marshall())).unmarshall().body)


@given(st.lists(_devices, min_size=1, max_size=6))
def test_a_client_that_follows_the_signals_has_the_tree(histories: list[list[object]]) -> None:
    """Whatever happens, added, changed and removed signals lead to the same picture as reading everything anew."""
    before: dict[str, PublishedObject] = {}
    picture: dict[str, dict[str, object]] = {}
    quiet = {"LastCheckUSec", "CheckDurationUSec"}
    for views in histories:
        after = {shown.path: shown for shown in map(device.published, views)}  # type: ignore[arg-type]
        for signal in changes(CONTRACT, before, after, Entries(CONTRACT).one):
            match signal.member, read(signal):
                case "InterfacesRemoved", (path, _):
                    del picture[path]  # type: ignore[arg-type]  # KeyError: never removed twice
                case "InterfacesAdded", (path, interfaces):
                    assert path not in picture
                    picture[path] = {name: value.value for name, value in interfaces[names.DEVICE_INTERFACE].items()}  # type: ignore[index,call-overload]
                case "PropertiesChanged", (_, changed, invalidated):
                    assert changed
                    assert not invalidated
                    picture[signal.path] |= {name: value.value for name, value in changed.items()}  # type: ignore[attr-defined]
        before = after
        expected = {path: dict(shown.interfaces[names.DEVICE_INTERFACE]) for path, shown in after.items()}

        def loud(tree: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
            return {path: {name: value for name, value in values.items() if name not in quiet} for path, values in tree.items()}

        # An escaped NUL or surrogate is not what was published: compare as it travels.
        travelled = {
            path: {name: value.replace("\0", "\\x00") if isinstance(value, str) else value for name, value in values.items()}
            for path, values in expected.items()
        }
        assert loud(picture) == loud(travelled)
