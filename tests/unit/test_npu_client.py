"""The daemon's way to the broker: whatever is at the other end, an answer or a reason, in time; and who is ended, and who never is."""

import asyncio
import dataclasses
import fcntl
import time
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from devward.clock import Clock
from devward.cluster.statement import AskedVnpu, Statement
from devward.npu import broker as broker_room
from devward.npu import client as room
from devward.npu.client import WITNESS_SECONDS, BrokerClient, destroy_may_run
from devward.npu.codes import DcmiCode
from devward.npu.facts import Aspect, Inventory, Problem, Refusal
from devward.npu.inventory import Unavailable
from devward.npu.protocol import (
    ANSWER_LIMIT,
    VERSION,
    ListAnswer,
    ListRequest,
    OtherVersion,
    RefusedAnswer,
    WitnessAnswer,
    WitnessRequest,
    encode_answer,
    parse_request,
)
from devward.npu.service import LOOK_SECONDS
from devward.reasons import Reason
from sim.descriptors import open_descriptors, opened_since
from sim.npu_host import chip, inventory
from sim.statements import DOUBTED, READ, VNPU, clean, full
from sim.virtual_time import VirtualClock, VirtualTimeLoop, run_virtual

SAID = inventory(chip(0, 100), chip(1))
#: What a broker does with a connection.
Broker = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Bench:
    """A client, and what the broker is to do next."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory = directory
        self.broker: Broker = honest
        self.connections = 0
        self.kills: list[float] = []
        self.kill_problem = ""
        self.clock = clock
        self.lock = directory / "destroy.lock"
        self.client = BrokerClient(clock, self._kill, socket_path=str(directory / "socket"), lock_file=str(self.lock))

    async def _kill(self) -> str:
        self.kills.append(self.clock.monotonic())
        return self.kill_problem

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.broker(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def list(self, *, urgent: bool = False) -> Inventory | Unavailable:
        """Ask, once the pause after a failure is over."""
        if not urgent:
            await asyncio.sleep(self.client.pause)
        return await self.client.list(urgent=urgent)

    async def failure(self) -> Unavailable:
        answer = await self.list()
        assert isinstance(answer, Unavailable), answer
        return answer


async def honest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = parse_request(await reader.readline())
    assert isinstance(request, ListRequest)
    writer.write(encode_answer(ListAnswer(request.id, SAID)))
    await writer.drain()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def crashing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b'{"version": 1, "id"')


def saying(answer: bytes) -> Broker:
    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        await writer.drain()
        await reader.read()

    return broker


def refusing(reason: Refusal) -> Broker:
    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = parse_request(await reader.readline())
        writer.write(encode_answer(RefusedAnswer(request.id, reason, "because", None)))
        await writer.drain()

    return broker


Scene = Callable[[Bench], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Scene], None]:
    """Return what runs a scene with a broker that listens, in virtual time."""

    def run(scene: Scene) -> None:
        async def main(loop: VirtualTimeLoop) -> None:
            bench = Bench(tmp_path, VirtualClock(loop))
            server = await asyncio.start_unix_server(bench._serve, tmp_path / "socket")
            await scene(bench)
            server.close()
            await server.wait_closed()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        run_virtual(main)

    return run


def test_an_honest_broker_is_heard(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        assert await bench.list() == SAID
        assert await bench.list() == SAID
        assert bench.connections == 2
        assert (bench.client.failed, bench.client.pause) == (False, 0)

    play(scene)


GARBAGE = {
    "no JSON": b"hello\n",
    "no object": b"[]\n",
    "no text": b"\xff\xfe\x00\n",
    "an empty line": b"\n",
    "another version": encode_answer(ListAnswer(1, SAID)).replace(b'"version":1', b'"version":2', 1),
    "another question": encode_answer(ListAnswer(99, SAID)),
    "no question": encode_answer(RefusedAnswer(None, Refusal.MALFORMED, "unreadable")),
    "a refusal of another question": encode_answer(RefusedAnswer(99, Refusal.BUSY, "busy")),
    "an unknown field": encode_answer(ListAnswer(1, SAID)).replace(b'"id":1', b'"id":1,"more":1', 1),
    "an impossible card": encode_answer(ListAnswer(1, SAID)).replace(b'"card":1', b'"card":64', 1),
    "two answers": encode_answer(ListAnswer(1, SAID)) * 2,
    "too long": b"x" * (ANSWER_LIMIT + 1),
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_refused_and_the_next_answer_heard(garbage: str, play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = saying(GARBAGE[garbage])
        failure = await bench.failure()
        assert failure.reason is Reason.NPU_BROKER_GARBLED
        assert failure.text
        bench.broker = honest
        assert await bench.list() == SAID
        assert bench.kills == []

    play(scene)


def test_the_garbage_has_each_kind() -> None:
    with pytest.raises(OtherVersion):
        room.parse_answer(GARBAGE["another version"])
    assert VERSION == 1


def test_no_socket_and_a_crash_are_unreachable(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = crashing
        assert (await bench.failure()).reason is Reason.NPU_BROKER_UNREACHABLE
        (bench.directory / "socket").unlink()
        failure = await bench.failure()
        assert failure.reason is Reason.NPU_BROKER_UNREACHABLE
        assert "No such file" in failure.text

    play(scene)


@pytest.mark.parametrize("reason", list(Refusal))
def test_each_refusal_has_a_reason(reason: Refusal, play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = refusing(reason)
        failure = await bench.failure()
        assert failure.is_absent is (reason is Refusal.LIBRARY_MISSING)
        assert "because" in failure.text
        expected = {
            "library": Reason.NPU_LIBRARY_UNUSABLE,
            "dcmi": Reason.NPU_DRIVER_FAILED,
            "busy": Reason.NPU_BROKER_SILENT,
            "hung": Reason.NPU_BROKER_SILENT,
            "not": Reason.NPU_BROKER_CONFINED,
            "mount": Reason.NPU_BROKER_CONFINED,
            "container": Reason.NPU_BROKER_CONFINED,
            "capabilities": Reason.NPU_BROKER_CONFINED,
        }.get(reason.partition("-")[0])
        if expected is not None and reason is not Refusal.LIBRARY_CHANGED:
            assert failure.reason is expected

    play(scene)


def test_the_pause_doubles_up_to_a_minute_and_ends_with_an_answer(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = crashing
        pauses = []
        for _ in range(9):
            await bench.failure()
            pauses.append(bench.client.pause)
        assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
        bench.broker = honest
        assert await bench.list() == SAID
        bench.broker = crashing
        await bench.failure()
        assert bench.client.pause == 1

    play(scene)


def test_during_a_pause_the_failure_is_the_answer_and_nothing_is_asked(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = crashing
        for _ in range(5):
            failure = await bench.failure()
        bench.broker = honest
        assert bench.connections == 5
        assert await bench.client.list() is failure
        assert await bench.list(urgent=True) is failure, "not even for who is in a hurry, so soon"
        assert bench.connections == 5
        await asyncio.sleep(room.URGENT_PAUSE)
        assert await bench.client.list() is failure
        assert await bench.list(urgent=True) == SAID

    play(scene)


def test_a_crashing_broker_is_started_less_often_than_the_service_manager_allows(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = crashing
        end = bench.clock.monotonic() + 60
        while bench.clock.monotonic() < end:
            await bench.client.list(urgent=True)
            await asyncio.sleep(0.1)
        assert bench.connections < 30, "TriggerLimitBurst of devward-dcmi.socket"

    play(scene)


def test_a_silent_broker_is_left_within_the_deadline(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = silent
        began = bench.clock.monotonic()
        failure = await bench.failure()
        assert failure.reason is Reason.NPU_BROKER_SILENT
        assert bench.clock.monotonic() - began == pytest.approx(room.LIST_SECONDS)
        assert (bench.client.failed, bench.client.pause) == (True, 0), "it is over, not absent"
        began = bench.clock.monotonic() + bench.client.pause
        await asyncio.sleep(bench.client.pause)
        assert isinstance(await bench.client.inspect(0, 0), Unavailable)
        assert bench.clock.monotonic() - began == pytest.approx(room.INSPECT_SECONDS)

    play(scene)


def test_a_broker_that_stays_silent_is_ended_less_and_less_often(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = silent
        began = bench.clock.monotonic()
        while bench.clock.monotonic() < began + 3600:
            await bench.failure()
        first = bench.kills[0] - began
        assert room.SILENCE_LIMIT <= first < room.SILENCE_LIMIT + 60
        gaps = [later - sooner for sooner, later in pairwise(bench.kills)]
        assert all(later > sooner for sooner, later in pairwise(gaps))
        assert len(bench.kills) < 10
        bench.broker = honest
        assert await bench.list() == SAID

    play(scene)


def test_after_a_broker_was_ended_the_next_one_is_asked_at_once(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = silent
        while not bench.kills:
            await bench.failure()
        bench.broker = honest
        assert bench.client.failed
        assert bench.client.pause == 0
        assert await bench.list() == SAID

    play(scene)


def test_what_the_service_manager_says_is_told(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = silent
        bench.kill_problem = "Access denied"
        texts = set()
        while not bench.kills:
            texts.add((await bench.failure()).text)
        assert any(text.endswith("it could not be ended: Access denied") for text in texts)

    play(scene)


@pytest.mark.parametrize("between", [crashing, refusing(Refusal.BUSY), honest, saying(b"what?\n")])
def test_whoever_is_heard_meanwhile_is_not_ended(between: Broker, play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        for _ in range(20):
            for broker in (silent, between):
                bench.broker = broker
                await bench.list()
        # Its pauses alone are longer than the limit.
        assert bench.clock.monotonic() > room.SILENCE_LIMIT
        assert bench.kills == []

    play(scene)


def test_a_broker_that_may_be_destroying_is_never_ended(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = silent
        with bench.lock.open("wb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            for _ in range(30):
                failure = await bench.failure()
            assert bench.kills == []
            assert failure.text.endswith("it is not ended, for it may be destroying a vNPU")
        await bench.failure()
        assert len(bench.kills) == 1

    play(scene)


def test_a_lock_that_cannot_be_looked_at_counts_as_held(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert not destroy_may_run(str(lock))
    lock.touch()
    assert not destroy_may_run(str(lock))
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    assert destroy_may_run(str(lock))
    before = open_descriptors()
    assert destroy_may_run(str(lock))
    assert not opened_since(before)


def test_the_longest_answer_is_taken(tmp_path: Path) -> None:
    problem = Problem(Aspect.CHIP_INFO, DcmiCode.IOCTL_FAILED)
    said = inventory(*(chip(phy, *range(100, 132), problems=(problem,) * 100) for phy in range(64)))

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(encode_answer(ListAnswer(1, said)))
        await writer.drain()

    async def main() -> None:
        bench = Bench(tmp_path, Clock())
        bench.broker = broker
        async with await asyncio.start_unix_server(bench._serve, tmp_path / "socket"):
            assert await bench.list() == said

    asyncio.run(main())


def test_questions_are_asked_one_at_a_time(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        under_way = 0

        async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal under_way
            under_way += 1
            assert under_way == 1
            await asyncio.sleep(1)
            await honest(reader, writer)
            under_way -= 1

        bench.broker = broker
        assert await asyncio.gather(*(bench.client.list() for _ in range(5))) == [SAID] * 5

    play(scene)


# --- the host's own evidence ------------------------------------------------------------------------------------------
RUNTIME = "containerd://2.1.9"
OTHER_VNPU = AskedVnpu(149, 236, 149)


def witnessing(said: Statement) -> Broker:
    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = parse_request(await reader.readline())
        assert isinstance(request, WitnessRequest)
        writer.write(encode_answer(WitnessAnswer(request.id, said)))
        await writer.drain()

    return broker


def test_the_host_is_asked_about_and_heard(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        asked: list[WitnessRequest] = []

        async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            request = parse_request(await reader.readline())
            assert isinstance(request, WitnessRequest)
            asked.append(request)
            writer.write(encode_answer(WitnessAnswer(request.id, full())))
            await writer.drain()

        bench.broker = broker
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        assert await bench.client.witness((VNPU,), "a\nb://" + "x" * 500) == full()
        assert (asked[0].vnpus, asked[0].runtime[:6]) == ((VNPU,), "a\\x0ab")  # type: ignore[index]
        after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        assert before <= asked[0].expires_ns - WITNESS_SECONDS * 1e9 <= after

    play(scene)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((VNPU,), clean()),
        ((), clean(VNPU)),
        ((VNPU,), clean(OTHER_VNPU)),
        ((VNPU,), clean(AskedVnpu(148, 236, 149))),
        ((VNPU, OTHER_VNPU), clean(VNPU)),
        ((VNPU,), clean(VNPU, OTHER_VNPU)),
        ((), dataclasses.replace(clean(), descriptors=READ)),
    ],
)
def test_an_answer_about_other_vnpus_is_refused(asked: tuple[AskedVnpu, ...], said: Statement, play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = witnessing(said)
        failure = await bench.client.witness(asked, RUNTIME)
        assert isinstance(failure, Unavailable)
        assert failure.reason is Reason.NPU_BROKER_GARBLED

    play(scene)


def test_a_statement_that_contradicts_itself_is_refused(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = witnessing(dataclasses.replace(clean(VNPU), descriptors=DOUBTED))
        failure = await bench.client.witness((VNPU,), RUNTIME)
        assert isinstance(failure, Unavailable)
        assert (failure.reason, "descriptors" in failure.text) == (Reason.NPU_BROKER_GARBLED, True)

    play(scene)


def test_another_answer_is_none_of_the_host(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = saying(encode_answer(ListAnswer(1, SAID)))
        failure = await bench.client.witness((VNPU,), RUNTIME)
        assert isinstance(failure, Unavailable)
        assert failure.reason is Reason.NPU_BROKER_GARBLED

    play(scene)


def test_a_silent_broker_is_left_within_the_deadline_of_a_look(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = silent
        began = bench.clock.monotonic()
        failure = await bench.client.witness((VNPU,), RUNTIME)
        assert isinstance(failure, Unavailable)
        assert (failure.reason, bench.clock.monotonic() - began) == (Reason.NPU_BROKER_SILENT, WITNESS_SECONDS)
        assert LOOK_SECONDS < WITNESS_SECONDS < broker_room.Options().hang_limit

    play(scene)


def test_failures_of_the_library_and_of_the_look_do_not_hold_each_other_up(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = refusing(Refusal.LIBRARY_MISSING)
        await bench.failure()
        assert bench.client.failed
        bench.broker = witnessing(clean(VNPU))
        assert await bench.client.witness((VNPU,), RUNTIME) == clean(VNPU)
        # The NPUs still cannot be listed, and what failed with the host does not hold their list up either.
        assert bench.client.failed
        bench.broker = refusing(Refusal.CAPABILITIES)
        assert isinstance(await bench.client.witness((VNPU,), RUNTIME), Unavailable)
        connections = bench.connections
        assert isinstance(await bench.client.witness((VNPU,), RUNTIME), Unavailable)
        assert bench.connections == connections
        bench.broker = honest
        assert await bench.list() == SAID
        assert not bench.client.failed

    play(scene)


def test_the_time_of_a_look_begins_when_it_is_its_turn(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        expired: list[int] = []
        begun, gate = asyncio.Event(), asyncio.Event()
        asked = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

        async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            request = parse_request(await reader.readline())
            if isinstance(request, WitnessRequest):
                expired.append(request.expires_ns)
                writer.write(encode_answer(WitnessAnswer(request.id, clean())))
            else:
                begun.set()
                await gate.wait()
                writer.write(encode_answer(ListAnswer(request.id, SAID)))
            await writer.drain()

        bench.broker = broker
        listing = asyncio.create_task(bench.client.list())
        await asyncio.sleep(0)
        looking = asyncio.create_task(bench.client.witness((), None))
        await begun.wait()
        turn = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        assert turn > asked
        gate.set()
        assert (await listing, await looking) == (SAID, clean())
        assert expired[0] >= turn + int(WITNESS_SECONDS * 1e9)

    play(scene)
