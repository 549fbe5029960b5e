"""A bounded child process: deadline, single flight, cancellation apart from the result.

A process that a driver holds in the kernel outlives SIGKILL, so no answer may depend on its end. The slot for the child therefore
stays occupied until the kernel says that the process is gone, while every caller gets an answer within its own budget.

asyncio's child watchers are not used: they start a thread per child or reap through SIGCHLD. A pidfd tells of the end, and this
module reaps.
"""

import asyncio
import contextlib
import errno
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

#: Bytes kept of each output; what a child writes beyond that is read and dropped, so that it never blocks on a full pipe.
OUTPUT_LIMIT: Final = 4096
#: Seconds of the budget kept back for the end of a child that overran, at most a quarter of the budget.
KILL_RESERVE: Final = 0.150
#: The part of that reserve left unused, so that the answer comes before the budget ends and not just after.
ANSWER_SHARE: Final = 0.2
#: The part of the budget that may pass waiting for an earlier process. A fresh run gets at least the rest: with less, a slow end of
#: a cancelled run would look like a device that does not answer (R14).
WAIT_SHARE: Final = 0.75
#: Seconds that `close` waits for what it killed.
CLOSE_PATIENCE: Final = 0.2
#: Seconds between looks at a child whose end cannot be watched for want of a descriptor.
POLL_INTERVAL: Final = 0.02


class ChildStatus(StrEnum):
    """How a run ended."""

    EXITED = "exited"
    SIGNALED = "signaled"
    #: It overran its budget, was killed and is gone.
    DEADLINE = "deadline"
    #: A killed process, this one or an earlier one, is still there.
    STUCK = "stuck"
    #: Another run, not overdue itself, held the slot for too much of the budget.
    BUSY = "busy"
    NOT_STARTED = "not-started"


@dataclass(frozen=True, slots=True)
class ChildResult:
    """The result of one run."""

    status: ChildStatus
    #: Seconds from the call to the answer, the wait for an earlier process included.
    duration: float
    #: With EXITED; None where another reaped the child, so that its code is lost.
    exit_code: int | None = None
    #: The signal's number, with SIGNALED.
    signal: int | None = None
    #: Why it was not started, with NOT_STARTED.
    errno: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""


class BoundedChild:
    """Runs one child process at a time (R12); all methods are for the thread of the running loop."""

    def __init__(self) -> None:
        """Start with a free slot."""
        self._occupants: set[_Process] = set()
        self._closed = False

    @property
    def stuck(self) -> bool:
        """Whether a killed process made a run answer STUCK and is still there."""
        return any(process.stuck for process in self._occupants)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that occupy the slot, adopted ones included."""
        return tuple(sorted(process.pid for process in self._occupants))

    async def run(self, argv: Sequence[str], *, budget: float, pass_fds: Collection[int] = ()) -> ChildResult:
        """Run a program and answer within `budget` seconds, whatever the program does (R11, R13).

        The budget covers the wait for an earlier process and the fresh run. The program gets /dev/null as input, an empty environment,
        `/` as directory and no descriptor but `pass_fds`, which are used only if and when it starts. Cancelling the caller kills the
        child, never gives a result, and leaves the slot occupied until the child is gone (R14).

        Raises RuntimeError after `close`, and CancelledError in runs that `close` ended.
        """
        if self._closed:
            raise RuntimeError("the child's owner is closed")
        loop = asyncio.get_running_loop()
        began = loop.time()
        refusal = await self._wait_for_slot(loop, began + budget * WAIT_SHARE)
        if refusal is not None:
            return ChildResult(refusal, loop.time() - began)
        # Nothing is awaited between finding the slot free and occupying it.
        try:
            process = _Process.start(loop, argv, pass_fds, self._occupants.discard)
        except OSError as error:
            return ChildResult(ChildStatus.NOT_STARTED, loop.time() - began, errno=error.errno or errno.EIO)
        self._occupants.add(process)
        end = began + budget
        reserve = min(KILL_RESERVE, budget / 4)
        try:
            await process.wait(end - reserve)
            if not process.gone.done():
                process.kill()
                await process.wait(end - reserve * ANSWER_SHARE)
        finally:
            process.kill()
        self._raise_if_closed()
        return process.result(loop.time() - began)

    def adopt(self, pid: int, *, confirm: Callable[[], bool] = lambda: True) -> bool:
        """Let a process that an earlier run of this program left behind occupy the slot until it is gone, and kill it.

        `confirm` is asked once the process is held by its pidfd: it must look again whether this pid is still the process that was
        meant. Returns whether it occupies the slot. Raises OSError where no pidfd can be had.
        """
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        if not confirm():
            os.close(pidfd)
            return False
        process = _Process(asyncio.get_running_loop(), pid, pidfd, None, self._occupants.discard)
        self._occupants.add(process)
        process.kill()
        return not process.gone.done()

    def close(self) -> None:
        """Kill what is there and wait for it briefly; what does not go away is let go."""
        self._closed = True
        for process in tuple(self._occupants):
            process.kill()
        end = time.monotonic() + CLOSE_PATIENCE
        for process in tuple(self._occupants):
            process.let_go(max(0.0, end - time.monotonic()))
        self._occupants.clear()

    async def _wait_for_slot(self, loop: asyncio.AbstractEventLoop, until: float) -> ChildStatus | None:
        """Wait until nothing occupies the slot: None, or why it is still occupied at loop time `until`."""
        while self._occupants:
            remaining = until - loop.time()
            if remaining <= 0:
                for process in tuple(self._occupants):
                    process.poll()
                killed = [process for process in self._occupants if process.killed]
                for process in killed:
                    process.stuck = True
                if self._occupants:
                    return ChildStatus.STUCK if killed else ChildStatus.BUSY
                break
            await asyncio.wait([process.gone for process in self._occupants], timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            self._raise_if_closed()
        return None

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise asyncio.CancelledError("the child's owner was closed")


class _Output:
    """The reading end of a child's stdout or stderr, read as data comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the pipe. Raises OSError."""
        self._loop = loop
        self._kept = bytearray()
        self._descriptor, self.write_end = os.pipe2(os.O_CLOEXEC)
        try:
            os.set_blocking(self._descriptor, False)
            loop.add_reader(self._descriptor, self._read)
        except OSError:
            self.close()
            raise

    def finish(self) -> bytes:
        """Return what was kept and what lies in the pipe, without waiting for others that may hold it open."""
        while self._descriptor >= 0 and len(self._kept) < OUTPUT_LIMIT and self._read():
            pass
        self.close()
        return bytes(self._kept)

    def close(self) -> None:
        """Close both ends; more than once does no harm."""
        self.close_write_end()
        if self._descriptor >= 0:
            _unwatch(self._loop, self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def close_write_end(self) -> None:
        """Leave the writing end to the child alone."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def _read(self) -> bool:
        """Read once; False when there is nothing to read now."""
        try:
            data = os.read(self._descriptor, OUTPUT_LIMIT)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._kept += data[: OUTPUT_LIMIT - len(self._kept)]
        return True


class _Process:
    """A process that occupies the slot: a child of ours with its outputs, or an adopted one without, which is never waited for."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pid: int,
        pidfd: int | None,
        outputs: tuple[_Output, _Output] | None,
        on_gone: Callable[["_Process"], None],
    ) -> None:
        self.pid = pid
        #: Done when the process is gone. Waited for with asyncio.wait only, which never cancels it.
        self.gone: asyncio.Future[None] = loop.create_future()
        self.killed = False
        self.stuck = False
        self._loop = loop
        self._pidfd = pidfd
        self._outputs = outputs
        self._on_gone = on_gone
        self._exit: os.waitid_result | None = None
        self._data = (b"", b"")
        self._timer: asyncio.TimerHandle | None = None
        self._watch_end()

    @classmethod
    def start(
        cls, loop: asyncio.AbstractEventLoop, argv: Sequence[str], pass_fds: Collection[int], on_gone: Callable[["_Process"], None]
    ) -> "_Process":
        """Start a child. Raises OSError."""
        with contextlib.ExitStack() as undo:
            stdout = _Output(loop)
            undo.callback(stdout.close)
            stderr = _Output(loop)
            undo.callback(stderr.close)
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stdout.write_end,
                stderr=stderr.write_end,
                pass_fds=pass_fds,
                close_fds=True,
                cwd="/",
                env={},
            )
            undo.pop_all()
        # We reap it: with a return code set, Popen neither waits for the pid nor warns that nobody did.
        process.returncode = 0
        stdout.close_write_end()
        stderr.close_write_end()
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:
            # Out of descriptors or memory. It is an unreaped child of ours, so its pid cannot become another's.
            pidfd = None
        return cls(loop, process.pid, pidfd, (stdout, stderr), on_gone)

    async def wait(self, until: float) -> None:
        """Wait until it is gone, to loop time `until` at most."""
        if not self.gone.done():
            await asyncio.wait((self.gone,), timeout=max(0.0, until - self._loop.time()))

    def kill(self) -> None:
        """Send SIGKILL, unless it is gone; what ended by itself is not marked as killed."""
        # A loop that was held up may not have seen the end yet.
        self.poll()
        if self.gone.done():
            return
        self.killed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._pidfd is None:
                os.kill(self.pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def poll(self) -> None:
        """Take note if it is gone, and reap it if it is ours."""
        if self.gone.done():
            return
        if self._outputs is None:
            if self._ended_within(0.0):
                self._finish()
            return
        which, number = (os.P_PID, self.pid) if self._pidfd is None else (os.P_PIDFD, self._pidfd)
        try:
            self._exit = os.waitid(which, number, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            # Reaped by another: gone, and its exit code is lost.
            self._finish()
            return
        if self._exit is not None:
            self._finish()

    def let_go(self, patience: float) -> None:
        """Wait up to `patience` seconds for its end without the loop, then stop watching it in either case."""
        if not self.gone.done() and self._ended_within(patience):
            self.poll()
        if not self.gone.done():
            self._release()

    def result(self, duration: float) -> ChildResult:
        """Say how the run ended, or that it did not."""
        if not self.gone.done():
            self.stuck = True
            return ChildResult(ChildStatus.STUCK, duration)
        ended = ChildResult(ChildStatus.EXITED, duration, stdout=self._data[0], stderr=self._data[1])
        if self._exit is None:
            return ended
        if self._exit.si_code == os.CLD_EXITED:
            return replace(ended, exit_code=self._exit.si_status)
        if self.killed and self._exit.si_status == signal.SIGKILL:
            return replace(ended, status=ChildStatus.DEADLINE)
        return replace(ended, status=ChildStatus.SIGNALED, signal=self._exit.si_status)

    def _ended_within(self, seconds: float) -> bool:
        """Ask the pidfd, which becomes readable at the end of any process, ours or not."""
        if self._pidfd is None:
            return True
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    def _watch_end(self) -> None:
        """Have the loop call `poll` at the end, or again and again where it cannot watch the pidfd."""
        if self._pidfd is not None:
            with contextlib.suppress(OSError):
                self._loop.add_reader(self._pidfd, self.poll)
                return
        self._timer = self._loop.call_later(POLL_INTERVAL, self._poll_by_timer)

    def _poll_by_timer(self) -> None:
        self.poll()
        if not self.gone.done():
            self._timer = self._loop.call_later(POLL_INTERVAL, self._poll_by_timer)

    def _finish(self) -> None:
        self._release()
        self.gone.set_result(None)
        self._on_gone(self)

    def _release(self) -> None:
        """Give back every descriptor and timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pidfd is not None:
            _unwatch(self._loop, self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self._outputs is not None:
            stdout, stderr = self._outputs
            self._data = (stdout.finish(), stderr.finish())


def _unwatch(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    if not loop.is_closed():
        loop.remove_reader(descriptor)
