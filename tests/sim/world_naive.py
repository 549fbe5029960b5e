"""Reclaimers that are wrong, each in one way: the world must catch every one of them, or it proves nothing."""

from collections.abc import Sequence
from dataclasses import replace

from devward.cluster.claims import Standing
from devward.model import ReclaimMode
from devward.npu.facts import Expected
from devward.npu.inventory import Picture
from devward.npu.numbering import WILDCARD
from devward.npu.pins import PinReport
from devward.npu.views import Use
from devward.reclaim.controls import Controls, Switch
from devward.reclaim.look import Look, PinHold, VnpuFacts
from sim.world_broker import Said
from sim.world_daemon import Daemon, Since


class Naive:
    """Destroys what it finds idle; the others are made of it."""

    is_forbidden = False
    is_latched = False

    def __init__(self, daemon: Daemon) -> None:
        """Begin."""
        self.daemon = daemon
        self._expected: Expected | None = None

    def release(self) -> None:
        """There is no breaker."""

    def asks(self, picture: Picture, pins: PinReport) -> frozenset[str]:
        """Ask about all."""
        return frozenset(view.name for view in picture.vnpus)

    def choose(self, look: Look, controls: Controls) -> Sequence[VnpuFacts]:
        """Choose the first of each card."""
        by_card: dict[str, VnpuFacts] = {}
        for vnpu in look.vnpus:
            if vnpu.identity and self.wants(vnpu, look, controls):
                by_card.setdefault(vnpu.card, vnpu)
        return list(by_card.values())[:2]

    def wants(self, vnpu: VnpuFacts, look: Look, controls: Controls) -> bool:
        """Whether to destroy it."""
        return vnpu.use is Use.IDLE

    def prepare(
        self, vnpu: VnpuFacts, was: int, fresh: Look, expected: Expected | None, at: float, sequence: int | None, controls: Controls
    ) -> bool:
        """Want what is still there."""
        again = fresh.vnpu(vnpu.identity)
        self._expected = expected
        return again is not None and self.wants(again, fresh, controls)

    def decide(self, at: float, sequence: int | None, controls: Controls, since: Since, *, is_intent_taken: bool) -> Expected | None:
        """Do it."""
        return self._expected if is_intent_taken and _is_on(controls) else None

    def conclude(self, said: Said, at: float) -> None:
        """Learn nothing."""


class Never(Naive):
    """Reclaims nothing, which is safe."""

    def wants(self, vnpu: VnpuFacts, look: Look, controls: Controls) -> bool:
        """Never."""
        return False


class Patient(Naive):
    """Waits as it must, and believes all evidence: right but for what is wrong in those made of it."""

    def __init__(self, daemon: Daemon) -> None:
        """Begin."""
        super().__init__(daemon)
        self._since: dict[object, tuple[float, int]] = {}
        self._identity = ""

    def key(self, vnpu: VnpuFacts) -> object:
        """By what a vNPU is known again."""
        return vnpu.identity

    def choose(self, look: Look, controls: Controls) -> Sequence[VnpuFacts]:
        """Count, and choose."""
        self._count(look)
        return super().choose(look, controls)

    def prepare(
        self, vnpu: VnpuFacts, was: int, fresh: Look, expected: Expected | None, at: float, sequence: int | None, controls: Controls
    ) -> bool:
        """Count the fresh look too."""
        self._count(fresh)
        self._identity = vnpu.identity
        return super().prepare(vnpu, was, fresh, expected, at, sequence, controls) and was == sequence

    def decide(self, at: float, sequence: int | None, controls: Controls, since: Since, *, is_intent_taken: bool) -> Expected | None:
        """Do it, unless something came since the last look began."""
        if self.is_kept(self._identity, since):
            return None
        return super().decide(at, sequence, controls, since, is_intent_taken=is_intent_taken)

    def is_kept(self, identity: str, since: Since) -> bool:
        """Whether what came since keeps it."""
        is_pinned = any(one.view.identity == identity for one in since.pins.vnpus)
        return is_pinned or any(one.breaks(identity) for one in since.interruptions)

    def _count(self, look: Look) -> None:
        before, self._since = self._since, {}
        cut = bool(look.interruptions) or (look.snapshot is not None and any(not reset.card for reset in look.snapshot.resets))
        for vnpu in look.vnpus:
            if self.is_free(vnpu, look) and not cut:
                since, count = before.get(self.key(vnpu), (look.at, -1))
                self._since[self.key(vnpu)] = (since, count + 1)

    def is_free(self, vnpu: VnpuFacts, look: Look) -> bool:
        """Whether nothing speaks against it."""
        card = look.card(vnpu.card)
        if look.snapshot is None or not _is_complete(look) or card is None or not card.is_managed or vnpu.refusal is not None or vnpu.fault:
            return False
        is_idle = vnpu.use is Use.IDLE and vnpu.host.value == "clean" and vnpu.pin is PinHold.NONE
        return is_idle and self.is_unclaimed(vnpu, look)

    def is_unclaimed(self, vnpu: VnpuFacts, look: Look) -> bool:
        """Whether no Pod has its card."""
        card = look.card(vnpu.card)
        return card is not None and card.protection_if_clean in (Standing.NONE, Standing.CANDIDATE)

    def wants(self, vnpu: VnpuFacts, look: Look, controls: Controls) -> bool:
        """Whether it waited long enough."""
        since, count = self._since.get(self.key(vnpu), (look.at, 0))
        return look.at - since >= self.grace and count >= self.confirmations and not look.is_deferred and self.is_free(vnpu, look)

    @property
    def grace(self) -> float:
        """How long to wait."""
        return self.daemon.settings.bounds.normal.grace

    @property
    def confirmations(self) -> int:
        """How often to look."""
        return self.daemon.settings.bounds.normal.confirmations + 1


class TrustsCheckpoint(Patient):
    """Takes a Pod that the checkpoint does not have for gone, and looks at nothing else."""

    def is_free(self, vnpu: VnpuFacts, look: Look) -> bool:
        """Whether it is idle, and the checkpoint names nobody for its card."""
        card = look.card(vnpu.card)
        reading = self.daemon.world.kubelet.read()
        if card is None or reading.checkpoint is None or vnpu.use is not Use.IDLE:
            return False
        return all(card.phy not in (entry.allocation.cards or ()) for entry in reading.checkpoint.entries)


class IgnoresIdentity(Patient):
    """Knows a vNPU by its id alone."""

    def key(self, vnpu: VnpuFacts) -> object:
        """By its id."""
        return vnpu.vdev

    def prepare(
        self, vnpu: VnpuFacts, was: int, fresh: Look, expected: Expected | None, at: float, sequence: int | None, controls: Controls
    ) -> bool:
        """Take whatever has the id."""
        self._count(fresh)
        again = next((one for one in fresh.vnpus if one.vdev == vnpu.vdev), None)
        self._expected = self.daemon.expected(again.identity) if again is not None else None
        return again is not None and self.wants(again, fresh, controls)


class IgnoresRates(Patient):
    """Destroys everything at once."""

    def choose(self, look: Look, controls: Controls) -> Sequence[VnpuFacts]:
        """Choose all."""
        self._count(look)
        return [vnpu for vnpu in look.vnpus if vnpu.identity and self.wants(vnpu, look, controls)]


class Hasty(Patient):
    """Waits half as long."""

    @property
    def grace(self) -> float:
        """How long to wait."""
        return super().grace / 2


class IgnoresLock(Patient):
    """Does not wait for HAMi."""

    def wants(self, vnpu: VnpuFacts, look: Look, controls: Controls) -> bool:
        """Whether it waited long enough."""
        since, count = self._since.get(self.key(vnpu), (look.at, 0))
        return look.at - since >= self.grace and count >= self.confirmations and self.is_free(vnpu, look)


class IgnoresClaims(Patient):
    """Asks for no Pod."""

    def is_unclaimed(self, vnpu: VnpuFacts, look: Look) -> bool:
        """Always."""
        return True


class IgnoresHost(Patient):
    """Believes Pods and the driver's flag alone."""

    def is_free(self, vnpu: VnpuFacts, look: Look) -> bool:
        """Whether it is idle, and no Pod has its card."""
        return _is_complete(look) and vnpu.use is Use.IDLE and self.is_unclaimed(vnpu, look)


class IgnoresLatePins(Patient):
    """Reads no pin after its last look began."""

    def is_kept(self, identity: str, since: Since) -> bool:
        """Whether anything but a pin came since and keeps it."""
        return super().is_kept(identity, since._replace(pins=PinReport()))


class IgnoresPins(IgnoresLatePins):
    """Reads no pins."""

    def is_free(self, vnpu: VnpuFacts, look: Look) -> bool:
        """Whether nothing but a pin speaks against it."""
        card = look.card(vnpu.card)
        is_idle = vnpu.use is Use.IDLE and vnpu.host.value == "clean" and not vnpu.fault and vnpu.refusal is None
        return _is_complete(look) and card is not None and card.is_managed and is_idle and self.is_unclaimed(vnpu, look)


class IgnoresSwitches(Patient):
    """Goes on when it is switched off."""

    def decide(self, at: float, sequence: int | None, controls: Controls, since: Since, *, is_intent_taken: bool) -> Expected | None:
        """Do it, unless something came since the last look began."""
        return None if self.is_kept(self._identity, since) else self._expected


class IgnoresWindow(Patient):
    """Mistakes the id: it asks for all vNPUs of the chip."""

    def decide(self, at: float, sequence: int | None, controls: Controls, since: Since, *, is_intent_taken: bool) -> Expected | None:
        """Do it."""
        wanted = super().decide(at, sequence, controls, since, is_intent_taken=is_intent_taken)
        return replace(wanted, vdev=WILDCARD) if wanted is not None else None


class LatchesAlways(Never):
    """Its breaker holds without a cause."""

    is_latched = True


class Raises(Naive):
    """Has a mistake in it."""

    def choose(self, look: Look, controls: Controls) -> Sequence[VnpuFacts]:
        """Look up what is not there."""
        return [{vnpu.name: vnpu for vnpu in look.vnpus}["v0"]]


def _is_complete(look: Look) -> bool:
    return look.snapshot is not None and look.snapshot.is_node_known


def _is_on(controls: Controls) -> bool:
    return controls.mode is ReclaimMode.ENFORCE and not controls.is_paused and controls.kill_switch is Switch.ABSENT
