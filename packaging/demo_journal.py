"""The journal of packaging/demo: systemd's own journald and journalctl, with files that nobody else sees.

journald runs as an instance for a namespace of its own, and so leaves the kernel's messages and the host's sockets alone. Without the
capabilities for the kernel's audit it can neither read nor switch that.
"""

import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from demo_stage import wait

from devward.ctl.journal import Record, parse

_JOURNALD: Final = "/usr/lib/systemd/systemd-journald"
_NAMESPACE: Final = "devward-demo"
_FILES: Final = Path("/var/log/journal")
_MACHINE_ID: Final = Path("/etc/machine-id")


class DemoJournal:
    """What devward has put on record. The stage (demo_stage.py) has covered the places of the host's own journal."""

    def __init__(self, directory: Path) -> None:
        """Have the sockets in a directory that is to be made."""
        self._directory = directory
        self.socket = directory / "socket"
        self._records: list[Record] = []
        self._stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def start(self, spawn: Callable[..., "subprocess.Popen[bytes]"]) -> None:
        """Start journald, and read what it takes in. SystemExit: it does not start."""
        self._directory.mkdir()
        if not _MACHINE_ID.exists() or len(machine := _MACHINE_ID.read_text().strip()) != 32:
            raise SystemExit("packaging/demo: this machine has no /etc/machine-id, which journald needs; run systemd-machine-id-setup")
        # Where journalctl looks unless it is told of a namespace.
        _FILES.mkdir()
        os.symlink(f"{machine}.{_NAMESPACE}", _FILES / machine)
        without = ["setpriv", "--bounding-set=-audit_control,-audit_read"]
        spawn([*without, _JOURNALD, _NAMESPACE], RUNTIME_DIRECTORY=str(self._directory))
        wait((_FILES / machine / "system.journal").exists, "the journal")
        # An instance for a namespace ends when it is idle for 30 s; while a stream of a service is open, it is not.
        self._stream.connect(str(self._directory / "stdout"))
        follow = ["journalctl", "--quiet", "--follow", "--lines=all", "--all", "--output=json"]
        reader = spawn(follow, stdout=subprocess.PIPE)
        threading.Thread(target=self._read, args=[reader], daemon=True).start()

    def records(self, event: str, outcome: str) -> list[Record]:
        """Return the audit records of a kind and outcome, the oldest first."""
        return [one for one in self._records if (one.text("event"), one.text("outcome")) == (event, outcome)]

    @property
    def count(self) -> int:
        """How many audit records there are."""
        return len(self._records)

    def last_lines(self) -> list[str]:
        """Return the last lines of the journal; none where journald never ran."""
        if not self.socket.exists():
            return []
        command = ["journalctl", "--quiet", "--no-pager", "--lines=20"]
        said = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False).stdout
        return said.decode(errors="replace").splitlines()

    def _read(self, reader: "subprocess.Popen[bytes]") -> None:
        assert reader.stdout is not None
        for line in reader.stdout:
            record = parse(line)
            if record is not None:
                self._records.append(record)
