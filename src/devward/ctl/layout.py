"""Tables and running text in the width that there is. Pure.

Nothing is ever cut off: a column of sentences is wrapped, and where even that does not fit each row becomes a block of lines.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from devward.ctl.advice import Step
from devward.ctl.terminal import Screen, Tone, cells

GAP: Final = "  "
#: Columns below which a wrapped column of sentences is no pleasure to read.
MIN_FLOW: Final = 18


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of a table, with what it is to the reader."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, whether its values are sentences that may be wrapped, and whether it is left out where there is no room."""

    title: str
    flows: bool = False
    optional: bool = False


Rows = Sequence[Sequence[Cell]]


def wrapped(text: str, columns: int | None, indent: str = "", further: str | None = None) -> list[str]:
    """Wrap running text at its spaces, unless lines may be of any length. Words are never broken: a path stays whole for copying."""
    lines: list[str] = []
    start = indent
    line = ""
    for word in text.split(" "):
        if line and columns is not None and cells(start) + cells(line) + 1 + cells(word) > columns:
            lines.append(start + line)
            start, line = indent if further is None else further, word
        elif word:
            line = f"{line} {word}" if line else word
    return [*lines, start + line]


def prose(screen: Screen, text: str, indent: str = "", further: str | None = None, tone: Tone = Tone.PLAIN) -> None:
    """Write running text in the screen's width."""
    for line in wrapped(screen.shown(text), screen.capable.columns, indent, further):
        screen.line(line, tone)


def show_steps(screen: Screen, steps: Iterable[Step]) -> None:
    """Write what to do: sentences, and below each its commands, one a line and whole, for copying."""
    for step in steps:
        prose(screen, step.text, "  - ", "    ")
        for command in step.commands:
            screen.line(f"      {command}", Tone.STRONG)


def table(screen: Screen, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Write a table in the screen's width. Columns that are empty in every row are left out."""
    if not any(cell.text for row in rows for cell in row):
        return
    shown = [[Cell(screen.shown(cell.text), cell.tone) for cell in row] for row in rows]
    full = _keep([number for number in range(len(columns)) if any(row[number].text for row in shown)], columns, shown)
    kept, fitted = full, fit(*full, screen.capable.columns)
    while fitted is None and any(column.optional for column in kept[0]):
        last = max(number for number, column in enumerate(kept[0]) if column.optional)
        kept = _keep([number for number in range(len(kept[0])) if number != last], *kept)
        fitted = fit(*kept, screen.capable.columns)
    if fitted is None:
        _blocks(screen, *full)
        return
    _row(screen, [Cell(column.title, Tone.FAINT) for column in kept[0]], fitted)
    for row in kept[1]:
        _row(screen, row, fitted)


def _keep(numbers: Sequence[int], columns: Sequence[Column], rows: Rows) -> tuple[Sequence[Column], Rows]:
    return [columns[number] for number in numbers], [[row[number] for number in numbers] for row in rows]


def fit(columns: Sequence[Column], rows: Rows, available: int | None) -> list[int] | None:
    """Return the widths to use, those of sentences narrowed as far as is needed; None where no table fits."""
    widths = [max(cells(column.title), *(cells(row[number].text) for row in rows)) for number, column in enumerate(columns)]
    excess = 0 if available is None else sum(widths) + len(GAP) * (len(widths) - 1) - available
    # The last sentences give way first: they matter least.
    for number in reversed(range(len(columns))):
        if excess > 0 and columns[number].flows:
            longest = max(cells(word) for row in rows for word in row[number].text.split(" "))
            narrowed = min(widths[number], max(widths[number] - excess, MIN_FLOW, longest, cells(columns[number].title)))
            excess -= widths[number] - narrowed
            widths[number] = narrowed
    return widths if excess <= 0 else None


def _row(screen: Screen, row: Sequence[Cell], widths: Sequence[int]) -> None:
    pieces = [wrapped(cell.text, width) if cells(cell.text) > width else [cell.text] for cell, width in zip(row, widths, strict=True)]
    for number in range(max(map(len, pieces))):
        parts = []
        for cell, piece, width in zip(row, pieces, widths, strict=True):
            text = piece[number] if number < len(piece) else ""
            parts.append(screen.painted(text, cell.tone) + " " * (width - cells(text)))
        screen.line(GAP.join(parts))


def _blocks(screen: Screen, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    label = max(cells(column.title) for column in columns) + len(GAP)
    for number, row in enumerate(rows):
        if number:
            screen.line()
        for column, cell in zip(columns, row, strict=True):
            if not cell.text:
                continue
            first, *others = wrapped(cell.text, max((screen.capable.columns or 0) - label, MIN_FLOW))
            screen.line(screen.painted(column.title.ljust(label), Tone.FAINT) + screen.painted(first, cell.tone))
            for other in others:
                screen.line(" " * label + screen.painted(other, cell.tone))
