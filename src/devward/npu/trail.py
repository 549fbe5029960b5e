"""What the journal says of NPUs: cards that can be vouched for, that cannot any more, that are gone; vNPUs that came and went."""

import signal
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from devward import names
from devward.audit import Audit
from devward.errors import BusError
from devward.model import Trigger
from devward.npu.inventory import BROKER, Picture
from devward.npu.views import CardView, VnpuView
from devward.reasons import Reason

#: How many changes of a kind that come together are recorded one by one.
AT_ONCE: Final = 10
#: Seconds that the service manager has to answer.
KILL_SECONDS: Final = 5.0
#: org.freedesktop.systemd1(5); uid 0 may.
_KILL_UNIT: Final = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "KillUnit")
#: Of many vNPUs, how many are named.
NAMED: Final = 16


class Trail:
    """Records the difference of two pictures."""

    def __init__(self, audit: Audit) -> None:
        """Write to this audit trail."""
        self._audit = audit

    def record(self, before: Picture, after: Picture, trigger: Trigger) -> None:
        """Record what changed, damped by card and kind."""
        was = {_place(view): view for view in before.cards}
        now = {_place(view): view for view in after.cards}
        changed = [view for place, view in now.items() if place not in was or was[place].reason is not view.reason]
        self._cards("card-usable", [view for view in changed if view.reason is Reason.OK], trigger)
        self._cards("card-unknown", [view for view in changed if view.reason is not Reason.OK], trigger)
        self._cards("card-gone", [view for place, view in was.items() if place not in now], trigger)
        old, new = {_key(view): view for view in before.vnpus}, {_key(view): view for view in after.vnpus}
        self._vnpus("vnpu-gone", [view for key, view in old.items() if key not in new], trigger)
        self._vnpus("vnpu-appeared", [view for key, view in new.items() if key not in old], trigger)

    def lost_events(self) -> None:
        """Record that device events were lost."""
        text = "Events of NPU nodes were lost; every NPU is looked at again, and every vNPU counts as new"
        self._audit.transition("udev of NPUs", "udev-overflow", text, trigger=Trigger.UDEV)

    def _cards(self, kind: str, views: Sequence[CardView], trigger: Trigger) -> None:
        said = {"card-usable": "can be vouched for", "card-unknown": "cannot be vouched for", "card-gone": "is gone"}[kind]
        for view in views[:AT_ONCE]:
            gone = kind == "card-gone"
            self._audit.transition(
                f"card {view.name}",
                kind,
                f"NPU {view.name} {said}" + (f": {view.text}" if view.text and not gone else ""),
                subject=names.card_path(view.name).removeprefix(f"{names.ROOT_PATH}/"),
                device=view.node,
                reason="" if gone else view.reason,
                trigger=trigger,
                evidence={"card": view.card, "device": view.device, "die": view.die_id, "chip": view.chip, "number": view.number},
            )
        if len(views) > AT_ONCE:
            text = f"{len(views) - AT_ONCE} more NPUs: each {said}"
            self._audit.transition(f"many {kind}", kind, text, count=len(views) - AT_ONCE, reason=views[-1].reason, trigger=trigger)

    def _vnpus(self, kind: str, views: Iterable[VnpuView], trigger: Trigger) -> None:
        by_card: dict[str, list[VnpuView]] = {}
        for view in views:
            by_card.setdefault(view.card, []).append(view)
        for number, (card, those) in enumerate(by_card.items()):
            if number == AT_ONCE:
                count = sum(len(rest) for rest in list(by_card.values())[AT_ONCE:])
                self._audit.transition(f"many {kind}", kind, f"{count} more vNPUs {_verb(kind)}", count=count, trigger=trigger)
                return
            told = ", ".join(f"{view.vdev} ({view.template or 'template unknown'})" for view in those[:NAMED])
            more = f" and {len(those) - NAMED} more" if len(those) > NAMED else ""
            self._audit.transition(
                f"vNPUs of {card}",
                kind,
                f"vNPU {told}{more} of NPU {card} {_verb(kind)}",
                subject=f"card/{card}",
                count=len(those),
                device=[view.node for view in those[:NAMED] if view.node],
                trigger=trigger,
                evidence={"identities": [view.identity for view in those[:NAMED]]},
            )


async def kill_broker(audit: Audit, call: Callable[..., Awaitable[object]]) -> str:
    """Have the service manager end every process of a broker that hangs, on record; return why that failed, empty if it did not."""
    text = f"{BROKER} stays silent and does not end by itself: the service manager is asked to end it"
    with audit.begin("broker-kill", text, subject=BROKER, trigger=Trigger.TIMER) as record:
        try:
            await call(*_KILL_UNIT, "ssi", (BROKER, "all", int(signal.SIGKILL)), expect="", within=KILL_SECONDS)
        except BusError as error:
            record.fail(Reason.NPU_BROKER_SILENT, f"{BROKER} could not be ended: {error}")
            return str(error)
        record.succeed(f"{BROKER} was ended")
        return ""


def _place(view: CardView) -> tuple[int, int]:
    return view.card, view.device


def _key(view: VnpuView) -> tuple[str, str]:
    return view.name, view.identity


def _verb(kind: str) -> str:
    return "appeared" if kind == "vnpu-appeared" else "gone"
