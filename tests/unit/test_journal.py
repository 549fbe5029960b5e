"""The native protocol against a real datagram socket: what is taken, what is not, and that nothing forges, blocks or raises."""

import io
import logging
import os
import select
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.journal import Journal, JournalHandler, Priority, encode
from sim.descriptors import open_descriptors, opened_since
from sim.journal_sink import JournalSink, MalformedRecord, parse
from sim.patience import must_not_block

FORGED = "text\nMESSAGE_ID=00000000000000000000000000000000\nDEVWARD_OUTCOME=success"


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> str:
    return str(tmp_path / "socket")


@pytest.fixture(name="sink")
def _sink(path: str) -> Iterator[JournalSink]:
    with JournalSink(path) as sink:
        yield sink


@pytest.fixture(name="stderr")
def _stderr() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(name="journal")
def _journal(path: str, stderr: io.StringIO) -> Iterator[Journal]:
    journal = Journal(path, stderr=stderr)
    yield journal
    journal.close()


@pytest.fixture(name="logger")
def _logger(journal: Journal) -> Iterator[logging.Logger]:
    logger = logging.Logger("devward.test", logging.DEBUG)
    handler = JournalHandler(journal)
    logger.addHandler(handler)
    yield logger
    handler.close()


# --- the protocol ----------------------------------------------------------------------------------------------------
def test_a_record_arrives_with_its_fields(sink: JournalSink, journal: Journal, stderr: io.StringIO) -> None:
    assert journal.send("Hello", {"DEVWARD_EVENT": "started", "DEVWARD_REASON": ("one", "two")}, priority=Priority.NOTICE)
    assert sink.records() == [
        {
            "MESSAGE": ["Hello"],
            "PRIORITY": ["5"],
            "SYSLOG_IDENTIFIER": ["devwardd"],
            "DEVWARD_EVENT": ["started"],
            "DEVWARD_REASON": ["one", "two"],
        }
    ]
    assert journal.dropped == 0
    assert stderr.getvalue() == ""


def test_a_plain_record_on_the_wire() -> None:
    assert encode([("A", "x"), ("B", "y\nz")]) == b"A=x\nB\n\x03\0\0\0\0\0\0\0y\nz\n"


def test_a_newline_forges_no_field(sink: JournalSink, journal: Journal) -> None:
    assert journal.send(FORGED, {"DEVWARD_DEVICE": FORGED}, priority=6)
    (record,) = sink.records()
    assert set(record) == {"MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "DEVWARD_DEVICE"}
    assert record["MESSAGE"] == record["DEVWARD_DEVICE"] == [FORGED]


@given(st.lists(st.tuples(st.from_regex(r"[A-Z][A-Z0-9_]{0,63}", fullmatch=True), st.text()), max_size=8))
def test_any_text_comes_back_as_it_was_sent(fields: list[tuple[str, str]]) -> None:
    expected: dict[str, list[str]] = {}
    for name, value in fields:
        expected.setdefault(name, []).append(value.encode("utf-8", "backslashreplace").decode())
    assert parse(encode(fields)) == expected


@pytest.mark.parametrize("name", ["", "_PID", "lower", "1A", "A-B", "A=B", "A\n", "A\nB", "Ä", "A" * 65, "A B"])
def test_a_name_that_journald_would_drop_is_refused(journal: Journal, name: str) -> None:
    with pytest.raises(ValueError, match="field name"):
        journal.send("x", {name: "y"}, priority=6)


@pytest.mark.parametrize("name", ["MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER"])
def test_a_field_does_not_replace_what_send_sets(journal: Journal, name: str) -> None:
    with pytest.raises(ValueError, match="itself"):
        journal.send("x", {name: "y"}, priority=6)


def test_a_huge_record_goes_as_a_sealed_memory_file(sink: JournalSink, journal: Journal) -> None:
    huge = "ab\n" * (6 << 20)
    before = open_descriptors()
    assert journal.send("Huge", {"DEVWARD_EVIDENCE": huge}, priority=6)
    (record,) = sink.records()
    assert record["DEVWARD_EVIDENCE"] == [huge]
    assert sink.memory_files[0] > len(huge)
    assert not opened_since(before)


def test_the_sink_itself_refuses_what_is_malformed(sink: JournalSink) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"lower=x\n", sink.path)
    with pytest.raises(MalformedRecord):
        sink.records()


# --- a journal that does not take it ---------------------------------------------------------------------------------
def test_without_a_socket_the_record_goes_to_stderr_and_is_counted(journal: Journal, stderr: io.StringIO) -> None:
    assert not journal.send("Lost\nit", {"DEVWARD_EVENT": "started", "DEVWARD_DEVICE": 'a "b"\n<0>c', "CODE_LINE": "7"}, priority=4)
    assert stderr.getvalue() == '<4>Lost\\x0ait DEVWARD_EVENT=started DEVWARD_DEVICE="a \\"b\\"\\n<0>c"\n'
    assert journal.dropped == 1


def test_a_journald_that_hangs_never_blocks_us(path: str, journal: Journal, stderr: io.StringIO) -> None:
    with JournalSink(path, reading=False) as sink, must_not_block():
        taken = 0
        while journal.send("x", {}, priority=6):
            taken += 1
            assert taken < 100_000, "the queue has no end"
        assert journal.dropped == 1
        assert not journal.send("y", {"DEVWARD_EVIDENCE": "z" * (16 << 20)}, priority=6), "nor a memory file"
        assert journal.dropped == 2
        assert stderr.getvalue().startswith("<6>x\n<6>y DEVWARD_EVIDENCE=")
        assert len(sink.records()) == taken
        assert journal.send("again", {}, priority=6)


def test_a_restarted_journald_takes_the_next_record(path: str, journal: Journal) -> None:
    with JournalSink(path) as first:
        assert journal.send("one", {}, priority=6)
        assert len(first.records()) == 1
    assert not journal.send("two", {}, priority=6)
    with JournalSink(path) as second:
        assert journal.send("three", {}, priority=6)
        assert [one["MESSAGE"] for one in second.records()] == [["three"]]
    assert journal.dropped == 1


def test_a_socket_that_nobody_holds_is_no_journal(path: str, journal: Journal) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(path)
    assert not journal.send("x", {}, priority=6)
    assert journal.dropped == 1


def test_a_path_that_is_too_long_is_no_journal(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / ("x" * 200)), stderr=None)
    assert not journal.send("x", {}, priority=6)
    assert journal.dropped == 1
    journal.close()


def test_after_close_records_go_to_stderr(sink: JournalSink, journal: Journal, stderr: io.StringIO) -> None:
    journal.close()
    assert not journal.send("late", {}, priority=6)
    assert stderr.getvalue() == "<6>late\n"
    assert sink.records() == []


def test_a_full_stderr_pipe_never_blocks_us(path: str) -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader, os.fdopen(write, "w") as stderr:
        journal = Journal(path, stderr=stderr)
        # Fill the pipe but for less than a line: a plain write would wait for ever now.
        os.set_blocking(write, False)
        while select.select([], [write], [], 0)[1]:
            os.write(write, b"x" * 4096)
        os.set_blocking(write, True)
        with must_not_block():
            assert not journal.send("does not fit", {}, priority=6)
        assert journal.dropped == 1
        assert os.get_blocking(write), "others share the pipe and its mode"
        while not select.select([], [write], [], 0)[1]:
            reader.read1(4096)
        assert not journal.send("fits", {}, priority=6)
        os.set_blocking(read, False)
        assert reader.read().endswith(b"<6>fits\n")
        journal.close()


def test_a_stderr_that_nobody_reads_raises_nothing(path: str) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stderr:
        journal = Journal(path, stderr=stderr)
        assert not journal.send("x", {}, priority=6)
    assert not journal.send("closed", {}, priority=6)
    assert journal.dropped == 2
    journal.close()


def test_a_stderr_line_is_one_line_in_ascii_that_a_pipe_takes_whole(journal: Journal, stderr: io.StringIO) -> None:
    journal.send("é" * 5000 + "\x7f\x9b", {"DEVWARD_DEVICE": "\x7f\u2028\udcff" * 5000, "DEVWARD_REASON": "x"}, priority=3)
    line = stderr.getvalue()
    assert line.startswith("<3>\\xe9")
    assert line.endswith("...\n")
    assert len(line) <= 4096
    assert line.isascii()
    assert line[:-1].isprintable()


# --- logging ---------------------------------------------------------------------------------------------------------
def test_a_log_call_says_where_it_was_made(sink: JournalSink, logger: logging.Logger) -> None:
    logger.warning("disk %s", "full", extra={"journal": {"DEVWARD_DEVICE": "kvm", "DEVWARD_COUNT": 3}})
    line = sys._getframe().f_lineno - 1
    (record,) = sink.records()
    assert record["MESSAGE"] == ["disk full"]
    assert record["PRIORITY"] == ["4"]
    assert record["CODE_FILE"] == [__file__]
    assert record["CODE_LINE"] == [str(line)]
    assert record["CODE_FUNC"] == ["test_a_log_call_says_where_it_was_made"]
    assert record["LOGGER"] == ["devward.test"]
    assert record["TID"] == [str(os.getpid())]
    assert record["DEVWARD_DEVICE"] == ["kvm"]
    assert record["DEVWARD_COUNT"] == ["3"]


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.CRITICAL, "2"), (logging.ERROR, "3"), (logging.WARNING, "4"), (logging.INFO, "6"), (logging.DEBUG, "7"), (5, "7")],
)
def test_levels_become_priorities(sink: JournalSink, journal: Journal, level: int, priority: str) -> None:
    logger = logging.Logger("x", 1)
    logger.addHandler(JournalHandler(journal))
    logger.log(level, "x")
    assert [one["PRIORITY"] for one in sink.records()] == [[priority]]


def test_text_from_outside_stays_on_its_line(sink: JournalSink, logger: logging.Logger) -> None:
    logger.info("found %s", FORGED + "\x1b[2J\u202e", extra={"journal": {"DEVWARD_DEVICE": FORGED}})
    (record,) = sink.records()
    assert record["MESSAGE"] == ["found " + FORGED.replace("\n", "\\x0a") + "\\x1b[2J\\u202e"]
    assert record["DEVWARD_DEVICE"] == [FORGED.replace("\n", "\\x0a")]
    assert "MESSAGE_ID" not in record


def test_an_exception_comes_with_its_traceback(sink: JournalSink, logger: logging.Logger) -> None:
    try:
        raise FileNotFoundError(2, "No such file", "a\x1b[31mb")
    except FileNotFoundError:
        logger.exception("it broke")
    (record,) = sink.records()
    assert record["MESSAGE"] == ["it broke"]
    assert record["PRIORITY"] == ["3"]
    assert record["ERRNO"] == ["2"]
    (trace,) = record["EXCEPTION_INFO"]
    assert trace.startswith("Traceback (most recent call last):\n")
    assert "test_an_exception_comes_with_its_traceback" in trace
    assert "\x1b" not in trace


def test_control_characters_of_an_exception_are_escaped(sink: JournalSink, logger: logging.Logger) -> None:
    try:
        raise ValueError("a\x1b[31m\x00\u202eb")
    except ValueError:
        logger.exception("it broke")
    (trace,) = sink.records()[0]["EXCEPTION_INFO"]
    assert trace.endswith("ValueError: a\\x1b[31m\\x00\\u202eb")


def test_a_long_traceback_keeps_both_ends(sink: JournalSink, logger: logging.Logger) -> None:
    def recurse(depth: int) -> None:
        if depth == 0:
            raise ValueError("\n".join(f"line {number}" for number in range(1000)))
        recurse(depth - 1)

    try:
        recurse(3)
    except ValueError:
        logger.exception("deep")
    (trace,) = sink.records()[0]["EXCEPTION_INFO"]
    lines = trace.split("\n")
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "line 999"
    assert len(lines) <= 201


def test_a_record_that_cannot_be_formatted_is_reported_not_raised(sink: JournalSink, logger: logging.Logger) -> None:
    logger.info("%d", "no number")
    logger.info("fine", extra={"journal": {"bad name": "x"}})
    first, second = sink.records()
    assert first["MESSAGE"][0].startswith("A log record could not be written: TypeError: ")
    assert second["MESSAGE"][0].startswith("A log record could not be written: ValueError: ")
    assert first["PRIORITY"] == second["PRIORITY"] == ["3"]
    assert first["CODE_FILE"] == [__file__]


def test_no_exception_is_no_traceback(sink: JournalSink, logger: logging.Logger) -> None:
    logger.error("plain", exc_info=True)
    (record,) = sink.records()
    assert "EXCEPTION_INFO" not in record
