"""One look at who owns what, joined from every source, or with why it cannot be told. Pure.

The order is from the outside in: first whether every part is there and of now, then whether the API server's Node is this host and is kept
up to date, then who hands out its cards, and last the Pods. What is unknown of the node outweighs all that is known of a card. A look with
anything unknown of the node still teaches which Pods have cards, and never that one is gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from devward.cluster.claimants import Claimant, claimants, claimed_cores
from devward.cluster.claims import Allocation, CardClaims, Claims, KnownCard, Memory, Moment, Remembered, Standing, strongest
from devward.cluster.evidence import Finding
from devward.cluster.hami import CardRefusal, Registers, card_refusal, read_registers, see_handshakes, see_lock
from devward.cluster.ledger import Ledger
from devward.cluster.managers import Drivers, Sign, signs
from devward.cluster.node import (
    KnownNode,
    Kubelets,
    LeaseFacts,
    LeaseSight,
    NodeFacts,
    NodeIdentity,
    NodeRefusal,
    ThisHost,
    identify,
    refusals,
    see_lease,
)
from devward.cluster.observations import Look, Scope, sentence
from devward.cluster.parts import HostFacts, Parts, SnapshotBounds, Source
from devward.cluster.podlist import PodList
from devward.cluster.pods import Evidence, join_claims
from devward.cluster.readings import Readings, ReadPods
from devward.cluster.recollection import KubeletSight, Loss, Recollection, lasting, seen_of, still_there, with_seen, within_bounds
from devward.cluster.views import CardState, Reset, Snapshot
from devward.model import Identity
from devward.npu.inventory import BROKER
from devward.npu.views import UNKNOWN_NUMBER, CardHealth, CardView
from devward.reasons import Reason

_T = TypeVar("_T")

#: While one of these holds, the Node that was read may be another host's.
_ELSEWHERE: Final = frozenset(
    {
        NodeRefusal.UID_CHANGED,
        NodeRefusal.UID_LOST,
        NodeRefusal.HOST_UNKNOWN,
        NodeRefusal.BOOT_DIFFERS,
        NodeRefusal.MACHINE_DIFFERS,
        NodeRefusal.TLS_UNVERIFIED,
    }
)
#: What node.py says of a kubelet that was not found; the scan knows better why.
_BY_SCAN: Final = frozenset({NodeRefusal.KUBELET_MISSING, NodeRefusal.KUBELET_SEVERAL, NodeRefusal.KUBELET_UNREADABLE})
_OF_LEASE: Final = frozenset({NodeRefusal.LEASE_NOT_OURS, NodeRefusal.LEASE_UNSEEN, NodeRefusal.LEASE_STALE})

#: Of a sign of another manager that was not seen at a Pod.
_SOURCE_OF_SIGN: Final = {"node": Source.NODE, "checkpoint": Source.CHECKPOINT, "driver": Source.DRIVERS}


class _Blind:
    """The host's evidence where there is none: nothing is known of any Pod."""

    def pod(self, uid: str, *, containers_only: bool) -> Finding:
        """Answer."""
        return Finding.UNKNOWN


def take_snapshot(
    parts: Parts,
    facts: HostFacts,
    known: Recollection,
    now: Moment,
    *,
    accepted: str = "",
    is_resumed: bool = False,
    unsaved: str = "",
    bounds: SnapshotBounds | None = None,
    read_pods: ReadPods | None = None,
) -> tuple[Snapshot, Recollection]:
    """Return what a look says, and what to hand over at the next one.

    `accepted` is the UID of the Node that an administrator accepted. `is_resumed`: the host was suspended since the look before.
    `unsaved` says, fit to be shown, why what the look before handed over could not be kept. `read_pods` reads the list of Pods, if not
    parse_pod_list does.
    """
    look = _Look(parts, facts, known, now, accepted, bounds or SnapshotBounds(), read_pods, is_resumed=is_resumed, unsaved=unsaved)
    return look.snapshot(), within_bounds(look.recollection())


@dataclass(frozen=True, slots=True)
class _Node:
    """The Node where it could be read."""

    facts: NodeFacts
    identity: NodeIdentity
    is_here: bool


class _Look:
    """One look, put together source by source."""

    def __init__(
        self,
        parts: Parts,
        facts: HostFacts,
        known: Recollection,
        now: Moment,
        accepted: str,
        bounds: SnapshotBounds,
        read_pods: ReadPods | None,
        *,
        is_resumed: bool,
        unsaved: str,
    ) -> None:
        self._parts = parts
        self._facts = facts
        self._now = now
        self._bounds = bounds
        is_of_boot = not (facts.boot_id and known.boot_id and known.boot_id != facts.boot_id)
        self._ledger = Ledger(known.unknowns if is_of_boot else {}, now)
        if unsaved:
            self._ledger.take_look(Look.MEMORY_UNSAVED, Source.MEMORY, unsaved)
        if is_resumed:
            self._ledger.reset(Reset(Scope.NODE, Look.RESUMED.value))
            known = lasting(known)
        self._before = self._still_true(known) if is_of_boot else Recollection(node=known.node)
        self._read = Readings(parts, facts.node_name, now, self._bounds, self._ledger, read_pods)
        self._kubelets, self._kubelet = self._see_kubelet()
        self._lease = self._see_lease()
        self._known = self._before.node or self._lost_node()
        self._node = self._take_node(accepted)
        self._registers = self._take_annotations()
        self._foreign = self._take_managers()
        self._is_whole = self._ledger.is_node_known
        self._joined, self._claims = self._join()
        self._loss = self._outlive_loss()
        self._allocations = _by_uid(self._read.allocations, self._read.pods)
        self._cards = self._take_cards()

    # --- what comes out ------------------------------------------------------------------------------------------------
    def snapshot(self) -> Snapshot:
        """Return what was found."""
        lock = self._lock
        return Snapshot(
            at=self._now.monotonic,
            at_usec=self._now.realtime_usec,
            cards=self._cards,
            unknowns=self._ledger.unknowns,
            resets=self._ledger.resets,
            sources=tuple(self._read.uses),
            is_deferred=lock is not None and lock.defers(self._now.monotonic),
            foreign=self._foreign,
            claimants=self._claimants(),
            identity=self._node.identity if self._node is not None else None,
            node_uid=self._node.facts.uid if self._node is not None else "",
        )

    def recollection(self) -> Recollection:
        """Return what to remember."""
        before = self._before
        return Recollection(
            boot_id=self._facts.boot_id or before.boot_id,
            node=self._known_node(),
            pods=self._remembered(),
            sights=before.sights if self._joined is None else self._joined.sights,
            unknowns=self._ledger.sights,
            lease=self._lease[1],
            lease_at=self._lease[2],
            handshakes=self._handshakes,
            lock=self._lock,
            kubelet=self._kubelet,
            seen_at=self._now.monotonic,
            loss=self._loss,
        )

    # --- what was known ------------------------------------------------------------------------------------------------
    def _still_true(self, known: Recollection) -> Recollection:
        """Return what counts of what is known of this boot."""
        if known.seen_at is not None and known.seen_at > self._now.monotonic:
            self._ledger.take_look(Look.CLOCK_BACK, Source.MEMORY)
            return lasting(known)
        return known

    def _outlive_loss(self) -> Loss | None:
        """Return what is left of a loss. A look that is not whole begins its wait anew, as it does for each Pod."""
        loss = self._before.loss
        if loss is None:
            return None
        now = self._now.monotonic
        if not self._is_whole:
            loss = Loss(loss.detail)
        else:
            loss = Loss(loss.detail, now if loss.since is None else loss.since, loss.looks + 1)
            if loss.is_over(now, self._bounds.pods):
                return None
        self._ledger.take_look(Look.MEMORY_LOST, Source.MEMORY, loss.detail)
        return loss

    # --- the kubelet and its Node --------------------------------------------------------------------------------------
    def _see_kubelet(self) -> tuple[Kubelets, KubeletSight | None]:
        """Return the kubelet, and since when it was seen without a break."""
        scan, before = self._read.kubelet, self._before.kubelet
        if scan is None or scan.kubelet is None or scan.doubts:
            for doubt in scan.doubts if scan is not None else ():
                self._ledger.take_doubt(Source.KUBELET, doubt)
            if scan is not None and not scan.doubts:
                self._ledger.take_look(Look.PART_MISSING, Source.KUBELET)
            return Kubelets(doubt="it was not found"), None
        process = f"{scan.kubelet.pid} started at {scan.kubelet.started}"
        sight = before if before is not None and before.process == process else KubeletSight(process, self._now.monotonic)
        last = self._before.node.kubelet if self._before.node is not None else ""
        if (before is not None and before.process != process) or (last and last != process):
            self._ledger.reset(Reset(Scope.NODE, Look.KUBELET_RESTARTED.value))
        return Kubelets((process,), self._now.monotonic - sight.since), sight

    def _see_lease(self) -> tuple[LeaseFacts | None, LeaseSight | None, float | None]:
        """Return the Lease, what was seen of it, and when it was looked at last."""
        before = self._before
        if self._read.lease is None:
            return None, before.lease, before.lease_at
        # Never ahead of now, or it would stay fresh for as long.
        at = min(self._now.monotonic, self._parts.lease.asked_at)
        # It may have been renewed right after the look before: then that tells no more than how long ago that look was.
        is_close = before.lease_at is not None and 0 <= at - before.lease_at <= self._bounds.lease_looks
        return self._read.lease, see_lease(before.lease if is_close else None, self._read.lease, at), at

    def _take_node(self, accepted: str) -> _Node | None:
        node = self._read.node
        if node is None:
            return None
        parts = self._parts
        verified = all(answer.verified for answer in (parts.node, parts.lease, parts.pods) if answer.status)
        host = ThisHost(self._facts.boot_id, self._facts.machine_ids, self._kubelets, tls_verified=verified)
        identity = identify(node, self._known, host, accepted)
        facts, sight, _ = self._lease
        lease = (facts or LeaseFacts("", ""), sight if facts is not None and sight is not None else LeaseSight(""))
        found = refusals(node, identity, lease, host, self._now.monotonic, self._bounds.node)
        for refused in found:
            # Where the kubelet was not found, or the Lease not read, the ledger has why.
            is_told = (refused.reason in _BY_SCAN and self._kubelet is None) or (refused.reason in _OF_LEASE and facts is None)
            if not is_told:
                self._ledger.take(Scope.NODE, refused.reason.value, Source.NODE, refused.sentence)
        if identity is NodeIdentity.ADOPTED:
            self._ledger.reset(Reset(Scope.NODE, Look.NODE_ADOPTED.value))
        return _Node(node, identity, is_here=_ELSEWHERE.isdisjoint(refused.reason for refused in found))

    def _lost_node(self) -> KnownNode | None:
        """Return what stands for the Node that was kept and is lost: one that was made anew must not be taken for the first."""
        if self._before.loss is None or self._kubelet is None or not self._facts.boot_id:
            return None
        return KnownNode("", self._facts.boot_id, self._kubelet.process)

    def _known_node(self) -> KnownNode | None:
        """Return the Node that is this host's from now on: never one that may be another's, nor while the kubelet is in doubt."""
        node = self._node
        if node is None or not node.is_here or self._kubelet is None:
            return self._known
        return KnownNode(node.facts.uid, self._facts.boot_id, self._kubelet.process)

    def _take_annotations(self) -> Registers | None:
        """Take what HAMi says on the Node, if that is this host's."""
        before = self._before
        is_void = self._node is not None and self._node.identity.resets
        self._handshakes = {} if is_void else before.handshakes
        self._lock = None if is_void else before.lock
        if self._node is None or not self._node.is_here:
            return None
        annotations = self._node.facts.annotations or {}
        # A report is as old as the question, and never ahead of now; a lock was seen no earlier than with the answer.
        self._handshakes = see_handshakes(self._handshakes, annotations, min(self._now.monotonic, self._parts.node.asked_at))
        self._lock = see_lock(self._lock, annotations, self._parts.node.received_at)
        return read_registers(annotations)

    def _take_managers(self) -> tuple[Sign, ...]:
        node = self._read.node
        if node is None:
            return ()
        checkpoint = self._read.checkpoint
        registered = [resource for resource, _ in checkpoint.registered] if checkpoint is not None else []
        pods = self._read.pods.pods if self._read.pods is not None else ()
        found = signs(node, pods, self._read.allocations, registered, self._read.drivers or Drivers(unreadable=True))
        for sign in found:
            self._ledger.take(Scope.NODE, sign.reason.value, sign.uid or _SOURCE_OF_SIGN[sign.where], sign.sentence)
        return found

    # --- Pods ----------------------------------------------------------------------------------------------------------
    def _known_cards(self) -> tuple[KnownCard, ...]:
        cards = self._read.picture.cards if self._read.picture is not None else ()
        return tuple(KnownCard(card.phy_id, card.die_id.upper()) for card in cards if card.phy_id >= 0 and card.die_id)

    def _join(self) -> tuple[Memory | None, Claims | None]:
        if self._read.pods is None:
            return None, None
        registered = self._registers.dies if self._registers is not None else {}
        evidence = Evidence(self._read.pods, self._read.allocations, self._read.host or _Blind(), self._known_cards(), registered)
        is_void = self._node is not None and self._node.identity.resets
        before = Memory(self._before.pods, {} if is_void else self._before.sights)
        claims, memory = join_claims(evidence, before, self._now, self._bounds.pods)
        for blocker in claims.blockers:
            self._ledger.take(Scope.NODE, blocker.reason.value, blocker.uid, blocker.sentence)
        return memory, claims

    def _remembered(self) -> Mapping[str, Remembered]:
        """Return the Pods that were seen with devices. Only a look that is whole makes one forgotten, or counts that it is gone."""
        if self._is_whole and self._joined is not None:
            return self._joined.pods
        kept = still_there(self._before.pods)
        if self._joined is not None:
            kept = with_seen(kept, self._joined.pods.items())
        return with_seen(kept, seen_of(self._read.allocations))

    # --- cards ---------------------------------------------------------------------------------------------------------
    def _take_cards(self) -> tuple[CardState, ...]:
        picture = self._read.picture
        if picture is None:
            return ()
        doubtful = {card.name for card in picture.cards if not _is_vouched_for(card)}
        for card in picture.cards:
            if card.name in doubtful:
                self._ledger.take(Scope.CARD, Look.NPU_IN_DOUBT.value, Source.NPUS, card.text or sentence(Look.NPU_IN_DOUBT), card.name)
        if picture.in_doubt and (not doubtful or any(finding.subject == BROKER for finding in picture.findings)):
            self._ledger.take_look(Look.NPUS_IN_DOUBT, Source.NPUS)
        by_card = {entry.card: entry for entry in self._claims.cards} if self._claims is not None else {}
        return tuple(
            self._card(card, by_card.get(KnownCard(card.phy_id, card.die_id.upper())), is_doubtful=card.name in doubtful)
            for card in picture.cards
        )

    def _card(self, card: CardView, claims: CardClaims | None, *, is_doubtful: bool) -> CardState:
        for claim in claims.claims if claims is not None else ():
            if claim.standing is Standing.UNKNOWN:
                self._ledger.take(Scope.CARD, claim.reason.value, claim.uid, claim.sentence, card.name)
            elif claim.standing is Standing.PROTECTED:
                self._ledger.reset(Reset(Scope.CARD, claim.reason.value, card.name, claim.unless_clean))
        unmanaged = self._unmanaged(card)
        if unmanaged is not None:
            self._ledger.reset(Reset(Scope.CARD, unmanaged.value, card.name))
        is_node_known = self._ledger.is_node_known
        # Without claims nothing was asked, which is not the same as that nobody has it.
        floor = Standing.UNKNOWN if is_doubtful or claims is None else Standing.NONE
        return CardState(
            name=card.name,
            phy=card.phy_id,
            die=card.die_id.upper(),
            protection=strongest((floor, claims.standing if claims is not None else floor)) if is_node_known else Standing.UNKNOWN,
            protection_if_clean=(
                strongest((floor, claims.standing_if_clean if claims is not None else floor)) if is_node_known else Standing.UNKNOWN
            ),
            claims=claims.claims if claims is not None else (),
            candidate_since=claims.candidate_since if claims is not None else None,
            released_at=claims.released_at if claims is not None else None,
            claimed_cores=None if claims is None else claimed_cores(card.phy_id, _total(card), claims.claims, self._allocations),
            is_managed=self._registers is not None and unmanaged is None,
            unmanaged=unmanaged,
        )

    def _claimants(self) -> tuple[Claimant, ...]:
        blockers = self._claims.blockers if self._claims is not None else ()
        uids = {claim.uid for card in self._cards for claim in card.claims} | {blocker.uid for blocker in blockers}
        return claimants(uids, self._read.pods, self._read.allocations, self._read.host, self._before.pods)

    def _unmanaged(self, card: CardView) -> CardRefusal | None:
        if self._registers is None:
            return None
        return card_refusal(card.die_id.upper(), self._registers, self._handshakes, self._now.monotonic)


def _by_uid(allocations: tuple[Allocation, ...], pods: PodList | None) -> dict[str, tuple[Allocation, ...]]:
    """Return what each Pod was given, by the UID under which it claims: the kubelet has another one for a static Pod."""
    claiming = {uid: pod.uid for pod in (pods.pods if pods is not None else ()) for uid in pod.uids}
    found: dict[str, tuple[Allocation, ...]] = {}
    for allocation in allocations:
        uid = claiming.get(allocation.uid, allocation.uid)
        found[uid] = (*found.get(uid, ()), allocation)
    return found


def _total(card: CardView) -> float | None:
    return card.total_cores if card.total_cores != UNKNOWN_NUMBER else None


def _is_vouched_for(card: CardView) -> bool:
    return (
        card.identity is Identity.VALID
        and card.health is CardHealth.HEALTHY
        and card.reason is Reason.OK
        and card.phy_id >= 0
        and bool(card.die_id)
    )
