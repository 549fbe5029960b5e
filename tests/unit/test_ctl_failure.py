"""What goes wrong on the bus, as a sentence, an advice and an exit status."""

import pytest

from devward.ctl import client
from devward.ctl.failure import UNANSWERED, UNKNOWN, ExitStatus, Failure, failure_of
from devward.errors import DBUS_ERROR_NAMES, INTERNAL_ERROR_NAME

DENIED = {"org.freedesktop.DBus.Error.AccessDenied", "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"}


@pytest.mark.parametrize("name", [*DBUS_ERROR_NAMES.values(), INTERNAL_ERROR_NAME])
def test_every_error_of_the_daemon_has_a_sentence_a_status_and_mostly_an_advice(name: str) -> None:
    failure = failure_of(name, "The daemon's own words.", "Rescan")
    invalid = name.endswith("InvalidArgs")
    expected = ExitStatus.DENIED if name in DENIED else ExitStatus.USAGE if invalid else ExitStatus.UNHEALTHY
    assert failure.status == expected
    assert failure.text.endswith(".")
    assert invalid or failure.advice
    assert name not in failure.text, "an error's name is for programs"


@pytest.mark.parametrize("name", sorted(UNKNOWN))
def test_an_older_daemon(name: str) -> None:
    failure = failure_of(name, "no", "ReclaimOrphans")
    assert failure.status == ExitStatus.UNHEALTHY
    assert "does not offer ReclaimOrphans" in failure.text


@pytest.mark.parametrize("name", sorted(UNANSWERED))
def test_no_answer(name: str) -> None:
    assert failure_of(name, "", "Rescan").status == ExitStatus.ABSENT


def test_an_unknown_error_is_named_and_its_text_escaped() -> None:
    failure = failure_of("org.devward.Devward1.Error.Flux", "a\x1b[2Jb\nc", "Rescan")
    assert failure.status == ExitStatus.UNHEALTHY
    assert failure.text == "Rescan failed: org.devward.Devward1.Error.Flux: a\\x1b[2Jb\\x0ac."


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, 5], ids=range(6))
def test_an_answer_that_is_no_object_is_a_failure(text: object) -> None:
    with pytest.raises(Failure, match="odd"):
        client._document(text, "odd")
    assert client._document('{"a": 1}', "odd") == {"a": 1}
