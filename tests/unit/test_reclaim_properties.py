"""What holds for every run of looks: nothing but time, without a break, brings a vNPU nearer to being reclaimed."""

from dataclasses import dataclass, replace
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from devward.cluster.claims import Claim, Standing
from devward.cluster.evidence import Finding
from devward.cluster.hami import CardRefusal
from devward.cluster.observations import Scope
from devward.cluster.views import Reset
from devward.npu.views import Use
from devward.reclaim.confirmation import Bounds, Pace, Progress, step
from devward.reclaim.look import Cut, Look, Manage, PinHold, Reach, VnpuFacts
from devward.reclaim.reasons import SHIELDED, Verdict
from devward.reclaim.shield import shield
from devward.reclaim.verdict import judge
from sim.pauses import pauses
from sim.reclaim_desk import (
    PRIVILEGED,
    RUNNING,
    UNTOLD,
    ReclaimDesk,
    card_of,
    claim,
    claimed,
    cut,
    snapshot_of,
    unknown,
    unmanaged,
    vnpu_of,
)

BOUNDS: Final = Bounds(Pace(60.0, 3, 10.0), Pace(12.0, 2, 5.0))
MINE: Final = vnpu_of().identity
OTHER: Final = vnpu_of(101)

#: What can be the matter at a look: nothing, something that shields the vNPU, or something that only breaks its wait.
FREE: Final = "free"
SHIELDING: Final[dict[str, dict[str, Any]]] = {
    "running": {"claims": [RUNNING]},
    "untold": {"claims": [UNTOLD]},
    "node": {"unknowns": [unknown()]},
    "card": {"unknowns": [unknown("npu-in-doubt", card="p000")]},
    "nothing": {"snapshot": None},
    "used": {"vnpus": (vnpu_of(use=Use.IN_USE), OTHER)},
    "held": {"vnpus": (vnpu_of(host=Finding.HELD), OTHER)},
    "unasked": {"vnpus": (vnpu_of(host=Finding.UNKNOWN, is_asked=False), OTHER)},
    "pinned": {"vnpus": (vnpu_of(pin=PinHold.MAYBE), OTHER)},
    "foreign": {"cards": (unmanaged(card_of(0)), card_of(1))},
}
BREAKING: Final[dict[str, dict[str, Any]]] = {
    "kubelet": {"resets": [Reset(Scope.NODE, "kubelet-restarted")]},
    "reset": {"resets": [Reset(Scope.CARD, "made-up", "p000")]},
    **{f"cut-{what.value}": {"interruptions": (cut(what),)} for what in Cut},
    "cut-mine": {"interruptions": (cut(Cut.UNPINNED, MINE),)},
}
HARMLESS: Final[dict[str, dict[str, Any]]] = {
    FREE: {},
    "locked": {"is_deferred": True},
    "candidate": {"claims": [claim()]},
    "privileged": {"claims": [PRIVILEGED]},
    "elsewhere": {"resets": [Reset(Scope.CARD, "made-up", "p001")], "interruptions": (cut(Cut.UNPINNED, OTHER.identity),)},
}
STATES: Final = {**SHIELDING, **BREAKING, **HARMLESS}


@dataclass(frozen=True)
class Event:
    after: float
    age: float
    state: str


EVENTS = st.builds(
    Event,
    st.sampled_from([0.0, 1.0, 5.0, 9.75, 10.0, 10.25, 25.0, 61.0]),
    st.sampled_from([0.0, 0.5, 6.0, 10.0]),
    st.sampled_from([FREE] * 24 + sorted(STATES)),
)
RUNS = st.lists(EVENTS, min_size=1, max_size=40)


def desk_of(**more: Any) -> ReclaimDesk:
    return ReclaimDesk(vnpus=(vnpu_of(), OTHER), bounds=BOUNDS, **more)


def take(desk: ReclaimDesk, event: Event, **more: Any) -> None:
    desk.look(event.after, age=event.age, **{**STATES[event.state], **more})


class Reckoner:
    """The rules once more, in another form: from the whole list of looks instead of from what is kept."""

    def __init__(self) -> None:
        self.looks: list[tuple[float, float, str]] = []

    def expects(self, at: float, begun: float, state: str, pace: Pace) -> bool:
        """Whether the vNPU is eligible with one more look."""
        self.looks.append((at, begun, state))
        start: float | None = None
        confirmed: list[float] = []
        for moment, began, what in self.looks:
            if what in SHIELDING:
                start, confirmed = None, []
            elif what in BREAKING or start is None:
                start, confirmed = moment, []
            else:
                last = confirmed[-1] if confirmed else start
                if moment >= last + pace.interval and began > last:
                    confirmed.append(moment)
        return start is not None and at - start >= pace.grace and len(confirmed) >= pace.confirmations


@settings(max_examples=150, deadline=None)
@given(RUNS)
def test_it_is_eligible_exactly_when_the_rules_say_so(run: list[Event]) -> None:
    desk, reckoner = desk_of(), Reckoner()
    for event in run:
        take(desk, event)
        is_due = desk.judgements["v0100"].verdict in (Verdict.ELIGIBLE, Verdict.DEFERRED)
        assert is_due is reckoner.expects(desk.now, desk.now - event.age, event.state, BOUNDS.normal)


@settings(max_examples=100, deadline=None)
@given(RUNS)
def test_it_is_eligible_by_the_shorter_pace_exactly_when_the_rules_say_so(run: list[Event]) -> None:
    desk, reckoner = desk_of(), Reckoner()
    for event in run:
        take(desk, event, shorten=frozenset({MINE}))
        is_due = desk.judgements["v0100"].verdict in (Verdict.ELIGIBLE, Verdict.DEFERRED)
        usual = desk.known().is_due(desk.now, BOUNDS)
        assert is_due is (usual or reckoner.expects(desk.now, desk.now - event.age, event.state, BOUNDS.normal if usual else BOUNDS.short))


@settings(max_examples=100, deadline=None)
@given(RUNS, st.sampled_from(sorted(SHIELDING)), EVENTS)
def test_no_progress_is_gained_by_what_shields(run: list[Event], what: str, last: Event) -> None:
    desk = desk_of()
    for event in run:
        take(desk, event)
    take(desk, replace(last, state=what))
    known, found = desk.known(), desk.judgements["v0100"]
    assert (known.normal.confirmations, known.short.confirmations, known.grace_start) == (0, 0, None)
    assert found.verdict in SHIELDED
    at = desk.now
    take(desk, Event(last.after, 0.0, FREE))
    start = desk.known().grace_start
    assert start is not None
    assert start >= at


@settings(max_examples=100, deadline=None)
@given(RUNS, pauses(500).filter(bool), st.sampled_from(sorted(STATES)), RUNS)
def test_time_that_goes_back_makes_nothing_eligible_earlier(run: list[Event], back: float, state: str, rest: list[Event]) -> None:
    straight, bent = desk_of(), desk_of()
    for event in run:
        take(straight, event)
        take(bent, event)
    bent.take(bent.see(bent.now - back, **STATES[state]))
    assert bent.judgements["v0100"].verdict is not Verdict.ELIGIBLE
    for event in rest:
        take(straight, event)
        take(bent, event)
        if bent.judgements["v0100"].verdict is Verdict.ELIGIBLE:
            assert straight.judgements["v0100"].verdict is Verdict.ELIGIBLE
        ends = bent.known().eligible_at(BOUNDS), straight.known().eligible_at(BOUNDS)
        assert ends[0] is None or ends[1] is None or ends[0] >= ends[1]


@settings(max_examples=150, deadline=None)
@given(RUNS, st.lists(st.tuples(pauses(5000, -5000), st.one_of(st.none(), pauses(5000, -5000))), max_size=3), st.integers(0, 39))
def test_foreign_times_only_lengthen_and_never_beyond_their_look(
    run: list[Event], failures: list[tuple[float, float | None]], index: int
) -> None:
    plain, told = desk_of(), desk_of()
    for number, event in enumerate(run):
        claims: list[Claim] = []
        if number >= index:
            claims = [claim(uid=f"pod-{one}", failed_at=plain.now + end, began_at=begin) for one, (end, begin) in enumerate(failures)]
        take(plain, event)
        take(told, event, **({"claims": claims} if "claims" not in STATES[event.state] and "cards" not in STATES[event.state] else {}))
        ours, theirs = plain.known(), told.known()
        if ours.grace_start is None or theirs.grace_start is None:
            assert ours.grace_start is theirs.grace_start
            continue
        assert ours.grace_start <= theirs.grace_start <= told.now
        assert theirs.normal.confirmations <= ours.normal.confirmations
        if told.judgements["v0100"].verdict is Verdict.ELIGIBLE:
            assert plain.judgements["v0100"].verdict is Verdict.ELIGIBLE


@settings(max_examples=100, deadline=None)
@given(RUNS, st.integers(0, 20))
def test_what_is_known_of_one_does_not_hang_on_the_others(run: list[Event], index: int) -> None:
    alone, among = ReclaimDesk(bounds=BOUNDS), desk_of()
    for number, event in enumerate(run):
        own = STATES[event.state].get("vnpus", alone.vnpus)[:1]
        others = (OTHER,) if number >= index else (vnpu_of(101, identity=f"n{number}"), vnpu_of(116, use=Use.IN_USE))
        take(alone, event, vnpus=own)
        take(among, event, vnpus=(*others, *own))
        assert alone.progress.vnpus[MINE] == among.progress.vnpus[MINE]
        assert alone.judgements["v0100"] == among.judgements["v0100"]


@settings(max_examples=100, deadline=None)
@given(RUNS, st.data())
def test_a_run_of_the_daemon_inherits_nothing(run: list[Event], data: st.DataObject) -> None:
    """Started again anywhere, it is eligible no earlier than one that ran on."""
    on, again = desk_of(), desk_of()
    where = data.draw(st.integers(0, len(run)))
    for number, event in enumerate(run):
        if number == where:
            again.progress = Progress()
        take(on, event)
        take(again, event)
        if again.judgements["v0100"].verdict is Verdict.ELIGIBLE:
            assert on.judgements["v0100"].verdict is Verdict.ELIGIBLE


# --- one look --------------------------------------------------------------------------------------------------------------------------
FACTS = st.builds(
    lambda **fields: vnpu_of(100, **fields),
    use=st.sampled_from([Use.IDLE, Use.IDLE, Use.IN_USE, Use.UNKNOWN]),
    pin=st.sampled_from([PinHold.NONE, PinHold.NONE, *PinHold]),
    host=st.sampled_from([Finding.CLEAN, *Finding]),
    descriptors=st.sampled_from([Finding.CLEAN, *Finding]),
    fault=st.sampled_from(["", "", "made-up"]),
    identity=st.sampled_from([MINE, MINE, ""]),
    refusal=st.sampled_from([None, None, CardRefusal.TEMPLATE_UNKNOWN]),
)
CLAIM_LISTS = st.lists(
    st.builds(
        claim,
        st.sampled_from([Standing.CANDIDATE, Standing.CANDIDATE, Standing.UNKNOWN, Standing.PROTECTED]),
        uid=st.sampled_from(["a", "b"]),
        unless_clean=st.booleans(),
    ),
    max_size=3,
)
REACHES = st.builds(Reach, st.sampled_from(Manage), st.sampled_from([None, None, frozenset({"p000"}), frozenset({"p001"})]))


@st.composite
def looks(draw: st.DrawFn) -> Look:
    card = claimed(card_of(0), *draw(CLAIM_LISTS))
    if draw(st.integers(0, 3)) == 0:
        card = unmanaged(card)
    unknowns = [unknown()] if draw(st.integers(0, 5)) == 0 else []
    snapshot = snapshot_of(10_000.0, (card, card_of(1)), unknowns)
    return Look(10_000.0, snapshot.at_usec, snapshot, (draw(FACTS),), reach=draw(REACHES))


def worse(look: Look) -> list[Look]:
    """Return looks that know less, or that know more that speaks against it."""
    (vnpu,) = look.vnpus
    assert look.snapshot is not None

    def of(**fields: Any) -> Look:
        return replace(look, vnpus=(replace(vnpu, **fields),))

    def on(card: Any, *unknowns: Any) -> Look:
        assert look.snapshot is not None
        known = [one for one in look.snapshot.unknowns if one.scope is Scope.NODE]
        return replace(look, snapshot=snapshot_of(look.at, card, (*known, *unknowns)))

    card, *others = look.snapshot.cards
    return [
        of(use=Use.UNKNOWN if vnpu.use is Use.IDLE else Use.IN_USE),
        of(host=Finding.UNKNOWN if vnpu.host is Finding.CLEAN else vnpu.host),
        of(descriptors=Finding.UNKNOWN if vnpu.descriptors is Finding.CLEAN else vnpu.descriptors),
        of(host=Finding.HELD),
        of(pin=PinHold.UNKNOWN if vnpu.pin is PinHold.NONE else vnpu.pin),
        of(pin=PinHold.MAYBE),
        of(fault="made-up"),
        of(card_named_by="moby/abc"),
        of(has_node=False),
        of(identity=""),
        replace(look, snapshot=None),
        on((claimed(card, *card.claims, RUNNING), *others)),
        on((claimed(card, *card.claims, UNTOLD), *others)),
        on((claimed(card, *card.claims), *others), unknown()),
        on((claimed(card, *card.claims), *others), unknown("npu-in-doubt", card="p000")),
        on(tuple(others)),
        replace(look, reach=replace(look.reach, cards=frozenset())),
    ]


@settings(max_examples=150, deadline=None)
@given(looks())
def test_less_evidence_of_absence_never_frees_a_vnpu(look: Look) -> None:
    for one in worse(look):
        assert shield(one.vnpus[0], one) is not None


@settings(max_examples=150, deadline=None)
@given(looks())
def test_only_what_nothing_shields_counts(look: Look) -> None:
    progress = step(Progress(), look, BOUNDS)
    (vnpu,) = look.vnpus
    found = judge(progress, look, BOUNDS)[vnpu.name]
    if shield(vnpu, look) is None:
        assert found.verdict is Verdict.CANDIDATE
        assert is_bare(vnpu, look)
    else:
        assert found.verdict in SHIELDED
        assert (found.grace_start_usec, found.eligible_at_usec, found.confirmations) == (0, 0, 0)


def is_bare(vnpu: VnpuFacts, look: Look) -> bool:
    """The rules once more, as one condition."""
    assert look.snapshot is not None
    card = look.snapshot.cards[0]
    return (
        vnpu.use is Use.IDLE
        and vnpu.pin is PinHold.NONE
        and vnpu.host is vnpu.descriptors is Finding.CLEAN
        and not vnpu.fault
        and bool(vnpu.identity)
        and not look.snapshot.unknowns
        and all(one.standing is Standing.CANDIDATE or one.unless_clean for one in card.claims)
        and (look.reach.cards is None or card.name in look.reach.cards)
        and (look.reach.manage is Manage.ALL or (card.is_managed and vnpu.refusal is None))
    )
