"""The bounded child: rules R11, R12, R13, R14 and R25 with real processes, a clock that the test turns, and frozen processes."""

import asyncio
import errno
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devward.child import OUTPUT_LIMIT, BoundedChild, ChildResult, ChildStatus
from sim.cgroups import FreezerGroup, has_pending_kill, is_alive
from sim.descriptors import open_descriptors, opened_since
from sim.held_time import PATIENCE, HeldTimeLoop, outcome, run_held, until

SLEEP = ("/bin/sleep", "600")
TRUE = ("/bin/true",)
BUDGET = 2.0


def sh(text: str) -> tuple[str, str, str]:
    return ("/bin/sh", "-c", text)


def run_once(*argv: str, pass_fds: tuple[int, ...] = ()) -> ChildResult:
    """Run one program with a budget that no machine overruns."""

    async def main() -> ChildResult:
        child = BoundedChild()
        try:
            return await child.run(argv, budget=PATIENCE, pass_fds=pass_fds)
        finally:
            child.close()

    return asyncio.run(main(), debug=True)


async def started(child: BoundedChild, after: int = 0) -> int:
    """Wait for the one child, another than `after`, and return its pid."""
    await until(lambda: child.pids not in {(), (after,)}, "a child")
    (pid,) = child.pids
    return pid


def exists(pid: int) -> bool:
    """Tell whether a process is there, be it a zombie."""
    return Path(f"/proc/{pid}").exists()


def popen(*argv: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(argv)


@pytest.fixture(name="freezer")
def _freezer() -> Iterator[FreezerGroup]:
    if os.geteuid() != 0:
        pytest.skip("needs root: to make a freezer group")
    with FreezerGroup("child") as group:
        yield group


# --- what a child gets and gives ------------------------------------------------------------------------------------


def test_exit_code_and_both_outputs() -> None:
    result = run_once(*sh("echo out; echo err >&2; exit 7"))
    assert (result.status, result.exit_code, result.stdout, result.stderr) == (ChildStatus.EXITED, 7, b"out\n", b"err\n")
    assert 0 < result.duration < PATIENCE


def test_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "CREDENTIALS_DIRECTORY", "LISTEN_FDS"):
        monkeypatch.setenv(name, "1")
    assert run_once("/usr/bin/env").stdout == b""


def test_directory_and_input() -> None:
    reading, writing = os.pipe()
    saved = os.dup(0)
    os.dup2(reading, 0)
    try:
        result = run_once(*sh("pwd; readlink /proc/self/fd/0"))
    finally:
        os.dup2(saved, 0)
        for descriptor in (reading, writing, saved):
            os.close(descriptor)
    assert result.stdout == b"/\n/dev/null\n"


def test_no_descriptor_but_those_passed() -> None:
    secret = os.open("/", os.O_PATH)
    passed = os.open("/", os.O_PATH)
    os.set_inheritable(secret, True)
    try:
        seen = run_once("/bin/ls", "/proc/self/fd", pass_fds=(passed,)).stdout.split()
    finally:
        os.close(secret)
        os.close(passed)
    # ls itself has the directory open
    assert str(passed).encode() in seen
    assert len(seen) == 5
    assert len(set(seen) - {b"0", b"1", b"2", str(passed).encode()}) == 1


def test_signal_of_another_is_no_deadline() -> None:
    assert run_once(*sh("kill -SEGV $$")).status is ChildStatus.SIGNALED
    killed = run_once(*sh("kill -KILL $$"))
    assert (killed.status, killed.signal) == (ChildStatus.SIGNALED, signal.SIGKILL)


@pytest.mark.parametrize(("program", "number"), [("/nonexistent/program", errno.ENOENT), ("/etc/passwd", errno.EACCES)])
def test_program_that_cannot_be_started(program: str, number: int) -> None:
    before = open_descriptors()
    result = run_once(program)
    assert (result.status, result.errno) == (ChildStatus.NOT_STARTED, number)
    assert not opened_since(before)


def test_not_started_for_want_of_descriptors() -> None:
    async def main() -> None:
        child = BoundedChild()
        # Or some of other tests might go meanwhile, and there were more to be had.
        gc.collect()
        before = open_descriptors()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        # Between none and all that a start needs: wherever it fails, nothing may be left open and no slot taken.
        for allowed in range(8):
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + allowed, hard))
            try:
                result = await child.run(TRUE, budget=PATIENCE)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert result.status is ChildStatus.EXITED or result.errno == errno.EMFILE, result
            assert child.pids == ()
            assert not opened_since(before), f"{allowed} descriptors"
            if allowed == 0:
                assert result.status is ChildStatus.NOT_STARTED
        assert (await child.run(TRUE, budget=PATIENCE)).exit_code == 0
        child.close()

    asyncio.run(main())


def test_output_is_bounded_and_never_blocks_the_child() -> None:
    result = run_once(*sh("head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; exit 3"))
    assert (result.status, result.exit_code) == (ChildStatus.EXITED, 3)
    assert (len(result.stdout), len(result.stderr)) == (OUTPUT_LIMIT, OUTPUT_LIMIT)


def test_descendant_that_holds_the_output_delays_nothing() -> None:
    result = run_once(*sh("sleep 600 & echo $!"))
    os.kill(int(result.stdout), signal.SIGKILL)
    assert (result.status, result.exit_code) == (ChildStatus.EXITED, 0)


def test_no_thread_is_started() -> None:
    async def main() -> None:
        child = BoundedChild()
        assert (await child.run(TRUE, budget=PATIENCE)).exit_code == 0
        # Some of other tests may have ended meanwhile.
        assert set(threading.enumerate()) <= before
        child.close()

    before = set(threading.enumerate())
    asyncio.run(main())


@pytest.mark.parametrize("fails", ["pidfd_open", "add_reader"])
def test_end_is_noticed_without_a_pidfd(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        child = BoundedChild()
        loop = asyncio.get_running_loop()
        before = open_descriptors()
        with monkeypatch.context() as patch:
            if fails == "pidfd_open":
                patch.setattr(os, "pidfd_open", refuse)
            else:
                add_reader = loop.add_reader

                def reader(descriptor: int, callback: object, *arguments: object) -> None:
                    if "pidfd" in os.readlink(f"/proc/self/fd/{descriptor}"):
                        refuse()
                    add_reader(descriptor, callback, *arguments)

                patch.setattr(loop, "add_reader", reader)
            assert (await child.run(sh("exit 5"), budget=PATIENCE)).exit_code == 5
            task = asyncio.create_task(child.run(SLEEP, budget=PATIENCE))
            pid = await started(child)
            task.cancel()
            await until(lambda: not child.pids, "the end of the cancelled child")
            assert not exists(pid)
        assert not opened_since(before)
        child.close()

    def refuse(*_arguments: object) -> int:
        raise OSError(errno.EMFILE, "refused by the test")

    asyncio.run(main())


def test_exit_code_reaped_by_another_is_lost_but_not_the_slot() -> None:
    async def main() -> None:
        child = BoundedChild()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
        try:
            result = await child.run(TRUE, budget=PATIENCE)
        finally:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        assert (result.status, result.exit_code) == (ChildStatus.EXITED, None)
        assert child.pids == ()
        child.close()

    asyncio.run(main())


# --- the budget ------------------------------------------------------------------------------------------------------


def test_r11_child_that_overruns_is_killed_and_answered_within_the_budget() -> None:
    async def main(loop: HeldTimeLoop) -> None:
        child = BoundedChild()
        task = asyncio.create_task(child.run(sh("echo early; exec sleep 600"), budget=BUDGET))
        pid = await started(child)
        loop.advance(BUDGET * 0.9)
        await until(lambda: not task.done() and is_alive(pid))
        loop.advance(BUDGET * 0.05)
        result = await outcome(task)
        assert result.status is ChildStatus.DEADLINE
        assert result.duration < BUDGET
        assert not exists(pid), "a zombie"
        assert not child.stuck
        child.close()

    run_held(main)


def test_r11_budget_covers_the_wait_for_an_earlier_child_and_the_fresh_run() -> None:
    async def main(loop: HeldTimeLoop) -> None:
        child = BoundedChild()
        first = asyncio.create_task(child.run(SLEEP, budget=600))
        earlier = await started(child)
        second = asyncio.create_task(child.run(SLEEP, budget=BUDGET))
        await asyncio.sleep(0)
        loop.advance(1.0)
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        pid = await started(child, after=earlier)
        # 1 s of the budget is gone: the fresh run has the other second, not two
        loop.advance(0.9)
        result = await outcome(second)
        assert result.status is ChildStatus.DEADLINE
        assert result.duration == pytest.approx(1.9)
        assert not is_alive(pid)
        child.close()

    run_held(main)


def test_end_that_a_late_loop_has_not_seen_is_an_end_in_time() -> None:
    async def main(loop: HeldTimeLoop) -> None:
        child = BoundedChild()
        task = asyncio.create_task(child.run(sh("echo done"), budget=BUDGET))
        await asyncio.sleep(0)
        (pid,) = child.pids
        end = time.monotonic() + PATIENCE
        while is_alive(pid) and time.monotonic() < end:
            time.sleep(0.002)  # noqa: ASYNC251  # the loop is held up on purpose
        loop.advance(60)
        result = await outcome(task)
        assert (result.status, result.exit_code, result.stdout) == (ChildStatus.EXITED, 0, b"done\n")
        child.close()

    run_held(main)


def test_r12_runs_never_overlap(tmp_path: Path) -> None:
    async def main() -> None:
        child = BoundedChild()
        alone = sh(f"mkdir {tmp_path}/alone || exit 9; sleep 0.02; rmdir {tmp_path}/alone")
        results = await asyncio.gather(*(child.run(alone, budget=PATIENCE) for _ in range(6)))
        assert [result.exit_code for result in results] == [0] * 6
        child.close()

    asyncio.run(main(), debug=True)


def test_r12_a_run_that_is_not_overdue_makes_others_busy_not_stuck() -> None:
    async def main(loop: HeldTimeLoop) -> None:
        child = BoundedChild()
        first = asyncio.create_task(child.run(SLEEP, budget=600))
        pid = await started(child)
        second = asyncio.create_task(child.run(TRUE, budget=BUDGET))
        await asyncio.sleep(0)
        loop.advance(1.5)
        assert (await outcome(second)).status is ChildStatus.BUSY
        assert child.pids == (pid,)
        assert is_alive(pid)
        assert not child.stuck
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        child.close()

    run_held(main)


# --- a child that cannot be ended ------------------------------------------------------------------------------------


async def make_stuck(loop: HeldTimeLoop, child: BoundedChild, freezer: FreezerGroup) -> int:
    """Run a child that is frozen before its deadline and return its pid; the run has answered STUCK."""
    task = asyncio.create_task(child.run(SLEEP, budget=BUDGET))
    pid = await started(child)
    freezer.freeze(pid)
    loop.advance(1.85)
    await until(lambda: has_pending_kill(pid), "SIGKILL")
    assert is_alive(pid)
    assert not task.done()
    loop.advance(0.13)
    result = await outcome(task)
    assert result.status is ChildStatus.STUCK
    assert result.duration < BUDGET
    assert is_alive(pid), "it was to outlive SIGKILL"
    assert child.stuck
    return pid


def test_r13_child_that_cannot_exit_is_answered_in_time_and_no_second_is_started(freezer: FreezerGroup, tmp_path: Path) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        child = BoundedChild()
        pid = await make_stuck(loop, child, freezer)
        for _ in range(2):
            later = asyncio.create_task(child.run(("/bin/touch", str(tmp_path / "second")), budget=BUDGET))
            await asyncio.sleep(0)
            loop.advance(1.5)
            result = await outcome(later)
            assert result.status is ChildStatus.STUCK
            assert result.duration < BUDGET
            assert child.pids == (pid,)
        assert not (tmp_path / "second").exists()

        freezer.thaw()
        await until(lambda: not child.pids, "recovery by itself")
        assert not child.stuck
        assert not exists(pid), "a zombie"
        assert (await child.run(TRUE, budget=BUDGET)).exit_code == 0
        child.close()

    run_held(main)


def test_r13_run_that_waits_goes_on_as_soon_as_the_stuck_child_is_gone(freezer: FreezerGroup) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        child = BoundedChild()
        await make_stuck(loop, child, freezer)
        waiting = asyncio.create_task(child.run(TRUE, budget=BUDGET))
        await asyncio.sleep(0)
        loop.advance(1.4)
        freezer.thaw()
        assert (await outcome(waiting)).exit_code == 0
        child.close()

    run_held(main)


def test_r14_fresh_run_after_a_long_cleanup_has_a_fair_part_of_the_budget(freezer: FreezerGroup) -> None:
    """A cleanup that eats nearly the whole budget must not make a healthy device look as if it did not answer."""

    async def main(loop: HeldTimeLoop) -> None:
        child = BoundedChild()
        stuck = await make_stuck(loop, child, freezer)
        waiting = asyncio.create_task(child.run(SLEEP, budget=BUDGET))
        await asyncio.sleep(0)
        loop.advance(1.49)
        freezer.thaw()
        pid = await started(child, after=stuck)
        loop.advance(0.35)
        for _ in range(5):
            await asyncio.sleep(0)
        assert is_alive(pid), "killed after less than its part"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        child.close()

    run_held(main)


# --- cancellation ----------------------------------------------------------------------------------------------------


def test_r14_cancellation_ends_the_child_in_the_background_and_is_no_result() -> None:
    async def main() -> None:
        child = BoundedChild()
        task = asyncio.create_task(child.run(SLEEP, budget=PATIENCE))
        pid = await started(child)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not child.pids, "the cleanup, which nobody waits for")
        assert not exists(pid), "a zombie"
        child.close()

    asyncio.run(main(), debug=True)


def test_r25_cancelled_helper_does_not_poison_the_next_check() -> None:
    async def main() -> None:
        child = BoundedChild()
        for _ in range(10):
            task = asyncio.create_task(child.run(SLEEP, budget=PATIENCE))
            await started(child)
            task.cancel()
            result = await child.run(TRUE, budget=PATIENCE)
            assert (result.status, result.exit_code) == (ChildStatus.EXITED, 0)
            assert task.cancelled()
        child.close()

    asyncio.run(main(), debug=True)


def test_r14_slot_stays_occupied_until_the_cancelled_child_is_gone(freezer: FreezerGroup, tmp_path: Path) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        child = BoundedChild()
        task = asyncio.create_task(child.run(SLEEP, budget=BUDGET))
        pid = await started(child)
        freezer.freeze(pid)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert has_pending_kill(pid)
        assert child.pids == (pid,)
        mark = tmp_path / "second"
        following = asyncio.create_task(child.run(("/bin/touch", str(mark)), budget=BUDGET))
        await asyncio.sleep(0)
        loop.advance(1.0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert child.pids == (pid,)
        assert not mark.exists()
        freezer.thaw()
        assert (await outcome(following)).exit_code == 0
        assert mark.exists()
        child.close()

    run_held(main)


def test_r25_cancellation_while_waiting_for_the_cleanup(freezer: FreezerGroup) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        child = BoundedChild()
        pid = await make_stuck(loop, child, freezer)
        for _ in range(3):
            waiting = [asyncio.create_task(child.run(TRUE, budget=BUDGET)) for _ in range(3)]
            await asyncio.sleep(0)
            for task in waiting:
                task.cancel()
            assert all(isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*waiting, return_exceptions=True))
            assert child.pids == (pid,)
        freezer.thaw()
        assert (await child.run(TRUE, budget=BUDGET)).exit_code == 0
        child.close()

    run_held(main)


def test_r25_cancellation_during_the_cleanup_after_a_deadline(freezer: FreezerGroup) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        child = BoundedChild()
        task = asyncio.create_task(child.run(SLEEP, budget=BUDGET))
        pid = await started(child)
        freezer.freeze(pid)
        loop.advance(1.86)
        await until(lambda: has_pending_kill(pid), "SIGKILL")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert child.pids == (pid,)
        freezer.thaw()
        assert (await child.run(TRUE, budget=BUDGET)).exit_code == 0
        child.close()

    run_held(main)


# --- processes of an earlier run -------------------------------------------------------------------------------------


def orphan() -> int:
    """Start a process that is no child of ours and return its pid."""
    done = subprocess.run(sh("sleep 600 </dev/null >/dev/null 2>&1 & echo $!"), check=True, capture_output=True)
    return int(done.stdout)


def test_r12_adopted_process_counts_until_it_is_gone(freezer: FreezerGroup) -> None:
    async def main(loop: HeldTimeLoop) -> None:
        child = BoundedChild()
        pid = orphan()
        freezer.freeze(pid)
        assert child.adopt(pid)
        assert child.pids == (pid,)
        assert not child.stuck
        task = asyncio.create_task(child.run(TRUE, budget=BUDGET))
        await asyncio.sleep(0)
        loop.advance(1.5)
        assert (await outcome(task)).status is ChildStatus.STUCK
        assert child.stuck
        freezer.thaw()
        assert (await child.run(TRUE, budget=BUDGET)).exit_code == 0
        assert child.pids == ()
        child.close()

    run_held(main)


def test_adopted_process_is_killed_and_never_waited_for() -> None:
    async def main() -> None:
        child = BoundedChild()
        # A child of the test, so that the test sees whether anyone else reaped it.
        with popen(*SLEEP) as process:
            assert child.adopt(process.pid)
            assert (await child.run(TRUE, budget=PATIENCE)).exit_code == 0
            # Dead, be it unreaped, it counts no longer.
            assert not child.adopt(process.pid)
            assert process.wait(PATIENCE) == -signal.SIGKILL
        child.close()

    asyncio.run(main(), debug=True)


def test_adopting_what_is_gone_or_another_process() -> None:
    async def main() -> None:
        child = BoundedChild()
        before = open_descriptors()
        with popen(*TRUE) as process:
            process.wait()
        assert not child.adopt(process.pid)
        with popen(*SLEEP) as stranger:
            assert not child.adopt(stranger.pid, confirm=lambda: False)
            assert stranger.poll() is None, "a stranger was killed"
            stranger.kill()
        assert child.pids == ()
        assert not opened_since(before)
        child.close()

    asyncio.run(main())


# --- the end ---------------------------------------------------------------------------------------------------------


def test_close_ends_runs_and_leaves_no_zombie_and_no_descriptor(tmp_path: Path) -> None:
    async def main() -> None:
        child = BoundedChild()
        before = open_descriptors()
        running = asyncio.create_task(child.run(SLEEP, budget=PATIENCE))
        pid = await started(child)
        waiting = asyncio.create_task(child.run(("/bin/mkdir", str(tmp_path / "started")), budget=PATIENCE))
        await asyncio.sleep(0)
        child.close()
        assert not exists(pid)
        outcomes = await asyncio.gather(running, waiting, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in outcomes), outcomes
        assert not (tmp_path / "started").exists(), "a run that waited was started after the end"
        assert child.pids == ()
        assert not opened_since(before)
        with pytest.raises(RuntimeError):
            await child.run(TRUE, budget=PATIENCE)
        child.close()

    asyncio.run(main(), debug=True)


def test_close_does_not_wait_for_a_stuck_child(freezer: FreezerGroup) -> None:
    async def main(loop: HeldTimeLoop) -> int:
        child = BoundedChild()
        before = open_descriptors()
        pid = await make_stuck(loop, child, freezer)
        child.close()
        assert is_alive(pid)
        assert child.pids == ()
        assert not opened_since(before)
        return pid

    pid = run_held(main)
    gc.collect()  # Popen must not warn about it, which would be an error here
    freezer.thaw()
    assert os.waitpid(pid, 0)[0] == pid


def test_close_while_the_run_of_a_stuck_child_goes_on(freezer: FreezerGroup) -> None:
    async def main(loop: HeldTimeLoop) -> int:
        child = BoundedChild()
        task = asyncio.create_task(child.run(SLEEP, budget=BUDGET))
        pid = await started(child)
        freezer.freeze(pid)
        child.close()
        loop.advance(BUDGET)
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        return pid

    pid = run_held(main)
    freezer.thaw()
    assert os.waitpid(pid, 0)[0] == pid


def test_no_descriptor_and_no_zombie_after_runs_of_every_kind() -> None:
    async def main(loop: HeldTimeLoop) -> None:
        child = BoundedChild()
        pids = set()
        before = open_descriptors()
        for _ in range(10):
            assert (await child.run(TRUE, budget=BUDGET)).status is ChildStatus.EXITED
            assert (await child.run(("/nonexistent",), budget=BUDGET)).status is ChildStatus.NOT_STARTED
            assert (await child.run(sh("kill -TERM $$"), budget=BUDGET)).status is ChildStatus.SIGNALED
            late = asyncio.create_task(child.run(SLEEP, budget=BUDGET))
            pids.add(await started(child))
            loop.advance(1.9)
            assert (await outcome(late)).status is ChildStatus.DEADLINE
            cancelled = asyncio.create_task(child.run(SLEEP, budget=BUDGET))
            pids.add(await started(child))
            cancelled.cancel()
            await until(lambda: not child.pids)
        assert not opened_since(before)
        assert not [pid for pid in pids if exists(pid)]
        child.close()

    run_held(main)


def test_unclosed_owner_warns_of_nothing() -> None:
    """A loop that ends while a child runs must not end in warnings; the program shows what an interpreter says at its exit."""
    program = (
        "import asyncio, os, signal\n"
        "from devward.child import BoundedChild\n"
        "async def main():\n"
        "    child = BoundedChild()\n"
        "    task = asyncio.create_task(child.run(('/bin/sleep', '600'), budget=60))\n"
        "    await asyncio.sleep(0)\n"
        "    return child\n"
        "child = asyncio.run(main())\n"
        "child.close()\n"
    )
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", program], check=False, capture_output=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
