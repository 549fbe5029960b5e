"""devwardctl as a process, without any daemon: exit statuses, pipes, closed and full outputs, locales."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "devward.ctl"]
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "LANG": "C.UTF-8"}
BUS_COMMANDS = [
    ["status"],
    ["devices"],
    ["specs"],
    ["cards"],
    ["vnpus"],
    ["findings"],
    ["explain", "kvm"],
    ["check", "kvm"],
    ["repair"],
    ["adopt", "x"],
    ["rescan"],
    ["reload"],
    ["mode", "cdi", "off"],
    ["pause", "cdi", "1h", "x"],
    ["resume", "cdi"],
    ["config"],
    ["monitor"],
]


def ctl(*arguments: str, environment: dict[str, str] | None = None, **options: object) -> "subprocess.CompletedProcess[str]":
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 120, **options}
    return subprocess.run([*COMMAND, *arguments], env={**ENVIRONMENT, **(environment or {})}, check=False, **given)


@pytest.mark.parametrize("command", BUS_COMMANDS, ids=" ".join)
def test_no_bus(command: Sequence[str], tmp_path: Path) -> None:
    run = ctl("--bus", f"unix:path={tmp_path}/none", *command)
    assert run.returncode == 3
    assert run.stdout == ""
    assert run.stderr.startswith("devwardctl: The message bus at ")
    assert "Traceback" not in run.stderr


def test_an_address_that_is_none() -> None:
    run = ctl("--bus", "tcp:host=x", "status")
    assert run.returncode == 3
    assert "unix:path=" in run.stderr


def test_completion_is_silent_without_a_bus(tmp_path: Path) -> None:
    for what in ("devices", "specs"):
        run = ctl("--bus", f"unix:path={tmp_path}/none", "complete", what)
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    run = ctl("--bus", f"unix:path={tmp_path}/none", "complete", "explain")
    assert (run.returncode, run.stderr) == (0, "")
    assert "hypervisor-busy" in run.stdout.split()
    assert "spec-repair" in ctl("complete", "events").stdout.split()


def test_version_and_help() -> None:
    from devward import __version__

    assert ctl("--version").stdout == f"devwardctl {__version__}\n"
    run = ctl("--help")
    assert run.returncode == 0
    assert "--bus" not in run.stdout, "in the man page only"
    assert "complete" not in run.stdout


def test_a_pipe_that_nobody_reads_ends_it_quietly() -> None:
    for arguments in (["explain", "hypervisor-busy"], ["--help"], ["explain", "hypervisor-busy", "--json"]):
        reading, writing = os.pipe()
        os.close(reading)
        run = ctl(*arguments, capture_output=False, stdout=writing, stderr=subprocess.PIPE)
        os.close(writing)
        assert (run.returncode, run.stderr) == (141, "")


def test_a_full_output_is_a_failure() -> None:
    with open("/dev/full", "w") as full:
        run = ctl("explain", "hypervisor-busy", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert run.returncode == 1
    assert run.stderr == "devwardctl: the output could not be written: No space left on device\n"


def test_closed_outputs() -> None:
    run = subprocess.run(
        ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *COMMAND, "explain", "hypervisor-busy"], env=ENVIRONMENT, check=False, timeout=120
    )
    assert run.returncode == 0


@pytest.mark.parametrize("locale", [{"LANG": "C"}, {"LC_ALL": "C"}, {"LANG": ""}])
def test_ascii_only_in_the_c_locale(locale: dict[str, str], tmp_path: Path) -> None:
    run = ctl("--bus", f"unix:path={tmp_path}/ünï/none", "status", environment=locale)
    assert run.returncode == 3
    assert run.stderr.isascii()
    assert "ünï" in ctl("--bus", f"unix:path={tmp_path}/ünï/none", "status").stderr


def test_colour_is_for_terminals() -> None:
    assert "\x1b" not in ctl("explain", "hypervisor-busy", environment={"TERM": "xterm"}).stdout


@pytest.mark.parametrize(("extra", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour_on_a_terminal(extra: dict[str, str], coloured: bool) -> None:
    controller, terminal = os.openpty()
    try:
        run = ctl("explain", "hypervisor-busy", environment={"TERM": "xterm", **extra}, capture_output=False, stdout=terminal)
        assert run.returncode == 0
        assert (b"\x1b[1m" in os.read(controller, 65536)) is coloured
    finally:
        os.close(controller)
        os.close(terminal)


@pytest.mark.parametrize("columns", [40, 80, 132])
def test_running_text_fits_the_width(columns: int) -> None:
    shown = ctl("explain", "device-missing", environment={"COLUMNS": str(columns)}).stdout
    commands = [line for line in shown.splitlines() if line.startswith("      ")]
    assert commands
    assert all(len(line) <= columns for line in shown.splitlines() if line not in commands)


def test_a_reason_is_explained_without_a_daemon() -> None:
    run = ctl("explain", "hypervisor-busy")
    assert run.returncode == 0
    assert "Another hypervisor holds" in run.stdout
    assert "lsmod" in run.stdout


def test_ctrl_c_while_it_waits_for_a_bus_that_hangs(tmp_path: Path) -> None:
    import socket

    path = str(tmp_path / "bus")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        server.listen()
        process = subprocess.Popen([*COMMAND, "--bus", f"unix:path={path}", "status"], env=ENVIRONMENT, stderr=subprocess.PIPE)
        peer, _ = server.accept()
        with peer:
            assert peer.recv(1) == b"\0", "it has begun to authenticate"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == b""
