"""What a device plugin gave to a container: the physical cards and the template in an `AllocResp` of the kubelet's checkpoint. Pure.

`AllocResp` is the wire format of `v1beta1.ContainerAllocateResponse` (k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1/api.proto): envs = 1,
mounts = 2, devices = 3, annotations = 4, cdi_devices = 5. HAMi's plugin puts the cards' physical ids into ASCEND_VISIBLE_DEVICES, and the
template of the vNPU into ASCEND_VNPU_SPECS; the ids that the kubelet asked for name other cards. Whatever cannot be told might be any card.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from devward.cluster.bundle import visible_cards
from devward.cluster.evidence import clean_path
from devward.cluster.handed import ANY, CDI_ANNOTATION, NOTHING, Handed, by_cdi, by_path

DEVICES_VARIABLE: Final = "ASCEND_VISIBLE_DEVICES"
TEMPLATE_VARIABLE: Final = "ASCEND_VNPU_SPECS"

_VARINT: Final = 0
_EIGHT_BYTES: Final = 1
_LENGTH: Final = 2
_FOUR_BYTES: Final = 5

_ENVS: Final = 1
#: Mounts and devices name files of the host, in their second field.
_WITH_FILES: Final = frozenset({2, 3})
_HOST_PATH: Final = 2
_ANNOTATIONS: Final = 4
_CDI_DEVICES: Final = 5
#: Nodes of cards and of vNPUs: /dev/davinci3, /dev/vdavinci148. Those that all containers share (/dev/davinci_manager) name no card.
_NPU_NODE: Final = re.compile(r"/dev/v?davinci[0-9]+", re.ASCII)


class Oddity(StrEnum):
    """Why it cannot be told which cards were given."""

    #: There is no answer of the plugin at all.
    EMPTY = "empty"
    #: It is not the wire format.
    UNDECODABLE = "undecodable"
    #: The variable is absent, empty or `void`.
    NOT_NAMED = "not-named"
    #: The variable is there and is no list of cards.
    UNREADABLE = "unreadable"
    #: It names devices in a way in which HAMi's plugin does not, beside the variable.
    OTHER_FORM = "other-form"


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a container was given."""

    #: Physical ids; None: all cards of the resource, since it cannot be told which.
    cards: frozenset[int] | None
    #: Foreign text; empty where there is none, as with a whole card.
    template: str = ""
    #: Why `cards` is None.
    oddity: Oddity | None = None
    #: vNPUs that are there already.
    handed: Handed = NOTHING


class WireError(ValueError):
    """Bytes that are no message of protobuf, or one that no encoder writes."""


def read_allocation(response: bytes | None) -> Allocation:
    """Return what an `AllocResp` says; None and b"" are an absent one. Raises nothing."""
    if not response:
        return Allocation(None, oddity=Oddity.EMPTY)
    variables: dict[str, str] = {}
    is_plain, handed = True, NOTHING
    try:
        for number, value in fields(response):
            if number == _ENVS:
                key, text = _map_entry(value)
                is_plain &= key not in variables
                variables[key] = text
            elif number in _WITH_FILES:
                for path in (_text(part) for which, part in fields(_bytes(value)) if which == _HOST_PATH):
                    is_plain &= _NPU_NODE.fullmatch(clean_path(path)) is None
                    handed |= by_path(path)
            elif number == _ANNOTATIONS:
                key, text = _map_entry(value)
                if key.startswith(CDI_ANNOTATION):
                    handed |= by_cdi(text, others=ANY)
            elif number == _CDI_DEVICES:
                for name in (_text(part) for _, part in fields(_bytes(value))):
                    handed |= by_cdi(name, others=ANY)
            else:
                # Of a later version: it may hand over anything.
                handed |= ANY
    except WireError:
        return Allocation(None, oddity=Oddity.UNDECODABLE, handed=ANY)
    template = variables.get(TEMPLATE_VARIABLE, "")
    if handed != NOTHING or not is_plain:
        return Allocation(None, template, Oddity.OTHER_FORM, handed)
    cards = visible_cards(variables.get(DEVICES_VARIABLE, ""))
    if cards is None:
        # It may be the id of a vNPU, which Ascend Docker Runtime takes for one that is there (ASCEND_RUNTIME_OPTIONS=VIRTUAL).
        return Allocation(None, template, Oddity.UNREADABLE, ANY)
    if not cards:
        return Allocation(None, template, Oddity.NOT_NAMED)
    return Allocation(cards, template)


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message by number; a number or the bytes of a text or message inside. WireError.

    Strict: no groups, no number longer than it has to be, nothing cut off.
    """
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if not 1 <= number < 1 << 29:
            raise WireError("an impossible field number")
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if kind == _LENGTH:
            size, position = _varint(data, position)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise WireError("an unknown wire type")
        end = position + size
        if end > len(data):
            raise WireError("cut off")
        piece = data[position:end]
        yield number, piece if kind == _LENGTH else int.from_bytes(piece, "little")
        position = end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number of at most 64 bits, and where it ends."""
    value = 0
    for count in range(10):
        if position >= len(data):
            raise WireError("cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            if (byte == 0 and count) or value >= 1 << 64:
                raise WireError("a number that is longer than it has to be")
            return value, position
    raise WireError("a number without an end")


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise WireError("a number where a text or a message is expected")
    return value


def _text(value: int | bytes) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError:
        raise WireError("a text that is not UTF-8") from None


def _map_entry(value: int | bytes) -> tuple[str, str]:
    """Return key and value of one entry of a map of texts."""
    found: dict[int, str] = {}
    for number, text in fields(_bytes(value)):
        if number not in (1, 2) or number in found:
            raise WireError("an entry of a map with something else in it")
        found[number] = _text(text)
    return found.get(1, ""), found.get(2, "")
