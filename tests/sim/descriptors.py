"""The file descriptors of this process: which are open, and having none left."""

import contextlib
import errno
import gc
import os
import resource
from collections.abc import Iterator

#: Low, so that filling the table is quick; descriptors above it stay open and usable (getrlimit(2)).
_LIMIT = 256


def open_descriptors() -> frozenset[str]:
    """Return the numbers of those that are open, and of the one that this look takes: the lowest that is free."""
    return frozenset(os.listdir("/proc/self/fd"))


def opened_since(before: frozenset[str]) -> frozenset[str]:
    """Return those that have been opened since a look and are open still.

    Some may have gone meanwhile: of other tests, whose garbage was collected, or whose threads have ended.
    """
    return open_descriptors() - before


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Leave exactly `count` descriptors to be had."""
    # Or some of other tests might go meanwhile, and there were more.
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_LIMIT, hard), hard))
    try:
        try:
            while True:
                fillers.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
        for _ in range(count):
            os.close(fillers.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
