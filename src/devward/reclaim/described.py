"""What Describe tells of the loop of reclaiming: breaker, rates, counters, leaks, and what became of vNPUs."""

from dataclasses import asdict
from typing import Any

from devward.clock import Clock
from devward.reclaim import leaks
from devward.reclaim.history import Gone
from devward.reclaim.limits import Allowance, Held, Rates
from devward.reclaim.reconciler import Reconciler


def described(reconciler: Reconciler, clock: Clock, *, full: bool) -> dict[str, Any]:
    """Return everything; without `full`, nothing that names other people's workloads."""
    breaker = reconciler.ledger.breaker
    return {
        "breaker": {
            "latched": breaker.is_latched,
            "held": [_held(one) for one in sorted(breaker.held)],
            "agreed": [_held(one) for one in sorted(breaker.agreed)],
        },
        "rates": _rates(reconciler.rates, reconciler.allowance, clock),
        "counters": asdict(reconciler.counters),
        "leaks": leaks.described(reconciler.history, is_node_known=reconciler.is_node_known, full=full),
        "gone": [_gone(one) for one in reconciler.history.gone],
    }


def _held(one: Held) -> dict[str, Any]:
    return {"card": one.card, "vdev": one.vdev, "identity": one.identity}


def _rates(rates: Rates, allowed: Allowance, clock: Clock) -> dict[str, Any]:
    """Return what may be tried in an hour, and of that what is left."""
    wait = 0.0 if allowed.next_at is None else allowed.next_at - clock.monotonic()
    return {
        "per_card": rates.per_card,
        "per_node": rates.per_node,
        "per_hour": rates.per_hour,
        "left_of_hour": allowed.left,
        "next_usec": 0 if allowed.next_at is None else clock.realtime_usec() + round(wait * 1_000_000),
    }


def _gone(gone: Gone) -> dict[str, Any]:
    return {
        "at_usec": gone.at_usec,
        "fate": gone.fate,
        "text": gone.sentence,
        "vdev": gone.was.vdev,
        "identity": gone.was.identity,
        "card": gone.was.card,
        "template": gone.was.template,
        "verdict": gone.was.verdict,
        "reason": gone.was.reason,
        "request_id": gone.request_id,
        "recreate": gone.recreate,
    }
