"""What lies about unused, by card, and by who left it on which card: for people, and never evidence. Pure."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from devward.reclaim.history import Entry, History
from devward.reclaim.leftby import LeftBy
from devward.reclaim.reasons import Verdict
from devward.text import printable

#: Lines by who left it.
MAX_LEFT: Final = 64
#: Namespaces and names are at most 63 and 253 characters long.
_NAME_LIMIT: Final = 320
#: What lies about unused.
_LEAKED: Final = frozenset({Verdict.CANDIDATE, Verdict.CONFIRMING, Verdict.ELIGIBLE, Verdict.DEFERRED})

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Leak(Generic[K]):
    """What lies about unused of one thing."""

    of: K
    count: int
    #: First sight of the oldest.
    since_usec: int
    #: AI cores that nobody can use; those of vNPUs that do not tell are left out.
    cores: float


@dataclass(frozen=True, slots=True)
class Left:
    """Who left it, and on which card."""

    #: None: that is not known.
    by: LeftBy | None
    #: Name of the card.
    card: str


@dataclass(frozen=True, slots=True)
class Leaks:
    """What lies about unused, the most first."""

    by_card: tuple[Leak[str], ...] = ()
    #: At most MAX_LEFT.
    by_owner: tuple[Leak[Left], ...] = ()
    #: Lines of `by_owner` that are left out.
    more: int = 0
    #: vNPUs of which it cannot be told.
    unknown: int = 0
    #: False: nothing is said of any of them, which does not mean that nothing lies about.
    is_known: bool = True


def leaks(history: History, *, is_node_known: bool) -> Leaks:
    """Return what lies about unused by the last look. Somebody left it where nobody else could have."""
    unknown = sum(entry.verdict is Verdict.UNKNOWN for entry in history.present.values())
    # What was leaked by an earlier look may stand there still, where the NPUs could not be seen since.
    leaked = _leaked(history) if is_node_known else []
    if not leaked:
        return Leaks(unknown=unknown, is_known=is_node_known and not unknown)
    by_card = sorted(_by((entry.card, entry) for entry in leaked), key=lambda leak: (-leak.count, leak.of))
    by_owner = sorted(_by((Left(entry.left_by, entry.card), entry) for entry in leaked), key=_order)
    return Leaks(tuple(by_card), tuple(by_owner[:MAX_LEFT]), len(by_owner[MAX_LEFT:]), unknown)


def leaked_cores(history: History, *, is_node_known: bool) -> float | None:
    """Return the AI cores that nobody can use; None: that is not known."""
    found = leaks(history, is_node_known=is_node_known)
    return sum(leak.cores for leak in found.by_card) if found.is_known else None


def described(history: History, *, is_node_known: bool, full: bool) -> dict[str, Any]:
    """Return what lies about unused as values of JSON; without `full` nothing that names other people's workloads."""
    found = leaks(history, is_node_known=is_node_known)
    return {
        "known": found.is_known,
        "unknown": found.unknown,
        "by_card": [{"of": leak.of, **_told(leak)} for leak in found.by_card],
        "by_owner": [{**_owner(leak.of.by, full=full), "card": leak.of.card, **_told(leak)} for leak in found.by_owner],
        "more": found.more,
    }


def _leaked(history: History) -> list[Entry]:
    return [entry for entry in history.present.values() if entry.verdict in _LEAKED]


def _by(keyed: Iterable[tuple[K, Entry]]) -> list[Leak[K]]:
    groups: dict[K, list[Entry]] = {}
    for key, entry in keyed:
        groups.setdefault(key, []).append(entry)
    return [
        Leak(key, len(group), min(entry.first_seen_usec for entry in group), sum(max(0.0, entry.cores) for entry in group))
        for key, group in groups.items()
    ]


def _order(leak: Leak[Left]) -> tuple[int, str, str]:
    return -leak.count, leak.of.by.uid if leak.of.by is not None else "", leak.of.card


def _told(leak: Leak[Any]) -> dict[str, Any]:
    return {"count": leak.count, "since_usec": leak.since_usec, "cores": leak.cores}


def _owner(by: LeftBy | None, *, full: bool) -> dict[str, str]:
    if by is None:
        return {"kind": "", "uid": ""}
    told = {"kind": printable(by.kind), "uid": printable(by.uid)}
    return {**told, "owner_name": printable(f"{by.namespace}/{by.name}", _NAME_LIMIT)} if full and by.name else told
