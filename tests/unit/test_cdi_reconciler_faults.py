"""The loop around an owned CDI file when its file system fails, fills up or hangs: nothing else stops, and it recovers by itself (R8)."""

import asyncio
import contextlib
import os
import stat
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from devward import names
from devward.cdi.engines import SCAN_DEADLINE
from devward.model import DeviceKind, Health, Identity, Outcome, SpecState, Trigger
from devward.reasons import Reason
from sim.cdi_desk import FILE, GOOD, KVM, STALE, Desk, candidate, document, leave_file, rival, run_at_desk
from sim.errfs import ErrFs

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="needs root: /dev/fuse is not open to this user")

T = TypeVar("T")

#: Real seconds after which a loop that a file system holds up is let go, and the test fails.
PATIENCE = 20.0


@contextlib.contextmanager
def failing(base: Path, where: str = "etc/cdi") -> Iterator[ErrFs]:
    """Mount the file system that fails on demand at one of the desk's directories."""
    (base / "backing").mkdir()
    mountpoint = base / where
    mountpoint.mkdir(parents=True, exist_ok=True)
    with ErrFs(base / "backing", mountpoint) as errfs:
        try:
            yield errfs
        finally:
            errfs.clear()


@contextlib.contextmanager
def turning_loop(errfs: ErrFs) -> Iterator[None]:
    """Hold a block to not waiting for the file system: it runs on the loop, so that the loop would stand still too."""
    stuck = threading.Event()

    def let_go() -> None:
        stuck.set()
        errfs.clear()

    timer = threading.Timer(PATIENCE, let_go)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
    assert not stuck.is_set(), "the loop waits for the file system"


async def given_up(desk: Desk, waiting: Awaitable[T]) -> T:
    """Let the deadlines pass, however many of them, until there is an answer: for where every call may time out."""
    task = asyncio.ensure_future(waiting)
    while not task.done():
        for _ in range(10):
            await asyncio.sleep(0.0)
            time.sleep(0.002)  # noqa: ASYNC251 # the loop's clock stands still
        desk.loop.advance(1)
    return task.result()


Main = Callable[[Desk, ErrFs], Coroutine[Any, Any, None]]


def run_failing(base: Path, main: Main, *, where: str = "etc/cdi", **settings: Any) -> None:
    with failing(base, where) as errfs:
        run_at_desk(base, lambda desk: main(desk, errfs), **settings)


@pytest.mark.parametrize(
    ("operation", "error", "reason"),
    [
        ("create", "EROFS", Reason.CDI_READ_ONLY),
        ("create", "EACCES", Reason.CDI_UNWRITABLE),
        ("create", "EPERM", Reason.CDI_IMMUTABLE),
        ("write", "ENOSPC", Reason.CDI_NO_SPACE),
        ("write", "EDQUOT", Reason.CDI_NO_SPACE),
        ("fsync", "EIO", Reason.CDI_IO_ERROR),
        ("rename", "EIO", Reason.CDI_IO_ERROR),
        ("rename", "ETIMEDOUT", Reason.CDI_TIMEOUT),
    ],
)
@pytest.mark.parametrize("there", ["missing", "stale"])
def test_r8_what_cannot_be_written_is_blocked_and_recovers_with_the_next_mount_event(
    tmp_path: Path, operation: str, error: str, reason: Reason, there: str
) -> None:
    async def main(desk: Desk, errfs: ErrFs) -> None:
        desk.sink.clear()
        errfs.set({operation: error})
        desk.path.unlink()
        if there == "stale":
            (tmp_path / "backing" / FILE).write_bytes(STALE)
            desk.reconciler.nudge(Trigger.MOUNTS)
        await desk.until(lambda: desk.state is SpecState.BLOCKED)
        await desk.quiet()
        assert desk.view.reason is reason
        assert desk.path.exists() is (there == "stale")
        for _ in range(3):
            result = await desk.look(demanded=True)
            assert (result.outcome, result.reason) == (Outcome.FAILURE, reason)
        for _ in range(5):
            await desk.advance(10)
        assert (desk.state, desk.view.reason) == (SpecState.BLOCKED, reason)
        assert len(desk.records("spec-blocked")) == 1
        assert len(desk.outcomes()) == len({cause for _, cause in desk.outcomes()}), "what fails alike is told once"
        errfs.clear()
        desk.reconciler.nudge(Trigger.MOUNTS)
        await desk.advance(1)
        assert desk.path.read_bytes() == GOOD
        assert desk.state is SpecState.TRUE
        assert os.listdir(desk.cdi) == [FILE]
        assert len(desk.records("spec-restored")) == 1
        desk.outcomes()

    run_failing(tmp_path, main)


def test_r8_an_end_of_which_nothing_tells_is_found_out_within_half_a_minute(tmp_path: Path) -> None:
    async def main(desk: Desk, errfs: ErrFs) -> None:
        errfs.set({"create": "EROFS"})
        desk.path.unlink()
        await desk.until(lambda: desk.state is SpecState.BLOCKED)
        for _ in range(10):
            await desk.advance(31)
        errfs.clear()
        await desk.advance(31)
        assert desk.state is SpecState.TRUE

    run_failing(tmp_path, main)


def test_a_true_file_on_storage_that_cannot_be_written_is_true(tmp_path: Path) -> None:
    async def main(desk: Desk, errfs: ErrFs) -> None:
        errfs.set({"create": "EROFS", "rename": "EROFS", "unlink": "EROFS"})
        await desk.look(demanded=True, scan=True)
        assert desk.state is SpecState.TRUE
        assert desk.reconciler.effective(KVM)[0] is True

    run_failing(tmp_path, main)


def test_a_directory_that_cannot_be_read_is_blocked_and_recovers(tmp_path: Path) -> None:
    async def main(desk: Desk, errfs: ErrFs) -> None:
        errfs.set({"opendir": "EIO"})
        await desk.look(scan=True)
        assert (desk.state, desk.view.reason) == (SpecState.BLOCKED, Reason.CDI_IO_ERROR)
        errfs.clear()
        await desk.look(scan=True)
        assert desk.state is SpecState.TRUE

    run_failing(tmp_path, main)


def test_a_file_system_without_modes_ends_in_a_contest_and_not_in_a_loop(tmp_path: Path) -> None:
    """Each write is an event that leads to the next pass; a file whose mode never sticks would be written for ever."""

    async def main(desk: Desk) -> None:
        real, writes = os.fchmod, []

        def ignore(_file: int, _mode: int) -> None:
            writes.append(1)

        os.fchmod = ignore  # type: ignore[assignment] # undone below
        try:
            desk.path.unlink()
            await desk.until(lambda: desk.view.reason is Reason.CDI_CONTESTED)
            await desk.advance(0.1)
            assert len(writes) == 5
        finally:
            os.fchmod = real

    run_at_desk(tmp_path, main, contested_after=5)


# --- hangs ------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("operation", ["fsync", "create", "rename", "write", "fsyncdir"])
def test_a_write_that_hangs_stops_nothing_else_and_recovers_when_it_ends(tmp_path: Path, operation: str) -> None:
    async def main(desk: Desk, errfs: ErrFs) -> None:
        with turning_loop(errfs):
            before = len(errfs.calls(operation))
            errfs.set({operation: {"hang": True}})
            desk.path.unlink()
            await desk.until(lambda: len(errfs.calls(operation)) > before, "the hang")
            result = await given_up(desk, desk.look(demanded=True))
            assert (result.outcome, result.reason) == (Outcome.FAILURE, Reason.CDI_TIMEOUT)
            assert desk.state is SpecState.BLOCKED
            assert desk.outcomes("spec-repair")[-1] == ("failure", "missing")
            for _ in range(3):
                assert (await given_up(desk, desk.look(demanded=True))).reason == Reason.CDI_TIMEOUT
            passes = desk.passes
            await desk.advance(50)
            assert desk.passes - passes <= 1
            assert desk.files.hung
        errfs.clear()
        await desk.until(lambda: desk.state is SpecState.TRUE, "recovery by itself")
        assert desk.path.read_bytes() == GOOD
        await desk.quiet()
        assert os.listdir(desk.cdi) == [FILE]

    run_failing(tmp_path, main)


@pytest.mark.parametrize("operation", ["getattr", "lookup", "opendir"])
def test_a_look_that_hangs_stops_nothing_else_and_recovers_when_it_ends(tmp_path: Path, operation: str) -> None:
    """Also where the watches are set: to find a directory asks its file system."""

    async def main(desk: Desk, errfs: ErrFs) -> None:
        with turning_loop(errfs):
            errfs.set({operation: {"hang": True}})
            result = await given_up(desk, desk.look(demanded=True, scan=True))
            assert (result.outcome, result.reason) == (Outcome.FAILURE, Reason.CDI_TIMEOUT)
            assert (desk.state, desk.view.reason) == (SpecState.BLOCKED, Reason.CDI_TIMEOUT)
            assert desk.view.devices == ()
            assert desk.reconciler.effective(KVM)[0] is False
        errfs.clear()
        await desk.until(lambda: desk.state is SpecState.TRUE, "recovery by itself")

    run_failing(tmp_path, main)


def test_watches_that_cannot_be_set_for_a_hang_are_told_of_once_and_so_is_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(desk: Desk, errfs: ErrFs) -> None:
        for episode in (1, 2):
            with turning_loop(errfs):
                errfs.set({"getattr": {"hang": True}, "lookup": {"hang": True}})
                for _ in range(4):
                    await given_up(desk, desk.look())
                assert caplog.text.count("stay as they are") == episode
                assert caplog.text.count("are set anew again") == episode - 1
            errfs.clear()
            await desk.until(lambda: desk.state is SpecState.TRUE, "recovery by itself")
            await desk.quiet()
            assert caplog.text.count("are set anew again") == episode

    run_failing(tmp_path, main)


def test_a_directory_of_engines_that_hangs_does_not_keep_our_file_from_being_repaired(tmp_path: Path) -> None:
    async def main(desk: Desk, errfs: ErrFs) -> None:
        with turning_loop(errfs):
            errfs.set({"opendir": {"hang": True}, "getattr": {"hang": True}})
            desk.path.unlink()
            await desk.until(lambda: any(call.fault == "hang" for call in errfs.calls()), "the hang")
            desk.loop.advance(SCAN_DEADLINE)
            await desk.until(desk.path.exists, "a repair")
            await desk.quiet()
            assert desk.path.read_bytes() == GOOD
            assert desk.reconciler.effective(KVM)[:2] == (False, Reason.CDI_TIMEOUT)
            assert any(finding.code is Reason.CDI_TIMEOUT for finding in desk.reconciler.findings())
        errfs.clear()
        await desk.until(lambda: desk.reconciler.effective(KVM)[0], "recovery by itself")
        assert not [finding for finding in desk.reconciler.findings() if finding.code is Reason.CDI_TIMEOUT]

    run_failing(tmp_path, main, where="run/cdi")


@pytest.mark.parametrize("identity", [Identity.UNKNOWN, Identity.VALID])
def test_what_is_published_when_the_first_look_hangs(tmp_path: Path, identity: Identity) -> None:
    """Nothing is claimed; and when the file system answers, the file is not withdrawn for want of knowledge."""
    both = document(DeviceKind.KVM, DeviceKind.MSHV)
    kept = leave_file(tmp_path, both)

    async def main(desk: Desk, errfs: ErrFs) -> None:
        (tmp_path / "backing" / FILE).write_bytes(both)
        desk.devices = [candidate(identity, Health.UNKNOWN), candidate(identity, Health.UNKNOWN, DeviceKind.MSHV)]
        with turning_loop(errfs):
            errfs.set({"lookup": {"hang": True}, "opendir": {"hang": True}, "getattr": {"hang": True}})
            await given_up(desk, desk.reconciler.start())
            assert (desk.state, desk.view.reason) == (SpecState.BLOCKED, Reason.CDI_TIMEOUT)
            assert desk.view.devices == ()
        errfs.clear()
        await desk.until(lambda: desk.view.reason is not Reason.CDI_TIMEOUT, "recovery by itself")
        await desk.quiet()
        assert desk.path.read_bytes() == both
        assert desk.state is (SpecState.UNKNOWN if identity is Identity.UNKNOWN else SpecState.TRUE)
        assert desk.records("spec-withdraw") == []
        assert stat.S_IMODE(desk.path.stat().st_mode) == 0o644

    run_failing(tmp_path, main, start=False, kept=kept)


def test_closing_while_a_write_hangs_ends(tmp_path: Path) -> None:
    async def main(desk: Desk, errfs: ErrFs) -> None:
        with turning_loop(errfs):
            errfs.set({"fsync": {"hang": True}})
            before = len(errfs.calls("fsync"))
            desk.path.unlink()
            await desk.until(lambda: len(errfs.calls("fsync")) > before, "the hang")
            await given_up(desk, desk.reconciler.close())
            assert desk.outcomes("spec-repair")[-1] == ("failure", "missing")

    run_failing(tmp_path, main)


# --- mounts -----------------------------------------------------------------------------------------------------------------------------
def test_a_file_system_mounted_over_the_directory_gets_the_file_and_its_end_is_noticed(tmp_path: Path) -> None:
    async def main(desk: Desk) -> None:
        with failing(tmp_path):
            assert os.listdir(desk.cdi) == []
            desk.reconciler.nudge(Trigger.MOUNTS, scan=True)
            await desk.quiet()
            assert desk.path.read_bytes() == GOOD
            assert desk.state is SpecState.TRUE
            desk.path.write_bytes(STALE)
            await desk.until(lambda: desk.path.read_bytes() == GOOD, "a repair by inotify on what is mounted now")
            await desk.quiet()
            await desk.remembered.update(lambda state: state)
        desk.path.write_bytes(STALE)
        await desk.until(lambda: desk.path.read_bytes() == GOOD, "a repair of what was covered")
        await desk.quiet()
        assert desk.state is SpecState.TRUE

    run_at_desk(tmp_path, main)


def test_a_rival_on_storage_that_cannot_be_written_still_keeps_its_device(tmp_path: Path) -> None:
    """Ours cannot be taken out of its way: that is told, and made up for."""

    async def main(desk: Desk, errfs: ErrFs) -> None:
        errfs.set({"rename": "EROFS"})
        (desk.cdi / "rival.json").write_bytes(rival())
        await desk.until(lambda: desk.state is SpecState.BLOCKED)
        assert desk.view.reason is Reason.CDI_READ_ONLY
        assert desk.reconciler.effective(KVM)[:2] == (False, Reason.CDI_CONFLICT)
        errfs.clear()
        desk.reconciler.nudge(Trigger.MOUNTS)
        await desk.advance(1)
        assert not desk.path.exists()
        assert desk.state is SpecState.CONFLICT
        assert {record[names.FIELD_OUTCOME][0] for record in desk.records("spec-withdraw")} == {"intent", "failure", "success"}

    run_failing(tmp_path, main)
