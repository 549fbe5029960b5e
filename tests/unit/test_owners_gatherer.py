"""Gathering the parts of a look: each step asks what it must and no more, and whatever goes wrong is a part with a failure."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devward.clock import Clock
from devward.cluster.answers import Answer, Failure
from devward.cluster.api_result import FAULT_TEXT, ApiAnswer, ApiError, ApiFault
from devward.cluster.asked import answer_of, unasked
from devward.cluster.checkpoint import CheckpointReading
from devward.cluster.evidence import Doubt, Finding, SourceState
from devward.cluster.gatherer import NPU_SECONDS, READ_SECONDS, Gathered, Gatherer, Readers, nothing_gathered
from devward.cluster.kubelet_facts import SENTENCES, KubeletDoubt
from devward.cluster.managers import Drivers
from devward.cluster.observations import ROWS, Look, Scope
from devward.cluster.parts import HostFacts
from devward.cluster.statement import AskedVnpu, KubeletSource, Statement
from devward.cluster.vantage import VantageDoubt
from devward.config import ClusterConfig
from devward.npu.facts import Node
from devward.npu.inventory import Picture, Unavailable
from devward.npu.views import Use, Verdict, VnpuView
from devward.reasons import Reason
from devward.worker import Worker
from sim.api_faults import status
from sim.api_pki import Authority, write_identity, write_kubeconfig
from sim.api_server import ApiServer
from sim.held_time import HeldTimeLoop, outcome, run_held, until
from sim.recorded_cluster import BOOT_ID, MACHINE_ID, NODE
from sim.snapshot_desk import PICTURE, checkpoint_of
from sim.statements import KUBELET, clean

AUTHORITY = Authority()
SERVER = AUTHORITY.server()
CLIENT = AUTHORITY.client(f"system:node:{NODE}")
#: As the recorded Node has it.
RUNTIME = "containerd://2.1.9+unknown"
GONE = Unavailable(Reason.NPU_BROKER_UNREACHABLE, "connection refused\x1b")


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(authority=AUTHORITY, server=SERVER) as stand_in:
        yield stand_in


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> str:
    return make_kubeconfig(server, tmp_path, "kubelet.conf")


def make_kubeconfig(server: ApiServer, directory: Path, name: str) -> str:
    link = str(write_identity(directory, CLIENT))
    user = {"client-certificate": link, "client-key": link}
    return str(write_kubeconfig(directory / name, server.url, AUTHORITY.certificate, user))


class FakeNpus:
    """What the NPUs' room would say."""

    def __init__(self) -> None:
        self.picture = PICTURE
        self.said: Statement | Unavailable = clean()
        #: Said before that, in turn.
        self.before: list[Statement | Unavailable] = []
        self.asked: list[tuple[tuple[AskedVnpu, ...], str | None]] = []
        self.looks = 0
        self.hold: asyncio.Event | None = None

    async def fresh(self) -> None:
        self.looks += 1
        if self.hold is not None:
            await self.hold.wait()

    async def witness(self, vnpus: tuple[AskedVnpu, ...], runtime: str | None) -> Statement | Unavailable:
        self.asked.append((vnpus, runtime))
        if self.before:
            return self.before.pop(0)
        if isinstance(self.said, Unavailable) or not vnpus:
            return self.said
        return replace(clean(*vnpus), kubelet=self.said.kubelet)


class FakeReaders:
    """What reads this host: what was asked of it, and what it does."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.does: Callable[[], None] = lambda: None
        self.drivers_do: Callable[[], None] = lambda: None
        self.reading = checkpoint_of("01")

    def checkpoint(self, directory: str) -> CheckpointReading:
        self.calls.append(("checkpoint", directory))
        self.does()
        return self.reading

    def drivers(self, directory: str) -> Drivers:
        self.calls.append(("drivers", directory))
        self.drivers_do()
        return Drivers(frozenset({"a-driver"}))

    def this_host(self, name: str) -> HostFacts:
        self.calls.append(("this-host", name))
        self.does()
        return HostFacts(name, BOOT_ID, frozenset({MACHINE_ID}))


class Desk:
    """A gatherer, and what it works with."""

    def __init__(self, loop: HeldTimeLoop, config: ClusterConfig | None = None) -> None:
        self.loop = loop
        self.npus = FakeNpus()
        self.readers = FakeReaders()
        self.worker = Worker("cluster")
        readers = Readers(self.readers.checkpoint, self.readers.drivers, self.readers.this_host)
        self.clock = Clock()
        self.clock.monotonic = loop.time  # type: ignore[method-assign]
        self.gatherer = Gatherer(
            config or ClusterConfig(),
            self.npus,
            worker=self.worker,
            clock=self.clock,
            ask_about=lambda picture: frozenset(vnpu.name for vnpu in picture.vnpus if vnpu.use is Use.IDLE),
            readers=readers,
        )

    async def gather(self, *, pods: bool = True) -> Gathered:
        return await outcome(asyncio.ensure_future(self.gatherer.gather(pods=pods)))

    async def given_up(self, has_begun: Callable[[], object], seconds: float) -> Gathered:
        """Gather, and let this time pass once something hangs: all else has as long as it takes."""
        task = asyncio.ensure_future(self.gatherer.gather(pods=True))
        await until(has_begun, "what hangs begins")
        self.loop.advance(seconds)
        return await outcome(task)


def run(main: Callable[[Desk], Coroutine[Any, Any, None]], config: ClusterConfig | None = None) -> None:
    async def with_desk(loop: HeldTimeLoop) -> None:
        desk = Desk(loop, config)
        try:
            await main(desk)
        finally:
            desk.gatherer.close()
            desk.worker.close()

    run_held(with_desk)


def kubelet(kubeconfig: str, **more: Any) -> KubeletSource:
    problem = "" if kubeconfig else "Its command line names none."
    return KubeletSource(SourceState.READ, replace(KUBELET, kubeconfig=kubeconfig, kubeconfig_problem=problem, **more))


def codes(*parts: Any) -> list[str | None]:
    return [part.failure.code if part.failure is not None else None for part in parts]


# --- what the API server answered, as a part ------------------------------------------------------------------------------


def test_an_answer_is_a_part_that_is_verified() -> None:
    assert answer_of(ApiAnswer(200, b"{}", 5.0, 6.0), 9.0) == Answer(5.0, 6.0, 200, b"{}", verified=True)


def test_what_was_not_asked_for_is_of_now_and_says_so() -> None:
    text = ROWS[Look.NOT_LISTED].sentence
    assert answer_of(None, 9.0) == Answer(9.0, 9.0, failure=Failure("pods-not-listed", text))
    failure = Failure("code", "sentence")
    assert unasked(failure, 9.0) == Answer(9.0, 9.0, failure=failure)


@pytest.mark.parametrize("fault", ApiFault)
def test_every_fault_has_its_row(fault: ApiFault) -> None:
    answer = answer_of(ApiError(fault, "detail").problem(7.0), 9.0)
    assert answer.failure is not None
    assert (answer.asked_at, answer.received_at, answer.status, answer.body, answer.verified) == (7.0, 7.0, 0, b"", False)
    row = ROWS[answer.failure.code]
    assert (row.scopes, row.resets, row.sentence) == ((Scope.NODE,), True, FAULT_TEXT[fault])
    assert "detail" in answer.failure.sentence


def test_where_gathering_broke_off_every_part_has_the_failure() -> None:
    failure = Failure("broke", "It broke.")
    parts = nothing_gathered(failure, 7.0).parts
    for name in ("node", "lease", "pods", "checkpoint", "kubelet", "drivers", "host", "npus"):
        assert getattr(parts, name).failure == failure, name
    assert {parts.node.asked_at, parts.npus.taken_at} == {7.0}


# --- a look ---------------------------------------------------------------------------------------------------------------


def test_the_first_look_asks_the_broker_which_kubelet_there_is_and_then_the_api_server(server: ApiServer, kubeconfig: str) -> None:
    async def main(desk: Desk) -> None:
        desk.npus.said = replace(clean(), kubelet=kubelet(kubeconfig))
        found = await desk.gather()
        parts = found.parts
        assert (
            codes(parts.node, parts.lease, parts.pods, parts.checkpoint, parts.kubelet, parts.drivers, parts.host, parts.npus) == [None] * 8
        )
        assert [request.kind for request in server.requests] == ["node", "lease", "pods"]
        # The second time with the runtime that the Node names.
        assert desk.npus.asked == [((), None), ((), RUNTIME)]
        assert found.facts == HostFacts(NODE, BOOT_ID, frozenset({MACHINE_ID})), "by the certificate's name"
        assert desk.readers.calls[1:] == [("checkpoint", KUBELET.plugins_directory), ("drivers", KUBELET.root_directory)]
        assert (parts.checkpoint.value, parts.npus.value) == (desk.readers.reading, PICTURE)
        assert not found.is_without_kubelet
        assert set(found.host) == {"bundles", "cgroups", "uda"}
        assert desk.gatherer.certificate is not None
        assert desk.gatherer.warning == ""
        await desk.gather()
        assert len(desk.npus.asked) == 3, "the kubelet is known now"

    run(main)


def test_without_pods_the_list_is_not_asked_for(server: ApiServer, kubeconfig: str) -> None:
    async def main(desk: Desk) -> None:
        found = await desk.gather(pods=False)
        assert codes(found.parts.node, found.parts.lease, found.parts.pods) == [None, None, "pods-not-listed"]
        assert [request.kind for request in server.requests] == ["node", "lease"]

    run(main, ClusterConfig(kubeconfig=kubeconfig))


def test_a_configured_kubeconfig_and_name_come_before_the_kubelets(server: ApiServer, kubeconfig: str, tmp_path: Path) -> None:
    async def main(desk: Desk) -> None:
        desk.npus.said = replace(clean(), kubelet=kubelet(str(tmp_path / "none")))
        found = await desk.gather()
        assert len(desk.npus.asked) == 1, "the kubelet is not needed for its kubeconfig"
        assert found.facts.node_name == "other"
        assert [request.path for request in server.asked("node")] == ["/api/v1/nodes/other"]

    run(main, ClusterConfig(kubeconfig=kubeconfig, node_name="other"))


def test_settings_that_changed_make_a_new_client_and_end_the_old_one(server: ApiServer, kubeconfig: str, tmp_path: Path) -> None:
    # Those of other tests may be about to end.
    others = set(threading.enumerate())

    def threads() -> int:
        return sum(thread.name == "api" for thread in set(threading.enumerate()) - others)

    async def main(desk: Desk) -> None:
        await desk.gather()
        first = desk.gatherer.settings
        assert first is not None
        assert (first.kubeconfig, first.allow_exec) == (kubeconfig, False)
        await desk.gather()
        assert desk.gatherer.settings is first
        for config in (ClusterConfig(kubeconfig=kubeconfig, allow_exec=True), ClusterConfig(kubeconfig=str(tmp_path / "none"))):
            desk.gatherer.configure(config)
            found = await desk.gather()
            now = desk.gatherer.settings
            assert now is not None
            assert (now.kubeconfig, now.allow_exec) == (config.kubeconfig, config.allow_exec)
            await until(lambda: threads() == 1, "the end of the old client's thread")
        assert codes(found.parts.node) == ["api-kubeconfig-missing"]
        assert desk.gatherer.certificate is None, "the old client's certificate is not asked with any more"
        desk.gatherer.close()
        assert desk.gatherer.settings is None
        await until(lambda: threads() == 0, "the end of the client's thread")

    run(main, ClusterConfig(kubeconfig=kubeconfig))


def test_the_kubelets_kubeconfig_is_followed_when_it_becomes_another(server: ApiServer, kubeconfig: str, tmp_path: Path) -> None:
    other = make_kubeconfig(server, tmp_path, "other.conf")

    async def main(desk: Desk) -> None:
        for path in (kubeconfig, other):
            desk.npus.said = replace(clean(), kubelet=kubelet(path))
            await desk.gather()
            await desk.gather()
            assert desk.gatherer.settings is not None
            assert desk.gatherer.settings.kubeconfig == path

    run(main)


def test_while_the_broker_is_gone_the_api_server_is_asked_as_before(server: ApiServer, kubeconfig: str) -> None:
    async def main(desk: Desk) -> None:
        desk.npus.said = replace(clean(), kubelet=kubelet(kubeconfig))
        await desk.gather()
        desk.npus.said = GONE
        parts = (await desk.gather()).parts
        assert codes(parts.node, parts.lease, parts.pods) == [None] * 3
        assert codes(parts.host, parts.kubelet, parts.checkpoint, parts.drivers) == ["host-unseen"] * 4
        assert parts.host.failure is not None
        assert "(connection refused\\x1b)" in parts.host.failure.sentence
        assert [call for call in desk.readers.calls if call[0] == "checkpoint"] == [("checkpoint", KUBELET.plugins_directory)]

    run(main)


def test_where_the_broker_never_answered_nobody_says_that_there_is_no_kubelet() -> None:
    async def main(desk: Desk) -> None:
        desk.npus.said = GONE
        found = await desk.gather()
        parts = found.parts
        every = (parts.node, parts.lease, parts.pods, parts.host, parts.kubelet, parts.checkpoint, parts.drivers)
        assert codes(*every) == ["host-unseen"] * 7
        assert not found.is_without_kubelet
        assert (found.sights, found.host) == ({}, {})

    run(main)


def test_a_kubelet_in_doubt_is_asked_nothing_and_the_doubt_is_the_reason() -> None:
    async def main(desk: Desk) -> None:
        desk.npus.said = replace(clean(), kubelet=KubeletSource(SourceState.UNREADABLE, None, (Doubt("several-kubelets", "812 and 900"),)))
        found = await desk.gather()
        parts = found.parts
        assert codes(parts.node, parts.lease, parts.pods, parts.checkpoint, parts.drivers) == ["several-kubelets"] * 5
        assert parts.kubelet.value is not None
        assert parts.kubelet.value.doubts == (Doubt("several-kubelets", "812 and 900"),)
        assert not found.is_without_kubelet
        assert [name for name, _ in desk.readers.calls] == ["this-host"]

    run(main)


def test_a_doubt_without_a_row_is_a_part_that_is_missing() -> None:
    async def main(desk: Desk) -> None:
        desk.npus.said = replace(clean(), kubelet=KubeletSource(SourceState.UNREADABLE, None, (Doubt("made-up", "x"),)))
        parts = (await desk.gather()).parts
        assert codes(parts.checkpoint, parts.drivers, parts.node) == ["part-missing"] * 3

    run(main)


@pytest.mark.parametrize("pods", [True, False])
def test_a_host_without_a_kubelet_says_so_everywhere(pods: bool) -> None:
    async def main(desk: Desk) -> None:
        desk.npus.said = replace(clean(), kubelet=KubeletSource(SourceState.NOT_PRESENT))
        found = await desk.gather(pods=pods)
        parts = found.parts
        assert found.is_without_kubelet
        wanted = ["kubelet-not-found"] * 4 + ["kubelet-not-found" if pods else "pods-not-listed"]
        assert codes(parts.node, parts.lease, parts.checkpoint, parts.drivers, parts.pods) == wanted
        assert parts.checkpoint.failure == Failure("kubelet-not-found", SENTENCES[KubeletDoubt.NOT_FOUND])

    run(main)


@pytest.mark.parametrize(
    "config", [ClusterConfig(kubeconfig="/nowhere")], ids=["a kubeconfig that is configured means that there should be one"]
)
def test_a_configured_cluster_is_missed(config: ClusterConfig) -> None:
    async def main(desk: Desk) -> None:
        desk.npus.said = replace(clean(), kubelet=KubeletSource(SourceState.NOT_PRESENT))
        assert not (await desk.gather()).is_without_kubelet

    run(main, config)


def test_a_doubt_beside_the_absence_of_a_kubelet_is_a_doubt() -> None:
    async def main(desk: Desk) -> None:
        desk.npus.said = replace(clean(), kubelet=KubeletSource(SourceState.NOT_PRESENT, None, (Doubt(VantageDoubt.NOT_THE_HOST, ""),)))
        assert not (await desk.gather()).is_without_kubelet

    run(main)


def test_a_kubelet_whose_kubeconfig_was_not_found() -> None:
    async def main(desk: Desk) -> None:
        desk.npus.said = replace(clean(), kubelet=kubelet(""))
        parts = (await desk.gather()).parts
        assert parts.node.failure == Failure("api-kubeconfig-missing", "Its command line names none.")
        assert codes(parts.checkpoint, parts.drivers, parts.kubelet) == [None] * 3, "its files are read all the same"

    run(main)


def test_the_api_servers_faults_are_parts(server: ApiServer, kubeconfig: str) -> None:
    server.always("pods", status(500, "Internal Server Error", "etcd is away"))

    async def main(desk: Desk) -> None:
        parts = (await desk.gather()).parts
        assert codes(parts.node, parts.lease, parts.pods) == [None, None, "api-server-error"]
        assert len(desk.npus.asked) == 1
        assert desk.npus.asked[0][1] is not None

    run(main, ClusterConfig(kubeconfig=kubeconfig))


@pytest.mark.parametrize("body", [b"", b"[]", b'{"kind": "Pod"}', b"\xff"])
def test_a_node_that_cannot_be_read_names_no_runtime(server: ApiServer, kubeconfig: str, body: bytes) -> None:
    server.bodies["node"] = body

    async def main(desk: Desk) -> None:
        found = await desk.gather()
        assert desk.npus.asked == [((), None)]
        assert found.parts.node.body == body, "a snapshot says what is wrong with it"

    run(main, ClusterConfig(kubeconfig=kubeconfig))


# --- what hangs -----------------------------------------------------------------------------------------------------------


def test_a_look_at_npus_that_hangs_is_a_part_that_is_missing() -> None:
    async def main(desk: Desk) -> None:
        desk.npus.hold = asyncio.Event()
        found = await desk.given_up(lambda: desk.npus.looks, NPU_SECONDS)
        assert (found.parts.npus.value, found.parts.npus.failure) == (None, None)
        assert found.parts.npus.taken_at == 1000.0, "what was missed is as old as the question"
        assert codes(found.parts.checkpoint) == [None], "all else is gathered"
        assert desk.npus.asked[-1][0] == ()

    run(main)


def test_a_file_system_that_hangs_is_a_part_that_is_missing_and_holds_up_nothing_for_good() -> None:
    begun, held = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        held.wait()

    async def main(desk: Desk) -> None:
        await desk.gather()
        desk.readers.does = hang
        try:
            found = await desk.given_up(begun.is_set, READ_SECONDS)
            assert (found.facts.boot_id, found.facts.machine_ids) == ("", frozenset()), "what the host is cannot be told either"
            assert codes(found.parts.checkpoint, found.parts.drivers) == ["part-missing"] * 2
            assert found.parts.checkpoint.failure is not None
            assert "still waits for the file system" in found.parts.checkpoint.failure.sentence
            assert await outcome(asyncio.ensure_future(desk.gatherer.read_checkpoint())) is None
        finally:
            desk.readers.does = lambda: None
            held.set()
        await until(lambda: not desk.worker.hung, "the end of the call that hung")
        assert codes((await desk.gather()).parts.checkpoint) == [None]
        assert await outcome(asyncio.ensure_future(desk.gatherer.read_checkpoint())) is desk.readers.reading

    run(main)


def test_a_checkpoint_that_hangs_alone() -> None:
    begun, held = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        held.wait()

    async def main(desk: Desk) -> None:
        desk.readers.drivers_do = hang
        try:
            found = await desk.given_up(begun.is_set, READ_SECONDS)
        finally:
            held.set()
        assert found.facts.boot_id == BOOT_ID
        assert codes(found.parts.checkpoint, found.parts.drivers) == ["part-missing"] * 2
        assert found.parts.checkpoint.failure is not None
        assert f"did not answer within {READ_SECONDS:g} s" in found.parts.checkpoint.failure.sentence

    run(main)


@pytest.mark.parametrize("error", [RuntimeError("unexpected"), OSError(5, "EIO"), TimeoutError()])
def test_what_reading_raises_unexpectedly_goes_to_whoever_looks(error: Exception) -> None:
    def fail() -> None:
        raise error

    async def main(desk: Desk) -> None:
        desk.readers.does = fail
        with pytest.raises(type(error)):
            await desk.gather()
        desk.readers.does = lambda: None
        assert codes((await desk.gather()).parts.checkpoint) == [None], "and the next look is a whole one"

    run(main)


def test_a_look_that_is_cancelled_ends_at_once_whatever_hangs() -> None:
    async def main(desk: Desk) -> None:
        desk.npus.hold = asyncio.Event()
        task = asyncio.ensure_future(desk.gatherer.gather(pods=True))
        await until(lambda: desk.npus.looks, "the look at NPUs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await outcome(task)

    run(main)


# --- the checkpoint alone -------------------------------------------------------------------------------------------------


def test_no_checkpoint_is_read_before_the_kubelet_is_known_or_after_it_has_gone() -> None:
    async def main(desk: Desk) -> None:
        assert await desk.gatherer.read_checkpoint() is None
        await desk.gather()
        reading = await outcome(asyncio.ensure_future(desk.gatherer.read_checkpoint()))
        assert reading is desk.readers.reading
        desk.npus.said = replace(clean(), kubelet=KubeletSource(SourceState.NOT_PRESENT))
        await desk.gather()
        before = len(desk.readers.calls)
        assert await desk.gatherer.read_checkpoint() is None
        assert len(desk.readers.calls) == before

    run(main)


# --- which vNPUs are asked about --------------------------------------------------------------------------------------------


VNPU = VnpuView(
    name="v0100", vdev=100, identity="", card="p000", template="vir05_1c_8g", vfid=1, cores=5.0, node="/dev/vdavinci100", use=Use.IDLE,
    verdict=Verdict.UNKNOWN, reason=Reason.OK, text="", first_seen_usec=1, grace_start_usec=0, confirmations=0, eligible_at_usec=0,
)  # fmt: skip


def vnpus(*uses: Use, vdev: int | None = None) -> Picture:
    views = tuple(replace(VNPU, name=f"v{100 + index:04d}", vdev=vdev or 100 + index, use=use) for index, use in enumerate(uses))
    return replace(PICTURE, vnpus=views, nodes={view.name: Node(7, 8, 236, view.vdev) for view in views})


def test_only_idle_vnpus_with_a_number_are_asked_about() -> None:
    async def main(desk: Desk) -> None:
        picture = vnpus(Use.IDLE, Use.IN_USE, Use.UNKNOWN, Use.IDLE, Use.IDLE)
        desk.npus.picture = replace(picture, nodes={name: node for name, node in picture.nodes.items() if name != "v0104"})
        found = await desk.gather()
        assert desk.npus.asked[-1][0] == (AskedVnpu(100, 236, 100), AskedVnpu(103, 236, 103))
        assert desk.npus.asked[0][0] == (), "to learn of the kubelet no process is looked at"
        assert set(found.sights) == {"v0100", "v0103"}
        assert {sight.finding for sight in found.sights.values()} == {Finding.CLEAN}
        assert set(found.host) == {"bundles", "cgroups", "uda", "descriptors"}

    run(main)


def test_an_id_that_two_chips_list_is_asked_about_once() -> None:
    async def main(desk: Desk) -> None:
        desk.npus.picture = vnpus(Use.IDLE, Use.IDLE, vdev=148)
        found = await desk.gather()
        assert desk.npus.asked[-1][0] == (AskedVnpu(148, 236, 148),)
        assert len(found.sights) == 1

    run(main)


def test_where_it_is_not_known_yet_that_there_is_no_kubelet_idle_vnpus_are_asked_about_by_themselves() -> None:
    async def main(desk: Desk) -> None:
        desk.npus.said = replace(clean(), kubelet=KubeletSource(SourceState.NOT_PRESENT))
        desk.npus.picture = vnpus(Use.IDLE)
        found = await desk.gather()
        assert desk.npus.asked == [((), None), ((AskedVnpu(100, 236, 100),), None)]
        assert set(found.sights) == {"v0100"}

    run(main)


def test_a_host_without_a_kubelet_is_asked_for_once_a_look(server: ApiServer, kubeconfig: str) -> None:
    async def main(desk: Desk) -> None:
        desk.npus.said = replace(clean(), kubelet=KubeletSource(SourceState.NOT_PRESENT))
        found = await desk.gather()
        assert found.is_without_kubelet
        assert desk.npus.asked == [((), None)]
        desk.npus.picture = vnpus(Use.IDLE)
        of_idle = (AskedVnpu(100, 236, 100),)
        found = await desk.gather()
        assert set(found.sights) == {"v0100"}
        assert desk.npus.asked[1:] == [(of_idle, None)]
        # One that was started meanwhile is seen at once, and so is the runtime of its Node.
        desk.npus.said = replace(clean(), kubelet=kubelet(kubeconfig))
        found = await desk.gather()
        assert desk.npus.asked[2:] == [(of_idle, None), (of_idle, RUNTIME)]
        assert codes(found.parts.node, found.parts.kubelet, found.parts.host) == [None] * 3
        # A broker that does not answer is asked once, too.
        desk.npus.said = replace(clean(), kubelet=KubeletSource(SourceState.NOT_PRESENT))
        await desk.gather()
        desk.npus.said, count = GONE, len(desk.npus.asked)
        found = await desk.gather()
        assert len(desk.npus.asked) == count + 1
        assert codes(found.parts.host) == ["host-unseen"]

    run(main)
