"""What is true of a node with NPUs, whoever says what of it: cards, vNPUs and whose each is, containers, Pods, nodes and device events.

Nothing here knows of devward. Who owns a vNPU is written down when it is made and when its container goes, so that it need not be judged.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from sim.npu_host import die
from sim.recorded_cluster import RESOURCE, WORD

__all__ = ["RESOURCE", "WORD"]

MAJOR: Final = 236
FIRST: Final = 100
SLOTS: Final = 16
#: Each board has so many dies, as those with 910C have: to the library a die is a device of its card, to all others it is an NPU.
DIES: Final = 2
CORES: Final = 20
#: HAMi's for this chip, with what each takes of it.
TEMPLATES: Final = {"vir05_1c_8g": 5, "vir10_3c_16g": 10}
#: One that HAMi never makes.
FOREIGN_TEMPLATE: Final = "vir10_4c_16g_m"
CHIP_NAME: Final = "910B4"


def board_of(phy: int) -> tuple[int, int]:
    """Return the board that a die is on, and its place there."""
    return divmod(phy, DIES)


@dataclass(eq=False, slots=True)
class Container:
    """A container, or the attempt to make one: `making` until it lives or fails."""

    id: str
    #: As the kubelet knows its Pod; empty for one of docker's.
    uid: str
    is_sandbox: bool = False
    making: bool = False
    alive: bool = False
    #: The runtime has written its bundle.
    has_bundle: bool = False
    privileged: bool = False
    #: It has the host's /dev.
    all_devices: bool = False
    phy: int = -1
    template: str = ""
    #: The vNPU that was made for it, or was handed to it; in its bundle once it lives.
    vnpu: "Vnpu | None" = None
    #: When it began to live.
    since: float = 0.0

    @property
    def is_there(self) -> bool:
        """Whether it lives, or is about to."""
        return self.alive or self.making


@dataclass(eq=False, slots=True)
class Vnpu:
    """One vNPU of all that ever were."""

    serial: int
    vdev: int
    phy: int
    template: str
    cores: int
    inode: int
    ctime_ns: int
    made_at: float
    owner: Container | None = None
    #: An administrator made it, and wants it kept.
    is_admins: bool = False
    #: Whose processes have its node open.
    opened_by: list[Container] = field(default_factory=list)
    #: Since when nobody owns it; kept by the world.
    abandoned_at: float | None = None

    @property
    def is_owned(self) -> bool:
        """Whether somebody needs it."""
        if self.is_admins or (self.owner is not None and self.owner.is_there):
            return True
        return any(container.alive for container in self.opened_by)

    @property
    def is_flagged(self) -> bool:
        """What the driver says of its use: a privileged container's it never sees."""
        return any(container.alive and not container.privileged for container in self.opened_by)

    @property
    def name(self) -> str:
        """Its device node."""
        return f"vdavinci{self.vdev}"


@dataclass(eq=False, slots=True)
class Card:
    """One NPU."""

    phy: int
    #: HAMi hands it out.
    managed: bool
    health: int = 0

    @property
    def die(self) -> str:
        """Its die id."""
        return die(self.phy + 1)

    @property
    def name(self) -> str:
        """What devward calls it."""
        return f"p{self.phy:03d}"


class Hardware:
    """The cards and their vNPUs, their nodes, the driver's file, and what udev told of it."""

    def __init__(self, cards: list[Card]) -> None:
        """There are no vNPUs at first."""
        self.cards = {card.phy: card for card in cards}
        self.vnpus: dict[int, Vnpu] = {}
        self.serial = 0
        #: /etc/vnpu.cfg: what the driver makes again at boot.
        self.recorded: dict[int, tuple[str, bool]] = {}
        self.sequences: Counter[str] = Counter()
        self.losses = 0
        #: Events that are lost from now on, and whether the kernel says so.
        self.deaf = 0
        self.deaf_silently = False
        #: Counted at every change, so that nobody need compare.
        self.version = 0

    def of(self, phy: int) -> list[Vnpu]:
        """Return the vNPUs of a card."""
        return [vnpu for vnpu in self.vnpus.values() if vnpu.phy == phy]

    def make(self, phy: int, template: str, now: float, *, vdev: int | None = None) -> Vnpu | None:
        """Make a vNPU with the lowest free id; None: the driver says that the card is full."""
        cores = TEMPLATES.get(template, 10)
        if sum(vnpu.cores for vnpu in self.of(phy)) + cores > CORES:
            return None
        if vdev is None:
            first = FIRST + SLOTS * phy
            vdev = next(vdev for vdev in range(first, first + SLOTS) if vdev not in self.vnpus)
        self.serial += 1
        vnpu = Vnpu(self.serial, vdev, phy, template, cores, 5000 + self.serial, int(now * 1e9) + self.serial, now)
        self.vnpus[vdev] = vnpu
        self.recorded[vdev] = (template, False)
        self._tell(vnpu.name)
        return vnpu

    def destroy(self, vnpu: Vnpu) -> None:
        """Let a vNPU go; whoever has it open keeps nothing."""
        if self.vnpus.get(vnpu.vdev) is vnpu:
            del self.vnpus[vnpu.vdev]
            self.recorded.pop(vnpu.vdev, None)
            self._tell(vnpu.name)

    def touch(self, vnpu: Vnpu, now: float) -> None:
        """Change the times of its node, as udevd does at an event of the device."""
        self.serial += 1
        vnpu.ctime_ns = int(now * 1e9) + self.serial
        self.version += 1

    def _tell(self, name: str) -> None:
        self.version += 1
        if self.deaf > 0:
            self.deaf -= 1
            if not self.deaf_silently:
                self.losses += 1
            return
        self.sequences[name] += 1

    def boot(self) -> list[tuple[int, str, bool]]:
        """Let everything go, and return what the driver's file has: id, template, and whether it is an administrator's."""
        lines = [(vdev, template, admins) for vdev, (template, admins) in sorted(self.recorded.items())]
        self.vnpus.clear()
        self.sequences.clear()
        self.losses = self.deaf = 0
        self.version += 1
        return lines


@dataclass(eq=False, slots=True)
class Shown:
    """What is said of a Pod: by its kubelet, and once that reported it, by the API server."""

    phase: str = "Pending"
    #: None: the kubelet has not said anything of its container.
    state: dict[str, Any] | None = None
    last: dict[str, Any] | None = None


@dataclass(eq=False, slots=True)
class Pod:
    """A Pod with one container that may want a vNPU."""

    #: As the kubelet and the host know it; the API server's is another one where it is static.
    uid: str
    shown_uid: str
    shape: str
    phy: int
    template: str
    #: How many attempts to make its container fail, or -1, with what reason, and how long the kubelet waits before the next.
    fails: int = 0
    reason: str = ""
    #: Its failed attempts have an end in `lastState`.
    has_end: bool = False
    back_off: float = 300.0
    #: Its container ends after so long, 0 for never, with an error or well.
    lives: float = 0.0
    exit_code: int = 0
    #: It never comes so far that a container is made: the reason why it waits, or "-" for none.
    stuck: str | None = None
    #: The id of a vNPU whose node it mounts, whoever made that.
    mounts: int = -1
    sandbox: Container | None = None
    main: Container | None = None
    said: Shown = field(default_factory=Shown)
    shown: Shown = field(default_factory=Shown)
    in_api: bool = True
    deleting: bool = False
    #: The kubelet starts nothing of it any more.
    ended: bool = False
    allocated: bool = False
    #: A list or a checkpoint that devward was given had it.
    noted: bool = False
    #: The latest list that devward was given had it.
    listed: bool = False
    #: Of the object in the API, kept until something changes.
    text: bytes | None = None
    attempts: int = 0

    @property
    def is_soft(self) -> bool:
        """Whether it shares its card without a vNPU."""
        return self.shape == "soft"

    @property
    def has_card(self) -> bool:
        """Whether HAMi gave it a card."""
        return self.shape not in ("stranger", "mounting")

    @property
    def wants_vnpu(self) -> bool:
        """Whether the runtime makes a vNPU for its container."""
        return self.has_card and not self.is_soft

    @property
    def lives_here(self) -> bool:
        """Whether its container lives, or is about to."""
        return self.main is not None and self.main.is_there
