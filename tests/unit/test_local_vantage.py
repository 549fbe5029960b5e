"""Whether processes of the host could stay unseen from where one looks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devward.cluster.vantage import VantageDoubt, lists_everybody, reads_everybody
from sim.process_namespace import run_in_process_namespace

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces")
needs_non_root = pytest.mark.skipif(os.geteuid() == 0, reason="needs non-root: permissions bind")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc as the host's root sees it."""
    own = tmp_path / str(os.getpid())
    (own / "ns").mkdir(parents=True)
    (tmp_path / "self").symlink_to(str(os.getpid()))
    (own / "ns/pid").symlink_to("pid:[4026531836]")
    (own / "ns/user").symlink_to("user:[4026531837]")
    (own / "status").write_text("Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\n")
    (tmp_path / "1").mkdir()
    (tmp_path / "1/stat").write_text("1 (init) S")
    return tmp_path


def doubts(proc: Path | str) -> tuple[str, str]:
    found = lists_everybody(str(proc)), reads_everybody(str(proc))
    return "" if found[0] is None else found[0].code, "" if found[1] is None else found[1].code


def test_the_hosts_root_sees_everybody(proc: Path) -> None:
    assert doubts(proc) == ("", "")


def test_another_pid_namespace_does_not(proc: Path) -> None:
    (proc / "self/ns/pid").unlink()
    (proc / "self/ns/pid").symlink_to("pid:[4026532000]")
    assert doubts(proc) == (VantageDoubt.NOT_THE_HOST, VantageDoubt.NOT_THE_HOST)


def test_the_proc_of_another_namespace_does_not(proc: Path) -> None:
    (proc / "self").unlink()
    (proc / "self").symlink_to("1")
    assert doubts(proc) == (VantageDoubt.NOT_THE_HOST, VantageDoubt.NOT_THE_HOST)


def test_where_the_first_process_is_hidden_others_may_be(proc: Path) -> None:
    (proc / "1/stat").unlink()
    assert doubts(proc) == (VantageDoubt.PROCESSES_HIDDEN, VantageDoubt.PROCESSES_HIDDEN)


@pytest.mark.parametrize("capabilities", ["0000000000000000", "000001fffff7ffff", "0000000000040000"])
def test_who_may_not_trace_does_not_read_everybody(proc: Path, capabilities: str) -> None:
    (proc / "self/status").write_text(f"CapEff:\t{capabilities}\n")
    assert doubts(proc) == ("", VantageDoubt.NOT_PRIVILEGED)


def test_root_of_a_user_namespace_does_not_read_everybody(proc: Path) -> None:
    (proc / "self/ns/user").unlink()
    (proc / "self/ns/user").symlink_to("user:[4026532000]")
    assert doubts(proc) == ("", VantageDoubt.NOT_PRIVILEGED)


@pytest.mark.parametrize("text", ["", "CapEff:\tx\n"])
def test_capabilities_that_are_not_said_are_none(proc: Path, text: str) -> None:
    (proc / "self/status").write_text(text)
    assert doubts(proc) == ("", VantageDoubt.PROC_UNREADABLE)


def test_without_proc_nobody_is_seen(tmp_path: Path) -> None:
    assert doubts(tmp_path) == (VantageDoubt.PROC_UNREADABLE, VantageDoubt.PROC_UNREADABLE)


def in_a_namespace() -> None:
    assert doubts("/proc") == (VantageDoubt.NOT_THE_HOST, VantageDoubt.NOT_THE_HOST)


@needs_root
def test_a_real_pid_namespace_is_not_the_host() -> None:
    run_in_process_namespace(in_a_namespace)


HIDDEN = """
import os, subprocess, sys
subprocess.run(["mount", "-t", "proc", "-o", "hidepid=invisible", "proc", "/proc"], check=True)
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
from devward.cluster.vantage import lists_everybody
print(lists_everybody("/proc").code)
"""


@needs_root
def test_a_proc_that_hides_processes_is_noticed() -> None:
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", HIDDEN]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=environment)
    # In a container's PID namespace that alone is reason enough.
    assert done.stdout.strip() in (VantageDoubt.PROCESSES_HIDDEN, VantageDoubt.NOT_THE_HOST), done.stderr


@needs_non_root
def test_an_unprivileged_user_does_not_read_everybody() -> None:
    assert reads_everybody("/proc") is not None
