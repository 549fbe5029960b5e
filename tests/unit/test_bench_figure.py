"""The bench sums its measurements up as it says it does."""

import subprocess
import sys

import pytest

from bench.figure import HEADING, Bar, Figure, number
from sim.daemon_process import REPOSITORY


def test_the_percentiles_are_measured_values_by_nearest_rank() -> None:
    figure = Figure("x", "ms", [float(value) for value in range(1000, 0, -1)])
    assert figure.statistic("median") == 500
    assert figure.statistic("p99") == 990
    assert figure.statistic("worst") == 1000
    assert Figure("x", "ms", [7.0]).statistic("p99") == 7
    assert Figure("x", "ms", [1.0] * 199 + [50.0]).statistic("p99") == 1
    assert Figure("x", "ms", [1.0] * 198 + [50.0] * 2 + [1.0]).statistic("p99") == 1
    assert Figure("x", "ms", [1.0] * 197 + [50.0] * 3).statistic("p99") == 50


@pytest.mark.parametrize(("bar", "met"), [(Bar("p99", 20), True), (Bar("p99", 19.9), False), (Bar("median", 1), True), (None, None)])
def test_a_bar_is_met_up_to_its_limit(bar: Bar | None, met: bool | None) -> None:
    figure = Figure("x", "ms", [1.0] * 90 + [20.0] * 10, bar)
    assert figure.met is met
    assert ("NOT MET" in figure.line()) is (met is False)
    assert (": met" in figure.line()) is (met is True)


def test_a_line_says_name_median_p99_n_unit_bar_and_note() -> None:
    line = Figure("repair: deleted", "ms", [1.234, 2.0, 30.0], Bar("p99", 20), "as root").line()
    assert line.split() == ["repair:", "deleted", "2", "30", "3", "ms", "p99", "<=", "20:", "NOT", "MET", "as", "root"]
    assert HEADING.split() == ["name", "median", "p99", "n", "unit", "bar", "note"]
    assert Figure("torn", "reads", [0], Bar("worst", 0), n=1_000_000).line().split()[1:5] == ["0", "-", "1000000", "reads"]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (20.0, "20"), (0.7, "0.700"), (12345.6, "12346"), (99.96, "100.0"), (1.2345, "1.23"), (0.01234, "0.0123")]
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_name_that_is_no_measurement_is_wrong_usage() -> None:
    result = subprocess.run(
        [sys.executable, str(REPOSITORY / "tests" / "bench" / "run"), "nonsense"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "nonsense" in result.stderr
    assert "Traceback" not in result.stderr
