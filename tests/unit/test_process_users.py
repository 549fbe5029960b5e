"""Whose a process is: real ones, in real user namespaces, looked at with and without the rights to follow another user's links."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devward.cluster.process_users import is_roots, users_of
from sim.user_namespace import (
    MAPPED_ROOT,
    OTHER_USER,
    in_nested_namespace,
    in_roots_namespace,
    in_users_namespace,
    other_process,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other users")
#: Rights as the daemon's unit leaves them, as far as processes are concerned.
AS_DAEMON = ("setpriv", "--bounding-set=-all,+dac_override", "--inh-caps=-all", "--no-new-privs")
ASK = "import sys; from devward.cluster.process_users import is_roots; print([is_roots(f'/proc/{pid}') for pid in sys.argv[1:]])"


def test_our_own_process_counts() -> None:
    assert is_roots("/proc/self")
    assert users_of("/proc/self") == {os.getuid(), os.geteuid()}


@needs_root
def test_another_user_s_process_does_not() -> None:
    with other_process("kubelet") as pid:
        assert users_of(f"/proc/{pid}") == {OTHER_USER}
        assert not is_roots(f"/proc/{pid}")


@needs_root
def test_the_root_of_a_namespace_that_root_made_counts() -> None:
    with in_roots_namespace("kubelet") as pid:
        assert users_of(f"/proc/{pid}") == {MAPPED_ROOT}
        assert is_roots(f"/proc/{pid}")


@needs_root
def test_the_root_of_a_namespace_that_a_user_made_does_not() -> None:
    with in_users_namespace("kubelet") as pid, in_nested_namespace("kubelet") as deeper:
        assert [is_roots(f"/proc/{one}") for one in (pid, deeper)] == [False, False]


@needs_root
def test_what_the_daemon_may_not_follow_is_told_by_the_map() -> None:
    with (
        other_process("kubelet") as plain,
        in_roots_namespace("kubelet") as roots,
        in_users_namespace("kubelet") as users,
    ):
        asked = [*AS_DAEMON, sys.executable, "-c", ASK, str(plain), str(roots), str(users), str(os.getpid())]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        told = subprocess.run(asked, check=True, capture_output=True, text=True, env=environment).stdout
        # A user's own namespace looks like root's from there: that is a doubt.
        assert told == "[False, True, True, True]\n"


def test_a_process_whose_users_are_not_told(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("Name:\tUid:\n")
    with pytest.raises(OSError, match="Bad message"):
        is_roots(str(tmp_path))
