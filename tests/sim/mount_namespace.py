"""Parts of tests that mount things or make device nodes, each in a process with a mount namespace of its own.

Nothing of it reaches the host, and nothing is left behind: the mounts end with the process.
"""

import os
import subprocess
import sys
from collections.abc import Callable

_PROGRAM = "import importlib, sys; getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(*sys.argv[3:])"
#: Seconds; only a defect takes that long.
DEADLINE = 120


def run_in_mount_namespace(part: Callable[..., None], *arguments: object, capabilities: bool = True) -> None:
    """Run a function of a test module in its own mount namespace, as root; what it raises fails the test. Arguments become text.

    Without `capabilities` it is a root that permissions bind.
    """
    command = ["unshare", "--mount", "--propagation", "private"]
    if not capabilities:
        command += ["setpriv", "--bounding-set=-all"]
    command += [sys.executable, "-W", "error", "-c", _PROGRAM, part.__module__, part.__qualname__, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=DEADLINE)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def mount(*arguments: str) -> None:
    """Run mount(8)."""
    subprocess.run(["mount", *arguments], check=True)


def umount(path: str) -> None:
    """Run umount(8)."""
    subprocess.run(["umount", path], check=True)
