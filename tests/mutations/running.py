"""Deletes one rule at a time in a copy of the tree, and asks tests and the simulated world whether they notice."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mutations.rule import RottenError, Rule
from mutations.table import asked_about

#: Seconds that one file of tests, and the world, may take; a machine that is busy takes many times what they need.
FILE_SECONDS: Final = 300.0
WORLD_SECONDS: Final = 900.0
#: Events of a history.
_STEPS: Final = 120
_BROKEN: Final = re.compile(r"^BROKEN seed ([0-9]+): (.*)$", re.MULTILINE)
_LEFT_OUT: Final = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", "*.egg-info", ".hypothesis")
#: Exit status of pytest: all passed; some failed.
_PASSED: Final = 0
_FAILED: Final = 1


class Fate(StrEnum):
    """What became of a mutation."""

    CAUGHT = "caught"
    UNCAUGHT = "UNCAUGHT"
    #: Whether it is noticed cannot be told.
    WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one rule."""

    rule: Rule
    fate: Fate
    #: The test or the seed that noticed, else why that is not known.
    by: str = ""


class StoppedError(Exception):
    """The whole run is being ended."""


class Tree:
    """A copy of the source tree, in which one rule at a time is missing."""

    def __init__(self, source: str, place: str, children: "Children") -> None:
        """Copy. OSError."""
        self._root = place
        self._children = children
        self._writes = 0
        shutil.copytree(source, place, symlinks=True, ignore=_LEFT_OUT)

    def judge(self, rule: Rule, seeds: int) -> Verdict:
        """Delete a rule, ask, and put it back."""
        path = os.path.join(self._root, rule.file)
        try:
            with open(path, encoding="utf-8") as file:
                before = file.read()
            self._write(path, rule.delete(before))
        except (OSError, RottenError) as error:
            return Verdict(rule, Fate.WRONG, str(error))
        try:
            return self._asked(rule, seeds)
        finally:
            self._write(path, before)

    def passes(self, tests: Iterable[str]) -> str:
        """Return which of these tests fails where no rule is missing; empty: none does."""
        status, failures, text = self._pytest(list(tests))
        if status == _PASSED:
            return ""
        return failures[0][1] if failures else text[-2000:]

    def _write(self, path: str, text: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        # Python takes a module for unchanged by the whole second and the size of its file.
        self._writes += 1
        stamp = 1_000_000_000 + self._writes
        os.utime(path, (stamp, stamp))

    def _asked(self, rule: Rule, seeds: int) -> Verdict:
        for name in asked_about(rule):
            status, failures, text = self._pytest([f"tests/unit/{name}"])
            if status == _PASSED:
                continue
            what, node = failures[0] if failures else ("", "")
            if status != _FAILED or what != "failed":
                return Verdict(rule, Fate.WRONG, f"{name}: pytest ends with {status}: {what} {node} {text[-500:]}".strip())
            return Verdict(rule, Fate.CAUGHT, node.removeprefix("tests/unit/"))
        return self._asked_world(rule, seeds)

    def _asked_world(self, rule: Rule, seeds: int) -> Verdict:
        missed = Verdict(rule, Fate.UNCAUGHT, "" if os.geteuid() == 0 else "tests that need root were skipped")
        if not seeds or not rule.file.endswith(".py"):
            return missed
        command = ["-m", "sim.world_run", "--seeds", f"0:{seeds}", "--steps", str(_STEPS), "--stories", "0"]
        status, text = self._children.run([sys.executable, *command], self._root, self._environment(), WORLD_SECONDS)
        found = _BROKEN.search(text)
        if found:
            return Verdict(rule, Fate.CAUGHT, f"world seed {found[1]}: {found[2]}")
        if "histories of" not in text:
            return Verdict(rule, Fate.WRONG, f"the world ends with {status}: {text[-500:]}")
        return missed

    def _pytest(self, tests: list[str]) -> tuple[int, list[tuple[str, str]], str]:
        """Return the exit status of pytest, which tests failed, and what it printed."""
        report = f"{self._root}.report"
        with contextlib.suppress(FileNotFoundError):
            os.remove(report)
        options = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "mutations.plugin", f"--basetemp={self._root}.tmp"]
        status, text = self._children.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            self._root,
            self._environment() | {"DEVWARD_MUTATE_REPORT": report},
            FILE_SECONDS,
        )
        failures: list[tuple[str, str]] = []
        with contextlib.suppress(FileNotFoundError), open(report, encoding="utf-8") as file:
            failures = [(what, node) for what, node in map(json.loads, file)]
        return status, failures, text

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join(os.path.join(self._root, part) for part in ("src", "tests"))
        return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}


class Children:
    """The processes that run."""

    def __init__(self) -> None:
        """None yet."""
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._is_stopping = False

    def run(self, command: list[str], directory: str, environment: dict[str, str], seconds: float) -> tuple[int, str]:
        """Run a command in a session of its own; return its exit status, negative where a signal ended it, and what it printed.

        StoppedError: the whole run is being ended.
        """
        with self._lock:
            if self._is_stopping:
                raise StoppedError
            child = subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._running.add(child)
        try:
            text, _ = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _kill(child)
            text = f"{child.communicate()[0]}\nended after {seconds:g} s"
        finally:
            # What a test left running, too.
            _kill(child)
            with self._lock:
                self._running.discard(child)
        if self._is_stopping:
            raise StoppedError
        return child.returncode, text

    def stop(self) -> None:
        """End all, and let none begin."""
        with self._lock:
            self._is_stopping = True
            for child in self._running:
                _kill(child)


def _kill(child: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def judge_all(rules: list[Rule], source: str, scratch: str, jobs: int, seeds: int, tell: Callable[[Verdict], None]) -> Iterator[Verdict]:
    """Judge every rule with so many copies of the tree in the directory `scratch`, and yield the verdicts in the table's order.

    `tell` is told of each as it comes. Each test that noticed one must pass where nothing is missing, else it noticed something else.
    OSError: the tree cannot be copied.
    """
    children = Children()
    waiting = list(reversed(list(enumerate(rules))))
    found: dict[int, Verdict] = {}
    errors: list[BaseException] = []
    lock = threading.Lock()

    def work(place: str) -> None:
        try:
            tree = Tree(source, place, children)
            while True:
                with lock:
                    if not waiting:
                        return
                    number, rule = waiting.pop()
                verdict = tree.judge(rule, seeds)
                with lock:
                    found[number] = verdict
                    tell(verdict)
        except StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001
            # The edge of a thread: the one that started it raises this.
            errors.append(error)
            children.stop()

    threads = [threading.Thread(target=work, args=(os.path.join(scratch, f"tree{number}"),)) for number in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        children.stop()
        for thread in threads:
            thread.join()
        raise
    if errors:
        raise errors[0]
    noticed = sorted({f"tests/unit/{one.by}" for one in found.values() if one.fate is Fate.CAUGHT and "::" in one.by})
    failing = Tree(source, os.path.join(scratch, "whole"), children).passes(noticed) if noticed else ""
    for number in range(len(rules)):
        one = found[number]
        if failing and f"tests/unit/{one.by}" == failing:
            one = Verdict(one.rule, Fate.WRONG, f"{one.by} fails without this, too")
        yield one
    if failing and failing not in noticed:
        raise RuntimeError(f"the tests that noticed something do not run where nothing is missing: {failing}")
