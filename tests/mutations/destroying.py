"""DESIGN 4.5 and 4.6 in the daemon: what must hold before the broker is asked, rates, breaker, modes, pause and kill switch."""

from typing import Final

from mutations.rule import Rule

_CONTRACT: Final = "src/devward/reclaim/contract.py"
_CONTROLS: Final = "src/devward/reclaim/controls.py"
_LIMITS: Final = "src/devward/reclaim/limits.py"
_AFTERMATH: Final = "src/devward/reclaim/aftermath.py"
_RECONCILER: Final = "src/devward/reclaim/reconciler.py"
_ROOM: Final = "src/devward/reclaim/room.py"
_KEPT: Final = "src/devward/reclaim/kept.py"
_RECORD: Final = "src/devward/reclaim/record.py"
_VERDICT: Final = "src/devward/reclaim/verdict.py"
_CONFIRMATION: Final = "src/devward/reclaim/confirmation.py"
_HAMI: Final = "src/devward/cluster/hami.py"
_SNAPSHOT: Final = "src/devward/cluster/snapshot.py"
_WATCHER: Final = "src/devward/npu/watcher.py"
_CLIENT: Final = "src/devward/npu/client.py"
_STATE: Final = "src/devward/state.py"
_AUDIT: Final = "src/devward/audit.py"

ASKED: Final = {
    _CONTRACT: ("test_reclaim_contract.py", "test_reclaim_reconciler.py"),
    _CONTROLS: ("test_reclaim_controls.py", "test_reclaim_contract.py", "test_reclaim_reconciler.py"),
    _LIMITS: ("test_reclaim_limits.py", "test_reclaim_contract.py", "test_reclaim_reconciler.py"),
    _AFTERMATH: ("test_reclaim_contract.py", "test_reclaim_reconciler.py"),
    _RECONCILER: ("test_reclaim_reconciler.py", "test_reclaim_room.py"),
    _ROOM: ("test_reclaim_room.py", "test_reclaim_reconciler.py"),
    _KEPT: ("test_reclaim_kept.py", "test_reclaim_room.py"),
    _RECORD: ("test_reclaim_history.py", "test_reclaim_reconciler.py", "test_reclaim_recorded.py"),
    _VERDICT: ("test_reclaim_verdict.py", "test_reclaim_confirmation.py"),
    _CONFIRMATION: ("test_reclaim_confirmation.py", "test_reclaim_contract.py", "test_reclaim_reconciler.py"),
    _HAMI: ("test_cluster_hami.py", "test_snapshot_gates.py"),
    _SNAPSHOT: ("test_snapshot_gates.py",),
    _WATCHER: ("test_npu_watcher.py",),
    _CLIENT: ("test_npu_client_destroy.py",),
    _STATE: ("test_state.py", "test_remembered.py"),
    _AUDIT: ("test_audit.py", "test_reclaim_reconciler.py"),
}


def _control(name: str, row: str) -> Rule:
    """Return a rule that is one row of what can stop reclaiming."""
    code = row.partition(":")[0]
    return Rule(name, _CONTROLS, f"        {row},\n", f"        {code}: False,\n")


_STOPS: Final = (
    _control("4.6 mode off stops", "Blocked.MODE_OFF: controls.mode is ReclaimMode.OFF"),
    _control("4.6 mode observe stops", "Blocked.MODE_OBSERVE: controls.mode is ReclaimMode.OBSERVE"),
    _control("4.6 a pause stops", "Blocked.PAUSED: controls.is_paused"),
    _control("4.5.1 the kill switch stops", "Blocked.KILL_SWITCH: controls.kill_switch is Switch.PRESENT"),
    _control("4.5.1 a kill switch that cannot be read stops", "Blocked.KILL_SWITCH_UNREADABLE: controls.kill_switch is Switch.UNREADABLE"),
    _control("4.5.1 --no-reclaim stops", "Blocked.NO_RECLAIM: controls.no_reclaim"),
    _control("4.2 without a kubelet nothing is ever destroyed", "Blocked.NO_KUBELET: not controls.has_kubelet"),
    _control("4.5.4 -8002 stops", "Blocked.NOT_PERMITTED: controls.is_forbidden"),
    _control("4.5.1 a journal that refuses stops", "Blocked.JOURNAL: controls.is_journal_refusing"),
    _control("4.5.5 a try that could not be saved stops", "Blocked.NOT_SAVED: controls.is_unsaved"),
    _control("4.6 a damaged state stops", "Blocked.STATE_DAMAGED: controls.is_state_damaged"),
    _control("4.6 pins that cannot be read stop", "Blocked.PINS_UNREADABLE: controls.are_pins_unreadable"),
    _control("4.5.6 stopping begins no destruction", "Blocked.STOPPING: controls.is_stopping"),
    _control("4.5.5 a latched breaker stops", "Blocked.MASS_RECLAIM: controls.is_breaker_latched"),
    Rule(
        "4.6 without anything said reclaiming is off",
        _CONTROLS,
        "mode: ReclaimMode = ReclaimMode.OFF",
        "mode: ReclaimMode = ReclaimMode.ENFORCE",
    ),
    Rule(
        "4.6 without anything said the kill switch is unreadable",
        _CONTROLS,
        "kill_switch: Switch = Switch.UNREADABLE",
        "kill_switch: Switch = Switch.ABSENT",
    ),
    Rule("4.6 without anything said there is no kubelet", _CONTROLS, "has_kubelet: bool = False", "has_kubelet: bool = True"),
    Rule(
        "4.6 what is unknown of the node stops",
        _CONTROLS,
        "        if unknown.scope is Scope.NODE:\n",
        "        if not unknown.scope:\n",
    ),
    Rule("4.5.1 the kill switch is looked at", _ROOM, "                os.lstat(path)\n", "                return Switch.ABSENT\n"),
    Rule("4.5.1 a broken link sets the kill switch", _ROOM, "os.lstat(path)", "os.stat(path)"),
    Rule(
        "4.5.1 a kill switch that cannot be examined is unreadable",
        _ROOM,
        "            except OSError:\n                return Switch.UNREADABLE",
        "            except OSError:\n                return Switch.ABSENT",
    ),
    Rule(
        "4.5.1 a kill switch whose look hangs is unreadable",
        _ROOM,
        "        except WorkerHung:\n            return Switch.UNREADABLE",
        "        except WorkerHung:\n            return Switch.ABSENT",
    ),
    Rule("4.6 a pause is heeded", _ROOM, "            is_paused=bool(self.paused_until_usec),\n", ""),
    Rule("4.6 a pause ends at its time", _ROOM, "and pause.until_usec > self._clock.realtime_usec() else 0", "else 0"),
    Rule("4.5.1 --no-reclaim is heeded", _ROOM, "            no_reclaim=self._no_reclaim,\n", ""),
    Rule("4.6 a damaged state is heeded", _ROOM, "            is_state_damaged=state.pins_in_doubt or bool(self._problem),\n", ""),
    Rule("4.5.6 that devward stops is heeded", _ROOM, "            is_stopping=self._is_stopping,\n", ""),
    Rule(
        "4.6 a mode that was set outlasts the configuration's",
        _ROOM,
        "return self._remembered.state.reclaim_mode or self._config.mode",
        "return self._config.mode",
    ),
    Rule("4.6 a mode that was set survives a restart", _STATE, '"reclaim_mode": state.reclaim_mode,', '"reclaim_mode": None,'),
    Rule(
        "4.6 a pause survives a restart", _STATE, '"reclaim_pause": dataclasses.asdict(state.reclaim_pause) if', '"reclaim_pause": None if'
    ),
    Rule(
        "4.2 a kubelet is seen before anything is destroyed",
        _RECONCILER,
        "has_kubelet=scan is not None and scan.kubelet is not None,",
        "has_kubelet=True,",
    ),
    Rule(
        "4.5.1 what stops reclaiming stops a cycle",
        _RECONCILER,
        "        if not permission(_retried(controls), seen.blocked).may_destroy:\n            return\n",
        "",
    ),
    Rule(
        "4.6 what an administrator changes shows, and breaks waits, at once",
        _ROOM,
        "            self._noticed()\n            self._look()\n            self._on_change()",
        "            self._look()\n            self._on_change()",
    ),
    Rule("4.6 each change of mode or pause is audited", _ROOM, '        act.succeed(f"{member} is in force{what}")\n', ""),
)

_RIGHT_BEFORE: Final = (
    Rule(
        "4.5.1 controls are read again with the fresh look",
        _CONTRACT,
        "    answer = _stopped(chosen, controls, spent, rates, now) or _judged(",
        "    answer = _judged(",
    ),
    Rule(
        "4.5.1 controls are read again right before the call",
        _CONTRACT,
        "    if blocked := _blocked(controls):\n        return blocked\n    if not 0",
        "    if not 0",
    ),
    Rule(
        "4.5.1 no record taken by the journal, no destruction",
        _CONTRACT,
        "    if not is_intent_taken:\n        return _no(No.NOT_RECORDED)\n",
        "",
    ),
    Rule(
        "4.5.1 nothing goes on without the journal's word", _RECONCILER, "            if not act.taken:\n", "            if act is None:\n"
    ),
    Rule(
        "4.5.1 only the journal's socket takes a record",
        _AUDIT,
        "self.taken = resumed or write(",
        "self.taken = (resumed or True) or write(",
    ),
    Rule(
        "4.5.1 the last word is said before the broker is asked",
        _RECONCILER,
        "            if (no := await last_word()) is not None:\n",
        "            if (no := await last_word()) is not None and not no.reason:\n",
    ),
    Rule(
        "4.5.1 the last word is said again when it is the broker's turn",
        _CLIENT,
        "if last_word is not None and (against := await last_word()):",
        "if last_word is not None and (against := ''):",
    ),
    Rule(
        "4.5.1 an interruption since the fresh look keeps a vNPU",
        _CONTRACT,
        "next((one for one in interruptions if one.breaks(identity)), None)",
        "next((one for one in interruptions if not one.cut), None)",
    ),
    Rule(
        "4.6 a pin since the fresh look keeps a vNPU",
        _CONTRACT,
        "    if any(one.view.name == prepared",
        "    if pins is None and any(one.view.name == prepared",
    ),
    Rule(
        "4.6 pins that cannot be read since keep a vNPU",
        _CONTRACT,
        "    if pins is None:\n        return Refuse(",
        "    if pins is None:\n        return None\n        return Refuse(",
    ),
    Rule(
        "4.5.2 a chosen vNPU is looked at anew",
        _CONTRACT,
        "before.looked_at is None or fresh.begun <= before.looked_at:",
        "before.looked_at is None:",
    ),
    Rule(
        "4.5.2 without a look before nothing is chosen",
        _CONTRACT,
        "before.looked_at is None or fresh.begun <= before.looked_at:",
        "before.looked_at is not None and fresh.begun <= before.looked_at:",
    ),
    Rule(
        "4.5.2 a chosen vNPU is still there",
        _CONTRACT,
        "if vnpu is None or vnpu.card != chosen.due.card:\n        return _no(No.GONE)",
        "if vnpu is None:\n        return Judgement('', '', '', 0, Verdict.ELIGIBLE, '', '')",
    ),
    Rule("4.5.2 a chosen vNPU is on the same card", _CONTRACT, "if vnpu is None or vnpu.card != chosen.due.card:", "if vnpu is None:"),
    Rule(
        "V10 the fresh look decides",
        _CONTRACT,
        "return judgement if judgement.verdict is Verdict.ELIGIBLE else Refuse(judgement.reason, judgement.sentence)",
        "return judgement",
    ),
    Rule(
        "4.5.2 evidence that became old meanwhile is none",
        _CONTRACT,
        "    if not 0 <= now - prepared.begun <= fresh_seconds:\n",
        "    if not 0 <= now - prepared.begun:\n",
    ),
    Rule(
        "4.5.2 evidence of a later moment is none",
        _CONTRACT,
        "    if not 0 <= now - prepared.begun <= fresh_seconds:\n",
        "    if not now - prepared.begun <= fresh_seconds:\n",
    ),
    Rule(
        "4.5.2 HAMi's lock defers",
        _VERDICT,
        "(Verdict.DEFERRED, Why.LOCKED) if look.is_deferred else",
        "(Verdict.DEFERRED, Why.LOCKED) if not look else",
    ),
    Rule("4.5.2 what is deferred is not chosen", _LIMITS, "        if one.is_deferred:\n            continue\n", ""),
    Rule("4.5.2 the lock is seen", _SNAPSHOT, "is_deferred=lock is not None and lock.defers(self._now.monotonic),", "is_deferred=False,"),
    Rule("4.5.2 the lock defers for 5 minutes", _HAMI, "return now - self.since < LOCK_SECONDS", "return now - self.since < 1.0"),
    Rule("4.5.2 a lock that was left behind defers no longer", _HAMI, "return now - self.since < LOCK_SECONDS", "return True"),
    Rule(
        "4.5.2 a lock that changes defers anew",
        _HAMI,
        "return before if before is not None and before.text == text else Lock(text, now)",
        "return before or Lock(text, now)",
    ),
    Rule(
        "4.5.3 the device monitor is drained", _WATCHER, "        if self._deaf or not self._monitor.drain():\n", "        if self._deaf:\n"
    ),
    Rule(
        "4.5.3 a daemon that hears no events destroys nothing",
        _WATCHER,
        "        if self._deaf or not self._monitor.drain():\n",
        "        if not self._monitor.drain():\n",
    ),
    Rule("4.5.3 lost events count as events", _WATCHER, ", 0) + self._losses", ", 0)"),
    Rule(
        "4.5.3 nodes that come and go are counted", _WATCHER, 'if event.action in {"add", "remove", "move"}:', 'if event.action == "none":'
    ),
    Rule("4.5.3 events that could not be read keep a vNPU", _CONTRACT, "    if now is None:\n        return _no(No.EVENTS_UNREAD)\n", ""),
    Rule("4.5.3 the add sequence is compared", _CONTRACT, "    return _no(No.EVENTS_SEEN) if now != before else None", "    return None"),
    Rule(
        "4.5.3 the add sequence is compared with the fresh look",
        _CONTRACT,
        "    refusal = _moved(chosen.sequence, sequence) or _misdescribed(expected, vnpu, card)",
        "    refusal = _misdescribed(expected, vnpu, card)",
    ),
    Rule(
        "4.5.3 the add sequence is compared right before the call",
        _CONTRACT,
        "    return _moved(prepared.chosen.sequence, sequence) or Go(prepared.expected)",
        "    return Go(prepared.expected)",
    ),
    Rule(
        "4.5.3 events that cannot be read choose nothing",
        _RECONCILER,
        "        if sequence is None:\n            self._refused",
        "        if sequence is None:\n            sequence = 0\n        if due is None:\n            self._refused",
    ),
    Rule(
        "4.5.3 a vNPU that cannot be described is not destroyed",
        _CONTRACT,
        "    if not all((expected.boot_id, expected.template, expected.die)) or told",
        "    if told",
    ),
    Rule(
        "4.5.3 the description is that of the chosen vNPU and its card",
        _CONTRACT,
        " or told != (vnpu.vdev, vnpu.template, card.phy, card.die):",
        ":",
    ),
    Rule(
        "4.5.3 no id outside the window of its chip, nor 65535",
        _CONTRACT,
        "    if expected.vdev not in window(expected.phy) or expected.vfid",
        "    if expected.vfid",
    ),
    Rule("4.5.3 the function is the one of the id", _CONTRACT, " or expected.vfid != vfid_of(expected.vdev):", ":"),
    Rule(
        "4.5.3 a vNPU without a node is not described",
        _RECONCILER,
        "if card is None or node is None or vfid is None or vnpu.vfid != vfid:",
        "if card is None or vfid is None or vnpu.vfid != vfid:",
    ),
    Rule("4.5.3 a vNPU with another function is not described", _RECONCILER, " or vnpu.vfid != vfid:", ":"),
    Rule(
        "4.5.3 a runtime that the Node does not name scans nothing",
        _ROOM,
        "        if runtime is None:\n            return aftermath.refused",
        "        if runtime is None:\n            runtime = ''\n        if runtime is None:\n            return aftermath.refused",
    ),
    Rule(
        "4.5.3 a question that waited for too long is not asked",
        _CLIENT,
        "            if _boottime_ns() >= expires:\n",
        "            if not expires:\n",
    ),
)

_AFTERWARDS: Final = (
    Rule(
        "4.5.4 presence decides and not the code",
        _AFTERMATH,
        "        Result(outcome.value),\n",
        "        Result.DESTROYED if code == 0 else Result.STILL_PRESENT,\n",
    ),
    Rule(
        "4.5.4 -8001 begins that vNPU's wait anew",
        _AFTERMATH,
        "sets_back=not is_gone and code == DcmiCode.INVALID_PARAMETER,",
        "sets_back=False,",
    ),
    Rule(
        "4.5.4 -8002 forbids destroying",
        _AFTERMATH,
        "        sets_back=not is_gone and code == DcmiCode.INVALID_PARAMETER,\n        forbids=code == DcmiCode.NOT_PERMITTED,\n",
        "        sets_back=not is_gone and code == DcmiCode.INVALID_PARAMETER,\n",
    ),
    Rule(
        "4.5.4 a refusal with -8002 forbids destroying",
        _AFTERMATH,
        " or code == DcmiCode.INVALID_PARAMETER,\n        forbids=code == DcmiCode.NOT_PERMITTED,\n",
        " or code == DcmiCode.INVALID_PARAMETER,\n",
    ),
    Rule("4.5.4 -8002 is remembered", _RECONCILER, "        self._is_forbidden = self._is_forbidden or what_came.forbids\n", ""),
    Rule(
        "4.5.4 -8002 ends the cycle",
        _RECONCILER,
        "return not (self._is_forbidden or self._is_journal_refusing or self._is_unsaved)",
        "return not (self._is_journal_refusing or self._is_unsaved)",
    ),
    Rule("4.5.4 a refusal about the vNPU begins its wait anew", _AFTERMATH, "sets_back=reason not in _OF_BROKER or code", "sets_back=code"),
    Rule(
        "4.5.4 no answer is unknown",
        _AFTERMATH,
        'return Aftermath(Result.UNKNOWN, "no-answer", text)',
        'return Aftermath(Result.REFUSED, "no-answer", text)',
    ),
    Rule("4.5.4 an ambiguous outcome waits for another round", _AFTERMATH, "    progress = tried(progress, identity, at)\n", ""),
    Rule(
        "4.5.4 another round is a confirmation after the try",
        _CONFIRMATION,
        " and not self.awaits_round(is_short=is_short)\n        return",
        "\n        return",
    ),
    Rule(
        "4.5.4 that confirmation is of a look that began after the try",
        _CONFIRMATION,
        "        if known.tried_at is not None and look.begun <= known.tried_at:\n            return count\n",
        "",
    ),
    Rule(
        "4.5.4 another answer leaves it unknown",
        _CLIENT,
        "        if answer.id != request.id and not",
        "        if answer.id is None and not",
    ),
    Rule(
        "4.5.4 silence leaves it unknown",
        _CLIENT,
        'return Unavailable(Reason.NPU_BROKER_SILENT, f"no answer in {seconds:g} s{await self._end_if_hung()}")',
        "raise _Unreached(await self._end_if_hung()) from None",
    ),
    Rule(
        "4.5.5 one a card a cycle",
        _LIMITS,
        "return Limit.PER_CARD if Counter(spent.cards)[card] >= rates.per_card else None",
        "return None",
    ),
    Rule("4.5.5 four a node a cycle", _LIMITS, "    if len(spent.cards) >= rates.per_node:\n        return Limit.PER_NODE\n", ""),
    Rule("4.5.5 sixteen an hour", _LIMITS, "    if len(_recent(spent, now)) >= rates.per_hour:\n        return Limit.PER_HOUR\n", ""),
    Rule(
        "4.5.5 the rates' own values",
        _LIMITS,
        "    per_card: int = 1\n    per_node: int = 4\n    per_hour: int = 16\n",
        "    per_card: int = 2\n    per_node: int = 8\n    per_hour: int = 64\n",
    ),
    Rule(
        "4.5.5 rates are above 0",
        _LIMITS,
        "if not (self.per_card > 0 and self.per_node > 0 and self.per_hour > 0):",
        "if not self.per_card > 0:",
    ),
    Rule("4.5.5 the hour's tries are of a whole hour", _LIMITS, "if now - moment < HOUR)", "if now - moment < HOUR / 10)"),
    Rule(
        "4.5.5 a try is counted before the broker is asked",
        _RECONCILER,
        "            self._spent = limits.spend(before, judgement.card, self._clock.monotonic())\n",
        "",
    ),
    Rule(
        "4.5.5 a try that cannot be kept is none",
        _RECONCILER,
        "            self._is_unsaved = not await self.keep()\n",
        "            await self.keep()\n",
    ),
    Rule("4.5.5 the hour's tries survive a restart", _KEPT, '"tries": list(spent.moments)}', '"tries": []}'),
    Rule(
        "4.5.5 the rates are held again with the fresh look",
        _CONTRACT,
        "    reached = limit(chosen.due.card, spent, rates, now)\n",
        "    reached = None\n",
    ),
    Rule("4.5.5 eligible vNPUs on three cards latch the breaker", _LIMITS, "is_mass = cards >= BREAKER_CARDS or (", "is_mass = ("),
    Rule(
        "4.5.5 eligible vNPUs on more than half of the cards latch the breaker",
        _LIMITS,
        " or (cards >= BREAKER_LEAST and 2 * cards > reclaimed_cards)",
        "",
    ),
    Rule(
        "4.5.5 eligible vNPUs on one card latch nothing",
        _LIMITS,
        "(cards >= BREAKER_LEAST and 2 * cards > reclaimed_cards)",
        "(2 * cards > reclaimed_cards)",
    ),
    Rule("4.5.5 many on one card are the ordinary case", _LIMITS, "cards = len({one.card for one in fresh})", "cards = len(fresh)"),
    Rule("4.5.5 only its release ends a latch", _LIMITS, "is_latched = breaker.is_latched or is_mass", "is_latched = is_mass"),
    Rule(
        "4.5.5 deferred vNPUs count for the breaker",
        _LIMITS,
        "if judgement.verdict in (Verdict.ELIGIBLE, Verdict.DEFERRED) and",
        "if judgement.verdict is Verdict.ELIGIBLE and",
    ),
    Rule(
        "4.5.5 what was agreed to latches no second time",
        _LIMITS,
        "    return Breaker(agreed=breaker.agreed | breaker.identities)",
        "    return Breaker()",
    ),
    Rule(
        "4.5.5 agreement goes with its vNPU", _LIMITS, "    agreed = breaker.agreed & frozenset(present)\n", "    agreed = breaker.agreed\n"
    ),
    Rule("4.5.5 a latch survives a restart", _KEPT, "return Breaker(is_latched=latched), Spent(", "return Breaker(), Spent("),
    Rule("4.5.5 a latch is saved", _KEPT, '"latched": breaker.is_latched,', '"latched": False,'),
    Rule("4.5.5 the breaker is watched before anything is chosen", _RECONCILER, "        await self._watch(look, eligible)\n", ""),
    Rule(
        "4.5.5 the breaker is watched with the fresh look",
        _RECONCILER,
        "        await self._watch(fresh, limits.due(self.standing.judgements, self._progress))\n",
        "",
    ),
    Rule(
        "4.5.5 that the breaker latched is audited",
        _RECONCILER,
        "        if self._breaker.is_latched and not before.is_latched:\n",
        "        if before is None:\n",
    ),
    Rule("4.6 what was kept and cannot be read stops", _KEPT, "    if not isinstance(tries, list) or len(tries)", "    if len(tries)"),
    Rule("4.5.6 stopping waits for a destruction", _RECONCILER, "        await asyncio.wait({task}, timeout=FINISH_SECONDS)\n", ""),
    Rule("4.5.6 stopping waits for 60 s at the most", _RECONCILER, "timeout=FINISH_SECONDS)", "timeout=None)"),
    Rule(
        "4.5.6 a cycle that is cancelled leaves a destruction alone",
        _RECONCILER,
        "        await asyncio.shield(self._acting)\n",
        "        await self._acting\n",
    ),
    Rule("4.5.6 the daemon waits for it when it stops", _ROOM, "            await self._reconciler.finish()", "            pass"),
    Rule(
        "4.5.6 a broker that may be destroying is not ended",
        _CLIENT,
        "        if destroy_may_run(self._lock_file):\n",
        "        if not self._lock_file:\n",
    ),
    Rule("4.5.6 a silent broker is ended", _CLIENT, "        problem = await self._kill()\n", '        problem = ""\n'),
    Rule("4.5.6 the service manager kills no broker", "systemd/devward-dcmi.service", "SendSIGKILL=no\n", "", ("test_packaging.py",)),
    Rule(
        "4.5.7 the record has the line to make the vNPU again",
        _RECONCILER,
        ', "recreate": record.recreate_line(expected)}',
        ', "recreate": ""}',
    ),
    Rule("4.5.7 the record holds the evidence", _RECONCILER, "told = {**record.evidence(judgement, fresh, self._progress), ", "told = {"),
    Rule("4.5.7 the line names the template", _RECORD, " -f {template} -v", " -v"),
    Rule("4.5.7 the line names the id", _RECORD, " -v {expected.vdev}", ""),
    Rule(
        "4.5.7 a refusal right before is recorded",
        _RECONCILER,
        "        if isinstance(answer, Refuse):\n            self._refused(due, answer.reason, answer.sentence)\n",
        "        if isinstance(answer, Refuse):\n",
    ),
)

RULES: Final = (*_STOPS, *_RIGHT_BEFORE, *_AFTERWARDS)
