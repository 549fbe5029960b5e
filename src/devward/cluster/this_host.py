"""What this host is called by itself: its boot, and every id by which its kubelet may call the machine.

A kubelet says as `nodeInfo.machineID` what stands in the first of two files, or in those of `--machine-id-file`, without the white space
around it, and its boot likewise (machine/info.go in google/cadvisor). Which file is meant is not asked: each of them is of this machine,
and so is what the firmware calls it. Only what has the form of an id is one: a machine that systemd has not yet set up has the word
`uninitialized` there, like every other such machine, and firmware that nobody filled in has all digits alike.

Ids are kept as they are written: a Node is held against them letter by letter. What is missing, or cannot be read, is no id. For a thread:
the disk may be slow.
"""

import re
from typing import Final

from devward.boot import read_boot_id
from devward.cluster.files import read_all
from devward.cluster.parts import HostFacts
from devward.cluster.rooted import resolve

#: `machine_id_file` of google/cadvisor has the first two; the third is SMBIOS', which root alone may read.
MACHINE_IDS: Final = ("/etc/machine-id", "/var/lib/dbus/machine-id", "/sys/class/dmi/id/product_uuid")

_MAX_SIZE: Final = 256
#: As machine-id(5) writes it; SMBIOS has dashes, too.
_ID: Final = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)


def read_this_host(node_name: str, root: str = "/") -> HostFacts:
    """Return what the host is; `node_name` is by which the API server knows it. Raises nothing for what it finds."""
    try:
        boot_id = read_boot_id(root)
    except OSError:
        boot_id = ""
    return HostFacts(node_name, boot_id, read_machine_ids(root))


def read_machine_ids(root: str = "/") -> frozenset[str]:
    """Return every id of this machine that can be read."""
    found = (_read(root, path) for path in MACHINE_IDS)
    return frozenset(text for text in found if _is_id(text))


def _is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None and len(set(text.lower()) - {"-"}) > 1


def _read(root: str, path: str) -> str:
    """Return a file's text without what stands around it; empty where there is none. The kubelet follows links, within its root."""
    try:
        data = read_all(f"{root.rstrip('/')}{resolve(root, path)}", _MAX_SIZE)
    except OSError:
        return ""
    return data.decode("ascii", "replace").strip()
