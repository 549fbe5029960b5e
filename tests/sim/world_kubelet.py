"""The kubelet of the world: its process, what it remembers of allocations, and its checkpoint in all its states."""

import random
from typing import Final

from devward.cluster.checkpoint import CheckpointError, CheckpointReading, Defect, parse_checkpoint
from devward.cluster.evidence import Doubt
from devward.cluster.kubelet_facts import Kubelet, KubeletDoubt, KubeletScan
from sim import kubelet_checkpoint as made
from sim.recorded_cluster import RESOURCE
from sim.world_truth import Card

_ROOT: Final = "/var/lib/kubelet"
#: Defects that need a file with entries, and those of size, which only cost time.
_LEFT_OUT: Final = frozenset({"checkpoint-too-large"})
_DEFECTS: Final = tuple(
    (code, name) for code, ways in made.DEFECTS.items() if code not in _LEFT_OUT for name in ways if name not in ("deep", "digits")
)


class KubeletProcess:
    """The kubelet as it is."""

    def __init__(self, cards: list[Card]) -> None:
        """It runs, and has given nothing away."""
        self._devices = [f"{card.die}-{number}" for card in cards if card.managed for number in range(4)]
        self.pid = 812
        self.started = 1
        self.running = True
        #: When it stopped, or will be found again.
        self.since = 0.0
        #: It listens on its socket.
        self.listens = True
        self.entries: list[made.Allocated] = []
        self._given: dict[str, made.Allocated] = {}
        self.registered = True
        #: Of the file; None: there is none.
        self.content: bytes | None = None
        self.earlier: list[bytes] = []
        #: Its disk is full: the file lags behind.
        self.cannot_write = False
        self._readings: dict[bytes, CheckpointReading] = {}
        self.write()

    def add(self, uid: str, phy: int, template: str, dice: random.Random) -> None:
        """Remember what the plugin answered. The kubelet chose ids of any card."""
        response = made.hami_response([phy], template)
        self._given[uid] = made.Allocated(uid, [dice.choice(self._devices)], response)
        self.entries.append(self._given[uid])

    def prune(self, active: set[str]) -> None:
        """Forget what Pods have that are not active, in memory."""
        self.entries = [entry for entry in self.entries if entry.pod_uid in active]

    def write(self) -> None:
        """Write the file, as it does after each allocation and each message of a plugin."""
        if self.cannot_write:
            return
        content = made.encoded(made.document(self.entries, {RESOURCE: self._devices if self.registered else []}))
        if self.content is not None and content != self.content:
            self.earlier = [*self.earlier[-3:], self.content]
        self.content = content

    def spoil(self, dice: random.Random) -> str:
        """Damage the file and say how."""
        code, name = dice.choice(_DEFECTS)
        whole = made.document([made.Allocated("a", ["x-0"]), made.Allocated("b", ["x-1"])], {RESOURCE: ["x-0"]})
        self.content = made.DEFECTS[code][name](made.encoded(whole))
        return f"{code}: {name}"

    def restart(self) -> None:
        """Begin again, from what the file has."""
        self.pid += 7
        self.started += 1000
        reading = self.read()
        # "Continue after failing to read checkpoint file": with nothing.
        entries = reading.checkpoint.entries if reading.checkpoint is not None else ()
        self.entries = [self._given[entry.pod_uid] for entry in entries if entry.pod_uid in self._given]

    # --- what is seen of it --------------------------------------------------------------------------------------------
    def read(self) -> CheckpointReading:
        """Return what devward's parser makes of the file."""
        if self.content is None:
            return CheckpointReading(None, (Doubt(Defect.MISSING, made.FILE_NAME),))
        reading = self._readings.get(self.content)
        if reading is None:
            try:
                checkpoint = parse_checkpoint(self.content)
                reading = CheckpointReading(checkpoint, tuple(Doubt(defect, made.FILE_NAME) for defect in checkpoint.defects))
            except CheckpointError as error:
                reading = CheckpointReading(None, (Doubt(error.defect, made.FILE_NAME),))
            self._readings = {**self._readings, self.content: reading} if len(self._readings) < 8 else {self.content: reading}
        return reading

    def scan(self) -> KubeletScan:
        """Return what a look for it finds."""
        if not (self.running and self.listens):
            return KubeletScan(None, (Doubt(KubeletDoubt.NOT_FOUND, _ROOT),))
        plugins = f"{_ROOT}/device-plugins"
        return KubeletScan(Kubelet(self.pid, self.started, "kubelet", _ROOT, plugins, _ROOT, plugins))
