"""The verdict on a vNPU: every reason, the order of their weight, and what a look is put together from."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from devward.cluster.bundle import ContainerType
from devward.cluster.claims import ClaimReason, Standing
from devward.cluster.evidence import Finding
from devward.cluster.hami import REFUSAL_TEXT, CardRefusal
from devward.cluster.life import Life
from devward.cluster.observations import Scope
from devward.cluster.statement import AskedVnpu, ContainerSight, VnpuSight
from devward.cluster.views import Reset
from devward.model import Manage, Pin
from devward.npu.inventory import Picture
from devward.npu.pins import PinReport, Sight
from devward.npu.pins import judge as judge_pins
from devward.npu.views import Use, VnpuView
from devward.npu.views import Verdict as ViewVerdict
from devward.reasons import Reason
from devward.reclaim.asking import ask_about
from devward.reclaim.confirmation import Progress, step
from devward.reclaim.look import Look, PinHold, Reach, container_key, take_look
from devward.reclaim.reasons import SHIELDED, WHY_TEXT, Verdict, Why
from devward.reclaim.shield import concerns
from devward.reclaim.verdict import Judgement, judge
from sim.reclaim_desk import (
    PRIVILEGED,
    RUNNING,
    UNTOLD,
    ReclaimDesk,
    card_of,
    claim,
    claimed,
    die_of,
    snapshot_of,
    unknown,
    unmanaged,
    vnpu_of,
)
from sim.snapshot_desk import card_view

V = Verdict
NO_PINS = PinReport()

#: What a look must have for each verdict that shields, in the order of precedence, with the reason that is told.
CAUSES: list[tuple[Verdict, str, dict[str, Any], dict[str, Any]]] = [
    (V.IN_USE, Why.DRIVER_SAYS_USED, {"use": Use.IN_USE}, {}),
    (V.PINNED, Why.PINNED, {"pin": PinHold.PINNED}, {}),
    (V.OWNED, Why.HELD_ON_HOST, {"host": Finding.HELD}, {}),
    (V.PROTECTED, ClaimReason.RUNNING, {}, {"cards": (claimed(card_of(0), RUNNING),)}),
    (V.UNKNOWN, "made-up", {"fault": "made-up", "fault_text": "It was made up."}, {}),
    (V.UNMANAGED, CardRefusal.TEMPLATE_UNKNOWN, {"refusal": CardRefusal.TEMPLATE_UNKNOWN}, {}),
]


def verdict(vnpu: dict[str, Any] | None = None, **look: Any) -> Judgement:
    """Return the verdict on a vNPU of card 0 at the first look."""
    return ReclaimDesk(vnpus=(vnpu_of(**(vnpu or {})),), reach=look.pop("reach", Reach())).look(**look)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: str(cause[0].value))
def test_each_verdict_has_its_reason(cause: tuple[Verdict, str, dict[str, Any], dict[str, Any]]) -> None:
    expected, reason, vnpu, look = cause
    found = verdict(vnpu, **look)
    assert (found.verdict, found.reason) == (expected, reason)
    assert found.sentence.endswith(".")
    assert expected in SHIELDED


@pytest.mark.parametrize("pair", list(itertools.combinations(CAUSES, 2)), ids=lambda pair: f"{pair[0][0].value}-{pair[1][0].value}")
def test_the_weightier_verdict_is_shown(pair: Any) -> None:
    (expected, reason, first, first_look), (_, _, second, second_look) = pair
    found = verdict({**second, **first}, **{**second_look, **first_look})
    assert (found.verdict, found.reason) == (expected, reason)


UNKNOWNS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "node": ({}, {"unknowns": [unknown("lease-stale")]}, "lease-stale"),
    "node outweighs the vNPU": ({"fault": "made-up", "fault_text": "It was."}, {"unknowns": [unknown("lease-stale")]}, "lease-stale"),
    "card": ({}, {"unknowns": [unknown("npu-in-doubt", card="p000")]}, "npu-in-doubt"),
    "claim": ({}, {"claims": [UNTOLD]}, ClaimReason.REASON_UNKNOWN),
    "standing alone": ({}, {"cards": (card_of(0, protection=Standing.UNKNOWN, protection_if_clean=Standing.UNKNOWN),)}, Why.CARD_UNKNOWN),
    "card not seen": ({}, {"cards": (card_of(1),)}, Why.CARD_NOT_SEEN),
    "no Pods listed": ({}, {"snapshot": None}, Why.NOT_EVALUATED),
    "use": ({"use": Use.UNKNOWN}, {}, Why.USE_NOT_TOLD),
    "identity": ({"identity": ""}, {}, Why.IDENTITY_UNKNOWN),
    "pins": ({"pin": PinHold.UNKNOWN}, {}, Why.PINS_UNREADABLE),
    "host": ({"host": Finding.UNKNOWN}, {}, Why.HOST_UNKNOWN),
    "descriptors": ({"descriptors": Finding.UNKNOWN}, {}, Why.HOST_UNKNOWN),
    "not asked": ({"host": Finding.UNKNOWN, "is_asked": False}, {}, Why.HOST_NOT_ASKED),
}


@pytest.mark.parametrize("name", UNKNOWNS)
def test_each_thing_that_cannot_be_told_is_unknown(name: str) -> None:
    vnpu, look, reason = UNKNOWNS[name]
    found = verdict(vnpu, **look)
    assert (found.verdict, found.reason) == (V.UNKNOWN, reason)


def test_a_verdict_does_not_change_since_the_host_is_not_searched_any_more() -> None:
    unasked = {"host": Finding.UNKNOWN, "descriptors": Finding.UNKNOWN, "is_asked": False}
    for cause in CAUSES:
        expected, reason, vnpu, look = cause
        if expected is not V.OWNED:
            assert verdict({**unasked, **vnpu}, **look).reason == reason


def test_unknown_of_another_card_is_no_reason() -> None:
    assert verdict(unknowns=[unknown("npu-in-doubt", card="p001")]).verdict is V.CANDIDATE


def test_held_by_a_descriptor_alone_is_owned() -> None:
    assert verdict({"descriptors": Finding.HELD}).verdict is V.OWNED


def test_a_pin_that_may_mean_it_protects() -> None:
    assert (found := verdict({"pin": PinHold.MAYBE})).verdict is V.PINNED
    assert found.reason == Why.MAYBE_PINNED


def test_protected_by_what_no_claim_tells_is_protected() -> None:
    found = verdict(cards=(card_of(0, protection=Standing.PROTECTED, protection_if_clean=Standing.PROTECTED),))
    assert (found.verdict, found.reason) == (V.PROTECTED, Why.CARD_PROTECTED)


def test_node_unknown_outweighs_claims() -> None:
    assert verdict(claims=[RUNNING], unknowns=[unknown()]).verdict is V.UNKNOWN


@pytest.mark.parametrize("standing", [Standing.PROTECTED, Standing.UNKNOWN])
def test_one_claim_that_protects_outweighs_candidates(standing: Standing) -> None:
    assert verdict(claims=[claim(), claim(standing, uid="pod-2")]).verdict.value == standing.value


def test_the_claim_that_protects_is_the_reason() -> None:
    assert verdict(claims=[claim(), RUNNING]).reason == ClaimReason.RUNNING


def test_candidates_do_not_stand_in_the_way() -> None:
    assert verdict(claims=[claim()]).verdict is V.CANDIDATE


def test_pod_that_may_open_any_device_protects_until_the_scan_is_clean() -> None:
    assert verdict({"descriptors": Finding.UNKNOWN}, claims=[PRIVILEGED]).reason == ClaimReason.PRIVILEGED
    assert verdict(claims=[PRIVILEGED]).verdict is V.CANDIDATE
    found = verdict(claims=[PRIVILEGED, RUNNING])
    assert (found.verdict, found.reason) == (V.PROTECTED, ClaimReason.RUNNING)


# --- whose cards -----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("refusal", [one for one in CardRefusal if one is not CardRefusal.TEMPLATE_UNKNOWN])
def test_a_card_that_is_not_hamis_is_observed_alone_unless_all_are_managed(refusal: CardRefusal) -> None:
    cards = (unmanaged(card_of(0), refusal),)
    found = verdict(cards=cards)
    assert (found.verdict, found.reason, found.sentence) == (V.UNMANAGED, refusal, REFUSAL_TEXT[refusal])
    assert verdict(cards=cards, reach=Reach(Manage.ALL)).verdict is V.CANDIDATE


def test_a_card_of_which_it_is_not_said_that_it_is_hamis_is_not() -> None:
    assert verdict(cards=(card_of(0, is_managed=False),)).reason == Why.NOT_HAMIS


def test_managing_all_takes_other_templates_too_and_no_less_evidence() -> None:
    everything = Reach(Manage.ALL)
    assert verdict({"refusal": CardRefusal.TEMPLATE_UNKNOWN}, reach=everything).verdict is V.CANDIDATE
    for vnpu, look, reason in UNKNOWNS.values():
        assert verdict(vnpu, **look, reach=everything).reason == reason
    assert verdict(claims=[RUNNING], reach=everything).verdict is V.PROTECTED
    assert verdict({"pin": PinHold.PINNED}, reach=everything).verdict is V.PINNED


@pytest.mark.parametrize(
    ("cards", "is_selected"),
    [
        (None, True),
        ({"p000"}, True),
        ({die_of(0)}, True),
        ({"p001"}, False),
        ({die_of(1)}, False),
        (set(), False),
        ({""}, False),
    ],
)
@pytest.mark.parametrize("manage", Manage)
def test_only_chosen_cards_are_reclaimed_on(cards: set[str] | None, is_selected: bool, manage: Manage) -> None:
    found = verdict(reach=Reach(manage, None if cards is None else frozenset(cards)))
    assert (found.verdict, found.reason) == ((V.CANDIDATE, Why.JUST_SEEN) if is_selected else (V.UNMANAGED, Why.NOT_SELECTED))


def test_a_card_without_a_die_is_not_chosen_by_an_empty_name() -> None:
    assert not Reach(cards=frozenset({""})).selects(card_of(0, die=""))


# --- what sets back --------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("reset", "vnpu", "manage", "is_set_back"),
    [
        (Reset(Scope.CARD, "x", "p000"), {}, Manage.HAMI, True),
        (Reset(Scope.CARD, "x", "p001"), {}, Manage.HAMI, False),
        (Reset(Scope.CARD, "x", "p000", unless_clean=True), {}, Manage.HAMI, False),
        (Reset(Scope.CARD, "x", "p000", unless_clean=True), {"descriptors": Finding.UNKNOWN}, Manage.HAMI, True),
        (Reset(Scope.CARD, "card-not-registered", "p000"), {}, Manage.HAMI, True),
        (Reset(Scope.CARD, "card-not-registered", "p000"), {}, Manage.ALL, False),
        (Reset(Scope.CARD, "handshake-odd", "p000"), {}, Manage.ALL, True),
        (Reset(Scope.NODE, "card-not-registered"), {}, Manage.ALL, True),
    ],
)
def test_whom_a_reset_concerns(reset: Reset, vnpu: dict[str, Any], manage: Manage, is_set_back: bool) -> None:
    desk = ReclaimDesk(cards=(unmanaged(card_of(0)), card_of(1)), reach=Reach(manage))
    assert concerns(reset, vnpu_of(**vnpu), desk.see(1.0)) is is_set_back


# --- what counts -----------------------------------------------------------------------------------------------------------------------
def test_reasons_of_the_wait() -> None:
    desk = ReclaimDesk()
    told = [(found.verdict, found.reason) for found in (desk.look() for _ in range(11))]
    assert told == [
        (V.CANDIDATE, Why.JUST_SEEN),
        *[(V.CONFIRMING, Why.WAITING_CONFIRMATIONS)] * 2,
        *[(V.CONFIRMING, Why.WAITING_GRACE)] * 7,
        (V.ELIGIBLE, Why.CONFIRMED),
    ]
    found = desk.look(is_deferred=True)
    assert (found.verdict, found.reason) == (V.DEFERRED, Why.LOCKED)


def test_times_are_told_by_the_clock_of_the_look() -> None:
    desk = ReclaimDesk()
    first = desk.look()
    assert desk.last is not None
    assert first.first_seen_usec == first.grace_start_usec == desk.last.at_usec
    assert first.eligible_at_usec == desk.last.at_usec + 600_000_000
    later = desk.look()
    assert (later.first_seen_usec, later.grace_start_usec) == (first.first_seen_usec, first.grace_start_usec)


def test_eligible_at_waits_for_missing_confirmations_too() -> None:
    desk = ReclaimDesk()
    desk.look()
    found = desk.look(590)
    assert desk.last is not None
    assert found.eligible_at_usec == desk.last.at_usec + 120_000_000


def test_first_sight_is_told_while_it_is_shielded() -> None:
    desk = ReclaimDesk()
    first = desk.look(claims=[RUNNING])
    assert first.first_seen_usec
    assert (first.grace_start_usec, first.eligible_at_usec, first.confirmations) == (0, 0, 0)


def test_a_look_that_was_not_taken_in_releases_nothing() -> None:
    desk = ReclaimDesk()
    desk.look()
    desk.wait(900)
    later = desk.see(desk.now + 60)
    assert judge(desk.progress, later, desk.bounds)["v0100"].reason == Why.NOT_FOLLOWED
    assert judge(Progress(), later, desk.bounds)["v0100"].reason == Why.NOT_FOLLOWED
    earlier = desk.see(desk.now - 1)
    assert judge(desk.progress, earlier, desk.bounds)["v0100"].reason == Why.OUTDATED
    shielded = step(desk.progress, desk.see(desk.now + 60, claims=[RUNNING]), desk.bounds)
    assert judge(shielded, later, desk.bounds)["v0100"].reason == Why.NOT_FOLLOWED


def test_every_reason_has_a_sentence() -> None:
    assert set(WHY_TEXT) == set(Why)
    assert all(text.endswith(".") for text in WHY_TEXT.values())


# --- how a look is put together --------------------------------------------------------------------------------------------------------
def view(vdev: int = 100, **more: Any) -> VnpuView:
    facts = vnpu_of(vdev)
    made = VnpuView(
        name=facts.name,
        vdev=vdev,
        identity=facts.identity,
        card=facts.card,
        template=facts.template,
        vfid=(vdev - 100) % 16 + 1,
        cores=5.0,
        node=f"/dev/vdavinci{vdev}",
        use=Use.IDLE,
        verdict=ViewVerdict.UNKNOWN,
        reason=Reason.OK,
        text="",
        first_seen_usec=1,
        grace_start_usec=0,
        confirmations=0,
        eligible_at_usec=0,
    )
    return replace(made, **more)


def picture(*views: VnpuView, **more: Any) -> Picture:
    cards = (card_view(0, die_of(0)), card_view(1, die_of(1)))
    return Picture(cards=cards, vnpus=views or (view(),), **more)


def sight(vdev: int = 100, **findings: Finding) -> VnpuSight:
    found = {"descriptors": Finding.CLEAN, "bundles": Finding.CLEAN, "uda": Finding.CLEAN, **findings}
    reasons = () if set(found.values()) == {Finding.CLEAN} else ("pid 7",)
    return VnpuSight(AskedVnpu(vdev, 236, vdev), **found, reasons=reasons)


def look_of(shown: Picture | None = None, sights: Any = None, pins: PinReport | None = NO_PINS, **more: Any) -> Look:
    sights = {"v0100": sight()} if sights is None else sights
    return take_look(shown or picture(), snapshot_of(10_000.0, (card_of(0), card_of(1))), sights, pins, **more)


def judged(look: Look) -> Judgement:
    return judge(step(Progress(), look, ReclaimDesk().bounds), look, ReclaimDesk().bounds)[look.vnpus[0].name]


def test_a_look_takes_over_what_the_picture_says() -> None:
    look = look_of()
    assert look.vnpus == (vnpu_of(100),)
    assert look.at == 10_000.0
    assert judged(look).verdict is V.CANDIDATE


@pytest.mark.parametrize("source", ["descriptors", "bundles", "uda"])
@pytest.mark.parametrize(("finding", "expected"), [(Finding.HELD, V.OWNED), (Finding.UNKNOWN, V.UNKNOWN)])
def test_every_source_of_the_host_counts(source: str, finding: Finding, expected: Verdict) -> None:
    found = judged(look_of(sights={"v0100": sight(**{source: finding})}))
    assert found.verdict is expected
    assert "pid 7" in found.sentence


@pytest.mark.parametrize(("finding", "expected"), [(Finding.CLEAN, V.CANDIDATE), (Finding.HELD, V.OWNED), (Finding.UNKNOWN, V.UNKNOWN)])
def test_a_finding_alone_stands_for_every_source(finding: Finding, expected: Verdict) -> None:
    assert judged(look_of(sights={"v0100": finding})).verdict is expected


def test_what_was_not_asked_about_is_unknown() -> None:
    look = look_of(sights={})
    assert (look.vnpus[0].host, look.vnpus[0].descriptors) == (Finding.UNKNOWN, Finding.UNKNOWN)
    assert judged(look).reason == Why.HOST_NOT_ASKED


def test_what_is_said_of_another_vnpu_is_not_taken() -> None:
    assert judged(look_of(sights={"v0100": sight(101)})).reason == Why.HOST_NOT_ASKED


@pytest.mark.parametrize("finding", Finding)
def test_descriptors_are_told_apart_from_the_whole(finding: Finding) -> None:
    for given in (sight(descriptors=finding, uda=Finding.HELD), finding):
        assert look_of(sights={"v0100": given}).vnpus[0].descriptors is finding


def test_a_fault_of_the_picture_is_unknown() -> None:
    found = judged(look_of(picture(view(reason=Reason.VNPU_TEMPLATE_UNKNOWN, text="No template."))))
    assert (found.verdict, found.reason, found.sentence) == (V.UNKNOWN, Reason.VNPU_TEMPLATE_UNKNOWN, "No template.")


@pytest.mark.parametrize("template", ["vir05_1c_16g", ""])
def test_a_template_that_is_not_hamis_for_that_chip_is_unmanaged(template: str) -> None:
    assert judged(look_of(picture(view(template=template)))).reason == CardRefusal.TEMPLATE_UNKNOWN


@pytest.mark.parametrize("chip", ["Ascend", "", "Ascend 910B3"])
def test_a_chip_that_has_no_such_template_makes_it_unmanaged(chip: str) -> None:
    shown = Picture(cards=(card_view(0, die_of(0), chip=chip),), vnpus=(view(),))
    assert judged(look_of(shown)).reason == CardRefusal.TEMPLATE_UNKNOWN


def test_callers_tell_vnpus_apart() -> None:
    look = look_of(identities={"v0100": "mine"})
    assert look.vnpus[0].identity == "mine"
    assert judged(look_of(identities={})).reason == Why.IDENTITY_UNKNOWN


def test_two_that_nothing_tells_apart_are_unknown() -> None:
    shown = picture(view(100), view(101))
    look = look_of(shown, {"v0100": sight(), "v0101": sight(101)}, identities={"v0100": "same", "v0101": "same"})
    assert {one.reason for one in judge(step(Progress(), look, ReclaimDesk().bounds), look, ReclaimDesk().bounds).values()} == {
        Why.IDENTITY_SHARED
    }
    assert step(Progress(), look, ReclaimDesk().bounds).vnpus == {}


def test_pins_of_every_standing_hold() -> None:
    shown = picture(lasting={"v0100": "abc"})
    where = Sight(shown.cards, shown.vnpus, shown.lasting)
    target = f"{die_of(0)}/100/vir05_1c_8g"
    for pin, expected in (
        (Pin(target, "", 0, 0, "abc"), PinHold.PINNED),
        (Pin(target, "", 0, 0, "another"), PinHold.PINNED),
        (Pin(die_of(0), "", 0, 0), PinHold.PINNED),
        (Pin(die_of(1), "", 0, 0), PinHold.NONE),
    ):
        assert look_of(shown, pins=judge_pins([pin], where)).vnpus[0].pin is expected
    doubtful = picture(view(reason=Reason.VNPU_USE_UNKNOWN))
    report = judge_pins([Pin(target, "", 0, 0, "abc")], Sight(doubtful.cards, doubtful.vnpus, {}))
    assert look_of(doubtful, pins=report).vnpus[0].pin is PinHold.MAYBE
    assert judged(look_of(pins=None)).reason == Why.PINS_UNREADABLE


def test_containers_that_name_a_vnpu_are_kept() -> None:
    one = ContainerSight("abc", "k8s.io", Life.LIVE, ContainerType.CONTAINER, ("u",), (), "", (100,), False, False)
    assert container_key(one) == "k8s.io/abc"
    look = look_of(containers=[one, replace(one, id="def", vdevs=(101,))], living=frozenset({"k8s.io/abc"}))
    assert look.vnpus[0].holders == {"k8s.io/abc"}


CONTAINER = ContainerSight("abc", "moby", Life.UNKNOWN, ContainerType.UNKNOWN, (), (), "", (), False, False)


@pytest.mark.parametrize(
    ("more", "is_named"),
    [
        ({}, False),
        ({"cards": (0,)}, True),
        ({"cards": (0, 1)}, True),
        ({"cards": (1,)}, False),
        ({"cards": None}, True),
        ({"template": "vir05_1c_8g"}, True),
        ({"template": "vir05_1c_8g", "cards": (1,)}, False),
        ({"has_all_devices": True}, False),
    ],
)
@pytest.mark.parametrize("kind", [ContainerType.UNKNOWN, ContainerType.CONTAINER])
def test_a_card_that_a_container_names_is_protected(more: dict[str, Any], is_named: bool, kind: ContainerType) -> None:
    one = replace(CONTAINER, type=kind, **more)
    found = judged(look_of(containers=[CONTAINER, one]))
    assert found.reason == (Why.NAMED_BY_CONTAINER if is_named else Why.JUST_SEEN)
    assert found.verdict is (V.PROTECTED if is_named else V.CANDIDATE)


def test_what_is_unknown_of_the_node_outweighs_a_container_that_names_the_card() -> None:
    assert verdict({"card_named_by": "moby/abc"}, unknowns=[unknown()]).verdict is V.UNKNOWN


@pytest.mark.parametrize("manage", Manage)
def test_a_vnpu_without_a_node_is_observed_whatever_is_managed(manage: Manage) -> None:
    assert judged(look_of(picture(view(node="")), reach=Reach(manage))).reason == Why.NO_NODE


def test_without_pods_the_moment_is_the_callers() -> None:
    look = take_look(picture(), None, {}, PinReport(), at=5.0, at_usec=7)
    assert (look.at, look.at_usec, look.begun, look.is_deferred, look.card("p000")) == (5.0, 7, 5.0, False, None)


# --- whom the host is searched for -----------------------------------------------------------------------------------------------------
def last(verdict: Verdict, reason: str = "", **more: Any) -> Judgement:
    return Judgement("v0100", "", "p000", 100, verdict, reason, "", **more)


@pytest.mark.parametrize(
    ("before", "is_asked"),
    [
        (None, True),
        (last(V.CANDIDATE), True),
        (last(V.CONFIRMING), True),
        (last(V.ELIGIBLE), True),
        (last(V.DEFERRED), True),
        (last(V.IN_USE), True),
        (last(V.OWNED, Why.HELD_ON_HOST), True),
        (last(V.UNKNOWN, Why.HOST_UNKNOWN), True),
        (last(V.UNKNOWN, Why.HOST_NOT_ASKED), True),
        (last(V.UNKNOWN, Why.NOT_EVALUATED), True),
        (last(V.UNKNOWN, Why.NOT_FOLLOWED), True),
        (last(V.UNKNOWN, Why.OUTDATED), True),
        (last(V.PROTECTED, ClaimReason.PRIVILEGED), True),
        (last(V.PROTECTED, ClaimReason.CONTAINER_ALIVE), True),
        (last(V.PROTECTED, ClaimReason.WAITING_UNSAID), True),
        (last(V.PROTECTED, ClaimReason.RUNNING), False),
        (last(V.UNKNOWN, "lease-stale"), False),
        (last(V.UNMANAGED, Why.NOT_SELECTED), False),
        (last(V.PINNED, Why.PINNED), False),
    ],
)
def test_the_host_is_searched_where_that_may_decide(before: Judgement | None, is_asked: bool) -> None:
    found = ask_about(picture(), PinReport(), {} if before is None else {"v0100": before})
    assert found == ({"v0100"} if is_asked else set())


@pytest.mark.parametrize(
    ("before", "is_asked"),
    [
        (last(V.IN_USE, Why.DRIVER_SAYS_USED, beside=Finding.UNKNOWN), True),
        (last(V.IN_USE, Why.DRIVER_SAYS_USED, beside=Finding.CLEAN), True),
        (last(V.IN_USE, Why.DRIVER_SAYS_USED, beside=Finding.HELD), False),
        (last(V.CANDIDATE), False),
        (None, False),
    ],
)
def test_the_host_is_searched_for_who_uses_a_vnpu_where_only_the_driver_says_so(before: Judgement | None, is_asked: bool) -> None:
    before_it = {} if before is None else {"v0100": before}
    assert ask_about(picture(view(use=Use.IN_USE)), PinReport(), before_it) == ({"v0100"} if is_asked else set())
    assert ask_about(picture(view(use=Use.UNKNOWN)), PinReport(), before_it) == set()
    assert ask_about(picture(view(use=Use.IN_USE)), None, before_it) == set(), "it may be pinned"


@pytest.mark.parametrize(
    ("more", "beside"),
    [
        ({}, Finding.CLEAN),
        ({"sights": {"v0100": Finding.CLEAN}}, Finding.CLEAN),
        ({"sights": {"v0100": sight(uda=Finding.HELD)}}, Finding.CLEAN),
        ({"sights": {"v0100": sight(bundles=Finding.HELD)}}, Finding.UNKNOWN),
        ({"sights": {"v0100": sight(descriptors=Finding.HELD)}}, Finding.UNKNOWN),
        ({"sights": {}}, Finding.UNKNOWN),
        ({"containers": [replace(CONTAINER, cards=(0,))]}, Finding.HELD),
        ({"containers": [replace(CONTAINER, vdevs=(100,))]}, Finding.HELD),
        ({"containers": [replace(CONTAINER, cards=(1,), vdevs=(101,))]}, Finding.CLEAN),
    ],
)
def test_what_there_is_beside_the_drivers_flag_is_told(more: dict[str, Any], beside: Finding) -> None:
    found = judged(look_of(picture(view(use=Use.IN_USE)), **more))
    assert (found.verdict, found.reason, found.beside) == (V.IN_USE, Why.DRIVER_SAYS_USED, beside)


@pytest.mark.parametrize("more", [{"use": Use.IN_USE}, {"use": Use.UNKNOWN}, {"reason": Reason.VNPU_USE_UNKNOWN}])
def test_the_host_is_not_searched_for_what_stays_anyway(more: dict[str, Any]) -> None:
    assert ask_about(picture(view(**more)), PinReport(), {}) == set()


def test_the_host_is_not_searched_for_what_is_or_may_be_pinned() -> None:
    shown = picture(lasting={"v0100": "abc"})
    pins = judge_pins([Pin(die_of(0), "", 0, 0)], Sight(shown.cards, shown.vnpus, shown.lasting))
    assert ask_about(shown, pins, {}) == set()
    assert ask_about(shown, None, {}) == set()


def test_pods_are_listed_while_anything_is_or_may_be_idle() -> None:
    assert picture().may_have_idle
    assert picture(view(use=Use.UNKNOWN)).may_have_idle
    assert not picture(view(use=Use.IN_USE)).may_have_idle
    assert not Picture().may_have_idle
