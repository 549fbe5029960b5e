"""Virtual machines that run while everything around them changes: one held by a process, one by a process in a container."""

import hashlib
import json
import time
from collections.abc import Iterator

import pytest

from system.vm.boot import Boot
from system.vm.containers import Podman
from system.vm.machine import Machine
from system.vm.warden import LIMIT, SPEC, Warden

TURNS = "/run/turns"
#: Not apt, whose own work takes longer in an emulated machine than all that the package does.
INSTALL = "dpkg --install /opt/vm/devward_*.deb"


class Guests:
    """Both of them."""

    def __init__(self, vm: Machine) -> None:
        """They are not there before `start`."""
        self._vm = vm
        self._turns = {"process": 0, "container": 0}

    def start(self) -> None:
        """Start them, and wait until they run."""
        vm = self._vm
        vm.run("mkdir", "--mode=1777", TURNS)
        vm.run("systemd-run", "--quiet", "--collect", "--unit=guest-process", "python3", "-I", "/opt/vm/kvm.py", "run", f"{TURNS}/process")
        container = Podman(vm).command("run", f"{TURNS}/container", options=(f"--volume={TURNS}:{TURNS}", "--name=guest"))
        vm.run("systemd-run", "--quiet", "--collect", "--unit=guest-container", *container)
        self.still_run()

    def still_run(self) -> None:
        """Wait until each has made a few more turns since the last time."""
        end = time.monotonic() + LIMIT
        for name, before in self._turns.items():
            while (now := self._turns_of(name)) < before + 5:
                assert time.monotonic() < end, f"the guest in the {name} made {now} turns, {before} before: {self._status(name)}"
                time.sleep(0.2)
            self._turns[name] = now

    def end(self) -> None:
        """End them."""
        self._vm.run("podman", "rm", "--force", "--time=0", "guest", check=False)
        self._vm.run("systemctl", "stop", "guest-process", "guest-container", check=False)
        self._vm.run("rm", "-rf", TURNS)

    def _turns_of(self, name: str) -> int:
        text = self._vm.shell(f"if [ -e {TURNS}/{name} ]; then cat {TURNS}/{name}; fi")
        # It is written in place: a moment of nothing is no turn.
        return int(text) if text else 0

    def _status(self, name: str) -> str:
        return self._vm.run("systemctl", "status", "--no-pager", f"guest-{name}", check=False)


@pytest.fixture(scope="module", name="guests")
def _guests(machine: tuple[Machine, Boot]) -> Iterator[Guests]:
    vm, _ = machine
    Warden(vm).wait_well()
    guests = Guests(vm)
    try:
        guests.start()
        yield guests
    finally:
        guests.end()


def test_guests_survive_tampering_and_restarts(vm: Machine, warden: Warden, guests: Guests) -> None:
    before = vm.run("cat", SPEC)
    for damage in (f"echo >{SPEC}", "rm -rf /etc/cdi"):
        vm.shell(damage)
        warden.wait_well()
        guests.still_run()
    vm.run("systemctl", "restart", "devward")
    warden.wait_well()
    guests.still_run()
    vm.run("systemctl", "kill", "--signal=KILL", "devward")
    vm.shell("while [ $(systemctl show -P NRestarts devward) = 0 ]; do sleep 0.2; done")
    warden.wait_well()
    guests.still_run()
    assert vm.run("cat", SPEC) == before
    # Their driver cannot be taken away under them.
    assert "in use" in vm.run("rmmod", "kvm_amd", check=False)


def test_guests_and_readers_survive_an_upgrade(vm: Machine, warden: Warden, guests: Guests, figures: dict[str, str]) -> None:
    run = warden.run_id()
    digest = hashlib.sha256(vm.run("cat", SPEC).encode()).hexdigest()
    reader = vm.start("python3", "-I", "/opt/vm/reader.py", SPEC, "/run/stop-reading", timeout=600)
    try:
        vm.shell(INSTALL, timeout=600)
        warden.wait_well()
    finally:
        vm.run("touch", "/run/stop-reading")
        code, out = vm.finish(reader)
        vm.run("rm", "/run/stop-reading")
    assert code == 0, out
    found = json.loads(out)
    assert list(found) == [digest], "the file was never absent and never another"
    figures["reads of the CDI file during an upgrade, each the whole"] = str(found[digest])
    assert warden.run_id() != run, "the new daemon runs"
    guests.still_run()


def test_guests_survive_the_removal_and_devward_is_back_by_an_installation(vm: Machine, warden: Warden, guests: Guests) -> None:
    try:
        out = vm.run("dpkg", "--remove", "devward", timeout=600)
        assert f"removed {SPEC}" in out.splitlines()
        assert vm.run("ls", "-A", "/etc/cdi") == ""
        assert "inactive" in vm.run("systemctl", "is-active", "devward", check=False)
        guests.still_run()
    finally:
        vm.shell(INSTALL, timeout=600)
    # Nothing but the installation starts it.
    warden.wait_well()
    assert warden.unit("UnitFileState", "ActiveState") == {"UnitFileState": "enabled", "ActiveState": "active"}
    guests.still_run()
