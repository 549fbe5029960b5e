"""Each part of a snapshot read: the API server's bodies parsed, and the age of everything measured. Pure.

A part that cannot be used is unknown for the whole node: it might say anything, of any card.
"""

from collections.abc import Callable
from typing import TypeVar

from devward.cluster.answer import AnswerError
from devward.cluster.answers import Answer
from devward.cluster.checkpoint import Checkpoint
from devward.cluster.claims import Allocation, HostEvidence, Moment
from devward.cluster.kubelet_facts import KubeletScan
from devward.cluster.ledger import Ledger
from devward.cluster.managers import Drivers
from devward.cluster.node import LeaseFacts, NodeFacts, parse_lease, parse_node
from devward.cluster.observations import Look, Scope
from devward.cluster.parts import Part, Parts, SnapshotBounds, Source
from devward.cluster.podlist import PodList, parse_pod_list
from devward.cluster.views import SourceUse
from devward.npu.inventory import Picture

#: Reads the list of a node's Pods, as parse_pod_list does.
ReadPods = Callable[[bytes, str], PodList]
_T = TypeVar("_T")


class Readings:
    """The parts of one look; None stands for each that cannot be used, of which the ledger then knows."""

    def __init__(
        self, parts: Parts, node_name: str, now: Moment, bounds: SnapshotBounds, ledger: Ledger, read_pods: ReadPods | None = None
    ) -> None:
        """Read every part; the ledger learns of what cannot be used."""
        read_list = read_pods or parse_pod_list
        self._parts = parts
        self._now = now.monotonic
        self._bounds = bounds
        self._ledger = ledger
        self.uses: list[SourceUse] = []
        name = node_name
        self.node: NodeFacts | None = self._answered(Source.NODE, parts.node, lambda body: parse_node(body, name))
        self.lease: LeaseFacts | None = self._answered(Source.LEASE, parts.lease, lambda body: parse_lease(body, name))
        self.pods: PodList | None = self._answered(Source.PODS, parts.pods, lambda body: read_list(body, name))
        self.checkpoint: Checkpoint | None = self._take_checkpoint()
        #: What the checkpoint says that was given.
        self.allocations: tuple[Allocation, ...] = allocations_of(self.checkpoint) if self.checkpoint is not None else ()
        self.kubelet: KubeletScan | None = self._taken(Source.KUBELET, parts.kubelet)
        self.drivers: Drivers | None = self._taken(Source.DRIVERS, parts.drivers)
        self.host: HostEvidence | None = self._taken(Source.HOST, parts.host)
        self.picture: Picture | None = self._taken(Source.NPUS, parts.npus)

    def _answered(self, source: Source, answer: Answer, parse: Callable[[bytes], _T]) -> _T | None:
        value: _T | None = None
        if answer.failure is not None:
            self._ledger.take_failure(source, answer.failure)
        elif not answer.status:
            self._ledger.take_look(Look.NO_ANSWER, source)
        elif answer.status != 200:
            self._ledger.take_look(Look.STATUS_ODD, source, str(answer.status))
        else:
            try:
                value = parse(answer.body)
            except AnswerError as error:
                self._ledger.take(Scope.NODE, error.problem.value, source, str(error))
        self._take_age(source, answer.asked_at, is_read=value is not None)
        return value

    def _taken(self, source: Source, part: Part[_T]) -> _T | None:
        if part.failure is not None:
            self._ledger.take_failure(source, part.failure)
        elif part.value is None:
            self._ledger.take_look(Look.PART_MISSING, source)
        self._take_age(source, part.taken_at, is_read=part.value is not None)
        return part.value

    def _take_checkpoint(self) -> Checkpoint | None:
        reading = self._taken(Source.CHECKPOINT, self._parts.checkpoint)
        if reading is None:
            return None
        for doubt in reading.doubts:
            self._ledger.take_doubt(Source.CHECKPOINT, doubt)
        if reading.checkpoint is None and not reading.doubts:
            self._ledger.take_look(Look.PART_MISSING, Source.CHECKPOINT)
        return reading.checkpoint

    def _take_age(self, source: Source, taken_at: float, *, is_read: bool) -> None:
        age = self._now - taken_at
        self.uses.append(SourceUse(source, age, is_read))
        if age < 0:
            self._ledger.take_look(Look.PART_AHEAD, source)
        elif not age <= self._bounds.part:
            self._ledger.take_look(Look.PART_OLD, source, f"{age:.0f} s")


def allocations_of(checkpoint: Checkpoint) -> tuple[Allocation, ...]:
    """Return the entries of a checkpoint as claims want them."""
    return tuple(
        Allocation(
            entry.pod_uid,
            entry.container,
            entry.resource,
            entry.allocation.cards,
            frozenset(entry.device_ids),
            entry.allocation.template,
            entry.allocation.handed,
        )
        for entry in checkpoint.entries
    )
