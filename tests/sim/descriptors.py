"""A process that is out of file descriptors, and is not afterwards."""

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

#: Low, so that filling the table is quick; descriptors above it stay open and usable (getrlimit(2)).
_LIMIT = 256


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Leave exactly `count` descriptors to be had."""
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
