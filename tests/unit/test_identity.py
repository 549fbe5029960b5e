"""Whether a node is the device that it claims to be: rules R16 to R18 on scratch directories, private mounts and the real /dev/kvm."""

import errno
import os
import re
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from devward.devices import identity
from devward.devices.health import NodeFacts
from devward.devices.identity import IdentifiedNode, drift, identify, kernel_number, present
from devward.model import DeviceKind, Identity
from devward.reasons import Reason
from sim.descriptors import descriptors_left, open_descriptors, opened_since
from sim.mount_namespace import mount, run_in_mount_namespace, umount

KVM = DeviceKind.KVM
MSHV = DeviceKind.MSHV

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: device nodes and mounts")
needs_kvm = pytest.mark.skipif(not os.path.exists("/dev/kvm"), reason="needs /dev/kvm: looked at only")


class Host:
    """A directory in /dev's place and a tree in /sys's."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "dev"
        self.sysfs = root / "sys"
        self.node = self.directory / "kvm"
        self.directory.mkdir(exist_ok=True)
        self.driver(KVM, "10:232")

    def driver(self, kind: DeviceKind, number: str | None) -> None:
        """Let the kernel have a device, or have none."""
        directory = self.sysfs / "class/misc" / kind
        directory.mkdir(parents=True, exist_ok=True)
        if number is None:
            (directory / "dev").unlink()
        else:
            (directory / "dev").write_text(f"{number}\n")

    def mknod(self, name: str = "kvm", number: str = "10:232", kind: int = stat.S_IFCHR, mode: int = 0o660) -> None:
        os.mknod(self.directory / name, kind | mode, os.makedev(*map(int, number.split(":"))))
        os.chmod(self.directory / name, mode)

    def identify(self, kind: DeviceKind = KVM) -> IdentifiedNode:
        return identify(kind, device_directory=str(self.directory), sysfs=str(self.sysfs))

    def verdict(self, kind: DeviceKind = KVM) -> tuple[Identity, Reason, str]:
        """Return what a look says; only a valid node keeps its descriptor."""
        before = open_descriptors()
        with self.identify(kind) as node:
            verdict = node.verdict
            assert (node.descriptor >= 0) is (verdict.identity is Identity.VALID)
        assert node.descriptor == -1
        assert not opened_since(before)
        return verdict.identity, verdict.reason, verdict.detail


@pytest.fixture(name="host")
def _host(tmp_path: Path) -> Host:
    return Host(tmp_path)


# --- not there -------------------------------------------------------------------------------------------------------


def test_r18_no_node_and_no_device(host: Host) -> None:
    host.driver(KVM, None)
    assert host.verdict() == (Identity.MISSING, Reason.DEVICE_MISSING, "")


def test_r18_a_device_in_sysfs_without_a_node(host: Host) -> None:
    assert host.verdict() == (Identity.MISSING, Reason.DEVICE_MISSING, "the kernel has the device as 10:232, but there is no node")


def test_present_means_a_node_whatever_it_is_or_a_device_in_sysfs(host: Host) -> None:
    def seen(kind: DeviceKind) -> bool:
        return present(kind, device_directory=str(host.directory), sysfs=str(host.sysfs))

    assert seen(KVM)
    assert not seen(MSHV)
    host.driver(KVM, None)
    assert not seen(KVM)
    host.node.symlink_to("nowhere")
    assert seen(KVM)
    host.node.unlink()
    host.node.write_text("")
    assert seen(KVM)


# --- R17: not a character device, or a link --------------------------------------------------------------------------


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    ("make", "reason", "detail"),
    [
        (lambda path: path.symlink_to("/dev/null"), Reason.DEVICE_SYMLINK, ""),
        (lambda path: path.symlink_to("nowhere"), Reason.DEVICE_SYMLINK, ""),
        (lambda path: path.symlink_to("kvm"), Reason.DEVICE_SYMLINK, ""),
        (lambda path: path.write_text(""), Reason.DEVICE_NOT_CHAR, "it is a regular file"),
        (Path.mkdir, Reason.DEVICE_NOT_CHAR, "it is a directory"),
        (fifo, Reason.DEVICE_NOT_CHAR, "it is a FIFO"),
        (unix_socket, Reason.DEVICE_NOT_CHAR, "it is a socket"),
    ],
    ids=["symlink", "dangling", "loop", "regular", "directory", "fifo", "socket"],
)
def test_r17_what_is_not_a_character_device(host: Host, make: Callable[[Path], object], reason: Reason, detail: str) -> None:
    make(host.node)
    assert host.verdict() == (Identity.INVALID, reason, detail)


@needs_root
def test_r17_a_link_to_the_very_device_is_refused(host: Host) -> None:
    host.mknod("real")
    host.node.symlink_to("real")
    assert host.verdict() == (Identity.INVALID, Reason.DEVICE_SYMLINK, "")


@needs_root
def test_r17_a_block_device_with_the_right_number(host: Host) -> None:
    host.mknod(kind=stat.S_IFBLK)
    assert host.verdict() == (Identity.INVALID, Reason.DEVICE_NOT_CHAR, "it is a block device")


# --- R17: numbers ----------------------------------------------------------------------------------------------------


@needs_root
def test_a_fresh_node_with_the_kernels_number_is_valid(host: Host) -> None:
    host.mknod()
    with host.identify() as node:
        status = os.stat(host.node)
        assert node.verdict.identity is Identity.VALID
        assert node.verdict.facts == NodeFacts(status.st_dev, status.st_ino, "10:232", 0o660, 0, 0, 1, ())
        assert os.fstat(node.descriptor).st_ino == status.st_ino
        assert not os.get_inheritable(node.descriptor)


@needs_root
def test_a_look_never_opens_the_device(host: Host) -> None:
    """Opening may load modules, and may hang in the driver: a descriptor of O_PATH does neither."""
    host.mknod()
    with host.identify() as node:
        flags = int(re.findall(r"flags:\s+(\d+)", Path(f"/proc/self/fdinfo/{node.descriptor}").read_text())[0], 8)
        assert flags & os.O_PATH
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.read(node.descriptor, 1)


@needs_root
def test_r17_a_number_that_is_not_kvms(host: Host) -> None:
    host.mknod(number="1:3")
    assert host.verdict() == (Identity.INVALID, Reason.DEVICE_NUMBER_MISMATCH, "it is 1:3, kvm is always 10:232")


@needs_root
def test_r17_kvms_number_is_fixed_whatever_sysfs_says(host: Host) -> None:
    host.driver(KVM, "1:3")
    host.mknod(number="1:3")
    assert host.verdict() == (Identity.INVALID, Reason.DEVICE_NUMBER_MISMATCH, "it is 1:3, kvm is always 10:232")
    host.node.unlink()
    host.mknod()
    assert host.verdict() == (Identity.INVALID, Reason.DEVICE_NUMBER_MISMATCH, "it is 10:232, the kernel has 1:3")


@needs_root
def test_a_static_node_without_a_driver(host: Host) -> None:
    """kmod and tmpfiles make /dev/kvm before any driver is there (static-nodes-permissions.conf)."""
    host.driver(KVM, None)
    host.mknod()
    assert host.verdict() == (Identity.INVALID, Reason.DEVICE_NO_DRIVER, "")


@needs_root
@pytest.mark.parametrize("number", ["10:63", "10:256", "10:259", "10:1048575"])
def test_r17_mshv_has_the_number_that_the_kernel_gave_it(host: Host, number: str) -> None:
    """Dynamic minors begin at 256 on newer kernels, so eight bits are not enough."""
    host.driver(MSHV, number)
    host.mknod("mshv", number)
    assert host.verdict(MSHV) == (Identity.VALID, Reason.OK, "")
    host.driver(MSHV, "10:255")
    assert host.verdict(MSHV) == (Identity.INVALID, Reason.DEVICE_NUMBER_MISMATCH, f"it is {number}, the kernel has 10:255")


@needs_root
@pytest.mark.parametrize("content", ["", "\n", "10", "10:232:1", "-1:232", "\0", "ü", "10:232x" * 1000])
def test_r17_a_record_of_the_kernel_that_makes_no_sense_matches_nothing(host: Host, content: str) -> None:
    host.mknod()
    (host.sysfs / "class/misc/kvm/dev").write_text(content)
    assert host.verdict()[:2] == (Identity.INVALID, Reason.DEVICE_NUMBER_MISMATCH)


# --- R16, R17: another mount -----------------------------------------------------------------------------------------


def null_bound_over_the_node(root: str) -> None:
    host = Host(Path(root))
    mount("--bind", "/dev/null", str(host.node))
    assert host.verdict()[:2] == (Identity.INVALID, Reason.DEVICE_COVERED)
    umount(str(host.node))
    assert host.verdict() == (Identity.VALID, Reason.OK, "")


@needs_root
def test_r17_dev_null_mounted_over_the_node(host: Host) -> None:
    host.mknod()
    run_in_mount_namespace(null_bound_over_the_node, host.directory.parent)


def same_number_bound_over_the_node(root: str) -> None:
    """The other node has the same number, type, file system and directory: only the mount differs."""
    host = Host(Path(root))
    other = host.directory / "other"
    mount("--bind", str(other), str(host.node))
    assert os.stat(host.node).st_dev == os.stat(host.directory).st_dev
    assert os.stat(host.node).st_rdev == os.stat(other).st_rdev
    assert host.verdict() == (Identity.INVALID, Reason.DEVICE_COVERED, "it lies on another mount than its directory")


@needs_root
def test_r17_a_node_of_the_same_file_system_mounted_over_the_node(host: Host) -> None:
    host.mknod()
    host.mknod("other")
    run_in_mount_namespace(same_number_bound_over_the_node, host.directory.parent)


def node_bound_over_itself(root: str) -> None:
    host = Host(Path(root))
    mount("--bind", str(host.node), str(host.node))
    assert host.verdict()[:2] == (Identity.INVALID, Reason.DEVICE_COVERED)


@needs_root
def test_r17_the_node_mounted_over_itself(host: Host) -> None:
    host.mknod()
    run_in_mount_namespace(node_bound_over_itself, host.directory.parent)


def node_of_another_file_system(root: str) -> None:
    host = Host(Path(root))
    elsewhere = Path(root) / "elsewhere"
    elsewhere.mkdir()
    mount("-t", "tmpfs", "devward-test", str(elsewhere))
    os.mknod(elsewhere / "kvm", stat.S_IFCHR | 0o660, os.makedev(10, 232))
    host.node.write_text("")
    mount("--bind", str(elsewhere / "kvm"), str(host.node))
    assert os.stat(host.node).st_dev != os.stat(host.directory).st_dev
    assert host.verdict()[:2] == (Identity.INVALID, Reason.DEVICE_COVERED)


@needs_root
def test_r17_a_private_node_of_another_file_system_mounted_in_its_place(host: Host) -> None:
    run_in_mount_namespace(node_of_another_file_system, host.directory.parent)


def directory_mounted_over(root: str) -> None:
    host = Host(Path(root))
    mount("-t", "tmpfs", "devward-test", str(host.directory))
    assert host.verdict()[0] is Identity.MISSING
    host.mknod()
    assert host.verdict()[0] is Identity.VALID


@needs_root
def test_a_directory_that_is_mounted_over_is_looked_at_as_it_is_now(host: Host) -> None:
    host.mknod()
    run_in_mount_namespace(directory_mounted_over, host.directory.parent)


# --- the directory ---------------------------------------------------------------------------------------------------


@needs_root
def test_r17_a_directory_that_is_a_link_is_not_followed(host: Host) -> None:
    host.mknod()
    host.directory.rename(host.directory.with_name("elsewhere"))
    host.directory.symlink_to("elsewhere")
    identity_, reason, detail = host.verdict()
    assert (identity_, reason) == (Identity.INVALID, Reason.DEVICE_UNREADABLE)
    assert detail == f"{host.directory}: {os.strerror(errno.ENOTDIR)}"


def test_a_directory_that_is_missing(host: Host) -> None:
    host.directory.rmdir()
    assert host.verdict() == (Identity.INVALID, Reason.DEVICE_UNREADABLE, f"{host.directory}: {os.strerror(errno.ENOENT)}")


def unsearchable_directory(root: str) -> None:
    host = Host(Path(root))
    os.chmod(host.directory, 0o000)
    try:
        assert host.verdict() == (Identity.INVALID, Reason.DEVICE_UNREADABLE, os.strerror(errno.EACCES))
    finally:
        os.chmod(host.directory, 0o700)


def test_a_directory_that_may_not_be_searched(host: Host) -> None:
    host.node.write_text("")
    if os.geteuid() == 0:
        run_in_mount_namespace(unsearchable_directory, host.directory.parent, capabilities=False)
    else:
        unsearchable_directory(str(host.directory.parent))


def test_a_record_of_the_kernel_that_cannot_be_read_is_not_taken_for_no_driver(host: Host) -> None:
    (host.sysfs / "class/misc/kvm/dev").unlink()
    (host.sysfs / "class/misc/kvm/dev").mkdir()
    assert host.verdict() == (Identity.INVALID, Reason.DEVICE_UNREADABLE, f"{host.sysfs}: {os.strerror(errno.EISDIR)}")


# --- local resources -------------------------------------------------------------------------------------------------


def test_r15_a_look_without_descriptors_says_nothing_about_the_node(host: Host) -> None:
    """Whichever of the descriptors of a look cannot be had: it is neither missing, nor invalid, nor without a driver."""
    if os.geteuid() == 0:
        host.mknod()
        expected = Identity.VALID
    else:
        host.node.write_text("")
        expected = Identity.INVALID
    seen = []
    for free in range(6):
        with descriptors_left(free), host.identify() as node:
            seen.append((node.verdict.identity, node.verdict.reason, node.verdict.detail))
    unknown = [verdict for verdict in seen if verdict[0] is Identity.UNKNOWN]
    assert seen[-1][0] is expected
    assert len(unknown) == (3 if os.geteuid() == 0 else 2), "kernel record, directory and node, and for a device node its mount"
    assert {verdict[0] for verdict in seen} == {Identity.UNKNOWN, expected}
    assert {reason for _, reason, _ in unknown} == {Reason.PROBE_INCONCLUSIVE}
    assert all(detail.endswith(os.strerror(errno.EMFILE)) for _, _, detail in unknown)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("call", ["kernel_number", "_judge"])
def test_r15_other_limits_say_nothing_either(host: Host, monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    host.node.write_text("")

    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(identity, call, fail)
    assert host.verdict()[:2] == (Identity.UNKNOWN, Reason.PROBE_INCONCLUSIVE)


def test_a_device_that_goes_away_while_its_number_is_read_is_no_device(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr("builtins.open", fail)
    number = kernel_number(KVM, str(host.sysfs))
    monkeypatch.undo()
    assert number is None


# --- attributes and drift --------------------------------------------------------------------------------------------


@needs_root
def test_a_hard_link_is_valid_and_reported(host: Host) -> None:
    host.mknod()
    os.link(host.node, host.directory / "second")
    with host.identify() as node:
        assert node.verdict.identity is Identity.VALID
        assert node.verdict.facts is not None
        assert node.verdict.facts.links == 2
        assert drift(node.verdict.facts, mode=None, uid=None, gid=None) == ("the node has 2 names",)


@needs_root
def test_an_acl_is_valid_and_reported_name_by_name(host: Host) -> None:
    host.mknod()
    subprocess.run(["setfacl", "-m", "u:1000:rw,g:107:r,m::rw", str(host.node)], check=True)
    with host.identify() as node:
        assert node.verdict.identity is Identity.VALID
        assert node.verdict.facts is not None
        assert node.verdict.facts.acl == ("user:1000:rw-", "group:107:r--")
        assert drift(node.verdict.facts, mode=0o660, uid=0, gid=0) == ("an ACL grants user:1000:rw-, group:107:r--",)
        assert drift(node.verdict.facts, mode=None, uid=None, gid=None) == ()
    subprocess.run(["setfacl", "-b", str(host.node)], check=True)
    with host.identify() as node:
        assert node.verdict.facts is not None
        assert node.verdict.facts.acl == ()


def test_drift_names_each_difference() -> None:
    facts = NodeFacts(5, 100, "10:232", 0o666, 1, 2, 1, ())
    assert drift(facts, mode=0o666, uid=1, gid=2) == ()
    assert drift(facts, mode=None, uid=None, gid=None) == ()
    assert drift(facts, mode=0o660, uid=0, gid=0) == (
        "mode is 0666, 0660 is configured",
        "owner is 1, 0 is configured",
        "group is 2, 0 is configured",
    )


# --- the real device -------------------------------------------------------------------------------------------------


@needs_kvm
def test_r17_the_real_kvm_is_valid() -> None:
    status = os.stat("/dev/kvm")
    with identify(KVM) as node:
        assert (node.verdict.identity, node.verdict.reason, node.verdict.detail) == (Identity.VALID, Reason.OK, "")
        assert node.verdict.facts is not None
        assert (node.verdict.facts.inode, node.verdict.facts.number) == (status.st_ino, "10:232")
        assert node.verdict.facts.mode == stat.S_IMODE(status.st_mode)
    assert present(KVM)
    assert kernel_number(KVM) == "10:232"
