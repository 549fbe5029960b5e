"""Which process is the kubelet: found by its socket in every namespace, and refused as soon as it might be another one."""

import contextlib
import errno
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devward.cluster import kubelet, kubelet_search
from devward.cluster.checkpoint_file import CheckpointReader
from devward.cluster.evidence import Doubt
from devward.cluster.kubelet import find_kubelet
from devward.cluster.kubelet_facts import SENTENCES, Kubelet, KubeletDoubt, KubeletScan
from devward.cluster.vantage import VantageDoubt
from sim.kubelet_host import HEADING, PLUGINS, KubeletHost, everybody
from sim.mount_namespace import mount
from sim.process_namespace import run_in_process_namespace
from sim.user_namespace import MAPPED_ROOT, in_roots_namespace, in_users_namespace

STAND_IN = Path(__file__).resolve().parents[1] / "sim/kubelet.py"
ROOT = "/var/lib/kubelet"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: new namespaces")
needs_non_root = pytest.mark.skipif(os.geteuid() == 0, reason="needs non-root: permissions bind")


@pytest.fixture
def host(tmp_path: Path) -> KubeletHost:
    return KubeletHost(tmp_path)


def doubt(found: KubeletScan) -> Doubt:
    assert found.kubelet is None
    (only,) = found.doubts
    return only


def kubelet_of(found: KubeletScan) -> Kubelet:
    assert found.doubts == ()
    assert found.kubelet is not None
    return found.kubelet


def test_a_plain_kubelet(host: KubeletHost) -> None:
    host.process(1, "systemd")
    host.kubelet(100)
    host.process(200, "containerd", listens=("/run/containerd/containerd.sock",))
    plain = str(host.root)
    assert kubelet_of(host.find()) == Kubelet(100, 77, "kubelet", ROOT, PLUGINS, f"{plain}{ROOT}", f"{plain}{PLUGINS}")


def test_a_kubelet_that_never_allocated_a_device(host: KubeletHost) -> None:
    host.kubelet(checkpoint=False)
    found = kubelet_of(host.find())
    assert CheckpointReader().read(found.plugins_directory).defects == {"checkpoint-missing"}


def test_no_kubelet(host: KubeletHost) -> None:
    host.directory(PLUGINS, checkpoint=True)
    host.process(1, "systemd")
    assert doubt(host.find()).code == KubeletDoubt.NOT_FOUND


# --- distributions ---


@pytest.mark.parametrize("command", ["kubelet", "kubelite", "k3s-server", "k3s-agent", "k3s", "rke2", "hyperkube"])
def test_every_program_that_is_a_kubelet(host: KubeletHost, command: str) -> None:
    host.kubelet(command=command, line=(command,))
    assert kubelet_of(host.find()).command == command


@pytest.mark.parametrize(
    "line",
    [
        ("kubelet", "--root-dir=/data/kubelet"),
        ("kubelet", "--root-dir", "/data/kubelet", "--v=2"),
        ("kubelet", "--root-dir=/old", "--root-dir=/data/kubelet"),
    ],
)
@pytest.mark.parametrize("has_socket", [True, False])
def test_the_root_directory_moves_and_the_plugins_do_not(host: KubeletHost, line: tuple[str, ...], *, has_socket: bool) -> None:
    # kubernetes/kubernetes issues 68567 and 120626; k0s has /var/lib/k0s/kubelet
    host.directory(PLUGINS, checkpoint=True)
    host.directory("/data/kubelet")
    sockets = ("/data/kubelet/pod-resources/99",) if has_socket else ()
    host.process(100, line=line, listens=(f"{PLUGINS}/kubelet.sock", *sockets))
    found = kubelet_of(host.find())
    assert (found.root_name, found.plugins_name) == ("/data/kubelet", PLUGINS)


def test_a_root_directory_that_only_the_socket_tells(host: KubeletHost) -> None:
    # k3s overwrites its command line, and kubelite reads the kubelet's from a file
    host.directory(PLUGINS, checkpoint=True)
    host.directory("/data/kubelet")
    host.process(
        100, "k3s-server", line=("/usr/local/bin/k3s server",), listens=(f"{PLUGINS}/kubelet.sock", "/data/kubelet/pod-resources/5")
    )
    assert kubelet_of(host.find()).root_name == "/data/kubelet"


def test_a_root_directory_that_nothing_tells(host: KubeletHost) -> None:
    host.directory(PLUGINS)
    host.process(100, "k3s-server", line=("/usr/local/bin/k3s server",), listens=(f"{PLUGINS}/kubelet.sock",))
    assert doubt(host.find()) == Doubt(KubeletDoubt.ROOT_UNKNOWN, "100 k3s-server")


def test_a_relative_root_directory_is_told_by_the_socket_alone(host: KubeletHost) -> None:
    host.kubelet(line=("kubelet", "--root-dir=kubelet"))
    assert kubelet_of(host.find()).root_name == ROOT


def test_two_names_of_one_root_directory(host: KubeletHost) -> None:
    # microk8s: /var/lib/kubelet is a link
    snap = "/var/snap/microk8s/common/var/lib/kubelet"
    host.directory(f"{snap}/device-plugins", checkpoint=True)
    host.directory("/var/lib")
    (host.root / "var/lib/kubelet").symlink_to(snap)
    host.process(100, "kubelite", listens=(f"{PLUGINS}/kubelet.sock", f"{snap}/pod-resources/kubelet.sock"))
    found = kubelet_of(host.find())
    assert found.plugins_directory == f"{host.root}{snap}/device-plugins"
    assert found.root_directory == f"{host.root}{snap}"


def test_two_root_directories(host: KubeletHost) -> None:
    host.directory("/data")
    host.kubelet(line=("kubelet", "--root-dir=/data"))
    assert doubt(host.find()) == Doubt(KubeletDoubt.SEVERAL_ROOTS, "/data, /var/lib/kubelet")


def test_a_kubelet_with_another_view_is_read_through_its_own(host: KubeletHost, tmp_path: Path) -> None:
    # RKE1 with a prefix: a container whose /var/lib/kubelet is /opt/rke/var/lib/kubelet of the host
    other = tmp_path / "container"
    host.directory(PLUGINS, root=other, checkpoint=True)
    process = host.process(100, root=other, listens=(f"{PLUGINS}/kubelet.sock", f"{ROOT}/pod-resources/1"))
    found = kubelet_of(host.find())
    assert found.plugins_directory == f"{process}/root{PLUGINS}"
    assert os.path.samefile(found.plugins_directory, f"{other}{PLUGINS}")


def test_links_of_the_kubelets_own_root_do_not_lead_out_of_it(host: KubeletHost, tmp_path: Path) -> None:
    other = tmp_path / "container"
    host.directory("/data/device-plugins", checkpoint=True)
    host.directory("/data/device-plugins", root=other, checkpoint=True)
    host.directory("/var/lib", root=other)
    (other / "var/lib/kubelet").symlink_to("/data")
    process = host.process(100, root=other, listens=(f"{PLUGINS}/kubelet.sock", f"{ROOT}/pod-resources/1"))
    assert kubelet_of(host.find()).plugins_directory == f"{process}/root/data/device-plugins"


# --- more than one ---


@pytest.mark.parametrize("network", ["net:[4026531840]", "net:[4026532222]"])
def test_two_kubelets(host: KubeletHost, tmp_path: Path, network: str) -> None:
    host.kubelet(100)
    other = tmp_path / "container"
    host.directory(PLUGINS, root=other, checkpoint=True)
    host.process(200, "k3s-server", root=other, network=network, listens=(f"{PLUGINS}/kubelet.sock", f"{ROOT}/pod-resources/1"))
    found = doubt(host.find())
    assert (found.code, sorted(found.subject.split(", "))) == (KubeletDoubt.SEVERAL, ["100 kubelet", "200 k3s-server"])


def test_a_second_kubelet_of_another_name(host: KubeletHost) -> None:
    host.kubelet(100)
    host.process(200, "python3", network="net:[2]", listens=("/tmp/x/device-plugins/kubelet.sock",))
    assert doubt(host.find()).code == KubeletDoubt.SEVERAL


@pytest.mark.parametrize("command", ["kubelet", "kubelite"])
def test_a_second_kubelet_that_does_not_listen(host: KubeletHost, command: str) -> None:
    host.kubelet(100)
    host.process(200, command)
    assert doubt(host.find()) == Doubt(KubeletDoubt.NOT_LISTENING, f"200 {command}, 100 kubelet")


def test_a_kubelet_that_is_starting(host: KubeletHost) -> None:
    host.process(200)
    assert doubt(host.find()) == Doubt(KubeletDoubt.NOT_LISTENING, "200 kubelet")


def test_the_command_of_k3s_is_no_second_kubelet(host: KubeletHost) -> None:
    host.kubelet(100, "k3s-server")
    host.process(200, "k3s", line=("k3s", "kubectl", "get", "pods"))
    assert kubelet_of(host.find()).pid == 100


def test_a_program_that_is_not_known(host: KubeletHost) -> None:
    host.kubelet(command="impostor")
    assert doubt(host.find()) == Doubt(KubeletDoubt.UNKNOWN_PROGRAM, "100 impostor")


def test_a_kubelet_that_does_not_hold_its_socket(host: KubeletHost) -> None:
    process = host.kubelet()
    for descriptor in (process / "fd").iterdir():
        descriptor.unlink()
    assert doubt(host.find()) == Doubt(KubeletDoubt.NOT_LISTENING, "100 kubelet")


def test_a_kubelet_that_starts_once_the_others_are_listed(host: KubeletHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.kubelet(100)
    actual = kubelet_search.read_all

    def read_all(path: str, limit: int) -> bytes:
        if path.endswith("/net/unix") and not (host.proc / "200").exists():
            host.process(200, "k3s-server", listens=("/data/device-plugins/kubelet.sock",))
        return actual(path, limit)

    monkeypatch.setattr(kubelet_search, "read_all", read_all)
    assert doubt(host.find()) == Doubt(KubeletDoubt.SEVERAL, "100 kubelet, 200 k3s-server")


def test_a_kubelet_that_listens_for_plugins_twice(host: KubeletHost) -> None:
    host.directory(PLUGINS)
    host.process(100, listens=(f"{PLUGINS}/kubelet.sock", "/data/device-plugins/kubelet.sock", f"{ROOT}/pod-resources/1"))
    assert doubt(host.find()) == Doubt(KubeletDoubt.SEVERAL_CHECKPOINTS, f"/data/device-plugins, {PLUGINS}")


@pytest.mark.parametrize("place", ["/data/device-plugins", PLUGINS])
def test_a_second_checkpoint(host: KubeletHost, place: str) -> None:
    (listens,) = {PLUGINS, "/data/device-plugins"} - {place}
    host.directory(listens, checkpoint=True)
    host.directory(place, checkpoint=True)
    host.process(100, line=("kubelet", "--root-dir=/data"), listens=(f"{listens}/kubelet.sock",))
    found = doubt(host.find())
    assert (found.code, listens in found.subject, place in found.subject) == (KubeletDoubt.SEVERAL_CHECKPOINTS, True, True)


def test_a_directory_without_checkpoint_is_no_second_one(host: KubeletHost) -> None:
    host.directory("/data/device-plugins")
    host.directory("/data/kubelet/device-plugins", checkpoint=True)
    host.process(100, line=("kubelet", "--root-dir=/data"), listens=("/data/kubelet/device-plugins/kubelet.sock",))
    assert kubelet_of(host.find()).plugins_name == "/data/kubelet/device-plugins"


def test_a_checkpoint_that_the_kubelet_does_not_see(host: KubeletHost, tmp_path: Path) -> None:
    host.directory(PLUGINS, checkpoint=True)
    other = tmp_path / "container"
    host.directory(PLUGINS, root=other, checkpoint=True)
    host.process(100, root=other, listens=(f"{PLUGINS}/kubelet.sock", f"{ROOT}/pod-resources/1"))
    assert doubt(host.find()) == Doubt(KubeletDoubt.SEVERAL_CHECKPOINTS, f"{PLUGINS} (as the kubelet sees it), {PLUGINS}")


# --- what cannot be seen ---


def test_from_where_processes_are_hidden_none_is_found(host: KubeletHost) -> None:
    host.kubelet()
    blind = Doubt(VantageDoubt.NOT_PRIVILEGED, "/proc")
    assert find_kubelet(str(host.proc), str(host.root), vantage=lambda _proc: blind) == KubeletScan(None, (blind,))


def test_the_vantage_is_asked_by_default() -> None:
    # Neither a fixed tree without /proc/self nor a process without rights sees everybody.
    assert find_kubelet("/nonexistent").doubts[0].code == VantageDoubt.PROC_UNREADABLE


def test_a_process_that_ends_meanwhile_is_none(host: KubeletHost) -> None:
    host.kubelet()
    (host.proc / "300").mkdir()
    assert kubelet_of(host.find()).pid == 100


@pytest.mark.parametrize("name", ["k3s-server", "kind"])
@pytest.mark.parametrize("is_away", [True, False])
def test_a_kubelet_whose_first_thread_sets_up_another_network(host: KubeletHost, name: str, *, is_away: bool) -> None:
    host.kubelet(100)
    second = host.process(200, name, listens=("/data/device-plugins/kubelet.sock",))
    (second / "ns/net").unlink()
    (second / "ns/net").symlink_to("net:[4026532222]")
    if is_away:
        (second / "net/unix").write_text(HEADING)
    (host.proc / "100/task").mkdir()
    for task, space in (("200", "net:[4026532222]"), ("201", "net:[4026531840]")):
        (second / f"task/{task}/ns").mkdir(parents=True)
        (second / f"task/{task}/ns/net").symlink_to(space)
    assert doubt(host.find()) == Doubt(KubeletDoubt.SEVERAL, f"100 kubelet, 200 {name}")


def test_what_another_network_s_list_says_of_a_socket_of_ours_is_not_believed(host: KubeletHost) -> None:
    # Whoever made that network namespace may list there what they like: here the inode of a socket of containerd's.
    host.kubelet(100)
    containerd = host.process(300, "containerd", listens=("/run/containerd/containerd.sock",))
    (containerd / "task/300/ns").mkdir(parents=True)
    (containerd / "task/300/ns/net").symlink_to("net:[4026531840]")
    forged = f"/a\n0: 00000002 00000000 00010000 0001 01 {host._inode} /x/device-plugins/kubelet.sock"
    host.process(400, "python3", network="net:[4026532222]", users=(65533, 65533), listens=(forged,))
    assert kubelet_of(host.find()).pid == 100


@pytest.mark.parametrize("name", ["ns/net", "comm", "net/unix", "stat", "status"])
def test_a_process_that_cannot_be_read_might_be_a_kubelet(host: KubeletHost, name: str) -> None:
    path = host.kubelet() / name
    path.unlink()
    path.mkdir()
    assert doubt(host.find()).code == KubeletDoubt.PROCESS_UNREADABLE


@pytest.mark.parametrize("stat", ["", "100 (kubelet) S 0", "100 (kubelet) S " + "x " * 30])
def test_a_process_whose_start_is_not_known(host: KubeletHost, stat: str) -> None:
    (host.kubelet() / "stat").write_text(stat)
    assert doubt(host.find()).code == KubeletDoubt.PROCESS_UNREADABLE


@needs_non_root
@pytest.mark.parametrize("name", ["fd", "root"])
def test_a_kubelet_whose_tables_are_closed(host: KubeletHost, name: str, tmp_path: Path) -> None:
    process = host.kubelet()
    closed = process / "fd"
    if name == "root":
        closed = tmp_path / "closed"
        closed.mkdir()
        (process / "root").unlink()
        (process / "root").symlink_to(closed)
    closed.chmod(0)
    try:
        code = doubt(host.find()).code
    finally:
        closed.chmod(0o700)
    assert code == (KubeletDoubt.PROCESS_UNREADABLE if name == "fd" else KubeletDoubt.DIRECTORY_UNREADABLE)


def test_a_directory_that_is_not_there(host: KubeletHost) -> None:
    host.process(100, listens=(f"{PLUGINS}/kubelet.sock",))
    assert doubt(host.find()).code == KubeletDoubt.DIRECTORY_UNREADABLE


def test_a_circle_of_links(host: KubeletHost) -> None:
    host.directory("/var/lib")
    (host.root / "var/lib/kubelet").symlink_to("kubelet")
    host.process(100, listens=(f"{PLUGINS}/kubelet.sock",))
    assert doubt(host.find()).code == KubeletDoubt.DIRECTORY_UNREADABLE


def test_a_kubelet_that_is_restarted_meanwhile(host: KubeletHost, monkeypatch: pytest.MonkeyPatch) -> None:
    process = host.kubelet()
    actual = kubelet.resolve

    def restarted(root: str, path: str) -> str:
        (process / "stat").write_text((process / "stat").read_text().replace(" 77 ", " 78 "))
        return actual(root, path)

    monkeypatch.setattr(kubelet, "resolve", restarted)
    assert doubt(host.find()) == Doubt(KubeletDoubt.CHANGED, "100 kubelet")


def test_a_kubelet_that_ends_meanwhile(host: KubeletHost, monkeypatch: pytest.MonkeyPatch) -> None:
    process = host.kubelet()

    def ended(_root: str, path: str) -> str:
        (process / "stat").unlink(missing_ok=True)
        raise FileNotFoundError(2, "gone", path)

    monkeypatch.setattr(kubelet, "resolve", ended)
    assert doubt(host.find()) == Doubt(KubeletDoubt.CHANGED, "100 kubelet")


def test_too_many_processes(host: KubeletHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.kubelet(100)
    host.process(200, "other")
    with monkeypatch.context() as patched:
        patched.setattr(kubelet_search, "_MAX_PROCESSES", 1)
        assert doubt(host.find()).code == KubeletDoubt.TOO_MANY_PROCESSES
    monkeypatch.setattr(kubelet_search, "_MAX_DESCRIPTORS", 1)
    assert doubt(host.find()).code == KubeletDoubt.TOO_MANY_PROCESSES


def test_every_doubt_has_a_sentence() -> None:
    assert set(SENTENCES) == set(KubeletDoubt)
    assert len(set(SENTENCES.values())) == len(KubeletDoubt)


# --- real processes ---


@contextlib.contextmanager
def running(*arguments: object, prefix: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """Run the stand-in, which is ready, until the end of the block."""
    command = [*prefix, sys.executable, str(STAND_IN), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait()


ENTRY = (
    "--entry",
    "5dd4e7a7-0af2-4717-a103-f2d60735455c/main/huawei.com/Ascend910B4=1:vir05_1c_8g",
    "--register",
    "huawei.com/Ascend910B4=a-0,b-0",
)


def look() -> KubeletScan:
    return find_kubelet(vantage=everybody)


def real_kubelets() -> None:
    mount("-t", "tmpfs", "tmpfs", "/var/lib")
    assert doubt(look()).code == KubeletDoubt.NOT_FOUND
    with running("--directory", PLUGINS, "--root-dir", ROOT, "--listen", *ENTRY) as first:
        found = kubelet_of(look())
        assert (found.pid, found.command, found.root_directory, found.plugins_directory) == (first.pid, "kubelet", ROOT, PLUGINS)
        reading = CheckpointReader().read(found.plugins_directory)
        assert reading.doubts == ()
        assert reading.checkpoint is not None
        assert [entry.allocation.cards for entry in reading.checkpoint.entries] == [{1}]
        # another one in a network and mount namespace of its own
        program = 'mount -t tmpfs tmpfs /var/lib && exec "$@"'
        prefix = ("unshare", "--net", "--mount", "sh", "-c", program, "sh")
        with running("--directory", PLUGINS, "--listen-only", "--name", "k3s-server", prefix=prefix) as second:
            names = doubt(look()).subject.split(", ")
            assert sorted(names) == sorted([f"{first.pid} kubelet", f"{second.pid} k3s-server"])
        assert kubelet_of(look()) == found
    assert doubt(look()).code == KubeletDoubt.NOT_FOUND
    # one in a mount namespace of its own, alone
    (Path(PLUGINS) / "kubelet_internal_checkpoint").unlink()
    prefix = ("unshare", "--mount", "sh", "-c", program, "sh")
    with running("--directory", PLUGINS, "--listen", "--root-dir", ROOT, *ENTRY, prefix=prefix) as third:
        found = kubelet_of(look())
        assert found.plugins_directory == f"/proc/{third.pid}/root{PLUGINS}"
        reading = CheckpointReader().read(found.plugins_directory)
        assert (reading.doubts, reading.checkpoint is not None) == ((), True)


AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
#: Listens at two paths, of which the second looks like a line about a socket of root's. It may not be dumped.
IMPOSTOR = r"""
import ctypes, os, socket, sys
ctypes.CDLL(None).prctl(15, b"kubelet", 0, 0, 0)
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
os.chdir(sys.argv[1])
held = []
for name in ("device-plugins/kubelet.sock", f"n\n0: 00000002 00000000 00010000 0001 01 {sys.argv[2]} /y/device-plugins/kubelet.sock"):
    path = f"{sys.argv[1]}/{name}"
    os.makedirs(os.path.dirname(path))
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].bind(path)
    held[-1].listen()
print("ready", flush=True)
sys.stdin.read()
"""


def what_a_user_does() -> None:
    mount("-t", "tmpfs", "tmpfs", "/var/lib")
    kubelet_s = ("--directory", PLUGINS, "--root-dir", ROOT, "--listen", *ENTRY)
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as name, running(*kubelet_s):
        Path(name).chmod(0o777)
        found = kubelet_of(look())
        with socket.socket() as roots_own:
            arguments = [*AS_NOBODY, sys.executable, "-c", IMPOSTOR, name, str(os.fstat(roots_own.fileno()).st_ino)]
            with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as impostor:
                assert impostor.stdout is not None
                assert impostor.stdin is not None
                assert impostor.stdout.readline() == "ready\n"
                assert look() == KubeletScan(found)
                impostor.stdin.close()


@needs_root
def test_nothing_that_a_user_does_hides_the_kubelet() -> None:
    run_in_process_namespace(what_a_user_does)


@needs_root
def test_real_kubelets() -> None:
    run_in_process_namespace(real_kubelets)


def test_a_real_socket_in_the_hosts_own_list() -> None:
    # Without namespaces of its own this process may not see others; so the tree's /proc has this one's list and descriptors.
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as name:
        host = KubeletHost(Path(name))
        plugins = host.directory("/p/device-plugins")
        with running("--directory", plugins, "--listen-only") as process:
            directory = host.process(process.pid, listens=())
            for path in ("fd", "ns", "net"):
                subprocess.run(["rm", "-r", str(directory / path)], check=True)
                (directory / path).symlink_to(f"/proc/{process.pid}/{path}")
            (directory / "root").unlink()
            (directory / "root").symlink_to("/")
            line: Any = ("kubelet", f"--root-dir={host.root}")
            (directory / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in line))
            found = kubelet_of(find_kubelet(str(host.proc), vantage=everybody))
            assert (found.pid, found.plugins_name) == (process.pid, str(plugins))


# --- what anybody may do -------------------------------------------------------------------------------------------------------
OTHERS = pytest.mark.parametrize("users", [(65533, 65533), (65533, 0), (0, 65533)])


@OTHERS
@pytest.mark.parametrize("network", ["net:[4026531840]", "net:[4026532222]"])
@pytest.mark.parametrize("command", ["kubelet", "kubelite", "k3s-server", "python3"])
def test_what_another_user_runs_is_no_kubelet(host: KubeletHost, command: str, network: str, users: tuple[int, int]) -> None:
    host.kubelet(100)
    host.process(200, command, network=network, users=users)
    host.process(201, command, network=network, users=users, listens=(f"{PLUGINS}/kubelet.sock", "/tmp/x/device-plugins/kubelet.sock"))
    assert kubelet_of(host.find()).pid == 100


@needs_root
@pytest.mark.parametrize(("namespace", "counts"), [(in_roots_namespace, True), (in_users_namespace, False)])
def test_the_root_of_another_user_namespace_may_run_a_kubelet(
    host: KubeletHost, namespace: Callable[[str], contextlib.AbstractContextManager[int]], *, counts: bool
) -> None:
    host.kubelet(100)
    other = host.process(200, "k3s-server", users=(MAPPED_ROOT, MAPPED_ROOT), listens=("/data/device-plugins/kubelet.sock",))
    for held in (other / "fd").glob("socket:*"):
        os.chown(held, MAPPED_ROOT, MAPPED_ROOT)
    (host.proc / "self/ns").mkdir(parents=True)
    (host.proc / "self/ns/net").symlink_to("net:[1]")
    (host.proc / "self/ns/user").symlink_to("/proc/self/ns/user")
    with namespace("idle") as pid:
        (other / "ns/user").symlink_to(f"/proc/{pid}/ns/user")
        found = host.find()
    if counts:
        assert doubt(found) == Doubt(KubeletDoubt.SEVERAL, "100 kubelet, 200 k3s-server")
    else:
        assert kubelet_of(found).pid == 100


@needs_root
def test_a_user_s_socket_that_root_holds_is_no_kubelet_s(host: KubeletHost) -> None:
    # sudo has its standard input of its user; services take descriptors from anybody.
    host.kubelet(100)
    service = host.process(200, "dbus-daemon", listens=("/tmp/x/device-plugins/kubelet.sock",))
    (held,) = (service / "fd").glob("socket:*")
    assert doubt(host.find()) == Doubt(KubeletDoubt.SEVERAL, "100 kubelet, 200 dbus-daemon")
    os.chown(held, 65533, 65533)
    assert kubelet_of(host.find()).pid == 100


def test_a_process_that_went_to_another_network_is_looked_for_there(host: KubeletHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.kubelet(100)
    second = host.process(200, "k3s-server", network="net:[4026532222]", listens=("/data/device-plugins/kubelet.sock",))
    sockets = (second / "net/unix").read_text()
    (second / "net/unix").write_text(HEADING)
    actual = kubelet_search.read_all

    def read_all(path: str, limit: int) -> bytes:
        text = actual(path, limit)
        if path == f"{second}/net/unix" and text == HEADING.encode():
            (second / "ns/net").unlink()
            (second / "ns/net").symlink_to("net:[4026532223]")
            (second / "net/unix").write_text(sockets)
        return text

    monkeypatch.setattr(kubelet_search, "read_all", read_all)
    assert doubt(host.find()) == Doubt(KubeletDoubt.SEVERAL, "100 kubelet, 200 k3s-server")


@pytest.mark.parametrize("name", ["kind", "k3s-server"])
def test_a_process_that_comes_back_to_its_network_is_looked_for_there(
    host: KubeletHost, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # While its sockets are read it is in the first one's network; only its first thread is where it is known by its threads.
    own, other = "net:[4026532222]", "net:[4026531840]"
    host.kubelet(100)
    second = host.process(200, name, network=own, listens=("/data/device-plugins/kubelet.sock",))
    whole = (second / "net/unix").read_bytes()
    places, texts = itertools.chain([own, other], itertools.repeat(own)), itertools.chain([HEADING.encode()], itertools.repeat(whole))
    readlink, read_all = os.readlink, kubelet_search.read_all
    monkeypatch.setattr(kubelet_search.os, "readlink", lambda path: next(places) if path == f"{second}/ns/net" else readlink(path))
    monkeypatch.setattr(
        kubelet_search, "read_all", lambda path, limit: next(texts) if path == f"{second}/net/unix" else read_all(path, limit)
    )
    assert doubt(host.find()) == Doubt(KubeletDoubt.SEVERAL, f"100 kubelet, 200 {name}")


@needs_root
def test_a_user_s_process_that_never_stays_in_one_network_is_none(host: KubeletHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.kubelet(100)
    user_s = host.process(200, "python3", network="net:[1]", users=(65533, 65533))
    host.process(300, "sleep", network="net:[1]")
    readlink, number, listdir = os.readlink, itertools.count(1), os.listdir
    monkeypatch.setattr(
        kubelet_search.os, "readlink", lambda path: f"net:[{next(number)}]" if path == f"{user_s}/ns/net" else readlink(path)
    )
    # It is asked before root's.
    monkeypatch.setattr(kubelet_search.os, "listdir", lambda path: sorted(listdir(path)))
    assert kubelet_of(host.find(deadline=time.monotonic() + 60)).pid == 100
    assert next(number) < 5


def test_a_process_that_holds_its_sockets_while_it_is_elsewhere(host: KubeletHost, monkeypatch: pytest.MonkeyPatch) -> None:
    # Others of its network list them.
    host.kubelet(100)
    own, other = "net:[4026532222]", "net:[4026531840]"
    second = host.process(200, "kind", network=own, listens=("/data/device-plugins/kubelet.sock",))
    host.process(300, "sleep", network=own)
    places = itertools.chain([own], itertools.repeat(other))
    readlink, listdir = os.readlink, os.listdir
    monkeypatch.setattr(kubelet_search.os, "readlink", lambda path: next(places) if path == f"{second}/ns/net" else readlink(path))
    monkeypatch.setattr(kubelet_search.os, "listdir", lambda path: sorted(listdir(path)))
    assert doubt(host.find()) == Doubt(KubeletDoubt.SEVERAL, "100 kubelet, 200 kind")


def test_a_process_that_never_stays_in_one_network_is_a_doubt(host: KubeletHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.kubelet(100)
    second = host.process(200, "kind", network="net:[1]")
    readlink, number = os.readlink, itertools.count(1)
    monkeypatch.setattr(
        kubelet_search.os, "readlink", lambda path: f"net:[{next(number)}]" if path == f"{second}/ns/net" else readlink(path)
    )
    assert doubt(host.find()) == Doubt(KubeletDoubt.CHANGED, "200")


def test_a_kubelet_one_of_whose_threads_alone_is_in_its_network(host: KubeletHost) -> None:
    host.kubelet(100)
    second = host.process(200, "k3s-server", network="net:[4026532222]", listens=("/data/device-plugins/kubelet.sock",))
    thread = second / "task/201"
    thread.mkdir(parents=True)
    for name in ("ns", "net"):
        (second / name).rename(thread / name)
        (second / name).mkdir()
    (second / "ns/net").symlink_to("net:[4026531840]")
    (second / "net/unix").write_text(HEADING)
    assert doubt(host.find()) == Doubt(KubeletDoubt.SEVERAL, "100 kubelet, 200 k3s-server")


@needs_root
def test_what_listens_where_only_users_work_is_not_read(host: KubeletHost) -> None:
    # As many sockets as they like, also such as are listed in no form that is known.
    host.kubelet(100)
    user_s = host.process(200, "python3", network="net:[4026532222]", users=(65533, 65533))
    (user_s / "net/unix").unlink()
    (user_s / "net/unix").mkdir()
    assert kubelet_of(host.find()).pid == 100
    (user_s / "status").write_text(f"Name:\tpython3\nUid:\t{os.getuid()}\t{os.geteuid()}\t0\t0\n")
    assert doubt(host.find()).code == KubeletDoubt.PROCESS_UNREADABLE


@pytest.mark.parametrize(
    ("error", "gone", "pid"), [(errno.EACCES, True, 100), (errno.EACCES, False, None), (errno.EPERM, True, 100), (errno.EIO, True, None)]
)
def test_a_process_that_is_reaped_while_it_is_looked_at(
    host: KubeletHost, monkeypatch: pytest.MonkeyPatch, error: int, pid: int | None, *, gone: bool
) -> None:
    host.kubelet(100)
    other = host.process(200, "sleep")
    actual = os.readlink

    def readlink(path: str) -> str:
        if path == f"{other}/ns/net":
            if gone and other.exists():
                shutil.rmtree(other)
            raise OSError(error, os.strerror(error), path)
        return actual(path)

    monkeypatch.setattr(kubelet_search.os, "readlink", readlink)
    found = host.find()
    assert (found.kubelet.pid if found.kubelet else None) == pid


def test_a_network_that_ends_while_its_list_is_opened(host: KubeletHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.kubelet(100)
    other = host.process(200, "sleep", network="net:[4026532222]")
    actual = kubelet_search.read_all

    def read_all(path: str, limit: int) -> bytes:
        if path == f"{other}/net/unix":
            shutil.rmtree(other)
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), path)
        return actual(path, limit)

    monkeypatch.setattr(kubelet_search, "read_all", read_all)
    assert kubelet_of(host.find()).pid == 100


def test_a_search_that_takes_too_long_is_a_doubt(host: KubeletHost) -> None:
    host.kubelet(100)
    assert host.find(deadline=time.monotonic() + 60).kubelet is not None
    assert doubt(host.find(deadline=time.monotonic() - 1)).code == KubeletDoubt.OUT_OF_TIME


def test_descriptors_are_read_once_however_many_networks_there_are(host: KubeletHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.kubelet(100)
    for number in range(8):
        host.process(200 + number, "python3", network=f"net:[{number}]")
        user_s = host.process(
            300 + number, "python3", network=f"net:[{number}]", users=(65533, 65533), listens=(f"{PLUGINS}/kubelet.sock",)
        )
        assert (user_s / "fd").is_dir()
    listed: list[str] = []
    actual = os.listdir

    def listdir(path: str) -> list[str]:
        listed.append(path)
        return actual(path)

    monkeypatch.setattr(kubelet_search.os, "listdir", listdir)
    assert kubelet_of(host.find()).pid == 100
    assert sorted(path for path in listed if path.endswith("/fd")) == sorted(f"{host.proc}/{pid}/fd" for pid in (100, *range(200, 208)))


def test_a_socket_on_its_way_from_one_process_to_another_is_no_kubelet_s(host: KubeletHost) -> None:
    host.kubelet(100)
    sender = host.process(200, "python3", listens=("/tmp/x/device-plugins/kubelet.sock",))
    for descriptor in (sender / "fd").iterdir():
        descriptor.unlink()
    assert kubelet_of(host.find()).pid == 100


def test_the_descriptors_of_others_are_not_looked_at(host: KubeletHost) -> None:
    host.kubelet(100)
    other = host.process(200, "python3", users=(65533, 65533), listens=("/tmp/x/device-plugins/kubelet.sock",))
    shutil.rmtree(other / "fd")
    (other / "fd").write_text("")
    assert kubelet_of(host.find()).pid == 100


def test_what_runs_as_root_for_anybody_is_no_kubelet_by_its_name(host: KubeletHost, tmp_path: Path) -> None:
    host.kubelet(100)
    program = tmp_path / "sudo"
    program.touch()
    (host.process(200, "kubelet") / "exe").symlink_to(program)
    assert doubt(host.find()).code == KubeletDoubt.NOT_LISTENING
    program.chmod(0o4755)
    assert kubelet_of(host.find()).pid == 100


def test_a_path_that_looks_like_a_line_about_the_kubelet_s_socket_is_a_doubt(host: KubeletHost) -> None:
    host.directory(PLUGINS)
    evil = host.directory("/tmp/x/device-plugins", checkpoint=True)
    host.process(812, listens=(f"{PLUGINS}/kubelet.sock",))
    inode = host._inode
    forged = f"/tmp/n\n0000000000000000: 00000002 00000000 00010000 0001 01 {inode} {evil}/kubelet.sock"
    host.process(900, "python3", listens=(forged,))
    scan = host.find()
    assert scan.kubelet is None
    assert [doubt.code for doubt in scan.doubts] == [KubeletDoubt.HOLDER_UNKNOWN]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o757])
def test_a_directory_that_others_may_write_is_no_kubelet_s(host: KubeletHost, mode: int) -> None:
    plugins = host.directory(PLUGINS)
    host.process(812, listens=(f"{PLUGINS}/kubelet.sock",))
    assert host.find().kubelet is not None
    plugins.chmod(mode)
    scan = host.find()
    assert scan.kubelet is None
    assert [doubt.code for doubt in scan.doubts] == [KubeletDoubt.DIRECTORY_UNSAFE]
