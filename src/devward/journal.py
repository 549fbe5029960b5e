"""The journal: journald's native protocol, and the stdlib logging handler that speaks it.

The protocol is a datagram of `KEY=value` lines; a value with a newline has its length before it, so that no text can forge a
field; a record that is too big for a datagram goes as a sealed memory file (https://systemd.io/JOURNAL_NATIVE_PROTOCOL).
Nothing here blocks, and nothing that comes from outside makes it raise.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import select
import socket
import struct
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, TextIO

from devward import names
from devward.text import printable

#: journald drops a field whose name is anything else; a leading underscore is reserved for what journald itself vouches for.
_FIELD_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
#: Fields that `send` sets itself.
_OWN_FIELDS: Final = frozenset({"MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER"})
#: What sd-journal asks for; the kernel caps it at net.core.wmem_max.
_SEND_BUFFER: Final = 8 << 20
#: POLLOUT on a pipe promises room for this many bytes, and a write of them is not torn (pipe(7): PIPE_BUF).
_STDERR_LINE: Final = 4096
_MESSAGE_LIMIT: Final = 2000
_TRACEBACK_LINE: Final = 500
_TRACEBACK_LINES: Final = 200
#: On stderr these would only hide what a person looks for.
_NOT_ON_STDERR: Final = frozenset({"CODE_FILE", "CODE_LINE", "CODE_FUNC", "LOGGER", "TID"})
_BARE_VALUE: Final = re.compile(r"[A-Za-z0-9_./:@+,=-]+")


class Priority(IntEnum):
    """Syslog's severities, the values of PRIORITY that devward uses."""

    CRITICAL = 2
    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6
    DEBUG = 7


def encode(fields: Iterable[tuple[str, str]]) -> bytes:
    """Return the datagram of a record. ValueError: a name that journald would drop.

    A lone surrogate, which stands for a byte of a file name that is no text, is written as its escape.
    """
    parts: list[bytes] = []
    for name, value in fields:
        if not _FIELD_NAME.fullmatch(name):
            raise ValueError(f"not a journal field name: {name!r}")
        data = value.encode("utf-8", "backslashreplace")
        if b"\n" in data:
            parts += (name.encode(), b"\n", struct.pack("<Q", len(data)), data, b"\n")
        else:
            parts += (name.encode(), b"=", data, b"\n")
    return b"".join(parts)


class Journal:
    """A sender of records to journald, safe to use from any thread.

    Every record names its destination anew, so a journald that was restarted, or started late, takes the next one.
    """

    def __init__(self, socket_path: str, *, stderr: TextIO | None, identifier: str = names.SYSLOG_IDENTIFIER) -> None:
        """Send to `socket_path`; `stderr` gets what the journal does not take, None for nowhere. OSError: no socket can be made."""
        self._path = socket_path
        self._stderr = stderr
        self._identifier = identifier
        self._dropped = 0
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(0)
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    @property
    def dropped(self) -> int:
        """How many records the journal did not take since the start, whether or not stderr got them."""
        return self._dropped

    def send(self, message: str, fields: Mapping[str, str | Sequence[str]], *, priority: int) -> bool:
        """Send one record; True only when the journal's socket took it, else it goes to stderr as one line.

        A field with several values is repeated, as journald allows. ValueError: a field name that is wrong or that is set here.
        """
        pairs = [("MESSAGE", message), ("PRIORITY", str(int(priority))), ("SYSLOG_IDENTIFIER", self._identifier)]
        for name, value in fields.items():
            if name in _OWN_FIELDS:
                raise ValueError(f"the journal sets {name} itself")
            pairs += [(name, one) for one in ((value,) if isinstance(value, str) else value)]
        if self._deliver(encode(pairs)):
            return True
        with self._lock:
            self._dropped += 1
        self._write_stderr(_stderr_line(priority, message, pairs[3:]))
        return False

    def close(self) -> None:
        """Close the socket; later records go to stderr."""
        self._socket.close()

    def _deliver(self, datagram: bytes) -> bool:
        try:
            self._socket.sendmsg([datagram], (), 0, self._path)
        except OSError as error:
            # ENOBUFS is what the kernel says of a datagram within the buffer's limit that it cannot allocate in one piece.
            return error.errno in (errno.EMSGSIZE, errno.ENOBUFS) and self._deliver_file(datagram)
        return True

    def _deliver_file(self, data: bytes) -> bool:
        """Send a record as a memory file; journald reads it only when nobody can change it any more."""
        try:
            descriptor = os.memfd_create("devward-journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", descriptor))]
                self._socket.sendmsg([b""], rights, 0, self._path)
            finally:
                os.close(descriptor)
        except OSError:
            return False
        return True

    def _write_stderr(self, line: str) -> None:
        """Write one line if that cannot block; O_NONBLOCK is no way, since it would hold for everyone who shares the terminal."""
        if self._stderr is None:
            return
        try:
            descriptor = self._stderr.fileno()
        except (OSError, ValueError):
            # A stream in memory has no descriptor; one that is closed refuses the write as well.
            with contextlib.suppress(OSError, ValueError):
                self._stderr.write(line)
            return
        with contextlib.suppress(OSError, ValueError):
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            if any(events & select.POLLOUT for _, events in poll.poll(0)):
                os.write(descriptor, line.encode("ascii"))


def _stderr_line(priority: int, message: str, fields: Iterable[tuple[str, str]]) -> str:
    """Return a record as a line with the `<N>` prefix of sd-daemon(3), in ASCII, no longer than a pipe takes in one piece."""
    words = [f"<{int(priority)}>{printable(message, _MESSAGE_LIMIT)}"]
    words += [
        f"{name}={value if _BARE_VALUE.fullmatch(value) else json.dumps(value)}" for name, value in fields if name not in _NOT_ON_STDERR
    ]
    line = " ".join(words).encode("ascii", "backslashreplace").decode("ascii")
    return (line if len(line) < _STDERR_LINE else line[: _STDERR_LINE - 4] + "...") + "\n"


class JournalHandler(logging.Handler):
    """Logging to the journal: the code's place, the thread, and the fields of `extra={"journal": {...}}`.

    The message is one line without control characters, whatever its arguments hold; a traceback stands in EXCEPTION_INFO.
    """

    def __init__(self, journal: Journal, level: int = logging.NOTSET) -> None:
        """Send what is logged at `level` and above to `journal`."""
        super().__init__(level)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        """Send one log record; one that cannot be formatted is reported in its place, never raised."""
        place = {
            "CODE_FILE": printable(record.pathname, _MESSAGE_LIMIT),
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": printable(record.funcName or "", _MESSAGE_LIMIT),
            "LOGGER": printable(record.name, _MESSAGE_LIMIT),
            "TID": str(threading.get_native_id()),
        }
        try:
            message = printable(record.getMessage(), _MESSAGE_LIMIT)
            fields = {**place, **dict(_extra_fields(record)), **_exception_fields(record)}
            self._journal.send(message, fields, priority=_priority(record.levelno))
        except Exception as error:  # noqa: BLE001 - an edge: a log call must not break the act that it tells of
            text = printable(f"A log record could not be written: {type(error).__name__}: {error}", _MESSAGE_LIMIT)
            self._journal.send(text, place, priority=Priority.ERROR)


def _priority(level: int) -> Priority:
    if level >= logging.CRITICAL:
        return Priority.CRITICAL
    if level >= logging.ERROR:
        return Priority.ERROR
    if level >= logging.WARNING:
        return Priority.WARNING
    return Priority.INFO if level >= logging.INFO else Priority.DEBUG


def _extra_fields(record: logging.LogRecord) -> Iterator[tuple[str, str]]:
    extra = getattr(record, "journal", None)
    if isinstance(extra, Mapping):
        for name, value in extra.items():
            yield str(name), printable(str(value), _MESSAGE_LIMIT)


def _exception_fields(record: logging.LogRecord) -> dict[str, str]:
    if record.exc_info is None or record.exc_info[1] is None:
        return {}
    error = record.exc_info[1]
    lines = "".join(traceback.format_exception(error)).split("\n")
    # The ends say what was called and what went wrong; a recursion has thousands of lines between them.
    if len(lines) > _TRACEBACK_LINES:
        half = _TRACEBACK_LINES // 2
        lines = [*lines[:half], "...", *lines[-half:]]
    fields = {"EXCEPTION_INFO": "\n".join(printable(line, _TRACEBACK_LINE) for line in lines).rstrip("\n")}
    if isinstance(error, OSError) and error.errno is not None:
        fields["ERRNO"] = str(error.errno)
    return fields
