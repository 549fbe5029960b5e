"""What holds for every test: which skips are allowed, and that neither the clock nor CI decides.

It also makes tests/ importable, so that the stand-ins in tests/sim are `sim.…` from every test.

A skip must say what the machine lacks and begin with one of ALLOWED_SKIPS; every other skip, and one that claims a lack that the
machine does not have, is a failure. So is an expected failure. The reasons are printed at the end (`-ra` in pyproject.toml).
"""

import os
from collections.abc import Callable, Generator
from typing import Any, Final

import hypothesis
import pytest

#: How the reason of a skip may begin, and whether this machine really lacks that.
ALLOWED_SKIPS: Final[dict[str, Callable[[], bool]]] = {
    "needs root:": lambda: os.geteuid() != 0,
    "needs non-root:": lambda: os.geteuid() == 0,
    "needs /dev/kvm:": lambda: os.geteuid() != 0 or not os.path.exists("/dev/kvm"),
}

# The workers of a run are given these by readline, which their parent loaded, and would have devwardctl wrap its lines.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)

# No deadline, since a loaded machine is no defect; and the same everywhere: hypothesis has other defaults where CI is set.
hypothesis.settings.register_profile(
    "devward",
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("devward")


def objection(reason: str) -> str | None:
    """Why a test may not be skipped for this reason; None if it may."""
    for beginning, is_lacking in ALLOWED_SKIPS.items():
        if reason.startswith(beginning):
            return None if is_lacking() else f"skipped although the machine has what it needs: {reason}"
    return f"skipped for a reason that does not begin with one of {', '.join(ALLOWED_SKIPS)}: {reason}"


def refuse_unless_allowed(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a failure of a report whose skip is not allowed."""
    if not report.skipped:
        return
    refusal: str | None
    if hasattr(report, "wasxfail"):
        refusal = f"an expected failure is a failure: {report.wasxfail}"
        del report.wasxfail
    else:
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        refusal = objection(text.removeprefix("Skipped: "))
    if refusal is not None:
        report.outcome = "failed"
        report.longrepr = refusal


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, Any, None]:
    """Judge the skip of a test."""
    outcome = yield
    refuse_unless_allowed(outcome.get_result())


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, Any, None]:
    """Judge the skip of a whole module."""
    outcome = yield
    refuse_unless_allowed(outcome.get_result())
