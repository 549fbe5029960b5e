"""Who claims a card: each rule alone, and what it holds against."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from devward.cluster.claims import Allocation, Bounds, ClaimReason, KnownCard, Standing
from devward.cluster.evidence import Finding
from devward.cluster.handed import ANY, Handed
from sim.pod_desk import (
    HASH,
    OTHER_UID,
    RUNNING,
    UID,
    Desk,
    HostSays,
    annotated,
    claimants,
    container,
    ended,
    given,
    pod,
    segments,
    standings,
    status,
    waiting,
    whole_pod,
)
from sim.recorded_cluster import CARDS, DIES, RESOURCE, WORD

PROTECTED, UNKNOWN, CANDIDATE, NONE = Standing
FAILING = {"main": waiting("RunContainerError")}
WHOLE = f"huawei.com/{WORD}"
TO_ALLOCATE = f"hami.io/{WORD}-devices-to-allocate"


def alive(uid: str = UID, finding: Finding = Finding.HELD) -> HostSays:
    return HostSays({uid: finding}, {uid: finding})


def reasons(claims: object) -> set[str]:
    return {claim.reason.value for card in claims.cards for claim in card.claims}  # type: ignore[attr-defined]


# --- which cards -----------------------------------------------------------------------------------------------------------------------
def test_where_answer_and_annotation_differ_every_named_card_is_claimed() -> None:
    claims = Desk().look(pod(annotations=annotated(DIES[1])), given=[given(0)])
    assert standings(claims) == (PROTECTED, PROTECTED)


def test_either_names_a_card_and_the_kubelets_own_choice_does_not() -> None:
    # Every entry of given() has a device id of the second card.
    assert standings(Desk().look(pod(annotations=annotated(DIES[0])), given=[given(0)])) == (PROTECTED, NONE)
    assert standings(Desk().look(pod(), given=[given(0)])) == (PROTECTED, NONE)
    assert standings(Desk().look(pod(annotations=annotated(DIES[0])), given=[given()])) == (PROTECTED, NONE)


def test_what_nothing_names_is_any_card_of_the_resource() -> None:
    cards = (*CARDS, KnownCard(2, "C"), KnownCard(3, "D"))
    desk = Desk(cards, {WORD: frozenset(DIES), "Ascend310P": frozenset({"C"})})
    # The card that HAMi has nowhere may be of any resource.
    assert standings(desk.look(pod())) == (PROTECTED, PROTECTED, NONE, PROTECTED)
    assert standings(desk.look(pod(), given=[given()])) == (PROTECTED, PROTECTED, NONE, PROTECTED)
    other = pod(containers=[{**container(), "resources": {"limits": {"huawei.com/Ascend310P": "1"}}}])
    assert standings(Desk(cards, desk.registered).look(other)) == (NONE, NONE, PROTECTED, PROTECTED)
    strange = pod(containers=[{**container(), "resources": {"limits": {"huawei.com/Other": "1"}}}])
    assert standings(Desk(cards, desk.registered).look(strange)) == (PROTECTED,) * 4


def test_memory_and_cores_are_not_resources_of_their_own() -> None:
    cards = (*CARDS, KnownCard(2, "C"))
    desk = Desk(cards, {WORD: frozenset(DIES), "Ascend310P": frozenset({"C"})})
    limits = {RESOURCE: "1", f"{RESOURCE}-memory": "8192", f"{RESOURCE}-core": "5"}
    assert standings(desk.look(pod(containers=[{**container(), "resources": {"limits": limits}}]))) == (PROTECTED, PROTECTED, NONE)


def test_a_container_without_an_answer_leaves_its_cards_open() -> None:
    two = [container("main"), container("side")]
    states = {"main": RUNNING, "side": RUNNING}
    assert standings(Desk().look(pod(containers=two, states=states), given=[given(0)])) == (PROTECTED, PROTECTED)
    answered = [given(0), given(0, name="side")]
    assert standings(Desk().look(pod(containers=two, states=states), given=answered)) == (PROTECTED, NONE)
    half = [given(0), given(name="side")]
    assert standings(Desk().look(pod(containers=two, states=states), given=half)) == (PROTECTED, PROTECTED)
    assert standings(Desk().look(pod(containers=two, states=states, annotations=annotated(DIES[0])), given=half)) == (PROTECTED, NONE)


def test_an_answer_for_one_resource_of_two_leaves_the_other_open() -> None:
    cards = (*CARDS, KnownCard(2, "C"))
    desk = Desk(cards, {WORD: frozenset(DIES), "Ascend310P": frozenset({"C"})})
    both = pod(containers=[{**container(), "resources": {"limits": {RESOURCE: "1", "huawei.com/Ascend310P": "1"}}}])
    assert standings(desk.look(both, given=[given(0)])) == (PROTECTED, NONE, PROTECTED)
    assert standings(desk.look(both, given=[given(0), given(2, resource="huawei.com/Ascend310P")])) == (PROTECTED, NONE, PROTECTED)


def test_a_card_once_seen_stays_though_the_checkpoint_lost_it() -> None:
    desk = Desk()
    assert standings(desk.look(pod(annotations=annotated(DIES[1])), given=[given(0)])) == (PROTECTED, PROTECTED)
    assert standings(desk.look(pod(annotations=annotated(DIES[1])))) == (PROTECTED, PROTECTED)


def test_a_card_once_seen_stays_while_the_card_itself_is_not_to_be_seen() -> None:
    desk = Desk()
    desk.look(pod(annotations=annotated(DIES[1])), given=[given(1)])
    desk.cards = CARDS[:1]
    desk.look(pod(annotations=annotated(DIES[0])), given=[given(0)])
    desk.cards = CARDS
    assert standings(desk.look()) == (PROTECTED, PROTECTED)


def test_a_pod_that_only_its_annotations_give_a_card_has_it_for_good() -> None:
    desk, plain = Desk(), [container(npus=None)]
    assert standings(desk.look(pod(annotations=annotated(DIES[1]), containers=plain))) == (NONE, PROTECTED)
    # Whoever takes the annotations away takes no card with them.
    assert standings(desk.look(pod(containers=plain))) == (NONE, PROTECTED)


@pytest.mark.parametrize("limit", ["0", None])
def test_a_pod_that_wants_no_card_claims_none(limit: str | None) -> None:
    claims = Desk().look(pod(containers=[container(npus=limit)]))
    assert standings(claims) == (NONE, NONE)
    assert not claims.blockers


def test_other_plugins_pods_claim_nothing() -> None:
    other = pod(containers=[{**container(), "resources": {"limits": {"nvidia.com/gpu": "1"}}}])
    other["metadata"]["annotations"] = {"hami.io/vgpu-devices-to-allocate": "GPU-0650a168,NVIDIA,8192,5:;"}
    assert standings(Desk().look(other)) == (NONE, NONE)


# --- malformed annotations -------------------------------------------------------------------------------------------------------------
MALFORMED = [
    {TO_ALLOCATE: "garbage;"},
    {TO_ALLOCATE: f"{DIES[0]},{WORD},8192;"},
    {f"hami.io/{WORD}-devices-allocated": ",,,:;"},
    {WHOLE: "[{"},
    {WHOLE: '[{"temp": "vir05_1c_8g"}]'},
    {WHOLE: '{"UUID": "x"}'},
    {WHOLE: '[{"UUID": 7}]'},
    {WHOLE: '[{"UUID": "a", "uuid": "b"}]'},
]


@pytest.mark.parametrize("annotations", MALFORMED)
def test_a_malformed_annotation_blocks_the_cards_of_the_answer_alone(annotations: dict[str, str]) -> None:
    failing = pod(annotations=annotations, states=FAILING)
    claims = Desk().look(failing, given=[given(1)])
    assert not claims.blockers
    assert standings(claims) == (NONE, UNKNOWN)
    assert claimants(claims.cards[1]) == {(UID, "annotation-malformed"), (UID, "cannot-start")}


@pytest.mark.parametrize("annotations", MALFORMED)
@pytest.mark.parametrize("entries", [(), (given(),)])
def test_without_an_answer_it_blocks_the_node(annotations: dict[str, str], entries: tuple[object, ...]) -> None:
    desk = Desk()
    claims = desk.look(pod(annotations=annotations, states=FAILING), given=entries)  # type: ignore[arg-type]
    assert {(blocker.uid, blocker.reason) for blocker in claims.blockers} == {(UID, ClaimReason.ANNOTATION_MALFORMED)}
    began = desk.now.monotonic
    again = desk.look(pod(annotations=annotations, states=FAILING), given=entries)  # type: ignore[arg-type]
    assert [blocker.since for blocker in again.blockers] == [began]
    assert UID in again.blockers[0].sentence
    assert "mend or delete the Pod" in again.blockers[0].sentence


def test_an_answer_for_one_container_of_two_does_not_bound_the_doubt() -> None:
    claims = Desk().look(pod(containers=[container("main"), container("side")], annotations=MALFORMED[0]), given=[given(1)])
    assert claims.blockers


@pytest.mark.parametrize("text", [";", ";;", "", " ; ", ":;", "[]", "null"])
def test_empty_segments_name_nothing_and_are_fine(text: str) -> None:
    claims = Desk().look(pod(annotations={TO_ALLOCATE: text, WHOLE: text}), given=[given(0)])
    assert not claims.blockers
    assert standings(claims) == (PROTECTED, NONE)


def test_a_card_that_is_not_here_blocks_as_a_malformed_annotation_does() -> None:
    claims = Desk().look(pod(annotations={WHOLE: whole_pod("FFFF")}, states=FAILING), given=[given(1)])
    assert (standings(claims), claims.blockers) == ((NONE, UNKNOWN), ())
    blocked = Desk().look(pod(annotations={WHOLE: whole_pod("FFFF")}, states=FAILING))
    assert [blocker.reason for blocker in blocked.blockers] == [ClaimReason.CARD_NOT_KNOWN]
    # A physical id that is not here says that the inventory is not whole.
    stray = Desk().look(pod(annotations=annotated(DIES[0])), given=[given(9)])
    assert [blocker.detail for blocker in stray.blockers] == ["physical id 9"]


def test_a_users_choice_of_cards_is_no_allocation() -> None:
    choice = {f"hami.io/use-{WORD}-uuid": DIES[1], f"hami.io/no-use-{WORD}-uuid": "x", f"{WHOLE}-memory": "x", "hami.io/vgpu-node": "lab"}
    claims = Desk().look(pod(annotations={**annotated(DIES[0]), **choice}))
    assert (standings(claims), claims.blockers) == ((PROTECTED, NONE), ())


def test_a_card_of_ours_counts_under_a_word_that_is_not_known() -> None:
    other = {"hami.io/npu-devices-allocated": segments([DIES[1]]), WHOLE: whole_pod(DIES[0])}
    assert standings(Desk().look(pod(annotations=other))) == (PROTECTED, PROTECTED)


def test_segments_and_case_of_keys_are_read_as_hami_does() -> None:
    second = pod(annotations={TO_ALLOCATE: segments([], [DIES[1]])})
    assert standings(Desk().look(second)) == (NONE, PROTECTED)
    lower = pod(annotations={WHOLE: f'[{{"uuid": "{DIES[1].lower()}", "Temp": ""}}]'})
    assert standings(Desk().look(lower)) == (NONE, PROTECTED)


# --- Pods that have ended --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("annotations", [annotated(DIES[0]), *MALFORMED, {WHOLE: whole_pod("FFFF")}, None])
@pytest.mark.parametrize("states", [{}, {"main": ended(1)}, {"main": waiting("ContainerCreating")}, {"main": waiting(None)}])
def test_a_pod_that_ended_claims_nothing_and_its_annotations_are_not_read(phase: str, annotations: object, states: object) -> None:
    claims = Desk().look(pod(phase=phase, annotations=annotations, states=states), given=[given(0)])  # type: ignore[arg-type]
    assert (standings(claims), claims.blockers) == ((NONE, NONE), ())


@pytest.mark.parametrize("kind", ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"])
def test_a_phase_alone_does_not_end_a_pod_whose_container_runs(kind: str) -> None:
    zombie = pod(phase="Failed", annotations=annotated(DIES[0]), states={}, statuses={kind: [status("x", RUNNING)]})
    claims = Desk().look(zombie)
    assert claimants(claims.cards[0]) == {(UID, "ended-but-running")}
    assert standings(claims) == (PROTECTED, NONE)


def test_a_phase_alone_does_not_end_a_pod_that_lives_on_the_host() -> None:
    # Its sandbox alone is enough.
    host = HostSays({UID: Finding.HELD}, {UID: Finding.CLEAN})
    claims = Desk().look(pod(phase="Failed", annotations=annotated(DIES[0]), states={}), host=host)
    assert claimants(claims.cards[0]) == {(UID, "ended-but-alive")}
    unreadable = Desk().look(pod(phase="Failed", annotations=annotated(DIES[0]), states={}), host=alive(finding=Finding.UNKNOWN))
    assert claimants(unreadable.cards[0]) == {(UID, "host-unreadable")}
    assert standings(unreadable) == (UNKNOWN, NONE)


@pytest.mark.parametrize("finished", [None, "2026-12-01T09:00:00Z", "1970-01-01T00:00:00Z"])
def test_an_end_without_a_time_or_in_the_future_is_when_it_was_first_seen(finished: str | None) -> None:
    desk = Desk()
    over = pod(phase="Failed", states={"main": ended(1, finished=finished)})
    first = desk.look(over, given=[given(0)])
    seen = desk.now.monotonic
    assert [card.released_at for card in first.cards] == [seen, None]
    assert [card.released_at for card in desk.look(over, given=[given(0)]).cards] == [seen, None]


def test_an_end_of_which_one_time_is_missing_is_when_it_was_first_seen() -> None:
    desk = Desk()
    over = pod(phase="Failed", states={"main": ended(1), "side": ended(1, finished=None)})
    assert desk.look(over, given=[given(0)]).cards[0].released_at == desk.now.monotonic


def test_the_latest_end_counts_and_is_never_later_than_its_first_sight() -> None:
    desk = Desk()
    one = pod(phase="Failed", states={"main": ended(1, finished="2026-12-01T00:00:50Z")})
    two = pod(OTHER_UID, phase="Succeeded", states={"main": ended(0, finished="2026-12-01T00:00:30Z")})
    claims = desk.look(one, two, given=[given(0), given(0, uid=OTHER_UID)])
    # The look is at 00:01:00.
    assert claims.cards[0].released_at == desk.now.monotonic - 10


# --- Pods that the API server does not know --------------------------------------------------------------------------------------------
def test_an_entry_of_an_unknown_pod_protects_for_a_bounded_time() -> None:
    desk = Desk()
    entry = [given(0)]
    found = [standings(desk.look(given=entry))[0] for _ in range(14)]
    # The first look is at 0 s, the eleventh at 600 s.
    assert found == [PROTECTED] * 10 + [NONE] * 4
    assert standings(desk.look(given=entry)) == (NONE, NONE)


def test_the_bound_needs_looks_as_well_as_time() -> None:
    desk = Desk()
    assert [standings(desk.look(given=[given(0)], after=3600))[0] for _ in range(4)] == [PROTECTED, PROTECTED, NONE, NONE]
    desk = Desk()
    desk.bounds = Bounds(gone_seconds=60, gone_looks=5)
    assert [standings(desk.look(given=[given(0)]))[0] for _ in range(6)] == [PROTECTED] * 4 + [NONE, NONE]
    with pytest.raises(ValueError, match="above 0"):
        Bounds(gone_looks=0)
    with pytest.raises(ValueError, match="above 0"):
        Bounds(gone_seconds=0)


@pytest.mark.parametrize("finding", [Finding.HELD, Finding.UNKNOWN])
def test_the_bound_begins_when_the_host_shows_that_it_is_gone(finding: Finding) -> None:
    desk = Desk()
    for _ in range(30):
        assert standings(desk.look(given=[given(0)], host=alive(finding=finding))) == (PROTECTED, NONE)
    assert [standings(desk.look(given=[given(0)]))[0] for _ in range(11)] == [PROTECTED] * 10 + [NONE]
    # Alive again: it all begins anew.
    assert standings(desk.look(given=[given(0)], host=alive(finding=finding))) == (PROTECTED, NONE)
    assert [standings(desk.look(given=[given(0)]))[0] for _ in range(11)] == [PROTECTED] * 10 + [NONE]


def test_a_pod_seen_again_begins_anew() -> None:
    desk = Desk()
    for _ in range(9):
        desk.look(given=[given(0)])
    desk.look(pod(states=FAILING), given=[given(0)])
    assert [standings(desk.look(given=[given(0)]))[0] for _ in range(11)] == [PROTECTED] * 10 + [NONE]


def test_a_pod_seen_since_boot_protects_though_no_source_has_it_any_more() -> None:
    desk = Desk()
    desk.look(pod(annotations=annotated(DIES[1])), given=[given(1)])
    claims = desk.look()
    assert claimants(claims.cards[1]) == {(UID, "only-remembered")}
    for _ in range(30):
        assert standings(desk.look(host=alive())) == (NONE, PROTECTED)
    assert [standings(desk.look())[1] for _ in range(11)] == [PROTECTED] * 10 + [NONE]
    assert not desk.memory.pods


def test_of_a_pod_that_the_api_server_does_not_know_the_sandbox_is_enough() -> None:
    desk = Desk()
    desk.look(pod(annotations=annotated(DIES[1])), given=[given(1)])
    for _ in range(30):
        assert standings(desk.look(host=HostSays({UID: Finding.HELD}, {}))) == (NONE, PROTECTED)


def test_a_pod_that_vanished_within_its_allocation_protects_the_whole_resource() -> None:
    desk = Desk()
    desk.look(pod(phase="Pending", states={}))
    assert standings(desk.look()) == (PROTECTED, PROTECTED)


def test_an_unknown_entry_without_an_answer_protects_the_whole_resource() -> None:
    assert standings(Desk().look(given=[given(), given(0, name="side")])) == (PROTECTED, PROTECTED)
    desk = Desk()
    desk.look(pod(annotations=annotated(DIES[0])), given=[given()])
    assert standings(desk.look(given=[given()])) == (PROTECTED, NONE)


def test_an_unknown_entry_of_a_card_that_is_not_here_blocks_the_node() -> None:
    assert [blocker.reason for blocker in Desk().look(given=[given(9)]).blockers] == [ClaimReason.CARD_NOT_KNOWN]


def test_a_static_pod_is_known_by_its_configurations_hash() -> None:
    mirror = {"kubernetes.io/config.mirror": HASH, "kubernetes.io/config.hash": HASH}
    running = pod(annotations=mirror)
    claims = Desk().look(running, given=[given(0, uid=HASH)])
    assert claimants(claims.cards[0]) == {(UID, "running")}
    over = pod(annotations=mirror, phase="Succeeded", states={})
    assert standings(Desk().look(over, given=[given(0, uid=HASH)])) == (NONE, NONE)
    assert standings(Desk().look(over, given=[given(0, uid=HASH)], host=alive(HASH))) == (PROTECTED, NONE)
    failing = pod(annotations=mirror, states=FAILING)
    assert standings(Desk().look(failing, given=[given(0, uid=HASH)])) == (CANDIDATE, NONE)
    assert standings(Desk().look(failing, given=[given(0, uid=HASH)], host=alive(HASH))) == (PROTECTED, NONE)


@pytest.mark.parametrize("annotations", [{"kubernetes.io/config.hash": HASH}, {"kubernetes.io/config.mirror": OTHER_UID}])
def test_nobody_speaks_for_another_pod_by_an_annotation(annotations: dict[str, str]) -> None:
    uid = annotations.get("kubernetes.io/config.hash", OTHER_UID)
    over = pod(annotations=annotations, phase="Succeeded", states={})
    assert claimants(Desk().look(over, given=[given(0, uid=uid)]).cards[0]) == {(uid, "only-in-checkpoint")}


def test_a_static_pod_without_its_mirror_protects_as_every_unknown_pod_does() -> None:
    desk = Desk()
    for _ in range(30):
        assert standings(desk.look(given=[given(0, uid=HASH)], host=alive(HASH))) == (PROTECTED, NONE)
    assert [standings(desk.look(given=[given(0, uid=HASH)]))[0] for _ in range(11)] == [PROTECTED] * 10 + [NONE]


# --- Pods that cannot be started -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("entries", [(), (given(0),)])
def test_a_pod_that_cannot_be_started_is_a_candidate_whatever_its_claim(entries: tuple[object, ...]) -> None:
    claims = Desk().look(pod(annotations=annotated(DIES[0]), states=FAILING), given=entries)  # type: ignore[arg-type]
    assert standings(claims) == (CANDIDATE, NONE)
    assert claims.cards[0].claims[0].sentence.startswith("No container of the Pod can be started")


def test_its_sandbox_does_not_protect_and_a_container_of_it_does() -> None:
    failing = pod(annotations=annotated(DIES[0]), states=FAILING)
    sandbox = HostSays({UID: Finding.HELD}, {UID: Finding.CLEAN})
    assert standings(Desk().look(failing, host=sandbox)) == (CANDIDATE, NONE)
    claims = Desk().look(failing, host=alive())
    assert claimants(claims.cards[0]) == {(UID, "container-alive")}
    assert standings(claims) == (PROTECTED, NONE)
    assert standings(Desk().look(failing, host=alive(finding=Finding.UNKNOWN))) == (UNKNOWN, NONE)


def test_the_time_of_a_failure_is_placed_by_our_clock_and_never_after_its_first_sight() -> None:
    desk = Desk()
    last = ended(128, "StartError", finished="2026-12-01T00:00:50Z", startedAt="1970-01-01T00:00:00Z")
    failing = pod(annotations=annotated(DIES[0]), statuses={"containerStatuses": [status("main", FAILING["main"], last)]})
    first = desk.look(failing).cards[0]
    assert first.candidate_since == desk.now.monotonic - 10
    assert first.claims[0].began_at is None
    assert desk.look(failing).cards[0].candidate_since == first.candidate_since
    future = ended(1, finished="2026-12-01T09:00:00Z", startedAt="2026-12-01T00:01:30Z")
    ahead = desk.look(pod(annotations=annotated(DIES[0]), states={"main": future})).cards[0]
    assert ahead.candidate_since == desk.now.monotonic
    assert ahead.claims[0].began_at == desk.now.monotonic - 90
    began = desk.now.monotonic
    assert desk.look(pod(annotations=annotated(DIES[0]), states={"main": future})).cards[0].candidate_since == began


def test_a_failure_without_a_time_has_none() -> None:
    assert Desk().look(pod(annotations=annotated(DIES[0]), states=FAILING)).cards[0].candidate_since is None
    two = {"main": ended(1), "side": ended(1, finished=None)}
    partly = pod(annotations=annotated(DIES[0]), states=two, containers=[container("main"), container("side")])
    assert Desk().look(partly).cards[0].candidate_since is None


def test_of_several_containers_the_latest_failure_counts() -> None:
    desk = Desk()
    two = {"main": ended(1, finished="2026-12-01T00:00:10Z"), "side": ended(1, finished="2026-12-01T00:00:40Z")}
    both = pod(annotations=annotated(DIES[0]), states=two, containers=[container("main"), container("side")])
    assert desk.look(both).cards[0].candidate_since == desk.now.monotonic - 20


def test_the_latest_failure_of_the_candidates_of_a_card_counts() -> None:
    desk = Desk()
    one = pod(annotations=annotated(DIES[0]), states={"main": ended(1, finished="2026-12-01T00:00:10Z")})
    two = pod(OTHER_UID, annotations=annotated(DIES[0]), states={"main": ended(1, finished="2026-12-01T00:00:40Z")})
    claims = desk.look(one, two)
    assert claims.cards[0].candidate_since == desk.now.monotonic - 20


# --- waiting without a reason ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", [waiting(None), waiting(""), waiting("  "), {}])
def test_waiting_without_a_reason_protects_once_and_is_then_unknown_for_its_own_cards(state: dict[str, object]) -> None:
    desk = Desk()
    silent = pod(annotations=annotated(DIES[0]), states={"main": state})
    found = [desk.look(silent) for _ in range(3)]
    assert [standings(claims) for claims in found] == [(PROTECTED, NONE), (UNKNOWN, NONE), (UNKNOWN, NONE)]
    assert not any(claims.blockers for claims in found)
    desk.look(pod(annotations=annotated(DIES[0])))
    assert standings(desk.look(silent)) == (PROTECTED, NONE)


# --- Pods that have more than their devices --------------------------------------------------------------------------------------------
PRIVILEGED = {"securityContext": {"privileged": True}}


@pytest.mark.parametrize(
    "more",
    [
        {"containers": [container(npus=None, **PRIVILEGED)]},
        {"spec": {"initContainers": [container("x", npus=None, **PRIVILEGED)]}, "containers": [container(npus=None)]},
        {"spec": {"ephemeralContainers": [{"name": "x", **PRIVILEGED}]}, "containers": [container(npus=None)]},
        *(
            {"spec": {"volumes": [{"name": "v", "hostPath": {"path": path}}]}, "containers": [container(npus=None)]}
            for path in ("/dev", "/dev/", "/", "//dev", "/var/../dev", "/dev/davinci0")
        ),
    ],
)
@pytest.mark.parametrize("states", [{"main": RUNNING}, FAILING, {}])
def test_a_pod_that_may_open_every_device_protects_every_card_until_a_scan_is_clean(more: dict[str, object], states: object) -> None:
    claims = Desk().look(pod(states=states, **more))  # type: ignore[arg-type]
    assert standings(claims) == (PROTECTED, PROTECTED)
    assert [card.standing_if_clean for card in claims.cards] == [NONE, NONE]
    ended_one = pod(phase="Succeeded", states={}, **more)  # type: ignore[arg-type]
    assert standings(Desk().look(ended_one)) == (NONE, NONE)
    assert standings(Desk().look(ended_one, host=alive())) == (PROTECTED, PROTECTED)


def mounting(path: str, mounts: Sequence[dict[str, str]] = (), **more: Any) -> dict[str, Any]:
    mounted = [container(npus=None, volumeMounts=list(mounts))]
    return pod(spec={"volumes": [{"name": "v", "hostPath": {"path": path}}]}, containers=mounted, **more)


@pytest.mark.parametrize("states", [{"main": RUNNING}, FAILING, {}])
@pytest.mark.parametrize(
    ("path", "if_clean"),
    [
        ("/dev/vdavinci100", (PROTECTED, NONE)),
        ("/dev//vdavinci131", (NONE, PROTECTED)),
        ("/dev/davinci116", (NONE, PROTECTED)),
        # On no card of this host.
        ("/dev/vdavinci140", (PROTECTED, PROTECTED)),
        ("/dev/vdavinci5", (PROTECTED, PROTECTED)),
        ("/dev/davinci0", (NONE, NONE)),
    ],
)
def test_a_pod_that_mounts_a_vnpu_has_it_though_nothing_of_it_lives(path: str, if_clean: object, states: object) -> None:
    desk = Desk()
    claims = desk.look(mounting(path, states=states))
    assert standings(claims) == (PROTECTED, PROTECTED)
    assert tuple(card.standing_if_clean for card in claims.cards) == if_clean
    # Nor when the API server forgets it.
    assert standings(desk.look()) == if_clean
    assert standings(Desk().look(mounting(path, phase="Succeeded", states={}))) == (NONE, NONE)


@pytest.mark.parametrize(
    ("path", "mount", "if_clean"),
    [
        ("/dev", {"subPath": "vdavinci100"}, (PROTECTED, NONE)),
        ("/", {"subPath": "dev/vdavinci116"}, (NONE, PROTECTED)),
        ("/dev", {"subPathExpr": "$(NODE)"}, (PROTECTED, PROTECTED)),
        ("/dev", {"subPath": "shm"}, (NONE, NONE)),
        ("/dev", {}, (NONE, NONE)),
        ("/dev", {"name": "w", "subPath": "vdavinci100"}, (NONE, NONE)),
    ],
)
def test_a_pod_that_mounts_a_vnpu_from_below_dev_has_it(path: str, mount: dict[str, str], if_clean: object) -> None:
    mounts = [{"name": "v", "mountPath": "/x", **mount}]
    for more in ({}, {"states": FAILING}):
        claims = Desk().look(mounting(path, mounts, **more))
        assert tuple(card.standing_if_clean for card in claims.cards) == if_clean


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ascend.com/vnpu=116", (NONE, PROTECTED)),
        ("nvidia.com/gpu=0, ascend.com/vnpu=100", (PROTECTED, NONE)),
        ("ascend.com/npu=0", (PROTECTED, PROTECTED)),
        ("nvidia.com/gpu=0", (NONE, NONE)),
    ],
)
def test_a_pod_that_names_a_vnpu_by_cdi_has_it(name: str, expected: object) -> None:
    named = pod(states=FAILING, containers=[container(npus=None)], annotations={"cdi.k8s.io/mine": name})
    assert standings(Desk().look(named)) == expected


@pytest.mark.parametrize(("value", "expected"), [("100", PROTECTED), ("all", PROTECTED), ("1", CANDIDATE), ("void", CANDIDATE)])
def test_a_pod_whose_environment_may_name_a_vnpu_takes_it_up_at_each_attempt(value: str, expected: Standing) -> None:
    named = pod(states=FAILING, containers=with_environment({"name": "ASCEND_VISIBLE_DEVICES", "value": value}, npus="1"))
    assert standings(Desk().look(named, given=[given(1)]))[1] is expected


def test_a_pod_that_the_api_server_does_not_know_has_what_it_was_handed() -> None:
    both = replace(given(0), handed=Handed(frozenset({116})))
    assert standings(Desk().look(given=[both], host=alive())) == (PROTECTED, PROTECTED)
    assert standings(Desk().look(given=[given(0)], host=alive())) == (PROTECTED, NONE)


@pytest.mark.parametrize("annotations", [{}, annotated(DIES[0])])
@pytest.mark.parametrize("own", [(), (given(0),)])
def test_a_pod_that_is_handed_a_vnpu_takes_it_up_at_each_attempt(annotations: dict[str, str], own: tuple[Allocation, ...]) -> None:
    plain = pod(states=FAILING, containers=[container(npus=None)], annotations=annotations)
    other = given(resource="example.com/nodes")
    assert PROTECTED not in standings(Desk().look(plain, given=[*own, other]))
    one = replace(other, handed=Handed(frozenset({116})))
    assert standings(Desk().look(plain, given=[*own, one]))[1] is PROTECTED
    assert standings(Desk().look(plain, given=[*own, one]))[0] is not PROTECTED
    assert standings(Desk().look(plain, given=[*own, replace(other, handed=ANY)])) == (PROTECTED, PROTECTED)


def test_a_clean_scan_lifts_nothing_but_that() -> None:
    both = pod(containers=[container(**PRIVILEGED)], annotations=annotated(DIES[1]))
    assert [card.standing_if_clean for card in Desk().look(both).cards] == [NONE, PROTECTED]


@pytest.mark.parametrize("path", ["/dev/shm", "/devices", "/var/lib", "/dev/kvm"])
def test_other_mounts_protect_nothing(path: str) -> None:
    other = pod(
        spec={"volumes": [{"name": "v", "hostPath": {"path": path}}, {"name": "w", "emptyDir": {}}]}, containers=[container(npus=None)]
    )
    assert standings(Desk().look(other)) == (NONE, NONE)


def with_environment(*variables: dict[str, object], npus: str | None = None) -> list[dict[str, object]]:
    return [container(npus=npus, env=list(variables))]


def visible(value: str) -> dict[str, object]:
    return {"name": "ASCEND_VISIBLE_DEVICES", "value": value}


SPECS = {"name": "ASCEND_VNPU_SPECS", "value": "vir05_1c_8g"}
FROM_ELSEWHERE = {"name": "ASCEND_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['x']"}}}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ([visible("0")], (PROTECTED, NONE)),
        ([visible("0-1")], (PROTECTED, PROTECTED)),
        ([visible("Ascend910-1")], (NONE, PROTECTED)),
        ([visible("0"), SPECS], (PROTECTED, NONE)),
        ([visible("")], (NONE, NONE)),
        ([visible("void")], (NONE, NONE)),
        ([{"name": "ASCEND_VISIBLE_DEVICES"}], (NONE, NONE)),
        ([visible("all")], (PROTECTED, PROTECTED)),
        ([visible("$(CARDS)")], (PROTECTED, PROTECTED)),
        ([visible("7")], (PROTECTED, PROTECTED)),
        ([FROM_ELSEWHERE], (PROTECTED, PROTECTED)),
        ([SPECS], (PROTECTED, PROTECTED)),
        ([visible(""), SPECS], (PROTECTED, PROTECTED)),
        ([{"name": "ASCEND_VNPU_SPECS", "value": ""}], (NONE, NONE)),
        ([visible("0"), visible("")], (PROTECTED, NONE)),
        ([{"name": "PATH", "value": "/bin"}], (NONE, NONE)),
    ],
)
@pytest.mark.parametrize("states", [{"main": RUNNING}, FAILING])
def test_cards_that_are_named_without_being_requested_are_protected(
    variables: list[dict[str, object]], expected: object, states: object
) -> None:
    desk = Desk()
    claims = desk.look(pod(containers=with_environment(*variables), states=states))  # type: ignore[arg-type]
    assert standings(claims) == expected
    assert reasons(claims) <= {"named-in-environment"}
    assert standings(desk.look(pod(containers=with_environment(*variables), states=states))) == expected  # type: ignore[arg-type]
    over = pod(containers=with_environment(*variables), states={}, phase="Failed")
    assert standings(Desk().look(over)) == (NONE, NONE)


def test_named_cards_are_remembered_when_their_pod_is_gone() -> None:
    desk = Desk()
    desk.look(pod(containers=with_environment(visible("1"))))
    assert claimants(desk.look().cards[1]) == {(UID, "only-remembered")}


def test_an_init_containers_environment_counts_too() -> None:
    init = {"initContainers": [container("x", npus=None, env=[visible("1")])]}
    assert standings(Desk().look(pod(containers=[container(npus=None)], spec=init))) == (NONE, PROTECTED)


def test_cards_that_a_pod_names_beside_its_own_are_its_own() -> None:
    claims = Desk().look(pod(containers=with_environment(visible("1"), npus="1"), annotations=annotated(DIES[0])), given=[given(0)])
    assert standings(claims) == (PROTECTED, PROTECTED)
    failing = pod(containers=with_environment(visible("0"), npus="1"), annotations=annotated(DIES[0]), states=FAILING)
    assert standings(Desk().look(failing, given=[given(0)])) == (CANDIDATE, NONE)


@pytest.mark.parametrize("states", [{"main": RUNNING}, FAILING, {"main": ended(1)}])
def test_a_pod_that_shares_its_card_softly_protects_it(states: object) -> None:
    soft = {**annotated(DIES[0]), "huawei.com/vnpu-mode": "hami-core"}
    assert standings(Desk().look(pod(annotations=soft, states=states))) == (PROTECTED, NONE)  # type: ignore[arg-type]
    assert standings(Desk().look(pod(annotations=soft, states={}, phase="Failed"))) == (NONE, NONE)
    hard = {**soft, "huawei.com/vnpu-mode": "hard"}
    assert standings(Desk().look(pod(annotations=hard, states=FAILING))) == (CANDIDATE, NONE)


# --- what is said of it ----------------------------------------------------------------------------------------------------------------
def test_a_claim_tells_since_when_it_is_so() -> None:
    desk = Desk()
    desk.look(pod(annotations=annotated(DIES[0])))
    began = desk.now.monotonic
    assert [claim.since for claim in desk.look(pod(annotations=annotated(DIES[0]))).cards[0].claims] == [began]
    desk.look()
    claims = desk.look(pod(annotations=annotated(DIES[0])))
    assert [claim.since for claim in claims.cards[0].claims] == [desk.now.monotonic]


def test_foreign_text_is_shown_escaped() -> None:
    odd = pod(annotations=annotated(DIES[0]), states={"main": waiting("\x1b[31mred")})
    claim = Desk().look(odd).cards[0].claims[0]
    assert claim.reason is ClaimReason.REASON_UNKNOWN
    assert "\\x1b[31mred" in claim.sentence
