"""Which cards of this host a Pod names, by everything that names one. Pure.

The plugin's answer in the kubelet's checkpoint and HAMi's annotation both count; where they differ, every card that either names does. The
device ids in the checkpoint are the kubelet's own choice and name no card. Where neither names one, it may be any card of the resource.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from devward.cluster.annotations import Named
from devward.cluster.bundle import visible_cards
from devward.cluster.claims import Allocation, ClaimReason, KnownCard, Remembered
from devward.cluster.podlist import RESOURCE_PREFIX, Container, Pod
from devward.npu.numbering import window

#: Resources that go with the one for devices, and have no devices of their own.
_ACCOMPANYING = ("-memory", "-core")


class Cards:
    """The cards of this host, by all their names."""

    def __init__(self, cards: Iterable[KnownCard], registered: Mapping[str, frozenset[str]]) -> None:
        """`registered` are the die ids that HAMi has on this Node, by its word for their kind."""
        self.known = tuple(sorted(set(cards), key=lambda card: (card.phy, card.die)))
        self.all = frozenset(card.phy for card in self.known)
        self.dies = frozenset(card.die for card in self.known)
        self._registered = registered

    def of_dies(self, dies: frozenset[str]) -> frozenset[int]:
        """Return the cards of these die ids."""
        return frozenset(card.phy for card in self.known if card.die in dies)

    def of_vnpus(self, vdevs: frozenset[int]) -> frozenset[int]:
        """Return the cards that vNPUs of these ids are on; all where one cannot be on any of them."""
        found = {vdev: {phy for phy in self.all if vdev in window(phy)} for vdev in vdevs}
        return frozenset().union(*found.values()) if all(found.values()) else self.all

    def of_resource(self, resource: str) -> frozenset[int]:
        """Return every card that a resource can mean: all but those that are known to be of another one."""
        word = base_resource(resource).removeprefix(RESOURCE_PREFIX)
        if word not in self._registered:
            return self.all
        others = {die for other, dies in self._registered.items() if other != word for die in dies}
        return frozenset(card.phy for card in self.known if card.die in self._registered[word] or card.die not in others)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about a Pod's cards that cannot be known."""

    reason: ClaimReason
    detail: str
    #: The cards that are in doubt; None: any card of the node.
    cards: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class Resolution:
    """The cards of a Pod."""

    #: Those that something names.
    named: frozenset[int] = frozenset()
    #: Resources of which it has something that nothing names: it may be any card of them.
    resources: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()


def base_resource(name: str) -> str:
    """Return the resource for devices that a resource is or goes with."""
    for ending in _ACCOMPANYING:
        name = name.removesuffix(ending)
    return name


def is_relevant(pod: Pod) -> bool:
    """Whether a Pod has to do with Ascend cards by its request or its annotations."""
    return any(container.resources for container in pod.containers) or pod.cards.has_cards


def resolve(pod: Pod, allocations: Collection[Allocation], annotations: Named, seen: frozenset[int], cards: Cards) -> Resolution:
    """Return the cards of a Pod that has the resource, or annotations as if it had. `seen` are those it was seen with before."""
    told = _told(allocations)
    answered = {(allocation.container, base_resource(allocation.resource)) for allocation in allocations if allocation.cards}
    annotated = cards.of_dies(annotations.dies)
    unanswered = _unanswered(allocations)
    wanted = {(container.name, base_resource(resource)) for container in pod.containers for resource in container.resources}
    unanswered |= {resource for _, resource in wanted - answered}
    is_answered = bool(told) and not unanswered
    # The plugin's answers bound a doubt only where every container has one.
    doubtful = told if is_answered else None
    problems = [Problem(ClaimReason.ANNOTATION_MALFORMED, detail, doubtful) for detail in annotations.malformed]
    problems += [Problem(ClaimReason.CARD_NOT_KNOWN, f"die {die}", doubtful) for die in annotations.dies - cards.dies]
    problems += [Problem(ClaimReason.CARD_NOT_KNOWN, f"physical id {phy}", None) for phy in told - cards.all]
    named = told | annotated | seen | _own_environment(pod, cards)
    return Resolution(named & cards.all, frozenset() if annotated else frozenset(unanswered), tuple(problems))


def resolve_unknown(allocations: Collection[Allocation], remembered: Remembered | None, cards: Cards) -> Resolution:
    """Return the cards of a Pod that the API server does not know, by the checkpoint and by what was seen of it before."""
    told = _told(allocations)
    resources = frozenset(_unanswered(allocations))
    if remembered is not None:
        # What it was seen with while its annotations could be read says more than an entry without an answer.
        told, resources = told | remembered.cards, remembered.resources
    problems = tuple(Problem(ClaimReason.CARD_NOT_KNOWN, f"physical id {phy}", None) for phy in told - cards.all)
    return Resolution(told, resources, problems)


def _told(allocations: Iterable[Allocation]) -> frozenset[int]:
    return frozenset(phy for allocation in allocations for phy in allocation.cards or ())


def _unanswered(allocations: Iterable[Allocation]) -> set[str]:
    return {allocation.resource for allocation in allocations if not allocation.cards}


def environment_cards(container: Container, cards: Cards) -> frozenset[int]:
    """Return the cards that a container names in its own environment; all where they cannot be told."""
    found: set[int] = set()
    for value in container.visible:
        phys = visible_cards(value) if value is not None else None
        if phys is None or not phys <= cards.all:
            return cards.all
        found |= phys
    return frozenset(found) if found or not container.has_specs else cards.all


def may_name_vnpu(pod: Pod) -> bool:
    """Whether the environment of a container with the resource may name a vNPU that is there already: it has what is no list of cards.

    Ascend Docker Runtime takes ids of vNPUs there, with ASCEND_RUNTIME_OPTIONS=VIRTUAL, and then makes none.
    """
    values = [value for container in pod.containers if container.resources for value in container.visible]
    return any(value is None or visible_cards(value) is None for value in values)


def _own_environment(pod: Pod, cards: Cards) -> frozenset[int]:
    """Return the cards that containers with the resource name beside what they are given: the kubelet lets the Pod's own words win."""
    wanting = (container for container in pod.containers if container.resources and container.visible)
    return frozenset().union(*(environment_cards(container, cards) for container in wanting))
