"""devwardctl: parses the command line, runs one command, and turns what goes wrong into a sentence and an exit status."""

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

from devward.ctl import arguments
from devward.ctl.context import Context
from devward.ctl.failure import ExitStatus, Failure
from devward.ctl.terminal import Screen, capabilities

#: As a shell reports a program that SIGPIPE or SIGINT has ended.
EXIT_PIPE = 141
EXIT_INTERRUPTED = 130


def main(given: list[str] | None = None) -> int:
    """Run devwardctl and return its exit status."""
    try:
        return _guarded(given)
    except BrokenPipeError:
        _discard(sys.stdout)
        return EXIT_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _guarded(given: list[str] | None) -> int:
    out, err = _stream(sys.stdout), _stream(sys.stderr)
    try:
        status = _run(arguments.parse(given), out, err)
    finally:
        # Here and not at the interpreter's exit, where a pipe without a reader is a complaint of Python's own. A usage message, too.
        _flush(out, err)
    return status


def _run(given: argparse.Namespace, out: TextIO, err: TextIO) -> int:
    context = Context(
        given=given,
        out=Screen(out, capabilities(out, os.environ)),
        err=Screen(err, capabilities(err, os.environ)),
        environ=os.environ,
        stdin_is_terminal=sys.stdin is not None and sys.stdin.isatty(),
        realtime_usec=lambda: time.time_ns() // 1000,
    )
    try:
        return int(_command(given)(context))
    except Failure as failure:
        out.flush()
        context.complain(failure.text, failure.advice)
        return failure.status


def _command(given: argparse.Namespace) -> Callable[[Context], int]:
    """Load a command; the others, and what they need, stay unread."""
    match given.command:
        case "status":
            from devward.ctl.status import run
        case "devices" | "specs" | "cards" | "vnpus" | "findings":
            from devward.ctl.lists import run
        case "pins" | "pin" | "unpin":
            from devward.ctl.pins import run
        case "reclaim" if given.subject in ("status", "now"):
            from devward.ctl.reclaim import run
        case "explain":
            from devward.ctl.explain import run
        case "config":
            from devward.ctl.settings import run
        case "history":
            from devward.ctl.history import run
        case "monitor":
            from devward.ctl.monitor import run
        case "report":
            from devward.ctl.report import run
        case "complete":
            from devward.ctl.complete import run
        case _:
            from devward.ctl.actions import run
    return run


def _stream(stream: TextIO | None) -> TextIO:
    """Make a stream fit for any text; one that was closed by who started us takes everything and shows nothing."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    return stream


def _flush(out: TextIO, err: TextIO) -> None:
    try:
        out.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        err.write(f"devwardctl: the output could not be written: {error.strerror}\n")
        _discard(sys.stdout)
        raise SystemExit(ExitStatus.UNHEALTHY) from error


def _discard(stream: TextIO | None) -> None:
    """Let what is still buffered go nowhere."""
    if stream is not None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
