"""The probe child itself: rules R9, R10 and R22 against real devices, and with system calls that the kernel is made to fail."""

import asyncio
import errno
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from devward.devices import probe
from devward.devices.hypervisor import PROBE_PROGRAM
from sim import private_node, tracing
from sim.cgroups import DevicesGroup, has_pending_kill
from sim.held_time import until
from sim.tracing import TracedPython

KVM = "/dev/kvm"
KVM_NUMBER = "10:232"
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
HOLD = "delay_enter=600s"

needs_kvm = pytest.mark.skipif(not os.access(KVM, os.R_OK | os.W_OK), reason="needs /dev/kvm: and the right to open it")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: for device nodes, cgroups or capabilities")
#: The number of openat, and the place of KVM_CREATE_VM among the calls on the device.
OPENAT, CREATE = {"x86_64": ("257", 2), "aarch64": ("56", 3)}[os.uname().machine]


def command(descriptor: int | str, kind: str = "kvm", python: str = sys.executable) -> list[str]:
    return [python, "-I", "-S", "-E", PROBE_PROGRAM, kind, str(descriptor), "/run/devward-test"]


def answer(done: "subprocess.CompletedProcess[bytes]") -> dict[str, Any]:
    """Check that the child wrote one line and nothing else, and return it."""
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") == 1
    data = json.loads(done.stdout)
    assert list(data) == ["stage", "errno", "api"]
    assert isinstance(data, dict)
    return data


def ask(path: str, kind: str = "kvm", python: str = sys.executable, before: Sequence[str] = ()) -> dict[str, Any]:
    """Run the probe on a path."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        argv = [*before, *command(descriptor, kind, python)]
        return answer(subprocess.run(argv, check=False, capture_output=True, pass_fds=(descriptor,), timeout=60))
    finally:
        os.close(descriptor)


def ended(stage: str, number: int | None = None, api: int | None = None) -> dict[str, Any]:
    return {"stage": stage, "errno": number, "api": api}


# --- real devices ----------------------------------------------------------------------------------------------------


@needs_kvm
def test_r9_kvm_answers_and_creates_an_empty_vm() -> None:
    assert ask(KVM) == ended("done", api=12)


@needs_kvm
def test_r9_vm_and_device_are_closed_and_opened_as_guests_do(tmp_path: Path) -> None:
    traced = TracedPython(tmp_path, "-e", "trace=openat,ioctl,close")
    assert ask(KVM, python=traced.path) == ended("done", api=12)
    opened = next(number for number, line in enumerate(traced.lines()) if "/proc/self/fd/" in line)
    calls = traced.lines()[opened:]
    assert re.search(r"O_RDWR\|O_NOCTTY\|O_CLOEXEC\) = \d+$", calls[0]), calls[0]
    device = calls[0].rpartition("= ")[2]
    assert calls[1].startswith(f"ioctl({device}, KVM_GET_API_VERSION, 0)")
    created = next(line for line in calls if f"ioctl({device}, KVM_CREATE_VM" in line)
    vm = created.rpartition("= ")[2]
    closed = [line.partition(" ")[0] for line in calls[calls.index(created) + 1 :]]
    assert closed[:2] == [f"close({vm})", f"close({device})"]


def test_r10_mshv_is_only_opened(tmp_path: Path) -> None:
    traced = TracedPython(tmp_path, "-P", "/dev/full", "-e", "trace=ioctl,read,write,mmap")
    assert ask("/dev/full", kind="mshv", python=traced.path) == ended("done")
    assert traced.lines() == []


def test_null_device_is_no_hypervisor() -> None:
    assert ask("/dev/null") == ended("api", errno.ENOTTY)


@needs_root
@needs_kvm
def test_fresh_node_with_the_number_of_kvm_works(tmp_path: Path) -> None:
    """So that the number is what must be checked elsewhere (R18): the kernel does not care which node it is."""
    assert answer(private_node.run_with_node(tmp_path, KVM_NUMBER, command("FD"))) == ended("done", api=12)


@needs_root
def test_node_without_a_driver(tmp_path: Path) -> None:
    done = private_node.run_with_node(tmp_path, private_node.unused_misc_number(), command("FD"))
    assert answer(done) == ended("open", errno.ENODEV)


@needs_root
def test_node_of_a_major_that_nobody_has(tmp_path: Path) -> None:
    done = private_node.run_with_node(tmp_path, private_node.unused_major_number(), command("FD"))
    assert answer(done) == ended("open", errno.ENXIO)


@needs_root
def test_mode_that_denies(tmp_path: Path) -> None:
    done = private_node.run_with_node(tmp_path, KVM_NUMBER, [*NOBODY, *command("FD")])
    assert answer(done) == ended("open", errno.EACCES)


@needs_root
def test_mount_that_denies_devices(tmp_path: Path) -> None:
    done = private_node.run_with_node(tmp_path, KVM_NUMBER, command("FD"), options="nodev")
    assert answer(done) == ended("open", errno.EACCES)


def test_kvm_as_an_ordinary_user() -> None:
    if os.geteuid() == 0:
        pytest.skip("needs non-root: a user whom the mode may deny")
    if not Path(KVM).exists():
        pytest.skip("needs /dev/kvm: none here")
    allowed = os.access(KVM, os.R_OK | os.W_OK)
    assert ask(KVM) == (ended("done", api=12) if allowed else ended("open", errno.EACCES))


@needs_kvm
def test_want_of_descriptors() -> None:
    """Four are taken: input, outputs and the node. The fifth, which imports use in turn, is the device; the VM would be the sixth."""
    limited = (
        "import os, resource, sys\n"
        "os.dup2(int(sys.argv[1]), 3)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))\n"
        "os.closerange(4, 1024)\n"
        "os.execv(sys.argv[2], sys.argv[2:])\n"
    )
    descriptor = os.open(KVM, os.O_PATH)
    argv = [sys.executable, "-c", limited, str(descriptor), *command(3)]
    done = subprocess.run(argv, check=False, capture_output=True, pass_fds=(descriptor,), timeout=60)
    os.close(descriptor)
    assert answer(done) == ended("create", errno.EMFILE, api=12)


# --- what is not a device --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["regular", "directory", "fifo", "socket", "symlink"])
def test_descriptor_of_no_character_device_is_refused_unopened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "node"
    if kind == "regular":
        path.touch()
    elif kind == "directory":
        path.mkdir()
    elif kind == "symlink":
        path.symlink_to("/dev/null")
    else:
        os.mknod(path, stat.S_IFIFO if kind == "fifo" else stat.S_IFSOCK)
    traced = TracedPython(tmp_path, "-e", "trace=openat")
    assert ask(str(path), python=traced.path) == ended("identity")
    assert not [line for line in traced.lines() if "/proc/self/fd/" in line]


def test_descriptor_that_is_not_there() -> None:
    done = subprocess.run(command(77), check=False, capture_output=True, timeout=60)
    assert answer(done) == ended("identity", errno.EBADF)


def test_another_node_behind_the_reopened_descriptor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """This cannot happen by construction; the comparison stands in case the construction ever changes."""
    identified, other = os.open("/dev/null", os.O_PATH), os.open("/dev/zero", os.O_RDWR)
    monkeypatch.setattr(probe, "confine", lambda _kind: None)
    monkeypatch.setattr(probe.os, "open", lambda *_arguments: other)
    report = probe.Report()
    try:
        probe.probe("kvm", identified, report)
    finally:
        os.close(identified)
        os.close(other)
    assert (report.stage, report.errno, report.api) == ("identity", None, None)


@pytest.mark.parametrize("field", ["st_dev", "st_ino", "st_rdev"])
def test_every_part_of_the_identity_counts(field: str) -> None:
    class Status:
        st_dev, st_ino, st_rdev = 1, 2, 3

    other = Status()
    setattr(other, field, 99)
    assert probe.is_same_node(Status(), Status())  # type: ignore[arg-type]  # only these fields are read
    assert not probe.is_same_node(Status(), other)  # type: ignore[arg-type]  # only these fields are read


# --- failures that no machine has at hand ----------------------------------------------------------------------------


@needs_kvm
@pytest.mark.parametrize(
    ("injection", "expected"),
    [
        ("error=ENOTTY:when=1", ended("api", errno.ENOTTY)),
        ("error=EINTR:when=1", ended("api", errno.EINTR)),
        (f"error=EBUSY:when={CREATE}", ended("create", errno.EBUSY, 12)),
        (f"error=EIO:when={CREATE}", ended("create", errno.EIO, 12)),
        (f"error=EINVAL:when={CREATE}", ended("create", errno.EINVAL, 12)),
        (f"error=ENOMEM:when={CREATE}", ended("create", errno.ENOMEM, 12)),
    ],
)
def test_error_of_a_call(injection: str, expected: dict[str, Any], tmp_path: Path) -> None:
    traced = TracedPython(tmp_path, "-P", KVM, "-e", "trace=ioctl", "-e", f"inject=ioctl:{injection}")
    assert ask(KVM, python=traced.path) == expected


@needs_kvm
@pytest.mark.parametrize("version", [0, 11, 13])
def test_r9_no_vm_is_created_on_another_api_version(version: int, tmp_path: Path) -> None:
    traced = TracedPython(tmp_path, "-P", KVM, "-e", "trace=ioctl", "-e", f"inject=ioctl:retval={version}:when=1")
    assert ask(KVM, python=traced.path) == ended("api", api=version)
    assert len(traced.lines()) == 1


@pytest.mark.parametrize(
    ("machine", "limit", "expected"),
    [("x86_64", 48, 0), ("s390x", 48, 0), ("aarch64", 40, 40), ("aarch64", 36, 36), ("aarch64", 0, 0)],
)
def test_machine_type_on_arm64_is_the_hosts_limit(machine: str, limit: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def ioctl(descriptor: int, request: int, argument: int) -> int:
        calls.append((descriptor, request, argument))
        return limit

    monkeypatch.setattr(probe.fcntl, "ioctl", ioctl)
    assert probe.machine_type(5, machine) == expected
    assert calls == ([(5, 0xAE03, 165)] if machine == "aarch64" else [])


def test_arm64_asks_before_it_creates(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def ioctl(_descriptor: int, request: int, argument: int) -> int:
        calls.append((request, argument))
        return {0xAE00: 12, 0xAE03: 36, 0xAE01: os.open("/dev/null", os.O_RDONLY)}[request]

    monkeypatch.setattr(probe, "confine", lambda _kind: None)
    monkeypatch.setattr(probe.fcntl, "ioctl", ioctl)
    monkeypatch.setattr(probe.os, "uname", lambda: type("Uname", (), {"machine": "aarch64"}))
    descriptor = os.open("/dev/null", os.O_PATH)
    report = probe.Report()
    probe.probe("kvm", descriptor, report)
    os.close(descriptor)
    assert report.stage == "done"
    assert calls == [(0xAE00, 0), (0xAE03, 165), (0xAE01, 36)]


def test_unknown_kind_is_no_success() -> None:
    done = subprocess.run(command(0, kind="other"), check=False, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, b"")


# --- privileges ------------------------------------------------------------------------------------------------------


def status_field(pid: int, name: str) -> str:
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next(line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(f"{name}:"))


def is_held_before_the_device(pid: int) -> bool:
    """Tell whether the child is stopped at the open of the device: strace stops it only there."""
    if status_field(pid, "Name") != "devward-kvm" or not status_field(pid, "State").startswith("t"):
        return False
    number, *_ = Path(f"/proc/{pid}/syscall").read_text(encoding="ascii").split()
    return number == OPENAT


@pytest.fixture(name="held")
def _held(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A probe child, with every capability set filled as far as this user can, stopped where it is about to open the device."""
    descriptor = os.open("/dev/null", os.O_PATH)
    traced = TracedPython(tmp_path, "-e", "trace=openat", "-P", f"/proc/self/fd/{descriptor}", "-e", f"inject=openat:{HOLD}")
    before = ("setpriv", "--inh-caps=+net_admin,+sys_admin", "--ambient-caps=+net_admin,+sys_admin") if os.geteuid() == 0 else ()
    argv = [*before, *command(descriptor, python=traced.path)]
    process = subprocess.Popen(argv, pass_fds=(descriptor,), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(descriptor)
    try:
        asyncio.run(until(lambda: is_held_before_the_device(process.pid), "the stop before the device"))
        yield process
    finally:
        tracing.kill_held(process.pid)
        process.wait()


@needs_root
def test_r22_every_capability_is_gone_before_the_device_is_touched(held: "subprocess.Popen[bytes]") -> None:
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status_field(held.pid, name), 16) == 0, name


def test_r22_nothing_can_be_gained_or_dumped(held: "subprocess.Popen[bytes]") -> None:
    assert status_field(held.pid, "NoNewPrivs") == "1"
    assert int(status_field(held.pid, "CapEff"), 16) == int(status_field(held.pid, "CapPrm"), 16) == 0
    limits = Path(f"/proc/{held.pid}/limits").read_text(encoding="ascii")
    assert re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE)


def test_r22_the_device_is_not_touched_when_the_capabilities_stay(tmp_path: Path) -> None:
    traced = TracedPython(tmp_path, "-e", "trace=openat,capset", "-e", "inject=capset:error=EPERM")
    assert ask("/dev/null", python=traced.path) == ended("setup", errno.EPERM)
    assert not [line for line in traced.lines() if "/proc/self/fd/" in line]


@needs_root
def test_r22_bounding_set_that_cannot_be_left_is_no_obstacle() -> None:
    """A sandbox that holds no CAP_SETPCAP has no use for it either: no_new_privs keeps what was given up from coming back."""
    assert ask("/dev/null", before=("setpriv", "--bounding-set=-setpcap")) == ended("api", errno.ENOTTY)


@needs_root
@needs_kvm
def test_r22_directory_alone_is_denied_and_a_grant_of_kvm_alone_is_enough() -> None:
    with DevicesGroup("grant") as group:
        enter = ("/bin/sh", "-c", f'echo $$ >{group.path}/cgroup.procs; exec "$@"', "sh")
        assert ask(KVM, before=enter) == ended("open", errno.EPERM)
        group.allow("c 10:232 rw")
        assert ask(KVM, before=enter) == ended("done", api=12)


def test_child_dies_with_the_daemon(tmp_path: Path) -> None:
    descriptor = os.open("/dev/null", os.O_PATH)
    traced = TracedPython(tmp_path, "-e", "trace=openat", "-P", f"/proc/self/fd/{descriptor}", "-e", f"inject=openat:{HOLD}")
    daemon = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(sys.argv[2:], pass_fds=(int(sys.argv[1]),), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", daemon, str(descriptor), *command(descriptor, python=traced.path)]
    with subprocess.Popen(argv, pass_fds=(descriptor,), stdout=subprocess.PIPE) as process:
        os.close(descriptor)
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            asyncio.run(until(lambda: is_held_before_the_device(child), "the stop before the device"))
            assert not has_pending_kill(child)
            process.send_signal(signal.SIGKILL)
            # strace delays it even now, so that it cannot have ended by itself
            asyncio.run(until(lambda: has_pending_kill(child), "the signal to the child"))
        finally:
            process.kill()
            tracing.kill_held(child)


# --- cost ------------------------------------------------------------------------------------------------------------


def test_start_up_loads_little() -> None:
    """The child is started for every check: what it imports is most of its cost."""
    argv = [sys.executable, "-X", "importtime", *command(0)[1:]]
    done = subprocess.run(argv, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert "ctypes" in loaded
    assert not {name for name in loaded if name.partition(".")[0] in {"devward", "site", "json", "asyncio", "subprocess"}}


def test_kvm_node_is_left_as_it_was() -> None:
    """R19: nothing about the host's node changes by being probed, access denied or not."""
    if not Path(KVM).exists():
        pytest.skip("needs /dev/kvm: none here")
    before = os.stat(KVM)
    ask(KVM)
    after = os.stat(KVM)
    # Not its times: the probe's own change event makes udevd touch the node (systemd, udev-node.c).
    fields = ("st_mode", "st_uid", "st_gid", "st_rdev", "st_ino", "st_dev", "st_nlink")
    assert [getattr(before, field) for field in fields] == [getattr(after, field) for field in fields]
