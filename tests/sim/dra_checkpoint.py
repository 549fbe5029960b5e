"""The kubelet's `dra_manager_state` for tests, written as the kubelet writes it."""

import json
import zlib
from collections.abc import Mapping
from typing import Any

VERSION = "checkpoint.dra.kubelet.k8s.io/v1"


def device(name: str = "dev-1", **more: Any) -> dict[str, Any]:
    """Return one that a driver prepared."""
    return {"PoolName": "worker-1", "DeviceName": name, "RequestNames": ["test request"], "CDIDeviceIDs": ["example.com/example=x"], **more}


def entry(*drivers: str, **differs: Any) -> dict[str, Any]:
    """Return the entry of a claim."""
    return {
        "ClaimUID": "067798be-454e-4be4-9047-1aa06aea63f7",
        "ClaimName": "example",
        "Namespace": "default",
        "PodUIDs": {"139cdb46-f989-4f17-9561-ca10cfb509a6": {}},
        "DriverState": {driver: {"Devices": [device()]} for driver in drivers},
        **differs,
    }


def content(*entries: Any, **differs: Any) -> dict[str, Any]:
    """Return what is in Data."""
    return {"kind": "DRACheckpoint", "apiVersion": VERSION, "Entries": list(entries) or None, **differs}


def sealed(data: Mapping[str, Any] | str, **differs: Any) -> bytes:
    """Return the file with this in Data, and the checksum that fits."""
    text = data if isinstance(data, str) else compact(data)
    return compact({"Data": text, "Checksum": zlib.crc32(text.encode(errors="surrogatepass")), **differs}).encode()


def compact(value: Any) -> str:
    """Return JSON as Go writes it."""
    return json.dumps(value, separators=(",", ":"))
