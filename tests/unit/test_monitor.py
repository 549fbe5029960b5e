"""Kernel and udev events: the real kernel group, a real overflow, and a simulated host with udevd."""

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import functools
import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pyudev

from devward.devices.monitor import EVENTS_PER_TURN, DeviceEvent, UdevMonitor
from sim.descriptors import descriptors_left, open_descriptors, opened_since
from sim.held_time import until

KVM_UEVENT = "/sys/class/misc/kvm/uevent"
NULL_UEVENT = "/sys/class/mem/null/uevent"
KVM_CREATE_VM = 0xAE01

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: writing to uevent files")
needs_kvm = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/kvm"), reason="needs /dev/kvm: its uevents and virtual machines, as root"
)


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Hold a lock on the file that the uevents of these tests come from: every run on this machine hears those of every other."""
    with open(NULL_UEVENT, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def emit(path: str, action: str) -> None:
    """Have the kernel send a uevent of a device that exists; nothing about the device changes."""
    with open(path, "w", encoding="ascii") as file:
        file.write(action)


class Listener:
    """Keeps what a monitor delivers."""

    def __init__(self, subsystems: tuple[str, ...], control_socket: Path, **options: Any) -> None:
        self.events: list[DeviceEvent] = []
        self.overflows = 0
        self.on_overflow: Callable[[], None] = lambda: None
        self.monitor = UdevMonitor(
            subsystems, on_event=self.events.append, on_overflow=self._overflow, control_socket=str(control_socket), **options
        )

    def _overflow(self) -> None:
        self.overflows += 1
        self.on_overflow()

    def of(self, name: str) -> list[tuple[str, str]]:
        """Return (action, EVENT) of each event of a device."""
        return [(event.action, event.kvm_event) for event in self.events if event.name == name]


@contextlib.asynccontextmanager
async def listening(subsystems: tuple[str, ...], control_socket: Path, **options: Any) -> AsyncIterator[Listener]:
    listener = Listener(subsystems, control_socket, **options)
    listener.monitor.start()
    try:
        yield listener
    finally:
        listener.monitor.stop()


class Turns:
    """Counts how often the loop waits for events, which a loop that spins does all the time."""

    def __init__(self) -> None:
        self.count = 0
        loop = asyncio.get_running_loop()
        selector = loop._selector  # type: ignore[attr-defined]  # counting turns of the loop has no public way
        self._select = selector.select
        selector.select = self._counting

    def _counting(self, timeout: float | None = None) -> object:
        self.count += 1
        return self._select(timeout)


@pytest.fixture(name="no_udevd")
def _no_udevd(tmp_path: Path) -> Path:
    return tmp_path / "control"


# --- draining -----------------------------------------------------------------------------------------------------------
@needs_root
def test_draining_delivers_what_waits_without_a_turn_of_the_loop(no_udevd: Path) -> None:
    async def main() -> None:
        async with listening(("mem",), no_udevd) as listener:
            for action in ("remove", "add") * 300:
                emit(NULL_UEVENT, action)
            assert listener.of("null") == []
            assert listener.monitor.drain()
            assert len(listener.of("null")) >= 600
            assert listener.monitor.drain()
        assert not listener.monitor.drain(), "nothing is listened to"

    asyncio.run(main())


@needs_root
def test_draining_ends_where_events_come_without_end(no_udevd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devward.devices.monitor.DRAIN_TURNS", 2)
    monkeypatch.setattr("devward.devices.monitor.EVENTS_PER_TURN", 4)

    async def main() -> None:
        async with listening(("mem",), no_udevd) as listener:
            for _ in range(20):
                emit(NULL_UEVENT, "change")
            assert not listener.monitor.drain()
            assert len(listener.events) == 8

    asyncio.run(main())


@needs_root
def test_what_was_lost_is_told_by_draining(no_udevd: Path) -> None:
    async def main() -> None:
        async with listening(("mem",), no_udevd, receive_buffer_size=2048) as listener:
            for _ in range(400):
                emit(NULL_UEVENT, "change")
            listener.monitor.drain()
            assert listener.overflows == 1

    asyncio.run(main())


# --- the kernel's events ---------------------------------------------------------------------------------------------


@needs_kvm
def test_the_kernels_events_arrive_without_udevd(no_udevd: Path) -> None:
    async def main() -> None:
        async with listening(("misc",), no_udevd) as listener:
            assert listener.monitor.source == "kernel"
            for action in ("change", "remove", "add"):
                emit(KVM_UEVENT, action)

            def has_all_in_order() -> bool:
                # Between them may be those of other programs on this machine.
                seen = iter(action for action, kvm_event in listener.of("kvm") if not kvm_event)
                return all(action in seen for action in ("change", "remove", "add"))

            await until(has_all_in_order, "change, remove and add")
            assert DeviceEvent("change", "misc", "kvm", "") in listener.events

    asyncio.run(main())


@needs_kvm
def test_starts_and_ends_of_a_virtual_machine_carry_their_event(no_udevd: Path) -> None:
    async def main() -> None:
        async with listening(("misc",), no_udevd) as listener:
            device = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
            try:
                os.close(fcntl.ioctl(device, KVM_CREATE_VM, 0))
            finally:
                os.close(device)
            await until(lambda: {("change", "create"), ("change", "destroy")} <= set(listener.of("kvm")))
            assert all(kvm_event in {"create", "destroy"} for action, kvm_event in listener.of("kvm") if action == "change")

    asyncio.run(main())


@needs_root
def test_other_subsystems_are_left_out(no_udevd: Path) -> None:
    async def main() -> None:
        async with listening(("misc",), no_udevd) as misc, listening(("mem",), no_udevd) as mem:
            emit(NULL_UEVENT, "change")
            await until(lambda: mem.of("null"))
            assert misc.of("null") == []
            assert {event.subsystem for event in misc.events} <= {"misc"}

    asyncio.run(main())


@needs_root
def test_what_happens_between_listening_and_looking_is_delivered(no_udevd: Path) -> None:
    """`start` listens, so an event that comes before the loop turns again, while the first look is made, is not lost."""

    async def main() -> None:
        async with listening(("mem",), no_udevd) as listener:
            emit(NULL_UEVENT, "change")
            assert listener.events == []
            await until(lambda: listener.of("null"))

    asyncio.run(main())


@needs_root
def test_nothing_is_delivered_after_stop_and_everything_after_another_start(no_udevd: Path) -> None:
    async def main() -> None:
        before = open_descriptors()
        async with listening(("mem",), no_udevd) as listener:
            assert listener.monitor.running
            emit(NULL_UEVENT, "change")
            listener.monitor.stop()
            listener.monitor.stop()
            assert not listener.monitor.running
            await asyncio.sleep(0)
            assert listener.events == []
            assert not opened_since(before)
            listener.monitor.start()
            listener.monitor.start()
            emit(NULL_UEVENT, "change")
            await until(lambda: listener.of("null"))
            assert listener.of("null") == [("change", "")]
        assert not opened_since(before)

    asyncio.run(main())


@needs_root
def test_a_storm_leaves_the_loop_its_turns(no_udevd: Path) -> None:
    async def main() -> None:
        async with listening(("mem",), no_udevd) as listener:
            count = 4 * EVENTS_PER_TURN
            for _ in range(count):
                emit(NULL_UEVENT, "change")
            seen: list[int] = []
            while len(listener.of("null")) < count:
                await asyncio.sleep(0)
                seen.append(len(listener.events))
            assert max(later - earlier for earlier, later in zip([0, *seen], seen, strict=False)) <= EVENTS_PER_TURN

    asyncio.run(main())


@needs_root
def test_a_listener_that_raises_loses_no_other_event(no_udevd: Path) -> None:
    async def main() -> None:
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        async with listening(("mem",), no_udevd) as listener:
            seen = []

            def listen(event: DeviceEvent) -> None:
                seen.append(event)
                if len(seen) == 1:
                    raise LookupError

            listener.monitor._on_event = listen  # a listener of another kind
            for _ in range(3):
                emit(NULL_UEVENT, "change")
            await until(lambda: len(seen) == 3)
            assert [type(problem["exception"]) for problem in problems] == [LookupError]

    asyncio.run(main())


# --- overflow --------------------------------------------------------------------------------------------------------


@needs_root
def test_an_overflow_is_reported_and_later_events_arrive(no_udevd: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with listening(("mem",), no_udevd, receive_buffer_size=4096) as listener:
            for _ in range(3):
                before = listener.overflows
                for _ in range(200):
                    emit(NULL_UEVENT, "change")
                await until(functools.partial(lambda before: listener.overflows > before, before))
                await asyncio.sleep(0.05)
            assert 3 <= listener.overflows <= 6
            turns = Turns()
            await asyncio.sleep(0.2)
            assert turns.count <= 5 + len(listener.events)
            overflows = listener.overflows
            listener.events.clear()
            emit(NULL_UEVENT, "change")
            await until(lambda: listener.of("null"))
            assert listener.overflows == overflows

    asyncio.run(main())
    assert caplog.records == []


@needs_root
def test_an_overflow_while_a_storm_goes_on_does_not_starve_the_loop(no_udevd: Path) -> None:
    async def main() -> None:
        stop = threading.Event()

        def storm() -> None:
            while not stop.is_set():
                emit(NULL_UEVENT, "change")

        thread = threading.Thread(target=storm)
        async with listening(("mem",), no_udevd, receive_buffer_size=4096) as listener:
            thread.start()
            try:
                await until(lambda: listener.overflows >= 3 and len(listener.events) >= 100)
            finally:
                stop.set()
                thread.join()
            listener.events.clear()

            def heard() -> bool:
                # The first ones may be lost with what is left of the storm.
                emit(NULL_UEVENT, "change")
                return bool(listener.of("null"))

            await until(heard)
            assert listener.monitor.running

    asyncio.run(main())


@needs_root
def test_a_listener_may_listen_anew_on_an_overflow(no_udevd: Path) -> None:
    async def main() -> None:
        async with listening(("mem",), no_udevd, receive_buffer_size=4096) as listener:
            listener.on_overflow = listener.monitor.start
            for _ in range(200):
                emit(NULL_UEVENT, "change")
            await until(lambda: listener.overflows)
            listener.events.clear()
            emit(NULL_UEVENT, "change")
            await until(lambda: listener.of("null"))

    asyncio.run(main())


def test_a_socket_with_another_error_is_given_up_instead_of_read_for_ever(
    no_udevd: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with listening(("mem",), no_udevd) as listener:

            def fail(*arguments: object, **options: object) -> None:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

            monkeypatch.setattr(pyudev.Monitor, "poll", fail)
            listener.monitor._readable()
            assert listener.overflows == 1
            assert not listener.monitor.running
            assert listener.monitor.source_changed()

    asyncio.run(main())
    assert "given up: [Errno 5] Input/output error" in caplog.text


@needs_root
def test_an_overflow_that_receiving_tells_of_is_no_end(
    no_udevd: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel reports it once, to whichever call comes first: to poll(2), and then it is pending, or to recvmsg(2)."""

    async def main() -> None:
        async with listening(("mem",), no_udevd) as listener:

            def fail(*arguments: object, **options: object) -> None:
                monkeypatch.undo()
                raise OSError(errno.ENOBUFS, "No buffer space available")

            monkeypatch.setattr(pyudev.Monitor, "poll", fail)
            emit(NULL_UEVENT, "change")
            await until(lambda: listener.overflows == 1)
            emit(NULL_UEVENT, "change")
            await until(lambda: listener.of("null"))
            assert listener.monitor.running

    asyncio.run(main())
    assert caplog.records == []


@needs_root
def test_a_message_that_libudev_refuses_is_no_end(no_udevd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with listening(("mem",), no_udevd) as listener:

            def fail(*arguments: object, **options: object) -> None:
                monkeypatch.undo()
                raise ValueError("Invalid argument")

            listener.on_overflow = listener.monitor.start
            monkeypatch.setattr(pyudev.Monitor, "poll", fail)
            emit(NULL_UEVENT, "change")
            await until(lambda: listener.overflows == 1)
            emit(NULL_UEVENT, "change")
            await until(lambda: listener.of("null"))

    asyncio.run(main())


# --- the source ------------------------------------------------------------------------------------------------------


def test_the_source_is_udev_where_its_control_socket_is_and_the_kernel_elsewhere(tmp_path: Path) -> None:
    async def main() -> None:
        control = tmp_path / "control"
        async with listening(("misc",), control) as listener:
            monitor = listener.monitor
            assert (monitor.source, monitor.source_changed()) == ("kernel", False)
            control.write_text("")
            assert (monitor.source, monitor.source_changed()) == ("kernel", True)
            monitor.start()
            assert (monitor.source, monitor.source_changed()) == ("udev", False)
            control.unlink()
            assert monitor.source_changed()
            monitor.start()
            assert (monitor.source, monitor.source_changed()) == ("kernel", False)

    asyncio.run(main())


def test_a_monitor_that_could_not_start_wants_to_be_started_again(no_udevd: Path) -> None:
    async def main() -> None:
        async with listening(("misc",), no_udevd) as listener:
            for left in (0, 1):
                listener.monitor.stop()
                with descriptors_left(left), pytest.raises(OSError, match=r"Could not create udev monitor|Too many open files"):
                    listener.monitor.start()
                assert (listener.monitor.running, listener.monitor.source) == (False, "")
                assert listener.monitor.source_changed()
            listener.monitor.start()
            assert listener.monitor.running

    asyncio.run(main())


def test_a_buffer_that_may_not_be_enlarged_is_a_warning(
    no_udevd: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with listening(("misc",), no_udevd) as listener:
            assert listener.monitor.running

    if os.geteuid() == 0:

        def refuse(self: object, size: int) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(pyudev.Monitor, "set_receive_buffer_size", refuse)
    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "the udev receive buffer stays at its default size: Operation not permitted" in caplog.text


@needs_root
@pytest.mark.parametrize("left_behind", [0, errno.EINVAL, errno.ENOENT])
def test_the_receive_buffer_is_enlarged_whatever_failed_before(no_udevd: Path, left_behind: int, caplog: pytest.LogCaptureFixture) -> None:
    """pyudev believes an errno that another call left: a watch that inotify had dropped already, for one."""

    async def main() -> None:
        ctypes.set_errno(left_behind)
        async with listening(("misc",), no_udevd, receive_buffer_size=16 << 20) as listener:
            assert caplog.records == []
            assert listener.monitor._error_socket is not None
            size = listener.monitor._error_socket.getsockopt(1, 8)  # SOL_SOCKET, SO_RCVBUF: the kernel doubles it
            assert size == 32 << 20

    asyncio.run(main())


# --- a host with udevd and /dev/mshv ---------------------------------------------------------------------------------

SIMULATION = textwrap.dedent(
    """
    import asyncio, sys
    import gi
    gi.require_version("UMockdev", "1.0")
    from gi.repository import UMockdev
    from devward.devices.monitor import UdevMonitor

    async def main():
        testbed = UMockdev.Testbed.new()
        events = []
        monitor = UdevMonitor(("misc",), on_event=events.append, on_overflow=lambda: None, control_socket=sys.argv[1])
        monitor.start()
        assert monitor.source == "udev", monitor.source
        async def until(count):
            async with asyncio.timeout(30):
                while len(events) < count:
                    await asyncio.sleep(0.001)
        path = testbed.add_device("misc", "mshv", None, ["dev", "10:259"], ["MAJOR", "10", "MINOR", "259", "DEVNAME", "/dev/mshv"])
        await until(1)
        testbed.add_device("usb", "1-1", None, [], [])
        testbed.uevent(path, "change")
        await until(2)
        testbed.uevent(path, "remove")
        testbed.remove_device(path)
        await until(3)
        monitor.stop()
        for event in events:
            print(event.action, event.subsystem, event.name, repr(event.kvm_event))

    asyncio.run(main())
    """
)


def test_udevs_events_of_mshv_arrive(tmp_path: Path) -> None:
    control = tmp_path / "control"
    control.write_text("")
    command = ["umockdev-wrapper", sys.executable, "-c", SIMULATION, str(control)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["add misc mshv ''", "change misc mshv ''", "remove misc mshv ''"]
