"""What devwardd tells the service manager, by sd_notify(3), and the watchdog's period. The only importer of sdnotify.

sdnotify encodes in Latin-1, blocks when the manager does not read, and swallows every error. So what goes through it is ASCII without
control characters (a newline would forge an assignment), the socket does not block, and what was not taken is kept and sent
again with the next message: a lost READY would end in a start timeout.
"""

import contextlib
import os
import unicodedata
import warnings
from collections.abc import Callable, MutableMapping
from typing import Final

import sdnotify

from devward.text import printable

#: systemd reads at most 4096 bytes of a message; a status is one line for a person.
_STATUS_LIMIT: Final = 400
_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """The line to the service manager; without one every method does nothing. No method blocks or raises."""

    def __init__(self, environment: MutableMapping[str, str], *, monotonic: Callable[[], float]) -> None:
        """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID and remove them, so that no child speaks for the daemon."""
        address, period, pid = (environment.pop(name, "") for name in _VARIABLES)
        self._monotonic = monotonic
        self._client = _connect(address) if address else None
        self._interval = _interval(period, pid)
        self._status = ""
        #: The latest state and status that the manager has not taken yet.
        self._unsent_state = ""
        self._unsent_status = ""

    @property
    def watchdog_interval(self) -> float | None:
        """Seconds between two pulses, half of what the manager allows; None: it wants none."""
        return self._interval

    @property
    def unsent(self) -> bool:
        """Whether a state or status waits, since the manager did not take it; the next call of any method sends it again."""
        return self._client is not None and bool(self._unsent_state or self._unsent_status)

    def ready(self, status: str) -> None:
        """The first pass, or a reload, is done."""
        self._unsent_state = "READY=1"
        self.status(status)

    def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        # Type=notify-reload wants the time; Type=notify ignores it.
        self._unsent_state = f"RELOADING=1\nMONOTONIC_USEC={int(self._monotonic() * 1_000_000)}"
        self._send()

    def stopping(self, text: str) -> None:
        """The daemon begins to stop."""
        self._unsent_state = "STOPPING=1"
        self.status(text)

    def status(self, text: str) -> None:
        """Show one line in `systemctl status`; the same line is not sent twice."""
        line = ascii_line(text, _STATUS_LIMIT)
        if line != self._status:
            self._status = self._unsent_status = line
        self._send()

    def watchdog(self) -> None:
        """The daemon is alive."""
        self._send("WATCHDOG=1")

    def hold_watchdog(self) -> None:
        """Until `resume_watchdog` the manager must not end this process for want of pulses; nothing where it wants none."""
        if self._interval is not None:
            self._send("WATCHDOG_USEC=0")

    def resume_watchdog(self) -> None:
        """Pulses count again, with the period of the start."""
        if self._interval is not None:
            self._send(f"WATCHDOG_USEC={round(self._interval * 2_000_000)}", "WATCHDOG=1")

    def close(self) -> None:
        """Close the socket."""
        if self._client is not None and self._client.socket is not None:
            self._client.socket.close()
        self._client = None

    def _send(self, *more: str) -> None:
        """Send what is new; keep state and status if it is not taken. A pulse that is lost has a second chance in its period."""
        status = [f"STATUS={self._unsent_status}"] if self._unsent_status else []
        state = [self._unsent_state] if self._unsent_state else []
        lines = [*state, *status, *more]
        if self._client is None or not lines:
            return
        with contextlib.suppress(OSError):
            self._client.notify("\n".join(lines))
            self._unsent_state = self._unsent_status = ""


def ascii_line(text: str, limit: int) -> str:
    """Return text as printable ASCII on one line: accents are dropped from letters, what has no ASCII form is escaped."""
    plain = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    # Cut last, since an escape is longer than what it stands for.
    line = printable(plain, limit).replace("\N{HORIZONTAL ELLIPSIS}", "...").encode("ascii", "backslashreplace").decode("ascii")
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _connect(address: str) -> sdnotify.SystemdNotifier | None:
    """Return sdnotify's client with a socket that does not block and errors that show; None: nobody is there."""
    # sdnotify looks nowhere but in the process environment.
    os.environ["NOTIFY_SOCKET"] = address
    try:
        with warnings.catch_warnings():
            # Where it cannot connect it drops its socket without closing it.
            warnings.simplefilter("ignore", ResourceWarning)
            client = sdnotify.SystemdNotifier(debug=True)
        client.socket.settimeout(0)
    except OSError:
        return None
    finally:
        os.environ.pop("NOTIFY_SOCKET", None)
    return client


def _interval(period: str, pid: str) -> float | None:
    """Return the pulse interval by sd_watchdog_enabled(3): WATCHDOG_PID, if there, must be ours."""
    try:
        usec = int(period)
        meant = not pid or int(pid) == os.getpid()
    except ValueError:
        return None
    return usec / 2 / 1_000_000 if usec > 0 and meant else None
