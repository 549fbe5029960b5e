"""What devwardctl says of reclaiming: every code, every verdict, every state, and whatever a daemon may tell."""

import io
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.cluster.observations import ROWS
from devward.ctl import explain_npu, explain_reclaim, lists, owners, reclaim, reclaim_codes, reclaiming, wording
from devward.ctl.advice_destroying import RESETS
from devward.ctl.advice_ownership import OWNERSHIP_ADVICE
from devward.ctl.advice_reclaim import BLOCKED_ADVICE, LIMIT_ADVICE, NO_ADVICE, WHY_ADVICE
from devward.ctl.client import Result
from devward.ctl.explain import of_code
from devward.ctl.explanation import Explanation
from devward.ctl.facts import Manager, Snapshot
from devward.ctl.failure import Failure
from devward.ctl.npu_facts import Card, Vnpu
from devward.ctl.ownership_facts import Ownership, ownership
from devward.ctl.reclaim_facts import Block, Evidence, Reclaim, evidence
from devward.ctl.reclaim_facts import reclaim as read
from devward.ctl.redact import Pods
from devward.ctl.terminal import Capabilities, Screen, Tone
from devward.ctl.when import USEC, Times
from devward.model import ReclaimState
from devward.npu.views import Verdict
from devward.reasons import Reason
from devward.reclaim.contract import NO_TEXT, No
from devward.reclaim.controls import BLOCKED_TEXT, Blocked
from devward.reclaim.history import Fate
from devward.reclaim.limits import LIMIT_TEXT, Limit
from devward.reclaim.look import Cut
from devward.reclaim.reasons import WHY_TEXT, Why

NOW = 1_800_000_000 * USEC
TIMES = Times(NOW)
DIE = "01234567-89ABCDEF-01234567-89ABCDEF-00000007"
UID = "11111111-2222-4333-8444-555555555555"
CARD = Card(name="p007", phy_id=7, die_id=DIE)
VNPU = Vnpu(
    name="v0212",
    id=212,
    identity=f"{DIE}/212/vir05_1c_16g/0123456789abcdef",
    card="/org/devward/Devward1/card/p007",
    template="vir05_1c_16g",
    node="/dev/vdavinci212",
    in_use="idle",
    verdict="confirming",
    verdict_reason="waiting-for-grace",
    grace_start_usec=NOW - 300 * USEC,
    confirmations=4,
    eligible_at_usec=NOW + 300 * USEC,
)
ENFORCING = Manager(reclaim_mode="enforce", reclaim_state="enforcing", last_cycle_usec=NOW)
EVIDENCE: dict[str, object] = {
    "text": "Nobody has the vNPU; the time that it must stay so is not over.",
    "looked_at_usec": NOW - 10 * USEC,
    "seconds_ago": {"reset": 590.0, "tried": None, "confirmed": 0.0},
    "last_reset": "mode-changed",
    "confirmations": 4,
    "tries": 0,
    "suspects": [UID],
    "locked": False,
}


def snapshot(vnpu: Vnpu = VNPU, manager: Manager = ENFORCING) -> Snapshot:
    return Snapshot(manager, (), (), (), (CARD,), (vnpu,))


def text(told: Explanation) -> str:
    steps = [step.text + " " + " ".join(step.commands) for step in told.steps]
    return "\n".join([told.what, *told.found, "--", *told.means, "--", *steps])


def explained(vnpu: Vnpu = VNPU, found: object = None, manager: Manager = ENFORCING, times: Times = TIMES) -> str:
    return text(explain_npu.of_vnpu(vnpu, {"evidence": EVIDENCE if found is None else found}, snapshot(vnpu, manager), times))


# --- codes -------------------------------------------------------------------------------------------------------------------
def test_there_is_advice_for_every_code_and_for_no_other() -> None:
    assert set(WHY_ADVICE) == set(Why)
    assert set(BLOCKED_ADVICE) == set(Blocked)
    assert set(LIMIT_ADVICE) == set(Limit)
    assert set(NO_ADVICE) == set(No)
    assert set(RESETS) == set(Cut)


@pytest.mark.parametrize("code", [*Why, *Blocked, *Limit, *No])
def test_every_code_is_explained_without_the_daemon(code: str) -> None:
    told = of_code(str(code))
    assert told is not None
    assert told.kind == "reason"
    for texts in (WHY_TEXT, BLOCKED_TEXT, LIMIT_TEXT, NO_TEXT):
        sentence = {str(one): text for one, text in texts.items()}.get(code)  # type: ignore[attr-defined]
        assert sentence is None or any(sentence in found for found in told.found)
    assert told.means
    assert all(one.endswith(".") for one in told.means)
    assert told.steps
    for step in told.steps:
        assert step.text.endswith(".") or (step.text.endswith(":") and step.commands)
    assert code in reclaim_codes.codes()


def test_a_word_that_is_a_code_in_two_places_is_explained_twice() -> None:
    both = set(reclaim_codes.codes()) & set(ROWS)
    assert both, "hami-locked"
    assert both <= set(OWNERSHIP_ADVICE), "or the other meaning would not be looked for"
    for code in both:
        told = of_code(code)
        assert told is not None
        assert any(ROWS[code].sentence in found for found in told.found)
    told = of_code("mass-reclaim")
    assert told is not None
    assert len(told.found) == 2
    assert len(told.steps) == len(set(told.steps))


def test_what_is_no_code_of_reclaiming() -> None:
    for what in ("kvm", "v0100", "", "Paused", "waiting-for"):
        assert explain_reclaim.of_code(what) is None


def test_every_outcome_has_a_sentence() -> None:
    fates = [str(fate) for fate in Fate if fate is not Fate.DESTROYED]
    for code in (*reclaim_codes.codes(), *RESETS, *fates, "limits", Reason.NPU_WINDOW.value, "still-unsaid"):
        said = explain_reclaim.say_code(code)
        assert said.endswith(f"({code})")
        assert said != f"({code})"
    assert explain_reclaim.say_code("fl\x1bux") == "fl\\x1bux"


# --- a vNPU ------------------------------------------------------------------------------------------------------------------
def test_a_vnpu_that_waits() -> None:
    said = explained()
    assert "The verdict is confirming: Nobody has the vNPU; the time that it must stay so is not over. (waiting-for-grace)\n" in said
    assert "That nobody owns it holds for 5 minutes, and was confirmed 4 times; it may be reclaimed in 5 minutes at the earliest.\n" in said
    assert "Its wait began anew last 10 minutes ago, because of this: The mode for reclaiming was changed. (mode-changed)\n" in said
    assert f"Pods that may have left it behind: {UID}.\n" in said
    assert WHY_ADVICE["waiting-for-grace"].means in said
    assert "devwardctl pin v0212 --reason REASON" in said
    assert "devwardctl reclaim now v0212 --shorten" in said
    assert "devwardctl mode reclaim off" in said
    assert "leaves it alone" not in said
    assert "tried" not in said


@pytest.mark.parametrize("state", [state for state in ReclaimState if state is not ReclaimState.ENFORCING])
def test_no_time_is_promised_where_reclaiming_is_stopped(state: ReclaimState) -> None:
    manager = replace(ENFORCING, reclaim_state=state)
    said = explained(manager=manager)
    assert f"confirmed 4 times; its wait is over in 5 minutes at the earliest, but {explain_reclaim.NOT_NOW[state]}.\n" in said
    assert "may be reclaimed in" not in said
    assert "--shorten" not in said
    due = replace(VNPU, verdict="eligible", verdict_reason="confirmed", eligible_at_usec=NOW - 60 * USEC)
    assert f"; its wait is over, but {explain_reclaim.NOT_NOW[state]}.\n" in explained(due, manager=manager)
    shown = io.StringIO()
    lists.show_vnpus(Screen(shown, Capabilities()), snapshot(VNPU, manager), TIMES)
    assert "  stopped  " in shown.getvalue()


def test_times_can_be_exact() -> None:
    said = explained(times=Times(NOW, utc=True))
    assert "holds since 2027-01-15T07:55:00.000Z, and" in said
    assert "may be reclaimed at 2027-01-15T08:05:00.000Z at the earliest." in said
    assert "began anew last at 2027-01-15T07:50:00.000Z, because" in said


def test_a_vnpu_that_is_due() -> None:
    due = replace(VNPU, verdict="eligible", verdict_reason="confirmed", confirmations=1, eligible_at_usec=NOW - 60 * USEC)
    said = explained(due, {**EVIDENCE, "text": "", "tries": 2, "seconds_ago": {"tried": 20.0}})
    assert "confirmed once; it may be reclaimed now." in said
    assert "Nobody has had the vNPU for long enough, by enough looks. (confirmed)" in said
    assert "To destroy it was tried 2 times in vain, last 30 seconds ago.\n" in said
    assert "devward destroys the vNPU at one of the next looks" in said
    assert "--shorten" not in said
    assert "Now it is not destroyed" not in said


@pytest.mark.parametrize("state", [state for state in ReclaimState if state is not ReclaimState.ENFORCING])
def test_what_is_due_and_stays_says_why(state: ReclaimState) -> None:
    manager = replace(ENFORCING, reclaim_state=state.value, blocked_reasons=("kill-switch",))
    said = explained(replace(VNPU, verdict="eligible", verdict_reason="confirmed"), manager=manager)
    assert "Now it is not destroyed, as " in said
    assert "devwardctl explain kill-switch" in said


@pytest.mark.parametrize("verdict", [one for one in Verdict if one not in ("candidate", "confirming", "eligible", "deferred")])
def test_a_vnpu_that_stays(verdict: Verdict) -> None:
    vnpu = replace(VNPU, verdict=verdict.value, verdict_reason="held-on-host", grace_start_usec=0, confirmations=0, eligible_at_usec=0)
    said = explained(vnpu, {**EVIDENCE, "text": "It is\x1b held."})
    assert "It is\\x1b held. (held-on-host)" in said
    assert "devward leaves it alone. Containers that use it are not affected." in said
    assert "That nobody owns it holds" not in said
    assert "devwardctl pin v0212" not in said
    if verdict is Verdict.UNKNOWN:
        assert "It cannot be told whether it may be reclaimed, which counts as use: It is" in said


def test_a_vnpu_that_nobody_judged() -> None:
    vnpu = replace(VNPU, verdict="unknown", verdict_reason="", grace_start_usec=0, eligible_at_usec=0)
    assert "devward has not judged whether it may be reclaimed.\n" in explained(vnpu, {})


def test_a_vnpu_that_is_not_vouched_for_says_that_once() -> None:
    vnpu = replace(VNPU, verdict="unknown", verdict_reason="npu-window", reason="npu-window", text="Its id is odd.", grace_start_usec=0)
    said = explained(vnpu, {"text": "Its id is odd."})
    assert said.count("Its id is odd. (npu-window)") == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*EVIDENCE, "a"]), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*EVIDENCE, "odd"]), JSON) | JSON)
def test_no_evidence_breaks_the_explanation(found: Any) -> None:
    said = explained(found=found)
    assert said.replace("\n", "").isprintable()


@given(st.dictionaries(st.sampled_from(["mode", "state", "blocked", "counters", "leaks", "gone", "pause"]), JSON) | JSON)
def test_no_description_breaks_the_screen(found: Any) -> None:
    told = read({"reclaim": found})
    blocked = replace(ENFORCING, reclaim_state="blocked", blocked_reasons=("kill-switch", "fl\x1b"))
    assert all(line.text.replace("\u00a0", "").isprintable() for line in reclaiming.lines(snapshot(manager=blocked), told, TIMES))


def test_the_reader_takes_what_there_is() -> None:
    assert evidence({"evidence": None}) is None
    assert evidence(None) is None
    assert evidence({"evidence": {}}) == Evidence()
    found = evidence({"evidence": EVIDENCE})
    assert found is not None
    assert (found.reset_usec, found.tried_usec, found.confirmed_usec) == (NOW - 600 * USEC, 0, NOW - 10 * USEC)
    assert read({}) is None


# --- the status --------------------------------------------------------------------------------------------------------------
def lines(manager: Manager, told: object = None, vnpus: tuple[Vnpu, ...] = ()) -> list[owners.Line]:
    return reclaiming.lines(replace(snapshot(manager=manager), vnpus=vnpus), read({"reclaim": told}), TIMES)


def test_it_reclaims() -> None:
    assert lines(ENFORCING) == [owners.Line("vNPUs that nobody owns are reclaimed (mode enforce).")]
    vnpus = (VNPU, replace(VNPU, verdict="eligible"), replace(VNPU, verdict="owned"), replace(VNPU, verdict="candidate"))
    assert lines(ENFORCING, vnpus=vnpus)[1].text == "3 vNPUs belong to nobody, as far as can be seen: 1 just seen, 1 waiting, 1 due."
    assert lines(ENFORCING, vnpus=(VNPU,))[1].text == "1 vNPU belongs to nobody, as far as can be seen: 1 waiting."
    assert lines(Manager()) == [], "an older daemon"


@pytest.mark.parametrize("state", list(ReclaimState))
def test_every_state_is_a_sentence(state: ReclaimState) -> None:
    (first, *_) = lines(replace(ENFORCING, reclaim_state=state.value))
    assert first.text.endswith(" (mode enforce).")
    assert "The state of reclaiming" not in first.text
    assert (first.tone is Tone.PLAIN) == (state is ReclaimState.ENFORCING)


def test_a_state_of_a_newer_daemon() -> None:
    (first, *_) = lines(replace(ENFORCING, reclaim_state="dream\x1bing"))
    assert first == owners.Line("The state of reclaiming is dream\\x1bing (mode enforce).", Tone.WARNING)


def test_what_stops_it_is_said_with_what_to_do() -> None:
    manager = replace(ENFORCING, reclaim_state="blocked", blocked_reasons=("kill-switch", f"annotation-malformed {UID}"))
    found = lines(manager, {"blocked": [{"reason": "kill-switch", "text": "The kill switch\x1b is set."}]})
    assert [line.text for line in found] == [
        "Reclaiming is blocked: no vNPU is destroyed (mode enforce).",
        "The kill switch\\x1b is set. (kill-switch)",
        "What to do: devwardctl\u00a0explain\u00a0kill-switch",
    ]
    assert lines(manager)[1].text == "kill-switch"
    unknown = replace(manager, blocked_reasons=("api-forbidden",))
    assert [line.text for line in lines(unknown)][1:] == ["who owns the vNPUs is not known"]
    assert lines(replace(unknown, blocked_reasons=()))[1].text == "who owns the vNPUs was not looked at yet"


def test_why_it_is_not_known_who_owns_the_vnpus_is_said_with_what_to_do() -> None:
    text = "The API server refuses\x1b the connection."
    away = {"reason": "api-connection-refused", "who": "pods", "text": text}
    manager = replace(ENFORCING, reclaim_state="blocked", blocked_reasons=("api-connection-refused", f"annotation-malformed {UID}"))
    own = ownership({"ownership": {"blocked": [away, {"reason": "annotation-malformed", "who": UID, "text": "It cannot be read."}]}})
    told = Reclaim(blocked=(Block("api-connection-refused", text), Block("annotation-malformed", "Of another Pod.")))

    def said(manager: Manager, own: Ownership | None, told: Reclaim | None) -> list[str]:
        untold = owners.items(manager, own, told)
        return [line.text for line in reclaiming.lines(snapshot(manager=manager), told, TIMES, untold)][1:]

    waiting, refused = "1 vNPU belongs to nobody, as far as can be seen: 1 waiting.", "The API server refuses\\x1b the connection."
    assert said(manager, own, told) == [
        f"{refused} (api-connection-refused)",
        f"It cannot be read. (annotation-malformed, the Pod {UID})",
        waiting,
        "What to do: devwardctl\u00a0explain\u00a0api-connection-refused",
    ]
    assert said(manager, None, told)[:2] == [f"{refused} (api-connection-refused)", f"annotation-malformed, because of the Pod {UID}"]
    # What else stops it comes first, and nothing is said twice.
    both = replace(manager, blocked_reasons=("kill-switch", "api-connection-refused"))
    assert said(both, own, told) == [
        "kill-switch",
        f"{refused} (api-connection-refused)",
        waiting,
        "What to do: devwardctl\u00a0explain\u00a0kill-switch",
    ]
    nothing_yet = replace(manager, blocked_reasons=("not-evaluated",))
    assert said(nothing_yet, None, Reclaim(blocked=(Block("not-evaluated", "Not listed."),)))[0] == "Not listed. (not-evaluated)"
    nowhere = replace(manager, blocked_reasons=("no-kubelet", "kubelet-not-found"))
    assert said(nowhere, own, told) == ["no-kubelet", waiting], "and nothing needs to be done"


def test_a_pause_says_until_when_by_whom_and_why() -> None:
    manager = replace(ENFORCING, reclaim_state="paused", reclaim_paused_until_usec=NOW + 1800 * USEC, blocked_reasons=("paused",))
    first, last = lines(manager, {"pause": {"reason": "a\x1b visit", "caller_uid": 7}})
    assert first.text.startswith("Reclaiming is paused for another 30 minutes, until ")
    assert first.text.endswith(": a\\x1b visit (uid 7) (mode enforce).")
    assert last.text == "What to do: devwardctl\u00a0explain\u00a0paused"


def test_a_host_without_a_kubelet_is_no_reason_to_worry() -> None:
    manager = replace(ENFORCING, reclaim_state="blocked", blocked_reasons=("no-kubelet", "kubelet-not-found"))
    assert all(line.tone is not Tone.BAD for line in lines(manager))
    assert lines(manager)[0].tone is Tone.PLAIN
    assert not any("What to do" in line.text for line in lines(manager))
    assert owners.is_without_kubelet(manager)


def test_what_stops_reclaiming_does_not_make_owners_unknown() -> None:
    manager = replace(ENFORCING, reclaim_state="observing", blocked_reasons=tuple(Blocked))
    assert owners.reasons(manager) == []
    assert owners.document(manager)["known"] is True
    (line,) = owners.lines(snapshot(manager=manager), None, TIMES)
    assert line.text.startswith("Who owns the vNPUs is known.")
    document = reclaiming.document(manager)
    assert document == {"mode": "enforce", "state": "observing", "paused_until_usec": 0, "blocked": [str(one) for one in Blocked]}


def test_the_rest_of_the_hour_is_said_where_it_is_told() -> None:
    assert reclaiming.rates(Reclaim(), TIMES) == ""
    assert reclaiming.rates(Reclaim(per_hour=16, left_of_hour=1), TIMES) == "Of the 16 destructions that an hour allows 1 is left."
    said = reclaiming.rates(Reclaim(per_hour=16, left_of_hour=0, next_usec=NOW + 60_000_000), TIMES)
    assert said.startswith("Of the 16 destructions that an hour allows 0 are left; the next is allowed in ")
    told = read({"reclaim": {"rates": {"per_hour": 16, "left_of_hour": 3, "next_usec": 0}}})
    assert told is not None
    assert (told.per_hour, told.left_of_hour) == (16, 3)
    seen = evidence({"evidence": {"left": "limit-per-hour"}})
    assert any("(limit-per-hour)" in text for text in explain_reclaim.waiting(VNPU, seen, TIMES, ENFORCING))


def test_the_status_names_what_the_breaker_holds() -> None:
    manager = replace(ENFORCING, reclaim_state="mass-reclaim", blocked_reasons=("mass-reclaim",))
    text = "Too many vNPUs became eligible at a time, 3 on 3 cards (p000: 100; p001: 116; p002: 132)."
    said = [one.text for one in reclaiming.lines(snapshot(manager=manager), Reclaim(blocked=(Block("mass-reclaim", text),)), TIMES)]
    assert f"{text} (mass-reclaim)" in said
    assert not any("(mass-reclaim)" in one.text for one in reclaiming.lines(snapshot(manager=manager), None, TIMES)), "said already"


def test_monitor_says_what_changed() -> None:
    def said(after: Manager) -> list[tuple[str, Tone]]:
        return [(one.text, one.tone) for one in wording.manager_changes(ENFORCING, after, Times(NOW, utc=True))]

    blocked = replace(ENFORCING, reclaim_state="blocked", blocked_reasons=("kill-switch",))
    assert said(blocked) == [("reclaiming is blocked now: kill-switch", Tone.WARNING)]
    assert said(replace(ENFORCING, reclaim_state="mass-reclaim"))[0][1] is Tone.BAD
    paused = replace(ENFORCING, reclaim_paused_until_usec=NOW)
    assert said(paused) == [("reclaiming is paused until 2027-01-15T08:00:00.000Z", Tone.WARNING)]
    assert wording.manager_changes(paused, ENFORCING, TIMES)[0].text == "reclaiming is not paused any more"
    assert said(replace(ENFORCING, reclaim_mode="off")) == [("the mode for reclaiming is off", Tone.PLAIN)]
    assert wording.manager_changes(Manager(last_cycle_usec=1), ENFORCING, TIMES) == [], "of an older daemon it was not known"
    (one,) = wording.vnpu_changes(VNPU, replace(VNPU, verdict="eligible", verdict_reason="confirmed"))
    assert one.text == "the vNPU v0212 has the verdict eligible (confirmed)"


# --- an order ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("what", ["v0212", "212", "/dev/vdavinci212", VNPU.identity])
def test_a_vnpu_is_meant_by_each_of_its_names(what: str) -> None:
    assert reclaim.meant(what, snapshot()) is VNPU


@pytest.mark.parametrize("what", ["p007", "213", "", DIE, "7"])
def test_what_is_not_there_is_not_guessed(what: str) -> None:
    with pytest.raises(Failure, match="sees no vNPU named"):
        reclaim.meant(what, snapshot())


def test_a_vnpu_that_nothing_tells_from_another_is_not_asked_for() -> None:
    with pytest.raises(Failure, match="Nothing tells v0212"):
        reclaim.meant("v0212", snapshot(replace(VNPU, identity="")))


@pytest.mark.parametrize(
    ("outcome", "reason", "said"),
    [
        ("success", "", "v0212: destroyed"),
        ("dry-run", "", "v0212: would be destroyed now, unless a limit is reached"),
        ("dry-run", "pinned", "v0212: would stay; The vNPU, or its NPU, is pinned. (pinned)"),
        ("dry-run", "mode-observe", "v0212: is due; it would be destroyed but for this: Reclaiming only observes"),
        ("failure", "waiting-for-grace", "v0212: not destroyed; Nobody has the vNPU; the time that it must stay so is not over. "),
        ("failure", "kill-switch", "v0212: not destroyed; The kill switch is set; "),
        ("failure", "fl\x1bux", "v0212: not destroyed; fl\\x1bux"),
        ("failure", "", "v0212: not destroyed; no reason was given"),
        ("noop", "", "v0212: nothing to do"),
        ("odd", "", "v0212: odd"),
    ],
)
def test_what_became_of_it(outcome: str, reason: str, said: str) -> None:
    assert reclaim.line(Result(VNPU.identity, outcome, reason), "v0212").startswith(said)
    assert reclaim.line(Result(VNPU.identity, outcome, reason), "").startswith(said.replace("v0212", VNPU.identity))


def test_a_vnpu_is_told_from_other_targets() -> None:
    assert reclaim.is_vnpu(VNPU.identity)
    for other in (DIE, f"{DIE}/212/vir05_1c_16g", "/etc/cdi/a.json", "reclaim", "breaker", UID):
        assert not reclaim.is_vnpu(other)


def test_a_support_bundle_names_no_pod_that_left_a_vnpu_behind() -> None:
    pods, static = Pods(), "0123456789abcdef0123456789abcdef"
    job = {"kind": "Job", "uid": "j-1", "owner_name": "space/training", "card": "p007"}
    told = {"by_owner": [job, {"kind": "Pod", "uid": static}, {"uid": ""}, "odd", {}], "by_card": [{"of": "p007"}], "suspects": [static, 5]}
    assert pods.value(told) == {
        "by_owner": [
            {"kind": "Job", "uid": "[pod 1]", "owner_name": "[pod 1]", "card": "p007"},
            {"kind": "Pod", "uid": "[pod 2]"},
            {"uid": ""},
            "odd",
            {},
        ],
        "by_card": [{"of": "p007"}],
        "suspects": ["[pod 2]", 5],
    }
    # Alone it is a word.
    assert pods.text("training of space/training failed") == "training of [pod 1] failed"
    assert pods.text(f"kubepods-pod{static}.slice") == "kubepods-pod[pod 2].slice"
