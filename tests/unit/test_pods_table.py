"""Every combination of what a Pod can say and the host can show, held against a table of rules.

The table is written from what the words mean, in the order in which they weigh, and knows nothing of the code: its lists of reasons are
its own. Each Pod has two containers: `one` waits, runs or is not spoken of, `two` has ended or is not spoken of.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from devward.cluster.claims import Allocation, Memory, Moment, Standing
from devward.cluster.evidence import Finding
from devward.cluster.podlist import Container, ContainerKind, ContainerStatus, Pod, PodList, State, Termination
from devward.cluster.pods import Evidence, join_claims
from sim.pod_desk import BEGIN_USEC, HostSays, whole_pod
from sim.recorded_cluster import CARDS, DIES, REGISTERED, RESOURCE, WORD

PROTECTED, UNKNOWN, CANDIDATE, NONE = Standing
ANNOTATIONS: Final = {f"huawei.com/{WORD}": whole_pod(DIES[0])}
ABOUT_TO_START: Final = [
    *("ContainerCreating", "PodInitializing", "ErrImagePull", "ImagePullBackOff", "ImageInspectError", "ErrImageNeverPull"),
    *("RegistryUnavailable", "InvalidImageName", "SignatureValidationFailed", "CreateContainerConfigError", "PreCreateHookError"),
    *("PreStartHookError", "RestartingAllContainers"),
]
CANNOT_START: Final = ["CreateContainerError", "RunContainerError", "StartError", "PostStartHookError", "CrashLoopBackOff"]
WELL_KNOWN_ENDS: Final = ["Completed", "Error", "OOMKilled", "StartError", "ContainerCannotRun"]
OTHER_ENDS: Final = ["ContainerStatusUnknown", "Unknown", "", "SomethingNew"]

#: How `one` is: "running", None where nothing is said of it, else why it waits; an empty reason is none.
ONE: Final = [None, "running", "", "SomethingNew", "containercreating", *ABOUT_TO_START, *CANNOT_START]
#: How `two` ended: reason and code; None where nothing is said of it.
TWO: Final = [None, *itertools.product([*WELL_KNOWN_ENDS, *OTHER_ENDS], [0, 1])]
PHASES: Final = ["Pending", "Running", "Succeeded", "Failed", "Unknown", "", "SomethingNew"]
ALIVE: Final = ["nothing", "sandbox", "container", "unreadable"]


@dataclass(frozen=True)
class Case:
    """One combination."""

    phase: str
    one: str | None
    two: tuple[str, int] | None
    deleting: bool
    checkpointed: bool
    annotated: bool
    alive: str


def is_over(case: Case) -> bool:
    return case.phase in ("Succeeded", "Failed")


def has_failed(case: Case) -> bool:
    return case.one in CANNOT_START or (case.two is not None and case.two[1] != 0)


#: In this order; the first that fits decides, and its name says why.
RULES: Final[list[tuple[str, Callable[[Case], bool], Standing]]] = [
    ("a Pod that ended by its phase has not while a container runs", lambda c: is_over(c) and c.one == "running", PROTECTED),
    ("nor while the host shows anything of it", lambda c: is_over(c) and c.alive in ("sandbox", "container"), PROTECTED),
    ("nor while the host cannot be read", lambda c: is_over(c) and c.alive == "unreadable", UNKNOWN),
    ("else it has ended, whatever its containers wait for", is_over, NONE),
    ("a Pod that is being deleted may run to its very end", lambda c: c.deleting, PROTECTED),
    ("a running container uses its card", lambda c: c.one == "running", PROTECTED),
    ("a container that is about to start will, in every phase", lambda c: c.one in ABOUT_TO_START, PROTECTED),
    ("one that waits without a reason, for the first time, is about to start", lambda c: c.one == "", PROTECTED),
    ("a container that lives on the host uses its card, whatever is said", lambda c: c.alive == "container", PROTECTED),
    ("a phase that is not known says nothing", lambda c: c.phase not in ("Pending", "Running"), UNKNOWN),
    ("a reason to wait that is not known says nothing", lambda c: c.one is not None and c.one not in CANNOT_START, UNKNOWN),
    ("nor does an end that nobody saw, or that is not known", lambda c: c.two is not None and c.two[0] in OTHER_ENDS, UNKNOWN),
    ("a failed container may live where the host cannot be read", lambda c: has_failed(c) and c.alive == "unreadable", UNKNOWN),
    ("what could not be started left nothing that it owns", has_failed, CANDIDATE),
    ("a Pod that was only bound may be getting its card now", lambda c: c.phase == "Pending", PROTECTED),
    ("a card was given, and not every container is spoken of", lambda c: c.checkpointed and None in (c.one, c.two), PROTECTED),
    ("what shows nothing is not known", lambda c: True, UNKNOWN),
]


def cases() -> Iterator[Case]:
    flags = (False, True)
    return itertools.starmap(Case, itertools.product(PHASES, ONE, TWO, flags, flags, flags, ALIVE))


def pod_of(case: Case, uid: str) -> Pod:
    statuses = []
    if case.one == "running":
        statuses.append(ContainerStatus(ContainerKind.REGULAR, "one", State.RUNNING))
    elif case.one is not None:
        statuses.append(ContainerStatus(ContainerKind.REGULAR, "one", State.WAITING, case.one))
    if case.two is not None:
        statuses.append(
            ContainerStatus(ContainerKind.REGULAR, "two", State.TERMINATED, "", Termination(case.two[1], case.two[0], None, None))
        )
    containers = tuple(Container(ContainerKind.REGULAR, name, frozenset({RESOURCE})) for name in ("one", "two"))
    annotations = ANNOTATIONS if case.annotated else {}
    return Pod(uid, "default", uid, case.phase, case.deleting, annotations, containers, tuple(statuses))


def test_every_combination_has_the_standing_that_its_first_rule_gives() -> None:
    every = {f"u{number}": case for number, case in enumerate(cases())}
    assert len(every) == 7 * 23 * 19 * 8 * 4
    host = HostSays()
    entries = []
    for uid, case in every.items():
        if case.checkpointed:
            entries += [Allocation(uid, name, RESOURCE, frozenset({0})) for name in ("one", "two")]
        if case.alive != "nothing":
            host.whole[uid] = Finding.UNKNOWN if case.alive == "unreadable" else Finding.HELD
            host.containers[uid] = {"unreadable": Finding.UNKNOWN, "container": Finding.HELD}.get(case.alive, Finding.CLEAN)
    pods = PodList("7", tuple(pod_of(case, uid) for uid, case in every.items()))
    evidence = Evidence(pods, tuple(entries), host, CARDS, REGISTERED)
    claims, _ = join_claims(evidence, Memory(), Moment(0.0, BEGIN_USEC))
    assert not claims.blockers
    found = [{claim.uid: claim.standing for claim in card.claims} for card in claims.cards]
    used: Counter[str] = Counter()
    wrong = []
    for uid, case in every.items():
        name, _, expected = next(rule for rule in RULES if rule[1](case))
        used[name] += 1
        # What nothing names may be either card.
        other = NONE if case.annotated or case.checkpointed else expected
        if (found[0].get(uid, NONE), found[1].get(uid, NONE)) != (expected, other):
            wrong.append((name, case, expected, other, found[0].get(uid), found[1].get(uid)))
    assert wrong[:3] == []
    assert used.keys() == {name for name, _, _ in RULES}
