"""Pins: which vNPUs somebody wants kept, and which of them are still the very ones that were pinned. Pure.

A pin names a vNPU, or an NPU with all its vNPUs. It protects whatever bears that name, for ever. Offered to containers is less: only a
vNPU that was pinned itself, and only while it is known to be the one of that time. Doubt protects: what may be a pinned vNPU counts as
pinned, and a pin that cannot be judged for now is not called one that matches nothing.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

from devward.devices.health import sentence
from devward.model import Finding, Pin
from devward.npu.numbering import DIE, FIRST_VDEV, TEMPLATE, VDEV_LIMIT
from devward.npu.views import CardView, VnpuView
from devward.reasons import Reason

#: What a target looks like, for people.
GRAMMAR: Final = (
    "DIE or DIE/VDEV/TEMPLATE: five groups of eight upper-case hexadecimal digits joined by hyphens,"
    f" the id of a vNPU from {FIRST_VDEV} to {VDEV_LIMIT - 1}, and the name of its template"
)
_TARGET: Final = re.compile(f"(?P<die>{DIE.pattern})(?:/(?P<vdev>[1-9][0-9]{{2,3}})/(?P<template>{TEMPLATE.pattern}))?")
#: Stands in an identity for a part that is not known.
_NOT_KNOWN: Final = "-"


@dataclass(frozen=True, slots=True)
class Target:
    """What a pin names: the NPU with this die, or of that the vNPU with this id and template."""

    die: str
    #: None and empty for the NPU.
    vdev: int | None = None
    template: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a target. ValueError: it is none; the text quotes the grammar."""
        match = _TARGET.fullmatch(text)
        if match is None:
            raise ValueError(f"a target is {GRAMMAR}")
        if match["vdev"] is None:
            return cls(match["die"])
        vdev = int(match["vdev"])
        if not FIRST_VDEV <= vdev < VDEV_LIMIT:
            raise ValueError(f"no vNPU can have the id {vdev}; a target is {GRAMMAR}")
        return cls(match["die"], vdev, match["template"])

    def __str__(self) -> str:
        """Print it as it is read."""
        return self.die if self.vdev is None else f"{self.die}/{self.vdev}/{self.template}"


class Standing(StrEnum):
    """How a pin stands."""

    #: What it names is there; if a vNPU, it is the very one that was pinned.
    MATCHED = "matched"
    #: The vNPU there is not known to be the one that was pinned.
    OTHER_IDENTITY = "other-identity"
    #: There is nothing of that name.
    UNMATCHED = "unmatched"
    #: That cannot be told now.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of the NPUs of a host, as devward.npu.inventory pictures it."""

    cards: Sequence[CardView] = ()
    vnpus: Sequence[VnpuView] = ()
    #: By name of the vNPU, what tells it from others across runs of the daemon.
    lasting: Mapping[str, str] = field(default_factory=dict)
    #: There may be NPUs or vNPUs that are not listed.
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class PinnedVnpu:
    """A vNPU that is pinned, or may be."""

    view: VnpuView
    #: Its own pins first, of which there is one unless its template is not known, then those of its NPU.
    pins: tuple[Pin, ...]
    #: UNMATCHED never; MATCHED where only its NPU is pinned.
    standing: Standing
    #: Whether it was pinned itself, and is known to be the vNPU of that time.
    is_offerable: bool
    #: Why it may not be offered though it was pinned itself; `ok` where it may be, or was not.
    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class JudgedPin:
    """A pin, and what it matches."""

    pin: Pin
    standing: Standing
    #: Names of the NPUs and vNPUs that it matches, or may match.
    matches: tuple[str, ...]
    #: Why it is not MATCHED.
    reason: Reason
    text: str
    #: What tells the one vNPU that it matches from others now; empty where it matches none for certain.
    identity: str = ""

    @property
    def names_vnpu(self) -> bool:
        """Whether it is a vNPU that is pinned, and not an NPU with all of them."""
        return "/" in self.pin.target


@dataclass(frozen=True, slots=True)
class PinReport:
    """Every pin and every pinned vNPU."""

    pins: tuple[JudgedPin, ...] = ()
    vnpus: tuple[PinnedVnpu, ...] = ()

    @property
    def offerable(self) -> tuple[VnpuView, ...]:
        """The vNPUs that may be offered to containers."""
        return tuple(pinned.view for pinned in self.vnpus if pinned.is_offerable)

    @property
    def withheld(self) -> tuple[PinnedVnpu, ...]:
        """The vNPUs that were pinned themselves and may not be offered, with the reason.

        OTHER_IDENTITY stays until it is pinned again; with UNKNOWN it may still be the one that was pinned.
        """
        return tuple(pinned for pinned in self.vnpus if pinned.reason is not Reason.OK)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What an administrator should know."""
        return tuple(
            Finding(judged.reason, f"pin/{judged.pin.target}", judged.text)
            for judged in self.pins
            if judged.standing in {Standing.UNMATCHED, Standing.OTHER_IDENTITY}
        )


def judge(pins: Iterable[Pin], sight: Sight) -> PinReport:
    """Match pins with what there is. A pin whose target cannot be read is a mistake of the caller: ValueError."""
    if not (targets := [(pin, Target.parse(pin.target)) for pin in pins]):
        return PinReport()
    look = _Look(targets, sight)
    vnpus = tuple(pinned for view in sight.vnpus if (pinned := look.take(view)) is not None)
    return PinReport(tuple(look.judged(pin, target) for pin, target in targets), vnpus)


@dataclass(frozen=True, slots=True)
class _Match:
    view: VnpuView
    standing: Standing
    reason: Reason
    detail: str
    identity: str


class _Look:
    """One match of all pins with all vNPUs."""

    def __init__(self, targets: Iterable[tuple[Pin, Target]], sight: Sight) -> None:
        self._sight = sight
        self._cards = {card.name: card for card in sight.cards}
        self._of_vnpus: dict[int, list[tuple[Pin, Target]]] = {}
        self._of_cards: dict[str, list[Pin]] = {}
        self._matches: dict[str, list[_Match]] = {}
        for pin, target in targets:
            if target.vdev is None:
                self._of_cards.setdefault(target.die, []).append(pin)
            else:
                self._of_vnpus.setdefault(target.vdev, []).append((pin, target))
        self._cards_of: dict[str, list[CardView]] = {}
        for card in sight.cards:
            self._cards_of.setdefault(card.die_id, []).append(card)

    def take(self, view: VnpuView) -> PinnedVnpu | None:
        """Match a vNPU; None: no pin names it, nor can one mean it."""
        die = self._die_of(view)
        own = [
            (pin, self._compare(pin, view))
            for pin, target in self._of_vnpus.get(view.vdev, ())
            if die in ("", target.die) and view.template in ("", target.template)
        ]
        for pin, match in own:
            self._matches.setdefault(pin.target, []).append(match)
        # Of an NPU whose die is not known each pin that has none may mean it.
        of_card = self._of_cards.get(die, []) if die else self._homeless()
        if not own and not of_card:
            return None
        pins = (*(pin for pin, _ in own), *of_card)
        if not own:
            standing = Standing.MATCHED if die else Standing.UNKNOWN
            return PinnedVnpu(view, pins, standing, is_offerable=False, reason=Reason.OK, text="")
        # More than one names it only while it is not known what it is, and then none of them is sure.
        match = own[0][1]
        text = sentence(match.reason, match.detail)
        return PinnedVnpu(view, pins, match.standing, is_offerable=match.standing is Standing.MATCHED, reason=match.reason, text=text)

    def judged(self, pin: Pin, target: Target) -> JudgedPin:
        """Say how a pin stands, once every vNPU was taken."""
        cards = self._cards_of.get(target.die, [])
        if target.vdev is None and cards:
            return JudgedPin(pin, Standing.MATCHED, tuple(card.name for card in cards), Reason.OK, "")
        matches = self._matches.get(pin.target, [])
        if matches:
            names = tuple(match.view.name for match in matches)
            # Others may bear the name too, as long as it is not known what they are.
            certain = [match for match in matches if match.standing is not Standing.UNKNOWN]
            match = (certain or matches)[0]
            return JudgedPin(pin, match.standing, names, match.reason, sentence(match.reason, match.detail), match.identity)
        doubt, detail = self._doubt(cards)
        if doubt is not Reason.OK:
            return JudgedPin(pin, Standing.UNKNOWN, (), doubt, sentence(doubt, detail))
        return JudgedPin(pin, Standing.UNMATCHED, (), Reason.PIN_UNMATCHED, sentence(Reason.PIN_UNMATCHED, self._instead(cards, target)))

    def _homeless(self) -> list[Pin]:
        return [pin for die, pins in self._of_cards.items() if die not in self._cards_of for pin in pins]

    def _doubt(self, cards: Sequence[CardView]) -> tuple[Reason, str]:
        """Return why something may be there although it is not listed; `cards` are those with the die that is looked for."""
        doubtful = next((card for card in cards if card.reason is not Reason.OK), None)
        if doubtful is not None:
            return doubtful.reason, doubtful.name
        if cards:
            return Reason.OK, ""
        if self._sight.in_doubt:
            return Reason.NPU_LIST_INCOMPLETE, ""
        nameless = next(iter(self._cards_of.get("", [])), None)
        return (Reason.NPU_DIE_UNKNOWN, nameless.name) if nameless is not None else (Reason.OK, "")

    def _instead(self, cards: Sequence[CardView], target: Target) -> str:
        names = {card.name for card in cards}
        found = next((view for view in self._sight.vnpus if view.card in names and view.vdev == target.vdev), None)
        return f"vNPU {found.vdev} there has the template {found.template}" if found is not None else ""

    def _die_of(self, view: VnpuView) -> str:
        """Return the die of the NPU of a vNPU, as it is known or was when it could be read last; empty if it never could."""
        card = self._cards.get(view.card)
        known = card.die_id if card is not None else ""
        return known or view.identity.partition("/")[0].removeprefix(_NOT_KNOWN)

    def _compare(self, pin: Pin, view: VnpuView) -> _Match:
        lasting = self._sight.lasting.get(view.name, "")
        if view.reason is not Reason.OK:
            return _Match(view, Standing.UNKNOWN, view.reason, view.name, "")
        if not lasting or not view.node:
            # Such as those for virtual machines: nothing would tell it from a later one.
            return _Match(view, Standing.UNKNOWN, Reason.NPU_NODE_MISSING, view.name, "")
        if pin.identity == lasting:
            return _Match(view, Standing.MATCHED, Reason.OK, "", lasting)
        why = "it was made anew since then" if pin.identity else "it could not be looked at when it was pinned"
        return _Match(view, Standing.OTHER_IDENTITY, Reason.PIN_OTHER_IDENTITY, f"{view.name}: {why}", lasting)
