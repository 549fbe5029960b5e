"""Who left a vNPU behind: not the Pod alone, but what makes another Pod in its place. For people, and never evidence. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from devward.cluster.claimants import Claimant
from devward.reclaim.confirmation import MAX_SUSPECTS

#: The kind of a Pod that nothing makes again.
_POD: Final = "Pod"


@dataclass(frozen=True, slots=True)
class LeftBy:
    """The controller of Pods, as a ReplicaSet or a Job is, or a Pod that has none. Foreign texts."""

    uid: str
    kind: str = _POD
    #: Empty where they are not known, as the name.
    namespace: str = ""
    name: str = ""


def left_by(suspects: Sequence[str], claimants: Mapping[str, Claimant]) -> LeftBy | None:
    """Return whose the Pods are that may have left a vNPU; None: of several, or there is none. `claimants` are those of a look, by UID."""
    # Of more than that the others are not told.
    if len(suspects) >= MAX_SUSPECTS:
        return None
    found = {_owner(uid, claimants.get(uid)) for uid in suspects}
    return found.pop() if len(found) == 1 else None


def _owner(uid: str, pod: Claimant | None) -> LeftBy:
    if pod is None:
        return LeftBy(uid)
    if pod.controller is None:
        return LeftBy(uid, _POD, pod.namespace, pod.name)
    return LeftBy(pod.controller.uid, pod.controller.kind, pod.namespace, pod.controller.name)
