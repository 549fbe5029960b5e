"""Fixtures of the bus tests: private buses, and patience."""

from collections.abc import Iterator

import pytest
from bus_harness import DEADLINE, TIMES, Bus, private_bus


@pytest.fixture(scope="session")
def bus() -> Iterator[Bus]:
    """One bus for all tests that leave it as it was."""
    with private_bus() as started:
        yield started


@pytest.fixture
def own_bus() -> Iterator[Bus]:
    """A bus that the test may stop or kill."""
    with private_bus() as started:
        yield started


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing in this process be given up because the machine is slow; a test of a time sets it itself."""
    for module, name, _ in TIMES.values():
        monkeypatch.setattr(module, name, DEADLINE)
