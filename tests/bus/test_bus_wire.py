"""Long answers in the wire format are what dbus-next makes of the same values, and what it reads back."""

import io
import struct
from typing import Any

import pytest

import devward.bus.connection  # noqa: F401  # first: it keeps dbus-next from importing PyGObject, which warns where it is installed

# isort: split
from dbus_next import Message, MessageType, Variant
from dbus_next._private.marshaller import Marshaller
from dbus_next._private.unmarshaller import Unmarshaller
from hypothesis import given
from hypothesis import strategies as st

from devward.bus import transport, wire
from devward.bus.wire import Encoded, InterfaceWriter

texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12)
numbers = {"i": (-(2**31), 2**31 - 1), "u": (0, 2**32 - 1), "t": (0, 2**64 - 1)}
values: dict[str, st.SearchStrategy[Any]] = {
    "s": texts,
    "o": st.lists(st.text("azAZ09_", min_size=1, max_size=9), max_size=3).map(lambda parts: "/" + "/".join(parts)),
    "as": st.lists(texts, max_size=3),
    "b": st.booleans(),
    "d": st.floats(allow_nan=False),
    **{signature: st.integers(*bounds) for signature, bounds in numbers.items()},
}
names = st.text("abcXYZ", min_size=1, max_size=9)
#: Signature and value by the name of the property.
properties = st.dictionaries(
    names, st.sampled_from(sorted(values)).flatmap(lambda signature: st.tuples(st.just(signature), values[signature])), max_size=6
)
trees = st.dictionaries(values["o"], st.dictionaries(names, properties, max_size=3), max_size=4)


def marshalled(signature: str, body: list[object]) -> bytes:
    marshaller = Marshaller(signature, body)
    marshaller.marshall()
    return bytes(marshaller.buffer)


def entry(path: str, interfaces: dict[str, dict[str, tuple[str, Any]]]) -> bytes:
    written = []
    for name, held in interfaces.items():
        writer = InterfaceWriter(name, {prop: signature for prop, (signature, _) in held.items()})
        written.append((writer, {prop: value for prop, (_, value) in held.items()}))
    return wire.entry(path, written)


def variants(interfaces: dict[str, dict[str, tuple[str, Any]]]) -> dict[str, dict[str, Variant]]:
    return {name: {prop: Variant(signature, value) for prop, (signature, value) in held.items()} for name, held in interfaces.items()}


@given(trees)
def test_objects(tree: dict[str, Any]) -> None:
    body = wire.objects(entry(path, interfaces) for path, interfaces in tree.items())
    assert body.data == marshalled("a{oa{sa{sv}}}", [{path: variants(interfaces) for path, interfaces in tree.items()}])


@given(values["o"], st.dictionaries(names, properties, max_size=3))
def test_an_object_that_was_added(path: str, interfaces: dict[str, Any]) -> None:
    assert wire.added(entry(path, interfaces)).data == marshalled("oa{sa{sv}}", [path, variants(interfaces)])


@given(st.data())
def test_tables(data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.sampled_from([code for code in sorted(values) if len(code) == 1]), min_size=1, max_size=7))
    rows = data.draw(st.lists(st.tuples(*(values[code] for code in codes)), max_size=5))
    signature = f"a({''.join(codes)})"
    assert wire.table(signature, rows).data == marshalled(signature, [[list(row) for row in rows]])


@pytest.mark.parametrize(
    ("signature", "body", "like"),
    [
        ("a{oa{sa{sv}}}", {"/a/b": {"c.d": {"E": Variant("s", "é")}}}, {}),
        ("a(ussssoo)", [[1, "a", "b", "c", "d", "/e", "/f"]], []),
    ],
)
def test_a_message_with_such_a_body_is_read_as_any_other(signature: str, body: object, like: object) -> None:
    encoded = Encoded(marshalled(signature, [body]), (like,))
    fields = {"message_type": MessageType.METHOD_RETURN, "reply_serial": 7, "destination": ":1.5", "serial": 9}
    frame = transport.make_message(signature, encoded, **fields)._marshall(negotiate_unix_fd=True)
    assert frame == Message(signature=signature, body=[body], **fields)._marshall(negotiate_unix_fd=True)
    assert Unmarshaller(io.BytesIO(frame)).unmarshall().body == [body]


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b", "é", "\U0001f600", ""])
def test_texts_are_made_fit_as_everywhere(text: str) -> None:
    assert wire.table("a(s)", [(text,)]).data == marshalled("a(s)", [[[transport.wired(text)]]])
    assert "\0" not in wire.fit_text(text)


@pytest.mark.parametrize(("signature", "value"), [("u", -1), ("u", 2**32), ("i", 2**31), ("t", 2**64), ("u", "x"), ("d", "x")])
def test_what_does_not_fit_is_not_written(signature: str, value: object) -> None:
    with pytest.raises(struct.error):
        wire.table(f"a({signature})", [(value,)])


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        wire.table("a(ss)", [("one",)])


def test_what_the_bus_would_not_take_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_ENCODED", 100)
    assert transport.make_message(
        "a(s)", wire.table("a(s)", [("x" * 80,)]), message_type=MessageType.SIGNAL, path="/", interface="a.b", member="C"
    )
    with pytest.raises(transport.MessageTooLong):
        transport.make_message("a(s)", wire.table("a(s)", [("x" * 90,)]))
    monkeypatch.setattr(wire, "MAX_ARRAY", 50)
    with pytest.raises(ValueError, match="longer"):
        wire.table("a(s)", [("x" * 80,)])
