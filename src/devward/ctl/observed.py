"""What the table of devwardd(8), "WHAT KEEPS VNPUS FROM BEING JUDGED", says of a code.

The table is the daemon's own, and is read only where such a code is asked about: with all that stands behind its sentences it takes
longer to load than most commands need as a whole.
"""

import re
from dataclasses import dataclass
from typing import Final

from devward.model import DeviceKind

_CODE: Final = re.compile(r"[a-z]+(?:-[a-z]+)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Observed:
    """One row of the table."""

    sentence: str
    #: What it is about: vnpu, card, node; one or several of them.
    scopes: tuple[str, ...]
    #: vNPUs begin to wait anew.
    resets: bool


def observed(code: str) -> Observed | None:
    """Return the row of a code, None where there is none."""
    if not _CODE.fullmatch(code) or code in list(DeviceKind):
        return None
    from devward.cluster.observations import ROWS

    row = ROWS.get(code)
    return None if row is None else Observed(row.sentence, tuple(str(scope) for scope in row.scopes), row.resets)


def codes() -> list[str]:
    """Return every code of the table, in its order."""
    from devward.cluster.observations import ROWS

    return list(ROWS)
