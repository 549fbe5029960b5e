"""A Debian in which packages are installed for real: an overlay over a cached root, in mount and process namespaces of its own.

Nothing boots there; programs run by chroot, and maintainer scripts find no service manager, as on a machine that is being installed.
/dev is a tmpfs, so that no script can change a node of the host. All of it ends with the process that holds it.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

SYSTEM = Path(__file__).resolve().parent
#: What devward depends on, and what its maintainer scripts call where it is there.
PACKAGES = ("python3-dbus-next", "python3-pyudev", "python3-sdnotify", "python3-yaml", "dbus", "systemd")

_HOLD = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount --bind -o ro "$3" mnt
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=0755 tmpfs run
mount -t tmpfs -o mode=0755 tmpfs dev
mknod -m 666 dev/null c 1 3
mknod -m 666 dev/zero c 1 5
mknod -m 666 dev/random c 1 8
mknod -m 666 dev/urandom c 1 9
if [ -e /sys/class/misc/kvm/dev ]; then mknod -m 660 dev/kvm c 10 232; fi
echo ready
read -r end
"""


def make_root(release: str) -> str:
    """Return the path of a cached root of this Debian release; it must not be written to."""
    made = subprocess.run([str(SYSTEM / "make_root"), release, *PACKAGES], stdout=subprocess.PIPE, text=True, check=True)
    return made.stdout.strip()


class PackageRoot:
    """One such Debian; a context manager. `packages` is seen there as /mnt."""

    def __init__(self, lower: str, scratch: Path, packages: Path) -> None:
        """Mount it below `scratch`."""
        self.path = scratch / "root"
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _HOLD, "sh", str(scratch), lower, str(packages)]
        self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            self.close()
            raise AssertionError("the root could not be mounted")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        self._enter = ["nsenter", f"--target={children[0]}", "--mount", "--pid"]

    def close(self) -> None:
        """End every process in it, and with them its mounts."""
        self._holder.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def outside(self, *command: str) -> str:
        """Run a program of the host where it sees this root at `path`; return what it prints. CalledProcessError if it fails."""
        return self._run([*self._enter, *command])

    def run(self, *command: str, check: bool = True) -> str:
        """Run a program of this root; return what it prints on both streams. CalledProcessError if it fails, unless not `check`."""
        environment = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"]
        return self._run([*self._enter, "chroot", str(self.path), *environment, *command], check=check)

    def shell(self, script: str) -> str:
        """Run a shell script in this root."""
        return self.run("sh", "-ec", script)

    def files(self) -> set[str]:
        """List every file with type, mode and owner, except those that package managers keep for themselves."""
        passed_over = [
            "/proc",
            "/sys",
            "/dev",
            "/run",
            "/tmp",
            "/mnt",
            "/var/lib/dpkg",
            "/var/lib/apt",
            "/var/lib/rpm",
            "/var/cache",
            "/var/log",
        ]
        skip = [word for path in passed_over for word in ("-path", path, "-o")][:-1]
        return set(self.run("find", "/", "(", *skip, ")", "-prune", "-o", "-printf", "%y %m %U:%G %p\\n").splitlines())

    def _run(self, command: Sequence[str], *, check: bool = True) -> str:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env=host_environment(),
        )
        if check and done.returncode != 0:
            print(done.stdout)
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout)
        return done.stdout


def host_environment() -> dict[str, str]:
    """Return what a program of the host that works on a root may know of its caller: nothing that concerns the caller's Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
