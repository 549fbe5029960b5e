"""devwardctl that gives nobody up because the machine is slow; what follows are devwardctl's own arguments.

How often it looks whether a daemon lives that owes an answer, and how long an action may take, are as ever.
"""

import sys

from devward.ctl import agent, client, complete
from devward.ctl.main import main

#: Seconds that only a failure takes.
PATIENCE = 120.0

if __name__ == "__main__":
    agent.REGISTER_SECONDS = agent.END_SECONDS = PATIENCE  # type: ignore[misc]
    client.READ_SECONDS = client.ACTION_SECONDS = client.PING_SECONDS = PATIENCE  # type: ignore[misc]
    client.Client.call.__kwdefaults__["within"] = PATIENCE
    complete.PATIENCE = PATIENCE  # type: ignore[misc]
    sys.exit(main())
