"""What the broker tells of the host, on its way: every statement comes back as it was, and none that contradicts itself is taken."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.cluster.evidence import Doubt, Finding, SourceState
from devward.cluster.statement import (
    AskedVnpu,
    KubeletSource,
    PodSight,
    SourceSight,
    Statement,
    VnpuSight,
    contradiction,
)
from devward.npu import witness_objects as limits
from devward.npu.fields import Malformed
from devward.npu.protocol import (
    ANSWER_LIMIT,
    REQUEST_LIMIT,
    RUNTIME_LIMIT,
    WitnessAnswer,
    WitnessRequest,
    encode_answer,
    encode_request,
    parse_answer,
    parse_request,
    request_id,
)
from sim.statements import ASKED, CONTAINER, DOUBTED, KUBELET, PRINTABLE, READ, UID, VNPU, clean, full, statements

REQUESTS = st.builds(
    WitnessRequest,
    st.integers(0, (1 << 53) - 1),
    st.integers(0, (1 << 63) - 1),
    st.none() | st.text(PRINTABLE, max_size=RUNTIME_LIMIT),
    ASKED,
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(("clean", "read", "held")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
REQUEST = WitnessRequest(7, 1000, "containerd://2.1.9", (VNPU,))
Place = tuple[Any, ...]


def places(value: Any, here: Place = ()) -> list[Place]:
    """Where there is a value inside a message."""
    found = [here]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, below in inner:
        found += places(below, (*here, name))
    return found


def put(message: Any, place: Place, value: Any) -> Any:
    """Return the message with another value in that place."""
    if not place:
        return value
    changed = copy.copy(message)
    changed[place[0]] = put(changed[place[0]], place[1:], value)
    return changed


def holder_of(message: Any, place: Place) -> Any:
    for name in place[:-1]:
        message = message[name]
    return message


@given(REQUESTS)
def test_a_request_comes_back_as_it_was(request: WitnessRequest) -> None:
    line = encode_request(request)
    assert len(line) <= REQUEST_LIMIT
    assert parse_request(line) == request
    assert request_id(line) == request.id


def test_the_largest_request_fits() -> None:
    u32 = (1 << 32) - 1
    vnpus = tuple(AskedVnpu(vdev, u32, u32) for vdev in range(100, 1124))
    request = WitnessRequest((1 << 53) - 1, (1 << 63) - 1, "\U0001f600" * RUNTIME_LIMIT, vnpus)
    line = encode_request(request)
    assert len(line) <= REQUEST_LIMIT
    assert parse_request(line) == request


@given(statements())
def test_a_statement_comes_back_as_it_was(said: Statement) -> None:
    assert contradiction(said) == ""
    assert parse_answer(encode_answer(WitnessAnswer(3, said))) == WitnessAnswer(3, said)


def test_a_large_host_fits() -> None:
    vnpus = tuple(AskedVnpu(vdev, 236, vdev) for vdev in range(100, 1124))
    reasons = ("r" * limits.REASON_LENGTH,) * limits.REASON_LIMIT
    containers = tuple(replace(CONTAINER, id="c" * limits.NAME_LENGTH, vdevs=(1123,)) for _ in range(limits.CONTAINER_LIMIT))
    said = replace(
        clean(*vnpus),
        vnpus=tuple(VnpuSight(vnpu, Finding.HELD, Finding.HELD, Finding.CLEAN, reasons) for vnpu in vnpus),
        pods=tuple(PodSight(f"{number:032}", Finding.HELD, Finding.CLEAN, True) for number in range(limits.POD_LIMIT)),
        containers=containers,
    )
    line = encode_answer(WitnessAnswer(3, said))
    assert len(line) <= ANSWER_LIMIT
    assert parse_answer(line) == WitnessAnswer(3, said)


@given(st.data(), statements(), JSON_VALUES)
def test_an_answer_with_one_other_value_is_that_answer_or_malformed(data: st.DataObject, said: Statement, value: Any) -> None:
    message = json.loads(encode_answer(WitnessAnswer(3, said)))
    changed = put(message, data.draw(st.sampled_from(places(message))), value)
    try:
        parsed = parse_answer(json.dumps(changed).encode())
    except Malformed:
        return
    assert isinstance(parsed, WitnessAnswer)
    assert contradiction(parsed.statement) == ""
    # What was taken is what was written, and nothing was made of it.
    assert json.dumps(json.loads(encode_answer(parsed)), sort_keys=True) == json.dumps(changed, sort_keys=True)


@given(st.data(), REQUESTS, JSON_VALUES)
def test_a_request_with_one_other_value_is_that_request_or_malformed(data: st.DataObject, request: WitnessRequest, value: Any) -> None:
    message = json.loads(encode_request(request))
    changed = put(message, data.draw(st.sampled_from(places(message))), value)
    try:
        parsed = parse_request(json.dumps(changed).encode())
    except Malformed:
        return
    assert json.dumps(json.loads(encode_request(parsed)), sort_keys=True) == json.dumps(changed, sort_keys=True)


ANSWER = json.loads(encode_answer(WitnessAnswer(3, full())))
MEMBERS = [place for place in places(ANSWER) if place and isinstance(place[-1], str)]


@pytest.mark.parametrize("place", MEMBERS, ids=lambda place: "/".join(map(str, place)))
def test_every_field_of_a_statement_is_needed_and_no_other_is_taken(place: Place) -> None:
    message = copy.deepcopy(ANSWER)
    holder = holder_of(message, place)
    kept = holder.pop(place[-1])
    with pytest.raises(Malformed, match=f"has no {place[-1]}"):
        parse_answer(json.dumps(message).encode())
    holder[place[-1]] = kept
    holder["more_of_it"] = True
    with pytest.raises(Malformed, match="unknown field"):
        parse_answer(json.dumps(message).encode())


_T = ("statement",)
_KUBELET = ANSWER["statement"]["kubelet"]["kubelet"]
OUT_OF_RANGE: list[tuple[Place, Any]] = [
    ((*_T, "vnpus", 0, "vnpu", "vdev"), 99),
    ((*_T, "vnpus", 0, "vnpu", "vdev"), 1124),
    ((*_T, "vnpus", 0, "vnpu", "vdev"), 65535),
    ((*_T, "vnpus", 0, "vnpu", "major"), 1 << 32),
    ((*_T, "vnpus", 0, "vnpu", "minor"), True),
    ((*_T, "vnpus", 0, "descriptors"), "CLEAN"),
    ((*_T, "vnpus", 0, "bundles"), None),
    ((*_T, "vnpus", 0, "reasons"), ["a\nb"]),
    ((*_T, "vnpus", 0, "reasons"), ["x" * (limits.REASON_LENGTH + 1)]),
    ((*_T, "vnpus", 0, "reasons"), ["x"] * (limits.REASON_LIMIT + 1)),
    ((*_T, "pods", 0, "uid"), ""),
    ((*_T, "pods", 0, "uid"), "a/b"),
    ((*_T, "pods", 0, "uid"), "x" * 129),
    ((*_T, "pods", 0, "has_group"), 1),
    ((*_T, "others"), None),
    ((*_T, "containers", 0, "id"), "\x1b[2J"),
    ((*_T, "containers", 0, "life"), "stopped?"),
    ((*_T, "containers", 0, "type"), ""),
    ((*_T, "containers", 0, "cards"), [100]),
    ((*_T, "containers", 0, "cards"), [0] * 101),
    ((*_T, "containers", 0, "vdevs"), [99]),
    ((*_T, "containers", 0, "pod_uids"), [UID] * (limits.UID_LIMIT + 1)),
    ((*_T, "bundles", "state"), "unknown"),
    ((*_T, "uda", "doubts", 0, "code"), "Not A Code"),
    ((*_T, "uda", "doubts", 0, "error"), 4096),
    ((*_T, "uda", "doubts", 0, "subject"), "\u202e"),
    ((*_T, "uda", "more"), -1),
    ((*_T, "kubelet", "kubelet", "pid"), 0),
    ((*_T, "kubelet", "kubelet", "root_directory"), "relative"),
    ((*_T, "kubelet", "kubelet", "plugins_directory"), "/a\nb"),
    ((*_T, "kubelet", "kubelet", "plugins_name"), "/" + "x" * 4096),
    ((*_T, "kubelet", "kubelet", "kubeconfig"), "relative"),
    ((*_T, "kubelet", "kubelet", "kubeconfig"), "/a\nb"),
    ((*_T, "kubelet", "kubelet", "kubeconfig"), "/" + "x" * 4096),
    ((*_T, "kubelet", "kubelet"), {**_KUBELET, "kubeconfig": "", "kubeconfig_problem": "a\nb"}),
    ((*_T, "kubelet", "kubelet"), {**_KUBELET, "kubeconfig": "", "kubeconfig_problem": "x" * (limits.PROBLEM_LENGTH + 1)}),
]


@pytest.mark.parametrize(("place", "value"), OUT_OF_RANGE, ids=lambda one: str(one)[:60])
def test_a_value_out_of_its_range_is_malformed(place: Place, value: Any) -> None:
    with pytest.raises(Malformed):
        parse_answer(json.dumps(put(ANSWER, place, value)).encode())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expires_ns", -1),
        ("runtime", "a\nb"),
        ("runtime", "x" * (RUNTIME_LIMIT + 1)),
        ("vnpus", None),
        ("vnpus", [{"vdev": 65535, "major": 236, "minor": 1}]),
        ("vnpus", [{"vdev": 148, "major": 236, "minor": 1}, {"vdev": 148, "major": 236, "minor": 2}]),
        ("vnpus", [{"vdev": 148, "major": 236}]),
    ],
)
def test_a_request_out_of_its_range_is_malformed(name: str, value: Any) -> None:
    with pytest.raises(Malformed, match=name):
        parse_request(json.dumps({**json.loads(encode_request(REQUEST)), name: value}).encode())


CLEAN = clean(VNPU)
ONE_DOUBT = replace(READ, doubts=(Doubt("some-doubt", ""),))
HELD = VnpuSight(VNPU, Finding.HELD, Finding.HELD, Finding.HELD, ("somebody",))
IN_DOUBT = (Doubt("kubelet-changed", "40"),)


def with_kubelet(**differs: str) -> Statement:
    return replace(clean(), kubelet=KubeletSource(SourceState.READ, replace(KUBELET, **differs)))


CONTRADICTIONS: dict[str, Statement] = {
    "clean by descriptors with doubts": replace(CLEAN, descriptors=DOUBTED),
    "clean by descriptors with one doubt": replace(CLEAN, descriptors=ONE_DOUBT),
    "clean by descriptors that nobody looked at": replace(CLEAN, descriptors=None),
    "clean by bundles with doubts": replace(CLEAN, bundles=DOUBTED, others=Finding.UNKNOWN, others_containers=Finding.UNKNOWN),
    "clean by a uda with doubts": replace(CLEAN, uda=DOUBTED),
    "clean with a reason": replace(CLEAN, vnpus=(replace(CLEAN.vnpus[0], reasons=("somebody",)),)),
    "held for no reason": replace(CLEAN, vnpus=(replace(HELD, reasons=()),)),
    "clean, and named by a container": replace(CLEAN, containers=(CONTAINER,)),
    "a vNPU twice": replace(CLEAN, vnpus=(HELD, HELD)),
    "a Pod twice": replace(CLEAN, pods=(PodSight(UID, Finding.HELD, Finding.HELD, True),) * 2),
    "a Pod is clean by bundles with doubts": replace(
        clean(),
        bundles=ONE_DOUBT,
        pods=(PodSight(UID, Finding.HELD, Finding.CLEAN, True),),
        others=Finding.UNKNOWN,
        others_containers=Finding.UNKNOWN,
    ),
    "others are clean by bundles with doubts": replace(clean(), bundles=DOUBTED, others_containers=Finding.UNKNOWN),
    "others' containers are clean by groups with doubts": replace(clean(), cgroups=DOUBTED, others=Finding.UNKNOWN),
    "others are clean without groups": replace(clean(), cgroups=SourceSight(SourceState.NOT_PRESENT)),
    "others are held": replace(clean(), others=Finding.HELD),
    "unreadable for no reason": replace(
        clean(), cgroups=SourceSight(SourceState.UNREADABLE), others=Finding.UNKNOWN, others_containers=Finding.UNKNOWN
    ),
    "doubts without a name": replace(clean(), cgroups=replace(READ, more=1), others=Finding.UNKNOWN, others_containers=Finding.UNKNOWN),
    "a kubelet that is not there": replace(clean(), kubelet=KubeletSource(SourceState.READ)),
    "a kubelet that is there and not": replace(clean(), kubelet=KubeletSource(SourceState.NOT_PRESENT, KUBELET)),
    "a kubelet in doubt": replace(clean(), kubelet=KubeletSource(SourceState.READ, KUBELET, IN_DOUBT)),
    "no kubelet, in doubt": replace(clean(), kubelet=KubeletSource(SourceState.NOT_PRESENT, None, IN_DOUBT)),
    "a kubelet in no doubt": replace(clean(), kubelet=KubeletSource(SourceState.UNREADABLE)),
    "no kubeconfig for no reason": with_kubelet(kubeconfig=""),
    "a kubeconfig that is there and not": with_kubelet(kubeconfig_problem="it was not found"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_statement_that_contradicts_itself_is_none(name: str) -> None:
    said = CONTRADICTIONS[name]
    with pytest.raises(Malformed) as malformed:
        parse_answer(encode_answer(WitnessAnswer(3, said)))
    assert contradiction(said) in str(malformed.value)


def test_plain_ones_do_not_contradict_themselves() -> None:
    without = with_kubelet(kubeconfig="", kubeconfig_problem="it was not found")
    for said in (clean(), CLEAN, full(), replace(CLEAN, vnpus=(HELD,), containers=(CONTAINER,)), without):
        assert contradiction(said) == ""
