"""vNPUs with the verdicts on them, as they are shown. What was judged was of one moment: what is in use by now is in use. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from devward.npu.views import Use, Verdict, VnpuView
from devward.reclaim.reasons import Why
from devward.reclaim.verdict import Judgement


class JudgedVnpus:
    """Remembers what was shown last: thousands of vNPUs are shown often, and change seldom."""

    def __init__(self) -> None:
        """Nothing was shown yet."""
        #: By name, each vNPU with its verdict as it was shown last.
        self._shown: dict[str, tuple[VnpuView, Judgement | None, VnpuView]] = {}

    def show(self, vnpus: Sequence[VnpuView], judgements: Mapping[str, Judgement]) -> Sequence[VnpuView]:
        """Return the vNPUs with the verdicts on them, those that are as before as the very same objects."""
        before, self._shown = self._shown, {}
        for vnpu in vnpus:
            judgement = judgements.get(vnpu.name)
            known = before.get(vnpu.name)
            is_same = known is not None and known[0] is vnpu and (known[1] is judgement or _visible(known[1]) == _visible(judgement))
            self._shown[vnpu.name] = known if is_same and known is not None else (vnpu, judgement, _judged(vnpu, judgement))
        return [made for _, _, made in self._shown.values()]


def _visible(judgement: Judgement | None) -> tuple[object, ...] | None:
    """Return all that shows of a verdict on its vNPU."""
    if judgement is None:
        return None
    return (
        judgement.identity,
        judgement.verdict,
        judgement.reason,
        judgement.grace_start_usec,
        judgement.confirmations,
        judgement.eligible_at_usec,
    )


def _judged(vnpu: VnpuView, judgement: Judgement | None) -> VnpuView:
    """Return a vNPU with the verdict on it, if that is on this very one; else with why there is none."""
    if judgement is None or judgement.identity not in ("", vnpu.identity):
        unjudged = {Verdict.IN_USE: Why.DRIVER_SAYS_USED, Verdict.PINNED: Why.PINNED}
        return replace(vnpu, verdict_reason=unjudged.get(vnpu.verdict, Why.NOT_EVALUATED).value)
    if vnpu.use is Use.IN_USE and judgement.verdict.value != Verdict.IN_USE:
        return replace(vnpu, verdict=Verdict.IN_USE, verdict_reason=Why.DRIVER_SAYS_USED.value)
    return replace(
        vnpu,
        verdict=Verdict(judgement.verdict.value),
        verdict_reason=judgement.reason,
        grace_start_usec=judgement.grace_start_usec,
        confirmations=judgement.confirmations,
        eligible_at_usec=judgement.eligible_at_usec,
    )
