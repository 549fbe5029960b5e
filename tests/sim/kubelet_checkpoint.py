"""Checkpoints as the kubelet's device manager writes them, in both forms, and every way in which one can be wrong.

Nothing of devward is used here: encoders and checksum are made from the formats alone, so that they can be held against the reader.
"""

import base64
import copy
import json
import os
import random
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FILE_NAME: Final = "kubelet_internal_checkpoint"
BY_NUMA_NODE: Final = "by-numa-node"
LIST: Final = "list"
RESOURCE: Final = "huawei.com/Ascend910B4"

# --- AllocResp: v1beta1.ContainerAllocateResponse on the wire ---


def varint(value: int) -> bytes:
    """Encode a number of up to 64 bits, seven bits a byte, the lowest first."""
    pieces = bytearray()
    while value >= 0x80:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*pieces, value])


def field(number: int, content: bytes | str) -> bytes:
    """Encode a text or a message."""
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def response(
    envs: Mapping[str, str],
    *,
    mounts: Iterable[tuple[str, str]] = (),
    devices: Iterable[str] = (),
    annotations: Mapping[str, str] | None = None,
    cdi_devices: Iterable[str] = (),
    dice: random.Random | None = None,
) -> bytes:
    """Encode what a plugin answers to Allocate; a map is in no order, as Go's encoder leaves it."""

    def mapping(number: int, texts: Mapping[str, str]) -> bytes:
        entries = [field(number, field(1, key) + field(2, value)) for key, value in texts.items()]
        if dice:
            dice.shuffle(entries)
        return b"".join(entries)

    return b"".join(
        (
            mapping(1, envs),
            *(field(2, field(1, inside) + field(2, outside)) for inside, outside in mounts),
            *(field(3, field(1, path) + field(2, path) + field(3, "rw")) for path in devices),
            mapping(4, annotations or {}),
            *(field(5, field(1, name)) for name in cdi_devices),
        )
    )


def hami_response(cards: Iterable[int], template: str = "", dice: random.Random | None = None) -> bytes:
    """Encode what HAMi's plugin answers: cards by physical id, and the template unless whole cards are given."""
    envs = {"ASCEND_VISIBLE_DEVICES": ",".join(map(str, cards))}
    if template:
        envs["ASCEND_VNPU_SPECS"] = template
    return response(envs, dice=dice)


# --- the document ---


@dataclass(frozen=True)
class Allocated:
    """What the kubelet remembers of one container and resource."""

    pod_uid: str
    device_ids: Sequence[str] = ()
    response: bytes | None = b""
    container: str = "main"
    resource: str = RESOURCE
    #: -1: the plugin reported none.
    numa_nodes: Sequence[int] = (-1,)


#: Go's types, as far as they are printed: a text, bytes, a list of something, a map of something by key, a structure.
_TEXTS: Final = ("list", "[]string", "string")
_FORMS: Final = {
    BY_NUMA_NODE: ("map", "checkpoint.DevicesPerNUMA", int, _TEXTS),
    LIST: _TEXTS,
}


def _data_type(form: str) -> tuple[Any, ...]:
    entry = (
        "struct",
        "checkpoint.PodDevicesEntry",
        {
            "PodUID": "string",
            "ContainerName": "string",
            "ResourceName": "string",
            "DeviceIDs": _FORMS[form],
            "AllocResp": ("bytes", "[]uint8"),
        },
    )
    return (
        "struct",
        "checkpoint.checkpointData",
        {
            "PodDeviceEntries": ("list", "[]checkpoint.PodDevicesEntry", entry),
            "RegisteredDevices": ("map", "map[string][]string", str, _TEXTS),
        },
    )


def _spew(kind: Any, value: Any) -> str:
    """Print a value as go-spew does with %#v: the type stands before the whole and before each member of a structure."""
    if kind == "string":
        return str(value)
    if kind[0] == "struct":
        return "{" + " ".join(f"{name}:({_name(of)}){_spew(of, value.get(name))}" for name, of in kind[2].items()) + "}"
    if value is None:
        return "<nil>"
    if kind[0] == "list":
        return "[" + " ".join(_spew(kind[2], one) for one in value) + "]"
    if kind[0] == "bytes":
        return "[" + " ".join(str(one) for one in base64.b64decode(value)) + "]"
    by_key = sorted((kind[2](key), one) for key, one in value.items())
    return "map[" + " ".join(f"{key}:{_spew(kind[3], one)}" for key, one in by_key) + "]"


def _name(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind[1])


def form_of(data: Mapping[str, Any]) -> str:
    """Return the form of a document's Data."""
    return LIST if any(isinstance(entry["DeviceIDs"], list) for entry in data["PodDeviceEntries"] or ()) else BY_NUMA_NODE


def checksum(data: Mapping[str, Any]) -> int:
    """Return the checksum of a document's Data, as the kubelet computes it."""
    kind = _data_type(form_of(data))
    value = 2166136261
    for byte in f"({_name(kind)}){_spew(kind, data)}".encode():
        value = ((value ^ byte) * 16777619) % 2**32
    return value


def sealed(data: dict[str, Any]) -> dict[str, Any]:
    """Return the document of these Data."""
    return {"Data": data, "Checksum": checksum(data)}


def document(
    entries: Sequence[Allocated] | None,
    registered: Mapping[str, Sequence[str]] | None = None,
    *,
    form: str = BY_NUMA_NODE,
    dice: random.Random | None = None,
) -> dict[str, Any]:
    """Return a good document. With `dice` its entries are in no order, as they come out of the kubelet's map; none are null."""
    rows = []
    for entry in entries or ():
        by_node = {str(node): list(entry.device_ids) for node in entry.numa_nodes}
        rows.append(
            {
                "PodUID": entry.pod_uid,
                "ContainerName": entry.container,
                "ResourceName": entry.resource,
                "DeviceIDs": list(entry.device_ids) if form == LIST else dict(sorted(by_node.items())),
                "AllocResp": None if entry.response is None else base64.b64encode(entry.response).decode(),
            }
        )
    known = {resource: list(ids) for resource, ids in sorted((registered or {}).items())}
    if dice:
        dice.shuffle(rows)
        for ids in known.values():
            dice.shuffle(ids)
    return sealed({"PodDeviceEntries": rows or None, "RegisteredDevices": known})


def encoded(value: Any) -> bytes:
    """Encode as Go's encoding/json does: no spaces, and what HTML might misunderstand escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode()


def write(directory: Path, data: bytes, dice: random.Random | None = None) -> None:
    """Write a checkpoint as the kubelet does: a temporary file beside it, fsync, rename."""
    temporary = directory / f".{(dice or random).randrange(10**9)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    temporary.rename(directory / FILE_NAME)


# --- what can be wrong ---

Change = Callable[[dict[str, Any]], None]


def _resealed(change: Change) -> Callable[[bytes], bytes]:
    """Return what changes Data and gives them the checksum that they then have."""

    def spoil(good: bytes) -> bytes:
        value = json.loads(good)
        change(value["Data"])
        return encoded(sealed(value["Data"]))

    return spoil


def _changed(change: Change) -> Callable[[bytes], bytes]:
    """Return what changes a document and leaves its checksum alone."""

    def spoil(good: bytes) -> bytes:
        value = json.loads(good)
        change(value)
        return encoded(value)

    return spoil


def _first(value: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = (value.get("Data", value))["PodDeviceEntries"][0]
    return entry


def _mixed(value: dict[str, Any]) -> None:
    ids = _first(value)["DeviceIDs"]
    _first(value)["DeviceIDs"] = {"-1": ids} if isinstance(ids, list) else [one for some in ids.values() for one in some]


#: By the code that devward has for it, and then by what exactly is wrong. Each takes the bytes of a good checkpoint with two entries.
DEFECTS: Final[Mapping[str, Mapping[str, Callable[[bytes], bytes]]]] = {
    "checkpoint-too-large": {"spaces": lambda good: good + b" " * (4 * 1024 * 1024)},
    "checkpoint-not-json": {
        "empty": lambda _good: b"",
        "cut off": lambda good: good[: len(good) // 2],
        "twice": lambda good: good + good,
        "zeros": lambda good: bytes(len(good)),
        "latin-1": lambda good: good.replace(b"main", b"m\xe4in"),
        "deep": lambda _good: b"[" * 1_000_000,
        "NaN": lambda good: good.replace(b'"Checksum":', b'"Later":NaN,"Checksum":'),
        "digits": lambda good: good.replace(b'"Checksum":', b'"Checksum":' + b"9" * 5000),
        "byte order mark": lambda good: b"\xef\xbb\xbf" + good,
    },
    "checkpoint-duplicate-key": {
        "Data": lambda good: b'{"Data":null,' + good[1:],
        "an entry's": lambda good: good.replace(b'"PodUID":', b'"PodUID":"other","PodUID":', 1),
        "NUMA node": lambda good: good.replace(b'"-1":', b'"-1":[],"-1":', 1).replace(b'"DeviceIDs":[', b'"PodUID":"x","DeviceIDs":[', 1),
    },
    "checkpoint-no-data": {
        "before 1.10": lambda good: encoded(json.loads(good)["Data"]),
        "empty object": lambda _good: b"{}",
    },
    "checkpoint-no-entries": {"key": _changed(lambda value: value["Data"].pop("PodDeviceEntries"))},
    "checkpoint-no-registered": {"key": _changed(lambda value: value["Data"].pop("RegisteredDevices"))},
    "checkpoint-no-checksum": {"key": _changed(lambda value: value.pop("Checksum"))},
    "checkpoint-unknown-key": {
        "in Data": _resealed(lambda data: data.update(Claims=[])),
        "in an entry": _resealed(lambda data: _first(data).update(Health="ok")),
        "case in an entry": _resealed(lambda data: _first(data).update(podUID="other")),
        "case of Data": _changed(lambda value: value.update(data=None)),
        "case of Checksum": _changed(lambda value: value.update(CHECKSUM=0)),
    },
    "checkpoint-missing-key": {
        "ContainerName": _changed(lambda value: _first(value).pop("ContainerName")),
        "DeviceIDs": _changed(lambda value: _first(value).pop("DeviceIDs")),
        "AllocResp": _changed(lambda value: _first(value).pop("AllocResp")),
    },
    "checkpoint-wrong-type": {
        "document": lambda good: b"[" + good + b"]",
        "null": lambda _good: b"null",
        "Data": _changed(lambda value: value.update(Data=None)),
        "entries": _changed(lambda value: value["Data"].update(PodDeviceEntries={})),
        "entry": _changed(lambda value: value["Data"]["PodDeviceEntries"].append(None)),
        "PodUID": _changed(lambda value: _first(value).update(PodUID=None)),
        "ContainerName": _changed(lambda value: _first(value).update(ContainerName=["main"])),
        "ResourceName": _changed(lambda value: _first(value).update(ResourceName=1)),
        "DeviceIDs": _changed(lambda value: _first(value).update(DeviceIDs="0")),
        "device id": _changed(lambda value: _first(value).update(DeviceIDs=[0])),
        "AllocResp": _changed(lambda value: _first(value).update(AllocResp=[1, 2])),
        "registered": _changed(lambda value: value["Data"].update(RegisteredDevices=[])),
        "registered id": _changed(lambda value: value["Data"].update(RegisteredDevices={"a/b": [None]})),
        "Checksum as text": _changed(lambda value: value.update(Checksum=str(value["Checksum"]))),
        "Checksum as fraction": _changed(lambda value: value.update(Checksum=float(value["Checksum"]))),
        "Checksum true": _changed(lambda value: value.update(Checksum=True)),
        "Checksum null": _changed(lambda value: value.update(Checksum=None)),
        "Checksum below 0": _changed(lambda value: value.update(Checksum=-1)),
        "Checksum of 65 bits": _changed(lambda value: value.update(Checksum=1 << 64)),
    },
    "checkpoint-mixed-forms": {"first": _changed(_mixed)},
    "checkpoint-bad-text": {
        "surrogate": lambda good: good.replace(b"main", b"\\ud800", 1),
        "surrogate in a resource": lambda good: good.replace(b'"RegisteredDevices":{', b'"RegisteredDevices":{"\\udfff":[],', 1),
    },
    "checkpoint-bad-numa-node": {
        name: _changed(lambda value, name=name: _first(value).update(DeviceIDs={name: []}))  # type: ignore[misc]
        for name in ("", "x", "01", "+1", "-0", "1.0", " 1", "٣", "9223372036854775808", "99999999999999999999")
    },
    "checkpoint-bad-response": {
        name: _changed(lambda value, name=name: _first(value).update(AllocResp=name))  # type: ignore[misc]
        for name in ("C", "CgA", "Cg\nA=", "CgA=CgA=", "Cg-_", "Ä", "CgB=", "====")
    },
    "checkpoint-checksum": {
        "edited": _changed(lambda value: _first(value).update(PodUID="00000000-0000-0000-0000-000000000000")),
        "entry gone": _changed(lambda value: value["Data"]["PodDeviceEntries"].pop()),
        "null for []": _changed(lambda value: value["Data"].update(RegisteredDevices=None)),
        "order": _changed(lambda value: value["Data"]["PodDeviceEntries"].reverse()),
        "zero": _changed(lambda value: value.update(Checksum=0)),
        "high bits": _changed(lambda value: value.update(Checksum=value["Checksum"] + (1 << 32))),
    },
    "checkpoint-no-pod-uid": {
        "empty": _resealed(lambda data: _first(data).update(PodUID="")),
        "key": _changed(lambda value: _first(value).pop("PodUID")),
    },
    "checkpoint-no-resource": {
        "empty": _resealed(lambda data: _first(data).update(ResourceName="")),
        "key": _changed(lambda value: _first(value).pop("ResourceName")),
    },
    "checkpoint-duplicate-entry": {
        "first": _resealed(lambda data: data["PodDeviceEntries"].append(copy.deepcopy(_first(data)))),
    },
    "checkpoint-not-registered": {
        "no resource": _resealed(lambda data: data.update(RegisteredDevices={})),
        "null": _resealed(lambda data: data.update(RegisteredDevices=None)),
        "no device": _resealed(lambda data: data.update(RegisteredDevices={RESOURCE: []})),
        "null devices": _resealed(lambda data: data.update(RegisteredDevices={RESOURCE: None})),
        "others": _resealed(lambda data: data.update(RegisteredDevices={"devward.org/kvm": ["0"]})),
    },
}


def remove(directory: Path) -> None:
    """Remove whatever is in the place of the checkpoint."""
    path = directory / FILE_NAME
    if os.path.lexists(path):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            path.rmdir()
        else:
            path.unlink()


def _put_link(directory: Path, good: bytes) -> None:
    (directory / "elsewhere").write_bytes(good)
    (directory / FILE_NAME).symlink_to("elsewhere")


#: What can be wrong with the file; each is called with nothing in its place.
PLACES: Final[Mapping[str, Mapping[str, Callable[[Path, bytes], None]]]] = {
    "checkpoint-missing": {"file": lambda _directory, _good: None},
    "checkpoint-not-a-file": {
        "link": _put_link,
        "dangling link": lambda directory, _good: (directory / FILE_NAME).symlink_to("nowhere"),
        "fifo": lambda directory, _good: os.mkfifo(directory / FILE_NAME),
        "directory": lambda directory, _good: (directory / FILE_NAME).mkdir(),
    },
}
