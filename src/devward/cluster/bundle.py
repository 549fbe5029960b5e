"""What the OCI configuration of one container says: whose it is, and which NPUs and vNPUs it names. Pure.

ascend-docker-runtime writes into it, before it calls the real runtime, the node of the vNPU that it made and a poststop hook that destroys
exactly that vNPU. What does not have the form that runtimes write is refused whole (BundleError): it might name anything.
"""

import json
import os.path
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from devward.cluster.evidence import FIRST_VDEV, LAST_VDEV, DeviceNumber, pod_uid_of_cgroup, vnpu_of_node

_LAST_CARD: Final = FIRST_VDEV - 1
_MAX_ENTRIES: Final = 10_000

_CARD: Final = re.compile(r"[0-9]{1,3}", re.ASCII)
_CARD_RANGE: Final = re.compile(r"([0-9]{1,3})-([0-9]{1,3})", re.ASCII)
_NAMED_CARD: Final = re.compile(r"(?:Ascend[0-9A-Za-z]{1,16}|npu)-([0-9]{1,3})", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
_T = TypeVar("_T")
_EMPTY: Final[frozenset[Any]] = frozenset()
_HOOK: Final = "ascend-docker-destroy"

_TYPE_KEYS: Final = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType", "io.kubernetes.docker.type")
_UID_KEYS: Final = ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid")
_LOG_DIRECTORY_KEY: Final = "io.kubernetes.cri.sandbox-log-directory"
_CRIO_LABELS_KEY: Final = "io.kubernetes.cri-o.Labels"


class BundleError(ValueError):
    """The configuration does not have the form that runtimes write."""


class ContainerType(StrEnum):
    """What a container is for its Pod."""

    CONTAINER = "container"
    #: The one that holds the Pod's namespaces, which lives as long as the Pod, whether or not its containers can be made.
    SANDBOX = "sandbox"
    #: Not said. It counts as a container.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DestroyHook:
    """A poststop hook that destroys one vNPU: exact ownership."""

    card: int
    device: int
    vdev: int


@dataclass(frozen=True, slots=True)
class BundleFacts:
    """What one configuration says."""

    type: ContainerType = ContainerType.UNKNOWN
    #: Every UID by which it could be known; more than one only where its parts disagree.
    pod_uids: frozenset[str] = frozenset()
    #: Physical ids of ASCEND_VISIBLE_DEVICES; None where they cannot be told and might be any.
    cards: frozenset[int] | None = frozenset()
    #: ASCEND_VNPU_SPECS, foreign text; empty: none.
    template: str = ""
    #: vNPUs that it names by hook, device node or bind mount.
    vdevs: frozenset[int] = frozenset()
    hooks: tuple[DestroyHook, ...] = ()
    #: Devices of which it has a node, or that it may read or write by a rule with a whole number.
    devices: frozenset[DeviceNumber] = frozenset()
    #: Major numbers of which it may open every device; `136`, of terminals, is in every container's rules.
    majors: frozenset[int] = frozenset()
    #: It may open any device, as a privileged container may, or has the host's /dev.
    has_all_devices: bool = False

    @property
    def is_of_kubernetes(self) -> bool:
        """Whether it belongs to a Pod, be its UID known or not."""
        return self.type is not ContainerType.UNKNOWN or bool(self.pod_uids)

    def names(self, vdev: int, number: DeviceNumber) -> bool:
        """Whether it names exactly this vNPU."""
        return vdev in self.vdevs or number in self.devices

    def may_open(self, number: DeviceNumber) -> bool:
        """Whether its rules let it open this device, without naming it alone."""
        return self.has_all_devices or number.major in self.majors


def parse_bundle(data: bytes) -> BundleFacts:
    """Return what a config.json says. BundleError."""
    spec = parse_object(data)
    annotations = _texts(spec.get("annotations"))
    linux = _object(spec.get("linux"))
    process = _object(spec.get("process"))
    hooks = tuple(_hooks(_object(spec.get("hooks"))))
    vdevs = {hook.vdev for hook in hooks}
    devices: set[DeviceNumber] = set()
    for entry in _objects(linux.get("devices")):
        vdevs |= _vdev_of(_text(entry.get("path")))
        if entry.get("type") in ("c", "u"):
            devices.add(DeviceNumber(_integer(entry.get("major", 0)), _integer(entry.get("minor", 0))))
    majors: set[int] = set()
    has_all = False
    for rule in _objects(_object(linux.get("resources")).get("devices")):
        if (opened := _opened(rule)) is None:
            continue
        major, minor = opened
        if major < 0:
            has_all = True
        elif minor < 0:
            majors.add(major)
        else:
            devices.add(DeviceNumber(major, minor))
    for mount in _objects(spec.get("mounts")):
        source = os.path.normpath(_text(mount.get("source")) or ".")
        vdevs |= _vdev_of(source)
        has_all |= source in ("/", "//", "/dev")
    cards, template = _environment(process.get("env"))
    return BundleFacts(
        _type(annotations),
        _pod_uids(annotations, _text(linux.get("cgroupsPath"))),
        cards,
        template,
        _frozen(vdevs),
        hooks,
        _frozen(devices),
        _frozen(majors),
        has_all,
    )


def parse_object(data: bytes) -> dict[str, Any]:
    """Return a JSON object; BundleError for anything else, also for one with a key twice, of which no two readers agree."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"not JSON: {error}") from None
    return _object(value) if value is not None else _refuse("not an object")


def facts_of_labels(labels: object) -> BundleFacts:
    """Return type and Pod UID as a container's labels have them: dockershim and cri-dockerd write them there alone. BundleError."""
    texts = _texts(labels)
    return BundleFacts(_type(texts), _pod_uids(texts, ""))


def visible_cards(text: str) -> frozenset[int] | None:
    """Return the physical ids of an ASCEND_VISIBLE_DEVICES: `0,1`, `0-3`, `Ascend910-3`, `npu-3`; none for "" and `void`.

    None: it cannot be told which; it might be any.
    """
    if text in ("", "void"):
        return frozenset()
    cards: set[int] = set()
    for part in text.split(","):
        item = part.strip()
        if _CARD.fullmatch(item):
            cards.add(int(item))
        elif found := _CARD_RANGE.fullmatch(item):
            first, last = int(found[1]), int(found[2])
            if first > last:
                return None
            cards |= set(range(first, last + 1))
        elif found := _NAMED_CARD.fullmatch(item):
            cards.add(int(found[1]))
        else:
            return None
    return frozenset(cards) if max(cards) <= _LAST_CARD else None


def _frozen(values: set[_T]) -> frozenset[_T]:
    """Return a set to be kept; hundreds of bundles are, and nearly all of their sets are the empty one, which frozenset() makes anew."""
    return frozenset(values) if values else _EMPTY


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise BundleError("a key stands there twice")
    return result


def _refuse(text: str) -> Any:
    raise BundleError(text)


def _object(value: object) -> dict[str, Any]:
    """An object; an absent one is empty, as Go reads null."""
    if value is None:
        return {}
    return value if isinstance(value, dict) else _refuse("an object is expected")


def _objects(value: object) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > _MAX_ENTRIES:
        return _refuse("a list is expected, and not a long one")  # type: ignore[no-any-return]
    return [_object(entry) for entry in value]


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _refuse("a text is expected")


def _texts(value: object) -> Mapping[str, str]:
    return {key: _text(entry) for key, entry in _object(value).items()}


def _integer(value: object) -> int:
    """A device number; -1, which stands for every one, also for null."""
    if value is None:
        return -1
    if type(value) is not int or not -1 <= value < 1 << 32:
        return _refuse("a device number is expected")  # type: ignore[no-any-return]
    return value


def _type(annotations: Mapping[str, str]) -> ContainerType:
    found = {annotations[key] for key in _TYPE_KEYS if key in annotations}
    if not found:
        return ContainerType.UNKNOWN
    # A type that is not known, or two, is no sandbox.
    return ContainerType.SANDBOX if found <= {"sandbox", "podsandbox"} else ContainerType.CONTAINER


def _pod_uids(annotations: Mapping[str, str], cgroups_path: str) -> frozenset[str]:
    found = {annotations[key] for key in _UID_KEYS if key in annotations}
    if _CRIO_LABELS_KEY in annotations:
        labels = _texts(parse_object(annotations[_CRIO_LABELS_KEY].encode(errors="surrogatepass")))
        found |= {labels[key] for key in _UID_KEYS if key in labels}
    # containerd before 1.6 has no UID there: /var/log/pods/<namespace>_<name>_<UID>
    if not found and (directory := annotations.get(_LOG_DIRECTORY_KEY)):
        found.add(directory.rstrip("/").rpartition("_")[2])
    # `<slice>:<prefix>:<id>` with systemd's driver, a path with cgroupfs
    found |= {pod_uid_of_cgroup(part) for part in re.split("[/:]", cgroups_path)}
    return _frozen(found - {""})


def _vdev_of(path: str) -> set[int]:
    """The vNPU that a device path names."""
    vdev = vnpu_of_node(path)
    if vdev is None:
        return set()
    return {vdev} if FIRST_VDEV <= vdev <= LAST_VDEV else _refuse("a vNPU's node with an impossible id")


def _opened(rule: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return major and minor of the character devices that a rule of the device cgroup opens, -1 for all; None if it opens none."""
    if not isinstance(rule.get("allow"), bool):
        raise BundleError("a rule without a verdict")
    access, kind = _text(rule.get("access")), _text(rule.get("type"))
    # An empty access or type means every one. `m` alone allows to make a node, not to open it.
    if not rule["allow"] or (access and not set(access) & {"r", "w"}) or kind in ("b", "p"):
        return None
    return _integer(rule.get("major", -1)), _integer(rule.get("minor", -1))


def _hooks(hooks: Mapping[str, Any]) -> Iterator[DestroyHook]:
    for phase in hooks.values():
        for hook in _objects(phase):
            arguments = hook.get("args") or []
            if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
                raise BundleError("a hook with strange arguments")
            if _HOOK not in (os.path.basename(_text(hook.get("path"))), os.path.basename(arguments[0] if arguments else "")):
                continue
            if len(arguments) != 4 or not all(_NUMBER.fullmatch(argument) for argument in arguments[1:]):
                raise BundleError("a destroy hook with strange arguments")
            card, device, vdev = (int(argument) for argument in arguments[1:])
            if not FIRST_VDEV <= vdev <= LAST_VDEV:
                raise BundleError("a destroy hook with an impossible id")
            yield DestroyHook(card, device, vdev)


def _environment(value: object) -> tuple[frozenset[int] | None, str]:
    """Return cards and template; of a variable that stands there twice, all its cards."""
    if value is None:
        return _EMPTY, ""
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise BundleError("a strange environment")
    cards: frozenset[int] | None = _EMPTY
    template = ""
    for entry in value:
        name, _, text = entry.partition("=")
        if name == "ASCEND_VISIBLE_DEVICES" and cards is not None:
            more = visible_cards(text)
            cards = None if more is None else cards | more
        elif name == "ASCEND_VNPU_SPECS":
            template = text or template
    return cards, template
