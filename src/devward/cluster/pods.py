"""Who claims which card of this node, from its Pods, the kubelet's checkpoint, the host and what was seen since boot. Pure.

A Pod protects its cards unless something certain says that it does not; what cannot be told counts as use. Two things release: a Pod that
has ended, by its phase, its containers' states and the host; and, for a Pod that the API server does not know, that the host shows none of
it for a while. A Pod that cannot be started is a candidate: its next attempt makes a new vNPU and never takes up an old one.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from devward.cluster.annotations import is_soft
from devward.cluster.cards import Cards, Problem, Resolution, environment_cards, is_relevant, may_name_vnpu, resolve, resolve_unknown
from devward.cluster.claims import (
    Allocation,
    Blocker,
    Bounds,
    CardClaims,
    Claim,
    ClaimReason,
    Claims,
    HostEvidence,
    KnownCard,
    Memory,
    Moment,
    Remembered,
    Standing,
)
from devward.cluster.containers import TERMINAL, ContainerKey, Judgement, is_running, is_unsaid, judge
from devward.cluster.evidence import Finding
from devward.cluster.handed import NOTHING
from devward.cluster.podlist import Pod, PodList, Termination

_ENDED = "ended"
_UNSAID = "unsaid"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one look has to decide from. Where a part could not be read there is no look."""

    pods: PodList
    #: The checkpoint's entries for Ascend resources, of every Pod.
    allocations: tuple[Allocation, ...]
    host: HostEvidence
    cards: tuple[KnownCard, ...]
    #: Die ids that HAMi has on this Node, by its word for their kind.
    registered: Mapping[str, frozenset[str]]


def join_claims(evidence: Evidence, memory: Memory, now: Moment, bounds: Bounds | None = None) -> tuple[Claims, Memory]:
    """Return who claims which card, and what to hand over at the next look."""
    look = _Look(evidence, memory, now, bounds or Bounds())
    return look.claims(), look.memory()


class _Look:
    """One look, put together Pod by Pod."""

    def __init__(self, evidence: Evidence, memory: Memory, now: Moment, bounds: Bounds) -> None:
        self._host = evidence.host
        self._before = memory
        self._now = now
        self._bounds = bounds
        self._cards = Cards(evidence.cards, evidence.registered)
        self._claims: dict[int, set[Claim]] = {phy: set() for phy in self._cards.all}
        self._blockers: set[Blocker] = set()
        self._released: dict[int, float] = {}
        self._remembered: dict[str, Remembered] = {}
        self._sights: dict[tuple[str, ...], Moment] = {}
        allocations: dict[str, list[Allocation]] = defaultdict(list)
        for allocation in evidence.allocations:
            allocations[allocation.uid].append(allocation)
        known: set[str] = set()
        for pod in evidence.pods.pods:
            known |= pod.uids
            self._take(pod, [allocation for uid in sorted(pod.uids) for allocation in allocations.get(uid, ())])
        for uid in sorted((allocations.keys() | memory.pods.keys()) - known):
            self._take_unknown(uid, allocations.get(uid, ()))

    def claims(self) -> Claims:
        """Return what was found."""
        cards = tuple(
            CardClaims(card, tuple(sorted(self._claims[card.phy], key=_claim_order)), self._released.get(card.phy))
            for card in self._cards.known
        )
        return Claims(cards, tuple(sorted(self._blockers, key=lambda blocker: (blocker.uid, blocker.reason, blocker.detail))))

    def memory(self) -> Memory:
        """Return what to remember."""
        return Memory(self._remembered, self._sights)

    # --- Pods that the API server knows --------------------------------------------------------------------------------
    def _take(self, pod: Pod, allocations: Collection[Allocation]) -> None:
        for status in pod.statuses:
            if is_unsaid(status):
                self._sight(_unsaid(ContainerKey(pod.uid, status.kind, status.name)))
        named = [container for container in pod.containers if not container.resources and (container.visible or container.has_specs)]
        # One that only names cards is remembered with them, and has none for it.
        is_remembered = not named and not pod.uids.isdisjoint(self._before.pods)
        has_devices = is_relevant(pod) or bool(allocations) or is_remembered
        if not (has_devices or named or pod.is_privileged or pod.handed != NOTHING):
            return
        judgement = self._judge_ended(pod) if pod.phase in TERMINAL else None
        if pod.phase in TERMINAL and judgement is None:
            self._release(pod, allocations)
            return
        resolution = self._resolve(pod, allocations) if has_devices else Resolution()
        own = self._all(resolution)
        if own or resolution.problems:
            judgement = judgement or self._judge(pod, has_allocation=bool(allocations))
            self._claim(pod.uid, own, judgement)
        self._doubt(pod.uid, resolution.problems)
        by_environment = frozenset[int]().union(*(environment_cards(container, self._cards) for container in named))
        if by_environment:
            self._claim(pod.uid, by_environment, Judgement(Standing.PROTECTED, ClaimReason.NAMED_IN_ENVIRONMENT))
        by_node = self._handed(allocations, pod)
        if by_node:
            # Also where nothing of it lives: a Pod that cannot be started takes up the same vNPU again.
            self._claim(pod.uid, by_node, Judgement(Standing.PROTECTED, ClaimReason.NAMED_BY_NODE))
        if pod.is_privileged:
            self._claim(pod.uid, self._cards.all, Judgement(Standing.PROTECTED, ClaimReason.PRIVILEGED), unless_clean=True)
        self._remember(pod.uids, resolution.named | by_environment | by_node, resolution.resources)

    def _resolve(self, pod: Pod, allocations: Collection[Allocation]) -> Resolution:
        seen = frozenset[int]().union(*(known.cards for uid in pod.uids if (known := self._before.pods.get(uid))))
        return resolve(pod, allocations, pod.cards.named(self._cards.dies), seen, self._cards)

    def _handed(self, allocations: Collection[Allocation], pod: Pod | None = None) -> frozenset[int]:
        """Return the cards of vNPUs that are there already, and that a plugin or the Pod itself names."""
        vnpus = frozenset[int]().union(*(allocation.handed.vnpus for allocation in allocations))
        anywhere = [self._cards.of_resource(allocation.resource) for allocation in allocations if allocation.handed.is_any]
        if pod is not None:
            vnpus |= pod.handed.vnpus
            anywhere += [self._cards.all] if pod.handed.is_any or may_name_vnpu(pod) else []
        return self._cards.of_vnpus(vnpus).union(*anywhere)

    def _judge(self, pod: Pod, *, has_allocation: bool) -> Judgement:
        judgement = judge(pod, has_allocation=has_allocation, was_unsaid=lambda key: _unsaid(key) in self._before.sights)
        if judgement.standing is Standing.PROTECTED:
            return judgement
        if is_soft(pod.annotations or {}):
            return Judgement(Standing.PROTECTED, ClaimReason.SOFT_SPLIT)
        alive = self._alive(pod, containers_only=True)
        if alive is Finding.HELD:
            return Judgement(Standing.PROTECTED, ClaimReason.CONTAINER_ALIVE, judgement.detail)
        if alive is Finding.UNKNOWN and judgement.standing is Standing.CANDIDATE:
            return Judgement(Standing.UNKNOWN, ClaimReason.HOST_UNREADABLE)
        return judgement

    def _judge_ended(self, pod: Pod) -> Judgement | None:
        """Return why a Pod whose phase is terminal claims its cards all the same; None: it claims nothing."""
        if is_running(pod):
            return Judgement(Standing.PROTECTED, ClaimReason.ENDED_BUT_RUNNING)
        alive = self._alive(pod, containers_only=False)
        if alive is Finding.HELD:
            return Judgement(Standing.PROTECTED, ClaimReason.ENDED_BUT_ALIVE)
        return Judgement(Standing.UNKNOWN, ClaimReason.HOST_UNREADABLE) if alive is Finding.UNKNOWN else None

    def _alive(self, pod: Pod, *, containers_only: bool) -> Finding:
        found = {self._host.pod(uid, containers_only=containers_only) for uid in pod.uids}
        return next((finding for finding in (Finding.HELD, Finding.UNKNOWN) if finding in found), Finding.CLEAN)

    def _release(self, pod: Pod, allocations: Collection[Allocation]) -> None:
        """Take note of when a Pod was over. Its annotations, which may be malformed for ever, are not read."""
        seen = self._sight((_ENDED, pod.uid))
        ends = [status.termination.finished_usec for status in pod.statuses if status.termination is not None]
        finished = [end for end in ends if end is not None and end > 0]
        over = _placed(max(finished), seen) if finished and len(finished) == len(ends) else seen.monotonic
        remembered = [known for uid in pod.uids if (known := self._before.pods.get(uid))]
        told = frozenset[int]().union(*(known.cards for known in remembered), *(allocation.cards or () for allocation in allocations))
        for phy in told & self._cards.all:
            self._released[phy] = max(over, self._released.get(phy, over))
        if remembered:
            self._remember(pod.uids, told, frozenset().union(*(known.resources for known in remembered)))

    # --- Pods that it does not know ------------------------------------------------------------------------------------
    def _take_unknown(self, uid: str, allocations: Collection[Allocation]) -> None:
        before = self._before.pods.get(uid)
        resolution = resolve_unknown(allocations, before, self._cards)
        known = Remembered(resolution.named, resolution.resources)
        if self._host.pod(uid, containers_only=False) is Finding.CLEAN:
            since = before.gone_since if before is not None and before.gone_since is not None else self._now.monotonic
            looks = before.gone_looks + 1 if before is not None and before.gone_since is not None else 1
            known = replace(known, gone_since=since, gone_looks=looks)
            if looks >= self._bounds.gone_looks and self._now.monotonic - since >= self._bounds.gone_seconds:
                if allocations:
                    # The kubelet may keep an entry for days: it must not begin to protect again.
                    self._remembered[uid] = replace(known, gone_looks=self._bounds.gone_looks)
                return
        self._remembered[uid] = known
        reason = ClaimReason.ONLY_IN_CHECKPOINT if allocations else ClaimReason.ONLY_REMEMBERED
        self._claim(uid, self._all(resolution) | self._handed(allocations), Judgement(Standing.PROTECTED, reason))
        self._doubt(uid, resolution.problems)

    # --- what is found -------------------------------------------------------------------------------------------------
    def _all(self, resolution: Resolution) -> frozenset[int]:
        of_resources = (self._cards.of_resource(resource) for resource in resolution.resources)
        return (resolution.named & self._cards.all).union(*of_resources)

    def _claim(self, uid: str, cards: Iterable[int], judgement: Judgement, *, unless_clean: bool = False) -> None:
        since = self._sight(("claim", uid, judgement.standing, judgement.reason)).monotonic
        failed_at, began_at = self._failure(judgement.failures)
        claim = Claim(uid, judgement.standing, judgement.reason, judgement.detail, since, failed_at, began_at, unless_clean)
        for phy in cards:
            self._claims[phy].add(claim)

    def _doubt(self, uid: str, problems: Iterable[Problem]) -> None:
        for problem in problems:
            if problem.cards is None:
                since = self._sight(("blocker", uid, problem.reason)).monotonic
                self._blockers.add(Blocker(uid, problem.reason, problem.detail, since))
            else:
                self._claim(uid, problem.cards & self._cards.all, Judgement(Standing.UNKNOWN, problem.reason, problem.detail))

    def _failure(self, failures: Iterable[tuple[ContainerKey, Termination | None]]) -> tuple[float | None, float | None]:
        """Return when the latest attempt failed and when it began, by our clock; None where that is not known of one of them."""
        ends: list[float] = []
        begins: list[float | None] = []
        for key, termination in failures:
            if termination is None or not termination.finished_usec or termination.finished_usec < 0:
                return None, None
            seen = self._sight(("end", *key, str(termination.finished_usec)))
            ends.append(_placed(termination.finished_usec, seen))
            # A container that was never created has 1970 for its begin.
            began = termination.started_usec if termination.started_usec and termination.started_usec > 0 else None
            begins.append(_placed(began, seen) if began is not None and began <= termination.finished_usec else None)
        known = [begin for begin in begins if begin is not None]
        return max(ends, default=None), min(known) if known and len(known) == len(begins) else None

    def _remember(self, uids: Iterable[str], cards: frozenset[int], resources: frozenset[str]) -> None:
        for uid in uids:
            before = self._before.pods.get(uid)
            seen = cards if before is None else cards | before.cards
            if seen or resources:
                self._remembered[uid] = Remembered(seen, resources)

    def _sight(self, key: tuple[str, ...]) -> Moment:
        """Return when something was seen first without a break."""
        return self._sights.setdefault(key, self._before.sights.get(key, self._now))


def _unsaid(key: ContainerKey) -> tuple[str, ...]:
    return (_UNSAID, *key)


def _placed(usec: int, seen: Moment) -> float:
    """Return a foreign time by our monotonic clock, which is never later than its first sight."""
    return seen.monotonic - max(0, seen.realtime_usec - usec) / 1_000_000


def _claim_order(claim: Claim) -> tuple[int, str, str, str, bool]:
    return list(Standing).index(claim.standing), claim.uid, claim.reason, claim.detail, claim.unless_clean
