"""Pins: a target is read strictly, doubt protects, and only the very vNPU that was pinned may be offered."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.model import Pin
from devward.npu.codes import DcmiCode
from devward.npu.facts import Aspect, Inventory, Mode, Problem
from devward.npu.host import Surroundings
from devward.npu.inventory import Picture, Unavailable, assess
from devward.npu.memory import NO_MEMORY, Marks, Memory
from devward.npu.pins import GRAMMAR, PinReport, Sight, Standing, Target, judge
from devward.reasons import Reason
from sim.npu_host import BOOT, around, chip, die, inventory, node, vnpu

NOW = 1_767_225_600_000_000
TEMPLATE = "vir05_1c_16g"
SILENT = Unavailable(Reason.NPU_BROKER_SILENT, "no answer")


def target(phy: int, vdev: int | None = None, template: str = TEMPLATE) -> str:
    return die(phy) if vdev is None else f"{die(phy)}/{vdev}/{template}"


def pin(text: str, identity: str = "") -> Pin:
    return Pin(text, "a training that must not die", 1000, NOW, identity)


def look(said: Inventory | Unavailable, surroundings: Surroundings | None = None, memory: Memory = NO_MEMORY) -> tuple[Picture, Memory]:
    return assess(said, surroundings or around(said if isinstance(said, Inventory) else inventory()), memory, NOW)


def sight(picture: Picture) -> Sight:
    return Sight(picture.cards, picture.vnpus, picture.lasting, picture.in_doubt)


def judged(picture: Picture, *pins: Pin) -> PinReport:
    return judge(pins, sight(picture))


def pinned_at(picture: Picture, text: str) -> Pin:
    """Return the pin of a target as it is set while the host is like this."""
    (now,) = judged(picture, pin(text)).pins
    return pin(text, now.identity)


def standings(report: PinReport) -> list[Standing]:
    return [one.standing for one in report.pins]


def offered(report: PinReport) -> list[str]:
    return [view.name for view in report.offerable]


def protected(report: PinReport) -> list[str]:
    return [one.view.name for one in report.vnpus]


# --- targets ---------------------------------------------------------------------------------------------------------
DIES = st.lists(st.text("0123456789ABCDEF", min_size=8, max_size=8), min_size=5, max_size=5).map("-".join)
TEMPLATES = st.from_regex(r"[A-Za-z0-9_.-]{1,15}", fullmatch=True)


@given(DIES, st.integers(100, 1123), TEMPLATES)
def test_what_is_printed_is_read(card: str, vdev: int, template: str) -> None:
    assert Target.parse(card) == Target(card)
    assert str(Target(card)) == card
    whole = f"{card}/{vdev}/{template}"
    assert Target.parse(whole) == Target(card, vdev, template)
    assert str(Target.parse(whole)) == whole


@given(st.text(max_size=80) | st.text("0123456789ABCDEFabcdef-/v_.", max_size=80))
def test_any_text_is_a_target_that_prints_as_itself_or_none(text: str) -> None:
    try:
        said = str(Target.parse(text))
    except ValueError as error:
        said = str(error)
    assert said == text or GRAMMAR in said


@pytest.mark.parametrize(
    "text",
    [
        "",
        "p000",
        "100",
        die(0).lower(),
        die(0) + "\n",
        " " + die(0),
        die(0)[:-1],
        die(0) + "-00000000",
        die(0).replace("-", ""),
        die(0) + "/",
        die(0) + "/100",
        die(0) + "/100/",
        die(0) + f"/99/{TEMPLATE}",
        die(0) + f"/1124/{TEMPLATE}",
        die(0) + f"/65535/{TEMPLATE}",
        die(0) + f"/0100/{TEMPLATE}",
        die(0) + f"/-100/{TEMPLATE}",
        die(0) + f"/+100/{TEMPLATE}",
        die(0) + f"/1_00/{TEMPLATE}",
        die(0) + f"/\u0661\u0660\u0660/{TEMPLATE}",
        die(0) + "/100/sixteen_letters_",
        die(0) + "/100/a b",
        die(0) + "/100/a/b",
        die(0) + f"/100/{TEMPLATE}\n",
        die(0) + "/*/*",
    ],
)
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(ValueError, match="a target is DIE or DIE/VDEV/TEMPLATE"):
        Target.parse(text)


# --- what tells a vNPU from others ----------------------------------------------------------------------------------
MARKS = Marks(BOOT, die(0), 100, 1, TEMPLATE, inode=7, sequence=0, losses=0, goings=0)


def test_what_lasts_is_the_same_in_the_next_run_of_the_daemon() -> None:
    assert MARKS.lasting
    assert replace(MARKS, sequence=4, losses=2, goings=1).lasting == MARKS.lasting
    assert replace(MARKS, sequence=4).identity != MARKS.identity


@pytest.mark.parametrize("other", [{"boot_id": "b"}, {"die": die(1)}, {"vdev": 101}, {"vfid": 2}, {"template": "vir10"}, {"inode": 9}])
def test_anything_else_makes_it_another(other: dict[str, object]) -> None:
    assert replace(MARKS, **other).lasting != MARKS.lasting  # type: ignore[arg-type]


@pytest.mark.parametrize("part", [{"boot_id": ""}, {"die": ""}, {"vfid": 0}, {"template": ""}, {"inode": 0}])
def test_what_is_not_known_whole_is_told_from_nothing(part: dict[str, object]) -> None:
    assert replace(MARKS, **part).lasting == ""  # type: ignore[arg-type]


# --- matching --------------------------------------------------------------------------------------------------------
def test_a_pinned_vnpu_is_protected_and_offered_and_no_other() -> None:
    picture, _ = look(inventory(chip(0, 100, 101), chip(1, 116)))
    report = judged(picture, pinned_at(picture, target(0, 100)))
    assert standings(report) == [Standing.MATCHED]
    assert report.pins[0].matches == ("v0100",)
    assert protected(report) == offered(report) == ["v0100"]
    assert report.findings == ()
    assert report.withheld == ()


def test_a_pinned_npu_protects_all_its_vnpus_and_offers_none() -> None:
    picture, _ = look(inventory(chip(0, 100, 101), chip(1, 116)))
    report = judged(picture, pinned_at(picture, target(0)))
    assert standings(report) == [Standing.MATCHED]
    assert report.pins[0].matches == ("p000",)
    assert report.pins[0].identity == ""
    assert protected(report) == ["v0100", "v0101"]
    assert offered(report) == []
    assert report.withheld == ()


def test_a_vnpu_that_is_pinned_with_its_npu_is_offered_all_the_same() -> None:
    picture, _ = look(inventory(chip(0, 100, 101)))
    own, whole = pinned_at(picture, target(0, 101)), pinned_at(picture, target(0))
    report = judged(picture, whole, own)
    assert offered(report) == ["v0101"]
    assert [one.pins for one in report.vnpus] == [(whole,), (own, whole)]


def test_a_vnpu_without_a_node_is_protected_and_never_offered() -> None:
    said = inventory(chip(0, 100), mode=Mode.VM)
    picture, _ = look(said, around(said, without=["vdavinci100"]))
    assert picture.vnpus[0].reason is Reason.OK
    report = judged(picture, pinned_at(picture, target(0, 100)))
    assert standings(report) == [Standing.UNKNOWN]
    assert protected(report) == ["v0100"]
    assert offered(report) == []
    assert [one.reason for one in report.withheld] == [Reason.NPU_NODE_MISSING]
    assert report.findings == ()


def remade(said: Inventory) -> Surroundings:
    """Return the host where vNPU 100 went and came again."""
    return around(said, {"vdavinci100": node("vdavinci100", inode=77, ctime_ns=99)})


@pytest.mark.parametrize("how", ["reboot", "remade", "not known when it was pinned"])
def test_another_vnpu_of_that_name_is_protected_and_not_offered_until_it_is_pinned_again(how: str) -> None:
    said = inventory(chip(0, 100))
    before, _ = look(said)
    then = pinned_at(before, target(0, 100))
    if how == "reboot":
        picture, _ = look(replace(said, boot_id="another"))
    elif how == "remade":
        picture, _ = look(said, remade(said))
    else:
        picture, then = before, pin(target(0, 100))
    report = judged(picture, then)
    assert standings(report) == [Standing.OTHER_IDENTITY]
    assert protected(report) == ["v0100"]
    assert offered(report) == []
    assert [one.reason for one in report.withheld] == [Reason.PIN_OTHER_IDENTITY]
    (finding,) = report.findings
    assert (finding.code, finding.subject) == (Reason.PIN_OTHER_IDENTITY, f"pin/{then.target}")
    assert "v0100" in finding.text
    assert "pinned again" in finding.text
    assert offered(judged(picture, pinned_at(picture, target(0, 100)))) == ["v0100"]


def test_a_restart_of_the_daemon_makes_no_vnpu_another() -> None:
    said = inventory(chip(0, 100))
    before, _ = look(said, around(said, sequences={"vdavinci100": 4}, losses=2))
    after, _ = look(said)
    assert before.vnpus[0].identity != after.vnpus[0].identity
    assert offered(judged(after, pinned_at(before, target(0, 100)))) == ["v0100"]


@pytest.mark.parametrize("in_its_place", [None, "vir10_3c_16g_nm"])
def test_a_pin_that_matches_nothing_is_a_finding(in_its_place: str | None) -> None:
    there = (vnpu(100, in_its_place),) if in_its_place else ()
    picture, _ = look(inventory(chip(0, vnpus=there), chip(1, 116)))
    report = judged(picture, pin(target(0, 100)))
    assert standings(report) == [Standing.UNMATCHED]
    assert protected(report) == []
    (finding,) = report.findings
    assert (finding.code, finding.subject) == (Reason.PIN_UNMATCHED, f"pin/{target(0, 100)}")
    assert (in_its_place or "The pin matches no") in finding.text


def test_without_npus_every_pin_matches_nothing() -> None:
    pins = [pin(target(0)), pin(target(0, 100))]
    assert [finding.code for finding in judge(pins, Sight()).findings] == [Reason.PIN_UNMATCHED] * 2
    assert judge([], Sight()) == PinReport()


#: Of any card, and of the card 0 alone.
WHOLE_DOUBTS: dict[str, Inventory | Unavailable] = {
    "the broker is silent": SILENT,
    "cards are missing": inventory(chip(1, 116), problems=(Problem(Aspect.CARDS, DcmiCode.NOT_READY),)),
    "a card is missing": inventory(chip(1, 116), problems=(Problem(Aspect.CARD, DcmiCode.NOT_READY, 0),)),
    "a die cannot be read": inventory(chip(0, die=None, problems=(Problem(Aspect.DIE, DcmiCode.NOT_READY),)), chip(1, 116)),
}
DOUBTS = WHOLE_DOUBTS | {
    "vNPUs cannot be listed": inventory(chip(0, vnpus=None, problems=(Problem(Aspect.VNPUS, DcmiCode.NOT_READY),))),
    "the chip is being reset": inventory(chip(0, problems=(Problem(Aspect.CHIP_INFO, DcmiCode.UPGRADING),))),
}


@pytest.mark.parametrize(
    ("doubt", "text"),
    [*((doubt, target(0, 100)) for doubt in DOUBTS), *((doubt, text) for doubt in WHOLE_DOUBTS for text in (target(7, 212), target(7)))],
)
def test_what_may_only_not_be_listed_is_not_called_unmatched(doubt: str, text: str) -> None:
    picture, _ = look(DOUBTS[doubt])
    report = judged(picture, pin(text))
    assert standings(report) == [Standing.UNKNOWN]
    assert report.pins[0].reason not in (Reason.OK, Reason.PIN_UNMATCHED)
    assert report.findings == ()


@pytest.mark.parametrize("said", [SILENT, inventory(problems=(Problem(Aspect.CARDS, DcmiCode.NOT_READY),))])
def test_what_was_seen_before_and_cannot_be_asked_about_stays_pinned_and_is_not_judged(said: Inventory | Unavailable) -> None:
    before, memory = look(inventory(chip(0, 100)))
    then = pinned_at(before, target(0, 100))
    picture, _ = look(said, around(inventory(chip(0, 100))), memory)
    report = judged(picture, then)
    assert protected(report) == ["v0100"]
    assert standings(report) == [Standing.UNKNOWN]
    assert [one.standing for one in report.withheld] == [Standing.UNKNOWN]
    assert report.findings == ()
    assert judged(picture, pin(target(0))).pins[0].standing is Standing.MATCHED


def test_nodes_that_cannot_be_read_make_no_vnpu_another() -> None:
    said = inventory(chip(0, 100))
    before, _ = look(said)
    picture, _ = look(said, around(said, nodes=None, problem="/dev: Input/output error"))
    report = judged(picture, pinned_at(before, target(0, 100)))
    assert standings(report) == [Standing.UNKNOWN]
    assert protected(report) == ["v0100"]
    assert report.findings == ()


def test_a_vnpu_for_which_nobody_vouches_is_not_offered_though_it_is_the_one_that_was_pinned() -> None:
    before, memory = look(inventory(chip(0, 100)))
    picture, _ = look(inventory(chip(0, vnpus=(vnpu(100, in_use=None),))), around(inventory(chip(0, 100))), memory)
    assert picture.lasting == before.lasting
    report = judged(picture, pinned_at(before, target(0, 100)))
    assert protected(report) == ["v0100"]
    assert offered(report) == []
    assert [(one.standing, one.reason) for one in report.withheld] == [(Standing.UNKNOWN, Reason.VNPU_USE_UNKNOWN)]
    assert report.findings == ()


def test_a_vnpu_whose_template_is_not_known_is_pinned_by_every_pin_of_its_id() -> None:
    picture, _ = look(inventory(chip(0, vnpus=(vnpu(100, None), vnpu(101)))))
    pins = [pin(target(0, 100)), pin(target(0, 100, "vir10"))]
    report = judged(picture, *pins)
    assert protected(report) == ["v0100"]
    assert report.vnpus[0].pins == tuple(pins)
    assert standings(report) == [Standing.UNKNOWN] * 2
    assert offered(report) == []


def test_a_vnpu_of_an_npu_whose_die_was_never_read_is_pinned_by_every_pin_that_may_mean_it() -> None:
    picture, _ = look(inventory(chip(0, 100, die=None, problems=(Problem(Aspect.DIE, None),)), chip(1, 116)))
    report = judged(picture, pin(target(5, 100)), pin(target(6)), pin(target(1)), pin(target(1, 101)))
    assert protected(report) == ["v0100", "v0116"]
    assert [one.target for one in report.vnpus[0].pins] == [target(5, 100), target(6)]
    assert report.vnpus[0].standing is Standing.UNKNOWN
    assert standings(report) == [Standing.UNKNOWN, Standing.UNKNOWN, Standing.MATCHED, Standing.UNMATCHED]
    assert offered(report) == []


def test_a_die_that_can_no_longer_be_read_is_the_one_that_it_was() -> None:
    _, memory = look(inventory(chip(0, 100)))
    said = inventory(chip(0, 100, die=None, problems=(Problem(Aspect.DIE, None),)))
    picture, _ = look(said, memory=memory)
    report = judged(picture, pin(target(0, 100)), pin(target(9, 100)))
    assert [one.target for one in report.vnpus[0].pins] == [target(0, 100)]


def test_an_id_that_two_npus_list_is_protected_on_both_and_offered_of_neither() -> None:
    picture, _ = look(inventory(chip(0, 100), chip(1, 100)))
    report = judged(picture, pin(target(0, 100), "0" * 16))
    assert standings(report) == [Standing.UNKNOWN]
    assert offered(report) == []
    assert protected(report) == [view.name for view in picture.vnpus if view.card == "p000"]


def test_dies_that_two_npus_claim_are_pinned_both() -> None:
    picture, _ = look(inventory(chip(0, 100), chip(1, 116, die=die(0))))
    report = judged(picture, pin(target(0)), pin(target(0, 116)))
    assert protected(report) == ["v0100", "v0116"]
    assert report.pins[0].matches == ("p000", "p001")
    assert offered(report) == []


def test_a_target_that_cannot_be_read_is_no_pin() -> None:
    with pytest.raises(ValueError, match="a target is"):
        judge([pin("p000")], Sight())
