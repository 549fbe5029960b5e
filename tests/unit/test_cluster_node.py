"""Whether a Node is this host: the recorded one is, and with any field missing, odd, stale or of another host it is not."""

import json
from dataclasses import replace
from typing import Any

import pytest

from devward.cluster.answer import AnswerError, AnswerProblem
from devward.cluster.node import (
    REFUSAL_TEXT,
    KnownNode,
    Kubelets,
    LeaseFacts,
    LeaseSight,
    NodeBounds,
    NodeFacts,
    NodeIdentity,
    NodeRefusal,
    ThisHost,
    identify,
    parse_lease,
    parse_node,
    refusals,
    see_lease,
)
from sim.recorded_cluster import BOOT_ID, MACHINE_ID, NODE, RESOURCE, STATES, body, error_body, node_of, pods_of

KUBELET = "kubelet 812 at 4711"
HOST = ThisHost(BOOT_ID, frozenset({MACHINE_ID}), Kubelets((KUBELET,), 3600.0), tls_verified=True)
UID = "c56a709b-e8bf-4106-96c1-ff1d7fda2e03"
KNOWN = KnownNode(UID, BOOT_ID, KUBELET)
NOW = 5000.0
RENEWED = (LeaseFacts(NODE, "2026-12-01T00:58:38.000000Z"), LeaseSight("2026-12-01T00:58:38.000000Z", NOW - 10))


def recorded(state: str = "01", **changes: Any) -> NodeFacts:
    return replace(parse_node(node_of(state), NODE), **changes)


def reasons(node: NodeFacts, host: ThisHost = HOST, lease: tuple[LeaseFacts, LeaseSight] = RENEWED, **more: Any) -> list[NodeRefusal]:
    found = refusals(node, more.pop("identity", NodeIdentity.SAME), lease, host, NOW, **more)
    assert all(refused.sentence.endswith(".") and refused.sentence.isprintable() for refused in found)
    return [refused.reason for refused in found]


def changed(path: str, value: Any) -> bytes:
    """Return the recorded Node with another value at a path; a value of ... takes the field away."""
    whole = json.loads(node_of("01"))
    at: Any = whole
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    for part in parents:
        at = at[part]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return json.dumps(whole).encode()


READY = next(
    f"status/conditions/{number}"
    for number, entry in enumerate(json.loads(node_of("01"))["status"]["conditions"])
    if entry["type"] == "Ready"
)


# --- the recorded ones -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", STATES)
def test_every_recorded_node_is_that_host(state: str) -> None:
    node = recorded(state)
    assert (node.uid, node.boot_id, node.machine_id, node.runtime_version) == (UID, BOOT_ID, MACHINE_ID, "containerd://2.1.9+unknown")
    assert node.resources == {RESOURCE}
    assert reasons(node) == []


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        *(("status/nodeInfo/bootID", value, NodeRefusal.BOOT_DIFFERS) for value in (..., "", "00000000-0000-0000-0000-000000000000")),
        *(("status/nodeInfo/machineID", value, NodeRefusal.MACHINE_DIFFERS) for value in (..., "", "0" * 32)),
        *((f"{READY}/status", value, NodeRefusal.NOT_READY) for value in (..., "", "False", "Unknown", "true")),
        (READY, ..., NodeRefusal.NOT_READY),
        (f"{READY}/type", "NotReady", NodeRefusal.NOT_READY),
        ("status/conditions", [], NodeRefusal.NOT_READY),
        ("status/conditions", None, NodeRefusal.NOT_READY),
        ("status/conditions", [{"type": "Ready", "status": "True"}] * 2, NodeRefusal.NOT_READY),
        ("spec/taints", [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}], NodeRefusal.OUT_OF_SERVICE),
        ("metadata/deletionTimestamp", "2026-12-01T00:14:00Z", NodeRefusal.DELETING),
    ],
)
def test_a_field_that_does_not_fit_refuses_the_node_for_its_own_reason(path: str, value: Any, expected: NodeRefusal) -> None:
    assert reasons(parse_node(changed(path, value), NODE)) == [expected]


@pytest.mark.parametrize("path", ["status", "status/nodeInfo"])
def test_a_node_of_which_no_kubelet_spoke_is_refused(path: str) -> None:
    assert set(reasons(parse_node(changed(path, ...), NODE))) >= {NodeRefusal.BOOT_DIFFERS, NodeRefusal.MACHINE_DIFFERS}


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("kind", "NodeList", AnswerProblem.WRONG_KIND),
        ("apiVersion", ..., AnswerProblem.WRONG_KIND),
        ("metadata/name", "other", AnswerProblem.OTHER_NODE),
        ("metadata/name", ..., AnswerProblem.OTHER_NODE),
        *(("metadata/uid", value, AnswerProblem.FIELD_ODD) for value in (..., "", None, 7)),
        *(
            (path, 7, AnswerProblem.FIELD_ODD)
            for path in ("metadata", "spec", "status", "status/nodeInfo", "status/conditions", "spec/taints")
        ),
        *((path, None, AnswerProblem.FIELD_ODD) for path in ("metadata", "spec", "status", "status/nodeInfo", "status/nodeInfo/bootID")),
        *((path, ["x"], AnswerProblem.FIELD_ODD) for path in ("metadata/annotations", "status/capacity", "status/allocatable")),
        ("metadata/annotations", {"hami.io/mutex.lock": 7}, AnswerProblem.FIELD_ODD),
        ("spec/taints", [{"effect": "NoExecute"}], AnswerProblem.FIELD_ODD),
        ("status/conditions", ["Ready"], AnswerProblem.FIELD_ODD),
        ("metadata/deletionTimestamp", "soon", AnswerProblem.FIELD_ODD),
    ],
)
def test_a_field_without_its_type_is_a_named_problem(path: str, value: Any, problem: AnswerProblem) -> None:
    with pytest.raises(AnswerError) as caught:
        parse_node(changed(path, value), NODE)
    assert caught.value.problem is problem


@pytest.mark.parametrize("name", ["err-other-node.json", "err-401-bad-token.json", "err-anonymous.json"])
def test_recorded_errors_are_no_node(name: str) -> None:
    for parse in (parse_node, parse_lease):
        with pytest.raises(AnswerError) as caught:
            parse(error_body(name), NODE)
        assert caught.value.problem is AnswerProblem.WRONG_KIND


def test_other_objects_are_no_node() -> None:
    for data in (pods_of("01"), body("lease-1.json"), b"{}", b""):
        with pytest.raises(AnswerError):
            parse_node(data, NODE)


# --- identity --------------------------------------------------------------------------------------------------------------------------
def test_a_node_that_is_made_anew_is_refused_until_there_is_a_reason_for_it() -> None:
    node = recorded(uid="new")
    assert identify(node, None, HOST) is NodeIdentity.FIRST
    assert identify(recorded(), KNOWN, HOST) is NodeIdentity.SAME
    assert identify(node, KNOWN, HOST) is NodeIdentity.CHANGED
    assert identify(node, KNOWN, HOST, accepted=UID) is NodeIdentity.CHANGED
    assert identify(node, KNOWN, HOST, accepted="new") is NodeIdentity.ADOPTED
    assert identify(node, replace(KNOWN, boot_id="another boot"), HOST) is NodeIdentity.ADOPTED
    assert identify(node, replace(KNOWN, kubelet="kubelet 7 at 12"), HOST) is NodeIdentity.ADOPTED
    assert reasons(node, identity=NodeIdentity.CHANGED) == [NodeRefusal.UID_CHANGED]
    assert reasons(node, identity=NodeIdentity.ADOPTED) == reasons(node, identity=NodeIdentity.FIRST) == []
    assert [identity.resets for identity in NodeIdentity] == [False, False, True, True, True]


def test_where_it_is_lost_which_node_was_known_any_is_refused_until_there_is_a_reason_for_it() -> None:
    lost = replace(KNOWN, uid="")
    assert identify(recorded(), lost, HOST) is NodeIdentity.LOST
    assert reasons(recorded(), identity=NodeIdentity.LOST) == [NodeRefusal.UID_LOST]
    assert identify(recorded(), lost, HOST, accepted="other") is NodeIdentity.LOST
    assert identify(recorded(), lost, HOST, accepted=UID) is NodeIdentity.ADOPTED
    assert identify(recorded(), replace(lost, boot_id="another boot"), HOST) is NodeIdentity.ADOPTED
    assert identify(recorded(), replace(lost, kubelet="kubelet 7 at 12"), HOST) is NodeIdentity.ADOPTED
    assert {identity for identity in NodeIdentity if identity.may_be_accepted} == {NodeIdentity.CHANGED, NodeIdentity.LOST}


@pytest.mark.parametrize("kubelets", [Kubelets(), Kubelets(("kubelet 7 at 12",), 900.0, "half of /proc is hidden")])
def test_a_host_that_cannot_be_read_is_no_reason_to_adopt_a_node(kubelets: Kubelets) -> None:
    unreadable = replace(HOST, boot_id="", kubelets=kubelets)
    assert identify(recorded(uid="new"), KNOWN, unreadable) is NodeIdentity.CHANGED


# --- the Lease -------------------------------------------------------------------------------------------------------------------------
def test_the_recorded_lease_is_seen_to_be_renewed() -> None:
    first, second = (parse_lease(body(f"lease-{number}.json"), NODE) for number in (1, 2))
    assert (first.holder, second.holder) == (NODE, NODE)
    sight = see_lease(None, first, NOW)
    assert reasons(recorded(), lease=(first, sight)) == [NodeRefusal.LEASE_UNSEEN]
    sight = see_lease(sight, first, NOW + 5)
    assert sight.changed_at is None
    sight = see_lease(sight, second, NOW - 60)
    assert reasons(recorded(), lease=(second, sight)) == []
    assert see_lease(sight, second, NOW) == sight


def test_a_lease_that_is_not_renewed_any_more_is_stale() -> None:
    lease = LeaseFacts(NODE, "x")
    assert reasons(recorded(), lease=(lease, LeaseSight("x", NOW - 60.1))) == [NodeRefusal.LEASE_STALE]
    assert reasons(recorded(), lease=(lease, LeaseSight("x", NOW - 60.1)), bounds=NodeBounds(lease=90)) == []


def test_a_lease_without_a_time_is_never_seen_renewed() -> None:
    sight = see_lease(see_lease(None, LeaseFacts(NODE, "a"), 1.0), LeaseFacts(NODE, ""), 2.0)
    assert sight.changed_at is None
    assert see_lease(sight, LeaseFacts(NODE, "b"), 3.0).changed_at is None


@pytest.mark.parametrize("holder", ["", "other"])
def test_a_lease_of_somebody_else_is_refused(holder: str) -> None:
    assert reasons(recorded(), lease=(replace(RENEWED[0], holder=holder), RENEWED[1])) == [NodeRefusal.LEASE_NOT_OURS]


def test_an_odd_lease_is_a_named_problem() -> None:
    whole = json.loads(body("lease-1.json"))
    for path, value, problem in (
        (("metadata", "name"), "other", AnswerProblem.OTHER_NODE),
        (("metadata", "namespace"), "default", AnswerProblem.OTHER_NODE),
        (("spec", "renewTime"), "later", AnswerProblem.FIELD_ODD),
        (("spec", "holderIdentity"), 7, AnswerProblem.FIELD_ODD),
    ):
        odd = json.loads(json.dumps(whole))
        odd[path[0]][path[1]] = value
        with pytest.raises(AnswerError) as caught:
            parse_lease(json.dumps(odd).encode(), NODE)
        assert caught.value.problem is problem


# --- the host --------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tls_verified": False}, [NodeRefusal.TLS_UNVERIFIED]),
        ({"kubelets": Kubelets()}, [NodeRefusal.KUBELET_MISSING]),
        ({"kubelets": Kubelets((KUBELET, "k3s 9 at 3"), 900.0)}, [NodeRefusal.KUBELET_SEVERAL]),
        ({"kubelets": Kubelets((KUBELET,), 900.0, "half of /proc is hidden")}, [NodeRefusal.KUBELET_UNREADABLE]),
        ({"kubelets": Kubelets((KUBELET,), 299.9)}, [NodeRefusal.KUBELET_YOUNG]),
        ({"kubelets": Kubelets((KUBELET,), 300.0)}, []),
        ({"boot_id": "another boot"}, [NodeRefusal.BOOT_DIFFERS]),
        ({"boot_id": ""}, [NodeRefusal.HOST_UNKNOWN, NodeRefusal.BOOT_DIFFERS]),
        ({"machine_ids": frozenset({"f" * 32})}, [NodeRefusal.MACHINE_DIFFERS]),
        ({"machine_ids": frozenset()}, [NodeRefusal.HOST_UNKNOWN, NodeRefusal.MACHINE_DIFFERS]),
        ({"machine_ids": frozenset({MACHINE_ID, "f" * 32})}, []),
    ],
)
def test_a_host_that_does_not_fit_refuses_for_its_own_reason(changes: dict[str, Any], expected: list[NodeRefusal]) -> None:
    assert reasons(recorded(), replace(HOST, **changes)) == expected


def test_two_empty_ids_are_not_the_same() -> None:
    node = recorded(boot_id="", machine_id="")
    assert NodeRefusal.HOST_UNKNOWN in reasons(node, replace(HOST, boot_id=""))
    assert reasons(node, replace(HOST, boot_id="", machine_ids=frozenset({""}))) == [NodeRefusal.HOST_UNKNOWN, NodeRefusal.MACHINE_DIFFERS]


def test_several_kubelets_are_named() -> None:
    several = replace(HOST, kubelets=Kubelets((KUBELET, "k3s 9 at 3"), 900.0))
    (refused,) = refusals(recorded(), NodeIdentity.SAME, RENEWED, several, NOW)
    assert KUBELET in refused.sentence
    assert "k3s 9 at 3" in refused.sentence


def test_every_refusal_has_a_sentence() -> None:
    assert REFUSAL_TEXT.keys() == set(NodeRefusal)
    assert all(text.endswith(".") and len(text) < 130 for text in REFUSAL_TEXT.values())
