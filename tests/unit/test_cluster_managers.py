"""Signs of another manager, and what is none."""

import pytest

from devward.cluster.claims import Allocation
from devward.cluster.managers import REFUSAL_TEXT, Drivers, ManagerRefusal, Sign, signs
from devward.cluster.node import NodeFacts, parse_node
from devward.cluster.podlist import Pod, parse_pod_list
from sim.pod_desk import UID, annotated, container, ended, listing, pod, segments, whole_pod
from sim.recorded_cluster import DIES, NODE, RESOURCE, STATES, WORD, allocations_of, node_of, pods_of

QUIET = NodeFacts(NODE, "uid")


def found(*pods: dict[str, object], **more: object) -> list[Sign]:
    node = more.get("node", QUIET)
    read: tuple[Pod, ...] = parse_pod_list(listing(*pods), NODE).pods
    return list(signs(node, read, more.get("given", ()), more.get("registered", ()), more.get("drivers", Drivers())))  # type: ignore[arg-type]


@pytest.mark.parametrize("state", STATES)
def test_no_recorded_state_has_a_sign(state: str) -> None:
    pods = parse_pod_list(pods_of(state), NODE).pods
    assert signs(parse_node(node_of(state), NODE), pods, allocations_of(state), [RESOURCE], Drivers()) == ()


@pytest.mark.parametrize(
    "annotations",
    [
        {"huawei.com/AscendReal": "Ascend910-0"},
        {"huawei.com/AscendReal": ""},
        {"huawei.com/kltDev": "Ascend910-0"},
        {"huawei.com/kltDev": ""},
        {"huawei.com/npu-core": "0-vir02"},
        {"huawei.com/Ascend910": "Ascend910-5c.1cpu.16g-180-5"},
        {"huawei.com/Ascend310P": "Ascend310P-2c-100-0"},
        {"huawei.com/Ascend910": "Ascend910-0, Ascend910-1"},
        {f"huawei.com/{WORD}": "Ascend910-16c-105-0"},
    ],
)
def test_values_of_huaweis_own_plugin_are_signs_wherever_they_stand(annotations: dict[str, str]) -> None:
    for one in (pod(annotations=annotations), pod(annotations=annotations, phase="Failed", states={"main": ended(1)})):
        (sign,) = found(one)
        assert (sign.reason, sign.where) == (ManagerRefusal.FOREIGN_MANAGER, f"Pod {UID}")
        assert sign.sentence.endswith(").")
    assert [sign.where for sign in found(node=NodeFacts(NODE, "uid", annotations=annotations))] == ["node"]


@pytest.mark.parametrize(
    "key", ["huawei.com/Ascend310P", "huawei.com/Ascend910", "huawei.com/Ascend910B4", "hami.io/Ascend310P-devices-to-allocate"]
)
@pytest.mark.parametrize("value", [whole_pod(DIES[0]), segments([DIES[0]]), ";", "", "broken"])
def test_a_value_in_hamis_form_is_hamis_under_every_name(key: str, value: str) -> None:
    assert found(pod(annotations={key: value})) == []


@pytest.mark.parametrize(
    "resource",
    [
        "huawei.com/Ascend910",
        "huawei.com/npu-core",
        "huawei.com/Ascend910-16c",
        "huawei.com/Ascend310P-2c.1cpu",
        "huawei.com/Ascend910-5c.1cpu.16g",
    ],
)
def test_resources_that_hami_has_no_word_for_are_signs(resource: str) -> None:
    wanting = pod(containers=[{**container(), "resources": {"limits": {resource: "1"}}}])
    assert [sign.where for sign in found(wanting)] == [f"Pod {UID}"]
    assert [sign.where for sign in found(node=NodeFacts(NODE, "uid", resources=frozenset({resource})))] == ["node"]
    assert [sign.where for sign in found(registered=[resource])] == ["checkpoint"]
    assert [sign.where for sign in found(given=[Allocation(UID, "main", resource)])] == ["checkpoint"]


@pytest.mark.parametrize("word", ["Ascend910A", "Ascend910B2", "Ascend910B4-1", "Ascend310P", "Ascend910C"])
def test_resources_of_hami_are_no_signs(word: str) -> None:
    names = frozenset(f"huawei.com/{word}{ending}" for ending in ("", "-memory", "-core"))
    assert found(node=NodeFacts(NODE, "uid", resources=names), registered=names) == []


def test_ids_in_the_checkpoint_are_signs_by_their_form() -> None:
    own = Allocation(UID, "main", "huawei.com/Ascend310P", None, frozenset({"Ascend310P-2c-100-0"}))
    assert [sign.what for sign in found(given=[own])] == ["Ascend310P-2c-100-0"]
    assert found(given=[Allocation(UID, "main", "huawei.com/Ascend310P", None, frozenset({f"{DIES[0]}-3"}))]) == []


@pytest.mark.parametrize(
    ("name", "is_sign"),
    [("npu.huawei.com", True), ("ascend.com", True), ("Ascend-DRA.example", True), ("gpu.nvidia.com", False), ("", False)],
)
def test_drivers_for_ascend_are_signs_by_their_name(name: str, is_sign: bool) -> None:
    assert bool(found(drivers=Drivers(frozenset({name})))) is is_sign


def test_claims_that_cannot_be_read_are_not_known() -> None:
    claiming = pod(containers=[container(npus=None)], spec={"resourceClaims": [{"name": "npu", "resourceClaimName": "x"}]})
    (sign,) = found(claiming, drivers=Drivers(unreadable=True))
    assert (sign.reason, sign.where, sign.what) == (ManagerRefusal.CLAIMS_UNREADABLE, f"Pod {UID}", "resourceClaims")
    (sign,) = found(claiming, drivers=Drivers(unreadable=True, problem="plugins_registry: Permission denied\n"))
    assert sign.sentence.endswith(f"look at those (Pod {UID}: 'plugins_registry: Permission denied\\x0a').")
    assert found(claiming) == []
    assert found(pod(annotations=annotated(DIES[0])), drivers=Drivers(unreadable=True)) == []
    over = {**claiming, "status": {"phase": "Succeeded"}}
    assert found(over, drivers=Drivers(unreadable=True)) == []


def test_every_refusal_has_a_sentence() -> None:
    assert REFUSAL_TEXT.keys() == set(ManagerRefusal)
