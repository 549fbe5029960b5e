"""Collects what is unknown and what is set back while a snapshot is put together, each with its first sight. Pure."""

from collections.abc import Mapping

from devward.cluster.answers import Failure
from devward.cluster.claims import Moment
from devward.cluster.evidence import Doubt
from devward.cluster.observations import ROWS, Look, Scope, sentence
from devward.cluster.parts import Source
from devward.cluster.views import Reset, Unknown
from devward.text import printable


class Ledger:
    """What one look could not tell."""

    def __init__(self, before: Mapping[tuple[str, ...], Moment], now: Moment) -> None:
        """`before` are the first sights of what was unknown at the look before."""
        self._before = before
        self._now = now
        self._unknowns: dict[tuple[str, ...], Unknown] = {}
        self._resets: set[Reset] = set()
        #: First sights of what is unknown now.
        self.sights: dict[tuple[str, ...], Moment] = {}

    @property
    def is_node_known(self) -> bool:
        """Whether nothing of the whole node is unknown so far."""
        return all(unknown.scope is not Scope.NODE for unknown in self._unknowns.values())

    @property
    def unknowns(self) -> tuple[Unknown, ...]:
        """What is unknown, that of the node first."""
        return tuple(sorted(self._unknowns.values(), key=lambda one: (one.scope is not Scope.NODE, one.card, one.reason, one.who)))

    @property
    def resets(self) -> tuple[Reset, ...]:
        """What is set back: by what is unknown, and by what else was found."""
        found = self._resets | {Reset(unknown.scope, unknown.reason, unknown.card) for unknown in self._unknowns.values()}
        return tuple(sorted(found, key=lambda one: (one.scope is not Scope.NODE, one.card, one.reason, one.unless_clean)))

    def take(self, scope: Scope, reason: str, who: str, text: str, card: str = "") -> None:
        """Take note of something unknown. `text` must be fit to be shown."""
        key = (scope.value, card, reason, str(who))
        since = self.sights.setdefault(key, self._before.get(key, self._now))
        self._unknowns.setdefault(key, Unknown(scope, reason, str(who), since.realtime_usec, text, card))

    def take_look(self, code: Look, who: Source, detail: str = "") -> None:
        """Take note of something unknown of the node that was found here."""
        self.take(Scope.NODE, code.value, who, sentence(code, printable(detail)))

    def take_failure(self, source: Source, failure: Failure) -> None:
        """Take note of why a part is missing."""
        self.take(Scope.NODE, failure.code, source, failure.sentence)

    def take_doubt(self, source: Source, doubt: Doubt) -> None:
        """Take note of why a part is not known whole."""
        row = ROWS.get(doubt.code)
        text = row.sentence if row is not None else f"{printable(doubt.code)}."
        self.take(Scope.NODE, doubt.code, source, f"{text[:-1]} ({printable(doubt.subject)})." if doubt.subject else text)

    def reset(self, reset: Reset) -> None:
        """Take note of something that is known and sets back all the same."""
        self._resets.add(reset)
