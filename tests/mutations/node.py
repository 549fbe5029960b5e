"""DESIGN 4.2: the Node is this host."""

from typing import Final

from mutations.files import KUBECONFIG, KUBELET, NODE, OWNERS, READINGS, SNAPSHOT, THIS_HOST
from mutations.rule import Rule


def _refusal(name: str, condition: str, subject: str = "node") -> Rule:
    """Return a rule that is one `if` before a refusal of node.py."""
    return Rule(name, NODE, f"    if {condition}:\n        yield", f"    if {subject} is None:\n        yield")


RULES: Final = (
    Rule("4.2 the Node is answered with 200", READINGS, "        elif answer.status != 200:\n", "        elif not answer:\n"),
    Rule(
        "4.2 no answer is no evidence",
        READINGS,
        "        elif not answer.status:\n            self._ledger.take_look(Look.NO_ANSWER, source)\n",
        "        elif not answer.status:\n            pass\n",
    ),
    Rule(
        "4.2 a failed question is no evidence",
        READINGS,
        "            self._ledger.take_failure(source, answer.failure)\n",
        "            pass\n",
    ),
    Rule(
        "4.2 a body that is odd is no evidence",
        READINGS,
        "                self._ledger.take(Scope.NODE, error.problem.value, source, str(error))\n",
        "                del error\n",
    ),
    Rule("4.2 the Node is the one of our name", NODE, '    if metadata.text("name") != name:\n', "    if metadata is None:\n"),
    Rule(
        "4.2 the Lease is the one of our Node",
        NODE,
        '    if (metadata.text("namespace"), metadata.text("name")) != (_LEASES, name):\n',
        "    if metadata is None:\n",
    ),
    _refusal("4.2 the Node's UID is the one that is known", "identity is NodeIdentity.CHANGED"),
    _refusal("4.2 a Node that is being deleted does not count", "node.deleting"),
    _refusal("4.2 a host that does not know itself is no Node", 'not host.boot_id or not host.machine_ids - {""}'),
    _refusal("4.2 bootID is ours", "node.boot_id != host.boot_id"),
    _refusal("4.2 machineID is ours", "not node.machine_id or node.machine_id not in host.machine_ids"),
    Rule("4.2 an empty machineID is nobody's", NODE, "not node.machine_id or node.machine_id not in", "node.machine_id not in"),
    _refusal("4.2 the Node is Ready", 'node.ready != ("True",)'),
    _refusal("4.2 the Node is not tainted out-of-service", "_OUT_OF_SERVICE in node.taints"),
    _refusal("4.2 the Lease's holder is the Node", "lease.holder != node.name"),
    Rule(
        "4.2 the Lease was seen to be renewed",
        NODE,
        "    if sight.changed_at is None:\n        yield Refused(NodeRefusal.LEASE_UNSEEN)\n    elif now",
        "    if sight.changed_at is not None and now",
    ),
    Rule("4.2 the Lease was renewed within 60 s", NODE, "    elif now - sight.changed_at > bounds.lease:\n", "    elif now < 0:\n"),
    Rule(
        "4.2 60 s of a Lease, 300 s of a kubelet",
        NODE,
        "    lease: float = 60.0\n    kubelet: float = 300.0\n",
        "    lease: float = 120.0\n    kubelet: float = 60.0\n",
    ),
    Rule(
        "4.2 the first sight of a Lease is no renewal",
        NODE,
        "        return LeaseSight(lease.renewed)\n",
        "        return LeaseSight(lease.renewed, now)\n",
    ),
    Rule(
        "4.2 a renewal is as old as the look before at the most",
        SNAPSHOT,
        "see_lease(before.lease if is_close else None, self._read.lease, at), at",
        "see_lease(before.lease, self._read.lease, at), at",
    ),
    Rule(
        "4.2 a Lease is no younger than the question",
        SNAPSHOT,
        "        at = min(self._now.monotonic, self._parts.lease.asked_at)\n",
        "        at = self._now.monotonic\n",
    ),
    _refusal("4.2 TLS is verified", "not host.tls_verified", "host"),
    Rule(
        "4.2 TLS is verified for each answer",
        SNAPSHOT,
        "for answer in (parts.node, parts.lease, parts.pods) if answer.status)",
        "for answer in (parts.node,) if answer.status)",
    ),
    Rule(
        "4.2 a kubeconfig that skips verification is refused",
        KUBECONFIG,
        '    if cluster.get("insecure-skip-tls-verify"):\n',
        '    if cluster.get("insecure-skip-tls-verify") == "yes":\n',
    ),
    Rule(
        "4.2 a server without TLS is refused",
        KUBECONFIG,
        'raise ApiError(ApiFault.KUBECONFIG_INSECURE, "server: https is expected")',
        "pass",
    ),
    Rule("4.2 whether a kubelet runs must be readable", NODE, "    if kubelets.doubt:\n", "    if kubelets is None:\n"),
    Rule(
        "4.2 a kubelet holds the socket",
        NODE,
        "    elif not kubelets.processes:\n        yield Refused(NodeRefusal.KUBELET_MISSING)\n",
        "",
    ),
    Rule("4.2 one kubelet alone", NODE, "    elif len(kubelets.processes) > 1:\n", "    elif kubelets is None:\n"),
    Rule("4.2 the same kubelet for 300 s", NODE, "    elif kubelets.same_for < bounds.kubelet:\n", "    elif kubelets is None:\n"),
    Rule(
        "4.2 the time of a kubelet is one without a break",
        SNAPSHOT,
        "sight = before if before is not None and before.process == process else",
        "sight = before if before is not None else",
    ),
    Rule(
        "4.2 a kubelet in doubt is none",
        SNAPSHOT,
        "if scan is None or scan.kubelet is None or scan.doubts:",
        "if scan is None or scan.kubelet is None:",
    ),
    Rule(
        "4.2 a kubelet in doubt makes the node unknown",
        SNAPSHOT,
        "                self._ledger.take_doubt(Source.KUBELET, doubt)\n",
        "                pass\n",
    ),
    Rule("4.2 two kubelets on the host are found", KUBELET, "        if len(processes) > 1:\n", "        if processes is None:\n"),
    Rule("4.2 a kubelet that does not listen is found", KUBELET, "        if silent:\n", "        if silent is None:\n"),
    Rule(
        "4.2 a kubelet that started since the processes were listed is found",
        KUBELET,
        "        self._list_processes()\n        yield from sorted(",
        "        yield from sorted(",
    ),
    Rule(
        "4.2 a kubelet whose first thread is in another network namespace is found",
        KUBELET,
        '                if os.readlink(f"{self._proc}/{pid}/task/{task}/ns/net") == space:\n',
        "                if task is None:\n",
    ),
    Rule(
        "4.2 a socket that is listed under two paths leaves doubt", KUBELET, "        if len(paths) > 1:\n", "        if paths is None:\n"
    ),
    Rule(
        "4.2 a user's listening socket is no kubelet's",
        KUBELET,
        "                if not self._is_roots(pid):\n",
        "                if pid < 0:\n",
    ),
    Rule("4.2 a user's process is no kubelet by its name", KUBELET, "if self._is_roots(pid) and not self._changes_user(pid)]", "]"),
    Rule(
        "4.2 no user's path looks like another's socket",
        KUBELET,
        "                return listening_sockets()\n",
        "                return []\n",
    ),
    Rule(
        "4.2 what holds the socket is a kubelet, k3s, rke2 or kubelite",
        KUBELET,
        "        if process.command not in PROGRAMS:\n",
        "        if process is None:\n",
    ),
    Rule(
        "4.2 the kubelet is the same one at the end of its search",
        KUBELET,
        "        if self._started(process.pid) != process.started:\n",
        "        if process is None:\n",
    ),
    Rule(
        "4.2 a host that hides processes shows no kubelet",
        KUBELET,
        "    if (blind := vantage(proc)) is not None:\n",
        "    if (blind := None) is not None:\n",
    ),
    Rule(
        "4.2 a directory that others may write is no kubelet's",
        KUBELET,
        "    if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):\n",
        "    if facts is None:\n",
    ),
    Rule("4.2 a word that every new machine has is no machine id", THIS_HOST, "_ID.fullmatch(text) is not None and len", "len"),
    Rule("4.2 an id of one digit is no machine id", THIS_HOST, ' and len(set(text.lower()) - {"-"}) > 1', ""),
    Rule("4.2 a changed UID is adopted after a reboot", NODE, "if is_rebooted or is_restarted or accepted", "if is_restarted or accepted"),
    Rule(
        "4.2 a changed UID is adopted after a kubelet restart",
        NODE,
        "if is_rebooted or is_restarted or accepted",
        "if is_rebooted or accepted",
    ),
    Rule("4.2 a changed UID is adopted by AcceptNode", NODE, " or accepted == node.uid:", ":"),
    Rule("4.2 AcceptNode is for one UID", NODE, "accepted == node.uid", "bool(accepted)"),
    Rule("4.2 a changed UID is not adopted without a reason", NODE, "return NodeIdentity.CHANGED if", "return NodeIdentity.ADOPTED if"),
    Rule("4.2 a Node is not the first where it is lost which was", SNAPSHOT, "self._before.node or self._lost_node()", "self._before.node"),
    Rule("4.2 a lost UID is not adopted without a reason", NODE, "else NodeIdentity.LOST\n", "else NodeIdentity.ADOPTED\n"),
    Rule("4.2 a lost UID is refused", NODE, "    if identity is NodeIdentity.LOST:\n", "    if not identity:\n"),
    Rule("4.2 a Node whose UID is lost may be another's", SNAPSHOT, "        NodeRefusal.UID_LOST,\n", ""),
    Rule(
        "4.2 a host that cannot be read is no reason to adopt",
        NODE,
        "    is_rebooted = bool(host.boot_id) and known",
        "    is_rebooted = known",
    ),
    Rule("4.2 a kubelet in doubt is no reason to adopt", NODE, "bool(kubelets.processes) and not kubelets.doubt and known", "known"),
    Rule(
        "4.2 an adopted Node resets everything",
        SNAPSHOT,
        "            self._ledger.reset(Reset(Scope.NODE, Look.NODE_ADOPTED.value))\n",
        "            pass\n",
    ),
    Rule(
        "4.2 another Node voids first sights",
        SNAPSHOT,
        "before = Memory(self._before.pods, {} if is_void else self._before.sights)",
        "before = Memory(self._before.pods, self._before.sights)",
    ),
    Rule(
        "4.2 another Node voids handshakes",
        SNAPSHOT,
        "        self._handshakes = {} if is_void else before.handshakes\n",
        "        self._handshakes = before.handshakes\n",
    ),
    Rule(
        "4.2 another Node voids the lock",
        SNAPSHOT,
        "        self._lock = None if is_void else before.lock\n",
        "        self._lock = before.lock\n",
    ),
    Rule(
        "4.2 a Node that may be another host's is not taken for ours",
        SNAPSHOT,
        "        if node is None or not node.is_here or self._kubelet is None:\n",
        "        if node is None or self._kubelet is None:\n",
    ),
    Rule(
        "4.2 a Node is not taken for ours while the kubelet is in doubt",
        SNAPSHOT,
        " or self._kubelet is None:\n            return self._known\n",
        ":\n            return self._known\n        if self._kubelet is None:\n"
        '            return KnownNode(node.facts.uid, self._facts.boot_id, "unknown")\n',
    ),
    Rule(
        "4.2 HAMi is not heard on a Node that may be another host's",
        SNAPSHOT,
        "        if self._node is None or not self._node.is_here:\n            return None\n",
        "        if self._node is None:\n            return None\n",
    ),
    Rule(
        "4.2 each refusal of the Node makes the node unknown",
        SNAPSHOT,
        "                self._ledger.take(Scope.NODE, refused.reason.value, Source.NODE, refused.sentence)\n",
        "                pass\n",
    ),
    Rule("4.2 an acceptance ends with its Node", OWNERS, '            self._accepted = ""\n', "            pass\n"),
)
