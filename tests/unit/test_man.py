"""The man pages say what the code does: they are generated from it or held to it."""

import re
import subprocess
from pathlib import Path

import pytest

from devward import __main__ as command_line
from devward import config_keys, names
from devward.audit import UNFINISHED
from devward.metrics import FAMILIES
from devward.npu.facts import Refusal
from devward.plugin.status import PluginProblem
from devward.reasons import Reason
from devward.reclaim.contract import No
from devward.reclaim.controls import Blocked
from devward.reclaim.history import Fate
from devward.reclaim.limits import Limit
from devward.reclaim.look import Cut
from devward.reclaim.reasons import Why

STOPS = "WHAT STOPS RECLAIMING"
WHY = "WHY A VNPU IS RECLAIMED OR NOT"
REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = REPOSITORY / "packaging" / "man"


def page(name: str) -> str:
    return (PAGES / name).read_text().replace("\\-", "-").replace("\\&", "")


@pytest.mark.parametrize("name", ["devward.toml.5", "devwardd.8", "org.devward.Devward1.5"])
def test_generated_pages_are_those_in_the_tree(name: str, tmp_path: Path) -> None:
    subprocess.run([str(PAGES / "generate.py"), str(tmp_path)], check=True)
    assert (tmp_path / name).read_text() == (PAGES / name).read_text(), "run packaging/man/generate.py"


def test_every_option_of_devwardd_is_documented_and_back() -> None:
    text = page("devwardd.8")
    options = {option for action in command_line.parser()._actions for option in action.option_strings}
    documented = set(re.findall(r"(?<![\w-])(--?[a-z][a-z-]*)", text[text.index(".SH OPTIONS") : text.index(".SH EXIT STATUS")]))
    assert documented == options


def test_every_exit_status_is_documented() -> None:
    text = page("devwardd.8")
    section = text[text.index(".SH EXIT STATUS") : text.index(".SH SIGNALS")]
    statuses = {value for name, value in vars(command_line).items() if name.startswith("EXIT_")}
    assert set(map(int, re.findall(r"^(\d+)$", section, re.M))) == statuses


def test_what_was_never_tried_on_hardware_is_the_same_table_as_in_the_readme() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    rows = re.findall(r"^\| (.+) \| (.*) \|$", readme.partition("| to be tried on hardware | result |\n")[2].partition("\n\n")[0], re.M)
    text = page("devwardd.8")
    section = text[text.index("to be tried on hardware") : text.index(f".SH {STOPS}")]
    assert len(rows) > 1
    assert re.findall(r"^\.TP\n(.+)\n(.+)$", section, re.M) == [(what.replace("`", ""), result) for what, result in rows[1:]]


def test_every_reason_and_event_is_in_the_page() -> None:
    text = page("devwardd.8")
    for word in [*filter(None, Reason), *names.MESSAGE_IDS]:
        assert f".B {word}\n" in text, word
    for identifier in names.MESSAGE_IDS.values():
        assert f"MESSAGE_ID {identifier}" in text


def test_every_metric_is_in_the_page_and_back() -> None:
    text = page("devwardd.8")
    section = text[text.index(".SH METRICS") : text.index(".SH FILES")]
    listed = re.findall(r"^\.B (devward_\w+)(?:\{([\w,]+)\})?$", section, re.M)
    assert [(name, tuple(filter(None, labels.split(",")))) for name, labels in listed] == [(one.name, one.labels) for one in FAMILIES]
    for label in {label for one in FAMILIES for label in one.labels} - {"version", "resource", "health"}:
        assert f".I {label}\n" in section, label


#: Of a vNPU that was asked for, or that went; and of a change.
ANSWERED = ("limits", Fate.VANISHED, Fate.VANISHED_FOREIGN, Fate.REPLACED, UNFINISHED, "not-saved")


def test_every_code_of_reclaiming_is_in_its_section() -> None:
    text = page("devwardd.8")
    stops, why, end = (text.index(f".SH {title}") for title in (STOPS, WHY, "WHAT IS READ OF KUBERNETES"))
    of_vnpu = (*Why, *Limit, *No, *Cut, *Refusal, "no-answer", "not-asked", "try-not-saved", *ANSWERED)
    for section, codes in ((text[stops:why], Blocked), (text[why:end], of_vnpu)):
        assert {line.removeprefix(".B ") for line in section.splitlines() if line.startswith(".B ")} == set(codes)
    # The interface's documentation sends its readers there.
    manager, vnpu = ((REPOSITORY / "dbus" / f"{name}.xml").read_text() for name in (names.MANAGER_INTERFACE, names.VNPU_INTERFACE))
    assert STOPS in manager
    assert WHY in vnpu


def test_every_code_of_the_device_plugin_is_in_its_section() -> None:
    text = page("devwardd.8")
    section = text[text.index(".SH THE DEVICE PLUGIN") : text.index(".SH JOURNAL")]
    codes = {line.removeprefix(".B ") for line in section.splitlines() if line.startswith(".B plugin-")}
    assert codes == set(PluginProblem) - {PluginProblem.NONE}


def test_every_journal_field_is_named() -> None:
    text = page("devwardd.8")
    section = text[text.index(".SH JOURNAL") : text.index(".SH FILES")]
    fields = {value for name, value in vars(names).items() if name.startswith("FIELD_")}
    assert set(re.findall(r"DEVWARD_[A-Z0-9_]+", section)) == fields


def test_every_key_is_documented() -> None:
    text = page("devward.toml.5")
    for key in config_keys.KEYS:
        assert f".B {key.name}\n" in text
