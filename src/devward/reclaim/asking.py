"""Which vNPUs the host is searched for, before a look: a search goes through every process, and is only worth it where it may decide. Pure.

What is not asked about is unknown. So a vNPU that was shielded by something else is asked about from the look after that went away, and
begins to wait one look later.

One that the driver calls used is searched for where nothing else that is looked at anyway shows who uses it. That spares nobody: it tells
for the journal whether the driver's flag is all there is (stays.py).
"""

from collections.abc import Mapping
from typing import Final

from devward.cluster.claims import ClaimReason
from devward.cluster.evidence import Finding
from devward.npu.inventory import Picture
from devward.npu.pins import PinReport
from devward.npu.views import Use
from devward.reasons import Reason
from devward.reclaim.reasons import Verdict, Why
from devward.reclaim.verdict import Judgement

#: Reasons that a search of the host can end, or that end by themselves.
_BY_HOST: Final = frozenset(
    {
        Why.HELD_ON_HOST.value,
        Why.HOST_UNKNOWN.value,
        Why.HOST_NOT_ASKED.value,
        Why.NOT_EVALUATED.value,
        Why.NOT_FOLLOWED.value,
        Why.OUTDATED.value,
        ClaimReason.PRIVILEGED.value,
        # These last for a moment: the look after them should not have to wait for another one.
        ClaimReason.CONTAINER_ALIVE.value,
        ClaimReason.WAITING_UNSAID.value,
    }
)
#: Nothing shielded it: it counts only while the host says so.
_COUNTING: Final = frozenset({Verdict.CANDIDATE, Verdict.CONFIRMING, Verdict.ELIGIBLE, Verdict.DEFERRED})


def ask_about(picture: Picture, pins: PinReport | None, last: Mapping[str, Judgement]) -> frozenset[str]:
    """Return the names of the vNPUs to search for; `last` are the verdicts of the look before, by name."""
    pinned = {one.view.name for one in pins.vnpus} if pins is not None else {vnpu.name for vnpu in picture.vnpus}
    return frozenset(
        vnpu.name
        for vnpu in picture.vnpus
        if vnpu.reason is Reason.OK and vnpu.name not in pinned and _may_decide(vnpu.use, last.get(vnpu.name))
    )


def _may_decide(use: Use, last: Judgement | None) -> bool:
    if use is not Use.IDLE:
        return use is Use.IN_USE and last is not None and last.verdict is Verdict.IN_USE and last.beside is not Finding.HELD
    return last is None or last.verdict in _COUNTING or last.verdict is Verdict.IN_USE or last.reason in _BY_HOST
