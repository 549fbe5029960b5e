"""A registry over a directory in which a regular file is the device, on a clock that the tests turn: no privilege is needed.

inotify is real; uevents, changes of the mount table, looks and probes are what the test says.
"""

import asyncio
import os
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from devward.config import HypervisorConfig
from devward.devices import identity as real_identity
from devward.devices import registry as room
from devward.devices.health import DeviceState, IdentityVerdict, NodeFacts, ProbeVerdict
from devward.devices.identity import IdentifiedNode
from devward.devices.monitor import DeviceEvent
from devward.devices.registry import DeviceRegistry
from devward.devices.tracker import PROBE_BUDGET
from devward.model import DeviceKind, Identity, Trigger
from devward.reasons import Reason
from sim.virtual_time import VirtualClock, VirtualTimeLoop, run_virtual

KVM = DeviceKind.KVM
MSHV = DeviceKind.MSHV
GOOD = ProbeVerdict(completed=True, healthy=True, reason=Reason.OK, detail="", duration_usec=1000)
AUTO = HypervisorConfig(devices=None, probe_interval=300, retry_interval=30, expected_mode=None, expected_uid=None, expected_gid=None)


def watching(*kinds: DeviceKind) -> HypervisorConfig:
    return HypervisorConfig(kinds, 300, 30, None, None, None)


class FakeMonitor:
    """In the udev monitor's place: the test says what it delivers."""

    def __init__(
        self, subsystems: tuple[str, ...], *, on_event: Callable[[DeviceEvent], None], on_overflow: Callable[[], None], control_socket: str
    ) -> None:
        self.subsystems = subsystems
        self.on_event = on_event
        self.on_overflow = on_overflow
        self.source = ""
        self.starts = 0
        self.changed = False
        self.failure: OSError | None = None

    def start(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.starts += 1
        self.changed = False
        self.source = "udev"

    def stop(self) -> None:
        self.source = ""

    def source_changed(self) -> bool:
        return self.changed

    def emit(self, action: str, name: str = "kvm", kvm_event: str = "", subsystem: str = "misc") -> None:
        self.on_event(DeviceEvent(action, subsystem, name, kvm_event))


class FakeMounts:
    """In the mount watch's place: other programs on this host mount things at any time."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.on_change = on_change

    def close(self) -> None:
        pass


class FakeProber:
    """Finds every node good, after a moment."""

    def __init__(self) -> None:
        self.probes = 0
        self.closed = False
        self.failure: Exception | None = None

    async def probe(self, fd: int, *, budget: float = PROBE_BUDGET) -> ProbeVerdict:
        self.probes += 1
        await asyncio.sleep(0.01)
        if self.failure is not None:
            raise self.failure
        return GOOD

    def close(self) -> None:
        self.closed = True


class Host:
    """A registry over a directory in which a regular file is the device, so that no privilege is needed."""

    def __init__(self, loop: VirtualTimeLoop, root: Path, config: HypervisorConfig) -> None:
        self.loop = loop
        self.directory = root / "dev"
        self.sysfs = root / "sys"
        self.directory.mkdir(exist_ok=True)
        self.looks: list[DeviceKind] = []
        self.journal: list[str] = []
        self.probers: dict[DeviceKind, FakeProber] = {}
        self.changes: list[tuple[DeviceState, DeviceState, Trigger]] = []
        self.overflows = 0
        self.mounts = 0
        self.npus: list[Trigger] = []
        self.registry = DeviceRegistry(
            config,
            make_prober=self._make_prober,
            clock=VirtualClock(loop),
            on_change=lambda *change: self.changes.append(change),
            on_overflow=self._overflow,
            on_mounts=self._mounts_changed,
            on_npu=self.npus.append,
            device_directory=str(self.directory),
            sysfs=str(self.sysfs),
        )
        monitor = self.registry._monitor
        assert isinstance(monitor, FakeMonitor)
        self.monitor = monitor

    def node(self, kind: DeviceKind = KVM) -> Path:
        return self.directory / kind

    def make(self, kind: DeviceKind = KVM) -> None:
        self.node(kind).write_text("")

    def mount_table_changed(self) -> None:
        watch = self.registry._mounts
        assert isinstance(watch, FakeMounts)
        watch.on_change()

    def state(self, kind: DeviceKind = KVM) -> DeviceState:
        return next(tracker.state for tracker in self.registry.trackers if tracker.state.kind is kind)

    @property
    def kinds(self) -> list[DeviceKind]:
        return [tracker.state.kind for tracker in self.registry.trackers]

    async def settle(self) -> None:
        """Let everything that events asked for be done, and count from here."""
        await asyncio.sleep(10)
        assert not self.registry.busy
        self.looks.clear()
        self.changes.clear()
        for prober in self.probers.values():
            prober.probes = 0

    def identify(self, kind: DeviceKind, *, device_directory: str, sysfs: str) -> IdentifiedNode:
        self.looks.append(kind)
        try:
            status = os.lstat(f"{device_directory}/{kind}")
        except FileNotFoundError:
            return IdentifiedNode(IdentityVerdict(Identity.MISSING, Reason.DEVICE_MISSING))
        if not stat.S_ISREG(status.st_mode):
            return IdentifiedNode(IdentityVerdict(Identity.INVALID, Reason.DEVICE_NOT_CHAR))
        facts = NodeFacts(status.st_dev, status.st_ino, "10:232", stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, 1, ())
        return IdentifiedNode(IdentityVerdict(Identity.VALID, Reason.OK, "", facts))

    def _make_prober(self, kind: DeviceKind) -> FakeProber:
        assert kind not in self.probers
        self.probers[kind] = FakeProber()
        return self.probers[kind]

    def _overflow(self) -> None:
        self.overflows += 1

    def _mounts_changed(self) -> None:
        self.mounts += 1


Scene = Callable[[Host], Coroutine[Any, Any, None]]
Play = Callable[..., None]


def player(root: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Return what runs a scene over a registry that has started, closes that, and sees that nothing of it is left."""
    monkeypatch.setattr(room, "UdevMonitor", FakeMonitor)
    monkeypatch.setattr(room, "MountWatch", FakeMounts)

    def play(scene: Scene, config: HypervisorConfig = AUTO, before: Callable[[Host], None] = lambda host: None) -> None:
        async def main(loop: VirtualTimeLoop) -> None:
            descriptors = set(os.listdir("/proc/self/fd"))
            host = Host(loop, root, config)
            monkeypatch.setattr(real_identity, "identify", host.identify)
            before(host)
            host.registry.start()
            await host.registry.first_checks()
            await scene(host)
            await host.registry.close()
            assert loop.timers == 0
            # Some may have gone: of other tests, whose garbage was collected meanwhile.
            assert set(os.listdir("/proc/self/fd")) - descriptors == set()
            assert all(prober.closed for prober in host.probers.values())
            looks = len(host.looks)
            await asyncio.sleep(3600)
            assert len(host.looks) == looks

        run_virtual(main)

    return play


def present(*kinds: DeviceKind) -> Callable[[Host], None]:
    def make(host: Host) -> None:
        for kind in kinds:
            host.make(kind)

    return make
