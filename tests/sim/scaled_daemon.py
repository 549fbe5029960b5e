"""devwardd with the times of its look at who owns the vNPUs divided, so that a test of minutes takes seconds.

    scaled_daemon.py BY[:GONE] …

How long a Pod protects that is nowhere any more is divided by GONE, if that is given. Every rule is the daemon's own; only how long things
take, and how old they may be, is less. What follows are devwardd's own arguments.
"""

import functools
import sys
from dataclasses import replace

from devward import __main__ as command_line
from devward.cluster import api_faults, gatherer, owners
from devward.cluster.api import ApiSettings
from devward.cluster.transport import Timeouts
from devward.npu import client

#: Seconds for a connection, an answer and a whole look: what a server of this machine needs where it stands still for a while. A look
#: that is broken off sets every wait back.
TIMEOUTS = Timeouts(connect=5, read=5)
DEADLINE = 10.0
#: Seconds for a destruction, which a test holds up while it does other things, as long as these take.
DESTROY_SECONDS = 300.0


def scale(pace: owners.Pace, by: float, gone: float) -> owners.Pace:
    """Return a pace that is so many times as fast, and forgets Pods `gone` times as fast."""
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
            # How old a renewal of the Lease may be stays: on a busy machine looks are not always in time.
            node=replace(bounds.node, kubelet=bounds.node.kubelet / by),
            pods=replace(bounds.pods, gone_seconds=bounds.pods.gone_seconds / gone),
        ),
    )


if __name__ == "__main__":
    by, _, gone = sys.argv.pop(1).partition(":")
    owners.PACE = scale(owners.PACE, float(by), float(gone or by))  # type: ignore[misc]
    # A server that asks for fewer requests gets no more rest than between two looks.
    api_faults.MAX_WAIT = owners.PACE.interval
    client.DESTROY_SECONDS = DESTROY_SECONDS  # type: ignore[misc]
    gatherer.ApiSettings = functools.partial(ApiSettings, timeouts=TIMEOUTS, deadline=DEADLINE)  # type: ignore[misc, assignment]
    sys.exit(command_line.main())
