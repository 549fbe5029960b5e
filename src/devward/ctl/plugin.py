"""What devwardctl says of the device plugin, by what Describe tells. Pure."""

from dataclasses import dataclass, field

from devward.ctl.advice_plugin import PLUGIN_ADVICE
from devward.ctl.explanation import Explanation
from devward.ctl.owners import Line
from devward.ctl.reading import Raw, number_of, sentence, text_of
from devward.ctl.terminal import Tone, unbroken
from devward.ctl.when import Times
from devward.plugin.status import PROBLEM_TEXT, PluginProblem, RegistrationState
from devward.text import printable


@dataclass(frozen=True, slots=True)
class Plugin:
    """The device plugin that is on. Texts are foreign."""

    resource: str = ""
    state: str = ""
    state_since_usec: int = 0
    problem: str = ""
    text: str = ""
    streams: int = 0
    healthy_slots: int = 0
    slots: int = 0
    given: int = 0
    refused: int = 0
    raw: Raw = field(default_factory=dict)


def plugin(described: Raw) -> Plugin | None:
    """Read the member `device_plugin` of what Describe answered; None where the plugin is off, or the daemon does not know of it."""
    told = described.get("device_plugin")
    if not isinstance(told, dict) or told.get("enabled") is not True:
        return None
    return Plugin(
        resource=text_of(told, "resource"),
        state=text_of(told, "state"),
        state_since_usec=number_of(told, "state_since_usec"),
        problem=text_of(told, "problem"),
        text=text_of(told, "text"),
        streams=number_of(told, "streams"),
        healthy_slots=number_of(told, "healthy_slots"),
        slots=number_of(told, "slots"),
        given=number_of(told, "given"),
        refused=number_of(told, "refused"),
        raw=told,
    )


def lines(told: Plugin | None, times: Times) -> list[Line]:
    """Say it on the screen; nothing where the plugin is off."""
    if told is None:
        return []
    resource = printable(told.resource)
    problem = told.problem
    if told.state == RegistrationState.REGISTERED and not told.streams:
        problem = problem or PluginProblem.NO_STREAM
    if told.state != RegistrationState.REGISTERED or problem:
        why = f"{sentence(problem, told.text)} ({printable(problem)})" if problem else printable(told.state)
        said = [Line(f"{resource} is not offered to the kubelet: {why}", Tone.BAD)]
        return [*said, Line(f"What to do: {unbroken(f'devwardctl explain {printable(problem)}')}", Tone.FAINT)] if problem else said
    lasting = times.lasting(told.state_since_usec)
    tone = Tone.PLAIN if told.healthy_slots or not told.slots else Tone.BAD
    return [
        Line(f"{resource} is offered to the kubelet{f', {lasting}' if lasting else ''}: {told.healthy_slots} of {told.slots} slots.", tone),
        Line(f"Since devwardd started, containers that got it: {told.given}, Pods that were refused: {told.refused}.", Tone.FAINT),
    ]


def of_code(code: str) -> Explanation | None:
    """Explain a code of the device plugin; None where it is none."""
    if not code or code not in list(PluginProblem):
        return None
    problem = PluginProblem(code)
    known = PLUGIN_ADVICE[problem]
    return Explanation(code, "reason", [PROBLEM_TEXT[problem]], [known.means], list(known.steps))
