"""What HAMi says on the Node: which cards it hands out, that it is alive, and when it is in the middle of handing one out. Pure.

Sources: HAMi's Ascend device plugin, `internal/server/register.go` and `ascend-device-configmap.yaml`; HAMi `pkg/util/nodelock`.
The times in its annotations are local times without a zone, and are never parsed: what moves is seen to move, by our monotonic clock.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from devward.cluster.answer import parse_json
from devward.text import printable

_REGISTER: Final = "hami.io/node-register-"
_HANDSHAKE: Final = "hami.io/node-handshake-"
_LOCK: Final = "hami.io/mutex.lock"
_REPORTED: Final = "Reported_"
_REQUESTING: Final = "Requesting_"
_DELETED: Final = "Deleted_"

#: Two handshakes count when they are not further apart than this, and the second is not older, in seconds.
HANDSHAKE_SECONDS: Final = 300.0
#: HAMi's own bound for a lock that was left behind, in seconds.
LOCK_SECONDS: Final = 300.0
#: Handshakes seen before that are told from a new one.
_KEPT: Final = 16

_B3: Final = frozenset({"vir05_1c_16g", "vir10_3c_32g"})
#: HAMi's templates by the chip's name in the vendor's library. A vNPU with another was made by somebody else.
TEMPLATES: Final[Mapping[str, frozenset[str]]] = {
    "910A": frozenset({"vir02", "vir04", "vir08", "vir16"}),
    "910B2": frozenset({"vir03_1c_8g", "vir06_1c_16g", "vir12_3c_32g"}),
    "910B3": _B3,
    "910B4-1": _B3,
    "910B4": frozenset({"vir05_1c_8g", "vir10_3c_16g"}),
    "310P3": frozenset({"vir01", "vir02", "vir04"}),
    "Ascend910": _B3,
}


def is_hamis_template(chip_name: str, template: str) -> bool:
    """Whether HAMi makes vNPUs of this template from chips of this name."""
    return template in TEMPLATES.get(chip_name, frozenset())


# --- cards -----------------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Registers:
    """The cards that HAMi has on the Node."""

    #: Die ids, in capitals, by HAMi's word for their kind.
    dies: Mapping[str, frozenset[str]]
    #: Words whose list cannot be read, with why.
    malformed: Mapping[str, str]
    #: Die ids that stand there more than once.
    repeated: frozenset[str] = frozenset()

    def words(self, die: str) -> tuple[str, ...]:
        """Return the words under which a card is registered."""
        return tuple(sorted(word for word, dies in self.dies.items() if die in dies))


def read_registers(annotations: Mapping[str, str]) -> Registers:
    """Return the cards that the Node's annotations register."""
    dies: dict[str, frozenset[str]] = {}
    malformed: dict[str, str] = {}
    counted: Counter[str] = Counter()
    for key, value in sorted(annotations.items()):
        word = key.removeprefix(_REGISTER)
        if word in ("", key):
            continue
        try:
            found = _register(value)
        except ValueError as error:
            malformed[word] = printable(str(error))
            continue
        counted.update(found)
        dies[word] = frozenset(found)
    return Registers(dies, malformed, frozenset(die for die, count in counted.items() if count > 1))


def _register(text: str) -> list[str]:
    cards = parse_json(text)
    if not isinstance(cards, list):
        raise ValueError("a list is expected")
    found = []
    for card in cards:
        die = card.get("id") if isinstance(card, dict) else None
        if not isinstance(die, str) or not die.strip():
            raise ValueError("a card without an id")
        found.append(die.strip().upper())
    return found


# --- life ------------------------------------------------------------------------------------------------------------------------------
class Liveness(StrEnum):
    """Whether HAMi's plugin for a kind of card was seen to live."""

    ALIVE = "alive"
    #: Only one report was seen yet, or none.
    UNPROVEN = "unproven"
    #: No new report for a while.
    SILENT = "silent"
    DELETED = "deleted"
    MISSING = "missing"
    ODD = "odd"


@dataclass(frozen=True, slots=True)
class Handshake:
    """What was seen of one handshake. Times in seconds of the monotonic clock."""

    #: What it is by its last text, for one that is no report.
    other: Liveness | None = None
    #: The reports that were seen, the latest last.
    reports: tuple[str, ...] = ()
    #: When the latest was last seen, and when it was seen to take the place of another one within the bound.
    seen_at: float = 0.0
    moved_at: float | None = None

    def liveness(self, now: float) -> Liveness:
        """Return what that says now."""
        if self.other is not None:
            return self.other
        if self.moved_at is None:
            return Liveness.UNPROVEN
        return Liveness.ALIVE if now - self.moved_at <= HANDSHAKE_SECONDS else Liveness.SILENT


def see_handshakes(before: Mapping[str, Handshake], annotations: Mapping[str, str], now: float) -> dict[str, Handshake]:
    """Return what was seen of every handshake with this look, by HAMi's word for the kind of card."""
    return {
        word: _see_handshake(before.get(word), value, now)
        for key, value in annotations.items()
        if (word := key.removeprefix(_HANDSHAKE)) not in ("", key)
    }


def _see_handshake(before: Handshake | None, text: str, now: float) -> Handshake:
    if text.startswith(_REQUESTING):
        # The scheduler asks: that says nothing about the plugin.
        return before or Handshake()
    if text.startswith(_DELETED):
        return Handshake(Liveness.DELETED)
    if not text.startswith(_REPORTED) or text == _REPORTED:
        return Handshake(Liveness.ODD)
    if before is None or before.other is not None or not before.reports:
        return Handshake(None, (text,), now)
    if text in before.reports:
        # The same, or an old one again, as a server with an old copy would give it.
        return Handshake(None, before.reports, now if text == before.reports[-1] else before.seen_at, before.moved_at)
    moved = now if now - before.seen_at <= HANDSHAKE_SECONDS else None
    return Handshake(None, (*before.reports, text)[-_KEPT:], now, moved)


# --- whose card it is ------------------------------------------------------------------------------------------------------------------
class CardRefusal(StrEnum):
    """Why a card, or a vNPU of it, is not HAMi's."""

    NOT_REGISTERED = "card-not-registered"
    REGISTER_MALFORMED = "card-register-malformed"
    REGISTERED_TWICE = "card-registered-twice"
    HANDSHAKE_MISSING = "handshake-missing"
    HANDSHAKE_UNPROVEN = "handshake-unproven"
    HANDSHAKE_SILENT = "handshake-silent"
    HANDSHAKE_DELETED = "handshake-deleted"
    HANDSHAKE_ODD = "handshake-odd"
    TEMPLATE_UNKNOWN = "template-not-hamis"


REFUSAL_TEXT: Final[Mapping[CardRefusal, str]] = {
    CardRefusal.NOT_REGISTERED: "HAMi does not hand out this card; it is only observed, unless [reclaim] manage is all.",
    CardRefusal.REGISTER_MALFORMED: "HAMi's list of cards on the Node cannot be read; look at its device plugin on this node.",
    CardRefusal.REGISTERED_TWICE: "HAMi has this card twice on the Node; look at its device configuration.",
    CardRefusal.HANDSHAKE_MISSING: "HAMi's plugin has no handshake for this card on the Node; look at its device plugin on this node.",
    CardRefusal.HANDSHAKE_UNPROVEN: "HAMi's plugin was not yet seen to report twice; this ends by itself while the plugin runs.",
    CardRefusal.HANDSHAKE_SILENT: "HAMi's plugin has not reported for a while; look at its device plugin on this node.",
    CardRefusal.HANDSHAKE_DELETED: "HAMi's scheduler has given up this kind of card on the Node; look at its device plugin on this node.",
    CardRefusal.HANDSHAKE_ODD: "HAMi's handshake has a form that is not known; look at the Node and at HAMi's version.",
    CardRefusal.TEMPLATE_UNKNOWN: "HAMi makes no vNPUs of this template from this chip, so somebody else made it.",
}

_BY_LIVENESS: Final[Mapping[Liveness, CardRefusal]] = {
    Liveness.UNPROVEN: CardRefusal.HANDSHAKE_UNPROVEN,
    Liveness.SILENT: CardRefusal.HANDSHAKE_SILENT,
    Liveness.DELETED: CardRefusal.HANDSHAKE_DELETED,
    Liveness.MISSING: CardRefusal.HANDSHAKE_MISSING,
    Liveness.ODD: CardRefusal.HANDSHAKE_ODD,
}


def card_refusal(die: str, registers: Registers, handshakes: Mapping[str, Handshake], now: float) -> CardRefusal | None:
    """Return why a card is not HAMi's; None: it is."""
    words = registers.words(die)
    if not words:
        return CardRefusal.REGISTER_MALFORMED if registers.malformed else CardRefusal.NOT_REGISTERED
    if len(words) > 1 or die in registers.repeated:
        return CardRefusal.REGISTERED_TWICE
    handshake = handshakes.get(words[0])
    return _BY_LIVENESS.get(handshake.liveness(now) if handshake is not None else Liveness.MISSING)


def vnpu_refusal(chip_name: str, template: str) -> CardRefusal | None:
    """Return why a vNPU of a card of HAMi's is not HAMi's; None: it may be."""
    return None if is_hamis_template(chip_name, template) else CardRefusal.TEMPLATE_UNKNOWN


# --- the lock --------------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Lock:
    """HAMi's lock on the node, from the binding of a Pod until its device is given: as it was seen, in any form."""

    text: str
    #: Since when it was seen unchanged, in seconds of the monotonic clock.
    since: float

    def defers(self, now: float) -> bool:
        """Whether nothing may be destroyed for now. It is left behind once it was seen unchanged for long enough."""
        return now - self.since < LOCK_SECONDS


def see_lock(before: Lock | None, annotations: Mapping[str, str], now: float) -> Lock | None:
    """Return what was seen of the lock with this look; None: there is none."""
    text = annotations.get(_LOCK)
    if text is None:
        return None
    return before if before is not None and before.text == text else Lock(text, now)
