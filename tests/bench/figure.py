"""A figure: what was measured, how it is summed up in one line, and whether it meets its bar. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Statistic: TypeAlias = Literal["median", "p99", "worst"]


@dataclass(frozen=True, slots=True)
class Bar:
    """The largest value of one statistic that counts as good."""

    statistic: Statistic
    limit: float


@dataclass(frozen=True, slots=True)
class Figure:
    """The measured values of one thing, in one unit; `n` where one value sums up more than one measurement."""

    name: str
    unit: str
    values: Sequence[float]
    bar: Bar | None = None
    note: str = ""
    n: int | None = None

    def statistic(self, which: Statistic) -> float:
        """Return the median, the 99th percentile (nearest rank) or the largest value."""
        ordered = sorted(self.values)
        rank = {"median": 0.5, "p99": 0.99, "worst": 1.0}[which]
        return ordered[max(0, math.ceil(rank * len(ordered)) - 1)]

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None without a bar."""
        return None if self.bar is None else self.statistic(self.bar.statistic) <= self.bar.limit

    def line(self) -> str:
        """Return the figure as one line under HEADING."""
        single = len(self.values) == 1
        verdict = "" if self.bar is None else f"{self.bar.statistic} <= {number(self.bar.limit)}: {'met' if self.met else 'NOT MET'}"
        p99 = "-" if single else number(self.statistic("p99"))
        return _ROW.format(
            self.name, number(self.statistic("median")), p99, self.n or len(self.values), self.unit, verdict, self.note
        ).rstrip()


Figures: TypeAlias = Iterator[Figure]

_ROW = "{:<38} {:>9} {:>9} {:>8}  {:<10} {:<24} {}"
HEADING = _ROW.format("name", "median", "p99", "n", "unit", "bar", "note").rstrip()


def number(value: float) -> str:
    """Return a number with three significant digits, a whole one in full."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"
