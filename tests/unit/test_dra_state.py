"""The kubelet's record of dynamic resource allocation: who drives, and nothing taken that the kubelet does not write."""

import contextlib
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.cluster.dra_state import SIZE_LIMIT, DraStateError, parse_dra_state
from sim.dra_checkpoint import VERSION, compact, content, device, entry, sealed

GPU, NPU = "gpu.example.com", "npu.example.com"

#: Checksums of published ones: pkg/kubelet/cm/dra/state/checkpointer_test.go in kubernetes/kubernetes.
PUBLISHED = {
    1597924435: [[device(CDIDeviceIDs=["example.com/example=cdi-example"])]],
    1812303514: [[device(name, CDIDeviceIDs=["example.com/example=cdi-example"]) for name in ("dev-1", "dev-2")]],
    3633532417: [
        [device(CDIDeviceIDs=["example.com/example=cdi-example"])],
        [device("dev-2", RequestNames=None, CDIDeviceIDs=None)],
    ],
}


@pytest.mark.parametrize("checksum", PUBLISHED)
def test_what_the_kubelet_writes_is_read(checksum: int) -> None:
    claims = PUBLISHED[checksum]
    many = len(claims) > 1
    uids = ("067798be-454e-4be4-9047-1aa06aea63f7", "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c")
    entries = [
        entry(
            ClaimUID=uids[number],
            ClaimName=f"example-{number + 1}" if many else "example",
            DriverState={"test-driver.cdi.k8s.io": {"Devices": devices}},
        )
        for number, devices in enumerate(claims)
    ]
    data = sealed(content(*entries))
    assert json.loads(data)["Checksum"] == checksum
    assert parse_dra_state(data) == {"test-driver.cdi.k8s.io"}


def test_every_driver_of_every_claim_is_named() -> None:
    assert parse_dra_state(sealed(content(entry(GPU, NPU), entry(NPU), entry("Npu.Huawei.com")))) == {GPU, NPU, "Npu.Huawei.com"}


@pytest.mark.parametrize("data", [content(), content(Entries=[]), content(entry()), content(entry(DriverState=None, PodUIDs=None))])
def test_no_claims_are_no_drivers(data: dict[str, Any]) -> None:
    assert parse_dra_state(sealed(data)) == frozenset()


def test_what_a_driver_says_of_its_devices_is_its_own() -> None:
    # Its devices got a ShareID in Kubernetes 1.35.
    states = {GPU: {"Devices": [device(ShareID="x")], "Later": 1}, NPU: {"Devices": None}}
    assert parse_dra_state(sealed(content(entry(DriverState=states)))) == {GPU, NPU}


ALPHA = {
    "version": "v1",
    "entries": [{**entry(), "DriverName": NPU, "ClassName": "class", "CDIDevices": {NPU: ["example.com/example=x"]}}],
    "checksum": 113577689,
}
GOOD = content(entry(GPU))
REFUSED: dict[str, bytes] = {
    "nothing": b"",
    "cut off": sealed(GOOD)[:-1],
    "more behind it": sealed(GOOD) + b"{}",
    "bytes that are no text": sealed(GOOD).replace(b"example", b"ex\xffmple"),
    "a list": b"[]",
    "null": b"null",
    "of the alpha releases": compact(ALPHA).encode(),
    "without a checksum": compact({"Data": compact(GOOD)}).encode(),
    "with more in it": sealed(GOOD, BootID="x"),
    "another checksum": sealed(GOOD, Checksum=zlib.crc32(compact(GOOD).encode()) ^ 1),
    "a checksum that is a text": sealed(GOOD, Checksum=str(zlib.crc32(compact(GOOD).encode()))),
    "a checksum with a fraction": sealed(GOOD, Checksum=float(zlib.crc32(compact(GOOD).encode()))),
    "a checksum that is true": sealed(GOOD, Checksum=True),
    "data that is an object": sealed(GOOD, Data=GOOD),
    "data that is null": sealed(GOOD, Data=None),
    "data that is no JSON": sealed("{"),
    "data that is no object": sealed("[]"),
    "data with half a character": sealed('{"\ud800":1}'),
    "a key twice": sealed(GOOD).replace(b'{"Data"', b'{"Checksum":1,"Data"'),
    "a key of the data twice": sealed(compact(GOOD).replace('{"kind"', '{"kind":"x","kind"')),
    "a driver twice": sealed(compact(GOOD).replace(f'"{GPU}":', f'"{GPU}":{{}},"{GPU}":')),
    "not a number": sealed(compact(GOOD).replace("null", "NaN").replace('["test request"]', "NaN")),
    "nested without end": b"[" * 100_000,
    "data nested without end": sealed("[" * 100_000),
    "another kind": sealed({**GOOD, "kind": "Checkpoint"}),
    "another version": sealed({**GOOD, "apiVersion": "checkpoint.dra.kubelet.k8s.io/v2"}),
    "no version": sealed({key: value for key, value in GOOD.items() if key != "apiVersion"}),
    "no entries": sealed({key: value for key, value in GOOD.items() if key != "Entries"}),
    "entries of a version in between": sealed({"kind": "DRACheckpoint", "apiVersion": VERSION, "ClaimInfoStateList": []}),
    "more in the data": sealed({**GOOD, "More": []}),
    "entries that are an object": sealed(content(Entries={})),
    "an entry that is null": sealed(content(Entries=[None])),
    "an entry with more in it": sealed(content(entry(GPU, Drivers=[NPU]))),
    "a claim without a name": sealed(content({key: value for key, value in entry(GPU).items() if key != "ClaimName"})),
    "a claim's name that is a number": sealed(content(entry(GPU, ClaimName=1))),
    "a claim's UID that is null": sealed(content(entry(GPU, ClaimUID=None))),
    "a namespace that is a list": sealed(content(entry(GPU, Namespace=[]))),
    "Pods in a list": sealed(content(entry(GPU, PodUIDs=["x"]))),
    "drivers in a list": sealed(content(entry(DriverState=[GPU]))),
    "a driver without a state": sealed(content(entry(DriverState={GPU: None}))),
    "a driver without a name": sealed(content(entry(""))),
    "a driver with another name": sealed(content(entry("gpu.example.com/x"))),
    "a driver with a line in its name": sealed(content(entry(f"{GPU}\n"))),
    "a driver with other letters in its name": sealed(content(entry("\u00fcber.example.com"))),
    "a driver with a long name": sealed(content(entry("x" * 64))),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_kubelet_does_not_write_is_refused(case: str) -> None:
    with pytest.raises(DraStateError) as refused:
        parse_dra_state(REFUSED[case])
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200


def test_a_large_one_is_refused_before_it_is_taken_apart() -> None:
    padded = sealed(GOOD).ljust(SIZE_LIMIT)
    assert parse_dra_state(padded) == {GPU}
    with pytest.raises(DraStateError, match="longer than"):
        parse_dra_state(padded + b" ")


# --- damage ---

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from((GPU, VERSION, "DRACheckpoint")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9) | st.just(GPU), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.from_regex(r"[0-9A-Za-z]([0-9A-Za-z.-]{0,8}[0-9A-Za-z])?", fullmatch=True)


def named(data: Any) -> frozenset[str]:
    """Every key of every DriverState, wherever that stands."""
    found: set[str] = set()
    if isinstance(data, dict):
        for key, value in data.items():
            if key == "DriverState" and isinstance(value, dict):
                found |= value.keys()
            found |= named(value)
    elif isinstance(data, list):
        for value in data:
            found |= named(value)
    return frozenset(found)


@given(st.binary(max_size=60) | JSON_VALUES.map(compact).map(str.encode) | JSON_VALUES.map(compact).map(sealed))
def test_whatever_it_is_it_is_read_or_refused(data: bytes) -> None:
    # None of these has all that an entry has.
    with contextlib.suppress(DraStateError):
        assert parse_dra_state(data) == frozenset()


@given(st.lists(st.lists(NAMES, max_size=3), max_size=3))
def test_what_is_written_is_read(claims: list[list[str]]) -> None:
    assert parse_dra_state(sealed(content(*(entry(*drivers) for drivers in claims)))) == {name for names in claims for name in names}


@given(st.data())
def test_one_changed_byte_is_found_or_changes_nothing(data: st.DataObject) -> None:
    good = bytearray(sealed(content(entry(GPU, NPU))))
    place = data.draw(st.integers(0, len(good) - 1))
    good[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DraStateError):
        assert parse_dra_state(bytes(good)) == {GPU, NPU}


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where there is a value inside the data."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for name, below in inner for place in places(below, (*here, name)))]


@given(st.data(), JSON_VALUES)
def test_no_driver_is_overlooked_where_one_value_is_another_and_the_checksum_fits(data: st.DataObject, value: Any) -> None:
    changed = content(entry(GPU), entry(NPU))
    place = data.draw(st.sampled_from(places(changed)[1:]))
    holder: Any = changed
    for name in place[:-1]:
        holder = holder[name]
    holder[place[-1]] = value
    try:
        found = parse_dra_state(sealed(compact(changed)))
    except DraStateError:
        return
    kept = {claim for claim, name in enumerate((GPU, NPU)) if place[:1] != ("Entries",) or place[1:2] not in ((), (claim,))}
    assert {(GPU, NPU)[claim] for claim in kept} <= found
    # Outside of what is a driver's own, every name is one of a DriverState.
    assert found <= named(json.loads(compact(changed)))
