"""What container engines make of what our file says, as of the latest scan of the directories that they read."""

import os
from collections.abc import Collection, Sequence

from devward.cdi.owned import Standing
from devward.cdi.resolve import Resolution, resolve, shadowed_by
from devward.cdi.scan import Scanner
from devward.config import CdiConfig
from devward.model import Finding, SpecState
from devward.reasons import Reason
from devward.worker import Worker, WorkerHung

#: Seconds that a scan may take.
SCAN_DEADLINE = 5.0

#: Why engines do not use a file that is in order by itself, and the state that this gives it.
_OVERLAYS = {
    Reason.CDI_CONFLICT: SpecState.CONFLICT,
    Reason.CDI_SHADOWED: SpecState.SHADOWED,
    Reason.CDI_ENGINE_BLOCKED: SpecState.SHADOWED,
    Reason.CDI_DIRECTORY_UNREADABLE: SpecState.SHADOWED,
    Reason.CDI_DIRECTORY_NOT_READ: SpecState.SHADOWED,
    Reason.CDI_UNCERTAIN: SpecState.SHADOWED,
}


class Engines:
    """The view of the engines on the directory of the owned files. Devices are given by their qualified names."""

    def __init__(self, own_paths: Collection[str], config: CdiConfig, worker: Worker) -> None:
        """Nothing is known before the first scan."""
        self._directory = config.directory
        self._engine_dirs = config.engine_dirs
        self._worker = worker
        self._scanner = Scanner(own_paths=own_paths)
        self._resolution: Resolution | None = None
        #: The latest scan that succeeded: a rival that was seen is not gone because nothing can be seen now.
        self._last: Resolution | None = None
        self._findings: tuple[Finding, ...] = ()
        self._waiting = False
        self._problem = ""

    @property
    def waiting(self) -> bool:
        """Whether the latest scan left files to a later one, which should come soon."""
        return self._resolution is not None and self._waiting

    async def scan(self) -> bool:
        """Look at the directories; False if that cannot be done now."""
        unread = () if self._directory in self._engine_dirs else (self._directory,)
        try:
            self._resolution, self._findings, self._waiting = await self._worker.run(lambda: self._look(unread), SCAN_DEADLINE)
        except WorkerHung as error:
            self._resolution = None
            self._problem = f"the directories that engines read cannot be scanned: {error}"
            return False
        self._last = self._resolution
        self._problem = ""
        return True

    def _look(self, unread: tuple[str, ...]) -> tuple[Resolution, tuple[Finding, ...], bool]:
        """Scan and resolve, in the worker's thread: foreign files may define tens of thousands of devices."""
        scanned = self._scanner.scan((*unread, *self._engine_dirs))
        resolution = resolve(scanned, own_directory=self._directory, unread=unread, trusted_uid=os.geteuid())
        return resolution, resolution.findings(), self._scanner.waiting

    def rivals(self, own_path: str, device: str) -> tuple[str, ...]:
        """Return the files of our directory beside `own_path` that define a device, as far as they were ever seen."""
        return self._last.rivals(self._directory, own_path, device) if self._last is not None else ()

    def effective(self, own_path: str, device: str) -> tuple[bool, Reason, str]:
        """Tell whether engines would use the definition of a device in our file at `own_path`, and if not why."""
        resolution = self._resolution
        if resolution is None:
            return False, Reason.CDI_TIMEOUT, self._problem
        rivals = self.rivals(own_path, device)
        if rivals:
            return False, Reason.CDI_CONFLICT, f"also in {', '.join(rivals)}"
        if resolution.engines_blocked is not None:
            return False, Reason.CDI_ENGINE_BLOCKED, resolution.engines_blocked
        found = resolution.effective(device)
        if found.file == own_path:
            return (True, Reason.OK, "") if found.certain else (False, Reason.CDI_UNCERTAIN, "")
        if found.file is not None:
            return False, Reason.CDI_SHADOWED, shadowed_by(found.file)
        others = [path for path in found.contenders if path != own_path]
        if others:
            return False, Reason.CDI_CONFLICT, f"also in {', '.join(others)}"
        if any(directory.path == self._directory for directory in resolution.not_reached):
            return False, Reason.CDI_DIRECTORY_UNREADABLE, resolution.not_reached[0].path
        if resolution.unread:
            return False, Reason.CDI_DIRECTORY_NOT_READ, self._directory
        return False, Reason.CDI_NOT_PUBLISHED, ""

    def overlay(self, own_path: str, devices: Sequence[str], left_out: Sequence[str]) -> Standing | None:
        """Return what keeps engines from using what our file says, None if nothing does; `left_out` for the sake of rivals."""
        rivals = sorted({path for device in left_out for path in self.rivals(own_path, device)})
        if rivals:
            return Standing(SpecState.CONFLICT, Reason.CDI_CONFLICT, f"left out because of {', '.join(rivals)}")
        for device in devices:
            usable, reason, detail = self.effective(own_path, device)
            if not usable and reason in _OVERLAYS:
                return Standing(_OVERLAYS[reason], reason, detail)
        return None

    def findings(self) -> tuple[Finding, ...]:
        """Return what the latest scan found, and what is wrong with the set-up."""
        found = list(self._findings) if self._resolution is not None else []
        if self._problem:
            found.append(Finding(Reason.CDI_TIMEOUT, "engine_dirs", self._problem))
        if self._resolution is not None and self._resolution.unread:
            found.append(Finding(Reason.CDI_DIRECTORY_NOT_READ, self._directory, f"{self._directory} is not in cdi.engine_dirs"))
        return tuple(found)
