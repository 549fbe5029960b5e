"""Run in a container, as root: logs a user in at a terminal of its own, types a command, and answers what asks for a password.

    nspawn_terminal.py USER PASSWORD SECONDS COMMAND

Prints what the terminal showed and ends with the exit status of the command; 124 if that did not end in time, 125 if the login failed.
"""

import os
import pty
import re
import select
import signal
import sys
import termios
import time


def main(user: str, password: str, seconds: float, command: str) -> int:
    """Hold the terminal's other end until the user's shell ends."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("su", ["su", "--login", user])
    os.write(terminal, f"{command}; echo status=$?; exit\n".encode())
    shown = b""
    answered = 0
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            # What is typed before the terminal hides it is thrown away.
            hidden = not termios.tcgetattr(terminal)[3] & termios.ECHO
            if shown.count(b"assword:") > answered and hidden:
                answered += 1
                os.write(terminal, password.encode() + b"\n")
            if not select.select([terminal], [], [], 0.05)[0]:
                continue
            try:
                data = os.read(terminal, 4096)
            except OSError:  # EIO: nobody has the terminal open any more
                data = b""
            if not data:
                found = re.search(rb"^status=(\d+)", shown, re.MULTILINE)
                return int(found[1]) if found else 125
            shown += data
        return 124
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        sys.stdout.write(shown.decode(errors="replace"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]))
