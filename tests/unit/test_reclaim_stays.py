"""What is told of vNPUs that stay: each refusal that lasts, once."""

from typing import Any

import pytest

from devward.cluster.claims import Standing
from devward.cluster.evidence import Finding
from devward.npu.views import Use
from devward.reclaim.look import PinHold
from devward.reclaim.reasons import Verdict
from devward.reclaim.stays import Memory, Stay, see
from sim.reclaim_desk import RUNNING, ReclaimDesk, card_of, claim, claimed, unknown, unmanaged, vnpu_of


class Teller:
    """A desk whose refusals are told."""

    def __init__(self, **more: Any) -> None:
        self.desk = ReclaimDesk(**more)
        self.memory = Memory()

    def look(self, **more: Any) -> list[Stay]:
        self.desk.take(self.desk.see(self.desk.now + 60, **more))
        assert self.desk.last is not None
        self.memory, told = see(self.memory, self.desk.last, self.desk.judgements)
        return list(told)


REFUSALS: list[tuple[Verdict, dict[str, Any], dict[str, Any]]] = [
    (Verdict.PINNED, {"pin": PinHold.PINNED}, {}),
    (Verdict.OWNED, {"host": Finding.HELD}, {}),
    (Verdict.PROTECTED, {}, {"claims": (RUNNING,)}),
    (Verdict.UNKNOWN, {"fault": "made-up", "fault_text": "It was made up."}, {}),
    (Verdict.UNMANAGED, {}, {"cards": (unmanaged(card_of(0)), card_of(1))}),
]


@pytest.mark.parametrize(("verdict", "vnpu", "look"), REFUSALS, ids=[str(row[0].value) for row in REFUSALS])
def test_a_refusal_that_lasts_is_told_once(verdict: Verdict, vnpu: dict[str, Any], look: dict[str, Any]) -> None:
    teller = Teller(vnpus=(vnpu_of(100, **vnpu),))
    assert teller.look(**look) == [], "it may be for a moment"
    (stay,) = teller.look(**look)
    assert (stay.card, stay.verdict, stay.vdevs) == ("p000", verdict, (100,))
    assert (stay.reason, stay.sentence) == (teller.desk.judgements["v0100"].reason, teller.desk.judgements["v0100"].sentence)
    assert [teller.look(**look) for _ in range(3)] == [[]] * 3


def test_what_hami_s_lock_defers_is_told() -> None:
    teller = Teller()
    for _ in range(12):
        assert teller.look() == []
    assert teller.desk.judgements["v0100"].verdict is Verdict.ELIGIBLE
    assert teller.look(is_deferred=True) == []
    (stay,) = teller.look(is_deferred=True)
    assert (stay.verdict, stay.reason) == (Verdict.DEFERRED, "hami-locked")


def test_a_refusal_for_a_moment_is_not_told() -> None:
    teller = Teller()
    for _ in range(3):
        assert teller.look(claims=(RUNNING,)) == []
        assert teller.look() == []


def test_another_reason_is_told_and_the_same_one_after_a_wait_is_not() -> None:
    teller = Teller()
    teller.look(claims=(RUNNING,))
    assert len(teller.look(claims=(RUNNING,))) == 1
    for _ in range(3):
        assert teller.look() == []
        assert teller.look(claims=(RUNNING,)) == []
        assert teller.look(claims=(RUNNING,)) == []
    pinned = (vnpu_of(100, pin=PinHold.PINNED),)
    assert teller.look(vnpus=pinned) == []
    assert [stay.reason for stay in teller.look(vnpus=pinned)] == ["pinned"]
    teller.look(claims=(RUNNING,))
    assert len(teller.look(claims=(RUNNING,))) == 1


def test_one_that_is_used_from_time_to_time_is_told_of_once_for_each_reason() -> None:
    idle = {"vnpus": (vnpu_of(100),), "claims": (RUNNING,)}
    used = {"vnpus": (vnpu_of(100, use=Use.IN_USE),)}
    teller = Teller()
    told = [stay.reason for _ in range(6) for look in (idle, idle, used, used) for stay in teller.look(**look)]
    assert told == ["running", "driver-says-used"]
    # Another vNPU is another one.
    other = (vnpu_of(100, identity="another", use=Use.IN_USE),)
    assert [stay.reason for _ in range(3) for stay in teller.look(vnpus=other)] == ["driver-says-used"]


def test_what_waits_is_no_refusal() -> None:
    teller = Teller()
    assert [teller.look() for _ in range(12)] == [[]] * 12


FLAGGED = {"use": Use.IN_USE}


@pytest.mark.parametrize("look", [{}, {"snapshot": None}, {"claims": (claim(),)}], ids=["pods", "no-pods", "pod-that-cannot-start"])
def test_what_nothing_but_the_drivers_flag_calls_used_is_told_once(look: dict[str, Any]) -> None:
    teller = Teller(vnpus=(vnpu_of(100, **FLAGGED), vnpu_of(101, **FLAGGED)))
    assert teller.look(**look) == [], "a container may just have ended"
    (stay,) = teller.look(**look)
    assert (stay.card, stay.verdict, stay.reason, stay.vdevs) == ("p000", Verdict.IN_USE, "driver-says-used", (100, 101))
    assert stay.sentence == "The driver says that a container uses the vNPU (nobody is seen who does)."
    assert [teller.look(**look) for _ in range(3)] == [[]] * 3


def test_that_the_driver_says_it_twice_is_still_its_word_alone() -> None:
    teller = Teller(vnpus=(vnpu_of(100, **FLAGGED, host=Finding.HELD),))
    assert teller.look() == []
    assert [stay.reason for stay in teller.look()] == ["driver-says-used"]


USERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a container that names the card": ({"card_named_by": "k8s.io/abc"}, {}),
    "the same, and no Pods listed": ({"card_named_by": "k8s.io/abc"}, {"snapshot": None}),
    "a container that names it": ({"holders": frozenset({"k8s.io/abc"})}, {}),
    "the same, and no Pods listed at all": ({"holders": frozenset({"moby/abc"})}, {"snapshot": None}),
    "a container that has its number": ({"bundles": Finding.HELD}, {}),
    "containers that cannot all be read": ({"bundles": Finding.UNKNOWN}, {}),
    "a process": ({"descriptors": Finding.HELD}, {}),
    "processes that cannot all be read": ({"descriptors": Finding.UNKNOWN}, {}),
    "a host that was not searched": ({"descriptors": Finding.UNKNOWN, "host": Finding.UNKNOWN, "is_asked": False}, {}),
    "a Pod": ({}, {"claims": (RUNNING,)}),
    "a Pod that may be one": ({}, {"claims": (claim(Standing.UNKNOWN),)}),
    "a node that is unknown": ({}, {"unknowns": (unknown(),)}),
    "a card that is unknown": ({}, {"unknowns": (unknown(card="p000"),)}),
    "nobody, and it is pinned": ({"pin": PinHold.PINNED}, {}),
    "nobody, and the card is not HAMi's": ({}, {"cards": (unmanaged(card_of(0)), card_of(1))}),
}


@pytest.mark.parametrize("who", USERS)
def test_what_somebody_uses_or_may_use_is_no_refusal(who: str) -> None:
    vnpu, look = USERS[who]
    teller = Teller(vnpus=(vnpu_of(100, **FLAGGED, **vnpu),))
    assert [teller.look(**look) for _ in range(5)] == [[]] * 5
    assert teller.desk.judgements["v0100"].sentence == "The driver says that a container uses the vNPU."


def test_a_container_that_starts_or_ends_within_a_look_is_no_refusal() -> None:
    teller = Teller(vnpus=(vnpu_of(100, **FLAGGED),))
    running = (vnpu_of(100, **FLAGGED, card_named_by="k8s.io/abc"),)
    for _ in range(3):
        assert teller.look() == []
        assert teller.look(vnpus=running) == []


def test_what_is_unknown_of_the_node_or_was_not_looked_at_is_told_elsewhere() -> None:
    teller = Teller()
    assert [teller.look(unknowns=(unknown(),)) for _ in range(3)] == [[]] * 3
    assert [teller.look(snapshot=None) for _ in range(3)] == [[]] * 3
    # Of one card it is told.
    doubt = {"unknowns": (unknown(card="p000"),)}
    teller.look(**doubt)
    assert [stay.verdict for stay in teller.look(**doubt)] == [Verdict.UNKNOWN]


def test_a_pin_is_told_also_while_the_node_is_unknown() -> None:
    teller = Teller(vnpus=(vnpu_of(100, pin=PinHold.PINNED),))
    teller.look(unknowns=(unknown(),))
    assert [stay.verdict for stay in teller.look(unknowns=(unknown(),))] == [Verdict.PINNED]


def test_those_of_one_card_and_reason_are_told_as_one_with_the_pods_that_protect_it() -> None:
    vnpus = (vnpu_of(101), vnpu_of(100), vnpu_of(116), vnpu_of(102, pin=PinHold.PINNED))
    teller = Teller(vnpus=vnpus)
    cards = (claimed(card_of(0), RUNNING, claim(uid="pod-2")), claimed(card_of(1), RUNNING))
    teller.look(cards=cards)
    told = teller.look(cards=cards)
    assert [(stay.card, stay.reason, stay.vdevs, stay.pods) for stay in told] == [
        ("p000", "pinned", (102,), ()),
        ("p000", "running", (100, 101), ("pod-1",)),
        ("p001", "running", (116,), ("pod-1",)),
    ]


def test_another_vnpu_of_the_same_id_is_another_one_and_what_went_is_forgotten() -> None:
    teller = Teller()
    teller.look(claims=(RUNNING,))
    assert len(teller.look(claims=(RUNNING,))) == 1
    other = (vnpu_of(100, identity="another"),)
    assert teller.look(vnpus=other, claims=(RUNNING,)) == []
    assert len(teller.look(vnpus=other, claims=(RUNNING,))) == 1
    assert set(teller.memory.told) == {"another"}


def test_those_that_nothing_tells_from_others_are_told_of_by_their_names() -> None:
    teller = Teller(vnpus=(vnpu_of(100, identity=""), vnpu_of(101, identity="", pin=PinHold.PINNED)))
    assert teller.look() == []
    assert [(stay.reason, stay.vdevs) for stay in teller.look()] == [("identity-unknown", (100,)), ("pinned", (101,))]
    assert teller.look() == []


def test_of_many_pods_a_few_are_named() -> None:
    teller = Teller()
    crowd = tuple(claim(Standing.PROTECTED, uid=f"pod-{number:02d}") for number in range(20))
    teller.look(claims=crowd)
    (stay,) = teller.look(claims=crowd)
    assert stay.pods == tuple(f"pod-{number:02d}" for number in range(8))
