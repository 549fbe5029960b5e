"""Where a path leads for a process that has another root directory, by its own links: seen through /proc/PID/root, they would lead out."""

import errno
import os
import stat
from typing import Final

#: As many as the kernel follows.
_MAX_LINKS: Final = 40


def resolve(root: str, path: str) -> str:
    """Return an absolute path below `root` without links, dots and doubled slashes, as a process with that root directory would find it.

    The result begins with a slash and is to be put behind `root`. OSError: something on the way is missing, cannot be read, or is a circle
    of links.
    """
    left = path.split("/")[::-1]
    done: list[str] = []
    links = 0
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del done[-1:]
            continue
        here = "/".join((root.rstrip("/"), *done, part))
        if not stat.S_ISLNK(os.lstat(here).st_mode):
            done.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(here)
        if target.startswith("/"):
            done.clear()
        left += target.split("/")[::-1]
    return "/" + "/".join(done)
