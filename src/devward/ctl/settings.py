"""`devwardctl config`: every setting in force and where it comes from; with `--check`, whether the files on disk are good.

The check reads the files itself, so that it works while the daemon is down: that is when a configuration needs it.
"""

import json
from typing import TYPE_CHECKING

from devward import config as configuration
from devward import names
from devward.ctl.context import Context
from devward.ctl.facts import Manager
from devward.ctl.failure import ExitStatus, Failure
from devward.ctl.layout import Cell, Column, prose, table
from devward.ctl.reading import raw, text_of
from devward.ctl.terminal import Tone
from devward.errors import ConfigError
from devward.model import ConfigState
from devward.text import printable

if TYPE_CHECKING:
    from devward.ctl.client import Client

#: Where a setting comes from that was changed while the daemon ran.
RUN_TIME = "set at run time"

Settings = list[dict[str, object]]


def run(context: Context) -> int:
    """Show the settings, or check the files."""
    if context.given.check:
        return _check(context)

    async def work(client: "Client") -> int:
        manager, _ = await client.objects()
        document = await client.describe()
        listed = document.get("config")
        if not isinstance(listed, list):
            raise Failure(ExitStatus.DENIED, "The configuration is shown to administrators only.", "Run it as root, for example with sudo.")
        state = Manager.of(raw(manager))
        settings = in_force([one for one in listed if isinstance(one, dict)], state.cdi_mode)
        problem = text_of(document, "config_problem")
        refused = state.config_state == ConfigState.REFUSED or bool(problem)
        if context.json:
            context.print_json({"state": state.config_state, "problem": problem, "settings": settings})
        else:
            if refused:
                prose(context.out, f"The configuration on disk is refused: {printable(problem, 2000)}", tone=Tone.BAD)
                prose(context.out, "The one before it is in force:")
                context.out.line()
            _show(context, settings)
        return ExitStatus.UNHEALTHY if refused else ExitStatus.OK

    return context.on_bus(work)


def in_force(settings: Settings, cdi_mode: str) -> Settings:
    """Return the settings with the mode that is in force, which may have been set over the bus."""
    return [
        {**one, "value": cdi_mode, "source": RUN_TIME, "configured": one.get("value")}
        if one.get("key") == "cdi.mode" and cdi_mode not in ("", one.get("value"))
        else one
        for one in settings
    ]


def _check(context: Context) -> int:
    given = context.given
    main = given.config or names.CONFIG_FILE
    dropins = given.config_dropins or (None if given.config else names.CONFIG_DROPIN_DIRECTORY)
    try:
        loaded = configuration.load(main, dropins, required=given.config is not None)
    except ConfigError as error:
        problems = str(error).split("; ")
        if context.json:
            context.print_json({"good": False, "problems": problems, "warnings": [], "settings": []})
        for problem in problems if not context.json else []:
            prose(context.out, printable(problem, 2000), further="  ", tone=Tone.BAD)
        return ExitStatus.UNHEALTHY
    warnings = [warning.text for warning in loaded.warnings]
    settings: Settings = [{"key": key, "value": value, "source": source} for key, value, source in configuration.effective(loaded)]
    if context.json:
        context.print_json({"good": True, "problems": [], "warnings": warnings, "settings": settings})
        return ExitStatus.OK
    for warning in warnings:
        prose(context.out, f"warning: {printable(warning, 2000)}", further="  ", tone=Tone.WARNING)
    context.out.line("The configuration is good.", Tone.GOOD)
    changed = [one for one in settings if one["source"] != configuration.DEFAULT]
    if changed:
        context.out.line()
        _show(context, changed)
    else:
        context.out.line("Every setting has its default.")
    return ExitStatus.OK


def _show(context: Context, settings: Settings) -> None:
    rows = [
        [
            Cell(printable(str(one.get("key", "")))),
            Cell(printable(json.dumps(one.get("value"), ensure_ascii=False), 400)),
            Cell(printable(str(one.get("source", ""))), Tone.FAINT if one.get("source") == configuration.DEFAULT else Tone.PLAIN),
        ]
        for one in settings
    ]
    table(context.out, [Column("SETTING"), Column("VALUE", flows=True), Column("FROM")], rows)
