"""Takes out of a support bundle what nobody should mail. Pure.

Nothing in the bundle is meant to hold secrets; this is the second fence, for what others wrote into messages and mount options. Pods are
other people's workloads: they lose their names, and stay apart by numbers.
"""

import re
from collections.abc import Mapping
from typing import Final

REDACTED: Final = "[redacted]"
_WORD: Final = r"token|passw(?:or)?d|passphrase|secret|api[-_]?key|private[-_]?key|credentials?|authorization|cookie"
_KEY: Final = re.compile(rf"(?i){_WORD}")
_PATTERNS: Final = (
    re.compile(r"(?s)-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)"),
    re.compile(r"(?i)\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"),
    # A JSON Web Token: its header is an object, whose first bytes are always these (RFC 7519).
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?"),
    # The user and password of a URL.
    re.compile(r"(?<=://)[^\s/@]+(?=@)"),
)
#: Bounded everywhere: the text may be long, and of somebody who wants this to take for ever.
_ASSIGNED: Final = re.compile(
    rf"""(?i)(?P<name>(?:{_WORD})[\w.-]{{0,64}}["']?\s{{0,8}}[=:]\s{{0,8}})(?P<value>"[^"]*"|'[^']*'|[^\s,;"']+)"""
)


def text(given: str) -> str:
    """Return a text without what looks like a key, a token or a password."""
    for pattern in _PATTERNS:
        given = pattern.sub(REDACTED, given)
    return _ASSIGNED.sub(lambda found: found["name"] + REDACTED, given)


def value(given: object) -> object:
    """Return a JSON value with its texts redacted, and all that stands under a name that means a secret."""
    if isinstance(given, str):
        return text(given)
    if isinstance(given, Mapping):
        return {name: REDACTED if isinstance(name, str) and _KEY.search(name) else value(item) for name, item in given.items()}
    if isinstance(given, list | tuple):
        return [value(item) for item in given]
    return given


#: What makes Pods may have an everyday word for its name, which is replaced only where it stands with its namespace.
_OWNER: Final = "owner_name"
#: Members whose value is the UID or the name of a Pod or of what makes Pods, and the ones that list UIDs.
_POD_MEMBERS: Final = frozenset({"uid", "pod_uid", "pod", _OWNER})
_POD_LISTS: Final = frozenset({"claims", "suspects"})
#: The UID of a Pod, or the name of a source, which is shorter.
_WHO: Final = "who"
_BLOCKED: Final = "blocked_reasons"
_MIN_UID: Final = 16
#: Names that are shorter are words, too: they are replaced only where they stand with their namespace.
_MIN_NAME: Final = 8
#: A UUID, also as a control group's name has it.
_UUID: Final = re.compile(r"(?i)[0-9a-f]{8}([-_])[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}")
#: The UID of a static Pod is so many hexadecimal digits (kubelet, pkg/kubelet/config/common.go).
_STATIC: Final = 32
_DIGITS: Final = re.compile(rf"(?i)[0-9a-f]{{{_STATIC},}}")
#: A name, or several as in a path or in NAMESPACE/NAME.
_CHUNK: Final = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*")


class Pods:
    """Numbers the Pods of one bundle, so that each is the same everywhere in it and nobody can tell which one it is."""

    def __init__(self) -> None:
        self._numbers: dict[str, str] = {}
        self._kept: set[str] = set()
        self._count = 0

    def keep(self, identifier: str) -> None:
        """Leave this one, which is no Pod's, as it is: records are found by it."""
        self._kept.add(identifier.lower())

    def value(self, given: object) -> object:
        """Return a JSON value without the UIDs and names that stand in the members for them, and learn these for text()."""
        if isinstance(given, list | tuple):
            return [self.value(item) for item in given]
        if not isinstance(given, Mapping):
            return given
        uid = given.get("uid")
        for member in ("pod", _OWNER):
            name = given.get(member)
            if isinstance(uid, str) and isinstance(name, str) and uid and name:
                self._learn(name, self._learn(uid), is_whole=member == _OWNER)
        return {name: self._member(name, item) for name, item in given.items()}

    def _member(self, name: object, item: object) -> object:
        if isinstance(item, str) and item and (name in _POD_MEMBERS or (name == _WHO and len(item) >= _MIN_UID)):
            return self._learn(item, is_whole=name == _OWNER)
        if isinstance(item, list | tuple):
            if name in _POD_LISTS:
                return [self._learn(one) if isinstance(one, str) and one else self.value(one) for one in item]
            if name == _BLOCKED:
                return [self._blocked(one) if isinstance(one, str) else one for one in item]
        return self.value(item)

    def _blocked(self, reason: str) -> str:
        code, space, uid = reason.partition(" ")
        return f"{code}{space}{self._learn(uid) if uid else ''}"

    def text(self, given: str) -> str:
        """Return a text without the UIDs and names that were learned, and without any UUID."""
        return _CHUNK.sub(self._chunk, _DIGITS.sub(self._static, _UUID.sub(self._uuid, given)))

    def texts(self, given: object) -> object:
        """Return a JSON value with all its texts so, the names of members too; what is no text cannot name a Pod."""
        if isinstance(given, str):
            return self.text(given)
        if isinstance(given, Mapping):
            return {self.text(str(name)): self.texts(item) for name, item in given.items()}
        if isinstance(given, list | tuple):
            return [self.texts(item) for item in given]
        return given

    def _uuid(self, found: re.Match[str]) -> str:
        identifier = found[0].lower().replace("_", "-")
        return found[0] if identifier in self._kept else self._learn(identifier)

    def _static(self, found: re.Match[str]) -> str:
        """Of digits, which may be a digest, or begin with the d of `pod`: only what was learned is replaced."""
        digits = found[0].lower()
        for at in range(len(digits) - _STATIC + 1):
            number = self._numbers.get(digits[at : at + _STATIC])
            if number is not None:
                return found[0][:at] + number + found[0][at + _STATIC :]
        return found[0]

    def _chunk(self, found: re.Match[str]) -> str:
        parts = found[0].split("/")
        said: list[str] = []
        at = 0
        while at < len(parts):
            pair = self._known("/".join(parts[at : at + 2])) if at + 1 < len(parts) else None
            said.append(pair or self._known(parts[at]) or parts[at])
            at += 1 if pair is None else 2
        return "/".join(said)

    def _known(self, word: str) -> str | None:
        """Return a word with its Pod's number instead of it; the marks of a sentence after it stay."""
        bare = word.rstrip("._-")
        number = self._numbers.get(bare.lower())
        return None if number is None else number + word[len(bare) :]

    def _learn(self, name: str, number: str = "", *, is_whole: bool = False) -> str:
        """Return the number that stands for a UID, or for NAMESPACE/NAME and, if it is not `is_whole` alone, for the NAME."""
        if name.lower() not in self._numbers and not number:
            self._count += 1
            number = f"[pod {self._count}]"
        known = self._numbers.setdefault(name.lower(), number)
        _, _, bare = name.partition("/")
        if not is_whole and len(bare) >= _MIN_NAME:
            self._numbers.setdefault(bare.lower(), known)
        return known
