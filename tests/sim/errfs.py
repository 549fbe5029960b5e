"""A file system for tests that fails on demand: the control side.

`ErrFs(backing, mountpoint)` mounts a FUSE file system that passes every operation through to `backing`, until it is told to
answer one with an error, late, never, or with a short write:

    with ErrFs(backing, mountpoint) as errfs:
        errfs.set({"fsync": "EIO", "rename": {"errno": "EDQUOT", "match": "*.tmp", "times": 1}, "write": {"short": 3}})

A rule is an errno name or an object; an operation takes one rule or a list of them, of which the first that matches applies:
    errno   name of the error that the operation ends with
    short   bytes that a write takes at most
    delay   seconds to wait first
    hang    true: no answer until the rules change; then the new ones judge the operation afresh
    match   shell pattern for the path below the mount, or for its last element; a rename, link or create matches by the name it acts on
    times   how often the rule applies; after that it is spent

Data and attributes are not cached, so every call of a program is an operation here. The kernel remembers ENOSYS as an answer to some
operations (fsync, flush, fsyncdir, the xattr family) and does not ask again. It lets nobody who waits for an answer be killed either, as
with a disk that died; but the exit of the context ends the server, and whoever waits gets ECONNABORTED or ENOTCONN. The server ends, and
unmounts, also when this process dies.

The server is `errfs_server.py` with `errfs_rules.py`, run with Debian's interpreter, where python3-pyfuse3 is; this side needs the
standard library only.
"""

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sim.errfs_rules import RuleSource, parse_rules

INTERPRETER: Final = "/usr/bin/python3"
SERVER: Final = Path(__file__).with_name("errfs_server.py")
#: Longest wait in seconds for the server to mount or to end, and for an operation to arrive.
DEADLINE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Call:
    """One operation that reached the file system."""

    operation: str
    #: Relative to the mount, empty for its root.
    path: str
    #: The fault that was injected: an errno name, `short`, `delay`, `hang`, or empty.
    fault: str


class ErrFs:
    """The mounted file system; use it as a context manager."""

    def __init__(self, backing: str | os.PathLike[str], mountpoint: str | os.PathLike[str]) -> None:
        self.backing = os.path.realpath(backing)
        self.mountpoint = os.path.realpath(mountpoint)
        self._server: subprocess.Popen[bytes] | None = None
        self._room = ""
        self._settings = 0

    def __enter__(self) -> Self:
        self._room = tempfile.mkdtemp(prefix="errfs.")
        self.clear()
        Path(self._calls_file).touch()
        with open(self._errors_file, "wb") as errors:
            self._server = subprocess.Popen(
                [INTERPRETER, "-I", "-B", str(SERVER), self.backing, self.mountpoint, self._control_file, self._calls_file],
                stdin=subprocess.PIPE,  # its end tells the server to unmount and end, even when this process is killed
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"} | {k: v for k, v in os.environ.items() if k.startswith("DEVWARD_")},
            )
        assert self._server.stdout is not None
        readable, _, _ = select.select([self._server.stdout], [], [], DEADLINE)
        if not readable or self._server.stdout.readline() != b"mounted\n":
            text = Path(self._errors_file).read_text(errors="replace")
            self._close()
            raise RuntimeError(f"the test file system could not be mounted on {self.mountpoint}: {text}")
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self._close()

    @property
    def _control_file(self) -> str:
        return f"{self._room}/control.json"

    @property
    def _calls_file(self) -> str:
        return f"{self._room}/calls"

    @property
    def _errors_file(self) -> str:
        return f"{self._room}/errors"

    @property
    def server_pid(self) -> int:
        """Process id of the server, for a test that wants it dead."""
        assert self._server is not None
        return self._server.pid

    def set(self, rules: Mapping[str, RuleSource | Sequence[RuleSource]]) -> None:
        """Replace all rules; in force for the next operation and for those that hang. ValueError or TypeError for an unknown name."""
        parse_rules(rules)
        new = self._control_file + ".new"
        Path(new).write_text(json.dumps(rules), encoding="ascii")
        self._settings += 1
        os.utime(new, ns=(self._settings, self._settings))  # the clock is too coarse to tell two settings apart
        os.rename(new, self._control_file)

    def clear(self) -> None:
        """Pass everything through again."""
        self.set({})

    def calls(self, *operations: str) -> list[Call]:
        """Operations that arrived since the mount, in order; only the named ones if any is named."""
        lines = Path(self._calls_file).read_text(encoding="utf-8").splitlines()
        calls = [Call(*json.loads(line)) for line in lines]
        return [call for call in calls if not operations or call.operation in operations]

    def wait_for(self, operation: str, count: int = 1, fault: str | None = None) -> Call:
        """Wait until `count` such operations have arrived and return the last of them; TimeoutError after DEADLINE seconds."""
        end = time.monotonic() + DEADLINE
        while True:
            calls = [call for call in self.calls(operation) if fault is None or call.fault == fault]
            if len(calls) >= count:
                return calls[count - 1]
            if time.monotonic() > end:
                raise TimeoutError(f"{len(calls)} of {count} {operation} operations arrived")
            time.sleep(0.005)

    def _close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            assert server.stdin is not None
            assert server.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                server.stdin.close()
            try:
                server.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            server.stdout.close()
        if self._is_mounted():  # the server was killed, or could not unmount
            lazily = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
            subprocess.run([*lazily, self.mountpoint], check=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        shutil.rmtree(self._room)

    def _is_mounted(self) -> bool:
        """Whether one of ours is mounted there, alive or not; a dead one answers no stat, hence the mount table."""
        with open("/proc/self/mountinfo", "rb") as table:
            for line in table:
                fields = line.split(b" ")
                if fields[4].decode("unicode_escape") == self.mountpoint and b" - fuse.errfs errfs " in line:
                    return True
        return False
