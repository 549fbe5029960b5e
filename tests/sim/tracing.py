"""Interpreters that run under strace, to watch the probe child, to hold it at a system call, or to have the kernel fail it.

`strace -D` keeps the traced process the direct child of whoever started it, so that pids, signals and exits are as in production.
"""

import contextlib
import os
import re
import signal
import sys
from pathlib import Path


class TracedPython:
    """A stand-in for the interpreter: the same one under strace with these options."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.log = directory / "strace.log"
        self.path = script(directory / "traced-python", f'exec strace -D -qq -o {self.log} {" ".join(options)} {sys.executable} "$@"')

    def lines(self) -> list[str]:
        """The system calls seen so far."""
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()


def kill_held(pid: int) -> None:
    """Kill a process that strace delays: strace would keep it stopped in its exit, so its tracer goes as well."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        tracer = int(re.findall(r"^TracerPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"), re.MULTILINE)[0])
        os.kill(pid, signal.SIGKILL)
        if tracer:
            os.kill(tracer, signal.SIGKILL)


def script(path: Path, body: str, interpreter: str = "/bin/sh") -> str:
    """Write an executable script and return its path."""
    path.write_text(f"#!{interpreter}\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)
