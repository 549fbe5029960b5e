"""The command line. devwardctl(1) and the completions are held to this parser by a test.

Nothing here is heavy: help and wrong usage must answer at once.
"""

import argparse
import re
import sys
from collections.abc import Iterator

from devward import __version__, names
from devward.ctl.when import MIN_PAUSE_SECONDS, parse_duration, span
from devward.model import MAXIMUM_PAUSE_SECONDS, CdiMode, ReclaimMode

DEFAULT_COMMAND = "status"
#: Records of `history` where nothing else limits it.
HISTORY_RECORDS = 50
MAX_REASON = 200
#: The reason of a pin where none is given.
NO_REASON = "none was given"
#: Subcommands that serve programs of ours and are not shown.
HIDDEN_COMMANDS = frozenset({"complete"})
COMPLETABLE = ("devices", "specs", "npus", "vnpus", "pins", "explain", "events")

#: A vNPU by name, node or id; the group is the id.
VNPU = re.compile(r"(?:v|/dev/vdavinci|)(\d{1,9})", re.ASCII)
_TARGET = "a vNPU such as v0100 or 100, an NPU such as p000, or, of what may not be there, DIE/VDEV/TEMPLATE or DIE"
_EPILOG = (
    "Exit status: 0 all is well; 1 refused, failed or not healthy; 2 wrong usage; 3 devwardd is absent or does not answer;"
    " 4 denied; 5 partly done. See devwardctl(1)."
)


class _Shown(dict[str, argparse.ArgumentParser]):
    """The commands; the hidden ones are taken too, but not listed where another is refused."""

    def __iter__(self) -> Iterator[str]:
        return (name for name in super().__iter__() if name not in HIDDEN_COMMANDS)


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    result = argparse.ArgumentParser(
        prog="devwardctl",
        description="See what devward vouches for on this host, and what it does about its CDI files and about vNPUs that nobody owns.",
        epilog=_EPILOG,
        parents=[_common()],
        allow_abbrev=False,
    )
    # Only the outermost parser has these defaults, so that an option is heard before and after the command.
    result.set_defaults(json=False, utc=False, bus=None)
    result.add_argument("--version", action="version", version=f"devwardctl {__version__}")
    commands = result.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    common = [_common()]

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return _add(commands, name, text, common)

    def subjects(of: argparse.ArgumentParser) -> "argparse._SubParsersAction[argparse.ArgumentParser]":
        """Let a command be about several things."""
        return of.add_subparsers(dest="subject", metavar="SUBJECT", required=True)

    command("status", "show on one screen whether this host is ready, and why not (the default)")
    command("devices", "list the hypervisor devices")
    command("specs", "list the CDI files that devward owns")
    command("cards", "list the Ascend NPUs")
    command("vnpus", "list the vNPUs, the parts that NPUs are divided into")
    command("pins", "list what is pinned: which vNPUs and NPUs, by whom and why")
    command("findings", "list what an administrator should know and devward does not mend")
    explain = command("explain", "explain a device, an NPU, a vNPU, a CDI file or a reason code: what was found, what to do")
    explain.add_argument(
        "what",
        metavar="WHAT",
        help="kvm, /dev/kvm, a CDI name, a CDI file, p007, /dev/davinci7 or a die id, v0100, 100 or /dev/vdavinci100, the subject of a"
        " finding, or a reason code",
    )
    check = command("check", "ask whether a container may be given a device now")
    check.add_argument("device", metavar="DEVICE", help="kvm, /dev/kvm or a CDI name such as hyperlight.dev/hypervisor=kvm")
    repair = command("repair", "bring the CDI files in order now")
    _add_dry_run(repair)
    adopt = command("adopt", "take over a file of another kind that stands where devward keeps its own")
    adopt.add_argument("file", metavar="FILE", help="the name or the path of the CDI file")
    _add_dry_run(adopt)
    command("rescan", "look at every device and file again now")
    command("reload", "let devwardd read its configuration again")
    modes = subjects(command("mode", "set what devward may do, or show it"))
    for name, text, allowed, choices in (
        ("cdi", "to its CDI files", "repair them, only observe them, or off", list(CdiMode)),
        ("reclaim", "with vNPUs that nobody owns", "destroy them (enforce), only observe them, or off", list(ReclaimMode)),
    ):
        mode = _add(modes, name, text, common)
        mode.add_argument("mode", metavar="MODE", nargs="?", choices=[str(one) for one in choices], help=f"{allowed}; without: show it")
    pauses = subjects(command("pause", "stop repairs, or reclaiming, for a while"))
    resumes = subjects(command("resume", "end a pause"))
    for name, text in (("cdi", "of repairs of the CDI files"), ("reclaim", "of reclaiming vNPUs")):
        pause = _add(pauses, name, text, common)
        pause.add_argument(
            "seconds", metavar="DURATION", type=_pause, help=f"such as 45s, 30m, 2h or 1h30m; at most {span(MAXIMUM_PAUSE_SECONDS)}"
        )
        pause.add_argument("reason", metavar="REASON", nargs="+", help=f"why, for the record; at most {MAX_REASON} characters")
        _add(resumes, name, text, common)
    reclaims = subjects(command("reclaim", "reclaim vNPUs that nobody owns: see how it stands, have it done, release the breaker"))
    _add(reclaims, "status", "show what reclaiming does, what stops it, what lies about unused and what became of vNPUs", common)
    now = _add(reclaims, "now", "look now, and reclaim by all the rules what nobody owns, or this vNPU", common)
    now.add_argument("vnpu", metavar="VNPU", nargs="?", help="a vNPU such as v0100, 100 or /dev/vdavinci100; without, all of them")
    _add_dry_run(now)
    now.add_argument("--shorten", action="store_true", help="wait for a minute of quiet and two looks only; skips no evidence")
    _add(reclaims, "release", "release the breaker, which stopped reclaiming as too much was due at a time", common)
    accept = command("accept-node", "take the API server's Node for this host's though it was made anew")
    accept.add_argument("uid", metavar="UID", help="its UID, as kubectl get node NODE -o yaml shows it")
    pin = command("pin", "keep a vNPU, or all those of an NPU, for ever")
    pin.add_argument("target", metavar="TARGET", help=_TARGET)
    pin.add_argument("--reason", metavar="TEXT", default=NO_REASON, help=f"why, for the record; at most {MAX_REASON} characters")
    command("unpin", "take a pin away").add_argument("target", metavar="TARGET", help=_TARGET)
    _add_config(command("config", "show every setting in force and the file that it comes from"))
    _add_history(command("history", "show the audit records in the journal: what was seen, done and refused"))
    command("monitor", "follow what happens, until Ctrl-C")
    report = command("report", "write a support bundle: state, configuration, records, mounts, versions")
    report.add_argument("file", metavar="FILE", nargs="?", help="the archive to write; by default a new one in the current directory")
    complete = commands.add_parser("complete", parents=common, allow_abbrev=False)
    complete.add_argument("what", choices=COMPLETABLE)
    commands.choices = _Shown(commands.choices)
    return result


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line, or end with status 2 and a message."""
    built = parser()
    given = built.parse_args(arguments)
    if given.command is None:
        return built.parse_args([*(arguments if arguments is not None else sys.argv[1:]), DEFAULT_COMMAND])
    if given.command == "pause":
        given.reason = " ".join(given.reason).strip()
        if not 1 <= len(given.reason) <= MAX_REASON:
            built.error(f"the reason of a pause has 1 to {MAX_REASON} characters")
    if given.command == "pin":
        given.reason = given.reason.strip()
        if not 1 <= len(given.reason) <= MAX_REASON:
            built.error(f"the reason of a pin has 1 to {MAX_REASON} characters")
    if given.command == "config" and not given.check and (given.config or given.config_dropins):
        built.error("--config and --config-dropins need --check: devwardd has its own")
    return given


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str, common: list[argparse.ArgumentParser]
) -> argparse.ArgumentParser:
    # No abbreviated options: a script must not break when one is added.
    return commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", parents=common, allow_abbrev=False)


def _common() -> argparse.ArgumentParser:
    """Return the options that may stand before or after the command."""
    result = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    result.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON, as devwardctl(1) documents it")
    result.add_argument("--utc", action="store_true", default=argparse.SUPPRESS, help="print times exactly, in ISO 8601 and UTC")
    # For tests and demonstrations; in the man page.
    result.add_argument("--bus", metavar="ADDRESS", help=argparse.SUPPRESS)
    return result


def _add_dry_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dry-run", action="store_true", help="only say what would be done")


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument("--check", action="store_true", help="check the files on disk instead; works while devwardd is down")
    command.add_argument("--config", metavar="FILE", help=f"with --check: this file instead of {names.CONFIG_FILE}")
    command.add_argument(
        "--config-dropins",
        metavar="DIRECTORY",
        help=f"with --check: *.toml from here instead of {names.CONFIG_DROPIN_DIRECTORY} (--config alone: none)",
    )


def _add_history(command: argparse.ArgumentParser) -> None:
    command.add_argument("--since", metavar="TIME", help='from then on, as in journalctl: "2026-01-31 14:00", "1 hour ago", yesterday')
    command.add_argument("--until", metavar="TIME", help="up to then")
    command.add_argument("--device", metavar="DEVICE", help="about this device")
    command.add_argument("--file", metavar="FILE", help="about this CDI file, a path or a name")
    command.add_argument("--vnpu", metavar="VNPU", type=_vnpu, help="about this vNPU: v0100, 100 or /dev/vdavinci100")
    command.add_argument("--request", metavar="ID", help="of this request")
    command.add_argument("--event", metavar="EVENT", action="append", help="of this kind, such as spec-repair; may be given several times")
    command.add_argument(
        "-n",
        "--lines",
        metavar="N",
        type=_lines,
        help=f"the last N records; {HISTORY_RECORDS} unless a time or a request is given, 0 for all",
    )
    # For tests and demonstrations; in the man page.
    command.add_argument("--journal", metavar="DIRECTORY", help=argparse.SUPPRESS)


def _pause(text: str) -> int:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not MIN_PAUSE_SECONDS <= seconds <= MAXIMUM_PAUSE_SECONDS:
        raise argparse.ArgumentTypeError(f"a pause lasts from {span(MIN_PAUSE_SECONDS)} to {span(MAXIMUM_PAUSE_SECONDS)}")
    return seconds


def _vnpu(text: str) -> int:
    """Return the id of a vNPU. Records outlast it, so that it is read and not looked up."""
    found = VNPU.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError("a vNPU is named v0100, 100 or /dev/vdavinci100")
    return int(found[1])


def _lines(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError("a number of records is wanted")
    return int(text)
