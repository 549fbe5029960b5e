"""The line to the service manager, against a real notification socket: order, once only, nothing forged, nothing blocked."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.notify import Notifier, ascii_line
from sim.notify_sink import NotifySink
from sim.patience import must_not_block


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> str:
    return str(tmp_path / "notify")


@pytest.fixture(name="sink")
def _sink(path: str) -> Iterator[NotifySink]:
    with NotifySink(path) as sink:
        yield sink


@pytest.fixture(name="notifier")
def _notifier(path: str, sink: NotifySink) -> Iterator[Notifier]:
    assert sink.path == path
    notifier = Notifier({"NOTIFY_SOCKET": path}, monotonic=lambda: 12.5)
    yield notifier
    notifier.close()


def test_the_life_of_a_daemon(sink: NotifySink, notifier: Notifier) -> None:
    notifier.ready("kvm usable")
    notifier.watchdog()
    notifier.reloading()
    notifier.ready("kvm usable")
    notifier.stopping("stopping")
    assert sink.messages() == [
        {"READY": "1", "STATUS": "kvm usable"},
        {"WATCHDOG": "1"},
        {"RELOADING": "1", "MONOTONIC_USEC": "12500000"},
        {"READY": "1"},
        {"STOPPING": "1", "STATUS": "stopping"},
    ]
    assert not notifier.unsent


def test_an_equal_status_is_sent_once(sink: NotifySink, notifier: Notifier) -> None:
    for text in ("a", "a", "b", "b", "a"):
        notifier.status(text)
    assert [one["STATUS"] for one in sink.messages()] == ["a", "b", "a"]


def test_a_status_forges_no_assignment(sink: NotifySink, notifier: Notifier) -> None:
    notifier.status("a\nWATCHDOG=1\rREADY=1\0\x1b[2J\x85STOPPING=1\u2028b")
    assert sink.messages() == [{"STATUS": r"a\x0aWATCHDOG=1\x0dREADY=1\x00\x1b[2J\x85STOPPING=1\u2028b"}]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("é à Ö", "e a O"), ("設備", "\\u8a2d\\u5099"), ("a — b", "a \\u2014 b"), ("\udcff", "\\xff"), ("x" * 500, "x" * 397 + "...")],
)
def test_a_status_is_ascii_whatever_it_says(sink: NotifySink, notifier: Notifier, text: str, shown: str) -> None:
    notifier.status(text)
    assert sink.messages() == [{"STATUS": shown}]


@given(st.text(st.characters(blacklist_categories=())), st.integers(10, 50))
def test_any_text_makes_one_printable_line(text: str, limit: int) -> None:
    line = ascii_line(text, limit)
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= limit


def test_a_manager_that_hangs_blocks_nothing_and_learns_the_latest_later(path: str) -> None:
    with NotifySink(path, reading=False) as sink, must_not_block():
        notifier = Notifier({"NOTIFY_SOCKET": path}, monotonic=lambda: 1.0)
        sent = 0
        while not notifier.unsent:
            notifier.status(f"status {sent}")
            sent += 1
            assert sent < 100_000, "the queue has no end"
        notifier.ready("up")
        notifier.watchdog()
        assert len(sink.messages()) == sent - 1
        notifier.watchdog()
        assert sink.messages()[-1] == {"READY": "1", "STATUS": "up", "WATCHDOG": "1"}
        assert not notifier.unsent
        notifier.watchdog()
        assert sink.messages()[-1] == {"WATCHDOG": "1"}
        notifier.close()


def test_an_unsent_status_goes_with_the_same_status(path: str) -> None:
    with NotifySink(path, reading=False) as sink, must_not_block():
        notifier = Notifier({"NOTIFY_SOCKET": path}, monotonic=lambda: 1.0)
        while not notifier.unsent:
            notifier.watchdog()
            notifier.reloading()
        sink.drain()
        notifier.ready("up")
        assert sink.messages()[-1] == {"READY": "1", "STATUS": "up"}
        notifier.close()


def test_a_manager_that_went_away_raises_nothing(path: str) -> None:
    with NotifySink(path):
        notifier = Notifier({"NOTIFY_SOCKET": path}, monotonic=lambda: 1.0)
    notifier.ready("up")
    notifier.watchdog()
    assert notifier.unsent
    notifier.close()


@pytest.mark.parametrize(
    "environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/nonexistent/notify"}, {"NOTIFY_SOCKET": "/" + "x" * 300}]
)
def test_without_a_manager_nothing_happens(environment: dict[str, str]) -> None:
    notifier = Notifier(environment, monotonic=lambda: 1.0)
    notifier.ready("up")
    notifier.reloading()
    notifier.status("x")
    notifier.watchdog()
    notifier.stopping("down")
    assert not notifier.unsent
    assert notifier.watchdog_interval is None
    notifier.close()


def test_an_abstract_address_works() -> None:
    name = f"\0devward-test-{os.getpid()}"
    with NotifySink(name) as sink:
        notifier = Notifier({"NOTIFY_SOCKET": "@" + name[1:]}, monotonic=lambda: 1.0)
        notifier.ready("up")
        assert sink.messages() == [{"READY": "1", "STATUS": "up"}]
        notifier.close()


def test_children_inherit_none_of_it(path: str, sink: NotifySink, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("NOTIFY_SOCKET", path), ("WATCHDOG_USEC", "3000000"), ("WATCHDOG_PID", str(os.getpid()))):
        monkeypatch.setenv(name, value)
    notifier = Notifier(os.environ, monotonic=lambda: 1.0)
    code = "import os; print([name for name in os.environ if name.startswith(('NOTIFY', 'WATCHDOG'))])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout == "[]\n"
    notifier.watchdog()
    assert sink.messages() == [{"WATCHDOG": "1"}]
    notifier.close()


@pytest.mark.parametrize(
    ("environment", "interval"),
    [
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "x"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_PID": str(os.getpid())}, None),
    ],
)
def test_the_watchdog_period_is_halved_when_it_is_meant_for_us(environment: dict[str, str], interval: float | None) -> None:
    notifier = Notifier(environment, monotonic=lambda: 1.0)
    assert notifier.watchdog_interval == interval
    assert environment == {}
