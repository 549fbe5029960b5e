"""DESIGN 4.2: the Node is this host, its cards are HAMi's, and nobody else hands them out."""

from typing import Final

from mutations.rule import Rule

_NODE: Final = "src/devward/cluster/node.py"
_HAMI: Final = "src/devward/cluster/hami.py"
_MANAGERS: Final = "src/devward/cluster/managers.py"
_SNAPSHOT: Final = "src/devward/cluster/snapshot.py"
_READINGS: Final = "src/devward/cluster/readings.py"
_KUBECONFIG: Final = "src/devward/cluster/kubeconfig.py"
_KUBELET: Final = "src/devward/cluster/kubelet.py"
_SIGNS: Final = "src/devward/cluster/kubelet_signs.py"
_THIS_HOST: Final = "src/devward/cluster/this_host.py"
_DRIVERS: Final = "src/devward/cluster/drivers.py"
_WITNESS: Final = "src/devward/cluster/witness.py"
_LIMITS: Final = "src/devward/reclaim/limits.py"
_WATCHER: Final = "src/devward/cluster/owners.py"

ASKED: Final = {
    _NODE: ("test_cluster_node.py", "test_snapshot_gates.py"),
    _HAMI: ("test_cluster_hami.py", "test_snapshot_gates.py"),
    _MANAGERS: ("test_cluster_managers.py", "test_snapshot_gates.py"),
    _SNAPSHOT: ("test_snapshot_gates.py", "test_snapshot_memory.py", "test_snapshot_properties.py"),
    _READINGS: ("test_snapshot_gates.py", "test_owners_snapshot.py"),
    _KUBECONFIG: ("test_api_credentials.py", "test_api.py"),
    _KUBELET: ("test_kubelet.py",),
    _SIGNS: ("test_npu_outfit.py", "test_kubelet.py"),
    _THIS_HOST: ("test_this_host.py",),
    _DRIVERS: ("test_drivers.py",),
    _WITNESS: ("test_witness.py", "test_owners_gatherer.py"),
    _LIMITS: ("test_reclaim_limits.py",),
    _WATCHER: ("test_owners_watcher.py",),
}


def _refusal(name: str, condition: str, subject: str = "node") -> Rule:
    """Return a rule that is one `if` before a refusal of node.py."""
    return Rule(name, _NODE, f"    if {condition}:\n        yield", f"    if {subject} is None:\n        yield")


_THIS_HOSTS: Final = (
    Rule("4.2 the Node is answered with 200", _READINGS, "        elif answer.status != 200:\n", "        elif not answer:\n"),
    Rule(
        "4.2 no answer is no evidence",
        _READINGS,
        "        elif not answer.status:\n            self._ledger.take_look(Look.NO_ANSWER, source)\n",
        "        elif not answer.status:\n            pass\n",
    ),
    Rule(
        "4.2 a failed question is no evidence",
        _READINGS,
        "            self._ledger.take_failure(source, answer.failure)\n",
        "            pass\n",
    ),
    Rule(
        "4.2 a body that is odd is no evidence",
        _READINGS,
        "                self._ledger.take(Scope.NODE, error.problem.value, source, str(error))\n",
        "                del error\n",
    ),
    Rule("4.2 the Node is the one of our name", _NODE, '    if metadata.text("name") != name:\n', "    if metadata is None:\n"),
    Rule(
        "4.2 the Lease is the one of our Node",
        _NODE,
        '    if (metadata.text("namespace"), metadata.text("name")) != (_LEASES, name):\n',
        "    if metadata is None:\n",
    ),
    _refusal("4.2 the Node's UID is the one that is known", "identity is NodeIdentity.CHANGED"),
    _refusal("4.2 a Node that is being deleted does not count", "node.deleting"),
    _refusal("4.2 a host that does not know itself is no Node", 'not host.boot_id or not host.machine_ids - {""}'),
    _refusal("4.2 bootID is ours", "node.boot_id != host.boot_id"),
    _refusal("4.2 machineID is ours", "not node.machine_id or node.machine_id not in host.machine_ids"),
    Rule("4.2 an empty machineID is nobody's", _NODE, "not node.machine_id or node.machine_id not in", "node.machine_id not in"),
    _refusal("4.2 the Node is Ready", 'node.ready != ("True",)'),
    _refusal("4.2 the Node is not tainted out-of-service", "_OUT_OF_SERVICE in node.taints"),
    _refusal("4.2 the Lease's holder is the Node", "lease.holder != node.name"),
    Rule(
        "4.2 the Lease was seen to be renewed",
        _NODE,
        "    if sight.changed_at is None:\n        yield Refused(NodeRefusal.LEASE_UNSEEN)\n    elif now",
        "    if sight.changed_at is not None and now",
    ),
    Rule("4.2 the Lease was renewed within 60 s", _NODE, "    elif now - sight.changed_at > bounds.lease:\n", "    elif now < 0:\n"),
    Rule(
        "4.2 60 s of a Lease, 300 s of a kubelet",
        _NODE,
        "    lease: float = 60.0\n    kubelet: float = 300.0\n",
        "    lease: float = 120.0\n    kubelet: float = 60.0\n",
    ),
    Rule(
        "4.2 the first sight of a Lease is no renewal",
        _NODE,
        "        return LeaseSight(lease.renewed)\n",
        "        return LeaseSight(lease.renewed, now)\n",
    ),
    Rule(
        "4.2 a renewal is as old as the look before at the most",
        _SNAPSHOT,
        "see_lease(before.lease if is_close else None, self._read.lease, at), at",
        "see_lease(before.lease, self._read.lease, at), at",
    ),
    Rule(
        "4.2 a Lease is no younger than the question",
        _SNAPSHOT,
        "        at = min(self._now.monotonic, self._parts.lease.asked_at)\n",
        "        at = self._now.monotonic\n",
    ),
    _refusal("4.2 TLS is verified", "not host.tls_verified", "host"),
    Rule(
        "4.2 TLS is verified for each answer",
        _SNAPSHOT,
        "for answer in (parts.node, parts.lease, parts.pods) if answer.status)",
        "for answer in (parts.node,) if answer.status)",
    ),
    Rule(
        "4.2 a kubeconfig that skips verification is refused",
        _KUBECONFIG,
        '    if cluster.get("insecure-skip-tls-verify"):\n',
        '    if cluster.get("insecure-skip-tls-verify") == "yes":\n',
    ),
    Rule(
        "4.2 a server without TLS is refused",
        _KUBECONFIG,
        'raise ApiError(ApiFault.KUBECONFIG_INSECURE, "server: https is expected")',
        "pass",
    ),
    Rule("4.2 whether a kubelet runs must be readable", _NODE, "    if kubelets.doubt:\n", "    if kubelets is None:\n"),
    Rule(
        "4.2 a kubelet holds the socket",
        _NODE,
        "    elif not kubelets.processes:\n        yield Refused(NodeRefusal.KUBELET_MISSING)\n",
        "",
    ),
    Rule("4.2 one kubelet alone", _NODE, "    elif len(kubelets.processes) > 1:\n", "    elif kubelets is None:\n"),
    Rule("4.2 the same kubelet for 300 s", _NODE, "    elif kubelets.same_for < bounds.kubelet:\n", "    elif kubelets is None:\n"),
    Rule(
        "4.2 the time of a kubelet is one without a break",
        _SNAPSHOT,
        "sight = before if before is not None and before.process == process else",
        "sight = before if before is not None else",
    ),
    Rule(
        "4.2 a kubelet in doubt is none",
        _SNAPSHOT,
        "if scan is None or scan.kubelet is None or scan.doubts:",
        "if scan is None or scan.kubelet is None:",
    ),
    Rule(
        "4.2 a kubelet in doubt makes the node unknown",
        _SNAPSHOT,
        "                self._ledger.take_doubt(Source.KUBELET, doubt)\n",
        "                pass\n",
    ),
    Rule("4.2 two kubelets on the host are found", _KUBELET, "        if len(processes) > 1:\n", "        if processes is None:\n"),
    Rule("4.2 a kubelet that does not listen is found", _KUBELET, "        if silent:\n", "        if silent is None:\n"),
    Rule(
        "4.2 what holds the socket is a kubelet, k3s, rke2 or kubelite",
        _KUBELET,
        "        if process.command not in PROGRAMS:\n",
        "        if process is None:\n",
    ),
    Rule(
        "4.2 the kubelet is the same one at the end of its search",
        _KUBELET,
        "        if self._started(process.pid) != process.started:\n",
        "        if process is None:\n",
    ),
    Rule(
        "4.2 a host that hides processes shows no kubelet",
        _KUBELET,
        "    if (blind := vantage(proc)) is not None:\n",
        "    if (blind := None) is not None:\n",
    ),
    Rule(
        "4.2 a directory that others may write is no kubelet's",
        _KUBELET,
        "    if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):\n",
        "    if facts is None:\n",
    ),
    Rule("4.2 a word that every new machine has is no machine id", _THIS_HOST, "form.fullmatch(text) is not None and len", "len"),
    Rule("4.2 an id of one digit is no machine id", _THIS_HOST, ' and len(set(text.lower()) - {"-"}) > 1', ""),
    Rule("4.2 a changed UID is adopted after a reboot", _NODE, "if is_rebooted or is_restarted or accepted", "if is_restarted or accepted"),
    Rule(
        "4.2 a changed UID is adopted after a kubelet restart",
        _NODE,
        "if is_rebooted or is_restarted or accepted",
        "if is_rebooted or accepted",
    ),
    Rule("4.2 a changed UID is adopted by AcceptNode", _NODE, " or accepted == node.uid else", " else"),
    Rule("4.2 AcceptNode is for one UID", _NODE, "accepted == node.uid", "bool(accepted)"),
    Rule("4.2 a changed UID is not adopted without a reason", _NODE, "else NodeIdentity.CHANGED\n", "else NodeIdentity.ADOPTED\n"),
    Rule(
        "4.2 a host that cannot be read is no reason to adopt",
        _NODE,
        "    is_rebooted = bool(host.boot_id) and known",
        "    is_rebooted = known",
    ),
    Rule("4.2 a kubelet in doubt is no reason to adopt", _NODE, "bool(kubelets.processes) and not kubelets.doubt and known", "known"),
    Rule(
        "4.2 an adopted Node resets everything",
        _SNAPSHOT,
        "            self._ledger.reset(Reset(Scope.NODE, Look.NODE_ADOPTED.value))\n",
        "            pass\n",
    ),
    Rule(
        "4.2 another Node voids first sights",
        _SNAPSHOT,
        "before = Memory(self._before.pods, {} if is_void else self._before.sights)",
        "before = Memory(self._before.pods, self._before.sights)",
    ),
    Rule(
        "4.2 another Node voids handshakes",
        _SNAPSHOT,
        "        self._handshakes = {} if is_void else before.handshakes\n",
        "        self._handshakes = before.handshakes\n",
    ),
    Rule(
        "4.2 another Node voids the lock",
        _SNAPSHOT,
        "        self._lock = None if is_void else before.lock\n",
        "        self._lock = before.lock\n",
    ),
    Rule(
        "4.2 a Node that may be another host's is not taken for ours",
        _SNAPSHOT,
        "        if node is None or not node.is_here or self._kubelet is None:\n",
        "        if node is None or self._kubelet is None:\n",
    ),
    Rule(
        "4.2 a Node is not taken for ours while the kubelet is in doubt",
        _SNAPSHOT,
        "        if node is None or not node.is_here or self._kubelet is None:\n            return self._before.node\n        return KnownNode(node.facts.uid, self._facts.boot_id, self._kubelet.process)",
        '        if node is None or not node.is_here:\n            return self._before.node\n        return KnownNode(node.facts.uid, self._facts.boot_id, self._kubelet.process if self._kubelet is not None else "?")',
    ),
    Rule(
        "4.2 HAMi is not heard on a Node that may be another host's",
        _SNAPSHOT,
        "        if self._node is None or not self._node.is_here:\n            return None\n",
        "        if self._node is None:\n            return None\n",
    ),
    Rule(
        "4.2 each refusal of the Node makes the node unknown",
        _SNAPSHOT,
        "                self._ledger.take(Scope.NODE, refused.reason.value, Source.NODE, refused.sentence)\n",
        "                pass\n",
    ),
    Rule("4.2 an acceptance ends with its Node", _WATCHER, '            self._accepted = ""\n', "            pass\n"),
)

_HAMIS: Final = (
    Rule(
        "4.2 a card is HAMi's if the Node registers its die",
        _HAMI,
        "    if not words:\n        return CardRefusal.REGISTER_MALFORMED if registers.malformed else CardRefusal.NOT_REGISTERED\n",
        "    if not words:\n        return None\n",
    ),
    Rule(
        "4.2 a card that is registered twice is nobody's",
        _HAMI,
        "    if len(words) > 1 or die in registers.repeated:\n",
        "    if not words:\n",
    ),
    Rule("4.2 a card twice in one list is nobody's", _HAMI, "if len(words) > 1 or die in registers.repeated:", "if len(words) > 1:"),
    Rule("4.2 a card in two lists is nobody's", _HAMI, "if len(words) > 1 or die in registers.repeated:", "if die in registers.repeated:"),
    Rule(
        "4.2 a list of cards that cannot be read registers none",
        _HAMI,
        '            raise ValueError("a card without an id")\n',
        "            continue\n",
    ),
    Rule("4.2 a handshake is there", _HAMI, "    Liveness.MISSING: CardRefusal.HANDSHAKE_MISSING,\n", ""),
    Rule("4.2 two reports were seen", _HAMI, "    Liveness.UNPROVEN: CardRefusal.HANDSHAKE_UNPROVEN,\n", ""),
    Rule("4.2 the reports are different ones", _HAMI, "    if text in before.reports:\n", "    if text == '':\n"),
    Rule("4.2 an old report again is no new one", _HAMI, "    if text in before.reports:\n", "    if text == before.reports[-1]:\n"),
    Rule(
        "4.2 the reports are within 5 minutes", _HAMI, "moved = now if now - before.seen_at <= HANDSHAKE_SECONDS else None", "moved = now"
    ),
    Rule("4.2 the last report is not older than 5 minutes", _HAMI, "    Liveness.SILENT: CardRefusal.HANDSHAKE_SILENT,\n", ""),
    Rule("4.2 Deleted_ means unmanaged", _HAMI, "    Liveness.DELETED: CardRefusal.HANDSHAKE_DELETED,\n", ""),
    Rule(
        "4.2 a report after Deleted_ is a first one",
        _HAMI,
        "if before is None or before.other is not None or not before.reports:",
        "if before is None or not before.reports:",
    ),
    Rule("4.2 Requesting_ is neutral", _HAMI, "        return before or Handshake()\n", "        return Handshake(Liveness.DELETED)\n"),
    Rule(
        "4.2 Requesting_ is no report",
        _HAMI,
        "        return before or Handshake()\n",
        "        return Handshake(None, (text,), now, now)\n",
    ),
    Rule("4.2 a handshake of another form means unmanaged", _HAMI, "    Liveness.ODD: CardRefusal.HANDSHAKE_ODD,\n", ""),
    Rule(
        "4.2 a template is HAMi's for the chip",
        _HAMI,
        "return None if is_hamis_template(chip_name, template) else",
        "return None if template else",
    ),
    Rule(
        "4.2 a handshake is as old as the question",
        _SNAPSHOT,
        "min(self._now.monotonic, self._parts.node.asked_at))",
        "self._now.monotonic)",
    ),
    Rule(
        "4.2 without a Node of this host no card is HAMi's",
        _SNAPSHOT,
        "is_managed=self._registers is not None and unmanaged is None,",
        "is_managed=unmanaged is None,",
    ),
    Rule(
        "4.2 a card that is not HAMi's begins waits anew",
        _SNAPSHOT,
        "            self._ledger.reset(Reset(Scope.CARD, unmanaged.value, card.name))\n",
        "            pass\n",
    ),
    Rule(
        "4.5.5 unmanaged cards do not count for the breaker's half",
        _LIMITS,
        "look.reach.selects(card) and (card.is_managed or look.reach.manage is Manage.ALL)",
        "look.reach.selects(card)",
    ),
)

_OTHERS: Final = (
    Rule(
        "4.2 huawei.com/AscendReal is a sign",
        _MANAGERS,
        '{"huawei.com/AscendReal", "huawei.com/kltDev", "huawei.com/npu-core"})\n#',
        '{"huawei.com/kltDev", "huawei.com/npu-core"})\n#',
    ),
    Rule("4.2 huawei.com/kltDev is a sign", _MANAGERS, '"huawei.com/kltDev", ', ""),
    Rule("4.2 huawei.com/npu-core is a sign", _MANAGERS, ', "huawei.com/npu-core"})\n#', "})\n#"),
    Rule(
        "4.2 ids of Huawei's own plugin are a sign",
        _MANAGERS,
        "key.startswith(_HUAWEI) and any(FOREIGN_ID.fullmatch(part.strip())",
        "key.startswith(_HUAWEI) and any(not part.strip()",
    ),
    Rule(
        "4.2 a value in HAMi's grammar is HAMi's",
        _MANAGERS,
        "        elif key.startswith(_HUAWEI) and any(",
        "        elif key.startswith(_HUAWEI) or any(",
    ),
    Rule(
        "4.2 resource huawei.com/Ascend910 is a sign",
        _MANAGERS,
        '{"huawei.com/Ascend910", "huawei.com/npu-core"}',
        '{"huawei.com/npu-core"}',
    ),
    Rule(
        "4.2 resource huawei.com/npu-core is a sign",
        _MANAGERS,
        '{"huawei.com/Ascend910", "huawei.com/npu-core"}',
        '{"huawei.com/Ascend910"}',
    ),
    Rule("4.2 resources of vNPUs that were made beforehand are a sign", _MANAGERS, " or _FOREIGN_SLICE.fullmatch(name))", ")"),
    Rule(
        "4.2 a name that HAMi uses too is never a sign",
        _MANAGERS,
        '{"huawei.com/Ascend910", "huawei.com/npu-core"}',
        '{"huawei.com/Ascend910", "huawei.com/npu-core", "huawei.com/Ascend310P"}',
    ),
    Rule("4.2 signs on the Node count", _MANAGERS, '    yield from _of_annotations("node", node.annotations or {})\n', ""),
    Rule("4.2 resources of the Node count", _MANAGERS, '    yield from _of_resources("node", node.resources)\n', "    return\n"),
    Rule("4.2 signs on Pods count", _MANAGERS, "    yield from _of_annotations(where, pod.annotations or {})\n", ""),
    Rule("4.2 resources of Pods count", _MANAGERS, "        yield from _of_resources(where, container.resources)\n", "        pass\n"),
    Rule("4.2 registered resources count", _MANAGERS, '    yield from _of_resources("checkpoint", registered)\n', ""),
    Rule("4.2 allocated resources count", _MANAGERS, '        yield from _of_resources("checkpoint", (allocation.resource,))\n', ""),
    Rule(
        "4.2 allocated ids count",
        _MANAGERS,
        '        yield from (_foreign("checkpoint", device) for device in allocation.device_ids if FOREIGN_ID.fullmatch(device))\n',
        "",
    ),
    Rule("4.2 an Ascend driver is a sign", _MANAGERS, "if _ASCEND_DRIVER.search(name))", "if not name)"),
    Rule(
        "4.2 a Pod with claims while drivers cannot be read is unknown",
        _MANAGERS,
        "        if drivers.unreadable and pod.has_resource_claims and pod",
        "        if not drivers and pod",
    ),
    Rule(
        "4.2 drivers that were not read are unreadable",
        _SNAPSHOT,
        "self._read.drivers or Drivers(unreadable=True))",
        "self._read.drivers or Drivers())",
    ),
    Rule("4.2 drivers in dra_manager_state are read", _DRIVERS, "        found.take_state(root)\n", ""),
    Rule("4.2 drivers in plugins_registry are read", _DRIVERS, "        found.take_registry(root)\n", ""),
    Rule("4.2 drivers that cannot be read are unreadable", _DRIVERS, "unreadable=bool(found.problems),", "unreadable=False,"),
    Rule(
        "4.2 a sign makes the node unknown",
        _SNAPSHOT,
        "            self._ledger.take(Scope.NODE, sign.reason.value, sign.uid or _SOURCE_OF_SIGN[sign.where], sign.sentence)\n",
        "            pass\n",
    ),
)

RULES: Final = (*_THIS_HOSTS, *_HAMIS, *_OTHERS)
