"""DESIGN 4.5 and 4.6: modes, pause, kill switch, and all else that stops reclaiming as a whole."""

from typing import Final

from mutations.files import CHANGES, CONTROLS, INVENTORY, OBSTACLES, PAUSING, RECLAIM_ACTIONS, RECLAIM_ROOM, RECONCILER, STATE
from mutations.rule import Rule


def _control(name: str, row: str) -> Rule:
    """Return a rule that is one row of what can stop reclaiming."""
    code = row.partition(":")[0]
    return Rule(name, CONTROLS, f"        {row},\n", f"        {code}: False,\n")


RULES: Final = (
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
    _control("4.5.6 stopping begins no destruction", "Blocked.STOPPING: controls.is_stopping"),
    _control("4.5.5 a latched breaker stops", "Blocked.MASS_RECLAIM: controls.is_breaker_latched"),
    Rule(
        "4.6 without anything said reclaiming is off",
        CONTROLS,
        "mode: ReclaimMode = ReclaimMode.OFF",
        "mode: ReclaimMode = ReclaimMode.ENFORCE",
    ),
    Rule(
        "4.6 without anything said the kill switch is unreadable",
        CONTROLS,
        "kill_switch: Switch = Switch.UNREADABLE",
        "kill_switch: Switch = Switch.ABSENT",
    ),
    Rule("4.6 without anything said there is no kubelet", CONTROLS, "has_kubelet: bool = False", "has_kubelet: bool = True"),
    Rule(
        "4.6 what is unknown of the node stops",
        CONTROLS,
        "        if unknown.scope is Scope.NODE:\n",
        "        if not unknown.scope:\n",
    ),
    Rule("4.5.1 the kill switch is looked at", RECLAIM_ROOM, "                os.lstat(path)\n", "                return Switch.ABSENT\n"),
    Rule("4.5.1 a broken link sets the kill switch", RECLAIM_ROOM, "os.lstat(path)", "os.stat(path)"),
    Rule(
        "4.5.1 a kill switch that cannot be examined is unreadable",
        RECLAIM_ROOM,
        "            except OSError:\n                return Switch.UNREADABLE",
        "            except OSError:\n                return Switch.ABSENT",
    ),
    Rule(
        "4.5.1 a kill switch whose look hangs is unreadable",
        RECLAIM_ROOM,
        "        except WorkerHung:\n            return Switch.UNREADABLE",
        "        except WorkerHung:\n            return Switch.ABSENT",
    ),
    Rule("4.6 a pause is heeded", RECLAIM_ROOM, "            is_paused=bool(self.paused_until_usec),\n", ""),
    Rule(
        "4.6 a pause ends at its time",
        PAUSING,
        "if not asked or (boottime >= self._ends and (realtime_usec >= asked or self._is_bounded)):",
        "if not asked:",
    ),
    Rule("4.6 setting the host's time ends no pause", PAUSING, "(boottime >= self._ends and (", "(True and ("),
    Rule(
        "4.6 a pause stays on record until it is over for good",
        PAUSING,
        "self._over_since is not None and boottime - self._over_since >= _SETTLED",
        "self._over_since is not None",
    ),
    Rule(
        "4.6 a pause that a clock ahead hid is not over",
        PAUSING,
        "            return 0\n        self._over_since = None\n",
        "            return 0\n",
    ),
    Rule("4.5.1 --no-reclaim is heeded", RECLAIM_ROOM, "            no_reclaim=self._no_reclaim,\n", ""),
    Rule(
        "4.6 a damaged state is heeded",
        RECLAIM_ROOM,
        "            is_state_damaged=state.pins_in_doubt or self._safekeeping.is_damaged,\n",
        "",
    ),
    Rule("4.5.6 that devward stops is heeded", RECLAIM_ROOM, "            is_stopping=self._is_stopping,\n", ""),
    Rule(
        "4.6 a mode that was set outlasts the configuration's",
        RECLAIM_ROOM,
        "return self._remembered.state.reclaim_mode or self._config.mode",
        "return self._config.mode",
    ),
    Rule("4.6 a mode that was set survives a restart", STATE, '"reclaim_mode": state.reclaim_mode,', '"reclaim_mode": None,'),
    Rule(
        "4.6 a pause survives a restart", STATE, '"reclaim_pause": dataclasses.asdict(state.reclaim_pause) if', '"reclaim_pause": None if'
    ),
    Rule(
        "4.2 a kubelet is seen before anything is destroyed",
        OBSTACLES,
        "has_kubelet=scan is not None and scan.kubelet is not None)",
        "has_kubelet=True)",
    ),
    Rule(
        "4.5.1 what stops reclaiming stops a cycle",
        RECONCILER,
        "        if not permission(retried(controls), seen.blocked).may_destroy:\n            return\n",
        "",
    ),
    Rule(
        "4.6 what an administrator changes shows, and breaks waits, at once",
        RECLAIM_ACTIONS,
        "                self._reconciler.noticed()\n            self._look()\n            self._on_change()",
        "                pass\n            self._look()\n            self._on_change()",
    ),
    Rule("4.6 each change of mode or pause is audited", CHANGES, '    record.succeed(f"{member} is in force{what}")\n', ""),
    Rule(
        "4.6 where no vNPU is idle no Pods are listed",
        INVENTORY,
        "return any(vnpu.use is not Use.IN_USE for vnpu in self.vnpus)",
        "return True",
        ("test_reclaim_verdict.py",),
    ),
    Rule(
        "4.6 while a vNPU may be idle Pods are listed",
        INVENTORY,
        "return any(vnpu.use is not Use.IN_USE for vnpu in self.vnpus)",
        "return any(vnpu.use is Use.IDLE for vnpu in self.vnpus)",
        ("test_reclaim_verdict.py",),
    ),
    Rule(
        "5 an administrator names a vNPU by its identity",
        RECLAIM_ACTIONS,
        "        if all((vnpu.vdev, vnpu.identity) != (vdev, identity) for vnpu in self._npus.vnpus()):\n",
        "        if all(vnpu.vdev != vdev for vnpu in self._npus.vnpus()):\n",
    ),
    Rule(
        "5 a dry run destroys nothing",
        RECLAIM_ACTIONS,
        "            if dry_run:\n                results",
        "            if not identities:\n                results",
    ),
    Rule(
        "5 of orphans only what nothing shields is wished for",
        RECLAIM_ACTIONS,
        "identities = tuple(one.identity for one in judged if one.verdict not in SHIELDED)",
        "identities = tuple(one.identity for one in judged)",
    ),
    Rule(
        "5 of orphans what is not known is told, too",
        RECLAIM_ACTIONS,
        "unknown = tuple(one.identity for one in judged if one.verdict is Verdict.UNKNOWN)",
        "unknown = ()",
    ),
    Rule(
        "4.6 only the configured cards are reclaimed on",
        RECONCILER,
        "self._reach = Reach(config.manage, None if config.cards is None else frozenset(config.cards))",
        "self._reach = Reach(config.manage)",
    ),
    Rule(
        "4.2 manage is as configured",
        RECONCILER,
        "self._reach = Reach(config.manage, None if",
        "self._reach = Reach(cards=None if",
    ),
    Rule(
        "4.4 grace, confirmations and interval are as configured",
        RECONCILER,
        "self._bounds = Bounds(Pace(config.grace, config.confirmations, config.interval))",
        "self._bounds = Bounds()",
    ),
    Rule(
        "4.5.5 rates are as configured",
        RECONCILER,
        "self._rates = Rates(config.per_card, config.per_node, config.per_hour)",
        "self._rates = Rates()",
    ),
)
