"""Reads the kubelet's checkpoint: bounded, without following a link or blocking, and once more when it was caught in a bad moment.

The kubelet writes a temporary file and renames it (pkg/kubelet/util/store/filestore.go in kubernetes/kubernetes), so a bad read is rare and
tells of a full disk, a crash or somebody else. What is bad twice is unknown. The file is the kubelet's: it is never written, and nothing is
made beside it.
"""

import errno
import os
import time
from collections.abc import Callable
from typing import Final

from devward.cluster.checkpoint import SIZE_LIMIT, CheckpointError, CheckpointReading, Defect, parse_checkpoint
from devward.cluster.evidence import Doubt
from devward.cluster.files import read_file, version
from devward.cluster.kubelet_signs import CHECKPOINT

FILE_NAME: Final = CHECKPOINT
#: Seconds between a bad read and the second one.
RETRY_AFTER: Final = 1.0
#: A file younger than this may be written again within one tick of its file system's clock, and look the same.
_SETTLED_NS: Final = 2_000_000_000

_BY_ERROR: Final = {
    errno.ENOENT: Defect.MISSING,
    errno.EFBIG: Defect.TOO_LARGE,
    errno.EINVAL: Defect.NOT_A_FILE,
    errno.ELOOP: Defect.NOT_A_FILE,
    errno.EAGAIN: Defect.TORN,
}
#: What a second look does not change, or what the kubelet writes like that.
_LASTING: Final = frozenset({Defect.MISSING, Defect.UNREADABLE, Defect.NOT_A_FILE, Defect.TOO_LARGE, Defect.NOT_REGISTERED})

_Version = tuple[int, int, int, int, int]


class CheckpointReader:
    """Reads the checkpoint, and remembers what it said while it does not change. For one thread at a time, and not the event loop's."""

    def __init__(
        self,
        *,
        pause: Callable[[], None] = lambda: time.sleep(RETRY_AFTER),
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`pause` waits between two reads; `now_ns` returns nanoseconds of CLOCK_REALTIME, the clock of file times."""
        self._pause = pause
        self._now_ns = now_ns
        self._known: tuple[_Version, CheckpointReading] | None = None

    def read(self, directory: str) -> CheckpointReading:
        """Return what the checkpoint in the kubelet's directory of device plugins says. Raises nothing for what it finds."""
        reading, is_remembered = self._look(directory)
        # What was bad the last time, and did not change since, needs no third look.
        if is_remembered or reading.defects <= _LASTING:
            return reading
        self._pause()
        return self._look(directory)[0]

    def _look(self, directory: str) -> tuple[CheckpointReading, bool]:
        """Return what the file says now, and whether that is remembered."""
        path = f"{directory}/{FILE_NAME}"
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                facts = os.stat(FILE_NAME, dir_fd=descriptor, follow_symlinks=False)
                if self._known is not None and self._known[0] == version(facts):
                    return self._known[1], True
                data, facts = read_file(FILE_NAME, SIZE_LIMIT, directory=descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            code = error.errno or 0
            return CheckpointReading(None, (Doubt(_BY_ERROR.get(code, Defect.UNREADABLE), path, code),)), False
        reading = _reading(data, path, facts.st_mtime_ns)
        is_settled = self._now_ns() - max(facts.st_mtime_ns, facts.st_ctime_ns) >= _SETTLED_NS
        self._known = (version(facts), reading) if is_settled else None
        return reading, False


def _reading(data: bytes, path: str, written_ns: int) -> CheckpointReading:
    try:
        checkpoint = parse_checkpoint(data)
    except CheckpointError as error:
        return CheckpointReading(None, (Doubt(error.defect, f"{path} ({error.detail})" if error.detail else path),), written_ns)
    return CheckpointReading(checkpoint, tuple(Doubt(defect, path) for defect in checkpoint.defects), written_ns)
