"""The D-Bus contract, read from the interface XML that is also installed and served as introspection.

Nothing about members, signatures, change signals or value sets is written a second time in code.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from types import MappingProxyType
from typing import TypeVar

from devward.bus import standard

_EMITS_CHANGED = "org.freedesktop.DBus.Property.EmitsChangedSignal"
_DOC = "org.gtk.GDBus.DocString"
_VALUES = "org.devward.Values"
_VALUES_OF = "org.devward.ValuesOf"
_COLUMNS = "org.devward.Columns"
_DOCTYPE = (
    '<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN"\n'
    '  "http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">\n'
)


_Member = TypeVar("_Member", "Method", "Signal", "Property")


class ContractError(Exception):
    """The interface XML is not as this code needs it: a mistake in the installation or the source."""


class Emits(StrEnum):
    """What PropertiesChanged says of a property (D-Bus specification, "Introspection Data Format")."""

    TRUE = "true"
    INVALIDATES = "invalidates"
    FALSE = "false"
    CONST = "const"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a method or signal. Sets are empty where any value of the type is possible."""

    name: str
    signature: str
    values: frozenset[str]
    #: The names of the members of a structure, where the argument is an array of them, and the value sets of those that have one.
    columns: tuple[str, ...]
    column_values: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Method:
    """One method."""

    name: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    doc: str

    @property
    def in_signature(self) -> str:
        return "".join(argument.signature for argument in self.inputs)

    @property
    def out_signature(self) -> str:
        return "".join(argument.signature for argument in self.outputs)


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal."""

    name: str
    arguments: tuple[Argument, ...]
    doc: str

    @property
    def signature(self) -> str:
        return "".join(argument.signature for argument in self.arguments)


@dataclass(frozen=True, slots=True)
class Property:
    """One property."""

    name: str
    signature: str
    writable: bool
    emits: Emits
    values: frozenset[str]
    doc: str


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface, with the XML that introspection shows."""

    name: str
    methods: Mapping[str, Method]
    signals: Mapping[str, Signal]
    properties: Mapping[str, Property]
    xml: str


@dataclass(frozen=True, slots=True)
class Contract:
    """All interfaces that devward serves, by name."""

    interfaces: Mapping[str, Interface]

    def introspect(self, interfaces: Iterable[str], children: Iterable[str]) -> str:
        """Return the introspection document of an object with these interfaces and child nodes (path elements)."""
        shown = "".join(self.interfaces[name].xml for name in interfaces)
        nodes = "".join(f'  <node name="{child}"/>\n' for child in sorted(children))
        return f"{_DOCTYPE}<node>\n{shown}{nodes}</node>\n"


def load() -> Contract:
    """Read the installed interfaces. ContractError where a file is missing or is not what this code can serve."""
    documents = [standard.INTERFACES]
    directory = resources.files("devward") / "interfaces"
    try:
        documents += [entry.read_text("utf-8") for entry in directory.iterdir() if entry.name.endswith(".xml")]
    except OSError as error:
        raise ContractError(f"the interface XML cannot be read: {error}") from error
    return parse(documents)


def parse(documents: Iterable[str]) -> Contract:
    """Make the contract of introspection documents. ContractError names what is wrong."""
    found: dict[str, Interface] = {}
    try:
        elements = [element for document in documents for element in ET.fromstring(document).findall("interface")]  # noqa: S314  # our own file
    except ET.ParseError as error:
        raise ContractError(f"the interface XML is malformed: {error}") from error
    # Value sets first: other files refer to them.
    sets = {
        f"{interface.get('name')}.{member.get('name')}": _split(_annotations(member)[_VALUES])
        for interface in elements
        for member in interface.findall("property")
        if _VALUES in _annotations(member)
    }
    for element in elements:
        name = _required(element, "name")
        if name in found:
            raise ContractError(f"the interface {name} is described twice")
        found[name] = _interface(element, name, sets)
    return Contract(MappingProxyType(found))


def _interface(element: ET.Element, name: str, sets: Mapping[str, frozenset[str]]) -> Interface:
    ET.indent(element, "  ", level=1)
    element.tail = "\n"
    return Interface(
        name=name,
        methods=_by_name(_method(child, sets) for child in element.findall("method")),
        signals=_by_name(_signal(child, sets) for child in element.findall("signal")),
        properties=_by_name(_property(child, sets) for child in element.findall("property")),
        xml="  " + ET.tostring(element, encoding="unicode"),
    )


def _method(element: ET.Element, sets: Mapping[str, frozenset[str]]) -> Method:
    arguments = [(child.get("direction", "in"), _argument(child, sets)) for child in element.findall("arg")]
    return Method(
        name=_required(element, "name"),
        inputs=tuple(argument for direction, argument in arguments if direction == "in"),
        outputs=tuple(argument for direction, argument in arguments if direction == "out"),
        doc=_annotations(element).get(_DOC, ""),
    )


def _signal(element: ET.Element, sets: Mapping[str, frozenset[str]]) -> Signal:
    arguments = tuple(_argument(child, sets) for child in element.findall("arg"))
    return Signal(_required(element, "name"), arguments, _annotations(element).get(_DOC, ""))


def _property(element: ET.Element, sets: Mapping[str, frozenset[str]]) -> Property:
    notes = _annotations(element)
    access = _required(element, "access")
    if access not in ("read", "readwrite"):
        raise ContractError(f"the property {element.get('name')} has the access {access}")
    try:
        emits = Emits(notes.get(_EMITS_CHANGED, "true"))
    except ValueError as error:
        raise ContractError(f"the property {element.get('name')} has an unknown {_EMITS_CHANGED}") from error
    return Property(
        name=_required(element, "name"),
        signature=_required(element, "type"),
        writable=access == "readwrite",
        emits=emits,
        values=_values(notes, "", sets),
        doc=notes.get(_DOC, ""),
    )


def _argument(element: ET.Element, sets: Mapping[str, frozenset[str]]) -> Argument:
    notes = _annotations(element)
    columns = tuple(notes.get(_COLUMNS, "").split())
    column_values = {column: _values(notes, f".{column}", sets) for column in columns}
    return Argument(
        name=_required(element, "name"),
        signature=_required(element, "type"),
        values=_values(notes, "", sets),
        columns=columns,
        column_values=MappingProxyType({column: values for column, values in column_values.items() if values}),
    )


def _values(notes: Mapping[str, str], suffix: str, sets: Mapping[str, frozenset[str]]) -> frozenset[str]:
    if _VALUES + suffix in notes:
        return _split(notes[_VALUES + suffix])
    reference = notes.get(_VALUES_OF + suffix)
    if reference is None:
        return frozenset()
    if reference not in sets:
        raise ContractError(f"{_VALUES_OF} refers to {reference}, which has no value set")
    return sets[reference]


def _split(text: str) -> frozenset[str]:
    return frozenset(text.split("|"))


def _annotations(element: ET.Element) -> Mapping[str, str]:
    return {_required(note, "name"): note.get("value", "") for note in element.findall("annotation")}


def _required(element: ET.Element, attribute: str) -> str:
    value = element.get(attribute)
    if not value:
        raise ContractError(f"a <{element.tag}> has no {attribute}")
    return value


def _by_name(members: Iterable[_Member]) -> Mapping[str, _Member]:
    found: dict[str, _Member] = {}
    for member in members:
        if member.name in found:
            raise ContractError(f"the member {member.name} is described twice")
        found[member.name] = member
    return MappingProxyType(found)
