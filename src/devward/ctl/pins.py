"""`devwardctl pins`, `pin` and `unpin`: what is kept for ever, by whom and why."""

from dataclasses import dataclass, field
from typing import Final

from devward.ctl.actions import STATUS, Action, show
from devward.ctl.client import Client
from devward.ctl.context import Context
from devward.ctl.explain_npu import TARGET, card_meant, vnpu_meant
from devward.ctl.facts import Snapshot
from devward.ctl.failure import ExitStatus, Failure
from devward.ctl.layout import Cell, Column, table
from devward.ctl.reading import UNKNOWN, Raw, integer_of, number_of, text_of, texts_of
from devward.ctl.terminal import Screen, Tone, unbroken
from devward.ctl.when import Times
from devward.text import printable

#: The standing of a pin that is as it should be, in Describe.
_MATCHED: Final = "matched"
_OTHER_VERSION: Final = f"It is of another version than this devwardctl; after an upgrade: {unbroken('systemctl restart devward.service')}."


@dataclass(frozen=True, slots=True)
class Pin:
    """One pin as Describe has it. Reason and uid are missing for who may not inspect."""

    target: str = ""
    standing: str = ""
    matches: tuple[str, ...] = ()
    reason: str = ""
    caller_uid: int = UNKNOWN
    since_usec: int = 0
    raw: Raw = field(default_factory=dict)

    @classmethod
    def of(cls, values: Raw) -> "Pin":
        """Read an entry."""
        return cls(
            target=text_of(values, "target"),
            standing=text_of(values, "standing"),
            matches=texts_of(values, "matches"),
            reason=text_of(values, "reason"),
            caller_uid=integer_of(values, "caller_uid"),
            since_usec=number_of(values, "since_usec"),
            raw=values,
        )


def run(context: Context) -> int:
    """List the pins, or set or take one away."""

    async def listed(client: Client) -> int:
        pins = pins_of(await client.describe())
        if context.json:
            context.print_json([pin.raw for pin in pins])
        elif pins:
            show_pins(context.out, pins, context.times())
        else:
            context.out.line("No pins.")
        return ExitStatus.OK

    async def act(client: Client) -> int:
        target = resolved(context.given.target, await client.snapshot())
        if context.given.command == "pin":
            action = Action("Pin", "sst", (target, context.given.reason, 0), lambda _: f"{printable(target)} is pinned.")
        else:
            action = Action("Unpin", "st", (target, 0), lambda _: f"{printable(target)} is not pinned any more.")
        answer = await client.act(action.member, action.signature, action.body)
        show(context, action, answer)
        return STATUS.get(answer.outcome, ExitStatus.UNHEALTHY)

    return context.on_bus(listed if context.given.command == "pins" else act)


def pins_of(described: dict[str, object]) -> list[Pin]:
    """Return the pins in the answer of Describe. Failure where the daemon does not know of pins."""
    entries = described.get("pins")
    if not isinstance(entries, list):
        raise Failure(ExitStatus.UNHEALTHY, "This devwardd does not offer pins.", _OTHER_VERSION)
    return [Pin.of(entry) for entry in entries if isinstance(entry, dict)]


def resolved(what: str, snapshot: Snapshot) -> str:
    """Return the target that is meant: a vNPU by name, id, node or identity, an NPU by name, node or die id, or a target in full.

    Failure where nothing of that kind is meant, or it cannot be named in full.
    """
    vnpu = vnpu_meant(what, snapshot)
    if vnpu is not None:
        die, _, _ = vnpu.identity.partition("/")
        if not vnpu.template or not TARGET.fullmatch(die):
            raise _not_known(vnpu.name, "template" if not vnpu.template else "die id of its NPU")
        return f"{die}/{vnpu.id}/{vnpu.template}"
    # A number alone is never an NPU's: it would pin, or unpin, much more than somebody who mistypes an id wants.
    card = None if what.isdigit() else card_meant(what, snapshot)
    if card is not None:
        if not card.die_id:
            raise _not_known(card.name, "die id")
        return card.die_id
    if TARGET.fullmatch(what):
        return what
    raise Failure(
        ExitStatus.UNHEALTHY,
        f"devward sees no NPU and no vNPU named {printable(what, 80)}.",
        f"{unbroken('devwardctl vnpus')} and {unbroken('devwardctl pins')} list what can be named; what is not there can be named"
        " as DIE/VDEV/TEMPLATE or DIE.",
    )


def show_pins(screen: Screen, pins: list[Pin], times: Times) -> None:
    """Print a line for each pin."""
    columns = [
        Column("PIN"),
        Column("STANDING"),
        Column("MATCHES"),
        Column("REASON", flows=True),
        Column(times.since_title, optional=True),
        Column("BY", optional=True),
    ]
    rows = [
        [
            Cell(printable(pin.target)),
            Cell(printable(pin.standing), Tone.GOOD if pin.standing == _MATCHED else Tone.WARNING),
            Cell(printable(", ".join(pin.matches))),
            Cell(printable(pin.reason, 400)),
            Cell(times.since(pin.since_usec)),
            Cell(f"uid {pin.caller_uid}" if pin.caller_uid != UNKNOWN else "", Tone.FAINT),
        ]
        for pin in pins
    ]
    table(screen, columns, rows)


def _not_known(name: str, what: str) -> Failure:
    return Failure(
        ExitStatus.UNHEALTHY,
        f"The {what} is not known for {printable(name)} now.",
        "Name it as DIE/VDEV/TEMPLATE, or ask again once it is known.",
    )
