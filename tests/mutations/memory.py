"""S1 to S3, DESIGN 4.2 and 4.3: the list of Pods, the checkpoint, and Pods that neither has any more."""

from typing import Final

from mutations.files import ALLOCATION, ANSWER, API, BUNDLE, CHECKPOINT, CLAIMS, OWNERS, PODLIST, PODMEMORY, PODS, RECOLLECTION, SNAPSHOT
from mutations.rule import Rule


def _checkpoint(name: str, condition: str, *, indent: str = "    ", subject: str = "True") -> Rule:
    """Return a rule that is one `if` of checkpoint.py, which refuses what the kubelet does not write."""
    return Rule(name, CHECKPOINT, f"{indent}if {condition}:\n", f"{indent}if not {subject}:\n")


_SOURCES: Final = (
    Rule("S1 the Pods are those of this node", API, '{"fieldSelector": f"spec.nodeName={node}"}', '{"limit": "500"}'),
    Rule(
        "S1 the list is a quorum read",
        API,
        '{"fieldSelector": f"spec.nodeName={node}"}',
        '{"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"}',
    ),
    Rule("S1 a list without a version is of no moment", PODLIST, '    if version in ("", "0"):\n', "    if version is None:\n"),
    Rule("S1 a list that goes on is none", PODLIST, '    if metadata.text("continue") or metadata', "    if metadata"),
    Rule("S1 a list with items that remain is none", PODLIST, ' or metadata.value.get("remainingItemCount") not in (None, 0):', ":"),
    Rule("S1 a list without items is none", PODLIST, '        answer.odd("items", "it is missing")\n', "        pass\n"),
    Rule("S1 a list with a Pod of another node is none", PODLIST, '    if spec.text("nodeName") != node:\n', "    if spec is None:\n"),
    Rule("S1 a list with a UID twice is none", PODLIST, "        if pod.uid in uids:\n", "        if pod in uids:\n"),
    Rule("S1 a list with a name twice is none", PODLIST, "        if (pod.namespace, pod.name) in names:\n", "        if pod in names:\n"),
    Rule("S1 a Pod is as before only if its text is", PODMEMORY, " and text.startswith(known[place].text, at):", ":"),
    Rule("S1 what is remembered is of its own node", PODMEMORY, "self._items if node == self._node else ()", "self._items"),
    Rule("S1 a list that is put together has a UID once", PODMEMORY, "    refuse_twins(pods)\n", ""),
    Rule(
        "S1 a list that is put together is whole",
        PODMEMORY,
        "read_version(envelope)",
        'envelope.object("metadata").text("resourceVersion")',
    ),
    Rule("S1 nothing but a brace is behind the list", PODMEMORY, ' or text[at + 1 :].strip(_WHITE) != "}":', ":"),
    Rule("4.4 that no vNPU is idle any more is judged", OWNERS, "if is_wanted or was_wanted or asked", "if is_wanted or asked"),
    Rule("4.5 a look before a destruction reads every Pod afresh", OWNERS, ", read_pods=parse_pod_list)", ")"),
    Rule("S1 another kind of object is no answer", ANSWER, 'if fields.text("kind") != kind or fields', "if fields"),
    Rule("S1 another version of the API is no answer", ANSWER, ' or fields.text("apiVersion") != version:', ":"),
    Rule("S1 a key twice is no answer", ANSWER, "    if len(result) != len(pairs):\n", "    if result is None:\n"),
    Rule(
        "S5 a Pod without a UID is no Pod",
        PODLIST,
        '    uid = metadata.needed("uid")\n    if not _UID.fullmatch(uid):\n',
        '    uid = metadata.text("uid")\n    if uid is None:\n',
    ),
    _checkpoint("S2 a checkpoint is JSON with each key once", "len(result) != len(pairs)", subject="pairs or True"),
    Rule(
        "S2 a checkpoint has Data",
        CHECKPOINT,
        "        raise CheckpointError(Defect.NO_DATA)\n",
        '        return {"PodDeviceEntries": None, "RegisteredDevices": None}\n',
    ),
    Rule(
        "S2 a checkpoint has entries and registered devices",
        CHECKPOINT,
        "        if key not in content:\n            raise CheckpointError(defect)\n",
        "        content.setdefault(key, None)\n",
    ),
    Rule("S2 no registered NPU is a defect", CHECKPOINT, "return () if known else (Defect.NOT_REGISTERED,)", "return ()"),
    _checkpoint("S2 an entry says of which Pod it is", "not row.pod_uid", indent="        ", subject="row"),
    _checkpoint("S2 an entry says of which resource it is", "not row.resource", indent="        ", subject="row"),
    _checkpoint("S2 an entry stands there once", "key in met", indent="        ", subject="row"),
    _checkpoint("4.2 the checksum is verified", "computed != claimed"),
    Rule("4.2 a key that is not known is refused", CHECKPOINT, "    if not entry.keys() <= _ENTRY_KEYS:\n", "    if not entry:\n"),
    Rule("4.2 a type that the kubelet does not write is refused", CHECKPOINT, "    if type(value) is not kind:\n", "    if value is _T:\n"),
    Rule("4.2 both forms at once are refused", CHECKPOINT, "    if 0 < lists < len(rows):\n", "    if lists < 0:\n"),
    Rule(
        "4.2 what sets the variables counts, whatever its resource is called",
        CHECKPOINT,
        'not is_npu and not any(sign in (row.response or b"") for sign in _SIGNS)',
        "not is_npu",
    ),
    Rule(
        "4.2 the plugin's answer is decoded",
        ALLOCATION,
        "    return Allocation(cards, template)\n",
        "    return Allocation(None, template)\n",
    ),
    Rule(
        "4.3 an answer that names a node hands over what is there",
        ALLOCATION,
        "                    handed |= by_path(path)\n",
        "",
    ),
    Rule(
        "4.3 an answer with names of CDI may hand over what is there",
        ALLOCATION,
        "                    handed |= by_cdi(name, others=ANY)\n",
        "                    pass\n",
    ),
    Rule(
        "4.3 an annotation with names of CDI may hand over what is there",
        ALLOCATION,
        "                    handed |= by_cdi(text, others=ANY)\n",
        "                    pass\n",
    ),
    Rule("4.3 a list of cards that is none may name a vNPU", ALLOCATION, "Oddity.UNREADABLE, ANY)", "Oddity.UNREADABLE)"),
    Rule(
        "4.3 what a later version says may hand over anything",
        ALLOCATION,
        "                handed |= ANY\n",
        "                is_plain = False\n",
    ),
    Rule(
        "4.2 a resource that hands out nodes counts, whatever it is called", CHECKPOINT, ', b"/davinci", b"/vdavinci", b"ascend.com/")', ")"
    ),
    Rule(
        "4.2 an answer that names devices otherwise may be any card",
        ALLOCATION,
        "    if handed != NOTHING or not is_plain:\n",
        "    if is_plain is None:\n",
    ),
    Rule(
        "4.2 an answer that cannot be decoded may be any card",
        ALLOCATION,
        "        return Allocation(None, oddity=Oddity.UNDECODABLE, handed=ANY)\n",
        "        return Allocation(frozenset({0}))\n",
    ),
    Rule(
        "4.2 a list of cards that is none may be any card",
        BUNDLE,
        "        else:\n            return None\n    return frozenset(cards)",
        "        else:\n            continue\n    return frozenset(cards)",
    ),
    Rule(
        "4.2 every Pod that was seen with cards is remembered",
        PODS,
        "        self._remember(pod.uids, resolution.named | by_environment | by_node, resolution.resources)\n",
        "",
    ),
    Rule("4.2 cards once seen are not lost", PODS, "seen = cards if before is None else cards | before.cards", "seen = cards"),
    Rule(
        "4.2 a look that is not whole still learns what the checkpoint says",
        SNAPSHOT,
        "        return with_seen(kept, seen_of(self._read.allocations))\n",
        "        return kept\n",
    ),
    Rule(
        "4.2 a look that is not whole still learns what the list says",
        SNAPSHOT,
        "            kept = with_seen(kept, self._joined.pods.items())\n",
        "            pass\n",
    ),
    Rule(
        "4.2 a look that is not whole makes no Pod gone",
        SNAPSHOT,
        "        if self._is_whole and self._joined is not None:\n",
        "        if self._joined is not None:\n",
    ),
    Rule(
        "4.2 the memory is of one boot",
        SNAPSHOT,
        "self._still_true(known) if is_of_boot else Recollection(node=known.node)",
        "self._still_true(known)",
    ),
    Rule(
        "4.2 a memory that is lost is no empty one",
        RECOLLECTION,
        "        return Recollection(loss=Loss(str(error)))\n",
        "        return Recollection()\n",
    ),
    Rule(
        "4.2 after a loss nothing is known for as long as a Pod could protect",
        SNAPSHOT,
        "        self._ledger.take_look(Look.MEMORY_LOST, Source.MEMORY, loss.detail)\n",
        "",
    ),
    Rule("4.2 a loss lasts as long as a Pod that is gone", RECOLLECTION, " and now - self.since >= bounds.gone_seconds\n", "\n"),
    Rule("4.2 too many Pods to be remembered are a loss", RECOLLECTION, "    if len(known.pods) <= MAX_PODS:\n", "    if known:\n"),
    Rule(
        "4.2 a memory that could not be saved is unknown",
        SNAPSHOT,
        "            self._ledger.take_look(Look.MEMORY_UNSAVED, Source.MEMORY, unsaved)\n",
        "            pass\n",
    ),
    Rule(
        "4.2 the memory is saved at each look",
        OWNERS,
        "        await self._save(self._known)\n        return Seen(",
        "        return Seen(",
    ),
    Rule(
        "4.2 the checkpoint is read between whole looks",
        OWNERS,
        "            self._known = see_allocations(known, allocations_of(reading.checkpoint))\n",
        "            pass\n",
    ),
    Rule(
        "4.2 what is kept and cannot be read yet is not taken for lost",
        OWNERS,
        "                self._known = await self._load()\n",
        "                self._known = await self._load() or Recollection()\n",
    ),
    Rule(
        "4.2 what was seen of Pods survives a restart",
        RECOLLECTION,
        "for uid, pod in sorted(known.pods.items())},",
        "for uid, pod in sorted(known.pods.items()) if not uid},",
    ),
)

_GONE: Final = (
    Rule(
        "S3 a Pod that only the checkpoint has protects its cards",
        PODS,
        "        self._claim(uid, self._all(resolution) | self._handed(allocations), Judgement(Standing.PROTECTED, reason))\n",
        "",
    ),
    Rule(
        "S3 a gone Pod protects until it was gone in three looks",
        PODS,
        "if looks >= self._bounds.gone_looks and self._now",
        "if self._now",
    ),
    Rule(
        "S3 a gone Pod protects until it was gone for 10 minutes",
        PODS,
        " and self._now.monotonic - since >= self._bounds.gone_seconds:",
        ":",
    ),
    Rule(
        "S3 three looks and 10 minutes",
        CLAIMS,
        "gone_seconds: float = 600.0\n    gone_looks: int = 3\n",
        "gone_seconds: float = 60.0\n    gone_looks: int = 1\n",
    ),
    Rule(
        "S3 a gone Pod protects no longer than that",
        PODS,
        "            if looks >= self._bounds.gone_looks and self",
        "            if not known and self",
    ),
    Rule(
        "S3 an entry that stays for days protects no second time",
        PODS,
        "                    self._remembered[uid] = replace(known, gone_looks=self._bounds.gone_looks)\n",
        "                    pass\n",
    ),
    Rule(
        "S3 a Pod seen again begins anew",
        PODS,
        "                self._remembered[uid] = Remembered(seen, resources)\n",
        "                self._remembered[uid] = replace(before or Remembered(), cards=seen, resources=resources)\n",
    ),
    Rule(
        "S3 a card of a gone Pod that is not here blocks the node",
        PODS,
        "        self._doubt(uid, resolution.problems)\n\n    # --- what is found",
        "\n    # --- what is found",
    ),
    Rule(
        "4.3 a Pod that this boot's memory has protects",
        PODS,
        "for uid in sorted((allocations.keys() | memory.pods.keys()) - known):",
        "for uid in sorted(allocations.keys() - known):",
    ),
    Rule(
        "4.3 a gone Pod protects until the host shows that it is gone",
        PODS,
        "        if self._host.pod(uid, containers_only=False) is Finding.CLEAN:\n",
        "        if uid:\n",
    ),
    Rule(
        "4.3 of a gone Pod its sandbox counts",
        PODS,
        "        if self._host.pod(uid, containers_only=False) is Finding.CLEAN:\n",
        "        if self._host.pod(uid, containers_only=True) is Finding.CLEAN:\n",
    ),
    Rule(
        "4.3 a look that is not whole begins a gone Pod's time anew",
        SNAPSHOT,
        "        kept = still_there(self._before.pods)\n",
        "        kept = dict(self._before.pods)\n",
    ),
    Rule(
        "4.3 a mirror Pod is known by its configuration's hash",
        PODLIST,
        "    if _MIRROR not in annotations:\n",
        "    if annotations is not None:\n",
    ),
    Rule("4.3 only a mirror Pod is known by a hash", PODLIST, "    if _MIRROR not in annotations:\n", "    if annotations is None:\n"),
    Rule(
        "4.3 nobody speaks for another Pod by an annotation",
        PODLIST,
        'if _STATIC_UID.fullmatch(text := annotations.get(key, "")))',
        'if (text := annotations.get(key, "")))',
    ),
)

RULES: Final = (*_SOURCES, *_GONE)
