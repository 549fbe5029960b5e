"""What the daemon's own tables say of the codes of reclaiming.

They are read only where such a code is asked about: with all that stands behind them they take longer to load than most commands need as
a whole.
"""

from collections.abc import Mapping

from devward.ctl.advice import NOT_SAVED
from devward.ctl.advice_destroying import (
    ANSWERS,
    CALLED,
    CALLED_ADVICE,
    CHANGE_ADVICE,
    FORBIDDEN,
    FORBIDDEN_ADVICE,
    REFUSALS,
    RESET_ADVICE,
    RESETS,
)
from devward.ctl.advice_reclaim import BLOCKED_ADVICE, LIMIT_ADVICE, NO_ADVICE, WHY_ADVICE
from devward.ctl.step import Advice

_ANSWERED = "vNPU that went, or whose destruction was asked for"
_CHANGE = "change that an administrator asked for"
#: By what it is about, in the order in which it is told.
_ABOUT = (
    ("vNPU", WHY_ADVICE),
    ("reclaiming as a whole", BLOCKED_ADVICE),
    ("vNPU that is due", LIMIT_ADVICE),
    ("vNPU that was to be destroyed", NO_ADVICE),
    ("vNPU that the broker was asked to destroy", {code: advice for code, (_, advice) in REFUSALS.items()}),
    ("vNPU that waits, or was to be destroyed", RESET_ADVICE),
    (_ANSWERED, {code: advice for code, (_, advice) in ANSWERS.items()}),
    (_CHANGE, CHANGE_ADVICE),
)
_BY_LIBRARY = "vNPU that the library was called for"


def is_code(code: str) -> bool:
    """Whether it is a code of reclaiming."""
    return any(code in advice for _, advice in _ABOUT) or CALLED.fullmatch(code) is not None


def codes() -> list[str]:
    """Return every code of reclaiming, each once."""
    return list(dict.fromkeys(code for _, advice in _ABOUT for code in advice))


def meanings(code: str) -> list[tuple[str, str, Advice]]:
    """Return what a code is about, its sentence and the advice; a word that is a code twice has two."""
    if text := _called(code):
        return [(_BY_LIBRARY, text, FORBIDDEN_ADVICE if code == FORBIDDEN else CALLED_ADVICE)]
    return [(about, _texts(about)[code], advice[code]) for about, advice in _ABOUT if code in advice]


def sentence(code: str) -> str:
    """Return the first sentence for a code, as of a vNPU; empty where it is none of reclaiming."""
    return _called(code) or next((_texts(about)[code] for about, advice in _ABOUT if code in advice), "")


def _called(code: str) -> str:
    """Return what it says that the library was called; empty for another code."""
    found = CALLED.fullmatch(code)
    if found is None:
        return ""
    if found["code"] == "unfinished":
        return "The library was called and did not return."
    from devward.npu import codes as library

    return f"The library was called, and said: {library.sentence(-int(found['code']))}."


def _texts(about: str) -> Mapping[str, str]:
    # The keys are StrEnum members, which are found by their values.
    if about == "vNPU":
        from devward.reclaim.reasons import WHY_TEXT

        return {str(code): text for code, text in WHY_TEXT.items()}
    if about == "reclaiming as a whole":
        from devward.reclaim.controls import BLOCKED_TEXT

        return {str(code): text for code, text in BLOCKED_TEXT.items()}
    if about == "vNPU that is due":
        from devward.reclaim.limits import LIMIT_TEXT

        return {str(code): text for code, text in LIMIT_TEXT.items()}
    if about == "vNPU that the broker was asked to destroy":
        return {code: text for code, (text, _) in REFUSALS.items()}
    if about == "vNPU that waits, or was to be destroyed":
        return RESETS
    if about == _ANSWERED:
        return {code: text for code, (text, _) in ANSWERS.items()}
    if about == _CHANGE:
        return dict.fromkeys(CHANGE_ADVICE, NOT_SAVED)
    from devward.reclaim.contract import NO_TEXT

    return {str(code): text for code, text in NO_TEXT.items()}
