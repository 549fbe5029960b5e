"""A stand-in for journald: takes records of the native protocol, in datagrams and in memory files, and parses them strictly."""

import fcntl
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from devward.journal import Journal
from sim.datagrams import DatagramSink

Record = dict[str, list[str]]


class MalformedRecord(AssertionError):
    """What arrived is not of the native protocol."""


def parse(data: bytes) -> Record:
    """Parse one record; bytes that are not UTF-8 come back as lone surrogates."""
    record: Record = {}
    position = 0
    while position < len(data):
        end = data.find(b"\n", position)
        if end < 0:
            raise MalformedRecord(f"no newline at the end: {data[position:]!r}")
        name, equals, value = data[position:end].partition(b"=")
        position = end + 1
        if not equals:
            (size,) = struct.unpack_from("<Q", data, position)
            value = data[position + 8 : position + 8 + size]
            position += 8 + size + 1
            if len(value) != size or data[position - 1 : position] != b"\n":
                raise MalformedRecord(f"wrong length of {name!r}")
        if not re.fullmatch(rb"[A-Z][A-Z0-9_]{0,63}", name):
            raise MalformedRecord(f"not a field name: {name!r}")
        record.setdefault(name.decode(), []).append(value.decode("utf-8", "surrogateescape"))
    return record


class JournalSink(DatagramSink):
    """The fake journal's socket; as a context manager it is closed at the end."""

    def __init__(self, path: str, *, reading: bool = True) -> None:
        """Listen at `path`; `reading=False`: a journald that hangs."""
        self._records: list[Record] = []
        self._malformed: list[str] = []
        #: Sizes of the records that came in a memory file.
        self.memory_files: list[int] = []
        super().__init__(path, reading=reading)

    def received(self, data: bytes, descriptors: list[int]) -> None:
        try:
            if descriptors:
                data = self._read_memory_file(data, descriptors)
            self._records.append(parse(data))
        except (MalformedRecord, struct.error) as error:
            self._malformed.append(str(error))

    def records(self, **fields: str) -> list[Record]:
        """Return the records so far, those whose named fields have the given values; MalformedRecord if one was not well formed."""
        self.drain()
        return self._matching(fields)

    def wait_for(self, predicate: Callable[[Record], bool], deadline: float = 30.0) -> Record:
        """Return the first record that the predicate accepts; AssertionError after `deadline` seconds."""
        self.drain()
        if not self.wait_until(lambda: any(predicate(one) for one in self._records), deadline):
            raise AssertionError(f"no such record within {deadline} s; there are: {self._records}")
        return next(one for one in self._records if predicate(one))

    def clear(self) -> None:
        """Forget what was received."""
        self.drain()
        self._records.clear()

    def _matching(self, fields: dict[str, str]) -> list[Record]:
        if self._malformed:
            raise MalformedRecord("; ".join(self._malformed))
        return [one for one in self._records if all(one.get(name) == [value] for name, value in fields.items())]

    def _read_memory_file(self, payload: bytes, descriptors: list[int]) -> bytes:
        """Read a record's memory file as journald does: one, sealed against every change, the payload empty."""
        if payload or len(descriptors) != 1:
            raise MalformedRecord("a memory file comes alone")
        seals = fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS)
        wanted = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        if seals & wanted != wanted:
            raise MalformedRecord(f"seals {seals:#x}")
        size = os.fstat(descriptors[0]).st_size
        self.memory_files.append(size)
        return os.pread(descriptors[0], size, 0)


class DrainedJournal(Journal):
    """Sends to a sink that takes each record in at once, so that no burst overflows the socket."""

    def __init__(self, sink: JournalSink, *, stderr: TextIO | None) -> None:
        super().__init__(sink.path, stderr=stderr)
        self._sink = sink

    def send(self, message: str, fields: Mapping[str, str | Sequence[str]], *, priority: int) -> bool:
        """Send one record, and have it taken in."""
        taken = super().send(message, fields, priority=priority)
        self._sink.drain()
        return taken
