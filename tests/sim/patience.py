"""What must not block, made to fail instead of hanging."""

import contextlib
import signal
import time
import types
from collections.abc import Iterator


@contextlib.contextmanager
def must_not_block(seconds: int = 60) -> Iterator[None]:
    """Break off, with AssertionError, a call of the main thread that blocks for so long that it can only be for ever."""

    def expired(_signal: int, _frame: types.FrameType | None) -> None:
        raise AssertionError(f"still blocked after {seconds} s")

    before = signal.signal(signal.SIGALRM, expired)
    began = time.monotonic()
    # The limit of the whole test is such a timer as well.
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 0.001))
