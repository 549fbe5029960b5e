"""Everything that stops reclaiming, alone and together."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from devward.model import ReclaimMode, ReclaimState
from devward.reclaim.controls import BLOCKED_TEXT, Blocked, Controls, Switch, permission
from sim.reclaim_desk import unknown

GOOD = Controls(mode=ReclaimMode.ENFORCE, kill_switch=Switch.ABSENT, has_kubelet=True)

STOPS: dict[Blocked, dict[str, Any]] = {
    Blocked.MODE_OFF: {"mode": ReclaimMode.OFF},
    Blocked.PAUSED: {"is_paused": True},
    Blocked.MODE_OBSERVE: {"mode": ReclaimMode.OBSERVE},
    Blocked.MASS_RECLAIM: {"is_breaker_latched": True},
    Blocked.KILL_SWITCH: {"kill_switch": Switch.PRESENT},
    Blocked.KILL_SWITCH_UNREADABLE: {"kill_switch": Switch.UNREADABLE},
    Blocked.NO_RECLAIM: {"no_reclaim": True},
    Blocked.NO_KUBELET: {"has_kubelet": False},
    Blocked.NOT_PERMITTED: {"is_forbidden": True},
    Blocked.JOURNAL: {"is_journal_refusing": True},
    Blocked.NOT_SAVED: {"is_unsaved": True},
    Blocked.STATE_DAMAGED: {"is_state_damaged": True},
    Blocked.STOPPING: {"is_stopping": True},
}

#: Two that can hold at the same time: one control has one value.
PAIRS = [pair for pair in itertools.combinations(Blocked, 2) if STOPS[pair[0]].keys().isdisjoint(STOPS[pair[1]])]


def test_nothing_stands_in_the_way() -> None:
    assert permission(GOOD).may_destroy
    assert permission(GOOD).state is ReclaimState.ENFORCING


def test_with_nothing_said_everything_is_stopped() -> None:
    assert permission(Controls()).reasons == (Blocked.MODE_OFF, Blocked.KILL_SWITCH_UNREADABLE, Blocked.NO_KUBELET)


@pytest.mark.parametrize("blocked", Blocked)
def test_each_alone_stops_everything(blocked: Blocked) -> None:
    found = permission(replace(GOOD, **STOPS[blocked]))
    assert not found.may_destroy
    assert found.reasons == (blocked,)
    assert found.sentences == (BLOCKED_TEXT[blocked],)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_two_are_both_told_the_weightier_first(pair: tuple[Blocked, Blocked]) -> None:
    first, second = pair
    assert permission(replace(GOOD, **STOPS[first], **STOPS[second])).reasons == pair


def test_what_is_unknown_of_the_node_stops_everything_and_of_a_card_nothing() -> None:
    found = permission(GOOD, [unknown("api-timeout"), unknown("npu-in-doubt", card="p000"), unknown("api-timeout")])
    assert (found.may_destroy, found.state, found.reasons) == (False, ReclaimState.BLOCKED, ("api-timeout",))
    assert found.sentences == ("It cannot be told.",)
    assert permission(GOOD, [unknown("npu-in-doubt", card="p000")]).may_destroy


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({"mode": ReclaimMode.OFF, "is_paused": True}, ReclaimState.OFF),
        ({"mode": ReclaimMode.OBSERVE, "is_paused": True}, ReclaimState.PAUSED),
        ({"mode": ReclaimMode.OBSERVE, "is_breaker_latched": True}, ReclaimState.OBSERVING),
        ({"is_breaker_latched": True, "no_reclaim": True}, ReclaimState.MASS_RECLAIM),
        ({"no_reclaim": True}, ReclaimState.BLOCKED),
        ({}, ReclaimState.ENFORCING),
    ],
)
def test_the_weightiest_state_is_shown(more: dict[str, Any], state: ReclaimState) -> None:
    assert permission(replace(GOOD, **more)).state is state


def test_every_reason_has_a_sentence_and_a_test() -> None:
    assert set(BLOCKED_TEXT) == set(Blocked) == set(STOPS)
    assert all(text.endswith(".") for text in BLOCKED_TEXT.values())
