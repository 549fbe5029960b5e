"""What of reclaiming outlasts a run of the daemon: the breaker with what was agreed to, and what the hour has seen. Pure.

No progress of any vNPU does: each run begins to wait anew. A vNPU is found again by what lasts within a boot (npu/memory.py).
"""

from collections.abc import Iterable
from typing import Any, Final

from devward.reclaim.limits import Breaker, Held, Spent
from devward.text import printable

VERSION: Final = 2
#: More tries in an hour than any rate allows are not what we wrote.
_MAX_MOMENTS: Final = 10_000
#: Seconds since the boot that no clock of ours shows; an integer of JSON may be larger than any float.
_LATEST: Final = 1e12
#: vNPUs that are kept; a node has a few hundred at the most. What is left out is not agreed to.
_MAX_HELD: Final = 2048


def to_values(breaker: Breaker, spent: Spent, boot_id: str) -> dict[str, Any]:
    """Return what is to be kept, as values of JSON."""
    return {
        "version": VERSION,
        "boot_id": boot_id,
        "latched": breaker.is_latched,
        "held": _of_held(breaker.held),
        "agreed": _of_held(breaker.agreed),
        "tries": list(spent.moments),
    }


def from_values(values: object, boot_id: str) -> tuple[Breaker, Spent]:
    """Return what was kept. ValueError: it is not as `to_values` gives it, and nothing may be destroyed (`Controls.is_state_damaged`).

    Tries of another boot are left out: their times mean nothing now, and every vNPU waits its whole grace after a boot. So are its vNPUs.
    """
    if not isinstance(values, dict) or values.keys() != {"version", "boot_id", "latched", "held", "agreed", "tries"}:
        raise ValueError("what is kept of reclaiming has other keys")
    if type(values["version"]) is not int or values["version"] != VERSION:
        raise ValueError("what is kept of reclaiming is of another version")
    kept_boot, latched, tries = values["boot_id"], values["latched"], values["tries"]
    if not isinstance(kept_boot, str) or not isinstance(latched, bool):
        raise ValueError("what is kept of reclaiming has a value of another kind")
    if not isinstance(tries, list) or len(tries) > _MAX_MOMENTS or not all(map(_is_moment, tries)):
        raise ValueError("what is kept of reclaiming has tries that cannot be")
    held, agreed = _held(values["held"]), _held(values["agreed"])
    if kept_boot != boot_id:
        return Breaker(is_latched=latched), Spent()
    return Breaker(latched, held, agreed), Spent(tuple(map(float, tries)))


def _of_held(of: Iterable[Held]) -> list[list[object]]:
    # One that nothing finds again would be kept for nothing.
    return [[one.card, one.vdev, one.lasting] for one in sorted(of) if one.lasting][:_MAX_HELD]


def _held(values: object) -> frozenset[Held]:
    if not isinstance(values, list) or len(values) > _MAX_HELD:
        raise ValueError("what is kept of reclaiming has vNPUs that cannot be")
    return frozenset(map(_one_held, values))


def _one_held(value: object) -> Held:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("what is kept of reclaiming has a vNPU that cannot be")
    card, vdev, lasting = value
    if not (isinstance(card, str) and type(vdev) is int and isinstance(lasting, str) and lasting) or printable(card) != card:
        raise ValueError("what is kept of reclaiming has a vNPU that cannot be")
    return Held(card, vdev, "", lasting)


def _is_moment(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LATEST
