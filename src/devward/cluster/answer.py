"""What the API server answers, read strictly: JSON text to values of the types that the API gives its fields. Pure.

Bodies are read raw, since client libraries refuse a whole list for one null and let other oddities pass. Go writes a list or a map that is
not there as null, and a time that is not known too; those are read as empty. Whatever else does not have its type is a named problem:
nothing is guessed, and an answer with a problem is no evidence.
"""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NoReturn

from devward.text import printable, quoted

#: A list of a node's Pods has a few MB at most.
MAX_BYTES: Final = 64 * 1024 * 1024

_TIME: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})", re.ASCII)


class AnswerProblem(StrEnum):
    """Why an answer is no evidence."""

    TOO_LARGE = "too-large"
    NOT_JSON = "not-json"
    KEY_TWICE = "key-twice"
    #: It is another kind of object than was asked for, such as a Status.
    WRONG_KIND = "wrong-kind"
    FIELD_ODD = "field-odd"
    #: A list without a resource version was not read from the store.
    NO_VERSION = "no-version"
    #: It is only the first part of a list.
    PAGINATED = "paginated"
    #: It is about another node.
    OTHER_NODE = "other-node"
    UID_TWICE = "uid-twice"
    NAME_TWICE = "name-twice"


PROBLEM_TEXT: Final[Mapping[AnswerProblem, str]] = {
    AnswerProblem.TOO_LARGE: "The API server's answer is larger than any node's can be; look at what answers at the kubeconfig's address.",
    AnswerProblem.NOT_JSON: "The API server's answer is not JSON, or not whole; look at proxies between this host and the API server.",
    AnswerProblem.KEY_TWICE: "The API server's answer has a key twice in one object; look at what answers at the kubeconfig's address.",
    AnswerProblem.WRONG_KIND: "The API server answered with another kind of object than was asked for; look at its message.",
    AnswerProblem.FIELD_ODD: "A field of the API server's answer has a form that the API does not give it; look at the object named.",
    AnswerProblem.NO_VERSION: "The list has no resource version, so it does not say of which moment it is; look at what answers there.",
    AnswerProblem.PAGINATED: "The list is only a part of one; something between this host and the API server forces pagination.",
    AnswerProblem.OTHER_NODE: "The answer is about another node; check the configured node name and the kubelet's certificate.",
    AnswerProblem.UID_TWICE: "The list has two Pods of one UID, so it is not of one moment; look at what answers there.",
    AnswerProblem.NAME_TWICE: "The list has two Pods of one name, so it is not of one moment; look at what answers there.",
}


class AnswerError(ValueError):
    """An answer that is no evidence; the text says why, in one sentence fit to be shown."""

    def __init__(self, problem: AnswerProblem, detail: str = "") -> None:
        """Keep the problem, and what it was in particular, which is escaped."""
        self.problem = problem
        self.detail = printable(detail)
        text = PROBLEM_TEXT[problem]
        super().__init__(f"{text[:-1]} ({self.detail})." if detail else text)


class _KeyTwice(ValueError):
    """No two readers agree on what it means."""


class Fields:
    """A JSON object whose fields are asked for by type. Absent ones are empty; each method raises AnswerError for another type."""

    __slots__ = ("_key", "_parent", "value")

    def __init__(self, value: dict[str, Any], parent: "Fields | None" = None, key: str = "") -> None:
        """Wrap an object, which is `key` of `parent`."""
        self.value = value
        self._parent = parent
        self._key = key

    def __contains__(self, key: str) -> bool:
        return key in self.value

    @property
    def path(self) -> str:
        """Where it stands in the answer, as `.items[3].spec`."""
        return f"{self._parent.path}{self._key}" if self._parent is not None else self._key

    def odd(self, key: str, what: str) -> NoReturn:
        """Refuse a field."""
        raise AnswerError(AnswerProblem.FIELD_ODD, f"{self.path}.{key}: {what}")

    def text(self, key: str) -> str:
        """A text."""
        value = self.value.get(key, "")
        return value if isinstance(value, str) else self.odd(key, "a text is expected")

    def needed(self, key: str) -> str:
        """A text that is not empty."""
        return self.text(key) or self.odd(key, "it is missing")

    def flag(self, key: str) -> bool:
        """A truth value."""
        value = self.value.get(key, False)
        return value if isinstance(value, bool) else self.odd(key, "true or false is expected")

    def integer(self, key: str) -> int:
        """An integer, which must be there."""
        value = self.value.get(key)
        return value if type(value) is int else self.odd(key, "an integer is expected")

    def time(self, key: str) -> int | None:
        """A time of RFC 3339 in microseconds since 1970; None if it is not known."""
        value = self.value.get(key)
        if value is None:
            return None
        found = _TIME.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            self.odd(key, "a time is expected")
        try:
            seconds = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00")).timestamp()
        except (ValueError, OverflowError):
            self.odd(key, "a time is expected")
        return int(seconds) * 1_000_000 + int((found[2] or "0").ljust(6, "0")[:6])

    def object(self, key: str) -> "Fields":
        """An object."""
        value = self.value.get(key, {})
        return Fields(value, self, f".{key}") if isinstance(value, dict) else self.odd(key, "an object is expected")

    def objects(self, key: str) -> "list[Fields]":
        """A list of objects."""
        value = self.value.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.odd(key, "a list is expected")
        result = []
        for index, entry in enumerate(value):
            if not isinstance(entry, dict):
                self.odd(f"{key}[{index}]", "an object is expected")
            result.append(Fields(entry, self, f".{key}[{index}]"))
        return result

    def texts(self, key: str) -> dict[str, str]:
        """A map of texts."""
        value = self.value.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
            self.odd(key, "a map of texts is expected")
        return value


def parse_answer(data: bytes, kind: str, version: str) -> Fields:
    """Return the object of a body that must be of this kind and API version. AnswerError."""
    if len(data) > MAX_BYTES:
        raise AnswerError(AnswerProblem.TOO_LARGE, f"{len(data)} bytes")
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except _KeyTwice as error:
        raise AnswerError(AnswerProblem.KEY_TWICE, str(error)) from None
    except (ValueError, RecursionError) as error:
        raise AnswerError(AnswerProblem.NOT_JSON, str(error)) from None
    if not isinstance(value, dict):
        raise AnswerError(AnswerProblem.WRONG_KIND, "not an object")
    fields = Fields(value)
    if fields.text("kind") != kind or fields.text("apiVersion") != version:
        said = fields.value.get("message")
        more = f": {quoted(said, 120)}" if isinstance(said, str) else ""
        raise AnswerError(AnswerProblem.WRONG_KIND, f"{quoted(fields.text('kind'), 40)} of {quoted(fields.text('apiVersion'), 40)}{more}")
    return fields


def parse_json(text: str) -> Any:
    """Return the value of a JSON text within a text, such as an annotation. ValueError for what is no JSON or has a key twice."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def decode_value(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value that begins at a place of a text, and where it ends. ValueError, RecursionError: there is none, or as above."""
    return _DECODER.raw_decode(text, at)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _KeyTwice(f"the key {next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))} twice")
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
