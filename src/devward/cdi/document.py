"""The bytes of a CDI file to plain values, exactly as the reference loader reads them. Pure.

The reference (container-device-interface, `pkg/cdi/spec.go`) reads every file, also `.json`, with a YAML 1.1 parser (go-yaml v2 through
`sigs.k8s.io/yaml`, strict) and turns the result into JSON. So JSON is only a fast path here, taken where both readings agree; the rest
is PyYAML's event stream, resolved by go-yaml's rules and not by PyYAML's. PyYAML is imported only then.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from devward.cdi.defect import NotExamined, NotPlain, SpecError
from devward.cdi.scalar import INT64_MAX, LONG_TAG, Value, float_text, resolve_scalar, resolve_tagged
from devward.text import printable, quoted

# Bounds of ours, not of engines: what goes beyond is not examined, and never said to be refused. Only depth is a defect by itself.
#: A value has no place in the reference's structs below depth 8 (a hook's arguments), and unknown keys are refused, so whatever is
#: nested deeper is refused too. Only values that are merged (<<) may nest as deep as they like: they come out flat.
MAX_DEPTH: Final = 32
#: Nodes of a YAML document, and nodes that its aliases repeat. go-yaml bounds only the second, by a ratio to the first.
MAX_NODES: Final = 100_000
MAX_ALIASED_NODES: Final = 50_000
#: libyaml compares every %TAG directive with every other; go-yaml sets no bound.
MAX_TAG_DIRECTIVES: Final = 16
_TOO_DEEP: Final = "it is nested more deeply than a CDI document can be"
#: PyYAML without libyaml needs about 15 s for a MiB.
MAX_WITHOUT_LIBYAML: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed document. `remarks` name what is odd about its notation though engines read it."""

    value: Value
    remarks: tuple[str, ...]


class _NotPlainJson(Exception):
    """The text is no JSON, or JSON that YAML may read in another way; the argument says what a strict JSON reader dislikes, if anything."""


# --- JSON ------------------------------------------------------------------------------------------------------------------------------
# What YAML refuses or reads as a line break, though JSON allows it in a string.
_NOT_YAML: Final = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
# A key of YAML ends on its own line, and within 1,024 characters.
_SPACED_COLON: Final = re.compile(r"(?<![ \t\r\n])[ \t\r\n]+:")
_MAX_SPACING: Final = 500
_LONG_KEY: Final = 150
# Escapes that JSON has and go-yaml v2 refuses: `\/`, and every half of a surrogate pair.
_REFUSED_ESCAPE: Final = re.compile(r"(?<!\\)(?:\\\\)*\\(?:/|u[dD][89a-fA-F])")
_WHITE: Final = " \t\r\n"


def _unique(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise SpecError(f"it has the key {quoted(key)} twice in one object")
            seen.add(key)
    if any(len(key) > _LONG_KEY for key in members):
        raise _NotPlainJson("")
    return members


def _constant(name: str) -> NoReturn:
    raise _NotPlainJson(f"it has the word {name}, which JSON does not know")


def _json_defect(text: str, error: json.JSONDecodeError) -> str:
    rest = text[error.pos : error.pos + 2]
    if error.msg == "Extra data":
        return f"text follows the document (line {error.lineno})"
    if rest[:1] == "#" or rest in ("//", "/*"):
        return f"it has a comment (line {error.lineno})"
    before = text[: error.pos].rstrip(_WHITE)
    # Python 3.13 points at the comma itself, older ones at the bracket behind it.
    if (rest[:1] in ("}", "]") and before.endswith(",")) or error.msg.startswith("Illegal trailing comma"):
        return f"it has a comma before a closing bracket (line {error.lineno})"
    return f"line {error.lineno} column {error.colno}: {printable(error.msg, 80)}"


def _parse_json(text: str) -> Value:
    """Return the value of JSON that YAML reads in the same way.

    Raises SpecError for JSON that the reference refuses for its notation, _NotPlainJson for all else.
    """
    try:
        value: Value = json.loads(
            text, object_pairs_hook=_unique, parse_int=resolve_scalar, parse_float=resolve_scalar, parse_constant=_constant
        )
    except json.JSONDecodeError as error:
        raise _NotPlainJson(_json_defect(text, error)) from None
    except RecursionError:  # about a thousand levels, and JSON cannot merge
        raise SpecError(_TOO_DEEP) from None
    if "\\" in text and _REFUSED_ESCAPE.search(text):
        raise SpecError("it has an escape that engines refuse, \\/ or one half of a surrogate pair")
    for match in _SPACED_COLON.finditer(text):
        spacing = match.group()
        if len(spacing) > _MAX_SPACING or "\n" in spacing or "\r" in spacing:
            raise _NotPlainJson("")
    margins = text[: len(text) - len(text.lstrip(_WHITE))] + text[len(text.rstrip(_WHITE)) :]
    if "\t" in margins or _NOT_YAML.search(text):
        raise _NotPlainJson("")
    return value


# --- YAML ------------------------------------------------------------------------------------------------------------------------------
@dataclass(slots=True, eq=False)
class _Node:
    """A node under construction; `size` counts what it stands for with its aliases written out."""

    value: Value = None
    size: int = 1
    done: bool = False
    #: Of a mapping: its keys with their types, since 1 and "1" are two keys to YAML and one to JSON.
    keys: set[tuple[type, object]] = field(default_factory=set)
    #: Of a list: its elements, for the keys of those that are merged.
    elements: list["_Node"] = field(default_factory=list)
    # Of a mapping that is being filled: the key whose value comes next, as it was written and as text; or a merge key came last.
    typed_key: tuple[type, object] = (type(None), None)
    key: str | None = None
    merging: bool = False


def _key_text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int) and value <= INT64_MAX:
        return str(value)
    if isinstance(value, float):
        return {"+Inf": ".inf", "-Inf": "-.inf", "NaN": ".nan"}.get(float_text(value), float_text(value))
    raise SpecError("it has a key that is no string, number or boolean")


def _set(mapping: _Node, typed: tuple[type, object], key: str, value: Value) -> None:
    members = mapping.value
    assert isinstance(members, dict)  # noqa: S101  (for the type checker: only mappings come here)
    if typed in mapping.keys or key in members:
        raise SpecError(f"it has the key {quoted(key)} twice in one mapping")
    mapping.keys.add(typed)
    members[key] = value


def _merge(mapping: _Node, source: _Node) -> None:
    """Take over the members of a `<<` value: a mapping or a list of mappings. A key that is there already is an error."""
    parts = source.elements if isinstance(source.value, list) else [source]
    for part in parts:
        if not isinstance(part.value, dict):
            raise SpecError("it merges (<<) something that is not a mapping")
        for typed in part.keys:
            key = _key_text(typed[1])  # type: ignore[arg-type]  # the keys hold scalars only
            _set(mapping, typed, key, part.value[key])


class _Builder:
    """Builds the value of one document from its events, without recursion and within bounds."""

    def __init__(self, text: str) -> None:
        self._text = text if "\\/" in text else ""
        self._stack: list[_Node] = []
        #: The depth from which on the notation is that of brackets.
        self._flow_from: int | None = None
        self._anchors: dict[str, _Node] = {}
        self._nodes = 0
        self._aliased = 0
        self.root: _Node | None = None

    def start(self, value: Value, event: Any) -> None:
        if len(self._stack) >= MAX_DEPTH:
            if any(node.merging for node in self._stack):
                raise NotExamined(f"its merges (<<) are nested deeper than devward examines ({MAX_DEPTH})")
            raise SpecError(_TOO_DEEP)
        self._stack.append(self._new(value, event.anchor))
        # Whatever stands within brackets is in their notation.
        if event.flow_style and self._flow_from is None:
            self._flow_from = len(self._stack)

    def end(self) -> None:
        if self._flow_from == len(self._stack):
            self._flow_from = None
        node = self._stack.pop()
        node.done = True
        self._place(node, merge_key=False)

    def scalar(self, event: Any) -> None:
        tag: str | None = event.tag
        plain: bool = event.implicit[0]
        text: str = event.value
        if event.style == '"' and self._text and _REFUSED_ESCAPE.search(self._text[event.start_mark.index : event.end_mark.index]):
            raise SpecError("it has an escape that engines refuse, \\/ or one half of a surrogate pair")
        if self._flow_from is not None and not event.style and "?" in text:
            # To libyaml it is part of the text, to go-yaml v2 it begins a key.
            raise SpecError(f"it has a question mark in unquoted text within brackets, {quoted(text)}")
        value = text if tag is None and not plain else resolve_tagged(tag, text)
        node = self._new(value, event.anchor)
        node.done = True
        self._place(node, merge_key=text == "<<" and (plain or tag == LONG_TAG + "merge"))

    def alias(self, name: str) -> None:
        node = self._anchors.get(name)
        if node is None:
            raise SpecError(f"it refers to an anchor {quoted(name)} that does not exist")
        if not node.done:
            raise SpecError(f"its anchor {quoted(name)} contains itself")
        if self._stack and self._stack[-1].merging and not isinstance(node.value, dict):
            raise SpecError("it merges (<<) something that is not a mapping")
        self._aliased += node.size
        if self._aliased > MAX_ALIASED_NODES:
            raise NotExamined(f"its aliases repeat more values than devward examines ({MAX_ALIASED_NODES})")
        self._place(node, merge_key=False)

    def _new(self, value: Value, anchor: str | None) -> _Node:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise NotExamined(f"it has more values than devward examines ({MAX_NODES})")
        node = _Node(value)
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _place(self, node: _Node, *, merge_key: bool) -> None:
        if not self._stack:
            self.root = node
            return
        parent = self._stack[-1]
        parent.size += node.size
        if isinstance(parent.value, list):
            parent.value.append(node.value)
            parent.elements.append(node)
        elif parent.merging:
            parent.merging = False
            _merge(parent, node)
        elif parent.key is None:
            if merge_key:
                parent.merging = True
                return
            if isinstance(node.value, list | dict):
                raise SpecError("it has a key that is a list or a mapping")
            parent.key = _key_text(node.value)
            parent.typed_key = (type(node.value), node.value)
        else:
            _set(parent, parent.typed_key, parent.key, node.value)
            parent.key = None


def _yaml_reason(error: Exception) -> str:
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark is not None else ""
    return f"it is not valid YAML ({where}{printable(str(problem), 100)})"


def _parse_yaml(text: str) -> tuple[Value, bool]:
    """Return the value of the first document and whether anything follows it, which engines never look at."""
    try:
        import yaml
    except ImportError:
        raise NotExamined("it is not plain JSON, and to read it as YAML, as engines do, PyYAML is needed") from None
    loader = getattr(yaml, "CSafeLoader", None)
    if loader is None:
        if len(text) > MAX_WITHOUT_LIBYAML:
            raise NotExamined("it is not plain JSON, and too long to be read as YAML without libyaml")
        loader = yaml.SafeLoader
    if text.count("%TAG") > MAX_TAG_DIRECTIVES:
        raise NotExamined(f"it has more YAML directives than devward examines ({MAX_TAG_DIRECTIVES})")
    builder = _Builder(text)
    # PyYAML lets ValueError and OverflowError of int() and chr() out.
    unreadable = (yaml.YAMLError, ValueError, OverflowError)
    events: Iterator[Any] = yaml.parse(text, Loader=loader)
    try:
        for event in events:
            if isinstance(event, yaml.ScalarEvent):
                builder.scalar(event)
            elif isinstance(event, yaml.AliasEvent):
                builder.alias(event.anchor or "")
            elif isinstance(event, yaml.MappingStartEvent):
                builder.start({}, event)
            elif isinstance(event, yaml.SequenceStartEvent):
                builder.start([], event)
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                builder.end()
            elif isinstance(event, yaml.DocumentStartEvent):
                if event.version is not None and tuple(event.version) != (1, 1):
                    raise SpecError("it declares a YAML version other than 1.1")
            elif isinstance(event, yaml.DocumentEndEvent):
                break
    except SpecError:
        raise
    except unreadable as error:
        raise SpecError(_yaml_reason(error)) from None
    try:
        following = next(events, None)
    except unreadable:
        return (builder.root.value if builder.root else None), True
    return (builder.root.value if builder.root else None), following is not None and not isinstance(following, yaml.StreamEndEvent)


def _decode(data: bytes) -> tuple[str, bool]:
    """Return the text and whether it began with a byte order mark; a mark chooses the encoding, UTF-8 otherwise."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        raise SpecError("it is not UTF-8 text") from None
    if encoding == "utf-16":
        return text, True
    return (text[1:], True) if text.startswith("\ufeff") else (text, False)


def parse(data: bytes, *, json_expected: bool, plain_only: bool = False) -> Document:
    """Return the document in `data` as the reference loader reads it.

    `json_expected` is for a file whose name promises JSON: what a strict JSON reader would refuse then becomes a remark.
    `plain_only` spares the slow way: what is not plain JSON raises NotPlain.
    The caller bounds the size of `data`. Raises SpecError, or NotExamined where PyYAML cannot be had or the document is beyond our bounds.
    """
    text, marked = _decode(data)
    remarks = ["it begins with a byte order mark"] if marked else []
    if not text:
        return Document(None, ())
    try:
        return Document(_parse_json(text), tuple(remarks))
    except _NotPlainJson as error:
        defect = str(error)
    if plain_only:
        raise NotPlain("it has to be read as YAML")
    value, followed = _parse_yaml(text)
    if followed:
        remarks.append("engines read only the first of its documents")
    elif json_expected and defect:
        remarks.append(f"it is not strict JSON, {defect}; engines read it as YAML")
    return Document(value, tuple(remarks))
