"""What reaches the terminal: widths, colours, characters, tables that lose nothing."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.ctl import layout, terminal
from devward.ctl.advice import Step
from devward.ctl.layout import Cell, Column
from devward.ctl.terminal import Capabilities, Screen, Tone
from devward.text import printable


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError("no descriptor")


def shown(capable: Capabilities, columns: list[Column], rows: list[list[Cell]]) -> str:
    stream = io.StringIO()
    layout.table(Screen(stream, capable), columns, rows)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("environ", "is_terminal", "expected"),
    [
        ({"TERM": "xterm", "LANG": "C.UTF-8"}, True, Capabilities(80, colour=True)),
        ({"TERM": "xterm", "LANG": "C.UTF-8"}, False, Capabilities(None)),
        ({"TERM": "dumb", "LANG": "C.UTF-8"}, True, Capabilities(80)),
        ({"LANG": "C.UTF-8"}, True, Capabilities(80)),
        ({"TERM": "xterm", "NO_COLOR": "1", "LANG": "C.UTF-8"}, True, Capabilities(80)),
        ({"TERM": "xterm", "NO_COLOR": "", "LANG": "C.UTF-8"}, True, Capabilities(80, colour=True)),
        ({"COLUMNS": "40", "LANG": "C.UTF-8"}, False, Capabilities(40)),
        ({"COLUMNS": "3", "LANG": "C.UTF-8"}, False, Capabilities(terminal.MIN_COLUMNS)),
        ({"COLUMNS": "wide", "LANG": "C.UTF-8"}, False, Capabilities(None)),
        ({"LANG": "C"}, False, Capabilities(None, ascii_only=True)),
    ],
)
def test_capabilities(environ: dict[str, str], is_terminal: bool, expected: Capabilities) -> None:
    assert terminal.capabilities(FakeTerminal() if is_terminal else io.StringIO(), environ) == expected


@pytest.mark.parametrize(
    ("environ", "ascii_only"),
    [
        ({"LANG": "de_DE.UTF-8"}, False),
        ({"LANG": "de_DE.utf8@euro"}, False),
        ({"LANG": "C"}, True),
        ({}, True),
        # what Python makes of LANG=C before our first line runs (PEP 538)
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),
        ({"LANG": "C.UTF-8", "LC_ALL": "POSIX"}, True),
        ({"LANG": "C", "LC_CTYPE": "de_DE.UTF-8"}, False),
        ({"LANG": "C", "LC_ALL": "C.UTF-8"}, False),
    ],
)
def test_the_locale_decides_about_ascii(environ: dict[str, str], ascii_only: bool) -> None:
    assert terminal.is_ascii_locale(environ) is ascii_only


def test_ascii_only() -> None:
    stream = io.StringIO()
    screen = Screen(stream, Capabilities(ascii_only=True))
    screen.line("a…b é 漢 " + terminal.unbroken("do it"))
    assert stream.getvalue() == "a...b \\xe9 \\u6f22 do it\n"


def test_colour_only_where_it_can_be_shown() -> None:
    for colour, expected in ((True, "\x1b[1;31mbad\x1b[0m\n"), (False, "bad\n")):
        stream = io.StringIO()
        Screen(stream, Capabilities(colour=colour)).line("bad", Tone.BAD)
        assert stream.getvalue() == expected


def test_cells_of_wide_and_combining_characters() -> None:
    assert [terminal.cells(text) for text in ("abc", "漢字", "e\u0301")] == [3, 4, 1]


COLUMNS = [Column("NAME"), Column("NUMBER", optional=True), Column("TEXT", flows=True)]
ROWS = [
    [Cell("/dev/kvm", Tone.GOOD), Cell("10:232"), Cell("a sentence of some words that can be wrapped where it must be")],
    [Cell("x"), Cell(""), Cell("")],
]


def test_a_table_is_wide_narrow_or_a_block() -> None:
    assert shown(Capabilities(), COLUMNS, ROWS).splitlines()[:2] == [
        "NAME      NUMBER  TEXT",
        "/dev/kvm  10:232  a sentence of some words that can be wrapped where it must be",
    ]
    assert shown(Capabilities(60), COLUMNS, ROWS).splitlines() == [
        "NAME      NUMBER  TEXT",
        "/dev/kvm  10:232  a sentence of some words that can be",
        "                  wrapped where it must be",
        "x",
    ]
    assert "NUMBER" not in shown(Capabilities(32), COLUMNS, ROWS), "the least column goes first"
    assert shown(Capabilities(26), COLUMNS, ROWS).splitlines() == [
        "NAME    /dev/kvm",
        "NUMBER  10:232",
        "TEXT    a sentence of some",
        "        words that can be",
        "        wrapped where it",
        "        must be",
        "",
        "NAME    x",
    ]


def test_empty_columns_and_tables() -> None:
    assert shown(Capabilities(), COLUMNS, []) == ""
    assert shown(Capabilities(), COLUMNS, [[Cell("x"), Cell(""), Cell("y")]]) == "NAME  TEXT\nx     y\n"


def test_a_command_is_never_broken_in_running_text() -> None:
    stream = io.StringIO()
    command = "systemctl status devward.service"
    layout.prose(Screen(stream, Capabilities(40)), f"See what it says with: {terminal.unbroken(command)}, then go on.")
    assert stream.getvalue() == f"See what it says with:\n{command}, then\ngo on.\n"


def test_steps_have_their_commands_whole_on_lines_of_their_own() -> None:
    stream = io.StringIO()
    layout.show_steps(Screen(stream, Capabilities(20)), [Step("See it.", ("a command that is longer than the screen",))])
    assert stream.getvalue() == "  - See it.\n      a command that is longer than the screen\n"


@given(
    st.lists(st.tuples(st.text(max_size=30), st.text(max_size=10), st.text(max_size=90)), max_size=4),
    st.integers(min_value=20, max_value=120),
    st.booleans(),
)
def test_nothing_is_cut_off_and_a_table_fits(texts: list[tuple[str, str, str]], width: int, ascii_only: bool) -> None:
    columns = [Column("NAME"), Column("NUMBER"), Column("TEXT", flows=True)]
    rows = [[Cell(printable(text)) for text in row] for row in texts]
    output = shown(Capabilities(width, ascii_only=ascii_only), columns, rows)
    if ascii_only:
        assert output.isascii()
    stream = io.StringIO()
    screen = Screen(stream, Capabilities(ascii_only=ascii_only))
    words = re.sub(r"\s+", "", output)
    for row in rows:
        for cell in row:
            for word in screen.shown(cell.text).split(" "):
                assert word in words
    if output.startswith("NAME  NUMBER"):
        assert all(terminal.cells(line) <= width for line in output.splitlines())
