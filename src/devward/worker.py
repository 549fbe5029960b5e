"""A thread of its own for calls that may hang in the file system: at most one at a time, each waited for within a deadline.

A call that hangs is not cut off, which cannot be done, but nothing else waits for it: later calls are refused at once until it ends.
The thread is a daemon thread, so that a hung file system cannot keep the process from exiting.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class WorkerHung(Exception):
    """The call did not end within its deadline, or an earlier one still has not ended."""


class Worker:
    """Runs blocking calls in one thread. `on_recovered` is called on the loop when a call ends that had been given up on."""

    def __init__(self, name: str, on_recovered: Callable[[], None] | None = None) -> None:
        """Start the thread with the first call."""
        self._name = name
        self._on_recovered = on_recovered
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = asyncio.Lock()
        #: A call that still runs though nobody waits for its result: it was given up on, or its caller went away.
        self._left: asyncio.Future[Any] | None = None
        self._hung = False
        #: The call that was given up on had used the processor instead of waiting for a file system.
        self._busy = False
        #: The clock of the thread's processor time, and what it showed when the latest call began.
        self._cpu_clock: int | None = None
        self._began = 0.0

    @property
    def hung(self) -> bool:
        """Whether a call that was given up on still runs."""
        return self._hung

    async def run(self, call: Callable[[], _T], deadline: float) -> _T:
        """Run `call` and return its result, within `deadline` seconds. Raises WorkerHung, or what the call raises."""
        async with self._lock:
            if self._hung:
                raise self._still()
            loop = asyncio.get_running_loop()
            end = loop.time() + deadline
            if self._left is not None:
                await asyncio.wait({self._left}, timeout=deadline)
            if self._left is not None:
                self._hung, self._busy = True, self._used() >= deadline / 2
                raise self._still()
            answer: asyncio.Future[_T] = loop.create_future()

            def done(result: _T | None, error: BaseException | None) -> None:
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(result)  # type: ignore[arg-type] # None only where _T includes it
                if self._left is not answer:
                    return
                answer.exception()  # looked at: nobody waits for it
                self._left = None
                if self._hung:
                    self._hung = False
                    if self._on_recovered is not None:
                        self._on_recovered()

            def work() -> None:
                try:
                    result, error = call(), None
                except BaseException as raised:  # noqa: BLE001 # it travels to the caller
                    result, error = None, raised
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(done, result, error)

            self._start()
            self._calls.put(work)
            try:
                await asyncio.wait({answer}, timeout=end - loop.time())
            finally:
                if answer.done():
                    answer.exception()  # looked at, also where the caller goes away just as it comes
                else:
                    self._left = answer
            # Not by an exception of a timeout: the call's own error may be a TimeoutError (ETIMEDOUT), and it has ended then.
            if not answer.done():
                self._hung, self._busy = True, self._used() >= deadline / 2
                if self._busy:
                    raise WorkerHung(f"the {self._name} thread has more to do than fits into {deadline:g} s")
                raise WorkerHung(f"the file system did not answer within {deadline:g} s")
            return answer.result()

    def close(self) -> None:
        """Let the thread end once it is idle."""
        if self._thread is not None:
            self._calls.put(None)

    def _still(self) -> WorkerHung:
        return WorkerHung(f"the {self._name} thread still {'works' if self._busy else 'waits for the file system'}")

    def _used(self) -> float:
        """Return the seconds of processor time that the latest call has used: one that waits for a file system uses none."""
        try:
            return time.clock_gettime(self._cpu_clock) - self._began if self._cpu_clock is not None else 0.0
        except OSError:  # the thread has ended
            return 0.0

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        # Asked for by the thread itself: of one that has ended it must not be asked for.
        self._cpu_clock = time.pthread_getcpuclockid(threading.get_ident())
        while (work := self._calls.get()) is not None:
            self._began = time.thread_time()
            work()
