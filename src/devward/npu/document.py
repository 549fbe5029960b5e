"""The CDI documents of NPUs and of vNPUs. Pure.

Kind, device names, shared nodes, mounts and environment are those of the vendor's own CDI documents (mind-cluster, `ascend-common/cdi`),
so that users can switch. Device numbers and modes are left out, which the vendor pins and which go stale: a runtime takes them from the
node when a container is created, and fails where the node is missing.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from devward.cdi.spec import minimum_version
from devward.model import Finding

_MOUNT_OPTIONS: Final = ("rbind", "rprivate", "ro")


#: Stands for what shows a kubelet where nothing is pinned: a pin that was just made does not count before somebody looked.
NOT_LOOKED_FOR: Final = "not looked for"


@dataclass(frozen=True, slots=True)
class Outfit:
    """What this host has of what a container needs beside an NPU's own node, and who else may hand NPUs out."""

    #: Shared nodes, as names below /dev.
    nodes: frozenset[str] = frozenset()
    #: Files and directories, at the same place in a container.
    mounts: tuple[str, ...] = ()
    #: Directories for LD_LIBRARY_PATH.
    libraries: tuple[str, ...] = ()
    #: What is wrong with nodes and lists.
    problems: tuple[Finding, ...] = ()
    #: The lists that could not be read at the latest look; and whether `mounts` are complete all the same, as those of an earlier one.
    unread: str = ""
    mounts_known: bool = True
    #: What shows that a kubelet runs on this host, or why that is not known; empty where none does.
    kubelet: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One device of a document: its name, and its nodes as (path on the host, path in a container)."""

    name: str
    nodes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of the nodes in a container, numeric; None: the container's user, which is what engines choose.

    container-device-interface, `pkg/cdi/container-edits.go`, Apply.
    """

    uid: int | None = None
    gid: int | None = None


def render(kind: str, entries: Sequence[Entry], shared: Iterable[tuple[str, str]], outfit: Outfit, owner: Owner) -> bytes:
    """Return the canonical bytes of a document, one device a line. ValueError: no entries, or one name twice."""
    names = [entry.name for entry in entries]
    if not names or len(set(names)) != len(names):
        raise ValueError("a CDI document needs at least one device, each once")
    devices = [{"name": entry.name, "containerEdits": {"deviceNodes": _nodes(entry.nodes, owner)}} for entry in entries]
    edits: dict[str, object] = {}
    if outfit.libraries:
        edits["env"] = [f"LD_LIBRARY_PATH={':'.join(outfit.libraries)}"]
    nodes = _nodes(shared, owner)
    if nodes:
        edits["deviceNodes"] = nodes
    if outfit.mounts:
        edits["mounts"] = [
            {"hostPath": path, "containerPath": path, "type": "bind", "options": list(_MOUNT_OPTIONS)} for path in outfit.mounts
        ]
    document: dict[str, object] = {"cdiVersion": "", "kind": kind, "devices": devices}
    if edits:
        document["containerEdits"] = edits
    # The version that one device of each shape needs: there may be a thousand, and each pass makes the document.
    shapes = {
        (entry.name[:1].isalpha(), any(host != inside for host, inside in entry.nodes)): one
        for entry, one in zip(entries, devices, strict=True)
    }
    document["cdiVersion"] = minimum_version({**document, "devices": list(shapes.values())})
    return _formatted(document)


def _nodes(nodes: Iterable[tuple[str, str]], owner: Owner) -> list[dict[str, object]]:
    made = []
    for host, inside in nodes:
        node: dict[str, object] = {"path": inside}
        if host != inside:
            node["hostPath"] = host
        node |= {"type": "c", "permissions": "rw"}
        if owner.uid is not None:
            node["uid"] = owner.uid
        if owner.gid is not None:
            node["gid"] = owner.gid
        made.append(node)
    return made


def _formatted(document: Mapping[str, object]) -> bytes:
    """Write the outer levels for people and each item of a list in one line: a node may have 256 NPUs and a thousand vNPUs."""
    lines = []
    for key, value in document.items():
        if isinstance(value, list):
            text = _listed(value, "    ", "  ")
        elif isinstance(value, dict):
            inner = ",\n".join(f"    {json.dumps(name)}: {_listed(items, '      ', '    ')}" for name, items in value.items())
            text = f"{{\n{inner}\n  }}"
        else:
            text = json.dumps(value)
        lines.append(f"  {json.dumps(key)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode("ascii")


def _listed(items: Iterable[object], indent: str, end: str) -> str:
    return "[\n" + ",\n".join(indent + json.dumps(item) for item in items) + f"\n{end}]"
