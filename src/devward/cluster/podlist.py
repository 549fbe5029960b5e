"""The list of a node's Pods, from the API server's text to facts. Pure.

A list is taken whole or not at all (AnswerError): one that is paginated, of another node or not of one moment says nothing about what it
does not show. What a Pod says in texts of its own, such as phases, reasons and annotations, is taken as it is and judged elsewhere.
Fields are those of core/v1 in the Kubernetes API reference.
"""

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from devward.cluster.annotations import DeviceAnnotations, read_annotations
from devward.cluster.answer import AnswerError, AnswerProblem, Fields, parse_answer
from devward.cluster.evidence import clean_path
from devward.cluster.handed import ANY, CDI_ANNOTATION, NOTHING, Handed, by_cdi, by_path

#: Extended resources of Huawei's devices.
RESOURCE_PREFIX: Final = "huawei.com/"
VISIBLE: Final = "ASCEND_VISIBLE_DEVICES"
SPECS: Final = "ASCEND_VNPU_SPECS"

_UID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,127}", re.ASCII)
#: The kind of an object is at most so long, as the label of a name of the Domain Name System; names are as whole ones.
_KIND: Final = re.compile(r"[A-Za-z][0-9A-Za-z]{0,62}", re.ASCII)
_NAME_LIMIT: Final = 253
#: A static Pod's UID is an MD5 sum, and can never be an ordinary Pod's.
_STATIC_UID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MIRROR: Final = "kubernetes.io/config.mirror"
_HASH: Final = "kubernetes.io/config.hash"
_KEPT: Final = (RESOURCE_PREFIX, "hami.io/")
_NPU_NODE: Final = re.compile(r"/dev/v?davinci[0-9]*", re.ASCII)
#: Below these is every node.
_ALL_NODES: Final = ("/", "/dev")


_CONTAINER_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")


class ContainerKind(StrEnum):
    """In which of a Pod's three lists a container stands."""

    INIT = "init"
    REGULAR = "regular"
    #: It cannot request devices; while it runs the Pod runs.
    EPHEMERAL = "ephemeral"


class State(StrEnum):
    """What a container is doing, by the kubelet."""

    RUNNING = "running"
    #: Also where nothing is said, as the API defines it.
    WAITING = "waiting"
    TERMINATED = "terminated"
    #: A state that this version does not know.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Termination:
    """How an attempt to run a container ended; times in microseconds since 1970, None where they are not known."""

    exit_code: int
    reason: str
    started_usec: int | None
    finished_usec: int | None


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """What the kubelet said of one container."""

    kind: ContainerKind
    name: str
    state: State
    #: Of a waiting one; empty where none is given.
    reason: str = ""
    #: Of a terminated one, else of the attempt before.
    termination: Termination | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """What the Pod's author asked for one container."""

    kind: ContainerKind
    name: str
    #: Names of Huawei's resources of which it wants more than none.
    resources: frozenset[str] = frozenset()
    #: Values of ASCEND_VISIBLE_DEVICES; None stands for one that is taken from elsewhere.
    visible: tuple[str | None, ...] = ()
    #: It sets ASCEND_VNPU_SPECS.
    has_specs: bool = False
    privileged: bool = False


@dataclass(frozen=True, slots=True)
class Controller:
    """What made a Pod and makes another in its place: a ReplicaSet, a Job. Foreign texts."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Pod:
    """What the API server says of one Pod."""

    uid: str
    namespace: str
    name: str
    phase: str = ""
    deleting: bool = False
    #: Those of Huawei's and HAMi's prefixes.
    annotations: Mapping[str, str] | None = None
    containers: tuple[Container, ...] = ()
    statuses: tuple[ContainerStatus, ...] = ()
    #: The kubelet's own UIDs for a static Pod, of which the API has only a mirror.
    static_uids: frozenset[str] = frozenset()
    #: For people alone; None: nothing makes another one.
    controller: Controller | None = None
    #: It mounts the host's /dev, or a node of an NPU from there.
    mounts_devices: bool = False
    #: vNPUs that it names itself, by a mount or by CDI.
    handed: Handed = NOTHING
    #: It has claims of dynamic resource allocation.
    has_resource_claims: bool = False
    #: What its annotations say about cards; read once, since a Pod may be looked at for as long as it stays as it is.
    cards: DeviceAnnotations = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Read the annotations."""
        object.__setattr__(self, "cards", read_annotations(self.annotations or {}))

    @property
    def uids(self) -> frozenset[str]:
        """Every UID by which the kubelet and the host may know it."""
        return self.static_uids | {self.uid}

    @property
    def is_privileged(self) -> bool:
        """Whether its containers may open any device, by rights or by a mount."""
        return self.mounts_devices or any(container.privileged for container in self.containers)


@dataclass(frozen=True, slots=True)
class PodList:
    """Every Pod of one node at one moment."""

    resource_version: str
    pods: tuple[Pod, ...]


def parse_pod_list(data: bytes, node: str) -> PodList:
    """Return the Pods of a node from the body of a list with the field selector `spec.nodeName=<node>`. AnswerError."""
    answer = parse_answer(data, "PodList", "v1")
    version = read_version(answer)
    pods = tuple(read_pod(item, node) for item in answer.objects("items"))
    refuse_twins(pods)
    return PodList(version, pods)


def read_version(answer: Fields) -> str:
    """Return the moment of a list that is whole. AnswerError."""
    metadata = answer.object("metadata")
    version = metadata.text("resourceVersion")
    if version in ("", "0"):
        raise AnswerError(AnswerProblem.NO_VERSION)
    if metadata.text("continue") or metadata.value.get("remainingItemCount") not in (None, 0):
        raise AnswerError(AnswerProblem.PAGINATED)
    if "items" not in answer:
        answer.odd("items", "it is missing")
    return version


def refuse_twins(pods: tuple[Pod, ...]) -> None:
    """Refuse a list that has a Pod twice. AnswerError."""
    uids: set[str] = set()
    names: set[tuple[str, str]] = set()
    for pod in pods:
        if pod.uid in uids:
            raise AnswerError(AnswerProblem.UID_TWICE, pod.uid)
        if (pod.namespace, pod.name) in names:
            raise AnswerError(AnswerProblem.NAME_TWICE, f"{pod.namespace}/{pod.name}")
        uids.add(pod.uid)
        names.add((pod.namespace, pod.name))


def read_pod(item: Fields, node: str) -> Pod:
    """Return one Pod of a list, which must be of this node. AnswerError."""
    if item.text("kind") not in ("", "Pod"):
        item.odd("kind", "a Pod is expected")
    metadata, spec, status = item.object("metadata"), item.object("spec"), item.object("status")
    uid = metadata.needed("uid")
    if not _UID.fullmatch(uid):
        metadata.odd("uid", "a UID is expected")
    if spec.text("nodeName") != node:
        raise AnswerError(AnswerProblem.OTHER_NODE, f"Pod {uid} is of node {spec.text('nodeName')!r}, not {node!r}")
    annotations = metadata.texts("annotations")
    paths = [(volume.text("name"), path) for volume in spec.objects("volumes") if (path := _host_path(volume))]
    return Pod(
        uid=uid,
        namespace=metadata.needed("namespace"),
        name=metadata.needed("name"),
        phase=status.text("phase"),
        deleting=metadata.time("deletionTimestamp") is not None,
        annotations={key: value for key, value in annotations.items() if key.startswith(_KEPT)},
        containers=tuple(_containers(spec)),
        statuses=tuple(_statuses(status)),
        static_uids=_static_uids(annotations),
        # That of a mirror is the Node.
        controller=_controller(metadata) if _MIRROR not in annotations else None,
        mounts_devices=any(_is_devices(path) for _, path in paths),
        handed=_handed(spec, paths, annotations),
        has_resource_claims=bool(spec.objects("resourceClaims")),
    )


def _controller(metadata: Fields) -> Controller | None:
    """Return the one of the owners that controls the Pod (metav1.OwnerReference); None also for one that no API server would name so.

    It is kept for people alone, and longer than the Pod: so it is bounded, and protects nothing.
    """
    for owner in metadata.objects("ownerReferences"):
        if owner.flag("controller"):
            found = Controller(owner.text("kind"), owner.text("name"), owner.text("uid"))
            is_sound = _KIND.fullmatch(found.kind) and _UID.fullmatch(found.uid) and 0 < len(found.name) <= _NAME_LIMIT
            return found if is_sound else None
    return None


def _static_uids(annotations: Mapping[str, str]) -> frozenset[str]:
    if _MIRROR not in annotations:
        return frozenset()
    return frozenset(text for key in (_MIRROR, _HASH) if _STATIC_UID.fullmatch(text := annotations.get(key, "")))


def _host_path(volume: Fields) -> str:
    path = volume.object("hostPath").text("path")
    return clean_path(path) if path else ""


def _is_devices(path: str) -> bool:
    return path in _ALL_NODES or _NPU_NODE.fullmatch(path) is not None


def _handed(spec: Fields, paths: Collection[tuple[str, str]], annotations: Mapping[str, str]) -> Handed:
    """Return the vNPUs that a Pod names; `paths` are those of the host that it mounts, each with the name of its volume."""
    found = NOTHING
    for _, path in paths:
        found |= by_path(path)
    for key, text in annotations.items():
        if key.startswith(CDI_ANNOTATION):
            found |= by_cdi(text)
    above = {name: path for name, path in paths if path in _ALL_NODES}
    # Few Pods mount any of them, and nearly all mount something.
    mounts = (mount for key in _CONTAINER_LISTS for entry in spec.objects(key) for mount in entry.objects("volumeMounts")) if above else ()
    for mount in mounts:
        if (parent := above.get(mount.text("name"))) is not None:
            found |= ANY if mount.text("subPathExpr") else by_path(posixpath.join(parent, mount.text("subPath")))
    return found


def _containers(spec: Fields) -> Iterator[Container]:
    for kind, key in (
        (ContainerKind.INIT, "initContainers"),
        (ContainerKind.REGULAR, "containers"),
        (ContainerKind.EPHEMERAL, "ephemeralContainers"),
    ):
        for entry in spec.objects(key):
            resources = entry.object("resources")
            wanted = (*resources.texts("requests").items(), *resources.texts("limits").items())
            visible, has_specs = _environment(entry)
            yield Container(
                kind,
                entry.needed("name"),
                frozenset(name for name, quantity in wanted if name.startswith(RESOURCE_PREFIX) and quantity != "0"),
                visible,
                has_specs,
                entry.object("securityContext").flag("privileged"),
            )


def _environment(container: Fields) -> tuple[tuple[str | None, ...], bool]:
    visible: list[str | None] = []
    has_specs = False
    for variable in container.objects("env"):
        name, value = variable.needed("name"), variable.text("value")
        if name == VISIBLE:
            visible.append(None if "valueFrom" in variable else value)
        elif name == SPECS:
            has_specs |= bool(value) or "valueFrom" in variable
    return tuple(visible), has_specs


def _statuses(status: Fields) -> Iterator[ContainerStatus]:
    for kind, key in (
        (ContainerKind.INIT, "initContainerStatuses"),
        (ContainerKind.REGULAR, "containerStatuses"),
        (ContainerKind.EPHEMERAL, "ephemeralContainerStatuses"),
    ):
        for entry in status.objects(key):
            yield _status(kind, entry)


def _status(kind: ContainerKind, entry: Fields) -> ContainerStatus:
    name, state, before = entry.needed("name"), entry.object("state"), entry.object("lastState")
    last = _termination(before.object("terminated")) if "terminated" in before else None
    if len(state.value) > 1:
        entry.odd("state", "one state is expected")
    if "running" in state:
        state.object("running").time("startedAt")
        return ContainerStatus(kind, name, State.RUNNING, "", last)
    if "terminated" in state:
        return ContainerStatus(kind, name, State.TERMINATED, "", _termination(state.object("terminated")))
    if state.value and "waiting" not in state:
        return ContainerStatus(kind, name, State.UNKNOWN, next(iter(state.value)), last)
    return ContainerStatus(kind, name, State.WAITING, state.object("waiting").text("reason"), last)


def _termination(entry: Fields) -> Termination:
    return Termination(entry.integer("exitCode"), entry.text("reason"), entry.time("startedAt"), entry.time("finishedAt"))
