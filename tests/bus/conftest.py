"""Fixtures of the bus tests: the private buses."""

from collections.abc import Iterator

import pytest
from bus_harness import Bus, private_bus


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
