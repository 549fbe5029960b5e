"""What is published of NPUs: each doubt has a reason, and what has one is vouched for by nobody."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from devward.model import Finding, Identity
from devward.npu.codes import DcmiCode
from devward.npu.facts import Aspect, Chip, Inventory, Mode, Problem
from devward.npu.host import Surroundings
from devward.npu.inventory import Picture, Unavailable, assess
from devward.npu.memory import NO_MEMORY, Memory
from devward.npu.views import UNKNOWN_NUMBER, CardHealth, CardView, Use, Verdict, VnpuView
from devward.npu.vnpu_cfg import ABSENT, Record, Records
from devward.reasons import Reason
from sim.npu_host import BOOT, around, chip, die, inventory, node, vnpu

NOW = 1_767_225_600_000_000
LATER = NOW + 60_000_000


def looks(said: Inventory | Unavailable, surroundings: Surroundings | None = None, memory: Memory = NO_MEMORY, times: int = 2) -> Picture:
    """Look that often, so that what does not match has been confirmed."""
    picture = Picture()
    for _ in range(times):
        picture, memory = assess(said, surroundings or around(said if isinstance(said, Inventory) else inventory()), memory, NOW)
    return picture


def seen(said: Inventory, surroundings: Surroundings | None = None) -> Memory:
    """Return the memory of a host that was looked at."""
    return assess(said, surroundings or around(said), NO_MEMORY, NOW)[1]


def codes(picture: Picture) -> set[Reason]:
    return {finding.code for finding in picture.findings}


def only_finding(picture: Picture) -> Finding:
    (finding,) = picture.findings
    return finding


def card(picture: Picture, name: str) -> CardView:
    (found,) = (view for view in picture.cards if view.name == name)
    return found


def one(picture: Picture, name: str) -> VnpuView:
    (found,) = (view for view in picture.vnpus if view.name == name)
    return found


def test_a_host_where_everything_matches() -> None:
    said = inventory(chip(0), chip(3, 148, 150))
    picture = looks(said)
    assert picture.findings == ()
    assert not picture.unsettled
    assert [view.name for view in picture.cards] == ["p000", "p003"]
    assert card(picture, "p003") == CardView(
        name="p003",
        phy_id=3,
        logic_id=3,
        card=3,
        device=0,
        die_id=die(3),
        chip="Ascend 910B3",
        node="/dev/davinci3",
        number="4000:3",
        identity=Identity.VALID,
        health=CardHealth.HEALTHY,
        managed=picture.cards[0].managed,
        protection=picture.cards[0].protection,
        claims=(),
        used_cores=10,
        claimed_cores=UNKNOWN_NUMBER,
        total_cores=20,
        reason=Reason.OK,
        text="",
    )
    assert [view.name for view in picture.vnpus] == ["v0148", "v0150"]
    view = one(picture, "v0150")
    assert (view.vdev, view.vfid, view.card, view.template, view.cores) == (150, 3, "p003", "vir05_1c_16g", 5)
    assert (view.node, view.use, view.verdict, view.reason, view.text) == ("/dev/vdavinci150", Use.IDLE, Verdict.UNKNOWN, Reason.OK, "")
    assert view.identity.startswith(f"{die(3)}/150/vir05_1c_16g/")
    assert (view.first_seen_usec, view.grace_start_usec, view.confirmations, view.eligible_at_usec) == (NOW, 0, 0, 0)


def test_a_host_without_npus_is_empty() -> None:
    assert looks(inventory(), Surroundings({}, ABSENT)) == Picture(empty=True, boot_id=BOOT)
    assert not looks(inventory(problems=(Problem(Aspect.CARDS, None),)), Surroundings({}, ABSENT)).empty


#: Doubts about chip 1 of two, which has the vNPU 116: the chip, and the reason.
CHIP_DOUBTS: dict[str, tuple[Chip, Reason]] = {
    "type": (chip(1, 116, problems=(Problem(Aspect.TYPE, DcmiCode.NO_SUCH_DEVICE),)), Reason.NPU_UNREADABLE),
    "not ready": (chip(1, 116, problems=(Problem(Aspect.HEALTH, DcmiCode.NOT_READY),), health=None), Reason.NPU_NOT_READY),
    "upgrading": (chip(1, 116, problems=(Problem(Aspect.CHIP_INFO, DcmiCode.UPGRADING),)), Reason.NPU_NOT_READY),
    "phy": (chip(1, 116, phy=None, problems=(Problem(Aspect.PHY, None),)), Reason.NPU_ID_UNKNOWN),
    "phy beyond all": (chip(1, 116, phy=4_000_000_000), Reason.NPU_ID_UNKNOWN),
    "phy of another": (chip(1, 116, phy=0), Reason.NPU_ID_SHARED),
    "die": (chip(1, 116, die=None, problems=(Problem(Aspect.DIE, None),)), Reason.NPU_DIE_UNKNOWN),
    "die of another": (chip(1, 116, die=die(0)), Reason.NPU_DIE_SHARED),
    "health unknown": (chip(1, 116, health=None), Reason.NPU_HEALTH_UNKNOWN),
    "unhealthy": (chip(1, 116, health=2), Reason.NPU_UNHEALTHY),
    "no list": (chip(1, vnpus=None, problems=(Problem(Aspect.VNPUS, None),)), Reason.NPU_VNPUS_UNKNOWN),
    "listed twice": (chip(1, 116, 116), Reason.NPU_VNPUS_UNKNOWN),
    "outside the window": (chip(1, 116, 132), Reason.NPU_WINDOW),
    "the wildcard": (chip(1, 116, 65535), Reason.NPU_WINDOW),
}


@pytest.mark.parametrize("doubt", CHIP_DOUBTS)
def test_a_chip_in_doubt_is_vouched_for_by_nobody_and_none_of_its_vnpus_is(doubt: str) -> None:
    doubtful, reason = CHIP_DOUBTS[doubt]
    good = inventory(chip(0, 100), chip(1, 116))
    said = inventory(chip(0, 100), doubtful)
    picture = looks(said, around(good), seen(good))
    (view,) = (view for view in picture.cards if view.card == 1)
    assert view.reason is reason
    assert view.text
    assert reason in codes(picture)
    mine = [vnpu for vnpu in picture.vnpus if vnpu.card == view.name]
    assert mine
    assert all(vnpu.reason is not Reason.OK and vnpu.verdict is Verdict.UNKNOWN for vnpu in mine)
    (other,) = (view for view in picture.vnpus if view.vdev == 100)
    shared = reason in {Reason.NPU_ID_SHARED, Reason.NPU_DIE_SHARED}
    assert (other.reason is not Reason.OK) is shared, "the other chip is in doubt where both claim the same"


def test_what_is_listed_by_an_incomplete_list_is_in_doubt_too() -> None:
    chips = chip(0, 100), chip(1, 116)
    whole = looks(inventory(*chips, problems=(Problem(Aspect.CARDS, None),)))
    assert {view.reason for view in whole.cards + whole.vnpus} == {Reason.NPU_LIST_INCOMPLETE}
    part = looks(inventory(*chips, problems=(Problem(Aspect.CARD, DcmiCode.NO_SUCH_DEVICE, card=1),)))
    assert [view.reason for view in part.cards] == [Reason.OK, Reason.NPU_LIST_INCOMPLETE]
    assert [view.reason for view in part.vnpus] == [Reason.OK, Reason.NPU_LIST_INCOMPLETE]


def test_two_chips_of_one_physical_id_are_named_by_their_place() -> None:
    picture = looks(inventory(chip(0, 100), chip(5, phy=0)))
    assert [(view.name, view.phy_id, view.reason) for view in picture.cards] == [
        ("c000d0", UNKNOWN_NUMBER, Reason.NPU_ID_SHARED),
        ("c005d0", UNKNOWN_NUMBER, Reason.NPU_ID_SHARED),
    ]
    assert [view.name for view in picture.vnpus] == ["x0100c000d0"]
    assert all(view.node == "" for view in picture.cards + picture.vnpus)


def test_a_vnpu_that_two_chips_list_belongs_to_neither() -> None:
    picture = looks(inventory(chip(0, 100), chip(1, 100)))
    assert [(view.name, view.reason) for view in picture.vnpus] == [
        ("x0100c000d0", Reason.VNPU_ID_SHARED),
        ("x0100c001d0", Reason.VNPU_ID_SHARED),
    ]
    assert card(picture, "p000").reason is Reason.OK
    assert card(picture, "p001").reason is Reason.NPU_WINDOW
    assert {Reason.VNPU_ID_SHARED, Reason.NPU_WINDOW} <= codes(picture)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"vfid": 2}, Reason.VNPU_FUNCTION_MISMATCH),
        ({"vfid": None}, Reason.VNPU_FUNCTION_MISMATCH),
        ({"template": None}, Reason.VNPU_TEMPLATE_UNKNOWN),
        ({"template": "no such name"}, Reason.VNPU_TEMPLATE_UNKNOWN),
        ({"in_use": None}, Reason.VNPU_USE_UNKNOWN),
    ],
)
def test_a_doubt_about_one_vnpu_leaves_the_others(fields: dict[str, object], reason: Reason) -> None:
    said = inventory(chip(0, vnpus=(vnpu(100, **fields), vnpu(101))))
    picture = looks(said, around(inventory(chip(0, 100, 101))))
    assert one(picture, "v0100").reason is reason
    assert one(picture, "v0101").reason is Reason.OK
    assert card(picture, "p000").reason is Reason.OK
    (finding,) = (finding for finding in picture.findings if finding.code is reason)
    assert finding.subject == "card/p000"
    assert "(vNPU 100)" in finding.text
    assert one(picture, "v0100").use is (Use.UNKNOWN if reason is Reason.VNPU_USE_UNKNOWN else Use.IDLE)


NODE_DOUBTS = {
    "no device": (node("vdavinci100", is_character_device=False), Reason.NPU_NODE_MISMATCH),
    "covered": (node("vdavinci100", covered=True), Reason.NPU_NODE_MISMATCH),
    "no driver": (node("vdavinci100", kernel_name=None), Reason.NPU_NODE_MISMATCH),
    "another's number": (node("vdavinci100", kernel_name="vdavinci101"), Reason.NPU_NODE_MISMATCH),
    "another minor": (node("vdavinci100", minor=101), Reason.NPU_NODE_MISMATCH),
}


@pytest.mark.parametrize("doubt", NODE_DOUBTS)
def test_a_node_that_is_not_the_kernels_is_told(doubt: str) -> None:
    wrong, reason = NODE_DOUBTS[doubt]
    said = inventory(chip(0, 100))
    picture = looks(said, around(said, {"vdavinci100": wrong}))
    assert one(picture, "v0100").reason is reason
    assert only_finding(picture).code is reason
    name = wrong.name.removeprefix("v").replace("100", "0")
    wrong_card = replace(
        wrong, name=name, kernel_name=name if wrong.kernel_name == wrong.name else wrong.kernel_name, minor=wrong.minor - 100
    )
    picture = looks(said, around(said, {"davinci0": wrong_card}))
    assert card(picture, "p000").reason is reason
    assert one(picture, "v0100").reason is reason
    assert one(picture, "v0100").text.startswith("Its card p000: ")


def test_nodes_that_do_not_match_are_findings_at_the_second_look() -> None:
    said = inventory(chip(0, 100))
    odd = around(said, {"davinci9": node("davinci9"), "vdavinci300": node("vdavinci300")}, without=["vdavinci100", "davinci_manager"])
    first, memory = assess(said, odd, NO_MEMORY, NOW)
    assert one(first, "v0100").reason is Reason.NPU_NODE_MISSING, "what is not there is not vouched for, at once"
    assert first.findings == ()
    assert first.unsettled
    second, memory = assess(said, odd, memory, LATER)
    assert not second.unsettled
    assert {(finding.code, finding.subject) for finding in second.findings} == {
        (Reason.NPU_NODE_MISSING, "card/p000"),
        (Reason.NPU_NODE_MISSING, "/dev"),
        (Reason.NPU_NODE_UNMATCHED, "/dev"),
    }
    (unmatched,) = (finding for finding in second.findings if finding.code is Reason.NPU_NODE_UNMATCHED)
    assert "davinci9; vdavinci300" in unmatched.text
    third, _ = assess(said, around(said), memory, LATER)
    assert third.findings == ()


def test_nodes_are_no_findings_where_the_list_may_lack_what_they_belong_to() -> None:
    good = inventory(chip(0, 100), chip(1, 116))
    for said in (
        inventory(chip(0, 100), problems=(Problem(Aspect.CARD, None, card=1),)),
        inventory(chip(0, 100), chip(1, 116, phy=None)),
        inventory(chip(0, 100), chip(1, vnpus=None)),
    ):
        assert Reason.NPU_NODE_UNMATCHED not in codes(looks(said, around(good)))


def test_a_machine_for_virtual_machines_has_no_nodes_of_vnpus() -> None:
    said = inventory(chip(0, 100), mode=Mode.VM)
    picture = looks(said, around(said, without=["vdavinci100"]))
    assert picture.findings == ()
    assert one(picture, "v0100").node == ""


def test_unreadable_nodes_vouch_for_nothing() -> None:
    said = inventory(chip(0, 100))
    picture = looks(said, around(said, nodes=None, problem="/dev: Permission denied"))
    assert card(picture, "p000").reason is Reason.NPU_NODES_UNREADABLE
    assert one(picture, "v0100").reason is Reason.NPU_NODES_UNREADABLE
    assert {finding.subject for finding in picture.findings} == {"/dev", "card/p000"}


def test_lines_and_vnpus_that_do_not_match() -> None:
    said = inventory(chip(0, 100, 101))
    lines = Records(present=True, recover=True, records=(Record(0, 100, 0, 0, "vir05_1c_16g"), Record(0, 105, 0, 0, "vir10_3c_32g")))
    first, memory = assess(said, around(said, records=lines), NO_MEMORY, NOW)
    assert first.findings == ()
    second, _ = assess(said, around(said, records=lines), memory, NOW)
    assert {finding.code: finding.subject for finding in second.findings} == {
        Reason.VNPU_NOT_RECORDED: "/etc/vnpu.cfg",
        Reason.VNPU_RECORD_UNMATCHED: "/etc/vnpu.cfg",
    }
    assert all(view.reason is Reason.OK for view in second.vnpus), "a line is no proof of anything"
    assert looks(said, around(said, records=ABSENT), times=2).findings != ()
    assert looks(replace(said, recover=None), around(said, records=ABSENT)).findings == (), "a driver without such a file"
    broken = around(said, records=replace(lines, problem="it has no end"))
    assert codes(looks(said, broken)) == {Reason.VNPU_RECORDS_UNREADABLE, Reason.VNPU_RECORD_UNMATCHED}


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem(Aspect.MODE, DcmiCode.OCCUPIED), Reason.NPU_MODE_UNKNOWN),
        (Problem(Aspect.VERSION, None), Reason.NPU_ANSWER_ODD),
        (Problem(Aspect.RECOVER, None), Reason.NPU_ANSWER_ODD),
        (Problem(Aspect.VERSION, DcmiCode.SYMBOL_MISSING), None),
    ],
)
def test_other_answers_that_cannot_be_are_told(problem: Problem, reason: Reason | None) -> None:
    picture = looks(inventory(chip(0), problems=(problem,)))
    assert codes(picture) == ({reason} if reason is not None else set())
    assert card(picture, "p000").reason is Reason.OK


def test_a_chip_that_cannot_be_split_has_no_doubt() -> None:
    picture = looks(inventory(chip(0, vnpus=None, problems=(Problem(Aspect.VNPUS, DcmiCode.NOT_SUPPORTED),))))
    assert picture.findings == ()
    assert card(picture, "p000").used_cores == 0


# --- what was seen before ----------------------------------------------------------------------------------------------
def test_a_swapped_card_is_told_as_long_as_the_daemon_remembers() -> None:
    memory = seen(inventory(chip(0, 100), chip(1)))
    swapped = inventory(chip(0, 100, die=die(77)), chip(1))
    for _ in range(3):
        picture, memory = assess(swapped, around(swapped), memory, LATER)
        assert card(picture, "p000").reason is Reason.NPU_DIE_CHANGED
        assert die(0) in card(picture, "p000").text
        assert one(picture, "v0100").reason is Reason.NPU_DIE_CHANGED
        assert card(picture, "p001").reason is Reason.OK
    back, _ = assess(inventory(chip(0, 100), chip(1)), around(inventory(chip(0, 100), chip(1))), memory, LATER)
    assert card(back, "p000").reason is Reason.OK


def test_a_card_with_another_physical_id_than_at_first_is_told() -> None:
    memory = seen(inventory(chip(0)))
    moved = inventory(chip(0, phy=4))
    picture, memory = assess(moved, around(moved), memory, LATER)
    assert card(picture, "p004").reason is Reason.NPU_DIE_CHANGED
    picture, memory = assess(moved, around(moved), memory, LATER)
    assert card(picture, "p004").reason is Reason.NPU_DIE_CHANGED


def test_a_doubtful_first_sight_is_none() -> None:
    memory = seen(inventory(chip(0), chip(5, phy=0)))
    assert (memory.dies, memory.homes) == ({}, {})
    memory = seen(inventory(chip(0, die=die(9)), chip(1, die=die(9))))
    assert (memory.dies, memory.homes) == ({}, {})


Change = Callable[[Inventory, Surroundings], tuple[Inventory, Surroundings]]


def _of_chip(**fields: object) -> Change:
    def change(said: Inventory, surroundings: Surroundings) -> tuple[Inventory, Surroundings]:
        return replace(said, chips=(replace(said.chips[0], **fields),)), surroundings  # type: ignore[arg-type]

    return change


def _of_vnpu(**fields: object) -> Change:
    return _of_chip(vnpus=(vnpu(100, **fields),))


def _of_node(**fields: object) -> Change:
    return lambda said, surroundings: (said, around(said, {"vdavinci100": node("vdavinci100", **fields)}))


def _around(**fields: object) -> Change:
    return lambda said, surroundings: (said, replace(surroundings, **fields))  # type: ignore[arg-type]


#: What makes another vNPU of one with the same id.
NEW = {
    "boot": lambda said, surroundings: (replace(said, boot_id=BOOT.replace("6", "7")), surroundings),
    "die": _of_chip(die=die(77)),
    "function": _of_vnpu(vfid=2),
    "template": _of_vnpu(template="vir10_3c_32g"),
    "inode": _of_node(inode=7),
    "node gone": lambda said, surroundings: (said, around(said, without=["vdavinci100"])),
    "events": _around(sequences={"vdavinci100": 1}),
    "lost events": _around(losses=1),
}
#: What leaves it the one that it is, or cannot be told from it at the moment.
SAME = {
    "nothing": lambda said, surroundings: (said, surroundings),
    "touched": _of_node(ctime_ns=6),
    "in use": _of_vnpu(in_use=True),
    "unhealthy": _of_chip(health=1),
    "die not readable": _of_chip(die=None),
    "template not readable": _of_vnpu(template=None),
    "nodes not readable": _around(nodes=None, problem="/dev"),
    "not listed whole": _of_chip(vnpus=None),
    "events of others": _around(sequences={"vdavinci101": 4}),
    "no list": lambda said, surroundings: (Unavailable(Reason.NPU_BROKER_SILENT, ""), surroundings),
    "cards not listed": lambda said, surroundings: (replace(said, chips=(), problems=(Problem(Aspect.CARDS, None),)), surroundings),
    "card not listed": lambda said, surroundings: (replace(said, chips=(), problems=(Problem(Aspect.CARD, None, card=0),)), surroundings),
}


@pytest.mark.parametrize("change", NEW)
def test_another_vnpu_of_the_same_id_is_a_new_one(change: str) -> None:
    said = inventory(chip(0, 100))
    before, memory = assess(said, around(said), NO_MEMORY, NOW)
    after, memory = assess(*NEW[change](said, around(said)), memory, LATER)
    assert after.vnpus[0].identity != before.vnpus[0].identity
    assert after.vnpus[0].first_seen_usec == LATER


@pytest.mark.parametrize(
    ("name", "vgroup", "told"), [("310P3", 2, {"v0100": 2}), ("310P3", 0, {"v0100": 0}), ("310P3", None, {}), ("910B3", 0, {})]
)
def test_a_group_is_told_of_chips_that_have_groups(name: str, vgroup: int | None, told: dict[str, int]) -> None:
    assert looks(inventory(chip(0, chip_name=name, vnpus=(replace(vnpu(100), vgroup=vgroup),)))).vgroups == told


@pytest.mark.parametrize("change", SAME)
def test_what_cannot_be_told_at_the_moment_makes_no_new_vnpu_and_vouches_for_none(change: str) -> None:
    said = inventory(chip(0, 100))
    before, memory = assess(said, around(said), NO_MEMORY, NOW)
    meanwhile, memory = assess(*SAME[change](said, around(said)), memory, LATER)
    (view,) = meanwhile.vnpus
    assert (view.identity, view.first_seen_usec) == (before.vnpus[0].identity, NOW)
    if change not in {"nothing", "touched", "in use", "events of others"}:
        assert view.reason is not Reason.OK
    if change in {"not listed whole", "no list", "cards not listed", "card not listed"}:
        assert view.use is Use.UNKNOWN
    again, _ = assess(said, around(said), memory, LATER)
    assert again.vnpus == before.vnpus


def test_an_id_that_was_gone_comes_back_as_another() -> None:
    said = inventory(chip(0, 100))
    before, memory = assess(said, around(said), NO_MEMORY, NOW)
    gone, memory = assess(inventory(chip(0)), around(said), memory, NOW)
    assert gone.vnpus == ()
    back, memory = assess(said, around(said), memory, LATER)
    assert back.vnpus[0].identity != before.vnpus[0].identity
    assert back.vnpus[0].first_seen_usec == LATER
    stays, _ = assess(said, around(said), memory, LATER + 1)
    assert stays.vnpus == back.vnpus


def test_a_vnpu_at_another_place_is_another_one_once() -> None:
    memory = seen(inventory(chip(0, 100)))
    moved = inventory(chip(0, 100, card=6))
    first, memory = assess(moved, around(moved), memory, LATER)
    assert first.vnpus[0].first_seen_usec == LATER
    second, _ = assess(moved, around(moved), memory, LATER + 1)
    assert second.vnpus == first.vnpus


def test_a_vnpu_is_not_kept_for_a_card_that_was_exchanged() -> None:
    memory = seen(inventory(chip(0, 100)))
    other = inventory(chip(0, die=die(5), vnpus=None))
    picture, _ = assess(other, around(other), memory, LATER)
    assert picture.vnpus == ()


def test_what_is_not_listed_is_kept_under_a_name_of_its_own() -> None:
    memory = seen(inventory(chip(0, 100)))
    said = inventory(chip(7, 100, phy=0), problems=(Problem(Aspect.CARD, None, card=0),))
    picture, memory = assess(said, around(said), memory, LATER)
    assert [view.name for view in picture.cards] == ["c000d0", "p000"]
    assert [view.name for view in picture.vnpus] == ["v0100", "x0100c000d0"]
    assert card(picture, "c000d0").reason is Reason.NPU_LIST_INCOMPLETE
    picture, _ = assess(inventory(chip(7, 100, phy=0)), around(said), memory, LATER)
    assert [view.name for view in picture.cards] == ["p000"], "a complete list ends it"


@pytest.mark.parametrize("reason", [Reason.NPU_BROKER_SILENT, Reason.NPU_LIBRARY_UNUSABLE])
def test_without_the_broker_everything_is_shown_as_it_was_and_unknown(reason: Reason) -> None:
    memory = seen(inventory(chip(0, 100), chip(1)))
    picture, after = assess(Unavailable(reason, "it hangs"), Surroundings(None, ABSENT), memory, LATER)
    assert picture.in_doubt
    assert after == memory
    assert [(view.name, view.reason, view.health) for view in picture.cards] == [
        ("p000", reason, CardHealth.UNKNOWN),
        ("p001", reason, CardHealth.UNKNOWN),
    ]
    (view,) = picture.vnpus
    assert (view.name, view.use, view.reason) == ("v0100", Use.UNKNOWN, reason)
    assert only_finding(picture).code is reason
    assert "it hangs" in only_finding(picture).text
    assert not picture.empty


def test_a_place_that_is_listed_twice_is_no_list() -> None:
    picture = looks(inventory(chip(0), chip(3, card=0)))
    assert (picture.cards, picture.vnpus) == ((), ())
    assert only_finding(picture).code is Reason.NPU_BROKER_GARBLED


# --- bounds -------------------------------------------------------------------------------------------------------------
def largest() -> Inventory:
    return inventory(*(chip(phy, *range(100 + 16 * phy, 132 + 16 * phy)) for phy in range(64)))


def test_the_largest_host_gives_few_findings() -> None:
    picture = looks(largest())
    assert (len(picture.cards), len(picture.vnpus)) == (64, 2048)
    assert len(picture.findings) <= 64 * 2 + 8
    assert max(len(finding.text) for finding in picture.findings) < 1000


def test_the_largest_host_is_judged_in_little_time() -> None:
    said, memory = largest(), NO_MEMORY
    surroundings = around(said)
    spent = []
    for _ in range(5):
        began = time.process_time()
        _, memory = assess(said, surroundings, memory, NOW)
        spent.append(time.process_time() - began)
    assert min(spent) < 10, "no clock fails a test; tests/bench has the figure"


def test_what_did_not_change_is_the_same_object() -> None:
    said = inventory(chip(0, 100), chip(1))
    first, memory = assess(said, around(said), NO_MEMORY, NOW)
    second, _ = assess(inventory(chip(0, 100), chip(1, health=1)), around(said), memory, LATER)
    assert second.vnpus[0] is first.vnpus[0]
    assert second.cards[0] is first.cards[0]
    assert second.cards[1] is not first.cards[1]


def test_numbers_that_cannot_be_are_not_shown() -> None:
    said = inventory(chip(0, logic=4_000_000_000, vnpus=(vnpu(100, vfid=4_000_000_000),)))
    picture = looks(said, around(said))
    assert picture.cards[0].logic_id == UNKNOWN_NUMBER
    assert picture.vnpus[0].vfid == UNKNOWN_NUMBER
