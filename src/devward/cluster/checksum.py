"""The checksum of the kubelet's device manager checkpoint. Pure.

The kubelet hashes not the file but the Go value that it holds: the 32-bit FNV-1a of what go-spew prints of it with `%#v`, sorted keys, no
methods (pkg/kubelet/checkpointmanager/checksum and k8s.io/utils/dump in kubernetes/kubernetes; spew/format.go in davecgh/go-spew). Texts
stand in that without quotes, keys that are numbers are in the order of numbers, and bytes are decimal. It finds accidents, not tampering.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

_OFFSET: Final = 0x811C9DC5
_PRIME: Final = 0x01000193
_DECIMAL: Final = tuple(map(str, range(256)))
_NIL: Final = "<nil>"

Texts: TypeAlias = Sequence[str] | None


class Row(NamedTuple):
    """One entry as it stands in the file: what a container has of a resource. None is Go's nil, null in the file."""

    pod_uid: str
    container: str
    resource: str
    #: By NUMA node, -1 where the device has none; a plain list in the form of Kubernetes 1.19 and before.
    device_ids: Mapping[int, Texts] | Sequence[str] | None
    response: bytes | None


def checksum(rows: Sequence[Row] | None, registered: Mapping[str, Texts] | None) -> int:
    """Return the checksum over entries and registered devices. UnicodeEncodeError: a text with half a surrogate pair."""
    entries = _NIL if rows is None else f"[{' '.join(map(_row, rows))}]"
    text = (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries}"
        f" RegisteredDevices:(map[string][]string){_map(registered)}}}"
    )
    return fnv1a(text.encode())


def fnv1a(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash."""
    value = _OFFSET
    for byte in data:
        value = (value ^ byte) * _PRIME & 0xFFFFFFFF
    return value


def _row(row: Row) -> str:
    ids = row.device_ids
    devices = f"(checkpoint.DevicesPerNUMA){_map(ids)}" if ids is None or isinstance(ids, Mapping) else f"([]string){_list(ids)}"
    response = _NIL if row.response is None else f"[{' '.join([_DECIMAL[byte] for byte in row.response])}]"
    return (
        f"{{PodUID:(string){row.pod_uid} ContainerName:(string){row.container} ResourceName:(string){row.resource}"
        f" DeviceIDs:{devices} AllocResp:([]uint8){response}}}"
    )


def _map(value: Mapping[int, Texts] | Mapping[str, Texts] | None) -> str:
    """Texts sort by code point as Go's do by byte."""
    return _NIL if value is None else f"map[{' '.join(f'{key}:{_list(texts)}' for key, texts in sorted(value.items()))}]"


def _list(value: Texts) -> str:
    return _NIL if value is None else f"[{' '.join(value)}]"
