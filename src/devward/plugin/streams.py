"""The streams by which the kubelet hears of devices: each with a queue of its own, so that a slow one neither holds up nor robs another."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

#: A kubelet has one. More come from other programs, and from streams of a kubelet that is gone and has not been missed yet.
MAXIMUM_STREAMS: Final = 128
#: Lists that wait for one stream. A list is whole, so that of those that waited too long the newest say everything.
PENDING: Final = 16


class StreamsFull(Exception):
    """There are as many streams as there may be."""


class Stream:
    """What waits to be sent on one stream."""

    def __init__(self) -> None:
        """Begin with nothing to send."""
        self._pending: deque[bytes] = deque(maxlen=PENDING)
        self._ended = False
        self._news = asyncio.Event()

    def put(self, item: bytes) -> None:
        """Send this after what waits; the oldest is left out where too much waits."""
        self._pending.append(item)
        self._news.set()

    def end(self) -> None:
        """End the stream after what waits."""
        self._ended = True
        self._news.set()

    async def next(self) -> bytes | None:
        """Wait for what is to be sent next; None: the stream is over."""
        while not self._pending:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        return self._pending.popleft()


class Streams:
    """All streams. `on_count` is called when one comes or goes."""

    def __init__(self, on_count: Callable[[], None]) -> None:
        """Begin with no stream, and with nothing that the first one would be told."""
        self._on_count = on_count
        self._streams: set[Stream] = set()
        self._latest: bytes | None = None
        self._closed = False

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._streams)

    def open(self) -> Stream:
        """Begin a stream with what all were told latest; while there is nothing yet it waits. StreamsFull."""
        if len(self._streams) >= MAXIMUM_STREAMS:
            raise StreamsFull
        stream = Stream()
        if self._latest is not None:
            stream.put(self._latest)
        if self._closed:
            stream.end()
        self._streams.add(stream)
        self._on_count()
        return stream

    def close(self, stream: Stream) -> None:
        """Forget a stream that is over."""
        self._streams.discard(stream)
        self._on_count()

    def broadcast(self, item: bytes) -> None:
        """Send this on every stream, and first on those to come."""
        self._latest = item
        for stream in self._streams:
            stream.put(item)

    def end(self) -> None:
        """End every stream, and those that still come."""
        self._closed = True
        for stream in self._streams:
            stream.end()

    def begin(self) -> None:
        """Let streams come again, for a new start of the server."""
        self._closed = False
