"""Who claims an NPU and by which sources that is known, as Explain tells it; read as tolerantly as facts.py reads properties. Pure.

Where nobody was asked there is no Ownership at all. Texts are foreign, and stand here as they came.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from devward.ctl.reading import Raw, number_of, real_of, text_of, texts_of

#: Of one list that are read: far more than a node can have, and few enough for somebody who waits.
MAX_READ: Final = 5000


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """One source that was asked: how many seconds old what it said is, below 0 if that is not told, and whether it could be read."""

    source: str
    age: float
    is_read: bool


@dataclass(frozen=True, slots=True)
class HostSource:
    """How much of one of its sources the host let be seen."""

    source: str
    state: str
    #: The first of what is in doubt: a code, and what it is about and why for who may inspect; and how many there are besides.
    doubts: tuple[str, ...]
    more: int


@dataclass(frozen=True, slots=True)
class Untold:
    """One thing that cannot be told: `who` is the UID of the Pod, or the source, that it comes from."""

    reason: str
    who: str
    since_usec: int
    text: str


@dataclass(frozen=True, slots=True)
class Claim:
    """What one Pod means for an NPU."""

    uid: str
    standing: str
    reason: str
    text: str
    since_usec: int
    #: It holds for a vNPU only until a scan of descriptors is clean for it.
    unless_clean: bool
    sources: tuple[str, ...]
    #: Namespace and name; empty where that is not told.
    pod: str


@dataclass(frozen=True, slots=True)
class Ownership:
    """What one look said of a node and one of its NPUs."""

    #: The API server was asked for the node's Pods at the latest look.
    asked: bool = False
    looked_usec: int = 0
    #: When a list of them came last; 0: never.
    listed_usec: int = 0
    deferred: bool = False
    sources: tuple[SourceSeen, ...] = ()
    host: tuple[HostSource, ...] = ()
    blocked: tuple[Untold, ...] = ()
    unknowns: tuple[Untold, ...] = ()
    managed: str = ""
    unmanaged_reason: str = ""
    unmanaged_text: str = ""
    protection: str = ""
    protection_if_clean: str = ""
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class HostSight:
    """What the host shows of one vNPU: `held`, `clean` or `unknown` as a whole and by source."""

    finding: str
    by_source: tuple[tuple[str, str], ...]
    #: Who has it, or what is in doubt; only for who may inspect.
    reasons: tuple[str, ...]


def ownership(explained: object) -> Ownership | None:
    """Read the member `ownership` of what Explain answered; None where there is none."""
    values = _object(explained, "ownership")
    if values is None:
        return None
    return Ownership(
        asked=values.get("asked") is True,
        looked_usec=number_of(values, "looked_usec"),
        listed_usec=number_of(values, "listed_usec"),
        deferred=values.get("deferred") is True,
        sources=tuple(_source(one) for one in _objects(values, "sources")),
        host=_host(values),
        blocked=tuple(_untold(one) for one in _objects(values, "blocked")),
        unknowns=tuple(_untold(one) for one in _objects(values, "unknowns")),
        managed=text_of(values, "managed"),
        unmanaged_reason=text_of(values, "unmanaged_reason"),
        unmanaged_text=text_of(values, "unmanaged_text"),
        protection=text_of(values, "protection"),
        protection_if_clean=text_of(values, "protection_if_clean"),
        claims=tuple(_claim(one) for one in _objects(values, "claims")),
    )


def host_sight(explained: object) -> HostSight | None:
    """Read the member `host` of what Explain of a vNPU answered; None where the host was not looked at."""
    values = _object(explained, "host")
    if values is None:
        return None
    by_source = tuple((name, text_of(values, name)) for name in ("descriptors", "bundles", "uda") if text_of(values, name))
    return HostSight(text_of(values, "finding"), by_source, texts_of(values, "reasons"))


def _object(document: object, name: str) -> Raw | None:
    value = document.get(name) if isinstance(document, Mapping) else None
    return value if isinstance(value, Mapping) else None


def _objects(values: Raw, name: str) -> list[Raw]:
    listed = values.get(name)
    return [one for one in listed[:MAX_READ] if isinstance(one, Mapping)] if isinstance(listed, list | tuple) else []


def _source(values: Raw) -> SourceSeen:
    return SourceSeen(text_of(values, "source"), real_of(values, "age"), values.get("read") is True)


def _host(values: Raw) -> tuple[HostSource, ...]:
    sources = _object(values, "host") or {}
    return tuple(
        HostSource(name, text_of(one, "state"), tuple(_doubt(doubt) for doubt in _objects(one, "doubts")), number_of(one, "more"))
        for name, one in sources.items()
        if isinstance(name, str) and isinstance(one, Mapping)
    )


def _doubt(values: Raw) -> str:
    said = " ".join(text for text in (text_of(values, "code"), text_of(values, "subject")) if text)
    error = text_of(values, "error")
    return f"{said}: {error}" if error else said


def _untold(values: Raw) -> Untold:
    return Untold(text_of(values, "reason"), text_of(values, "who"), number_of(values, "since_usec"), text_of(values, "text"))


def _claim(values: Raw) -> Claim:
    return Claim(
        uid=text_of(values, "uid"),
        standing=text_of(values, "standing"),
        reason=text_of(values, "reason"),
        text=text_of(values, "text"),
        since_usec=number_of(values, "since_usec"),
        unless_clean=values.get("unless_clean") is True,
        sources=texts_of(values, "sources"),
        pod=text_of(values, "pod"),
    )
