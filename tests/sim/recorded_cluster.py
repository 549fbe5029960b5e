"""Inputs recorded from a real API server and kubelet (tests/data/kubernetes-1.36.2), as tests want them.

The states 00 to 11 follow each other on one node, `lab`, with two cards. A device plugin in the place of HAMi's answered every allocation
with the variables that HAMi's sets.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from devward.cluster.claims import Allocation, KnownCard

DATA = Path(__file__).parent.parent / "data" / "kubernetes-1.36.2"
NODE = "lab"
WORD = "Ascend910B4"
RESOURCE = f"huawei.com/{WORD}"
DIES = ("A1B2C3D4-00000001-0000000A-11111111-00000000", "A1B2C3D4-00000002-0000000A-22222222-00000000")
CARDS = tuple(KnownCard(phy, die) for phy, die in enumerate(DIES))
REGISTERED = {WORD: frozenset(DIES)}
BOOT_ID = (DATA / "boot_id").read_text().strip()
MACHINE_ID = "3d1219c7c4c5404aaa1f6d2a48adfda4"
STATES = tuple(sorted(path.name.removesuffix(".pods.json") for path in DATA.glob("*.pods.json")))

#: Who claims each card in each state: Pods that protect it, and with a question mark candidates. `(gone)` are Pods that the API server does
#: not know any more.
CLAIMS: dict[str, tuple[str, str]] = {
    "00": ("", ""),
    "01": ("running todelete crashloop? runerror?", ""),
    "02": ("running todelete(gone) crashloop? runerror?", ""),
    "03": ("running todelete(gone) crashloop? runerror?", ""),
    "04": ("running todelete(gone) crashloop? runerror?", "noannot"),
    "05": ("running todelete(gone) crashloop? runerror?", "noannot(gone)"),
    "06": ("running with-init todelete(gone) crashloop? runerror?", "with-init noannot(gone)"),
    "07": ("running with-init todelete(gone) crashloop? runerror?", "with-init noannot(gone)"),
    "08": ("running with-init static-npu-lab todelete(gone) crashloop? runerror?", "with-init noannot(gone)"),
    "09": (
        "running with-init static-npu-lab whole todelete(gone) crashloop(gone) runerror?",
        "with-init whole noannot(gone)",
    ),
    "10": ("running static-npu-lab whole todelete(gone) crashloop(gone)", "whole noannot(gone)"),
    "11": ("running static-npu-lab whole todelete(gone) crashloop(gone)", "whole noannot(gone)"),
}


def body(name: str) -> bytes:
    """Return a recorded file."""
    return (DATA / name).read_bytes()


def error_body(name: str) -> bytes:
    """Return the body of a recorded error: the file has the HTTP status on its last line."""
    return body(name).rstrip().rpartition(b"\n")[0]


def pods_of(state: str) -> bytes:
    """Return the list of Pods of a state, by its number or its name."""
    return body(f"{whole_name(state)}.pods.json")


def node_of(state: str) -> bytes:
    """Return the Node of a state."""
    return body(f"{whole_name(state)}.node.json")


def whole_name(state: str) -> str:
    """Return the name of a state from its beginning."""
    return next(name for name in STATES if name.startswith(state))


def allocations_of(state: str) -> tuple[Allocation, ...]:
    """Return what the checkpoint of a state says."""
    data = json.loads(body(f"{whole_name(state)}.checkpoint.json"))["Data"]
    return tuple(_allocation(entry) for entry in data["PodDeviceEntries"] or ())


def _allocation(entry: dict[str, Any]) -> Allocation:
    variables = dict(_variables(base64.b64decode(entry["AllocResp"])))
    return Allocation(
        entry["PodUID"],
        entry["ContainerName"],
        entry["ResourceName"],
        frozenset(map(int, variables["ASCEND_VISIBLE_DEVICES"].split(","))),
        frozenset(device for devices in entry["DeviceIDs"].values() for device in devices),
        variables.get("ASCEND_VNPU_SPECS", ""),
    )


def _variables(message: bytes) -> Iterator[tuple[str, str]]:
    """Yield the variables of a recorded answer: fields 1, maps of texts that are all shorter than 128 bytes."""
    while message:
        assert message[0] == 0x0A
        length = message[1]
        entry, message = message[2 : 2 + length], message[2 + length :]
        assert entry[0] == 0x0A
        key, rest = entry[2 : 2 + entry[1]], entry[2 + entry[1] :]
        assert rest[0] == 0x12
        yield key.decode(), rest[2 : 2 + rest[1]].decode()
