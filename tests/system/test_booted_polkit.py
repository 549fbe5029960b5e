"""Who may do what on a booted Debian with a real polkitd, sessions and terminals: allowed, denied, asked."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from nspawn_machine import PATIENCE, Machine, until

from devward import names

if os.geteuid() != 0:
    pytest.skip("needs root: a container is booted", allow_module_level=True)
pytest_plugins = ["nspawn_fixtures"]

#: Unprivileged users: two without any group, and one in the group of the example's rules. Only some denials a minute are recorded for each.
USER, ASKER, OPERATOR = "somebody", "asker", "operator1"
PASSWORD = "not-the-password-of-this-host"
RULES = "/etc/polkit-1/rules.d/50-devward-operators.rules"
EXAMPLE = "/usr/share/doc/devward/examples/50-devward-operators.rules"

#: A call that needs each action.
OF_ACTION = {
    names.ACTION_CHECK: ("CheckAllocation", "s", "kvm"),
    names.ACTION_RESCAN: ("Rescan", "t", "0"),
    names.ACTION_REPAIR_CDI: ("RepairSpecs", "t", "0"),
    names.ACTION_PROTECT: ("PauseCdi", "tst", "60", "why", "0"),
    names.ACTION_RELEASE: ("ResumeCdi", "t", "0"),
    names.ACTION_RECLAIM: ("ReclaimOrphans", "t", "1"),
}


def restart_polkit(machine: Machine) -> None:
    """Have the rules read again; often, where systemd sees no reason to."""
    machine.call("systemctl", "reset-failed", "polkit")
    machine.run("systemctl", "restart", "polkit")


@pytest.fixture(scope="module", name="users", autouse=True)
def _users(machine: Machine) -> None:
    machine.shell(f"""
        groupadd --system devward-operators
        useradd --create-home {USER}
        useradd --create-home {ASKER}
        useradd --create-home --groups devward-operators {OPERATOR}
        echo root:{PASSWORD} | chpasswd
    """)
    # Its first start takes longer than devward waits for an answer, where the machine is busy.
    restart_polkit(machine)


@pytest.fixture(name="rules")
def _rules(host: Machine) -> Iterator[Machine]:
    host.run("cp", EXAMPLE, RULES)
    restart_polkit(host)
    yield host
    host.run("rm", "-f", RULES)
    restart_polkit(host)
    host.ask("ResumeCdi", "t", "0")


@dataclass(frozen=True)
class Called:
    """How a call by gdbus ended; gdbus allows no prompt unless it is told to."""

    error: str
    text: str


def call(machine: Machine, user: str, words: tuple[str, ...], *, interactive: bool = False) -> Called:
    method, types, *values = words
    arguments = [f"'{value}'" if kind == "s" else value for kind, value in zip(types, values, strict=True)]
    to = ("--system", "--dest", names.BUS_NAME, "--object-path", names.ROOT_PATH, "--method", f"{names.MANAGER_INTERFACE}.{method}")
    asking = ("--interactive",) if interactive else ()
    done = machine.call("gdbus", "call", *asking, *to, *arguments, user=user)
    if done.status == 0:
        return Called("", done.out)
    return Called(done.err.split("GDBus.Error:")[1].split(":")[0], done.err)


def at_terminal(machine: Machine, user: str, command: str, password: str = PASSWORD) -> tuple[int, str]:
    """Let a user log in at a terminal and type a command."""
    line = machine.python("nspawn_terminal.py", user, password, str(PATIENCE), command)
    done = subprocess.run(line, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("action", OF_ACTION)
def test_an_unprivileged_user_needs_an_administrator_for_every_action(host: Machine, action: str) -> None:
    before = host.cursor()
    called = call(host, USER, OF_ACTION[action])
    assert called.error == "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"
    assert "the call did not allow a prompt" in called.text
    (record,) = host.records(before, DEVWARD_EVENT="action-denied")
    assert record["DEVWARD_POLKIT_ACTION"] == action
    assert record["DEVWARD_MEMBER"] == OF_ACTION[action][0]
    assert record["DEVWARD_OUTCOME"] == "denied"
    assert record["DEVWARD_CALLER_UID"] == host.run("id", "-u", USER).strip()
    assert int(record["OBJECT_PID"]) > 1


def test_who_cannot_be_asked_is_told_so(host: Machine) -> None:
    called = call(host, USER, OF_ACTION[names.ACTION_RESCAN], interactive=True)
    assert called.error == "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"
    assert "no authentication agent" in called.text
    done = host.call("devwardctl", "rescan", user=USER)
    assert done.status == 4
    assert "nobody could be asked" in done.err


def test_anybody_may_see_the_state_but_not_the_configuration(host: Machine) -> None:
    assert "is ready" in host.run("devwardctl", "status", user=USER)
    described = host.ask("Describe", user=USER)[0]
    assert '"config"' not in described
    until(lambda: '"config"' in host.ask("Describe")[0], "root sees it, once the bus says within a second who asks")


def test_the_example_rules_allow_operators_to_look_and_repair_and_no_more(rules: Machine) -> None:
    allowed = {names.ACTION_CHECK, names.ACTION_RESCAN, names.ACTION_REPAIR_CDI}
    for action, words in OF_ACTION.items():
        called = call(rules, OPERATOR, words)
        assert (called.error == "") is (action in allowed), f"{action}: {called.text}"
        assert call(rules, USER, words).error == "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"
    until(lambda: '"config"' in rules.ask("Describe", user=OPERATOR)[0], "they see it, once polkit says so within a second")


def test_a_rule_that_says_no_denies_without_a_prompt(rules: Machine) -> None:
    rules.path(RULES).write_text(
        'polkit.addRule(function (action, subject) { if (action.id.indexOf("org.devward.") == 0) return polkit.Result.NO; });\n'
    )
    restart_polkit(rules)
    for action, words in OF_ACTION.items():
        called = call(rules, OPERATOR, words, interactive=True)
        assert called.error == "org.freedesktop.DBus.Error.AccessDenied", action
        assert f"The action {action} is not allowed to you." in called.text
    status, shown = at_terminal(rules, OPERATOR, "devwardctl rescan")
    assert status == 4
    assert "assword" not in shown
    assert rules.ask("Rescan", "t", "0")[1] == "done", "root is never asked about"


def test_a_rule_sees_the_arguments_of_the_call(rules: Machine) -> None:
    rules.path(RULES).write_text("""
        polkit.addRule(function (action, subject) {
            if (action.id == "org.devward.devward1.protect" && action.lookup("seconds") == "60") return polkit.Result.YES;
        });
    """)
    restart_polkit(rules)
    assert call(rules, USER, ("PauseCdi", "tst", "60", "why", "0")).error == ""
    assert call(rules, USER, ("PauseCdi", "tst", "61", "why", "0")).error == "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"


def test_stopping_repairs_and_resuming_them_are_asked_for_apart_at_a_terminal(host: Machine) -> None:
    before = host.cursor()
    status, shown = at_terminal(host, ASKER, "devwardctl pause cdi 5m because")
    try:
        assert status == 0, shown
        assert "AUTHENTICATING FOR org.devward.devward1.protect" in shown
        assert "Authentication is required to stop devward from writing CDI files or reclaiming vNPUs, or to pin vNPUs." in shown
        assert host.get("CdiPausedUntilUSec") > 0
        (record,) = host.records(before, DEVWARD_EVENT="action", DEVWARD_OUTCOME="success")
        assert record["DEVWARD_CALLER_UID"] == host.run("id", "-u", ASKER).strip()

        status, shown = at_terminal(host, ASKER, "devwardctl resume cdi", "a wrong password")
        assert status == 4
        assert host.get("CdiPausedUntilUSec") > 0
        assert host.records(before, DEVWARD_EVENT="action-denied", DEVWARD_POLKIT_ACTION=names.ACTION_RELEASE)

        status, shown = at_terminal(host, ASKER, "devwardctl resume cdi")
        assert status == 0, shown
        assert "AUTHENTICATING FOR org.devward.devward1.release" in shown
        assert host.get("CdiPausedUntilUSec") == 0
    finally:
        host.ask("ResumeCdi", "t", "0")


def test_without_polkitd_root_alone_can_act(host: Machine) -> None:
    host.run("systemctl", "mask", "--runtime", "--now", "polkit")
    try:
        called = call(host, OPERATOR, OF_ACTION[names.ACTION_CHECK])
        assert called.error == "org.freedesktop.DBus.Error.AccessDenied"
        assert host.allocation() == (True, "")
    finally:
        host.run("systemctl", "unmask", "--runtime", "polkit")


def test_polkit_knows_every_action(host: Machine) -> None:
    known = host.run("pkaction").split()
    assert {action for action in known if action.startswith(names.POLKIT_PREFIX)} == {*OF_ACTION, names.ACTION_INSPECT}
