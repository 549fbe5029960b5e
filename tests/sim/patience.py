"""What must not block, made to fail instead of hanging."""

import contextlib
import signal
import types
from collections.abc import Iterator


@contextlib.contextmanager
def must_not_block(seconds: int = 60) -> Iterator[None]:
    """Break off, with AssertionError, a call of the main thread that blocks for so long that it can only be for ever."""

    def expired(_signal: int, _frame: types.FrameType | None) -> None:
        raise AssertionError(f"still blocked after {seconds} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
