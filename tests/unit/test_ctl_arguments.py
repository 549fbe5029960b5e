"""devwardctl's command line: what it takes, and that man page and completions say the same."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from devward.bus import manager
from devward.ctl import arguments
from devward.model import MAXIMUM_PIN_REASON

ROOT = Path(__file__).parents[2]
MAN_PAGE = ROOT / "packaging" / "man" / "devwardctl.1"
BASH = ROOT / "packaging" / "completions" / "bash" / "devwardctl"
ZSH = ROOT / "packaging" / "completions" / "zsh" / "_devwardctl"


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


def commands() -> dict[str, argparse.ArgumentParser]:
    return {name: one for name, one in subparsers(arguments.parser()).items() if name not in arguments.HIDDEN_COMMANDS}


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


def every_option() -> set[str]:
    parsers = [arguments.parser(), *commands().values()]
    parsers += [inner for one in commands().values() for inner in subparsers(one).values()]
    return {option for parser in parsers for option in options(parser)}


def man_text() -> str:
    """The page's text without its markup."""
    text = re.sub(r"\\f[BIRP]", "", MAN_PAGE.read_text()).replace("\\-", "-").replace("\\&", "").replace('"', "")
    return text.replace(" , ", ", ")


def man_section(title: str) -> str:
    found = re.search(rf"^\.SH {title}\n(.*?)(?=^\.SH |\Z)", man_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def test_every_command_is_in_the_man_page_and_back() -> None:
    tagged = re.findall(r"^\.TP\n\.[BIR]+ ([a-z].*)$", man_section("COMMANDS"), re.MULTILINE)
    described = {line.split()[0] for line in tagged}
    assert described == set(commands())
    subjects = {f"{name} {subject}" for name, one in commands().items() for subject in subparsers(one)}
    assert {" ".join(line.split()[:2]) for line in tagged if line.split()[0] in ("mode", "pause", "resume", "reclaim")} == subjects
    modes = man_section("COMMANDS")
    for mode in ("repair", "enforce", "observe", "off"):
        assert re.search(rf"^\.BR? {mode}\b", modes, re.MULTILINE), mode


def test_every_option_is_in_the_man_page_and_back() -> None:
    text = man_section("COMMANDS") + man_section("OPTIONS")
    described = set(re.findall(r"(?<![\w-])(--?[a-z][a-z-]*)", text))
    assert described == every_option()


def test_the_man_page_names_every_exit_status() -> None:
    from devward.ctl.failure import ExitStatus

    assert set(re.findall(r"^\.TP\n\.B (\d)$", man_section("EXIT STATUS"), re.MULTILINE)) == {str(int(one)) for one in ExitStatus}


def test_the_examples_of_the_man_page_parse() -> None:
    lines = [line for line in man_section("EXAMPLES").splitlines() if line.startswith(("devwardctl", "until devwardctl"))]
    assert len(lines) >= 6
    for line in lines:
        for part in re.findall(r"devwardctl ([^&>;]*)", line):
            arguments.parse(part.split())


@pytest.mark.parametrize("path", [BASH, ZSH], ids=["bash", "zsh"])
def test_the_completions_know_every_command_and_option(path: Path) -> None:
    text = path.read_text()
    words = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))
    assert every_option() - words <= {"-h"} if path == BASH else every_option() <= words
    known = {option for option in words if option.startswith("--")} - {"--"}
    assert known <= every_option(), "a completion that the parser would refuse"
    for name in commands():
        assert re.search(rf"\b{name}\b", text), name
    for what in re.findall(r"_devwardctl_names (\w+)", text):
        assert what in arguments.COMPLETABLE


def test_bash_completes_with_live_names(tmp_path: Path) -> None:
    stand_in = tmp_path / "devwardctl"
    stand_in.write_text('#!/bin/sh\n[ "$1 $2" = "--bus unix:path=/x" ] && shift 2\n[ "$1" = complete ] && echo "kvm live-$2"\n')
    stand_in.chmod(0o755)

    def completed(*words: str) -> list[str]:
        script = (
            f'source {BASH}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _devwardctl; printf "%s\\n" ${{COMPREPLY[@]+"${{COMPREPLY[@]}}"}}'
        )
        run = subprocess.run(
            ["bash", "-euc", script, "bash", str(stand_in), *words],
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": "/usr/bin:/bin"},
        )
        assert not run.stderr
        return run.stdout.split()

    assert completed("st") == ["status"]
    assert set(completed("")) == set(commands())
    assert completed("check", "") == ["kvm", "live-devices"]
    assert completed("--json", "explain", "") == ["kvm", "live-explain"]
    assert completed("--bus", "unix:path=/x", "adopt", "") == ["kvm", "live-specs"]
    assert completed("pin", "") == ["kvm", "live-npus"]
    assert completed("pin", "--reason", "why", "") == ["kvm", "live-npus"]
    assert completed("unpin", "live") == ["live-pins"]
    assert completed("mode", "cdi", "o") == ["observe", "off"]
    assert completed("mode", "reclaim", "") == ["enforce", "observe", "off"]
    assert completed("pause", "") == ["cdi", "reclaim"]
    assert completed("reclaim", "") == ["status", "now", "release"]
    assert completed("reclaim", "now", "") == ["kvm", "live-vnpus"]
    assert completed("reclaim", "status", "") == []
    assert completed("reclaim", "now", "--s") == ["--shorten"]
    assert completed("reclaim", "release", "--s") == []
    assert completed("history", "--vnpu", "live") == ["live-vnpus"]
    assert completed("history", "--event", "live") == ["live-events"]
    assert completed("repair", "--d") == ["--dry-run"]
    assert completed("status", "--d") == []
    assert "--version" in completed("--")


@pytest.mark.parametrize("given", [["--json", "status"], ["status", "--json"], ["--json"]])
def test_options_stand_before_or_after_the_command(given: list[str]) -> None:
    parsed = arguments.parse(given)
    assert (parsed.command, parsed.json, parsed.utc, parsed.bus) == ("status", True, False, None)
    assert arguments.parse(["--bus", "unix:path=/a", "status"]).bus == "unix:path=/a"
    assert arguments.parse(["mode", "cdi", "off", "--bus", "unix:path=/b"]).bus == "unix:path=/b"


def test_without_a_command_status_is_meant() -> None:
    assert arguments.parse([]).command == "status"


@pytest.mark.parametrize(
    "given",
    [
        ["bogus"],
        ["status", "--js"],
        ["check"],
        ["mode", "reclaim", "repair"],
        ["mode", "cdi", "enforce"],
        ["mode"],
        ["mode", "cdi", "sometimes"],
        ["pause", "cdi", "30m"],
        ["pause", "reclaim", "30m"],
        ["pause", "reclaim", "8d", "why"],
        ["reclaim"],
        ["reclaim", "all"],
        ["reclaim", "now", "v0100", "v0101"],
        ["reclaim", "status", "--shorten"],
        ["reclaim", "release", "--dry-run"],
        ["accept-node"],
        ["history", "--vnpu", "p007"],
        ["history", "--vnpu", "100 OR"],
        ["pause", "cdi", "0s", "why"],
        ["pause", "cdi", "8d", "why"],
        ["pause", "cdi", "soon", "why"],
        ["pause", "cdi", "30m", "x" * 201],
        ["pause", "cdi", "30m", " "],
        ["config", "--config", "/x"],
        ["history", "-n", "-1"],
        ["history", "-n", "many"],
        ["repair", "--dry"],
        ["pin"],
        ["unpin"],
        ["pin", "v0100", "--reason", "x" * 201],
        ["pin", "v0100", "--reason", " "],
        ["pin", "v0100", "a reason"],
        ["complete", "secrets"],
    ],
)
def test_wrong_usage_ends_with_status_2_and_says_why(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments.parse(given)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_a_wrong_command_is_answered_with_those_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments.parse(["bogus"])
    listed = capsys.readouterr().err
    assert "'explain'" in listed or " explain," in listed
    assert "complete" not in listed


def test_a_pause_is_bounded_as_the_daemon_bounds_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert arguments.MAX_REASON == manager.MAX_PAUSE_REASON == MAXIMUM_PIN_REASON
    given = arguments.parse(["pause", "cdi", "1w", "a", "longer", "reason"])
    assert (given.seconds, given.reason) == (604800, "a longer reason")
    with pytest.raises(SystemExit):
        arguments.parse(["pause", "cdi", "2w", "x"])
    assert "from 1 second to 7 days" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--help"], ["bogus"], ["pause", "cdi", "9d", "x"], ["--version"]])
def test_help_and_wrong_usage_load_nothing_heavy(given: list[str]) -> None:
    script = (
        "import sys\nfrom devward.ctl.main import main\n"
        f"try: main({given!r})\nexcept SystemExit: pass\n"
        "heavy = {'asyncio', 'dbus_next', 'subprocess', 'ssl', 'devward.config', 'devward.ctl.client'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT / "src")})
    assert run.returncode == 0, run.stderr


def test_what_needs_no_bus_does_not_load_it() -> None:
    script = (
        "import sys\nfrom devward.ctl.main import main\n"
        "assert main(['explain', 'hypervisor-busy']) == 0\nassert main(['config', '--check', '--config', '/dev/null']) == 1\n"
        "assert not {'asyncio', 'dbus_next'} & set(sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT / "src")})
    assert run.returncode == 0, run.stderr
