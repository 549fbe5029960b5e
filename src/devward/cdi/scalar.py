"""Scalars of a CDI document as go-yaml v2, and so the reference loader, understands them: YAML 1.1 with omissions. Pure."""

import base64
import binascii
import math
import re
from typing import Final, TypeAlias

from devward.cdi.defect import SpecError
from devward.text import quoted

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"

_WORDS: Final[dict[str, bool | float | None]] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_INTEGER: Final = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_DOT_FLOAT: Final = re.compile(r"\.[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+(?:_[0-9]+)*)?")
_TIMESTAMP: Final = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ][0-9].*)?")
LONG_TAG: Final = "tag:yaml.org,2002:"
INT64_MAX: Final = 2**63 - 1


def _finite(text: str) -> float | None:
    number = float(text)
    return None if math.isinf(number) else number


def _integer(text: str) -> int | None:
    match = _INTEGER.fullmatch(text)
    if match is None:
        return None
    sign, hexadecimal, binary, octal, decimal = match.groups()
    if decimal is not None:
        if len(decimal) > 20:
            return None
        number = int(decimal)
    elif hexadecimal is not None:
        number = int(hexadecimal, 16)
    elif binary is not None:
        number = int(binary, 2)
    else:
        number = int(octal, 8)
    if sign == "-":
        number = -number
    # Signed numbers are 64-bit signed; without a sign the unsigned range counts too.
    return number if -(2**63) <= number <= (2 * INT64_MAX + 1 if not sign else INT64_MAX) else None


def resolve_scalar(text: str) -> Value:
    """Return what go-yaml v2 makes of a plain scalar: a word of YAML 1.1, an integer, a float or the text itself.

    Sexagesimal numbers and timestamps stay text; a number beyond the range of its type does too.
    """
    if text in _WORDS:
        return _WORDS[text]
    first = text[0]
    if first == ".":
        number = _finite(text.replace("_", "")) if _DOT_FLOAT.fullmatch(text) else None
        return text if number is None else number
    if first in "+-0123456789":
        plain = text.replace("_", "")
        integer = _integer(plain)
        if integer is not None:
            return integer
        if _FLOAT.fullmatch(plain):
            number = _finite(plain)
            return text if number is None else number
    return text


def resolve_tagged(tag: str | None, text: str) -> Value:
    """Return the value of a scalar with this tag, a plain one where that is None; an unknown tag leaves the text.

    Raises SpecError where the text is not of its tag.
    """
    if tag is None:
        return resolve_scalar(text)
    name = tag.removeprefix(LONG_TAG)
    if name == tag or name not in {"str", "bool", "int", "float", "null", "timestamp", "binary"}:
        return text
    if name == "str":
        return text
    if name == "binary":
        try:
            return base64.b64decode(text.replace("\r", "").replace("\n", ""), validate=True).decode("utf-8", "replace")
        except (binascii.Error, ValueError):
            raise SpecError("it has a !!binary value that is not base64") from None
    value = resolve_scalar(text)
    if name == "timestamp" and _TIMESTAMP.fullmatch(text):
        return text
    if name == "null" and value is None:
        return None
    if name == "bool" and isinstance(value, bool):
        return value
    if name == "int" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if name == "float" and isinstance(value, int | float) and not isinstance(value, bool) and value <= INT64_MAX:
        return float(value)
    if name == "float" and isinstance(value, float):
        return value
    raise SpecError(f"it has a value {quoted(text)} that is not of its tag !!{name}")


def float_text(number: float) -> str:
    """Return the text that the reference makes of a float where a string is wanted (Go's shortest `%g`)."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    sign = "-" if math.copysign(1.0, number) < 0 else ""
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # The value is 0.<digits> times ten to the power of `point`.
    point = len(digits) - len(fraction) + int(exponent or "0")
    digits = digits.rstrip("0")
    if not digits:
        return sign + "0"
    if point - 1 < -4 or point - 1 >= 6:
        tail = "." + digits[1:] if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{'-' if point < 1 else '+'}{abs(point - 1):02d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if len(digits) <= point:
        return sign + digits + "0" * (point - len(digits))
    return f"{sign}{digits[:point]}.{digits[point:]}"
