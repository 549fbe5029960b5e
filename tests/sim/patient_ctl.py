"""devwardctl that gives nobody up because the machine is slow; what follows are devwardctl's own arguments.

How often it looks whether a daemon lives that owes an answer is as ever.
"""

import sys
from typing import Final

from devward.ctl import agent, client, complete
from devward.ctl.main import main

#: What Python runs: devwardctl as it is, for the tests of the time that it waits, and this one.
PLAIN_CTL: Final = ("-m", "devward.ctl")
PATIENT_CTL: Final = (__file__,)
#: Seconds that only a failure takes.
PATIENCE: Final = 120.0

if __name__ == "__main__":
    agent.REGISTER_SECONDS = agent.END_SECONDS = PATIENCE  # type: ignore[misc]
    client.READ_SECONDS = client.ACTION_SECONDS = client.PING_SECONDS = PATIENCE  # type: ignore[misc]
    defaults = client.Client.call.__kwdefaults__
    assert defaults is not None
    defaults["within"] = PATIENCE
    complete.PATIENCE = PATIENCE  # type: ignore[misc]
    sys.exit(main())
