"""What one OCI configuration says: recorded ones, made ones, and everything else."""

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from devward.cluster.bundle import (
    BundleError,
    BundleFacts,
    ContainerType,
    DestroyHook,
    facts_of_labels,
    parse_bundle,
    visible_cards,
)
from devward.cluster.evidence import DeviceNumber, pod_uid_of_cgroup

DATA = Path(__file__).resolve().parents[1] / "data/bundles"
UID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def made(name: str) -> dict[str, Any]:
    """Return a bundle made by hand."""
    value: dict[str, Any] = json.loads((DATA / "made" / name).read_text())
    return value


def parsed(spec: object) -> BundleFacts:
    return parse_bundle(json.dumps(spec).encode())


def test_recorded_bundles_of_containerd() -> None:
    found = {file.name[:4]: parse_bundle(file.read_bytes()) for file in (DATA / "containerd").iterdir()}
    running, whole = "5dd4e7a7-0af2-4717-a103-f2d60735455c", "f6d77614-9a71-49cc-9ee2-fe1312954628"
    static = "377a6b4dd9926d27b5831016d3cc562e"
    assert {name: (facts.type, set(facts.pod_uids)) for name, facts in found.items()} == {
        "29bc": (ContainerType.CONTAINER, {static}),
        "a6d6": (ContainerType.SANDBOX, {static}),
        "4fb6": (ContainerType.CONTAINER, {running}),
        "ac64": (ContainerType.SANDBOX, {running}),
        "fc42": (ContainerType.CONTAINER, {whole}),
        "372a": (ContainerType.SANDBOX, {whole}),
    }
    for facts in found.values():
        is_container = facts.type is ContainerType.CONTAINER
        assert (facts.cards, facts.template) == (({0}, "vir05_1c_8g") if is_container else (frozenset(), ""))
        assert (facts.vdevs, facts.hooks, facts.devices, facts.has_all_devices) == (frozenset(), (), frozenset(), False)


@pytest.mark.parametrize(
    ("name", "vdev", "hook", "uids", "kind"),
    [
        ("containerd-vnpu.json", 148, DestroyHook(2, 1, 148), {UID}, ContainerType.CONTAINER),
        ("cri-o-vnpu.json", 116, DestroyHook(1, 0, 116), {UID}, ContainerType.CONTAINER),
        ("docker-pod-vnpu.json", 100, DestroyHook(0, 0, 100), {UID}, ContainerType.UNKNOWN),
        ("docker-plain.json", 101, DestroyHook(0, 0, 101), set(), ContainerType.UNKNOWN),
    ],
)
def test_a_vnpu_is_named_exactly(name: str, vdev: int, hook: DestroyHook, uids: set[str], kind: ContainerType) -> None:
    facts = parsed(made(name))
    assert (facts.vdevs, facts.hooks, facts.pod_uids, facts.type) == ({vdev}, (hook,), uids, kind)
    assert facts.names(vdev, DeviceNumber(999, 999))
    assert facts.names(0, DeviceNumber(236, vdev))
    assert not facts.names(vdev + 1, DeviceNumber(236, vdev + 1))
    assert facts.cards == {(vdev - 100) // 16}
    assert facts.is_of_kubernetes == bool(uids)


def test_a_sandbox_of_cri_o() -> None:
    facts = parsed(made("cri-o-sandbox.json"))
    assert (facts.type, facts.pod_uids) == (ContainerType.SANDBOX, {UID})


@pytest.mark.parametrize("part", ["hook", "node", "rule", "mount"])
def test_each_trace_of_a_vnpu_names_it_alone(part: str) -> None:
    spec = made("docker-plain.json")
    linux = spec["linux"]
    if part != "hook":
        del spec["hooks"]
    if part != "node":
        del linux["devices"]
    if part != "rule":
        linux["resources"]["devices"] = []
    if part == "mount":
        spec["mounts"].append({"destination": "/dev/davinci101", "source": "/dev//vdavinci101", "type": "bind"})
    assert parsed(spec).names(101, DeviceNumber(236, 101))
    assert not parsed(spec).names(102, DeviceNumber(236, 102))


@pytest.mark.parametrize("node", ["/dev/davinci7", "/dev/davinci_manager", "/dev/vdavinci", "/devices/vdavinci100"])
def test_cards_and_manager_nodes_name_no_vnpu(node: str) -> None:
    spec = {"linux": {"devices": [{"path": node, "type": "c", "major": 236, "minor": 7}]}}
    assert parsed(spec).vdevs == frozenset()


@pytest.mark.parametrize(
    ("rule", "devices", "majors", "has_all"),
    [
        ({"allow": True, "access": "rwm"}, set(), set(), True),
        ({"allow": True, "type": "a", "access": "rwm"}, set(), set(), True),
        ({"allow": True}, set(), set(), True),
        ({"allow": True, "type": "c", "major": -1, "minor": -1, "access": "r"}, set(), set(), True),
        ({"allow": True, "type": "c", "major": None, "minor": None, "access": "w"}, set(), set(), True),
        ({"allow": True, "type": "c", "major": 236, "access": "rw"}, set(), {236}, False),
        ({"allow": True, "type": "c", "major": 236, "minor": 100}, {(236, 100)}, set(), False),
        ({"allow": True, "type": "c", "access": "m"}, set(), set(), False),
        ({"allow": True, "type": "b", "access": "rwm"}, set(), set(), False),
        ({"allow": False, "type": "c", "major": 236, "minor": 100, "access": "rwm"}, set(), set(), False),
    ],
)
def test_rules_of_the_device_cgroup(rule: object, devices: set[tuple[int, int]], majors: set[int], has_all: bool) -> None:
    facts = parsed({"linux": {"resources": {"devices": [rule]}}})
    assert (facts.devices, facts.majors, facts.has_all_devices) == (devices, majors, has_all)
    assert facts.may_open(DeviceNumber(236, 101)) == (has_all or bool(majors))


@pytest.mark.parametrize(
    ("source", "has_all"),
    [("/dev", True), ("/dev/", True), ("/", True), ("//", True), ("tmpfs", False), ("/dev/shm", False), ("", False), (None, False)],
)
def test_the_hosts_dev_is_every_device(source: str | None, has_all: bool) -> None:
    assert parsed({"mounts": [{"destination": "/somewhere", "source": source}]}).has_all_devices is has_all


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("", set()),
        ("void", set()),
        ("0", {0}),
        ("0,3, 5", {0, 3, 5}),
        ("0-3,7", {0, 1, 2, 3, 7}),
        ("Ascend910-3", {3}),
        ("npu-0,npu-12", {0, 12}),
        ("all", None),
        ("3-0", None),
        ("0,", None),
        ("100", None),
        ("-1", None),
        ("٣", None),
        ("0,VOID", None),
        (" ", None),
    ],
)
def test_visible_cards(text: str, cards: set[int] | None) -> None:
    assert visible_cards(text) == cards


def test_of_a_variable_that_stands_twice_all_cards_count() -> None:
    environment = ["ASCEND_VISIBLE_DEVICES=0", "ASCEND_VISIBLE_DEVICES=2", "ASCEND_VNPU_SPECS=vir02", "ASCEND_VNPU_SPECS="]
    facts = parsed({"process": {"env": environment}})
    assert (facts.cards, facts.template) == ({0, 2}, "vir02")
    assert parsed({"process": {"env": [*environment, "ASCEND_VISIBLE_DEVICES=x", "ASCEND_VISIBLE_DEVICES=1"]}}).cards is None


def test_what_is_absent_or_null_names_nothing() -> None:
    for spec in ({}, {"process": None, "linux": None, "hooks": None, "mounts": None, "annotations": None}, {"linux": {"devices": None}}):
        assert parsed(spec) == BundleFacts()


def test_every_uid_counts_where_the_parts_disagree() -> None:
    spec = made("containerd-vnpu.json")
    spec["linux"]["cgroupsPath"] = "/kubepods/podsomething-else/abc"
    assert parsed(spec).pod_uids == {UID, "something-else"}


def test_the_log_directory_tells_the_uid_where_nothing_else_does() -> None:
    annotations = {"io.kubernetes.cri.container-type": "sandbox", "io.kubernetes.cri.sandbox-log-directory": f"/var/log/pods/ns_pod_{UID}/"}
    assert parsed({"annotations": annotations}).pod_uids == {UID}


def test_a_type_that_is_not_known_is_no_sandbox() -> None:
    key, other = "io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"
    assert parsed({"annotations": {key: "other"}}).type is ContainerType.CONTAINER
    assert parsed({"annotations": {key: "sandbox", other: "container"}}).type is ContainerType.CONTAINER


def test_labels_of_docker() -> None:
    labels = {"io.kubernetes.docker.type": "podsandbox", "io.kubernetes.pod.uid": UID}
    assert facts_of_labels(labels) == BundleFacts(ContainerType.SANDBOX, frozenset({UID}))
    assert facts_of_labels(None) == BundleFacts()
    with pytest.raises(BundleError):
        facts_of_labels([])


_HOOK = "/usr/local/bin/ascend-docker-destroy"


@pytest.mark.parametrize(
    "arguments",
    [
        [_HOOK],
        [_HOOK, "0", "0"],
        [_HOOK, "0", "0", "100", "1"],
        [_HOOK, "0", "0", "65535"],
        [_HOOK, "0", "0", "99"],
        [_HOOK, "0", "0", "1124"],
        [_HOOK, "0", "x", "100"],
        [_HOOK, "0", "-1", "100"],
        [_HOOK, "0", "0", "٣٣٣"],
        [_HOOK, 0, 0, 100],
        "0 0 100",
    ],
)
def test_a_destroy_hook_that_is_not_understood_spoils_the_bundle(arguments: object) -> None:
    for hook in ({"path": _HOOK, "args": arguments}, {"path": "/other", "args": arguments}):
        if hook["path"] == "/other" and not isinstance(arguments, list):
            continue
        with pytest.raises(BundleError):
            parsed({"hooks": {"poststop": [hook]}})


def test_a_destroy_hook_without_arguments_spoils_the_bundle() -> None:
    with pytest.raises(BundleError):
        parsed({"hooks": {"poststop": [{"path": _HOOK}]}})


def test_hooks_of_others_and_of_any_phase() -> None:
    hooks = {"prestart": [{"path": "/usr/bin/nvidia", "args": ["x"]}, {"path": "/bin/true"}], "poststop": None}
    assert parsed({"hooks": hooks}).hooks == ()
    assert parsed({"hooks": {"createRuntime": [{"path": _HOOK, "args": [_HOOK, "1", "0", "116"]}]}}).vdevs == {116}


@pytest.mark.parametrize("node", ["/dev/vdavinci99", "/dev/vdavinci1124", "/dev/davinci1124", "/dev/vdavinci65535"])
def test_a_node_with_an_impossible_id_spoils_the_bundle(node: str) -> None:
    with pytest.raises(BundleError):
        parsed({"linux": {"devices": [{"path": node, "type": "c", "major": 236, "minor": 1}]}})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"\xff",
        b"{",
        b'{"linux":{},"linux":{}}',
        b'{"annotations":{"a":"1","a":"2"}}',
        b'{"annotations":{"a":1}}',
        b'{"annotations":{"io.kubernetes.cri-o.Labels":"x"}}',
        b'{"process":{"env":"x"}}',
        b'{"process":{"env":[1]}}',
        b'{"linux":[]}',
        b'{"linux":{"devices":{}}}',
        b'{"linux":{"devices":[1]}}',
        b'{"linux":{"devices":[{"path":1}]}}',
        b'{"linux":{"devices":[{"path":"/x","type":"c","major":1.5,"minor":1}]}}',
        b'{"linux":{"devices":[{"path":"/x","type":"c","major":true,"minor":1}]}}',
        b'{"linux":{"devices":[{"path":"/x","type":"c","major":99999999999,"minor":1}]}}',
        b'{"linux":{"resources":{"devices":[{}]}}}',
        b'{"linux":{"cgroupsPath":1}}',
        b'{"mounts":[{"source":1}]}',
        b'{"hooks":[]}',
        b'{"hooks":{"poststop":{}}}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":' + b"1" * 10_000 + b"}",
    ],
)
def test_what_runtimes_do_not_write_is_refused(text: bytes) -> None:
    with pytest.raises(BundleError):
        parse_bundle(text)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)


@hypothesis.given(st.binary(max_size=200) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_no_input_does_anything_but_parse_or_be_refused(data: bytes) -> None:
    with contextlib.suppress(BundleError):
        parse_bundle(data)


def _places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [path] if path else []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        found += _places(entry, (*path, key))
    return found


BUNDLES = [json.loads(file.read_text()) for file in sorted(DATA.glob("*/*.json"))]


@hypothesis.given(st.data())
def test_a_bundle_with_one_part_changed_is_parsed_or_refused(data: st.DataObject) -> None:
    spec = copy.deepcopy(data.draw(st.sampled_from(BUNDLES)))
    *way, last = data.draw(st.sampled_from(_places(spec)))
    place = spec
    for key in way:
        place = place[key]
    place[last] = data.draw(JSON_VALUES)
    with contextlib.suppress(BundleError):
        parsed(spec)


@hypothesis.given(st.text(max_size=60))
def test_no_text_names_cards_that_cannot_be(text: str) -> None:
    cards = visible_cards(text)
    assert cards is None or all(0 <= card < 100 for card in cards)


@pytest.mark.parametrize(
    ("name", "uid"),
    [
        (f"pod{UID}", UID),
        ("pod377a6b4dd9926d27b5831016d3cc562e", "377a6b4dd9926d27b5831016d3cc562e"),
        (f"kubepods-besteffort-pod{UID.replace('-', '_')}.slice", UID),
        (f"kubepods-pod{UID.replace('-', '_')}.slice", UID),
        (f"own-root-kubepods-burstable-pod{UID.replace('-', '_')}.slice", UID),
        ("podmy-own-static-uid", "my-own-static-uid"),
        ("kubepods-besteffort.slice", ""),
        ("kubepods", ""),
        ("podman.service.slice", ""),
        ("system.slice", ""),
        ("", ""),
        ("pod", ""),
    ],
)
def test_the_pod_of_a_control_group(name: str, uid: str) -> None:
    assert pod_uid_of_cgroup(name) == uid


@hypothesis.given(st.text(max_size=80))
def test_any_name_of_a_group_is_read(name: str) -> None:
    assert isinstance(pod_uid_of_cgroup(name), str)
