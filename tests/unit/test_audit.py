"""The audit trail through a real socket: intent and outcome, denials and flapping counted, nothing forged."""

import io
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from devward import names
from devward.audit import (
    CATALOG_FIELDS,
    DENIALS_PER_PERIOD,
    DENIED_UIDS,
    NOT_GIVEN,
    PERIOD,
    TRANSITION_KEYS,
    TRANSITIONS_PER_PERIOD,
    Audit,
    Fields,
)
from devward.journal import Journal, Priority
from devward.model import ActionRequest, Caller, Outcome, Trigger
from devward.reasons import Reason
from sim.journal_sink import JournalSink, Record

FORGED = "x\nMESSAGE_ID=0\nDEVWARD_OUTCOME=success\x1b]0;\x07\u202e"
CALLER = Caller(sender=":1.42", uid=1000, pid=4242)
REQUEST = ActionRequest("r-7", CALLER, Trigger.DBUS)


class Desk:
    """An audit whose records are taken in one by one, so that no burst overflows the socket, and whose clock the test turns."""

    def __init__(self, path: str) -> None:
        self.now = 1000.0
        self.stderr = io.StringIO()
        self.sink = JournalSink(path)
        self._ids = 0
        desk = self

        class DrainedJournal(Journal):
            def send(self, *args: object, **kwargs: object) -> bool:
                taken = Journal.send(self, *args, **kwargs)  # type: ignore[arg-type] # passed on as they came
                desk.sink.drain()
                return taken

        self.journal = DrainedJournal(path, stderr=self.stderr)
        self.audit = Audit(self.journal, version="1.2.3", new_id=self._new_id, monotonic=lambda: self.now)

    def _new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids}"

    def records(self, **fields: str) -> list[Record]:
        return self.sink.records(**fields)

    def outcomes(self) -> list[tuple[str, str]]:
        return [(one["DEVWARD_OUTCOME"][0], one["DEVWARD_REQUEST_ID"][0]) for one in self.records()]


@pytest.fixture(name="desk")
def _desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(str(tmp_path / "socket"))
    yield desk
    desk.journal.close()
    desk.sink.close()


# --- events ----------------------------------------------------------------------------------------------------------
def test_an_event_has_its_fields(desk: Desk) -> None:
    assert desk.audit.event(
        "device-unusable",
        "kvm is unusable",
        trigger=Trigger.UDEV,
        device="kvm",
        reason=Reason.HYPERVISOR_BUSY,
        evidence={"errno": 16, "seen": ("a", "b")},
    )
    assert desk.records() == [
        {
            "MESSAGE": ["kvm is unusable"],
            "PRIORITY": ["4"],
            "SYSLOG_IDENTIFIER": ["devwardd"],
            "MESSAGE_ID": [names.MESSAGE_IDS["device-unusable"]],
            "DEVWARD_EVENT": ["device-unusable"],
            "DEVWARD_TRIGGER": ["udev"],
            "DEVWARD_DEVICE": ["kvm"],
            "DEVWARD_REASON": ["hypervisor-busy"],
            "DEVWARD_EVIDENCE": ['{"errno": 16, "seen": ["a", "b"]}'],
            "DEVWARD_VERSION": ["1.2.3"],
            "DOCUMENTATION": ["man:devwardd(8)"],
        }
    ]


@pytest.mark.parametrize("kind", ["", "Started", "no-such-kind"])
def test_an_unknown_kind_is_a_mistake(desk: Desk, kind: str) -> None:
    with pytest.raises(KeyError):
        desk.audit.event(kind, "x")
    with pytest.raises(KeyError):
        desk.audit.begin(kind, "x")
    assert desk.records() == []


def test_several_reasons_repeat_the_field(desk: Desk) -> None:
    desk.audit.event("degraded", "x", reason=[Reason.CDI_STALE, Reason.CDI_PAUSED])
    assert desk.records()[0]["DEVWARD_REASON"] == ["cdi-stale", "cdi-paused"]


def test_what_says_nothing_makes_no_field(desk: Desk) -> None:
    desk.audit.event("started", "x", device=None, cdi_file="", reason=(), evidence={}, caller=None, request=None, count=0)
    (record,) = desk.records()
    assert {name for name in record if name.startswith("DEVWARD")} == {"DEVWARD_EVENT", "DEVWARD_VERSION", "DEVWARD_COUNT"}


def test_the_caller_is_named_and_journald_can_look_it_up(desk: Desk) -> None:
    desk.audit.event("action", "x", request=REQUEST)
    (record,) = desk.records()
    assert record["OBJECT_PID"] == ["4242"]
    assert record["DEVWARD_CALLER"] == [":1.42"]
    assert record["DEVWARD_CALLER_UID"] == ["1000"]
    assert record["DEVWARD_REQUEST_ID"] == ["r-7"]
    assert record["DEVWARD_TRIGGER"] == ["dbus"]


def test_a_caller_without_a_pid_makes_no_object(desk: Desk) -> None:
    desk.audit.event("action", "x", caller=Caller(":1.1", 0, 0))
    assert "OBJECT_PID" not in desk.records()[0]


@pytest.mark.parametrize("kind", names.MESSAGE_IDS)
def test_what_the_catalog_prints_is_always_there(desk: Desk, kind: str) -> None:
    desk.audit.event(kind, "x")
    (record,) = desk.records()
    assert all(record[name] == [NOT_GIVEN] for name in CATALOG_FIELDS.get(kind, ()))


# --- nothing is forged -------------------------------------------------------------------------------------------------
def test_no_argument_forges_a_field(desk: Desk) -> None:
    everything: Fields = {
        "sender": FORGED,
        "device": FORGED,
        "cdi_file": FORGED,
        "subject": FORGED,
        "cause": FORGED,
        "reason": (FORGED, FORGED),
        "member": FORGED,
        "polkit_action": FORGED,
        "error_name": FORGED,
        "sha256_before": FORGED,
        "sha256_after": FORGED,
        "evidence": {FORGED: FORGED, "list": [FORGED]},
    }
    hostile = Caller(FORGED, 1000, 1)
    desk.audit.event("finding", FORGED, request_id=FORGED, **everything)
    desk.audit.event("finding", FORGED, request=ActionRequest(FORGED, hostile, Trigger.DBUS))
    desk.audit.transition(FORGED, "finding", FORGED, **everything)
    desk.audit.denied(caller=hostile, sender=FORGED, action=FORGED, member=FORGED, reason=FORGED, text=FORGED)
    with pytest.raises(ValueError, match="MESSAGE_ID"), desk.audit.begin("spec-repair", FORGED, request_id=FORGED, **everything):
        raise ValueError(FORGED)
    records = desk.records()
    assert len(records) == 6
    known = {getattr(names, name) for name in dir(names) if name.startswith("FIELD_")}
    known |= {"MESSAGE", "MESSAGE_ID", "PRIORITY", "SYSLOG_IDENTIFIER", "DOCUMENTATION", "OBJECT_PID"}
    for record in records:
        assert set(record) <= known
        assert record["MESSAGE_ID"][0] in names.MESSAGE_IDS.values()
        assert len(record["MESSAGE_ID"]) == 1
        assert record.get("DEVWARD_OUTCOME", ["failure"])[0] in list(Outcome)
        assert all(value.isprintable() for values in record.values() for value in values), record
        if "DEVWARD_EVIDENCE" in record:
            assert record["DEVWARD_EVIDENCE"][0].isascii()
    assert json.loads(records[0]["DEVWARD_EVIDENCE"][0]) == {FORGED: FORGED, "list": [FORGED]}


TEXT = st.text(st.characters(blacklist_categories=()), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@dataclass
class _Found:
    mode: int


class _Quiet(Journal):
    """Keeps the last record and sends nothing."""

    def __init__(self) -> None:
        self.fields: dict[str, object] = {}

    def send(self, message: str, fields: object, *, priority: int) -> bool:
        assert isinstance(fields, dict)
        self.fields = fields
        return bool(message) and priority > 0


def _evidence_of(evidence: dict[str, object]) -> str:
    journal = _Quiet()
    Audit(journal, version="1", new_id=str, monotonic=float).event("finding", "x", evidence=evidence)
    return str(journal.fields["DEVWARD_EVIDENCE"])


@given(st.dictionaries(TEXT, JSON, min_size=1, max_size=4))
@example({"controls": "".join(map(chr, range(0xA1))), "\x7f": "\u2028\ud800"})
def test_evidence_is_json_on_one_line_of_printable_ascii(evidence: dict[str, object]) -> None:
    text = _evidence_of(evidence)
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text) == evidence


def test_evidence_that_is_no_json_is_written_as_well_as_can_be() -> None:
    evidence = {"set": {"b", "a"}, "map": MappingProxyType({"k": 1}), "data": _Found(0o644), "path": Path("/x"), "bytes": b"\xff\n"}
    assert json.loads(_evidence_of(evidence)) == {
        "set": ["a", "b"],
        "map": {"k": 1},
        "data": {"mode": 420},
        "path": "/x",
        "bytes": "b'\\xff\\n'",
    }
    loop: dict[str, object] = {}
    loop["self"] = loop
    assert "ValueError" in json.loads(_evidence_of(loop))["unreadable"]
    assert "TypeError" in json.loads(_evidence_of({"k": {(1, 2): 3}}))["unreadable"]


def test_evidence_that_is_too_long_is_cut_and_still_json() -> None:
    text = _evidence_of({"k": "x" * 1_000_000})
    assert len(text) < 20_000
    assert json.loads(text)["cut"] > 1_000_000


def test_a_long_message_is_cut(desk: Desk) -> None:
    desk.audit.event("finding", "x" * 100_000, device="y" * 100_000)
    (record,) = desk.records()
    assert len(record["MESSAGE"][0]) == 1000
    assert len(record["DEVWARD_DEVICE"][0]) == 4096


# --- an act: intent, then outcome ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("tell", "outcome", "priority"),
    [
        (lambda record: record.succeed("done"), "success", "5"),
        (lambda record: record.noop("nothing to do"), "noop", "6"),
        (lambda record: record.dry_run("would do"), "dry-run", "6"),
        (lambda record: record.fail("cdi-no-space", "full"), "failure", "3"),
    ],
)
def test_an_act_is_an_intent_and_one_outcome(desk: Desk, tell: Callable[[object], None], outcome: str, priority: str) -> None:
    with desk.audit.begin("spec-repair", "about to write", cdi_file="/etc/cdi/x.json", cause="stale") as record:
        assert record.taken
        assert desk.outcomes() == [("intent", "id-1")], "the intent is on record before the act"
        desk.now += 0.25
        tell(record)
    first, second = desk.records()
    assert desk.outcomes() == [("intent", "id-1"), (outcome, "id-1")]
    assert second["DEVWARD_DURATION_USEC"] == ["250000"]
    assert second["PRIORITY"] == [priority]
    for one in (first, second):
        assert one["DEVWARD_CDI_FILE"] == ["/etc/cdi/x.json"]
        assert one["DEVWARD_CAUSE"] == ["stale"]
        assert one["MESSAGE_ID"] == [names.MESSAGE_IDS["spec-repair"]]


def test_an_act_uses_the_request_s_id_and_caller_in_both_records(desk: Desk) -> None:
    with desk.audit.begin("action", "RepairSpecs", request=REQUEST) as record:
        assert record.request_id == "r-7"
        record.succeed("done", sha256_after="ab")
    for one in desk.records():
        assert one["DEVWARD_REQUEST_ID"] == ["r-7"]
        assert one["OBJECT_PID"] == ["4242"]
        assert one["DEVWARD_TRIGGER"] == ["dbus"]
    assert desk.records()[1]["DEVWARD_SHA256_AFTER"] == ["ab"]


def test_an_act_without_a_word_is_a_failure(desk: Desk) -> None:
    with desk.audit.begin("spec-repair", "about to write"):
        pass
    assert desk.outcomes() == [("intent", "id-1"), ("failure", "id-1")]
    assert desk.records()[1]["DEVWARD_REASON"] == ["unfinished"]


@pytest.mark.parametrize("error", [ValueError("bad\nthing"), KeyboardInterrupt(), OSError(28, "No space")])
def test_an_act_that_is_broken_off_is_a_failure_and_the_exception_goes_on(desk: Desk, error: BaseException) -> None:
    with pytest.raises(type(error)), desk.audit.begin("spec-repair", "about to write"):
        raise error
    assert desk.outcomes() == [("intent", "id-1"), ("failure", "id-1")]
    (record,) = desk.records(DEVWARD_OUTCOME="failure")
    assert record["DEVWARD_REASON"] == ["unfinished"]
    assert type(error).__name__ in record["MESSAGE"][0]
    assert json.loads(record["DEVWARD_EVIDENCE"][0]) == {"exception": type(error).__name__, "text": str(error)}


def test_an_exception_after_the_outcome_does_not_change_it(desk: Desk) -> None:
    def act() -> None:
        with desk.audit.begin("spec-repair", "about to write") as record:
            record.succeed("done")
            raise ValueError("later")

    with pytest.raises(ValueError, match="later"):
        act()
    assert desk.outcomes() == [("intent", "id-1"), ("success", "id-1")]


def test_there_is_no_second_outcome(desk: Desk) -> None:
    with desk.audit.begin("spec-repair", "about to write") as record:
        record.succeed("done")
        with pytest.raises(RuntimeError, match="second outcome"):
            record.fail("cdi-stale", "not done")
    assert desk.outcomes() == [("intent", "id-1"), ("success", "id-1")]


def test_an_act_that_is_tried_again_has_no_second_intent(desk: Desk) -> None:
    with desk.audit.begin("spec-repair", "Trying", cause="missing") as record:
        record.fail("cdi-no-space", "Full")
    with desk.audit.begin("spec-repair", "Trying", cause="missing", request_id=record.request_id, resumed=True) as again:
        again.withhold()
    with desk.audit.begin("spec-repair", "Trying", cause="missing", request_id=record.request_id, resumed=True) as last:
        last.succeed("Done")
    assert [entry[names.FIELD_OUTCOME] for entry in desk.records()] == [["intent"], ["failure"], ["success"]]
    assert {entry[names.FIELD_REQUEST_ID][0] for entry in desk.records()} == {record.request_id}
    with pytest.raises(RuntimeError):
        again.succeed("Done")


def test_an_intent_that_only_stderr_has_is_not_taken(desk: Desk) -> None:
    desk.sink.close()
    with desk.audit.begin("spec-repair", "about to write") as record:
        assert not record.taken
        record.noop("not done: no audit")
    assert not desk.audit.event("started", "x")
    assert desk.journal.dropped == 3
    lines = desk.stderr.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("<6>about to write MESSAGE_ID=")
    assert "DEVWARD_OUTCOME=intent" in lines[0]


RECLAIM: Final = {"vnpu": "DIE/212/vir05/0123456789abcdef", "card": "p007", "pod_uid": ("u1", "u2\n")}


def test_a_destruction_names_the_vnpu_its_npu_and_pods_in_both_records(desk: Desk) -> None:
    with desk.audit.begin("vnpu-reclaim", "About to destroy", **RECLAIM) as record:  # type: ignore[arg-type]  # as the fields are typed
        assert record.taken
        record.succeed("Destroyed")
    for one in desk.records():
        assert one["DEVWARD_VNPU"] == ["DIE/212/vir05/0123456789abcdef"]
        assert one["DEVWARD_CARD"] == ["p007"]
        assert one["DEVWARD_POD_UID"] == ["u1", "u2\\x0a"]
    assert desk.outcomes() == [("intent", "id-1"), ("success", "id-1")]


def _intent_taken(path: Path) -> bool:
    """Say whether the intent of a destruction was taken by what is at a path."""
    journal = Journal(str(path), stderr=io.StringIO())
    audit = Audit(journal, version="1", new_id=lambda: "id", monotonic=lambda: 0.0)
    with audit.begin("vnpu-reclaim", "About to destroy") as record:
        record.noop("only asked")
    journal.close()
    return record.taken


def test_only_a_journal_that_takes_the_record_counts(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    assert not _intent_taken(path), "there is none"
    with JournalSink(str(path)):
        assert _intent_taken(path)
    path.unlink(missing_ok=True)
    path.touch()
    assert not _intent_taken(path), "a file is no journal"
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.bind(str(path))
        stream.listen()
        assert not _intent_taken(path), "what speaks otherwise is no journal"
    assert not _intent_taken(path), "nobody listens there any more"


def test_a_journal_that_hangs_takes_no_intent_once_it_is_full(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with JournalSink(path, reading=False):
        journal = Journal(path, stderr=None)
        audit = Audit(journal, version="1", new_id=lambda: "id", monotonic=lambda: 0.0)
        taken = True
        while taken:
            taken = audit.event("finding", "x" * 900)
        with audit.begin("vnpu-reclaim", "About to destroy") as record:
            assert not record.taken
            record.noop("not done: no audit")
        journal.close()


def test_a_journal_that_was_replaced_takes_the_next_intent(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    journal = Journal(str(path), stderr=None)
    audit = Audit(journal, version="1", new_id=lambda: "id", monotonic=lambda: 0.0)

    def taken() -> bool:
        with audit.begin("vnpu-reclaim", "About to destroy") as record:
            record.noop("only asked")
        return record.taken

    for _ in range(2):
        with JournalSink(str(path)) as sink:
            assert taken()
            assert [one["DEVWARD_OUTCOME"] for one in sink.records()] == [["intent"], ["noop"]]
        path.unlink(missing_ok=True)
        assert not taken()
    journal.close()


# --- denials ---------------------------------------------------------------------------------------------------------
def _deny(desk: Desk, uid: int = 1000) -> None:
    desk.audit.denied(
        caller=Caller(":1.9", uid, 99),
        sender=":1.9",
        action=names.ACTION_PROTECT,
        member="PauseCdi",
        reason="access-denied",
        text="Not to you.",
    )


def test_a_denial_says_who_what_and_why(desk: Desk) -> None:
    _deny(desk)
    (record,) = desk.records()
    assert record["DEVWARD_OUTCOME"] == ["denied"]
    assert record["DEVWARD_CALLER"] == [":1.9"]
    assert record["DEVWARD_CALLER_UID"] == ["1000"]
    assert record["OBJECT_PID"] == ["99"]
    assert record["DEVWARD_POLKIT_ACTION"] == [names.ACTION_PROTECT]
    assert record["DEVWARD_MEMBER"] == ["PauseCdi"]
    assert record["DEVWARD_REASON"] == ["access-denied"]
    assert record["MESSAGE"] == ["Denied to :1.9, uid 1000: PauseCdi: Not to you."]


def test_a_caller_that_is_gone_is_denied_by_its_bus_name(desk: Desk) -> None:
    desk.audit.denied(
        caller=None, sender=":1.13", action=names.ACTION_CHECK, member="CheckAllocation", reason="access-denied", text="Gone."
    )
    (record,) = desk.records()
    assert record["DEVWARD_CALLER"] == [":1.13"]
    assert record["DEVWARD_CALLER_UID"] == [NOT_GIVEN]


def test_denials_of_a_uid_are_written_ten_times_a_minute_and_then_counted(desk: Desk) -> None:
    for _ in range(DENIALS_PER_PERIOD + 25):
        _deny(desk)
    assert len(desk.records()) == DENIALS_PER_PERIOD
    _deny(desk, uid=1001)
    assert len(desk.records()) == DENIALS_PER_PERIOD + 1, "another uid has its own allowance"
    assert desk.audit.pending
    assert desk.audit.due == 1000.0 + PERIOD
    desk.now += PERIOD
    desk.sink.clear()
    desk.audit.flush()
    (summary,) = desk.records()
    assert summary["DEVWARD_COUNT"] == ["25"]
    assert summary["DEVWARD_CALLER_UID"] == ["1000"]
    assert summary["DEVWARD_MEMBER"] == ["PauseCdi"]
    assert not desk.audit.pending
    desk.audit.flush()
    assert len(desk.records()) == 1


def test_the_next_denial_after_the_minute_brings_the_summary(desk: Desk) -> None:
    for _ in range(DENIALS_PER_PERIOD + 3):
        _deny(desk)
    desk.sink.clear()
    desk.now += PERIOD + 5
    _deny(desk, uid=7)
    assert [one.get("DEVWARD_COUNT") for one in desk.records()] == [["3"], None]


def test_a_crowd_of_uids_cannot_flood_the_journal(desk: Desk) -> None:
    for uid in range(5000):
        _deny(desk, uid=uid)
    assert len(desk.records()) == DENIED_UIDS + DENIALS_PER_PERIOD
    desk.sink.clear()
    desk.audit.flush(everything=True)
    (summary,) = desk.records()
    assert summary["DEVWARD_COUNT"] == [str(5000 - DENIED_UIDS - DENIALS_PER_PERIOD)]
    assert "further uids" in summary["MESSAGE"][0]


def test_quiet_needs_no_timer(desk: Desk) -> None:
    _deny(desk)
    desk.audit.transition("device kvm", "device-usable", "x")
    assert not desk.audit.pending
    assert desk.audit.due is None


# --- flapping --------------------------------------------------------------------------------------------------------
def _flap(desk: Desk, times: int, *, key: str = "device kvm") -> None:
    for number in range(times):
        desk.audit.transition(key, ("device-usable", "device-gone")[number % 2], f"change {number}", device="kvm")


def test_flapping_is_counted_and_the_last_state_is_written(desk: Desk) -> None:
    _flap(desk, TRANSITIONS_PER_PERIOD + 5)
    assert [one["MESSAGE"][0] for one in desk.records()] == [f"change {number}" for number in range(TRANSITIONS_PER_PERIOD)]
    desk.sink.clear()
    desk.now += PERIOD - 1
    desk.audit.flush()
    assert desk.records() == []
    assert desk.audit.pending
    desk.now += 1
    desk.audit.flush()
    summary, last = desk.records()
    assert summary["DEVWARD_EVENT"] == ["flapping"]
    assert summary["DEVWARD_COUNT"] == ["5"]
    assert summary["DEVWARD_SUBJECT"] == ["device kvm"]
    assert last["MESSAGE"] == [f"change {TRANSITIONS_PER_PERIOD + 4}"]
    assert last["DEVWARD_DEVICE"] == ["kvm"]
    assert last["DEVWARD_DELAY_USEC"] == ["60000000"]
    assert not desk.audit.pending


def test_the_next_change_after_the_window_supersedes_the_one_held_back(desk: Desk) -> None:
    _flap(desk, TRANSITIONS_PER_PERIOD + 2)
    desk.sink.clear()
    desk.now += PERIOD
    desk.audit.transition("device kvm", "device-usable", "fresh", device="kvm")
    assert [one["DEVWARD_EVENT"][0] for one in desk.records()] == ["flapping", "device-usable"]
    assert desk.records()[1]["MESSAGE"] == ["fresh"]


def test_another_key_s_change_brings_what_was_held_back(desk: Desk) -> None:
    _flap(desk, TRANSITIONS_PER_PERIOD + 2)
    desk.sink.clear()
    desk.now += PERIOD
    desk.audit.transition("device mshv", "device-usable", "fresh", device="mshv")
    assert [one["DEVWARD_EVENT"][0] for one in desk.records()] == ["flapping", "device-gone", "device-usable"]


def test_steady_flapping_is_bounded(desk: Desk) -> None:
    for _ in range(10):
        _flap(desk, 1000)
        desk.now += PERIOD
    assert len(desk.records()) <= 10 * (TRANSITIONS_PER_PERIOD + 1)
    assert sum(int(one["DEVWARD_COUNT"][0]) for one in desk.records(DEVWARD_EVENT="flapping")) == 9 * (1000 - TRANSITIONS_PER_PERIOD)


def test_stopping_writes_what_was_held_back(desk: Desk) -> None:
    _flap(desk, TRANSITIONS_PER_PERIOD + 1)
    desk.sink.clear()
    desk.audit.flush(everything=True)
    assert [one["DEVWARD_EVENT"][0] for one in desk.records()] == ["flapping", "device-usable"]


def test_too_many_keys_lose_no_last_state(desk: Desk) -> None:
    _flap(desk, TRANSITIONS_PER_PERIOD + 1)
    desk.sink.clear()
    for number in range(TRANSITION_KEYS):
        desk.audit.transition(f"key {number}", "finding", "x", priority=Priority.NOTICE)
    assert len(desk.records()) == TRANSITION_KEYS + 2
    assert [one["DEVWARD_EVENT"][0] for one in desk.records()[-3:]] == ["flapping", "device-usable", "finding"]
