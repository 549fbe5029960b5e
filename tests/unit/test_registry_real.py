"""The devices room on real nodes and mounts, and on the real /dev/kvm with the real probe."""

import asyncio
import contextlib
import fcntl
import os
import stat
import sys
from pathlib import Path

import pytest

from devward.clock import Clock
from devward.devices import registry, tracker
from devward.devices.health import DeviceState
from devward.devices.hypervisor import HypervisorProber
from devward.devices.monitor import DeviceEvent, UdevMonitor
from devward.devices.registry import MOUNTS_CEILING, DeviceRegistry
from devward.devices.tracker import PROBE_QUIET
from devward.model import DeviceKind, Health, Trigger
from devward.reasons import Reason
from sim.held_time import PATIENCE, until
from sim.mount_namespace import mount, run_in_mount_namespace, umount
from sim.watched_host import AUTO, KVM, FakeMonitor, FakeProber, watching

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: device nodes and mounts")
needs_kvm = pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/kvm"), reason="needs /dev/kvm: virtual machines, as root")


# --- real mounts and nodes --------------------------------------------------------------------------------------------


class RealHost:
    """A registry with real identities over a directory of real nodes, in real time; the prober finds everything good.

    It hears no uevents: those of this host's kvm, which other programs cause, would be taken for the node's.
    """

    def __init__(self, root: str) -> None:
        self.directory = Path(root) / "dev"
        self.node = self.directory / "kvm"
        sysfs = Path(root) / "sys/class/misc/kvm"
        self.directory.mkdir()
        sysfs.mkdir(parents=True)
        (sysfs / "dev").write_text("10:232\n")
        self.prober = FakeProber()
        self.mounts = 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(registry, "UdevMonitor", FakeMonitor)
            self.registry = DeviceRegistry(
                AUTO,
                make_prober=lambda kind: self.prober,
                clock=Clock(),
                on_change=lambda before, after, trigger: None,
                on_overflow=lambda: None,
                on_mounts=self._mounted,
                device_directory=str(self.directory),
                sysfs=str(Path(root) / "sys"),
            )

    def _mounted(self) -> None:
        self.mounts += 1

    def mknod(self) -> None:
        os.mknod(self.node, stat.S_IFCHR | 0o660, os.makedev(10, 232))

    async def until(self, health: Health, reason: Reason | None = None) -> None:
        await until(lambda: self.registry.trackers and self.registry.trackers[0].state.health is health)
        assert reason is None or self.registry.trackers[0].state.reason is reason


def covered_and_uncovered(root: str) -> None:
    async def main() -> None:
        host = RealHost(root)
        host.mknod()
        host.registry.start()
        await host.registry.first_checks()
        await host.until(Health.HEALTHY)
        other = str(host.directory / "other")
        os.mknod(other, stat.S_IFCHR | 0o660, os.makedev(10, 232))
        for source in ("/dev/null", other):
            mounts, probes = host.mounts, host.prober.probes
            mount("--bind", source, str(host.node))
            await host.until(Health.UNHEALTHY, Reason.DEVICE_COVERED)
            umount(str(host.node))
            await host.until(Health.HEALTHY)
            assert host.mounts > mounts
            assert host.prober.probes == probes + 1
        await host.registry.close()

    asyncio.run(main())


@needs_root
def test_r17_something_mounted_over_the_node_shows_by_itself_and_so_does_its_end(tmp_path: Path) -> None:
    run_in_mount_namespace(covered_and_uncovered, tmp_path)


def directory_mounted_over(root: str) -> None:
    async def main() -> None:
        host = RealHost(root)
        host.mknod()
        host.registry.start()
        await host.until(Health.HEALTHY)
        mount("-t", "tmpfs", "devward-test", str(host.directory))
        await host.until(Health.MISSING)
        host.mknod()
        await host.until(Health.HEALTHY)
        host.node.unlink()
        await host.until(Health.MISSING)
        umount(str(host.directory))
        await host.until(Health.HEALTHY)
        host.node.unlink()
        await host.until(Health.MISSING)
        await host.registry.close()

    asyncio.run(main())


@needs_root
def test_a_directory_that_was_mounted_over_is_watched_anew(tmp_path: Path) -> None:
    run_in_mount_namespace(directory_mounted_over, tmp_path)


def many_mounts(root: str) -> None:
    async def main() -> None:
        host = RealHost(root)
        host.mknod()
        host.registry.start()
        await host.until(Health.HEALTHY)
        elsewhere = Path(root) / "elsewhere"
        elsewhere.mkdir()
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(100):
            mount("-t", "tmpfs", "devward-test", str(elsewhere))
            await asyncio.sleep(0)
        await until(lambda: host.mounts >= 2)
        assert host.mounts <= 3 + 10 * (loop.time() - began) / MOUNTS_CEILING
        assert host.prober.probes == 1
        await host.registry.close()

    asyncio.run(main())


@needs_root
def test_mounts_elsewhere_cost_few_looks_and_no_probe(tmp_path: Path) -> None:
    run_in_mount_namespace(many_mounts, tmp_path)


# --- the whole room on the real device --------------------------------------------------------------------------------


class RealDevices:
    """A registry on /dev with the real prober, and an ear of its own for kvm's uevents."""

    def __init__(self, runtime_directory: str) -> None:
        self.events: list[DeviceEvent] = []
        self.changes: list[Health] = []
        self._ear = UdevMonitor(("misc",), on_event=self._heard, on_overflow=lambda: None)
        self._runtime_directory = runtime_directory
        self.registry = DeviceRegistry(
            watching(KVM),
            make_prober=self._make_prober,
            clock=Clock(),
            on_change=lambda before, after, trigger: self.changes.append(after.health),
            on_overflow=lambda: None,
            on_mounts=lambda: None,
        )

    async def __aenter__(self) -> "RealDevices":
        self._ear.start()
        self.registry.start()
        await self.registry.first_checks()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ear.stop()
        await self.registry.close()

    def _heard(self, event: DeviceEvent) -> None:
        if event.name == "kvm":
            self.events.append(event)

    def _make_prober(self, kind: DeviceKind) -> HypervisorProber:
        return HypervisorProber(kind, instance=self._runtime_directory, python=sys.executable, monotonic=Clock().monotonic)

    @property
    def probes(self) -> int:
        return self.registry.trackers[0].probes

    @property
    def state(self) -> DeviceState:
        return self.registry.trackers[0].state


@needs_kvm
def test_real_virtual_machines_cost_no_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One that a slow machine cannot complete in time would be made again.
    monkeypatch.setattr(tracker, "PROBE_BUDGET", PATIENCE)

    async def main() -> None:
        async with RealDevices(str(tmp_path)) as devices:
            await until(lambda: devices.state.health is Health.HEALTHY and not devices.registry.busy)
            # The first probe's own events have come, and led to nothing.
            await until(lambda: {event.kvm_event for event in devices.events} >= {"create", "destroy"})
            heard, probes = len(devices.events), devices.probes
            device = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
            try:
                for _ in range(10):
                    os.close(fcntl.ioctl(device, 0xAE01, 0))  # KVM_CREATE_VM of linux/kvm.h
            finally:
                os.close(device)
            await until(lambda: len(devices.events) >= heard + 20)
            await asyncio.sleep(2 * PROBE_QUIET)
            await until(lambda: not devices.registry.busy)
            # Another program on this host may have the kernel announce the device; each such event may cost one.
            foreign = sum(event.action != "change" for event in devices.events)
            assert devices.probes - probes <= foreign
            assert probes <= 1 + foreign
            assert devices.state.health is Health.HEALTHY

    before = os.stat("/dev/kvm")
    asyncio.run(main())
    after = os.stat("/dev/kvm")
    assert (after.st_mode, after.st_uid, after.st_gid, after.st_rdev) == (before.st_mode, before.st_uid, before.st_gid, before.st_rdev)


def real_device_gone_and_back(runtime_directory: str) -> None:
    mount("-t", "tmpfs", "-o", "mode=0755", "devward-test", "/dev")
    os.mknod("/dev/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))

    def make() -> None:
        os.mknod("/dev/kvm", stat.S_IFCHR | 0o600, os.makedev(10, 232))

    async def main() -> None:
        make()
        async with RealDevices(runtime_directory) as devices:
            await until(lambda: devices.state.health is Health.HEALTHY)
            for _ in range(3):
                kept = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
                os.unlink("/dev/kvm")
                await until(lambda: devices.state.health is Health.MISSING)
                # R18: a private node with the same number would still work.
                assert fcntl.ioctl(kept, 0xAE00, 0) == 12  # KVM_GET_API_VERSION
                assert (await devices.registry.check_all(Trigger.DBUS))[KVM].verdict is None
                os.close(kept)
                make()
                await until(lambda: devices.state.health is Health.HEALTHY)
            assert Health.UNKNOWN in devices.changes
            for mode in (0o666, 0o600):
                os.chmod("/dev/kvm", mode)
            os.unlink("/dev/kvm")
            os.symlink("/dev/null", "/dev/kvm")
            await until(lambda: devices.state.reason is Reason.DEVICE_SYMLINK)
            os.unlink("/dev/kvm")
            make()
            mount("--bind", "/dev/null", "/dev/kvm")
            await until(lambda: devices.state.reason is Reason.DEVICE_COVERED)
            umount("/dev/kvm")
            await until(lambda: devices.state.health is Health.HEALTHY)

    with contextlib.ExitStack() as end:
        end.callback(umount, "/dev")
        asyncio.run(main())


@needs_kvm
def test_r18_r19_the_real_device_gone_and_back(tmp_path: Path) -> None:
    run_in_mount_namespace(real_device_gone_and_back, tmp_path)
