"""What one snapshot leaves for the next, and how it is kept when the daemon ends. Pure.

Kept is what only ever protects: which Node this host's was, and which cards each Pod was seen with in this boot. What takes an unbroken
view, such as handshakes, the Lease, HAMi's lock or how long a Pod is gone, begins anew with each run of the daemon.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from devward.cluster.claims import Allocation, Bounds, Moment, Remembered
from devward.cluster.hami import Handshake, Lock
from devward.cluster.node import KnownNode, LeaseSight
from devward.text import printable

VERSION: Final = 1
#: Pods with devices that are remembered of one boot of one node. Where every vNPU is in use none is ever seen to be gone.
MAX_PODS: Final = 10_000
_MAX_CARDS: Final = 256


@dataclass(frozen=True, slots=True)
class KubeletSight:
    """The kubelet as it was seen."""

    process: str
    #: Since when without a break, in seconds of the monotonic clock.
    since: float


@dataclass(frozen=True, slots=True)
class Loss:
    """What was kept could not be read: for as long as a Pod could have been remembered, nothing is known."""

    #: Fit to be shown.
    detail: str
    #: Since when, and in how many whole looks, Pods that are gone could show; None: in none yet.
    since: float | None = None
    looks: int = 0

    def is_over(self, now: float, bounds: Bounds) -> bool:
        """Whether a Pod that was forgotten, and is gone, would protect no more."""
        return self.since is not None and self.looks >= bounds.gone_looks and now - self.since >= bounds.gone_seconds


@dataclass(frozen=True, slots=True)
class Recollection:
    """What is known from earlier snapshots. Times in seconds of the monotonic clock, as are those of what is in it."""

    #: To which all but the Node belongs; empty: nothing was seen yet.
    boot_id: str = ""
    node: KnownNode | None = None
    #: By UID, the Pods that were seen with devices.
    pods: Mapping[str, Remembered] = field(default_factory=dict)
    #: First sights of the claims' own (pods.py).
    sights: Mapping[tuple[str, ...], Moment] = field(default_factory=dict)
    #: Since when each unknown is one.
    unknowns: Mapping[tuple[str, ...], Moment] = field(default_factory=dict)
    lease: LeaseSight | None = None
    lease_at: float | None = None
    handshakes: Mapping[str, Handshake] = field(default_factory=dict)
    lock: Lock | None = None
    kubelet: KubeletSight | None = None
    #: When the last snapshot was taken.
    seen_at: float | None = None
    loss: Loss | None = None


def see_allocations(known: Recollection, allocations: Iterable[Allocation]) -> Recollection:
    """Return what is known once these entries of the checkpoint were seen. That a Pod is missing among them says nothing."""
    return within_bounds(replace(known, pods=with_seen(known.pods, seen_of(allocations))))


def within_bounds(known: Recollection) -> Recollection:
    """Return what is known; too many Pods are forgotten, which is a loss like any other, and protects for as long."""
    if len(known.pods) <= MAX_PODS:
        return known
    return replace(known, pods={}, loss=Loss(f"more than {MAX_PODS} Pods were seen with NPUs since boot"))


def seen_of(allocations: Iterable[Allocation]) -> Iterator[tuple[str, Remembered]]:
    """Yield what entries of the checkpoint say of each Pod."""
    for allocation in allocations:
        resources = frozenset() if allocation.cards else frozenset({allocation.resource})
        yield allocation.uid, Remembered(allocation.cards or frozenset(), resources)


def with_seen(pods: Mapping[str, Remembered], seen: Iterable[tuple[str, Remembered]]) -> dict[str, Remembered]:
    """Return the Pods with what was seen of them now: they are not gone, and nothing that was known before is lost."""
    kept = dict(pods)
    for uid, now in seen:
        before = kept.get(uid, Remembered())
        kept[uid] = Remembered(before.cards | now.cards, before.resources | now.resources)
    return kept


def still_there(pods: Mapping[str, Remembered]) -> dict[str, Remembered]:
    """Return Pods without how long they are gone, which takes an unbroken view."""
    return {
        uid: replace(pod, gone_since=None, gone_looks=0) if pod.gone_since is not None or pod.gone_looks else pod
        for uid, pod in pods.items()
    }


def lasting(known: Recollection) -> Recollection:
    """Return what of it is kept when the daemon ends, as it comes back."""
    loss = None if known.loss is None else Loss(known.loss.detail)
    return Recollection(boot_id=known.boot_id, node=known.node, pods=still_there(known.pods), loss=loss)


# --- how it is kept --------------------------------------------------------------------------------------------------------------------
def to_values(known: Recollection) -> dict[str, Any]:
    """Return what is to be kept, as values of JSON."""
    node = known.node
    values: dict[str, Any] = {
        "version": VERSION,
        "boot_id": known.boot_id,
        "node": None if node is None else {"uid": node.uid, "boot_id": node.boot_id, "kubelet": node.kubelet},
        "pods": {uid: {"cards": sorted(pod.cards), "resources": sorted(pod.resources)} for uid, pod in sorted(known.pods.items())},
    }
    if known.loss is not None:
        values["loss"] = known.loss.detail
    return values


def from_values(values: object) -> Recollection:
    """Return what was kept. What is not as `to_values` gives it is forgotten whole, and that it was is remembered.

    Where nothing was ever kept, an empty Recollection is right, which is no loss.
    """
    try:
        return _recollection(_object(values, "what is kept"))
    except ValueError as error:
        return Recollection(loss=Loss(str(error)))


def _recollection(values: dict[str, Any]) -> Recollection:
    if type(values.get("version")) is not int or values["version"] != VERSION:
        raise ValueError("it is of another version")
    if values.keys() - {"loss"} != {"version", "boot_id", "node", "pods"}:
        raise ValueError("its keys are others")
    node = None if values["node"] is None else _node(_object(values["node"], "the Node"))
    pods = _object(values["pods"], "the Pods")
    if len(pods) > MAX_PODS:
        raise ValueError("it has too many Pods")
    boot_id = _text(values["boot_id"], "the boot id")
    if pods and not boot_id:
        raise ValueError("it has Pods of no boot")
    loss = Loss(printable(_text(values["loss"], "the loss"))) if "loss" in values else None
    if "" in pods:
        raise ValueError("it has a Pod without a UID")
    return Recollection(boot_id=boot_id, node=node, pods={uid: _pod(_object(pod, "a Pod")) for uid, pod in pods.items()}, loss=loss)


def _node(values: dict[str, Any]) -> KnownNode:
    if values.keys() != {"uid", "boot_id", "kubelet"}:
        raise ValueError("the Node's keys are others")
    node = KnownNode(*(_text(values[key], "a text of the Node") for key in ("uid", "boot_id", "kubelet")))
    if not (node.boot_id and node.kubelet):
        raise ValueError("the Node lacks a part")
    return node


def _pod(values: dict[str, Any]) -> Remembered:
    if values.keys() != {"cards", "resources"}:
        raise ValueError("a Pod's keys are others")
    cards, resources = values["cards"], values["resources"]
    if not isinstance(cards, list) or not all(type(card) is int and 0 <= card < _MAX_CARDS for card in cards):
        raise ValueError("a Pod's cards are no cards")
    if not isinstance(resources, list) or not all(isinstance(name, str) and name for name in resources):
        raise ValueError("a Pod's resources are no names")
    return Remembered(frozenset(cards), frozenset(resources))


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{what} is no object")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is no text")
    return value
