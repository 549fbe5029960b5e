"""The shape of a CDI document: plain values to typed ones, as Go's encoding/json fills the reference's structs. Pure.

The rules are those of the reference (`specs-go/config.go`, decoded strictly): an unknown key is an error, a key matches in any case, `null`
leaves a scalar as it was, a scalar that is wanted as text becomes text. Of two spellings of one key the later in sorted order is decoded
over the earlier, into the same object.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from devward.cdi.defect import SpecError
from devward.cdi.scalar import Value, float_text
from devward.text import quoted


@dataclass(slots=True)
class DeviceNode:
    path: str = ""
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


@dataclass(slots=True)
class NetDevice:
    host_interface_name: str = ""
    name: str = ""


@dataclass(slots=True)
class Mount:
    host_path: str = ""
    container_path: str = ""
    options: list[str] | None = None
    type: str = ""


@dataclass(slots=True)
class Hook:
    hook_name: str = ""
    path: str = ""
    args: list[str] | None = None
    env: list[str] | None = None
    timeout: int | None = None


@dataclass(slots=True)
class IntelRdt:
    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    #: None and empty differ here: any list needs CDI 1.1.0.
    schemata: list[str] | None = None
    enable_monitoring: bool = False


@dataclass(slots=True)
class ContainerEdits:
    """Elements are None where the document has null."""

    env: list[str] | None = None
    device_nodes: list[DeviceNode | None] | None = None
    net_devices: list[NetDevice | None] | None = None
    hooks: list[Hook | None] | None = None
    mounts: list[Mount | None] | None = None
    intel_rdt: IntelRdt | None = None
    additional_gids: list[int] | None = None


@dataclass(slots=True)
class Device:
    name: str = ""
    annotations: dict[str, str] | None = None
    edits: ContainerEdits = field(default_factory=ContainerEdits)


@dataclass(slots=True)
class Spec:
    version: str = ""
    kind: str = ""
    annotations: dict[str, str] | None = None
    devices: list[Device] | None = None
    edits: ContainerEdits = field(default_factory=ContainerEdits)


# --- decoding --------------------------------------------------------------------------------------------------------------------------
#: Collects what engines accept and a careful person would not.
Notes: TypeAlias = list[str]
#: (value, what the field holds now, where for a message, notes) to what the field holds then. Any: one table serves fields of all types.
_Decoder: TypeAlias = Callable[[Value, Any, str, Notes], Any]


def _sort(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "an object"


def _wrong(where: str, value: Value, wanted: str) -> SpecError:
    return SpecError(f"{where} is {_sort(value)}, not {wanted}")


def _text(value: Value, current: str, where: str, notes: Notes) -> str:
    if value is None:
        return current
    if isinstance(value, str):
        return value
    if isinstance(value, list | dict):
        raise _wrong(where, value, "text")
    notes.append(f"{where} is {_sort(value)}, which engines take as text")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else float_text(value)


def _whole_number(low: int, high: int) -> _Decoder:
    def decode(value: Value, current: int | None, where: str, _notes: Notes) -> int | None:
        if value is None:
            return current
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(where, value, "a number")
        # Go writes a float below 1e21 without exponent, so 1000.0 is a whole number and minus zero a negative one.
        if isinstance(value, float) and not (value.is_integer() and abs(value) < 1e21 and not (low == 0 and float_text(value) == "-0")):
            raise SpecError(f"{where} is {float_text(value)}, not a whole number")
        if not low <= value <= high:
            raise SpecError(f"{where} is {int(value)}, not between {low} and {high}")
        return int(value)

    return decode


def _boolean(value: Value, current: bool, where: str, _notes: Notes) -> bool:  # noqa: FBT001  (the signature of every decoder)
    if value is None:
        return current
    if not isinstance(value, bool):
        raise _wrong(where, value, "a boolean")
    return value


def _nullable(decoder: _Decoder) -> _Decoder:
    def decode(value: Value, current: Any, where: str, notes: Notes) -> Any:
        return None if value is None else decoder(value, current, where, notes)

    return decode


def _list_of(decoder: _Decoder, zero: Callable[[], Any]) -> _Decoder:
    def decode(value: Value, current: list[Any] | None, where: str, notes: Notes) -> list[Any] | None:
        if value is None:
            return None
        if not isinstance(value, list):
            raise _wrong(where, value, "a list")
        held = current or []
        return [
            decoder(element, held[index] if index < len(held) else zero(), f"{where}[{index}]", notes)
            for index, element in enumerate(value)
        ]

    return decode


def _text_map(value: Value, current: dict[str, str] | None, where: str, notes: Notes) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _wrong(where, value, "an object")
    return {**(current or {}), **{key: _text(value[key], "", f"{where}.{quoted(key)}", notes) for key in sorted(value)}}


def _folded(key: str) -> str:
    # Unicode's simple folding has two letters that are not ASCII and fold to one: the Kelvin sign and the long s.
    return key.lower().replace("\u017f", "s")


def _object(make: Callable[[], Any], fields: dict[str, tuple[str, _Decoder]]) -> _Decoder:
    by_folded = {_folded(key): key for key in fields}

    def decode(value: Value, current: Any, where: str, notes: Notes) -> Any:
        if value is None:
            return current
        if not isinstance(value, dict):
            raise _wrong(where or "the document", value, "an object")
        target = make() if current is None else current
        for key in sorted(value):
            name = key if key in fields else by_folded.get(_folded(key))
            if name is None:
                raise SpecError(f"it has an unknown key {quoted(key)}{f' in {where}' if where else ''}")
            if name != key:
                notes.append(f"engines take the key {quoted(key)}{f' in {where}' if where else ''} as '{name}'")
            attribute, decoder = fields[name]
            below = f"{where}.{name}" if where else name
            setattr(target, attribute, decoder(value[key], getattr(target, attribute), below, notes))
        return target

    return decode


def _pointers_to(make: Callable[[], Any], fields: dict[str, tuple[str, _Decoder]]) -> _Decoder:
    return _list_of(_nullable(_object(make, fields)), lambda: None)


_UINT32: Final = _whole_number(0, 2**32 - 1)
_INT64: Final = _whole_number(-(2**63), 2**63 - 1)
_TEXTS: Final = _list_of(_text, str)

_EDITS: Final = _object(
    ContainerEdits,
    {
        "env": ("env", _TEXTS),
        "deviceNodes": (
            "device_nodes",
            _pointers_to(
                DeviceNode,
                {
                    "path": ("path", _text),
                    "hostPath": ("host_path", _text),
                    "type": ("type", _text),
                    "major": ("major", _INT64),
                    "minor": ("minor", _INT64),
                    "fileMode": ("file_mode", _nullable(_UINT32)),
                    "permissions": ("permissions", _text),
                    "uid": ("uid", _nullable(_UINT32)),
                    "gid": ("gid", _nullable(_UINT32)),
                },
            ),
        ),
        "netDevices": (
            "net_devices",
            _pointers_to(NetDevice, {"hostInterfaceName": ("host_interface_name", _text), "name": ("name", _text)}),
        ),
        "hooks": (
            "hooks",
            _pointers_to(
                Hook,
                {
                    "hookName": ("hook_name", _text),
                    "path": ("path", _text),
                    "args": ("args", _TEXTS),
                    "env": ("env", _TEXTS),
                    "timeout": ("timeout", _nullable(_INT64)),
                },
            ),
        ),
        "mounts": (
            "mounts",
            _pointers_to(
                Mount,
                {
                    "hostPath": ("host_path", _text),
                    "containerPath": ("container_path", _text),
                    "options": ("options", _TEXTS),
                    "type": ("type", _text),
                },
            ),
        ),
        "intelRdt": (
            "intel_rdt",
            _nullable(
                _object(
                    IntelRdt,
                    {
                        "closID": ("clos_id", _text),
                        "l3CacheSchema": ("l3_cache_schema", _text),
                        "memBwSchema": ("mem_bw_schema", _text),
                        "schemata": ("schemata", _TEXTS),
                        "enableMonitoring": ("enable_monitoring", _boolean),
                    },
                )
            ),
        ),
        "additionalGids": ("additional_gids", _list_of(_UINT32, int)),
    },
)
_DEVICE: Final = _object(Device, {"name": ("name", _text), "annotations": ("annotations", _text_map), "containerEdits": ("edits", _EDITS)})
_SPEC: Final = _object(
    Spec,
    {
        "cdiVersion": ("version", _text),
        "kind": ("kind", _text),
        "annotations": ("annotations", _text_map),
        "devices": ("devices", _list_of(_DEVICE, Device)),
        "containerEdits": ("edits", _EDITS),
    },
)


def decode(value: Value) -> tuple[Spec, tuple[str, ...]]:
    """Return the typed document and remarks on what engines accept though it is odd; raises SpecError where the shape is wrong."""
    if value is None:
        raise SpecError("it is empty")
    notes: Notes = []
    spec: Spec = _SPEC(value, None, "", notes)
    return spec, tuple(notes)
