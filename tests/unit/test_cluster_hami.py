"""What HAMi says on the Node: whose card it is, whether its plugin lives, and when it is handing one out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.cluster.hami import (
    REFUSAL_TEXT,
    TEMPLATES,
    CardRefusal,
    Handshake,
    Liveness,
    Lock,
    Registers,
    card_refusal,
    is_hamis_template,
    read_registers,
    see_handshakes,
    see_lock,
    vnpu_refusal,
)
from devward.cluster.node import parse_node
from sim.pauses import pauses
from sim.recorded_cluster import DIES, NODE, STATES, WORD, node_of

REGISTER = f"hami.io/node-register-{WORD}"
HANDSHAKE = f"hami.io/node-handshake-{WORD}"
LOCK = "hami.io/mutex.lock"


def registered(*dies: str) -> str:
    return json.dumps([{"id": die, "count": 4, "devmem": 32768, "devcore": 20, "type": WORD, "health": True} for die in dies])


def handshakes(*texts: tuple[float, str]) -> dict[str, Handshake]:
    """Return what was seen of these texts, each at its time."""
    seen: dict[str, Handshake] = {}
    for now, text in texts:
        seen = see_handshakes(seen, {HANDSHAKE: text}, now)
    return seen


ALIVE = handshakes((0.0, "Reported_a"), (60.0, "Reported_b"))


# --- the recorded ones -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", STATES)
def test_both_recorded_cards_are_hamis(state: str) -> None:
    annotations = parse_node(node_of(state), NODE).annotations or {}
    registers = read_registers(annotations)
    assert registers.dies == {WORD: set(DIES)}
    assert (registers.malformed, registers.repeated) == ({}, frozenset())
    assert [card_refusal(die, registers, ALIVE, 60.0) for die in DIES] == [None, None]


def test_the_recorded_handshake_moves_at_first_and_after_the_restart() -> None:
    seen: dict[str, Handshake] = {}
    lives = []
    for number, state in enumerate(STATES):
        seen = see_handshakes(seen, parse_node(node_of(state), NODE).annotations or {}, 60.0 * number)
        lives.append(seen[WORD].liveness(60.0 * number))
    assert lives == [Liveness.UNPROVEN, *[Liveness.ALIVE] * 6, *[Liveness.SILENT] * 4, Liveness.ALIVE]


def test_the_recorded_lock_is_held_in_one_state() -> None:
    held = {state[:2]: see_lock(None, parse_node(node_of(state), NODE).annotations or {}, 1.0) for state in STATES}
    assert {state for state, lock in held.items() if lock is not None} == {"04"}
    assert held["04"] == Lock("2026-12-01T00:14:07Z,default,noannot", 1.0)


# --- cards -----------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    ["", "null", "{}", "[7]", "[{}]", '[{"id": 7}]', '[{"id": ""}]', '[{"id": "a", "id": "b"}]', "a,4,32768,20,x,0,true:", "[" * 9999],
)
def test_a_list_of_cards_that_cannot_be_read_says_so(text: str) -> None:
    registers = read_registers({REGISTER: text, "hami.io/node-register-Ascend310P": registered("C")})
    assert set(registers.malformed) == {WORD}
    assert card_refusal(DIES[0], registers, ALIVE, 60.0) is CardRefusal.REGISTER_MALFORMED
    assert registers.dies == {"Ascend310P": {"C"}}


def test_a_card_that_is_not_in_the_list_is_not_hamis() -> None:
    registers = read_registers({REGISTER: registered(DIES[0])})
    assert card_refusal(DIES[1], registers, ALIVE, 60.0) is CardRefusal.NOT_REGISTERED
    assert card_refusal(DIES[1], read_registers({}), {}, 60.0) is CardRefusal.NOT_REGISTERED
    assert card_refusal(DIES[0], registers, ALIVE, 60.0) is None


def test_a_card_that_is_there_twice_is_nobodys() -> None:
    twice = read_registers({REGISTER: registered(DIES[0], DIES[0], DIES[1])})
    assert card_refusal(DIES[0], twice, ALIVE, 60.0) is CardRefusal.REGISTERED_TWICE
    assert card_refusal(DIES[1], twice, ALIVE, 60.0) is None
    words = read_registers({REGISTER: registered(DIES[0]), "hami.io/node-register-Ascend910B3": registered(DIES[0].lower())})
    assert card_refusal(DIES[0], words, ALIVE, 60.0) is CardRefusal.REGISTERED_TWICE
    assert card_refusal("A", Registers({WORD: frozenset("A"), "other": frozenset("A")}, {}), ALIVE, 60.0) is CardRefusal.REGISTERED_TWICE


# --- handshakes ------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("texts", "now", "expected"),
    [
        ([(0.0, "Reported_a")], 0.0, Liveness.UNPROVEN),
        ([(0.0, "Reported_a"), (60.0, "Reported_a")], 60.0, Liveness.UNPROVEN),
        ([(0.0, "Reported_a"), (60.0, "Reported_b")], 60.0, Liveness.ALIVE),
        ([(0.0, "Reported_a"), (60.0, "Reported_b")], 360.0, Liveness.ALIVE),
        ([(0.0, "Reported_a"), (60.0, "Reported_b")], 360.1, Liveness.SILENT),
        # Seen unchanged until shortly before: the first one's age is that of its last sight.
        ([(0.0, "Reported_a"), (290.0, "Reported_a"), (400.0, "Reported_b")], 400.0, Liveness.ALIVE),
        ([(0.0, "Reported_a"), (300.1, "Reported_b")], 300.1, Liveness.UNPROVEN),
        ([(0.0, "Reported_a"), (300.1, "Reported_b"), (330.0, "Reported_c")], 330.0, Liveness.ALIVE),
        # The time in it says nothing.
        ([(0.0, "Reported_2099.01.01 00:00:00"), (9.0, "Reported_1999.01.01 00:00:00")], 9.0, Liveness.ALIVE),
        ([(0.0, "Reported_a"), (60.0, "Requesting_x"), (120.0, "Reported_b")], 120.0, Liveness.ALIVE),
        ([(0.0, "Reported_a"), (60.0, "Reported_b"), (90.0, "Requesting_x")], 90.0, Liveness.ALIVE),
        ([(0.0, "Reported_a"), (60.0, "Reported_b"), (90.0, "Requesting_x")], 361.0, Liveness.SILENT),
        ([(0.0, "Requesting_x"), (60.0, "Requesting_y")], 60.0, Liveness.UNPROVEN),
        # A server with an old copy.
        ([(0.0, "Reported_a"), (10.0, "Reported_b"), (20.0, "Reported_a"), (400.0, "Reported_b")], 400.0, Liveness.SILENT),
        ([(0.0, "Reported_a"), (60.0, "Reported_b"), (90.0, "Deleted_x")], 90.0, Liveness.DELETED),
        ([(0.0, "Deleted_x"), (60.0, "Requesting_x")], 60.0, Liveness.DELETED),
        ([(0.0, "Reported_a"), (9.0, "Deleted_x"), (19.0, "Reported_b")], 19.0, Liveness.UNPROVEN),
        ([(0.0, "Reported_a"), (60.0, "Reported_b"), (61.0, "")], 61.0, Liveness.ODD),
        ([(0.0, "Reported_")], 0.0, Liveness.ODD),
        ([(0.0, "reported_a")], 0.0, Liveness.ODD),
        ([(0.0, "2026.12.01 00:13:52")], 0.0, Liveness.ODD),
    ],
)
def test_two_different_reports_within_five_minutes_prove_life(texts: list[tuple[float, str]], now: float, expected: Liveness) -> None:
    assert handshakes(*texts)[WORD].liveness(now) is expected


def test_each_life_but_the_living_refuses_the_card_for_its_own_reason() -> None:
    registers = read_registers({REGISTER: registered(DIES[0])})
    found = {
        card_refusal(DIES[0], registers, seen, 1000.0)
        for seen in ({}, handshakes((999.0, "Reported_a")), ALIVE, handshakes((0.0, "Deleted_x")), handshakes((0.0, "x")))
    }
    assert found == {
        CardRefusal.HANDSHAKE_MISSING,
        CardRefusal.HANDSHAKE_UNPROVEN,
        CardRefusal.HANDSHAKE_SILENT,
        CardRefusal.HANDSHAKE_DELETED,
        CardRefusal.HANDSHAKE_ODD,
    }


def test_a_handshake_that_goes_is_forgotten() -> None:
    assert see_handshakes(ALIVE, {}, 61.0) == {}
    assert see_handshakes({}, {"hami.io/node-handshake-": "Reported_a", "hami.io/node-handshake": "Reported_a"}, 0.0) == {}


@given(st.lists(st.tuples(pauses(200, 1), st.sampled_from(["Reported_a", "Reported_b", "Requesting_", "Deleted_", "odd", ""]))))
def test_no_life_without_two_reports(steps: list[tuple[float, str]]) -> None:
    now, seen, reports = 0.0, dict[str, Handshake](), set[str]()
    for after, text in steps:
        now += after
        seen = see_handshakes(seen, {HANDSHAKE: text}, now)
        reports |= {text} if text.startswith("Reported_") else set()
        assert (seen[WORD].liveness(now) is not Liveness.ALIVE) or len(reports) == 2


# --- templates -------------------------------------------------------------------------------------------------------------------------
def test_templates_are_hamis_per_chip() -> None:
    assert set(TEMPLATES) == {"910A", "910B2", "910B3", "910B4", "910B4-1", "310P3", "Ascend910"}
    assert vnpu_refusal("910B4", "vir05_1c_8g") is None
    for chip, template in (
        ("910B4", "vir05_1c_16g"),
        ("910B3", "vir05_1c_8g"),
        ("310P3", "vir04_3c"),
        ("910B4", ""),
        ("", ""),
        ("950", "vir02"),
    ):
        assert vnpu_refusal(chip, template) is CardRefusal.TEMPLATE_UNKNOWN
        assert not is_hamis_template(chip, template)


# --- the lock --------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text", ["2026-12-01T00:14:07Z,default,noannot", "2026-12-01T00:14:07Z", "", "what,is,this,\x00", "9999-01-01T00:00:00Z,a,b"]
)
def test_a_lock_in_any_form_defers_until_it_was_seen_unchanged_for_five_minutes(text: str) -> None:
    lock = see_lock(None, {LOCK: text}, 100.0)
    assert lock is not None
    for now, defers in ((100.0, True), (160.0, True), (399.9, True), (400.0, False), (9999.0, False)):
        lock = see_lock(lock, {LOCK: text}, now)
        assert lock is not None
        assert lock.defers(now) is defers
    other = see_lock(lock, {LOCK: text + "x"}, 9999.0)
    assert other is not None
    assert other.defers(9999.0)
    assert see_lock(lock, {}, 9999.0) is None


def test_every_refusal_has_a_sentence() -> None:
    assert REFUSAL_TEXT.keys() == set(CardRefusal)
    assert all(text.endswith(".") for text in REFUSAL_TEXT.values())
