"""Who the claimants of a card are for people: a Pod's name, by which sources it is known, and how many AI cores it asks for. Pure.

Nothing here decides anything.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from devward.cluster.claims import Allocation, Claim, HostEvidence
from devward.cluster.evidence import Finding
from devward.cluster.podlist import Controller, PodList

#: The vendor's templates begin with the number of AI cores: `vir05_1c_16g` has five.
_CORES: Final = re.compile(r"vir([0-9]{2})(?![0-9])", re.ASCII)


class Trace(StrEnum):
    """Where a Pod was seen."""

    API = "api"
    ANNOTATION = "annotation"
    CHECKPOINT = "checkpoint"
    HOST = "host"
    #: It was seen with cards at an earlier look of this boot.
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Claimant:
    """One Pod. Its namespace and name are foreign text, and empty where the API server does not know it."""

    uid: str
    namespace: str = ""
    name: str = ""
    traces: tuple[Trace, ...] = ()
    #: What makes another Pod in its place, of the same namespace; None: nothing does, or it is not known.
    controller: Controller | None = None


def claimants(
    uids: Iterable[str],
    pods: PodList | None,
    allocations: Iterable[Allocation],
    host: HostEvidence | None,
    remembered: Iterable[str],
) -> tuple[Claimant, ...]:
    """Return what is known of the Pods with these UIDs, in their order."""
    by_uid = {uid: pod for pod in (pods.pods if pods is not None else ()) for uid in pod.uids}
    allocated = {allocation.uid for allocation in allocations}
    known = frozenset(remembered)
    found = []
    for uid in sorted(set(uids)):
        pod = by_uid.get(uid)
        every = pod.uids if pod is not None else frozenset({uid})
        traces = {
            Trace.API: pod is not None,
            Trace.ANNOTATION: pod is not None and pod.cards.has_cards,
            Trace.CHECKPOINT: not every.isdisjoint(allocated),
            Trace.HOST: host is not None and any(host.pod(one, containers_only=False) is Finding.HELD for one in every),
            Trace.MEMORY: not every.isdisjoint(known),
        }
        seen = tuple(trace for trace, holds in traces.items() if holds)
        found.append(Claimant(uid, traces=seen) if pod is None else Claimant(uid, pod.namespace, pod.name, seen, pod.controller))
    return tuple(found)


def claimed_cores(
    phy: int, total: float | None, claims: Iterable[Claim], allocations: Mapping[str, tuple[Allocation, ...]]
) -> float | None:
    """Return how many AI cores the claims on a card ask for, by what the plugin answered; None where that is not known of each.

    `total` is how many the card has, if that is known: who was given the card without a template has all of them. A claim that only says
    that its Pod could open the card asks for none. A Pod's allocations, under whichever of its UIDs the kubelet has them, are by that of
    its claims.
    """
    asked = 0.0
    # A Pod may claim a card for several reasons, and has its cores once.
    for uid in {claim.uid for claim in claims if not claim.unless_clean}:
        of_pod = allocations.get(uid, ())
        given = [allocation for allocation in of_pod if allocation.cards and phy in allocation.cards]
        if not given or not all(allocation.cards for allocation in of_pod):
            return None
        for allocation in given:
            cores = _CORES.match(allocation.template)
            share = float(cores[1]) if cores else (total if not allocation.template else None)
            if share is None:
                return None
            asked += share
    return asked
