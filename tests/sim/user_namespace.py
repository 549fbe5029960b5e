"""Real processes in real user namespaces, made by root or by another user."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: A user whom nothing else here has.
OTHER_USER: Final = 65533
#: Who is root in a namespace that root made.
MAPPED_ROOT: Final = 100_000

#: Becomes the root of a namespace of its own, if it is to have one, and waits. To run another program first would cost its rights in it.
_PROGRAM: Final = """
import ctypes, os, sys
library = ctypes.CDLL(None, use_errno=True)
library.prctl(15, sys.argv[1].encode(), 0, 0, 0)
if sys.argv[2] == "root" and library.unshare(0x10000000):
    raise OSError(ctypes.get_errno(), "unshare")
print("made", flush=True)
sys.stdin.readline()
if sys.argv[2] == "root":
    os.setgid(0)
    os.setuid(0)
print("ready", flush=True)
sys.stdin.read()
"""
AS_OTHER_USER: Final = ("setpriv", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups")


@contextlib.contextmanager
def other_process(name: str, *, prefix: tuple[str, ...] = AS_OTHER_USER, maps: bool = False) -> Iterator[int]:
    """Run a process of that name until the end of the block, and yield its id; with `maps` it makes a namespace, and gets its users."""
    command = [*prefix, sys.executable, "-c", _PROGRAM, name, "root" if maps else "nobody"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "made\n"
        if maps:
            for file in ("uid_map", "gid_map"):
                Path(f"/proc/{process.pid}/{file}").write_text(f"0 {MAPPED_ROOT} 1000\n")
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        try:
            yield process.pid
        finally:
            process.stdin.close()
            process.wait()


def in_roots_namespace(name: str) -> contextlib.AbstractContextManager[int]:
    """Run a process as the root of a user namespace that root made for it, as a container's is."""
    return other_process(name, prefix=(), maps=True)


def in_users_namespace(name: str) -> contextlib.AbstractContextManager[int]:
    """Run a process as the root of a user namespace that another user made."""
    return other_process(name, prefix=(*AS_OTHER_USER, "unshare", "--user", "--map-root-user"))


def in_nested_namespace(name: str) -> contextlib.AbstractContextManager[int]:
    """Run a process in a user namespace of another user, who made a second one in it."""
    prefix = (*AS_OTHER_USER, "unshare", "--user", "--map-root-user", "unshare", "--user", "--map-root-user")
    return other_process(name, prefix=prefix)
