"""When looks are due: never sooner than an interval, at no steady beat, and never further apart than the Lease allows."""

import pytest

from devward.cluster.cadence import MOST, SPREAD, next_look
from devward.cluster.parts import SnapshotBounds


def test_a_look_comes_an_interval_after_the_one_before_and_a_little_later_by_chance() -> None:
    assert next_look(0.0, 0.0, 60.0, 0.0) == 60.0
    assert next_look(0.0, 0.0, 60.0, 1.0) == pytest.approx(60.0 * (1 + SPREAD))
    assert next_look(0.0, 5.0, 60.0, 0.0) == 65.0, "after the look was complete"


def test_a_slow_look_does_not_put_off_the_next_one_beyond_the_bound_of_the_lease() -> None:
    assert next_look(0.0, 40.0, 60.0, 1.0) == 60.0 * MOST
    assert SnapshotBounds().lease_looks > 60.0 * MOST
