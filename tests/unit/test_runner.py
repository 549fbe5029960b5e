"""`tests/run` and `.ci/run`: they count right, end what tests leave behind and say so, and fail when they must."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Longest wait in seconds for a run to get somewhere.
DEADLINE = 120.0

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the runner does")


@pytest.fixture(name="tree")
def _tree(tmp_path: Path) -> Path:
    """A source tree that has the runner and no tests yet."""
    tree = tmp_path / "tree"
    for name in (".ci/run", ".ci/host_state.py", "tests/run", "tests/conftest.py", "pyproject.toml"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    (tree / "src").mkdir()
    (tree / "tests/unit").mkdir()
    return tree


def write(tree: Path, *tests: str) -> None:
    head = "import os, pathlib, pytest, subprocess, time\n"
    (tree / "tests/unit/test_it.py").write_text(head + "".join(f"def test_{n}():\n    {test}\n" for n, test in enumerate(tests)))


def limit_tests(tree: Path, seconds: int) -> None:
    """Have the runner take a test for one that hangs after so long."""
    text, limit = (tree / "tests/run").read_text(), "test_limit=1200"
    assert text.count(limit) == 1
    (tree / "tests/run").write_text(text.replace(limit, f"test_limit={seconds}"))


def run(program: Path, *arguments: str) -> tuple[int, list[str]]:
    done = subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout.decode().splitlines()


def test_success(tree: Path) -> None:
    write(tree, "pass", "pytest.skip('needs non-root: for the test')", "assert 'CI' not in pathlib.Path.cwd().parts")
    status, lines = run(tree / "tests/run", "unit", "--totals", str(tree.parent / "totals"))
    assert (status, lines[-1]) == (0, "2 passed, 0 failed, 1 skipped"), lines
    assert (tree.parent / "totals").read_text() == lines[-1] + "\n"
    assert not list(tree.rglob("__pycache__"))
    assert not list(tree.rglob(".hypothesis"))


def test_r27_the_unit_tests_run_again_as_user_and_group_65534_without_any_capability(tree: Path) -> None:
    nobody = "os.geteuid() or pytest.skip('needs non-root: for the test')"
    write(
        tree,
        f"{nobody}; assert (os.getresuid(), os.getresgid(), os.getgroups()) == ((65534,) * 3, (65534,) * 3, [])",
        f"{nobody}; assert 'CapEff:\\t0000000000000000' in pathlib.Path('/proc/self/status').read_text()",
        f"{nobody}; pytest.raises(PermissionError, pathlib.Path('of-ours').touch)",
    )
    status, lines = run(tree / "tests/run", "unit", "nobody")
    assert (status, lines[-1]) == (0, "3 passed, 0 failed, 3 skipped"), lines


def test_failures_errors_and_skips_that_are_not_allowed_count(tree: Path) -> None:
    write(tree, "pass", "assert False", "pytest.skip('later')")
    (tree / "tests/unit/test_broken.py").write_text("import no_such_module\n")
    status, lines = run(tree / "tests/run", "unit")
    assert (status, lines[-1]) == (1, "1 passed, 3 failed, 0 skipped"), lines


def test_nothing_to_run_is_a_failure(tree: Path) -> None:
    assert run(tree / "tests/run", "unit")[1][-1] == "0 passed, 1 failed, 0 skipped"
    write(tree, "pass")
    status, lines = run(tree / "tests/run", "unit", "-k", "no_such_test")
    assert (status, lines[-1]) == (1, "0 passed, 1 failed, 0 skipped"), lines


def test_leftovers_are_removed_and_fail_the_run(tree: Path) -> None:
    only_in_the_first_step = "os.geteuid() or subprocess.Popen"
    write(
        tree,
        only_in_the_first_step + "(['sleep', '601'])",
        only_in_the_first_step + "(['sleep', '602'], start_new_session=True)",
        only_in_the_first_step + "(['sleep', '603'], env={})",
    )
    (tree / "pyproject.toml").write_text((tree / "pyproject.toml").read_text().replace('"error",', '"ignore",'))
    status, lines = run(tree / "tests/run", "unit", "nobody")
    assert (status, lines[-1]) == (1, "6 passed, 1 failed, 0 skipped"), lines
    left = [line.rpartition(": ")[2] for line in lines if line.startswith("left running: pid ")]
    assert sorted(left) == ["sleep 601", "sleep 602", "sleep 603"]
    pids = [int(line.split()[3].rstrip(":")) for line in lines if line.startswith("left running: pid ")]
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}") and "sleep" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_mounts_are_removed_and_fail_the_run(tree: Path) -> None:
    """Twice: below the directory of the run it is removed, elsewhere it is a change of the host."""
    elsewhere = tree.parent / "elsewhere"
    elsewhere.mkdir()
    mount = "subprocess.run(['mount', '-t', 'tmpfs', 'left', path], check=True)"
    write(tree, f"path = os.environ['TMPDIR'] + '/m'; os.mkdir(path); {mount}", f"path = '{elsewhere}'; {mount}")
    try:
        status, lines = run(tree / ".ci/run", "unit")
    finally:
        subprocess.run(["umount", elsewhere], check=True)
    assert status == 1
    assert lines[-1] == "2 passed, 2 failed, 0 skipped", lines
    assert any(line.startswith("left mounted: ") and line.endswith("/m") for line in lines), lines
    assert any(line.startswith(f"mount {elsewhere}: new: mounted tmpfs left ") for line in lines), lines
    assert "/m " not in "".join(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - tmpfs left " in line)


@pytest.mark.parametrize("hanging", ["time.sleep(600)", "while True: pass"])
def test_a_test_that_hangs_fails_with_a_trace_and_the_others_go_on(tree: Path, hanging: str) -> None:
    limit_tests(tree, 2)
    write(tree, hanging, "pass")
    status, lines = run(tree / "tests/run", "unit")
    assert (status, lines[-1]) == (1, "1 passed, 1 failed, 0 skipped"), lines
    assert any("test_it.py" in line and "test_0" in line for line in lines), lines
    assert any("Timeout" in line for line in lines), lines


def test_what_must_not_block_leaves_the_limit_of_the_test_in_force(tree: Path) -> None:
    limit_tests(tree, 4)
    (tree / "tests/sim").mkdir()
    shutil.copy(ROOT / "tests/sim/patience.py", tree / "tests/sim/patience.py")
    patience = "from sim.patience import must_not_block"
    write(
        tree,
        f"{patience}\n    with must_not_block(60): pass\n    time.sleep(600)",
        f"{patience}\n    with pytest.raises(AssertionError, match='still blocked'):\n        with must_not_block(1): time.sleep(600)",
    )
    status, lines = run(tree / "tests/run", "unit")
    assert (status, lines[-1]) == (1, "1 passed, 1 failed, 0 skipped"), lines


@pytest.mark.parametrize("program", ["tests/run", ".ci/run"])
def test_an_interrupted_run_takes_everything_down(tree: Path, program: str) -> None:
    up, down = tree.parent / "up", tree.parent / "down"
    body = f"p = subprocess.Popen(['sleep', '600']); pathlib.Path('{up}').touch()\n    try: time.sleep(600)\n"
    body += f"    finally: p.kill(); p.wait(); pathlib.Path('{down}').touch()"
    (tree / "tests/unit/test_it.py").write_text(f"import pathlib, subprocess, time\ndef test_it():\n    {body}\n")
    # With mounts of its own: those that other tests make and end meanwhile would be changes of the host.
    command = ["unshare", "--mount", "--propagation", "private", tree / program, "unit"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    end = time.monotonic() + DEADLINE
    while not up.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=DEADLINE)
    lines = output.decode().splitlines()
    assert process.returncode == 128 + signal.SIGTERM, lines
    assert lines[-1].startswith("0 passed, 1 failed"), lines
    assert down.exists()
    assert not [line for line in lines if line.startswith("left running")]


def test_what_is_unknown_is_refused(tree: Path) -> None:
    assert run(tree / "tests/run", "no-such-step")[0] == 2
    assert run(tree / "tests/run", "-k")[0] == 2
    status, lines = run(tree / "tests/run", "--help")
    assert (status, lines[0].startswith("Usage: tests/run")) == (0, True)
