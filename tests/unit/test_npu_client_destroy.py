"""The daemon asks the broker to destroy: once, in time, and whatever is no clear answer means that it may have been done."""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from devward.boot import read_boot_id
from devward.clock import Clock
from devward.cluster.evidence import Finding
from devward.npu import client as room
from devward.npu.client import DESTROY_SECONDS, DESTROY_START_SECONDS, BrokerClient, Unasked, destroy_may_run
from devward.npu.codes import DcmiCode
from devward.npu.destruction import read_node
from devward.npu.facts import Expected, Inventory, Node, Outcome, Refusal
from devward.npu.inventory import Unavailable
from devward.npu.protocol import (
    ANSWER_LIMIT,
    Answer,
    DestroyAnswer,
    DestroyRequest,
    ListAnswer,
    ListRequest,
    RefusedAnswer,
    encode_answer,
    parse_request,
)
from devward.npu.service import LONGEST_WAIT_NS
from devward.reasons import Reason
from sim.dcmi_broker import WAIT, BrokerHost, until
from sim.dcmi_simulator import DcmiSimulator, build_library
from sim.npu_host import chip, inventory
from sim.virtual_time import VirtualClock, VirtualTimeLoop, run_virtual

SAID = inventory(chip(0, 100), chip(1))
EXPECTED = Expected(
    "0" * 8 + "-0000-0000-0000-" + "0" * 12, 0, 1, 0, "0A1B2C3D-00000001-00000002-00000003-FFFFFFFF", 100, 1, "vir04", Node(7, 8, 236, 100)
)
RUNTIME = "containerd://1.7.2"
ASK = (EXPECTED, RUNTIME, "request-5")
DESTROY_CALL = "dcmi_set_destroy_vdevice"
SOON = 0.2  # seconds after which the client gives up, in tests that want that

#: What a broker does with a connection.
Broker = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Scene = Callable[["Bench"], Coroutine[Any, Any, None]]


class Bench:
    """A client, and a broker that does what it is told."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory = directory
        self.broker: Broker = saying()
        #: Lines that were heard, and connections that the client closed.
        self.lines: list[bytes] = []
        self.left = 0
        self.asked = asyncio.Event()
        self.kills = 0
        self.lock = directory / "destroy.lock"
        self.clock = clock
        self.client = BrokerClient(clock, self._kill, socket_path=str(directory / "socket"), lock_file=str(self.lock))

    async def _kill(self) -> str:
        self.kills += 1
        return ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                await self.broker(reader, writer)
        finally:
            writer.close()

    def silent(self) -> Broker:
        async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.lines.append(await reader.readline())
            self.asked.set()
            assert await reader.read() == b""
            self.left += 1

        return broker

    def answering(self, answer: Callable[[DestroyRequest], Answer]) -> Broker:
        async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.lines.append(await reader.readline())
            request = parse_request(self.lines[-1])
            assert isinstance(request, DestroyRequest)
            writer.write(encode_answer(answer(request)))
            await writer.drain()

        return broker


def saying(answer: bytes = b"") -> Broker:
    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = parse_request(await reader.readline())
        writer.write(answer or encode_answer(ListAnswer(request.id, SAID)))
        await writer.drain()

    return broker


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Scene], None]:
    """Return what runs a scene with a broker that listens, in virtual time."""

    def run(scene: Scene) -> None:
        async def main(loop: VirtualTimeLoop) -> None:
            bench = Bench(tmp_path, VirtualClock(loop))
            server = await asyncio.start_unix_server(bench.serve, tmp_path / "socket")
            await scene(bench)
            server.close()
            await server.wait_closed()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        run_virtual(main)

    return run


# --- what is asked, and clear answers ----------------------------------------------------------------------------------
@pytest.mark.parametrize("outcome", Outcome)
def test_what_became_of_it_is_told(outcome: Outcome, play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = bench.answering(lambda request: DestroyAnswer(request.id, outcome, DcmiCode.OK, "so it is"))
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        answer = await bench.client.destroy(*ASK)
        after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        (line,) = bench.lines
        asked = parse_request(line)
        assert isinstance(asked, DestroyRequest)
        assert (asked.expected, asked.runtime, asked.request) == ASK
        assert before <= asked.expires_ns - DESTROY_START_SECONDS * 1e9 <= after
        assert answer == DestroyAnswer(asked.id, outcome, DcmiCode.OK, "so it is")

    play(scene)


def test_the_broker_takes_the_time_that_it_is_given() -> None:
    assert DESTROY_START_SECONDS * 1e9 < LONGEST_WAIT_NS
    assert DESTROY_START_SECONDS < DESTROY_SECONDS


@pytest.mark.parametrize("reason", Refusal)
def test_a_refusal_is_told_as_it_is(reason: Refusal, play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = bench.answering(lambda request: RefusedAnswer(request.id, reason, "because", -8002))
        answer = await bench.client.destroy(*ASK)
        assert isinstance(answer, RefusedAnswer)
        assert (answer.reason, answer.text, answer.code) == (reason, "because", -8002)
        assert len(bench.lines) == 1

    play(scene)


def test_a_broker_that_could_not_read_the_request_refuses_it(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = bench.answering(lambda _: RefusedAnswer(None, Refusal.MALFORMED, "unreadable"))
        assert await bench.client.destroy(*ASK) == RefusedAnswer(None, Refusal.MALFORMED, "unreadable")

    play(scene)


# --- no clear answer ---------------------------------------------------------------------------------------------------
CALLED = encode_answer(DestroyAnswer(1, Outcome.DESTROYED, 0, "it is gone"))
UNCLEAR = {
    "no JSON": b"done\n",
    "an empty line": b"\n",
    "a list": encode_answer(ListAnswer(1, SAID)),
    "another call": encode_answer(DestroyAnswer(2, Outcome.DESTROYED, 0, "it is gone")),
    "another refusal": encode_answer(RefusedAnswer(99, Refusal.BUSY, "busy")),
    "another version": CALLED.replace(b'"version":1', b'"version":2', 1),
    "another outcome": CALLED.replace(b'"destroyed"', b'"gone"', 1),
    "two answers": CALLED * 2,
    "too long": b"x" * (ANSWER_LIMIT + 1),
}


@pytest.mark.parametrize("said", UNCLEAR)
def test_what_is_no_answer_to_it_leaves_it_unknown_and_is_not_asked_again(said: str, play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            bench.lines.append(await reader.readline())
            writer.write(UNCLEAR[said])
            await writer.drain()
            await reader.read()

        bench.broker = broker
        answer = await bench.client.destroy(*ASK)
        assert isinstance(answer, Unavailable)
        assert answer.reason is Reason.NPU_BROKER_GARBLED
        assert len(bench.lines) == 1
        assert bench.kills == 0

    play(scene)


@pytest.mark.parametrize("said", [b"", b'{"version": 1, "id"', CALLED[:-1]])
def test_a_broker_that_ends_in_between_leaves_it_unknown(said: bytes, play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            bench.lines.append(await reader.readline())
            writer.write(said)

        bench.broker = broker
        answer = await bench.client.destroy(*ASK)
        assert isinstance(answer, Unavailable)
        assert answer.reason is Reason.NPU_BROKER_UNREACHABLE
        assert len(bench.lines) == 1

    play(scene)


def test_silence_leaves_it_unknown_and_the_connection_is_closed(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = bench.silent()
        began = bench.clock.monotonic()
        answer = await bench.client.destroy(*ASK)
        assert isinstance(answer, Unavailable)
        assert answer.reason is Reason.NPU_BROKER_SILENT
        assert bench.clock.monotonic() - began == pytest.approx(DESTROY_SECONDS)
        await asyncio.sleep(1)
        # So that a broker that has not called the library yet sees that nobody waits.
        assert (len(bench.lines), bench.left) == (1, 1)

    play(scene)


def test_a_broker_that_may_be_destroying_is_never_ended(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = bench.silent()
        with bench.lock.open("wb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            for _ in range(10):
                answer = await bench.client.destroy(*ASK)
            assert isinstance(answer, Unavailable)
            assert answer.text.endswith("it is not ended, for it may be destroying a vNPU")
            assert bench.kills == 0

    play(scene)


# --- nothing asked -------------------------------------------------------------------------------------------------------
def test_without_a_broker_nothing_was_asked(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        (bench.directory / "socket").unlink()
        answer = await bench.client.destroy(*ASK)
        assert isinstance(answer, Unasked)
        assert answer.reason is Reason.NPU_BROKER_UNREACHABLE
        assert "No such file" in answer.text

    play(scene)


def test_what_is_known_may_be_too_old_when_its_turn_comes(play: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(bench: Bench) -> None:
        # The time since boot is the virtual one here.
        monkeypatch.setattr(room, "_boottime_ns", lambda: int(bench.clock.monotonic() * 1e9))
        bench.broker = bench.silent()
        others = [asyncio.ensure_future(bench.client.inspect(0, 0)), asyncio.ensure_future(bench.client.witness((), RUNTIME))]
        lists = [asyncio.ensure_future(bench.client.destroy(*ASK)) for _ in range(2)]
        await asyncio.gather(*others)
        first, second = await asyncio.gather(*lists)
        assert isinstance(first, Unavailable), "20 of its 30 seconds were over"
        assert isinstance(second, Unasked), "another 60 were"
        assert len(bench.lines) == 3

    play(scene)


def test_the_last_word_is_said_when_its_turn_has_come_and_keeps_it_from_being_asked(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = bench.silent()
        other = asyncio.ensure_future(bench.client.inspect(0, 0))
        await bench.asked.wait()
        said: list[bool] = []

        async def last_word() -> str:
            said.append(other.done())
            return "the kill switch is set"

        answer = await bench.client.destroy(*ASK, last_word)
        assert answer == Unasked(Reason.RECLAIM_BLOCKED, "the kill switch is set")
        assert said == [True], "not before the other question was over"
        assert len(bench.lines) == 1
        await other

    play(scene)


# --- beside the other questions ------------------------------------------------------------------------------------------
def test_one_thing_is_asked_at_a_time(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        under_way = 0

        async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal under_way
            under_way += 1
            assert under_way == 1
            await asyncio.sleep(1)
            request = parse_request(await reader.readline())
            is_list = isinstance(request, ListRequest)
            answer = ListAnswer(request.id, SAID) if is_list else DestroyAnswer(request.id, Outcome.DESTROYED, 0, "gone")
            under_way -= 1
            writer.write(encode_answer(answer))
            await writer.drain()

        bench.broker = broker
        answers = await asyncio.gather(bench.client.list(), bench.client.destroy(*ASK), bench.client.list(), bench.client.destroy(*ASK))
        assert [type(answer) for answer in answers] == [Inventory, DestroyAnswer, Inventory, DestroyAnswer]

    play(scene)


def test_a_failure_of_either_is_no_pause_for_the_other(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = saying(b"what?\n")
        for _ in range(3):
            assert isinstance(await bench.client.destroy(*ASK), Unavailable)
        assert (bench.client.failed, bench.client.pause) == (False, 0)
        assert isinstance(await bench.client.list(), Unavailable)
        assert bench.client.pause > 0
        bench.broker = bench.answering(lambda request: DestroyAnswer(request.id, Outcome.DESTROYED, 0, "gone"))
        assert isinstance(await bench.client.destroy(*ASK), DestroyAnswer)
        assert bench.client.pause > 0

    play(scene)


def test_giving_up_closes_the_connection_and_lets_the_next_in(play: Callable[[Scene], None]) -> None:
    async def scene(bench: Bench) -> None:
        bench.broker = bench.silent()
        task = asyncio.ensure_future(bench.client.destroy(*ASK))
        await bench.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(1)
        assert (len(bench.lines), bench.left) == (1, 1)
        bench.broker = saying()
        assert await bench.client.list() == SAID

    play(scene)


# --- the real broker -------------------------------------------------------------------------------------------------------
class Real:
    """A broker before a simulated library, with one vNPU."""

    def __init__(self, host: BrokerHost, simulator: DcmiSimulator) -> None:
        self.host = host
        self.simulator = simulator
        self.chip = simulator.add_chip("910B3")
        self.vnpu = simulator.create(self.chip, "vir05_1c_16g")
        host.add_node(self.vnpu.id)
        host.start(simulator.environment)
        self.client = BrokerClient(Clock(), self._kill, socket_path=str(host.socket_path), lock_file=str(host.lock))

    async def _kill(self) -> str:
        raise AssertionError("nobody is ended here")

    def expected(self, **changes: Any) -> Expected:
        fields: dict[str, Any] = {
            "boot_id": read_boot_id(),
            "card": self.chip.card,
            "device": self.chip.dev,
            "phy": self.chip.phy,
            "die": self.chip.vdie,
            "vdev": self.vnpu.id,
            "vfid": self.vnpu.id - self.chip.first_vdev + 1,
            "template": self.vnpu.name,
            "node": read_node(self.vnpu.id, str(self.host.devices)),
        }
        return Expected(**{**fields, **changes})

    def destroy(self, runtime: str = RUNTIME, **changes: Any) -> DestroyAnswer | RefusedAnswer | Unasked | Unavailable:
        return asyncio.run(self.client.destroy(self.expected(**changes), runtime, "request-5"))

    @property
    def destroyed(self) -> list[int]:
        """The ids that the library was called with to destroy."""
        return [int(call.arguments["id"]) for call in self.simulator.calls(DESTROY_CALL)]


@pytest.fixture(name="library", scope="module")
def _library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("dcmi"))


@pytest.fixture(name="real")
def _real(library: Path) -> Iterator[Real]:
    if os.geteuid() != 0:
        pytest.skip("needs root: the broker serves root alone")
    with BrokerHost() as host, DcmiSimulator(host.directory / "node", library) as simulator:
        simulator.install(host.library)
        yield Real(host, simulator)


def test_the_broker_destroys_the_expected_vnpu(real: Real) -> None:
    answer = real.destroy()
    assert isinstance(answer, DestroyAnswer)
    assert (answer.outcome, answer.code) == (Outcome.DESTROYED, 0)
    assert (real.destroyed, real.simulator.vnpus()) == ([real.vnpu.id], [])
    absent = asyncio.run(real.client.destroy(real.expected(node=Node(1, 1, 1, 1)), RUNTIME, "request-6"))
    assert isinstance(absent, RefusedAnswer)
    assert absent.reason is Refusal.VNPU_ABSENT


def test_the_broker_refuses_what_is_not_the_expected_vnpu(real: Real) -> None:
    for changes, reason in (
        ({"template": "vir10_3c_32g"}, Refusal.TEMPLATE_DIFFERS),
        ({"vdev": 65535}, Refusal.WILDCARD),
        ({"node": Node(1, 1, 1, 1)}, Refusal.NODE_DIFFERS),
        ({"runtime": "what\n"}, Refusal.MALFORMED),
    ):
        answer = real.destroy(**changes)
        assert isinstance(answer, RefusedAnswer)
        assert answer.reason is reason
    real.host.set_scan(Finding.HELD)
    answer = real.destroy()
    assert isinstance(answer, RefusedAnswer)
    assert answer.reason is Refusal.SCAN_IN_USE
    assert real.destroyed == []


def test_a_broker_that_is_given_up_before_the_call_does_not_call(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "DESTROY_SECONDS", SOON)
    real.host.set_scan(WAIT)
    assert isinstance(real.destroy(), Unavailable)
    real.host.set_scan(Finding.CLEAN)
    until(lambda: not destroy_may_run(str(real.host.lock)), "the broker is done with it")
    assert real.destroyed == []
    assert len(real.simulator.vnpus()) == 1


def test_a_call_that_nobody_waits_for_any_more_goes_on_and_is_let_be(real: Real) -> None:
    serial = real.simulator.fault(DESTROY_CALL, "hang", effect=True)

    async def main() -> None:
        asking = asyncio.ensure_future(real.client.destroy(real.expected(), RUNTIME, "request-5"))
        await asyncio.to_thread(real.simulator.wait_for, DESTROY_CALL)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert destroy_may_run(str(real.host.lock))
        busy = await real.client.list()
        assert isinstance(busy, Unavailable)
        assert busy.reason is Reason.NPU_BROKER_SILENT
        again = await real.client.destroy(real.expected(), RUNTIME, "request-6")
        assert isinstance(again, RefusedAnswer)
        assert again.reason is Refusal.BUSY

    asyncio.run(main())
    real.simulator.clear_faults(serial)
    until(lambda: not destroy_may_run(str(real.host.lock)), "the broker is done with it")
    assert (real.destroyed, real.simulator.vnpus()) == ([real.vnpu.id], [])
