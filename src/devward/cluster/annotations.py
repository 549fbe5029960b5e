"""The cards that a Pod's annotations name, in the two forms that HAMi writes. Pure.

Sources: HAMi `pkg/util` (EncodePodDevices) and `pkg/device/ascend/device.go`; Volcano's plugin for HAMi writes the same.

* `huawei.com/<word>`: a JSON list with an object for each card of the whole Pod, `[{"UUID": …, "temp": …}]`. Go reads keys in any case.
* `hami.io/<word>-devices-to-allocate` and `-devices-allocated`: `uuid,type,memory,cores` for each card, each ended by `:`, the cards of
  each container ended by `;`. A container without cards has an empty segment, and a list that was worked off consists of those alone.

Values of Huawei's own plugin, whose keys can be the same, are recognised and name no card here: managers.py judges them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from devward.cluster.answer import parse_json

#: `huawei.com/Ascend910B4`, and not the `-memory` and `-core` that go with a resource.
_WHOLE_POD: Final = re.compile(r"huawei\.com/(Ascend[0-9A-Za-z_.-]*)", re.ASCII)
_SEGMENTS: Final = re.compile(r"hami\.io/([0-9A-Za-z_.-]+?)-devices-(?:to-allocate|allocated)", re.ASCII)
#: Ids of Huawei's own plugin: `Ascend910-5c.1cpu.16g-180-5` and `Ascend310P-2c-100-0` for vNPUs, `Ascend910-3` for cards.
FOREIGN_ID: Final = re.compile(r"Ascend[0-9][0-9A-Z]*(?:-[0-9]+c(?:\.[0-9]+cpu)?(?:\.[0-9]+g)?(?:\.[a-z]+)*-[0-9]+)?-[0-9]+", re.ASCII)
_DIE: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,127}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_WHITE: Final = " \t\r\n"
_MODE: Final = "huawei.com/vnpu-mode"
_SOFT: Final = "hami-core"
_ASCEND: Final = "Ascend"


class MalformedError(ValueError):
    """An annotation of a device that has neither form."""


@dataclass(frozen=True, slots=True)
class Named:
    """What a Pod's annotations say about cards."""

    #: Die ids, in capitals as HAMi prints them.
    dies: frozenset[str] = frozenset()
    #: What could not be read: key and why.
    malformed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceAnnotations:
    """The same before it is known which cards this host has: it holds for as long as the annotations do."""

    #: One of them, at the least, is about Ascend cards.
    has_cards: bool = False
    dies: frozenset[str] = frozenset()
    malformed: tuple[str, ...] = ()
    #: What stands where a name would under the keys of other devices.
    elsewhere: frozenset[str] = frozenset()

    def named(self, known: frozenset[str]) -> Named:
        """Return what they say where `known` are the die ids of this host: a name among them counts under any key."""
        return Named(self.dies | (self.elsewhere & known), self.malformed)


def is_soft(annotations: Mapping[str, str]) -> bool:
    """Whether the Pod shares its card without a vNPU, in hami-core mode."""
    return annotations.get(_MODE) == _SOFT


def read_annotations(annotations: Mapping[str, str]) -> DeviceAnnotations:
    """Return what the annotations say.

    Annotations of other devices that HAMi manages have the same form and name no card of ours, but by the id of one.
    """
    dies: set[str] = set()
    elsewhere: set[str] = set()
    malformed = []
    has_cards = False
    for key, value in sorted(annotations.items()):
        word = _word(key)
        if word is None:
            if _SEGMENTS.fullmatch(key):
                elsewhere.update(re.split("[;:,]", value.upper()))
            continue
        has_cards = True
        try:
            dies |= set(_dies(value))
        except ValueError as error:
            malformed.append(f"{key}: {error}")
    return DeviceAnnotations(has_cards, frozenset(dies), tuple(malformed), frozenset(elsewhere))


def _word(key: str) -> str | None:
    """Return HAMi's word for the kind of card; None if the annotation is none of Ascend cards."""
    found = _WHOLE_POD.fullmatch(key)
    if found and not key.endswith(("-memory", "-core")) and found[1] != "AscendReal":
        return found[1]
    found = _SEGMENTS.fullmatch(key)
    return found[1] if found and found[1].startswith(_ASCEND) else None


def _dies(value: str) -> Iterator[str]:
    text = value.strip(_WHITE)
    if text and all(FOREIGN_ID.fullmatch(part.strip(_WHITE)) for part in text.split(",")):
        return iter(())
    return _of_json(text) if text.startswith(("[", "{", '"')) or text in ("null", "true", "false") else _of_segments(text)


def _of_json(text: str) -> Iterator[str]:
    cards = parse_json(text)
    if cards is None:
        return
    if not isinstance(cards, list):
        raise MalformedError("a list is expected")
    for card in cards:
        if not isinstance(card, dict):
            raise MalformedError("a list of objects is expected")
        names = [value for key, value in card.items() if key.lower() == "uuid"]
        if len(names) != 1 or not isinstance(names[0], str):
            raise MalformedError("a card without one UUID")
        templates = [value for key, value in card.items() if key.lower() == "temp"]
        if any(not isinstance(template, str) for template in templates):
            raise MalformedError("a template that is no text")
        yield _die(names[0])


def _of_segments(text: str) -> Iterator[str]:
    for container in text.split(";"):
        for device in container.split(":"):
            if not device.strip(_WHITE):
                continue
            fields = [field.strip(_WHITE) for field in device.split(",")]
            if len(fields) < 4:
                raise MalformedError(f"{len(fields)} fields of 4")
            if not all(_NUMBER.fullmatch(field) for field in fields[2:4]):
                raise MalformedError("memory and cores that are no numbers")
            yield _die(fields[0])


def _die(text: str) -> str:
    if not _DIE.fullmatch(text):
        raise MalformedError("a card without a name")
    return text.upper()
