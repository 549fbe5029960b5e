"""The kubelet's checkpoint: recorded ones, made ones in both forms, and each way in which one can be wrong."""

import base64
import json
import random
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from devward.cluster.allocation import Allocation, Oddity
from devward.cluster.checkpoint import (
    SENTENCES,
    SIZE_LIMIT,
    Checkpoint,
    CheckpointError,
    Defect,
    Entry,
    Form,
    is_npu_resource,
    parse_checkpoint,
)
from devward.cluster.checksum import Row, checksum, fnv1a
from sim import kubelet_checkpoint as made
from sim.kubelet_checkpoint import BY_NUMA_NODE, DEFECTS, LIST, RESOURCE, Allocated, document, encoded, hami_response, response

RECORDED = sorted((Path(__file__).resolve().parents[1] / "data/kubernetes-1.36.2").glob("*.checkpoint.json"))
TEMPLATE = "vir05_1c_8g"
IDS = ("A1B2C3D4-00000001-0000000A-11111111-00000000-0", "A1B2C3D4-00000002-0000000A-22222222-00000000-1")
ENTRIES = (
    Allocated("0f8fad5b-d9cb-469f-a165-70867728950e", IDS[:1], hami_response([1], TEMPLATE)),
    Allocated("377a6b4dd9926d27b5831016d3cc562e", IDS[1:], hami_response([0])),
)
REGISTERED = {RESOURCE: IDS, "devward.org/kvm": ("0",)}


def good(form: str = BY_NUMA_NODE) -> bytes:
    return encoded(document(ENTRIES, REGISTERED, form=form))


def parsed(*entries: Allocated, registered: Any = REGISTERED, **settings: Any) -> Checkpoint:
    return parse_checkpoint(encoded(document(entries, registered, **settings)))


def defect_of(data: bytes) -> Defect:
    with pytest.raises(CheckpointError) as raised:
        parse_checkpoint(data)
    return raised.value.defect


# --- recorded from a kubelet ---


def test_every_recorded_checkpoint_is_whole() -> None:
    assert len(RECORDED) == 12
    for file in RECORDED:
        document_read = json.loads(file.read_bytes())
        found = parse_checkpoint(file.read_bytes())
        assert found.checksum == document_read["Checksum"] == made.checksum(document_read["Data"])
        assert len(found.entries) == len(document_read["Data"]["PodDeviceEntries"] or ())
        assert (found.others, found.defects, len(dict(found.registered)[RESOURCE])) == (0, (), 8)


RUNNING = "5dd4e7a7-0af2-4717-a103-f2d60735455c"
TO_DELETE = "6e423666-7c13-4501-990a-0f1d5b755300"
RUN_ERROR = "f917cc56-f875-468b-8f4e-534c11eb4648"
CRASH_LOOP = "3890f12a-9d2a-4f0a-b5e9-fceaec4158f2"
NOT_ANNOTATED = "c5f2b52d-ca43-43a2-8e1e-ff06891b9ddf"
WITH_INIT = "00887fbf-9c1e-4ac8-bb9d-86fad0d8f387"
STATIC = "377a6b4dd9926d27b5831016d3cc562e"
WHOLE = "f6d77614-9a71-49cc-9ee2-fe1312954628"


@pytest.mark.parametrize(
    ("states", "cards"),
    [
        (("00",), {}),
        (("01", "02", "03"), {key: {0} for key in (RUNNING, CRASH_LOOP, RUN_ERROR, TO_DELETE)}),
        # The Pod without annotations has phy 1 although the kubelet's id for it names the same card as the first one's.
        (("04", "05"), {key: {0} for key in (RUNNING, CRASH_LOOP, RUN_ERROR)} | {NOT_ANNOTATED: {1}}),
        (("06", "07"), {key: {0} for key in (RUNNING, CRASH_LOOP, RUN_ERROR, WITH_INIT)}),
        (("08",), {key: {0} for key in (RUNNING, CRASH_LOOP, RUN_ERROR, WITH_INIT, STATIC)}),
        (("09", "10", "11"), {key: {0} for key in (RUNNING, RUN_ERROR, WITH_INIT, STATIC, WHOLE)}),
    ],
)
def test_what_each_recorded_checkpoint_says(states: tuple[str, ...], cards: dict[str, set[int]]) -> None:
    for file in RECORDED:
        if file.name.startswith(states):
            found = parse_checkpoint(file.read_bytes())
            assert {entry.pod_uid: entry.allocation.cards for entry in found.entries} == cards
            assert {entry.allocation.template for entry in found.entries} <= {TEMPLATE}
            assert {entry.resource for entry in found.entries} <= {RESOURCE}
            assert found.form is (Form.BY_NUMA_NODE if cards else Form.NONE)


def test_a_pod_whose_entry_is_recorded_for_two_containers() -> None:
    (file,) = (file for file in RECORDED if file.name.startswith("06"))
    found = parse_checkpoint(file.read_bytes())
    assert {entry.container for entry in found.entries if entry.pod_uid == WITH_INIT} == {"prep", "main"}


def test_a_deleted_pods_entry_stays_until_a_later_allocation() -> None:
    # kubernetes/kubernetes issue 137010
    at = {file.name[:2]: parse_checkpoint(file.read_bytes()) for file in RECORDED}
    assert TO_DELETE in {entry.pod_uid for entry in at["02"].entries}
    assert TO_DELETE not in {entry.pod_uid for entry in at["04"].entries}
    # and one that was deleted with --force, whose container still ran, loses it like any other (issue 104824)
    assert NOT_ANNOTATED in {entry.pod_uid for entry in at["05"].entries}
    assert NOT_ANNOTATED not in {entry.pod_uid for entry in at["06"].entries}


def test_a_restart_of_the_kubelet_does_not_show() -> None:
    before, after = (next(file for file in RECORDED if file.name.startswith(state)) for state in ("09", "10"))
    assert before.read_bytes() == after.read_bytes()


def test_equal_answers_of_a_plugin_differ_in_bytes() -> None:
    (file,) = (file for file in RECORDED if file.name.startswith("08"))
    answers = {entry["AllocResp"] for entry in json.loads(file.read_bytes())["Data"]["PodDeviceEntries"]}
    assert len(answers) == 2
    assert len({entry.allocation for entry in parse_checkpoint(file.read_bytes()).entries}) == 1


# --- the checksum ---


def test_checksums_that_others_published() -> None:
    # From a text about a GPU laboratory, a cloud vendor's manual, and the test of multus-cni (pkg/checkpoint/checkpoint_test.go).
    tegra = base64.b64decode("Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh")
    rows = [Row("bf52b2cd-b611-4e79-86b1-280b283185c3", "check", "nvidia.com/gpu", {-1: ["tegra"]}, tegra)]
    assert checksum(rows, {"nvidia.com/gpu": ["tegra"]}) == 3660592824
    assert checksum(None, {"nvidia.com/gpu": ["GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0"]}) == 3952659280
    ids = ["0000:03:02.3", "0000:03:02.0"]
    answer = base64.b64decode("CikKC3NyaW92X25ldF9BEhogMDAwMDowMzowMi4zIDAwMDA6MDM6MDIuMA==")
    registered = {
        "intel.com/sriov_net_B": ["0000:03:06.3", "0000:03:06.0", "0000:03:06.1", "0000:03:06.2"],
        "intel.com/sriov_net_A": ["0000:03:02.1", "0000:03:02.2", "0000:03:02.3", "0000:03:02.0"],
    }
    rows = [Row("970a395d-bb3b-11e8-89df-408d5c537d23", "appcntr1", "intel.com/sriov_net_A", ids, answer)]
    assert checksum(rows, registered) == 229855270
    # multus-cni's later sample has the map of the newer form with the old checksum.
    assert checksum([rows[0]._replace(device_ids={-1: ids})], registered) == 3743704838


def test_numa_nodes_are_in_the_order_of_numbers() -> None:
    by_node = {"0": ["a"], "1": ["a"], "10": ["b"], "2": ["c"]}
    data = {
        "PodDeviceEntries": [{"PodUID": "p", "ContainerName": "c", "ResourceName": "r/x", "DeviceIDs": by_node, "AllocResp": "CgA="}],
        "RegisteredDevices": {},
    }
    assert (
        made.checksum(data) == checksum([Row("p", "c", "r/x", {int(key): ids for key, ids in by_node.items()}, b"\n\0")], {}) == 4266209592
    )


def test_the_kubelets_device_id_names_another_card_than_was_given() -> None:
    answer = base64.b64decode("ChsKFkFTQ0VORF9WSVNJQkxFX0RFVklDRVMSATcKIQoRQVNDRU5EX1ZOUFVfU1BFQ1MSDHZpcjA2XzFjXzE2Zw==")
    entry = Allocated("0b2d3b9e-6a51-4f5a-8f0e-2f1d6c0a9e11", ("uuid-3-0",), answer)
    found = parsed(entry, registered={RESOURCE: ("uuid-3-0", "uuid-7-0")})
    assert (found.checksum, found.entries[0].device_ids) == (358589547, ("uuid-3-0",))
    assert found.entries[0].allocation == Allocation(frozenset({7}), "vir06_1c_16g")


@pytest.mark.parametrize(("entries", "expected"), [(None, 3467439661), ([], 2932075448)])
def test_null_is_not_empty(entries: list[Row] | None, expected: int) -> None:
    assert checksum(entries, {}) == expected
    data = encoded({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": expected})
    assert parse_checkpoint(data).entries == ()


def test_fnv1a() -> None:
    # draft-eastlake-fnv
    assert [fnv1a(text) for text in (b"", b"a", b"foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]


TEXT = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)
NAME = TEXT.filter(bool)
ALLOCATED = st.builds(
    Allocated,
    pod_uid=NAME,
    device_ids=st.lists(TEXT, max_size=3),
    response=st.none() | st.binary(max_size=40) | st.builds(hami_response, st.lists(st.integers(0, 99), min_size=1, max_size=3), TEXT),
    container=TEXT,
    resource=st.sampled_from([RESOURCE, "huawei.com/Ascend310P", "huawei.com/x", "nvidia.com/gpu"]),
    numa_nodes=st.lists(st.integers(-1, 12), max_size=3, unique=True),
)
REGISTRATIONS = st.dictionaries(NAME | st.just(RESOURCE), st.lists(TEXT, max_size=3), max_size=3)


@hypothesis.given(
    st.lists(ALLOCATED, max_size=4, unique_by=lambda entry: (entry.pod_uid, entry.container, entry.resource)),
    REGISTRATIONS,
    st.sampled_from([BY_NUMA_NODE, LIST]),
    st.integers(0, 1 << 32),
)
def test_whatever_the_kubelet_writes_is_read(entries: list[Allocated], registered: dict[str, list[str]], form: str, seed: int) -> None:
    if form == BY_NUMA_NODE:
        # Without a node there is no place for a device.
        entries = [entry for entry in entries if entry.numa_nodes or not entry.device_ids]
    found = parse_checkpoint(encoded(document(entries, registered, form=form, dice=random.Random(seed))))
    npus = [entry for entry in entries if is_npu_resource(entry.resource)]
    assert len(found.entries) + found.others == len(entries)
    for entry in npus:
        (one,) = (
            one for one in found.entries if (one.pod_uid, one.container, one.resource) == (entry.pod_uid, entry.container, entry.resource)
        )
        assert one.device_ids == tuple(dict.fromkeys(entry.device_ids))
    assert {resource: set(ids) for resource, ids in found.registered} == {resource: set(ids) for resource, ids in registered.items()}
    assert (Defect.NOT_REGISTERED in found.defects) == (not any(ids and is_npu_resource(name) for name, ids in registered.items()))


# --- what an entry says ---


@pytest.mark.parametrize("form", [BY_NUMA_NODE, LIST])
def test_both_forms_say_the_same(form: str) -> None:
    found = parse_checkpoint(good(form))
    assert found.form == form
    assert found.entries == (
        Entry(ENTRIES[0].pod_uid, "main", RESOURCE, IDS[:1], Allocation(frozenset({1}), TEMPLATE)),
        Entry(ENTRIES[1].pod_uid, "main", RESOURCE, IDS[1:], Allocation(frozenset({0}))),
    )
    assert found.registered == (("devward.org/kvm", ("0",)), (RESOURCE, IDS))


def test_a_device_that_is_near_several_numa_nodes_is_one() -> None:
    entry = Allocated("p", ("x", "y"), hami_response([3]), numa_nodes=(0, 1, 10, 2))
    assert parsed(entry).entries[0].device_ids == ("x", "y")


def test_an_entry_without_devices() -> None:
    value = document([Allocated("p", (), hami_response([3]))], REGISTERED)
    value["Data"]["PodDeviceEntries"][0]["DeviceIDs"] = None
    assert parse_checkpoint(encoded(made.sealed(value["Data"]))).entries[0].device_ids == ()


def test_other_resources_are_left_out_and_never_skipped_unread() -> None:
    other = Allocated("p", ("0",), response({"NVIDIA_VISIBLE_DEVICES": "0"}), resource="nvidia.com/gpu")
    assert (parsed(other, *ENTRIES).others, len(parsed(other, *ENTRIES).entries)) == (1, 2)


@pytest.mark.parametrize(
    ("envs", "cards"),
    [
        ({"ASCEND_VISIBLE_DEVICES": "3"}, {3}),
        ({"ASCEND_VISIBLE_DEVICES": "many"}, None),
        ({"ASCEND_VNPU_SPECS": TEMPLATE}, None),
    ],
)
def test_a_resource_of_another_name_that_gives_npus_counts(envs: dict[str, str], cards: set[int] | None) -> None:
    found = parsed(Allocated("p", ("0",), response(envs), resource="example.com/npu"))
    assert [(entry.resource, entry.allocation.cards) for entry in found.entries] == [("example.com/npu", cards)]


@pytest.mark.parametrize(
    ("more", "vnpus"),
    [
        ({"devices": ["/dev/vdavinci148"]}, {148}),
        ({"devices": ["/dev/davinci3"]}, set()),
        ({"cdi_devices": ["ascend.com/vnpu=148"]}, {148}),
    ],
)
def test_a_resource_of_another_name_that_hands_out_a_node_counts(more: dict[str, list[str]], vnpus: set[int]) -> None:
    found = parsed(Allocated("p", ("0",), response({}, **more), resource="example.com/nodes"))
    ((resource, allocation),) = [(entry.resource, entry.allocation) for entry in found.entries]
    assert (resource, allocation.cards, allocation.handed.vnpus) == ("example.com/nodes", None, vnpus)


@pytest.mark.parametrize(
    "more", [{"devices": ["/dev/davinci_manager", "/dev/kvm", "/opt/davinci18/x"]}, {"cdi_devices": ["vendor.com/gpu=1"]}]
)
def test_another_resource_that_hands_out_something_else_does_not_count(more: dict[str, list[str]]) -> None:
    assert parsed(Allocated("p", ("0",), response({}, **more), resource="example.com/nodes")).others == 1


@pytest.mark.parametrize("value", ["", "void"])
def test_another_resource_that_gives_no_npu_does_not_count(value: str) -> None:
    found = parsed(Allocated("p", ("0",), response({"ASCEND_VISIBLE_DEVICES": value}), resource="example.com/other"))
    assert (found.entries, found.others) == ((), 1)


def test_an_entry_of_a_resource_that_is_not_registered_is_there() -> None:
    # After a restart the plugin may be away: kubernetes/kubernetes issue 109595
    found = parsed(*ENTRIES, registered={})
    assert (len(found.entries), found.defects) == (2, (Defect.NOT_REGISTERED,))


def test_a_newer_kubelet_may_say_more_beside_the_data() -> None:
    value = json.loads(good()) | {"BootID": "5f0c", "Later": [1.5, {"Data": None}]}
    assert parse_checkpoint(encoded(value)) == parse_checkpoint(good())


def test_go_escapes_what_html_might_misunderstand() -> None:
    entry = Allocated("<p>&\u2028", ('ä\t"',), hami_response([3]))
    data = encoded(document([entry], REGISTERED))
    assert b"\\u003cp\\u003e\\u0026\\u2028" in data
    assert (parse_checkpoint(data).entries[0].pod_uid, parse_checkpoint(data).entries[0].device_ids) == ("<p>&\u2028", ('ä\t"',))


# --- what is wrong ---


@pytest.mark.parametrize("form", [BY_NUMA_NODE, LIST])
@pytest.mark.parametrize(
    ("code", "case"), [(code, case) for code, cases in DEFECTS.items() for case in cases if code != Defect.NOT_REGISTERED]
)
def test_each_defect_has_its_name(code: str, case: str, form: str) -> None:
    bad = DEFECTS[code][case](good(form))
    assert bad != good(form)
    assert defect_of(bad) == code


@pytest.mark.parametrize("case", DEFECTS[Defect.NOT_REGISTERED])
def test_nothing_registered_is_a_defect_with_which_entries_are_known(case: str) -> None:
    found = parse_checkpoint(DEFECTS[Defect.NOT_REGISTERED][case](good()))
    assert (found.defects, found.entries) == ((Defect.NOT_REGISTERED,), parse_checkpoint(good()).entries)


def test_every_defect_is_made_and_has_a_sentence() -> None:
    assert {*DEFECTS, *made.PLACES} | {Defect.UNREADABLE, Defect.TORN} == set(Defect)
    assert set(SENTENCES) == set(Defect)
    assert len(set(SENTENCES.values())) == len(Defect)


def test_a_defect_quotes_little_and_nothing_that_does_not_print() -> None:
    value = json.loads(good())
    value["Data"]["PodDeviceEntries"][0]["DeviceIDs"] = {"\x1b" * 100_000: []}
    with pytest.raises(CheckpointError) as raised:
        parse_checkpoint(encoded(value))
    assert (len(raised.value.detail) <= 200, str(raised.value).isprintable()) == (True, True)


def test_the_largest_checkpoint_that_is_read() -> None:
    assert parse_checkpoint(good() + b" " * (SIZE_LIMIT - len(good())))
    assert defect_of(good() + b" " * (SIZE_LIMIT - len(good()) + 1)) is Defect.TOO_LARGE


def test_every_cut_is_refused() -> None:
    data = good()
    assert {defect_of(data[:length]) for length in range(len(data))} == {Defect.NOT_JSON}


def test_every_single_changed_character_of_a_text_is_noticed() -> None:
    data = good()
    for position, byte in enumerate(data):
        if chr(byte).isalnum():
            other = b"0" if byte != ord("0") else b"1"
            changed = data[:position] + other + data[position + 1 :]
            assert defect_of(changed), changed


KEYS = st.sampled_from(["Data", "Checksum", "PodDeviceEntries", "RegisteredDevices", "PodUID"]) | st.text(max_size=4)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)


@hypothesis.given(
    st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)
)
def test_other_json_is_refused_by_name(value: Any) -> None:
    assert isinstance(defect_of(json.dumps(value).encode()), Defect)


@hypothesis.given(st.binary())
def test_other_bytes_are_refused_by_name(data: bytes) -> None:
    assert isinstance(defect_of(data), Defect)


def test_the_answers_that_cannot_be_told_are_all_cards() -> None:
    found = parsed(Allocated("p", ("x",), None), Allocated("q", ("x",), b""), Allocated("r", ("x",), b"\xff"))
    assert {entry.pod_uid: (entry.allocation.cards, entry.allocation.oddity) for entry in found.entries} == {
        "p": (None, Oddity.EMPTY),
        "q": (None, Oddity.EMPTY),
        "r": (None, Oddity.UNDECODABLE),
    }
