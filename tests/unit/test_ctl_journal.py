"""devwardctl history: what journalctl is asked, how its answers are read, and the same in a real journal."""

import argparse
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward import names
from devward.ctl import arguments, history, journal
from devward.ctl.context import Context
from devward.ctl.failure import ExitStatus, Failure
from devward.ctl.journal import Query, Record
from devward.ctl.terminal import Capabilities, Screen

ROOT = Path(__file__).parents[2]
TIME = 1_800_000_000_000_000


def entry(event: str = "spec-repair", **fields: object) -> bytes:
    return json.dumps({"__REALTIME_TIMESTAMP": str(TIME), "MESSAGE": "m", "PRIORITY": "5", "DEVWARD_EVENT": event, **fields}).encode()


def record(event: str = "spec-repair", **fields: object) -> Record:
    parsed = journal.parse(entry(event, **fields))
    assert parsed is not None
    return parsed


def context(given: list[str], environ: dict[str, str]) -> tuple[Context, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    parsed: argparse.Namespace = arguments.parse(["history", *given])
    made = Context(parsed, Screen(out, Capabilities(100)), Screen(err, Capabilities(100)), environ, False, lambda: TIME)
    return made, out, err


@pytest.fixture
def stand_in(tmp_path: Path) -> dict[str, str]:
    """A journalctl that notes its arguments, prints what is in `answer` and ends as `status` says."""
    program = tmp_path / "journalctl"
    program.write_text(f'#!/bin/sh\ncd {tmp_path}\nprintf "%s\\n" "$@" > arguments\ncat answer\ncat errors >&2\nexit $(cat status)\n')
    program.chmod(0o755)
    (tmp_path / "answer").write_bytes(b"")
    (tmp_path / "errors").write_text("")
    (tmp_path / "status").write_text("0")
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_only_what_root_wrote_is_asked_for() -> None:
    line = journal.arguments(Query())
    assert "_UID=0" in line
    assert {one for one in line if one.startswith("DEVWARD_EVENT=")} == {f"DEVWARD_EVENT={kind}" for kind in names.MESSAGE_IDS}


def test_filters_are_matches_and_never_options() -> None:
    query = Query("--since", "yesterday", "/dev/kvm", "/etc/cdi/x.json", "--vacuum-size=1", ("action", "finding"), 7, "/j")
    line = journal.arguments(query)
    assert {"--since=--since", "--until=yesterday", "--lines=7", "--directory=/j"} <= set(line)
    assert {"DEVWARD_DEVICE=/dev/kvm", "DEVWARD_CDI_FILE=/etc/cdi/x.json", "DEVWARD_REQUEST_ID=--vacuum-size=1"} <= set(line)
    assert [one for one in line if one.startswith("DEVWARD_EVENT=")] == ["DEVWARD_EVENT=action", "DEVWARD_EVENT=finding"]
    assert all(one.startswith(("--", "_UID=", "DEVWARD_")) for one in line[1:])
    assert "DEVWARD_CDI_FILE" in next(one for one in line if one.startswith("--output-fields="))


def test_a_vnpu_is_found_by_its_id_and_by_its_node() -> None:
    line = journal.arguments(Query(vnpu=100, request="r", events=("vnpu-gone",)))
    by_id = ["_UID=0", "DEVWARD_EVENT=vnpu-gone", "DEVWARD_REQUEST_ID=r", "DEVWARD_VNPU=100"]
    by_node = ["_UID=0", "DEVWARD_EVENT=vnpu-gone", "DEVWARD_REQUEST_ID=r", "DEVWARD_DEVICE=/dev/vdavinci100"]
    assert line[line.index("_UID=0") :] == [*by_id, "+", *by_node]
    line = journal.arguments(Query(vnpu=100, device="/dev/kvm"))
    assert "+" not in line, "two values of one field would be either of them"


@pytest.mark.parametrize("said", ["v0100", "100", "/dev/vdavinci100"])
def test_a_vnpu_is_named_as_people_do(said: str) -> None:
    made, _, _ = context(["--vnpu", said], {})
    assert history.query_of(made).vnpu == 100


def test_each_vnpu_of_a_request_is_an_act_of_its_own() -> None:
    def record(vnpu: str, outcome: str) -> journal.Record:
        return journal.Record(1, "", 6, {"request_id": "r", "event": "vnpu-reclaim", "vnpu": vnpu, "outcome": outcome})

    records = [record("100", "intent"), record("100", "success"), record("101", "intent")]
    assert journal.acts(records) == records[1:], "that nothing is known of what became of the second is not lost"


@pytest.mark.parametrize("device", ["kvm", "/dev/kvm", "hyperlight.dev/hypervisor=kvm"])
def test_a_device_is_named_as_people_do(device: str) -> None:
    made, _, _ = context(["--device", device], {})
    assert history.query_of(made).device == "/dev/kvm"


@pytest.mark.parametrize(
    ("given", "lines"),
    [([], 50), (["--since", "today"], 0), (["--request", "x"], 0), (["-n", "3"], 3), (["--since", "today", "-n", "3"], 3)],
)
def test_how_many_records(given: list[str], lines: int) -> None:
    assert history.query_of(context([*given, "--json"], {})[0]).lines == lines
    assert history.query_of(context(given, {})[0]).lines == 2 * lines, "an intent is not shown where its outcome is"


def test_as_many_acts_as_were_asked_for_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [record(DEVWARD_REQUEST_ID=f"r{i // 2}", DEVWARD_OUTCOME=("intent", "success")[i % 2], MESSAGE=f"number {i}") for i in range(12)]

    def read(query: journal.Query, _environ: Mapping[str, str]) -> list[Record]:
        return told[-query.lines :]

    monkeypatch.setattr(journal, "read", read)
    made, out, _ = context(["-n", "3"], {})
    assert history.run(made) == 0
    assert re.findall(r"number (\d+)", out.getvalue()) == ["7", "9", "11"]


def test_an_event_that_is_none_is_refused() -> None:
    """No record of it would read as if it had not happened."""
    made, _, _ = context(["--event", "spec-repair", "--event", "vnpu-reclaims"], {})
    with pytest.raises(Failure, match="records no event 'vnpu-reclaims'") as refused:
        history.query_of(made)
    assert refused.value.status == ExitStatus.USAGE


def test_every_shape_of_a_field() -> None:
    parsed = record(
        MESSAGE=[104, 105, 27, 255],
        DEVWARD_REASON=["one", "two"],
        DEVWARD_DEVICE=None,
        DEVWARD_CDI_FILE="-",
        DEVWARD_EVIDENCE='{"found": 1}',
        DEVWARD_DELAY_USEC="1000000",
        PRIORITY=None,
        OTHER="x",
    )
    assert parsed.message == "hi\x1b\udcff"
    assert parsed.time_usec == TIME - 1_000_000, "the time of the event, not of its record"
    assert parsed.priority == 6
    assert parsed.fields["reason"] == ["one", "two"]
    assert parsed.text("reason") == "one, two"
    assert parsed.fields["evidence"] == {"found": 1}
    assert "cdi_file" not in parsed.fields
    assert "other" not in parsed.fields
    assert parsed.text("device") == "(too long for journalctl)"


@given(st.binary())
def test_no_line_breaks_the_reading(line: bytes) -> None:
    journal.parse(line)


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=6),
    st.sampled_from(["MESSAGE", "DEVWARD_REASON", "DEVWARD_EVIDENCE", "DEVWARD_DELAY_USEC", "__REALTIME_TIMESTAMP", "DEVWARD_EVENT"]),
)
def test_no_field_breaks_the_reading(value: object, name: str) -> None:
    parsed = journal.parse(entry() if name == "DEVWARD_EVENT" else entry(**{name: value}))
    assert parsed is not None
    assert history.message(parsed).isprintable() or not parsed.message


def test_an_act_is_one_line_and_an_unfinished_one_stays() -> None:
    ours = {"DEVWARD_REQUEST_ID": "a", "DEVWARD_CDI_FILE": "/x"}
    records = [
        record(DEVWARD_OUTCOME="intent", **ours),
        record(DEVWARD_OUTCOME="success", **ours),
        record(DEVWARD_OUTCOME="intent", DEVWARD_REQUEST_ID="a", DEVWARD_CDI_FILE="/y"),
        record("action", DEVWARD_OUTCOME="intent", DEVWARD_REQUEST_ID="a"),
        record("device-usable"),
    ]
    assert journal.acts(records) == [records[1], records[2], records[3], records[4]]


def test_what_is_shown(stand_in: dict[str, str], tmp_path: Path) -> None:
    lines = [
        entry(DEVWARD_OUTCOME="intent", DEVWARD_REQUEST_ID="a", MESSAGE="About to"),
        entry(DEVWARD_OUTCOME="failure", DEVWARD_REQUEST_ID="a", MESSAGE="Not\x1b[2J written", DEVWARD_CALLER_UID="1000", PRIORITY="3"),
        b"not json",
        entry("action", DEVWARD_OUTCOME="intent", DEVWARD_REQUEST_ID="b", MESSAGE="Rescan was asked for"),
    ]
    (tmp_path / "answer").write_bytes(b"\n".join(lines) + b"\n")
    made, out, _ = context(["--utc"], stand_in)
    assert history.run(made) == ExitStatus.OK
    shown = out.getvalue().splitlines()
    assert [line.split()[1:3] for line in shown[1:]] == [["spec-repair", "failure"], ["action", "unfinished"]]
    assert "Not\\x1b[2J written (uid 1000)" in shown[1]
    made, out, _ = context(["--json"], stand_in)
    assert history.run(made) == ExitStatus.OK
    documents = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [one["outcome"] for one in documents] == ["intent", "failure", "intent"]
    assert documents[1]["time_usec"] == TIME
    assert "\x1b" not in out.getvalue()


def test_a_file_by_its_name_alone(stand_in: dict[str, str], tmp_path: Path) -> None:
    lines = [entry(DEVWARD_CDI_FILE=path) for path in ("/a/x.json", "/b/x.json", "/a/y.json", "/c/x.json")]
    (tmp_path / "answer").write_bytes(b"\n".join(lines))
    found = journal.read(Query(file="x.json", lines=2), stand_in)
    assert [one.text("cdi_file") for one in found] == ["/b/x.json", "/c/x.json"]
    assert not any(line.startswith(("--lines", "DEVWARD_CDI_FILE")) for line in (tmp_path / "arguments").read_text().splitlines())


def test_no_records(stand_in: dict[str, str]) -> None:
    made, out, err = context(["--journal", "/nonexistent"], stand_in)
    assert history.run(made) == ExitStatus.OK
    assert (out.getvalue(), err.getvalue()) == ("No records.\n", "")


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("Failed to parse timestamp: noon", ExitStatus.USAGE),
        ("Failed to open \x1bjournal", ExitStatus.UNHEALTHY),
        ("", ExitStatus.UNHEALTHY),
    ],
)
def test_journalctl_fails(stand_in: dict[str, str], tmp_path: Path, said: str, status: ExitStatus) -> None:
    (tmp_path / "errors").write_text(said)
    (tmp_path / "status").write_text("1")
    with pytest.raises(Failure) as failed:
        journal.read(Query(), stand_in)
    assert failed.value.status == status
    assert "\x1b" not in failed.value.text


def test_no_journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PROGRAM", str(tmp_path / "none"))
    with pytest.raises(Failure, match="cannot be run"):
        journal.read(Query(), {})


def test_a_journal_that_this_user_may_not_read(tmp_path: Path) -> None:
    assert not journal.unreadable_journal(Query(directory=str(tmp_path))), "an empty one can be read"
    (tmp_path / "system.journal").write_text("")
    assert not journal.unreadable_journal(Query(directory=str(tmp_path)))


@pytest.mark.skipif(os.geteuid() == 0, reason="needs non-root: permissions do not bind root")
def test_who_may_not_read_the_journal_is_told(stand_in: dict[str, str], tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    directory.mkdir()
    (directory / "system.journal").touch(0o000)
    made, _, err = context(["--journal", str(directory)], stand_in)
    assert history.run(made) == ExitStatus.DENIED
    assert "may not read the system's journal" in err.getvalue()
    assert "systemd-journal" in err.getvalue()


SETUP = """
set -eu
mount -t tmpfs none /run
mkdir -p /run/systemd/journald.conf.d /run/log/journal
printf '[Journal]\\nStorage=volatile\\nReadKMsg=no\\nAudit=\\nForwardToWall=no\\n' > /run/systemd/journald.conf.d/test.conf
/usr/lib/systemd/systemd-journald &
journald=$!
trap 'kill $journald; wait $journald || :' EXIT
for try in $(seq 600); do [ -S /run/systemd/journal/socket ] && break; sleep 0.1; done
"$PYTHON" -c "$WRITER"
send() { setpriv --reuid 65534 --regid 65534 --clear-groups "$PYTHON" -c "$SENDER"; }
printf 'MESSAGE=forged\\nDEVWARD_EVENT=spec-repair\\nDEVWARD_OUTCOME=success\\nDEVWARD_REQUEST_ID=id-1\\n' | send
printf 'MESSAGE=that was all\\n' | send
for try in $(seq 600); do journalctl -q -D /run/log/journal -o cat | grep -qx 'that was all' && break; sleep 0.1; done
ctl() { "$PYTHON" -m devward.ctl history --journal /run/log/journal "$@"; }
ctl --json
for filter in "--request id-1" "--event action" "--device kvm" "--file x.json" "--since tomorrow" "-n 1"; do
    echo --- $filter
    ctl $filter --utc
done
echo --- bad time
ctl --since noonish || echo status $?
"""
WRITER = """
import sys, time
from devward.audit import Audit
from devward.journal import Journal
from devward.model import Caller
audit = Audit(Journal("/run/systemd/journal/socket", stderr=sys.stderr), version="1", new_id=lambda: "id-1", monotonic=time.monotonic)
with audit.begin("spec-repair", "About to write", cdi_file="/etc/cdi/x.json", cause="stale") as record:
    record.succeed("Wrote it")
audit.event("device-usable", "/dev/kvm is usable", device="/dev/kvm")
"""
SENDER = (
    "import socket, sys; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(sys.stdin.buffer.read(), '/run/systemd/journal/socket')"
)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: runs systemd-journald in a mount namespace of its own")
def test_a_real_journal_where_a_forged_record_is_not_believed() -> None:
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "WRITER": WRITER,
        "SENDER": SENDER,
        "PYTHONPATH": str(ROOT / "src"),
        "LANG": "C.UTF-8",
    }
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", SETUP]
    run = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    whole, *sections = run.stdout.split("--- ")
    documents = [json.loads(line) for line in whole.splitlines()]
    assert [one["message"] for one in documents] == ["About to write", "Wrote it", "/dev/kvm is usable"]
    assert documents[1]["cause"] == "stale"
    shown = dict(section.split("\n", 1) for section in sections)
    assert [line.split(maxsplit=3)[1:3] for line in shown["--request id-1"].splitlines()[1:]] == [["spec-repair", "success"]]
    assert "Wrote it" in shown["--file x.json"]
    assert "is usable" in shown["--device kvm"]
    assert "Wrote it" not in shown["--device kvm"]
    assert shown["--event action"] == shown["--since tomorrow"] == "No records.\n"
    assert "is usable" in shown["-n 1"]
    assert "Wrote it" not in shown["-n 1"]
    assert shown["bad time"] == "status 2\n"
    assert "noonish" in run.stderr
    assert "forged" not in run.stdout


def test_who_may_read_no_journal_at_all_is_told_so(stand_in: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "status").write_text("1")
    (tmp_path / "errors").write_text("No journal files were opened due to insufficient permissions.\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(journal, "unreadable_journal", lambda _: True)
    made, _, err = context([], stand_in)
    assert history.run(made) == ExitStatus.DENIED
    assert "may not read the system's journal" in err.getvalue()
    (tmp_path / "errors").write_text("Failed to parse timestamp: noon\n")
    with pytest.raises(Failure, match="noon"):
        history.run(made)
    (tmp_path / "errors").write_text("No journal files were opened due to insufficient permissions.\n")
    monkeypatch.setattr(journal, "unreadable_journal", lambda _: False)
    with pytest.raises(Failure, match="No journal files"):
        history.run(made)
