"""What of reclaiming outlasts a run of the daemon: read and written by a worker, and damage told. Loads its file's format when asked."""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from devward.audit import Audit
from devward.errors import DevwardError
from devward.text import printable
from devward.worker import Worker, WorkerHung

if TYPE_CHECKING:  # a host without NPUs loads nothing of them
    from devward.reclaim.keeping import Keeping
    from devward.reclaim.limits import Breaker, Spent

_log = logging.getLogger(__name__)

#: Seconds that reading or writing may take.
SAVE_SECONDS = 5.0


class Safekeeping:
    """Writes nothing over what is damaged, unless an administrator wants that."""

    def __init__(self, state_directory: str, worker: Worker, audit: Audit) -> None:
        """Touch nothing yet; `worker` does what may hang."""
        self._state_directory = state_directory
        self._worker = worker
        self._audit = audit
        #: Why it is not known what an earlier run of the daemon left; empty: it is.
        self._problem = ""
        #: An administrator wants what is damaged written anew.
        self._may_overwrite = False

    @property
    def is_damaged(self) -> bool:
        """Whether it is not known what an earlier run of the daemon left."""
        return bool(self._problem)

    async def load(self) -> "tuple[Breaker, Spent] | None":
        """Return what an earlier run of the daemon left; None: the file system does not tell for now."""
        before = self._problem
        try:
            breaker, spent, self._problem = await self._worker.run(self._file().load, SAVE_SECONDS)
        except WorkerHung as hung:
            self._problem = printable(str(hung))
            if self._problem != before:
                self._record_damage()
            return None
        if self._problem:
            self._record_damage()
        return breaker, spent

    async def keep(self, breaker: "Breaker", spent: "Spent") -> bool:
        """Keep what must outlast this run of the daemon; False: it could not be kept, or would hide that what was there is damaged."""
        if self._problem and not self._may_overwrite:
            return False
        file = self._file()
        try:
            await self._worker.run(lambda: file.save(breaker, spent), SAVE_SECONDS)
        except (DevwardError, OSError, WorkerHung) as error:
            _log.warning("what must be kept of reclaiming could not be saved: %s", error)
            return False
        return True

    async def write_anew(self, keep: Callable[[], Awaitable[bool]]) -> None:
        """Have `keep` write over what is damaged. Where that fails, or it writes nothing because it read nothing, the problem stays."""
        self._may_overwrite = True
        try:
            if await keep():
                self._problem = ""
        finally:
            self._may_overwrite = False

    def _record_damage(self) -> None:
        self._audit.event("state-damaged", f"What is kept of reclaiming cannot be read, and nothing is reclaimed: {self._problem}")

    def _file(self) -> "Keeping":
        from devward.reclaim.keeping import Keeping

        return Keeping(self._state_directory)
