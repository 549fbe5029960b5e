"""What packaging/demo makes of this machine in its own mount namespace: /dev, /run, /var/log and parts of sysfs that nobody else sees."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

#: What every program expects.
_BASIC = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_TMPFS = ("-t", "tmpfs", "-o", "mode=0755", "devward-demo")

#: Seconds; a condition is never waited for as long unless something is wrong.
DEADLINE = 120.0


def wait(condition: Callable[[], object], what: str, *, pause: float = 0.0005) -> float:
    """Wait until something holds; return the seconds that took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + DEADLINE:
            raise SystemExit(f"packaging/demo: not within {DEADLINE:g} s: {what}")
        time.sleep(pause)
    return time.monotonic() - began


def mount(*arguments: str) -> None:
    """Run mount(8), without the record that it may keep in /run/mount, which is the host's."""
    subprocess.run(["mount", "--no-mtab", *arguments], check=True)


def set_stage(*, simulated: bool) -> None:
    """Cover what the demo changes. `simulated`: with a /dev/mshv, and without this machine's /dev/kvm."""
    if simulated:
        mount(*_TMPFS, "/sys/class/misc")
        # The node will be /dev/null's: devward only opens that kind of device.
        Path("/sys/class/misc/mshv").mkdir()
        Path("/sys/class/misc/mshv/dev").write_text("1:3\n")
    kvm = None if simulated else os.stat("/dev/kvm")
    with _covered("/dev", keep=("pts", "shm")):
        for name, number in _BASIC.items():
            make_node(f"/dev/{name}", 0o666, os.makedev(*number))
        os.symlink("/proc/self/fd", "/dev/fd")
    if kvm is None:
        make_node("/dev/mshv", 0o666, os.makedev(1, 3))
    else:
        # The machine's own KVM, whichever node opens it.
        make_node("/dev/kvm", kvm.st_mode & 0o777, kvm.st_rdev)
        os.chown("/dev/kvm", kvm.st_uid, kvm.st_gid)
    # All of it but the place of the broker's socket, and the host's own journal.
    with _covered("/run", keep=sorted(set(os.listdir("/run")) - {"devward-dcmi", "log"})):
        pass
    for directory in ("/var/log", "/sys/dev/char"):
        with _covered(directory):
            pass


@contextlib.contextmanager
def _covered(directory: str, keep: Collection[str] = ()) -> Iterator[None]:
    """Mount a tmpfs over a directory, and put those of its entries back that are to be kept."""
    below = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    mount(*_TMPFS, directory)
    yield
    for name in keep:
        # By the descriptor, as the path leads to what covers it now. Nothing of it can be reached from the scratch directory, which is
        # removed at the end.
        old, new = f"/proc/{os.getpid()}/fd/{below}/{name}", f"{directory}/{name}"
        if os.path.islink(old):
            os.symlink(os.readlink(old), new)
            continue
        if not os.path.exists(old):
            continue
        if os.path.isdir(old):
            os.mkdir(new)
        else:
            Path(new).touch()
        mount("--no-canonicalize", "--rbind", old, new)
    os.close(below)


def make_node(path: str, mode: int, number: int) -> None:
    """Make a character device node, whatever the umask."""
    os.mknod(path, 0o020000 | mode, number)
    os.chmod(path, mode)
