"""DESIGN 4.5, 1 to 3, in the daemon: what must hold right before the broker is asked."""

from typing import Final

from mutations.files import AUDIT, CLIENT, CONTRACT, HAMI, LIMITS, NPU_WATCHER, RECLAIM_ROOM, RECONCILER, SNAPSHOT, VERDICT
from mutations.rule import Rule

RULES: Final = (
    Rule(
        "4.5.1 controls are read again with the fresh look",
        CONTRACT,
        "    answer = _stopped(chosen, controls, spent, rates, now) or _judged(",
        "    answer = _judged(",
    ),
    Rule(
        "4.5.1 controls are read again right before the call",
        CONTRACT,
        "    if blocked := _blocked(controls):\n        return blocked\n    if not 0",
        "    if not 0",
    ),
    Rule(
        "4.5.1 no record taken by the journal, no destruction",
        CONTRACT,
        "    if not is_intent_taken:\n        return _no(No.NOT_RECORDED)\n",
        "",
    ),
    Rule(
        "4.5.1 nothing goes on without the journal's word", RECONCILER, "            if not act.taken:\n", "            if act is None:\n"
    ),
    Rule(
        "4.5.1 only the journal's socket takes a record",
        AUDIT,
        "self.taken = resumed or write(",
        "self.taken = (resumed or True) or write(",
    ),
    Rule(
        "4.5.1 the last word is said before the broker is asked",
        RECONCILER,
        "            if (no := await last_word()) is not None:\n                act.fail",
        "            if (no := await last_word()) is not None and not no.reason:\n                act.fail",
    ),
    Rule(
        "4.5.1 the last word is said again when it is the broker's turn",
        CLIENT,
        "if last_word is not None and (against := await last_word()):",
        "if last_word is not None and (against := ''):",
    ),
    Rule(
        "4.5.1 an interruption since the fresh look keeps a vNPU",
        CONTRACT,
        "next((one for one in interruptions if one.breaks(identity)), None)",
        "next((one for one in interruptions if not one.cut), None)",
    ),
    Rule(
        "4.6 a pin since the fresh look keeps a vNPU",
        CONTRACT,
        "    if any(one.view.name == prepared",
        "    if pins is None and any(one.view.name == prepared",
    ),
    Rule(
        "4.6 pins that cannot be read since keep a vNPU",
        CONTRACT,
        "    if pins is None:\n        return Refuse(",
        "    if pins is None:\n        return None\n        return Refuse(",
    ),
    Rule(
        "4.5.2 a chosen vNPU is looked at anew",
        CONTRACT,
        "before.looked_at is None or fresh.begun <= before.looked_at:",
        "before.looked_at is None:",
    ),
    Rule(
        "4.5.2 without a look before nothing is chosen",
        CONTRACT,
        "before.looked_at is None or fresh.begun <= before.looked_at:",
        "before.looked_at is not None and fresh.begun <= before.looked_at:",
    ),
    Rule(
        "4.5.2 a chosen vNPU is still there",
        CONTRACT,
        "if vnpu is None or vnpu.card != chosen.due.card:\n        return _no(No.GONE)",
        "if vnpu is None:\n        return Judgement('', '', '', 0, Verdict.ELIGIBLE, '', '')",
    ),
    Rule("4.5.2 a chosen vNPU is on the same card", CONTRACT, "if vnpu is None or vnpu.card != chosen.due.card:", "if vnpu is None:"),
    Rule(
        "V10 the fresh look decides",
        CONTRACT,
        "return judgement if judgement.verdict is Verdict.ELIGIBLE else Refuse(judgement.reason, judgement.sentence)",
        "return judgement",
    ),
    Rule(
        "4.5.2 evidence that became old meanwhile is none",
        CONTRACT,
        "    if not 0 <= now - prepared.begun <= fresh_seconds:\n",
        "    if not 0 <= now - prepared.begun:\n",
    ),
    Rule(
        "4.5.2 evidence of a later moment is none",
        CONTRACT,
        "    if not 0 <= now - prepared.begun <= fresh_seconds:\n",
        "    if not now - prepared.begun <= fresh_seconds:\n",
    ),
    Rule(
        "4.5.2 evidence grows old while the host is suspended",
        RECONCILER,
        "                    now=self._clock.boottime(),\n",
        "                    now=self._clock.monotonic() + prepared.apart,\n",
    ),
    Rule(
        "4.5.2 a suspension while the fresh look is taken counts, too",
        RECONCILER,
        "        before, apart = self._progress, self._clock.apart()\n        seen = await again()\n",
        "        before = self._progress\n        seen = await again()\n        apart = self._clock.apart()\n",
    ),
    Rule(
        "4.4 a suspension since the fresh look keeps a vNPU",
        CONTRACT,
        "    if apart - prepared.apart > SUSPENDED_SECONDS:\n",
        "    if apart - prepared.apart > FRESH_SECONDS:\n",
    ),
    Rule(
        "4.5.2 HAMi's lock defers",
        VERDICT,
        "(Verdict.DEFERRED, Why.LOCKED) if look.is_deferred else",
        "(Verdict.DEFERRED, Why.LOCKED) if not look else",
    ),
    Rule("4.5.2 what is deferred is not chosen", LIMITS, "        if one.is_deferred:\n            continue\n", ""),
    Rule("4.5.2 the lock is seen", SNAPSHOT, "is_deferred=lock is not None and lock.defers(self._now.monotonic),", "is_deferred=False,"),
    Rule("4.5.2 the lock defers for 5 minutes", HAMI, "return now - self.since < LOCK_SECONDS", "return now - self.since < 1.0"),
    Rule("4.5.2 a lock that was left behind defers no longer", HAMI, "return now - self.since < LOCK_SECONDS", "return True"),
    Rule(
        "4.5.2 a lock that changes defers anew",
        HAMI,
        "return before if before is not None and before.text == text else Lock(text, now)",
        "return before or Lock(text, now)",
    ),
    Rule(
        "4.5.3 the device monitor is drained",
        NPU_WATCHER,
        "        if self._deaf or not self._monitor.drain():\n",
        "        if self._deaf:\n",
    ),
    Rule(
        "4.5.3 a daemon that hears no events destroys nothing",
        NPU_WATCHER,
        "        if self._deaf or not self._monitor.drain():\n",
        "        if not self._monitor.drain():\n",
    ),
    Rule("4.5.3 lost events count as events", NPU_WATCHER, ", 0) + self._losses", ", 0)"),
    Rule(
        "4.5.3 nodes that come and go are counted",
        NPU_WATCHER,
        'if event.action in {"add", "remove", "move"}:',
        'if event.action == "none":',
    ),
    Rule("4.5.3 events that could not be read keep a vNPU", CONTRACT, "    if now is None:\n        return _no(No.EVENTS_UNREAD)\n", ""),
    Rule("4.5.3 the add sequence is compared", CONTRACT, "    return _no(No.EVENTS_SEEN) if now != before else None", "    return None"),
    Rule(
        "4.5.3 the add sequence is compared with the fresh look",
        CONTRACT,
        "    refusal = _moved(chosen.sequence, sequence) or _misdescribed(expected, vnpu, card)",
        "    refusal = _misdescribed(expected, vnpu, card)",
    ),
    Rule(
        "4.5.3 the add sequence is compared right before the call",
        CONTRACT,
        "    return _moved(prepared.chosen.sequence, sequence) or Go(prepared.expected)",
        "    return Go(prepared.expected)",
    ),
    Rule(
        "4.5.3 events that cannot be read choose nothing",
        RECONCILER,
        "        if sequence is None:\n            self._refused",
        "        if sequence is None:\n            sequence = 0\n        if due is None:\n            self._refused",
    ),
    Rule(
        "4.5.3 a vNPU that cannot be described is not destroyed",
        CONTRACT,
        "    if not all((expected.boot_id, expected.template, expected.die)) or told",
        "    if told",
    ),
    Rule(
        "4.5.3 the description is that of the chosen vNPU and its card",
        CONTRACT,
        " or told != (vnpu.vdev, vnpu.template, card.phy, card.die):",
        ":",
    ),
    Rule(
        "4.5.3 no id outside the window of its chip, nor 65535",
        CONTRACT,
        "    if expected.vdev not in window(expected.phy) or expected.vfid",
        "    if expected.vfid",
    ),
    Rule("4.5.3 the function is the one of the id", CONTRACT, " or expected.vfid != vfid_of(expected.vdev):", ":"),
    Rule(
        "4.5.3 a vNPU without a node is not described",
        CONTRACT,
        "if card is None or node is None or vfid is None or vnpu.vfid != vfid:",
        "if card is None or vfid is None or vnpu.vfid != vfid:",
    ),
    Rule("4.5.3 a vNPU with another function is not described", CONTRACT, " or vnpu.vfid != vfid:", ":"),
    Rule(
        "4.5.3 a die is described by its own place on its board",
        CONTRACT,
        "picture.boot_id, card.card, card.device, card.phy_id,",
        "picture.boot_id, card.card, 0, card.phy_id,",
        ("test_reclaim_two_dies.py",),
    ),
    Rule(
        "4.5.3 a runtime that the Node does not name scans nothing",
        RECLAIM_ROOM,
        "        if runtime is None:\n            return aftermath.refused",
        "        if runtime is None:\n            runtime = ''\n        if runtime is None:\n            return aftermath.refused",
    ),
    Rule(
        "4.5.3 a question that waited for too long is not asked",
        CLIENT,
        "            if _boottime_ns() >= expires:\n",
        "            if not expires:\n",
    ),
    Rule(
        "4.5.2 a lock of any form counts",
        HAMI,
        "    if text is None:\n        return None\n    return before",
        "    if not text:\n        return None\n    return before",
    ),
)
