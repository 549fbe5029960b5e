"""How the plugin says that it is ready, and why not."""

from dataclasses import replace

import pytest

from devward.metrics import PluginMeasures
from devward.plugin.measured import measures
from devward.plugin.status import PROBLEM_TEXT, PluginProblem, PluginStatus, RegistrationState, not_ready

READY = PluginStatus("a/b", state=RegistrationState.REGISTERED, streams=1, last_check_usec=1, healthy_slots=0, slots=2)


def test_registered_and_heard_and_checked_is_ready_however_the_devices_are() -> None:
    assert not_ready(READY) == ()


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (replace(READY, state=RegistrationState.REGISTERING), "plugin-registering"),
        (replace(READY, state=RegistrationState.FAILED, problem=PluginProblem.KUBELET_SILENT), "plugin-kubelet-silent"),
        (replace(READY, streams=0), "plugin-no-stream"),
        (replace(READY, last_check_usec=0), "plugin-not-checked"),
    ],
)
def test_each_of_the_three_is_needed(status: PluginStatus, reason: str) -> None:
    assert not_ready(status) == (f"device plugin: {reason}",)


def test_with_nothing_to_offer_there_is_nothing_to_check() -> None:
    assert not_ready(replace(READY, slots=0, last_check_usec=0)) == ()


def test_every_problem_has_a_sentence_and_a_detail_goes_into_it() -> None:
    assert PROBLEM_TEXT.keys() == set(PluginProblem)
    assert all(text.endswith(".") for problem, text in PROBLEM_TEXT.items() if problem)
    assert replace(READY, problem=PluginProblem.KUBELET_REFUSES, detail="why").text == "The kubelet refused the registration (why)."
    assert READY.text == ""


def test_what_is_measured_of_it() -> None:
    status = replace(READY, registrations=3, failures=4, given=5, refused=6, healthy_slots=1)
    assert measures(status) == PluginMeasures("a/b", True, 1, 1, 2, 3, 4, 5, 6)
    assert not measures(replace(status, state=RegistrationState.FAILED)).registered
