"""Back-off after attempts that failed: the next one waits longer each time, but a second at most once something has happened. Pure.

Times in monotonic seconds.
"""

from dataclasses import dataclass, replace

from devward.reasons import Reason

#: The first wait, which is also the least time between two attempts whatever happens, and the longest.
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """The attempts that failed since the file was last in order."""

    failures: int = 0
    #: When the latest of them failed, and why.
    last: float = 0.0
    reason: Reason = Reason.OK
    detail: str = ""
    #: Something has happened since the latest attempt began: its cause may be gone.
    hinted: bool = False

    @property
    def due(self) -> float:
        """When the next attempt may be made that nobody asks for."""
        wait = min(FIRST_WAIT * 2.0 ** min(self.failures - 1, 16), LONGEST_WAIT)
        return self.last + (FIRST_WAIT if self.hinted else wait)


def hinted(backoff: Backoff) -> Backoff:
    """Take note that something has happened."""
    return replace(backoff, hinted=True)


def begun(backoff: Backoff) -> Backoff:
    """Begin an attempt: what happened up to now is seen by it, what happens from now on may come too late for it."""
    return replace(backoff, hinted=False)


def failed(backoff: Backoff, now: float, reason: Reason, detail: str) -> Backoff:
    """Count an attempt that failed."""
    return replace(backoff, failures=backoff.failures + 1, last=now, reason=reason, detail=detail)


def may_attempt(backoff: Backoff, now: float) -> bool:
    """Tell whether an attempt may be made now that nobody asks for."""
    return not backoff.failures or now >= backoff.due
