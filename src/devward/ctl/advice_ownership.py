"""The advice about what keeps devward from knowing who owns the vNPUs, and about the claims of Pods, by the codes of devwardd(8). Pure.

POD_UID stands in commands for the Pod that is asked about; NODE, NODE_UID, SERVER and KUBECONFIG are for the reader to fill in.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from devward.ctl.step import Advice, Step
from devward.text import printable

_PLACEHOLDER: Final = re.compile(r"\b(?:POD_UID|NAMESPACE|NAME)\b")


def _step(text: str, *commands: str) -> Step:
    return Step(text, commands)


_NOBODY_AFFECTED: Final = "Containers that run, and Pods that start, are not affected."
#: What it means, by what it is about.
NODE_UNKNOWN: Final = (
    f"Who owns the vNPUs of this host is not known, so every one of them counts as used, and none is reclaimed. {_NOBODY_AFFECTED}"
)
CARD_UNKNOWN: Final = (
    f"Who owns the vNPUs of the NPU is not known, so every one of them counts as used, and none is reclaimed. {_NOBODY_AFFECTED}"
)
VNPU_UNMANAGED: Final = f"devward only observes the vNPU. {_NOBODY_AFFECTED}"
CARD_UNMANAGED: Final = f"devward only observes the vNPUs of the NPU. {_NOBODY_AFFECTED}"
_CLAIMED: Final = "The vNPUs of the NPU count as used as long as the Pod may have one, and are left alone. The Pod is not affected."
_CANDIDATE: Final = (
    "The Pod does not stand in the way: what its attempts left behind on the NPU belongs to nobody. A new attempt makes a new vNPU."
)
_LATER: Final = f"What is due waits, and loses nothing. {_NOBODY_AFFECTED}"
_ANEW: Final = f"vNPUs that nobody owns are waited for from the beginning, and are left alone meanwhile. {_NOBODY_AFFECTED}"

_ITSELF: Final = _step("Nothing needs to be done: this ends by itself. To see that it did:", "devwardctl status")
_AGAIN: Final = _step("devward asks again by itself. To see whether it was answered:", "devwardctl status")
_KUBELET: Final = _step(
    "See how the kubelet is; on some distributions its unit is k3s, rke2-agent or another.",
    "systemctl status kubelet",
    "journalctl -u kubelet -n 50",
)
_CONFIG: Final = _step(
    "Mend the section cluster of devward.toml, check it, and have it read.", "devwardctl config --check", "devwardctl reload"
)
_PLACE: Final = _step("See which kubeconfig the kubelet uses: it is on its command line.", "ps -C kubelet -o args=")
_KUBECONFIG: Final = _step("See what it says, and mend it.", "kubectl --kubeconfig=KUBECONFIG config view")
_SIGHT: Final = _step(
    "See that it is there, and that nothing hides it from the unit, which sees neither /home nor /root.",
    "ls -lL KUBECONFIG",
    "systemctl cat devward.service",
)
_SERVER: Final = _step("See what answers at the address that the kubeconfig names as its server.", "curl --insecure https://SERVER/livez")
_WAY: Final = _step("See the way there.", "getent hosts SERVER", "ip route get SERVER")
_CONTROL_PLANE: Final = _step("See how the API server and etcd are.", "kubectl get --raw '/readyz?verbose'")
_CERTIFICATE: Final = _step(
    "See until when the kubelet's certificate holds.", "openssl x509 -noout -dates -in /var/lib/kubelet/pki/kubelet-client-current.pem"
)
_REQUESTS: Final = _step("See whether a request for a new one waits for somebody to approve it.", "kubectl get csr")
_MAY: Final = _step(
    "See as whom devward asks, and what that user may do.",
    "kubectl --kubeconfig=KUBECONFIG auth whoami",
    "kubectl --kubeconfig=KUBECONFIG get pods -A --field-selector spec.nodeName=NODE",
)
_NODE: Final = _step("See the Node.", "kubectl describe node NODE")
_LEASE: Final = _step("See who renews its Lease, and when it was done last.", "kubectl -n kube-node-lease get lease NODE -o yaml")
_NODE_NAME: Final = _step(
    "See whether cluster.node_name of devward.toml is right, if it is set.", "devwardctl config", "kubectl get nodes -o wide"
)
_UNIT: Final = _step("See what a drop-in takes away from the unit.", "systemctl cat devward.service")
_JOURNAL: Final = _step("See what devward says of it.", "journalctl -u devward.service -n 50")
_BROKER: Final = _step(
    "See what the broker says.", "systemctl status devward-dcmi.socket devward-dcmi.service", "journalctl -u devward-dcmi.service -n 50"
)
_CHECKPOINT: Final = _step("See the file, and who changed it: only the kubelet should.", "ls -l /var/lib/kubelet/device-plugins")
_CHECKPOINT_ANEW: Final = _step(
    "The kubelet writes it anew when it gives a device to a Pod, or when a device plugin registers. To have that now:",
    "systemctl restart kubelet",
)
_KUBELETS: Final = _step(
    "See which there are: a kubelet in a container, as of kind or k3d, counts too.",
    "ps -eo pid,lstart,args | grep -e kubelet -e k3s -e rke2",
    "ss -xlp | grep kubelet.sock",
)
_FOREIGN: Final = _step(
    "See who else hands out NPUs: the vendor's device plugin or Volcano's, or a driver for dynamic resource allocation.",
    "kubectl get pods -A -o wide --field-selector spec.nodeName=NODE",
    "kubectl get node NODE -o yaml | grep huawei.com",
    "ls /var/lib/kubelet/plugins_registry",
)
_HAMI: Final = _step(
    "See how HAMi's device plugin on this node is, and what it and the scheduler have written to the Node.",
    "kubectl get pods -A -o wide --field-selector spec.nodeName=NODE | grep -i hami",
    "kubectl get node NODE -o yaml | grep hami.io",
)
_POD: Final = _step(
    "See which Pod it is, and how it is.",
    "kubectl get pods -A -o custom-columns=ID:.metadata.uid,NAMESPACE:.metadata.namespace,NAME:.metadata.name | grep POD_UID",
    "kubectl -n NAMESPACE describe pod NAME",
)
_ANNOTATION: Final = _step(
    "Look at the annotations of the Pod whose names begin with hami.io and huawei.com: HAMi writes them. Mend them, or delete the Pod.",
    "kubectl -n NAMESPACE get pod NAME -o jsonpath='{.metadata.annotations}'",
    "kubectl -n NAMESPACE delete pod NAME",
)
_STUCK: Final = _step("Where it is stuck for good, delete it.", "kubectl -n NAMESPACE delete pod NAME")
_CONTAINERS: Final = _step("See its containers on this host.", "crictl ps -a", "crictl pods")
_CARDS: Final = _step("See how the NPUs are.", "devwardctl cards", "devwardctl findings")
_REPORT: Final = _step("If it stays, collect what is needed to find it.", "devwardctl report")
_FINE: Final = _step("Nothing needs to be done.")
_MANUAL: Final = _step("The manual page says what ends it.", "man devwardd")


def _all(means: str, steps: Mapping[str, tuple[Step, ...]]) -> dict[str, Advice]:
    return {code: Advice(means, given) for code, given in steps.items()}


def _each(codes: str, *steps: Step) -> dict[str, tuple[Step, ...]]:
    return dict.fromkeys(codes.split(), steps)


_API: Final = {
    "api-library-missing": (
        _step(
            "Install it, with dnf where there is no apt, and start devwardd anew.",
            "apt-get install python3-kubernetes",
            "systemctl restart devward",
        ),
    ),
    "api-node-name-odd": (_NODE_NAME, _CONFIG),
    "api-kubeconfig-missing": (
        _PLACE,
        _step(
            "Name that file, or another that may list this Node's Pods, as cluster.kubeconfig in devward.toml, and have it read.",
            "devwardctl config --check",
            "devwardctl reload",
        ),
    ),
    "api-kubeconfig-unreadable": (_SIGHT, _CONFIG),
    "api-kubeconfig-odd": (_KUBECONFIG, _AGAIN),
    "api-kubeconfig-insecure": (
        _KUBECONFIG,
        _step("Its server must begin with https, it must name the cluster's certificate authority, and must not skip the verification."),
    ),
    "api-exec-not-allowed": (
        _step("See which program it is.", "kubectl --kubeconfig=KUBECONFIG config view"),
        _step(
            "Allow it with cluster.allow_exec in devward.toml, or name a kubeconfig that needs none, and have it read.",
            "devwardctl config --check",
            "devwardctl reload",
        ),
    ),
    "api-exec-failed": (
        _step("See which program it is, and start it by hand: it must print credentials.", "kubectl --kubeconfig=KUBECONFIG config view"),
        _JOURNAL,
    ),
    "api-credentials-unreadable": (_KUBECONFIG, _UNIT),
    "api-certificate-expired": (_CERTIFICATE, _REQUESTS, _KUBELET),
    "api-unauthorized": (
        _CERTIFICATE,
        _REQUESTS,
        _step("With a token in the kubeconfig, see whether it is still good.", "kubectl --kubeconfig=KUBECONFIG auth whoami"),
        _KUBELET,
    ),
    "api-forbidden": (
        _MAY,
        _step(
            "The kubelet's own credentials may read their own Node and its Pods only: the name of the Node must be theirs. Others need get"
            " on the Node and its Lease, and list on Pods."
        ),
        _NODE_NAME,
    ),
    "api-not-found": (_step("See whether the Node exists, and under which name.", "kubectl get nodes"), _NODE_NAME),
    "api-too-many-requests": (_AGAIN, _CONTROL_PLANE),
    "api-failed": (_JOURNAL, _REPORT),
    **_each("api-credentials-refused", _CERTIFICATE, _REQUESTS, _KUBELET),
    **_each("api-name-unresolved api-unreachable", _WAY, _UNIT, _AGAIN),
    **_each("api-connection-refused api-connect-timeout api-tls-failed", _SERVER, _WAY, _AGAIN),
    **_each("api-server-untrusted api-server-certificate-expired api-server-other-name", _SERVER, _KUBECONFIG),
    **_each("api-answer-timeout api-body-timeout api-closed api-server-error", _CONTROL_PLANE, _AGAIN),
    **_each("api-hung", _WAY, _JOURNAL),
    **_each("api-truncated api-too-large api-not-http api-wrong-type api-redirected api-gone api-odd-status", _SERVER, _KUBECONFIG),
    **_each("no-answer answer-status-odd", _SERVER, _AGAIN),
    **_each("too-large not-json key-twice wrong-kind field-odd no-version paginated other-node uid-twice name-twice", _SERVER, _REPORT),
}
_NODES: Final = {
    "node-uid-changed": (
        _step("See the Node's UID, and since when it is there.", "kubectl get node NODE -o yaml"),
        _step("If it was made anew on purpose, start the kubelet anew.", "systemctl restart kubelet"),
        _step("Or accept it by its UID while the kubelet runs on.", "devwardctl accept-node NODE_UID"),
    ),
    "node-uid-lost": (
        _step("What was kept in the state directory could not be read; its journal says why.", "journalctl -u devward.service"),
        _step("See the Node's UID, and since when it is there.", "kubectl get node NODE -o yaml"),
        _step("If no Node of this name was deleted while the kubelet ran, accept it.", "devwardctl accept-node NODE_UID"),
        _step("Or start the kubelet anew.", "systemctl restart kubelet"),
    ),
    "host-identity-unknown": (_step("See both.", "cat /proc/sys/kernel/random/boot_id /etc/machine-id"), _UNIT),
    "node-machine-differs": (_NODE_NAME, _NODE, _step("See whether another machine has the same id.", "cat /etc/machine-id")),
    "node-not-ready": (_NODE, _KUBELET),
    "node-out-of-service": (
        _NODE,
        _step("Once the node is well, take the taint away.", "kubectl taint node NODE node.kubernetes.io/out-of-service-"),
    ),
    "tls-unverified": (_KUBECONFIG,),
    "kubelet-young": (_ITSELF,),
    "lease-not-yet-seen-renewed": (_ITSELF, _KUBELET),
    **_each("node-deleting", _NODE),
    **_each("node-boot-differs", _KUBELET, _NODE_NAME),
    **_each("lease-not-ours lease-stale", _LEASE, _KUBELET),
}
_LOCAL: Final = {
    **_each("kubelet-missing kubelet-not-found kubelet-not-listening", _KUBELET),
    **_each(
        "kubelet-several several-kubelets",
        _KUBELETS,
        _step("End the one that is not this Node's. As long as both run it cannot be told whose Pods have which NPU."),
    ),
    **_each("several-kubelet-roots several-checkpoints kubelet-root-unknown", _KUBELETS, _CHECKPOINT),
    **_each("kubelet-unknown-program kubelet-holder-unknown", _KUBELETS, _REPORT),
    **_each(
        "kubelet-unreadable kubelet-process-unreadable kubelet-too-many-processes kubelet-directory-unreadable kubelet-directory-unsafe",
        _UNIT,
        _REPORT,
    ),
    **_each("kubelet-changed", _ITSELF, _KUBELET),
    **_each("kubelet-out-of-time", _ITSELF, _UNIT),
    **_each("not-the-host processes-hidden not-privileged proc-unreadable", _UNIT, _BROKER),
    **_each("checkpoint-missing checkpoint-not-registered", _CHECKPOINT, _HAMI),
    **_each("checkpoint-torn", _ITSELF),
    **_each("checkpoint-unreadable checkpoint-not-a-file", _CHECKPOINT, _UNIT),
    **_each(
        "checkpoint-too-large checkpoint-not-json checkpoint-duplicate-key checkpoint-no-data checkpoint-no-entries"
        " checkpoint-no-registered checkpoint-no-checksum checkpoint-missing-key checkpoint-wrong-type checkpoint-bad-text"
        " checkpoint-bad-numa-node checkpoint-bad-response checkpoint-checksum checkpoint-no-pod-uid checkpoint-no-resource"
        " checkpoint-duplicate-entry",
        _CHECKPOINT,
        _CHECKPOINT_ANEW,
    ),
    **_each("checkpoint-unknown-key checkpoint-mixed-forms", _step("See the kubelet's version.", "kubelet --version"), _REPORT),
    "foreign-manager": (
        _FOREIGN,
        _step("Let only one of them hand out NPUs on this node. As long as there are two, nothing that HAMi says of an NPU is proof."),
    ),
    "resource-claims-unreadable": (_step("See the file.", "ls -l /var/lib/kubelet/dra_manager_state"), _UNIT),
    **_each("part-old part-ahead clock-went-back", _ITSELF),
    **_each("part-missing", _JOURNAL),
    **_each("host-unseen", _BROKER),
    **_each("npu-list-in-doubt", _BROKER, _CARDS),
    **_each(
        "memory-lost memory-unsaved", _step("See the state directory and its file system.", "ls -l /var/lib/devward", "df /var/lib/devward")
    ),
}
#: Of one NPU: it cannot be told, or what is told of it is in doubt.
_CARD: Final = {
    "npu-in-doubt": (_CARDS,),
    **_each("still-unsaid reason-unknown state-unknown end-unknown phase-unknown", _POD, _KUBELET),
    **_each("nothing-shown", _POD, _STUCK),
    **_each("container-lost", _POD, _CONTAINERS, _STUCK),
    **_each("host-unreadable", _BROKER, _UNIT),
    "annotation-malformed": (_POD, _ANNOTATION),
    "card-not-known": (_POD, _CARDS, _STUCK),
}
_UNMANAGED: Final = {
    **_each("card-not-registered card-register-malformed card-registered-twice", _HAMI),
    **_each("handshake-missing handshake-silent handshake-deleted handshake-odd", _HAMI),
    **_each("handshake-unproven", _ITSELF, _HAMI),
}
_CLAIMS: Final = {
    **_each("running pending incomplete starting soft-split", _FINE),
    **_each("waiting-unsaid", _ITSELF),
    **_each("deleting", _POD, _KUBELET),
    **_each("container-alive", _POD, _CONTAINERS),
    **_each("ended-but-running ended-but-alive", _POD, _CONTAINERS, _KUBELET),
    "named-in-environment": (
        _POD,
        _step("Let its container request the NPU as a resource, or take ASCEND_VISIBLE_DEVICES out of its environment."),
    ),
    "named-by-node": (
        _POD,
        _step("Let the Pod request its NPU as a resource of HAMi's, or delete the Pod: while it is there its NPUs stay."),
    ),
    "privileged": (_FINE, _step("If the Pod needs no device of the host, let it be unprivileged, and without the host's /dev.")),
    **_each("only-in-checkpoint only-remembered", _step("It ends when this host shows nothing of the Pod any more."), _CONTAINERS),
}

OWNERSHIP_ADVICE: Final[Mapping[str, Advice]] = MappingProxyType(
    {
        **_all(NODE_UNKNOWN, {**_API, **_NODES, **_LOCAL}),
        **_all(_ANEW, _each("node-adopted kubelet-restarted resumed", _FINE)),
        "pods-not-listed": Advice(f"No vNPU is idle, so nobody needs to be asked whose it is. {_NOBODY_AFFECTED}", (_FINE,)),
        "hami-locked": Advice(_LATER, (_ITSELF, _HAMI)),
        **_all(CARD_UNKNOWN, _CARD),
        **_all(CARD_UNMANAGED, _UNMANAGED),
        "template-not-hamis": Advice(VNPU_UNMANAGED, (_FINE,)),
        **_all(_CLAIMED, _CLAIMS),
        "cannot-start": Advice(_CANDIDATE, (_POD,)),
    }
)

#: For a code that has no advice of its own.
_OTHER: Final = (_MANUAL, _REPORT)


def ownership_advice(code: str, scopes: Iterable[str] = ("node",)) -> Advice:
    """Return the advice for a code; for one without, what it means by what it is about, and where to read on."""
    means = {"node": NODE_UNKNOWN, "card": CARD_UNKNOWN}
    about = next((means[scope] for scope in ("node", "card") if scope in set(scopes)), VNPU_UNMANAGED)
    return OWNERSHIP_ADVICE.get(code) or Advice(about, _OTHER)


def steps_about(code: str, uid: str = "", pod: str = "", scopes: Iterable[str] = ("node",)) -> tuple[Step, ...]:
    """Return what to do about a code because of one Pod: its UID, and its `namespace/name`; empty where that is not told."""
    namespace, _, name = pod.partition("/")
    known = {"POD_UID": uid, **({"NAMESPACE": namespace, "NAME": name} if namespace and name else {})}
    named = {placeholder: shlex.quote(printable(value)) for placeholder, value in known.items() if value}

    def filled(command: str) -> str:
        return _PLACEHOLDER.sub(lambda found: named.get(found[0], found[0]), command)

    # Whose name is told need not be searched for.
    return tuple(
        Step(step.text, tuple(filled(command) for command in step.commands if "NAME" not in named or "POD_UID" not in command))
        for step in ownership_advice(code, scopes).steps
    )
