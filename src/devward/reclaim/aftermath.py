"""What the broker's answer to a destroy means for the vNPU and for those that come after it. Pure.

Whether the vNPU is still there decides, and not the library's code: a call that reports an error may have destroyed it all the same. Two
codes mean more than failure: -8001, that the vNPU is in use after all, and -8002, that this process may not destroy. What is not known to
be gone is tried again only after another confirmation, and so after a new complete look.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from devward.npu.codes import DcmiCode, sentence
from devward.npu.facts import Outcome, Refusal
from devward.reclaim.confirmation import Progress, forget, set_back, tried

#: Refusals that say nothing of the vNPU: of the broker itself, the library as a whole, or the request's time.
_OF_BROKER: Final = frozenset(
    {
        Refusal.MALFORMED,
        Refusal.VERSION,
        Refusal.BUSY,
        Refusal.STOPPING,
        Refusal.NOT_ROOT,
        Refusal.MOUNT_NAMESPACE,
        Refusal.CAPABILITIES,
        Refusal.CONTAINER,
        Refusal.ENVIRONMENT_UNKNOWN,
        Refusal.LIBRARY_MISSING,
        Refusal.LIBRARY_UNSAFE,
        Refusal.LIBRARY_UNUSABLE,
        Refusal.LIBRARY_GENERATION,
        Refusal.LIBRARY_CHANGED,
        Refusal.DCMI_FAILED,
        Refusal.HUNG,
        Refusal.INTERNAL,
        Refusal.TOO_LONG,
        Refusal.DESTROY_RUNNING,
        Refusal.LOCK_UNUSABLE,
        Refusal.EXPIRED,
        Refusal.CALLER_GONE,
    }
)


class Result(StrEnum):
    """What came of asking the broker."""

    DESTROYED = Outcome.DESTROYED.value
    STILL_PRESENT = Outcome.STILL_PRESENT.value
    #: It may be gone or not.
    UNKNOWN = Outcome.UNKNOWN.value
    #: The library was not called.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What an answer of the broker means."""

    result: Result
    #: A stable code: that of the refusal, `destroy-N` with the library's code, `no-answer` or `not-asked`.
    reason: str
    #: For people, fit to be shown.
    sentence: str
    #: The vNPU begins to wait anew.
    sets_back: bool = False
    #: Nothing more may be destroyed (`Controls.is_forbidden`).
    forbids: bool = False


def called(outcome: Outcome, code: int | None) -> Aftermath:
    """Return what it means that the library was called; `code` is what it returned, None: it did not."""
    is_gone = outcome is Outcome.DESTROYED
    return Aftermath(
        Result(outcome.value),
        f"destroy-{'unfinished' if code is None else abs(code)}",
        "The library did not return." if code is None else f"The library says: {sentence(code)}.",
        sets_back=not is_gone and code == DcmiCode.INVALID_PARAMETER,
        forbids=code == DcmiCode.NOT_PERMITTED,
    )


def refused(reason: Refusal, code: int | None, text: str) -> Aftermath:
    """Return what it means that the broker refused; `text` is its own sentence, fit to be shown.

    Whatever it found that is not as it was believed to be, or could not tell of this vNPU, is an unknown: its wait begins anew.
    """
    return Aftermath(
        Result.REFUSED,
        reason.value,
        text,
        sets_back=reason not in _OF_BROKER or code == DcmiCode.INVALID_PARAMETER,
        forbids=code == DcmiCode.NOT_PERMITTED,
    )


def unanswered(text: str) -> Aftermath:
    """Return what it means that no answer came, or none that can be read: the library may have been called."""
    return Aftermath(Result.UNKNOWN, "no-answer", text)


def unasked(text: str) -> Aftermath:
    """Return what it means that nothing reached the broker: nothing was done, and nothing is known that was not known before."""
    return Aftermath(Result.REFUSED, "not-asked", text)


def conclude(progress: Progress, identity: str, aftermath: Aftermath, at: float) -> Progress:
    """Return the progress with what became of one vNPU at a moment of the monotonic clock. All others keep theirs."""
    if aftermath.result is Result.DESTROYED:
        return forget(progress, identity)
    progress = tried(progress, identity, at)
    return set_back(progress, identity, at, aftermath.reason) if aftermath.sets_back else progress
