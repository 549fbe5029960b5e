"""What of reclaiming outlasts a run of the daemon: the breaker, until it is released, and what the hour has seen. Pure.

No progress of any vNPU does: each run begins to wait anew.
"""

import math
from typing import Any, Final

from devward.reclaim.limits import Breaker, Spent

VERSION: Final = 1
#: More tries in an hour than any rate allows are not what we wrote.
_MAX_MOMENTS: Final = 10_000


def to_values(breaker: Breaker, spent: Spent, boot_id: str) -> dict[str, Any]:
    """Return what is to be kept, as values of JSON."""
    return {"version": VERSION, "boot_id": boot_id, "latched": breaker.is_latched, "tries": list(spent.moments)}


def from_values(values: object, boot_id: str) -> tuple[Breaker, Spent]:
    """Return what was kept. ValueError: it is not as `to_values` gives it, and nothing may be destroyed (`Controls.is_state_damaged`).

    Tries of another boot are left out: their times mean nothing now, and every vNPU waits its whole grace after a boot.
    """
    if not isinstance(values, dict) or values.keys() != {"version", "boot_id", "latched", "tries"}:
        raise ValueError("what is kept of reclaiming has other keys")
    if type(values["version"]) is not int or values["version"] != VERSION:
        raise ValueError("what is kept of reclaiming is of another version")
    kept_boot, latched, tries = values["boot_id"], values["latched"], values["tries"]
    if not isinstance(kept_boot, str) or not isinstance(latched, bool):
        raise ValueError("what is kept of reclaiming has a value of another kind")
    if not isinstance(tries, list) or len(tries) > _MAX_MOMENTS or not all(map(_is_moment, tries)):
        raise ValueError("what is kept of reclaiming has tries that cannot be")
    return Breaker(is_latched=latched), Spent(tuple(map(float, tries)) if kept_boot == boot_id else ())


def _is_moment(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
