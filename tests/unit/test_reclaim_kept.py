"""What of reclaiming outlasts the daemon."""

import json
from typing import Any

import pytest

from devward.reclaim.kept import from_values, to_values
from devward.reclaim.limits import Breaker, Due, Held, Spent, release, spend, watch

HELD = ["p000", 100, "0123456789abcdef"]
GOOD: dict[str, Any] = {"version": 2, "boot_id": "b", "latched": True, "held": [HELD], "agreed": [HELD], "tries": [1.5, 2]}


def test_a_latched_breaker_and_the_tries_of_the_hour_outlast_the_daemon() -> None:
    eligible = [Due(f"v{card}", f"p{card}", 0.0) for card in range(3)]
    present = {one.identity: f"lasting-{one.identity}" for one in eligible}
    breaker = watch(Breaker(), eligible, 8, present)
    spent = spend(spend(Spent(), "p0", 10.0), "p1", 20.0)
    kept = json.loads(json.dumps(to_values(breaker, spent, "b")))
    held = frozenset(Held(f"p{card}", 0, "", f"lasting-v{card}") for card in range(3))
    assert from_values(kept, "b") == (Breaker(is_latched=True, held=held), Spent((10.0, 20.0)))
    again, _ = from_values(json.loads(json.dumps(to_values(release(breaker), spent, "b"))), "b")
    assert again == Breaker(agreed=held)


def test_one_that_no_other_run_finds_again_is_not_kept() -> None:
    breaker = Breaker(is_latched=True, held=frozenset({Held("p0", 100, "a", "l"), Held("p0", 101, "b")}))
    assert to_values(breaker, Spent(), "b")["held"] == [["p0", 100, "l"]]


def test_no_more_is_written_than_is_read() -> None:
    many = frozenset(Held("p0", index, "", f"{index:016x}") for index in range(3000))
    kept = to_values(Breaker(is_latched=True, held=many, agreed=many), Spent(), "b")
    assert len(json.dumps(kept)) < 1 << 20
    found, _ = from_values(kept, "b")
    assert found.held < many
    assert found.agreed < many


def test_another_boot_keeps_the_breaker_alone() -> None:
    assert from_values(GOOD, "another") == (Breaker(is_latched=True), Spent())


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        {},
        {**GOOD, "more": 1},
        {**GOOD, "version": 1},
        {**GOOD, "version": 3},
        {**GOOD, "version": True},
        {**GOOD, "version": 2.0},
        {**GOOD, "boot_id": None},
        {**GOOD, "latched": 1},
        {**GOOD, "latched": None},
        *({**GOOD, name: bad} for name in ("held", "agreed") for bad in (None, {}, [None], [HELD[:2]], [HELD] * 2049)),
        *(
            {**GOOD, "agreed": [[*HELD[:at], bad, *HELD[at + 1 :]]]}
            for at in range(3)
            for bad in (None, True, [], "\x1b" if not at else 1.0)
        ),
        {**GOOD, "agreed": [["p000", 100, ""]]},
        {**GOOD, "tries": None},
        {**GOOD, "tries": ["1"]},
        {**GOOD, "tries": [True]},
        {**GOOD, "tries": [-1.0]},
        {**GOOD, "tries": [float("nan")]},
        {**GOOD, "tries": [float("inf")]},
        {**GOOD, "tries": [10**400]},
        {**GOOD, "tries": [1.0] * 10_001},
    ],
)
def test_what_was_not_written_so_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="what is kept of reclaiming"):
        from_values(bad, "b")
