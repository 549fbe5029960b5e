"""`devwardctl complete`: the live names behind the shells' completions. Quick, and silent where the daemon is absent."""

from typing import Final

from devward import names
from devward.ctl.client import Client
from devward.ctl.context import Context
from devward.ctl.facts import Snapshot
from devward.ctl.failure import ExitStatus, Failure
from devward.ctl.pins import pins_of
from devward.model import Reason

#: Seconds that somebody who pressed the tabulator key will wait.
PATIENCE: Final = 0.7


def run(context: Context) -> int:
    """Print names, one a line. Always status 0, as a shell has no use for another."""
    what = context.given.what
    if what == "events":
        _print(context, list(names.MESSAGE_IDS))
        return ExitStatus.OK

    async def work(client: Client) -> int:
        if what == "pins":
            _print(context, [pin.target for pin in pins_of(await client.describe())])
            return ExitStatus.OK
        _print(context, words(what, await client.snapshot()))
        return ExitStatus.OK

    try:
        context.on_bus(work, within=PATIENCE)
    except (Failure, TimeoutError):
        if what == "explain":
            _print(context, words(what, None))
    return ExitStatus.OK


def words(what: str, snapshot: Snapshot | None) -> list[str]:
    """Return what can stand at a place of the command line."""
    devices = [device.kind for device in snapshot.devices] if snapshot is not None else []
    specs = [spec.file for spec in snapshot.specs] if snapshot is not None else []
    if what == "devices":
        return devices
    if what == "specs":
        return specs
    npus = [*(card.name for card in snapshot.cards), *(vnpu.name for vnpu in snapshot.vnpus)] if snapshot is not None else []
    if what == "npus":
        return npus
    return devices + specs + npus + [str(reason) for reason in Reason if reason]


def _print(context: Context, found: list[str]) -> None:
    for word in found:
        # A name that a shell would take apart is none that devward gives.
        if word.isprintable() and not any(character.isspace() for character in word):
            context.out.line(word)
