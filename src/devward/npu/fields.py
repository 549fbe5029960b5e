"""Strict reading of one JSON line: every field is there, has its type and is in its range, and there is no other. Pure.

Whatever the bytes are, the result is a value or a `Malformed` that says what is wrong with which field.
"""

import json
import math
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, NoReturn, TypeVar

from devward.text import quoted

_T = TypeVar("_T")
_E = TypeVar("_E", bound=StrEnum)

U32: Final = (1 << 32) - 1
U64: Final = (1 << 64) - 1

#: A value of JSON, as it was read, to a checked one.
Check = Callable[[Any], _T]


class Malformed(Exception):
    """What was read is not what the protocol has in that place."""


class Fields:
    """The members of one object, taken one by one where one says what the others are; `end` makes sure that nothing is left."""

    def __init__(self, value: Any, name: str = "the message") -> None:
        """Take an object. Malformed: it is none."""
        if not isinstance(value, dict):
            raise Malformed(f"{name} must be an object")
        self._left = dict(value)
        self._name = name

    def take(self, name: str, check: Check[_T]) -> _T:
        """Return a member. Malformed: it is not there, or not as `check` wants it."""
        if name not in self._left:
            raise Malformed(f"{self._name} has no {name}")
        value = self._left.pop(name)
        try:
            return check(value)
        except Malformed as error:
            raise Malformed(f"{name}: {error}") from None

    def end(self) -> None:
        """Malformed: there are members that nobody took."""
        if self._left:
            raise Malformed(f"{self._name} has an unknown field: {quoted(min(self._left))}")


def read_line(line: bytes, limit: int) -> Any:
    """Return the value of one line of JSON in strict UTF-8. Malformed: it is none, is too long, or names a member twice."""
    if len(line) > limit:
        raise Malformed(f"the line is longer than {limit} bytes")
    try:
        return json.loads(line.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Malformed("the line is not JSON") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise Malformed("an object has a member twice")
    return result


def _no_constant(name: str) -> NoReturn:
    raise Malformed(f"{name} is not a number of JSON")


def integer(lowest: int, highest: int) -> Check[int]:
    """Return a check for a whole number of this range."""

    def check(value: Any) -> int:
        # bool is an int to Python, and no number to JSON.
        if type(value) is not int or not lowest <= value <= highest:
            raise Malformed(f"must be a whole number from {lowest} to {highest}")
        return value

    return check


def number(lowest: float, highest: float) -> Check[float]:
    """Return a check for a finite number of this range."""

    def check(value: Any) -> float:
        if type(value) not in {int, float} or not lowest <= value <= highest or not math.isfinite(value):
            raise Malformed(f"must be a number from {lowest:g} to {highest:g}")
        return float(value)

    return check


def text(limit: int) -> Check[str]:
    """Return a check for printable text of at most this many characters."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value) > limit or not value.isprintable():
            raise Malformed(f"must be printable text of at most {limit} characters")
        return value

    return check


def pattern(expression: re.Pattern[str]) -> Check[str]:
    """Return a check for text that matches as a whole."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not expression.fullmatch(value):
            raise Malformed(f"must match {expression.pattern}")
        return value

    return check


def member(kind: type[_E]) -> Check[_E]:
    """Return a check for a word of an enumeration."""

    members = {str(one): one for one in kind}

    def check(value: Any) -> _E:
        # A list or an object cannot be looked up.
        found = members.get(value) if isinstance(value, str) else None
        if found is None:
            raise Malformed(f"must be one of {', '.join(kind)}")
        return found

    return check


def boolean(value: Any) -> bool:
    """Check for true or false."""
    if not isinstance(value, bool):
        raise Malformed("must be true or false")
    return value


def optional(check: Check[_T]) -> Check[_T | None]:
    """Return a check for null or what `check` takes."""
    return lambda value: None if value is None else check(value)


def several(check: Check[_T], limit: int) -> Check[tuple[_T, ...]]:
    """Return a check for an array of at most so many."""

    def checked(value: Any) -> tuple[_T, ...]:
        if not isinstance(value, list) or len(value) > limit:
            raise Malformed(f"must be an array of at most {limit}")
        return tuple(check(one) for one in value)

    return checked


def record(name: str, make: Callable[..., _T], **checks: Check[Any]) -> Check[_T]:
    """Return a check for an object with exactly these members, which `make` takes by their names."""

    def checked(value: Any) -> _T:
        if not isinstance(value, dict):
            raise Malformed(f"{name} must be an object")
        taken: dict[str, Any] = {}
        for key, check in checks.items():
            if key not in value:
                raise Malformed(f"{name} has no {key}")
            try:
                taken[key] = check(value[key])
            except Malformed as error:
                raise Malformed(f"{key}: {error}") from None
        if len(value) != len(taken):
            raise Malformed(f"{name} has an unknown field: {quoted(min(value.keys() - taken.keys()))}")
        return make(**taken)

    return checked
