"""A plugin of pytest that writes the first test that fails into the file that DEVWARD_MUTATE_REPORT names, as JSON.

Properties are not shrunk, since nobody looks at the example, and try the same examples each time.
"""

import json
import os

import hypothesis
import pytest


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Take another profile than conftest.py's, which was loaded before this."""
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        "mutate", deadline=None, derandomize=True, database=None, phases=phases, suppress_health_check=list(hypothesis.HealthCheck)
    )
    hypothesis.settings.load_profile("mutate")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Take note of a module that cannot even be loaded."""
    if report.failed:
        _write("cannot load", report.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Take note of a test that failed."""
    if report.failed:
        _write("failed", report.nodeid)


def _write(what: str, node: str) -> None:
    with open(os.environ["DEVWARD_MUTATE_REPORT"], "a", encoding="utf-8") as file:
        file.write(json.dumps([what, node]) + "\n")
