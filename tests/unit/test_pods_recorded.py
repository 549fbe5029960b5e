"""The states that were recorded from a real cluster, in their order: who claims which card in each."""

from typing import Final

import pytest

from devward.cluster.claims import Bounds, Claims, Standing
from devward.cluster.podlist import PodList, parse_pod_list
from sim.pod_desk import Desk
from sim.recorded_cluster import CARDS, CLAIMS, NODE, STATES, allocations_of, pods_of


def read(state: str) -> PodList:
    return parse_pod_list(pods_of(state), NODE)


NAMES: Final = {uid: pod.name for state in STATES for pod in read(state).pods for uid in pod.uids}


def shown(claims: Claims) -> tuple[str, ...]:
    marks = {Standing.PROTECTED: "", Standing.CANDIDATE: "?", Standing.UNKNOWN: "!"}
    cards = []
    for card in claims.cards:
        names = []
        for claim in card.claims:
            gone = "(gone)" if claim.reason.value.startswith("only-") else ""
            names.append(NAMES[claim.uid] + gone + marks[claim.standing])
        cards.append(" ".join(sorted(names)))
    return tuple(cards)


def in_order(text: str) -> str:
    return " ".join(sorted(text.split()))


def without_gone(text: str) -> str:
    return " ".join(name for name in text.split() if "(gone)" not in name)


def test_there_are_twelve_states() -> None:
    assert [state[:2] for state in STATES] == list(CLAIMS)


def test_the_states_in_their_order_have_the_claims_of_the_table() -> None:
    desk = Desk()
    for state, expected in CLAIMS.items():
        claims = desk.join(read(state), allocations_of(state), after=6)
        assert not claims.blockers
        assert shown(claims) == tuple(map(in_order, expected)), state


def test_pods_that_are_gone_for_long_leave_the_table() -> None:
    desk = Desk()
    for state, expected in CLAIMS.items():
        for _ in range(3):
            claims = desk.join(read(state), allocations_of(state), after=301)
        assert shown(claims) == tuple(in_order(without_gone(card)) for card in expected), state


@pytest.mark.parametrize("late", ["pods", "checkpoint"])
@pytest.mark.parametrize("state", list(CLAIMS)[1:])
def test_a_source_that_lags_behind_lowers_no_protection(state: str, late: str) -> None:
    before = f"{int(state) - 1:02}"
    desk = Desk()
    for earlier in list(CLAIMS)[: int(state)]:
        desk.join(read(earlier), allocations_of(earlier), after=6)
    claims = desk.join(read(before if late == "pods" else state), allocations_of(before if late == "checkpoint" else state), after=6)
    for card, expected in zip(claims.cards, CLAIMS[state], strict=True):
        if [name for name in expected.split() if "?" not in name]:
            assert card.standing is Standing.PROTECTED, state


@pytest.mark.parametrize("state", list(CLAIMS))
def test_each_state_alone_protects_every_card_that_a_living_pod_has(state: str) -> None:
    desk = Desk()
    desk.bounds = Bounds()
    claims = desk.join(read(state), allocations_of(state))
    for card, expected in zip(claims.cards, CLAIMS[state], strict=True):
        alive = [name for name in expected.split() if not name.endswith("?") and "(gone)" not in name]
        assert (card.standing is Standing.PROTECTED) >= bool(alive)


def test_the_crash_loop_says_when_it_failed() -> None:
    desk = Desk()
    card = desk.join(read("01"), allocations_of("01")).cards[0]
    failed = {NAMES[claim.uid]: (claim.failed_at, claim.began_at) for claim in card.claims if claim.standing is Standing.CANDIDATE}
    # The desk's clock is ahead of the recording's by less than it is wide: at 00:01:00 all of it lies in the future.
    assert failed == {"crashloop": (desk.now.monotonic,) * 2, "runerror": (desk.now.monotonic, None)}
    assert card.card == CARDS[0]
