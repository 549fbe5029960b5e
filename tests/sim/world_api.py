"""The API server of the world: what it stores of the Node, its Lease and its Pods, how it answers, and how it fails or lies.

Bodies are the API server's own JSON. Those that did not change are kept as bytes.
"""

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from devward.cluster.answers import Answer, Failure
from sim import api_lists, pod_desk
from sim.recorded_cluster import MACHINE_ID, NODE, RESOURCE, WORD
from sim.world_truth import Card, Pod

BOOTS: Final = "b007b007-0000-4000-8000-{:012d}"
_PARTS: Final = ("node", "lease", "pods")


class Trouble(StrEnum):
    """How it gives no answer, or none that is one."""

    NONE = ""
    OUTAGE = "outage"
    THROTTLED = "throttled"
    TRUNCATED = "truncated"
    HANG = "hang"


class Lie(StrEnum):
    """How it answers something that is not so."""

    NONE = ""
    EMPTY = "empty"
    #: What it had at some earlier time.
    RESTORED = "restored"
    OTHER_NODE = "other-node"
    NULL_LIST = "null-list"
    PAGINATED = "paginated"


class ApiServer:
    """What it stores, and how it answers."""

    def __init__(self, cards: Iterable[Card]) -> None:
        """A Node without Pods."""
        self.uids = 1
        self.boot_id = BOOTS.format(1)
        self.ready = "True"
        self.pods: dict[str, Pod] = {}
        self.backup: list[bytes] | None = None
        self.trouble = Trouble.NONE
        self.lie = Lie.NONE
        self.lock = ""
        self.annotations: dict[str, str] = {}
        self.handshake = 0
        self.renewed = 0
        self.version = 100
        listed = [{"id": card.die, "count": 4, "devmem": 32768, "devcore": 20, "type": WORD} for card in cards if card.managed]
        self._register = json.dumps(listed)
        self._node: tuple[tuple[Any, ...], bytes] = ((), b"")
        self._list: bytes | None = None

    # --- what is stored ------------------------------------------------------------------------------------------------
    def changed(self, pod: Pod | None = None) -> None:
        """Take note that something of the Pods changed."""
        self.version += 1
        self._list = None
        if pod is not None:
            pod.text = None

    def keep_backup(self) -> None:
        """Keep what there is now, for a later restoration."""
        self.backup = [self._item(pod) for pod in self.pods.values()]

    @property
    def node_uid(self) -> str:
        """The Node's."""
        return f"0de00000-0000-4000-8000-{self.uids:012d}"

    @property
    def is_true(self) -> bool:
        """Whether it answers, and what is so."""
        return self.trouble is Trouble.NONE and self.lie is Lie.NONE

    # --- how it answers ------------------------------------------------------------------------------------------------
    def get(self, part: str, asked_at: float, received_at: float) -> Answer:
        """Answer one GET."""
        if self.trouble in (Trouble.OUTAGE, Trouble.HANG):
            return Answer(asked_at, received_at, failure=Failure("no-connection", "There is no connection."))
        if self.trouble is Trouble.THROTTLED:
            return Answer(asked_at, received_at, 429, b"{}", verified=True)
        body = {"node": self.node, "lease": self.lease, "pods": self.list_pods}[part]()
        if self.trouble is Trouble.TRUNCATED:
            body = body[: len(body) // 2]
        return Answer(asked_at, received_at, 200, body, verified=True)

    def node(self) -> bytes:
        """Return the Node."""
        lies = self.lie is Lie.OTHER_NODE
        key = (self.uids, self.boot_id, self.ready, self.lock, self.handshake, tuple(self.annotations.items()), lies)
        if self._node[0] != key:
            annotations = {f"hami.io/node-register-{WORD}": self._register, **self.annotations}
            annotations[f"hami.io/node-handshake-{WORD}"] = f"Reported_2026.12.01 {self.handshake:08d}"
            if self.lock:
                annotations["hami.io/mutex.lock"] = self.lock
            node = {
                "kind": "Node",
                "apiVersion": "v1",
                "metadata": {"name": NODE, "uid": self.node_uid, "annotations": annotations},
                "spec": {},
                "status": {
                    "capacity": {"cpu": "64", RESOURCE: "16"},
                    "allocatable": {"cpu": "64", RESOURCE: "16"},
                    "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": self.ready}],
                    "nodeInfo": {
                        "bootID": BOOTS.format(999) if lies else self.boot_id,
                        "machineID": "0" * 32 if lies else MACHINE_ID,
                        "containerRuntimeVersion": "containerd://2.1.9",
                    },
                },
            }
            self._node = (key, json.dumps(node).encode())
        return self._node[1]

    def lease(self) -> bytes:
        """Return the kubelet's Lease."""
        at = f"2026-12-{1 + self.renewed // 86400 % 28:02d}T{self.renewed // 3600 % 24:02d}:{self.renewed // 60 % 60:02d}"
        renewed = f"{at}:{self.renewed % 60:02d}.000000Z"
        return (
            f'{{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{{"name":"{NODE}","namespace":"kube-node-lease"}},'
            f'"spec":{{"holderIdentity":"{NODE}","leaseDurationSeconds":40,"renewTime":"{renewed}"}}}}'
        ).encode()

    def list_pods(self) -> bytes:
        """Return the node's Pods."""
        if self.lie is Lie.RESTORED and self.backup is not None:
            return self._listing(self.backup, 7)
        if self._list is None:
            self._list = self._listing([self._item(pod) for pod in self.pods.values()], self.version)
        lie = {Lie.EMPTY: "empty-list", Lie.NULL_LIST: "null-list", Lie.PAGINATED: "paginated", Lie.OTHER_NODE: "other-node"}.get(self.lie)
        return self._list if lie is None else api_lists.LISTS[lie](self._list)

    @staticmethod
    def _listing(items: list[bytes], version: int) -> bytes:
        head = f'{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"}},"items":['
        return head.encode() + b",".join(items) + b"]}"

    def _item(self, pod: Pod) -> bytes:
        if pod.text is None:
            pod.text = json.dumps(_object(pod)).encode()
        return pod.text


def _object(pod: Pod) -> dict[str, Any]:
    """Return a Pod as the API server has it."""
    annotations: dict[str, str] = {}
    if pod.has_card:
        word = f"hami.io/{WORD}-devices"
        die = Card(pod.phy, managed=True).die
        segment = f"{die},{WORD},8192,5:;"
        annotations = {
            f"huawei.com/{WORD}": pod_desk.whole_pod(die, template="" if pod.is_soft else pod.template),
            f"{word}-allocated": segment,
            f"{word}-to-allocate": ";" if pod.allocated else segment,
            "hami.io/bind-phase": "success" if pod.allocated else "allocating",
        }
    if pod.is_soft:
        annotations["huawei.com/vnpu-mode"] = "hami-core"
    if pod.shape == "static":
        annotations |= {"kubernetes.io/config.mirror": pod.uid, "kubernetes.io/config.hash": pod.uid}
    more: dict[str, Any] = {"securityContext": {"privileged": True}} if pod.shape in ("privileged", "stranger") else {}
    spec: dict[str, Any] = {}
    if pod.shape == "mount":
        spec = {"volumes": [{"name": "dev", "hostPath": {"path": "/dev"}}]}
    if pod.mounts >= 0:
        spec = {"volumes": [{"name": "vnpu", "hostPath": {"path": f"/dev/vdavinci{pod.mounts}"}}]}
    shown = pod.shown
    made = pod_desk.pod(
        pod.shown_uid,
        phase=shown.phase,
        states={},
        annotations=annotations,
        containers=[pod_desk.container(npus="1" if pod.has_card else None, **more)],
        deleting=pod.deleting,
        spec=spec,
    )
    if shown.state is not None:
        made["status"]["containerStatuses"] = [pod_desk.status("main", shown.state, shown.last)]
    return made
