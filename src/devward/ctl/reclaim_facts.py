"""What Describe and Explain tell of reclaiming, read as tolerantly as facts.py reads properties. Pure.

Texts are foreign, and stand here as they came.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from devward.ctl.reading import UNKNOWN, Raw, integer_of, number_of, real_of, text_of, texts_of

#: Of one list that are read.
MAX_READ = 5000


@dataclass(frozen=True, slots=True)
class Block:
    """Why nothing may be destroyed: a code and the daemon's sentence."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Leak:
    """What lies about unused on one NPU, or of that what one owner of Pods left."""

    #: The name of the NPU.
    card: str
    count: int
    #: When the oldest was seen first.
    since_usec: int
    cores: float
    #: Kind and UID of the controller, or of a Pod without one; empty: it is not known whose Pod left it.
    kind: str = ""
    uid: str = ""
    #: NAMESPACE/NAME, for who may inspect.
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """A vNPU that went."""

    at_usec: int
    fate: str
    vdev: int
    card: str
    template: str
    verdict: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Reclaiming as Describe tells it."""

    mode: str = ""
    state: str = ""
    paused_until_usec: int = 0
    #: For who may inspect.
    pause_reason: str = ""
    pause_uid: int = UNKNOWN
    blocked: tuple[Block, ...] = ()
    counters: tuple[tuple[str, int], ...] = ()
    by_card: tuple[Leak, ...] = ()
    by_owner: tuple[Leak, ...] = ()
    #: Lines of these that are not told.
    more_owners: int = 0
    #: False: what lies about unused is not known, and both are empty.
    are_leaks_known: bool = True
    #: vNPUs of which that cannot be told.
    unknown_vnpus: int = 0
    gone: tuple[Gone, ...] = ()
    #: Destructions that an hour allows, and those of them that are left; unknown where it is not told.
    per_hour: int = UNKNOWN
    left_of_hour: int = UNKNOWN
    #: When the next is allowed; 0: now.
    next_usec: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """By what a vNPU was judged. Moments are microseconds since 1970, 0 for none."""

    text: str = ""
    is_locked: bool = False
    last_reset: str = ""
    reset_usec: int = 0
    tries: int = 0
    tried_usec: int = 0
    confirmed_usec: int = 0
    suspects: tuple[str, ...] = ()
    #: Why it was not destroyed in the latest cycle although it is due: a code.
    left: str = ""


def reclaim(described: object) -> Reclaim | None:
    """Read the member `reclaim` of what Describe answered; None where the daemon does not know of reclaiming."""
    values = _object(described, "reclaim")
    if values is None:
        return None
    pause, leaks, counters, rates = (_object(values, name) or {} for name in ("pause", "leaks", "counters", "rates"))
    return Reclaim(
        mode=text_of(values, "mode"),
        state=text_of(values, "state"),
        paused_until_usec=number_of(values, "paused_until_usec"),
        pause_reason=text_of(pause, "reason"),
        pause_uid=integer_of(pause, "caller_uid"),
        blocked=tuple(Block(text_of(one, "reason"), text_of(one, "text")) for one in _objects(values, "blocked")),
        counters=tuple((str(name), number_of(counters, name)) for name in counters),
        by_card=tuple(_leak(one, "of") for one in _objects(leaks, "by_card")),
        by_owner=tuple(_leak(one, "card") for one in _objects(leaks, "by_owner")),
        more_owners=number_of(leaks, "more"),
        are_leaks_known=leaks.get("known") is not False,
        unknown_vnpus=number_of(leaks, "unknown"),
        gone=tuple(_gone(one) for one in _objects(values, "gone")),
        per_hour=integer_of(rates, "per_hour"),
        left_of_hour=integer_of(rates, "left_of_hour"),
        next_usec=number_of(rates, "next_usec"),
    )


def evidence(explained: object) -> Evidence | None:
    """Read the member `evidence` of what Explain of a vNPU answered; None where it was not judged."""
    values = _object(explained, "evidence")
    if values is None:
        return None
    looked, ago = number_of(values, "looked_at_usec"), _object(values, "seconds_ago") or {}

    def moment(name: str) -> int:
        seconds = real_of(ago, name)
        return max(0, looked - round(seconds * 1_000_000)) if looked and seconds >= 0 else 0

    return Evidence(
        text=text_of(values, "text"),
        is_locked=values.get("locked") is True,
        last_reset=text_of(values, "last_reset"),
        reset_usec=moment("reset"),
        tries=number_of(values, "tries"),
        tried_usec=moment("tried"),
        confirmed_usec=moment("confirmed"),
        suspects=texts_of(values, "suspects"),
        left=text_of(values, "left"),
    )


def _leak(values: Raw, card: str) -> Leak:
    numbers = number_of(values, "count"), number_of(values, "since_usec"), real_of(values, "cores")
    return Leak(text_of(values, card), *numbers, *(text_of(values, name) for name in ("kind", "uid", "owner_name")))


def _gone(values: Raw) -> Gone:
    return Gone(
        number_of(values, "at_usec"),
        text_of(values, "fate"),
        integer_of(values, "vdev"),
        text_of(values, "card"),
        text_of(values, "template"),
        text_of(values, "verdict"),
        text_of(values, "request_id"),
    )


def _object(document: object, name: str) -> Raw | None:
    value = document.get(name) if isinstance(document, Mapping) else None
    return value if isinstance(value, Mapping) else None


def _objects(values: Raw, name: str) -> list[Raw]:
    listed = values.get(name)
    return [one for one in listed[:MAX_READ] if isinstance(one, Mapping)] if isinstance(listed, list | tuple) else []
