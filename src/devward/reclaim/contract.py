"""The destruction contract: what must be true right before the broker is asked to destroy a vNPU. Pure.

A chosen vNPU goes through two gates. `prepare` holds it against fresh evidence, judged anew by the rules that chose it; then the intent is
recorded; and `decide` is the last word before the request is sent. What the library and the device itself say is the broker's to compare
(npu/destruction.py). What its answers mean is in aftermath.py.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from devward.cluster.parts import SUSPENDED_SECONDS
from devward.cluster.views import CardState
from devward.npu.facts import Expected
from devward.npu.inventory import Picture
from devward.npu.numbering import vfid_of, window
from devward.npu.pins import PinReport
from devward.reclaim.confirmation import Bounds, Progress, step
from devward.reclaim.controls import Controls, permission
from devward.reclaim.limits import LIMIT_TEXT, Due, Rates, Spent, limit
from devward.reclaim.look import Cut, Interruption, Look, VnpuFacts
from devward.reclaim.reasons import WHY_TEXT, Verdict, Why
from devward.reclaim.verdict import Judgement, judge

#: How old the oldest part of the fresh evidence may be when the broker is asked, in seconds.
FRESH_SECONDS: Final = 30.0


class No(StrEnum):
    """Why a vNPU is not destroyed after all. Other codes are those of verdicts, limits and of what blocks everything."""

    NOT_FRESH = "evidence-not-fresh"
    TOO_OLD = "evidence-too-old"
    GONE = "vnpu-gone"
    EVENTS_UNREAD = "device-events-unread"
    EVENTS_SEEN = "device-events-seen"
    NOT_DESCRIBED = "vnpu-not-described"
    OTHER_VNPU = "description-differs"
    OUTSIDE_WINDOW = "id-outside-window"
    NOT_RECORDED = "intent-not-recorded"
    INTERRUPTED = "interrupted"


NO_TEXT: Final[Mapping[No, str]] = MappingProxyType(
    {
        No.NOT_FRESH: "The evidence was not taken anew since the vNPU was chosen.",
        No.TOO_OLD: "The evidence is too old by now; the next cycle takes it anew.",
        No.GONE: "The vNPU that was chosen is not there any more.",
        No.EVENTS_UNREAD: "The device monitor's events could not all be read, so that the vNPU may be another one.",
        No.EVENTS_SEEN: "The vNPU's device came or went since the vNPU was chosen, so that it may be another one.",
        No.NOT_DESCRIBED: "The vNPU cannot be described in full, so that the broker could not tell it from another one.",
        No.OTHER_VNPU: "The description for the broker is not that of the chosen vNPU and its card.",
        No.OUTSIDE_WINDOW: "The id is none that a vNPU of this NPU can have.",
        No.INTERRUPTED: "Something happened meanwhile after which every wait begins anew.",
        No.NOT_RECORDED: "The journal did not take the record of what was about to be done.",
    }
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A vNPU that was chosen, as it was at that moment."""

    due: Due
    #: How often its node came or went, as the device monitor saw it.
    sequence: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """It is not destroyed."""

    #: A stable code.
    reason: str
    #: For people, fit to be shown.
    sentence: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A vNPU that may be destroyed once the intent is recorded."""

    chosen: Chosen
    expected: Expected
    #: The fresh verdict: part of the record.
    judgement: Judgement
    #: When the oldest part of the fresh evidence was taken, in seconds of CLOCK_BOOTTIME; earlier if the host was suspended meanwhile.
    begun: float
    #: Seconds by which that clock was ahead of the monotonic one right before the fresh evidence was asked for.
    apart: float


@dataclass(frozen=True, slots=True)
class Go:
    """The broker may be asked, now, and once."""

    expected: Expected


def described(picture: Picture | None, identity: str) -> Expected | None:
    """Return what the broker is to find in the place of a vNPU, by the inventory of the fresh look; None: it cannot be told in full."""
    vnpu = next((one for one in picture.vnpus if one.identity == identity), None) if picture is not None else None
    if picture is None or vnpu is None:
        return None
    card = next((one for one in picture.cards if one.name == vnpu.card), None)
    node, vfid = picture.nodes.get(vnpu.name), vfid_of(vnpu.vdev)
    if card is None or node is None or vfid is None or vnpu.vfid != vfid:
        return None
    return Expected(picture.boot_id, card.card, card.device, card.phy_id, card.die_id, vnpu.vdev, vfid, vnpu.template, node)


def prepare(
    chosen: Chosen,
    before: Progress,
    fresh: Look,
    expected: Expected | None,
    *,
    now: float,
    apart: float,
    sequence: int | None,
    controls: Controls,
    spent: Spent,
    rates: Rates,
    bounds: Bounds,
) -> tuple[Prepared | Refuse, Progress]:
    """Hold a chosen vNPU against a fresh look; the progress with that look is returned with the answer, whatever that is.

    `before` is the progress by which it was chosen. `now` is by the monotonic clock, which stands still while the host is suspended, and
    `apart` by how many seconds CLOCK_BOOTTIME was ahead of it right before the fresh look was asked for. `expected` is what the broker is
    to find there, as `described`. `sequence` is as in `Chosen`, read after the device monitor was drained; None: it could not be drained.
    """
    progress = step(before, fresh, bounds)
    answer = _stopped(chosen, controls, spent, rates, now) or _judged(chosen, before, progress, fresh, bounds)
    if isinstance(answer, Refuse):
        return answer, progress
    vnpu, card = fresh.vnpu(chosen.due.identity), fresh.card(chosen.due.card)
    refusal = _moved(chosen.sequence, sequence) or _misdescribed(expected, vnpu, card)
    if refusal is not None or expected is None:
        return refusal or _no(No.NOT_DESCRIBED), progress
    return Prepared(chosen, expected, answer, fresh.begun + apart, apart), progress


def decide(
    prepared: Prepared,
    *,
    now: float,
    sequence: int | None,
    controls: Controls,
    is_intent_taken: bool,
    fresh_seconds: float = FRESH_SECONDS,
) -> Go | Refuse:
    """Say the last word: the intent is recorded, and kill switch, modes and device events were read once more after that.

    `now` is by CLOCK_BOOTTIME, so that evidence grows old while the host is suspended, too. `is_intent_taken` is
    whether the journal's socket took the record; no other way of writing it counts.
    """
    if not is_intent_taken:
        return _no(No.NOT_RECORDED)
    if blocked := _blocked(controls):
        return blocked
    if not 0 <= now - prepared.begun <= fresh_seconds:
        return _no(No.TOO_OLD)
    return _moved(prepared.chosen.sequence, sequence) or Go(prepared.expected)


def kept_since(prepared: Prepared, interruptions: Collection[Interruption], pins: PinReport | None, apart: float) -> Refuse | None:
    """Return what keeps a vNPU that was not there when the fresh look was taken: an interruption, or a pin; None: nothing.

    `interruptions` are those of after that look, `pins` how the pins stand now; None: they cannot be read. `apart` is as in `Prepared`, of
    now: the next look begins every wait anew after a suspension, and may come too late for this one.
    """
    identity = prepared.chosen.due.identity
    if apart - prepared.apart > SUSPENDED_SECONDS:
        return Refuse(Cut.RESUMED.value, NO_TEXT[No.INTERRUPTED])
    if broken := next((one for one in interruptions if one.breaks(identity)), None):
        return Refuse(broken.cut.value, NO_TEXT[No.INTERRUPTED])
    if pins is None:
        return Refuse(Why.PINS_UNREADABLE.value, WHY_TEXT[Why.PINS_UNREADABLE])
    if any(one.view.name == prepared.judgement.name or one.view.identity == identity for one in pins.vnpus):
        return Refuse(Why.PINNED.value, WHY_TEXT[Why.PINNED])
    return None


def _stopped(chosen: Chosen, controls: Controls, spent: Spent, rates: Rates, now: float) -> Refuse | None:
    if blocked := _blocked(controls):
        return blocked
    reached = limit(chosen.due.card, spent, rates, now)
    return Refuse(reached.value, LIMIT_TEXT[reached]) if reached is not None else None


def _blocked(controls: Controls) -> Refuse | None:
    allowed = permission(controls)
    return None if allowed.may_destroy else Refuse(allowed.reasons[0], allowed.sentences[0])


def _judged(chosen: Chosen, before: Progress, progress: Progress, fresh: Look, bounds: Bounds) -> Judgement | Refuse:
    """Return the fresh verdict, if that still is that it may be destroyed: without Pods, or with the node unknown, it is not."""
    if before.looked_at is None or fresh.begun <= before.looked_at:
        return _no(No.NOT_FRESH)
    vnpu = fresh.vnpu(chosen.due.identity)
    if vnpu is None or vnpu.card != chosen.due.card:
        return _no(No.GONE)
    judgement = judge(progress, fresh, bounds)[vnpu.name]
    return judgement if judgement.verdict is Verdict.ELIGIBLE else Refuse(judgement.reason, judgement.sentence)


def _moved(before: int, now: int | None) -> Refuse | None:
    if now is None:
        return _no(No.EVENTS_UNREAD)
    return _no(No.EVENTS_SEEN) if now != before else None


def _misdescribed(expected: Expected | None, vnpu: VnpuFacts | None, card: CardState | None) -> Refuse | None:
    if expected is None or vnpu is None or card is None:
        return _no(No.NOT_DESCRIBED)
    told = (expected.vdev, expected.template, expected.phy, expected.die)
    if not all((expected.boot_id, expected.template, expected.die)) or told != (vnpu.vdev, vnpu.template, card.phy, card.die):
        return _no(No.OTHER_VNPU)
    # 65535, by which the library destroys every vNPU of a chip, is in no window.
    if expected.vdev not in window(expected.phy) or expected.vfid != vfid_of(expected.vdev):
        return _no(No.OUTSIDE_WINDOW)
    return None


def _no(no: No) -> Refuse:
    return Refuse(no.value, NO_TEXT[no])
