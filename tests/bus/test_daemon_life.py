"""devwardd as a process: start, configuration, the pulse, the bus, the end."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.daemon_process import REPOSITORY, DaemonProcess, wait_for
from sim.errfs import ErrFs

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: uid 0 passes the authorization gate"),
    pytest.mark.skipif(not os.path.exists("/dev/kvm"), reason="needs /dev/kvm: a hypervisor to publish"),
]

SPEC = "/spec/hyperlight_2edev_2dhypervisor_2ejson"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path) as process:
        yield process.start()


def test_ready_is_said_after_the_first_pass_with_a_line_for_people(daemon: DaemonProcess) -> None:
    assert daemon.spec.exists()
    assert daemon.notify.wait_for(lambda message: message.get("STATUS") == "/dev/kvm usable, its CDI file true")
    daemon.wait_event("started")
    daemon.wait_event("ready")
    assert daemon.stop() == 0
    assert daemon.notify.wait_for(lambda message: message.get("STOPPING") == "1")
    daemon.wait_event("stopped")
    assert daemon.spec.exists(), "stopping withdraws nothing"


def test_a_second_daemon_is_refused_and_says_who_runs(daemon: DaemonProcess) -> None:
    second = subprocess.run(command(daemon), env=environment(), capture_output=True, text=True, check=False)
    assert second.returncode == 4
    assert second.stderr == f"devwardd: another devwardd runs: pid {daemon.pid} holds {daemon.runtime}/devwardd.lock\n"
    assert daemon.allocation("kvm")[0] is True


def test_a_taken_name_ends_with_a_message(daemon: DaemonProcess) -> None:
    second = subprocess.run(
        [*command(daemon)[:-1], str(daemon.directory / "run2")], env=environment(), capture_output=True, text=True, check=False
    )
    assert second.returncode == 3
    assert "org.devward.Devward1" in second.stderr
    assert "Traceback" not in second.stderr


def test_no_bus_ends_with_a_message(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("")
    arguments = ["--config", str(config), "--bus", f"unix:path={tmp_path}/none"]
    arguments += ["--state-directory", str(tmp_path / "s"), "--runtime-directory", str(tmp_path / "r")]
    ended = subprocess.run(
        ["/usr/bin/python3", "-m", "devward", *arguments], env=environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 3
    assert "Traceback" not in ended.stderr
    assert ended.stderr.startswith("devwardd: ")


def test_the_daemon_ends_when_the_bus_goes(daemon: DaemonProcess) -> None:
    daemon.bus.close()
    assert daemon.process is not None
    assert daemon.process.wait(30) == 1
    daemon.wait_event("bus-lost")
    assert daemon.spec.exists()


def test_reload_and_sighup_apply_a_good_configuration_and_keep_the_old_on_a_bad_one(daemon: DaemonProcess) -> None:
    daemon.write_config("[cdi]\ndevice_uid = 7\n")
    assert daemon.call("Reload", "t", "0")[2] == [["configuration", "success", ""]]
    wait_for(lambda: '"uid": 7' in daemon.spec.read_text(), what="the new owner")
    daemon.write_config("[cdi]\ndevice_uid = 8\nno_such_key = 1\n")
    assert "no_such_key: unknown key" in daemon.refused("Reload", "t", "0")
    assert daemon.get("", "Manager", "ConfigState") == "refused"
    assert daemon.get("", "Manager", "Ready") is False
    assert str(daemon.config_file) in str(daemon.call("ListFindings"))
    daemon.wait_event("config-refused")
    assert daemon.wait_event("action", DEVWARD_OUTCOME="failure", DEVWARD_MEMBER="Reload")["DEVWARD_REASON"] == ["config-refused"]
    assert '"uid": 7' in daemon.spec.read_text()
    daemon.write_config("[cdi]\ndevice_uid = 9\n")
    os.kill(daemon.pid, signal.SIGHUP)
    wait_for(lambda: '"uid": 9' in daemon.spec.read_text(), what="the new owner")
    daemon.wait_property("", "Manager", "ConfigState", "good")
    assert daemon.notify.wait_for(lambda message: message.get("RELOADING") == "1")
    os.kill(daemon.pid, signal.SIGHUP)
    daemon.wait_event("config-loaded", DEVWARD_TRIGGER="signal")


def test_a_change_of_directory_at_reload_moves_the_watch(daemon: DaemonProcess) -> None:
    old = daemon.spec.read_bytes()
    other = daemon.directory / "other-cdi"
    text = daemon.config_file.read_text().replace(str(daemon.cdi), str(other))
    daemon.config_file.write_text(text)
    daemon.call("Reload", "t", "0")
    moved = other / daemon.spec.name
    wait_for(moved.exists, what="the file in the new directory")
    moved.write_text("{}")
    wait_for(lambda: moved.read_bytes() == old, what="the repair there")
    assert daemon.spec.read_bytes() == old, "the old file is left as it is"


def test_a_bad_configuration_at_start_is_refused(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, config="[cdi]\nmode = 5\n[what]\n") as daemon:
        daemon.start(wait=False)
        assert daemon.process is not None
        assert daemon.process.wait(30) == 78
        lines = daemon.output.read_text().splitlines()
        assert len(lines) == 2
        assert any(line.startswith(f"devwardd: {daemon.config_file}: cdi.mode: must be one of") for line in lines)
        assert f"devwardd: {daemon.config_file}: what: unknown section" in lines


@pytest.mark.parametrize(("text", "status"), [("", 0), ("[cdi]\nmode = 'observe'\n", 0), ("[cdi]\nmode = 1\n", 78), ("[", 78)])
def test_check_config(tmp_path: Path, text: str, status: int) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    checked = subprocess.run(
        ["/usr/bin/python3", "-m", "devward", "--check-config", "--config", str(file)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == status
    assert (checked.stdout == "the configuration is good\n") is (status == 0)
    assert checked.stderr.startswith(f"devwardd: {file}: ") is (status != 0)


def test_print_config_tells_where_each_value_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[cdi]\nsettle_time = 3\ndevice_gid = -1\n")
    printed = subprocess.run(
        ["/usr/bin/python3", "-m", "devward", "--print-config", "--config", str(file)],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"cdi.settle_time = 3  # {file}" in printed.stdout
    assert 'cdi.mode = "repair"  # default' in printed.stdout
    assert "warning" in printed.stderr


def test_wrong_usage(tmp_path: Path) -> None:
    used = subprocess.run(
        ["/usr/bin/python3", "-m", "devward", "--frobnicate"], env=environment(), capture_output=True, text=True, check=False
    )
    assert used.returncode == 2


def test_the_pulse_goes_on_while_the_cdi_file_system_hangs_and_nothing_else_stops(tmp_path: Path) -> None:
    backing = tmp_path / "backing"
    backing.mkdir(mode=0o755)
    (tmp_path / "cdi").mkdir()
    with ErrFs(backing, tmp_path / "cdi") as filesystem, DaemonProcess(tmp_path, watchdog_usec=400_000) as daemon:
        daemon.start()
        filesystem.set({"fsync": {"hang": True}})
        try:
            (backing / daemon.spec.name).write_text("{}")
            # On a busy machine the device itself may be what did not answer in time.
            wait_for(lambda: daemon.call("CheckAllocation", "s", "kvm")[:2] == [False, "cdi-timeout"], what="cdi-timeout")
            daemon.wait_property(SPEC, "Spec", "Reason", "cdi-timeout")
            pulses = len(daemon.notify.messages())
            wait_for(lambda: len(daemon.notify.messages()) > pulses + 3, what="more pulses")
            assert daemon.get("/device/kvm", "Device", "Health") == "healthy"
        finally:
            filesystem.clear()
        daemon.wait_property(SPEC, "Spec", "State", "true")
        assert daemon.allocation("kvm")[0] is True
        assert daemon.stop() == 0


def test_a_frozen_loop_gives_no_pulse(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, watchdog_usec=200_000) as daemon:
        daemon.start()
        daemon.notify.wait_for(lambda message: message.get("WATCHDOG") == "1")
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            wait_for(lambda: "T" in Path(f"/proc/{daemon.pid}/stat").read_text().rsplit(")", 1)[1][:3], what="the stop")
            daemon.notify.messages()
            frozen = len(daemon.notify.messages())
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        wait_for(lambda: len(daemon.notify.messages()) > frozen, what="pulses again")


def test_works_without_polkit_for_root_and_denies_others(daemon: DaemonProcess) -> None:
    assert daemon.call("RepairSpecs", "t", "0")[1] == "done"
    denied = subprocess.run(
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "busctl", f"--address={daemon.bus.address}", "--timeout=60",
         "call", "org.devward.Devward1", "/org/devward/Devward1", "org.devward.Devward1.Manager", "RepairSpecs", "t", "0"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert denied.returncode != 0
    assert "ccess" in denied.stderr
    record = daemon.wait_event("action-denied")
    assert record["DEVWARD_CALLER_UID"] == ["65534"]


def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY / "src"), "LANG": "C.UTF-8"}


def command(daemon: DaemonProcess) -> list[str]:
    return [
        "/usr/bin/python3",
        "-m",
        "devward",
        "--config",
        str(daemon.config_file),
        "--bus",
        daemon.bus.address,
        "--state-directory",
        str(daemon.state),
        "--runtime-directory",
        str(daemon.runtime),
    ]


def test_describe_tells_a_caller_who_may_not_inspect_no_text_of_findings(daemon: DaemonProcess) -> None:
    (daemon.cdi / "secret-workload.json").write_text("{")
    wait_for(lambda: "secret-workload" in str(daemon.call("ListFindings")), what="the finding")
    described = subprocess.run(
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "busctl", f"--address={daemon.bus.address}", "--timeout=60",
         "call", "org.devward.Devward1", "/org/devward/Devward1", "org.devward.Devward1.Manager", "Describe"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "Container engines skip this file: it cannot be loaded." in described

    def text() -> str:
        full = daemon.describe()["findings"]
        assert isinstance(full, list)
        return str(full[0]["text"])

    # Once the daemon learns within a second that it is root who asks: on a busy machine it may not.
    wait_for(lambda: text() != "Container engines skip this file: it cannot be loaded.", what="the whole text")
    assert text() not in described


def test_a_setting_that_waits_for_a_restart_is_told_as_long_as_it_waits(daemon: DaemonProcess) -> None:
    good = daemon.config_file.read_text()
    daemon.config_file.write_text(good.replace('/journal"', '/other-journal"'))
    for _ in range(2):
        daemon.call("Reload", "t", "0")
        assert "takes effect at a restart" in str(daemon.call("ListFindings"))
    daemon.config_file.write_text(good)
    daemon.call("Reload", "t", "0")
    assert daemon.call("ListFindings") == [[]]


def test_the_daemon_does_not_carry_openssl(daemon: DaemonProcess) -> None:
    assert "libcrypto" not in Path(f"/proc/{daemon.pid}/maps").read_text()
