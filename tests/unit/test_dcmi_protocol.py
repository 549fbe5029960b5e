"""What daemon and broker say to each other: every message comes back as it was, and nothing else is taken."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.npu import codes, numbering
from devward.npu.facts import (
    Aspect,
    Capacity,
    Chip,
    Expected,
    Inspection,
    Inventory,
    Mode,
    Node,
    Outcome,
    Problem,
    Process,
    Refusal,
    Vnpu,
)
from devward.npu.fields import Malformed
from devward.npu.protocol import (
    ANSWER_LIMIT,
    REQUEST_LIMIT,
    VERSION,
    Answer,
    DestroyAnswer,
    DestroyRequest,
    InspectAnswer,
    InspectRequest,
    ListAnswer,
    ListRequest,
    OtherVersion,
    RefusedAnswer,
    Request,
    answer_text,
    encode_answer,
    encode_request,
    parse_answer,
    parse_request,
    request_id,
)

BOOT = "0f3c2a10-1111-4222-8333-444455556666"
DIE = "01234567-89ABCDEF-00000000-FFFFFFFF-DEADBEEF"
EXPECTED = Expected(BOOT, 0, 1, 3, DIE, 148, 1, "vir05_1c_16g", Node(77, 1_700_000_000_000_000_001, 236, 148))
DESTROY = DestroyRequest(9, "b2a1.7", 1_000, "containerd://1.7.2", EXPECTED)

U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
IDS = st.integers(0, (1 << 53) - 1)
CODES = st.none() | st.integers(-(1 << 31), (1 << 31) - 1)
PRINTABLE = st.characters().filter(str.isprintable)
NAMES = st.none() | st.text(PRINTABLE, max_size=63)
TEMPLATES = st.from_regex(numbering.TEMPLATE, fullmatch=True)
DIES = st.tuples(U32, U32, U32, U32, U32).map(numbering.die_name)
CORES = st.none() | st.floats(0, 1024)
CARDS = st.integers(0, 63)
DEVICES = st.integers(0, 3)

PROBLEMS = st.builds(Problem, st.sampled_from(Aspect), CODES, st.none() | U32, st.none() | CARDS)
VNPUS = st.builds(
    Vnpu, U32, st.none() | U32, st.none() | TEMPLATES, st.none() | st.booleans(), st.none() | U64, CORES, st.none() | U64, st.none() | U32
)
CHIPS = st.builds(
    Chip,
    CARDS,
    DEVICES,
    st.none() | U32,
    st.none() | U32,
    st.none() | DIES,
    st.none() | U32,
    NAMES,
    NAMES,
    NAMES,
    NAMES,
    st.none() | U32,
    st.none() | st.lists(VNPUS, max_size=4).map(tuple),
    st.lists(PROBLEMS, max_size=3).map(tuple),
)
EXPECTATIONS = st.builds(
    Expected,
    st.just(BOOT),
    CARDS,
    DEVICES,
    st.integers(0, 63),
    DIES,
    U32,
    st.integers(1, 16),
    TEMPLATES,
    st.builds(Node, U64, st.integers(-(1 << 63), 1 << 63), U32, U32),
)
REQUESTS = st.one_of(
    st.builds(ListRequest, IDS),
    st.builds(InspectRequest, IDS, CARDS, DEVICES),
    st.builds(
        DestroyRequest,
        IDS,
        st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True),
        st.integers(0, (1 << 63) - 1),
        st.just("cri-o://1.30.1"),
        EXPECTATIONS,
    ),
)
CAPACITIES = st.none() | st.builds(Capacity, CORES, st.none() | U64, st.none() | U32)
ANSWERS = st.one_of(
    st.builds(RefusedAnswer, st.none() | IDS, st.sampled_from(Refusal), st.text().map(answer_text), CODES),
    st.builds(
        ListAnswer,
        IDS,
        st.builds(
            Inventory,
            st.just(BOOT),
            st.text(PRINTABLE, max_size=20),
            NAMES,
            st.sampled_from(Mode),
            st.none() | st.booleans(),
            st.lists(CHIPS, max_size=3).map(tuple),
            st.lists(PROBLEMS, max_size=3).map(tuple),
        ),
    ),
    st.builds(
        InspectAnswer,
        IDS,
        st.builds(
            Inspection,
            st.just(BOOT),
            st.sampled_from(Mode),
            CHIPS,
            CAPACITIES,
            CAPACITIES,
            st.none() | st.lists(st.builds(Process, st.integers(0, (1 << 31) - 1), U64), max_size=3).map(tuple),
            st.just(()),
        ),
    ),
    st.builds(DestroyAnswer, IDS, st.sampled_from(Outcome), CODES, st.text().map(answer_text)),
)


@given(REQUESTS)
def test_a_request_comes_back_as_it_was(request: Request) -> None:
    line = encode_request(request)
    assert line.endswith(b"\n")
    assert b"\n" not in line[:-1]
    assert len(line) <= REQUEST_LIMIT
    assert parse_request(line) == request
    assert request_id(line) == request.id


@given(ANSWERS)
def test_an_answer_comes_back_as_it_was(answer: Answer) -> None:
    line = encode_answer(answer)
    assert line.endswith(b"\n")
    assert b"\n" not in line[:-1]
    assert parse_answer(line) == answer


def test_the_largest_answer_fits() -> None:
    u32, u64, x63 = (1 << 32) - 1, (1 << 64) - 1, "x" * 63
    vnpus = tuple(Vnpu(u32, u32, "vir10_3c_16g_nm", False, u64, 1023.123, u64, u32) for _ in range(32))
    problems = tuple(Problem(Aspect.CHIP_INFO, -(1 << 31), u32, 63) for _ in range(110))
    chips = tuple(Chip(63, 3, u32, u32, DIE, u32, x63, x63, x63, x63, u32, vnpus, problems) for _ in range(256))
    line = encode_answer(ListAnswer(1, Inventory(BOOT, "/" * 4096, "v" * 63, Mode.UNKNOWN, True, chips, problems)))
    assert len(line) < ANSWER_LIMIT
    assert len(parse_answer(line).inventory.chips) == 256  # type: ignore[union-attr]


@given(st.binary(max_size=300))
def test_bytes_are_a_request_or_malformed(data: bytes) -> None:
    for parse in (parse_request, parse_answer):
        with pytest.raises(Malformed) as malformed:
            parse(data)
        assert answer_text(str(malformed.value)).isprintable()
    assert request_id(data) is None


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where there is a value inside a message."""
    found = [here]
    if isinstance(value, dict):
        for name, inner in value.items():
            found += places(inner, (*here, name))
    return found


def put(message: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Return the message with another value in that place."""
    if not place:
        return value
    return {**message, place[0]: put(message[place[0]], place[1:], value)}


@given(st.data(), REQUESTS, JSON_VALUES)
def test_a_request_with_one_other_value_is_that_request_or_malformed(data: st.DataObject, request: Request, value: Any) -> None:
    message = json.loads(encode_request(request))
    changed = put(message, data.draw(st.sampled_from(places(message))), value)
    line = json.dumps(changed).encode() + b"\n"
    try:
        parsed = parse_request(line)
    except Malformed:
        return
    # What was taken is what was written, and nothing was made of it: 1.0 and true are not 1.
    assert json.dumps(json.loads(encode_request(parsed)), sort_keys=True) == json.dumps(changed, sort_keys=True)


@pytest.mark.parametrize("place", places(json.loads(encode_request(DESTROY)))[1:], ids="/".join)
def test_every_field_of_a_destroy_is_needed_and_no_other_is_taken(place: tuple[str, ...]) -> None:
    message = json.loads(encode_request(DESTROY))
    holder = message
    for name in place[:-1]:
        holder = holder[name]
    kept = holder.pop(place[-1])
    with pytest.raises(Malformed, match=f"has no {place[-1]}"):
        parse_request(json.dumps(message).encode())
    holder[place[-1]] = kept
    holder["force"] = True
    with pytest.raises(Malformed, match="unknown field"):
        parse_request(json.dumps(message).encode())


OUT_OF_RANGE: list[tuple[tuple[str, ...], Any]] = [
    (("id",), -1),
    (("id",), True),
    (("id",), 1.0),
    (("id",), 1 << 53),
    (("verb",), "create"),
    (("verb",), ["destroy"]),
    (("request",), ""),
    (("request",), "a\nb"),
    (("request",), "x" * 65),
    (("expires_ns",), -1),
    (("expires_ns",), 1 << 63),
    (("runtime",), None),
    (("runtime",), "containerd"),
    (("expected",), None),
    (("expected", "boot_id"), BOOT.upper()),
    (("expected", "card"), 64),
    (("expected", "card"), -1),
    (("expected", "device"), 4),
    (("expected", "phy"), 64),
    (("expected", "die"), DIE.lower()),
    (("expected", "die"), DIE + "-0"),
    (("expected", "vdev"), -1),
    (("expected", "vdev"), 1 << 32),
    (("expected", "vfid"), 0),
    (("expected", "vfid"), 17),
    (("expected", "template"), ""),
    (("expected", "template"), "vir05\x1b[2J"),
    (("expected", "template"), "x" * 16),
    (("expected", "node", "inode"), -1),
    (("expected", "node", "minor"), 1 << 32),
]


@pytest.mark.parametrize(("place", "value"), OUT_OF_RANGE, ids=[f"{'/'.join(place)}={value!r}" for place, value in OUT_OF_RANGE])
def test_a_value_out_of_its_range_is_malformed(place: tuple[str, ...], value: Any) -> None:
    line = json.dumps(put(json.loads(encode_request(DESTROY)), place, value)).encode()
    with pytest.raises(Malformed, match=place[0]):
        parse_request(line)


def test_another_version_is_told_as_such() -> None:
    line = json.dumps({"version": VERSION + 1, "id": 3, "verb": "list", "more": 1}).encode()
    with pytest.raises(OtherVersion, match=f"must be {VERSION}, and is {VERSION + 1}"):
        parse_request(line)
    assert request_id(line) == 3


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"null",
        b"[]",
        b"7",
        b'"list"',
        b"{}",
        b'{"version":1,"id":1,"verb":"list"} {}',
        b'{"version":1,"id":1,"id":2,"verb":"list"}',
        b'{"version":1,"id":NaN,"verb":"list"}',
        b'{"version":1,"id":' + b"9" * 4000 + b',"verb":"list"}',
        b'{"version":1,"id":1e999,"verb":"list"}',
        b"[" * 4000,
        b'{"a":' * 800,
        b'{"version":1,"id":1,"verb":"list","\\ud800":1}',
        b'{"version":1,"id":1,"verb":"l\xffist"}',
        b"\xef\xbb\xbf" + encode_request(ListRequest(1)),
        encode_request(ListRequest(1)).decode().encode("utf-16"),
        encode_request(ListRequest(1)).rstrip().ljust(REQUEST_LIMIT + 1),
    ],
)
def test_what_is_not_one_strict_object_is_malformed(line: bytes) -> None:
    with pytest.raises(Malformed):
        parse_request(line)


def test_names_of_templates_have_no_trailing_newline() -> None:
    with pytest.raises(Malformed):
        parse_request(json.dumps(put(json.loads(encode_request(DESTROY)), ("expected", "template"), "vir01\n")).encode())


# --- codes and numbers -----------------------------------------------------------------------------------------------
def test_every_code_has_a_sentence() -> None:
    assert set(codes.SENTENCES) == set(codes.DcmiCode)
    for code in codes.DcmiCode:
        assert codes.sentence(code) == f"{codes.SENTENCES[code]} ({int(code)})"
    assert "-4711" in codes.sentence(-4711)


def test_windows_are_sixteen_wide_disjoint_and_never_hold_the_wildcard() -> None:
    seen: set[int] = set()
    for phy in range(-2, 300):
        window = numbering.window(phy)
        assert not seen & set(window)
        seen |= set(window)
        assert [numbering.vfid_of(vdev) for vdev in window] == list(range(1, len(window) + 1))
    assert seen == set(range(100, 1124))
    assert list(numbering.window(3)) == list(range(148, 164))
    assert numbering.vfid_of(99) is None
    assert numbering.vfid_of(1124) is None
    assert numbering.vfid_of(numbering.WILDCARD) is None
