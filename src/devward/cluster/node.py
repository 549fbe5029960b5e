"""Whether the API server's Node is this host, and is kept up to date: before that holds, what it says of Pods is about another place. Pure.

Each way in which it does not hold is a refusal of its own, with a sentence that says what to do. Fields are those of core/v1 and
coordination.k8s.io/v1 in the Kubernetes API reference. Times in objects are never compared with ours: what moves is seen to move.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from devward.cluster.answer import AnswerError, AnswerProblem, parse_answer
from devward.cluster.podlist import RESOURCE_PREFIX
from devward.text import printable

_OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
_READY: Final = "Ready"
_LEASES: Final = "kube-node-lease"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the API server says of the Node."""

    name: str
    uid: str
    boot_id: str = ""
    machine_id: str = ""
    #: `containerd://2.1.9`, the form that local.py takes.
    runtime_version: str = ""
    deleting: bool = False
    annotations: Mapping[str, str] | None = None
    #: Huawei's resources that it has, or had.
    resources: frozenset[str] = frozenset()
    #: Keys of its taints.
    taints: frozenset[str] = frozenset()
    #: Status of each Ready condition: one, with `True`, on a Node that works.
    ready: tuple[str, ...] = ()


def parse_node(data: bytes, name: str) -> NodeFacts:
    """Return what the body of a GET of the Node of this name says. AnswerError."""
    answer = parse_answer(data, "Node", "v1")
    metadata, spec, status = answer.object("metadata"), answer.object("spec"), answer.object("status")
    if metadata.text("name") != name:
        raise AnswerError(AnswerProblem.OTHER_NODE, f"{metadata.text('name')!r}, not {name!r}")
    info = status.object("nodeInfo")
    resources = {*status.texts("capacity"), *status.texts("allocatable")}
    return NodeFacts(
        name=name,
        uid=metadata.needed("uid"),
        boot_id=info.text("bootID"),
        machine_id=info.text("machineID"),
        runtime_version=info.text("containerRuntimeVersion"),
        deleting=metadata.time("deletionTimestamp") is not None,
        annotations=metadata.texts("annotations"),
        resources=frozenset(resource for resource in resources if resource.startswith(RESOURCE_PREFIX)),
        taints=frozenset(taint.needed("key") for taint in spec.objects("taints")),
        ready=tuple(entry.text("status") for entry in status.objects("conditions") if entry.text("type") == _READY),
    )


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """What the kubelet's Lease says."""

    holder: str
    #: The time as it is written, which is never parsed.
    renewed: str


def parse_lease(data: bytes, name: str) -> LeaseFacts:
    """Return what the body of a GET of the Lease of this Node says. AnswerError."""
    answer = parse_answer(data, "Lease", "coordination.k8s.io/v1")
    metadata, spec = answer.object("metadata"), answer.object("spec")
    if (metadata.text("namespace"), metadata.text("name")) != (_LEASES, name):
        raise AnswerError(AnswerProblem.OTHER_NODE, f"{metadata.text('namespace')}/{metadata.text('name')}, not {_LEASES}/{name}")
    spec.time("renewTime")
    return LeaseFacts(spec.text("holderIdentity"), spec.text("renewTime"))


@dataclass(frozen=True, slots=True)
class LeaseSight:
    """What was seen of the Lease: the time written in it, and when that was seen to change, by our monotonic clock."""

    renewed: str
    changed_at: float | None = None


def see_lease(before: LeaseSight | None, lease: LeaseFacts, now: float) -> LeaseSight:
    """Return what was seen of the Lease with this look."""
    if before is None or not before.renewed or not lease.renewed:
        return LeaseSight(lease.renewed)
    return before if before.renewed == lease.renewed else LeaseSight(lease.renewed, now)


@dataclass(frozen=True, slots=True)
class Kubelets:
    """The processes of this host that hold the kubelet's socket."""

    #: Each with what tells it from another, such as process id and start time.
    processes: tuple[str, ...] = ()
    #: Seconds for which the first was seen without a break.
    same_for: float = 0.0
    #: Why there may be others; empty: there are none.
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class ThisHost:
    """What the host says of itself."""

    boot_id: str
    #: Every id by which the kubelet may call this machine: /etc/machine-id, and the firmware's.
    machine_ids: frozenset[str]
    kubelets: Kubelets
    #: The API server's certificate is verified.
    tls_verified: bool


@dataclass(frozen=True, slots=True)
class KnownNode:
    """The Node that was taken for this host's, and when: kept across restarts."""

    #: Empty: what was kept of it is lost, and under this boot and kubelet any Node may be one made anew.
    uid: str
    boot_id: str
    kubelet: str


class NodeIdentity(StrEnum):
    """How a Node's UID agrees with the one that is known."""

    #: None was known.
    FIRST = "first"
    SAME = "same"
    #: Another, for which there is a reason: the host or its kubelet was started again, or an administrator accepted it.
    ADOPTED = "adopted"
    CHANGED = "changed"
    #: Which one was known is lost.
    LOST = "lost"

    @property
    def resets(self) -> bool:
        """Whether everything that was learned before is void."""
        return self in {NodeIdentity.ADOPTED, NodeIdentity.CHANGED, NodeIdentity.LOST}

    @property
    def may_be_accepted(self) -> bool:
        """Whether an administrator has to say that the Node is this host's."""
        return self in {NodeIdentity.CHANGED, NodeIdentity.LOST}


def identify(node: NodeFacts, known: KnownNode | None, host: ThisHost, accepted: str = "") -> NodeIdentity:
    """Hold a Node's UID against the one that is known. `accepted` is the one that an administrator accepted."""
    if known is None:
        return NodeIdentity.FIRST
    if known.uid == node.uid:
        return NodeIdentity.SAME
    kubelets = host.kubelets
    is_rebooted = bool(host.boot_id) and known.boot_id != host.boot_id
    is_restarted = bool(kubelets.processes) and not kubelets.doubt and known.kubelet not in kubelets.processes
    if is_rebooted or is_restarted or accepted == node.uid:
        return NodeIdentity.ADOPTED
    return NodeIdentity.CHANGED if known.uid else NodeIdentity.LOST


class NodeRefusal(StrEnum):
    """Why a Node does not stand for this host."""

    UID_CHANGED = "node-uid-changed"
    UID_LOST = "node-uid-lost"
    DELETING = "node-deleting"
    HOST_UNKNOWN = "host-identity-unknown"
    BOOT_DIFFERS = "node-boot-differs"
    MACHINE_DIFFERS = "node-machine-differs"
    NOT_READY = "node-not-ready"
    OUT_OF_SERVICE = "node-out-of-service"
    LEASE_NOT_OURS = "lease-not-ours"
    LEASE_UNSEEN = "lease-not-yet-seen-renewed"
    LEASE_STALE = "lease-stale"
    TLS_UNVERIFIED = "tls-unverified"
    KUBELET_MISSING = "kubelet-missing"
    KUBELET_SEVERAL = "kubelet-several"
    KUBELET_UNREADABLE = "kubelet-unreadable"
    KUBELET_YOUNG = "kubelet-young"


REFUSAL_TEXT: Final[Mapping[NodeRefusal, str]] = {
    NodeRefusal.UID_CHANGED: "The Node was made anew while the kubelet ran; if meant, restart the kubelet or run devwardctl accept-node.",
    NodeRefusal.UID_LOST: "Which Node was this host's is lost; if it is this one, restart the kubelet or run devwardctl accept-node.",
    NodeRefusal.DELETING: "The Node is being deleted; nothing is reclaimed until it is there for good.",
    NodeRefusal.HOST_UNKNOWN: "This host's boot id or machine id cannot be read; look at /proc/sys/kernel/random and /etc/machine-id.",
    NodeRefusal.BOOT_DIFFERS: "The Node is of another boot; wait for the kubelet, or check that the node name is this host's.",
    NodeRefusal.MACHINE_DIFFERS: "The Node is of another machine; check the node name, and that no two machines were made with one id.",
    NodeRefusal.NOT_READY: "The Node is not Ready, so what the API server says of its Pods may be old; look at the kubelet.",
    NodeRefusal.OUT_OF_SERVICE: "The Node is tainted out-of-service, so its Pods are deleted unseen; remove the taint once it is well.",
    NodeRefusal.LEASE_NOT_OURS: "The Lease is held by somebody else; check that no other kubelet uses this node name.",
    NodeRefusal.LEASE_UNSEEN: "The kubelet was not yet seen to renew its Lease; this ends with the next look at a healthy kubelet.",
    NodeRefusal.LEASE_STALE: "The kubelet has not renewed its Lease for a while; look at the kubelet and its way to the API server.",
    NodeRefusal.TLS_UNVERIFIED: "The kubeconfig skips the verification of the API server's certificate; give it the certificate authority.",
    NodeRefusal.KUBELET_MISSING: "No process holds the kubelet's socket; nothing is reclaimed on a host without a kubelet.",
    NodeRefusal.KUBELET_SEVERAL: "More than one process holds a kubelet's socket; end the one that is not this Node's.",
    NodeRefusal.KUBELET_UNREADABLE: "Whether a kubelet runs, and only one, cannot be told; look at devward's access to /proc.",
    NodeRefusal.KUBELET_YOUNG: "The kubelet was started a short while ago and may not know its Pods yet; this ends by itself.",
}


@dataclass(frozen=True, slots=True)
class Refused:
    """One reason why a Node does not stand for this host."""

    reason: NodeRefusal
    #: What was found in particular, fit to be shown.
    detail: str = ""

    @property
    def sentence(self) -> str:
        """The refusal for people."""
        text = REFUSAL_TEXT[self.reason]
        return f"{text[:-1]} ({self.detail})." if self.detail else text


@dataclass(frozen=True, slots=True)
class NodeBounds:
    """How old a renewal of the Lease may be, and how young a kubelet may not be, in seconds."""

    lease: float = 60.0
    kubelet: float = 300.0


def refusals(
    node: NodeFacts,
    identity: NodeIdentity,
    lease: tuple[LeaseFacts, LeaseSight],
    host: ThisHost,
    now: float,
    bounds: NodeBounds | None = None,
) -> tuple[Refused, ...]:
    """Return every reason why the Node does not stand for this host now; none: it does. `now` is by the monotonic clock."""
    bounds = bounds or NodeBounds()
    return (*_of_node(node, identity, host), *_of_lease(node, *lease, now, bounds), *_of_host(host, bounds))


def _of_node(node: NodeFacts, identity: NodeIdentity, host: ThisHost) -> Iterator[Refused]:
    if identity is NodeIdentity.CHANGED:
        yield Refused(NodeRefusal.UID_CHANGED, printable(node.uid))
    if identity is NodeIdentity.LOST:
        yield Refused(NodeRefusal.UID_LOST, printable(node.uid))
    if node.deleting:
        yield Refused(NodeRefusal.DELETING)
    if not host.boot_id or not host.machine_ids - {""}:
        yield Refused(NodeRefusal.HOST_UNKNOWN)
    if node.boot_id != host.boot_id:
        yield Refused(NodeRefusal.BOOT_DIFFERS, printable(node.boot_id) or "it has no boot id")
    if not node.machine_id or node.machine_id not in host.machine_ids:
        yield Refused(NodeRefusal.MACHINE_DIFFERS, printable(node.machine_id) or "it has no machine id")
    if node.ready != ("True",):
        yield Refused(NodeRefusal.NOT_READY, printable(", ".join(node.ready)) or "it has no such condition")
    if _OUT_OF_SERVICE in node.taints:
        yield Refused(NodeRefusal.OUT_OF_SERVICE)


def _of_lease(node: NodeFacts, lease: LeaseFacts, sight: LeaseSight, now: float, bounds: NodeBounds) -> Iterator[Refused]:
    if lease.holder != node.name:
        yield Refused(NodeRefusal.LEASE_NOT_OURS, printable(lease.holder) or "nobody")
    if sight.changed_at is None:
        yield Refused(NodeRefusal.LEASE_UNSEEN)
    elif now - sight.changed_at > bounds.lease:
        yield Refused(NodeRefusal.LEASE_STALE, f"{now - sight.changed_at:.0f} s")


def _of_host(host: ThisHost, bounds: NodeBounds) -> Iterator[Refused]:
    if not host.tls_verified:
        yield Refused(NodeRefusal.TLS_UNVERIFIED)
    kubelets = host.kubelets
    if kubelets.doubt:
        yield Refused(NodeRefusal.KUBELET_UNREADABLE, printable(kubelets.doubt))
    elif not kubelets.processes:
        yield Refused(NodeRefusal.KUBELET_MISSING)
    elif len(kubelets.processes) > 1:
        yield Refused(NodeRefusal.KUBELET_SEVERAL, printable(", ".join(kubelets.processes)))
    elif kubelets.same_for < bounds.kubelet:
        yield Refused(NodeRefusal.KUBELET_YOUNG, f"{kubelets.same_for:.0f} s")
