"""Other answers made from recorded ones: lists of Pods that are whole and yet no evidence, or odd evidence; a Lease that moves."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any


def _changed(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    def changed(body: bytes) -> bytes:
        value = json.loads(body)
        change(value)
        return json.dumps(value).encode()

    return changed


def _null(value: dict[str, Any]) -> None:
    value["items"] = None


def _null_inside(value: dict[str, Any]) -> None:
    for pod in value["items"] or ():
        pod["spec"]["initContainers"] = pod["status"]["containerStatuses"] = pod["metadata"]["annotations"] = None


def _empty(value: dict[str, Any]) -> None:
    value["items"] = []


def _paginated(value: dict[str, Any]) -> None:
    value["items"] = value["items"][:1]
    value["metadata"] |= {"continue": "token", "remainingItemCount": 3}


def _other_node(value: dict[str, Any]) -> None:
    for pod in value["items"]:
        pod["spec"]["nodeName"] = "other"


def _restored(value: dict[str, Any]) -> None:
    # After a restored backup of etcd versions go back, and Pods of later are unknown.
    value["metadata"]["resourceVersion"] = "7"
    value["items"] = value["items"][:1]


def _versionless(value: dict[str, Any]) -> None:
    value["metadata"]["resourceVersion"] = ""


LISTS: dict[str, Callable[[bytes], bytes]] = {
    "null-list": _changed(_null),
    "null-fields": _changed(_null_inside),
    "empty-list": _changed(_empty),
    "paginated": _changed(_paginated),
    "other-node": _changed(_other_node),
    "restored-backup": _changed(_restored),
    "versionless": _changed(_versionless),
}


def renewed(lease: bytes) -> bytes:
    """Return a Lease as its kubelet renews it now."""
    value = json.loads(lease)
    value["spec"]["renewTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return json.dumps(value).encode()


def of_host(node: bytes, boot_id: str, machine_id: str) -> bytes:
    """Return a Node as that of another host."""
    value = json.loads(node)
    value["status"]["nodeInfo"] |= {"bootID": boot_id, "machineID": machine_id}
    return json.dumps(value).encode()


def generated(count: int, node: str = "lab", filler: int = 0) -> bytes:
    """Return a list of so many Pods, each with so many characters more than it needs."""
    items = [
        {
            "metadata": {
                "name": f"pod-{number}",
                "namespace": "default",
                "uid": f"00000000-0000-4000-8000-{number:012d}",
                "annotations": {"filler": "x" * filler},
            },
            "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {}}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]},
        }
        for number in range(count)
    ]
    return json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1000"}, "items": items}).encode()
