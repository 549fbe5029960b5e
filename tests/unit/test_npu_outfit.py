"""What a host has of the nodes and files that containers with an NPU need, read from a scratch host."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from devward.cluster import kubelet_signs
from devward.npu import outfit
from devward.npu.document import NOT_LOOKED_FOR, Outfit
from devward.npu.outfit import BASE_PATHS, LIST_DIRECTORY, is_mountable, read_outfit
from devward.reasons import Reason

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: device nodes")
LIBRARIES = "/usr/local/Ascend/driver/lib64"


class Host:
    """A host below a directory."""

    def __init__(self, root: Path) -> None:
        self.root, self.devices, self.sysfs = root / "root", root / "dev", root / "sys"
        self.proc = root / "proc"
        for directory in (self.root, self.devices, self.sysfs / "dev/char", self.proc / "net"):
            directory.mkdir(parents=True)
        (self.proc / "net/unix").write_text("Num       RefCount Protocol Flags    Type St Inode Path\n")
        self.process("1", "systemd")

    def node(self, name: str, minor: int, kernel_name: str | None = None) -> None:
        path = self.devices / name
        path.parent.mkdir(exist_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(240, minor))
        (self.sysfs / f"dev/char/240:{minor}").symlink_to(f"../../devices/{kernel_name or path.name}")

    def file(self, path: str, content: str = "") -> Path:
        made = self.root / path.lstrip("/")
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(content)
        made.chmod(0o644)
        return made

    def process(self, pid: str, command: str, users: tuple[int, int] | None = None) -> None:
        """Add a process; its users, real and effective, are ours by default."""
        real, effective = users or (os.getuid(), os.geteuid())
        (self.proc / pid).mkdir()
        (self.proc / pid / "comm").write_text(f"{command}\n")
        (self.proc / pid / "status").write_text(f"Name:\t{command}\nUid:\t{real}\t{effective}\t{effective}\t{effective}\n")

    def directory(self, path: str) -> None:
        (self.root / path.lstrip("/")).mkdir(parents=True)

    def list(self, content: str, name: str = "base.list") -> Path:
        return self.file(f"{LIST_DIRECTORY}/{name}", content)

    def read(self) -> Outfit:
        return read_outfit(str(self.root), str(self.devices), str(self.sysfs), str(self.proc))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_host_without_anything_has_nothing(host: Host) -> None:
    assert host.read() == Outfit()


# --- nodes ----------------------------------------------------------------------------------------------------------------
@needs_root
def test_nodes_are_those_that_the_kernel_calls_so(host: Host) -> None:
    host.node("davinci_manager", 1)
    host.node("devmm_svm", 2)
    host.node("uburma/udma0", 3, "uburma!udma0")
    host.node("ummu/tid", 4)
    host.node("hisi_hdc", 5, "another")
    os.mknod(host.devices / "dvpp_cmdlist", stat.S_IFCHR | 0o600, os.makedev(241, 1))
    (host.devices / "sys").write_text("no device")
    (host.devices / "svm0").symlink_to("devmm_svm")
    os.mknod(host.devices / "vdec", stat.S_IFBLK | 0o600, os.makedev(240, 7))
    (host.sysfs / "dev/char/240:7").symlink_to("../../devices/vdec")
    host.node("davinci0", 6)
    found = host.read()
    assert found.nodes == {"davinci_manager", "devmm_svm", "uburma/udma0", "ummu/tid"}
    assert {(problem.code, problem.subject) for problem in found.problems} == {
        (Reason.NPU_NODE_MISMATCH, f"/dev/{name}") for name in ("hisi_hdc", "dvpp_cmdlist", "sys", "svm0", "vdec")
    }


@needs_root
def test_of_a_shared_directory_a_bounded_number_is_taken(host: Host) -> None:
    for number in range(outfit.DIRECTORY_LIMIT + 10):
        host.node(f"uburma/u{number:04d}", number)
    host.node("ummu/bad name", 1000)
    assert len(host.read().nodes) == outfit.DIRECTORY_LIMIT


# --- mounts ---------------------------------------------------------------------------------------------------------------
def test_without_lists_the_driver_s_usual_places_are_mounted_where_they_exist(host: Host) -> None:
    host.directory(f"{LIBRARIES}/common")
    host.file("/usr/local/bin/npu-smi")
    host.file("/etc/hccl_rootinfo.json")
    found = host.read()
    assert found.mounts == (LIBRARIES, "/usr/local/bin/npu-smi", "/etc/hccl_rootinfo.json")
    assert found.libraries == (f"{LIBRARIES}/common",)
    host.directory(LIST_DIRECTORY)
    assert host.read() == found, "an empty directory is no list"


def test_lists_replace_the_usual_places(host: Host) -> None:
    host.file("/opt/a")
    host.directory("/opt/b")
    host.file("/usr/local/bin/npu-smi")
    host.list("# what is needed\n\n/opt/a\n  /opt/b  \n/opt/missing\n", "base.list")
    host.list("/opt/a\n/usr/local/bin/npu-smi", "more.list")
    host.list("/usr/local/dcmi", "not-a-list.txt")
    host.directory("/usr/local/dcmi")
    assert host.read() == Outfit(mounts=("/opt/a", "/opt/b", "/usr/local/bin/npu-smi"))


@pytest.mark.parametrize("line", ["relative", "/a/../b", "/a/./b", "/a//b", "/", "//a", "/a\x01b", "/ä", "/a/", "/" + "x" * 1024])
def test_a_line_that_is_no_plain_path_is_told_and_left_out(host: Host, line: str) -> None:
    host.file("/opt/a")
    host.list(f"/opt/a\n{line}\n")
    found = host.read()
    assert found.mounts == ("/opt/a",)
    (problem,) = found.problems
    assert (problem.code, problem.subject) == (Reason.NPU_MOUNTS_UNREADABLE, f"{LIST_DIRECTORY}/base.list")
    assert problem.text.endswith("path: 2).")
    assert not is_mountable(line)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_list_that_others_may_write_is_not_used(host: Host, mode: int) -> None:
    host.file("/etc/shadow")
    host.list("/etc/shadow\n").chmod(mode)
    found = host.read()
    assert (found.mounts, found.mounts_known, found.unread) == ((), False, f"{LIST_DIRECTORY}/base.list")
    assert [problem.code for problem in found.problems] == [Reason.NPU_MOUNTS_UNREADABLE]
    assert "others than root" in found.problems[0].text


def test_lists_in_a_directory_that_others_may_write_are_not_used(host: Host) -> None:
    host.file("/etc/shadow")
    host.list("/etc/shadow\n").parent.chmod(0o777)
    found = host.read()
    assert found.mounts == ()
    assert [problem.subject for problem in found.problems] == [LIST_DIRECTORY]


@needs_root
def test_a_list_of_another_owner_is_not_used(host: Host) -> None:
    host.file("/etc/shadow")
    os.chown(host.list("/etc/shadow\n"), 1000, 1000)
    assert host.read().mounts == ()


def test_a_list_that_is_no_regular_file_is_not_used_and_never_waited_for(host: Host) -> None:
    host.file("/opt/a")
    host.list("/opt/a\n", "real.list")
    directory = host.root / LIST_DIRECTORY.lstrip("/")
    os.mkfifo(directory / "fifo.list")
    (directory / "link.list").symlink_to("real.list")
    (directory / "directory.list").mkdir()
    host.list("/opt/a\n" * 20_000, "long.list")
    found = host.read()
    assert found.mounts == ("/opt/a",)
    assert {problem.subject for problem in found.problems} == {
        f"{LIST_DIRECTORY}/{name}.list" for name in ("fifo", "link", "directory", "long")
    }


def test_lists_and_paths_are_bounded(host: Host) -> None:
    for number in range(outfit.LIST_COUNT + 1):
        host.list("\n".join(f"/opt/{number}/{path}" for path in range(20)), f"{number:03d}.list")
    found = host.read()
    assert found.mounts == ()
    assert len(found.problems) == 2
    assert all(problem.subject == LIST_DIRECTORY for problem in found.problems)


def test_the_characters_of_all_paths_are_bounded(host: Host) -> None:
    host.directory("/opt")
    paths = ["/opt", *(f"/{number:02d}{'x' * 900}" for number in range(30))]
    for path in paths[1:]:
        (host.root / path[1:255]).touch()
    host.list("\n".join(paths))
    found = host.read()
    assert found.mounts == ("/opt",)
    assert "of 31 paths the first 19 are used" in found.problems[0].text


def test_what_is_neither_file_nor_directory_is_not_mounted(host: Host) -> None:
    os.mkfifo(host.root / "fifo")
    host.list("/fifo\n")
    assert host.read().mounts == ()


# --- a kubelet --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["kubelet", "k3s-server", "kubelite"])
def test_a_kubelet_shows_by_its_process(host: Host, name: str) -> None:
    for pid, comm in (("77", name), ("self", "kubelet")):
        host.process(pid, comm)
    (host.proc / "78").mkdir()  # ended since it was listed
    assert host.read().kubelet == f"process 77, {name}"


@needs_root
@pytest.mark.parametrize("users", [(65533, 65533), (65533, 0), (0, 65533)])
def test_what_is_not_root_s_is_no_kubelet(host: Host, users: tuple[int, int]) -> None:
    # The directory in /proc is root's all the same where the process may not be dumped.
    host.process("77", "kubelet", users)
    assert host.read().kubelet == ""


def test_a_process_whose_user_is_not_told_counts_as_a_kubelet(host: Host) -> None:
    host.process("77", "kubelet")
    (host.proc / "77/status").write_text("Name:\tkubelet\n")
    assert host.read().kubelet == f"{host.proc}/77/status: Bad message"


def test_a_kubelet_shows_by_its_socket(host: Host) -> None:
    host.file(kubelet_signs.SOCKET)
    assert host.read().kubelet == kubelet_signs.SOCKET


@needs_root
def test_what_cannot_be_read_counts_as_a_kubelet(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, _: int) -> bytes:
        raise PermissionError(13, "Permission denied", path)

    (host.proc / "77").mkdir()
    monkeypatch.setattr(kubelet_signs, "read_all", refuse)
    assert host.read().kubelet == f"{host.proc}/77/comm: Permission denied"


def test_where_processes_are_hidden_one_may_be_a_kubelet(host: Host) -> None:
    shutil.rmtree(host.proc / "1")
    host.process("500", "devwardd")
    assert host.read().kubelet == f"{host.proc}: processes are hidden"


def test_where_nothing_is_pinned_no_kubelet_is_looked_for(host: Host) -> None:
    assert read_outfit(str(host.root), str(host.devices), str(host.sysfs), "").kubelet == NOT_LOOKED_FOR


def test_the_usual_places_are_plain_paths() -> None:
    assert all(map(is_mountable, (*BASE_PATHS, *outfit.MORE_PATHS, *outfit.LIBRARY_DIRECTORIES)))
