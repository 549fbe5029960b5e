"""`devwardctl complete`: the live names behind the shells' completions. Quick, and silent where the daemon is absent."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from devward import names
from devward.ctl import observed, reclaim_codes
from devward.ctl.client import Client
from devward.ctl.context import Context
from devward.ctl.failure import UNKNOWN, ExitStatus, Failure
from devward.ctl.pins import pins_of
from devward.ctl.reading import last
from devward.plugin.status import PluginProblem
from devward.reasons import Reason

#: Seconds that somebody who pressed the tabulator key will wait.
PATIENCE: Final = 0.7


@dataclass(frozen=True, slots=True)
class _List:
    """A method of the Manager that lists objects, one a row."""

    member: str
    signature: str
    #: The row ends with the object's path, and the last part of that is the name; else the row begins with the name.
    by_path: bool = False


# Lists, and not the objects with all their properties: where there are thousands, to read those alone takes longer than anybody waits.
_DEVICES: Final = _List("ListDevices", "a(sssssto)")
_SPECS: Final = _List("ListSpecs", "a(sssstto)")
_CARDS: Final = _List("ListCards", "a(issddso)", by_path=True)
_VNPUS: Final = _List("ListVnpus", "a(ussssoo)", by_path=True)
_LISTS: Final = {
    "devices": (_DEVICES,),
    "specs": (_SPECS,),
    "npus": (_CARDS, _VNPUS),
    "vnpus": (_VNPUS,),
    "explain": (_DEVICES, _SPECS, _CARDS, _VNPUS),
}


def run(context: Context) -> int:
    """Print names, one a line. Always status 0, as a shell has no use for another."""
    what = context.given.what
    if what == "events":
        _print(context, list(names.MESSAGE_IDS))
        return ExitStatus.OK
    found: list[str] = []

    async def work(client: Client) -> int:
        if what == "pins":
            found.extend(pin.target for pin in pins_of(await client.describe()))
            return ExitStatus.OK
        for one in _LISTS[what]:
            found.extend(await _names(client, one))
        return ExitStatus.OK

    # What came in time is better than nothing.
    with contextlib.suppress(Failure, TimeoutError):
        context.on_bus(work, within=PATIENCE)
    if what == "explain":
        found += dict.fromkeys([*(str(reason) for reason in Reason if reason), *PluginProblem, *observed.codes(), *reclaim_codes.codes()])
    _print(context, found)
    return ExitStatus.OK


async def _names(client: Client, wanted: _List) -> list[str]:
    """Return the names in one list; none where the daemon is older than the list. Failure."""
    try:
        (rows,) = await client.call(names.ROOT_PATH, names.MANAGER_INTERFACE, wanted.member, expect=wanted.signature)
    except Failure as failure:
        if failure.name not in UNKNOWN:
            raise
        return []
    return [last(str(row[-1])) if wanted.by_path else str(row[0]) for row in cast(list[Sequence[object]], rows)]


def _print(context: Context, found: list[str]) -> None:
    for word in found:
        # A name that a shell would take apart is none that devward gives.
        if word.isprintable() and not any(character.isspace() for character in word):
            context.out.line(word)
