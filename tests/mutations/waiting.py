"""V1 to V14: how long and how often nobody must have had a vNPU, and what begins that anew."""

from typing import Final

from mutations.files import AFTERMATH, CONFIRMATION, COUNTERS, LOOK, RECOLLECTION, RECONCILER, SNAPSHOT
from mutations.rule import Rule

RULES: Final = (
    Rule("V1 a grace is above 0", CONFIRMATION, "if not (self.grace > 0 and ", "if not ("),
    Rule("V1 confirmations are above 0", CONFIRMATION, "and self.confirmations > 0 and", "and"),
    Rule("V1 an interval is above 0", CONFIRMATION, " and self.interval > 0):", "):"),
    Rule(
        "V1 looks are taken in one at a time",
        RECONCILER,
        "        if self._acting is not None and not self._acting.done():",
        "        if self._acting is not None and self._acting.cancelled():",
    ),
    Rule(
        "V2 what a snapshot could not tell begins every wait in its scope anew",
        CONFIRMATION,
        "resets = look.snapshot.resets if look.snapshot is not None else ()",
        "resets = ()",
    ),
    Rule(
        "V2 a shielded vNPU loses its confirmations",
        CONFIRMATION,
        "shielded_at=self._now, reset_at=reset_at, reset_reason=reason, normal=Count(), short=Count()\n",
        "shielded_at=self._now, reset_at=reset_at, reset_reason=reason\n",
    ),
    Rule(
        "V2 the wait begins after the last moment at which something shielded it",
        CONFIRMATION,
        "known = replace(known, is_shielded=False, free_since=self._now)",
        "known = replace(known, is_shielded=False, free_since=known.free_since or self._now)",
    ),
    Rule(
        "V6 a vNPU is known by its whole identity and not by its id",
        LOOK,
        "    known = {vnpu.name: vnpu.identity for vnpu in picture.vnpus} if",
        "    known = {vnpu.name: vnpu.name for vnpu in picture.vnpus} if",
    ),
    Rule(
        "V6 what is not listed is forgotten",
        CONFIRMATION,
        "{vnpu.identity: self._take(vnpu) for vnpu in self._look.vnpus if vnpu.identity}",
        "{**self._before.vnpus, **{vnpu.identity: self._take(vnpu) for vnpu in self._look.vnpus if vnpu.identity}}",
    ),
    Rule("V6 a vNPU of another card is another one", CONFIRMATION, "if known is None or known.card != vnpu.card:", "if known is None:"),
    Rule(
        "V8 a vNPU waits its whole grace",
        CONFIRMATION,
        "return start is not None and at - start >= pace.grace and is_confirmed",
        "return start is not None and is_confirmed",
    ),
    Rule(
        "V8 a vNPU is confirmed as often as it must be",
        CONFIRMATION,
        "is_confirmed = count.confirmations >= pace.confirmations and",
        "is_confirmed = count.confirmations > 0 and",
    ),
    Rule(
        "V8 the failure of the attempt that may have made a vNPU begins its wait anew",
        CONFIRMATION,
        "                moments.append(failed_at)",
        "                pass",
    ),
    Rule(
        "V8 a failure time counts for no later than the look that brings it",
        CONFIRMATION,
        "min(claim.failed_at, self._now)",
        "claim.failed_at",
    ),
    Rule(
        "V9 a vNPU that is new on an old card waits its own grace",
        CONFIRMATION,
        "known = VnpuProgress(vnpu.identity, vnpu.card, self._now)",
        "known = next((replace(one, identity=vnpu.identity) for one in self._before.vnpus.values() if one.card == vnpu.card),"
        " VnpuProgress(vnpu.identity, vnpu.card, self._now))",
    ),
    Rule(
        "V11 a destruction leaves the others their progress",
        AFTERMATH,
        "        return forget(progress, identity)",
        "        return Progress()",
    ),
    Rule(
        "V11 a destroyed vNPU has no progress any more",
        AFTERMATH,
        "    if aftermath.result is Result.DESTROYED:\n",
        "    if aftermath.result is Result.REFUSED:\n",
    ),
    Rule("V12 a reload begins every wait anew", RECONCILER, "        self.interrupt(Interruption(Cut.RELOADED))\n", ""),
    Rule(
        "V12 a restarted kubelet begins every wait anew",
        SNAPSHOT,
        "            self._ledger.reset(Reset(Scope.NODE, Look.KUBELET_RESTARTED.value))",
        "            pass",
    ),
    Rule(
        "V12 a kubelet that restarted while devward did not run is noticed",
        SNAPSHOT,
        " or (last and last != process):",
        ":",
    ),
    Rule(
        "V12 our own restart inherits no handshake, Lease, kubelet or lock",
        RECOLLECTION,
        "    return Recollection(boot_id=known.boot_id, node=known.node, pods=still_there(known.pods), loss=loss)\n\n\n# --- how",
        "    return replace(known, loss=loss)\n\n\n# --- how",
    ),
    Rule(
        "V12 a look that broke off leaves no progress",
        RECONCILER,
        "            self._progress = Progress()\n            raise",
        "            raise",
    ),
    Rule(
        "V13 looks and resets are counted",
        RECONCILER,
        "        self.counters += counters.of_look(before, self._progress, look, judgements)\n",
        "",
    ),
    Rule(
        "V13 destructions are counted",
        RECONCILER,
        "        self.counters += counters.of_destruction(what_came)\n",
        "",
    ),
    Rule("V13 unknown looks are counted", COUNTERS, "unknown_looks=int(", "unknown_looks=0 * int("),
    Rule("V13 protected cards are counted", COUNTERS, "cards_protected=sum(", "cards_protected=0 * sum("),
    Rule("V13 lost confirmations are counted", COUNTERS, "confirmation_resets=set_backs(before, after)", "confirmation_resets=0"),
    Rule("V13 failed destructions are counted", COUNTERS, "destroy_errors=int(", "destroy_errors=0 * int("),
)
