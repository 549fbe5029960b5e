"""What an unprivileged local user can do to a running devward: see what is public, and nothing else."""

import json
import os
import time
from collections import Counter
from contextlib import ExitStack

import pytest
from nspawn_machine import PATIENCE, SPEC, Machine, Talk, until

from devward import names

if os.geteuid() != 0:
    pytest.skip("needs root: a container is booted", allow_module_level=True)
pytest_plugins = ["nspawn_fixtures"]

USER = "mallory"
PROGRAM = "nspawn_attacker.py"
DBUS = "org.freedesktop.DBus"
#: What anybody may call: state that is public.
PUBLIC = {
    f"{names.PEER_INTERFACE}.Ping",
    f"{names.PEER_INTERFACE}.GetMachineId",
    f"{names.INTROSPECTABLE_INTERFACE}.Introspect",
    f"{names.PROPERTIES_INTERFACE}.Get",
    f"{names.PROPERTIES_INTERFACE}.GetAll",
    f"{names.OBJECT_MANAGER_INTERFACE}.GetManagedObjects",
    *(f"{names.MANAGER_INTERFACE}.{name}" for name in ("Describe", "ListDevices", "ListSpecs", "ListCards", "ListVnpus", "ListFindings")),
}
#: How what is not public is refused.
REFUSED = {
    *(f"{DBUS}.Error.{name}" for name in ("AccessDenied", "InteractiveAuthorizationRequired", "InvalidArgs", "LimitsExceeded")),
    *(f"{DBUS}.Error.{name}" for name in ("PropertyReadOnly", "UnknownProperty", "UnknownInterface")),
    f"{names.ERROR_PREFIX}NoSuchDevice",
    f"{names.ERROR_PREFIX}NoSuchSpec",
}
FLOODERS = 3
FLOOD_SECONDS = 5.0


@pytest.fixture(scope="module", name="user", autouse=True)
def _user(machine: Machine) -> None:
    machine.run("useradd", "--create-home", USER)


def standing(machine: Machine) -> dict[str, object]:
    """Return what an attacker must not be able to change."""
    files = (SPEC, f"{names.STATE_DIRECTORY}/{names.STATE_FILE}")
    return {
        "files": machine.run("sh", "-c", f"stat -c '%n %i %Y %a %u %g' {' '.join(files)}; sha256sum {' '.join(files)}"),
        "mode": machine.get("CdiMode"),
        "pause": machine.get("CdiPausedUntilUSec"),
        "level": machine.get("LogLevel", names.LOG_CONTROL_INTERFACE, names.LOG_CONTROL_PATH),
        "pid": machine.main_pid(),
        "restarts": machine.unit("NRestarts"),
    }


def test_every_call_and_every_property_is_public_or_refused(host: Machine) -> None:
    before, since = standing(host), host.cursor()
    results = json.loads(host.run_python(PROGRAM, "calls", user=USER))
    members = {what.split()[1] for what, _, _ in results}
    assert members >= PUBLIC
    assert f"{names.PROPERTIES_INTERFACE}.Set" in members
    assert {f"{names.MANAGER_INTERFACE}.{name}" for name in ("Rescan", "AdoptSpec", "PauseCdi", "SetCdiMode", "Reload")} <= members
    for what, error, text in results:
        member = what.split()[1]
        if member not in PUBLIC:
            assert error in REFUSED, f"{what}: {error or 'done'} {text}"
        assert "Traceback" not in text
        assert ".py" not in text
        assert "Internal" not in error, f"{what}: {text}"
        assert len(text) < 1000, "what the attacker sent is not sent back at length"
    print(host.release, len(results), "calls:", Counter(error.rpartition(".")[2] or "public" for _, error, _ in results))
    assert standing(host) == before

    records = host.records(since)
    denials = [record for record in records if record.get("DEVWARD_EVENT") == "action-denied"]
    assert 1 <= len(denials) < 40, "denials are recorded, and counted where they repeat"
    assert {record["SYSLOG_IDENTIFIER"] for record in records} == {names.SYSLOG_IDENTIFIER}
    assert not [record for record in records if record["MESSAGE"] == "forged"]


def test_nobody_listens_to_what_others_ask(host: Machine) -> None:
    with Talk(host.python(PROGRAM, "listen", user=USER)) as listener:
        assert listener.hear() == "listening"
        secret = "only root and devward know this"
        host.ask("PauseCdi", "tst", "60", secret, "0")
        host.ask("ResumeCdi", "t", "0")
        host.ask("Describe")
        ended = listener.end()
    heard = json.loads(ended.out.splitlines()[-1])
    assert "BecomeMonitor" in heard["refused"]
    assert heard["seen"] == []
    refused = host.call("busctl", "monitor", names.BUS_NAME, user=USER)
    assert refused.status != 0
    assert "denied" in refused.err


def test_nobody_else_gets_the_name(host: Machine) -> None:
    def attempt() -> tuple[str, str]:
        error, text = json.loads(host.run_python(PROGRAM, "own", user=USER))
        return error, text

    assert attempt()[0] == f"{DBUS}.Error.AccessDenied"
    host.run("systemctl", "stop", "devward")
    try:
        assert attempt()[0] == f"{DBUS}.Error.AccessDenied", "also while nobody has it"
    finally:
        host.run("systemctl", "start", "devward")


@pytest.mark.parametrize(
    "command",
    [
        f"ls {names.STATE_DIRECTORY}",
        f"cat {names.STATE_DIRECTORY}/{names.STATE_FILE}",
        f"ls {names.STATE_DIRECTORY}/{names.BACKUP_DIRECTORY}",
        f"cat {names.RUNTIME_DIRECTORY}/{names.LOCK_FILE}",
        f"touch {names.RUNTIME_DIRECTORY}/x",
        f"touch {names.CDI_DIRECTORY}/x",
        f"sh -c 'echo >>{SPEC}'",
        f"rm -f {SPEC}",
        f"touch {names.CONFIG_DROPIN_DIRECTORY}/x.toml",
        "systemctl stop devward",
        "systemctl reload devward",
        "systemctl kill -s KILL devward",
        "systemctl service-log-level devward debug",
        "devwardctl pause cdi 1m why",
        "devwardctl mode cdi off",
    ],
)
def test_files_and_unit_are_out_of_reach(host: Machine, command: str) -> None:
    before = standing(host)
    assert host.call("sh", "-c", command, user=USER).status != 0
    assert standing(host) == before


def test_a_flood_of_calls_keeps_nobody_else_waiting(host: Machine) -> None:
    pid, restarts = host.main_pid(), host.unit("NRestarts")
    waits: list[float] = []
    with ExitStack() as stack:
        attackers = [stack.enter_context(Talk(host.python(PROGRAM, "flood", user=USER))) for _ in range(FLOODERS)]
        for attacker in attackers:
            assert attacker.hear() == "flooding"
        end = time.monotonic() + FLOOD_SECONDS
        while time.monotonic() < end:
            start = time.monotonic()
            # busctl waits for 25 s, and devward promises an answer within 2.
            assert host.allocation()[0] is True
            waits.append(time.monotonic() - start)
        ended = [json.loads(attacker.end().out.splitlines()[-1]) for attacker in attackers]
    sent = sum(one["sent"] for one in ended)
    worst, median = max(waits), sorted(waits)[len(waits) // 2]
    print(f"Debian {host.release}: {sent} calls in {FLOOD_SECONDS} s; root's {len(waits)}: median {median:.3f} s, worst {worst:.3f} s")
    assert sent >= 1000
    assert (host.main_pid(), host.unit("NRestarts")) == (pid, restarts)

    host.run("rm", SPEC)
    until(host.path(SPEC).exists, "it repairs as before")
    usage = host.run("cat", f"/proc/{pid}/status")
    (resident,) = [int(line.split()[1]) for line in usage.splitlines() if line.startswith("VmRSS:")]
    print(f"resident afterwards: {resident / 1024:.1f} MiB")
    assert resident < 100_000
    assert worst < PATIENCE
