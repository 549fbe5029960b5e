"""CDI documents: judged as the reference loader judges them, and the hypervisor document that devward writes. Pure.

Facts are those of the CDI specification 1.1.0 and its reference library (`pkg/cdi`, `pkg/parser`, `specs-go/version.go`), as the container
engines use it in August 2026. What that library accepts and a careful person would not is accepted with a remark.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, cast

from devward.cdi.compare import differences
from devward.cdi.defect import NotExamined, NotPlain, SpecError
from devward.cdi.document import parse
from devward.cdi.scalar import Value
from devward.cdi.schema import ContainerEdits, Device, DeviceNode, Hook, Mount, NetDevice, Spec, decode
from devward.model import DeviceKind
from devward.names import HYPERVISOR_CDI_KIND
from devward.text import quoted

__all__ = [
    "KNOWN_VERSIONS",
    "SUFFIXES",
    "LoadedSpec",
    "NotExamined",
    "NotPlain",
    "SpecError",
    "differences",
    "is_spec_name",
    "kind_of",
    "load",
    "minimum_version",
    "render_hypervisor",
]

#: Every version of the specification that the reference library knows, oldest first.
KNOWN_VERSIONS: Final = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
#: Engines read only names with these endings; the case counts.
SUFFIXES: Final = (".json", ".yaml")
MAX_ID: Final = 2**32 - 1
#: Characters of all qualified names of a document: each repeats the kind, whose length the reference does not bound.
MAX_NAMES: Final = 1024 * 1024
#: Remarks on a document; one could earn ten thousands.
MAX_REMARKS: Final = 10

_HOOK_NAMES: Final = frozenset({"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"})
_NODE_TYPES: Final = frozenset({"", "b", "c", "u", "p"})
_NAME: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ANNOTATION_PREFIX: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_ANNOTATION_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,61}[a-z0-9])?")
# For a document that cannot be parsed: the first thing in it that looks like a `kind` member.
_KIND_MEMBER: Final = re.compile(
    r"""(?:^|[{,\s])(["']?)kind\1[ \t]*:[ \t\r\n]*(["']?)([A-Za-z][\w.-]{0,252}/[A-Za-z][\w.-]{0,252})\2""", re.ASCII
)


@dataclass(frozen=True, slots=True)
class LoadedSpec:
    """A document that container engines load."""

    kind: str
    #: As declared, without a leading `v`.
    version: str
    #: Qualified names (`vendor/class=name`) in the document's order.
    devices: tuple[str, ...]
    #: The lowest version that the content needs.
    minimum_version: str
    #: One sentence each, without the file's name: accepted by engines, not by a careful reader.
    remarks: tuple[str, ...]


def is_spec_name(name: str) -> bool:
    """Tell whether container engines read a directory entry of this name."""
    return name.endswith(SUFFIXES)


# --- versions --------------------------------------------------------------------------------------------------------------------------
def _rank(version: str) -> int:
    return KNOWN_VERSIONS.index(version)


def _required(spec: Spec) -> str:
    devices = spec.devices or []
    edits = [spec.edits, *(device.edits for device in devices)]
    rdts = [edit.intel_rdt for edit in edits if edit.intel_rdt is not None]
    if any(edit.net_devices for edit in edits) or any(rdt.schemata is not None or rdt.enable_monitoring for rdt in rdts):
        return "1.1.0"
    if rdts or any(edit.additional_gids for edit in edits):
        return "0.7.0"
    vendor, slash, class_name = spec.kind.partition("/")
    if spec.annotations or any(device.annotations for device in devices) or (vendor and slash and "." in class_name):
        return "0.6.0"
    if any(re.match(r"[^A-Za-z]", device.name) for device in devices) or any(node.host_path for edit in edits for node in _nodes(edit)):
        return "0.5.0"
    if any(mount is not None and mount.type for edit in edits for mount in edit.mounts or []):
        return "0.4.0"
    return "0.3.0"


def minimum_version(document: Mapping[str, object]) -> str:
    """Return the lowest CDI version that a parsed document needs, whatever it declares (`specs-go/version.go`).

    Raises SpecError for a document that is not of CDI's shape.
    """
    spec, _ = decode(cast("Value", dict(document)))
    return _required(spec)


def _nodes(edits: ContainerEdits) -> Iterator[DeviceNode]:
    return (node for node in edits.device_nodes or [] if node is not None)


# --- validation ------------------------------------------------------------------------------------------------------------------------
def _check_name(what: str, name: str, pattern: re.Pattern[str]) -> None:
    if not pattern.fullmatch(name):
        raise SpecError(f"the {what} {quoted(name)} is not a valid name")


def _check_env(env: list[str] | None, where: str) -> None:
    for entry in env or []:
        if entry.find("=") < 1:
            raise SpecError(f"{where} has an environment entry {quoted(entry)} that is not NAME=value")


def _check_node(node: DeviceNode | None, where: str) -> None:
    if node is None or not node.path:
        raise SpecError(f"{where} has a device node without a path")
    if node.type not in _NODE_TYPES:
        raise SpecError(f"{where} has a device node of an unknown type {quoted(node.type)}")
    if node.permissions != "none" and node.permissions.strip("rwm"):
        raise SpecError(f"{where} has a device node with unknown permissions {quoted(node.permissions)}")


def _check_hook(hook: Hook | None, where: str) -> None:
    if hook is None or hook.hook_name not in _HOOK_NAMES:
        raise SpecError(f"{where} has a hook of an unknown name {quoted(hook.hook_name if hook else '')}")
    if not hook.path:
        raise SpecError(f"{where} has a hook without a path")
    _check_env(hook.env, f"a hook of {where}")


def _check_mount(mount: Mount | None, where: str) -> None:
    if mount is None or not mount.host_path or not mount.container_path:
        raise SpecError(f"{where} has a mount without its host path or container path")


def _check_net_devices(devices: list[NetDevice | None], where: str) -> None:
    interfaces: set[str] = set()
    names: set[str] = set()
    for device in devices:
        if device is None or not device.host_interface_name or not device.name:
            raise SpecError(f"{where} has a network device without its two names")
        if device.host_interface_name in interfaces or device.name in names:
            raise SpecError(f"{where} has two network devices of one name")
        interfaces.add(device.host_interface_name)
        names.add(device.name)


def _check_edits(edits: ContainerEdits, where: str) -> None:
    _check_env(edits.env, where)
    for node in edits.device_nodes or []:
        _check_node(node, where)
    for hook in edits.hooks or []:
        _check_hook(hook, where)
    for mount in edits.mounts or []:
        _check_mount(mount, where)
    if edits.intel_rdt is not None:
        clos = edits.intel_rdt.clos_id
        if clos != "/" and (len(clos.encode("utf-8", "replace")) >= 4096 or clos in (".", "..") or "/" in clos or "\n" in clos):
            raise SpecError(f"{where} has an invalid closID {quoted(clos)}")
    _check_net_devices(edits.net_devices or [], where)


def _is_empty(edits: ContainerEdits) -> bool:
    lists = (edits.env, edits.device_nodes, edits.net_devices, edits.hooks, edits.mounts, edits.additional_gids)
    return edits.intel_rdt is None and not any(lists)


def _check_device(device: Device) -> None:
    _check_name("device name", device.name, _DEVICE_NAME)
    if _is_empty(device.edits):
        raise SpecError(f"device {quoted(device.name)} has no container edits")
    _check_edits(device.edits, f"device {quoted(device.name)}")


def _check(spec: Spec) -> str:
    """Return the declared version; raises SpecError for a document that engines do not load."""
    version = spec.version.removeprefix("v")
    if version not in KNOWN_VERSIONS:
        raise SpecError(f"engines do not know its cdiVersion {quoted(spec.version)}")
    needed = _required(spec)
    if _rank(version) < _rank(needed):
        raise SpecError(f"its content needs cdiVersion {needed}, and it declares {version}")
    vendor, _, class_name = spec.kind.partition("/")
    _check_name("vendor in its kind", vendor if class_name else "", _NAME)
    _check_name("class in its kind", class_name, _NAME)
    _check_edits(spec.edits, "the document")
    if not spec.devices:
        raise SpecError("it has no devices")
    seen: set[str] = set()
    for device in spec.devices:
        _check_device(device)
        if device.name in seen:
            raise SpecError(f"it defines device {quoted(device.name)} twice")
        seen.add(device.name)
    return version


def _is_annotation_key(key: str) -> bool:
    """Tell whether the CDI schema, which the loader does not apply, allows this key: [DNS subdomain, at most 253] / [name, at most 63]."""
    prefix, slash, name = key.lower().rpartition("/")
    if slash and (len(prefix) > 253 or not _ANNOTATION_PREFIX.fullmatch(prefix)):
        return False
    return len(name) <= 63 and _ANNOTATION_NAME.fullmatch(name) is not None


def _remarks(spec: Spec) -> Iterator[str]:
    if spec.version.startswith("v"):
        yield f"its cdiVersion {quoted(spec.version)} begins with a v"
    for device in [None, *(spec.devices or [])]:
        where = f"device {quoted(device.name)}" if device else "the document"
        for node in _nodes(device.edits if device else spec.edits):
            if node.permissions == "none":
                yield f"{where} has a device node with permissions 'none', which engines older than 2026 refuse"
            if node.major < 0 or node.minor < 0:
                yield f"{where} has a device node with a negative number, which newer engines refuse"
            if not node.path.startswith("/") or ".." in node.path.split("/"):
                yield f"{where} has a device node whose path {quoted(node.path)} is not a plain absolute one"
        for key in (device.annotations if device else spec.annotations) or {}:
            if not _is_annotation_key(key):
                yield f"{where} has an annotation key {quoted(key)} that the CDI schema forbids"


def load(data: bytes, file_name: str, *, plain_only: bool = False) -> LoadedSpec:
    """Return what container engines make of a file with this content and name (without its directory).

    Raises SpecError when they refuse it, NotExamined (a SpecError too) when that cannot be told, for want of PyYAML or for a bound of
    ours; with `plain_only` NotPlain (a NotExamined) instead of reading YAML. The caller bounds the size of `data`: 1 MiB is fine.
    """
    if not is_spec_name(file_name):
        raise SpecError("engines read only names that end in .json or .yaml")
    document = parse(data, json_expected=file_name.endswith(".json"), plain_only=plain_only)
    spec, notes = decode(document.value)
    version = _check(spec)
    if sum(len(spec.kind) + 1 + len(device.name) for device in spec.devices or []) > MAX_NAMES:
        raise NotExamined(f"its device names are longer together than devward examines ({MAX_NAMES})")
    return LoadedSpec(
        kind=spec.kind,
        version=version,
        devices=tuple(f"{spec.kind}={device.name}" for device in spec.devices or []),
        minimum_version=_required(spec),
        remarks=tuple(islice(dict.fromkeys(chain(document.remarks, notes, _remarks(spec))), MAX_REMARKS)),
    )


def kind_of(data: bytes, file_name: str) -> str | None:
    """Return the `kind` of a document as far as it can be told, also of one that engines do not load; None where there is none.

    A document that cannot be parsed is searched for the first member that looks like one, so that the beginning of a torn foreign
    file is still known as foreign.
    """
    try:
        value = parse(data, json_expected=file_name.endswith(".json")).value
    except SpecError:
        match = _KIND_MEMBER.search(data.decode("utf-8", "replace"))
        return match.group(3) if match else None
    if not isinstance(value, dict):
        return None
    kind = value.get("kind", next((value[key] for key in sorted(value) if key.lower() == "kind"), None))
    return kind if isinstance(kind, str) and kind else None


# --- the document of devward -----------------------------------------------------------------------------------------------------------
def render_hypervisor(kinds: Sequence[DeviceKind], *, uid: int, gid: int) -> bytes:
    """Return the canonical bytes of the hypervisor document for these devices.

    Shape and environment are those of the Hyperlight device plugin; the version is the lowest that the content needs. Major, minor and
    mode are left out: the runtime takes them from the node when the container is created, and fails where the node is missing.
    `uid` and `gid` are numeric, 0 to 4294967295. Raises ValueError for no devices, one given twice or an id out of range.
    """
    names = sorted(kind.value for kind in kinds)
    if not names or len(set(names)) != len(names):
        raise ValueError("a CDI document needs at least one device, each once")
    if not (0 <= uid <= MAX_ID and 0 <= gid <= MAX_ID):
        raise ValueError(f"uid and gid must be between 0 and {MAX_ID}")
    document: dict[str, object] = {
        "cdiVersion": "",
        "kind": HYPERVISOR_CDI_KIND,
        "devices": [
            {
                "name": name,
                "containerEdits": {
                    "deviceNodes": [{"path": f"/dev/{name}", "type": "c", "permissions": "rw", "uid": uid, "gid": gid}],
                    "env": [f"HYPERLIGHT_HYPERVISOR={name}", f"HYPERLIGHT_DEVICE_PATH=/dev/{name}"],
                },
            }
            for name in names
        ],
    }
    document["cdiVersion"] = minimum_version(document)
    return (json.dumps(document, indent=2) + "\n").encode("ascii")
