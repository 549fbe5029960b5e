"""What the states of a Pod's containers say about its claim. Pure.

The reasons are those of kubelet's `pkg/kubelet/container/sync_result.go`, `pkg/kubelet/images/types.go` and `pkg/kubelet/kuberuntime`, and
of the runtimes for ended containers. A waiting container is tried again at any moment, and has no time. A reason that is not in these
tables is unknown, and so is its claim: kubelets add reasons.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from devward.cluster.claims import ClaimReason, Standing, strongest
from devward.cluster.podlist import ContainerKind, ContainerStatus, Pod, State, Termination

#: It is about to be started, and nothing failed that a vNPU could have been made for.
STARTING: Final = frozenset(
    {
        "ContainerCreating",
        "PodInitializing",
        "ErrImagePull",
        "ImagePullBackOff",
        "ImageInspectError",
        "ErrImageNeverPull",
        "RegistryUnavailable",
        "InvalidImageName",
        "SignatureValidationFailed",
        "CreateContainerConfigError",
        "PreCreateHookError",
        "PreStartHookError",
        "RestartingAllContainers",
    }
)
#: The runtime was asked and failed, maybe after it had made a vNPU. The next attempt makes another.
FAILING: Final = frozenset({"CreateContainerError", "RunContainerError", "StartError", "PostStartHookError", "CrashLoopBackOff"})
#: How a container can end, by the runtimes.
ENDED: Final = frozenset({"Completed", "Error", "OOMKilled", "StartError", "ContainerCannotRun"})
#: The kubelet, or the runtime, does not know what became of it.
LOST: Final = frozenset({"ContainerStatusUnknown", "Unknown"})

#: Phases after which no container of a Pod is ever started again.
TERMINAL: Final = frozenset({"Succeeded", "Failed"})
_PENDING: Final = "Pending"
_PHASES: Final = frozenset({_PENDING, "Running"})


class ContainerKey(NamedTuple):
    """One container, for as long as its Pod exists."""

    uid: str
    kind: ContainerKind
    name: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a Pod's own words say about its claim."""

    standing: Standing
    reason: ClaimReason
    detail: str = ""
    #: Of a candidate: each container that failed, with how its last attempt ended, if that is said.
    failures: tuple[tuple[ContainerKey, Termination | None], ...] = ()


class _Mark(NamedTuple):
    standing: Standing
    reason: ClaimReason
    detail: str


def judge(pod: Pod, *, has_allocation: bool, was_unsaid: Callable[[ContainerKey], bool]) -> Judgement:
    """Return what a Pod that has not ended says about its claim.

    `was_unsaid` tells whether a container waited without a reason at the look before.
    """
    if pod.deleting:
        return Judgement(Standing.PROTECTED, ClaimReason.DELETING)
    marks = [mark for status in pod.statuses if (mark := _mark(pod, status, was_unsaid)) is not None]
    if pod.phase not in _PHASES:
        marks.append(_Mark(Standing.UNKNOWN, ClaimReason.PHASE_UNKNOWN, pod.phase))
    decides = strongest(mark.standing for mark in marks)
    if decides is Standing.CANDIDATE:
        return Judgement(decides, ClaimReason.CANNOT_START, min(mark.detail for mark in marks), tuple(sorted(_failures(pod), key=repr)))
    if decides is not Standing.NONE:
        # Of several the first in the order of their names: the order of lists says nothing.
        mark = min(mark for mark in marks if mark.standing is decides)
        return Judgement(*mark)
    if pod.phase == _PENDING:
        return Judgement(Standing.PROTECTED, ClaimReason.PENDING)
    if has_allocation and not _is_complete(pod):
        return Judgement(Standing.PROTECTED, ClaimReason.INCOMPLETE)
    return Judgement(Standing.UNKNOWN, ClaimReason.NOTHING_SHOWN)


def is_running(pod: Pod) -> bool:
    """Whether a container, of any kind, is running by its status, or in a state that is not known."""
    return any(status.state in (State.RUNNING, State.UNKNOWN) for status in pod.statuses)


def is_unsaid(status: ContainerStatus) -> bool:
    """Whether a container waits and does not say for what."""
    return status.state is State.WAITING and not status.reason.strip()


def _mark(pod: Pod, status: ContainerStatus, was_unsaid: Callable[[ContainerKey], bool]) -> _Mark | None:
    """Return what one container says; None: that it has ended well, or nothing."""
    if status.state is State.RUNNING:
        return _Mark(Standing.PROTECTED, ClaimReason.RUNNING, status.name)
    if status.state is State.UNKNOWN:
        return _Mark(Standing.UNKNOWN, ClaimReason.STATE_UNKNOWN, status.reason)
    if is_unsaid(status):
        if was_unsaid(ContainerKey(pod.uid, status.kind, status.name)):
            return _Mark(Standing.UNKNOWN, ClaimReason.STILL_UNSAID, status.name)
        return _Mark(Standing.PROTECTED, ClaimReason.WAITING_UNSAID, status.name)
    if status.state is State.WAITING:
        if status.reason in STARTING:
            return _Mark(Standing.PROTECTED, ClaimReason.STARTING, status.reason)
        if status.reason not in FAILING:
            return _Mark(Standing.UNKNOWN, ClaimReason.REASON_UNKNOWN, status.reason)
        return _failed(status, status.reason)
    end = status.termination
    if end is None or end.reason not in ENDED:
        reason = ClaimReason.CONTAINER_LOST if end is not None and end.reason in LOST else ClaimReason.END_UNKNOWN
        return _Mark(Standing.UNKNOWN, reason, end.reason if end is not None else "")
    return _failed(status, end.reason) if end.exit_code != 0 else None


def _failed(status: ContainerStatus, detail: str) -> _Mark | None:
    # An ephemeral container has no devices, so that its failure left nothing behind.
    return None if status.kind is ContainerKind.EPHEMERAL else _Mark(Standing.CANDIDATE, ClaimReason.CANNOT_START, detail)


def _failures(pod: Pod) -> Iterator[tuple[ContainerKey, Termination | None]]:
    for status in pod.statuses:
        failed = status.state is State.WAITING or (status.termination is not None and status.termination.exit_code != 0)
        if failed and status.kind is not ContainerKind.EPHEMERAL:
            yield ContainerKey(pod.uid, status.kind, status.name), status.termination


def _is_complete(pod: Pod) -> bool:
    """Whether every container is said to have ended."""
    ended = {(status.kind, status.name) for status in pod.statuses if status.state is State.TERMINATED}
    return all((container.kind, container.name) in ended for container in pod.containers if container.kind is not ContainerKind.EPHEMERAL)
