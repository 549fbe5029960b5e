"""What a file of ours holds and should not, in words for the audit trail. Pure.

Our own files are strict JSON in UTF-8: comments, YAML, duplicate keys and a byte order mark make one malformed, whatever engines do.
"""

import json
from collections.abc import Iterator
from typing import Final, NoReturn, TypeAlias, cast

from devward.cdi.defect import SpecError
from devward.text import printable, quoted

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

MAX_DIFFERENCES: Final = 20


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise SpecError("it has a key twice in one object")
    return members


def _constant(name: str) -> NoReturn:
    raise SpecError(f"it has the word {name}, which JSON does not know")


def strict_json(data: bytes) -> Json:
    """Return the value of strict JSON (RFC 8259, unique keys, no byte order mark); raises SpecError for all else."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise SpecError("it is not UTF-8 text") from None
    try:
        value: Json = json.loads(text, object_pairs_hook=_unique, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise SpecError(f"it is not JSON (line {error.lineno} column {error.colno}: {printable(error.msg, 80)})") from None
    except RecursionError:
        raise SpecError("it is nested too deeply") from None
    except SpecError:
        raise
    except ValueError:
        # Python bounds the digits of an integer.
        raise SpecError("it has a number that is too long") from None
    return value


def _shown(value: Json) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        # The decimal text of a huge integer is expensive, and bounded by Python.
        return "a huge number"
    return printable(json.dumps(value), 80)


def _walk(found: Json, desired: Json, what: str, where: str) -> Iterator[str]:
    """Yield what differs. `what` names the value (`uid`), `where` is the device it belongs to, empty for the document."""
    prefix = f"{where}: " if where else ""
    of_device = f" of {where}" if where else ""
    if isinstance(found, dict) and isinstance(desired, dict):
        place = f" in {what}{of_device}" if what else (f" in {where}" if where else "")
        for key in desired:
            if key not in found:
                yield f"{prefix}{key} is missing"
        for key in found:
            if key not in desired:
                yield f"unexpected key {quoted(key)}{place}"
        for key in desired:
            if key in found:
                yield from (
                    _devices(found[key], desired[key]) if key == "devices" and not where else _walk(found[key], desired[key], key, where)
                )
    elif isinstance(found, list) and isinstance(desired, list):
        if len(found) != len(desired):
            yield f"{prefix}{what} has {len(found)} entries, should have {len(desired)}"
            return
        for index, (ours, theirs) in enumerate(zip(desired, found, strict=True)):
            yield from _walk(theirs, ours, f"{what}[{index}]", where)
    elif type(found) is not type(desired) or found != desired:
        yield f"{prefix}{what or 'the document'} is {_shown(found)}, should be {_shown(desired)}"


def _devices(found: Json, desired: Json) -> Iterator[str]:
    """Compare the two lists of devices by name: their order means nothing, a name that is there twice does."""
    names = [device.get("name") if isinstance(device, dict) else None for device in found] if isinstance(found, list) else [None]
    if not isinstance(desired, list) or not all(isinstance(name, str) for name in names):
        yield from _walk(found, desired, "devices", "")
        return
    wanted = {cast("str", device["name"]): device for device in desired if isinstance(device, dict)}
    held: dict[str, Json] = {}
    for device in cast("list[dict[str, Json]]", found):
        name = cast("str", device["name"])
        if name not in wanted:
            yield f"unexpected device {quoted(name)}"
        elif name in held:
            yield f"device {name} is defined twice"
        else:
            held[name] = device
    for name, device in wanted.items():
        if name not in held:
            yield f"device {name} is missing"
        else:
            yield from _walk(held[name], device, "", f"device {name}")


def differences(found: bytes, desired: bytes) -> tuple[str, ...]:
    """Return what differs between a file of ours and its desired document, nothing where both mean the same (rule R4).

    Any difference in a parsed value counts, a whole number written as 1.0 too; formatting and the order of devices and keys do not.
    Text of the found file is escaped and cut. At most 20 differences are told, and how many more there are.
    Raises SpecError when `found` is no strict JSON, which is a malformed file.
    """
    told: list[str] = []
    more = 0
    for difference in _walk(strict_json(found), strict_json(desired), "", ""):
        if len(told) < MAX_DIFFERENCES:
            told.append(difference)
        else:
            more += 1
    return (*told, f"and {more} more") if more else tuple(told)
