"""At most one request at work in the broker, and whether the broker may be ended: never between entering and leaving the destroying call.

Two threads meet here. One works on the request and says how far it is; the other one watches, and ends the process when a call hangs or
the service manager asks for it. Each decision is made under the lock, so that no call to destroy begins in a process that is being ended.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from enum import StrEnum

from devward.npu.facts import Refusal, Refused


class Phase(StrEnum):
    """How far the request at work is."""

    IDLE = "idle"
    #: Asking the library, the host and the driver; nothing is lost if the process ends.
    READING = "reading"
    #: In the one call that changes something.
    DESTROYING = "destroying"
    #: After that call: its result would be lost, and nothing else.
    VERIFYING = "verifying"


class Gate:
    """Lets one request in at a time."""

    def __init__(self, hang_limit: float, on_change: Callable[[], None], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Take a call for hung after so many seconds; `on_change` is called in the working thread at each change of phase."""
        self._hang_limit = hang_limit
        self._on_change = on_change
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._phase = Phase.IDLE
        self._since = 0.0
        self._call = ""
        #: Answers on their way; the next request need not wait for them.
        self._answers = 0
        self._ending: Refusal | None = None

    @property
    def phase(self) -> Phase:
        """How far the request at work is."""
        return self._phase

    @property
    def call_name(self) -> str:
        """What is being waited for."""
        return self._call

    def enter(self) -> None:
        """Begin a request. Refused: another one is at work, or the process is being ended."""
        with self._lock:
            self._require_going_on()
            if self._phase is not Phase.IDLE:
                raise Refused(Refusal.BUSY, f"the broker is at work on another request, {self._phase}: {self._call}")
            self._move(Phase.READING, "the start")

    def step(self, call: str) -> None:
        """Note that something that may hang begins, while reading or verifying."""
        with self._lock:
            self._call = call
            self._since = self._monotonic()

    @contextlib.contextmanager
    def destroying(self) -> Iterator[None]:
        """Be in the call that destroys. Refused: the process is being ended."""
        with self._lock:
            self._require_going_on()
            self._move(Phase.DESTROYING, "dcmi_set_destroy_vdevice")
        try:
            yield
        finally:
            with self._lock:
                self._move(Phase.VERIFYING, "the list afterwards")

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """End a request, and send its answer: the process waits for that when it stops."""
        with self._lock:
            self._answers += 1
            self._move(Phase.IDLE, "")
        try:
            yield
        finally:
            with self._lock:
                self._answers -= 1
                self._on_change()

    def patience(self) -> float | None:
        """Return the seconds until what is at work counts as hung, at least 0; None: it may take as long as it does."""
        with self._lock:
            if self._phase not in {Phase.READING, Phase.VERIFYING}:
                return None
            return max(0.0, self._since + self._hang_limit - self._monotonic())

    def end_if_hung(self) -> bool:
        """Decide to end the process if a call hangs that may be given up. True: nothing that destroys begins any more."""
        with self._lock:
            if self._phase not in {Phase.READING, Phase.VERIFYING} or self._monotonic() < self._since + self._hang_limit:
                return False
            self._ending = Refusal.HUNG
            return True

    def stop(self) -> bool:
        """Let nothing begin any more. True: nothing is at work, or on its way, that has to end by itself."""
        with self._lock:
            self._ending = self._ending or Refusal.STOPPING
            return self._phase in {Phase.IDLE, Phase.READING} and not self._answers

    def _require_going_on(self) -> None:
        if self._ending is not None:
            raise Refused(self._ending, "the broker is being ended")

    def _move(self, phase: Phase, call: str) -> None:
        self._phase, self._call, self._since = phase, call, self._monotonic()
        self._on_change()
