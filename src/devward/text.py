"""Foreign text made fit to be shown: in a finding, on the bus, in the journal or on a terminal. Pure."""

from typing import Final

DEFAULT_LIMIT: Final = 200
_ELLIPSIS: Final = "…"


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        # A byte that was not UTF-8, as surrogateescape keeps it.
        code -= 0xDC00
    if code <= 0xFF:
        return f"\\x{code:02x}"
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


def printable(text: str, limit: int = DEFAULT_LIMIT) -> str:
    """Return `text` with everything that does not print as itself escaped, in at most `limit` characters.

    Controls (C0, C1, newlines), format characters (bidi overrides, zero width), surrogates, private and unassigned characters and
    spaces other than U+0020 become `\\xNN`, `\\uNNNN` or `\\UNNNNNNNN`; a byte that was not UTF-8 (surrogateescape) becomes its `\\xNN`.
    Text that is too long is cut between characters and ends in an ellipsis. A backslash stays as it is, so that escaping twice
    changes nothing; the result is for reading and cannot be turned back.
    """
    if limit < 1:
        raise ValueError("the limit must be at least 1")
    if len(text) <= limit and text.isprintable():
        return text
    # Every character gives at least one: what lies beyond the limit cannot be shown, however long the text is.
    pieces = [_escaped(character) for character in text[: limit + 1]]
    length = sum(map(len, pieces))
    if length <= limit:
        return "".join(pieces)
    while pieces and length + len(_ELLIPSIS) > limit:
        length -= len(pieces.pop())
    return "".join(pieces) + _ELLIPSIS


def quoted(text: str, limit: int = 80) -> str:
    """Return foreign text in single quotes, escaped and cut as `printable` does."""
    return f"'{printable(text, limit)}'"
