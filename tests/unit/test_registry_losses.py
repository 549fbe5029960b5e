"""What the registry may lose: its directory, events, the source of events; and its start and end."""

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devward.devices import identity as real_identity
from devward.devices import registry as room
from devward.devices.tracker import PROBE_QUIET
from devward.inotify import Inotify
from devward.model import DeviceKind, Health, Identity, Trigger
from sim.watched_host import AUTO, KVM, MSHV, FakeMonitor, FakeMounts, FakeProber, Host, Play, player, present


@pytest.fixture(name="play")
def _play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    return player(tmp_path, monkeypatch)


# --- the directory ----------------------------------------------------------------------------------------------------


def watches_of(inotify: Inotify) -> int:
    """Count the watches that the kernel has (proc_pid_fdinfo(5))."""
    return Path(f"/proc/self/fdinfo/{inotify._fd}").read_text().count("inotify wd:")


def test_a_directory_that_was_replaced_is_watched_anew(play: Play) -> None:
    async def scene(host: Host) -> None:
        await host.settle()
        old = host.directory.with_name("old")
        host.directory.rename(old)
        host.directory.mkdir()
        await host.settle()
        assert host.state().health is Health.MISSING
        host.make()
        await asyncio.sleep(1)
        assert host.state().health is Health.HEALTHY
        await host.settle()
        (old / "kvm").chmod(0o600)
        (old / "kvm").unlink()
        await asyncio.sleep(60)
        assert host.looks == [], "the old directory is no longer listened to"
        assert host.registry._inotify is not None
        assert watches_of(host.registry._inotify) == 1, "the old watch would cost a turn of the loop for each event there"

    play(scene, before=present(KVM))


def test_a_directory_that_was_removed_and_made_again_later_is_found_by_the_slow_pass(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(host: Host) -> None:
        await host.settle()
        host.node().unlink()
        host.directory.rmdir()
        await host.settle()
        assert host.state().identity is Identity.MISSING
        for _ in range(5):
            host.registry.look_at_everything(Trigger.TIMER)
        host.directory.mkdir()
        host.make()
        await host.settle()
        host.registry.look_at_everything(Trigger.TIMER)
        await asyncio.sleep(1)
        assert host.state().health is Health.HEALTHY
        host.node().unlink()
        await asyncio.sleep(0.1)
        assert host.state().health is Health.MISSING

    with caplog.at_level(logging.WARNING):
        play(scene, before=present(KVM))
    assert caplog.text.count("cannot be watched") == 1, "said once, not at every pass"


def test_the_last_words_of_a_watch_that_was_dropped_are_ignored(play: Play) -> None:
    async def scene(host: Host) -> None:
        await host.settle()
        old = host.directory.with_name("old")
        host.directory.rename(old)
        host.directory.mkdir()
        for number in range(100):  # already in the queue when the old watch is dropped
            (old / "kvm").chmod((0o600, 0o660)[number % 2])
        (old / "mshv").write_text("")
        await asyncio.sleep(60)
        assert host.looks == [KVM], "one for the directory that moved, none for what was in the queue behind it"
        assert host.kinds == [KVM]

    play(scene, before=present(KVM))


def test_a_directory_that_cannot_be_watched_is_looked_at_in_the_slow_pass(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No inotify instance to be had (fs.inotify.max_user_instances): said once, tried again at each pass."""

    def refuse(on_events: object) -> Inotify:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(room, "Inotify", refuse)

    async def scene(host: Host) -> None:
        assert host.state().health is Health.HEALTHY
        host.node().unlink()
        await host.settle()
        assert host.state().health is Health.HEALTHY
        host.registry.look_at_everything(Trigger.TIMER)
        assert host.state().health is Health.MISSING
        monkeypatch.setattr(room, "Inotify", Inotify)
        host.registry.look_at_everything(Trigger.TIMER)
        host.make()
        await asyncio.sleep(1)
        assert host.state().health is Health.HEALTHY

    with caplog.at_level(logging.WARNING):
        play(scene, before=present(KVM))
    assert caplog.text.count("cannot be watched") == 1


def test_an_inotify_overflow_makes_everything_be_looked_at(play: Play) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())

    async def scene(host: Host) -> None:
        await host.settle()
        names = [host.directory / name for name in ("a", "b")]
        for name in names:
            name.write_text("")
        for number in range(limit + 10):
            os.chmod(names[number % 2], 0o600)
        fresh = host.directory.with_name("fresh")
        fresh.write_text("")
        fresh.rename(host.node())  # nobody is told: the queue is full
        await asyncio.sleep(10)
        assert host.looks != []
        assert (host.state().health, host.probers[KVM].probes) == (Health.HEALTHY, 1)
        host.node().unlink()
        await asyncio.sleep(0.1)
        assert host.state().health is Health.MISSING

    play(scene, before=present(KVM))


# --- lost uevents and the source --------------------------------------------------------------------------------------


def test_a_udev_overflow_is_reported_and_makes_everything_be_looked_at(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(host: Host) -> None:
        await host.settle()
        host.monitor.on_overflow()
        await asyncio.sleep(60)
        assert host.overflows == 1
        assert set(host.looks) == {KVM}
        assert host.probers[KVM].probes == 0, "a storm of virtual machines overflows the socket, and costs no probe either"
        monkeypatch.setattr(host.registry, "_file_events", lambda events: None)
        fresh = host.directory.with_name("fresh")
        fresh.write_text("")
        fresh.rename(host.node())
        (host.sysfs / "class/misc/mshv").mkdir(parents=True)
        (host.sysfs / "class/misc/mshv/dev").write_text("10:259\n")
        host.monitor.on_overflow()
        assert host.kinds == [KVM, MSHV]
        await asyncio.sleep(1)
        assert host.probers[KVM].probes == 1

    play(scene, before=present(KVM))


def test_a_monitor_whose_source_changed_is_started_again_before_the_looks(play: Play) -> None:
    async def scene(host: Host) -> None:
        await host.settle()
        assert (host.monitor.starts, host.registry.event_source) == (1, "udev")
        host.registry.look_at_everything(Trigger.TIMER)
        assert host.monitor.starts == 1
        host.monitor.changed = True
        host.registry.look_at_everything(Trigger.TIMER)
        assert host.monitor.starts == 2

    play(scene, before=present(KVM))


def test_a_monitor_that_cannot_start_does_not_end_the_watch(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    def broken(host: Host) -> None:
        host.make()
        host.monitor.failure = OSError("Could not create udev monitor")

    async def scene(host: Host) -> None:
        assert host.state().health is Health.HEALTHY
        assert host.registry.event_source == ""
        host.monitor.changed = True
        host.registry.look_at_everything(Trigger.TIMER)
        host.monitor.failure = None
        host.registry.look_at_everything(Trigger.TIMER)
        assert host.registry.event_source == "udev"

    with caplog.at_level(logging.WARNING):
        play(scene, before=broken)
    assert "no uevents for now" in caplog.text
    assert "Could not create udev monitor" in caplog.text


def test_it_listens_before_it_looks(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens while the first look is made is heard."""
    order: list[str] = []

    def note(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            order.append(what)
            return call(*arguments, **options)

        return noted

    monkeypatch.setattr(FakeMonitor, "start", note("uevents", FakeMonitor.start))
    monkeypatch.setattr(Inotify, "add_watch", note("inotify", Inotify.add_watch))
    monkeypatch.setattr(room, "MountWatch", note("mounts", FakeMounts))
    monkeypatch.setattr(real_identity, "present", note("looked", real_identity.present))

    async def scene(host: Host) -> None:
        assert {"uevents", "inotify", "mounts"} <= set(order[: order.index("looked")])

    play(scene, before=present(KVM))


def test_the_slow_pass_notes_when_it_was(play: Play) -> None:
    async def scene(host: Host) -> None:
        await asyncio.sleep(100)
        host.registry.look_at_everything(Trigger.TIMER)
        assert host.registry.last_pass_monotonic == host.loop.now

    play(scene)


# --- start and end ----------------------------------------------------------------------------------------------------


def test_a_first_check_that_fails_holds_nothing_up(play: Play, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Host._make_prober

    def broken(self: Host, kind: DeviceKind) -> FakeProber:
        prober = make(self, kind)
        if kind is KVM:
            prober.failure = OSError("no interpreter")
        return prober

    monkeypatch.setattr(Host, "_make_prober", broken)

    async def scene(host: Host) -> None:
        assert host.state(KVM).health is Health.UNKNOWN
        assert host.state(MSHV).health is Health.HEALTHY

    play(scene, before=present(KVM, MSHV))
    assert "no interpreter" in caplog.text


def test_close_during_the_first_checks_leaves_nothing(play: Play) -> None:
    async def scene(host: Host) -> None:
        host.make(MSHV)
        host.node().chmod(0o600)
        host.monitor.emit("add")
        await asyncio.sleep(PROBE_QUIET + 0.005)
        assert host.registry.busy

    play(scene, before=present(KVM))


def test_close_before_start_and_twice_does_no_harm(play: Play) -> None:
    async def scene(host: Host) -> None:
        await Host(host.loop, host.directory.parent, AUTO).registry.close()
        await host.registry.close()

    play(scene, before=present(KVM))
