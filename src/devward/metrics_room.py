"""Keeps the metrics file while it is on, and sees to it that none is left once it is off.

Everything that may hang is done by a worker, and nothing in the daemon waits for it: a file system that does not answer costs the metrics
and nothing else.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from devward import metrics_file, names
from devward.breakages import Breakages
from devward.config import MetricsConfig
from devward.metrics import Measures, render
from devward.model import Finding
from devward.reasons import Reason
from devward.text import printable
from devward.worker import Worker, WorkerHung

#: Seconds that the file system may take.
WRITE_SECONDS: Final = 5.0


class MetricsRoom:
    """Asking it is free, and so is configuring it."""

    def __init__(self, config: MetricsConfig, *, on_change: Callable[[], None]) -> None:
        """Touch nothing yet; `on_change` is called when the findings change."""
        self._config = config
        self._on_change = on_change
        self._worker = Worker("metrics", self._wake)
        self._woken = asyncio.Event()
        #: Directories with a file that is no longer kept.
        self._left: set[str] = set()
        #: By the path of the file, why it could not be written or removed.
        self._problems: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        self._breakages = Breakages()

    def start(self, measure: Callable[[], Measures], *, was_on: bool) -> None:
        """Write from now on, if it is on; `was_on` says that an earlier run of the daemon may have left a file where none is wanted now."""
        if was_on and not self._config.enabled:
            self._left.add(self._config.directory)
        self._task = asyncio.get_running_loop().create_task(self._run(measure), name="metrics")

    def configure(self, config: MetricsConfig) -> None:
        """Apply other settings, soon."""
        before, self._config = self._config, config
        if before.enabled:
            self._left.add(before.directory)
        if config.enabled:
            self._left.discard(config.directory)
        self._wake()

    def findings(self) -> Sequence[Finding]:
        """Return what an administrator should know."""
        return [Finding(Reason.METRICS_UNWRITABLE, path, text) for path, text in self._problems.items()]

    async def close(self) -> None:
        """Write no more. The file stays: by its age it tells that devward does not run."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._worker.close()

    def _wake(self) -> None:
        self._woken.set()

    async def _run(self, measure: Callable[[], Measures]) -> None:
        while True:
            self._woken.clear()
            try:
                problems = await self._pass(measure)
                self._breakages.sum_up(asyncio.get_running_loop().time())
            except Exception as error:  # noqa: BLE001 # the edge: whatever is wrong with the metrics is reported, and nothing else suffers
                self._breakages.note("the metrics could not be taken or written", error, asyncio.get_running_loop().time())
                problems = {_path(self._config.directory): "Metrics fail for a defect of devward, of which the journal has more."}
            if problems != self._problems:
                self._problems = problems
                self._on_change()
            # While it is off there is nothing to do but to try again what failed.
            is_waiting = self._config.enabled or self._left
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.interval if is_waiting else None):
                    await self._woken.wait()

    async def _pass(self, measure: Callable[[], Measures]) -> dict[str, str]:
        """Do what is to be done, and return what could not be, by path."""
        problems: dict[str, str] = {}
        for directory in sorted(self._left):
            if problem := await self._done(partial(metrics_file.remove, directory)):
                problems[_path(directory)] = f"The metrics file is no longer kept and cannot be removed: {problem}."
            else:
                self._left.discard(directory)
        if self._config.enabled:
            directory = self._config.directory
            if problem := await self._done(partial(metrics_file.write, directory, render(measure()))):
                problems[_path(directory)] = f"The metrics file cannot be written: {problem}."
        return problems

    async def _done(self, call: Callable[[], object]) -> str:
        """Have the worker do it; return what is against it, empty where it is done."""
        try:
            await self._worker.run(call, WRITE_SECONDS)
        except WorkerHung:
            # Always in the same words, while it lasts.
            return "the file system does not answer"
        except OSError as error:
            return printable(error.strerror or str(error))
        return ""


def _path(directory: str) -> str:
    return os.path.join(directory, names.METRICS_FILE)
