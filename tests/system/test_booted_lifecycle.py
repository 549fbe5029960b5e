"""Upgrade, removal, purge and installation again on a running system, with engines that read the CDI file and a guest that runs."""

import contextlib
import json
import os
from collections.abc import Iterator

import pytest
from nspawn_machine import NEXT, SLOW_START, SPEC, Machine, Talk, until

from devward import __version__, names

if os.geteuid() != 0:
    pytest.skip("needs root: a container is booted", allow_module_level=True)
pytest_plugins = ["nspawn_fixtures"]

VENDOR = f"{names.CDI_DIRECTORY}/vendor.json"


@pytest.fixture(name="fresh")
def _fresh(bare: Machine) -> Machine:
    """A machine of this test's own, with devward installed and well."""
    if not os.path.exists("/dev/kvm"):
        pytest.skip("needs /dev/kvm: a host that devward vouches for")
    bare.show_devtmpfs()
    bare.install()
    bare.healthy()
    return bare


class Guest(Talk):
    """A process in the machine that holds a virtual machine."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.python("nspawn_vm.py"))
        assert self.hear() == "running"

    def runs(self) -> bool:
        """Whether it can still be worked with."""
        self.say("")
        return self.hear() == "running"


def file_state(machine: Machine) -> str:
    """Return everything of the CDI file by which a rewrite would show."""
    return machine.run("sh", "-c", f"stat -c '%i %y %z' {SPEC}; cat {SPEC}")


def test_an_upgrade_leaves_no_moment_without_a_whole_and_right_file(fresh: Machine) -> None:
    before, pid = file_state(fresh), fresh.main_pid()
    with Guest(fresh) as guest, Talk(fresh.python("nspawn_reader.py", SPEC)) as reader:
        assert reader.hear() == "reading"
        fresh.install(NEXT)
        assert fresh.active_again(pid)
        fresh.healthy()
        ended = json.loads(reader.end().out.splitlines()[-1])
        assert guest.runs()
    print(f"Debian {fresh.release}: {ended['reads']} reads during the upgrade")
    assert ended["odd"] == []
    assert ended["reads"] > 1000
    assert file_state(fresh) == before
    assert fresh.get("Version") == NEXT
    assert fresh.unit("NRestarts") == "0", "the package restarted it, and nothing else had to"
    assert fresh.run("systemctl", "is-enabled", "devward") == "enabled\n"
    assert fresh.run("systemctl", "is-system-running") == "running\n"


def test_an_upgrade_leaves_a_stopped_and_disabled_service_alone(fresh: Machine) -> None:
    fresh.run("systemctl", "disable", "--now", "devward")
    before = file_state(fresh)
    fresh.install(NEXT)
    assert fresh.call("systemctl", "is-enabled", "devward").out == "disabled\n"
    assert fresh.unit("ActiveState") == "inactive"
    assert file_state(fresh) == before


def test_a_guest_survives_everything(fresh: Machine) -> None:
    with Guest(fresh) as guest:
        fresh.shell(f"echo '{{' >{SPEC}")
        until(
            lambda: fresh.get("RepairCount", names.SPEC_INTERFACE, names.spec_path(names.HYPERVISOR_CDI_FILE)) >= 1, "the file is repaired"
        )
        assert guest.runs()
        fresh.run("systemctl", "restart", "devward")
        assert guest.runs()
        pid = fresh.main_pid()
        fresh.run("systemctl", "kill", "--signal=KILL", "devward")
        assert guest.runs()
        fresh.active_again(pid)
        fresh.install(NEXT)
        fresh.healthy()
        assert guest.runs()
        removed = fresh.apt("purge", "devward")
        assert removed.status == 0, removed.text
        assert guest.runs()


@contextlib.contextmanager
def asked_all_the_time(machine: Machine) -> Iterator[None]:
    """Have a client call devward over and over, which starts it when it may be started."""
    call = f"busctl get-property {names.BUS_NAME} {names.ROOT_PATH} {names.MANAGER_INTERFACE} Version"
    with Talk(machine.enter("sh", "-c", f"echo asking; until [ -e /run/enough ]; do {call} >/dev/null 2>&1; done")) as client:
        assert client.hear() == "asking"
        try:
            yield
        finally:
            machine.run("touch", "/run/enough")
            client.end()
            machine.run("rm", "/run/enough")


def test_removal_takes_our_file_and_nothing_else_while_clients_go_on_calling(fresh: Machine) -> None:
    fresh.shell(f"echo '{{}}' >{VENDOR}")
    with asked_all_the_time(fresh):
        done = fresh.apt("remove", "devward")
    assert done.status == 0, done.text
    assert f"removed {SPEC}\n" in done.out
    assert fresh.run("ls", "-A", names.CDI_DIRECTORY) == f"{os.path.basename(VENDOR)}\n"
    assert fresh.unit("ActiveState") == "inactive"
    assert fresh.unit("LoadState") == "not-found"
    assert fresh.call("sh", "-c", "ls -d /run/devward /run/systemd/system/devward.service /tmp/*devward* 2>/dev/null").out == ""
    assert fresh.call("sh", "-c", "grep -lx devwardd /proc/[0-9]*/comm 2>/dev/null").out == ""
    assert fresh.run("systemctl", "is-system-running") == "running\n"

    fresh.install()
    fresh.healthy()
    assert fresh.run("ls", names.CDI_DIRECTORY).split() == [names.HYPERVISOR_CDI_FILE, os.path.basename(VENDOR)]


def test_removal_leaves_a_file_that_somebody_changed_and_says_so(fresh: Machine) -> None:
    fresh.ask("SetCdiMode", "st", "observe", "0")
    changed = fresh.run("cat", SPEC).replace("65534", "1234")
    fresh.path(SPEC).write_text(changed)
    done = fresh.apt("remove", "devward")
    assert done.status == 0, done.text
    assert f"left {SPEC}: its content is not what devward wrote\n" in done.text
    assert fresh.run("cat", SPEC) == changed


def test_purge_takes_state_and_configuration_and_a_new_installation_works(fresh: Machine) -> None:
    fresh.shell(f"echo '{{}}' >{VENDOR}; echo '[log]' >{names.CONFIG_DROPIN_DIRECTORY}/site.toml")
    done = fresh.apt("purge", "devward")
    assert done.status == 0, done.text
    left = fresh.run("find", "/etc", "/usr", "/var", "/run", "-xdev", "-iname", "*devward*", "-not", "-path", "/var/cache/apt/*")
    # journald's are about the boot, the log of dpkg about the package, and one is the test's own.
    own = ("/var/log/", "/run/log/", os.path.dirname(SLOW_START))
    assert [path for path in left.splitlines() if not path.startswith(own)] == []
    assert fresh.run("ls", "-A", names.CDI_DIRECTORY) == f"{os.path.basename(VENDOR)}\n"
    assert fresh.run("ls", "/etc/systemd/system/multi-user.target.wants").find("devward") == -1

    fresh.install()
    fresh.healthy()
    assert fresh.unit("ActiveState") == "active"
    assert fresh.run("systemctl", "is-enabled", "devward") == "enabled\n"


@contextlib.contextmanager
def failing(machine: Machine, program: str) -> Iterator[None]:
    """Have a program that maintainer scripts call fail meanwhile."""
    machine.shell(f"dpkg-divert --local --rename --add --quiet {program}; printf '#!/bin/sh\\nexit 1\\n' >{program}; chmod 755 {program}")
    try:
        yield
    finally:
        machine.shell(f"rm {program}; dpkg-divert --local --rename --remove --quiet {program}")


def test_a_configuration_step_that_fails_leaves_the_old_file_and_a_service_that_can_be_restarted(fresh: Machine) -> None:
    before, pid = file_state(fresh), fresh.main_pid()
    with Guest(fresh) as guest, Talk(fresh.python("nspawn_reader.py", SPEC)) as reader:
        assert reader.hear() == "reading"
        with failing(fresh, "/usr/bin/py3compile"):
            done = fresh.apt("install", fresh.package(NEXT))
            assert done.status != 0
            assert "dpkg: error processing package devward (--configure)" in done.text
        assert fresh.run("dpkg-query", "-W", "-f", "${db:Status-Status}", "devward") == "half-configured"
        assert fresh.main_pid() == pid, "the old one goes on"
        assert fresh.call("devwardctl", "status").status == 0
        fresh.run("systemctl", "restart", "devward")
        fresh.healthy()
        assert fresh.get("Version") == NEXT
        mended = fresh.call("dpkg", "--configure", "-a")
        assert mended.status == 0, mended.text
        fresh.healthy()
        assert json.loads(reader.end().out.splitlines()[-1])["odd"] == []
        assert guest.runs()
    assert file_state(fresh) == before
    assert fresh.run("dpkg-query", "-W", "-f", "${db:Status-Status}", "devward") == "installed"


def test_an_upgrade_without_a_service_manager_that_answers_leaves_the_old_one_running(fresh: Machine) -> None:
    before, pid = file_state(fresh), fresh.main_pid()
    with failing(fresh, "/usr/bin/systemctl"):
        fresh.install(NEXT)
    assert fresh.main_pid() == pid
    assert fresh.get("Version") == __version__
    assert file_state(fresh) == before
    fresh.run("systemctl", "restart", "devward")
    fresh.healthy()
    assert fresh.get("Version") == NEXT
    assert file_state(fresh) == before
