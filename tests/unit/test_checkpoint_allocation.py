"""What a plugin gave to a container: cards and template where they can be told, all cards where not."""

import hypothesis
import pytest
from hypothesis import strategies as st

from devward.cluster.allocation import Allocation, Oddity, WireError, fields, read_allocation
from devward.cluster.handed import ANY, NOTHING, Handed
from sim.kubelet_checkpoint import field, hami_response, response, varint

TEMPLATE = "vir05_1c_8g"
DEVICES = "ASCEND_VISIBLE_DEVICES"
GOOD = hami_response([0, 3], TEMPLATE)


def test_what_hamis_plugin_answers() -> None:
    assert read_allocation(GOOD) == Allocation(frozenset({0, 3}), TEMPLATE)
    assert read_allocation(hami_response([12])) == Allocation(frozenset({12}))


def test_a_share_of_a_card_without_a_vnpu() -> None:
    envs = {DEVICES: "5", "NPU_MEM_QUOTA": "8192", "NPU_GLOBAL_SHM_PATH": "/hami-shared-region"}
    found = read_allocation(response(envs, mounts=[("/hami-vnpu-core", "/usr/local/hami-vnpu-core")]))
    assert found == Allocation(frozenset({5}))


def test_annotations_and_nodes_of_everybody_change_nothing() -> None:
    found = read_allocation(response({DEVICES: "5"}, devices=["/dev/davinci_manager", "/dev/fuse"], annotations={DEVICES: "7"}))
    assert found == Allocation(frozenset({5}))


@pytest.mark.parametrize(
    ("answer", "oddity"),
    [
        (None, Oddity.EMPTY),
        (b"", Oddity.EMPTY),
        (response({"OTHER": "0"}), Oddity.NOT_NAMED),
        (response({DEVICES: ""}), Oddity.NOT_NAMED),
        (response({DEVICES: "void"}), Oddity.NOT_NAMED),
        (response({DEVICES.lower(): "0"}), Oddity.NOT_NAMED),
        (field(1, field(1, DEVICES)), Oddity.NOT_NAMED),
        (field(1, field(2, "0")), Oddity.NOT_NAMED),
        (field(1, ""), Oddity.NOT_NAMED),
        (response({DEVICES: "all"}), Oddity.UNREADABLE),
        (response({DEVICES: "0,"}), Oddity.UNREADABLE),
        (response({DEVICES: "100"}), Oddity.UNREADABLE),
        (response({DEVICES: "0 1"}), Oddity.UNREADABLE),
        (response({DEVICES: "٣"}), Oddity.UNREADABLE),
        (response({DEVICES: "0"}, devices=["/dev/davinci3"]), Oddity.OTHER_FORM),
        (response({DEVICES: "0"}, devices=["/dev/vdavinci148"]), Oddity.OTHER_FORM),
        (response({DEVICES: "0"}, cdi_devices=["ascend.com/npu=3"]), Oddity.OTHER_FORM),
        (GOOD + field(6, "x"), Oddity.OTHER_FORM),
        (GOOD + varint(7 << 3) + varint(1), Oddity.OTHER_FORM),
        (GOOD + response({DEVICES: "1"}), Oddity.OTHER_FORM),
        (GOOD + GOOD, Oddity.OTHER_FORM),
        # not the wire format, or not what an encoder writes
        (GOOD[:-1], Oddity.UNDECODABLE),
        (GOOD + b"\0", Oddity.UNDECODABLE),
        (b"\x08", Oddity.UNDECODABLE),
        (varint(1 << 3) + varint(0), Oddity.UNDECODABLE),
        (varint(3 << 3) + varint(0), Oddity.UNDECODABLE),
        (varint(5 << 3) + varint(0), Oddity.UNDECODABLE),
        (varint(2 << 3 | 1) + bytes(8), Oddity.UNDECODABLE),
        (varint(4 << 3 | 5) + bytes(4), Oddity.UNDECODABLE),
        (varint(1 << 3 | 3), Oddity.UNDECODABLE),
        (varint(1 << 3 | 4), Oddity.UNDECODABLE),
        (varint(1 << 3 | 7) + b"\1", Oddity.UNDECODABLE),
        (varint(2 << 3 | 1) + bytes(7), Oddity.UNDECODABLE),
        (varint(1 << 32 | 2) + b"\0", Oddity.UNDECODABLE),
        (b"\x0a\x80\0", Oddity.UNDECODABLE),
        (b"\x0a" + b"\xff" * 10, Oddity.UNDECODABLE),
        (b"\x0a" + b"\xff" * 9 + b"\x02", Oddity.UNDECODABLE),
        (field(1, field(1, DEVICES) + field(2, b"\xff")), Oddity.UNDECODABLE),
        (field(1, field(1, b"\xed\xa0\x80") + field(2, "0")), Oddity.UNDECODABLE),
        (field(1, field(1, DEVICES) + field(2, "0") + field(2, "1")), Oddity.UNDECODABLE),
        (field(1, field(1, DEVICES) + field(3, "0")), Oddity.UNDECODABLE),
        (field(1, varint(1 << 3) + varint(7) + field(2, "0")), Oddity.UNDECODABLE),
        (field(3, b"\xff"), Oddity.UNDECODABLE),
    ],
)
def test_what_cannot_be_told_is_all_cards(answer: bytes | None, oddity: Oddity) -> None:
    found = read_allocation(answer)
    assert (found.cards, found.oddity) == (None, oddity)


@pytest.mark.parametrize(
    ("answer", "handed"),
    [
        (GOOD, NOTHING),
        (GOOD + GOOD, NOTHING),
        (response({DEVICES: "0"}, devices=["/dev/davinci_manager"]), NOTHING),
        (response({DEVICES: "0"}, devices=["/dev/davinci3"]), NOTHING),
        (response({}, devices=["/dev/kvm", "/dev/vdavinci148", "/dev/davinci149"]), Handed(frozenset({148, 149}))),
        (GOOD + field(2, field(1, "/dev/x") + field(2, "/dev//vdavinci148")), Handed(frozenset({148}))),
        (GOOD + field(2, field(1, "/dev/vdavinci148") + field(2, "/opt/vdavinci148/x")), NOTHING),
        (GOOD + field(2, field(1, "/usr/local") + varint(3 << 3) + varint(1)), NOTHING),
        (response({}, cdi_devices=["ascend.com/vnpu=148"]), Handed(frozenset({148}))),
        (response({}, cdi_devices=["ascend.com/vnpu=all"]), ANY),
        (response({}, cdi_devices=["ascend.com/npu=3"]), ANY),
        (response({}, cdi_devices=["example.com/any=1"]), ANY),
        (GOOD + field(4, field(1, "cdi.k8s.io/x") + field(2, "ascend.com/vnpu=148, ascend.com/vnpu=150")), Handed(frozenset({148, 150}))),
        (GOOD + field(4, field(1, "cdi.k8s.io/x") + field(2, "example.com/any=1")), ANY),
        (GOOD + field(4, field(1, "example.com/x") + field(2, "ascend.com/vnpu=148")), NOTHING),
        # What is not known may be anything; 100 is the id of a vNPU that is there (ASCEND_RUNTIME_OPTIONS=VIRTUAL).
        (response({DEVICES: "100", "ASCEND_RUNTIME_OPTIONS": "VIRTUAL"}), ANY),
        (response({DEVICES: "all"}), ANY),
        (response({}, devices=["/dev/vdavinci148"]) + field(6, "x"), Handed(frozenset({148}), is_any=True)),
        (GOOD + field(6, "x"), ANY),
        (GOOD[:-1], ANY),
    ],
)
def test_what_is_handed_over_is_what_nodes_and_names_of_cdi_stand_for(answer: bytes, handed: Handed) -> None:
    assert read_allocation(answer).handed == handed


def test_a_template_is_told_where_the_cards_are_not() -> None:
    found = read_allocation(response({DEVICES: "all", "ASCEND_VNPU_SPECS": TEMPLATE}))
    assert found == Allocation(None, TEMPLATE, Oddity.UNREADABLE, ANY)


@pytest.mark.parametrize("oddity", Oddity)
def test_every_oddity_means_all_cards(oddity: Oddity) -> None:
    answers = {
        Oddity.EMPTY: b"",
        Oddity.UNDECODABLE: b"\xff",
        Oddity.NOT_NAMED: response({}) + field(2, ""),
        Oddity.UNREADABLE: response({DEVICES: "x"}),
        Oddity.OTHER_FORM: field(9, ""),
    }
    handed = ANY if oddity in (Oddity.UNDECODABLE, Oddity.OTHER_FORM, Oddity.UNREADABLE) else NOTHING
    assert read_allocation(answers[oddity]) == Allocation(None, oddity=oddity, handed=handed)


@hypothesis.given(
    st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=4),
    st.sets(st.integers(0, 99), min_size=1, max_size=8),
    st.text(max_size=20),
    st.randoms(use_true_random=False),
)
def test_whatever_else_a_plugin_sets_cards_and_template_are_read(
    envs: dict[str, str], cards: set[int], template: str, dice: object
) -> None:
    envs |= {DEVICES: ",".join(map(str, cards)), "ASCEND_VNPU_SPECS": template}
    assert read_allocation(response(envs, dice=dice)) == Allocation(frozenset(cards), template)  # type: ignore[arg-type]


@hypothesis.given(st.binary(max_size=64))
def test_other_bytes_never_name_a_card_by_chance(data: bytes) -> None:
    found = read_allocation(data)
    assert found.cards is None or DEVICES.encode() in data


@hypothesis.given(st.integers(0, (1 << 64) - 1))
def test_numbers_of_every_length(value: int) -> None:
    assert list(fields(varint(15 << 3) + varint(value))) == [(15, value)]


def test_fixed_numbers() -> None:
    data = varint(1 << 3 | 1) + bytes([1, 0, 0, 0, 0, 0, 0, 0]) + varint(2 << 3 | 5) + bytes([2, 0, 0, 0])
    assert list(fields(data)) == [(1, 1), (2, 2)]
    with pytest.raises(WireError, match="cut off"):
        list(fields(data[:-1]))
