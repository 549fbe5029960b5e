"""Streams: each gets everything, in order, and a slow one costs little."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward.plugin.streams import MAXIMUM_STREAMS, PENDING, Stream, Streams, StreamsFull
from sim.virtual_time import VirtualTimeLoop, run_virtual


async def drained(stream: Stream) -> list[bytes | None]:
    """Return what can be had of a stream without waiting."""
    found: list[bytes | None] = []
    while not found or found[-1] is not None:
        following = asyncio.ensure_future(stream.next())
        await asyncio.sleep(0)
        if not following.done():
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            break
        found.append(following.result())
    return found


def on_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Make a test of one that waits."""

    def run() -> None:
        run_virtual(lambda _: test())

    return run


@on_loop
async def test_a_stream_begins_with_what_all_were_told_latest() -> None:
    streams = Streams(lambda: None)
    early = streams.open()
    assert await drained(early) == []
    streams.broadcast(b"1")
    streams.broadcast(b"2")
    assert await drained(streams.open()) == [b"2"]
    assert await drained(early) == [b"1", b"2"]


@on_loop
async def test_every_stream_gets_everything() -> None:
    streams = Streams(lambda: None)
    opened = [streams.open() for _ in range(64)]
    streams.broadcast(b"1")
    assert await drained(opened[0]) == [b"1"]
    streams.broadcast(b"2")
    assert [await drained(stream) for stream in opened] == [[b"2"], *[[b"1", b"2"]] * 63]


@on_loop
async def test_one_that_ends_takes_nothing_from_the_others() -> None:
    counts: list[int] = []
    streams = Streams(lambda: counts.append(streams.count))
    first, second = streams.open(), streams.open()
    streams.close(first)
    streams.broadcast(b"1")
    assert await drained(second) == [b"1"]
    assert counts == [1, 2, 1]


@given(st.lists(st.integers(0, 255), max_size=60))
def test_a_slow_stream_keeps_the_newest_and_no_more_than_it_may(items: list[int]) -> None:
    async def main(_: VirtualTimeLoop) -> list[bytes | None]:
        stream = Stream()
        for item in items:
            stream.put(bytes([item]))
        return await drained(stream)

    assert run_virtual(main) == [bytes([item]) for item in items[-PENDING:]]


@on_loop
async def test_streams_end_after_what_waits_and_begin_again() -> None:
    streams = Streams(lambda: None)
    stream = streams.open()
    streams.broadcast(b"1")
    streams.end()
    assert await drained(stream) == [b"1", None]
    assert await drained(streams.open()) == [b"1", None]
    streams.begin()
    assert await drained(streams.open()) == [b"1"]


def test_there_is_a_limit() -> None:
    streams = Streams(lambda: None)
    opened = [streams.open() for _ in range(MAXIMUM_STREAMS)]
    with pytest.raises(StreamsFull):
        streams.open()
    streams.close(opened[0])
    streams.open()
