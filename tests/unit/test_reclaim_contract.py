"""The destruction contract, line by line: what refuses at each gate, and what each answer of the broker means."""

from dataclasses import replace
from typing import Any

import pytest

from devward.cluster.claims import ClaimReason
from devward.cluster.evidence import Finding
from devward.cluster.observations import Scope
from devward.cluster.views import Reset
from devward.model import ReclaimMode
from devward.npu.codes import DcmiCode
from devward.npu.facts import Expected, Outcome, Refusal
from devward.npu.pins import PinReport
from devward.npu.views import Use
from devward.reclaim.aftermath import Aftermath, Result, called, conclude, refused, unanswered, unasked
from devward.reclaim.confirmation import Progress
from devward.reclaim.contract import FRESH_SECONDS, NO_TEXT, Chosen, Go, No, Prepared, Refuse, decide, kept_since, prepare
from devward.reclaim.controls import Blocked, Controls, Switch
from devward.reclaim.limits import Limit, Rates, Spent, choose, due, spend
from devward.reclaim.look import Cut, Look, PinHold
from devward.reclaim.reasons import Verdict, Why
from sim.reclaim_desk import RUNNING, UNTOLD, ReclaimDesk, cut, die_of, expected_of, unknown, vnpu_of

GOOD = Controls(mode=ReclaimMode.ENFORCE, kill_switch=Switch.ABSENT, has_kubelet=True)
MINE = vnpu_of().identity


class Case:
    """A vNPU that was chosen, and all that its destruction takes."""

    def __init__(self, **more: Any) -> None:
        self.desk = ReclaimDesk(**more)
        self.desk.look()
        self.desk.wait(600)
        found = choose(due(self.desk.judgements, self.desk.progress), Spent(), Rates(), self.desk.now)
        self.chosen = Chosen(found.chosen[0], sequence=3)

    def fresh(self, after: float = 2.0, **more: Any) -> Look:
        return self.desk.see(self.desk.now + after, **more)

    def prepare(self, fresh: Look | None = None, **more: Any) -> tuple[Prepared | Refuse, Progress]:
        fresh = fresh or self.fresh()
        usual: dict[str, Any] = {
            "now": fresh.at,
            "apart": 0.0,
            "sequence": 3,
            "controls": GOOD,
            "spent": Spent(),
            "rates": Rates(),
            "bounds": self.desk.bounds,
        }
        expected = more.pop("expected", expected_of())
        chosen, before = more.pop("chosen", self.chosen), more.pop("before", self.desk.progress)
        return prepare(chosen, before, fresh, expected, **{**usual, **more})

    def refusal(self, fresh: Look | None = None, **more: Any) -> str:
        answer, _ = self.prepare(fresh, **more)
        assert isinstance(answer, Refuse)
        assert answer.sentence.endswith(".")
        return answer.reason

    def prepared(self) -> Prepared:
        answer, _ = self.prepare()
        assert isinstance(answer, Prepared)
        return answer


def last_word(prepared: Prepared, **more: Any) -> Go | Refuse:
    usual: dict[str, Any] = {"now": prepared.begun + 2, "sequence": 3, "controls": GOOD, "is_intent_taken": True}
    return decide(prepared, **{**usual, **more})


# --- all is well -----------------------------------------------------------------------------------------------------------------------
def test_the_broker_may_be_asked_for_exactly_the_described_vnpu() -> None:
    prepared = Case().prepared()
    assert prepared.judgement.verdict is Verdict.ELIGIBLE
    assert last_word(prepared) == Go(expected_of())


# --- 1: switches and the record --------------------------------------------------------------------------------------------------------
STOPPED = [
    ({"mode": ReclaimMode.OBSERVE}, Blocked.MODE_OBSERVE),
    ({"mode": ReclaimMode.OFF}, Blocked.MODE_OFF),
    ({"is_paused": True}, Blocked.PAUSED),
    ({"kill_switch": Switch.PRESENT}, Blocked.KILL_SWITCH),
    ({"kill_switch": Switch.UNREADABLE}, Blocked.KILL_SWITCH_UNREADABLE),
    ({"no_reclaim": True}, Blocked.NO_RECLAIM),
    ({"has_kubelet": False}, Blocked.NO_KUBELET),
    ({"is_breaker_latched": True}, Blocked.MASS_RECLAIM),
    ({"is_forbidden": True}, Blocked.NOT_PERMITTED),
    ({"is_state_damaged": True}, Blocked.STATE_DAMAGED),
    ({"is_stopping": True}, Blocked.STOPPING),
]


@pytest.mark.parametrize(("more", "reason"), STOPPED, ids=lambda value: str(value) if isinstance(value, Blocked) else "")
def test_whatever_stops_reclaiming_refuses_at_both_gates(more: dict[str, Any], reason: Blocked) -> None:
    case = Case()
    assert case.refusal(controls=replace(GOOD, **more)) == reason
    found = last_word(case.prepared(), controls=replace(GOOD, **more))
    assert isinstance(found, Refuse)
    assert found.reason == reason


def test_without_a_record_of_the_intent_nothing_is_destroyed() -> None:
    found = last_word(Case().prepared(), is_intent_taken=False)
    assert isinstance(found, Refuse)
    assert found.reason == No.NOT_RECORDED


# --- 2: fresh evidence -----------------------------------------------------------------------------------------------------------------
def test_the_look_by_which_it_was_chosen_is_not_fresh() -> None:
    case = Case()
    assert case.desk.last is not None
    assert case.refusal(case.desk.last) == No.NOT_FRESH


def test_a_look_with_one_part_of_before_the_choice_is_not_fresh() -> None:
    case = Case()
    assert case.refusal(case.fresh(2.0, age=2.0)) == No.NOT_FRESH
    answer, _ = case.prepare(case.fresh(2.0, age=1.9))
    assert isinstance(answer, Prepared)


def test_nothing_is_prepared_from_no_progress() -> None:
    assert Case().refusal(before=Progress()) == No.NOT_FRESH


def test_a_look_without_pods_is_none() -> None:
    case = Case()
    assert case.refusal(case.fresh(snapshot=None)) == Why.NOT_EVALUATED


def test_evidence_that_became_old_meanwhile_refuses() -> None:
    prepared = Case().prepared()
    assert isinstance(last_word(prepared, now=prepared.begun + FRESH_SECONDS), Go)
    for now in (prepared.begun + FRESH_SECONDS + 0.1, prepared.begun - 0.1):
        found = last_word(prepared, now=now)
        assert isinstance(found, Refuse)
        assert found.reason == No.TOO_OLD
    assert isinstance(last_word(prepared, now=prepared.begun + 5, fresh_seconds=4.0), Refuse)


def test_evidence_grows_old_while_the_host_is_suspended() -> None:
    case = Case()
    fresh = case.fresh()
    # Both clocks as they were right before the look: one that is ahead by 100 s.
    answer, _ = case.prepare(fresh, apart=100.0)
    assert isinstance(answer, Prepared)
    assert isinstance(last_word(answer, now=fresh.at + 100.0), Go)
    found = last_word(answer, now=fresh.at + 100.0 + FRESH_SECONDS)
    assert isinstance(found, Refuse)
    assert found.reason == No.TOO_OLD


def test_a_suspension_since_the_fresh_look_keeps_it_however_short() -> None:
    prepared = replace(Case().prepared(), apart=100.0)
    assert kept_since(prepared, (), PinReport(), 100.5) is None
    found = kept_since(prepared, (), PinReport(), 105.0)
    assert found is not None
    assert found.reason == Cut.RESUMED


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "ownership appears": ({"claims": [RUNNING]}, ClaimReason.RUNNING),
    "a card becomes unknown": ({"claims": [UNTOLD]}, ClaimReason.REASON_UNKNOWN),
    "the node becomes unknown": ({"unknowns": [unknown("api-timeout")]}, "api-timeout"),
    "a process opens it": ({"vnpus": (vnpu_of(host=Finding.HELD),)}, Why.HELD_ON_HOST),
    "the host cannot be searched": ({"vnpus": (vnpu_of(host=Finding.UNKNOWN),)}, Why.HOST_UNKNOWN),
    "the driver says used": ({"vnpus": (vnpu_of(use=Use.IN_USE),)}, Why.DRIVER_SAYS_USED),
    "it is pinned": ({"vnpus": (vnpu_of(pin=PinHold.PINNED),)}, Why.PINNED),
    "a reset": ({"resets": [Reset(Scope.NODE, "kubelet-restarted")]}, Why.JUST_SEEN),
    "an interruption": ({"interruptions": (cut(Cut.RESUMED),)}, Why.JUST_SEEN),
    "HAMi takes its lock": ({"is_deferred": True}, Why.LOCKED),
    "it is gone": ({"vnpus": ()}, No.GONE),
    "its id is another's": ({"vnpus": (vnpu_of(identity="another"),)}, No.GONE),
    "it is on another card": ({"vnpus": (vnpu_of(card="p001"),)}, No.GONE),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_fresh_look_finds_refuses(name: str) -> None:
    change, reason = CHANGES[name]
    case = Case()
    answer, progress = case.prepare(case.fresh(**change))
    assert isinstance(answer, Refuse)
    assert answer.reason == reason
    if name not in ("HAMi takes its lock", "it is gone", "its id is another's", "it is on another card"):
        assert progress.vnpus[MINE].normal.confirmations == 0


def test_a_deferred_one_keeps_its_progress() -> None:
    case = Case()
    _, progress = case.prepare(case.fresh(is_deferred=True))
    assert progress.vnpus[MINE].grace_start == case.desk.known().grace_start


def test_one_that_is_not_due_any_more_is_refused() -> None:
    case = Case()
    assert case.refusal(bounds=replace(case.desk.bounds, normal=replace(case.desk.bounds.normal, grace=700.0))) == Why.WAITING_GRACE


def test_one_that_was_shortened_is_refused_without_that() -> None:
    case = Case()
    case.desk.progress = Progress()
    case.desk.look(shorten=frozenset({MINE}))
    case.desk.wait(60, 30, shorten=frozenset({MINE}))
    assert case.refusal() == Why.WAITING_CONFIRMATIONS
    answer, _ = case.prepare(case.fresh(shorten=frozenset({MINE})))
    assert isinstance(answer, Prepared)
    assert answer.judgement.is_shortened


# --- 3: identity -----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("sequence", "reason"), [(4, No.EVENTS_SEEN), (2, No.EVENTS_SEEN), (None, No.EVENTS_UNREAD)])
def test_device_events_refuse_at_both_gates(sequence: int | None, reason: No) -> None:
    case = Case()
    assert case.refusal(sequence=sequence) == reason
    found = last_word(case.prepared(), sequence=sequence)
    assert isinstance(found, Refuse)
    assert found.reason == reason


@pytest.mark.parametrize(
    ("expected", "reason"),
    [
        (None, No.NOT_DESCRIBED),
        (expected_of(101), No.OTHER_VNPU),
        (expected_of(template="vir10_3c_16g"), No.OTHER_VNPU),
        (expected_of(template=""), No.OTHER_VNPU),
        (expected_of(phy=1), No.OTHER_VNPU),
        (expected_of(die=die_of(1)), No.OTHER_VNPU),
        (expected_of(boot_id=""), No.OTHER_VNPU),
        (expected_of(vfid=2), No.OUTSIDE_WINDOW),
    ],
)
def test_a_description_that_is_not_that_of_the_chosen_refuses(expected: Expected | None, reason: No) -> None:
    assert Case().refusal(expected=expected) == reason


@pytest.mark.parametrize("vdev", [65535, 99, 116, 1124, 0, -1])
def test_an_id_outside_the_window_of_its_card_never_reaches_the_broker(vdev: int) -> None:
    odd = replace(vnpu_of(), vdev=vdev)
    case = Case(vnpus=(odd,))
    assert case.refusal(expected=replace(expected_of(), vdev=vdev, vfid=(vdev - 100) % 16 + 1)) == No.OUTSIDE_WINDOW


# --- 5: rates --------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("spent", "reason"),
    [
        (spend(Spent(), "p000", 10_000.0), Limit.PER_CARD),
        (Spent(cards=("p001", "p002", "p003", "p004")), Limit.PER_NODE),
        (Spent(moments=(10_600.0,) * 16), Limit.PER_HOUR),
    ],
)
def test_rates_are_held_again(spent: Spent, reason: Limit) -> None:
    assert Case().refusal(spent=spent) == reason


# --- 4: what came of it ----------------------------------------------------------------------------------------------------------------
def after(aftermath: Aftermath) -> tuple[ReclaimDesk, Progress]:
    desk = ReclaimDesk(vnpus=(vnpu_of(100), vnpu_of(101)))
    desk.look()
    desk.wait(600)
    desk.progress = conclude(desk.progress, MINE, aftermath, desk.now + 3)
    return desk, desk.progress


@pytest.mark.parametrize("code", [0, -8001, -8002, -8008, None])
def test_what_is_not_listed_any_more_is_destroyed_whatever_the_code(code: int | None) -> None:
    found = called(Outcome.DESTROYED, code)
    assert (found.result, found.sets_back) == (Result.DESTROYED, False)
    _, progress = after(found)
    assert set(progress.vnpus) == {vnpu_of(101).identity}


@pytest.mark.parametrize("outcome", [Outcome.STILL_PRESENT, Outcome.UNKNOWN])
def test_in_use_begins_the_wait_of_that_vnpu_anew(outcome: Outcome) -> None:
    found = called(outcome, DcmiCode.INVALID_PARAMETER)
    assert found.sets_back
    desk, progress = after(found)
    assert progress.vnpus[MINE].normal.confirmations == 0
    assert desk.look().verdict is Verdict.CANDIDATE
    assert desk.judgements["v0101"].verdict is Verdict.ELIGIBLE


@pytest.mark.parametrize("outcome", Outcome)
def test_not_permitted_stops_destroying(outcome: Outcome) -> None:
    assert called(outcome, DcmiCode.NOT_PERMITTED).forbids
    assert not called(outcome, DcmiCode.INVALID_PARAMETER).forbids
    assert refused(Refusal.DCMI_FAILED, DcmiCode.NOT_PERMITTED, "No.").forbids


@pytest.mark.parametrize("code", [0, -8005, -8009, None])
@pytest.mark.parametrize("outcome", [Outcome.STILL_PRESENT, Outcome.UNKNOWN])
def test_ambiguous_outcomes_wait_for_another_round_and_no_other_grace(outcome: Outcome, code: int | None) -> None:
    found = called(outcome, code)
    assert (found.sets_back, found.forbids) == (False, False)
    desk, _ = after(found)
    assert desk.look(30).reason == Why.WAITING_ROUND
    assert desk.judgements["v0101"].verdict is Verdict.ELIGIBLE
    assert desk.look(30).verdict is Verdict.ELIGIBLE


def test_what_was_not_asked_was_not_tried() -> None:
    found = unasked("There is no broker.")
    assert (found.result, found.sets_back, found.forbids) == (Result.REFUSED, False, False)
    assert (found.reason, found.sentence) == ("not-asked", "There is no broker.")


def test_no_answer_is_unknown() -> None:
    found = unanswered("The broker ended.")
    assert (found.result, found.sets_back, found.forbids) == (Result.UNKNOWN, False, False)


OF_THE_VNPU = [
    Refusal.IN_USE,
    Refusal.USE_UNKNOWN,
    Refusal.SCAN_IN_USE,
    Refusal.SCAN_UNKNOWN,
    Refusal.VNPU_ABSENT,
    Refusal.VFID_DIFFERS,
    Refusal.TEMPLATE_DIFFERS,
    Refusal.NODE_MISSING,
    Refusal.NODE_UNREADABLE,
    Refusal.NODE_DIFFERS,
    Refusal.PHY_DIFFERS,
    Refusal.DIE_DIFFERS,
    Refusal.CHIP_UNKNOWN,
    Refusal.CHIP_UNHEALTHY,
    Refusal.NO_SUCH_CHIP,
    Refusal.BOOT_DIFFERS,
    Refusal.VM_MODE,
    Refusal.MODE_UNKNOWN,
    Refusal.WILDCARD,
    Refusal.OUTSIDE_WINDOW,
]


@pytest.mark.parametrize("reason", Refusal)
def test_a_refusal_is_no_try_and_sets_back_what_it_is_about(reason: Refusal) -> None:
    found = refused(reason, None, "It is so.")
    assert (found.result, found.forbids) == (Result.REFUSED, False)
    assert found.sets_back is (reason in OF_THE_VNPU)
    desk, _ = after(found)
    if not found.sets_back:
        assert desk.look(30).reason == Why.WAITING_ROUND
    assert desk.look(30).verdict is (Verdict.CANDIDATE if found.sets_back else Verdict.ELIGIBLE)


def test_in_use_by_the_library_sets_back_a_refusal_too() -> None:
    assert refused(Refusal.DCMI_FAILED, DcmiCode.INVALID_PARAMETER, "No.").sets_back


def test_every_reason_has_a_sentence() -> None:
    assert set(NO_TEXT) == set(No)
    assert all(text.endswith(".") for text in NO_TEXT.values())
    assert called(Outcome.STILL_PRESENT, -8001).reason == "destroy-8001"
    assert called(Outcome.UNKNOWN, None).reason == "destroy-unfinished"
