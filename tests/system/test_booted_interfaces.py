"""Every documented interface of the running service, used as an administrator uses it: busctl, gdbus, systemctl, journalctl, devwardctl."""

import functools
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from nspawn_machine import PATIENCE, SPEC, Machine, Talk, in_time, until

from devward import __version__, names

if os.geteuid() != 0:
    pytest.skip("needs root: a container is booted", allow_module_level=True)
pytest_plugins = ["nspawn_fixtures"]

DEVICE_PATH = names.device_path("kvm")
SPEC_PATH = names.spec_path(names.HYPERVISOR_CDI_FILE)
OBJECTS = {names.MANAGER_INTERFACE: names.ROOT_PATH, names.DEVICE_INTERFACE: DEVICE_PATH, names.SPEC_INTERFACE: SPEC_PATH}
#: A pin of what this host does not have.
TARGET = "01234567-89ABCDEF-01234567-89ABCDEF-00000007/212/vir05_1c_16g"
MANAGER = (names.BUS_NAME, names.ROOT_PATH, names.MANAGER_INTERFACE)

#: Methods that a host without NPUs and without a cluster has nothing for: they are among the wrong calls.
NOTHING_FOR = {"ReclaimVnpu", "AcceptNode"}
#: A call of every other method, and what its answer must be.
CALLS: dict[str, tuple[tuple[str, ...], Callable[[list[Any]], object]]] = {
    "Describe": ((), lambda data: json.loads(data[0])["manager"]["ready"] is True),
    "ListDevices": ((), lambda data: data[0][0][:5] == ["kvm", "/dev/kvm", "valid", "healthy", ""] and data[0][0][6] == DEVICE_PATH),
    "ListSpecs": ((), lambda data: data[0][0][:4] == [SPEC, names.HYPERVISOR_CDI_KIND, "true", ""] and data[0][0][6] == SPEC_PATH),
    "ListCards": ((), lambda data: data == [[]]),
    "ListVnpus": ((), lambda data: data == [[]]),
    "ListFindings": ((), lambda data: data == [[]]),
    "CheckAllocation": (("s", f"{names.HYPERVISOR_CDI_KIND}=kvm"), lambda data: data[0] is True),
    "Rescan": (("t", "0"), lambda data: data[1] == "done" and {row[1] for row in data[2]} <= {"success", "noop"}),
    "RepairSpecs": (("t", "0"), lambda data: data[1:] == ["done", [[SPEC, "noop", ""]]]),
    "AdoptSpec": (("st", names.HYPERVISOR_CDI_FILE, "0"), lambda data: data[1:] == ["done", [[SPEC, "noop", ""]]]),
    "PauseCdi": (("tst", "60", "a test", "0"), lambda data: data[1:] == ["done", [["cdi", "success", ""]]]),
    "ResumeCdi": (("t", "0"), lambda data: data[1:] == ["done", [["cdi", "success", ""]]]),
    "SetCdiMode": (("st", "repair", "0"), lambda data: data[1] == "done"),
    "ReclaimOrphans": (("t", "0"), lambda data: data[1:] == ["done", []]),
    "ReleaseBreaker": (("t", "0"), lambda data: data[1:] == ["done", [["breaker", "failure", "not-evaluated"]]]),
    "SetReclaimMode": (("st", "enforce", "0"), lambda data: data[1] == "done"),
    "PauseReclaim": (("tst", "60", "a test", "0"), lambda data: data[1:] == ["done", [["reclaim", "success", ""]]]),
    "ResumeReclaim": (("t", "0"), lambda data: data[1:] == ["done", [["reclaim", "success", ""]]]),
    "Pin": (("sst", TARGET, "a test", "0"), lambda data: data[1:] == ["done", [[TARGET, "success", "pin-unmatched"]]]),
    "Unpin": (("st", TARGET, "0"), lambda data: data[1:] == ["done", [[TARGET, "success", ""]]]),
    "Reload": (("t", "0"), lambda data: data[1:] == ["done", [["configuration", "success", ""]]]),
}
#: Those of them that check the device.
CHECKING = {"CheckAllocation", "Rescan"}


def contract(machine: Machine, interface: str) -> ET.Element:
    """Return the interface as the installed XML file has it."""
    node = ET.fromstring(machine.run("cat", f"/usr/share/dbus-1/interfaces/{interface}.xml"))
    found = node.find("interface")
    assert found is not None
    return found


def signature(member: ET.Element, direction: str) -> str:
    default = "in" if member.tag == "method" else "out"
    return "".join(argument.get("type", "") for argument in member.findall("arg") if argument.get("direction", default) == direction)


@contextmanager
def following(machine: Machine, *command: str) -> Iterator[Callable[[str], None]]:
    """Follow what a program prints; what is yielded waits for something to match a pattern."""
    seen: list[str] = []
    with machine.path("/run/followed").open("wb") as sink:
        process = subprocess.Popen(machine.enter(*command), stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT)

    def wait_for(pattern: str) -> None:
        def look() -> bool:
            seen[:] = [machine.path("/run/followed").read_text(errors="replace")]
            return re.search(pattern, seen[0], re.DOTALL) is not None

        until(look, f"{command[0]} shows {pattern}")

    try:
        yield wait_for
    finally:
        process.terminate()
        process.wait(PATIENCE)
        machine.run("rm", "-f", "/run/followed")


# --- busctl ----------------------------------------------------------------------------------------------------------
def test_busctl_tree_shows_every_object(host: Machine) -> None:
    listed = host.run("busctl", "--list", "tree", names.BUS_NAME).split()
    assert {names.ROOT_PATH, DEVICE_PATH, SPEC_PATH, names.LOG_CONTROL_PATH} <= set(listed)
    assert [path for path in listed if path.startswith(names.ROOT_PATH + "/") and path.count("/") == 5] == [DEVICE_PATH, SPEC_PATH]


@pytest.mark.parametrize("interface", OBJECTS)
def test_busctl_introspect_shows_exactly_the_installed_contract(host: Machine, interface: str) -> None:
    out = host.run("busctl", "--no-pager", "introspect", names.BUS_NAME, OBJECTS[interface], interface)
    shown = {tuple(line.split()[:4]) if " method " in line else tuple(line.split()[:3]) for line in out.splitlines()[1:]}
    wanted = set()
    for member in contract(host, interface):
        name = f".{member.get('name')}"
        match member.tag:
            case "method":
                wanted.add((name, "method", signature(member, "in") or "-", signature(member, "out") or "-"))
            case "signal":
                wanted.add((name, "signal", signature(member, "out")))
            case "property":
                wanted.add((name, "property", member.get("type", "")))
    assert shown == wanted


@pytest.mark.parametrize("interface", OBJECTS)
def test_every_property_is_read_and_has_a_documented_value(host: Machine, interface: str) -> None:
    for member in contract(host, interface).iter("property"):
        name = member.get("name", "")
        value = host.get(name, interface, OBJECTS[interface])
        assert isinstance(value, {"s": str, "t": int, "b": bool}.get(member.get("type", ""), list)), name
        for annotation in member.findall("annotation[@name='org.devward.Values']"):
            assert value in annotation.get("value", "").split("|"), name
    everything = host.run("busctl", "call", names.BUS_NAME, OBJECTS[interface], names.PROPERTIES_INTERFACE, "GetAll", "s", interface)
    assert everything.startswith(f"a{{sv}} {len(list(contract(host, interface).iter('property')))} ")


def test_every_method_answers_as_documented(host: Machine) -> None:
    assert CALLS.keys() | NOTHING_FOR == {member.get("name") for member in contract(host, names.MANAGER_INTERFACE).iter("method")}
    host.ask("SetCdiMode", "st", "repair", "0")
    for method, (arguments, is_right) in CALLS.items():
        call = functools.partial(host.ask, method, *arguments)
        data = in_time(call) if method in CHECKING else call()
        assert is_right(data), f"{method}: {data}"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (("CheckAllocation", "s", "/dev/null"), "Error.NoSuchDevice"),
        (("AdoptSpec", "st", "vendor.json", "0"), "Error.NoSuchSpec"),
        (("Unpin", "st", TARGET, "0"), "Error.NoSuchPin"),
        (("ReclaimVnpu", "ust", "212", f"{TARGET}/0123456789abcdef", "0"), "Error.NoSuchVnpu"),
        (("AcceptNode", "st", "3d3b4fd6-1d45-4b7b-9f5b-0c6a1e1f9a11", "0"), "Error.NoSuchNode"),
        (("Pin", "sst", "v0212", "why", "0"), "DBus.Error.InvalidArgs"),
        (("Rescan", "t", "1"), "DBus.Error.InvalidArgs"),
        (("PauseCdi", "tst", "0", "why", "0"), "DBus.Error.InvalidArgs"),
        (("Nonsense",), "DBus.Error.UnknownMethod"),
    ],
)
def test_a_wrong_call_gets_its_documented_error(host: Machine, call: tuple[str, ...], error: str) -> None:
    method, *rest = call
    types, values = rest[0] if rest else "", rest[1:]
    arguments = [f"'{value}'" if kind == "s" else value for kind, value in zip(types, values, strict=True)]
    to = ("--system", "--dest", names.BUS_NAME, "--object-path", names.ROOT_PATH)
    out = host.call("gdbus", "call", *to, "--method", f"{names.MANAGER_INTERFACE}.{method}", *arguments)
    assert out.status != 0
    assert error in out.err
    assert "Traceback" not in out.err


def test_busctl_monitor_shows_calls_signals_and_changes(host: Machine) -> None:
    with following(host, "busctl", "monitor", names.BUS_NAME) as wait_for:
        wait_for("Monitoring bus message stream")
        host.run("rm", SPEC)
        wait_for(r"Member=SpecRepaired.*STRING \"" + re.escape(SPEC) + r'";\s+STRING "missing"')
        (request, _, _) = host.ask("Rescan", "t", "0")
        wait_for(r"Member=Rescan")
        wait_for(r"Member=RequestFinished.*STRING \"" + request)
        wait_for(r"Member=PropertiesChanged.*" + re.escape(names.SPEC_INTERFACE) + r".*LastRepairUSec")


# --- gdbus -----------------------------------------------------------------------------------------------------------
def test_gdbus_introspects_calls_and_monitors(host: Machine) -> None:
    to = ("--system", "--dest", names.BUS_NAME)
    root = ("--object-path", names.ROOT_PATH)
    shown = host.run("gdbus", "introspect", *to, *root, "--recurse")
    for interface in OBJECTS:
        assert f"interface {interface} {{" in shown
    assert 'org.freedesktop.DBus.Property.EmitsChangedSignal("const")' in shown
    assert "CheckAllocation(in  s device" in shown
    check = ("gdbus", "call", *to, *root, "--method", f"{names.MANAGER_INTERFACE}.CheckAllocation", "/dev/kvm")
    called = in_time(lambda: host.run(*check))
    assert called.startswith("(true, '', '/dev/kvm may be given to a container', '")
    managed = host.run("gdbus", "call", *to, *root, "--method", f"{names.OBJECT_MANAGER_INTERFACE}.GetManagedObjects")
    assert DEVICE_PATH in managed
    assert SPEC_PATH in managed
    with following(host, "gdbus", "monitor", *to) as wait_for:
        wait_for("is owned by")
        host.shell(f"echo '{{' >{SPEC}")
        wait_for(rf"{names.MANAGER_INTERFACE}\.SpecRepaired \('{SPEC}', 'malformed'\)")


# --- systemctl -------------------------------------------------------------------------------------------------------
def test_the_log_level_is_changed_by_systemctl(host: Machine) -> None:
    assert host.run("systemctl", "service-log-level", "devward") == "info\n"
    host.run("systemctl", "service-log-level", "devward", "debug")
    try:
        assert host.run("systemctl", "service-log-level", "devward") == "debug\n"
        assert host.get("LogLevel", names.LOG_CONTROL_INTERFACE, names.LOG_CONTROL_PATH) == "debug"
        assert host.run("systemctl", "service-log-target", "devward") == "journal\n"
    finally:
        host.run("systemctl", "service-log-level", "devward", "info")
    refused = host.call("systemctl", "service-log-level", "devward", "nonsense")
    assert refused.status != 0


def test_a_call_starts_an_enabled_service_and_no_other(host: Machine) -> None:
    host.run("systemctl", "stop", "devward")
    assert host.unit("ActiveState") == "inactive"
    assert host.path(SPEC).exists(), "stopping withdraws nothing"
    assert host.get("Version") == __version__, "the call itself is answered"
    until(lambda: host.unit("ActiveState") == "active", "the call started it")
    until(lambda: host.get("Ready"), "it vouches for the host as before")

    host.run("systemctl", "disable", "--now", "devward")
    try:
        refused = host.call("busctl", "call", *MANAGER, "ListDevices")
        assert refused.status != 0
        assert host.unit("ActiveState") == "inactive"
        told = host.call("devwardctl", "status")
        assert told.status == 3
        assert "Traceback" not in told.text
    finally:
        host.run("systemctl", "enable", "--now", "devward")
    until(lambda: host.get("Ready"), "it vouches for the host as before")


# --- the journal -----------------------------------------------------------------------------------------------------
def test_the_journal_has_intent_and_outcome_with_every_field_and_an_explanation(host: Machine) -> None:
    before = host.cursor()
    host.shell(f"echo '# tampered' >>{SPEC}")
    until(lambda: host.records(before, DEVWARD_EVENT="spec-repair", DEVWARD_OUTCOME="success"), "the repair is on record")
    intent, outcome = host.records(before, DEVWARD_EVENT="spec-repair")
    assert [intent["DEVWARD_OUTCOME"], outcome["DEVWARD_OUTCOME"]] == ["intent", "success"]
    assert intent["DEVWARD_REQUEST_ID"] == outcome["DEVWARD_REQUEST_ID"]
    for record in (intent, outcome):
        assert record["MESSAGE_ID"] == names.MESSAGE_IDS["spec-repair"]
        assert record["DEVWARD_CDI_FILE"] == SPEC
        assert record["DEVWARD_CAUSE"] == "malformed"
        assert record["DEVWARD_TRIGGER"] == "inotify"
        assert record["DOCUMENTATION"] == names.DOCUMENTATION
        assert record["SYSLOG_IDENTIFIER"] == names.SYSLOG_IDENTIFIER
        assert (record["_SYSTEMD_UNIT"], record["_COMM"], record["_TRANSPORT"]) == ("devward.service", "devwardd", "journal")
    evidence = json.loads(intent["DEVWARD_EVIDENCE"])
    assert evidence["differences"]
    digest = host.run("sha256sum", SPEC).split()[0]
    assert outcome["DEVWARD_SHA256_AFTER"] == digest
    assert int(outcome["DEVWARD_DURATION_USEC"]) > 0

    request = f"DEVWARD_REQUEST_ID={intent['DEVWARD_REQUEST_ID']}"
    explained = host.run("journalctl", "-u", "devward", "-x", "--no-pager", request)
    assert f"Wrote {SPEC}: malformed" in explained
    assert "Subject: " in explained
    assert re.search(r"░░ .*" + re.escape(SPEC), explained), "the catalog names the file"
    assert "@DEVWARD" not in explained
    for match in (("-u", "devward"), ("DEVWARD_EVENT=spec-repair",), (f"DEVWARD_CDI_FILE={SPEC}",), ("-t", "devwardd")):
        lines = host.run("journalctl", *match, request, "-o", "cat").splitlines()
        assert lines == [f"About to write {SPEC}: malformed", f"Wrote {SPEC}: malformed"]


def test_every_message_id_has_an_entry_in_the_installed_catalog(host: Machine) -> None:
    listed = host.run("journalctl", "--list-catalog", *names.MESSAGE_IDS.values())
    assert len(listed.splitlines()) == len(names.MESSAGE_IDS)


def test_who_asked_is_on_record_with_what_journald_knows_of_that_process(host: Machine) -> None:
    before = host.cursor()
    arguments = json.dumps([300, "a test, \u2018quoted\u2019 and\u00a0odd", 0])
    with Talk(host.python("nspawn_caller.py", "PauseCdi", "tst", arguments)) as caller:
        request, state, _ = json.loads(caller.hear())
        host.ask("ResumeCdi", "t", "0")
        assert state == "done"
        found = host.records(before, DEVWARD_REQUEST_ID=request)
    assert [record["DEVWARD_OUTCOME"] for record in found] == ["intent", "success"]
    for record in found:
        assert record["DEVWARD_EVENT"] == "action"
        assert record["DEVWARD_MEMBER"] == "PauseCdi"
        assert record["DEVWARD_TRIGGER"] == "dbus"
        assert record["DEVWARD_CALLER"].startswith(":1.")
        assert record["DEVWARD_CALLER_UID"] == "0"
        assert (record["OBJECT_UID"], record["OBJECT_COMM"]) == ("0", "python3")
        assert "PauseCdi" in record["OBJECT_CMDLINE"]
        assert int(record["OBJECT_PID"]) > 1
    shown = host.run("devwardctl", "history", "--request", request)
    assert "PauseCdi" in shown


# --- devwardctl ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("status",), "is ready"),
        (("devices",), "/dev/kvm"),
        (("specs",), SPEC),
        (("findings",), ""),
        (("explain", "kvm"), "/dev/kvm"),
        (("check", "kvm"), "may be given to a container"),
        (("repair",), SPEC),
        (("rescan",), "/dev/kvm"),
        (("reload",), "configuration"),
        (("pause", "cdi", "5m", "a", "test"), ""),
        (("resume", "cdi"), ""),
        (("mode", "cdi", "repair"), ""),
        (("config",), "cdi.directory"),
        (("config", "--check"), "good"),
        (("history", "--event", "spec-repair"), SPEC),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_devwardctl_does_everything_on_a_real_host(host: Machine, words: tuple[str, ...], shown: str) -> None:
    try:
        call = functools.partial(host.call, "devwardctl", *words)
        done = in_time(call) if words[0] in {"check", "rescan"} else call()
        assert done.status == 0, done.text
        assert shown in done.out
        assert done.err == ""
    finally:
        host.ask("ResumeCdi", "t", "0")
