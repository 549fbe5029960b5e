"""Real character devices whose driver is the test's own (CUSE): one that only bears a hypervisor's name, and one whose open() never ends.

A CUSE device is no misc device, so devward refuses it as it stands. Where a test needs the probe to reach its driver, it mounts a copy of
/sys/class/misc over the machine's in which the device is one.
"""

import os
from collections.abc import Iterator

import pytest

from sim.daemon_process import again_while
from system.vm.machine import Machine
from system.vm.warden import KVM, LIMIT, Described, Warden, device

MSHV = KVM.replace("kvm", "mshv")
LOG = "/run/cuse.log"
MISC = "/sys/class/misc"
COPY = "/run/misc"
SETTINGS = "/etc/devward/conf.d/cuse.toml"
STOP_SOON = "/run/systemd/system/devward.service.d/stop-soon.conf"
NOT_DONE = {"identity": "valid", "health": "unhealthy"}


class Cuse:
    """The device /dev/mshv."""

    def __init__(self, vm: Machine) -> None:
        """It is not there before `appear`."""
        self._vm = vm

    def appear(self, behaviour: str, *, as_misc: bool = False) -> None:
        """Make it; `as_misc` lets sysfs know it as a misc device, and has devward look at the node again."""
        self._vm.shell(f"modprobe cuse; rm -f {LOG}")
        self._vm.run("systemd-run", "--quiet", "--collect", "--unit=cuse", "python3", "-I", "/opt/vm/cuse.py", "mshv", behaviour, LOG)
        self._vm.shell("until [ -e /sys/class/cuse/mshv/dev ]; do sleep 0.1; done")
        if as_misc:
            self._vm.shell(
                f"if ! mountpoint -q {MISC}; then mkdir {COPY}; cp -a {MISC}/. {COPY}; mount --bind {COPY} {MISC}; fi;"
                f"mkdir {COPY}/mshv; cat /sys/class/cuse/mshv/dev >{COPY}/mshv/dev; chmod 600 /dev/mshv"
            )

    def disappear(self) -> None:
        """Take it away, with whatever waits for it."""
        self._vm.run("systemctl", "kill", "--signal=KILL", "cuse", check=False)
        gone = '[ ! -e /dev/mshv ] && [ "$(systemctl show --property=LoadState --value cuse)" = not-found ]'
        self._vm.shell(f"until {gone}; do sleep 0.1; done; rm -rf {COPY}/mshv")

    def requests(self) -> list[str]:
        """Return the words for what its driver was asked."""
        return self._vm.run("cat", LOG).split()


@pytest.fixture(name="cuse")
def _cuse(vm: Machine, warden: Warden) -> Iterator[Cuse]:
    cuse = Cuse(vm)
    vm.write(SETTINGS, "[cdi]\nsettle_time = 0\n")
    warden.call("Reload", "t", "0")
    try:
        yield cuse
    finally:
        cuse.disappear()
        vm.shell(f"if mountpoint -q {MISC}; then umount {MISC}; fi; rm -rf {COPY} {SETTINGS}")
        # A device that was seen is an object until then.
        vm.run("systemctl", "restart", "devward")
        warden.wait_well()


def helper(vm: Machine) -> str:
    """Return the pid of mshv's probe child, empty where there is none."""
    return vm.shell("grep -slx devward-mshv /proc/[0-9]*/comm || true").strip().removeprefix("/proc/").removesuffix("/comm")


def wait_no_helper(vm: Machine) -> None:
    """Wait until mshv's probe child has ended: one that was killed ends when the driver lets it, and is reaped a moment after that."""
    assert again_while(bool, lambda: helper(vm), LIMIT) == ""


def test_a_device_that_only_bears_the_name_is_refused_and_never_opened(vm: Machine, warden: Warden, cuse: Cuse) -> None:
    cuse.appear("answer")
    seen = warden.wait_device("mshv", identity="invalid", health="unhealthy")
    assert seen["reason"] == "device-no-driver"
    assert seen["number"] == vm.run("cat", "/sys/class/cuse/mshv/dev").strip()
    assert warden.finished_allocation("mshv") == (False, "device-no-driver")
    assert cuse.requests() == []
    described = warden.wait_well()
    assert described["specs"][0]["devices"] == [KVM]
    cuse.disappear()
    warden.wait_device("mshv", identity="missing", health="missing")
    assert warden.wait_well()["specs"][0]["devices"] == [KVM]


def test_one_that_sysfs_has_as_the_misc_device_is_opened_and_published(warden: Warden, cuse: Cuse) -> None:
    cuse.appear("answer", as_misc=True)
    warden.wait_device("mshv", identity="valid", health="healthy")
    assert warden.wait_well()["specs"][0]["devices"] == [KVM, MSHV]
    warden.wait_allocation((True, ""), MSHV)
    requests = cuse.requests()
    assert set(requests) == {"open", "release"}, "the check opens and closes it and asks nothing"


def test_a_probe_that_is_killed_in_an_open_that_can_end_is_a_time_out(vm: Machine, warden: Warden, cuse: Cuse) -> None:
    """The driver never takes the request: SIGKILL ends the wait for it."""
    cuse.appear("ignore", as_misc=True)
    warden.wait_device("mshv", **NOT_DONE, reason="probe-timeout")
    wait_no_helper(vm)
    warden.wait_allocation((True, ""))


def test_an_open_that_never_ends_hurts_nothing_else(vm: Machine, warden: Warden, cuse: Cuse, figures: dict[str, str]) -> None:
    """The driver took the request and never answers: not even SIGKILL ends the child."""
    begin, run = warden.now(), warden.run_id()
    cuse.appear("hold", as_misc=True)

    def is_held(described: Described) -> bool:
        """Whether it is the driver that holds the child: one that is killed before it opens the device is late, too, for a moment."""
        seen = device(described, "mshv")
        is_stuck = {name: seen.get(name) for name in (*NOT_DONE, "reason")} == {**NOT_DONE, "reason": "helper-stuck"}
        child = helper(vm) if is_stuck and "open" in cuse.requests() else ""
        return bool(child) and "State:\tD" in vm.run("cat", f"/proc/{child}/status", check=False)

    warden.wait("held by the driver", is_held)
    assert "/dev/mshv" in {record["DEVWARD_DEVICE"] for record in warden.wait_events(begin, "helper-stuck")}
    child, told = helper(vm), warden.now()
    status = dict(line.split(":", 1) for line in vm.run("cat", f"/proc/{child}/status").splitlines())
    assert status["State"].split()[0] == "D"
    assert int(status["ShdPnd"], 16) & 1 << 8, "SIGKILL is pending"
    figures["a probe child whose open the driver holds, after SIGKILL"] = " in ".join(
        (status["State"].strip(), vm.run("head", "-1", f"/proc/{child}/stack").split()[-1])
    )

    # The other device is vouched for, and kept in the file, as before; the file itself is repaired as before.
    warden.wait_allocation((True, ""))
    warden.wait_allocation((False, "helper-stuck"), "mshv")
    vm.run("rm", "/etc/cdi/hyperlight.dev-hypervisor.json")
    described = warden.wait_well()
    assert described["manager"]["ready"]
    # However often somebody asks: one helper, and one request that waits.
    vm.run("devwardctl", "rescan", check=False)
    assert helper(vm) == child
    assert cuse.requests().count("open") == 1
    assert warden.run_id() == run
    assert "/dev/mshv" not in {record["DEVWARD_DEVICE"] for record in warden.events(told, "helper-stuck")}, "it is told once"

    # The next daemon finds it, and starts no second one beside it.
    vm.run("mkdir", "-p", os.path.dirname(STOP_SOON))
    vm.write(STOP_SOON, "[Service]\nTimeoutStopSec=2\n")
    try:
        vm.shell("systemctl daemon-reload; systemctl restart devward")
        warden.wait_device("mshv", **NOT_DONE, reason="helper-stuck")
        warden.wait_allocation((True, ""))
        assert helper(vm) == child
        assert cuse.requests().count("open") == 1
        assert warden.run_id() != run
    finally:
        vm.shell(f"rm {STOP_SOON}; systemctl daemon-reload")

    # The driver lets go: so does everything else, by itself.
    cuse.disappear()
    warden.wait_device("mshv", identity="missing")
    wait_no_helper(vm)
    cuse.appear("answer", as_misc=True)
    assert device(warden.wait("mshv healthy", lambda d: device(d, "mshv").get("health") == "healthy"), "mshv")["reason"] == ""
