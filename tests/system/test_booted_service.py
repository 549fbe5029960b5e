"""The service under a real service manager: killed, hanging, reloaded, wrongly configured, its directory removed, its sandbox changed."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nspawn_machine import SITE, SPEC, Machine, Talk, until

from devward import names

if os.geteuid() != 0:
    pytest.skip("needs root: a container is booted", allow_module_level=True)
pytest_plugins = ["nspawn_fixtures"]

EXAMPLES = "/usr/share/doc/devward/examples"
KUBELET = "/etc/systemd/system/kubelet.service"
#: EX_CONFIG of <sysexits.h>.
EXIT_CONFIG = "78"
#: For busctl.
RESCAN = f"call {names.BUS_NAME} {names.ROOT_PATH} {names.MANAGER_INTERFACE} Rescan t 0"
SPEC_OBJECT = (names.SPEC_INTERFACE, names.spec_path(names.HYPERVISOR_CDI_FILE))


def spec_is_right(machine: Machine) -> bool:
    """Whether the CDI file defines the device for the configured owner."""
    return machine.path(SPEC).is_file() and '"path": "/dev/kvm"' in machine.path(SPEC).read_text()


@contextmanager
def configuration(machine: Machine, text: str) -> Iterator[None]:
    """Have a configuration of the site on disk meanwhile."""
    machine.path(SITE).write_text(text)
    try:
        yield
    finally:
        machine.run("rm", "-f", SITE)
        if machine.unit("ActiveState") == "active":
            machine.run("systemctl", "reload", "devward")


# --- killed, stopped, hanging ----------------------------------------------------------------------------------------
def test_killed_it_is_started_again_and_finds_what_happened_meanwhile(host: Machine) -> None:
    """With the unit as it is shipped."""
    pid, restarts = host.main_pid(), int(host.unit("NRestarts"))
    left = f"{names.CDI_DIRECTORY}/{names.TEMPORARY_PREFIX}{names.HYPERVISOR_CDI_FILE}.0123456789abcdef{names.TEMPORARY_SUFFIX}"
    # One that runs looks at no such file; the next one has to find it at its start.
    host.shell(f"echo half >{left}")
    host.run("systemctl", "kill", "--signal=KILL", "devward")
    host.shell(f"echo '{{' >{SPEC}; chmod 0600 {SPEC}")
    again = host.active_again(pid)
    assert int(host.unit("NRestarts")) == restarts + 1
    until(lambda: spec_is_right(host), "the file is right")
    assert host.run("stat", "--format=%a %U:%G %h", SPEC) == "644 root:root 1\n"
    assert host.run("ls", "-A", names.CDI_DIRECTORY) == f"{names.HYPERVISOR_CDI_FILE}\n", "nothing is left of the write that was cut off"
    until(lambda: host.run("cat", f"/sys/fs/cgroup/{host.unit('ControlGroup')}/cgroup.procs").split() == [str(again)], "no child is left")


def test_killed_again_and_again_in_the_middle_of_its_work_it_leaves_nothing_behind(host: Machine) -> None:
    with host.drop_in("[Service]\nRestartSec=50ms\n"):
        pid = host.main_pid()
        for number in range(8):
            host.shell(f"echo {number} >{SPEC}; busctl --expect-reply=no {RESCAN}")
            time.sleep(0.004 * number)  # somewhere in the middle, each time further on
            host.run("systemctl", "kill", "--signal=KILL", "devward")
            pid = host.active_again(pid)
        until(lambda: host.call("devwardctl", "check", "kvm").status == 0, "it vouches for the device")
        assert spec_is_right(host)
        assert host.run("ls", "-A", names.CDI_DIRECTORY) == f"{names.HYPERVISOR_CDI_FILE}\n"


def test_one_that_hangs_is_ended_by_the_watchdog_and_started_again(host: Machine) -> None:
    assert host.unit("WatchdogUSec") == "1min"
    with host.drop_in("[Service]\nWatchdogSec=1s\nRestartSec=50ms\n"):

        def is_left_alone() -> bool:
            """Whether it gives its pulse for twice the time and more; not where the machine stood still for so long."""
            pid = host.active_again()
            time.sleep(2.5)
            return host.main_pid() == pid

        def stopped() -> int:
            """Return the pid of the one that stands still now; 0: it was started again just then."""
            pid = host.active_again()
            return pid if host.call("sh", "-c", f"kill -STOP {pid}").status == 0 else 0

        until(is_left_alone, "it gives its pulse and is left alone")
        before = host.cursor()
        host.active_again(until(stopped, "one of them stands still"))
        host.run("journalctl", "--sync")
        told = host.run("journalctl", "-o", "cat", f"--after-cursor={before}")
        assert "Watchdog timeout" in told
        until(lambda: host.call("devwardctl", "status").status == 0, "it vouches for this host again")


def test_a_hang_at_start_does_not_hold_up_the_kubelet(host: Machine) -> None:
    host.path(KUBELET).write_text("[Service]\nType=exec\nExecStart=/bin/sleep infinity\n")
    try:
        assert "devward.service" in until(lambda: host.unit("After", "kubelet.service"), "the order of units").split()
        assert "devward.service" not in host.unit("Requires", "kubelet.service").split()
        # The limit is the one that is shipped; what came of the start is to be read before the next one.
        limit = host.run("grep", "^TimeoutStartSec=", host.unit("FragmentPath"))
        with host.drop_in(f"[Service]\nExecStart=\nExecStart=/bin/sleep infinity\nRestartSec=10min\n{limit}", restart=False):
            host.run("systemctl", "stop", "devward")
            start = time.monotonic()
            host.run("systemctl", "start", "--no-block", "devward.service", "kubelet.service")
            until(lambda: host.unit("ActiveState", "kubelet.service") == "active", "the kubelet runs")
            print(f"Debian {host.release}: held up for {time.monotonic() - start:.1f} s")
            assert host.unit("ActiveState") != "active"
            assert host.unit("Result") == "timeout"
    finally:
        host.shell(f"systemctl stop kubelet; rm -f {KUBELET}; systemctl daemon-reload")


# --- the configuration -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", [("systemctl", "reload", "devward"), ("systemctl", "kill", "--kill-whom=main", "--signal=HUP", "devward")])
def test_a_good_configuration_is_in_force_after_a_reload(host: Machine, how: tuple[str, ...]) -> None:
    pid, before = host.main_pid(), host.cursor()
    with configuration(host, "[cdi]\ndevice_uid = 4321\n"):
        host.run(*how)
        until(lambda: '"uid": 4321' in host.path(SPEC).read_text(), "the configuration is in force")
        assert host.records(before, DEVWARD_EVENT="config-loaded")
        assert host.main_pid() == pid
    until(lambda: '"uid": 65534' in host.path(SPEC).read_text(), "the old one again")


@pytest.mark.parametrize("how", [("systemctl", "reload", "devward"), ("systemctl", "kill", "--kill-whom=main", "--signal=HUP", "devward")])
def test_a_broken_configuration_leaves_the_old_one_in_force(host: Machine, how: tuple[str, ...]) -> None:
    pid, before, content = host.main_pid(), host.cursor(), host.path(SPEC).read_text()
    with configuration(host, "[cdi]\ndevice_uid = 4321\nnonsense = true\n"):
        done = host.call(*how)
        assert (done.status == 0) is ("kill" in how), "a reload is answered"
        until(lambda: host.get("ConfigState") == "refused", "the refusal is published")
        assert host.unit("ActiveState") == "active"
        assert host.main_pid() == pid
        assert host.path(SPEC).read_text() == content
        (record,) = host.records(before, DEVWARD_EVENT="config-refused")
        assert "test.toml" in record["MESSAGE"]
        assert "nonsense" in record["MESSAGE"]
        assert host.call("devwardctl", "status").status == 1
    until(lambda: host.get("ConfigState") == "good", "the repaired one is loaded")


def test_a_restart_with_a_broken_configuration_is_refused_once_and_for_all(host: Machine) -> None:
    content = host.path(SPEC).read_text()
    with configuration(host, "[cdi\n"):
        restarts = int(host.unit("NRestarts"))
        before = host.cursor()
        assert host.call("systemctl", "restart", "devward").status != 0
        assert [host.unit(name) for name in ("ActiveState", "Result", "ExecMainStatus")] == ["failed", "exit-code", EXIT_CONFIG]
        time.sleep(6)  # longer than RestartSec=5
        assert host.unit("ActiveState") == "failed"
        assert int(host.unit("NRestarts")) == restarts
        told = host.run("journalctl", "-u", "devward", "-o", "cat", f"--after-cursor={before}")
        assert told.count("test.toml") == 1
        assert host.path(SPEC).read_text() == content, "what was true is left for the engines"
    host.run("systemctl", "start", "devward")


# --- the directory and the sandbox -----------------------------------------------------------------------------------
def remove_directory(machine: Machine) -> None:
    """Remove the CDI directory; devward may have put its file back before rm comes to the directory itself."""
    until(lambda: machine.call("rm", "-rf", names.CDI_DIRECTORY).status == 0, "the directory is removed")


def test_a_removed_directory_is_made_again_by_the_sandboxed_daemon(host: Machine) -> None:
    pid = host.main_pid()
    remove_directory(host)
    until(lambda: spec_is_right(host), "the directory and the file are there again")
    assert host.run("stat", "--format=%a %U:%G", names.CDI_DIRECTORY) == "755 root:root\n"
    assert host.main_pid() == pid
    host.shell(f"mv {names.CDI_DIRECTORY} /etc/elsewhere && mkdir -p {names.CDI_DIRECTORY}")
    until(lambda: spec_is_right(host), "the file is in the directory that took its place")
    host.run("rm", "-r", "/etc/elsewhere")


def writable(machine: Machine, path: str) -> bool:
    """Whether the running daemon's mounts let it write there."""
    script = f"touch {path}/.writable 2>/dev/null && rm {path}/.writable"
    return machine.call("nsenter", f"--target={machine.main_pid()}", "--mount", "sh", "-c", script).status == 0


def test_the_daemon_can_write_in_etc_and_its_state_and_nowhere_else(host: Machine) -> None:
    assert writable(host, "/etc")
    assert writable(host, names.CDI_DIRECTORY)
    assert writable(host, names.STATE_DIRECTORY)
    assert writable(host, names.RUNTIME_DIRECTORY)
    others = ("/", "/usr", "/usr/lib/python3", "/var", "/var/lib", "/run", "/run/lock", "/run/systemd", "/root", "/home", "/proc/sys")
    assert [path for path in others if writable(host, path)] == []


def test_the_narrow_drop_in_does_what_it_says_at_the_price_that_it_names(host: Machine) -> None:
    text = host.run("cat", f"{EXAMPLES}/narrow-etc.conf")
    with host.drop_in(text):
        until(lambda: host.call("devwardctl", "status").status == 0, "it works")
        assert not writable(host, "/etc")
        assert writable(host, names.CDI_DIRECTORY)
        host.shell(f"echo '{{' >{SPEC}")
        until(lambda: spec_is_right(host), "it repairs as ever")

        host.run("rm", "-rf", names.CDI_DIRECTORY)
        until(
            lambda: host.get("Reason", *SPEC_OBJECT) == "cdi-read-only",
            "the price is told",
        )
        host.run("mkdir", names.CDI_DIRECTORY)
        assert host.allocation() == (False, "cdi-read-only")
        assert not host.path(SPEC).exists()
        host.run("systemctl", "restart", "devward")
        until(lambda: spec_is_right(host), "a restart repairs it")

        host.run("systemctl", "stop", "devward")
        host.run("rm", "-rf", names.CDI_DIRECTORY)
        host.run("systemctl", "start", "devward")
        until(lambda: spec_is_right(host), "it starts though the directory is missing")


@pytest.mark.parametrize("name", ["device-policy.conf", "writable-code.conf"])
def test_the_other_drop_ins_leave_devward_working(host: Machine, name: str) -> None:
    with host.drop_in(host.run("cat", f"{EXAMPLES}/{name}")):
        until(lambda: host.call("devwardctl", "check", "kvm").status == 0, "it vouches for the device")


def test_another_directory_by_the_two_examples(host: Machine) -> None:
    other = f"/run/cdi/{names.HYPERVISOR_CDI_FILE}"
    host.run("cp", f"{EXAMPLES}/other-directory.toml", SITE)
    try:
        with host.drop_in(host.run("cat", f"{EXAMPLES}/other-directory.conf")):
            until(lambda: host.path(other).exists(), "the file is in the other directory")
            assert not writable(host, "/etc")
            until(lambda: host.call("devwardctl", "check", "kvm").status == 0, "it vouches for the device")
            host.run("rm", "-f", SITE)
    finally:
        host.run("rm", "-rf", SITE, "/run/cdi")
        host.run("systemctl", "restart", "devward")


def test_metrics_by_the_two_examples_and_not_without_the_drop_in(host: Machine) -> None:
    place, file = names.METRICS_DIRECTORY, f"{names.METRICS_DIRECTORY}/{names.METRICS_FILE}"
    # As Debian's node_exporter has it: the directory of a user of its own.
    host.shell(f"mkdir -p {place}; chown nobody: {place} /var/lib/prometheus")
    try:
        with configuration(host, host.run("cat", f"{EXAMPLES}/metrics.toml")):
            host.run("systemctl", "reload", "devward")
            until(lambda: "Read-only file system" in host.call("devwardctl", "findings").out, "the unit is closed")
            assert host.get("Ready") is True
            with host.drop_in(host.run("cat", f"{EXAMPLES}/metrics.conf")):
                until(lambda: 'devward_device_healthy{device="/dev/kvm"} 1' in host.call("cat", file).out, "the metrics")
                assert host.run("stat", "--format=%a %U:%G", file) == "644 root:root\n"
                assert [path for path in ("/var/lib", "/var/lib/prometheus") if writable(host, path)] == []
                assert host.run("ls", "-A", place) == f"{names.METRICS_FILE}\n"
                host.path(SITE).write_text(host.path(SITE).read_text().replace("enabled = true", "enabled = false"))
                host.run("systemctl", "reload", "devward")
                until(lambda: host.run("ls", "-A", place) == "", "no file is left")
    finally:
        host.run("rm", "-rf", "/var/lib/prometheus")


# --- capabilities ----------------------------------------------------------------------------------------------------
#: The numbers of <linux/capability.h> that the unit leaves devward, and how to take each away.
CAPABILITIES = {"CAP_DAC_OVERRIDE": 1, "CAP_SETPCAP": 8, "CAP_NET_ADMIN": 12}
SETS = ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")
NOTHING = "0" * 16


def fields_of(status: str) -> dict[str, str]:
    """Return the fields of a /proc/PID/status."""
    return dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)


def without(capability: str) -> str:
    return f"[Service]\nCapabilityBoundingSet=~{capability}\n"


def test_the_daemon_has_the_capabilities_of_the_unit_and_no_others(host: Machine) -> None:
    status = fields_of(host.run("cat", f"/proc/{host.main_pid()}/status"))
    assert status["CapEff"] == status["CapPrm"] == status["CapBnd"] == f"{sum(1 << number for number in CAPABILITIES.values()):016x}"
    assert status["CapAmb"] == NOTHING
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_the_probe_child_has_none_at_all_which_takes_setpcap(host: Machine) -> None:
    assert probe_child(host) == dict.fromkeys(SETS, NOTHING)
    with host.drop_in(without("CAP_SETPCAP")):
        left = probe_child(host)
    assert left["CapBnd"] != NOTHING, "it could not empty its bounding set"
    assert {left[name] for name in SETS if name != "CapBnd"} == {NOTHING}


def test_reading_the_files_of_others_takes_dac_override(host: Machine) -> None:
    """One that only its owner may read, and that defines our device: engines, which may, would see a conflict."""
    file = f"{names.CDI_DIRECTORY}/vendor.json"

    def found() -> list[str]:
        return [row[0] for row in host.ask("ListFindings")[0]]

    host.shell(f"cp {SPEC} {file}; chmod 0600 {file}; chown 1234 {file}")
    try:
        until(lambda: "cdi-conflict" in found(), "the conflict is seen")
        with host.drop_in(without("CAP_DAC_OVERRIDE")):
            until(lambda: "cdi-file-unreadable" in found(), "the file cannot be read")
            assert "cdi-conflict" not in found()
            host.run("rm", file)
            host.run("chmod", "0555", names.CDI_DIRECTORY)
            host.run("rm", SPEC)
            until(lambda: host.get("State", *SPEC_OBJECT) == "blocked", "it cannot write")
            assert not host.path(SPEC).exists()
        until(lambda: spec_is_right(host), "with the capability it can")
    finally:
        host.shell(f"rm -f {file}; chmod 0755 {names.CDI_DIRECTORY}; busctl {RESCAN}")


def test_a_receive_buffer_above_the_limit_of_the_kernel_takes_net_admin(host: Machine) -> None:
    def warned(after: str) -> bool:
        return any("receive buffer" in record["MESSAGE"] for record in host.records(after))

    before = host.cursor()
    host.run("systemctl", "restart", "devward")
    assert not warned(before)
    with host.drop_in(without("CAP_NET_ADMIN")):
        assert warned(before)


def probe_child(machine: Machine) -> dict[str, str]:
    """Hold a probe child up in its first question to the device, and return its capability sets."""
    daemon = pid_outside(machine, machine.main_pid())
    slow = ["--trace=ioctl", "--trace-path=/dev/kvm", "-e", "inject=ioctl:delay_enter=1000000:when=1"]
    trace = ["strace", "--follow-forks", "--quiet=all", *slow, "--output=/dev/null", f"--attach={daemon}"]
    with subprocess.Popen(trace, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as tracer:
        try:
            until(lambda: fields_of(Path(f"/proc/{daemon}/status").read_text())["TracerPid"] == str(tracer.pid), "the daemon is traced")
            child = until(lambda: held_up(machine, daemon), "a child has the device open")
            assert child is not None
            return child
        finally:
            tracer.terminate()


def held_up(machine: Machine, daemon: int) -> dict[str, str] | None:
    """Have the device checked, and return the capability sets of the child that is held up; None: it was not seen in that time."""
    with Talk(machine.enter("devwardctl", "check", "kvm")):
        end = time.monotonic() + 4  # seconds: a check takes two, and is held up for one of them
        while time.monotonic() < end:
            if (sets := sets_at_the_device(daemon)) is not None:
                return sets
            time.sleep(0.02)
    return None


def pid_outside(machine: Machine, pid: int) -> int:
    """Return the host's number of a process of the container."""
    same = os.readlink(f"/proc/{machine.leader}/ns/pid")
    for number in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{number}/ns/pid") == same:
                status = fields_of(Path(f"/proc/{number}/status").read_text())
                if status["NSpid"].split()[-1] == str(pid):
                    return int(number)
    raise AssertionError(f"the container has no process {pid}")


def sets_at_the_device(daemon: int) -> dict[str, str] | None:
    """Return the capability sets of a child of the daemon that has /dev/kvm open for more than its path; None while there is none."""
    for task in Path(f"/proc/{daemon}/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(OSError):
                for descriptor in os.listdir(f"/proc/{child}/fd"):
                    flags = int(fields_of(Path(f"/proc/{child}/fdinfo/{descriptor}").read_text())["flags"], 8)
                    if os.readlink(f"/proc/{child}/fd/{descriptor}").endswith("/kvm") and not flags & os.O_PATH:
                        status = fields_of(Path(f"/proc/{child}/status").read_text())
                        return {name: status[name].strip() for name in SETS}
    return None
