"""What must hold in the world at every step, whatever happens: held against what is true, and against what the daemon was shown.

How long a vNPU has to be seen unowned is counted here again, from the looks alone and without the code under test.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from devward.cluster.claims import Standing
from devward.cluster.evidence import Finding
from devward.cluster.hami import is_hamis_template
from devward.cluster.observations import Scope
from devward.model import Pin, ReclaimMode
from devward.npu.codes import DcmiCode
from devward.npu.facts import Expected, Node, Outcome, Refusal
from devward.npu.inventory import Picture
from devward.npu.numbering import vfid_of, window
from devward.npu.views import Use
from devward.reclaim.contract import FRESH_SECONDS
from devward.reclaim.controls import Switch
from devward.reclaim.look import Look, PinHold, VnpuFacts
from sim.world import World
from sim.world_broker import Blind, Said
from sim.world_daemon import Daemon
from sim.world_truth import CHIP_NAME, MAJOR, Pod, Vnpu, board_of

_HOUR: Final = 3600.0
#: What the steps of a look may take besides, in seconds.
_SLACK: Final = 40.0
_FREE: Final = (Standing.NONE, Standing.CANDIDATE)


class Rule(StrEnum):
    """What must hold."""

    #: An owned vNPU is never destroyed.
    OWNED = "an owned vNPU is destroyed"
    #: Nor one on a card that a Pod has whose container lives.
    CARD_IN_USE = "a vNPU is destroyed on a card that a Pod has"
    UNKNOWN = "a vNPU is destroyed although something is unknown, or speaks against it"
    SWITCHED_OFF = "a vNPU is destroyed although that is switched off"
    DEFERRED = "a vNPU is destroyed while HAMi gives out a device"
    WINDOW = "an id outside its chip's window reaches the library"
    IDENTITY = "another vNPU than the expected one reaches the library"
    IMPATIENT = "a vNPU is destroyed that was not seen unowned for long and often enough"
    RATE = "more vNPUs are destroyed than the rates allow"
    BREAKER = "vNPUs of many cards are destroyed at once, or the breaker holds without a cause"
    UNRECORDED = "the journal does not have what is destroyed, or what came of it"
    RAISED = "something raised"
    LATE = "an orphan is not reclaimed in time"


class Broken(AssertionError):
    """Something that must hold does not."""

    def __init__(self, rule: Rule, detail: str) -> None:
        """Keep the rule."""
        super().__init__(f"{rule} ({detail})")
        self.rule = rule


@dataclass(slots=True)
class _Wait:
    """How long a vNPU is seen without anything against it."""

    card: str
    since: float
    #: What tells the vNPU from others in every run of the daemon.
    lasting: str = ""
    confirmations: int = 0
    last_at: float = 0.0
    #: Nothing that is not counted here can make the wait longer: no failure of a Pod, no call in vain.
    is_exact: bool = True


@dataclass(slots=True)
class Checks:
    """Told what is seen and done."""

    world: World
    blind: Blind
    #: Whether orphans must be reclaimed in time.
    wants_progress: bool = True
    #: The rules that are held; none: all.
    only: frozenset[Rule] = frozenset()
    daemon: Daemon | None = None
    _waits: dict[str, _Wait] = field(default_factory=dict)
    _looked_at: float = 0.0
    #: When the oldest part of the last look was taken.
    _begun: float = 0.0
    #: Library calls of this run: when, in which cycle, on which card.
    _calls: deque[tuple[float, int, str]] = field(default_factory=deque)
    #: When the broker was asked to destroy, or was about to be.
    _asks: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    _called_on: dict[str, float] = field(default_factory=dict)
    #: Since when nothing but the reclaimer itself holds it up, on the node and by card.
    _able_since: float = 0.0
    _card_able_since: dict[str, float] = field(default_factory=dict)
    #: What an administrator agreed to, and what may be shown to one, by what tells them from others in every run of the daemon.
    _agreed: set[str] = field(default_factory=set)
    _was_latched: bool = False
    _due_while_latched: set[str] = field(default_factory=set)
    #: The cycle of which the first look was taken, and the cards that had something due then.
    _cycle: int = -1
    _cycle_at: float = 0.0
    _many: frozenset[str] = frozenset()
    #: A look was taken in this cycle since something was chosen.
    _is_fresh: bool = False
    _boots: int = 1
    #: The pins that were in force when the broker was asked to destroy, until it answers; None: it is asked nothing now.
    _pins_when_asked: tuple[Pin, ...] | None = None
    #: Targets of the pins that came since, of which the daemon knew by then that it answers them only when that is over.
    _known_late: set[str] = field(default_factory=set)
    #: When the hour's tries were last spent.
    spent_at: float = -1.0
    destroyed: int = 0

    def begun(self, daemon: Daemon) -> None:
        """A run began: nothing counts any more."""
        self.daemon = daemon
        self._require_cause()
        self._waits.clear()
        if self.world.boots != self._boots:
            # Within a boot the rates span its runs.
            self._calls.clear()
            self._asks.clear()
            self.spent_at = -1.0
            self._agreed.clear()
            self._due_while_latched.clear()
            self._boots = self.world.boots
        self._pins_when_asked = None
        self._called_on.clear()
        self._card_able_since.clear()
        self._able_since = self.world.time.now
        self._looked_at = 0.0

    def broken(self, rule: Rule, detail: str) -> None:
        """Say that something does not hold, unless that is not held."""
        if not self.only or rule in self.only:
            raise Broken(rule, detail)

    # --- what is seen --------------------------------------------------------------------------------------------------
    def looked(self, look: Look, picture: Picture) -> None:
        """Count what a look says."""
        before, self._waits = self._waits, {}
        for vnpu in look.vnpus:
            if not vnpu.identity or not self._is_free(vnpu, look):
                continue
            wait = before.get(vnpu.identity)
            if wait is None or self._is_set_back(vnpu, look):
                wait = _Wait(vnpu.card, look.at, vnpu.lasting)
            elif look.at - max(wait.since, wait.last_at) >= self._interval and look.begun > max(wait.since, wait.last_at):
                wait.confirmations += 1
                wait.last_at = look.at
            card = look.card(vnpu.card)
            if card is not None and any(claim.failed_at is not None for claim in card.claims):
                wait.is_exact = False
            self._waits[vnpu.identity] = wait
        self._looked_at, self._begun = look.at, look.begun
        self._is_fresh = self._daemon.cycles == self._cycle
        if not self._is_fresh:
            self._cycle, self._cycle_at = self._daemon.cycles, look.at
            self._many = frozenset(self._due_cards(exact=True))
        if look.is_deferred:
            self._able_since = look.at

    @staticmethod
    def _is_free(vnpu: VnpuFacts, look: Look) -> bool:
        """Whether nothing at this look speaks against a vNPU."""
        snapshot = look.snapshot
        if snapshot is None or any(unknown.scope is Scope.NODE for unknown in snapshot.unknowns):
            return False
        card = next((card for card in snapshot.cards if card.name == vnpu.card), None)
        if card is None or card.protection_if_clean not in _FREE or not card.is_managed:
            return False
        of_card = any(unknown.card == card.name for unknown in snapshot.unknowns)
        clean = vnpu.host is Finding.CLEAN and vnpu.descriptors is Finding.CLEAN and vnpu.use is Use.IDLE
        clean = clean and vnpu.has_node and not vnpu.card_named_by
        return clean and not of_card and not vnpu.fault and vnpu.pin is PinHold.NONE and is_hamis_template(CHIP_NAME, vnpu.template)

    @staticmethod
    def _is_set_back(vnpu: VnpuFacts, look: Look) -> bool:
        resets = look.snapshot.resets if look.snapshot is not None else ()
        of_look = any(not reset.unless_clean and (reset.scope is Scope.NODE or reset.card == vnpu.card) for reset in resets)
        return of_look or any(not one.which or vnpu.identity in one.which for one in look.interruptions)

    # --- what is done --------------------------------------------------------------------------------------------------
    def asked(self, vnpu: VnpuFacts, fresh: Look, expected: Expected, *, is_recorded: bool | None = None) -> None:
        """Hold a request to the broker against what was seen; `is_recorded`: the journal has its intent, None: if it takes any now."""
        daemon = self._daemon
        self.world.tell(f"the broker is asked to destroy vNPU {expected.vdev}")
        current = fresh.vnpu(vnpu.identity)
        if current is None or not self._is_free(current, fresh):
            self.broken(Rule.UNKNOWN, f"vNPU {vnpu.vdev} at the last look")
        if self.is_pinned(self.world.hardware.vnpus.get(expected.vdev)):
            self.broken(Rule.UNKNOWN, f"vNPU {expected.vdev} is pinned by now")
        settings = daemon.settings
        if settings.paused or settings.mode is not ReclaimMode.ENFORCE or settings.kill_switch is not Switch.ABSENT:
            self.broken(Rule.SWITCHED_OFF, f"{settings.mode}, paused {settings.paused}, switch {settings.kill_switch}")
        if not (settings.journal if is_recorded is None else is_recorded):
            self.broken(Rule.UNRECORDED, "the journal took no record")
        age = self.world.time.now - fresh.begun
        if not self._is_fresh or age > FRESH_SECONDS:
            self.broken(Rule.UNKNOWN, f"vNPU {vnpu.vdev}: the last look is {age:.0f} s old, of after the choice: {self._is_fresh}")
        self._is_fresh = False
        self._pins_when_asked = settings.pins
        self._known_late.clear()
        if fresh.is_deferred:
            self.broken(Rule.DEFERRED, f"vNPU {vnpu.vdev}")
        if is_recorded is None:
            self.tried()
        wait = self._waits.get(vnpu.identity)
        pace = settings.bounds.normal
        if wait is None or fresh.at - wait.since < pace.grace or wait.confirmations < pace.confirmations:
            self.broken(Rule.IMPATIENT, f"vNPU {vnpu.vdev}: {wait}, now {fresh.at}")

    def tried(self) -> None:
        """Count a try for the hour, whatever comes of it."""
        self._asks.append(self.world.time.now)

    def answered(self, vnpu: VnpuFacts, said: Said) -> None:
        """Take note of what came of it."""
        self._pins_when_asked = None
        if said.outcome is Outcome.DESTROYED:
            self._waits.pop(vnpu.identity, None)
            return
        self._card_able_since[vnpu.card] = self.world.time.now
        if vnpu.identity in self._waits:
            self._waits[vnpu.identity].is_exact = False
        if said.code == DcmiCode.INVALID_PARAMETER or said.refusal not in (None, Refusal.DESTROY_RUNNING):
            # It is not as it was believed to be, and begins to wait anew.
            self._waits[vnpu.identity] = _Wait(vnpu.card, self.world.time.now, vnpu.lasting)

    def library(self, expected: Expected) -> None:
        """Hold a call of the library against what is true."""
        if expected.vdev not in window(expected.phy):
            self.broken(Rule.WINDOW, f"{expected.vdev} on physical id {expected.phy}")
        vnpu = self.world.hardware.vnpus.get(expected.vdev)
        if vnpu is None or self._truth(vnpu) != expected:
            self.broken(Rule.IDENTITY, f"{expected} instead of {vnpu and self._truth(vnpu)}")
        if vnpu is None:
            return
        if self._is_needed(vnpu):
            self.broken(Rule.OWNED, f"vNPU {vnpu.vdev} ({vnpu.serial})")
        for pin in self._too_late(vnpu):
            self.world.count("pinned-too-late")
            if pin.target not in self._known_late:
                self.broken(Rule.OWNED, f"vNPU {vnpu.vdev} ({vnpu.serial}): its pin is said to be in time")
        if pod := next(self._mounting(vnpu), None):
            self.broken(Rule.OWNED, f"vNPU {vnpu.vdev} ({vnpu.serial}): Pod {pod.uid[-4:]} mounts it")
        if pod := next(self._users(vnpu.phy), None):
            self.broken(Rule.CARD_IN_USE, f"vNPU {vnpu.vdev}, Pod {pod.uid[-4:]}")
        age = self.world.time.now - vnpu.made_at
        if age < self._daemon.settings.bounds.normal.grace:
            self.broken(Rule.IDENTITY, f"vNPU {vnpu.vdev} ({vnpu.serial}) was made {age:.0f} s ago")
        self._count_call(vnpu)
        self.destroyed += 1

    def _truth(self, vnpu: Vnpu) -> Expected:
        card = self.world.hardware.cards[vnpu.phy]
        node = Node(vnpu.inode, vnpu.ctime_ns, MAJOR, vnpu.vdev)
        return Expected(
            self.world.boot_id, *board_of(vnpu.phy), vnpu.phy, card.die, vnpu.vdev, vfid_of(vnpu.vdev) or 0, vnpu.template, node
        )

    def _is_needed(self, vnpu: Vnpu) -> bool:
        if not vnpu.is_owned:
            return False
        if vnpu.is_admins:
            # What the manual says can be lost: an administrator's own, on a card of HAMi's, with a template of HAMi's, not pinned.
            is_hamis = self.world.hardware.cards[vnpu.phy].managed and is_hamis_template(CHIP_NAME, vnpu.template)
            can_be_lost = is_hamis and not self.is_pinned(vnpu)
            if can_be_lost:
                self.world.count("administrators-own-lost")
            return not can_be_lost
        if not self.blind.shows_holders and vnpu.owner is not None and vnpu.owner.uid:
            pod = self.world.pods.get(vnpu.owner.uid)
            # Of a Pod that nothing ever showed only its vNPU could tell.
            return pod is not None and (pod.noted or (pod.in_api and self.world.api.is_true))
        return True

    def is_pinned(self, vnpu: Vnpu | None) -> bool:
        """Whether a pin names it or its card."""
        if vnpu is None:
            return False
        # One that comes when the broker is asked already is not answered before that is over, and says so.
        pins = self._daemon.settings.pins if self._pins_when_asked is None else self._pins_when_asked
        return any(pin.target in self._targets(vnpu) for pin in pins)

    def pinned(self, target: str) -> None:
        """Take note of whether the daemon knows that a pin which comes now may be too late."""
        if self._daemon.is_too_late(target):
            self._known_late.add(target)

    def _too_late(self, vnpu: Vnpu) -> list[Pin]:
        """Return the pins that name it or its card, and came after the broker was asked."""
        before = self._pins_when_asked
        pins = self._daemon.settings.pins
        return [pin for pin in pins if pin.target in self._targets(vnpu) and before is not None and pin not in before]

    def _targets(self, vnpu: Vnpu) -> frozenset[str]:
        die = self.world.hardware.cards[vnpu.phy].die
        return frozenset({die, f"{die}/{vnpu.vdev}/{vnpu.template}"})

    def _mounting(self, vnpu: Vnpu) -> Iterator[Pod]:
        """Yield the Pods that mount the node of a vNPU, as far as the last list told."""
        for pod in self.world.api.pods.values():
            if pod.mounts == vnpu.vdev and pod.listed and not pod.ended and pod.shown.phase not in ("Succeeded", "Failed"):
                yield pod

    def _users(self, phy: int) -> Iterator[Pod]:
        """Yield the Pods that have a card, with a container that lived when the last look began, as far as it could be seen."""
        if self.blind is Blind.PODS:
            return
        for pod in self.world.pods.values():
            if pod.has_card and pod.phy == phy and pod.noted and pod.main is not None and pod.main.alive and pod.main.since < self._begun:
                yield pod

    def _count_call(self, vnpu: Vnpu) -> None:
        now, cycle, name = self.world.time.now, self._daemon.cycles, self.world.hardware.cards[vnpu.phy].name
        self._calls.append((now, cycle, name))
        self._called_on[name] = now
        while self._calls and now - self._calls[0][0] > _HOUR:
            self._calls.popleft()
        rates = self._daemon.settings.rates
        in_cycle = [card for _, of, card in self._calls if of == cycle]
        if in_cycle.count(name) > rates.per_card or len(in_cycle) > rates.per_node or len(self._calls) > rates.per_hour:
            self.broken(Rule.RATE, f"{in_cycle} in this cycle, {len(self._calls)} within the hour")
        many = self._many
        if len(many) >= 3 or (len(many) >= 2 and 2 * len(many) > sum(card.managed for card in self.world.hardware.cards.values())):
            self.broken(Rule.BREAKER, f"{sorted(many)} are due")

    def _due_cards(self, *, exact: bool) -> set[str]:
        """Return the cards that have a vNPU that is due, or may be."""
        pace = self._daemon.settings.bounds.normal
        return {
            wait.card
            for wait in self._waits.values()
            if self._looked_at - wait.since >= pace.grace
            and wait.confirmations >= pace.confirmations
            and (not exact or (wait.is_exact and wait.lasting not in self._agreed))
        }

    def released(self) -> None:
        """An administrator released the breaker, and agreed to what is there."""
        self._agreed |= {wait.lasting for wait in self._waits.values()} | self._due_while_latched
        self._due_while_latched.clear()

    # --- what is not done ----------------------------------------------------------------------------------------------
    def cycled(self) -> None:
        """Hold what was not done against what must be done in time."""
        daemon, now = self._daemon, self.world.time.now
        settings, pace = daemon.settings, daemon.settings.bounds.normal
        is_latched = self._require_cause()
        if is_latched:
            self._due_while_latched |= {wait.lasting for wait in self._waits.values()}
        off = settings.paused or settings.mode is not ReclaimMode.ENFORCE or settings.kill_switch is not Switch.ABSENT
        # A request without an answer counts, too, be it that it never reached the library.
        spent = sum(now - at <= _HOUR for at in self._asks) >= settings.rates.per_hour
        if spent:
            self.spent_at = now
        broker = daemon.broker
        held_up = off or is_latched or spent or daemon.reclaimer.is_forbidden or not (settings.journal and settings.saves)
        if held_up or broker.is_away or broker.is_stuck or broker.faults or broker.list_lies:
            self._able_since = now
        if not self.wants_progress:
            return
        for wait in self._waits.values():
            latest = max(
                wait.since + pace.grace + 3 * self._interval,
                self._able_since + self._interval,
                self._card_able_since.get(wait.card, 0.0) + 2 * self._interval,
                self._called_on.get(wait.card, 0.0) + self._interval,
            )
            # By when this cycle began to decide: each destruction before a vNPU's turn takes its time.
            if self._cycle_at > latest + _SLACK:
                self.broken(Rule.LATE, f"card {wait.card}: {wait}, now {now:.0f}")

    def _require_cause(self) -> bool:
        """Return whether the breaker holds, for which there must have been a cause when it began to."""
        is_latched = self._daemon.reclaimer.is_latched
        if is_latched and not self._was_latched and len(self._due_cards(exact=False)) < 2:
            self.broken(Rule.BREAKER, "it holds without a cause")
        self._was_latched = is_latched
        return is_latched

    @property
    def _interval(self) -> float:
        return self._daemon.settings.bounds.normal.interval

    @property
    def _daemon(self) -> Daemon:
        assert self.daemon is not None
        return self.daemon
