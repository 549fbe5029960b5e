"""Which boot of this host it is."""

import errno
import os
import re
from typing import Final

from devward.cluster.files import read_all
from devward.cluster.rooted import resolve

#: random(4): the kernel draws it once a boot.
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_FORM: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LIMIT: Final = 256


def read_boot_id(root: str = "/") -> str:
    """Return the id of this boot. OSError: it cannot be read, or what stands there has not the form of one."""
    path = f"{root.rstrip('/')}{resolve(root, BOOT_ID)}"
    text = read_all(path, _LIMIT).decode("ascii", "replace").strip()
    # All digits alike: a file that somebody filled in.
    if _FORM.fullmatch(text) is None or len(set(text) - {"-"}) <= 1:
        raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG), path)
    return text
