"""devwardd with the times of its look at who owns the vNPUs divided, so that a test of minutes takes seconds: `scaled_daemon.py BY …`.

Every rule is the daemon's own; only how long things take, and how old they may be, is less. What follows are devwardd's own arguments.
"""

import sys
from dataclasses import replace

from devward import __main__ as command_line
from devward.cluster import owners


def scale(pace: owners.Pace, by: float) -> owners.Pace:
    """Return a pace that is so many times as fast."""
    bounds = pace.bounds
    return replace(
        pace,
        interval=pace.interval / by,
        seldom=pace.seldom / by,
        nudge_delay=pace.nudge_delay / by,
        least=pace.least / by,
        least_asked=pace.least_asked / by,
        bounds=replace(
            bounds,
            lease_looks=bounds.lease_looks / by,
            node=replace(bounds.node, lease=bounds.node.lease / by, kubelet=bounds.node.kubelet / by),
            pods=replace(bounds.pods, gone_seconds=bounds.pods.gone_seconds / by),
        ),
    )


if __name__ == "__main__":
    owners.PACE = scale(owners.PACE, float(sys.argv.pop(1)))  # type: ignore[misc]
    sys.exit(command_line.main())
