"""Gathers the parts of a snapshot: asks the API server, the broker and the NPUs' watcher, and reads the kubelet's files.

Whatever goes wrong is a part with a failure; nothing is raised for it. Each step has a bound of its own.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from devward.clock import Clock
from devward.cluster.answer import AnswerError
from devward.cluster.answers import Answer, Failure
from devward.cluster.api import Api, ApiSettings
from devward.cluster.api_library import Library
from devward.cluster.api_result import ApiFault, ApiLook
from devward.cluster.asked import answer_of, unasked
from devward.cluster.certificate import Certificate
from devward.cluster.checkpoint import CheckpointReading
from devward.cluster.checkpoint_file import RETRY_AFTER, CheckpointReader
from devward.cluster.drivers import read_drivers
from devward.cluster.kubelet_facts import SENTENCES, Kubelet, KubeletDoubt, KubeletScan
from devward.cluster.managers import Drivers
from devward.cluster.node import NodeFacts, parse_node
from devward.cluster.observations import ROWS, Look, api_code, sentence
from devward.cluster.parts import HostFacts, Part, Parts
from devward.cluster.statement import AskedVnpu, ContainerSight, KubeletSight, SourceSight, Statement, VnpuSight
from devward.cluster.this_host import read_this_host
from devward.cluster.witness import WitnessedHost, kubelet_scan
from devward.config import ClusterConfig
from devward.npu.inventory import Picture, Unavailable
from devward.text import printable
from devward.worker import Worker, WorkerHung

#: Seconds that reading the kubelet's files may take, and that a look at NPUs is waited for.
READ_SECONDS: Final = 5.0 + RETRY_AFTER
NPU_SECONDS: Final = 15.0


class Npus(Protocol):
    """What is needed of the NPUs and of their broker."""

    @property
    def picture(self) -> Picture:
        """The latest look."""

    async def fresh(self) -> None:
        """Wait for a look that begins after this call."""

    async def witness(self, vnpus: tuple[AskedVnpu, ...], runtime: str | None) -> Statement | Unavailable:
        """Have the broker say what the host shows."""


@dataclass(frozen=True, slots=True)
class Readers:
    """What reads this host; blocking calls. Tests put others in their place."""

    checkpoint: Callable[[str], CheckpointReading]
    drivers: Callable[[str], Drivers] = read_drivers
    this_host: Callable[[str], HostFacts] = read_this_host


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a snapshot is taken from, and what goes with it."""

    parts: Parts
    facts: HostFacts
    #: What the host shows of the vNPUs that were asked about, by their names.
    sights: Mapping[str, VnpuSight]
    #: How much of each of its sources the host let be seen, by name.
    host: Mapping[str, SourceSight]
    #: Every container that the host shows; None: it did not say.
    containers: tuple[ContainerSight, ...] | None
    #: The runtime that the Node names; None where it could not be read.
    runtime: str | None
    #: No process listens as a kubelet, and none is in doubt.
    is_without_kubelet: bool


@dataclass(frozen=True, slots=True)
class _Host:
    """What was testified, and when that was begun."""

    at: float
    said: Statement | None
    failure: Failure | None


class Gatherer:
    """Gathers, one look at a time."""

    def __init__(
        self,
        config: ClusterConfig,
        npus: Npus,
        *,
        worker: Worker,
        clock: Clock,
        ask_about: Callable[[Picture], frozenset[str]],
        readers: Readers | None = None,
        on_loaded: Callable[[], None] | None = None,
    ) -> None:
        """Ask nothing yet. `worker` reads files, `ask_about` returns the names of the vNPUs whose users are worth a search of the host.

        `on_loaded` is as in Library.
        """
        self._config = config
        self._npus = npus
        self._worker = worker
        self._clock = clock
        self._ask_about = ask_about
        self._readers = readers or Readers(CheckpointReader().read)
        self._api: Api | None = None
        self._kubelet: KubeletSight | None = None
        #: The broker named no kubelet when it was asked last: there was none, or it could not tell which.
        self._was_none_named = False
        #: Why the kubelet is not known; only while it is not.
        self._no_kubelet = Failure(KubeletDoubt.NOT_FOUND.value, SENTENCES[KubeletDoubt.NOT_FOUND])
        self.library = Library(on_loaded)
        #: How the API server is asked; None: not yet.
        self.settings: ApiSettings | None = None

    def configure(self, config: ClusterConfig) -> None:
        """Apply other settings from the next look on."""
        self._config = config

    def close(self) -> None:
        """Let go of the API server."""
        if self._api is not None:
            self._api.close()
        self._api = self.settings = None

    @property
    def certificate(self) -> Certificate | None:
        """The certificate with which the API server was asked last, if any."""
        return self._api.certificate if self._api is not None else None

    @property
    def warning(self) -> str:
        """A sentence about that certificate where somebody should look at it; else empty."""
        return self._api.warning if self._api is not None else ""

    async def gather(self, *, pods: bool) -> Gathered:
        """Gather everything; without `pods` the list of Pods is left out."""
        npus = await self._look_at_npus()
        asked = self._to_be_asked(npus.value)
        early = await self._learn_of_kubelet(tuple(asked.values()))
        looked = await self._ask_api(pods=pods)
        facts = await self._this_host()
        node = _node_of(looked.node, facts.node_name)
        runtime = node.runtime_version if node is not None else None
        host = early or await self._ask_broker(tuple(asked.values()), runtime)
        scan = kubelet_scan(host.said.kubelet) if host.said is not None else None
        kubelet = Part(host.at, scan, host.failure)
        checkpoint, drivers = await self._read_files(kubelet)
        witnessed = WitnessedHost(host.said) if host.said is not None else None
        found = {name: witnessed.vnpu(vnpu.vdev, vnpu.number) for name, vnpu in asked.items()} if witnessed is not None else {}
        doubts = kubelet.value.doubts if kubelet.value is not None else ()
        return Gathered(
            Parts(looked.node, looked.lease, looked.pods, checkpoint, kubelet, drivers, Part(host.at, witnessed, host.failure), npus),
            facts,
            {name: sight for name, sight in found.items() if sight is not None},
            host.said.sources if host.said is not None else {},
            host.said.containers if host.said is not None else None,
            runtime,
            is_without_kubelet=[doubt.code for doubt in doubts] == [KubeletDoubt.NOT_FOUND] and not self._config.kubeconfig,
        )

    async def read_checkpoint(self) -> CheckpointReading | None:
        """Return the checkpoint of the kubelet that was found last; None: there is none, or its file system hangs."""
        if self._kubelet is None:
            return None
        directory = self._kubelet.plugins_directory
        try:
            return await self._worker.run(lambda: self._readers.checkpoint(directory), READ_SECONDS)
        except WorkerHung:
            return None

    # --- the parts -----------------------------------------------------------------------------------------------------
    async def _look_at_npus(self) -> Part[Picture]:
        at = self._clock.monotonic()
        try:
            async with asyncio.timeout(NPU_SECONDS):
                await self._npus.fresh()
        except TimeoutError:
            return Part(at)
        return Part(at, self._npus.picture)

    async def _learn_of_kubelet(self, vnpus: tuple[AskedVnpu, ...]) -> _Host | None:
        """Ask the broker for the kubelet, if the API server cannot be asked without; return its answer if that is all there is to ask."""
        if self._kubelet is not None or self._config.kubeconfig:
            return None
        # Where none was named at the look before none is expected now; an answer that names one after all is not used for vNPUs.
        at_once = vnpus if self._was_none_named else ()
        said = await self._ask_broker(at_once, None)
        return said if self._kubelet is None and at_once == vnpus else None

    async def _ask_api(self, *, pods: bool) -> "_Asked":
        """Ask the API server as the kubelet is allowed to, or return why not."""
        path = self._config.kubeconfig or (self._kubelet.kubeconfig if self._kubelet is not None else "")
        if not path:
            return _Asked.none(self._no_kubeconfig(), self._clock.monotonic(), pods=pods)
        settings = ApiSettings(path, allow_exec=self._config.allow_exec)
        if self._api is None or settings != self.settings:
            self.close()
            self.settings = settings
            self._api = Api(settings, monotonic=self._clock.monotonic, realtime_usec=self._clock.realtime_usec, library=self.library)
        return _Asked.of(await self._api.look(self._config.node_name, pods=pods), self._clock.monotonic())

    def _no_kubeconfig(self) -> Failure:
        """Why there is none: the kubelet is not known, which is told with the same words for itself, or its kubeconfig was not found."""
        if self._kubelet is None:
            return self._no_kubelet
        return Failure(api_code(ApiFault.KUBECONFIG_MISSING), self._kubelet.kubeconfig_problem)

    async def _this_host(self) -> HostFacts:
        name = self._config.node_name
        if not name and self.certificate is not None:
            name = self.certificate.node
        try:
            return await self._worker.run(lambda: self._readers.this_host(name), READ_SECONDS)
        except WorkerHung:
            return HostFacts(name, "", frozenset())

    def _to_be_asked(self, picture: Picture | None) -> dict[str, AskedVnpu]:
        """Return the vNPUs whose users are looked for, by name."""
        if picture is None:
            return {}
        names = self._ask_about(picture)
        found = [(vnpu, picture.nodes.get(vnpu.name)) for vnpu in picture.vnpus if vnpu.name in names]
        # An id that two chips list is vouched for by nobody, and cannot be asked about twice.
        single = {vnpu.vdev: (vnpu.name, node) for vnpu, node in found if node is not None}
        return {name: AskedVnpu(vdev, node.major, node.minor) for vdev, (name, node) in single.items()}

    async def _ask_broker(self, vnpus: tuple[AskedVnpu, ...], runtime: str | None) -> _Host:
        at = self._clock.monotonic()
        said = await self._npus.witness(vnpus, runtime)
        if isinstance(said, Unavailable):
            # Which kubelet it was is kept for its kubeconfig: the API server can be asked all the same.
            self._no_kubelet = Failure(Look.HOST_UNSEEN.value, sentence(Look.HOST_UNSEEN, printable(said.text)))
            return _Host(at, None, self._no_kubelet)
        self._kubelet = said.kubelet.kubelet
        self._was_none_named = self._kubelet is None
        self._no_kubelet = _failure_of(kubelet_scan(said.kubelet))
        return _Host(at, said, None)

    async def _read_files(self, kubelet: Part[KubeletScan]) -> tuple[Part[CheckpointReading], Part[Drivers]]:
        at = self._clock.monotonic()
        found = kubelet.value.kubelet if kubelet.value is not None else None
        if found is None:
            failure = kubelet.failure or _failure_of(kubelet.value)
        else:
            try:
                return await self._worker.run(lambda: self._read_of(found, at), READ_SECONDS)
            except WorkerHung as hung:
                failure = Failure(Look.PART_MISSING.value, sentence(Look.PART_MISSING, printable(str(hung))))
        return Part(at, failure=failure), Part(at, failure=failure)

    def _read_of(self, kubelet: Kubelet, at: float) -> tuple[Part[CheckpointReading], Part[Drivers]]:
        return Part(at, self._readers.checkpoint(kubelet.plugins_directory)), Part(at, self._readers.drivers(kubelet.root_directory))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the API server answered, as parts of a snapshot."""

    node: Answer
    lease: Answer
    pods: Answer

    @classmethod
    def of(cls, look: ApiLook, now: float) -> "_Asked":
        return cls(answer_of(look.node, now), answer_of(look.lease, now), answer_of(look.pods, now))

    @classmethod
    def none(cls, failure: Failure, now: float, *, pods: bool) -> "_Asked":
        answer = unasked(failure, now)
        return cls(answer, answer, answer if pods else answer_of(None, now))


def nothing_gathered(failure: Failure, now: float) -> Gathered:
    """Return what there is where gathering itself, or what follows it, broke off."""
    asked = _Asked.none(failure, now, pods=True)
    parts = Parts(
        asked.node,
        asked.lease,
        asked.pods,
        checkpoint=Part(now, failure=failure),
        kubelet=Part(now, failure=failure),
        drivers=Part(now, failure=failure),
        host=Part(now, failure=failure),
        npus=Part(now, failure=failure),
    )
    return Gathered(parts, HostFacts("", "", frozenset()), {}, {}, None, None, is_without_kubelet=False)


def _node_of(answer: Answer, name: str) -> NodeFacts | None:
    """Return the Node, for the runtime that it names; a snapshot says what is wrong with one that cannot be read."""
    try:
        return parse_node(answer.body, name) if answer.status == 200 else None
    except AnswerError:
        return None


def _failure_of(scan: KubeletScan | None) -> Failure:
    """Return why a kubelet's files are not known: the first doubt about the kubelet, by its own code, so that it is told once."""
    doubt = scan.doubts[0] if scan is not None and scan.doubts else None
    row = ROWS.get(doubt.code) if doubt is not None else None
    return Failure(row.code, row.sentence) if row is not None else Failure(Look.PART_MISSING.value, sentence(Look.PART_MISSING))
