"""What is published of who owns what: nothing that is old, of another card or was not asked; nothing foreign but to administrators."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.cluster.answers import Failure
from devward.cluster.claimants import Claimant, Trace
from devward.cluster.claims import Claim, ClaimReason, Standing
from devward.cluster.evidence import Doubt, Finding, SourceState
from devward.cluster.hami import REFUSAL_TEXT, CardRefusal
from devward.cluster.kubelet_facts import KubeletScan
from devward.cluster.managers import Drivers
from devward.cluster.node import NodeRefusal
from devward.cluster.observations import ROWS, Look, Scope
from devward.cluster.ownership import LASTS, SUBJECT, Ownership
from devward.cluster.parts import Part, Parts, Source
from devward.cluster.statement import AskedVnpu, SourceSight, VnpuSight
from devward.cluster.views import CardState, Snapshot, SourceUse, Unknown
from devward.model import Finding as Told
from devward.npu.inventory import Picture
from devward.npu.views import UNKNOWN_NUMBER, CardHealth, CardView, Management, Protection
from devward.reasons import REASON_TEXT, Reason
from sim.pod_desk import HostSays, annotated, container, listing, pod
from sim.recorded_cluster import DIES, WORD
from sim.snapshot_desk import SnapshotDesk, card_view

AT = 5000.0
AT_USEC = 1_800_000_000_000_000
CARD = card_view(0, DIES[0])
NONE = CardState("p000", 0, DIES[0], Standing.NONE, Standing.NONE, claimed_cores=0.0, is_managed=True)
RUNNING = Claim("uid-a", Standing.PROTECTED, ClaimReason.RUNNING, since=AT - 60)
FAILED = Claim("uid-b", Standing.CANDIDATE, ClaimReason.CANNOT_START)
PRIVILEGED = Claim("uid-c", Standing.PROTECTED, ClaimReason.PRIVILEGED, unless_clean=True)


def snapshot(*cards: CardState, unknowns: tuple[Unknown, ...] = (), **more: Any) -> Snapshot:
    return Snapshot(AT, AT_USEC, cards or (NONE,), unknowns, (), (), **more)


def owned(*cards: CardState, unknowns: tuple[Unknown, ...] = (), is_asked: bool = True, **more: Any) -> Ownership:
    return Ownership(snapshot(*cards, unknowns=unknowns), is_asked=is_asked, **more)


def unknown(reason: str, who: str = Source.NODE, since: int = 7, text: str = "", scope: Scope = Scope.NODE, card: str = "") -> Unknown:
    return Unknown(scope, reason, who, since, text or f"about {reason}", card)


def claimed(*claims: Claim, if_clean: Standing = Standing.NONE, **more: Any) -> CardState:
    standing = next((claim.standing for claim in claims), Standing.NONE)
    return replace(NONE, protection=standing, protection_if_clean=if_clean, claims=claims, **more)


def as_told(owner: Ownership, card: CardView = CARD, now: float = AT) -> tuple[Management, Protection, tuple[str, ...], float]:
    shown = owner.dressed(card, now)
    assert replace(shown, managed=card.managed, protection=card.protection, claims=(), claimed_cores=card.claimed_cores) == card
    return shown.managed, shown.protection, shown.claims, shown.claimed_cores


NOTHING_TOLD = (Management.UNKNOWN, Protection.UNKNOWN, (), UNKNOWN_NUMBER)

# --- a card ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("standing", "protection"),
    [
        (Standing.PROTECTED, Protection.PROTECTED),
        (Standing.UNKNOWN, Protection.UNKNOWN),
        (Standing.CANDIDATE, Protection.CANDIDATE),
        (Standing.NONE, Protection.NONE),
    ],
)
def test_each_standing_is_published_by_its_name(standing: Standing, protection: Protection) -> None:
    assert as_told(owned(replace(NONE, protection=standing))) == (Management.MANAGED, protection, (), 0.0)


def test_claims_are_uids_each_once_and_in_order() -> None:
    twice = replace(RUNNING, reason=ClaimReason.NAMED_IN_ENVIRONMENT)
    told = as_told(owned(claimed(FAILED, RUNNING, twice, claimed_cores=10.0)))
    assert told == (Management.MANAGED, Protection.CANDIDATE, ("uid-a", "uid-b"), 10.0)


def test_a_uid_is_fit_to_be_shown() -> None:
    assert as_told(owned(claimed(replace(RUNNING, uid="a\x1b[0m"))))[2] == ("a\\x1b[0m",)


def test_cores_that_are_not_known_are_not_made_up() -> None:
    assert as_told(owned(replace(NONE, claimed_cores=None)))[3] == UNKNOWN_NUMBER


@pytest.mark.parametrize(
    ("state", "management"),
    [
        (NONE, Management.MANAGED),
        (replace(NONE, is_managed=False, unmanaged=CardRefusal.NOT_REGISTERED), Management.UNMANAGED),
        (replace(NONE, is_managed=False), Management.UNKNOWN),
    ],
)
def test_whose_the_card_is(state: CardState, management: Management) -> None:
    assert as_told(owned(state))[0] is management
    assert as_told(owned(state, is_asked=False))[0] is management, "the Node is asked at each look"


def test_before_the_first_look_a_card_is_as_it_is() -> None:
    assert Ownership().dressed(CARD, AT) is CARD
    assert Ownership().state_of(CARD, AT) is None


def test_where_pods_were_not_listed_nothing_is_said_of_them() -> None:
    state = claimed(RUNNING, if_clean=Standing.PROTECTED, claimed_cores=5.0)
    owner = owned(state, is_asked=False)
    assert as_told(owner) == (Management.MANAGED, Protection.NOT_EVALUATED, (), UNKNOWN_NUMBER)
    told = owner.describe_card(CARD, AT, full=True)
    assert (told["claims"], told["protection"], told["protection_if_clean"]) == ([], "not-evaluated", "not-evaluated")


@pytest.mark.parametrize("now", [AT, AT + LASTS])
def test_a_look_lasts_for_as_long_as_three_of_them_take(now: float) -> None:
    assert as_told(owned(), now=now) == (Management.MANAGED, Protection.NONE, (), 0.0)


@pytest.mark.parametrize("now", [AT + LASTS + 0.001, AT - 0.001, AT - 1e9, float("nan")], ids=["too old", "clock back", "far back", "nan"])
def test_a_look_of_another_time_says_nothing(now: float) -> None:
    owner = owned()
    assert owner.state_of(CARD, now) is None
    assert as_told(owner, now=now) == NOTHING_TOLD
    assert owner.describe_card(CARD, now, full=True) == {"managed": "unknown", "protection": "unknown", "claims": []}
    assert as_told(owned(is_asked=False), now=now) == (Management.UNKNOWN, Protection.NOT_EVALUATED, (), UNKNOWN_NUMBER)


OTHERS = [
    card_view(0, DIES[1]),
    card_view(0, ""),
    replace(card_view(1, DIES[0]), name="p000"),
    card_view(-1, DIES[0], name="p000"),
    card_view(1, DIES[1]),
]


@pytest.mark.parametrize("card", OTHERS, ids=["another die", "no die", "another id", "no id", "another name"])
def test_a_look_at_another_card_says_nothing_of_this_one(card: CardView) -> None:
    assert as_told(owned(), card) == NOTHING_TOLD
    assert owned().objection(card, AT) == (Reason.VNPU_CLAIMS_UNKNOWN, "what was known of it is too old")


def test_each_card_is_told_by_its_own_state() -> None:
    second = CardState("p001", 1, DIES[1], Standing.CANDIDATE, Standing.CANDIDATE, (FAILED,))
    owner = owned(NONE, second)
    assert [as_told(owner, card)[1:3] for card in (CARD, card_view(1, DIES[1]))] == [
        (Protection.NONE, ()),
        (Protection.CANDIDATE, ("uid-b",)),
    ]


def test_a_die_id_is_the_same_in_either_case() -> None:
    assert as_told(owned(), card_view(0, DIES[0].lower()))[0] is Management.MANAGED


# --- whether a vNPU may be a Pod's ----------------------------------------------------------------------------------------


def test_a_card_without_claims_is_no_pods() -> None:
    assert owned().objection(CARD, AT) is None
    assert owned(claimed(PRIVILEGED)).objection(CARD, AT) is None, "whether that Pod has it open is asked of the vNPU"


OBJECTIONS: dict[str, tuple[Callable[[], Ownership], CardView | None, float]] = {
    "never looked": (Ownership, CARD, AT),
    "never looked, and yet listed": (lambda: Ownership(is_asked=True), CARD, AT),
    "not listed": (lambda: owned(is_asked=False), CARD, AT),
    "node unknown": (lambda: owned(unknowns=(unknown("api-closed"),)), CARD, AT),
    "no card": (owned, None, AT),
    "too old": (owned, CARD, AT + LASTS + 1),
    "clock back": (owned, CARD, AT - 1),
    "another card": (owned, card_view(0, DIES[1]), AT),
    "no cards were seen": (lambda: Ownership(Snapshot(AT, AT_USEC, (), (), (), ()), is_asked=True), CARD, AT),
    "unknown": (lambda: owned(replace(NONE, protection_if_clean=Standing.UNKNOWN)), CARD, AT),
    "protected by nobody": (lambda: owned(replace(NONE, protection_if_clean=Standing.PROTECTED)), CARD, AT),
}


@pytest.mark.parametrize(("owner", "card", "now"), OBJECTIONS.values(), ids=OBJECTIONS)
def test_what_is_not_known_is_an_objection(owner: Callable[[], Ownership], card: CardView | None, now: float) -> None:
    found = owner().objection(card, now)
    assert found is not None
    assert found[0] is Reason.VNPU_CLAIMS_UNKNOWN


@pytest.mark.parametrize("claim", [RUNNING, FAILED, replace(RUNNING, standing=Standing.UNKNOWN, reason=ClaimReason.NOTHING_SHOWN)])
def test_whatever_a_claim_says_the_card_is_claimed(claim: Claim) -> None:
    assert owned(claimed(claim)).objection(CARD, AT) == (Reason.VNPU_NPU_CLAIMED, claim.uid)
    assert owned(claimed(PRIVILEGED, claim)).objection(CARD, AT) == (Reason.VNPU_NPU_CLAIMED, claim.uid)


def test_an_objection_names_each_pod_once() -> None:
    twice = replace(RUNNING, reason=ClaimReason.NAMED_IN_ENVIRONMENT)
    assert owned(claimed(FAILED, RUNNING, twice)).objection(CARD, AT) == (Reason.VNPU_NPU_CLAIMED, "uid-a, uid-b")


def test_an_unknown_of_a_card_alone_does_not_make_the_node_unknown() -> None:
    of_card = unknown("npu-in-doubt", scope=Scope.CARD, card="p001", text="not healthy")
    assert owned(unknowns=(of_card,)).objection(CARD, AT) is None
    assert owned(unknowns=(of_card,)).blocked == ()


# --- the node -------------------------------------------------------------------------------------------------------------


def test_nothing_is_blocked_before_the_first_look() -> None:
    nothing = Ownership()
    assert (nothing.blocked, nothing.blocked_reasons, nothing.blocked_since_usec, nothing.findings) == ((), (), 0, ())
    assert (nothing.describe_node(full=True), nothing.describe([CARD], AT, full=True)) == (None, None)
    assert nothing.describe_sight("v0100", full=True) is None


def test_what_has_one_cause_is_blocked_once_and_since_the_first_of_it() -> None:
    text = "The connection was closed."
    alike = [unknown("api-closed", who, since, text) for who, since in ((Source.LEASE, 90), (Source.NODE, 50), (Source.PODS, 70))]
    owner = owned(unknowns=(*alike, unknown("api-closed", text="another cause"), unknown("torn", Source.CHECKPOINT, 80)))
    assert sorted(one.sentence for one in owner.blocked) == sorted([text, "another cause", "about torn"])
    assert owner.blocked_reasons == ("api-closed", "torn")
    assert owner.blocked_since_usec == 7
    assert owned(unknowns=tuple(alike)).blocked_since_usec == 50


def test_a_pod_that_is_to_blame_is_named_by_its_uid_and_a_source_is_not() -> None:
    unknowns = tuple(unknown("annotation-malformed", who) for who in ("uid-b", "uid-a", "uid-b"))
    sources = tuple(unknown(f"of-{source}", source) for source in Source)
    owner = owned(unknowns=(*unknowns, *sources))
    assert set(owner.blocked_reasons) == {
        "annotation-malformed uid-b",
        "annotation-malformed uid-a",
        *(f"of-{source}" for source in Source),
    }


def test_what_blocks_is_fit_to_be_shown() -> None:
    assert owned(unknowns=(unknown("card-not-known", "a\nb"),)).blocked_reasons == ("card-not-known a\\x0ab",)


def managers(desk: SnapshotDesk, pods: bytes, drivers: Drivers) -> Ownership:
    """Look at a node on which somebody besides HAMi may be at work."""
    said = desk.look("00", lambda parts: replace(parts, pods=replace(parts.pods, body=pods), drivers=replace(parts.drivers, value=drivers)))
    return Ownership(said, is_asked=True)


def test_of_another_manager_only_the_pods_uid_or_nothing_is_published() -> None:
    desk = SnapshotDesk()
    desk.settle()
    foreign = pod("uid-f", annotations={"huawei.com/AscendReal": "x"})
    owner = managers(desk, listing(foreign), Drivers(frozenset({"npu.huawei.com"})))
    assert owner.blocked_reasons == ("foreign-manager", "foreign-manager uid-f")
    owner = managers(desk, listing(pod("uid-g", spec={"resourceClaims": [{"name": "x"}]})), Drivers(unreadable=True))
    assert owner.blocked_reasons == ("resource-claims-unreadable uid-g",)


@pytest.mark.parametrize("reason", [Look.NOT_LISTED, NodeRefusal.LEASE_UNSEEN])
def test_what_a_seldom_look_cannot_know_does_not_block_it(reason: str) -> None:
    assert owned(unknowns=(unknown(reason),), is_asked=False).blocked_reasons == ()
    assert owned(unknowns=(unknown(reason),), is_asked=False).blocked_since_usec == 0
    assert owned(unknowns=(unknown(reason),)).blocked_reasons == (reason,)


PASSING = [Look.PART_OLD, Look.PART_AHEAD, Look.NODE_ADOPTED, NodeRefusal.LEASE_UNSEEN, NodeRefusal.KUBELET_YOUNG, Look.NOT_LISTED]


@pytest.mark.parametrize("reason", PASSING)
def test_what_passes_by_itself_is_no_finding_and_blocks_all_the_same(reason: str) -> None:
    owner = owned(unknowns=(unknown(reason, since=AT_USEC - 899_999_999),))
    assert (owner.blocked_reasons, owner.findings) == ((reason,), ())
    stuck = owned(unknowns=(unknown(reason, since=AT_USEC - 900_000_000),))
    assert [finding.code for finding in stuck.findings] == [Reason.OWNERS_UNKNOWN], "what does not pass is one"


@pytest.mark.parametrize("reason", sorted(set(ROWS) - set(PASSING) - {Look.MEMORY_UNSAVED}))
def test_all_else_is_a_finding(reason: str) -> None:
    assert owned(unknowns=(unknown(reason),)).findings == (Told(Reason.OWNERS_UNKNOWN, SUBJECT, f"about {reason} ({reason})"),)


def test_a_reason_is_one_finding_however_many_have_it() -> None:
    owner = owned(unknowns=tuple(unknown("annotation-malformed", f"uid-{number}", text=f"Pod {number}") for number in range(3)))
    assert [finding.text for finding in owner.findings] == ["Pod 0 (annotation-malformed)"]


def test_what_cannot_be_kept_is_a_finding_of_its_own() -> None:
    unsaved = unknown(Look.MEMORY_UNSAVED, Source.MEMORY)
    kept_not = Told(Reason.OWNERS_NOT_KEPT, SUBJECT, f"about {Look.MEMORY_UNSAVED}")
    assert owned(unknowns=(unsaved,)).findings == (kept_not,)
    assert owned(unknowns=(unsaved, unknown("kubelet-not-found")), is_without_kubelet=True).findings == (kept_not,)


def test_a_host_without_a_kubelet_has_nothing_to_be_mended() -> None:
    owner = owned(unknowns=(unknown("kubelet-not-found"),), is_without_kubelet=True)
    assert (owner.blocked_reasons, owner.findings) == (("kubelet-not-found",), ())


def test_a_certificate_that_nobody_rotates_is_a_finding_whatever_else() -> None:
    owner = owned(certificate_warning="It expires soon.", is_without_kubelet=True)
    assert owner.findings == (Told(Reason.CLUSTER_CERTIFICATE, SUBJECT, "It expires soon."),)
    assert Ownership(certificate_warning="x").findings[0].code is Reason.CLUSTER_CERTIFICATE


# --- as JSON --------------------------------------------------------------------------------------------------------------
MARK = "XYZZY"
ASKED = AskedVnpu(100, 236, 100)


def marked() -> Ownership:
    """Return one with the mark in every text that is somebody else's."""
    names = [f"{MARK}-{number}" for number in range(20)]
    text = iter(names)
    claims = (
        replace(RUNNING, detail=next(text)),
        Claim("uid-d", Standing.UNKNOWN, ClaimReason.ANNOTATION_MALFORMED, next(text)),
        Claim("uid-n", Standing.CANDIDATE, ClaimReason.CANNOT_START, next(text)),
    )
    claimants = (Claimant("uid-a", next(text), next(text), (Trace.API, Trace.HOST)), Claimant("uid-n", "", "", (Trace.MEMORY,)))
    doubts = (Doubt("process-unreadable", next(text), 13), Doubt("bundle-odd", next(text)))
    return Ownership(
        Snapshot(
            AT,
            AT_USEC,
            (claimed(*claims, is_managed=False, unmanaged=CardRefusal.NOT_REGISTERED),),
            (
                unknown("card-not-known", "uid-d", text=next(text)),
                unknown("made-up", Source.HOST, text=next(text)),
                unknown("npu-in-doubt", Source.NPUS, text=next(text), scope=Scope.CARD, card="p000"),
                unknown("npu-in-doubt", Source.NPUS, text="of another card", scope=Scope.CARD, card="p001"),
            ),
            (),
            (SourceUse(Source.NODE, 1.23456, is_read=True), SourceUse(Source.PODS, 2.0, is_read=False)),
            claimants=claimants,
            is_deferred=True,
        ),
        is_asked=True,
        listed_usec=AT_USEC,
        sights={"v0100": VnpuSight(ASKED, Finding.HELD, Finding.CLEAN, Finding.UNKNOWN, (next(text), next(text)))},
        host={"bundles": SourceSight(SourceState.UNREADABLE, doubts, 4)},
    )


def everything(owner: Ownership, *, full: bool) -> str:
    return json.dumps([owner.describe([CARD], AT, full=full), owner.describe_sight("v0100", full=full)])


def test_an_administrator_is_told_everything() -> None:
    told = everything(marked(), full=True)
    assert [number for number in range(12) if f"{MARK}-{number}" not in told] == []


def test_others_are_told_nothing_foreign() -> None:
    assert MARK not in everything(marked(), full=False)


def test_what_is_told_of_a_node() -> None:
    assert marked().describe_node(full=False) == {
        "asked": True,
        "looked_usec": AT_USEC,
        "listed_usec": AT_USEC,
        "deferred": True,
        "sources": [{"source": "node", "age": 1.235, "read": True}, {"source": "pods", "age": 2.0, "read": False}],
        "host": {"bundles": {"state": "unreadable", "doubts": [{"code": "process-unreadable"}, {"code": "bundle-odd"}], "more": 4}},
        "blocked": [
            {"reason": "card-not-known", "who": "uid-d", "since_usec": 7, "text": ROWS["card-not-known"].sentence},
            {"reason": "made-up", "who": "host", "since_usec": 7, "text": REASON_TEXT[Reason.OWNERS_UNKNOWN]},
        ],
    }
    full: Any = marked().describe_node(full=True)
    assert full["host"]["bundles"]["doubts"][0] == {"code": "process-unreadable", "subject": f"{MARK}-5", "error": 13}


def test_what_is_told_of_a_card() -> None:
    told = marked().describe_card(CARD, AT, full=True)
    assert (told["managed"], told["protection"], told["protection_if_clean"]) == ("unmanaged", "protected", "none")
    assert (told["unmanaged_reason"], told["unmanaged_text"]) == ("card-not-registered", REFUSAL_TEXT[CardRefusal.NOT_REGISTERED])
    assert [one["reason"] for one in told["unknowns"]] == ["npu-in-doubt"]
    first, second, third = told["claims"]
    assert (first["uid"], first["standing"], first["reason"], first["unless_clean"]) == ("uid-a", "protected", "running", False)
    assert (first["pod"], first["sources"]) == (f"{MARK}-3/{MARK}-4", ["api", "host"])
    assert first["since_usec"] == AT_USEC - 60_000_000
    assert (second["sources"], "pod" in second) == ([], False), "of a Pod of which nothing is known nothing is made up"
    assert (third["sources"], "pod" in third) == (["memory"], False)
    assert "unmanaged_text" in marked().describe_card(CARD, AT, full=False)


def test_what_is_told_of_a_vnpu() -> None:
    owner = marked()
    plain = {"finding": "held", "descriptors": "held", "bundles": "clean", "uda": "unknown"}
    assert owner.describe_sight("v0100", full=False) == plain
    assert owner.describe_sight("v0100", full=True) == plain | {"reasons": [f"{MARK}-10", f"{MARK}-11"]}
    assert owner.describe_sight("v0101", full=True) is None


def test_what_a_pods_author_wrote_is_fit_to_be_shown() -> None:
    claimants = (Claimant("uid-a", "sp\x00ace", "na\x1bme", (Trace.API,)),)
    owner = Ownership(replace(snapshot(claimed(RUNNING)), claimants=claimants), is_asked=True)
    assert owner.describe_card(CARD, AT, full=True)["claims"][0]["pod"] == "sp\\x00ace/na\\x1bme"


_WORDS = st.text(st.characters().filter(str.isprintable), max_size=6).map(lambda text: f"{MARK}{text}{MARK}")


@st.composite
def marked_pods(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a Pod of which everything that its author chooses has the mark, and which is in the way of something."""
    word = draw(_WORDS)
    notes: dict[str, str] = draw(
        st.sampled_from(
            [
                {f"huawei.com/{WORD}": word},
                {f"hami.io/{WORD}-devices-allocated": f"{MARK}-die,{WORD},1,1:;"},
                annotated(DIES[0]),
                {"huawei.com/AscendReal": word},
                {},
            ]
        )
    )
    variables = draw(st.sampled_from([[], [{"name": "ASCEND_VISIBLE_DEVICES", "value": word}]]))
    states: Any = draw(
        st.sampled_from(
            [
                {"running": {}},
                {"waiting": {"reason": word}},
                {"terminated": {"exitCode": 1, "reason": word, "finishedAt": "2026-11-30T23:50:00Z"}},
                {word: {}},
            ]
        )
    )
    npus = draw(st.sampled_from(["1", None]))
    made = pod(
        phase=draw(st.sampled_from(["Running", "Pending", word])),
        states={"main": states},
        annotations=notes,
        containers=[container(npus=npus, env=variables, securityContext={"privileged": draw(st.booleans())})],
        spec=draw(st.sampled_from([{}, {"resourceClaims": [{"name": word}]}])),
    )
    made["metadata"] |= {"name": f"{MARK.lower()}-pod", "namespace": f"{MARK.lower()}-space"}
    return made


@given(marked_pods(), _WORDS, st.sampled_from(["", "kubelet", "drivers", "unreadable", "card", "failure"]))
def test_nothing_that_anybody_wrote_comes_out_of_a_whole_look_unless_to_administrators(said: dict[str, Any], word: str, odd: str) -> None:
    desk = SnapshotDesk()
    desk.look("00")

    def change(parts: Parts) -> Parts:
        at = parts.kubelet.taken_at
        picture = Picture(cards=(card_view(0, DIES[0]), card_view(1, DIES[1], health=CardHealth.UNHEALTHY, text=word)))
        return replace(
            parts,
            pods=replace(parts.pods, body=listing(said)),
            host=Part(at, HostSays(), Failure("host-unseen", word)) if odd == "failure" else parts.host,
            kubelet=Part(at, KubeletScan(None, (Doubt("several-kubelets", word),))) if odd == "kubelet" else parts.kubelet,
            drivers=Part(at, Drivers(frozenset({f"npu.{word}"}))) if odd == "drivers" else parts.drivers,
            npus=Part(at, picture) if odd == "card" else parts.npus,
        )

    owner = Ownership(desk.look("00", change), is_asked=True)
    cards = [card_view(0, DIES[0]), card_view(1, DIES[1])]
    told = json.dumps([owner.describe(cards, desk.now.monotonic, full=False), owner.blocked_reasons], ensure_ascii=False)
    told += "".join(map(str, (owner.dressed(card, desk.now.monotonic).claims for card in cards)))
    assert MARK.casefold() not in told.casefold()
