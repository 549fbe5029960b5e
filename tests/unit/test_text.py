"""Foreign text made fit to be shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devward.text import printable, quoted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gpu.json", "gpu.json"),
        ("über späth 設備", "über späth 設備"),
        ("a\nb\r\tc", "a\\x0ab\\x0d\\x09c"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x7f\x85\x9b", "\\x7f\\x85\\x9b"),
        ("txt.\u202enosj", "txt.\\u202enosj"),
        ("\u2066x\u2069\u200b\ufeff", "\\u2066x\\u2069\\u200b\\ufeff"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        (b"caf\xe9.json".decode("utf-8", "surrogateescape"), "caf\\xe9.json"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("a\\x0ab", "a\\x0ab"),
        ("", ""),
    ],
)
def test_what_does_not_print_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_long_text_is_cut_between_characters() -> None:
    assert printable("x" * 10, 10) == "x" * 10
    assert printable("x" * 11, 10) == "x" * 9 + "…"
    assert printable("abcdef\n\n", 10) == "abcdef…"
    assert printable("\n" * 10, 3) == "…"
    assert quoted("x" * 100, 5) == "'xxxx…'"


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        printable("x", 0)


# No database: the suite also runs where it may not write.
@settings(database=None, deadline=None)
@given(st.text(alphabet=st.characters(), max_size=60), st.integers(1, 70))
def test_the_result_prints_fits_and_stays(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit
    assert printable(shown, limit) == shown


def test_huge_text_costs_what_is_shown() -> None:
    assert len(printable("\n" * 50_000_000, 100)) <= 100
