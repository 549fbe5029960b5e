"""A statement of devward.cluster.statement as the broker's protocol has it in JSON: each object read strictly, field by field. Pure.

A doubt's code is not held against a list: one that this side does not know is a doubt as good as any.
"""

import re
from typing import Any, Final

from devward.cluster.bundle import ContainerType
from devward.cluster.evidence import FIRST_VDEV, LAST_VDEV, Doubt, Finding, SourceState
from devward.cluster.life import Life
from devward.cluster.statement import (
    AskedVnpu,
    ContainerSight,
    KubeletSight,
    KubeletSource,
    PodSight,
    SourceSight,
    Statement,
    VnpuSight,
    contradiction,
)
from devward.npu.fields import U32, U64, Malformed, boolean, integer, member, optional, pattern, record, several, text

#: As many ids of vNPUs there are.
VNPU_LIMIT: Final = LAST_VDEV - FIRST_VDEV + 1
POD_LIMIT: Final = 8192
CONTAINER_LIMIT: Final = 8192
UID_LIMIT: Final = 8
DOUBT_LIMIT: Final = 20
REASON_LIMIT: Final = 5
REASON_LENGTH: Final = 200
SUBJECT_LENGTH: Final = 200
NAME_LENGTH: Final = 128
#: Of a sentence with what it is about.
PROBLEM_LENGTH: Final = 400
#: What the API server takes for a UID, and wider: a static Pod's is 32 hexadecimal digits.
UID: Final = re.compile(r"[0-9A-Za-z_.-]{1,128}")
#: An absolute path of printable ASCII.
PATH: Final = re.compile(r"/[ -~]{0,4095}")
_CODE: Final = re.compile(r"[a-z][a-z0-9-]{0,63}")
_LAST_CARD: Final = FIRST_VDEV - 1
_LAST_ERROR: Final = 4095

_VDEV: Final = integer(FIRST_VDEV, LAST_VDEV)
_FINDING: Final = member(Finding)
_NAME: Final = text(NAME_LENGTH)
_PATH: Final = pattern(PATH)
_PATH_OR_NONE: Final = pattern(re.compile(f"(?:{PATH.pattern})?"))
_UID: Final = pattern(UID)
_U32: Final = integer(0, U32)


#: Reads a vNPU that is asked about. Malformed.
asked_vnpu: Final = record("vnpu", AskedVnpu, vdev=_VDEV, major=_U32, minor=_U32)


def asked_vnpus(value: Any) -> tuple[AskedVnpu, ...]:
    """Read the vNPUs that are asked about, each once. Malformed."""
    found = several(asked_vnpu, VNPU_LIMIT)(value)
    if len({vnpu.vdev for vnpu in found}) != len(found):
        raise Malformed("a vNPU is there twice")
    return found


_DOUBT: Final = record("doubt", Doubt, code=pattern(_CODE), subject=text(SUBJECT_LENGTH), error=integer(0, _LAST_ERROR))
_DOUBTS: Final = several(_DOUBT, DOUBT_LIMIT)
_SOURCE: Final = record("source", SourceSight, state=member(SourceState), doubts=_DOUBTS, more=_U32)
_SIGHT: Final = record(
    "vnpu",
    VnpuSight,
    vnpu=asked_vnpu,
    descriptors=_FINDING,
    bundles=_FINDING,
    uda=_FINDING,
    reasons=several(text(REASON_LENGTH), REASON_LIMIT),
)
_POD: Final = record("pod", PodSight, uid=_UID, lives=_FINDING, has_container=_FINDING, has_group=boolean)
_CONTAINER: Final = record(
    "container",
    ContainerSight,
    id=_NAME,
    namespace=_NAME,
    life=member(Life),
    type=member(ContainerType),
    pod_uids=several(_UID, UID_LIMIT),
    cards=optional(several(integer(0, _LAST_CARD), _LAST_CARD + 1)),
    template=_NAME,
    vdevs=several(_VDEV, VNPU_LIMIT),
    has_all_devices=boolean,
    has_a_major=boolean,
)
_KUBELET: Final = record(
    "kubelet",
    KubeletSight,
    pid=integer(1, (1 << 31) - 1),
    started=integer(0, U64),
    command=_NAME,
    root_name=_PATH,
    plugins_name=_PATH,
    root_directory=_PATH,
    plugins_directory=_PATH,
    kubeconfig=_PATH_OR_NONE,
    kubeconfig_problem=text(PROBLEM_LENGTH),
)
_KUBELET_SOURCE: Final = record("kubelet", KubeletSource, state=member(SourceState), kubelet=optional(_KUBELET), doubts=_DOUBTS)
_STATEMENT: Final = record(
    "statement",
    Statement,
    vnpus=several(_SIGHT, VNPU_LIMIT),
    pods=several(_POD, POD_LIMIT),
    others=_FINDING,
    others_containers=_FINDING,
    containers=several(_CONTAINER, CONTAINER_LIMIT),
    descriptors=optional(_SOURCE),
    bundles=_SOURCE,
    cgroups=_SOURCE,
    uda=_SOURCE,
    kubelet=_KUBELET_SOURCE,
)


def statement(value: Any) -> Statement:
    """Read a statement. Malformed, also for one that contradicts itself."""
    result = _STATEMENT(value)
    if problem := contradiction(result):
        raise Malformed(problem)
    return result
