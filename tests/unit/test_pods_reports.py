"""What users of HAMi and Kubernetes reported of lost and orphaned vNPUs, told as Pods: what must be protected, and what not."""

from typing import Any

import pytest

from devward.cluster.claims import Standing
from devward.cluster.evidence import Finding
from sim.pod_desk import (
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
    standings,
    status,
    waiting,
)
from sim.recorded_cluster import DIES, WORD

PROTECTED, UNKNOWN, CANDIDATE, NONE = Standing


def test_a_running_pod_that_only_sleeps_keeps_its_vnpu() -> None:
    # HAMi's device plugin: the driver's flag said idle, and the periodic cleanup destroyed it.
    idle = pod(annotations=annotated(DIES[0]))
    assert all(standings(Desk().look(idle, given=entries)) == (PROTECTED, NONE) for entries in ((), [given(0)]))


@pytest.mark.parametrize("reason", ["CreateContainerError", "RunContainerError", "StartError", "CrashLoopBackOff"])
@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_vnpus_that_pile_up_with_every_retry_are_not_shielded_by_their_pod(reason: str, phase: str) -> None:
    # HAMi's device plugin: 310P3 cards with 6 of 8 cores held by containers that were never made.
    desk = Desk()
    failing = pod(annotations=annotated(DIES[0]), phase=phase, states={"main": waiting(reason)})
    sandbox = HostSays({UID: Finding.HELD}, {})
    for _ in range(20):
        assert standings(desk.look(failing, given=[given(0)], host=sandbox)) == (CANDIDATE, NONE)


def test_orphans_of_a_reboot_wait_for_pods_that_are_just_being_made() -> None:
    # HAMi's device plugin: old vNPUs after a reboot, and new Pods on the same card, in creation.
    creating = pod(annotations=annotated(DIES[0]), phase="Pending", states={"main": waiting("ContainerCreating")})
    assert standings(Desk().look(creating)) == (PROTECTED, NONE)


def test_a_privileged_pod_may_compute_though_the_driver_says_idle() -> None:
    # HAMi: 910C users had to run privileged, which the driver's flag never shows.
    privileged = pod(containers=[container(securityContext={"privileged": True})], annotations=annotated(DIES[0]))
    card = Desk().look(privileged, given=[given(0)]).cards[1]
    assert (card.standing, card.standing_if_clean) == (PROTECTED, NONE)


def test_an_entry_that_the_kubelet_keeps_for_days_protects_for_a_bounded_time() -> None:
    # Kubernetes: the checkpoint is pruned at a later allocation only.
    desk = Desk()
    desk.look(pod(annotations=annotated(DIES[0])), given=[given(0)])
    assert [standings(desk.look(given=[given(0)]))[0] for _ in range(60)] == [PROTECTED] * 10 + [NONE] * 50


def test_a_force_deleted_pod_that_runs_on_is_protected_for_as_long() -> None:
    # Kubernetes: gone from the API server at once, and out of the kubelet's own admission too.
    desk = Desk()
    desk.look(pod(annotations=annotated(DIES[0])), given=[given(0)])
    running = HostSays({UID: Finding.HELD}, {UID: Finding.HELD})
    assert {standings(desk.look(host=running)) for _ in range(40)} == {(PROTECTED, NONE)}


@pytest.mark.parametrize("annotations", [None, {f"hami.io/{WORD}-devices-to-allocate": "half of it"}])
def test_a_pod_that_was_rejected_at_admission_blocks_nothing(annotations: dict[str, str] | None) -> None:
    # Kubernetes: UnexpectedAdmissionError Pods linger, with entries of the part that was admitted.
    rejected = pod(annotations=annotations, phase="Failed", states={}, statuses={"reason": "UnexpectedAdmissionError"})
    claims = Desk().look(rejected, given=[given()])
    assert (standings(claims), claims.blockers) == ((NONE, NONE), ())
    lost = pod(annotations=annotations, phase="Failed", states={"main": ended(137, "ContainerStatusUnknown", finished=None)})
    assert standings(Desk().look(lost, given=[given()])) == (NONE, NONE)


def test_a_container_that_the_kubelet_lost_track_of_may_run() -> None:
    # Kubernetes: after a restart of the kubelet.
    lost = pod(annotations=annotated(DIES[0]), states={"main": ended(137, "ContainerStatusUnknown", finished=None)})
    assert standings(Desk().look(lost)) == (UNKNOWN, NONE)


def test_a_reason_that_comes_and_goes_protects_whenever_it_does() -> None:
    # Kubernetes: reasons live in the kubelet's memory, and fall back to ContainerCreating when it restarts.
    desk = Desk()
    states: list[dict[str, Any]] = [waiting("CreateContainerError"), waiting("ContainerCreating"), waiting("CreateContainerError")]
    found = [standings(desk.look(pod(annotations=annotated(DIES[0]), states={"main": state}))) for state in states]
    assert found == [(CANDIDATE, NONE), (PROTECTED, NONE), (CANDIDATE, NONE)]


def test_a_checkpoint_that_was_lost_takes_no_card_from_a_running_pod() -> None:
    # Kubernetes: the file was deleted, or empty after an upgrade, and running Pods are never entered again.
    desk = Desk()
    for entries in ([given(1)], [], []):
        assert standings(desk.look(pod(), given=entries))[1] is PROTECTED


def test_one_pod_that_fails_does_not_expose_another_on_its_card() -> None:
    failing = pod(annotations=annotated(DIES[0]), states={"main": waiting("CrashLoopBackOff")})
    claims = Desk().look(failing, pod(OTHER_UID, annotations=annotated(DIES[0])))
    assert standings(claims) == (PROTECTED, NONE)
    assert claimants(claims.cards[0]) == {(UID, "cannot-start"), (OTHER_UID, "running")}


def test_a_container_that_runs_protects_whatever_the_others_do() -> None:
    two = [container("main"), container("side")]
    mixed = pod(annotations=annotated(DIES[0]), containers=two, states={"main": waiting("CrashLoopBackOff"), "side": RUNNING})
    assert standings(Desk().look(mixed)) == (PROTECTED, NONE)


def test_a_debug_container_protects_while_it_runs_and_its_failure_exposes_nothing() -> None:
    done = {"containerStatuses": [status("main", ended(0))]}
    debugged = {**done, "ephemeralContainerStatuses": [status("debug", RUNNING)]}
    assert standings(Desk().look(pod(annotations=annotated(DIES[0]), statuses=debugged))) == (PROTECTED, NONE)
    for state in (ended(1), waiting("CrashLoopBackOff")):
        failed = {**done, "ephemeralContainerStatuses": [status("debug", state)]}
        assert standings(Desk().look(pod(annotations=annotated(DIES[0]), statuses=failed))) == (UNKNOWN, NONE)


def test_a_state_of_a_later_kubelet_is_not_known() -> None:
    frozen = {"containerStatuses": [status("main", {"frozen": {}}), status("side", ended(1))]}
    assert standings(Desk().look(pod(annotations=annotated(DIES[0]), statuses=frozen))) == (UNKNOWN, NONE)
    assert standings(Desk().look(pod(annotations=annotated(DIES[0]), statuses=frozen, phase="Failed"))) == (PROTECTED, NONE)
