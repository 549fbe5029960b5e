"""What lies about unused: by card, and by whose Pods left it there, which outlasts each single Pod."""

import json
from typing import Any

import pytest

from devward.cluster.claimants import Claimant
from devward.cluster.evidence import Finding
from devward.cluster.podlist import Controller
from devward.npu.views import Use
from devward.reclaim.confirmation import MAX_SUSPECTS
from devward.reclaim.history import History, see
from devward.reclaim.leaks import MAX_LEFT, Leak, Left, described, leaked_cores, leaks
from devward.reclaim.leftby import LeftBy, left_by
from devward.reclaim.look import PinHold
from sim.reclaim_desk import ReclaimDesk, card_of, claim, unknown, vnpu_of

JOB = Controller("Job", "train", "j-1")
OF_JOB = LeftBy("j-1", "Job", "space", "train")
HELD = vnpu_of(host=Finding.HELD, holders=frozenset({"k8s.io/abc"}))


def of_job(uid: str) -> Claimant:
    return Claimant(uid, "space", f"train-{uid}", (), JOB)


class Chronicle:
    """A desk whose looks are written down."""

    def __init__(self, **more: Any) -> None:
        self.desk = ReclaimDesk(**more)
        self.history = History()

    def look(self, *pods: Claimant, **more: Any) -> None:
        """Look while these Pods cannot start on card 0."""
        claims = [claim(uid=pod.uid) for pod in pods]
        self.desk.take(self.desk.see(self.desk.now + 60, claims=claims, claimants=pods, **more))
        assert self.desk.last is not None
        self.history, _ = see(self.history, self.desk.last, self.desk.progress, self.desk.judgements)

    @property
    def by_owner(self) -> dict[tuple[LeftBy | None, str], int]:
        return {(leak.of.by, leak.of.card): leak.count for leak in leaks(self.history, is_node_known=True).by_owner}


def test_leaks_by_card_and_by_who_left_them_there() -> None:
    told = Chronicle(vnpus=(vnpu_of(100), vnpu_of(116, cores=-1.0)))
    told.look(Claimant("one", "space", "alone"))
    first = told.desk.judgements["v0100"].first_seen_usec
    told.desk.vnpus = (*told.desk.vnpus, vnpu_of(101, cores=2.5))
    told.look(Claimant("one", "space", "alone"), of_job("two"))
    second = told.desk.judgements["v0101"].first_seen_usec
    found = leaks(told.history, is_node_known=True)
    assert found.by_card == (Leak("p000", 2, first, 7.5), Leak("p001", 1, first, 0.0))
    alone = LeftBy("one", "Pod", "space", "alone")
    assert found.by_owner == (
        # Both of two Pods may have left it, or none is known that may have.
        Leak(Left(None, "p000"), 1, second, 2.5),
        Leak(Left(None, "p001"), 1, first, 0.0),
        Leak(Left(alone, "p000"), 1, first, 5.0),
    )
    assert leaked_cores(told.history, is_node_known=True) == 7.5


def test_pods_of_one_controller_leave_as_one_and_it_outlasts_each_of_them() -> None:
    told = Chronicle()
    told.look(of_job("first-try"))
    # The Pod goes, and the next try has another UID; then two at a time.
    told.desk.vnpus = (*told.desk.vnpus, vnpu_of(101))
    told.look(of_job("second-try"))
    told.desk.vnpus = (*told.desk.vnpus, vnpu_of(102))
    told.look(of_job("third-try"), of_job("fourth-try"))
    told.look()
    assert told.by_owner == {(OF_JOB, "p000"): 3}
    (leak,) = leaks(told.history, is_node_known=True).by_owner
    assert leak.since_usec == told.desk.judgements["v0100"].first_seen_usec


def test_a_pod_that_the_look_does_not_name_is_its_own_owner() -> None:
    assert left_by(["one"], {}) == LeftBy("one")
    assert left_by([], {}) is None
    assert left_by(["one", "two"], {}) is None
    # Of so many there may be more than are told.
    many = [f"uid-{number}" for number in range(MAX_SUSPECTS)]
    known = {uid: of_job(uid) for uid in many}
    assert left_by(many, known) is None
    assert left_by(many[1:], known) == OF_JOB


def test_only_who_may_inspect_is_told_names() -> None:
    told = Chronicle(vnpus=(vnpu_of(100), vnpu_of(116)))
    told.look(Claimant("one", "sp\x1bace", "na\nme", (), Controller("Odd\x1bKind", "secret\n-training", "j\x1b-2")))
    full = described(told.history, is_node_known=True, full=True)
    (row,) = [one for one in full["by_owner"] if one["uid"]]
    assert (row["kind"], row["uid"], row["card"], row["count"]) == ("Odd\\x1bKind", "j\\x1b-2", "p000", 1)
    assert row["owner_name"] == "sp\\x1bace/secret\\x0a-training"
    shown = described(told.history, is_node_known=True, full=False)
    assert "secret" not in json.dumps(shown)
    assert [(one["uid"], one["card"]) for one in shown["by_owner"]] == [("", "p001"), ("j\\x1b-2", "p000")]
    assert shown["by_card"] == full["by_card"]


def test_no_more_lines_are_told_than_can_be_read() -> None:
    count = MAX_LEFT + 3
    cards = tuple(card_of(phy) for phy in range(count))
    told = Chronicle(cards=cards, vnpus=tuple(vnpu_of(100 + 16 * phy) for phy in range(count)))
    told.look()
    found = described(told.history, is_node_known=True, full=True)
    assert (len(found["by_owner"]), found["more"]) == (MAX_LEFT, 3)
    assert len(found["by_card"]) == count


@pytest.mark.parametrize(
    "vnpu",
    [vnpu_of(use=Use.IN_USE), vnpu_of(pin=PinHold.PINNED), HELD, vnpu_of(use=Use.UNKNOWN)],
)
def test_what_is_or_may_be_somebodys_is_no_leak(vnpu: Any) -> None:
    told = Chronicle(vnpus=(vnpu,))
    told.look()
    assert leaks(told.history, is_node_known=True).by_card == ()
    assert leaks(told.history, is_node_known=True).by_owner == ()


# --- what is not known ----------------------------------------------------------------------------------------------------
def test_while_the_node_is_unknown_so_are_the_leaks() -> None:
    told = Chronicle()
    told.look()
    assert leaked_cores(told.history, is_node_known=True) == 5.0
    # Where the NPUs were not seen either the entries are those of before.
    for unknowns in ((), (unknown(),)):
        told.look(unknowns=unknowns)
        assert leaked_cores(told.history, is_node_known=False) is None
        found = described(told.history, is_node_known=False, full=True)
        assert (found["known"], found["unknown"]) == (False, len(unknowns))
        assert found["by_card"] == found["by_owner"] == []
    told.look()
    assert described(told.history, is_node_known=True, full=True)["known"] is True


def test_what_is_known_counts_beside_what_is_not() -> None:
    told = Chronicle(vnpus=(vnpu_of(100), vnpu_of(101, use=Use.UNKNOWN), vnpu_of(116)))
    told.look(unknowns=(unknown(card="p001"),))
    found = leaks(told.history, is_node_known=True)
    assert [(leak.of, leak.count) for leak in found.by_card] == [("p000", 1)]
    assert (found.unknown, found.is_known) == (2, True)
    assert leaked_cores(told.history, is_node_known=True) == 5.0


def test_that_nothing_is_leaked_is_said_only_where_that_is_known_of_each() -> None:
    told = Chronicle(vnpus=(HELD, vnpu_of(116)))
    told.look(unknowns=(unknown(card="p001"),))
    assert leaked_cores(told.history, is_node_known=True) is None
    told.desk.vnpus = (HELD,)
    told.look()
    assert leaked_cores(told.history, is_node_known=True) == 0
    assert leaked_cores(History(), is_node_known=True) == 0
    assert leaked_cores(History(), is_node_known=False) is None
