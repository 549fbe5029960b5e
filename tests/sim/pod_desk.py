"""Pods for tests, in the API server's own words, and a desk that joins them look by look."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from devward.cluster.claims import Allocation, Bounds, CardClaims, Claims, KnownCard, Memory, Moment, Standing
from devward.cluster.evidence import Finding
from devward.cluster.podlist import PodList, parse_pod_list
from devward.cluster.pods import Evidence, join_claims
from sim.recorded_cluster import CARDS, DIES, NODE, REGISTERED, RESOURCE, WORD

UID = "5dd4e7a7-0af2-4717-a103-f2d60735455c"
OTHER_UID = "f917cc56-f875-468b-8f4e-534c11eb4648"
HASH = "377a6b4dd9926d27b5831016d3cc562e"
#: 2026-12-01T00:00:00Z
BEGIN_USEC = 1_796_083_200_000_000

RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-11-30T23:00:00Z"}}


def waiting(reason: str | None) -> dict[str, Any]:
    """Return the state of a waiting container; None: the reason is left out."""
    return {"waiting": {} if reason is None else {"reason": reason}}


def ended(code: int = 0, reason: str | None = None, *, finished: str | None = "2026-11-30T23:50:00Z", **more: Any) -> dict[str, Any]:
    """Return the state of a container that ended."""
    reason = reason if reason is not None else ("Completed" if code == 0 else "Error")
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": finished, **more}}


def whole_pod(*dies: str, template: str = "vir05_1c_8g") -> str:
    """Return HAMi's annotation for a whole Pod."""
    return json.dumps([{"UUID": die, "temp": template} for die in dies])


def segments(*containers: Iterable[str]) -> str:
    """Return HAMi's annotation with the cards of each container."""
    return "".join("".join(f"{die},{WORD},8192,5:" for die in dies) + ";" for dies in containers)


def annotated(*dies: str) -> dict[str, str]:
    """Return all annotations of a Pod that HAMi gave these cards."""
    return {
        f"huawei.com/{WORD}": whole_pod(*dies),
        f"hami.io/{WORD}-devices-allocated": segments(dies),
        f"hami.io/{WORD}-devices-to-allocate": ";",
    }


def container(name: str = "main", *, npus: str | None = "1", **more: Any) -> dict[str, Any]:
    """Return a container; without NPUs it requests none."""
    resources = {"limits": {RESOURCE: npus}, "requests": {RESOURCE: npus}} if npus is not None else {}
    return {"name": name, "image": "image", "resources": resources, **more}


def status(name: str, state: Mapping[str, Any], last: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the status of a container."""
    return {"name": name, "state": state, "lastState": last or {}, "ready": False, "restartCount": 0, "image": "", "imageID": ""}


def pod(
    uid: str = UID,
    *,
    phase: str | None = "Running",
    states: Mapping[str, Mapping[str, Any]] | None = None,
    annotations: Mapping[str, str] | None = None,
    containers: Iterable[Mapping[str, Any]] | None = None,
    deleting: bool = False,
    spec: Mapping[str, Any] | None = None,
    statuses: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a Pod with one container `main`, that requests a card and by default runs."""
    own = {"main": RUNNING} if states is None else states
    metadata: dict[str, Any] = {"uid": uid, "namespace": "default", "name": f"pod-{uid}"}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    if deleting:
        metadata["deletionTimestamp"] = "2026-12-01T00:00:30Z"
    said: dict[str, Any] = {"containerStatuses": [status(name, state) for name, state in own.items()], **(statuses or {})}
    if phase is not None:
        said["phase"] = phase
    return {
        "metadata": metadata,
        "spec": {"nodeName": NODE, "containers": list(containers) if containers is not None else [container()], **(spec or {})},
        "status": said,
    }


def listing(*pods: Mapping[str, Any], **metadata: Any) -> bytes:
    """Return a list of Pods as the API server gives it."""
    return json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7", **metadata}, "items": pods}).encode()


def given(*cards: int, uid: str = UID, name: str = "main", resource: str = RESOURCE) -> Allocation:
    """Return a checkpoint's entry by which a container has these cards; none: its answer cannot be told."""
    return Allocation(uid, name, resource, frozenset(cards) or None, frozenset({f"{DIES[1]}-0"}))


@dataclass
class HostSays:
    """What the host shows of Pods: `whole` of the Pod with its sandbox, `containers` of its containers alone."""

    whole: dict[str, Finding] = field(default_factory=dict)
    containers: dict[str, Finding] = field(default_factory=dict)

    def pod(self, uid: str, *, containers_only: bool) -> Finding:
        """Answer."""
        return (self.containers if containers_only else self.whole).get(uid, Finding.CLEAN)


class Desk:
    """Joins one look after the other, a minute apart."""

    def __init__(self, cards: tuple[KnownCard, ...] = CARDS, registered: Mapping[str, frozenset[str]] | None = None) -> None:
        self.cards = cards
        self.registered = REGISTERED if registered is None else registered
        self.memory = Memory()
        self.now = Moment(1000.0, BEGIN_USEC)
        self.bounds = Bounds()

    def look(self, *pods: Mapping[str, Any], given: Iterable[Allocation] = (), host: HostSays | None = None, after: float = 60.0) -> Claims:
        """Look at these Pods, in a list of the API server."""
        return self.join(parse_pod_list(listing(*pods), NODE), given, host, after)

    def join(self, pods: PodList, given: Iterable[Allocation] = (), host: HostSays | None = None, after: float = 60.0) -> Claims:
        """Look at a list."""
        self.now = Moment(self.now.monotonic + after, self.now.realtime_usec + int(after * 1_000_000))
        evidence = Evidence(pods, tuple(given), host or HostSays(), self.cards, self.registered)
        claims, self.memory = join_claims(evidence, self.memory, self.now, self.bounds)
        return claims


def standings(claims: Claims) -> tuple[Standing, ...]:
    """Return what decides for each card; a blocker decides for all."""
    return tuple(Standing.UNKNOWN if claims.blockers else card.standing for card in claims.cards)


def claimants(card: CardClaims) -> set[tuple[str, str]]:
    """Return who claims a card, and why."""
    return {(claim.uid, claim.reason.value) for claim in card.claims}
