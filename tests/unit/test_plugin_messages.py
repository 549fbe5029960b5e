"""The messages on the wire, held to bytes worked out by hand from api.proto and to a reader of its own."""

import pytest
from google.protobuf.message import DecodeError

from devward.cluster.allocation import fields
from devward.plugin.decision import Grant
from devward.plugin.messages import Options, Wire, message_classes
from devward.plugin.slots import Choice

WIRE = Wire()


def text(number: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def test_a_registration() -> None:
    expected = text(1, "v1beta1") + text(2, "x.sock") + text(3, "a/b") + text(4, b"\x10\x01")
    assert WIRE.register_request("x.sock", "a/b", Options(preferred_allocation=True)) == expected
    assert WIRE.options(Options()) == b""


def test_a_list_of_devices() -> None:
    expected = text(1, text(1, "kvm-0") + text(2, "Healthy")) + text(1, text(1, "kvm-1") + text(2, "Unhealthy"))
    assert WIRE.devices([("kvm-0", True), ("kvm-1", False)]) == expected


def test_lists_one_after_the_other_are_one_list() -> None:
    merged = message_classes()["ListAndWatchResponse"].FromString(WIRE.devices([("a", True)]) + WIRE.devices([("b", False)]))  # type: ignore[attr-defined]  # a class of protobuf
    assert [(device.ID, device.health) for device in merged.devices] == [("a", "Healthy"), ("b", "Unhealthy")]


def test_the_most_slots_stay_below_what_the_kubelet_receives() -> None:
    assert len(WIRE.devices([(f"mshv-{number}", False) for number in range(20_000)])) < 4 * 1024 * 1024


def test_an_allocation() -> None:
    request = text(1, text(1, "kvm-0") + text(1, "kvm-1")) + text(1, text(1, "mshv-0"))
    assert WIRE.allocate_request(request) == (("kvm-0", "kvm-1"), ("mshv-0",))
    assert WIRE.allocate_request(b"") == ()
    grants = [Grant(("a/b=c",), (("k", "v"),)), Grant(nodes=("/dev/kvm",), variables=(("E", "F"),))]
    first, second = (value for _, value in fields(WIRE.allocate_response(grants)))
    assert isinstance(first, bytes)
    assert isinstance(second, bytes)
    assert sorted(fields(first)) == [(4, text(1, "k") + text(2, "v")), (5, text(1, "a/b=c"))]
    assert sorted(fields(second)) == [(1, text(1, "E") + text(2, "F")), (3, text(1, "/dev/kvm") + text(2, "/dev/kvm") + text(3, "rw"))]


def test_a_preference() -> None:
    request = text(1, text(1, "a") + text(1, "b") + text(2, "b") + b"\x18\x02")
    assert WIRE.preferred_request(request) == (Choice(("a", "b"), ("b",), 2),)
    assert WIRE.preferred_response([("a", "b"), ()]) == text(1, text(1, "a") + text(1, "b")) + text(1, b"")


def test_fields_of_later_versions_do_no_harm() -> None:
    assert WIRE.allocate_request(text(1, text(1, "kvm-0") + text(9, "new")) + text(8, "new")) == (("kvm-0",),)


@pytest.mark.parametrize("data", [b"\x0a\x05a", text(1, text(1, b"\xff")), b"\xff"])
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    with pytest.raises((DecodeError, ValueError)):
        WIRE.allocate_request(data)


def test_every_field_has_the_number_and_type_of_the_api() -> None:
    """Facts of api.proto that devward itself never sends: the stand-ins and later code rely on them."""
    made = message_classes()
    device = made["Device"](ID="a", topology={"nodes": [{"ID": 3}]})
    assert device.SerializeToString() == text(1, "a") + text(3, text(1, b"\x08\x03"))
    mount = made["Mount"](container_path="a", host_path="b", read_only=True)
    assert mount.SerializeToString() == text(1, "a") + text(2, "b") + b"\x18\x01"
    assert made["PreStartContainerRequest"](devices_ids=["a"]).SerializeToString() == text(1, "a")
    assert made["DevicePluginOptions"](pre_start_required=True).SerializeToString() == b"\x08\x01"
