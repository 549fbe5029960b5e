"""The advice: complete, about containers, and safe to paste."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.ctl import advice
from devward.ctl.advice import ADVICE, CAUSES
from devward.model import RepairCause
from devward.reasons import Reason


def test_every_reason_and_cause_has_its_advice() -> None:
    assert set(ADVICE) == set(Reason)
    assert set(CAUSES) == set(RepairCause)


@pytest.mark.parametrize("reason", list(Reason))
def test_advice_is_whole(reason: Reason) -> None:
    known = ADVICE[reason]
    assert known.means.endswith(".")
    assert known.steps
    for step in known.steps:
        assert step.text[0].isupper() or step.text.startswith("devward")
        assert step.text.endswith((".", ":"))
        assert step.text.endswith(".") or step.commands, "a colon announces a command"
        # Only commands are quoted for the shell, so only there a path may stand.
        assert "FILE" not in step.text
        assert "DEVICE" not in step.text
        for command in step.commands:
            assert not command.endswith((".", ":"))
            shlex.split(command)
    assert (known.means + "".join(step.text for step in known.steps)).isascii()


@given(st.text(min_size=1))
def test_a_path_cannot_say_anything_to_a_shell(path: str) -> None:
    told = advice.advice(Reason.CDI_NOT_REGULAR, file=path)
    (command,) = told.steps[0].commands
    assert command.isprintable()
    assert len(shlex.split(command)) == 3
    assert shlex.split(command)[:2] == ["ls", "-ld"]


def test_an_unknown_reason_says_so() -> None:
    told = advice.advice("flux-lost")
    assert "older than the daemon" in told.means
    assert told.steps
    assert advice.cause("flux-lost") == ""
