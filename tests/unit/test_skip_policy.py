"""The policy of tests/conftest.py: a skip that hides something is a failure."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    ("body", "allowed"),
    [
        ("pytest.skip('needs root: for the test')", not ROOT),
        ("pytest.skip('needs non-root: for the test')", ROOT),
        ("pytest.skip('needs /dev/kvm: for the test')", not (ROOT and KVM)),
        ("pytest.skip('needs root')", False),
        ("pytest.skip('flaky')", False),
        ("pytest.skip()", False),
        ("pytest.importorskip('no_such_module')", False),
        ("pytest.xfail('needs root: for the test')", False),
    ],
)
def test_a_skip_passes_only_for_a_lack_that_is_real(tmp_path: Path, body: str, allowed: bool) -> None:
    status, text = run(tmp_path, f"def test_it(): {body}\n")
    assert (status == 0) is allowed, text
    assert ("1 failed" in text) is not allowed, text
    counts = re.search(r'errors="0" failures="(\d)" skipped="(\d)"', (tmp_path / "junit.xml").read_text())
    assert counts is not None
    assert counts.groups() == (("0", "1") if allowed else ("1", "0"))
    if not allowed:
        assert "skipped " in text or "expected failure" in text


def test_a_decorator_is_judged_alike(tmp_path: Path) -> None:
    tests = "@pytest.mark.skip\ndef test_a(): pass\n@pytest.mark.skipif(True, reason='slow')\ndef test_b(): pass\n"
    tests += "@pytest.mark.xfail\ndef test_c(): assert False\n@pytest.mark.parametrize('nothing', [])\ndef test_d(nothing): pass\n"
    status, text = run(tmp_path, tests)
    assert (status, "1 failed, 3 errors" in text) == (1, True), text


def test_a_whole_module_is_judged_alike(tmp_path: Path) -> None:
    status, text = run(tmp_path, "pytest.skip('no time', allow_module_level=True)\n")
    assert (status, "1 error" in text) == (2, True), text
    reason = "needs non-root: for the test" if ROOT else "needs root: for the test"
    status, text = run(tmp_path, f"pytest.skip({reason!r}, allow_module_level=True)\n")
    assert reason in text
    assert "1 skipped" in text


def test_the_reason_of_an_allowed_skip_is_printed(tmp_path: Path) -> None:
    reason = "needs non-root: a reason to be read" if ROOT else "needs root: a reason to be read"
    status, text = run(tmp_path, f"def test_it(): pytest.skip({reason!r})\n")
    assert status == 0
    assert reason in text


def test_properties_have_no_deadline_and_are_the_same_in_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    test = "import hypothesis\ndef test_it():\n    settings = hypothesis.settings()\n"
    status, text = run(tmp_path, test + "    assert settings.deadline is None\n    assert not settings.derandomize\n")
    assert status == 0, text
