"""What became of vNPUs, what is counted, and what the record of a destruction holds."""

import json
from dataclasses import replace
from typing import Any

import pytest

from devward.cluster.evidence import Finding
from devward.npu.facts import Outcome, Refusal
from devward.npu.views import Use
from devward.npu.vnpu_cfg import Record, parse
from devward.reclaim.aftermath import Result, called, refused, unanswered
from devward.reclaim.confirmation import Progress
from devward.reclaim.counters import Counters, of_destruction, of_look
from devward.reclaim.history import MAX_ENTRIES, Attempt, Fate, Gone, History, act, see
from devward.reclaim.look import PinHold
from devward.reclaim.reasons import Verdict
from devward.reclaim.record import evidence, recreate_line
from sim.reclaim_desk import RUNNING, ReclaimDesk, card_of, claim, expected_of, unknown, unmanaged, vnpu_of

MINE = vnpu_of().identity
HELD = vnpu_of(host=Finding.HELD, holders=frozenset({"k8s.io/abc"}))


class Chronicle:
    """A desk whose looks are written down."""

    def __init__(self, **more: Any) -> None:
        self.desk = ReclaimDesk(**more)
        self.history = History()

    def look(self, **more: Any) -> list[Gone]:
        self.desk.take(self.desk.see(self.desk.now + 60, **more))
        assert self.desk.last is not None
        self.history, went = see(self.history, self.desk.last, self.desk.progress, self.desk.judgements)
        return list(went)

    def act(self, result: Result, after: float = 1.0) -> list[Gone]:
        self.history, went = act(self.history, MINE, Attempt("r-1", self.desk.now + after, "npu-smi ..."), result, at_usec=77)
        return list(went)


def fates(went: list[Gone]) -> list[Fate]:
    return [gone.fate for gone in went]


# --- what went -------------------------------------------------------------------------------------------------------------------------
def test_what_devward_destroyed() -> None:
    told = Chronicle()
    assert told.look() == []
    (gone,) = told.act(Result.DESTROYED)
    assert (gone.fate, gone.request_id, gone.at_usec, gone.was.identity, gone.was.template) == (
        Fate.DESTROYED,
        "r-1",
        77,
        MINE,
        "vir05_1c_8g",
    )
    assert told.look(vnpus=()) == []
    assert told.history.gone == (gone,)


def test_an_outcome_that_was_not_known_is_told_by_the_next_look() -> None:
    told = Chronicle()
    told.look()
    assert told.act(Result.UNKNOWN) == []
    (gone,) = told.look(vnpus=())
    assert (gone.fate, gone.request_id, gone.recreate) == (Fate.DESTROYED, "r-1", "npu-smi ...")
    assert told.history.attempts == {}


def test_what_a_look_after_the_attempt_still_lists_was_not_destroyed_by_it() -> None:
    told = Chronicle()
    told.look()
    told.act(Result.UNKNOWN)
    told.look()
    assert fates(told.look(vnpus=())) == [Fate.VANISHED]


def test_a_look_that_began_before_the_attempt_tells_nothing_of_it() -> None:
    told = Chronicle()
    told.look()
    told.act(Result.UNKNOWN, after=59.5)
    told.look()
    assert fates(told.look(vnpus=())) == [Fate.DESTROYED]


def test_an_attempt_is_forgotten_with_its_vnpu() -> None:
    told = Chronicle()
    told.look()
    told.act(Result.UNKNOWN, after=59.5)
    assert fates(told.look(vnpus=())) == [Fate.DESTROYED]
    assert told.history.attempts == {}


@pytest.mark.parametrize("result", [Result.STILL_PRESENT, Result.REFUSED])
def test_what_failed_is_none_of_devwards_doing_later(result: Result) -> None:
    told = Chronicle()
    told.look()
    assert told.act(result) == []
    assert fates(told.look(vnpus=())) == [Fate.VANISHED]


def test_nothing_is_written_of_what_was_never_seen() -> None:
    told = Chronicle()
    assert told.act(Result.DESTROYED) == []
    assert told.history == History()


def test_an_owned_one_that_goes_while_its_container_lives_was_somebody_elses_doing() -> None:
    told = Chronicle(vnpus=(HELD,))
    told.look()
    (gone,) = told.look(vnpus=(), living=frozenset({"k8s.io/abc", "k8s.io/def"}))
    assert (gone.fate, gone.was.verdict) == (Fate.VANISHED_FOREIGN, Verdict.OWNED)


@pytest.mark.parametrize("living", [frozenset(), frozenset({"k8s.io/def"}), None])
def test_one_whose_owner_ended_or_cannot_be_told_went_as_they_go(living: frozenset[str] | None) -> None:
    told = Chronicle(vnpus=(HELD,))
    told.look()
    assert fates(told.look(vnpus=(), living=living)) == [Fate.VANISHED]


def test_an_orphan_that_goes_by_itself_has_vanished() -> None:
    told = Chronicle()
    told.look()
    assert fates(told.look(vnpus=(), living=frozenset({"k8s.io/abc"}))) == [Fate.VANISHED]


def test_another_one_of_its_id_has_taken_its_place() -> None:
    told = Chronicle(vnpus=(HELD,))
    told.look()
    assert fates(told.look(vnpus=(replace(HELD, identity="another"),), living=frozenset({"k8s.io/abc"}))) == [Fate.REPLACED]


def test_the_history_is_bounded() -> None:
    told = Chronicle()
    for index in range(MAX_ENTRIES + 10):
        told.look(vnpus=(vnpu_of(identity=f"n{index}", vdev=100 + index % 16),))
    assert len(told.history.gone) == MAX_ENTRIES
    assert told.history.gone[-1].was.identity == f"n{MAX_ENTRIES + 8}"


@pytest.mark.parametrize("fate", Fate)
def test_every_fate_has_its_reason(fate: Fate) -> None:
    told = Chronicle()
    told.look()
    gone = Gone(1, fate, told.history.present[MINE])
    assert gone.sentence.endswith(".")
    assert {Verdict.DESTROYED.value, Verdict.VANISHED_FOREIGN.value} < set(Fate)


# --- counters --------------------------------------------------------------------------------------------------------------------------
def test_counters_of_a_look() -> None:
    desk = ReclaimDesk(
        cards=(card_of(0), unmanaged(card_of(1)), card_of(2)),
        vnpus=(vnpu_of(100), vnpu_of(101, use=Use.IN_USE), vnpu_of(102, pin=PinHold.PINNED), vnpu_of(116), vnpu_of(132)),
    )
    desk.look()
    desk.wait(120)
    before = desk.progress
    desk.look(claims=[RUNNING])
    assert desk.last is not None
    found = of_look(before, desk.progress, desk.last, desk.judgements)
    assert found == Counters(
        looks=1,
        cards_inspected=3,
        cards_protected=1,
        cards_reclaimable=1,
        vnpus_inspected=5,
        vnpus_skipped=2,
        vnpus_ignored=2,
        confirmation_resets=1,
    )
    before = desk.progress
    desk.look(unknowns=[unknown()])
    found = found + of_look(before, desk.progress, desk.last, desk.judgements)
    assert (found.looks, found.unknown_looks, found.cards_protected) == (2, 1, 4)


def test_counters_of_destructions() -> None:
    answers = [
        called(Outcome.DESTROYED, 0),
        called(Outcome.STILL_PRESENT, 0),
        unanswered("It ended."),
        refused(Refusal.IN_USE, None, "It is used."),
    ]
    total = Counters()
    for answer in answers:
        total += of_destruction(answer)
    assert total == Counters(vnpus_destroyed=1, destroy_errors=2, destroy_refusals=1)


# --- the record ------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("vgroup", [None, 0, 3])
def test_the_line_that_makes_it_again_is_the_vendors_own(vgroup: int | None) -> None:
    line = recreate_line(expected_of(117), vgroup)
    assert line.startswith("npu-smi set -t create-vnpu -i 1 -c 0 -f vir05_1c_8g -v 117")
    found = parse(f"[vnpu-config start]\n1:117:{line}\n[vnpu-config end]\n".encode())
    assert found.problem == ""
    assert found.records == (Record(1, 117, 1, 0, "vir05_1c_8g", vgroup),)


def test_the_evidence_is_json_and_has_what_decided() -> None:
    desk = ReclaimDesk()
    desk.look(claims=[claim(uid="u\n1")])
    desk.wait(600, claims=[claim(uid="u\n1")])
    assert desk.last is not None
    found = json.loads(json.dumps(evidence(desk.judgements["v0100"], desk.last, desk.progress)))
    assert (found["verdict"], found["reason"], found["confirmations"]) == ("eligible", "confirmed", 10)
    assert found["seconds_ago"]["grace_start"] == 600.0
    assert found["card"]["claims"] == [{"pod": "u\\x0a1", "standing": "candidate", "reason": "cannot-start"}]
    assert found["suspects"] == ["u\\x0a1"]
    assert found["sources"] == [{"source": "npus", "age": 1.0, "read": True}]


def test_the_evidence_of_what_is_not_known() -> None:
    desk = ReclaimDesk()
    desk.look(snapshot=None)
    assert desk.last is not None
    found = evidence(desk.judgements["v0100"], desk.last, Progress())
    assert found["reason"] == "not-evaluated"
    assert "card" not in found
    assert "seconds_ago" not in found
