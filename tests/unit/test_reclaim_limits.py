"""Rates, the order in which vNPUs are destroyed, and the breaker."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.model import Manage
from devward.reclaim.kept import from_values, to_values
from devward.reclaim.limits import (
    LIMIT_TEXT,
    Breaker,
    Due,
    Held,
    Limit,
    Rates,
    Spent,
    allowance,
    begin_cycle,
    choose,
    due,
    limit,
    recalled,
    reclaimed_cards,
    release,
    sentence,
    spend,
    watch,
    watch_look,
)
from devward.reclaim.look import Reach
from devward.reclaim.reasons import Verdict
from devward.reclaim.verdict import Judgement
from sim.pauses import pauses
from sim.reclaim_desk import RUNNING, ReclaimDesk, card_of, unmanaged, vnpu_of

NOW = 50_000.0


def one(name: str, card: int = 0, start: float = 0.0, **more: Any) -> Due:
    return Due(name, f"p{card:03d}", start, **more)


def names(found: Any) -> list[str]:
    return [chosen.identity for chosen in found.chosen]


# --- rates -----------------------------------------------------------------------------------------------------------------------------
def test_default_rates() -> None:
    assert Rates() == Rates(per_card=1, per_node=4, per_hour=16)


@pytest.mark.parametrize("name", ["per_card", "per_node", "per_hour"])
def test_rates_are_above_0(name: str) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Rates(**{name: 0})


def test_one_of_a_card_in_a_cycle() -> None:
    found = choose([one("a"), one("b"), one("c", 1)], Spent(), Rates(), NOW)
    assert names(found) == ["a", "c"]
    assert found.left == {"b": Limit.PER_CARD}


def test_four_of_a_node_in_a_cycle() -> None:
    found = choose([one(f"v{card}", card) for card in range(6)], Spent(), Rates(), NOW)
    assert names(found) == ["v0", "v1", "v2", "v3"]
    assert set(found.left.values()) == {Limit.PER_NODE}


def test_sixteen_in_any_hour() -> None:
    spent = Spent()
    for index in range(15):
        spent = spend(begin_cycle(spent), "p000", NOW + index)
    cycle = begin_cycle(spent)
    found = choose([one("a"), one("b", 1)], cycle, Rates(), NOW + 20)
    assert (names(found), found.left) == (["a"], {"b": Limit.PER_HOUR})
    full = begin_cycle(spend(cycle, "p000", NOW + 20))
    assert limit("p001", full, Rates(), NOW + 3599.9) is Limit.PER_HOUR
    assert limit("p001", full, Rates(), NOW + 3600) is None


@given(st.lists(pauses(100, -8000).map(lambda after: NOW + after), max_size=40))
def test_what_the_hour_still_allows_is_what_its_limit_says(moments: list[float]) -> None:
    rates, spent = Rates(), Spent(tuple(moments))
    found = allowance(spent, rates, NOW)
    assert (found.left == 0) is (limit("p000", spent, rates, NOW) is Limit.PER_HOUR) is (found.next_at is not None)
    if found.next_at is not None:
        assert found.next_at > NOW
        assert limit("p000", spent, rates, found.next_at - 0.001) is Limit.PER_HOUR
        assert limit("p000", spent, rates, found.next_at + 0.001) is None
    else:
        assert found.left == rates.per_hour - sum(NOW - moment < 3600 for moment in moments)


def test_what_the_cycle_has_spent_counts() -> None:
    spent = spend(Spent(), "p000", NOW)
    assert limit("p000", spent, Rates(), NOW) is Limit.PER_CARD
    assert limit("p001", spent, Rates(), NOW) is None
    assert limit("p000", begin_cycle(spent), Rates(), NOW) is None
    assert len(begin_cycle(spent).moments) == 1
    for card in ("p001", "p002", "p003"):
        spent = spend(spent, card, NOW)
    assert limit("p004", spent, Rates(), NOW) is Limit.PER_NODE


def test_a_clock_that_went_back_gives_nothing_free() -> None:
    spent = Spent(tuple(NOW + index for index in range(16)))
    assert limit("p000", spent, Rates(), NOW - 10_000) is Limit.PER_HOUR


def test_tries_of_long_ago_are_forgotten() -> None:
    spent = spend(Spent((NOW - 4000, NOW - 3599)), "p000", NOW)
    assert spent.moments == (NOW - 3599, NOW)


def test_the_longest_waiting_comes_first_and_what_failed_last() -> None:
    found = choose([one("new", 0, 9.0), one("failed", 1, 1.0, tries=1), one("old", 2, 2.0)], Spent(), Rates(per_node=2), NOW)
    assert names(found) == ["old", "new"]
    assert found.left == {"failed": Limit.PER_NODE}


def test_one_that_fails_again_and_again_holds_up_no_other_of_its_card() -> None:
    found = choose([one("stuck", start=0.0, tries=3), one("next", start=5.0)], Spent(), Rates(), NOW)
    assert names(found) == ["next"]


def test_what_is_deferred_is_left_alone_and_takes_no_share() -> None:
    found = choose([one("a", is_deferred=True), one("b")], Spent(), Rates(), NOW)
    assert (names(found), found.left) == (["b"], {})


@given(st.permutations([one(f"v{index}", index % 5, float(index % 3), tries=index % 2, vdev=index) for index in range(12)]))
def test_the_choice_does_not_hang_on_the_order_of_what_is_handed_in(order: list[Due]) -> None:
    whole = choose(sorted(order, key=lambda found: found.identity), Spent(), Rates(), NOW)
    assert choose(order, Spent(), Rates(), NOW) == whole


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3), pauses(1000)), max_size=40),
    st.lists(pauses(8000).map(lambda ago: NOW - ago), max_size=20),
)
def test_no_choice_is_over_a_rate(what: list[tuple[int, int, float]], moments: list[float]) -> None:
    rates = Rates()
    eligible = [one(f"v{index}", card, start, tries=tries) for index, (card, tries, start) in enumerate(what)]
    found = choose(eligible, Spent(tuple(moments)), rates, NOW)
    cards = [chosen.card for chosen in found.chosen]
    assert len(cards) <= rates.per_node
    assert all(cards.count(card) <= rates.per_card for card in cards)
    recent = sum(NOW - moment < 3600 for moment in moments)
    assert recent + len(cards) <= max(rates.per_hour, recent)
    assert {chosen.identity for chosen in found.chosen} | found.left.keys() == {chosen.identity for chosen in eligible}


def test_every_limit_has_a_sentence() -> None:
    assert set(LIMIT_TEXT) == set(Limit)


# --- what is due -----------------------------------------------------------------------------------------------------------------------
def test_due_is_what_is_eligible_or_deferred() -> None:
    desk = ReclaimDesk(vnpus=(vnpu_of(100), vnpu_of(116)))
    desk.look()
    desk.wait(540)
    assert due(desk.judgements, desk.progress) == ()
    desk.look(claims=[RUNNING])
    found = due(desk.judgements, desk.progress)
    assert [(entry.identity, entry.card, entry.vdev, entry.is_deferred) for entry in found] == [(vnpu_of(116).identity, "p001", 116, False)]
    assert found[0].grace_start == desk.known(1).grace_start
    desk.look(is_deferred=True)
    assert [entry.is_deferred for entry in due(desk.judgements, desk.progress)] == [True]


def test_cards_that_are_reclaimed_on() -> None:
    cards = (card_of(0), unmanaged(card_of(1)), card_of(2))
    assert reclaimed_cards(ReclaimDesk(cards=cards).see(1.0)) == 2
    assert reclaimed_cards(ReclaimDesk(cards=cards, reach=Reach(Manage.ALL)).see(1.0)) == 3
    assert reclaimed_cards(ReclaimDesk(cards=cards, reach=Reach(cards=frozenset({"p000", "p001"}))).see(1.0)) == 1
    assert reclaimed_cards(ReclaimDesk().see(1.0, snapshot=None)) == 0


# --- the breaker -----------------------------------------------------------------------------------------------------------------------
def on(*cards: int) -> list[Due]:
    return [one(f"v{index}-{card}", card) for index, card in enumerate(cards)]


def present(*eligible: Due, run: str = "") -> dict[str, str]:
    """Return these as a look tells of them: by the identity of a run of the daemon, and by what lasts."""
    return {f"{run}{entry.identity}": f"lasting-{entry.identity}" for entry in eligible}


def held(*eligible: Due) -> frozenset[Held]:
    return frozenset(Held(entry.card, entry.vdev, entry.identity, f"lasting-{entry.identity}") for entry in eligible)


@pytest.mark.parametrize(
    ("cards", "of", "is_latched"),
    [
        ((), 8, False),
        ((0,), 1, False),
        ((0,) * 16, 1, False),
        ((0,) * 16, 8, False),
        ((0, 1), 2, True),
        ((0, 1), 3, True),
        ((0, 1), 4, False),
        ((0, 1), 16, False),
        ((0, 1, 2), 16, True),
        ((0, 1, 2, 3, 4), 16, True),
    ],
)
def test_eligible_on_three_cards_or_more_than_half_of_them_is_too_much(cards: tuple[int, ...], of: int, is_latched: bool) -> None:
    eligible = on(*cards)
    assert watch(Breaker(), eligible, of, present(*eligible)).is_latched is is_latched


def test_the_breaker_stays_latched_until_it_is_released() -> None:
    eligible = on(0, 1, 2)
    breaker = watch(Breaker(), eligible, 16, present(*eligible))
    breaker = watch(breaker, [], 16, present(*eligible))
    assert breaker.is_latched
    assert breaker.held == held(*eligible)
    assert not release(breaker).is_latched


def test_what_was_agreed_to_does_not_latch_it_again_and_what_is_new_does() -> None:
    eligible = on(0, 1, 2)
    breaker = release(watch(Breaker(), eligible, 16, present(*eligible)))
    breaker = watch(breaker, eligible, 16, present(*eligible))
    assert not breaker.is_latched
    more = [*eligible, *(one(f"new{card}", card) for card in range(2))]
    assert not watch(breaker, more, 16, present(*more)).is_latched
    more = [*more, one("new2", 2)]
    assert watch(breaker, more, 16, present(*more)).is_latched


def test_agreement_is_to_what_was_eligible_while_it_was_latched() -> None:
    first, later = on(0, 1, 2), on(3, 4, 5)
    breaker = watch(Breaker(), first, 16, present(*first))
    breaker = release(watch(breaker, later, 16, present(*first, *later)))
    assert breaker.agreed == held(*first, *later)


def test_a_second_agreement_leaves_the_first() -> None:
    first, later = on(0, 1, 2), [one(f"later{card}", card) for card in range(3)]
    everything = [*first, *later]
    breaker = release(watch(Breaker(), first, 16, present(*everything)))
    breaker = release(watch(breaker, everything, 16, present(*everything)))
    assert breaker.agreed == held(*everything)
    assert not watch(breaker, everything, 16, present(*everything)).is_latched


def test_agreement_goes_with_its_vnpu() -> None:
    eligible = on(0, 1, 2)
    breaker = release(watch(Breaker(), eligible, 16, present(*eligible)))
    breaker = watch(breaker, [], 16, {})
    assert watch(breaker, eligible, 16, present(*eligible)).is_latched


def test_agreement_outlasts_a_look_at_which_the_vnpu_was_not_eligible() -> None:
    eligible = on(0, 1, 2)
    breaker = release(watch(Breaker(), eligible, 16, present(*eligible)))
    breaker = watch(breaker, [], 16, present(*eligible))
    assert not watch(breaker, eligible, 16, present(*eligible)).is_latched


def test_releasing_what_is_not_latched_agrees_to_nothing() -> None:
    assert release(Breaker()) == Breaker()
    two = watch(Breaker(), on(0, 1), 16, present(*on(0, 1)))
    assert release(two).agreed == frozenset()


def of_earlier_run(breaker: Breaker) -> Breaker:
    """Return it as the next run of the daemon reads it: what told its vNPUs from others is of no use there."""
    kept, _ = from_values(json.loads(json.dumps(to_values(breaker, Spent(), "boot"))), "boot")
    return kept


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_was_shown_is_agreed_to_although_the_daemon_was_started_again_meanwhile(is_whole: bool) -> None:
    eligible = on(0, 1, 2)
    after = [replace(entry, identity=f"again-{entry.identity}") for entry in eligible]
    latched = of_earlier_run(watch(Breaker(), eligible, 16, present(*eligible)))
    released_before_any_look = release(latched)
    released_after_a_look = release(watch(latched, [], 16, present(*eligible, run="again-"), is_whole=is_whole))
    released_before_the_restart = of_earlier_run(release(watch(Breaker(), eligible, 16, present(*eligible))))
    for breaker in (released_before_any_look, released_after_a_look, released_before_the_restart):
        found = watch(breaker, after, 16, present(*eligible, run="again-"), is_whole=is_whole)
        assert not found.is_latched
        more = [*after, *(one(f"new{card}", card) for card in range(3))]
        assert watch(found, more, 16, present(*more)).is_latched, "what was not shown is not agreed to"


def test_before_every_vnpu_is_listed_no_agreement_is_forgotten() -> None:
    eligible = on(0, 1, 2)
    kept = of_earlier_run(release(watch(Breaker(), eligible, 16, present(*eligible))))
    assert watch(kept, [], 16, {}, is_whole=False).agreed == kept.agreed
    assert watch(kept, [], 16, {}).agreed == frozenset()
    latched = of_earlier_run(watch(Breaker(), eligible, 16, present(*eligible)))
    assert watch(latched, [], 16, {}, is_whole=False).held == latched.held
    assert watch(latched, [], 16, {}).held == frozenset()


def test_another_vnpu_in_the_place_of_one_that_was_agreed_to_is_not_agreed_to() -> None:
    eligible = on(0, 1, 2)
    kept = of_earlier_run(release(watch(Breaker(), eligible, 16, present(*eligible))))
    others = [one(f"other-{entry.identity}", index) for index, entry in enumerate(eligible)]
    assert watch(kept, others, 16, present(*others)).is_latched
    unnamed = dict.fromkeys((entry.identity for entry in others), "")
    nameless = Breaker(agreed=frozenset({Held("p000", 100, "", "")}))
    assert watch(nameless, others, 16, unnamed).is_latched


def test_after_a_boot_the_breaker_holds_and_nothing_is_agreed_to() -> None:
    eligible = on(0, 1, 2)
    breaker = watch(Breaker(), eligible, 16, present(*eligible))
    found, _ = from_values(to_values(replace(breaker, agreed=breaker.held), Spent(), "boot"), "another")
    assert found == Breaker(is_latched=True)


def test_a_look_says_what_lasts_and_whether_it_is_whole() -> None:
    vnpus = (vnpu_of(100, lasting="a"), vnpu_of(116, lasting="b"))
    look = ReclaimDesk(vnpus=vnpus).see(1.0)
    breaker = watch_look(Breaker(), [one(vnpu.identity, index, vdev=vnpu.vdev) for index, vnpu in enumerate(vnpus)], look, [])
    assert sorted(breaker.held) == [Held(vnpu.card, vnpu.vdev, vnpu.identity, vnpu.lasting) for vnpu in vnpus]
    assert watch_look(breaker, [], replace(look, vnpus=()), []).held == frozenset()
    assert watch_look(breaker, [], replace(look, vnpus=(), is_whole=False), []).held == breaker.held


@pytest.mark.parametrize("verdict", Verdict)
def test_what_somebody_is_seen_to_have_is_neither_held_nor_agreed_to_any_more(verdict: Verdict) -> None:
    """Evidence that changes its mind twice is what the breaker is there for; and what is pinned is not what is agreed to."""
    vnpus = (vnpu_of(100, lasting="a"), vnpu_of(116, lasting="b"))
    look = ReclaimDesk(vnpus=vnpus).see(1.0)
    held = frozenset(Held(vnpu.card, vnpu.vdev, vnpu.identity, vnpu.lasting) for vnpu in vnpus)
    judgement = Judgement(vnpus[0].name, vnpus[0].identity, vnpus[0].card, 100, verdict, "", "")
    found = watch_look(Breaker(is_latched=True, held=held, agreed=held), [], look, [judgement])
    is_had = verdict in (Verdict.IN_USE, Verdict.PINNED, Verdict.OWNED, Verdict.PROTECTED)
    assert sorted(one.vdev for one in found.held) == sorted(one.vdev for one in found.agreed) == ([116] if is_had else [100, 116])
    assert found.is_latched


def test_one_without_an_identity_that_somebody_has_is_not_every_one_without() -> None:
    look = replace(ReclaimDesk(vnpus=(vnpu_of(100),)).see(1.0), is_whole=False)
    held = frozenset({Held("p001", 116, "", "of an earlier run")})
    nameless = Judgement("v0100", "", "p000", 100, Verdict.IN_USE, "", "")
    found = watch_look(Breaker(is_latched=True, held=held, agreed=held), [], look, [nameless])
    assert (found.held, found.agreed) == (held, held)


def test_what_latched_before_the_earlier_run_was_read_stays_latched() -> None:
    eligible = on(0, 1, 2)
    latched = watch(Breaker(), eligible, 16, present(*eligible))
    kept = Breaker(agreed=frozenset({Held("p009", 244, "", "x")}))
    assert recalled(latched, kept) == replace(latched, agreed=kept.agreed)
    assert recalled(Breaker(), latched) == latched


def test_the_sentence_names_the_cards_the_vnpus_and_what_to_do() -> None:
    eligible = [one("a", 0, vdev=100), one("b", 0, vdev=101), one("c", 3, vdev=148)]
    told = sentence(watch(Breaker(), eligible, 2, present(*eligible)))
    assert "3 on 2 cards (p000: 100, 101; p003: 148)" in told
    assert "devwardctl reclaim release" in told
    many = [one(f"v{index}", index % 16, vdev=100 + index) for index in range(256)]
    told = sentence(watch(Breaker(), many, 16, present(*many)))
    assert "256 on 16 cards" in told
    assert "; 240 more)" in told
    assert len(told) <= 400, "what is shown of it"
    gone = sentence(Breaker(is_latched=True))
    assert "none of them is there any more" in gone
    assert "devwardctl reclaim release" in gone
    assert sentence(Breaker()) == ""
