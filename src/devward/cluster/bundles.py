"""The OCI bundles of every container runtime on the host: which containers there are, and what each one names.

containerd keeps a bundle while the task lives, CRI-O and podman until the container is removed; so whether it lives is asked apart. A
bundle that cannot be read, or is not what runtimes write, might name anything. Bundles are remembered by path, inode, size and times.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from devward.cluster.bundle import BundleError, BundleFacts, ContainerType, facts_of_labels, parse_bundle, parse_object
from devward.cluster.evidence import DeviceNumber, Doubt, Finding, SourceState
from devward.cluster.files import read_file, read_start, version
from devward.cluster.life import FirstProcess, Life, life_of, parse_pid, parse_state
from devward.cluster.vantage import lists_everybody

_MAX_CONFIG: Final = 4 * 1024 * 1024
#: A file younger than this may be written again within one tick of its file system's clock, and look the same.
_SETTLED_NS: Final = 2_000_000_000
_MOBY: Final = "moby"
_KUBERNETES: Final = "k8s.io"

_Version = tuple[int, int, int, int, int]


class Runtime(StrEnum):
    """Container runtimes by the scheme of a Node's `containerRuntimeVersion`."""

    CONTAINERD = "containerd"
    DOCKER = "docker"
    CRIO = "cri-o"


class BundleDoubt(StrEnum):
    """Why the bundles are not known whole."""

    ROOT_UNREADABLE = "root-unreadable"
    BUNDLE_UNREADABLE = "bundle-unreadable"
    BUNDLE_MALFORMED = "bundle-malformed"
    #: There is a directory for the container and no configuration in it.
    NO_CONFIG = "no-config"
    #: Something that is no directory stands where a bundle would.
    NOT_A_BUNDLE = "not-a-bundle"
    TOO_MANY_BUNDLES = "too-many-bundles"
    #: The time that the scan was given was over.
    OUT_OF_TIME = "out-of-time"


class Layout(StrEnum):
    """How bundles lie below a root."""

    #: `<root>/<namespace>/<id>/config.json`
    TASKS = "tasks"
    #: `<root>/<driver>-containers/<id>/userdata/config.json`
    STORAGE = "storage"


@dataclass(frozen=True, slots=True)
class BundleRoot:
    """A directory where a runtime keeps bundles, if it is there."""

    path: str
    runtime: Runtime
    layout: Layout
    #: Where podman keeps `config.json` of the containers that have a directory below `path`.
    persistent: str = ""


@dataclass(frozen=True, slots=True)
class SeenRoot:
    """A root as it was found."""

    root: BundleRoot
    state: SourceState
    #: What its bundles lie in: containerd's namespaces, or directories such as `overlay-containers`.
    groups: frozenset[str] = frozenset()

    def serves(self, runtime: Runtime) -> bool:
        """Whether the kubelet's containers of this runtime are here."""
        if self.root.layout is Layout.STORAGE:
            return runtime is self.root.runtime and bool(self.groups)
        return {Runtime.CONTAINERD: _KUBERNETES, Runtime.DOCKER: _MOBY}.get(runtime) in self.groups


@dataclass(frozen=True, slots=True)
class Bundle:
    """One container."""

    id: str
    #: containerd's namespace; empty elsewhere.
    namespace: str
    path: str
    life: Life
    #: None where it could not be read; the scan's doubts say why.
    facts: BundleFacts | None

    @property
    def is_sandbox(self) -> bool:
        """Whether it holds a Pod's namespaces, and is no container that the Pod asks for."""
        return self.facts is not None and self.facts.type is ContainerType.SANDBOX


@dataclass(frozen=True, slots=True)
class BundleScan:
    """What a scan saw."""

    roots: tuple[SeenRoot, ...] = ()
    bundles: tuple[Bundle, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    # What the bundles of containers that were not seen to have ended name: a cycle asks for hundreds of vNPUs and Pods.
    _by_vdev: dict[int, list[Bundle]] = field(init=False, repr=False, compare=False, default_factory=dict)
    _by_number: dict[DeviceNumber, list[Bundle]] = field(init=False, repr=False, compare=False, default_factory=dict)
    _by_uid: dict[str, list[Bundle]] = field(init=False, repr=False, compare=False, default_factory=dict)
    #: Of Pods that cannot be told.
    _without_uid: list[Bundle] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        """Index the bundles."""
        for bundle, facts in self.living:
            for vdev in facts.vdevs:
                self._by_vdev.setdefault(vdev, []).append(bundle)
            for number in facts.devices:
                self._by_number.setdefault(number, []).append(bundle)
            for uid in facts.pod_uids:
                self._by_uid.setdefault(uid, []).append(bundle)
            if facts.is_of_kubernetes and not facts.pod_uids:
                self._without_uid.append(bundle)

    @property
    def living(self) -> Iterator[tuple[Bundle, BundleFacts]]:
        """The readable bundles of containers that were not seen to have ended."""
        return ((bundle, bundle.facts) for bundle in self.bundles if bundle.life is not Life.STOPPED and bundle.facts is not None)

    def state_of(self, runtime: Runtime) -> SourceState:
        """Return whether the Node's own runtime was found, and read."""
        if any(seen.state is SourceState.UNREADABLE for seen in self.roots):
            return SourceState.UNREADABLE
        return SourceState.READ if any(seen.serves(runtime) for seen in self.roots) else SourceState.NOT_PRESENT

    def owners(self, vdev: int, number: DeviceNumber) -> tuple[Bundle, ...]:
        """Return the living containers that name exactly this vNPU."""
        by_vdev = self._by_vdev.get(vdev, [])
        return (*by_vdev, *(bundle for bundle in self._by_number.get(number, []) if bundle not in by_vdev))

    def finding(self, vdev: int, number: DeviceNumber) -> Finding:
        """Return whether a living container owns a vNPU."""
        if vdev in self._by_vdev or number in self._by_number:
            return Finding.HELD
        return Finding.UNKNOWN if self.doubts else Finding.CLEAN

    def pod_finding(self, uid: str, *, containers_only: bool) -> Finding:
        """Return whether a Pod has a living container; a sandbox is one of them unless `containers_only`."""

        def counts(bundle: Bundle) -> bool:
            return not (containers_only and bundle.is_sandbox)

        if any(map(counts, self._by_uid.get(uid, ()))):
            return Finding.HELD
        return Finding.UNKNOWN if self.doubts or any(map(counts, self._without_uid)) else Finding.CLEAN

    def sandboxes(self, uid: str) -> frozenset[str]:
        """Return the ids of a Pod's living sandboxes."""
        return frozenset(bundle.id for bundle in self._by_uid.get(uid, ()) if bundle.is_sandbox)


def runtime_of(container_runtime_version: str) -> Runtime | None:
    """Return the runtime that a Node names (`containerd://2.1.9`); None for one that is not known."""
    scheme, separator, _ = container_runtime_version.partition("://")
    return next((runtime for runtime in Runtime if separator and runtime.value == scheme), None)


def default_roots(run: str = "/run", lib: str = "/var/lib", snap: str = "/var/snap") -> tuple[BundleRoot, ...]:
    """Return where the runtimes that are known keep bundles, with their own default settings."""
    tasks = "io.containerd.runtime.v2.task"
    return (
        *(
            BundleRoot(f"{place}/{generation}", Runtime.CONTAINERD, Layout.TASKS)
            for place in (f"{run}/containerd", f"{run}/k3s/containerd", f"{run}/k0s/containerd", f"{snap}/microk8s/common/run/containerd")
            for generation in (tasks, "io.containerd.runtime.v1.linux")
        ),
        # Docker with a containerd of its own; with the system's, its containers are in the namespace `moby` there.
        BundleRoot(f"{run}/docker/containerd/daemon/{tasks}", Runtime.DOCKER, Layout.TASKS),
        BundleRoot(f"{run}/containers/storage", Runtime.CRIO, Layout.STORAGE, f"{lib}/containers/storage"),
    )


class BundleScanner:
    """Scans bundles and remembers those that did not change. For one thread at a time."""

    def __init__(
        self,
        roots: Sequence[BundleRoot] | None = None,
        *,
        proc: str = "/proc",
        run: str = "/run",
        lib: str = "/var/lib",
        max_bundles: int = 8192,
        vantage: Callable[[str], Doubt | None] = lists_everybody,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`now_ns` returns nanoseconds of CLOCK_REALTIME, the clock of file times."""
        self._roots = tuple(default_roots(run, lib) if roots is None else roots)
        self._proc = proc
        self._run = run
        self._lib = lib
        self._max_bundles = max_bundles
        self._vantage = vantage
        self._sees_all = False
        self._deadline = math.inf
        self._now_ns = now_ns
        self._known: dict[str, tuple[_Version, BundleFacts | None]] = {}
        self._met: dict[str, tuple[_Version, BundleFacts | None]] = {}
        self._bundles: list[Bundle] = []
        self._doubts: list[Doubt] = []

    def scan(self, deadline: float = math.inf) -> BundleScan:
        """Return the bundles as they are now. Raises nothing for what it finds. `deadline` is by the monotonic clock, in seconds."""
        self._deadline = deadline
        self._bundles, self._doubts, self._met = [], [], {}
        self._sees_all = self._vantage(self._proc) is None
        roots = tuple(self._scan_root(root) for root in self._roots)
        # Only what was met in this scan stays: bundles that are gone cost nothing.
        self._known = self._met
        return BundleScan(roots, tuple(self._bundles), tuple(self._doubts))

    def _scan_root(self, root: BundleRoot) -> SeenRoot:
        try:
            groups = self._directories(root.path)
        except (FileNotFoundError, NotADirectoryError):
            # Nothing was ever started by such a runtime. What the Node's own needs, state_of() answers.
            return SeenRoot(root, SourceState.NOT_PRESENT)
        except OSError as error:
            self._doubt(BundleDoubt.ROOT_UNREADABLE, root.path, error)
            return SeenRoot(root, SourceState.UNREADABLE)
        if root.layout is Layout.STORAGE:
            groups = [group for group in groups if group.endswith("-containers")]
        state = SourceState.READ
        for group in groups:
            try:
                for name in self._directories(f"{root.path}/{group}"):
                    if len(self._bundles) >= self._max_bundles:
                        self._doubt(BundleDoubt.TOO_MANY_BUNDLES, root.path)
                        return SeenRoot(root, SourceState.UNREADABLE)
                    if time.monotonic() > self._deadline:
                        self._doubt(BundleDoubt.OUT_OF_TIME, root.path)
                        return SeenRoot(root, SourceState.UNREADABLE)
                    self._scan_bundle(root, group, name)
            except OSError as error:
                self._doubt(BundleDoubt.ROOT_UNREADABLE, f"{root.path}/{group}", error)
                state = SourceState.UNREADABLE
        return SeenRoot(root, state, frozenset(groups))

    def _directories(self, path: str) -> list[str]:
        """Return the directories in a directory; anything else there is a doubt. OSError."""
        found: list[str] = []
        with os.scandir(path) as entries:
            for count, entry in enumerate(entries):
                if count > 2 * self._max_bundles:
                    self._doubt(BundleDoubt.TOO_MANY_BUNDLES, path)
                    break
                if entry.name.startswith("."):
                    # containerd renames a bundle to such a name when its task is deleted, and then removes it.
                    continue
                if entry.is_dir(follow_symlinks=False):
                    found.append(entry.name)
                elif entry.is_symlink():
                    self._doubt(BundleDoubt.NOT_A_BUNDLE, entry.path)
        return found

    def _scan_bundle(self, root: BundleRoot, group: str, name: str) -> None:
        path = f"{root.path}/{group}/{name}"
        namespace = group
        if root.layout is Layout.STORAGE:
            path += "/userdata"
            namespace = ""
        config = f"{path}/config.json"
        facts: BundleFacts | None = None
        doubt: Doubt | None = None
        try:
            try:
                facts, written = self._facts(config)
            except FileNotFoundError:
                if not root.persistent:
                    raise
                facts, written = self._facts(f"{root.persistent}/{group}/{name}/userdata/config.json")
            life = self._life(path, namespace, name, written)
            if facts is None:
                doubt = Doubt(BundleDoubt.BUNDLE_MALFORMED, config)
        except FileNotFoundError:
            life = self._life(path, namespace, name, 0)
            if not os.path.lexists(path):
                return
            # podman has such directories for containers that were never started, and without it no OCI runtime starts one.
            if root.layout is not Layout.STORAGE or life is Life.LIVE:
                doubt = Doubt(BundleDoubt.NO_CONFIG, config)
        except OSError as error:
            life = self._life(path, namespace, name, 0)
            doubt = Doubt(BundleDoubt.BUNDLE_UNREADABLE, config, error.errno or 0)
        if facts is not None and namespace == _MOBY:
            facts = self._with_labels(facts, name)
        self._bundles.append(Bundle(name, namespace, path, life, facts))
        # What an ended container might have named, it does not hold.
        if doubt is not None and life is not Life.STOPPED:
            self._doubts.append(doubt)

    def _facts(self, config: str) -> tuple[BundleFacts | None, int]:
        """Return what a configuration says, None if it is malformed, and when it was written. OSError."""
        return self._remembered(config, parse_bundle)

    def _remembered(self, path: str, parse: Callable[[bytes], BundleFacts]) -> tuple[BundleFacts | None, int]:
        facts = os.stat(path, follow_symlinks=False)
        known = self._known.get(path)
        if known is None or known[0] != version(facts):
            data, facts = read_file(path, _MAX_CONFIG)
            try:
                known = (version(facts), parse(data))
            except BundleError:
                known = (version(facts), None)
        if self._now_ns() - max(facts.st_mtime_ns, facts.st_ctime_ns) >= _SETTLED_NS:
            self._met[path] = known
        return known[1], facts.st_mtime_ns

    def _with_labels(self, facts: BundleFacts, name: str) -> BundleFacts:
        """Add what only docker's own record of a container says: Pod and type stand in its labels, not in the bundle."""
        try:
            labels, _ = self._remembered(f"{self._lib}/docker/containers/{name}/config.v2.json", _docker_facts)
        except OSError:
            labels = None
        # Without it the container has no type, and so counts as one.
        return facts if labels is None else replace(facts, type=labels.type, pod_uids=facts.pod_uids | labels.pod_uids)

    def _life(self, path: str, namespace: str, name: str, written_ns: int) -> Life:
        first = self._recorded_state(namespace, name) or _recorded_pid(f"{path}/{'init.pid' if namespace else 'pidfile'}", written_ns)
        # From where processes are hidden, one that lives looks like one that has ended.
        return life_of(first, self._proc) if first is not None and self._sees_all else Life.UNKNOWN

    def _recorded_state(self, namespace: str, name: str) -> FirstProcess | None:
        """Return the first process as the OCI runtime has it. containerd's shim has one place for runc, wherever containerd's own is."""
        if namespace:
            places = (f"containerd/runc/{namespace}/{name}/state.json", f"docker/runtime-runc/{namespace}/{name}/state.json")
        else:
            places = (f"runc/{name}/state.json", f"crun/{name}/status")
        for place in places:
            try:
                return parse_state(read_start(f"{self._run}/{place}", 2048))
            except OSError:
                continue
        return None

    def _doubt(self, code: BundleDoubt, subject: str, error: OSError | None = None) -> None:
        self._doubts.append(Doubt(code, subject, (error.errno or 0) if error else 0))


def _recorded_pid(path: str, written_ns: int) -> FirstProcess | None:
    """Return the first process by its id file; one older than the configuration is of an earlier run."""
    try:
        if os.stat(path, follow_symlinks=False).st_mtime_ns < written_ns:
            return None
        return parse_pid(read_start(path, 64))
    except OSError:
        return None


def _docker_facts(data: bytes) -> BundleFacts:
    config = parse_object(data).get("Config")
    return facts_of_labels(config.get("Labels") if isinstance(config, dict) else None)
