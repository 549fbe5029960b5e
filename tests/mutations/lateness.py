"""DESIGN 4.5 and 4.6: who keeps a vNPU, or stops reclaiming, while one is destroyed, is told for what that comes too late."""

from typing import Final

from mutations.files import CHANGES, NPU_ROOM, PINNING, RECLAIM_ACTIONS, RECLAIM_ROOM, RECONCILER, UNDERWAY
from mutations.rule import Rule

RULES: Final = (
    Rule(
        "4.6 while a broker may be at it none is told of another",
        RECONCILER,
        "                if self._warden.destroy_may_run():\n",
        "                if not self._warden:\n",
    ),
    Rule("4.6 a lock that was held when a change came counts", UNDERWAY, "was_held = not was_running and may_run()", "was_held = False"),
    Rule("4.6 what began later heeded the change", UNDERWAY, "return now is last and is_meant", "return is_meant"),
    Rule("4.6 an answer waits for longer than a broker may", UNDERWAY, "DESTROY_SECONDS + 15.0", "DESTROY_SECONDS - 29.0"),
    Rule(
        "4.6 what was never told keeps what is not known",
        RECONCILER,
        "            if self._underway is not None and self._underway.result is None:\n",
        "            if self._underway is not None:\n",
    ),
    Rule(
        "4.6 from the last word on a pin is too late",
        RECONCILER,
        "                self._underway = Underway(expected)\n",
        "",
    ),
    Rule("4.6 what came of a destruction is told to who waits", RECONCILER, "            result = what_came.result\n", ""),
    Rule(
        "4.6 a destruction that is broken off is over",
        RECONCILER,
        "            if self._underway is not None and self._underway.result is None:\n                self._underway.end(result)\n",
        "            if result is not Result.UNKNOWN and self._underway is not None:\n                self._underway.end(result)\n",
    ),
    Rule("4.6 a pin of its NPU is too late, too", UNDERWAY, "frozenset({str(Target(expected.die)), ", "frozenset({"),
    Rule("4.6 the end of a destruction is waited for", UNDERWAY, "            await last.wait()\n", ""),
    Rule(
        "4.6 a pin that comes too late for a vNPU that is gone says so",
        UNDERWAY,
        "            if last.result is Result.DESTROYED and target:\n                return Reason.VNPU_DESTROYED\n",
        "",
    ),
    Rule(
        "4.6 a pin that comes too late for what nobody knows says so",
        UNDERWAY,
        "if last.result is None or (target and last.result is Result.UNKNOWN):",
        "if last.result is None:",
    ),
    Rule(
        "4.6 who is too late for a destruction without an end is told so",
        UNDERWAY,
        "if last.result is None or (target and last.result is Result.UNKNOWN):",
        "if target and last.result is Result.UNKNOWN:",
    ),
    Rule(
        "4.6 what had begun counts from when the change is in force",
        UNDERWAY,
        "was_running and is_meant:",
        "last.result is None and is_meant:",
    ),
    Rule("4.6 the lock of a broker is looked at", UNDERWAY, "(was_held or may_run())", "(was_held and not may_run())"),
    Rule(
        "4.6 a broker that never answered may be at it still",
        UNDERWAY,
        "        return now is last and is_meant\n",
        "        return False\n",
    ),
    Rule(
        "4.6 what an earlier run of the daemon began may be any",
        UNDERWAY,
        "        if now is None or now.result not in (None, Result.UNKNOWN):\n            return True\n",
        "        if now is None or now.result not in (None, Result.UNKNOWN):\n            return False\n",
    ),
    Rule(
        "4.6 what an earlier run began counts before the first look",
        RECLAIM_ROOM,
        "        if self._reconciler is None and not self._npus.destroy_may_run():\n",
        "        if self._reconciler is None:\n",
    ),
    Rule(
        "4.6 whether a broker may destroy is asked of its lock",
        NPU_ROOM,
        "        return destroy_may_run(names.BROKER_LOCK_FILE)\n",
        "        return self._client is not None and destroy_may_run(names.BROKER_LOCK_FILE)\n",
    ),
    Rule(
        "4.6 a lock that cannot be looked at may be held",
        NPU_ROOM,
        "        except OSError:\n            return True\n",
        "        except OSError:\n            return False\n",
    ),
    Rule(
        "4.6 a pin tells for what it comes too late",
        PINNING,
        "if (late := await too_late()) is not Reason.OK:",
        "if (late := Reason.OK) is not Reason.OK:",
    ),
    Rule(
        "4.6 who stops reclaiming is told for what that comes too late",
        CHANGES,
        "        if (why := await then(saved=saved)) is not Reason.OK:\n",
        "        if (why := await then(saved=saved)) is Reason.VNPU_DESTROYED:\n",
    ),
    Rule(
        "4.6 a mode that stops reclaiming waits for what had begun",
        RECLAIM_ACTIONS,
        "is_accepting=is_enforcing, is_stopping=not is_enforcing",
        "is_accepting=is_enforcing",
    ),
    Rule("4.6 a pause waits for what had begun", RECLAIM_ACTIONS, 's, {reason}", change, is_stopping=True)', 's, {reason}", change)'),
)
