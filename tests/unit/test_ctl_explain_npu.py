"""What is said of NPUs and vNPUs: explained in sentences, and in tables of every width."""

import io
from dataclasses import replace

import pytest

from devward.ctl import arguments, explain_npu, lists, status
from devward.ctl.context import Context
from devward.ctl.explain import explain
from devward.ctl.explanation import Explanation
from devward.ctl.facts import Finding, Manager, Snapshot
from devward.ctl.failure import Failure
from devward.ctl.npu_facts import Card, Vnpu
from devward.ctl.terminal import Capabilities, Screen
from devward.ctl.when import USEC, Times
from devward.reasons import Reason

NOW = 1_800_000_000 * USEC
TIMES = Times(NOW)
DIE = "01234567-89ABCDEF-01234567-89ABCDEF-00000007"
CARD = Card(
    name="p007",
    phy_id=7,
    logic_id=3,
    card_id=3,
    device_id=1,
    die_id=DIE,
    chip="Ascend 910B3",
    node="/dev/davinci7",
    number="236:7",
    health="healthy",
    managed="unknown",
    protection="not-evaluated",
    used_cores=5.0,
    total_cores=20.0,
)
VNPU = Vnpu(
    name="v0212",
    id=212,
    identity=f"{DIE}/212/vir05_1c_16g/01",
    card="/org/devward/Devward1/card/p007",
    template="vir05_1c_16g",
    vfid=1,
    cores=5.0,
    node="/dev/vdavinci212",
    in_use="idle",
    verdict="unknown",
    first_seen_usec=NOW - 600 * USEC,
)
BOTH = Snapshot(Manager(), (), (), (), (CARD,), (VNPU,))


def text(told: Explanation) -> str:
    steps = [step.text + " " + " ".join(step.commands) for step in told.steps]
    return "\n".join([told.what, *told.found, "--", *told.means, "--", *steps])


@pytest.mark.parametrize("what", ["p007", "7", "/dev/davinci7", DIE])
def test_an_npu_by_each_of_its_names(what: str) -> None:
    told = explain(what, BOTH, {}, TIMES)
    assert told.kind == "card"
    assert text(told) == (
        "p007 (/dev/davinci7)\n"
        "It is an Ascend 910B3, chip 1 of card 3; its physical id is 7, its logical id is 3.\n"
        f"Its die id, which is HAMi's name of it, is {DIE}.\n"
        "/dev/davinci7 is character device 236:7.\n"
        "The vendor's library calls it healthy.\n"
        "It has one vNPU: v0212; 5 of its 20 AI cores are taken.\n"
        "It is not known whether a scheduler such as HAMi hands it out.\n"
        "Which Pods claim it was not evaluated.\n"
        "--\n"
        "devward vouches for it: what the vendor's library, the kernel and the host's files say of it agrees.\n"
        "--\n"
        "Nothing needs to be done. \n"
        "See what the vendor's own tool says. npu-smi info -t board -i 3"
    )


@pytest.mark.parametrize(
    "what", ["v0300", "v300", "/dev/vdavinci300", f"{DIE}/300/vir05_1c_16g", f"{DIE}/300/vir05_1c_16g/0123456789abcdef"]
)
def test_a_vnpu_that_is_gone(what: str) -> None:
    with pytest.raises(Failure, match="devward sees no vNPU v0300 now") as failed:
        explain(what, BOTH, {}, TIMES)
    assert "history --vnpu v0300" in (failed.value.advice or "").replace("\u00a0", " ")


@pytest.mark.parametrize("what", ["300", "v", "w0300", "v03x", DIE.replace("0", "1"), "/dev/vdavinci", "v\u0663\u0660\u0660"])
def test_what_names_no_vnpu(what: str) -> None:
    with pytest.raises(Failure, match="knows nothing named"):
        explain(what, BOTH, {}, TIMES)


@pytest.mark.parametrize("what", ["v0212", "212", "/dev/vdavinci212", VNPU.identity, f"{DIE}/212/vir05_1c_16g"])
def test_a_vnpu_by_each_of_its_names(what: str) -> None:
    vnpu = explain_npu.vnpu_meant(what, BOTH)
    assert vnpu is VNPU
    told = explain_npu.of_vnpu(vnpu, {"a": 1}, BOTH, TIMES)
    assert (told.kind, told.evidence) == ("vnpu", {"a": 1})
    assert text(told) == (
        "v0212\n"
        "It is the vNPU 212 of the NPU p007 (Ascend 910B3), virtual function 1, made with the template vir05_1c_16g; it takes 5 AI cores.\n"
        "Its device node is /dev/vdavinci212.\n"
        "The driver says that it is idle, which is no proof that nobody owns it.\n"
        f"Its identity is {VNPU.identity}.\n"
        "devward first saw it 10 minutes ago.\n"
        "devward has not judged whether it may be reclaimed.\n"
        "--\n"
        "devward leaves it alone. Containers that use it are not affected.\n"
        "--\n"
        "Nothing needs to be done. \n"
        "See the NPU that it is a part of. devwardctl explain p007"
    )


def test_what_is_not_known_is_said_to_be() -> None:
    told = text(explain_npu.of_card(Card(name="c003d1"), None, Snapshot(Manager(), (), (), ()), TIMES))
    for said in (
        "It is an NPU of unknown type.",
        "Its die id is not known.",
        "It has no device node.",
        "Its health is not told.",
        "It is not divided into vNPUs.",
    ):
        assert said in told
    assert "-1" not in told
    told = text(explain_npu.of_vnpu(Vnpu(name="x0100c003d1", id=100), None, Snapshot(Manager(), (), (), ()), TIMES))
    assert "It is the vNPU 100 of the NPU that is not told.\nIt has no device node.\nIts use is not told." in told
    assert "-1" not in told
    assert "1970" not in told
    for reason in Reason:
        assert "-1" not in text(explain_npu.of_card(Card(name="c003d1", reason=reason), None, Snapshot(Manager(), (), (), ()), TIMES))


@pytest.mark.parametrize("reason", [one for one in Reason if one])
def test_every_reason_of_an_npu_and_a_vnpu(reason: Reason) -> None:
    told = explain_npu.of_card(replace(CARD, reason=reason), None, BOTH, TIMES)
    assert f"({reason})" in text(told)
    assert "devward does not vouch for it." in text(told)
    assert "vouches for it:" not in text(told)
    assert told.steps
    told = explain_npu.of_vnpu(replace(VNPU, reason=reason), None, BOTH, TIMES)
    assert f"({reason})" in text(told)
    assert told.means
    assert told.steps


def test_what_an_evaluation_would_add() -> None:
    card = replace(CARD, managed="hami", protection="protected", claims=("u-1", "u-2"), claimed_cores=10.0)
    told = text(explain_npu.of_card(card, None, BOTH, TIMES))
    assert "It is claimed by the Pods with the UIDs u-1, u-2." in told
    assert "The claims on it ask for 10 AI cores." in told
    vnpu = replace(
        VNPU, verdict="confirming", verdict_reason="in\x1b", grace_start_usec=NOW, confirmations=2, eligible_at_usec=NOW + 600 * USEC
    )
    told = text(explain_npu.of_vnpu(vnpu, None, BOTH, TIMES))
    assert "The verdict is confirming (in\\x1b)." in told
    assert "That nobody owns it holds for a moment, and was confirmed 2 times; it may be reclaimed in 10 minutes at the earliest." in told


def test_findings_about_them_are_told() -> None:
    findings = tuple(Finding("flux", subject, f"About {subject}.", NOW) for subject in ("/dev/davinci7", DIE, "v0212", ""))
    snapshot = replace(BOTH, findings=findings)
    told = text(explain_npu.of_card(CARD, None, snapshot, TIMES))
    assert told.count("Finding") == 2
    assert "About v0212." in text(explain_npu.of_vnpu(VNPU, None, snapshot, TIMES))
    assert "Finding" not in text(explain_npu.of_card(Card(name="p001"), None, snapshot, TIMES)), "an empty subject is nobody's"


def test_an_id_that_two_chips_list_is_asked_back() -> None:
    twice = (replace(VNPU, name="x0212c003d1"), replace(VNPU, name="x0212c004d0"))
    snapshot = replace(BOTH, vnpus=twice)
    with pytest.raises(Failure, match="212 can mean x0212c003d1, x0212c004d0"):
        explain_npu.vnpu_meant("212", snapshot)
    assert explain_npu.vnpu_meant("x0212c004d0", snapshot) is twice[1]


def test_no_name_is_no_name_of_all() -> None:
    nameless = replace(BOTH, cards=(Card(name="c003d1"), Card(name="c003d0")))
    assert explain_npu.card_meant("", nameless) is None
    assert explain_npu.card_meant("-1", nameless) is None


def many(card: Card, number: int) -> Snapshot:
    cards = tuple(replace(card, name=f"p{one:03d}", phy_id=one, node=f"/dev/davinci{one}") for one in range(number))
    return replace(BOTH, cards=cards)


@pytest.mark.parametrize("columns", [None, 200, 80, 40])
def test_the_tables_fit_the_width(columns: int | None) -> None:
    stream = io.StringIO()
    screen = Screen(stream, Capabilities(columns))
    lists.show_cards(screen, BOTH)
    lists.show_vnpus(screen, BOTH, TIMES)
    lines = stream.getvalue().splitlines()
    if columns is None:
        assert f"{DIE}  3,1" in lines[1]
        assert VNPU.identity in lines[3]
    if columns in (200, 80):
        assert all(len(line) <= columns for line in lines)
    if columns == 80:
        assert lines == [
            "NPU   CHIP          HEALTH   CORES USED  VNPUS  NODE",
            "p007  Ascend 910B3  healthy  5 of 20     1      /dev/davinci7",
            "VNPU   NPU   TEMPLATE      USE   VERDICT  CORES  FIRST SEEN",
            "v0212  p007  vir05_1c_16g  idle  unknown  5      10 minutes ago",
        ]


def listed(columns: int | None, *cards: Card) -> list[str]:
    stream = io.StringIO()
    lists.show_cards(Screen(stream, Capabilities(columns)), replace(BOTH, cards=cards))
    return stream.getvalue().splitlines()


def test_who_claims_npus_is_listed_where_somebody_was_asked() -> None:
    owned = replace(CARD, managed="managed", protection="protected", claims=("u-1", "u-2"))
    unclaimed = replace(CARD, name="p008", managed="unmanaged", protection="none")
    unasked = replace(CARD, name="p009")
    assert listed(80, owned, unclaimed, unasked) == [
        "NPU   CHIP          HEALTH   CORES USED  VNPUS  PROTECTION     CLAIMS  MANAGED",
        "p007  Ascend 910B3  healthy  5 of 20     1      protected      2       managed",
        "p008  Ascend 910B3  healthy  5 of 20     0      none           0       unmanaged",
        "p009  Ascend 910B3  healthy  5 of 20     0      not-evaluated          unknown",
    ]
    assert listed(70, owned)[0].endswith("VNPUS  PROTECTION  CLAIMS"), "the least goes first"
    assert "MANAGED    NODE           DIE ID" in listed(None, owned, unclaimed)[0]
    assert "PROTECTION" not in listed(None, unasked)[0], "it would say nothing on a host without Kubernetes"
    for one in (replace(unasked, claims=("u",)), replace(unasked, managed="managed"), replace(unasked, protection="odd")):
        assert "PROTECTION" in listed(None, one)[0]


def test_the_status_names_some_that_are_not_vouched_for() -> None:
    def shown(snapshot: Snapshot) -> str:
        out = io.StringIO()
        screen = Screen(out, Capabilities())
        given = arguments.parse(["status"])
        status.show(Context(given, screen, screen, {}, stdin_is_terminal=False, realtime_usec=lambda: NOW), snapshot)
        return out.getvalue()

    said = shown(many(replace(CARD, reason="flux"), 6))
    assert "6 Ascend NPUs (6 healthy), 1 vNPU (0 in use)." in said
    assert said.count("is not vouched for: ") == status.MAX_CARDS
    assert "(2 more are not vouched for)" in said
    assert "NPU" not in shown(Snapshot(Manager(), (), (), ())), "a host without NPUs hears nothing of them"
