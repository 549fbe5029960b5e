"""Which drivers for dynamic resource allocation the kubelet has claims of, by its `dra_manager_state`. Pure.

The kubelet writes there what drivers prepared for Pods: a checkpoint whose Data is a JSON text, with the CRC-32 (IEEE) of that text
(pkg/kubelet/cm/dra/state in kubernetes/kubernetes, checkpoint.go and state.go). It finds accidents, not tampering. The drivers are the keys
of each entry's DriverState. The form of the alpha releases before, with a hash of Go values whose types changed from one to the next, is
not read.

Only what names drivers is taken apart. An object that could name one and has a key that is not known here is refused, and so is everything
else that the kubelet does not write: it might be about any device. What stands below a driver's name is that driver's own, and grows from
release to release; it is not looked into.
"""

import re
import zlib
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from devward.cluster.answer import parse_json
from devward.text import quoted

_T = TypeVar("_T")

#: Bytes; a claim takes some hundreds.
SIZE_LIMIT: Final = 4 * 1024 * 1024

_KIND: Final = "DRACheckpoint"
_VERSION: Final = "checkpoint.dra.kubelet.k8s.io/v1"
_DOCUMENT_KEYS: Final = frozenset({"Data", "Checksum"})
_DATA_KEYS: Final = frozenset({"kind", "apiVersion", "Entries"})
_ENTRY_KEYS: Final = frozenset({"ClaimUID", "ClaimName", "Namespace", "PodUIDs", "DriverState"})
#: Names are checked like those of CSI drivers (ValidateCSIDriverName in pkg/apis/core/validation): a DNS subdomain in either case.
_DRIVER: Final = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z.-]{0,61}[0-9A-Za-z])?", re.ASCII)


class DraStateError(ValueError):
    """It is not as the kubelet writes it; the text says why, fit to be shown."""


def parse_dra_state(data: bytes) -> frozenset[str]:
    """Return the names of the drivers. DraStateError."""
    if len(data) > SIZE_LIMIT:
        raise DraStateError(f"longer than {SIZE_LIMIT} bytes")
    try:
        document = _object(parse_json(data.decode()), _DOCUMENT_KEYS, "the document")
        content = _typed(document["Data"], str, "Data").encode()
        if zlib.crc32(content) != _typed(document["Checksum"], int, "Checksum"):
            raise DraStateError("it does not match its checksum")
        state = _object(parse_json(content.decode()), _DATA_KEYS, "Data")
    except DraStateError:
        raise
    except ValueError:
        raise DraStateError("it is no JSON, or has a key twice") from None
    if (state["kind"], state["apiVersion"]) != (_KIND, _VERSION):
        raise DraStateError(f"it is not a {_KIND} of {_VERSION}")
    return frozenset(_drivers(state["Entries"]))


def _drivers(entries: Any) -> Iterator[str]:
    # Go writes null for a list or a map that has nothing in it, and for one that is not there.
    for value in _typed([] if entries is None else entries, list, "Entries"):
        entry = _object(value, _ENTRY_KEYS, "an entry")
        for key in ("ClaimUID", "ClaimName", "Namespace"):
            _typed(entry[key], str, key)
        _typed({} if entry["PodUIDs"] is None else entry["PodUIDs"], dict, "PodUIDs")
        states = entry["DriverState"]
        for name, state in _typed({} if states is None else states, dict, "DriverState").items():
            if not _DRIVER.fullmatch(name):
                raise DraStateError(f"{quoted(name, 40)} is no driver's name")
            _typed(state, dict, "a driver's state")
            yield name


def _object(value: Any, keys: frozenset[str], name: str) -> dict[str, Any]:
    found: dict[str, Any] = _typed(value, dict, name)
    if found.keys() != keys:
        raise DraStateError(f"{name} has other keys than {', '.join(sorted(keys))}")
    return found


def _typed(value: Any, kind: type[_T], name: str) -> _T:
    # bool is an int to Python, and no number to JSON.
    if type(value) is not kind:
        raise DraStateError(f"{name} is of another type")
    result: _T = value
    return result
