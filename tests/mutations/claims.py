"""S1 to S9 and DESIGN 4.3: which Pod claims which card, and what of the checkpoint, the annotations and the host says so."""

from typing import Final

from mutations.rule import Rule

_PODS: Final = "src/devward/cluster/pods.py"
_CONTAINERS: Final = "src/devward/cluster/containers.py"
_ANNOTATIONS: Final = "src/devward/cluster/annotations.py"
_CARDS: Final = "src/devward/cluster/cards.py"
_PODLIST: Final = "src/devward/cluster/podlist.py"
_CLAIMS: Final = "src/devward/cluster/claims.py"
_CHECKPOINT: Final = "src/devward/cluster/checkpoint.py"
_ALLOCATION: Final = "src/devward/cluster/allocation.py"
_SNAPSHOT: Final = "src/devward/cluster/snapshot.py"
_RECOLLECTION: Final = "src/devward/cluster/recollection.py"
_API: Final = "src/devward/cluster/api.py"
_ANSWER: Final = "src/devward/cluster/answer.py"
_BUNDLE: Final = "src/devward/cluster/bundle.py"
_WATCHER: Final = "src/devward/cluster/owners.py"

_POD_TESTS: Final = ("test_pods_claims.py", "test_pods_table.py", "test_pods_reports.py", "test_pods_properties.py")

ASKED: Final = {
    _PODS: _POD_TESTS,
    _CONTAINERS: ("test_pods_table.py", "test_pods_claims.py", "test_pods_reports.py"),
    _ANNOTATIONS: ("test_pods_claims.py", "test_pods_reports.py", "test_pods_properties.py"),
    _CARDS: _POD_TESTS,
    _PODLIST: ("test_pods_podlist.py", "test_pods_claims.py"),
    _CLAIMS: ("test_pods_claims.py", "test_snapshot_gates.py", "test_pods_properties.py"),
    _CHECKPOINT: ("test_checkpoint.py", "test_checkpoint_file.py"),
    _ALLOCATION: ("test_checkpoint_allocation.py", "test_checkpoint.py"),
    _SNAPSHOT: ("test_snapshot_gates.py", "test_snapshot_memory.py", "test_snapshot_properties.py"),
    _RECOLLECTION: ("test_snapshot_memory.py", "test_snapshot_gates.py", "test_owners_memory.py", "test_owners_keeping.py"),
    _API: ("test_api_library.py", "test_api.py"),
    _ANSWER: ("test_pods_podlist.py", "test_cluster_node.py"),
    _BUNDLE: ("test_local_bundle.py", "test_pods_claims.py"),
    _WATCHER: ("test_owners_watcher.py", "test_owners_memory.py"),
}


def _checkpoint(name: str, condition: str, *, indent: str = "    ", subject: str = "True") -> Rule:
    """Return a rule that is one `if` of checkpoint.py, which refuses what the kubelet does not write."""
    return Rule(name, _CHECKPOINT, f"{indent}if {condition}:\n", f"{indent}if not {subject}:\n")


_SOURCES: Final = (
    Rule("S1 the Pods are those of this node", _API, '{"fieldSelector": f"spec.nodeName={node}"}', '{"limit": "500"}'),
    Rule(
        "S1 the list is a quorum read",
        _API,
        '{"fieldSelector": f"spec.nodeName={node}"}',
        '{"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"}',
    ),
    Rule("S1 a list without a version is of no moment", _PODLIST, '    if version in ("", "0"):\n', "    if version is None:\n"),
    Rule("S1 a list that goes on is none", _PODLIST, '    if metadata.text("continue") or metadata', "    if metadata"),
    Rule("S1 a list with items that remain is none", _PODLIST, ' or metadata.value.get("remainingItemCount") not in (None, 0):', ":"),
    Rule("S1 a list without items is none", _PODLIST, '        answer.odd("items", "it is missing")\n', "        pass\n"),
    Rule("S1 a list with a Pod of another node is none", _PODLIST, '    if spec.text("nodeName") != node:\n', "    if spec is None:\n"),
    Rule("S1 a list with a UID twice is none", _PODLIST, "        if pod.uid in uids:\n", "        if pod in uids:\n"),
    Rule("S1 a list with a name twice is none", _PODLIST, "        if (pod.namespace, pod.name) in names:\n", "        if pod in names:\n"),
    Rule("S1 another kind of object is no answer", _ANSWER, 'if fields.text("kind") != kind or fields', "if fields"),
    Rule("S1 another version of the API is no answer", _ANSWER, ' or fields.text("apiVersion") != version:', ":"),
    Rule("S1 a key twice is no answer", _ANSWER, "    if len(result) != len(pairs):\n", "    if result is None:\n"),
    Rule(
        "S5 a Pod without a UID is no Pod",
        _PODLIST,
        '    uid = metadata.needed("uid")\n    if not _UID.fullmatch(uid):\n',
        '    uid = metadata.text("uid")\n    if uid is None:\n',
    ),
    _checkpoint("S2 a checkpoint is JSON with each key once", "len(result) != len(pairs)", subject="pairs or True"),
    Rule(
        "S2 a checkpoint has Data",
        _CHECKPOINT,
        "        raise CheckpointError(Defect.NO_DATA)\n",
        '        return {"PodDeviceEntries": None, "RegisteredDevices": None}\n',
    ),
    Rule(
        "S2 a checkpoint has entries and registered devices",
        _CHECKPOINT,
        "        if key not in content:\n            raise CheckpointError(defect)\n",
        "        content.setdefault(key, None)\n",
    ),
    Rule("S2 no registered NPU is a defect", _CHECKPOINT, "return () if known else (Defect.NOT_REGISTERED,)", "return ()"),
    _checkpoint("S2 an entry says of which Pod it is", "not row.pod_uid", indent="        ", subject="row"),
    _checkpoint("S2 an entry says of which resource it is", "not row.resource", indent="        ", subject="row"),
    _checkpoint("S2 an entry stands there once", "key in met", indent="        ", subject="row"),
    _checkpoint("4.2 the checksum is verified", "computed != claimed"),
    Rule("4.2 a key that is not known is refused", _CHECKPOINT, "    if not entry.keys() <= _ENTRY_KEYS:\n", "    if not entry:\n"),
    Rule(
        "4.2 a type that the kubelet does not write is refused", _CHECKPOINT, "    if type(value) is not kind:\n", "    if value is _T:\n"
    ),
    Rule("4.2 both forms at once are refused", _CHECKPOINT, "    if 0 < lists < len(rows):\n", "    if lists < 0:\n"),
    Rule(
        "4.2 what sets the variables counts, whatever its resource is called",
        _CHECKPOINT,
        'not is_npu and not any(variable in (row.response or b"") for variable in _VARIABLES)',
        "not is_npu",
    ),
    Rule(
        "4.2 the plugin's answer is decoded",
        _ALLOCATION,
        "    return Allocation(cards, template)\n",
        "    return Allocation(None, template)\n",
    ),
    Rule("4.2 an answer that names devices otherwise may be any card", _ALLOCATION, "    if not is_plain:\n", "    if is_plain is None:\n"),
    Rule(
        "4.2 an answer that cannot be decoded may be any card",
        _ALLOCATION,
        "        return Allocation(None, oddity=Oddity.UNDECODABLE)\n",
        "        return Allocation(frozenset({0}))\n",
    ),
    Rule(
        "4.2 a list of cards that is none may be any card",
        _BUNDLE,
        "        else:\n            return None\n    return frozenset(cards)",
        "        else:\n            continue\n    return frozenset(cards)",
    ),
    Rule(
        "4.2 every Pod that was seen with cards is remembered",
        _PODS,
        "        self._remember(pod.uids, resolution.named | by_environment, resolution.resources)\n",
        "",
    ),
    Rule("4.2 cards once seen are not lost", _PODS, "seen = cards if before is None else cards | before.cards", "seen = cards"),
    Rule(
        "4.2 a look that is not whole still learns what the checkpoint says",
        _SNAPSHOT,
        "        return with_seen(kept, seen_of(self._read.allocations))\n",
        "        return kept\n",
    ),
    Rule(
        "4.2 a look that is not whole still learns what the list says",
        _SNAPSHOT,
        "            kept = with_seen(kept, self._joined.pods.items())\n",
        "            pass\n",
    ),
    Rule(
        "4.2 a look that is not whole makes no Pod gone",
        _SNAPSHOT,
        "        if self._is_whole and self._joined is not None:\n",
        "        if self._joined is not None:\n",
    ),
    Rule(
        "4.2 the memory is of one boot",
        _SNAPSHOT,
        "self._still_true(known) if is_of_boot else Recollection(node=known.node)",
        "self._still_true(known)",
    ),
    Rule(
        "4.2 a memory that is lost is no empty one",
        _RECOLLECTION,
        "        return Recollection(loss=Loss(str(error)))\n",
        "        return Recollection()\n",
    ),
    Rule(
        "4.2 after a loss nothing is known for as long as a Pod could protect",
        _SNAPSHOT,
        "        self._ledger.take_look(Look.MEMORY_LOST, Source.MEMORY, loss.detail)\n",
        "",
    ),
    Rule("4.2 a loss lasts as long as a Pod that is gone", _RECOLLECTION, " and now - self.since >= bounds.gone_seconds\n", "\n"),
    Rule("4.2 too many Pods to be remembered are a loss", _RECOLLECTION, "    if len(known.pods) <= MAX_PODS:\n", "    if known:\n"),
    Rule(
        "4.2 a memory that could not be saved is unknown",
        _SNAPSHOT,
        "            self._ledger.take_look(Look.MEMORY_UNSAVED, Source.MEMORY, unsaved)\n",
        "            pass\n",
    ),
    Rule(
        "4.2 the memory is saved at each look",
        _WATCHER,
        "        await self._save(self._known)\n        return Seen(",
        "        return Seen(",
    ),
    Rule(
        "4.2 the checkpoint is read between whole looks",
        _WATCHER,
        "            self._known = see_allocations(known, allocations_of(reading.checkpoint))\n",
        "            pass\n",
    ),
    Rule(
        "4.2 what is kept and cannot be read yet is not taken for lost",
        _WATCHER,
        "            if self._known is None:\n                # Not taken",
        "            if self._known is None:\n                self._known = Recollection()\n            if not self._known:\n                # Not taken",
    ),
)

_GONE: Final = (
    Rule(
        "S3 a Pod that only the checkpoint has protects its cards",
        _PODS,
        "        self._claim(uid, self._all(resolution), Judgement(Standing.PROTECTED, reason))\n",
        "",
    ),
    Rule(
        "S3 a gone Pod protects until it was gone in three looks",
        _PODS,
        "if looks >= self._bounds.gone_looks and self._now",
        "if self._now",
    ),
    Rule(
        "S3 a gone Pod protects until it was gone for 10 minutes",
        _PODS,
        " and self._now.monotonic - since >= self._bounds.gone_seconds:",
        ":",
    ),
    Rule(
        "S3 three looks and 10 minutes",
        _CLAIMS,
        "gone_seconds: float = 600.0\n    gone_looks: int = 3\n",
        "gone_seconds: float = 60.0\n    gone_looks: int = 1\n",
    ),
    Rule(
        "S3 a gone Pod protects no longer than that",
        _PODS,
        "            if looks >= self._bounds.gone_looks and self",
        "            if not known and self",
    ),
    Rule(
        "S3 an entry that stays for days protects no second time",
        _PODS,
        "                    self._remembered[uid] = replace(known, gone_looks=self._bounds.gone_looks)\n",
        "                    pass\n",
    ),
    Rule(
        "S3 a Pod seen again begins anew",
        _PODS,
        "            if seen or resources:\n                self._remembered[uid] = Remembered(seen, resources)",
        "            if seen or resources:\n                self._remembered[uid] = replace(before or Remembered(), cards=seen, resources=resources)",
    ),
    Rule(
        "S3 a card of a gone Pod that is not here blocks the node",
        _PODS,
        "        self._claim(uid, self._all(resolution), Judgement(Standing.PROTECTED, reason))\n        self._doubt(uid, resolution.problems)\n",
        "        self._claim(uid, self._all(resolution), Judgement(Standing.PROTECTED, reason))\n",
    ),
    Rule(
        "4.3 a Pod that this boot's memory has protects",
        _PODS,
        "for uid in sorted((allocations.keys() | memory.pods.keys()) - known):",
        "for uid in sorted(allocations.keys() - known):",
    ),
    Rule(
        "4.3 a gone Pod protects until the host shows that it is gone",
        _PODS,
        "        if self._host.pod(uid, containers_only=False) is Finding.CLEAN:\n",
        "        if uid:\n",
    ),
    Rule(
        "4.3 of a gone Pod its sandbox counts",
        _PODS,
        "        if self._host.pod(uid, containers_only=False) is Finding.CLEAN:\n",
        "        if self._host.pod(uid, containers_only=True) is Finding.CLEAN:\n",
    ),
    Rule(
        "4.3 a look that is not whole begins a gone Pod's time anew",
        _SNAPSHOT,
        "        kept = still_there(self._before.pods)\n",
        "        kept = dict(self._before.pods)\n",
    ),
    Rule(
        "4.3 a mirror Pod is known by its configuration's hash",
        _PODLIST,
        "    if _MIRROR not in annotations:\n",
        "    if annotations is not None:\n",
    ),
    Rule("4.3 only a mirror Pod is known by a hash", _PODLIST, "    if _MIRROR not in annotations:\n", "    if annotations is None:\n"),
    Rule(
        "4.3 nobody speaks for another Pod by an annotation",
        _PODLIST,
        'if _STATIC_UID.fullmatch(text := annotations.get(key, "")))',
        'if (text := annotations.get(key, "")))',
    ),
)

_NAMED: Final = (
    Rule(
        "4.3 the plugin's answer names cards",
        _CARDS,
        "    named = told | annotated | seen | _own_environment(pod, cards)\n",
        "    named = annotated | seen | _own_environment(pod, cards)\n",
    ),
    Rule(
        "4.3 the annotation names cards",
        _CARDS,
        "    named = told | annotated | seen | _own_environment(pod, cards)\n",
        "    named = told | seen | _own_environment(pod, cards)\n",
    ),
    Rule(
        "4.3 cards that a Pod was seen with are its",
        _CARDS,
        "    named = told | annotated | seen | _own_environment(pod, cards)\n",
        "    named = told | annotated | _own_environment(pod, cards)\n",
    ),
    Rule("4.3 cards that a Pod names beside its own are its", _CARDS, " | seen | _own_environment(pod, cards)\n", " | seen\n"),
    Rule(
        "4.3 where nothing names a card it may be any of the resource",
        _CARDS,
        "frozenset() if annotated else frozenset(unanswered), tuple(problems))",
        "frozenset(), tuple(problems))",
    ),
    Rule(
        "4.3 each container without an answer may have any card",
        _CARDS,
        "    unanswered |= {resource for _, resource in wanted - answered}\n",
        "",
    ),
    Rule(
        "4.3 a resource means the cards that HAMi registers for it, and those that nobody does",
        _CARDS,
        "if card.die in self._registered[word] or card.die not in others)",
        "if card.die in self._registered[word])",
    ),
    Rule("S5 a Pod with the resource is relevant", _CARDS, "any(container.resources for container in pod.containers) or any(", "any("),
    Rule("S5 a Pod with annotations of cards is relevant", _CARDS, " or any(map(is_device_annotation, pod.annotations or {}))", ""),
    Rule(
        "4.3 a Pod that the checkpoint has is relevant",
        _PODS,
        "has_devices = is_relevant(pod) or bool(allocations) or is_remembered",
        "has_devices = is_relevant(pod) or is_remembered",
    ),
    Rule(
        "4.3 a Pod that is remembered is relevant",
        _PODS,
        "has_devices = is_relevant(pod) or bool(allocations) or is_remembered",
        "has_devices = is_relevant(pod) or bool(allocations)",
    ),
    Rule("S6 memory and cores are no cards", _ANNOTATIONS, 'not key.endswith(("-memory", "-core")) and ', ""),
    Rule(
        "S6 the list of what is to be given is read",
        _ANNOTATIONS,
        "    return found[1] if found and found[1].startswith(_ASCEND) else None",
        "    return None",
    ),
    Rule(
        "S6 JSON and segments are read",
        _ANNOTATIONS,
        'if text.startswith(("[", "{", \'"\')) or text in ("null", "true", "false") else _of_segments(text)',
        "if text else iter(())",
    ),
    Rule(
        "S6 a segment with fewer than 4 fields is malformed",
        _ANNOTATIONS,
        "            if len(fields) < 4:\n",
        "            if not fields:\n",
    ),
    Rule("4.3 empty segments are fine", _ANNOTATIONS, "            if not device.strip(_WHITE):\n                continue\n", ""),
    Rule(
        "S7 a malformed annotation is unknown",
        _CARDS,
        "problems = [Problem(ClaimReason.ANNOTATION_MALFORMED, detail, doubtful) for detail in annotations.malformed]",
        "problems = list[Problem]()",
    ),
    Rule(
        "S7 a die that is none of ours is unknown",
        _CARDS,
        '    problems += [Problem(ClaimReason.CARD_NOT_KNOWN, f"die {die}", doubtful) for die in annotations.dies - cards.dies]\n',
        "",
    ),
    Rule(
        "S7 a physical id that is none of ours blocks the node",
        _CARDS,
        '    problems += [Problem(ClaimReason.CARD_NOT_KNOWN, f"physical id {phy}", None) for phy in told - cards.all]\n    named',
        "    named",
    ),
    Rule(
        "4.3 a malformed annotation is in doubt for the answer's cards only",
        _CARDS,
        "    doubtful = told if is_answered else None\n",
        "    doubtful = None\n",
    ),
    Rule(
        "4.3 without answers a malformed annotation blocks the node",
        _CARDS,
        "    doubtful = told if is_answered else None\n",
        "    doubtful = told\n",
    ),
    Rule(
        "S7 what blocks the node is told with its Pod",
        _SNAPSHOT,
        "            self._ledger.take(Scope.NODE, blocker.reason.value, blocker.uid, blocker.sentence)\n",
        "            pass\n",
    ),
    Rule(
        "4.3 a privileged Pod protects every card",
        _PODS,
        "        if pod.is_privileged:\n            self._claim",
        "        if pod is None:\n            self._claim",
    ),
    Rule("4.3 a Pod that mounts /dev protects every card", _PODLIST, "return self.mounts_devices or any(", "return any("),
    Rule("4.3 the mount of a device's own node counts", _PODLIST, " or _NPU_NODE.fullmatch(clean) is not None", ""),
    Rule(
        "4.3 a privileged Pod spares what a clean scan clears",
        _PODS,
        "ClaimReason.PRIVILEGED), unless_clean=True)",
        "ClaimReason.PRIVILEGED))",
    ),
    Rule(
        "4.3 cards in the environment without the resource are protected",
        _PODS,
        "        self._claim(pod.uid, by_environment, Judgement(Standing.PROTECTED, ClaimReason.NAMED_IN_ENVIRONMENT))\n",
        "",
    ),
    Rule(
        "4.3 an environment that cannot be told protects all cards",
        _CARDS,
        "            return cards.all\n        found |= phys",
        "            continue\n        found |= phys",
    ),
    Rule(
        "4.3 ASCEND_VNPU_SPECS alone protects all cards",
        _CARDS,
        "return frozenset(found) if found or not container.has_specs else cards.all",
        "return frozenset(found)",
    ),
    Rule("4.3 an empty or void ASCEND_VISIBLE_DEVICES names nothing", _BUNDLE, '    if text in ("", "void"):\n', '    if text == "":\n'),
    Rule("4.3 a soft Pod protects its card", _PODS, "        if is_soft(pod.annotations or {}):\n", "        if pod is None:\n"),
)

_ENDED: Final = (
    Rule(
        "S8 a terminal Pod claims nothing", _PODS, "        if pod.phase in TERMINAL and judgement is None:\n", "        if pod is None:\n"
    ),
    Rule(
        "4.3 a terminal Pod whose container is running by its status protects",
        _PODS,
        "        if is_running(pod):\n",
        "        if pod is None:\n",
    ),
    Rule(
        "4.3 a container state that is not known counts as running",
        _CONTAINERS,
        "status.state in (State.RUNNING, State.UNKNOWN)",
        "status.state is State.RUNNING",
    ),
    Rule(
        "S7 terminal Pods release only without a live bundle",
        _PODS,
        "        if alive is Finding.HELD:\n            return Judgement(Standing.PROTECTED, ClaimReason.ENDED_BUT_ALIVE)\n",
        "",
    ),
    Rule(
        "4.3 of a terminal Pod its sandbox counts",
        _PODS,
        "        alive = self._alive(pod, containers_only=False)\n",
        "        alive = self._alive(pod, containers_only=True)\n",
    ),
    Rule(
        "4.3 a terminal Pod of which the host cannot tell is unknown",
        _PODS,
        "ClaimReason.HOST_UNREADABLE) if alive is Finding.UNKNOWN else None",
        "ClaimReason.HOST_UNREADABLE) if alive is None else None",
    ),
    Rule(
        "4.3 an end without a time, or in the future, is when it was first seen",
        _PODS,
        "return seen.monotonic - max(0, seen.realtime_usec - usec) / 1_000_000",
        "return seen.monotonic - (seen.realtime_usec - usec) / 1_000_000",
    ),
    Rule(
        "4.3 an end of which any time is missing is when it was first seen",
        _PODS,
        "if finished and len(finished) == len(ends) else seen.monotonic",
        "if finished else seen.monotonic",
    ),
    Rule("S8 a Pod that is being deleted protects", _CONTAINERS, "    if pod.deleting:\n", "    if pod is None:\n"),
    Rule(
        "S8 a running container protects",
        _CONTAINERS,
        "    if status.state is State.RUNNING:\n        return _Mark(Standing.PROTECTED",
        "    if status.state is State.RUNNING:\n        return _Mark(Standing.CANDIDATE",
    ),
    Rule(
        "S8 a container that is about to start protects",
        _CONTAINERS,
        "            return _Mark(Standing.PROTECTED, ClaimReason.STARTING, status.reason)\n",
        "            return _Mark(Standing.CANDIDATE, ClaimReason.STARTING, status.reason)\n",
    ),
    Rule(
        "S8 a waiting reason that is not known is unknown",
        _CONTAINERS,
        "            return _Mark(Standing.UNKNOWN, ClaimReason.REASON_UNKNOWN, status.reason)\n",
        "            return _failed(status, status.reason)\n",
    ),
    Rule(
        "S8 a container that cannot be started is a candidate",
        _CONTAINERS,
        "        return _failed(status, status.reason)\n    end",
        "        return _Mark(Standing.PROTECTED, ClaimReason.STARTING, status.reason)\n    end",
    ),
    Rule(
        "S8 a container that ended with an error is a candidate",
        _CONTAINERS,
        "return _failed(status, end.reason) if end.exit_code != 0 else None",
        "return None",
    ),
    Rule(
        "S8 an end of which the reason is not known is unknown",
        _CONTAINERS,
        "    if end is None or end.reason not in ENDED:\n",
        "    if end is None:\n",
    ),
    Rule(
        "S8 a Pending Pod protects",
        _CONTAINERS,
        "        return Judgement(Standing.PROTECTED, ClaimReason.PENDING)\n",
        "        return Judgement(Standing.CANDIDATE, ClaimReason.PENDING)\n",
    ),
    Rule(
        "S8 a Pending Pod whose container failed is a candidate",
        _CONTAINERS,
        "    if decides is Standing.CANDIDATE:\n",
        "    if decides is Standing.CANDIDATE and pod.phase != _PENDING:\n",
    ),
    Rule(
        "S8 a Pod in the checkpoint with containers that did not end protects",
        _CONTAINERS,
        "        return Judgement(Standing.PROTECTED, ClaimReason.INCOMPLETE)\n",
        "        return Judgement(Standing.CANDIDATE, ClaimReason.INCOMPLETE)\n",
    ),
    Rule(
        "S8 anything else is unknown",
        _CONTAINERS,
        "    return Judgement(Standing.UNKNOWN, ClaimReason.NOTHING_SHOWN)\n",
        "    return Judgement(Standing.NONE, ClaimReason.NOTHING_SHOWN)\n",
    ),
    Rule("S8 a phase that is not known is unknown", _CONTAINERS, "    if pod.phase not in _PHASES:\n", "    if pod is None:\n"),
    Rule("S8 init containers are looked at too", _PODLIST, '        (ContainerKind.INIT, "initContainerStatuses"),\n', ""),
    Rule("S8 ephemeral containers are looked at too", _PODLIST, '        (ContainerKind.EPHEMERAL, "ephemeralContainerStatuses"),\n', ""),
    Rule(
        "4.3 waiting without a reason protects at first",
        _CONTAINERS,
        "        return _Mark(Standing.PROTECTED, ClaimReason.WAITING_UNSAID, status.name)\n",
        "        return _failed(status, status.name)\n",
    ),
    Rule(
        "4.3 waiting without a reason is unknown once it was seen twice",
        _CONTAINERS,
        "        if was_unsaid(ContainerKey(pod.uid, status.kind, status.name)):\n",
        "        if status is None:\n",
    ),
    Rule(
        "4.2 a candidate's live container protects",
        _PODS,
        "            return Judgement(Standing.PROTECTED, ClaimReason.CONTAINER_ALIVE, judgement.detail)\n",
        "            return judgement\n",
    ),
    Rule(
        "4.2 a candidate's sandbox does not protect",
        _PODS,
        "        alive = self._alive(pod, containers_only=True)\n",
        "        alive = self._alive(pod, containers_only=False)\n",
    ),
    Rule(
        "4.2 a candidate of which the host cannot tell is unknown",
        _PODS,
        "        if alive is Finding.UNKNOWN and judgement.standing is Standing.CANDIDATE:\n",
        "        if alive is None:\n",
    ),
    Rule(
        "S8 the latest failure of an attempt counts",
        _PODS,
        "return max(ends, default=None), min(known)",
        "return min(ends, default=None), min(known)",
    ),
    Rule(
        "S8 a failure of which any time is missing has none",
        _PODS,
        "            if termination is None or not termination.finished_usec or termination.finished_usec < 0:\n                return None, None\n",
        "            if termination is None or not termination.finished_usec or termination.finished_usec < 0:\n                continue\n",
    ),
    Rule(
        "S9 the strongest claim of a card decides",
        _CLAIMS,
        "    return min(standings, key=_STRENGTH.__getitem__, default=Standing.NONE)\n",
        "    return max(standings, key=_STRENGTH.__getitem__, default=Standing.NONE)\n",
    ),
    Rule("S9 the latest failure of a card's candidates counts", _CLAIMS, "return max((claim.failed_at", "return min((claim.failed_at"),
    Rule(
        "S9 a card of which nothing was asked is unknown",
        _SNAPSHOT,
        "floor = Standing.UNKNOWN if is_doubtful or claims is None else Standing.NONE",
        "floor = Standing.UNKNOWN if is_doubtful else Standing.NONE",
    ),
    Rule(
        "4.4 a protecting claim of a card begins waits anew",
        _SNAPSHOT,
        "                self._ledger.reset(Reset(Scope.CARD, claim.reason.value, card.name, claim.unless_clean))\n",
        "                pass\n",
    ),
    Rule(
        "4.4 an unknown claim of a card begins waits anew",
        _SNAPSHOT,
        "                self._ledger.take(Scope.CARD, claim.reason.value, claim.uid, claim.sentence, card.name)\n",
        "                pass\n",
    ),
)

RULES: Final = (*_SOURCES, *_GONE, *_NAMED, *_ENDED)
