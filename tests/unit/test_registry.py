"""Which devices are objects, and what makes devward look at them: inotify, uevents, mounts."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from devward.config import HypervisorConfig
from devward.devices.registry import MOUNTS_CEILING
from devward.devices.tracker import LOOK_CEILING, PROBE_CEILING, PROBE_QUIET
from devward.inotify import Inotify
from devward.model import Health, Identity, Trigger
from sim.watched_host import AUTO, KVM, MSHV, Host, Play, player, present, watching


@pytest.fixture(name="play")
def _play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    return player(tmp_path, monkeypatch)


# --- which devices are objects ----------------------------------------------------------------------------------------


def test_auto_has_an_object_for_each_device_that_is_present(play: Play) -> None:
    async def scene(host: Host) -> None:
        assert host.kinds == [KVM]
        assert host.state().health is Health.HEALTHY
        assert host.probers[KVM].probes == 1

    play(scene, before=present(KVM))


def test_a_host_without_devices_has_nothing_to_watch(play: Play) -> None:
    async def scene(host: Host) -> None:
        await host.settle()
        assert (host.kinds, host.looks, host.registry.busy) == ([], [], False)
        assert await host.registry.check_all(Trigger.DBUS) == {}

    play(scene)


def test_auto_keeps_an_object_from_first_sight_until_restart(play: Play) -> None:
    async def scene(host: Host) -> None:
        host.node().unlink()
        await host.settle()
        host.registry.look_at_everything(Trigger.TIMER)
        host.registry.configure(AUTO)
        await host.settle()
        assert host.kinds == [KVM]
        assert (host.state().identity, host.state().health) == (Identity.MISSING, Health.MISSING)

    play(scene, before=present(KVM))


def test_a_device_in_sysfs_without_a_node_is_an_object_that_is_missing(play: Play) -> None:
    def in_sysfs(host: Host) -> None:
        (host.sysfs / "class/misc/mshv").mkdir(parents=True)
        (host.sysfs / "class/misc/mshv/dev").write_text("10:259\n")

    async def scene(host: Host) -> None:
        assert host.kinds == [MSHV]
        assert host.state(MSHV).health is Health.MISSING

    play(scene, before=in_sysfs)


def test_named_devices_are_objects_though_they_are_missing(play: Play) -> None:
    async def scene(host: Host) -> None:
        assert host.kinds == [KVM, MSHV]
        assert {host.state(kind).health for kind in host.kinds} == {Health.MISSING}
        host.make(MSHV)
        await host.settle()
        assert host.state(MSHV).health is Health.HEALTHY
        assert host.state(KVM).health is Health.MISSING

    play(scene, watching(KVM, MSHV))


def test_a_device_that_is_not_named_is_never_an_object(play: Play) -> None:
    async def scene(host: Host) -> None:
        host.monitor.emit("add", "mshv")
        host.node(MSHV).chmod(0o600)
        host.registry.look_at_everything(Trigger.TIMER)
        assert host.registry.tracker(MSHV) is None
        await host.settle()
        assert host.kinds == [KVM]

    play(scene, watching(KVM), present(KVM, MSHV))


def test_an_empty_list_watches_nothing(play: Play) -> None:
    async def scene(host: Host) -> None:
        host.monitor.emit("add")
        host.registry.look_at_everything(Trigger.TIMER)
        await host.settle()
        assert (host.kinds, host.registry.tracker(KVM)) == ([], None)

    play(scene, watching(), present(KVM, MSHV))


def test_another_configuration_adds_objects_and_takes_none_away(play: Play) -> None:
    async def scene(host: Host) -> None:
        host.registry.configure(AUTO)
        assert host.kinds == [KVM]
        await host.settle()
        assert host.state().health is Health.HEALTHY
        host.registry.configure(watching(MSHV))
        await host.settle()
        assert host.kinds == [KVM, MSHV]
        host.registry.configure(watching())
        assert host.kinds == [KVM, MSHV]

    play(scene, watching(), present(KVM))


def test_another_configuration_applies_its_intervals_at_once(play: Play) -> None:
    async def scene(host: Host) -> None:
        await host.settle()
        host.registry.configure(HypervisorConfig(None, 20, 5, None, None, None))
        await asyncio.sleep(101)
        assert host.probers[KVM].probes == 5

    play(scene, before=present(KVM))


# --- inotify and uevents ----------------------------------------------------------------------------------------------


def test_a_device_that_appears_is_found_by_inotify_alone(play: Play) -> None:
    async def scene(host: Host) -> None:
        assert host.kinds == []
        host.make(MSHV)
        await asyncio.sleep(0.001)
        assert host.kinds == [MSHV]
        assert (host.state(MSHV).identity, host.state(MSHV).health) == (Identity.VALID, Health.UNKNOWN)
        await asyncio.sleep(PROBE_QUIET + 0.1)
        assert host.state(MSHV).health is Health.HEALTHY
        assert host.changes[0][2] is Trigger.INOTIFY

    play(scene)


def test_a_device_that_appears_is_found_by_a_uevent_alone(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, path: str, mask: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Inotify, "add_watch", refuse)

    async def scene(host: Host) -> None:
        host.make(MSHV)
        await asyncio.sleep(0.001)
        assert host.kinds == []
        host.monitor.emit("add", "mshv")
        assert host.kinds == [MSHV]
        await asyncio.sleep(PROBE_QUIET + 0.1)
        assert host.state(MSHV).health is Health.HEALTHY
        assert host.changes[0][2] is Trigger.UDEV

    play(scene)


def test_a_device_that_appears_is_found_by_whoever_asks_for_it(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inotify, "add_watch", lambda self, path, mask: 1)

    async def scene(host: Host) -> None:
        assert host.registry.tracker(KVM) is None
        host.make(KVM)
        tracker = host.registry.tracker(KVM)
        assert tracker is not None
        assert (await tracker.check(Trigger.DBUS)).state.health is Health.HEALTHY
        host.make(MSHV)
        results = await host.registry.check_all(Trigger.DBUS)
        assert list(results) == [KVM, MSHV]
        assert {result.state.health for result in results.values()} == {Health.HEALTHY}

    play(scene)


def test_sources_that_overlap_give_one_burst_of_looks_and_one_probe(play: Play) -> None:
    async def scene(host: Host) -> None:
        host.monitor.emit("add")
        host.make()
        host.node().chmod(0o660)
        host.monitor.emit("add")
        host.monitor.emit("change")
        host.monitor.emit("bind")
        await asyncio.sleep(60)
        assert host.probers[KVM].probes == 1
        assert len(host.looks) <= 2 + 2 + 1, "two for the burst, two around the probe, one to spare for its beginning"
        assert host.state().health is Health.HEALTHY

    play(scene)


@pytest.mark.parametrize(
    ("change", "health"),
    [
        (lambda host: host.node().unlink(), Health.MISSING),
        (lambda host: host.node().rename(host.directory / "elsewhere"), Health.MISSING),
        (lambda host: (host.node().unlink(), host.node().symlink_to("elsewhere")), Health.UNHEALTHY),
    ],
    ids=["unlink", "rename", "symlink"],
)
def test_r18_what_happens_to_the_node_shows_at_once(play: Play, change: Callable[[Host], object], health: Health) -> None:
    async def scene(host: Host) -> None:
        await host.settle()
        change(host)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert host.state().health is health

    play(scene, before=present(KVM))


def test_r19_a_node_that_came_back_is_healthy_again_without_a_restart(play: Play) -> None:
    async def scene(host: Host) -> None:
        await host.settle()
        host.node().unlink()
        await asyncio.sleep(1)
        host.make()
        await asyncio.sleep(0.001)
        assert host.state().health is Health.UNKNOWN
        await asyncio.sleep(1)
        assert (host.state().health, host.probers[KVM].probes) == (Health.HEALTHY, 1)

    play(scene, before=present(KVM))


def test_a_node_renamed_into_place_is_another_one(play: Play) -> None:
    async def scene(host: Host) -> None:
        await host.settle()
        (host.directory / "fresh").write_text("")
        (host.directory / "fresh").rename(host.node())
        await asyncio.sleep(0.001)
        assert host.state().health is Health.UNKNOWN
        await asyncio.sleep(1)
        assert (host.state().health, host.probers[KVM].probes) == (Health.HEALTHY, 1)

    play(scene, before=present(KVM))


def test_what_others_do_costs_nothing(play: Play) -> None:
    async def scene(host: Host) -> None:
        await host.settle()
        for number in range(1000):
            (host.directory / f"tty{number}").write_text("")
            host.monitor.emit("add", f"tty{number}")
            host.monitor.emit("add", "kvm", subsystem="net")
            host.monitor.emit("change", "kvm", kvm_event="create")
        (host.directory / "kvm2").write_text("")
        host.directory.chmod(0o700)
        await asyncio.sleep(60)
        assert (host.looks, host.changes) == ([], [])

    play(scene, before=present(KVM))


def test_a_storm_of_events_costs_a_bounded_number_of_looks_and_probes(play: Play) -> None:
    async def scene(host: Host) -> None:
        await host.settle()
        began = host.loop.now
        for number in range(10_000):
            host.monitor.emit("add")
            if number % 10 == 0:
                host.node().chmod((0o600, 0o660)[number // 10 % 2])
                await asyncio.sleep(0.002)
        seconds = host.loop.now - began
        probes = host.probers[KVM].probes
        assert probes <= seconds / PROBE_CEILING + 1
        assert len(host.looks) <= seconds / LOOK_CEILING + 2 * probes + 2
        await asyncio.sleep(60)
        assert host.probers[KVM].probes <= probes + 2
        assert not host.registry.busy

    play(scene, before=present(KVM))


# --- mounts -----------------------------------------------------------------------------------------------------------


def test_a_change_of_the_mount_table_costs_a_look_and_is_passed_on(play: Play) -> None:
    async def scene(host: Host) -> None:
        await host.settle()
        host.mount_table_changed()
        assert (host.looks, host.mounts) == ([KVM], 1)
        await asyncio.sleep(60)
        assert (host.looks, host.mounts, host.probers[KVM].probes) == ([KVM], 1, 0)

    play(scene, before=present(KVM))


def test_a_host_that_starts_containers_all_the_time_has_its_node_looked_at_at_a_bounded_rate(play: Play) -> None:
    async def scene(host: Host) -> None:
        await host.settle()
        began = host.loop.now
        for _ in range(2000):
            host.mount_table_changed()
            await asyncio.sleep(0.01)
        assert host.mounts <= 2 + (host.loop.now - began) / MOUNTS_CEILING
        assert len(host.looks) <= host.mounts
        assert host.probers[KVM].probes == 0

    play(scene, before=present(KVM))


# --- NPUs, of which only the first sight is this room's ----------------------------------------------------------------


def test_the_node_of_an_npu_is_told_of_at_once_by_its_name(play: Play) -> None:
    async def scene(host: Host) -> None:
        await host.settle()
        assert host.npus == []
        (host.directory / "davinci_manager").touch()
        await host.settle()
        assert set(host.npus) == {Trigger.INOTIFY}
        host.npus.clear()
        host.monitor.emit("add", "vdavinci100", subsystem="devdrv-class")
        assert host.npus == [Trigger.UDEV]
        (host.directory / "davinci_manager").unlink()
        await host.settle()
        assert host.npus == [Trigger.UDEV, Trigger.INOTIFY]
        assert host.looks == [], "no hypervisor device is looked at for that"

    play(scene)


def test_a_node_of_an_npu_that_no_event_told_of_is_found_by_the_slow_pass(play: Play) -> None:
    async def scene(host: Host) -> None:
        assert host.npus == [Trigger.STARTUP]
        host.registry.look_at_everything(Trigger.TIMER)
        assert host.npus == [Trigger.STARTUP, Trigger.TIMER]
        (host.directory / "davinci0").unlink()
        await host.settle()
        host.npus.clear()
        host.registry.look_at_everything(Trigger.TIMER)
        assert host.npus == []

    play(scene, before=lambda host: (host.directory / "davinci0").touch())


def test_the_vendors_own_subsystems_are_listened_to(play: Play) -> None:
    async def scene(host: Host) -> None:
        assert host.monitor.subsystems == ("misc", "devdrv-class", "devdrv_manager")

    play(scene)
