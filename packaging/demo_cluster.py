"""The cluster of packaging/demo: stand-ins for a kubelet and an API server with recorded answers, a Pod that cannot start, and docker.

The Pod that cannot start is a recorded one of that kind (`runerror`), under another name and with the other NPU.
"""

import base64
import json
from datetime import UTC, datetime
from typing import Any, Final, Self

from demo_daemon import Demo
from demo_npus import MAJOR, TEMPLATE
from demo_stage import wait

from sim.bundle_host import made
from sim.kubelet_checkpoint import encoded, hami_response, sealed, write
from sim.owned_node import OwnedHost
from sim.recorded_cluster import DIES, body, pods_of, whole_name
from sim.witness_host import WitnessHost

#: The recorded state of a node that is served: one Pod runs, one is being deleted, two fail again and again.
STATE: Final = "01"
_MODEL: Final = "runerror"
_UID: Final = "c0ffee00-0f19-4ae4-a3c5-5d3c11d5f7a6"
POD: Final = "trainer"
_DOCKER_PID: Final = 4711


class Cluster:
    """The host is in a cluster from `start` on."""

    def __init__(self, witnessed: WitnessHost, demo: Demo) -> None:
        self._host = OwnedHost(witnessed)
        self._demo = demo
        self._pod: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_api()

    def start(self) -> None:
        """Let a kubelet and an API server run."""
        self._host.__enter__()
        self._host.state(STATE)

    def stop_api(self) -> None:
        """Let the API server go away; nothing else changes."""
        self._host.__exit__(None, None, None)

    @property
    def asked(self) -> set[tuple[str, str]]:
        """What the API server was asked: verbs and kinds."""
        return {(request.method, request.kind) for request in self._host.api.requests}

    # --- what devward makes of it --------------------------------------------------------------------------------------
    def wait_owners(self) -> float:
        """Wait until it is known who owns the NPUs, while HAMi goes on reporting; return the seconds that took."""

        def known() -> bool:
            self._host.beat(STATE)
            said = self._ownership()
            return not said["blocked"] and all(card["claims"] and card["managed"] == "managed" for card in said["cards"][:1])

        return wait(known, "who owns the NPUs", pause=0.1)

    def wait_blocked(self, reason: str) -> float:
        """Wait until this is why the owners are not known; return the seconds that took."""
        return wait(lambda: reason in {one["reason"] for one in self._ownership()["blocked"]}, reason, pause=0.1)

    def _ownership(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self._demo.ask("Describe"))["ownership"]
        return said

    # --- a Pod that cannot start ---------------------------------------------------------------------------------------
    def bind_pod(self, phy: int) -> None:
        """Let HAMi give an NPU to a Pod, and the kubelet take note of it."""
        recorded = next(pod for pod in json.loads(pods_of(STATE))["items"] if pod["metadata"]["name"] == _MODEL)
        uid = recorded["metadata"]["uid"]
        text = json.dumps(recorded).replace(uid, _UID).replace(DIES[0], DIES[phy]).replace(_MODEL, POD)
        self._pod = json.loads(text)
        self._pod["status"]["containerStatuses"][0]["restartCount"] = 0
        data = json.loads(body(f"{whole_name(STATE)}.checkpoint.json"))["Data"]
        entry = next(entry for entry in data["PodDeviceEntries"] if entry["PodUID"] == uid)
        answer = base64.b64encode(hami_response([phy], TEMPLATE)).decode()
        data["PodDeviceEntries"].append({**entry, "PodUID": _UID, "AllocResp": answer})
        write(self._host.checkpoint.parent, encoded(sealed(data)))
        self.fail()

    def fail(self, why: str = "") -> None:
        """Let an attempt to start its container fail now; `why`: what the kubelet has from the runtime, else as it was recorded."""
        (status,) = self._pod["status"]["containerStatuses"]
        last = status["lastState"]["terminated"]
        last["finishedAt"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if why:
            last["message"] = status["state"]["waiting"]["message"] = why
        status["restartCount"] += 1

        def put(pods: dict[str, Any]) -> None:
            pods["items"] = [pod for pod in pods["items"] if pod["metadata"]["uid"] != _UID] + [self._pod]

        self._host.change("pods", put)

    # --- docker --------------------------------------------------------------------------------------------------------
    def run_docker(self, vdev: int) -> None:
        """Let a container of plain docker run with a vNPU that it has not opened: `docker run --device /dev/vdavinciN`."""
        spec = made("docker-plain.json")
        spec["process"]["env"] = ["PATH=/bin"]
        del spec["hooks"]
        device = {"type": "c", "major": MAJOR, "minor": vdev}
        spec["linux"]["devices"] = [{"path": f"/dev/vdavinci{vdev}", **device}]
        spec["linux"]["resources"]["devices"] = [{"allow": False, "access": "rwm"}, {"allow": True, **device, "access": "rwm"}]
        self._host.witnessed.process(_DOCKER_PID, command="jupyter-lab")
        self._host.witnessed.bundles.task("4c9b" * 16, spec, namespace="moby", pid=_DOCKER_PID)
