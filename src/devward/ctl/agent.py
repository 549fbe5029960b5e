"""Lets polkit ask for a password at this terminal: starts pkttyagent for our own process, as systemctl does, and ends it.

pkttyagent(1): it serves its parent process, closes --notify-fd once it is registered, and with --fallback leaves a better agent alone.
"""

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping
from typing import Final

PROGRAM: Final = "pkttyagent"
#: Seconds to wait until the agent is registered; without it the daemon's answer says that nobody could be asked.
REGISTER_SECONDS: Final = 5.0
#: Seconds that it may take to give the terminal back.
END_SECONDS: Final = 5.0


@contextlib.contextmanager
def asking(environ: Mapping[str, str], bus_address: str | None) -> Iterator[None]:
    """Run the agent for the length of the block, where it is installed."""
    told, notify = os.pipe()
    environment = dict(environ)
    if bus_address is not None:
        environment["DBUS_SYSTEM_BUS_ADDRESS"] = bus_address
    try:
        agent = subprocess.Popen([PROGRAM, "--notify-fd", str(notify), "--fallback"], pass_fds=[notify], env=environment)
    except OSError:
        os.close(told)
        os.close(notify)
        yield
        return
    os.close(notify)
    try:
        # End of file: registered, or ended.
        select.select([told], [], [], REGISTER_SECONDS)
        os.close(told)
        yield
    finally:
        _end(agent)


def _end(agent: "subprocess.Popen[bytes]") -> None:
    agent.send_signal(signal.SIGTERM)
    # It may be stopped, waiting for the terminal.
    agent.send_signal(signal.SIGCONT)
    try:
        agent.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait()
