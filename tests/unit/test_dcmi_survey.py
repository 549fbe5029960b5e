"""What the broker makes of the library's answers: what can be, as it is; what cannot be, as a problem with a name."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.npu.codes import DcmiCode
from devward.npu.facts import Aspect, Capacity, Chip, Inventory, Mode, Problem, Process, Vnpu
from devward.npu.protocol import InspectAnswer, ListAnswer, encode_answer, parse_answer
from devward.npu.survey import inspect, read_chip, survey
from devward.npu.vendor import ChipNames, DcmiError, Resources, TotalResources, VdevAnswer
from sim.dcmi_vendor import FakeChip, FakeVendor, vnpu

BOOT = "0f3c2a10-1111-4222-8333-444455556666"


def two_cards() -> FakeVendor:
    return FakeVendor({(0, 0): FakeChip(0, vnpus={100: vnpu(100)}), (7, 0): FakeChip(2), (7, 1): FakeChip(3, die=(9, 0, 0, 0, 1))})


def listed(vendor: FakeVendor) -> Inventory:
    inventory = survey(vendor, BOOT, "/lib/libdcmi.so")
    # Whatever is found can be said.
    assert parse_answer(encode_answer(ListAnswer(1, inventory))) == ListAnswer(1, inventory)
    return inventory


def only_chip(vendor: FakeVendor) -> Chip:
    (chip,) = listed(vendor).chips
    return chip


def test_everything_is_listed() -> None:
    inventory = listed(two_cards())
    assert (inventory.boot_id, inventory.library, inventory.dcmi_version) == (BOOT, "/lib/libdcmi.so", "25.5.0")
    assert (inventory.mode, inventory.recover, inventory.problems) == (Mode.DOCKER, True, ())
    assert [(chip.card, chip.device, chip.phy, chip.logic) for chip in inventory.chips] == [(0, 0, 0, 0), (7, 0, 2, 2), (7, 1, 3, 3)]
    assert inventory.chips[0] == Chip(
        card=0,
        device=0,
        logic=0,
        phy=0,
        die="00000001-00000002-00000003-00000004-00000005",
        health=0,
        chip_type="Ascend",
        chip_name="910B3",
        chip_version="V1",
        npu_name="910B3",
        cores=20,
        vnpus=(Vnpu(100, 1, "vir05_1c_16g", False, 0, 5.0, 16384, 0),),
    )
    assert inventory.chips[2].vnpus == ()


def test_devices_that_are_no_npus_are_left_out() -> None:
    vendor = two_cards()
    vendor.chips[7, 0].kind = 2
    assert [(chip.card, chip.device) for chip in listed(vendor).chips] == [(0, 0), (7, 1)]


@pytest.mark.parametrize(
    ("call", "aspect"),
    [
        ("device_type", Aspect.TYPE),
        ("logic_id", Aspect.LOGIC),
        ("phy_id", Aspect.PHY),
        ("address_of_phy", Aspect.PHY),
        ("chip_names", Aspect.CHIP_INFO),
        ("die", Aspect.DIE),
        ("health", Aspect.HEALTH),
        ("total_resources", Aspect.VNPUS),
    ],
)
def test_a_call_that_fails_is_a_problem_and_costs_nothing_else(call: str, aspect: Aspect) -> None:
    vendor = FakeVendor({(0, 0): FakeChip(0)}, failing={call: DcmiCode.NOT_READY})
    chip = only_chip(vendor)
    assert chip.problems == (Problem(aspect, DcmiCode.NOT_READY),)
    fields = {"logic", "phy", "die", "health", "chip_name", "vnpus"}
    lost = {name for name in fields if getattr(chip, name) is None}
    assert len(lost) <= 2
    assert lost or call == "device_type"


def test_the_call_back_from_the_physical_id_may_be_missing() -> None:
    chip = only_chip(FakeVendor({(0, 0): FakeChip(5)}, failing={"address_of_phy": DcmiCode.SYMBOL_MISSING}))
    assert (chip.phy, chip.problems) == (5, ())


def test_two_chips_with_one_physical_id_are_not_both_believed() -> None:
    first, second = listed(FakeVendor({(0, 0): FakeChip(5, logic=0), (1, 0): FakeChip(5, logic=1)})).chips
    assert (first.phy, second.phy) == (5, None)
    assert second.problems == (Problem(Aspect.PHY, None),)


@pytest.mark.parametrize(("chip", "aspect"), [
    (FakeChip(0, kind=None), Aspect.TYPE),
    (FakeChip(256), Aspect.LOGIC),
    (FakeChip(256, logic=1), Aspect.PHY),
    (FakeChip(0, die=(0,) * 5), Aspect.DIE),
    (FakeChip(0, die=(0xFFFFFFFF,) * 5), Aspect.DIE),
    (FakeChip(0, health=None), Aspect.HEALTH),
    (FakeChip(0, names=ChipNames(b"Ascend", b"910\x1b[2J", b"V1", None, 20)), Aspect.CHIP_INFO),
    (FakeChip(0, names=ChipNames(b"Ascend", b"\xe9", b"V1", None, 20)), Aspect.CHIP_INFO),
    (FakeChip(0, count=None), Aspect.VNPUS),
    (FakeChip(0, count=33), Aspect.VNPUS),
    (FakeChip(0, count=2, vnpus={100: vnpu(100)}), Aspect.VNPUS),
])  # fmt: skip
def test_an_answer_that_cannot_be_is_a_problem(chip: FakeChip, aspect: Aspect) -> None:
    assert only_chip(FakeVendor({(0, 0): chip})).problems == (Problem(aspect, None),)


@pytest.mark.parametrize("count", [None, 33, 0xFFFFFFFE])
def test_a_list_longer_than_its_room_is_not_believed_though_the_room_is_full(count: int | None) -> None:
    vnpus = {vdev: vnpu(vdev) for vdev in range(100, 132)}
    found = only_chip(FakeVendor({(0, 0): FakeChip(0, vnpus=vnpus, count=count)}))
    assert (found.vnpus, found.problems) == (None, (Problem(Aspect.VNPUS, None),))


def test_a_list_of_vnpus_is_whole_or_not_at_all() -> None:
    chip = FakeChip(0, vnpus={100: vnpu(100)}, ids=(100, 101))
    found = only_chip(FakeVendor({(0, 0): chip}))
    assert found.vnpus is None
    assert found.problems == (Problem(Aspect.VNPUS, DcmiCode.NO_SUCH_DEVICE, 101),)


def test_a_chip_that_cannot_be_split_says_so() -> None:
    found = only_chip(FakeVendor({(0, 0): FakeChip(0)}, failing={"total_resources": DcmiCode.NOT_SUPPORTED}))
    assert (found.vnpus, found.has_no_vnpus) == (None, True)
    assert not only_chip(FakeVendor({(0, 0): FakeChip(0)}, failing={"total_resources": DcmiCode.INTERNAL})).has_no_vnpus
    assert not only_chip(FakeVendor({(0, 0): FakeChip(0)})).has_no_vnpus


def only_vnpu(vdev: int = 100, **changes: object) -> tuple[Vnpu, tuple[Problem, ...]]:
    chip = only_chip(FakeVendor({(0, 0): FakeChip(0, vnpus={vdev: vnpu(vdev, **changes)})}))
    assert chip.vnpus is not None
    (found,) = chip.vnpus
    return found, chip.problems


def test_what_a_vnpu_does_not_give_is_none() -> None:
    found, problems = only_vnpu(name=None, used=None, vfid=None, vgroup=None, container=None, cores=float("nan"), memory_mb=None)
    assert found == Vnpu(100, 1, None, None)
    assert problems == ()
    assert only_vnpu(cores=-1.0)[0].cores is None
    assert only_vnpu(cores=float("inf"))[0].cores is None


def test_an_id_outside_the_window_is_shown_as_it_is() -> None:
    for vdev in (65535, 99, 0xFFFFFFFE):
        found, _ = only_vnpu(vdev)
        assert found.vdev == vdev


@pytest.mark.parametrize(
    ("changes", "aspect"),
    [({"vfid": 2}, Aspect.VFID), ({"name": b"vir\n"}, Aspect.TEMPLATE), ({"name": b"a b"}, Aspect.TEMPLATE), ({"used": 2}, Aspect.USE)],
)
def test_an_answer_about_a_vnpu_that_cannot_be_is_a_problem_of_it(changes: dict[str, object], aspect: Aspect) -> None:
    assert only_vnpu(**changes)[1] == (Problem(aspect, None, 100),)


@pytest.mark.parametrize(("mode", "said"), [(0, Mode.DOCKER), (1, Mode.VM), (2, Mode.UNKNOWN), (None, Mode.UNKNOWN)])
def test_modes(mode: int | None, said: Mode) -> None:
    inventory = listed(FakeVendor({}, vdevice_mode=mode))
    assert inventory.mode is said
    assert inventory.problems == ((Problem(Aspect.MODE, None),) if said is Mode.UNKNOWN else ())


def test_what_the_driver_does_not_have_is_no_problem() -> None:
    for code in (DcmiCode.SYMBOL_MISSING, DcmiCode.NOT_SUPPORTED):
        inventory = listed(FakeVendor({}, failing={"mode": code, "recover": code}))
        assert (inventory.mode, inventory.recover, inventory.problems) == (Mode.DOCKER, None, ())
    inventory = listed(FakeVendor({}, failing={"mode": -8005, "recover": -8005, "version": -8005}))
    assert (inventory.mode, inventory.recover, inventory.dcmi_version) == (Mode.UNKNOWN, None, None)
    assert inventory.problems == (Problem(Aspect.VERSION, -8005), Problem(Aspect.MODE, -8005), Problem(Aspect.RECOVER, -8005))
    assert listed(FakeVendor({}, recover_mode=7)).problems == (Problem(Aspect.RECOVER, None),)


# --- lists of cards --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("count", "cards"),
    [(None, (0, 7)), (3, (0, 7)), (0xFFFFFFFE, (0, 7)), (3, (0, 7, 64)), (3, (0, 7, 7))],
    ids=["not given", "half", "long", "outside", "duplicate"],
)
def test_a_list_of_cards_that_cannot_be_is_a_problem_of_the_host(
    count: int | None, cards: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = two_cards()
    monkeypatch.setattr(vendor, "cards", lambda: (count, (*cards, *[0xFFFFFFFF] * (64 - len(cards)))))
    inventory = listed(vendor)
    assert inventory.problems == (Problem(Aspect.CARDS, None),)
    assert {chip.card for chip in inventory.chips} == (set() if count is None else {0, 7})


def test_no_list_of_cards_is_no_list() -> None:
    with pytest.raises(DcmiError):
        listed(FakeVendor({}, failing={"cards": DcmiCode.INTERNAL}))


def test_a_card_that_goes_during_the_list_is_named() -> None:
    vendor = two_cards()
    vendor.before = lambda call: vendor.chips.pop((0, 0), None) and None if call == "die" else None
    inventory = listed(vendor)
    assert inventory.problems == (Problem(Aspect.CARD, None, card=0),)
    vendor = two_cards()
    vendor.before = lambda call: vendor.chips.update({(8, 0): FakeChip(6)}) if call == "die" else None
    assert listed(vendor).problems == (Problem(Aspect.CARD, None, card=8),)


@pytest.mark.parametrize("limit", [None, 5, 0xFFFFFFFE])
def test_a_card_with_more_devices_than_there_can_be_is_named(limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    vendor = FakeVendor({(0, 0): FakeChip(0)})
    monkeypatch.setattr(vendor, "device_limit", lambda _card: limit)
    assert Problem(Aspect.CARD, None, card=0) in listed(vendor).problems


def test_a_card_whose_devices_cannot_be_counted_is_named() -> None:
    inventory = listed(FakeVendor({(3, 0): FakeChip(0)}, failing={"device_limit": DcmiCode.UPGRADING}))
    assert (inventory.chips, inventory.problems) == ((), (Problem(Aspect.CARD, DcmiCode.UPGRADING, card=3),))


# --- a closer look -----------------------------------------------------------------------------------------------------------
def test_a_chip_is_inspected() -> None:
    inspection = inspect(two_cards(), BOOT, 7, 1)
    assert inspection is not None
    assert inspection.chip == read_chip(two_cards(), 7, 1)
    assert inspection.total == inspection.free == Capacity(20.0, 65536, 7)
    assert inspection.processes == (Process(4321, 5 << 30),)
    assert (inspection.mode, inspection.problems) == (Mode.DOCKER, ())
    assert parse_answer(encode_answer(InspectAnswer(1, inspection))) == InspectAnswer(1, inspection)


def test_what_is_no_npu_is_not_inspected() -> None:
    assert inspect(FakeVendor({(0, 0): FakeChip(0, kind=1)}), BOOT, 0, 0) is None
    assert inspect(FakeVendor({(0, 0): FakeChip(0)}), BOOT, 0, 1) is None
    assert inspect(FakeVendor({(0, 0): FakeChip(0)}, failing={"device_type": DcmiCode.NOT_READY}), BOOT, 0, 0) is not None


@pytest.mark.parametrize("answer", [(None, ()), (33, ((1, 1),) * 32), (2, ((1, 1),)), (1, ((-1, 1),))])
def test_processes_that_cannot_be_are_a_problem(
    answer: tuple[int | None, tuple[tuple[int, int], ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = two_cards()
    monkeypatch.setattr(vendor, "processes", lambda _card, _device: answer)
    inspection = inspect(vendor, BOOT, 0, 0)
    assert inspection is not None
    assert (inspection.processes, inspection.problems) == (None, (Problem(Aspect.PROCESSES, None),))


def test_a_closer_look_says_what_it_did_not_get() -> None:
    failing = {"processes": -8005, "free_resources": -8012}
    inspection = inspect(FakeVendor({(0, 0): FakeChip(0)}, failing=failing), BOOT, 0, 0)
    assert inspection is not None
    assert (inspection.free, inspection.processes) == (None, None)
    assert inspection.problems == (Problem(Aspect.FREE, -8012), Problem(Aspect.PROCESSES, -8005))


# --- anything -----------------------------------------------------------------------------------------------------------------
U32 = st.none() | st.integers(0, 0xFFFFFFFE)
RAW = st.none() | st.binary(max_size=32)
FLOATS = st.floats(width=32)
RESOURCES = st.builds(Resources, FLOATS, st.none() | st.integers(0, (1 << 64) - 2), st.none() | st.integers(0, 65534))
ANYTHING = st.fixed_dictionaries(
    {
        "cards": st.tuples(st.integers(0, 3) | U32, st.lists(st.integers(0, 70) | st.just(0xFFFFFFFF), max_size=4).map(tuple)),
        "device_limit": st.integers(0, 2) | U32,
        "device_type": st.integers(0, 2) | U32,
        "logic_id": U32,
        "phy_id": U32,
        "address_of_phy": st.tuples(U32, U32),
        "chip_names": st.builds(ChipNames, RAW, RAW, RAW, RAW, U32),
        "die": st.tuples(*[st.integers(0, 0xFFFFFFFF)] * 5),
        "health": U32,
        "total_resources": st.builds(
            TotalResources,
            RESOURCES,
            st.integers(0, 3) | U32,
            st.lists(st.integers(0, 0xFFFFFFFF), max_size=4).map(lambda ids: (*ids, *[0xFFFFFFFF] * (32 - len(ids)))),
        ),
        "free_resources": RESOURCES,
        "vdev": st.builds(VdevAnswer, RAW, U32, U32, U32, st.none() | st.integers(0, (1 << 64) - 2), FLOATS, U32),
        "processes": st.tuples(st.integers(0, 3) | U32, st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 9)), max_size=4).map(tuple)),
        "mode": U32,
        "recover": U32,
        "version": RAW,
    }
)


@given(ANYTHING, st.dictionaries(st.sampled_from(["die", "vdev", "mode", "health", "phy_id"]), st.integers(-9999, -1)))
def test_whatever_the_library_answers_can_be_said(answers: dict[str, object], failing: dict[str, int]) -> None:
    class Anything(FakeVendor):
        def __getattribute__(self, name: str) -> object:
            if name not in answers:
                return super().__getattribute__(name)

            def call(*_: object) -> object:
                if name in failing:
                    raise DcmiError(name, failing[name])
                return answers[name]

            return call

    inventory = listed(Anything({}))
    assert all(chip.vnpus is None or len(chip.vnpus) <= 32 for chip in inventory.chips)
    inspection = inspect(Anything({}), BOOT, 0, 0)
    if inspection is not None:
        assert parse_answer(encode_answer(InspectAnswer(1, inspection))) == InspectAnswer(1, inspection)
    assert replace(inventory) == inventory
