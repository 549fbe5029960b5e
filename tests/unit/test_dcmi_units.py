"""The units of the broker: nothing confines it that would make it a container to the driver, and nothing kills it while it destroys."""

import os
import re
import subprocess
from pathlib import Path

from devward import names

UNITS = Path(__file__).resolve().parents[2] / "systemd"
SERVICE = UNITS / "devward-dcmi.service"
SOCKET = UNITS / "devward-dcmi.socket"
#: All settings that there may be: one that is not here has to be looked up first, for whether it gives the broker a mount namespace or
#: takes a capability, a device or a program from it.
HARMLESS = {
    "Description",
    "Documentation",
    "Requires",
    "After",
    "StartLimitIntervalSec",
    "Type",
    "NotifyAccess",
    "ExecStart",
    "Restart",
    "TimeoutStartSec",
    "KillMode",
    "TimeoutStopSec",
    "SendSIGKILL",
    "WatchdogSec",
    "WatchdogSignal",
    "OOMPolicy",
    "TasksMax",
    "LogRateLimitIntervalSec",
}


def settings_of(unit: Path) -> dict[str, str]:
    found = re.findall(r"^([A-Z]\w*)=(.*)$", unit.read_text(), re.M)
    assert len(dict(found)) == len(found)
    return dict(found)


def test_nothing_confines_the_broker() -> None:
    settings = settings_of(SERVICE)
    assert settings.pop("Environment") == "MALLOC_ARENA_MAX=1"
    assert set(settings) == HARMLESS


def test_nothing_kills_a_broker_that_destroys() -> None:
    settings = settings_of(SERVICE)
    assert settings["SendSIGKILL"] == "no"
    assert settings["KillMode"] == "process"
    assert settings["OOMPolicy"] == "continue"
    # The watchdog is held while it destroys, by the main process.
    assert settings["NotifyAccess"] == "main"
    assert settings["ExecStart"] == "/usr/bin/python3 -I -m devward.npu.broker"


def test_the_socket_is_root_s_and_where_it_is_looked_for() -> None:
    settings = settings_of(SOCKET)
    assert settings["ListenStream"] == names.BROKER_SOCKET
    assert (settings["SocketUser"], settings["SocketMode"], settings["DirectoryMode"]) == ("root", "0600", "0700")
    # The directory of the socket, which no unit takes away: a lock that is held must be found by the next broker.
    assert os.path.dirname(names.BROKER_LOCK_FILE) == os.path.dirname(names.BROKER_SOCKET)
    assert "RuntimeDirectory" not in settings_of(SERVICE)


def test_the_daemon_brings_the_socket_and_waits_for_neither() -> None:
    unit = (UNITS / "devward.service").read_text()
    assert f"Wants={SOCKET.name}\n" in unit
    assert not re.search(r"^(After|Requires|BindsTo)=.*devward-dcmi", unit, re.M)
    assert settings_of(SOCKET)["PartOf"] == "devward.service"


def test_systemd_takes_the_units() -> None:
    environment = {**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
    command = ["systemd-analyze", "--no-pager", "--man=no", "verify", str(SERVICE), str(SOCKET)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
