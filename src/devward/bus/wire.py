"""Long answers in D-Bus's wire format: tables of plain rows, and objects with their properties. Pure.

dbus-next takes half a millisecond for an object with its properties, so that a host with 2,000 vNPUs would stand still for a second
whenever somebody asks for all of them. Facts are from the D-Bus specification, "Marshaling (Wire Format)".

Every row and every object begins at a multiple of eight bytes, so what one looks like does not depend on where it stands.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

_UINT32: Final = struct.Struct("<I")
_PADDING: Final = tuple(bytes(number) for number in range(8))
#: An array is at most 64 MiB long.
MAX_ARRAY: Final = 64 * 1024 * 1024

Writer = Callable[[bytearray, Any], None]


@dataclass(frozen=True, slots=True)
class Encoded:
    """The body of a message, little-endian, in place of its values; `like` are any values of the same signature."""

    data: bytes
    like: tuple[object, ...]


def fit_text(text: str) -> str:
    """Return a text without NUL and lone surrogates: a message with either is invalid, and the bus answers it by ending the connection."""
    plain = str(text)
    if "\0" in plain:
        plain = plain.replace("\0", "\\x00")
    return plain if plain.isascii() else plain.encode("utf-8", "backslashreplace").decode()


def table(signature: str, rows: Iterable[Sequence[object]]) -> Encoded:
    """Return an array of structures, `a(...)`, whose members are of basic types. ValueError or struct.error where a value does not fit."""
    members = [_WRITERS[code] for code in signature.removeprefix("a(").removesuffix(")")]
    return Encoded(_array(_row(members, row) for row in rows), ([],))


def objects(entries: Iterable[bytes]) -> Encoded:
    """Return the answer of GetManagedObjects, `a{oa{sa{sv}}}`, made of what entry() returned for each object."""
    return Encoded(_array(entries), ({},))


def added(data: bytes) -> Encoded:
    """Return the body of InterfacesAdded, `oa{sa{sv}}`, made of what entry() returned for the object."""
    return Encoded(data, ("/", {}))


class InterfaceWriter:
    """Writes the properties of one interface, with what is the same for all objects made ready."""

    def __init__(self, name: str, signatures: Mapping[str, str]) -> None:
        self.name = name
        self._properties = [(prop, _head(prop, signature), _WRITERS[signature]) for prop, signature in signatures.items()]

    def write(self, buffer: bytearray, values: Mapping[str, object]) -> None:
        """Add the entry `sa{sv}`, of which the buffer is at the beginning."""
        _text(buffer, self.name)
        opened = _open_array(buffer)
        for name, head, write in self._properties:
            buffer += _PADDING[-len(buffer) % 8]
            buffer += head
            write(buffer, values[name])
        _close_array(buffer, opened)


def entry(path: str, interfaces: Iterable[tuple[InterfaceWriter, Mapping[str, object]]]) -> bytes:
    """Return one object with its interfaces and the values of their properties: an entry `oa{sa{sv}}`."""
    buffer = bytearray()
    _text(buffer, path)
    opened = _open_array(buffer)
    for interface, values in interfaces:
        _pad(buffer, 8)
        interface.write(buffer, values)
    _close_array(buffer, opened)
    return bytes(buffer)


def _head(name: str, signature: str) -> bytes:
    """Return the entry `sv` of a property up to its value."""
    buffer = bytearray()
    _text(buffer, name)
    buffer += b"%c%s\0" % (len(signature), signature.encode("ascii"))
    return bytes(buffer)


def _row(members: Sequence[Writer], row: Sequence[object]) -> bytes:
    buffer = bytearray()
    for write, value in zip(members, row, strict=True):
        write(buffer, value)
    return bytes(buffer)


def _array(items: Iterable[bytes]) -> bytes:
    body = bytearray()
    for item in items:
        _pad(body, 8)
        body += item
    if len(body) > MAX_ARRAY:
        raise ValueError("the answer is longer than D-Bus allows")
    return _UINT32.pack(len(body)) + bytes(4) + body


def _open_array(buffer: bytearray) -> tuple[int, int]:
    """Begin an array of entries. Return where its length stands and where it begins: the padding between the two does not count."""
    _pad(buffer, 4)
    length_at = len(buffer)
    buffer += bytes(4)
    _pad(buffer, 8)
    return length_at, len(buffer)


def _close_array(buffer: bytearray, opened: tuple[int, int]) -> None:
    length_at, start = opened
    _UINT32.pack_into(buffer, length_at, len(buffer) - start)


def _pad(buffer: bytearray, alignment: int) -> None:
    buffer += _PADDING[-len(buffer) % alignment]


def _text(buffer: bytearray, value: str) -> None:
    data = fit_text(value).encode()
    buffer += _PADDING[-len(buffer) % 4]
    buffer += _UINT32.pack(len(data))
    buffer += data
    buffer += b"\0"


def _texts(buffer: bytearray, value: Sequence[str]) -> None:
    _pad(buffer, 4)
    length_at = len(buffer)
    buffer += bytes(4)
    for text in value:
        _text(buffer, text)
    _UINT32.pack_into(buffer, length_at, len(buffer) - length_at - 4)


def _number(format_: str) -> Writer:
    packer = struct.Struct(format_)

    def write(buffer: bytearray, value: Any) -> None:
        buffer += _PADDING[-len(buffer) % packer.size]
        buffer += packer.pack(value)

    return write


#: What writes a value of each signature that the properties and tables of the contract have.
_WRITERS: Final[Mapping[str, Writer]] = MappingProxyType(
    {
        "s": _text,
        "o": _text,
        "as": _texts,
        "b": _number("<I"),
        "i": _number("<i"),
        "u": _number("<I"),
        "t": _number("<Q"),
        "d": _number("<d"),
    }
)
