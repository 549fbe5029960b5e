"""Which NPUs and vNPUs there are, and for which of them devward can vouch. Pure.

The vendor's library says what there is; nodes, sysfs, /etc/vnpu.cfg, device events and earlier looks must agree. Whatever does not is a
fault: of a chip, and then of all its vNPUs, or of one vNPU. What has a fault is shown with its reason and vouched for by nobody. What the
library cannot be asked about is shown as it was seen last, with the reason why it may be otherwise by now.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from devward.model import Finding, Identity
from devward.npu.chips import ID_LIMIT, Host, faults, identity_of, is_not_offered, node_fault, oddities, said_of
from devward.npu.complaints import Complaints, Fault
from devward.npu.facts import Aspect, Chip, Inventory, Mode, Node, Vnpu
from devward.npu.families import has_vgroups
from devward.npu.host import Surroundings
from devward.npu.memory import Memory, Place, Seen, marks, remember
from devward.npu.numbering import SLOTS, TEMPLATE, vfid_of
from devward.npu.presence import MANAGERS
from devward.npu.views import UNKNOWN_NUMBER, CardHealth, CardView, Management, Protection, Use, Verdict, VnpuView
from devward.npu.vnpu_cfg import PATH as RECORDS_FILE
from devward.reasons import Reason

#: What findings about the broker and the library are about.
BROKER: Final = "devward-dcmi.service"
_DEVICES: Final = "/dev"

_View = TypeVar("_View", CardView, VnpuView)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why the broker gave no inventory."""

    reason: Reason
    text: str
    #: There is no vendor's library: the host may have no NPUs at all.
    is_absent: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """What is published of NPUs."""

    cards: tuple[CardView, ...] = ()
    vnpus: tuple[VnpuView, ...] = ()
    findings: tuple[Finding, ...] = ()
    #: Something does not match that may only be on its way: another look is wanted soon.
    unsettled: bool = False
    #: The library was heard, and there is no NPU.
    empty: bool = False
    #: There may be NPUs or vNPUs that are not listed.
    in_doubt: bool = False
    #: By name of the vNPU, what tells it from others across runs of the daemon; one that cannot be told is not there.
    lasting: Mapping[str, str] = field(default_factory=dict)
    #: The node of each vNPU, by its name; one without a node is not there.
    nodes: Mapping[str, Node] = field(default_factory=dict)
    #: The group of each vNPU, by its name, on chips that have groups.
    vgroups: Mapping[str, int] = field(default_factory=dict)
    #: Of the boot that the library told of; empty where it told nothing.
    boot_id: str = ""

    @property
    def may_have_idle(self) -> bool:
        """Whether some vNPU is idle, or may be: while none is, nothing could come of asking who owns them."""
        return any(vnpu.use is not Use.IN_USE for vnpu in self.vnpus)


def assess(said: Inventory | Unavailable, surroundings: Surroundings, memory: Memory, now_usec: int) -> tuple[Picture, Memory]:
    """Return what is to be published, and what to hand over at the next look."""
    if isinstance(said, Inventory):
        twice = [place for place, count in Counter((chip.card, chip.device) for chip in said.chips).items() if count > 1]
        if not twice:
            look = _Look(said, surroundings, memory, now_usec)
            return look.picture(), look.memory()
        said = Unavailable(Reason.NPU_BROKER_GARBLED, f"card {twice[0][0]} device {twice[0][1]} is listed twice")
    fault = Fault(said.reason, said.text)
    complaints = Complaints(memory.suspects)
    complaints.add(fault, BROKER)
    cards = [_kept_card(card, fault, set()) for card in memory.cards.values()]
    vnpus = [_kept_vnpu(seen, card, set()) for card in cards for seen in memory.vnpus_of((card.card, card.device))]
    return Picture(_by_name(cards), _by_name(vnpus), complaints.findings(), in_doubt=True), memory


class _Look:
    """One inventory joined with what the host shows and what is remembered."""

    def __init__(self, said: Inventory, surroundings: Surroundings, memory: Memory, now_usec: int) -> None:
        self._said = said
        self._surroundings = surroundings
        self._before = memory
        self._now = now_usec
        self._host = Host.of(said)
        self._complaints = Complaints(memory.suspects)
        self._names: set[str] = set()
        self._cards: dict[Place, CardView] = {}
        self._vnpus: dict[Place, dict[int, Seen]] = {}
        self._vgroups: dict[str, int] = {}
        self._complain_of_host()
        for chip in said.chips:
            self._take_chip(chip)
        self._keep_the_unlisted()
        self._compare_nodes()
        self._compare_records()

    def picture(self) -> Picture:
        """Return what is to be published."""
        return Picture(
            cards=_by_name(self._cards.values()),
            vnpus=_by_name(seen.view for known in self._vnpus.values() for seen in known.values()),
            findings=self._complaints.findings(),
            unsettled=self._complaints.unsettled,
            empty=not self._cards and self._host.is_complete,
            in_doubt=not self._host.is_complete,
            nodes=self._nodes(),
            vgroups=self._vgroups,
            boot_id=self._said.boot_id,
            lasting={
                seen.view.name: lasting for known in self._vnpus.values() for seen in known.values() if (lasting := seen.marks.lasting)
            },
        )

    def _nodes(self) -> dict[str, Node]:
        nodes = self._surroundings.nodes or {}
        views = [seen.view for known in self._vnpus.values() for seen in known.values() if seen.view.node]
        found = {view.name: nodes.get(view.node.rpartition("/")[2]) for view in views}
        return {
            name: Node(node.inode, node.ctime_ns, node.major, node.minor)
            for name, node in found.items()
            if node is not None and node.is_character_device
        }

    def memory(self) -> Memory:
        """Return what to remember of this look."""
        homes = []
        for chip in self._said.chips:
            phy = self._host.own_phy(chip)
            if phy is not None and chip.die is not None and self._host.dies[chip.die] == 1:
                homes.append((phy, chip.die))
        return remember(self._before, homes, self._cards, self._vnpus, self._complaints.suspects)

    # --- the host ------------------------------------------------------------------------------------------------------
    def _complain_of_host(self) -> None:
        for problem in self._said.problems:
            if problem.aspect in {Aspect.CARDS, Aspect.CARD}:
                which = "the list of cards" if problem.card is None else f"card {problem.card}"
                self._complaints.add(Fault(Reason.NPU_LIST_INCOMPLETE, f"{which}: {said_of(problem)}"), BROKER)
            elif problem.aspect is Aspect.MODE:
                self._complaints.add(Fault(Reason.NPU_MODE_UNKNOWN, said_of(problem)), BROKER)
            elif not is_not_offered(problem):
                self._complaints.add(Fault(Reason.NPU_ANSWER_ODD, f"{problem.aspect}: {said_of(problem)}"), BROKER)
        nodes = self._surroundings.nodes
        if nodes is None:
            self._complaints.add(Fault(Reason.NPU_NODES_UNREADABLE, self._surroundings.problem), _DEVICES)
        elif self._said.chips and nodes.keys().isdisjoint(MANAGERS):
            self._complaints.suspect(Fault(Reason.NPU_NODE_MISSING, f"{_DEVICES}/{MANAGERS[0]}"), _DEVICES)

    # --- chips ---------------------------------------------------------------------------------------------------------
    def _take_chip(self, chip: Chip) -> None:
        place = (chip.card, chip.device)
        phy = self._host.own_phy(chip)
        name = f"p{phy:03d}" if phy is not None else _place_name(place)
        found = faults(chip, self._host, self._before, self._surroundings)
        for fault in found:
            complain = self._complaints.suspect if fault.reason is Reason.NPU_NODE_MISSING else self._complaints.add
            complain(fault, f"card/{name}")
        for odd in oddities(chip):
            self._complaints.add(odd, f"card/{name}")
        fault = found[0] if found else Fault(Reason.OK)
        node = None if phy is None or self._surroundings.nodes is None else self._surroundings.nodes.get(f"davinci{phy}")
        view = CardView(
            name=name,
            phy_id=UNKNOWN_NUMBER if phy is None else phy,
            logic_id=chip.logic if chip.logic is not None and chip.logic < ID_LIMIT else UNKNOWN_NUMBER,
            card=chip.card,
            device=chip.device,
            die_id=chip.die or "",
            chip=" ".join(word for word in (chip.chip_type, chip.chip_name) if word),
            node=f"{_DEVICES}/{node.name}" if node is not None else "",
            number=node.number if node is not None else "",
            identity=identity_of(found),
            health={None: CardHealth.UNKNOWN, 0: CardHealth.HEALTHY}.get(chip.health, CardHealth.UNHEALTHY),
            managed=Management.UNKNOWN,
            protection=Protection.NOT_EVALUATED,
            claims=(),
            used_cores=_used_cores(chip),
            claimed_cores=UNKNOWN_NUMBER,
            total_cores=UNKNOWN_NUMBER if chip.cores is None else chip.cores,
            reason=fault.reason,
            text=fault.sentence,
        )
        view = _unchanged(view, self._before.cards.get(place))
        self._cards[place] = view
        self._names.add(name)
        if chip.vnpus is not None:
            # Of one that is listed twice the first is shown.
            for vnpu in {vnpu.vdev: vnpu for vnpu in reversed(chip.vnpus)}.values():
                self._take_vnpu(chip, vnpu, view)
        elif not chip.has_no_vnpus:
            for seen in self._before.vnpus_of(place):
                if chip.die is None or chip.die == seen.marks.die:
                    self._keep(seen, view)

    def _take_vnpu(self, chip: Chip, vnpu: Vnpu, card: CardView) -> None:
        place = (chip.card, chip.device)
        is_own = self._host.is_own(chip, vnpu.vdev)
        nodes = self._surroundings.nodes or {}
        fault = self._vnpu_fault(vnpu, is_own=is_own)
        if fault.reason is Reason.NPU_NODE_MISSING:
            self._complaints.suspect(fault, f"card/{card.name}", vnpu.vdev)
        elif fault.reason is not Reason.OK:
            self._complaints.add_vnpu(fault, card.name, vnpu.vdev)
        known = marks(self._said.boot_id, chip, vnpu, self._surroundings, self._before)
        before = self._before.vnpu(place, vnpu.vdev)
        if before is not None and before.marks != known:
            before = None  # another one of this id
        view = VnpuView(
            name=f"v{vnpu.vdev:04d}" if is_own else _vnpu_place_name(vnpu.vdev, place),
            vdev=vnpu.vdev,
            identity=before.view.identity if before is not None else known.identity,
            card=card.name,
            template=vnpu.template or "",
            vfid=vnpu.vfid if vnpu.vfid is not None and 1 <= vnpu.vfid <= SLOTS else UNKNOWN_NUMBER,
            cores=UNKNOWN_NUMBER if vnpu.cores is None else vnpu.cores,
            node=f"{_DEVICES}/vdavinci{vnpu.vdev}" if is_own and f"vdavinci{vnpu.vdev}" in nodes else "",
            use={None: Use.UNKNOWN, True: Use.IN_USE, False: Use.IDLE}[vnpu.in_use],
            verdict=Verdict.UNKNOWN,
            reason=fault.reason or card.reason,
            text=fault.sentence or _of_its_card(card),
            first_seen_usec=before.view.first_seen_usec if before is not None else self._now,
            grace_start_usec=0,
            confirmations=0,
            eligible_at_usec=0,
        )
        if vnpu.vgroup is not None and has_vgroups(card.chip):
            self._vgroups[view.name] = vnpu.vgroup
        self._remember(Seen(place, known, _unchanged(view, None if before is None else before.view)))

    def _vnpu_fault(self, vnpu: Vnpu, *, is_own: bool) -> Fault:
        """Return what alone keeps a vNPU from being vouched for, the weightiest first; OK where nothing does."""
        if len(self._host.listed_by[vnpu.vdev]) > 1:
            return Fault(Reason.VNPU_ID_SHARED)
        if not is_own:
            # The chip has the fault: its list, or its physical id, cannot be believed.
            return Fault(Reason.OK)
        if vnpu.vfid is None or vnpu.vfid != vfid_of(vnpu.vdev):
            return Fault(Reason.VNPU_FUNCTION_MISMATCH)
        if vnpu.template is None or not TEMPLATE.fullmatch(vnpu.template):
            return Fault(Reason.VNPU_TEMPLATE_UNKNOWN)
        # vNPUs for virtual machines have no nodes.
        fault = node_fault(self._surroundings, f"vdavinci{vnpu.vdev}", vnpu.vdev) if self._said.mode is not Mode.VM else None
        if fault is not None:
            return fault
        return Fault(Reason.VNPU_USE_UNKNOWN if vnpu.in_use is None else Reason.OK)

    # --- what is not listed --------------------------------------------------------------------------------------------
    def _keep_the_unlisted(self) -> None:
        """Keep the cards of earlier looks that the library may only have failed to list."""
        for place, card in self._before.cards.items():
            if place in self._cards or not self._host.is_doubtful(place):
                continue
            kept = _kept_card(card, Fault(Reason.NPU_LIST_INCOMPLETE, "it is not listed, and shown as it was seen last"), self._names)
            self._cards[place] = kept
            self._names.add(kept.name)
            for seen in self._before.vnpus_of(place):
                self._keep(seen, kept)

    def _keep(self, seen: Seen, card: CardView) -> None:
        self._remember(replace(seen, view=_kept_vnpu(seen, card, self._names)))

    def _remember(self, seen: Seen) -> None:
        self._vnpus.setdefault(seen.place, {})[seen.view.vdev] = seen
        self._names.add(seen.view.name)

    # --- nodes and records ---------------------------------------------------------------------------------------------
    def _compare_nodes(self) -> None:
        """Tell of nodes that belong to nothing, unless what they belong to may only not have been listed."""
        nodes = self._surroundings.nodes
        if nodes is None or not self._host.is_complete:
            return
        expected = {f"davinci{card.phy_id}" for card in self._cards.values()}
        expected |= {f"vdavinci{vdev}" for known in self._vnpus.values() for vdev in known}
        for name in sorted(nodes.keys() - expected - set(MANAGERS)):
            self._complaints.suspect(Fault(Reason.NPU_NODE_UNMATCHED, name), _DEVICES)

    def _compare_records(self) -> None:
        records = self._surroundings.records
        if records.problem:
            self._complaints.add(Fault(Reason.VNPU_RECORDS_UNREADABLE, records.problem), RECORDS_FILE)
        if not self._host.is_complete:
            return
        recorded = {(record.phy, record.vdev, record.template) for record in records.records}
        present = {
            (self._cards[place].phy_id, vdev, seen.view.template) for place, known in self._vnpus.items() for vdev, seen in known.items()
        }
        for phy, vdev, template in sorted(recorded - present):
            self._complaints.suspect(Fault(Reason.VNPU_RECORD_UNMATCHED, f"{vdev} of physical id {phy}, {template}"), RECORDS_FILE)
        # Without the file, and without a driver that would read it, nothing is recorded anywhere.
        if (records.present or self._said.recover is not None) and not records.problem:
            for phy, vdev, template in sorted(present - recorded):
                what = f"{vdev} of physical id {phy}, {template or 'template unknown'}"
                self._complaints.suspect(Fault(Reason.VNPU_NOT_RECORDED, what), RECORDS_FILE)


def _unchanged(view: _View, before: _View | None) -> _View:
    """Return the view of the look before if nothing changed: whoever compares views by identity has nothing to do then."""
    return before if before is not None and before == view else view


def _kept_card(card: CardView, fault: Fault, taken: set[str]) -> CardView:
    name = card.name if card.name not in taken else _place_name((card.card, card.device))
    return replace(card, name=name, identity=Identity.UNKNOWN, health=CardHealth.UNKNOWN, reason=fault.reason, text=fault.sentence)


def _kept_vnpu(seen: Seen, card: CardView, taken: set[str]) -> VnpuView:
    name = seen.view.name if seen.view.name not in taken else _vnpu_place_name(seen.view.vdev, seen.place)
    return replace(
        seen.view, name=name, card=card.name, use=Use.UNKNOWN, verdict=Verdict.UNKNOWN, reason=card.reason, text=_of_its_card(card)
    )


def _of_its_card(card: CardView) -> str:
    return f"Its card {card.name}: {card.text}" if card.text else ""


def _place_name(place: Place) -> str:
    return f"c{place[0]:03d}d{place[1]}"


def _vnpu_place_name(vdev: int, place: Place) -> str:
    return f"x{vdev:04d}{_place_name(place)}"


def _used_cores(chip: Chip) -> float:
    if chip.has_no_vnpus:
        return 0
    cores = [vnpu.cores for vnpu in chip.vnpus] if chip.vnpus is not None else [None]
    return sum(core for core in cores if core is not None) if None not in cores else UNKNOWN_NUMBER


def _by_name(views: Iterable[_View]) -> tuple[_View, ...]:
    return tuple(sorted(views, key=lambda view: view.name))
