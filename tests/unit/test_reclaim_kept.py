"""What of reclaiming outlasts the daemon."""

import json
from typing import Any

import pytest

from devward.reclaim.kept import from_values, to_values
from devward.reclaim.limits import Breaker, Due, Spent, release, spend, watch

GOOD: dict[str, Any] = {"version": 1, "boot_id": "b", "latched": True, "tries": [1.5, 2]}


def test_a_latched_breaker_and_the_tries_of_the_hour_outlast_the_daemon() -> None:
    eligible = [Due(f"v{card}", f"p{card}", 0.0) for card in range(3)]
    breaker = watch(Breaker(), eligible, 8, {one.identity for one in eligible})
    spent = spend(spend(Spent(), "p0", 10.0), "p1", 20.0)
    kept = json.loads(json.dumps(to_values(breaker, spent, "b")))
    assert from_values(kept, "b") == (Breaker(is_latched=True), Spent((10.0, 20.0)))
    again, _ = from_values(kept, "b")
    again = watch(again, eligible, 8, {one.identity for one in eligible})
    assert release(again).agreed == {one.identity for one in eligible}


def test_another_boot_keeps_the_breaker_alone() -> None:
    assert from_values(GOOD, "another") == (Breaker(is_latched=True), Spent())


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        {},
        {**GOOD, "more": 1},
        {**GOOD, "version": 2},
        {**GOOD, "version": True},
        {**GOOD, "version": 1.0},
        {**GOOD, "boot_id": None},
        {**GOOD, "latched": 1},
        {**GOOD, "latched": None},
        {**GOOD, "tries": None},
        {**GOOD, "tries": ["1"]},
        {**GOOD, "tries": [True]},
        {**GOOD, "tries": [-1.0]},
        {**GOOD, "tries": [float("nan")]},
        {**GOOD, "tries": [float("inf")]},
        {**GOOD, "tries": [1.0] * 10_001},
    ],
)
def test_what_was_not_written_so_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="what is kept of reclaiming"):
        from_values(bad, "b")
