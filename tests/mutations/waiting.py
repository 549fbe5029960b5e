"""V1 to V14 and DESIGN 4.4: how long, how often, and since when nobody must have had a vNPU."""

from typing import Final

from mutations.rule import Rule

_CONFIRMATION: Final = "src/devward/reclaim/confirmation.py"
_VERDICT: Final = "src/devward/reclaim/verdict.py"
_LOOK: Final = "src/devward/reclaim/look.py"
_RECONCILER: Final = "src/devward/reclaim/reconciler.py"
_CONFIG: Final = "src/devward/config.py"
_COUNTERS: Final = "src/devward/reclaim/counters.py"
_AFTERMATH: Final = "src/devward/reclaim/aftermath.py"
_ASKING: Final = "src/devward/reclaim/asking.py"
_RECOLLECTION: Final = "src/devward/cluster/recollection.py"
_SNAPSHOT: Final = "src/devward/cluster/snapshot.py"
_WATCHER: Final = "src/devward/cluster/owners.py"

ASKED: Final = {
    _CONFIRMATION: ("test_reclaim_confirmation.py", "test_reclaim_verdict.py", "test_reclaim_properties.py"),
    _VERDICT: ("test_reclaim_verdict.py", "test_reclaim_confirmation.py", "test_reclaim_properties.py"),
    _LOOK: ("test_reclaim_verdict.py", "test_reclaim_confirmation.py", "test_reclaim_reconciler.py"),
    _RECONCILER: ("test_reclaim_reconciler.py", "test_reclaim_room.py"),
    _CONFIG: ("test_config.py",),
    _COUNTERS: ("test_reclaim_history.py", "test_reclaim_reconciler.py", "test_reclaim_room.py"),
    _AFTERMATH: ("test_reclaim_contract.py", "test_reclaim_reconciler.py"),
    _ASKING: ("test_reclaim_verdict.py", "test_reclaim_reconciler.py", "test_reclaim_room.py"),
    _RECOLLECTION: ("test_snapshot_memory.py", "test_snapshot_gates.py", "test_owners_memory.py", "test_snapshot_properties.py"),
    _SNAPSHOT: ("test_snapshot_gates.py", "test_snapshot_memory.py", "test_snapshot_properties.py"),
    _WATCHER: ("test_owners_watcher.py", "test_owners_memory.py"),
}

_V: Final = (
    Rule("V1 a grace is above 0", _CONFIRMATION, "if not (self.grace > 0 and ", "if not ("),
    Rule("V1 confirmations are above 0", _CONFIRMATION, "and self.confirmations > 0 and", "and"),
    Rule("V1 an interval is above 0", _CONFIRMATION, " and self.interval > 0):", "):"),
    Rule(
        "V1 looks are taken in one at a time",
        _RECONCILER,
        "        if self._acting is not None and not self._acting.done():",
        "        if self._acting is not None and self._acting.cancelled():",
    ),
    Rule(
        "V2 what a snapshot could not tell begins every wait in its scope anew",
        _CONFIRMATION,
        "resets = self._look.snapshot.resets if self._look.snapshot is not None else ()",
        "resets = ()",
    ),
    Rule(
        "V2 a shielded vNPU loses its confirmations",
        _CONFIRMATION,
        "shielded_at=self._now, reset_reason=reason, normal=Count(), short=Count())",
        "shielded_at=self._now, reset_reason=reason)",
    ),
    Rule(
        "V2 the wait begins after the last moment at which something shielded it",
        _CONFIRMATION,
        "known = replace(known, is_shielded=False, free_since=self._now)",
        "known = replace(known, is_shielded=False, free_since=known.free_since or self._now)",
    ),
    Rule(
        "V6 another identity is another vNPU, and begins anew",
        _CONFIRMATION,
        "known = self._before.vnpus.get(vnpu.identity)",
        "known = next((one for one in self._before.vnpus.values() if one.identity.split('/')[:2] == vnpu.identity.split('/')[:2]), None)",
    ),
    Rule(
        "V6 what is not listed is forgotten",
        _CONFIRMATION,
        "{vnpu.identity: self._take(vnpu) for vnpu in self._look.vnpus if vnpu.identity}",
        "{**self._before.vnpus, **{vnpu.identity: self._take(vnpu) for vnpu in self._look.vnpus if vnpu.identity}}",
    ),
    Rule("V6 a vNPU of another card is another one", _CONFIRMATION, "if known is None or known.card != vnpu.card:", "if known is None:"),
    Rule(
        "V8 a vNPU waits its whole grace",
        _CONFIRMATION,
        "return start is not None and at - start >= pace.grace and is_confirmed",
        "return start is not None and is_confirmed",
    ),
    Rule(
        "V8 a vNPU is confirmed as often as it must be",
        _CONFIRMATION,
        "is_confirmed = count.confirmations >= pace.confirmations and",
        "is_confirmed = count.confirmations > 0 and",
    ),
    Rule(
        "V8 the failure of the attempt that may have made a vNPU begins its wait anew",
        _CONFIRMATION,
        "                moments.append(failed_at)",
        "                pass",
    ),
    Rule(
        "V8 a failure time counts for no later than the look that brings it",
        _CONFIRMATION,
        "min(claim.failed_at, self._now)",
        "claim.failed_at",
    ),
    Rule(
        "V9 a vNPU that is new on an old card waits its own grace",
        _CONFIRMATION,
        "known = VnpuProgress(vnpu.identity, vnpu.card, self._now)",
        "known = next((replace(one, identity=vnpu.identity) for one in self._before.vnpus.values() if one.card == vnpu.card),"
        " VnpuProgress(vnpu.identity, vnpu.card, self._now))",
    ),
    Rule(
        "V11 a destruction leaves the others their progress",
        _AFTERMATH,
        "        return forget(progress, identity)",
        "        return Progress()",
    ),
    Rule(
        "V11 a destroyed vNPU has no progress any more",
        _AFTERMATH,
        "    if aftermath.result is Result.DESTROYED:\n",
        "    if aftermath.result is Result.REFUSED:\n",
    ),
    Rule("V12 a reload begins every wait anew", _RECONCILER, "        self.interrupt(Interruption(Cut.RELOADED))\n", ""),
    Rule(
        "V12 a restarted kubelet begins every wait anew",
        _SNAPSHOT,
        "            self._ledger.reset(Reset(Scope.NODE, Look.KUBELET_RESTARTED.value))",
        "            pass",
    ),
    Rule(
        "V12 a kubelet that restarted while devward did not run is noticed",
        _SNAPSHOT,
        " or (last and last != process):",
        ":",
    ),
    Rule(
        "V12 our own restart inherits no handshake, Lease, kubelet or lock",
        _RECOLLECTION,
        "    return Recollection(boot_id=known.boot_id, node=known.node, pods=still_there(known.pods), loss=loss)\n\n\n# --- how",
        "    return replace(known, loss=loss)\n\n\n# --- how",
    ),
    Rule(
        "V12 a look that broke off leaves no progress",
        _RECONCILER,
        "            self._progress = Progress()\n            raise",
        "            raise",
    ),
    Rule(
        "V13 looks and resets are counted",
        _RECONCILER,
        "        self.counters += counters.of_look(before, self._progress, look, judgements)\n",
        "",
    ),
    Rule(
        "V13 destructions are counted",
        _RECONCILER,
        "        self.counters += counters.of_destruction(what_came)\n",
        "",
    ),
    Rule("V13 unknown looks are counted", _COUNTERS, "unknown_looks=int(", "unknown_looks=0 * int("),
    Rule("V13 protected cards are counted", _COUNTERS, "cards_protected=sum(", "cards_protected=0 * sum("),
    Rule("V13 lost confirmations are counted", _COUNTERS, "confirmation_resets=set_backs(before, after)", "confirmation_resets=0"),
    Rule("V13 failed destructions are counted", _COUNTERS, "destroy_errors=int(", "destroy_errors=0 * int("),
)

_CONFIRMING: Final = (
    Rule("4.4 a grace is 600 s where nothing else is said", _CONFIG, '"reclaim", "grace", 600,', '"reclaim", "grace", 60,'),
    Rule("4.4 there are three confirmations where nothing else is said", _CONFIG, '"confirmations", 3,', '"confirmations", 1,'),
    Rule("4.4 looks are 60 s apart where nothing else is said", _CONFIG, '"reclaim", "interval", 60,', '"reclaim", "interval", 1,'),
    Rule(
        "4.4 a confirmation comes an interval after the previous one",
        _CONFIRMATION,
        "self._now - last < self._bounds.pace(is_short=is_short).interval or ",
        "",
    ),
    Rule("4.4 a confirmation is of a snapshot of which every part is new", _CONFIRMATION, " or look.begun <= last:", ":"),
    Rule(
        "4.4 confirmations of before the wait began are none",
        _CONFIRMATION,
        "        if known.grace_start != started:\n",
        "        if started is None:\n",
    ),
    Rule(
        "4.4 a reset begins the wait anew",
        _CONFIRMATION,
        "(self.free_since, self.reset_at, self.failed_at)",
        "(self.free_since, self.failed_at)",
    ),
    Rule(
        "4.4 a reset takes the confirmations",
        _CONFIRMATION,
        "reset_at=self._now, reset_reason=reason, normal=Count(), short=Count())",
        "reset_at=self._now, reset_reason=reason)",
    ),
    Rule(
        "4.4 what happened since the last look begins waits anew",
        _CONFIRMATION,
        "if interruption.breaks(vnpu.identity):",
        "if not vnpu.identity:",
    ),
    Rule(
        "4.4 a look of before the last one makes everything wait anew",
        _CONFIRMATION,
        "        self._is_back = last is not None and look.at < last",
        "        self._is_back = False",
    ),
    Rule(
        "4.4 our clock never goes back", _CONFIRMATION, "self._now = look.at if last is None else max(look.at, last)", "self._now = look.at"
    ),
    Rule(
        "4.4 a failed attempt sets back only vNPUs first seen since it began",
        _CONFIRMATION,
        "        return known.first_seen >= began_at",
        "        return True",
    ),
    Rule(
        "4.4 a Pod that fails again and again keeps its old vNPUs no longer",
        _CONFIRMATION,
        "    return known.settled_at is None or failed_at <= known.settled_at",
        "    return True",
    ),
    Rule(
        "4.4 the attempt that made a vNPU is over only by a look that began after its first sight",
        _CONFIRMATION,
        "if known.settled_at is None and self._look.begun > known.first_seen:",
        "if known.settled_at is None:",
    ),
    Rule(
        "4.4 resume from suspend begins every wait anew",
        _SNAPSHOT,
        "            self._ledger.reset(Reset(Scope.NODE, Look.RESUMED.value))\n",
        "",
    ),
    Rule("4.4 resume from suspend voids every first sight", _SNAPSHOT, "            known = lasting(known)\n", ""),
    Rule("4.4 a suspension is noticed", _WATCHER, " and apart - before > _SUSPENDED)", " and apart < before)"),
    Rule(
        "4.4 a change of mode begins every wait anew",
        _RECONCILER,
        "            self.interrupt(Interruption(Cut.MODE_CHANGED))",
        "            pass",
    ),
    Rule(
        "4.4 the end of a pause begins every wait anew",
        _RECONCILER,
        "            self.interrupt(Interruption(Cut.PAUSE_ENDED))",
        "            pass",
    ),
    Rule(
        "4.4 the kill switch's going begins every wait anew",
        _RECONCILER,
        "            self.interrupt(Interruption(Cut.KILL_SWITCH_REMOVED))",
        "            pass",
    ),
    Rule(
        "4.4 unpinning begins the wait anew",
        _RECONCILER,
        "            self.interrupt(Interruption(Cut.UNPINNED, gone))",
        "            pass",
    ),
    Rule(
        "4.4 what comes while a look is taken in is for the next one",
        _RECONCILER,
        "        self._interruptions = self._interruptions[len(look.interruptions) :]",
        "        self._interruptions = ()",
    ),
    Rule(
        "4.4 while a vNPU is not counting it has no GraceStart",
        _CONFIRMATION,
        "        if self.is_shielded:\n            return None\n",
        "",
    ),
    Rule(
        "4.4 a vNPU that no look followed is unknown",
        _VERDICT,
        "if known is None or known.is_shielded or progress.looked_at",
        "if known is None or progress.looked_at",
    ),
    Rule("4.4 progress of another look says nothing", _VERDICT, " or progress.looked_at != look.at:", ":"),
    Rule(
        "4.4 only whom an administrator names waits for the shorter pace",
        _VERDICT,
        "not is_due and may_shorten and known",
        "not is_due and known",
    ),
    Rule("4.4 the shorter pace is 60 s of quiet", _CONFIRMATION, "Pace(60.0, 2, 30.0)", "Pace(1.0, 2, 30.0)"),
    Rule("4.4 the shorter pace takes two snapshots", _CONFIRMATION, "Pace(60.0, 2, 30.0)", "Pace(60.0, 1, 30.0)"),
    Rule("4.4 the shorter pace's snapshots are 30 s apart", _CONFIRMATION, "Pace(60.0, 2, 30.0)", "Pace(60.0, 2, 1.0)"),
    Rule(
        "4.4 an administrator's wish goes with its vNPU",
        _RECONCILER,
        "        self._wishes = tuple(wish for wish in self._wishes if wish.identity in present)\n",
        "",
    ),
    Rule(
        "4.4 a wish that nobody follows up is none", _RECONCILER, "if wish.request.request_id != request.request_id)", "if wish.identity)"
    ),
)

RULES: Final = (*_V, *_CONFIRMING)
