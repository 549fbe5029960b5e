"""How long nothing happens, drawn by hypothesis.

In 64ths of a second: sums and differences of them are exact, so that a property of moments fails for what a rule does and never for the
rounding of the arithmetic that looks at it.
"""

from typing import Final

from hypothesis import strategies as st

_PER_SECOND: Final = 64


def pauses(longest: int, shortest: int = 0) -> st.SearchStrategy[float]:
    """Return seconds from `shortest` to `longest`, either may be negative."""
    return st.integers(shortest * _PER_SECOND, longest * _PER_SECOND).map(lambda ticks: ticks / _PER_SECOND)
