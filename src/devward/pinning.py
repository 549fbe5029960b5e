"""The pins of the daemon: set and taken away over the bus, remembered, and matched with the NPUs that there are.

A host without NPUs and without pins loads nothing of NPUs for this.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from devward import changes
from devward.audit import Audit
from devward.clock import Clock
from devward.errors import LimitsExceeded, NoSuchPin
from devward.model import MAXIMUM_PINS, ActionRequest, ActionResult, Finding, Outcome, Pin
from devward.npu.room import NpuRoom
from devward.reasons import REASON_TEXT, Reason
from devward.remembered import Remembered
from devward.state import State

if TYPE_CHECKING:
    from devward.npu.pins import PinReport, Sight
    from devward.npu.views import VnpuView

_CLAIMED: Final = frozenset({Reason.VNPU_CLAIMS_UNKNOWN, Reason.VNPU_NPU_CLAIMED})


class Pinning:
    """Holds the pins against the NPUs of the host. Asking it is free."""

    def __init__(
        self,
        remembered: Remembered,
        npus: NpuRoom,
        audit: Audit,
        clock: Clock,
        on_change: Callable[[], None],
        *,
        lateness: Callable[[str], Callable[[], Awaitable[Reason]]],
        spec_path: Callable[[], str],
    ) -> None:
        """Remember pins there; `on_change` is called when one came or went, `spec_path` returns where the CDI file of vNPUs is.

        `lateness` is told what is pinned from now on, and returns what tells for what that came too late, as ReclaimRoom.lateness().
        """
        self._remembered = remembered
        self._npus = npus
        self._audit = audit
        self._clock = clock
        self._on_change = on_change
        self._lateness = lateness
        self._spec_path = spec_path
        self._judged: tuple[tuple[Pin, ...], Sight, PinReport] | None = None

    # --- views -------------------------------------------------------------------------------------------------------
    def report(self) -> "PinReport | None":
        """Return how every pin stands, and which vNPUs are pinned; None where there is no pin."""
        pins = self._remembered.state.pins
        if not pins:
            return None
        from devward.npu.pins import judge

        sight = self._npus.sight()
        if self._judged is None or self._judged[0] is not pins or self._judged[1] != sight:
            self._judged = pins, sight, judge(pins, sight)
        return self._judged[2]

    def findings(self) -> Sequence[Finding]:
        """Return the pins that match nothing, or no longer what was pinned, and why what is pinned is not offered to containers."""
        report = self.report()
        if report is None:
            return ()
        against = dict.fromkeys(found for found in map(self._against, report.offerable) if found is not None)
        # Whatever else it is, the NPUs have the finding.
        claimed = [(code, text) for code, text in against if code in _CLAIMED]
        return (*report.findings, *(Finding(code, self._spec_path(), text) for code, text in claimed))

    @property
    def has_vnpus(self) -> bool:
        """Whether a vNPU is pinned, and not only NPUs."""
        report = self.report()
        return report is not None and any(judged.names_vnpu for judged in report.pins)

    def _against(self, vnpu: "VnpuView") -> tuple[Reason, str] | None:
        """Return why a vNPU is not offered, however it is pinned; None if it may be."""
        from devward.npu.offers import withheld

        cards = self._npus.cards()
        die = next((card.die_id for card in cards if card.name == vnpu.card), "")
        return withheld(die, cards, self._npus.outfit, self._npus.claims)

    def describe(self, *, full: bool) -> list[dict[str, object]]:
        """Return every pin; without `full` nobody's words and no names but those of devices."""
        report = self.report()
        return [
            _entry(judged.pin, full=full)
            | {
                "standing": judged.standing,
                "matches": list(judged.matches),
                "code": judged.reason,
                "text": judged.text if full else REASON_TEXT[judged.reason],
            }
            for judged in (report.pins if report is not None else ())
        ]

    def of_vnpu(self, name: str, *, full: bool) -> dict[str, object]:
        """Return by what a vNPU is pinned, how that stands, and why it may not be offered although it was pinned itself."""
        report = self.report()
        pinned = next((one for one in report.vnpus if one.view.name == name), None) if report is not None else None
        if pinned is None:
            return {"pins": []}
        reason, text = pinned.reason, pinned.text
        against = self._against(pinned.view) if pinned.is_offerable else None
        if against is not None:
            reason, text = against
        return {
            "pins": [_entry(pin, full=full) for pin in pinned.pins],
            "pin_standing": pinned.standing,
            "offerable": pinned.is_offerable and against is None,
            "not_offerable_because": text if full else REASON_TEXT[reason],
        }

    # --- actions -----------------------------------------------------------------------------------------------------
    async def pin(self, request: ActionRequest, target: str, reason: str) -> tuple[ActionResult, ...]:
        """Pin a target in its printed form. To pin what is pinned changes nothing, unless another vNPU bears the name now.

        What had begun to be destroyed is waited for: nothing that is pinned is destroyed after the answer, unless that says so.
        LimitsExceeded: there are as many pins as there can be.
        """
        with self._audit.begin("action", f"Pin was asked for: {target}, {reason}", member="Pin", subject=target, request=request) as record:
            pin, why = self._seen_now(
                Pin(target, reason, request.caller.uid if request.caller is not None else 0, self._clock.realtime_usec())
            )
            pins = self._remembered.state.pins
            known = self._remembered.state.pin_of(target)
            if known is None and len(pins) >= MAXIMUM_PINS:
                text = f"there are {MAXIMUM_PINS} pins already, which is as many as there can be"
                record.fail(LimitsExceeded.code, f"Pin: {text}")
                raise LimitsExceeded(f"{text[0].upper()}{text[1:]}.")
            # What had begun by the moment at which the pin comes into force, which is before anything is waited for.
            too_late = self._lateness(target)
            is_same = known is not None and pin.identity in ("", known.identity)
            # A save that failed before is tried again: whoever asks twice may do so for that.
            saved = await self._update(lambda state: state if is_same else state.with_pin(pin))
            if (late := await too_late()) is not Reason.OK:
                return changes.too_late(record, "Pin", target, late, saved=saved, of=target)
            if not saved:
                return changes.not_saved(record, "Pin", target, of=target)
            if is_same:
                record.noop(f"Pin: {target} is pinned already")
                return (ActionResult(target, Outcome.NOOP, why),)
            record.succeed(f"{target} is pinned{f'; {REASON_TEXT[why]}' if why else ''}", reason=why, evidence=_evidence(pin, known))
            return (ActionResult(target, Outcome.SUCCESS, why),)

    async def unpin(self, request: ActionRequest, target: str) -> tuple[ActionResult, ...]:
        """Take a pin away. NoSuchPin: there is none of this target."""
        known = self._remembered.state.pin_of(target)
        if known is None:
            raise NoSuchPin(f"There is no pin of {target}.")
        with self._audit.begin("action", f"Unpin was asked for: {target}", member="Unpin", subject=target, request=request) as record:
            if not await self._update(lambda state: state.without_pin(target)):
                return changes.not_saved(record, "Unpin", target, of=target)
            record.succeed(f"{target} is not pinned any more", evidence=_evidence(None, known))
            return (ActionResult(target, Outcome.SUCCESS, Reason.OK),)

    def _seen_now(self, pin: Pin) -> tuple[Pin, Reason]:
        """Return a pin with the identity of what it matches now, and why it is not wholly known to match; `ok` where it is."""
        from devward.npu.pins import judge

        (judged,) = judge((pin,), self._npus.sight()).pins
        return replace(pin, identity=judged.identity), Reason.OK if judged.identity else judged.reason

    async def _update(self, change: Callable[[State], State]) -> bool:
        try:
            return await self._remembered.update(change)
        finally:
            self._on_change()


def _entry(pin: Pin, *, full: bool) -> dict[str, object]:
    entry: dict[str, object] = {"target": pin.target, "since_usec": pin.since_usec}
    return entry | ({"reason": pin.reason, "caller_uid": pin.caller_uid} if full else {})


def _evidence(pin: Pin | None, before: Pin | None) -> dict[str, object]:
    """Return what the record of a change keeps: who had pinned it before, when and why."""
    told: dict[str, object] = {}
    if pin is not None:
        told["identity_known"] = bool(pin.identity)
    if before is not None:
        told["before"] = _entry(before, full=True)
    return told
