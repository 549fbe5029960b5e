"""The policy of tests/conftest.py: a skip that hides something is a failure."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

ROOT = os.geteuid() == 0
KVM = os.path.exists("/dev/kvm")


def run(directory: Path, test: str) -> tuple[int, str]:
    """Run a test module under the policy; return the exit status and the output."""
    shutil.copy(CONFTEST, directory / "conftest.py")
    (directory / "pytest.ini").write_text("[pytest]\naddopts = -ra\n")
    (directory / "test_it.py").write_text("import os, pytest\n" + test)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--basetemp={directory}/temp",
        f"--junitxml={directory}/junit.xml",
    ]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


#: What a test does, and whether it may.
BODIES = {
    "pytest.skip('needs root: for the test')": not ROOT,
    "pytest.skip('needs non-root: for the test')": ROOT,
    "pytest.skip('needs /dev/kvm: for the test')": not (ROOT and KVM),
    "pytest.skip('needs root')": False,
    "pytest.skip('flaky')": False,
    "pytest.skip()": False,
    "pytest.importorskip('no_such_module')": False,
    "pytest.xfail('needs root: for the test')": False,
}
DECORATORS = ("skip", "skipif(True, reason='slow')", "xfail", "parametrize('argument', [])")


def test_a_skip_passes_only_for_a_lack_that_is_real(tmp_path: Path) -> None:
    tests = "".join(f"def test_{number}(): {body}\n" for number, body in enumerate(BODIES))
    for number, mark in enumerate(DECORATORS):
        argument = "argument" if "argument" in mark else ""
        tests += f"@pytest.mark.{mark}\ndef test_mark_{number}({argument}): assert False\n"
    status, text = run(tmp_path, tests)
    assert status == 1, text
    cases = list(ET.parse(tmp_path / "junit.xml").iter("testcase"))
    skipped = [case.find("skipped") is not None for case in cases]
    failed = [case.find("failure") is not None or case.find("error") is not None for case in cases]
    assert skipped == [*BODIES.values(), *(False for _ in DECORATORS)], text
    assert failed == [not allowed for allowed in skipped]
    for reason in ("needs non-root: for the test" if ROOT else "needs root: for the test", "flaky", "no_such_module", "slow"):
        assert reason in text


def test_a_whole_module_is_judged_alike(tmp_path: Path) -> None:
    status, text = run(tmp_path, "pytest.skip('no time', allow_module_level=True)\n")
    assert (status, "1 error" in text) == (2, True), text
    reason = "needs non-root: for the test" if ROOT else "needs root: for the test"
    status, text = run(tmp_path, f"pytest.skip({reason!r}, allow_module_level=True)\n")
    assert reason in text
    assert "1 skipped" in text


def test_properties_have_no_deadline_and_are_the_same_in_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    test = "import hypothesis\ndef test_it():\n    settings = hypothesis.settings()\n"
    status, text = run(tmp_path, test + "    assert settings.deadline is None\n    assert not settings.derandomize\n")
    assert status == 0, text
