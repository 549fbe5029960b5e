"""S8, S9 and DESIGN 4.3: what a Pod's state makes of its claim."""

from typing import Final

from mutations.files import CLAIMS, CONTAINERS, PODLIST, PODS, SNAPSHOT
from mutations.rule import Rule

RULES: Final = (
    Rule(
        "S8 a terminal Pod claims nothing", PODS, "        if pod.phase in TERMINAL and judgement is None:\n", "        if pod is None:\n"
    ),
    Rule(
        "4.3 a terminal Pod whose container is running by its status protects",
        PODS,
        "        if is_running(pod):\n",
        "        if pod is None:\n",
    ),
    Rule(
        "4.3 a container state that is not known counts as running",
        CONTAINERS,
        "status.state in (State.RUNNING, State.UNKNOWN)",
        "status.state is State.RUNNING",
    ),
    Rule(
        "S7 terminal Pods release only without a live bundle",
        PODS,
        "        if alive is Finding.HELD:\n            return Judgement(Standing.PROTECTED, ClaimReason.ENDED_BUT_ALIVE)\n",
        "",
    ),
    Rule(
        "4.3 of a terminal Pod its sandbox counts",
        PODS,
        "        alive = self._alive(pod, containers_only=False)\n",
        "        alive = self._alive(pod, containers_only=True)\n",
    ),
    Rule(
        "4.3 a terminal Pod of which the host cannot tell is unknown",
        PODS,
        "ClaimReason.HOST_UNREADABLE) if alive is Finding.UNKNOWN else None",
        "ClaimReason.HOST_UNREADABLE) if alive is None else None",
    ),
    Rule(
        "4.3 an end without a time, or in the future, is when it was first seen",
        PODS,
        "return seen.monotonic - max(0, seen.realtime_usec - usec) / 1_000_000",
        "return seen.monotonic - (seen.realtime_usec - usec) / 1_000_000",
    ),
    Rule(
        "4.3 an end of which any time is missing is when it was first seen",
        PODS,
        "if finished and len(finished) == len(ends) else seen.monotonic",
        "if finished else seen.monotonic",
    ),
    Rule("S8 a Pod that is being deleted protects", CONTAINERS, "    if pod.deleting:\n", "    if pod is None:\n"),
    Rule(
        "S8 a running container protects",
        CONTAINERS,
        "    if status.state is State.RUNNING:\n        return _Mark(Standing.PROTECTED",
        "    if status.state is State.RUNNING:\n        return _Mark(Standing.CANDIDATE",
    ),
    Rule(
        "S8 a container that is about to start protects",
        CONTAINERS,
        "            return _Mark(Standing.PROTECTED, ClaimReason.STARTING, status.reason)\n",
        "            return _Mark(Standing.CANDIDATE, ClaimReason.STARTING, status.reason)\n",
    ),
    Rule(
        "S8 a waiting reason that is not known is unknown",
        CONTAINERS,
        "            return _Mark(Standing.UNKNOWN, ClaimReason.REASON_UNKNOWN, status.reason)\n",
        "            return _failed(status, status.reason)\n",
    ),
    Rule(
        "S8 a container that cannot be started is a candidate",
        CONTAINERS,
        "        return _failed(status, status.reason)\n    end",
        "        return _Mark(Standing.PROTECTED, ClaimReason.STARTING, status.reason)\n    end",
    ),
    Rule(
        "S8 a container that ended with an error is a candidate",
        CONTAINERS,
        "return _failed(status, end.reason) if end.exit_code != 0 else None",
        "return None",
    ),
    Rule(
        "S8 an end of which the reason is not known is unknown",
        CONTAINERS,
        "    if end is None or end.reason not in ENDED:\n",
        "    if end is None:\n",
    ),
    Rule(
        "S8 a Pending Pod protects",
        CONTAINERS,
        "        return Judgement(Standing.PROTECTED, ClaimReason.PENDING)\n",
        "        return Judgement(Standing.CANDIDATE, ClaimReason.PENDING)\n",
    ),
    Rule(
        "S8 a Pending Pod whose container failed is a candidate",
        CONTAINERS,
        "    if decides is Standing.CANDIDATE:\n",
        "    if pod.phase == _PENDING and decides is not Standing.PROTECTED:\n"
        "        return Judgement(Standing.PROTECTED, ClaimReason.PENDING)\n    if decides is Standing.CANDIDATE:\n",
    ),
    Rule(
        "S8 a Pod in the checkpoint with containers that did not end protects",
        CONTAINERS,
        "        return Judgement(Standing.PROTECTED, ClaimReason.INCOMPLETE)\n",
        "        return Judgement(Standing.CANDIDATE, ClaimReason.INCOMPLETE)\n",
    ),
    Rule(
        "S8 anything else is unknown",
        CONTAINERS,
        "    return Judgement(Standing.UNKNOWN, ClaimReason.NOTHING_SHOWN)\n",
        "    return Judgement(Standing.NONE, ClaimReason.NOTHING_SHOWN)\n",
    ),
    Rule("S8 a phase that is not known is unknown", CONTAINERS, "    if pod.phase not in _PHASES:\n", "    if pod is None:\n"),
    Rule("S8 init containers are looked at too", PODLIST, '        (ContainerKind.INIT, "initContainerStatuses"),\n', ""),
    Rule("S8 ephemeral containers are looked at too", PODLIST, '        (ContainerKind.EPHEMERAL, "ephemeralContainerStatuses"),\n', ""),
    Rule(
        "4.3 waiting without a reason protects at first",
        CONTAINERS,
        "        return _Mark(Standing.PROTECTED, ClaimReason.WAITING_UNSAID, status.name)\n",
        "        return _failed(status, status.name)\n",
    ),
    Rule(
        "4.3 waiting without a reason is unknown once it was seen twice",
        CONTAINERS,
        "        if was_unsaid(ContainerKey(pod.uid, status.kind, status.name)):\n",
        "        if status is None:\n",
    ),
    Rule(
        "4.2 a candidate's live container protects",
        PODS,
        "            return Judgement(Standing.PROTECTED, ClaimReason.CONTAINER_ALIVE, judgement.detail)\n",
        "            return judgement\n",
    ),
    Rule(
        "4.2 a candidate's sandbox does not protect",
        PODS,
        "        alive = self._alive(pod, containers_only=True)\n",
        "        alive = self._alive(pod, containers_only=False)\n",
    ),
    Rule(
        "4.2 a candidate of which the host cannot tell is unknown",
        PODS,
        "        if alive is Finding.UNKNOWN and judgement.standing is Standing.CANDIDATE:\n",
        "        if alive is None:\n",
    ),
    Rule(
        "S8 the latest failure of an attempt counts",
        PODS,
        "return max(ends, default=None), min(known)",
        "return min(ends, default=None), min(known)",
    ),
    Rule(
        "S8 a failure of which any time is missing has none",
        PODS,
        "                return None, None\n",
        "                continue\n",
    ),
    Rule(
        "S9 the strongest claim of a card decides",
        CLAIMS,
        "    return min(standings, key=_STRENGTH.__getitem__, default=Standing.NONE)\n",
        "    return max(standings, key=_STRENGTH.__getitem__, default=Standing.NONE)\n",
    ),
    Rule("S9 the latest failure of a card's candidates counts", CLAIMS, "return max((claim.failed_at", "return min((claim.failed_at"),
    Rule(
        "S9 a card that is not vouched for, or of which nothing was asked, is unknown",
        SNAPSHOT,
        "floor = Standing.UNKNOWN if is_doubtful or claims is None else Standing.NONE",
        "floor = Standing.NONE",
    ),
    Rule(
        "4.4 a protecting claim of a card begins waits anew",
        SNAPSHOT,
        "                self._ledger.reset(Reset(Scope.CARD, claim.reason.value, card.name, claim.unless_clean))\n",
        "                pass\n",
    ),
    Rule(
        "4.4 an unknown claim of a card begins waits anew",
        SNAPSHOT,
        "                self._ledger.take(Scope.CARD, claim.reason.value, claim.uid, claim.sentence, card.name)\n",
        "                pass\n",
    ),
)
