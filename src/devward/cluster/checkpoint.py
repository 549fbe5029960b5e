"""What the kubelet's device manager has on record: which container was given which devices. Pure.

`kubelet_internal_checkpoint` in the kubelet's directory of device plugins is written whole at every allocation (kubernetes/kubernetes,
pkg/kubelet/cm/devicemanager and its checkpoint directory). Entries of Pods that ended stay until a later allocation, and an allocation that
is under way is not there yet: an entry can protect, a missing one proves nothing. Both forms are read: since Kubernetes 1.20 device ids
stand by NUMA node, before in one list. What the kubelet does not write is refused whole (CheckpointError): it might name any Pod and any
card.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeVar

from devward.cluster.allocation import DEVICES_VARIABLE, TEMPLATE_VARIABLE, Allocation, Oddity, read_allocation
from devward.cluster.checksum import Row, checksum
from devward.cluster.evidence import Doubt
from devward.text import printable

_T = TypeVar("_T")

#: Bytes. 250 Pods with an NPU each and 16 cards of 16 slots are 0.2 MB; every plugin of the node counts.
SIZE_LIMIT: Final = 4 * 1024 * 1024

_NPU_PREFIX: Final = "huawei.com/"
_ENTRY_KEYS: Final = frozenset({"PodUID", "ContainerName", "ResourceName", "DeviceIDs", "AllocResp"})
#: As Go writes an int64: no plus sign, no leading zero.
_NODE: Final = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)
#: Without one of these an answer has nothing to do with NPUs: HAMi's variables, their nodes, and their names of CDI.
_SIGNS: Final = (DEVICES_VARIABLE.encode(), TEMPLATE_VARIABLE.encode(), b"/davinci", b"/vdavinci", b"ascend.com/")


class Defect(StrEnum):
    """What is wrong with a checkpoint. While anything is, nothing is known of what it does not say."""

    # --- the file (checkpoint_file.py) ---
    MISSING = "checkpoint-missing"
    UNREADABLE = "checkpoint-unreadable"
    NOT_A_FILE = "checkpoint-not-a-file"
    TORN = "checkpoint-torn"
    TOO_LARGE = "checkpoint-too-large"
    # --- its form ---
    NOT_JSON = "checkpoint-not-json"
    DUPLICATE_KEY = "checkpoint-duplicate-key"
    NO_DATA = "checkpoint-no-data"
    NO_ENTRIES = "checkpoint-no-entries"
    NO_REGISTERED = "checkpoint-no-registered"
    NO_CHECKSUM = "checkpoint-no-checksum"
    UNKNOWN_KEY = "checkpoint-unknown-key"
    MISSING_KEY = "checkpoint-missing-key"
    WRONG_TYPE = "checkpoint-wrong-type"
    MIXED_FORMS = "checkpoint-mixed-forms"
    BAD_TEXT = "checkpoint-bad-text"
    BAD_NUMA_NODE = "checkpoint-bad-numa-node"
    BAD_RESPONSE = "checkpoint-bad-response"
    # --- its content ---
    CHECKSUM = "checkpoint-checksum"
    NO_POD_UID = "checkpoint-no-pod-uid"
    NO_RESOURCE = "checkpoint-no-resource"
    DUPLICATE_ENTRY = "checkpoint-duplicate-entry"
    #: The only one with which the entries are known.
    NOT_REGISTERED = "checkpoint-not-registered"


SENTENCES: Final[Mapping[Defect, str]] = MappingProxyType(
    {
        Defect.MISSING: "The kubelet has no checkpoint of device allocations: it never allocated one, or the file was deleted.",
        Defect.UNREADABLE: "The kubelet's checkpoint cannot be read.",
        Defect.NOT_A_FILE: "In the place of the kubelet's checkpoint is a link, or something else that is no regular file.",
        Defect.TORN: "The kubelet's checkpoint changed while it was read, twice; the kubelet itself replaces it whole.",
        Defect.TOO_LARGE: f"The kubelet's checkpoint is larger than {SIZE_LIMIT} bytes.",
        Defect.NOT_JSON: "The kubelet's checkpoint is not JSON, or cut off.",
        Defect.DUPLICATE_KEY: "The kubelet's checkpoint has a key twice in one object.",
        Defect.NO_DATA: "The kubelet's checkpoint has no Data: it is of a kubelet before 1.10, or of something else.",
        Defect.NO_ENTRIES: "The kubelet's checkpoint has no PodDeviceEntries.",
        Defect.NO_REGISTERED: "The kubelet's checkpoint has no RegisteredDevices.",
        Defect.NO_CHECKSUM: "The kubelet's checkpoint has no Checksum.",
        Defect.UNKNOWN_KEY: "The kubelet's checkpoint has a key that is not known here: it may be of a newer kubelet.",
        Defect.MISSING_KEY: "An entry of the kubelet's checkpoint lacks a part.",
        Defect.WRONG_TYPE: "A value in the kubelet's checkpoint is of another type than the kubelet writes.",
        Defect.MIXED_FORMS: "The entries of the kubelet's checkpoint are partly in the form of Kubernetes 1.19 and partly in that of 1.20.",
        Defect.BAD_TEXT: "A text in the kubelet's checkpoint is not Unicode.",
        Defect.BAD_NUMA_NODE: "The kubelet's checkpoint names a NUMA node that is not a whole number.",
        Defect.BAD_RESPONSE: "The answer of a device plugin in the kubelet's checkpoint is not base64.",
        Defect.CHECKSUM: "The kubelet's checkpoint does not match its checksum: it is damaged, or was edited.",
        Defect.NO_POD_UID: "An entry of the kubelet's checkpoint does not say of which Pod it is.",
        Defect.NO_RESOURCE: "An entry of the kubelet's checkpoint does not say of which resource it is.",
        Defect.DUPLICATE_ENTRY: "The kubelet's checkpoint has two entries for one container and resource.",
        Defect.NOT_REGISTERED: "No NPU is registered with the kubelet: its device plugin is not there, or not yet.",
    }
)


class CheckpointError(ValueError):
    """A checkpoint that is not as the kubelet writes it."""

    def __init__(self, defect: Defect, detail: str = "") -> None:
        """`detail` says where, and may be foreign text; it is escaped and cut."""
        self.defect = defect
        self.detail = printable(detail)
        super().__init__(f"{defect}: {self.detail}" if detail else str(defect))


class Form(StrEnum):
    """How device ids stand in a checkpoint."""

    #: Since Kubernetes 1.20.
    BY_NUMA_NODE = "by-numa-node"
    #: Kubernetes 1.10 to 1.19.
    LIST = "list"
    #: There are none.
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Entry:
    """What one container was given of one NPU resource. Every text is foreign."""

    #: A static Pod's is the hash of its configuration, 32 hexadecimal digits; the API has another one for its mirror.
    pod_uid: str
    container: str
    #: Of one that no known card has, all its cards are all cards of the node.
    resource: str
    #: The kubelet's own choice, in the file's order, each once. It names no card that HAMi gave.
    device_ids: tuple[str, ...]
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is as the kubelet writes it."""

    form: Form
    checksum: int
    #: Those of NPUs, in the file's order, which is none.
    entries: tuple[Entry, ...]
    #: Entries of other resources.
    others: int
    #: Healthy devices by resource, every resource of the node; one without devices, too.
    registered: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def defects(self) -> tuple[Defect, ...]:
        """What is wrong although the entries are known.

        After a reboot the kubelet has the entries of before, and may give their devices away before the plugin is there. The kubelet does
        not write the file when it starts, so that registered devices say nothing of a restart.
        """
        known = any(ids for resource, ids in self.registered if is_npu_resource(resource))
        return () if known else (Defect.NOT_REGISTERED,)


@dataclass(frozen=True, slots=True)
class CheckpointReading:
    """What was read."""

    #: None where it could not be read, or is not as the kubelet writes it: then it might say anything.
    checkpoint: Checkpoint | None
    #: Why it is not known whole; their codes are of `Defect`. Empty where it is.
    doubts: tuple[Doubt, ...] = ()
    #: When the kubelet wrote it, in nanoseconds of CLOCK_REALTIME; 0 where that was not seen.
    written_ns: int = 0

    @property
    def defects(self) -> frozenset[str]:
        """The codes of the doubts."""
        return frozenset(doubt.code for doubt in self.doubts)


def is_npu_resource(name: str) -> bool:
    """Whether a resource is of Huawei's NPUs; HAMi's are `huawei.com/<word>`."""
    return name.startswith(_NPU_PREFIX)


def parse_checkpoint(data: bytes) -> Checkpoint:
    """Return what a checkpoint says. CheckpointError."""
    document = _document(data)
    content = _data(document)
    entries = content["PodDeviceEntries"]
    rows = None if entries is None else [_row(entry) for entry in _typed(entries, list, "PodDeviceEntries")]
    registered = _registered(content["RegisteredDevices"])
    form = _form(rows or [])
    claimed = _checksum(document)
    try:
        computed = checksum(rows, registered)
    except UnicodeEncodeError:
        raise CheckpointError(Defect.BAD_TEXT) from None
    if computed != claimed:
        raise CheckpointError(Defect.CHECKSUM, f"{claimed} instead of {computed}")
    _require_keys(rows or [])
    known = [_entry(row) for row in rows or []]
    npus = tuple(entry for entry in known if entry is not None)
    return Checkpoint(
        form,
        computed,
        npus,
        len(known) - len(npus),
        tuple((resource, tuple(ids or ())) for resource, ids in sorted((registered or {}).items())),
    )


# --- the form ---


def _document(data: bytes) -> dict[str, Any]:
    if len(data) > SIZE_LIMIT:
        raise CheckpointError(Defect.TOO_LARGE)
    try:
        document = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(Defect.NOT_JSON, str(error)) from None
    return _typed(document, dict, "the document")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise CheckpointError(Defect.DUPLICATE_KEY)
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _data(document: dict[str, Any]) -> dict[str, Any]:
    # Newer kubelets may say more beside Data, which the checksum does not cover. But Go reads keys without regard to case.
    for key in document:
        if key not in ("Data", "Checksum") and key.casefold() in ("data", "checksum"):
            raise CheckpointError(Defect.UNKNOWN_KEY, key)
    if "Data" not in document:
        raise CheckpointError(Defect.NO_DATA)
    content = _typed(document["Data"], dict, "Data")
    for key, defect in (("PodDeviceEntries", Defect.NO_ENTRIES), ("RegisteredDevices", Defect.NO_REGISTERED)):
        if key not in content:
            raise CheckpointError(defect)
    if len(content) != 2:
        raise CheckpointError(Defect.UNKNOWN_KEY, str(sorted(content.keys() - {"PodDeviceEntries", "RegisteredDevices"})))
    return content


def _checksum(document: dict[str, Any]) -> int:
    if "Checksum" not in document:
        raise CheckpointError(Defect.NO_CHECKSUM)
    claimed = _typed(document["Checksum"], int, "Checksum")
    if not 0 <= claimed < 1 << 64:
        raise CheckpointError(Defect.WRONG_TYPE, "Checksum")
    return claimed


def _row(value: object) -> Row:
    entry = _typed(value, dict, "an entry")
    if not entry.keys() <= _ENTRY_KEYS:
        raise CheckpointError(Defect.UNKNOWN_KEY, str(sorted(entry.keys() - _ENTRY_KEYS)))
    for key, defect in (("PodUID", Defect.NO_POD_UID), ("ResourceName", Defect.NO_RESOURCE)):
        if key not in entry:
            raise CheckpointError(defect)
    if len(entry) != len(_ENTRY_KEYS):
        raise CheckpointError(Defect.MISSING_KEY, str(sorted(_ENTRY_KEYS - entry.keys())))
    return Row(
        _typed(entry["PodUID"], str, "PodUID"),
        _typed(entry["ContainerName"], str, "ContainerName"),
        _typed(entry["ResourceName"], str, "ResourceName"),
        _device_ids(entry["DeviceIDs"]),
        _response(entry["AllocResp"]),
    )


def _device_ids(value: object) -> Mapping[int, list[str] | None] | list[str] | None:
    if value is None or isinstance(value, list):
        return _texts(value, "DeviceIDs")
    nodes: dict[int, list[str] | None] = {}
    for key, ids in _typed(value, dict, "DeviceIDs").items():
        if not _NODE.fullmatch(key) or not -(1 << 63) <= int(key) < 1 << 63:
            raise CheckpointError(Defect.BAD_NUMA_NODE, key)
        nodes[int(key)] = _texts(ids, "DeviceIDs")
    return nodes


def _response(value: object) -> bytes | None:
    if value is None:
        return None
    text = _typed(value, str, "AllocResp")
    try:
        response = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise CheckpointError(Defect.BAD_RESPONSE) from None
    # Python ignores bits that belong to no byte; no encoder sets them.
    if base64.b64encode(response).decode() != text:
        raise CheckpointError(Defect.BAD_RESPONSE)
    return response


def _registered(value: object) -> dict[str, list[str] | None] | None:
    if value is None:
        return None
    return {resource: _texts(ids, "RegisteredDevices") for resource, ids in _typed(value, dict, "RegisteredDevices").items()}


def _texts(value: object, name: str) -> list[str] | None:
    if value is None:
        return None
    texts = _typed(value, list, name)
    for text in texts:
        _typed(text, str, name)
    return texts


def _typed(value: Any, kind: type[_T], name: str) -> _T:
    # bool is an int to Python, and no number to JSON.
    if type(value) is not kind:
        raise CheckpointError(Defect.WRONG_TYPE, name)
    result: _T = value
    return result


def _form(rows: list[Row]) -> Form:
    if not rows:
        return Form.NONE
    lists = sum(isinstance(row.device_ids, list) for row in rows)
    if 0 < lists < len(rows):
        raise CheckpointError(Defect.MIXED_FORMS)
    return Form.LIST if lists else Form.BY_NUMA_NODE


# --- the content ---


def _require_keys(rows: list[Row]) -> None:
    met: set[tuple[str, str, str]] = set()
    for row in rows:
        if not row.pod_uid:
            raise CheckpointError(Defect.NO_POD_UID)
        if not row.resource:
            raise CheckpointError(Defect.NO_RESOURCE)
        key = (row.pod_uid, row.container, row.resource)
        if key in met:
            raise CheckpointError(Defect.DUPLICATE_ENTRY, row.pod_uid)
        met.add(key)


def _entry(row: Row) -> Entry | None:
    """Return the entry of an NPU resource; None for one of another resource."""
    is_npu = is_npu_resource(row.resource)
    if not is_npu and not any(sign in (row.response or b"") for sign in _SIGNS):
        return None
    allocation = read_allocation(row.response)
    # HAMi's resources can be renamed, and any plugin can hand out a node: what the answer says counts, whatever the resource is called.
    if not is_npu and allocation.oddity is Oddity.NOT_NAMED and not allocation.template:
        return None
    return Entry(row.pod_uid, row.container, row.resource, _once(row.device_ids), allocation)


def _once(device_ids: Mapping[int, Any] | Any) -> tuple[str, ...]:
    """A device that is near several NUMA nodes stands under each of them."""
    if isinstance(device_ids, Mapping):
        return tuple(dict.fromkeys(device for ids in device_ids.values() for device in ids or ()))
    return tuple(dict.fromkeys(device_ids or ()))
