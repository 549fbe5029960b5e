"""Values of the bus as devwardctl reads them: one that is absent, or of another type, is the one that says least. Pure."""

import math
import re
from collections.abc import Mapping
from typing import Final

from devward.npu.views import UNKNOWN_NUMBER
from devward.plugin.status import PROBLEM_TEXT, PluginProblem
from devward.reasons import REASON_TEXT, Reason
from devward.text import printable

Raw = Mapping[str, object]

_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
#: Stands for a number that is not known.
UNKNOWN: Final = UNKNOWN_NUMBER
#: The bus has no number beyond this; JSON may have one with which nobody can count.
_BEYOND: Final = 1 << 64


def snake(name: str) -> str:
    """Return a property's name in snake case: LastCheckUSec becomes last_check_usec."""
    return _WORD.sub("_", name.replace("USec", "Usec")).lower()


def raw(properties: Mapping[str, object]) -> Raw:
    """Return the properties of one interface with their names in snake case."""
    return {snake(name): value for name, value in properties.items()}


def text_of(values: Raw, name: str) -> str:
    """Return a text, empty where there is none."""
    value = values.get(name)
    return value if isinstance(value, str) else ""


def number_of(values: Raw, name: str) -> int:
    """Return a number, 0 where there is none."""
    return _whole(values.get(name), 0)


def real_of(values: Raw, name: str) -> float:
    """Return a number that may have a fraction, UNKNOWN where there is none."""
    value = values.get(name)
    if isinstance(value, float):
        return value if math.isfinite(value) else float(UNKNOWN)
    return float(_whole(value, UNKNOWN))


def integer_of(values: Raw, name: str) -> int:
    """Return a number of which 0 says something, UNKNOWN where there is none."""
    return _whole(values.get(name), UNKNOWN)


def _whole(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _BEYOND else otherwise


def texts_of(values: Raw, name: str) -> tuple[str, ...]:
    """Return a list of texts, empty where there is none."""
    value = values.get(name)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list | tuple) else ()


def last(path: str) -> str:
    """Return the last element of an object path."""
    return path.rpartition("/")[2]


def sentence(reason: str, text: str = "") -> str:
    """Return the sentence for a reason code, the daemon's own if it gave one; a code that is not known here stands for itself."""
    if text:
        return printable(text, 400)
    try:
        return PROBLEM_TEXT[PluginProblem(reason)] if reason in list(PluginProblem) else REASON_TEXT[Reason(reason)]
    except ValueError:
        return f"The reason is {printable(reason)}, which this devwardctl does not know."
