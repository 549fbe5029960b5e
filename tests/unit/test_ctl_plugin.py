"""What devwardctl says of the device plugin."""

import shlex

import pytest

from devward.ctl import explain, plugin
from devward.ctl.advice_plugin import PLUGIN_ADVICE
from devward.ctl.reading import sentence
from devward.ctl.when import Times
from devward.ctl.wording import not_ready
from devward.plugin.status import PROBLEM_TEXT, PluginProblem

NOW = 1_700_000_000_000_000
TIMES = Times(NOW, utc=False)
GOOD = {"enabled": True, "resource": "a/b", "state": "registered", "streams": 1, "slots": 4, "healthy_slots": 4, "given": 7, "refused": 1}


def said(told: dict[str, object]) -> str:
    return "\n".join(line.text for line in plugin.lines(plugin.plugin({"device_plugin": told}), TIMES))


@pytest.mark.parametrize("described", [{}, {"device_plugin": None}, {"device_plugin": {"enabled": False}}, {"device_plugin": []}])
def test_a_plugin_that_is_off_or_not_known_is_not_spoken_of(described: dict[str, object]) -> None:
    assert plugin.plugin(described) is None
    assert plugin.lines(None, TIMES) == []


def test_one_that_is_on_says_what_the_kubelet_has() -> None:
    text = said({**GOOD, "state_since_usec": NOW - 60_000_000})
    assert "a/b is offered to the kubelet, for 60 seconds: 4 of 4 slots." in text
    assert "got it: 7, Pods that were refused: 1." in text


def test_one_that_is_not_registered_says_why_and_what_to_do() -> None:
    text = said({**GOOD, "state": "taken", "problem": "plugin-taken", "text": "Another one\n(x.sock)."})
    assert "a/b is not offered to the kubelet: Another one\\x0a(x.sock). (plugin-taken)" in text
    assert "explain" in text
    assert "plugin-no-stream" in said({**GOOD, "streams": 0})
    assert "what-is-this" in said({**GOOD, "state": "failed", "problem": "what-is-this"})


def test_the_codes_of_the_plugin_are_explained_and_have_their_sentence() -> None:
    assert set(PLUGIN_ADVICE) == set(PluginProblem) - {PluginProblem.NONE}
    for problem, advice in PLUGIN_ADVICE.items():
        told = explain.of_code(problem)
        assert told is not None
        assert told.found == [PROBLEM_TEXT[problem]]
        assert told.steps == list(advice.steps)
        assert sentence(problem) == PROBLEM_TEXT[problem]
        assert not_ready(f"device plugin: {problem}") == f"device plugin: {PROBLEM_TEXT[problem]} ({problem})"
        for step in advice.steps:
            assert step.text.endswith((".", ":"))
            for command in step.commands:
                shlex.split(command)
