"""Long answers in D-Bus's wire format: tables of plain rows, and the tree of objects. Pure.

dbus-next takes half a millisecond for an object with its properties, so that a host with 2,000 vNPUs would stand still for a second
whenever somebody asks for all of them; this takes a fortieth. Facts are from the D-Bus specification, "Marshaling (Wire Format)".

Every row and every object begins at a multiple of eight bytes, so what one looks like does not depend on where it stands.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

#: Signature of what ObjectManager.GetManagedObjects answers.
OBJECTS: Final = "a{oa{sa{sv}}}"
_UINT32: Final = struct.Struct("<I")
#: An array is at most 64 MiB long.
MAX_ARRAY: Final = 64 * 1024 * 1024

#: The properties of one interface: name, signature and value.
Property = tuple[str, str, object]


@dataclass(frozen=True, slots=True)
class Encoded:
    """The body of a message, little-endian, in place of its values."""

    data: bytes


def fit_text(text: str) -> str:
    """Return a text without NUL and lone surrogates: a message with either is invalid, and the bus answers it by ending the connection."""
    plain = str(text)
    if "\0" in plain:
        plain = plain.replace("\0", "\\x00")
    return plain if plain.isascii() else plain.encode("utf-8", "backslashreplace").decode()


def table(signature: str, rows: Iterable[Sequence[object]]) -> Encoded:
    """Return an array of structures, `a(...)`, whose members are of basic types. ValueError or struct.error where a value does not fit."""
    members = [_WRITERS[code] for code in signature.removeprefix("a(").removesuffix(")")]
    return _array(_row(members, row) for row in rows)


def objects(entries: Iterable[bytes]) -> Encoded:
    """Return the answer of GetManagedObjects, made of what entry() returned for each object."""
    return _array(entries)


def entry(path: str, interfaces: Mapping[str, Iterable[Property]]) -> bytes:
    """Return one object with its interfaces and their properties: a dictionary entry of OBJECTS."""
    buffer = bytearray()
    _text(buffer, path)
    outer = _open_array(buffer)
    for interface, properties in interfaces.items():
        _pad(buffer, 8)
        _text(buffer, interface)
        inner = _open_array(buffer)
        for name, signature, value in properties:
            _pad(buffer, 8)
            _text(buffer, name)
            buffer += b"%c%s\0" % (len(signature), signature.encode("ascii"))
            _WRITERS[signature](buffer, value)
        _close_array(buffer, inner)
    _close_array(buffer, outer)
    return bytes(buffer)


def _row(members: Sequence[Callable[[bytearray, Any], None]], row: Sequence[object]) -> bytes:
    buffer = bytearray()
    for write, value in zip(members, row, strict=True):
        write(buffer, value)
    return bytes(buffer)


def _array(items: Iterable[bytes]) -> Encoded:
    body = bytearray()
    for item in items:
        _pad(body, 8)
        body += item
    if len(body) > MAX_ARRAY:
        raise ValueError("the answer is longer than D-Bus allows")
    return Encoded(_UINT32.pack(len(body)) + bytes(4) + body)


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
    buffer += bytes(-len(buffer) % alignment)


def _text(buffer: bytearray, value: str) -> None:
    data = fit_text(value).encode()
    _pad(buffer, 4)
    buffer += _UINT32.pack(len(data)) + data + b"\0"


def _texts(buffer: bytearray, value: Sequence[str]) -> None:
    _pad(buffer, 4)
    length_at = len(buffer)
    buffer += bytes(4)
    for text in value:
        _text(buffer, text)
    _UINT32.pack_into(buffer, length_at, len(buffer) - length_at - 4)


def _number(format_: str) -> Callable[[bytearray, Any], None]:
    packer = struct.Struct(format_)

    def write(buffer: bytearray, value: Any) -> None:
        _pad(buffer, packer.size)
        buffer += packer.pack(value)

    return write


#: What writes a value of each signature that the properties and tables of the contract have.
_WRITERS: Final[Mapping[str, Callable[[bytearray, Any], None]]] = MappingProxyType(
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
