"""Drivers for dynamic resource allocation, by the kubelet's files: every name, and nothing missed that is there and cannot be read."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from devward.cluster import drivers
from devward.cluster.drivers import REGISTRY, STATE, read_drivers
from devward.cluster.managers import Drivers
from sim.descriptors import open_descriptors, opened_since
from sim.dra_checkpoint import content, entry, sealed
from sim.patience import must_not_block

GPU, NPU = "gpu.example.com", "npu.huawei.com"
needs_non_root = pytest.mark.skipif(os.geteuid() == 0, reason="needs non-root: permissions bind")


class Root:
    """The kubelet's root directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registry = directory / REGISTRY

    def state(self, *names: str) -> Path:
        """Write what drivers prepared."""
        path = self.directory / STATE
        path.write_bytes(sealed(content(entry(*names))))
        return path

    def plugin(self, name: str) -> Path:
        """Add the socket of a plugin."""
        path = self.registry / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            # The path of a socket is short; that of a test is not.
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                listener.bind(f"/proc/self/fd/{descriptor}/{path.name}")
            finally:
                os.close(descriptor)
        return path

    def read(self) -> Drivers:
        with must_not_block():
            return read_drivers(str(self.directory))

    def names(self) -> frozenset[str]:
        """The names, where all could be read."""
        found = self.read()
        assert (found.unreadable, found.problem) == (False, "")
        return found.names


@pytest.fixture
def root(tmp_path: Path) -> Root:
    (tmp_path / "kubelet").mkdir()
    return Root(tmp_path / "kubelet")


def test_neither_is_there(root: Root) -> None:
    assert root.read() == Drivers()


def test_drivers_are_those_with_claims_and_those_that_are_there(root: Root) -> None:
    root.state(GPU)
    assert root.names() == {GPU}
    root.plugin(f"{NPU}-reg.sock")
    assert root.names() == {GPU, NPU}
    (root.directory / STATE).unlink()
    assert root.names() == {NPU}


@pytest.mark.parametrize(
    ("name", "driver"),
    [
        ("npu.huawei.com-reg.sock", "npu.huawei.com"),
        ("npu.huawei.com.sock", "npu.huawei.com"),
        ("npu.huawei.com", "npu.huawei.com"),
        # Of a rolling update, with the UID of its Pod (k8s.io/dynamic-resource-allocation/kubeletplugin).
        ("npu.huawei.com-0f8fad5b-d9cb-469f-a165-70867728950e-reg.sock", "npu.huawei.com-0f8fad5b-d9cb-469f-a165-70867728950e"),
        ("below/npu.huawei.com/reg.sock", "reg"),
        ("below/.hidden/npu.huawei.com-reg.sock", "npu.huawei.com"),
        ("a\nb-reg.sock", "a\nb"),
    ],
)
def test_a_plugin_is_called_after_its_socket(root: Root, name: str, driver: str) -> None:
    root.plugin(name)
    assert root.names() == {driver}


@pytest.mark.parametrize("name", ["csi.huawei.com-reg.sock", "csi.huawei.com-1-reg.sock", ".npu.huawei.com-reg.sock"])
def test_storage_and_what_is_hidden_is_none(root: Root, name: str) -> None:
    root.plugin(name)
    assert root.names() == frozenset()
    root.plugin("csi.huawei.company.example-reg.sock")
    root.plugin("x.csi.huawei.com-reg.sock")
    assert root.names() == {"csi.huawei.company.example", "x.csi.huawei.com"}


def test_storage_with_claims_is_a_driver_all_the_same(root: Root) -> None:
    root.state("csi.huawei.com")
    assert root.names() == {"csi.huawei.com"}


def test_the_kubelet_takes_nothing_but_sockets_for_plugins(root: Root) -> None:
    root.registry.mkdir()
    (root.registry / "npu.huawei.com-reg.sock").write_text("")
    os.mkfifo(root.registry / "ascend-reg.sock")
    assert root.names() == frozenset()


# --- what cannot be read ---


@pytest.mark.parametrize("kind", ["missing", "file", "link", "fifo"])
def test_a_root_directory_that_is_none(root: Root, kind: str) -> None:
    place = root.directory.parent / "other"
    if kind == "file":
        place.write_text("")
    elif kind == "link":
        place.symlink_to(root.directory)
    elif kind == "fifo":
        os.mkfifo(place)
    with must_not_block():
        found = read_drivers(str(place))
    assert (found.names, found.unreadable) == (frozenset(), True)
    assert found.problem.startswith(f"{place}: ")


@needs_non_root
def test_a_root_directory_behind_a_process_that_may_not_be_traced() -> None:
    found = read_drivers("/proc/1/root/var/lib/kubelet")
    assert found == Drivers(unreadable=True, problem=f"/proc/1/root/var/lib/kubelet: {os.strerror(errno.EACCES)}")


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"example", b"exomple"))


def linked(path: Path) -> None:
    path.rename(path.with_suffix(".other"))
    path.symlink_to(path.with_suffix(".other"))


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def large(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize("damage", [damaged, linked, dangling, fifo, directory, large])
def test_a_state_that_cannot_be_read_leaves_the_plugins(root: Root, damage: object) -> None:
    damage(root.state(GPU))  # type: ignore[operator]
    root.plugin(f"{NPU}-reg.sock")
    found = root.read()
    assert (found.names, found.unreadable) == ({NPU}, True)
    assert found.problem.startswith(f"{STATE}: ")


@needs_non_root
def test_a_state_that_may_not_be_read(root: Root) -> None:
    root.state(GPU).chmod(0)
    assert root.read() == Drivers(unreadable=True, problem=f"{STATE}: {os.strerror(errno.EACCES)}")


@pytest.mark.parametrize("kind", ["file", "link", "fifo"])
def test_a_registry_that_is_none_leaves_the_state(root: Root, kind: str) -> None:
    root.state(GPU)
    if kind == "file":
        root.registry.write_text("")
    elif kind == "link":
        root.registry.symlink_to(root.directory.parent)
    else:
        os.mkfifo(root.registry)
    found = root.read()
    assert (found.names, found.unreadable) == ({GPU}, True)
    assert found.problem.startswith(f"{REGISTRY}: ")


@needs_non_root
def test_a_directory_that_may_not_be_read_leaves_the_others(root: Root) -> None:
    root.plugin("closed/a-reg.sock")
    root.plugin(f"open/{NPU}-reg.sock")
    (root.registry / "closed").chmod(0)
    try:
        found = root.read()
    finally:
        (root.registry / "closed").chmod(0o755)
    assert found == Drivers(frozenset({NPU}), unreadable=True, problem=f"{REGISTRY}/closed: {os.strerror(errno.EACCES)}")


def test_a_link_is_not_followed_and_counts_by_its_name(root: Root, tmp_path: Path) -> None:
    root.plugin("gpu.example.com-reg.sock")
    (root.registry / f"{NPU}-reg.sock").symlink_to(tmp_path)
    (root.registry / ".hidden").symlink_to(tmp_path)
    assert root.read() == Drivers(frozenset({GPU, NPU}), unreadable=True, problem=f"{REGISTRY}/{NPU}-reg.sock: a link")


def test_directories_are_followed_down_to_a_bound(root: Root) -> None:
    root.plugin("/".join([*"12345678", "deep-reg.sock"]))
    assert root.names() == {"deep"}
    root.plugin("/".join([*"123456789", f"{NPU}-reg.sock"]))
    found = root.read()
    assert (found.names, found.unreadable) == ({"deep"}, True)
    assert found.problem.endswith("/9: too deep")


def test_entries_are_read_up_to_a_bound(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "_MAX_ENTRIES", 3)
    for number in range(3):
        root.plugin(f"plugin-{number}-reg.sock")
    assert len(root.names()) == 3
    root.plugin(f"{NPU}-reg.sock")
    found = root.read()
    assert (len(found.names), found) == (3, Drivers(found.names, unreadable=True, problem=f"{REGISTRY}: too many entries"))


def test_only_the_first_problems_are_named(root: Root) -> None:
    damaged(root.state(GPU))
    root.registry.mkdir()
    for number in range(5):
        (root.registry / f"link-{number}").symlink_to("nowhere")
    assert root.read().problem.count("; ") == 2


@pytest.mark.parametrize("failing", ["scandir", "stat"])
def test_a_disk_that_fails(root: Root, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    root.plugin(f"{NPU}-reg.sock")
    root.state(GPU)

    def fails(*_arguments: object, **_settings: object) -> None:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(f"os.{failing}", fails)
        found = root.read()
    assert found.unreadable
    assert os.strerror(errno.EIO) in found.problem


@pytest.mark.parametrize(("error", "is_unreadable"), [(errno.EACCES, True), (errno.EIO, True), (errno.ENOENT, False)])
def test_an_entry_that_cannot_be_looked_at_may_be_any_plugin_but_one_that_has_gone_is_none(
    root: Root, monkeypatch: pytest.MonkeyPatch, error: int, is_unreadable: bool
) -> None:
    class Entry:
        name = "odd-reg.sock"

        def stat(self, *, follow_symlinks: bool) -> os.stat_result:
            assert not follow_symlinks
            raise OSError(error, os.strerror(error))

    root.plugin(f"{NPU}-reg.sock")
    actual = os.scandir

    @contextlib.contextmanager
    def scandir(directory: int) -> Iterator[list[object]]:
        with actual(directory) as entries:
            yield [Entry(), *entries]

    with monkeypatch.context() as patched:
        patched.setattr("os.scandir", scandir)
        found = root.read()
    assert (found.names, found.unreadable) == ({NPU}, is_unreadable)
    assert (f"{REGISTRY}/odd-reg.sock: {os.strerror(error)}" == found.problem) is is_unreadable


def test_nothing_is_written_and_no_descriptor_stays(root: Root) -> None:
    damaged(root.state(GPU))
    root.plugin(f"below/{NPU}-reg.sock")

    def everything() -> list[tuple[str, int, int]]:
        return sorted((str(path), path.lstat().st_ino, path.lstat().st_mtime_ns) for path in root.directory.rglob("*"))

    before, held = everything(), open_descriptors()
    root.read()
    assert everything() == before
    assert not opened_since(held)
