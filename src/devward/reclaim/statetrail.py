"""Tells the journal what reclaiming is doing when that changes, and measures for how long it is blocked."""

from collections.abc import Mapping

from devward.audit import Audit
from devward.clock import Clock
from devward.model import ReclaimState

#: States in which it would reclaim, and cannot.
_BLOCKED = frozenset({ReclaimState.BLOCKED, ReclaimState.MASS_RECLAIM})


class StateTrail:
    """Compares each state with the one that it was told of before."""

    def __init__(self, audit: Audit, clock: Clock) -> None:
        """Nothing was told yet."""
        self._audit = audit
        self._clock = clock
        #: As it was told of last, and every reason that was; None: not yet.
        self._state: ReclaimState | None = None
        self._reasons: frozenset[str] = frozenset()
        #: Those of them that are no doubt about the node: they come and go by somebody's wish, or with a fault.
        self._own: frozenset[str] = frozenset()
        #: Since when it is blocked, in seconds of the monotonic clock; None: it is not.
        self._blocked_since: float | None = None

    @property
    def blocked_seconds(self) -> float:
        """For how long it is blocked; 0: it is not."""
        return self._clock.monotonic() - self._blocked_since if self._blocked_since is not None else 0.0

    def see(self, state: ReclaimState, reasons: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Take in what reclaiming is doing now.

        `reasons` are what stops it, with sentences, the weightiest first; `own` are those that are no doubt about the node, which are there
        before there was any look, too.
        """
        before, self._state = self._state, state
        if state not in _BLOCKED:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = self._clock.monotonic()
        told, self._reasons = self._reasons, frozenset(reasons)
        over, self._own = self._own - own.keys(), frozenset(own)
        # That nothing stands in the way from the start is no news.
        if self._reasons - told or before not in (None, state):
            self._record(state, before, reasons or own, told)
        elif over:
            self._record_over(state, sorted(over), reasons or own)

    def _record_over(self, now: ReclaimState, over: list[str], reasons: Mapping[str, str]) -> None:
        """One of several that stop it is over: who looks for it in the journal must not take it for being there still."""
        codes = list(reasons)
        self._audit.transition(
            f"reclaiming without {' '.join(over)}",
            "reclaim-blocked",
            f"Reclaiming is {now} still; over is {', '.join(over)}. {' '.join(reasons.values())}".rstrip(),
            reason=codes[0] if codes else now.value,
            evidence={"reasons": codes, "over": over},
        )

    def _record(self, now: ReclaimState, before: ReclaimState | None, reasons: Mapping[str, str], told: frozenset[str]) -> None:
        is_free = now is ReclaimState.ENFORCING
        # What is new comes first, each the weightiest first. Sentences may name a Pod, as findings do.
        codes = sorted(reasons, key=told.__contains__)
        was = "" if before in (None, now) else f", and was {before}"
        self._audit.transition(
            # Each reason is damped by itself, so that one that comes and goes hides no other.
            f"reclaiming ({codes[0]})" if codes and before in (None, now) else "reclaiming",
            "reclaim-unblocked" if is_free else "reclaim-blocked",
            f"Reclaiming is {now}{was}{': ' if codes else ''}{' '.join(reasons[code] for code in codes)}",
            # One alone: of several values the catalog's text takes any.
            reason=codes[0] if codes else now.value,
            evidence={"reasons": codes},
        )
