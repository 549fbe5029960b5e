"""The verdict on every vNPU, with its reason. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from devward.reclaim.confirmation import Bounds, Progress
from devward.reclaim.look import Look
from devward.reclaim.reasons import Verdict


@dataclass(frozen=True, slots=True)
class Judgement:
    """What may become of one vNPU, and why."""

    #: As in the picture of NPUs.
    name: str
    identity: str
    card: str
    verdict: Verdict
    #: A stable code.
    reason: str
    #: For people, fit to be shown.
    sentence: str
    #: Microseconds since 1970; 0 while nothing counts.
    first_seen_usec: int = 0
    grace_start_usec: int = 0
    eligible_at_usec: int = 0
    confirmations: int = 0
    #: It is eligible only since an administrator asked to shorten the wait.
    is_shortened: bool = False


def judge(progress: Progress, look: Look, bounds: Bounds) -> Mapping[str, Judgement]:
    """Return the verdict on every vNPU of a look, by name. `progress` is that after this look (`step`)."""
    raise NotImplementedError
