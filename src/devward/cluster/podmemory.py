"""The list of a node's Pods, look after look: what stands in it as it stood before is not read again. Pure.

A list of 250 Pods is 1.5 MB of JSON, nearly all of it the same as a minute before. Each list is asked for anew and gone through from
its first byte to its last; only an item whose whole text is that of an item of the list before is taken to say what that one said. A JSON
object ends with its own closing brace, whatever follows: a list that goes on with the whole text of a known item has that item there.

What is not as the API server writes a list, or cannot be read, is left to parse_pod_list, which decides alone what is refused, and why.
"""

import re
from dataclasses import dataclass
from typing import Final

from devward.cluster.answer import MAX_BYTES, AnswerError, Fields, decode_value, parse_answer
from devward.cluster.podlist import Pod, PodList, parse_pod_list, read_pod, read_version, refuse_twins

#: Within a text a quotation mark has a backslash before it: a key of an object, of whichever, is found by this.
_ITEMS: Final = re.compile(r'"items":\s*\[')
_WHITE: Final = " \t\r\n"


class _OtherForm(Exception):
    """It is not as the API server writes a list."""


@dataclass(frozen=True, slots=True)
class _Item:
    """A Pod, and the text that says so."""

    text: str
    pod: Pod


class PodListReader:
    """Reads one list after the other, and remembers the latest. For one thread at a time."""

    def __init__(self) -> None:
        """Know of no list."""
        self._items: tuple[_Item, ...] = ()
        self._node = ""

    def read(self, data: bytes, node: str) -> PodList:
        """Return what parse_pod_list returns. AnswerError."""
        known = self._items if node == self._node else ()
        self._items, self._node = (), node
        try:
            found, items = _read(data, node, known)
        except (_OtherForm, AnswerError, ValueError, RecursionError):
            return parse_pod_list(data, node)
        self._items = items
        return found


def _read(data: bytes, node: str, known: tuple[_Item, ...]) -> tuple[PodList, tuple[_Item, ...]]:
    """Return a list and its items. AnswerError, ValueError, RecursionError, _OtherForm: it has to be read otherwise."""
    if len(data) > MAX_BYTES:
        raise _OtherForm
    text = data.decode()
    begin = _ITEMS.search(text)
    if begin is None:
        raise _OtherForm
    # With nothing but a brace behind the list, this is an object only if the list is its own, and no object's within it.
    envelope = parse_answer(f"{text[: begin.end()]}]}}".encode(), "PodList", "v1")
    version = read_version(envelope)
    items = _items(text, begin.end(), node, known)
    pods = tuple(item.pod for item in items)
    refuse_twins(pods)
    return PodList(version, pods), items


def _items(text: str, at: int, node: str, known: tuple[_Item, ...]) -> tuple[_Item, ...]:
    """Return the items of a list, the first of which begins at `at`; nothing but the closing brace may follow the list."""
    places = {item.pod.uid: place for place, item in enumerate(known)}
    found: list[_Item] = []
    # The place among the known ones of the item that comes next if nothing changed.
    place = 0
    at = _skip(text, at)
    is_more = text[at : at + 1] != "]"
    while is_more:
        if place < len(known) and text.startswith(known[place].text, at):
            item = known[place]
        else:
            item = _read_item(text, at, node)
            # After one that is new, the one that was expected; after one that is known, the one behind that.
            place = places.get(item.pod.uid, place - 1)
        found.append(item)
        place += 1
        at = _skip(text, at + len(item.text))
        is_more = text[at : at + 1] == ","
        if is_more:
            at = _skip(text, at + 1)
    if text[at : at + 1] != "]" or text[at + 1 :].strip(_WHITE) != "}":
        raise _OtherForm
    return tuple(found)


def _read_item(text: str, at: int, node: str) -> _Item:
    value, end = decode_value(text, at)
    if not isinstance(value, dict):
        raise _OtherForm
    return _Item(text[at:end], read_pod(Fields(value), node))


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _WHITE:
        at += 1
    return at
