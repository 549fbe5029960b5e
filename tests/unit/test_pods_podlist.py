"""The list of Pods, read from text: what the API server sends is taken, and nothing else."""

import json
from typing import Any

import pytest

from devward.cluster import answer
from devward.cluster.answer import PROBLEM_TEXT, AnswerError, AnswerProblem, parse_answer
from devward.cluster.podlist import ContainerKind, ContainerStatus, Controller, State, Termination, parse_pod_list
from sim.pod_desk import HASH, OTHER_UID, RUNNING, UID, container, ended, listing, pod, status, waiting
from sim.recorded_cluster import DATA, NODE, RESOURCE, STATES, body, error_body, pods_of


def refused(data: bytes, node: str = NODE) -> AnswerProblem:
    with pytest.raises(AnswerError) as caught:
        parse_pod_list(data, node)
    assert str(caught.value).isprintable()
    return caught.value.problem


def only(*pods: dict[str, Any]) -> Any:
    return parse_pod_list(listing(*pods), NODE).pods[0]


def changed(path: str, value: Any) -> bytes:
    """Return a list whose first Pod has another value at a path; a value of ... takes the field away."""
    whole = json.loads(listing(pod(states={"main": ended(1)}), pod(OTHER_UID)))
    at: Any = whole
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        at = at.setdefault(part, {}) if isinstance(at, dict) else at[part]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return json.dumps(whole).encode()


@pytest.mark.parametrize("state", STATES)
def test_every_recorded_list_is_read_whole(state: str) -> None:
    found = parse_pod_list(pods_of(state), NODE)
    said = json.loads(pods_of(state))
    assert found.resource_version == said["metadata"]["resourceVersion"]
    assert [pod.uid for pod in found.pods] == [item["metadata"]["uid"] for item in said.get("items") or ()]


def test_a_recorded_pod_says_what_it_said() -> None:
    pods = {pod.name: pod for pod in parse_pod_list(pods_of("11"), NODE).pods}
    assert pods["static-npu-lab"].uids == {"0c3c5cc0-fac1-444b-a82f-60b852ad3ae9", HASH}
    assert [(one.kind, one.name, one.resources) for one in pods["with-init"].containers] == [
        (ContainerKind.INIT, "prep", {RESOURCE}),
        (ContainerKind.REGULAR, "main", {RESOURCE}),
    ]
    rejected = pods["rejected"].statuses[0]
    assert (rejected.state, rejected.termination) == (State.TERMINATED, Termination(137, "ContainerStatusUnknown", None, None))
    failed = pods["runerror"].statuses[0].termination
    # The moment of a container that never began is 1970.
    assert (failed.exit_code, failed.reason, failed.started_usec) == (128, "StartError", 0)


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("err-*.json")))
def test_a_recorded_error_is_no_list(name: str) -> None:
    assert refused(error_body(name)) is AnswerProblem.WRONG_KIND


def test_a_recorded_page_is_no_list() -> None:
    assert refused(body("paged-first.json")) is AnswerProblem.PAGINATED


def test_recorded_objects_of_other_kinds_are_no_list() -> None:
    for name in ("00-empty.node.json", "lease-1.json", "00-empty.checkpoint.json"):
        assert refused(body(name)) is AnswerProblem.WRONG_KIND


@pytest.mark.parametrize(
    "data", [b"", b" ", b"{", b"[1", b"\xff\xfe", b'{"kind": NaN}', b"[" * 100_000, b'{"a": ' * 100_000, b"{} {}", b'"\xed"']
)
def test_what_is_not_json_is_not_read(data: bytes) -> None:
    assert refused(data) is AnswerProblem.NOT_JSON


@pytest.mark.parametrize(
    "data", [b"[]", b"null", b"7", b'"PodList"', b"{}", b'{"kind": "PodList"}', b'{"kind":"PodList","apiVersion":"v2"}']
)
def test_what_is_another_thing_is_not_read(data: bytes) -> None:
    assert refused(data) is AnswerProblem.WRONG_KIND


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_what_was_cut_off_is_not_read(state: str, part: float) -> None:
    data = pods_of(state).rstrip()
    assert refused(data[: int(len(data) * part)]) is AnswerProblem.NOT_JSON


def test_a_key_twice_is_refused_wherever_it_stands() -> None:
    assert refused(b'{"kind":"PodList","kind":"PodList","apiVersion":"v1"}') is AnswerProblem.KEY_TWICE
    twice = listing(pod()).replace(b'"phase": "Running"', b'"phase": "Running", "phase": "Failed"')
    assert refused(twice) is AnswerProblem.KEY_TWICE


def test_a_body_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "MAX_BYTES", 10)
    assert refused(listing()) is AnswerProblem.TOO_LARGE


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"resourceVersion": ""}, AnswerProblem.NO_VERSION),
        ({"resourceVersion": "0"}, AnswerProblem.NO_VERSION),
        ({"resourceVersion": 7}, AnswerProblem.FIELD_ODD),
        ({"continue": "eyJ2Ijoi"}, AnswerProblem.PAGINATED),
        ({"remainingItemCount": 3}, AnswerProblem.PAGINATED),
        ({"remainingItemCount": "3"}, AnswerProblem.PAGINATED),
    ],
)
def test_a_list_must_be_whole_and_of_one_moment(metadata: dict[str, Any], problem: AnswerProblem) -> None:
    assert refused(listing(pod(), **metadata)) is problem


def test_a_list_without_items_is_empty_only_where_go_writes_that() -> None:
    empty = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}}
    assert parse_pod_list(json.dumps({**empty, "items": None}).encode(), NODE).pods == ()
    assert parse_pod_list(json.dumps({**empty, "items": []}).encode(), NODE).pods == ()
    assert refused(json.dumps(empty).encode()) is AnswerProblem.FIELD_ODD
    assert refused(json.dumps({**empty, "items": {}}).encode()) is AnswerProblem.FIELD_ODD
    assert refused(json.dumps({**empty, "metadata": None, "items": []}).encode()) is AnswerProblem.FIELD_ODD


def test_pods_of_another_node_or_of_none_are_refused() -> None:
    assert refused(listing(pod()), "other") is AnswerProblem.OTHER_NODE
    assert refused(listing(pod(), pod(OTHER_UID, spec={"nodeName": "other"}))) is AnswerProblem.OTHER_NODE
    assert refused(changed("items.0.spec.nodeName", ...)) is AnswerProblem.OTHER_NODE


def test_two_pods_of_one_uid_or_name_are_refused() -> None:
    assert refused(listing(pod(), {**pod(), "metadata": {**pod()["metadata"], "name": "other"}})) is AnswerProblem.UID_TWICE
    assert refused(listing(pod(), {**pod(), "metadata": {**pod()["metadata"], "uid": OTHER_UID}})) is AnswerProblem.NAME_TWICE


@pytest.mark.parametrize(
    "path",
    [
        "items.0.metadata.annotations",
        "items.0.metadata.ownerReferences",
        "items.0.spec.containers",
        "items.0.spec.initContainers",
        "items.0.spec.ephemeralContainers",
        "items.0.spec.volumes",
        "items.0.spec.resourceClaims",
        "items.0.spec.containers.0.env",
        "items.0.spec.containers.0.resources.limits",
        "items.0.spec.containers.0.resources.requests",
        "items.0.status.containerStatuses",
        "items.0.status.initContainerStatuses",
        "items.0.status.ephemeralContainerStatuses",
        "items.0.metadata.deletionTimestamp",
        "items.0.status.containerStatuses.0.state.terminated.startedAt",
        "items.0.status.containerStatuses.0.state.terminated.finishedAt",
    ],
)
def test_lists_maps_and_times_may_be_null_and_nothing_else(path: str) -> None:
    assert len(parse_pod_list(changed(path, None), NODE).pods) == 2
    for odd in (7, True, "text", [7], [None], {"a": 7}):
        assert refused(changed(path, odd)) is AnswerProblem.FIELD_ODD


@pytest.mark.parametrize(
    ("path", "odd"),
    [
        *((f"items.0.metadata.{field}", odd) for field in ("uid", "name", "namespace") for odd in (None, "", 7, ...)),
        ("items.0.metadata.uid", "../../etc"),
        ("items.0.metadata.uid", "u" * 200),
        ("items.0.metadata.uid", "a b"),
        ("items.0.metadata.ownerReferences", [{"controller": "yes", "kind": "Job", "name": "n", "uid": "u"}]),
        ("items.0", None),
        ("items.0", []),
        ("items.0.kind", "Node"),
        ("items.0.metadata", ...),
        ("items.0.metadata", None),
        ("items.0.spec", []),
        ("items.0.status", None),
        ("items.0.status.phase", 7),
        ("items.0.status.phase", None),
        ("items.0.metadata.deletionTimestamp", "yesterday"),
        ("items.0.metadata.deletionTimestamp", "2026-13-01T00:00:00Z"),
        ("items.0.metadata.deletionTimestamp", ""),
        ("items.0.metadata.deletionTimestamp", False),
        ("items.0.spec.containers.0.name", ""),
        ("items.0.spec.containers.0.resources", None),
        ("items.0.spec.containers.0.resources.limits", {RESOURCE: 1}),
        ("items.0.spec.containers.0.securityContext", None),
        ("items.0.spec.containers.0.securityContext", {"privileged": "true"}),
        ("items.0.spec.containers.0.env", [{"value": "x"}]),
        ("items.0.spec.containers.0.env", [{"name": "ASCEND_VISIBLE_DEVICES", "value": 0}]),
        ("items.0.spec.volumes", [{"name": "v", "hostPath": "/dev"}]),
        ("items.0.spec.volumes", [{"name": "v", "hostPath": {"path": ["/dev"]}}]),
        ("items.0.status.containerStatuses.0.name", ""),
        ("items.0.status.containerStatuses.0.state", None),
        ("items.0.status.containerStatuses.0.state", {"running": {}, "waiting": {}}),
        ("items.0.status.containerStatuses.0.state", {"running": None}),
        ("items.0.status.containerStatuses.0.state", {"waiting": {"reason": 7}}),
        ("items.0.status.containerStatuses.0.state.terminated.exitCode", ...),
        ("items.0.status.containerStatuses.0.state.terminated.exitCode", "1"),
        ("items.0.status.containerStatuses.0.state.terminated.exitCode", True),
        ("items.0.status.containerStatuses.0.state.terminated.exitCode", 1.0),
        ("items.0.status.containerStatuses.0.lastState", []),
    ],
)
def test_a_field_without_its_type_refuses_the_whole_list(path: str, odd: Any) -> None:
    with pytest.raises(AnswerError) as caught:
        parse_pod_list(changed(path, odd), NODE)
    assert caught.value.problem is AnswerProblem.FIELD_ODD
    assert "items[0]" in caught.value.detail


def test_what_controls_a_pod_is_told_and_other_owners_are_not() -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j-1", "controller": True, "blockOwnerDeletion": True}
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "settings", "uid": "c-1"}
    owned = {**pod(), "metadata": {**pod()["metadata"], "ownerReferences": [other, job]}}
    assert only(owned).controller == Controller("Job", "train", "j-1")
    for odd in ({"kind": ""}, {"kind": "K" * 64}, {"kind": "a b"}, {"name": ""}, {"name": "n" * 254}, {"uid": "u" * 200}, {"uid": "a b"}):
        # It protects nothing, so that it refuses nothing, and it is kept for long.
        owned["metadata"]["ownerReferences"] = [{**job, **odd}]
        assert only(owned).controller is None, odd
    owned["metadata"]["ownerReferences"] = [other]
    assert only(owned).controller is None
    assert only(pod()).controller is None
    # The mirror of a static Pod is controlled by the Node, which makes none.
    static = next(one for one in parse_pod_list(pods_of("11"), NODE).pods if one.name == "static-npu-lab")
    assert static.controller is None


def test_a_pod_that_no_kubelet_has_seen_is_read() -> None:
    bare = pod()
    del bare["status"]
    assert (only(bare).phase, only(bare).statuses) == ("", ())


def test_states_are_read_as_the_api_defines_them() -> None:
    last = ended(128, "StartError", startedAt="1970-01-01T00:00:00Z", finished="2026-12-01T00:00:01.5+01:00")
    statuses = {
        "initContainerStatuses": [status("a", {})],
        "containerStatuses": [status("b", waiting("RunContainerError"), last), status("c", RUNNING), status("d", ended(3, ""))],
        "ephemeralContainerStatuses": [status("e", {"frozen": {}}), status("f", waiting(None))],
    }
    found = only(pod(statuses=statuses)).statuses
    finished = 1_796_079_601_500_000
    assert found == (
        ContainerStatus(ContainerKind.INIT, "a", State.WAITING),
        ContainerStatus(ContainerKind.REGULAR, "b", State.WAITING, "RunContainerError", Termination(128, "StartError", 0, finished)),
        ContainerStatus(ContainerKind.REGULAR, "c", State.RUNNING),
        ContainerStatus(ContainerKind.REGULAR, "d", State.TERMINATED, "", Termination(3, "", None, 1_796_082_600_000_000)),
        ContainerStatus(ContainerKind.EPHEMERAL, "e", State.UNKNOWN, "frozen"),
        ContainerStatus(ContainerKind.EPHEMERAL, "f", State.WAITING),
    )


def test_a_request_or_a_limit_of_more_than_none_counts() -> None:
    for resources in ({"limits": {RESOURCE: "1"}}, {"requests": {RESOURCE: "1"}}, {"limits": {RESOURCE: "0"}, "requests": {RESOURCE: "2"}}):
        assert only(pod(containers=[{**container(), "resources": resources}])).containers[0].resources == {RESOURCE}
    assert only(pod(containers=[container(npus="0")])).containers[0].resources == frozenset()


def test_uid_of_a_pod_is_that_of_the_list() -> None:
    assert only(pod()).uids == {UID}


def test_every_problem_has_a_sentence_that_ends() -> None:
    assert PROBLEM_TEXT.keys() == set(AnswerProblem)
    assert all(text.endswith(".") for text in PROBLEM_TEXT.values())
    with pytest.raises(AnswerError, match=r"'Status' of 'v1': 'Unauthorized'"):
        parse_answer(error_body("err-401-bad-token.json"), "PodList", "v1")
