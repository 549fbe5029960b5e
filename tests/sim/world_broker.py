"""The broker and the vendor's library of the world: what they say of vNPUs and of the host, what they destroy, and how they fail or lie.

The broker checks as the real one does, by its own pure functions, before anything reaches the library. What does reach it is told to
whoever watches, and done.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from devward.cluster.bundle import ContainerType
from devward.cluster.evidence import Doubt, Finding, SourceState
from devward.cluster.life import Life
from devward.cluster.statement import AskedVnpu, ContainerSight, KubeletSight, KubeletSource, PodSight, SourceSight, Statement, VnpuSight
from devward.npu import facts
from devward.npu.codes import DcmiCode
from devward.npu.destruction import Seen, require_own_id, require_same
from devward.npu.facts import Chip, Expected, Inventory, Mode, Node, Outcome, Refusal, Refused
from devward.npu.host import HostNode, Surroundings
from devward.npu.inventory import Unavailable
from devward.npu.numbering import vfid_of
from devward.npu.vnpu_cfg import ABSENT
from devward.reasons import Reason
from sim.world import World
from sim.world_truth import CHIP_NAME, CORES, FOREIGN_TEMPLATE, MAJOR, Container, Vnpu, board_of

_READ: Final = SourceSight(SourceState.READ)
_DOUBTED: Final = SourceSight(SourceState.UNREADABLE, (Doubt("bundle-unreadable", "/run/containerd", 13),))


class Blind(StrEnum):
    """Evidence that shows nothing in a whole history: what is left must do."""

    NONE = ""
    #: Nobody is ever seen to hold a vNPU: not by bundle, descriptor or flag, and not by the broker's own scan.
    VNPUS = "vnpus"
    #: The same, but for the driver's flag.
    HOLDERS = "holders"
    #: No Pod is ever seen to live on the host.
    PODS = "pods"
    #: The broker checks nothing before it calls the library.
    BROKER = "broker"

    @property
    def shows_holders(self) -> bool:
        """Whether bundles and descriptors show who holds a vNPU."""
        return self not in (Blind.VNPUS, Blind.HOLDERS)


class ListLie(StrEnum):
    """What is wrong with a list."""

    OMITS = "omits"
    GHOST = "ghost"
    IDLE = "idle"
    TEMPLATE = "template"
    WILDCARD = "wildcard"
    OTHER_WINDOW = "other-window"
    OTHER_DIE = "other-die"
    USE_UNTOLD = "use-untold"
    OTHER_BOOT = "other-boot"


class DestroyFault(StrEnum):
    """What goes wrong with the next call to destroy, or with the answer."""

    SAYS_DONE = "says-done"
    SAYS_NOT = "says-not"
    UNKNOWN_DONE = "unknown-done"
    UNKNOWN_NOT = "unknown-not"
    #: It hangs, and is done later; until then no broker destroys.
    HANGS = "hangs"
    CRASHES_BEFORE = "crashes-before"
    CRASHES_AFTER = "crashes-after"
    IN_USE = "in-use"
    NOT_PERMITTED = "not-permitted"


@dataclass(frozen=True, slots=True)
class Said:
    """How a request to destroy ended. Neither outcome nor refusal: there was no answer."""

    outcome: Outcome | None = None
    refusal: Refusal | None = None
    code: int | None = None


class Broker:
    """Asked by the daemon."""

    def __init__(self, world: World, blind: Blind, on_library: Callable[[Expected], None]) -> None:
        """`on_library` is told what reaches the library, before it is done."""
        self.world = world
        self.blind = blind
        self._on_library = on_library
        #: Hung or crashed: no answers.
        self.is_away = False
        self.list_lies: list[ListLie] = []
        self.faults: list[DestroyFault] = []
        self.is_stuck = False

    # --- list ----------------------------------------------------------------------------------------------------------
    def list(self) -> Inventory | Unavailable:
        """Say what NPUs there are."""
        if self.is_away:
            return Unavailable(Reason.NPU_BROKER_SILENT, "it does not answer")
        hardware = self.world.hardware
        chips = tuple(self._chip(phy) for phy in sorted(hardware.cards))
        said = Inventory(self.world.boot_id, "/usr/local/dcmi/libdcmi.so", "25.5.0", Mode.DOCKER, None, chips)
        if self.list_lies:
            said = self._false(said, self.list_lies.pop(0))
        return said

    def _chip(self, phy: int) -> Chip:
        card = self.world.hardware.cards[phy]
        vnpus = tuple(self._vnpu(vnpu) for vnpu in self.world.hardware.of(phy))
        return Chip(*board_of(phy), phy, phy, card.die, card.health, "Ascend", CHIP_NAME, "V1", CHIP_NAME, CORES, vnpus)

    def _vnpu(self, vnpu: Vnpu) -> facts.Vnpu:
        in_use = vnpu.is_flagged and self.blind is not Blind.VNPUS
        return facts.Vnpu(vnpu.vdev, vfid_of(vnpu.vdev), vnpu.template, in_use, 0, float(vnpu.cores))

    def _false(self, said: Inventory, lie: ListLie) -> Inventory:
        if lie is ListLie.OTHER_BOOT:
            self.world.count(f"list-lie:{lie}")
            return replace(said, boot_id="0" * 36)
        with_some = [number for number, chip in enumerate(said.chips) if chip.vnpus]
        which = self.world.dice.choice(with_some) if with_some else 0
        chip = said.chips[which]
        if lie is ListLie.OTHER_DIE:
            chip = replace(chip, die="FFFFFFFF-00000001-00000002-00000003-0000000A")
        elif not chip.vnpus:
            return said
        else:
            chip = replace(chip, vnpus=_false_vnpus(chip.vnpus, lie, chip.phy or 0))
        self.world.count(f"list-lie:{lie}")
        self.world.tell(f"the list lies: {lie}, card {which}")
        return replace(said, chips=(*said.chips[:which], chip, *said.chips[which + 1 :]))

    def surroundings(self) -> Surroundings:
        """Say what the host shows of nodes, and udev of their events: as much of it as was heard by now."""
        hardware = self.world.hardware
        nodes = {name: _node(name, 10, 10) for name in ("davinci_manager", *(f"davinci{phy}" for phy in hardware.cards))}
        for vnpu in hardware.vnpus.values():
            nodes[vnpu.name] = _node(vnpu.name, vnpu.inode, vnpu.ctime_ns)
        return Surroundings(nodes, ABSENT, sequences=dict(hardware.sequences), losses=hardware.losses)

    # --- witness -------------------------------------------------------------------------------------------------------
    def witness(self, vdevs: Iterable[int]) -> Statement | None:
        """Say what the host shows; None: it does not answer."""
        if self.is_away:
            return None
        world = self.world
        sure = not world.host_unreadable
        blind = self.blind
        with_bundle = [container for container in world.containers if container.has_bundle and container.is_there]
        for container in with_bundle:
            if container.making:
                world.seen_making[container.phy] = world.time.now
        sights = tuple(self._sight(AskedVnpu(vdev, MAJOR, vdev), sure=sure) for vdev in vdevs)
        pods = []
        for uid in sorted({container.uid for container in world.containers if container.uid}) if blind is not Blind.PODS else ():
            own = [container for container in with_bundle if container.uid == uid]
            held = any(not container.is_sandbox for container in own)
            other = Finding.CLEAN if sure else Finding.UNKNOWN
            lives = Finding.HELD if own else other
            pods.append(PodSight(uid, lives, Finding.HELD if held else other, has_group=True))
        others = Finding.CLEAN if sure else Finding.UNKNOWN
        kubelet = world.kubelet.scan().kubelet
        source = KubeletSource(SourceState.NOT_PRESENT)
        if kubelet is not None:
            paths = (kubelet.root_name, kubelet.plugins_name, kubelet.root_directory, kubelet.plugins_directory)
            source = KubeletSource(
                SourceState.READ, KubeletSight(kubelet.pid, kubelet.started, kubelet.command, *paths, "/etc/kubernetes/kubelet.conf", "")
            )
        bundles = _READ if sure else _DOUBTED
        containers = tuple(map(self._container, with_bundle))
        return Statement(sights, tuple(pods), others, others, containers, _READ if sights else None, bundles, _READ, _READ, source)

    def _sight(self, asked: AskedVnpu, *, sure: bool) -> VnpuSight:
        vnpu = self.world.hardware.vnpus.get(asked.vdev)
        bundles = Finding.CLEAN if sure else Finding.UNKNOWN
        if vnpu is None or not self.blind.shows_holders:
            return _reasoned(VnpuSight(asked, Finding.CLEAN, bundles, Finding.CLEAN))
        if any(container.alive and container.has_bundle and container.vnpu is vnpu for container in self.world.containers):
            bundles = Finding.HELD
        descriptors = Finding.HELD if any(container.alive for container in vnpu.opened_by) else Finding.CLEAN
        return _reasoned(VnpuSight(asked, descriptors, bundles, Finding.CLEAN))

    def _container(self, container: Container) -> ContainerSight:
        kind = ContainerType.SANDBOX if container.is_sandbox else ContainerType.CONTAINER if container.uid else ContainerType.UNKNOWN
        names = container.alive and container.vnpu is not None and self.blind.shows_holders
        return ContainerSight(
            id=container.id,
            namespace="k8s.io" if container.uid else "moby",
            life=Life.LIVE if container.alive else Life.UNKNOWN,
            type=kind,
            pod_uids=(container.uid,) if container.uid and self.blind is not Blind.PODS else (),
            cards=(container.phy,) if container.phy >= 0 and not container.is_sandbox else (),
            template=container.template,
            vdevs=(container.vnpu.vdev,) if names and container.vnpu is not None else (),
            has_all_devices=container.all_devices,
            has_a_major=False,
        )

    # --- destroy -------------------------------------------------------------------------------------------------------
    def destroy(self, expected: Expected) -> Said:
        """Destroy what is expected, if it is there and nobody has it."""
        if self.is_away:
            return Said()
        if self.is_stuck:
            return Said(refusal=Refusal.DESTROY_RUNNING)
        fault = self.faults.pop(0) if self.faults else None
        if fault is DestroyFault.CRASHES_BEFORE:
            self.world.count(f"destroy-fault:{fault}")
            return Said()
        if self.blind is not Blind.BROKER:
            try:
                self._require(expected)
            except Refused as refused:
                self.world.tell(f"the broker refuses: {refused}")
                self.world.count(f"broker-refused:{refused.reason}")
                return Said(refusal=refused.reason)
        if fault is not None:
            self.world.count(f"destroy-fault:{fault}")
            self.world.tell(f"the library is at fault: {fault}")
        self._on_library(expected)
        return self._call(expected, fault)

    def _require(self, expected: Expected) -> None:
        """Look as the broker does, at what is there now. Refused."""
        require_own_id(expected.phy, expected.vdev)
        vnpu = self.world.hardware.vnpus.get(expected.vdev)
        if vnpu is None:
            raise Refused(Refusal.NODE_MISSING, "there is no node")
        node = Node(vnpu.inode, vnpu.ctime_ns, MAJOR, vnpu.vdev)
        chip = self._chip(expected.phy) if expected.phy in self.world.hardware.cards else None
        require_same(expected, Seen(self.world.boot_id, chip, Mode.DOCKER, node))
        finding = self._sight(AskedVnpu(vnpu.vdev, MAJOR, vnpu.vdev), sure=not self.world.host_unreadable).finding
        if finding is Finding.HELD:
            raise Refused(Refusal.SCAN_IN_USE, "it is held")
        if finding is not Finding.CLEAN:
            raise Refused(Refusal.SCAN_UNKNOWN, "it may be held")

    def _call(self, expected: Expected, fault: DestroyFault | None) -> Said:
        vnpu = self.world.hardware.vnpus.get(expected.vdev)
        if fault is DestroyFault.NOT_PERMITTED:
            return Said(Outcome.STILL_PRESENT, code=DcmiCode.NOT_PERMITTED)
        if fault is DestroyFault.IN_USE or (vnpu is not None and vnpu.is_flagged):
            return Said(Outcome.STILL_PRESENT, code=DcmiCode.INVALID_PARAMETER)
        if fault is DestroyFault.HANGS:
            self.is_stuck = True
            self.world.time.after(self.world.dice.choice((5.0, 70.0, 200.0)), self._come_back, vnpu)
            return Said()
        if fault not in (DestroyFault.SAYS_DONE, DestroyFault.UNKNOWN_NOT) and vnpu is not None:
            self.world.tell(f"vNPU {vnpu.vdev} ({vnpu.serial}) is destroyed")
            self.world.count("reclaimed")
            self.world.hardware.destroy(vnpu)
        if fault is DestroyFault.CRASHES_AFTER:
            return Said()
        outcome = (
            {
                DestroyFault.SAYS_NOT: Outcome.STILL_PRESENT,
                DestroyFault.UNKNOWN_DONE: Outcome.UNKNOWN,
                DestroyFault.UNKNOWN_NOT: Outcome.UNKNOWN,
            }.get(fault, Outcome.DESTROYED)
            if fault is not None
            else Outcome.DESTROYED
        )
        return Said(outcome, code=DcmiCode.OK if fault is None else DcmiCode.TIMEOUT)

    def _come_back(self, vnpu: Vnpu | None) -> None:
        self.is_stuck = False
        if vnpu is not None and not vnpu.is_owned:
            self.world.hardware.destroy(vnpu)


def _reasoned(sight: VnpuSight) -> VnpuSight:
    return sight if sight.finding is Finding.CLEAN else replace(sight, reasons=("made up",))


def _node(name: str, inode: int, ctime_ns: int) -> HostNode:
    digits = name.lstrip("v").removeprefix("davinci").removeprefix("_manager")
    minor = int(digits) if digits else 0
    return HostNode(name, inode, ctime_ns, is_character_device=True, covered=False, major=MAJOR, minor=minor, kernel_name=name)


def _false_vnpus(vnpus: tuple[facts.Vnpu, ...], lie: ListLie, phy: int) -> tuple[facts.Vnpu, ...]:
    first = vnpus[0]
    if lie is ListLie.OMITS:
        return vnpus[1:]
    if lie is ListLie.GHOST:
        free = next(vdev for vdev in range(115 + 16 * phy, 99 + 16 * phy, -1) if all(vdev != vnpu.vdev for vnpu in vnpus))
        return (*vnpus, replace(first, vdev=free, vfid=vfid_of(free)))
    changed = {
        ListLie.IDLE: replace(first, in_use=False),
        ListLie.TEMPLATE: replace(first, template=FOREIGN_TEMPLATE),
        ListLie.WILDCARD: replace(first, vdev=65535),
        ListLie.OTHER_WINDOW: replace(first, vdev=first.vdev + 16),
        ListLie.USE_UNTOLD: replace(first, in_use=None),
    }[lie]
    return (changed, *vnpus[1:])
