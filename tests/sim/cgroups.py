"""Control groups of version 1 for tests: one that makes its processes outlive SIGKILL, and one that denies devices. They need root.

A process that hangs in a driver cannot be made at will. One that is frozen by a freezer group of version 1 behaves the same to those
who wait for it: SIGKILL stays pending until it is thawed. (A stopped process dies at once, and so does one in a frozen group of version 2.)
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from sim.held_time import PATIENCE


def _mounted(controller: str) -> Path | None:
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            kind, _, options = after.split()
            if kind == "cgroup" and controller in options.split(","):
                return Path(before.split()[4])
    return None


class Group:
    """A group of one controller, removed with everything in it at the end."""

    controller: str

    def __init__(self, name: str) -> None:
        self._name = f"devward-test-{os.getpid()}-{name}"
        self._own_mount: Path | None = None
        self.path = Path()

    def __enter__(self) -> Self:
        root = _mounted(self.controller)
        if root is None:
            # A host that runs on version 2 alone; these two controllers have no counterpart there and are free.
            root = self._own_mount = Path(tempfile.mkdtemp(prefix="devward-cgroup-"))
            subprocess.run(["mount", "-t", "cgroup", "-o", self.controller, "devward-test", str(root)], check=True)
        self.path = root / self._name
        self.path.mkdir()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                self.path.rmdir()
            except OSError:
                assert time.monotonic() < end, f"{self.path} does not become empty"
                time.sleep(0.005)
            else:
                break
        if self._own_mount is not None:
            subprocess.run(["umount", str(self._own_mount)], check=True)
            self._own_mount.rmdir()

    def add(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(f"{pid}\n", encoding="ascii")

    def pids(self) -> list[int]:
        return [int(line) for line in (self.path / "cgroup.procs").read_text(encoding="ascii").split()]


class FreezerGroup(Group):
    """A group that freezes its processes."""

    controller = "freezer"

    def freeze(self, pid: int) -> None:
        """Freeze one process; returns when it is."""
        self.add(pid)
        self._set("FROZEN")

    def thaw(self) -> None:
        self._set("THAWED")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.thaw()
        super().__exit__(kind, error, trace)

    def _set(self, state: str) -> None:
        file = self.path / "freezer.state"
        end = time.monotonic() + PATIENCE
        file.write_text(state, encoding="ascii")
        while file.read_text(encoding="ascii").strip() != state:
            assert time.monotonic() < end, f"{self.path} does not become {state}"
            time.sleep(0.002)
            file.write_text(state, encoding="ascii")


class DevicesGroup(Group):
    """A group that denies every device but those allowed."""

    controller = "devices"

    def __enter__(self) -> Self:
        super().__enter__()
        (self.path / "devices.deny").write_text("a", encoding="ascii")
        return self

    def allow(self, rule: str) -> None:
        (self.path / "devices.allow").write_text(rule, encoding="ascii")


def is_alive(pid: int) -> bool:
    """Tell whether a process is there and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


def has_pending_kill(pid: int) -> bool:
    """Tell whether SIGKILL was sent to a process and has not taken effect."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask & 1 << signal.SIGKILL - 1 for mask in pending)
