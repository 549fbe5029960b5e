"""What one look at a node tells of its vNPUs: the one input of every decision in this package. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from devward.cluster.evidence import Finding
from devward.cluster.hami import CardRefusal, vnpu_refusal
from devward.cluster.statement import ContainerSight, VnpuSight
from devward.cluster.views import CardState, Snapshot
from devward.model import Manage
from devward.npu.inventory import Picture
from devward.npu.pins import PinReport, Standing
from devward.npu.views import Use, VnpuView
from devward.reclaim.reasons import WHY_TEXT, Why


@dataclass(frozen=True, slots=True)
class Reach:
    """Which cards are reclaimed on."""

    manage: Manage = Manage.HAMI
    #: Names or die ids, in capitals (`[reclaim] cards`); None: every card.
    cards: frozenset[str] | None = None

    def selects(self, card: CardState) -> bool:
        """Whether a card is one of those that were chosen."""
        return self.cards is None or card.name in self.cards or bool(card.die and card.die in self.cards)


class Cut(StrEnum):
    """What breaks a wait although nothing is unknown."""

    KUBELET_RESTARTED = "kubelet-restarted"
    #: SIGHUP, or Reload on the bus.
    RELOADED = "configuration-reloaded"
    MODE_CHANGED = "mode-changed"
    PAUSE_ENDED = "pause-ended"
    KILL_SWITCH_REMOVED = "kill-switch-removed"
    UNPINNED = "unpinned"
    #: The daemon itself was started again.
    RESTARTED = "devward-restarted"
    RESUMED = "resumed-from-suspend"
    #: The host's time was set, or a clock went back.
    CLOCK = "clock-changed"


@dataclass(frozen=True, slots=True)
class Interruption:
    """Something that happened since the look before."""

    cut: Cut
    #: Identities of the vNPUs whose wait it breaks; none: of all.
    which: frozenset[str] = frozenset()

    def breaks(self, identity: str) -> bool:
        """Whether it breaks the wait of this vNPU."""
        return not self.which or identity in self.which


class PinHold(StrEnum):
    """Whether a vNPU is pinned."""

    NONE = "none"
    PINNED = "pinned"
    #: A pin may mean it.
    MAYBE = "maybe"
    #: The pins could not be read.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class VnpuFacts:
    """One vNPU, with all that a look tells of it alone."""

    #: As in the picture of NPUs, such as `v0148`.
    name: str
    #: What tells it from every other vNPU: an opaque text, and another text is another vNPU. Empty: nothing does.
    identity: str
    #: Name of its card.
    card: str
    vdev: int
    template: str = ""
    cores: float = 0.0
    use: Use = Use.UNKNOWN
    #: Code and sentence why it is not vouched for; both empty where it is.
    fault: str = ""
    fault_text: str = ""
    #: Whether a process has its device, by a scan of every process.
    descriptors: Finding = Finding.UNKNOWN
    #: Whether a container names it, by the bundle of every one.
    bundles: Finding = Finding.UNKNOWN
    #: Whether anybody of the host has it, by every source.
    host: Finding = Finding.UNKNOWN
    #: Whether the host was asked about it at all.
    is_asked: bool = True
    #: Who holds it, or what is in doubt, fit to be shown.
    host_reasons: tuple[str, ...] = ()
    pin: PinHold = PinHold.NONE
    #: Why it is not of HAMi's making, whatever its card is.
    refusal: CardRefusal | None = None
    #: Containers that name it, by namespace and id.
    holders: frozenset[str] = frozenset()
    #: A container of this host that names its card, be it a Pod's or not; empty: there is none.
    card_named_by: str = ""
    #: It has a device node. Without one, as for virtual machines, nothing would tell it from a later one.
    has_node: bool = True
    #: What the next run of the daemon in the same boot finds it again by; empty: nothing.
    lasting: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a node."""

    #: Seconds of the monotonic clock, and microseconds since 1970. With a snapshot, that snapshot's.
    at: float
    at_usec: int
    #: None: Pods were not listed.
    snapshot: Snapshot | None
    vnpus: tuple[VnpuFacts, ...]
    reach: Reach = field(default_factory=Reach)
    interruptions: tuple[Interruption, ...] = ()
    #: Containers whose first process is known to live, by namespace and id; None: that could not be read.
    living: frozenset[str] | None = None
    #: Identities of vNPUs for which an administrator asked to shorten the wait.
    shorten: frozenset[str] = frozenset()
    #: There are no other vNPUs.
    is_whole: bool = True
    #: Each vNPU asks for its card several times a look.
    _cards: Mapping[str, CardState] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the cards by their names."""
        cards = self.snapshot.cards if self.snapshot is not None else ()
        object.__setattr__(self, "_cards", {card.name: card for card in cards})

    @property
    def begun(self) -> float:
        """When the oldest of its parts was taken."""
        return self.at - (self.snapshot.age if self.snapshot is not None else 0.0)

    @property
    def is_deferred(self) -> bool:
        """Whether HAMi is giving out a device."""
        return self.snapshot is not None and self.snapshot.is_deferred

    def card(self, name: str) -> CardState | None:
        """Return what is known of a card; None: nothing."""
        return self._cards.get(name)

    def vnpu(self, identity: str) -> VnpuFacts | None:
        """Return the vNPU with an identity."""
        return next((vnpu for vnpu in self.vnpus if vnpu.identity == identity), None)

    def usec(self, moment: float) -> int:
        """Return a moment of the monotonic clock in microseconds since 1970, as this look places it."""
        return max(1, self.at_usec - round((self.at - moment) * 1_000_000))


def container_key(container: ContainerSight) -> str:
    """Return what tells a container from every other one of this host."""
    return f"{container.namespace}/{container.id}"


def take_look(
    picture: Picture,
    snapshot: Snapshot | None,
    sights: Mapping[str, VnpuSight | Finding],
    pins: PinReport | None,
    *,
    at: float = 0.0,
    at_usec: int = 0,
    identities: Mapping[str, str] | None = None,
    containers: Collection[ContainerSight] | None = None,
    living: frozenset[str] | None = None,
    reach: Reach | None = None,
    interruptions: Iterable[Interruption] = (),
    shorten: frozenset[str] = frozenset(),
) -> Look:
    """Return what a look tells, from what was gathered.

    `sights` are what the host says of vNPUs, and `identities` what tells them from others (the picture's own text by default), both by
    name. `pins` is None where they cannot be read. `at` and `at_usec` are for a look without a snapshot. `containers` are every container
    of the host that was not seen to have ended, None where they could not be read; `living` the keys (`container_key`) of those whose
    first process lives. All that is of the host must be of one statement, the one that went into the snapshot.
    """
    known = {vnpu.name: vnpu.identity for vnpu in picture.vnpus} if identities is None else identities
    counted = Counter(known.get(view.name, "") for view in picture.vnpus)
    chips = {card.name: card.chip.rpartition(" ")[2] for card in picture.cards}
    pinned = {one.view.name: one.standing for one in pins.vnpus} if pins is not None else None
    named: dict[int, set[str]] = {}
    for container in containers or ():
        for vdev in container.vdevs:
            named.setdefault(vdev, set()).add(container_key(container))
    by_card = {card.name: _naming(card.phy_id, containers or ()) for card in picture.cards}
    vnpus = tuple(
        _facts(
            view,
            known.get(view.name, ""),
            sights.get(view.name),
            _pin_hold(view.name, pinned),
            is_shared=counted[known.get(view.name, "")] > 1,
            refusal=vnpu_refusal(chips.get(view.card, ""), view.template),
            holders=frozenset(named.get(view.vdev, ())),
            card_named_by=by_card.get(view.card, ""),
            lasting=picture.lasting.get(view.name, ""),
        )
        for view in picture.vnpus
    )
    return Look(
        at=snapshot.at if snapshot is not None else at,
        at_usec=snapshot.at_usec if snapshot is not None else at_usec,
        snapshot=snapshot,
        vnpus=vnpus,
        reach=reach or Reach(),
        interruptions=tuple(interruptions),
        living=living,
        shorten=shorten,
        is_whole=not picture.in_doubt,
    )


def _facts(
    view: VnpuView,
    identity: str,
    sight: VnpuSight | Finding | None,
    pin: PinHold,
    *,
    is_shared: bool,
    refusal: CardRefusal | None,
    holders: frozenset[str],
    card_named_by: str,
    lasting: str,
) -> VnpuFacts:
    fault, text = view.reason.value, view.text
    if identity and is_shared and not fault:
        fault, text = Why.IDENTITY_SHARED.value, WHY_TEXT[Why.IDENTITY_SHARED]
    if isinstance(sight, VnpuSight) and sight.vnpu.vdev != view.vdev:
        sight = None  # of another one
    whole = sight.finding if isinstance(sight, VnpuSight) else sight
    return VnpuFacts(
        name=view.name,
        # One that cannot be told from another has none.
        identity="" if is_shared else identity,
        card=view.card,
        vdev=view.vdev,
        template=view.template,
        cores=view.cores,
        use=view.use,
        fault=fault,
        fault_text=text,
        descriptors=sight.descriptors if isinstance(sight, VnpuSight) else sight or Finding.UNKNOWN,
        bundles=sight.bundles if isinstance(sight, VnpuSight) else sight or Finding.UNKNOWN,
        host=whole or Finding.UNKNOWN,
        is_asked=sight is not None,
        host_reasons=sight.reasons if isinstance(sight, VnpuSight) else (),
        pin=pin,
        refusal=refusal,
        holders=holders,
        card_named_by=card_named_by,
        has_node=bool(view.node),
        lasting=lasting,
    )


def _naming(phy: int, containers: Collection[ContainerSight]) -> str:
    """Return a container that names a card, or may mean it: one that asks for a vNPU of no card may mean any."""
    for container in containers:
        may_mean_any = container.cards is None or (bool(container.template) and not container.cards)
        if may_mean_any or phy in (container.cards or ()):
            return container_key(container)
    return ""


def _pin_hold(name: str, pinned: Mapping[str, Standing] | None) -> PinHold:
    if pinned is None:
        return PinHold.UNKNOWN
    standing = pinned.get(name)
    if standing is None:
        return PinHold.NONE
    return PinHold.MAYBE if standing is Standing.UNKNOWN else PinHold.PINNED
