"""The messages of the kubelet's device plugin API v1beta1, made at run time from their description. Pure.

Source: k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1/api.proto. No code is generated: what a compiler of today writes does not run with the
protobuf of Debian 12, nor the reverse, while a description is read by both.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from devward.plugin.decision import Grant
from devward.plugin.slots import Choice

PACKAGE: Final = "v1beta1"
VERSION: Final = "v1beta1"
REGISTRATION: Final = f"{PACKAGE}.Registration"
DEVICE_PLUGIN: Final = f"{PACKAGE}.DevicePlugin"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

#: By message its fields in order of their numbers, which begin at 1. `*` repeats; `{}` is a map of texts; the rest are messages.
_FIELDS: Final = {
    "Empty": (),
    "DevicePluginOptions": ("bool pre_start_required", "bool get_preferred_allocation_available"),
    "RegisterRequest": ("string version", "string endpoint", "string resource_name", "DevicePluginOptions options"),
    "NUMANode": ("int64 ID",),
    "TopologyInfo": ("NUMANode* nodes",),
    "Device": ("string ID", "string health", "TopologyInfo topology"),
    "ListAndWatchResponse": ("Device* devices",),
    "ContainerPreferredAllocationRequest": ("string* available_deviceIDs", "string* must_include_deviceIDs", "int32 allocation_size"),
    "PreferredAllocationRequest": ("ContainerPreferredAllocationRequest* container_requests",),
    "ContainerPreferredAllocationResponse": ("string* deviceIDs",),
    "PreferredAllocationResponse": ("ContainerPreferredAllocationResponse* container_responses",),
    "ContainerAllocateRequest": ("string* devices_ids",),
    "AllocateRequest": ("ContainerAllocateRequest* container_requests",),
    "Mount": ("string container_path", "string host_path", "bool read_only"),
    "DeviceSpec": ("string container_path", "string host_path", "string permissions"),
    "CDIDevice": ("string name",),
    "ContainerAllocateResponse": ("{} envs", "Mount* mounts", "DeviceSpec* devices", "{} annotations", "CDIDevice* cdi_devices"),
    "AllocateResponse": ("ContainerAllocateResponse* container_responses",),
    "PreStartContainerRequest": ("string* devices_ids",),
    "PreStartContainerResponse": (),
}
_PERMISSIONS: Final = "rw"


def message_classes() -> dict[str, type[Any]]:
    """Return a class for each message, by its name; each call makes new ones, which do not mix with those of another."""
    kinds = descriptor_pb2.FieldDescriptorProto
    plain = {"bool": kinds.TYPE_BOOL, "string": kinds.TYPE_STRING, "int32": kinds.TYPE_INT32, "int64": kinds.TYPE_INT64}
    file = descriptor_pb2.FileDescriptorProto(name="devward/deviceplugin/v1beta1.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for number, text in enumerate(fields, 1):
            kind, _, label = text.partition(" ")
            field = message.field.add(name=label, number=number, label=kinds.LABEL_OPTIONAL)
            if kind.endswith("*") or kind == "{}":
                field.label = kinds.LABEL_REPEATED
            kind = kind.removesuffix("*")
            if kind in plain:
                field.type = plain[kind]
                continue
            field.type = kinds.TYPE_MESSAGE
            if kind == "{}":
                kind = f"{name}.{_add_entry(message, label)}"
            field.type_name = f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    # GetMessageClass came with protobuf 4.22, and MessageFactory.GetPrototype went with 5.
    make = getattr(message_factory, "GetMessageClass", None) or message_factory.MessageFactory(pool).GetPrototype
    return {name: make(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _FIELDS}


def _add_entry(message: Any, label: str) -> str:
    """Add the message that stands for an entry of a map of texts, as protocol compilers do, and return its name."""
    kinds = descriptor_pb2.FieldDescriptorProto
    entry = message.nested_type.add(name=f"{label.capitalize()}Entry")
    entry.options.map_entry = True
    for number, part in enumerate(("key", "value"), 1):
        entry.field.add(name=part, number=number, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_STRING)
    return str(entry.name)


@dataclass(frozen=True, slots=True)
class Options:
    """What a plugin wants to be asked. PreStartContainer is never wanted: it would hold up every start of a container."""

    preferred_allocation: bool = False


class Wire:
    """Messages to bytes and back. What is read raises ValueError, or protobuf's DecodeError, for bytes that are no such message."""

    def __init__(self) -> None:
        """Make the message classes, which takes some milliseconds."""
        self._classes = message_classes()

    def register_request(self, endpoint: str, resource: str, options: Options) -> bytes:
        """Ask the kubelet to take on a plugin whose socket has this name in its directory."""
        return self._bytes("RegisterRequest", version=VERSION, endpoint=endpoint, resource_name=resource, options=self._message_of(options))

    def options(self, options: Options) -> bytes:
        """Answer GetDevicePluginOptions."""
        return bytes(self._message_of(options).SerializeToString())

    def devices(self, devices: Iterable[tuple[str, bool]]) -> bytes:
        """Say what there is: each device's id, and whether it is healthy."""
        make = self._classes["Device"]
        return self._bytes(
            "ListAndWatchResponse",
            devices=[make(ID=name, health=HEALTHY if healthy else UNHEALTHY) for name, healthy in devices],
        )

    def allocate_request(self, data: bytes) -> tuple[tuple[str, ...], ...]:
        """Return the ids that each container is to have."""
        return tuple(tuple(request.devices_ids) for request in self._parsed("AllocateRequest", data).container_requests)

    def allocate_response(self, grants: Sequence[Grant]) -> bytes:
        """Say what each container gets."""
        return self._bytes("AllocateResponse", container_responses=[self._container(grant) for grant in grants])

    def preferred_request(self, data: bytes) -> tuple[Choice, ...]:
        """Return what the kubelet asks about each container."""
        return tuple(
            Choice(tuple(request.available_deviceIDs), tuple(request.must_include_deviceIDs), request.allocation_size)
            for request in self._parsed("PreferredAllocationRequest", data).container_requests
        )

    def preferred_response(self, chosen: Sequence[tuple[str, ...]]) -> bytes:
        """Say which devices each container should have."""
        make = self._classes["ContainerPreferredAllocationResponse"]
        return self._bytes("PreferredAllocationResponse", container_responses=[make(deviceIDs=ids) for ids in chosen])

    def _container(self, grant: Grant) -> Any:
        node, device = self._classes["DeviceSpec"], self._classes["CDIDevice"]
        return self._classes["ContainerAllocateResponse"](
            envs=dict(grant.variables),
            annotations=dict(grant.annotations),
            devices=[node(container_path=path, host_path=path, permissions=_PERMISSIONS) for path in grant.nodes],
            cdi_devices=[device(name=name) for name in grant.cdi_devices],
        )

    def _message_of(self, options: Options) -> Any:
        return self._classes["DevicePluginOptions"](get_preferred_allocation_available=options.preferred_allocation)

    def _bytes(self, name: str, **fields: Any) -> bytes:
        return bytes(self._classes[name](**fields).SerializeToString())

    def _parsed(self, name: str, data: bytes) -> Any:
        message = self._classes[name]()
        message.ParseFromString(data)
        return message
