"""Control groups of Pods and containers: trees of both versions and both drivers, and the host's own."""

import errno
import os
from pathlib import Path

import pytest

from devward.cluster.cgroups import CgroupDoubt, CgroupScan, is_populated, scan_cgroups
from devward.cluster.evidence import Finding, SourceState

UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
ONE, TWO = "1" * 64, "2" * 64
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: owners")
needs_non_root = pytest.mark.skipif(os.geteuid() == 0, reason="needs non-root: permissions bind")


class Tree:
    """A tree that looks like /sys/fs/cgroup."""

    def __init__(self, root: Path, version: int) -> None:
        self.root = root
        self.version = version
        self.hierarchies = [root] if version == 2 else [root / "pids", root / "memory"]
        for hierarchy in self.hierarchies:
            hierarchy.mkdir(exist_ok=True)
            (hierarchy / "cgroup.procs").write_text("")
        if version == 2:
            (root / "cgroup.controllers").write_text("")

    def group(self, path: str, *, populated: bool = False) -> None:
        """Add a group."""
        for hierarchy in self.hierarchies:
            group = hierarchy / path
            group.mkdir(parents=True)
            (group / "cgroup.procs").write_text("12\n" if populated else "")
            if self.version == 2:
                (group / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")

    def scan(self) -> CgroupScan:
        """Scan it."""
        return scan_cgroups(str(self.root))


@pytest.fixture(params=[1, 2])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    return Tree(tmp_path, request.param)


SLICE = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("pod", "container"),
    [
        (SLICE, f"cri-containerd-{ONE}.scope"),
        (SLICE, f"crio-{ONE}.scope"),
        (SLICE, f"docker-{ONE}.scope"),
        (f"kubepods/besteffort/pod{UID}", ONE),
        (f"kubepods/pod{UID}", f"crio-{ONE}"),
        (f"own/root/kubepods/pod{UID}", ONE),
    ],
)
def test_a_pod_and_its_container(tree: Tree, pod: str, container: str) -> None:
    tree.group(f"{pod}/{container}", populated=True)
    found = tree.scan()
    assert (found.state, found.pod_uids, found.doubts) == (SourceState.READ, {UID}, ())
    assert [(group.container_id, group.pod_uid, group.is_populated) for group in found.containers] == [(ONE, UID, True)]
    assert found.pod_finding(UID) is Finding.HELD
    assert found.pod_finding("other") is Finding.CLEAN


def test_a_group_with_only_the_sandbox(tree: Tree) -> None:
    tree.group(f"{SLICE}/cri-containerd-{ONE}.scope", populated=True)
    assert tree.scan().pod_finding(UID, frozenset({ONE})) is Finding.CLEAN
    assert tree.scan().pod_finding(UID, frozenset()) is Finding.HELD
    tree.group(f"{SLICE}/cri-containerd-{TWO}.scope")
    assert tree.scan().pod_finding(UID, frozenset({ONE})) is Finding.CLEAN
    assert tree.scan().pod_finding(UID) is Finding.HELD


def test_a_pods_group_without_processes_is_still_one(tree: Tree) -> None:
    tree.group(SLICE)
    assert tree.scan().pod_finding(UID) is Finding.HELD


def test_containers_outside_of_pods(tree: Tree) -> None:
    tree.group(f"k8s.io/{ONE}", populated=True)
    tree.group(f"system.slice/docker-{TWO}.scope", populated=True)
    tree.group(f"system.slice/crio-conmon-{TWO}.scope", populated=True)
    assert {(group.container_id, group.pod_uid) for group in tree.scan().containers} == {(ONE, ""), (TWO, "")}


def test_what_a_container_made_below_its_own_group_is_its_own(tree: Tree) -> None:
    tree.group(f"docker/{ONE}")
    tree.group(f"docker/{ONE}/kubepods/pod{UID}")
    found = tree.scan()
    assert (found.pod_uids, [group.container_id for group in found.containers]) == (frozenset(), [ONE])


def test_processes_below_a_containers_group_populate_it(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 1)
    tree.group(f"docker/{ONE}")
    assert tree.scan().containers[0].is_populated is False
    tree.group(f"docker/{ONE}/init.scope")
    tree.group(f"docker/{ONE}/init.scope/deeper", populated=True)
    assert tree.scan().containers[0].is_populated is True


def test_one_hierarchy_of_version_1_is_enough_to_count(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 1)
    (tmp_path / f"memory/docker/{ONE}").mkdir(parents=True)
    (tmp_path / f"memory/docker/{ONE}/cgroup.procs").write_text("12\n")
    (tmp_path / f"pids/docker/{ONE}").mkdir(parents=True)
    (tmp_path / f"pids/docker/{ONE}/cgroup.procs").write_text("")
    assert [group.is_populated for group in tree.scan().containers] == [True]


def test_without_a_hierarchy_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    found = scan_cgroups(str(tmp_path))
    assert ([doubt.code for doubt in found.doubts], found.state) == ([CgroupDoubt.NOT_MOUNTED], SourceState.UNREADABLE)
    assert found.pod_finding(UID) is Finding.UNKNOWN


def test_a_tree_that_is_too_deep_is_doubt(tree: Tree) -> None:
    tree.group("/".join("x" * 20))
    found = tree.scan()
    assert ({doubt.code for doubt in found.doubts}, found.pod_finding(UID)) == ({CgroupDoubt.TOO_DEEP}, Finding.UNKNOWN)


def test_too_many_groups_are_doubt(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devward.cluster.cgroups._MAX_GROUPS", 3)
    for number in range(5):
        tree.group(f"group{number}")
    found = tree.scan()
    assert ([doubt.code for doubt in found.doubts], found.state) == ([CgroupDoubt.TOO_MANY_GROUPS], SourceState.UNREADABLE)


#: What systemd leaves to a user.
OF_A_USER = "user.slice/user-1000.slice/user@1000.service"


@needs_root
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(["/".join("x" * 20)], id="too deep"),
        pytest.param([f"group{number}" for number in range(20)], id="too many"),
        pytest.param([f"pod{UID}"], id="a Pod's"),
        pytest.param([f"kubepods/pod{UID}/{ONE}"], id="a Pod's with a container"),
        pytest.param([f"user.slice/libpod-{ONE}.scope"], id="a container's"),
    ],
)
def test_what_a_user_makes_in_its_own_groups_is_not_seen(tree: Tree, made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devward.cluster.cgroups._MAX_GROUPS", 15)
    tree.group(f"kubepods/pod{UID.replace('0', 'a')}")
    for path in made:
        tree.group(f"{OF_A_USER}/{path}", populated=True)
    assert tree.scan() != (clean := CgroupScan(SourceState.READ, frozenset({UID.replace("0", "a")})))
    for hierarchy in tree.hierarchies:
        for directory, _, _ in os.walk(hierarchy / OF_A_USER):
            os.chown(directory, 1000, 1000)
    assert tree.scan() == clean


@needs_root
def test_a_container_that_owns_its_group_is_seen(tree: Tree) -> None:
    tree.group(f"{SLICE}/cri-containerd-{ONE}.scope", populated=True)
    for hierarchy in tree.hierarchies:
        os.chown(hierarchy / SLICE / f"cri-containerd-{ONE}.scope", 65534, 65534)
    assert tree.scan().pod_finding(UID, frozenset()) is Finding.HELD


@needs_root
@pytest.mark.parametrize("whole", [True, False])
def test_the_root_of_the_tree_may_be_another_users(tree: Tree, whole: bool) -> None:
    tree.group(f"{SLICE}/cri-containerd-{ONE}.scope", populated=True)
    for hierarchy in tree.hierarchies:
        for directory in [path for path, _, _ in os.walk(hierarchy)] if whole else [hierarchy]:
            os.chown(directory, 65534, 65534)
    assert tree.scan().pod_finding(UID, frozenset()) is Finding.HELD


@needs_non_root
def test_a_group_that_cannot_be_read_is_doubt(tree: Tree) -> None:
    tree.group("closed")
    closed = tree.hierarchies[0] / "closed"
    closed.chmod(0)
    found = tree.scan()
    closed.chmod(0o700)
    assert [doubt.code for doubt in found.doubts] == [CgroupDoubt.GROUP_UNREADABLE]


def test_a_group_that_cannot_be_listed_leaves_every_pod_in_doubt(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.group("closed")
    real = os.scandir

    def scandir(path: str) -> object:
        if path.endswith("/closed"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = tree.scan()
    assert {doubt.code for doubt in found.doubts} == {CgroupDoubt.GROUP_UNREADABLE}
    assert (found.state, found.pod_finding(UID)) == (SourceState.UNREADABLE, Finding.UNKNOWN)


def test_a_group_whose_processes_cannot_be_listed_is_not_known_to_be_empty(tree: Tree) -> None:
    tree.group(f"kubepods/pod{UID}/{ONE}")
    for hierarchy in tree.hierarchies:
        for name in ("cgroup.procs", "cgroup.events"):
            file = hierarchy / f"kubepods/pod{UID}/{ONE}/{name}"
            file.unlink(missing_ok=True)
            file.mkdir()
    found = tree.scan()
    assert [group.is_populated for group in found.containers] == [None]
    assert found.pod_finding(UID, frozenset()) is Finding.HELD


def test_a_group_that_is_gone_has_no_processes(tmp_path: Path) -> None:
    assert is_populated(str(tmp_path / "gone")) is False


def test_the_hosts_own_groups_are_read() -> None:
    assert scan_cgroups().state is SourceState.READ
