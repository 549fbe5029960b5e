"""Lists of Pods that are whole answers and yet no evidence, or odd evidence: made from true ones."""

import json
from collections.abc import Callable
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
