"""devward is killed at every system call of a write, of a removal, and at random moments of its life.

A killed process leaves the whole old or the whole new file, and what else it leaves is gone after the next start. strace sends SIGKILL
at the entry of a system call, which is then not carried out: each state between two calls is seen. That a file survives a power failure
is the business of fsync and is not shown here.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from devward import names
from devward.cdi import store
from sim.daemon_process import REPOSITORY, DaemonProcess, PrivateBus, wait_for

NAME = names.HYPERVISOR_CDI_FILE
OLD = json.dumps({"cdiVersion": "0.3.0", "kind": names.HYPERVISOR_CDI_KIND, "devices": [], "annotations": {"old": "x" * 3000}}).encode()
NEW = json.dumps({"cdiVersion": "0.3.0", "kind": names.HYPERVISOR_CDI_KIND, "devices": [], "annotations": {"new": "y" * 2000}}).encode()
NOBODY = 65534

#: The traced program; two calls that nothing else makes show where the act begins and ends in the trace.
BEGIN, END = "/devward-test-begins", "/devward-test-ends"
PROGRAM = f"""
import os, sys
from devward.cdi import store
act, directory, name, data = sys.argv[1], sys.argv[2], sys.argv[3], os.fsencode(sys.argv[4])
os.path.lexists({BEGIN!r})
store.write(directory, name, data) if act == "write" else store.remove(directory, name)
os.path.lexists({END!r})
"""
#: They change no file, and how often they are made differs from run to run.
MEMORY_CALLS = {"mmap", "munmap", "mremap", "mprotect", "madvise", "brk"}


@dataclass(frozen=True)
class Case:
    """A state of the directory, and what is done there."""

    name: str
    act: str
    has_directory: bool = True
    has_file: bool = True
    owner: int | None = None
    options: Sequence[str] = ()

    def prepare(self, scratch: Path) -> Path:
        """Make the state in an empty directory; return the CDI directory."""
        directory = scratch / "etc" / "cdi"
        if self.has_directory:
            directory.mkdir(parents=True, mode=0o755)
        if self.has_file:
            (directory / NAME).write_bytes(OLD)
            if self.owner is not None:
                os.chown(directory / NAME, self.owner, self.owner)
        return directory

    @property
    def allowed(self) -> tuple[bytes | None, ...]:
        """What may stand at the path after a crash; None is no file."""
        return (OLD if self.has_file else None, NEW if self.act == "write" else None)


WRITES = [
    Case("no directory", "write", has_directory=False, has_file=False),
    Case("no file", "write", has_file=False),
    Case("a file", "write"),
    # The file systems that can not exchange two names in one step.
    Case("a file, plain rename", "write", options=("-e", "inject=renameat2:error=EINVAL")),
]
REMOVALS = [Case("removal", "remove")]


class Traced:
    """Runs the program under strace."""

    def __init__(self, scratch: Path) -> None:
        self._log = scratch / "strace.log"

    def run(self, case: Case, directory: Path, *options: str) -> list[tuple[str, int]]:
        """Return the system calls of the act, each as its name and how often the process had made it by then, itself included."""
        self._log.unlink(missing_ok=True)
        command = [sys.executable, "-s", "-S", "-c", PROGRAM, case.act, str(directory), NAME, NEW.decode()]
        tracer = ["strace", "-qq", "-o", str(self._log), "-e", "signal=none", *case.options, *options]
        kept = {key: os.environ[key] for key in ("PATH", "PYTHONPYCACHEPREFIX") if key in os.environ}
        # The same start every time: the calls are counted from the very first on.
        environment = kept | {"PYTHONPATH": str(REPOSITORY / "src"), "PYTHONHASHSEED": "0", "LANG": "C.UTF-8"}
        result = subprocess.run([*tracer, *command], env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        # strace ends itself by the signal that ended its child.
        assert result.returncode == (-signal.SIGKILL if options else 0), result.stderr.decode()
        return self._calls_of_the_act()

    def _calls_of_the_act(self) -> list[tuple[str, int]]:
        made: Counter[str] = Counter()
        calls: list[tuple[str, int]] = []
        within = False
        for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines():
            match = re.match(r"(\w+)\(", line)
            if match is None:
                continue
            call = match[1]
            made[call] += 1
            if f'"{END}"' in line:
                return calls
            if within and call not in MEMORY_CALLS:
                calls.append((call, made[call]))
            within = within or f'"{BEGIN}"' in line
        assert within, "the act did not begin"
        return calls


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory with a short name, as a socket needs."""
    path = Path(tempfile.mkdtemp(prefix="crash-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def content(directory: Path) -> bytes | None:
    try:
        return (directory / NAME).read_bytes()
    except FileNotFoundError:
        return None


def beside(directory: Path) -> list[str]:
    """What stands in the directory besides the file."""
    return sorted(set(os.listdir(directory)) - {NAME}) if directory.exists() else []


def is_ours(name: str) -> bool:
    return re.fullmatch(rf"\.devward\.{re.escape(NAME)}\.[0-9a-f]{{16}}\.tmp", name) is not None


def sweep_calls(case: Case) -> None:
    """Kill the act at each of its calls, and see what is left and that the next start and the next act find their way."""
    with scratch_directory() as scratch:
        traced = Traced(scratch)
        traced.run(case, case.prepare(scratch / "warm"))  # compiles what is not compiled yet
        directory = case.prepare(scratch / "recorded")
        recorded = traced.run(case, directory)
        assert content(directory) == case.allowed[1]
        assert beside(directory) == []
        assert {"fsync", "renameat2"} <= {call for call, _ in recorded} or case.act == "remove", "it does not write as it should"

        outcomes = set()
        for position, (call, ordinal) in enumerate(recorded):
            directory = case.prepare(scratch / f"{position}")
            seen = traced.run(case, directory, "-e", f"inject={call}:signal=SIGKILL:when={ordinal}")
            where = f"killed at {call}, call {position} of {case.name}"
            assert [name for name, _ in seen] == [name for name, _ in recorded[: position + 1]], where

            left = beside(directory)
            assert content(directory) in case.allowed, where
            assert len(left) <= 1, where
            assert all(is_ours(name) for name in left), where
            outcomes.add((content(directory), bool(left)))

            assert store.sweep(str(directory)) == tuple(left), where
            assert beside(directory) == [], where
            assert content(directory) in case.allowed, where
            store.write(str(directory), NAME, NEW)
            assert content(directory) == NEW, where
            assert stat.S_IMODE((directory / NAME).stat().st_mode) == store.FILE_MODE, where
            assert stat.S_IMODE(directory.stat().st_mode) == store.DIRECTORY_MODE, where
            assert beside(directory) == [], where
        # The sweep has met both results, and a leftover: otherwise it has not looked where it matters.
        assert {data for data, _ in outcomes} == set(case.allowed)
        assert True in {left for _, left in outcomes}


@pytest.mark.parametrize("case", WRITES, ids=lambda case: case.name)
def test_a_write_that_is_killed_at_any_call_leaves_a_whole_file_and_nothing_for_good(case: Case) -> None:
    sweep_calls(case)


@pytest.mark.parametrize("case", REMOVALS, ids=lambda case: case.name)
def test_a_removal_that_is_killed_at_any_call_leaves_a_whole_file_or_none_and_nothing_for_good(case: Case) -> None:
    sweep_calls(case)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the old file belongs to another user")
def test_the_old_file_of_another_owner_is_swept_too() -> None:
    sweep_calls(Case("another's file", "write", owner=NOBODY))


# --- the whole daemon ------------------------------------------------------------------------------------------------

KILLS = 50
#: Seconds of a storm before the kill, at most.
STORM = 0.15


def tamper(spec: Path, dice: random.Random) -> None:
    """Do to the file one of the things that people and their tools do."""
    with contextlib.suppress(FileNotFoundError):
        match dice.randrange(5):
            case 0:
                os.truncate(spec, 0)
            case 1:
                other = spec.with_suffix(".other")
                other.write_bytes(OLD)
                other.rename(spec)
            case 2:
                spec.unlink()
            case 3:
                spec.chmod(0o600)
            case 4:
                shutil.rmtree(spec.parent, ignore_errors=True)


@contextlib.contextmanager
def storm(spec: Path, dice: random.Random) -> Iterator[None]:
    """Tamper without pause, in a thread."""
    over = threading.Event()

    def rage() -> None:
        while not over.wait(dice.random() * 0.004):
            tamper(spec, dice)

    thread = threading.Thread(target=rage)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.skipif(not os.path.exists("/dev/kvm"), reason="needs /dev/kvm: without it there is no file to keep")
def test_a_daemon_that_is_killed_at_random_finds_its_way_every_time() -> None:
    dice = random.Random()
    with scratch_directory() as scratch:
        bus = PrivateBus(scratch, extra=f'<policy user="{os.geteuid()}"><allow own="{names.BUS_NAME}"/></policy>')
        try:
            with DaemonProcess(scratch, config="[cdi]\ncontested_after = 1000000\n", bus=bus) as daemon:
                daemon.start()
                right = daemon.spec.read_bytes()
                for number in range(KILLS):
                    with storm(daemon.spec, dice):
                        # The storm itself is the time that passes; how long it lasts decides nothing.
                        threading.Event().wait(dice.random() * STORM)
                        daemon.stop(signal.SIGKILL)
                    # The moment in which a kill leaves one is short, and the storm may take it away.
                    daemon.cdi.mkdir(exist_ok=True)
                    (daemon.cdi / f".devward.{NAME}.{number:016x}.tmp").write_bytes(OLD)
                    daemon.start()
                    wait_for(lambda: is_right(daemon.spec, right), what=f"the file is right after kill {number}")
                    assert [name for name in beside(daemon.cdi) if name.startswith(".")] == []
                    state = json.loads((daemon.state / names.STATE_FILE).read_bytes())
                    assert list(state["digests"]) == [str(daemon.spec)]
                assert daemon.events("state-damaged") == []
                assert daemon.events("internal-error") == []
                # The kills have met writes that were under way, or the storm proves nothing.
                assert interrupted(daemon), "no kill met a write"
                assert daemon.stop() == 0
                assert sorted(os.listdir(daemon.state)) == [names.STATE_FILE]
        finally:
            bus.close()


def is_right(spec: Path, data: bytes) -> bool:
    try:
        return spec.read_bytes() == data and stat.S_IMODE(spec.stat().st_mode) == store.FILE_MODE
    except FileNotFoundError:
        return False


def interrupted(daemon: DaemonProcess) -> int:
    """How many repairs have an intent and no outcome."""
    outcomes: dict[str, set[str]] = {}
    for record in daemon.events("spec-repair"):
        outcomes.setdefault(record["DEVWARD_REQUEST_ID"][0], set()).add(record["DEVWARD_OUTCOME"][0])
    # One that failed and was tried again has several.
    return sum(each == {"intent"} for each in outcomes.values())
