"""Which Pods have control groups on the host, and which containers in them have processes.

The kubelet makes a group for each Pod and removes it when the Pod is gone; runtimes make one for each container. With version 1 they are in
several hierarchies at once, so two of them are read: one might be missing.

Groups that belong to a user are left out, with all below them: systemd gives each user a subtree to make groups in (user@1000.service), and
what a user can make there may not speak for a Pod, nor use up what a scan looks at. Kubelets and runtimes that make vNPUs are root's.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from devward.cluster.evidence import Doubt, Finding, SourceState, pod_uid_of_cgroup
from devward.cluster.files import read_start

#: `<id>`, or `cri-containerd-<id>.scope`, `crio-<id>.scope`, `docker-<id>.scope`, `libpod-<id>.scope`. conmon, which outlives a container
#: for a moment, is in `crio-conmon-<id>.scope` and is none.
_CONTAINER: Final = re.compile(r"(?:(?:cri-containerd|crio|docker|libpod)[-:])?([0-9a-f]{64})(?:\.scope)?", re.ASCII)
#: Hierarchies of version 1 where both kubelet and runtimes make groups.
_VERSION_1: Final = ("pids", "memory")
_DEEPEST: Final = 16
_MAX_GROUPS: Final = 50_000
#: Groups that a container made below its own.
_MAX_BELOW: Final = 1_000


class CgroupDoubt(StrEnum):
    """Why the control groups are not known whole."""

    NOT_MOUNTED = "not-mounted"
    GROUP_UNREADABLE = "group-unreadable"
    TOO_MANY_GROUPS = "too-many-groups"
    TOO_DEEP = "too-deep"


@dataclass(frozen=True, slots=True)
class ContainerGroup:
    """A container's control group."""

    container_id: str
    #: Empty where it is in no Pod's group: plain docker, or a kubelet without groups for Pods.
    pod_uid: str
    path: str
    #: Whether processes are in it, or below; None where that could not be read.
    is_populated: bool | None


@dataclass(frozen=True, slots=True)
class CgroupScan:
    """What a scan saw."""

    state: SourceState
    #: Pods that have a group, with or without processes.
    pod_uids: frozenset[str] = frozenset()
    containers: tuple[ContainerGroup, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    # A cycle asks for hundreds of Pods.
    _by_uid: dict[str, list[ContainerGroup]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Index the containers."""
        for group in self.containers:
            self._by_uid.setdefault(group.pod_uid, []).append(group)

    def pod_finding(self, uid: str, sandboxes: frozenset[str] | None = None) -> Finding:
        """Return whether a Pod has a group; with `sandboxes`, ids of sandbox containers, whether it has a container besides those."""
        if sandboxes is None:
            held = uid in self.pod_uids
        else:
            populated = (group for group in self._by_uid.get(uid, ()) if group.is_populated is not False)
            held = any(group.container_id not in sandboxes for group in populated)
        if held:
            return Finding.HELD
        return Finding.UNKNOWN if self.doubts else Finding.CLEAN


def scan_cgroups(root: str = "/sys/fs/cgroup") -> CgroupScan:
    """Return the Pods' and containers' groups as they are now. Raises nothing for what it finds."""
    return _Scan(root).run()


class _Scan:
    def __init__(self, root: str) -> None:
        self._root = root
        #: Who owns the hierarchy that is read, which is not root in some user namespaces.
        self._owner = -1
        self._count = 0
        self._pods: set[str] = set()
        self._containers: dict[tuple[str, str], ContainerGroup] = {}
        self._doubts: list[Doubt] = []

    def run(self) -> CgroupScan:
        hierarchies = tuple(self._hierarchies())
        if not hierarchies:
            doubt = Doubt(CgroupDoubt.NOT_MOUNTED, self._root)
            return CgroupScan(SourceState.UNREADABLE, doubts=(doubt,))
        for hierarchy in hierarchies:
            self._enter(hierarchy)
        state = SourceState.UNREADABLE if self._doubts else SourceState.READ
        return CgroupScan(state, frozenset(self._pods), tuple(self._containers.values()), tuple(self._doubts))

    def _hierarchies(self) -> Iterator[str]:
        if os.path.exists(f"{self._root}/cgroup.controllers"):
            yield self._root
            return
        for name in _VERSION_1:
            # Without a mount it is an empty directory of the tmpfs.
            if os.path.exists(f"{self._root}/{name}/cgroup.procs"):
                yield f"{self._root}/{name}"

    def _enter(self, hierarchy: str) -> None:
        try:
            self._owner = os.stat(hierarchy).st_uid
        except OSError as error:
            self._doubts.append(Doubt(CgroupDoubt.GROUP_UNREADABLE, hierarchy, error.errno or 0))
            return
        self._walk(hierarchy, "", 0)

    def _walk(self, path: str, pod_uid: str, depth: int) -> None:
        if depth > _DEEPEST:
            self._doubts.append(Doubt(CgroupDoubt.TOO_DEEP, path))
            return
        try:
            with os.scandir(path) as entries:
                groups = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return
        except OSError as error:
            self._doubts.append(Doubt(CgroupDoubt.GROUP_UNREADABLE, path, error.errno or 0))
            return
        for name in (group.name for group in groups if self._is_ours(group)):
            self._count += 1
            if self._count > _MAX_GROUPS:
                if self._count == _MAX_GROUPS + 1:
                    self._doubts.append(Doubt(CgroupDoubt.TOO_MANY_GROUPS, path))
                return
            below = f"{path}/{name}"
            if found := _CONTAINER.fullmatch(name):
                # What a container makes below its own group is its own.
                self._add(ContainerGroup(found[1], pod_uid, below, is_populated(below)))
                continue
            uid = pod_uid_of_cgroup(name)
            if uid:
                self._pods.add(uid)
            self._walk(below, uid or pod_uid, depth + 1)

    def _is_ours(self, group: os.DirEntry[str]) -> bool:
        """Whether a group counts. A container's may belong to the root of its user namespace: what is above it tells."""
        if _CONTAINER.fullmatch(group.name):
            return True
        try:
            return group.stat(follow_symlinks=False).st_uid in (0, self._owner)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._doubts.append(Doubt(CgroupDoubt.GROUP_UNREADABLE, group.path, error.errno or 0))
            return False

    def _add(self, group: ContainerGroup) -> None:
        key = (group.container_id, group.pod_uid)
        known = self._containers.get(key)
        if known is None or known.is_populated is False:
            self._containers[key] = group


def is_populated(path: str) -> bool | None:
    """Return whether processes are in a group, or below; None where that cannot be read. A group that is gone has none."""
    try:
        return b"populated 1" in read_start(f"{path}/cgroup.events", 4096).split(b"\n")
    except FileNotFoundError:
        return _has_processes(path, 0, [_MAX_BELOW])
    except OSError:
        return None


def _has_processes(path: str, depth: int, left: list[int]) -> bool | None:
    """Version 1: processes may be in any group below."""
    left[0] -= 1
    try:
        if read_start(f"{path}/cgroup.procs", 64):
            return True
        with os.scandir(path) as entries:
            below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return False
    except OSError:
        return None
    if below and (depth >= _DEEPEST or left[0] <= 0):
        return None
    answers = [_has_processes(group, depth + 1, left) for group in below]
    if True in answers:
        return True
    return None if None in answers else False
