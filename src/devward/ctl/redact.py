"""Takes out of a support bundle what nobody should mail. Pure.

Nothing in the bundle is meant to hold secrets; this is the second fence, for what others wrote into messages and mount options.
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
