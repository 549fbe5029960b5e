"""What the output can show, and how: width, colour, and characters beyond ASCII.

Colour only on a terminal, never with NO_COLOR (https://no-color.org) or TERM=dumb. ASCII only where the locale is C.
"""

import os
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TextIO

#: Columns of a terminal that does not tell.
USUAL_COLUMNS: Final = 80
#: Stands for a space inside a command, so that running text is not wrapped there.
_UNBROKEN: Final = "\u00a0"
MIN_COLUMNS: Final = 20


class Tone(StrEnum):
    """What a piece of text is to the reader; the value is its SGR parameter (ECMA-48), empty for none."""

    PLAIN = ""
    GOOD = "32"
    BAD = "1;31"
    WARNING = "33"
    STRONG = "1"
    FAINT = "2"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one output stream can show. `columns` is None where lines may be of any length: a pipe or a file."""

    columns: int | None = None
    colour: bool = False
    ascii_only: bool = False


def capabilities(stream: TextIO | None, environ: Mapping[str, str]) -> Capabilities:
    """Find out what a stream can show."""
    is_terminal = stream is not None and stream.isatty()
    colour = is_terminal and not environ.get("NO_COLOR") and environ.get("TERM", "") not in ("", "dumb")
    return Capabilities(_columns(stream, environ, is_terminal=is_terminal), colour, is_ascii_locale(environ))


def is_ascii_locale(environ: Mapping[str, str]) -> bool:
    """Tell whether the locale's characters are ASCII.

    Python itself sets LC_CTYPE=C.UTF-8 in a C locale (PEP 538), so that value says nothing about what the terminal shows.
    """
    ctype = environ.get("LC_CTYPE", "")
    chosen = environ.get("LC_ALL") or ("" if ctype == "C.UTF-8" else ctype) or environ.get("LANG") or "C"
    return not chosen.lower().replace("-", "").partition("@")[0].endswith("utf8")


def _columns(stream: TextIO | None, environ: Mapping[str, str], *, is_terminal: bool) -> int | None:
    told = environ.get("COLUMNS", "")
    if told.isascii() and told.isdigit() and len(told) < 6 and int(told) > 0:
        return max(int(told), MIN_COLUMNS)
    if not is_terminal or stream is None:
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return max(columns, MIN_COLUMNS) if columns else USUAL_COLUMNS


def cells(text: str) -> int:
    """Return how many columns a text takes on a terminal: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)


def unbroken(command: str) -> str:
    """Return a command for running text, where it stays on one line; a screen shows it as it was."""
    return command.replace(" ", _UNBROKEN)


class Screen:
    """Writes lines to one stream, as its capabilities allow."""

    def __init__(self, stream: TextIO, capable: Capabilities) -> None:
        self._stream = stream
        self.capable = capable

    def painted(self, text: str, tone: Tone) -> str:
        """Return a text in its tone's colour, where there are colours."""
        return f"\x1b[{tone}m{text}\x1b[0m" if tone and text and self.capable.colour else text

    def line(self, text: str = "", tone: Tone = Tone.PLAIN) -> None:
        """Write a line. Its text must be fit to be shown: foreign text goes through devward.text first."""
        shown = self.shown(text.rstrip(" ")).replace(_UNBROKEN, " ")
        self._stream.write(self.painted(shown, tone) + "\n")

    def flush(self) -> None:
        """Hand on what was written: for what is shown while it happens."""
        self._stream.flush()

    def shown(self, text: str) -> str:
        """Return a text in the characters that can be shown; what is laid out in columns is measured after that."""
        if not self.capable.ascii_only or text.isascii():
            return text
        parts = text.replace("…", "...").split(_UNBROKEN)
        return _UNBROKEN.join(part.encode("ascii", "backslashreplace").decode() for part in parts)
