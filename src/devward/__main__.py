"""devwardd: the command line of the daemon."""

import argparse
import json
import os
import sys

from devward import __version__, names
from devward.errors import AlreadyRunning, BusError, ConfigError, DevwardError

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BUS = 3
EXIT_ALREADY_RUNNING = 4
#: EX_CONFIG of <sysexits.h>.
EXIT_CONFIG = 78


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser; devwardd(8) is held to it."""
    result = argparse.ArgumentParser(
        prog="devwardd",
        description="The warden of this host's accelerator devices. Started by the service manager; devward.toml(5) configures it.",
        epilog="Exit status: 0 stopped, the configuration is good, or none of our files is left; 1 failed, or the bus was lost; 2 wrong"
        " usage; 3 no bus, or the name is taken; 4 another devwardd runs; 78 the configuration is refused.",
    )
    result.add_argument("--version", action="version", version=f"devwardd {__version__}")
    result.add_argument("--config", metavar="FILE", help=f"read this configuration file instead of {names.CONFIG_FILE}")
    result.add_argument(
        "--config-dropins",
        metavar="DIRECTORY",
        help=f"read *.toml from here instead of {names.CONFIG_DROPIN_DIRECTORY} (--config alone: none)",
    )
    result.add_argument("--check-config", action="store_true", help="check the configuration, print what is wrong with it, and exit")
    result.add_argument(
        "--print-config", action="store_true", help="print every setting in force with the file that it comes from, and exit"
    )
    result.add_argument(
        "--remove-own-files",
        action="store_true",
        help="remove the CDI files that are exactly what devwardd wrote, and its metrics, say what is left and why, and exit; no devwardd"
        " may run",
    )
    result.add_argument("--no-reclaim", action="store_true", help="destroy no vNPU, whatever the configuration or anybody on the bus says")
    result.add_argument("--bus", metavar="ADDRESS", help="connect to this D-Bus address instead of the system bus")
    result.add_argument("--state-directory", metavar="DIRECTORY", help=f"instead of $STATE_DIRECTORY or {names.STATE_DIRECTORY}")
    result.add_argument("--runtime-directory", metavar="DIRECTORY", help=f"instead of $RUNTIME_DIRECTORY or {names.RUNTIME_DIRECTORY}")
    return result


def main(arguments: list[str] | None = None) -> int:
    """Run devwardd and return its exit status."""
    given = parser().parse_args(arguments)
    main_file = given.config or names.CONFIG_FILE
    dropins = given.config_dropins or (None if given.config else names.CONFIG_DROPIN_DIRECTORY)
    try:
        if given.check_config or given.print_config:
            return _show_config(main_file, dropins, required=given.config is not None, every_setting=given.print_config)
        if given.remove_own_files:
            return _remove_own_files(given, main_file, dropins)
        return _serve(given, main_file, dropins)
    except ConfigError as error:
        for problem in str(error).split("; "):
            _complain(problem)
        return EXIT_CONFIG
    except AlreadyRunning as error:
        _complain(str(error))
        return EXIT_ALREADY_RUNNING
    except BusError as error:
        _complain(str(error))
        return EXIT_BUS
    except DevwardError as error:
        _complain(str(error))
        return EXIT_FAILED


def _leave_openssl_out() -> None:
    """Keep asyncio and hashlib from loading OpenSSL, 2 to 5 MB of memory for which devwardd has no use.

    Both take a failed import for a Python without it; hashlib then has Python's own SHA-256. An entry of None fails an import ("The Python
    Language Reference", 5.3.1, the module cache). Where a cluster is used, cluster/api_library.py lets it in with the first look.
    """
    for name in ("ssl", "_hashlib"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # typeshed knows modules only


def _serve(given: argparse.Namespace, main_file: str, dropins: str | None) -> int:
    _leave_openssl_out()
    from devward import app  # what only the daemon needs is not loaded to print a usage message
    from devward.clock import Clock
    from devward.notify import Notifier

    # Directories are made with the mode that they are to have in one step; every file of ours is made with a mode of its own.
    os.umask(0o022)
    clock = Clock()
    notifier = Notifier(os.environ, monotonic=clock.monotonic)
    options = app.Options(
        config_file=main_file,
        config_required=given.config is not None,
        dropin_directory=dropins,
        state_directory=_state_directory(given),
        runtime_directory=_runtime_directory(given),
        bus_address=given.bus,
        no_reclaim=given.no_reclaim,
    )
    return app.run(options, clock, notifier)


def _remove_own_files(given: argparse.Namespace, main_file: str, dropins: str | None) -> int:
    import uuid

    from devward import config
    from devward.audit import Audit
    from devward.clock import Clock
    from devward.journal import Journal
    from devward.removal import Fate, remove_metrics, remove_own_files
    from devward.state import Lock, StateStore
    from devward.text import printable

    clock = Clock()
    try:
        loaded = config.load(main_file, dropins)
        socket = loaded.config.log.journal_socket
        metrics = loaded.config.metrics.directory if config.is_named(loaded, "metrics") else None
    except ConfigError as error:
        # A package is removed whatever its configuration says.
        _complain(f"warning: {error}")
        socket, metrics = names.JOURNAL_SOCKET, None
    journal = Journal(socket, stderr=sys.stderr)
    audit = Audit(journal, version=__version__, new_id=lambda: str(uuid.uuid4()), monotonic=clock.monotonic)
    directory = _state_directory(given)
    try:
        with Lock(_runtime_directory(given)):
            results, problem = remove_own_files(directory, StateStore(directory, realtime_usec=clock.realtime_usec), audit)
            if metrics is not None:
                results.append(remove_metrics(metrics))
    finally:
        journal.close()
    for result in results:
        if result.fate is not Fate.ABSENT:
            sys.stdout.write(printable(f"{result.fate} {result.path}{': ' if result.text else ''}{result.text}", 1000) + "\n")
    if problem is not None:
        _complain(f"what devwardd wrote is not known: {problem}")
    return EXIT_FAILED if problem is not None or any(result.fate is Fate.FAILED for result in results) else EXIT_OK


def _state_directory(given: argparse.Namespace) -> str:
    return given.state_directory or os.environ.get("STATE_DIRECTORY") or names.STATE_DIRECTORY


def _runtime_directory(given: argparse.Namespace) -> str:
    return given.runtime_directory or os.environ.get("RUNTIME_DIRECTORY") or names.RUNTIME_DIRECTORY


def _show_config(main_file: str, dropins: str | None, *, required: bool, every_setting: bool) -> int:
    from devward import config

    loaded = config.load(main_file, dropins, required=required)
    for warning in loaded.warnings:
        _complain(f"warning: {warning.text}")
    if every_setting:
        for key, value, source in config.effective(loaded):
            sys.stdout.write(f"{key} = {json.dumps(value)}  # {source}\n")
    else:
        sys.stdout.write("the configuration is good\n")
    return EXIT_OK


def _complain(text: str) -> None:
    sys.stderr.write(f"devwardd: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
