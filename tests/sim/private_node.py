"""Device nodes of any number for tests, in a mount namespace of their own: the host's /dev stays as it is. They need root."""

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import os, stat, subprocess, sys
directory, options, mode, number, *command = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", options, "devward-test", directory], check=True)
node = os.path.join(directory, "node")
os.mknod(node, stat.S_IFCHR, os.makedev(*map(int, number.split(":"))))
os.chmod(node, int(mode, 8))
descriptor = os.open(node, os.O_PATH)
os.set_inheritable(descriptor, True)
os.execvp(command[0], [str(descriptor) if word == "FD" else word for word in command])
"""


def run_with_node(
    directory: Path, number: str, command: list[str], *, mode: int = 0o600, options: str = "mode=0755"
) -> "subprocess.CompletedProcess[bytes]":
    """Run a command in which the word `FD` is an inherited O_PATH descriptor of a fresh character node `major:minor`."""
    program = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", _PROGRAM]
    return subprocess.run([*program, str(directory), options, f"{mode:o}", number, *command], check=True, capture_output=True, timeout=60)


def unused_misc_number() -> str:
    """Return a number of the misc major that no driver has."""
    with open("/proc/misc", encoding="ascii") as file:
        used = {int(line.split()[0]) for line in file}
    return f"10:{max(set(range(240, 255)) - used)}"


def unused_major_number() -> str:
    """Return a number of a character major that no driver has."""
    with open("/proc/devices", encoding="ascii") as file:
        characters = file.read().partition("Block devices:")[0]
    used = {int(line.split()[0]) for line in characters.splitlines() if line[:3].strip().isdecimal()}
    return f"{max(set(range(234, 255)) - used)}:0"
