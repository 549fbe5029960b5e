"""How long a vNPU waits: from when, by which looks, and what begins it anew."""

from dataclasses import replace
from typing import Any

import pytest

from devward.cluster.claims import Claim, ClaimReason, Standing
from devward.cluster.evidence import Finding
from devward.cluster.hami import CardRefusal
from devward.cluster.observations import Look as Seen
from devward.cluster.observations import Scope
from devward.cluster.views import Reset
from devward.model import Manage
from devward.npu.views import Use
from devward.reclaim.confirmation import Bounds, Count, Pace, Progress, forget, set_back, set_backs, step, tried
from devward.reclaim.look import Cut, PinHold, Reach
from devward.reclaim.reasons import Verdict, Why
from sim.reclaim_desk import (
    BEGIN,
    PRIVILEGED,
    RUNNING,
    UNTOLD,
    ReclaimDesk,
    card_of,
    claim,
    cut,
    unknown,
    unmanaged,
    vnpu_of,
)

V = Verdict


def aged(seconds: float = 900.0, **more: Any) -> ReclaimDesk:
    """Return a desk whose vNPUs were seen for so long."""
    desk = ReclaimDesk(**more)
    desk.look()
    desk.wait(seconds)
    return desk


# --- grace, confirmations, interval ----------------------------------------------------------------------------------------------------
def test_default_pace_is_ten_minutes_three_confirmations_a_minute_apart() -> None:
    assert Bounds().normal == Pace(600.0, 3, 60.0)
    assert Bounds().short == Pace(60.0, 2, 30.0)


@pytest.mark.parametrize("bad", [{"grace": 0.0}, {"grace": -1.0}, {"confirmations": 0}, {"interval": 0.0}, {"grace": float("nan")}])
def test_every_part_of_a_pace_is_above_0(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Pace(**bad)


def test_it_is_eligible_at_the_first_look_after_the_grace() -> None:
    desk = ReclaimDesk()
    assert desk.look().verdict is V.CANDIDATE
    for minute in range(1, 10):
        found = desk.look()
        assert (found.verdict, found.confirmations) == (V.CONFIRMING, minute)
    assert desk.look().verdict is V.ELIGIBLE


def test_it_is_never_eligible_before_the_grace_is_over() -> None:
    desk = ReclaimDesk()
    desk.look()
    desk.wait(599.75)
    assert desk.look(0.125).verdict is V.CONFIRMING
    assert desk.look(0.125).verdict is V.ELIGIBLE


def test_grace_alone_is_not_enough() -> None:
    desk = ReclaimDesk()
    desk.look()
    assert [desk.look(700).verdict for _ in range(3)] == [V.CONFIRMING, V.CONFIRMING, V.ELIGIBLE]


def test_first_sight_confirms_nothing() -> None:
    desk = ReclaimDesk()
    assert desk.look().confirmations == 0
    assert desk.look(59).confirmations == 0
    assert desk.look(1).confirmations == 1


def test_nudges_add_no_confirmation() -> None:
    desk = ReclaimDesk()
    desk.look()
    counts = [desk.look(7).confirmations for _ in range(26)]
    assert counts == [index * 7 // 63 for index in range(1, 27)]
    often, seldom = ReclaimDesk(), ReclaimDesk()
    often.look()
    seldom.look()
    while often.look(20).verdict is not V.ELIGIBLE:
        pass
    while seldom.look(60).verdict is not V.ELIGIBLE:
        pass
    assert often.now == seldom.now


def test_same_look_twice_confirms_once() -> None:
    desk = ReclaimDesk()
    desk.look()
    look = desk.see(desk.now + 60)
    for _ in range(5):
        found = desk.take(look)
        assert found is not None
        assert found.confirmations == 1


def test_look_with_a_part_of_before_the_last_confirmation_confirms_nothing() -> None:
    desk = ReclaimDesk()
    desk.look()
    assert desk.look(60, age=60.0).confirmations == 0
    assert desk.look(1, age=60.9).confirmations == 1
    assert desk.look(60, age=60.0).confirmations == 1


def test_every_pace_is_configurable() -> None:
    desk = ReclaimDesk(bounds=Bounds(Pace(5.0, 2, 1.0)))
    desk.look()
    assert [desk.look(1, age=0.1).verdict for _ in range(5)] == [*[V.CONFIRMING] * 4, V.ELIGIBLE]


def test_counted_per_vnpu_and_not_per_card() -> None:
    young = vnpu_of(101)
    desk = ReclaimDesk()
    desk.look()
    desk.wait(480)
    desk.vnpus = (vnpu_of(100), young)
    desk.wait(120)
    assert desk.judgements["v0100"].verdict is V.ELIGIBLE
    assert (desk.judgements["v0101"].verdict, desk.judgements["v0101"].confirmations) == (V.CONFIRMING, 1)
    desk.wait(480)
    assert desk.judgements["v0101"].verdict is V.CONFIRMING
    desk.wait(60)
    assert desk.judgements["v0101"].verdict is V.ELIGIBLE


# --- identity --------------------------------------------------------------------------------------------------------------------------
def test_another_identity_is_a_new_vnpu() -> None:
    desk = aged()
    desk.vnpus = (vnpu_of(100, identity="another"),)
    found = desk.look()
    assert (found.verdict, found.confirmations) == (V.CANDIDATE, 0)
    assert set(desk.progress.vnpus) == {"another"}


def test_what_is_not_listed_is_forgotten_and_comes_back_new() -> None:
    desk = aged()
    desk.take(desk.see(desk.now + 60, vnpus=()))
    assert desk.progress.vnpus == {}
    assert desk.look().verdict is V.CANDIDATE


def test_same_identity_on_another_card_is_a_new_vnpu() -> None:
    desk = aged()
    desk.vnpus = (replace(desk.vnpus[0], card="p001"),)
    assert desk.look().verdict is V.CANDIDATE


# --- what begins the wait anew ---------------------------------------------------------------------------------------------------------
SHIELDS: dict[str, tuple[dict[str, Any], Verdict]] = {
    "driver": ({"vnpus": (vnpu_of(use=Use.IN_USE),)}, V.IN_USE),
    "use-unknown": ({"vnpus": (vnpu_of(use=Use.UNKNOWN),)}, V.UNKNOWN),
    "pin": ({"vnpus": (vnpu_of(pin=PinHold.PINNED),)}, V.PINNED),
    "maybe-pin": ({"vnpus": (vnpu_of(pin=PinHold.MAYBE),)}, V.PINNED),
    "pins-unreadable": ({"vnpus": (vnpu_of(pin=PinHold.UNKNOWN),)}, V.UNKNOWN),
    "held": ({"vnpus": (vnpu_of(host=Finding.HELD),)}, V.OWNED),
    "host-unknown": ({"vnpus": (vnpu_of(host=Finding.UNKNOWN),)}, V.UNKNOWN),
    "descriptors-unknown": ({"vnpus": (vnpu_of(descriptors=Finding.UNKNOWN),)}, V.UNKNOWN),
    "fault": ({"vnpus": (vnpu_of(fault="vnpu-template-unknown", fault_text="Its template is not known."),)}, V.UNKNOWN),
    "protected": ({"claims": [RUNNING]}, V.PROTECTED),
    "card-unknown": ({"claims": [UNTOLD]}, V.UNKNOWN),
    "node-unknown": ({"unknowns": [unknown()]}, V.UNKNOWN),
    "card-doubtful": ({"unknowns": [unknown("npu-in-doubt", card="p000")]}, V.UNKNOWN),
    "card-not-seen": ({"cards": (card_of(1),)}, V.UNKNOWN),
    "named": ({"vnpus": (vnpu_of(card_named_by="moby/abc"),)}, V.PROTECTED),
    "no-node": ({"vnpus": (vnpu_of(has_node=False),)}, V.UNMANAGED),
    "no-snapshot": ({"snapshot": None}, V.UNKNOWN),
    "unmanaged": ({"cards": (unmanaged(card_of(0)), card_of(1))}, V.UNMANAGED),
    "template": ({"vnpus": (vnpu_of(refusal=CardRefusal.TEMPLATE_UNKNOWN),)}, V.UNMANAGED),
}


@pytest.mark.parametrize("name", SHIELDS)
def test_what_shields_for_one_look_begins_the_whole_wait_anew(name: str) -> None:
    change, verdict = SHIELDS[name]
    desk = aged()
    assert desk.judgements["v0100"].verdict is V.ELIGIBLE
    found = desk.look(**change)
    assert (found.verdict, found.grace_start_usec, found.eligible_at_usec, found.confirmations) == (verdict, 0, 0, 0)
    assert desk.known().count(is_short=True) == Count()
    assert desk.look().verdict is V.CANDIDATE
    assert desk.wait(540).verdict is V.CONFIRMING
    assert desk.wait(60).verdict is V.ELIGIBLE


def test_wait_begins_with_the_first_look_without_the_claim() -> None:
    """The claim that was there at the look before may have been there until this one."""
    desk = aged()
    desk.look(claims=[RUNNING])
    found = desk.look(60)
    assert desk.known().grace_start == desk.now
    assert found.grace_start_usec == found.first_seen_usec + round((desk.now - desk.known().first_seen) * 1e6)


@pytest.mark.parametrize("what", Cut)
def test_every_interruption_begins_the_wait_anew(what: Cut) -> None:
    desk = aged()
    found = desk.look(interruptions=(cut(what),))
    assert (found.verdict, found.last_reset) == (V.CANDIDATE, what.value)
    assert desk.known().grace_start == desk.now
    assert desk.wait(540).verdict is V.CONFIRMING
    assert desk.wait(60).verdict is V.ELIGIBLE


def test_unpinning_one_spares_the_others() -> None:
    desk = aged(vnpus=(vnpu_of(100), vnpu_of(101)))
    desk.look(interruptions=(cut(Cut.UNPINNED, vnpu_of(101).identity),))
    assert [one.verdict for one in desk.judgements.values()] == [V.ELIGIBLE, V.CANDIDATE]


def test_restart_inherits_nothing() -> None:
    desk = aged()
    desk.progress = Progress()
    assert desk.look().verdict is V.CANDIDATE
    assert desk.wait(540).verdict is V.CONFIRMING


@pytest.mark.parametrize("reason", [Seen.KUBELET_RESTARTED, Seen.NODE_ADOPTED])
def test_resets_of_the_node_hit_every_vnpu(reason: Seen) -> None:
    desk = aged(vnpus=(vnpu_of(100), vnpu_of(116)))
    found = desk.look(resets=[Reset(Scope.NODE, reason.value)])
    assert {one.verdict for one in desk.judgements.values()} == {V.CANDIDATE}
    assert found.last_reset == reason.value


def test_resets_of_a_card_hit_its_vnpus_alone() -> None:
    desk = aged(vnpus=(vnpu_of(100), vnpu_of(116)))
    desk.look(resets=[Reset(Scope.CARD, "made-up", "p001")])
    assert [one.verdict for one in desk.judgements.values()] == [V.ELIGIBLE, V.CANDIDATE]


@pytest.mark.parametrize("reset", [Reset(Scope.NODE, "made-up", "p001"), Reset(Scope.CARD, "made-up")])
def test_a_reset_that_may_be_of_every_card_is(reset: Reset) -> None:
    assert aged().look(resets=[reset]).verdict is V.CANDIDATE


def test_unknown_of_a_card_spares_the_other_cards() -> None:
    desk = aged(vnpus=(vnpu_of(100), vnpu_of(116)))
    desk.look(claims=[UNTOLD])
    assert [one.verdict for one in desk.judgements.values()] == [V.UNKNOWN, V.ELIGIBLE]


def test_unknown_of_the_node_begins_every_wait_anew() -> None:
    desk = aged(vnpus=(vnpu_of(100), vnpu_of(116)))
    desk.look(unknowns=[unknown()])
    desk.look()
    assert [one.verdict for one in desk.judgements.values()] == [V.CANDIDATE, V.CANDIDATE]


@pytest.mark.parametrize(("descriptors", "verdict"), [(Finding.CLEAN, V.ELIGIBLE), (Finding.UNKNOWN, V.PROTECTED)])
def test_pod_that_may_open_any_device_sets_back_unless_the_scan_is_clean(descriptors: Finding, verdict: Verdict) -> None:
    desk = aged()
    assert desk.look(claims=[PRIVILEGED], vnpus=(vnpu_of(descriptors=descriptors),)).verdict is verdict


def test_clean_scan_does_not_lift_another_claim_of_that_pod() -> None:
    desk = aged()
    assert desk.look(claims=[PRIVILEGED, claim(Standing.PROTECTED)]).verdict is V.PROTECTED


def test_reset_that_spares_clean_ones_hits_the_others() -> None:
    desk = aged(vnpus=(vnpu_of(100), vnpu_of(101, descriptors=Finding.CLEAN)))
    desk.look(resets=[Reset(Scope.CARD, "made-up", "p000", unless_clean=True)])
    assert {one.verdict for one in desk.judgements.values()} == {V.ELIGIBLE}
    desk.look(resets=[Reset(Scope.CARD, "made-up", "p000")])
    assert {one.verdict for one in desk.judgements.values()} == {V.CANDIDATE}


def test_lock_defers_and_sets_nothing_back() -> None:
    desk = aged(300.0)
    assert desk.look(is_deferred=True).confirmations == 6
    assert desk.wait(600, is_deferred=True).verdict is V.DEFERRED
    assert desk.look().verdict is V.ELIGIBLE


def test_every_card_reclaimed_on_is_not_set_back_for_not_being_hamis() -> None:
    cards = (unmanaged(card_of(0)), card_of(1))
    assert aged(cards=cards, reach=Reach(Manage.ALL)).judgements["v0100"].verdict is V.ELIGIBLE
    assert aged(cards=cards).judgements["v0100"].verdict is V.UNMANAGED
    desk = aged(cards=cards, reach=Reach(Manage.ALL))
    assert desk.look(resets=[Reset(Scope.CARD, CardRefusal.HANDSHAKE_ODD.value, "p000")]).verdict is V.CANDIDATE


# --- clocks ----------------------------------------------------------------------------------------------------------------------------
def test_look_of_an_earlier_moment_sets_everything_back_and_tells_nothing() -> None:
    desk = aged(540.0)
    before = desk.now
    found = desk.look(-200)
    assert (found.verdict, found.reason, found.confirmations, found.last_reset) == (V.UNKNOWN, Why.OUTDATED, 0, Cut.CLOCK.value)
    assert desk.progress.looked_at == before
    assert desk.look(60).verdict is V.CANDIDATE
    assert desk.known().grace_start == before + 60


def test_it_is_never_due_by_a_look_of_an_earlier_moment() -> None:
    assert aged().look(-1).verdict is V.UNKNOWN


# --- failed attempts -------------------------------------------------------------------------------------------------------------------
def failing(at: float | None, began: float | None = None, uid: str = "pod-1") -> Claim:
    return claim(uid=uid, failed_at=at, began_at=began)


def test_unknown_failure_time_leaves_the_first_sight_alone() -> None:
    desk = ReclaimDesk()
    desk.look(claims=[failing(None)])
    assert desk.wait(600, claims=[failing(None)]).verdict is V.ELIGIBLE


def test_stale_failure_time_cannot_shorten_the_wait() -> None:
    desk = ReclaimDesk()
    desk.look(claims=[failing(BEGIN - 5000)])
    assert desk.known().grace_start == desk.now
    assert desk.wait(540, claims=[failing(BEGIN - 5000)]).verdict is V.CONFIRMING


def test_failure_of_its_own_attempt_sets_back() -> None:
    desk = ReclaimDesk()
    desk.look(claims=[failing(None)])
    failure = desk.now + 30
    found = desk.look(claims=[failing(failure)])
    assert desk.known().grace_start == failure
    assert found.confirmations == 0
    assert desk.wait(570, claims=[failing(failure)]).verdict is V.ELIGIBLE


def test_attempt_that_is_known_to_have_begun_later_spares_it() -> None:
    desk = ReclaimDesk()
    desk.look(claims=[failing(None)])
    start = desk.now
    desk.look(claims=[failing(start + 50, start + 1)])
    assert desk.known().grace_start == start
    desk.look(claims=[failing(start + 110, start)])
    assert desk.known().grace_start == start + 110


def test_failure_that_is_told_of_later_counts_if_it_was_of_before_the_attempt_was_over() -> None:
    desk = ReclaimDesk()
    desk.look(claims=[failing(None)])
    start = desk.now
    desk.look(claims=[failing(None)])
    assert desk.known().settled_at == start + 60
    desk.look(claims=[failing(start + 59)])
    assert desk.known().grace_start == start + 59
    desk.look(claims=[failing(start + 61)])
    assert desk.known().grace_start == start + 59


def test_look_with_a_part_of_before_the_first_sight_settles_nothing() -> None:
    desk = ReclaimDesk()
    desk.look(claims=[failing(None)])
    desk.look(10, age=10.0, claims=[failing(None)])
    assert desk.known().settled_at is None
    desk.look(10, age=9.0, claims=[failing(None)])
    assert desk.known().settled_at == desk.now


def test_look_of_an_earlier_moment_settles_nothing() -> None:
    desk = ReclaimDesk()
    desk.look(claims=[failing(None)])
    desk.look(claims=[claim(Standing.PROTECTED)])
    desk.look(-30, claims=[failing(None)])
    assert desk.known().settled_at is None


def test_shielded_look_settles_nothing() -> None:
    desk = ReclaimDesk()
    desk.look(claims=[failing(None)])
    desk.look(claims=[claim(Standing.PROTECTED, ClaimReason.CONTAINER_ALIVE)])
    assert desk.known().settled_at is None


def test_failure_never_counts_for_later_than_its_look() -> None:
    desk = ReclaimDesk()
    desk.look(claims=[failing(BEGIN + 1e6)])
    assert desk.known().grace_start == desk.now
    desk.look(claims=[failing(BEGIN + 1e6)])
    assert desk.known().failed_at == desk.now


def test_confirmations_of_before_the_failure_are_none() -> None:
    desk = ReclaimDesk(bounds=Bounds(Pace(60.0, 3, 10.0)))
    desk.look(claims=[failing(None, BEGIN)])
    assert desk.wait(30, 10, claims=[failing(None, BEGIN)]).confirmations == 3
    failure = desk.now + 5
    assert desk.look(10, claims=[failing(failure, BEGIN)]).confirmations == 0
    assert desk.look(10, claims=[failing(failure, BEGIN)]).confirmations == 1


def test_failure_stays_counted_when_the_pod_is_gone() -> None:
    desk = ReclaimDesk()
    desk.look(claims=[failing(None)])
    failure = desk.now + 50
    desk.look(claims=[failing(failure)])
    desk.look()
    assert desk.known().grace_start == failure


@pytest.mark.parametrize("is_begin_known", [False, True])
def test_pod_that_fails_every_five_minutes_keeps_none_of_its_vnpus(*, is_begin_known: bool) -> None:
    """100 retries, each of which leaves a vNPU: every one is eligible within the grace and three intervals of its first sight."""
    desk = ReclaimDesk(vnpus=())
    first: dict[str, float] = {}
    took: dict[str, float] = {}
    failed: float | None = None
    for minute in range(500):
        if minute % 5 == 0:
            failed = desk.now + 30
            desk.vnpus = (*desk.vnpus, vnpu_of(100 + minute % 16, name=f"n{minute}", identity=f"attempt-{minute // 5}"))
        began = None if failed is None or not is_begin_known else failed - 1
        desk.take(desk.see(desk.now + 60, claims=[failing(failed, began)]))
        for one in desk.judgements.values():
            first.setdefault(one.identity, desk.now)
            if one.verdict is V.ELIGIBLE:
                took[one.identity] = desk.now - first[one.identity]
        desk.vnpus = tuple(one for one in desk.vnpus if one.identity not in took)
    assert len(took) == 98
    assert max(took.values()) <= 600 + 3 * 60


# --- the shorter pace ------------------------------------------------------------------------------------------------------------------
def test_shortened_wait_is_a_minute_and_two_looks_half_a_minute_apart() -> None:
    mine = frozenset({vnpu_of().identity})
    desk = ReclaimDesk()
    assert desk.look(shorten=mine).verdict is V.CANDIDATE
    assert desk.look(30, shorten=mine).verdict is V.CONFIRMING
    assert desk.look(29, shorten=mine).verdict is V.CONFIRMING
    found = desk.look(1, shorten=mine)
    assert (found.verdict, found.is_shortened, found.confirmations) == (V.ELIGIBLE, True, 1)


def test_two_looks_close_together_do_not_shorten_enough() -> None:
    mine = frozenset({vnpu_of().identity})
    desk = ReclaimDesk()
    desk.look(shorten=mine)
    desk.look(61, shorten=mine)
    assert desk.look(29, shorten=mine).verdict is V.CONFIRMING
    assert desk.look(1, shorten=mine).verdict is V.ELIGIBLE


def test_shortening_one_changes_nothing_of_the_others_nor_of_its_own_usual_wait() -> None:
    desk = ReclaimDesk(vnpus=(vnpu_of(100), vnpu_of(101)))
    mine = frozenset({vnpu_of(100).identity})
    desk.look()
    desk.wait(90, 30, shorten=mine)
    assert [one.verdict for one in desk.judgements.values()] == [V.ELIGIBLE, V.CONFIRMING]
    assert desk.look(30).verdict is V.CONFIRMING
    assert desk.wait(420).verdict is V.CONFIRMING
    assert desk.look(60).verdict is V.ELIGIBLE


@pytest.mark.parametrize("name", SHIELDS)
def test_shortening_skips_no_evidence(name: str) -> None:
    change, verdict = SHIELDS[name]
    mine = frozenset({vnpu_of().identity})
    desk = ReclaimDesk()
    desk.look(shorten=mine)
    desk.wait(90, 30, shorten=mine)
    assert desk.look(30, shorten=mine, **change).verdict is verdict
    assert desk.look(30, shorten=mine).verdict is V.CANDIDATE


def test_shorter_pace_is_never_slower_than_the_usual_one() -> None:
    bounds = Bounds(Pace(5.0, 1, 1.0))
    assert bounds.pace(is_short=True) == Pace(5.0, 1, 1.0)


# --- one vNPU by itself ----------------------------------------------------------------------------------------------------------------
def test_setting_one_back_spares_the_others() -> None:
    desk = aged(vnpus=(vnpu_of(100), vnpu_of(101)))
    before = desk.progress
    desk.progress = set_back(before, vnpu_of(100).identity, desk.now + 5, "destroy-8001")
    assert set_backs(before, desk.progress) == 1
    found = desk.look()
    assert (found.verdict, found.last_reset) == (V.CANDIDATE, "destroy-8001")
    assert desk.judgements["v0101"].verdict is V.ELIGIBLE
    assert desk.known().grace_start == desk.now - 55


def test_setting_back_is_never_into_the_past() -> None:
    desk = aged()
    desk.progress = set_back(desk.progress, vnpu_of().identity, BEGIN, "destroy-8001")
    assert desk.known().grace_start == desk.now


def test_partial_destroy_keeps_the_progress_of_the_others() -> None:
    desk = aged(vnpus=(vnpu_of(100), vnpu_of(101)))
    desk.progress = forget(desk.progress, vnpu_of(100).identity)
    desk.vnpus = (vnpu_of(101),)
    assert desk.look().verdict is V.ELIGIBLE


def test_what_was_tried_waits_for_another_confirmation_and_not_for_another_grace() -> None:
    desk = aged()
    desk.progress = tried(desk.progress, vnpu_of().identity, desk.now + 3)
    found = desk.look(30)
    assert (found.verdict, found.reason) == (V.CONFIRMING, "waiting-for-another-round")
    assert desk.known().eligible_at(desk.bounds) == desk.now + 30
    assert desk.look(30).verdict is V.ELIGIBLE
    assert desk.known().tries == 1


def test_look_that_began_before_the_try_is_not_another_round() -> None:
    desk = aged()
    desk.progress = tried(desk.progress, vnpu_of().identity, desk.now + 59)
    assert desk.look(60, age=1.5).verdict is V.CONFIRMING
    assert desk.look(1, age=0.5).verdict is V.ELIGIBLE


def test_nothing_is_noted_of_a_vnpu_that_is_not_known() -> None:
    empty = Progress()
    assert set_back(empty, "x", 1.0, "y") == tried(empty, "x", 1.0) == forget(empty, "x") == empty


def test_suspects_are_the_pods_that_could_not_start_when_it_was_new() -> None:
    desk = ReclaimDesk()
    desk.look(claims=[claim(Standing.PROTECTED, ClaimReason.CONTAINER_ALIVE)])
    desk.look(claims=[claim(uid="b"), claim(uid="a")])
    desk.look(claims=[claim(uid="c")])
    assert desk.known().suspects == ("a", "b")
    later = ReclaimDesk()
    later.look()
    later.look()
    later.look(claims=[claim(uid="c")])
    assert later.known().suspects == ()


def test_step_takes_nothing_from_the_progress_before() -> None:
    desk = aged(120.0)
    before = desk.progress
    look = desk.see(desk.now + 60)
    assert step(before, look, desk.bounds) == step(before, look, desk.bounds)
    assert desk.progress is before
