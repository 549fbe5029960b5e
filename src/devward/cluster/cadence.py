"""When the next look at who owns what is due, so that looks and what goes on on the node do not keep step. Pure.

A Pod that cannot start is tried again every five minutes, and protects its card while it is tried. Looks at a steady interval that met such
a moment once would meet each one after it, and what the Pod left behind would wait for ever. So every look comes a little later than the
interval asks, by chance and never sooner: what counts as a confirmation is an interval after the one before.
"""

from typing import Final

#: By what part of the interval a look comes later at the most.
SPREAD: Final = 0.1
#: Intervals from the beginning of a look to that of the next at the most: the Lease has to be seen within its own bound, however slow the
#: API server is (SnapshotBounds.lease_looks).
MOST: Final = 1.25


def next_look(began: float, looked_at: float, interval: float, chance: float) -> float:
    """Return when the next look is due, in seconds of the clock of the others.

    `looked_at` is when the look that began at `began` was complete, which is when it counts. `chance` is from 0 to 1, drawn anew for each
    look.
    """
    return min(max(began, looked_at) + interval * (1 + SPREAD * chance), began + interval * MOST)
