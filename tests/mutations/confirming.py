"""DESIGN 4.4: what a confirmation is, and since when a wait counts."""

from typing import Final

from mutations.files import CADENCE, CONFIG_KEYS, CONFIRMATION, OBSTACLES, OWNERS, RECONCILER, SNAPSHOT, VERDICT, WISHES
from mutations.rule import Rule

RULES: Final = (
    Rule("4.4 a grace is 600 s where nothing else is said", CONFIG_KEYS, '"reclaim", "grace", 600,', '"reclaim", "grace", 60,'),
    Rule("4.4 there are three confirmations where nothing else is said", CONFIG_KEYS, '"confirmations", 3,', '"confirmations", 1,'),
    Rule("4.4 looks are 60 s apart where nothing else is said", CONFIG_KEYS, '"reclaim", "interval", 60,', '"reclaim", "interval", 1,'),
    Rule(
        "4.4 a confirmation comes an interval after the previous one",
        CONFIRMATION,
        "self._now - last < self._bounds.pace(is_short=is_short).interval or ",
        "",
    ),
    Rule("4.4 a confirmation is of a snapshot of which every part is new", CONFIRMATION, " or look.begun <= last:", ":"),
    Rule(
        "4.4 confirmations of before the wait began are none",
        CONFIRMATION,
        "        if known.grace_start != started:\n",
        "        if started is None:\n",
    ),
    Rule(
        "4.4 a reset begins the wait anew",
        CONFIRMATION,
        "(self.free_since, self.reset_at, self.failed_at)",
        "(self.free_since, self.failed_at)",
    ),
    Rule(
        "4.4 a reset takes the confirmations",
        CONFIRMATION,
        "reset_at=reset_at, reset_reason=reason, normal=Count(), short=Count())",
        "reset_at=reset_at, reset_reason=reason)",
    ),
    Rule(
        "4.4 what happened since the last look begins waits anew",
        CONFIRMATION,
        "if interruption.breaks(vnpu.identity):",
        "if not vnpu.identity:",
    ),
    Rule(
        "4.4 a look of before the last one makes everything wait anew",
        CONFIRMATION,
        "        self._is_back = last is not None and look.at < last",
        "        self._is_back = False",
    ),
    Rule(
        "4.4 our clock never goes back", CONFIRMATION, "self._now = look.at if last is None else max(look.at, last)", "self._now = look.at"
    ),
    Rule(
        "4.4 a failed attempt sets back only vNPUs first seen since it began",
        CONFIRMATION,
        "        return known.first_seen >= began_at",
        "        return True",
    ),
    Rule(
        "4.4 a Pod that fails again and again keeps its old vNPUs no longer",
        CONFIRMATION,
        "    return known.settled_at is None or failed_at <= known.settled_at",
        "    return True",
    ),
    Rule(
        "4.4 the attempt that made a vNPU is over only by a look that began after its first sight",
        CONFIRMATION,
        "if known.settled_at is None and self._look.begun > known.first_seen:",
        "if known.settled_at is None:",
    ),
    Rule(
        "4.4 resume from suspend begins every wait anew",
        SNAPSHOT,
        "            self._ledger.reset(Reset(Scope.NODE, Look.RESUMED.value))\n",
        "",
    ),
    Rule("4.4 resume from suspend voids every first sight", SNAPSHOT, "            known = lasting(known)\n", ""),
    Rule("4.4 a look never comes sooner than the interval", CADENCE, "(1 + SPREAD * chance)", "(1 - SPREAD * chance)"),
    Rule("4.4 looks keep no step with anything", CADENCE, "(1 + SPREAD * chance)", "1"),
    Rule("4.4 an interval is counted from a complete look", CADENCE, "max(began, looked_at)", "began"),
    Rule("4.2 the Lease is looked at within its bound", CADENCE, ", began + interval * MOST)", ", float('inf'))"),
    Rule("4.4 a suspension is noticed", OWNERS, " and apart - before > SUSPENDED_SECONDS)", " and apart < before)"),
    Rule(
        "4.4 a change of mode begins every wait anew",
        OBSTACLES,
        "            self._interrupt(Interruption(Cut.MODE_CHANGED))",
        "            pass",
    ),
    Rule(
        "4.4 the end of a pause begins every wait anew",
        OBSTACLES,
        "            self._interrupt(Interruption(Cut.PAUSE_ENDED))",
        "            pass",
    ),
    Rule(
        "4.4 the kill switch's going begins every wait anew",
        OBSTACLES,
        "            self._interrupt(Interruption(Cut.KILL_SWITCH_REMOVED))",
        "            pass",
    ),
    Rule(
        "4.4 unpinning begins the wait anew",
        RECONCILER,
        "            self.interrupt(Interruption(Cut.UNPINNED, gone))",
        "            pass",
    ),
    Rule(
        "4.4 what comes while a look is taken in is for the next one",
        RECONCILER,
        "        self._interruptions = self._interruptions[len(look.interruptions) :]",
        "        self._interruptions = ()",
    ),
    Rule(
        "4.4 while a vNPU is not counting it has no GraceStart",
        CONFIRMATION,
        "        if self.is_shielded:\n            return None\n",
        "",
    ),
    Rule(
        "4.4 a vNPU that no look followed is unknown",
        VERDICT,
        "if known is None or known.is_shielded or progress.looked_at",
        "if known is None or progress.looked_at",
    ),
    Rule("4.4 progress of another look says nothing", VERDICT, " or progress.looked_at != look.at:", ":"),
    Rule(
        "4.4 only whom an administrator names waits for the shorter pace",
        VERDICT,
        "not is_due and may_shorten and known",
        "not is_due and known",
    ),
    Rule("4.4 the shorter pace is 60 s of quiet", CONFIRMATION, "Pace(60.0, 2, 30.0)", "Pace(1.0, 2, 30.0)"),
    Rule("4.4 the shorter pace takes two snapshots", CONFIRMATION, "Pace(60.0, 2, 30.0)", "Pace(60.0, 1, 30.0)"),
    Rule("4.4 the shorter pace's snapshots are 30 s apart", CONFIRMATION, "Pace(60.0, 2, 30.0)", "Pace(60.0, 2, 1.0)"),
    Rule(
        "4.4 an administrator's wish goes with its vNPU",
        RECONCILER,
        "        self.wishes.keep_only(present)\n",
        "",
    ),
    Rule("4.4 a wish that nobody follows up is none", WISHES, "if wish.request.request_id != request.request_id)", "if wish.identity)"),
)
