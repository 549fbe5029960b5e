"""Who owns the vNPUs, as devwardctl says it: of an NPU, of a vNPU, by a code, and on the screen of the status."""

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_ctl_explain_npu import BOTH, CARD, NOW, TIMES, VNPU, text

from devward.cluster.observations import ROWS, Scope
from devward.cluster.parts import Source
from devward.ctl import explain_npu, explain_ownership, observed, owners, ownership_facts
from devward.ctl.advice_ownership import CARD_UNKNOWN, NODE_UNKNOWN, OWNERSHIP_ADVICE, ownership_advice, steps_about
from devward.ctl.explain import of_code
from devward.ctl.facts import Finding, Manager
from devward.ctl.ownership_facts import Ownership, host_sight, ownership
from devward.ctl.terminal import Tone
from devward.ctl.when import USEC, Times
from devward.npu.views import Management, Protection
from devward.reasons import Reason
from devward.text import printable

UID, OTHER = "11111111-2222-4333-8444-555555555555", "66666666-7777-4888-9999-000000000000"
CLAIM: dict[str, object] = {
    "uid": UID,
    "standing": "protected",
    "reason": "running",
    "text": "A container of the Pod is running.",
    "since_usec": NOW - 300 * USEC,
    "unless_clean": False,
    "sources": ["api", "checkpoint", "annotation"],
    "pod": "team-a/train-0",
}
OWN: dict[str, object] = {
    "asked": True,
    "looked_usec": NOW - 20 * USEC,
    "listed_usec": NOW - 20 * USEC,
    "deferred": False,
    "sources": [{"source": source, "age": 2.5, "read": True} for source in Source if source is not Source.MEMORY],
    "blocked": [],
    "unknowns": [],
    "managed": "managed",
    "unmanaged_reason": "",
    "unmanaged_text": "",
    "protection": "protected",
    "protection_if_clean": "protected",
    "claims": [CLAIM],
}
MALFORMED = {"reason": "annotation-malformed", "who": UID, "since_usec": NOW - 300 * USEC, "text": "The annotation cannot be read."}
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def card(times: Times = TIMES, **changes: object) -> str:
    return text(explain_npu.of_card(CARD, {"card": {}, "ownership": {**OWN, **changes}}, BOTH, times))


def vnpu(host: object, **changes: object) -> str:
    return text(explain_npu.of_vnpu(VNPU, {"ownership": {**OWN, **changes}, "host": host}, BOTH, TIMES))


def own(**changes: object) -> Ownership:
    found = ownership({"ownership": {**OWN, **changes}})
    assert found is not None
    return found


def test_an_npu_that_a_pod_has() -> None:
    assert card().split("The vendor's library calls it healthy.\n")[1] == (
        "It has one vNPU: v0212; 5 of its 20 AI cores are taken.\n"
        "HAMi hands it out, by its annotations on the Node.\n"
        "A Pod has it, or may have it: its vNPUs are protected.\n"
        f"The Pod team-a/train-0 ({UID}) has the NPU, or may have it, for 5 minutes: A container of the Pod is running. (running)"
        " It is known by the API server, the kubelet's checkpoint and HAMi's annotation.\n"
        "Who owns the vNPUs of this host was looked at 20 seconds ago; the API server was asked for its Pods.\n"
        "These sources were read: the Node of this host on the API server (2 seconds old); its Lease (2 seconds old);"
        " the list of its Pods (2 seconds old); the kubelet's checkpoint (2 seconds old); the kubelet's process (2 seconds old);"
        " the drivers for dynamic resource allocation (2 seconds old); what this host shows of Pods and vNPUs (2 seconds old);"
        " the NPUs (2 seconds old).\n"
        "--\n"
        "devward vouches for it: what the vendor's library, the kernel and the host's files say of it agrees.\n"
        "Its vNPUs count as used as long as a Pod may have one, and are left alone.\n"
        "--\n"
        "Nothing needs to be done. \n"
        "See what the vendor's own tool says. npu-smi info -t board -i 3"
    )


def test_the_name_of_a_pod_is_said_only_where_it_is_told() -> None:
    told = card(claims=[{**CLAIM, "pod": ""}, {name: value for name, value in CLAIM.items() if name != "pod"}])
    assert told.count(f"The Pod {UID} has the NPU") == 2
    assert "train-0" not in told


def test_what_is_not_known_outweighs_every_claim() -> None:
    told = card(blocked=[MALFORMED], unknowns=[{"reason": "npu-in-doubt", "who": "npus", "since_usec": 0, "text": "It is in doubt."}])
    assert f"Not known of this host, for 5 minutes: The annotation cannot be read. (annotation-malformed) [Pod {UID}]\n" in told
    assert "Not known of this NPU: It is in doubt. (npu-in-doubt)\n" in told
    assert NODE_UNKNOWN in told
    assert "left alone" not in told
    assert "Nothing needs to be done." not in told
    assert "kubectl -n team-a get pod train-0 -o jsonpath='{.metadata.annotations}'" in told, "the Pod's name is known by its claim"
    assert CARD_UNKNOWN in card(unknowns=[MALFORMED])
    assert CARD_UNKNOWN in card(protection="unknown")


def test_pods_that_nobody_asked_for_are_not_something_unknown() -> None:
    sources = [{"source": "pods", "age": 0.0, "read": False}, {"source": "checkpoint", "age": 0.0, "read": False}]
    unasked = [{"reason": "pods-not-listed", "who": "pods", "since_usec": NOW, "text": "No vNPU is idle."}]
    told = card(asked=False, listed_usec=NOW - 600 * USEC, sources=sources, blocked=unasked, protection="not-evaluated", claims=[])
    assert "its Pods were not asked for, and were 10 minutes ago.\n" in told
    assert "These could not be read: the kubelet's checkpoint.\n" in told
    assert "Not known" not in told
    assert NODE_UNKNOWN not in told
    assert "never were" in card(asked=False, listed_usec=0)
    assert "no list came; the last one came" in card(looked_usec=NOW, listed_usec=NOW - 600 * USEC)
    assert "no list came." in card(looked_usec=NOW, listed_usec=0)
    assert "could not be read: the list of its Pods" in card(sources=sources[:1]), "somebody asked for it"


def test_a_clean_scan_decides_for_a_vnpu_where_a_claim_says_so() -> None:
    claim = {**CLAIM, "reason": "privileged", "text": "The Pod may open any device.", "unless_clean": True}
    changes: dict[str, object] = {"claims": [claim], "protection_if_clean": "none"}
    assert "That holds for a vNPU only until a scan of descriptors is clean for it." in card(**changes)
    assert "But for a vNPU that no process has open, by a clean scan of descriptors, no Pod claims it." in card(**changes)
    assert "belongs to nobody" not in card(**changes)
    clean = {"finding": "clean", "descriptors": "clean", "bundles": "clean", "uda": "clean"}
    assert "belongs to nobody" in vnpu(clean, **changes)
    for finding in ("held", "unknown", "odd", "", None):
        for others in (changes, {"protection": "none", "claims": []}):
            told = vnpu({**clean, "finding": finding}, **others)
            assert "belongs to nobody" not in told, "only a clean one"
        assert CARD_UNKNOWN in vnpu({**clean, "finding": finding}, **changes, protection="unknown")
    assert "belongs to nobody" not in vnpu(None, **changes)
    assert "it counts as used" in vnpu({**clean, "finding": "held"}, protection="none", claims=[])


@pytest.mark.parametrize(
    ("host", "said"),
    [
        (None, "What this host shows of it was not looked at."),
        ({"finding": "clean", "bundles": "clean"}, "Nothing on this host has it (the bundles of the containers: clean)."),
        ({"finding": "held", "reasons": ["pid 7 has it.", "x\x1b"]}, "This host shows that somebody has it: pid 7 has it; x\\x1b."),
        ({"finding": "unknown"}, "It cannot be told whether something on this host has it, which counts as use."),
        ({"finding": "odd\x1b", "uda": "x\x1b"}, "What this host shows of it is odd\\x1b (the driver's /proc/uda: x\\x1b)."),
        ({}, "What this host shows of it is not told."),
    ],
)
def test_what_the_host_shows(host: object, said: str) -> None:
    assert f"\n{said}\n" in vnpu(host)


def test_what_of_the_host_could_not_be_seen() -> None:
    whole: dict[str, object] = {"state": "read", "doubts": [], "more": 0}
    host = {
        "descriptors": whole,
        "bundles": {
            "state": "read",
            "doubts": [{"code": "runtime-unreadable", "subject": "/run/x\x1b", "error": "Permission denied"}],
            "more": 2,
        },
        "cgroups": {**whole, "more": 1},
        "uda": {"state": "unreadable"},
        "flux\x1b": {"state": "not-present", "doubts": [{"code": "odd"}] * 10},
        "kubelet": 5,
    }
    told = card(host=host)
    assert (
        "Of this host the bundles of the containers could not be seen whole: runtime-unreadable /run/x\\x1b: Permission denied; and 2 more."
        in told
    )
    assert "Of this host the control groups of the Pods could not be seen whole: and 1 more." in told
    assert "Of this host the driver's /proc/uda could not be seen whole.\n" in told
    assert "flux\\x1b could not be seen whole: odd; odd; odd; odd; odd; odd; odd; odd; and 2 more." in told
    assert told.count("could not be seen") == 4, "and nothing of what was read whole, or of what is none"


def test_a_vnpu_says_what_holds_for_its_npu() -> None:
    told = vnpu(None, managed="unmanaged", unmanaged_reason="handshake-silent", unmanaged_text="It is silent.")
    assert "Its NPU: HAMi does not hand it out. It is silent. (handshake-silent)\n" in told
    assert "Its NPU: A Pod has it, or may have it: its vNPUs are protected.\n" in told
    assert "grep hami.io" in told


@pytest.mark.parametrize("protection", [*Protection, "odd\x1b", ""])
@pytest.mark.parametrize("managed", [*Management, "odd\x1b", ""])
def test_every_value_is_a_sentence(protection: str, managed: str) -> None:
    told = card(protection=protection, managed=managed, protection_if_clean="odd\x1b", unmanaged_reason="odd\x1b")
    assert "\x1b" not in told
    assert "..\n" not in told
    for standing in (protection, "odd\x1b"):
        assert "\x1b" not in card(claims=[{**CLAIM, "standing": standing}])


def test_everything_foreign_is_escaped() -> None:
    bad = "a\x1b[2J\n"
    untold = {"reason": bad, "who": bad * 8, "since_usec": 1, "text": bad}
    claim = {"uid": bad, "standing": bad, "reason": bad, "text": bad, "since_usec": 1, "sources": [bad], "pod": f"{bad}/{bad}"}
    changes: dict[str, object] = {
        "sources": [{"source": bad, "age": 1.0, "read": True}],
        "blocked": [untold],
        "unknowns": [untold, {**untold, "reason": "annotation-malformed"}],
        "claims": [claim, {**claim, "standing": "unknown", "reason": "still-unsaid"}],
        "unmanaged_text": bad,
    }
    for told in (card(**changes), vnpu({"finding": bad, "reasons": [bad]}, **changes)):
        assert "\x1b" not in told
        assert "\\x1b" in told
    for step in explain_ownership.steps(own(**changes)):
        for command in step.commands:
            assert command.isprintable()


def test_long_lists_are_cut_and_say_so() -> None:
    many = 40
    told = card(
        claims=[{**CLAIM, "uid": f"{number:032d}"} for number in range(many)],
        blocked=[{**MALFORMED, "text": f"Number {number}."} for number in range(many)],
    )
    assert told.count("has the NPU, or may have it") == explain_ownership.MAX_CLAIMS
    assert f"There are {many - explain_ownership.MAX_CLAIMS} more claims" in told
    assert told.count("Not known of this host") == explain_ownership.MAX_UNTOLD
    assert f"{many - explain_ownership.MAX_UNTOLD} more things are not known of this host" in told
    held = {"finding": "held", "reasons": [f"process {number}" for number in range(many)]}
    assert f"process 7; and {many - explain_ownership.MAX_REASONS} more." in vnpu(held)
    every = [{"reason": code, "who": "", "since_usec": 0, "text": ""} for code in ROWS]
    assert len(explain_ownership.steps(own(blocked=every))) == explain_ownership.MAX_STEPS


def test_a_step_is_said_once() -> None:
    twice = explain_ownership.steps(own(blocked=[MALFORMED, MALFORMED], unknowns=[MALFORMED]))
    assert len(set(twice)) == len(twice)


def test_where_nobody_was_asked() -> None:
    for evidence in ({"card": {}, "ownership": None}, {"card": {}}):
        told = text(explain_npu.of_card(CARD, evidence, BOTH, TIMES))
        assert "Nobody was asked who owns its vNPUs" in told
        assert "Which Pods claim it was not evaluated." in told
    assert "Nobody was asked" not in text(explain_npu.of_card(CARD, None, BOTH, TIMES)), "an older daemon, which does not tell"
    assert "looked at" not in text(explain_npu.of_vnpu(VNPU, {"ownership": None, "host": None}, BOTH, TIMES))


def test_times_can_be_exact() -> None:
    told = card(Times(NOW, utc=True), blocked=[MALFORMED])
    assert "was looked at at 2027-01-15T07:59:40.000Z;" in told
    assert "Not known of this host, since 2027-01-15T07:55:00.000Z: " in told


MEMBERS = [
    *OWN,
    *CLAIM,
    "source",
    "age",
    "read",
    "who",
    "finding",
    "state",
    "doubts",
    "more",
    "descriptors",
    "bundles",
    "uda",
    "reasons",
    "ownership",
    "host",
    "card",
]
odd_objects = st.dictionaries(st.sampled_from(MEMBERS), anything | st.lists(st.dictionaries(st.sampled_from(MEMBERS), anything)))


@given(odd_objects, odd_objects | anything, anything)
def test_no_answer_breaks_the_reading(owned: Any, host: Any, other: Any) -> None:
    for evidence in ({"card": {}, "ownership": {**OWN, **owned}, "host": host}, {"ownership": owned, "host": host}, owned, other):
        for told in (explain_npu.of_card(CARD, evidence, BOTH, TIMES), explain_npu.of_vnpu(VNPU, evidence, BOTH, Times(1, utc=True))):
            said = text(told).replace("\n", "")
            assert said.isprintable()


@pytest.mark.parametrize("number", [10**400, -(10**400), 2**64])
def test_a_number_with_which_nobody_can_count_is_none(number: int) -> None:
    document = json.loads(json.dumps({"ownership": {**OWN, "looked_usec": number, "claims": [{**CLAIM, "since_usec": number}]}}))
    document["ownership"]["sources"] = [{"source": "node", "age": number, "read": True}]
    told = text(explain_npu.of_card(CARD, document, BOTH, TIMES))
    assert "was looked at never;" in told
    assert "the Node of this host on the API server." in told, "without an age"


def test_an_age_that_cannot_be_is_not_said() -> None:
    for age in (float("nan"), float("inf"), -5.0, "2", None, True):
        assert "the Node of this host on the API server." in card(sources=[{"source": "node", "age": age, "read": True}])
    (seen,) = own(sources=[{"source": "node", "age": 0, "read": True}]).sources
    assert seen.age == 0.0


def test_only_true_is_true() -> None:
    read = own(asked=1, deferred="true", sources=[{"source": "node", "read": 1}], claims=[{**CLAIM, "unless_clean": 1}])
    assert (read.asked, read.deferred, read.sources[0].is_read, read.claims[0].unless_clean) == (False, False, False, False)
    assert len(own(sources=[5, None, "node", [], {"source": "node"}]).sources) == 1
    assert ownership({"ownership": []}) is None
    assert host_sight({"host": "held"}) is None
    assert len(own(claims=[CLAIM] * (ownership_facts.MAX_READ + 1)).claims) == ownership_facts.MAX_READ


# --- advice by code ----------------------------------------------------------------------------------------------------------


def test_advice_is_about_codes_that_there_are() -> None:
    assert set(OWNERSHIP_ADVICE) <= set(ROWS)
    for code in (
        "api-kubeconfig-missing",
        "api-unauthorized",
        "api-forbidden",
        "annotation-malformed",
        "several-kubelets",
        "foreign-manager",
    ):
        assert code in OWNERSHIP_ADVICE


@pytest.mark.parametrize("code", list(ROWS))
def test_every_code_is_explained_without_the_daemon(code: str) -> None:
    told = of_code(code)
    assert told is not None
    assert told.kind == "reason"
    assert any(ROWS[code].sentence in said for said in told.found)
    assert told.means[0].endswith(".")
    for step in told.steps:
        assert step.text[0].isupper() or step.text.startswith("devward")
        assert step.text.endswith(".") or (step.text.endswith(":") and step.commands)
        assert not {"POD_UID", "NODE", "SERVER", "KUBECONFIG", "NAME"} & set(step.text.split()), "only commands are filled in"
        for command in step.commands:
            assert not command.endswith((".", ":"))
            shlex.split(command)
    assert told.steps
    assert text(told).isascii()


def test_what_a_code_is_about_is_what_the_table_says() -> None:
    for code, row in ROWS.items():
        found = observed.observed(code)
        assert found is not None
        assert (found.sentence, found.scopes, found.resets) == (row.sentence, tuple(map(str, row.scopes)), row.resets)
    told = of_code("hami-locked")
    assert told is not None
    assert told.found[1] == "It is about the whole host; no vNPU begins to wait anew because of it."
    assert observed.codes() == list(ROWS)


@pytest.mark.parametrize("what", ["kvm", "mshv", "", "p007", "/dev/kvm", "cdi stale", "no-such-code", "Running", "x\x1b"])
def test_what_is_no_code_is_explained_otherwise(what: str) -> None:
    assert of_code(what) is None


def test_a_word_that_is_a_code_twice_is_explained_twice() -> None:
    both = set(ROWS) & set(Reason)
    assert both, "starting"
    assert both <= set(OWNERSHIP_ADVICE), "or the other meaning would not be found"
    for code in both:
        told = of_code(code)
        assert told is not None
        assert f"Of the claim of a Pod: {ROWS[code].sentence}" in told.found


def test_a_code_without_advice_says_where_to_read_on() -> None:
    assert ownership_advice("flux", ["vnpu", "card"]).means == CARD_UNKNOWN
    assert ownership_advice("flux", [Scope.CARD, Scope.NODE]).means == NODE_UNKNOWN
    assert "man devwardd" in ownership_advice("flux", ()).steps[0].commands


@given(st.text(alphabet="ab '\"\\$`;|&(\n\x1b/", min_size=1), st.text(alphabet="ab '\"\\$`;|&(\n\x1b/"))
def test_a_pod_cannot_say_anything_to_a_shell(uid: str, pod: str) -> None:
    namespace, _, name = pod.partition("/")
    is_named = bool(namespace and name)
    for code in ("annotation-malformed", "still-unsaid"):
        told, plain = steps_about(code, uid, pod), steps_about(code, "x", "y/z" if is_named else "")
        for step, other in zip(told, plain, strict=True):
            for command, harmless in zip(step.commands, other.commands, strict=True):
                assert command.isprintable()
                known = {"x": printable(uid), "y": printable(namespace), "z": printable(name)}
                assert shlex.split(command) == [known.get(word, word) for word in shlex.split(harmless)]


def test_whose_name_is_told_is_not_searched_for() -> None:
    commands = [command for step in steps_about("annotation-malformed", UID, "team-a/NAME") for command in step.commands]
    assert not [command for command in commands if "custom-columns" in command]
    assert "kubectl -n team-a describe pod NAME" in commands
    commands = [command for step in steps_about("annotation-malformed", UID) for command in step.commands]
    assert f"| grep {UID}" in commands[0]
    assert "kubectl -n NAMESPACE describe pod NAME" in commands


# --- the status --------------------------------------------------------------------------------------------------------------

LOOKED: dict[str, object] = {"last_cycle_usec": NOW - 20 * USEC, "next_cycle_usec": NOW + 40 * USEC}
BLOCKED: dict[str, object] = {
    **LOOKED,
    "blocked_reasons": ["api-forbidden", f"annotation-malformed {UID}"],
    "blocked_since_usec": NOW - 300 * USEC,
}


def screen(values: dict[str, object], told: Ownership | None = None, times: Times = TIMES, **changes: Any) -> list[owners.Line]:
    return owners.lines(replace(BOTH, manager=Manager.of(values), **changes), told, times)


def test_it_is_known_who_owns_them() -> None:
    assert screen(LOOKED) == [owners.Line("Who owns the vNPUs is known. It was looked at 20 seconds ago.")]
    (line,) = screen(LOOKED, cards=(replace(CARD, protection="unknown"), CARD))
    assert line == owners.Line(
        "Who owns the vNPUs is known but of one NPU, whose vNPUs count as used. It was looked at 20 seconds ago.", Tone.WARNING
    )


def test_it_is_not_known_who_owns_them() -> None:
    lines = screen(BLOCKED)
    assert [line.text for line in lines] == [
        "Who owns the vNPUs is not known, for 5 minutes: each counts as used. It was looked at 20 seconds ago.",
        "api-forbidden",
        f"annotation-malformed, because of the Pod {UID}",
        "What to do: devwardctl\u00a0explain\u00a0api-forbidden, devwardctl\u00a0explain\u00a0p007, man\u00a0devwardd",
    ]
    assert lines[0].tone is Tone.WARNING
    told = own(blocked=[{"reason": "api-forbidden", "text": "It is forbidden."}, MALFORMED])
    assert [line.text for line in screen(BLOCKED, told)][1:3] == [
        "It is forbidden. (api-forbidden)",
        f"The annotation cannot be read. (annotation-malformed, the Pod {UID})",
    ]
    other = own(blocked=[{**MALFORMED, "who": OTHER, "text": "Of another Pod."}])
    assert "Of another Pod" not in str(screen(BLOCKED, other))
    assert "since 2027-01-15T07:55:00.000Z: each" in screen(BLOCKED, times=Times(NOW, utc=True))[0].text


def test_of_many_reasons_some_are_named() -> None:
    many = {**BLOCKED, "blocked_reasons": [f"flux-{number}\x1b" for number in range(9)]}
    lines = screen(many)
    assert sum(line.is_item for line in lines) == owners.MAX_REASONS + 1
    assert f"and {9 - owners.MAX_REASONS} more" in [line.text for line in lines]
    assert "\x1b" not in "".join(line.text for line in lines)


def test_a_host_without_a_kubelet_is_no_reason_to_worry() -> None:
    (line,) = screen({**LOOKED, "blocked_reasons": ["kubelet-not-found"]})
    assert line.tone is Tone.PLAIN
    assert line.text.startswith(
        "No kubelet was found on this host: who owns the vNPUs is not asked, and each counts as used. It was looked"
    )
    for others in (["kubelet-not-found", "api-forbidden"], ["api-forbidden"], [f"kubelet-not-found {UID}", "kubelet-not-found"]):
        assert screen({**LOOKED, "blocked_reasons": others})[0].tone is Tone.WARNING


def test_nobody_was_asked() -> None:
    assert [line.text for line in screen({"last_cycle_usec": 0})] == ["Nobody was asked who owns the vNPUs."]
    assert screen({}) == [], "an older daemon, which does not know of owners"
    assert "It was not looked at yet." in screen({"blocked_reasons": ["api-forbidden"]})[0].text


def test_a_look_that_is_late_is_said_to_be() -> None:
    late = {**LOOKED, "next_cycle_usec": NOW - 2 * owners.LATE_SECONDS * USEC}
    assert "and was to be again 2 minutes ago." in screen(late)[0].text
    assert "again" not in screen({**LOOKED, "next_cycle_usec": NOW - USEC})[0].text


def test_the_certificate() -> None:
    past, soon = {**LOOKED, "certificate_expires_usec": NOW - 86400 * USEC}, {**LOOKED, "certificate_expires_usec": NOW + 86400 * USEC}
    assert screen(past)[1] == owners.Line("The certificate with which the API server is asked expired 24 hours ago.", Tone.BAD)
    assert len(screen(soon)) == 1, "the daemon knows how long it holds, and so what is soon"
    found = (Finding(Reason.CLUSTER_CERTIFICATE, "", "", 0),)
    (_, line) = screen(soon, findings=found)
    assert line == owners.Line("The certificate with which the API server is asked expires in 24 hours.", Tone.WARNING)
    assert len(screen(LOOKED, findings=found)) == 1


def test_the_status_in_json() -> None:
    assert owners.document(Manager.of(BLOCKED)) == {
        "known": False,
        "reasons": [{"reason": "api-forbidden", "who": ""}, {"reason": "annotation-malformed", "who": UID}],
        "since_usec": NOW - 300 * USEC,
        "looked_usec": NOW - 20 * USEC,
        "next_usec": NOW + 40 * USEC,
        "certificate_expires_usec": 0,
    }
    assert owners.document(Manager.of(LOOKED))["known"] is True
    assert owners.document(Manager())["known"] is None
